//! From fragments to stores: bands of sums pass through shared memory, where rows and columns are known, and meet the epilogue.

use super::super::{M, N, divide, is_covered, store_tile};
use super::{Product, WORDS};
use crate::asm::{Id, Lines};
use crate::contiguity::is_consecutive_index;
use crate::emit_expr::Emit;
use crate::spec::{Coop, Extent};

/// Blocks from one row of a band to the next.
fn band_pitch(c: &Coop) -> u32 {
    c.bn / c.warps.1 / WORDS + 1
}

/// Blocks of a band: the fragments of one subgroup side by side.
pub(super) fn band_blocks(c: &Coop) -> u32 {
    c.frag.0 * band_pitch(c)
}

/// Stores every sum. Each subgroup has a part of the shared array to itself; the workgroup is done reading tiles.
pub(super) fn store(cx: &mut Emit<'_>, p: &Product<'_>) {
    let warp = cx.asm.subgroup_index(p.c.subgroup);
    let size = cx.asm.u32(band_blocks(&p.c));
    let start = cx.asm.imul(warp, size);
    let (along_m, _) = p.fragments();
    for band in 0..along_m {
        if band > 0 {
            cx.asm.subgroup_barrier();
        }
        put_band(cx, p, start, band);
        cx.asm.subgroup_barrier();
        store_band(cx, p, start, band);
    }
}

fn put_band(cx: &mut Emit<'_>, p: &Product<'_>, start: Id, band: u32) {
    let (_, along_n) = p.fragments();
    for j in 0..along_n {
        let sum = cx.asm.variable(p.sums[(band * along_n + j) as usize], p.sum_ty);
        let offset = cx.asm.u32(j * p.c.frag.1 / WORDS);
        let first = cx.asm.iadd(start, offset);
        cx.asm.matrix_store(sum, p.blocks, Lines { first, pitch: band_pitch(&p.c), rows: true });
    }
}

/// Each invocation stores every `subgroup`-th element of a band: neighbours take neighbours along n, or along m where that is how
/// outputs lie in memory.
fn store_band(cx: &mut Emit<'_>, p: &Product<'_>, start: Id, band: u32) {
    let c = p.c;
    let (rows, cols) = (c.frag.0, c.bn / c.warps.1);
    let along = |axis: usize| p.spec.stores.iter().any(|s| is_consecutive_index(&p.spec.exprs, s.index, axis as u8));
    let along_m = along(M) && !along(N);
    let lane = cx.asm.subgroup_lane(c.subgroup);
    let (count, step) = (cx.asm.u32(rows * cols), cx.asm.u32(c.subgroup));
    cx.loop_step((lane, count, step), &[], |cx, element, _| {
        let fast = cx.asm.u32(if along_m { rows } else { cols });
        let (slow, fast) = divide(cx, element, fast);
        let (row, col) = if along_m { (fast, slow) } else { (slow, fast) };
        let value = band_element(cx, p, start, row, col);
        store_one(cx, p, band, (row, col), value);
        vec![]
    });
}

fn band_element(cx: &mut Emit<'_>, p: &Product<'_>, start: Id, row: Id, col: Id) -> Id {
    let (two, three) = (cx.asm.u32(WORDS.trailing_zeros()), cx.asm.u32(WORDS - 1));
    let pitch = cx.asm.u32(band_pitch(&p.c));
    let line = cx.asm.imul(row, pitch);
    let line = cx.asm.iadd(start, line);
    let block = cx.asm.shr(col, two);
    let block = cx.asm.iadd(line, block);
    let word = cx.asm.and(col, three);
    cx.asm.load_block_f32(p.blocks, block, word)
}

fn store_one(cx: &mut Emit<'_>, p: &Product<'_>, band: u32, (row, col): (Id, Id), value: Id) {
    let offset = cx.asm.u32(band * p.c.frag.0);
    let row = cx.asm.iadd(row, offset);
    let row = cx.asm.iadd(row, p.place.row);
    let row = cx.asm.iadd(row, p.sides[0].first);
    let col = cx.asm.iadd(col, p.place.col);
    let col = cx.asm.iadd(col, p.sides[1].first);
    let row = (row, inside(cx, p.spec.m, p.c.bm, row));
    let col = (col, inside(cx, p.spec.n, p.c.bn, col));
    store_tile(cx, p.spec, &[row], &[col], &[value]);
}

fn inside(cx: &mut Emit<'_>, extent: Extent, tile: u32, at: Id) -> Id {
    if is_covered(extent, tile) {
        return cx.asm.bool(true);
    }
    let n = cx.extent(extent);
    cx.asm.ult(at, n)
}
