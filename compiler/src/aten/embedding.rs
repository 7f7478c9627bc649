//! Embedding tables and bags of embeddings.

use super::cx::Built;
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::{DType, Dim, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::ExprId;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.embedding.default"], rule: embedding },
    AtenOp { names: &["aten.embedding_bag.default", "aten.embedding_bag.padding_idx"], rule: embedding_bag },
    AtenOp { names: &["aten._embedding_bag.default", "aten._embedding_bag_forward_only.default"], rule: embedding_bag },
];

fn embedding(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (table, at) = (call.tensor(cx, "weight")?, call.tensor(cx, "indices")?);
    let rows = cx.size(table, 0);
    let (mut shape, rank) = (cx.shape(at), cx.rank(at));
    shape.push(cx.size(table, 1));
    let y = cx.compute(shape, cx.tensor_dtype(table), &[table, at], |b, axes| {
        let i = b.load(1, &axes[..rank]);
        let row = b.wrap_index(i, &rows);
        b.load(0, &[row, axes[rank]])
    })?;
    Ok(vec![Val::Tensor(y)])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Sum,
    Mean,
    Max,
}

/// A call's operands: bag b holds positions `offsets[b] .. offsets[b + 1]` of the indices.
struct Bags {
    table: ValueId,
    at: ValueId,
    /// i64, one per bag, and the end of the last.
    bounds: ValueId,
    weights: Option<ValueId>,
    padding: Option<i64>,
    n_bags: Dim,
}

impl Bags {
    fn read(cx: &mut Cx, call: &Call<'_>) -> Result<Bags, Diagnostic> {
        let (table, at) = (call.tensor(cx, "weight")?, call.tensor(cx, "indices")?);
        let offsets = call.tensor(cx, "offsets")?;
        if cx.rank(at) != 1 {
            return Err(bad_argument(format!("{}: indices {} are not a vector", call.target, cx.ty(at))));
        }
        let offsets = cx.cast(offsets, DType::I64)?;
        let (bounds, n_bags) = if call.bool("include_last_offset")? {
            (offsets, &cx.size(offsets, 0) - &Dim::from(1))
        } else {
            let end = cx.dim_tensor(&cx.size(at, 0), DType::I64)?;
            let end = cx.to_rank(end, 1)?;
            (cx.concat(&[offsets, end], 0)?, cx.size(offsets, 0))
        };
        let padding = if call.has("padding_idx") { call.opt_int("padding_idx")? } else { None };
        // The forms without dispatch give −1 for none; elsewhere a negative index counts from the end.
        let padding = match (padding, call.target.starts_with("aten._embedding_bag")) {
            (Some(p), true) if p < 0 => None,
            (Some(p), false) if p < 0 => cx.size(table, 0).as_const().map(|n| n + p),
            (p, _) => p,
        };
        Ok(Bags { table, at, bounds, weights: call.opt_tensor(cx, "per_sample_weights")?, padding, n_bags })
    }

    /// The operands of bodies, in the order that [`Bags::member`] and [`Bags::row`] read them.
    fn inputs(&self) -> Vec<ValueId> {
        [self.table, self.at, self.bounds].into_iter().chain(self.weights).collect()
    }

    /// True if position `i` belongs to bag `bag` and is no padding.
    fn member(&self, b: &mut super::BodyBuilder, bag: ExprId, i: ExprId) -> ExprId {
        let one = b.int(1);
        let next = b.add(bag, one);
        let (start, end) = (b.load(2, &[bag]), b.load(2, &[next]));
        let (start, end) = (b.cast(Ty::I32, start), b.cast(Ty::I32, end));
        let (after, before) = (b.le(start, i), b.lt(i, end));
        let inside = b.and(after, before);
        let Some(padding) = self.padding else { return inside };
        let index = b.load(1, &[i]);
        let padding = b.like(index, padding as f64);
        let counts = b.ne(index, padding);
        b.and(inside, counts)
    }

    /// Element `d` of the embedding at position `i`.
    fn row(&self, b: &mut super::BodyBuilder, i: ExprId, d: ExprId, rows: &Dim, ty: Ty) -> ExprId {
        let index = b.load(1, &[i]);
        let row = b.wrap_index(index, rows);
        let value = b.load(0, &[row, d]);
        let value = b.cast(ty, value);
        if self.weights.is_none() {
            return value;
        }
        let w = b.load(3, &[i]);
        let w = b.cast(ty, w);
        b.mul(value, w)
    }

    /// Members of each bag.
    fn sizes(&self, cx: &mut Cx) -> Built {
        let shape = vec![self.n_bags.clone(), cx.size(self.at, 0)];
        let member = cx.compute(shape, DType::I32, &self.inputs(), |b, axes| {
            let m = self.member(b, axes[0], axes[1]);
            b.cast(Ty::I32, m)
        })?;
        cx.reduce(member, Combine::Sum, &[1], false, DType::I32)
    }

    /// `[bags, features]`. Every bag looks at every index: bags are short and few where this operator is used.
    fn combined(&self, cx: &mut Cx, mode: Mode, sizes: ValueId) -> Built {
        let dtype = cx.tensor_dtype(self.table);
        let acc = super::norm::accumulator(dtype);
        let (rows, ty) = (cx.size(self.table, 0), acc.ty());
        let shape = vec![self.n_bags.clone(), cx.size(self.table, 1), cx.size(self.at, 0)];
        let skip = if mode == Mode::Max { f64::NEG_INFINITY } else { 0.0 };
        let spread = cx.compute(shape, acc, &self.inputs(), |b, axes| {
            let member = self.member(b, axes[0], axes[2]);
            let (value, skip) = (self.row(b, axes[2], axes[1], &rows, ty), b.lit(ty, skip));
            b.select(member, value, skip)
        })?;
        let combine = if mode == Mode::Max { Combine::Max } else { Combine::Sum };
        let total = cx.reduce(spread, combine, &[2], false, acc)?;
        let sizes = cx.unsqueeze(sizes, 1)?;
        cx.map2(total, sizes, dtype, |b, t, n| {
            let (zero, one) = (b.int(0), b.int(1));
            let some = b.lt(zero, n);
            let n = b.max(n, one);
            let n = b.cast(ty, n);
            let y = if mode == Mode::Mean { b.div(t, n) } else { t };
            let empty = b.lit(ty, 0.0);
            b.select(some, y, empty)
        })
    }

    /// Bag of each position.
    fn bag_of_position(&self, cx: &mut Cx) -> Built {
        let shape = vec![cx.size(self.at, 0), self.n_bags.clone()];
        let started = cx.compute(shape, DType::I64, &[self.bounds], |b, axes| {
            let start = b.load(0, &[axes[1]]);
            let start = b.cast(Ty::I32, start);
            let started = b.le(start, axes[0]);
            b.cast(Ty::I64, started)
        })?;
        let count = cx.reduce(started, Combine::Sum, &[1], false, DType::I64)?;
        cx.map1(count, |b, n| {
            let one = b.like(n, 1.0);
            b.sub(n, one)
        })
    }
}

/// The result, and what the backward pass would need. Of the latter only the sizes and owners of bags have values; `max_indices` has
/// none, so a program that reads it is refused where it does.
fn embedding_bag(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let mode = match call.int("mode")? {
        0 => Mode::Sum,
        1 => Mode::Mean,
        2 => Mode::Max,
        m => return Err(bad_argument(format!("{}: mode={m}", call.target))),
    };
    let bags = Bags::read(cx, call)?;
    if bags.weights.is_some() && mode != Mode::Sum {
        return Err(bad_argument(format!("{}: per_sample_weights with mode {mode:?}", call.target)));
    }
    let sizes = bags.sizes(cx)?;
    let y = bags.combined(cx, mode, sizes)?;
    let mut results = vec![Val::Tensor(y)];
    for i in 1..call.node.outputs.len() {
        let Some(meta) = call.meta(i) else {
            results.push(Val::None);
            continue;
        };
        let v = match i {
            1 if meta.sizes == [cx.size(bags.at, 0)] => Some(bags.bag_of_position(cx)?),
            2 if meta.sizes == [bags.n_bags.clone()] => Some(sizes),
            _ if meta.sizes == [Dim::from(0)] => Some(cx.full_int(vec![Dim::from(0)], DType::I64, 0)?),
            _ => None,
        };
        results.push(match v {
            Some(v) => Val::Tensor(super::norm::as_recorded(cx, call, i, v)?),
            None => Val::None,
        });
    }
    Ok(results)
}
