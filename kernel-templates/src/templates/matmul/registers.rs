//! Each invocation computes `rows` × `cols` outputs from loads alone.
//!
//! ```text
//! parallel for tile: for k axes: { a[rows], b[cols] loaded; acc[rows][cols] += a·b }
//! ```
//!
//! Traffic per invocation and k: `rows + cols` loads for `rows · cols` products. Index arithmetic of rows, columns and outer k axes
//! is done before the loops that do not change it.

use super::{K, M, N, find_tile, is_covered, positions, start, store_tile, tile_grid, zero};
use crate::asm::Id;
use crate::check::{BuildError, shape};
use crate::emit_expr::{Emit, Kept};
use crate::expr::ExprId;
use crate::spec::{Extent, InterfaceForm, Kernel, MatmulSpec};
use crate::templates::kernel;

/// Most outputs of an invocation; more would spill on every device.
const MAX_OUTPUTS: u32 = 64;

pub(super) fn check(rows: u32, cols: u32) -> Result<(), BuildError> {
    if rows == 0 || cols == 0 || rows * cols > MAX_OUTPUTS {
        return Err(shape(format!("matmul: {rows}x{cols} outputs of an invocation (1 to {MAX_OUTPUTS})")));
    }
    Ok(())
}

pub(super) fn build(spec: &MatmulSpec, form: InterfaceForm, rows: u32, cols: u32) -> Result<Kernel, BuildError> {
    let mut cx = start(spec, form);
    let index = cx.global_index(spec.wg);
    let tile = find_tile(&mut cx, spec, index, rows, cols);
    let row_positions = along(&mut cx, spec.m, tile.along_m, rows);
    let col_positions = along(&mut cx, spec.n, tile.along_n, cols);
    let row_scopes = scopes(&mut cx, M, &row_positions);
    let col_scopes = scopes(&mut cx, N, &col_positions);
    let zero = zero(&mut cx, spec.acc);
    let initial = vec![zero; (rows * cols) as usize];
    let acc = nest(&mut cx, spec, 0, &row_scopes, &col_scopes, &initial);
    store_tile(&mut cx, spec, &row_positions, &col_positions, &acc);
    Ok(kernel(cx, tile_grid(spec, rows, cols, spec.wg)))
}

/// The consecutive positions of a tile.
fn along(cx: &mut Emit<'_>, extent: Extent, tile: Id, count: u32) -> Vec<(Id, Id)> {
    let size = cx.asm.u32(count);
    let first = cx.asm.imul(tile, size);
    positions(cx, extent, is_covered(extent, count), first, 1, count)
}

/// One scope per position, with its axis bound.
fn scopes(cx: &mut Emit<'_>, axis: usize, positions: &[(Id, Id)]) -> Vec<Kept> {
    positions.iter().map(|&(at, _)| cx.keep_scope(None, |cx| cx.bind_axis(axis, at))).collect()
}

/// The k loops from `level` on; `rows` and `cols` hold what is known so far of each.
fn nest(cx: &mut Emit<'_>, spec: &MatmulSpec, level: usize, rows: &[Kept], cols: &[Kept], acc: &[Id]) -> Vec<Id> {
    let Some(&extent) = spec.k.get(level) else {
        return multiply(cx, spec, rows, cols, acc);
    };
    let runs = spec.k[level..].iter().all(|e| matches!(e, Extent::Const(n) if *n > 0));
    cx.hoist(&[spec.lhs, spec.rhs], runs);
    let deepen = |cx: &mut Emit<'_>, scopes: &[Kept], root: ExprId| -> Vec<Kept> {
        scopes.iter().map(|s| cx.keep_scope(Some(s), |cx| cx.hoist(&[root], runs))).collect()
    };
    let rows = deepen(cx, rows, spec.lhs);
    let cols = deepen(cx, cols, spec.rhs);
    let count = cx.extent(extent);
    cx.loop_n(count, acc, |cx, i, acc| {
        cx.bind_axis(K + level, i);
        nest(cx, spec, level + 1, &rows, &cols, acc)
    })
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
