//! Groups → kernel specs. One file per family of anchors; what they share stands here: the epilogue at the stores.

mod attention;
pub mod bind;
mod conv;
mod fft;
mod map;
mod matmul;
mod pool;
mod recurrent;
mod row;
mod scan;
mod scatter;
mod sort;
mod stepwise;

use super::fuse::{Fusion, Group, GroupKind};
use super::inline::{Ctx, Use};
use super::symtab::SymTable;
use super::tile::Chosen;
use crate::device::DeviceProfile;
use crate::ir::{Graph, NodeId, Op, ValueId};
use crate::report::{Code, Diagnostic};
use jvc_codegen::plan::Cost;
use jvc_kernels::expr::ExprId;
use jvc_kernels::spec::{KernelSpec, ScatterMode, Store};
use std::ops::Range;

/// A kernel without addresses: its spec over places.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// The spec; bases of its interface are still open.
    pub spec: KernelSpec,
    /// What its operands stand for.
    pub uses: Vec<Use>,
    /// The value that names it.
    pub result: ValueId,
    /// Nodes that it computes, for messages and reports.
    pub nodes: Vec<NodeId>,
    /// Predicted work at the upper bounds of the symbols.
    pub cost: Cost,
    /// Reason codes of what is off the fast path.
    pub slow: Vec<&'static str>,
    /// The binding whose step it is: its stores come last, see [`bind`].
    pub binding: Option<u32>,
    /// Operands that start within their place, or of which it touches a part.
    pub parts: Vec<Part>,
    /// The recurrent layer that it is a time step of.
    pub layer: Option<NodeId>,
    /// How its tile was chosen, where there was a choice that can be measured.
    pub tile: Option<Chosen>,
}

/// How a draft uses an operand of which its spec does not say where it starts. In bytes from the start of the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Position in the operand list.
    pub operand: u16,
    /// Where element 0 of the spec is, a multiple of 16.
    pub start: u64,
    /// What it reads; everything if none.
    pub read: Option<Range<u64>>,
    /// What it writes; everything if none.
    pub written: Option<Range<u64>>,
}

/// A spec with its predicted floating-point operations, as the family files return it.
pub(super) struct Lowered {
    pub(super) spec: KernelSpec,
    pub(super) flops: f64,
    pub(super) slow: Vec<&'static str>,
    pub(super) tile: Option<Chosen>,
}

impl Lowered {
    fn new(spec: KernelSpec, flops: f64) -> Lowered {
        Lowered { spec, flops, slow: vec![], tile: None }
    }
}

/// Everything that lowering reads.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// Buffers and groups.
    pub fusion: &'a Fusion,
    /// The device.
    pub device: &'a DeviceProfile,
}

/// Lowers one group to one kernel, or two where a base must be copied first.
pub fn lower(input: Input<'_>, group: &Group, symtab: &mut SymTable) -> Result<Vec<Draft>, Diagnostic> {
    match &group.kind {
        GroupKind::Map => {
            one(input, group, symtab, vec![input.graph.value(group.result).def], |cx| Ok(map::lower(cx, group.result)))
        }
        GroupKind::Part { arm, start, dim } => {
            one(input, group, symtab, vec![input.graph.value(group.result).def], |cx| {
                Ok(map::lower_part(cx, *arm, group.result, *dim, start))
            })
        }
        GroupKind::StateUpdate(i) => {
            one(input, group, symtab, vec![], |cx| Ok(map::lower_state_update(cx, group.result, *i)))
        }
        GroupKind::Bind(i) => Ok(vec![bind::lower(input.graph, input.device, *i)]),
        GroupKind::Anchor { node, epilogue } => {
            let nodes: Vec<NodeId> = std::iter::once(*node).chain(epilogue.iter().copied()).collect();
            match &input.graph.node(*node).op {
                Op::Scatter { dims, mode } => lower_scatter(input, group, symtab, *node, dims, *mode),
                Op::Recurrent { .. } => lower_recurrent(input, group, symtab, *node),
                _ => one(input, group, symtab, nodes, |cx| lower_anchor(cx, *node, epilogue)),
            }
        }
    }
}

fn lower_scatter(
    input: Input<'_>,
    group: &Group,
    symtab: &mut SymTable,
    id: NodeId,
    dims: &[usize],
    mode: ScatterMode,
) -> Result<Vec<Draft>, Diagnostic> {
    let mut drafts = one(input, group, symtab, vec![id], |cx| Ok(scatter::lower_base(cx, id)))?;
    for place in input.fusion.places(group.result) {
        let node = input.graph.node(id);
        drafts.extend(one(input, group, symtab, vec![id], |cx| Ok(scatter::lower(cx, node, dims, mode, place)))?);
    }
    Ok(drafts)
}

fn lower_recurrent(
    input: Input<'_>,
    group: &Group,
    symtab: &mut SymTable,
    id: NodeId,
) -> Result<Vec<Draft>, Diagnostic> {
    let why = match stepwise::lower(input, group, symtab, id)? {
        Ok(drafts) => return Ok(drafts),
        Err(why) => why,
    };
    let mut drafts = one(input, group, symtab, vec![id], |cx| lower_anchor(cx, id, &[]))?;
    drafts.iter_mut().for_each(|d| d.slow.extend(why));
    Ok(drafts)
}

fn one(
    input: Input<'_>,
    group: &Group,
    symtab: &mut SymTable,
    nodes: Vec<NodeId>,
    build: impl FnOnce(&mut Ctx<'_>) -> Result<Lowered, Diagnostic>,
) -> Result<Vec<Draft>, Diagnostic> {
    let mut cx = Ctx::new(input.graph, input.fusion, input.device, symtab);
    let origin = nodes.first().map_or(0, |&n| input.graph.node(n).origin);
    let lowered = build(&mut cx).map_err(|d| d.at(&input.graph.origins[origin as usize]))?;
    let bytes = cx.uses.iter().map(|u| super::place_bytes(input.graph, input.device, *u) as f64).sum();
    let cost = Cost { flops: lowered.flops, bytes };
    let uses = cx.uses;
    let (spec, slow, tile) = (lowered.spec.compacted(), lowered.slow, lowered.tile);
    let (binding, parts, layer) = (None, vec![], None);
    Ok(vec![Draft { spec, uses, result: group.result, nodes, cost, slow, binding, parts, layer, tile }])
}

fn lower_anchor(cx: &mut Ctx<'_>, id: NodeId, epilogue: &[NodeId]) -> Result<Lowered, Diagnostic> {
    let graph = cx.graph;
    let node = graph.node(id);
    match &node.op {
        Op::Reduce { combine, dims, .. } => Ok(row::lower_reduce(cx, node, *combine, dims, epilogue)),
        Op::Softmax { dim, log } => Ok(row::lower_softmax(cx, node, *dim, *log, epilogue)),
        Op::Norm { dims, eps, rms } => Ok(row::lower_norm(cx, node, dims, *eps, *rms, epilogue)),
        Op::Variance { dims, correction } => Ok(row::lower_variance(cx, node, dims, *correction, epilogue)),
        Op::Moments { each, eps } => Ok(row::lower_moments(cx, node, *each, *eps)),
        Op::Matmul => Ok(matmul::lower(cx, node, epilogue)),
        Op::Conv { window, groups } => Ok(conv::lower(cx, node, window, *groups, epilogue)),
        Op::ConvTranspose { window, groups, .. } => Ok(conv::lower_transpose(cx, node, window, *groups, epilogue)),
        Op::Pool { .. } => pool::lower(cx, node, epilogue),
        Op::Attention { .. } => attention::lower(cx, node, epilogue),
        Op::AttentionParts { .. } => attention::lower_parts(cx, node),
        Op::Recurrent { cell, reverse, bias } => recurrent::lower(cx, node, *cell, *reverse, *bias),
        Op::Scan { combine, dim, skip } => Ok(scan::lower(cx, node, *combine, (*dim, *skip), epilogue)),
        Op::Sort { dim, descending, .. } => Ok(sort::lower(cx, node, *dim, *descending)),
        Op::Fft { inverse } => fft::lower(cx, node, *inverse),
        op => panic!("{op:?} is no anchor"),
    }
}

/// Applies the epilogue to an anchor's result at its coordinates, and stores.
fn finish(cx: &mut Ctx<'_>, v: ValueId, at: Vec<ExprId>, value: ExprId, epilogue: &[NodeId]) -> Vec<Store> {
    let graph = cx.graph;
    let (mut v, mut at) = (v, at);
    let mut value = cx.cast(graph.ty(v).dtype.ty(), value);
    for &n in epilogue {
        let node = graph.node(n);
        match &node.op {
            Op::Map(body) => {
                let out = graph.ty(node.outputs[0]).dtype;
                let value_here = cx.widened(value, graph.ty(v).dtype, out);
                let args: Vec<ExprId> =
                    node.inputs.iter().map(|&i| if i == v { value_here } else { cx.map_arg(i, &at, out) }).collect();
                value = cx.map_body(body, &args);
            }
            Op::Reshape(shape) => {
                let linear = cx.ix.linear(&at, &graph.ty(v).shape);
                at = cx.ix.delinear(linear, shape);
            }
            Op::Permute(perm) => at = perm.iter().map(|&d| at[d]).collect(),
            op => panic!("{op:?} in an epilogue"),
        }
        v = node.outputs[0];
    }
    cx.store(v, &at, value)
}

/// Most elements of a shape, as a number for cost estimates.
fn max_elems(cx: &mut Ctx<'_>, shape: &[crate::ir::Dim]) -> f64 {
    shape.iter().map(|d| cx.ix.symtab().dim_range(d).max.max(0) as f64).product()
}

/// A refusal for a size that must be a literal.
fn literal_size(d: &crate::ir::Dim, what: &str) -> Result<u32, Diagnostic> {
    let v = d.as_const().and_then(|v| u32::try_from(v).ok());
    v.ok_or_else(|| {
        Diagnostic::new(Code::UnsupportedShape, format!("{what} is symbolic ({d}); only a literal is supported"))
            .with_help("pin the symbol with --set")
    })
}
