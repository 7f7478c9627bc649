//! Softmax and its logarithm, with the forms that cast first and the one that gives 0 for a row of −∞.

use super::cx::{Built, ir_dtype};
use super::{AtenOp, Call, Cx, Diagnostic, Val};
use crate::ir::{DType, Dim, ValueId};
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &["aten.softmax.int", "aten.special_softmax.default"],
        rule: |cx, call| with_dtype(cx, call, false),
    },
    AtenOp {
        names: &["aten.log_softmax.int", "aten.special_log_softmax.default"],
        rule: |cx, call| with_dtype(cx, call, true),
    },
    AtenOp { names: &["aten._softmax.default"], rule: |cx, call| half_to_float(cx, call, false) },
    AtenOp { names: &["aten._log_softmax.default"], rule: |cx, call| half_to_float(cx, call, true) },
    AtenOp { names: &["aten._safe_softmax.default"], rule: safe_softmax },
];

/// Softmax along `dim`; a 0-d tensor counts as one element.
pub(super) fn softmax_values(cx: &mut Cx, x: ValueId, dim: usize, log: bool) -> Built {
    if cx.rank(x) > 0 {
        return cx.softmax(x, dim, log);
    }
    let row = cx.reshape(x, vec![Dim::from(1)])?;
    let y = cx.softmax(row, 0, log)?;
    cx.reshape(y, vec![])
}

/// The operand, cast first if the call names an element type.
fn operand(cx: &mut Cx, call: &Call<'_>) -> Result<(ValueId, usize), Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let dim = call.dim_index("dim", cx.rank(x))?;
    let x = match call.dtype("dtype")? {
        Some(t) => cx.cast(x, ir_dtype(t)?)?,
        None => x,
    };
    Ok((x, dim))
}

fn with_dtype(cx: &mut Cx, call: &Call<'_>, log: bool) -> Result<Vec<Val>, Diagnostic> {
    let (x, dim) = operand(cx, call)?;
    Ok(vec![Val::Tensor(softmax_values(cx, x, dim, log)?)])
}

fn half_to_float(cx: &mut Cx, call: &Call<'_>, log: bool) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let dim = call.dim_index("dim", cx.rank(x))?;
    let x = if call.bool("half_to_float")? { cx.cast(x, DType::F32)? } else { x };
    Ok(vec![Val::Tensor(softmax_values(cx, x, dim, log)?)])
}

/// As softmax, but 0 where the whole row is −∞ (there softmax is NaN).
fn safe_softmax(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, dim) = operand(cx, call)?;
    let dtype = cx.tensor_dtype(x);
    let y = softmax_values(cx, x, dim, false)?;
    let top = cx.reduce(x, Combine::Max, &[dim], cx.rank(x) > 0, dtype)?;
    let y = cx.map2(y, top, dtype, |b, y, top| {
        let (lowest, zero) = (b.like(top, f64::NEG_INFINITY), b.like(y, 0.0));
        let masked = b.eq(top, lowest);
        b.select(masked, zero, y)
    })?;
    Ok(vec![Val::Tensor(y)])
}
