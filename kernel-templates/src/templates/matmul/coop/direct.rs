//! Fragments filled from blocks that every invocation reads itself: from memory, or from the shared tile of the left side.
//!
//! ```text
//! for t in k tiles of bk:
//!     (shared = tile t of the left side; barrier, as in the parent)
//!     for step in tile, of the k that one block an invocation covers:
//!         read(step + 1) to registers, if asked to
//!         fill fragments of the step; sums += left fragments · right fragments
//! ```
//!
//! The last tile along m or n begins early enough to be whole, and stores only what no other tile does: no row is looked for in the loop.

use super::super::{BATCH, K, M, N, all_extents, is_covered};
use super::fill::Pattern;
use super::stage::{self, KRange, at_k, wide_block};
use super::{Product, slab_pitch};
use crate::asm::{Id, MatrixUse};
use crate::emit_expr::{Emit, Kept};
use crate::eval::{Env, Tape, Value};
use crate::expr::{Binary, Expr, ExprId, Exprs};
use crate::spec::{Coop, Extent, MatmulSpec};
use crate::wide_load::{GROUP, WideLoad};

/// Rows or columns that are tried one by one to see that lines are a constant distance apart.
const MOST_TRIED: u32 = 1 << 16;

/// One side whose blocks each invocation reads for itself.
pub(super) struct Direct {
    /// How components are filled.
    pub(super) pattern: Pattern,
    /// Block of the invocation within a step.
    block: Id,
    wide: WideLoad,
    lines: Lines,
}

/// Where the lines of an invocation are.
enum Lines {
    /// Constant distances apart, in blocks; terms of the index that k does not move (the first line's, in elements), and those that it does.
    Apart { first: Id, along_k: Vec<ExprId>, distances: Vec<u32> },
    /// A scope each.
    Each(Vec<Kept>),
}

/// Where a side's tile lies, and the part of the subgroup in it.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) axis: usize,
    /// First row or column of the subgroup.
    pub(super) start: Id,
    /// Fragments of the subgroup along the axis, and their size.
    pub(super) fragments: (u32, u32),
    /// Every row and column that the tile reads exists.
    pub(super) whole: bool,
}

impl Direct {
    pub(super) fn new(cx: &mut Emit<'_>, spec: &MatmulSpec, c: &Coop, pattern: Pattern, part: Part) -> Option<Direct> {
        let (wide, true) = stage::wide(spec, c.elem, part.axis)? else { return None };
        let lane = cx.asm.subgroup_lane(c.subgroup);
        let (line, block) = (bits(cx, lane, &pattern.line_bits), bits(cx, lane, &pattern.block_bits));
        let first = cx.asm.iadd(part.start, line);
        let (count, size) = part.fragments;
        let offsets: Vec<u32> = (0..count).flat_map(|i| pattern.lines.iter().map(move |l| i * size + l)).collect();
        let lines = match apart(spec, wide, part, &offsets) {
            Some((own, along_k, distances)) => {
                let kept = cx.keep_scope(None, |cx| cx.bind_axis(part.axis, first));
                let zero = cx.asm.u32(0);
                let terms = own.iter().fold(zero, |sum, &term| {
                    let term = cx.within(&kept, |cx| cx.eval(term));
                    cx.asm.iadd(sum, term)
                });
                Lines::Apart { first: terms, along_k, distances }
            }
            None => Lines::Each(offsets.iter().map(|&o| line_scope(cx, spec, wide, part, (first, o))).collect()),
        };
        Some(Direct { pattern, block, wide, lines })
    }

    /// Blocks of an invocation in a step.
    fn n_blocks(&self) -> usize {
        match &self.lines {
            Lines::Apart { distances, .. } => distances.len(),
            Lines::Each(scopes) => scopes.len(),
        }
    }

    /// This invocation's blocks of the step at `k`, by fragment and line.
    pub(super) fn read(&self, cx: &mut Emit<'_>, spec: &MatmulSpec, step: KRange) -> Vec<Id> {
        let eight = cx.asm.u32(GROUP);
        let within = cx.asm.imul(self.block, eight);
        let k = cx.asm.iadd(step.k, within);
        let (k, inside) = KRange { k, ..step }.existing(cx, GROUP);
        at_k(cx, spec, k, |cx| match &self.lines {
            Lines::Each(scopes) => {
                scopes.iter().map(|s| cx.within(s, |cx| wide_block(cx, self.wide, inside))).collect()
            }
            Lines::Apart { first, along_k, distances } => {
                let index = along_k.iter().fold(*first, |sum, &term| {
                    let term = cx.eval(term);
                    cx.asm.iadd(sum, term)
                });
                let three = cx.asm.u32(GROUP.trailing_zeros());
                let index = cx.asm.shr(index, three);
                let run = cx.block_run(self.wide.operand, index);
                let zeros = cx.asm.zero_block();
                let blocks: Vec<Id> = distances.iter().map(|&d| cx.load_run_block(run, d)).collect();
                blocks.into_iter().map(|b| cx.asm.select(inside, b, zeros)).collect()
            }
        })
    }
}

/// Sum of the moves of the bits that are set in a number.
pub(super) fn bits(cx: &mut Emit<'_>, number: Id, moves: &[(u32, u32)]) -> Id {
    let zero = cx.asm.u32(0);
    moves.iter().fold(zero, |sum, &(bit, by)| {
        let (bit, one, by) = (cx.asm.u32(bit), cx.asm.u32(1), cx.asm.u32(by));
        let set = cx.asm.shr(number, bit);
        let set = cx.asm.and(set, one);
        let moved = cx.asm.imul(set, by);
        cx.asm.iadd(sum, moved)
    })
}

fn line_scope(cx: &mut Emit<'_>, spec: &MatmulSpec, wide: WideLoad, part: Part, (first, offset): (Id, u32)) -> Kept {
    let offset = cx.asm.u32(offset);
    let mut at = cx.asm.iadd(first, offset);
    if !part.whole {
        let extent = cx.extent(if part.axis == M { spec.m } else { spec.n });
        let one = cx.asm.u32(1);
        let (inside, last) = (cx.asm.ult(at, extent), cx.asm.isub(extent, one));
        at = cx.asm.select(inside, at, last);
    }
    let roots: Vec<ExprId> = std::iter::once(wide.index).chain(wide.guard).collect();
    cx.keep_scope(None, |cx| {
        cx.bind_axis(part.axis, at);
        cx.hoist(&roots, false);
    })
}

/// The index as terms that only the line (and the batch) moves and terms that only k moves, and the distances in blocks of lines at these
/// offsets, where they are the same from every line on.
pub(super) fn apart(
    spec: &MatmulSpec,
    wide: WideLoad,
    part: Part,
    offsets: &[u32],
) -> Option<(Vec<ExprId>, Vec<ExprId>, Vec<u32>)> {
    let Extent::Const(extent) = all_extents(spec)[part.axis] else { return None };
    if !part.whole || wide.guard.is_some() || extent > MOST_TRIED {
        return None;
    }
    let (mut own, mut along_k) = (vec![], vec![]);
    for term in terms(&spec.exprs, wide.index) {
        let axes = axes(&spec.exprs, term)?;
        let has = |which: &dyn Fn(usize) -> bool| axes.iter().any(|&a| which(a));
        let (line, batch, k) = (has(&|a| a == part.axis), has(&|a| a == BATCH), has(&|a| a >= K));
        if u8::from(line) + u8::from(batch && spec.batch != Extent::Const(1)) + u8::from(k) > 1 {
            return None;
        }
        if k { along_k.push(term) } else { own.push(term) }
    }
    let tape = Tape::new(&spec.exprs, &own);
    let mut runner = tape.runner();
    let mut lines = Vec::with_capacity(extent as usize);
    for at in 0..extent {
        runner.run(&Line { axis: part.axis, at: at as i32 });
        lines.push((0..own.len()).map(|i| i64::from(runner.get(i).index())).sum::<i64>());
    }
    let distance = |offset: u32| {
        let d = lines.get(offset as usize)? - lines[0];
        let same = lines.iter().zip(&lines[offset as usize..]).all(|(low, high)| high - low == d);
        let blocks = u32::try_from(d).ok().filter(|d| d.is_multiple_of(GROUP))? / GROUP;
        same.then_some(blocks)
    };
    let distances: Option<Vec<u32>> = offsets.iter().map(|&o| distance(o)).collect();
    Some((own, along_k, distances?))
}

/// A coordinate of the line, all others 0.
struct Line {
    axis: usize,
    at: i32,
}

impl Env for Line {
    fn axis(&self, k: u8) -> i32 {
        if usize::from(k) == self.axis { self.at } else { 0 }
    }
    fn arg(&self, _: u16) -> Value {
        Value::I32(0)
    }
    fn sym(&self, _: u16) -> i32 {
        0
    }
    fn load(&self, _: u16, _: &[i32]) -> Value {
        Value::I32(0)
    }
}

/// The terms of a sum.
fn terms(exprs: &Exprs, id: ExprId) -> Vec<ExprId> {
    match *exprs.get(id) {
        Expr::Binary(Binary::Add, a, b) => [terms(exprs, a), terms(exprs, b)].concat(),
        _ => vec![id],
    }
}

/// Axes that a term depends on; none where it depends on anything else.
fn axes(exprs: &Exprs, id: ExprId) -> Option<Vec<usize>> {
    let nodes = exprs.reachable(&[id]);
    let other = |n: &ExprId| matches!(exprs.get(*n), Expr::Load { .. } | Expr::Sym(_) | Expr::Arg(..));
    if nodes.iter().any(other) {
        return None;
    }
    let axis = |n: ExprId| if let Expr::Axis(k) = exprs.get(n) { Some(usize::from(*k)) } else { None };
    Some(nodes.into_iter().filter_map(axis).collect())
}

/// Where the left blocks of a step are.
enum Left<'a> {
    /// In registers, by fragment and line.
    Read(&'a [Id]),
    /// In the shared tile.
    Shared(SharedStep),
}

/// A step of the shared tile: its buffer's first block and its number.
#[derive(Clone, Copy)]
struct SharedStep {
    buffer: Id,
    step: u32,
}

/// The blocks of left fragment `i` of a step from the shared tile.
fn shared_blocks(cx: &mut Emit<'_>, p: &Product<'_>, pattern: &Pattern, at: &SharedStep, i: u32) -> Vec<Id> {
    let size = pattern.step / GROUP;
    let lane = cx.asm.subgroup_lane(p.c.subgroup);
    let (line, block) = (bits(cx, lane, &pattern.line_bits), bits(cx, lane, &pattern.block_bits));
    let line = cx.asm.iadd(line, p.place.row);
    let blocks = cx.asm.u32(size);
    let line = cx.asm.imul(line, blocks);
    let first = cx.asm.iadd(line, block);
    let first = cx.asm.iadd(first, at.buffer);
    let offsets = pattern.lines.iter().map(|l| at.step * slab_pitch(p.c.bm, size) + (i * p.c.frag.0 + l) * size);
    offsets
        .map(|offset| {
            let offset = cx.asm.u32(offset);
            let at = cx.asm.iadd(first, offset);
            cx.asm.load_block(p.blocks, at)
        })
        .collect()
}

/// What the loop over k needs of both sides.
pub(super) struct Sides {
    /// None where the left side is staged.
    pub(super) left: Option<Direct>,
    pub(super) right: Direct,
    pub(super) left_pattern: Pattern,
    /// Variables that fragments are filled in: of the left side, and one of the right.
    pub(super) registers: (Vec<Id>, Id),
}

impl Sides {
    pub(super) fn new(cx: &mut Emit<'_>, p: &Product<'_>, left: Pattern, right: Pattern) -> Option<Sides> {
        let (c, spec) = (p.c, p.spec);
        let (along_m, along_n) = p.fragments();
        let a_ty = cx.asm.matrix_type(c.elem, (c.frag.0, c.frag.2), MatrixUse::A);
        let b_ty = cx.asm.matrix_type(c.elem, (c.frag.2, c.frag.1), MatrixUse::B);
        let row = cx.asm.iadd(p.first[0], p.place.row);
        let col = cx.asm.iadd(p.first[1], p.place.col);
        let whole = |extent: Extent, width: u32| matches!(extent, Extent::Const(n) if n >= width);
        let rows = Part { axis: M, start: row, fragments: (along_m, c.frag.0), whole: whole(spec.m, c.bm) };
        let cols = Part { axis: N, start: col, fragments: (along_n, c.frag.1), whole: whole(spec.n, c.bn) };
        let left_pattern = left.clone();
        let left = if p.staged.is_empty() { Some(Direct::new(cx, spec, &c, left, rows)?) } else { None };
        let right = Direct::new(cx, spec, &c, right, cols)?;
        let registers = vec![cx.asm.matrix_register(a_ty)];
        Some(Sides { left, right, left_pattern, registers: (registers, cx.asm.matrix_register(b_ty)) })
    }
}

/// A fragment of a step, filled from its blocks.
fn filled(cx: &mut Emit<'_>, p: &Product<'_>, pattern: &Pattern, blocks: &[Id], (number, into): (u32, Id)) {
    for (component, &(line, place)) in (0u32..).zip(&pattern.components) {
        let half = number * pattern.along_k + place;
        let word = cx.asm.extract(blocks[line], half / 2);
        let value = cx.asm.halves_of(p.c.elem, word)[half as usize % 2];
        cx.asm.set_component(into, p.c.elem, component, value);
    }
}

/// `sums += left · right` over one step. Left fragments one after another, so that few blocks wait in registers.
fn multiply(cx: &mut Emit<'_>, p: &Product<'_>, s: &Sides, (left, right): (Left<'_>, &[Id])) {
    let (along_m, along_n) = p.fragments();
    let (m, n, k) = p.c.frag;
    let a_ty = cx.asm.matrix_type(p.c.elem, (m, k), MatrixUse::A);
    let b_ty = cx.asm.matrix_type(p.c.elem, (k, n), MatrixUse::B);
    let (left_lines, right_lines) = (s.left_pattern.lines.len(), s.right.pattern.lines.len());
    let fragments = s.left_pattern.fragments();
    let mut b = vec![];
    for number in 0..fragments {
        for j in 0..along_n as usize {
            filled(cx, p, &s.right.pattern, &right[j * right_lines..][..right_lines], (number, s.registers.1));
            b.push(cx.asm.variable(s.registers.1, b_ty));
        }
    }
    for i in 0..along_m as usize {
        let blocks = match &left {
            Left::Read(blocks) => blocks[i * left_lines..][..left_lines].to_vec(),
            Left::Shared(place) => shared_blocks(cx, p, &s.left_pattern, place, i as u32),
        };
        for number in 0..fragments {
            let register = s.registers.0[0];
            filled(cx, p, &s.left_pattern, &blocks, (number, register));
            let a = cx.asm.variable(register, a_ty);
            for j in 0..along_n {
                let variable = p.sums[i * along_n as usize + j as usize];
                let sum = cx.asm.variable(variable, p.sum_ty);
                let sum = cx.asm.matrix_mul_add(a, b[(number * along_n + j) as usize], sum);
                cx.asm.set_variable(variable, sum);
            }
        }
    }
}

fn left_of<'a>(s: &Sides, read: &'a [Id], (buffer, step): (Id, u32)) -> Left<'a> {
    if s.left.is_some() { Left::Read(read) } else { Left::Shared(SharedStep { buffer, step }) }
}

/// Blocks of both sides that were read a step ahead; empty where they are not.
#[derive(Clone)]
struct Ahead {
    left: Vec<Id>,
    right: Vec<Id>,
}

/// The loop over k.
pub(super) fn k_tiles(cx: &mut Emit<'_>, p: &Product<'_>, s: &Sides) {
    let total = cx.product(&p.spec.k);
    let tile = cx.asm.u32(p.c.bk);
    let (_, rest) = super::super::divide(cx, total, tile);
    let main = cx.asm.isub(total, rest);
    let zero = cx.asm.u32(0);
    let (first, stride) = own_tiles(cx, p);
    let initial = start(cx, p, s, (first, main, total));
    cx.loop_step((first, main, stride), &initial, |cx, offset, carried| {
        let at = KRange { k: offset, total: main, covered: true };
        iteration(cx, p, s, (at, stride), carried)
    });
    if !p.staged.is_empty() {
        // What follows writes over the last tile.
        cx.asm.barrier();
    }
    // The first of those that share a sum takes the rest.
    let is_first = cx.asm.ieq(first, zero);
    let rest = cx.asm.select(is_first, main, total);
    cx.loop_step((rest, total, tile), &[], |cx, offset, _| {
        last_tile(cx, p, s, KRange { k: offset, total, covered: false });
        vec![]
    });
}

/// First k of the subgroup's first tile, and from one of its tiles to the next.
fn own_tiles(cx: &mut Emit<'_>, p: &Product<'_>) -> (Id, Id) {
    let tile = cx.asm.u32(p.c.bk);
    let stride = cx.asm.u32(p.c.bk * p.c.parts());
    (cx.asm.imul(p.place.part, tile), stride)
}

/// Values that the first iteration finds: the buffer, what is loaded for shared memory, and what is read ahead.
fn start(cx: &mut Emit<'_>, p: &Product<'_>, s: &Sides, (first, main, total): (Id, Id, Id)) -> Vec<Id> {
    let zero = cx.asm.u32(0);
    let mut initial = if p.c.buffers == 2 && !p.staged.is_empty() { vec![zero] } else { vec![] };
    let any = cx.asm.ult(first, main);
    let at = KRange { k: first, total, covered: true };
    if p.c.ahead && !p.staged.is_empty() {
        initial.extend(stage::load_some(cx, p, KRange { total: main, ..at }));
    }
    let fill = p.c.fill.expect("sides are filled");
    let blocks = cx.asm.zero_block();
    if let Some(left) = s.left.as_ref().filter(|_| fill.ahead.0) {
        initial.extend(cx.if_then(any, &vec![blocks; left.n_blocks()], |cx| left.read(cx, p.spec, at)));
    }
    if fill.ahead.1 {
        initial.extend(cx.if_then(any, &vec![blocks; s.right.n_blocks()], |cx| s.right.read(cx, p.spec, at)));
    }
    initial
}

fn iteration(cx: &mut Emit<'_>, p: &Product<'_>, s: &Sides, (at, stride): (KRange, Id), carried: &[Id]) -> Vec<Id> {
    let (zero, tile) = (cx.asm.u32(0), cx.asm.u32(p.c.bk));
    let mut carried = carried.to_vec();
    let fill = p.c.fill.expect("sides are filled");
    let mut next = vec![];
    let mut buffer = zero;
    if !p.staged.is_empty() {
        let two = p.c.buffers == 2;
        if two {
            buffer = carried.remove(0);
        }
        let n = stage::n_loaded(p);
        let loaded = if p.c.ahead { carried.drain(..n).collect() } else { stage::load(cx, p, at) };
        stage::put(cx, p, buffer, &loaded, at);
        cx.asm.barrier();
        if two {
            let size = cx.asm.u32(p.n_blocks / 2);
            next.push(cx.asm.isub(size, buffer));
        }
        if p.c.ahead {
            let k = cx.asm.iadd(at.k, tile);
            next.extend(stage::load_some(cx, p, KRange { k, ..at }));
        }
    }
    let right = if fill.ahead.1 { carried.split_off(carried.len() - s.right.n_blocks()) } else { vec![] };
    let mut ahead = Ahead { left: carried, right };
    let steps = p.c.bk / s.left_pattern.step;
    for number in 0..steps {
        let offset = cx.asm.u32(number * s.left_pattern.step);
        let k = cx.asm.iadd(at.k, offset);
        let here = KRange { k, ..at };
        let ready = ahead.clone();
        let step = cx.asm.u32(s.left_pattern.step);
        let after = if number + 1 < steps { cx.asm.iadd(k, step) } else { cx.asm.iadd(at.k, stride) };
        let after = following(cx, here, after);
        let left = match &s.left {
            None => vec![],
            Some(side) if fill.ahead.0 => {
                ahead.left = side.read(cx, p.spec, after);
                ready.left
            }
            Some(side) => side.read(cx, p.spec, here),
        };
        let right = if fill.ahead.1 {
            ahead.right = s.right.read(cx, p.spec, after);
            ready.right
        } else {
            s.right.read(cx, p.spec, here)
        };
        multiply(cx, p, s, (left_of(s, &left, (buffer, number)), &right));
    }
    if !p.staged.is_empty() && p.c.buffers == 1 {
        cx.asm.barrier();
    }
    next.extend(ahead.left);
    next.extend(ahead.right);
    next
}

/// The step at `k`, or that before it again.
fn following(cx: &mut Emit<'_>, here: KRange, k: Id) -> KRange {
    let exists = cx.asm.ult(k, here.total);
    KRange { k: cx.asm.select(exists, k, here.k), ..here }
}

/// A tile in which k ends.
fn last_tile(cx: &mut Emit<'_>, p: &Product<'_>, s: &Sides, at: KRange) {
    let zero = cx.asm.u32(0);
    if !p.staged.is_empty() {
        let loaded = stage::load(cx, p, at);
        stage::put(cx, p, zero, &loaded, at);
        cx.asm.barrier();
    }
    for number in 0..p.c.bk / s.left_pattern.step {
        let offset = cx.asm.u32(number * s.left_pattern.step);
        let k = cx.asm.iadd(at.k, offset);
        let here = KRange { k, ..at };
        let left = match &s.left {
            None => vec![],
            Some(side) => side.read(cx, p.spec, here),
        };
        let right = s.right.read(cx, p.spec, here);
        multiply(cx, p, s, (left_of(s, &left, (zero, number)), &right));
    }
    if !p.staged.is_empty() {
        cx.asm.barrier();
    }
}

/// The first row or column of a tile; and the first that is its own, where it begins before that so as to be whole.
pub(super) fn tile_start(cx: &mut Emit<'_>, extent: Extent, width: u32, tile: Id) -> (Id, Option<Id>) {
    let size = cx.asm.u32(width);
    let own = cx.asm.imul(tile, size);
    match extent {
        Extent::Const(n) if n >= width && !is_covered(extent, width) => {
            let last = cx.asm.u32(n - width);
            let early = cx.asm.ult(last, own);
            (cx.asm.select(early, last, own), Some(own))
        }
        _ => (own, None),
    }
}
