//! The driver of local rules: `fn(&View, NodeId) -> Option<Patch>`. A rule reads; the driver writes.
//!
//! The graph is rebuilt node by node. As soon as a node is there, with everything before it already rewritten, the rules are tried on
//! it; a patch adds nodes and says which value stands for the node's result. Its last node is tried again. Sweeps repeat until one
//! changes nothing. A value that replaces another takes over its name.

use super::Cx;
use super::constants::is_constant_node;
use super::drop_dead::compact;
use crate::ir::infer::infer;
use crate::ir::op::Body;
use crate::ir::{DType, Graph, Node, NodeId, Op, TensorType, UserInput, UserOutput, Value, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Exprs};
use std::collections::BTreeSet;

/// Sweeps and patches at one node beyond these are a rule that undoes another.
const MAX_SWEEPS: u32 = 200;
const MAX_PATCHES_AT_NODE: u32 = 200;

/// A local rule.
pub(super) type Rule = for<'a> fn(&'a View<'a>, NodeId) -> Option<Patch<'a>>;

/// What a rule sees: the rewritten graph up to the node in question.
pub(super) struct View<'a> {
    pub(super) graph: &'a Graph,
    pub(super) cx: &'a Cx<'a>,
    uses: &'a [u32],
    constant: &'a [bool],
}

impl<'a> View<'a> {
    pub(super) fn ty(&self, v: ValueId) -> &'a TensorType {
        self.graph.ty(v)
    }

    pub(super) fn op(&self, v: ValueId) -> &'a Op {
        &self.graph.def(v).op
    }

    pub(super) fn inputs(&self, v: ValueId) -> &'a [ValueId] {
        &self.graph.def(v).inputs
    }

    /// True when at most one operand or root uses the value.
    pub(super) fn only_use(&self, v: ValueId) -> bool {
        self.uses[v.0 as usize] <= 1
    }

    /// True when the value depends on weights and constants alone.
    pub(super) fn is_constant(&self, v: ValueId) -> bool {
        self.constant[v.0 as usize]
    }
}

/// An operand of a new node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ref {
    /// A value of the graph.
    Old(ValueId),
    /// The result of the n-th new node.
    New(usize),
}

impl From<ValueId> for Ref {
    fn from(v: ValueId) -> Ref {
        Ref::Old(v)
    }
}

struct NewNode {
    op: Op,
    inputs: Vec<Ref>,
    ty: TensorType,
}

/// New nodes, each with one result, and the value that replaces the node's (first and only) result.
pub(super) struct Patch<'a> {
    view: &'a View<'a>,
    nodes: Vec<NewNode>,
    result: Option<Ref>,
}

impl<'a> Patch<'a> {
    pub(super) fn new(view: &'a View<'a>) -> Patch<'a> {
        Patch { view, nodes: vec![], result: None }
    }

    pub(super) fn ty(&self, r: Ref) -> &TensorType {
        match r {
            Ref::Old(v) => self.view.ty(v),
            Ref::New(i) => &self.nodes[i].ty,
        }
    }

    /// Adds a node whose type follows from its operands; `None` if they do not fit, and the rule gives up.
    pub(super) fn add(&mut self, op: Op, inputs: &[Ref]) -> Option<Ref> {
        let tys: Vec<&TensorType> = inputs.iter().map(|&r| self.ty(r)).collect();
        let [ty] = <[TensorType; 1]>::try_from(infer(&op, &tys).ok()?).ok()?;
        Some(self.push(op, inputs, ty))
    }

    /// Adds a node of a given type.
    pub(super) fn push(&mut self, op: Op, inputs: &[Ref], ty: TensorType) -> Ref {
        self.nodes.push(NewNode { op, inputs: inputs.to_vec(), ty });
        Ref::New(self.nodes.len() - 1)
    }

    /// A reshape, unless the shape is right already.
    pub(super) fn reshape(&mut self, r: Ref, shape: Vec<crate::ir::Dim>) -> Option<Ref> {
        if self.ty(r).shape == shape { Some(r) } else { self.add(Op::Reshape(shape), &[r]) }
    }

    /// Finishes the patch: `r` stands for the node's result from now on.
    pub(super) fn replace_by(mut self, r: impl Into<Ref>) -> Option<Patch<'a>> {
        self.result = Some(r.into());
        Some(self)
    }
}

/// Applies rules until none applies; gives the number of patches.
pub(super) fn rewrite(graph: &mut Graph, cx: &Cx<'_>, rules: &[Rule]) -> u32 {
    let mut total = 0;
    for sweep in 0.. {
        let patches = Sweep::run(graph, cx, rules);
        total += patches;
        if patches == 0 {
            break;
        }
        assert!(sweep < MAX_SWEEPS, "rewriting does not end:\n{}", crate::ir::print::print(graph));
    }
    total
}

struct Sweep<'a> {
    cx: &'a Cx<'a>,
    out: Graph,
    uses: Vec<u32>,
    constant: Vec<bool>,
    names: BTreeSet<String>,
    patches: u32,
}

impl Sweep<'_> {
    fn run(graph: &mut Graph, cx: &Cx<'_>, rules: &[Rule]) -> u32 {
        let mut old = std::mem::take(graph);
        let old_uses = old.use_counts();
        let names = old.values.iter().map(|v| v.name.clone()).collect();
        let nodes = std::mem::take(&mut old.nodes);
        let values = std::mem::take(&mut old.values);
        let mut s = Sweep { cx, out: old, uses: vec![], constant: vec![], names, patches: 0 };
        let mut map: Vec<ValueId> = vec![ValueId(u32::MAX); values.len()];
        let mut values: Vec<Option<Value>> = values.into_iter().map(Some).collect();
        for node in nodes {
            let inputs = node.inputs.iter().map(|v| map[v.0 as usize]).collect();
            let results = node.outputs.iter().map(|v| {
                let value = values[v.0 as usize].take().expect("one definition a value");
                (value.name, value.ty, old_uses[v.0 as usize])
            });
            let id = s.push(node.op, inputs, results.collect(), node.origin);
            let outputs = s.out.node(id).outputs.clone();
            let first = s.apply_rules(id, rules);
            for (i, v) in node.outputs.iter().enumerate() {
                map[v.0 as usize] = if i == 0 { first } else { outputs[i] };
            }
        }
        let to = |v: &mut ValueId| *v = map[v.0 as usize];
        for (_, input) in &mut s.out.inputs {
            if let UserInput::Tensor(v) = input {
                to(v);
            }
        }
        for (_, output) in &mut s.out.outputs {
            if let UserOutput::Tensor(v) = output {
                to(v);
            }
        }
        s.out.bindings.iter_mut().for_each(|b| to(&mut b.count));
        s.out.state_updates.iter_mut().for_each(|(_, v)| to(v));
        s.out.input_updates.iter_mut().for_each(|(_, v)| to(v));
        s.out.taps.iter_mut().for_each(|tap| to(&mut tap.value));
        compact(&mut s.out);
        *graph = s.out;
        s.patches
    }

    fn push(&mut self, op: Op, inputs: Vec<ValueId>, results: Vec<(String, TensorType, u32)>, origin: u32) -> NodeId {
        let def = NodeId(self.out.nodes.len() as u32);
        let mut outputs = vec![];
        let constant =
            is_constant_node(&op, results.iter().map(|r| &r.1)) && inputs.iter().all(|v| self.constant[v.0 as usize]);
        for (name, ty, uses) in results {
            outputs.push(ValueId(self.out.values.len() as u32));
            self.out.values.push(Value { name, ty, def });
            self.uses.push(uses);
            self.constant.push(constant);
        }
        self.out.nodes.push(Node { op, inputs, outputs, origin });
        def
    }

    /// Tries the rules at a node until none applies; the value that stands for its first result.
    fn apply_rules(&mut self, mut id: NodeId, rules: &[Rule]) -> ValueId {
        let mut result = self.out.node(id).outputs[0];
        for _ in 0..MAX_PATCHES_AT_NODE {
            if self.out.node(id).outputs.len() != 1 {
                return result;
            }
            let view = View { graph: &self.out, cx: self.cx, uses: &self.uses, constant: &self.constant };
            let patch = rules.iter().find_map(|rule| rule(&view, id)).map(|p| (p.nodes, p.result));
            let Some((nodes, Some(by))) = patch else { return result };
            if !self.cx.may_patch() {
                return result;
            }
            self.patches += 1;
            let fresh = !nodes.is_empty();
            let by = self.apply(id, nodes, by);
            self.uses[by.0 as usize] += self.uses[result.0 as usize];
            if self.out.value(by).def > id && fresh {
                self.swap_names(by, result);
            }
            result = by;
            if self.out.value(by).def <= id {
                return result;
            }
            id = self.out.value(by).def;
        }
        panic!("rules do not end at {}:\n{}", self.out.value(result).name, crate::ir::print::print(&self.out));
    }

    fn apply(&mut self, at: NodeId, nodes: Vec<NewNode>, by: Ref) -> ValueId {
        let root = self.out.node(at);
        let (origin, stem) = (root.origin, self.out.value(root.outputs[0]).name.clone());
        let mut made: Vec<ValueId> = vec![];
        let find = |made: &[ValueId], r: Ref| match r {
            Ref::Old(v) => v,
            Ref::New(i) => made[i],
        };
        for node in nodes {
            let inputs: Vec<ValueId> = node.inputs.iter().map(|&r| find(&made, r)).collect();
            inputs.iter().for_each(|v| self.uses[v.0 as usize] += 1);
            let name = self.fresh_name(&stem);
            let id = self.push(node.op, inputs, vec![(name, node.ty, 0)], origin);
            made.push(self.out.node(id).outputs[0]);
        }
        find(&made, by)
    }

    fn fresh_name(&mut self, stem: &str) -> String {
        let name = (1u32..).map(|n| format!("{stem}.{n}")).find(|n| !self.names.contains(n));
        let name = name.expect("numbers do not run out");
        self.names.insert(name.clone());
        name
    }

    fn swap_names(&mut self, a: ValueId, b: ValueId) {
        let name = std::mem::take(&mut self.out.values[a.0 as usize].name);
        let other = std::mem::replace(&mut self.out.values[b.0 as usize].name, name);
        self.out.values[a.0 as usize].name = other;
    }
}

/// A map over operands whose sizes are those of the first or 1.
pub(super) fn map(
    p: &mut Patch<'_>,
    inputs: &[Ref],
    dtype: DType,
    build: impl FnOnce(&mut Exprs, Ty, &[ExprId]) -> ExprId,
) -> Ref {
    let mut exprs = Exprs::new();
    let args: Vec<ExprId> = inputs.iter().zip(0..).map(|(&r, i)| exprs.arg(i, p.ty(r).dtype.ty())).collect();
    let root = build(&mut exprs, dtype.ty(), &args);
    let shape = p.ty(inputs[0]).shape.clone();
    p.push(Op::Map(Body { exprs, root, syms: vec![] }), inputs, TensorType::new(dtype, shape))
}
