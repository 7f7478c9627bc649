//! Losses over classes: negative log likelihood, cross entropy, margins.

use super::args::Call;
use super::body::BodyBuilder;
use super::cx::{Built, Cx};
use super::reduce::sum;
use super::{AtenOp, Val, bad_argument};
use crate::ir::{DType, Dim, ValueId};
use crate::report::Diagnostic;
use jvc_kernels::expr::ExprId;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &["aten.nll_loss.default", "aten.nll_loss_nd.default", "aten.nll_loss2d.default"],
        rule: |cx, c| Ok(vec![nll(cx, c)?.0.into()]),
    },
    AtenOp {
        names: &["aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"],
        rule: |cx, c| {
            let (loss, weight) = nll(cx, c)?;
            Ok(vec![loss.into(), weight.into()])
        },
    },
    AtenOp { names: &["aten.cross_entropy_loss.default"], rule: cross_entropy },
    AtenOp { names: &["aten.multi_margin_loss.default"], rule: multi_margin },
];

/// Where the classes of a tensor lie: dimension 1, or 0 of a single sample.
fn class_dim(cx: &Cx, x: ValueId) -> usize {
    usize::from(cx.rank(x) > 1)
}

/// Coordinates of the class `t` of a sample in a tensor that has one dimension more than the samples.
fn at_class(axes: &[ExprId], dim: usize, t: ExprId) -> Vec<ExprId> {
    let mut index = axes.to_vec();
    index.insert(dim, t);
    index
}

/// The class of each sample as an index that may be loaded from, and whether it counts.
fn class_of(b: &mut BodyBuilder, k: usize, axes: &[ExprId], classes: &Dim, ignore: i64) -> (ExprId, ExprId) {
    let t = b.load(k, axes);
    let ty = b.ty(t);
    let skip = b.lit_int(ty, ignore);
    let counts = b.ne(t, skip);
    (b.wrap_index(t, classes), counts)
}

/// `−w[t]·x[t]` of each sample and `w[t]`; 0 where the target is ignored.
fn terms(cx: &mut Cx, x: ValueId, t: ValueId, w: Option<ValueId>, ignore: i64) -> Result<[ValueId; 2], Diagnostic> {
    let (dim, dtype, samples) = (class_dim(cx, x), cx.tensor_dtype(x), cx.shape(t));
    let classes = cx.size(x, dim);
    let w = match w {
        Some(w) => w,
        None => cx.full(vec![classes.clone()], dtype, 1.0)?,
    };
    let weights = cx.compute(samples.clone(), dtype, &[t, w], |b, axes| {
        let (class, counts) = class_of(b, 0, axes, &classes, ignore);
        let v = b.load(1, &[class]);
        let zero = b.like(v, 0.0);
        b.select(counts, v, zero)
    })?;
    let losses = cx.compute(samples, dtype, &[t, x, weights], |b, axes| {
        let (class, counts) = class_of(b, 0, axes, &classes, ignore);
        let (v, w) = (b.load(1, &at_class(axes, dim, class)), b.load(2, axes));
        let p = b.mul(v, w);
        let (minus, zero) = (b.neg(p), b.like(p, 0.0));
        b.select(counts, minus, zero)
    })?;
    Ok([losses, weights])
}

fn total(cx: &mut Cx, x: ValueId) -> Built {
    let all: Vec<usize> = (0..cx.rank(x)).collect();
    sum(cx, x, &all, false, None)
}

/// 0 none, 1 the mean by weight, 2 the sum.
fn reduced(cx: &mut Cx, c: &Call<'_>, losses: ValueId, weights: ValueId) -> Result<(ValueId, ValueId), Diagnostic> {
    let weight = total(cx, weights)?;
    let dtype = cx.tensor_dtype(losses);
    Ok(match c.int("reduction")? {
        0 => (losses, cx.full(vec![], dtype, 0.0)?),
        1 => {
            let s = total(cx, losses)?;
            (cx.map2(s, weight, dtype, BodyBuilder::div)?, weight)
        }
        2 => (total(cx, losses)?, weight),
        other => return Err(bad_argument(format!("reduction={other} is not supported (0, 1, 2)"))),
    })
}

fn nll(cx: &mut Cx, c: &Call<'_>) -> Result<(ValueId, ValueId), Diagnostic> {
    let (x, t, w) = (c.tensor(cx, "self")?, c.tensor(cx, "target")?, c.opt_tensor(cx, "weight")?);
    let [losses, weights] = terms(cx, x, t, w, c.int("ignore_index")?)?;
    reduced(cx, c, losses, weights)
}

fn cross_entropy(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (x, t, w) = (c.tensor(cx, "self")?, c.tensor(cx, "target")?, c.opt_tensor(cx, "weight")?);
    let (smoothing, dim) = (c.float("label_smoothing")?, class_dim(cx, x));
    let log = cx.softmax(x, dim, true)?;
    if cx.tensor_dtype(t).is_float() {
        return of_probabilities(cx, c, log, t, w, smoothing);
    }
    let ignore = c.int("ignore_index")?;
    let [mut losses, weights] = terms(cx, log, t, w, ignore)?;
    if smoothing > 0.0 {
        let spread = weighted_log(cx, log, w, dim)?;
        let spread = sum(cx, spread, &[dim], false, None)?;
        let share = smoothing / classes(cx, x, dim)? as f64;
        let dtype = cx.tensor_dtype(x);
        losses = cx.map3([losses, spread, t], dtype, |b, [l, s, t]| {
            let (keep, share, zero) = (b.like(l, 1.0 - smoothing), b.like(l, -share), b.like(l, 0.0));
            let (p, q) = (b.mul(keep, l), b.mul(share, s));
            let v = b.add(p, q);
            let ty = b.ty(t);
            let skip = b.lit_int(ty, ignore);
            let counts = b.ne(t, skip);
            b.select(counts, v, zero)
        })?;
    }
    Ok(vec![reduced(cx, c, losses, weights)?.0.into()])
}

fn classes(cx: &Cx, x: ValueId, dim: usize) -> Result<i64, Diagnostic> {
    cx.size(x, dim).as_const().ok_or_else(|| super::unsupported_shape("a loss over a symbolic number of classes"))
}

/// `w[c]·x[c]`.
fn weighted_log(cx: &mut Cx, log: ValueId, w: Option<ValueId>, dim: usize) -> Built {
    let Some(w) = w else { return Ok(log) };
    let mut shape = vec![Dim::from(1); cx.rank(log)];
    shape[dim] = cx.size(w, 0);
    let w = cx.reshape(w, shape)?;
    cx.mul_values(log, w)
}

/// Targets as probabilities: −Σ t·w·log p, the mean over samples.
fn of_probabilities(cx: &mut Cx, c: &Call<'_>, log: ValueId, t: ValueId, w: Option<ValueId>, smoothing: f64) -> Vals {
    let dim = class_dim(cx, log);
    let n = classes(cx, log, dim)?;
    let dtype: DType = cx.tensor_dtype(log);
    let log = weighted_log(cx, log, w, dim)?;
    let products = cx.map2(log, t, dtype, |b, l, t| {
        let (keep, share) = (b.like(l, 1.0 - smoothing), b.like(l, smoothing / n as f64));
        let soft = b.mul(keep, t);
        let soft = b.add(soft, share);
        let p = b.mul(l, soft);
        b.neg(p)
    })?;
    let losses = sum(cx, products, &[dim], false, None)?;
    let ones = cx.full(cx.shape(losses), dtype, 1.0)?;
    Ok(vec![reduced(cx, c, losses, ones)?.0.into()])
}

/// `Σ_{i ≠ t} max(0, margin − x[t] + x[i])ᵖ · w[t] / classes`.
fn multi_margin(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let (x, t, w) = (c.tensor(cx, "self")?, c.tensor(cx, "target")?, c.opt_tensor(cx, "weight")?);
    let (p, margin) = (c.float("p")?, c.float("margin")?);
    c.require("order", "p", p == 1.0 || p == 2.0, "1 and 2")?;
    if cx.rank(x) > 2 {
        return Err(bad_argument("multi_margin_loss of more than two dimensions"));
    }
    let (dim, dtype, n) = (class_dim(cx, x), cx.tensor_dtype(x), classes(cx, x, class_dim(cx, x))?);
    let t = if cx.rank(x) == 1 { cx.reshape(t, vec![])? } else { t };
    let classes = cx.size(x, dim);
    let w = match w {
        Some(w) => w,
        None => cx.full(vec![classes.clone()], dtype, 1.0)?,
    };
    let parts = cx.compute(cx.shape(x), dtype, &[x, t, w], |b, axes| {
        let sample = &axes[..dim];
        let class = b.load(1, sample);
        let class = b.wrap_index(class, &classes);
        let (v, own, w) = (b.load(0, axes), b.load(0, &at_class(sample, dim, class)), b.load(2, &[class]));
        let (m, zero) = (b.like(v, margin), b.like(v, 0.0));
        let d = b.sub(v, own);
        let d = b.add(d, m);
        let hinge = b.max(d, zero);
        let power = if p == 2.0 { b.mul(hinge, hinge) } else { hinge };
        let scaled = b.mul(power, w);
        let share = b.like(v, 1.0 / n as f64);
        let scaled = b.mul(scaled, share);
        let is_own = b.eq(axes[dim], class);
        b.select(is_own, zero, scaled)
    })?;
    let losses = sum(cx, parts, &[dim], false, None)?;
    let ones = cx.full(cx.shape(losses), dtype, 1.0)?;
    Ok(vec![reduced(cx, c, losses, ones)?.0.into()])
}
