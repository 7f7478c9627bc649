//! Conversions: between register types, between memory and register form, and rounding to an element type.

use super::{Asm, Id, St};
use crate::dtype::DType;
use crate::spec::Int64;
use rspirv::dr::Operand;
use rspirv::spirv::Op;

/// What lies in memory for an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryForm {
    /// Type of the memory access.
    pub(super) st: St,
    /// The element type that it stands for.
    pub(super) dtype: DType,
}

impl MemoryForm {
    pub(super) fn native(dtype: DType) -> MemoryForm {
        let st = match dtype {
            DType::Bool | DType::U8 | DType::I8 => St::U8,
            DType::I16 | DType::BF16 => St::U16,
            DType::I32 => St::U32,
            DType::I64 => St::U64,
            DType::F16 => St::F16,
            DType::F32 => St::F32,
            DType::F64 => St::F64,
        };
        MemoryForm { st, dtype }
    }

    /// One 32-bit word an element; 64-bit types stay wide.
    pub(super) fn word(dtype: DType) -> MemoryForm {
        let st = match dtype {
            DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 => St::U32,
            DType::F16 | DType::BF16 | DType::F32 => St::F32,
            DType::I64 => St::U64,
            DType::F64 => St::F64,
        };
        MemoryForm { st, dtype }
    }
}

impl Asm {
    fn unary(&mut self, op: Op, to: St, a: Id) -> Id {
        let ty = self.type_scalar(to);
        self.push(op, ty, vec![Operand::IdRef(a)])
    }

    /// Two halves of a word, low and high, as f32.
    pub(crate) fn unpack_halves(&mut self, elem: DType, word: Id) -> [Id; 2] {
        if elem == DType::BF16 {
            let (sixteen, mask) = (self.u32(16), self.u32(0xffff_0000));
            let (low, high) = (self.shl(word, sixteen), self.and(word, mask));
            return [low, high].map(|bits| self.bitcast(St::F32, bits));
        }
        let (half, pair) = (self.type_scalar(St::F16), self.type_vector(St::F16, 2));
        let pair = self.push(Op::Bitcast, pair, vec![Operand::IdRef(word)]);
        [0, 1].map(|i| {
            let half = self.push(Op::CompositeExtract, half, vec![Operand::IdRef(pair), Operand::LiteralBit32(i)]);
            self.unary(Op::FConvert, St::F32, half)
        })
    }

    /// Same bits as another type of the same width (32-bit scalars).
    pub(crate) fn bitcast(&mut self, to: St, a: Id) -> Id {
        if self.st(a) == to { a } else { self.unary(Op::Bitcast, to, a) }
    }

    /// `(low, high)` words of an f64 (or u64).
    pub(crate) fn split64(&mut self, a: Id) -> (Id, Id) {
        if self.by_words(a) {
            return self.words_of(a);
        }
        let ty = self.type_vector(St::U32, 2);
        let words = self.push(Op::Bitcast, ty, vec![Operand::IdRef(a)]);
        (self.extract(words, 0), self.extract(words, 1))
    }

    /// An f64 from its words.
    pub(crate) fn join64(&mut self, low: Id, high: Id) -> Id {
        let words = self.words2(low, high);
        self.unary(Op::Bitcast, St::F64, words)
    }

    /// Signed integer to float.
    pub(crate) fn sint_to_float(&mut self, to: St, a: Id) -> Id {
        self.unary(Op::ConvertSToF, to, a)
    }

    /// Unsigned integer to float.
    pub(crate) fn uint_to_float(&mut self, to: St, a: Id) -> Id {
        self.unary(Op::ConvertUToF, to, a)
    }

    /// Float to signed integer, truncating; some value where it does not fit.
    pub(crate) fn float_to_sint_raw(&mut self, to: St, a: Id) -> Id {
        self.unary(Op::ConvertFToS, to, a)
    }

    /// Conversion between register types with the semantics of [`crate::expr`].
    pub(crate) fn cast(&mut self, to: St, a: Id) -> Id {
        let from = self.st(a);
        if from == to {
            return a;
        }
        match (from, to) {
            (St::Bool, St::U32 | St::U64) => self.bool_to(a, to, |asm, v| asm.int(to, v)),
            (St::Bool, _) => self.bool_to(a, to, |asm, v| asm.float(to, v as f64)),
            (St::U32 | St::U64, St::Bool) => {
                let zero = self.int(from, 0);
                self.ine(a, zero)
            }
            (_, St::Bool) => {
                let zero = self.float(from, 0.0);
                self.fne(a, zero)
            }
            _ if self.int64 == Int64::Words && (from == St::U64 || to == St::U64) => self.words_cast(to, a),
            (St::U32, St::U64) => self.unary(Op::SConvert, to, a),
            (St::U64, St::U32) => self.unary(Op::UConvert, to, a),
            (St::U32 | St::U64, _) => self.sint_to_float(to, a),
            (_, St::U32 | St::U64) => self.float_to_sint(to, a),
            _ => self.unary(Op::FConvert, to, a),
        }
    }

    fn bool_to(&mut self, a: Id, _to: St, constant: impl Fn(&mut Asm, i64) -> Id) -> Id {
        let one = constant(self, 1);
        let zero = constant(self, 0);
        self.select(a, one, zero)
    }

    /// Float to integer: truncates; what does not fit gives the smallest integer.
    fn float_to_sint(&mut self, to: St, a: Id) -> Id {
        let from = self.st(a);
        let least = if to == St::U64 { i64::MIN } else { i32::MIN.into() };
        // −2^31 and −2^63 are floats of either width; their negations are the first values that no longer fit.
        let (low, high, zero) =
            (self.float(from, least as f64), self.float(from, -(least as f64)), self.float(from, 0.0));
        let inside_low = self.fle(low, a);
        let inside_high = self.flt(a, high);
        let fits = self.land(inside_low, inside_high);
        let safe = self.select(fits, a, zero);
        let raw = self.float_to_sint_raw(to, safe);
        let least = self.int(to, least);
        self.select(fits, raw, least)
    }

    /// Rounds a float, or wraps an integer, to what `dtype` holds; stays in the register type.
    pub(crate) fn round_to(&mut self, dtype: DType, a: Id) -> Id {
        match dtype {
            DType::U8 => {
                let mask = self.u32(0xff);
                self.and(a, mask)
            }
            DType::I8 => self.sign_extend(a, 24),
            DType::I16 => self.sign_extend(a, 16),
            DType::F16 => self.round_f16(a),
            DType::BF16 => {
                let bits = self.bf16_bits(a);
                let sixteen = self.u32(16);
                let high = self.shl(bits, sixteen);
                self.bitcast(St::F32, high)
            }
            DType::Bool | DType::I32 | DType::I64 | DType::F32 | DType::F64 => a,
        }
    }

    fn sign_extend(&mut self, a: Id, shift: u32) -> Id {
        let shift = self.u32(shift);
        let up = self.shl(a, shift);
        self.sar(up, shift)
    }

    /// Rounds to binary16. Natively where the module has f16 anyway, else by integer arithmetic, so that a device without
    /// 16-bit floats runs it too.
    fn round_f16(&mut self, a: Id) -> Id {
        if self.needs.float16 {
            let half = self.unary(Op::FConvert, St::F16, a);
            return self.unary(Op::FConvert, St::F32, half);
        }
        let bits = self.bitcast(St::U32, a);
        let sign_mask = self.u32(0x8000_0000);
        let sign = self.and(bits, sign_mask);
        let magnitude = self.xor(bits, sign);
        // Nearest even at bit 13, then overflow: 65520 and above is infinite; NaN stays.
        let rounded = self.round_bits_even(magnitude, 13);
        let mask = self.u32(!0x1fff);
        let normal = self.and(rounded, mask);
        let largest = self.u32(0x477f_e000);
        let over = self.ult(largest, normal);
        let infinity = self.u32(0x7f80_0000);
        let normal = self.select(over, infinity, normal);
        // Below 2^-14 the spacing is 2^-24, that of f32 in [0.5, 1).
        let half = self.f32(0.5);
        let value = self.bitcast(St::F32, magnitude);
        let shifted = self.fadd(value, half);
        let small = self.fsub(shifted, half);
        let small = self.bitcast(St::U32, small);
        let limit = self.u32(0x3880_0000);
        let is_small = self.ult(magnitude, limit);
        let result = self.select(is_small, small, normal);
        let is_nan = self.ult(infinity, magnitude);
        let result = self.select(is_nan, magnitude, result);
        let result = self.or(result, sign);
        self.bitcast(St::F32, result)
    }

    /// `bits + half of the last place kept`, ties to even; the caller drops the low `n` bits.
    fn round_bits_even(&mut self, bits: Id, n: u32) -> Id {
        let n_id = self.u32(n);
        let below_half = self.u32((1 << (n - 1)) - 1);
        let one = self.u32(1);
        let last = self.shr(bits, n_id);
        let odd = self.and(last, one);
        let bias = self.iadd(below_half, odd);
        self.iadd(bits, bias)
    }

    /// The 16 bits of the nearest bfloat16, ties to even, NaN kept.
    fn bf16_bits(&mut self, a: Id) -> Id {
        let bits = self.bitcast(St::U32, a);
        let sixteen = self.u32(16);
        let rounded = self.round_bits_even(bits, 16);
        let rounded = self.shr(rounded, sixteen);
        let mask = self.u32(0x7fff_ffff);
        let magnitude = self.and(bits, mask);
        let infinity = self.u32(0x7f80_0000);
        let is_nan = self.ult(infinity, magnitude);
        let top = self.shr(bits, sixteen);
        let quiet = self.u32(0x40);
        let nan = self.or(top, quiet);
        self.select(is_nan, nan, rounded)
    }

    /// Value in its register type from what memory holds.
    pub(super) fn load_form(&mut self, form: MemoryForm, raw: Id) -> Id {
        match (form.st, form.dtype) {
            (St::U8, DType::Bool) => {
                let wide = self.unary(Op::UConvert, St::U32, raw);
                self.cast(St::Bool, wide)
            }
            (St::U32, DType::Bool) => self.cast(St::Bool, raw),
            (St::U8, DType::U8) => self.unary(Op::UConvert, St::U32, raw),
            (St::U8 | St::U16, DType::I8 | DType::I16) => self.unary(Op::SConvert, St::U32, raw),
            (St::U16, DType::BF16) => {
                let wide = self.unary(Op::UConvert, St::U32, raw);
                let sixteen = self.u32(16);
                let bits = self.shl(wide, sixteen);
                self.bitcast(St::F32, bits)
            }
            (St::F16, _) => self.unary(Op::FConvert, St::F32, raw),
            _ => raw,
        }
    }

    /// What memory holds for a value in its register type, rounded to the element type.
    pub(super) fn store_form(&mut self, form: MemoryForm, value: Id) -> Id {
        match (form.st, form.dtype) {
            (St::U8, DType::Bool) => {
                let word = self.cast(St::U32, value);
                self.unary(Op::UConvert, St::U8, word)
            }
            (St::U32, DType::Bool) => self.cast(St::U32, value),
            (St::U8 | St::U16, DType::U8 | DType::I8 | DType::I16) => self.unary(Op::UConvert, form.st, value),
            (St::U16, DType::BF16) => {
                let bits = self.bf16_bits(value);
                self.unary(Op::UConvert, St::U16, bits)
            }
            (St::F16, _) => self.unary(Op::FConvert, St::F16, value),
            (_, dtype) => self.round_to(dtype, value),
        }
    }
}
