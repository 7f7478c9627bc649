//! Sorting and order statistics: `sort`, `argsort`, `topk`, `kthvalue`, `median`, `mode`. Sorts are stable, NaN counts as the largest.

use super::cx::Built;
use super::index::{at_least_1d, flattened};
use super::long_sort::places_of;
use super::{AtenOp, Call, Cx, Diagnostic, Val};
use crate::ir::{DType, Dim, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::Unary;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.sort.default", "aten.sort.stable", "aten.msort.default"], rule: sort },
    AtenOp { names: &["aten.argsort.default", "aten.argsort.stable"], rule: argsort },
    AtenOp { names: &["aten.topk.default"], rule: topk },
    AtenOp { names: &["aten.kthvalue.default"], rule: kthvalue },
    AtenOp { names: &["aten.median.dim"], rule: |cx, call| median_along(cx, call, false) },
    AtenOp { names: &["aten.nanmedian.dim"], rule: |cx, call| median_along(cx, call, true) },
    AtenOp { names: &["aten.median.default"], rule: |cx, call| median_of_all(cx, call, false) },
    AtenOp { names: &["aten.nanmedian.default"], rule: |cx, call| median_of_all(cx, call, true) },
    AtenOp { names: &["aten.mode.default"], rule: mode },
];

fn sort_values(cx: &mut Cx, call: &Call<'_>) -> Result<(ValueId, ValueId), Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let shape = cx.shape(x);
    let flat = at_least_1d(cx, x)?;
    let (dim, descending) = match call.has("dim") {
        true => (call.dim_index("dim", shape.len())?, call.bool("descending")?),
        false => (0, false),
    };
    let (values, at) = places_of(cx, flat, dim, descending, None)?;
    Ok((cx.reshape(values, shape.clone())?, cx.reshape(at, shape)?))
}

fn sort(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (values, at) = sort_values(cx, call)?;
    let both = vec![Val::Tensor(values), Val::Tensor(at)];
    Ok(both.into_iter().take(if call.target.contains("msort") { 1 } else { 2 }).collect())
}

fn argsort(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    Ok(vec![Val::Tensor(sort_values(cx, call)?.1)])
}

/// The first k of a sort; PyTorch leaves their order open when `sorted` is false.
fn topk(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let shape = cx.shape(x);
    let dim = call.dim_index("dim", shape.len())?;
    let flat = at_least_1d(cx, x)?;
    let (values, at) = places_of(cx, flat, dim, call.bool("largest")?, Some(call.dim("k")?))?;
    let of_rank = |v| Ok(Val::Tensor(if shape.is_empty() { cx.reshape(v, vec![])? } else { v }));
    [values, at].into_iter().map(of_rank).collect()
}

/// One element of each sorted row, with the reduced dimension kept or not.
fn picked(cx: &mut Cx, call: &Call<'_>, rank: usize, dim: usize, v: ValueId, at: &Pick) -> Built {
    let kept = match at {
        Pick::Fixed(k) => cx.slice(v, dim, k.clone(), Dim::from(1), 1)?,
        Pick::PerRow(k) => {
            let size = cx.size(v, dim);
            cx.compute(cx.shape(*k), cx.tensor_dtype(v), &[v, *k], |b, axes| {
                let k = b.load(1, axes);
                let mut from = axes.to_vec();
                from[dim] = b.clamp_index(k, &size);
                b.load(0, &from)
            })?
        }
    };
    match (rank, call.bool("keepdim")?) {
        (0, _) => cx.reshape(kept, vec![]),
        (_, true) => Ok(kept),
        (_, false) => cx.squeeze(kept, dim),
    }
}

/// Which element of a sorted row.
enum Pick {
    /// The same in every row.
    Fixed(Dim),
    /// An i32 position per row, the row's dimension kept as size 1.
    PerRow(ValueId),
}

fn kthvalue(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let rank = cx.rank(x);
    let dim = call.dim_index("dim", rank)?;
    let flat = at_least_1d(cx, x)?;
    let k = call.dim("k")?;
    let (values, at) = places_of(cx, flat, dim, false, Some(k.clone()))?;
    let pick = Pick::Fixed(&k - &Dim::from(1));
    let value = picked(cx, call, rank, dim, values, &pick)?;
    Ok(vec![Val::Tensor(value), Val::Tensor(picked(cx, call, rank, dim, at, &pick)?)])
}

/// The lower median of each row of a sort: a NaN if the row has one, or the median of the rest if those are skipped.
fn median_position(cx: &mut Cx, x: ValueId, dim: usize, skip_nan: bool) -> Result<Pick, Diagnostic> {
    let n = cx.size(x, dim);
    let middle = (&n - &Dim::from(1)).floor_div(&Dim::from(2));
    if !cx.tensor_dtype(x).is_float() {
        return Ok(Pick::Fixed(middle));
    }
    let nan = cx.map_n(&[x], DType::I32, |b, a| {
        let nan = b.un(Unary::IsNan, a[0]);
        b.cast(Ty::I32, nan)
    })?;
    let count = cx.reduce(nan, Combine::Sum, &[dim], true, DType::I32)?;
    let at = cx.compute(cx.shape(count), DType::I32, &[count], |b, axes| {
        let (nans, n, zero) = (b.load(0, axes), b.dim(&n), b.int(0));
        let rest = b.sub(n, nans);
        if skip_nan {
            let (one, two) = (b.int(1), b.int(2));
            let last = b.sub(rest, one);
            let last = b.max(last, zero);
            return b.div(last, two);
        }
        let (some, middle) = (b.lt(zero, nans), b.dim(&middle));
        b.select(some, rest, middle)
    })?;
    Ok(Pick::PerRow(at))
}

fn median_along(cx: &mut Cx, call: &Call<'_>, skip_nan: bool) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let rank = cx.rank(x);
    let dim = call.dim_index("dim", rank)?;
    let flat = at_least_1d(cx, x)?;
    let pick = median_position(cx, flat, dim, skip_nan)?;
    let (values, at) = places_of(cx, flat, dim, false, None)?;
    let value = picked(cx, call, rank, dim, values, &pick)?;
    Ok(vec![Val::Tensor(value), Val::Tensor(picked(cx, call, rank, dim, at, &pick)?)])
}

fn median_of_all(cx: &mut Cx, call: &Call<'_>, skip_nan: bool) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let flat = flattened(cx, x)?;
    let pick = median_position(cx, flat, 0, skip_nan)?;
    let (values, _) = places_of(cx, flat, 0, false, None)?;
    let y = match pick {
        Pick::Fixed(k) => cx.slice(values, 0, k, Dim::from(1), 1)?,
        Pick::PerRow(k) => {
            let n = cx.size(values, 0);
            cx.compute(vec![Dim::from(1)], cx.tensor_dtype(x), &[values, k], |b, axes| {
                let k = b.load(1, axes);
                let k = b.clamp_index(k, &n);
                b.load(0, &[k])
            })?
        }
    };
    Ok(vec![Val::Tensor(cx.reshape(y, vec![])?)])
}

/// The most frequent value of each row, the smallest of those that tie, and its last position.
fn mode(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let rank = cx.rank(x);
    let dim = call.dim_index("dim", rank)?;
    // Truth values have no order in kernels; as small integers they have.
    let given = cx.tensor_dtype(x);
    let ordered = if given == DType::Bool { cx.cast(x, DType::U8)? } else { x };
    let flat = at_least_1d(cx, ordered)?;
    let (shape, dtype) = (cx.shape(flat), cx.tensor_dtype(flat));
    let depth = shape.len();
    let mut pairs = shape.clone();
    pairs.push(shape[dim].clone());
    let equal = cx.compute(pairs, DType::I32, &[flat], |b, axes| {
        let mut other = axes[..depth].to_vec();
        other[dim] = axes[depth];
        let (x, y) = (b.load(0, &axes[..depth]), b.load(0, &other));
        let same = b.eq(x, y);
        b.cast(Ty::I32, same)
    })?;
    let count = cx.reduce(equal, Combine::Sum, &[depth], false, DType::I32)?;
    let most = cx.reduce(count, Combine::Max, &[dim], true, DType::I32)?;
    // Values that are not the most frequent give way to one that is: the largest of the row cannot win a minimum it is not in.
    let top = cx.reduce(flat, Combine::Max, &[dim], true, dtype)?;
    let candidates = cx.map_n(&[flat, count, most, top], dtype, |b, a| {
        let frequent = b.eq(a[1], a[2]);
        b.select(frequent, a[0], a[3])
    })?;
    let value = cx.reduce(candidates, Combine::Min, &[dim], true, dtype)?;
    let at = cx.compute(shape, DType::I64, &[flat, value], |b, axes| {
        let mut row = axes.to_vec();
        row[dim] = b.int(0);
        let (x, v) = (b.load(0, axes), b.load(1, &row));
        let (same, none) = (b.eq(x, v), b.lit_int(Ty::I64, -1));
        let here = b.cast(Ty::I64, axes[dim]);
        b.select(same, here, none)
    })?;
    let at = cx.reduce(at, Combine::Max, &[dim], true, DType::I64)?;
    let pick = Pick::Fixed(Dim::from(0));
    let value = picked(cx, call, rank, dim, value, &pick)?;
    let value = cx.cast(value, given)?;
    Ok(vec![Val::Tensor(value), Val::Tensor(picked(cx, call, rank, dim, at, &pick)?)])
}
