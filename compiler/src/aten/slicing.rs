//! Parts of a tensor: slices, splits, diagonals, windows, and the operators that write one part.

use super::args::{Call, wrap_dim};
use super::complex::to_complex;
use super::cx::{Built, Cx};
use super::view::{each, shape_of};
use super::{AtenOp, Val, bad_argument, unsupported_shape};
use crate::ir::{Dim, ValueId};
use crate::report::Diagnostic;

type Vals = Result<Vec<Val>, Diagnostic>;
type PickDim = fn(&Call<'_>, usize) -> Result<usize, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.slice.Tensor", "aten.slice_copy.Tensor"], rule: slice },
    AtenOp { names: &["aten.select.int", "aten.select_copy.int"], rule: select },
    AtenOp { names: &["aten.narrow.default", "aten.narrow_copy.default"], rule: narrow },
    AtenOp { names: &["aten.split.Tensor", "aten.unsafe_split.Tensor", "aten.split_copy.Tensor"], rule: split },
    AtenOp {
        names: &[
            "aten.split_with_sizes.default",
            "aten.split_with_sizes_copy.default",
            "aten.unsafe_split_with_sizes.default",
            "aten.split.sizes",
            "aten.split.default",
        ],
        rule: split_sizes,
    },
    AtenOp { names: &["aten.chunk.default", "aten.unsafe_chunk.default"], rule: chunk },
    AtenOp {
        names: &["aten.tensor_split.sections"],
        rule: |cx, c| sections(cx, c, |c, rank| c.dim_index("dim", rank)),
    },
    AtenOp {
        names: &["aten.tensor_split.indices"],
        rule: |cx, c| at_indices(cx, c, |c, rank| c.dim_index("dim", rank)),
    },
    AtenOp { names: &["aten.hsplit.int"], rule: |cx, c| sections(cx, c, |_, rank| Ok(usize::from(rank > 1))) },
    AtenOp { names: &["aten.hsplit.array"], rule: |cx, c| at_indices(cx, c, |_, rank| Ok(usize::from(rank > 1))) },
    AtenOp { names: &["aten.vsplit.int"], rule: |cx, c| sections(cx, c, |_, _| Ok(0)) },
    AtenOp { names: &["aten.vsplit.array"], rule: |cx, c| at_indices(cx, c, |_, _| Ok(0)) },
    AtenOp { names: &["aten.dsplit.int"], rule: |cx, c| sections(cx, c, |_, _| Ok(2)) },
    AtenOp { names: &["aten.dsplit.array"], rule: |cx, c| at_indices(cx, c, |_, _| Ok(2)) },
    AtenOp { names: &["aten.unbind.int", "aten.unbind_copy.int"], rule: unbind },
    AtenOp {
        names: &["aten.diagonal.default", "aten.diagonal_copy.default", "aten.linalg_diagonal.default"],
        rule: diagonal,
    },
    AtenOp { names: &["aten.diag.default"], rule: diag },
    AtenOp { names: &["aten.diag_embed.default"], rule: diag_embed },
    AtenOp {
        names: &["aten.diagflat.default"],
        rule: |cx, c| {
            let offset = c.int("offset")?;
            each(cx, c, |cx, x| {
                let n = cx.ty(x).n_elems();
                let flat = cx.reshape(x, vec![n])?;
                embed_last(cx, flat, offset)
            })
        },
    },
    AtenOp { names: &["aten.trace.default"], rule: trace },
    AtenOp { names: &["aten.unfold.default", "aten.unfold_copy.default"], rule: unfold },
    AtenOp { names: &["aten.as_strided.default", "aten.as_strided_copy.default"], rule: as_strided },
    AtenOp { names: &["aten.slice_scatter.default"], rule: slice_scatter },
    AtenOp { names: &["aten.select_scatter.default"], rule: select_scatter },
    AtenOp { names: &["aten.diagonal_scatter.default"], rule: diagonal_scatter },
];

/// A slice's first index and length by Python's rules: negative positions from the end, both ends limited to the size.
fn slice_bounds(size: &Dim, start: Option<Dim>, end: Option<Dim>, step: i64) -> (Dim, Dim) {
    let zero = Dim::from(0);
    let limit = |d: Dim| match d.as_const() {
        // Symbolic positions are sizes, so never negative.
        Some(v) if v < 0 => (&d + size).max_of(&zero).min_of(size),
        Some(i64::MAX) => size.clone(),
        _ => d.min_of(size),
    };
    let start = start.map_or(zero.clone(), limit);
    let end = end.map_or(size.clone(), limit);
    let span = (&end - &start).max_of(&zero);
    let len = (&span + &Dim::from(step - 1)).floor_div(&Dim::from(step));
    (start, len)
}

fn bounds(cx: &mut Cx, c: &Call<'_>, dim: usize) -> Result<(Dim, Dim, i64), Diagnostic> {
    let v = c.value(cx, "self")?;
    let size = shape_of(cx, &v)?.get(dim).cloned().unwrap_or_else(|| Dim::from(1));
    let step = c.int("step")?;
    if step < 1 {
        return Err(bad_argument(format!("slice step {step} is below 1")));
    }
    let (start, len) = slice_bounds(&size, c.opt_dim("start")?, c.opt_dim("end")?, step);
    Ok((start, len, step))
}

fn slice(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dim = c.dim_index("dim", rank)?;
    let (start, mut len, step) = bounds(cx, c, dim)?;
    if let Some(recorded) = c.meta(0).and_then(|m| m.sizes.get(dim)) {
        // The same length without the limits that the ranges make redundant.
        if super::check::same_size(&len, recorded, &cx.ranges) {
            len = recorded.clone();
        }
    }
    each(cx, c, |cx, x| cx.slice(x, dim, start.clone(), len.clone(), step))
}

/// An index of a dimension, negative ones from the end.
fn wrapped(index: Dim, size: &Dim) -> Dim {
    match index.as_const() {
        Some(v) if v < 0 => &index + size,
        _ => index,
    }
}

fn select(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dim = c.dim_index("dim", rank)?;
    let index = c.dim("index")?;
    each(cx, c, |cx, x| {
        let at = wrapped(index.clone(), &cx.size(x, dim));
        check_index(&at, &cx.size(x, dim))?;
        cx.select(x, dim, at)
    })
}

fn check_index(at: &Dim, size: &Dim) -> Result<(), Diagnostic> {
    match (at.as_const(), size.as_const()) {
        (Some(i), Some(n)) if !(0..n).contains(&i) => {
            Err(bad_argument(format!("index {i} of a dimension of size {n}")))
        }
        _ => Ok(()),
    }
}

fn narrow(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dim = c.dim_index("dim", rank)?;
    let (start, len) = (c.dim("start")?, c.dim("length")?);
    each(cx, c, |cx, x| {
        let at = wrapped(start.clone(), &cx.size(x, dim));
        cx.slice(x, dim, at, len.clone(), 1)
    })
}

/// Parts of the given sizes, one after the other.
fn parts(cx: &mut Cx, v: &Val, dim: usize, sizes: &[Dim]) -> Vals {
    let mut start = Dim::from(0);
    let mut out = vec![];
    for len in sizes {
        out.push(cx.each(v, |cx, x| cx.slice(x, dim, start.clone(), len.clone(), 1))?);
        start = &start + len;
    }
    Ok(vec![Val::List(out)])
}

/// Sizes of equal parts, the last one shorter. The number of parts is that of the export's outputs, so a size may be symbolic.
fn equal_parts(c: &Call<'_>, size: &Dim, part: &Dim) -> Result<Vec<Dim>, Diagnostic> {
    let n = match c.node.outputs.first() {
        Some(crate::import::program::Arg::Tensors(names)) => names.len() as i64,
        _ => {
            let n = size.as_const().zip(part.as_const()).filter(|(_, p)| *p > 0).map(|(s, p)| (s + p - 1) / p);
            n.ok_or_else(|| unsupported_shape(format!("split of symbolic size {size} in parts of {part}")))?
        }
    };
    let last = size - &(part * &Dim::from(n - 1));
    Ok((0..n).map(|i| if i + 1 == n { last.clone() } else { part.clone() }).collect())
}

fn split(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.value(cx, "self")?;
    let shape = shape_of(cx, &v)?;
    let dim = c.dim_index("dim", shape.len())?;
    let sizes = equal_parts(c, &shape[dim], &c.dim("split_size")?)?;
    parts(cx, &v, dim, &sizes)
}

fn split_sizes(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.value(cx, "self")?;
    let dim = c.dim_index("dim", shape_of(cx, &v)?.len())?;
    let name = if c.has("split_sizes") { "split_sizes" } else { "split_size" };
    let sizes = c.dims(name)?;
    parts(cx, &v, dim, &sizes)
}

fn chunk(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.value(cx, "self")?;
    let shape = shape_of(cx, &v)?;
    let dim = c.dim_index("dim", shape.len())?;
    let chunks = c.int("chunks")?.max(1);
    let part = (&shape[dim] + &Dim::from(chunks - 1)).floor_div(&Dim::from(chunks));
    let sizes = if part.is(0) { vec![Dim::from(0); chunks as usize] } else { equal_parts(c, &shape[dim], &part)? };
    parts(cx, &v, dim, &sizes)
}

/// The first `size mod n` parts are one larger.
fn sections(cx: &mut Cx, c: &Call<'_>, dim: PickDim) -> Vals {
    let v = c.value(cx, "self")?;
    let shape = shape_of(cx, &v)?;
    let dim = dim(c, shape.len())?;
    let n = c.int("sections")?;
    let size = shape.get(dim).and_then(Dim::as_const);
    let size = size.filter(|_| n > 0).ok_or_else(|| unsupported_shape(format!("a split in {n} sections")))?;
    let sizes: Vec<Dim> = (0..n).map(|i| Dim::from(size / n + i64::from(i < size % n))).collect();
    parts(cx, &v, dim, &sizes)
}

fn at_indices(cx: &mut Cx, c: &Call<'_>, dim: PickDim) -> Vals {
    let v = c.value(cx, "self")?;
    let shape = shape_of(cx, &v)?;
    let dim = dim(c, shape.len())?;
    let size = shape.get(dim).cloned().ok_or_else(|| bad_argument("a split along a missing dimension"))?;
    let mut cuts: Vec<Option<Dim>> = vec![None];
    cuts.extend(c.dims("indices")?.into_iter().map(Some));
    cuts.push(None);
    let mut out = vec![];
    for w in cuts.windows(2) {
        let (start, len) = slice_bounds(&size, w[0].clone(), w[1].clone(), 1);
        out.push(cx.each(&v, |cx, x| cx.slice(x, dim, start.clone(), len.clone(), 1))?);
    }
    Ok(vec![Val::List(out)])
}

fn unbind(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.value(cx, "self")?;
    let shape = shape_of(cx, &v)?;
    let dim = c.dim_index("dim", shape.len())?;
    let n =
        shape[dim].as_const().ok_or_else(|| unsupported_shape(format!("unbind of symbolic size {}", shape[dim])))?;
    let out = (0..n).map(|i| cx.each(&v, |cx, x| cx.select(x, dim, Dim::from(i)))).collect::<Result<_, _>>()?;
    Ok(vec![Val::List(out)])
}

/// The diagonal of two dimensions, as a last dimension.
fn diagonal_of(cx: &mut Cx, x: ValueId, offset: i64, d1: usize, d2: usize) -> Built {
    let shape = cx.shape(x);
    let (rows, cols) = (shape[d1].clone(), shape[d2].clone());
    let (skip_r, skip_c) = ((-offset).max(0), offset.max(0));
    let room = (&rows - &Dim::from(skip_r)).min_of(&(&cols - &Dim::from(skip_c)));
    let len = room.max_of(&Dim::from(0));
    let rest: Vec<usize> = (0..shape.len()).filter(|d| *d != d1 && *d != d2).collect();
    let mut out: Vec<Dim> = rest.iter().map(|&d| shape[d].clone()).collect();
    out.push(len);
    let dtype = cx.tensor_dtype(x);
    cx.compute(out, dtype, &[x], |b, axes| {
        let last = axes[axes.len() - 1];
        let (r, k) = (b.int(skip_r), b.int(skip_c));
        let (row, col) = (b.add(last, r), b.add(last, k));
        let (row, col) = (b.clamp_index(row, &shape[d1]), b.clamp_index(col, &shape[d2]));
        let mut index = vec![last; shape.len()];
        for (i, &d) in rest.iter().enumerate() {
            index[d] = axes[i];
        }
        (index[d1], index[d2]) = (row, col);
        b.load(0, &index)
    })
}

fn diagonal(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let (d1, d2) = (c.dim_index("dim1", rank)?, c.dim_index("dim2", rank)?);
    let offset = c.int("offset")?;
    let (v, name) = (c.first(), c.target);
    if d1 == d2 {
        return Err(bad_argument(format!("{name} of `{v}` with one dimension twice")));
    }
    each(cx, c, |cx, x| diagonal_of(cx, x, offset, d1, d2))
}

/// A vector on a diagonal of zeros: `[…, n] → […, n + |offset|, n + |offset|]` with the new dimensions last.
fn embed_last(cx: &mut Cx, x: ValueId, offset: i64) -> Built {
    let shape = cx.shape(x);
    let n = shape.len() - 1;
    let side = &shape[n] + &Dim::from(offset.abs());
    let mut out = shape[..n].to_vec();
    out.extend([side.clone(), side]);
    let dtype = cx.tensor_dtype(x);
    cx.compute(out, dtype, &[x], |b, axes| {
        let k = b.int(offset);
        let moved = b.add(axes[n], k);
        let on = b.eq(moved, axes[n + 1]);
        let along = if offset >= 0 { axes[n] } else { axes[n + 1] };
        let mut index = axes[..n].to_vec();
        index.push(b.clamp_index(along, &shape[n]));
        let v = b.load(0, &index);
        let zero = b.like(v, 0.0);
        b.select(on, v, zero)
    })
}

fn diag_embed(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)? + 1;
    let (d1, d2) = (c.dim_index("dim1", rank)?, c.dim_index("dim2", rank)?);
    let offset = c.int("offset")?;
    let rest: Vec<usize> = (0..rank - 2).collect();
    let mut perm: Vec<Option<usize>> = vec![None; rank];
    (perm[d1], perm[d2]) = (Some(rank - 2), Some(rank - 1));
    let mut next = rest.into_iter();
    let perm: Vec<usize> = perm.into_iter().map(|p| p.or_else(|| next.next()).unwrap_or(0)).collect();
    each(cx, c, |cx, x| {
        let e = embed_last(cx, x, offset)?;
        cx.permute(e, &perm)
    })
}

fn diag(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let offset = c.int("diagonal")?;
    each(cx, c, |cx, x| match cx.rank(x) {
        1 => embed_last(cx, x, offset),
        2 => diagonal_of(cx, x, offset, 0, 1),
        n => Err(bad_argument(format!("diag of {n} dimensions"))),
    })
}

fn trace(cx: &mut Cx, c: &Call<'_>) -> Vals {
    each(cx, c, |cx, x| {
        if cx.rank(x) != 2 {
            return Err(bad_argument("trace of a tensor that is no matrix"));
        }
        let d = diagonal_of(cx, x, 0, 0, 1)?;
        super::reduce::sum(cx, d, &[0], false, None)
    })
}

/// Windows of a dimension, their elements as a last dimension.
fn unfold(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dim = c.dim_index("dimension", rank)?;
    let (size, step) = (c.dim("size")?, c.int("step")?);
    each(cx, c, |cx, x| {
        let x = if rank == 0 { cx.reshape(x, vec![Dim::from(1)])? } else { x };
        let mut out = cx.shape(x);
        out[dim] = &(&out[dim] - &size).floor_div(&Dim::from(step)) + &Dim::from(1);
        out.push(size.clone());
        let dtype = cx.tensor_dtype(x);
        let folded = cx.compute(out, dtype, &[x], |b, axes| {
            let by = b.int(step);
            let start = b.mul(axes[dim], by);
            let mut index = axes[..axes.len() - 1].to_vec();
            index[dim] = b.add(start, axes[axes.len() - 1]);
            b.load(0, &index)
        })?;
        if rank == 0 { cx.drop_dims(folded, &[0]) } else { Ok(folded) }
    })
}

/// Elements of a storage by strides. The operand's own recorded layout says where its elements lie in the storage; a contiguous one is
/// needed, since only then the storage holds nothing else.
fn as_strided(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (size, stride) = (c.dims("size")?, c.ints("stride")?);
    let offset = c.opt_int("storage_offset")?.unwrap_or(0);
    if let Some(meta) = c.arg_meta("self") {
        let rows = super::layout::row_major(&meta.sizes);
        let whole = meta.sizes.iter().zip(&meta.strides).zip(&rows).all(|((n, s), r)| n.is(1) || s == r);
        if !whole || !meta.storage_offset.is(0) {
            return Err(unsupported_shape("as_strided of a tensor that is not contiguous is not supported"));
        }
    }
    each(cx, c, |cx, x| {
        let n = cx.ty(x).n_elems();
        let flat = cx.reshape(x, vec![n.clone()])?;
        let dtype = cx.tensor_dtype(x);
        cx.compute(size.clone(), dtype, &[flat], |b, axes| {
            let mut at = b.int(offset);
            for (axis, &s) in axes.iter().zip(&stride) {
                let s = b.int(s);
                let step = b.mul(*axis, s);
                at = b.add(at, step);
            }
            let at = b.clamp_index(at, &n);
            b.load(0, &[at])
        })
    })
}

/// Both tensors in the type of the first, as pairs if that is complex.
fn with_source(cx: &mut Cx, c: &Call<'_>, mut f: impl FnMut(&mut Cx, ValueId, ValueId) -> Built) -> Vals {
    let (base, src) = (c.value(cx, "self")?, c.value(cx, "src")?);
    match base {
        Val::Complex { re, im } => {
            let dtype = cx.tensor_dtype(re);
            let Val::Complex { re: sr, im: si } = to_complex(cx, &src, dtype)? else {
                return Err(bad_argument("a source that is no tensor"));
            };
            Ok(vec![Val::Complex { re: f(cx, re, sr)?, im: f(cx, im, si)? }])
        }
        Val::Tensor(x) => {
            let dtype = cx.tensor_dtype(x);
            let src = match src {
                Val::Tensor(s) => cx.cast(s, dtype)?,
                _ => return Err(bad_argument("a complex source for a real tensor")),
            };
            Ok(vec![f(cx, x, src)?.into()])
        }
        _ => Err(bad_argument("a number where a tensor is needed")),
    }
}

fn slice_scatter(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dim = c.dim_index("dim", rank)?;
    let (start, mut len, step) = bounds(cx, c, dim)?;
    let src = c.value(cx, "src")?;
    if let Some(size) = shape_of(cx, &src)?.get(dim)
        && super::check::same_size(&len, size, &cx.ranges)
    {
        len = size.clone();
    }
    with_source(cx, c, |cx, x, s| {
        let mut shape = cx.shape(x);
        shape[dim] = len.clone();
        let s = cx.broadcast_to(s, &shape)?;
        cx.overwrite_slice(x, s, dim, &start, &len, step)
    })
}

fn select_scatter(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dim = c.dim_index("dim", rank)?;
    let index = c.dim("index")?;
    with_source(cx, c, |cx, x, s| {
        let at = wrapped(index.clone(), &cx.size(x, dim));
        let s = cx.unsqueeze(s, dim)?;
        cx.overwrite_slice(x, s, dim, &at, &Dim::from(1), 1)
    })
}

fn diagonal_scatter(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let (d1, d2) = (wrap_dim(c.int("dim1")?, rank)?, wrap_dim(c.int("dim2")?, rank)?);
    let offset = c.int("offset")?;
    with_source(cx, c, |cx, x, s| {
        let (ty, n) = (cx.ty(x).clone(), cx.rank(s) - 1);
        let source = cx.shape(s);
        cx.compute(ty.shape, ty.dtype, &[x, s], |b, axes| {
            let k = b.int(offset);
            let moved = b.add(axes[d1], k);
            let on = b.eq(moved, axes[d2]);
            let along = if offset >= 0 { axes[d1] } else { axes[d2] };
            let mut index: Vec<_> = (0..rank).filter(|d| *d != d1 && *d != d2).map(|d| axes[d]).collect();
            index.push(b.clamp_index(along, &source[n]));
            let (kept, written) = (b.load(0, axes), b.load(1, &index));
            b.select(on, written, kept)
        })
    })
}
