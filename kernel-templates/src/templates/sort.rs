//! Stable sort of lines that fit shared memory, or their first places.
//!
//! ```text
//! parallel for line in outer (a workgroup each):
//!     key[i], from[i] = order(value(line, i)), i        for i in 0..capacity; beyond len: after everything
//!     bitonic network over (key, from)
//!     for p in 0..kept: stores(line, p, value(line, from[p]), from[p])
//! ```
//!
//! Three distances of the network at a time are done on eight elements in registers, so that shared memory is passed through a third as often.
//!
//! Keys are integers whose order is that of the values: −0 and +0 have one key, NaN the largest. Equal keys are ordered by where they come from,
//! so that the network, which is not stable by itself, gives the one stable order. Traffic: each input twice, each output once. A few
//! first places are chosen without sorting the others (`choice.rs`).

mod choice;

use crate::asm::{Id, Shared, St};
use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::emit_ops::emit_binary;
use crate::eval::{Tape, Value};
use crate::expr::{Binary, ExprId};
use crate::host::{Memory, Point, for_each_point};
use crate::limits::{Limits, Reject};
use crate::reference::StoreTape;
use crate::spec::{Extent, Grid, GridFactor, Kernel, SortSpec, Store, Target};
use crate::templates::kernel;
use std::cmp::Ordering;

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &SortSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    index_space(&spec.outer)?;
    let (ty, capacity) = (spec.exprs.ty(spec.value), spec.capacity);
    let need = if spec.chosen { choice_bytes(ty, capacity, spec.wg) } else { shared_bytes(ty, capacity) };
    if need > limits.shared_bytes { Err(Reject::Shared { need, limit: limits.shared_bytes }) } else { Ok(()) }
}

/// Shared memory of a line: a key and a position per element.
pub fn shared_bytes(ty: Ty, capacity: u32) -> u32 {
    capacity * (key_type(ty).size_bytes() + 4)
}

/// Shared memory of a choice whose list holds so many elements.
pub fn choice_bytes(ty: Ty, capacity: u32, wg: u32) -> u32 {
    let (elements, words) = choice::beside_list(wg);
    shared_bytes(ty, capacity + elements) + 4 * words
}

/// Loop iterations of an invocation that has so many elements of a choice whose list holds `capacity`.
pub fn choice_iterations(capacity: u32, own: u32, wg: u32) -> u64 {
    choice::iterations(capacity, own, wg)
}

/// Loop iterations of an invocation: of the choice, or of the network and the passes before and after it.
pub fn iterations(spec: &SortSpec) -> u64 {
    let (capacity, wg) = (spec.capacity, spec.wg);
    if spec.chosen {
        return choice::iterations(capacity, choice::own(spec), wg);
    }
    let (levels, own) = (u64::from(capacity.trailing_zeros()), u64::from(capacity / wg));
    levels + levels * (levels + 1) / 2 * (1 + own.div_ceil(2)) + 2 * own
}

fn key_type(ty: Ty) -> St {
    if ty == Ty::I64 { St::U64 } else { St::U32 }
}

fn all_extents(spec: &SortSpec) -> Vec<Extent> {
    [&spec.outer[..], &[spec.len]].concat()
}

/// Keys and positions in shared memory.
struct Line {
    keys: Shared,
    from: Shared,
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &SortSpec, target: Target) -> Result<Kernel, BuildError> {
    check(spec)?;
    let extents = all_extents(spec);
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &extents, target, spec.wg);
    cx.load_symbols(&[&extents[..], &[spec.kept]].concat());
    let index = cx.asm.workgroup_index();
    cx.return_beyond(index, &spec.outer);
    for (k, c) in cx.coordinates(index, &spec.outer).into_iter().enumerate() {
        cx.bind_axis(k, c);
    }
    cx.hoist(&roots(spec), false);
    let (len, zero) = (cx.extent(spec.len), cx.asm.u32(0));
    // An empty line has no last element to stand in for those beyond its end.
    let empty = cx.asm.ieq(len, zero);
    let some = cx.asm.lnot(empty);
    let lines = Grid::linear(vec![GridFactor { extents: spec.outer.clone(), divisor: 1 }]);
    if spec.chosen {
        choice::emit(&mut cx, spec, (len, some));
        return Ok(kernel(cx, lines));
    }
    let line = Line {
        keys: cx.asm.shared_array(key_type(spec.exprs.ty(spec.value)), spec.capacity),
        from: cx.asm.shared_array(St::U32, spec.capacity),
    };
    cx.if_then(some, &[], |cx| {
        load_keys(cx, spec, &line, len);
        vec![]
    });
    cx.asm.barrier();
    network(&mut cx, spec, &line);
    store_sorted(&mut cx, spec, &line);
    Ok(kernel(cx, lines))
}

fn roots(spec: &SortSpec) -> Vec<ExprId> {
    let of = |s: &Store| [Some(s.index), Some(s.value), s.guard];
    spec.stores.iter().flat_map(of).flatten().chain([spec.value]).collect()
}

fn load_keys(cx: &mut Emit<'_>, spec: &SortSpec, line: &Line, len: Id) {
    let (one, capacity, wg) = (cx.asm.u32(1), cx.asm.u32(spec.capacity), cx.asm.u32(spec.wg));
    let (lane, last) = (cx.asm.local_index(), cx.asm.isub(len, one));
    cx.loop_step((lane, capacity, wg), &[], |cx, i, _| {
        let inside = cx.asm.ult(i, len);
        let at = cx.asm.select(inside, i, last);
        cx.bind_axis(spec.outer.len(), at);
        let value = cx.eval(spec.value);
        let key = key(cx, spec, value);
        let after_all = key_after_all(cx, cx.asm.st(key));
        let key = cx.asm.select(inside, key, after_all);
        line.put(cx, i, (key, i));
        vec![]
    });
}

/// A key that none comes after.
fn key_after_all(cx: &mut Emit<'_>, keys: St) -> Id {
    if keys == St::U64 { cx.asm.int(keys, i64::MAX) } else { cx.asm.u32(u32::MAX) }
}

/// An integer that is smaller the earlier the value comes: unsigned words, or signed 64-bit integers.
fn key(cx: &mut Emit<'_>, spec: &SortSpec, value: Id) -> Id {
    let asm = &mut cx.asm;
    let ascending = match spec.exprs.ty(spec.value) {
        Ty::F32 => {
            let (sign, magnitude_mask) = (asm.u32(1 << 31), asm.u32(i32::MAX as u32));
            let (infinity, nan_key) = (asm.u32(f32::INFINITY.to_bits()), asm.u32(u32::MAX));
            let bits = asm.bitcast(St::U32, value);
            let magnitude = asm.and(bits, magnitude_mask);
            let zero = asm.u32(0);
            let negative = asm.slt(bits, zero);
            let (turned, raised) = (asm.inot(bits), asm.or(bits, sign));
            let ordered = asm.select(negative, turned, raised);
            let is_zero = asm.ieq(magnitude, zero);
            let ordered = asm.select(is_zero, sign, ordered);
            let is_nan = asm.ult(infinity, magnitude);
            asm.select(is_nan, nan_key, ordered)
        }
        Ty::I32 => {
            let sign = asm.u32(1 << 31);
            asm.xor(value, sign)
        }
        Ty::Bool => asm.cast(St::U32, value),
        Ty::I64 | Ty::F64 => value,
    };
    if spec.descending { cx.asm.inot(ascending) } else { ascending }
}

/// Elements that an invocation compares in registers.
const OCTET: u32 = 8;

impl Line {
    /// Where an element lies: neighbours 8 and 16 apart, which [`octet`] takes at a time, must not share a bank.
    fn slot(cx: &mut Emit<'_>, i: Id) -> Id {
        let (five, banks) = (cx.asm.u32(5), cx.asm.u32(31));
        let turn = cx.asm.shr(i, five);
        let turn = cx.asm.and(turn, banks);
        cx.asm.xor(i, turn)
    }

    fn get(&self, cx: &mut Emit<'_>, i: Id) -> (Id, Id) {
        let slot = Line::slot(cx, i);
        (cx.asm.load_shared(self.keys, slot), cx.asm.load_shared(self.from, slot))
    }

    fn put(&self, cx: &mut Emit<'_>, i: Id, (key, from): (Id, Id)) {
        let slot = Line::slot(cx, i);
        cx.asm.store_shared(self.keys, slot, key);
        cx.asm.store_shared(self.from, slot, from);
    }
}

/// All comparators of a bitonic network: those of one or of three distances between two barriers.
fn network(cx: &mut Emit<'_>, spec: &SortSpec, line: &Line) {
    let levels = cx.asm.u32(spec.capacity.trailing_zeros());
    let (one, two) = (cx.asm.u32(1), cx.asm.u32(2));
    cx.loop_n(levels, &[], |cx, level, _| {
        let block = cx.asm.shl(two, level);
        let steps = cx.asm.iadd(level, one);
        sort_bitonic(cx, spec, line, (block, steps));
        vec![]
    });
}

/// Sorts bitonic blocks of 2 to the power of `steps` elements, in turns upwards and downwards.
fn sort_bitonic(cx: &mut Emit<'_>, spec: &SortSpec, line: &Line, (block, steps): (Id, Id)) {
    let (one, three, wg) = (cx.asm.u32(1), cx.asm.u32(3), cx.asm.u32(spec.wg));
    let (half, eighth) = (cx.asm.u32(spec.capacity / 2), cx.asm.u32(spec.capacity / 8));
    let lane = cx.asm.local_index();
    let threes = cx.quotient_by(steps, 3);
    let in_threes = cx.asm.imul(threes, three);
    let singles = cx.asm.isub(steps, in_threes);
    cx.loop_n(singles, &[], |cx, step, _| {
        let shift = cx.asm.iadd(step, one);
        let distance = cx.asm.shr(block, shift);
        cx.loop_step((lane, half, wg), &[], |cx, comparator, _| pair(cx, line, comparator, distance, block));
        cx.asm.barrier();
        vec![]
    });
    cx.loop_n(threes, &[], |cx, turn, _| {
        // The least of the three distances.
        let before = cx.asm.imul(turn, three);
        let before = cx.asm.iadd(before, singles);
        let shift = cx.asm.iadd(before, three);
        let distance = cx.asm.shr(block, shift);
        cx.loop_step((lane, eighth, wg), &[], |cx, set, _| octet(cx, line, set, distance, block));
        cx.asm.barrier();
        vec![]
    });
}

/// The first of a set of elements `distance` apart, `size` of them; and whether its block is sorted downwards: blocks take turns.
fn set_start(cx: &mut Emit<'_>, set: Id, (size, distance): (u32, Id), block: Id) -> (Id, Id) {
    let (zero, one, size) = (cx.asm.u32(0), cx.asm.u32(1), cx.asm.u32(size));
    let mask = cx.asm.isub(distance, one);
    let low = cx.asm.and(set, mask);
    let high = cx.asm.isub(set, low);
    let start = cx.asm.imul(high, size);
    let start = cx.asm.iadd(start, low);
    let side = cx.asm.and(start, block);
    (start, cx.asm.ine(side, zero))
}

fn pair(cx: &mut Emit<'_>, line: &Line, comparator: Id, distance: Id, block: Id) -> Vec<Id> {
    let (a, downwards) = set_start(cx, comparator, (2, distance), block);
    let b = cx.asm.iadd(a, distance);
    let (first, second) = (line.get(cx, a), line.get(cx, b));
    let swap = is_swapped(cx, first, second, downwards);
    cx.if_then(swap, &[], |cx| {
        line.put(cx, a, second);
        line.put(cx, b, first);
        vec![]
    });
    vec![]
}

fn octet(cx: &mut Emit<'_>, line: &Line, set: Id, distance: Id, block: Id) -> Vec<Id> {
    let (start, downwards) = set_start(cx, set, (OCTET, distance), block);
    let mut places = vec![start];
    for i in 1..OCTET as usize {
        places.push(cx.asm.iadd(places[i - 1], distance));
    }
    let mut elements: Vec<(Id, Id)> = places.iter().map(|&at| line.get(cx, at)).collect();
    for apart in [4, 2, 1] {
        for a in (0..OCTET as usize).filter(|a| a & apart == 0) {
            let (first, second) = (elements[a], elements[a + apart]);
            let swap = is_swapped(cx, first, second, downwards);
            let mut choose = |x, y| cx.asm.select(swap, x, y);
            elements[a] = (choose(second.0, first.0), choose(second.1, first.1));
            elements[a + apart] = (choose(first.0, second.0), choose(first.1, second.1));
        }
    }
    for (&at, element) in places.iter().zip(elements) {
        line.put(cx, at, element);
    }
    vec![]
}

/// Whether two elements change places: the second comes first, or the block is sorted downwards.
fn is_swapped(cx: &mut Emit<'_>, a: (Id, Id), b: (Id, Id), downwards: Id) -> Id {
    let b_first = comes_first(cx, b, a);
    cx.asm.lne(b_first, downwards)
}

/// Whether `a` comes before `b`: by key, or else by position.
fn comes_first(cx: &mut Emit<'_>, a: (Id, Id), b: (Id, Id)) -> Id {
    let asm = &mut cx.asm;
    let below = match asm.st(a.0) {
        St::U64 => emit_binary(asm, Binary::Lt, a.0, b.0),
        _ => asm.ult(a.0, b.0),
    };
    let equal = emit_binary(asm, Binary::Eq, a.0, b.0);
    let earlier = asm.ult(a.1, b.1);
    let tie = asm.land(equal, earlier);
    asm.lor(below, tie)
}

fn store_sorted(cx: &mut Emit<'_>, spec: &SortSpec, line: &Line) {
    let kept = cx.extent(spec.kept);
    let (lane, wg) = (cx.asm.local_index(), cx.asm.u32(spec.wg));
    cx.loop_step((lane, kept, wg), &[], |cx, place, _| {
        let slot = Line::slot(cx, place);
        let from = cx.asm.load_shared(line.from, slot);
        store_place(cx, spec, place, from);
        vec![]
    });
}

/// Stores what a place gets.
fn store_place(cx: &mut Emit<'_>, spec: &SortSpec, place: Id, from: Id) {
    let axis = spec.outer.len();
    let value = cx.scope(|cx| {
        cx.bind_axis(axis, from);
        cx.eval(spec.value)
    });
    cx.bind_axis(axis, place);
    cx.bind_arg(0, value);
    cx.bind_arg(1, from);
    cx.stores(&spec.stores);
}

fn check(spec: &SortSpec) -> Result<(), BuildError> {
    let ty = spec.exprs.ty(spec.value);
    let (capacity, wg) = (spec.capacity, spec.wg);
    let powers = capacity.is_power_of_two() && wg.is_power_of_two() && 2 * wg <= capacity;
    let fits = matches!(spec.len, Extent::Sym(_)) || matches!(spec.len, Extent::Const(n) if n <= capacity);
    let consistent = if spec.chosen { choice::is_consistent(spec) } else { powers && fits };
    if ty == Ty::F64 || !consistent {
        let kept = format!("the first {:?}, chosen={}", spec.kept, spec.chosen);
        return Err(shape(format!("sort: {:?} of {ty}, capacity={capacity}, wg={wg}, {kept}", spec.len)));
    }
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    check.interface(&[&all_extents(spec)[..], &[spec.kept]].concat())?;
    let axes: Vec<u8> = (0..=spec.outer.len() as u8).collect();
    check.value(Scope { what: "a sort's value", axes: &axes, args: &[] }, spec.value, ty)?;
    check.stores(Scope { what: "sort", axes: &axes, args: &[ty, Ty::I32] }, &spec.stores)
}

/// The plainest form: the standard library's stable sort.
pub(crate) fn reference(spec: &SortSpec, memory: &mut Memory) {
    let (outer, len) = (memory.extents(&spec.outer), memory.extent(spec.len));
    let kept = memory.extent(spec.kept) as usize;
    let tape = Tape::new(&spec.exprs, &[spec.value]);
    let stores = StoreTape::new(&spec.exprs, &spec.stores);
    let (mut values, mut writer) = (tape.runner(), stores.runner());
    for_each_point(&outer, &mut vec![], &mut |axes| {
        let mut line: Vec<(Value, i32)> = vec![];
        for i in 0..len as i32 {
            axes.push(i);
            values.run(&Point { memory, axes, args: &[] });
            line.push((values.get(0), i));
            axes.pop();
        }
        line.sort_by(|(a, _), (b, _)| if spec.descending { compare(*b, *a) } else { compare(*a, *b) });
        for (place, (value, from)) in (0..).zip(line).take(kept) {
            axes.push(place);
            stores.run(&mut writer, memory, axes, &[value, Value::I32(from)]);
            axes.pop();
        }
    });
}

/// NaN above everything.
fn compare(a: Value, b: Value) -> Ordering {
    if !a.ty().is_float() {
        return a.to_i64().cmp(&b.to_i64());
    }
    let (a, b) = (a.to_f64(), b.to_f64());
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
