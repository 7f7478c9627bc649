//! Reductions over dimensions, kept as size 1.

use super::tensor::{Data, Tensor, lines, offsets, strides};
use crate::ir::ty::DType;
use jvc_kernels::spec::Combine;

pub(super) fn reduce(x: &Tensor, combine: Combine, dims: &[usize], dtype: DType) -> Data {
    if matches!(combine, Combine::ArgMax | Combine::ArgMin) {
        return Data::Int(arg_positions(x, combine, dims[0]));
    }
    let (n, slots) = slots(&x.shape, dims);
    match (&x.data, dtype.is_float()) {
        (Data::Int(v), false) => Data::Int(fold(v, &slots, n, int_start(combine, x.dtype), |a, b| int(combine, a, b))),
        (data, true) => Data::Float(fold(&data.floats(), &slots, n, float_start(combine), |a, b| float(combine, a, b))),
        (Data::Float(v), false) => {
            let out = fold(v, &slots, n, float_start(combine), |a, b| float(combine, a, b));
            Data::Int(out.into_iter().map(|v| v as i64).collect())
        }
    }
}

/// Number of results, and for each element of `shape` the result that it belongs to.
pub(super) fn slots(shape: &[usize], dims: &[usize]) -> (usize, Vec<usize>) {
    let mut kept = shape.to_vec();
    dims.iter().for_each(|&d| kept[d] = 1);
    let mut by: Vec<isize> = strides(&kept).iter().map(|&s| s as isize).collect();
    dims.iter().for_each(|&d| by[d] = 0);
    (kept.iter().product(), offsets(shape, 0, &by))
}

fn fold<T: Copy>(v: &[T], slots: &[usize], n: usize, start: T, f: impl Fn(T, T) -> T) -> Vec<T> {
    let mut out = vec![start; n];
    for (&x, &s) in v.iter().zip(slots) {
        out[s] = f(out[s], x);
    }
    out
}

fn float_start(combine: Combine) -> f64 {
    match combine {
        Combine::Sum | Combine::Any => 0.0,
        Combine::Prod | Combine::All => 1.0,
        Combine::Max | Combine::ArgMax => f64::NEG_INFINITY,
        Combine::Min | Combine::ArgMin => f64::INFINITY,
    }
}

fn int_start(combine: Combine, dtype: DType) -> i64 {
    let (low, high) = match dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, i64::from(u8::MAX)),
        DType::I8 => (i64::from(i8::MIN), i64::from(i8::MAX)),
        DType::I16 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::I64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => (i64::MIN, i64::MAX),
    };
    match combine {
        Combine::Sum | Combine::Any => 0,
        Combine::Prod | Combine::All => 1,
        Combine::Max | Combine::ArgMax => low,
        Combine::Min | Combine::ArgMin => high,
    }
}

/// Larger of two; NaN if either is.
pub(super) fn max(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Smaller of two; NaN if either is.
pub(super) fn min(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

/// Combines two floats.
pub(super) fn float(combine: Combine, a: f64, b: f64) -> f64 {
    match combine {
        Combine::Sum => a + b,
        Combine::Prod => a * b,
        Combine::Max | Combine::ArgMax => max(a, b),
        Combine::Min | Combine::ArgMin => min(a, b),
        Combine::Any => f64::from(u8::from(a != 0.0 || b != 0.0)),
        Combine::All => f64::from(u8::from(a != 0.0 && b != 0.0)),
    }
}

/// Combines two integers, wrapping.
pub(super) fn int(combine: Combine, a: i64, b: i64) -> i64 {
    match combine {
        Combine::Sum => a.wrapping_add(b),
        Combine::Prod => a.wrapping_mul(b),
        Combine::Max | Combine::ArgMax => a.max(b),
        Combine::Min | Combine::ArgMin => a.min(b),
        Combine::Any => i64::from(a != 0 || b != 0),
        Combine::All => i64::from(a != 0 && b != 0),
    }
}

/// Position of the first extreme along `dim`; the first NaN counts as the extreme.
fn arg_positions(x: &Tensor, combine: Combine, dim: usize) -> Vec<i64> {
    let (outer, len, inner) = lines(&x.shape, dim);
    let sign = if combine == Combine::ArgMax { 1 } else { -1 };
    let better = |i: usize, j: usize| match &x.data {
        Data::Float(v) if v[j].is_nan() => false,
        Data::Float(v) => v[i].is_nan() || (if sign > 0 { v[i] > v[j] } else { v[i] < v[j] }),
        Data::Int(v) => {
            if sign > 0 {
                v[i] > v[j]
            } else {
                v[i] < v[j]
            }
        }
    };
    let mut out = Vec::with_capacity(outer * inner);
    for o in 0..outer {
        for i in 0..inner {
            let at = |k: usize| (o * len + k) * inner + i;
            let best = (1..len).fold(0, |best, k| if better(at(k), at(best)) { k } else { best });
            out.push(best as i64);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_takes_first_of_ties_and_first_nan() {
        let x = Tensor::from_f64(DType::F32, &[2, 4], vec![1.0, 3.0, 3.0, 0.0, 1.0, f64::NAN, 9.0, f64::NAN]);
        assert_eq!(reduce(&x, Combine::ArgMax, &[1], DType::I64), Data::Int(vec![1, 1]));
    }

    #[test]
    fn sums_over_two_separate_dimensions() {
        let x = Tensor::from_i64(DType::I64, &[2, 2, 2], vec![1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(reduce(&x, Combine::Sum, &[0, 2], DType::I64), Data::Int(vec![1 + 2 + 5 + 6, 3 + 4 + 7 + 8]));
    }

    #[test]
    fn maximum_of_nothing_is_the_smallest() {
        let x = Tensor::from_f64(DType::F32, &[0, 2], vec![]);
        assert_eq!(reduce(&x, Combine::Max, &[0], DType::F32), Data::Float(vec![f64::NEG_INFINITY; 2]));
    }
}
