//! Scatter in two kernels: the base is copied into the result, then the source is written over it, lines in parallel.

use super::super::inline::{Ctx, Place};
use super::super::tile;
use super::map;
use super::{Lowered, max_elems};
use crate::ir::graph::Node;
use crate::ir::{Dim, NodeId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::ExprId;
use jvc_kernels::spec::{Access, KernelSpec, ScatterMode, ScatterSpec, Store};

pub(super) fn lower_base(cx: &mut Ctx<'_>, id: NodeId) -> Lowered {
    let node = cx.graph.node(id);
    map::lower_into(cx, node.inputs[0], node.outputs[0])
}

/// Scatters into one of the places that hold the result (a buffer and an output, say: each has its own copy of the base).
pub(super) fn lower(cx: &mut Ctx<'_>, node: &Node, dims: &[usize], mode: ScatterMode, place: Place) -> Lowered {
    let src = *node.inputs.last().expect("scatter has a source");
    let indices = &node.inputs[1..node.inputs.len() - 1];
    let shape = cx.ty(src).shape.clone();
    let kept: Vec<usize> = (0..shape.len()).filter(|d| !dims.contains(d)).collect();
    let pick = |ds: &[usize]| ds.iter().map(|&d| shape[d].clone()).collect::<Vec<Dim>>();
    let (outer, inner) = (pick(&kept), pick(&sorted(dims)));
    let outer_axes = cx.axes(0, &outer);
    let inner_axes = cx.axes(outer.len(), &inner);
    let mut at = vec![cx.ix.int(0); shape.len()];
    kept.iter().zip(outer_axes).for_each(|(&d, a)| at[d] = a);
    sorted(dims).iter().zip(inner_axes).for_each(|(&d, a)| at[d] = a);
    let value = cx.at(src, &at);
    let mut target = at.clone();
    let mut guard = cx.ix.exprs.bool(true);
    for (&d, &index) in dims.iter().zip(indices) {
        let i = cx.at(index, &at);
        let i = cx.cast(Ty::I32, i);
        let size = cx.ty(node.outputs[0]).shape[d].clone();
        let inside = cx.in_range(i, &size);
        guard = cx.ix.and(guard, inside);
        target[d] = i;
    }
    let store = store(cx, node, place, &target, value, guard);
    let lines = max_elems(cx, &outer);
    let flops = max_elems(cx, &shape);
    let (outer, inner) = (cx.extents(&outer), cx.extents(&inner));
    let exprs = std::mem::take(&mut cx.ix.exprs);
    let spec =
        ScatterSpec { interface: cx.interface(), exprs, outer, inner, mode, store, wg: tile::lines(cx.device, lines) };
    let mut lowered = Lowered::new(KernelSpec::Scatter(spec), flops);
    if lines < 64.0 && flops > 65536.0 {
        lowered.slow.push("scatter runs few lines in parallel");
    }
    lowered
}

fn store(cx: &mut Ctx<'_>, node: &Node, place: Place, target: &[ExprId], value: ExprId, guard: ExprId) -> Store {
    let ty = cx.ty(node.outputs[0]);
    let index = cx.ix.linear(target, &ty.shape);
    let operand = cx.operand(place, ty.dtype, Access::ReadWrite);
    let guard = (cx.ix.as_bool(guard) != Some(true)).then_some(guard);
    Store { operand, index, value, guard }
}

fn sorted(dims: &[usize]) -> Vec<usize> {
    let mut d = dims.to_vec();
    d.sort_unstable();
    d
}
