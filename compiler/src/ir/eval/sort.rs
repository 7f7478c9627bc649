//! Stable sort along a dimension.

use super::tensor::{Data, Tensor, lines};
use std::cmp::Ordering;

/// The first `keep` values and their i64 positions. NaN is the largest.
pub(super) fn sort(x: &Tensor, dim: usize, descending: bool, keep: usize) -> Vec<Data> {
    let (outer, len, inner) = lines(&x.shape, dim);
    let compare = |i: usize, j: usize| {
        let order = match &x.data {
            Data::Float(v) => nan_largest(v[i], v[j]),
            Data::Int(v) => v[i].cmp(&v[j]),
        };
        if descending { order.reverse() } else { order }
    };
    let n_kept = outer * keep * inner;
    let (mut from, mut positions) = (vec![0; n_kept], vec![0; n_kept]);
    for o in 0..outer {
        for i in 0..inner {
            let at = |k: usize| (o * len + k) * inner + i;
            let mut order: Vec<usize> = (0..len).collect();
            order.sort_by(|&a, &b| compare(at(a), at(b)));
            for (k, &source) in order.iter().take(keep).enumerate() {
                let to = (o * keep + k) * inner + i;
                from[to] = at(source);
                positions[to] = source as i64;
            }
        }
    }
    vec![x.data.pick(&from), Data::Int(positions)]
}

fn nan_largest(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;

    #[test]
    fn ties_keep_their_order_in_both_directions_and_nan_is_largest() {
        let x = Tensor::from_f64(DType::F32, &[5], vec![2.0, f64::NAN, 1.0, 2.0, 1.0]);
        assert_eq!(sort(&x, 0, false, 5)[1], Data::Int(vec![2, 4, 0, 3, 1]));
        assert_eq!(sort(&x, 0, true, 5)[1], Data::Int(vec![1, 0, 3, 2, 4]));
        assert_eq!(sort(&x, 0, true, 2)[1], Data::Int(vec![1, 0]), "the first places alone");
    }
}
