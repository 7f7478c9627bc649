//! Makes one node of equal ones: same operation, same operands, same type. Bodies are compared in normal form.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[2]
//!   %p = map(exp(a)) %x : f32[2]
//!   %q = map(exp(a)) %x : f32[2]
//!   %y = map(a + b) %p, %q : f32[2]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[2]
//!   %p = map(exp(a)) %x : f32[2]
//!   %y = map(a + b) %p, %p : f32[2]
//!   output "y" = %y
//! }
//! ```

use super::drop_dead::compact;
use super::{Cx, Pass};
use crate::ir::print::op_word;
use crate::ir::{Graph, Node, NodeId, Op, UserOutput, ValueId};
use std::collections::BTreeMap;
use std::fmt::Write;

pub(super) const PASS: Pass = Pass { name: "share_equal", summary: "computes equal values once", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let mut map: Vec<ValueId> = (0..graph.values.len() as u32).map(ValueId).collect();
    let mut seen: BTreeMap<String, Vec<NodeId>> = BTreeMap::new();
    let mut shared = 0;
    for i in 0..graph.nodes.len() {
        let node = &mut graph.nodes[i];
        node.inputs.iter_mut().for_each(|v| *v = map[v.0 as usize]);
        if let Op::Map(body) | Op::Compute(body) = &mut node.op {
            *body = body.normalize();
        }
        if matches!(node.op, Op::Input { .. }) {
            continue;
        }
        let same = seen.entry(key(graph, i)).or_default();
        let Some(first) = same.iter().find(|&&n| same_op(&graph.node(n).op, &graph.nodes[i].op)) else {
            same.push(NodeId(i as u32));
            continue;
        };
        if !cx.may_patch() {
            break;
        }
        for (a, b) in graph.nodes[i].outputs.iter().zip(&graph.node(*first).outputs) {
            map[a.0 as usize] = *b;
        }
        shared += 1;
    }
    if shared > 0 {
        for node in &mut graph.nodes {
            node.inputs.iter_mut().for_each(|v| *v = map[v.0 as usize]);
        }
        for (_, output) in &mut graph.outputs {
            if let UserOutput::Tensor(v) = output {
                *v = map[v.0 as usize];
            }
        }
        graph.bindings.iter_mut().for_each(|b| b.count = map[b.count.0 as usize]);
        graph.state_updates.iter_mut().for_each(|(_, v)| *v = map[v.0 as usize]);
        graph.input_updates.iter_mut().for_each(|(_, v)| *v = map[v.0 as usize]);
        graph.taps.iter_mut().for_each(|tap| tap.value = map[tap.value.0 as usize]);
        compact(graph);
    }
    shared
}

/// What is cheap to compare first: word, operands, types, checkpoint name.
fn key(graph: &Graph, i: usize) -> String {
    let node: &Node = &graph.nodes[i];
    let mut key = op_word(&node.op).to_string();
    for v in &node.inputs {
        let _ = write!(key, " {v}");
    }
    for v in &node.outputs {
        let _ = write!(key, " {}", graph.ty(*v));
    }
    if let Op::Weight(w) | Op::State(w) = &node.op {
        w.names().for_each(|name| key.extend([" ", name]));
    }
    key
}

fn same_op(a: &Op, b: &Op) -> bool {
    // `==` takes −0.0 for 0.0; as a fill value they differ.
    if let (Op::Pad { value: x, .. }, Op::Pad { value: y, .. }) = (a, b)
        && x.to_bits() != y.to_bits()
    {
        return false;
    }
    a == b
}
