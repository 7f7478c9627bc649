//! Powers: of floats by the exponents that PyTorch treats apart, of integers by squaring, of complex numbers.

use super::args::Call;
use super::binary::operands;
use super::body::BodyBuilder;
use super::complex::{self, Arithmetic};
use super::cx::Cx;
use super::promote::{pointwise, result_type};
use super::{AtenOp, Val};
use crate::ir::DType;
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Unary};

/// The table.
pub(super) const OPS: &[AtenOp] = &[AtenOp {
    names: &[
        "aten.pow.Tensor_Tensor",
        "aten.pow.Tensor_Scalar",
        "aten.pow.Scalar",
        "aten.float_power.Tensor_Tensor",
        "aten.float_power.Tensor_Scalar",
        "aten.float_power.Scalar",
    ],
    rule: pow,
}];

fn pow(cx: &mut Cx, c: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let [a, e] = operands(cx, c)?;
    let common = result_type(cx, &[a.clone(), e.clone()])?;
    if common.complex {
        if c.target.starts_with("aten.float_power") {
            let wide = |cx: &mut Cx, v: &Val| complex::to_complex(cx, v, DType::F64);
            let (a, e) = (wide(cx, &a)?, wide(cx, &e)?);
            return Ok(vec![complex::arithmetic(cx, Arithmetic::Pow, &a, &e)?]);
        }
        if matches!(&e, Val::Int(d) if d.is(2)) || e == Val::Float(2.0) {
            return Ok(vec![complex::arithmetic(cx, Arithmetic::Mul, &a, &a)?]);
        }
        return Ok(vec![complex::arithmetic(cx, Arithmetic::Pow, &a, &e)?]);
    }
    let dtype = if c.target.starts_with("aten.float_power") { DType::F64 } else { common.dtype };
    let exponent = match &e {
        Val::Int(d) => d.as_const().map(|v| v as f64),
        Val::Float(v) => Some(*v),
        _ => None,
    };
    let base_two = matches!(&a, Val::Int(d) if d.is(2)) || a == Val::Float(2.0);
    let out = pointwise(cx, &[a, e], dtype, dtype, |b, x| match exponent {
        _ if !b.ty(x[0]).is_float() => integer_power(b, x[0], x[1], exponent),
        Some(v) => literal_power(b, x[0], x[1], v),
        None if base_two => b.un(Unary::Exp2, x[1]),
        None => b.pow(x[0], x[1]),
    })?;
    Ok(vec![out.into()])
}

/// The exponents that PyTorch computes without `pow`.
fn literal_power(b: &mut BodyBuilder, x: ExprId, y: ExprId, exponent: f64) -> ExprId {
    let one = b.like(x, 1.0);
    match exponent {
        0.5 => b.un(Unary::Sqrt, x),
        1.0 => x,
        2.0 => b.mul(x, x),
        3.0 => {
            let square = b.mul(x, x);
            b.mul(square, x)
        }
        -0.5 => b.un(Unary::Rsqrt, x),
        -1.0 => b.div(one, x),
        -2.0 => {
            let square = b.mul(x, x);
            b.div(one, square)
        }
        _ => b.pow(x, y),
    }
}

/// Wrapping power of integers by squaring; a negative exponent gives the truncated reciprocal (0 but for ±1).
fn integer_power(b: &mut BodyBuilder, x: ExprId, e: ExprId, literal: Option<f64>) -> ExprId {
    if b.ty(x) == Ty::Bool {
        let not = b.not(e);
        return b.or(x, not);
    }
    let one = b.like(x, 1.0);
    if let Some(mut n) = literal.filter(|v| (0.0..64.0).contains(v)).map(|v| v as u32) {
        let (mut acc, mut square) = (one, x);
        while n > 0 {
            if n & 1 == 1 {
                acc = b.mul(acc, square);
            }
            square = b.mul(square, square);
            n >>= 1;
        }
        return acc;
    }
    let (zero, two) = (b.like(x, 0.0), b.like(x, 2.0));
    let (mut acc, mut square, mut rest) = (one, x, e);
    let exponent_bits = if b.ty(x) == Ty::I64 { 63 } else { 31 };
    for _ in 0..exponent_bits {
        let bit = b.and(rest, one);
        let set = b.ne(bit, zero);
        let factor = b.select(set, square, one);
        acc = b.mul(acc, factor);
        square = b.mul(square, square);
        rest = b.bin(Binary::Shr, rest, one);
    }
    let minus = b.like(x, -1.0);
    let (is_one, is_minus, negative) = (b.eq(x, one), b.eq(x, minus), b.lt(e, zero));
    let parity = b.rem(e, two);
    let even = b.eq(parity, zero);
    let of_minus = b.select(even, one, minus);
    let reciprocal = b.select(is_minus, of_minus, zero);
    let reciprocal = b.select(is_one, one, reciprocal);
    b.select(negative, reciprocal, acc)
}
