//! Tiles of both operands in shared memory; the next tile is loaded while the present one is multiplied.
//!
//! ```text
//! parallel for tile of bm × bn, by workgroup:
//!     shared[0] = load(0); barrier
//!     for t in k tiles of bk:
//!         next = load(t + 1)
//!         for k in 0..bk: acc[rows][cols] += shared[t]_a[k][row]·shared[t]_b[k][col]
//!         barrier, with one buffer
//!         shared[t + 1] = next; barrier
//!     stores
//! ```
//!
//! Traffic: each left element is read n / bn times, each right element m / bm times; four f32 at once where the access map is proven to
//! allow it (`side.rs`). Outputs of an invocation lie in fours, which one shared load fetches and, again where proven, one store
//! writes (`store.rs`). Multiplying `rows × cols` outputs per k takes `(rows + cols) / 4` shared loads: 8 × 8 keeps shared memory less
//! than half as busy as the arithmetic.
//!
//! Sums: a chain of [`CHUNK`] products at most, then a chain of such sums (`totals.rs`). One chain over thousands would lose several times
//! what PyTorch's blocked kernels do.

mod path;
mod side;
mod store;
mod totals;

use super::{M, N, divide, find_tile, start, tile_grid, zero};
use crate::asm::{Id, St};
use crate::check::{BuildError, shape};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::spec::{Kernel, MatmulSpec, Staging, Target};
use crate::templates::kernel;
use path::Path;
use side::Side;
use totals::Totals;

/// Most outputs of an invocation.
const MAX_OUTPUTS: u32 = 64;

/// Products that are summed in one chain, about.
const CHUNK: u32 = 512;

/// A chain and a half is as good as a chain.
const ONE_CHAIN: u32 = CHUNK + CHUNK / 2;

/// Words between rows of a shared tile beyond its width, against bank conflicts of the transposing stores.
const PAD: u32 = 1;

/// f32 in a block of 16 bytes.
const BLOCK: u32 = 4;

/// Multiply-adds laid out in one turn of the inner loop.
const LAID_OUT: u32 = 1024;

/// Workgroups of so many invocations have 125 registers for each of them, of 128 with which two share a unit: they get none of what takes more.
const CROWDED: u32 = 256;

/// The tile sizes of a spec.
#[derive(Clone, Copy)]
struct Sizes {
    bm: u32,
    bn: u32,
    bk: u32,
    rows: u32,
    cols: u32,
    buffers: u32,
}

fn sizes(spec: &MatmulSpec) -> Option<Sizes> {
    match spec.staging {
        Staging::Shared { bm, bn, bk, rows, cols, buffers } => Some(Sizes { bm, bn, bk, rows, cols, buffers }),
        _ => None,
    }
}

pub(super) fn check(spec: &MatmulSpec) -> Result<(), BuildError> {
    let Some(Sizes { bm, bn, bk, rows, cols, buffers }) = sizes(spec) else {
        return Err(shape("matmul: not a shared staging".to_owned()));
    };
    let positive = bm > 0 && bn > 0 && bk > 0 && rows > 0 && cols > 0;
    let fits = positive
        && rows * cols <= MAX_OUTPUTS
        && bm.is_multiple_of(rows)
        && bn.is_multiple_of(cols)
        && (bm / rows) * (bn / cols) == spec.wg
        && (1..=2).contains(&buffers);
    if fits {
        return Ok(());
    }
    Err(shape(format!(
        "matmul: tile {bm}x{bn}x{bk} by {rows}x{cols} in {buffers} buffers needs (bm/rows)·(bn/cols) = wg = {}, 1 or 2 buffers, and at most {MAX_OUTPUTS} outputs each",
        spec.wg
    )))
}

pub(super) use totals::are_long as totals_in_memory;

pub(super) fn shared_bytes(spec: &MatmulSpec) -> u32 {
    let bytes = |width: u32, count: u32| match side::in_blocks(spec, width, count) {
        true => (width / BLOCK + 1) * 16,
        false => (width + PAD) * St::from(spec.acc).size_bytes(),
    };
    sizes(spec).map_or(0, |s| (bytes(s.bm, s.rows) + bytes(s.bn, s.cols)) * s.bk * s.buffers)
}

/// A kernel under way.
struct Product<'a> {
    spec: &'a MatmulSpec,
    s: Sizes,
    path: Path<'a>,
    sides: [Side; 2],
    /// Number of this invocation along m and n.
    threads: [Id; 2],
}

pub(super) fn build(spec: &MatmulSpec, target: Target) -> Result<Kernel, BuildError> {
    let Some(s) = sizes(spec) else {
        return Err(shape("matmul: not a shared staging".to_owned()));
    };
    let mut cx = start(spec, target);
    let group = cx.asm.workgroup_index();
    let local = cx.asm.local_index();
    let tile = find_tile(&mut cx, spec, group, s.bm, s.bn);
    let path = Path::of(spec, s.bk);
    let left = Side::new(&mut cx, spec, M, s, &path, (tile.along_m, local));
    let right = Side::new(&mut cx, spec, N, s, &path, (tile.along_n, local));
    let threads = threads(&mut cx, s, local);
    let p = Product { spec, s, path, sides: [left, right], threads };
    let acc = sums(&mut cx, &p);
    let rows = p.sides[0].positions(&mut cx, threads[0]);
    let cols = p.sides[1].positions(&mut cx, threads[1]);
    store::store(&mut cx, spec, &rows, &cols, &acc);
    Ok(kernel(cx, tile_grid(spec, s.bm, s.bn, 1)))
}

/// Number of an invocation along m and n. 32 neighbours stand in 4 rows of 8, so that their shared loads name few different blocks; where both
/// sides are loaded by several, 16 of them in two rows that take turns: 8 then name two blocks of one side and four of the other.
fn threads(cx: &mut Emit<'_>, s: Sizes, local: Id) -> [Id; 2] {
    let (lanes_m, lanes_n) = (s.bm / s.rows, s.bn / s.cols);
    let across = cx.asm.u32(lanes_n);
    if !lanes_m.is_multiple_of(4) || !lanes_n.is_multiple_of(8) {
        let (m, n) = divide(cx, local, across);
        return [m, n];
    }
    let in_turns = s.rows.min(s.cols) > BLOCK && lanes_m * lanes_n < CROWDED;
    let rows = if in_turns { 2 } else { 1 };
    let [four, eight, warp_size, warps_n] = [4, 8, 32, lanes_n / 8].map(|v| cx.asm.u32(v));
    let [rows, of_rows] = [rows, 8 * rows].map(|v| cx.asm.u32(v));
    let (warp, lane) = divide(cx, local, warp_size);
    let (warp_m, warp_n) = divide(cx, warp, warps_n);
    let (above, lane) = divide(cx, lane, of_rows);
    let (lane_n, turn) = divide(cx, lane, rows);
    let (first_m, first_n) = (cx.asm.imul(warp_m, four), cx.asm.imul(warp_n, eight));
    let above = cx.asm.imul(above, rows);
    let lane_m = cx.asm.iadd(above, turn);
    [cx.asm.iadd(first_m, lane_m), cx.asm.iadd(first_n, lane_n)]
}

/// The accumulators, row-major.
fn sums(cx: &mut Emit<'_>, p: &Product<'_>) -> Vec<Id> {
    let n_tiles = p.path.n_tiles(cx);
    let first = cx.asm.u32(0);
    let some = cx.asm.ult(first, n_tiles);
    cx.if_then(some, &[], |cx| {
        let loaded = load(cx, p, first);
        put(cx, p, first, &loaded);
        vec![]
    });
    cx.asm.barrier();
    let zero = zero(cx, p.spec.acc);
    let initial = vec![zero; (p.s.rows * p.s.cols) as usize];
    let chunk = (CHUNK / p.s.bk).max(1);
    let one_chain = p.spec.acc != Ty::F32 || p.path.known_tiles().is_some_and(|n| n * p.s.bk <= ONE_CHAIN);
    if one_chain {
        return chain(cx, p, [first, n_tiles, n_tiles], &initial);
    }
    let chunk = cx.asm.u32(chunk);
    let chain_from = |cx: &mut Emit<'_>, first: Id| {
        let end = cx.asm.iadd(first, chunk);
        let inside = cx.asm.ult(end, n_tiles);
        let end = cx.asm.select(inside, end, n_tiles);
        chain(cx, p, [first, end, n_tiles], &initial)
    };
    if totals::wait_in_memory(p) {
        let totals = Totals::new(cx, p.s);
        cx.loop_step((first, n_tiles, chunk), &[], |cx, first, _| {
            let chain = chain_from(cx, first);
            totals.add(cx, &chain);
            vec![]
        });
        return totals.all(cx);
    }
    cx.loop_step((first, n_tiles, chunk), &initial, |cx, first, sums| {
        let chain = chain_from(cx, first);
        sums.iter().zip(chain).map(|(&sum, part)| cx.asm.fadd(sum, part)).collect()
    })
}

/// `initial` and the products of tiles `first ‥ end`, of which the first waits in shared memory; the one at `end`, if there is one,
/// does so afterwards.
fn chain(cx: &mut Emit<'_>, p: &Product<'_>, [first, end, n_tiles]: [Id; 3], initial: &[Id]) -> Vec<Id> {
    let one = cx.asm.u32(1);
    cx.loop_step((first, end, one), initial, |cx, tile, acc| {
        let next = cx.asm.iadd(tile, one);
        let some = cx.asm.ult(next, n_tiles);
        if cx.asm.const_bits(some) == Some(0) {
            return multiply(cx, p, tile, acc);
        }
        // The last tile is loaded once more instead of nothing: without a branch, loads and products run side by side.
        let source = cx.asm.select(some, next, tile);
        let loaded = load(cx, p, source);
        let acc = multiply(cx, p, tile, acc);
        if p.s.buffers == 1 {
            cx.asm.barrier();
        }
        put(cx, p, next, &loaded);
        cx.asm.barrier();
        acc
    })
}

/// This invocation's elements of both sides of a tile.
fn load(cx: &mut Emit<'_>, p: &Product<'_>, tile: Id) -> Vec<Id> {
    cx.scope(|cx| {
        let first = p.path.enter(cx, tile);
        let [left, right] = p.sides.each_ref().map(|side| side.load(cx, p.spec, &p.path, first));
        [left, right].concat()
    })
}

/// Puts the elements of a tile where it waits.
fn put(cx: &mut Emit<'_>, p: &Product<'_>, tile: Id, loaded: &[Id]) {
    let mut loaded = loaded.iter().copied();
    for side in &p.sides {
        let buffer = side.buffer(cx, p.s, tile);
        side.put(cx, buffer, &mut loaded);
    }
}

/// `acc` and the products of one tile.
fn multiply(cx: &mut Emit<'_>, p: &Product<'_>, tile: Id, acc: &[Id]) -> Vec<Id> {
    let buffers: Vec<Id> = p.sides.iter().map(|side| side.buffer(cx, p.s, tile)).collect();
    let most = (LAID_OUT / (p.s.rows * p.s.cols)).max(1);
    let laid_out = (1..=most.min(p.s.bk)).rev().find(|u| p.s.bk.is_multiple_of(*u)).unwrap_or(1);
    let [zero, bk, by] = [0, p.s.bk, laid_out].map(|v| cx.asm.u32(v));
    cx.loop_step((zero, bk, by), acc, |cx, k, acc| {
        let mut starts = vec![];
        (0..laid_out).fold(acc.to_vec(), |acc, u| {
            if u.is_multiple_of(side::TURN) {
                let further = cx.asm.u32(u);
                let at = cx.asm.iadd(k, further);
                starts = p.sides.iter().zip(p.threads).map(|(side, thread)| side.start(cx, thread, [k, at])).collect();
            }
            let [a, b] = std::array::from_fn(|i| {
                let start = cx.asm.iadd(buffers[i], starts[i]);
                p.sides[i].fragment(cx, start, u)
            });
            let mut next = Vec::with_capacity(acc.len());
            for (i, &a) in a.iter().enumerate() {
                for (j, &b) in b.iter().enumerate() {
                    next.push(cx.asm.mul_add(a, b, acc[i * b_len(p.s) + j]));
                }
            }
            next
        })
    })
}

fn b_len(s: Sizes) -> usize {
    s.cols as usize
}
