//! From fragments to stores: sums pass through shared memory, where rows and columns are known, and meet the epilogue; a band of rows of
//! every subgroup at a time. Where all stores are proven to go to whole blocks, an invocation stores [`GROUP`] outputs at once.

use super::super::{M, N, all_extents, divide, is_covered, store_tile};
use super::{Product, WORDS};
use crate::asm::{Id, Lines};
use crate::contiguity::sectors;
use crate::dtype::DType;
use crate::emit_expr::Emit;
use crate::expr::ExprId;
use crate::spec::{Coop, Extent, MatmulSpec, Store};
use crate::wide_load::{self, GROUP};

/// Blocks from one row of a band to the next.
fn band_pitch(c: &Coop) -> u32 {
    c.bn / c.warps.1 / WORDS + 1
}

/// Blocks of the narrowest band: the fragments of one subgroup side by side.
pub(super) fn band_blocks(c: &Coop) -> u32 {
    c.frag.0 * band_pitch(c)
}

/// Rows of a band: as many fragments as find room where the tiles were.
fn band_rows(p: &Product<'_>) -> u32 {
    let room = p.n_blocks / (p.c.subgroups() * band_blocks(&p.c));
    let (along_m, _) = p.fragments();
    let fragments = (1..=along_m).rev().find(|&f| along_m.is_multiple_of(f) && f <= room.max(1)).unwrap_or(1);
    fragments * p.c.frag.0
}

/// How outputs of a band are dealt out.
#[derive(Clone, Copy)]
struct Deal {
    /// Neighbouring invocations take neighbours along m, else along n.
    along_m: bool,
    /// Outputs of an invocation side by side along that axis: 1, or [`GROUP`] stored as blocks.
    count: u32,
}

fn deal(spec: &MatmulSpec) -> Deal {
    // Of two ways to go, the one whose neighbours lie in fewer sectors of memory.
    let sectors = |axis: usize, extent: Extent| -> u64 {
        let of = |s: &Store| {
            let bytes = spec.interface.operands[usize::from(s.operand)].dtype.size_bytes();
            sectors(&spec.exprs, s.index, (axis as u8, extent), bytes)
        };
        spec.stores.iter().map(of).sum()
    };
    let wide = |axis: usize| {
        let (stores, extents) = (&spec.stores, all_extents(spec));
        let to_halves = |s: &Store| wide_load::stores_blocks(&spec.exprs, &spec.interface, &extents, s, axis);
        !stores.is_empty() && stores.iter().all(to_halves)
    };
    match [N, M].into_iter().find(|&axis| wide(axis)) {
        Some(axis) => Deal { along_m: axis == M, count: GROUP },
        None => Deal { along_m: sectors(M, spec.m) < sectors(N, spec.n), count: 1 },
    }
}

/// Stores every sum. Each subgroup has a part of the shared array to itself; the workgroup is done reading tiles.
pub(super) fn store(cx: &mut Emit<'_>, p: &Product<'_>) {
    let rows = band_rows(p);
    let warp = cx.asm.subgroup_index(p.c.subgroup);
    let size = cx.asm.u32(rows * band_pitch(&p.c));
    let start = cx.asm.imul(warp, size);
    // Several subgroups share the sums where there are parts.
    let wait = |cx: &mut Emit<'_>| if p.c.parts() > 1 { cx.asm.barrier() } else { cx.asm.subgroup_barrier() };
    let sums = first_sums(cx, p, start);
    for first in (0..p.c.bm / p.c.warps.0).step_by(rows as usize) {
        if first > 0 {
            wait(cx);
        }
        put_band(cx, p, start, (first, rows));
        wait(cx);
        store_band(cx, p, sums, (first, rows));
    }
}

/// Where the first part of a subgroup's sums starts, of its own start.
fn first_sums(cx: &mut Emit<'_>, p: &Product<'_>, start: Id) -> Id {
    if p.c.parts() == 1 {
        return start;
    }
    let of_a_part = cx.asm.u32(part_blocks(p));
    let before = cx.asm.imul(p.place.part, of_a_part);
    cx.asm.isub(start, before)
}

/// Blocks of the bands of all subgroups of a part.
fn part_blocks(p: &Product<'_>) -> u32 {
    p.c.warps.0 * p.c.warps.1 * band_rows(p) * band_pitch(&p.c)
}

fn put_band(cx: &mut Emit<'_>, p: &Product<'_>, start: Id, (first, rows): (u32, u32)) {
    let (_, along_n) = p.fragments();
    let (m, n, _) = p.c.frag;
    for i in 0..rows / m {
        for j in 0..along_n {
            let sum = cx.asm.variable(p.sums[((first / m + i) * along_n + j) as usize], p.sum_ty);
            let offset = cx.asm.u32(i * m * band_pitch(&p.c) + j * n / WORDS);
            let first = cx.asm.iadd(start, offset);
            cx.asm.matrix_store(sum, p.blocks, Lines { first, pitch: band_pitch(&p.c), rows: true });
        }
    }
}

/// Each invocation stores every `subgroup`-th output, or group of outputs, of a band; with parts, their subgroups take turns.
fn store_band(cx: &mut Emit<'_>, p: &Product<'_>, start: Id, (first, rows): (u32, u32)) {
    let (c, deal) = (p.c, deal(p.spec));
    let cols = c.bn / c.warps.1;
    let lane = cx.asm.subgroup_lane(c.subgroup);
    let (count, step) = (cx.asm.u32(rows * cols / deal.count), cx.asm.u32(c.subgroup * c.parts()));
    let size = cx.asm.u32(c.subgroup);
    let turn = cx.asm.imul(p.place.part, size);
    let own = cx.asm.iadd(lane, turn);
    cx.loop_step((own, count, step), &[], |cx, element, _| {
        let fast = cx.asm.u32(if deal.along_m { rows } else { cols } / deal.count);
        let (slow, fast) = divide(cx, element, fast);
        let size = cx.asm.u32(deal.count);
        let fast = cx.asm.imul(fast, size);
        let (row, col) = if deal.along_m { (fast, slow) } else { (slow, fast) };
        let values = sums(cx, p, start, (row, col), deal);
        let first = cx.asm.u32(first);
        let row = cx.asm.iadd(row, first);
        store_some(cx, p, (row, col), &values, deal);
        vec![]
    });
}

/// The outputs of a deal from a row and column of the band on: what each part found, added in their order.
fn sums(cx: &mut Emit<'_>, p: &Product<'_>, start: Id, at: (Id, Id), deal: Deal) -> Vec<Id> {
    let mut sums = band_elements(cx, p, start, at, deal);
    for part in 1..p.c.parts() {
        let before = cx.asm.u32(part * part_blocks(p));
        let start = cx.asm.iadd(start, before);
        let more = band_elements(cx, p, start, at, deal);
        for (sum, more) in sums.iter_mut().zip(more) {
            *sum = cx.asm.fadd(*sum, more);
        }
    }
    sums
}

/// The outputs of a part of a deal from a row and column of the band on.
fn band_elements(cx: &mut Emit<'_>, p: &Product<'_>, start: Id, (row, col): (Id, Id), deal: Deal) -> Vec<Id> {
    let (two, three) = (cx.asm.u32(WORDS.trailing_zeros()), cx.asm.u32(WORDS - 1));
    let pitch = cx.asm.u32(band_pitch(&p.c));
    let line = cx.asm.imul(row, pitch);
    let line = cx.asm.iadd(start, line);
    let column = cx.asm.shr(col, two);
    let block = cx.asm.iadd(line, column);
    if deal.count > 1 && !deal.along_m {
        let next = cx.asm.u32(1);
        let next = cx.asm.iadd(block, next);
        return [block, next].into_iter().flat_map(|at| cx.asm.load_block_f32s(p.blocks, at)).collect();
    }
    let word = cx.asm.and(col, three);
    (0..deal.count)
        .map(|e| {
            let down = cx.asm.u32(e * band_pitch(&p.c));
            let block = cx.asm.iadd(block, down);
            cx.asm.load_block_f32(p.blocks, block, word)
        })
        .collect()
}

/// Stores outputs from a row and column of the subgroup's part on.
fn store_some(cx: &mut Emit<'_>, p: &Product<'_>, (row, col): (Id, Id), values: &[Id], deal: Deal) {
    let row = cx.asm.iadd(row, p.place.row);
    let row = cx.asm.iadd(row, p.first[0]);
    let col = cx.asm.iadd(col, p.place.col);
    let col = cx.asm.iadd(col, p.first[1]);
    let row = (row, inside(cx, (p.spec.m, p.c.bm), p.own[0], row));
    let col = (col, inside(cx, (p.spec.n, p.c.bn), p.own[1], col));
    if deal.count == 1 {
        return store_tile(cx, p.spec, &[row], &[col], values);
    }
    // A group is inside as a whole.
    let inside = cx.asm.land(row.1, col.1);
    cx.if_then(inside, &[], |cx| {
        store_group(cx, p.spec, (row.0, col.0), values, if deal.along_m { M } else { N });
        vec![]
    });
}

/// All stores of a group of outputs that follow one another along `axis`; all values are computed before the first is written.
fn store_group(cx: &mut Emit<'_>, spec: &MatmulSpec, (row, col): (Id, Id), sums: &[Id], axis: usize) {
    let along = if axis == M { row } else { col };
    cx.bind_axis(if axis == M { N } else { M }, if axis == M { col } else { row });
    let roots: Vec<ExprId> = spec.stores.iter().map(|s| s.value).collect();
    let blocks = wide_load::blocks(&spec.exprs, &spec.interface, &all_extents(spec), &roots, axis);
    let (places, loaded) = cx.scope(|cx| {
        cx.bind_axis(axis, along);
        let places: Vec<(Id, Option<Id>)> =
            spec.stores.iter().map(|s| (cx.eval(s.index), s.guard.map(|g| cx.eval(g)))).collect();
        let loaded: Vec<(ExprId, Vec<Id>)> =
            blocks.iter().map(|&(id, load, dtype)| (id, cx.load_group(load, dtype, GROUP))).collect();
        (places, loaded)
    });
    let mut values: Vec<Vec<Id>> = vec![vec![]; spec.stores.len()];
    for (e, &sum) in (0u32..).zip(sums) {
        let e_id = cx.asm.u32(e);
        let at = cx.asm.iadd(along, e_id);
        cx.scope(|cx| {
            cx.bind_axis(axis, at);
            cx.bind_arg(0, sum);
            loaded.iter().for_each(|(id, values)| cx.preset(*id, values[e as usize]));
            for (values, s) in values.iter_mut().zip(&spec.stores) {
                values.push(cx.eval(s.value));
            }
        });
    }
    for ((s, (index, guard)), values) in spec.stores.iter().zip(places).zip(values) {
        let guard = guard.unwrap_or_else(|| cx.asm.bool(true));
        cx.if_then(guard, &[], |cx| {
            store_blocks(cx, spec.interface.operands[usize::from(s.operand)].dtype, s.operand, index, &values);
            vec![]
        });
    }
}

/// Writes consecutive elements, from a multiple of their count on, as blocks.
fn store_blocks(cx: &mut Emit<'_>, dtype: DType, operand: u16, index: Id, values: &[Id]) {
    let words: Vec<Id> = match dtype {
        DType::F32 => values.iter().map(|&v| cx.asm.bitcast(crate::asm::St::U32, v)).collect(),
        _ => {
            let rounded: Vec<Id> = values.iter().map(|&v| cx.asm.rounded_half(dtype, v)).collect();
            rounded.chunks(2).map(|pair| cx.asm.pack_halves(dtype, pair[0], pair[1])).collect()
        }
    };
    let per_block = values.len() as u32 * WORDS / words.len() as u32;
    let shift = cx.asm.u32(per_block.trailing_zeros());
    let first = cx.asm.shr(index, shift);
    for (i, block) in (0u32..).zip(words.chunks(WORDS as usize)) {
        let i = cx.asm.u32(i);
        let at = cx.asm.iadd(first, i);
        let block = cx.asm.block_of([block[0], block[1], block[2], block[3]]);
        cx.store_operand_block(operand, at, block);
    }
}

/// Whether a row or column exists and is the tile's own, not one of the tile before, which it may overlap.
fn inside(cx: &mut Emit<'_>, (extent, tile): (Extent, u32), own: Option<Id>, at: Id) -> Id {
    if is_covered(extent, tile) {
        return cx.asm.bool(true);
    }
    if let Some(own) = own {
        return cx.asm.ule(own, at);
    }
    let n = cx.extent(extent);
    cx.asm.ult(at, n)
}
