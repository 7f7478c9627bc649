//! Distinct values: `unique` (sorted) and `unique_consecutive` (in order), with the run that each element belongs to and the runs' lengths.

use super::bounded::Found;
use super::cx::Built;
use super::index::flattened;
use super::long_sort::places_of;
use super::selection::Selected;
use super::{AtenOp, Call, Cx, Diagnostic, Val, unsupported_attribute};
use crate::ir::{DType, Dim, Op, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::{Combine, ScatterMode};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten._unique2.default"], rule: unique },
    AtenOp { names: &["aten.unique_consecutive.default"], rule: unique_consecutive },
];

fn unique(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let flat = flattened(cx, x)?;
    // Bools sort as numbers.
    let dtype = cx.tensor_dtype(flat);
    let keys = if dtype == DType::Bool { cx.cast(flat, DType::I32)? } else { flat };
    let (values, order) = places_of(cx, keys, 0, false, None)?;
    let values = cx.cast(values, dtype)?;
    runs(cx, call, x, values, Some(order))
}

fn unique_consecutive(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    if call.opt_int("dim")?.is_some() {
        return Err(unsupported_attribute(
            "unique-dim",
            format!("{}: `dim` is not supported (only all elements in a row)", call.target),
        ));
    }
    let x = call.tensor(cx, "self")?;
    let flat = flattened(cx, x)?;
    runs(cx, call, x, flat, None)
}

/// The first element of each run of equal ones in `values`, whose positions in the flattened `x` are `order` (or the same).
fn runs(
    cx: &mut Cx,
    call: &Call<'_>,
    x: ValueId,
    values: ValueId,
    order: Option<ValueId>,
) -> Result<Vec<Val>, Diagnostic> {
    let n = cx.size(values, 0);
    let starts = cx.compute(vec![n.clone()], DType::Bool, &[values], |b, axes| {
        let (one, zero) = (b.int(1), b.int(0));
        let before = b.sub(axes[0], one);
        let before = b.max(before, zero);
        let (here, there) = (b.load(0, axes), b.load(0, &[before]));
        let (first, other) = (b.eq(axes[0], zero), b.ne(here, there));
        b.or(first, other)
    })?;
    let selected = Selected::new(cx, call, 0, starts)?;
    let size = selected.found.size.clone();
    let distinct =
        cx.compute(vec![size.clone()], cx.tensor_dtype(values), &[values, selected.positions], |b, axes| {
            let at = b.load(1, axes);
            let at = b.clamp_index(at, &n);
            b.load(0, &[at])
        })?;
    let inverse = match call.bool("return_inverse")? {
        true => inverse(cx, x, starts, order)?,
        false => cx.full_int(vec![Dim::from(0)], DType::I64, 0)?,
    };
    let counts = match call.bool("return_counts")? {
        true => counts(cx, &selected, &n)?,
        false => cx.full_int(vec![Dim::from(0)], DType::I64, 0)?,
    };
    Ok(vec![distinct.into(), inverse.into(), counts.into()])
}

/// The run of each element of `x`.
fn inverse(cx: &mut Cx, x: ValueId, starts: ValueId, order: Option<ValueId>) -> Built {
    let ones = cx.cast(starts, DType::I32)?;
    let upto = cx.add1(Op::Scan { combine: Combine::Sum, dim: 0, skip: 0 }, vec![ones])?;
    let run = cx.map1(upto, |b, s| {
        let one = b.int(1);
        b.sub(s, one)
    })?;
    let run = cx.cast(run, DType::I64)?;
    let run = match order {
        Some(order) => {
            let empty = cx.full_int(cx.shape(run), DType::I64, 0)?;
            cx.add1(Op::Scatter { dims: vec![0], mode: ScatterMode::Set }, vec![empty, order, run])?
        }
        None => run,
    };
    cx.reshape(run, cx.shape(x))
}

/// Length of each run: where the next one starts, less where it starts itself.
fn counts(cx: &mut Cx, selected: &Selected, n: &Dim) -> Built {
    let Found { size, most } = &selected.found;
    cx.compute(vec![size.clone()], DType::I64, &[selected.positions, selected.count], |b, axes| {
        let one = b.int(1);
        let next = b.add(axes[0], one);
        let count = b.load(1, &[]);
        let more = b.lt(next, count);
        let clamped = b.clamp_index(next, most);
        let (start, following, end) = (b.load(0, axes), b.load(0, &[clamped]), b.dim(n));
        let stop = b.select(more, following, end);
        let length = b.sub(stop, start);
        b.cast(Ty::I64, length)
    })
}
