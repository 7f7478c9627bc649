//! `grid_sampler`: sampling at positions from data, 2-D and 3-D, all interpolations, paddings and corner conventions; and the grids of
//! affine maps.

use super::cx::Built;
use super::interpolate::cubic_weights;
use super::norm::accumulator;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::{DType, Dim, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Unary};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &["aten.grid_sampler.default", "aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default"],
        rule: grid_sampler,
    },
    AtenOp { names: &["aten.affine_grid_generator.default"], rule: affine_grid },
];

/// What lies outside the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// How positions map to elements.
#[derive(Debug, Clone, Copy)]
struct Sampling {
    padding: Padding,
    align: bool,
    /// Type of positions and weights.
    ty: Ty,
}

/// An element to read: index, and whether it lies inside.
type Point = (ExprId, ExprId);

impl Sampling {
    /// −1 … 1 → element positions. Aligned: ±1 are the centres of the corner elements, else their outer edges.
    fn position(self, b: &mut BodyBuilder, x: ExprId, size: &Dim) -> ExprId {
        let n = b.dim(size);
        let n = b.cast(self.ty, n);
        let (one, half) = (b.lit(self.ty, 1.0), b.lit(self.ty, 0.5));
        let shifted = b.add(x, one);
        if self.align {
            let span = b.sub(n, one);
            let scaled = b.mul(shifted, half);
            return b.mul(scaled, span);
        }
        let scaled = b.mul(shifted, n);
        let less = b.sub(scaled, one);
        b.mul(less, half)
    }

    /// The position after padding: limited, or reflected and limited. NaN becomes an element inside.
    fn padded(self, b: &mut BodyBuilder, x: ExprId, size: &Dim) -> ExprId {
        match self.padding {
            Padding::Zeros => x,
            Padding::Border => self.limited(b, x, size),
            Padding::Reflection => {
                let reflected = self.reflected(b, x, size);
                self.limited(b, reflected, size)
            }
        }
    }

    fn limited(self, b: &mut BodyBuilder, x: ExprId, size: &Dim) -> ExprId {
        let last = b.dim(&(size - &Dim::from(1)));
        let last = b.cast(self.ty, last);
        let zero = b.lit(self.ty, 0.0);
        // Selects instead of max and min: PyTorch's clip turns NaN into 0.
        let positive = b.lt(zero, x);
        let low = b.select(positive, x, zero);
        let below = b.lt(low, last);
        b.select(below, low, last)
    }

    /// Reflection at the centres of the border elements (aligned) or at their outer edges.
    fn reflected(self, b: &mut BodyBuilder, x: ExprId, size: &Dim) -> ExprId {
        let ty = self.ty;
        let n = b.dim(size);
        let n = b.cast(ty, n);
        let (zero, one) = (b.lit(ty, 0.0), b.lit(ty, 1.0));
        let low = b.lit(ty, if self.align { 0.0 } else { -0.5 });
        let span = if self.align { b.sub(n, one) } else { n };
        let from = b.sub(x, low);
        let from = b.un(Unary::Abs, from);
        // A single element with aligned corners has no span: everything reflects to it.
        let flat = b.le(span, zero);
        let divisor = b.select(flat, one, span);
        let extra = b.bin(Binary::Rem, from, divisor);
        let ratio = b.div(from, divisor);
        let flips = b.un(Unary::Floor, ratio);
        let two = b.lit(ty, 2.0);
        let parity = b.bin(Binary::Rem, flips, two);
        let even = b.eq(parity, zero);
        let there = b.add(extra, low);
        let back = b.sub(span, extra);
        let back = b.add(back, low);
        let y = b.select(even, there, back);
        b.select(flat, zero, y)
    }

    /// The element at a whole position (a float).
    fn point(self, b: &mut BodyBuilder, x: ExprId, size: &Dim) -> Point {
        let i = b.cast(Ty::I32, x);
        let inside = b.in_range(i, size);
        (b.clamp_index(i, size), inside)
    }
}

fn grid_sampler(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, grid) = (call.tensor(cx, "input")?, call.tensor(cx, "grid")?);
    let padding = match call.int("padding_mode")? {
        0 => Padding::Zeros,
        1 => Padding::Border,
        2 => Padding::Reflection,
        m => return Err(bad_argument(format!("padding_mode={m} of grid_sampler"))),
    };
    let ty = accumulator(cx.tensor_dtype(x)).ty();
    let sampling = Sampling { padding, align: call.bool("align_corners")?, ty };
    let spatial = cx.rank(x).saturating_sub(2);
    let taps: TapsOf = match call.int("interpolation_mode")? {
        0 => linear_taps,
        1 => nearest_taps,
        2 if spatial == 2 => cubic_taps,
        m => return Err(bad_argument(format!("interpolation_mode={m} of grid_sampler over {spatial} dimensions"))),
    };
    Ok(vec![Val::Tensor(sample(cx, x, grid, sampling, taps)?)])
}

/// Neighbours of a position along one dimension, each with its weight.
type TapsOf = fn(&mut BodyBuilder, Sampling, ExprId, &Dim) -> Vec<(Point, ExprId)>;

fn linear_taps(b: &mut BodyBuilder, s: Sampling, x: ExprId, size: &Dim) -> Vec<(Point, ExprId)> {
    let x = s.padded(b, x, size);
    let low = b.un(Unary::Floor, x);
    let one = b.lit(s.ty, 1.0);
    let high = b.add(low, one);
    let (from_high, from_low) = (b.sub(high, x), b.sub(x, low));
    vec![(s.point(b, low, size), from_high), (s.point(b, high, size), from_low)]
}

fn nearest_taps(b: &mut BodyBuilder, s: Sampling, x: ExprId, size: &Dim) -> Vec<(Point, ExprId)> {
    let x = s.padded(b, x, size);
    let at = b.un(Unary::Round, x);
    let one = b.lit(s.ty, 1.0);
    vec![(s.point(b, at, size), one)]
}

/// Padding applies to each of the four neighbours, not to the position.
fn cubic_taps(b: &mut BodyBuilder, s: Sampling, x: ExprId, size: &Dim) -> Vec<(Point, ExprId)> {
    let base = b.un(Unary::Floor, x);
    let t = b.sub(x, base);
    let weights = cubic_weights(b, t, -0.75);
    let mut taps = vec![];
    for (k, w) in weights.into_iter().enumerate() {
        let shift = b.lit(s.ty, k as f64 - 1.0);
        let at = b.add(base, shift);
        let at = s.padded(b, at, size);
        taps.push((s.point(b, at, size), w));
    }
    taps
}

/// `out[n, c, o…] = Σ w · x[n, c, i…]`, positions from `grid[n, o…, d]` whose last coordinate counts dimensions from the innermost.
fn sample(cx: &mut Cx, x: ValueId, grid: ValueId, s: Sampling, taps: TapsOf) -> Built {
    let (shape, grid_shape, dtype) = (cx.shape(x), cx.shape(grid), cx.tensor_dtype(x));
    let spatial = shape.len() - 2;
    let mut out = shape[..2].to_vec();
    out.extend_from_slice(&grid_shape[1..=spatial]);
    cx.compute(out, dtype, &[x, grid], |b, axes| {
        let mut per_dim = vec![];
        for d in 0..spatial {
            let mut at = vec![axes[0]];
            at.extend_from_slice(&axes[2..]);
            at.push(b.int((spatial - 1 - d) as i64));
            let raw = b.load(1, &at);
            let raw = b.cast(s.ty, raw);
            let position = s.position(b, raw, &shape[d + 2]);
            per_dim.push(taps(b, s, position, &shape[d + 2]));
        }
        let inside = b.exprs.bool(true);
        sum_of_points(b, &axes[..2], &per_dim, inside, s)
    })
}

/// `Σ w · x` over all combinations of taps; points outside count 0 when the padding is zeros.
fn sum_of_points(
    b: &mut BodyBuilder,
    index: &[ExprId],
    dims: &[Vec<(Point, ExprId)>],
    inside: ExprId,
    s: Sampling,
) -> ExprId {
    let Some((first, rest)) = dims.split_first() else {
        let value = b.load(0, index);
        let value = b.cast(s.ty, value);
        let zero = b.lit(s.ty, 0.0);
        return if s.padding == Padding::Zeros { b.select(inside, value, zero) } else { value };
    };
    let mut sum = None;
    for &((at, within), w) in first {
        let inside = b.and(inside, within);
        let inner = sum_of_points(b, &[index, &[at]].concat(), rest, inside, s);
        let term = if first.len() == 1 { inner } else { b.mul(inner, w) };
        sum = Some(sum.map_or(term, |v| b.add(v, term)));
    }
    sum.expect("every dimension has a tap")
}

/// `grid[n, o…, :] = θ[n] · (x, y(, z), 1)`, coordinates evenly spaced over −1 … 1.
fn affine_grid(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let theta = call.tensor(cx, "theta")?;
    let size = call.dims("size")?;
    let align = call.bool("align_corners")?;
    let spatial = size.len().saturating_sub(2);
    let dtype = cx.tensor_dtype(theta);
    let mut shape = vec![size[0].clone()];
    shape.extend_from_slice(&size[2..]);
    shape.push(Dim::from(spatial as i64));
    let y = cx.compute(shape, dtype, &[theta], |b, axes| {
        let (n, row) = (axes[0], axes[spatial + 1]);
        let column = b.int(spatial as i64);
        let mut sum = b.load(0, &[n, row, column]);
        for k in 0..spatial {
            let d = spatial - 1 - k;
            let at = evenly_spaced(b, axes[d + 1], &size[d + 2], align, dtype);
            let column = b.int(k as i64);
            let factor = b.load(0, &[n, row, column]);
            let term = b.mul(factor, at);
            sum = b.add(sum, term);
        }
        sum
    })?;
    Ok(vec![Val::Tensor(y)])
}

/// Point `i` of n over −1 … 1; without aligned corners the centres of n equal cells.
fn evenly_spaced(b: &mut BodyBuilder, i: ExprId, n: &Dim, align: bool, dtype: DType) -> ExprId {
    let ty = dtype.ty();
    let (one, two) = (b.lit(ty, 1.0), b.lit(ty, 2.0));
    let (at, count) = (b.cast(ty, i), b.dim(n));
    let count = b.cast(ty, count);
    let double = b.mul(at, two);
    if align {
        // 2i / (n − 1) − 1; a single point lies at 0.
        let span = b.sub(count, one);
        let zero = b.lit(ty, 0.0);
        let single = b.le(span, zero);
        let divisor = b.select(single, one, span);
        let ratio = b.div(double, divisor);
        let y = b.sub(ratio, one);
        return b.select(single, zero, y);
    }
    // (2i + 1) / n − 1
    let centre = b.add(double, one);
    let ratio = b.div(centre, count);
    b.sub(ratio, one)
}
