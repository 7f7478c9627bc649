//! Attention on cooperative matrices: both products on fragments, the softmax between them on the components that each lane holds.
//!
//! ```text
//! parallel for b, block of queries, by workgroup; rows · m of them by subgroup:     q fragments, o fragments in registers
//!     base[i] = -largest; l[i] = 0                     for the component i of a sum: all fragments side by side have its row there
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
//! when it has to move. Which row and column a component has is found out by loading a matrix of indices.
//!
//! Traffic: keys and values once per workgroup, in blocks of 16 bytes where the access map is proven to allow it; from shared memory, once
//! per subgroup. Lines of shared memory are an odd number of blocks, so that neighbouring lines start in other banks.

use super::coop_finish;
use super::softmax::{Exponent, last_or};
use super::stage::{Lines, Room, Source};
use super::{KEY, QUERY, bind_batch, grid, key_end, start};
use crate::asm::{Blocks, Glsl, Id, Lines as MatrixLines, MatrixUse};
use crate::check::{BuildError, shape};
use crate::dtype::DType;
use crate::emit_expr::{Emit, Kept};
use crate::limits::{Limits, Reject};
use crate::spec::{AttentionSpec, CoopAttention, Extent, Kernel, Target};
use crate::templates::kernel;
use crate::wide_load::{GROUP, is_exact_in};

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
    /// A left operand has the same elements in the same components.
    agrees: Id,
    exponent: Exponent,
    pub(super) sum_ty: Id,
    left_ty: Id,
    right_ty: Id,
    /// Query fragments, row-major.
    queries: Vec<Id>,
    /// See [`row_scopes`].
    rows: Vec<Kept>,
    /// Variables of the output fragments, row-major.
    pub(super) outputs: Vec<Id>,
}

/// What a lane carries from block to block for the rows of its components, fragment by fragment.
struct State {
    shifts: Vec<Id>,
    sums: Vec<Id>,
}

impl Flash<'_> {
    /// Components of a sum.
    fn components(&self) -> u32 {
        self.c.frag.0 * self.c.frag.1 / self.c.subgroup
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

    fn fragment_lines(&self) -> MatrixLines {
        MatrixLines { first: self.scratch, pitch: self.c.frag.1 / WORDS + 1, rows: true }
    }

    /// Block and word of the number that a row has in the subgroup's own place.
    pub(super) fn row_word(&self, cx: &mut Emit<'_>, row: Id) -> (Id, Id) {
        let (m, n, k) = self.c.frag;
        let (two, mask) = (cx.asm.u32(WORDS.trailing_zeros()), cx.asm.u32(WORDS - 1));
        let behind = cx.asm.u32(m * (n / WORDS + 1) + m * pitch(k));
        let first = cx.asm.iadd(self.scratch, behind);
        let block = cx.asm.shr(row, two);
        (cx.asm.iadd(first, block), cx.asm.and(row, mask))
    }

    /// Combines the components that a row has in all lanes; the result is in the row's word. Barriers before and after.
    pub(super) fn combine_rows(
        &self,
        cx: &mut Emit<'_>,
        components: &[Id],
        combine: impl Fn(&mut Emit<'_>, Id, Id) -> Id,
    ) {
        let (m, n, _) = self.c.frag;
        let matrix = cx.asm.matrix_of(self.sum_ty, DType::F32, components);
        cx.asm.subgroup_barrier();
        cx.asm.matrix_store(matrix, self.blocks, self.fragment_lines());
        cx.asm.subgroup_barrier();
        let lane = cx.asm.subgroup_lane(self.c.subgroup);
        let (rows, step) = (cx.asm.u32(m), cx.asm.u32(self.c.subgroup));
        cx.loop_step((lane, rows, step), &[], |cx, row, _| {
            let pitch = cx.asm.u32(n / WORDS + 1);
            let line = cx.asm.imul(row, pitch);
            let line = cx.asm.iadd(self.scratch, line);
            let mut words = vec![];
            for block in 0..n / WORDS {
                let block = cx.asm.u32(block);
                let at = cx.asm.iadd(line, block);
                words.extend(cx.asm.load_block_f32s(self.blocks, at));
            }
            let combined = words[1..].iter().fold(words[0], |acc, &w| combine(cx, acc, w));
            let (block, word) = self.row_word(cx, row);
            cx.asm.store_block_f32(self.blocks, block, word, combined);
            vec![]
        });
        cx.asm.subgroup_barrier();
    }

    /// The words of the rows of all components.
    fn row_words(&self, cx: &mut Emit<'_>) -> Vec<Id> {
        let word = |&(row, _): &(Id, Id)| {
            let (block, word) = self.row_word(cx, row);
            cx.asm.load_block_f32(self.blocks, block, word)
        };
        self.places.iter().map(word).collect()
    }
}

pub(super) fn build(spec: &AttentionSpec, target: Target, c: &CoopAttention) -> Result<Kernel, BuildError> {
    let c = *c;
    let mut cx = start(spec, target);
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
        agrees: 0,
        exponent: Exponent::of(spec),
        sum_ty,
        left_ty,
        right_ty,
        queries: vec![],
        rows: vec![],
        outputs: vec![],
    };
    clear(&mut cx, &f);
    find_places(&mut cx, &mut f);
    load_queries(&mut cx, &mut f, first_query);
    f.outputs = (0..c.rows * f.along_v()).map(|_| cx.asm.matrix_variable(sum_ty)).collect();
    let end = key_end(&mut cx, spec, first_query, owned);
    f.rows = row_scopes(&mut cx, &f);
    let sums = key_blocks(&mut cx, &f, end);
    coop_finish::store(&mut cx, &f, &sums);
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

/// Finds row and column of each component of a sum, and whether a left operand has the same ones.
fn find_places(cx: &mut Emit<'_>, f: &mut Flash<'_>) {
    let (m, n, _) = f.c.frag;
    let lane = cx.asm.subgroup_lane(f.c.subgroup);
    let (step, blocks, halves) = (cx.asm.u32(f.c.subgroup), cx.asm.u32(m * n / WORDS), cx.asm.u32(m * n / GROUP));
    let four = cx.asm.u32(WORDS);
    // Indices count row by row; a row of f32 is n / WORDS blocks and one more.
    cx.loop_step((lane, blocks, step), &[], |cx, number, _| {
        let first = cx.asm.imul(number, four);
        let row = cx.quotient_by(number, n / WORDS);
        let at = cx.asm.iadd(number, row);
        let at = cx.asm.iadd(f.scratch, at);
        let words = [0, 1, 2, 3].map(|i| index_value(cx, first, i));
        let words = words.map(|v| cx.asm.bitcast(crate::asm::St::U32, v));
        let block = cx.asm.block_of(words);
        cx.asm.store_block(f.blocks, at, block);
        vec![]
    });
    cx.asm.subgroup_barrier();
    let sum = cx.asm.matrix_load(f.sum_ty, f.blocks, f.fragment_lines());
    let indices = cx.asm.matrix_components(sum, DType::F32, f.components());
    f.places = indices
        .iter()
        .map(|&index| {
            let index = cx.asm.float_to_sint_raw(crate::asm::St::U32, index);
            let row = cx.quotient_by(index, n);
            let width = cx.asm.u32(n);
            let before = cx.asm.imul(row, width);
            (row, cx.asm.isub(index, before))
        })
        .collect();
    f.agrees = cx.asm.bool(false);
    if !f.c.direct {
        return;
    }
    cx.loop_step((lane, halves, step), &[], |cx, number, _| {
        let eight = cx.asm.u32(GROUP);
        let first = cx.asm.imul(number, eight);
        let at = half_block(cx, f, number);
        let words = [0, 2, 4, 6].map(|i| {
            let (low, high) = (index_value(cx, first, i), index_value(cx, first, i + 1));
            cx.asm.pack_halves(f.c.elem, low, high)
        });
        let block = cx.asm.block_of(words);
        cx.asm.store_block(f.blocks, at, block);
        vec![]
    });
    cx.asm.subgroup_barrier();
    let left = load_left(cx, f);
    let others = cx.asm.matrix_components(left, f.c.elem, f.components());
    let yes = cx.asm.bool(true);
    let same = indices.iter().zip(others).fold(yes, |same, (&a, b)| {
        let equal = cx.asm.feq(a, b);
        cx.asm.land(same, equal)
    });
    f.agrees = cx.asm.subgroup_all(same);
}

/// `first + i` as f32.
fn index_value(cx: &mut Emit<'_>, first: Id, i: u32) -> Id {
    let i = cx.asm.u32(i);
    let index = cx.asm.iadd(first, i);
    cx.asm.uint_to_float(crate::asm::St::F32, index)
}

/// Block of halves `number` (row by row) of the left operand in the subgroup's own place.
fn half_block(cx: &mut Emit<'_>, f: &Flash<'_>, number: Id) -> Id {
    let (m, n, k) = f.c.frag;
    let row = cx.quotient_by(number, k / GROUP);
    let per_row = cx.asm.u32(k / GROUP);
    let before = cx.asm.imul(row, per_row);
    let within = cx.asm.isub(number, before);
    let line = cx.asm.u32(pitch(k));
    let line = cx.asm.imul(row, line);
    let start = cx.asm.u32(m * (n / WORDS + 1));
    let start = cx.asm.iadd(f.scratch, start);
    let start = cx.asm.iadd(start, line);
    cx.asm.iadd(start, within)
}

/// The left operand in the subgroup's own place.
fn load_left(cx: &mut Emit<'_>, f: &Flash<'_>) -> Id {
    let (m, n, k) = f.c.frag;
    let start = cx.asm.u32(m * (n / WORDS + 1));
    let first = cx.asm.iadd(f.scratch, start);
    cx.asm.matrix_load(f.left_ty, f.blocks, MatrixLines { first, pitch: pitch(k), rows: true })
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
    let value = Source { root: spec.value, axis: KEY, dim: spec.v_dim, zero: true };
    let key = Lines::new(cx, spec, c.elem, key, room(0, f.layout.key_pitch));
    let value = Lines::new(cx, spec, c.elem, value, room(value_base, f.layout.value_pitch));
    let n_state = (c.rows * f.components()) as usize;
    let (nothing, zero) = (cx.asm.f32(f32::MAX), cx.asm.f32(0.0));
    let mut initial = vec![nothing; n_state];
    initial.extend(vec![zero; n_state]);
    let (start, step) = (cx.asm.u32(0), cx.asm.u32(c.block_keys));
    let load = |cx: &mut Emit<'_>, first: Id| {
        let mut loaded = key.load(cx, first);
        loaded.extend(value.load(cx, first));
        loaded
    };
    let n_loaded = key.loaded() + value.loaded();
    let load_some = |cx: &mut Emit<'_>, first: Id| {
        let nothing = cx.asm.zero_block();
        let some = cx.asm.ult(first, end);
        cx.if_then(some, &vec![nothing; n_loaded], |cx| load(cx, first))
    };
    if c.ahead {
        initial.extend(load_some(cx, start));
    }
    let last = cx.loop_step((start, end, step), &initial, |cx, first, carried| {
        let (state, ahead) = carried.split_at(2 * n_state);
        let loaded = if c.ahead { ahead.to_vec() } else { load(cx, first) };
        cx.asm.barrier();
        key.put(cx, f.blocks, &loaded[..key.loaded()], first);
        value.put(cx, f.blocks, &loaded[key.loaded()..], first);
        cx.asm.barrier();
        let next = cx.asm.iadd(first, step);
        let ahead = if c.ahead { load_some(cx, next) } else { vec![] };
        let (shifts, sums) = state.split_at(n_state);
        let state = block(cx, f, first, value_base, State { shifts: shifts.to_vec(), sums: sums.to_vec() });
        [state.shifts, state.sums, ahead].concat()
    });
    last[n_state..2 * n_state].to_vec()
}

/// One block of keys, from `first` on.
fn block(cx: &mut Emit<'_>, f: &Flash<'_>, first: Id, value_base: u32, state: State) -> State {
    let dots = dots(cx, f);
    let scores: Vec<Vec<Id>> = (0u32..)
        .zip(&dots)
        .map(|(i, &dot)| scores(cx, f, dot, (i / f.along_keys(), i % f.along_keys()), first))
        .collect();
    let scores = without_missing(cx, f, scores, first);
    let mut state = raise_bases(cx, f, &scores, state);
    // A branch around all of it: in between, it would keep the driver from mixing powers and products.
    if f.c.direct {
        state.sums = cx.if_then(f.agrees, &state.sums, |cx| weigh_values(cx, f, &scores, &state, value_base, true));
    }
    let otherwise = if f.c.direct { cx.asm.lnot(f.agrees) } else { cx.asm.bool(true) };
    state.sums = cx.if_then(otherwise, &state.sums, |cx| weigh_values(cx, f, &scores, &state, value_base, false));
    state
}

/// `p = exp(x - base); o += p · v`; the sums with what `p` adds to them. `direct` says how `p` becomes a left operand.
fn weigh_values(
    cx: &mut Emit<'_>,
    f: &Flash<'_>,
    scores: &[Vec<Id>],
    state: &State,
    value_base: u32,
    direct: bool,
) -> Vec<Id> {
    let mut sums = state.sums.clone();
    let n = f.components() as usize;
    let mut left = vec![];
    for (i, scores) in scores.iter().enumerate() {
        let at = i / f.along_keys() as usize * n;
        let mut weights = vec![];
        for (j, &score) in scores.iter().enumerate() {
            let exponent = f.exponent.at(cx, score, state.shifts[at + j]);
            let weight = cx.asm.glsl(Glsl::Exp2, exponent);
            sums[at + j] = cx.asm.fadd(sums[at + j], weight);
            weights.push(weight);
        }
        left.push(if direct {
            cx.asm.matrix_of(f.left_ty, f.c.elem, &weights)
        } else {
            through_memory(cx, f, &weights)
        });
    }
    add_values(cx, f, &left, value_base);
    sums
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

/// What the components of a fragment of dots become; the fragment is number `r` along queries and `at` along keys.
fn scores(cx: &mut Emit<'_>, f: &Flash<'_>, dot: Id, (r, at): (u32, u32), first: Id) -> Vec<Id> {
    let dots = cx.asm.matrix_components(dot, DType::F32, f.components());
    if matches!(f.exponent, Exponent::Scaled(_)) {
        return dots;
    }
    let along = cx.asm.u32(at * f.c.frag.1);
    let first_key = cx.asm.iadd(first, along);
    let rows = &f.rows[(r * f.components()) as usize..];
    dots.into_iter()
        .zip(&f.places)
        .zip(rows)
        .map(|((dot, &(_, col)), row)| {
            let key = cx.asm.iadd(first_key, col);
            let key = last_or(cx, key, f.spec.keys, f.c.block_keys);
            cx.scope(|cx| {
                cx.bind_axis(KEY, key);
                cx.within(row, |cx| {
                    cx.bind_arg(0, dot);
                    cx.eval(f.spec.score)
                })
            })
        })
        .collect()
}

/// What is known of the query of each component before the loop, fragment by fragment; none where scores do not ask.
fn row_scopes(cx: &mut Emit<'_>, f: &Flash<'_>) -> Vec<Kept> {
    if matches!(f.exponent, Exponent::Scaled(_)) {
        return vec![];
    }
    let mut scopes = vec![];
    for r in 0..f.c.rows {
        let down = cx.asm.u32(r * f.c.frag.0);
        let first = cx.asm.iadd(f.first_query, down);
        for &(row, _) in &f.places {
            let query = cx.asm.iadd(first, row);
            let query = last_or(cx, query, f.spec.queries, f.c.warps * f.c.rows * f.c.frag.0);
            scopes.push(cx.keep_scope(None, |cx| {
                cx.bind_axis(QUERY, query);
                cx.hoist(&[f.spec.score], false);
            }));
        }
    }
    scopes
}

/// Scores of keys beyond the last are −∞.
fn without_missing(cx: &mut Emit<'_>, f: &Flash<'_>, scores: Vec<Vec<Id>>, first: Id) -> Vec<Vec<Id>> {
    if matches!(f.spec.keys, Extent::Const(n) if n.is_multiple_of(f.c.block_keys)) {
        return scores;
    }
    let (keys, size) = (cx.extent(f.spec.keys), cx.asm.u32(f.c.block_keys));
    let end = cx.asm.iadd(first, size);
    let is_last = cx.asm.ult(keys, end);
    let flat = scores.concat();
    let n = f.components() as usize;
    let kept = cx.if_then(is_last, &flat, |cx| {
        let hidden = cx.asm.f32(f32::NEG_INFINITY);
        let mut kept = Vec::with_capacity(flat.len());
        for (i, &score) in flat.iter().enumerate() {
            let at = (i / n) as u32 % f.along_keys() * f.c.frag.1;
            let offset = cx.asm.u32(at);
            let key = cx.asm.iadd(first, offset);
            let key = cx.asm.iadd(key, f.places[i % n].1);
            let there = cx.asm.ult(key, keys);
            kept.push(cx.asm.select(there, score, hidden));
        }
        kept
    });
    kept.chunks(n).map(<[Id]>::to_vec).collect()
}

/// Moves the bases of rows where some score is far above them, in all of the subgroup at once.
fn raise_bases(cx: &mut Emit<'_>, f: &Flash<'_>, scores: &[Vec<Id>], state: State) -> State {
    let n = f.components() as usize;
    let along = f.along_keys() as usize;
    let max = |cx: &mut Emit<'_>, a, b| cx.asm.glsl2(Glsl::NMax, a, b);
    // A component has the same row in all fragments side by side.
    let mut most = vec![];
    for row in scores.chunks(along) {
        for j in 0..n {
            most.push(row[1..].iter().fold(row[0][j], |acc, scores| max(cx, acc, scores[j])));
        }
    }
    let exponents: Vec<Id> =
        most.iter().zip(&state.shifts).map(|(&most, &shift)| f.exponent.at(cx, most, shift)).collect();
    let highest = exponents[1..].iter().fold(exponents[0], |acc, &x| max(cx, acc, x));
    let slack = cx.asm.f32(SLACK);
    let above = cx.asm.flt(slack, highest);
    let some = cx.asm.subgroup_any(above);
    let n_state = state.shifts.len();
    let before = [state.shifts, state.sums].concat();
    let after = cx.if_then(some, &before, |cx| {
        let (mut shifts, mut sums) = (vec![], vec![]);
        for r in 0..f.c.rows as usize {
            f.combine_rows(cx, &most[r * n..(r + 1) * n], max);
            let rows = f.row_words(cx);
            let mut factors = vec![];
            for (j, row) in rows.into_iter().enumerate() {
                let old = before[r * n + j];
                let of_row = f.exponent.shift_of(cx, row);
                let shift = cx.asm.glsl2(Glsl::NMin, old, of_row);
                let change = cx.asm.fsub(shift, old);
                let change = f.exponent.in_powers(cx, change);
                let factor = cx.asm.glsl(Glsl::Exp2, change);
                shifts.push(shift);
                sums.push(cx.asm.fmul(before[n_state + r * n + j], factor));
                factors.push(factor);
            }
            scale_outputs(cx, f, r as u32, &factors);
        }
        [shifts, sums].concat()
    });
    let (shifts, sums) = after.split_at(n_state);
    State { shifts: shifts.to_vec(), sums: sums.to_vec() }
}

fn scale_outputs(cx: &mut Emit<'_>, f: &Flash<'_>, r: u32, factors: &[Id]) {
    for &variable in &f.outputs[(r * f.along_v()) as usize..((r + 1) * f.along_v()) as usize] {
        let output = cx.asm.variable(variable, f.sum_ty);
        let parts = cx.asm.matrix_components(output, DType::F32, f.components());
        let scaled: Vec<Id> = parts.iter().zip(factors).map(|(&part, &factor)| cx.asm.fmul(part, factor)).collect();
        let output = cx.asm.matrix_of(f.sum_ty, DType::F32, &scaled);
        cx.asm.set_variable(variable, output);
    }
}

/// Components of a sum as a left operand, by way of the subgroup's own place.
fn through_memory(cx: &mut Emit<'_>, f: &Flash<'_>, components: &[Id]) -> Id {
    let (m, n, k) = f.c.frag;
    let matrix = cx.asm.matrix_of(f.sum_ty, DType::F32, components);
    cx.asm.subgroup_barrier();
    cx.asm.matrix_store(matrix, f.blocks, f.fragment_lines());
    cx.asm.subgroup_barrier();
    let lane = cx.asm.subgroup_lane(f.c.subgroup);
    let (count, step) = (cx.asm.u32(m * k / GROUP), cx.asm.u32(f.c.subgroup));
    cx.loop_step((lane, count, step), &[], |cx, number, _| {
        let row = cx.quotient_by(number, k / GROUP);
        let two = cx.asm.u32(GROUP / WORDS);
        let before = cx.asm.imul(number, two);
        // A row is n / WORDS blocks and one more; `number` counts pairs of them.
        debug_assert_eq!(n, k, "a row of halves is a row of f32");
        let at = cx.asm.iadd(before, row);
        let at = cx.asm.iadd(f.scratch, at);
        let one = cx.asm.u32(1);
        let next = cx.asm.iadd(at, one);
        let values: Vec<Id> = [at, next].into_iter().flat_map(|at| cx.asm.load_block_f32s(f.blocks, at)).collect();
        let rounded: Vec<Id> = values.iter().map(|&v| cx.asm.rounded_half(f.c.elem, v)).collect();
        let words: Vec<Id> = rounded.chunks(2).map(|p| cx.asm.pack_halves(f.c.elem, p[0], p[1])).collect();
        let block = cx.asm.block_of([words[0], words[1], words[2], words[3]]);
        let to = half_block(cx, f, number);
        cx.asm.store_block(f.blocks, to, block);
        vec![]
    });
    cx.asm.subgroup_barrier();
    load_left(cx, f)
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
