//! Losses and distances: elementwise terms, then `reduction` (0 none, 1 mean, 2 sum).

use super::args::{Call, wrap_dim};
use super::body::BodyBuilder;
use super::cx::{Built, Cx};
use super::promote::{pointwise, real_type, to_float};
use super::reduce::{mean, p_norm, sum};
use super::unary::is_nan;
use super::{AtenOp, Val, bad_argument};
use crate::ir::{DType, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::expr::{ExprId, Unary};

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &["aten.mse_loss.default"],
        rule: |cx, c| {
            pair(cx, c, ["self", "target"], |b, x, y| {
                let d = b.sub(x, y);
                b.mul(d, d)
            })
        },
    },
    AtenOp { names: &["aten.l1_loss.default"], rule: |cx, c| pair(cx, c, ["self", "target"], gap) },
    AtenOp {
        names: &["aten.smooth_l1_loss.default"],
        rule: |cx, c| {
            let beta = c.float("beta")?;
            pair(cx, c, ["self", "target"], |b, x, y| {
                let d = gap(b, x, y);
                if beta == 0.0 { d } else { rounded_corner(b, d, beta, 1.0 / beta) }
            })
        },
    },
    AtenOp {
        names: &["aten.huber_loss.default"],
        rule: |cx, c| {
            let delta = c.float("delta")?;
            pair(cx, c, ["self", "target"], |b, x, y| {
                let d = gap(b, x, y);
                rounded_corner(b, d, delta, 1.0)
            })
        },
    },
    AtenOp {
        names: &["aten.soft_margin_loss.default"],
        rule: |cx, c| {
            pair(cx, c, ["self", "target"], |b, x, y| {
                let p = b.mul(x, y);
                let n = b.neg(p);
                let e = b.un(Unary::Exp, n);
                b.un(Unary::Log1p, e)
            })
        },
    },
    AtenOp {
        names: &["aten.hinge_embedding_loss.default"],
        rule: |cx, c| {
            let margin = c.float("margin")?;
            pair(cx, c, ["self", "target"], |b, x, y| {
                let (one, minus, zero, m) = (b.like(x, 1.0), b.like(x, -1.0), b.like(x, 0.0), b.like(x, margin));
                let rest = b.sub(m, x);
                let hinge = b.max(rest, zero);
                let (positive, negative) = (b.eq(y, one), b.eq(y, minus));
                // A target that is neither counts both terms.
                let (left, right) = (b.select(positive, zero, hinge), b.select(negative, zero, x));
                b.add(left, right)
            })
        },
    },
    AtenOp {
        names: &["aten.kl_div.default"],
        rule: |cx, c| {
            let log_target = c.bool("log_target")?;
            pair(cx, c, ["self", "target"], |b, x, t| kl_term(b, x, t, log_target))
        },
    },
    AtenOp {
        names: &["aten.poisson_nll_loss.default"],
        rule: |cx, c| {
            let (log_input, full, eps) = (c.bool("log_input")?, c.bool("full")?, c.float("eps")?);
            pair(cx, c, ["input", "target"], |b, x, t| poisson_term(b, x, t, log_input, full, eps))
        },
    },
    AtenOp {
        names: &["aten.binary_cross_entropy.default"],
        rule: |cx, c| {
            weighted(cx, c, "self", |b, x, t| {
                let (one, floor) = (b.like(x, 1.0), b.like(x, -100.0));
                let minus = b.neg(x);
                let log = b.un(Unary::Log, x);
                let log_rest = b.un(Unary::Log1p, minus);
                let (log, log_rest) = (b.max(log, floor), b.max(log_rest, floor));
                let other = b.sub(t, one);
                let (p, q) = (b.mul(other, log_rest), b.mul(t, log));
                b.sub(p, q)
            })
        },
    },
    AtenOp { names: &["aten.binary_cross_entropy_with_logits.default"], rule: with_logits },
    AtenOp { names: &["aten.margin_ranking_loss.default"], rule: margin_ranking },
    AtenOp { names: &["aten.cosine_similarity.default"], rule: cosine_similarity },
    AtenOp { names: &["aten.cosine_embedding_loss.default"], rule: cosine_embedding },
    AtenOp { names: &["aten.pairwise_distance.default"], rule: pairwise_distance },
    AtenOp { names: &["aten.triplet_margin_loss.default"], rule: triplet_margin },
];

fn gap(b: &mut BodyBuilder, x: ExprId, y: ExprId) -> ExprId {
    let d = b.sub(x, y);
    b.un(Unary::Abs, d)
}

/// `k·d²/2` below `limit`, else the line that continues it: `k·limit·(d − limit/2)`.
fn rounded_corner(b: &mut BodyBuilder, d: ExprId, limit: f64, k: f64) -> ExprId {
    let (edge, half, slope) = (b.like(d, limit), b.like(d, 0.5 * k), b.like(d, limit * k));
    let square = b.mul(d, d);
    let round = b.mul(half, square);
    let off = b.like(d, 0.5 * limit);
    let moved = b.sub(d, off);
    let line = b.mul(slope, moved);
    let near = b.lt(d, edge);
    b.select(near, round, line)
}

/// `t·(ln t − x)`, 0 where t is 0; of logarithms `eᵗ·(t − x)`.
fn kl_term(b: &mut BodyBuilder, x: ExprId, t: ExprId, log_target: bool) -> ExprId {
    if log_target {
        let (e, d) = (b.un(Unary::Exp, t), b.sub(t, x));
        return b.mul(e, d);
    }
    let zero = b.like(t, 0.0);
    let log = b.un(Unary::Log, t);
    let product = b.mul(t, log);
    let (is_zero, nan) = (b.eq(t, zero), is_nan(b, t));
    let entropy = b.select(is_zero, zero, product);
    let entropy = b.select(nan, t, entropy);
    let cross = b.mul(t, x);
    b.sub(entropy, cross)
}

fn poisson_term(b: &mut BodyBuilder, x: ExprId, t: ExprId, log_input: bool, full: bool, eps: f64) -> ExprId {
    let base = if log_input {
        let (e, p) = (b.un(Unary::Exp, x), b.mul(t, x));
        b.sub(e, p)
    } else {
        let k = b.like(x, eps);
        let moved = b.add(x, k);
        let log = b.un(Unary::Log, moved);
        let p = b.mul(t, log);
        b.sub(x, p)
    };
    if !full {
        return base;
    }
    // Stirling's approximation of ln t! where t > 1.
    let (one, zero, half) = (b.like(t, 1.0), b.like(t, 0.0), b.like(t, 0.5));
    let log = b.un(Unary::Log, t);
    let p = b.mul(t, log);
    let circle = b.like(t, 2.0 * std::f64::consts::PI);
    let turn = b.mul(circle, t);
    let log_turn = b.un(Unary::Log, turn);
    let tail = b.mul(half, log_turn);
    let s = b.sub(p, t);
    let s = b.add(s, tail);
    let above = b.lt(one, t);
    let s = b.select(above, s, zero);
    b.add(base, s)
}

fn reduced(cx: &mut Cx, c: &Call<'_>, x: ValueId) -> Built {
    let all: Vec<usize> = (0..cx.rank(x)).collect();
    match c.int("reduction")? {
        0 => Ok(x),
        1 => mean(cx, x, &all, false, None),
        2 => sum(cx, x, &all, false, None),
        other => Err(bad_argument(format!("reduction={other} is not supported (0, 1, 2)"))),
    }
}

/// A term of two operands in their common type, reduced.
fn pair(
    cx: &mut Cx,
    c: &Call<'_>,
    names: [&str; 2],
    f: impl FnOnce(&mut BodyBuilder, ExprId, ExprId) -> ExprId,
) -> Vals {
    let [x, y] = [c.value(cx, names[0])?, c.value(cx, names[1])?];
    let dtype = to_float(real_type(cx, c.target, &[x.clone(), y.clone()])?);
    let term = pointwise(cx, &[x, y], dtype, dtype, |b, a| f(b, a[0], a[1]))?;
    Ok(vec![reduced(cx, c, term)?.into()])
}

/// As [`pair`], multiplied by an optional weight before the reduction.
fn weighted(cx: &mut Cx, c: &Call<'_>, name: &str, f: impl FnOnce(&mut BodyBuilder, ExprId, ExprId) -> ExprId) -> Vals {
    let [x, y] = [c.value(cx, name)?, c.value(cx, "target")?];
    let dtype = to_float(real_type(cx, c.target, &[x.clone(), y.clone()])?);
    let mut term = pointwise(cx, &[x, y], dtype, dtype, |b, a| f(b, a[0], a[1]))?;
    if let Some(w) = c.opt_tensor(cx, "weight")? {
        term = cx.mul_values(term, w)?;
    }
    Ok(vec![reduced(cx, c, term)?.into()])
}

/// `(1 − t)·x + w·(ln(1 + e^−|x|) + max(−x, 0))` with `w = 1 + (pos_weight − 1)·t`.
fn with_logits(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (x, t) = (c.tensor(cx, "self")?, c.tensor(cx, "target")?);
    let dtype = cx.tensor_dtype(x);
    let ones = cx.full(vec![], dtype, 1.0)?;
    let p = c.opt_tensor(cx, "pos_weight")?.unwrap_or(ones);
    let mut term = cx.map3([x, t, p], dtype, |b, [x, t, p]| {
        let (one, zero) = (b.like(x, 1.0), b.like(x, 0.0));
        let rest = b.sub(one, t);
        let linear = b.mul(rest, x);
        let more = b.sub(p, one);
        let more = b.mul(more, t);
        let w = b.add(one, more);
        let size = b.un(Unary::Abs, x);
        let n = b.neg(size);
        let e = b.un(Unary::Exp, n);
        let log = b.un(Unary::Log1p, e);
        let minus = b.neg(x);
        let low = b.max(minus, zero);
        let s = b.add(log, low);
        let ws = b.mul(w, s);
        b.add(linear, ws)
    })?;
    if let Some(w) = c.opt_tensor(cx, "weight")? {
        term = cx.mul_values(term, w)?;
    }
    Ok(vec![reduced(cx, c, term)?.into()])
}

/// max(0, −t·(x1 − x2) + margin).
fn margin_ranking(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let margin = c.float("margin")?;
    let all = [c.value(cx, "input1")?, c.value(cx, "input2")?, c.value(cx, "target")?];
    let dtype = to_float(real_type(cx, c.target, &all)?);
    let term = pointwise(cx, &all, dtype, dtype, |b, a| {
        let (m, zero) = (b.like(a[0], margin), b.like(a[0], 0.0));
        let d = b.sub(a[1], a[0]);
        let p = b.mul(a[2], d);
        let s = b.add(p, m);
        b.max(s, zero)
    })?;
    Ok(vec![reduced(cx, c, term)?.into()])
}

/// Σxy over a dimension in f32 (f64), and both Euclidean norms.
fn dot_and_norms(cx: &mut Cx, x: ValueId, y: ValueId, dim: usize) -> Result<[ValueId; 3], Diagnostic> {
    let product = cx.mul_values(x, y)?;
    let dot = sum(cx, product, &[dim], false, None)?;
    Ok([dot, p_norm(cx, x, 2.0, &[dim], false)?, p_norm(cx, y, 2.0, &[dim], false)?])
}

/// Operands in their floating common type and shape.
fn aligned(cx: &mut Cx, c: &Call<'_>, names: [&str; 2]) -> Result<[ValueId; 2], Diagnostic> {
    let [x, y] = [c.tensor(cx, names[0])?, c.tensor(cx, names[1])?];
    let dtype = to_float(real_type(cx, c.target, &[x.into(), y.into()])?);
    let shape = cx.broadcast_shape(&[x, y])?;
    let mut fit = |v| {
        let v = cx.cast(v, dtype)?;
        cx.broadcast_to(v, &shape)
    };
    Ok([fit(x)?, fit(y)?])
}

/// `x·y / (max(|x|, eps) · max(|y|, eps))`.
fn cosine_similarity(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let [x, y] = aligned(cx, c, ["x1", "x2"])?;
    let eps = c.float("eps")?;
    let dim = c.dim_index("dim", cx.rank(x))?;
    let dtype = cx.tensor_dtype(x);
    let unit = |cx: &mut Cx, v: ValueId| {
        let n = p_norm(cx, v, 2.0, &[dim], true)?;
        cx.map2(v, n, dtype, |b, v, n| {
            let e = b.like(n, eps);
            let n = b.max(n, e);
            b.div(v, n)
        })
    };
    let (x, y) = (unit(cx, x)?, unit(cx, y)?);
    let product = cx.mul_values(x, y)?;
    Ok(vec![sum(cx, product, &[dim], false, None)?.into()])
}

/// 1 − cos where the target is 1, max(0, cos − margin) where it is −1.
fn cosine_embedding(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let [x, y] = aligned(cx, c, ["input1", "input2"])?;
    let t = c.tensor(cx, "target")?;
    let margin = c.float("margin")?;
    let dim = wrap_dim(-1, cx.rank(x))?;
    let dtype = cx.tensor_dtype(x);
    let [dot, nx, ny] = dot_and_norms(cx, x, y, dim)?;
    let cos = cx.map3([dot, nx, ny], dtype, |b, [d, p, q]| {
        let eps = b.like(d, 1e-12);
        let (pp, qq) = (b.mul(p, p), b.mul(q, q));
        let (pp, qq) = (b.add(pp, eps), b.add(qq, eps));
        let n = b.mul(pp, qq);
        let n = b.un(Unary::Sqrt, n);
        b.div(d, n)
    })?;
    let term = pointwise(cx, &[cos.into(), t.into()], dtype, dtype, |b, a| {
        let (one, zero, minus, m) = (b.like(a[0], 1.0), b.like(a[0], 0.0), b.like(a[0], -1.0), b.like(a[0], margin));
        let near = b.sub(one, a[0]);
        let far = b.sub(a[0], m);
        let far = b.max(far, zero);
        let (same, other) = (b.eq(a[1], one), b.eq(a[1], minus));
        let v = b.select(other, far, zero);
        b.select(same, near, v)
    })?;
    Ok(vec![reduced(cx, c, term)?.into()])
}

/// p-norm of `x − y + eps` over the last dimension.
fn distance(cx: &mut Cx, x: ValueId, y: ValueId, p: f64, eps: f64, keep: bool) -> Built {
    let dtype = cx.tensor_dtype(x);
    let d = cx.map2(x, y, dtype, |b, x, y| {
        let (d, e) = (b.sub(x, y), b.like(x, eps));
        let d = b.add(d, e);
        b.un(Unary::Abs, d)
    })?;
    let last = wrap_dim(-1, cx.rank(d))?;
    p_norm(cx, d, p, &[last], keep)
}

fn pairwise_distance(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let [x, y] = aligned(cx, c, ["x1", "x2"])?;
    let (p, eps, keep) = (c.float("p")?, c.float("eps")?, c.bool("keepdim")?);
    Ok(vec![distance(cx, x, y, p, eps, keep)?.into()])
}

fn triplet_margin(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (anchor, near, far) = (c.tensor(cx, "anchor")?, c.tensor(cx, "positive")?, c.tensor(cx, "negative")?);
    let (margin, p, eps) = (c.float("margin")?, c.float("p")?, c.float("eps")?);
    let dtype: DType = to_float(cx.tensor_dtype(anchor));
    let (anchor, near, far) = (cx.cast(anchor, dtype)?, cx.cast(near, dtype)?, cx.cast(far, dtype)?);
    let to_near = distance(cx, anchor, near, p, eps, false)?;
    let mut to_far = distance(cx, anchor, far, p, eps, false)?;
    if c.bool("swap")? {
        let other = distance(cx, near, far, p, eps, false)?;
        to_far = cx.map2(to_far, other, dtype, BodyBuilder::min)?;
    }
    let term = cx.map2(to_near, to_far, dtype, |b, n, f| {
        let (m, zero) = (b.like(n, margin), b.like(n, 0.0));
        let d = b.sub(n, f);
        let d = b.add(d, m);
        b.max(d, zero)
    })?;
    Ok(vec![reduced(cx, c, term)?.into()])
}
