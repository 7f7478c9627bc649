//! Error function and the logarithm of the gamma function.

use crate::asm::{Asm, Glsl, Id, St};
use std::f64::consts::{FRAC_2_SQRT_PI, LOG2_E, PI};

/// Euler's constant.
const EULER_GAMMA: f64 = 0.577_215_664_901_532_9;
/// ½ ln 2π.
const HALF_LN_2PI: f64 = 0.918_938_533_204_672_8;

/// ζ(k) − 1 by direct summation with an Euler–Maclaurin tail.
fn zeta_minus_one(k: u32) -> f64 {
    let s = f64::from(k);
    let n = 100.0_f64;
    let head: f64 = (2..100).map(|i| f64::from(i).powf(-s)).sum();
    head + n.powf(1.0 - s) / (s - 1.0) + 0.5 * n.powf(-s) + s / 12.0 * n.powf(-s - 1.0)
        - s * (s + 1.0) * (s + 2.0) / 720.0 * n.powf(-s - 3.0)
        + s * (s + 1.0) * (s + 2.0) * (s + 3.0) * (s + 4.0) / 30240.0 * n.powf(-s - 5.0)
}

impl Asm {
    /// Error function.
    pub(super) fn erf(&mut self, x: Id) -> Id {
        let result = if self.st(x) == St::F64 { self.erf_series(x) } else { self.erf_single(x) };
        let nan = self.is_nan(x);
        self.select(nan, x, result)
    }

    /// f32: a polynomial below 0.92, and 1 − exp of one above (the coefficients are minimax fits).
    fn erf_single(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let s = self.fmul(x, x);
        let small = self.poly(
            s,
            &[1.283_791_66e-1, -3.761_253_36e-1, 1.128_199_25e-1, -2.676_813_49e-2, 4.991_194_23e-3, -5.967_617_03e-4],
        );
        let small = self.mul_add(small, x, x);
        // The fit ends at 4; from there on erf is 1 to the last bit.
        let end = self.above_const(a, 4.0);
        let capped = self.select_const(end, 4.0, a);
        let exponent = self.poly(
            capped,
            &[
                -1.0 - 1.287_175_12e-1,
                -6.348_466_87e-1,
                -1.067_778_77e-1,
                2.425_462_19e-2,
                -3.883_964_38e-3,
                3.831_971_26e-4,
                -1.728_534_70e-5,
            ]
            .map(|c| c * LOG2_E),
        );
        let exponent = self.fmul(exponent, capped);
        // At most a fifth beside 1: the device's own power of two, to a few ulp, costs the result less than one.
        let e = self.glsl(Glsl::Exp2, exponent);
        let large = self.const_sub(1.0, e);
        let large = self.copy_sign(large, x);
        let is_large = self.above_const(a, 0.921_875);
        self.select(is_large, large, small)
    }

    /// f32: within 4·10⁻⁷ of erf, whatever that is: for sums with 1 that are then rounded to a half type. 1 − 2^p of a polynomial p that is a
    /// minimax fit up to 4.2, of which the last 0.2 are cut off.
    pub(crate) fn erf_coarse(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let end = self.above_const(a, 4.0);
        let capped = self.select_const(end, 4.0, a);
        let factor = self.poly(
            capped,
            &[-1.627_925_07, -9.181_654_87e-1, -1.496_993_72e-1, 3.089_609_72e-2, -3.664_220_34e-3, 1.420_293_80e-4],
        );
        let exponent = self.fmul(factor, capped);
        let rest = self.glsl(Glsl::Exp2, exponent);
        let value = self.const_sub(1.0, rest);
        self.copy_sign(value, x)
    }

    /// f64: 2/√π · e^(−x²) · Σ 2ⁱx^(2i+1)/(2i+1)!!, whose terms are all of one sign.
    fn erf_series(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let end = self.above_const(a, 6.0);
        let capped = self.select_const(end, 6.0, a);
        let square = self.fmul(capped, capped);
        let twice = self.mul_const(square, 2.0);
        let (start, stop, one) = (self.u32(1), self.u32(160), self.u32(1));
        let series = self.loop_begin((start, stop, one), &[capped, capped]);
        let (term, sum) = (series.carried[0], series.carried[1]);
        let odd = self.iadd(series.index, series.index);
        let odd = self.iadd(odd, one);
        let odd = self.uint_to_float(St::F64, odd);
        let factor = self.fdiv(twice, odd);
        let term = self.fmul(term, factor);
        let sum = self.fadd(sum, term);
        self.loop_end(&series, &[term, sum]);
        let minus = self.fneg(square);
        let decay = self.exp(minus);
        let value = self.fmul(sum, decay);
        let value = self.mul_const(value, FRAC_2_SQRT_PI);
        let value = self.select_const(end, 1.0, value);
        self.copy_sign(value, x)
    }

    /// ln|Γ(x)|.
    pub(super) fn lgamma(&mut self, x: Id) -> Id {
        let zero = self.like(x, 0.0);
        let negative = self.flt(x, zero);
        let a = self.fabs(x);
        let positive = self.lgamma_positive(a);
        let reflected = self.lgamma_reflected(a, positive);
        let result = self.select(negative, reflected, positive);
        let origin = self.feq(a, zero);
        let infinite = self.is_inf(x);
        let pole = self.lor(origin, infinite);
        let result = self.select_const(pole, f64::INFINITY, result);
        let nan = self.is_nan(x);
        self.select(nan, x, result)
    }

    /// ln|Γ(−a)| = ln(π / |a·sin πa|) − ln Γ(a); infinite at whole numbers.
    fn lgamma_reflected(&mut self, a: Id, positive: Id) -> Id {
        let whole = self.glsl(Glsl::RoundEven, a);
        let rest = self.fsub(a, whole);
        let angle = self.mul_const(rest, PI);
        let sine = self.sin(angle);
        let sine = self.fabs(sine);
        let below = self.fmul(a, sine);
        let ratio = self.const_div(PI, below);
        let log = self.log(ratio);
        let value = self.fsub(log, positive);
        let zero = self.like(a, 0.0);
        let at_pole = self.feq(rest, zero);
        self.select_const(at_pole, f64::INFINITY, value)
    }

    /// ln Γ(a), a > 0: Stirling's series from 8 (f64: 16) on; below, a is moved into [1.5, 2.5) by factors.
    fn lgamma_positive(&mut self, a: Id) -> Id {
        let limit = self.by_type(a, 8.0, 16.0);
        let is_large = self.above_const(a, limit);
        let large = self.stirling(a);
        let capped = self.select_const(is_large, limit, a);
        let small = self.lgamma_moved(capped, limit as u32);
        self.select(is_large, large, small)
    }

    /// (a − ½)·ln a − a + ½ ln 2π + 1/12a − 1/360a³ + …
    fn stirling(&mut self, a: Id) -> Id {
        let log = self.log(a);
        let less = self.add_const(a, -0.5);
        let product = self.fmul(less, log);
        let inverse = self.const_div(1.0, a);
        let square = self.fmul(inverse, inverse);
        let terms =
            [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0, -691.0 / 360_360.0, 1.0 / 156.0];
        let tail = self.poly(square, &terms);
        let tail = self.fmul(tail, inverse);
        let value = self.fsub(product, a);
        let tail = self.add_const(tail, HALF_LN_2PI);
        self.fadd(value, tail)
    }

    /// ln Γ(a) for 0 < a ≤ limit. Every step of the argument is exact, so the zeros at 1 and 2 keep their relative accuracy.
    fn lgamma_moved(&mut self, a: Id, limit: u32) -> Id {
        // Up: Γ(a) = Γ(a + 1)/a, at most twice; t is the distance of the moved argument from 2.
        let below_one_and_half = self.less_const(a, 1.5);
        let below_half = self.less_const(a, 0.5);
        let one = self.like(a, 1.0);
        let next = self.add_const(a, 1.0);
        let two_steps = self.fmul(a, next);
        let divisor = self.select(below_one_and_half, a, one);
        let divisor = self.select(below_half, two_steps, divisor);
        // Down: Γ(y) = (y − 1)·Γ(y − 1).
        let mut y = a;
        let mut factor = one;
        for _ in 0..limit - 2 {
            let two_and_half = self.like(y, 2.5);
            let high = self.fle(two_and_half, y);
            let next = self.add_const(y, -1.0);
            let product = self.fmul(factor, next);
            factor = self.select(high, product, factor);
            y = self.select(high, next, y);
        }
        let down = self.add_const(y, -2.0);
        let up = self.add_const(a, -1.0);
        let t = self.select(below_one_and_half, up, down);
        let t = self.select(below_half, a, t);
        let near = self.lgamma_near_two(t);
        // Only one of the two differs from 1.
        let above = self.log(factor);
        let below = self.log(divisor);
        let value = self.fadd(near, above);
        self.fsub(value, below)
    }

    /// ln Γ(2 + t) = (1 − γ)t + Σ_{k≥2} (ζ(k) − 1)(−t)ᵏ/k for |t| ≤ ½.
    fn lgamma_near_two(&mut self, t: Id) -> Id {
        let mut terms = vec![1.0 - EULER_GAMMA];
        terms.extend((2..self.by_type(t, 14, 28)).map(|k| {
            let sign = if k % 2 == 0 { 1.0 } else { -1.0 };
            sign * zeta_minus_one(k) / f64::from(k)
        }));
        let p = self.poly(t, &terms);
        self.fmul(p, t)
    }
}
