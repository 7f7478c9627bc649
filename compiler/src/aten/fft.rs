//! Discrete Fourier transforms. One complex transform along the last dimension is the only primitive; the rest is layout: real input has a
//! zero imaginary part, a one-sided result is a slice, a one-sided input is extended by its Hermitian symmetry.

use super::cx::Built;
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument, unsupported_shape};
use crate::ir::{DType, Dim, Op, ValueId};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten._fft_r2c.default"], rule: raw_r2c },
    AtenOp { names: &["aten._fft_c2c.default"], rule: raw_c2c },
    AtenOp { names: &["aten._fft_c2r.default"], rule: raw_c2r },
    AtenOp {
        names: &["aten.fft_fft.default", "aten.fft_fft2.default", "aten.fft_fftn.default"],
        rule: |cx, call| complex(cx, call, false),
    },
    AtenOp {
        names: &["aten.fft_ifft.default", "aten.fft_ifft2.default", "aten.fft_ifftn.default"],
        rule: |cx, call| complex(cx, call, true),
    },
    AtenOp {
        names: &["aten.fft_rfft.default", "aten.fft_rfft2.default", "aten.fft_rfftn.default"],
        rule: |cx, call| real_to_half(cx, call, false),
    },
    AtenOp {
        names: &["aten.fft_ihfft.default", "aten.fft_ihfft2.default", "aten.fft_ihfftn.default"],
        rule: |cx, call| real_to_half(cx, call, true),
    },
    AtenOp {
        names: &["aten.fft_irfft.default", "aten.fft_irfft2.default", "aten.fft_irfftn.default"],
        rule: |cx, call| half_to_real(cx, call, true),
    },
    AtenOp {
        names: &["aten.fft_hfft.default", "aten.fft_hfft2.default", "aten.fft_hfftn.default"],
        rule: |cx, call| half_to_real(cx, call, false),
    },
    AtenOp { names: &["aten.fft_fftshift.default"], rule: |cx, call| shift(cx, call, false) },
    AtenOp { names: &["aten.fft_ifftshift.default"], rule: |cx, call| shift(cx, call, true) },
];

/// Real and imaginary part.
pub(super) type Pair = (ValueId, ValueId);

/// What a result is divided by: PyTorch's `fft_norm_mode`, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scaling {
    None,
    ByRoot,
    ByCount,
}

impl Scaling {
    fn from_code(code: i64) -> Result<Scaling, Diagnostic> {
        match code {
            0 => Ok(Scaling::None),
            1 => Ok(Scaling::ByRoot),
            2 => Ok(Scaling::ByCount),
            _ => Err(bad_argument(format!("normalization={code} of a Fourier transform"))),
        }
    }

    /// By the `norm` argument of the public functions.
    fn from_name(name: Option<&str>, inverse: bool) -> Result<Scaling, Diagnostic> {
        match name {
            Some("ortho") => Ok(Scaling::ByRoot),
            None | Some("backward") => Ok(if inverse { Scaling::ByCount } else { Scaling::None }),
            Some("forward") => Ok(if inverse { Scaling::None } else { Scaling::ByCount }),
            Some(other) => Err(bad_argument(format!("norm={other:?} of a Fourier transform"))),
        }
    }

    /// v over the number of points.
    pub(super) fn apply(self, cx: &mut Cx, v: ValueId, points: &Dim) -> Built {
        if self == Scaling::None {
            return Ok(v);
        }
        if let Some(n) = points.as_const() {
            let n = n as f64;
            return cx.scale(v, if self == Scaling::ByRoot { 1.0 / n.sqrt() } else { 1.0 / n });
        }
        cx.compute(cx.shape(v), cx.tensor_dtype(v), &[v], |b, axes| {
            let (x, n) = (b.load(0, axes), b.dim(points));
            let ty = b.ty(x);
            let n = b.cast(ty, n);
            let n = if self == Scaling::ByRoot { b.un(jvc_kernels::expr::Unary::Sqrt, n) } else { n };
            b.div(x, n)
        })
    }
}

/// The transform along one dimension, unscaled.
pub(super) fn transform(cx: &mut Cx, (re, im): Pair, dim: usize, inverse: bool) -> Result<Pair, Diagnostic> {
    let last = cx.rank(re) - 1;
    let (re, im) = (cx.transpose(re, dim, last)?, cx.transpose(im, dim, last)?);
    let results = cx.add(Op::Fft { inverse }, vec![re, im])?;
    Ok((cx.transpose(results[0], dim, last)?, cx.transpose(results[1], dim, last)?))
}

/// A complex tensor from any: real ones get a zero imaginary part, integers become f32.
fn to_pair(cx: &mut Cx, v: &Val) -> Result<Pair, Diagnostic> {
    match v {
        Val::Complex { re, im } => Ok((*re, *im)),
        Val::Tensor(x) => {
            let re = to_float(cx, *x)?;
            let im = cx.full(cx.shape(re), cx.tensor_dtype(re), 0.0)?;
            Ok((re, im))
        }
        _ => Err(bad_argument("a Fourier transform of a number")),
    }
}

fn to_float(cx: &mut Cx, x: ValueId) -> Built {
    if cx.tensor_dtype(x).is_float() { Ok(x) } else { cx.cast(x, DType::F32) }
}

/// Crops or pads with zeros a dimension to a size.
fn resized(cx: &mut Cx, v: ValueId, dim: usize, size: &Dim) -> Built {
    let old = cx.size(v, dim);
    if old == *size {
        return Ok(v);
    }
    let (Some(old), Some(new)) = (old.as_const(), size.as_const()) else {
        return Err(unsupported_shape(format!("a Fourier transform over {size} points of {old}: literals are needed")));
    };
    if new < old {
        return cx.slice(v, dim, Dim::from(0), Dim::from(new), 1);
    }
    let rank = cx.rank(v);
    let mut after = vec![0; rank];
    after[dim] = new - old;
    cx.pad(v, vec![0; rank], after, 0.0)
}

/// Dimensions and sizes of a public function: `n`, `dim` of the 1-D forms, `s`, `dim` of the others.
struct Extent {
    dims: Vec<usize>,
    /// Sizes asked for; none for dimensions that keep theirs.
    sizes: Vec<Option<Dim>>,
}

impl Extent {
    fn read(call: &Call<'_>, rank: usize) -> Result<Extent, Diagnostic> {
        if call.has("n") {
            return Ok(Extent { dims: vec![call.dim_index("dim", rank)?], sizes: vec![call.opt_dim("n")?] });
        }
        let sizes = call.opt_dims("s")?;
        let dims: Vec<usize> = match call.opt_ints("dim")? {
            Some(_) => call.dim_indices("dim", rank)?,
            None => (rank - sizes.as_ref().map_or(rank, Vec::len)..rank).collect(),
        };
        let sizes = match sizes {
            Some(s) if s.len() == dims.len() => s.into_iter().map(|d| if d.is(-1) { None } else { Some(d) }).collect(),
            Some(s) => return Err(bad_argument(format!("{} sizes for {} dimensions", s.len(), dims.len()))),
            None => vec![None; dims.len()],
        };
        Ok(Extent { dims, sizes })
    }

    fn resize(&self, cx: &mut Cx, mut v: ValueId) -> Built {
        for (&d, size) in self.dims.iter().zip(&self.sizes) {
            if let Some(size) = size {
                v = resized(cx, v, d, size)?;
            }
        }
        Ok(v)
    }
}

fn points(cx: &Cx, v: ValueId, dims: &[usize]) -> Dim {
    dims.iter().fold(Dim::from(1), |p, &d| &p * &cx.size(v, d))
}

fn scaled(cx: &mut Cx, (re, im): Pair, scaling: Scaling, n: &Dim) -> Result<Pair, Diagnostic> {
    Ok((scaling.apply(cx, re, n)?, scaling.apply(cx, im, n)?))
}

fn transform_all(cx: &mut Cx, mut pair: Pair, dims: &[usize], inverse: bool) -> Result<Pair, Diagnostic> {
    for &d in dims.iter().rev() {
        pair = transform(cx, pair, d, inverse)?;
    }
    Ok(pair)
}

fn to_val((re, im): Pair) -> Vec<Val> {
    vec![Val::Complex { re, im }]
}

fn complex(cx: &mut Cx, call: &Call<'_>, inverse: bool) -> Result<Vec<Val>, Diagnostic> {
    let x = call.value(cx, "self")?;
    let (re, im) = to_pair(cx, &x)?;
    let extent = Extent::read(call, cx.rank(re))?;
    let pair = (extent.resize(cx, re)?, extent.resize(cx, im)?);
    let scaling = Scaling::from_name(call.opt_str("norm")?.as_deref(), inverse)?;
    let n = points(cx, pair.0, &extent.dims);
    let pair = transform_all(cx, pair, &extent.dims, inverse)?;
    Ok(to_val(scaled(cx, pair, scaling, &n)?))
}

/// Keeps frequencies `0 ..= n / 2` of a dimension.
pub(super) fn half(cx: &mut Cx, (re, im): Pair, dim: usize) -> Result<Pair, Diagnostic> {
    let len = &cx.size(re, dim).floor_div(&Dim::from(2)) + &Dim::from(1);
    let zero = Dim::from(0);
    Ok((cx.slice(re, dim, zero.clone(), len.clone(), 1)?, cx.slice(im, dim, zero, len, 1)?))
}

/// `rfft`; conjugated and scaled as an inverse it is `ihfft`.
fn real_to_half(cx: &mut Cx, call: &Call<'_>, hermitian: bool) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let x = to_float(cx, x)?;
    let extent = Extent::read(call, cx.rank(x))?;
    let x = extent.resize(cx, x)?;
    let scaling = Scaling::from_name(call.opt_str("norm")?.as_deref(), hermitian)?;
    let (re, im) = real_forward(cx, x, &extent.dims, true, scaling)?;
    let im = if hermitian { cx.scale(im, -1.0)? } else { im };
    Ok(to_val((re, im)))
}

/// Real input: the last of `dims` first, cut to its half if one-sided, then the others.
fn real_forward(cx: &mut Cx, x: ValueId, dims: &[usize], onesided: bool, s: Scaling) -> Result<Pair, Diagnostic> {
    let Some((&last, rest)) = dims.split_last() else {
        return Err(bad_argument("a Fourier transform over no dimension"));
    };
    let n = points(cx, x, dims);
    let zeros = cx.full(cx.shape(x), cx.tensor_dtype(x), 0.0)?;
    let mut pair = transform(cx, (x, zeros), last, false)?;
    if onesided {
        pair = half(cx, pair, last)?;
    }
    let pair = transform_all(cx, pair, rest, false)?;
    scaled(cx, pair, s, &n)
}

/// The full spectrum of `n` points from its first `n / 2 + 1`; the imaginary parts that symmetry forces to 0 are taken as 0.
pub(super) fn hermitian_extension(cx: &mut Cx, (re, im): Pair, dim: usize, n: &Dim) -> Result<Pair, Diagnostic> {
    let mut shape = cx.shape(re);
    let stored = std::mem::replace(&mut shape[dim], n.clone());
    let dtype = cx.tensor_dtype(re);
    let part = |cx: &mut Cx, v: ValueId, imaginary: bool| {
        cx.compute(shape.clone(), dtype, &[v], |b, axes| {
            let (k, n) = (axes[dim], b.dim(n));
            let mirrored = b.sub(n, k);
            let direct = b.le(k, mirrored);
            let at = b.select(direct, k, mirrored);
            let mut from = axes.to_vec();
            from[dim] = b.clamp_index(at, &stored);
            let x = b.load(0, &from);
            if !imaginary {
                return x;
            }
            let (minus, zero, none) = (b.neg(x), b.like(x, 0.0), b.int(0));
            let signed = b.select(direct, x, minus);
            let (first, middle) = (b.eq(k, none), b.eq(k, mirrored));
            let forced = b.or(first, middle);
            b.select(forced, zero, signed)
        })
    };
    Ok((part(cx, re, false)?, part(cx, im, true)?))
}

/// One-sided input → real output of `n` points along the last of `dims`, by an inverse transform.
fn half_backward(cx: &mut Cx, pair: Pair, dims: &[usize], n: &Dim, s: Scaling) -> Built {
    let Some((&last, rest)) = dims.split_last() else {
        return Err(bad_argument("a Fourier transform over no dimension"));
    };
    let pair = transform_all(cx, pair, rest, true)?;
    let stored = &n.floor_div(&Dim::from(2)) + &Dim::from(1);
    let pair = (resized(cx, pair.0, last, &stored)?, resized(cx, pair.1, last, &stored)?);
    let count = &points(cx, pair.0, rest) * n;
    let full = hermitian_extension(cx, pair, last, n)?;
    let (re, _) = transform(cx, full, last, true)?;
    s.apply(cx, re, &count)
}

/// `irfft`; of the conjugate and scaled as a forward transform it is `hfft`.
fn half_to_real(cx: &mut Cx, call: &Call<'_>, inverse: bool) -> Result<Vec<Val>, Diagnostic> {
    let x = call.value(cx, "self")?;
    let (re, im) = to_pair(cx, &x)?;
    let mut extent = Extent::read(call, cx.rank(re))?;
    let (Some(&last), Some(size)) = (extent.dims.last(), extent.sizes.pop()) else {
        return Err(bad_argument(format!("{} over no dimension", call.target)));
    };
    let n = size.unwrap_or_else(|| &(&cx.size(re, last) - &Dim::from(1)) * &Dim::from(2));
    let (re, im) = (extent.resize(cx, re)?, extent.resize(cx, im)?);
    let im = if inverse { im } else { cx.scale(im, -1.0)? };
    let scaling = Scaling::from_name(call.opt_str("norm")?.as_deref(), inverse)?;
    Ok(vec![Val::Tensor(half_backward(cx, (re, im), &extent.dims, &n, scaling)?)])
}

fn raw_dims(call: &Call<'_>, rank: usize) -> Result<(Vec<usize>, Scaling), Diagnostic> {
    Ok((call.dim_indices("dim", rank)?, Scaling::from_code(call.int("normalization")?)?))
}

fn raw_r2c(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let (dims, scaling) = raw_dims(call, cx.rank(x))?;
    let onesided = call.bool("onesided")?;
    Ok(to_val(real_forward(cx, x, &dims, onesided, scaling)?))
}

fn raw_c2c(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.value(cx, "self")?;
    let pair = to_pair(cx, &x)?;
    let (dims, scaling) = raw_dims(call, cx.rank(pair.0))?;
    let n = points(cx, pair.0, &dims);
    let pair = transform_all(cx, pair, &dims, !call.bool("forward")?)?;
    Ok(to_val(scaled(cx, pair, scaling, &n)?))
}

fn raw_c2r(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.value(cx, "self")?;
    let pair = to_pair(cx, &x)?;
    let (dims, scaling) = raw_dims(call, cx.rank(pair.0))?;
    let n = call.dim("last_dim_size")?;
    Ok(vec![Val::Tensor(half_backward(cx, pair, &dims, &n, scaling)?)])
}

/// Rotates dimensions so that frequency 0 stands in the middle, or back.
fn shift(cx: &mut Cx, call: &Call<'_>, back: bool) -> Result<Vec<Val>, Diagnostic> {
    let x = call.value(cx, "self")?;
    let y = cx.each(&x, |cx, x| {
        let shape = cx.shape(x);
        let dims: Vec<usize> = match call.opt_ints("dim")? {
            Some(_) => call.dim_indices("dim", shape.len())?,
            None => (0..shape.len()).collect(),
        };
        cx.compute(shape.clone(), cx.tensor_dtype(x), &[x], |b, axes| {
            let mut from = axes.to_vec();
            for d in dims {
                // out[(i + by) mod n] = in[i], with by = ⌊n/2⌋, or ⌈n/2⌉ for the way back.
                let lower = shape[d].floor_div(&Dim::from(2));
                let by = if back { lower } else { &shape[d] - &lower };
                let (by, n) = (b.dim(&by), b.dim(&shape[d]));
                let sum = b.add(axes[d], by);
                from[d] = b.rem(sum, n);
            }
            b.load(0, &from)
        })
    })?;
    Ok(vec![y])
}
