//! Attention of a few queries is computed over parts of the keys, which are then combined; or, where the device has no kernel for that, spelt
//! out as two products around a softmax.
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
//!   %y.1 = attention_parts %q, %k, %v scale=0.5 parts=2 len=64 : f32[1,2,2,1,9]
//!   %y = compute(let t0 = a[i0, i1, 0, i2, 8]; let t1 = a[i0, i1, 1, i2, 8]; let t2 = max(t0, t1); let t3 = exp(t0 - t2); let t4 = exp(t1 - t2); ((t3 * a[i0, i1, 0, i2, i3]) + (t4 * a[i0, i1, 1, i2, i3])) / (t3 + t4)) %y.1 : f32[1,2,1,8]
//!   output "y" = %y
//! }
//! ```
//!
//! The attention kernel gives a workgroup some queries and streams all keys past them. With one query a head (decoders that make a token
//! at a time) that leaves a device with as many workgroups as heads, each waiting for one key after another. Parts of the keys are as many
//! workgroups as the device has units; what combines them is pointwise, and so rides on whatever reads it where that pays. In products the
//! scores of so few queries are small, so storing them costs nothing, and thin matrices share the keys out over the device.

use super::rewrite::{Patch, Ref, View, map, rewrite};
use super::{Cx, Pass};
use crate::ir::op::Body;
use crate::ir::{DType, Dim, Graph, NodeId, Op, ValueId};
use crate::schedule::tile;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Exprs, Unary};
use jvc_kernels::spec::Combine;

/// More queries than these, as products, fill a workgroup's rows of the attention kernel.
const MAX_QUERIES: i64 = 4;
/// With fewer keys, three kernels take longer than one.
const MIN_KEYS: i64 = 64;

pub(super) const PASS: Pass =
    Pass { name: "spell_thin_attention", summary: "attention of few queries is computed over parts of the keys", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    rewrite(graph, cx, &[spell])
}

fn spell<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let Op::Attention { scale, causal: false, zero_masked_rows, masked } = n.op else { return None };
    let (q, k) = (n.inputs[0], n.inputs[1]);
    let queries = view.ty(q).shape[2].as_const()?;
    let many = view.ty(k).shape[2].range(&view.graph.ranges).max >= MIN_KEYS;
    let single = matches!(view.ty(q).dtype, DType::F32 | DType::F16 | DType::BF16);
    if !many || !single {
        return None;
    }
    if let Some(patch) = in_parts(view, node, queries) {
        return Some(patch);
    }
    if queries > MAX_QUERIES {
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

/// As parts, where the device has a kernel for them.
fn in_parts<'a>(view: &'a View<'a>, node: NodeId, queries: i64) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let Op::Attention { scale, zero_masked_rows, masked, .. } = n.op else { return None };
    let (q, k, out) = (view.ty(n.inputs[0]), view.ty(n.inputs[1]), view.ty(n.outputs[0]));
    let most = |d: &Dim| d.range(&view.graph.ranges).max;
    let heads = q.shape[..2].iter().fold(1i64, |heads, d| heads.saturating_mul(most(d)));
    let channels = q.shape[3].as_const()?.max(out.shape[3].as_const()?);
    let thin = tile::Thin { heads, queries, keys: most(&k.shape[2]), channels, half: q.dtype != DType::F32 };
    let (parts, len) = tile::attention_parts(view.cx.device?, &thin)?;
    let mut p = Patch::new(view);
    let inputs: Vec<Ref> = n.inputs.iter().map(|&v| Ref::Old(v)).collect();
    let results = p.add(Op::AttentionParts { scale, masked, parts, len }, &inputs)?;
    let body = combined(parts, out.shape[3].as_const()?, zero_masked_rows);
    let result = p.push(Op::Compute(body), &[results], out.clone());
    p.replace_by(result)
}

/// The means of parts, weighted by `exp` of their heights: `Σ exp(h − max h)·mean / Σ exp(h − max h)`.
fn combined(parts: i64, channels: i64, zero_masked_rows: bool) -> Body {
    let mut e = Exprs::new();
    let [b, h, i, f] = [0, 1, 2, 3].map(|k| e.axis(k));
    let last = e.i32(channels as i32);
    let loads: Vec<(ExprId, ExprId)> = (0..parts as i32)
        .map(|part| {
            let part = e.i32(part);
            let mut load = |channel| e.load(0, DType::F32, vec![b, h, part, i, channel]);
            (load(f), load(last))
        })
        .collect();
    let top = loads[1..].iter().fold(loads[0].1, |top, &(_, height)| e.bin(Binary::Max, top, height));
    let terms: Vec<(ExprId, ExprId)> = loads
        .iter()
        .map(|&(mean, height)| {
            let below = e.bin(Binary::Sub, height, top);
            let weight = e.un(Unary::Exp, below);
            (e.bin(Binary::Mul, weight, mean), weight)
        })
        .collect();
    let add = |e: &mut Exprs, a: (ExprId, ExprId), b: (ExprId, ExprId)| {
        (e.bin(Binary::Add, a.0, b.0), e.bin(Binary::Add, a.1, b.1))
    };
    let (sum, weight) = terms[1..].iter().fold(terms[0], |all, &term| add(&mut e, all, term));
    let mut root = e.bin(Binary::Div, sum, weight);
    if zero_masked_rows {
        let (hidden, zero) = (e.lit(Ty::F32, f64::NEG_INFINITY), e.lit(Ty::F32, 0.0));
        let nothing = e.bin(Binary::Eq, top, hidden);
        root = e.select(nothing, zero, root);
    }
    Body { exprs: e, root, syms: vec![] }
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
