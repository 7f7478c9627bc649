//! Normalisations over the elements of a tensor: layer, group, instance, batch, root-mean-square; and `weight_norm`.
//!
//! All compute in f32 (f64 for f64) from the cast of the input to the cast of the result, so that half types round once, as in PyTorch.

use super::cx::{Built, ir_dtype};
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::{DType, Dim, Op, Shape, ValueId};
use jvc_kernels::expr::Unary;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.layer_norm.default"], rule: layer_norm },
    AtenOp { names: &["aten.native_layer_norm.default"], rule: native_layer_norm },
    AtenOp { names: &["aten.group_norm.default"], rule: group_norm },
    AtenOp { names: &["aten.native_group_norm.default"], rule: native_group_norm },
    AtenOp { names: &["aten.rms_norm.default"], rule: rms_norm },
    AtenOp { names: &["aten._fused_rms_norm.default"], rule: fused_rms_norm },
    AtenOp { names: &["aten._weight_norm.default"], rule: weight_norm },
    AtenOp { names: &["aten._weight_norm_interface.default"], rule: weight_norm_interface },
];

/// The type in which sums over a tensor accumulate.
pub(super) fn accumulator(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Mean over dimensions, kept as size 1, in the element type of x.
pub(super) fn mean(cx: &mut Cx, x: ValueId, dims: &[usize]) -> Built {
    let dtype = cx.tensor_dtype(x);
    let acc = accumulator(dtype);
    let sum = cx.reduce(x, Combine::Sum, dims, true, acc)?;
    let n = dims.iter().fold(Dim::from(1), |p, &d| &p * &cx.size(x, d));
    cx.compute(cx.shape(sum), dtype, &[sum], |b, axes| {
        let (total, n) = (b.load(0, axes), b.dim(&n));
        let n = b.cast(acc.ty(), n);
        b.div(total, n)
    })
}

/// `1 / √(var + eps)` over dimensions, kept as size 1, in the accumulator's type.
pub(super) fn reciprocal_std(cx: &mut Cx, x: ValueId, dims: &[usize], eps: f64) -> Built {
    let variance = cx.add1(Op::Variance { dims: dims.to_vec(), correction: 0.0 }, vec![x])?;
    rsqrt_of_sum(cx, variance, eps)
}

/// `1 / √(v + eps)`.
pub(super) fn rsqrt_of_sum(cx: &mut Cx, v: ValueId, eps: f64) -> Built {
    cx.map1(v, |b, v| {
        let eps = b.like(v, eps);
        let sum = b.add(v, eps);
        b.un(Unary::Rsqrt, sum)
    })
}

/// `x · scale + shift`, each optional, cast to `dtype`. Both must broadcast to x.
pub(super) fn affine(cx: &mut Cx, x: ValueId, scale: Option<ValueId>, shift: Option<ValueId>, dtype: DType) -> Built {
    let acc = cx.tensor_dtype(x);
    let mut y = x;
    if let Some(s) = scale {
        let s = cx.cast(s, acc)?;
        y = cx.mul_values(y, s)?;
    }
    if let Some(s) = shift {
        let s = cx.cast(s, acc)?;
        y = cx.add_values(y, s)?;
    }
    cx.cast(y, dtype)
}

/// A vector of channels as a tensor that broadcasts along dimension 1 of a tensor of this rank.
pub(super) fn along_channels(cx: &mut Cx, v: Option<ValueId>, rank: usize) -> Result<Option<ValueId>, Diagnostic> {
    let Some(v) = v else { return Ok(None) };
    let mut shape: Shape = vec![Dim::from(1); rank];
    shape[1] = cx.size(v, 0);
    cx.reshape(v, shape).map(Some)
}

/// Dimensions that `normalized_shape` covers: the last ones.
fn trailing_dims(cx: &Cx, call: &Call<'_>, x: ValueId) -> Result<Vec<usize>, Diagnostic> {
    let n = call.dims("normalized_shape")?.len();
    let rank = cx.rank(x);
    Ok((rank - n.min(rank)..rank).collect())
}

fn layer_norm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "input")?;
    let (weight, bias) = (call.opt_tensor(cx, "weight")?, call.opt_tensor(cx, "bias")?);
    let dims = trailing_dims(cx, call, x)?;
    let dtype = cx.tensor_dtype(x);
    let wide = cx.cast(x, accumulator(dtype))?;
    let y = cx.add1(Op::Norm { dims, eps: call.float("eps")?, rms: false }, vec![wide])?;
    Ok(vec![Val::Tensor(affine(cx, y, weight, bias, dtype)?)])
}

/// Casts a value to the type that the export recorded for output `i`.
pub(super) fn as_recorded(cx: &mut Cx, call: &Call<'_>, i: usize, v: ValueId) -> Built {
    match call.meta(i) {
        Some(meta) => cx.cast(v, ir_dtype(meta.dtype)?),
        None => Ok(v),
    }
}

fn native_layer_norm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let y = layer_norm(cx, call)?;
    let x = call.tensor(cx, "input")?;
    let dims = trailing_dims(cx, call, x)?;
    let wide = cx.cast(x, accumulator(cx.tensor_dtype(x)))?;
    let average = mean(cx, wide, &dims)?;
    let rstd = reciprocal_std(cx, wide, &dims, call.float("eps")?)?;
    let (average, rstd) = (as_recorded(cx, call, 1, average)?, as_recorded(cx, call, 2, rstd)?);
    Ok([y, vec![Val::Tensor(average), Val::Tensor(rstd)]].concat())
}

/// Groups of channels as rows: `[n, groups, c/groups · s…]`.
fn group_rows(cx: &mut Cx, x: ValueId, groups: i64) -> Built {
    let shape = cx.shape(x);
    let rest = shape[1..].iter().fold(Dim::from(1), |p, d| &p * d);
    cx.reshape(x, vec![shape[0].clone(), Dim::from(groups), rest.floor_div(&Dim::from(groups))])
}

fn group_norm_values(cx: &mut Cx, call: &Call<'_>, groups: i64) -> Result<(ValueId, ValueId), Diagnostic> {
    let x = call.tensor(cx, "input")?;
    let (shape, dtype) = (cx.shape(x), cx.tensor_dtype(x));
    let weight = call.opt_tensor(cx, "weight")?;
    let bias = call.opt_tensor(cx, "bias")?;
    let weight = along_channels(cx, weight, shape.len())?;
    let bias = along_channels(cx, bias, shape.len())?;
    let wide = cx.cast(x, accumulator(dtype))?;
    let rows = group_rows(cx, wide, groups)?;
    let y = cx.add1(Op::Norm { dims: vec![2], eps: call.float("eps")?, rms: false }, vec![rows])?;
    let y = cx.reshape(y, shape)?;
    Ok((affine(cx, y, weight, bias, dtype)?, rows))
}

fn group_norm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (y, _) = group_norm_values(cx, call, call.int("num_groups")?)?;
    Ok(vec![Val::Tensor(y)])
}

fn native_group_norm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (y, rows) = group_norm_values(cx, call, call.int("group")?)?;
    let average = mean(cx, rows, &[2])?;
    let average = cx.squeeze(average, 2)?;
    let rstd = reciprocal_std(cx, rows, &[2], call.float("eps")?)?;
    let rstd = cx.squeeze(rstd, 2)?;
    let (average, rstd) = (as_recorded(cx, call, 1, average)?, as_recorded(cx, call, 2, rstd)?);
    Ok(vec![Val::Tensor(y), Val::Tensor(average), Val::Tensor(rstd)])
}

/// Without an epsilon PyTorch takes the gap above 1 of the type that it computes in: of halves, f32's.
fn rms_epsilon(call: &Call<'_>, dtype: DType) -> Result<f64, Diagnostic> {
    let gap = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    Ok(call.opt_float("eps")?.unwrap_or(gap))
}

fn rms_norm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "input")?;
    let weight = call.opt_tensor(cx, "weight")?;
    let dims = trailing_dims(cx, call, x)?;
    let dtype = cx.tensor_dtype(x);
    let eps = rms_epsilon(call, dtype)?;
    let wide = cx.cast(x, accumulator(dtype))?;
    let y = cx.add1(Op::Norm { dims, eps, rms: true }, vec![wide])?;
    let y = affine(cx, y, weight, None, dtype)?;
    Ok(vec![Val::Tensor(as_recorded(cx, call, 0, y)?)])
}

fn fused_rms_norm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let y = rms_norm(cx, call)?;
    let x = call.tensor(cx, "input")?;
    let dims = trailing_dims(cx, call, x)?;
    let dtype = cx.tensor_dtype(x);
    let wide = cx.cast(x, accumulator(dtype))?;
    let squares = cx.map1(wide, |b, x| b.mul(x, x))?;
    let average = mean(cx, squares, &dims)?;
    let rstd = rsqrt_of_sum(cx, average, rms_epsilon(call, dtype)?)?;
    Ok([y, vec![Val::Tensor(as_recorded(cx, call, 1, rstd)?)]].concat())
}

/// `v · g / ‖v‖`, the norm over all dimensions but `dim`.
fn weight_norm_values(cx: &mut Cx, call: &Call<'_>) -> Result<(ValueId, ValueId), Diagnostic> {
    let (v, g) = (call.tensor(cx, "v")?, call.tensor(cx, "g")?);
    let (rank, dtype, dim) = (cx.rank(v), cx.tensor_dtype(v), call.int("dim")?);
    if dim >= rank as i64 || dim < -1 {
        return Err(bad_argument(format!("weight_norm along dim={dim} of {rank} dimensions")));
    }
    let dims: Vec<usize> = (0..rank).filter(|&d| d as i64 != dim).collect();
    let acc = accumulator(dtype);
    let (wide, g) = (cx.cast(v, acc)?, cx.cast(g, acc)?);
    let squares = cx.map1(wide, |b, x| b.mul(x, x))?;
    let total = cx.reduce(squares, Combine::Sum, &dims, true, acc)?;
    let norm = cx.map1(total, |b, x| b.un(Unary::Sqrt, x))?;
    let g = if cx.rank(g) == rank { g } else { cx.to_rank(g, rank)? };
    let factor = cx.map2(g, norm, acc, |b, g, n| b.div(g, n))?;
    let y = cx.mul_values(wide, factor)?;
    Ok((cx.cast(y, dtype)?, norm))
}

fn weight_norm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    Ok(vec![Val::Tensor(weight_norm_values(cx, call)?.0)])
}

fn weight_norm_interface(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (y, norm) = weight_norm_values(cx, call)?;
    Ok(vec![Val::Tensor(y), Val::Tensor(as_recorded(cx, call, 1, norm)?)])
}
