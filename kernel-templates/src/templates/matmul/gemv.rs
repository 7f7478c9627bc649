//! Thin products: `threads_per_dot` invocations share the dot products of one column with all (at most 8) rows.
//!
//! ```text
//! parallel for b, n: lanes: for k by threads_per_dot: acc[m] += lhs(b, m, k)·rhs(b, n, k); tree over lanes; stores
//! ```
//!
//! Traffic: each right element once, whatever m is; consecutive lanes read consecutive k. The tree has a fixed shape.

use super::{K, M, N, find_tile, start, store_tile, tile_grid, zero};
use crate::asm::{Id, St};
use crate::check::{BuildError, shape};
use crate::emit_expr::{Emit, Kept};
use crate::spec::{Extent, Kernel, MatmulSpec, Target};
use crate::templates::kernel;

/// Most rows: each has an accumulator and a tree.
const MAX_ROWS: u32 = 8;

pub(super) fn check(spec: &MatmulSpec, threads: u32) -> Result<(), BuildError> {
    let rows_fit = matches!(spec.m, Extent::Const(m) if (1..=MAX_ROWS).contains(&m));
    if !rows_fit || !threads.is_power_of_two() || !spec.wg.is_multiple_of(threads) {
        return Err(shape(format!(
            "matmul: gemv of m={:?} (1 to {MAX_ROWS}) with {threads} lanes (a power of two that divides wg={})",
            spec.m, spec.wg
        )));
    }
    Ok(())
}

pub(super) fn shared_bytes(spec: &MatmulSpec) -> u32 {
    spec.wg * St::from(spec.acc).size_bytes()
}

pub(super) fn build(spec: &MatmulSpec, target: Target, threads: u32) -> Result<Kernel, BuildError> {
    let Extent::Const(m) = spec.m else {
        return Err(shape("matmul: gemv of unknown m".to_owned()));
    };
    let mut cx = start(spec, target);
    let array = cx.asm.shared_array(spec.acc.into(), spec.wg);
    let dots_per_group = spec.wg / threads;
    let group = cx.asm.workgroup_index();
    let local = cx.asm.local_index();
    let tile = find_tile(&mut cx, spec, group, m, dots_per_group);
    let (shift, mask) = (cx.asm.u32(threads.trailing_zeros()), cx.asm.u32(threads - 1));
    let dot = cx.asm.shr(local, shift);
    let lane = cx.asm.and(local, mask);
    let size = cx.asm.u32(dots_per_group);
    let first = cx.asm.imul(tile.along_n, size);
    let first = cx.asm.iadd(first, dot);
    let covered = super::is_covered(spec.n, dots_per_group);
    let cols = super::positions(&mut cx, spec.n, covered, first, 1, 1);
    cx.bind_axis(N, cols[0].0);
    let rows: Vec<Kept> = (0..m)
        .map(|i| {
            cx.keep_scope(None, |cx| {
                let i = cx.asm.u32(i);
                cx.bind_axis(M, i);
            })
        })
        .collect();
    let partial = dot_products(&mut cx, spec, &rows, lane, threads);
    let true_ = cx.asm.bool(true);
    let zero_lane = cx.asm.u32(0);
    let is_first = cx.asm.ieq(lane, zero_lane);
    let writes = cx.asm.land(cols[0].1, is_first);
    for (i, value) in partial.into_iter().enumerate() {
        let sum = tree(&mut cx, array, local, lane, threads, value);
        let row = cx.asm.u32(i as u32);
        store_tile(&mut cx, spec, &[(row, true_)], &[(cols[0].0, writes)], &[sum]);
    }
    Ok(kernel(cx, tile_grid(spec, m, dots_per_group, 1)))
}

/// This lane's part of every row's product.
fn dot_products(cx: &mut Emit<'_>, spec: &MatmulSpec, rows: &[Kept], lane: Id, threads: u32) -> Vec<Id> {
    let runs = spec.k.iter().all(|e| matches!(e, Extent::Const(n) if *n > 0));
    cx.hoist(&[spec.rhs], runs);
    let rows: Vec<Kept> = rows.iter().map(|s| cx.keep_scope(Some(s), |cx| cx.hoist(&[spec.lhs], runs))).collect();
    let total = cx.product(&spec.k);
    let step = cx.asm.u32(threads);
    let zero = zero(cx, spec.acc);
    let initial = vec![zero; rows.len()];
    cx.loop_step((lane, total, step), &initial, |cx, position, acc| {
        for (i, c) in cx.coordinates(position, &spec.k).into_iter().enumerate() {
            cx.bind_axis(K + i, c);
        }
        let b = cx.eval(spec.rhs);
        let next = rows.iter().zip(acc).map(|(s, &acc)| {
            let a = cx.within(s, |cx| cx.eval(spec.lhs));
            cx.asm.mul_add(a, b, acc)
        });
        next.collect()
    })
}

/// Sum over the lanes of a dot product, in a tree of fixed shape.
fn tree(cx: &mut Emit<'_>, array: crate::asm::Shared, local: Id, lane: Id, threads: u32, value: Id) -> Id {
    if threads == 1 {
        return value;
    }
    cx.asm.store_shared(array, local, value);
    cx.asm.barrier();
    let mut width = threads / 2;
    while width > 0 {
        let width_id = cx.asm.u32(width);
        let active = cx.asm.ult(lane, width_id);
        cx.if_then(active, &[], |cx| {
            let a = cx.asm.load_shared(array, local);
            let other = cx.asm.iadd(local, width_id);
            let b = cx.asm.load_shared(array, other);
            let sum = crate::emit_expr::emit_binary(&mut cx.asm, crate::expr::Binary::Add, a, b);
            cx.asm.store_shared(array, local, sum);
            vec![]
        });
        cx.asm.barrier();
        width /= 2;
    }
    let first = cx.asm.isub(local, lane);
    let sum = cx.asm.load_shared(array, first);
    cx.asm.barrier();
    sum
}
