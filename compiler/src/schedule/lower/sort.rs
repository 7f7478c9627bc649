//! Stable sorts. Lines that fit shared memory are sorted there, and a few first places are chosen from longer ones as well, while the list of
//! what may be among them fits. Others, and very short ones, are sorted by rank: each element counts the elements that come before it, and is
//! stored at that position; quadratic in the length, which the report says where it matters.

use super::super::inline::Ctx;
use super::super::tile;
use super::row::Row;
use super::{Lowered, finish, max_elems};
use crate::ir::Dim;
use crate::ir::graph::Node;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Unary};
use jvc_kernels::spec::{Combine, KernelSpec, SortSpec};

/// Beyond this length the quadratic cost is worth a word.
const LONG: i64 = 4096;

pub(super) fn lower(cx: &mut Ctx<'_>, node: &Node, dim: usize, descending: bool) -> Lowered {
    let shape = cx.ty(node.inputs[0]).shape.clone();
    let longest = cx.ix.symtab().dim_range(&shape[dim]).max;
    let mut outer = shape.clone();
    let len = outer.remove(dim);
    let mut at = cx.axes(0, &outer);
    at.insert(dim, cx.ix.axis(outer.len(), &len));
    let value = cx.at(node.inputs[0], &at);
    let ty = cx.ix.exprs.ty(value);
    let kept = cx.ty(node.outputs[0]).shape[dim].clone();
    let n_lines = max_elems(cx, &outer);
    let choice = kept.as_const().and_then(|kept| tile::first_places(cx.device, n_lines, (longest, kept), ty));
    let Some((capacity, wg)) = choice.or_else(|| tile::sort(cx.device, longest, ty)) else {
        return by_rank(cx, node, dim, descending);
    };
    let (sorted, from) = (cx.ix.exprs.arg(0, ty), cx.ix.exprs.arg(1, Ty::I32));
    cx.ix.assume_below(from, &len);
    let mut to = at;
    to[dim] = cx.ix.axis(outer.len(), &kept);
    let mut stores = finish(cx, node.outputs[0], to.clone(), sorted, &[]);
    stores.extend(finish(cx, node.outputs[1], to, from, &[]));
    let chosen = choice.is_some();
    let of_an_element = if chosen { f64::from(wg) / 8.0 } else { f64::from(capacity.trailing_zeros()).powi(2) };
    let flops = max_elems(cx, &shape) * of_an_element;
    let (outer, len) = (cx.extents(&outer), cx.ix.symtab().extent(&len));
    let kept = cx.ix.symtab().extent(&kept);
    let (exprs, interface) = (std::mem::take(&mut cx.ix.exprs), cx.interface());
    let spec = SortSpec { interface, exprs, outer, len, kept, capacity, chosen, descending, value, stores, wg };
    Lowered::new(KernelSpec::Sort(spec), flops)
}

fn by_rank(cx: &mut Ctx<'_>, node: &Node, dim: usize, descending: bool) -> Lowered {
    let x = node.inputs[0];
    let shape = cx.ty(x).shape.clone();
    let mut row = Row::new(cx, &shape, std::slice::from_ref(&shape[dim]));
    let at = cx.axes(0, &shape);
    let mut other = at.clone();
    other[dim] = cx.ix.axis(shape.len(), &shape[dim]);
    let (mine, theirs) = (cx.at(x, &at), cx.at(x, &other));
    let before = comes_before(cx, (theirs, other[dim]), (mine, at[dim]), descending);
    let counted = cx.cast(Ty::I32, before);
    let rank = row.stage(cx, Combine::Sum, counted);
    cx.ix.assume_below(rank, &shape[dim]);
    let mut to = at.clone();
    to[dim] = rank;
    let kept = cx.ty(node.outputs[0]).shape[dim].clone();
    let wanted = (kept != shape[dim]).then(|| {
        let kept = cx.ix.dim(&kept);
        cx.bin(Binary::Lt, rank, kept)
    });
    let mut stores = finish(cx, node.outputs[0], to.clone(), mine, &[]);
    stores.extend(finish(cx, node.outputs[1], to, at[dim], &[]));
    for store in &mut stores {
        store.guard = match (store.guard, wanted) {
            (Some(a), Some(b)) => Some(cx.ix.and(a, b)),
            (a, b) => a.or(b),
        };
    }
    let long = too_long(cx, &shape[dim]);
    let mut lowered = row.finish(cx, stores, vec![]);
    if long {
        lowered.slow.push("sort is quadratic in its length");
    }
    lowered
}

fn too_long(cx: &mut Ctx<'_>, d: &Dim) -> bool {
    cx.ix.symtab().dim_range(d).max > LONG
}

/// `a` sorts before `b`: smaller (or larger), NaN as the largest, ties by position.
fn comes_before(cx: &mut Ctx<'_>, a: (ExprId, ExprId), b: (ExprId, ExprId), descending: bool) -> ExprId {
    let (a_key, b_key) = orderable(cx, a.0, b.0);
    let (first, second) = if descending { (b_key, a_key) } else { (a_key, b_key) };
    let less = less(cx, first, second);
    let greater = self::less(cx, second, first);
    let earlier = cx.bin(Binary::Lt, a.1, b.1);
    let no = cx.ix.exprs.bool(false);
    let tie = cx.ix.select(greater, no, earlier);
    let yes = cx.ix.exprs.bool(true);
    cx.ix.select(less, yes, tie)
}

/// Bools compare as integers.
fn orderable(cx: &mut Ctx<'_>, a: ExprId, b: ExprId) -> (ExprId, ExprId) {
    if cx.ix.exprs.ty(a) == Ty::Bool { (cx.cast(Ty::I32, a), cx.cast(Ty::I32, b)) } else { (a, b) }
}

/// `a < b` with NaN above everything.
fn less(cx: &mut Ctx<'_>, a: ExprId, b: ExprId) -> ExprId {
    let plain = cx.bin(Binary::Lt, a, b);
    if !cx.ix.exprs.ty(a).is_float() {
        return plain;
    }
    let (a_nan, b_nan) = (cx.un(Unary::IsNan, a), cx.un(Unary::IsNan, b));
    let a_number = cx.un(Unary::Not, a_nan);
    let below_nan = cx.ix.and(a_number, b_nan);
    cx.bin(Binary::Or, plain, below_nan)
}
