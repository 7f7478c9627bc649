//! Orders of small sets of kernels, by hand.

use super::*;
use crate::ir::{DType, ValueId};
use jvc_codegen::plan::Cost;
use jvc_kernels::expr::Exprs;
use jvc_kernels::spec::{Interface, KernelSpec, MapSpec};

/// A kernel that touches values, of which it writes the last.
fn draft(values: &[(u32, Access)]) -> Draft {
    let interface = Interface { operands: vec![], n_bases: 0, symbols: false };
    let spec =
        MapSpec { interface, exprs: Exprs::new(), domain: vec![], stores: vec![], per_thread: 1, wg: 1, turned: None };
    let uses = values.iter().map(|&(v, access)| Use { place: Place::Value(ValueId(v)), dtype: DType::F32, access });
    Draft {
        spec: KernelSpec::Map(spec),
        uses: uses.collect(),
        result: ValueId(values[values.len() - 1].0),
        nodes: vec![],
        cost: Cost { flops: 0.0, bytes: 0.0 },
        slow: vec![],
        binding: None,
        parts: vec![],
        layer: None,
        tile: None,
    }
}

fn from_to(reads: &[u32], write: u32) -> Draft {
    let mut values: Vec<(u32, Access)> = reads.iter().map(|&v| (v, Access::Read)).collect();
    values.push((write, Access::Write));
    draft(&values)
}

fn results(drafts: &[Draft]) -> Vec<u32> {
    drafts.iter().map(|d| d.result.0).collect()
}

fn n_waves(drafts: &[Draft]) -> usize {
    count(&drafts.iter().collect::<Vec<_>>())
}

#[test]
fn two_chains_run_side_by_side() {
    // 0 → 1 → 2 → 3 and 0 → 11 → 12 → 13, one after the other; 20 joins them.
    let drafts = vec![
        from_to(&[0], 1),
        from_to(&[1], 2),
        from_to(&[2], 3),
        from_to(&[0], 11),
        from_to(&[11], 12),
        from_to(&[12], 13),
        from_to(&[3, 13], 20),
    ];
    assert_eq!((n_waves(&drafts), longest_chain(&drafts)), (6, 4));
    let ordered = order(drafts, &|_| 100);
    assert_eq!(n_waves(&ordered), 4);
    assert_eq!(results(&ordered), [1, 11, 2, 12, 3, 13, 20]);
    assert_eq!(of(&ordered), [(0, 1), (0, 1), (2, 3), (2, 3), (4, 5), (4, 5), (6, 6)]);
}

#[test]
fn an_order_that_needs_more_memory_is_not_taken() {
    // Both chains go through something large, of which one fits at a time.
    let drafts = vec![from_to(&[0], 1), from_to(&[1], 2), from_to(&[0], 11), from_to(&[11], 12), from_to(&[2, 12], 20)];
    let large = |u: Use| if matches!(u.place, Place::Value(ValueId(1 | 11))) { 1000 } else { 1 };
    assert_eq!(results(&order(drafts.clone(), &large)), [1, 2, 11, 12, 20]);
    assert_eq!(n_waves(&order(drafts, &|_| 1)), 3);
}

#[test]
fn parts_of_a_value_are_written_together_and_read_after_all_of_them() {
    let drafts = vec![from_to(&[0], 5), from_to(&[1], 5), from_to(&[5], 6), from_to(&[2], 7)];
    let ordered = order(drafts, &|_| 0);
    assert_eq!(n_waves(&ordered), 2);
    let at = |v: u32| results(&ordered).iter().position(|r| *r == v).expect("there");
    assert!(at(6) > 1, "{:?}", results(&ordered));
}

#[test]
fn what_is_read_and_written_keeps_its_place() {
    let both = [(5, Access::ReadWrite)];
    let drafts = vec![from_to(&[0], 5), from_to(&[5], 6), draft(&both), from_to(&[5], 7), draft(&both)];
    assert_eq!(results(&order(drafts.clone(), &|_| 8)), results(&drafts));
}
