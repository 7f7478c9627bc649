//! Ranges of i32 expressions, so that the emitter knows which numerators are never negative.

use crate::dtype::Ty;
use crate::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use crate::spec::Extent;

/// Closed range of an i32 value, in i64 so that sums do not wrap here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    /// Smallest value.
    pub(crate) low: i64,
    /// Largest value.
    pub(crate) high: i64,
}

const MIN: i64 = i32::MIN as i64;
const MAX: i64 = i32::MAX as i64;

impl Interval {
    const ANY: Interval = Interval { low: MIN, high: MAX };

    /// True if no value is negative.
    pub(crate) fn is_non_negative(self) -> bool {
        self.low >= 0
    }

    /// The range, or anything when a bound leaves 32 bits (the operation may wrap).
    fn wrapping(low: i64, high: i64) -> Interval {
        if low < MIN || high > MAX { Interval::ANY } else { Interval { low, high } }
    }

    fn hull(self, other: Interval) -> Interval {
        Interval { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

/// The range of every node; nodes of other types get [`Interval::ANY`].
pub(crate) fn infer(exprs: &Exprs, axes: &[Extent]) -> Vec<Interval> {
    let mut ranges: Vec<Interval> = Vec::with_capacity(exprs.len());
    for (id, node) in exprs.iter() {
        let range = if exprs.ty(id) == Ty::I32 { infer_node(node, axes, &ranges) } else { Interval::ANY };
        ranges.push(range);
    }
    ranges
}

fn infer_node(node: &Expr, axes: &[Extent], ranges: &[Interval]) -> Interval {
    let of = |id: &ExprId| ranges[id.0 as usize];
    match node {
        Expr::Lit(Lit::I32(v)) => Interval { low: i64::from(*v), high: i64::from(*v) },
        Expr::Axis(k) => {
            let high = match axes.get(usize::from(*k)) {
                Some(Extent::Const(n)) => (i64::from(*n) - 1).max(0),
                _ => MAX,
            };
            Interval { low: 0, high: high.min(MAX) }
        }
        Expr::Sym(_) => Interval { low: 0, high: MAX },
        Expr::Load { dtype: crate::dtype::DType::U8, .. } => Interval { low: 0, high: 255 },
        Expr::Unary(Unary::Neg, a) => Interval::wrapping(-of(a).high, -of(a).low),
        Expr::Select(_, a, b) => of(a).hull(of(b)),
        Expr::Binary(op, a, b) => infer_binary(*op, of(a), of(b)),
        _ => Interval::ANY,
    }
}

fn infer_binary(op: Binary, a: Interval, b: Interval) -> Interval {
    let corners = |f: fn(i64, i64) -> i64| {
        let all = [f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)];
        let low = all.into_iter().fold(i64::MAX, i64::min);
        let high = all.into_iter().fold(i64::MIN, i64::max);
        Interval::wrapping(low, high)
    };
    match op {
        Binary::Add => Interval::wrapping(a.low + b.low, a.high + b.high),
        Binary::Sub => Interval::wrapping(a.low - b.high, a.high - b.low),
        Binary::Mul => corners(|x, y| x * y),
        Binary::Max => Interval { low: a.low.max(b.low), high: a.high.max(b.high) },
        Binary::Min => Interval { low: a.low.min(b.low), high: a.high.min(b.high) },
        Binary::Div if b.low > 0 => corners(|x, y| x / y),
        Binary::Rem if b.low > 0 && a.low >= 0 => Interval { low: 0, high: a.high.min(b.high - 1) },
        Binary::And if a.low >= 0 && b.low >= 0 => Interval { low: 0, high: a.high.min(b.high) },
        Binary::Shr if a.low >= 0 && b.low >= 0 => Interval { low: 0, high: a.high },
        _ => Interval::ANY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_and_remainders_of_axes_stay_in_their_extents() {
        let mut e = Exprs::new();
        let axis = e.axis(0);
        let three = e.i32(3);
        let q = e.bin(Binary::Div, axis, three);
        let r = e.bin(Binary::Rem, axis, three);
        let minus = e.bin(Binary::Sub, q, r);
        let ranges = infer(&e, &[Extent::Const(10)]);
        let of = |id: ExprId| (ranges[id.0 as usize].low, ranges[id.0 as usize].high);
        assert_eq!((of(q), of(r), of(minus)), ((0, 3), (0, 2), (-2, 3)));
    }

    #[test]
    fn a_product_that_may_wrap_is_unknown() {
        let mut e = Exprs::new();
        let axis = e.axis(0);
        let big = e.i32(1 << 20);
        let product = e.bin(Binary::Mul, axis, big);
        let ranges = infer(&e, &[Extent::Const(1 << 20)]);
        assert!(!ranges[product.0 as usize].is_non_negative(), "2^40 wraps");
    }
}
