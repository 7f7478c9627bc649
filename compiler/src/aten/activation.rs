//! Activation functions: one row each.

use super::args::Call;
use super::body::BodyBuilder;
use super::complex_functions;
use super::cx::Cx;
use super::promote::pointwise;
use super::unary::{float_or, float1, same, sigmoid, times};
use super::{AtenOp, Val, bad_argument};
use crate::ir::Dim;
use crate::report::Diagnostic;
use jvc_kernels::expr::{ExprId, Unary};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.relu.default"], rule: |cx, c| same(cx, c, relu) },
    AtenOp { names: &["aten.relu6.default"], rule: |cx, c| same(cx, c, |b, x| limited(b, x, 0.0, 6.0)) },
    AtenOp {
        names: &["aten.hardtanh.default"],
        rule: |cx, c| {
            let (low, high) = (c.float("min_val")?, c.float("max_val")?);
            same(cx, c, |b, x| limited(b, x, low, high))
        },
    },
    AtenOp { names: &["aten.leaky_relu.default"], rule: leaky_relu },
    AtenOp { names: &["aten.rrelu.default"], rule: rrelu },
    AtenOp { names: &["aten.prelu.default", "aten._prelu_kernel.default"], rule: prelu },
    AtenOp {
        names: &["aten.elu.default"],
        rule: |cx, c| elu(cx, c, c.float("alpha")?, c.float("scale")?, c.float("input_scale")?),
    },
    AtenOp {
        names: &["aten.celu.default"],
        rule: |cx, c| {
            let alpha = c.float("alpha")?;
            elu(cx, c, alpha, 1.0, 1.0 / alpha)
        },
    },
    AtenOp { names: &["aten.selu.default"], rule: |cx, c| elu(cx, c, 1.6732632423543772, 1.0507009873554805, 1.0) },
    AtenOp { names: &["aten.gelu.default"], rule: gelu },
    AtenOp {
        names: &["aten.silu.default"],
        rule: |cx, c| {
            float_or(cx, c, complex_functions::silu, |b, x| {
                let s = sigmoid(b, x);
                b.mul(x, s)
            })
        },
    },
    AtenOp {
        names: &["aten.mish.default"],
        rule: |cx, c| {
            float1(cx, c, |b, x| {
                let s = softplus(b, x, 1.0, 20.0);
                let t = b.un(Unary::Tanh, s);
                b.mul(x, t)
            })
        },
    },
    AtenOp {
        names: &["aten.softplus.default"],
        rule: |cx, c| {
            let (beta, threshold) = (c.float("beta")?, c.float("threshold")?);
            float1(cx, c, |b, x| softplus(b, x, beta, threshold))
        },
    },
    AtenOp { names: &["aten.log_sigmoid.default"], rule: |cx, c| float1(cx, c, log_sigmoid) },
    AtenOp { names: &["aten.log_sigmoid_forward.default"], rule: log_sigmoid_forward },
    AtenOp { names: &["aten.hardsigmoid.default"], rule: |cx, c| same(cx, c, hard_sigmoid) },
    AtenOp {
        names: &["aten.hardswish.default"],
        rule: |cx, c| {
            same(cx, c, |b, x| {
                let s = hard_sigmoid(b, x);
                b.mul(x, s)
            })
        },
    },
    AtenOp {
        names: &["aten.hardshrink.default"],
        rule: |cx, c| {
            let lambda = c.float("lambd")?;
            same(cx, c, |b, x| {
                let (low, high, zero) = (b.like(x, -lambda), b.like(x, lambda), b.like(x, 0.0));
                let (p, q) = (b.le(low, x), b.le(x, high));
                let inside = b.and(p, q);
                b.select(inside, zero, x)
            })
        },
    },
    AtenOp {
        names: &["aten.softshrink.default"],
        rule: |cx, c| {
            let lambda = c.float("lambd")?;
            same(cx, c, |b, x| {
                let (l, zero, minus) = (b.like(x, lambda), b.like(x, 0.0), b.like(x, -lambda));
                let (down, up) = (b.sub(x, l), b.add(x, l));
                let (above, below) = (b.lt(l, x), b.lt(x, minus));
                let nan = super::unary::is_nan(b, x);
                let v = b.select(below, up, zero);
                let v = b.select(above, down, v);
                b.select(nan, x, v)
            })
        },
    },
    AtenOp {
        names: &["aten.threshold.default"],
        rule: |cx, c| {
            let (threshold, value) = (c.float("threshold")?, c.float("value")?);
            same(cx, c, |b, x| {
                let (t, v) = (b.like(x, threshold), b.like(x, value));
                let below = b.le(x, t);
                b.select(below, v, x)
            })
        },
    },
    AtenOp { names: &["aten.glu.default"], rule: glu },
];

/// max(x, 0); NaN stays.
pub(super) fn relu(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let zero = b.like(x, 0.0);
    b.max(x, zero)
}

fn limited(b: &mut BodyBuilder, x: ExprId, low: f64, high: f64) -> ExprId {
    let (low, high) = (b.like(x, low), b.like(x, high));
    let x = b.max(x, low);
    b.min(x, high)
}

fn leak(b: &mut BodyBuilder, x: ExprId, slope: ExprId) -> ExprId {
    let zero = b.like(x, 0.0);
    let (scaled, positive) = (b.mul(x, slope), b.lt(zero, x));
    b.select(positive, x, scaled)
}

fn leaky_relu(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let slope = c.float("negative_slope")?;
    same(cx, c, |b, x| {
        let slope = b.like(x, slope);
        leak(b, x, slope)
    })
}

/// Without training the random slope is the mean of its bounds.
fn rrelu(cx: &mut Cx, c: &Call<'_>) -> Vals {
    c.require("training", "training", !c.bool("training")?, "false")?;
    let slope = (c.float("lower")? + c.float("upper")?) / 2.0;
    same(cx, c, |b, x| {
        let slope = b.like(x, slope);
        leak(b, x, slope)
    })
}

/// One slope for all, or one per channel (dimension 1).
fn prelu(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (x, w) = (c.tensor(cx, "self")?, c.tensor(cx, "weight")?);
    let (rank, dtype) = (cx.rank(x), cx.tensor_dtype(x));
    let w = if c.target == "aten.prelu.default" && cx.rank(w) == 1 && rank > 1 {
        let mut shape = vec![Dim::from(1); rank];
        shape[1] = cx.size(w, 0);
        cx.reshape(w, shape)?
    } else {
        w
    };
    let w = if rank == 0 { cx.reshape(w, vec![])? } else { w };
    Ok(vec![cx.map2(x, w, dtype, leak)?.into()])
}

fn elu(cx: &mut Cx, c: &Call<'_>, alpha: f64, scale: f64, input_scale: f64) -> Vals {
    float1(cx, c, |b, x| {
        let zero = b.like(x, 0.0);
        let scaled_in = times(b, x, input_scale);
        let e = b.un(Unary::Expm1, scaled_in);
        let (below, above) = (times(b, e, alpha * scale), times(b, x, scale));
        let negative = b.le(x, zero);
        b.select(negative, below, above)
    })
}

fn gelu(cx: &mut Cx, c: &Call<'_>) -> Vals {
    match c.str("approximate")?.as_str() {
        "none" => float1(cx, c, |b, x| {
            let t = times(b, x, FRAC_1_SQRT_2);
            let e = b.un(Unary::Erf, t);
            half_of(b, x, e)
        }),
        "tanh" => float1(cx, c, |b, x| {
            let square = b.mul(x, x);
            let cube = b.mul(square, x);
            let inner = times(b, cube, 0.044715);
            let inner = b.add(x, inner);
            let t = times(b, inner, SQRT_2 * FRAC_2_SQRT_PI * 0.5);
            let t = b.un(Unary::Tanh, t);
            half_of(b, x, t)
        }),
        other => Err(bad_argument(format!("approximate=`{other}` is not supported (none, tanh)"))),
    }
}

/// x·(1 + t)/2.
fn half_of(b: &mut BodyBuilder, x: ExprId, t: ExprId) -> ExprId {
    let one = b.like(x, 1.0);
    let sum = b.add(one, t);
    let half = times(b, x, 0.5);
    b.mul(half, sum)
}

fn softplus(b: &mut BodyBuilder, x: ExprId, beta: f64, threshold: f64) -> ExprId {
    let scaled = times(b, x, beta);
    let e = b.un(Unary::Exp, scaled);
    let log = b.un(Unary::Log1p, e);
    let k = b.like(x, beta);
    let value = b.div(log, k);
    let t = b.like(x, threshold);
    let linear = b.lt(t, scaled);
    b.select(linear, x, value)
}

/// min(x, 0) − ln(1 + e^−|x|).
fn log_sigmoid(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let zero = b.like(x, 0.0);
    let (low, size) = (b.min(x, zero), b.un(Unary::Abs, x));
    let minus = b.neg(size);
    let e = b.un(Unary::Exp, minus);
    let log = b.un(Unary::Log1p, e);
    b.sub(low, log)
}

/// The second result is scratch of the gradient: e^−|x| on the CPU, empty elsewhere, as recorded.
fn log_sigmoid_forward(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let dtype = cx.tensor_dtype(x);
    let value = cx.map1(x, log_sigmoid)?;
    let recorded = c.meta(1).map(|m| m.sizes.clone());
    let buffer = match recorded {
        Some(sizes) if sizes != cx.shape(x) => cx.full(sizes, dtype, 0.0)?,
        _ => cx.map1(x, |b, x| {
            let size = b.un(Unary::Abs, x);
            let minus = b.neg(size);
            b.un(Unary::Exp, minus)
        })?,
    };
    Ok(vec![value.into(), buffer.into()])
}

/// min(max(x + 3, 0), 6) / 6.
fn hard_sigmoid(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let three = b.like(x, 3.0);
    let moved = b.add(x, three);
    let inside = limited(b, moved, 0.0, 6.0);
    times(b, inside, 1.0 / 6.0)
}

fn glu(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let x = c.tensor(cx, "self")?;
    let dim = c.dim_index("dim", cx.rank(x))?;
    if cx.rank(x) == 0 {
        return Err(bad_argument("glu of a 0-d tensor"));
    }
    let half = cx.size(x, dim).floor_div(&Dim::from(2));
    let a = cx.slice(x, dim, Dim::from(0), half.clone(), 1)?;
    let g = cx.slice(x, dim, half.clone(), half, 1)?;
    let dtype = cx.tensor_dtype(x);
    let out = pointwise(cx, &[a.into(), g.into()], dtype, dtype, |b, x| {
        let s = sigmoid(b, x[1]);
        b.mul(x[0], s)
    })?;
    Ok(vec![out.into()])
}
