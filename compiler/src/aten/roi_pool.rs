//! `torchvision.roi_pool`: each box in bins of whole elements, the largest of each bin and where it is.
//!
//! Where a bin lies depends on data, so every bin looks at the whole image and passes over what is outside. The position is a search of
//! its own for the value that was found: most programs drop it.

use super::norm::accumulator;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val};
use crate::ir::{DType, Dim};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[AtenOp { names: &["torchvision.roi_pool.default"], rule: roi_pool }];

/// Only what is above this counts, as in torchvision; for each element type.
const LOWEST: f64 = -(f32::MAX as f64);

/// Attributes and types of one call.
struct Bins {
    scale: f64,
    /// Bins along height and width.
    bins: [i64; 2],
    /// Height and width of the image.
    sizes: [Dim; 2],
    /// Number of images.
    images: Dim,
    /// Element type of image and boxes, which each step of the arithmetic rounds to.
    dtype: DType,
    ty: Ty,
}

fn roi_pool(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, rois) = (call.tensor(cx, "input")?, call.tensor(cx, "rois")?);
    let dtype = cx.tensor_dtype(x);
    let bins = Bins {
        scale: call.float("spatial_scale")?,
        bins: [call.int("pooled_height")?, call.int("pooled_width")?],
        sizes: [cx.size(x, 2), cx.size(x, 3)],
        images: cx.size(x, 0),
        dtype,
        ty: accumulator(dtype).ty(),
    };
    let text = "each bin of roi_pool looks at the whole image: where it lies depends on data";
    cx.b.graph.slow.push((call.node.name.clone(), text.to_string()));
    let pooled = vec![cx.size(rois, 0), cx.size(x, 1), bins.bins[0].into(), bins.bins[1].into()];
    let whole: Vec<Dim> = pooled.iter().chain(&bins.sizes).cloned().collect();
    let values = cx.compute(whole.clone(), dtype, &[x, rois], |b, axes| {
        let (value, inside) = (element(b, &bins, axes), in_bin(b, &bins, axes));
        let lowest = b.like(value, LOWEST);
        let above = b.lt(lowest, value);
        let counts = b.and(inside, above);
        b.select(counts, value, lowest)
    })?;
    let best = cx.reduce(values, Combine::Max, &[4, 5], false, dtype)?;
    let output = cx.compute(pooled, dtype, &[best, rois], |b, axes| {
        let best = b.load(0, axes);
        let (zero, empty) = (b.like(best, 0.0), is_empty(b, &bins, axes));
        b.select(empty, zero, best)
    })?;
    let places = cx.compute(whole, DType::I32, &[x, rois, best], |b, axes| {
        let (value, inside) = (element(b, &bins, axes), in_bin(b, &bins, axes));
        let best = b.load(2, &axes[..4]);
        let (lowest, same) = (b.like(best, LOWEST), b.eq(value, best));
        let above = b.lt(lowest, value);
        let counts = b.and(inside, same);
        let counts = b.and(counts, above);
        let width = b.dim(&bins.sizes[1]);
        let row = b.mul(axes[4], width);
        let (at, none) = (b.add(row, axes[5]), b.int(NOWHERE));
        b.select(counts, at, none)
    })?;
    let first = cx.reduce(places, Combine::Min, &[4, 5], false, DType::I32)?;
    let at = cx.map1(first, |b, first| {
        let (nowhere, none) = (b.int(NOWHERE), b.int(-1));
        let missing = b.eq(first, nowhere);
        b.select(missing, none, first)
    })?;
    Ok(vec![output.into(), at.into()])
}

/// A position after all others.
const NOWHERE: i64 = i32::MAX as i64;

/// The element of the box's image at (.., channel, .., .., y, x).
fn element(b: &mut BodyBuilder, bins: &Bins, axes: &[ExprId]) -> ExprId {
    let which = b.int(0);
    let image = b.load(1, &[axes[0], which]);
    let image = b.cast(Ty::I32, image);
    let image = b.clamp_index(image, &bins.images);
    b.load(0, &[image, axes[1], axes[4], axes[5]])
}

/// Whether the element is one of the bin's.
fn in_bin(b: &mut BodyBuilder, bins: &Bins, axes: &[ExprId]) -> ExprId {
    let [rows, columns] = [0, 1].map(|d| {
        let (from, to) = limits(b, bins, axes, d);
        let (after, before) = (b.le(from, axes[4 + d]), b.lt(axes[4 + d], to));
        b.and(after, before)
    });
    b.and(rows, columns)
}

/// Whether a bin holds no element of the image.
fn is_empty(b: &mut BodyBuilder, bins: &Bins, axes: &[ExprId]) -> ExprId {
    let [rows, columns] = [0, 1].map(|d| {
        let (from, to) = limits(b, bins, axes, d);
        let (zero, size) = (b.int(0), b.dim(&bins.sizes[d]));
        let (from, to) = (b.max(from, zero), b.min(to, size));
        b.le(to, from)
    });
    b.or(rows, columns)
}

/// First element of a bin along dimension `d` (0 height, 1 width), and the one after its last; boxes are (image, x1, y1, x2, y2).
fn limits(b: &mut BodyBuilder, bins: &Bins, axes: &[ExprId], d: usize) -> (ExprId, ExprId) {
    let [start, end] = [2 - d as i64, 4 - d as i64].map(|column| {
        let column = b.int(column);
        let v = b.load(1, &[axes[0], column]);
        let (v, scale) = (b.cast(bins.ty, v), b.lit(bins.ty, bins.scale));
        let scaled = b.mul(v, scale);
        let scaled = b.round_to(bins.dtype, scaled);
        half_away(b, scaled)
    });
    let (len, one) = (b.sub(end, start), b.int(1));
    let len = b.add(len, one);
    let len = b.max(len, one);
    let (len, n) = (b.cast(bins.ty, len), b.lit(bins.ty, bins.bins[d] as f64));
    let bin = b.div(len, n);
    let bin = b.round_to(bins.dtype, bin);
    let next = b.add(axes[2 + d], one);
    let [from, to] = [(axes[2 + d], Unary::Floor), (next, Unary::Ceil)].map(|(index, op)| {
        let index = b.cast(bins.ty, index);
        let edge = b.mul(index, bin);
        let edge = b.round_to(bins.dtype, edge);
        let edge = b.un(op, edge);
        let edge = b.cast(Ty::I32, edge);
        b.add(edge, start)
    });
    (from, to)
}

/// The nearest integer, halves away from zero, as C rounds.
fn half_away(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let whole = b.un(Unary::Trunc, x);
    let (rest, half, minus_half) = (b.sub(x, whole), b.like(x, 0.5), b.like(x, -0.5));
    let (up, down) = (b.le(half, rest), b.le(rest, minus_half));
    let (whole, up, down) = (b.cast(Ty::I32, whole), b.cast(Ty::I32, up), b.cast(Ty::I32, down));
    let sum = b.add(whole, up);
    b.sub(sum, down)
}
