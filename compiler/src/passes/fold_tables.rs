//! Computes small tables that a kernel would store anew in every run.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[4]
//!   %i = compute(i64((i0 * 7) % 3)) : i64[4]
//!   %k = map((((a * 5L) + 3L) - ((a * a) * 2L)) * a) %i : i64[4]
//!   %y = compute(a[max(min(i32(b[i0]), 3), 0)]) %x, %k : f32[4]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[4]
//!   %k = const [0, 6, 10, 0] : i64[4]
//!   %y = compute(a[max(min(i32(b[i0]), 3), 0)]) %x, %k : f32[4]
//!   output "y" = %y
//! }
//! ```
//!
//! What is made from nothing and is cheap stays an expression (see `fold_constants`), since its readers may then see through it: an index
//! that grows evenly is mere movement. But where fusion stores it all the same, the kernel is a dispatch for bytes that never change.

use super::constants::constant_values;
use super::fold_constants::{SMALL_BYTES, bytes_of, fold_where};
use super::{Cx, Pass};
use crate::ir::{Graph, ValueId};
use crate::schedule::fuse::{Reason, fuse};

pub(super) const PASS: Pass =
    Pass { name: "fold_tables", summary: "computes small tables that would be stored in every run", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let mut patches = 0;
    loop {
        // What is in memory decides what else is stored.
        let stored = tables(graph);
        let folded = if stored.contains(&true) { fold_where(graph, cx, |_, v| stored[v.0 as usize]) } else { 0 };
        if folded == 0 {
            return patches;
        }
        patches += folded;
    }
}

/// Of each value, whether it is a small table that fusion stores.
fn tables(graph: &Graph) -> Vec<bool> {
    let constant = constant_values(graph);
    if !constant.contains(&true) {
        return constant;
    }
    let fusion = fuse(graph);
    let stored = |v: ValueId| fusion.reason(v).is_some_and(|reason| reason != Reason::Root);
    let all = (0u32..).zip(constant);
    all.map(|(v, constant)| constant && stored(ValueId(v)) && bytes_of(graph, ValueId(v)) <= SMALL_BYTES).collect()
}
