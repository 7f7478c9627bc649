//! Scaled dot-product attention, in the composite form and the forms that name a kernel. All become one `Attention` over four dimensions.
//!
//! Fully masked rows give 0, as PyTorch does since 2.5.

use super::cx::Built;
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument, unsupported_attribute};
use crate::ir::{DType, Dim, Op, Shape, ValueId};
use jvc_kernels::expr::Unary;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.scaled_dot_product_attention.default"], rule: attention },
    AtenOp { names: &["aten._scaled_dot_product_flash_attention_for_cpu.default"], rule: flash_for_cpu },
    AtenOp { names: &["aten._scaled_dot_product_flash_attention.default"], rule: kernel_form },
    AtenOp { names: &["aten._scaled_dot_product_efficient_attention.default"], rule: kernel_form },
    AtenOp { names: &["aten._scaled_dot_product_cudnn_attention.default"], rule: kernel_form },
    AtenOp { names: &["aten._scaled_dot_product_fused_attention_overrideable.default"], rule: kernel_form },
];

/// Operands of equal batch and head sizes, all `[batch, heads, length, features]`.
struct Operands {
    q: ValueId,
    k: ValueId,
    v: ValueId,
    mask: Option<ValueId>,
    scale: f64,
    causal: bool,
    /// Sizes before the last two, as given.
    lead: Shape,
}

impl Operands {
    fn read(cx: &mut Cx, call: &Call<'_>) -> Result<Operands, Diagnostic> {
        let (q, k, v) = (call.tensor(cx, "query")?, call.tensor(cx, "key")?, call.tensor(cx, "value")?);
        let mask_name = if call.has("attn_bias") { "attn_bias" } else { "attn_mask" };
        let mask = if call.has(mask_name) { call.opt_tensor(cx, mask_name)? } else { None };
        if call.float("dropout_p")? != 0.0 {
            let text = format!("{}: dropout_p={} is not supported (only 0)", call.target, call.float("dropout_p")?);
            return Err(unsupported_attribute("training", text).with_help("export the model after model.eval()"));
        }
        let (k, v) = match call.has("enable_gqa") && call.bool("enable_gqa")? {
            true => (repeat_heads(cx, k, q)?, repeat_heads(cx, v, q)?),
            false => (k, v),
        };
        let rank = cx.rank(q);
        let Some(features) = cx.size(q, rank - 1).as_const().filter(|_| rank >= 2) else {
            return Err(bad_argument(format!("attention over queries {}", cx.ty(q))));
        };
        let scale = call.opt_float("scale")?.unwrap_or(1.0 / (features as f64).sqrt());
        let leads = [q, k, v].map(|t| cx.shape(t)[..cx.rank(t) - 2].to_vec());
        let lead = leads.iter().try_fold(vec![], |acc, s| super::cx::broadcast_shapes(&acc, s))?;
        let [q, k, v] = [q, k, v].map(|t| to_four_dims(cx, t, &lead));
        let mask = mask.map(|m| mask_to_four_dims(cx, m, &lead)).transpose()?;
        Ok(Operands { q: q?, k: k?, v: v?, mask, scale, causal: call.bool("is_causal")?, lead })
    }

    /// The result with the sizes of the operands as given.
    fn attend(&self, cx: &mut Cx) -> Built {
        let op = Op::Attention {
            scale: self.scale,
            causal: self.causal,
            zero_masked_rows: true,
            masked: self.mask.is_some(),
        };
        let inputs = [self.q, self.k, self.v].into_iter().chain(self.mask).collect();
        let y = cx.add1(op, inputs)?;
        let mut shape = self.lead.clone();
        shape.extend(cx.shape(y)[2..].iter().cloned());
        cx.reshape(y, shape)
    }

    /// `log Σ_j exp(score_ij)`, in f32, `[batch, heads, length]`.
    fn log_sum_exp(&self, cx: &mut Cx) -> Built {
        let acc = super::norm::accumulator(cx.tensor_dtype(self.q));
        let (q, k) = (cx.cast(self.q, acc)?, cx.cast(self.k, acc)?);
        let kt = cx.transpose(k, 2, 3)?;
        let scores = cx.matmul(q, kt)?;
        let mut scores = cx.scale(scores, self.scale)?;
        if let Some(mask) = self.mask {
            let selecting = cx.tensor_dtype(mask) == DType::Bool;
            scores = cx.map2(scores, mask, acc, |b, s, m| {
                if selecting {
                    let lowest = b.like(s, f64::NEG_INFINITY);
                    return b.select(m, s, lowest);
                }
                let m = b.cast(acc.ty(), m);
                b.add(s, m)
            })?;
        }
        if self.causal {
            scores = cx.compute(cx.shape(scores), acc, &[scores], |b, axes| {
                let s = b.load(0, axes);
                let (seen, lowest) = (b.le(axes[3], axes[2]), b.like(s, f64::NEG_INFINITY));
                b.select(seen, s, lowest)
            })?;
        }
        let top = cx.reduce(scores, Combine::Max, &[3], true, acc)?;
        let powers = cx.map2(scores, top, acc, |b, s, m| {
            let d = b.sub(s, m);
            b.un(Unary::Exp, d)
        })?;
        let total = cx.reduce(powers, Combine::Sum, &[3], true, acc)?;
        let sum = cx.map2(total, top, acc, |b, t, m| {
            let l = b.un(Unary::Log, t);
            b.add(l, m)
        })?;
        cx.squeeze(sum, 3)
    }
}

/// Grouped-query attention: each key head serves `heads(q) / heads(k)` consecutive query heads.
fn repeat_heads(cx: &mut Cx, t: ValueId, q: ValueId) -> Built {
    let (shape, rank) = (cx.shape(t), cx.rank(t));
    if rank < 3 || shape[rank - 3] == cx.size(q, cx.rank(q) - 3) {
        return Ok(t);
    }
    let heads = shape[rank - 3].clone();
    let Some(times) = cx.size(q, cx.rank(q) - 3).exact_div(&heads) else {
        return Err(bad_argument(format!("grouped attention of {} with {}", cx.ty(q), cx.ty(t))));
    };
    let spread = cx.unsqueeze(t, rank - 2)?;
    let mut repeated = cx.shape(spread);
    repeated[rank - 2] = times.clone();
    let spread = cx.broadcast_to(spread, &repeated)?;
    let mut out = shape;
    out[rank - 3] = &heads * &times;
    cx.reshape(spread, out)
}

/// Batch and heads of a leading shape: all but its last size fold into the batch.
fn batch_and_heads(lead: &[Dim]) -> [Dim; 2] {
    match lead.split_last() {
        None => [Dim::from(1), Dim::from(1)],
        Some((heads, batch)) => [batch.iter().fold(Dim::from(1), |p, d| &p * d), heads.clone()],
    }
}

fn to_four_dims(cx: &mut Cx, t: ValueId, lead: &Shape) -> Built {
    let rank = cx.rank(t);
    let last = cx.shape(t)[rank - 2..].to_vec();
    let full: Shape = lead.iter().chain(&last).cloned().collect();
    let t = cx.broadcast_to(t, &full)?;
    cx.reshape(t, batch_and_heads(lead).into_iter().chain(last).collect())
}

/// The mask with four dimensions, each the operands' size or 1.
fn mask_to_four_dims(cx: &mut Cx, mask: ValueId, lead: &Shape) -> Built {
    let mask = cx.to_rank(mask, (lead.len() + 2).max(2))?;
    let shape = cx.shape(mask);
    let (front, last) = shape.split_at(shape.len() - 2);
    if lead.len() <= 2 {
        return cx.to_rank(mask, 4);
    }
    // Several batch dimensions fold into one: they must all be there.
    let full: Shape = lead[..lead.len() - 1].iter().chain([&front[front.len() - 1]]).chain(last).cloned().collect();
    let heads = front[front.len() - 1].clone();
    let mask = cx.broadcast_to(mask, &full)?;
    let [batch, _] = batch_and_heads(lead);
    cx.reshape(mask, [batch, heads].into_iter().chain(last.iter().cloned()).collect())
}

fn attention(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let operands = Operands::read(cx, call)?;
    Ok(vec![Val::Tensor(operands.attend(cx)?)])
}

fn flash_for_cpu(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let operands = Operands::read(cx, call)?;
    let y = operands.attend(cx)?;
    Ok(vec![Val::Tensor(y), Val::Tensor(operands.log_sum_exp(cx)?)])
}

/// Kernel forms of other devices: further results serve the backward pass (seeds, lengths) and have no value here, so a program that
/// reads one is refused where it does.
fn kernel_form(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let operands = Operands::read(cx, call)?;
    let y = operands.attend(cx)?;
    let sums = operands.log_sum_exp(cx)?;
    let mut results = vec![Val::Tensor(y), Val::Tensor(sums)];
    results.resize(call.node.outputs.len().max(2), Val::None);
    Ok(results)
}
