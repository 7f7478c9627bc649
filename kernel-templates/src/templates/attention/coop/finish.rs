//! From output fragments to stores: they pass through shared memory, where rows and channels are known, are divided by the sums of their rows
//! and meet the epilogue. Where all stores are proven to go to whole blocks, a lane stores [`GROUP`] outputs at once.

use super::{Flash, WORDS};
use crate::asm::{Id, Lines};
use crate::emit_expr::Emit;
use crate::templates::attention::store::{store_group, stores_blocks};
use crate::templates::attention::{CHANNEL, QUERY};
use crate::wide_load::GROUP;

/// Stores every output. `sums` are each lane's parts of the sums of its rows.
pub(super) fn store(cx: &mut Emit<'_>, f: &Flash<'_>, sums: &[Id]) {
    let n = sums.len() / f.c.rows as usize;
    let size = cx.asm.u32(f.layout.band);
    let band = cx.asm.imul(f.warp, size);
    // What follows writes over the last tile.
    cx.asm.barrier();
    for r in 0..f.c.rows {
        let of_rows = &sums[r as usize * n..(r as usize + 1) * n];
        let zero = cx.asm.f32(0.0);
        let once = |component: usize| f.first_of(f.own_row(component)) == component;
        let all = f.for_components(of_rows).into_iter().enumerate();
        let all: Vec<Id> = all.map(|(component, sum)| if once(component) { sum } else { zero }).collect();
        f.combine_rows(cx, &all, |cx, a, b| cx.asm.fadd(a, b));
        for channel in 0..f.along_v() {
            let output = cx.asm.variable(f.outputs[(r * f.along_v() + channel) as usize], f.sum_ty);
            let offset = cx.asm.u32(channel * f.c.frag.1 / WORDS);
            let first = cx.asm.iadd(band, offset);
            cx.asm.matrix_store(output, f.blocks, Lines { first, pitch: f.layout.band_pitch, rows: true });
        }
        cx.asm.subgroup_barrier();
        store_rows(cx, f, r, band);
        cx.asm.subgroup_barrier();
    }
}

/// Each lane stores every `subgroup`-th output, or group of outputs, of a fragment's rows.
fn store_rows(cx: &mut Emit<'_>, f: &Flash<'_>, r: u32, band: Id) {
    let (m, count) = (f.c.frag.0, if stores_blocks(f.spec) { GROUP } else { 1 });
    let per_row = f.spec.v_dim / count;
    let lane = cx.asm.subgroup_lane(f.c.subgroup);
    let (total, step) = (cx.asm.u32(m * per_row), cx.asm.u32(f.c.subgroup));
    cx.loop_step((lane, total, step), &[], |cx, number, _| {
        let row = cx.quotient_by(number, per_row);
        let width = cx.asm.u32(per_row);
        let before = cx.asm.imul(row, width);
        let at = cx.asm.isub(number, before);
        let size = cx.asm.u32(count);
        let channel = cx.asm.imul(at, size);
        let down = cx.asm.u32(r * m);
        let query = cx.asm.iadd(f.first_query, down);
        let query = cx.asm.iadd(query, row);
        let queries = cx.extent(f.spec.queries);
        let exists = cx.asm.ult(query, queries);
        cx.if_then(exists, &[], |cx| {
            let values = outputs(cx, f, (band, row, channel), count);
            cx.bind_axis(QUERY, query);
            if count == 1 {
                cx.bind_axis(CHANNEL, channel);
                cx.bind_arg(0, values[0]);
                cx.stores(&f.spec.stores);
            } else {
                store_group(cx, f.spec, channel, &values);
            }
            vec![]
        });
        vec![]
    });
}

/// `count` outputs of a row from a channel on, divided by the row's sum.
fn outputs(cx: &mut Emit<'_>, f: &Flash<'_>, (band, row, channel): (Id, Id, Id), count: u32) -> Vec<Id> {
    let (block, word) = f.row_word(cx, row);
    let sum = cx.asm.load_block_f32(f.blocks, block, word);
    let (zero, one) = (cx.asm.f32(0.0), cx.asm.f32(1.0));
    let hidden = cx.asm.f32(if f.spec.zero_masked_rows { 0.0 } else { f32::NAN });
    let inverse = cx.asm.fdiv(one, sum);
    let empty = cx.asm.feq(sum, zero);
    let (two, mask) = (cx.asm.u32(WORDS.trailing_zeros()), cx.asm.u32(WORDS - 1));
    let pitch = cx.asm.u32(f.layout.band_pitch);
    let line = cx.asm.imul(row, pitch);
    let line = cx.asm.iadd(band, line);
    let block = cx.asm.shr(channel, two);
    let block = cx.asm.iadd(line, block);
    let raw = if count == 1 {
        let word = cx.asm.and(channel, mask);
        vec![cx.asm.load_block_f32(f.blocks, block, word)]
    } else {
        let next = cx.asm.u32(1);
        let next = cx.asm.iadd(block, next);
        [block, next].into_iter().flat_map(|at| cx.asm.load_block_f32s(f.blocks, at)).collect()
    };
    raw.into_iter()
        .map(|value| {
            let value = cx.asm.fmul(value, inverse);
            cx.asm.select(empty, hidden, value)
        })
        .collect()
}
