//! Kernels whose fragments are filled by component are right only where the driver spreads fragments as the device profile says. Each workgroup
//! sees for itself: it loads a left and a right fragment of their own element numbers, as every driver must do it, and looks at what its
//! invocations got. Where that is something else, it computes its outputs one by one: slow, and right on every driver.

use super::super::{K, M, N, divide, positions_at, store_tile, zero};
use super::{Product, finish};
use crate::asm::{Blocks, Id, Lines, MatrixUse};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::spec::{Coop, Fill, Spread};
use crate::templates::fragments::number_elements;
use crate::wide_load::GROUP;

/// Blocks of shared memory that looking takes.
pub(super) fn blocks(c: &Coop) -> u32 {
    c.frag.0.max(c.frag.1) * c.frag.2 / GROUP
}

/// Multiplies by `multiply` and stores where the driver spreads fragments as the profile says; computes outputs one by one elsewhere.
pub(super) fn if_as_said<'s>(cx: &mut Emit<'s>, p: &Product<'_>, fill: &Fill, multiply: impl FnOnce(&mut Emit<'s>)) {
    let as_said = spreads_as_said(cx, &p.c, fill, p.blocks);
    cx.if_then(as_said, &[], |cx| {
        multiply(cx);
        finish::store(cx, p);
        vec![]
    });
    let otherwise = cx.asm.lnot(as_said);
    cx.if_then(otherwise, &[], |cx| {
        one_by_one(cx, p);
        vec![]
    });
}

/// True in all invocations of a subgroup, if its driver spreads fragments as the spec says.
fn spreads_as_said(cx: &mut Emit<'_>, c: &Coop, fill: &Fill, shared: Blocks) -> Id {
    let (m, n, k) = c.frag;
    let left = same(cx, c, (&fill.left, MatrixUse::A, (m, k)), shared);
    let right = same(cx, c, (&fill.right, MatrixUse::B, (k, n)), shared);
    let both = cx.asm.land(left, right);
    cx.asm.subgroup_all(both)
}

fn same(cx: &mut Emit<'_>, c: &Coop, (spread, part, size): (&Spread, MatrixUse, (u32, u32)), shared: Blocks) -> Id {
    let (rows, columns) = size;
    let local = cx.asm.local_index();
    number_elements(cx, (c.elem, rows * columns), shared, (local, c.subgroups() * c.subgroup));
    cx.asm.barrier();
    let ty = cx.asm.matrix_type(c.elem, size, part);
    let (first, register) = (cx.asm.u32(0), cx.asm.matrix_register(ty));
    let matrix = cx.asm.matrix_load(ty, shared, Lines { first, pitch: columns / GROUP, rows: true });
    cx.asm.set_variable(register, matrix);
    cx.asm.barrier();
    let number = |(row, column): (u32, u32)| row * columns + column;
    let lane = cx.asm.subgroup_lane(c.subgroup);
    let moves: Vec<(u32, u32)> =
        (0..c.subgroup.trailing_zeros()).map(|bit| (bit, number(spread.at(1 << bit, 0)))).collect();
    let own = super::direct::bits(cx, lane, &moves);
    let yes = cx.asm.bool(true);
    (0..rows * columns / c.subgroup).fold(yes, |so_far, component| {
        let (value, more) =
            (cx.asm.component(register, c.elem, component), cx.asm.u32(number(spread.at(0, component))));
        let said = cx.asm.iadd(own, more);
        let said = cx.asm.cast(Ty::F32.into(), said);
        let is = cx.asm.feq(value, said);
        cx.asm.land(so_far, is)
    })
}

/// The outputs of the workgroup's tile, one by one.
fn one_by_one(cx: &mut Emit<'_>, p: &Product<'_>) {
    let spec = p.spec;
    let (local, count, step) = (cx.asm.local_index(), cx.asm.u32(p.c.bm * p.c.bn), cx.asm.u32(spec.wg));
    cx.loop_step((local, count, step), &[], |cx, number, _| {
        let width = cx.asm.u32(p.c.bn);
        let (row, col) = divide(cx, number, width);
        let (row, col) = (cx.asm.iadd(row, p.first[0]), cx.asm.iadd(col, p.first[1]));
        let place = |cx: &mut Emit<'_>, side: usize, at: Id| {
            let extent = if side == 0 { spec.m } else { spec.n };
            let (at, inside) = positions_at(cx, extent, false, at, std::iter::once(0))[0];
            match p.own[side] {
                None => (at, inside),
                Some(own) => {
                    let own = cx.asm.ule(own, at);
                    (at, cx.asm.land(inside, own))
                }
            }
        };
        let (row, col) = (place(cx, 0, row), place(cx, 1, col));
        cx.scope(|cx| {
            cx.bind_axis(M, row.0);
            cx.bind_axis(N, col.0);
            let zero = zero(cx, spec.acc);
            let sum = cx.loop_nest(&spec.k, K, &[], &[zero], &mut |cx, acc| {
                let (left, right) = (cx.eval(spec.lhs), cx.eval(spec.rhs));
                vec![cx.asm.mul_add(left, right, acc[0])]
            });
            store_tile(cx, spec, &[row], &[col], &sum);
        });
        vec![]
    });
}
