//! Flash attention: heads join the batch axis; scale, causality and mask are the score expression.

use super::super::inline::Ctx;
use super::super::tile;
use super::matmul::rounded;
use super::{Lowered, finish, literal_size, max_elems};
use crate::ir::graph::Node;
use crate::ir::{DType, NodeId, Op, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId};
use jvc_kernels::spec::{AttentionSpec, AttentionStaging, KernelSpec};

pub(super) fn lower(cx: &mut Ctx<'_>, node: &Node, epilogue: &[NodeId]) -> Result<Lowered, Diagnostic> {
    let Op::Attention { scale, causal, zero_masked_rows, masked } = node.op else { panic!("not attention") };
    let (q, k, v) = (node.inputs[0], node.inputs[1], node.inputs[2]);
    let heads = cx.ty(q).shape[..2].to_vec();
    let (queries, keys) = (cx.ty(q).shape[2].clone(), cx.ty(k).shape[2].clone());
    let (qk, vd) = (cx.ty(q).shape[3].clone(), cx.ty(v).shape[3].clone());
    let (qk_dim, v_dim) = (literal_size(&qk, "the head size")?, literal_size(&vd, "the value size")?);
    let batch = &heads[0] * &heads[1];
    let axis = cx.ix.axis(0, &batch);
    let head = cx.ix.delinear(axis, &heads);
    let (i, j) = (cx.ix.axis(1, &queries), cx.ix.axis(2, &keys));
    let (e, f) = (cx.ix.axis(3, &qk), cx.ix.axis(3, &vd));
    let element = |cx: &mut Ctx<'_>, v: ValueId, tail: [ExprId; 2]| {
        let value = cx.at(v, &[head[0], head[1], tail[0], tail[1]]);
        cx.cast(Ty::F32, value)
    };
    let (query, key, value) = (element(cx, q, [i, e]), element(cx, k, [j, e]), element(cx, v, [j, f]));
    let mask = masked.then(|| node.inputs[3]);
    let score = score(cx, scale, causal, mask, [head[0], head[1], i, j]);
    let result = cx.ix.exprs.arg(0, Ty::F32);
    let stores = finish(cx, node.outputs[0], vec![head[0], head[1], i, f], result, epilogue);
    let [b, n_q, n_k] = [batch.clone(), queries.clone(), keys.clone()].map(|d| max_elems(cx, &[d]));
    let half = [q, k, v].iter().map(|&x| cx.ty(x).dtype).reduce(|a, b| if a == b { a } else { DType::F32 });
    let half = half.filter(|t| matches!(t, DType::F16 | DType::BF16));
    let heads = tile::Heads { batch: b, queries: n_q, keys: n_k, qk_dim, v_dim, half, masked };
    let (staging, wg, slow) = tile::attention(cx.device, &heads);
    let [batch, queries, keys] = [batch, queries, keys].map(|d| cx.ix.symtab().extent(&d));
    let mut exprs = std::mem::take(&mut cx.ix.exprs);
    let [query, key, value] = match staging {
        AttentionStaging::Coop(c) => [query, key, value].map(|x| rounded(&mut exprs, c.elem, x)),
        AttentionStaging::Stream { .. } | AttentionStaging::Tiled(_) => [query, key, value],
    };
    let spec = AttentionSpec {
        interface: cx.interface(),
        exprs,
        batch,
        queries,
        keys,
        qk_dim,
        v_dim,
        query,
        key,
        value,
        score,
        causal,
        zero_masked_rows,
        stores,
        staging,
        wg,
    };
    let flops = 2.0 * b * n_q * n_k * f64::from(qk_dim + v_dim);
    Ok(Lowered { spec: KernelSpec::Attention(spec), flops, slow })
}

fn score(cx: &mut Ctx<'_>, scale: f64, causal: bool, mask: Option<ValueId>, at: [ExprId; 4]) -> ExprId {
    let dot = cx.ix.exprs.arg(0, Ty::F32);
    let scale = cx.lit(Ty::F32, scale);
    let mut score = cx.bin(Binary::Mul, dot, scale);
    let hidden = cx.lit(Ty::F32, f64::NEG_INFINITY);
    if let Some(mask) = mask {
        let from = cx.broadcast_coords(mask, &at);
        let m = cx.at(mask, &from);
        score = if cx.ty(mask).dtype == DType::Bool {
            cx.ix.select(m, score, hidden)
        } else {
            let m = cx.cast(Ty::F32, m);
            cx.bin(Binary::Add, score, m)
        };
    }
    if causal {
        let visible = cx.bin(Binary::Le, at[3], at[2]);
        score = cx.ix.select(visible, score, hidden);
    }
    score
}
