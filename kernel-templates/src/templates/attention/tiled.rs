//! Attention in register tiles: two small matrix products out of shared memory with the softmax between them, all in f32.
//!
//! ```text
//! parallel for b, block of wg / across · rows queries, by workgroup:    q in shared memory
//!     invocation: rows queries; base = -largest; l = 0; o[rows × channels / across] = 0
//!     for block of across · cols keys:
//!         shared = its keys and values; barrier
//!         s[rows × cols] = q · k
//!         if some x = score(s) > base + SLACK in the workgroup:         rows meet through shared memory
//!             base' = max(base, maximum of the row); o, l *= exp(base - base')
//!         p = exp(x - base); l += p; p → shared, where the keys were; barrier
//!         o += p · v
//!     o / (sum of l over the row's invocations) → stores
//! ```
//!
//! Traffic: keys and values once per workgroup. From shared memory, everything is fetched in blocks of four floats; lines are an odd number of
//! blocks, so that neighbouring lines start in other banks.

use super::softmax::{Exponent, last_or};
use super::stage::{Lines, Room, Source};
use super::store::{store_group, stores_blocks};
use super::{CHANNEL, KEY, QUERY, bind_batch, grid, key_end, start};
use crate::asm::{Blocks, Glsl, Id, Shared, St};
use crate::check::{BuildError, shape};
use crate::dtype::DType;
use crate::emit_expr::Emit;
use crate::spec::{AttentionSpec, Extent, Kernel, Target, TiledAttention};
use crate::templates::kernel;
use crate::wide_load::GROUP;

/// f32 in a block.
const BLOCK: u32 = 4;

/// By how much a score may exceed the base, in powers of two. The driver's power of two is exact to 3 + 2|x| units of the last place.
const SLACK: f32 = 2.0;

/// Most scores, outputs and loaded elements of an invocation.
pub(super) const MAX_REGISTERS: u32 = 160;

pub(super) fn sizes_fit(t: &TiledAttention, wg: u32) -> bool {
    t.rows > 0
        && t.cols > 0
        && t.across > 0
        && t.unroll > 0
        && wg.is_multiple_of(t.across)
        && (t.across * t.cols).is_multiple_of(BLOCK)
}

/// What an invocation keeps, roughly.
pub(super) fn registers(t: &TiledAttention, (_, v_dim): (u32, u32)) -> u32 {
    t.rows * (t.cols + Channels::new(t, v_dim).count() + 2)
}

pub(super) fn check(spec: &AttentionSpec, t: &TiledAttention) -> Result<(), BuildError> {
    if sizes_fit(t, spec.wg) {
        return Ok(());
    }
    Err(shape(format!(
        "attention: {} rows, {} keys, {} invocations across, wg={}: sizes do not fit each other",
        t.rows, t.cols, t.across, spec.wg
    )))
}

/// Which output channels an invocation has: blocks of four, every `across`-th, and single ones behind.
#[derive(Clone, Copy)]
struct Channels {
    across: u32,
    blocks: u32,
    singles: u32,
}

impl Channels {
    fn new(t: &TiledAttention, v_dim: u32) -> Channels {
        let blocks = v_dim / (BLOCK * t.across);
        let rest = v_dim - blocks * BLOCK * t.across;
        // Many single ones are as well a block that is partly empty.
        if rest > 2 * t.across {
            return Channels { across: t.across, blocks: blocks + 1, singles: 0 };
        }
        Channels { across: t.across, blocks, singles: rest.div_ceil(t.across) }
    }

    fn count(self) -> u32 {
        self.blocks * BLOCK + self.singles
    }

    /// Those that all invocations across cover.
    fn covered(self) -> u32 {
        self.count() * self.across
    }
}

/// Sizes in shared memory.
#[derive(Clone, Copy)]
struct Layout {
    /// Queries of a workgroup, and keys of a block.
    owned: u32,
    keys: u32,
    /// Blocks from one line to the next: of queries and keys, of probabilities, of values.
    key_pitch: u32,
    weight_pitch: u32,
    value_pitch: u32,
    /// First block of keys (or probabilities), and of values.
    key_base: u32,
    value_base: u32,
    total: u32,
}

/// An odd number of blocks that holds `n` elements in whole groups.
fn pitch(n: u32) -> u32 {
    (n.next_multiple_of(GROUP) / BLOCK) | 1
}

impl Layout {
    fn new(t: &TiledAttention, wg: u32, (qk_dim, v_dim): (u32, u32)) -> Layout {
        let (owned, keys) = (wg / t.across * t.rows, t.across * t.cols);
        let (key_pitch, weight_pitch) = (pitch(qk_dim), (keys / BLOCK) | 1);
        let value_pitch = pitch(v_dim.max(Channels::new(t, v_dim).covered()));
        let key_base = owned * key_pitch;
        let value_base = key_base + (keys * key_pitch).max(owned * weight_pitch);
        let total = value_base + keys * value_pitch;
        Layout { owned, keys, key_pitch, weight_pitch, value_pitch, key_base, value_base, total }
    }
}

pub(super) fn shared_bytes(t: &TiledAttention, wg: u32, dims: (u32, u32)) -> u32 {
    let layout = Layout::new(t, wg, dims);
    layout.total * 16 + (layout.owned * (t.across + 1) + 1) * 4
}

/// A kernel under way.
struct Tile<'a> {
    spec: &'a AttentionSpec,
    t: TiledAttention,
    layout: Layout,
    channels: Channels,
    blocks: Blocks,
    /// A number per query and invocation across, in lines of one more.
    parts: Shared,
    /// Whether some score is far above its base.
    flag: Shared,
    /// Number of the invocation along the queries, and across.
    down: Id,
    across: Id,
    /// Queries of the invocation.
    queries: Vec<Id>,
    exponent: Exponent,
}

/// What an invocation carries from block to block.
#[derive(Clone)]
struct State {
    shifts: Vec<Id>,
    sums: Vec<Id>,
    outputs: Vec<Id>,
}

impl State {
    fn all(&self) -> Vec<Id> {
        [&self.shifts[..], &self.sums, &self.outputs].concat()
    }

    fn from(all: &[Id], rows: usize) -> State {
        let part = |a: usize, b: usize| all[a..b].to_vec();
        State { shifts: part(0, rows), sums: part(rows, 2 * rows), outputs: part(2 * rows, all.len()) }
    }
}

impl Tile<'_> {
    /// Queries between those of an invocation.
    fn step(&self) -> u32 {
        self.spec.wg / self.t.across
    }

    /// Line of the invocation's query `i` among those of the workgroup, times `pitch`, from `base` on.
    fn row_start(&self, cx: &mut Emit<'_>, i: u32, pitch: u32, base: u32) -> Id {
        let width = cx.asm.u32(pitch);
        let line = cx.asm.imul(self.down, width);
        let further = cx.asm.u32(base + i * self.step() * pitch);
        cx.asm.iadd(line, further)
    }

    /// Block of key `j` of the invocation.
    fn key_start(&self, cx: &mut Emit<'_>, j: u32) -> Id {
        let pitch = cx.asm.u32(self.layout.key_pitch);
        let line = cx.asm.imul(self.across, pitch);
        let further = cx.asm.u32(self.layout.key_base + j * self.t.across * self.layout.key_pitch);
        cx.asm.iadd(line, further)
    }

    /// Combines a number per query over the invocations across; barriers around.
    fn combine_rows(&self, cx: &mut Emit<'_>, values: &[Id], combine: impl Fn(&mut Emit<'_>, Id, Id) -> Id) -> Vec<Id> {
        let width = self.t.across + 1;
        for (i, &value) in (0u32..).zip(values) {
            let line = self.row_start(cx, i, width, 0);
            let at = cx.asm.iadd(line, self.across);
            cx.asm.store_shared(self.parts, at, value);
        }
        cx.asm.barrier();
        let combined = (0..self.t.rows)
            .map(|i| {
                let line = self.row_start(cx, i, width, 0);
                let parts: Vec<Id> = (0..self.t.across)
                    .map(|x| {
                        let x = cx.asm.u32(x);
                        let at = cx.asm.iadd(line, x);
                        cx.asm.load_shared(self.parts, at)
                    })
                    .collect();
                parts[1..].iter().fold(parts[0], |acc, &part| combine(cx, acc, part))
            })
            .collect();
        cx.asm.barrier();
        combined
    }
}

pub(super) fn build(spec: &AttentionSpec, target: Target, t: TiledAttention) -> Result<Kernel, BuildError> {
    let mut cx = start(spec, target);
    let layout = Layout::new(&t, spec.wg, (spec.qk_dim, spec.v_dim));
    let first_query = bind_batch(&mut cx, spec, layout.owned);
    let local = cx.asm.local_index();
    let down = cx.quotient_by(local, t.across);
    let width = cx.asm.u32(t.across);
    let before = cx.asm.imul(down, width);
    let across = cx.asm.isub(local, before);
    let blocks = cx.asm.shared_blocks(layout.total);
    let parts = cx.asm.shared_array(St::F32, layout.owned * (t.across + 1));
    let flag = cx.asm.shared_array(St::U32, 1);
    let (channels, exponent) = (Channels::new(&t, spec.v_dim), Exponent::of(spec));
    let first = cx.asm.iadd(first_query, down);
    let queries = (0..t.rows).map(|i| {
        let further = cx.asm.u32(i * (spec.wg / t.across));
        cx.asm.iadd(first, further)
    });
    let queries = queries.collect();
    let tile = Tile { spec, t, layout, channels, blocks, parts, flag, down, across, queries, exponent };
    clear(&mut cx, &tile);
    let source = Source { root: spec.query, axis: QUERY, dim: spec.qk_dim, zero: false };
    let room = Room { base: 0, pitch: layout.key_pitch, count: layout.owned };
    let lines = Lines::new(&mut cx, spec, DType::F32, source, room);
    let loaded = lines.load(&mut cx, first_query);
    lines.put(&mut cx, blocks, &loaded, first_query);
    let end = key_end(&mut cx, spec, first_query, layout.owned);
    let state = key_blocks(&mut cx, &tile, end);
    finish(&mut cx, &tile, &state);
    Ok(kernel(cx, grid(spec, layout.owned)))
}

/// Zeros where channels beyond the last are never written.
fn clear(cx: &mut Emit<'_>, tile: &Tile<'_>) {
    let local = cx.asm.local_index();
    let (total, step) = (cx.asm.u32(tile.layout.total), cx.asm.u32(tile.spec.wg));
    cx.loop_step((local, total, step), &[], |cx, at, _| {
        let zeros = cx.asm.zero_block();
        cx.asm.store_block(tile.blocks, at, zeros);
        vec![]
    });
    cx.asm.barrier();
}

fn key_blocks(cx: &mut Emit<'_>, tile: &Tile<'_>, end: Id) -> State {
    let (spec, layout) = (tile.spec, tile.layout);
    let room = |base, pitch| Room { base, pitch, count: layout.keys };
    let key = Source { root: spec.key, axis: KEY, dim: spec.qk_dim, zero: false };
    let value = Source { root: spec.value, axis: KEY, dim: spec.v_dim, zero: true };
    let key = Lines::new(cx, spec, DType::F32, key, room(layout.key_base, layout.key_pitch));
    let value = Lines::new(cx, spec, DType::F32, value, room(layout.value_base, layout.value_pitch));
    let rows = tile.t.rows as usize;
    let (nothing, zero) = (cx.asm.f32(f32::MAX), cx.asm.f32(0.0));
    let n_outputs = rows * tile.channels.count() as usize;
    let initial = State { shifts: vec![nothing; rows], sums: vec![zero; rows], outputs: vec![zero; n_outputs] }.all();
    let (start, step) = (cx.asm.u32(0), cx.asm.u32(layout.keys));
    let load = |cx: &mut Emit<'_>, first: Id| {
        let mut loaded = key.load(cx, first);
        loaded.extend(value.load(cx, first));
        loaded
    };
    let last = cx.loop_step((start, end, step), &initial, |cx, first, carried| {
        let loaded = load(cx, first);
        cx.asm.barrier();
        let (slot, no) = (cx.asm.u32(0), cx.asm.u32(0));
        key.put(cx, tile.blocks, &loaded[..key.loaded()], first);
        value.put(cx, tile.blocks, &loaded[key.loaded()..], first);
        cx.asm.store_shared(tile.flag, slot, no);
        cx.asm.barrier();
        block(cx, tile, first, State::from(carried, rows)).all()
    });
    State::from(&last, rows)
}

/// One block of keys, from `first` on.
fn block(cx: &mut Emit<'_>, tile: &Tile<'_>, first: Id, state: State) -> State {
    let dots = dots(cx, tile);
    let scores = scores(cx, tile, &dots, first);
    let mut state = raise_bases(cx, tile, &scores, state);
    let cols = tile.t.cols as usize;
    let weights: Vec<Id> = scores
        .iter()
        .enumerate()
        .map(|(i, &score)| {
            let row = i / cols;
            let exponent = tile.exponent.at(cx, score, state.shifts[row]);
            let weight = cx.asm.glsl(Glsl::Exp2, exponent);
            state.sums[row] = cx.asm.fadd(state.sums[row], weight);
            weight
        })
        .collect();
    put_weights(cx, tile, &weights);
    cx.asm.barrier();
    state.outputs = add_values(cx, tile, &state.outputs);
    state
}

/// Products of queries and keys, row-major.
fn dots(cx: &mut Emit<'_>, tile: &Tile<'_>) -> Vec<Id> {
    let (rows, cols) = (tile.t.rows, tile.t.cols);
    let zero = cx.asm.f32(0.0);
    let count = tile.spec.qk_dim.div_ceil(BLOCK);
    let query_starts: Vec<Id> = (0..rows).map(|i| tile.row_start(cx, i, tile.layout.key_pitch, 0)).collect();
    let key_starts: Vec<Id> = (0..cols).map(|j| tile.key_start(cx, j)).collect();
    turns(cx, tile, count, &vec![zero; (rows * cols) as usize], |cx, channel, acc| {
        let mut fetch = |start: &Id| {
            let at = cx.asm.iadd(*start, channel);
            cx.asm.load_block_f32s(tile.blocks, at)
        };
        let queries: Vec<[Id; 4]> = query_starts.iter().map(&mut fetch).collect();
        let keys: Vec<[Id; 4]> = key_starts.iter().map(&mut fetch).collect();
        let mut next = acc.to_vec();
        for e in 0..BLOCK as usize {
            for (i, query) in queries.iter().enumerate() {
                for (j, key) in keys.iter().enumerate() {
                    let dot = &mut next[i * cols as usize + j];
                    *dot = cx.asm.mul_add(query[e], key[e], *dot);
                }
            }
        }
        next
    })
}

/// `for i in 0..count`, as many turns at a time as are laid out and divide the count.
fn turns<'s>(
    cx: &mut Emit<'s>,
    tile: &Tile<'_>,
    count: u32,
    initial: &[Id],
    body: impl Fn(&mut Emit<'s>, Id, &[Id]) -> Vec<Id>,
) -> Vec<Id> {
    let at_once = (1..=tile.t.unroll).rev().find(|&u| count.is_multiple_of(u)).unwrap_or(1);
    let (start, end, step) = (cx.asm.u32(0), cx.asm.u32(count), cx.asm.u32(at_once));
    cx.loop_step((start, end, step), initial, |cx, first, carried| {
        (0..at_once).fold(carried.to_vec(), |carried, i| {
            let i = cx.asm.u32(i);
            let at = cx.asm.iadd(first, i);
            body(cx, at, &carried)
        })
    })
}

/// The key `j` of the invocation in the block from `first` on.
fn key_at(cx: &mut Emit<'_>, tile: &Tile<'_>, first: Id, j: u32) -> Id {
    let further = cx.asm.u32(j * tile.t.across);
    let key = cx.asm.iadd(first, tile.across);
    cx.asm.iadd(key, further)
}

/// What dots become; those of keys beyond the last are −∞.
fn scores(cx: &mut Emit<'_>, tile: &Tile<'_>, dots: &[Id], first: Id) -> Vec<Id> {
    let spec = tile.spec;
    let keys: Vec<Id> = (0..tile.t.cols).map(|j| key_at(cx, tile, first, j)).collect();
    let mut scores = dots.to_vec();
    if matches!(tile.exponent, Exponent::Any) {
        let existing: Vec<Id> = keys.iter().map(|&key| last_or(cx, key, spec.keys, tile.layout.keys)).collect();
        scores.clear();
        for (i, &query) in tile.queries.iter().enumerate() {
            let query = last_or(cx, query, spec.queries, tile.layout.owned);
            for (j, &key) in existing.iter().enumerate() {
                scores.push(cx.scope(|cx| {
                    cx.bind_axis(QUERY, query);
                    cx.bind_axis(KEY, key);
                    cx.bind_arg(0, dots[i * existing.len() + j]);
                    cx.eval(spec.score)
                }));
            }
        }
    }
    if matches!(spec.keys, Extent::Const(n) if n.is_multiple_of(tile.layout.keys)) {
        return scores;
    }
    let (end, hidden) = (cx.extent(spec.keys), cx.asm.f32(f32::NEG_INFINITY));
    let there: Vec<Id> = keys.iter().map(|&key| cx.asm.ult(key, end)).collect();
    scores.iter().enumerate().map(|(i, &s)| cx.asm.select(there[i % there.len()], s, hidden)).collect()
}

/// Moves the bases where some score is far above one, in all of the workgroup at once. Barriers inside.
fn raise_bases(cx: &mut Emit<'_>, tile: &Tile<'_>, scores: &[Id], state: State) -> State {
    let rows = tile.t.rows as usize;
    let max = |cx: &mut Emit<'_>, a, b| cx.asm.glsl2(Glsl::NMax, a, b);
    let most: Vec<Id> = scores
        .chunks(tile.t.cols as usize)
        .map(|row| row[1..].iter().fold(row[0], |acc, &s| max(cx, acc, s)))
        .collect();
    let (slack, mut above) = (cx.asm.f32(SLACK), cx.asm.bool(false));
    for (&most, &shift) in most.iter().zip(&state.shifts) {
        let exponent = tile.exponent.at(cx, most, shift);
        let far = cx.asm.flt(slack, exponent);
        above = cx.asm.lor(above, far);
    }
    let (slot, yes) = (cx.asm.u32(0), cx.asm.u32(1));
    cx.if_then(above, &[], |cx| {
        cx.asm.store_shared(tile.flag, slot, yes);
        vec![]
    });
    // Also the end of the reading of keys, whose place the probabilities take.
    cx.asm.barrier();
    let flag = cx.asm.load_shared(tile.flag, slot);
    let some = cx.asm.ieq(flag, yes);
    let after = cx.if_then(some, &state.all(), |cx| {
        let most = tile.combine_rows(cx, &most, max);
        let mut next = state.clone();
        let per_row = tile.channels.count() as usize;
        for (i, &most) in most.iter().enumerate().take(rows) {
            let of_row = tile.exponent.shift_of(cx, most);
            next.shifts[i] = cx.asm.glsl2(Glsl::NMin, state.shifts[i], of_row);
            let change = cx.asm.fsub(next.shifts[i], state.shifts[i]);
            let change = tile.exponent.in_powers(cx, change);
            let factor = cx.asm.glsl(Glsl::Exp2, change);
            next.sums[i] = cx.asm.fmul(state.sums[i], factor);
            for output in &mut next.outputs[i * per_row..(i + 1) * per_row] {
                *output = cx.asm.fmul(*output, factor);
            }
        }
        next.all()
    });
    State::from(&after, rows)
}

/// Probabilities to where the keys were: a line a query.
fn put_weights(cx: &mut Emit<'_>, tile: &Tile<'_>, weights: &[Id]) {
    let (two, mask) = (cx.asm.u32(BLOCK.trailing_zeros()), cx.asm.u32(BLOCK - 1));
    for i in 0..tile.t.rows {
        let line = tile.row_start(cx, i, tile.layout.weight_pitch, tile.layout.key_base);
        for j in 0..tile.t.cols {
            let further = cx.asm.u32(j * tile.t.across);
            let key = cx.asm.iadd(tile.across, further);
            let block = cx.asm.shr(key, two);
            let at = cx.asm.iadd(line, block);
            let word = cx.asm.and(key, mask);
            cx.asm.store_block_f32(tile.blocks, at, word, weights[(i * tile.t.cols + j) as usize]);
        }
    }
}

/// `o + p · v`.
fn add_values(cx: &mut Emit<'_>, tile: &Tile<'_>, outputs: &[Id]) -> Vec<Id> {
    let per_row = tile.channels.count() as usize;
    let starts: Vec<Id> =
        (0..tile.t.rows).map(|i| tile.row_start(cx, i, tile.layout.weight_pitch, tile.layout.key_base)).collect();
    turns(cx, tile, tile.layout.keys / BLOCK, outputs, |cx, four, outputs| {
        let weights: Vec<[Id; 4]> = starts
            .iter()
            .map(|&start| {
                let at = cx.asm.iadd(start, four);
                cx.asm.load_block_f32s(tile.blocks, at)
            })
            .collect();
        let mut next = outputs.to_vec();
        for k in 0..BLOCK {
            let values = values(cx, tile, four, k);
            for (i, weights) in weights.iter().enumerate() {
                for (e, &value) in values.iter().enumerate() {
                    let output = &mut next[i * per_row + e];
                    *output = cx.asm.mul_add(weights[k as usize], value, *output);
                }
            }
        }
        next
    })
}

/// The invocation's channels of key `4·four + k`.
fn values(cx: &mut Emit<'_>, tile: &Tile<'_>, four: Id, k: u32) -> Vec<Id> {
    let c = tile.channels;
    let pitch = cx.asm.u32(BLOCK * tile.layout.value_pitch);
    let line = cx.asm.imul(four, pitch);
    let mut values = vec![];
    for block in 0..c.blocks {
        let within = cx.asm.u32(tile.layout.value_base + k * tile.layout.value_pitch + block * c.across);
        let at = cx.asm.iadd(line, tile.across);
        let at = cx.asm.iadd(at, within);
        values.extend(cx.asm.load_block_f32s(tile.blocks, at));
    }
    for single in 0..c.singles {
        let channel = single_channel(cx, tile, single);
        let (two, mask) = (cx.asm.u32(BLOCK.trailing_zeros()), cx.asm.u32(BLOCK - 1));
        let block = cx.asm.shr(channel, two);
        let word = cx.asm.and(channel, mask);
        let within = cx.asm.u32(tile.layout.value_base + k * tile.layout.value_pitch);
        let at = cx.asm.iadd(line, block);
        let at = cx.asm.iadd(at, within);
        values.push(cx.asm.load_block_f32(tile.blocks, at, word));
    }
    values
}

fn single_channel(cx: &mut Emit<'_>, tile: &Tile<'_>, single: u32) -> Id {
    let c = tile.channels;
    let behind = cx.asm.u32((c.blocks * BLOCK + single) * c.across);
    cx.asm.iadd(tile.across, behind)
}

fn finish(cx: &mut Emit<'_>, tile: &Tile<'_>, state: &State) {
    let sums = tile.combine_rows(cx, &state.sums, |cx, a, b| cx.asm.fadd(a, b));
    let per_row = tile.channels.count() as usize;
    let (zero, hidden) = (cx.asm.f32(0.0), cx.asm.f32(if tile.spec.zero_masked_rows { 0.0 } else { f32::NAN }));
    for (i, &sum) in sums.iter().enumerate() {
        let empty = cx.asm.feq(sum, zero);
        let queries = cx.extent(tile.spec.queries);
        let exists = cx.asm.ult(tile.queries[i], queries);
        cx.if_then(exists, &[], |cx| {
            cx.bind_axis(QUERY, tile.queries[i]);
            let outputs: Vec<Id> = state.outputs[i * per_row..(i + 1) * per_row]
                .iter()
                .map(|&output| {
                    let output = cx.asm.fdiv(output, sum);
                    cx.asm.select(empty, hidden, output)
                })
                .collect();
            store_row(cx, tile, &outputs);
            vec![]
        });
    }
}

/// Stores the invocation's channels of the bound query.
fn store_row(cx: &mut Emit<'_>, tile: &Tile<'_>, outputs: &[Id]) {
    let (spec, c) = (tile.spec, tile.channels);
    let singles = spec.stores.iter().all(|s| spec.interface.operands[usize::from(s.operand)].dtype == DType::F32);
    let wide = singles && stores_blocks(spec);
    let (blocks, rest) = outputs.split_at((c.blocks * BLOCK) as usize);
    for (block, outputs) in (0u32..).zip(blocks.chunks(BLOCK as usize)) {
        let (before, four) = (cx.asm.u32(block * c.across), cx.asm.u32(BLOCK));
        let number = cx.asm.iadd(tile.across, before);
        let first = cx.asm.imul(number, four);
        if wide {
            let inside = is_channel(cx, tile, first, (block + 1) * c.across * BLOCK);
            cx.if_then(inside, &[], |cx| {
                store_group(cx, spec, first, outputs);
                vec![]
            });
            continue;
        }
        for (e, &output) in (0u32..).zip(outputs) {
            let e = cx.asm.u32(e);
            let channel = cx.asm.iadd(first, e);
            store_one(cx, tile, channel, output, (block + 1) * c.across * BLOCK);
        }
    }
    for (single, &output) in (0u32..).zip(rest) {
        let channel = single_channel(cx, tile, single);
        store_one(cx, tile, channel, output, (c.blocks * BLOCK + single + 1) * c.across);
    }
}

/// Whether a channel, one of those below `end`, exists.
fn is_channel(cx: &mut Emit<'_>, tile: &Tile<'_>, channel: Id, end: u32) -> Id {
    if end <= tile.spec.v_dim {
        return cx.asm.bool(true);
    }
    let dim = cx.asm.u32(tile.spec.v_dim);
    cx.asm.ult(channel, dim)
}

fn store_one(cx: &mut Emit<'_>, tile: &Tile<'_>, channel: Id, output: Id, end: u32) {
    let inside = is_channel(cx, tile, channel, end);
    cx.if_then(inside, &[], |cx| {
        cx.bind_axis(CHANNEL, channel);
        cx.bind_arg(0, output);
        cx.stores(&tile.spec.stores);
        vec![]
    });
}
