//! Scalar expressions: the bodies of maps, the access maps of operands, prologues and epilogues of every kernel.
//!
//! An [`Exprs`] is an arena of typed nodes; equal nodes are stored once, so an expression is a DAG and shared parts are
//! computed once. What a leaf means depends on where the expression stands:
//!
//! - `Axis(k)` is the k-th coordinate of the iteration space (i32, never negative);
//! - `Arg(i)` is the i-th scalar that the surroundings bind: in an IR `map` the element of input `i` at the (broadcast)
//!   coordinate, in a kernel's epilogue the accumulator `i`, in a later stage of a row kernel the result of stage `i`;
//! - `Sym(w)` is word `w` of the symbol table (i32, never negative): the size of a symbolic dimension, or what the host derives from it;
//! - `Load` reads an operand: with one index per dimension in the IR, with one linear element index in a kernel.
//!
//! Semantics are PyTorch's: integers wrap; `Div` on integers truncates toward zero and `Rem` takes the dividend's sign
//! (rules build floor division and Python's remainder from these); `Max`/`Min` propagate NaN; comparisons with NaN are
//! false but `Ne`; shifts by the width or more are never built; a cast from float to integer truncates, and what does
//! not fit (NaN, infinities) becomes the smallest integer, as in PyTorch on x86.
//! Integer division by zero gives an unspecified value, never a fault.

use crate::dtype::{DType, Ty};
use std::collections::BTreeMap;

/// A node of an [`Exprs`] arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExprId(pub u32);

/// A literal, as bits so that it can be compared and ordered (NaN included).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lit {
    /// A truth value.
    Bool(bool),
    /// A 32-bit integer.
    I32(i32),
    /// A 64-bit integer.
    I64(i64),
    /// `f32::to_bits`.
    F32(u32),
    /// `f64::to_bits`.
    F64(u64),
}

/// One operand in, one value of the same type out, unless noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unary {
    /// −x.
    Neg,
    /// |x|.
    Abs,
    /// Logical not of bool, bitwise not of integers.
    Not,
    /// Largest integer not above x.
    Floor,
    /// Smallest integer not below x.
    Ceil,
    /// Toward zero.
    Trunc,
    /// Nearest, halves to even.
    Round,
    /// eˣ.
    Exp,
    /// 2ˣ.
    Exp2,
    /// eˣ − 1, exact near zero.
    Expm1,
    /// Natural logarithm.
    Log,
    /// Base-2 logarithm.
    Log2,
    /// ln(1 + x), exact near zero.
    Log1p,
    /// Square root, correctly rounded.
    Sqrt,
    /// 1/√x.
    Rsqrt,
    /// Sine, of radians of any magnitude.
    Sin,
    /// Cosine.
    Cos,
    /// Tangent.
    Tan,
    /// Arc sine.
    Asin,
    /// Arc cosine.
    Acos,
    /// Arc tangent.
    Atan,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Hyperbolic tangent.
    Tanh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// Error function.
    Erf,
    /// ln|Γ(x)|.
    Lgamma,
    /// Is NaN → bool.
    IsNan,
    /// Is ±∞ → bool.
    IsInf,
}

/// Two operands of one type; comparisons give bool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Binary {
    /// Sum; integers wrap.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Quotient; of integers truncated toward zero.
    Div,
    /// Remainder with the dividend's sign.
    Rem,
    /// xʸ (floats); special values as C `pow`.
    Pow,
    /// Angle of the point (y, x).
    Atan2,
    /// Larger; NaN if either is.
    Max,
    /// Smaller; NaN if either is.
    Min,
    /// Bitwise, or logical of bools.
    And,
    /// Bitwise, or logical of bools.
    Or,
    /// Bitwise, or logical of bools.
    Xor,
    /// Shift left.
    Shl,
    /// Arithmetic shift right.
    Shr,
    /// Equal.
    Eq,
    /// Not equal (true with NaN).
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
}

/// A node: a leaf, or an operation on earlier nodes of the same arena.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Expr {
    /// A literal.
    Lit(Lit),
    /// Coordinate of the iteration space.
    Axis(u8),
    /// A scalar bound by the surroundings, with its type.
    Arg(u16, Ty),
    /// A word of the symbol table.
    Sym(u16),
    /// An element of an operand, converted to the operand's register type.
    Load {
        /// Position in the operand list.
        operand: u16,
        /// Element type of the operand; the node's type is `dtype.ty()`.
        dtype: DType,
        /// i32 indices: one per dimension in the IR, exactly one (linear, in elements) in a kernel. Always in range:
        /// whoever builds the node clamps or selects the index first.
        index: Vec<ExprId>,
    },
    /// One-operand operation.
    Unary(Unary, ExprId),
    /// Two-operand operation.
    Binary(Binary, ExprId, ExprId),
    /// `cond ? then : other`; both sides are evaluated.
    Select(ExprId, ExprId, ExprId),
    /// Conversion to a register type: bool ↔ number as 0/1 and ≠ 0.
    Cast(Ty, ExprId),
    /// Rounds a float or wraps an integer to what the element type can hold, staying in the register type.
    Round(DType, ExprId),
}

/// An arena of expressions. Node ids are in dependency order: operands come before users.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Exprs {
    nodes: Vec<Expr>,
    tys: Vec<Ty>,
    memo: BTreeMap<Expr, ExprId>,
}

impl Exprs {
    /// An empty arena.
    pub fn new() -> Exprs {
        Exprs::default()
    }

    /// The node behind an id.
    pub fn get(&self, id: ExprId) -> &Expr {
        &self.nodes[id.0 as usize]
    }

    /// The register type of a node.
    pub fn ty(&self, id: ExprId) -> Ty {
        self.tys[id.0 as usize]
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True without nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// All nodes with their ids, operands before users.
    pub fn iter(&self) -> impl Iterator<Item = (ExprId, &Expr)> {
        self.nodes.iter().enumerate().map(|(i, e)| (ExprId(i as u32), e))
    }

    /// Adds a node, or finds the equal one that is there. No simplification happens here.
    ///
    /// # Panics
    /// When operand types do not fit the operation: that is a bug of the caller.
    pub fn add(&mut self, expr: Expr) -> ExprId {
        self.try_add(expr).unwrap_or_else(|why| panic!("{why}"))
    }

    /// As [`Exprs::add`], where the types come from outside.
    ///
    /// # Errors
    /// What does not fit ("`+` of i64 and f32").
    pub fn try_add(&mut self, expr: Expr) -> Result<ExprId, String> {
        if let Some(&id) = self.memo.get(&expr) {
            return Ok(id);
        }
        let ty = self.infer_ty(&expr)?;
        let id = ExprId(self.nodes.len() as u32);
        self.memo.insert(expr.clone(), id);
        self.nodes.push(expr);
        self.tys.push(ty);
        Ok(id)
    }

    /// The id of a node that is there already.
    pub fn find(&self, expr: &Expr) -> Option<ExprId> {
        self.memo.get(expr).copied()
    }

    /// Operand ids of a node, in order.
    pub fn operands(&self, id: ExprId) -> Vec<ExprId> {
        match self.get(id) {
            Expr::Lit(_) | Expr::Axis(_) | Expr::Arg(..) | Expr::Sym(_) => vec![],
            Expr::Load { index, .. } => index.clone(),
            Expr::Unary(_, a) | Expr::Cast(_, a) | Expr::Round(_, a) => vec![*a],
            Expr::Binary(_, a, b) => vec![*a, *b],
            Expr::Select(c, a, b) => vec![*c, *a, *b],
        }
    }

    /// The same node over other operands, given in the order of [`Exprs::operands`].
    pub fn with_operands(expr: &Expr, ops: &[ExprId]) -> Expr {
        match expr {
            Expr::Lit(_) | Expr::Axis(_) | Expr::Arg(..) | Expr::Sym(_) => expr.clone(),
            Expr::Load { operand, dtype, .. } => Expr::Load { operand: *operand, dtype: *dtype, index: ops.to_vec() },
            Expr::Unary(op, _) => Expr::Unary(*op, ops[0]),
            Expr::Cast(ty, _) => Expr::Cast(*ty, ops[0]),
            Expr::Round(d, _) => Expr::Round(*d, ops[0]),
            Expr::Binary(op, ..) => Expr::Binary(*op, ops[0], ops[1]),
            Expr::Select(..) => Expr::Select(ops[0], ops[1], ops[2]),
        }
    }

    /// The nodes that `roots` reach, operands before users.
    pub fn reachable(&self, roots: &[ExprId]) -> Vec<ExprId> {
        let mut seen = vec![false; self.nodes.len()];
        let mut stack: Vec<ExprId> = roots.to_vec();
        while let Some(id) = stack.pop() {
            if !std::mem::replace(&mut seen[id.0 as usize], true) {
                stack.extend(self.operands(id));
            }
        }
        (0..self.nodes.len()).filter(|&i| seen[i]).map(|i| ExprId(i as u32)).collect()
    }

    fn infer_ty(&self, expr: &Expr) -> Result<Ty, String> {
        Ok(match expr {
            Expr::Lit(Lit::Bool(_)) => Ty::Bool,
            Expr::Lit(Lit::I32(_)) | Expr::Axis(_) | Expr::Sym(_) => Ty::I32,
            Expr::Lit(Lit::I64(_)) => Ty::I64,
            Expr::Lit(Lit::F32(_)) => Ty::F32,
            Expr::Lit(Lit::F64(_)) => Ty::F64,
            Expr::Arg(_, ty) | Expr::Cast(ty, _) => *ty,
            Expr::Load { dtype, index, .. } => {
                let other = index.iter().find(|&&i| self.ty(i) != Ty::I32);
                other.map_or(Ok(dtype.ty()), |&i| Err(format!("an index of type {}", self.ty(i))))?
            }
            Expr::Unary(op, a) => unary_ty(*op, self.ty(*a)).ok_or_else(|| format!("`{op}` of {}", self.ty(*a)))?,
            Expr::Binary(op, a, b) => {
                let (a, b) = (self.ty(*a), self.ty(*b));
                binary_ty(*op, a).filter(|_| a == b).ok_or_else(|| format!("`{op}` of {a} and {b}"))?
            }
            Expr::Select(c, a, b) => {
                let (c, a, b) = (self.ty(*c), self.ty(*a), self.ty(*b));
                if c != Ty::Bool || a != b {
                    return Err(format!("a choice by {c} between {a} and {b}"));
                }
                a
            }
            Expr::Round(dtype, a) => {
                let ty = self.ty(*a);
                if dtype.ty() != ty {
                    return Err(format!("{ty} rounded to {dtype}"));
                }
                ty
            }
        })
    }
}

/// Type of the result; `None` where the operation is not defined.
fn unary_ty(op: Unary, a: Ty) -> Option<Ty> {
    match op {
        Unary::IsNan | Unary::IsInf => a.is_float().then_some(Ty::Bool),
        Unary::Neg | Unary::Abs => (a != Ty::Bool).then_some(a),
        Unary::Not => (!a.is_float()).then_some(a),
        _ => a.is_float().then_some(a),
    }
}

/// As [`unary_ty`], for two operands of one type.
fn binary_ty(op: Binary, a: Ty) -> Option<Ty> {
    let (float, int) = (a.is_float(), matches!(a, Ty::I32 | Ty::I64));
    match op {
        Binary::Eq | Binary::Ne => Some(Ty::Bool),
        Binary::Lt | Binary::Le => (float || int).then_some(Ty::Bool),
        Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Rem | Binary::Max | Binary::Min => {
            (float || int).then_some(a)
        }
        Binary::Pow | Binary::Atan2 => float.then_some(a),
        Binary::And | Binary::Or | Binary::Xor => (!float).then_some(a),
        Binary::Shl | Binary::Shr => int.then_some(a),
    }
}

/// Short constructors, used by rules, fusions and tests.
impl Exprs {
    /// An i32 literal.
    pub fn i32(&mut self, v: i32) -> ExprId {
        self.add(Expr::Lit(Lit::I32(v)))
    }
    /// An f32 literal.
    pub fn f32(&mut self, v: f32) -> ExprId {
        self.add(Expr::Lit(Lit::F32(v.to_bits())))
    }
    /// A bool literal.
    pub fn bool(&mut self, v: bool) -> ExprId {
        self.add(Expr::Lit(Lit::Bool(v)))
    }
    /// A literal of a register type from a double: integers truncate, bools compare with zero.
    pub fn lit(&mut self, ty: Ty, v: f64) -> ExprId {
        self.add(Expr::Lit(match ty {
            Ty::Bool => Lit::Bool(v != 0.0),
            Ty::I32 => Lit::I32(v as i32),
            Ty::I64 => Lit::I64(v as i64),
            Ty::F32 => Lit::F32((v as f32).to_bits()),
            Ty::F64 => Lit::F64(v.to_bits()),
        }))
    }
    /// A coordinate.
    pub fn axis(&mut self, k: u8) -> ExprId {
        self.add(Expr::Axis(k))
    }
    /// A bound scalar.
    pub fn arg(&mut self, i: u16, ty: Ty) -> ExprId {
        self.add(Expr::Arg(i, ty))
    }
    /// A one-operand operation.
    pub fn un(&mut self, op: Unary, a: ExprId) -> ExprId {
        self.add(Expr::Unary(op, a))
    }
    /// A two-operand operation.
    pub fn bin(&mut self, op: Binary, a: ExprId, b: ExprId) -> ExprId {
        self.add(Expr::Binary(op, a, b))
    }
    /// `cond ? a : b`.
    pub fn select(&mut self, cond: ExprId, a: ExprId, b: ExprId) -> ExprId {
        self.add(Expr::Select(cond, a, b))
    }
    /// A conversion; none when the type is already right.
    pub fn cast(&mut self, ty: Ty, a: ExprId) -> ExprId {
        if self.ty(a) == ty { a } else { self.add(Expr::Cast(ty, a)) }
    }
    /// An element of an operand.
    pub fn load(&mut self, operand: u16, dtype: DType, index: Vec<ExprId>) -> ExprId {
        self.add(Expr::Load { operand, dtype, index })
    }
}
