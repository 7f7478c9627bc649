//! Removes what no root needs. User inputs stay: they are part of the interface.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[2]
//!   %dead = map(exp(a)) %x : f32[2]
//!   %y = map(neg(a)) %x : f32[2]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[2]
//!   %y = map(neg(a)) %x : f32[2]
//!   output "y" = %y
//! }
//! ```

use super::{Cx, Pass};
use crate::ir::{Graph, NodeId, Op, UserInput, UserOutput, ValueId};

pub(super) const PASS: Pass = Pass { name: "drop_dead", summary: "removes what no output needs", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let all = graph.nodes.len();
    let live = live_nodes(graph).into_iter().filter(|l| *l).count();
    if live < all && cx.may_patch() {
        compact(graph);
    }
    (all - graph.nodes.len()) as u32
}

fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.values.len()];
    graph.roots().iter().for_each(|v| needed[v.0 as usize] = true);
    let mut live = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        live[i] = matches!(node.op, Op::Input { .. }) || node.outputs.iter().any(|v| needed[v.0 as usize]);
        if live[i] {
            node.inputs.iter().for_each(|v| needed[v.0 as usize] = true);
        }
    }
    live
}

/// Drops dead nodes and numbers values in order of definition. Nodes must be in topological order; nothing else is assumed of the
/// numbering, so passes may build their result in whatever way is easiest and end here.
pub(super) fn compact(graph: &mut Graph) {
    let live = live_nodes(graph);
    let mut map = vec![ValueId(u32::MAX); graph.values.len()];
    let mut old_values: Vec<_> = std::mem::take(&mut graph.values).into_iter().map(Some).collect();
    let old_nodes = std::mem::take(&mut graph.nodes);
    for (mut node, _) in old_nodes.into_iter().zip(live).filter(|(_, l)| *l) {
        let def = NodeId(graph.nodes.len() as u32);
        node.inputs.iter_mut().for_each(|v| *v = map[v.0 as usize]);
        for v in &mut node.outputs {
            let mut value = old_values[v.0 as usize].take().expect("one definition a value");
            value.def = def;
            let id = ValueId(graph.values.len() as u32);
            graph.values.push(value);
            map[v.0 as usize] = id;
            *v = id;
        }
        graph.nodes.push(node);
    }
    let to = |v: &mut ValueId| *v = map[v.0 as usize];
    for (_, input) in &mut graph.inputs {
        if let UserInput::Tensor(v) = input {
            to(v);
        }
    }
    for (_, output) in &mut graph.outputs {
        if let UserOutput::Tensor(v) = output {
            to(v);
        }
    }
    graph.bindings.iter_mut().for_each(|b| to(&mut b.count));
    graph.state_updates.iter_mut().for_each(|(_, v)| to(v));
    graph.input_updates.iter_mut().for_each(|(_, v)| to(v));
    graph.taps.iter_mut().for_each(|tap| to(&mut tap.value));
    graph.taps.retain(|tap| tap.value != ValueId(u32::MAX));
}
