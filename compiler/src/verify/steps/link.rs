//! How a value in memory compares with nodes of the export: it is one, or movement stands between the two.
//!
//! A movement is turned into positions: which element of the one is which of the other. No value is computed here.

use crate::ir::eval::{self, Data, Precision, Tensor};
use crate::ir::graph::Tap;
use crate::ir::{DType, Graph, Node, NodeId, Op, TensorType, ValueId};
use jvc_kernels::expr::Expr;
use std::collections::BTreeMap;

/// Movements between a value and a node, at most.
const MAX_DISTANCE: usize = 8;

/// A node of the export that says what (some) elements of a value must be.
pub(super) struct Link {
    /// The node's tensor.
    pub(super) tap: Tap,
    /// Pairs of positions, in the value and in the node's tensor; all of both, one by one, if none.
    pub(super) positions: Option<Vec<(u32, u32)>>,
}

/// Finds links; sizes are those of one run.
pub(super) struct Finder<'a> {
    graph: &'a Graph,
    taps: BTreeMap<ValueId, Vec<&'a Tap>>,
    users: Vec<Vec<NodeId>>,
}

impl<'a> Finder<'a> {
    /// Of nodes of these names.
    pub(super) fn new(graph: &'a Graph, has: impl Fn(&str) -> bool) -> Finder<'a> {
        let mut taps: BTreeMap<ValueId, Vec<&Tap>> = BTreeMap::new();
        for tap in graph.taps.iter().filter(|t| has(&t.name)) {
            taps.entry(tap.value).or_default().push(tap);
        }
        let mut users = vec![vec![]; graph.values.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|v| users[v.0 as usize].push(NodeId(i as u32)));
        }
        Finder { graph, taps, users }
    }

    /// Nodes that together say most of a value: itself, else what it was moved from, else what is moved out of it.
    pub(super) fn links(&self, v: ValueId, symbols: &BTreeMap<String, i64>) -> Vec<Link> {
        if let Some(tap) = self.tap(v) {
            return vec![Link { tap, positions: None }];
        }
        if let Some((tap, chain)) = self.before(v) {
            let pairs = self.positions(&chain, symbols).map(|p| pairs(p, |at, from| (at, from)));
            return pairs.into_iter().map(|p| Link { tap: tap.clone(), positions: Some(p) }).collect();
        }
        let mut out = vec![];
        self.after(v, &mut vec![], &mut |tap, chain| {
            let pairs = self.positions(chain, symbols).map(|p| pairs(p, |at, from| (from, at)));
            out.extend(pairs.map(|p| Link { tap, positions: Some(p) }));
        });
        out
    }

    fn tap(&self, v: ValueId) -> Option<Tap> {
        Some((*self.taps.get(&v)?.first()?).clone())
    }

    /// The nearest known value that movement makes `v` of, with the nodes between, in order.
    fn before(&self, mut v: ValueId) -> Option<(Tap, Vec<NodeId>)> {
        let mut chain = vec![];
        while chain.len() < MAX_DISTANCE {
            let id = self.graph.value(v).def;
            let node = self.graph.node(id);
            if !moves(node) {
                return None;
            }
            chain.insert(0, id);
            v = node.inputs[0];
            if let Some(tap) = self.tap(v) {
                return Some((tap, chain));
            }
        }
        None
    }

    /// The nearest known values that movement makes of `v`, on each way.
    fn after(&self, v: ValueId, chain: &mut Vec<NodeId>, found: &mut impl FnMut(Tap, &[NodeId])) {
        if chain.len() == MAX_DISTANCE {
            return;
        }
        for &id in &self.users[v.0 as usize] {
            let node = self.graph.node(id);
            if !moves(node) {
                continue;
            }
            chain.push(id);
            match self.tap(node.outputs[0]) {
                Some(tap) => found(tap, chain),
                None => self.after(node.outputs[0], chain, found),
            }
            chain.pop();
        }
    }

    /// For each element behind the chain, the position of the element before it that it is.
    fn positions(&self, chain: &[NodeId], symbols: &BTreeMap<String, i64>) -> Option<Vec<i64>> {
        let first = self.graph.node(*chain.first()?).inputs[0];
        let shape = shape(self.graph, first, symbols)?;
        let n: usize = shape.iter().product();
        let mut at = Tensor { dtype: DType::I64, shape, data: Data::Int((0..n as i64).collect()) };
        for &id in chain {
            let node = self.graph.node(id);
            if matches!(node.op, Op::Map(_)) {
                continue;
            }
            let ty = TensorType::new(DType::I64, self.graph.ty(node.outputs[0]).shape.clone());
            at = eval::eval_op(&node.op, &[&at], &[ty], symbols, Precision::Working).ok()?.pop()?;
        }
        match at.data {
            Data::Int(positions) => Some(positions),
            Data::Float(_) => None,
        }
    }
}

fn pairs(positions: Vec<i64>, order: impl Fn(u32, u32) -> (u32, u32)) -> Vec<(u32, u32)> {
    (0..).zip(positions).map(|(at, from)| order(at, from as u32)).collect()
}

/// The sizes of a value in a run.
pub(super) fn shape(graph: &Graph, v: ValueId, symbols: &BTreeMap<String, i64>) -> Option<Vec<usize>> {
    graph.ty(v).shape.iter().map(|d| d.eval(symbols).and_then(|n| usize::try_from(n).ok())).collect()
}

/// The same elements elsewhere, perhaps in another floating type.
fn moves(node: &Node) -> bool {
    match &node.op {
        Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } | Op::Broadcast(_) | Op::Flip(_) => true,
        Op::Map(body) if node.inputs.len() == 1 => match *body.exprs.get(body.root) {
            Expr::Arg(0, _) => true,
            Expr::Round(_, a) => matches!(body.exprs.get(a), Expr::Arg(0, _)),
            _ => false,
        },
        _ => false,
    }
}
