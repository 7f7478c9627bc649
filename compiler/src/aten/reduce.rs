//! Reductions: sums, extrema, means, variances, norms.

use super::args::{Call, wrap_dim};
use super::complex;
use super::cx::{Built, Cx, ir_dtype};
use super::promote::to_float;
use super::{AtenOp, Val, bad_argument, unsupported_dtype};
use crate::import::program::Arg;
use crate::ir::op::Op;
use crate::ir::{DType, Dim, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::expr::Unary;
use jvc_kernels::spec::Combine;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.sum.default", "aten.sum.dim_IntList"], rule: |cx, c| parts(cx, c, sum) },
    AtenOp {
        names: &["aten.nansum.default"],
        rule: |cx, c| {
            parts(cx, c, |cx, x, dims, keep, dtype| {
                let x = without_nan(cx, x)?;
                sum(cx, x, dims, keep, dtype)
            })
        },
    },
    AtenOp { names: &["aten.mean.default", "aten.mean.dim"], rule: |cx, c| parts(cx, c, mean) },
    AtenOp { names: &["aten.nanmean.default"], rule: nanmean },
    AtenOp {
        names: &["aten.prod.default", "aten.prod.dim_int"],
        rule: |cx, c| parts(cx, c, |cx, x, dims, keep, dtype| accumulate(cx, x, Combine::Prod, dims, keep, dtype)),
    },
    AtenOp { names: &["aten.amax.default", "aten.max.default"], rule: |cx, c| extreme(cx, c, Combine::Max) },
    AtenOp { names: &["aten.amin.default", "aten.min.default"], rule: |cx, c| extreme(cx, c, Combine::Min) },
    AtenOp { names: &["aten.aminmax.default"], rule: aminmax },
    AtenOp { names: &["aten._aminmax.default", "aten._aminmax.dim"], rule: aminmax },
    AtenOp { names: &["aten.max.dim"], rule: |cx, c| with_index(cx, c, Combine::Max, Combine::ArgMax) },
    AtenOp { names: &["aten.min.dim"], rule: |cx, c| with_index(cx, c, Combine::Min, Combine::ArgMin) },
    AtenOp { names: &["aten.argmax.default"], rule: |cx, c| position(cx, c, Combine::ArgMax) },
    AtenOp { names: &["aten.argmin.default"], rule: |cx, c| position(cx, c, Combine::ArgMin) },
    AtenOp { names: &["aten.any.default", "aten.any.dim", "aten.any.dims"], rule: |cx, c| truth(cx, c, Combine::Any) },
    AtenOp { names: &["aten.all.default", "aten.all.dim", "aten.all.dims"], rule: |cx, c| truth(cx, c, Combine::All) },
    AtenOp { names: &["aten.count_nonzero.default", "aten.count_nonzero.dim_IntList"], rule: count_nonzero },
    AtenOp {
        names: &["aten.var.default", "aten.var.dim", "aten.var.correction"],
        rule: |cx, c| Ok(vec![spread(cx, c, false)?.0.into()]),
    },
    AtenOp {
        names: &["aten.std.default", "aten.std.dim", "aten.std.correction"],
        rule: |cx, c| Ok(vec![spread(cx, c, true)?.0.into()]),
    },
    AtenOp {
        names: &["aten.var_mean.default", "aten.var_mean.dim", "aten.var_mean.correction"],
        rule: |cx, c| {
            let (v, m) = spread(cx, c, false)?;
            Ok(vec![v.into(), m])
        },
    },
    AtenOp {
        names: &["aten.std_mean.default", "aten.std_mean.dim", "aten.std_mean.correction"],
        rule: |cx, c| {
            let (v, m) = spread(cx, c, true)?;
            Ok(vec![v.into(), m])
        },
    },
    AtenOp { names: &["aten.logsumexp.default", "aten.special_logsumexp.default"], rule: logsumexp },
    AtenOp {
        names: &[
            "aten.norm.Scalar",
            "aten.norm.ScalarOpt_dim",
            "aten.norm.ScalarOpt_dim_dtype",
            "aten.norm.ScalarOpt_dtype",
            "aten.linalg_vector_norm.default",
            "aten.linalg_norm.default",
            "aten.frobenius_norm.dim",
        ],
        rule: vector_norm,
    },
    AtenOp { names: &["aten.linalg_matrix_norm.str_ord", "aten.linalg_norm.ord_str"], rule: matrix_norm },
    AtenOp { names: &["aten.linalg_matrix_norm.default"], rule: matrix_norm_of_order },
    AtenOp { names: &["aten.dist.default"], rule: dist },
    AtenOp { names: &["aten.sum_to_size.default"], rule: sum_to_size },
];

/// The reduced dimensions: `dim` as an integer, a list or absent (all), and whether they stay.
fn dims_of(cx: &mut Cx, c: &Call<'_>) -> Result<(Vec<usize>, bool), Diagnostic> {
    let rank = c.rank(cx)?;
    let all: Vec<usize> = (0..rank).collect();
    let keep = c.has("keepdim") && c.bool("keepdim")?;
    if !c.has("dim") {
        return Ok((all, keep));
    }
    let given = c.opt_ints("dim")?.unwrap_or_default();
    let dims = given.iter().map(|&d| wrap_dim(d, rank)).collect::<Result<Vec<_>, _>>()?;
    Ok((if dims.is_empty() { all } else { dims }, keep))
}

type Reduction = fn(&mut Cx, ValueId, &[usize], bool, Option<DType>) -> Built;

/// A linear reduction, on both parts of complex numbers alike.
fn parts(cx: &mut Cx, c: &Call<'_>, f: Reduction) -> Vals {
    let (dims, keep) = dims_of(cx, c)?;
    let asked = if c.has("dtype") { c.dtype("dtype")? } else { None };
    let mut v = c.value(cx, c.first())?;
    if let Some(to) = asked.filter(|t| t.is_complex()) {
        v = complex::convert(cx, &v, to)?;
    }
    let dtype = asked.map(ir_dtype).transpose()?;
    if matches!(v, Val::Complex { .. }) && c.target.contains("prod") {
        return Err(unsupported_dtype("a product of complex numbers is not supported"));
    }
    Ok(vec![cx.each(&v, |cx, x| f(cx, x, &dims, keep, dtype))?])
}

/// Result type of a sum or product: integers and bools accumulate in i64.
fn accumulator(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

fn accumulate(cx: &mut Cx, x: ValueId, combine: Combine, dims: &[usize], keep: bool, dtype: Option<DType>) -> Built {
    let dtype = dtype.unwrap_or_else(|| accumulator(cx.tensor_dtype(x)));
    let x = cx.cast(x, dtype)?;
    cx.reduce(x, combine, dims, keep, dtype)
}

/// Σx; integers in i64 unless another type is asked for.
pub(super) fn sum(cx: &mut Cx, x: ValueId, dims: &[usize], keep: bool, dtype: Option<DType>) -> Built {
    accumulate(cx, x, Combine::Sum, dims, keep, dtype)
}

/// Number of elements that a reduction combines.
fn count(cx: &Cx, x: ValueId, dims: &[usize]) -> Dim {
    let shape = &cx.ty(x).shape;
    dims.iter().filter_map(|&d| shape.get(d)).fold(Dim::from(1), |n, d| &n * d)
}

/// Mean. Half types sum in f32, and the sum may exceed them, so the division happens before the result is stored.
pub(super) fn mean(cx: &mut Cx, x: ValueId, dims: &[usize], keep: bool, dtype: Option<DType>) -> Built {
    let out = dtype.unwrap_or_else(|| to_float(cx.tensor_dtype(x)));
    let wide = if out == DType::F64 { DType::F64 } else { DType::F32 };
    let n = count(cx, x, dims);
    let wide_x = cx.cast(x, wide)?;
    let total = cx.reduce(wide_x, Combine::Sum, dims, keep, wide)?;
    cx.map_n(&[total], out, |b, a| {
        let n = b.dim(&n);
        let n = b.cast(wide.ty(), n);
        let q = b.div(a[0], n);
        b.cast(out.ty(), q)
    })
}

fn without_nan(cx: &mut Cx, x: ValueId) -> Built {
    cx.map1(x, |b, x| {
        if !b.ty(x).is_float() {
            return x;
        }
        let (nan, zero) = (b.un(Unary::IsNan, x), b.like(x, 0.0));
        b.select(nan, zero, x)
    })
}

fn nanmean(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let (dims, keep) = dims_of(cx, c)?;
    let dtype = cx.tensor_dtype(x);
    let clean = without_nan(cx, x)?;
    let total = sum(cx, clean, &dims, keep, None)?;
    let present = cx.map_n(&[x], dtype, |b, a| {
        let nan = b.un(Unary::IsNan, a[0]);
        let not = b.not(nan);
        b.cast(dtype.ty(), not)
    })?;
    let n = sum(cx, present, &dims, keep, None)?;
    Ok(vec![cx.map2(total, n, dtype, |b, s, n| b.div(s, n))?.into()])
}

fn extreme(cx: &mut Cx, c: &Call<'_>, combine: Combine) -> Vals {
    let x = c.tensor(cx, "self")?;
    let (dims, keep) = dims_of(cx, c)?;
    Ok(vec![minmax(cx, x, combine, &dims, keep)?.into()])
}

/// Maximum or minimum; of bools or / and.
fn minmax(cx: &mut Cx, x: ValueId, combine: Combine, dims: &[usize], keep: bool) -> Built {
    let dtype = cx.tensor_dtype(x);
    let combine = match (dtype, combine) {
        (DType::Bool, Combine::Max) => Combine::Any,
        (DType::Bool, Combine::Min) => Combine::All,
        (_, other) => other,
    };
    cx.reduce(x, combine, dims, keep, dtype)
}

fn aminmax(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let (dims, keep) = dims_of(cx, c)?;
    Ok(vec![minmax(cx, x, Combine::Min, &dims, keep)?.into(), minmax(cx, x, Combine::Max, &dims, keep)?.into()])
}

/// Positions of extrema: bools are ordered as 0 and 1.
fn arg(cx: &mut Cx, x: ValueId, combine: Combine, dim: usize, keep: bool) -> Built {
    let x = if cx.tensor_dtype(x) == DType::Bool { cx.cast(x, DType::U8)? } else { x };
    cx.reduce(x, combine, &[dim], keep, DType::I64)
}

fn with_index(cx: &mut Cx, c: &Call<'_>, value: Combine, index: Combine) -> Vals {
    let x = c.tensor(cx, "self")?;
    let dim = c.dim_index("dim", cx.rank(x))?;
    let keep = c.bool("keepdim")?;
    Ok(vec![minmax(cx, x, value, &[dim], keep)?.into(), arg(cx, x, index, dim, keep)?.into()])
}

fn position(cx: &mut Cx, c: &Call<'_>, combine: Combine) -> Vals {
    let x = c.tensor(cx, "self")?;
    let (rank, keep) = (cx.rank(x), c.bool("keepdim")?);
    if let Some(d) = c.opt_int("dim")? {
        let dim = wrap_dim(d, rank)?;
        return Ok(vec![arg(cx, x, combine, dim, keep)?.into()]);
    }
    let n = cx.ty(x).n_elems();
    let flat = cx.reshape(x, vec![n])?;
    let at = arg(cx, flat, combine, 0, false)?;
    let shape = if keep { vec![Dim::from(1); rank] } else { vec![] };
    Ok(vec![cx.reshape(at, shape)?.into()])
}

/// Whether elements are not zero.
fn nonzero(cx: &mut Cx, v: &Val) -> Built {
    let one = |cx: &mut Cx, x| {
        cx.map_n(&[x], DType::Bool, |b, a| {
            let zero = b.like(a[0], 0.0);
            b.ne(a[0], zero)
        })
    };
    match v {
        Val::Tensor(x) => one(cx, *x),
        Val::Complex { re, im } => {
            let (p, q) = (one(cx, *re)?, one(cx, *im)?);
            cx.map2(p, q, DType::Bool, |b, p, q| b.or(p, q))
        }
        _ => Err(bad_argument("a number where a tensor is needed")),
    }
}

/// PyTorch gives u8 for u8 and bool for every other type.
fn truth(cx: &mut Cx, c: &Call<'_>, combine: Combine) -> Vals {
    let v = c.value(cx, "self")?;
    let (dims, keep) = dims_of(cx, c)?;
    let bools = nonzero(cx, &v)?;
    let out = cx.reduce(bools, combine, &dims, keep, DType::Bool)?;
    let u8_in = matches!(v, Val::Tensor(x) if cx.tensor_dtype(x) == DType::U8);
    Ok(vec![if u8_in { cx.cast(out, DType::U8)? } else { out }.into()])
}

fn count_nonzero(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.value(cx, "self")?;
    let (dims, _) = dims_of(cx, c)?;
    let bools = nonzero(cx, &v)?;
    Ok(vec![sum(cx, bools, &dims, false, Some(DType::I64))?.into()])
}

/// Variance or deviation, and mean.
fn spread(cx: &mut Cx, c: &Call<'_>, root: bool) -> Result<(ValueId, Val), Diagnostic> {
    let (dims, keep) = dims_of(cx, c)?;
    let correction = if c.has("correction") {
        c.opt_float("correction")?.unwrap_or(1.0)
    } else if c.has("unbiased") {
        f64::from(u8::from(c.bool("unbiased")?))
    } else {
        1.0
    };
    let (x, im) = match c.value(cx, c.first())? {
        Val::Tensor(x) => (x, None),
        Val::Complex { re, im } => (re, Some(im)),
        _ => return Err(bad_argument("variance of a number")),
    };
    let dtype = cx.tensor_dtype(x);
    let mut variance = variance_of(cx, x, &dims, correction)?;
    if let Some(im) = im {
        let other = variance_of(cx, im, &dims, correction)?;
        variance = cx.add_values(variance, other)?;
    }
    let variance = if root { cx.map1(variance, |b, v| b.un(Unary::Sqrt, v))? } else { variance };
    let variance = cx.cast(variance, dtype)?;
    let rank = cx.rank(x);
    let dropped: Vec<usize> = dims.iter().copied().filter(|&d| d < rank).collect();
    let variance = match (keep, rank) {
        (_, 0) => cx.reshape(variance, vec![])?,
        (true, _) => variance,
        (false, _) => cx.drop_dims(variance, &dropped)?,
    };
    let re = mean(cx, x, &dims, keep, None)?;
    Ok((
        variance,
        match im {
            Some(im) => Val::Complex { re, im: mean(cx, im, &dims, keep, None)? },
            None => re.into(),
        },
    ))
}

/// With the dimensions kept. Of halves it is f32: the square of a deviation that a half can hold may be beyond its range.
fn variance_of(cx: &mut Cx, x: ValueId, dims: &[usize], correction: f64) -> Built {
    let x = if cx.tensor_dtype(x) == DType::F64 { x } else { cx.cast(x, DType::F32)? };
    let mut dims = dims.to_vec();
    dims.sort_unstable();
    let (x, dims) = if cx.rank(x) == 0 { (cx.reshape(x, vec![Dim::from(1)])?, vec![0]) } else { (x, dims) };
    cx.add1(Op::Variance { dims, correction }, vec![x])
}

fn logsumexp(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let (dims, keep) = dims_of(cx, c)?;
    let dtype = to_float(cx.tensor_dtype(x));
    let x = cx.cast(x, dtype)?;
    Ok(vec![log_sum_exp(cx, x, &dims, keep)?.into()])
}

/// ln Σeˣ, with the maximum taken out (0 where it is infinite).
pub(super) fn log_sum_exp(cx: &mut Cx, x: ValueId, dims: &[usize], keep: bool) -> Built {
    let dtype = cx.tensor_dtype(x);
    let x = if cx.rank(x) == 0 { return Ok(x) } else { x };
    let peak = cx.reduce(x, Combine::Max, dims, true, dtype)?;
    let peak = cx.map1(peak, |b, m| {
        let (inf, zero) = (b.un(Unary::IsInf, m), b.like(m, 0.0));
        b.select(inf, zero, m)
    })?;
    let e = cx.map2(x, peak, dtype, |b, x, m| {
        let d = b.sub(x, m);
        b.un(Unary::Exp, d)
    })?;
    let total = cx.reduce(e, Combine::Sum, dims, true, dtype)?;
    let out = cx.map2(total, peak, dtype, |b, s, m| {
        let log = b.un(Unary::Log, s);
        b.add(log, m)
    })?;
    let sorted: Vec<usize> = dims.to_vec();
    if keep { Ok(out) } else { cx.drop_dims(out, &sorted) }
}

/// |x| of real or complex numbers.
pub(super) fn magnitude(cx: &mut Cx, v: &Val) -> Built {
    match v {
        Val::Tensor(x) => cx.map1(*x, |b, x| if b.ty(x).is_float() { b.un(Unary::Abs, x) } else { x }),
        Val::Complex { re, im } => complex::abs(cx, *re, *im),
        _ => Err(bad_argument("norm of a number")),
    }
}

/// (Σ|x|ᵖ)^(1/p), with p = ±∞ the extremes of |x| and p = 0 the number of elements that are not 0.
pub(super) fn p_norm(cx: &mut Cx, x: ValueId, p: f64, dims: &[usize], keep: bool) -> Built {
    let dtype = cx.tensor_dtype(x);
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let x = cx.cast(x, wide)?;
    let out = match p {
        f64::INFINITY => cx.reduce(x, Combine::Max, dims, keep, wide)?,
        f64::NEG_INFINITY => cx.reduce(x, Combine::Min, dims, keep, wide)?,
        0.0 => {
            let set = cx.map1(x, |b, x| {
                let (zero, one) = (b.like(x, 0.0), b.like(x, 1.0));
                let is_zero = b.eq(x, zero);
                b.select(is_zero, zero, one)
            })?;
            cx.reduce(set, Combine::Sum, dims, keep, wide)?
        }
        _ => {
            let powers = cx.map1(x, |b, x| match p {
                1.0 => x,
                2.0 => b.mul(x, x),
                _ => {
                    let p = b.like(x, p);
                    b.pow(x, p)
                }
            })?;
            let total = cx.reduce(powers, Combine::Sum, dims, keep, wide)?;
            cx.map1(total, |b, s| match p {
                1.0 => s,
                2.0 => b.un(Unary::Sqrt, s),
                _ => {
                    let inverse = b.like(s, 1.0 / p);
                    b.pow(s, inverse)
                }
            })?
        }
    };
    cx.cast(out, dtype)
}

fn vector_norm(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.value(cx, c.first())?;
    let (dims, keep) = dims_of(cx, c)?;
    let p = match ["ord", "p"].into_iter().find(|n| c.has(n)) {
        Some(name) => c.opt_float(name)?.unwrap_or(2.0),
        None => 2.0,
    };
    if c.target == "aten.linalg_norm.default" && !matches!(c.given("ord"), None | Some(Arg::None)) && dims.len() == 2 {
        return matrix_norm_over(cx, c, p, &dims, keep);
    }
    let asked = if c.has("dtype") { c.dtype("dtype")? } else { None };
    let v = match asked {
        Some(to) => complex::convert(cx, &v, to)?,
        None => v,
    };
    let x = magnitude(cx, &v)?;
    let x = {
        let dtype = to_float(cx.tensor_dtype(x));
        cx.cast(x, dtype)?
    };
    Ok(vec![p_norm(cx, x, p, &dims, keep)?.into()])
}

/// Frobenius only; the others need singular values.
fn matrix_norm(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let fro = c.str("ord")? == "fro";
    c.require("matrix-order", "ord", fro, "fro")?;
    let v = c.value(cx, c.first())?;
    let rank = c.rank(cx)?;
    let dims = if c.opt_dims("dim")?.is_some() { c.dim_indices("dim", rank)? } else { (0..rank).collect() };
    let x = magnitude(cx, &v)?;
    Ok(vec![p_norm(cx, x, 2.0, &dims, c.bool("keepdim")?)?.into()])
}

/// The largest (or smallest) sum of magnitudes of a column (±1) or row (±∞).
fn matrix_norm_of_order(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dims = c.dim_indices("dim", rank)?;
    matrix_norm_over(cx, c, c.float("ord")?, &dims, c.bool("keepdim")?)
}

/// The largest (or smallest) sum of a column's sizes, or with an infinite order of a row's.
fn matrix_norm_over(cx: &mut Cx, c: &Call<'_>, ord: f64, dims: &[usize], keep: bool) -> Vals {
    let fits = ord.abs() == 1.0 || ord.is_infinite();
    c.require("matrix-order", "ord", fits, "±1 and ±inf: there are no singular values")?;
    let v = c.value(cx, c.first())?;
    let [rows, cols] = dims[..] else { return Err(bad_argument("a matrix norm over other than two dimensions")) };
    let (summed, picked) = if ord.is_infinite() { (cols, rows) } else { (rows, cols) };
    let x = magnitude(cx, &v)?;
    let dtype = cx.tensor_dtype(x);
    let sums = cx.reduce(x, Combine::Sum, &[summed], true, dtype)?;
    let combine = if ord > 0.0 { Combine::Max } else { Combine::Min };
    let out = cx.reduce(sums, combine, &[picked], true, dtype)?;
    Ok(vec![if keep { out } else { cx.drop_dims(out, dims)? }.into()])
}

fn dist(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (a, b) = (c.tensor(cx, "self")?, c.tensor(cx, "other")?);
    let p = c.float("p")?;
    let dtype = cx.tensor_dtype(a);
    let gap = cx.map2(a, b, dtype, |b, x, y| {
        let d = b.sub(x, y);
        b.un(Unary::Abs, d)
    })?;
    let dims: Vec<usize> = (0..cx.rank(gap)).collect();
    Ok(vec![p_norm(cx, gap, p, &dims, false)?.into()])
}

/// The inverse of a broadcast: sums over what it repeated.
fn sum_to_size(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.value(cx, "self")?;
    let size = c.dims("size")?;
    Ok(vec![cx.each(&v, |cx, x| {
        let shape = cx.shape(x);
        let Some(lead) = shape.len().checked_sub(size.len()) else {
            return Err(bad_argument("sum_to_size of more dimensions"));
        };
        let repeated = |d: usize| d < lead || (size[d - lead].is(1) && !shape[d].is(1));
        let dims: Vec<usize> = (0..shape.len()).filter(|&d| repeated(d)).collect();
        if dims.is_empty() && lead > 0 || cx.tensor_dtype(x).is_float() && dims.is_empty() {
            return Ok(x);
        }
        let total = sum(cx, x, &dims, true, None)?;
        cx.reshape(total, size.clone())
    })?])
}
