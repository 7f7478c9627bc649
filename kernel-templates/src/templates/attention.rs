//! Flash attention: keys are streamed past a query in registers, with the running maximum and sum of the softmax.
//!
//! ```text
//! parallel for b, i, lane:                             q[e] in registers
//!     m = -inf; l = 0; o[e] = 0
//!     for block of keys:                               block_keys > 0: k, v of the block in shared memory, loaded by all invocations
//!         for js in the lane's part of the block:      four keys at a time where the part is a multiple of four
//!             s = score(q · k[js])
//!             m' = max(m, s); c = exp(m - m'); p = exp(s - m')
//!             l = l·c + sum(p); o[e] = o[e]·c + sum(p·v[js,e]); m = m'
//!     lane 0 adds what the other lanes of its query have, brought to one maximum, lane by lane
//!     o[e] = o[e] / l                                  0 / 0 where every score is -inf: 0 or NaN by `zero_masked_rows`
//!     stores
//! ```
//!
//! Traffic: keys and values once per workgroup (once per invocation without blocks), queries and results once. Scores never leave registers.
//! Invocations of a subgroup share a lane where there are enough queries, so that all read the same key: one access for all of them.

use crate::asm::{Blocks, Id, Shared, St};
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

/// f32 in a block of shared memory.
const BLOCK: u32 = 4;

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
    let tiles = spec.block_keys * (spec.qk_dim.div_ceil(BLOCK) + spec.v_dim.div_ceil(BLOCK)) * 16;
    let merged = if spec.lanes > 1 { owned_queries(spec) * (spec.v_dim + 2) * 4 } else { 0 };
    tiles + merged
}

/// Queries of a workgroup.
fn owned_queries(spec: &AttentionSpec) -> u32 {
    spec.wg / spec.lanes
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
    let (inside, lane) = bind_query(&mut cx, spec);
    let query = channels(&mut cx, spec.qk_dim, |cx| cx.eval(spec.query));
    let state = match spec.block_keys {
        0 => stream(&mut cx, spec, &query),
        _ => stream_blocks(&mut cx, spec, &query, lane),
    };
    let (state, first) = merge_lanes(&mut cx, spec, state, lane);
    let stores = cx.asm.land(inside, first);
    cx.if_then(stores, &[], |cx| {
        store(cx, spec, &state);
        vec![]
    });
    let queries = GridFactor { extents: vec![spec.queries], divisor: owned_queries(spec) };
    let batch = GridFactor { extents: vec![spec.batch], divisor: 1 };
    Ok(kernel(cx, Grid::linear(vec![batch, queries])))
}

fn check(spec: &AttentionSpec) -> Result<(), BuildError> {
    if spec.wg == 0 || spec.qk_dim == 0 || spec.v_dim == 0 {
        return Err(shape(format!("attention: wg={} qk_dim={} v_dim={}", spec.wg, spec.qk_dim, spec.v_dim)));
    }
    let shared_evenly =
        spec.lanes > 0 && spec.wg.is_multiple_of(spec.lanes) && spec.block_keys.is_multiple_of(spec.lanes);
    if !shared_evenly || (spec.lanes > 1 && spec.block_keys == 0) {
        return Err(shape(format!(
            "attention: {} lanes do not share wg={} and block_keys={}",
            spec.lanes, spec.wg, spec.block_keys
        )));
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

/// Binds batch and query; whether the query exists, and the invocation's lane. Those beyond the last compute the last one again, so that all
/// reach the barriers.
fn bind_query(cx: &mut Emit<'_>, spec: &AttentionSpec) -> (Id, Id) {
    let (group, local) = (cx.asm.workgroup_index(), cx.asm.local_index());
    let queries = cx.extent(spec.queries);
    let (owned, one) = (cx.asm.u32(owned_queries(spec)), cx.asm.u32(1));
    let last = cx.asm.u32(owned_queries(spec) - 1);
    let padded = cx.asm.iadd(queries, last);
    let blocks = cx.asm.udiv(padded, owned);
    let batch = cx.asm.udiv(group, blocks);
    let n_batch = cx.extent(spec.batch);
    let beyond = cx.asm.ule(n_batch, batch);
    cx.asm.return_if(beyond);
    let before = cx.asm.imul(batch, blocks);
    let block = cx.asm.isub(group, before);
    let first = cx.asm.imul(block, owned);
    let lane = cx.quotient_by(local, owned_queries(spec));
    let others = cx.asm.imul(lane, owned);
    let within = cx.asm.isub(local, others);
    let query = cx.asm.iadd(first, within);
    let inside = cx.asm.ult(query, queries);
    let end = cx.asm.isub(queries, one);
    let safe = cx.asm.select(inside, query, end);
    cx.bind_axis(0, batch);
    cx.bind_axis(1, safe);
    (inside, lane)
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
        let score = score(cx, spec, query, &key);
        step(cx, &[score], &[value], state)
    })
}

/// A tile of shared memory: a row of whole blocks per key.
#[derive(Clone, Copy)]
struct Tile {
    blocks: Blocks,
    dim: u32,
}

impl Tile {
    fn new(cx: &mut Emit<'_>, spec: &AttentionSpec, dim: u32) -> Tile {
        Tile { blocks: cx.asm.shared_blocks(spec.block_keys * dim.div_ceil(BLOCK)), dim }
    }

    /// All invocations load a block of keys (or values); those beyond the last key are zero.
    fn fill(self, cx: &mut Emit<'_>, spec: &AttentionSpec, (start, keys): (Id, Id), element: ExprId) {
        let local = cx.asm.local_index();
        let (total, wg) = (cx.asm.u32(spec.block_keys * self.dim), cx.asm.u32(spec.wg));
        cx.loop_step((local, total, wg), &[], |cx, at, _| {
            let row = cx.quotient_by(at, self.dim);
            let width = cx.asm.u32(self.dim);
            let before = cx.asm.imul(row, width);
            let e = cx.asm.isub(at, before);
            let j = cx.asm.iadd(start, row);
            let exists = cx.asm.ult(j, keys);
            let zero = cx.asm.f32(0.0);
            let value = cx.if_then(exists, &[zero], |cx| {
                cx.bind_axis(2, j);
                cx.bind_axis(3, e);
                vec![cx.eval(element)]
            });
            let first = self.first_block(cx, row);
            let block = cx.quotient_by(e, BLOCK);
            let (four, slot) = (cx.asm.u32(BLOCK), cx.asm.iadd(first, block));
            let before = cx.asm.imul(block, four);
            let word = cx.asm.isub(e, before);
            cx.asm.store_block_f32(self.blocks, slot, word, value[0]);
            vec![]
        });
    }

    fn first_block(self, cx: &mut Emit<'_>, row: Id) -> Id {
        let pitch = cx.asm.u32(self.dim.div_ceil(BLOCK));
        cx.asm.imul(row, pitch)
    }

    /// The channels of a key.
    fn row(self, cx: &mut Emit<'_>, row: Id) -> Vec<Id> {
        let first = self.first_block(cx, row);
        let load = |block| {
            let block = cx.asm.u32(block);
            let at = cx.asm.iadd(first, block);
            cx.asm.load_block_f32s(self.blocks, at)
        };
        (0..self.dim.div_ceil(BLOCK)).flat_map(load).take(self.dim as usize).collect()
    }
}

fn stream_blocks(cx: &mut Emit<'_>, spec: &AttentionSpec, query: &[Id], lane: Id) -> Vec<Id> {
    let (key_tile, value_tile) = (Tile::new(cx, spec, spec.qk_dim), Tile::new(cx, spec, spec.v_dim));
    let state = initial(cx, spec);
    let keys = cx.extent(spec.keys);
    let part = spec.block_keys / spec.lanes;
    let together = if part.is_multiple_of(BLOCK) { BLOCK } else { 1 };
    let (zero, block) = (cx.asm.u32(0), cx.asm.u32(spec.block_keys));
    let (part, step_size) = (cx.asm.u32(part), cx.asm.u32(together));
    let first = cx.asm.imul(lane, part);
    cx.loop_step((zero, keys, block), &state, |cx, start, state| {
        cx.asm.barrier();
        key_tile.fill(cx, spec, (start, keys), spec.key);
        value_tile.fill(cx, spec, (start, keys), spec.value);
        cx.asm.barrier();
        cx.loop_step((zero, part, step_size), state, |cx, at, state| {
            let at = cx.asm.iadd(first, at);
            let rows: Vec<Id> = (0..together)
                .map(|i| {
                    let i = cx.asm.u32(i);
                    cx.asm.iadd(at, i)
                })
                .collect();
            let scores: Vec<Id> = rows
                .iter()
                .map(|&row| {
                    let key = key_tile.row(cx, row);
                    let j = cx.asm.iadd(start, row);
                    existing_score(cx, spec, query, &key, (j, keys))
                })
                .collect();
            let values: Vec<Vec<Id>> = rows.iter().map(|&row| value_tile.row(cx, row)).collect();
            step(cx, &scores, &values, state)
        })
    })
}

/// The score of key `j`; that of one beyond the last is hidden.
fn existing_score(cx: &mut Emit<'_>, spec: &AttentionSpec, query: &[Id], key: &[Id], (j, keys): (Id, Id)) -> Id {
    let (one, hidden) = (cx.asm.u32(1), cx.asm.f32(f32::NEG_INFINITY));
    let exists = match spec.keys {
        Extent::Const(n) if n.is_multiple_of(spec.block_keys) => cx.asm.bool(true),
        _ => cx.asm.ult(j, keys),
    };
    let last = cx.asm.isub(keys, one);
    let safe = cx.asm.select(exists, j, last);
    let score = cx.scope(|cx| {
        cx.bind_axis(2, safe);
        score(cx, spec, query, key)
    });
    cx.asm.select(exists, score, hidden)
}

/// The score of the bound key.
fn score(cx: &mut Emit<'_>, spec: &AttentionSpec, query: &[Id], key: &[Id]) -> Id {
    let zero = cx.asm.f32(0.0);
    let dot = query.iter().zip(key).fold(zero, |acc, (&q, &k)| cx.asm.mul_add(q, k, acc));
    cx.scope(|cx| {
        cx.bind_arg(0, dot);
        cx.eval(spec.score)
    })
}

/// A maximum, and what exponents are taken against: exp(-inf - -inf) would be NaN; while nothing has been summed, any finite base does.
fn base_of(cx: &mut Emit<'_>, max: Id) -> Id {
    let (zero, hidden) = (cx.asm.f32(0.0), cx.asm.f32(f32::NEG_INFINITY));
    let nothing_yet = cx.asm.feq(max, hidden);
    cx.asm.select(nothing_yet, zero, max)
}

fn exp_from(cx: &mut Emit<'_>, x: Id, base: Id) -> Id {
    let shifted = cx.asm.fsub(x, base);
    exp(cx, shifted)
}

/// Some keys: the new maximum, sum and output channels.
fn step(cx: &mut Emit<'_>, scores: &[Id], values: &[Vec<Id>], state: &[Id]) -> Vec<Id> {
    let (max, sum, out) = (state[0], state[1], &state[2..]);
    let new_max = scores.iter().fold(max, |max, &score| cx.asm.fmax_nan(max, score));
    let base = base_of(cx, new_max);
    let correction = exp_from(cx, max, base);
    let weights: Vec<Id> = scores.iter().map(|&score| exp_from(cx, score, base)).collect();
    let kept = cx.asm.fmul(sum, correction);
    let mut next = vec![new_max, weights.iter().fold(kept, |sum, &w| cx.asm.fadd(sum, w))];
    for (e, &o) in out.iter().enumerate() {
        let kept = cx.asm.fmul(o, correction);
        next.push(weights.iter().zip(values).fold(kept, |acc, (&w, v)| cx.asm.mul_add(w, v[e], acc)));
    }
    next
}

/// The state of a query over all its lanes, which lane 0 has; and whether the invocation is that.
fn merge_lanes(cx: &mut Emit<'_>, spec: &AttentionSpec, state: Vec<Id>, lane: Id) -> (Vec<Id>, Id) {
    if spec.lanes == 1 {
        return (state, cx.asm.bool(true));
    }
    let owned = owned_queries(spec);
    let exchange = cx.asm.shared_array(St::F32, owned * state.len() as u32);
    let (zero, one, lanes) = (cx.asm.u32(0), cx.asm.u32(1), cx.asm.u32(spec.lanes));
    let is_first = cx.asm.ieq(lane, zero);
    let (local, width) = (cx.asm.local_index(), cx.asm.u32(owned));
    let others = cx.asm.imul(lane, width);
    let query = cx.asm.isub(local, others);
    let slots: Vec<Id> = (0..state.len() as u32)
        .map(|i| {
            let before = cx.asm.u32(i * owned);
            cx.asm.iadd(before, query)
        })
        .collect();
    let merged = cx.loop_step((one, lanes, one), &state, |cx, from, state| {
        cx.asm.barrier();
        let gives = cx.asm.ieq(lane, from);
        cx.if_then(gives, &[], |cx| {
            slots.iter().zip(state).for_each(|(&slot, &value)| cx.asm.store_shared(exchange, slot, value));
            vec![]
        });
        cx.asm.barrier();
        cx.if_then(is_first, state, |cx| add_state(cx, exchange, &slots, state))
    });
    (merged, is_first)
}

/// `state` and the one in shared memory as one.
fn add_state(cx: &mut Emit<'_>, exchange: Shared, slots: &[Id], state: &[Id]) -> Vec<Id> {
    let other: Vec<Id> = slots.iter().map(|&slot| cx.asm.load_shared(exchange, slot)).collect();
    let max = cx.asm.fmax_nan(state[0], other[0]);
    let base = base_of(cx, max);
    let (mine, theirs) = (exp_from(cx, state[0], base), exp_from(cx, other[0], base));
    let mut next = vec![max];
    for (&a, &b) in state[1..].iter().zip(&other[1..]) {
        let a = cx.asm.fmul(a, mine);
        next.push(cx.asm.mul_add(b, theirs, a));
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
