//! Gives every node its operands in the type that it needs.

use super::is_pointwise;
use crate::ir::eval::literal;
use crate::ir::op::{Body, Literal};
use crate::ir::{Builder, DType, Graph, Node, NodeId, Op, TensorType, UserOutput, ValueId};
use crate::passes::drop_dead::compact;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Expr, ExprId, Exprs};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The graph while its values change their types.
pub(super) struct Rebuild {
    half: DType,
    halves: Vec<bool>,
    /// The element type of each value in the graph given.
    before: Vec<DType>,
    b: Builder,
    narrow: BTreeMap<ValueId, ValueId>,
    wide: BTreeMap<ValueId, ValueId>,
}

impl Rebuild {
    /// Values of `halves` become halves.
    pub(super) fn new(graph: &mut Graph, half: DType, halves: Vec<bool>) -> Rebuild {
        let before = graph.values.iter().map(|v| v.ty.dtype).collect();
        let b = Builder::resume(std::mem::take(graph));
        Rebuild { half, halves, before, b, narrow: BTreeMap::new(), wide: BTreeMap::new() }
    }

    /// The number of conversions.
    pub(super) fn run(mut self, graph: &mut Graph) -> usize {
        for node in std::mem::take(&mut self.b.graph.nodes) {
            self.b.set_origin_index(node.origin);
            self.node(node);
        }
        self.roots();
        *graph = self.b.graph;
        compact(graph);
        let casts = self.narrow.values().chain(self.wide.values());
        casts.count()
    }

    fn is_half(&self, v: ValueId) -> bool {
        self.halves.get(v.0 as usize).copied().unwrap_or(false)
    }

    fn node(&mut self, mut node: Node) {
        let half_out = node.outputs.iter().any(|&v| self.is_half(v));
        let own = if matches!(node.op, Op::Attention { .. }) { 3 } else { node.inputs.len() };
        if !is_pointwise(&node.op) {
            for v in &mut node.inputs[..own] {
                if self.before[v.0 as usize] == DType::F32 {
                    *v = if half_out { self.as_half(*v) } else { self.as_full(*v) };
                }
            }
        }
        match &mut node.op {
            Op::Compute(body) => *body = reloaded(body, &node.inputs, &self.b.graph),
            Op::Reduce { dtype, .. } if half_out => *dtype = self.half,
            Op::Const(lit) if half_out => *lit = converted(lit, self.half),
            _ => {}
        }
        for &v in node.outputs.iter().filter(|&&v| self.before[v.0 as usize] == DType::F32) {
            if half_out {
                self.b.graph.values[v.0 as usize].ty.dtype = self.half;
            }
        }
        self.push(node);
    }

    fn push(&mut self, node: Node) {
        let def = NodeId(self.b.graph.nodes.len() as u32);
        node.outputs.iter().for_each(|v| self.b.graph.values[v.0 as usize].def = def);
        self.b.graph.nodes.push(node);
    }

    fn as_half(&mut self, v: ValueId) -> ValueId {
        if self.is_half(v) {
            return v;
        }
        if let Some(&n) = self.narrow.get(&v) {
            return n;
        }
        let op = match &self.b.graph.def(v).op {
            // Other readers need it in f32: the checkpoint's tensor is stored twice.
            Op::Weight(w) => Some(Op::Weight(w.clone())),
            Op::Const(lit) => Some(Op::Const(converted(lit, self.half))),
            _ => None,
        };
        let ty = TensorType::new(self.half, self.b.ty(v).shape.clone());
        let n = match op {
            Some(op) => self.b.push(op, vec![], vec![ty])[0],
            None => self.cast(v, ty),
        };
        self.rename(v, n, self.half);
        self.narrow.insert(v, n);
        n
    }

    fn as_full(&mut self, v: ValueId) -> ValueId {
        if !self.is_half(v) {
            return v;
        }
        if let Some(&w) = self.wide.get(&v) {
            return w;
        }
        let w = self.cast(v, TensorType::new(DType::F32, self.b.ty(v).shape.clone()));
        self.rename(v, w, DType::F32);
        self.wide.insert(v, w);
        w
    }

    fn cast(&mut self, v: ValueId, ty: TensorType) -> ValueId {
        let mut exprs = Exprs::new();
        let arg = exprs.arg(0, Ty::F32);
        let root = if ty.dtype == DType::F32 { arg } else { exprs.add(Expr::Round(ty.dtype, arg)) };
        self.b.map(Body { exprs, root, syms: vec![] }, vec![v], ty).expect("a map of one operand")
    }

    fn rename(&mut self, from: ValueId, to: ValueId, dtype: DType) {
        let name = self.b.fresh_name(&format!("{}.{dtype}", self.b.graph.value(from).name));
        self.b.graph.values[to.0 as usize].name = name;
    }

    /// What leaves the program keeps its type and its name.
    fn roots(&mut self) {
        let roots: Vec<ValueId> = self.b.graph.roots().into_iter().filter(|&v| self.is_half(v)).collect();
        let mut full: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        for v in roots {
            if full.contains_key(&v) {
                continue;
            }
            let fresh = !self.wide.contains_key(&v);
            let w = self.as_full(v);
            if fresh {
                let name = std::mem::take(&mut self.b.graph.values[v.0 as usize].name);
                let half_name = self.b.fresh_name(&format!("{name}.{}", self.half));
                self.b.graph.values[v.0 as usize].name = half_name;
                self.b.graph.values[w.0 as usize].name = name;
            }
            full.insert(v, w);
        }
        let to = |v: &mut ValueId| *v = full.get(v).copied().unwrap_or(*v);
        let graph = &mut self.b.graph;
        for (_, output) in &mut graph.outputs {
            if let UserOutput::Tensor(v) = output {
                to(v);
            }
        }
        graph.state_updates.iter_mut().for_each(|(_, v)| to(v));
        graph.input_updates.iter_mut().for_each(|(_, v)| to(v));
    }
}

/// A body whose loads name the element types that the operands have now.
fn reloaded(body: &Body, inputs: &[ValueId], graph: &Graph) -> Body {
    let mut exprs = Exprs::new();
    let mut new: BTreeMap<ExprId, ExprId> = BTreeMap::new();
    for (id, e) in body.exprs.iter() {
        let operands: Vec<ExprId> = body.exprs.operands(id).iter().map(|o| new[o]).collect();
        let mut e = Exprs::with_operands(e, &operands);
        if let Expr::Load { operand, dtype, .. } = &mut e {
            *dtype = graph.ty(inputs[*operand as usize]).dtype;
        }
        new.insert(id, exprs.add(e));
    }
    Body { exprs, root: new[&body.root], syms: body.syms.clone() }
}

fn converted(lit: &Literal, dtype: DType) -> Literal {
    let t = literal(lit).converted(dtype);
    Literal { ty: TensorType::new(dtype, lit.ty.shape.clone()), bytes: Arc::new(t.to_bytes()) }
}
