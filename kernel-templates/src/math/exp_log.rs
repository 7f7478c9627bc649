//! Exponentials, logarithms and what is built from them: hyperbolic functions and their inverses.

use super::layout;
use crate::asm::{Asm, Glsl, Id, St};
use std::f64::consts::{LN_2, LOG2_E};

/// ln 2 in two parts; the first has so few bits that its product with any exponent is exact.
pub(super) fn ln2_parts(st: St) -> (f64, f64) {
    match st {
        St::F64 => (6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10),
        _ => (0.693_359_375, -2.121_944_400_546_905_8e-4),
    }
}

/// `1/2!, 1/3!, …`: the series of (eʳ − 1 − r)/r².
fn exp_series(terms: u32) -> Vec<f64> {
    let mut factorial = 1.0;
    (2..2 + terms)
        .map(|i| {
            factorial *= f64::from(i);
            1.0 / factorial
        })
        .collect()
}

impl Asm {
    /// eʳ − 1 for |r| ≤ ln 2 / 2 and a little more.
    pub(super) fn expm1_reduced(&mut self, r: Id) -> Id {
        let terms = exp_series(self.by_type(r, 7, 13));
        let tail = self.poly(r, &terms);
        let square = self.fmul(r, r);
        self.mul_add(square, tail, r)
    }

    /// `(eʳ − 1, n)` with x = n·ln 2 + r, x held to where e^x neither overflows nor vanishes twice over. NaN gives NaN and some n.
    fn exp_parts(&mut self, x: Id) -> (Id, Id) {
        let (low, high) = self.by_type(x, (-105.0, 90.0), (-746.0, 711.0));
        let above = self.above_const(x, high);
        let x = self.select_const(above, high, x);
        let below = self.less_const(x, low);
        let x = self.select_const(below, low, x);
        let scaled = self.mul_const(x, LOG2_E);
        let k = self.glsl(Glsl::RoundEven, scaled);
        let n = self.float_to_sint_raw(St::U32, k);
        let (part1, part2) = ln2_parts(self.st(x));
        // The first product is exact: fused or not is the same.
        let (part1, part2) = (self.like(x, -part1), self.like(x, -part2));
        let r = self.mul_add(k, part1, x);
        let r = self.mul_add(k, part2, r);
        (self.expm1_reduced(r), n)
    }

    /// eˣ.
    pub(super) fn exp(&mut self, x: Id) -> Id {
        let (em1, n) = self.exp_parts(x);
        let value = self.add_const(em1, 1.0);
        self.scale_by_pow2(value, n)
    }

    /// f32: eˣ by the device's power of two, for what is then rounded to a half type: the error grows with |x|, to some 10⁻⁶ of the result at the ends
    /// of f16's range.
    pub(crate) fn exp_coarse(&mut self, x: Id) -> Id {
        let scaled = self.mul_const(x, LOG2_E);
        self.glsl(Glsl::Exp2, scaled)
    }

    /// 2ˣ.
    pub(super) fn exp2(&mut self, x: Id) -> Id {
        let limit = self.by_type(x, 160.0, 1100.0);
        let above = self.above_const(x, limit);
        let x = self.select_const(above, limit, x);
        let below = self.less_const(x, -limit);
        let x = self.select_const(below, -limit, x);
        let zero = self.like(x, 0.0);
        self.exp2_sum(x, zero)
    }

    /// 2^(high + low) for |high| in the range of exponents and |low| far below 1.
    pub(super) fn exp2_sum(&mut self, high: Id, low: Id) -> Id {
        let k = self.glsl(Glsl::RoundEven, high);
        let n = self.float_to_sint_raw(St::U32, k);
        let rest = self.fsub(high, k);
        let rest = self.fadd(rest, low);
        let r = self.mul_const(rest, LN_2);
        let em1 = self.expm1_reduced(r);
        let value = self.add_const(em1, 1.0);
        self.scale_by_pow2(value, n)
    }

    /// eˣ − 1.
    pub(super) fn expm1(&mut self, x: Id) -> Id {
        let st = self.st(x);
        let (em1, n) = self.exp_parts(x);
        let value = self.add_const(em1, 1.0);
        let large = self.scale_by_pow2(value, n);
        // e^x − 1 = 2ⁿ(eʳ − 1) + (2ⁿ − 1), while 2ⁿ is a normal number; above that the 1 does not count, below the result is −1.
        let most = self.u32(60);
        let least = self.u32((-60_i32) as u32);
        let is_large = self.slt(most, n);
        let capped = self.select(is_large, most, n);
        let is_low = self.slt(capped, least);
        let capped = self.select(is_low, least, capped);
        let scale = self.pow2(st, capped);
        let first = self.fmul(scale, em1);
        let second = self.add_const(scale, -1.0);
        let small = self.fadd(first, second);
        let result = self.select(is_large, large, small);
        // Zeros keep their sign and subnormals their value.
        let tiny = self.fabs(x);
        let tiny = self.less_const(tiny, 1e-30);
        let result = self.select(tiny, x, result);
        let nan = self.is_nan(x);
        self.select(nan, x, result)
    }

    /// `(m, e)` with x = m·2^e, m in [√½, √2), for positive finite x; e as a float.
    pub(super) fn log_parts(&mut self, x: Id) -> (Id, Id) {
        let st = self.st(x);
        let shift = self.u32(layout(st).exponent_shift);
        let least_normal = self.u32(1 << layout(st).exponent_shift);
        let high = self.high_word(x);
        let subnormal = self.ult(high, least_normal);
        // f32: the bits of a subnormal are its mantissa, so that devices that flush it still see its value.
        let (scaled, shifted_by) = match st {
            St::F64 => (self.mul_const(x, 2f64.powi(54)), -54.0),
            _ => (self.uint_to_float(St::F32, high), -149.0),
        };
        let x = self.select(subnormal, scaled, x);
        let high = self.high_word(x);
        let root_half = self.u32(self.by_type(x, 0x3f35_04f3, 0x3fe6_a09e));
        let offset = self.isub(high, root_half);
        let e = self.sar(offset, shift);
        let exponent_bits = self.shl(e, shift);
        let mantissa = self.isub(high, exponent_bits);
        let m = self.with_high_word(x, mantissa);
        let e = self.sint_to_float(st, e);
        let adjusted = self.add_const(e, shifted_by);
        let e = self.select(subnormal, adjusted, e);
        (m, e)
    }

    /// ln(1 + f) as `f + tail`, for 1 + f in [√½, √2).
    fn log_tail(&mut self, f: Id) -> Id {
        let square = self.fmul(f, f);
        let half = self.mul_const(square, 0.5);
        if self.st(f) == St::F64 {
            // ln(1+f) = f − (f²/2 − s(f²/2 + R)), s = f/(2+f), R = s²(2/3 + 2/5 s² + …).
            let below = self.add_const(f, 2.0);
            let s = self.fdiv(f, below);
            let s2 = self.fmul(s, s);
            let series: Vec<f64> = (1..12).map(|k| 2.0 / f64::from(2 * k + 1)).collect();
            let r = self.poly(s2, &series);
            let r = self.fmul(s2, r);
            let inner = self.fadd(half, r);
            let inner = self.fmul(s, inner);
            return self.fsub(inner, half);
        }
        let p = self.poly(
            f,
            &[
                3.333_333_117_4e-1,
                -2.499_999_399_3e-1,
                2.000_071_476_5e-1,
                -1.666_805_766_5e-1,
                1.424_932_278_7e-1,
                -1.242_014_084_6e-1,
                1.167_699_874_0e-1,
                -1.151_461_031_0e-1,
                7.037_683_629_2e-2,
            ],
        );
        let cubic = self.fmul(square, f);
        let p = self.fmul(cubic, p);
        self.fsub(p, half)
    }

    /// The logarithm's values where `finite`, computed for positive finite x, does not hold.
    fn log_specials(&mut self, x: Id, finite: Id) -> Id {
        let infinite = self.is_inf(x);
        let result = self.select(infinite, x, finite);
        let negative = self.sign_bit(x);
        let result = self.select_const(negative, f64::NAN, result);
        let zero = self.is_zero(x);
        let result = self.select_const(zero, f64::NEG_INFINITY, result);
        let nan = self.is_nan(x);
        self.select(nan, x, result)
    }

    /// Zero of either sign; by bits, so that a flushed subnormal is none.
    fn is_zero(&mut self, x: Id) -> Id {
        if self.st(x) == St::F64 {
            let zero = self.like(x, 0.0);
            return self.feq(x, zero);
        }
        let mask = self.u32(0x7fff_ffff);
        let zero = self.u32(0);
        let bits = self.high_word(x);
        let magnitude = self.and(bits, mask);
        self.ieq(magnitude, zero)
    }

    /// Natural logarithm.
    pub(super) fn log(&mut self, x: Id) -> Id {
        let (m, e) = self.log_parts(x);
        let (part1, part2) = ln2_parts(self.st(x));
        let f = self.add_const(m, -1.0);
        let tail = self.log_tail(f);
        let low = self.mul_const(e, part2);
        let tail = self.fadd(low, tail);
        let sum = self.fadd(f, tail);
        let high = self.mul_const(e, part1);
        let finite = self.fadd(high, sum);
        self.log_specials(x, finite)
    }

    /// Base-2 logarithm; powers of two are exact.
    pub(super) fn log2(&mut self, x: Id) -> Id {
        let (m, e) = self.log_parts(x);
        let f = self.add_const(m, -1.0);
        let tail = self.log_tail(f);
        // (f + tail)·log2(e) with log2(e) = 1 + c keeps the leading product exact.
        let c = LOG2_E - 1.0;
        let a = self.mul_const(tail, c);
        let b = self.mul_const(f, c);
        let ab = self.fadd(a, b);
        let ab = self.fadd(ab, tail);
        let sum = self.fadd(ab, f);
        let finite = self.fadd(sum, e);
        self.log_specials(x, finite)
    }

    /// ln(1 + x): the logarithm of the rounded sum, corrected for what rounding lost.
    pub(super) fn log1p(&mut self, x: Id) -> Id {
        let u = self.add_const(x, 1.0);
        let log = self.log(u);
        let back = self.add_const(u, -1.0);
        let lost = self.fsub(x, back);
        let lost = self.fdiv(lost, u);
        let sum = self.fadd(log, lost);
        let zero = self.like(x, 0.0);
        let special_u = self.feq(u, zero);
        let infinite = self.is_inf(x);
        let special = self.lor(special_u, infinite);
        let result = self.select(special, log, sum);
        let tiny = self.fabs(x);
        let tiny = self.less_const(tiny, 1e-30);
        self.select(tiny, x, result)
    }

    /// Hyperbolic sine.
    pub(super) fn sinh(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let t = self.expm1(a);
        let below = self.add_const(t, 1.0);
        let ratio = self.fdiv(t, below);
        let sum = self.fadd(t, ratio);
        let small = self.mul_const(sum, 0.5);
        let large = self.half_exp(a);
        let threshold = self.by_type(x, 20.0, 40.0);
        let is_large = self.above_const(a, threshold);
        let result = self.select(is_large, large, small);
        self.copy_sign(result, x)
    }

    /// Hyperbolic cosine.
    pub(super) fn cosh(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let e = self.exp(a);
        let inverse = self.const_div(1.0, e);
        let sum = self.fadd(e, inverse);
        let small = self.mul_const(sum, 0.5);
        let large = self.half_exp(a);
        let threshold = self.by_type(x, 20.0, 40.0);
        let is_large = self.above_const(a, threshold);
        self.select(is_large, large, small)
    }

    /// eˣ/2 for large x, without overflow on the way: the halving is part of the scaling.
    fn half_exp(&mut self, a: Id) -> Id {
        let (em1, n) = self.exp_parts(a);
        let one = self.u32(1);
        let n = self.isub(n, one);
        let value = self.add_const(em1, 1.0);
        self.scale_by_pow2(value, n)
    }

    /// Hyperbolic tangent.
    pub(super) fn tanh(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let threshold = self.by_type(x, 10.0, 20.0);
        let is_large = self.above_const(a, threshold);
        let a = self.select_const(is_large, threshold, a);
        let twice = self.mul_const(a, 2.0);
        let t = self.expm1(twice);
        let below = self.add_const(t, 2.0);
        let ratio = self.fdiv(t, below);
        let result = self.select_const(is_large, 1.0, ratio);
        self.copy_sign(result, x)
    }

    /// Inverse hyperbolic sine.
    pub(super) fn asinh(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let square = self.fmul(a, a);
        let under = self.add_const(square, 1.0);
        let root = self.glsl(Glsl::Sqrt, under);
        let below = self.add_const(root, 1.0);
        let ratio = self.fdiv(square, below);
        let inner = self.fadd(a, ratio);
        let small = self.log1p(inner);
        let result = self.log_twice_where_large(a, small);
        self.copy_sign(result, x)
    }

    /// Inverse hyperbolic cosine; NaN below 1.
    pub(super) fn acosh(&mut self, x: Id) -> Id {
        let t = self.add_const(x, -1.0);
        let twice = self.mul_const(t, 2.0);
        let square = self.fmul(t, t);
        let under = self.fadd(twice, square);
        let root = self.glsl(Glsl::Sqrt, under);
        let inner = self.fadd(t, root);
        let small = self.log1p(inner);
        let result = self.log_twice_where_large(x, small);
        let outside = self.less_const(x, 1.0);
        self.select_const(outside, f64::NAN, result)
    }

    /// ln 2a where a ≥ 2²⁸ (there equal to either inverse), else `small`.
    fn log_twice_where_large(&mut self, a: Id, small: Id) -> Id {
        let log = self.log(a);
        let large = self.add_const(log, LN_2);
        let is_large = self.above_const(a, 2f64.powi(28));
        self.select(is_large, large, small)
    }

    /// Inverse hyperbolic tangent.
    pub(super) fn atanh(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let twice = self.mul_const(a, 2.0);
        let below = self.const_sub(1.0, a);
        let ratio = self.fdiv(twice, below);
        let log = self.log1p(ratio);
        let result = self.mul_const(log, 0.5);
        let result = self.copy_sign(result, x);
        let outside = self.above_const(a, 1.0);
        self.select_const(outside, f64::NAN, result)
    }
}
