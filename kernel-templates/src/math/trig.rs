//! Sine, cosine, tangent.
//!
//! f32: angles up to 2¹³ quarter turns are reduced by four exact parts of π/2, larger ones by 96 bits of 2/π in integers.
//! f64: by three parts of π/2; beyond 2²⁰ quarter turns accuracy falls with the angle (PyTorch models feed no such angles in f64).

use crate::asm::{Asm, Glsl, Id, St};
use std::f64::consts::{FRAC_2_PI, FRAC_PI_2};

/// 2/π in words of 32 bits, most significant first, after a zero word.
const TWO_OVER_PI: [u32; 8] =
    [0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];

/// Part of π/2 below its double.
const FRAC_PI_2_TAIL: f64 = 6.123_233_995_736_766e-17;

/// π/2 in parts whose products with a quarter-turn count are exact, but the last.
fn quarter_parts(st: St) -> Vec<f64> {
    if st == St::F64 {
        // 33 bits each (fdlibm's pio2_1, pio2_2, pio2_3), then the rest.
        return vec![
            1.570_796_326_734_125_6,
            6.077_100_506_303_966e-11,
            2.022_266_248_711_166_5e-21,
            8.478_427_660_368_9e-32,
        ];
    }
    let mut rest = FRAC_PI_2;
    let mut parts: Vec<f64> = (1..=3)
        .map(|i| {
            let unit = 2f64.powi(10 - 11 * i);
            let part = (rest / unit).floor() * unit;
            rest -= part;
            part
        })
        .collect();
    parts.push(rest + FRAC_PI_2_TAIL);
    parts
}

/// `±1/(2i + first)!`, alternating: the series of the sine (first 3) or cosine (first 4) after its leading terms.
fn alternating_series(first: u32, terms: u32, sign: f64) -> Vec<f64> {
    let mut sign = sign;
    let factorial = |n: u32| (1..=n).map(f64::from).product::<f64>();
    (0..terms)
        .map(|i| {
            let c = sign / factorial(first + 2 * i);
            sign = -sign;
            c
        })
        .collect()
}

impl Asm {
    /// `(r, q)`: |x| = q·π/2 + r with |r| ≤ π/4 and a little more; q modulo 4 in its low bits.
    fn reduce_angle(&mut self, a: Id) -> (Id, Id) {
        let turns = self.mul_const(a, FRAC_2_PI);
        let k = self.glsl(Glsl::RoundEven, turns);
        let q = self.float_to_sint_raw(St::U32, k);
        let mut r = a;
        for part in quarter_parts(self.st(a)) {
            let product = self.mul_const(k, part);
            r = self.fsub(r, product);
        }
        if self.st(a) == St::F64 {
            return (r, q);
        }
        let large = self.above_const(a, 8192.0);
        let branch = self.if_begin(large);
        let (r_large, q_large) = self.reduce_large_angle(a);
        let values = self.if_end(&branch, &[r_large, q_large], &[r, q]);
        (values[0], values[1])
    }

    /// The same for f32 from 2¹³ on. a = M·2^s; bits of 2/π from weight 2¹ after scaling by 2^s are all that matters modulo 4.
    fn reduce_large_angle(&mut self, a: Id) -> (Id, Id) {
        let bits = self.bitcast(St::U32, a);
        let (c23, fraction_mask, hidden) = (self.u32(23), self.u32(0x7f_ffff), self.u32(0x80_0000));
        let exponent = self.shr(bits, c23);
        let mantissa = self.and(bits, fraction_mask);
        let mantissa = self.or(mantissa, hidden);
        // First bit of the window in TWO_OVER_PI: 30 + s, s = exponent − 150.
        let shift = self.u32((30_i32 - 150) as u32);
        let position = self.iadd(exponent, shift);
        let (five, low5) = (self.u32(5), self.u32(31));
        let word = self.shr(position, five);
        let offset = self.and(position, low5);
        let words: [Id; 4] = std::array::from_fn(|i| self.two_over_pi(word, i));
        let [high, mid, low] = std::array::from_fn(|i| self.funnel(words[i], words[i + 1], offset));
        let (_, carry_low) = self.umul_wide(mantissa, low);
        let (mid_low, mid_high) = self.umul_wide(mantissa, mid);
        let top = self.imul(mantissa, high);
        let (mid, carry) = self.add_carry(mid_low, carry_low);
        let top = self.iadd(top, mid_high);
        let top = self.iadd(top, carry);
        self.angle_from_fixed(top, mid)
    }

    /// Word `index + i` of [`TWO_OVER_PI`], index 0…4.
    fn two_over_pi(&mut self, index: Id, i: usize) -> Id {
        let mut value = self.u32(TWO_OVER_PI[i]);
        for k in 1..=4 {
            let (candidate, at) = (self.u32(*TWO_OVER_PI.get(i + k).unwrap_or(&0)), self.u32(k as u32));
            let here = self.ieq(index, at);
            value = self.select(here, candidate, value);
        }
        value
    }

    /// 32 bits of `high:low` from bit `offset` (0…31) on.
    fn funnel(&mut self, high: Id, low: Id, offset: Id) -> Id {
        let (one, c31) = (self.u32(1), self.u32(31));
        let up = self.shl(high, offset);
        let back = self.isub(c31, offset);
        let down = self.shr(low, one);
        let down = self.shr(down, back);
        self.or(up, down)
    }

    /// `(r, q)` from x·2/π as fixed point, `high:low` with two integer bits.
    fn angle_from_fixed(&mut self, high: Id, low: Id) -> (Id, Id) {
        let (two, c30, c31, zero) = (self.u32(2), self.u32(30), self.u32(31), self.u32(0));
        let quadrant = self.shr(high, c30);
        let up = self.shl(high, two);
        let down = self.shr(low, c30);
        let fraction_high = self.or(up, down);
        let fraction_low = self.shl(low, two);
        // From one half on it is the next quadrant and a negative rest.
        let round = self.shr(fraction_high, c31);
        let q = self.iadd(quadrant, round);
        let negative = self.ine(round, zero);
        let flipped_low = self.ineg(fraction_low);
        let flipped_high = self.inot(fraction_high);
        let borrow = self.ieq(fraction_low, zero);
        let borrow = self.cast(St::U32, borrow);
        let flipped_high = self.iadd(flipped_high, borrow);
        let (h, l) = self.select2(negative, (flipped_high, flipped_low), (fraction_high, fraction_low));
        let h = self.uint_to_float(St::F32, h);
        let l = self.uint_to_float(St::F32, l);
        let h = self.mul_const(h, 2f64.powi(-32));
        let l = self.mul_const(l, 2f64.powi(-64));
        let fraction = self.fadd(h, l);
        let r = self.mul_const(fraction, FRAC_PI_2);
        let minus = self.fneg(r);
        (self.select(negative, minus, r), q)
    }

    /// `(sin r, cos r)` for |r| ≤ π/4.
    fn sin_cos_reduced(&mut self, r: Id) -> (Id, Id) {
        let z = self.fmul(r, r);
        let (sin_terms, cos_terms) = if self.st(r) == St::F64 {
            (alternating_series(3, 8, -1.0), alternating_series(4, 8, 1.0))
        } else {
            (
                vec![-1.666_665_461_1e-1, 8.332_160_873_6e-3, -1.951_529_589_1e-4],
                vec![4.166_664_568_298_827e-2, -1.388_731_625_493_765e-3, 2.443_315_711_809_948e-5],
            )
        };
        let s = self.poly(z, &sin_terms);
        let zr = self.fmul(z, r);
        let s = self.fmul(zr, s);
        let sin = self.fadd(r, s);
        let c = self.poly(z, &cos_terms);
        let zz = self.fmul(z, z);
        let c = self.fmul(zz, c);
        let half = self.mul_const(z, 0.5);
        let c = self.fsub(c, half);
        let cos = self.add_const(c, 1.0);
        (sin, cos)
    }

    fn bit_set(&mut self, q: Id, bit: u32) -> Id {
        let (mask, zero) = (self.u32(bit), self.u32(0));
        let masked = self.and(q, mask);
        self.ine(masked, zero)
    }

    /// NaN for infinite angles, whatever the reduction made of them.
    fn nan_if_infinite(&mut self, x: Id, result: Id) -> Id {
        let infinite = self.is_inf(x);
        let result = self.select_const(infinite, f64::NAN, result);
        let nan = self.is_nan(x);
        self.select(nan, x, result)
    }

    /// Sine.
    pub(super) fn sin(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let (r, q) = self.reduce_angle(a);
        let (s, c) = self.sin_cos_reduced(r);
        let odd = self.bit_set(q, 1);
        let value = self.select(odd, c, s);
        let upper = self.bit_set(q, 2);
        let negative = self.sign_bit(x);
        let flip = self.lne(upper, negative);
        let minus = self.fneg(value);
        let result = self.select(flip, minus, value);
        self.nan_if_infinite(x, result)
    }

    /// Cosine.
    pub(super) fn cos(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let (r, q) = self.reduce_angle(a);
        let (s, c) = self.sin_cos_reduced(r);
        let odd = self.bit_set(q, 1);
        let value = self.select(odd, s, c);
        let one = self.u32(1);
        let next = self.iadd(q, one);
        let flip = self.bit_set(next, 2);
        let minus = self.fneg(value);
        let result = self.select(flip, minus, value);
        self.nan_if_infinite(x, result)
    }

    /// Tangent.
    pub(super) fn tan(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let (r, q) = self.reduce_angle(a);
        let (s, c) = self.sin_cos_reduced(r);
        let odd = self.bit_set(q, 1);
        let minus = self.fneg(c);
        let (above, below) = self.select2(odd, (minus, s), (s, c));
        let value = self.fdiv(above, below);
        let negative = self.sign_bit(x);
        let minus = self.fneg(value);
        let result = self.select(negative, minus, value);
        self.nan_if_infinite(x, result)
    }
}
