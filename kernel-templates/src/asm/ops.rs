//! Arithmetic on scalars. The type comes from the operands; integer operations on constants fold.

use super::{Asm, Id, St};
use rspirv::dr::Operand;
use rspirv::spirv::{Decoration, GlslStd450Op, Op};

/// Functions of GLSL.std.450 that are exact on every driver, or whose precision suffices for what their line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Glsl {
    /// |x| of floats.
    FAbs,
    /// Largest integer not above x.
    Floor,
    /// Smallest integer not below x.
    Ceil,
    /// Toward zero.
    Trunc,
    /// Nearest, halves to even.
    RoundEven,
    /// Square root.
    Sqrt,
    /// Index of the highest set bit; −1 for 0.
    FindUMsb,
    /// 2^x to 3 + 2|x| ulp: only where the result is rounded to a half type.
    Exp2,
    /// Larger of two; the other one where one is NaN.
    NMax,
    /// Smaller of two, likewise.
    NMin,
    /// Smaller of two 32-bit unsigned integers.
    UMin,
}

impl Glsl {
    const fn code(self) -> GlslStd450Op {
        match self {
            Glsl::FAbs => GlslStd450Op::FAbs,
            Glsl::Floor => GlslStd450Op::Floor,
            Glsl::Ceil => GlslStd450Op::Ceil,
            Glsl::Trunc => GlslStd450Op::Trunc,
            Glsl::RoundEven => GlslStd450Op::RoundEven,
            Glsl::Sqrt => GlslStd450Op::Sqrt,
            Glsl::FindUMsb => GlslStd450Op::FindUMsb,
            Glsl::Exp2 => GlslStd450Op::Exp2,
            Glsl::NMax => GlslStd450Op::NMax,
            Glsl::NMin => GlslStd450Op::NMin,
            Glsl::UMin => GlslStd450Op::UMin,
        }
    }
}

/// Folds a 32-bit operation on constants.
fn fold(op: Op, a: u32, b: u32) -> Option<u32> {
    Some(match op {
        Op::IAdd => a.wrapping_add(b),
        Op::ISub => a.wrapping_sub(b),
        Op::IMul => a.wrapping_mul(b),
        Op::BitwiseAnd => a & b,
        Op::BitwiseOr => a | b,
        Op::BitwiseXor => a ^ b,
        Op::ShiftLeftLogical if b < 32 => a << b,
        Op::ShiftRightLogical if b < 32 => a >> b,
        Op::ShiftRightArithmetic if b < 32 => ((a as i32) >> b) as u32,
        Op::UDiv if b != 0 => a / b,
        Op::UMod if b != 0 => a % b,
        _ => return None,
    })
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $how:ident $op:ident;)*) => { $(
        $(#[$doc])*
        pub(crate) fn $name(&mut self, a: Id, b: Id) -> Id {
            self.$how(Op::$op, a, b)
        }
    )* };
}

/// Operations of two operands.
impl Asm {
    binary! {
        /// Wrapping quotient, unsigned.
        udiv = int_op UDiv;
        /// Remainder, unsigned.
        umod = int_op UMod;
        /// Quotient truncated toward zero; the caller excludes division by zero and overflow.
        sdiv_raw = int_op SDiv;
        /// Bitwise and.
        and = int_op BitwiseAnd;
        /// Bitwise or.
        or = int_op BitwiseOr;
        /// Bitwise exclusive or.
        xor = int_op BitwiseXor;
        /// Shift left.
        shl = int_op ShiftLeftLogical;
        /// Logical shift right.
        shr = int_op ShiftRightLogical;
        /// Arithmetic shift right.
        sar = int_op ShiftRightArithmetic;
        /// Floats equal.
        feq = compare FOrdEqual;
        /// Floats differ; true with NaN.
        fne = compare FUnordNotEqual;
        /// Float less.
        flt = compare FOrdLessThan;
        /// Float less or equal.
        fle = compare FOrdLessThanEqual;
        /// Both.
        land = compare LogicalAnd;
        /// Either.
        lor = compare LogicalOr;
        /// Truth values equal.
        leq = compare LogicalEqual;
        /// Truth values differ.
        lne = compare LogicalNotEqual;
        /// Sum, never contracted.
        fadd = exact FAdd;
        /// Difference, never contracted.
        fsub = exact FSub;
        /// Product, never contracted.
        fmul = exact FMul;
        /// Quotient.
        fdiv = exact FDiv;
    }

    fn int_op(&mut self, op: Op, a: Id, b: Id) -> Id {
        if self.by_words(a) {
            return self.words_op(op, a, b);
        }
        if let (St::U32, Some(x), Some(y)) = (self.st(a), self.const_bits(a), self.const_bits(b))
            && let Some(v) = fold(op, x as u32, y as u32)
        {
            return self.u32(v);
        }
        self.push(op, self.type_of(a), vec![Operand::IdRef(a), Operand::IdRef(b)])
    }

    fn compare(&mut self, op: Op, a: Id, b: Id) -> Id {
        if let (Some(x), Some(y)) = (self.const_bits(a), self.const_bits(b)) {
            let folded = match op {
                Op::ULessThan => Some(x < y),
                Op::ULessThanEqual => Some(x <= y),
                Op::IEqual => Some(x == y),
                Op::INotEqual => Some(x != y),
                Op::LogicalAnd => Some(x & y != 0),
                Op::LogicalOr => Some(x | y != 0),
                _ => None,
            };
            if let Some(v) = folded {
                return self.bool(v);
            }
        }
        let ty = self.type_scalar(St::Bool);
        self.push(op, ty, vec![Operand::IdRef(a), Operand::IdRef(b)])
    }

    fn exact(&mut self, op: Op, a: Id, b: Id) -> Id {
        let id = self.push(op, self.type_of(a), vec![Operand::IdRef(a), Operand::IdRef(b)]);
        self.decorate(id, Decoration::NoContraction, &[]);
        id
    }

    /// Wrapping sum.
    pub(crate) fn iadd(&mut self, a: Id, b: Id) -> Id {
        match (self.const_bits(a), self.const_bits(b)) {
            (Some(0), _) => b,
            (_, Some(0)) => a,
            _ => self.int_op(Op::IAdd, a, b),
        }
    }

    /// Wrapping difference.
    pub(crate) fn isub(&mut self, a: Id, b: Id) -> Id {
        if self.const_bits(b) == Some(0) { a } else { self.int_op(Op::ISub, a, b) }
    }

    /// Wrapping product.
    pub(crate) fn imul(&mut self, a: Id, b: Id) -> Id {
        match (self.const_bits(a), self.const_bits(b)) {
            (Some(1), _) | (_, Some(0)) => b,
            (_, Some(1)) | (Some(0), _) => a,
            _ => self.int_op(Op::IMul, a, b),
        }
    }

    /// High half of the 64-bit product of two 32-bit unsigned integers.
    pub(crate) fn umul_high(&mut self, a: Id, b: Id) -> Id {
        self.umul_wide(a, b).1
    }

    /// `(low, high)` of the 64-bit product of two 32-bit unsigned integers.
    pub(crate) fn umul_wide(&mut self, a: Id, b: Id) -> (Id, Id) {
        let ty = self.type_carry();
        let pair = self.push(Op::UMulExtended, ty, vec![Operand::IdRef(a), Operand::IdRef(b)]);
        (self.extract(pair, 0), self.extract(pair, 1))
    }

    /// `(sum, carry)` of two 32-bit unsigned integers.
    pub(crate) fn add_carry(&mut self, a: Id, b: Id) -> (Id, Id) {
        let ty = self.type_carry();
        let pair = self.push(Op::IAddCarry, ty, vec![Operand::IdRef(a), Operand::IdRef(b)]);
        (self.extract(pair, 0), self.extract(pair, 1))
    }

    /// Signed quotient truncated toward zero, for any operands: division by zero and overflow give some value.
    pub(crate) fn sdiv(&mut self, a: Id, b: Id) -> Id {
        if self.by_words(a) {
            return self.words_sdiv(a, b);
        }
        let st = self.st(a);
        if let Some(bits) = self.const_bits(b) {
            let value = if st == St::U64 { bits as i64 } else { i64::from(bits as u32 as i32) };
            if value != 0 && value != -1 {
                return self.sdiv_raw(a, b);
            }
        }
        let zero = self.int(st, 0);
        let one = self.int(st, 1);
        let minus = self.int(st, -1);
        let least = self.int(st, if st == St::U64 { i64::MIN } else { i64::from(i32::MIN) });
        let by_zero = self.ieq(b, zero);
        let by_minus = self.ieq(b, minus);
        let at_least = self.ieq(a, least);
        let overflow = self.land(by_minus, at_least);
        let unsafe_ = self.lor(by_zero, overflow);
        let divisor = self.select(unsafe_, one, b);
        self.sdiv_raw(a, divisor)
    }

    /// `acc + a·b`, which the driver may contract.
    pub(crate) fn mul_add(&mut self, a: Id, b: Id, acc: Id) -> Id {
        if self.by_words(a) {
            let product = self.imul(a, b);
            return self.iadd(acc, product);
        }
        let ty = self.type_of(a);
        let (mul, add) = if self.st(a).is_float() { (Op::FMul, Op::FAdd) } else { (Op::IMul, Op::IAdd) };
        let product = self.push(mul, ty, vec![Operand::IdRef(a), Operand::IdRef(b)]);
        self.push(add, ty, vec![Operand::IdRef(acc), Operand::IdRef(product)])
    }
}

/// Operations of one operand, and select.
impl Asm {
    /// `cond ? a : b`.
    pub(crate) fn select(&mut self, cond: Id, a: Id, b: Id) -> Id {
        match self.const_bits(cond) {
            _ if a == b => a,
            Some(0) => b,
            Some(_) => a,
            None if self.by_words(a) => self.words_select(cond, a, b),
            None => {
                let operands = vec![Operand::IdRef(cond), Operand::IdRef(a), Operand::IdRef(b)];
                self.push(Op::Select, self.type_of(a), operands)
            }
        }
    }

    /// Logical not.
    pub(crate) fn lnot(&mut self, a: Id) -> Id {
        self.push(Op::LogicalNot, self.type_of(a), vec![Operand::IdRef(a)])
    }

    /// Bitwise not.
    pub(crate) fn inot(&mut self, a: Id) -> Id {
        if self.by_words(a) {
            return self.words_not(a);
        }
        self.push(Op::Not, self.type_of(a), vec![Operand::IdRef(a)])
    }

    /// Two's complement negation.
    pub(crate) fn ineg(&mut self, a: Id) -> Id {
        if self.by_words(a) {
            let zero = self.int(St::U64, 0);
            return self.isub(zero, a);
        }
        self.push(Op::SNegate, self.type_of(a), vec![Operand::IdRef(a)])
    }

    /// Float negation.
    pub(crate) fn fneg(&mut self, a: Id) -> Id {
        self.push(Op::FNegate, self.type_of(a), vec![Operand::IdRef(a)])
    }

    /// A function of GLSL.std.450.
    pub(crate) fn glsl(&mut self, function: Glsl, a: Id) -> Id {
        let glsl = self.glsl;
        let code = Operand::LiteralExtInstInteger(function.code() as u32);
        self.push(Op::ExtInst, self.type_of(a), vec![Operand::IdRef(glsl), code, Operand::IdRef(a)])
    }

    /// A function of GLSL.std.450 of two operands.
    pub(crate) fn glsl2(&mut self, function: Glsl, a: Id, b: Id) -> Id {
        let code = Operand::LiteralExtInstInteger(function.code() as u32);
        let operands = vec![Operand::IdRef(self.glsl), code, Operand::IdRef(a), Operand::IdRef(b)];
        self.push(Op::ExtInst, self.type_of(a), operands)
    }

    /// Component of a composite: a 32-bit word of a vector or carry pair.
    pub(crate) fn extract(&mut self, composite: Id, index: u32) -> Id {
        let ty = self.type_scalar(St::U32);
        self.push(Op::CompositeExtract, ty, vec![Operand::IdRef(composite), Operand::LiteralBit32(index)])
    }

    /// `uvec2(low, high)`.
    pub(crate) fn words2(&mut self, low: Id, high: Id) -> Id {
        let ty = self.type_vector(St::U32, 2);
        self.push(Op::CompositeConstruct, ty, vec![Operand::IdRef(low), Operand::IdRef(high)])
    }
}

macro_rules! integer_comparison {
    ($($(#[$doc:meta])* $name:ident = $op:ident, words $low:ident $high:ident;)*) => { $(
        $(#[$doc])*
        pub(crate) fn $name(&mut self, a: Id, b: Id) -> Id {
            if self.st(a) == St::U64 { self.compare_words(Op::$low, Op::$high, a, b) } else { self.compare(Op::$op, a, b) }
        }
    )* };
}

/// Comparisons of integers. Those of 64 bits go by 32-bit words on every device: Mesa 22's lavapipe makes all of them false.
impl Asm {
    integer_comparison! {
        /// Signed less.
        slt = SLessThan, words ULessThan SLessThan;
        /// Signed less or equal.
        sle = SLessThanEqual, words ULessThanEqual SLessThan;
        /// Unsigned less.
        ult = ULessThan, words ULessThan ULessThan;
        /// Unsigned less or equal.
        ule = ULessThanEqual, words ULessThanEqual ULessThan;
    }

    /// Integers equal.
    pub(crate) fn ieq(&mut self, a: Id, b: Id) -> Id {
        if self.st(a) != St::U64 {
            return self.compare(Op::IEqual, a, b);
        }
        let ((a_low, a_high), (b_low, b_high)) = (self.split64(a), self.split64(b));
        let (low, high) = (self.compare(Op::IEqual, a_low, b_low), self.compare(Op::IEqual, a_high, b_high));
        self.land(low, high)
    }

    /// Integers differ.
    pub(crate) fn ine(&mut self, a: Id, b: Id) -> Id {
        if self.st(a) != St::U64 {
            return self.compare(Op::INotEqual, a, b);
        }
        let equal = self.ieq(a, b);
        self.lnot(equal)
    }

    /// The high words decide; where they are equal, the low ones.
    fn compare_words(&mut self, low: Op, high: Op, a: Id, b: Id) -> Id {
        let ((a_low, a_high), (b_low, b_high)) = (self.split64(a), self.split64(b));
        let decided = self.compare(high, a_high, b_high);
        let same = self.compare(Op::IEqual, a_high, b_high);
        let by_low = self.compare(low, a_low, b_low);
        let tied = self.land(same, by_low);
        self.lor(decided, tied)
    }
}
