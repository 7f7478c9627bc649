//! Attention: scores, mask, softmax over the keys, weighted sum of the values.

use super::reduce::max;
use super::tensor::{Data, Tensor, broadcast_strides, offsets};

pub(super) fn attention(args: &[&Tensor], scale: f64, causal: bool, zero_masked_rows: bool) -> Data {
    let f = args[2].shape[3];
    let mut out = vec![];
    for_each_row(args, scale, causal, |_, scores, values| {
        out.extend(weighted_sum(scores, values, f, zero_masked_rows))
    });
    Data::Float(out)
}

/// Parts of the keys: what `attention` gives for each, and the logarithm of what it divides by.
pub(super) fn attention_parts(args: &[&Tensor], scale: f64, parts: usize, len: usize) -> Data {
    let [_, _, i, _] = dims4(args[0]);
    let f = args[2].shape[3];
    let mut out = vec![0.0; args[0].shape[0] * args[0].shape[1] * parts * i * (f + 1)];
    for_each_row(args, scale, false, |(head, row), scores, values| {
        for part in 0..parts {
            let [start, end] = [part * len, (part + 1) * len].map(|at| at.min(scores.len()));
            let own = &scores[start..end];
            let to = ((head * parts + part) * i + row) * (f + 1);
            out[to..to + f].copy_from_slice(&weighted_sum(own, &values[start * f..end * f], f, true));
            let top = own.iter().fold(f64::NEG_INFINITY, |m, &s| max(m, s));
            let sum: f64 = own.iter().map(|s| (s - top).exp()).sum();
            out[to + f] = if top == f64::NEG_INFINITY { top } else { top + sum.ln() };
        }
    });
    Data::Float(out)
}

/// `visit((head, row), scores, values)` for each query.
fn for_each_row(args: &[&Tensor], scale: f64, causal: bool, mut visit: impl FnMut((usize, usize), &[f64], &[f64])) {
    let (q, k, v) = (args[0], args[1], args[2]);
    let [b, h, i, e] = dims4(q);
    let (j, f) = (k.shape[2], v.shape[3]);
    let mask = args.get(3).map(|m| additive(m, &[b, h, i, j]));
    let (q, k, v) = (q.floats(), k.floats(), v.floats());
    for head in 0..b * h {
        for row in 0..i {
            let query = &q[(head * i + row) * e..][..e];
            let score = |col: usize| {
                if causal && col > row {
                    return f64::NEG_INFINITY;
                }
                let key = &k[(head * j + col) * e..][..e];
                let dot: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                dot * scale + mask.as_ref().map_or(0.0, |m| m[(head * i + row) * j + col])
            };
            let scores: Vec<f64> = (0..j).map(score).collect();
            visit((head, row), &scores, &v[head * j * f..][..j * f]);
        }
    }
}

fn dims4(t: &Tensor) -> [usize; 4] {
    [t.shape[0], t.shape[1], t.shape[2], t.shape[3]]
}

/// The mask at every score, as something to add.
fn additive(mask: &Tensor, scores: &[usize]) -> Vec<f64> {
    let at = offsets(scores, 0, &broadcast_strides(&mask.shape));
    match &mask.data {
        Data::Float(v) => at.iter().map(|&o| v[o]).collect(),
        Data::Int(v) => at.iter().map(|&o| if v[o] != 0 { 0.0 } else { f64::NEG_INFINITY }).collect(),
    }
}

/// `softmax(scores) · values`.
fn weighted_sum(scores: &[f64], values: &[f64], f: usize, zero_masked_rows: bool) -> Vec<f64> {
    let top = scores.iter().fold(f64::NEG_INFINITY, |m, &s| max(m, s));
    if top == f64::NEG_INFINITY && zero_masked_rows {
        return vec![0.0; f];
    }
    let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; f];
    for (w, value) in weights.iter().zip(values.chunks(f.max(1))) {
        out.iter_mut().zip(value).for_each(|(o, v)| *o += w / sum * v);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;

    fn t(shape: &[usize], v: &[f64]) -> Tensor {
        Tensor::from_f64(DType::F32, shape, v.to_vec())
    }

    #[test]
    fn causal_row_zero_sees_only_the_first_value() {
        let (q, v) = (t(&[1, 1, 2, 1], &[1.0, 0.0]), t(&[1, 1, 2, 1], &[3.0, 5.0]));
        assert_eq!(attention(&[&q, &q, &v], 1.0, true, true), Data::Float(vec![3.0, 4.0]));
    }

    #[test]
    fn fully_masked_row_is_zero_or_nan_as_asked() {
        let (q, v) = (t(&[1, 1, 1, 1], &[1.0]), t(&[1, 1, 1, 1], &[3.0]));
        let mask = Tensor::from_i64(DType::Bool, &[1, 1, 1, 1], vec![0]);
        assert_eq!(attention(&[&q, &q, &v, &mask], 1.0, false, true), Data::Float(vec![0.0]));
        let Data::Float(y) = attention(&[&q, &q, &v, &mask], 1.0, false, false) else { panic!("floats") };
        assert!(y[0].is_nan(), "softmax of nothing");
    }
}
