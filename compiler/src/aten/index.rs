//! Reading at positions from data: `index` with its rules of gaps and broadcasting, `index_select`, `gather`, `take`.
//!
//! Positions that are negative count from the end; what is still out of range is clamped, since a kernel cannot raise PyTorch's error and
//! must not read elsewhere.

use super::cx::{Built, broadcast_shapes};
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::{Dim, Shape, ValueId};
use jvc_kernels::expr::ExprId;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.index.Tensor", "aten._unsafe_index.Tensor"], rule: index },
    AtenOp { names: &["aten._unsafe_masked_index.default"], rule: masked_index },
    AtenOp { names: &["aten.index_select.default"], rule: index_select },
    AtenOp { names: &["aten.gather.default"], rule: gather },
    AtenOp { names: &["aten.take.default"], rule: take },
    AtenOp { names: &["aten.take_along_dim.default"], rule: take_along_dim },
];

/// Indices of an `index` or `index_put`, one entry per dimension of the tensor, and where their joint shape stands in the result.
#[derive(Debug)]
pub(super) struct Indices {
    /// Index tensor of each dimension, or a gap.
    pub(super) at: Vec<Option<ValueId>>,
    /// Shape to which the index tensors broadcast.
    pub(super) joint: Shape,
    /// Position of the joint dimensions in the result: where the first index stood if all stand side by side, else the front.
    pub(super) place: usize,
}

impl Indices {
    /// # Errors
    /// When there is no index, or indices do not broadcast.
    pub(super) fn new(cx: &Cx, mut at: Vec<Option<ValueId>>, rank: usize, target: &str) -> Result<Indices, Diagnostic> {
        at.resize(rank.max(at.len()), None);
        let given: Vec<usize> = (0..at.len()).filter(|&d| at[d].is_some()).collect();
        let (Some(&first), Some(&last)) = (given.first(), given.last()) else {
            return Err(bad_argument(format!("{target} without an index")));
        };
        let mut joint = vec![];
        for &v in at.iter().flatten() {
            joint = broadcast_shapes(&joint, &cx.shape(v))?;
        }
        let side_by_side = last - first + 1 == given.len();
        Ok(Indices { at, joint, place: if side_by_side { first } else { 0 } })
    }

    /// Shape of `tensor[indices]`.
    pub(super) fn result_shape(&self, shape: &Shape) -> Shape {
        let mut out: Shape = (0..shape.len()).filter(|&d| self.at[d].is_none()).map(|d| shape[d].clone()).collect();
        out.splice(self.place..self.place, self.joint.iter().cloned());
        out
    }
}

/// `x[indices]` of one real tensor.
fn index_values(cx: &mut Cx, x: ValueId, indices: &Indices) -> Built {
    let shape = cx.shape(x);
    let out = indices.result_shape(&shape);
    let mut inputs = vec![x];
    inputs.extend(indices.at.iter().flatten());
    cx.compute(out, cx.tensor_dtype(x), &inputs, |b, axes| {
        let (joint, place) = (indices.joint.len(), indices.place);
        let joint_axes = &axes[place..place + joint];
        let mut rest = axes[..place].iter().chain(&axes[place + joint..]);
        let mut operand = 0;
        let mut at = vec![];
        for (d, given) in indices.at.iter().enumerate() {
            if given.is_some() {
                operand += 1;
                let own = broadcast_index(b, operand, joint_axes);
                let i = b.load(operand, &own);
                at.push(b.wrap_index(i, &shape[d]));
            } else {
                at.push(*rest.next().expect("one axis per gap"));
            }
        }
        b.load(0, &at)
    })
}

/// Coordinates of operand `k` that broadcasts to the coordinates `axes`.
pub(super) fn broadcast_index(b: &mut BodyBuilder, k: usize, axes: &[ExprId]) -> Vec<ExprId> {
    let shape = b.input(k).shape.clone();
    let missing = axes.len() - shape.len();
    shape.iter().enumerate().map(|(d, n)| if n.is(1) { b.int(0) } else { axes[missing + d] }).collect()
}

fn index(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.value(cx, "self")?;
    let given = call.opt_tensors(cx, "indices")?;
    if let Some((at, mask)) = super::selection::only_mask(cx, call, &given)? {
        return Ok(vec![super::selection::select(cx, call, &x, at, mask)?]);
    }
    let result = cx.each(&x, |cx, x| {
        let indices = Indices::new(cx, given.clone(), cx.rank(x), call.target)?;
        index_values(cx, x, &indices)
    })?;
    Ok(vec![result])
}

/// Elements at indices, which count only where the mask holds; `fill` elsewhere.
fn masked_index(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (mask, fill) = (call.tensor(cx, "mask")?, call.float("fill")?);
    let picked = index(cx, call)?.swap_remove(0);
    Ok(vec![cx.each(&picked, |cx, x| {
        cx.map2(x, mask, cx.tensor_dtype(x), |b, x, keep| {
            let fill = b.like(x, fill);
            b.select(keep, x, fill)
        })
    })?])
}

/// As PyTorch has it, a 0-d tensor counts as one of one element here.
pub(super) fn at_least_1d(cx: &mut Cx, v: ValueId) -> Built {
    cx.to_rank(v, 1)
}

fn index_select(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.value(cx, "self")?;
    let at = call.tensor(cx, "index")?;
    let at = at_least_1d(cx, at)?;
    let result = cx.each(&x, |cx, x| {
        let shape = cx.shape(x);
        let dim = call.dim_index("dim", shape.len())?;
        let flat = at_least_1d(cx, x)?;
        let mut out = cx.shape(flat);
        let size = std::mem::replace(&mut out[dim], cx.size(at, 0));
        let y = cx.compute(out, cx.tensor_dtype(x), &[flat, at], |b, axes| {
            let i = b.load(1, &[axes[dim]]);
            let mut from = axes.to_vec();
            from[dim] = b.wrap_index(i, &size);
            b.load(0, &from)
        })?;
        if shape.is_empty() { cx.reshape(y, shape) } else { Ok(y) }
    })?;
    Ok(vec![result])
}

/// `out[i…] = x[i… with coordinate dim replaced by at[i…]]`.
pub(super) fn gather_values(cx: &mut Cx, x: ValueId, dim: usize, at: ValueId) -> Built {
    let out = cx.shape(at);
    let (x, at) = (at_least_1d(cx, x)?, at_least_1d(cx, at)?);
    let size = cx.size(x, dim);
    let y = cx.compute(cx.shape(at), cx.tensor_dtype(x), &[x, at], |b, axes| {
        let i = b.load(1, axes);
        let mut from = axes.to_vec();
        from[dim] = b.wrap_index(i, &size);
        b.load(0, &from)
    })?;
    cx.reshape(y, out)
}

fn gather(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.value(cx, "self")?;
    let at = call.tensor(cx, "index")?;
    let result = cx.each(&x, |cx, x| {
        let dim = call.dim_index("dim", cx.rank(x))?;
        gather_values(cx, x, dim, at)
    })?;
    Ok(vec![result])
}

/// All elements in row-major order.
pub(super) fn flattened(cx: &mut Cx, v: ValueId) -> Built {
    let n = cx.ty(v).n_elems();
    cx.reshape(v, vec![n])
}

fn take(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, at) = (call.tensor(cx, "self")?, call.tensor(cx, "index")?);
    let flat = flattened(cx, x)?;
    let n = cx.size(flat, 0);
    let y = cx.compute(cx.shape(at), cx.tensor_dtype(x), &[flat, at], |b, axes| {
        let i = b.load(1, axes);
        let i = b.wrap_index(i, &n);
        b.load(0, &[i])
    })?;
    Ok(vec![Val::Tensor(y)])
}

fn take_along_dim(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, at) = (call.tensor(cx, "self")?, call.tensor(cx, "indices")?);
    let Some(_) = call.opt_int("dim")? else {
        let (x, at) = (flattened(cx, x)?, flattened(cx, at)?);
        return Ok(vec![Val::Tensor(gather_values(cx, x, 0, at)?)]);
    };
    let dim = call.dim_index("dim", cx.rank(x))?;
    // Both broadcast to each other, but for the gathered dimension.
    let (mut shape_x, mut shape_at) = (cx.shape(x), cx.shape(at));
    let (size_x, size_at) = (shape_x[dim].clone(), shape_at[dim].clone());
    shape_x[dim] = Dim::from(1);
    shape_at[dim] = Dim::from(1);
    let mut joint = broadcast_shapes(&shape_x, &shape_at)?;
    joint[dim] = size_x;
    let x = cx.broadcast_to(x, &joint)?;
    joint[dim] = size_at;
    let at = cx.broadcast_to(at, &joint)?;
    Ok(vec![Val::Tensor(gather_values(cx, x, dim, at)?)])
}
