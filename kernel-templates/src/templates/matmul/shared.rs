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
//! Traffic: each left element is read n / bn times, each right element m / bm times. Along the axis that stores walk through memory,
//! the outputs of an invocation are interleaved with those of its neighbours, so that a subgroup's stores are consecutive. Along another
//! they lie in fours, which one shared load fetches: with single loads, shared memory is what limits the kernel.

use super::{K, M, N, find_tile, is_covered, positions_at, start, store_tile, tile_grid, zero};
use crate::asm::{Blocks, Id, Shared, St};
use crate::check::{BuildError, shape};
use crate::contiguity::{is_consecutive, is_consecutive_index};
use crate::dtype::Ty;
use crate::emit_expr::{Emit, Kept};
use crate::expr::ExprId;
use crate::spec::{Extent, Kernel, MatmulSpec, Staging, Target};
use crate::templates::kernel;

/// Most outputs of an invocation.
const MAX_OUTPUTS: u32 = 64;

/// Most accumulators that are kept twice.
const MAX_APART: usize = 32;

/// Words between rows of a shared tile beyond its width, against bank conflicts of the transposing stores.
const PAD: u32 = 1;

/// f32 in a block of 16 bytes.
const BLOCK: u32 = 4;

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
    let bytes = |axis, s: Sizes| {
        let (width, count) = if axis == M { (s.bm, s.rows) } else { (s.bn, s.cols) };
        if in_blocks(spec, axis, count) {
            (width / BLOCK + 1) * 16
        } else {
            (width + PAD) * St::from(spec.acc).size_bytes()
        }
    };
    sizes(spec).map_or(0, |s| (bytes(M, s) + bytes(N, s)) * s.bk)
}

/// True where the outputs of an invocation along an axis lie in fours.
fn in_blocks(spec: &MatmulSpec, axis: usize, count: u32) -> bool {
    let stored_along = spec.stores.iter().any(|s| is_consecutive_index(&spec.exprs, s.index, axis as u8));
    spec.acc == Ty::F32 && count.is_multiple_of(BLOCK) && !stored_along
}

/// Rows of a tile in shared memory, by k.
#[derive(Clone, Copy)]
enum Tile {
    /// Of single elements.
    Elements(Shared),
    /// Of blocks.
    Blocks(Blocks),
}

/// One operand's tile: how invocations share its loading.
struct Side {
    root: ExprId,
    axis: usize,
    extent: Extent,
    /// Rows (of the left) or columns (of the right).
    width: u32,
    /// Outputs of an invocation along the axis.
    count: u32,
    /// First row or column of the workgroup's tile.
    first: Id,
    tile: Tile,
    /// What this invocation loads of every tile.
    elements: Vec<Element>,
}

/// An element of a tile.
struct Element {
    /// Row or column, and k, within the tile.
    at: Id,
    k: Id,
    /// What is known of it before the loop.
    scope: Kept,
}

impl Side {
    fn new(cx: &mut Emit<'_>, spec: &MatmulSpec, axis: usize, s: Sizes, (tile, local): (Id, Id)) -> Side {
        let (root, extent) = if axis == M { (spec.lhs, spec.m) } else { (spec.rhs, spec.n) };
        let (width, count) = if axis == M { (s.bm, s.rows) } else { (s.bn, s.cols) };
        let size = cx.asm.u32(width);
        let first = cx.asm.imul(tile, size);
        let tile = if in_blocks(spec, axis, count) {
            Tile::Blocks(cx.asm.shared_blocks((width / BLOCK + 1) * s.bk))
        } else {
            Tile::Elements(cx.asm.shared_array(spec.acc.into(), (width + PAD) * s.bk))
        };
        let mut side = Side { root, axis, extent, width, count, first, tile, elements: vec![] };
        side.elements = (0..width * s.bk / spec.wg).map(|i| side.element(cx, spec, s, local, i)).collect();
        side
    }

    /// This invocation's i-th element. Neighbouring invocations take neighbours along k where those are consecutive in memory, else along
    /// the rows or columns.
    fn element(&self, cx: &mut Emit<'_>, spec: &MatmulSpec, s: Sizes, local: Id, i: u32) -> Element {
        let k_fastest = !is_consecutive(&spec.exprs, self.root, self.axis as u8);
        let length = if k_fastest { s.bk } else { self.width };
        let fast_length = cx.asm.u32(length);
        let (slow, fast) = if spec.wg.is_multiple_of(length) {
            // All elements have the same fast coordinate, and share what depends on it.
            let (line, fast) = super::divide(cx, local, fast_length);
            let further = cx.asm.u32(i * (spec.wg / length));
            (cx.asm.iadd(line, further), fast)
        } else {
            let further = cx.asm.u32(i * spec.wg);
            let number = cx.asm.iadd(local, further);
            super::divide(cx, number, fast_length)
        };
        let (at, k) = if k_fastest { (slow, fast) } else { (fast, slow) };
        let position = cx.asm.iadd(self.first, at);
        let covered = is_covered(self.extent, self.width);
        let position = positions_at(cx, self.extent, covered, position, std::iter::once(0))[0].0;
        let scope = cx.keep_scope(None, |cx| {
            cx.bind_axis(self.axis, position);
            cx.hoist(&[self.root], false);
        });
        Element { at, k, scope }
    }

    /// Offsets of an invocation's outputs from its first one.
    fn offsets(&self) -> Vec<u32> {
        let (fours, step) = match self.tile {
            Tile::Blocks(_) => (BLOCK, self.width / (self.count / BLOCK)),
            Tile::Elements(_) => (1, self.width / self.count),
        };
        (0..self.count).map(|i| i / fours * step + i % fours).collect()
    }

    /// Where the outputs of invocation `thread` of those along the axis begin in the tile.
    fn start(&self, cx: &mut Emit<'_>, thread: Id) -> Id {
        match self.tile {
            Tile::Blocks(_) => {
                let four = cx.asm.u32(BLOCK);
                cx.asm.imul(thread, four)
            }
            Tile::Elements(_) => thread,
        }
    }

    /// Output positions of invocation `thread`, each with whether it is inside.
    fn positions(&self, cx: &mut Emit<'_>, thread: Id) -> Vec<(Id, Id)> {
        let start = self.start(cx, thread);
        let first = cx.asm.iadd(self.first, start);
        let covered = is_covered(self.extent, self.width);
        positions_at(cx, self.extent, covered, first, self.offsets().into_iter())
    }

    /// Puts a loaded element into the tile.
    fn put(&self, cx: &mut Emit<'_>, element: &Element, value: Id) {
        let row = self.row(cx, element.k);
        match self.tile {
            Tile::Elements(array) => {
                let slot = cx.asm.iadd(row, element.at);
                cx.asm.store_shared(array, slot, value);
            }
            Tile::Blocks(blocks) => {
                let four = cx.asm.u32(BLOCK);
                let (block, word) = super::divide(cx, element.at, four);
                let slot = cx.asm.iadd(row, block);
                cx.asm.store_block_f32(blocks, slot, word, value);
            }
        }
    }

    /// Start of a row of the tile.
    fn row(&self, cx: &mut Emit<'_>, k: Id) -> Id {
        let pitch = match self.tile {
            Tile::Elements(_) => self.width + PAD,
            Tile::Blocks(_) => self.width / BLOCK + 1,
        };
        let pitch = cx.asm.u32(pitch);
        cx.asm.imul(k, pitch)
    }

    /// The elements of invocation `thread` in row `k`.
    fn fragment(&self, cx: &mut Emit<'_>, k: Id, thread: Id) -> Vec<Id> {
        let row = self.row(cx, k);
        let start = cx.asm.iadd(row, thread);
        match self.tile {
            Tile::Elements(array) => {
                let load = |offset| {
                    let offset = cx.asm.u32(offset);
                    let slot = cx.asm.iadd(start, offset);
                    cx.asm.load_shared(array, slot)
                };
                self.offsets().into_iter().map(load).collect()
            }
            Tile::Blocks(blocks) => {
                let load = |offset: u32| {
                    let offset = cx.asm.u32(offset / BLOCK);
                    let slot = cx.asm.iadd(start, offset);
                    cx.asm.load_block_f32s(blocks, slot)
                };
                self.offsets().into_iter().step_by(BLOCK as usize).flat_map(load).collect()
            }
        }
    }
}

pub(super) fn build(spec: &MatmulSpec, target: Target) -> Result<Kernel, BuildError> {
    let Some(s) = sizes(spec) else {
        return Err(shape("matmul: not a shared staging".to_owned()));
    };
    let mut cx = start(spec, target);
    let group = cx.asm.workgroup_index();
    let local = cx.asm.local_index();
    let tile = find_tile(&mut cx, spec, group, s.bm, s.bn);
    let left = Side::new(&mut cx, spec, M, s, (tile.along_m, local));
    let right = Side::new(&mut cx, spec, N, s, (tile.along_n, local));
    let lanes_n = cx.asm.u32(s.bn / s.cols);
    let (thread_m, thread_n) = super::divide(&mut cx, local, lanes_n);
    let acc = k_tiles(&mut cx, spec, s, [&left, &right], [thread_m, thread_n]);
    let rows = left.positions(&mut cx, thread_m);
    let cols = right.positions(&mut cx, thread_n);
    store_tile(&mut cx, spec, &rows, &cols, &acc);
    Ok(kernel(cx, tile_grid(spec, s.bm, s.bn, 1)))
}

/// The loop over k tiles; the accumulators, row-major.
fn k_tiles(cx: &mut Emit<'_>, spec: &MatmulSpec, s: Sizes, sides: [&Side; 2], threads: [Id; 2]) -> Vec<Id> {
    let total = cx.product(&spec.k);
    let zero = zero(cx, spec.acc);
    let n_acc = (s.rows * s.cols) as usize;
    let no_offset = cx.asm.u32(0);
    let mut initial = vec![zero; n_acc];
    initial.extend(load_tiles(cx, spec, s, sides, no_offset, total));
    let step = cx.asm.u32(s.bk);
    let last = cx.loop_step((no_offset, total, step), &initial, |cx, offset, carried| {
        let (acc, loaded) = carried.split_at(n_acc);
        let elements = sides.into_iter().flat_map(|side| side.elements.iter().map(move |e| (side, e)));
        elements.zip(loaded).for_each(|((side, element), &value)| side.put(cx, element, value));
        cx.asm.barrier();
        let next_offset = cx.asm.iadd(offset, step);
        let next = load_tiles(cx, spec, s, sides, next_offset, total);
        // A tile is summed on its own: sums of sums lose far less than one long sum. Large register tiles have no room for both.
        let apart = spec.acc == Ty::F32 && n_acc <= MAX_APART;
        let mut values = if apart {
            let sums = multiply(cx, s, sides, threads, &vec![zero; n_acc]);
            acc.iter().zip(sums).map(|(&acc, sum)| cx.asm.fadd(acc, sum)).collect()
        } else {
            multiply(cx, s, sides, threads, acc)
        };
        cx.asm.barrier();
        values.extend(next);
        values
    });
    last[..n_acc].to_vec()
}

/// This invocation's elements of both tiles at k offset `offset`; zeros beyond the end of k.
fn load_tiles(cx: &mut Emit<'_>, spec: &MatmulSpec, s: Sizes, sides: [&Side; 2], offset: Id, total: Id) -> Vec<Id> {
    let zero = zero(cx, spec.acc);
    let n_loaded = ((s.bm + s.bn) * s.bk / spec.wg) as usize;
    let some = cx.asm.ult(offset, total);
    cx.if_then(some, &vec![zero; n_loaded], |cx| {
        let elements = sides.into_iter().flat_map(|side| side.elements.iter().map(move |e| (side.root, e)));
        elements.map(|(root, e)| load_element(cx, spec, s, (root, e), offset, total)).collect()
    })
}

fn load_element(
    cx: &mut Emit<'_>,
    spec: &MatmulSpec,
    s: Sizes,
    (root, element): (ExprId, &Element),
    offset: Id,
    total: Id,
) -> Id {
    let k = cx.asm.iadd(offset, element.k);
    let whole = matches!(cx.asm.const_bits(total), Some(n) if n % u64::from(s.bk) == 0);
    let one = cx.asm.u32(1);
    let last = cx.asm.isub(total, one);
    let inside = if whole { cx.asm.bool(true) } else { cx.asm.ult(k, total) };
    let k = cx.asm.select(inside, k, last);
    let value = cx.scope(|cx| {
        for (i, c) in cx.coordinates(k, &spec.k).into_iter().enumerate() {
            cx.bind_axis(K + i, c);
        }
        cx.within(&element.scope, |cx| cx.eval(root))
    });
    let zero = zero(cx, spec.acc);
    cx.asm.select(inside, value, zero)
}

/// The products of one k tile.
fn multiply(cx: &mut Emit<'_>, s: Sizes, sides: [&Side; 2], threads: [Id; 2], acc: &[Id]) -> Vec<Id> {
    let bk = cx.asm.u32(s.bk);
    let [left, right] = sides;
    cx.loop_n(bk, acc, |cx, k, acc| {
        let a = left.fragment(cx, k, threads[0]);
        let b = right.fragment(cx, k, threads[1]);
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
