//! Elementary functions of complex numbers beyond those of `complex.rs`: hyperbolic ones, logarithms to other bases, and the inverse
//! functions by Kahan's formulas, which keep their digits near branch points.

use super::Val;
use super::body::BodyBuilder;
use super::complex::{self, Arithmetic, arithmetic, exp, hypot, log, sqrt};
use super::cx::Cx;
use crate::ir::ValueId;
use crate::report::Diagnostic;
use jvc_kernels::expr::{Binary, ExprId, Unary};
use std::f64::consts::{LN_2, LN_10, PI};

type Got = Result<Val, Diagnostic>;

fn both(
    cx: &mut Cx,
    re: ValueId,
    im: ValueId,
    f: impl Fn(&mut BodyBuilder, ExprId, ExprId) -> (ExprId, ExprId),
) -> Got {
    let dtype = cx.tensor_dtype(re);
    Ok(Val::Complex {
        re: cx.map2(re, im, dtype, |b, x, y| f(b, x, y).0)?,
        im: cx.map2(re, im, dtype, |b, x, y| f(b, x, y).1)?,
    })
}

fn parts(v: Val) -> (ValueId, ValueId) {
    let Val::Complex { re, im } = v else { unreachable!("functions of complex numbers give complex numbers") };
    (re, im)
}

fn scaled(cx: &mut Cx, v: Val, by: f64) -> Got {
    cx.each(&v, |cx, x| cx.scale(x, by))
}

/// sinh z.
pub(super) fn sinh(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    both(cx, re, im, |b, x, y| {
        let (sh, ch, s, c) = (b.un(Unary::Sinh, x), b.un(Unary::Cosh, x), b.un(Unary::Sin, y), b.un(Unary::Cos, y));
        (b.mul(sh, c), b.mul(ch, s))
    })
}

/// cosh z.
pub(super) fn cosh(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    both(cx, re, im, |b, x, y| {
        let (sh, ch, s, c) = (b.un(Unary::Sinh, x), b.un(Unary::Cosh, x), b.un(Unary::Sin, y), b.un(Unary::Cos, y));
        (b.mul(ch, c), b.mul(sh, s))
    })
}

/// −i·f(i·z).
fn turned(cx: &mut Cx, re: ValueId, im: ValueId, f: complex::Unary) -> Got {
    let minus = cx.scale(im, -1.0)?;
    let (p, q) = parts(f(cx, minus, re)?);
    Ok(Val::Complex { re: q, im: cx.scale(p, -1.0)? })
}

/// tan z.
pub(super) fn tan(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    turned(cx, re, im, complex::tanh)
}

/// 2ᶻ.
pub(super) fn exp2(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    let (re, im) = (cx.scale(re, LN_2)?, cx.scale(im, LN_2)?);
    exp(cx, re, im)
}

/// eᶻ − 1: the real part is expm1(x)·cos y − 2·sin²(y/2).
pub(super) fn expm1(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    both(cx, re, im, |b, x, y| {
        let (half, two) = (b.like(y, 0.5), b.like(y, 2.0));
        let part = b.mul(y, half);
        let s = b.un(Unary::Sin, part);
        let square = b.mul(s, s);
        let twice = b.mul(square, two);
        let (grow, c) = (b.un(Unary::Expm1, x), b.un(Unary::Cos, y));
        let main = b.mul(grow, c);
        let (e, sin) = (b.un(Unary::Exp, x), b.un(Unary::Sin, y));
        (b.sub(main, twice), b.mul(e, sin))
    })
}

/// log₁₀ z.
pub(super) fn log10(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    let v = log(cx, re, im)?;
    scaled(cx, v, 1.0 / LN_10)
}

/// log₂ z.
pub(super) fn log2(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    let v = log(cx, re, im)?;
    scaled(cx, v, 1.0 / LN_2)
}

/// ln(1 + z): near 0 the real part is log1p(x(2 + x) + y²) / 2.
pub(super) fn log1p(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    both(cx, re, im, |b, x, y| {
        let (half, one, two) = (b.like(x, 0.5), b.like(x, 1.0), b.like(x, 2.0));
        let shifted = b.add(x, one);
        let (far, near) = (hypot(b, shifted, y), hypot(b, x, y));
        let far = b.un(Unary::Log, far);
        let sum = b.add(two, x);
        let (p, q) = (b.mul(x, sum), b.mul(y, y));
        let inner = b.add(p, q);
        let inner = b.un(Unary::Log1p, inner);
        let close = b.mul(inner, half);
        let is_near = b.lt(near, half);
        (b.select(is_near, close, far), b.bin(Binary::Atan2, y, shifted))
    })
}

/// 1 / √z.
pub(super) fn rsqrt(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    let root = sqrt(cx, re, im)?;
    arithmetic(cx, Arithmetic::Div, &Val::Float(1.0), &root)
}

/// z / (1 + e⁻ᶻ).
pub(super) fn silu(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    let s = complex::sigmoid(cx, re, im)?;
    arithmetic(cx, Arithmetic::Mul, &Val::Complex { re, im }, &s)
}

/// sin πz / πz, 1 at 0.
pub(super) fn sinc(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    let (pr, pi) = (cx.scale(re, PI)?, cx.scale(im, PI)?);
    let s = complex::sin(cx, pr, pi)?;
    let (qr, qi) = parts(arithmetic(cx, Arithmetic::Div, &s, &Val::Complex { re: pr, im: pi })?);
    let dtype = cx.tensor_dtype(re);
    let at_zero = |cx: &mut Cx, v, value: f64| {
        cx.map_n(&[re, im, v], dtype, |b, x| {
            let (zero, value) = (b.like(x[0], 0.0), b.like(x[0], value));
            let (p, q) = (b.eq(x[0], zero), b.eq(x[1], zero));
            let none = b.and(p, q);
            b.select(none, value, x[2])
        })
    };
    Ok(Val::Complex { re: at_zero(cx, qr, 1.0)?, im: at_zero(cx, qi, 0.0)? })
}

/// √(1 − z) and √(1 + z), or √(z − 1) and √(z + 1).
fn roots(cx: &mut Cx, re: ValueId, im: ValueId, less_one: bool) -> Result<[ValueId; 4], Diagnostic> {
    let dtype = cx.tensor_dtype(re);
    let shifted = |cx: &mut Cx, by: f64, sign: f64| {
        cx.map_n(&[re], dtype, |b, x| {
            let (by, sign) = (b.like(x[0], by), b.like(x[0], sign));
            let x = b.mul(x[0], sign);
            b.add(x, by)
        })
    };
    let (first, first_im) =
        if less_one { (shifted(cx, -1.0, 1.0)?, im) } else { (shifted(cx, 1.0, -1.0)?, cx.scale(im, -1.0)?) };
    let second = shifted(cx, 1.0, 1.0)?;
    let (ar, ai) = parts(sqrt(cx, first, first_im)?);
    let (br, bi) = parts(sqrt(cx, second, im)?);
    Ok([ar, ai, br, bi])
}

/// asin z.
pub(super) fn asin(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    let [ar, ai, br, bi] = roots(cx, re, im, false)?;
    let dtype = cx.tensor_dtype(re);
    let turn = cx.map_n(&[re, ar, ai, br, bi], dtype, |b, x| {
        let (p, q) = (b.mul(x[1], x[3]), b.mul(x[2], x[4]));
        let d = b.sub(p, q);
        b.bin(Binary::Atan2, x[0], d)
    })?;
    Ok(Val::Complex { re: turn, im: asinh_of_cross(cx, [ar, ai, br, bi])? })
}

/// asinh of Im(conj(a)·b).
fn asinh_of_cross(cx: &mut Cx, all: [ValueId; 4]) -> super::cx::Built {
    let dtype = cx.tensor_dtype(all[0]);
    cx.map_n(&all, dtype, |b, x| {
        let (p, q) = (b.mul(x[0], x[3]), b.mul(x[1], x[2]));
        let s = b.sub(p, q);
        b.un(Unary::Asinh, s)
    })
}

/// acos z.
pub(super) fn acos(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    let [ar, ai, br, bi] = roots(cx, re, im, false)?;
    Ok(Val::Complex { re: twice_atan2(cx, ar, br)?, im: asinh_of_cross(cx, [br, bi, ar, ai])? })
}

fn twice_atan2(cx: &mut Cx, y: ValueId, x: ValueId) -> super::cx::Built {
    let dtype = cx.tensor_dtype(y);
    cx.map2(y, x, dtype, |b, y, x| {
        let t = b.bin(Binary::Atan2, y, x);
        b.add(t, t)
    })
}

/// acosh z.
pub(super) fn acosh(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    let [ar, ai, br, bi] = roots(cx, re, im, true)?;
    let dtype = cx.tensor_dtype(re);
    let size = cx.map_n(&[ar, ai, br, bi], dtype, |b, x| {
        let (p, q) = (b.mul(x[0], x[2]), b.mul(x[1], x[3]));
        let s = b.add(p, q);
        b.un(Unary::Asinh, s)
    })?;
    Ok(Val::Complex { re: size, im: twice_atan2(cx, ai, br)? })
}

/// asinh z.
pub(super) fn asinh(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    turned(cx, re, im, asin)
}

/// atanh z = log1p(4x / ((1 − x)² + y²)) / 4 + i·atan2(2y, (1 − x)(1 + x) − y²) / 2.
pub(super) fn atanh(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    both(cx, re, im, |b, x, y| {
        let (one, four) = (b.like(x, 1.0), b.like(x, 4.0));
        let (less, more, square) = (b.sub(one, x), b.add(one, x), b.mul(y, y));
        let less_square = b.mul(less, less);
        let d = b.add(less_square, square);
        let top = b.mul(x, four);
        let ratio = b.div(top, d);
        let l = b.un(Unary::Log1p, ratio);
        let product = b.mul(less, more);
        let right = b.sub(product, square);
        let twice = b.add(y, y);
        let turn = b.bin(Binary::Atan2, twice, right);
        let (quarter, half) = (b.like(x, 0.25), b.like(x, 0.5));
        (b.mul(l, quarter), b.mul(turn, half))
    })
}

/// atan z.
pub(super) fn atan(cx: &mut Cx, re: ValueId, im: ValueId) -> Got {
    turned(cx, re, im, atanh)
}
