//! Upsampling and downsampling: nearest, linear (1–3-D), cubic, with PyTorch's scale rules.
//!
//! A rule gets the output size, a scale factor, or both. The factor, when given, sets the step between source positions, even where
//! output size / input size differs from it. Source positions are computed in f32 as PyTorch does (f64 for f64 tensors), so that no
//! position falls on the other side of an integer.

use super::cx::{Built, ir_dtype};
use super::norm::accumulator;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, bad_argument, unsupported_shape};
use crate::ir::{DType, Dim, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.upsample_nearest1d.vec", "aten.upsample_nearest1d.default"], rule: nearest },
    AtenOp { names: &["aten.upsample_nearest2d.vec", "aten.upsample_nearest2d.default"], rule: nearest },
    AtenOp { names: &["aten.upsample_nearest3d.vec", "aten.upsample_nearest3d.default"], rule: nearest },
    AtenOp { names: &["aten._upsample_nearest_exact1d.vec", "aten._upsample_nearest_exact1d.default"], rule: exact },
    AtenOp { names: &["aten._upsample_nearest_exact2d.vec", "aten._upsample_nearest_exact2d.default"], rule: exact },
    AtenOp { names: &["aten._upsample_nearest_exact3d.vec", "aten._upsample_nearest_exact3d.default"], rule: exact },
    AtenOp { names: &["aten.upsample_linear1d.vec", "aten.upsample_linear1d.default"], rule: linear },
    AtenOp { names: &["aten.upsample_bilinear2d.vec", "aten.upsample_bilinear2d.default"], rule: linear },
    AtenOp { names: &["aten.upsample_trilinear3d.vec", "aten.upsample_trilinear3d.default"], rule: linear },
    AtenOp { names: &["aten.upsample_bicubic2d.vec", "aten.upsample_bicubic2d.default"], rule: cubic },
];

/// One resampled dimension.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    /// Size of the input.
    pub(super) size: Dim,
    /// Size of the output.
    pub(super) out: Dim,
    /// The scale factor that the call gives.
    pub(super) factor: Option<f64>,
}

/// Longest dimension: beyond, an f32 position has no fraction. Tables of weights are made up to here.
const LONGEST: i64 = 1 << 24;

/// A resampling: its operand and spatial dimensions.
pub(super) struct Resampling {
    /// Operand, `[n, c, s…]`.
    pub(super) x: ValueId,
    /// Spatial dimensions, from dimension 2 on.
    pub(super) axes: Vec<Axis>,
}

impl Resampling {
    /// Reads operand, sizes and factors of the `.vec` form (lists) or the `.default` form (`scales_h`, …).
    pub(super) fn read(cx: &mut Cx, call: &Call<'_>) -> Result<Resampling, Diagnostic> {
        let x = call.tensor(cx, if call.has("input") { "input" } else { "self" })?;
        let spatial = cx.rank(x).saturating_sub(2);
        let factors = factors(call, spatial)?;
        let out = match call.opt_dims("output_size")? {
            Some(out) => out,
            None => out_from_factors(cx, call, x, &factors)?,
        };
        if out.len() != spatial || factors.len() != spatial {
            return Err(bad_argument(format!("{}: {} sizes for {}", call.target, out.len(), cx.ty(x))));
        }
        let axis = |(d, (out, factor))| Axis { size: cx.size(x, d + 2), out, factor };
        let axes: Vec<Axis> = out.into_iter().zip(factors).enumerate().map(axis).collect();
        let long = |d: &&Dim| d.as_const().is_some_and(|n| n > LONGEST);
        if let Some(n) = axes.iter().flat_map(|a| [&a.size, &a.out]).find(long) {
            return Err(unsupported_shape(format!("{}: a dimension of {n} (at most {LONGEST})", call.target)));
        }
        Ok(Resampling { x, axes })
    }

    fn out_shape(&self, cx: &Cx) -> Vec<Dim> {
        let mut shape = cx.shape(self.x)[..2].to_vec();
        shape.extend(self.axes.iter().map(|a| a.out.clone()));
        shape
    }
}

fn factors(call: &Call<'_>, spatial: usize) -> Result<Vec<Option<f64>>, Diagnostic> {
    if call.has("scale_factors") {
        let list = call.opt_floats("scale_factors")?;
        return Ok(list.map_or(vec![None; spatial], |l| l.into_iter().map(Some).collect()));
    }
    if call.has("scales") {
        return Ok(vec![call.opt_float("scales")?]);
    }
    let names = &["scales_d", "scales_h", "scales_w"][3 - spatial.min(3)..];
    names.iter().map(|n| call.opt_float(n)).collect()
}

/// `⌊size · factor⌋`; of a symbolic size, what the export recorded.
fn out_from_factors(cx: &Cx, call: &Call<'_>, x: ValueId, f: &[Option<f64>]) -> Result<Vec<Dim>, Diagnostic> {
    let recorded = |d: usize| call.meta(0).and_then(|m| m.sizes.get(d + 2)).cloned();
    let size = |d: usize| match (cx.size(x, d + 2).as_const(), f[d]) {
        (Some(n), Some(factor)) => Some(Dim::from((n as f64 * factor).floor() as i64)),
        _ => recorded(d),
    };
    let sizes: Option<Vec<Dim>> = (0..f.len()).map(size).collect();
    sizes.ok_or_else(|| bad_argument(format!("{} without output size and scale factors", call.target)))
}

impl Axis {
    /// Step between source positions, in f32 precision for f32: `1 / factor`, else `size / out`.
    fn step(&self, b: &mut BodyBuilder, ty: Ty) -> ExprId {
        if let Some(step) = self.literal_step(ty) {
            return b.lit(ty, step);
        }
        let (n, o) = (b.dim(&self.size), b.dim(&self.out));
        let (n, o) = (b.cast(ty, n), b.cast(ty, o));
        b.div(n, o)
    }

    /// The step, if the sizes are literals.
    pub(super) fn literal_step(&self, ty: Ty) -> Option<f64> {
        if let Some(f) = self.factor.filter(|&f| f > 0.0) {
            return Some(rounded(ty, 1.0 / f));
        }
        let (n, o) = (self.size.as_const()? as f64, self.out.as_const()? as f64);
        Some(if ty == Ty::F64 { n / o } else { f64::from(n as f32 / o as f32) })
    }

    /// Step with corners aligned: `(size − 1) / (out − 1)`.
    fn aligned_step(&self, b: &mut BodyBuilder, ty: Ty) -> ExprId {
        if let (Some(n), Some(o)) = (self.size.as_const(), self.out.as_const()) {
            let (n, o) = ((n - 1) as f64, (o - 1) as f64);
            let exact = if ty == Ty::F64 { n / o } else { f64::from(n as f32 / o as f32) };
            return b.lit(ty, if o > 0.0 { exact } else { 0.0 });
        }
        let one = Dim::from(1);
        let (n, o) = (b.dim(&(&self.size - &one)), b.dim(&(&self.out - &one)));
        let (none, least) = (b.int(0), b.int(1));
        let single = b.le(o, none);
        let o = b.max(o, least);
        let (n, o) = (b.cast(ty, n), b.cast(ty, o));
        let (zero, step) = (b.lit(ty, 0.0), b.div(n, o));
        b.select(single, zero, step)
    }

    /// Position in the input of output coordinate `i`; not limited to the input.
    fn source(&self, b: &mut BodyBuilder, i: ExprId, align: bool, ty: Ty) -> ExprId {
        let at = b.cast(ty, i);
        if align {
            let step = self.aligned_step(b, ty);
            return b.mul(at, step);
        }
        let step = self.step(b, ty);
        let half = b.lit(ty, 0.5);
        let centre = b.add(at, half);
        let scaled = b.mul(centre, step);
        b.sub(scaled, half)
    }
}

fn rounded(ty: Ty, v: f64) -> f64 {
    if ty == Ty::F64 { v } else { f64::from(v as f32) }
}

/// Source index of nearest sampling: `⌊i · step⌋`, or `⌊(i + ½) · step⌋` for the exact form. Whole ratios stay integer arithmetic.
fn nearest_index(b: &mut BodyBuilder, axis: &Axis, i: ExprId, exact: bool) -> ExprId {
    if axis.size == axis.out && axis.factor.is_none_or(|f| f == 1.0) {
        return i;
    }
    if let Some(index) = whole_ratio(b, axis, i, exact) {
        return index;
    }
    let at = b.cast(Ty::F32, i);
    let half = b.lit(Ty::F32, 0.5);
    let at = if exact { b.add(at, half) } else { at };
    let step = axis.step(b, Ty::F32);
    let source = b.mul(at, step);
    let index = b.un(Unary::Floor, source);
    let index = b.cast(Ty::I32, index);
    b.clamp_index(index, &axis.size)
}

/// `i / k` or `i · k (+ k / 2)`, if that is what the f32 formula gives for every output coordinate.
fn whole_ratio(b: &mut BodyBuilder, axis: &Axis, i: ExprId, exact: bool) -> Option<ExprId> {
    let (n, o) = (axis.size.as_const()?, axis.out.as_const()?);
    let step = axis.literal_step(Ty::F32)? as f32;
    let formula = |j: i64| (((j as f32 + if exact { 0.5 } else { 0.0 }) * step).floor() as i64).min(n - 1);
    if n > 0 && o % n == 0 && (0..o).all(|j| formula(j) == j / (o / n)) {
        let k = b.int(o / n);
        return Some(b.div(i, k));
    }
    if o > 0 && n % o == 0 {
        let (k, first) = (n / o, formula(0));
        if (0..o).all(|j| formula(j) == j * k + first) {
            let (k, first) = (b.int(k), b.int(first));
            let scaled = b.mul(i, k);
            return Some(b.add(scaled, first));
        }
    }
    None
}

fn nearest_values(cx: &mut Cx, call: &Call<'_>, exact: bool) -> Result<Vec<Val>, Diagnostic> {
    let r = Resampling::read(cx, call)?;
    let dtype = cx.tensor_dtype(r.x);
    let y = cx.compute(r.out_shape(cx), dtype, &[r.x], |b, out| {
        let mut index = out.to_vec();
        for (d, axis) in r.axes.iter().enumerate() {
            index[d + 2] = nearest_index(b, axis, out[d + 2], exact);
        }
        b.load(0, &index)
    })?;
    Ok(vec![Val::Tensor(y)])
}

fn nearest(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    nearest_values(cx, call, false)
}

fn exact(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    nearest_values(cx, call, true)
}

/// A tap of a separable filter: source index and weight.
pub(super) type Tap = (ExprId, ExprId);

/// Two neighbours and their weights.
fn linear_taps(b: &mut BodyBuilder, axis: &Axis, i: ExprId, align: bool, ty: Ty) -> Vec<Tap> {
    let one = b.lit(ty, 1.0);
    if axis.size == axis.out && axis.factor.is_none_or(|f| f == 1.0) {
        return vec![(i, one)];
    }
    let zero = b.lit(ty, 0.0);
    let source = axis.source(b, i, align, ty);
    let source = b.max(source, zero);
    let low = b.cast(Ty::I32, source);
    let low = b.clamp_index(low, &axis.size);
    let next = b.int(1);
    let high = b.add(low, next);
    let high = b.clamp_index(high, &axis.size);
    let low_float = b.cast(ty, low);
    let weight = b.sub(source, low_float);
    let weight = b.max(weight, zero);
    let weight = b.min(weight, one);
    let rest = b.sub(one, weight);
    vec![(low, rest), (high, weight)]
}

/// Weights of the four neighbours at distance `1 + t`, `t`, `1 − t`, `2 − t` by the cubic convolution with parameter `a`.
pub(super) fn cubic_weights(b: &mut BodyBuilder, t: ExprId, a: f64) -> [ExprId; 4] {
    let one = b.like(t, 1.0);
    let near = |b: &mut BodyBuilder, x: ExprId| {
        // ((a + 2)·x − (a + 3))·x² + 1
        let (c2, c3) = (b.like(x, a + 2.0), b.like(x, a + 3.0));
        let v = b.mul(c2, x);
        let v = b.sub(v, c3);
        let v = b.mul(v, x);
        let v = b.mul(v, x);
        b.add(v, one)
    };
    let far = |b: &mut BodyBuilder, x: ExprId| {
        // ((a·x − 5a)·x + 8a)·x − 4a
        let (c1, c5) = (b.like(x, a), b.like(x, 5.0 * a));
        let (c8, c4) = (b.like(x, 8.0 * a), b.like(x, 4.0 * a));
        let v = b.mul(c1, x);
        let v = b.sub(v, c5);
        let v = b.mul(v, x);
        let v = b.add(v, c8);
        let v = b.mul(v, x);
        b.sub(v, c4)
    };
    let before = b.add(t, one);
    let after = b.sub(one, t);
    let last = b.add(after, one);
    [far(b, before), near(b, t), near(b, after), far(b, last)]
}

fn cubic_taps(b: &mut BodyBuilder, axis: &Axis, i: ExprId, align: bool, ty: Ty) -> Vec<Tap> {
    let source = axis.source(b, i, align, ty);
    let floor = b.un(Unary::Floor, source);
    let t = b.sub(source, floor);
    let base = b.cast(Ty::I32, floor);
    let weights = cubic_weights(b, t, -0.75);
    let mut taps = vec![];
    for (k, w) in weights.into_iter().enumerate() {
        let shift = b.int(k as i64 - 1);
        let at = b.add(base, shift);
        taps.push((b.clamp_index(at, &axis.size), w));
    }
    taps
}

/// `Σ w · x` over the product of the taps of the last dimensions, outermost first; `index` holds the coordinates before them.
pub(super) fn weighted_sum(b: &mut BodyBuilder, index: &[ExprId], taps: &[Vec<Tap>], ty: Ty) -> ExprId {
    let Some((first, rest)) = taps.split_first() else {
        let x = b.load(0, index);
        return b.cast(ty, x);
    };
    let mut sum = None;
    for &(at, w) in first {
        let inner = weighted_sum(b, &[index, &[at]].concat(), rest, ty);
        let term = if first.len() == 1 { inner } else { b.mul(inner, w) };
        sum = Some(sum.map_or(term, |s| b.add(s, term)));
    }
    sum.expect("every dimension has a tap")
}

/// A separable resampling in one body: `taps` gives neighbours and weights of one dimension.
fn separable(
    cx: &mut Cx,
    call: &Call<'_>,
    taps: impl Fn(&mut BodyBuilder, &Axis, ExprId, bool, Ty) -> Vec<Tap>,
) -> Result<Vec<Val>, Diagnostic> {
    let r = Resampling::read(cx, call)?;
    let align = call.bool("align_corners")?;
    let dtype = cx.tensor_dtype(r.x);
    let wide = if dtype.is_float() { dtype } else { DType::F32 };
    let ty = accumulator(wide).ty();
    let y: Built = cx.compute(r.out_shape(cx), wide, &[r.x], |b, out| {
        let taps: Vec<Vec<Tap>> =
            r.axes.iter().enumerate().map(|(d, axis)| taps(b, axis, out[d + 2], align, ty)).collect();
        weighted_sum(b, &out[..2], &taps, ty)
    });
    let y = match call.meta(0) {
        Some(meta) if wide != dtype => round_to_integer(cx, y?, ir_dtype(meta.dtype)?)?,
        _ => y?,
    };
    Ok(vec![Val::Tensor(y)])
}

/// Images of u8: the nearest integer, limited to the type.
fn round_to_integer(cx: &mut Cx, y: ValueId, dtype: DType) -> Built {
    cx.map_n(&[y], dtype, |b, a| {
        let r = b.un(Unary::Round, a[0]);
        let (low, high) = (b.like(r, 0.0), b.like(r, 255.0));
        let r = b.max(r, low);
        let r = b.min(r, high);
        b.cast(dtype.ty(), r)
    })
}

fn linear(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    separable(cx, call, linear_taps)
}

fn cubic(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    separable(cx, call, cubic_taps)
}
