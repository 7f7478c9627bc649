//! Who reads a weight, through movement and conversions, and over which of its dimensions they sum.

use super::report::Kept;
use crate::ir::op::Body;
use crate::ir::{Dim, Graph, Node, NodeId, Op, ValueId};
use jvc_kernels::expr::Expr;
use std::ops::Range;

/// A value that is the weight in another order: for each of its dimensions that of the weight, none where it was inserted.
struct View {
    value: ValueId,
    dims: Vec<Option<usize>>,
}

/// One reader: the dimensions of the weight that it sums over.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Read {
    summed: Range<usize>,
    embedding: bool,
}

/// The nodes that read each value.
pub(super) struct Readers {
    nodes: Vec<Vec<NodeId>>,
    is_root: Vec<bool>,
}

impl Readers {
    pub(super) fn of(graph: &Graph) -> Readers {
        let mut nodes = vec![vec![]; graph.values.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in &node.inputs {
                nodes[v.0 as usize].push(NodeId(i as u32));
            }
        }
        let mut is_root = vec![false; graph.values.len()];
        graph.roots().iter().for_each(|v| is_root[v.0 as usize] = true);
        Readers { nodes, is_root }
    }

    /// The dimensions of a weight that all its readers sum over.
    pub(super) fn summed(&self, graph: &Graph, weight: ValueId) -> Result<Range<usize>, Kept> {
        let dims = (0..graph.ty(weight).rank()).map(Some).collect();
        let mut reads = vec![];
        self.follow(graph, &View { value: weight, dims }, &mut reads)?;
        let Some(first) = reads.first() else { return Err(Kept::Reader("nothing")) };
        if reads.len() > 1 && reads.iter().any(|r| r.embedding) {
            return Err(Kept::TiedEmbedding);
        }
        if reads.iter().all(|r| r == first) { Ok(first.summed.clone()) } else { Err(Kept::Tied) }
    }

    fn follow(&self, graph: &Graph, view: &View, reads: &mut Vec<Read>) -> Result<(), Kept> {
        if self.is_root[view.value.0 as usize] {
            return Err(Kept::Output);
        }
        for &n in &self.nodes[view.value.0 as usize] {
            let node = graph.node(n);
            match moved(graph, view, node)? {
                Some(next) => self.follow(graph, &next, reads)?,
                None => reads.push(read(graph, view, node)?),
            }
        }
        Ok(())
    }
}

/// The view behind movement or a conversion; none behind other operations.
fn moved(graph: &Graph, view: &View, node: &Node) -> Result<Option<View>, Kept> {
    let dims = match &node.op {
        Op::Permute(perm) => perm.iter().map(|&p| view.dims[p]).collect(),
        Op::Reshape(shape) => regrouped(view, &graph.ty(view.value).shape, shape).ok_or(Kept::Reshaped)?,
        Op::Map(body) if node.inputs.len() == 1 && converts(body) => view.dims.clone(),
        _ => return Ok(None),
    };
    Ok(Some(View { value: node.outputs[0], dims }))
}

/// A reshape that inserts and removes dimensions of size 1.
fn regrouped(view: &View, from: &[Dim], to: &[Dim]) -> Option<Vec<Option<usize>>> {
    let mut left = from.iter().zip(&view.dims).filter(|(d, _)| !d.is(1));
    let dims = to.iter().map(|d| {
        if d.is(1) {
            return Some(None);
        }
        left.next().filter(|(size, _)| *size == d).map(|(_, &dim)| dim)
    });
    let dims = dims.collect::<Option<Vec<_>>>()?;
    left.next().is_none().then_some(dims)
}

/// True for a body that changes the element type alone.
fn converts(body: &Body) -> bool {
    let plain = |e: &Expr| matches!(e, Expr::Arg(..) | Expr::Cast(..) | Expr::Round(..));
    body.exprs.reachable(&[body.root]).iter().all(|&id| plain(body.exprs.get(id)))
}

fn read(graph: &Graph, view: &View, node: &Node) -> Result<Read, Kept> {
    let rank = view.dims.len();
    let in_order = || view.dims.iter().enumerate().all(|(d, &of)| of == Some(d));
    let one = |d: usize| view.dims[d].map(|d| d..d + 1).ok_or(Kept::ShortRows);
    let operand = |i: usize| node.inputs.get(i) == Some(&view.value);
    let twice = node.inputs.iter().filter(|&&v| v == view.value).count() > 1;
    let product = |summed| Ok(Read { summed, embedding: false });
    match &node.op {
        _ if twice => Err(Kept::Tied),
        Op::Matmul if operand(1) => product(one(rank - 2)?),
        Op::Matmul => product(one(rank - 1)?),
        Op::Conv { .. } if operand(1) && in_order() => product(1..rank),
        Op::Conv { .. } if operand(1) => Err(Kept::Reshaped),
        Op::Compute(_) if is_embedding(graph, node) && operand(0) && in_order() => {
            Ok(Read { summed: rank - 1..rank, embedding: true })
        }
        op => Err(Kept::Reader(name(op))),
    }
}

fn is_embedding(graph: &Graph, node: &Node) -> bool {
    graph.origins[node.origin as usize].target == "aten.embedding.default"
}

fn name(op: &Op) -> &'static str {
    match op {
        Op::Map(_) => "elementwise arithmetic",
        Op::Compute(_) => "indexing",
        Op::Slice { .. } | Op::Pad { .. } | Op::Concat { .. } | Op::Broadcast(_) | Op::Flip(_) => "movement",
        Op::Conv { .. } => "a convolution of constants",
        Op::ConvTranspose { .. } => "a transposed convolution",
        Op::Recurrent { .. } => "a recurrent layer",
        Op::Attention { .. } | Op::AttentionParts { .. } => "attention",
        Op::Reduce { .. } | Op::Softmax { .. } | Op::Norm { .. } | Op::Variance { .. } | Op::Moments { .. } => {
            "a reduction"
        }
        _ => "another operation",
    }
}
