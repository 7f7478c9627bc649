//! Attention on cooperative matrices: both products on fragments, the softmax between them on the components that each lane holds.
//!
//! ```text
//! parallel for b, block of queries, by workgroup; rows · m of them by subgroup:     q fragments, o fragments in registers
//!     base[i] = -largest; l[i] = 0                     for each row i of the lane: all fragments side by side have it in the same components
//!     for block of keys:
//!         shared = its keys and values (halves); barrier
//!         s = q fragments · k fragments; x = score(s)
//!         if some x > base + SLACK in the subgroup:    the first block, and rarely later
//!             base' = max(base, maximum of the row); o, l *= exp(base - base')
//!         p = exp(x - base); l += p
//!         o += p fragments · v fragments
//!         barrier
//!     o → shared (f32), a fragment's rows at a time; o / (sum of l over the row) → stores
//! ```
//!
//! The maximum is only there to keep numbers finite, so one that is too small by a little does as well: rows meet through shared memory only
//! when it has to move. Which row and column a component has is found out by loading a matrix of indices; likewise whether
//! probabilities are a left operand as they are.
//!
//! Traffic: keys and values once per workgroup, in blocks of 16 bytes where the access map is proven to allow it; from shared memory, once
//! per subgroup. Lines of shared memory are an odd number of blocks, so that neighbouring lines start in other banks.

mod doubt;
mod finish;
mod lanes;
mod weights;

use super::softmax::Exponent;
use super::stage::{Lines, Room, Source};
use super::{KEY, QUERY, bind_batch, grid, key_end, start};
use crate::asm::{Blocks, Glsl, Id, Lines as MatrixLines, MatrixUse};
use crate::check::{BuildError, shape};
use crate::dtype::DType;
use crate::emit_expr::{Emit, Kept};
use crate::expr::ExprId;
use crate::limits::{Limits, Reject};
use crate::spec::{AttentionSpec, CoopAttention, Extent, Kernel, Left, Target};
use crate::templates::kernel;
use crate::wide_load::{GROUP, is_exact_in};
use weights::{loads_of_keys, raise_bases, row_scopes, score_loads, scores, weigh_values, without_missing};

/// f32 in a block.
pub(super) const WORDS: u32 = 4;

/// By how much a score may exceed the base, in powers of two: probabilities stay below 2^12, far inside both half types.
const SLACK: f32 = 12.0;

/// Whether the sizes are multiples of each other, for a workgroup of `wg` invocations.
pub(super) fn sizes_fit(c: &CoopAttention, wg: u32) -> bool {
    let (m, n, k) = c.frag;
    [m, n, k].iter().all(|v| *v > 0 && v.is_multiple_of(GROUP))
        && n == k
        && c.warps > 0
        && c.rows > 0
        && c.block_keys > 0
        && c.block_keys.is_multiple_of(n)
        && c.subgroup > 0
        && (m * n).is_multiple_of(c.subgroup)
        && c.warps * c.subgroup == wg
}

pub(super) fn check(spec: &AttentionSpec, c: &CoopAttention) -> Result<(), BuildError> {
    if !sizes_fit(c, spec.wg) {
        return Err(shape(format!(
            "attention: {} subgroups of {} with {} fragments {:?} of queries, {} keys a block, wg={}: sizes do not fit each other",
            c.warps, c.subgroup, c.rows, c.frag, c.block_keys, spec.wg
        )));
    }
    if !matches!(c.elem, DType::F16 | DType::BF16) {
        return Err(shape(format!("attention: no cooperative products of {}", c.elem)));
    }
    for (what, root) in [("query", spec.query), ("key", spec.key), ("value", spec.value)] {
        if !is_exact_in(&spec.exprs, root, c.elem) {
            return Err(shape(format!("attention: the {what} element is not exact in {}", c.elem)));
        }
    }
    Ok(())
}

/// The fragment that a device must have, and its subgroups.
pub(super) fn constraints(c: &CoopAttention, limits: &Limits) -> Result<(), Reject> {
    let (m, n, k) = c.frag;
    let reason = if !limits.cooperative.contains(&(m, n, k, c.elem)) {
        format!("the device has no cooperative matrices {m}x{n}x{k} {}", c.elem)
    } else if c.subgroup != limits.subgroup {
        format!("subgroups of {} are asked for, the device has {}", c.subgroup, limits.subgroup)
    } else {
        return Ok(());
    };
    Err(Reject::Shape { reason })
}

/// Where everything is in shared memory, in blocks.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// From one line of queries or keys to the next.
    key_pitch: u32,
    /// From one line of values to the next.
    value_pitch: u32,
    /// From one row of outputs (f32) to the next.
    pub(super) band_pitch: u32,
    /// Rows of one fragment's outputs: a subgroup's share of the tiles' place once they are used up.
    pub(super) band: u32,
    /// A subgroup's own place, behind the tiles.
    scratch: u32,
    /// Blocks of it: a fragment of f32, one of halves, a number for each row.
    scratch_size: u32,
    total: u32,
}

/// From one line of `n` halves to the next: odd.
fn pitch(n: u32) -> u32 {
    n.div_ceil(GROUP) | 1
}

impl Layout {
    fn new(c: &CoopAttention, (qk_dim, v_dim): (u32, u32)) -> Layout {
        let (m, n, k) = c.frag;
        let (qk, v) = (qk_dim.next_multiple_of(k), v_dim.next_multiple_of(n));
        let (key_pitch, value_pitch, band_pitch) = (pitch(qk), pitch(v), v / WORDS + 1);
        let band = m * band_pitch;
        let tiles = c.block_keys * (key_pitch + value_pitch);
        let scratch = tiles.max(c.warps * c.rows * m * key_pitch).max(c.warps * band);
        let scratch_size = m * (n / WORDS + 1) + m * pitch(k) + m.div_ceil(WORDS);
        Layout {
            key_pitch,
            value_pitch,
            band_pitch,
            band,
            scratch,
            scratch_size,
            total: scratch + c.warps * scratch_size,
        }
    }
}

pub(super) fn shared_bytes(c: &CoopAttention, dims: (u32, u32)) -> u32 {
    Layout::new(c, dims).total * 16
}

/// A kernel under way.
pub(super) struct Flash<'a> {
    pub(super) spec: &'a AttentionSpec,
    pub(super) c: CoopAttention,
    pub(super) layout: Layout,
    pub(super) blocks: Blocks,
    /// Number of the subgroup, and first block of its own place.
    pub(super) warp: Id,
    scratch: Id,
    /// First query of the subgroup.
    pub(super) first_query: Id,
    /// Row and column of each component of a sum.
    places: Vec<(Id, Id)>,
    exponent: Exponent,
    pub(super) sum_ty: Id,
    left_ty: Id,
    right_ty: Id,
    /// Query fragments, row-major.
    queries: Vec<Id>,
    /// See [`row_scopes`].
    rows: Vec<Kept>,
    /// What scores load of each key; with `ahead`, a block earlier than it is used.
    score_loads: Vec<ExprId>,
    /// Variables of the output fragments, row-major.
    pub(super) outputs: Vec<Id>,
}

/// What a lane carries from block to block for its rows, fragment by fragment.
struct State {
    shifts: Vec<Id>,
    sums: Vec<Id>,
}

impl Flash<'_> {
    /// Components of a sum.
    fn components(&self) -> u32 {
        self.c.frag.0 * self.c.frag.1 / self.c.subgroup
    }

    /// Bits of a component's number that tell its row, as far as that is known.
    fn row_bits(&self) -> u32 {
        let all = self.components() - 1;
        if self.c.left == Left::Memory || !self.components().is_power_of_two() { all } else { self.c.row_bits & all }
    }

    /// Rows of a lane in a fragment.
    pub(super) fn own_rows(&self) -> usize {
        (0..self.components() as usize).map(|component| self.own_row(component)).max().unwrap_or(0) + 1
    }

    /// Which of them a component is of.
    pub(super) fn own_row(&self, component: usize) -> usize {
        let set = (0..u32::BITS).filter(|bit| self.row_bits() >> bit & 1 == 1);
        set.enumerate().map(|(to, bit)| (component >> bit & 1) << to).sum()
    }

    /// The first component of a row.
    pub(super) fn first_of(&self, row: usize) -> usize {
        let is = |component: &usize| self.own_row(*component) == row;
        (0..self.components() as usize).find(is).expect("every row has a component")
    }

    /// What belongs to each of the lane's rows, for each of its components.
    pub(super) fn for_components(&self, of_rows: &[Id]) -> Vec<Id> {
        (0..self.components() as usize).map(|component| of_rows[self.own_row(component)]).collect()
    }

    /// Fragments along the channels of queries and keys.
    fn along_qk(&self) -> u32 {
        self.spec.qk_dim.div_ceil(self.c.frag.2)
    }

    /// Fragments along the channels of values and outputs.
    pub(super) fn along_v(&self) -> u32 {
        self.spec.v_dim.div_ceil(self.c.frag.1)
    }

    fn along_keys(&self) -> u32 {
        self.c.block_keys / self.c.frag.1
    }
}

pub(super) fn build(spec: &AttentionSpec, target: Target, c: &CoopAttention) -> Result<Kernel, BuildError> {
    let c = *c;
    let mut cx = start(spec, target);
    cx.asm.keep_loops();
    let (m, n, k) = c.frag;
    let owned = c.warps * c.rows * m;
    let first_query = bind_batch(&mut cx, spec, owned);
    let left_ty = cx.asm.matrix_type(c.elem, (m, k), MatrixUse::A);
    let right_ty = cx.asm.matrix_type(c.elem, (k, n), MatrixUse::B);
    let sum_ty = cx.asm.matrix_type(DType::F32, (m, n), MatrixUse::Sum);
    let layout = Layout::new(&c, (spec.qk_dim, spec.v_dim));
    let blocks = cx.asm.shared_blocks(layout.total);
    let warp = cx.asm.subgroup_index(c.subgroup);
    let (size, behind) = (cx.asm.u32(layout.scratch_size), cx.asm.u32(layout.scratch));
    let scratch = cx.asm.imul(warp, size);
    let scratch = cx.asm.iadd(scratch, behind);
    let rows = cx.asm.u32(c.rows * m);
    let before = cx.asm.imul(warp, rows);
    let of_warp = cx.asm.iadd(first_query, before);
    let mut f = Flash {
        spec,
        c,
        layout,
        blocks,
        warp,
        scratch,
        first_query: of_warp,
        places: vec![],
        exponent: Exponent::of(spec),
        sum_ty,
        left_ty,
        right_ty,
        queries: vec![],
        rows: vec![],
        score_loads: if c.ahead { loads_of_keys(spec) } else { vec![] },
        outputs: vec![],
    };
    clear(&mut cx, &f);
    lanes::find_places(&mut cx, &mut f);
    let end = key_end(&mut cx, spec, first_query, owned);
    if c.left != Left::Memory {
        let agrees = lanes::left_agrees(&mut cx, &f);
        let differs = if c.left == Left::Differing { cx.asm.bool(true) } else { cx.asm.lnot(agrees) };
        cx.if_then(differs, &[], |cx| {
            doubt::one_by_one(cx, spec, (first_query, owned), end);
            vec![]
        });
        cx.asm.return_if(differs);
    }
    load_queries(&mut cx, &mut f, first_query);
    f.outputs = (0..c.rows * f.along_v()).map(|_| cx.asm.matrix_variable(sum_ty)).collect();
    f.rows = row_scopes(&mut cx, &f);
    let sums = key_blocks(&mut cx, &f, end);
    finish::store(&mut cx, &f, &sums);
    Ok(kernel(cx, grid(spec, owned)))
}

/// Zeros in all of the shared memory: channels beyond the last are never written.
fn clear(cx: &mut Emit<'_>, f: &Flash<'_>) {
    let local = cx.asm.local_index();
    let (total, step) = (cx.asm.u32(f.layout.scratch), cx.asm.u32(f.spec.wg));
    cx.loop_step((local, total, step), &[], |cx, at, _| {
        let zeros = cx.asm.zero_block();
        cx.asm.store_block(f.blocks, at, zeros);
        vec![]
    });
}

/// Query fragments, by way of where keys and values will be.
fn load_queries(cx: &mut Emit<'_>, f: &mut Flash<'_>, first_query: Id) {
    let (m, _, k) = f.c.frag;
    let source = Source { root: f.spec.query, axis: QUERY, dim: f.spec.qk_dim, zero: false };
    let room = Room { base: 0, pitch: f.layout.key_pitch, count: f.c.warps * f.c.rows * m };
    let lines = Lines::new(cx, f.spec, f.c.elem, source, room);
    cx.asm.barrier();
    let loaded = lines.load(cx, first_query);
    lines.put(cx, f.blocks, &loaded, first_query);
    cx.asm.barrier();
    for r in 0..f.c.rows {
        for channel in 0..f.along_qk() {
            let line = cx.asm.u32(f.c.rows * m * f.layout.key_pitch);
            let line = cx.asm.imul(f.warp, line);
            let within = cx.asm.u32(r * m * f.layout.key_pitch + channel * k / GROUP);
            let first = cx.asm.iadd(line, within);
            let at = MatrixLines { first, pitch: f.layout.key_pitch, rows: true };
            f.queries.push(cx.asm.matrix_load(f.left_ty, f.blocks, at));
        }
    }
}

/// The loop over blocks of keys; each lane's part of the sums.
fn key_blocks(cx: &mut Emit<'_>, f: &Flash<'_>, end: Id) -> Vec<Id> {
    let (spec, c) = (f.spec, &f.c);
    let room = |base, pitch| Room { base, pitch, count: c.block_keys };
    let value_base = c.block_keys * f.layout.key_pitch;
    let key = Source { root: spec.key, axis: KEY, dim: spec.qk_dim, zero: false };
    // Values of keys beyond the last weigh nothing: those of the last stand in for them.
    let value = Source { root: spec.value, axis: KEY, dim: spec.v_dim, zero: false };
    let key = Lines::new(cx, spec, c.elem, key, room(0, f.layout.key_pitch));
    let value = Lines::new(cx, spec, c.elem, value, room(value_base, f.layout.value_pitch));
    let n_state = c.rows as usize * f.own_rows();
    let (nothing, zero) = (cx.asm.f32(f32::MAX), cx.asm.f32(0.0));
    let mut initial = vec![nothing; n_state];
    initial.extend(vec![zero; n_state]);
    let (start, step) = (cx.asm.u32(0), cx.asm.u32(c.block_keys));
    let n_scores = (c.rows * f.components() * f.along_keys()) as usize * f.score_loads.len();
    let load = |cx: &mut Emit<'_>, first: Id| {
        let mut loaded = score_loads(cx, f, first);
        loaded.extend(key.load(cx, first));
        loaded.extend(value.load(cx, first));
        loaded
    };
    let put = |cx: &mut Emit<'_>, loaded: &[Id], at: Id| {
        let loaded = &loaded[n_scores..];
        key.put(cx, f.blocks, &loaded[..key.loaded()], at);
        value.put(cx, f.blocks, &loaded[key.loaded()..], at);
    };
    let load_some = |cx: &mut Emit<'_>, first: Id| {
        let mut nothing = vec![zero; n_scores];
        nothing.resize(n_scores + key.loaded() + value.loaded(), cx.asm.zero_block());
        let some = cx.asm.ult(first, end);
        cx.if_then(some, &nothing, |cx| load(cx, first))
    };
    if c.ahead {
        initial.extend(load_some(cx, start));
    }
    let turn = |cx: &mut Emit<'_>, first: Id, carried: &[Id], whole: bool| {
        let (state, ahead) = carried.split_at(2 * n_state);
        let loaded = if c.ahead { ahead.to_vec() } else { load(cx, first) };
        cx.asm.barrier();
        put(cx, &loaded, first);
        cx.asm.barrier();
        // Behind the last block that one once more: without a branch, loads and products run side by side.
        let next = cx.asm.iadd(first, step);
        let more = cx.asm.ult(next, end);
        let next = cx.asm.select(more, next, first);
        let ahead = if c.ahead && whole { load(cx, next) } else { vec![] };
        let (shifts, sums) = state.split_at(n_state);
        let state = State { shifts: shifts.to_vec(), sums: sums.to_vec() };
        let state = block(cx, f, (first, &loaded[..n_scores], whole), value_base, state);
        [state.shifts, state.sums, ahead].concat()
    };
    let whole = whole_blocks(cx, f);
    let until = if spec.causal { cx.asm.glsl2(Glsl::UMin, whole, end) } else { whole };
    let carried = cx.loop_step((start, until, step), &initial, |cx, first, carried| turn(cx, first, carried, true));
    let rest = cx.asm.ult(whole, end);
    let last = cx.if_then(rest, &carried[..2 * n_state], |cx| turn(cx, whole, &carried, false));
    last[n_state..].to_vec()
}

/// Keys in whole blocks. Apart from them, others need no look at where keys end.
fn whole_blocks(cx: &mut Emit<'_>, f: &Flash<'_>) -> Id {
    let keys = cx.extent(f.spec.keys);
    let size = f.c.block_keys;
    if let Extent::Const(n) = f.spec.keys {
        return cx.asm.u32(n / size * size);
    }
    let blocks = cx.quotient_by(keys, size);
    let size = cx.asm.u32(size);
    cx.asm.imul(blocks, size)
}

/// One block of keys, from `first` on, of which scores have loaded what they take; all of them exist in a whole one.
fn block(
    cx: &mut Emit<'_>,
    f: &Flash<'_>,
    (first, loaded, whole): (Id, &[Id], bool),
    value_base: u32,
    state: State,
) -> State {
    let dots = dots(cx, f);
    let each = f.components() as usize * f.score_loads.len();
    let scores: Vec<Vec<Id>> = (0u32..)
        .zip(&dots)
        .map(|(i, &dot)| {
            let loaded = &loaded[i as usize * each..][..each];
            scores(cx, f, dot, (i / f.along_keys(), i % f.along_keys()), (first, loaded))
        })
        .collect();
    let scores = if whole { scores } else { without_missing(cx, f, &scores, first) };
    let mut state = raise_bases(cx, f, &scores, state);
    state.sums = weigh_values(cx, f, &scores, &state, value_base);
    state
}

/// Products of query and key fragments, row-major.
fn dots(cx: &mut Emit<'_>, f: &Flash<'_>) -> Vec<Id> {
    let (_, n, k) = f.c.frag;
    let zero = cx.asm.matrix_zero(f.sum_ty);
    let along = f.along_keys();
    let mut dots = vec![zero; (f.c.rows * along) as usize];
    for at in 0..along {
        for channel in 0..f.along_qk() {
            let first = cx.asm.u32(at * n * f.layout.key_pitch + channel * k / GROUP);
            let lines = MatrixLines { first, pitch: f.layout.key_pitch, rows: false };
            let key = cx.asm.matrix_load(f.right_ty, f.blocks, lines);
            for r in 0..f.c.rows {
                let query = f.queries[(r * f.along_qk() + channel) as usize];
                let dot = &mut dots[(r * along + at) as usize];
                *dot = cx.asm.matrix_mul_add(query, key, *dot);
            }
        }
    }
    dots
}

/// `o += p · v`; fragments of `p` row-major.
fn add_values(cx: &mut Emit<'_>, f: &Flash<'_>, left: &[Id], value_base: u32) {
    let (_, n, k) = f.c.frag;
    let along = f.along_keys();
    let mut outputs: Vec<Id> = f.outputs.iter().map(|&v| cx.asm.variable(v, f.sum_ty)).collect();
    for at in 0..along {
        for channel in 0..f.along_v() {
            let first = cx.asm.u32(value_base + at * k * f.layout.value_pitch + channel * n / GROUP);
            let lines = MatrixLines { first, pitch: f.layout.value_pitch, rows: true };
            let value = cx.asm.matrix_load(f.right_ty, f.blocks, lines);
            for r in 0..f.c.rows {
                let output = &mut outputs[(r * f.along_v() + channel) as usize];
                *output = cx.asm.matrix_mul_add(left[(r * along + at) as usize], value, *output);
            }
        }
    }
    for (&variable, output) in f.outputs.iter().zip(outputs) {
        cx.asm.set_variable(variable, output);
    }
}
