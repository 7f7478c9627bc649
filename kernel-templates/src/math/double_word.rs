//! Double-word arithmetic (unevaluated sums of two floats), and what its exact residuals correct: quotients and square roots.
//!
//! Vulkan allows 2.5 ulp for a division and as much for a root; NVIDIA makes 21 / 7 into 3.0000002, which floor division cannot bear.

use crate::asm::{Asm, Glsl, Id, St};

/// Double-word arithmetic: unevaluated sums of two floats.
impl Asm {
    /// a + b exactly, for |a| ≥ |b|.
    pub(super) fn fast_two_sum(&mut self, a: Id, b: Id) -> (Id, Id) {
        let sum = self.fadd(a, b);
        let back = self.fsub(sum, a);
        (sum, self.fsub(b, back))
    }

    /// a + b exactly.
    pub(crate) fn two_sum(&mut self, a: Id, b: Id) -> (Id, Id) {
        let sum = self.fadd(a, b);
        let b_part = self.fsub(sum, a);
        let a_part = self.fsub(sum, b_part);
        let a_lost = self.fsub(a, a_part);
        let b_lost = self.fsub(b, b_part);
        (sum, self.fadd(a_lost, b_lost))
    }

    /// x as a sum of two floats of half the bits.
    fn split_halves(&mut self, x: Id) -> (Id, Id) {
        let high = if self.st(x) == St::F64 {
            let (low, high) = self.split64(x);
            let mask = self.u32(0xf800_0000);
            let low = self.and(low, mask);
            self.join64(low, high)
        } else {
            let bits = self.bitcast(St::U32, x);
            let mask = self.u32(0xffff_f000);
            let bits = self.and(bits, mask);
            self.bitcast(St::F32, bits)
        };
        (high, self.fsub(x, high))
    }

    /// a·b exactly.
    pub(super) fn two_product(&mut self, a: Id, b: Id) -> (Id, Id) {
        let product = self.fmul(a, b);
        let (a_high, a_low) = self.split_halves(a);
        let (b_high, b_low) = self.split_halves(b);
        let [hh, hl, lh, ll] =
            [(a_high, b_high), (a_high, b_low), (a_low, b_high), (a_low, b_low)].map(|(x, y)| self.fmul(x, y));
        let lost = self.fsub(hh, product);
        let lost = self.fadd(lost, hl);
        let lost = self.fadd(lost, lh);
        (product, self.fadd(lost, ll))
    }

    /// The product of two unevaluated sums as a third, whose first word is the rounding of both. Where partial products might be flushed, beyond
    /// the middling sizes, beside zero, infinities and NaN, it is that of the first words, and nothing else.
    pub(crate) fn multiply_pairs(&mut self, [a, a_low]: [Id; 2], (b, b_low): (Id, Option<Id>)) -> [Id; 2] {
        let (product, lost) = self.two_product(a, b);
        let cross = self.fmul(a_low, b);
        let mut rest = self.fadd(lost, cross);
        if let Some(b_low) = b_low {
            let cross = self.fmul(a, b_low);
            rest = self.fadd(rest, cross);
        }
        let (high, low) = self.fast_two_sum(product, rest);
        let [a, b, both] = [a, b, product].map(|x| self.is_middling(x));
        let factors = self.land(a, b);
        let exact = self.land(factors, both);
        let zero = self.float(self.st(product), 0.0);
        [self.select(exact, high, product), self.select(exact, low, zero)]
    }

    /// `start + residual / slope` where `start` and `of` are of middling size: there no partial product is flushed or overflows, and
    /// neither zeros nor infinities nor NaN come up.
    fn corrected(&mut self, start: Id, of: Id, residual: Id, slope: Id) -> Id {
        let step = self.fdiv(residual, slope);
        let better = self.fadd(start, step);
        let sized_start = self.is_middling(start);
        let sized_of = self.is_middling(of);
        let both = self.land(sized_start, sized_of);
        self.select(both, better, start)
    }

    fn is_middling(&mut self, x: Id) -> Id {
        let a = self.fabs(x);
        let above = self.above_const(a, 2f64.powi(-90));
        let below = self.less_const(a, 2f64.powi(90));
        self.land(above, below)
    }

    /// a / b, correctly rounded where both operand and result are of middling size.
    pub(crate) fn fdiv_rounded(&mut self, a: Id, b: Id) -> Id {
        match (self.st(a), self.const_bits(b)) {
            (St::F32, Some(bits)) if bits & 0x7fff_ffff == 0 => return self.divided_by_zero(a, bits as u32),
            // The same quotient for every a, NaN of zeros included, and nothing that Mesa could fold. Bits would need 64-bit integers.
            (St::F64, Some(bits)) if bits << 1 == 0 => {
                let infinity = self.constant(St::F64, f64::INFINITY.to_bits() | bits);
                return self.fmul(a, infinity);
            }
            _ => {}
        }
        let quotient = self.fdiv(a, b);
        if self.st(a) == St::F64 || self.is_power_of_two(b) {
            return quotient;
        }
        let (high, low) = self.two_product(quotient, b);
        let rest = self.fsub(a, high);
        let rest = self.fsub(rest, low);
        self.corrected(quotient, a, rest, b)
    }

    /// a / ±0 from its bits: an infinity with the product of the signs, NaN for zeros and NaN. Mesa folds the division by a literal zero into
    /// something that its own later passes take for a finite number.
    fn divided_by_zero(&mut self, a: Id, zero: u32) -> Id {
        let bits = self.bitcast(St::U32, a);
        let (mask, flip, infinity) = (self.u32(1 << 31), self.u32(zero), self.u32(f32::INFINITY.to_bits()));
        let sign = self.and(bits, mask);
        let sign = self.xor(sign, flip);
        let signed = self.or(sign, infinity);
        let magnitude_mask = self.u32(0x7fff_ffff);
        let magnitude = self.and(bits, magnitude_mask);
        let none = self.u32(0);
        let (is_zero, is_nan) = (self.ieq(magnitude, none), self.is_nan(a));
        let undefined = self.lor(is_zero, is_nan);
        let nan = self.u32(f32::NAN.to_bits());
        let result = self.select(undefined, nan, signed);
        self.bitcast(St::F32, result)
    }

    /// True for f32 constants by which a division is exact.
    fn is_power_of_two(&self, b: Id) -> bool {
        self.st(b) == St::F32 && self.const_bits(b).is_some_and(|bits| bits & 0x7f_ffff == 0 && bits & 0x7f80_0000 != 0)
    }

    /// √x, correctly rounded where x is of middling size.
    pub(crate) fn sqrt_rounded(&mut self, x: Id) -> Id {
        let root = self.glsl(Glsl::Sqrt, x);
        if self.st(x) == St::F64 {
            return root;
        }
        let (high, low) = self.two_product(root, root);
        let rest = self.fsub(x, high);
        let rest = self.fsub(rest, low);
        let slope = self.fadd(root, root);
        self.corrected(root, x, rest, slope)
    }
}
