//! Flash attention: `out[b,i,:] = softmax_j(score(q[b,i]·k[b,j])) · v[b,j,:]`, keys streamed past queries, scores never stored.
//!
//! One loop nest, its inner shapes ([`AttentionStaging`]) a file each: who has which queries, and where keys and values wait. All keep a
//! running maximum of a query's scores and what was summed with it: `l = l·exp(m − m') + Σ exp(s − m')`, and the output channels likewise.

mod coop;
mod parts;
mod softmax;
mod stage;
mod store;
mod stream;
mod tiled;

use crate::asm::{Glsl, Id};
use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::eval::{Runner, Tape, Value};
use crate::host::{Memory, Point, for_each_point};
use crate::limits::{Limits, Reject};
use crate::reference::StoreTape;
use crate::spec::{
    AttentionSpec, AttentionStaging, CoopAttention, Extent, Grid, GridFactor, Kernel, Target, TiledAttention,
};

/// Axes by position.
const BATCH: usize = 0;
const QUERY: usize = 1;
const KEY: usize = 2;
const CHANNEL: usize = 3;

/// Largest head.
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
    let need = match spec.staging {
        AttentionStaging::Stream { block_keys, lanes } => stream::shared_bytes(spec, block_keys, lanes),
        AttentionStaging::Coop(c) => {
            coop::constraints(&c, limits)?;
            coop::shared_bytes(&c, (spec.qk_dim, spec.v_dim))
        }
        AttentionStaging::Tiled(t) => tiled::shared_bytes(&t, spec.wg, (spec.qk_dim, spec.v_dim)),
        AttentionStaging::Parts(p) => parts::shared_bytes(spec, p),
    };
    if need > limits.shared_bytes { Err(Reject::Shared { need, limit: limits.shared_bytes }) } else { Ok(()) }
}

/// Whether a cooperative staging's sizes fit each other, heads of these channels, and a device; tile choice asks before it has a spec.
pub fn coop_fits(c: &CoopAttention, dims: (u32, u32), limits: &Limits) -> bool {
    let wg = c.warps * c.subgroup;
    let fits =
        coop::sizes_fit(c, wg) && wg <= limits.max_workgroup && coop::shared_bytes(c, dims) <= limits.shared_bytes;
    fits && dims.0.max(dims.1) <= MAX_DIM && coop::constraints(c, limits).is_ok()
}

/// Whether a tiled staging's sizes fit each other, heads of these channels, and a device; tile choice asks before it has a spec.
pub fn tiled_fits(t: &TiledAttention, wg: u32, dims: (u32, u32), limits: &Limits) -> bool {
    let fits = tiled::sizes_fit(t, wg) && wg <= limits.max_workgroup && dims.0.max(dims.1) <= MAX_DIM;
    fits && tiled::registers(t, dims) <= tiled::MAX_REGISTERS && tiled::shared_bytes(t, wg, dims) <= limits.shared_bytes
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &AttentionSpec, target: Target) -> Result<Kernel, BuildError> {
    check(spec)?;
    match spec.staging {
        AttentionStaging::Stream { block_keys, lanes } => stream::build(spec, target, (block_keys, lanes)),
        AttentionStaging::Coop(c) => coop::build(spec, target, &c),
        AttentionStaging::Tiled(t) => tiled::build(spec, target, t),
        AttentionStaging::Parts(p) => parts::build(spec, target, p),
    }
}

fn check(spec: &AttentionSpec) -> Result<(), BuildError> {
    if spec.wg == 0 || spec.qk_dim == 0 || spec.v_dim == 0 {
        return Err(shape(format!("attention: wg={} qk_dim={} v_dim={}", spec.wg, spec.qk_dim, spec.v_dim)));
    }
    match spec.staging {
        AttentionStaging::Stream { block_keys, lanes } => stream::check(spec, block_keys, lanes)?,
        AttentionStaging::Coop(c) => coop::check(spec, &c)?,
        AttentionStaging::Tiled(t) => tiled::check(spec, &t)?,
        AttentionStaging::Parts(p) => parts::check(spec, p)?,
    }
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    check.interface(&[spec.batch, spec.queries, spec.keys])?;
    let f32_value = |what, axes: &[u8], args: &[Ty], id| check.value(Scope { what, axes, args }, id, Ty::F32);
    f32_value("query", &[0, 1, 3], &[], spec.query)?;
    f32_value("key", &[0, 2, 3], &[], spec.key)?;
    f32_value("value", &[0, 2, 3], &[], spec.value)?;
    f32_value("score", &[0, 1, 2], &[Ty::F32], spec.score)?;
    let parts = matches!(spec.staging, AttentionStaging::Parts(_));
    let axes: &[u8] = if parts { &[0, 1, 2, 3] } else { &[0, 1, 3] };
    check.stores(Scope { what: "attention", axes, args: &[Ty::F32] }, &spec.stores)
}

/// Extents behind the axes, where channels are `dim`.
fn axes(spec: &AttentionSpec, dim: u32) -> [Extent; 4] {
    [spec.batch, spec.queries, spec.keys, Extent::Const(dim)]
}

fn start(spec: &AttentionSpec, target: Target) -> Emit<'_> {
    let axes = axes(spec, spec.qk_dim.max(spec.v_dim));
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &axes, target, spec.wg);
    cx.load_symbols(&axes[..3]);
    cx
}

/// Workgroups of `owned` queries.
fn grid(spec: &AttentionSpec, owned: u32) -> Grid {
    let queries = GridFactor { extents: vec![spec.queries], divisor: owned };
    let batch = GridFactor { extents: vec![spec.batch], divisor: 1 };
    Grid::linear(vec![batch, queries])
}

/// Binds the workgroup's batch, or returns where there is none; its first query.
fn bind_batch(cx: &mut Emit<'_>, spec: &AttentionSpec, owned: u32) -> Id {
    let group = cx.asm.workgroup_index();
    let queries = cx.extent(spec.queries);
    let (owned, last) = (cx.asm.u32(owned), cx.asm.u32(owned - 1));
    let padded = cx.asm.iadd(queries, last);
    let blocks = cx.asm.udiv(padded, owned);
    let batch = cx.asm.udiv(group, blocks);
    let n_batch = cx.extent(spec.batch);
    let beyond = cx.asm.ule(n_batch, batch);
    cx.asm.return_if(beyond);
    cx.bind_axis(BATCH, batch);
    let before = cx.asm.imul(batch, blocks);
    let block = cx.asm.isub(group, before);
    cx.asm.imul(block, owned)
}

/// Where the keys end that some of `owned` queries from `first` on may see.
fn key_end(cx: &mut Emit<'_>, spec: &AttentionSpec, first: Id, owned: u32) -> Id {
    let keys = cx.extent(spec.keys);
    if !spec.causal {
        return keys;
    }
    let owned = cx.asm.u32(owned);
    let end = cx.asm.iadd(first, owned);
    cx.asm.glsl2(Glsl::UMin, keys, end)
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
        if let AttentionStaging::Parts(p) = spec.staging {
            for part in 0..p.count {
                let start = (part * p.len).min(scores.len() as u32) as usize;
                let own = &scores[start..(start + p.len as usize).min(scores.len())];
                let mut value_at = |j: usize, e: u32| at(&mut value, memory, (start + j) as i32, e, &[]);
                let results = parts::reference(own, &mut value_at, spec.v_dim);
                for (e, result) in (0..).zip(results) {
                    stores.run(&mut writer, memory, &[b, i, part as i32, e], &[result]);
                }
            }
            return;
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
