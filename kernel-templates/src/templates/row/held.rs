//! Elements of a row that a lane holds: all of a short row, or a block of a longer one. Loaded once, by groups where these are found as
//! wholes; what one stage computes of an element, the next one has.

use super::bind_coordinates;
use crate::asm::Id;
use crate::emit_expr::{Emit, Kept};
use crate::emit_group::Groups;
use crate::expr::ExprId;
use crate::spec::{Extent, RowSpec, Store};

/// Elements of a lane that are looked at together, and how they come in groups.
pub(super) type Pieces = (u32, Option<Groups>);

/// Most elements of a lane that are held.
pub const MOST_HELD: u32 = 32;
/// Most nodes of expressions over all of them.
const MOST_HELD_NODES: usize = 1536;
/// Elements of a lane in a block of a longer row.
const BLOCK_HELD: u32 = 16;

/// A lane's elements: what is known of each, where it stands in the row, and whether it is there (no word where it surely is).
pub(super) struct Held {
    elements: Vec<(Kept, Id, Option<Id>)>,
    /// Where elements come in groups: how, and where each group starts along the last axis.
    groups: Option<(Groups, Vec<(Kept, Id)>)>,
}

/// Elements per lane of a row that is held, or else of a block of it.
pub(super) fn hold(spec: &RowSpec) -> (Option<Pieces>, Option<Pieces>) {
    let Some((total, groups, nodes)) = pieces(spec) else { return (None, None) };
    let size = groups.as_ref().map_or(1, |g| g.size);
    let count = total.div_ceil(spec.threads_per_row * size) * size;
    let fits = |count: u32| nodes * count as usize <= MOST_HELD_NODES;
    if count <= MOST_HELD && fits(count) {
        (Some((count, groups)), None)
    } else if fits(BLOCK_HELD) && size <= BLOCK_HELD && count > BLOCK_HELD {
        (None, Some((BLOCK_HELD, groups)))
    } else {
        (None, None)
    }
}

/// Elements of a row of known length, how they come in groups, and nodes of expressions at each.
fn pieces(spec: &RowSpec) -> Option<(u32, Option<Groups>, usize)> {
    let total: u32 =
        spec.inner.iter().map(|e| if let Extent::Const(n) = e { Some(*n) } else { None }).product::<Option<u32>>()?;
    if total == 0 || spec.threads_per_row == 1 {
        return None;
    }
    let groups = groups(spec).filter(|g| total / g.size * 2 >= spec.threads_per_row);
    Some((total, groups, spec.exprs.reachable(&all_roots(spec)).len()))
}

/// How the elements of a row come in groups along its last axis.
fn groups(spec: &RowSpec) -> Option<Groups> {
    let extents: Vec<Extent> = spec.outer.iter().chain(&spec.inner).copied().collect();
    let axis = extents.len().checked_sub(1)?;
    let values: Vec<ExprId> =
        spec.stages.iter().map(|s| s.value).chain(spec.element_stores.iter().map(|s| s.value)).collect();
    Groups::of((&spec.exprs, &spec.interface, &extents), &values, &spec.element_stores, axis)
}

/// Elements of a row that a lane loads and stores at once, if it has enough of them: 1 where they are found one by one.
pub fn group_size(spec: &RowSpec) -> u32 {
    groups(spec).map_or(1, |g| g.size)
}

/// All that is evaluated at a position.
fn all_roots(spec: &RowSpec) -> Vec<ExprId> {
    let of = |s: &Store| [Some(s.index), Some(s.value), s.guard];
    let stores = spec.element_stores.iter().flat_map(of).flatten();
    spec.stages.iter().map(|s| s.value).chain(stores).collect()
}

/// Values at an element, its position, and whether it is there.
pub(super) type Visited = (Vec<Id>, Id, Option<Id>);

impl Held {
    /// Loads a lane's elements, from position `start` on where the row is walked in blocks. Those beyond the row repeat its last ones, and do
    /// not count.
    pub(super) fn load(
        cx: &mut Emit<'_>,
        spec: &RowSpec,
        start: Option<Id>,
        (lane, total): (Id, Id),
        (count, groups): Pieces,
    ) -> Held {
        let threads = spec.threads_per_row;
        let size = groups.as_ref().map_or(1, |g| g.size);
        let n: u32 = spec.inner.iter().map(|e| if let Extent::Const(n) = e { *n } else { 1 }).product();
        let (size_id, first_axis) = (cx.asm.u32(size), spec.outer.len());
        let last = cx.asm.isub(total, size_id);
        let (mut elements, mut starts) = (vec![], vec![]);
        for turn in 0..count / size {
            let offset = cx.asm.u32(turn * threads);
            let at = cx.asm.iadd(lane, offset);
            let at = cx.asm.imul(at, size_id);
            let at = start.map_or(at, |start| cx.asm.iadd(start, at));
            let covered = match start {
                None => (turn + 1) * threads * size <= n,
                Some(_) => n.is_multiple_of(threads * count),
            };
            let inside = (!covered).then(|| cx.asm.ult(at, total));
            let at = inside.map_or(at, |inside| cx.asm.select(inside, at, last));
            let coordinates = cx.coordinates(at, &spec.inner);
            let Some(groups) = &groups else {
                let scope = cx.keep_scope(None, |cx| bind_coordinates(cx, first_axis, &coordinates));
                elements.push((scope, at, inside));
                continue;
            };
            let (&start, outer) = coordinates.split_last().expect("groups lie along an axis");
            let base = cx.keep_scope(None, |cx| bind_coordinates(cx, first_axis, outer));
            let scopes = cx.group_scopes(&base, groups, start);
            for (e, scope) in (0u32..).zip(scopes) {
                let e = cx.asm.u32(e);
                elements.push((scope, cx.asm.iadd(at, e), inside));
            }
            starts.push((base, start));
        }
        Held { elements, groups: groups.map(|g| (g, starts)) }
    }

    /// What `body` gives at each element, with the element's position and whether it is there; what it computes stays known.
    pub(super) fn visit(&mut self, cx: &mut Emit<'_>, body: &mut dyn FnMut(&mut Emit<'_>) -> Vec<Id>) -> Vec<Visited> {
        let mut visited = vec![];
        for (scope, position, inside) in &mut self.elements {
            let mut values = vec![];
            *scope = cx.keep_scope(Some(scope), |cx| values = body(cx));
            visited.push((values, *position, *inside));
        }
        visited
    }

    pub(super) fn store(&mut self, cx: &mut Emit<'_>, spec: &RowSpec) -> Vec<Id> {
        let size = self.groups.as_ref().map_or(1, |(g, _)| g.size as usize);
        for (turn, elements) in self.elements.chunks(size).enumerate() {
            let inside = elements[0].2.unwrap_or_else(|| cx.asm.bool(true));
            cx.if_then(inside, &[], |cx| {
                match &self.groups {
                    Some((groups, starts)) => {
                        let scopes: Vec<&Kept> = elements.iter().map(|(scope, ..)| scope).collect();
                        let (base, start) = &starts[turn];
                        cx.store_group((groups, base, *start), &scopes, &spec.element_stores, &spec.interface);
                    }
                    None => cx.within(&elements[0].0, |cx| cx.stores(&spec.element_stores)),
                }
                vec![]
            });
        }
        vec![]
    }
}
