//! `torchvision.roi_align` with a fixed number of samples per bin: bilinear samples of each box, averaged.

use super::norm::accumulator;
use super::taps::windowed_sum;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, unsupported_attribute};
use crate::ir::Dim;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[AtenOp { names: &["torchvision.roi_align.default"], rule: roi_align }];

/// Attributes of one call.
struct Bins {
    scale: f64,
    /// Bins along height and width.
    bins: [i64; 2],
    /// Samples per bin and dimension.
    samples: i64,
    aligned: bool,
}

fn roi_align(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, rois) = (call.tensor(cx, "input")?, call.tensor(cx, "rois")?);
    let bins = Bins {
        scale: call.float("spatial_scale")?,
        bins: [call.int("pooled_height")?, call.int("pooled_width")?],
        samples: call.int("sampling_ratio")?,
        aligned: call.bool("aligned")?,
    };
    if bins.samples < 1 {
        let text = format!("roi_align: sampling_ratio={} is not supported (only 1 or more)", bins.samples);
        return Err(unsupported_attribute(text).with_help("give roi_align a fixed sampling_ratio, such as 2"));
    }
    let (dtype, sizes) = (cx.tensor_dtype(x), [cx.size(x, 2), cx.size(x, 3)]);
    let (images, acc) = (cx.size(x, 0), accumulator(dtype));
    let shape = vec![cx.size(rois, 0), cx.size(x, 1), bins.bins[0].into(), bins.bins[1].into()];
    let n = bins.samples * bins.samples;
    let sum = windowed_sum(cx, &[x, rois], n, acc, shape, |b, axes, k| {
        let width = b.int(bins.samples);
        let sample = [b.div(k, width), b.rem(k, width)];
        let which = b.int(0);
        let image = b.load(1, &[axes[0], which]);
        let image = b.cast(Ty::I32, image);
        let image = b.clamp_index(image, &images);
        let at = [0, 1].map(|d| position(b, &bins, axes, d, sample[d], acc.ty()));
        bilinear(b, [image, axes[1]], at, &sizes, acc.ty())
    })?;
    let mean = cx.scale(sum, 1.0 / n as f64)?;
    Ok(vec![Val::Tensor(cx.cast(mean, dtype)?)])
}

/// Where sample `s` of a bin lies along dimension `d` (0 height, 1 width); boxes are (image, x1, y1, x2, y2).
fn position(b: &mut BodyBuilder, bins: &Bins, axes: &[ExprId], d: usize, s: ExprId, ty: Ty) -> ExprId {
    let corner = |b: &mut BodyBuilder, at: i64| {
        let column = b.int(at);
        let v = b.load(1, &[axes[0], column]);
        let v = b.cast(ty, v);
        let (scale, offset) = (b.lit(ty, bins.scale), b.lit(ty, if bins.aligned { 0.5 } else { 0.0 }));
        let scaled = b.mul(v, scale);
        b.sub(scaled, offset)
    };
    let (start, end) = (corner(b, 2 - d as i64), corner(b, 4 - d as i64));
    let mut len = b.sub(end, start);
    if !bins.aligned {
        let least = b.lit(ty, 1.0);
        len = b.max(len, least);
    }
    let n_bins = b.lit(ty, bins.bins[d] as f64);
    let bin = b.div(len, n_bins);
    let (index, s) = (b.cast(ty, axes[2 + d]), b.cast(ty, s));
    let (half, n) = (b.lit(ty, 0.5), b.lit(ty, bins.samples as f64));
    let from = b.mul(index, bin);
    let from = b.add(start, from);
    let centre = b.add(s, half);
    let inside = b.mul(centre, bin);
    let inside = b.div(inside, n);
    b.add(from, inside)
}

/// Bilinear sample; beyond one element outside it is 0, before that the border's.
fn bilinear(b: &mut BodyBuilder, front: [ExprId; 2], at: [ExprId; 2], sizes: &[Dim; 2], ty: Ty) -> ExprId {
    let mut inside = b.exprs.bool(true);
    let sides = [0, 1].map(|d| {
        let (n, lowest, zero) = (b.dim(&sizes[d]), b.lit(ty, -1.0), b.lit(ty, 0.0));
        let n = b.cast(ty, n);
        let (after, before) = (b.le(lowest, at[d]), b.le(at[d], n));
        let within = b.and(after, before);
        inside = b.and(inside, within);
        let position = b.max(at[d], zero);
        let floor = b.un(Unary::Floor, position);
        let low = b.cast(Ty::I32, floor);
        let last = b.dim(&(&sizes[d] - &Dim::from(1)));
        let beyond = b.le(last, low);
        let low = b.clamp_index(low, &sizes[d]);
        let one = b.int(1);
        let next = b.add(low, one);
        let high = b.clamp_index(next, &sizes[d]);
        let weight = b.sub(position, floor);
        let weight = b.select(beyond, zero, weight);
        let unit = b.lit(ty, 1.0);
        [(low, b.sub(unit, weight)), (high, weight)]
    });
    let mut sum = b.lit(ty, 0.0);
    for (y, wy) in sides[0] {
        for (x, wx) in sides[1] {
            let value = b.load(0, &[front[0], front[1], y, x]);
            let value = b.cast(ty, value);
            let weight = b.mul(wy, wx);
            let term = b.mul(weight, value);
            sum = b.add(sum, term);
        }
    }
    let zero = b.lit(ty, 0.0);
    b.select(inside, sum, zero)
}
