//! Cumulative sums, products, maxima, minima along one axis.
//!
//! ```text
//! parallel for line in outer:
//!     acc = identity
//!     for i in 0..len: acc = combine(acc, value(line, i)); stores(line, i, acc)
//! ```
//!
//! Traffic: each input and output once. With `threads_per_line` 1 an invocation walks its line alone: right for CPU drivers, and for many
//! lines that lie side by side. With more, a line is walked in tiles of [`ITEMS`] consecutive elements an invocation: each scans its own, the
//! invocations' results meet in a scan of fixed shape in shared memory, and what came before the tile is carried along. So the order of
//! combination depends on the sizes alone.

use crate::asm::{Id, Shared, St};
use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::emit_ops::emit_binary;
use crate::eval::{Tape, Value};
use crate::expr::{Binary, ExprId};
use crate::host::{Memory, Point, for_each_point};
use crate::limits::{Limits, Reject};
use crate::reference::{StoreTape, combine, identity};
use crate::spec::{Combine, Extent, Grid, GridFactor, Kernel, ScanSpec, Store, Target};
use crate::templates::combining::Accumulator;
use crate::templates::kernel;

/// Elements of a tile that an invocation takes where several share a line: more in a row cost registers, fewer cost barriers.
pub const ITEMS: u32 = 8;

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &ScanSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    index_space(&all_extents(spec))?;
    let need = if spec.threads_per_line == 1 { 0 } else { Partial::new(spec).shared_bytes() };
    if need > limits.shared_bytes { Err(Reject::Shared { need, limit: limits.shared_bytes }) } else { Ok(()) }
}

fn all_extents(spec: &ScanSpec) -> Vec<Extent> {
    let mut extents = spec.outer.clone();
    extents.push(spec.len);
    extents
}

fn has_position(spec: &ScanSpec) -> bool {
    matches!(spec.combine, Combine::Max | Combine::Min)
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &ScanSpec, target: Target) -> Result<Kernel, BuildError> {
    check(spec)?;
    let extents = all_extents(spec);
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &extents, target, spec.wg);
    cx.load_symbols(&extents);
    if spec.threads_per_line == 1 {
        walk_alone(&mut cx, spec);
    } else {
        walk_together(&mut cx, spec);
    }
    let lines = GridFactor { extents: spec.outer.clone(), divisor: spec.wg / spec.threads_per_line };
    Ok(kernel(cx, Grid::linear(vec![lines])))
}

fn walk_alone(cx: &mut Emit<'_>, spec: &ScanSpec) {
    let line = cx.global_index(spec.wg);
    cx.return_beyond(line, &spec.outer);
    bind_line(cx, spec, line);
    let acc = Accumulator::new(spec.combine, spec.exprs.ty(spec.value));
    let zero = cx.asm.u32(0);
    let mut initial = acc.start(&mut cx.asm, zero);
    if has_position(spec) {
        initial.push(zero);
    }
    let len = cx.extent(spec.len);
    cx.loop_n(len, &initial, |cx, i, carried| {
        cx.bind_axis(spec.outer.len(), i);
        let next = step(cx, spec, &acc, carried, i);
        let (state, position) = next.split_at(acc.width());
        let settled = acc.settle(&mut cx.asm, state);
        for (k, &v) in [acc.result(&settled)].iter().chain(position).enumerate() {
            cx.bind_arg(k, v);
        }
        cx.stores(&spec.stores);
        next
    });
}

/// Binds the outer axes, and computes what does not change along the line.
fn bind_line(cx: &mut Emit<'_>, spec: &ScanSpec, line: Id) {
    for (k, c) in cx.coordinates(line, &spec.outer).into_iter().enumerate() {
        cx.bind_axis(k, c);
    }
    cx.hoist(&roots(spec), matches!(spec.len, Extent::Const(n) if n > 0));
}

/// Where an invocation stands among those that share its line.
struct Lane {
    lane: Id,
    /// Of the invocation in shared arrays, and of the line's first one.
    slot: Id,
    first_slot: Id,
    /// False beyond the last line, which then stands in, unstored.
    valid: Id,
}

fn walk_together(cx: &mut Emit<'_>, spec: &ScanSpec) {
    let threads = spec.threads_per_line;
    let partial = Partial::new(spec);
    let arrays = [partial.arrays(cx), partial.arrays(cx)];
    let at = lane(cx, spec);
    let len = cx.extent(spec.len);
    let (zero, tile, items) = (cx.asm.u32(0), cx.asm.u32(threads * ITEMS), cx.asm.u32(ITEMS));
    let one = cx.asm.u32(1);
    let last = cx.asm.isub(len, one);
    let none = partial.identity(cx);
    cx.loop_step((zero, len, tile), &none, |cx, start, carried| {
        let mine = cx.asm.imul(at.lane, items);
        let first = cx.asm.iadd(start, mine);
        let own = scan_own(cx, &partial, first, last);
        let total = own.last().expect("an invocation has elements");
        let (before, whole) = meet(cx, &partial, &arrays, &at, total);
        let after_carried = partial.merge(cx, carried, &before);
        let is_first = cx.asm.ieq(at.lane, zero);
        let prefix = select_all(cx, is_first, carried, &after_carried);
        for (j, state) in (0..ITEMS).zip(&own) {
            let j = cx.asm.u32(j);
            let i = cx.asm.iadd(first, j);
            let inside = cx.asm.ult(i, len);
            let stored = cx.asm.land(inside, at.valid);
            let running = partial.merge(cx, &prefix, state);
            cx.if_then(stored, &[], |cx| {
                cx.bind_axis(spec.outer.len(), i);
                for (k, v) in partial.settle(cx, &running).into_iter().enumerate() {
                    cx.bind_arg(k, v);
                }
                cx.stores(&spec.stores);
                vec![]
            });
        }
        cx.asm.barrier();
        partial.merge(cx, carried, &whole)
    });
}

fn lane(cx: &mut Emit<'_>, spec: &ScanSpec) -> Lane {
    let threads = spec.threads_per_line;
    let (group, local) = (cx.asm.workgroup_index(), cx.asm.local_index());
    let lines_per_group = cx.asm.u32(spec.wg / threads);
    let first_line = cx.asm.imul(group, lines_per_group);
    cx.return_beyond(first_line, &spec.outer);
    let (shift, mask) = (cx.asm.u32(threads.trailing_zeros()), cx.asm.u32(threads - 1));
    let in_group = cx.asm.shr(local, shift);
    let lane = cx.asm.and(local, mask);
    let first_slot = cx.asm.isub(local, lane);
    let line = cx.asm.iadd(first_line, in_group);
    let lines = cx.product(&spec.outer);
    let valid = cx.asm.ult(line, lines);
    let one = cx.asm.u32(1);
    let last = cx.asm.isub(lines, one);
    let line = cx.asm.select(valid, line, last);
    bind_line(cx, spec, line);
    Lane { lane, slot: local, first_slot, valid }
}

/// The running results of an invocation's own elements. Those beyond the end repeat the last element: nothing comes after them.
fn scan_own(cx: &mut Emit<'_>, partial: &Partial<'_>, first: Id, last: Id) -> Vec<Vec<Id>> {
    let spec = partial.spec;
    let mut own: Vec<Vec<Id>> = vec![];
    for j in 0..ITEMS {
        let j = cx.asm.u32(j);
        let i = cx.asm.iadd(first, j);
        let inside = cx.asm.ult(i, last);
        let i = cx.asm.select(inside, i, last);
        let value = cx.scope(|cx| {
            cx.bind_axis(spec.outer.len(), i);
            cx.eval(spec.value)
        });
        let element = partial.element(cx, value, i);
        own.push(match own.last() {
            Some(before) => partial.merge(cx, before, &element),
            None => element,
        });
    }
    own
}

/// The combination of all earlier invocations' states, and that of all: a scan of as many steps as the number of invocations has bits, in two
/// sets of arrays in turn. The first invocation's is its own, to be ignored.
fn meet(
    cx: &mut Emit<'_>,
    partial: &Partial<'_>,
    arrays: &[Vec<Shared>; 2],
    at: &Lane,
    own: &[Id],
) -> (Vec<Id>, Vec<Id>) {
    let threads = partial.spec.threads_per_line;
    let mut state = own.to_vec();
    put(cx, &arrays[0], at.slot, &state);
    cx.asm.barrier();
    let mut from = 0;
    let mut distance = 1;
    while distance < threads {
        let by = cx.asm.u32(distance);
        let has = cx.asm.ule(by, at.lane);
        let earlier = get_before(cx, &arrays[from], at.slot, by, has);
        let merged = partial.merge(cx, &earlier, &state);
        state = select_all(cx, has, &merged, &state);
        from = 1 - from;
        put(cx, &arrays[from], at.slot, &state);
        cx.asm.barrier();
        distance *= 2;
    }
    let (zero, one, last) = (cx.asm.u32(0), cx.asm.u32(1), cx.asm.u32(threads - 1));
    let has = cx.asm.ult(zero, at.lane);
    let before = get_before(cx, &arrays[from], at.slot, one, has);
    let last_slot = cx.asm.iadd(at.first_slot, last);
    let whole = get(cx, &arrays[from], last_slot);
    (before, whole)
}

fn put(cx: &mut Emit<'_>, arrays: &[Shared], slot: Id, state: &[Id]) {
    for (&array, &value) in arrays.iter().zip(state) {
        cx.asm.store_shared(array, slot, value);
    }
}

fn get(cx: &mut Emit<'_>, arrays: &[Shared], slot: Id) -> Vec<Id> {
    arrays.iter().map(|&array| cx.asm.load_shared(array, slot)).collect()
}

/// The state `by` slots before, or the slot's own where there is none.
fn get_before(cx: &mut Emit<'_>, arrays: &[Shared], slot: Id, by: Id, has: Id) -> Vec<Id> {
    let before = cx.asm.isub(slot, by);
    let from = cx.asm.select(has, before, slot);
    get(cx, arrays, from)
}

fn select_all(cx: &mut Emit<'_>, cond: Id, a: &[Id], b: &[Id]) -> Vec<Id> {
    a.iter().zip(b).map(|(&a, &b)| cx.asm.select(cond, a, b)).collect()
}

/// Results of stretches of a line, which meet in any grouping: a value, a value and its position, or (f32 sums and products) an unevaluated sum of
/// two floats, so that groups lose no more than a walk along the line does.
struct Partial<'s> {
    spec: &'s ScanSpec,
    ty: Ty,
}

impl<'s> Partial<'s> {
    fn new(spec: &'s ScanSpec) -> Partial<'s> {
        Partial { spec, ty: spec.exprs.ty(spec.value) }
    }

    fn is_double(&self) -> bool {
        matches!(self.spec.combine, Combine::Sum | Combine::Prod) && self.ty == Ty::F32
    }

    fn types(&self) -> Vec<St> {
        let second = if self.is_double() { Some(St::F32) } else { has_position(self.spec).then_some(St::U32) };
        [Some(self.ty.into()), second].into_iter().flatten().collect()
    }

    fn shared_bytes(&self) -> u32 {
        self.types().iter().map(|st| 2 * self.spec.wg * st.size_bytes()).sum()
    }

    fn arrays(&self, cx: &mut Emit<'_>) -> Vec<Shared> {
        self.types().into_iter().map(|st| cx.asm.shared_array(st, self.spec.wg)).collect()
    }

    /// What may stand before anything.
    fn identity(&self, cx: &mut Emit<'_>) -> Vec<Id> {
        let zero = cx.asm.u32(0);
        let mut state = Accumulator::new(self.spec.combine, self.ty).start(&mut cx.asm, zero);
        if has_position(self.spec) {
            state.push(zero);
        }
        state
    }

    fn element(&self, cx: &mut Emit<'_>, value: Id, position: Id) -> Vec<Id> {
        match (self.is_double(), has_position(self.spec)) {
            (true, _) => vec![value, cx.asm.f32(0.0)],
            (_, true) => vec![value, position],
            _ => vec![value],
        }
    }

    fn merge(&self, cx: &mut Emit<'_>, earlier: &[Id], later: &[Id]) -> Vec<Id> {
        if self.is_double() && self.spec.combine == Combine::Sum {
            return add_double(cx, earlier, later);
        }
        let acc = Accumulator::new(self.spec.combine, self.ty);
        if self.is_double() {
            return acc.merge(&mut cx.asm, earlier, later);
        }
        let value = acc.combine_values(&mut cx.asm, earlier[0], later[0]);
        if !has_position(self.spec) {
            return vec![value];
        }
        let takes = takes(cx, self.spec, later[0], earlier[0]);
        vec![value, cx.asm.select(takes, later[1], earlier[1])]
    }

    /// The arguments of stores.
    fn settle(&self, cx: &mut Emit<'_>, state: &[Id]) -> Vec<Id> {
        match self.spec.combine {
            Combine::Sum if self.is_double() => vec![cx.asm.fadd(state[0], state[1])],
            // The first word of a product is the rounding of both.
            Combine::Prod => vec![state[0]],
            _ => state.to_vec(),
        }
    }
}

/// The sum of two unevaluated sums. Where it is infinite, nothing is left to add to it.
fn add_double(cx: &mut Emit<'_>, a: &[Id], b: &[Id]) -> Vec<Id> {
    let (sum, lost) = cx.asm.two_sum(a[0], b[0]);
    let rest = cx.asm.fadd(a[1], b[1]);
    let rest = cx.asm.fadd(rest, lost);
    let (zero, limit) = (cx.asm.f32(0.0), cx.asm.f32(f32::MAX));
    let magnitude = cx.asm.fabs(rest);
    let finite = cx.asm.fle(magnitude, limit);
    vec![sum, cx.asm.select(finite, rest, zero)]
}

fn roots(spec: &ScanSpec) -> Vec<ExprId> {
    let of = |s: &Store| [Some(s.index), Some(s.value), s.guard];
    spec.stores.iter().flat_map(of).flatten().chain([spec.value]).collect()
}

fn step(cx: &mut Emit<'_>, spec: &ScanSpec, acc: &Accumulator, carried: &[Id], position: Id) -> Vec<Id> {
    let value = cx.eval(spec.value);
    let (state, last_position) = carried.split_at(acc.width());
    let mut next = acc.step(&mut cx.asm, state, value, position);
    if has_position(spec) {
        let takes = takes(cx, spec, value, carried[0]);
        next.push(cx.asm.select(takes, position, last_position[0]));
    }
    next
}

/// Whether the position moves to `value`: it is NaN, or not less extreme than a running result that is none.
fn takes(cx: &mut Emit<'_>, spec: &ScanSpec, value: Id, running: Id) -> Id {
    let (low, high) = if spec.combine == Combine::Max { (running, value) } else { (value, running) };
    let reaches = emit_binary(&mut cx.asm, Binary::Le, low, high);
    if !spec.exprs.ty(spec.value).is_float() {
        return reaches;
    }
    // A comparison with a running NaN is false by itself.
    let nan = cx.asm.is_nan(value);
    cx.asm.lor(nan, reaches)
}

fn check(spec: &ScanSpec) -> Result<(), BuildError> {
    let ty = spec.exprs.ty(spec.value);
    let known = matches!(spec.combine, Combine::Sum | Combine::Prod | Combine::Max | Combine::Min);
    let t = spec.threads_per_line;
    if !known || ty == Ty::Bool || spec.wg == 0 || !t.is_power_of_two() || !spec.wg.is_multiple_of(t) {
        return Err(shape(format!("scan: {:?} of {ty}, threads_per_line={t}, wg={}", spec.combine, spec.wg)));
    }
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    check.interface(&all_extents(spec))?;
    let axes: Vec<u8> = (0..=spec.outer.len() as u8).collect();
    check.value(Scope { what: "a scan's value", axes: &axes, args: &[] }, spec.value, ty)?;
    let args = if has_position(spec) { vec![ty, Ty::I32] } else { vec![ty] };
    check.stores(Scope { what: "scan", axes: &axes, args: &args }, &spec.stores)
}

/// The plainest form. Float sums and products run in f64.
pub(crate) fn reference(spec: &ScanSpec, memory: &mut Memory) {
    let (outer, len) = (memory.extents(&spec.outer), memory.extent(spec.len));
    let tape = Tape::new(&spec.exprs, &[spec.value]);
    let stores = StoreTape::new(&spec.exprs, &spec.stores);
    let (mut values, mut writer) = (tape.runner(), stores.runner());
    for_each_point(&outer, &mut vec![], &mut |axes| {
        let ty = spec.exprs.ty(spec.value);
        let wide = if ty == Ty::F32 { Ty::F64 } else { ty };
        let mut acc = identity(spec.combine, wide);
        let mut position = 0;
        for i in 0..len as i32 {
            axes.push(i);
            values.run(&Point { memory, axes, args: &[] });
            let value = values.get(0).cast(wide);
            let nan = value.to_f64().is_nan();
            let reaches = match spec.combine {
                Combine::Max => value.to_f64() >= acc.to_f64(),
                _ => value.to_f64() <= acc.to_f64(),
            };
            if nan || reaches {
                position = i;
            }
            acc = combine(spec.combine, acc, value);
            stores.run(&mut writer, memory, axes, &[acc.cast(ty), Value::I32(position)]);
            axes.pop();
        }
    });
}
