//! Products of matrices and vectors: `mm`, `bmm`, `matmul` with its rank rules, `linear`, and the forms that add.

use super::complex::bilinear;
use super::cx::Built;
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument, linear_systems};
use crate::ir::{DType, Dim, Op, Shape, ValueId};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.matmul.default", "aten.linalg_matmul.default"], rule: matmul },
    AtenOp { names: &["aten.mm.default"], rule: mm },
    AtenOp { names: &["aten.bmm.default"], rule: bmm },
    AtenOp { names: &["aten.mv.default"], rule: mv },
    AtenOp { names: &["aten.dot.default", "aten.vdot.default"], rule: dot },
    AtenOp { names: &["aten.inner.default"], rule: inner },
    AtenOp { names: &["aten.linear.default"], rule: linear },
    AtenOp { names: &["aten.addmm.default"], rule: addmm },
    AtenOp { names: &["aten.addmv.default"], rule: addmv },
    AtenOp { names: &["aten.baddbmm.default"], rule: baddbmm },
    AtenOp { names: &["aten.addbmm.default"], rule: addbmm },
    AtenOp { names: &["aten.linalg_multi_dot.default", "aten.chain_matmul.default"], rule: multi_dot },
    AtenOp { names: &["aten.linalg_matrix_power.default", "aten.matrix_power.default"], rule: matrix_power },
];

/// `a @ b` of two operands of equal rank ≥ 2, in a type that the kernels multiply: small integers and bool go through i32.
pub(super) fn multiply(cx: &mut Cx, a: ValueId, b: ValueId) -> Built {
    let dtype = cx.tensor_dtype(a);
    let wide = match dtype {
        DType::Bool | DType::U8 | DType::I8 | DType::I16 => DType::I32,
        DType::I32 | DType::I64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => dtype,
    };
    let (a, b) = (cx.cast(a, wide)?, cx.cast(b, wide)?);
    let (rank, rank_b) = (cx.rank(a), cx.rank(b));
    if rank >= 2 && rank_b == rank && cx.size(a, rank - 2).is(1) && cx.size(b, rank - 1).is(1) {
        return row_products(cx, a, b, dtype);
    }
    let y = cx.add1(Op::Matmul, vec![a, b])?;
    cx.cast(y, dtype)
}

/// `a[…,1,k] @ b[…,k,1]`: one sum per batch entry, which a row kernel does better than a tiled product.
fn row_products(cx: &mut Cx, a: ValueId, b: ValueId, dtype: DType) -> Built {
    let rank = cx.rank(a);
    let row = cx.transpose(b, rank - 2, rank - 1)?;
    let wide = cx.tensor_dtype(a);
    let acc = if wide.is_float() { super::norm::accumulator(wide) } else { wide };
    let products = cx.map2(a, row, acc, |b, x, y| b.mul(x, y))?;
    let sum = cx.reduce(products, jvc_kernels::spec::Combine::Sum, &[rank - 1], true, acc)?;
    cx.cast(sum, dtype)
}

/// Half types as f32. A product that something is added to is computed and summed in f32 and rounded once, as PyTorch does it.
fn widened(cx: &mut Cx, v: ValueId) -> Built {
    match cx.tensor_dtype(v) {
        DType::F16 | DType::BF16 => cx.cast(v, DType::F32),
        _ => Ok(v),
    }
}

/// The last two dimensions swapped.
pub(super) fn transposed(cx: &mut Cx, v: ValueId) -> Built {
    let rank = cx.rank(v);
    cx.transpose(v, rank - 2, rank - 1)
}

/// PyTorch's `matmul`: vectors get a dimension that the result loses again, leading dimensions of `a` fold into its rows when `b` is one
/// matrix, and batch dimensions broadcast otherwise.
pub(super) fn matmul_values(cx: &mut Cx, a: ValueId, b: ValueId) -> Built {
    let (shape_a, shape_b) = (cx.shape(a), cx.shape(b));
    if shape_a.is_empty() || shape_b.is_empty() {
        return Err(bad_argument("matmul of a 0-dimensional tensor"));
    }
    let mut out: Shape = vec![];
    let one = || Dim::from(1);
    if shape_a.len() >= 2 && shape_b.len() <= 2 {
        out.extend_from_slice(&shape_a[..shape_a.len() - 1]);
        let k = shape_a[shape_a.len() - 1].clone();
        let rows = shape_a[..shape_a.len() - 1].iter().fold(one(), |p, d| &p * d);
        let a2 = cx.reshape(a, vec![rows, k])?;
        let b2 = if shape_b.len() == 1 { cx.reshape(b, vec![shape_b[0].clone(), one()])? } else { b };
        out.extend_from_slice(&shape_b[1..]);
        let y = multiply(cx, a2, b2)?;
        return cx.reshape(y, out);
    }
    let a2 = if shape_a.len() == 1 { cx.reshape(a, vec![one(), shape_a[0].clone()])? } else { a };
    let b2 = if shape_b.len() == 1 { cx.reshape(b, vec![shape_b[0].clone(), one()])? } else { b };
    let rank = cx.rank(a2).max(cx.rank(b2));
    let (a3, b3) = (cx.to_rank(a2, rank)?, cx.to_rank(b2, rank)?);
    let y = multiply(cx, a3, b3)?;
    let mut out = cx.shape(y);
    if shape_b.len() == 1 {
        out.remove(rank - 1);
    }
    if shape_a.len() == 1 {
        out.remove(rank - 2);
    }
    cx.reshape(y, out)
}

fn matmul(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (a, b) = (call.value(cx, first_name(call))?, call.value(cx, "other")?);
    Ok(vec![bilinear(cx, &a, &b, matmul_values)?])
}

fn first_name(call: &Call<'_>) -> &'static str {
    if call.has("input") { "input" } else { "self" }
}

fn mm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (a, b) = (call.value(cx, "self")?, call.value(cx, "mat2")?);
    Ok(vec![bilinear(cx, &a, &b, multiply)?])
}

fn bmm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    mm(cx, call)
}

fn mv(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "vec")?);
    Ok(vec![Val::Tensor(matmul_values(cx, a, b)?)])
}

fn dot(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let other = if call.has("tensor") { "tensor" } else { "other" };
    let (a, b) = (call.tensor(cx, "self")?, call.tensor(cx, other)?);
    Ok(vec![Val::Tensor(matmul_values(cx, a, b)?)])
}

/// `inner`: a sum over the last dimension of both, each row of one with each row of the other.
fn inner(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "other")?);
    let (shape_a, shape_b) = (cx.shape(a), cx.shape(b));
    if shape_a.is_empty() || shape_b.is_empty() {
        let rank = shape_a.len().max(shape_b.len());
        let (a, b) = (cx.to_rank(a, rank)?, cx.to_rank(b, rank)?);
        return Ok(vec![Val::Tensor(cx.mul_values(a, b)?)]);
    }
    let rows = |shape: &Shape| shape[..shape.len() - 1].iter().fold(Dim::from(1), |p, d| &p * d);
    let k = shape_a[shape_a.len() - 1].clone();
    let a2 = cx.reshape(a, vec![rows(&shape_a), k.clone()])?;
    let b2 = cx.reshape(b, vec![rows(&shape_b), k])?;
    let bt = transposed(cx, b2)?;
    let y = multiply(cx, a2, bt)?;
    let out = shape_a[..shape_a.len() - 1].iter().chain(&shape_b[..shape_b.len() - 1]).cloned().collect();
    Ok(vec![Val::Tensor(cx.reshape(y, out)?)])
}

/// `x @ wᵀ + b`; leading dimensions of x fold into rows.
pub(super) fn linear_values(cx: &mut Cx, x: ValueId, weight: ValueId, bias: Option<ValueId>) -> Built {
    if cx.rank(weight) == 1 {
        let y = matmul_values(cx, x, weight)?;
        return bias.map_or(Ok(y), |b| cx.add_values(y, b));
    }
    let shape = cx.shape(x);
    let (lead, k) = shape.split_at(shape.len() - 1);
    let rows = lead.iter().fold(Dim::from(1), |p, d| &p * d);
    let x2 = cx.reshape(x, vec![rows, k[0].clone()])?;
    let wt = transposed(cx, weight)?;
    let y = match bias {
        None => multiply(cx, x2, wt)?,
        Some(bias) => {
            let dtype = cx.tensor_dtype(x);
            let (x2, wt, bias) = (widened(cx, x2)?, widened(cx, wt)?, widened(cx, bias)?);
            let product = multiply(cx, x2, wt)?;
            let sum = cx.add_values(product, bias)?;
            cx.cast(sum, dtype)?
        }
    };
    let out = lead.iter().chain([&cx.shape(weight)[0]]).cloned().collect();
    cx.reshape(y, out)
}

fn linear(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, w) = (call.tensor(cx, "input")?, call.tensor(cx, "weight")?);
    let bias = call.opt_tensor(cx, "bias")?;
    Ok(vec![Val::Tensor(linear_values(cx, x, w, bias)?)])
}

/// `beta · c + alpha · product`; with beta 0 the addend is ignored, NaN or not, as PyTorch does.
fn scaled_sum(cx: &mut Cx, call: &Call<'_>, addend: ValueId, product: ValueId) -> Result<Vec<Val>, Diagnostic> {
    let (beta, alpha) = (call.float("beta")?, call.float("alpha")?);
    let (out, addend) = (cx.tensor_dtype(addend), widened(cx, addend)?);
    let dtype = cx.tensor_dtype(product);
    let scaled = if alpha == 1.0 { product } else { cx.scale(product, alpha)? };
    let y = if beta == 0.0 {
        scaled
    } else {
        cx.map2(scaled, addend, dtype, |p, x, c| {
            let s = p.like(c, beta);
            let c = if beta == 1.0 { c } else { p.mul(c, s) };
            p.add(x, c)
        })?
    };
    Ok(vec![Val::Tensor(cx.cast(y, out)?)])
}

fn addmm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (c, a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "mat1")?, call.tensor(cx, "mat2")?);
    let (a, b) = (widened(cx, a)?, widened(cx, b)?);
    let product = multiply(cx, a, b)?;
    scaled_sum(cx, call, c, product)
}

fn addmv(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (c, a, v) = (call.tensor(cx, "self")?, call.tensor(cx, "mat")?, call.tensor(cx, "vec")?);
    let (a, v) = (widened(cx, a)?, widened(cx, v)?);
    let product = matmul_values(cx, a, v)?;
    scaled_sum(cx, call, c, product)
}

fn baddbmm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (c, a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "batch1")?, call.tensor(cx, "batch2")?);
    let (a, b) = (widened(cx, a)?, widened(cx, b)?);
    let product = multiply(cx, a, b)?;
    scaled_sum(cx, call, c, product)
}

/// Sum over the batch of products: the batch joins the inner dimension.
fn addbmm(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (c, a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "batch1")?, call.tensor(cx, "batch2")?);
    let (shape_a, shape_b) = (cx.shape(a), cx.shape(b));
    let inner = &shape_a[0] * &shape_a[2];
    let a = cx.permute(a, &[1, 0, 2])?;
    let a = cx.reshape(a, vec![shape_a[1].clone(), inner.clone()])?;
    let b = cx.reshape(b, vec![inner, shape_b[2].clone()])?;
    let (a, b) = (widened(cx, a)?, widened(cx, b)?);
    let product = multiply(cx, a, b)?;
    scaled_sum(cx, call, c, product)
}

/// A chain of products from the left; PyTorch picks the cheapest order, which only changes rounding.
fn multi_dot(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let name = if call.has("tensors") { "tensors" } else { "matrices" };
    let tensors = call.tensors(cx, name)?;
    let Some((&first, rest)) = tensors.split_first() else {
        return Err(bad_argument("a chain of no matrices"));
    };
    let mut y = first;
    for &t in rest {
        y = matmul_values(cx, y, t)?;
    }
    Ok(vec![Val::Tensor(y)])
}

/// `aⁿ`; of a negative n the power of the inverse.
fn matrix_power(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let a = call.tensor(cx, "self")?;
    let n = call.int("n")?;
    let (shape, dtype) = (cx.shape(a), cx.tensor_dtype(a));
    if n == 0 {
        let unit = cx.compute(shape, dtype, &[], |b, axes| {
            let same = b.eq(axes[axes.len() - 2], axes[axes.len() - 1]);
            b.cast(dtype.ty(), same)
        })?;
        return Ok(vec![Val::Tensor(unit)]);
    }
    let base = if n < 0 { linear_systems::inverted(cx, call, a)?.0 } else { a };
    Ok(vec![Val::Tensor(linear_systems::power(cx, base, n.saturating_abs())?)])
}
