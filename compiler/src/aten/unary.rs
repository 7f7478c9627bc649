//! Elementwise operators of one tensor: one row each.

use super::args::Call;
use super::body::BodyBuilder;
use super::complex;
use super::complex_functions as functions;
use super::cx::Cx;
use super::promote::{pointwise, to_float};
use super::{AtenOp, Val, bad_argument};
use crate::ir::DType;
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};
use std::f64::consts::{LN_2, LN_10, PI};

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &["aten.acos.default", "aten.arccos.default"],
        rule: |cx, c| function(cx, c, functions::acos, Unary::Acos),
    },
    AtenOp {
        names: &["aten.acosh.default", "aten.arccosh.default"],
        rule: |cx, c| function(cx, c, functions::acosh, Unary::Acosh),
    },
    AtenOp {
        names: &["aten.asin.default", "aten.arcsin.default"],
        rule: |cx, c| function(cx, c, functions::asin, Unary::Asin),
    },
    AtenOp {
        names: &["aten.asinh.default", "aten.arcsinh.default"],
        rule: |cx, c| function(cx, c, functions::asinh, Unary::Asinh),
    },
    AtenOp {
        names: &["aten.atan.default", "aten.arctan.default"],
        rule: |cx, c| function(cx, c, functions::atan, Unary::Atan),
    },
    AtenOp {
        names: &["aten.atanh.default", "aten.arctanh.default"],
        rule: |cx, c| function(cx, c, functions::atanh, Unary::Atanh),
    },
    AtenOp { names: &["aten.cosh.default"], rule: |cx, c| function(cx, c, functions::cosh, Unary::Cosh) },
    AtenOp { names: &["aten.sinh.default"], rule: |cx, c| function(cx, c, functions::sinh, Unary::Sinh) },
    AtenOp { names: &["aten.tan.default"], rule: |cx, c| function(cx, c, functions::tan, Unary::Tan) },
    AtenOp { names: &["aten.erf.default", "aten.special_erf.default"], rule: |cx, c| float(cx, c, Unary::Erf) },
    AtenOp {
        names: &["aten.exp2.default", "aten.special_exp2.default"],
        rule: |cx, c| function(cx, c, functions::exp2, Unary::Exp2),
    },
    AtenOp {
        names: &["aten.expm1.default", "aten.special_expm1.default"],
        rule: |cx, c| function(cx, c, functions::expm1, Unary::Expm1),
    },
    AtenOp {
        names: &["aten.log1p.default", "aten.special_log1p.default"],
        rule: |cx, c| function(cx, c, functions::log1p, Unary::Log1p),
    },
    AtenOp { names: &["aten.log2.default"], rule: |cx, c| function(cx, c, functions::log2, Unary::Log2) },
    AtenOp {
        names: &["aten.lgamma.default", "aten.special_gammaln.default"],
        rule: |cx, c| float(cx, c, Unary::Lgamma),
    },
    AtenOp { names: &["aten.rsqrt.default"], rule: |cx, c| function(cx, c, functions::rsqrt, Unary::Rsqrt) },
    AtenOp { names: &["aten.sin.default"], rule: |cx, c| float_or(cx, c, complex::sin, |b, x| b.un(Unary::Sin, x)) },
    AtenOp { names: &["aten.cos.default"], rule: |cx, c| float_or(cx, c, complex::cos, |b, x| b.un(Unary::Cos, x)) },
    AtenOp { names: &["aten.tanh.default"], rule: |cx, c| float_or(cx, c, complex::tanh, |b, x| b.un(Unary::Tanh, x)) },
    AtenOp { names: &["aten.exp.default"], rule: |cx, c| float_or(cx, c, complex::exp, |b, x| b.un(Unary::Exp, x)) },
    AtenOp { names: &["aten.log.default"], rule: |cx, c| float_or(cx, c, complex::log, |b, x| b.un(Unary::Log, x)) },
    AtenOp { names: &["aten.sqrt.default"], rule: |cx, c| float_or(cx, c, complex::sqrt, |b, x| b.un(Unary::Sqrt, x)) },
    AtenOp { names: &["aten.reciprocal.default"], rule: |cx, c| float_or(cx, c, complex::reciprocal, reciprocal) },
    AtenOp {
        names: &["aten.sigmoid.default", "aten.special_expit.default"],
        rule: |cx, c| float_or(cx, c, complex::sigmoid, sigmoid),
    },
    AtenOp {
        names: &["aten.log10.default"],
        rule: |cx, c| {
            float_or(cx, c, functions::log10, |b, x| {
                let y = b.un(Unary::Log, x);
                times(b, y, 1.0 / LN_10)
            })
        },
    },
    AtenOp { names: &["aten.deg2rad.default"], rule: |cx, c| float1(cx, c, |b, x| times(b, x, PI / 180.0)) },
    AtenOp { names: &["aten.rad2deg.default"], rule: |cx, c| float1(cx, c, |b, x| times(b, x, 180.0 / PI)) },
    AtenOp {
        names: &["aten.frac.default"],
        rule: |cx, c| {
            float1(cx, c, |b, x| {
                let t = b.un(Unary::Trunc, x);
                b.sub(x, t)
            })
        },
    },
    AtenOp {
        names: &["aten.sinc.default", "aten.special_sinc.default"],
        rule: |cx, c| float_or(cx, c, functions::sinc, sinc),
    },
    AtenOp { names: &["aten.logit.default", "aten.special_logit.default"], rule: logit },
    AtenOp { names: &["aten.special_entr.default"], rule: |cx, c| float1(cx, c, entr) },
    AtenOp { names: &["aten.floor.default"], rule: |cx, c| rounding(cx, c, Unary::Floor) },
    AtenOp { names: &["aten.ceil.default"], rule: |cx, c| rounding(cx, c, Unary::Ceil) },
    AtenOp { names: &["aten.trunc.default", "aten.fix.default"], rule: |cx, c| rounding(cx, c, Unary::Trunc) },
    AtenOp {
        names: &["aten.round.default", "aten.special_round.default"],
        rule: |cx, c| rounding(cx, c, Unary::Round),
    },
    AtenOp { names: &["aten.round.decimals"], rule: round_decimals },
    AtenOp { names: &["aten.neg.default", "aten.negative.default"], rule: |cx, c| parts(cx, c, |b, x| b.neg(x)) },
    AtenOp { names: &["aten.square.default"], rule: square },
    AtenOp { names: &["aten.sign.default"], rule: |cx, c| same(cx, c, sign) },
    AtenOp { names: &["aten.sgn.default"], rule: |cx, c| same_or(cx, c, complex::sgn, sign) },
    AtenOp { names: &["aten.bitwise_not.default"], rule: |cx, c| same(cx, c, |b, x| b.not(x)) },
    AtenOp { names: &["aten.abs.default", "aten.absolute.default"], rule: abs },
    AtenOp {
        names: &["aten.logical_not.default"],
        rule: |cx, c| {
            test(cx, c, |b, x| {
                let zero = b.like(x, 0.0);
                b.eq(x, zero)
            })
        },
    },
    AtenOp { names: &["aten.isnan.default"], rule: |cx, c| test(cx, c, is_nan) },
    AtenOp { names: &["aten.isinf.default"], rule: |cx, c| test(cx, c, is_inf) },
    AtenOp {
        names: &["aten.isfinite.default"],
        rule: |cx, c| {
            test(cx, c, |b, x| {
                let (nan, inf) = (is_nan(b, x), is_inf(b, x));
                let either = b.or(nan, inf);
                b.not(either)
            })
        },
    },
    AtenOp { names: &["aten.isposinf.default"], rule: |cx, c| test(cx, c, |b, x| signed_inf(b, x, f64::INFINITY)) },
    AtenOp { names: &["aten.isneginf.default"], rule: |cx, c| test(cx, c, |b, x| signed_inf(b, x, f64::NEG_INFINITY)) },
    AtenOp { names: &["aten.isreal.default"], rule: |cx, c| test(cx, c, |b, _| b.lit(Ty::Bool, 1.0)) },
    AtenOp { names: &["aten.signbit.default"], rule: |cx, c| test(cx, c, sign_bit) },
    AtenOp { names: &["aten.nan_to_num.default"], rule: nan_to_num },
];

fn function(cx: &mut Cx, c: &Call<'_>, complex: complex::Unary, op: Unary) -> Vals {
    float_or(cx, c, complex, |b, x| b.un(op, x))
}

/// As a power: of bools it is an integer.
fn square(cx: &mut Cx, c: &Call<'_>) -> Vals {
    match c.value(cx, "self")? {
        Val::Complex { re, im } => Ok(vec![complex::square(cx, re, im)?]),
        Val::Tensor(x) if cx.tensor_dtype(x) == DType::Bool => Ok(vec![cx.cast(x, DType::I64)?.into()]),
        _ => same(cx, c, |b, x| b.mul(x, x)),
    }
}

fn float(cx: &mut Cx, c: &Call<'_>, op: Unary) -> Vals {
    float1(cx, c, |b, x| b.un(op, x))
}

/// An operator on floats; integers become f32.
pub(super) fn float1(cx: &mut Cx, c: &Call<'_>, f: impl FnOnce(&mut BodyBuilder, ExprId) -> ExprId) -> Vals {
    let x = c.tensor(cx, c.first())?;
    let dtype = to_float(cx.tensor_dtype(x));
    Ok(vec![pointwise(cx, &[x.into()], dtype, dtype, |b, a| f(b, a[0]))?.into()])
}

/// As [`float1`], with another rule for complex tensors.
pub(super) fn float_or(
    cx: &mut Cx,
    c: &Call<'_>,
    complex: complex::Unary,
    f: impl FnOnce(&mut BodyBuilder, ExprId) -> ExprId,
) -> Vals {
    match c.value(cx, c.first())? {
        Val::Complex { re, im } => Ok(vec![complex(cx, re, im)?]),
        _ => float1(cx, c, f),
    }
}

/// An operator that keeps the element type.
pub(super) fn same(cx: &mut Cx, c: &Call<'_>, f: impl FnOnce(&mut BodyBuilder, ExprId) -> ExprId) -> Vals {
    let x = c.tensor(cx, c.first())?;
    Ok(vec![cx.map1(x, f)?.into()])
}

fn same_or(
    cx: &mut Cx,
    c: &Call<'_>,
    complex: complex::Unary,
    f: impl FnOnce(&mut BodyBuilder, ExprId) -> ExprId,
) -> Vals {
    match c.value(cx, c.first())? {
        Val::Complex { re, im } => Ok(vec![complex(cx, re, im)?]),
        _ => same(cx, c, f),
    }
}

/// An operator that acts on both parts of complex numbers alike.
fn parts(cx: &mut Cx, c: &Call<'_>, f: impl Fn(&mut BodyBuilder, ExprId) -> ExprId) -> Vals {
    let v = c.value(cx, c.first())?;
    Ok(vec![cx.each(&v, |cx, x| cx.map1(x, &f))?])
}

/// A question about each element.
fn test(cx: &mut Cx, c: &Call<'_>, f: impl Fn(&mut BodyBuilder, ExprId) -> ExprId) -> Vals {
    match c.value(cx, c.first())? {
        Val::Tensor(x) => Ok(vec![cx.map_n(&[x], DType::Bool, |b, a| f(b, a[0]))?.into()]),
        Val::Complex { re, im } => complex::test(cx, c.target, re, im, f),
        _ => Err(bad_argument(format!("{} of a number", c.target))),
    }
}

fn rounding(cx: &mut Cx, c: &Call<'_>, op: Unary) -> Vals {
    same(cx, c, |b, x| if b.ty(x).is_float() { b.un(op, x) } else { x })
}

fn round_decimals(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let ten = 10f64.powi(c.int("decimals")?.unsigned_abs().min(300) as i32);
    let up = c.int("decimals")? >= 0;
    same(cx, c, |b, x| {
        if !b.ty(x).is_float() {
            return x;
        }
        let t = b.like(x, ten);
        let scaled = if up { b.mul(x, t) } else { b.div(x, t) };
        let r = b.un(Unary::Round, scaled);
        if up { b.div(r, t) } else { b.mul(r, t) }
    })
}

fn abs(cx: &mut Cx, c: &Call<'_>) -> Vals {
    match c.value(cx, c.first())? {
        Val::Complex { re, im } => Ok(vec![complex::abs(cx, re, im)?.into()]),
        _ => same(cx, c, |b, x| if b.ty(x) == Ty::Bool { x } else { b.un(Unary::Abs, x) }),
    }
}

/// x multiplied by a literal.
pub(super) fn times(b: &mut BodyBuilder, x: ExprId, by: f64) -> ExprId {
    let k = b.like(x, by);
    b.mul(x, k)
}

fn reciprocal(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let one = b.like(x, 1.0);
    b.div(one, x)
}

/// 1 / (1 + e⁻ˣ).
pub(super) fn sigmoid(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let n = b.neg(x);
    let (e, one) = (b.un(Unary::Exp, n), b.like(x, 1.0));
    let d = b.add(one, e);
    b.div(one, d)
}

fn sign(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    if b.ty(x) == Ty::Bool {
        return x;
    }
    let (zero, one, minus) = (b.like(x, 0.0), b.like(x, 1.0), b.like(x, -1.0));
    let (pos, neg) = (b.lt(zero, x), b.lt(x, zero));
    let below = b.select(neg, minus, zero);
    b.select(pos, one, below)
}

/// Is NaN; integers never are.
pub(super) fn is_nan(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    if b.ty(x).is_float() { b.un(Unary::IsNan, x) } else { b.lit(Ty::Bool, 0.0) }
}

fn is_inf(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    if b.ty(x).is_float() { b.un(Unary::IsInf, x) } else { b.lit(Ty::Bool, 0.0) }
}

fn signed_inf(b: &mut BodyBuilder, x: ExprId, inf: f64) -> ExprId {
    if !b.ty(x).is_float() {
        return b.lit(Ty::Bool, 0.0);
    }
    let inf = b.like(x, inf);
    b.eq(x, inf)
}

/// Negative, or −0. The sign of a NaN is not told.
pub(super) fn sign_bit(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    if b.ty(x) == Ty::Bool {
        return b.lit(Ty::Bool, 0.0);
    }
    let zero = b.like(x, 0.0);
    let negative = b.lt(x, zero);
    if !b.ty(x).is_float() {
        return negative;
    }
    let inverse = reciprocal(b, x);
    let (is_zero, below) = (b.eq(x, zero), b.lt(inverse, zero));
    let minus_zero = b.and(is_zero, below);
    b.or(negative, minus_zero)
}

fn sinc(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let (zero, one) = (b.like(x, 0.0), b.like(x, 1.0));
    let t = times(b, x, PI);
    let s = b.un(Unary::Sin, t);
    let (q, at_zero) = (b.div(s, t), b.eq(x, zero));
    b.select(at_zero, one, q)
}

/// −x·ln x, 0 at 0, −∞ below.
fn entr(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let (zero, low) = (b.like(x, 0.0), b.like(x, f64::NEG_INFINITY));
    let log = b.un(Unary::Log, x);
    let product = b.mul(x, log);
    let value = b.neg(product);
    let (is_zero, below) = (b.eq(x, zero), b.lt(x, zero));
    let value = b.select(is_zero, zero, value);
    b.select(below, low, value)
}

fn logit(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let eps = c.opt_float("eps")?;
    float1(cx, c, |b, x| {
        let one = b.like(x, 1.0);
        let x = match eps {
            Some(eps) => {
                let (low, high) = (b.like(x, eps), b.like(x, 1.0 - eps));
                let x = b.max(x, low);
                b.min(x, high)
            }
            None => x,
        };
        let rest = b.sub(one, x);
        let odds = b.div(x, rest);
        b.un(Unary::Log, odds)
    })
}

fn nan_to_num(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (nan, pos, neg) = (c.opt_float("nan")?, c.opt_float("posinf")?, c.opt_float("neginf")?);
    let v = c.value(cx, "self")?;
    let largest = |d: DType| match d {
        DType::F16 => 65504.0,
        DType::BF16 => 3.3895313892515355e38,
        DType::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    };
    let out = cx.each(&v, |cx, x| {
        let max = largest(cx.tensor_dtype(x));
        cx.map1(x, |b, x| {
            if !b.ty(x).is_float() {
                return x;
            }
            let cases = [
                (is_nan(b, x), nan.unwrap_or(0.0)),
                (signed_inf(b, x, f64::INFINITY), pos.unwrap_or(max)),
                (signed_inf(b, x, f64::NEG_INFINITY), neg.unwrap_or(-max)),
            ];
            cases.into_iter().fold(x, |acc, (cond, v)| {
                let v = b.like(x, v);
                b.select(cond, v, acc)
            })
        })
    })?;
    Ok(vec![out])
}

/// Value of a polynomial, highest coefficient first.
pub(super) fn polynomial(b: &mut BodyBuilder, x: ExprId, coefficients: &[f64]) -> ExprId {
    let mut acc = b.like(x, coefficients[0]);
    for &c in &coefficients[1..] {
        let c = b.like(x, c);
        let p = b.mul(acc, x);
        acc = b.add(p, c);
    }
    acc
}

/// ln 2 in the type of `x`.
pub(super) fn ln2(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    b.like(x, LN_2)
}
