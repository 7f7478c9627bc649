//! Which axis walks through memory: a hint for who loads what, never needed for correctness.

use crate::eval::{Env, Tape, Value};
use crate::expr::{Expr, ExprId, Exprs};
use crate::spec::Extent;
use std::collections::BTreeSet;

/// Coordinates at which indices are compared. Symbol words and argument values do not matter for the hint.
struct Probe {
    axis: u8,
    at: i32,
}

impl Env for Probe {
    fn axis(&self, k: u8) -> i32 {
        if k == self.axis { self.at } else { 2 }
    }
    fn arg(&self, _: u16) -> Value {
        Value::I32(1)
    }
    fn sym(&self, _: u16) -> i32 {
        64
    }
    fn load(&self, _: u16, _: &[i32]) -> Value {
        Value::I32(1)
    }
}

/// How an index moves with an axis, seen at a few places.
#[derive(PartialEq)]
enum Steps {
    None,
    ByOne,
    Otherwise,
}

fn steps(exprs: &Exprs, index: &[ExprId], axis: u8) -> Steps {
    let tape = Tape::new(exprs, index);
    let mut runner = tape.runner();
    let mut at = |at| {
        runner.run(&Probe { axis, at });
        i64::from(runner.get(0).index())
    };
    let places = [1, 2, 3].map(&mut at);
    match (places[1] - places[0], places[2] - places[1]) {
        (0, 0) => Steps::None,
        (1, 1) => Steps::ByOne,
        _ => Steps::Otherwise,
    }
}

/// True when an index goes up by one with `axis`, seen at a few places.
pub(crate) fn is_consecutive_index(exprs: &Exprs, index: ExprId, axis: u8) -> bool {
    let gathers = exprs.reachable(&[index]).iter().any(|&n| matches!(exprs.get(n), Expr::Load { .. }));
    !gathers && steps(exprs, &[index], axis) == Steps::ByOne
}

/// True when an index does not move with `axis`, seen at a few places.
pub(crate) fn is_constant_index(exprs: &Exprs, index: ExprId, axis: u8) -> bool {
    steps(exprs, &[index], axis) == Steps::None
}

/// Neighbours that a subgroup of 32 finds along an axis, at most.
const NEIGHBOURS: u32 = 32;
/// Bytes of a sector, the least that memory gives or takes.
const SECTOR: u32 = 32;

/// How many sectors of memory so many neighbours along an axis lie in, seen at one place, for every [`NEIGHBOURS`] of them.
pub(crate) fn sectors(exprs: &Exprs, index: ExprId, (axis, extent): (u8, Extent), bytes: u32) -> u64 {
    let n = if let Extent::Const(n) = extent { n.clamp(1, NEIGHBOURS) } else { NEIGHBOURS };
    let tape = Tape::new(exprs, &[index]);
    let mut runner = tape.runner();
    let sector = |at: u32| {
        runner.run(&Probe { axis, at: at as i32 });
        i64::from(runner.get(0).index()) * i64::from(bytes) / i64::from(SECTOR)
    };
    let found: BTreeSet<i64> = (0..n).map(sector).collect();
    (found.len() as u64 * u64::from(NEIGHBOURS)).div_ceil(u64::from(n))
}

/// True when the loads that `root` makes by plain index arithmetic go up by one element with `axis`, seen at a few places.
pub(crate) fn is_consecutive(exprs: &Exprs, root: ExprId, axis: u8) -> bool {
    let mut found = false;
    for id in exprs.reachable(&[root]) {
        let Expr::Load { index, .. } = exprs.get(id) else { continue };
        // A gathered index says nothing here.
        let gathers = exprs.reachable(index).iter().any(|&n| matches!(exprs.get(n), Expr::Load { .. }));
        if gathers {
            continue;
        }
        match steps(exprs, index, axis) {
            Steps::None => {}
            Steps::ByOne => found = true,
            Steps::Otherwise => return false,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::expr::Binary;

    #[test]
    fn the_last_axis_of_a_row_major_matrix_is_consecutive() {
        let mut e = Exprs::new();
        let (row, col, width) = (e.axis(0), e.axis(1), e.i32(100));
        let base = e.bin(Binary::Mul, row, width);
        let index = e.bin(Binary::Add, base, col);
        let x = e.load(0, DType::F32, vec![index]);
        assert!(is_consecutive(&e, x, 1), "columns follow one another");
        assert!(!is_consecutive(&e, x, 0), "rows are 100 apart");
    }

    #[test]
    fn neighbours_far_apart_lie_in_many_sectors() {
        let mut e = Exprs::new();
        // Every fourth half of a line; and lines of 100 halves.
        let (row, col, four, width) = (e.axis(0), e.axis(1), e.i32(4), e.i32(100));
        let near = e.bin(Binary::Mul, col, four);
        let far = e.bin(Binary::Mul, row, width);
        let index = e.bin(Binary::Add, far, near);
        let of = |axis, n| sectors(&e, index, (axis, Extent::Const(n)), 2);
        // 32 places of 8 bytes behind two lines are 256 bytes from byte 400 on; alone, each line is another place.
        assert_eq!((of(1, 100), of(0, 100)), (9, 32));
        assert_eq!(of(0, 4), 32, "as many for each of few");
    }
}
