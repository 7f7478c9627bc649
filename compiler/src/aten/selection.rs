//! Selection by a mask: `x[mask]`, `masked_select`, `nonzero`. The data decide the size of the result: [`super::bounded`].

use super::bounded::Found;
use super::cx::Built;
use super::index::flattened;
use super::scatter::ordinals;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, unsupported_attribute};
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
pub(super) struct Selected {
    /// i32, as many as there can be: row-major positions in the mask of its true elements; 0 behind the last.
    pub(super) positions: ValueId,
    /// i32 scalar.
    pub(super) count: ValueId,
    /// How many there are.
    pub(super) found: Found,
    /// Shape of the mask.
    shape: Shape,
}

impl Selected {
    /// The true elements, as many as dimension `dim` of the call's result is long.
    pub(super) fn new(cx: &mut Cx, call: &Call<'_>, dim: usize, mask: ValueId) -> Result<Selected, Diagnostic> {
        let selected = Selected::unbound(cx, call, dim, mask)?;
        cx.bind(&selected.found, selected.count)?;
        Ok(selected)
    }

    /// As [`Selected::new`], with the count still to be bound.
    pub(super) fn unbound(cx: &mut Cx, call: &Call<'_>, dim: usize, mask: ValueId) -> Result<Selected, Diagnostic> {
        let (shape, natural) = (cx.shape(mask), cx.ty(mask).n_elems());
        let found = cx.found_size(call, dim, Some(&natural))?;
        let bound = &found.most;
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
        let ones = cx.cast(mask, DType::I32)?;
        let count = cx.reduce(ones, Combine::Sum, &[0], false, DType::I32)?;
        Ok(Selected { positions, count, found, shape })
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

/// `x[…, mask, …]` with the mask over dimensions `at ..`.
pub(super) fn select(cx: &mut Cx, call: &Call<'_>, x: &Val, at: usize, mask: ValueId) -> Result<Val, Diagnostic> {
    let selected = Selected::new(cx, call, at, mask)?;
    let covered = selected.shape.len();
    cx.each(x, |cx, x| {
        let mut shape = cx.shape(x);
        shape.splice(at..at + covered, [selected.found.size.clone()]);
        cx.compute(shape, cx.tensor_dtype(x), &[x, selected.positions], |b, axes| {
            let mut from = axes[..at].to_vec();
            from.extend(selected.coordinates(b, 1, axes[at]));
            from.extend(&axes[at + 1..]);
            b.load(0, &from)
        })
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
        _ => Err(unsupported_attribute(
            "mask-beside-indices",
            format!("{}: a mask beside other indices is not supported", call.target),
        )),
    }
}

fn masked_select(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, mask) = (call.tensor(cx, "self")?, call.tensor(cx, "mask")?);
    let shape = cx.broadcast_shape(&[x, mask])?;
    let (x, mask) = (cx.broadcast_to(x, &shape)?, cx.broadcast_to(mask, &shape)?);
    let (x, mask) = (flattened(cx, x)?, flattened(cx, mask)?);
    // Torch's tracing bounds the count by the elements of `self` before it broadcasts.
    let recorded = call.meta(0).and_then(|m| m.sizes.first()).map(Dim::symbols).unwrap_or_default();
    if let ([symbol], Some(most)) = (&recorded[..], cx.size(x, 0).as_const())
        && let Some(range) = cx.ranges.get_mut(symbol)
    {
        range.max = range.max.max(most);
    }
    Ok(vec![select(cx, call, &Val::Tensor(x), 0, mask)?])
}

/// Coordinate `d` of every element that is not 0.
fn column(cx: &mut Cx, selected: &Selected, d: usize) -> Built {
    cx.compute(vec![selected.found.size.clone()], DType::I64, &[selected.positions], |b, axes| {
        let at = selected.coordinates(b, 0, axes[0]);
        b.cast(Ty::I64, at[d])
    })
}

fn nonzero(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let selected = Selected::new(cx, call, 0, x)?;
    let rank = selected.shape.len();
    let shape = vec![selected.found.size.clone(), Dim::from(rank as i64)];
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
    Ok(vec![Val::Tensor(y)])
}

fn nonzero_columns(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let name = if call.has("condition") { "condition" } else { "self" };
    let x = call.tensor(cx, name)?;
    let selected = Selected::new(cx, call, 0, x)?;
    let columns = (0..selected.shape.len()).map(|d| Ok(Val::Tensor(column(cx, &selected, d)?)));
    Ok(vec![Val::List(columns.collect::<Result<_, Diagnostic>>()?)])
}
