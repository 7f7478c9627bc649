//! Batched matrix product.

use super::tensor::{Data, Tensor, broadcast_strides, offsets};

pub(super) fn matmul(a: &Tensor, b: &Tensor, shape: &[usize]) -> Data {
    let r = shape.len();
    let (m, n, k) = (shape[r - 2], shape[r - 1], a.shape[r - 1]);
    let lhs = batch_starts(a, &shape[..r - 2], m * k);
    let rhs = batch_starts(b, &shape[..r - 2], k * n);
    match (&a.data, &b.data) {
        (Data::Int(x), Data::Int(y)) => {
            Data::Int(products(x, y, &lhs, &rhs, (m, n, k), |s: i64, x, y| s.wrapping_add(x.wrapping_mul(y))))
        }
        _ => Data::Float(products(a.floats(), b.floats(), &lhs, &rhs, (m, n, k), |s: f64, x, y| s + x * y)),
    }
}

/// Offset of each batch's matrix of `size` elements.
fn batch_starts(t: &Tensor, batch: &[usize], size: usize) -> Vec<usize> {
    let strides = broadcast_strides(&t.shape[..batch.len()]);
    offsets(batch, 0, &strides).into_iter().map(|o| o * size).collect()
}

fn products<T: Copy + Default>(
    x: &[T],
    y: &[T],
    lhs: &[usize],
    rhs: &[usize],
    (m, n, k): (usize, usize, usize),
    add_product: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let mut out = vec![T::default(); lhs.len() * m * n];
    for (batch, (&a, &b)) in lhs.iter().zip(rhs).enumerate() {
        for i in 0..m {
            let row = &mut out[(batch * m + i) * n..(batch * m + i + 1) * n];
            for (l, &x) in x[a + i * k..a + (i + 1) * k].iter().enumerate() {
                let line = &y[b + l * n..b + (l + 1) * n];
                row.iter_mut().zip(line).for_each(|(s, &y)| *s = add_product(*s, x, y));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;

    #[test]
    fn batch_of_one_is_broadcast() {
        let a = Tensor::from_i64(DType::I64, &[2, 1, 2], vec![1, 2, 3, 4]);
        let b = Tensor::from_i64(DType::I64, &[1, 2, 1], vec![10, 1]);
        assert_eq!(matmul(&a, &b, &[2, 1, 1]), Data::Int(vec![12, 34]));
    }

    #[test]
    fn empty_inner_dimension_gives_zeros() {
        let a = Tensor::from_f64(DType::F32, &[2, 0], vec![]);
        let b = Tensor::from_f64(DType::F32, &[0, 3], vec![]);
        assert_eq!(matmul(&a, &b, &[2, 3]), Data::Float(vec![0.0; 6]));
    }
}
