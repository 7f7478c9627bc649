//! Flash attention: keys are streamed past a query that one invocation owns, with the running maximum and sum of the softmax.
//!
//! ```text
//! parallel for b, i:                                   q[e] in registers
//!     m = -inf; l = 0; o[e] = 0
//!     for block of keys:                               block_keys > 0: k, v of the block in shared memory, loaded by all invocations
//!         for j in block:
//!             s = score(q · k[j])
//!             m' = max(m, s); c = exp(m - m'); p = exp(s - m')
//!             l = l·c + p; o[e] = o[e]·c + p·v[j,e]; m = m'
//!     o[e] = o[e] / l                                  0 / 0 where every score is -inf: 0 or NaN by `zero_masked_rows`
//!     stores
//! ```
//!
//! Traffic: keys and values once per workgroup (once per invocation without blocks), queries and results once. Scores never leave registers.

use crate::asm::{Id, St};
use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::eval::{Runner, Tape, Value};
use crate::expr::{ExprId, Unary};
use crate::host::{Memory, Point, for_each_point};
use crate::limits::{Limits, Reject};
use crate::reference::StoreTape;
use crate::spec::{AttentionSpec, Extent, Grid, GridFactor, Kernel, Target};
use crate::templates::kernel;

/// Largest head: query and output channels are registers of one invocation.
const MAX_DIM: u32 = 256;

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &AttentionSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    index_space(&[spec.batch, spec.queries])?;
    let dim = spec.qk_dim.max(spec.v_dim);
    if dim > MAX_DIM {
        return Err(Reject::Shape { reason: format!("attention heads of {dim} channels (at most {MAX_DIM})") });
    }
    let need = shared_bytes(spec);
    if need > limits.shared_bytes { Err(Reject::Shared { need, limit: limits.shared_bytes }) } else { Ok(()) }
}

fn shared_bytes(spec: &AttentionSpec) -> u32 {
    spec.block_keys * (spec.qk_dim + spec.v_dim) * 4
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &AttentionSpec, target: Target) -> Result<Kernel, BuildError> {
    check(spec)?;
    let sizes = [spec.batch, spec.queries, spec.keys];
    let axes = [sizes[0], sizes[1], sizes[2], Extent::Const(spec.qk_dim.max(spec.v_dim))];
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &axes, target, spec.wg);
    cx.load_symbols(&sizes);
    let inside = bind_query(&mut cx, spec);
    let query = channels(&mut cx, spec.qk_dim, |cx| cx.eval(spec.query));
    let state = if spec.block_keys == 0 { stream(&mut cx, spec, &query) } else { stream_blocks(&mut cx, spec, &query) };
    cx.if_then(inside, &[], |cx| {
        store(cx, spec, &state);
        vec![]
    });
    let queries = GridFactor { extents: vec![spec.queries], divisor: spec.wg };
    let batch = GridFactor { extents: vec![spec.batch], divisor: 1 };
    Ok(kernel(cx, Grid::linear(vec![batch, queries])))
}

fn check(spec: &AttentionSpec) -> Result<(), BuildError> {
    if spec.wg == 0 || spec.qk_dim == 0 || spec.v_dim == 0 {
        return Err(shape(format!("attention: wg={} qk_dim={} v_dim={}", spec.wg, spec.qk_dim, spec.v_dim)));
    }
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    check.interface(&[spec.batch, spec.queries, spec.keys])?;
    let f32_value = |what, axes: &[u8], args: &[Ty], id| check.value(Scope { what, axes, args }, id, Ty::F32);
    f32_value("query", &[0, 1, 3], &[], spec.query)?;
    f32_value("key", &[0, 2, 3], &[], spec.key)?;
    f32_value("value", &[0, 2, 3], &[], spec.value)?;
    f32_value("score", &[0, 1, 2], &[Ty::F32], spec.score)?;
    check.stores(Scope { what: "attention", axes: &[0, 1, 3], args: &[Ty::F32] }, &spec.stores)
}

/// Binds batch and query; whether the query exists. Those beyond the last compute the last one again, so that all reach the barriers.
fn bind_query(cx: &mut Emit<'_>, spec: &AttentionSpec) -> Id {
    let (group, local) = (cx.asm.workgroup_index(), cx.asm.local_index());
    let queries = cx.extent(spec.queries);
    let (wg, one) = (cx.asm.u32(spec.wg), cx.asm.u32(1));
    let last = cx.asm.u32(spec.wg - 1);
    let padded = cx.asm.iadd(queries, last);
    let blocks = cx.asm.udiv(padded, wg);
    let batch = cx.asm.udiv(group, blocks);
    let n_batch = cx.extent(spec.batch);
    let beyond = cx.asm.ule(n_batch, batch);
    cx.asm.return_if(beyond);
    let before = cx.asm.imul(batch, blocks);
    let block = cx.asm.isub(group, before);
    let first = cx.asm.imul(block, wg);
    let query = cx.asm.iadd(first, local);
    let inside = cx.asm.ult(query, queries);
    let end = cx.asm.isub(queries, one);
    let safe = cx.asm.select(inside, query, end);
    cx.bind_axis(0, batch);
    cx.bind_axis(1, safe);
    inside
}

/// A value per channel.
fn channels<'s>(cx: &mut Emit<'s>, n: u32, mut value: impl FnMut(&mut Emit<'s>) -> Id) -> Vec<Id> {
    (0..n)
        .map(|e| {
            cx.scope(|cx| {
                let e = cx.asm.u32(e);
                cx.bind_axis(3, e);
                value(cx)
            })
        })
        .collect()
}

/// Running softmax: maximum, sum, then the output channels.
fn initial(cx: &mut Emit<'_>, spec: &AttentionSpec) -> Vec<Id> {
    let mut state = vec![cx.asm.f32(f32::NEG_INFINITY)];
    state.resize(spec.v_dim as usize + 2, cx.asm.f32(0.0));
    state
}

fn stream(cx: &mut Emit<'_>, spec: &AttentionSpec, query: &[Id]) -> Vec<Id> {
    let state = initial(cx, spec);
    let keys = cx.extent(spec.keys);
    cx.loop_n(keys, &state, |cx, j, state| {
        cx.bind_axis(2, j);
        let key = channels(cx, spec.qk_dim, |cx| cx.eval(spec.key));
        let value = channels(cx, spec.v_dim, |cx| cx.eval(spec.value));
        step(cx, spec, query, &key, &value, state)
    })
}

fn stream_blocks(cx: &mut Emit<'_>, spec: &AttentionSpec, query: &[Id]) -> Vec<Id> {
    let key_tile = cx.asm.shared_array(St::F32, spec.block_keys * spec.qk_dim);
    let value_tile = cx.asm.shared_array(St::F32, spec.block_keys * spec.v_dim);
    let state = initial(cx, spec);
    let keys = cx.extent(spec.keys);
    let (zero, block) = (cx.asm.u32(0), cx.asm.u32(spec.block_keys));
    cx.loop_step((zero, keys, block), &state, |cx, start, state| {
        cx.asm.barrier();
        fill(cx, spec, key_tile, (start, keys), spec.qk_dim, spec.key);
        fill(cx, spec, value_tile, (start, keys), spec.v_dim, spec.value);
        cx.asm.barrier();
        let left = cx.asm.isub(keys, start);
        let short = cx.asm.ult(left, block);
        let count = cx.asm.select(short, left, block);
        cx.loop_n(count, state, |cx, at, state| {
            let j = cx.asm.iadd(start, at);
            cx.bind_axis(2, j);
            let key = tile_row(cx, key_tile, at, spec.qk_dim);
            let value = tile_row(cx, value_tile, at, spec.v_dim);
            step(cx, spec, query, &key, &value, state)
        })
    })
}

/// All invocations load a block of keys (or values); those beyond the last key are left as they are.
fn fill(
    cx: &mut Emit<'_>,
    spec: &AttentionSpec,
    tile: crate::asm::Shared,
    (start, keys): (Id, Id),
    dim: u32,
    element: ExprId,
) {
    let local = cx.asm.local_index();
    let (total, wg) = (cx.asm.u32(spec.block_keys * dim), cx.asm.u32(spec.wg));
    cx.loop_step((local, total, wg), &[], |cx, at, _| {
        let row = cx.quotient_by(at, dim);
        let width = cx.asm.u32(dim);
        let before = cx.asm.imul(row, width);
        let e = cx.asm.isub(at, before);
        let j = cx.asm.iadd(start, row);
        let exists = cx.asm.ult(j, keys);
        cx.if_then(exists, &[], |cx| {
            cx.bind_axis(2, j);
            cx.bind_axis(3, e);
            let value = cx.eval(element);
            cx.asm.store_shared(tile, at, value);
            vec![]
        });
        vec![]
    });
}

fn tile_row(cx: &mut Emit<'_>, tile: crate::asm::Shared, row: Id, dim: u32) -> Vec<Id> {
    let width = cx.asm.u32(dim);
    let first = cx.asm.imul(row, width);
    (0..dim)
        .map(|e| {
            let e = cx.asm.u32(e);
            let at = cx.asm.iadd(first, e);
            cx.asm.load_shared(tile, at)
        })
        .collect()
}

/// One key: the new maximum, sum and output channels.
fn step(cx: &mut Emit<'_>, spec: &AttentionSpec, query: &[Id], key: &[Id], value: &[Id], state: &[Id]) -> Vec<Id> {
    let zero = cx.asm.f32(0.0);
    let dot = query.iter().zip(key).fold(zero, |acc, (&q, &k)| cx.asm.mul_add(q, k, acc));
    let score = cx.scope(|cx| {
        cx.bind_arg(0, dot);
        cx.eval(spec.score)
    });
    let (max, sum, out) = (state[0], state[1], &state[2..]);
    let new_max = cx.asm.fmax_nan(max, score);
    let hidden = cx.asm.f32(f32::NEG_INFINITY);
    let nothing_yet = cx.asm.feq(new_max, hidden);
    // exp(-inf - -inf) would be NaN; nothing has been summed yet, so any finite factor does.
    let base = cx.asm.select(nothing_yet, zero, new_max);
    let old = cx.asm.fsub(max, base);
    let correction = exp(cx, old);
    let shifted = cx.asm.fsub(score, base);
    let weight = exp(cx, shifted);
    let mut next = vec![new_max, cx.asm.mul_add(sum, correction, weight)];
    for (&o, &v) in out.iter().zip(value) {
        let kept = cx.asm.fmul(o, correction);
        next.push(cx.asm.mul_add(weight, v, kept));
    }
    next
}

fn exp(cx: &mut Emit<'_>, x: Id) -> Id {
    cx.asm.elementary(Unary::Exp, x).expect("exp of f32 is elementary")
}

fn store(cx: &mut Emit<'_>, spec: &AttentionSpec, state: &[Id]) {
    let (sum, zero) = (state[1], cx.asm.f32(0.0));
    let empty = cx.asm.feq(sum, zero);
    for (e, &channel) in state[2..].iter().enumerate() {
        let mut result = cx.asm.fdiv(channel, sum);
        if spec.zero_masked_rows {
            result = cx.asm.select(empty, zero, result);
        }
        cx.scope(|cx| {
            let e = cx.asm.u32(e as u32);
            cx.bind_axis(3, e);
            cx.bind_arg(0, result);
            cx.stores(&spec.stores);
        });
    }
}

/// The plainest form: all scores of a row, their softmax, the weighted sum of the values; in f64.
pub(crate) fn reference(spec: &AttentionSpec, memory: &mut Memory) {
    let (rows, keys) = (memory.extents(&[spec.batch, spec.queries]), memory.extent(spec.keys));
    let tapes = [spec.query, spec.key, spec.value, spec.score].map(|root| Tape::new(&spec.exprs, &[root]));
    let [mut query, mut key, mut value, mut score] = tapes.each_ref().map(Tape::runner);
    let stores = StoreTape::new(&spec.exprs, &spec.stores);
    let mut writer = stores.runner();
    for_each_point(&rows, &mut vec![], &mut |row| {
        let (b, i) = (row[0], row[1]);
        let at = |runner: &mut Runner<'_>, memory: &Memory, j: i32, e: u32, args: &[Value]| {
            runner.run(&Point { memory, axes: &[b, i, j, e as i32], args });
            runner.get(0).to_f64()
        };
        let mut scores = vec![];
        for j in 0..keys as i32 {
            let mut dot = 0.0;
            for e in 0..spec.qk_dim {
                dot += at(&mut query, memory, j, e, &[]) * at(&mut key, memory, j, e, &[]);
            }
            scores.push(at(&mut score, memory, j, 0, &[Value::F32(dot as f32)]));
        }
        let weights = softmax(&scores, spec.zero_masked_rows);
        for e in 0..spec.v_dim {
            let mut sum = 0.0;
            for (j, weight) in (0..).zip(&weights) {
                sum += weight * at(&mut value, memory, j, e, &[]);
            }
            // No key at all is as good as all of them hidden.
            let sum = if weights.is_empty() && !spec.zero_masked_rows { f64::NAN } else { sum };
            stores.run(&mut writer, memory, &[b, i, 0, e as i32], &[Value::F32(sum as f32)]);
        }
    });
}

/// The definition of softmax, but that the largest score is subtracted first. Where all scores are −∞ it is NaN, or 0 on demand.
fn softmax(scores: &[f64], zero_if_hidden: bool) -> Vec<f64> {
    if zero_if_hidden && scores.iter().all(|s| *s == f64::NEG_INFINITY) {
        return vec![0.0; scores.len()];
    }
    let max = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
    let exps: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| e / sum).collect()
}
