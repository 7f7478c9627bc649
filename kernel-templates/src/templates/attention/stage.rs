//! Lines of queries, keys or values on their way into shared memory, by groups of [`GROUP`] elements: a block of halves, or two of f32. A line per
//! query or key, its channels from its first block on; what is beyond the last group is left alone.

use super::{CHANNEL, axes};
use crate::asm::{Blocks, Id, St};
use crate::dtype::DType;
use crate::emit_expr::{Emit, Kept};
use crate::expr::ExprId;
use crate::spec::{AttentionSpec, Extent};
use crate::wide_load::{self, GROUP, WideLoad};

/// Where the lines of an operand go.
pub(super) struct Lines {
    root: ExprId,
    axis: usize,
    extent: Extent,
    dim: u32,
    elem: DType,
    wg: u32,
    /// Lines that are staged at once.
    count: u32,
    /// Blocks from one line to the next.
    pitch: u32,
    /// First block.
    base: u32,
    /// What is beyond the last line is zero, else another line.
    zero: bool,
    /// Groups by whole blocks.
    wide: Option<(WideLoad, Vec<Group>)>,
}

/// A group that an invocation loads of every `count` lines.
struct Group {
    /// Its first block.
    block: Id,
    line: Id,
    /// False for invocations that have no block left.
    mine: Id,
    /// Its channel is bound there.
    scope: Kept,
}

/// An operand's expression, axis and channels.
#[derive(Clone, Copy)]
pub(super) struct Source {
    pub(super) root: ExprId,
    pub(super) axis: usize,
    pub(super) dim: u32,
    pub(super) zero: bool,
}

/// Where lines start, and how many are staged at once.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) base: u32,
    pub(super) pitch: u32,
    pub(super) count: u32,
}

impl Lines {
    /// `elem` is what shared memory holds: F16, BF16 or F32.
    pub(super) fn new(cx: &mut Emit<'_>, spec: &AttentionSpec, elem: DType, from: Source, room: Room) -> Lines {
        let Source { root, axis, dim, zero } = from;
        let Room { base, pitch, count } = room;
        let axes = axes(spec, dim);
        let wide = wide_load::find(&spec.exprs, &spec.interface, &axes, root, CHANNEL, elem);
        let extent = axes[axis];
        let mut lines = Lines { root, axis, extent, dim, elem, wg: spec.wg, count, pitch, base, zero, wide: None };
        lines.wide = wide.map(|w| (w, lines.groups(cx, w)));
        lines
    }

    fn groups_per_line(&self) -> u32 {
        self.dim.div_ceil(GROUP)
    }

    /// Blocks of a group.
    fn blocks_per_group(&self) -> u32 {
        if self.elem == DType::F32 { 2 } else { 1 }
    }

    /// Group `number`: its first block, line, and first channel.
    fn spot(&self, cx: &mut Emit<'_>, number: Id) -> (Id, Id, Id) {
        let per_line = self.groups_per_line();
        let line = cx.quotient_by(number, per_line);
        let per_line = cx.asm.u32(per_line);
        let before = cx.asm.imul(line, per_line);
        let at = cx.asm.isub(number, before);
        let (pitch, base, group) = (cx.asm.u32(self.pitch), cx.asm.u32(self.base), cx.asm.u32(GROUP));
        let start = cx.asm.imul(line, pitch);
        let start = cx.asm.iadd(start, base);
        let blocks = cx.asm.u32(self.blocks_per_group());
        let within = cx.asm.imul(at, blocks);
        (cx.asm.iadd(start, within), line, cx.asm.imul(at, group))
    }

    fn groups(&self, cx: &mut Emit<'_>, wide: WideLoad) -> Vec<Group> {
        let local = cx.asm.local_index();
        let n_groups = self.count * self.groups_per_line();
        let roots: Vec<ExprId> = std::iter::once(wide.index).chain(wide.guard).collect();
        (0..n_groups)
            .step_by(self.wg as usize)
            .map(|offset| {
                let (offset_id, end) = (cx.asm.u32(offset), cx.asm.u32(n_groups));
                let number = cx.asm.iadd(local, offset_id);
                let all = offset + self.wg <= n_groups;
                let mine = if all { cx.asm.bool(true) } else { cx.asm.ult(number, end) };
                let (block, line, channel) = self.spot(cx, number);
                let scope = cx.keep_scope(None, |cx| {
                    cx.bind_axis(CHANNEL, channel);
                    cx.hoist(&roots, false);
                });
                Group { block, line, mine, scope }
            })
            .collect()
    }

    /// Line `first + line`, or the last one, and whether it is there.
    fn existing(&self, cx: &mut Emit<'_>, first: Id, line: Id) -> (Id, Id) {
        let at = cx.asm.iadd(first, line);
        if matches!(self.extent, Extent::Const(n) if n.is_multiple_of(self.count)) {
            return (at, cx.asm.bool(true));
        }
        let (n, one) = (cx.extent(self.extent), cx.asm.u32(1));
        let inside = cx.asm.ult(at, n);
        let last = cx.asm.isub(n, one);
        (cx.asm.select(inside, at, last), inside)
    }

    /// This invocation's blocks of the lines from `first` on, where blocks are loaded as wholes.
    pub(super) fn load(&self, cx: &mut Emit<'_>, first: Id) -> Vec<Id> {
        let Some((wide, groups)) = &self.wide else { return vec![] };
        groups
            .iter()
            .flat_map(|g| {
                let (at, inside) = self.existing(cx, first, g.line);
                cx.scope(|cx| {
                    cx.bind_axis(self.axis, at);
                    cx.within(&g.scope, |cx| self.group(cx, *wide, inside))
                })
            })
            .collect()
    }

    fn group(&self, cx: &mut Emit<'_>, wide: WideLoad, inside: Id) -> Vec<Id> {
        let index = cx.eval(wide.index);
        let kept = if self.zero { inside } else { cx.asm.bool(true) };
        let kept = match wide.guard {
            Some(guard) => {
                let guard = cx.eval(guard);
                cx.asm.land(guard, kept)
            }
            None => kept,
        };
        let shift = cx.asm.u32((GROUP / self.blocks_per_group()).trailing_zeros());
        let index = cx.asm.shr(index, shift);
        let zeros = cx.asm.zero_block();
        (0..self.blocks_per_group())
            .map(|i| {
                let i = cx.asm.u32(i);
                let at = cx.asm.iadd(index, i);
                let block = cx.load_operand_block(wide.operand, at);
                cx.asm.select(kept, block, zeros)
            })
            .collect()
    }

    /// How many blocks [`Lines::load`] gives.
    pub(super) fn loaded(&self) -> usize {
        self.wide.as_ref().map_or(0, |(_, groups)| groups.len() * self.blocks_per_group() as usize)
    }

    /// Writes the lines from `first` on: blocks as they were loaded, or element by element.
    pub(super) fn put(&self, cx: &mut Emit<'_>, blocks: Blocks, loaded: &[Id], first: Id) {
        let Some((_, groups)) = &self.wide else { return self.put_elements(cx, blocks, first) };
        for (group, loaded) in groups.iter().zip(loaded.chunks(self.blocks_per_group() as usize)) {
            cx.if_then(group.mine, &[], |cx| {
                put_blocks(cx, blocks, group.block, loaded);
                vec![]
            });
        }
    }

    fn put_elements(&self, cx: &mut Emit<'_>, blocks: Blocks, first: Id) {
        let local = cx.asm.local_index();
        let (end, step) = (cx.asm.u32(self.count * self.groups_per_line()), cx.asm.u32(self.wg));
        cx.loop_step((local, end, step), &[], |cx, number, _| {
            let (block, line, channel) = self.spot(cx, number);
            let (at, inside) = self.existing(cx, first, line);
            cx.bind_axis(self.axis, at);
            let elements: Vec<Id> = (0..GROUP).map(|e| self.element(cx, (channel, e), inside)).collect();
            let words: Vec<Id> = match self.elem {
                DType::F32 => elements.iter().map(|&e| cx.asm.bitcast(St::U32, e)).collect(),
                half => elements.chunks(2).map(|pair| cx.asm.pack_halves(half, pair[0], pair[1])).collect(),
            };
            let values: Vec<Id> = words.chunks(4).map(|w| cx.asm.block_of([w[0], w[1], w[2], w[3]])).collect();
            put_blocks(cx, blocks, block, &values);
            vec![]
        });
    }

    fn element(&self, cx: &mut Emit<'_>, (channel, e): (Id, u32), inside: Id) -> Id {
        let (e, zero) = (cx.asm.u32(e), cx.asm.f32(0.0));
        let channel = cx.asm.iadd(channel, e);
        let (end, last) = (cx.asm.u32(self.dim), cx.asm.u32(self.dim - 1));
        let whole = self.dim.is_multiple_of(GROUP);
        let is_channel = if whole { cx.asm.bool(true) } else { cx.asm.ult(channel, end) };
        let channel = cx.asm.select(is_channel, channel, last);
        let value = cx.scope(|cx| {
            cx.bind_axis(CHANNEL, channel);
            cx.eval(self.root)
        });
        let kept = if self.zero { cx.asm.land(is_channel, inside) } else { is_channel };
        cx.asm.select(kept, value, zero)
    }
}

fn put_blocks(cx: &mut Emit<'_>, blocks: Blocks, first: Id, values: &[Id]) {
    for (i, &value) in (0u32..).zip(values) {
        let i = cx.asm.u32(i);
        let at = cx.asm.iadd(first, i);
        cx.asm.store_block(blocks, at, value);
    }
}
