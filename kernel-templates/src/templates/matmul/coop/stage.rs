//! Tiles on their way into shared memory, as blocks of [`GROUP`] elements.
//!
//! Where one load takes a whole block, an invocation holds all its blocks of a tile in registers, perhaps a tile ahead. Where elements are
//! found one by one (gathers of convolutions, odd rows), it goes through its blocks in a loop when the tile is due: laid out, the index
//! arithmetic of hundreds of elements would be slow to compile and would not fit the registers.

use super::super::{K, all_extents, divide, is_covered, last_k};
use super::{M, Product, direct, fill, pitch, slab_pitch};
use crate::asm::Id;
use crate::contiguity::is_consecutive;
use crate::dtype::DType;
use crate::emit_expr::{Emit, Kept};
use crate::expr::ExprId;
use crate::spec::{Coop, Extent, MatmulSpec};
use crate::wide_load::{self, GROUP, WideLoad};

/// One operand's tile.
pub(super) struct Side {
    root: ExprId,
    axis: usize,
    extent: Extent,
    /// Rows (of the left) or columns (of the right).
    pub(super) width: u32,
    /// Lines run along k, else along the rows or columns.
    pub(super) along_k: bool,
    /// First row or column of the tile.
    pub(super) first: Id,
    /// All of the tile's exist.
    whole: bool,
    /// First block of the side in a buffer.
    pub(super) base: u32,
    /// Blocks of a line that lie side by side; the next ones of all lines follow in another slab. Lines are whole where there is none.
    pub(super) slab: Option<u32>,
    source: Source,
}

/// Where blocks come from.
enum Source {
    /// One load each: those of this invocation.
    Wide(WideLoad, Vec<Group>),
    /// Likewise, of lines constant distances apart: one address for all.
    Run(Run),
    /// Elements one by one. Lines along rows or columns may have the same ones for all blocks of an invocation: one scope for each.
    Elements(Option<Vec<Kept>>),
}

/// A block that this invocation loads of every tile.
struct Group {
    /// Its place in the tile.
    block: Id,
    /// False for invocations that have no block left.
    mine: Id,
    /// Its first k within the tile.
    k: Id,
    /// Its row or column, or its first one.
    scope: Kept,
}

/// Blocks of one place along k, of lines that are constant distances apart.
struct Run {
    operand: u16,
    /// Places in the tile.
    blocks: Vec<Id>,
    /// Their first k within the tile.
    k: Id,
    /// Terms of the index, in elements, that k does not move, of the first line; and those that it does.
    first: Id,
    along_k: Vec<ExprId>,
    /// Blocks from the first line to each.
    distances: Vec<u32>,
}

impl Run {
    fn load(&self, cx: &mut Emit<'_>, spec: &MatmulSpec, tile: KRange) -> Vec<Id> {
        let k = cx.asm.iadd(tile.k, self.k);
        let (k, inside) = KRange { k, ..tile }.existing(cx, GROUP);
        let index = at_k(cx, spec, k, |cx| {
            self.along_k.iter().fold(self.first, |sum, &term| {
                let term = cx.eval(term);
                cx.asm.iadd(sum, term)
            })
        });
        let three = cx.asm.u32(GROUP.trailing_zeros());
        let index = cx.asm.shr(index, three);
        let run = cx.block_run(self.operand, index);
        let blocks: Vec<Id> = self.distances.iter().map(|&d| cx.load_run_block(run, d)).collect();
        let zeros = cx.asm.zero_block();
        blocks.into_iter().map(|block| cx.asm.select(inside, block, zeros)).collect()
    }
}

/// A block's place in a tile, its first k within the tile, and its first row or column.
struct Spot {
    block: Id,
    k: Id,
    position: Id,
}

impl Side {
    pub(super) fn new(cx: &mut Emit<'_>, spec: &MatmulSpec, c: &Coop, axis: usize, tile: Id, local: Id) -> Side {
        let size = cx.asm.u32(if axis == M { c.bm } else { c.bn });
        let first = cx.asm.imul(tile, size);
        let (extent, width) = if axis == M { (spec.m, c.bm) } else { (spec.n, c.bn) };
        Side::of(cx, spec, c, axis, (first, is_covered(extent, width)), local)
    }

    /// The side of a tile whose first row or column is known, and such that all of them exist where there are as many.
    pub(super) fn at(cx: &mut Emit<'_>, spec: &MatmulSpec, c: &Coop, axis: usize, first: Id, local: Id) -> Side {
        let (extent, width) = if axis == M { (spec.m, c.bm) } else { (spec.n, c.bn) };
        let whole = matches!(extent, Extent::Const(n) if n >= width);
        Side::of(cx, spec, c, axis, (first, whole), local)
    }

    fn of(cx: &mut Emit<'_>, spec: &MatmulSpec, c: &Coop, axis: usize, (first, whole): (Id, bool), local: Id) -> Side {
        let (root, extent, width) = if axis == M { (spec.lhs, spec.m, c.bm) } else { (spec.rhs, spec.n, c.bn) };
        let (wide, along_k) = match wide(spec, c.elem, axis) {
            Some((wide, along_k)) => (Some(wide), along_k),
            None => (None, c.fill.is_some() || !is_consecutive(&spec.exprs, root, axis as u8)),
        };
        let source = Source::Elements(None);
        let slab = c.fill.filter(|f| f.packed == 0).and_then(|f| fill::Pattern::left(c, &f)).map(|p| p.step / GROUP);
        let mut side = Side { root, axis, extent, width, along_k, first, whole, base: 0, slab, source };
        side.source = match wide {
            Some(wide) => match side.run(cx, spec, c, wide, local) {
                Some(run) => Source::Run(run),
                None => Source::Wide(wide, side.groups(cx, spec, c, wide, local)),
            },
            None => Source::Elements(side.shared_rows(cx, spec, c, local)),
        };
        side
    }

    fn n_blocks(&self, c: &Coop) -> u32 {
        self.width * c.bk / GROUP
    }

    fn blocks_per_line(&self, c: &Coop) -> u32 {
        (if self.along_k { c.bk } else { self.width }) / GROUP
    }

    /// Place of block `number` of the tile.
    fn spot(&self, cx: &mut Emit<'_>, c: &Coop, number: Id) -> Spot {
        let per_line = self.blocks_per_line(c);
        let per_line_id = cx.asm.u32(per_line);
        let (line, at) = divide(cx, number, per_line_id);
        let block = match self.slab {
            None => place_in_lines(cx, pitch(per_line * GROUP), line, at),
            Some(size) => {
                let blocks = cx.asm.u32(size);
                let (slab, at) = divide(cx, at, blocks);
                let within = place_in_lines(cx, size, line, at);
                place_in_lines(cx, slab_pitch(self.width, size), slab, within)
            }
        };
        let eight = cx.asm.u32(GROUP);
        let at = cx.asm.imul(at, eight);
        let (position, k) = if self.along_k { (line, at) } else { (at, line) };
        Spot { block, k, position: cx.asm.iadd(self.first, position) }
    }

    /// The blocks that this invocation loads, where one address serves all.
    fn run(&self, cx: &mut Emit<'_>, spec: &MatmulSpec, c: &Coop, wide: WideLoad, local: Id) -> Option<Run> {
        let (per_line, n_blocks) = (self.blocks_per_line(c), self.n_blocks(c));
        if !self.along_k || !spec.wg.is_multiple_of(per_line) || !n_blocks.is_multiple_of(spec.wg) {
            return None;
        }
        let step = spec.wg / per_line;
        let offsets: Vec<u32> = (0..n_blocks / spec.wg).map(|i| i * step).collect();
        let (axis, whole) = (self.axis, self.whole);
        let part = direct::Part { axis, start: self.first, fragments: (self.width, 1), whole };
        let (own, along_k, distances) = direct::apart(spec, wide, part, &offsets)?;
        let Spot { block, k, position } = self.spot(cx, c, local);
        let kept = cx.keep_scope(None, |cx| cx.bind_axis(self.axis, position));
        let zero = cx.asm.u32(0);
        let first = own.iter().fold(zero, |sum, &term| {
            let term = cx.within(&kept, |cx| cx.eval(term));
            cx.asm.iadd(sum, term)
        });
        let line = self.slab.unwrap_or_else(|| pitch(per_line * GROUP));
        let blocks = offsets.iter().map(|&offset| {
            let further = cx.asm.u32(offset * line);
            cx.asm.iadd(block, further)
        });
        Some(Run { operand: wide.operand, blocks: blocks.collect(), k, first, along_k, distances })
    }

    /// The blocks that this invocation loads as wholes.
    fn groups(&self, cx: &mut Emit<'_>, spec: &MatmulSpec, c: &Coop, wide: WideLoad, local: Id) -> Vec<Group> {
        let n_blocks = self.n_blocks(c);
        let roots: Vec<ExprId> = std::iter::once(wide.index).chain(wide.guard).collect();
        (0..n_blocks)
            .step_by(spec.wg as usize)
            .map(|offset| {
                let offset_id = cx.asm.u32(offset);
                let number = cx.asm.iadd(local, offset_id);
                let count = cx.asm.u32(n_blocks);
                let all = offset + spec.wg <= n_blocks;
                let mine = if all { cx.asm.bool(true) } else { cx.asm.ult(number, count) };
                // Those that have none load another's, which is there.
                let zero = cx.asm.u32(0);
                let number = if all { number } else { cx.asm.select(mine, number, zero) };
                let Spot { block, k, position } = self.spot(cx, c, number);
                let position = self.clamped(cx, position, if self.along_k { 1 } else { GROUP });
                Group { block, mine, k, scope: self.row_scope(cx, position, &roots) }
            })
            .collect()
    }

    /// Scopes of the rows or columns of this invocation's blocks, where all of them have the same.
    fn shared_rows(&self, cx: &mut Emit<'_>, spec: &MatmulSpec, c: &Coop, local: Id) -> Option<Vec<Kept>> {
        if self.along_k || !spec.wg.is_multiple_of(self.blocks_per_line(c)) {
            return None;
        }
        let spot = self.spot(cx, c, local);
        Some(self.rows(cx, spot.position))
    }

    /// Scopes of the rows or columns of a block.
    fn rows(&self, cx: &mut Emit<'_>, first: Id) -> Vec<Kept> {
        (0..GROUP)
            .map(|e| {
                let e = cx.asm.u32(e);
                let position = cx.asm.iadd(first, e);
                let position = self.clamped(cx, position, 1);
                self.row_scope(cx, position, &[self.root])
            })
            .collect()
    }

    fn row_scope(&self, cx: &mut Emit<'_>, position: Id, roots: &[ExprId]) -> Kept {
        cx.keep_scope(None, |cx| {
            cx.bind_axis(self.axis, position);
            cx.hoist(roots, false);
        })
    }

    /// A row or column, first of `size`, that exists.
    fn clamped(&self, cx: &mut Emit<'_>, position: Id, size: u32) -> Id {
        if self.whole {
            return position;
        }
        let extent = cx.extent(self.extent);
        let inside = cx.asm.ult(position, extent);
        let size = cx.asm.u32(size);
        let last = cx.asm.isub(extent, size);
        cx.asm.select(inside, position, last)
    }

    /// The element at `k` (or 0 beyond its end) in the scope of a row or column.
    fn element(&self, cx: &mut Emit<'_>, spec: &MatmulSpec, rows: &[Kept], at: KRange) -> Vec<Id> {
        let (k, inside) = at.existing(cx, 1);
        let values = at_k(cx, spec, k, |cx| {
            let value = |row| cx.within(row, |cx| cx.eval(self.root));
            rows.iter().map(value).collect::<Vec<Id>>()
        });
        let zero = cx.asm.f32(0.0);
        values.into_iter().map(|value| cx.asm.select(inside, value, zero)).collect()
    }

    /// Finds and writes the elements of every `wg`-th block, from `local` on.
    fn put_elements(&self, cx: &mut Emit<'_>, p: &Product<'_>, shared: Option<&[Kept]>, buffer: Id, tile: KRange) {
        let (count, step) = (cx.asm.u32(self.n_blocks(&p.c)), cx.asm.u32(p.spec.wg));
        let local = cx.asm.local_index();
        cx.loop_step((local, count, step), &[], |cx, number, _| {
            let spot = self.spot(cx, &p.c, number);
            let k = cx.asm.iadd(tile.k, spot.k);
            let elements: Vec<Id> = if self.along_k {
                let position = self.clamped(cx, spot.position, 1);
                let row = [self.row_scope(cx, position, &[self.root])];
                let along = (0..GROUP).flat_map(|e| {
                    let e = cx.asm.u32(e);
                    let k = cx.asm.iadd(k, e);
                    self.element(cx, p.spec, &row, KRange { k, ..tile })
                });
                along.collect()
            } else {
                let own = if shared.is_none() { self.rows(cx, spot.position) } else { vec![] };
                self.element(cx, p.spec, shared.unwrap_or(&own), KRange { k, ..tile })
            };
            let block = packed(cx, p.c.elem, &elements);
            self.put_block(cx, p, buffer, spot.block, block);
            vec![]
        });
    }

    fn put_block(&self, cx: &mut Emit<'_>, p: &Product<'_>, buffer: Id, at: Id, block: Id) {
        let base = cx.asm.u32(self.base);
        let start = cx.asm.iadd(buffer, base);
        let at = cx.asm.iadd(start, at);
        cx.asm.store_block(p.blocks, at, block);
    }
}

fn place_in_lines(cx: &mut Emit<'_>, pitch: u32, line: Id, at: Id) -> Id {
    let pitch = cx.asm.u32(pitch);
    let start = cx.asm.imul(line, pitch);
    cx.asm.iadd(start, at)
}

/// A position along k and what is known of the end.
#[derive(Clone, Copy)]
pub(super) struct KRange {
    /// Linear k: the first of a tile, or of an element.
    pub(super) k: Id,
    /// Length of k.
    pub(super) total: Id,
    /// Tiles end where k ends.
    pub(super) covered: bool,
}

impl KRange {
    /// A position of `size` elements along k that exists, and whether it is the one asked for.
    pub(super) fn existing(self, cx: &mut Emit<'_>, size: u32) -> (Id, Id) {
        if self.covered {
            return (self.k, cx.asm.bool(true));
        }
        let inside = cx.asm.ult(self.k, self.total);
        let size = cx.asm.u32(size);
        let last = cx.asm.isub(self.total, size);
        (cx.asm.select(inside, self.k, last), inside)
    }
}

/// The load of whole blocks of the side along an axis, and whether they run along k.
pub(super) fn wide(spec: &MatmulSpec, elem: DType, axis: usize) -> Option<(WideLoad, bool)> {
    let root = if axis == M { spec.lhs } else { spec.rhs };
    let extents = all_extents(spec);
    let find = |axis| wide_load::find(&spec.exprs, &spec.interface, &extents, root, axis, elem);
    let along_k = last_k(spec).and_then(find).map(|w| (w, true));
    along_k.or_else(|| find(axis).map(|w| (w, false)))
}

/// Runs `body` with the k axes bound to those of linear `k`.
pub(super) fn at_k<T>(cx: &mut Emit<'_>, spec: &MatmulSpec, k: Id, body: impl FnOnce(&mut Emit<'_>) -> T) -> T {
    cx.scope(|cx| {
        for (i, coordinate) in cx.coordinates(k, &spec.k).into_iter().enumerate() {
            cx.bind_axis(K + i, coordinate);
        }
        body(cx)
    })
}

pub(super) fn wide_block(cx: &mut Emit<'_>, wide: WideLoad, inside: Id) -> Id {
    let index = cx.eval(wide.index);
    let three = cx.asm.u32(GROUP.trailing_zeros());
    let index = cx.asm.shr(index, three);
    let block = cx.load_operand_block(wide.operand, index);
    let inside = match wide.guard {
        Some(guard) => {
            let guard = cx.eval(guard);
            cx.asm.land(guard, inside)
        }
        None => inside,
    };
    if cx.asm.const_bits(inside) == Some(1) {
        return block;
    }
    let zeros = cx.asm.zero_block();
    cx.asm.select(inside, block, zeros)
}

fn packed(cx: &mut Emit<'_>, elem: DType, elements: &[Id]) -> Id {
    let words: Vec<Id> = elements.chunks(2).map(|pair| cx.asm.pack_halves(elem, pair[0], pair[1])).collect();
    cx.asm.block_of([words[0], words[1], words[2], words[3]])
}

/// This invocation's whole blocks of the k tile at `tile`.
pub(super) fn load(cx: &mut Emit<'_>, p: &Product<'_>, tile: KRange) -> Vec<Id> {
    let mut blocks = vec![];
    for side in &p.staged {
        if let Source::Run(run) = &side.source {
            blocks.extend(run.load(cx, p.spec, tile));
        }
        let Source::Wide(wide, groups) = &side.source else { continue };
        for g in groups {
            let k = cx.asm.iadd(tile.k, g.k);
            let (k, inside) = KRange { k, ..tile }.existing(cx, if side.along_k { GROUP } else { 1 });
            blocks.push(at_k(cx, p.spec, k, |cx| cx.within(&g.scope, |cx| wide_block(cx, *wide, inside))));
        }
    }
    blocks
}

/// Blocks that [`load`] gives.
pub(super) fn n_loaded(p: &Product<'_>) -> usize {
    let n_groups = |s: &Side| match &s.source {
        Source::Wide(_, groups) => groups.len(),
        Source::Run(run) => run.blocks.len(),
        Source::Elements(_) => 0,
    };
    p.staged.iter().map(n_groups).sum()
}

/// As [`load`]; beyond the end of k zeros, or the last tile once more: without a branch, loads and products run side by side.
pub(super) fn load_some(cx: &mut Emit<'_>, p: &Product<'_>, tile: KRange) -> Vec<Id> {
    let known = cx.asm.const_bits(tile.total).filter(|total| *total > 0);
    match known {
        Some(_) if !tile.covered => load(cx, p, tile),
        Some(total) => {
            let (inside, last) = (cx.asm.ult(tile.k, tile.total), cx.asm.u32(total as u32 - p.c.bk));
            let k = cx.asm.select(inside, tile.k, last);
            load(cx, p, KRange { k, ..tile })
        }
        None => {
            let zeros = cx.asm.zero_block();
            let some = cx.asm.ult(tile.k, tile.total);
            cx.if_then(some, &vec![zeros; n_loaded(p)], |cx| load(cx, p, tile))
        }
    }
}

/// Writes the k tile at `tile` to the buffer that starts at block `buffer`: whole blocks as they were loaded, others now.
pub(super) fn put(cx: &mut Emit<'_>, p: &Product<'_>, buffer: Id, loaded: &[Id], tile: KRange) {
    let mut loaded = loaded.iter();
    for side in &p.staged {
        match &side.source {
            Source::Wide(_, groups) => {
                for (group, &block) in groups.iter().zip(&mut loaded) {
                    cx.if_then(group.mine, &[], |cx| {
                        side.put_block(cx, p, buffer, group.block, block);
                        vec![]
                    });
                }
            }
            Source::Run(run) => {
                for (&at, &block) in run.blocks.iter().zip(&mut loaded) {
                    side.put_block(cx, p, buffer, at, block);
                }
            }
            Source::Elements(shared) => side.put_elements(cx, p, shared.as_deref(), buffer, tile),
        }
    }
}
