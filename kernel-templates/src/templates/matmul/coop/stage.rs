//! Tiles on their way into shared memory: each invocation loads groups of [`GROUP`] elements, by one block or one by one, and writes a block.

use super::super::{K, divide, is_covered};
use super::{Product, pitch};
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
    extent: Extent,
    /// Rows (of the left) or columns (of the right).
    pub(super) width: u32,
    /// Lines run along k, else along the rows or columns.
    pub(super) along_k: bool,
    wide: Option<WideLoad>,
    /// First row or column of the tile.
    pub(super) first: Id,
    /// First block of the side in a buffer.
    pub(super) base: u32,
    groups: Vec<Group>,
}

/// A group that this invocation loads of every tile.
struct Group {
    /// Its block in the tile.
    block: Id,
    /// False for invocations that have no group left.
    mine: Id,
    /// Its first k within the tile.
    k: Id,
    /// What is known before the loop: one scope for its row or column (or for its first one, if it is loaded by one block), or one for each.
    scopes: Vec<Kept>,
}

impl Side {
    pub(super) fn new(cx: &mut Emit<'_>, spec: &MatmulSpec, c: &Coop, axis: usize, tile: Id, local: Id) -> Side {
        let (root, extent, width) = if axis == super::M { (spec.lhs, spec.m, c.bm) } else { (spec.rhs, spec.n, c.bn) };
        let extents = super::super::all_extents(spec);
        let find = |axis| wide_load::find(&spec.exprs, &spec.interface, &extents, root, axis, c.elem);
        let wide_k = last_k(spec).and_then(find);
        let wide = wide_k.or_else(|| find(axis));
        let along_k = match wide {
            Some(_) => wide_k.is_some(),
            None => !is_consecutive(&spec.exprs, root, axis as u8),
        };
        let size = cx.asm.u32(width);
        let first = cx.asm.imul(tile, size);
        let mut side = Side { root, extent, width, along_k, wide, first, base: 0, groups: vec![] };
        let n_groups = width * c.bk / GROUP;
        side.groups = (0..n_groups.div_ceil(spec.wg))
            .map(|i| side.group(cx, (spec, c), axis, (local, i * spec.wg, n_groups)))
            .collect();
        side
    }

    /// Group `local + offset` of the tile.
    fn group(
        &self,
        cx: &mut Emit<'_>,
        (spec, c): (&MatmulSpec, &Coop),
        axis: usize,
        (local, offset, n_groups): (Id, u32, u32),
    ) -> Group {
        let offset_id = cx.asm.u32(offset);
        let number = cx.asm.iadd(local, offset_id);
        let count = cx.asm.u32(n_groups);
        let mine = if offset + spec.wg <= n_groups { cx.asm.bool(true) } else { cx.asm.ult(number, count) };
        let length = if self.along_k { c.bk } else { self.width };
        let per_line = cx.asm.u32(length / GROUP);
        let (line, at) = divide(cx, number, per_line);
        let pitch = cx.asm.u32(pitch(length));
        let start = cx.asm.imul(line, pitch);
        let block = cx.asm.iadd(start, at);
        let eight = cx.asm.u32(GROUP);
        let at = cx.asm.imul(at, eight);
        let (position, k) = if self.along_k { (line, at) } else { (at, line) };
        let position = cx.asm.iadd(self.first, position);
        let count = if self.along_k || self.wide.is_some() { 1 } else { GROUP };
        let scopes = (0..count)
            .map(|e| {
                let e = cx.asm.u32(e);
                let position = cx.asm.iadd(position, e);
                let position = self.clamped(cx, position);
                cx.keep_scope(None, |cx| {
                    cx.bind_axis(axis, position);
                    cx.hoist(&self.roots(), false);
                })
            })
            .collect();
        Group { block, mine, k, scopes }
    }

    /// What is evaluated of a group.
    fn roots(&self) -> Vec<ExprId> {
        match self.wide {
            Some(w) => std::iter::once(w.index).chain(w.guard).collect(),
            None => vec![self.root],
        }
    }

    /// A row or column that exists; a group loaded by one block starts with it.
    fn clamped(&self, cx: &mut Emit<'_>, position: Id) -> Id {
        if is_covered(self.extent, self.width) {
            return position;
        }
        let extent = cx.extent(self.extent);
        let size = if self.wide.is_some() && !self.along_k { GROUP } else { 1 };
        let inside = cx.asm.ult(position, extent);
        let size = cx.asm.u32(size);
        let last = cx.asm.isub(extent, size);
        cx.asm.select(inside, position, last)
    }

    /// The block of a group of the k tile at `offset`.
    fn load(&self, cx: &mut Emit<'_>, (spec, c): (&MatmulSpec, &Coop), g: &Group, (offset, total): (Id, Id)) -> Id {
        let k = cx.asm.iadd(offset, g.k);
        let covered = matches!(cx.asm.const_bits(total), Some(n) if n % u64::from(c.bk) == 0);
        match self.wide {
            Some(wide) => {
                let size = if self.along_k { GROUP } else { 1 };
                let (k, inside) = existing(cx, k, total, size, covered);
                at_k(cx, spec, k, |cx| cx.within(&g.scopes[0], |cx| wide_block(cx, wide, inside)))
            }
            None if self.along_k => {
                let elements = (0..GROUP).map(|e| {
                    let e = cx.asm.u32(e);
                    let k = cx.asm.iadd(k, e);
                    let (k, inside) = existing(cx, k, total, 1, covered);
                    let value = at_k(cx, spec, k, |cx| cx.within(&g.scopes[0], |cx| cx.eval(self.root)));
                    or_zero(cx, inside, value)
                });
                let elements: Vec<Id> = elements.collect();
                packed(cx, c.elem, &elements)
            }
            None => {
                let (k, inside) = existing(cx, k, total, 1, covered);
                let elements = at_k(cx, spec, k, |cx| {
                    let value = |s| cx.within(s, |cx| cx.eval(self.root));
                    g.scopes.iter().map(value).collect::<Vec<Id>>()
                });
                let elements: Vec<Id> = elements.into_iter().map(|v| or_zero(cx, inside, v)).collect();
                packed(cx, c.elem, &elements)
            }
        }
    }
}

/// The k axis that consecutive k move along: the last one that is longer than 1.
fn last_k(spec: &MatmulSpec) -> Option<usize> {
    (0..spec.k.len()).rev().find(|&i| spec.k[i] != Extent::Const(1)).map(|i| K + i)
}

/// A position of `size` elements along k that exists, and whether it is the one asked for.
fn existing(cx: &mut Emit<'_>, k: Id, total: Id, size: u32, covered: bool) -> (Id, Id) {
    if covered {
        return (k, cx.asm.bool(true));
    }
    let inside = cx.asm.ult(k, total);
    let size = cx.asm.u32(size);
    let last = cx.asm.isub(total, size);
    (cx.asm.select(inside, k, last), inside)
}

/// Runs `body` with the k axes bound to those of linear `k`.
fn at_k<T>(cx: &mut Emit<'_>, spec: &MatmulSpec, k: Id, body: impl FnOnce(&mut Emit<'_>) -> T) -> T {
    cx.scope(|cx| {
        for (i, coordinate) in cx.coordinates(k, &spec.k).into_iter().enumerate() {
            cx.bind_axis(K + i, coordinate);
        }
        body(cx)
    })
}

fn wide_block(cx: &mut Emit<'_>, wide: WideLoad, inside: Id) -> Id {
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

fn or_zero(cx: &mut Emit<'_>, inside: Id, value: Id) -> Id {
    let zero = cx.asm.f32(0.0);
    cx.asm.select(inside, value, zero)
}

fn packed(cx: &mut Emit<'_>, elem: DType, elements: &[Id]) -> Id {
    let words: Vec<Id> = elements.chunks(2).map(|pair| cx.asm.pack_halves(elem, pair[0], pair[1])).collect();
    cx.asm.block_of([words[0], words[1], words[2], words[3]])
}

/// This invocation's groups of both sides at k offset `offset`.
pub(super) fn load(cx: &mut Emit<'_>, p: &Product<'_>, offset: Id, total: Id) -> Vec<Id> {
    let mut blocks = vec![];
    for side in &p.sides {
        for group in &side.groups {
            blocks.push(side.load(cx, (p.spec, &p.c), group, (offset, total)));
        }
    }
    blocks
}

/// As [`load`]; zeros beyond the end of k.
pub(super) fn load_some(cx: &mut Emit<'_>, p: &Product<'_>, offset: Id, total: Id) -> Vec<Id> {
    let zeros = cx.asm.zero_block();
    let n: usize = p.sides.iter().map(|s| s.groups.len()).sum();
    let some = cx.asm.ult(offset, total);
    cx.if_then(some, &vec![zeros; n], |cx| load(cx, p, offset, total))
}

/// Writes loaded groups to the buffer that starts at block `buffer`.
pub(super) fn put(cx: &mut Emit<'_>, p: &Product<'_>, buffer: Id, tile: &[Id]) {
    let groups = p.sides.iter().flat_map(|s| s.groups.iter().map(move |g| (s.base, g)));
    for ((base, group), &block) in groups.zip(tile) {
        let base = cx.asm.u32(base);
        let start = cx.asm.iadd(buffer, base);
        let at = cx.asm.iadd(start, group.block);
        cx.if_then(group.mine, &[], |cx| {
            cx.asm.store_block(p.blocks, at, block);
            vec![]
        });
    }
}
