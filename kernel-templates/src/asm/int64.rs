//! 64-bit integers by words, for devices without `shaderInt64`.
//!
//! A value is a `uvec2` of its low and its high word, as memory holds it; operations work on the words. Results are those of
//! native 64-bit integers for every operand. Where a value was put together here, its words are used again instead of being taken apart.

use super::{Asm, Glsl, Id, St};
use crate::spec::Int64;
use rspirv::spirv::Op;

/// `(low, high)`.
type Words = (Id, Id);

/// Values and their words.
impl Asm {
    /// True for 64-bit integers where they are pairs of words.
    pub(super) fn by_words(&self, a: Id) -> bool {
        self.int64 == Int64::Words && self.st(a) == St::U64
    }

    pub(super) fn words_of(&mut self, a: Id) -> Words {
        if let Some(bits) = self.const_bits(a) {
            return (self.u32(bits as u32), self.u32((bits >> 32) as u32));
        }
        match self.word_pairs.get(&a) {
            Some(&words) => words,
            None => (self.extract(a, 0), self.extract(a, 1)),
        }
    }

    fn of_words(&mut self, (low, high): Words) -> Id {
        if let (Some(l), Some(h)) = (self.const_bits(low), self.const_bits(high)) {
            return self.constant(St::U64, h << 32 | l);
        }
        let value = self.words2(low, high);
        self.word_pairs.insert(value, (low, high));
        value
    }

    /// `cond ? a : b`.
    pub(super) fn words_select(&mut self, cond: Id, a: Id, b: Id) -> Id {
        let (a, b) = (self.words_of(a), self.words_of(b));
        let words = self.choose(cond, a, b);
        self.of_words(words)
    }

    fn choose(&mut self, cond: Id, a: Words, b: Words) -> Words {
        (self.select(cond, a.0, b.0), self.select(cond, a.1, b.1))
    }

    /// Bitwise not.
    pub(super) fn words_not(&mut self, a: Id) -> Id {
        let (low, high) = self.words_of(a);
        let words = (self.inot(low), self.inot(high));
        self.of_words(words)
    }
}

/// Arithmetic. Amounts of shifts are below 64.
impl Asm {
    /// An operation of two operands that are 64-bit integers.
    pub(super) fn words_op(&mut self, op: Op, a: Id, b: Id) -> Id {
        let (a, b) = (self.words_of(a), self.words_of(b));
        let words = match op {
            Op::IAdd => self.sum(a, b),
            Op::ISub => self.difference(a, b),
            Op::IMul => self.product(a, b),
            Op::BitwiseAnd => (self.and(a.0, b.0), self.and(a.1, b.1)),
            Op::BitwiseOr => (self.or(a.0, b.0), self.or(a.1, b.1)),
            Op::BitwiseXor => (self.xor(a.0, b.0), self.xor(a.1, b.1)),
            Op::ShiftLeftLogical => self.shifted_up(a, b.0),
            Op::ShiftRightLogical => self.shifted_down(a, b.0),
            Op::ShiftRightArithmetic => self.shifted_down_signed(a, b.0),
            _ => unreachable!("{op:?} of 64-bit integers is never built"),
        };
        self.of_words(words)
    }

    fn sum(&mut self, a: Words, b: Words) -> Words {
        let (low, carry) = self.add_carry(a.0, b.0);
        let high = self.iadd(a.1, b.1);
        (low, self.iadd(high, carry))
    }

    fn difference(&mut self, a: Words, b: Words) -> Words {
        let low = self.isub(a.0, b.0);
        let borrows = self.ult(a.0, b.0);
        let borrow = self.cast(St::U32, borrows);
        let high = self.isub(a.1, b.1);
        (low, self.isub(high, borrow))
    }

    fn product(&mut self, a: Words, b: Words) -> Words {
        let (low, high) = self.umul_wide(a.0, b.0);
        let (first, second) = (self.imul(a.0, b.1), self.imul(a.1, b.0));
        let high = self.iadd(high, first);
        (low, self.iadd(high, second))
    }

    /// The amount within a word, what complements it to 31, and whether it passes a whole word.
    fn amount(&mut self, n: Id) -> (Id, Id, Id) {
        let (last, word) = (self.u32(31), self.u32(32));
        let within = self.and(n, last);
        (within, self.xor(within, last), self.ule(word, n))
    }

    fn shifted_up(&mut self, a: Words, n: Id) -> Words {
        let (within, rest, whole) = self.amount(n);
        let (zero, one) = (self.u32(0), self.u32(1));
        let low = self.shl(a.0, within);
        // What crosses to the other word, in two steps: a shift by 32 is undefined.
        let crossing = self.shr(a.0, one);
        let crossing = self.shr(crossing, rest);
        let high = self.shl(a.1, within);
        let high = self.or(high, crossing);
        self.choose(whole, (zero, low), (low, high))
    }

    fn shifted_down(&mut self, a: Words, n: Id) -> Words {
        let (within, _, whole) = self.amount(n);
        let zero = self.u32(0);
        let high = self.shr(a.1, within);
        let low = self.low_shifted_down(a, n);
        self.choose(whole, (high, zero), (low, high))
    }

    fn shifted_down_signed(&mut self, a: Words, n: Id) -> Words {
        let (within, _, whole) = self.amount(n);
        let last = self.u32(31);
        let high = self.sar(a.1, within);
        let signs = self.sar(a.1, last);
        let low = self.low_shifted_down(a, n);
        self.choose(whole, (high, signs), (low, high))
    }

    /// The low word of a shift to the right by less than a word.
    fn low_shifted_down(&mut self, a: Words, n: Id) -> Id {
        let (within, rest, _) = self.amount(n);
        let one = self.u32(1);
        let crossing = self.shl(a.1, one);
        let crossing = self.shl(crossing, rest);
        let low = self.shr(a.0, within);
        self.or(low, crossing)
    }
}

/// Division.
impl Asm {
    /// Signed quotient truncated toward zero; some value for division by zero, the dividend for that of the least value by −1.
    pub(super) fn words_sdiv(&mut self, a: Id, b: Id) -> Id {
        let (a, b) = (self.words_of(a), self.words_of(b));
        let (of_a, of_b) = (self.magnitude(a), self.magnitude(b));
        let quotient = self.quotient(of_a, of_b);
        let signs = self.xor(a.1, b.1);
        let negative = self.is_negative(signs);
        let words = self.negated_if(negative, quotient);
        self.of_words(words)
    }

    fn is_negative(&mut self, high: Id) -> Id {
        let zero = self.u32(0);
        self.slt(high, zero)
    }

    fn negated_if(&mut self, cond: Id, a: Words) -> Words {
        let zero = self.u32(0);
        let minus = self.difference((zero, zero), a);
        self.choose(cond, minus, a)
    }

    /// |a|, unsigned: 2^63 for the least value.
    fn magnitude(&mut self, a: Words) -> Words {
        let negative = self.is_negative(a.1);
        self.negated_if(negative, a)
    }

    /// Unsigned quotient of magnitudes, at most 2^63. The device divides words; what is wider is divided bit by bit.
    fn quotient(&mut self, a: Words, b: Words) -> Words {
        let (zero, one, bits) = (self.u32(0), self.u32(1), self.u32(64));
        let highs = self.or(a.1, b.1);
        let is_wide = self.ine(highs, zero);
        let by_zero = self.ieq(b.0, zero);
        let divisor = self.select(by_zero, one, b.0);
        let short = self.udiv(a.0, divisor);
        let wide = self.if_begin(is_wide);
        // The quotient moves in from below as the dividend moves out above.
        let l = self.loop_begin((zero, bits, one), &[a.0, a.1, zero, zero]);
        let (quotient, rest) = ((l.carried[0], l.carried[1]), (l.carried[2], l.carried[3]));
        let (quotient, rest) = self.divide_bit(quotient, rest, b);
        self.loop_end(&l, &[quotient.0, quotient.1, rest.0, rest.1]);
        let words = self.if_end(&wide, &[quotient.0, quotient.1], &[short, a.1]);
        (words[0], words[1])
    }

    /// One step of the long division: the dividend's highest bit joins the rest, which the divisor may fit.
    fn divide_bit(&mut self, quotient: Words, rest: Words, divisor: Words) -> (Words, Words) {
        let (one, last) = (self.u32(1), self.u32(31));
        let bit = self.shr(quotient.1, last);
        let rest = self.shifted_up(rest, one);
        let rest = (self.or(rest.0, bit), rest.1);
        let (dividend, wide_divisor) = (self.of_words(rest), self.of_words(divisor));
        let fits = self.ule(wide_divisor, dividend);
        let less = self.difference(rest, divisor);
        let rest = self.choose(fits, less, rest);
        let quotient = self.shifted_up(quotient, one);
        let bit = self.cast(St::U32, fits);
        ((self.or(quotient.0, bit), quotient.1), rest)
    }
}

/// Conversions.
impl Asm {
    /// To or from a 64-bit integer, with the semantics of [`crate::expr`].
    pub(super) fn words_cast(&mut self, to: St, a: Id) -> Id {
        match (self.st(a), to) {
            (St::U32, _) => {
                let last = self.u32(31);
                let signs = self.sar(a, last);
                self.of_words((a, signs))
            }
            (St::U64, St::U32) => self.words_of(a).0,
            (St::U64, St::F64) => self.words_to_f64(a),
            (St::U64, _) => self.words_to_f32(a),
            _ => self.float_to_words(a),
        }
    }

    /// Both products are exact; the sum rounds once.
    fn words_to_f64(&mut self, a: Id) -> Id {
        let (low, high) = self.words_of(a);
        let scale = self.float(St::F64, 2f64.powi(32));
        let high = self.sint_to_float(St::F64, high);
        let high = self.fmul(high, scale);
        let low = self.uint_to_float(St::F64, low);
        self.fadd(high, low)
    }

    /// Nearest f32, ties to even, by its bits: some drivers round twice where a word exceeds 31 bits.
    fn words_to_f32(&mut self, a: Id) -> Id {
        let a = self.words_of(a);
        let magnitude = self.magnitude(a);
        let (zero, sixty_three, sign_mask) = (self.u32(0), self.u32(63), self.u32(1 << 31));
        let any = self.or(magnitude.0, magnitude.1);
        let is_zero = self.ieq(any, zero);
        let highest = self.highest_bit(magnitude);
        let up = self.isub(sixty_three, highest);
        let normal = self.shifted_up(magnitude, up);
        let mantissa = self.rounded_mantissa(normal);
        // The mantissa's highest bit counts as one exponent, as does a carry out of it.
        let (bias, shift) = (self.u32(126), self.u32(23));
        let exponent = self.iadd(highest, bias);
        let exponent = self.shl(exponent, shift);
        let bits = self.iadd(exponent, mantissa);
        let bits = self.select(is_zero, zero, bits);
        let sign = self.and(a.1, sign_mask);
        let bits = self.or(bits, sign);
        self.bitcast(St::F32, bits)
    }

    /// Position of the highest bit that is set; −1 for zero.
    fn highest_bit(&mut self, (low, high): Words) -> Id {
        let (zero, word) = (self.u32(0), self.u32(32));
        let short = self.ieq(high, zero);
        let top = self.select(short, low, high);
        let within = self.glsl(Glsl::FindUMsb, top);
        let above = self.select(short, zero, word);
        self.iadd(within, above)
    }

    /// The upper 24 bits, rounded to nearest even; 2^24 where that carries.
    fn rounded_mantissa(&mut self, (low, high): Words) -> Id {
        let [zero, one, eight, half, mask] = [0, 1, 8, 0x7f, 0xff].map(|v| self.u32(v));
        let mantissa = self.shr(high, eight);
        // Of the low word only matters whether it is zero.
        let inexact = self.ine(low, zero);
        let sticky = self.cast(St::U32, inexact);
        let dropped = self.and(high, mask);
        let dropped = self.or(dropped, sticky);
        let odd = self.and(mantissa, one);
        let bias = self.iadd(half, odd);
        let carried = self.iadd(dropped, bias);
        let round = self.shr(carried, eight);
        self.iadd(mantissa, round)
    }

    /// Truncates; what does not fit, NaN included, gives the smallest integer.
    fn float_to_words(&mut self, a: Id) -> Id {
        let (mantissa, exponent, high) = self.float_parts(a);
        let (zero, sixty_three) = (self.u32(0), self.u32(63));
        let down = self.isub(sixty_three, exponent);
        let whole = self.shifted_down(mantissa, down);
        let negative = self.is_negative(high);
        let value = self.negated_if(negative, whole);
        let least = self.u32(1 << 31);
        let too_large = self.sle(sixty_three, exponent);
        let value = self.choose(too_large, (zero, least), value);
        let below_one = self.is_negative(exponent);
        let words = self.choose(below_one, (zero, zero), value);
        self.of_words(words)
    }

    /// The mantissa with its highest bit at the top of 64, the exponent of that bit, and the word with the sign.
    fn float_parts(&mut self, a: Id) -> (Words, Id, Id) {
        let top = self.u32(1 << 31);
        if self.st(a) == St::F64 {
            let (low, high) = self.split64(a);
            let eleven = self.u32(11);
            let (low_up, high_up) = self.shifted_up((low, high), eleven);
            return ((low_up, self.or(high_up, top)), self.exponent(high, 20, 0x7ff, 1023), high);
        }
        let bits = self.bitcast(St::U32, a);
        let (zero, eight) = (self.u32(0), self.u32(8));
        let up = self.shl(bits, eight);
        ((zero, self.or(up, top)), self.exponent(bits, 23, 0xff, 127), bits)
    }

    fn exponent(&mut self, high: Id, shift: u32, mask: u32, bias: u32) -> Id {
        let (shift, mask, bias) = (self.u32(shift), self.u32(mask), self.u32(bias));
        let field = self.shr(high, shift);
        let field = self.and(field, mask);
        self.isub(field, bias)
    }
}
