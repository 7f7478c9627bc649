//! Elements put at positions: combinations, padded sequences, strided and diagonal writes, unpooling, positions of non-zeros.

use super::args::Call;
use super::arrange::join;
use super::complex::common_parts;
use super::cx::{Built, Cx};
use super::view::{each, shape_of};
use super::{AtenOp, Val, bad_argument, unsupported_shape};
use crate::ir::op::Op;
use crate::ir::{DType, Dim, Shape, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::{Combine, ScatterMode};

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.cartesian_prod.default"], rule: cartesian_product },
    AtenOp { names: &["aten.combinations.default"], rule: combinations },
    AtenOp { names: &["aten.pad_sequence.default"], rule: pad_sequence },
    AtenOp { names: &["aten._chunk_cat.default"], rule: chunk_cat },
    AtenOp { names: &["aten.as_strided_scatter.default"], rule: as_strided_scatter },
    AtenOp { names: &["aten.fill_diagonal.default"], rule: fill_diagonal },
    AtenOp { names: &["aten.max_unpool2d.default"], rule: |cx, c| unpool(cx, c, 2) },
    AtenOp { names: &["aten.max_unpool3d.default"], rule: |cx, c| unpool(cx, c, 3) },
    AtenOp { names: &["aten.nonzero_static.default"], rule: nonzero_static },
    AtenOp { names: &["aten.narrow.Tensor"], rule: narrow_at },
];

/// All tuples of one element of each vector, the last varying fastest.
fn cartesian_product(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let values = c.values(cx, "tensors")?;
    if let [one] = values.as_slice() {
        return Ok(vec![one.clone()]);
    }
    join(cx, &values, |cx, parts| {
        let shape: Shape = parts.iter().map(|&p| cx.ty(p).n_elems()).collect();
        let total = shape.iter().fold(Dim::from(1), |p, d| &p * d);
        let mut columns = vec![];
        for (d, &p) in parts.iter().enumerate() {
            let mut line = vec![Dim::from(1); parts.len()];
            line[d] = shape[d].clone();
            let line = cx.reshape(p, line)?;
            let grid = cx.broadcast_to(line, &shape)?;
            columns.push(cx.reshape(grid, vec![total.clone()])?);
        }
        cx.stack(&columns, 1)
    })
}

/// The r-element subsets of a vector, in order of position. An export may name their number, which is known, by a symbol.
fn combinations(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (r, repeat) = (c.int("r")?.max(0) as usize, c.bool("with_replacement")?);
    let v = c.value(cx, "self")?;
    let n = match &v {
        Val::Tensor(x) | Val::Complex { re: x, .. } => cx.size(*x, 0),
        _ => return Err(bad_argument("combinations of a number")),
    };
    let n = n.as_const().ok_or_else(|| unsupported_shape("combinations of a symbolic size"))?;
    let mut rows: Vec<Vec<i64>> = vec![vec![]];
    for _ in 0..r {
        let longer = |row: &Vec<i64>| {
            let first = row.last().map_or(0, |&l| if repeat { l } else { l + 1 });
            (first..n).map(|i| [row.as_slice(), &[i]].concat()).collect::<Vec<_>>()
        };
        rows = rows.iter().flat_map(longer).collect();
    }
    let known = Dim::from(rows.len() as i64);
    let recorded = c.meta(0).and_then(|m| m.sizes.first()).is_some_and(|s| s.as_const().is_none());
    let size = if recorded {
        let found = cx.found_size(c, 0, Some(&known))?;
        let count = cx.dim_tensor(&known, DType::I32)?;
        cx.bind(&found, count)?;
        found.size
    } else {
        known
    };
    let index = cx.const_i64(&rows.concat(), &[rows.len() as i64, r as i64])?;
    let index = cx.slice(index, 0, Dim::from(0), size.clone(), 1)?;
    Ok(vec![cx.each(&v, |cx, x| {
        let (dtype, count) = (cx.tensor_dtype(x), Dim::from(n));
        cx.compute(vec![size.clone(), Dim::from(r as i64)], dtype, &[x, index], |b, axes| {
            let i = b.load(1, axes);
            let i = b.wrap_index(i, &count);
            b.load(0, &[i])
        })
    })?])
}

/// Tensors of different first sizes, padded to the longest and stacked.
fn pad_sequence(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let values = c.values(cx, "sequences")?;
    let (batch_first, value) = (c.bool("batch_first")?, c.float("padding_value")?);
    let left = c.has("padding_side") && c.str("padding_side")? == "left";
    let mut lengths = vec![];
    for v in &values {
        let first = shape_of(cx, v)?.first().and_then(Dim::as_const);
        lengths.push(first.ok_or_else(|| unsupported_shape("a sequence of symbolic length"))?);
    }
    let longest = lengths.iter().copied().max().unwrap_or(0);
    join(cx, &values, |cx, parts| {
        let mut padded = vec![];
        for (&p, &n) in parts.iter().zip(&lengths) {
            let (mut before, mut after) = (vec![0; cx.rank(p)], vec![0; cx.rank(p)]);
            let side = if left { &mut before } else { &mut after };
            side[0] = longest - n;
            padded.push(cx.pad(p, before, after, value)?);
        }
        cx.stack(&padded, usize::from(!batch_first))
    })
}

/// Each tensor cut in n chunks along a dimension (zeros fill the last), the rest of it flattened; chunks side by side.
fn chunk_cat(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let values = c.values(cx, "tensors")?;
    let n = c.int("num_chunks")?.max(1);
    let rank = values.first().map_or(Ok(0), |v| shape_of(cx, v).map(|s| s.len()))?;
    let dim = c.dim_index("dim", rank)?;
    join(cx, &values, |cx, parts| {
        let mut rows = vec![];
        for &p in parts {
            let shape = cx.shape(p);
            let size = shape[dim].as_const().ok_or_else(|| unsupported_shape("_chunk_cat of a symbolic size"))?;
            let (before, mut after) = (vec![0; shape.len()], vec![0; shape.len()]);
            after[dim] = (n - size % n) % n;
            let padded = cx.pad(p, before, after, 0.0)?;
            let mut flat = shape[..dim].to_vec();
            let lead = flat.iter().fold(Dim::from(n), |p, d| &p * d);
            flat.push(Dim::from(n));
            flat.push(cx.ty(padded).n_elems().floor_div(&lead));
            rows.push(cx.reshape(padded, flat)?);
        }
        cx.concat(&rows, dim + 1)
    })
}

/// Writes the source at strided positions of a contiguous tensor.
fn as_strided_scatter(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (base, src) = (c.value(cx, "self")?, c.value(cx, "src")?);
    let (size, stride, offset) = (c.dims("size")?, c.ints("stride")?, c.opt_int("storage_offset")?.unwrap_or(0));
    let positions = cx.compute(size, DType::I64, &[], |b, axes| {
        let mut at = b.lit_int(Ty::I64, offset);
        for (axis, &s) in axes.iter().zip(&stride) {
            let (axis, s) = (b.cast(Ty::I64, *axis), b.lit_int(Ty::I64, s));
            let step = b.mul(axis, s);
            at = b.add(at, step);
        }
        at
    })?;
    let (re, im) = common_parts(cx, &[base, src])?;
    let re = write_at(cx, &re, positions)?;
    Ok(vec![match im {
        Some(im) => Val::Complex { re, im: write_at(cx, &im, positions)? },
        None => re.into(),
    }])
}

/// (base, source) → base with the source at flat positions.
fn write_at(cx: &mut Cx, parts: &[ValueId], positions: ValueId) -> Built {
    let shape = cx.shape(parts[0]);
    let (n, total) = (cx.ty(positions).n_elems(), cx.ty(parts[0]).n_elems());
    let (at, src) = (cx.reshape(positions, vec![n.clone()])?, cx.reshape(parts[1], vec![n])?);
    let flat = cx.reshape(parts[0], vec![total])?;
    let out = cx.add1(Op::Scatter { dims: vec![0], mode: ScatterMode::Set }, vec![flat, at, src])?;
    cx.reshape(out, shape)
}

/// A number on the main diagonal; of a tall matrix also on its repetitions, if asked for.
fn fill_diagonal(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let (value, wrap) = (c.scalar("fill_value")?, c.bool("wrap")?);
    let ty = cx.ty(x).clone();
    if ty.rank() < 2 {
        return Err(bad_argument("fill_diagonal of less than two dimensions"));
    }
    let out = cx.compute(ty.shape.clone(), ty.dtype, &[x], |b, axes| {
        let mut row = axes[0];
        if wrap && ty.rank() == 2 {
            let period = b.dim(&(&ty.shape[1] + &Dim::from(1)));
            row = b.floor_mod(row, period);
        }
        let mut on = b.eq(row, axes[1]);
        for &axis in &axes[2..] {
            let same = b.eq(row, axis);
            on = b.and(on, same);
        }
        let (kept, v) = (b.load(0, axes), super::promote::number_expr(b, &value, ty.dtype.ty()));
        b.select(on, v, kept)
    })?;
    Ok(vec![out.into()])
}

/// Values at their flat positions in planes of zeros.
fn unpool(cx: &mut Cx, c: &Call<'_>, spatial: usize) -> Vals {
    let (x, at) = (c.tensor(cx, "self")?, c.tensor(cx, "indices")?);
    let shape = cx.shape(x);
    let Some(lead) = shape.len().checked_sub(spatial) else {
        return Err(bad_argument("unpooling of too few dimensions"));
    };
    let size = c.dims("output_size")?;
    let product = |dims: &[Dim]| dims.iter().fold(Dim::from(1), |p, d| &p * d);
    let (planes, n, room) = (product(&shape[..lead]), product(&shape[lead..]), product(&size));
    let (x, at) = (cx.reshape(x, vec![planes.clone(), n.clone()])?, cx.reshape(at, vec![planes.clone(), n])?);
    let dtype = cx.tensor_dtype(x);
    let zeros = cx.full(vec![planes, room], dtype, 0.0)?;
    let out = cx.add1(Op::Scatter { dims: vec![1], mode: ScatterMode::Set }, vec![zeros, at, x])?;
    let mut full = shape[..lead].to_vec();
    full.extend(size);
    Ok(vec![cx.reshape(out, full)?.into()])
}

/// Coordinates of the first `size` non-zeros in row-major order; the rest is filled.
fn nonzero_static(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let (size, fill) = (c.int("size")?, c.int("fill_value")?);
    let shape = cx.shape(x);
    if shape.is_empty() {
        return Ok(vec![cx.full_int(vec![Dim::from(size), Dim::from(0)], DType::I64, 0)?.into()]);
    }
    let n = cx.ty(x).n_elems();
    let flat = cx.reshape(x, vec![n.clone()])?;
    let set = cx.map_n(&[flat], DType::I64, |b, a| {
        let zero = b.like(a[0], 0.0);
        let on = b.ne(a[0], zero);
        b.cast(Ty::I64, on)
    })?;
    let count = cx.add(Op::Scan { combine: Combine::Sum, dim: 0, skip: 0 }, vec![set])?[0];
    // The k-th non-zero writes its position at k; zeros write at −1, which is nowhere.
    let place = cx.map2(set, count, DType::I64, |b, s, k| {
        let p = b.mul(s, k);
        let one = b.like(p, 1.0);
        b.sub(p, one)
    })?;
    let own = cx.iota(n)?;
    let none = cx.full_int(vec![Dim::from(size)], DType::I64, -1)?;
    let found = cx.add1(Op::Scatter { dims: vec![0], mode: ScatterMode::Set }, vec![none, place, own])?;
    let mut columns = vec![];
    let mut after = Dim::from(1);
    for d in shape.iter().rev() {
        columns.insert(0, coordinate(cx, found, &after, d, fill)?);
        after = &after * d;
    }
    Ok(vec![cx.stack(&columns, 1)?.into()])
}

/// `(position / after) mod size`, or the fill where the position is −1.
fn coordinate(cx: &mut Cx, positions: ValueId, after: &Dim, size: &Dim, fill: i64) -> Built {
    cx.map1(positions, |b, p| {
        let (by, n) = (b.dim(after), b.dim(size));
        let (by, n) = (b.cast(Ty::I64, by), b.cast(Ty::I64, n));
        let q = b.div(p, by);
        let r = b.rem(q, n);
        let (zero, fill) = (b.like(p, 0.0), b.lit_int(Ty::I64, fill));
        let missing = b.lt(p, zero);
        b.select(missing, fill, r)
    })
}

/// A slice whose first index is data.
fn narrow_at(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let start = c.tensor(cx, "start")?;
    let start = cx.reshape(start, vec![])?;
    let (rank, len) = (c.rank(cx)?, c.dim("length")?);
    let dim = c.dim_index("dim", rank)?;
    each(cx, c, |cx, x| {
        let ty = cx.ty(x).clone();
        let mut out = ty.shape.clone();
        out[dim] = len.clone();
        cx.compute(out, ty.dtype, &[x, start], |b, axes| {
            let first = b.load(1, &[]);
            let first = b.wrap_index(first, &ty.shape[dim]);
            let at = b.add(first, axes[dim]);
            let mut index = axes.to_vec();
            index[dim] = b.clamp_index(at, &ty.shape[dim]);
            b.load(0, &index)
        })
    })
}
