//! Expressions on the host: the oracle of kernels, and what the compiler's interpreter and constant folder compute with.
//!
//! An arena is flattened once into a [`Tape`]; a [`Runner`] then evaluates it per element. f32 functions are computed in f64 and rounded once.

use crate::dtype::{DType, Ty};
use crate::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use crate::special;

/// A scalar in a register.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// A truth value.
    Bool(bool),
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// binary32.
    F32(f32),
    /// binary64.
    F64(f64),
}

/// Truncates; what does not fit is [`i32::MIN`].
pub fn truncate_to_i32(v: f64) -> i32 {
    if v > f64::from(i32::MIN) - 1.0 && v < -f64::from(i32::MIN) { v as i32 } else { i32::MIN }
}

/// Truncates; what does not fit is [`i64::MIN`].
pub fn truncate_to_i64(v: f64) -> i64 {
    let bound = i64::MIN as f64;
    if v >= bound && v < -bound { v as i64 } else { i64::MIN }
}

impl Value {
    /// Its register type.
    pub fn ty(self) -> Ty {
        match self {
            Value::Bool(_) => Ty::Bool,
            Value::I32(_) => Ty::I32,
            Value::I64(_) => Ty::I64,
            Value::F32(_) => Ty::F32,
            Value::F64(_) => Ty::F64,
        }
    }

    /// A value of type `ty` from a double: integers truncate as casts do, bools compare with zero.
    pub fn from_f64(ty: Ty, v: f64) -> Value {
        match ty {
            Ty::Bool => Value::Bool(v != 0.0),
            Ty::I32 => Value::I32(truncate_to_i32(v)),
            Ty::I64 => Value::I64(truncate_to_i64(v)),
            Ty::F32 => Value::F32(v as f32),
            Ty::F64 => Value::F64(v),
        }
    }

    /// As a double; i64 beyond 2⁵³ round.
    pub fn to_f64(self) -> f64 {
        match self {
            Value::Bool(v) => f64::from(u8::from(v)),
            Value::I32(v) => v.into(),
            Value::I64(v) => v as f64,
            Value::F32(v) => v.into(),
            Value::F64(v) => v,
        }
    }

    /// As an integer: floats truncate as casts do.
    pub fn to_i64(self) -> i64 {
        match self {
            Value::Bool(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::I64(v) => v,
            Value::F32(v) => truncate_to_i64(v.into()),
            Value::F64(v) => truncate_to_i64(v),
        }
    }

    /// Whether it is not zero.
    pub fn to_bool(self) -> bool {
        match self {
            Value::Bool(v) => v,
            Value::I32(v) => v != 0,
            Value::I64(v) => v != 0,
            Value::F32(v) => v != 0.0,
            Value::F64(v) => v != 0.0,
        }
    }

    /// An index.
    ///
    /// # Panics
    /// When it is no i32.
    pub fn index(self) -> i32 {
        match self {
            Value::I32(v) => v,
            other => panic!("an index is i32, not {other:?}"),
        }
    }

    /// Conversion to a register type, as [`Expr::Cast`].
    pub fn cast(self, ty: Ty) -> Value {
        match (ty, self) {
            (Ty::Bool, v) => Value::Bool(v.to_bool()),
            (Ty::I32, Value::F32(v)) => Value::I32(truncate_to_i32(v.into())),
            (Ty::I32, Value::F64(v)) => Value::I32(truncate_to_i32(v)),
            (Ty::I32, v) => Value::I32(v.to_i64() as i32),
            (Ty::I64, v) => Value::I64(v.to_i64()),
            // One rounding: by way of f64 an i64 would be rounded twice.
            (Ty::F32, Value::I64(v)) => Value::F32(v as f32),
            (Ty::F32, v) => Value::F32(v.to_f64() as f32),
            (Ty::F64, v) => Value::F64(v.to_f64()),
        }
    }

    /// Rounds to what an element type holds, as [`Expr::Round`].
    pub fn round(self, dtype: DType) -> Value {
        match (dtype, self) {
            (DType::F16, Value::F32(v)) => Value::F32(half::f16::from_f32(v).to_f32()),
            (DType::BF16, Value::F32(v)) => Value::F32(half::bf16::from_f32(v).to_f32()),
            (DType::U8, Value::I32(v)) => Value::I32((v as u8).into()),
            (DType::I8, Value::I32(v)) => Value::I32((v as i8).into()),
            (DType::I16, Value::I32(v)) => Value::I32((v as i16).into()),
            (_, v) => v,
        }
    }
}

impl From<Lit> for Value {
    fn from(lit: Lit) -> Value {
        match lit {
            Lit::Bool(v) => Value::Bool(v),
            Lit::I32(v) => Value::I32(v),
            Lit::I64(v) => Value::I64(v),
            Lit::F32(v) => Value::F32(f32::from_bits(v)),
            Lit::F64(v) => Value::F64(f64::from_bits(v)),
        }
    }
}

/// What the leaves of an expression mean.
pub trait Env {
    /// Coordinate.
    fn axis(&self, k: u8) -> i32;
    /// Bound scalar.
    fn arg(&self, i: u16) -> Value;
    /// Word of the symbol table.
    fn sym(&self, word: u16) -> i32;
    /// Element of an operand.
    fn load(&self, operand: u16, index: &[i32]) -> Value;
}

#[derive(Debug, Clone)]
enum Step {
    Lit(Value),
    Axis(u8),
    Arg(u16),
    Sym(u16),
    Load(u16, Vec<u32>),
    Unary(Unary, u32),
    Binary(Binary, u32, u32),
    Select(u32, u32, u32),
    Cast(Ty, u32),
    Round(DType, u32),
}

/// The nodes that some roots reach, in order.
#[derive(Debug, Clone)]
pub struct Tape {
    steps: Vec<Step>,
    roots: Vec<u32>,
}

impl Tape {
    /// Flattens what `roots` reach.
    pub fn new(exprs: &Exprs, roots: &[ExprId]) -> Tape {
        let nodes = exprs.reachable(roots);
        let mut position = vec![0u32; exprs.len()];
        let mut steps = Vec::with_capacity(nodes.len());
        for id in nodes {
            let at = |id: &ExprId| position[id.0 as usize];
            let step = match exprs.get(id) {
                Expr::Lit(lit) => Step::Lit((*lit).into()),
                Expr::Axis(k) => Step::Axis(*k),
                Expr::Arg(i, _) => Step::Arg(*i),
                Expr::Sym(w) => Step::Sym(*w),
                Expr::Load { operand, index, .. } => Step::Load(*operand, index.iter().map(at).collect()),
                Expr::Unary(op, a) => Step::Unary(*op, at(a)),
                Expr::Binary(op, a, b) => Step::Binary(*op, at(a), at(b)),
                Expr::Select(c, a, b) => Step::Select(at(c), at(a), at(b)),
                Expr::Cast(ty, a) => Step::Cast(*ty, at(a)),
                Expr::Round(dtype, a) => Step::Round(*dtype, at(a)),
            };
            position[id.0 as usize] = steps.len() as u32;
            steps.push(step);
        }
        let roots = roots.iter().map(|r| position[r.0 as usize]).collect();
        Tape { steps, roots }
    }

    /// A runner with its own registers.
    pub fn runner(&self) -> Runner<'_> {
        Runner { tape: self, registers: vec![Value::Bool(false); self.steps.len()], index: Vec::new() }
    }
}

/// Registers over a tape; made once, run per element.
#[derive(Debug)]
pub struct Runner<'t> {
    tape: &'t Tape,
    registers: Vec<Value>,
    index: Vec<i32>,
}

impl Runner<'_> {
    /// Evaluates everything for one element.
    pub fn run(&mut self, env: &impl Env) {
        for (at, step) in self.tape.steps.iter().enumerate() {
            let of = |i: &u32| self.registers[*i as usize];
            let value = match step {
                Step::Lit(v) => *v,
                Step::Axis(k) => Value::I32(env.axis(*k)),
                Step::Arg(i) => env.arg(*i),
                Step::Sym(w) => Value::I32(env.sym(*w)),
                Step::Load(operand, index) => {
                    self.index.clear();
                    self.index.extend(index.iter().map(|i| of(i).index()));
                    env.load(*operand, &self.index)
                }
                Step::Unary(op, a) => unary(*op, of(a)),
                Step::Binary(op, a, b) => binary(*op, of(a), of(b)),
                Step::Select(c, a, b) => of(if of(c) == Value::Bool(true) { a } else { b }),
                Step::Cast(ty, a) => of(a).cast(*ty),
                Step::Round(dtype, a) => of(a).round(*dtype),
            };
            self.registers[at] = value;
        }
    }

    /// The i-th root of the last run.
    pub fn get(&self, i: usize) -> Value {
        self.registers[self.tape.roots[i] as usize]
    }
}

/// A one-operand operation.
///
/// # Panics
/// On operand types that [`Exprs::add`] refuses.
pub fn unary(op: Unary, x: Value) -> Value {
    match (op, x) {
        (Unary::IsNan, v) => Value::Bool(v.to_f64().is_nan()),
        (Unary::IsInf, v) => Value::Bool(v.to_f64().is_infinite()),
        (Unary::Not, Value::Bool(v)) => Value::Bool(!v),
        (Unary::Not, Value::I32(v)) => Value::I32(!v),
        (Unary::Not, Value::I64(v)) => Value::I64(!v),
        (Unary::Neg, Value::I32(v)) => Value::I32(v.wrapping_neg()),
        (Unary::Neg, Value::I64(v)) => Value::I64(v.wrapping_neg()),
        (Unary::Abs, Value::I32(v)) => Value::I32(v.wrapping_abs()),
        (Unary::Abs, Value::I64(v)) => Value::I64(v.wrapping_abs()),
        (_, Value::F32(v)) => Value::F32(float_unary(op, v.into()) as f32),
        (_, Value::F64(v)) => Value::F64(float_unary(op, v)),
        (_, v) => panic!("{op:?} of {v:?}"),
    }
}

fn float_unary(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Trunc => x.trunc(),
        Unary::Round => x.round_ties_even(),
        Unary::Exp => x.exp(),
        Unary::Exp2 => x.exp2(),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log => x.ln(),
        Unary::Log2 => x.log2(),
        Unary::Log1p => x.ln_1p(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Tanh => x.tanh(),
        Unary::Asinh => x.asinh(),
        Unary::Acosh => special::acosh(x),
        Unary::Atanh => special::atanh(x),
        Unary::Erf => special::erf(x),
        Unary::Lgamma => special::lgamma(x),
        Unary::Not | Unary::IsNan | Unary::IsInf => panic!("{op:?} is no float function"),
    }
}

/// A two-operand operation.
///
/// # Panics
/// On operand types that [`Exprs::add`] refuses.
pub fn binary(op: Binary, x: Value, y: Value) -> Value {
    match (x, y) {
        (Value::Bool(a), Value::Bool(b)) => Value::Bool(bool_binary(op, a, b)),
        (Value::I32(a), Value::I32(b)) => match compare(op, a.partial_cmp(&b)) {
            Some(v) => Value::Bool(v),
            // 64 bits hold every exact result of two 32-bit operands; the low half is what wrapping leaves.
            None => Value::I32(int_binary(op, a.into(), b.into()) as i32),
        },
        (Value::I64(a), Value::I64(b)) => match compare(op, a.partial_cmp(&b)) {
            Some(v) => Value::Bool(v),
            None => Value::I64(int_binary(op, a, b)),
        },
        (Value::F32(a), Value::F32(b)) => match compare(op, a.partial_cmp(&b)) {
            Some(v) => Value::Bool(v),
            None => Value::F32(float_binary(op, a.into(), b.into()) as f32),
        },
        (Value::F64(a), Value::F64(b)) => match compare(op, a.partial_cmp(&b)) {
            Some(v) => Value::Bool(v),
            None => Value::F64(float_binary(op, a, b)),
        },
        (x, y) => panic!("{op:?} of {x:?} and {y:?}"),
    }
}

fn bool_binary(op: Binary, a: bool, b: bool) -> bool {
    match op {
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor | Binary::Ne => a ^ b,
        Binary::Eq => a == b,
        _ => panic!("{op:?} of bools"),
    }
}

/// The comparisons; `ordering` is none with NaN. No result for other operations.
fn compare(op: Binary, ordering: Option<std::cmp::Ordering>) -> Option<bool> {
    use std::cmp::Ordering::{Equal, Less};
    match op {
        Binary::Eq => Some(ordering == Some(Equal)),
        Binary::Ne => Some(ordering != Some(Equal)),
        Binary::Lt => Some(ordering == Some(Less)),
        Binary::Le => Some(matches!(ordering, Some(Less | Equal))),
        _ => None,
    }
}

fn int_binary(op: Binary, a: i64, b: i64) -> i64 {
    match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div => a.checked_div(b).unwrap_or(if b == 0 { 0 } else { a }),
        Binary::Rem => a.checked_rem(b).unwrap_or(0),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => a.wrapping_shl(b as u32),
        Binary::Shr => a.wrapping_shr(b as u32),
        _ => panic!("{op:?} of integers"),
    }
}

/// In f64; for f32 operands one rounding of the result follows, which is what f32 arithmetic gives (53 ≥ 2·24 + 2).
fn float_binary(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Rem => a % b,
        Binary::Pow => a.powf(b),
        Binary::Atan2 => a.atan2(b),
        Binary::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Min if a.is_nan() || b.is_nan() => f64::NAN,
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        _ => panic!("{op:?} of floats"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Env for Fixed {
        fn axis(&self, k: u8) -> i32 {
            i32::from(k) + 10
        }
        fn arg(&self, _: u16) -> Value {
            Value::F32(f32::NAN)
        }
        fn sym(&self, word: u16) -> i32 {
            i32::from(word)
        }
        fn load(&self, operand: u16, index: &[i32]) -> Value {
            Value::F32(f32::from(operand) + index.iter().sum::<i32>() as f32)
        }
    }

    #[test]
    fn a_shared_node_is_one_step_and_loads_take_computed_indices() {
        let mut e = Exprs::new();
        let (a, b) = (e.axis(0), e.axis(1));
        let sum = e.bin(Binary::Add, a, b);
        let x = e.load(3, DType::F32, vec![sum, sum]);
        let double = e.bin(Binary::Mul, x, x);
        let tape = Tape::new(&e, &[double, sum]);
        assert_eq!(tape.steps.len(), 5);
        let mut runner = tape.runner();
        runner.run(&Fixed);
        assert_eq!((runner.get(0), runner.get(1)), (Value::F32(45.0 * 45.0), Value::I32(21)));
    }

    #[test]
    fn nan_wins_maxima_and_loses_comparisons() {
        let nan = Value::F32(f32::NAN);
        let one = Value::F32(1.0);
        for (x, y) in [(nan, one), (one, nan)] {
            assert!(binary(Binary::Max, x, y).to_f64().is_nan(), "max");
            assert!(binary(Binary::Min, x, y).to_f64().is_nan(), "min");
            assert_eq!(binary(Binary::Le, x, y), Value::Bool(false));
            assert_eq!(binary(Binary::Ne, x, y), Value::Bool(true));
        }
    }

    #[test]
    fn casts_of_what_does_not_fit_give_the_smallest_integer() {
        for v in [3e9, -3e9, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(Value::F32(v).cast(Ty::I32), Value::I32(i32::MIN), "{v}");
        }
        for v in [1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(Value::F32(v).cast(Ty::I64), Value::I64(i64::MIN), "{v}");
        }
        assert_eq!(Value::F64(-2_147_483_648.5).cast(Ty::I32), Value::I32(i32::MIN), "fits after truncation");
        assert_eq!(Value::F32(3e9).cast(Ty::I64), Value::I64(3_000_000_000));
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(Value::I64(1 << 40).cast(Ty::I32), Value::I32(0));
        assert_eq!(binary(Binary::Mul, Value::I32(i32::MAX), Value::I32(2)), Value::I32(-2));
        assert_eq!(binary(Binary::Div, Value::I32(-7), Value::I32(2)), Value::I32(-3));
        assert_eq!(binary(Binary::Rem, Value::I32(-7), Value::I32(2)), Value::I32(-1));
    }
}
