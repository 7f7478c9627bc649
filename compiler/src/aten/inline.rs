//! Sub-graphs that only set a mode of PyTorch (`wrap_with_set_grad_enabled`, `wrap_with_autocast`) become part of the graph around them.

use super::control;
use super::cx::Slot;
use super::lower::Lowering;
use super::{bad_argument, no_rule};
use crate::import::program::{Arg, NamedArg, Node, ProgramGraph, SubGraph, SymArg};
use crate::report::Diagnostic;

/// The operators of this file.
pub(super) const NAMES: [&str; 2] = ["higher_order.wrap_with_set_grad_enabled", "higher_order.wrap_with_autocast"];

impl Lowering<'_> {
    /// Lowers a higher-order node, or refuses it.
    pub(super) fn higher_order(&mut self, graph: &ProgramGraph, node: &Node) -> Result<(), Diagnostic> {
        match node.target.as_str() {
            target if control::NAMES.contains(&target) => self.control_flow(graph, node),
            "higher_order.wrap_with_set_grad_enabled" => self.inline(node),
            "higher_order.wrap_with_autocast" => {
                let outer = self.autocast;
                self.autocast = autocast_enabled(node)?;
                let result = self.inline(node);
                self.autocast = outer;
                result
            }
            other => Err(no_rule(other)),
        }
    }

    fn inline(&mut self, node: &Node) -> Result<(), Diagnostic> {
        let at = node.inputs.iter().position(|i| matches!(i.arg, Arg::Graph(_)));
        let Some(at) = at else { return Err(bad_argument(format!("{} without a sub-graph", node.target))) };
        let Arg::Graph(sub) = &node.inputs[at].arg else { return Ok(()) };
        let scoped = scoped_graph(sub, &node.name);
        let operands = node.inputs[at + 1..].iter().flat_map(|i| flat_names(&i.arg));
        let operands: Vec<Option<String>> = operands.collect();
        for (input, operand) in scoped.inputs.iter().flat_map(flat_names).zip(operands) {
            self.share(input, operand);
        }
        for inner in &scoped.nodes {
            self.run_node(&scoped, inner);
        }
        let results: Vec<Option<String>> = scoped.outputs.iter().flat_map(flat_names).collect();
        for (output, result) in node.outputs.iter().flat_map(flat_names).zip(results) {
            self.share(output, result);
        }
        Ok(())
    }

    /// `new` is another name of `old`: same memory.
    fn share(&mut self, new: Option<String>, old: Option<String>) {
        if let (Some(new), Some(old)) = (new, old) {
            let slot = self.cx.names.get(&old).cloned().unwrap_or(Slot::Failed);
            self.cx.names.insert(new, slot);
        }
    }
}

/// Whether an autocast region is switched on.
fn autocast_enabled(node: &Node) -> Result<bool, Diagnostic> {
    let enabled = node.inputs.iter().find_map(|i| match i.arg {
        Arg::Bool(b) => Some(b),
        _ => None,
    });
    enabled.ok_or_else(|| bad_argument("an autocast region that does not say whether it is enabled"))
}

fn name_of(arg: &SymArg<impl Copy>) -> Option<String> {
    match arg {
        SymArg::Name(n) => Some(n.clone()),
        SymArg::Value(_) => None,
    }
}

/// The names in an argument, in order; `None` for what has no name.
pub(super) fn flat_names(arg: &Arg) -> Vec<Option<String>> {
    match arg {
        Arg::Tensor(n) => vec![Some(n.clone())],
        Arg::Tensors(list) => list.iter().cloned().map(Some).collect(),
        Arg::OptionalTensors(list) => list.clone(),
        Arg::SymInt(a) => vec![name_of(a)],
        Arg::SymFloat(a) => vec![name_of(a)],
        Arg::SymBool(a) => vec![name_of(a)],
        Arg::SymInts(list) => list.iter().map(name_of).collect(),
        _ => vec![None],
    }
}

/// The sub-graph with its names made unique, since it may use those of the graph around it.
pub(super) fn scoped_graph(sub: &SubGraph, scope: &str) -> ProgramGraph {
    let g = &sub.graph;
    let rename = |n: &str| format!("{scope}.{n}");
    let args = |list: &[Arg]| list.iter().map(|a| renamed(a, &rename)).collect();
    let node = |n: &Node| Node {
        name: rename(&n.name),
        inputs: n.inputs.iter().map(|i| NamedArg { name: i.name.clone(), arg: renamed(&i.arg, &rename) }).collect(),
        outputs: args(&n.outputs),
        ..n.clone()
    };
    ProgramGraph {
        inputs: args(&g.inputs),
        outputs: args(&g.outputs),
        nodes: g.nodes.iter().map(node).collect(),
        tensors: g.tensors.iter().map(|(n, m)| (rename(n), m.clone())).collect(),
        sym_ints: g.sym_ints.iter().map(|(n, d)| (rename(n), d.clone())).collect(),
        is_single_tensor_return: g.is_single_tensor_return,
    }
}

fn renamed(arg: &Arg, rename: &impl Fn(&str) -> String) -> Arg {
    fn sym<T: Clone>(a: &SymArg<T>, rename: &impl Fn(&str) -> String) -> SymArg<T> {
        match a {
            SymArg::Name(n) => SymArg::Name(rename(n)),
            SymArg::Value(v) => SymArg::Value(v.clone()),
        }
    }
    match arg {
        Arg::Tensor(n) => Arg::Tensor(rename(n)),
        Arg::Tensors(list) => Arg::Tensors(list.iter().map(|n| rename(n)).collect()),
        Arg::OptionalTensors(list) => Arg::OptionalTensors(list.iter().map(|n| n.as_deref().map(rename)).collect()),
        Arg::SymInt(a) => Arg::SymInt(sym(a, rename)),
        Arg::SymInts(list) => Arg::SymInts(list.iter().map(|a| sym(a, rename)).collect()),
        Arg::SymFloat(a) => Arg::SymFloat(sym(a, rename)),
        Arg::SymFloats(list) => Arg::SymFloats(list.iter().map(|a| sym(a, rename)).collect()),
        Arg::SymBool(a) => Arg::SymBool(sym(a, rename)),
        Arg::SymBools(list) => Arg::SymBools(list.iter().map(|a| sym(a, rename)).collect()),
        // A nested sub-graph has its own names; only what it is applied to belongs to this one.
        other => other.clone(),
    }
}
