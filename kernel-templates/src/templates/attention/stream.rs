//! A query in the registers of an invocation, or of several: keys are streamed past it, with the running maximum and sum of the softmax.
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

use super::{CHANNEL, KEY, QUERY, bind_batch, grid, key_end, start};
use crate::asm::{Blocks, Id, Shared, St};
use crate::check::{BuildError, shape};
use crate::emit_expr::Emit;
use crate::expr::{ExprId, Unary};
use crate::spec::{AttentionSpec, Extent, Kernel, Target};
use crate::templates::kernel;

/// f32 in a block of shared memory.
const BLOCK: u32 = 4;

/// The sizes of a spec.
#[derive(Clone, Copy)]
struct Sizes {
    block_keys: u32,
    lanes: u32,
    /// Queries of a workgroup.
    owned: u32,
}

pub(super) fn shared_bytes(spec: &AttentionSpec, block_keys: u32, lanes: u32) -> u32 {
    let tiles = block_keys * (spec.qk_dim.div_ceil(BLOCK) + spec.v_dim.div_ceil(BLOCK)) * 16;
    let merged = if lanes > 1 { spec.wg / lanes * (spec.v_dim + 2) * 4 } else { 0 };
    tiles + merged
}

pub(super) fn build(
    spec: &AttentionSpec,
    target: Target,
    (block_keys, lanes): (u32, u32),
) -> Result<Kernel, BuildError> {
    let s = Sizes { block_keys, lanes, owned: spec.wg / lanes };
    let mut cx = start(spec, target);
    let (first, inside, lane) = bind_query(&mut cx, spec, s);
    let end = key_end(&mut cx, spec, first, s.owned);
    let query = channels(&mut cx, spec.qk_dim, |cx| cx.eval(spec.query));
    let state = match block_keys {
        0 => stream(&mut cx, spec, &query, end),
        _ => stream_blocks(&mut cx, spec, s, &query, (lane, end)),
    };
    let (state, first) = merge_lanes(&mut cx, s, state, lane);
    let stores = cx.asm.land(inside, first);
    cx.if_then(stores, &[], |cx| {
        store(cx, spec, &state);
        vec![]
    });
    Ok(kernel(cx, grid(spec, s.owned)))
}

pub(super) fn check(spec: &AttentionSpec, block_keys: u32, lanes: u32) -> Result<(), BuildError> {
    let shared_evenly = lanes > 0 && spec.wg.is_multiple_of(lanes) && block_keys.is_multiple_of(lanes);
    if !shared_evenly || (lanes > 1 && block_keys == 0) {
        return Err(shape(format!("attention: {lanes} lanes do not share wg={} and block_keys={block_keys}", spec.wg)));
    }
    Ok(())
}

/// Binds batch and query; the workgroup's first query, whether the invocation's exists, and its lane. Those beyond the last compute the last one again, so that all
/// reach the barriers.
fn bind_query(cx: &mut Emit<'_>, spec: &AttentionSpec, s: Sizes) -> (Id, Id, Id) {
    let first = bind_batch(cx, spec, s.owned);
    let local = cx.asm.local_index();
    let (owned, one) = (cx.asm.u32(s.owned), cx.asm.u32(1));
    let lane = cx.quotient_by(local, s.owned);
    let others = cx.asm.imul(lane, owned);
    let within = cx.asm.isub(local, others);
    let query = cx.asm.iadd(first, within);
    let queries = cx.extent(spec.queries);
    let inside = cx.asm.ult(query, queries);
    let end = cx.asm.isub(queries, one);
    let safe = cx.asm.select(inside, query, end);
    cx.bind_axis(QUERY, safe);
    (first, inside, lane)
}

/// A value per channel.
fn channels<'s>(cx: &mut Emit<'s>, n: u32, mut value: impl FnMut(&mut Emit<'s>) -> Id) -> Vec<Id> {
    (0..n)
        .map(|e| {
            cx.scope(|cx| {
                let e = cx.asm.u32(e);
                cx.bind_axis(CHANNEL, e);
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

fn stream(cx: &mut Emit<'_>, spec: &AttentionSpec, query: &[Id], end: Id) -> Vec<Id> {
    let state = initial(cx, spec);
    cx.loop_n(end, &state, |cx, j, state| {
        cx.bind_axis(KEY, j);
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
    fn new(cx: &mut Emit<'_>, s: Sizes, dim: u32) -> Tile {
        Tile { blocks: cx.asm.shared_blocks(s.block_keys * dim.div_ceil(BLOCK)), dim }
    }

    /// All invocations load a block of keys (or values); those beyond the last key are zero.
    fn fill(self, cx: &mut Emit<'_>, block_keys: u32, wg: u32, (start, keys): (Id, Id), element: ExprId) {
        let local = cx.asm.local_index();
        let (total, wg) = (cx.asm.u32(block_keys * self.dim), cx.asm.u32(wg));
        cx.loop_step((local, total, wg), &[], |cx, at, _| {
            let row = cx.quotient_by(at, self.dim);
            let width = cx.asm.u32(self.dim);
            let before = cx.asm.imul(row, width);
            let e = cx.asm.isub(at, before);
            let j = cx.asm.iadd(start, row);
            let exists = cx.asm.ult(j, keys);
            let zero = cx.asm.f32(0.0);
            let value = cx.if_then(exists, &[zero], |cx| {
                cx.bind_axis(KEY, j);
                cx.bind_axis(CHANNEL, e);
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

fn stream_blocks(cx: &mut Emit<'_>, spec: &AttentionSpec, s: Sizes, query: &[Id], (lane, end): (Id, Id)) -> Vec<Id> {
    let (key_tile, value_tile) = (Tile::new(cx, s, spec.qk_dim), Tile::new(cx, s, spec.v_dim));
    let state = initial(cx, spec);
    let keys = cx.extent(spec.keys);
    let part = s.block_keys / s.lanes;
    let together = if part.is_multiple_of(BLOCK) { BLOCK } else { 1 };
    let (zero, block) = (cx.asm.u32(0), cx.asm.u32(s.block_keys));
    let (part, step_size) = (cx.asm.u32(part), cx.asm.u32(together));
    let first = cx.asm.imul(lane, part);
    cx.loop_step((zero, end, block), &state, |cx, start, state| {
        cx.asm.barrier();
        key_tile.fill(cx, s.block_keys, spec.wg, (start, keys), spec.key);
        value_tile.fill(cx, s.block_keys, spec.wg, (start, keys), spec.value);
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
                    existing_score(cx, (spec, s.block_keys), query, &key, (j, keys))
                })
                .collect();
            let values: Vec<Vec<Id>> = rows.iter().map(|&row| value_tile.row(cx, row)).collect();
            step(cx, &scores, &values, state)
        })
    })
}

/// The score of key `j`; that of one beyond the last is hidden.
fn existing_score(
    cx: &mut Emit<'_>,
    (spec, block_keys): (&AttentionSpec, u32),
    query: &[Id],
    key: &[Id],
    (j, keys): (Id, Id),
) -> Id {
    let (one, hidden) = (cx.asm.u32(1), cx.asm.f32(f32::NEG_INFINITY));
    let exists = match spec.keys {
        Extent::Const(n) if n.is_multiple_of(block_keys) => cx.asm.bool(true),
        _ => cx.asm.ult(j, keys),
    };
    let last = cx.asm.isub(keys, one);
    let safe = cx.asm.select(exists, j, last);
    let score = cx.scope(|cx| {
        cx.bind_axis(KEY, safe);
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
fn merge_lanes(cx: &mut Emit<'_>, s: Sizes, state: Vec<Id>, lane: Id) -> (Vec<Id>, Id) {
    if s.lanes == 1 {
        return (state, cx.asm.bool(true));
    }
    let owned = s.owned;
    let exchange = cx.asm.shared_array(St::F32, owned * state.len() as u32);
    let (zero, one, lanes) = (cx.asm.u32(0), cx.asm.u32(1), cx.asm.u32(s.lanes));
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
            cx.bind_axis(CHANNEL, e);
            cx.bind_arg(0, result);
            cx.stores(&spec.stores);
        });
    }
}
