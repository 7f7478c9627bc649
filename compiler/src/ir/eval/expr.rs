//! Expressions over a whole iteration space: every node of the body is evaluated for a block of coordinates at a time, in columns.

use super::special::{erf, lgamma};
use super::tensor::{Data, Tensor, broadcast_strides, offsets, round_float, strides, wrap_int};
use super::{Cx, EvalError, Precision, reduce};
use crate::ir::op::Body;
use crate::ir::ty::DType;
use jvc_kernels::dtype::Ty;
use jvc_kernels::eval::{truncate_to_i32, truncate_to_i64};
use jvc_kernels::expr::{Binary, Expr, ExprId, Lit, Unary};

/// Coordinates evaluated together: enough to pay for the dispatch on each node, small enough for the cache.
const BLOCK: usize = 256;

/// One node's values over a block; bool is 0 or 1.
#[derive(Debug, Clone)]
enum Column {
    Float(Vec<f64>),
    Int(Vec<i64>),
}

impl Column {
    fn new(ty: Ty) -> Column {
        if ty.is_float() { Column::Float(vec![0.0; BLOCK]) } else { Column::Int(vec![0; BLOCK]) }
    }

    fn floats(&self) -> &[f64] {
        match self {
            Column::Float(v) => v,
            Column::Int(_) => unreachable!("expressions are typed"),
        }
    }

    fn ints(&self) -> &[i64] {
        match self {
            Column::Int(v) => v,
            Column::Float(_) => unreachable!("expressions are typed"),
        }
    }
}

/// `Arg(k)` is operand k at the broadcast coordinate.
pub(super) fn map(what: &str, body: &Body, args: &[&Tensor], shape: &[usize], cx: &Cx<'_>) -> Result<Data, EvalError> {
    let at = args
        .iter()
        .map(|t| (t.shape != shape).then(|| offsets(shape, 0, &broadcast_strides(&t.shape))))
        .collect::<Vec<_>>();
    Block::new(what, body, args, shape, cx)?.run(&at)
}

/// `Axis(d)` and `Load`s.
pub(super) fn compute(
    what: &str,
    body: &Body,
    args: &[&Tensor],
    shape: &[usize],
    cx: &Cx<'_>,
) -> Result<Data, EvalError> {
    Block::new(what, body, args, shape, cx)?.run(&[])
}

struct Block<'a> {
    what: &'a str,
    body: &'a Body,
    args: &'a [&'a Tensor],
    shape: &'a [usize],
    precision: Precision,
    /// Nodes that change from block to block, operands first.
    order: Vec<ExprId>,
    columns: Vec<Column>,
}

impl<'a> Block<'a> {
    fn new(
        what: &'a str,
        body: &'a Body,
        args: &'a [&'a Tensor],
        shape: &'a [usize],
        cx: &Cx<'_>,
    ) -> Result<Block<'a>, EvalError> {
        let exprs = &body.exprs;
        let mut columns = vec![Column::Int(vec![]); exprs.len()];
        let mut order = vec![];
        for id in exprs.reachable(&[body.root]) {
            columns[id.0 as usize] = match exprs.get(id) {
                Expr::Lit(lit) => constant(*lit),
                Expr::Sym(w) => Column::Int(vec![cx.size(what, &body.syms[*w as usize])? as i64; BLOCK]),
                _ => {
                    order.push(id);
                    Column::new(exprs.ty(id))
                }
            };
        }
        Ok(Block { what, body, args, shape, precision: cx.precision, order, columns })
    }

    /// `at[k]`: offsets of operand k per coordinate, or none when they are the coordinates themselves.
    fn run(mut self, at: &[Option<Vec<usize>>]) -> Result<Data, EvalError> {
        let n: usize = self.shape.iter().product();
        let root = self.body.root.0 as usize;
        let mut out = match self.columns[root] {
            Column::Float(_) => Data::Float(Vec::with_capacity(n)),
            Column::Int(_) => Data::Int(Vec::with_capacity(n)),
        };
        for first in (0..n).step_by(BLOCK) {
            let len = BLOCK.min(n - first);
            for i in 0..self.order.len() {
                let id = self.order[i];
                let mut column = std::mem::replace(&mut self.columns[id.0 as usize], Column::Int(vec![]));
                self.node(id, &mut column, first, len, at)?;
                self.columns[id.0 as usize] = column;
            }
            match (&mut out, &self.columns[root]) {
                (Data::Float(o), Column::Float(c)) => o.extend_from_slice(&c[..len]),
                (Data::Int(o), Column::Int(c)) => o.extend_from_slice(&c[..len]),
                _ => unreachable!("one column type per node"),
            }
        }
        Ok(out)
    }

    fn col(&self, id: ExprId) -> &Column {
        &self.columns[id.0 as usize]
    }

    fn node(
        &self,
        id: ExprId,
        out: &mut Column,
        first: usize,
        len: usize,
        at: &[Option<Vec<usize>>],
    ) -> Result<(), EvalError> {
        let exprs = &self.body.exprs;
        match exprs.get(id) {
            Expr::Lit(_) | Expr::Sym(_) => unreachable!("constants are not in the order"),
            Expr::Axis(k) => self.axis(*k as usize, out, first, len),
            Expr::Arg(k, _) => self.arg(*k as usize, out, first, len, &at[*k as usize]),
            Expr::Load { operand, index, .. } => return self.load(*operand, index, out, len),
            Expr::Unary(op, a) => unary(*op, exprs.ty(*a), self.col(*a), out, len),
            Expr::Binary(op, a, b) => binary(*op, self.col(*a), self.col(*b), out, len),
            Expr::Select(c, a, b) => select(self.col(*c).ints(), self.col(*a), self.col(*b), out, len),
            Expr::Cast(ty, a) => cast(*ty, self.col(*a), out, len, self.precision),
            Expr::Round(dtype, a) => round(*dtype, self.col(*a), out, len, self.precision),
        }
        match out {
            Column::Float(v) if self.precision == Precision::Working && exprs.ty(id) == Ty::F32 => {
                v[..len].iter_mut().for_each(|x| *x = f64::from(*x as f32));
            }
            Column::Int(v) if exprs.ty(id) == Ty::I32 => v[..len].iter_mut().for_each(|x| *x = i64::from(*x as i32)),
            // A bitwise not sets all other bits.
            Column::Int(v) if exprs.ty(id) == Ty::Bool => v[..len].iter_mut().for_each(|x| *x &= 1),
            Column::Float(_) | Column::Int(_) => {}
        }
        Ok(())
    }

    fn axis(&self, k: usize, out: &mut Column, first: usize, len: usize) {
        let Column::Int(v) = out else { unreachable!("coordinates are integers") };
        let stride = strides(self.shape)[k];
        let (mut coord, mut left) = (first / stride % self.shape[k], stride - first % stride);
        for x in &mut v[..len] {
            if left == 0 {
                left = stride;
                coord = (coord + 1) % self.shape[k];
            }
            *x = coord as i64;
            left -= 1;
        }
    }

    fn arg(&self, k: usize, out: &mut Column, first: usize, len: usize, at: &Option<Vec<usize>>) {
        fn copy<T: Copy>(from: &[T], to: &mut [T], first: usize, at: &Option<Vec<usize>>) {
            match at {
                None => to.copy_from_slice(&from[first..first + to.len()]),
                Some(at) => to.iter_mut().zip(&at[first..]).for_each(|(t, &o)| *t = from[o]),
            }
        }
        match (&self.args[k].data, out) {
            (Data::Float(v), Column::Float(c)) => copy(v, &mut c[..len], first, at),
            (Data::Int(v), Column::Int(c)) => copy(v, &mut c[..len], first, at),
            _ => unreachable!("arguments have their operand's type"),
        }
    }

    fn load(&self, operand: u16, index: &[ExprId], out: &mut Column, len: usize) -> Result<(), EvalError> {
        let t = self.args[operand as usize];
        let coords: Vec<&[i64]> = index.iter().map(|&i| self.col(i).ints()).collect();
        let by = strides(&t.shape);
        for i in 0..len {
            let mut at = 0;
            for (d, c) in coords.iter().enumerate() {
                if c[i] < 0 || c[i] as usize >= t.shape[d] {
                    return Err(EvalError::OutOfRange {
                        what: self.what.to_string(),
                        operand,
                        shape: t.shape.clone(),
                        index: coords.iter().map(|c| c[i]).collect(),
                    });
                }
                at += c[i] as usize * by[d];
            }
            match (&t.data, &mut *out) {
                (Data::Float(v), Column::Float(c)) => c[i] = v[at],
                (Data::Int(v), Column::Int(c)) => c[i] = v[at],
                _ => unreachable!("loads have their operand's type"),
            }
        }
        Ok(())
    }
}

fn constant(lit: Lit) -> Column {
    match lit {
        Lit::Bool(b) => Column::Int(vec![i64::from(b); BLOCK]),
        Lit::I32(v) => Column::Int(vec![i64::from(v); BLOCK]),
        Lit::I64(v) => Column::Int(vec![v; BLOCK]),
        Lit::F32(bits) => Column::Float(vec![f64::from(f32::from_bits(bits)); BLOCK]),
        Lit::F64(bits) => Column::Float(vec![f64::from_bits(bits); BLOCK]),
    }
}

fn unary(op: Unary, ty: Ty, a: &Column, out: &mut Column, len: usize) {
    match (a, out) {
        (Column::Float(a), Column::Float(out)) => {
            let f = float_function(op);
            a[..len].iter().zip(out).for_each(|(&x, y)| *y = f(x));
        }
        (Column::Float(a), Column::Int(out)) => {
            let f: fn(f64) -> bool = if op == Unary::IsNan { f64::is_nan } else { f64::is_infinite };
            a[..len].iter().zip(out).for_each(|(&x, y)| *y = i64::from(f(x)));
        }
        (Column::Int(a), Column::Int(out)) => {
            let f: fn(i64) -> i64 = match op {
                Unary::Neg => i64::wrapping_neg,
                Unary::Abs => i64::wrapping_abs,
                _ if ty == Ty::Bool => |x| i64::from(x == 0),
                _ => |x| !x,
            };
            a[..len].iter().zip(out).for_each(|(&x, y)| *y = f(x));
        }
        (Column::Int(_), Column::Float(_)) => unreachable!("unary operations keep the type or give bool"),
    }
}

fn float_function(op: Unary) -> fn(f64) -> f64 {
    match op {
        Unary::Neg => |x| -x,
        Unary::Abs => f64::abs,
        Unary::Floor => f64::floor,
        Unary::Ceil => f64::ceil,
        Unary::Trunc => f64::trunc,
        Unary::Round => f64::round_ties_even,
        Unary::Exp => f64::exp,
        Unary::Exp2 => f64::exp2,
        Unary::Expm1 => f64::exp_m1,
        Unary::Log => f64::ln,
        Unary::Log2 => f64::log2,
        Unary::Log1p => f64::ln_1p,
        Unary::Sqrt => f64::sqrt,
        Unary::Rsqrt => |x| 1.0 / x.sqrt(),
        Unary::Sin => f64::sin,
        Unary::Cos => f64::cos,
        Unary::Tan => f64::tan,
        Unary::Asin => f64::asin,
        Unary::Acos => f64::acos,
        Unary::Atan => f64::atan,
        Unary::Sinh => f64::sinh,
        Unary::Cosh => f64::cosh,
        Unary::Tanh => f64::tanh,
        Unary::Asinh => f64::asinh,
        Unary::Acosh => f64::acosh,
        Unary::Atanh => f64::atanh,
        Unary::Erf => erf,
        Unary::Lgamma => lgamma,
        Unary::Not | Unary::IsNan | Unary::IsInf => unreachable!("not a float result"),
    }
}

fn zip<A: Copy, B>(a: &[A], b: &[A], out: &mut [B], len: usize, f: impl Fn(A, A) -> B) {
    for ((&x, &y), o) in a[..len].iter().zip(&b[..len]).zip(out) {
        *o = f(x, y);
    }
}

fn binary(op: Binary, a: &Column, b: &Column, out: &mut Column, len: usize) {
    match (a, out) {
        (Column::Float(a), Column::Float(out)) => float_binary(op, a, b.floats(), out, len),
        (Column::Float(a), Column::Int(out)) => compare(op, a, b.floats(), out, len),
        (Column::Int(a), Column::Int(out)) => match op {
            Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le => compare(op, a, b.ints(), out, len),
            _ => int_binary(op, a, b.ints(), out, len),
        },
        (Column::Int(_), Column::Float(_)) => unreachable!("binary operations keep the type or give bool"),
    }
}

fn float_binary(op: Binary, a: &[f64], b: &[f64], out: &mut [f64], len: usize) {
    match op {
        Binary::Add => zip(a, b, out, len, |x, y| x + y),
        Binary::Sub => zip(a, b, out, len, |x, y| x - y),
        Binary::Mul => zip(a, b, out, len, |x, y| x * y),
        Binary::Div => zip(a, b, out, len, |x, y| x / y),
        Binary::Rem => zip(a, b, out, len, |x, y| x % y),
        Binary::Pow => zip(a, b, out, len, f64::powf),
        Binary::Atan2 => zip(a, b, out, len, f64::atan2),
        Binary::Max => zip(a, b, out, len, reduce::max),
        Binary::Min => zip(a, b, out, len, reduce::min),
        _ => unreachable!("typed as an integer operation"),
    }
}

fn compare<T: Copy + PartialOrd>(op: Binary, a: &[T], b: &[T], out: &mut [i64], len: usize) {
    match op {
        Binary::Eq => zip(a, b, out, len, |x, y| i64::from(x == y)),
        Binary::Ne => zip(a, b, out, len, |x, y| i64::from(x != y)),
        Binary::Lt => zip(a, b, out, len, |x, y| i64::from(x < y)),
        Binary::Le => zip(a, b, out, len, |x, y| i64::from(x <= y)),
        _ => unreachable!("typed as no comparison"),
    }
}

fn int_binary(op: Binary, a: &[i64], b: &[i64], out: &mut [i64], len: usize) {
    match op {
        Binary::Add => zip(a, b, out, len, i64::wrapping_add),
        Binary::Sub => zip(a, b, out, len, i64::wrapping_sub),
        Binary::Mul => zip(a, b, out, len, i64::wrapping_mul),
        Binary::Div => zip(a, b, out, len, |x, y| if y == 0 { 0 } else { x.wrapping_div(y) }),
        Binary::Rem => zip(a, b, out, len, |x, y| if y == 0 { 0 } else { x.wrapping_rem(y) }),
        Binary::Max => zip(a, b, out, len, i64::max),
        Binary::Min => zip(a, b, out, len, i64::min),
        Binary::And => zip(a, b, out, len, |x, y| x & y),
        Binary::Or => zip(a, b, out, len, |x, y| x | y),
        Binary::Xor => zip(a, b, out, len, |x, y| x ^ y),
        Binary::Shl => zip(a, b, out, len, |x, y| x.wrapping_shl(y as u32)),
        Binary::Shr => zip(a, b, out, len, |x, y| x.wrapping_shr(y as u32)),
        _ => unreachable!("typed as a float operation or comparison"),
    }
}

fn select(cond: &[i64], a: &Column, b: &Column, out: &mut Column, len: usize) {
    match (a, out) {
        (Column::Float(a), Column::Float(out)) => {
            (0..len).for_each(|i| out[i] = if cond[i] != 0 { a[i] } else { b.floats()[i] });
        }
        (Column::Int(a), Column::Int(out)) => {
            (0..len).for_each(|i| out[i] = if cond[i] != 0 { a[i] } else { b.ints()[i] });
        }
        _ => unreachable!("both sides have the result's type"),
    }
}

fn cast(ty: Ty, a: &Column, out: &mut Column, len: usize, precision: Precision) {
    match (a, out) {
        (Column::Float(a), Column::Float(out)) => out[..len].copy_from_slice(&a[..len]),
        (Column::Float(a), Column::Int(out)) => {
            let f: fn(f64) -> i64 = match ty {
                Ty::Bool => |x| i64::from(x != 0.0),
                Ty::I32 => |x| i64::from(truncate_to_i32(x)),
                _ => truncate_to_i64,
            };
            a[..len].iter().zip(out).for_each(|(&x, y)| *y = f(x));
        }
        (Column::Int(a), Column::Float(out)) => {
            // Through f64 a large i64 would be rounded twice.
            let single = ty == Ty::F32 && precision == Precision::Working;
            let f: fn(i64) -> f64 = if single { |x| f64::from(x as f32) } else { |x| x as f64 };
            a[..len].iter().zip(out).for_each(|(&x, y)| *y = f(x));
        }
        (Column::Int(a), Column::Int(out)) => {
            let bool = ty == Ty::Bool;
            a[..len].iter().zip(out).for_each(|(&x, y)| *y = if bool { i64::from(x != 0) } else { x });
        }
    }
}

fn round(dtype: DType, a: &Column, out: &mut Column, len: usize, precision: Precision) {
    match (a, out) {
        (Column::Float(a), Column::Float(out)) => {
            let exact = precision == Precision::Exact;
            a[..len].iter().zip(out).for_each(|(&x, y)| *y = if exact { x } else { round_float(dtype, x) });
        }
        (Column::Int(a), Column::Int(out)) => a[..len].iter().zip(out).for_each(|(&x, y)| *y = wrap_int(dtype, x)),
        _ => unreachable!("rounding keeps the type"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::eval::Symbols;
    use jvc_kernels::expr::Exprs;

    fn run(body: &Body, args: &[&Tensor], shape: &[usize], precision: Precision) -> Result<Data, EvalError> {
        let symbols = Symbols::from([("s".to_string(), 3)]);
        compute("v", body, args, shape, &Cx { symbols: &symbols, precision })
    }

    #[test]
    fn axes_count_row_major_across_blocks() {
        let mut e = Exprs::new();
        let (i, j, ten) = (e.axis(0), e.axis(1), e.i32(1000));
        let scaled = e.bin(Binary::Mul, i, ten);
        let root = e.bin(Binary::Add, scaled, j);
        let body = Body { exprs: e, root, syms: vec![] };
        let Data::Int(v) = run(&body, &[], &[200, 7], Precision::Working).expect("no loads") else { panic!("ints") };
        assert!(v.iter().enumerate().all(|(n, &x)| x == (n / 7 * 1000 + n % 7) as i64), "row-major coordinates");
    }

    #[test]
    fn f32_rounds_every_step_and_exact_never() {
        let mut e = Exprs::new();
        let (big, one) = (e.f32(16_777_216.0), e.f32(1.0));
        let sum = e.bin(Binary::Add, big, one);
        let root = e.bin(Binary::Sub, sum, big);
        let body = Body { exprs: e, root, syms: vec![] };
        assert_eq!(run(&body, &[], &[1], Precision::Working), Ok(Data::Float(vec![0.0])));
        assert_eq!(run(&body, &[], &[1], Precision::Exact), Ok(Data::Float(vec![1.0])));
    }

    #[test]
    fn load_out_of_range_is_an_error_that_names_the_coordinate() {
        let mut e = Exprs::new();
        let i = e.axis(0);
        let root = e.load(0, DType::F32, vec![i]);
        let body = Body { exprs: e, root, syms: vec![] };
        let x = Tensor::from_f64(DType::F32, &[2], vec![1.0, 2.0]);
        assert_eq!(run(&body, &[&x], &[2], Precision::Working), Ok(Data::Float(vec![1.0, 2.0])));
        let err = run(&body, &[&x], &[3], Precision::Working).expect_err("index 2 of 2");
        assert_eq!(err.to_string(), "v loads operand 0 of shape [2] at [2]");
    }

    #[test]
    fn casts_of_what_does_not_fit_give_the_smallest_integer_and_integers_wrap() {
        let mut e = Exprs::new();
        let huge = e.add(Expr::Lit(Lit::F64(1e30f64.to_bits())));
        let top = e.cast(Ty::I32, huge);
        let one = e.i32(1);
        let root = e.bin(Binary::Sub, top, one);
        let body = Body { exprs: e, root, syms: vec![] };
        assert_eq!(run(&body, &[], &[1], Precision::Working), Ok(Data::Int(vec![i64::from(i32::MAX)])));
    }

    #[test]
    fn not_of_a_bool_is_logical() {
        let mut e = Exprs::new();
        let t = e.bool(true);
        let f = e.un(Unary::Not, t);
        let root = e.un(Unary::Not, f);
        let body = |root| Body { exprs: e.clone(), root, syms: vec![] };
        assert_eq!(run(&body(f), &[], &[1], Precision::Working), Ok(Data::Int(vec![0])));
        assert_eq!(run(&body(root), &[], &[1], Precision::Working), Ok(Data::Int(vec![1])));
    }

    #[test]
    fn symbols_have_their_bound_value() {
        let mut e = Exprs::new();
        let root = e.add(Expr::Sym(0));
        let twice = &crate::ir::Dim::symbol("s") * &crate::ir::Dim::from(2);
        let body = Body { exprs: e, root, syms: vec![twice] };
        assert_eq!(run(&body, &[], &[1], Precision::Working), Ok(Data::Int(vec![6])));
    }
}
