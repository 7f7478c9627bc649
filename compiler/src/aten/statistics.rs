//! Statistics of data: covariance, correlation, histograms, and norms that limit or scale.

use super::args::Call;
use super::body::BodyBuilder;
use super::cx::{Built, Cx};
use super::promote::to_float;
use super::reduce::{magnitude, mean, p_norm, sum};
use super::{AtenOp, Val, bad_argument};
use crate::import::program::Arg;
use crate::ir::{Dim, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::expr::Unary;
use jvc_kernels::spec::Combine;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.cov.default"], rule: cov },
    AtenOp { names: &["aten.corrcoef.default"], rule: correlation },
    AtenOp { names: &["aten.histc.default"], rule: histogram },
    AtenOp { names: &["aten.renorm.default"], rule: renorm },
    AtenOp { names: &["aten.norm_except_dim.default"], rule: norm_except_dim },
];

fn cov(cx: &mut Cx, c: &Call<'_>) -> Vals {
    for name in ["fweights", "aweights"] {
        c.require("cov-weights", name, matches!(c.given(name), None | Some(Arg::None)), "None")?;
    }
    let (x, correction) = (c.tensor(cx, "self")?, c.int("correction")?);
    Ok(vec![covariance(cx, x, correction)?.into()])
}

/// Of rows of observations; a vector is one row, and gives a number.
fn covariance(cx: &mut Cx, x: ValueId, correction: i64) -> Built {
    let x = cx.cast(x, to_float(cx.tensor_dtype(x)))?;
    if cx.rank(x) > 2 {
        return Err(bad_argument(format!("covariance of {} is not supported", cx.ty(x))));
    }
    let rank = cx.rank(x);
    let x = cx.to_rank(x, 2)?;
    let dtype = cx.tensor_dtype(x);
    let n = &cx.size(x, 1) - &Dim::from(correction);
    let center = mean(cx, x, &[1], true, None)?;
    let d = cx.sub_values(x, center)?;
    let t = cx.transpose(d, 0, 1)?;
    let product = cx.matmul(d, t)?;
    let out = cx.map1(product, |b, p| {
        let n = b.dim(&n);
        let n = b.cast(dtype.ty(), n);
        let zero = b.like(p, 0.0);
        let n = b.max(n, zero);
        b.div(p, n)
    })?;
    if rank < 2 { cx.reshape(out, vec![]) } else { Ok(out) }
}

/// `cov[i, j] / √(cov[i, i]·cov[j, j])`, limited to ±1.
fn correlation(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let cov = covariance(cx, x, 1)?;
    let ty = cx.ty(cov).clone();
    if ty.rank() == 0 {
        return Ok(vec![cx.map2(cov, cov, ty.dtype, BodyBuilder::div)?.into()]);
    }
    let out = cx.compute(ty.shape, ty.dtype, &[cov], |b, axes| {
        let (i, j) = (axes[0], axes[1]);
        let (v, p, q) = (b.load(0, &[i, j]), b.load(0, &[i, i]), b.load(0, &[j, j]));
        let (p, q) = (b.un(Unary::Sqrt, p), b.un(Unary::Sqrt, q));
        let v = b.div(v, p);
        let v = b.div(v, q);
        let (low, high) = (b.like(v, -1.0), b.like(v, 1.0));
        let v = b.max(v, low);
        b.min(v, high)
    })?;
    Ok(vec![out.into()])
}

/// Counts per bin of equal width between two bounds (those of the data where both are equal); the upper bound belongs to the last bin.
fn histogram(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let (bins, low, high) = (c.int("bins")?, c.float("min")?, c.float("max")?);
    let dtype = cx.tensor_dtype(x);
    if !dtype.is_float() || bins < 1 {
        return Err(bad_argument(format!("histc of {} in {bins} bins is not supported", cx.ty(x))));
    }
    let n = cx.ty(x).n_elems();
    let x = cx.reshape(x, vec![n.clone()])?;
    let from_data = low == high;
    let bound = |cx: &mut Cx, combine, v: f64| {
        if from_data { cx.reduce(x, combine, &[0], true, dtype) } else { cx.full(vec![Dim::from(1)], dtype, v) }
    };
    let (low, high) = (bound(cx, Combine::Min, low)?, bound(cx, Combine::Max, high)?);
    let hits = cx.compute(vec![Dim::from(bins), n], dtype, &[x, low, high], |b, axes| {
        let zero = b.int(0);
        let (v, low, high) = (b.load(0, &[axes[1]]), b.load(1, &[zero]), b.load(2, &[zero]));
        let (flat, one) = (b.eq(low, high), b.like(v, 1.0));
        let (wider_low, wider_high) = (b.sub(low, one), b.add(high, one));
        let (low, high) = (b.select(flat, wider_low, low), b.select(flat, wider_high, high));
        let (above, below) = (b.le(low, v), b.le(v, high));
        let inside = b.and(above, below);
        let (d, span, count) = (b.sub(v, low), b.sub(high, low), b.like(v, bins as f64));
        let scaled = b.mul(d, count);
        let place = b.div(scaled, span);
        let place = b.un(Unary::Trunc, place);
        let last = b.like(v, (bins - 1) as f64);
        let place = b.min(place, last);
        let own = b.cast(b.ty(place), axes[0]);
        let same = b.eq(place, own);
        let hit = b.and(inside, same);
        b.cast(b.ty(v), hit)
    })?;
    Ok(vec![sum(cx, hits, &[1], false, None)?.into()])
}

/// Slices along a dimension whose p-norm is over a limit are scaled down to it.
fn renorm(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let (p, limit, rank) = (c.float("p")?, c.float("maxnorm")?, cx.rank(x));
    let dim = c.dim_index("dim", rank)?;
    let others: Vec<usize> = (0..rank).filter(|&d| d != dim).collect();
    let size = magnitude(cx, &Val::Tensor(x))?;
    let norm = p_norm(cx, size, p, &others, true)?;
    let dtype = cx.tensor_dtype(x);
    let out = cx.map2(x, norm, dtype, |b, x, n| {
        let (limit, eps, one) = (b.like(n, limit), b.like(n, 1e-7), b.like(n, 1.0));
        let padded = b.add(n, eps);
        let factor = b.div(limit, padded);
        let over = b.lt(limit, n);
        let factor = b.select(over, factor, one);
        b.mul(x, factor)
    })?;
    Ok(vec![out.into()])
}

/// p-norm over all dimensions but one, which keep size 1; over all for −1.
fn norm_except_dim(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "v")?;
    let (p, dim, rank) = (c.int("pow")? as f64, c.int("dim")?, cx.rank(x));
    let size = magnitude(cx, &Val::Tensor(x))?;
    let all: Vec<usize> = (0..rank).collect();
    if dim == -1 {
        return Ok(vec![p_norm(cx, size, p, &all, false)?.into()]);
    }
    let dim = c.dim_index("dim", rank)?;
    let others: Vec<usize> = all.into_iter().filter(|&d| d != dim).collect();
    Ok(vec![p_norm(cx, size, p, &others, true)?.into()])
}
