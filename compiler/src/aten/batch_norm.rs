//! Batch and instance normalisation. With running statistics the whole is `x · α + β` with vectors that fold to constants; with the
//! statistics of the input it is a norm over all dimensions but the channels (and the batch, for instances).

use super::cx::{Built, Slot};
use super::norm::{accumulator, affine, along_channels, as_recorded, mean, reciprocal_std, rsqrt_of_sum};
use super::{AtenOp, Call, Cx, Diagnostic, Val};
use crate::import::program::Arg;
use crate::ir::{DType, Dim, Op, ValueId};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.batch_norm.default"], rule: batch_norm },
    AtenOp { names: &["aten.instance_norm.default"], rule: instance_norm },
    AtenOp { names: &["aten._native_batch_norm_legit_no_training.default"], rule: no_training },
    AtenOp { names: &["aten._native_batch_norm_legit.no_stats"], rule: no_stats },
    AtenOp { names: &["aten._native_batch_norm_legit_functional.default"], rule: functional },
    AtenOp { names: &["aten.native_batch_norm.default", "aten._native_batch_norm_legit.default"], rule: native },
];

/// Operands by their schema names, channel vectors laid along dimension 1.
struct Operands {
    x: ValueId,
    weight: Option<ValueId>,
    bias: Option<ValueId>,
    eps: f64,
}

impl Operands {
    fn read(cx: &mut Cx, call: &Call<'_>) -> Result<Operands, Diagnostic> {
        let x = call.tensor(cx, "input")?;
        let rank = cx.rank(x);
        let weight = call.opt_tensor(cx, "weight")?;
        let bias = call.opt_tensor(cx, "bias")?;
        let weight = along_channels(cx, weight, rank)?;
        let bias = along_channels(cx, bias, rank)?;
        Ok(Operands { x, weight, bias, eps: call.float("eps")? })
    }

    fn dtype(&self, cx: &Cx) -> DType {
        cx.tensor_dtype(self.x)
    }

    /// `x · α + β` with `α = w / √(var + eps)`, `β = b − mean · α`.
    fn with_statistics(&self, cx: &mut Cx, mean: ValueId, var: ValueId) -> Built {
        let (dtype, rank) = (self.dtype(cx), cx.rank(self.x));
        let acc = accumulator(dtype);
        let (mean, var) = (cx.cast(mean, acc)?, cx.cast(var, acc)?);
        let mean = along_channels(cx, Some(mean), rank)?.expect("given");
        let var = along_channels(cx, Some(var), rank)?.expect("given");
        let mut alpha = rsqrt_of_sum(cx, var, self.eps)?;
        if let Some(w) = self.weight {
            let w = cx.cast(w, acc)?;
            alpha = cx.mul_values(alpha, w)?;
        }
        let scaled_mean = cx.mul_values(mean, alpha)?;
        let beta = match self.bias {
            Some(b) => {
                let b = cx.cast(b, acc)?;
                cx.sub_values(b, scaled_mean)?
            }
            None => cx.scale(scaled_mean, -1.0)?,
        };
        let wide = cx.cast(self.x, acc)?;
        affine(cx, wide, Some(alpha), Some(beta), dtype)
    }

    /// From the statistics of the input over all dimensions but 1 (and 0, for instances).
    fn with_own_statistics(&self, cx: &mut Cx, dims: Vec<usize>) -> Built {
        let dtype = self.dtype(cx);
        let wide = cx.cast(self.x, accumulator(dtype))?;
        let y = cx.add1(Op::Norm { dims, eps: self.eps, rms: false }, vec![wide])?;
        affine(cx, y, self.weight, self.bias, dtype)
    }

    fn batch_dims(&self, cx: &Cx) -> Vec<usize> {
        (0..cx.rank(self.x)).filter(|&d| d != 1).collect()
    }

    /// Mean and `1/√(var + eps)` of the input, one per channel.
    fn own_statistics(&self, cx: &mut Cx) -> Result<(ValueId, ValueId), Diagnostic> {
        let dims = self.batch_dims(cx);
        let wide = cx.cast(self.x, accumulator(self.dtype(cx)))?;
        let average = mean(cx, wide, &dims)?;
        let rstd = reciprocal_std(cx, wide, &dims, self.eps)?;
        Ok((cx.drop_dims(average, &dims)?, cx.drop_dims(rstd, &dims)?))
    }
}

fn running(cx: &mut Cx, call: &Call<'_>) -> Result<Option<(ValueId, ValueId)>, Diagnostic> {
    let (mean, var) = (call.opt_tensor(cx, "running_mean")?, call.opt_tensor(cx, "running_var")?);
    Ok(mean.zip(var))
}

/// `(1 − momentum) · old + momentum · new`, in the old one's type.
fn blended(cx: &mut Cx, old: ValueId, new: ValueId, momentum: f64) -> Built {
    let dtype = cx.tensor_dtype(old);
    let new = cx.cast(new, dtype)?;
    cx.map2(old, new, dtype, |b, old, new| {
        let (keep, take) = (b.like(old, 1.0 - momentum), b.like(new, momentum));
        let (old, new) = (b.mul(old, keep), b.mul(new, take));
        b.add(old, new)
    })
}

/// The running statistics after this batch: its mean and its unbiased variance over `dims`, averaged over instances if `dims` leaves any.
fn updated(
    cx: &mut Cx,
    operands: &Operands,
    (mean_old, var_old): (ValueId, ValueId),
    dims: &[usize],
    momentum: f64,
) -> Result<[ValueId; 2], Diagnostic> {
    let wide = cx.cast(operands.x, accumulator(operands.dtype(cx)))?;
    let average = mean(cx, wide, dims)?;
    let unbiased = cx.add1(Op::Variance { dims: dims.to_vec(), correction: 1.0 }, vec![wide])?;
    let mut per_channel = |v: ValueId, old: ValueId| {
        let v = if dims.contains(&0) { v } else { mean(cx, v, &[0])? };
        let all = operands.batch_dims(cx);
        let v = cx.drop_dims(v, &all)?;
        blended(cx, old, v, momentum)
    };
    Ok([per_channel(average, mean_old)?, per_channel(unbiased, var_old)?])
}

/// Writes the running statistics, which PyTorch does as a side effect in training mode.
fn write_running(
    cx: &mut Cx,
    call: &Call<'_>,
    operands: &Operands,
    running: (ValueId, ValueId),
    dims: &[usize],
) -> Result<(), Diagnostic> {
    let new = updated(cx, operands, running, dims, call.float("momentum")?)?;
    for (name, value) in ["running_mean", "running_var"].into_iter().zip(new) {
        let Some(Arg::Tensor(tensor)) = call.given(name) else { continue };
        let Some(Slot::Tensor(old)) = cx.names.get(tensor).cloned() else { continue };
        let old = cx.refresh(old)?;
        let written = cx.write_tracked(&old, Val::Tensor(value))?;
        cx.names.insert(tensor.clone(), Slot::Tensor(written));
    }
    Ok(())
}

fn batch_norm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let operands = Operands::read(cx, call)?;
    let dims = operands.batch_dims(cx);
    let y = match running(cx, call)? {
        Some(old) if call.bool("training")? => {
            write_running(cx, call, &operands, old, &dims)?;
            operands.with_own_statistics(cx, dims)?
        }
        Some((mean, var)) => operands.with_statistics(cx, mean, var)?,
        None => operands.with_own_statistics(cx, dims)?,
    };
    Ok(vec![Val::Tensor(y)])
}

fn instance_norm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let operands = Operands::read(cx, call)?;
    let own = call.bool("use_input_stats")?;
    let dims: Vec<usize> = (2..cx.rank(operands.x)).collect();
    let y = match running(cx, call)? {
        Some(old) if own => {
            write_running(cx, call, &operands, old, &dims)?;
            operands.with_own_statistics(cx, dims)?
        }
        Some((mean, var)) => operands.with_statistics(cx, mean, var)?,
        None => operands.with_own_statistics(cx, dims)?,
    };
    Ok(vec![Val::Tensor(y)])
}

/// Inference: the saved statistics that PyTorch returns are empty.
fn no_training(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let operands = Operands::read(cx, call)?;
    let (mean, var) = (call.tensor(cx, "running_mean")?, call.tensor(cx, "running_var")?);
    let y = operands.with_statistics(cx, mean, var)?;
    let acc = accumulator(operands.dtype(cx));
    let empty = cx.full(vec![Dim::from(0)], acc, 0.0)?;
    let (mean, rstd) = (as_recorded(cx, call, 1, empty)?, as_recorded(cx, call, 2, empty)?);
    Ok(vec![Val::Tensor(y), Val::Tensor(mean), Val::Tensor(rstd)])
}

fn no_stats(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let operands = Operands::read(cx, call)?;
    let dims = operands.batch_dims(cx);
    let y = operands.with_own_statistics(cx, dims)?;
    let (mean, rstd) = operands.own_statistics(cx)?;
    let (mean, rstd) = (as_recorded(cx, call, 1, mean)?, as_recorded(cx, call, 2, rstd)?);
    Ok(vec![Val::Tensor(y), Val::Tensor(mean), Val::Tensor(rstd)])
}

/// The form that returns the new running statistics instead of writing them.
fn functional(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (running_mean, running_var) = (call.tensor(cx, "running_mean")?, call.tensor(cx, "running_var")?);
    if !call.bool("training")? {
        let mut results = no_training(cx, call)?;
        results.extend([Val::Tensor(running_mean), Val::Tensor(running_var)]);
        return Ok(results);
    }
    let mut results = no_stats(cx, call)?;
    let operands = Operands::read(cx, call)?;
    let dims = operands.batch_dims(cx);
    let new = updated(cx, &operands, (running_mean, running_var), &dims, call.float("momentum")?)?;
    results.extend(new.map(Val::Tensor));
    Ok(results)
}

fn native(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    match (running(cx, call)?, call.bool("training")?) {
        (Some(old), true) => {
            let operands = Operands::read(cx, call)?;
            let dims = operands.batch_dims(cx);
            write_running(cx, call, &operands, old, &dims)?;
            no_stats(cx, call)
        }
        (Some(_), false) => no_training(cx, call),
        (None, _) => no_stats(cx, call),
    }
}
