//! Products and distances that are not plain matrix products: outer, kron, cross, cdist, bilinear and trilinear forms.

use super::cx::{Built, ir_dtype};
use super::matmul::{matmul_values, multiply};
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument, unsupported_shape};
use crate::ir::{DType, Dim, Shape, ValueId};
use jvc_kernels::expr::Unary;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.outer.default", "aten.ger.default"], rule: outer },
    AtenOp { names: &["aten.addr.default"], rule: addr },
    AtenOp { names: &["aten.kron.default"], rule: kron },
    AtenOp { names: &["aten.cross.default", "aten.linalg_cross.default"], rule: cross },
    AtenOp { names: &["aten.cdist.default", "aten._cdist_forward.default"], rule: cdist },
    AtenOp { names: &["aten.pdist.default", "aten._pdist_forward.default"], rule: pdist },
    AtenOp { names: &["aten.bilinear.default"], rule: bilinear },
    AtenOp { names: &["aten._trilinear.default"], rule: trilinear },
    AtenOp { names: &["aten.tensordot.default"], rule: tensordot },
    AtenOp { names: &["aten.linalg_vecdot.default"], rule: vecdot },
];

fn outer(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "vec2")?);
    Ok(vec![Val::Tensor(outer_values(cx, call, a, b)?)])
}

/// The promoted type: what the export recorded for the result.
fn recorded_dtype(cx: &Cx, call: &Call<'_>, operand: ValueId) -> Result<DType, Diagnostic> {
    call.meta(0).map_or(Ok(cx.tensor_dtype(operand)), |m| ir_dtype(m.dtype))
}

fn outer_values(cx: &mut Cx, call: &Call<'_>, a: ValueId, b: ValueId) -> Built {
    let dtype = recorded_dtype(cx, call, a)?;
    let column = cx.unsqueeze(a, 1)?;
    let (column, b) = (cx.cast(column, dtype)?, cx.cast(b, dtype)?);
    cx.mul_values(column, b)
}

fn addr(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (c, a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "vec1")?, call.tensor(cx, "vec2")?);
    let (beta, alpha) = (call.float("beta")?, call.float("alpha")?);
    let dtype = recorded_dtype(cx, call, c)?;
    let product = outer_values(cx, call, a, b)?;
    let (product, c) = (cx.cast(product, dtype)?, cx.cast(c, dtype)?);
    if dtype == DType::Bool {
        let y = cx.map2(product, c, dtype, |p, x, c| {
            let (alpha, beta) = (p.exprs.bool(alpha != 0.0), p.exprs.bool(beta != 0.0));
            let (x, c) = (p.and(x, alpha), p.and(c, beta));
            p.or(x, c)
        })?;
        return Ok(vec![Val::Tensor(y)]);
    }
    let y = cx.map2(product, c, dtype, |p, x, c| {
        let (a, b) = (p.like(x, alpha), p.like(c, beta));
        let x = p.mul(x, a);
        let scaled = p.mul(c, b);
        if beta == 0.0 { x } else { p.add(x, scaled) }
    })?;
    Ok(vec![Val::Tensor(y)])
}

/// Kronecker product: dimensions interleave, then each pair folds.
fn kron(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "other")?);
    let rank = cx.rank(a).max(cx.rank(b));
    let dtype = recorded_dtype(cx, call, a)?;
    let (a, b) = (cx.to_rank(a, rank)?, cx.to_rank(b, rank)?);
    let (shape_a, shape_b) = (cx.shape(a), cx.shape(b));
    let one = Dim::from(1);
    let spread_a: Shape = shape_a.iter().flat_map(|d| [d.clone(), one.clone()]).collect();
    let spread_b: Shape = shape_b.iter().flat_map(|d| [one.clone(), d.clone()]).collect();
    let (a, b) = (cx.reshape(a, spread_a)?, cx.reshape(b, spread_b)?);
    let (a, b) = (cx.cast(a, dtype)?, cx.cast(b, dtype)?);
    let y = cx.mul_values(a, b)?;
    let out = shape_a.iter().zip(&shape_b).map(|(x, y)| x * y).collect();
    Ok(vec![Val::Tensor(cx.reshape(y, out)?)])
}

/// `c_i = a_{i+1} b_{i+2} − a_{i+2} b_{i+1}`, positions modulo 3.
fn cross(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "other")?);
    let dtype = recorded_dtype(cx, call, a)?;
    let shape = cx.broadcast_shape(&[a, b])?;
    let dim = match call.opt_int("dim")? {
        Some(_) => call.dim_index("dim", shape.len())?,
        None => shape.iter().position(|d| d.is(3)).unwrap_or(0),
    };
    if !shape[dim].is(3) {
        return Err(bad_argument(format!("cross product along a dimension of size {}", shape[dim])));
    }
    let (a, b) = (cx.cast(a, dtype)?, cx.cast(b, dtype)?);
    let (a, b) = (cx.broadcast_to(a, &shape)?, cx.broadcast_to(b, &shape)?);
    let y = cx.compute(shape, dtype, &[a, b], |p, at| {
        let mut shifted = |by: i64| {
            let (n, three) = (p.int(by), p.int(3));
            let sum = p.add(at[dim], n);
            let mut index = at.to_vec();
            index[dim] = p.rem(sum, three);
            [p.load(0, &index), p.load(1, &index)]
        };
        let ([a1, b1], [a2, b2]) = (shifted(1), shifted(2));
        let (left, right) = (p.mul(a1, b2), p.mul(a2, b1));
        p.sub(left, right)
    })?;
    Ok(vec![Val::Tensor(y)])
}

/// `(Σ |d|^p)^(1/p)` over the last dimension of differences; p = 0 counts, p = ∞ takes the largest.
fn norm_of_difference(cx: &mut Cx, a: ValueId, b: ValueId, p_norm: f64) -> Built {
    let dtype = cx.tensor_dtype(a);
    let powers = cx.map2(a, b, dtype, |p, x, y| {
        let d = p.sub(x, y);
        let size = p.un(Unary::Abs, d);
        let zero = p.like(d, 0.0);
        if p_norm == 0.0 {
            let some = p.ne(d, zero);
            let ty = p.ty(d);
            p.cast(ty, some)
        } else if p_norm == 2.0 {
            p.mul(d, d)
        } else if p_norm == 1.0 || p_norm.is_infinite() {
            size
        } else {
            let exponent = p.like(d, p_norm);
            p.pow(size, exponent)
        }
    })?;
    let last = cx.rank(powers) - 1;
    let combine = if p_norm.is_infinite() { Combine::Max } else { Combine::Sum };
    let total = cx.reduce(powers, combine, &[last], false, dtype)?;
    if p_norm == 0.0 || p_norm == 1.0 || p_norm.is_infinite() {
        return Ok(total);
    }
    cx.map1(total, |p, x| {
        if p_norm == 2.0 {
            return p.un(Unary::Sqrt, x);
        }
        let exponent = p.like(x, 1.0 / p_norm);
        p.pow(x, exponent)
    })
}

/// Distances of all pairs of rows. PyTorch's mode for p = 2 through a matrix product is not used: it loses digits.
fn cdist(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (a, b) = (call.tensor(cx, "x1")?, call.tensor(cx, "x2")?);
    let p_norm = call.float("p")?;
    let (rank_a, rank_b) = (cx.rank(a), cx.rank(b));
    if cx.shape(a)[rank_a - 1].is(0) {
        // No components: every distance is 0.
        let sums = cx.reduce(a, Combine::Sum, &[rank_a - 1], true, cx.tensor_dtype(a))?;
        let others = cx.reduce(b, Combine::Sum, &[rank_b - 1], true, cx.tensor_dtype(b))?;
        let others = cx.transpose(others, rank_b - 2, rank_b - 1)?;
        return Ok(vec![Val::Tensor(cx.add_values(sums, others)?)]);
    }
    let (a, b) = (cx.unsqueeze(a, rank_a - 1)?, cx.unsqueeze(b, rank_b - 2)?);
    Ok(vec![Val::Tensor(norm_of_difference(cx, a, b, p_norm)?)])
}

/// Distances of the pairs i < j of rows, in row-major order.
fn pdist(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let p_norm = call.float("p")?;
    let shape = cx.shape(x);
    let Some(n) = shape[0].as_const() else {
        return Err(unsupported_shape(format!("pdist of {} rows: a literal is needed", shape[0])));
    };
    let pairs: Vec<(i64, i64)> = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j))).collect();
    let count = Dim::from(pairs.len() as i64);
    let dtype = cx.tensor_dtype(x);
    if pairs.is_empty() {
        return Ok(vec![Val::Tensor(cx.full(vec![count], dtype, 0.0)?)]);
    }
    let mut rows = |which: fn(&(i64, i64)) -> i64| {
        let table = cx.const_i64(&pairs.iter().map(which).collect::<Vec<_>>(), &[pairs.len() as i64])?;
        cx.compute(vec![count.clone(), shape[1].clone()], dtype, &[x, table], |p, axes| {
            let at = p.load(1, &[axes[0]]);
            let at = p.wrap_index(at, &shape[0]);
            p.load(0, &[at, axes[1]])
        })
    };
    let (left, right) = (rows(|p| p.0)?, rows(|p| p.1)?);
    Ok(vec![Val::Tensor(norm_of_difference(cx, left, right, p_norm)?)])
}

/// `out[…,o] = Σ_ij x1[…,i] w[o,i,j] x2[…,j] + b[o]`: one product with the weight laid out `[i, o·j]`, then one per row.
fn bilinear(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x1, x2, w) = (call.tensor(cx, "input1")?, call.tensor(cx, "input2")?, call.tensor(cx, "weight")?);
    let bias = call.opt_tensor(cx, "bias")?;
    let (shape, w_shape) = (cx.shape(x1), cx.shape(w));
    let (o, i, j) = (w_shape[0].clone(), w_shape[1].clone(), w_shape[2].clone());
    let lead = &shape[..shape.len() - 1];
    let rows = lead.iter().fold(Dim::from(1), |p, d| &p * d);
    let x1 = cx.reshape(x1, vec![rows.clone(), i.clone()])?;
    let x2 = cx.reshape(x2, vec![rows.clone(), j.clone(), Dim::from(1)])?;
    let w = cx.permute(w, &[1, 0, 2])?;
    let w = cx.reshape(w, vec![i, &o * &j])?;
    let t = multiply(cx, x1, w)?;
    let t = cx.reshape(t, vec![rows, o.clone(), j])?;
    let y = multiply(cx, t, x2)?;
    let out = lead.iter().chain([&o]).cloned().collect();
    let y = cx.reshape(y, out)?;
    let y = match bias {
        Some(b) => cx.add_values(y, b)?,
        None => y,
    };
    Ok(vec![Val::Tensor(y)])
}

/// The product of three tensors, each with dimensions of size 1 inserted, summed over some of the joint dimensions.
fn trilinear(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let mut product = None;
    for (tensor, expand) in [("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")] {
        let mut v = call.tensor(cx, tensor)?;
        let mut dims = call.ints(expand)?;
        dims.sort_unstable();
        for d in dims {
            v = cx.unsqueeze(v, d as usize)?;
        }
        product = Some(match product {
            Some(left) => cx.mul_values(left, v)?,
            None => v,
        });
    }
    let product = product.expect("the loop has three rounds");
    let mut dims: Vec<usize> = call.ints("sumdim")?.iter().map(|&d| d as usize).collect();
    dims.sort_unstable();
    let dtype = cx.tensor_dtype(product);
    Ok(vec![Val::Tensor(cx.reduce(product, Combine::Sum, &dims, false, dtype)?)])
}

/// Where one of two contracted dimensions has size 1, the other is summed to it.
fn summed_to_match(
    cx: &mut Cx,
    (mut a, dims_a): (ValueId, &[usize]),
    (mut b, dims_b): (ValueId, &[usize]),
) -> Result<(ValueId, ValueId), Diagnostic> {
    for (&p, &q) in dims_a.iter().zip(dims_b) {
        let dtype = cx.tensor_dtype(a);
        match (cx.size(a, p).is(1), cx.size(b, q).is(1)) {
            (true, false) => b = cx.reduce(b, Combine::Sum, &[q], true, dtype)?,
            (false, true) => a = cx.reduce(a, Combine::Sum, &[p], true, dtype)?,
            _ => {}
        }
    }
    Ok((a, b))
}

/// Σ conj(x)·y over a dimension.
fn vecdot(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, y) = (call.tensor(cx, "x")?, call.tensor(cx, "y")?);
    let product = cx.mul_values(x, y)?;
    let dim = call.dim_index("dim", cx.rank(product))?;
    let dtype = cx.tensor_dtype(product);
    Ok(vec![Val::Tensor(cx.reduce(product, Combine::Sum, &[dim], false, dtype)?)])
}

/// Contraction of given dimensions: both operands become matrices.
fn tensordot(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (a, b) = (call.tensor(cx, "self")?, call.tensor(cx, "other")?);
    let (shape_a, shape_b) = (cx.shape(a), cx.shape(b));
    let wrap = |dims: Vec<i64>, rank: usize| -> Vec<usize> {
        dims.iter().map(|&d| if d < 0 { d + rank as i64 } else { d } as usize).collect()
    };
    let dims_a = wrap(call.ints("dims_self")?, shape_a.len());
    let dims_b = wrap(call.ints("dims_other")?, shape_b.len());
    let (a, b) = summed_to_match(cx, (a, &dims_a), (b, &dims_b))?;
    let (shape_a, shape_b) = (cx.shape(a), cx.shape(b));
    let free_a: Vec<usize> = (0..shape_a.len()).filter(|d| !dims_a.contains(d)).collect();
    let free_b: Vec<usize> = (0..shape_b.len()).filter(|d| !dims_b.contains(d)).collect();
    let size = |shape: &Shape, dims: &[usize]| dims.iter().fold(Dim::from(1), |p, &d| &p * &shape[d]);
    let k = size(&shape_a, &dims_a);
    let a = cx.permute(a, &[free_a.clone(), dims_a].concat())?;
    let a = cx.reshape(a, vec![size(&shape_a, &free_a), k.clone()])?;
    let b = cx.permute(b, &[dims_b, free_b.clone()].concat())?;
    let b = cx.reshape(b, vec![k, size(&shape_b, &free_b)])?;
    let y = matmul_values(cx, a, b)?;
    let out = free_a.iter().map(|&d| &shape_a[d]).chain(free_b.iter().map(|&d| &shape_b[d])).cloned().collect();
    Ok(vec![Val::Tensor(cx.reshape(y, out)?)])
}
