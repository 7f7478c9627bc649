//! Map kernels: a pointwise value at every coordinate, parts of a concatenation, state updates.

use super::super::inline::{Ctx, Place};
use super::super::layout::{BLOCK, Order, is_block_run};
use super::super::tile;
use super::{Lowered, max_elems};
use crate::ir::{Dim, ValueId};
use jvc_kernels::expr::ExprId;
use jvc_kernels::spec::{Access, KernelSpec, MapSpec, Store};

fn spec(cx: &mut Ctx<'_>, shape: &[Dim], stores: Vec<Store>) -> Lowered {
    let domain = cx.extents(shape);
    let elems = max_elems(cx, shape);
    let (wg, per_thread) = tile::map(cx.device, elems);
    let exprs = std::mem::take(&mut cx.ix.exprs);
    let flops = elems * exprs.len() as f64;
    let mut spec = MapSpec { interface: cx.interface(), exprs, domain, stores, per_thread, wg, turned: None };
    if let Some(size) = tile::map_group(cx.device, elems, &spec) {
        spec.per_thread = size;
    } else if let Some((turned, wg)) = tile::map_turned(cx.device, elems, &spec) {
        (spec.turned, spec.wg, spec.per_thread) = (Some(turned), wg, turned.side * turned.side / wg);
    }
    Lowered::new(KernelSpec::Map(spec), flops)
}

/// A value with its channels last, a block of them an invocation: neighbours take neighbouring blocks, or the same block of neighbouring
/// places where elements are read that lie along those. `stores` is asked at coordinates of the value.
fn over_image(cx: &mut Ctx<'_>, v: ValueId, stores: impl FnOnce(&mut Ctx<'_>, &[ExprId]) -> Vec<Store>) -> Lowered {
    let shape = cx.ty(v).shape.clone();
    let (block, places) = (Dim::from(BLOCK), &shape[2..]);
    let blocks = shape[1].floor_div(&block);
    let along_places = reads_along_places(cx, v);
    let middle = if along_places { [&[blocks][..], places].concat() } else { [places, &[blocks][..]].concat() };
    let domain = [&shape[..1], &middle, &[block]].concat();
    let axes = cx.axes(0, &domain);
    let (first, within) = (if along_places { 1 } else { shape.len() - 1 }, axes[shape.len()]);
    let size = cx.ix.int(BLOCK);
    let start = cx.ix.mul(axes[first], size);
    let channel = cx.ix.add(start, within);
    let after = if along_places { 2 } else { 1 };
    let at = [&axes[..1], &[channel], &axes[after..after + places.len()]].concat();
    let stores = stores(cx, &at);
    spec(cx, &domain, stores)
}

/// Whether something in memory is read on the way to a value that has other places side by side than channels.
fn reads_along_places(cx: &Ctx<'_>, v: ValueId) -> bool {
    cx.graph.def(v).inputs.iter().any(|&x| {
        if !cx.fusion.in_memory(cx.graph, x) {
            return reads_along_places(cx, x);
        }
        let has_places = cx.ty(x).shape.iter().skip(2).any(|d| !d.is(1));
        has_places && cx.fusion.order(x) != Order::ChannelsLast
    })
}

pub(super) fn lower(cx: &mut Ctx<'_>, v: ValueId) -> Lowered {
    if cx.fusion.order(v) == Order::ChannelsLast {
        return over_image(cx, v, |cx, at| {
            let value = cx.definition_at(v, at);
            cx.store(v, at, value)
        });
    }
    let shape = cx.ty(v).shape.clone();
    let at = cx.axes(0, &shape);
    let value = cx.definition_at(v, &at);
    let stores = cx.store(v, &at, value);
    spec(cx, &shape, stores)
}

/// Copies `v` from its own buffer into every other place that it must be in.
pub(super) fn lower_beside(cx: &mut Ctx<'_>, v: ValueId) -> Lowered {
    let shape = cx.ty(v).shape.clone();
    let at = cx.axes(0, &shape);
    let value = cx.at(v, &at);
    let stores = cx.store_beside(v, &at, value);
    spec(cx, &shape, stores)
}

/// Stores what `value` gives at each coordinate into every place of `v`.
pub(super) fn lower_as(cx: &mut Ctx<'_>, v: ValueId, value: impl FnOnce(&mut Ctx<'_>, &[ExprId]) -> ExprId) -> Lowered {
    let shape = cx.ty(v).shape.clone();
    let at = cx.axes(0, &shape);
    let value = value(cx, &at);
    let stores = cx.store(v, &at, value);
    spec(cx, &shape, stores)
}

/// Copies `v` into every place of `target`, a value of the same type.
pub(super) fn lower_into(cx: &mut Ctx<'_>, v: ValueId, target: ValueId) -> Lowered {
    let shape = cx.ty(v).shape.clone();
    let at = cx.axes(0, &shape);
    let value = cx.at(v, &at);
    let stores = cx.store(target, &at, value);
    spec(cx, &shape, stores)
}

pub(super) fn lower_part(cx: &mut Ctx<'_>, arm: ValueId, concat: ValueId, dim: usize, start: &Dim) -> Lowered {
    let stores = |cx: &mut Ctx<'_>, at: &[ExprId]| {
        let value = cx.at(arm, at);
        let mut into = at.to_vec();
        let offset = cx.ix.dim(start);
        into[dim] = cx.ix.add(into[dim], offset);
        cx.store(concat, &into, value)
    };
    if dim == 1 && cx.fusion.order(concat) == Order::ChannelsLast && is_block_run(cx.graph, arm, start) {
        return over_image(cx, arm, stores);
    }
    let shape = cx.ty(arm).shape.clone();
    let at = cx.axes(0, &shape);
    let stores = stores(cx, &at);
    spec(cx, &shape, stores)
}

pub(super) fn lower_state_update(cx: &mut Ctx<'_>, v: ValueId, state: u32) -> Lowered {
    let ty = cx.ty(v);
    let at = cx.axes(0, &ty.shape);
    let value = cx.at(v, &at);
    let index = cx.ix.linear(&at, &ty.shape);
    let operand = cx.operand(Place::StateUpdate(state), ty.dtype, Access::Write);
    spec(cx, &ty.shape, vec![Store { operand, index, value, guard: None }])
}
