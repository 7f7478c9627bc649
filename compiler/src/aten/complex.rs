//! Complex tensors as pairs of real ones: construction, parts, arithmetic and elementary functions.

use super::args::Call;
use super::body::BodyBuilder;
use super::cx::{Built, Cx, ir_dtype};
use super::promote::{result_type, to_float};
use super::{AtenOp, Val, bad_argument, unsupported_dtype};
use crate::ir::{DType, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::expr::{Binary, ExprId, Unary as Fun};

type Vals = Result<Vec<Val>, Diagnostic>;

/// A function of one complex tensor, given by its parts.
pub(super) type Unary = fn(&mut Cx, ValueId, ValueId) -> Result<Val, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.real.default"], rule: real },
    AtenOp { names: &["aten.imag.default"], rule: imag },
    AtenOp { names: &["aten.view_as_real.default", "aten.view_as_real_copy.default"], rule: view_as_real },
    AtenOp { names: &["aten.view_as_complex.default", "aten.view_as_complex_copy.default"], rule: view_as_complex },
    AtenOp { names: &["aten.complex.default"], rule: make },
    AtenOp {
        names: &["aten._neg_view.default", "aten._neg_view_copy.default"],
        rule: |cx, c| {
            let v = c.value(cx, "self")?;
            Ok(vec![cx.each(&v, |cx, x| cx.map1(x, BodyBuilder::neg))?])
        },
    },
    AtenOp { names: &["aten.polar.default"], rule: polar },
    AtenOp { names: &["aten.angle.default"], rule: angle },
    AtenOp {
        names: &[
            "aten.conj.default",
            "aten._conj.default",
            "aten._conj_copy.default",
            "aten.conj_physical.default",
            "aten._conj_physical.default",
        ],
        rule: conj,
    },
    AtenOp {
        names: &["aten.resolve_conj.default", "aten.resolve_neg.default"],
        rule: |cx, c| Ok(vec![c.value(cx, c.first())?]),
    },
];

fn real(cx: &mut Cx, c: &Call<'_>) -> Vals {
    Ok(vec![match c.value(cx, "self")? {
        Val::Complex { re, .. } => Val::Tensor(re),
        other => other,
    }])
}

fn imag(cx: &mut Cx, c: &Call<'_>) -> Vals {
    match c.value(cx, "self")? {
        Val::Complex { im, .. } => Ok(vec![im.into()]),
        _ => Err(bad_argument("imag of a real tensor")),
    }
}

fn view_as_real(cx: &mut Cx, c: &Call<'_>) -> Vals {
    match c.value(cx, "self")? {
        Val::Complex { re, im } => Ok(vec![cx.interleave(re, im)?.into()]),
        _ => Err(bad_argument("view_as_real of a real tensor")),
    }
}

fn view_as_complex(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    match cx.ty(x).shape.last() {
        Some(last) if last.is(2) => Ok(vec![cx.deinterleave(x)?]),
        _ => Err(bad_argument(format!("view_as_complex of {}, whose last dimension is not 2", cx.ty(x)))),
    }
}

fn make(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (re, im) = (c.tensor(cx, "real")?, c.tensor(cx, "imag")?);
    let shape = cx.broadcast_shape(&[re, im])?;
    Ok(vec![Val::Complex { re: cx.broadcast_to(re, &shape)?, im: cx.broadcast_to(im, &shape)? }])
}

fn polar(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (abs, angle) = (c.tensor(cx, "abs")?, c.tensor(cx, "angle")?);
    let dtype = cx.tensor_dtype(abs);
    Ok(vec![Val::Complex {
        re: cx.map2(abs, angle, dtype, |b, r, t| scaled(b, Fun::Cos, r, t))?,
        im: cx.map2(abs, angle, dtype, |b, r, t| scaled(b, Fun::Sin, r, t))?,
    }])
}

fn scaled(b: &mut BodyBuilder, f: Fun, r: ExprId, t: ExprId) -> ExprId {
    let v = b.un(f, t);
    b.mul(r, v)
}

/// Argument of a complex number; of a real one 0 or π (NaN stays).
fn angle(cx: &mut Cx, c: &Call<'_>) -> Vals {
    match c.value(cx, "self")? {
        Val::Complex { re, im } => {
            let dtype = cx.tensor_dtype(re);
            Ok(vec![cx.map2(im, re, dtype, |b, y, x| b.bin(Binary::Atan2, y, x))?.into()])
        }
        Val::Tensor(x) => {
            let dtype = to_float(cx.tensor_dtype(x));
            let x = cx.cast(x, dtype)?;
            let out = cx.map1(x, |b, x| {
                let (zero, pi) = (b.like(x, 0.0), b.like(x, std::f64::consts::PI));
                let (negative, nan) = (b.lt(x, zero), b.un(Fun::IsNan, x));
                let value = b.select(negative, pi, zero);
                b.select(nan, x, value)
            })?;
            Ok(vec![out.into()])
        }
        _ => Err(bad_argument("angle of a number")),
    }
}

fn conj(cx: &mut Cx, c: &Call<'_>) -> Vals {
    Ok(vec![match c.value(cx, "self")? {
        Val::Complex { re, im } => Val::Complex { re, im: cx.map1(im, |b, y| b.neg(y))? },
        other => other,
    }])
}

/// Both parts of any operand in an element type; the imaginary part of a real one is a 0-d zero.
pub(super) fn parts_of(cx: &mut Cx, v: &Val, dtype: DType) -> Result<(ValueId, ValueId), Diagnostic> {
    let (re, im) = match v {
        Val::Complex { re, im } => (cx.cast(*re, dtype)?, cx.cast(*im, dtype)?),
        Val::Tensor(x) => (cx.cast(*x, dtype)?, cx.full(vec![], dtype, 0.0)?),
        Val::ComplexScalar(re, im) => (cx.full(vec![], dtype, *re)?, cx.full(vec![], dtype, *im)?),
        Val::Float(v) => (cx.full(vec![], dtype, *v)?, cx.full(vec![], dtype, 0.0)?),
        Val::Bool(v) => (cx.full(vec![], dtype, f64::from(u8::from(*v)))?, cx.full(vec![], dtype, 0.0)?),
        Val::Int(d) => (cx.dim_tensor(d, dtype)?, cx.full(vec![], dtype, 0.0)?),
        Val::Ratio(..) | Val::Compare(..) | Val::List(_) | Val::None => return Err(bad_argument("no complex number")),
    };
    Ok((re, im))
}

/// Converts a value to a complex type.
pub(super) fn to_complex(cx: &mut Cx, v: &Val, dtype: DType) -> Result<Val, Diagnostic> {
    let (re, im) = parts_of(cx, v, dtype)?;
    let shape = cx.shape(re);
    Ok(Val::Complex { re, im: cx.broadcast_to(im, &shape)? })
}

/// Arithmetic of two complex operands (either may be real).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a · b.
    Mul,
    /// a / b.
    Div,
    /// aᵇ, 0⁰ = 1.
    Pow,
}

/// `a op b`.
pub(super) fn arithmetic(cx: &mut Cx, op: Arithmetic, a: &Val, b: &Val) -> Result<Val, Diagnostic> {
    let dtype = result_type(cx, &[a.clone(), b.clone()])?.dtype;
    let dtype = to_float(dtype);
    let (ar, ai) = parts_of(cx, a, dtype)?;
    let (br, bi) = parts_of(cx, b, dtype)?;
    let all = [ar, ai, br, bi];
    let two = |cx: &mut Cx, op: Binary| -> Result<Val, Diagnostic> {
        let re = cx.map_n(&all, dtype, |b, x| b.bin(op, x[0], x[2]))?;
        let im = cx.map_n(&all, dtype, |b, x| b.bin(op, x[1], x[3]))?;
        Ok(Val::Complex { re, im })
    };
    match op {
        Arithmetic::Add => two(cx, Binary::Add),
        Arithmetic::Sub => two(cx, Binary::Sub),
        Arithmetic::Mul => product(cx, a, b, all, dtype),
        Arithmetic::Div => quotient(cx, b, all, dtype),
        Arithmetic::Pow => power(cx, all, dtype),
    }
}

fn product(cx: &mut Cx, a: &Val, b: &Val, all: [ValueId; 4], dtype: DType) -> Result<Val, Diagnostic> {
    let [ar, ai, br, bi] = all;
    let is_real = |v: &Val| !matches!(v, Val::Complex { .. } | Val::ComplexScalar(..));
    if is_real(b) {
        return Ok(Val::Complex { re: cx.mul_values(ar, br)?, im: cx.mul_values(ai, br)? });
    }
    if is_real(a) {
        return Ok(Val::Complex { re: cx.mul_values(ar, br)?, im: cx.mul_values(ar, bi)? });
    }
    let re = cx.map_n(&all, dtype, |b, x| {
        let (p, q) = (b.mul(x[0], x[2]), b.mul(x[1], x[3]));
        b.sub(p, q)
    })?;
    let im = cx.map_n(&all, dtype, |b, x| {
        let (p, q) = (b.mul(x[0], x[3]), b.mul(x[1], x[2]));
        b.add(p, q)
    })?;
    Ok(Val::Complex { re, im })
}

/// A product that is linear in both operands (matrix products, contractions), of operands that may be complex: four real products.
pub(super) fn bilinear(
    cx: &mut Cx,
    a: &Val,
    b: &Val,
    f: impl Fn(&mut Cx, ValueId, ValueId) -> Built,
) -> Result<Val, Diagnostic> {
    match (a, b) {
        (Val::Tensor(x), Val::Tensor(y)) => Ok(Val::Tensor(f(cx, *x, *y)?)),
        (Val::Tensor(x), Val::Complex { re, im }) => Ok(Val::Complex { re: f(cx, *x, *re)?, im: f(cx, *x, *im)? }),
        (Val::Complex { re, im }, Val::Tensor(y)) => Ok(Val::Complex { re: f(cx, *re, *y)?, im: f(cx, *im, *y)? }),
        (Val::Complex { re: ar, im: ai }, Val::Complex { re: br, im: bi }) => {
            let (rr, ii) = (f(cx, *ar, *br)?, f(cx, *ai, *bi)?);
            let (ri, ir) = (f(cx, *ar, *bi)?, f(cx, *ai, *br)?);
            Ok(Val::Complex { re: cx.sub_values(rr, ii)?, im: cx.add_values(ri, ir)? })
        }
        _ => Err(bad_argument("a product of numbers that are no tensors")),
    }
}

/// Smith's method: scaled by the larger part of the divisor, so that nothing overflows before its time.
fn quotient(cx: &mut Cx, b: &Val, all: [ValueId; 4], dtype: DType) -> Result<Val, Diagnostic> {
    let [ar, ai, br, _] = all;
    if !matches!(b, Val::Complex { .. } | Val::ComplexScalar(..)) {
        let div = |cx: &mut Cx, x| cx.map2(x, br, dtype, BodyBuilder::div);
        return Ok(Val::Complex { re: div(cx, ar)?, im: div(cx, ai)? });
    }
    let re = cx.map_n(&all, dtype, |b, x| smith(b, x, true))?;
    let im = cx.map_n(&all, dtype, |b, x| smith(b, x, false))?;
    Ok(Val::Complex { re, im })
}

fn smith(b: &mut BodyBuilder, x: &[ExprId], real: bool) -> ExprId {
    let (ar, ai, br, bi) = (x[0], x[1], x[2], x[3]);
    let (abs_r, abs_i) = (b.un(Fun::Abs, br), b.un(Fun::Abs, bi));
    let by_real = b.le(abs_i, abs_r);
    let (large, small) = (b.select(by_real, br, bi), b.select(by_real, bi, br));
    let ratio = b.div(small, large);
    let p = b.mul(small, ratio);
    let scale = b.add(large, p);
    let (main, cross) = if real { (ar, ai) } else { (ai, ar) };
    // |br| ≥ |bi|: (main ± cross·r) / s, else (main·r ± cross) / s.
    let (mr, cr) = (b.mul(main, ratio), b.mul(cross, ratio));
    let (m, k) = (b.select(by_real, main, mr), b.select(by_real, cr, cross));
    let top = if real { b.add(m, k) } else { b.sub(m, k) };
    b.div(top, scale)
}

/// exp(b · log a).
fn power(cx: &mut Cx, all: [ValueId; 4], dtype: DType) -> Result<Val, Diagnostic> {
    let part = |cx: &mut Cx, f: Fun| {
        cx.map_n(&all, dtype, |b, x| {
            let (size, turn) = (hypot(b, x[0], x[1]), b.bin(Binary::Atan2, x[1], x[0]));
            let log = b.un(Fun::Log, size);
            let (p, q) = (b.mul(x[2], log), b.mul(x[3], turn));
            let (r, s) = (b.mul(x[2], turn), b.mul(x[3], log));
            let (grow, angle) = (b.sub(p, q), b.add(r, s));
            let scale = b.un(Fun::Exp, grow);
            let value = scaled(b, f, scale, angle);
            let zero = b.like(size, 0.0);
            let one = b.like(size, if f == Fun::Cos { 1.0 } else { 0.0 });
            let (no_exponent, no_base) = (b.eq(x[2], zero), b.eq(size, zero));
            let at_zero = b.select(no_exponent, one, zero);
            b.select(no_base, at_zero, value)
        })
    };
    Ok(Val::Complex { re: part(cx, Fun::Cos)?, im: part(cx, Fun::Sin)? })
}

/// √(x² + y²) without overflow.
pub(super) fn hypot(b: &mut BodyBuilder, x: ExprId, y: ExprId) -> ExprId {
    let (x, y) = (b.un(Fun::Abs, x), b.un(Fun::Abs, y));
    let (large, small) = (b.max(x, y), b.min(x, y));
    let (zero, one) = (b.like(x, 0.0), b.like(x, 1.0));
    let ratio = b.div(small, large);
    let square = b.mul(ratio, ratio);
    let sum = b.add(one, square);
    let root = b.un(Fun::Sqrt, sum);
    let value = b.mul(large, root);
    let (is_zero, inf) = (b.eq(large, zero), b.like(x, f64::INFINITY));
    let value = b.select(is_zero, large, value);
    let (inf_x, inf_y) = (b.eq(x, inf), b.eq(y, inf));
    let infinite = b.or(inf_x, inf_y);
    b.select(infinite, inf, value)
}

/// |z|.
pub(super) fn abs(cx: &mut Cx, re: ValueId, im: ValueId) -> Built {
    let dtype = cx.tensor_dtype(re);
    cx.map2(re, im, dtype, hypot)
}

/// A question about both parts: for `isreal` whether the imaginary part is 0, `isfinite` asks for both, others for either.
pub(super) fn test(
    cx: &mut Cx,
    target: &str,
    re: ValueId,
    im: ValueId,
    f: impl Fn(&mut BodyBuilder, ExprId) -> ExprId,
) -> Vals {
    let out = cx.map_n(&[re, im], DType::Bool, |b, x| {
        if target == "aten.isreal.default" {
            let zero = b.like(x[1], 0.0);
            return b.eq(x[1], zero);
        }
        let (p, q) = (f(b, x[0]), f(b, x[1]));
        let both = matches!(target, "aten.isfinite.default" | "aten.logical_not.default");
        if both { b.and(p, q) } else { b.or(p, q) }
    })?;
    Ok(vec![out.into()])
}

/// Both parts from expressions over (re, im).
fn build(
    cx: &mut Cx,
    re: ValueId,
    im: ValueId,
    f: impl Fn(&mut BodyBuilder, ExprId, ExprId) -> (ExprId, ExprId),
) -> Result<Val, Diagnostic> {
    let dtype = cx.tensor_dtype(re);
    Ok(Val::Complex {
        re: cx.map2(re, im, dtype, |b, x, y| f(b, x, y).0)?,
        im: cx.map2(re, im, dtype, |b, x, y| f(b, x, y).1)?,
    })
}

/// eᶻ.
pub(super) fn exp(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    build(cx, re, im, |b, x, y| {
        let e = b.un(Fun::Exp, x);
        (scaled(b, Fun::Cos, e, y), scaled(b, Fun::Sin, e, y))
    })
}

/// ln|z| + i·arg z.
pub(super) fn log(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    build(cx, re, im, |b, x, y| {
        let size = hypot(b, x, y);
        (b.un(Fun::Log, size), b.bin(Binary::Atan2, y, x))
    })
}

/// Principal square root.
pub(super) fn sqrt(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    build(cx, re, im, |b, x, y| {
        let (zero, half) = (b.like(x, 0.0), b.like(x, 0.5));
        let (size, ax) = (hypot(b, x, y), b.un(Fun::Abs, x));
        let sum = b.add(size, ax);
        let scaled = b.mul(sum, half);
        let t = b.un(Fun::Sqrt, scaled);
        let twice = b.add(t, t);
        let ay = b.un(Fun::Abs, y);
        let quotient = b.div(ay, twice);
        let is_zero = b.eq(t, zero);
        let other = b.select(is_zero, zero, quotient);
        let right = b.le(zero, x);
        let (re, size_im) = (b.select(right, t, other), b.select(right, other, t));
        let negative = b.lt(y, zero);
        let minus = b.neg(size_im);
        (re, b.select(negative, minus, size_im))
    })
}

/// sin z.
pub(super) fn sin(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    build(cx, re, im, |b, x, y| {
        let (s, c, sh, ch) = (b.un(Fun::Sin, x), b.un(Fun::Cos, x), b.un(Fun::Sinh, y), b.un(Fun::Cosh, y));
        (b.mul(s, ch), b.mul(c, sh))
    })
}

/// cos z.
pub(super) fn cos(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    build(cx, re, im, |b, x, y| {
        let (s, c, sh, ch) = (b.un(Fun::Sin, x), b.un(Fun::Cos, x), b.un(Fun::Sinh, y), b.un(Fun::Cosh, y));
        let im = b.mul(s, sh);
        (b.mul(c, ch), b.neg(im))
    })
}

/// tanh z = (sinh 2x + i·sin 2y) / (cosh 2x + cos 2y), with 2x limited where the quotient has reached its limit.
pub(super) fn tanh(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    build(cx, re, im, |b, x, y| {
        let (low, high) = (b.like(x, -40.0), b.like(x, 40.0));
        let (x2, y2) = (b.add(x, x), b.add(y, y));
        let x2 = b.max(x2, low);
        let x2 = b.min(x2, high);
        let (sh, ch, s, c) = (b.un(Fun::Sinh, x2), b.un(Fun::Cosh, x2), b.un(Fun::Sin, y2), b.un(Fun::Cos, y2));
        let d = b.add(ch, c);
        (b.div(sh, d), b.div(s, d))
    })
}

/// 1 / z.
pub(super) fn reciprocal(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    arithmetic(cx, Arithmetic::Div, &Val::Float(1.0), &Val::Complex { re, im })
}

/// 1 / (1 + e⁻ᶻ).
pub(super) fn sigmoid(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    let (nr, ni) = (cx.scale(re, -1.0)?, cx.scale(im, -1.0)?);
    let e = exp(cx, nr, ni)?;
    let d = arithmetic(cx, Arithmetic::Add, &e, &Val::Float(1.0))?;
    arithmetic(cx, Arithmetic::Div, &Val::Float(1.0), &d)
}

/// z².
pub(super) fn square(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    let z = Val::Complex { re, im };
    arithmetic(cx, Arithmetic::Mul, &z, &z)
}

/// z / |z|, 0 at 0.
pub(super) fn sgn(cx: &mut Cx, re: ValueId, im: ValueId) -> Result<Val, Diagnostic> {
    build(cx, re, im, |b, x, y| {
        let size = hypot(b, x, y);
        let zero = b.like(x, 0.0);
        let at_zero = b.eq(size, zero);
        let (p, q) = (b.div(x, size), b.div(y, size));
        (b.select(at_zero, zero, p), b.select(at_zero, zero, q))
    })
}

/// `a == b`, or its negation.
pub(super) fn equal(cx: &mut Cx, a: &Val, b: &Val, negate: bool) -> Built {
    let dtype = to_float(result_type(cx, &[a.clone(), b.clone()])?.dtype);
    let (ar, ai) = parts_of(cx, a, dtype)?;
    let (br, bi) = parts_of(cx, b, dtype)?;
    cx.map_n(&[ar, ai, br, bi], DType::Bool, |b, x| {
        let (p, q) = (b.eq(x[0], x[2]), b.eq(x[1], x[3]));
        let both = b.and(p, q);
        if negate { b.not(both) } else { both }
    })
}

/// A conversion to any element type, complex or real (of a complex one the real part stays).
pub(super) fn convert(cx: &mut Cx, v: &Val, to: crate::import::program::ScalarType) -> Result<Val, Diagnostic> {
    let dtype = ir_dtype(to)?;
    match (v, to.is_complex()) {
        (_, true) => to_complex(cx, v, dtype),
        (Val::Complex { re, .. }, false) => Ok(Val::Tensor(cx.cast(*re, dtype)?)),
        (Val::Tensor(x), false) => Ok(Val::Tensor(cx.cast(*x, dtype)?)),
        _ => Err(bad_argument("conversion of a number")),
    }
}

/// Parts of several operands in a common type, for rules that join or choose between tensors.
pub(super) fn common_parts(cx: &mut Cx, values: &[Val]) -> Result<(Vec<ValueId>, Option<Vec<ValueId>>), Diagnostic> {
    let common = result_type(cx, values)?;
    let mut re = vec![];
    let mut im = vec![];
    for v in values {
        let (r, i) = if common.complex {
            let Val::Complex { re, im } = to_complex(cx, v, common.dtype)? else {
                return Err(unsupported_dtype("no complex number"));
            };
            (re, im)
        } else {
            let (r, _) = parts_of(cx, v, common.dtype)?;
            (r, r)
        };
        re.push(r);
        im.push(i);
    }
    Ok((re, common.complex.then_some(im)))
}
