//! Matrix products, and convolutions by their access maps.
//!
//! ```text
//! parallel for b, m, n:
//!     acc = 0
//!     for k axes: acc += lhs(b, m, k) · rhs(b, n, k)
//!     stores(b, m, n, acc)
//! ```
//!
//! One loop nest, four inner shapes ([`Staging`]), a file each: who computes which outputs, and where the elements of both sides wait.
//! Traffic of each is in its file.

mod coop;
mod gemv;
mod registers;
mod shared;

pub use coop::packed_place;

use crate::asm::{Id, St};
use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::dtype::{DType, Ty};
use crate::emit_expr::Emit;
use crate::eval::{Tape, Value, binary};
use crate::expr::Binary;
use crate::host::{Memory, Point, for_each_point};
use crate::limits::{Limits, Reject};
use crate::reference::StoreTape;
use crate::spec::{Coop, Extent, Grid, GridFactor, Kernel, MatmulSpec, Staging, Target};

/// Axes by position.
const BATCH: usize = 0;
const M: usize = 1;
const N: usize = 2;
const K: usize = 3;

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &MatmulSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    index_space(&[spec.batch, spec.m, spec.n])?;
    index_space(&spec.k)?;
    let need = match spec.staging {
        Staging::Registers { .. } => 0,
        Staging::Shared { .. } => shared::shared_bytes(spec),
        Staging::Gemv { .. } => gemv::shared_bytes(spec),
        Staging::Coop(c) => {
            coop::constraints(&c, limits)?;
            coop::shared_bytes(&c)
        }
    };
    if need > limits.shared_bytes { Err(Reject::Shared { need, limit: limits.shared_bytes }) } else { Ok(()) }
}

/// Whether a cooperative staging's sizes fit each other and a device; tile choice asks before it has a spec.
pub fn coop_fits(c: &Coop, limits: &Limits) -> bool {
    let wg = c.subgroups() * c.subgroup;
    let fits = coop::sizes_fit(c, wg) && wg <= limits.max_workgroup && coop::shared_bytes(c) <= limits.shared_bytes;
    fits && coop::constraints(c, limits).is_ok()
}

/// True if both sides of a product reach a cooperative tile by whole blocks, whichever way their lines run; else elements are found one
/// by one, which takes most of the time.
pub fn coop_loads_blocks(spec: &MatmulSpec, elem: DType) -> bool {
    coop::loads_blocks(spec, elem)
}

/// True if invocations can read both sides by whole blocks along k, from which fragments are filled by component.
pub fn coop_fills(spec: &MatmulSpec, elem: DType) -> bool {
    coop::reads_along_k(spec, elem)
}

/// True if the right side is a packed operand as a cooperative staging with a packed fill reads it.
pub fn coop_is_packed(spec: &MatmulSpec, c: &Coop) -> bool {
    coop::is_packed(spec, c)
}

/// True if invocations of so many outputs, in shared staging, keep no second set of sums in registers for sums of so many terms: where tiles
/// are all whole, and run along one axis.
pub fn shared_totals_in_memory(outputs: u32, terms: u32) -> bool {
    shared::totals_in_memory(outputs, terms)
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &MatmulSpec, target: Target) -> Result<Kernel, BuildError> {
    check(spec)?;
    match spec.staging {
        Staging::Registers { rows, cols } => registers::build(spec, target, rows, cols),
        Staging::Shared { .. } => shared::build(spec, target),
        Staging::Gemv { threads_per_dot, cols } => gemv::build(spec, target, threads_per_dot, cols),
        Staging::Coop(c) => coop::build(spec, target, &c),
    }
}

fn check(spec: &MatmulSpec) -> Result<(), BuildError> {
    if spec.acc == Ty::Bool || spec.wg == 0 {
        return Err(shape(format!("matmul: accumulator {}, wg={}", spec.acc, spec.wg)));
    }
    match spec.staging {
        Staging::Registers { rows, cols } => registers::check(rows, cols)?,
        Staging::Shared { .. } => shared::check(spec)?,
        Staging::Gemv { threads_per_dot, cols } => gemv::check(spec, threads_per_dot, cols)?,
        Staging::Coop(c) => coop::check(spec, &c)?,
    }
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    check.interface(&all_extents(spec))?;
    let k: Vec<u8> = (0..spec.k.len()).map(|i| (K + i) as u8).collect();
    let with = |first: &[u8]| [first, &k].concat();
    let (lhs_axes, rhs_axes) = (with(&[0, 1]), with(&[0, 2]));
    check.value(Scope { what: "the left element", axes: &lhs_axes, args: &[] }, spec.lhs, spec.acc)?;
    check.value(Scope { what: "the right element", axes: &rhs_axes, args: &[] }, spec.rhs, spec.acc)?;
    check.stores(Scope { what: "matmul", axes: &[0, 1, 2], args: &[spec.acc] }, &spec.stores)
}

fn all_extents(spec: &MatmulSpec) -> Vec<Extent> {
    [spec.batch, spec.m, spec.n].into_iter().chain(spec.k.iter().copied()).collect()
}

/// The k axis that consecutive k move along: the last one that is longer than 1.
fn last_k(spec: &MatmulSpec) -> Option<usize> {
    (0..spec.k.len()).rev().find(|&i| spec.k[i] != Extent::Const(1)).map(|i| K + i)
}

fn start(spec: &MatmulSpec, target: Target) -> Emit<'_> {
    let extents = all_extents(spec);
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &extents, target, spec.wg);
    cx.load_symbols(&extents);
    cx.round_coarsely(&spec.stores, &[spec.lhs, spec.rhs], &spec.interface);
    cx
}

/// `ceil(batch) · ceil(m / tile_m) · ceil(n / tile_n)` tiles, `per_group` to a workgroup.
///
/// With several tiles to a workgroup the count is rounded up factor by factor: the first factor takes the division.
fn tile_grid(spec: &MatmulSpec, tile_m: u32, tile_n: u32, per_group: u32) -> Grid {
    let factor = |extent: Extent, divisor: u32| GridFactor { extents: vec![extent], divisor };
    match (spec.m, spec.n) {
        (Extent::Const(m), Extent::Const(n)) => {
            let tiles = m.div_ceil(tile_m) * n.div_ceil(tile_n);
            Grid::linear(vec![GridFactor { extents: vec![spec.batch, Extent::Const(tiles)], divisor: per_group }])
        }
        (m, n) => Grid::linear(vec![factor(spec.batch, 1), factor(m, tile_m), factor(n, tile_n * per_group)]),
    }
}

/// A tile's number along m and n; its batch is bound.
struct Tile {
    along_m: Id,
    along_n: Id,
}

/// Finds the tile of a linear number (n fastest), and returns where there is none.
fn find_tile(cx: &mut Emit<'_>, spec: &MatmulSpec, index: Id, tile_m: u32, tile_n: u32) -> Tile {
    let tiles_m = tile_count(cx, spec.m, tile_m);
    let tiles_n = tile_count(cx, spec.n, tile_n);
    let per_batch = cx.asm.imul(tiles_m, tiles_n);
    let batch = cx.extent(spec.batch);
    let total = cx.asm.imul(batch, per_batch);
    let beyond = cx.asm.ule(total, index);
    cx.asm.return_if(beyond);
    let (row, along_n) = divide(cx, index, tiles_n);
    let (batch, along_m) = divide(cx, row, tiles_m);
    cx.bind_axis(BATCH, batch);
    Tile { along_m, along_n }
}

fn tile_count(cx: &mut Emit<'_>, extent: Extent, tile: u32) -> Id {
    match extent {
        Extent::Const(n) => cx.asm.u32(n.div_ceil(tile)),
        Extent::Sym(_) => {
            let n = cx.extent(extent);
            let less_one = cx.asm.u32(tile - 1);
            let up = cx.asm.iadd(n, less_one);
            cx.quotient_by(up, tile)
        }
    }
}

fn divide(cx: &mut Emit<'_>, a: Id, n: Id) -> (Id, Id) {
    let q = match cx.asm.const_bits(n) {
        Some(bits) => cx.quotient_by(a, (bits as u32).max(1)),
        None => cx.asm.udiv(a, n),
    };
    let whole = cx.asm.imul(q, n);
    (q, cx.asm.isub(a, whole))
}

/// Positions `first + i·step` along an axis for i in 0..count: see [`positions_at`].
fn positions(cx: &mut Emit<'_>, extent: Extent, covered: bool, first: Id, step: u32, count: u32) -> Vec<(Id, Id)> {
    positions_at(cx, extent, covered, first, (0..count).map(|i| i * step))
}

/// Positions `first + offset` along an axis, each with whether it is inside; those outside stand in at the last place, so that their
/// loads are in range. Where the axis is known to be covered exactly, all are inside.
fn positions_at(
    cx: &mut Emit<'_>,
    extent: Extent,
    covered: bool,
    first: Id,
    offsets: impl Iterator<Item = u32>,
) -> Vec<(Id, Id)> {
    let one = cx.asm.u32(1);
    offsets
        .map(|offset| {
            let offset = cx.asm.u32(offset);
            let at = cx.asm.iadd(first, offset);
            if covered {
                return (at, cx.asm.bool(true));
            }
            let n = cx.extent(extent);
            let inside = cx.asm.ult(at, n);
            let last = cx.asm.isub(n, one);
            (cx.asm.select(inside, at, last), inside)
        })
        .collect()
}

/// True where tiles cover an axis without rest.
fn is_covered(extent: Extent, tile: u32) -> bool {
    matches!(extent, Extent::Const(n) if n % tile == 0)
}

/// Zero of the accumulator's type.
fn zero(cx: &mut Emit<'_>, ty: Ty) -> Id {
    match St::from(ty) {
        st @ (St::F32 | St::F64) => cx.asm.float(st, 0.0),
        st => cx.asm.int(st, 0),
    }
}

/// Stores the outputs of a register tile; `acc` is row-major over `rows` × `cols`.
fn store_tile(cx: &mut Emit<'_>, spec: &MatmulSpec, rows: &[(Id, Id)], cols: &[(Id, Id)], acc: &[Id]) {
    for (i, &(row, row_inside)) in rows.iter().enumerate() {
        for (j, &(col, col_inside)) in cols.iter().enumerate() {
            let inside = cx.asm.land(row_inside, col_inside);
            cx.if_then(inside, &[], |cx| {
                cx.bind_axis(M, row);
                cx.bind_axis(N, col);
                cx.bind_arg(0, acc[i * cols.len() + j]);
                cx.stores(&spec.stores);
                vec![]
            });
        }
    }
}

/// The plainest form; float sums are kept in f64.
pub(crate) fn reference(spec: &MatmulSpec, memory: &mut Memory) {
    let outputs = memory.extents(&[spec.batch, spec.m, spec.n]);
    let k = memory.extents(&spec.k);
    let tape = Tape::new(&spec.exprs, &[spec.lhs, spec.rhs]);
    let stores = StoreTape::new(&spec.exprs, &spec.stores);
    let (mut elements, mut writer) = (tape.runner(), stores.runner());
    let wide = if spec.acc == Ty::F32 { Ty::F64 } else { spec.acc };
    for_each_point(&outputs, &mut vec![], &mut |axes| {
        let mut acc = Value::from_f64(wide, 0.0);
        for_each_point(&k, axes, &mut |axes| {
            elements.run(&Point { memory, axes, args: &[] });
            let product = binary(Binary::Mul, elements.get(0).cast(wide), elements.get(1).cast(wide));
            acc = binary(Binary::Add, acc, product);
        });
        stores.run(&mut writer, memory, axes, &[acc.cast(spec.acc)]);
    });
}
