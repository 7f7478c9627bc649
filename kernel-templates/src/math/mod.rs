//! Elementary functions as kernels compute them, in f32 and f64, to within a few ulp on every driver.
//!
//! GLSL.std.450 promises too little for what models need (sine to 2⁻¹¹ absolute, `exp` to 3 + 2|x| ulp, `pow` by way of both) and has no
//! f64 forms, so nothing here uses it beyond |x|, rounding, square roots, and powers of two whose error hardly counts ([`Asm::erf`]). All is straight-line code but the reduction of huge angles
//! and the series of [`Asm::erf`] in f64. NaN, infinities and zeros are followed through each function; f32 subnormals may be flushed by the device.

mod double_word;
mod error_gamma;
mod exp_log;
mod inverse_trig;
mod pow;
mod trig;

use crate::asm::{Asm, Glsl, Id, St};
use crate::expr::Unary;

/// Bit layout of a float, as its highest word shows it.
struct Layout {
    exponent_shift: u32,
    bias: u32,
    infinity: u32,
}

fn layout(st: St) -> Layout {
    match st {
        St::F64 => Layout { exponent_shift: 20, bias: 1023, infinity: 0x7ff0_0000 },
        _ => Layout { exponent_shift: 23, bias: 127, infinity: 0x7f80_0000 },
    }
}

/// Small pieces that the functions share.
impl Asm {
    /// A constant of the type of `x`.
    fn like(&mut self, x: Id, v: f64) -> Id {
        let st = self.st(x);
        self.float(st, v)
    }

    /// `v` chosen by the type of `x`.
    fn by_type<T>(&self, x: Id, single: T, double: T) -> T {
        if self.st(x) == St::F64 { double } else { single }
    }

    /// `Σ c_i x^i`, lowest first, by Horner's rule; a step may be fused, which loses nothing and halves the instructions.
    fn poly(&mut self, x: Id, coefficients: &[f64]) -> Id {
        let (&last, rest) = coefficients.split_last().expect("a polynomial has a coefficient");
        let mut acc = self.like(x, last);
        for &c in rest.iter().rev() {
            let c = self.like(x, c);
            acc = self.mul_add(acc, x, c);
        }
        acc
    }

    fn add_const(&mut self, x: Id, v: f64) -> Id {
        let v = self.like(x, v);
        self.fadd(x, v)
    }

    fn mul_const(&mut self, x: Id, v: f64) -> Id {
        let v = self.like(x, v);
        self.fmul(x, v)
    }

    /// `v / x`.
    fn const_div(&mut self, v: f64, x: Id) -> Id {
        let v = self.like(x, v);
        self.fdiv(v, x)
    }

    /// `v − x`.
    fn const_sub(&mut self, v: f64, x: Id) -> Id {
        let v = self.like(x, v);
        self.fsub(v, x)
    }

    fn less_const(&mut self, x: Id, v: f64) -> Id {
        let v = self.like(x, v);
        self.flt(x, v)
    }

    fn above_const(&mut self, x: Id, v: f64) -> Id {
        let v = self.like(x, v);
        self.flt(v, x)
    }

    /// `cond ? v : x`.
    fn select_const(&mut self, cond: Id, v: f64, x: Id) -> Id {
        let v = self.like(x, v);
        self.select(cond, v, x)
    }

    /// `cond ? a : b` on pairs.
    fn select2(&mut self, cond: Id, a: (Id, Id), b: (Id, Id)) -> (Id, Id) {
        (self.select(cond, a.0, b.0), self.select(cond, a.1, b.1))
    }

    /// |x|.
    pub(crate) fn fabs(&mut self, x: Id) -> Id {
        self.glsl(Glsl::FAbs, x)
    }

    /// The word with sign and exponent.
    fn high_word(&mut self, x: Id) -> Id {
        match self.st(x) {
            St::F64 => self.split64(x).1,
            _ => self.bitcast(St::U32, x),
        }
    }

    /// `x` with its highest word replaced by `high`.
    fn with_high_word(&mut self, x: Id, high: Id) -> Id {
        match self.st(x) {
            St::F64 => {
                let low = self.split64(x).0;
                self.join64(low, high)
            }
            _ => self.bitcast(St::F32, high),
        }
    }

    /// |magnitude| with the sign of `sign`, zeros and NaN included.
    fn copy_sign(&mut self, magnitude: Id, sign: Id) -> Id {
        let mask = self.u32(0x8000_0000);
        let rest = self.u32(0x7fff_ffff);
        let from = self.high_word(sign);
        let from = self.and(from, mask);
        let to = self.high_word(magnitude);
        let to = self.and(to, rest);
        let high = self.or(to, from);
        self.with_high_word(magnitude, high)
    }

    /// True where the sign bit is set.
    fn sign_bit(&mut self, x: Id) -> Id {
        let mask = self.u32(0x8000_0000);
        let zero = self.u32(0);
        let high = self.high_word(x);
        let bit = self.and(high, mask);
        self.ine(bit, zero)
    }

    /// By bits, which no driver optimises away.
    pub(crate) fn is_nan(&mut self, x: Id) -> Id {
        let (above, equal, low_set) = self.against_infinity(x);
        let equal = self.land(equal, low_set);
        self.lor(above, equal)
    }

    /// By bits.
    pub(crate) fn is_inf(&mut self, x: Id) -> Id {
        let (_, equal, low_set) = self.against_infinity(x);
        let low_clear = self.lnot(low_set);
        self.land(equal, low_clear)
    }

    /// The magnitude's high word above or equal to that of infinity, and whether lower words are not all zero.
    fn against_infinity(&mut self, x: Id) -> (Id, Id, Id) {
        let infinity = self.u32(layout(self.st(x)).infinity);
        let mask = self.u32(0x7fff_ffff);
        let high = self.high_word(x);
        let magnitude = self.and(high, mask);
        let above = self.ult(infinity, magnitude);
        let equal = self.ieq(infinity, magnitude);
        let low_set = if self.st(x) == St::F64 {
            let (low, zero) = (self.split64(x).0, self.u32(0));
            self.ine(low, zero)
        } else {
            self.bool(false)
        };
        (above, equal, low_set)
    }

    /// 2ⁿ for a 32-bit integer n in the range of normal exponents.
    fn pow2(&mut self, st: St, n: Id) -> Id {
        let Layout { exponent_shift, bias, .. } = layout(st);
        let (bias, shift) = (self.u32(bias), self.u32(exponent_shift));
        let biased = self.iadd(n, bias);
        let high = self.shl(biased, shift);
        if st == St::F64 {
            let zero = self.u32(0);
            self.join64(zero, high)
        } else {
            self.bitcast(St::F32, high)
        }
    }

    /// x·2ⁿ in two steps, so that results may be subnormal or infinite. |n| is at most twice the exponent range.
    fn scale_by_pow2(&mut self, x: Id, n: Id) -> Id {
        let st = self.st(x);
        let one = self.u32(1);
        let half = self.sar(n, one);
        let rest = self.isub(n, half);
        let (first, second) = (self.pow2(st, half), self.pow2(st, rest));
        let x = self.fmul(x, first);
        self.fmul(x, second)
    }

    /// Larger of two floats; NaN if either is.
    pub(crate) fn fmax_nan(&mut self, a: Id, b: Id) -> Id {
        let above = self.flt(b, a);
        self.pick_or_nan(above, a, b)
    }

    /// Smaller of two floats; NaN if either is.
    pub(crate) fn fmin_nan(&mut self, a: Id, b: Id) -> Id {
        let below = self.flt(a, b);
        self.pick_or_nan(below, a, b)
    }

    /// `a` where it is preferred or NaN, else `b` (which a NaN in `b` reaches, since no comparison with it holds).
    fn pick_or_nan(&mut self, preferred: Id, a: Id, b: Id) -> Id {
        let nan = self.is_nan(a);
        let take = self.lor(preferred, nan);
        self.select(take, a, b)
    }

    /// Remainder with the dividend's sign. Exact while the quotient fits the mantissa, as in every use by a model.
    pub(crate) fn frem(&mut self, x: Id, y: Id) -> Id {
        let (a, b) = (self.fabs(x), self.fabs(y));
        let quotient = self.fdiv(a, b);
        let whole = self.glsl(Glsl::Trunc, quotient);
        let rest = self.remainder_after(a, b, whole);
        // A rounded quotient may be one off in either direction.
        let zero = self.like(x, 0.0);
        let negative = self.flt(rest, zero);
        let raised = self.fadd(rest, b);
        let rest = self.select(negative, raised, rest);
        let over = self.fle(b, rest);
        let lowered = self.fsub(rest, b);
        let rest = self.select(over, lowered, rest);
        let infinite = self.is_inf(b);
        let rest = self.select(infinite, a, rest);
        let signed = self.copy_sign(rest, x);
        let by_zero = self.feq(b, zero);
        let endless = self.is_inf(a);
        let undefined = self.lor(by_zero, endless);
        let signed = self.select_const(undefined, f64::NAN, signed);
        let sum = self.fadd(x, y);
        let nan_x = self.is_nan(x);
        let nan_y = self.is_nan(y);
        let nan = self.lor(nan_x, nan_y);
        self.select(nan, sum, signed)
    }

    /// `a − whole·b` with the product in two words.
    fn remainder_after(&mut self, a: Id, b: Id, whole: Id) -> Id {
        let (high, low) = self.two_product(whole, b);
        let rest = self.fsub(a, high);
        self.fsub(rest, low)
    }

    /// The float functions of [`Unary`] that this module owns; `None` for the others.
    pub(crate) fn elementary(&mut self, op: Unary, x: Id) -> Option<Id> {
        Some(match op {
            Unary::Exp => self.exp(x),
            Unary::Exp2 => self.exp2(x),
            Unary::Expm1 => self.expm1(x),
            Unary::Log => self.log(x),
            Unary::Log2 => self.log2(x),
            Unary::Log1p => self.log1p(x),
            Unary::Sqrt => self.sqrt_rounded(x),
            Unary::Rsqrt => {
                let root = self.glsl(Glsl::Sqrt, x);
                self.const_div(1.0, root)
            }
            Unary::Sin => self.sin(x),
            Unary::Cos => self.cos(x),
            Unary::Tan => self.tan(x),
            Unary::Asin => self.asin(x),
            Unary::Acos => self.acos(x),
            Unary::Atan => self.atan(x),
            Unary::Sinh => self.sinh(x),
            Unary::Cosh => self.cosh(x),
            Unary::Tanh => self.tanh(x),
            Unary::Asinh => self.asinh(x),
            Unary::Acosh => self.acosh(x),
            Unary::Atanh => self.atanh(x),
            Unary::Erf => self.erf(x),
            Unary::Lgamma => self.lgamma(x),
            Unary::IsNan => self.is_nan(x),
            Unary::IsInf => self.is_inf(x),
            Unary::Floor => self.glsl(Glsl::Floor, x),
            Unary::Ceil => self.glsl(Glsl::Ceil, x),
            Unary::Trunc => self.glsl(Glsl::Trunc, x),
            Unary::Round => self.glsl(Glsl::RoundEven, x),
            Unary::Neg | Unary::Abs | Unary::Not => return None,
        })
    }
}
