//! Which axis walks through memory: a hint for who loads what, never needed for correctness.

use crate::eval::{Env, Tape, Value};
use crate::expr::{Expr, ExprId, Exprs};

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
}
