//! Running sums, products and extrema along a dimension.

use super::cx::{Built, ir_dtype};
use super::index::at_least_1d;
use super::norm::accumulator;
use super::{AtenOp, Call, Cx, Diagnostic, Val};
use crate::ir::{DType, Op, ValueId};
use jvc_kernels::expr::Unary;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.cumsum.default"], rule: |cx, call| running(cx, call, Combine::Sum) },
    AtenOp { names: &["aten.cumprod.default"], rule: |cx, call| running(cx, call, Combine::Prod) },
    AtenOp { names: &["aten.cummax.default"], rule: |cx, call| extremum(cx, call, Combine::Max) },
    AtenOp { names: &["aten.cummin.default"], rule: |cx, call| extremum(cx, call, Combine::Min) },
    AtenOp { names: &["aten.logcumsumexp.default"], rule: log_sum_exp },
];

/// A scan along `dim`; half types accumulate in f32 and round once per element.
pub(super) fn scan(cx: &mut Cx, x: ValueId, combine: Combine, dim: usize) -> Built {
    let dtype = cx.tensor_dtype(x);
    let wide = if dtype.is_float() { accumulator(dtype) } else { dtype };
    let x = cx.cast(x, wide)?;
    let y = cx.add1(Op::Scan { combine, dim, skip: 0 }, vec![x])?;
    cx.cast(y, dtype)
}

fn running(cx: &mut Cx, call: &Call<'_>, combine: Combine) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let shape = cx.shape(x);
    let dim = call.dim_index("dim", shape.len())?;
    let dtype = match call.dtype("dtype")? {
        Some(t) => ir_dtype(t)?,
        None if cx.tensor_dtype(x).is_float() => cx.tensor_dtype(x),
        None => DType::I64,
    };
    let x = cx.cast(x, dtype)?;
    let x = at_least_1d(cx, x)?;
    let y = scan(cx, x, combine, dim)?;
    Ok(vec![Val::Tensor(cx.reshape(y, shape)?)])
}

fn extremum(cx: &mut Cx, call: &Call<'_>, combine: Combine) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let shape = cx.shape(x);
    let dim = call.dim_index("dim", shape.len())?;
    let dtype = cx.tensor_dtype(x);
    // Truth values have no order in kernels; as small integers they have.
    let ordered = if dtype == DType::Bool { cx.cast(x, DType::U8)? } else { x };
    let x = at_least_1d(cx, ordered)?;
    let results = cx.add(Op::Scan { combine, dim, skip: 0 }, vec![x])?;
    let at = cx.reshape(results[1], shape.clone())?;
    let value = cx.cast(results[0], dtype)?;
    Ok(vec![Val::Tensor(cx.reshape(value, shape)?), Val::Tensor(at)])
}

/// `m_i + log Σ_{j ≤ i} exp(x_j − m_i)` with the running maximum m, each sum on its own: a shared maximum would lose the small ones.
fn log_sum_exp(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let (shape, dtype) = (cx.shape(x), cx.tensor_dtype(x));
    let dim = call.dim_index("dim", shape.len())?;
    let acc = accumulator(dtype);
    let x = at_least_1d(cx, x)?;
    let x = cx.cast(x, acc)?;
    let top = cx.add(Op::Scan { combine: Combine::Max, dim, skip: 0 }, vec![x])?[0];
    let rank = cx.rank(x);
    let mut pairs = cx.shape(x);
    pairs.push(cx.size(x, dim));
    let terms = cx.compute(pairs, acc, &[x, top], |b, axes| {
        let mut other = axes[..rank].to_vec();
        other[dim] = axes[rank];
        let (value, m) = (b.load(0, &other), b.load(1, &axes[..rank]));
        let zero = b.like(value, 0.0);
        // Of equal infinities the difference counts as 0, as in PyTorch.
        let (d, same) = (b.sub(value, m), b.eq(value, m));
        let d = b.select(same, zero, d);
        let term = b.un(Unary::Exp, d);
        let seen = b.le(axes[rank], axes[dim]);
        b.select(seen, term, zero)
    })?;
    let total = cx.reduce(terms, Combine::Sum, &[rank], false, acc)?;
    let y = cx.map2(total, top, acc, |b, t, m| {
        let l = b.un(Unary::Log, t);
        let sum = b.add(l, m);
        let lowest = b.like(m, f64::NEG_INFINITY);
        let none = b.eq(m, lowest);
        b.select(none, lowest, sum)
    })?;
    let y = cx.cast(y, dtype)?;
    Ok(vec![Val::Tensor(cx.reshape(y, shape)?)])
}
