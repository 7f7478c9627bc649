//! `torchvision.roi_align`: bilinear samples of each box, averaged per bin.
//!
//! With `sampling_ratio` 0 or less a bin takes one sample per element that it covers, `⌈bin⌉` along each dimension, so the number depends on
//! the box. Samples more than one element outside the input count as 0, so only those inside have to be visited. They lie at least
//! `bin / (bin + 1)` apart, and a bin longer than the input has samples almost 1 apart: `size + 5` are enough for any box.

use super::norm::accumulator;
use super::taps::windowed_sum;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, unsupported_shape};
use crate::ir::{Dim, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[AtenOp { names: &["torchvision.roi_align.default"], rule: roi_align }];

/// Attributes of one call.
struct Bins {
    scale: f64,
    /// Bins along height and width.
    bins: [i64; 2],
    /// Samples per bin and dimension; 0 for as many as the bin covers elements.
    samples: i64,
    aligned: bool,
}

fn roi_align(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, rois) = (call.tensor(cx, "input")?, call.tensor(cx, "rois")?);
    let bins = Bins {
        scale: call.float("spatial_scale")?,
        bins: [call.int("pooled_height")?, call.int("pooled_width")?],
        samples: call.int("sampling_ratio")?.max(0),
        aligned: call.bool("aligned")?,
    };
    let (dtype, sizes) = (cx.tensor_dtype(x), [cx.size(x, 2), cx.size(x, 3)]);
    let (images, acc) = (cx.size(x, 0), accumulator(dtype));
    let shape = vec![cx.size(rois, 0), cx.size(x, 1), bins.bins[0].into(), bins.bins[1].into()];
    if bins.samples == 0 {
        return adaptive(cx, call, x, rois, &bins);
    }
    let n = bins.samples * bins.samples;
    let sum = windowed_sum(cx, &[x, rois], n, acc, shape, |b, axes, k| {
        let width = b.int(bins.samples);
        let sample = [b.div(k, width), b.rem(k, width)];
        let image = image_of(b, axes, &images);
        let at = [0, 1].map(|d| {
            let (s, n) = (b.cast(acc.ty(), sample[d]), b.lit(acc.ty(), bins.samples as f64));
            Bin::new(b, &bins, axes, d, acc.ty()).sample(b, s, n)
        });
        bilinear(b, [image, axes[1]], at, &sizes, acc.ty())
    })?;
    let mean = cx.scale(sum, 1.0 / n as f64)?;
    Ok(vec![Val::Tensor(cx.cast(mean, dtype)?)])
}

/// As many samples as each bin covers elements.
fn adaptive(cx: &mut Cx, call: &Call<'_>, x: ValueId, rois: ValueId, bins: &Bins) -> Result<Vec<Val>, Diagnostic> {
    let (dtype, sizes) = (cx.tensor_dtype(x), [cx.size(x, 2), cx.size(x, 3)]);
    let (images, acc) = (cx.size(x, 0), accumulator(dtype));
    let literal = |d: &Dim| {
        d.as_const().ok_or_else(|| unsupported_shape(format!("roi_align: samples over the symbolic size {d}")))
    };
    let visited = [literal(&sizes[0])? + MARGIN, literal(&sizes[1])? + MARGIN];
    let shape = vec![cx.size(rois, 0), cx.size(x, 1), bins.bins[0].into(), bins.bins[1].into()];
    cx.b.graph
        .slow
        .push((call.node.name.clone(), format!("{} samples of each bin are looked at", visited[0] * visited[1])));
    let sum = windowed_sum(cx, &[x, rois], visited[0] * visited[1], acc, shape.clone(), |b, axes, k| {
        let width = b.int(visited[1]);
        let steps = [b.div(k, width), b.rem(k, width)];
        let image = image_of(b, axes, &images);
        let samples = [0, 1].map(|d| {
            let bin = Bin::new(b, bins, axes, d, acc.ty());
            bin.sample_inside(b, steps[d])
        });
        let value = bilinear(b, [image, axes[1]], samples.map(|s| s.0), &sizes, acc.ty());
        let (zero, there) = (b.lit(acc.ty(), 0.0), b.and(samples[0].1, samples[1].1));
        b.select(there, value, zero)
    })?;
    let mean = cx.compute(shape, acc, &[sum, rois], |b, axes| {
        let [down, across] = [0, 1].map(|d| Bin::new(b, bins, axes, d, acc.ty()).covered(b));
        let (count, one) = (b.mul(down, across), b.lit(acc.ty(), 1.0));
        let (count, sum) = (b.max(count, one), b.load(0, axes));
        b.div(sum, count)
    })?;
    Ok(vec![Val::Tensor(cx.cast(mean, dtype)?)])
}

/// Samples visited beyond the size of the input.
const MARGIN: i64 = 6;

fn image_of(b: &mut BodyBuilder, axes: &[ExprId], images: &Dim) -> ExprId {
    let which = b.int(0);
    let image = b.load(1, &[axes[0], which]);
    let image = b.cast(Ty::I32, image);
    b.clamp_index(image, images)
}

/// A bin along one dimension, in elements of the input; boxes are operand 1.
struct Bin {
    from: ExprId,
    len: ExprId,
    ty: Ty,
}

impl Bin {
    /// The bin along dimension `d` (0 height, 1 width); boxes are (image, x1, y1, x2, y2).
    fn new(b: &mut BodyBuilder, bins: &Bins, axes: &[ExprId], d: usize, ty: Ty) -> Bin {
        let corner = |b: &mut BodyBuilder, at: i64| {
            let column = b.int(at);
            let v = b.load(1, &[axes[0], column]);
            let v = b.cast(ty, v);
            let (scale, offset) = (b.lit(ty, bins.scale), b.lit(ty, if bins.aligned { 0.5 } else { 0.0 }));
            let scaled = b.mul(v, scale);
            b.sub(scaled, offset)
        };
        let (start, end) = (corner(b, 2 - d as i64), corner(b, 4 - d as i64));
        let mut whole = b.sub(end, start);
        if !bins.aligned {
            let least = b.lit(ty, 1.0);
            whole = b.max(whole, least);
        }
        let n_bins = b.lit(ty, bins.bins[d] as f64);
        let len = b.div(whole, n_bins);
        let index = b.cast(ty, axes[2 + d]);
        let before = b.mul(index, len);
        Bin { from: b.add(start, before), len, ty }
    }

    /// Where sample `s` of `n` lies.
    fn sample(&self, b: &mut BodyBuilder, s: ExprId, n: ExprId) -> ExprId {
        let half = b.lit(self.ty, 0.5);
        let centre = b.add(s, half);
        let inside = b.mul(centre, self.len);
        let inside = b.div(inside, n);
        b.add(self.from, inside)
    }

    /// Elements that it covers: ⌈len⌉.
    fn covered(&self, b: &mut BodyBuilder) -> ExprId {
        b.un(Unary::Ceil, self.len)
    }

    /// The `step`-th of its samples from the first one that is not before the input, and whether there is such a one.
    fn sample_inside(&self, b: &mut BodyBuilder, step: ExprId) -> (ExprId, ExprId) {
        let (n, zero, one) = (self.covered(b), b.lit(self.ty, 0.0), b.lit(self.ty, 1.0));
        // (−1 − from)·n / len − ½ is the sample at −1; one more in front for rounding.
        let minus_one = b.neg(one);
        let ahead = b.sub(minus_one, self.from);
        let scaled = b.mul(ahead, n);
        let scaled = b.div(scaled, self.len);
        let first = b.un(Unary::Floor, scaled);
        let first = b.sub(first, one);
        let first = b.max(first, zero);
        let step = b.cast(self.ty, step);
        let s = b.add(first, step);
        let there = b.lt(s, n);
        (self.sample(b, s, n), there)
    }
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
