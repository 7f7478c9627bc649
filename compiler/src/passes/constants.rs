//! Values that depend on weights and constants alone, and what they are.

use super::Cx;
use crate::ir::eval::{Precision, Symbols, Tensor, Weights, eval_op, literal, stored};
use crate::ir::{DType, Graph, Literal, Op, TensorType, ValueId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Whether a node over constant operands is constant too: no input, no state, no symbolic size.
pub(super) fn is_constant_node<'t>(op: &Op, mut types: impl Iterator<Item = &'t TensorType>) -> bool {
    let fixed = types.all(|t| t.const_shape().is_some());
    fixed
        && match op {
            Op::Input { .. } | Op::State(_) => false,
            Op::Map(body) | Op::Compute(body) => body.syms.iter().all(|d| d.as_const().is_some()),
            Op::Slice { start, .. } => start.as_const().is_some(),
            _ => true,
        }
}

/// Which values of a graph are constant.
pub(super) fn constant_values(graph: &Graph) -> Vec<bool> {
    let mut out = vec![false; graph.values.len()];
    for node in &graph.nodes {
        let constant = node.inputs.iter().all(|v| out[v.0 as usize])
            && is_constant_node(&node.op, node.outputs.iter().map(|&v| graph.ty(v)));
        node.outputs.iter().for_each(|v| out[v.0 as usize] = constant);
    }
    out
}

/// Values of constant nodes, computed on demand and kept for the next question.
#[derive(Default)]
pub(super) struct Evaluator {
    known: BTreeMap<ValueId, Arc<Tensor>>,
    elems: usize,
}

/// Elements kept between questions; beyond, everything is forgotten and computed again when needed.
const MAX_KEPT: usize = 1 << 25;

impl Evaluator {
    /// The value of a constant; `None` if a weight has no data.
    pub(super) fn value(&mut self, graph: &Graph, cx: &Cx<'_>, v: ValueId) -> Option<Arc<Tensor>> {
        if self.elems > MAX_KEPT {
            *self = Evaluator::default();
        }
        let mut cone = vec![v];
        let mut i = 0;
        while i < cone.len() {
            if !self.known.contains_key(&cone[i]) {
                cone.extend(graph.def(cone[i]).inputs.iter().copied());
            }
            i += 1;
        }
        cone.sort();
        cone.dedup();
        for u in cone {
            if !self.known.contains_key(&u) {
                self.compute(graph, cx, u)?;
            }
        }
        self.known.get(&v).cloned()
    }

    fn compute(&mut self, graph: &Graph, cx: &Cx<'_>, v: ValueId) -> Option<()> {
        let node = graph.def(v);
        let results = match &node.op {
            Op::Weight(w) => vec![stored(w, graph.ty(v).dtype, cx.weights, Precision::Working).ok()?],
            Op::Const(lit) => vec![literal(lit)],
            op => {
                let args: Vec<Arc<Tensor>> =
                    node.inputs.iter().map(|i| self.known.get(i).cloned()).collect::<Option<_>>()?;
                let args: Vec<&Tensor> = args.iter().map(Arc::as_ref).collect();
                let types: Vec<TensorType> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
                eval_op(op, &args, &types, &Symbols::new(), Precision::Working).ok()?
            }
        };
        for (&v, t) in node.outputs.iter().zip(results) {
            self.elems += t.n_elems();
            self.known.insert(v, Arc::new(t));
        }
        Some(())
    }
}

/// A constant node's operation.
pub(super) fn const_op(t: &Tensor) -> Op {
    let shape: Vec<i64> = t.shape.iter().map(|&d| d as i64).collect();
    Op::Const(Literal { ty: TensorType::fixed(t.dtype, &shape), bytes: Arc::new(t.to_bytes()) })
}

/// Most elements of anything computed for [`known_value`].
const MAX_KNOWN_ELEMS: i64 = 4096;

/// The value of a small result of constants and weights alone; `None` where it depends on anything else, or on much data.
pub(crate) fn known_value(graph: &Graph, weights: &Weights<'_>, v: ValueId) -> Option<Tensor> {
    let (mut stack, mut seen) = (vec![v], BTreeSet::new());
    while let Some(v) = stack.pop() {
        if !seen.insert(v) {
            continue;
        }
        let node = graph.def(v);
        let small = graph.ty(v).n_elems().as_const().is_some_and(|n| n <= MAX_KNOWN_ELEMS);
        if !small || !is_constant_node(&node.op, node.outputs.iter().map(|&v| graph.ty(v))) {
            return None;
        }
        stack.extend(&node.inputs);
    }
    let value = Evaluator::default().value(graph, &Cx::new(weights, false, 0), v)?;
    Some(Tensor::clone(&value))
}

/// Expression nodes of a decoding: what an inner loop may compute again for every element that it reads.
const MAX_DECODING_NODES: usize = 24;

/// True for floats and 32-bit integers that little arithmetic makes of stored bytes, at most two of them of each byte: quantised weights. To fold or store
/// them would give back what the quantisation has saved.
pub(crate) fn decodes_bytes(graph: &Graph, v: ValueId) -> bool {
    let Some(n) = graph.ty(v).n_elems().as_const() else { return false };
    let dtype = graph.ty(v).dtype;
    if !dtype.is_float() && dtype != DType::I32 {
        return false;
    }
    let (mut stack, mut seen) = (vec![v], BTreeSet::new());
    let (mut bytes, mut nodes) = (false, 0);
    while let Some(v) = stack.pop() {
        if !seen.insert(v) {
            continue;
        }
        let node = graph.def(v);
        match &node.op {
            Op::Weight(_) | Op::Const(_) => {
                let ty = graph.ty(v);
                let whole = ty.n_elems().as_const().is_some_and(|stored| stored * 2 >= n);
                bytes |= matches!(ty.dtype, DType::I8 | DType::U8) && whole;
            }
            Op::Map(body) | Op::Compute(body) => nodes += body.exprs.reachable(&[body.root]).len(),
            Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } => {}
            _ => return false,
        }
        stack.extend(&node.inputs);
    }
    bytes && nodes <= MAX_DECODING_NODES
}
