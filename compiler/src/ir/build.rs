//! Builds graphs: used by the ATen rules, the passes and tests. Result types come from [`super::infer`].

use super::graph::{Graph, Node, NodeId, Origin, Value, ValueId};
use super::infer::{InferError, check_body, infer};
use super::op::{Body, Op};
use super::ty::TensorType;
use std::collections::BTreeMap;

/// A graph under construction.
#[derive(Debug, Default)]
pub struct Builder {
    /// The graph so far.
    pub graph: Graph,
    names: BTreeMap<String, u32>,
    origin: u32,
}

impl Builder {
    /// An empty graph.
    pub fn new(name: &str) -> Builder {
        let graph = Graph { name: name.to_string(), origins: vec![Origin::default()], ..Graph::default() };
        Builder { graph, names: BTreeMap::new(), origin: 0 }
    }

    /// Continues an existing graph.
    pub fn resume(graph: Graph) -> Builder {
        let names = graph.values.iter().map(|v| (v.name.clone(), 0)).collect();
        Builder { graph, names, origin: 0 }
    }

    /// Nodes added from now on come from here, and their values are named after its node.
    pub fn set_origin(&mut self, origin: Origin) {
        self.graph.origins.push(origin);
        self.origin = self.graph.origins.len() as u32 - 1;
    }

    /// Nodes added from now on share the origin of an existing node.
    pub fn set_origin_index(&mut self, origin: u32) {
        self.origin = origin;
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        self.graph.ty(v)
    }

    /// Adds a node whose result types follow from its operands.
    pub fn add(&mut self, op: Op, inputs: Vec<ValueId>) -> Result<Vec<ValueId>, InferError> {
        let tys: Vec<&TensorType> = inputs.iter().map(|&v| self.graph.ty(v)).collect();
        let out = infer(&op, &tys)?;
        Ok(self.push(op, inputs, out))
    }

    /// As [`Builder::add`], for operations with one result.
    pub fn add1(&mut self, op: Op, inputs: Vec<ValueId>) -> Result<ValueId, InferError> {
        Ok(self.add(op, inputs)?[0])
    }

    /// An elementwise node; operands have the rank of `shape` and broadcast to it.
    pub fn map(&mut self, body: Body, inputs: Vec<ValueId>, ty: TensorType) -> Result<ValueId, InferError> {
        self.checked(Op::Map(body), inputs, ty)
    }

    /// A general pointwise node over the coordinates of `ty`.
    pub fn compute(&mut self, body: Body, inputs: Vec<ValueId>, ty: TensorType) -> Result<ValueId, InferError> {
        self.checked(Op::Compute(body), inputs, ty)
    }

    fn checked(&mut self, op: Op, inputs: Vec<ValueId>, ty: TensorType) -> Result<ValueId, InferError> {
        let tys: Vec<&TensorType> = inputs.iter().map(|&v| self.graph.ty(v)).collect();
        check_body(&op, &tys, &ty)?;
        Ok(self.push(op, inputs, vec![ty])[0])
    }

    /// Adds a node with given result types.
    pub fn push(&mut self, op: Op, inputs: Vec<ValueId>, tys: Vec<TensorType>) -> Vec<ValueId> {
        let def = NodeId(self.graph.nodes.len() as u32);
        let stem = self.graph.origins[self.origin as usize].node.clone();
        let outputs = tys
            .into_iter()
            .map(|ty| {
                let name = self.fresh_name(if stem.is_empty() { "v" } else { &stem });
                self.graph.values.push(Value { name, ty, def });
                ValueId(self.graph.values.len() as u32 - 1)
            })
            .collect::<Vec<_>>();
        self.graph.nodes.push(Node { op, inputs, outputs: outputs.clone(), origin: self.origin });
        outputs
    }

    /// A name not yet taken: the stem itself, else `stem.1`, `stem.2`, …
    pub fn fresh_name(&mut self, stem: &str) -> String {
        if !self.names.contains_key(stem) {
            self.names.insert(stem.to_string(), 0);
            return stem.to_string();
        }
        loop {
            let n = self.names.get_mut(stem).map_or(0, |n| {
                *n += 1;
                *n
            });
            let name = format!("{stem}.{n}");
            if !self.names.contains_key(&name) {
                self.names.insert(name.clone(), 0);
                return name;
            }
        }
    }
}
