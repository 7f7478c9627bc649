//! Differences and integrals along a dimension.

use super::args::Call;
use super::cx::Cx;
use super::promote::to_float;
use super::{AtenOp, Val, unsupported_shape};
use crate::ir::op::Op;
use crate::ir::{DType, Dim, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::spec::Combine;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.diff.default"], rule: diff },
    AtenOp { names: &["aten.trapezoid.dx", "aten.trapezoid.x", "aten.trapz.dx", "aten.trapz.x"], rule: trapezoid },
    AtenOp { names: &["aten.cumulative_trapezoid.dx", "aten.cumulative_trapezoid.x"], rule: cumulative_trapezoid },
];

/// All but the last, and all but the first, along a dimension.
fn neighbours(cx: &mut Cx, x: ValueId, dim: usize) -> Result<(ValueId, ValueId), Diagnostic> {
    let n = &cx.size(x, dim) - &Dim::from(1);
    Ok((cx.slice(x, dim, Dim::from(0), n.clone(), 1)?, cx.slice(x, dim, Dim::from(1), n, 1)?))
}

/// xᵢ₊₁ − xᵢ, n times; of bools whether they differ.
fn diff(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let mut x = c.tensor(cx, "self")?;
    let dim = c.dim_index("dim", cx.rank(x))?;
    if c.int("n")? == 0 {
        return Ok(vec![x.into()]);
    }
    let (before, after) = (c.opt_tensor(cx, "prepend")?, c.opt_tensor(cx, "append")?);
    let parts: Vec<ValueId> = before.into_iter().chain([x]).chain(after).collect();
    x = cx.concat(&parts, dim)?;
    let dtype = cx.tensor_dtype(x);
    for _ in 0..c.int("n")? {
        if cx.size(x, dim).is(0) {
            break;
        }
        let (left, right) = neighbours(cx, x, dim)?;
        x = cx.map2(right, left, dtype, |b, r, l| if dtype == DType::Bool { b.xor(r, l) } else { b.sub(r, l) })?;
    }
    Ok(vec![x.into()])
}

/// The areas (yᵢ + yᵢ₊₁)·Δxᵢ, twice as large as they should be, and the dimension.
fn double_areas(cx: &mut Cx, c: &Call<'_>) -> Result<(ValueId, usize), Diagnostic> {
    let y = c.tensor(cx, "y")?;
    let rank = cx.rank(y);
    let dim = c.dim_index("dim", rank)?;
    let dtype = to_float(cx.tensor_dtype(y));
    if cx.size(y, dim).is(0) {
        return Err(unsupported_shape("an integral over no points is not supported"));
    }
    let y = cx.cast(y, dtype)?;
    let (left, right) = neighbours(cx, y, dim)?;
    let pairs = cx.add_values(left, right)?;
    if !c.has("x") {
        return Ok((cx.scale(pairs, c.float("dx")?)?, dim));
    }
    let x = c.tensor(cx, "x")?;
    let x = cx.cast(x, dtype)?;
    let line = cx.rank(x) == 1;
    let (a, b) = neighbours(cx, x, if line { 0 } else { dim })?;
    let mut step = cx.sub_values(b, a)?;
    if line {
        let mut shape = vec![Dim::from(1); rank];
        shape[dim] = cx.size(step, 0);
        step = cx.reshape(step, shape)?;
    }
    Ok((cx.mul_values(pairs, step)?, dim))
}

/// Σ (yᵢ + yᵢ₊₁)/2·Δxᵢ.
fn trapezoid(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (areas, dim) = double_areas(cx, c)?;
    let dtype = cx.tensor_dtype(areas);
    let total = cx.reduce(areas, Combine::Sum, &[dim], false, dtype)?;
    Ok(vec![cx.scale(total, 0.5)?.into()])
}

fn cumulative_trapezoid(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (areas, dim) = double_areas(cx, c)?;
    let running = cx.add(Op::Scan { combine: Combine::Sum, dim, skip: 0 }, vec![areas])?[0];
    Ok(vec![cx.scale(running, 0.5)?.into()])
}
