//! Elementwise and movement kernels.
//!
//! ```text
//! parallel for i in 0..ceil(elements / per_thread):
//!     for e in 0..per_thread:
//!         axes = coordinates(i·per_thread + e)
//!         for each store: operand[index(axes)] = value(axes) if guard(axes)
//! ```
//!
//! Traffic: each load and store once. Where the last axis is a multiple of `per_thread`, an invocation's elements share all
//! coordinates but the last, and whatever depends on those only is computed once. Groups of four or eight are loaded and stored by blocks of 16 bytes
//! where everything that moves along the last axis comes and goes in such blocks. What lies along another axis passes through shared memory
//! (`turned.rs`).

mod turned;

pub use turned::{turned_axis, turned_in_groups};

use crate::check::{BuildError, Check, Scope, common_limits, index_space, shape};
use crate::emit_expr::{Emit, Kept};
use crate::emit_group::Groups;
use crate::expr::ExprId;
use crate::host::{Memory, for_each_point};
use crate::limits::{Limits, Reject};
use crate::reference::StoreTape;
use crate::spec::{Extent, Grid, GridFactor, Kernel, MapSpec, Target};
use crate::templates::kernel;

/// Most elements that an invocation handles; the code of each is laid out.
const MAX_PER_THREAD: u32 = 16;

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &MapSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    let need = spec.turned.map_or(0, |t| turned::shared_bytes(spec, t));
    if need > limits.shared_bytes {
        return Err(Reject::Shared { need, limit: limits.shared_bytes });
    }
    index_space(&spec.domain)
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &MapSpec, target: Target) -> Result<Kernel, BuildError> {
    check(spec)?;
    if let Some(t) = spec.turned {
        return Ok(turned::kernel_of(spec, target, t));
    }
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &spec.domain, target, spec.wg);
    cx.load_symbols(&spec.domain);
    cx.round_coarsely(&spec.stores, &[], &spec.interface);
    let index = cx.global_index(spec.wg);
    match whole_chunks(spec) {
        Some(chunked) => emit_chunk(&mut cx, spec, index, &chunked),
        None => emit_elements(&mut cx, spec, index),
    }
    let elements = GridFactor { extents: spec.domain.clone(), divisor: spec.per_thread * spec.wg };
    Ok(kernel(cx, Grid::linear(vec![elements])))
}

fn check(spec: &MapSpec) -> Result<(), BuildError> {
    if spec.wg == 0 || spec.per_thread == 0 || spec.per_thread > MAX_PER_THREAD {
        return Err(shape(format!("map: wg={} per_thread={} (1 to {MAX_PER_THREAD})", spec.wg, spec.per_thread)));
    }
    if let Some(t) = spec.turned {
        turned::check(spec, t)?;
    }
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    check.interface(&spec.domain)?;
    let axes: Vec<u8> = (0..spec.domain.len() as u8).collect();
    check.stores(Scope { what: "map", axes: &axes, args: &[] }, &spec.stores)
}

/// The domain with its last extent divided by `per_thread`, where that leaves no rest.
fn whole_chunks(spec: &MapSpec) -> Option<Vec<Extent>> {
    let (&last, outer) = spec.domain.split_last()?;
    match last {
        Extent::Const(n) if n % spec.per_thread == 0 => {
            let mut chunked = outer.to_vec();
            chunked.push(Extent::Const(n / spec.per_thread));
            Some(chunked)
        }
        _ => None,
    }
}

/// Elements that an invocation best takes, where it can take them by whole blocks.
pub fn group_size(spec: &MapSpec) -> Option<u32> {
    groups(spec).map(|groups| groups.size)
}

fn groups(spec: &MapSpec) -> Option<Groups> {
    let axis = spec.domain.len().checked_sub(1)?;
    let values = spec.stores.iter().flat_map(|s| [Some(s.value), s.guard]).flatten();
    let roots: Vec<ExprId> = values.collect();
    Groups::of((&spec.exprs, &spec.interface, &spec.domain), &roots, &spec.stores, axis)
}

/// One chunk of the last axis per invocation.
fn emit_chunk(cx: &mut Emit<'_>, spec: &MapSpec, index: crate::asm::Id, chunked: &[Extent]) {
    cx.return_beyond(index, chunked);
    let coordinates = cx.coordinates(index, chunked);
    let (&chunk, outer) = coordinates.split_last().expect("a chunked domain has a last axis");
    for (k, &c) in outer.iter().enumerate() {
        cx.bind_axis(k, c);
    }
    let per_thread = cx.asm.u32(spec.per_thread);
    let first = cx.asm.imul(chunk, per_thread);
    if let Some(groups) = groups(spec).filter(|groups| spec.per_thread == groups.size) {
        let base = cx.keep_scope(None, |_| {});
        let scopes = cx.group_scopes(&base, &groups, first);
        let scopes: Vec<&Kept> = scopes.iter().collect();
        return cx.store_group((&groups, &base, first), &scopes, &spec.stores, &spec.interface);
    }
    for e in 0..spec.per_thread {
        cx.scope(|cx| {
            let e = cx.asm.u32(e);
            let at = cx.asm.iadd(first, e);
            cx.bind_axis(outer.len(), at);
            cx.stores(&spec.stores);
        });
    }
}

/// Elements by their linear number, each guarded.
fn emit_elements(cx: &mut Emit<'_>, spec: &MapSpec, index: crate::asm::Id) {
    let total = cx.product(&spec.domain);
    let per_thread = cx.asm.u32(spec.per_thread);
    let first = cx.asm.imul(index, per_thread);
    for e in 0..spec.per_thread {
        let e = cx.asm.u32(e);
        let linear = cx.asm.iadd(first, e);
        let inside = cx.asm.ult(linear, total);
        cx.if_then(inside, &[], |cx| {
            for (k, c) in cx.coordinates(linear, &spec.domain).into_iter().enumerate() {
                cx.bind_axis(k, c);
            }
            cx.stores(&spec.stores);
            vec![]
        });
    }
}

/// The plainest form.
pub(crate) fn reference(spec: &MapSpec, memory: &mut Memory) {
    let domain = memory.extents(&spec.domain);
    let stores = StoreTape::new(&spec.exprs, &spec.stores);
    let mut runner = stores.runner();
    for_each_point(&domain, &mut vec![], &mut |axes| stores.run(&mut runner, memory, axes, &[]));
}
