//! Joining, repeating, reversing, rotating, padding and masking by position.

use super::args::Call;
use super::body::BodyBuilder;
use super::complex::common_parts;
use super::cx::{Built, Cx};
use super::view::{each, shape_of};
use super::{AtenOp, Val, bad_argument};
use crate::ir::{Dim, Shape, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::expr::ExprId;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.cat.default", "aten.concat.default", "aten.concatenate.default"], rule: cat },
    AtenOp { names: &["aten.stack.default", "aten._stack.default"], rule: stack },
    AtenOp { names: &["aten.hstack.default"], rule: |cx, c| join_at_least(cx, c, 1, |rank| usize::from(rank > 1)) },
    AtenOp { names: &["aten.vstack.default", "aten.row_stack.default"], rule: |cx, c| join_at_least(cx, c, 2, |_| 0) },
    AtenOp { names: &["aten.dstack.default"], rule: |cx, c| join_at_least(cx, c, 3, |_| 2) },
    AtenOp { names: &["aten.column_stack.default"], rule: column_stack },
    AtenOp { names: &["aten.block_diag.default"], rule: block_diag },
    AtenOp { names: &["aten.repeat.default"], rule: |cx, c| repeat(cx, c, "repeats") },
    AtenOp { names: &["aten.tile.default"], rule: |cx, c| repeat(cx, c, "dims") },
    AtenOp { names: &["aten.repeat_interleave.self_int"], rule: repeat_interleave },
    AtenOp {
        names: &["aten.flip.default"],
        rule: |cx, c| {
            let rank = c.rank(cx)?;
            let mut dims = c.dim_indices("dims", rank)?;
            dims.sort_unstable();
            dims.retain(|&d| d < rank);
            each(cx, c, |cx, x| cx.flip(x, dims.clone()))
        },
    },
    AtenOp { names: &["aten.fliplr.default"], rule: |cx, c| each(cx, c, |cx, x| cx.flip(x, vec![1])) },
    AtenOp { names: &["aten.flipud.default"], rule: |cx, c| each(cx, c, |cx, x| cx.flip(x, vec![0])) },
    AtenOp { names: &["aten.rot90.default"], rule: rot90 },
    AtenOp { names: &["aten.roll.default"], rule: roll },
    AtenOp { names: &["aten.tril.default"], rule: |cx, c| triangle(cx, c, false) },
    AtenOp { names: &["aten.triu.default"], rule: |cx, c| triangle(cx, c, true) },
    AtenOp {
        names: &["aten.constant_pad_nd.default"],
        rule: |cx, c| {
            let value = match c.scalar("value")? {
                Val::Bool(b) => f64::from(u8::from(b)),
                _ => c.float("value")?,
            };
            pad_constant(cx, c, value)
        },
    },
    AtenOp { names: &["aten.pad.default"], rule: pad },
    AtenOp {
        names: &["aten.reflection_pad1d.default", "aten.reflection_pad2d.default", "aten.reflection_pad3d.default"],
        rule: |cx, c| pad_by(cx, c, "padding", reflect),
    },
    AtenOp {
        names: &["aten.replication_pad1d.default", "aten.replication_pad2d.default", "aten.replication_pad3d.default"],
        rule: |cx, c| pad_by(cx, c, "padding", replicate),
    },
    AtenOp { names: &["aten._pad_circular.default"], rule: |cx, c| circular(cx, c, "pad") },
];

/// Joins tensors that have been brought to a common type.
pub(super) fn join(cx: &mut Cx, values: &[Val], f: impl Fn(&mut Cx, &[ValueId]) -> Built) -> Vals {
    if values.is_empty() {
        return Err(bad_argument("a join of no tensors"));
    }
    let (re, im) = common_parts(cx, values)?;
    let joined = f(cx, &re)?;
    Ok(vec![match im {
        Some(im) => Val::Complex { re: joined, im: f(cx, &im)? },
        None => Val::Tensor(joined),
    }])
}

fn cat(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let all = c.values(cx, "tensors")?;
    let mut kept = vec![];
    let mut rank = 0;
    for v in &all {
        let shape = shape_of(cx, v)?;
        rank = rank.max(shape.len());
        // An old rule of PyTorch: 1-d tensors without elements join anything.
        if shape.len() != 1 || !shape[0].is(0) {
            kept.push(v.clone());
        }
    }
    if kept.is_empty() {
        kept.extend(all.first().cloned());
    }
    let dim = c.dim_index("dim", rank)?;
    join(cx, &kept, |cx, parts| cx.concat(parts, dim))
}

fn stack(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let all = c.values(cx, "tensors")?;
    let rank = all.first().map_or(Ok(0), |v| shape_of(cx, v).map(|s| s.len()))?;
    let dim = super::args::wrap_dim(c.int("dim")?, rank + 1)?;
    join(cx, &all, |cx, parts| cx.stack(parts, dim))
}

/// Joins tensors of at least a rank; `dim` says along which dimension.
fn join_at_least(cx: &mut Cx, c: &Call<'_>, rank: usize, dim: fn(usize) -> usize) -> Vals {
    let all = c.values(cx, "tensors")?;
    join(cx, &all, |cx, parts| {
        let parts = parts.iter().map(|&p| raise(cx, p, rank)).collect::<Result<Vec<_>, _>>()?;
        let dim = dim(cx.rank(parts[0]));
        cx.concat(&parts, dim)
    })
}

/// The shapes of `atleast_1d`, `atleast_2d`, `atleast_3d`.
fn raise(cx: &mut Cx, x: ValueId, rank: usize) -> Built {
    let x = cx.to_rank(x, rank.min(2))?;
    let mut shape = cx.shape(x);
    if rank == 3 && shape.len() == 2 {
        shape.push(Dim::from(1));
    }
    cx.reshape(x, shape)
}

fn column_stack(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let all = c.values(cx, "tensors")?;
    join(cx, &all, |cx, parts| {
        let column = |cx: &mut Cx, p: ValueId| match cx.rank(p) {
            0 | 1 => {
                let n = cx.ty(p).n_elems();
                cx.reshape(p, vec![n, Dim::from(1)])
            }
            _ => Ok(p),
        };
        let parts = parts.iter().map(|&p| column(cx, p)).collect::<Result<Vec<_>, _>>()?;
        cx.concat(&parts, 1)
    })
}

fn block_diag(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let all = c.values(cx, "tensors")?;
    join(cx, &all, |cx, parts| {
        let parts = parts.iter().map(|&p| cx.to_rank(p, 2)).collect::<Result<Vec<_>, _>>()?;
        let shapes: Vec<Shape> = parts.iter().map(|&p| cx.shape(p)).collect();
        let width = shapes.iter().fold(Dim::from(0), |w, s| &w + &s[1]);
        let mut left = Dim::from(0);
        let mut rows = vec![];
        for (&p, s) in parts.iter().zip(&shapes) {
            let right = &(&width - &left) - &s[1];
            let dtype = cx.tensor_dtype(p);
            let before = cx.full(vec![s[0].clone(), left.clone()], dtype, 0.0)?;
            let after = cx.full(vec![s[0].clone(), right], dtype, 0.0)?;
            rows.push(cx.concat(&[before, p, after], 1)?);
            left = &left + &s[1];
        }
        cx.concat(&rows, 0)
    })
}

/// Copies side by side: each dimension `n` becomes `r·n`.
fn repeat(cx: &mut Cx, c: &Call<'_>, name: &str) -> Vals {
    let repeats = c.dims(name)?;
    each(cx, c, |cx, x| {
        let rank = cx.rank(x).max(repeats.len());
        let x = cx.to_rank(x, rank)?;
        let mut times = vec![Dim::from(1); rank - repeats.len()];
        times.extend(repeats.clone());
        let shape = cx.shape(x);
        // [n] → [1, n] → [r, n] → [r·n], for all dimensions at once; those with r = 1 stay as they are.
        let (mut split, mut wide, mut merged) = (vec![], vec![], vec![]);
        for (n, r) in shape.iter().zip(&times) {
            if !r.is(1) {
                split.push(Dim::from(1));
                wide.push(r.clone());
            }
            split.push(n.clone());
            wide.push(n.clone());
            merged.push(n * r);
        }
        let x = cx.reshape(x, split)?;
        let x = cx.broadcast_to(x, &wide)?;
        cx.reshape(x, merged)
    })
}

/// Each element `repeats` times in a row.
fn repeat_interleave(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (rank, repeats) = (c.rank(cx)?, c.dim("repeats")?);
    let dim = c.opt_int("dim")?.map(|d| super::args::wrap_dim(d, rank)).transpose()?;
    each(cx, c, |cx, x| {
        let (x, dim) = match dim {
            Some(d) => (x, d),
            None => {
                let n = cx.ty(x).n_elems();
                (cx.reshape(x, vec![n])?, 0)
            }
        };
        let mut merged = cx.shape(x);
        let mut wide = merged.clone();
        wide.insert(dim + 1, repeats.clone());
        merged[dim] = &merged[dim] * &repeats;
        let x = cx.unsqueeze(x, dim + 1)?;
        let x = cx.broadcast_to(x, &wide)?;
        cx.reshape(x, merged)
    })
}

fn rot90(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let dims = c.dim_indices("dims", rank)?;
    let [a, b] = dims[..] else { return Err(bad_argument("rot90 takes two dimensions")) };
    let k = c.int("k")?.rem_euclid(4);
    each(cx, c, |cx, x| match k {
        1 => {
            let x = cx.flip(x, vec![b])?;
            cx.transpose(x, a, b)
        }
        2 => cx.flip(x, vec![a.min(b), a.max(b)]),
        3 => {
            let x = cx.flip(x, vec![a])?;
            cx.transpose(x, a, b)
        }
        _ => Ok(x),
    })
}

/// Rotates dimensions; without `dims` the flattened tensor. As two slices, exchanged.
fn roll(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let shifts = c.dims("shifts")?;
    let dims = c.ints("dims")?.iter().map(|&d| super::args::wrap_dim(d, rank)).collect::<Result<Vec<_>, _>>()?;
    each(cx, c, |cx, x| {
        if rank == 0 {
            return Ok(x);
        }
        if dims.is_empty() {
            let shape = cx.shape(x);
            let n = cx.ty(x).n_elems();
            let flat = cx.reshape(x, vec![n])?;
            let rolled = roll_one(cx, flat, 0, &shifts[0])?;
            return cx.reshape(rolled, shape);
        }
        dims.iter().zip(&shifts).try_fold(x, |x, (&d, s)| roll_one(cx, x, d, s))
    })
}

fn roll_one(cx: &mut Cx, x: ValueId, dim: usize, shift: &Dim) -> Built {
    let size = cx.size(x, dim);
    if size.is(0) {
        return Ok(x);
    }
    let by = shift.rem(&size);
    if by.is(0) {
        return Ok(x);
    }
    let head = &size - &by;
    let tail = cx.slice(x, dim, head.clone(), by, 1)?;
    let front = cx.slice(x, dim, Dim::from(0), head, 1)?;
    cx.concat(&[tail, front], dim)
}

fn triangle(cx: &mut Cx, c: &Call<'_>, upper: bool) -> Vals {
    let k = c.int("diagonal")?;
    each(cx, c, |cx, x| {
        let (ty, rank) = (cx.ty(x).clone(), cx.rank(x));
        if rank < 2 {
            return Err(bad_argument("a triangle of a tensor that is no matrix"));
        }
        cx.compute(ty.shape, ty.dtype, &[x], |b, axes| {
            let (row, col) = (axes[rank - 2], axes[rank - 1]);
            let v = b.load(0, axes);
            let kept = in_triangle(b, row, col, k, upper);
            let zero = b.like(v, 0.0);
            b.select(kept, v, zero)
        })
    })
}

/// `col − row ≤ k`, or `≥ k` above.
pub(super) fn in_triangle(b: &mut BodyBuilder, row: ExprId, col: ExprId, k: i64, upper: bool) -> ExprId {
    let k = b.int(k);
    let edge = b.add(row, k);
    if upper { b.le(edge, col) } else { b.le(col, edge) }
}

/// PyTorch's list of paddings, (before, after) from the last dimension on, as one list per side.
fn sides(pad: &[i64], rank: usize) -> Result<(Vec<i64>, Vec<i64>), Diagnostic> {
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    if !pad.len().is_multiple_of(2) || pad.len() / 2 > rank {
        return Err(bad_argument(format!("padding {pad:?} for {rank} dimensions")));
    }
    for (i, p) in pad.chunks(2).enumerate() {
        (before[rank - 1 - i], after[rank - 1 - i]) = (p[0], p[1]);
    }
    Ok((before, after))
}

fn pad_constant(cx: &mut Cx, c: &Call<'_>, value: f64) -> Vals {
    let rank = c.rank(cx)?;
    let (before, after) = sides(&c.ints("pad")?, rank)?;
    let v = c.value(cx, c.first())?;
    Ok(vec![match v {
        Val::Complex { re, im } => {
            Val::Complex { re: cx.pad(re, before.clone(), after.clone(), value)?, im: cx.pad(im, before, after, 0.0)? }
        }
        other => cx.each(&other, |cx, x| cx.pad(x, before.clone(), after.clone(), value))?,
    }])
}

fn pad(cx: &mut Cx, c: &Call<'_>) -> Vals {
    match c.str("mode")?.as_str() {
        "constant" => {
            let value = c.opt_float("value")?.unwrap_or(0.0);
            pad_constant(cx, c, value)
        }
        "reflect" => pad_by(cx, c, "pad", reflect),
        "replicate" => pad_by(cx, c, "pad", replicate),
        "circular" => circular(cx, c, "pad"),
        other => Err(bad_argument(format!("padding mode `{other}` is not supported"))),
    }
}

type Source = fn(&mut BodyBuilder, ExprId, &Dim) -> ExprId;

/// Padding whose elements come from the tensor: `source` maps a coordinate that may lie outside to one inside.
fn pad_by(cx: &mut Cx, c: &Call<'_>, name: &str, source: Source) -> Vals {
    let rank = c.rank(cx)?;
    let (before, after) = sides(&c.ints(name)?, rank)?;
    each(cx, c, |cx, x| {
        let ty = cx.ty(x).clone();
        let grown = |d: usize| &ty.shape[d] + &Dim::from(before[d] + after[d]);
        let out: Shape = (0..rank).map(grown).collect();
        if out == ty.shape && before.iter().all(|&p| p == 0) {
            return Ok(x);
        }
        cx.compute(out, ty.dtype, &[x], |b, axes| {
            let mut index = axes.to_vec();
            for d in 0..rank {
                if before[d] != 0 || after[d] != 0 {
                    let shift = b.int(before[d]);
                    let at = b.sub(axes[d], shift);
                    let at = source(b, at, &ty.shape[d]);
                    index[d] = b.clamp_index(at, &ty.shape[d]);
                }
            }
            b.load(0, &index)
        })
    })
}

/// What is cropped (by negative sizes) does not come back at the other end.
fn circular(cx: &mut Cx, c: &Call<'_>, name: &str) -> Vals {
    let rank = c.rank(cx)?;
    let (before, after) = sides(&c.ints(name)?, rank)?;
    let crop = |sizes: &[i64]| sizes.iter().map(|&p| p.min(0)).collect::<Vec<_>>();
    let (cropped_before, cropped_after) = (crop(&before), crop(&after));
    each(cx, c, |cx, x| {
        let x = cx.pad(x, cropped_before.clone(), cropped_after.clone(), 0.0)?;
        let ty = cx.ty(x).clone();
        let grown = |d: usize| &ty.shape[d] + &Dim::from(before[d].max(0) + after[d].max(0));
        cx.compute((0..rank).map(grown).collect(), ty.dtype, &[x], |b, axes| {
            let mut index = axes.to_vec();
            for d in (0..rank).filter(|&d| before[d] > 0 || after[d] > 0) {
                let shift = b.int(before[d].max(0));
                let at = b.sub(axes[d], shift);
                let at = wrap_around(b, at, &ty.shape[d]);
                index[d] = b.clamp_index(at, &ty.shape[d]);
            }
            b.load(0, &index)
        })
    })
}

/// Mirrored at the edge elements, which are not repeated.
fn reflect(b: &mut BodyBuilder, i: ExprId, size: &Dim) -> ExprId {
    let far = b.dim(&(&(size + size) - &Dim::from(2)));
    let zero = b.int(0);
    let minus = b.sub(zero, i);
    let folded = b.max(i, minus);
    let back = b.sub(far, folded);
    b.min(folded, back)
}

/// The nearest element; the caller's clamp does it.
fn replicate(_: &mut BodyBuilder, i: ExprId, _: &Dim) -> ExprId {
    i
}

/// From the other end.
fn wrap_around(b: &mut BodyBuilder, i: ExprId, size: &Dim) -> ExprId {
    let (n, zero) = (b.dim(size), b.int(0));
    let (up, down) = (b.add(i, n), b.sub(i, n));
    let (low, high) = (b.lt(i, zero), b.le(n, i));
    let v = b.select(high, down, i);
    b.select(low, up, v)
}
