//! Flash attention: heads join the batch axis; scale, causality and mask are the score expression.

use super::super::inline::Ctx;
use super::super::tile::{self, Choice};
use super::matmul::rounded;
use super::{Lowered, finish, literal_size, max_elems};
use crate::ir::graph::Node;
use crate::ir::{DType, Dim, NodeId, Op, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId};
use jvc_kernels::spec::{AttentionSpec, AttentionStaging, KernelSpec, KeyParts};

/// What both forms have: everything of the spec but stores, staging and workgroup.
struct Head {
    spec: AttentionSpec,
    /// Coordinates of the result: batch, head, query; the axis of channels of the value.
    at: [ExprId; 4],
    heads: tile::Heads,
}

fn head(cx: &mut Ctx<'_>, node: &Node, scale: f64, causal: bool, masked: bool) -> Result<Head, Diagnostic> {
    let (q, k, v) = (node.inputs[0], node.inputs[1], node.inputs[2]);
    let sizes = cx.ty(q).shape[..2].to_vec();
    let (queries, keys) = (cx.ty(q).shape[2].clone(), cx.ty(k).shape[2].clone());
    let (qk, vd) = (cx.ty(q).shape[3].clone(), cx.ty(v).shape[3].clone());
    let (qk_dim, v_dim) = (literal_size(&qk, "the head size")?, literal_size(&vd, "the value size")?);
    let batch = &sizes[0] * &sizes[1];
    let axis = cx.ix.axis(0, &batch);
    let head = cx.ix.delinear(axis, &sizes);
    let (i, j) = (cx.ix.axis(1, &queries), cx.ix.axis(2, &keys));
    let (e, f) = (cx.ix.axis(3, &qk), cx.ix.axis(3, &vd));
    let element = |cx: &mut Ctx<'_>, v: ValueId, tail: [ExprId; 2]| {
        let value = cx.at(v, &[head[0], head[1], tail[0], tail[1]]);
        cx.cast(Ty::F32, value)
    };
    let (query, key, value) = (element(cx, q, [i, e]), element(cx, k, [j, e]), element(cx, v, [j, f]));
    let mask = masked.then(|| node.inputs[3]);
    let score = score(cx, scale, causal, mask, [head[0], head[1], i, j]);
    let [b, n_q, n_k] = [batch.clone(), queries.clone(), keys.clone()].map(|d| max_elems(cx, &[d]));
    let half = [q, k, v].iter().map(|&x| cx.ty(x).dtype).reduce(|a, b| if a == b { a } else { DType::F32 });
    let half = half.filter(|t| matches!(t, DType::F16 | DType::BF16));
    let heads = tile::Heads { batch: b, queries: n_q, keys: n_k, qk_dim, v_dim, half, masked };
    let [batch, queries, keys] = [batch, queries, keys].map(|d| cx.ix.symtab().extent(&d));
    let spec = AttentionSpec {
        interface: Default::default(),
        exprs: Default::default(),
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
        zero_masked_rows: true,
        stores: vec![],
        staging: AttentionStaging::Stream { block_keys: 0, lanes: 1 },
        wg: 1,
    };
    Ok(Head { spec, at: [head[0], head[1], i, f], heads })
}

fn flops(p: &tile::Heads) -> f64 {
    2.0 * p.batch * p.queries * p.keys * f64::from(p.qk_dim + p.v_dim)
}

pub(super) fn lower(cx: &mut Ctx<'_>, node: &Node, epilogue: &[NodeId]) -> Result<Lowered, Diagnostic> {
    let Op::Attention { scale, causal, zero_masked_rows, masked } = node.op else { panic!("not attention") };
    let Head { mut spec, at, heads } = head(cx, node, scale, causal, masked)?;
    let result = cx.ix.exprs.arg(0, Ty::F32);
    spec.stores = finish(cx, node.outputs[0], at.to_vec(), result, epilogue);
    let Choice { staging, wg, slow, chosen } = tile::heads(cx.device, &heads);
    (spec.staging, spec.wg, spec.zero_masked_rows) = (staging, wg, zero_masked_rows);
    spec.exprs = std::mem::take(&mut cx.ix.exprs);
    if let AttentionStaging::Coop(c) = staging {
        let round = |exprs: &mut _, x| rounded(exprs, c.elem, x);
        spec.query = round(&mut spec.exprs, spec.query);
        spec.key = round(&mut spec.exprs, spec.key);
        spec.value = round(&mut spec.exprs, spec.value);
    }
    spec.interface = cx.interface();
    Ok(Lowered { spec: KernelSpec::Attention(spec), flops: flops(&heads), slow, tile: Some(chosen) })
}

/// The parts of keys: axis 2 of stores is the part.
pub(super) fn lower_parts(cx: &mut Ctx<'_>, node: &Node) -> Result<Lowered, Diagnostic> {
    let Op::AttentionParts { scale, masked, parts, len } = node.op else { panic!("not parts of attention") };
    let Head { mut spec, at, heads } = head(cx, node, scale, false, masked)?;
    let part = cx.ix.axis(2, &Dim::from(parts));
    let channel = cx.ix.axis(3, &Dim::from(i64::from(heads.v_dim) + 1));
    let result = cx.ix.exprs.arg(0, Ty::F32);
    spec.stores = finish(cx, node.outputs[0], vec![at[0], at[1], part, at[2], channel], result, &[]);
    let size = |n: i64| u32::try_from(n).expect("parts are few and short: the pass sees to it");
    spec.staging = AttentionStaging::Parts(KeyParts { count: size(parts), len: size(len) });
    spec.wg = tile::attention_parts_wg(cx.device, &heads);
    spec.exprs = std::mem::take(&mut cx.ix.exprs);
    spec.interface = cx.interface();
    Ok(Lowered::new(KernelSpec::Attention(spec), flops(&heads)))
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
