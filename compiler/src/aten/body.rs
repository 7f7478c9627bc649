//! Builds the expression of a `Map` or `Compute`: typed operands, sizes as literals or symbols, the usual arithmetic.

use super::Comparison;
use crate::ir::op::Body;
use crate::ir::{DType, Dim, TensorType};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};

/// An expression under construction, over operands of known types. Operands whose types do not fit an operation (an archive may declare
/// any) leave a fault, which whoever asked for the expression reports; the expression is of no use then.
#[derive(Debug, Default)]
pub struct BodyBuilder {
    /// The arena, for nodes that have no short constructor here.
    pub exprs: Exprs,
    syms: Vec<Dim>,
    inputs: Vec<TensorType>,
    fault: Option<String>,
}

/// `fn NAME(&mut self, a, b)` for each two-operand operation.
macro_rules! binaries {
    ($($(#[$doc:meta])* $name:ident = $op:ident;)*) => { $(
        $(#[$doc])*
        pub fn $name(&mut self, a: ExprId, b: ExprId) -> ExprId {
            let op = if self.ty(a) == Ty::Bool { of_bools(Binary::$op) } else { Binary::$op };
            self.bin(op, a, b)
        }
    )* };
}

/// Arithmetic of truth values, as PyTorch stores it: sums and maxima are "or", products and minima "and".
fn of_bools(op: Binary) -> Binary {
    match op {
        Binary::Add | Binary::Max => Binary::Or,
        Binary::Mul | Binary::Min => Binary::And,
        other => other,
    }
}

impl BodyBuilder {
    /// An empty expression over operands.
    pub fn new(inputs: Vec<TensorType>) -> BodyBuilder {
        BodyBuilder { inputs, ..BodyBuilder::default() }
    }

    /// The finished body.
    pub fn finish(self, root: ExprId) -> Body {
        Body { exprs: self.exprs, root, syms: self.syms }
    }

    /// The first operation whose operands did not fit.
    pub fn take_fault(&mut self) -> Option<String> {
        self.fault.take()
    }

    /// Adds a node, or notes the fault and gives `otherwise`.
    fn add_node(&mut self, expr: Expr, otherwise: ExprId) -> ExprId {
        self.exprs.try_add(expr).unwrap_or_else(|why| {
            self.fault.get_or_insert(why);
            otherwise
        })
    }

    /// Register type of a node.
    pub fn ty(&self, x: ExprId) -> Ty {
        self.exprs.ty(x)
    }

    /// Type of an operand.
    pub fn input(&self, k: usize) -> &TensorType {
        &self.inputs[k]
    }

    /// The element of operand `k` at the (broadcast) coordinate of a `Map`.
    pub fn arg(&mut self, k: usize) -> ExprId {
        let ty = self.inputs[k].dtype.ty();
        self.exprs.arg(k as u16, ty)
    }

    /// The element of operand `k` at a coordinate (one i32 index per dimension, in range).
    pub fn load(&mut self, k: usize, index: &[ExprId]) -> ExprId {
        let dtype = self.inputs[k].dtype;
        let otherwise = self.lit(dtype.ty(), 0.0);
        self.add_node(Expr::Load { operand: k as u16, dtype, index: index.to_vec() }, otherwise)
    }

    /// Coordinate `d` of the result (i32).
    pub fn axis(&mut self, d: usize) -> ExprId {
        self.exprs.axis(d as u8)
    }

    /// An i32 literal.
    pub fn int(&mut self, v: i64) -> ExprId {
        // Sizes over 2³¹ are refused by the schedule; a saturated literal keeps the graph printable until then.
        self.exprs.i32(v.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32)
    }

    /// A size as an i32 value: a literal or a symbol-table word.
    pub fn dim(&mut self, d: &Dim) -> ExprId {
        if let Some(v) = d.as_const() {
            return self.int(v);
        }
        let at = self.syms.iter().position(|s| s == d).unwrap_or_else(|| {
            self.syms.push(d.clone());
            self.syms.len() - 1
        });
        self.exprs.add(Expr::Sym(at as u16))
    }

    /// A comparison of two sizes.
    pub fn compare_sizes(&mut self, how: Comparison, x: &Dim, y: &Dim) -> ExprId {
        let (x, y) = (self.dim(x), self.dim(y));
        match how {
            Comparison::Eq => self.eq(x, y),
            Comparison::Ne => self.ne(x, y),
            Comparison::Lt => self.lt(x, y),
            Comparison::Le => self.le(x, y),
        }
    }

    /// A literal of a register type.
    pub fn lit(&mut self, ty: Ty, v: f64) -> ExprId {
        self.exprs.lit(ty, v)
    }

    /// A literal of the type of `x`.
    pub fn like(&mut self, x: ExprId, v: f64) -> ExprId {
        let ty = self.ty(x);
        self.exprs.lit(ty, v)
    }

    /// An integer literal of a register type, exact for 64 bits.
    pub fn lit_int(&mut self, ty: Ty, v: i64) -> ExprId {
        match ty {
            Ty::I64 => self.exprs.add(Expr::Lit(Lit::I64(v))),
            Ty::I32 => self.exprs.i32(v as i32),
            Ty::Bool | Ty::F32 | Ty::F64 => self.exprs.lit(ty, v as f64),
        }
    }

    /// A conversion, none when the type is right.
    pub fn cast(&mut self, ty: Ty, x: ExprId) -> ExprId {
        self.exprs.cast(ty, x)
    }

    /// Rounds or wraps to what an element type can hold.
    pub fn round_to(&mut self, dtype: DType, x: ExprId) -> ExprId {
        match dtype {
            DType::U8 | DType::I8 | DType::I16 | DType::F16 | DType::BF16 => self.add_node(Expr::Round(dtype, x), x),
            DType::Bool | DType::I32 | DType::I64 | DType::F32 | DType::F64 => x,
        }
    }

    /// `cond ? a : b`.
    pub fn select(&mut self, cond: ExprId, a: ExprId, b: ExprId) -> ExprId {
        self.add_node(Expr::Select(cond, a, b), a)
    }

    /// A one-operand operation.
    pub fn un(&mut self, op: Unary, x: ExprId) -> ExprId {
        let otherwise = if matches!(op, Unary::IsNan | Unary::IsInf) { self.exprs.bool(false) } else { x };
        self.add_node(Expr::Unary(op, x), otherwise)
    }

    /// A two-operand operation.
    pub fn bin(&mut self, op: Binary, a: ExprId, b: ExprId) -> ExprId {
        let compares = matches!(op, Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le);
        let otherwise = if compares { self.exprs.bool(false) } else { a };
        self.add_node(Expr::Binary(op, a, b), otherwise)
    }

    binaries! {
        /// a + b.
        add = Add;
        /// a − b.
        sub = Sub;
        /// a · b.
        mul = Mul;
        /// a / b; of integers toward zero.
        div = Div;
        /// Remainder with a's sign.
        rem = Rem;
        /// Larger; NaN wins.
        max = Max;
        /// Smaller; NaN wins.
        min = Min;
        /// And.
        and = And;
        /// Or.
        or = Or;
        /// Exclusive or.
        xor = Xor;
        /// Equal.
        eq = Eq;
        /// Not equal.
        ne = Ne;
        /// a < b.
        lt = Lt;
        /// a ≤ b.
        le = Le;
        /// aᵇ of floats.
        pow = Pow;
    }

    /// a > b.
    pub fn gt(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.lt(b, a)
    }

    /// a ≥ b.
    pub fn ge(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.le(b, a)
    }

    /// Logical or bitwise not.
    pub fn not(&mut self, x: ExprId) -> ExprId {
        self.un(Unary::Not, x)
    }

    /// −x.
    pub fn neg(&mut self, x: ExprId) -> ExprId {
        self.un(Unary::Neg, x)
    }

    /// ⌊a / b⌋ of integers or floats (for floats, as Python: consistent with [`BodyBuilder::floor_mod`]).
    pub fn floor_div(&mut self, a: ExprId, b: ExprId) -> ExprId {
        if self.ty(a).is_float() {
            return self.floor_div_float(a, b);
        }
        let q = self.div(a, b);
        let back = self.mul(q, b);
        let inexact = self.ne(back, a);
        let zero = self.like(a, 0.0);
        let (a_neg, b_neg) = (self.lt(a, zero), self.lt(b, zero));
        let signs = self.xor(a_neg, b_neg);
        let down = self.and(inexact, signs);
        let one = self.like(a, 1.0);
        let lower = self.sub(q, one);
        self.select(down, lower, q)
    }

    /// PyTorch's `div_floor_floating`: from the exact remainder, so that no rounding of a / b crosses an integer.
    fn floor_div_float(&mut self, a: ExprId, b: ExprId) -> ExprId {
        let zero = self.like(a, 0.0);
        let one = self.like(a, 1.0);
        let plain = self.div(a, b);
        let m = self.rem(a, b);
        let less = self.sub(a, m);
        let div = self.div(less, b);
        let (b_neg, m_neg) = (self.lt(b, zero), self.lt(m, zero));
        let signs = self.xor(b_neg, m_neg);
        let m_some = self.ne(m, zero);
        let down = self.and(signs, m_some);
        let lower = self.sub(div, one);
        let div = self.select(down, lower, div);
        let floor = self.un(Unary::Floor, div);
        let off = self.sub(div, floor);
        let half = self.like(a, 0.5);
        let up = self.gt(off, half);
        let next = self.add(floor, one);
        let q = self.select(up, next, floor);
        let b_zero = self.eq(b, zero);
        self.select(b_zero, plain, q)
    }

    /// Python's remainder: the sign of b.
    pub fn floor_mod(&mut self, a: ExprId, b: ExprId) -> ExprId {
        let m = self.rem(a, b);
        let zero = self.like(a, 0.0);
        let some = self.ne(m, zero);
        let (b_neg, m_neg) = (self.lt(b, zero), self.lt(m, zero));
        let signs = self.xor(b_neg, m_neg);
        let fix = self.and(some, signs);
        let fixed = self.add(m, b);
        self.select(fix, fixed, m)
    }

    /// An i32 index limited to `0 ..= size − 1`.
    pub fn clamp_index(&mut self, i: ExprId, size: &Dim) -> ExprId {
        let zero = self.int(0);
        let last = self.dim(&(size - &Dim::from(1)));
        let low = self.max(i, zero);
        let high = self.min(low, last);
        // An empty dimension has no last element; loads from it never happen, but the index stays non-negative.
        self.max(high, zero)
    }

    /// A program index (any integer type) as an i32 coordinate: negative ones count from the end, then limited to the dimension, so that
    /// no index reads outside the tensor.
    pub fn wrap_index(&mut self, i: ExprId, size: &Dim) -> ExprId {
        let i = self.cast(Ty::I32, i);
        let zero = self.int(0);
        let n = self.dim(size);
        let from_end = self.add(i, n);
        let negative = self.lt(i, zero);
        let wrapped = self.select(negative, from_end, i);
        self.clamp_index(wrapped, size)
    }

    /// `0 ≤ i < size` for an i32 index.
    pub fn in_range(&mut self, i: ExprId, size: &Dim) -> ExprId {
        let zero = self.int(0);
        let n = self.dim(size);
        let (low, high) = (self.le(zero, i), self.lt(i, n));
        self.and(low, high)
    }
}
