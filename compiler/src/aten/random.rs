//! Random numbers: uniform, normal and integer draws, Bernoulli trials, dropout in training mode, permutations, multinomial samples.
//! Where they come from is in [`super::philox`]; each call of the program is a draw of its own.

use super::cx::{Built, ir_dtype};
use super::long_sort::places_of;
use super::philox::{self, OFFSET, SEED};
use super::view::shape_of;
use super::{AtenOp, BodyBuilder, Call, Cx, Val, bad_argument, unsupported_attribute, unsupported_dtype};
use crate::ir::{DType, Dim, Range, Shape, UserInput, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::expr::{ExprId, Unary};
use jvc_kernels::spec::Combine;

type Vals = Result<Vec<Val>, Diagnostic>;
/// What an element is made of: the builder, the four words, the element type.
type Number = fn(&mut BodyBuilder, [ExprId; 4], DType) -> ExprId;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.rand.default", "aten.rand.generator"], rule: |cx, c| sized(cx, c, uniform) },
    AtenOp { names: &["aten.rand_like.default", "aten.rand_like.generator"], rule: |cx, c| like(cx, c, uniform) },
    AtenOp { names: &["aten.randn.default", "aten.randn.generator"], rule: |cx, c| sized(cx, c, philox::normal) },
    AtenOp {
        names: &["aten.randn_like.default", "aten.randn_like.generator"],
        rule: |cx, c| like(cx, c, philox::normal),
    },
    AtenOp {
        names: &["aten.uniform.default"],
        rule: |cx, c| {
            let (from, to) = (c.float("from")?, c.float("to")?);
            let u = drawn_like(cx, c, uniform)?;
            affine(cx, u, to - from, from)
        },
    },
    AtenOp {
        names: &["aten.normal_functional.default", "aten.normal.default"],
        rule: |cx, c| {
            let (mean, std) = (c.float("mean")?, c.float("std")?);
            let n = drawn_like(cx, c, philox::normal)?;
            affine(cx, n, std, mean)
        },
    },
    AtenOp {
        names: &["aten.normal.float_float"],
        rule: |cx, c| {
            let (mean, std) = (c.float("mean")?, c.float("std")?);
            let n = drawn_sized(cx, c, philox::normal)?;
            affine(cx, n, std, mean)
        },
    },
    AtenOp {
        names: &["aten.normal.Tensor_Tensor", "aten.normal.Tensor_float", "aten.normal.float_Tensor"],
        rule: normal_of_tensors,
    },
    AtenOp {
        names: &["aten.exponential.default"],
        rule: |cx, c| {
            let rate = c.float("lambd")?;
            let e = drawn_like(cx, c, exponential)?;
            affine(cx, e, 1.0 / rate, 0.0)
        },
    },
    AtenOp {
        names: &["aten.log_normal.default"],
        rule: |cx, c| {
            let (mean, std) = (c.float("mean")?, c.float("std")?);
            let n = drawn_like(cx, c, philox::normal)?;
            let exponent = cx.map1(n, |b, x| {
                let (s, m) = (b.like(x, std), b.like(x, mean));
                let x = b.mul(x, s);
                let x = b.add(x, m);
                b.un(Unary::Exp, x)
            })?;
            Ok(vec![exponent.into()])
        },
    },
    AtenOp {
        names: &["aten.randint.default", "aten.randint.generator", "aten.randint.low", "aten.randint.low_generator"],
        rule: integers_sized,
    },
    AtenOp {
        names: &[
            "aten.randint_like.default",
            "aten.randint_like.generator",
            "aten.randint_like.low_dtype",
            "aten.randint_like.low_generator_dtype",
        ],
        rule: integers_like,
    },
    AtenOp { names: &["aten.random.from", "aten.random.to"], rule: integers_from_to },
    AtenOp { names: &["aten.randperm.default", "aten.randperm.generator"], rule: permutation },
    AtenOp { names: &["aten.bernoulli.default", "aten.bernoulli.Tensor", "aten.bernoulli.p"], rule: bernoulli },
    AtenOp { names: &["aten.dropout.default"], rule: |cx, c| dropout(cx, c, Mask::Elements) },
    AtenOp { names: &["aten.feature_dropout.default"], rule: |cx, c| dropout(cx, c, Mask::Channels) },
    AtenOp { names: &["aten.alpha_dropout.default"], rule: |cx, c| alpha_dropout(cx, c, Mask::Elements) },
    AtenOp { names: &["aten.feature_alpha_dropout.default"], rule: |cx, c| alpha_dropout(cx, c, Mask::Channels) },
    AtenOp { names: &["aten.native_dropout.default"], rule: native_dropout },
    AtenOp { names: &["aten.multinomial.default"], rule: multinomial },
];

/// A draw: its number, with the inputs and symbols of the stream in the graph.
fn next_draw(cx: &mut Cx) -> u32 {
    if cx.n_draws == 0 {
        for name in [SEED, OFFSET] {
            cx.ranges.insert(name.to_string(), Range { min: 0, max: i64::from(i32::MAX) });
            cx.b.graph.inputs.push((name.to_string(), UserInput::Symbol(name.to_string())));
        }
    }
    cx.n_draws += 1;
    cx.n_draws - 1
}

/// A tensor of independent numbers, with operands at hand.
fn draw(
    cx: &mut Cx,
    c: &Call<'_>,
    shape: Shape,
    dtype: DType,
    inputs: &[ValueId],
    number: impl FnOnce(&mut BodyBuilder, [ExprId; 4], &[ExprId]) -> ExprId,
) -> Built {
    if c.given("generator").is_some_and(|g| *g != crate::import::program::Arg::None) {
        return Err(unsupported_attribute("generator", format!("{}: a generator object is not supported", c.target)));
    }
    let n = next_draw(cx);
    cx.compute(shape.clone(), dtype, inputs, |b, axes| {
        let words = philox::words(b, &shape, axes, n);
        number(b, words, axes)
    })
}

fn uniform(b: &mut BodyBuilder, words: [ExprId; 4], dtype: DType) -> ExprId {
    philox::uniform(b, words, 0, dtype)
}

/// −ln u.
fn exponential(b: &mut BodyBuilder, words: [ExprId; 4], dtype: DType) -> ExprId {
    let u = philox::uniform_above_zero(b, words, dtype);
    let ln = b.un(Unary::Log, u);
    b.neg(ln)
}

/// The recorded element type, which must be a float.
fn float_type(c: &Call<'_>) -> Result<DType, Diagnostic> {
    let meta = c.meta(0).ok_or_else(|| bad_argument(format!("{} has no recorded result", c.target)))?;
    let dtype = ir_dtype(meta.dtype)?;
    if dtype.is_float() {
        Ok(dtype)
    } else {
        Err(unsupported_dtype(format!("{} of {dtype} is not supported", c.target)))
    }
}

fn drawn(cx: &mut Cx, c: &Call<'_>, shape: Shape, number: Number) -> Built {
    let dtype = float_type(c)?;
    draw(cx, c, shape, dtype, &[], |b, words, _| number(b, words, dtype))
}

fn drawn_sized(cx: &mut Cx, c: &Call<'_>, number: Number) -> Built {
    drawn(cx, c, c.dims("size")?, number)
}

fn drawn_like(cx: &mut Cx, c: &Call<'_>, number: Number) -> Built {
    let v = c.value(cx, c.first())?;
    let shape = shape_of(cx, &v)?;
    drawn(cx, c, shape, number)
}

fn sized(cx: &mut Cx, c: &Call<'_>, number: Number) -> Vals {
    Ok(vec![drawn_sized(cx, c, number)?.into()])
}

fn like(cx: &mut Cx, c: &Call<'_>, number: Number) -> Vals {
    Ok(vec![drawn_like(cx, c, number)?.into()])
}

/// x · factor + shift.
fn affine(cx: &mut Cx, x: ValueId, factor: f64, shift: f64) -> Vals {
    if (factor, shift) == (1.0, 0.0) {
        return Ok(vec![x.into()]);
    }
    let y = cx.map1(x, |b, x| {
        let (f, s) = (b.like(x, factor), b.like(x, shift));
        let scaled = b.mul(x, f);
        b.add(scaled, s)
    })?;
    Ok(vec![y.into()])
}

fn normal_of_tensors(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let dtype = float_type(c)?;
    let part = |cx: &mut Cx, name: &str| -> Built {
        match c.operand(cx, name)? {
            Val::Tensor(v) => cx.cast(v, dtype),
            _ => cx.full(vec![], dtype, c.float(name)?),
        }
    };
    let (mean, std) = (part(cx, "mean")?, part(cx, "std")?);
    let shape = cx.broadcast_shape(&[mean, std])?;
    let n = draw(cx, c, shape, dtype, &[], |b, words, _| philox::normal(b, words, dtype))?;
    let y = cx.map3([n, std, mean], dtype, |b, [n, s, m]| {
        let spread = b.mul(n, s);
        b.add(spread, m)
    })?;
    Ok(vec![y.into()])
}

/// Whole numbers in `low .. high`.
fn integers(cx: &mut Cx, c: &Call<'_>, shape: Shape, low: i64, high: i64) -> Vals {
    let meta = c.meta(0).ok_or_else(|| bad_argument(format!("{} has no recorded result", c.target)))?;
    let dtype = ir_dtype(meta.dtype)?;
    let n = high.checked_sub(low).filter(|n| (1..=i64::from(i32::MAX)).contains(n));
    let n = n.ok_or_else(|| {
        unsupported_attribute(
            "random-range",
            format!("{}: {low} .. {high} is no range of 1 to 2³¹ − 1 numbers", c.target),
        )
    })?;
    let narrow = [low, high].iter().all(|&v| i32::try_from(v).is_ok());
    let y = draw(cx, c, shape, dtype, &[], |b, words, _| {
        let n = b.int(n);
        let k = philox::below(b, words, n);
        // In 32 bits where the numbers fit, for devices that have no others.
        let k = if narrow { k } else { b.cast(dtype.ty(), k) };
        let ty = b.ty(k);
        let low = b.lit_int(ty, low);
        let sum = b.add(k, low);
        b.cast(dtype.ty(), sum)
    })?;
    Ok(vec![y.into()])
}

/// `low` and `high` of a call that may have the latter alone.
fn bounds(c: &Call<'_>) -> Result<(i64, i64), Diagnostic> {
    Ok((if c.given("low").is_some() { c.int("low")? } else { 0 }, c.int("high")?))
}

fn integers_sized(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (low, high) = bounds(c)?;
    integers(cx, c, c.dims("size")?, low, high)
}

fn integers_like(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (low, high) = bounds(c)?;
    let v = c.value(cx, c.first())?;
    let shape = shape_of(cx, &v)?;
    integers(cx, c, shape, low, high)
}

fn integers_from_to(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let low = if c.given("from").is_some() { c.int("from")? } else { 0 };
    let high = c
        .opt_int("to")?
        .ok_or_else(|| unsupported_attribute("random-range", format!("{} without `to` is not supported", c.target)))?;
    let v = c.value(cx, c.first())?;
    let shape = shape_of(cx, &v)?;
    integers(cx, c, shape, low, high)
}

/// The order of random keys; equal keys (one pair in 2³¹) stay in theirs.
fn permutation(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let meta = c.meta(0).ok_or_else(|| bad_argument(format!("{} has no recorded result", c.target)))?;
    let dtype = ir_dtype(meta.dtype)?;
    let keys = draw(cx, c, vec![c.dim("n")?], DType::I32, &[], |b, words, _| philox::whole(b, words))?;
    let order = places_of(cx, keys, 0, false, None)?.1;
    Ok(vec![cx.cast(order, dtype)?.into()])
}

/// 1 with the probability that a tensor (of the element's own, or broadcast) or a number gives, else 0.
fn bernoulli(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.tensor(cx, "self")?;
    let (shape, dtype) = (cx.shape(v), cx.tensor_dtype(v));
    let p = match c.target {
        "aten.bernoulli.p" => cx.full(vec![], DType::F32, c.float("p")?)?,
        "aten.bernoulli.Tensor" => c.tensor(cx, "p")?,
        _ => v,
    };
    let trial = trials(cx, c, shape, p)?;
    Ok(vec![cx.cast(trial, dtype)?.into()])
}

/// Truth values, true with the probability in `p`, a float tensor that broadcasts to the shape.
fn trials(cx: &mut Cx, c: &Call<'_>, shape: Shape, p: ValueId) -> Built {
    let wide = if cx.tensor_dtype(p) == DType::F64 { DType::F64 } else { DType::F32 };
    let p = cx.cast(p, wide)?;
    let u = draw(cx, c, shape, wide, &[], |b, words, _| philox::uniform(b, words, 0, wide))?;
    cx.map2(u, p, DType::Bool, BodyBuilder::lt)
}

/// What a dropout keeps or drops as one.
#[derive(Clone, Copy)]
enum Mask {
    Elements,
    /// The first two dimensions.
    Channels,
}

impl Mask {
    fn shape(self, of: &Shape) -> Shape {
        match self {
            Mask::Elements => of.clone(),
            Mask::Channels => {
                of.iter().enumerate().map(|(d, s)| if d < 2 { s.clone() } else { Dim::from(1) }).collect()
            }
        }
    }
}

/// True for what is kept, and the probability of that; `None` where nothing is dropped.
fn kept(cx: &mut Cx, c: &Call<'_>, shape: Shape, train: bool) -> Result<Option<(ValueId, f64)>, Diagnostic> {
    let keep = 1.0 - c.float("p")?;
    if !train || keep == 1.0 {
        return Ok(None);
    }
    let p = cx.full(vec![], DType::F32, keep)?;
    Ok(Some((trials(cx, c, shape, p)?, keep)))
}

/// x, or x/(1 − p) where kept and 0 elsewhere.
fn dropped(cx: &mut Cx, x: ValueId, mask: ValueId, keep: f64) -> Built {
    let dtype = cx.tensor_dtype(x);
    let factor = if keep == 0.0 { 0.0 } else { 1.0 / keep };
    cx.map2(x, mask, dtype, |b, x, mask| {
        let (yes, no) = (b.like(x, factor), b.like(x, 0.0));
        let factor = b.select(mask, yes, no);
        b.mul(x, factor)
    })
}

fn dropout(cx: &mut Cx, c: &Call<'_>, mask: Mask) -> Vals {
    let v = c.value(cx, c.first())?;
    let shape = mask.shape(&shape_of(cx, &v)?);
    Ok(vec![match kept(cx, c, shape, c.bool("train")?)? {
        None => v,
        Some((mask, keep)) => cx.each(&v, |cx, x| dropped(cx, x, mask, keep))?,
    }])
}

fn native_dropout(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, c.first())?;
    let shape = cx.shape(x);
    Ok(match kept(cx, c, shape.clone(), c.opt_bool("train")? != Some(false))? {
        None => vec![x.into(), cx.full(shape, DType::Bool, 1.0)?.into()],
        Some((mask, keep)) => vec![dropped(cx, x, mask, keep)?.into(), mask.into()],
    })
}

/// −scale·alpha of SELU: what alpha dropout puts in the place of a dropped element, before its affine correction.
const ALPHA: f64 = 1.758_099_340_847_376_6;

fn alpha_dropout(cx: &mut Cx, c: &Call<'_>, mask: Mask) -> Vals {
    let x = c.tensor(cx, c.first())?;
    let (shape, dtype) = (mask.shape(&cx.shape(x)), cx.tensor_dtype(x));
    let Some((mask, keep)) = kept(cx, c, shape, c.bool("train")?)? else { return Ok(vec![x.into()]) };
    let p = 1.0 - keep;
    let a = if keep == 0.0 { 0.0 } else { 1.0 / ((ALPHA * ALPHA * p + 1.0) * keep).sqrt() };
    let y = cx.map2(x, mask, dtype, |b, x, mask| {
        let (scale, zero) = (b.like(x, a), b.like(x, 0.0));
        let (when_kept, when_dropped) = (b.like(x, ALPHA * a * p), b.like(x, ALPHA * a * (p - 1.0)));
        let factor = b.select(mask, scale, zero);
        let shift = b.select(mask, when_kept, when_dropped);
        let y = b.mul(x, factor);
        b.add(y, shift)
    })?;
    Ok(vec![y.into()])
}

/// Weights over exponential numbers: the largest is a sample, the k largest are k samples without replacement.
fn multinomial(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (p, n) = (c.tensor(cx, "self")?, c.int("num_samples")?);
    let (dtype, mut shape) = (cx.tensor_dtype(p), cx.shape(p));
    let last = shape.len().checked_sub(1).ok_or_else(|| bad_argument("multinomial of a 0-d tensor"))?;
    let apart = c.bool("replacement")? && n > 1;
    let p = if apart { cx.unsqueeze(p, last)? } else { p };
    if apart {
        shape.insert(last, Dim::from(n));
    }
    let noise = draw(cx, c, shape.clone(), dtype, &[], |b, words, _| exponential(b, words, dtype))?;
    let race = cx.map2(p, noise, dtype, BodyBuilder::div)?;
    let dim = shape.len() - 1;
    if apart || n == 1 {
        let winner = cx.reduce(race, Combine::ArgMax, &[dim], n == 1 && !apart, DType::I64)?;
        return Ok(vec![winner.into()]);
    }
    let order = places_of(cx, race, dim, true, None)?.1;
    Ok(vec![cx.slice(order, dim, Dim::from(0), Dim::from(n), 1)?.into()])
}
