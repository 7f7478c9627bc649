//! One operand's tile: how invocations share its loading, and where its elements stand in shared memory.
//!
//! Rows of shared memory are lines of one k. An invocation loads *pieces* of every tile: four f32 along k or along the rows or columns,
//! where the access map is proven to give them by one load; else single elements. Neighbours take neighbouring pieces, in the
//! direction in which memory runs.

use super::super::{K, all_extents, divide, is_covered, positions_at, zero};
use super::path::Path;
use super::{BLOCK, CROWDED, M, PAD, Sizes};
use crate::asm::{Blocks, Id, Shared, St};
use crate::contiguity::is_consecutive;
use crate::dtype::Ty;
use crate::emit_expr::{Emit, Kept};
use crate::expr::ExprId;
use crate::spec::{Extent, MatmulSpec};
use crate::wide_load::{self, FourLoad};

/// Steps of k after which blocks of a row of shared memory change places.
pub(super) const TURN: u32 = 8;

/// True where the outputs of an invocation along an axis lie in fours.
pub(super) fn in_blocks(spec: &MatmulSpec, width: u32, count: u32) -> bool {
    spec.acc == Ty::F32 && count.is_multiple_of(BLOCK) && width.is_multiple_of(BLOCK)
}

/// Rows of a tile in shared memory, by k.
#[derive(Clone, Copy)]
enum Tile {
    /// Of single elements.
    Elements(Shared),
    /// Of blocks.
    Blocks(Blocks),
}

/// What a piece is.
enum Shape {
    /// One element.
    Element,
    /// Four along k, all of one row or column.
    AlongK(Vec<FourLoad>),
    /// Four rows or columns at one k.
    Across(Vec<FourLoad>),
}

/// A piece that this invocation loads of every tile.
struct Piece {
    /// Its rows or columns: a place in [`Side::lines`].
    line: usize,
    /// Its first k within the tile.
    k: Id,
    /// Where its first element stands in a buffer: element or block, of the invocation's first piece and from there.
    slot: Id,
    further: u32,
    /// Word of the block.
    word: Option<Id>,
    /// False for invocations that have no such piece; none where all do.
    mine: Option<Id>,
}

pub(super) struct Side {
    root: ExprId,
    axis: usize,
    extent: Extent,
    /// Rows (of the left) or columns (of the right).
    width: u32,
    /// Outputs of an invocation along the axis.
    count: u32,
    /// First row or column of the workgroup's tile.
    first: Id,
    tile: Tile,
    shape: Shape,
    pieces: Vec<Piece>,
    /// Blocks stand elsewhere in their row in every other turn of k: see [`flipped`].
    swizzled: bool,
    /// What is known before the loop of the rows or columns that pieces are of: one scope each, or one for each of four.
    lines: Vec<Vec<Kept>>,
}

impl Side {
    pub(super) fn new(
        cx: &mut Emit<'_>,
        spec: &MatmulSpec,
        axis: usize,
        s: Sizes,
        path: &Path<'_>,
        (tile, local): (Id, Id),
    ) -> Side {
        let (root, extent) = if axis == M { (spec.lhs, spec.m) } else { (spec.rhs, spec.n) };
        let (width, count) = if axis == M { (s.bm, s.rows) } else { (s.bn, s.cols) };
        let size = cx.asm.u32(width);
        let first = cx.asm.imul(tile, size);
        let tile = if in_blocks(spec, width, count) {
            Tile::Blocks(cx.asm.shared_blocks((width / BLOCK + 1) * s.bk * s.buffers))
        } else {
            Tile::Elements(cx.asm.shared_array(spec.acc.into(), (width + PAD) * s.bk * s.buffers))
        };
        let shape = shape_of(spec, path, (root, axis), (width, s.bk));
        let blocks = matches!(tile, Tile::Blocks(_)) && matches!(shape, Shape::AlongK(_));
        // What is added to the number of a block must not reach the bit that is flipped, and rows are whole fours of blocks.
        let apart =
            (spec.wg / (s.bk / BLOCK).max(1)).is_multiple_of(16) && (width * BLOCK / count.max(1)).is_multiple_of(16);
        let swizzled = blocks && s.bk == 2 * TURN && apart && spec.wg < CROWDED;
        let mut side =
            Side { root, axis, extent, width, count, first, tile, shape, pieces: vec![], swizzled, lines: vec![] };
        side.add_pieces(cx, spec, s.bk, local);
        side
    }

    /// Pieces of a line of neighbouring pieces; whether it runs along k.
    fn line_pieces(&self, spec: &MatmulSpec, bk: u32) -> (u32, bool) {
        match self.shape {
            Shape::Element if is_consecutive(&spec.exprs, self.root, self.axis as u8) => (self.width, false),
            Shape::Element => (bk, true),
            Shape::AlongK(_) => (bk / BLOCK, true),
            Shape::Across(_) => (self.width / BLOCK, false),
        }
    }

    fn add_pieces(&mut self, cx: &mut Emit<'_>, spec: &MatmulSpec, bk: u32, local: Id) {
        let four = if matches!(self.shape, Shape::Element) { 1 } else { BLOCK };
        let total = self.width * bk / four;
        let (length, along_k) = self.line_pieces(spec, bk);
        let length_id = cx.asm.u32(length);
        let whole_lines = spec.wg.is_multiple_of(length);
        // Of whole lines, all pieces of an invocation have the same place on theirs.
        let (line, at) = divide(cx, local, length_id);
        for i in 0..total.div_ceil(spec.wg) {
            let all = (i + 1) * spec.wg <= total;
            let (line, at, further, mine) = if whole_lines && all {
                (line, at, i * (spec.wg / length), None)
            } else {
                let skipped = cx.asm.u32(i * spec.wg);
                let number = cx.asm.iadd(local, skipped);
                let total = cx.asm.u32(total);
                let mine = cx.asm.ult(number, total);
                let zero = cx.asm.u32(0);
                let number = if all { number } else { cx.asm.select(mine, number, zero) };
                let (line, at) = divide(cx, number, length_id);
                (line, at, 0, (!all).then_some(mine))
            };
            let piece = if along_k {
                self.piece_along_k(cx, (line, at), further)
            } else {
                self.piece_across(cx, (line, at), (i, further))
            };
            self.pieces.push(Piece { mine, ..piece });
        }
    }

    /// The piece `at` of row or column `line + further`, in lines along k.
    fn piece_along_k(&mut self, cx: &mut Emit<'_>, (line, at): (Id, Id), further: u32) -> Piece {
        let step = cx.asm.u32(if matches!(self.shape, Shape::AlongK(_)) { BLOCK } else { 1 });
        let k = cx.asm.imul(at, step);
        let further_id = cx.asm.u32(further);
        let position = cx.asm.iadd(line, further_id);
        self.add_line(cx, position, 1);
        let row = self.row(cx, k);
        let (slot, further, word) = match self.tile {
            Tile::Elements(_) => (cx.asm.iadd(row, line), further, None),
            Tile::Blocks(_) => {
                let four = cx.asm.u32(BLOCK);
                let fours = further.is_multiple_of(BLOCK);
                let (block, word) = divide(cx, if fours { line } else { position }, four);
                let block = if self.swizzled { flipped(cx, block, k) } else { block };
                (cx.asm.iadd(row, block), if fours { further / BLOCK } else { 0 }, Some(word))
            }
        };
        Piece { line: self.lines.len() - 1, k, slot, further, word, mine: None }
    }

    /// Piece `i`, the one `at` of line `line + further` across.
    fn piece_across(&mut self, cx: &mut Emit<'_>, (line, at): (Id, Id), (i, further): (u32, u32)) -> Piece {
        let n = if matches!(self.shape, Shape::Across(_)) { BLOCK } else { 1 };
        let step = cx.asm.u32(n);
        let position = cx.asm.imul(at, step);
        if i == 0 || further == 0 {
            self.add_line(cx, position, n);
        }
        let further_id = cx.asm.u32(further);
        let k = cx.asm.iadd(line, further_id);
        let row = self.row(cx, line);
        let (slot, word) = match self.tile {
            Tile::Elements(_) => (cx.asm.iadd(row, position), None),
            Tile::Blocks(_) => {
                let four = cx.asm.u32(BLOCK);
                let (block, word) = divide(cx, position, four);
                (cx.asm.iadd(row, block), Some(word))
            }
        };
        Piece { line: self.lines.len() - 1, k, slot, further: further * self.pitch(), word, mine: None }
    }

    /// Scopes of `n` rows or columns from `at` within the tile on, which exist.
    fn add_line(&mut self, cx: &mut Emit<'_>, at: Id, n: u32) {
        let position = cx.asm.iadd(self.first, at);
        let covered = is_covered(self.extent, self.width);
        let position = if covered || n == 1 {
            positions_at(cx, self.extent, covered, position, std::iter::once(0))[0].0
        } else {
            // Fours exist or do not as wholes.
            let (extent, n) = (cx.extent(self.extent), cx.asm.u32(n));
            let inside = cx.asm.ult(position, extent);
            let last = cx.asm.isub(extent, n);
            cx.asm.select(inside, position, last)
        };
        let scopes = (0..n).map(|e| {
            let e = cx.asm.u32(e);
            let position = cx.asm.iadd(position, e);
            cx.keep_scope(None, |cx| {
                cx.bind_axis(self.axis, position);
                cx.hoist(&[self.root], false);
            })
        });
        let scopes = scopes.collect();
        self.lines.push(scopes);
    }

    /// Values that [`Side::load`] gives.
    fn n_loaded(&self) -> usize {
        self.pieces.len() * if matches!(self.shape, Shape::Element) { 1 } else { BLOCK as usize }
    }

    /// This invocation's elements of the tile that starts at `first` of the line, whose other axes are bound; zeros beyond the line's end.
    pub(super) fn load(&self, cx: &mut Emit<'_>, spec: &MatmulSpec, path: &Path<'_>, first: Id) -> Vec<Id> {
        // What rows and outer k axes decide together is the same for all pieces of a row.
        let deepen = |cx: &mut Emit<'_>, kept: &Kept| cx.keep_scope(Some(kept), |cx| cx.hoist(&[self.root], false));
        let deepened: Vec<Vec<Kept>> = if path.has_outer() {
            self.lines.iter().map(|line| line.iter().map(|kept| deepen(cx, kept)).collect()).collect()
        } else {
            vec![]
        };
        let lines = if path.has_outer() { &deepened } else { &self.lines };
        let zero = zero(cx, spec.acc);
        let mut values = Vec::with_capacity(self.n_loaded());
        for piece in &self.pieces {
            let size = if matches!(self.shape, Shape::AlongK(_)) { BLOCK } else { 1 };
            let k = cx.asm.iadd(first, piece.k);
            let (k, inside) = path.existing(cx, k, size);
            let loaded = self.load_piece(cx, path, &lines[piece.line], k);
            values.extend(loaded.into_iter().map(|v| cx.asm.select(inside, v, zero)));
        }
        values
    }

    fn load_piece(&self, cx: &mut Emit<'_>, path: &Path<'_>, line: &[Kept], k: Id) -> Vec<Id> {
        let at = |cx: &mut Emit<'_>, kept: &Kept, e: u32, body: &mut dyn FnMut(&mut Emit<'_>) -> Vec<Id>| {
            cx.within(kept, |cx| {
                cx.scope(|cx| {
                    let e = cx.asm.u32(e);
                    let k = cx.asm.iadd(k, e);
                    path.bind(cx, k);
                    body(cx)
                })
            })
        };
        let (loads, along_k) = match &self.shape {
            Shape::Element => return at(cx, &line[0], 0, &mut |cx| vec![cx.eval(self.root)]),
            Shape::AlongK(loads) => (loads, true),
            Shape::Across(loads) => (loads, false),
        };
        let fetched = at(cx, &line[0], 0, &mut |cx| fetch(cx, loads));
        let values = (0..BLOCK).map(|e| {
            let (kept, k_offset) = if along_k { (&line[0], e) } else { (&line[e as usize], 0) };
            at(cx, kept, k_offset, &mut |cx| {
                preset(cx, loads, &fetched, e);
                vec![cx.eval(self.root)]
            })[0]
        });
        values.collect()
    }

    /// First element or block of the buffer that a tile of k waits in.
    pub(super) fn buffer(&self, cx: &mut Emit<'_>, s: Sizes, tile: Id) -> Id {
        if s.buffers == 1 {
            return cx.asm.u32(0);
        }
        let (one, size) = (cx.asm.u32(1), cx.asm.u32(self.pitch() * s.bk));
        let parity = cx.asm.and(tile, one);
        cx.asm.imul(parity, size)
    }

    /// Puts loaded elements into a buffer.
    pub(super) fn put(&self, cx: &mut Emit<'_>, buffer: Id, loaded: &mut dyn Iterator<Item = Id>) {
        for piece in &self.pieces {
            let n = if matches!(self.shape, Shape::Element) { 1 } else { BLOCK as usize };
            let values: Vec<Id> = loaded.take(n).collect();
            match piece.mine {
                None => self.put_piece(cx, piece, buffer, &values),
                Some(mine) => {
                    cx.if_then(mine, &[], |cx| {
                        self.put_piece(cx, piece, buffer, &values);
                        vec![]
                    });
                }
            }
        }
    }

    fn put_piece(&self, cx: &mut Emit<'_>, piece: &Piece, buffer: Id, values: &[Id]) {
        let slot = cx.asm.iadd(piece.slot, buffer);
        let at = |cx: &mut Emit<'_>, further: u32| {
            let further = cx.asm.u32(further);
            cx.asm.iadd(slot, further)
        };
        let step = if matches!(self.shape, Shape::AlongK(_)) { self.pitch() } else { 1 };
        match (self.tile, &self.shape, values) {
            (Tile::Blocks(blocks), Shape::Across(_), &[a, b, c, d]) => {
                let slot = at(cx, piece.further);
                let words = [a, b, c, d].map(|v| cx.asm.bitcast(St::U32, v));
                let block = cx.asm.block_of(words);
                cx.asm.store_block(blocks, slot, block);
            }
            (Tile::Blocks(blocks), ..) => {
                let word = piece.word.expect("a place in a tile of blocks has its word");
                for (e, &value) in (0u32..).zip(values) {
                    let slot = at(cx, piece.further + e * step);
                    cx.asm.store_block_f32(blocks, slot, word, value);
                }
            }
            (Tile::Elements(array), ..) => {
                for (e, &value) in (0u32..).zip(values) {
                    let slot = at(cx, piece.further + e * step);
                    cx.asm.store_shared(array, slot, value);
                }
            }
        }
    }

    /// Elements or blocks from one k to the next.
    fn pitch(&self) -> u32 {
        match self.tile {
            Tile::Elements(_) => self.width + PAD,
            Tile::Blocks(_) => self.width / BLOCK + 1,
        }
    }

    /// Start of the row of `k` within a buffer.
    fn row(&self, cx: &mut Emit<'_>, k: Id) -> Id {
        let pitch = cx.asm.u32(self.pitch());
        cx.asm.imul(k, pitch)
    }

    /// Offsets of an invocation's outputs from its first one.
    fn offsets(&self) -> Vec<u32> {
        let (fours, step) = match self.tile {
            Tile::Blocks(_) => (BLOCK, self.width / (self.count / BLOCK)),
            Tile::Elements(_) => (1, self.width / self.count),
        };
        (0..self.count).map(|i| i / fours * step + i % fours).collect()
    }

    /// Element or block of a buffer where the outputs of invocation `thread` of those along the axis begin in the row of `k`: as the rows of the
    /// turn that `at` lies in have it.
    pub(super) fn start(&self, cx: &mut Emit<'_>, thread: Id, [k, at]: [Id; 2]) -> Id {
        let pitch = cx.asm.u32(self.pitch());
        let row = cx.asm.imul(k, pitch);
        let block = if self.swizzled { flipped(cx, thread, at) } else { thread };
        cx.asm.iadd(row, block)
    }

    /// Output positions of invocation `thread`, each with whether it is inside.
    pub(super) fn positions(&self, cx: &mut Emit<'_>, thread: Id) -> Vec<(Id, Id)> {
        let size = cx.asm.u32(if matches!(self.tile, Tile::Blocks(_)) { BLOCK } else { 1 });
        let start = cx.asm.imul(thread, size);
        let first = cx.asm.iadd(self.first, start);
        let covered = is_covered(self.extent, self.width);
        positions_at(cx, self.extent, covered, first, self.offsets().into_iter())
    }

    /// The elements of an invocation whose own begin at `start`, `rows` rows further.
    pub(super) fn fragment(&self, cx: &mut Emit<'_>, start: Id, rows: u32) -> Vec<Id> {
        let first = rows * self.pitch();
        match self.tile {
            Tile::Elements(array) => {
                let load = |offset: u32| {
                    let offset = cx.asm.u32(first + offset);
                    let slot = cx.asm.iadd(start, offset);
                    cx.asm.load_shared(array, slot)
                };
                self.offsets().into_iter().map(load).collect()
            }
            Tile::Blocks(blocks) => {
                let load = |offset: u32| {
                    let offset = cx.asm.u32(first + offset / BLOCK);
                    let slot = cx.asm.iadd(start, offset);
                    cx.asm.load_block_f32s(blocks, slot)
                };
                self.offsets().into_iter().step_by(BLOCK as usize).flat_map(load).collect()
            }
        }
    }
}

/// Number of a block in its row, of those of `k`: in every other turn, the second two of four change places with the first two.
///
/// The four pieces along k of a row's 16 elements are stored by four neighbours, those of eight rows by 32. Rows of memory that are four k apart are
/// 16 banks apart, so without this the third and fourth would meet the first two.
fn flipped(cx: &mut Emit<'_>, block: Id, k: Id) -> Id {
    let [two, turn] = [2, TURN.trailing_zeros() - 1].map(|v| cx.asm.u32(v));
    let turn = cx.asm.shr(k, turn);
    let flip = cx.asm.and(turn, two);
    cx.asm.xor(block, flip)
}

/// What pieces a side is loaded by.
fn shape_of(spec: &MatmulSpec, path: &Path<'_>, (root, axis): (ExprId, usize), (width, bk): (u32, u32)) -> Shape {
    let extents = all_extents(spec);
    let fours = |along: usize| {
        let found = wide_load::fours(&spec.exprs, &spec.interface, &extents, &[root], along)?;
        (!found.is_empty()).then_some(found)
    };
    if spec.acc != Ty::F32 {
        return Shape::Element;
    }
    if let Some(loads) = path.line_axis().filter(|&k| k >= K && bk.is_multiple_of(BLOCK)).and_then(fours) {
        return Shape::AlongK(loads);
    }
    match Some(axis).filter(|_| width.is_multiple_of(BLOCK)).and_then(fours) {
        Some(loads) => Shape::Across(loads),
        None => Shape::Element,
    }
}

/// Fetches the elements of four places, the first of which is bound: those of each load in turn.
pub(super) fn fetch(cx: &mut Emit<'_>, loads: &[FourLoad]) -> Vec<Id> {
    let mut fetched = Vec::with_capacity(loads.len() * BLOCK as usize);
    for load in loads {
        let index = cx.eval(load.index);
        let two = cx.asm.u32(BLOCK.trailing_zeros());
        let index = cx.asm.shr(index, two);
        let block = cx.load_operand_block(load.operand, index);
        fetched.extend((0..BLOCK).map(|word| {
            let bits = cx.asm.extract(block, word);
            cx.asm.bitcast(St::F32, bits)
        }));
    }
    fetched
}

/// Makes the loads of place `e`, which is bound, those that were fetched.
pub(super) fn preset(cx: &mut Emit<'_>, loads: &[FourLoad], fetched: &[Id], e: u32) {
    for (load, values) in loads.iter().zip(fetched.chunks(BLOCK as usize)) {
        cx.preset(load.load, values[e as usize]);
    }
}
