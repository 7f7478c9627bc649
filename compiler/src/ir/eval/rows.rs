//! Softmax, normalisation and variance: several passes over the same elements.

use super::reduce::{max, slots};
use super::tensor::{Data, Tensor, lines};
use crate::ir::ty::DType;

pub(super) fn softmax(x: &Tensor, dim: usize, log: bool) -> Data {
    let v = x.floats();
    let (outer, len, inner) = lines(&x.shape, dim);
    let mut out = vec![0.0; v.len()];
    for o in 0..outer {
        for i in 0..inner {
            let at = |k: usize| (o * len + k) * inner + i;
            let top = (0..len).fold(f64::NEG_INFINITY, |m, k| max(m, v[at(k)]));
            let sum: f64 = (0..len).map(|k| (v[at(k)] - top).exp()).sum();
            for k in 0..len {
                let shifted = v[at(k)] - top;
                out[at(k)] = if log { shifted - sum.ln() } else { shifted.exp() / sum };
            }
        }
    }
    Data::Float(out)
}

/// Σ f(x, slot) per result slot.
fn sums(v: &[f64], slots: &[usize], n: usize, f: impl Fn(f64, usize) -> f64) -> Vec<f64> {
    let mut out = vec![0.0; n];
    v.iter().zip(slots).for_each(|(&x, &s)| out[s] += f(x, s));
    out
}

pub(super) fn norm(x: &Tensor, dims: &[usize], eps: f64, rms: bool) -> Data {
    let v = x.floats();
    let (n, slots) = slots(&x.shape, dims);
    let count: usize = dims.iter().map(|&d| x.shape[d]).product();
    let mean: Vec<f64> =
        if rms { vec![0.0; n] } else { sums(v, &slots, n, |x, _| x).iter().map(|s| s / count as f64).collect() };
    let squares = sums(v, &slots, n, |x, s| (x - mean[s]).powi(2));
    let scale: Vec<f64> = squares.iter().map(|q| 1.0 / (q / count as f64 + eps).sqrt()).collect();
    Data::Float(v.iter().zip(&slots).map(|(&x, &s)| (x - mean[s]) * scale[s]).collect())
}

pub(super) fn variance(x: &Tensor, dims: &[usize], correction: f64) -> Data {
    let v = x.floats();
    let (n, slots) = slots(&x.shape, dims);
    let count = dims.iter().map(|&d| x.shape[d]).product::<usize>() as f64;
    let mean: Vec<f64> = sums(v, &slots, n, |x, _| x).iter().map(|s| s / count).collect();
    let squares = sums(v, &slots, n, |x, s| (x - mean[s]).powi(2));
    // PyTorch divides by max(0, n − correction): nothing left gives inf or NaN, never a negative variance.
    Data::Float(squares.into_iter().map(|q| q / (count - correction).max(0.0)).collect())
}

/// Mean, squares about it and the mean's rest of the last dimension; triples stand for so many elements each.
pub(super) fn moments(x: &Tensor, each: Option<i64>, eps: Option<f64>) -> Data {
    let v = x.floats();
    let (width, kept) = if each.is_some() { (3, x.shape.len() - 2) } else { (1, x.shape.len() - 1) };
    let n = x.shape[kept];
    let rows: usize = x.shape[..kept].iter().product();
    let of_row = |row: usize| {
        let row: Vec<&[f64]> = v[row * n * width..(row + 1) * n * width].chunks(width).collect();
        let means = row.iter().map(|of| of[0] + of.get(2).unwrap_or(&0.0));
        let mean = means.clone().sum::<f64>() / n as f64;
        let between: f64 = means.map(|m| (m - mean).powi(2)).sum::<f64>() * each.unwrap_or(1) as f64;
        let within: f64 = row.iter().filter_map(|of| of.get(1)).sum();
        let squares = between + within;
        let count = n as f64 * each.unwrap_or(1) as f64;
        let first = if x.dtype == DType::F64 { mean } else { f64::from(mean as f32) };
        let rest = if first.is_finite() { mean - first } else { 0.0 };
        [first, eps.map_or(squares, |eps| 1.0 / (squares / count + eps).sqrt()), rest]
    };
    Data::Float((0..rows).flat_map(of_row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_of_large_values_does_not_overflow() {
        let x = Tensor::from_f64(DType::F32, &[1, 2], vec![1000.0, 1000.0]);
        assert_eq!(softmax(&x, 1, false), Data::Float(vec![0.5, 0.5]));
    }

    #[test]
    fn moments_of_parts_are_those_of_the_whole() {
        let values: Vec<f64> = (0..12).map(|i| f64::from(i * i % 7) + 0.25).collect();
        let whole = Tensor::from_f64(DType::F64, &[1, 12], values.clone());
        let parts = Tensor::from_f64(DType::F64, &[1, 3, 4], values);
        let Data::Float(triples) = moments(&parts, None, None) else { panic!("floats") };
        let triples = Tensor::from_f64(DType::F64, &[1, 3, 3], triples);
        let (Data::Float(a), Data::Float(b)) = (moments(&whole, None, None), moments(&triples, Some(4), None)) else {
            panic!("floats")
        };
        let Data::Float(variance) = variance(&whole, &[1], 0.0) else { panic!("floats") };
        assert!((a[0] - b[0]).abs() < 1e-12 && (a[1] - b[1]).abs() < 1e-12, "{a:?} {b:?}");
        assert!((a[1] / 12.0 - variance[0]).abs() < 1e-12, "{a:?} {variance:?}");
    }

    #[test]
    fn a_mean_and_its_rest_are_the_mean() {
        let x = Tensor::from_f64(DType::F32, &[1, 3], vec![1e6, 1e6, 1e6 + 0.0625]);
        let Data::Float(m) = moments(&x, None, None) else { panic!("floats") };
        assert!(m[0] == 1e6 && (m[2] - 0.0625 / 3.0).abs() < 1e-9, "{m:?}");
    }

    #[test]
    fn norm_keeps_a_tiny_eps() {
        let x = Tensor::from_f64(DType::F64, &[1, 2], vec![1e-6, -1e-6]);
        let Data::Float(y) = norm(&x, &[1], 1e-12, false) else { panic!("floats") };
        assert!((y[0] - 0.5f64.sqrt()).abs() < 1e-12, "x/√(1e-12 + 1e-12), got {}", y[0]);
    }
}
