//! Arc functions.

use crate::asm::{Asm, Glsl, Id, St};
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

/// tan(π/8) and tan(3π/8): where the arc tangent changes its reduction.
const TAN_PI_8: f64 = 0.414_213_562_373_095_05;
const TAN_3PI_8: f64 = 2.414_213_562_373_095;

impl Asm {
    /// asin(s) for s² = z ≤ ¼ (f32).
    fn asin_core(&mut self, s: Id, z: Id) -> Id {
        let terms =
            [1.666_675_242_2e-1, 7.495_300_268_6e-2, 4.547_002_599_8e-2, 2.418_131_104_9e-2, 4.216_319_904_8e-2];
        let p = self.poly(z, &terms);
        let p = self.fmul(p, z);
        let p = self.fmul(p, s);
        self.fadd(s, p)
    }

    /// `(core, large)` for |x| = a: asin(a) where a ≤ ½ (`large` false), else asin(√((1−a)/2)) (f32).
    fn asin_halves(&mut self, a: Id) -> (Id, Id) {
        let large = self.above_const(a, 0.5);
        let rest = self.const_sub(1.0, a);
        let z_large = self.mul_const(rest, 0.5);
        let s_large = self.glsl(Glsl::Sqrt, z_large);
        let z_small = self.fmul(a, a);
        let (s, z) = self.select2(large, (s_large, z_large), (a, z_small));
        (self.asin_core(s, z), large)
    }

    /// √((1−x)(1+x)).
    fn co_leg(&mut self, x: Id) -> Id {
        let minus = self.const_sub(1.0, x);
        let plus = self.add_const(x, 1.0);
        let square = self.fmul(minus, plus);
        self.glsl(Glsl::Sqrt, square)
    }

    fn nan_beyond_one(&mut self, x: Id, result: Id) -> Id {
        let a = self.fabs(x);
        let outside = self.above_const(a, 1.0);
        self.select_const(outside, f64::NAN, result)
    }

    /// Arc sine.
    pub(super) fn asin(&mut self, x: Id) -> Id {
        let result = if self.st(x) == St::F64 {
            let leg = self.co_leg(x);
            self.atan2(x, leg)
        } else {
            let a = self.fabs(x);
            let (core, large) = self.asin_halves(a);
            let twice = self.mul_const(core, 2.0);
            let from_right = self.const_sub(FRAC_PI_2, twice);
            let value = self.select(large, from_right, core);
            self.copy_sign(value, x)
        };
        self.nan_beyond_one(x, result)
    }

    /// Arc cosine.
    pub(super) fn acos(&mut self, x: Id) -> Id {
        let result = if self.st(x) == St::F64 {
            let leg = self.co_leg(x);
            self.atan2(leg, x)
        } else {
            let a = self.fabs(x);
            let (core, large) = self.asin_halves(a);
            let twice = self.mul_const(core, 2.0);
            let from_left = self.const_sub(PI, twice);
            let negative = self.sign_bit(x);
            let outer = self.select(negative, from_left, twice);
            let signed = self.copy_sign(core, x);
            let inner = self.const_sub(FRAC_PI_2, signed);
            self.select(large, outer, inner)
        };
        self.nan_beyond_one(x, result)
    }

    /// atan(t) − t over t for |t| ≤ tan(π/8), by t².
    fn atan_reduced(&mut self, t: Id) -> Id {
        let z = self.fmul(t, t);
        let terms: Vec<f64> = if self.st(t) == St::F64 {
            (1..22).map(|k| if k % 2 == 0 { 1.0 } else { -1.0 } / f64::from(2 * k + 1)).collect()
        } else {
            vec![-3.333_294_915_39e-1, 1.997_771_064_78e-1, -1.387_768_560_32e-1, 8.053_744_495_38e-2]
        };
        let p = self.poly(z, &terms);
        let p = self.fmul(p, z);
        let p = self.fmul(p, t);
        self.fadd(t, p)
    }

    /// Arc tangent.
    pub(super) fn atan(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let far = self.above_const(a, TAN_3PI_8);
        let middle = self.above_const(a, TAN_PI_8);
        let t_far = self.const_div(-1.0, a);
        let above = self.add_const(a, -1.0);
        let below = self.add_const(a, 1.0);
        let t_middle = self.fdiv(above, below);
        let t = self.select(middle, t_middle, a);
        let t = self.select(far, t_far, t);
        let zero = self.like(x, 0.0);
        let start = self.select_const(middle, FRAC_PI_4, zero);
        let start = self.select_const(far, FRAC_PI_2, start);
        let core = self.atan_reduced(t);
        // NaN comes through the sum by itself. (Selecting it after the sign is set is miscompiled by llvmpipe of Mesa 26.1.)
        let sum = self.fadd(start, core);
        self.copy_sign(sum, x)
    }

    /// Angle of the point (x, y).
    pub(crate) fn atan2(&mut self, y: Id, x: Id) -> Id {
        let (a, b) = (self.fabs(y), self.fabs(x));
        let steep = self.flt(b, a);
        let (low, high) = self.select2(steep, (b, a), (a, b));
        let ratio = self.fdiv(low, high);
        let zero = self.like(x, 0.0);
        let origin = self.feq(high, zero);
        let ratio = self.select_const(origin, 0.0, ratio);
        let low_infinite = self.is_inf(low);
        let ratio = self.select_const(low_infinite, 1.0, ratio);
        let angle = self.atan(ratio);
        let turned = self.const_sub(FRAC_PI_2, angle);
        let angle = self.select(steep, turned, angle);
        let left = self.sign_bit(x);
        let turned = self.const_sub(PI, angle);
        let angle = self.select(left, turned, angle);
        let result = self.copy_sign(angle, y);
        let sum = self.fadd(x, y);
        let nan_x = self.is_nan(x);
        let nan_y = self.is_nan(y);
        let nan = self.lor(nan_x, nan_y);
        self.select(nan, sum, result)
    }
}
