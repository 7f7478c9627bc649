//! The first places of a line, without sorting the others.
//!
//! ```text
//! best[lane] = the first of the lane's elements          (every wg-th one)
//! limit      = the kept-th of all bests, in order
//! list       = all elements that do not come after it    (`kept` lanes have them)
//! for each of the list: stores(line, p, …) if p < kept   (p: how many of the list come before it)
//! ```
//!
//! At least `kept` elements, the bests, do not come after the limit, so the first places are in the list. Its slots are handed out as invocations ask for
//! them; no two elements are equal (by key and position), so what is stored does not depend on that. Traffic: each input once, and once more
//! by the lanes that list elements.

use super::{all_extents, comes_first, key, key_after_all, key_type, store_place};
use crate::asm::{Id, Shared, St};
use crate::emit_expr::Emit;
use crate::spec::{Extent, SortSpec};

/// Elements that an invocation loads before it uses the first.
const TOGETHER: u32 = 8;
/// Bests that an element is compared with in a turn of a loop; divides every size of a workgroup.
const COMPARED: u32 = 4;

/// An element: key and position.
type Element = (Id, Id);

/// Elements in shared memory.
struct Elements {
    keys: Shared,
    from: Shared,
}

impl Elements {
    fn new(cx: &mut Emit<'_>, keys: St, n: u32) -> Elements {
        Elements { keys: cx.asm.shared_array(keys, n), from: cx.asm.shared_array(St::U32, n) }
    }

    fn get(&self, cx: &mut Emit<'_>, i: Id) -> Element {
        (cx.asm.load_shared(self.keys, i), cx.asm.load_shared(self.from, i))
    }

    fn put(&self, cx: &mut Emit<'_>, i: Id, (key, from): Element) {
        cx.asm.store_shared(self.keys, i, key);
        cx.asm.store_shared(self.from, i, from);
    }

    /// How many of the first so many come before an element.
    fn before(&self, cx: &mut Emit<'_>, (count, together): (Id, u32), element: Element) -> Id {
        let (zero, one, step) = (cx.asm.u32(0), cx.asm.u32(1), cx.asm.u32(together));
        let counted = cx.loop_step((zero, count, step), &[zero], |cx, i, counted| {
            let others: Vec<Element> = (0..together)
                .map(|e| {
                    let e = cx.asm.u32(e);
                    let at = cx.asm.iadd(i, e);
                    self.get(cx, at)
                })
                .collect();
            let count = others.into_iter().fold(counted[0], |count, other| {
                let first = comes_first(cx, other, element);
                let by = cx.asm.select(first, one, zero);
                cx.asm.iadd(count, by)
            });
            vec![count]
        });
        counted[0]
    }
}

/// Elements of the list, at most, for each place: those of an invocation.
pub(super) fn own(spec: &SortSpec) -> u32 {
    let Extent::Const(kept) = spec.kept else { unreachable!("checked: a literal number of places") };
    spec.capacity / kept
}

/// Whether the numbers of a choice fit each other.
pub(super) fn is_consistent(spec: &SortSpec) -> bool {
    let Extent::Const(kept) = spec.kept else { return false };
    let covers = |own: u32| !matches!(spec.len, Extent::Const(n) if n > own * spec.wg);
    let lists = kept > 0 && spec.capacity > 0 && spec.capacity.is_multiple_of(kept);
    lists && kept <= spec.wg && spec.wg.is_multiple_of(COMPARED) && covers(spec.capacity / kept)
}

/// Elements beside the list that shared memory holds, and words.
pub(super) fn beside_list(wg: u32) -> (u32, u32) {
    (wg + 1, 1)
}

/// Loop iterations of an invocation whose lists are as long as they can be.
pub(super) fn iterations(capacity: u32, own: u32, wg: u32) -> u64 {
    let [capacity, own, wg] = [capacity, own, wg].map(u64::from);
    2 * own.div_ceil(TOGETHER.into()) + wg / u64::from(COMPARED) + capacity.div_ceil(wg) * (1 + capacity)
}

pub(super) fn emit(cx: &mut Emit<'_>, spec: &SortSpec, (len, some): (Id, Id)) {
    let keys = key_type(spec.exprs.ty(spec.value));
    let bests = Elements::new(cx, keys, spec.wg);
    let limits = Elements::new(cx, keys, 1);
    let list = Elements::new(cx, keys, spec.capacity);
    let listed = cx.asm.shared_array(St::U32, 1);
    let (zero, one, lane) = (cx.asm.u32(0), cx.asm.u32(1), cx.asm.local_index());
    let none = (key_after_all(cx, keys), cx.asm.u32(u32::MAX));
    let best = cx.if_then(some, &[none.0, none.1], |cx| {
        each_own(cx, spec, (lane, len), &[none.0, none.1], &mut |cx, element, _, best| {
            let earlier = comes_first(cx, element, (best[0], best[1]));
            vec![cx.asm.select(earlier, element.0, best[0]), cx.asm.select(earlier, element.1, best[1])]
        })
    });
    let best = (best[0], best[1]);
    bests.put(cx, lane, best);
    let is_first = cx.asm.ieq(lane, zero);
    cx.if_then(is_first, &[], |cx| {
        limits.put(cx, zero, none);
        cx.asm.store_shared(listed, zero, zero);
        vec![]
    });
    cx.asm.barrier();
    let (wg, kept) = (cx.asm.u32(spec.wg), cx.extent(spec.kept));
    let place = bests.before(cx, (wg, COMPARED), best);
    let last = cx.asm.isub(kept, one);
    let is_limit = cx.asm.ieq(place, last);
    cx.if_then(is_limit, &[], |cx| {
        limits.put(cx, zero, best);
        vec![]
    });
    cx.asm.barrier();
    let limit = limits.get(cx, zero);
    let among = cx.asm.ult(place, kept);
    let lists = cx.asm.land(among, some);
    cx.if_then(lists, &[], |cx| {
        each_own(cx, spec, (lane, len), &[], &mut |cx, element, inside, _| {
            let after = comes_first(cx, limit, element);
            let among = cx.asm.lnot(after);
            let among = cx.asm.land(among, inside);
            cx.if_then(among, &[], |cx| {
                let slot = cx.asm.add_shared(listed, zero, one);
                list.put(cx, slot, element);
                vec![]
            })
        })
    });
    cx.asm.barrier();
    let count = cx.asm.load_shared(listed, zero);
    // As many turns for all lanes.
    cx.loop_step((zero, count, wg), &[], |cx, start, _| {
        let i = cx.asm.iadd(start, lane);
        let inside = cx.asm.ult(i, count);
        let i = cx.asm.select(inside, i, start);
        let element = list.get(cx, i);
        let place = list.before(cx, (count, 1), element);
        let wanted = cx.asm.ult(place, kept);
        let wanted = cx.asm.land(wanted, inside);
        cx.if_then(wanted, &[], |cx| {
            store_place(cx, spec, place, element.1);
            vec![]
        })
    });
}

/// `(element, whether it is there, carried) → carried`.
type ElementBody<'b> = dyn FnMut(&mut Emit<'_>, Element, Id, &[Id]) -> Vec<Id> + 'b;

/// Visits the elements of an invocation, of a line that is not empty; those beyond its end come after all.
fn each_own(
    cx: &mut Emit<'_>,
    spec: &SortSpec,
    (lane, len): (Id, Id),
    initial: &[Id],
    body: &mut ElementBody<'_>,
) -> Vec<Id> {
    let (own, axis) = (own(spec), all_extents(spec).len() - 1);
    let together = own.min(TOGETHER);
    let (zero, one) = (cx.asm.u32(0), cx.asm.u32(1));
    let (end, step) = (cx.asm.u32(own * spec.wg), cx.asm.u32(together * spec.wg));
    let last = cx.asm.isub(len, one);
    let none = (key_after_all(cx, key_type(spec.exprs.ty(spec.value))), cx.asm.u32(u32::MAX));
    cx.loop_step((zero, end, step), initial, |cx, start, carried| {
        let first = cx.asm.iadd(start, lane);
        let loaded: Vec<(Id, Id, Id)> = (0..together)
            .map(|e| {
                let e = cx.asm.u32(e * spec.wg);
                let at = cx.asm.iadd(first, e);
                let inside = cx.asm.ult(at, len);
                let existing = cx.asm.select(inside, at, last);
                let value = cx.scope(|cx| {
                    cx.bind_axis(axis, existing);
                    cx.eval(spec.value)
                });
                (value, at, inside)
            })
            .collect();
        loaded.into_iter().fold(carried.to_vec(), |carried, (value, at, inside)| {
            let key = key(cx, spec, value);
            let element = (cx.asm.select(inside, key, none.0), cx.asm.select(inside, at, none.1));
            body(cx, element, inside, &carried)
        })
    })
}
