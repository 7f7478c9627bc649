//! Attention of a few queries is spelt out as two products around a softmax.
//!
//! ```text
//! graph g {
//!   %q = input 0 "q" : f32[1,2,1,8]
//!   %k = input 1 "k" : f32[1,2,100,8]
//!   %v = input 2 "v" : f32[1,2,100,8]
//!   %y = attention %q, %k, %v scale=0.5 : f32[1,2,1,8]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %q = input 0 "q" : f32[1,2,1,8]
//!   %k = input 1 "k" : f32[1,2,100,8]
//!   %v = input 2 "v" : f32[1,2,100,8]
//!   %y.1 = permute %k perm=[0,1,3,2] : f32[1,2,8,100]
//!   %y.2 = matmul %q, %y.1 : f32[1,2,1,100]
//!   %y.3 = map(a * 0.5) %y.2 : f32[1,2,1,100]
//!   %y.4 = softmax %y.3 dim=3 : f32[1,2,1,100]
//!   %y = matmul %y.4, %v : f32[1,2,1,8]
//!   output "y" = %y
//! }
//! ```
//!
//! The attention kernel gives a workgroup some queries and streams all keys past them. With one query a head (decoders that make a token
//! at a time) that leaves a device with as many workgroups as heads, each waiting for one key after another. The scores of so few queries
//! are small, so storing them costs nothing, and products of thin matrices share the keys out over the device.

use super::rewrite::{Patch, Ref, View, map, rewrite};
use super::{Cx, Pass};
use crate::ir::{DType, Graph, NodeId, Op, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::Binary;
use jvc_kernels::spec::Combine;

/// More queries fill a workgroup's rows of the attention kernel.
const MAX_QUERIES: i64 = 4;
/// With fewer keys, three kernels take longer than one.
const MIN_KEYS: i64 = 64;

pub(super) const PASS: Pass =
    Pass { name: "spell_thin_attention", summary: "attention of few queries becomes products around a softmax", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    rewrite(graph, cx, &[spell])
}

fn spell<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let Op::Attention { scale, causal: false, zero_masked_rows, masked } = n.op else { return None };
    let (q, k) = (n.inputs[0], n.inputs[1]);
    let few = view.ty(q).shape[2].as_const().is_some_and(|n| n <= MAX_QUERIES);
    let many = view.ty(k).shape[2].range(&view.graph.ranges).max >= MIN_KEYS;
    let single = matches!(view.ty(q).dtype, DType::F32 | DType::F16 | DType::BF16);
    if !few || !many || !single {
        return None;
    }
    let out = view.ty(n.outputs[0]).clone();
    let mut p = Patch::new(view);
    let [q, k, v] = [0, 1, 2].map(|i| widened(&mut p, n.inputs[i]));
    let keys = p.add(Op::Permute(vec![0, 1, 3, 2]), &[k])?;
    let dots = p.add(Op::Matmul, &[q, keys])?;
    let mask = masked.then(|| n.inputs[3]);
    let scores = scores(&mut p, dots, mask, scale);
    let mut weights = p.add(Op::Softmax { dim: 3, log: false }, &[scores])?;
    if masked && zero_masked_rows {
        weights = zero_where_hidden(&mut p, scores, weights)?;
    }
    let result = p.add(Op::Matmul, &[weights, v])?;
    let result = if out.dtype == DType::F32 { result } else { map(&mut p, &[result], out.dtype, |_, _, a| a[0]) };
    p.replace_by(result)
}

/// In f32, which the softmax of the attention kernel has whatever its operands are.
fn widened(p: &mut Patch<'_>, v: ValueId) -> Ref {
    let v = Ref::Old(v);
    if p.ty(v).dtype == DType::F32 { v } else { map(p, &[v], DType::F32, |_, _, a| a[0]) }
}

fn scores(p: &mut Patch<'_>, dots: Ref, mask: Option<ValueId>, scale: f64) -> Ref {
    let inputs: Vec<Ref> = std::iter::once(dots).chain(mask.map(Ref::Old)).collect();
    map(p, &inputs, DType::F32, |e, _, a| {
        let scale = e.lit(Ty::F32, scale);
        let score = e.bin(Binary::Mul, a[0], scale);
        match a.get(1).map(|&mask| (mask, e.ty(mask))) {
            None => score,
            Some((mask, Ty::Bool)) => {
                let hidden = e.lit(Ty::F32, f64::NEG_INFINITY);
                e.select(mask, score, hidden)
            }
            Some((mask, ty)) => {
                let mask = if ty == Ty::F32 { mask } else { e.cast(Ty::F32, mask) };
                e.bin(Binary::Add, score, mask)
            }
        }
    })
}

/// Weights of rows without a visible key, 0 instead of NaN.
fn zero_where_hidden(p: &mut Patch<'_>, scores: Ref, weights: Ref) -> Option<Ref> {
    let max = p.add(Op::Reduce { combine: Combine::Max, dims: vec![3], dtype: DType::F32 }, &[scores])?;
    Some(map(p, &[weights, max], DType::F32, |e, _, a| {
        let (hidden, zero) = (e.lit(Ty::F32, f64::NEG_INFINITY), e.lit(Ty::F32, 0.0));
        let nothing = e.bin(Binary::Eq, a[1], hidden);
        e.select(nothing, zero, a[0])
    }))
}
