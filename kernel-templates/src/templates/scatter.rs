//! Deterministic scatter into a buffer that already holds its base.
//!
//! ```text
//! parallel for line in outer:
//!     for inner: if guard: target[index] = mode(target[index], value)
//! ```
//!
//! Traffic: values and indices once, targets once or twice per value. Lines never write one another's elements, and an invocation
//! walks its line in order, so the result is that of the serial loop without atomics.

use crate::asm::Id;
use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::emit_ops::emit_binary;
use crate::eval::{Tape, binary};
use crate::expr::{Binary, ExprId};
use crate::host::{Memory, Point, for_each_point};
use crate::limits::{Limits, Reject};
use crate::spec::{Access, Extent, Grid, GridFactor, Kernel, ScatterMode, ScatterSpec, Target};
use crate::templates::kernel;

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &ScatterSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    index_space(&all_extents(spec))
}

fn all_extents(spec: &ScatterSpec) -> Vec<Extent> {
    spec.outer.iter().chain(&spec.inner).copied().collect()
}

/// The operation of a mode on a type; none overwrites. Truth values add and multiply as PyTorch's do: by or, and by and.
fn operation(mode: ScatterMode, ty: Ty) -> Option<Binary> {
    match (mode, ty) {
        (ScatterMode::Set, _) => None,
        (ScatterMode::Add | ScatterMode::Max, Ty::Bool) => Some(Binary::Or),
        (ScatterMode::Mul | ScatterMode::Min, Ty::Bool) => Some(Binary::And),
        (ScatterMode::Add, _) => Some(Binary::Add),
        (ScatterMode::Mul, _) => Some(Binary::Mul),
        (ScatterMode::Max, _) => Some(Binary::Max),
        (ScatterMode::Min, _) => Some(Binary::Min),
    }
}

fn target_operation(spec: &ScatterSpec) -> Option<Binary> {
    operation(spec.mode, spec.interface.operands[usize::from(spec.store.operand)].dtype.ty())
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &ScatterSpec, target: Target) -> Result<Kernel, BuildError> {
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
    cx.loop_nest(&spec.inner, spec.outer.len(), &roots, &[], &mut |cx, _| {
        let index = cx.eval(spec.store.index);
        let value = cx.eval(spec.store.value);
        match spec.store.guard {
            None => write(cx, spec, index, value),
            Some(guard) => {
                let guard = cx.eval(guard);
                cx.if_then(guard, &[], |cx| {
                    write(cx, spec, index, value);
                    vec![]
                });
            }
        }
        vec![]
    });
    let lines = GridFactor { extents: spec.outer.clone(), divisor: spec.wg };
    Ok(kernel(cx, Grid::linear(vec![lines])))
}

fn roots(spec: &ScatterSpec) -> Vec<ExprId> {
    [Some(spec.store.index), Some(spec.store.value), spec.store.guard].into_iter().flatten().collect()
}

fn write(cx: &mut Emit<'_>, spec: &ScatterSpec, index: Id, value: Id) {
    let value = match target_operation(spec) {
        None => value,
        Some(op) => {
            let old = cx.load(spec.store.operand, index);
            emit_binary(&mut cx.asm, op, old, value)
        }
    };
    cx.store(spec.store.operand, index, value);
}

fn check(spec: &ScatterSpec) -> Result<(), BuildError> {
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    let extents = all_extents(spec);
    check.interface(&extents)?;
    let axes: Vec<u8> = (0..extents.len() as u8).collect();
    check.stores(Scope { what: "scatter", axes: &axes, args: &[] }, &[spec.store])?;
    let target = &spec.interface.operands[usize::from(spec.store.operand)];
    if target_operation(spec).is_some() && target.access != Access::ReadWrite {
        return Err(BuildError::Access { operand: spec.store.operand, access: target.access, used: "combined with" });
    }
    if spec.wg == 0 {
        return Err(shape("scatter: wg=0".to_owned()));
    }
    Ok(())
}

/// The plainest form.
pub(crate) fn reference(spec: &ScatterSpec, memory: &mut Memory) {
    let extents = memory.extents(&all_extents(spec));
    let tape = Tape::new(&spec.exprs, &roots(spec));
    let mut runner = tape.runner();
    for_each_point(&extents, &mut vec![], &mut |axes| {
        runner.run(&Point { memory, axes, args: &[] });
        let (index, value) = (runner.get(0).index() as usize, runner.get(1));
        if spec.store.guard.is_some() && !runner.get(2).to_bool() {
            return;
        }
        let target = &mut memory.operands[usize::from(spec.store.operand)];
        let value = target_operation(spec).map_or(value, |op| binary(op, target.load(index), value));
        target.store(index, value);
    });
}
