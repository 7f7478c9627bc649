//! Tensors from nothing: constants, ranges, windows, positions.

use super::args::Call;
use super::cx::{Cx, ir_dtype};
use super::promote::number_expr;
use super::view::shape_of;
use super::{AtenOp, Val, bad_argument, unsupported_attribute, unsupported_dtype, unsupported_shape};
use crate::import::program::ScalarType;
use crate::ir::{DType, Dim, Shape};
use crate::report::Diagnostic;
use jvc_kernels::dtype::Ty;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &[
            "aten.zeros.default",
            "aten.empty.memory_format",
            "aten.empty_permuted.default",
            "aten.empty_strided.default",
        ],
        rule: |cx, c| sized(cx, c, "size", &Val::Int(Dim::from(0))),
    },
    AtenOp { names: &["aten.ones.default"], rule: |cx, c| sized(cx, c, "size", &Val::Int(Dim::from(1))) },
    AtenOp {
        names: &["aten.full.default"],
        rule: |cx, c| {
            let value = c.scalar("fill_value")?;
            sized(cx, c, "size", &value)
        },
    },
    AtenOp {
        names: &["aten.zeros_like.default", "aten.empty_like.default"],
        rule: |cx, c| like(cx, c, &Val::Int(Dim::from(0))),
    },
    AtenOp { names: &["aten.ones_like.default"], rule: |cx, c| like(cx, c, &Val::Int(Dim::from(1))) },
    AtenOp {
        names: &["aten.full_like.default"],
        rule: |cx, c| {
            let value = c.scalar("fill_value")?;
            like(cx, c, &value)
        },
    },
    AtenOp {
        names: &["aten.new_zeros.default", "aten.new_empty.default", "aten.new_empty_strided.default"],
        rule: |cx, c| sized(cx, c, "size", &Val::Int(Dim::from(0))),
    },
    AtenOp { names: &["aten.new_ones.default"], rule: |cx, c| sized(cx, c, "size", &Val::Int(Dim::from(1))) },
    AtenOp {
        names: &["aten.new_full.default"],
        rule: |cx, c| {
            let value = c.scalar("fill_value")?;
            sized(cx, c, "size", &value)
        },
    },
    AtenOp { names: &["aten.zero.default"], rule: |cx, c| like(cx, c, &Val::Int(Dim::from(0))) },
    AtenOp {
        names: &["aten.fill.Scalar"],
        rule: |cx, c| {
            let value = c.scalar("value")?;
            like(cx, c, &value)
        },
    },
    AtenOp {
        names: &["aten.scalar_tensor.default"],
        rule: |cx, c| {
            let value = c.scalar("s")?;
            let dtype = c.dtype("dtype")?.unwrap_or(ScalarType::F32);
            Ok(vec![filled(cx, vec![], dtype, &value)?])
        },
    },
    AtenOp {
        names: &[
            "aten.arange.default",
            "aten.arange.start",
            "aten.arange.start_step",
            "aten.range.default",
            "aten.range.step",
        ],
        rule: arange,
    },
    AtenOp { names: &["aten.linspace.default"], rule: linspace },
    AtenOp {
        names: &["aten.linspace.Tensor_Tensor", "aten.linspace.Tensor_Scalar", "aten.linspace.Scalar_Tensor"],
        rule: linspace_of_tensors,
    },
    AtenOp { names: &["aten.logspace.default"], rule: logspace },
    AtenOp { names: &["aten.fft_fftfreq.default"], rule: |cx, c| frequencies(cx, c, false) },
    AtenOp { names: &["aten.fft_rfftfreq.default"], rule: |cx, c| frequencies(cx, c, true) },
    AtenOp { names: &["aten.eye.default", "aten.eye.m"], rule: eye },
    AtenOp { names: &["aten.one_hot.default"], rule: one_hot },
    AtenOp { names: &["aten.tril_indices.default"], rule: |cx, c| triangle_indices(cx, c, false) },
    AtenOp { names: &["aten.triu_indices.default"], rule: |cx, c| triangle_indices(cx, c, true) },
    AtenOp {
        names: &["aten.hann_window.default", "aten.hann_window.periodic"],
        rule: |cx, c| window(cx, c, |n, i| 0.5 - 0.5 * turn(n, i, 1.0)),
    },
    AtenOp {
        names: &[
            "aten.hamming_window.default",
            "aten.hamming_window.periodic",
            "aten.hamming_window.periodic_alpha",
            "aten.hamming_window.periodic_alpha_beta",
        ],
        rule: hamming,
    },
    AtenOp {
        names: &["aten.blackman_window.default", "aten.blackman_window.periodic"],
        rule: |cx, c| window(cx, c, |n, i| 0.42 - 0.5 * turn(n, i, 1.0) + 0.08 * turn(n, i, 2.0)),
    },
    AtenOp {
        names: &["aten.bartlett_window.default", "aten.bartlett_window.periodic"],
        rule: |cx, c| window(cx, c, |n, i| 1.0 - (2.0 * i / n - 1.0).abs()),
    },
    AtenOp {
        names: &["aten.kaiser_window.default", "aten.kaiser_window.periodic", "aten.kaiser_window.beta"],
        rule: kaiser,
    },
    AtenOp { names: &["aten.vander.default", "aten.linalg_vander.default"], rule: vander },
];

/// cos(2π·k·i/n).
fn turn(n: f64, i: f64, k: f64) -> f64 {
    (2.0 * std::f64::consts::PI * k * i / n).cos()
}

/// A tensor that holds a Python number.
pub(super) fn filled(cx: &mut Cx, shape: Shape, dtype: ScalarType, value: &Val) -> Result<Val, Diagnostic> {
    let part = ir_dtype(dtype)?;
    let re = cx.compute(shape.clone(), part, &[], |b, _| number_expr(b, value, part.ty()))?;
    if !dtype.is_complex() {
        return Ok(re.into());
    }
    let im = if let Val::ComplexScalar(_, im) = value { *im } else { 0.0 };
    Ok(Val::Complex { re, im: cx.full(shape, part, im)? })
}

/// The element type that was asked for, else the recorded one, else f32.
fn wanted(c: &Call<'_>) -> Result<ScalarType, Diagnostic> {
    let asked = if c.has("dtype") { c.dtype("dtype")? } else { None };
    Ok(asked.or_else(|| c.meta(0).map(|m| m.dtype)).unwrap_or(ScalarType::F32))
}

fn sized(cx: &mut Cx, c: &Call<'_>, name: &str, value: &Val) -> Vals {
    let (shape, dtype) = (c.dims(name)?, wanted(c)?);
    Ok(vec![filled(cx, shape, dtype, value)?])
}

fn like(cx: &mut Cx, c: &Call<'_>, value: &Val) -> Vals {
    let v = c.value(cx, c.first())?;
    let (shape, dtype) = (shape_of(cx, &v)?, wanted(c)?);
    Ok(vec![filled(cx, shape, dtype, value)?])
}

/// `⌈(end − start)/step⌉` elements `start + i·step`; computed in f64 for float results, as PyTorch does.
fn arange(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let start = if c.has("start") { c.scalar("start")? } else { Val::Int(Dim::from(0)) };
    let step = if c.has("step") { c.scalar("step")? } else { Val::Int(Dim::from(1)) };
    let dtype = ir_dtype(wanted(c)?)?;
    let end = c.scalar("end")?;
    let len = match c.meta(0) {
        Some(meta) => meta.sizes.clone(),
        None => vec![arange_len(&start, &end, &step)?],
    };
    let integers = [&start, &end, &step].iter().all(|v| matches!(v, Val::Int(_)));
    let out = cx.compute(len, dtype, &[], |b, axes| {
        let wide = if integers { Ty::I64 } else { wide_float(&start, &step) };
        let wide = if integers && fits_i32(&start, &step) { Ty::I32 } else { wide };
        let i = b.cast(wide, axes[0]);
        let (first, by) = (number_expr(b, &start, wide), number_expr(b, &step, wide));
        let offset = if matches!(&step, Val::Int(d) if d.is(1)) { i } else { b.mul(i, by) };
        let v = if matches!(&start, Val::Int(d) if d.is(0)) { offset } else { b.add(first, offset) };
        let v = b.cast(dtype.ty(), v);
        b.round_to(dtype, v)
    })?;
    Ok(vec![out.into()])
}

/// f32 is exact for starts and steps of few bits, and avoids a need for 64-bit floats on the device.
fn wide_float(start: &Val, step: &Val) -> Ty {
    let exact = |v: &Val| match v {
        Val::Float(v) => (v * 1024.0).fract() == 0.0 && v.abs() < 4096.0,
        Val::Int(d) => d.as_const().is_some_and(|v| v.abs() < 4096),
        _ => false,
    };
    if exact(start) && exact(step) { Ty::F32 } else { Ty::F64 }
}

/// Literal starts and steps that keep every element of a tensor of under 2²⁰ elements in 32 bits.
fn fits_i32(start: &Val, step: &Val) -> bool {
    let small = |v: &Val, limit: i64| matches!(v, Val::Int(d) if d.as_const().is_some_and(|v| v.abs() < limit));
    small(start, 1 << 20) && small(step, 1 << 10)
}

fn arange_len(start: &Val, end: &Val, step: &Val) -> Result<Dim, Diagnostic> {
    let as_f64 = |v: &Val| match v {
        Val::Int(d) => d.as_const().map(|v| v as f64),
        Val::Float(v) => Some(*v),
        _ => None,
    };
    match (as_f64(start), as_f64(end), as_f64(step)) {
        (Some(a), Some(b), Some(s)) if s != 0.0 => Ok(Dim::from(((b - a) / s).ceil().max(0.0) as i64)),
        _ => Err(unsupported_shape("arange of symbolic bounds without a recorded size")),
    }
}

/// Counted from the nearer end, so that both ends are exact.
/// Elements of a constant that is made here.
const LONGEST_TABLE: i64 = 1 << 24;

fn table_len(c: &Call<'_>, name: &str) -> Result<i64, Diagnostic> {
    match c.int(name)? {
        n @ 0..=LONGEST_TABLE => Ok(n),
        n => Err(unsupported_shape(format!("{}: {name}={n} is not supported (0 to {LONGEST_TABLE})", c.target))),
    }
}

fn linspace(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (start, end, steps) = (c.float("start")?, c.float("end")?, table_len(c, "steps")?);
    let dtype = ir_dtype(wanted(c)?)?;
    let values: Vec<f64> = (0..steps).map(|i| linspace_at(start, end, steps, i, dtype)).collect();
    Ok(vec![cx.const_data(dtype, &values, &[steps])?.into()])
}

fn linspace_at(start: f64, end: f64, steps: i64, i: i64, dtype: DType) -> f64 {
    let step = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
    let from_start = i < steps / 2 || steps == 1;
    if dtype.is_float() && dtype != DType::F64 {
        let (s, e, step) =
            (start as f32, end as f32, if steps > 1 { (end as f32 - start as f32) / (steps - 1) as f32 } else { 0.0 });
        return f64::from(if from_start { s + step * i as f32 } else { e - step * (steps - 1 - i) as f32 });
    }
    if from_start { start + step * i as f64 } else { end - step * (steps - 1 - i) as f64 }
}

/// Ends that only the data tell.
fn linspace_of_tensors(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (start, end, steps) = (c.operand(cx, "start")?, c.operand(cx, "end")?, c.int("steps")?);
    let dtype = ir_dtype(wanted(c)?)?;
    let place = cx.iota(Dim::from(steps))?;
    let compute = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let out = super::promote::pointwise(cx, &[place.into(), start, end], compute, dtype, |b, x| {
        let (gaps, half, last) = (
            b.like(x[0], (steps - 1).max(1) as f64),
            b.like(x[0], (steps / 2) as f64),
            b.like(x[0], (steps - 1) as f64),
        );
        let span = b.sub(x[2], x[1]);
        let step = b.div(span, gaps);
        let (up, back) = (b.mul(step, x[0]), b.sub(last, x[0]));
        let back = b.mul(step, back);
        let (from_start, from_end) = (b.add(x[1], up), b.sub(x[2], back));
        let near = b.lt(x[0], half);
        let v = if steps == 1 { x[1] } else { b.select(near, from_start, from_end) };
        b.cast(dtype.ty(), v)
    })?;
    Ok(vec![out.into()])
}

fn logspace(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (start, end, steps, base) = (c.float("start")?, c.float("end")?, table_len(c, "steps")?, c.float("base")?);
    let dtype = ir_dtype(wanted(c)?)?;
    let values: Vec<f64> = (0..steps).map(|i| base.powf(linspace_at(start, end, steps, i, DType::F64))).collect();
    Ok(vec![cx.const_data(dtype, &values, &[steps])?.into()])
}

/// Frequencies of the bins of a Fourier transform; all of one sign for real input.
fn frequencies(cx: &mut Cx, c: &Call<'_>, real: bool) -> Vals {
    let (n, spacing) = (table_len(c, "n")?, c.float("d")?);
    let dtype = ir_dtype(wanted(c)?)?;
    let count = if real { n / 2 + 1 } else { n };
    let bin = |i: i64| if !real && i > (n - 1) / 2 { i - n } else { i };
    let values: Vec<f64> = (0..count).map(|i| bin(i) as f64 / (n as f64 * spacing)).collect();
    Ok(vec![cx.const_data(dtype, &values, &[count])?.into()])
}

fn eye(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let n = c.dim("n")?;
    let m = if c.has("m") { c.dim("m")? } else { n.clone() };
    let dtype = ir_dtype(wanted(c)?)?;
    let out = cx.compute(vec![n, m], dtype, &[], |b, axes| {
        let on = b.eq(axes[0], axes[1]);
        b.cast(dtype.ty(), on)
    })?;
    Ok(vec![out.into()])
}

fn one_hot(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let classes = c.dim("num_classes")?;
    if classes.is(-1) {
        return Err(unsupported_shape("one_hot without num_classes has a data-dependent size"));
    }
    let mut shape = cx.shape(x);
    shape.push(classes);
    let out = cx.compute(shape, DType::I64, &[x], |b, axes| {
        let n = axes.len() - 1;
        let class = b.load(0, &axes[..n]);
        let at = b.cast(b.ty(class), axes[n]);
        let on = b.eq(class, at);
        b.cast(Ty::I64, on)
    })?;
    Ok(vec![out.into()])
}

fn triangle_indices(cx: &mut Cx, c: &Call<'_>, upper: bool) -> Vals {
    let (rows, cols, k) = (c.int("row")?, c.int("col")?, c.int("offset")?);
    let inside = |r: i64, c: i64| if upper { c - r >= k } else { c - r <= k };
    let all: Vec<(i64, i64)> =
        (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))).filter(|&(r, c)| inside(r, c)).collect();
    let values: Vec<f64> = all.iter().map(|p| p.0 as f64).chain(all.iter().map(|p| p.1 as f64)).collect();
    let dtype = ir_dtype(wanted(c)?)?;
    Ok(vec![cx.const_data(dtype, &values, &[2, all.len() as i64])?.into()])
}

/// A window of the given shape: `f(n, i)` with n the length of a period (one less than the length where it is symmetric).
fn window(cx: &mut Cx, c: &Call<'_>, f: impl Fn(f64, f64) -> f64) -> Vals {
    let len = table_len(c, "window_length")?;
    let periodic = !c.has("periodic") || c.bool("periodic")?;
    let dtype = ir_dtype(wanted(c)?)?;
    if !dtype.is_float() {
        return Err(unsupported_dtype(format!("a window of {dtype}")));
    }
    let n = if periodic { len } else { len - 1 } as f64;
    let at = |i: i64| if len == 1 { 1.0 } else { f(n, i as f64) };
    let values: Vec<f64> = (0..len).map(at).collect();
    Ok(vec![cx.const_data(dtype, &values, &[len])?.into()])
}

fn hamming(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let alpha = if c.has("alpha") { c.float("alpha")? } else { 0.54 };
    let beta = if c.has("beta") { c.float("beta")? } else { 0.46 };
    window(cx, c, |n, i| alpha - beta * turn(n, i, 1.0))
}

fn kaiser(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let beta = if c.has("beta") { c.float("beta")? } else { 12.0 };
    window(cx, c, |n, i| {
        let x = 2.0 * i / n - 1.0;
        bessel_i0(beta * (1.0 - x * x).max(0.0).sqrt()) / bessel_i0(beta)
    })
}

/// Power series of the modified Bessel function of order 0.
fn bessel_i0(x: f64) -> f64 {
    let q = x * x / 4.0;
    let (mut term, mut sum, mut k) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 && k < 500.0 {
        term *= q / (k * k);
        sum += term;
        k += 1.0;
    }
    sum
}

/// Powers of the elements as columns.
fn vander(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, c.first())?;
    let linalg = c.target == "aten.linalg_vander.default";
    let increasing = linalg || c.bool("increasing")?;
    let n = c.opt_int("N")?.map_or_else(|| cx.ty(x).shape.last().cloned().unwrap_or_default(), Dim::from);
    let count = n.as_const().ok_or_else(|| unsupported_shape("vander of a symbolic size"))?;
    if count > 64 {
        return Err(unsupported_attribute(
            "vander-powers",
            format!("vander with {count} powers is not supported (at most 64)"),
        ));
    }
    let dtype = match cx.tensor_dtype(x) {
        d if d.is_float() => d,
        _ => DType::I64,
    };
    let x = cx.cast(x, dtype)?;
    let mut power = cx.map1(x, |b, x| b.like(x, 1.0))?;
    let mut columns = vec![];
    for _ in 0..count {
        columns.push(power);
        power = cx.mul_values(power, x)?;
    }
    if columns.is_empty() {
        return Err(bad_argument("vander without powers"));
    }
    if !increasing {
        columns.reverse();
    }
    let dim = cx.rank(x);
    Ok(vec![cx.stack(&columns, dim)?.into()])
}
