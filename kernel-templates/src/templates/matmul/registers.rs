//! Each invocation computes `rows` × `cols` outputs from loads alone.
//!
//! ```text
//! parallel for tile: for k axes: { a[rows], b[cols] loaded; acc[rows][cols] += a·b }
//! ```
//!
//! Traffic per invocation and k: `rows + cols` loads for `rows · cols` products. Index arithmetic of rows, columns and outer k axes
//! is done before the loops that do not change it.
//!
//! Where n is long enough, a workgroup takes the same rows for all its invocations: left loads are then uniform, which CPU drivers turn into
//! one scalar load for a whole vector of invocations, and columns of neighbours are consecutive. Else tiles are dealt out one by one.

use super::{K, M, N, find_tile, is_covered, positions, start, store_tile, tile_grid, zero};
use crate::asm::Id;
use crate::check::{BuildError, shape};
use crate::dtype::Ty;
use crate::emit_expr::{Emit, Kept};
use crate::expr::ExprId;
use crate::spec::{Extent, Kernel, MatmulSpec, Target};
use crate::templates::kernel;

/// Most outputs of an invocation; more would spill on every device.
const MAX_OUTPUTS: u32 = 64;

/// Instructions laid out in one iteration of the innermost loop, about: more is slow to compile, and small problems do not earn that back.
const LAID_OUT: u32 = 256;
const LAID_OUT_SMALL: u32 = 64;

/// Steps of the innermost loop that are summed on their own before they join the f32 sum of all.
const BLOCK: u32 = 128;

/// Products below which a problem is small.
const SMALL: u64 = 1 << 20;

/// Steps of the innermost loop laid out in one iteration: the first that divides its count and fits.
const UNROLLS: [u32; 6] = [8, 7, 5, 4, 3, 2];

pub(super) fn check(rows: u32, cols: u32) -> Result<(), BuildError> {
    if rows == 0 || cols == 0 || rows * cols > MAX_OUTPUTS {
        return Err(shape(format!("matmul: {rows}x{cols} outputs of an invocation (1 to {MAX_OUTPUTS})")));
    }
    Ok(())
}

pub(super) fn build(spec: &MatmulSpec, target: Target, rows: u32, cols: u32) -> Result<Kernel, BuildError> {
    let mut cx = start(spec, target);
    let shared_rows = shares_rows(spec, cols);
    let (tile_n, per_group) = if shared_rows { (cols * spec.wg, 1) } else { (cols, spec.wg) };
    let index = if shared_rows { cx.asm.workgroup_index() } else { cx.global_index(spec.wg) };
    let tile = find_tile(&mut cx, spec, index, rows, tile_n);
    let first_row = scaled(&mut cx, tile.along_m, rows);
    let first_col = scaled(&mut cx, tile.along_n, tile_n);
    let row_positions = positions(&mut cx, spec.m, is_covered(spec.m, rows), first_row, 1, rows);
    let (first_col, step) = if shared_rows {
        let local = cx.asm.local_index();
        (cx.asm.iadd(first_col, local), spec.wg)
    } else {
        (first_col, 1)
    };
    let col_positions = positions(&mut cx, spec.n, is_covered(spec.n, tile_n), first_col, step, cols);
    let row_scopes = scopes(&mut cx, M, &row_positions);
    let col_scopes = scopes(&mut cx, N, &col_positions);
    let zero = zero(&mut cx, spec.acc);
    let initial = vec![zero; (rows * cols) as usize];
    let order = loop_order(spec);
    let acc = nest(&mut cx, spec, &order, &row_scopes, &col_scopes, &initial);
    store_tile(&mut cx, spec, &row_positions, &col_positions, &acc);
    Ok(kernel(cx, tile_grid(spec, rows, tile_n, per_group)))
}

/// Whether whole workgroups along n leave at most a third of their invocations without a column of their own.
fn shares_rows(spec: &MatmulSpec, cols: u32) -> bool {
    let Extent::Const(n) = spec.n else { return false };
    let tiles = u64::from(n.div_ceil(cols));
    let invocations = tiles.next_multiple_of(u64::from(spec.wg));
    invocations * 2 <= tiles * 3
}

fn scaled(cx: &mut Emit<'_>, tile: Id, size: u32) -> Id {
    let size = cx.asm.u32(size);
    cx.asm.imul(tile, size)
}

/// One scope per position, with its axis bound.
fn scopes(cx: &mut Emit<'_>, axis: usize, positions: &[(Id, Id)]) -> Vec<Kept> {
    positions.iter().map(|&(at, _)| cx.keep_scope(None, |cx| cx.bind_axis(axis, at))).collect()
}

/// The k axes, outermost loop first. The longest runs innermost: what the others decide (taps of a convolution and whether they lie in
/// the padding) is then settled before it.
fn loop_order(spec: &MatmulSpec) -> Vec<usize> {
    let length = |k: &usize| match spec.k[*k] {
        Extent::Const(n) => n,
        Extent::Sym(_) => u32::MAX,
    };
    let mut order: Vec<usize> = (0..spec.k.len()).collect();
    // Of equal lengths the last stays last.
    if let Some(longest) = (0..spec.k.len()).max_by_key(length) {
        order.retain(|&k| k != longest);
        order.push(longest);
    }
    order
}

/// Products of the whole problem; symbolic sizes count as large.
fn products(spec: &MatmulSpec) -> u64 {
    let size = |e: &Extent| if let Extent::Const(n) = e { u64::from(*n) } else { 1 << 10 };
    [spec.batch, spec.m, spec.n].iter().chain(&spec.k).map(size).product()
}

/// The loops over the k axes of `order`; `rows` and `cols` hold what is known so far of each.
fn nest(cx: &mut Emit<'_>, spec: &MatmulSpec, order: &[usize], rows: &[Kept], cols: &[Kept], acc: &[Id]) -> Vec<Id> {
    let Some((&axis, inner)) = order.split_first() else {
        return multiply(cx, spec, rows, cols, acc);
    };
    let runs = order.iter().all(|&k| matches!(spec.k[k], Extent::Const(n) if n > 0));
    cx.hoist(&[spec.lhs, spec.rhs], runs);
    let deepen = |cx: &mut Emit<'_>, scopes: &[Kept], root: ExprId| -> Vec<Kept> {
        scopes.iter().map(|s| cx.keep_scope(Some(s), |cx| cx.hoist(&[root], runs))).collect()
    };
    let rows = deepen(cx, rows, spec.lhs);
    let cols = deepen(cx, cols, spec.rhs);
    let extent = spec.k[axis];
    let budget = if products(spec) < SMALL { LAID_OUT_SMALL } else { LAID_OUT };
    let step_cost = (rows.len() * cols.len() + 2 * (rows.len() + cols.len())) as u32;
    let fits = |&u: &u32| is_covered(extent, u) && u * step_cost <= budget;
    let unroll = if inner.is_empty() { UNROLLS.into_iter().find(fits).unwrap_or(1) } else { 1 };
    let (zero, count) = (cx.asm.u32(0), cx.extent(extent));
    let mut step = |cx: &mut Emit<'_>, at: Id, acc: &[Id]| {
        cx.scope(|cx| {
            cx.bind_axis(K + axis, at);
            nest(cx, spec, inner, &rows, &cols, acc)
        })
    };
    let sums_in_blocks = inner.is_empty() && spec.acc == Ty::F32;
    if !sums_in_blocks {
        return laid_out(cx, (zero, count), (unroll, runs), acc, &mut step);
    }
    let block = if BLOCK.is_multiple_of(unroll) { BLOCK } else { BLOCK * unroll };
    if matches!(extent, Extent::Const(n) if n <= block) {
        return block_sum(cx, (zero, count), (unroll, runs), acc, &mut step);
    }
    let block = cx.asm.u32(block);
    cx.loop_step((zero, count, block), acc, |cx, first, acc| {
        let end = cx.asm.iadd(first, block);
        let inside = cx.asm.ult(end, count);
        let end = cx.asm.select(inside, end, count);
        block_sum(cx, (first, end), (unroll, true), acc, &mut step)
    })
}

/// What a loop does at one index: `(index, carried) → carried`.
type Step<'b> = dyn FnMut(&mut Emit<'_>, Id, &[Id]) -> Vec<Id> + 'b;

/// `acc` plus the sum over a range that starts from zero: sums of sums lose far less than one long sum.
fn block_sum(cx: &mut Emit<'_>, range: (Id, Id), turns: (u32, bool), acc: &[Id], step: &mut Step<'_>) -> Vec<Id> {
    let zero = cx.asm.f32(0.0);
    let sums = laid_out(cx, range, turns, &vec![zero; acc.len()], step);
    acc.iter().zip(sums).map(|(&acc, sum)| cx.asm.fadd(acc, sum)).collect()
}

/// A loop over a range, `unroll` steps laid out in each turn; it surely takes one turn if it `runs`.
fn laid_out(
    cx: &mut Emit<'_>,
    (start, end): (Id, Id),
    (unroll, runs): (u32, bool),
    initial: &[Id],
    step: &mut Step<'_>,
) -> Vec<Id> {
    let by = cx.asm.u32(unroll);
    let known = [start, end].iter().all(|&id| cx.asm.const_bits(id).is_some());
    let body = |cx: &mut Emit<'_>, i: Id, carried: &[Id]| {
        (0..unroll).fold(carried.to_vec(), |carried, u| {
            let u = cx.asm.u32(u);
            let at = cx.asm.iadd(i, u);
            step(cx, at, &carried)
        })
    };
    if known {
        cx.loop_step((start, end, by), initial, body)
    } else {
        cx.loop_of((start, end, by), runs, initial, body)
    }
}

fn multiply(cx: &mut Emit<'_>, spec: &MatmulSpec, rows: &[Kept], cols: &[Kept], acc: &[Id]) -> Vec<Id> {
    let a: Vec<Id> = rows.iter().map(|s| cx.within(s, |cx| cx.eval(spec.lhs))).collect();
    let b: Vec<Id> = cols.iter().map(|s| cx.within(s, |cx| cx.eval(spec.rhs))).collect();
    let mut next = Vec::with_capacity(acc.len());
    for (i, &a) in a.iter().enumerate() {
        for (j, &b) in b.iter().enumerate() {
            next.push(cx.asm.mul_add(a, b, acc[i * cols.len() + j]));
        }
    }
    next
}
