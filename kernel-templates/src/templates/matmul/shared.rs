//! Tiles of both operands in shared memory; the next tile is loaded while the present one is multiplied.
//!
//! ```text
//! parallel for tile of bm × bn, by workgroup:
//!     next = load(0)
//!     for t in k tiles of bk:
//!         shared = next; barrier
//!         next = load(t + 1)
//!         for k in 0..bk: acc[rows][cols] += shared_a[k][row]·shared_b[k][col]
//!         barrier
//!     stores
//! ```
//!
//! Traffic: each left element is read n / bn times, each right element m / bm times. Rows and columns of an invocation are interleaved
//! with those of its neighbours, so that shared reads and stores of a subgroup are consecutive.

use super::{K, M, N, find_tile, is_covered, positions, start, store_tile, tile_grid, zero};
use crate::asm::{Id, Shared, St};
use crate::check::{BuildError, shape};
use crate::contiguity::is_consecutive;
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::expr::ExprId;
use crate::spec::{Extent, Kernel, MatmulSpec, Staging, Target};
use crate::templates::kernel;

/// Most outputs of an invocation.
const MAX_OUTPUTS: u32 = 64;

/// Most accumulators that are kept twice.
const MAX_APART: usize = 32;

/// Words between rows of a shared tile beyond its width, against bank conflicts of the transposing stores.
const PAD: u32 = 1;

/// The tile sizes of a spec.
#[derive(Clone, Copy)]
struct Sizes {
    bm: u32,
    bn: u32,
    bk: u32,
    rows: u32,
    cols: u32,
}

fn sizes(spec: &MatmulSpec) -> Option<Sizes> {
    match spec.staging {
        Staging::Shared { bm, bn, bk, rows, cols } => Some(Sizes { bm, bn, bk, rows, cols }),
        _ => None,
    }
}

pub(super) fn check(spec: &MatmulSpec) -> Result<(), BuildError> {
    let Some(Sizes { bm, bn, bk, rows, cols }) = sizes(spec) else {
        return Err(shape("matmul: not a shared staging".to_owned()));
    };
    let positive = bm > 0 && bn > 0 && bk > 0 && rows > 0 && cols > 0;
    let fits = positive
        && rows * cols <= MAX_OUTPUTS
        && bm.is_multiple_of(rows)
        && bn.is_multiple_of(cols)
        && (bm / rows) * (bn / cols) == spec.wg
        && (bm * bk).is_multiple_of(spec.wg)
        && (bn * bk).is_multiple_of(spec.wg);
    if fits {
        return Ok(());
    }
    Err(shape(format!(
        "matmul: tile {bm}x{bn}x{bk} by {rows}x{cols} needs (bm/rows)·(bn/cols) = wg = {}, bm·bk and bn·bk multiples of it, and at most {MAX_OUTPUTS} outputs each",
        spec.wg
    )))
}

pub(super) fn shared_bytes(spec: &MatmulSpec) -> u32 {
    let element = St::from(spec.acc).size_bytes();
    sizes(spec).map_or(0, |s| (s.bm + PAD + s.bn + PAD) * s.bk * element)
}

/// One operand's tile: how invocations share its loading.
struct Side {
    root: ExprId,
    axis: usize,
    extent: Extent,
    /// Rows (of the left) or columns (of the right).
    width: u32,
    /// First row or column of the workgroup's tile.
    first: Id,
    array: Shared,
    /// Neighbouring invocations take neighbours along k, else along the rows or columns.
    k_fastest: bool,
}

pub(super) fn build(spec: &MatmulSpec, target: Target) -> Result<Kernel, BuildError> {
    let Some(s) = sizes(spec) else {
        return Err(shape("matmul: not a shared staging".to_owned()));
    };
    let mut cx = start(spec, target);
    let group = cx.asm.workgroup_index();
    let local = cx.asm.local_index();
    let tile = find_tile(&mut cx, spec, group, s.bm, s.bn);
    let left = side(&mut cx, spec, M, s, tile.along_m);
    let right = side(&mut cx, spec, N, s, tile.along_n);
    let lanes_n = cx.asm.u32(s.bn / s.cols);
    let (thread_m, thread_n) = super::divide(&mut cx, local, lanes_n);
    let acc = k_tiles(&mut cx, spec, s, [&left, &right], (local, thread_m, thread_n));
    let first_row = cx.asm.iadd(left.first, thread_m);
    let first_col = cx.asm.iadd(right.first, thread_n);
    let rows = positions(&mut cx, spec.m, is_covered(spec.m, s.bm), first_row, s.bm / s.rows, s.rows);
    let cols = positions(&mut cx, spec.n, is_covered(spec.n, s.bn), first_col, s.bn / s.cols, s.cols);
    store_tile(&mut cx, spec, &rows, &cols, &acc);
    Ok(kernel(cx, tile_grid(spec, s.bm, s.bn, 1)))
}

fn side(cx: &mut Emit<'_>, spec: &MatmulSpec, axis: usize, s: Sizes, tile: Id) -> Side {
    let (root, extent, width) = if axis == M { (spec.lhs, spec.m, s.bm) } else { (spec.rhs, spec.n, s.bn) };
    let size = cx.asm.u32(width);
    let first = cx.asm.imul(tile, size);
    let array = cx.asm.shared_array(spec.acc.into(), (width + PAD) * s.bk);
    let k_fastest = !is_consecutive(&spec.exprs, root, axis as u8);
    Side { root, axis, extent, width, first, array, k_fastest }
}

/// The loop over k tiles; the accumulators, row-major.
fn k_tiles(
    cx: &mut Emit<'_>,
    spec: &MatmulSpec,
    s: Sizes,
    sides: [&Side; 2],
    (local, thread_m, thread_n): (Id, Id, Id),
) -> Vec<Id> {
    let total = cx.product(&spec.k);
    let zero = zero(cx, spec.acc);
    let n_acc = (s.rows * s.cols) as usize;
    let no_offset = cx.asm.u32(0);
    let mut initial = vec![zero; n_acc];
    initial.extend(load_tiles(cx, spec, s, sides, local, no_offset, total));
    let step = cx.asm.u32(s.bk);
    let last = cx.loop_step((no_offset, total, step), &initial, |cx, offset, carried| {
        let (acc, loaded) = carried.split_at(n_acc);
        let mut rest = loaded;
        for side in sides {
            let (mine, after) = rest.split_at((side.width * s.bk / spec.wg) as usize);
            rest = after;
            put_tile(cx, spec, s, side, local, mine);
        }
        cx.asm.barrier();
        let next_offset = cx.asm.iadd(offset, step);
        let next = load_tiles(cx, spec, s, sides, local, next_offset, total);
        // A tile is summed on its own: sums of sums lose far less than one long sum. Large register tiles have no room for both.
        let apart = spec.acc == Ty::F32 && n_acc <= MAX_APART;
        let mut values = if apart {
            let sums = multiply(cx, s, sides, (thread_m, thread_n), &vec![zero; n_acc]);
            acc.iter().zip(sums).map(|(&acc, sum)| cx.asm.fadd(acc, sum)).collect()
        } else {
            multiply(cx, s, sides, (thread_m, thread_n), acc)
        };
        cx.asm.barrier();
        values.extend(next);
        values
    });
    last[..n_acc].to_vec()
}

/// Place of this invocation's i-th element in a tile: (row or column, k).
fn place(cx: &mut Emit<'_>, spec: &MatmulSpec, s: Sizes, side: &Side, local: Id, i: u32) -> (Id, Id) {
    let first = cx.asm.u32(i * spec.wg);
    let element = cx.asm.iadd(local, first);
    let fast = cx.asm.u32(if side.k_fastest { s.bk } else { side.width });
    let (slow, fast) = super::divide(cx, element, fast);
    if side.k_fastest { (slow, fast) } else { (fast, slow) }
}

/// This invocation's elements of both tiles at k offset `offset`; zeros beyond the end of k.
fn load_tiles(
    cx: &mut Emit<'_>,
    spec: &MatmulSpec,
    s: Sizes,
    sides: [&Side; 2],
    local: Id,
    offset: Id,
    total: Id,
) -> Vec<Id> {
    let zero = zero(cx, spec.acc);
    let n_loaded = ((s.bm + s.bn) * s.bk / spec.wg) as usize;
    let some = cx.asm.ult(offset, total);
    cx.if_then(some, &vec![zero; n_loaded], |cx| {
        let mut loaded = vec![];
        for side in sides {
            for i in 0..side.width * s.bk / spec.wg {
                let (at, k) = place(cx, spec, s, side, local, i);
                loaded.push(load_element(cx, spec, s, side, at, (offset, k, total)));
            }
        }
        loaded
    })
}

fn load_element(
    cx: &mut Emit<'_>,
    spec: &MatmulSpec,
    s: Sizes,
    side: &Side,
    at: Id,
    (offset, k, total): (Id, Id, Id),
) -> Id {
    let position = cx.asm.iadd(side.first, at);
    let covered = is_covered(side.extent, side.width);
    let position = positions(cx, side.extent, covered, position, 1, 1)[0].0;
    let k = cx.asm.iadd(offset, k);
    let whole = matches!(cx.asm.const_bits(total), Some(n) if n % u64::from(s.bk) == 0);
    let one = cx.asm.u32(1);
    let last = cx.asm.isub(total, one);
    let inside = if whole { cx.asm.bool(true) } else { cx.asm.ult(k, total) };
    let k = cx.asm.select(inside, k, last);
    let value = cx.scope(|cx| {
        cx.bind_axis(side.axis, position);
        for (i, c) in cx.coordinates(k, &spec.k).into_iter().enumerate() {
            cx.bind_axis(K + i, c);
        }
        cx.eval(side.root)
    });
    let zero = zero(cx, spec.acc);
    cx.asm.select(inside, value, zero)
}

/// Index in a shared tile.
fn slot(cx: &mut Emit<'_>, side: &Side, at: Id, k: Id) -> Id {
    let pitch = cx.asm.u32(side.width + PAD);
    let row = cx.asm.imul(k, pitch);
    cx.asm.iadd(row, at)
}

fn put_tile(cx: &mut Emit<'_>, spec: &MatmulSpec, s: Sizes, side: &Side, local: Id, values: &[Id]) {
    for (i, &value) in values.iter().enumerate() {
        let (at, k) = place(cx, spec, s, side, local, i as u32);
        let slot = slot(cx, side, at, k);
        cx.asm.store_shared(side.array, slot, value);
    }
}

/// The products of one k tile.
fn multiply(cx: &mut Emit<'_>, s: Sizes, sides: [&Side; 2], threads: (Id, Id), acc: &[Id]) -> Vec<Id> {
    let bk = cx.asm.u32(s.bk);
    let [left, right] = sides;
    cx.loop_n(bk, acc, |cx, k, acc| {
        let a = fragment(cx, left, k, threads.0, s.bm / s.rows, s.rows);
        let b = fragment(cx, right, k, threads.1, s.bn / s.cols, s.cols);
        let mut next = Vec::with_capacity(acc.len());
        for (i, &a) in a.iter().enumerate() {
            for (j, &b) in b.iter().enumerate() {
                next.push(cx.asm.mul_add(a, b, acc[i * b_len(s) + j]));
            }
        }
        next
    })
}

fn b_len(s: Sizes) -> usize {
    s.cols as usize
}

fn fragment(cx: &mut Emit<'_>, side: &Side, k: Id, thread: Id, step: u32, count: u32) -> Vec<Id> {
    (0..count)
        .map(|i| {
            let offset = cx.asm.u32(i * step);
            let at = cx.asm.iadd(thread, offset);
            let slot = slot(cx, side, at, k);
            cx.asm.load_shared(side.array, slot)
        })
        .collect()
}
