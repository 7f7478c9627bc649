//! A tile of two axes for each workgroup: what lies along the other axis than the last is loaded along that, and passes through shared memory.
//!
//! ```text
//! parallel for tile of side × side positions along (axis, last):
//!     for positions of the tile, neighbours along axis:   shared = the turned loads
//!     for positions of the tile, neighbours along last:   stores, the turned loads from shared
//! ```
//!
//! Lines of shared memory are an element longer than the tile, so that columns lie in different banks. Halves are loaded and stored in groups of eight
//! (or four), where they come in such along both axes.

use crate::asm::{Glsl, Id, Shared};
use crate::check::{BuildError, shape};
use crate::contiguity::{is_consecutive_index, is_constant_index};
use crate::dtype::{DType, Ty};
use crate::emit_expr::{Emit, Kept};
use crate::emit_group::Groups;
use crate::expr::{Expr, ExprId};
use crate::spec::{Extent, Grid, GridFactor, Kernel, MapSpec, Target, Turned};
use crate::templates::kernel;
use crate::wide_load::{FOUR, GROUP};

/// Loads that pass through shared memory, at most.
const MOST_LOADS: usize = 4;
/// Shorter axes leave most of a tile empty.
const LEAST: u32 = 16;

/// The loads of 32-bit values that follow one another along `axis`, and not along the last one.
fn loads(spec: &MapSpec, axis: u8) -> Vec<ExprId> {
    let last = spec.domain.len() as u8 - 1;
    let values = spec.stores.iter().flat_map(|s| [Some(s.value), s.guard]).flatten();
    let roots: Vec<ExprId> = values.collect();
    let turned = |id: &ExprId| {
        let Expr::Load { ref index, .. } = *spec.exprs.get(*id) else { return false };
        matches!(spec.exprs.ty(*id), Ty::F32 | Ty::I32)
            && is_consecutive_index(&spec.exprs, index[0], axis)
            && !is_consecutive_index(&spec.exprs, index[0], last)
            && !is_constant_index(&spec.exprs, index[0], last)
    };
    spec.exprs.reachable(&roots).into_iter().filter(turned).collect()
}

/// How loads come in groups along the axis, and stores along the last one: where all values that are turned are halves, in groups of as many.
fn half_groups(spec: &MapSpec, t: Turned) -> Option<[Groups; 2]> {
    let at = (&spec.exprs, &spec.interface, &spec.domain[..]);
    let staged = loads(spec, t.axis);
    let is_half = |id: &ExprId| matches!(spec.exprs.get(*id), Expr::Load { dtype: DType::F16 | DType::BF16, .. });
    if !staged.iter().all(is_half) {
        return None;
    }
    let values: Vec<ExprId> = spec.stores.iter().flat_map(|s| [Some(s.value), s.guard]).flatten().collect();
    [GROUP, FOUR]
        .into_iter()
        .filter(|&size| t.side.is_multiple_of(size) && spec.per_thread.is_multiple_of(size))
        .find_map(|size| {
            let stored = Groups::of_half_lines(at, &values, (&spec.stores, &staged), (spec.domain.len() - 1, size))?;
            let loaded = Groups::of_half_lines(at, &staged, (&[], &[]), (usize::from(t.axis), size))?;
            Some([loaded, stored])
        })
}

/// Whether tiles of so many positions a side pass through shared memory in groups.
pub fn turned_in_groups(spec: &MapSpec, t: Turned) -> bool {
    half_groups(&MapSpec { per_thread: t.side * t.side / spec.wg, ..spec.clone() }, t).is_some()
}

/// The axis along which most loads follow one another that do not along the last; none where there is nothing to gain.
pub fn turned_axis(spec: &MapSpec) -> Option<u8> {
    let long = |e: &Extent| matches!(e, Extent::Const(n) if *n >= LEAST);
    let (last, others) = spec.domain.split_last()?;
    let axes = (0u8..).zip(others).filter(|(_, e)| long(e) && long(last));
    let counted = axes.map(|(axis, _)| (loads(spec, axis).len(), axis)).filter(|(n, _)| (1..=MOST_LOADS).contains(n));
    counted.max_by_key(|&(n, axis)| (n, std::cmp::Reverse(axis))).map(|(_, axis)| axis)
}

pub(super) fn check(spec: &MapSpec, t: Turned) -> Result<(), BuildError> {
    let fixed = |k: usize| matches!(spec.domain.get(k), Some(Extent::Const(_)));
    let axis = usize::from(t.axis);
    let sizes = t.side > 0 && spec.wg * spec.per_thread == t.side * t.side && spec.wg.is_multiple_of(t.side);
    if !sizes || axis + 1 >= spec.domain.len() || !fixed(axis) || !fixed(spec.domain.len() - 1) {
        let sizes =
            format!("side {} of axes {} and the last, wg={}, {} each", t.side, t.axis, spec.wg, spec.per_thread);
        return Err(shape(format!("map: tiles of {sizes}, domain {:?}", spec.domain)));
    }
    Ok(())
}

pub(super) fn shared_bytes(spec: &MapSpec, t: Turned) -> u32 {
    loads(spec, t.axis).len() as u32 * slots(t.side) * 4
}

/// Words of shared memory of a tile.
fn slots(side: u32) -> u32 {
    side * pitch(side) + shift(side - 1)
}

/// Words from one line to the next.
fn pitch(side: u32) -> u32 {
    side + shift(side - 1) + 1
}

/// Every other 32 rows, and columns, lie some banks further: groups of eight would share these else.
fn shift(at: u32) -> u32 {
    at / 32 * 4
}

/// The tile of a workgroup.
struct Tile<'s> {
    spec: &'s MapSpec,
    side: u32,
    axis: usize,
    last: usize,
    /// First positions along the axis and the last one.
    first: [Id; 2],
    /// The invocation's place along the direction that neighbours share, and along the other.
    lane: Id,
    line: Id,
    staged: Vec<(ExprId, Shared)>,
}

pub(super) fn build(mut cx: Emit<'_>, spec: &MapSpec, t: Turned) -> Kernel {
    let (axis, last) = (usize::from(t.axis), spec.domain.len() - 1);
    let count = |k: usize| if let Extent::Const(n) = spec.domain[k] { n.div_ceil(t.side) } else { 1 };
    let outer: Vec<usize> = (0..last).filter(|&k| k != axis).collect();
    let mut groups: Vec<Extent> = outer.iter().map(|&k| spec.domain[k]).collect();
    groups.extend([Extent::Const(count(axis)), Extent::Const(count(last))]);
    let group = cx.asm.workgroup_index();
    cx.return_beyond(group, &groups);
    let at = cx.coordinates(group, &groups);
    for (&k, &c) in outer.iter().zip(&at) {
        cx.bind_axis(k, c);
    }
    let side = cx.asm.u32(t.side);
    let first = [at[outer.len()], at[outer.len() + 1]].map(|tile| cx.asm.imul(tile, side));
    let local = cx.asm.local_index();
    let line = cx.quotient_by(local, t.side);
    let before = cx.asm.imul(line, side);
    let lane = cx.asm.isub(local, before);
    let staged = loads(spec, t.axis).into_iter().map(|id| {
        let array = cx.asm.shared_array(spec.exprs.ty(id).into(), slots(t.side));
        (id, array)
    });
    let staged = staged.collect();
    let tile = Tile { spec, side: t.side, axis, last, first, lane, line, staged };
    match half_groups(spec, t) {
        Some([loaded, stored]) => {
            tile.fill_groups(&mut cx, &loaded);
            cx.asm.barrier();
            tile.store_groups(&mut cx, &stored);
        }
        None => {
            tile.fill(&mut cx);
            cx.asm.barrier();
            tile.store(&mut cx);
        }
    }
    Kernel { grid: Grid::linear(vec![GridFactor { extents: groups, divisor: 1 }]), ..kernel(cx, Grid::linear(vec![])) }
}

impl Tile<'_> {
    /// The invocation's places across the direction that neighbours share.
    fn lines(&self, cx: &mut Emit<'_>) -> Vec<Id> {
        let apart = self.spec.wg / self.side;
        (0..self.spec.per_thread)
            .map(|i| {
                let by = cx.asm.u32(i * apart);
                cx.asm.iadd(self.line, by)
            })
            .collect()
    }

    fn slot(&self, cx: &mut Emit<'_>, row: Id, column: Id) -> Id {
        let pitch = cx.asm.u32(pitch(self.side));
        let start = cx.asm.imul(row, pitch);
        let mut slot = cx.asm.iadd(start, column);
        if self.side > 32 {
            let (five, two) = (cx.asm.u32(5), cx.asm.u32(2));
            for at in [row, column] {
                let half = cx.asm.shr(at, five);
                let shift = cx.asm.shl(half, two);
                slot = cx.asm.iadd(slot, shift);
            }
        }
        slot
    }

    /// The invocation's groups, neighbours along the direction that groups have: where each starts in it, and its line.
    fn groups(&self, cx: &mut Emit<'_>, size: u32) -> Vec<(Id, Id)> {
        let (local, across) = (cx.asm.local_index(), self.side / size);
        let (across_id, size_id) = (cx.asm.u32(across), cx.asm.u32(size));
        (0..self.spec.per_thread / size)
            .map(|i| {
                let before = cx.asm.u32(i * self.spec.wg);
                let number = cx.asm.iadd(local, before);
                let line = cx.quotient_by(number, across);
                let whole = cx.asm.imul(line, across_id);
                let place = cx.asm.isub(number, whole);
                (cx.asm.imul(place, size_id), line)
            })
            .collect()
    }

    /// As [`Tile::fill`], in groups along the axis.
    fn fill_groups(&self, cx: &mut Emit<'_>, groups: &Groups) {
        let places = self.groups(cx, groups.size);
        let loaded: Vec<Vec<Vec<Id>>> = places
            .iter()
            .map(|&(start, line)| {
                let along = cx.asm.iadd(self.first[0], start);
                let along = self.existing_from(cx, along, (self.axis, groups.size));
                let across = cx.asm.iadd(self.first[1], line);
                let across = self.existing(cx, across, self.last);
                let base = cx.keep_scope(None, |cx| cx.bind_axis(self.last, across));
                let scopes = cx.group_scopes(&base, groups, along);
                let values = |cx: &mut Emit<'_>| self.staged.iter().map(|&(id, _)| cx.eval(id)).collect();
                scopes.iter().map(|scope| cx.within(scope, values)).collect()
            })
            .collect();
        for (&(start, line), group) in places.iter().zip(loaded) {
            for (e, values) in (0u32..).zip(group) {
                let e = cx.asm.u32(e);
                let at = cx.asm.iadd(start, e);
                let slot = self.slot(cx, line, at);
                for (&(_, array), value) in self.staged.iter().zip(values) {
                    cx.asm.store_shared(array, slot, value);
                }
            }
        }
    }

    /// As [`Tile::store`], in groups along the last axis.
    fn store_groups(&self, cx: &mut Emit<'_>, groups: &Groups) {
        for (start, line) in self.groups(cx, groups.size) {
            let along = cx.asm.iadd(self.first[0], line);
            let across = cx.asm.iadd(self.first[1], start);
            let inside = self.inside(cx, along, across);
            cx.if_then(inside, &[], |cx| {
                let base = cx.keep_scope(None, |cx| cx.bind_axis(self.axis, along));
                let scopes = cx.group_scopes(&base, groups, across);
                let scopes: Vec<Kept> = (0u32..)
                    .zip(&scopes)
                    .map(|(e, scope)| {
                        let e = cx.asm.u32(e);
                        let at = cx.asm.iadd(start, e);
                        let slot = self.slot(cx, at, line);
                        cx.keep_scope(Some(scope), |cx| {
                            for &(id, array) in &self.staged {
                                let value = cx.asm.load_shared(array, slot);
                                cx.preset(id, value);
                            }
                        })
                    })
                    .collect();
                let scopes: Vec<&Kept> = scopes.iter().collect();
                cx.store_group((groups, &base, across), &scopes, &self.spec.stores, &self.spec.interface);
                vec![]
            });
        }
    }

    /// Whether a position is there.
    fn inside(&self, cx: &mut Emit<'_>, along: Id, across: Id) -> Id {
        let mut inside = cx.asm.bool(true);
        for (at, k) in [(along, self.axis), (across, self.last)] {
            let n = self.extent(k);
            if !n.is_multiple_of(self.side) {
                let n = cx.asm.u32(n);
                let there = cx.asm.ult(at, n);
                inside = cx.asm.land(inside, there);
            }
        }
        inside
    }

    fn extent(&self, k: usize) -> u32 {
        if let Extent::Const(n) = self.spec.domain[k] { n } else { unreachable!("checked: a tile has literal sizes") }
    }

    /// A position, or the last one where it is beyond.
    fn existing(&self, cx: &mut Emit<'_>, at: Id, k: usize) -> Id {
        self.existing_from(cx, at, (k, 1))
    }

    /// As [`Tile::existing`], of the start of a group of so many.
    fn existing_from(&self, cx: &mut Emit<'_>, at: Id, (k, size): (usize, u32)) -> Id {
        let n = self.extent(k);
        if n.is_multiple_of(self.side) {
            return at;
        }
        let end = cx.asm.u32(n - size);
        cx.asm.glsl2(Glsl::UMin, at, end)
    }

    /// All loads, neighbours along the axis; then what they gave to shared memory, a line for each position of the last axis.
    fn fill(&self, cx: &mut Emit<'_>) {
        let along = cx.asm.iadd(self.first[0], self.lane);
        let along = self.existing(cx, along, self.axis);
        let lines = self.lines(cx);
        let loaded: Vec<Vec<Id>> = lines
            .iter()
            .map(|&line| {
                let across = cx.asm.iadd(self.first[1], line);
                let across = self.existing(cx, across, self.last);
                cx.scope(|cx| {
                    cx.bind_axis(self.axis, along);
                    cx.bind_axis(self.last, across);
                    self.staged.iter().map(|&(id, _)| cx.eval(id)).collect()
                })
            })
            .collect();
        for (&line, values) in lines.iter().zip(loaded) {
            let slot = self.slot(cx, line, self.lane);
            for (&(_, array), value) in self.staged.iter().zip(values) {
                cx.asm.store_shared(array, slot, value);
            }
        }
    }

    fn store(&self, cx: &mut Emit<'_>) {
        let across = cx.asm.iadd(self.first[1], self.lane);
        for line in self.lines(cx) {
            let along = cx.asm.iadd(self.first[0], line);
            let inside = self.inside(cx, along, across);
            cx.if_then(inside, &[], |cx| {
                cx.bind_axis(self.axis, along);
                cx.bind_axis(self.last, across);
                let slot = self.slot(cx, self.lane, line);
                for &(id, array) in &self.staged {
                    let value = cx.asm.load_shared(array, slot);
                    cx.preset(id, value);
                }
                cx.stores(&self.spec.stores);
                vec![]
            });
        }
    }
}

/// Starts the kernel and builds it.
pub(super) fn kernel_of(spec: &MapSpec, target: Target, t: Turned) -> Kernel {
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &spec.domain, target, spec.wg);
    cx.load_symbols(&spec.domain);
    build(cx, spec, t)
}
