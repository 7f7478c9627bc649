//! Stable sort of lines that fit shared memory, or their first places.
//!
//! ```text
//! parallel for line in outer (a workgroup each):
//!     key[i], from[i] = order(value(line, i)), i        for i in 0..capacity; beyond len: after everything
//!     bitonic network over (key, from), up to blocks of `block`, every other one downwards
//!     while there are two blocks:
//!         of each two the first `block` elements, which one comparison each tells; they are sorted again
//!     for p in 0..kept: stores(line, p, value(line, from[p]), from[p])
//! ```
//!
//! Three distances of the network at a time are done on eight elements in registers, so that shared memory is passed through a third as often.
//!
//! Keys are integers whose order is that of the values: −0 and +0 have one key, NaN the largest. Equal keys are ordered by where they come from,
//! so that the network, which is not stable by itself, gives the one stable order. Traffic: each input twice, each output once.

use crate::asm::{Id, Shared, St};
use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::dtype::Ty;
use crate::emit_expr::{Emit, emit_binary};
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
    let need = shared_bytes(spec.exprs.ty(spec.value), spec.capacity);
    if need > limits.shared_bytes { Err(Reject::Shared { need, limit: limits.shared_bytes }) } else { Ok(()) }
}

/// Shared memory of a line: a key and a position per element.
pub fn shared_bytes(ty: Ty, capacity: u32) -> u32 {
    capacity * (key_type(ty).size_bytes() + 4)
}

/// Loop iterations of an invocation: of the network, and of the passes before and after it.
pub fn iterations(capacity: u32, wg: u32) -> u64 {
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
    halvings(&mut cx, spec, &line);
    store_sorted(&mut cx, spec, &line);
    let lines = GridFactor { extents: spec.outer.clone(), divisor: 1 };
    Ok(kernel(cx, Grid::linear(vec![lines])))
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
        let after_all = match cx.asm.st(key) {
            St::U64 => cx.asm.int(St::U64, i64::MAX),
            _ => cx.asm.u32(u32::MAX),
        };
        let key = cx.asm.select(inside, key, after_all);
        line.put(cx, i, (key, i));
        vec![]
    });
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

/// All comparators of a bitonic network up to blocks: those of one or of three distances between two barriers.
fn network(cx: &mut Emit<'_>, spec: &SortSpec, line: &Line) {
    let levels = cx.asm.u32(spec.block.trailing_zeros());
    let (one, two, elements) = (cx.asm.u32(1), cx.asm.u32(2), cx.asm.u32(spec.capacity));
    cx.loop_n(levels, &[], |cx, level, _| {
        let block = cx.asm.shl(two, level);
        let steps = cx.asm.iadd(level, one);
        sort_bitonic(cx, spec, line, &Blocks { block, steps, elements, stride: None });
        vec![]
    });
}

/// Of each two blocks, one sorted upwards and the next downwards, the first half in its place; and these sorted in turns again.
fn halvings(cx: &mut Emit<'_>, spec: &SortSpec, line: &Line) {
    if spec.block == spec.capacity {
        return;
    }
    let halvings = cx.asm.u32((spec.capacity / spec.block).trailing_zeros());
    let (one, wg) = (cx.asm.u32(1), cx.asm.u32(spec.wg));
    let (block, steps) = (cx.asm.u32(spec.block), cx.asm.u32(spec.block.trailing_zeros()));
    let (half, lane) = (cx.asm.u32(spec.capacity / 2), cx.asm.local_index());
    cx.loop_n(halvings, &[], |cx, turn, _| {
        let elements = cx.asm.shr(half, turn);
        let apart = cx.asm.shl(block, turn);
        let stride = cx.asm.shl(apart, one);
        let blocks = Blocks { block, steps, elements, stride: Some((spec.block, stride)) };
        cx.loop_step((lane, elements, wg), &[], |cx, i, _| {
            let a = blocks.place(cx, i);
            let b = cx.asm.iadd(a, apart);
            let (first, second) = (line.get(cx, a), line.get(cx, b));
            let upwards = cx.asm.bool(false);
            let swap = is_swapped(cx, first, second, upwards);
            cx.if_then(swap, &[], |cx| {
                line.put(cx, a, second);
                vec![]
            });
            vec![]
        });
        cx.asm.barrier();
        sort_bitonic(cx, spec, line, &blocks);
        vec![]
    });
}

/// Bitonic blocks to be sorted in turns, upwards and downwards.
struct Blocks {
    /// Elements of one: 2 to the power of `steps`.
    block: Id,
    steps: Id,
    /// Elements of all.
    elements: Id,
    /// Their size and how far they are apart, where they do not follow one another.
    stride: Option<(u32, Id)>,
}

impl Blocks {
    /// Where an element of the blocks is in the line.
    fn place(&self, cx: &mut Emit<'_>, i: Id) -> Id {
        let Some((size, stride)) = self.stride else { return i };
        let (shift, mask) = (cx.asm.u32(size.trailing_zeros()), cx.asm.u32(size - 1));
        let (number, within) = (cx.asm.shr(i, shift), cx.asm.and(i, mask));
        let start = cx.asm.imul(number, stride);
        cx.asm.iadd(start, within)
    }
}

fn sort_bitonic(cx: &mut Emit<'_>, spec: &SortSpec, line: &Line, blocks: &Blocks) {
    let (one, three, wg) = (cx.asm.u32(1), cx.asm.u32(3), cx.asm.u32(spec.wg));
    let half = cx.asm.shr(blocks.elements, one);
    let eighth = cx.asm.shr(blocks.elements, three);
    let lane = cx.asm.local_index();
    let threes = cx.quotient_by(blocks.steps, 3);
    let in_threes = cx.asm.imul(threes, three);
    let singles = cx.asm.isub(blocks.steps, in_threes);
    cx.loop_n(singles, &[], |cx, step, _| {
        let shift = cx.asm.iadd(step, one);
        let distance = cx.asm.shr(blocks.block, shift);
        cx.loop_step((lane, half, wg), &[], |cx, comparator, _| pair(cx, line, comparator, distance, blocks));
        cx.asm.barrier();
        vec![]
    });
    cx.loop_n(threes, &[], |cx, turn, _| {
        // The least of the three distances.
        let before = cx.asm.imul(turn, three);
        let before = cx.asm.iadd(before, singles);
        let shift = cx.asm.iadd(before, three);
        let distance = cx.asm.shr(blocks.block, shift);
        cx.loop_step((lane, eighth, wg), &[], |cx, set, _| octet(cx, line, set, distance, blocks));
        cx.asm.barrier();
        vec![]
    });
}

/// The first of a set of elements `distance` apart, `size` of them; and whether its block is sorted downwards: blocks take turns.
fn set_start(cx: &mut Emit<'_>, set: Id, (size, distance): (u32, Id), blocks: &Blocks) -> (Id, Id) {
    let (zero, one, size) = (cx.asm.u32(0), cx.asm.u32(1), cx.asm.u32(size));
    let mask = cx.asm.isub(distance, one);
    let low = cx.asm.and(set, mask);
    let high = cx.asm.isub(set, low);
    let start = cx.asm.imul(high, size);
    let start = cx.asm.iadd(start, low);
    let side = cx.asm.and(start, blocks.block);
    (blocks.place(cx, start), cx.asm.ine(side, zero))
}

fn pair(cx: &mut Emit<'_>, line: &Line, comparator: Id, distance: Id, blocks: &Blocks) -> Vec<Id> {
    let (a, downwards) = set_start(cx, comparator, (2, distance), blocks);
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

fn octet(cx: &mut Emit<'_>, line: &Line, set: Id, distance: Id, blocks: &Blocks) -> Vec<Id> {
    let (start, downwards) = set_start(cx, set, (OCTET, distance), blocks);
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

/// Whether two elements change places: the second comes first, by key or else by position, or the block is sorted downwards.
fn is_swapped(cx: &mut Emit<'_>, a: (Id, Id), b: (Id, Id), downwards: Id) -> Id {
    let asm = &mut cx.asm;
    let below = match asm.st(a.0) {
        St::U64 => emit_binary(asm, Binary::Lt, b.0, a.0),
        _ => asm.ult(b.0, a.0),
    };
    let equal = emit_binary(asm, Binary::Eq, a.0, b.0);
    let earlier = asm.ult(b.1, a.1);
    let tie = asm.land(equal, earlier);
    let b_first = asm.lor(below, tie);
    asm.lne(b_first, downwards)
}

fn store_sorted(cx: &mut Emit<'_>, spec: &SortSpec, line: &Line) {
    let kept = cx.extent(spec.kept);
    let (lane, wg) = (cx.asm.local_index(), cx.asm.u32(spec.wg));
    let axis = spec.outer.len();
    cx.loop_step((lane, kept, wg), &[], |cx, place, _| {
        let slot = Line::slot(cx, place);
        let from = cx.asm.load_shared(line.from, slot);
        let value = cx.scope(|cx| {
            cx.bind_axis(axis, from);
            cx.eval(spec.value)
        });
        cx.bind_axis(axis, place);
        cx.bind_arg(0, value);
        cx.bind_arg(1, from);
        cx.stores(&spec.stores);
        vec![]
    });
}

fn check(spec: &SortSpec) -> Result<(), BuildError> {
    let ty = spec.exprs.ty(spec.value);
    let (capacity, wg) = (spec.capacity, spec.wg);
    let powers = capacity.is_power_of_two() && wg.is_power_of_two() && 2 * wg <= capacity;
    let fits = matches!(spec.len, Extent::Sym(_)) || matches!(spec.len, Extent::Const(n) if n <= capacity);
    let block = spec.block;
    let blocks = block.is_power_of_two() && (block == capacity || (16..capacity).contains(&block));
    let kept = block == capacity || matches!(spec.kept, Extent::Const(n) if n <= block);
    if ty == Ty::F64 || !powers || !fits || !blocks || !kept {
        let kept = format!("the first {:?} by blocks of {block}", spec.kept);
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
