//! Cumulative sums, products, maxima, minima along one axis.
//!
//! ```text
//! parallel for line in outer:
//!     acc = identity
//!     for i in 0..len: acc = combine(acc, value(line, i)); stores(line, i, acc)
//! ```
//!
//! Traffic: each input and output once. An invocation walks its line alone, so lines give all the parallelism.

use crate::asm::Id;
use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::dtype::Ty;
use crate::emit_expr::{Emit, emit_binary};
use crate::eval::{Tape, Value};
use crate::expr::{Binary, ExprId};
use crate::host::{Memory, Point, for_each_point};
use crate::limits::{Limits, Reject};
use crate::reference::{StoreTape, combine, identity};
use crate::spec::{Combine, Extent, Grid, GridFactor, Kernel, ScanSpec, Store, Target};
use crate::templates::combining::Accumulator;
use crate::templates::kernel;

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &ScanSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    index_space(&all_extents(spec))
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
    let line = cx.global_index(spec.wg);
    cx.return_beyond(line, &spec.outer);
    for (k, c) in cx.coordinates(line, &spec.outer).into_iter().enumerate() {
        cx.bind_axis(k, c);
    }
    let roots = roots(spec);
    cx.hoist(&roots, matches!(spec.len, Extent::Const(n) if n > 0));
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
        let running = acc.settle(&mut cx.asm, state);
        for (k, &v) in running.iter().chain(position).enumerate() {
            cx.bind_arg(k, v);
        }
        cx.stores(&spec.stores);
        next
    });
    let lines = GridFactor { extents: spec.outer.clone(), divisor: spec.wg };
    Ok(kernel(cx, Grid::linear(vec![lines])))
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
    if !known || ty == Ty::Bool || spec.wg == 0 {
        return Err(shape(format!("scan: {:?} of {ty}, wg={}", spec.combine, spec.wg)));
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
