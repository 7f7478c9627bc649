//! The outputs of a register tile on their way to memory: rows or columns in fours, where one store is proven to take them.

use super::super::all_extents;
use super::side::{fetch, preset};
use super::{BLOCK, M, N};
use crate::asm::{Id, St};
use crate::emit_expr::{Emit, Kept};
use crate::expr::{Expr, ExprId, Exprs};
use crate::spec::{MatmulSpec, Store};
use crate::wide_load::{self, FourLoad};

/// Outputs along one axis: position, and whether it is inside.
type Positions<'a> = &'a [(Id, Id)];

/// How outputs are written.
struct Plan {
    /// The axis along which they go `group` at a time.
    axis: usize,
    group: usize,
    /// Loads of the stored values that are fetched by fours: those that the other axis changes, and those that it does not.
    loads: Vec<FourLoad>,
    fixed: Vec<FourLoad>,
}

impl Plan {
    fn of(spec: &MatmulSpec, lengths: [usize; 2]) -> Plan {
        let extents = all_extents(spec);
        let four = BLOCK as usize;
        let fits = |axis: usize| {
            let one = |s: &Store| wide_load::stores_fours(&spec.exprs, &spec.interface, &extents, s, axis);
            lengths[axis - M].is_multiple_of(four) && spec.acc == crate::dtype::Ty::F32 && spec.stores.iter().all(one)
        };
        let Some(axis) = [N, M].into_iter().find(|&axis| fits(axis)) else {
            return Plan { axis: N, group: 1, loads: vec![], fixed: vec![] };
        };
        let roots = roots(spec);
        let loads = wide_load::fours(&spec.exprs, &spec.interface, &extents, &roots, axis).unwrap_or_default();
        let other = if axis == N { M } else { N };
        let (loads, fixed) = loads.into_iter().partition(|l| uses_axis(&spec.exprs, l.index, other));
        Plan { axis, group: four, loads, fixed }
    }
}

fn uses_axis(exprs: &Exprs, id: ExprId, axis: usize) -> bool {
    exprs.reachable(&[id]).iter().any(|&n| matches!(exprs.get(n), Expr::Axis(k) if usize::from(*k) == axis))
}

fn roots(spec: &MatmulSpec) -> Vec<ExprId> {
    spec.stores.iter().flat_map(|s| [s.index, s.value].into_iter().chain(s.guard)).collect()
}

/// Stores the outputs of a register tile; `acc` is row-major over `rows` × `cols`.
pub(super) fn store(cx: &mut Emit<'_>, spec: &MatmulSpec, rows: Positions<'_>, cols: Positions<'_>, acc: &[Id]) {
    let plan = Plan::of(spec, [rows.len(), cols.len()]);
    let by_columns = plan.axis == N;
    let (outer, inner) = if by_columns { (rows, cols) } else { (cols, rows) };
    let outer_axis = if by_columns { M } else { N };
    let scopes: Vec<Kept> = inner.chunks(plan.group).flat_map(|group| inner_scopes(cx, spec, &plan, group)).collect();
    for (i, &(at, inside)) in outer.iter().enumerate() {
        cx.if_then(inside, &[], |cx| {
            cx.bind_axis(outer_axis, at);
            for first in (0..inner.len()).step_by(plan.group) {
                let sums: Vec<Id> = (first..first + plan.group)
                    .map(|j| if by_columns { acc[i * cols.len() + j] } else { acc[j * cols.len() + i] })
                    .collect();
                let scopes = &scopes[first..first + plan.group];
                cx.if_then(inner[first].1, &[], |cx| {
                    store_group(cx, spec, &plan, scopes, &sums);
                    vec![]
                });
            }
            vec![]
        });
    }
}

/// Scopes of positions that are stored together: what these decide, loads included, is the same for all of the outer axis.
fn inner_scopes(cx: &mut Emit<'_>, spec: &MatmulSpec, plan: &Plan, group: Positions<'_>) -> Vec<Kept> {
    let first = cx.keep_scope(None, |cx| cx.bind_axis(plan.axis, group[0].0));
    let fetched = cx.within(&first, |cx| fetch(cx, &plan.fixed));
    let scope = |(e, &(at, _)): (u32, &(Id, Id))| {
        cx.keep_scope(None, |cx| {
            cx.bind_axis(plan.axis, at);
            preset(cx, &plan.fixed, &fetched, e);
            cx.hoist(&roots(spec), true);
        })
    };
    (0u32..).zip(group).map(scope).collect()
}

fn store_group(cx: &mut Emit<'_>, spec: &MatmulSpec, plan: &Plan, scopes: &[Kept], sums: &[Id]) {
    if plan.group == 1 {
        return cx.within(&scopes[0], |cx| {
            cx.scope(|cx| {
                cx.bind_arg(0, sums[0]);
                cx.stores(&spec.stores);
            });
        });
    }
    let fetched = cx.within(&scopes[0], |cx| fetch(cx, &plan.loads));
    // All values are read before the first is written.
    let mut values = Vec::with_capacity(sums.len());
    for ((e, kept), &sum) in (0u32..).zip(scopes).zip(sums) {
        let of_place: Vec<Id> = cx.within(kept, |cx| {
            cx.scope(|cx| {
                cx.bind_arg(0, sum);
                preset(cx, &plan.loads, &fetched, e);
                spec.stores.iter().map(|s| cx.eval(s.value)).collect()
            })
        });
        values.push(of_place);
    }
    for (i, s) in spec.stores.iter().enumerate() {
        let words: Vec<Id> = values.iter().map(|of_place| cx.asm.bitcast(St::U32, of_place[i])).collect();
        let block = cx.asm.block_of([words[0], words[1], words[2], words[3]]);
        let (index, guard) = cx.within(&scopes[0], |cx| (cx.eval(s.index), s.guard.map(|g| cx.eval(g))));
        let two = cx.asm.u32(BLOCK.trailing_zeros());
        let index = cx.asm.shr(index, two);
        let write = |cx: &mut Emit<'_>| {
            cx.store_operand_block(s.operand, index, block);
            vec![]
        };
        match guard {
            None => drop(write(cx)),
            Some(guard) => drop(cx.if_then(guard, &[], write)),
        }
    }
}
