//! Special functions as expressions: error functions, gamma functions, Bessel functions.
#![allow(clippy::excessive_precision, reason = "coefficients are written as published")]

use super::args::Call;
use super::body::BodyBuilder;
use super::cx::Cx;
use super::promote::pointwise;
use super::unary::{float1, is_nan, polynomial, times};
use super::{AtenOp, Val};
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};
use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.erfc.default", "aten.special_erfc.default"], rule: |cx, c| float1(cx, c, erfc) },
    AtenOp { names: &["aten.special_erfcx.default"], rule: |cx, c| float1(cx, c, erfcx) },
    AtenOp { names: &["aten.erfinv.default", "aten.special_erfinv.default"], rule: |cx, c| float1(cx, c, erfinv) },
    AtenOp {
        names: &["aten.special_ndtr.default"],
        rule: |cx, c| {
            float1(cx, c, |b, x| {
                // As PyTorch has it, which rounds the far left tail to 0.
                let t = times(b, x, FRAC_1_SQRT_2);
                let (e, one) = (b.un(Unary::Erf, t), b.like(x, 1.0));
                let sum = b.add(e, one);
                times(b, sum, 0.5)
            })
        },
    },
    AtenOp { names: &["aten.special_log_ndtr.default"], rule: |cx, c| float1(cx, c, log_ndtr) },
    AtenOp { names: &["aten.special_ndtri.default"], rule: |cx, c| float1(cx, c, ndtri) },
    AtenOp {
        names: &["aten.digamma.default", "aten.special_digamma.default", "aten.special_psi.default"],
        rule: |cx, c| float1(cx, c, digamma),
    },
    AtenOp { names: &["aten.polygamma.default", "aten.special_polygamma.default"], rule: polygamma },
    AtenOp { names: &["aten.mvlgamma.default", "aten.special_multigammaln.default"], rule: mvlgamma },
    AtenOp {
        names: &["aten.i0.default", "aten.special_i0.default", "aten.special_modified_bessel_i0.default"],
        rule: |cx, c| float1(cx, c, |b, x| bessel(b, x, 0, false)),
    },
    AtenOp { names: &["aten.special_i0e.default"], rule: |cx, c| float1(cx, c, |b, x| bessel(b, x, 0, true)) },
    AtenOp { names: &["aten.special_spherical_bessel_j0.default"], rule: |cx, c| float1(cx, c, spherical_bessel) },
    AtenOp {
        names: &["aten.special_i1.default", "aten.special_modified_bessel_i1.default"],
        rule: |cx, c| float1(cx, c, |b, x| bessel(b, x, 1, false)),
    },
    AtenOp { names: &["aten.special_i1e.default"], rule: |cx, c| float1(cx, c, |b, x| bessel(b, x, 1, true)) },
];

/// sin x / x, 1 at 0 and 0 at infinities.
fn spherical_bessel(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let (zero, one) = (b.like(x, 0.0), b.like(x, 1.0));
    let (s, at_zero, inf) = (b.un(Unary::Sin, x), b.eq(x, zero), b.un(Unary::IsInf, x));
    let q = b.div(s, x);
    let q = b.select(inf, zero, q);
    b.select(at_zero, one, q)
}

/// e^(x²)·erfc(x) for x ≥ ½: W. J. Cody's rational approximations.
fn scaled_tail(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    const MIDDLE: [f64; 9] = [
        2.15311535474403846e-8,
        5.64188496988670089e-1,
        8.88314979438837594,
        6.61191906371416295e1,
        2.98635138197400131e2,
        8.81952221241769090e2,
        1.71204761263407058e3,
        2.05107837782607147e3,
        1.23033935479799725e3,
    ];
    const MIDDLE_DIVISOR: [f64; 9] = [
        1.0,
        1.57449261107098347e1,
        1.17693950891312499e2,
        5.37181101862009858e2,
        1.62138957456669019e3,
        3.29079923573345963e3,
        4.36261909014324716e3,
        3.43936767414372164e3,
        1.23033935480374942e3,
    ];
    const FAR: [f64; 6] = [
        1.63153871373020978e-2,
        3.05326634961232344e-1,
        3.60344899949804439e-1,
        1.25781726111229246e-1,
        1.60837851487422766e-2,
        6.58749161529837803e-4,
    ];
    const FAR_DIVISOR: [f64; 6] = [
        1.0,
        2.56852019228982242,
        1.87295284992346047,
        5.27905102951428412e-1,
        6.05183413124413191e-2,
        2.33520497626869185e-3,
    ];
    let four = b.like(x, 4.0);
    let near = b.min(x, four);
    let (p, q) = (polynomial(b, near, &MIDDLE), polynomial(b, near, &MIDDLE_DIVISOR));
    let middle = b.div(p, q);
    let distant = b.max(x, four);
    let (one, square) = (b.like(x, 1.0), b.mul(distant, distant));
    let s = b.div(one, square);
    let (p, q) = (polynomial(b, s, &FAR), polynomial(b, s, &FAR_DIVISOR));
    let ratio = b.div(p, q);
    let correction = b.mul(s, ratio);
    let limit = b.like(x, 1.0 / PI.sqrt());
    let top = b.sub(limit, correction);
    let far = b.div(top, distant);
    let is_near = b.lt(x, four);
    let v = b.select(is_near, middle, far);
    let nan = is_nan(b, x);
    b.select(nan, x, v)
}

/// 1 − erf(x), without cancellation for large x.
fn erfc(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let (one, half) = (b.like(x, 1.0), b.like(x, 0.5));
    let e = b.un(Unary::Erf, x);
    let direct = b.sub(one, e);
    let right = b.max(x, half);
    let tail = scaled_tail(b, right);
    let square = b.mul(right, right);
    let minus = b.neg(square);
    let bell = b.un(Unary::Exp, minus);
    let product = b.mul(bell, tail);
    let is_tail = b.lt(half, x);
    b.select(is_tail, product, direct)
}

/// e^(x²)·erfc(x).
fn erfcx(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let (one, half) = (b.like(x, 1.0), b.like(x, 0.5));
    let e = b.un(Unary::Erf, x);
    let plain = b.sub(one, e);
    let square = b.mul(x, x);
    let bell = b.un(Unary::Exp, square);
    let direct = b.mul(bell, plain);
    let right = b.max(x, half);
    let tail = scaled_tail(b, right);
    let is_tail = b.lt(half, x);
    b.select(is_tail, tail, direct)
}

/// ln of the normal distribution function: left of −1 from the scaled tail.
fn log_ndtr(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let t = times(b, x, FRAC_1_SQRT_2);
    let minus = b.neg(t);
    let tail = erfcx(b, minus);
    let half = times(b, tail, 0.5);
    let log = b.un(Unary::Log, half);
    let square = b.mul(t, t);
    let left = b.sub(log, square);
    let e = erfc(b, t);
    let e = times(b, e, -0.5);
    let right = b.un(Unary::Log1p, e);
    let edge = b.like(x, -1.0);
    let is_left = b.lt(x, edge);
    b.select(is_left, left, right)
}

/// Quantile of the normal distribution: √2·erf⁻¹(2p − 1).
fn ndtri(b: &mut BodyBuilder, p: ExprId) -> ExprId {
    let (one, two, four) = (b.like(p, 1.0), b.like(p, 2.0), b.like(p, 4.0));
    let twice = b.mul(two, p);
    let x = b.sub(twice, one);
    let rest = b.sub(one, p);
    let product = b.mul(p, rest);
    let product = b.mul(four, product);
    let y = inverse_erf(b, x, product);
    times(b, y, SQRT_2)
}

/// Inverse of erf.
fn erfinv(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let one = b.like(x, 1.0);
    let (low, high) = (b.sub(one, x), b.add(one, x));
    let product = b.mul(low, high);
    inverse_erf(b, x, product)
}

/// Inverse of erf at x, given 1 − x²: Giles' polynomials in its logarithm, exact to f32; f64 adds two Newton steps against erf.
fn inverse_erf(b: &mut BodyBuilder, x: ExprId, product: ExprId) -> ExprId {
    const CENTRAL: [f64; 9] = [
        2.81022636e-08,
        3.43273939e-07,
        -3.5233877e-06,
        -4.39150654e-06,
        0.00021858087,
        -0.00125372503,
        -0.00417768164,
        0.246640727,
        1.50140941,
    ];
    const TAIL: [f64; 9] = [
        -0.000200214257,
        0.000100950558,
        0.00134934322,
        -0.00367342844,
        0.00573950773,
        -0.0076224613,
        0.00943887047,
        1.00167406,
        2.83297682,
    ];
    let one = b.like(x, 1.0);
    let log = b.un(Unary::Log, product);
    let w = b.neg(log);
    let (five, shift, three) = (b.like(x, 5.0), b.like(x, 2.5), b.like(x, 3.0));
    let central = b.lt(w, five);
    let w_central = b.sub(w, shift);
    let root = b.un(Unary::Sqrt, w);
    let w_tail = b.sub(root, three);
    let (p, q) = (polynomial(b, w_central, &CENTRAL), polynomial(b, w_tail, &TAIL));
    let factor = b.select(central, p, q);
    let mut y = b.mul(factor, x);
    let steps = if b.ty(x) == Ty::F64 { 2 } else { 0 };
    for _ in 0..steps {
        let e = b.un(Unary::Erf, y);
        let miss = b.sub(e, x);
        let square = b.mul(y, y);
        let bell = b.un(Unary::Exp, square);
        let slope = times(b, bell, PI.sqrt() / 2.0);
        let step = b.mul(miss, slope);
        y = b.sub(y, step);
    }
    let size = b.un(Unary::Abs, x);
    let (edge, inf) = (b.eq(size, one), b.like(x, f64::INFINITY));
    let signed = b.mul(x, inf);
    b.select(edge, signed, y)
}

/// A number shifted up to 10 by the recurrence of a gamma function, and the sum of what the steps take off: `term(y)` each.
fn shifted(b: &mut BodyBuilder, x: ExprId, term: impl Fn(&mut BodyBuilder, ExprId) -> ExprId) -> (ExprId, ExprId) {
    let (one, ten) = (b.like(x, 1.0), b.like(x, 10.0));
    let (mut y, mut sum) = (x, b.like(x, 0.0));
    for _ in 0..10 {
        let small = b.lt(y, ten);
        let t = term(b, y);
        let more = b.add(sum, t);
        let next = b.add(y, one);
        sum = b.select(small, more, sum);
        y = b.select(small, next, y);
    }
    (y, sum)
}

/// ψ(x): shifted up to 10 by recurrence, asymptotic series there; reflected for x < ½.
fn digamma(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    const SERIES: [f64; 7] =
        [1.0 / 12.0, -691.0 / 32760.0, 1.0 / 132.0, -1.0 / 240.0, 1.0 / 252.0, -1.0 / 120.0, 1.0 / 12.0];
    let (zero, one, half) = (b.like(x, 0.0), b.like(x, 1.0), b.like(x, 0.5));
    let reflect = b.lt(x, half);
    let mirrored = b.sub(one, x);
    let start = b.select(reflect, mirrored, x);
    let (y, steps) = shifted(b, start, |b, y| {
        let one = b.like(y, 1.0);
        b.div(one, y)
    });
    let inverse = b.div(one, y);
    let z = b.mul(inverse, inverse);
    let series = polynomial(b, z, &SERIES);
    let tail = b.mul(series, z);
    let log = b.un(Unary::Log, y);
    let half_inverse = b.mul(half, inverse);
    let main = b.sub(log, half_inverse);
    let main = b.sub(main, tail);
    let value = b.sub(main, steps);
    let turns = b.un(Unary::Trunc, x);
    let fraction = b.sub(x, turns);
    let angle = times(b, fraction, PI);
    let tan = b.un(Unary::Tan, angle);
    let pi = b.like(x, PI);
    let cot = b.div(pi, tan);
    let reflected = b.sub(value, cot);
    let value = b.select(reflect, reflected, value);
    let (is_zero, whole, negative) = (b.eq(x, zero), b.eq(fraction, zero), b.lt(x, zero));
    let pole = b.and(whole, negative);
    let nan = b.like(x, f64::NAN);
    let value = b.select(pole, nan, value);
    let inverse = b.div(one, x);
    let at_zero = b.neg(inverse);
    b.select(is_zero, at_zero, value)
}

/// ψ′(x), as [`digamma`]; reflected by π²/sin²(πx).
fn trigamma(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    const SERIES: [f64; 6] = [5.0 / 66.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 1.0 / 6.0, 0.0];
    let (one, half) = (b.like(x, 1.0), b.like(x, 0.5));
    let reflect = b.lt(x, half);
    let mirrored = b.sub(one, x);
    let start = b.select(reflect, mirrored, x);
    let (y, steps) = shifted(b, start, |b, y| {
        let (one, square) = (b.like(y, 1.0), b.mul(y, y));
        b.div(one, square)
    });
    let inverse = b.div(one, y);
    let z = b.mul(inverse, inverse);
    let series = polynomial(b, z, &SERIES);
    let tail = b.mul(series, inverse);
    let half_z = b.mul(half, z);
    let main = b.add(inverse, half_z);
    let main = b.add(main, tail);
    let value = b.add(main, steps);
    let turns = b.un(Unary::Floor, x);
    let fraction = b.sub(x, turns);
    let angle = times(b, fraction, PI);
    let sine = b.un(Unary::Sin, angle);
    let pi = b.like(x, PI);
    let ratio = b.div(pi, sine);
    let square = b.mul(ratio, ratio);
    let reflected = b.sub(square, value);
    b.select(reflect, reflected, value)
}

fn polygamma(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let n = c.int("n")?;
    c.require("order", "n", (0..=8).contains(&n), "0 to 8")?;
    let x = c.tensor(cx, "self")?;
    let dtype = super::promote::to_float(cx.tensor_dtype(x));
    let f = |b: &mut BodyBuilder, x: ExprId| match n {
        0 => digamma(b, x),
        1 => trigamma(b, x),
        _ => higher_polygamma(b, x, n as i32),
    };
    Ok(vec![pointwise(cx, &[x.into()], dtype, dtype, |b, a| f(b, a[0]))?.into()])
}

/// (−1)ⁿ⁺¹·n!·Σₖ (x + k)⁻ⁿ⁻¹: the terms up to x + 16 one by one, the rest by the Euler-Maclaurin formula; as PyTorch's, it is for
/// x > −16, with infinities at the poles.
fn higher_polygamma(b: &mut BodyBuilder, x: ExprId, n: i32) -> ExprId {
    const TERMS: i32 = 16;
    /// B₂ⱼ / (2j)!.
    const TAIL: [f64; 4] = [1.0 / 12.0, -1.0 / 720.0, 1.0 / 30240.0, -1.0 / 1209600.0];
    let s = n + 1;
    let inverse_power = |b: &mut BodyBuilder, v: ExprId, e: i32| {
        let (one, mut power) = (b.like(v, 1.0), v);
        for _ in 1..e {
            power = b.mul(power, v);
        }
        b.div(one, power)
    };
    let mut sum = b.like(x, 0.0);
    for k in (0..TERMS).rev() {
        let k = b.like(x, f64::from(k));
        let at = b.add(x, k);
        let term = inverse_power(b, at, s);
        sum = b.add(sum, term);
    }
    let last = b.like(x, f64::from(TERMS));
    let a = b.add(x, last);
    let power = inverse_power(b, a, s);
    let whole = b.mul(a, power);
    let whole = times(b, whole, 1.0 / f64::from(s - 1));
    let half = times(b, power, 0.5);
    let mut tail = b.add(whole, half);
    let (square, mut factor, mut rising) = (b.mul(a, a), b.div(power, a), f64::from(s));
    for (j, c) in TAIL.iter().enumerate() {
        let term = times(b, factor, c * rising);
        tail = b.add(tail, term);
        factor = b.div(factor, square);
        let j = 2 * j as i32;
        rising *= f64::from(s + j + 1) * f64::from(s + j + 2);
    }
    let total = b.add(sum, tail);
    let factorial: f64 = (1..=n).map(f64::from).product();
    times(b, total, if n % 2 == 0 { -factorial } else { factorial })
}

/// p(p − 1)/4·ln π + Σⱼ ln Γ(x + (1 − j)/2).
fn mvlgamma(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let p = c.int("p")?;
    c.require("order", "p", (1..=64).contains(&p), "1 to 64")?;
    let p = p as i32;
    float1(cx, c, |b, x| {
        let mut sum = b.like(x, f64::from(p * (p - 1)) / 4.0 * PI.ln());
        for j in 1..=p {
            let shift = b.like(x, f64::from(1 - j) / 2.0);
            let at = b.add(x, shift);
            let term = b.un(Unary::Lgamma, at);
            sum = b.add(sum, term);
        }
        sum
    })
}

/// Modified Bessel function of order 0 or 1, multiplied by e^−|x| if `scaled`: power series below 15, asymptotic series above.
fn bessel(b: &mut BodyBuilder, x: ExprId, order: u32, scaled: bool) -> ExprId {
    let size = b.un(Unary::Abs, x);
    let (one, split) = (b.like(x, 1.0), b.like(x, 15.0));
    let near = b.min(size, split);
    let half = times(b, near, 0.5);
    let q = b.mul(half, half);
    let mut term = if order == 0 { one } else { half };
    let mut sum = term;
    for k in 1..=40u32 {
        let step = times(b, q, 1.0 / f64::from(k * (k + order)));
        term = b.mul(term, step);
        sum = b.add(sum, term);
    }
    let far = b.max(size, split);
    let inverse = b.div(one, far);
    let (mut coefficient, mut coefficients) = (1.0, vec![1.0]);
    for k in 1..=10u32 {
        let odd = f64::from(2 * k - 1);
        coefficient *= (odd * odd - f64::from(4 * order * order)) / (8.0 * f64::from(k));
        coefficients.insert(0, coefficient);
    }
    let series = polynomial(b, inverse, &coefficients);
    let circle = times(b, far, 2.0 * PI);
    let root = b.un(Unary::Sqrt, circle);
    let base = b.div(series, root);
    let exponent = if scaled { b.neg(size) } else { size };
    let e = b.un(Unary::Exp, exponent);
    let (small, large) = if scaled { (b.mul(sum, e), base) } else { (sum, b.mul(base, e)) };
    let below = b.lt(size, split);
    let v = b.select(below, small, large);
    if order == 0 {
        return v;
    }
    let zero = b.like(x, 0.0);
    let (negative, minus) = (b.lt(x, zero), b.neg(v));
    b.select(negative, minus, v)
}
