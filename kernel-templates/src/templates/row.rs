//! Reductions, softmax, norms: rows of any inner shape, with stages that see the results of earlier ones.
//!
//! ```text
//! parallel for row in outer:
//!     for each stage i (independent neighbours share one pass):
//!         s_i = combine over inner of value_i(row, inner, s_0 … s_{i−1})
//!     row_stores(row, s…)
//!     for inner: element_stores(row, inner, s…)
//! ```
//!
//! Traffic: inputs once per pass. With `threads_per_row` 1 an invocation walks its row alone, without shared memory: right for CPU drivers
//! and for many short rows. With more, lanes take every `threads_per_row`-th position and meet in a tree of fixed shape, so
//! results do not depend on timing. Rows of few elements a lane are *held*: a lane's elements are loaded once, by blocks of 16 bytes where that is
//! proven to be right, and what one stage computes of them (an exponential, a difference) the next one has. Longer rows of known length are
//! walked in blocks of `held::BLOCK_HELD` elements a lane, each loaded as a whole before the first of it is used.

mod held;
mod reference;
mod shift;

pub(crate) use reference::reference;

use crate::asm::{Id, Shared, St};
use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::expr::{Expr, ExprId};
use crate::limits::{Limits, Reject};
use crate::spec::{Combine, Extent, Grid, GridFactor, InterfaceForm, Kernel, RowSpec, Stage, Store, Target};
use crate::templates::combining::{Accumulator, Taken};
use crate::templates::kernel;
use held::{Held, Pieces, hold};
pub use held::{MOST_HELD, group_size};
use std::ops::Range;

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &RowSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    index_space(&spec.outer)?;
    index_space(&spec.inner)?;
    let need = shared_bytes(spec);
    if need > limits.shared_bytes { Err(Reject::Shared { need, limit: limits.shared_bytes }) } else { Ok(()) }
}

/// An upper bound: per stage one array of values and, for positions, one of i32.
fn shared_bytes(spec: &RowSpec) -> u32 {
    if spec.threads_per_row == 1 {
        return 0;
    }
    let mut types: Vec<St> = vec![];
    for stage in &spec.stages {
        types.push(memory_type(spec.exprs.ty(stage.value)));
        if is_position(stage.combine) {
            types.push(St::U32);
        }
    }
    types.sort_unstable();
    // Two arrays of one type are needed only where a position goes with an i32 value.
    types.iter().map(|t| t.size_bytes() * spec.wg).sum()
}

fn is_position(combine: Combine) -> bool {
    matches!(combine, Combine::ArgMax | Combine::ArgMin)
}

/// Type of a value in shared memory: truth values are words there.
fn memory_type(ty: Ty) -> St {
    if ty == Ty::Bool { St::U32 } else { ty.into() }
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &RowSpec, target: Target) -> Result<Kernel, BuildError> {
    check(spec)?;
    if spec.copies > 1 && target.form == InterfaceForm::Bindings {
        return Err(BuildError::Unsupported { what: "a kernel of several copies whose operands are bindings" });
    }
    let extents: Vec<Extent> = spec.outer.iter().chain(&spec.inner).copied().collect();
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &extents, target, spec.wg);
    cx.load_symbols(&extents);
    let stores: Vec<Store> = spec.row_stores.iter().chain(&spec.element_stores).copied().collect();
    cx.round_stages_coarsely(&stores, &spec.stages, &spec.interface);
    let mut walk = if spec.threads_per_row == 1 { Walk::alone(&mut cx, spec) } else { Walk::shared(&mut cx, spec) };
    if spec.threads_per_row > 1 {
        // What a row's stores read is on its way while the row is reduced: a short row would wait for memory twice.
        cx.hoist(&roots_of(&spec.row_stores), true);
    }
    for group in pass_groups(spec) {
        walk.pass(&mut cx, spec, group);
    }
    walk.row_stores(&mut cx, &spec.row_stores);
    walk.element_stores(&mut cx, spec);
    let rows = GridFactor { extents: spec.outer.clone(), divisor: spec.wg / spec.threads_per_row };
    let copies = (spec.copies > 1).then(|| GridFactor { extents: vec![Extent::Const(spec.copies)], divisor: 1 });
    Ok(kernel(cx, Grid::linear([rows].into_iter().chain(copies).collect())))
}

fn check(spec: &RowSpec) -> Result<(), BuildError> {
    let t = spec.threads_per_row;
    if spec.wg == 0 || !t.is_power_of_two() || !spec.wg.is_multiple_of(t) {
        return Err(shape(format!("row: threads_per_row={t} (a power of two that divides wg={})", spec.wg)));
    }
    let symbolic = spec.outer.iter().any(|e| matches!(e, Extent::Sym(_)));
    let whole = spec.copies > 0 && spec.interface.operands.len().is_multiple_of(spec.copies as usize);
    if !whole || (spec.copies > 1 && (t == 1 || symbolic)) {
        return Err(shape(format!("row: {} copies of {} operands", spec.copies, spec.interface.operands.len())));
    }
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    let extents: Vec<Extent> = spec.outer.iter().chain(&spec.inner).copied().collect();
    check.interface(&extents)?;
    let axes: Vec<u8> = (0..extents.len() as u8).collect();
    let mut args: Vec<Ty> = vec![];
    for stage in &spec.stages {
        let ty = spec.exprs.ty(stage.value);
        let is_truth = matches!(stage.combine, Combine::Any | Combine::All);
        if is_truth != (ty == Ty::Bool) {
            return Err(shape(format!("row: {:?} of {ty}", stage.combine)));
        }
        check.value(Scope { what: "a stage's value", axes: &axes, args: &args }, stage.value, ty)?;
        args.push(if is_position(stage.combine) { Ty::I32 } else { ty });
    }
    let outer = &axes[..spec.outer.len()];
    check.stores(Scope { what: "row", axes: outer, args: &args }, &spec.row_stores)?;
    check.stores(Scope { what: "row", axes: &axes, args: &args }, &spec.element_stores)
}

fn roots_of(stores: &[Store]) -> Vec<ExprId> {
    stores.iter().flat_map(|s| [Some(s.index), Some(s.value), s.guard]).flatten().collect()
}

/// Consecutive stages none of which uses another's result: they share a pass over the row.
fn pass_groups(spec: &RowSpec) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = vec![];
    for (i, stage) in spec.stages.iter().enumerate() {
        let uses = |k: usize| {
            let nodes = spec.exprs.reachable(&[stage.value]);
            nodes.iter().any(|&n| matches!(spec.exprs.get(n), Expr::Arg(a, _) if usize::from(*a) == k))
        };
        match groups.last_mut() {
            Some(group) if !group.clone().any(uses) => group.end = i + 1,
            _ => groups.push(i..i + 1),
        }
    }
    groups
}

/// What happens at a position: `(position, carried) → carried`, with the inner axes bound.
type PositionBody<'b> = dyn FnMut(&mut Emit<'_>, Id, &[Id]) -> Vec<Id> + 'b;

/// What happens at a block of positions: `(its elements, carried) → carried`.
type BlockBody<'b> = dyn FnMut(&mut Emit<'_>, Held, &[Id]) -> Vec<Id> + 'b;

/// How an invocation walks its row.
enum Walk {
    /// All of it.
    Alone,
    /// Every `threads`-th position, from `lane` on.
    Shared {
        /// Position among the row's invocations.
        lane: Id,
        /// Index of the row's first slot in shared arrays.
        first_slot: Id,
        /// Invocations a row.
        threads: u32,
        /// False beyond the last row (which then stands in, unstored).
        valid: Id,
        /// Positions of the row.
        total: Id,
        /// Arrays by type; the second of a type is for positions.
        arrays: Vec<(St, Shared)>,
        /// The lane's elements, where they are held.
        held: Option<Held>,
        /// Else, elements of a lane in a block of the row, and how they come in groups.
        blocks: Option<Box<Pieces>>,
    },
}

impl Walk {
    fn alone(cx: &mut Emit<'_>, spec: &RowSpec) -> Walk {
        let row = cx.global_index(spec.wg);
        cx.return_beyond(row, &spec.outer);
        bind_all(cx, 0, row, &spec.outer);
        Walk::Alone
    }

    fn shared(cx: &mut Emit<'_>, spec: &RowSpec) -> Walk {
        let threads = spec.threads_per_row;
        let arrays = shared_arrays(cx, spec);
        let group = copy_of(cx, spec);
        let local = cx.asm.local_index();
        let rows_per_group = cx.asm.u32(spec.wg / threads);
        let first_row = cx.asm.imul(group, rows_per_group);
        cx.return_beyond(first_row, &spec.outer);
        let shift = cx.asm.u32(threads.trailing_zeros());
        let mask = cx.asm.u32(threads - 1);
        let row_in_group = cx.asm.shr(local, shift);
        let lane = cx.asm.and(local, mask);
        let first_slot = cx.asm.isub(local, lane);
        let row = cx.asm.iadd(first_row, row_in_group);
        let rows = cx.product(&spec.outer);
        let valid = cx.asm.ult(row, rows);
        let one = cx.asm.u32(1);
        let last = cx.asm.isub(rows, one);
        let row = cx.asm.select(valid, row, last);
        bind_all(cx, 0, row, &spec.outer);
        let total = cx.product(&spec.inner);
        let (held, blocks) = hold(spec);
        let held = held.map(|pieces| Held::load(cx, spec, None, (lane, total), pieces));
        Walk::Shared { lane, first_slot, threads, valid, total, arrays, held, blocks: blocks.map(Box::new) }
    }

    /// Visits the positions of this invocation: `body(position, carried)` with the inner axes bound.
    fn positions(
        &mut self,
        cx: &mut Emit<'_>,
        spec: &RowSpec,
        roots: &[ExprId],
        initial: &[Id],
        body: &mut PositionBody<'_>,
    ) -> Vec<Id> {
        let first = spec.outer.len();
        match self {
            Walk::Alone => cx.loop_nest(&spec.inner, first, roots, initial, &mut |cx, carried| {
                let position = linear_position(cx, spec);
                body(cx, position, carried)
            }),
            Walk::Shared { lane, threads, total, .. } => {
                cx.hoist(roots, spec.inner.iter().all(|e| matches!(e, Extent::Const(n) if *n > 0)));
                // As many turns for all lanes: SwiftShader forgets what a lane has that leaves a loop before its neighbours.
                let (zero, step) = (cx.asm.u32(0), cx.asm.u32(*threads));
                cx.loop_step((zero, *total, step), initial, |cx, start, carried| {
                    let position = cx.asm.iadd(start, *lane);
                    let inside = cx.asm.ult(position, *total);
                    cx.if_then(inside, carried, |cx| {
                        bind_all(cx, first, position, &spec.inner);
                        body(cx, position, carried)
                    })
                })
            }
        }
    }

    /// `visit(elements, carried)` for each block of the row, where it is walked in blocks.
    fn in_blocks(
        &self,
        cx: &mut Emit<'_>,
        spec: &RowSpec,
        initial: &[Id],
        visit: &mut BlockBody<'_>,
    ) -> Option<Vec<Id>> {
        let Walk::Shared { lane, total, threads, blocks: Some(pieces), .. } = self else { return None };
        let (zero, step) = (cx.asm.u32(0), cx.asm.u32(threads * pieces.0));
        Some(cx.loop_step((zero, *total, step), initial, |cx, start, carried| {
            let held = Held::load(cx, spec, Some(start), (*lane, *total), Pieces::clone(pieces));
            visit(cx, held, carried)
        }))
    }

    /// Runs the stages of a group in one pass, and binds their results.
    fn pass(&mut self, cx: &mut Emit<'_>, spec: &RowSpec, group: Range<usize>) {
        let stages = &spec.stages[group.clone()];
        let roots: Vec<ExprId> = stages.iter().map(|s| s.value).collect();
        let accumulators: Vec<Accumulator> = group
            .clone()
            .map(|i| {
                let Stage { combine, value } = spec.stages[i];
                Accumulator::of_numbers(combine, spec.exprs.ty(value), shift::nan_may_lose(spec, i))
            })
            .collect();
        let start = match self {
            Walk::Alone => cx.asm.u32(0),
            Walk::Shared { lane, .. } => *lane,
        };
        let states = if let Walk::Shared { held: Some(held), .. } = self {
            of_held(cx, &roots, &accumulators, held, start)
        } else {
            let mut initial = vec![];
            for acc in &accumulators {
                initial.extend(acc.start(&mut cx.asm, start));
            }
            let walked = self.in_blocks(cx, spec, &initial, &mut |cx, mut held, carried| {
                let block = of_held(cx, &roots, &accumulators, &mut held, start);
                add_all(cx, &accumulators, carried, &block)
            });
            let partial = walked.unwrap_or_else(|| {
                self.positions(cx, spec, &roots, &initial, &mut |cx, position, carried| {
                    step_all(cx, stages, &accumulators, position, carried)
                })
            });
            let own = split(&accumulators, &partial);
            accumulators.iter().zip(own).map(|(acc, state)| acc.settle(&mut cx.asm, state)).collect()
        };
        let states = self.meet(cx, &accumulators, states, group.end == spec.stages.len());
        for ((i, acc), state) in group.zip(&accumulators).zip(states) {
            cx.bind_arg(i, acc.result(&state));
        }
    }

    /// Combines the partial results of a row's lanes by a tree, those of all stages of a pass between the same barriers. Nothing is written to
    /// the arrays after the `last` pass.
    fn meet(&self, cx: &mut Emit<'_>, accs: &[Accumulator], states: Vec<Vec<Id>>, last: bool) -> Vec<Vec<Id>> {
        let Walk::Shared { lane, first_slot, threads, arrays, .. } = self else {
            return states;
        };
        let slot = cx.asm.iadd(*first_slot, *lane);
        let places = places(accs, arrays);
        for ((acc, mine), state) in accs.iter().zip(&places).zip(&states) {
            acc.put(cx, mine, slot, state);
        }
        cx.asm.barrier();
        let mut left = *threads;
        while left > MEETING {
            left /= MEETING;
            let left_id = cx.asm.u32(left);
            let active = cx.asm.ult(*lane, left_id);
            cx.if_then(active, &[], |cx| {
                for (acc, mine) in accs.iter().zip(&places) {
                    let merged = merged(cx, *acc, mine, slot, (MEETING, left));
                    acc.put(cx, mine, slot, &merged);
                }
                vec![]
            });
            cx.asm.barrier();
        }
        // What is left, each lane merges for itself: that takes less than another barrier.
        let results =
            accs.iter().zip(&places).map(|(acc, mine)| merged(cx, *acc, mine, *first_slot, (left, 1))).collect();
        if !last {
            cx.asm.barrier();
        }
        results
    }

    fn row_stores(&self, cx: &mut Emit<'_>, stores: &[Store]) {
        match self {
            _ if stores.is_empty() => {}
            Walk::Alone => cx.stores(stores),
            Walk::Shared { lane, valid, .. } => {
                let zero = cx.asm.u32(0);
                let first = cx.asm.ieq(*lane, zero);
                let writes = cx.asm.land(first, *valid);
                cx.if_then(writes, &[], |cx| {
                    cx.stores(stores);
                    vec![]
                });
            }
        }
    }

    fn element_stores(&mut self, cx: &mut Emit<'_>, spec: &RowSpec) {
        if spec.element_stores.is_empty() {
            return;
        }
        if let Walk::Shared { valid, held: Some(held), .. } = self {
            let valid = *valid;
            cx.if_then(valid, &[], |cx| held.store(cx, spec));
            return;
        }
        if let Walk::Shared { valid, blocks: Some(_), .. } = self {
            cx.if_then(*valid, &[], |cx| {
                self.in_blocks(cx, spec, &[], &mut |cx, mut held, _| held.store(cx, spec));
                vec![]
            });
            return;
        }
        let roots = roots_of(&spec.element_stores);
        let valid = if let Walk::Shared { valid, .. } = self { Some(*valid) } else { None };
        let mut all = |cx: &mut Emit<'_>| {
            self.positions(cx, spec, &roots, &[], &mut |cx, _, _| {
                cx.stores(&spec.element_stores);
                vec![]
            })
        };
        match valid {
            None => all(cx),
            Some(valid) => cx.if_then(valid, &[], |cx| all(cx)),
        };
    }
}

/// The workgroup's number within its copy, whose operands it takes.
fn copy_of(cx: &mut Emit<'_>, spec: &RowSpec) -> Id {
    let group = cx.asm.workgroup_index();
    if spec.copies == 1 {
        return group;
    }
    let rows: u32 = spec.outer.iter().map(|e| if let Extent::Const(n) = e { *n } else { 0 }).product();
    let groups = rows.div_ceil(spec.wg / spec.threads_per_row).max(1);
    let copy = cx.quotient_by(group, groups);
    cx.take_operands(copy, spec.copies);
    let groups = cx.asm.u32(groups);
    let before = cx.asm.imul(copy, groups);
    cx.asm.isub(group, before)
}

/// Partial results that one lane merges between two barriers.
const MEETING: u32 = 8;

fn bind_coordinates(cx: &mut Emit<'_>, first: usize, coordinates: &[Id]) {
    for (k, &c) in coordinates.iter().enumerate() {
        cx.bind_axis(first + k, c);
    }
}

fn step_all(
    cx: &mut Emit<'_>,
    stages: &[Stage],
    accumulators: &[Accumulator],
    position: Id,
    carried: &[Id],
) -> Vec<Id> {
    let states = split(accumulators, carried);
    let each = stages.iter().zip(accumulators).zip(states);
    each.flat_map(|((stage, acc), state)| {
        let value = cx.eval(stage.value);
        acc.step(&mut cx.asm, state, value, position)
    })
    .collect()
}

/// Settled results of the stages whose values these are, over the elements that a lane holds.
fn of_held(
    cx: &mut Emit<'_>,
    values: &[ExprId],
    accumulators: &[Accumulator],
    held: &mut Held,
    first_position: Id,
) -> Vec<Vec<Id>> {
    let visited = held.visit(cx, &mut |cx| values.iter().map(|&value| cx.eval(value)).collect());
    let of_stage = |k: usize| -> Vec<Taken> { visited.iter().map(|(v, at, inside)| (v[k], *at, *inside)).collect() };
    accumulators.iter().enumerate().map(|(k, acc)| acc.of_values(&mut cx.asm, &of_stage(k), first_position)).collect()
}

/// States of accumulators that stand one after the other.
fn split<'s>(accumulators: &[Accumulator], mut states: &'s [Id]) -> Vec<&'s [Id]> {
    let mut next = |acc: &Accumulator| {
        let (state, rest) = states.split_at(acc.width());
        states = rest;
        state
    };
    accumulators.iter().map(&mut next).collect()
}

/// What a block gives, added to what came before it.
fn add_all(cx: &mut Emit<'_>, accumulators: &[Accumulator], carried: &[Id], block: &[Vec<Id>]) -> Vec<Id> {
    let before = split(accumulators, carried);
    let each = accumulators.iter().zip(before).zip(block);
    each.flat_map(|((acc, state), later)| acc.add(&mut cx.asm, state, later)).collect()
}

/// As many states in shared memory as one, from a slot on, so many slots apart.
fn merged(cx: &mut Emit<'_>, acc: Accumulator, arrays: &[Shared], slot: Id, (count, apart): (u32, u32)) -> Vec<Id> {
    let at = |cx: &mut Emit<'_>, k: u32| {
        let by = cx.asm.u32(k * apart);
        let slot = cx.asm.iadd(slot, by);
        acc.get(cx, arrays, slot)
    };
    let states = (0..count).map(|k| at(cx, k)).collect();
    acc.merge_all(&mut cx.asm, states)
}

/// Binds axes from `first` on to the coordinates of a linear index.
fn bind_all(cx: &mut Emit<'_>, first: usize, linear: Id, extents: &[Extent]) {
    for (k, c) in cx.coordinates(linear, extents).into_iter().enumerate() {
        cx.bind_axis(first + k, c);
    }
}

/// Linear position of the bound inner axes.
fn linear_position(cx: &mut Emit<'_>, spec: &RowSpec) -> Id {
    let zero = cx.asm.u32(0);
    let first = spec.outer.len();
    spec.inner.iter().enumerate().fold(zero, |acc, (k, &extent)| {
        let n = cx.extent(extent);
        let scaled = cx.asm.imul(acc, n);
        let axis = cx.axis(first + k);
        cx.asm.iadd(scaled, axis)
    })
}

/// The arrays of the passes: those of all stages of a pass are apart, passes share them.
fn shared_arrays(cx: &mut Emit<'_>, spec: &RowSpec) -> Vec<(St, Shared)> {
    let mut arrays: Vec<(St, Shared)> = vec![];
    for group in pass_groups(spec) {
        let stages = &spec.stages[group];
        let types: Vec<St> =
            stages.iter().flat_map(|s| Accumulator::new(s.combine, spec.exprs.ty(s.value)).memory_types()).collect();
        for (k, &st) in types.iter().enumerate() {
            let wanted = types[..=k].iter().filter(|t| **t == st).count();
            if arrays.iter().filter(|(t, _)| *t == st).count() < wanted {
                arrays.push((st, cx.asm.shared_array(st, spec.wg)));
            }
        }
    }
    arrays
}

/// Each stage's arrays of a pass, by type in the order of the stages.
fn places(accs: &[Accumulator], arrays: &[(St, Shared)]) -> Vec<Vec<Shared>> {
    let mut free = arrays.to_vec();
    let mut take = |st: St| {
        let at = free.iter().position(|(t, _)| *t == st).expect("arrays are declared for every stage");
        free.remove(at).1
    };
    accs.iter().map(|acc| acc.memory_types().into_iter().map(&mut take).collect()).collect()
}
