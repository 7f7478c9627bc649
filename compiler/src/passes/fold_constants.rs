//! Replaces what depends on weights and constants alone by its value, computed by the interpreter.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[2]
//!   %c = const [1.0, 4.0] : f32[2]
//!   %r = map(sqrt(a)) %c : f32[2]
//!   %y = map(a * b) %x, %r : f32[2]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[2]
//!   %r = const [1.0, 2.0] : f32[2]
//!   %y = map(a * b) %x, %r : f32[2]
//!   output "y" = %y
//! }
//! ```
//!
//! The size rule. A value made from stored data or by an anchor is folded when it needs no more bytes than the data it is made from
//! (or very few); mere movement of stored data stays, it is free where it is read, and so do quantised weights however few, which are
//! decoded where they are read. A value made from nothing (ranges, masks, tables) is folded when it is dear to compute, up to a few
//! megabytes; a cheap one stays an expression in its users. What is not folded itself may still have operands that are.

use super::constants::{Evaluator, const_op, constant_values, decodes_bytes};
use super::drop_dead::compact;
use super::{Cx, Pass};
use crate::ir::{Graph, Node, Op, ValueId};
use jvc_kernels::expr::{Binary, Expr, Unary};
use std::collections::BTreeSet;

pub(super) const PASS: Pass =
    Pass { name: "fold_constants", summary: "computes what depends on weights and constants alone", run };

/// Always worth a buffer.
pub(super) const SMALL_BYTES: u64 = 64 << 10;
/// Generated tables up to here.
const TABLE_BYTES: u64 = 16 << 20;
/// Expression nodes of a generated value that its users may recompute.
const CHEAP_NODES: usize = 32;

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    fold_where(graph, cx, worth_folding)
}

/// Replaces the constants that `worth` names by their values; gives their number.
pub(super) fn fold_where(graph: &mut Graph, cx: &Cx<'_>, worth: impl Fn(&Graph, ValueId) -> bool) -> u32 {
    if cx.no_fold {
        return 0;
    }
    let constant = constant_values(graph);
    let mut needed = vec![false; graph.values.len()];
    graph.roots().iter().for_each(|v| needed[v.0 as usize] = true);
    let mut evaluator = Evaluator::default();
    let mut replaced: Vec<Option<Vec<Node>>> = vec![None; graph.nodes.len()];
    let mut folded = 0;
    for i in (0..graph.nodes.len()).rev() {
        let node = &graph.nodes[i];
        let wanted: Vec<ValueId> = node.outputs.iter().copied().filter(|v| needed[v.0 as usize]).collect();
        if wanted.is_empty() {
            continue;
        }
        if constant[wanted[0].0 as usize]
            && wanted.iter().all(|&v| worth(graph, v))
            && let Some(nodes) = fold(graph, cx, &mut evaluator, node, &wanted)
            && cx.may_patch()
        {
            replaced[i] = Some(nodes);
            folded += 1;
            continue;
        }
        node.inputs.iter().for_each(|v| needed[v.0 as usize] = true);
    }
    if folded > 0 {
        let nodes = std::mem::take(&mut graph.nodes);
        for (node, by) in nodes.into_iter().zip(replaced) {
            graph.nodes.extend(by.unwrap_or_else(|| vec![node]));
        }
        compact(graph);
    }
    folded
}

/// One constant per wanted result.
fn fold(graph: &Graph, cx: &Cx<'_>, e: &mut Evaluator, node: &Node, wanted: &[ValueId]) -> Option<Vec<Node>> {
    wanted
        .iter()
        .map(|&v| {
            let t = e.value(graph, cx, v)?;
            Some(Node { op: const_op(&t), inputs: vec![], outputs: vec![v], origin: node.origin })
        })
        .collect()
}

/// What a constant is made of.
#[derive(Default)]
struct Cone {
    stored_bytes: u64,
    anchors: bool,
    joins: bool,
    nodes: usize,
    dear: bool,
}

pub(super) fn bytes_of(graph: &Graph, v: ValueId) -> u64 {
    let n = graph.ty(v).n_elems().as_const().unwrap_or(0).max(0) as u64;
    n.saturating_mul(u64::from(graph.ty(v).dtype.size_bytes()))
}

fn worth_folding(graph: &Graph, v: ValueId) -> bool {
    if matches!(graph.def(v).op, Op::Const(_) | Op::Weight(_)) {
        return false;
    }
    let (cone, bytes) = (Cone::of(graph, v), bytes_of(graph, v));
    if cone.stored_bytes > 0 || cone.anchors {
        let free = !cone.anchors && !cone.joins && cone.nodes == 0;
        return !free && bytes <= cone.stored_bytes.max(SMALL_BYTES) && !decodes_bytes(graph, v);
    }
    let cheap = !cone.dear && cone.nodes <= CHEAP_NODES;
    !cheap && bytes <= TABLE_BYTES
}

impl Cone {
    fn of(graph: &Graph, v: ValueId) -> Cone {
        let mut cone = Cone::default();
        let (mut seen, mut stack) = (BTreeSet::new(), vec![v]);
        while let Some(v) = stack.pop() {
            if !seen.insert(graph.value(v).def) {
                continue;
            }
            cone.add(graph, v);
            stack.extend(&graph.def(v).inputs);
        }
        cone
    }

    fn add(&mut self, graph: &Graph, v: ValueId) {
        match &graph.def(v).op {
            Op::Weight(_) | Op::Const(_) => self.stored_bytes += bytes_of(graph, v),
            Op::Map(body) | Op::Compute(body) => {
                for id in body.exprs.reachable(&[body.root]) {
                    self.nodes += 1;
                    self.dear |= is_dear(body.exprs.get(id));
                }
            }
            Op::Concat { .. } | Op::Pad { .. } => self.joins = true,
            Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } | Op::Broadcast(_) | Op::Flip(_) => {}
            _ => self.anchors = true,
        }
    }
}

/// Elementary functions: many instructions, and each device rounds its own way.
fn is_dear(e: &Expr) -> bool {
    match e {
        Expr::Unary(op, _) => !matches!(
            op,
            Unary::Neg
                | Unary::Abs
                | Unary::Not
                | Unary::Floor
                | Unary::Ceil
                | Unary::Trunc
                | Unary::Round
                | Unary::IsNan
                | Unary::IsInf
        ),
        Expr::Binary(op, ..) => matches!(op, Binary::Pow | Binary::Atan2),
        _ => false,
    }
}
