//! PyTorch's type promotion, and elementwise nodes over mixed operands: tensors, 0-d tensors and Python numbers.

use super::body::BodyBuilder;
use super::cx::{Built, Cx};
use super::{Val, bad_argument, unsupported_dtype};
use crate::ir::{DType, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::ExprId;

/// The type of a result: an element type, and whether elements are complex (of two such parts).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Common {
    /// Element type, of one part.
    pub dtype: DType,
    /// Complex.
    pub complex: bool,
}

/// Smallest type that holds both.
pub(super) fn promote(a: DType, b: DType) -> DType {
    use DType::{BF16, Bool, F16, F32, I8, I16, U8};
    match (a, b) {
        _ if a == b => a,
        (Bool, other) | (other, Bool) => other,
        (F16, BF16) | (BF16, F16) => F32,
        (U8, I8) | (I8, U8) => I16,
        _ if a.is_float() != b.is_float() => {
            if a.is_float() {
                a
            } else {
                b
            }
        }
        // Within one kind the declaration order of the types is their order of width.
        _ => a.max(b),
    }
}

fn kind(c: Common) -> u8 {
    match (c.complex, c.dtype) {
        (true, _) => 3,
        (_, d) if d.is_float() => 2,
        (_, DType::Bool) => 0,
        _ => 1,
    }
}

fn join(a: Option<Common>, b: Common) -> Option<Common> {
    let Some(a) = a else { return Some(b) };
    // An integer does not widen a complex type; a real float does.
    let dtype = match (a.complex && !b.dtype.is_float(), b.complex && !a.dtype.is_float()) {
        (true, _) => a.dtype,
        (_, true) => b.dtype,
        _ => promote(a.dtype, b.dtype),
    };
    Some(Common { dtype, complex: a.complex || b.complex })
}

/// `torch.result_type`: tensors with dimensions decide; 0-d tensors and, last, Python numbers only where they are of a higher kind
/// (bool < integer < float < complex).
pub(super) fn result_type(cx: &Cx, operands: &[Val]) -> Result<Common, Diagnostic> {
    let mut ranks: [Option<Common>; 3] = [None; 3];
    for v in operands {
        let (rank, common) = match v {
            Val::Tensor(x) => (usize::from(cx.rank(*x) == 0), Common { dtype: cx.tensor_dtype(*x), complex: false }),
            Val::Complex { re, .. } => {
                (usize::from(cx.rank(*re) == 0), Common { dtype: cx.tensor_dtype(*re), complex: true })
            }
            Val::Int(_) => (2, Common { dtype: DType::I64, complex: false }),
            Val::Float(_) | Val::Ratio(..) => (2, Common { dtype: DType::F32, complex: false }),
            Val::ComplexScalar(..) => (2, Common { dtype: DType::F32, complex: true }),
            Val::Bool(_) | Val::Compare(..) => (2, Common { dtype: DType::Bool, complex: false }),
            Val::None => continue,
            Val::List(_) => return Err(bad_argument("a list where a tensor or number is needed")),
        };
        ranks[rank] = join(ranks[rank], common);
    }
    let mut out: Option<Common> = None;
    for next in ranks.into_iter().flatten() {
        out = match out {
            Some(high) if kind(high) >= kind(next) => Some(high),
            // A complex number beside a real float tensor keeps the tensor's width.
            Some(high) if next.complex && high.dtype.is_float() => Some(Common { dtype: high.dtype, complex: true }),
            _ => Some(next),
        };
    }
    out.ok_or_else(|| bad_argument("no operand has a type"))
}

/// As [`result_type`] for operators on real numbers only.
pub(super) fn real_type(cx: &Cx, target: &str, operands: &[Val]) -> Result<DType, Diagnostic> {
    let common = result_type(cx, operands)?;
    if common.complex {
        return Err(unsupported_dtype(format!("{target} of complex numbers is not supported")));
    }
    Ok(common.dtype)
}

/// The type in which an operator on floats computes: integers become f32.
pub(super) fn to_float(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

/// An elementwise node: operands are converted to `compute` first, the closure gives an expression of the type of `out`.
pub(super) fn pointwise(
    cx: &mut Cx,
    operands: &[Val],
    compute: DType,
    out: DType,
    f: impl FnOnce(&mut BodyBuilder, &[ExprId]) -> ExprId,
) -> Built {
    let mut inputs: Vec<ValueId> = vec![];
    for v in operands {
        match v {
            Val::Tensor(x) => inputs.push(*x),
            Val::Complex { .. } => return Err(unsupported_dtype("a complex tensor is not supported here")),
            _ => {}
        }
    }
    let dtypes: Vec<DType> = inputs.iter().map(|&v| cx.tensor_dtype(v)).collect();
    cx.map_n(&inputs, out, |b, args| {
        let mut tensors = args.iter().zip(&dtypes);
        let xs: Vec<ExprId> = operands
            .iter()
            .map(|v| match v {
                Val::Tensor(_) => {
                    let (&x, &from) = tensors.next().expect("one argument for each tensor operand");
                    converted(b, x, from, compute)
                }
                number => number_expr(b, number, compute.ty()),
            })
            .collect();
        f(b, &xs)
    })
}

/// An element of one type as one of another: rounded to the source where that is a half type (its value may come straight from the f32
/// computation), and to the target where that is narrower.
pub(super) fn converted(b: &mut BodyBuilder, x: ExprId, from: DType, to: DType) -> ExprId {
    if from == to {
        return x;
    }
    let half = matches!(from, DType::F16 | DType::BF16);
    let x = if half { b.round_to(from, x) } else { x };
    let x = b.cast(to.ty(), x);
    b.round_to(to, x)
}

/// A Python number as an expression of a register type. Half types compute in f32, and so do numbers beside them.
pub(super) fn number_expr(b: &mut BodyBuilder, v: &Val, ty: Ty) -> ExprId {
    match v {
        Val::Int(d) => match d.as_const() {
            Some(v) => b.lit_int(ty, v),
            None => {
                let d = b.dim(d);
                b.cast(ty, d)
            }
        },
        Val::Float(v) => b.lit(ty, *v),
        Val::Bool(v) => b.lit(ty, f64::from(u8::from(*v))),
        Val::Ratio(p, q) => {
            let wide = if ty == Ty::F64 { Ty::F64 } else { Ty::F32 };
            let (p, q) = (b.dim(p), b.dim(q));
            let (p, q) = (b.cast(wide, p), b.cast(wide, q));
            let r = b.div(p, q);
            b.cast(ty, r)
        }
        Val::ComplexScalar(re, _) => b.lit(ty, *re),
        Val::Compare(how, x, y) => {
            let truth = b.compare_sizes(*how, x, y);
            b.cast(ty, truth)
        }
        Val::Tensor(_) | Val::Complex { .. } | Val::List(_) | Val::None => b.lit(ty, 0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Dim;

    fn tensor(cx: &mut Cx, dtype: DType, shape: &[i64]) -> Val {
        let shape = shape.iter().map(|&d| Dim::from(d)).collect();
        Val::Tensor(cx.full(shape, dtype, 0.0).expect("a constant"))
    }

    // Expected types are those of torch.result_type in torch 2.11.
    #[test]
    fn promotion_follows_dimensions_then_kind() {
        let cx = &mut Cx::new("t");
        let (f16, f64_0d) = (tensor(cx, DType::F16, &[2]), tensor(cx, DType::F64, &[]));
        let (i32v, i64_0d) = (tensor(cx, DType::I32, &[2]), tensor(cx, DType::I64, &[]));
        let (u8v, i8v, bf16) =
            (tensor(cx, DType::U8, &[2]), tensor(cx, DType::I8, &[2]), tensor(cx, DType::BF16, &[2]));
        let int = Val::Int(Dim::from(1));
        let real = |cx: &Cx, v: &[Val]| result_type(cx, v).map(|c| c.dtype);
        assert_eq!(real(cx, &[f16.clone(), f64_0d.clone()]), Ok(DType::F16), "a 0-d float does not widen");
        assert_eq!(real(cx, &[i32v.clone(), f64_0d]), Ok(DType::F64), "a 0-d float decides over integers");
        assert_eq!(real(cx, &[i32v.clone(), i64_0d.clone()]), Ok(DType::I32), "a 0-d integer does not widen");
        assert_eq!(real(cx, &[i32v, Val::Float(0.5)]), Ok(DType::F32), "a Python float beside integers");
        assert_eq!(real(cx, &[i64_0d, int]), Ok(DType::I64), "an int beside a 0-d integer");
        assert_eq!(real(cx, &[u8v, i8v]), Ok(DType::I16), "mixed signs widen");
        assert_eq!(real(cx, &[f16.clone(), bf16]), Ok(DType::F32), "the two half types meet in f32");
        let complex = result_type(cx, &[f16, Val::ComplexScalar(0.0, 1.0)]);
        assert_eq!(complex, Ok(Common { dtype: DType::F16, complex: true }), "a complex number keeps the width");
    }
}
