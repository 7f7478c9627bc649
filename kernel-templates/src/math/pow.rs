//! Powers: 2^(y·log₂x) with the logarithm and the product in double-word arithmetic, since their error is multiplied by the exponent.

use crate::asm::{Asm, Glsl, Id, St};
use std::f64::consts::LOG2_E;

/// log₂e as a pair of floats of type `st`.
fn log2_e_pair(st: St) -> (f64, f64) {
    match st {
        St::F64 => (LOG2_E, 2.035_527_374_093_103_3e-17),
        _ => {
            let high = f64::from(LOG2_E as f32);
            (high, LOG2_E - high)
        }
    }
}

impl Asm {
    /// log₂ of a positive finite number as a pair.
    fn log2_pair(&mut self, x: Id) -> (Id, Id) {
        let (m, e) = self.log_parts(x);
        let f = self.add_const(m, -1.0);
        // ln m = 2s + 2s³/3 + …, s = f/(2 + f).
        let below = self.add_const(f, 2.0);
        let kept = self.add_const(below, -2.0);
        let below_low = self.fsub(f, kept);
        let s = self.fdiv(f, below);
        let (p_high, p_low) = self.two_product(s, below);
        let rest = self.fsub(f, p_high);
        let rest = self.fsub(rest, p_low);
        let correction = self.fmul(s, below_low);
        let rest = self.fsub(rest, correction);
        let s_low = self.fdiv(rest, below);
        let s2 = self.fmul(s, s);
        let series: Vec<f64> = (1..self.by_type(x, 6, 12)).map(|k| 2.0 / f64::from(2 * k + 1)).collect();
        let tail = self.poly(s2, &series);
        let cubic = self.fmul(s2, s);
        let tail = self.fmul(cubic, tail);
        let twice_low = self.mul_const(s_low, 2.0);
        let tail = self.fadd(tail, twice_low);
        let twice = self.mul_const(s, 2.0);
        let (ln_high, ln_low) = self.fast_two_sum(twice, tail);
        self.log2_from_ln(ln_high, ln_low, e)
    }

    /// `(ln_high + ln_low)·log₂e + e`.
    fn log2_from_ln(&mut self, ln_high: Id, ln_low: Id, e: Id) -> (Id, Id) {
        let (c_high, c_low) = log2_e_pair(self.st(ln_high));
        let c_high = self.like(ln_high, c_high);
        let (p_high, p_low) = self.two_product(ln_high, c_high);
        let cross1 = self.mul_const(ln_high, c_low);
        let cross2 = self.fmul(ln_low, c_high);
        let cross = self.fadd(cross1, cross2);
        let p_low = self.fadd(p_low, cross);
        let (high, low) = self.two_sum(e, p_high);
        let low = self.fadd(low, p_low);
        self.fast_two_sum(high, low)
    }

    /// aʸ for positive finite a.
    fn pow_positive(&mut self, a: Id, y: Id) -> Id {
        let (log_high, log_low) = self.log2_pair(a);
        let (high, low) = self.two_product(y, log_high);
        let cross = self.fmul(y, log_low);
        let low = self.fadd(low, cross);
        let limit = self.by_type(a, 160.0, 1100.0);
        let magnitude = self.fabs(high);
        let inside = self.less_const(magnitude, limit);
        let most = self.like(a, limit);
        let edge = self.copy_sign(most, high);
        let high = self.select(inside, high, edge);
        let zero = self.like(a, 0.0);
        let low = self.select(inside, low, zero);
        self.exp2_sum(high, low)
    }

    /// `(y is an integer, y is an odd one)`.
    fn integer_parity(&mut self, y: Id) -> (Id, Id) {
        let floor = self.glsl(Glsl::Floor, y);
        let whole = self.feq(floor, y);
        let half = self.mul_const(y, 0.5);
        let half_floor = self.glsl(Glsl::Floor, half);
        let half_whole = self.feq(half_floor, half);
        let not_even = self.lnot(half_whole);
        (whole, self.land(whole, not_even))
    }

    /// xʸ with the special values of C.
    pub(crate) fn pow(&mut self, x: Id, y: Id) -> Id {
        let a = self.fabs(x);
        let (whole, odd) = self.integer_parity(y);
        let core = self.pow_positive(a, y);
        let result = self.pow_edges(a, y, core);
        let negative = self.sign_bit(x);
        let flip = self.land(negative, odd);
        let minus = self.fneg(result);
        let result = self.select(flip, minus, result);
        // A negative base to a broken power, unless the base is zero or infinite.
        let broken = self.lnot(whole);
        let zero = self.like(x, 0.0);
        let below = self.flt(x, zero);
        let infinite = self.is_inf(x);
        let finite = self.lnot(infinite);
        let undefined = self.land(broken, below);
        let undefined = self.land(undefined, finite);
        let result = self.select_const(undefined, f64::NAN, result);
        let sum = self.fadd(x, y);
        let nan = self.is_nan(sum);
        let nan_x = self.is_nan(x);
        let nan_y = self.is_nan(y);
        let either = self.lor(nan_x, nan_y);
        let nan = self.land(nan, either);
        let result = self.select(nan, sum, result);
        let one = self.like(x, 1.0);
        let base_one = self.feq(x, one);
        let power_zero = self.feq(y, zero);
        let is_one = self.lor(base_one, power_zero);
        self.select_const(is_one, 1.0, result)
    }

    /// aʸ where a is 0 or infinite, or y infinite; elsewhere `core`.
    fn pow_edges(&mut self, a: Id, y: Id, core: Id) -> Id {
        let zero = self.like(a, 0.0);
        let grows = self.flt(zero, y);
        let infinity = self.like(a, f64::INFINITY);
        let at_infinity = self.select(grows, infinity, zero);
        let at_zero = self.select(grows, zero, infinity);
        let y_infinite = self.is_inf(y);
        let above_one = self.above_const(a, 1.0);
        let below_one = self.less_const(a, 1.0);
        let one = self.like(a, 1.0);
        let limit = self.select(above_one, at_infinity, one);
        let limit = self.select(below_one, at_zero, limit);
        // (−1)^±∞ is 1, and an infinite power is an even integer.
        let result = self.select(y_infinite, limit, core);
        let a_infinite = self.is_inf(a);
        let result = self.select(a_infinite, at_infinity, result);
        let a_zero = self.feq(a, zero);
        self.select(a_zero, at_zero, result)
    }
}
