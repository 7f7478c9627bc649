//! `logcumsumexp`: running sums of exponentials, as `m_i + log Σ_{j ≤ i} exp(x_j − m_i)` with the running maximum m.
//!
//! ```text
//! own[c, i] = Σ_{j ≤ i} exp(x[c, j] − m[c, i])                      each sum on its own, within chunk c of a long line
//! end[c]    = m[c, last],  before[c] = Σ_{d ≤ c} own[d, last] · exp(end[d] − end[c])       as a line again
//! sum[c, i] = own[c, i] + before[c − 1] · exp(end[c − 1] − m[c, i])
//! ```
//!
//! A maximum shared by several sums would lose the small ones before it; these are all at least 1. What a chunk comes to is relative to the maximum
//! at its end, which none after it is below: no factor exceeds 1, so nothing overflows, and what underflows is nothing beside the sum.

use super::body::BodyBuilder;
use super::cx::Built;
use super::index::at_least_1d;
use super::norm::accumulator;
use super::{AtenOp, Call, Cx, Diagnostic, Val};
use crate::ir::{DType, Dim, Op, Shape, ValueId};
use jvc_kernels::expr::{ExprId, Unary};
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[AtenOp { names: &["aten.logcumsumexp.default"], rule: log_cum_sum_exp }];

/// Each element of a line takes a sum over the line; longer lines are cut, for their work grows with the square.
const LONG: i64 = 512;
/// Elements of a chunk.
const CHUNK: i64 = 256;

/// What is summed along a line: exponentials of `x`, times `weight` if there is one, each sum relative to the exponential of its `top`.
struct Terms {
    x: ValueId,
    top: ValueId,
    weight: Option<ValueId>,
}

fn log_cum_sum_exp(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let (shape, dtype) = (cx.shape(x), cx.tensor_dtype(x));
    let dim = call.dim_index("dim", shape.len())?;
    let x = at_least_1d(cx, x)?;
    let x = cx.cast(x, accumulator(dtype))?;
    let y = along(cx, x, dim, LONG)?;
    let y = cx.cast(y, dtype)?;
    Ok(vec![Val::Tensor(cx.reshape(y, shape)?)])
}

/// The result along a dimension, whose lines are cut where they may have more elements than `long`.
fn along(cx: &mut Cx, x: ValueId, dim: usize, long: i64) -> Built {
    let last = cx.rank(x) - 1;
    if !may_exceed(cx, &cx.size(x, dim), long) {
        let top = running_maximum(cx, x, dim)?;
        let sum = each_on_its_own(cx, &Terms { x, top, weight: None }, dim)?;
        return logarithm(cx, sum, top);
    }
    let x = cx.transpose(x, dim, last)?;
    let top = running_maximum(cx, x, last)?;
    let sum = sums(cx, &Terms { x, top, weight: None }, long)?;
    let y = logarithm(cx, sum, top)?;
    cx.transpose(y, dim, last)
}

fn may_exceed(cx: &Cx, len: &Dim, long: i64) -> bool {
    len.range(&cx.ranges).max > long
}

fn running_maximum(cx: &mut Cx, x: ValueId, dim: usize) -> Built {
    Ok(cx.add(Op::Scan { combine: Combine::Max, dim, skip: 0 }, vec![x])?[0])
}

/// Sums along the last dimension.
fn sums(cx: &mut Cx, terms: &Terms, long: i64) -> Built {
    let (last, shape, dtype) = (cx.rank(terms.x) - 1, cx.shape(terms.x), cx.tensor_dtype(terms.x));
    if !may_exceed(cx, &shape[last], long) {
        return each_on_its_own(cx, terms, last);
    }
    let parts = Terms {
        x: in_chunks(cx, terms.x)?,
        top: in_chunks(cx, terms.top)?,
        weight: terms.weight.map(|w| in_chunks(cx, w)).transpose()?,
    };
    let own = each_on_its_own(cx, &parts, last + 1)?;
    let [end, whole] = [parts.top, own].map(|v| cx.select(v, last + 1, Dim::from(CHUNK - 1)));
    let (end, whole) = (end?, whole?);
    // A chunk of chunks is a line that is shorter by far: where the length is not known, cutting once is enough.
    let long = if shape[last].as_const().is_some() { long } else { i64::MAX };
    let before = sums(cx, &Terms { x: end, top: end, weight: Some(whole) }, long)?;
    cx.compute(shape, dtype, &[own, before, end, terms.top], |b, axes| {
        let (outer, at) = (&axes[..last], axes[last]);
        let (n, zero, one) = (b.int(CHUNK), b.int(0), b.int(1));
        let chunk = b.div(at, n);
        let first = b.mul(chunk, n);
        let place = b.sub(at, first);
        let earlier = b.sub(chunk, one);
        let earlier = b.max(earlier, zero);
        let own = b.load(0, &[outer, &[chunk, place]].concat());
        let [before, end] = [1, 2].map(|k| b.load(k, &[outer, &[earlier]].concat()));
        let top = b.load(3, axes);
        let factor = ratio(b, end, top);
        let before = b.mul(before, factor);
        let both = b.add(before, own);
        let is_first = b.lt(at, n);
        b.select(is_first, own, both)
    })
}

/// Lines along the last dimension in chunks. Beyond the end the last element repeats: nothing comes after it.
fn in_chunks(cx: &mut Cx, x: ValueId) -> Built {
    let (last, mut shape, dtype) = (cx.rank(x) - 1, cx.shape(x), cx.tensor_dtype(x));
    let len = shape[last].clone();
    shape[last] = (&len + &Dim::from(CHUNK - 1)).floor_div(&Dim::from(CHUNK));
    shape.push(Dim::from(CHUNK));
    cx.compute(shape, dtype, &[x], |b, axes| {
        let n = b.int(CHUNK);
        let before = b.mul(axes[last], n);
        let at = b.add(before, axes[last + 1]);
        let at = b.clamp_index(at, &len);
        b.load(0, &[&axes[..last], &[at]].concat())
    })
}

/// Sums along a dimension, each over all that come up to its place.
fn each_on_its_own(cx: &mut Cx, terms: &Terms, dim: usize) -> Built {
    let (rank, dtype) = (cx.rank(terms.x), cx.tensor_dtype(terms.x));
    let mut pairs: Shape = cx.shape(terms.x);
    pairs.push(cx.size(terms.x, dim));
    let operands: Vec<ValueId> = [terms.x, terms.top].into_iter().chain(terms.weight).collect();
    let terms = cx.compute(pairs, dtype, &operands, |b, axes| {
        let mut other = axes[..rank].to_vec();
        other[dim] = axes[rank];
        let (value, m) = (b.load(0, &other), b.load(1, &axes[..rank]));
        let zero = b.like(value, 0.0);
        let mut term = ratio(b, value, m);
        if operands.len() == 3 {
            let weight = b.load(2, &other);
            term = b.mul(weight, term);
        }
        let seen = b.le(axes[rank], axes[dim]);
        b.select(seen, term, zero)
    })?;
    cx.reduce(terms, Combine::Sum, &[rank], false, dtype)
}

/// exp(value − top); of equal infinities the difference counts as 0, as in PyTorch.
fn ratio(b: &mut BodyBuilder, value: ExprId, top: ExprId) -> ExprId {
    let zero = b.like(value, 0.0);
    let (d, same) = (b.sub(value, top), b.eq(value, top));
    let d = b.select(same, zero, d);
    b.un(Unary::Exp, d)
}

/// log(sum) + top, where nothing was summed but zeros as PyTorch has it.
fn logarithm(cx: &mut Cx, sum: ValueId, top: ValueId) -> Built {
    let dtype: DType = cx.tensor_dtype(sum);
    cx.map2(sum, top, dtype, |b, t, m| {
        let l = b.un(Unary::Log, t);
        let sum = b.add(l, m);
        let lowest = b.like(m, f64::NEG_INFINITY);
        let none = b.eq(m, lowest);
        b.select(none, lowest, sum)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::eval::{Tensor, eval};
    use crate::ir::{TensorType, UserInput, UserOutput};
    use std::collections::BTreeMap;

    /// Along dimension 1, where lines of more than `long` elements are cut.
    fn evaluated(x: &Tensor, long: i64) -> Vec<f64> {
        let mut cx = Cx::new("t");
        let shape: Vec<i64> = x.shape.iter().map(|&n| n as i64).collect();
        let v = cx.b.push(Op::Input { index: 0 }, vec![], vec![TensorType::fixed(x.dtype, &shape)])[0];
        cx.b.graph.inputs.push(("x".to_string(), UserInput::Tensor(v)));
        let y = along(&mut cx, v, 1, long).expect("types fit");
        cx.b.graph.outputs.push((String::new(), UserOutput::Tensor(y)));
        let got = eval(&cx.b.graph, &|_| None, std::slice::from_ref(x), &BTreeMap::new()).expect("the interpreter");
        got.tensors()[0].floats().to_vec()
    }

    /// PyTorch's loop, in f64: one element after the other.
    fn one_by_one(line: &[f64]) -> Vec<f64> {
        let mut acc = f64::NEG_INFINITY;
        let step = |&x: &f64| {
            let (low, high) = if acc.is_nan() || x.is_nan() { (f64::NAN, f64::NAN) } else { (acc.min(x), acc.max(x)) };
            acc = if low != high || low.is_finite() { (low - high).exp().ln_1p() + high } else { high };
            acc
        };
        line.iter().map(step).collect()
    }

    #[test]
    fn chunks_give_what_one_element_after_the_other_gives() {
        let n = 1100;
        let number = |i: usize| f64::from((i.wrapping_mul(2_654_435_761) >> 7) as u16) / 65536.0 - 0.5;
        let lines: [(&str, &dyn Fn(usize) -> f64); 10] = [
            ("any", &|i| 4.0 * number(i)),
            ("rising", &|i| 0.9 * i as f64),
            ("falling", &|i| -0.9 * i as f64),
            ("large, then small", &|i| if i == 300 { 500.0 } else { 496.0 + number(i) }),
            ("small, then large", &|i| if i < 700 { -300.0 } else { 300.0 + number(i) }),
            ("nothing at first", &|i| if i < 600 { f64::NEG_INFINITY } else { number(i) }),
            ("nothing", &|_| f64::NEG_INFINITY),
            ("nothing in a chunk", &|i| if i / 256 == 1 { f64::NEG_INFINITY } else { number(i) }),
            ("infinite in the end", &|i| if i > 900 { f64::INFINITY } else { -1e30 }),
            ("no number", &|i| if i == 257 { f64::NAN } else { number(i) }),
        ];
        for (name, value) in lines {
            let line: Vec<f64> = (0..n).map(|i| f64::from(value(i) as f32)).collect();
            let x = Tensor::from_f64(DType::F32, &[1, n, 1], line.clone());
            let want = one_by_one(&line);
            for long in [3, 600] {
                for (i, (&got, &want)) in evaluated(&x, long).iter().zip(&want).enumerate() {
                    let near = (got - want).abs() <= 2e-6 + 2e-7 * want.abs();
                    let same = got == want || (got.is_nan() && want.is_nan());
                    assert!(near || same, "{name}: element {i} is {got}, not {want} (long = {long})");
                }
            }
        }
    }

    #[test]
    fn the_work_of_a_line_does_not_grow_with_its_square() {
        for len in [65_537, 1 << 20] {
            let mut cx = Cx::new("t");
            let v = cx.b.push(Op::Input { index: 0 }, vec![], vec![TensorType::fixed(DType::F32, &[1, len])])[0];
            along(&mut cx, v, 1, LONG).expect("types fit");
            let sizes =
                cx.b.graph.nodes.iter().filter(|n| matches!(n.op, Op::Reduce { .. })).map(|n| {
                    cx.shape(n.inputs[0]).iter().map(|d| d.as_const().expect("a fixed size")).product::<i64>()
                });
            let work: i64 = sizes.sum();
            assert!(work <= 2 * CHUNK * (len + CHUNK), "{work} terms for {len} elements");
        }
    }
}
