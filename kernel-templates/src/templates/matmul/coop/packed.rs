//! The right operand lies in memory fragment by fragment, in the order in which invocations hold them: each fills its part of a fragment
//! from one block of 16 bytes. The left one is staged and loaded as wholes.

use super::super::{K, M, N, find_tile, start, tile_grid};
use super::stage::{self, KRange, Side};
use super::{Product, direct, doubt, fragment, pitch, product, side_blocks};
use crate::asm::{BlockRun, Id, MatrixUse};
use crate::check::{BuildError, shape};
use crate::emit_expr::Emit;
use crate::expr::{Binary, Expr, ExprId, Exprs};
use crate::spec::{Coop, Extent, Fill, Kernel, MatmulSpec, Spread, Target};
use crate::templates::kernel;
use crate::wide_load::GROUP;

/// The place of element (n, k) of a packed right operand of `depth` elements along k: fragments along k first, and in each the elements of
/// an invocation side by side.
pub fn packed_place(
    e: &mut Exprs,
    spread: &Spread,
    (cols, deep): (u32, u32),
    (n, k): (ExprId, ExprId),
    depth: u32,
) -> ExprId {
    let lit = |e: &mut Exprs, v: u32| e.i32(v as i32);
    let (cols_id, deep_id) = (lit(e, cols), lit(e, deep));
    let (far_n, near_n) = (e.bin(Binary::Div, n, cols_id), e.bin(Binary::Rem, n, cols_id));
    let (far_k, near_k) = (e.bin(Binary::Div, k, deep_id), e.bin(Binary::Rem, k, deep_id));
    let (per_line, size) = (lit(e, depth / deep), lit(e, cols * deep));
    let line = e.bin(Binary::Mul, far_n, per_line);
    let number = e.bin(Binary::Add, line, far_k);
    let mut at = e.bin(Binary::Mul, number, size);
    let one = lit(e, 1);
    let components = spread.components.iter().zip(0u32..).filter(|(m, _)| **m != (0, 0));
    let lanes = spread.lanes.iter().zip(GROUP.trailing_zeros()..).filter(|(m, _)| **m != (0, 0));
    for (&(row, column), bit) in components.chain(lanes) {
        let (coordinate, from) = if row > 0 { (near_k, row) } else { (near_n, column) };
        let (from, to) = (lit(e, u32::from(from).trailing_zeros()), lit(e, bit));
        let set = e.bin(Binary::Shr, coordinate, from);
        let set = e.bin(Binary::And, set, one);
        let moved = e.bin(Binary::Shl, set, to);
        at = e.bin(Binary::Add, at, moved);
    }
    at
}

/// The operand, if the right side is it in packed order.
fn operand(spec: &MatmulSpec, c: &Coop, fill: &Fill) -> Option<(u16, u32)> {
    let Expr::Load { operand, dtype, ref index } = *spec.exprs.get(spec.rhs) else { return None };
    let [Extent::Const(depth)] = spec.k[..] else { return None };
    let mut exprs = spec.exprs.clone();
    let (n, k) = (exprs.axis(N as u8), exprs.axis(K as u8));
    let place = packed_place(&mut exprs, &fill.right, (c.frag.1, c.frag.2), (n, k), depth);
    let whole = depth.is_multiple_of(c.bk) && c.frag.1 * c.frag.2 == GROUP * c.subgroup;
    (place == index[0] && dtype == c.elem && whole).then_some((operand, depth))
}

/// See [`super::super::coop_is_packed`].
pub(crate) fn is_packed(spec: &MatmulSpec, c: &Coop) -> bool {
    c.fill.is_some_and(|fill| operand(spec, c, &fill).is_some())
}

pub(super) fn build(spec: &MatmulSpec, target: Target, c: &Coop, fill: &Fill) -> Result<Kernel, BuildError> {
    let not_packed = || shape("matmul: the right operand is not packed as its fragments are filled".to_owned());
    let (operand, depth) = operand(spec, c, fill).ok_or_else(not_packed)?;
    let mut cx = start(spec, target);
    cx.asm.keep_loops();
    let group = cx.asm.workgroup_index();
    let tile = find_tile(&mut cx, spec, group, c.bm, c.bn);
    let (row, own_row) = direct::tile_start(&mut cx, spec.m, c.bm, tile.along_m);
    let (col, own_col) = direct::tile_start(&mut cx, spec.n, c.bn, tile.along_n);
    let local = cx.asm.local_index();
    let left = Side::at(&mut cx, spec, c, M, row, local);
    let tiles = side_blocks(c, left.width, left.along_k) * c.buffers;
    let p = product(&mut cx, spec, c, (vec![left], tiles), ([row, col], [own_row, own_col]));
    let right = Right::new(&mut cx, &p, (operand, depth), fill);
    doubt::if_as_said(&mut cx, &p, fill, |cx| k_tiles(cx, &p, &right));
    Ok(kernel(cx, tile_grid(spec, c.bm, c.bn, 1)))
}

/// Steps of a tile that each part goes through: those of the first part come first.
fn own_steps(c: &Coop) -> u32 {
    c.bk / c.frag.2 / c.parts()
}

/// Where a subgroup's part begins that starts at `first` and goes on by `each` from part to part.
fn own_part(cx: &mut Emit<'_>, p: &Product<'_>, first: Id, each: u32) -> Id {
    if p.c.parts() == 1 {
        return first;
    }
    let each = cx.asm.u32(each);
    let before = cx.asm.imul(p.place.part, each);
    cx.asm.iadd(first, before)
}

/// The right side.
struct Right {
    operand: u16,
    /// This invocation's block of the first fragment.
    first: Id,
    /// Elements along k.
    depth: u32,
    ahead: u32,
    register: Id,
}

impl Right {
    fn new(cx: &mut Emit<'_>, p: &Product<'_>, (operand, depth): (u16, u32), fill: &Fill) -> Right {
        let c = &p.c;
        let col = cx.asm.iadd(p.first[1], p.place.col);
        let size = cx.asm.u32(c.frag.1);
        let (line, _) = super::super::divide(cx, col, size);
        let pitch = cx.asm.u32(depth / c.frag.2 * c.subgroup);
        let line = cx.asm.imul(line, pitch);
        let lane = cx.asm.subgroup_lane(c.subgroup);
        let first = cx.asm.iadd(line, lane);
        let b_ty = cx.asm.matrix_type(c.elem, (c.frag.2, c.frag.1), MatrixUse::B);
        Right {
            operand,
            first: own_part(cx, p, first, own_steps(c) * c.subgroup),
            depth,
            ahead: fill.packed,
            register: cx.asm.matrix_register(b_ty),
        }
    }

    /// Where this invocation's blocks of the tile at `k` start: from there on, all are constant distances away.
    fn tile(&self, cx: &mut Emit<'_>, c: &Coop, k: Id) -> BlockRun {
        let each = cx.asm.u32(c.subgroup / c.frag.2);
        let along = cx.asm.imul(k, each);
        let at = cx.asm.iadd(self.first, along);
        cx.block_run(self.operand, at)
    }

    /// This invocation's blocks of the fragments of step `number` of a tile.
    fn read(&self, cx: &mut Emit<'_>, p: &Product<'_>, tile: BlockRun, number: u32) -> Vec<Id> {
        let (subgroup, along_n) = (p.c.subgroup, p.fragments().1);
        let line = self.depth / p.c.frag.2 * subgroup;
        (0..along_n).map(|j| cx.load_run_block(tile, j * line + number * subgroup)).collect()
    }

    fn fill(&self, cx: &mut Emit<'_>, p: &Product<'_>, block: Id) -> Id {
        let b_ty = cx.asm.matrix_type(p.c.elem, (p.c.frag.2, p.c.frag.1), MatrixUse::B);
        for word in 0..GROUP / 2 {
            let halves = cx.asm.extract(block, word);
            for (value, half) in cx.asm.halves_of(p.c.elem, halves).into_iter().zip(0..) {
                cx.asm.set_component(self.register, p.c.elem, word * 2 + half, value);
            }
        }
        cx.asm.variable(self.register, b_ty)
    }
}

fn k_tiles(cx: &mut Emit<'_>, p: &Product<'_>, right: &Right) {
    let c = p.c;
    let (zero, total, tile) = (cx.asm.u32(0), cx.asm.u32(right.depth), cx.asm.u32(c.bk));
    let at = |k: Id| KRange { k, total, covered: true };
    let left = &p.staged[0];
    let size = cx.asm.u32(side_blocks(&c, c.bm, left.along_k));
    let along_k = own_steps(&c) * c.frag.2;
    let part_blocks = if left.along_k { along_k / GROUP } else { along_k * pitch(left.width) };
    let two = c.buffers == 2;
    let mut initial = if two { vec![zero] } else { vec![] };
    if c.ahead {
        initial.extend(stage::load_some(cx, p, at(zero)));
    }
    let start = right.tile(cx, &c, zero);
    (0..right.ahead).for_each(|step| initial.extend(right.read(cx, p, start, step)));
    cx.loop_step((zero, total, tile), &initial, |cx, offset, carried| {
        let mut carried = carried.to_vec();
        let buffer = if two { carried.remove(0) } else { zero };
        let n = stage::n_loaded(p);
        let loaded = if c.ahead { carried.drain(..n).collect() } else { stage::load(cx, p, at(offset)) };
        stage::put(cx, p, buffer, &loaded, at(offset));
        cx.asm.barrier();
        let mut next = if two { vec![cx.asm.isub(size, buffer)] } else { vec![] };
        let after = cx.asm.iadd(offset, tile);
        // What multiplication waits for first comes before what it does not.
        let own = own_part(cx, p, buffer, part_blocks);
        let left = left_fragments(cx, p, own, 0);
        if c.ahead {
            next.extend(stage::load_some(cx, p, at(after)));
        }
        // Behind the last tile that one once more.
        let more = cx.asm.ult(after, total);
        let after = cx.asm.select(more, after, offset);
        let tiles = [offset, after].map(|k| right.tile(cx, &c, k));
        next.extend(multiply(cx, p, right, (own, tiles, left), carried));
        if !two {
            cx.asm.barrier();
        }
        next
    });
    if two {
        cx.asm.barrier();
    }
}

/// The subgroup's left fragments of a step of the tile in a buffer.
fn left_fragments(cx: &mut Emit<'_>, p: &Product<'_>, buffer: Id, step: u32) -> Vec<Id> {
    let (m, _, deep) = p.c.frag;
    let ty = cx.asm.matrix_type(p.c.elem, (m, deep), MatrixUse::A);
    (0..p.fragments().0).map(|i| fragment(cx, p, buffer, 0, (i * m, step * deep), ty)).collect()
}

/// `sums += left · right` over a tile; `left` are the fragments of its first step, `ready` the blocks that were read ahead, as the result is for
/// the next tile. Both tiles are those of the right side; `own` is where the subgroup's part of the left tile begins.
fn multiply(
    cx: &mut Emit<'_>,
    p: &Product<'_>,
    right: &Right,
    (own, tiles, left): (Id, [BlockRun; 2], Vec<Id>),
    mut ready: Vec<Id>,
) -> Vec<Id> {
    let (_, along_n) = p.fragments();
    let mut sums: Vec<Id> = p.sums.iter().map(|&v| cx.asm.variable(v, p.sum_ty)).collect();
    let steps = own_steps(&p.c);
    for step in 0..steps {
        let number = step + right.ahead;
        ready.extend(right.read(cx, p, tiles[(number / steps) as usize], number % steps));
        let blocks: Vec<Id> = ready.drain(..along_n as usize).collect();
        let a = if step == 0 { left.clone() } else { left_fragments(cx, p, own, step) };
        for (j, &block) in blocks.iter().enumerate() {
            let b = right.fill(cx, p, block);
            for (i, &a) in a.iter().enumerate() {
                let sum = &mut sums[i * along_n as usize + j];
                *sum = cx.asm.matrix_mul_add(a, b, *sum);
            }
        }
    }
    for (&variable, sum) in p.sums.iter().zip(sums) {
        cx.asm.set_variable(variable, sum);
    }
    ready
}
