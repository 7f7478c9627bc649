//! Cumulative operations along a dimension.

use super::reduce::{float, int};
use super::tensor::{Data, Tensor, lines};
use jvc_kernels::spec::Combine;

/// Running results, and for `Max`/`Min` the position of the last element equal to them; not those of the first places that are skipped.
pub(super) fn scan(x: &Tensor, combine: Combine, dim: usize, skip: usize) -> Vec<Data> {
    let shape = lines(&x.shape, dim);
    let extreme = matches!(combine, Combine::Max | Combine::Min);
    let (values, positions) = match &x.data {
        Data::Float(v) => {
            let keeps = |old: f64, new: f64| float(combine, old, new).to_bits() != new.to_bits() && !new.is_nan();
            let (v, p) = run(v, shape, |a, b| float(combine, a, b), keeps);
            (Data::Float(kept(v, shape, skip)), p)
        }
        Data::Int(v) => {
            let (v, p) = run(v, shape, |a, b| int(combine, a, b), |old, new| int(combine, old, new) != new);
            (Data::Int(kept(v, shape, skip)), p)
        }
    };
    let mut out = vec![values];
    if extreme {
        out.push(Data::Int(kept(positions, shape, skip)));
    }
    out
}

fn kept<T: Copy>(v: Vec<T>, (_, len, inner): (usize, usize, usize), skip: usize) -> Vec<T> {
    if skip == 0 { v } else { v.chunks(len * inner).flat_map(|line| line[skip * inner..].to_vec()).collect() }
}

fn run<T: Copy>(
    v: &[T],
    (outer, len, inner): (usize, usize, usize),
    f: impl Fn(T, T) -> T,
    keeps: impl Fn(T, T) -> bool,
) -> (Vec<T>, Vec<i64>) {
    let (mut out, mut positions) = (v.to_vec(), vec![0; v.len()]);
    for o in 0..outer {
        for i in 0..inner {
            for k in 1..len {
                let (at, before) = ((o * len + k) * inner + i, (o * len + k - 1) * inner + i);
                positions[at] = if keeps(out[before], v[at]) { positions[before] } else { k as i64 };
                out[at] = f(out[before], v[at]);
            }
        }
    }
    (out, positions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;

    #[test]
    fn cummax_reports_the_last_of_ties_and_the_last_nan() {
        let x = Tensor::from_f64(DType::F32, &[6], vec![1.0, 3.0, 3.0, f64::NAN, 5.0, f64::NAN]);
        assert_eq!(scan(&x, Combine::Max, 0, 0)[1], Data::Int(vec![0, 1, 2, 3, 3, 5]));
    }

    #[test]
    fn cumsum_runs_along_the_given_dimension() {
        let x = Tensor::from_i64(DType::I64, &[2, 2], vec![1, 2, 3, 4]);
        assert_eq!(scan(&x, Combine::Sum, 0, 0)[0], Data::Int(vec![1, 2, 4, 6]));
        assert_eq!(scan(&x, Combine::Sum, 0, 1)[0], Data::Int(vec![4, 6]), "what is skipped counts");
        assert_eq!(scan(&x, Combine::Sum, 1, 1)[0], Data::Int(vec![3, 7]));
    }
}
