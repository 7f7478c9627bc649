//! Views that keep every element: shapes, permutations, size-1 dimensions, expansion.

use super::args::{Call, wrap_dim};
use super::cx::{Built, Cx, broadcast_shapes};
use super::{AtenOp, Val, bad_argument};
use crate::ir::{Dim, Shape, ValueId};
use crate::report::Diagnostic;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &["aten.view.default", "aten._unsafe_view.default", "aten.view_copy.default"],
        rule: |cx, c| to_shape(cx, c, "size"),
    },
    AtenOp { names: &["aten.reshape.default"], rule: |cx, c| to_shape(cx, c, "shape") },
    AtenOp { names: &["aten._reshape_alias.default"], rule: |cx, c| to_shape(cx, c, "size") },
    AtenOp { names: &["aten.reshape_as.default", "aten.view_as.default"], rule: shape_of_other },
    AtenOp { names: &["aten.flatten.using_ints"], rule: flatten },
    AtenOp {
        names: &["aten.ravel.default"],
        rule: |cx, c| {
            each(cx, c, |cx, x| {
                let n = cx.ty(x).n_elems();
                cx.reshape(x, vec![n])
            })
        },
    },
    AtenOp { names: &["aten.unflatten.int"], rule: unflatten },
    AtenOp {
        names: &["aten.permute.default", "aten.permute_copy.default"],
        rule: |cx, c| {
            let rank = c.rank(cx)?;
            let perm = c.dim_indices("dims", rank)?;
            each(cx, c, |cx, x| cx.permute(x, &perm))
        },
    },
    AtenOp {
        names: &["aten.transpose.int", "aten.transpose_copy.int", "aten.swapaxes.default", "aten.swapdims.default"],
        rule: transpose,
    },
    AtenOp {
        names: &["aten.t.default", "aten.t_copy.default"],
        rule: |cx, c| {
            each(cx, c, |cx, x| match cx.rank(x) {
                2 => cx.transpose(x, 0, 1),
                _ => Ok(x),
            })
        },
    },
    AtenOp {
        names: &["aten.mT.default", "aten.mH.default", "aten.adjoint.default", "aten.matrix_H.default"],
        rule: matrix_transpose,
    },
    AtenOp {
        names: &["aten.numpy_T.default"],
        rule: |cx, c| {
            each(cx, c, |cx, x| {
                let perm: Vec<usize> = (0..cx.rank(x)).rev().collect();
                cx.permute(x, &perm)
            })
        },
    },
    AtenOp {
        names: &["aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist"],
        rule: movedim,
    },
    AtenOp {
        names: &["aten.unsqueeze.default", "aten.unsqueeze_copy.default"],
        rule: |cx, c| {
            let rank = c.rank(cx)?;
            let dim = wrap_dim(c.int("dim")?, rank + 1)?;
            each(cx, c, |cx, x| cx.unsqueeze(x, dim))
        },
    },
    AtenOp {
        names: &[
            "aten.squeeze.default",
            "aten.squeeze.dim",
            "aten.squeeze.dims",
            "aten.squeeze_copy.default",
            "aten.squeeze_copy.dim",
            "aten.squeeze_copy.dims",
        ],
        rule: squeeze,
    },
    AtenOp { names: &["aten.expand.default", "aten.expand_copy.default", "aten.broadcast_to.default"], rule: expand },
    AtenOp {
        names: &["aten.expand_as.default"],
        rule: |cx, c| {
            let other = c.value(cx, "other")?;
            let shape = shape_of(cx, &other)?;
            each(cx, c, |cx, x| cx.broadcast_to(x, &shape))
        },
    },
    AtenOp { names: &["aten.broadcast_tensors.default"], rule: broadcast_tensors },
    AtenOp { names: &["aten.meshgrid.default", "aten.meshgrid.indexing"], rule: meshgrid },
    AtenOp { names: &["aten.atleast_1d.default"], rule: |cx, c| at_least(cx, c, 1) },
    AtenOp { names: &["aten.atleast_2d.default"], rule: |cx, c| at_least(cx, c, 2) },
    AtenOp { names: &["aten.atleast_3d.default"], rule: |cx, c| at_least(cx, c, 3) },
    AtenOp { names: &["aten.atleast_1d.Sequence"], rule: |cx, c| all_at_least(cx, c, 1) },
    AtenOp { names: &["aten.atleast_2d.Sequence"], rule: |cx, c| all_at_least(cx, c, 2) },
    AtenOp { names: &["aten.atleast_3d.Sequence"], rule: |cx, c| all_at_least(cx, c, 3) },
    AtenOp { names: &["aten.pixel_shuffle.default"], rule: pixel_shuffle },
    AtenOp { names: &["aten.pixel_unshuffle.default"], rule: pixel_unshuffle },
    AtenOp { names: &["aten.channel_shuffle.default", "aten.native_channel_shuffle.default"], rule: channel_shuffle },
];

/// Applies a movement to the first argument, to both parts of a complex one.
pub(super) fn each(cx: &mut Cx, c: &Call<'_>, f: impl FnMut(&mut Cx, ValueId) -> Built) -> Vals {
    let v = c.value(cx, c.first())?;
    Ok(vec![cx.each(&v, f)?])
}

/// Sizes of a tensor value.
pub(super) fn shape_of(cx: &Cx, v: &Val) -> Result<Shape, Diagnostic> {
    match v {
        Val::Tensor(x) | Val::Complex { re: x, .. } => Ok(cx.shape(*x)),
        _ => Err(bad_argument("a number where a tensor is needed")),
    }
}

fn to_shape(cx: &mut Cx, c: &Call<'_>, name: &str) -> Vals {
    let v = c.value(cx, c.first())?;
    let shape = shape_of(cx, &v)?;
    let total = shape.iter().fold(Dim::from(1), |p, d| &p * d);
    // The recorded sizes are the same in the export's own words, with −1 filled in.
    let sizes = match c.meta(0) {
        Some(meta) => meta.sizes.clone(),
        None => fill_in(&c.dims(name)?, &total)?,
    };
    Ok(vec![cx.each(&v, |cx, x| reshape_equal(cx, x, sizes.clone()))?])
}

/// A reshape whose element count is equal for all sizes, even where the formulas differ.
pub(super) fn reshape_equal(cx: &mut Cx, x: ValueId, shape: Shape) -> Built {
    let new = shape.iter().fold(Dim::from(1), |p, d| &p * d);
    let old = cx.ty(x).n_elems();
    if new == old || !super::check::same_size(&new, &old, &cx.ranges) {
        return cx.reshape(x, shape);
    }
    let flat = cx.reshape(x, vec![old])?;
    let renamed = cx.slice(flat, 0, Dim::from(0), new, 1)?;
    cx.reshape(renamed, shape)
}

/// Replaces −1 by what is left of the element count.
fn fill_in(sizes: &[Dim], total: &Dim) -> Result<Shape, Diagnostic> {
    let known = sizes.iter().filter(|d| !d.is(-1)).fold(Dim::from(1), |p, d| &p * d);
    match sizes.iter().filter(|d| d.is(-1)).count() {
        0 => Ok(sizes.to_vec()),
        1 if !known.is(0) => {
            let rest = total.floor_div(&known);
            Ok(sizes.iter().map(|d| if d.is(-1) { rest.clone() } else { d.clone() }).collect())
        }
        _ => Err(bad_argument("sizes with more than one -1")),
    }
}

fn shape_of_other(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let other = c.value(cx, "other")?;
    let shape = shape_of(cx, &other)?;
    each(cx, c, |cx, x| reshape_equal(cx, x, shape.clone()))
}

fn flatten(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let (start, end) = (c.dim_index("start_dim", rank)?, c.dim_index("end_dim", rank)?);
    if end < start {
        return Err(bad_argument(format!("flatten from dimension {start} to {end}")));
    }
    each(cx, c, |cx, x| {
        let mut shape = cx.shape(x);
        if shape.is_empty() {
            return cx.reshape(x, vec![Dim::from(1)]);
        }
        let merged = shape[start..=end].iter().fold(Dim::from(1), |p, d| &p * d);
        shape.splice(start..=end, [merged]);
        cx.reshape(x, shape)
    })
}

fn unflatten(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dim = c.dim_index("dim", rank)?;
    let sizes = c.dims("sizes")?;
    each(cx, c, |cx, x| {
        let mut shape = cx.shape(x);
        let sizes = fill_in(&sizes, &shape[dim])?;
        shape.splice(dim..=dim, sizes);
        reshape_equal(cx, x, shape)
    })
}

fn transpose(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let names = if c.has("axis0") { ["axis0", "axis1"] } else { ["dim0", "dim1"] };
    let (a, b) = (c.dim_index(names[0], rank)?, c.dim_index(names[1], rank)?);
    each(cx, c, |cx, x| cx.transpose(x, a, b))
}

/// The last two dimensions exchanged; `mH` and friends also conjugate.
fn matrix_transpose(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.value(cx, "self")?;
    let moved = cx.each(&v, |cx, x| match cx.rank(x) {
        n if n >= 2 => cx.transpose(x, n - 2, n - 1),
        _ => Ok(x),
    })?;
    Ok(vec![match moved {
        Val::Complex { re, im } if c.target != "aten.mT.default" => {
            Val::Complex { re, im: cx.map1(im, |b, y| b.neg(y))? }
        }
        other => other,
    }])
}

fn movedim(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let (from, to) = (c.dim_indices("source", rank)?, c.dim_indices("destination", rank)?);
    if from.len() != to.len() {
        return Err(bad_argument(format!("movedim of {} dimensions to {}", from.len(), to.len())));
    }
    let mut perm: Vec<Option<usize>> = vec![None; rank];
    for (&f, &t) in from.iter().zip(&to) {
        perm[t] = Some(f);
    }
    let mut rest = (0..rank).filter(|d| !from.contains(d));
    let perm: Vec<usize> = perm.into_iter().map(|p| p.or_else(|| rest.next()).unwrap_or(0)).collect();
    each(cx, c, |cx, x| cx.permute(x, &perm))
}

fn squeeze(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dims: Vec<usize> = if c.has("dim") { c.dim_indices("dim", rank)? } else { (0..rank).collect() };
    each(cx, c, |cx, x| {
        let shape = cx.shape(x);
        let gone: Vec<usize> = dims.iter().copied().filter(|&d| shape.get(d).is_some_and(|s| s.is(1))).collect();
        cx.drop_dims(x, &gone)
    })
}

fn expand(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let sizes = c.dims("size")?;
    each(cx, c, |cx, x| {
        let own = cx.shape(x);
        let lead = sizes.len().saturating_sub(own.len());
        let shape = sizes
            .iter()
            .enumerate()
            .map(|(d, s)| if s.is(-1) && d >= lead { own[d - lead].clone() } else { s.clone() })
            .collect();
        cx.broadcast_to(x, &shape)
    })
}

fn broadcast_tensors(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let values = c.values(cx, "tensors")?;
    let mut shape = vec![];
    for v in &values {
        shape = broadcast_shapes(&shape, &shape_of(cx, v)?)?;
    }
    let out = values.iter().map(|v| cx.each(v, |cx, x| cx.broadcast_to(x, &shape))).collect::<Result<_, _>>()?;
    Ok(vec![Val::List(out)])
}

fn meshgrid(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let mut parts = c.tensors(cx, "tensors")?;
    let columns = c.has("indexing") && c.str("indexing")? == "xy" && parts.len() >= 2;
    if columns {
        parts.swap(0, 1);
    }
    let n = parts.len();
    let shape: Shape = parts.iter().map(|&p| cx.ty(p).n_elems()).collect();
    let mut out = vec![];
    for (d, &p) in parts.iter().enumerate() {
        let mut line = vec![Dim::from(1); n];
        line[d] = shape[d].clone();
        let line = cx.reshape(p, line)?;
        let grid = cx.broadcast_to(line, &shape)?;
        out.push(Val::Tensor(grid));
    }
    if columns {
        out.swap(0, 1);
    }
    Ok(vec![Val::List(out)])
}

fn at_least(cx: &mut Cx, c: &Call<'_>, rank: usize) -> Vals {
    each(cx, c, |cx, x| raised(cx, x, rank))
}

fn all_at_least(cx: &mut Cx, c: &Call<'_>, rank: usize) -> Vals {
    let values = c.values(cx, c.first())?;
    let out = values.iter().map(|v| cx.each(v, |cx, x| raised(cx, x, rank))).collect::<Result<_, _>>()?;
    Ok(vec![Val::List(out)])
}

fn raised(cx: &mut Cx, x: ValueId, rank: usize) -> Built {
    let mut shape = cx.shape(x);
    let one = Dim::from(1);
    match (shape.len(), rank) {
        (n, r) if n >= r => return Ok(x),
        (0, r) => shape = vec![one; r],
        (1, 2) => shape.insert(0, one),
        (1, _) => {
            shape.insert(0, one.clone());
            shape.push(one);
        }
        _ => shape.push(one),
    }
    cx.reshape(x, shape)
}

/// `[…, c·r², h, w] → […, c, h·r, w·r]`.
fn pixel_shuffle(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let r = Dim::from(c.int("upscale_factor")?);
    each(cx, c, |cx, x| {
        let shape = cx.shape(x);
        let Some(lead) = shape.len().checked_sub(3) else {
            return Err(bad_argument("pixel_shuffle below 3 dimensions"));
        };
        let (ch, h, w) = (shape[lead].floor_div(&(&r * &r)), shape[lead + 1].clone(), shape[lead + 2].clone());
        let mut split = shape[..lead].to_vec();
        split.extend([ch.clone(), r.clone(), r.clone(), h.clone(), w.clone()]);
        let x = cx.reshape(x, split)?;
        let mut perm: Vec<usize> = (0..lead).collect();
        perm.extend([0, 3, 1, 4, 2].map(|d| lead + d));
        let x = cx.permute(x, &perm)?;
        let mut out = shape[..lead].to_vec();
        out.extend([ch, &h * &r, &w * &r]);
        cx.reshape(x, out)
    })
}

/// `[…, c, h·r, w·r] → […, c·r², h, w]`.
fn pixel_unshuffle(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let r = Dim::from(c.int("downscale_factor")?);
    each(cx, c, |cx, x| {
        let shape = cx.shape(x);
        let Some(lead) = shape.len().checked_sub(3) else {
            return Err(bad_argument("pixel_unshuffle below 3 dimensions"));
        };
        let (ch, h, w) = (shape[lead].clone(), shape[lead + 1].floor_div(&r), shape[lead + 2].floor_div(&r));
        let mut split = shape[..lead].to_vec();
        split.extend([ch.clone(), h.clone(), r.clone(), w.clone(), r.clone()]);
        let x = cx.reshape(x, split)?;
        let mut perm: Vec<usize> = (0..lead).collect();
        perm.extend([0, 2, 4, 1, 3].map(|d| lead + d));
        let x = cx.permute(x, &perm)?;
        let mut out = shape[..lead].to_vec();
        out.extend([&(&ch * &r) * &r, h, w]);
        cx.reshape(x, out)
    })
}

fn channel_shuffle(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let groups = Dim::from(c.int("groups")?);
    each(cx, c, |cx, x| {
        let shape = cx.shape(x);
        if shape.len() < 3 {
            return Err(bad_argument("channel_shuffle below 3 dimensions"));
        }
        let mut split = shape.clone();
        split.splice(1..=1, [groups.clone(), shape[1].floor_div(&groups)]);
        let x = cx.reshape(x, split)?;
        let x = cx.transpose(x, 1, 2)?;
        cx.reshape(x, shape)
    })
}
