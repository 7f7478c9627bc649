//! Writing at positions from data: `scatter` and its reductions, `index_put`, `index_add`, `index_copy`, `index_fill`, masked forms.
//!
//! All but the masked forms are one `Scatter`, which writes in row-major order of the source, so that duplicates have one outcome on
//! every device. Positions out of range write nothing, negative ones count from the end.

use super::cx::Built;
use super::index::{Indices, at_least_1d, flattened};
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::{DType, Dim, Op, Shape, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::{Combine, ScatterMode};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.scatter.src", "aten.scatter.value"], rule: |cx, call| scatter(cx, call, ScatterMode::Set) },
    AtenOp { names: &["aten.scatter_add.default"], rule: |cx, call| scatter(cx, call, ScatterMode::Add) },
    AtenOp { names: &["aten.scatter.reduce", "aten.scatter.value_reduce"], rule: scatter_named },
    AtenOp { names: &["aten.scatter_reduce.two"], rule: scatter_reduce },
    AtenOp { names: &["aten.index_put.default", "aten._unsafe_index_put.default"], rule: index_put },
    AtenOp { names: &["aten._index_put_impl.default"], rule: index_put },
    AtenOp { names: &["aten.index_add.default"], rule: index_add },
    AtenOp { names: &["aten.index_copy.default"], rule: index_copy },
    AtenOp { names: &["aten.index_fill.int_Scalar", "aten.index_fill.int_Tensor"], rule: index_fill },
    AtenOp { names: &["aten.index_reduce.default"], rule: index_reduce },
    AtenOp { names: &["aten.put.default"], rule: put },
    AtenOp { names: &["aten.masked_fill.Scalar", "aten.masked_fill.Tensor"], rule: masked_fill },
    AtenOp { names: &["aten.masked_scatter.default"], rule: masked_scatter },
];

/// Positions as i64, negative ones from the end of a dimension of size `n`.
fn wrapped(cx: &mut Cx, at: ValueId, n: &Dim) -> Built {
    let at = cx.cast(at, DType::I64)?;
    cx.compute(cx.shape(at), DType::I64, &[at], |b, axes| {
        let i = b.load(0, axes);
        let n = b.dim(n);
        let n = b.cast(Ty::I64, n);
        let (zero, from_end) = (b.like(i, 0.0), b.add(i, n));
        let negative = b.lt(i, zero);
        b.select(negative, from_end, i)
    })
}

/// The value of an argument that is a number or a 0-d tensor, spread over a shape.
fn spread_scalar(cx: &mut Cx, v: Val, shape: &Shape, dtype: DType) -> Built {
    let v = match v {
        Val::Tensor(v) => {
            let v = cx.reshape(v, vec![])?;
            cx.cast(v, dtype)?
        }
        Val::Int(d) => cx.dim_tensor(&d, dtype)?,
        Val::Bool(x) => cx.full(vec![], dtype, f64::from(u8::from(x)))?,
        Val::Float(x) => cx.full(vec![], dtype, x)?,
        other => return Err(bad_argument(format!("a fill value {other:?}"))),
    };
    cx.broadcast_to(v, shape)
}

/// The first `size` elements of each dimension.
fn cropped(cx: &mut Cx, mut v: ValueId, size: &Shape) -> Built {
    for (d, n) in size.iter().enumerate() {
        v = cx.slice(v, d, Dim::from(0), n.clone(), 1)?;
    }
    Ok(v)
}

/// The scatter of `base, index…, source`. Bools other than plain writes go through i32, where a sum that is not 0 is true.
fn write_at(cx: &mut Cx, dims: Vec<usize>, mode: ScatterMode, mut inputs: Vec<ValueId>) -> Built {
    let dtype = cx.tensor_dtype(inputs[0]);
    let through = if dtype == DType::Bool && mode != ScatterMode::Set { DType::I32 } else { dtype };
    let last = inputs.len() - 1;
    inputs[0] = cx.cast(inputs[0], through)?;
    inputs[last] = cx.cast(inputs[last], through)?;
    let y = cx.add1(Op::Scatter { dims, mode }, inputs)?;
    cx.cast(y, dtype)
}

/// Operands of the `scatter` family, of rank 1 at least, the source cut to the shape of the index.
struct Scattered {
    base: ValueId,
    at: ValueId,
    src: ValueId,
    dim: usize,
    /// Shape of the base as given.
    shape: Shape,
}

impl Scattered {
    fn read(cx: &mut Cx, call: &Call<'_>) -> Result<Scattered, Diagnostic> {
        let (base, at) = (call.tensor(cx, "self")?, call.tensor(cx, "index")?);
        let shape = cx.shape(base);
        let dim = call.dim_index("dim", shape.len())?;
        let (base, at) = (at_least_1d(cx, base)?, at_least_1d(cx, at)?);
        let size = cx.size(base, dim);
        let at = wrapped(cx, at, &size)?;
        let (at_shape, dtype) = (cx.shape(at), cx.tensor_dtype(base));
        let src = if call.has("src") {
            let src = call.tensor(cx, "src")?;
            let src = at_least_1d(cx, src)?;
            let src = cropped(cx, src, &at_shape)?;
            cx.cast(src, dtype)?
        } else {
            let v = call.operand(cx, "value")?;
            spread_scalar(cx, v, &at_shape, dtype)?
        };
        Ok(Scattered { base, at, src, dim, shape })
    }

    fn write(&self, cx: &mut Cx, base: ValueId, src: ValueId, mode: ScatterMode) -> Built {
        let y = write_at(cx, vec![self.dim], mode, vec![base, self.at, src])?;
        cx.reshape(y, self.shape.clone())
    }
}

fn scatter(cx: &mut Cx, call: &Call<'_>, mode: ScatterMode) -> Result<Vec<Val>, Diagnostic> {
    let s = Scattered::read(cx, call)?;
    Ok(vec![Val::Tensor(s.write(cx, s.base, s.src, mode)?)])
}

/// The older reductions by name: `add`, `multiply`.
fn scatter_named(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let name = call.str("reduce")?;
    match name.as_str() {
        "add" => scatter(cx, call, ScatterMode::Add),
        "multiply" => scatter(cx, call, ScatterMode::Mul),
        _ => Err(bad_argument(format!("{}: reduce={name:?}", call.target))),
    }
}

fn scatter_reduce(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let s = Scattered::read(cx, call)?;
    let y = reduce_into(cx, call, s.base, &s)?;
    Ok(vec![Val::Tensor(cx.reshape(y, s.shape.clone())?)])
}

/// `sum`, `prod`, `mean`, `amax`, `amin`; without `include_self` a written element starts from the neutral value.
fn reduce_into(cx: &mut Cx, call: &Call<'_>, base: ValueId, s: &Scattered) -> Built {
    let name = call.str("reduce")?;
    let (mode, neutral) = match name.as_str() {
        "sum" | "mean" => (ScatterMode::Add, 0.0),
        "prod" => (ScatterMode::Mul, 1.0),
        "amax" => (ScatterMode::Max, f64::NEG_INFINITY),
        "amin" => (ScatterMode::Min, f64::INFINITY),
        _ => return Err(bad_argument(format!("{}: reduce={name:?}", call.target))),
    };
    let (dtype, dims) = (cx.tensor_dtype(base), vec![s.dim]);
    let (include_self, averages) = (call.bool("include_self")?, name == "mean");
    if include_self && !averages {
        return write_at(cx, dims, mode, vec![base, s.at, s.src]);
    }
    let zeros = cx.full_int(cx.shape(base), DType::I32, 0)?;
    let ones = cx.full_int(cx.shape(s.src), DType::I32, 1)?;
    let counts = write_at(cx, dims.clone(), ScatterMode::Add, vec![zeros, s.at, ones])?;
    let start = if include_self {
        base
    } else {
        cx.map2(base, counts, dtype, |b, x, n| {
            let (zero, neutral) = (b.int(0), neutral_of(b, dtype, neutral));
            let written = b.lt(zero, n);
            b.select(written, neutral, x)
        })?
    };
    let y = write_at(cx, dims, mode, vec![start, s.at, s.src])?;
    if !averages {
        return Ok(y);
    }
    let own = i64::from(include_self);
    cx.map2(y, counts, dtype, |b, y, n| {
        let (own, one) = (b.int(own), b.int(1));
        let n = b.add(n, own);
        let n = b.max(n, one);
        let n = b.cast(dtype.ty(), n);
        if dtype.is_float() { b.div(y, n) } else { b.floor_div(y, n) }
    })
}

/// ±∞, or for integers their largest or smallest value.
fn neutral_of(b: &mut super::BodyBuilder, dtype: DType, v: f64) -> jvc_kernels::expr::ExprId {
    let limits = match dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, 255),
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::I64 => (i64::MIN, i64::MAX),
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => return b.lit(dtype.ty(), v),
    };
    if v.is_finite() {
        return b.lit(dtype.ty(), v);
    }
    b.lit_int(dtype.ty(), if v < 0.0 { limits.0 } else { limits.1 })
}

/// A vector of positions along `dim` of a source, broadcast to the source's shape.
fn along(cx: &mut Cx, at: ValueId, dim: usize, shape: &Shape) -> Built {
    let mut spread = vec![Dim::from(1); shape.len()];
    spread[dim] = cx.size(at, 0);
    let at = cx.reshape(at, spread)?;
    cx.broadcast_to(at, shape)
}

/// Operands of the `index_*` family as a scatter; `source` gives the source for the base and the number of positions.
fn indexed(
    cx: &mut Cx,
    call: &Call<'_>,
    source: impl FnOnce(&mut Cx, &Shape, DType) -> Built,
) -> Result<Scattered, Diagnostic> {
    let (base, at) = (call.tensor(cx, "self")?, call.tensor(cx, "index")?);
    let shape = cx.shape(base);
    let dim = call.dim_index("dim", shape.len())?;
    let (base, at) = (at_least_1d(cx, base)?, at_least_1d(cx, at)?);
    let size = cx.size(base, dim);
    let at = wrapped(cx, at, &size)?;
    let mut src_shape = cx.shape(base);
    src_shape[dim] = cx.size(at, 0);
    let dtype = cx.tensor_dtype(base);
    let src = source(cx, &src_shape, dtype)?;
    let src = cx.reshape(src, src_shape.clone())?;
    let src = cx.cast(src, dtype)?;
    let at = along(cx, at, dim, &src_shape)?;
    Ok(Scattered { base, at, src, dim, shape })
}

fn index_add(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let alpha = call.float("alpha")?;
    let s = indexed(cx, call, |cx, _, dtype| {
        let src = call.tensor(cx, "source")?;
        let src = cx.cast(src, dtype)?;
        if alpha == 1.0 { Ok(src) } else { cx.scale(src, alpha) }
    })?;
    Ok(vec![Val::Tensor(s.write(cx, s.base, s.src, ScatterMode::Add)?)])
}

fn index_copy(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let s = indexed(cx, call, |cx, _, _| call.tensor(cx, "source"))?;
    Ok(vec![Val::Tensor(s.write(cx, s.base, s.src, ScatterMode::Set)?)])
}

fn index_fill(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let s = indexed(cx, call, |cx, shape, dtype| {
        let v = call.operand(cx, "value")?;
        spread_scalar(cx, v, shape, dtype)
    })?;
    Ok(vec![Val::Tensor(s.write(cx, s.base, s.src, ScatterMode::Set)?)])
}

fn index_reduce(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let s = indexed(cx, call, |cx, _, _| call.tensor(cx, "source"))?;
    let y = reduce_into(cx, call, s.base, &s)?;
    Ok(vec![Val::Tensor(cx.reshape(y, s.shape.clone())?)])
}

/// Writes at positions of the flat tensor.
fn put(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (base, at, src) = (call.tensor(cx, "self")?, call.tensor(cx, "index")?, call.tensor(cx, "source")?);
    let shape = cx.shape(base);
    let (flat, at, src) = (flattened(cx, base)?, flattened(cx, at)?, flattened(cx, src)?);
    let n = cx.size(flat, 0);
    let at = wrapped(cx, at, &n)?;
    let mode = if call.bool("accumulate")? { ScatterMode::Add } else { ScatterMode::Set };
    let y = write_at(cx, vec![0], mode, vec![flat, at, src])?;
    Ok(vec![Val::Tensor(cx.reshape(y, shape)?)])
}

fn index_put(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, values) = (call.tensor(cx, "self")?, call.tensor(cx, "values")?);
    let given = call.opt_tensors(cx, "indices")?;
    let accumulate = call.bool("accumulate")?;
    let values = cx.cast(values, cx.tensor_dtype(x))?;
    if let Some(masked) = super::selection::only_mask(cx, call, &given)? {
        return Ok(vec![Val::Tensor(put_masked(cx, x, masked, values, accumulate)?)]);
    }
    let indices = Indices::new(cx, given, cx.rank(x), call.target)?;
    Ok(vec![Val::Tensor(put_indexed(cx, x, &indices, values, accumulate)?)])
}

/// Puts the values in the layout of the tensor: the joint dimensions of the indices become one, in the place of the first indexed
/// dimension, and the other indexed dimensions get size 1.
fn put_indexed(cx: &mut Cx, x: ValueId, indices: &Indices, values: ValueId, accumulate: bool) -> Built {
    let shape = cx.shape(x);
    let dims: Vec<usize> = (0..shape.len()).filter(|&d| indices.at[d].is_some()).collect();
    let (first, joint) = (dims[0], indices.joint.len());
    let count = indices.joint.iter().fold(Dim::from(1), |p, d| &p * d);
    let values = cx.broadcast_to(values, &indices.result_shape(&shape))?;
    // Joint dimensions at the front move behind the dimensions before the first index.
    let rank = cx.rank(values);
    let mut perm: Vec<usize> = (0..rank).filter(|d| !(indices.place..indices.place + joint).contains(d)).collect();
    perm.splice(first..first, indices.place..indices.place + joint);
    let values = cx.permute(values, &perm)?;
    let src_shape: Shape = (0..shape.len())
        .map(|d| match indices.at[d] {
            Some(_) if d == first => count.clone(),
            Some(_) => Dim::from(1),
            None => shape[d].clone(),
        })
        .collect();
    let src = cx.reshape(values, src_shape.clone())?;
    let mut inputs = vec![x];
    for &d in &dims {
        let at = indices.at[d].expect("an indexed dimension");
        let at = cx.broadcast_to(at, &indices.joint)?;
        let at = cx.reshape(at, vec![count.clone()])?;
        let at = wrapped(cx, at, &shape[d])?;
        inputs.push(along(cx, at, first, &src_shape)?);
    }
    inputs.push(src);
    let mode = if accumulate { ScatterMode::Add } else { ScatterMode::Set };
    write_at(cx, dims, mode, inputs)
}

/// `x[…, mask, …] = values` with a mask over dimensions `at ..`: the k-th true element takes value k of the values' dimension there, so
/// nothing has a size that depends on data.
fn put_masked(cx: &mut Cx, x: ValueId, (at, mask): (usize, ValueId), values: ValueId, accumulate: bool) -> Built {
    let (shape, covered, dtype) = (cx.shape(x), cx.rank(mask), cx.tensor_dtype(x));
    let mask = cx.cast(mask, DType::Bool)?;
    let rest = shape.len() - covered;
    let values = cx.to_rank(values, rest + 1)?;
    let ordinal = ordinals(cx, mask)?;
    let n_values = cx.size(values, at);
    cx.compute(shape, dtype, &[x, mask, ordinal, values], |b, axes| {
        let own = &axes[at..at + covered];
        let (old, here) = (b.load(0, axes), b.load(1, own));
        let k = b.load(2, own);
        let k = b.wrap_index(k, &n_values);
        let mut from = axes.to_vec();
        from.splice(at..at + covered, [k]);
        let from = super::index::broadcast_index(b, 3, &from);
        let value = b.load(3, &from);
        let new = if accumulate { b.add(old, value) } else { value };
        b.select(here, new, old)
    })
}

/// How many true elements stand before each one, in row-major order.
pub(super) fn ordinals(cx: &mut Cx, mask: ValueId) -> Built {
    let shape = cx.shape(mask);
    let flat = flattened(cx, mask)?;
    let ones = cx.cast(flat, DType::I32)?;
    let upto = cx.add1(Op::Scan { combine: Combine::Sum, dim: 0, skip: 0 }, vec![ones])?;
    let before = cx.map2(upto, ones, DType::I32, |b, s, one| b.sub(s, one))?;
    cx.reshape(before, shape)
}

fn masked_fill(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, mask) = (call.tensor(cx, "self")?, call.tensor(cx, "mask")?);
    let mask = cx.cast(mask, DType::Bool)?;
    let dtype = cx.tensor_dtype(x);
    let v = call.operand(cx, "value")?;
    let v = spread_scalar(cx, v, &vec![], dtype)?;
    let y = cx.map3([mask, v, x], dtype, |b, [mask, v, x]| b.select(mask, v, x))?;
    Ok(vec![Val::Tensor(y)])
}

/// The k-th true element of the mask takes the k-th element of the source.
fn masked_scatter(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, mask, source) = (call.tensor(cx, "self")?, call.tensor(cx, "mask")?, call.tensor(cx, "source")?);
    let shape = cx.broadcast_shape(&[x, mask])?;
    let (x, mask) = (cx.broadcast_to(x, &shape)?, cx.broadcast_to(mask, &shape)?);
    let source = flattened(cx, source)?;
    Ok(vec![Val::Tensor(put_masked(cx, x, (0, mask), source, false)?)])
}
