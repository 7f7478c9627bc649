//! Products of few outputs and many terms are summed in parts, so that the whole device takes part: each part of the summed length is a
//! product of its own, and a sum over the parts follows, in a fixed order.
//!
//! ```text
//! graph g {
//!   %a = input 0 "a" : f32[64,8192]
//!   %b = input 1 "b" : f32[8192,32]
//!   %y = matmul %a, %b : f32[64,32]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %a = input 0 "a" : f32[64,8192]
//!   %b = input 1 "b" : f32[8192,32]
//!   %y.1 = reshape %a : f32[64,32,256]
//!   %y.2 = permute %y.1 perm=[1,0,2] : f32[32,64,256]
//!   %y.3 = reshape %b : f32[32,256,32]
//!   %y.4 = matmul %y.2, %y.3 : f32[32,64,32]
//!   %y.5 = reduce %y.4 sum dims=[0] : f32[1,64,32]
//!   %y = reshape %y.5 : f32[64,32]
//!   output "y" = %y
//! }
//! ```
//!
//! How many parts is the choice of `schedule/tiled.rs` for the device: as many as make it quicker, the second pass included. Without a device,
//! on CPU drivers and where sizes are symbolic, products stay whole. Halves are widened first, which is exact, so that the parts are
//! summed in f32; the product still runs on matrix units. A convolution in parts is one of as many groups.

use super::rewrite::{Patch, Ref, View, map, rewrite};
use super::{Cx, Pass};
use crate::ir::op::Window;
use crate::ir::{DType, Dim, Graph, NodeId, Op, ValueId};
use crate::schedule::fuse::{is_leaf, is_widening};
use crate::schedule::tile::{self, Problem};
use crate::schedule::{layout, tiled};
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::Combine;

pub(super) const PASS: Pass =
    Pass { name: "split_products", summary: "sums products of few outputs in parts over the whole device", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    rewrite(graph, cx, &[split])
}

fn split<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    match &view.graph.node(node).op {
        Op::Matmul => matmul(view, node),
        Op::Conv { window, groups: 1 } => conv(view, node, window),
        _ => None,
    }
}

/// Parts of a problem: at least 2.
fn parts(
    view: &View<'_>,
    (dtype, half): (DType, Option<DType>),
    [batch, m, n, k, line]: [i64; 5],
    (divisible, packed): (i64, bool),
) -> Option<i64> {
    let device = view.cx.device?;
    if dtype != DType::F32 && half.is_none() {
        return None;
    }
    let [batch, m, n, k, line] = [batch, m, n, k, line].map(|v| v as f64);
    let problem = Problem { batch, m, n, k, line, acc: Ty::F32, half, gathers: false, fills: false, packed };
    let parts = tiled::parts(device, &problem, u32::try_from(divisible).ok()?);
    (parts > 1).then_some(i64::from(parts))
}

/// The half type that an operand has, perhaps widened: matrix units take it as that.
fn half_of(view: &View<'_>, mut v: ValueId) -> Option<DType> {
    loop {
        let (dtype, node) = (view.ty(v).dtype, view.graph.def(v));
        match node.op {
            _ if matches!(dtype, DType::F16 | DType::BF16) => return Some(dtype),
            Op::Permute(_) | Op::Reshape(_) => v = node.inputs[0],
            _ if is_widening(view.graph, node) => v = node.inputs[0],
            _ => return None,
        }
    }
}

/// True for weights that a whole product could have packed.
fn packs(view: &View<'_>, right: ValueId) -> bool {
    let found = layout::turned(view.graph, right).and_then(|w| Some((w, view.cx.device?)));
    let Some((w, device)) = found else { return false };
    is_leaf(view.op(w)) && view.ty(w).const_shape().is_some_and(|s| tile::packs_whole(device, view.ty(w).dtype, &s))
}

/// In f32, in which parts are kept.
fn widened(p: &mut Patch<'_>, v: Ref) -> Ref {
    if p.ty(v).dtype == DType::F32 { v } else { map(p, &[v], DType::F32, |_, _, a| a[0]) }
}

fn narrowed(p: &mut Patch<'_>, v: Ref, dtype: DType) -> Ref {
    if dtype == DType::F32 { v } else { map(p, &[v], dtype, |_, _, a| a[0]) }
}

fn product(sizes: &[i64]) -> i64 {
    sizes.iter().fold(1, |n, &s| n.saturating_mul(s))
}

fn dims(sizes: impl IntoIterator<Item = i64>) -> Vec<Dim> {
    sizes.into_iter().map(Dim::from).collect()
}

fn matmul<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let out = view.ty(n.outputs[0]);
    let (a, b, y) = (view.ty(n.inputs[0]).const_shape()?, view.ty(n.inputs[1]).const_shape()?, out.const_shape()?);
    let rank = y.len();
    let (rows, cols, k) = (y[rank - 2], y[rank - 1], a[a.len() - 1]);
    let half = half_of(view, n.inputs[0]).filter(|&half| half_of(view, n.inputs[1]) == Some(half));
    let packed = half.is_some() && packs(view, n.inputs[1]);
    let parts = parts(view, (out.dtype, half), [product(&y[..rank - 2]), rows, cols, k, k], (k, packed))?;
    if is_part(view, n.inputs[0]) {
        return None;
    }
    let mut p = Patch::new(view);
    let a = in_parts(&mut p, Ref::Old(n.inputs[0]), (&a, rank - 1), parts)?;
    let b = in_parts(&mut p, Ref::Old(n.inputs[1]), (&b, rank - 2), parts)?;
    let products = p.add(Op::Matmul, &[a, b])?;
    let sum = p.add(Op::Reduce { combine: Combine::Sum, dims: vec![0], dtype: DType::F32 }, &[products])?;
    let sum = p.reshape(sum, dims(y))?;
    let result = narrowed(&mut p, sum, out.dtype);
    p.replace_by(result)
}

/// An operand with its dimension `k` cut into parts, which become the first dimension.
fn in_parts(p: &mut Patch<'_>, v: Ref, (shape, k): (&[i64], usize), parts: i64) -> Option<Ref> {
    let v = widened(p, v);
    let cut = [&shape[..k], &[parts, shape[k] / parts], &shape[k + 1..]].concat();
    let v = p.reshape(v, dims(cut))?;
    let perm: Vec<usize> = std::iter::once(k).chain((0..=shape.len()).filter(|&d| d != k)).collect();
    if k == 0 { Some(v) } else { p.add(Op::Permute(perm), &[v]) }
}

/// True for a left operand whose last dimension was cut off behind its first, as [`in_parts`] does it.
fn is_part(view: &View<'_>, a: ValueId) -> bool {
    let Op::Permute(perm) = view.op(a) else { return false };
    matches!(view.op(view.inputs(a)[0]), Op::Reshape(_)) && perm.last().is_some_and(|&last| last == perm[0] + 1)
}

fn conv<'a>(view: &'a View<'a>, node: NodeId, window: &Window) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let out = view.ty(n.outputs[0]);
    // Halves have their channels last between convolutions of one group, which saves more.
    if out.dtype != DType::F32 {
        return None;
    }
    let (w, y) = (view.ty(n.inputs[1]).const_shape()?, out.const_shape()?);
    let (outputs, channels, taps) = (w[0], w[1], product(&w[2..]));
    let rows = y[0] * product(&y[2..]);
    let parts = parts(view, (out.dtype, None), [1, rows, outputs, channels * taps, channels], (channels, false))?;
    let mut p = Patch::new(view);
    let x = widened(&mut p, Ref::Old(n.inputs[0]));
    let kernel = widened(&mut p, Ref::Old(n.inputs[1]));
    let within = channels / parts;
    let kernel = p.reshape(kernel, dims([outputs, parts, within].into_iter().chain(w[2..].iter().copied())))?;
    let perm = [1, 0].into_iter().chain(2..w.len() + 1).collect();
    let kernel = p.add(Op::Permute(perm), &[kernel])?;
    let kernel = p.reshape(kernel, dims([parts * outputs, within].into_iter().chain(w[2..].iter().copied())))?;
    let groups = p.add(Op::Conv { window: window.clone(), groups: parts }, &[x, kernel])?;
    let groups = p.reshape(groups, dims([y[0], parts, outputs].into_iter().chain(y[2..].iter().copied())))?;
    let sum = p.add(Op::Reduce { combine: Combine::Sum, dims: vec![1], dtype: DType::F32 }, &[groups])?;
    let sum = p.reshape(sum, dims(y))?;
    let result = narrowed(&mut p, sum, out.dtype);
    p.replace_by(result)
}
