//! Makes one product of a batch of products whose right operands are all the same: a product of all their rows.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[6,5,4]
//!   %w = input 1 "w" : f32[1,1,4,3]
//!   %e = broadcast %w : f32[2,3,4,3]
//!   %b = reshape %e : f32[6,4,3]
//!   %y = matmul %x, %b : f32[6,5,3]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[6,5,4]
//!   %w = input 1 "w" : f32[1,1,4,3]
//!   %y.1 = reshape %x : f32[30,4]
//!   %y.2 = reshape %w : f32[4,3]
//!   %y.3 = matmul %y.1, %y.2 : f32[30,3]
//!   %y = reshape %y.3 : f32[6,5,3]
//!   output "y" = %y
//! }
//! ```
//!
//! Core ATen has a linear layer over a permuted image so: `expand` of the weight, then `bmm`. A workgroup's rows then come from one batch,
//! of which there may be thousands with a few rows each; of all rows it can fill its tile.

use super::rewrite::{Patch, View, rewrite};
use super::{Cx, Pass};
use crate::ir::{Dim, Graph, NodeId, Op, ValueId};

pub(super) const PASS: Pass =
    Pass { name: "merge_batches", summary: "makes one product of a batch with one right operand", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    rewrite(graph, cx, &[merge])
}

fn merge<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    if !matches!(n.op, Op::Matmul) {
        return None;
    }
    let (a, y) = (view.ty(n.inputs[0]), view.ty(n.outputs[0]));
    let (batch, [rows, inner]) = a.shape.split_last_chunk::<2>()?;
    // A left operand that is repeated itself would have to be repeated in memory.
    if batch.is_empty() || *batch != y.shape[..batch.len()] {
        return None;
    }
    let shared = shared_operand(view, n.inputs[1])?;
    let columns = y.shape.last()?.clone();
    let all_rows = batch.iter().fold(rows.clone(), |rows, d| &rows * d);
    let mut p = Patch::new(view);
    let a = p.reshape(n.inputs[0].into(), vec![all_rows, inner.clone()])?;
    let b = p.reshape(shared.into(), vec![inner.clone(), columns])?;
    let product = p.add(Op::Matmul, &[a, b])?;
    let product = p.reshape(product, y.shape.clone())?;
    p.replace_by(product)
}

/// The one matrix that `v` has in every batch, seen through the movement that repeats it.
fn shared_operand(view: &View<'_>, mut v: ValueId) -> Option<ValueId> {
    let matrix = |v: ValueId| view.ty(v).shape.split_last_chunk::<2>();
    let (_, of_all) = matrix(v)?;
    loop {
        let (batch, of_one) = matrix(v)?;
        if of_one != of_all {
            return None;
        }
        if batch.iter().all(|d| *d == Dim::from(1)) {
            return Some(v);
        }
        match view.op(v) {
            Op::Reshape(_) | Op::Broadcast(_) => v = view.inputs(v)[0],
            _ => return None,
        }
    }
}
