//! Selection by a mask: `x[mask]`, `masked_select`, `nonzero`. The result has the upper bound that the export gives as its size, the
//! selected elements stand first, and [`super::bounded`] carries how many there are.

use super::bounded::Bounded;
use super::cx::Built;
use super::index::flattened;
use super::scatter::ordinals;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, unsupported_attribute, unsupported_shape};
use crate::ir::{DType, Dim, Op, Shape, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::ExprId;
use jvc_kernels::spec::{Combine, ScatterMode};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.nonzero.default", "aten.argwhere.default"], rule: nonzero },
    AtenOp { names: &["aten.nonzero_numpy.default", "aten.where.default"], rule: nonzero_columns },
    AtenOp { names: &["aten.masked_select.default"], rule: masked_select },
];

/// Where the true elements of a mask are.
struct Selected {
    /// i32, `bound` of them: row-major positions in the mask of its true elements; 0 behind the last.
    positions: ValueId,
    /// i64 scalar.
    count: ValueId,
    /// Shape of the mask.
    shape: Shape,
}

impl Selected {
    fn new(cx: &mut Cx, mask: ValueId, bound: &Dim) -> Result<Selected, Diagnostic> {
        let shape = cx.shape(mask);
        let mask = cx.cast(mask, DType::Bool)?;
        let before = ordinals(cx, mask)?;
        let (mask, before) = (flattened(cx, mask)?, flattened(cx, before)?);
        // Positions of false elements lie behind the table and write nothing.
        let slots = cx.compute(cx.shape(mask), DType::I64, &[mask, before], |b, axes| {
            let (here, k, beyond) = (b.load(0, axes), b.load(1, axes), b.dim(bound));
            let slot = b.select(here, k, beyond);
            b.cast(Ty::I64, slot)
        })?;
        let places = cx.compute(cx.shape(mask), DType::I32, &[], |_, axes| axes[0])?;
        let empty = cx.full_int(vec![bound.clone()], DType::I32, 0)?;
        let write = Op::Scatter { dims: vec![0], mode: ScatterMode::Set };
        let positions = cx.add1(write, vec![empty, slots, places])?;
        let ones = cx.cast(mask, DType::I64)?;
        let count = cx.reduce(ones, Combine::Sum, &[0], false, DType::I64)?;
        Ok(Selected { positions, count, shape })
    }

    /// Coordinates in the mask of the k-th true element; the positions are operand `operand`.
    fn coordinates(&self, b: &mut BodyBuilder, operand: usize, k: ExprId) -> Vec<ExprId> {
        let mut rest = b.load(operand, &[k]);
        let mut at = vec![];
        for size in self.shape.iter().rev() {
            let n = b.dim(size);
            let c = b.rem(rest, n);
            at.insert(0, b.clamp_index(c, size));
            rest = b.div(rest, n);
        }
        at
    }
}

/// The size that the export records for a dimension of the result, which must have been bounded.
fn recorded_bound(call: &Call<'_>, dim: usize) -> Result<Dim, Diagnostic> {
    let size = call.meta(0).and_then(|m| m.sizes.get(dim)).cloned();
    size.filter(|d| d.as_const().is_some()).ok_or_else(|| {
        unsupported_shape(format!("{}: the size of its result depends on data and has no upper bound", call.target))
            .with_help("give one with --bound u0=N, or write it with a mask of fixed size")
    })
}

/// `x[…, mask, …]` with the mask over dimensions `at ..`.
pub(super) fn select(cx: &mut Cx, call: &Call<'_>, x: &Val, at: usize, mask: ValueId) -> Result<Val, Diagnostic> {
    let bound = recorded_bound(call, at)?;
    let selected = Selected::new(cx, mask, &bound)?;
    let covered = selected.shape.len();
    cx.each(x, |cx, x| {
        let mut shape = cx.shape(x);
        shape.splice(at..at + covered, [bound.clone()]);
        let y = cx.compute(shape, cx.tensor_dtype(x), &[x, selected.positions], |b, axes| {
            let mut from = axes[..at].to_vec();
            from.extend(selected.coordinates(b, 1, axes[at]));
            from.extend(&axes[at + 1..]);
            b.load(0, &from)
        })?;
        cx.bounded.insert(y, Bounded { dim: at, count: selected.count });
        Ok(y)
    })
}

/// The only index of a list, if it is a mask.
///
/// # Errors
/// When a mask stands beside other indices.
pub(super) fn only_mask(
    cx: &Cx,
    call: &Call<'_>,
    given: &[Option<ValueId>],
) -> Result<Option<(usize, ValueId)>, Diagnostic> {
    let is_mask = |v: ValueId| matches!(cx.tensor_dtype(v), DType::Bool | DType::U8);
    let present: Vec<(usize, ValueId)> = given.iter().enumerate().filter_map(|(d, v)| v.map(|v| (d, v))).collect();
    match present[..] {
        _ if !present.iter().any(|&(_, v)| is_mask(v)) => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(unsupported_attribute(format!("{}: a mask beside other indices is not supported", call.target))),
    }
}

fn masked_select(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, mask) = (call.tensor(cx, "self")?, call.tensor(cx, "mask")?);
    let shape = cx.broadcast_shape(&[x, mask])?;
    let (x, mask) = (cx.broadcast_to(x, &shape)?, cx.broadcast_to(mask, &shape)?);
    let (x, mask) = (flattened(cx, x)?, flattened(cx, mask)?);
    Ok(vec![select(cx, call, &Val::Tensor(x), 0, mask)?])
}

/// Coordinate `d` of every element that is not 0.
fn column(cx: &mut Cx, selected: &Selected, bound: &Dim, d: usize) -> Built {
    let y = cx.compute(vec![bound.clone()], DType::I64, &[selected.positions], |b, axes| {
        let at = selected.coordinates(b, 0, axes[0]);
        b.cast(Ty::I64, at[d])
    })?;
    cx.bounded.insert(y, Bounded { dim: 0, count: selected.count });
    Ok(y)
}

fn nonzero(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let bound = recorded_bound(call, 0)?;
    let selected = Selected::new(cx, x, &bound)?;
    let rank = selected.shape.len();
    let shape = vec![bound, Dim::from(rank as i64)];
    let y = cx.compute(shape, DType::I64, &[selected.positions], |b, axes| {
        let at = selected.coordinates(b, 0, axes[0]);
        let mut root = at.first().copied().unwrap_or_else(|| b.int(0));
        for (d, &c) in at.iter().enumerate().skip(1) {
            let d = b.int(d as i64);
            let here = b.eq(axes[1], d);
            root = b.select(here, c, root);
        }
        b.cast(Ty::I64, root)
    })?;
    cx.bounded.insert(y, Bounded { dim: 0, count: selected.count });
    Ok(vec![Val::Tensor(y)])
}

fn nonzero_columns(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let name = if call.has("condition") { "condition" } else { "self" };
    let x = call.tensor(cx, name)?;
    let bound = recorded_bound(call, 0)?;
    let selected = Selected::new(cx, x, &bound)?;
    let columns = (0..selected.shape.len()).map(|d| Ok(Val::Tensor(column(cx, &selected, &bound, d)?)));
    Ok(vec![Val::List(columns.collect::<Result<_, Diagnostic>>()?)])
}
