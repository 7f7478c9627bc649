//! Values that hold what another holds in twice the bytes: it is that other one that is stored.

use super::Reason;
use crate::ir::{DType, Graph, Node, Op, ValueId};
use jvc_kernels::expr::Expr;

/// A map from a half type to f32 that changes no value.
pub(crate) fn is_widening(graph: &Graph, node: &Node) -> bool {
    let (Op::Map(body), &[x], &[y]) = (&node.op, &node.inputs[..], &node.outputs[..]) else { return false };
    let (from, to) = (graph.ty(x).dtype, graph.ty(y).dtype);
    let same = match *body.exprs.get(body.root) {
        Expr::Arg(0, _) => true,
        Expr::Round(dtype, a) => dtype == from && matches!(body.exprs.get(a), Expr::Arg(0, _)),
        _ => false,
    };
    same && matches!(from, DType::F16 | DType::BF16) && to == DType::F32
}

/// The values from a widening of halves to `v`, which only reshapes and permutes it; none where one of them is in memory itself.
pub(super) fn widened(graph: &Graph, v: ValueId, stored: &[Option<Reason>]) -> Option<Vec<ValueId>> {
    let mut chain = vec![v];
    loop {
        let node = graph.def(*chain.last()?);
        if is_widening(graph, node) {
            chain.reverse();
            return Some(chain);
        }
        let before = match node.op {
            Op::Reshape(_) | Op::Permute(_) => node.inputs[0],
            _ => return None,
        };
        if stored[before.0 as usize].is_some() {
            return None;
        }
        chain.push(before);
    }
}
