//! A workgroup for each query and each part of the keys: what attention of few queries is made of where heads are too few for a device.
//!
//! ```text
//! parallel for b, i, part (a workgroup each):          n = keys of the part, none beyond the last
//!     s[j] = score(q · k[j]); m = max s                an invocation a key; scores in shared memory
//!     p[j] = exp(s[j] - m); l = sum p                  m = 0 where every score is -inf
//!     o[e] = sum p[j]·v[j,e] / l                       invocations side by side along e, in slices along j; 0 where l is 0
//!     stores of o[0..v_dim], and of m + log l as one more channel
//! ```
//!
//! Traffic: each key and value once a query. Everything that is loaded for a key or a few values is asked for before the first of it is used,
//! since a workgroup has no other work to wait with. What the parts give is combined by whoever reads it, with weights `exp(m + log l − …)`.

use super::{BATCH, CHANNEL, KEY, QUERY, axes};
use crate::asm::{Glsl, Id, Shared, St};
use crate::check::{BuildError, shape};
use crate::emit_expr::Emit;
use crate::emit_group::Groups;
use crate::emit_ops::emit_unary;
use crate::eval::Value;
use crate::expr::{ExprId, Unary};
use crate::spec::{AttentionSpec, Extent, Grid, GridFactor, Kernel, KeyParts, Target};
use crate::templates::kernel;

/// Values that an invocation asks for before it uses the first.
const AHEAD: u32 = 8;
/// Partial results that one invocation merges between two barriers, and at most at the end.
const MEETING: u32 = 8;

/// How invocations share out the channels of values.
#[derive(Clone, Copy)]
struct Spread {
    /// Consecutive channels of an invocation, and how many invocations have all of them.
    size: u32,
    across: u32,
    /// Keys that are looked at side by side.
    slices: u32,
}

fn groups(spec: &AttentionSpec, root: ExprId, dim: u32) -> Option<Groups> {
    Groups::of((&spec.exprs, &spec.interface, &axes(spec, dim)), &[root], &[], CHANNEL)
}

fn spread(spec: &AttentionSpec) -> Spread {
    let size = groups(spec, spec.value, spec.v_dim).map_or(1, |g| g.size);
    let across = spec.v_dim / size;
    Spread { size, across, slices: spec.wg / across.max(1) }
}

pub(super) fn shared_bytes(spec: &AttentionSpec, p: KeyParts) -> u32 {
    // Whatever the blocks are: an upper bound is wg groups of eight.
    4 * (p.len + 2 * spec.wg + spread(spec).slices * spec.v_dim)
}

pub(super) fn check(spec: &AttentionSpec, p: KeyParts) -> Result<(), BuildError> {
    if spec.causal || p.count == 0 || p.len == 0 || !spec.wg.is_power_of_two() || spread(spec).slices == 0 {
        let how = format!("{} parts of {} keys, wg={}, causal={}", p.count, p.len, spec.wg, spec.causal);
        return Err(shape(format!("attention: {how}, {} channels", spec.v_dim)));
    }
    Ok(())
}

pub(super) fn build(spec: &AttentionSpec, target: Target, p: KeyParts) -> Result<Kernel, BuildError> {
    let extents = axes(spec, spec.qk_dim.max(spec.v_dim + 1));
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &extents, target, spec.wg);
    cx.load_symbols(&extents[..3]);
    let domain = [spec.batch, spec.queries, Extent::Const(p.count)];
    let group = cx.asm.workgroup_index();
    cx.return_beyond(group, &domain);
    let at = cx.coordinates(group, &domain);
    cx.bind_axis(BATCH, at[0]);
    cx.bind_axis(QUERY, at[1]);
    let part = Part::new(&mut cx, spec, p, at[2]);
    let (base, total) = part.weigh(&mut cx);
    let sums = part.sum_values(&mut cx);
    part.store(&mut cx, sums, base, total);
    let grid = Grid::linear(vec![GridFactor { extents: domain.to_vec(), divisor: 1 }]);
    Ok(kernel(cx, grid))
}

/// What a workgroup works on.
struct Part<'s> {
    spec: &'s AttentionSpec,
    number: Id,
    len: u32,
    /// Its first key, and how many it has.
    start: Id,
    n: Id,
    local: Id,
    scores: Shared,
}

impl<'s> Part<'s> {
    fn new(cx: &mut Emit<'_>, spec: &'s AttentionSpec, p: KeyParts, number: Id) -> Part<'s> {
        let (len, keys, zero) = (cx.asm.u32(p.len), cx.extent(spec.keys), cx.asm.u32(0));
        let start = cx.asm.imul(number, len);
        let beyond = cx.asm.ule(keys, start);
        let rest = cx.asm.isub(keys, start);
        let n = cx.asm.glsl2(Glsl::UMin, rest, len);
        let n = cx.asm.select(beyond, zero, n);
        let (local, scores) = (cx.asm.local_index(), cx.asm.shared_array(St::F32, p.len));
        Part { spec, number, len: p.len, start, n, local, scores }
    }

    /// `body(slot, carried)` for each key of the invocation.
    fn own_keys<'e>(&self, cx: &mut Emit<'e>, initial: Id, body: impl FnOnce(&mut Emit<'e>, Id, Id) -> Id) -> Id {
        let mine = |cx: &mut Emit<'e>, slot: Id, value: Id| {
            let exists = cx.asm.ult(slot, self.n);
            cx.if_then(exists, &[value], |cx| vec![body(cx, slot, value)])[0]
        };
        if self.len <= self.spec.wg {
            return mine(cx, self.local, initial);
        }
        // As many turns for all: SwiftShader forgets what an invocation has that leaves a loop before its neighbours.
        let (zero, wg) = (cx.asm.u32(0), cx.asm.u32(self.spec.wg));
        cx.loop_step((zero, self.n, wg), &[initial], |cx, first, carried| {
            let slot = cx.asm.iadd(first, self.local);
            vec![mine(cx, slot, carried[0])]
        })[0]
    }

    /// Fills the weights `exp(score − base)`; the base, and the sum of the weights.
    fn weigh(&self, cx: &mut Emit<'_>) -> (Id, Id) {
        let spec = self.spec;
        let query = channels(cx, spec, spec.query);
        let lowest = cx.asm.f32(f32::NEG_INFINITY);
        let top = self.own_keys(cx, lowest, |cx, slot, top| {
            let j = cx.asm.iadd(self.start, slot);
            cx.bind_axis(KEY, j);
            let key = channels(cx, spec, spec.key);
            let dot = dot(cx, &query, &key);
            let score = cx.scope(|cx| {
                cx.bind_arg(0, dot);
                cx.eval(spec.score)
            });
            cx.asm.store_shared(self.scores, slot, score);
            cx.asm.glsl2(Glsl::NMax, top, score)
        });
        let top = self.meet(cx, top, |cx, a, b| cx.asm.glsl2(Glsl::NMax, a, b));
        let zero = cx.asm.f32(0.0);
        let hidden = cx.asm.feq(top, lowest);
        let base = cx.asm.select(hidden, zero, top);
        let sum = self.own_keys(cx, zero, |cx, slot, sum| {
            let score = cx.asm.load_shared(self.scores, slot);
            let above = cx.asm.fsub(score, base);
            let weight = emit_unary(&mut cx.asm, Unary::Exp, above);
            cx.asm.store_shared(self.scores, slot, weight);
            cx.asm.fadd(sum, weight)
        });
        (base, self.meet(cx, sum, |cx, a, b| cx.asm.fadd(a, b)))
    }

    /// Combines a value of each invocation, in a fixed order; all have the result, and see what was written before.
    fn meet(&self, cx: &mut Emit<'_>, value: Id, merge: impl Fn(&mut Emit<'_>, Id, Id) -> Id) -> Id {
        let partial = cx.asm.shared_array(St::F32, self.spec.wg);
        cx.asm.store_shared(partial, self.local, value);
        cx.asm.barrier();
        let merged = |cx: &mut Emit<'_>, first: Id, apart: u32, count: u32| {
            let start = cx.asm.load_shared(partial, first);
            (1..count).fold(start, |all, i| {
                let by = cx.asm.u32(i * apart);
                let at = cx.asm.iadd(first, by);
                let next = cx.asm.load_shared(partial, at);
                merge(cx, all, next)
            })
        };
        let mut left = self.spec.wg;
        while left > 2 * MEETING {
            left /= MEETING;
            let first = cx.asm.u32(left);
            let active = cx.asm.ult(self.local, first);
            cx.if_then(active, &[], |cx| {
                let value = merged(cx, self.local, left, MEETING);
                cx.asm.store_shared(partial, self.local, value);
                vec![]
            });
            cx.asm.barrier();
        }
        let zero = cx.asm.u32(0);
        merged(cx, zero, 1, left)
    }

    /// Sums of weighted values, a slice of the keys each: `slices` rows of `v_dim`.
    fn sum_values(&self, cx: &mut Emit<'_>) -> Shared {
        let (spec, s) = (self.spec, spread(self.spec));
        let sums = cx.asm.shared_array(St::F32, s.slices * spec.v_dim);
        let slice = cx.quotient_by(self.local, s.across);
        let across = cx.asm.u32(s.across);
        let before = cx.asm.imul(slice, across);
        let column = cx.asm.isub(self.local, before);
        let size = cx.asm.u32(s.size);
        let channel = cx.asm.imul(column, size);
        let zero = cx.asm.f32(0.0);
        let initial = vec![zero; s.size as usize];
        let turns = self.len.div_ceil(s.slices).min(AHEAD);
        let step = cx.asm.u32(s.slices * turns);
        let last_slice = cx.asm.u32(s.slices);
        let takes_part = cx.asm.ult(slice, last_slice);
        let zero_keys = cx.asm.u32(0);
        cx.if_then(takes_part, &[], |cx| {
            let totals = cx.loop_step((zero_keys, self.n, step), &initial, |cx, first, carried| {
                let first = cx.asm.iadd(first, slice);
                self.add_values(cx, (first, channel), (s, turns), carried)
            });
            let width = cx.asm.u32(spec.v_dim);
            let row = cx.asm.imul(slice, width);
            let at = cx.asm.iadd(row, channel);
            for (e, &total) in (0u32..).zip(&totals) {
                let e = cx.asm.u32(e);
                let at = cx.asm.iadd(at, e);
                cx.asm.store_shared(sums, at, total);
            }
            vec![]
        });
        cx.asm.barrier();
        sums
    }

    /// The values of `turns` keys from slot `first` on, `slices` apart, all loaded before they are added.
    fn add_values(
        &self,
        cx: &mut Emit<'_>,
        (first, channel): (Id, Id),
        (s, turns): (Spread, u32),
        carried: &[Id],
    ) -> Vec<Id> {
        let one = cx.asm.u32(1);
        let last = cx.asm.isub(self.n, one);
        let loaded: Vec<(Id, Id, Vec<Id>)> = (0..turns)
            .map(|turn| {
                let by = cx.asm.u32(turn * s.slices);
                let slot = cx.asm.iadd(first, by);
                let inside = cx.asm.ule(slot, last);
                let slot = cx.asm.select(inside, slot, last);
                let weight = cx.asm.load_shared(self.scores, slot);
                let j = cx.asm.iadd(self.start, slot);
                let values = cx.scope(|cx| {
                    cx.bind_axis(KEY, j);
                    group(cx, self.spec, (self.spec.value, self.spec.v_dim), channel)
                });
                (inside, weight, values)
            })
            .collect();
        let mut sums = carried.to_vec();
        for (inside, weight, values) in loaded {
            for (sum, value) in sums.iter_mut().zip(values) {
                let next = cx.asm.mul_add(weight, value, *sum);
                *sum = cx.asm.select(inside, next, *sum);
            }
        }
        sums
    }

    fn store(&self, cx: &mut Emit<'_>, sums: Shared, base: Id, total: Id) {
        let (spec, s) = (self.spec, spread(self.spec));
        let log = emit_unary(&mut cx.asm, Unary::Log, total);
        let height = cx.asm.fadd(base, log);
        let zero = cx.asm.f32(0.0);
        let empty = cx.asm.feq(total, zero);
        let (width, last) = (cx.asm.u32(spec.v_dim), cx.asm.u32(spec.v_dim - 1));
        let (end, wg) = (cx.asm.u32(spec.v_dim + 1), cx.asm.u32(spec.wg));
        cx.loop_step((self.local, end, wg), &[], |cx, e, _| {
            let column = cx.asm.glsl2(Glsl::UMin, e, last);
            let mut sum = cx.asm.load_shared(sums, column);
            for slice in 1..s.slices {
                let by = cx.asm.u32(slice * spec.v_dim);
                let at = cx.asm.iadd(column, by);
                let next = cx.asm.load_shared(sums, at);
                sum = cx.asm.fadd(sum, next);
            }
            let mean = cx.asm.fdiv(sum, total);
            let mean = cx.asm.select(empty, zero, mean);
            let is_value = cx.asm.ult(e, width);
            let result = cx.asm.select(is_value, mean, height);
            cx.bind_axis(KEY, self.number);
            cx.bind_axis(CHANNEL, e);
            cx.bind_arg(0, result);
            cx.stores(&spec.stores);
            vec![]
        });
    }
}

/// The elements of a group of channels, or the one there.
fn group(cx: &mut Emit<'_>, spec: &AttentionSpec, (root, dim): (ExprId, u32), first: Id) -> Vec<Id> {
    match groups(spec, root, dim) {
        None => cx.scope(|cx| {
            cx.bind_axis(CHANNEL, first);
            vec![cx.eval(root)]
        }),
        Some(groups) => {
            let base = cx.keep_scope(None, |_| {});
            let scopes = cx.group_scopes(&base, &groups, first);
            scopes.iter().map(|scope| cx.within(scope, |cx| cx.eval(root))).collect()
        }
    }
}

/// All channels of a query or a key.
fn channels(cx: &mut Emit<'_>, spec: &AttentionSpec, root: ExprId) -> Vec<Id> {
    let size = groups(spec, root, spec.qk_dim).map_or(1, |g| g.size);
    let firsts = (0..spec.qk_dim).step_by(size as usize);
    firsts
        .flat_map(|first| {
            let first = cx.asm.u32(first);
            group(cx, spec, (root, spec.qk_dim), first)
        })
        .collect()
}

/// In four sums, so that few additions wait for each other.
fn dot(cx: &mut Emit<'_>, a: &[Id], b: &[Id]) -> Id {
    let mut sums: Vec<Id> = vec![];
    for (i, (&a, &b)) in a.iter().zip(b).enumerate() {
        if i < 4 {
            sums.push(cx.asm.fmul(a, b));
        } else {
            sums[i % 4] = cx.asm.mul_add(a, b, sums[i % 4]);
        }
    }
    let mut sums = sums.into_iter();
    let first = sums.next().expect("a head has channels");
    sums.fold(first, |sum, next| cx.asm.fadd(sum, next))
}

/// What a part gives: the mean of its values by weight, and the logarithm of the sum of `exp(score)`.
pub(super) fn reference(scores: &[f64], value: &mut dyn FnMut(usize, u32) -> f64, v_dim: u32) -> Vec<Value> {
    let weights = super::softmax(scores, true);
    let top = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
    let base = if top == f64::NEG_INFINITY { 0.0 } else { top };
    let sum: f64 = scores.iter().map(|s| (s - base).exp()).sum();
    let mean = |e: u32, value: &mut dyn FnMut(usize, u32) -> f64| -> f64 {
        (0..).zip(&weights).map(|(j, weight)| weight * value(j, e)).sum()
    };
    let means: Vec<f64> = (0..v_dim).map(|e| mean(e, value)).collect();
    means.into_iter().chain([base + sum.ln()]).map(|v| Value::F32(v as f32)).collect()
}
