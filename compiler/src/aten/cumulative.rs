//! Running sums, products and extrema along a dimension.

use super::cx::{Built, ir_dtype};
use super::index::at_least_1d;
use super::norm::accumulator;
use super::{AtenOp, Call, Cx, Diagnostic, Val};
use crate::ir::{DType, Op, ValueId};
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.cumsum.default"], rule: |cx, call| running(cx, call, Combine::Sum) },
    AtenOp { names: &["aten.cumprod.default"], rule: |cx, call| running(cx, call, Combine::Prod) },
    AtenOp { names: &["aten.cummax.default"], rule: |cx, call| extremum(cx, call, Combine::Max) },
    AtenOp { names: &["aten.cummin.default"], rule: |cx, call| extremum(cx, call, Combine::Min) },
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
