//! What a lane holds of a fragment, found out by loading matrices of indices; and what goes from one form of a fragment to another, or from lane to
//! lane, by way of the subgroup's own place in shared memory.

use super::{Flash, WORDS, pitch};
use crate::asm::{Id, Lines as MatrixLines, St};
use crate::dtype::DType;
use crate::emit_expr::Emit;
use crate::wide_load::GROUP;

impl Flash<'_> {
    fn fragment_lines(&self) -> MatrixLines {
        MatrixLines { first: self.scratch, pitch: self.c.frag.1 / WORDS + 1, rows: true }
    }

    /// Block and word of the number that a row has in the subgroup's own place.
    pub(super) fn row_word(&self, cx: &mut Emit<'_>, row: Id) -> (Id, Id) {
        let (m, n, k) = self.c.frag;
        let (two, mask) = (cx.asm.u32(WORDS.trailing_zeros()), cx.asm.u32(WORDS - 1));
        let behind = cx.asm.u32(m * (n / WORDS + 1) + m * pitch(k));
        let first = cx.asm.iadd(self.scratch, behind);
        let block = cx.asm.shr(row, two);
        (cx.asm.iadd(first, block), cx.asm.and(row, mask))
    }

    /// Combines the components that a row has in all lanes; the result is in the row's word. Barriers before and after.
    pub(super) fn combine_rows(
        &self,
        cx: &mut Emit<'_>,
        components: &[Id],
        combine: impl Fn(&mut Emit<'_>, Id, Id) -> Id,
    ) {
        let (m, n, _) = self.c.frag;
        let matrix = cx.asm.matrix_of(self.sum_ty, DType::F32, components);
        cx.asm.subgroup_barrier();
        cx.asm.matrix_store(matrix, self.blocks, self.fragment_lines());
        cx.asm.subgroup_barrier();
        let lane = cx.asm.subgroup_lane(self.c.subgroup);
        let (rows, step) = (cx.asm.u32(m), cx.asm.u32(self.c.subgroup));
        cx.loop_step((lane, rows, step), &[], |cx, row, _| {
            let pitch = cx.asm.u32(n / WORDS + 1);
            let line = cx.asm.imul(row, pitch);
            let line = cx.asm.iadd(self.scratch, line);
            let mut words = vec![];
            for block in 0..n / WORDS {
                let block = cx.asm.u32(block);
                let at = cx.asm.iadd(line, block);
                words.extend(cx.asm.load_block_f32s(self.blocks, at));
            }
            let combined = words[1..].iter().fold(words[0], |acc, &w| combine(cx, acc, w));
            let (block, word) = self.row_word(cx, row);
            cx.asm.store_block_f32(self.blocks, block, word, combined);
            vec![]
        });
        cx.asm.subgroup_barrier();
    }

    /// The words of the lane's rows.
    pub(super) fn row_words(&self, cx: &mut Emit<'_>) -> Vec<Id> {
        let word = |own: usize| {
            let (block, word) = self.row_word(cx, self.places[self.first_of(own)].0);
            cx.asm.load_block_f32(self.blocks, block, word)
        };
        (0..self.own_rows()).map(word).collect()
    }
}

/// Finds row and column of each component of a sum.
pub(super) fn find_places(cx: &mut Emit<'_>, f: &mut Flash<'_>) {
    let (m, n, _) = f.c.frag;
    let lane = cx.asm.subgroup_lane(f.c.subgroup);
    let (step, blocks) = (cx.asm.u32(f.c.subgroup), cx.asm.u32(m * n / WORDS));
    let four = cx.asm.u32(WORDS);
    // Indices count row by row; a row of f32 is n / WORDS blocks and one more.
    cx.loop_step((lane, blocks, step), &[], |cx, number, _| {
        let first = cx.asm.imul(number, four);
        let row = cx.quotient_by(number, n / WORDS);
        let at = cx.asm.iadd(number, row);
        let at = cx.asm.iadd(f.scratch, at);
        let words = [0, 1, 2, 3].map(|i| index_value(cx, first, i));
        let words = words.map(|v| cx.asm.bitcast(St::U32, v));
        let block = cx.asm.block_of(words);
        cx.asm.store_block(f.blocks, at, block);
        vec![]
    });
    cx.asm.subgroup_barrier();
    let sum = cx.asm.matrix_load(f.sum_ty, f.blocks, f.fragment_lines());
    let indices = cx.asm.matrix_components(sum, DType::F32, f.components());
    f.places = indices
        .iter()
        .map(|&index| {
            let index = cx.asm.float_to_sint_raw(St::U32, index);
            let row = cx.quotient_by(index, n);
            let width = cx.asm.u32(n);
            let before = cx.asm.imul(row, width);
            (row, cx.asm.isub(index, before))
        })
        .collect();
}

/// Whether a left operand has the same elements in the same components, and those alike in their row bits have one row, in all of the subgroup.
pub(super) fn left_agrees(cx: &mut Emit<'_>, f: &Flash<'_>) -> Id {
    let (m, n, _) = f.c.frag;
    let lane = cx.asm.subgroup_lane(f.c.subgroup);
    let (step, halves) = (cx.asm.u32(f.c.subgroup), cx.asm.u32(m * n / GROUP));
    cx.loop_step((lane, halves, step), &[], |cx, number, _| {
        let eight = cx.asm.u32(GROUP);
        let first = cx.asm.imul(number, eight);
        let at = half_block(cx, f, number);
        let words = [0, 2, 4, 6].map(|i| {
            let (low, high) = (index_value(cx, first, i), index_value(cx, first, i + 1));
            cx.asm.pack_halves(f.c.elem, low, high)
        });
        let block = cx.asm.block_of(words);
        cx.asm.store_block(f.blocks, at, block);
        vec![]
    });
    cx.asm.subgroup_barrier();
    let left = load_left(cx, f);
    let others = cx.asm.matrix_components(left, f.c.elem, f.components());
    let yes = cx.asm.bool(true);
    let in_rows = (0..f.places.len()).fold(yes, |so_far, component| {
        let first = f.first_of(f.own_row(component));
        let equal = cx.asm.ieq(f.places[component].0, f.places[first].0);
        cx.asm.land(so_far, equal)
    });
    let same = f.places.iter().zip(others).fold(in_rows, |same, (&(row, col), other)| {
        let width = cx.asm.u32(n);
        let start = cx.asm.imul(row, width);
        let index = cx.asm.iadd(start, col);
        let index = cx.asm.uint_to_float(St::F32, index);
        let equal = cx.asm.feq(index, other);
        cx.asm.land(same, equal)
    });
    cx.asm.subgroup_all(same)
}

/// `first + i` as f32.
fn index_value(cx: &mut Emit<'_>, first: Id, i: u32) -> Id {
    let i = cx.asm.u32(i);
    let index = cx.asm.iadd(first, i);
    cx.asm.uint_to_float(St::F32, index)
}

/// Block of halves `number` (row by row) of the left operand in the subgroup's own place.
fn half_block(cx: &mut Emit<'_>, f: &Flash<'_>, number: Id) -> Id {
    let (m, n, k) = f.c.frag;
    let row = cx.quotient_by(number, k / GROUP);
    let per_row = cx.asm.u32(k / GROUP);
    let before = cx.asm.imul(row, per_row);
    let within = cx.asm.isub(number, before);
    let line = cx.asm.u32(pitch(k));
    let line = cx.asm.imul(row, line);
    let start = cx.asm.u32(m * (n / WORDS + 1));
    let start = cx.asm.iadd(f.scratch, start);
    let start = cx.asm.iadd(start, line);
    cx.asm.iadd(start, within)
}

/// The left operand in the subgroup's own place.
fn load_left(cx: &mut Emit<'_>, f: &Flash<'_>) -> Id {
    let (m, n, k) = f.c.frag;
    let start = cx.asm.u32(m * (n / WORDS + 1));
    let first = cx.asm.iadd(f.scratch, start);
    cx.asm.matrix_load(f.left_ty, f.blocks, MatrixLines { first, pitch: pitch(k), rows: true })
}

/// Components of a sum as a left operand, by way of the subgroup's own place.
pub(super) fn through_memory(cx: &mut Emit<'_>, f: &Flash<'_>, components: &[Id]) -> Id {
    let (m, n, k) = f.c.frag;
    let matrix = cx.asm.matrix_of(f.sum_ty, DType::F32, components);
    cx.asm.subgroup_barrier();
    cx.asm.matrix_store(matrix, f.blocks, f.fragment_lines());
    cx.asm.subgroup_barrier();
    let lane = cx.asm.subgroup_lane(f.c.subgroup);
    let (count, step) = (cx.asm.u32(m * k / GROUP), cx.asm.u32(f.c.subgroup));
    cx.loop_step((lane, count, step), &[], |cx, number, _| {
        let row = cx.quotient_by(number, k / GROUP);
        let two = cx.asm.u32(GROUP / WORDS);
        let before = cx.asm.imul(number, two);
        // A row is n / WORDS blocks and one more; `number` counts pairs of them.
        debug_assert_eq!(n, k, "a row of halves is a row of f32");
        let at = cx.asm.iadd(before, row);
        let at = cx.asm.iadd(f.scratch, at);
        let one = cx.asm.u32(1);
        let next = cx.asm.iadd(at, one);
        let values: Vec<Id> = [at, next].into_iter().flat_map(|at| cx.asm.load_block_f32s(f.blocks, at)).collect();
        let rounded: Vec<Id> = values.iter().map(|&v| cx.asm.rounded_half(f.c.elem, v)).collect();
        let words: Vec<Id> = rounded.chunks(2).map(|p| cx.asm.pack_halves(f.c.elem, p[0], p[1])).collect();
        let block = cx.asm.block_of([words[0], words[1], words[2], words[3]]);
        let to = half_block(cx, f, number);
        cx.asm.store_block(f.blocks, to, block);
        vec![]
    });
    cx.asm.subgroup_barrier();
    load_left(cx, f)
}
