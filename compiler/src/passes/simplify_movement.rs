//! Shortens chains of movement: two of a kind become one, what moves nothing goes, zero padding moves into the convolution behind it, a
//! slice of a concatenation reads the part that it lies in.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[2,3,4]
//!   %p = permute %x perm=[1,0,2] : f32[3,2,4]
//!   %q = permute %p perm=[2,1,0] : f32[4,2,3]
//!   %r = reshape %q : f32[8,3]
//!   %y = reshape %r : f32[24]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[2,3,4]
//!   %q = permute %x perm=[2,0,1] : f32[4,2,3]
//!   %y = reshape %q : f32[24]
//!   output "y" = %y
//! }
//! ```

use super::rewrite::{Patch, Ref, View, rewrite};
use super::{Cx, Pass};
use crate::ir::{Dim, Graph, NodeId, Op, ValueId};

pub(super) const PASS: Pass =
    Pass { name: "simplify_movement", summary: "shortens chains of reshapes, permutes, slices, pads, …", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let rules = [drop_identity, permute_of_units, merge_two, slice_of_concat, pad_into_conv, nested_concat];
    rewrite(graph, cx, &rules)
}

/// The node's operation, its first operand and its result.
fn parts<'a>(view: &'a View<'a>, node: NodeId) -> Option<(&'a Op, ValueId, ValueId)> {
    let n = view.graph.node(node);
    Some((&n.op, *n.inputs.first()?, n.outputs[0]))
}

/// `op(x) = x`.
fn drop_identity<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let (op, x, y) = parts(view, node)?;
    let same = view.ty(x) == view.ty(y)
        && match op {
            Op::Reshape(_) | Op::Broadcast(_) => true,
            Op::Permute(perm) => perm.iter().enumerate().all(|(i, &p)| i == p),
            Op::Slice { start, step, .. } => start.is(0) && *step == 1,
            Op::Pad { before, after, .. } => before.iter().chain(after).all(|&p| p == 0),
            Op::Flip(dims) => dims.iter().all(|&d| view.ty(x).shape[d].is(1)),
            Op::Concat { .. } => view.graph.node(node).inputs.len() == 1,
            _ => false,
        };
    if same { Patch::new(view).replace_by(x) } else { None }
}

/// A permutation that only moves dimensions of size 1 is a reshape.
fn permute_of_units<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let (Op::Permute(perm), x, y) = parts(view, node)? else { return None };
    let real: Vec<usize> = perm.iter().copied().filter(|&d| !view.ty(x).shape[d].is(1)).collect();
    if !real.is_sorted() {
        return None;
    }
    let mut p = Patch::new(view);
    let r = p.add(Op::Reshape(view.ty(y).shape.clone()), &[x.into()])?;
    p.replace_by(r)
}

/// `op₂(op₁(x))` as one operation on x.
fn merge_two<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let (outer, mid, y) = parts(view, node)?;
    let (inner, x, _) = parts(view, view.graph.value(mid).def)?;
    let op = match (outer, inner) {
        (Op::Reshape(_), Op::Reshape(_)) => Op::Reshape(view.ty(y).shape.clone()),
        (Op::Broadcast(shape), Op::Broadcast(_)) => Op::Broadcast(shape.clone()),
        (Op::Permute(p), Op::Permute(q)) => Op::Permute(p.iter().map(|&d| q[d]).collect()),
        (Op::Flip(a), Op::Flip(b)) => {
            Op::Flip((0..view.ty(y).rank()).filter(|d| a.contains(d) != b.contains(d)).collect())
        }
        (Op::Slice { dim, start, len, step }, Op::Slice { dim: d, start: first, step: by, .. }) if dim == d => {
            let start = first + &(start * &Dim::from(*by));
            Op::Slice { dim: *dim, start, len: len.clone(), step: step.checked_mul(*by)? }
        }
        (Op::Pad { before, after, value }, Op::Pad { before: b, after: a, value: v }) => {
            let grows = before.iter().chain(after).chain(b).chain(a).all(|&p| p >= 0);
            if !grows || value.to_bits() != v.to_bits() {
                return None;
            }
            let sum = |x: &[i64], y: &[i64]| x.iter().zip(y).map(|(x, y)| x + y).collect();
            Op::Pad { before: sum(before, b), after: sum(after, a), value: *value }
        }
        _ => return None,
    };
    let mut p = Patch::new(view);
    let r = p.add(op, &[x.into()])?;
    p.replace_by(r)
}

/// A slice that lies in one part of a concatenation reads that part.
fn slice_of_concat<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let (Op::Slice { dim, start, len, step }, joined, _) = parts(view, node)? else { return None };
    let Op::Concat { dim: along } = view.op(joined) else { return None };
    let (start, len) = (start.as_const()?, len.as_const()?);
    if along != dim || len < 1 {
        return None;
    }
    let last = start + (len - 1) * step;
    let mut begin = 0;
    for &part in view.inputs(joined) {
        let size = view.ty(part).shape[*dim].as_const()?;
        if start >= begin && last < begin + size {
            let op = Op::Slice { dim: *dim, start: Dim::from(start - begin), len: Dim::from(len), step: *step };
            let mut p = Patch::new(view);
            let r = p.add(op, &[part.into()])?;
            return p.replace_by(r);
        }
        begin += size;
    }
    None
}

/// A concatenation whose only user is a concatenation along the same dimension joins it.
fn nested_concat<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let Op::Concat { dim } = n.op else { return None };
    let nested = |v: ValueId| matches!(view.op(v), Op::Concat { dim: d } if *d == dim) && view.only_use(v);
    if !n.inputs.iter().any(|&v| nested(v)) {
        return None;
    }
    let flat: Vec<Ref> = n
        .inputs
        .iter()
        .flat_map(|&v| if nested(v) { view.inputs(v).to_vec() } else { vec![v] })
        .map(Ref::Old)
        .collect();
    let mut p = Patch::new(view);
    let r = p.add(Op::Concat { dim }, &flat)?;
    p.replace_by(r)
}

/// Symmetric zero padding of the spatial dimensions is the convolution's own.
fn pad_into_conv<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let (Op::Conv { window, groups }, padded, _) = parts(view, node)? else { return None };
    let (Op::Pad { before, after, value }, x, _) = parts(view, view.graph.value(padded).def)? else { return None };
    let symmetric = before == after && before.iter().all(|&p| p >= 0) && before[..2] == [0, 0];
    if *value != 0.0 || !symmetric || window.padding.iter().any(|&p| p < 0) {
        return None;
    }
    let mut window = window.clone();
    window.padding.iter_mut().zip(&before[2..]).for_each(|(p, b)| *p += b);
    let mut p = Patch::new(view);
    let w = view.graph.node(node).inputs[1];
    let r = p.add(Op::Conv { window, groups: *groups }, &[x.into(), w.into()])?;
    p.replace_by(r)
}
