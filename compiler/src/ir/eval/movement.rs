//! Movement: the same elements elsewhere.

use super::EvalError;
use super::tensor::{Data, Tensor, broadcast_strides, offsets, strides};

pub(super) fn permute(x: &Tensor, perm: &[usize]) -> Data {
    let s = strides(&x.shape);
    let shape: Vec<usize> = perm.iter().map(|&d| x.shape[d]).collect();
    let by: Vec<isize> = perm.iter().map(|&d| s[d] as isize).collect();
    x.data.pick(&offsets(&shape, 0, &by))
}

/// `(start, step)` along `dim`; the output shape says how many.
pub(super) fn slice(
    what: &str,
    x: &Tensor,
    dim: usize,
    (start, step): (usize, usize),
    shape: &[usize],
) -> Result<Data, EvalError> {
    if shape[dim] > 0 && start + (shape[dim] - 1) * step >= x.shape[dim] {
        let index = vec![(start + (shape[dim] - 1) * step) as i64];
        return Err(EvalError::OutOfRange { what: what.to_string(), operand: 0, shape: x.shape.clone(), index });
    }
    let s = strides(&x.shape);
    let mut by: Vec<isize> = s.iter().map(|&v| v as isize).collect();
    by[dim] *= step as isize;
    Ok(x.data.pick(&offsets(shape, (start * s[dim]) as isize, &by)))
}

pub(super) fn pad(x: &Tensor, before: &[i64], value: f64, shape: &[usize]) -> Data {
    match &x.data {
        Data::Float(v) => Data::Float(pad_values(v, &x.shape, before, value, shape)),
        Data::Int(v) => Data::Int(pad_values(v, &x.shape, before, value as i64, shape)),
    }
}

fn pad_values<T: Copy>(v: &[T], from: &[usize], before: &[i64], fill: T, shape: &[usize]) -> Vec<T> {
    let s = strides(from);
    let mut out = Vec::with_capacity(shape.iter().product());
    let mut coord = vec![0usize; shape.len()];
    for _ in 0..shape.iter().product::<usize>() {
        let mut at = Some(0usize);
        for d in 0..shape.len() {
            let i = coord[d] as i64 - before[d];
            at = at.filter(|_| i >= 0 && (i as usize) < from[d]).map(|a| a + i as usize * s[d]);
        }
        out.push(at.map_or(fill, |a| v[a]));
        step(&mut coord, shape);
    }
    out
}

/// The next coordinate in row-major order.
pub(super) fn step(coord: &mut [usize], shape: &[usize]) {
    for d in (0..shape.len()).rev() {
        coord[d] += 1;
        if coord[d] < shape[d] {
            return;
        }
        coord[d] = 0;
    }
}

pub(super) fn concat(args: &[&Tensor], dim: usize) -> Data {
    let outer: usize = args[0].shape[..dim].iter().product();
    let runs: Vec<usize> = args.iter().map(|t| t.shape[dim..].iter().product()).collect();
    match &args[0].data {
        Data::Float(_) => {
            let parts = args.iter().map(|t| t.floats()).collect::<Vec<_>>();
            Data::Float(interleave(&parts, &runs, outer))
        }
        Data::Int(_) => {
            let parts = args.iter().map(|t| t.ints()).collect::<Vec<_>>();
            Data::Int(interleave(&parts, &runs, outer))
        }
    }
}

fn interleave<T: Copy>(parts: &[&[T]], runs: &[usize], outer: usize) -> Vec<T> {
    let mut out = Vec::with_capacity(outer * runs.iter().sum::<usize>());
    for o in 0..outer {
        for (part, &run) in parts.iter().zip(runs) {
            out.extend_from_slice(&part[o * run..(o + 1) * run]);
        }
    }
    out
}

pub(super) fn broadcast(x: &Tensor, shape: &[usize]) -> Data {
    x.data.pick(&offsets(shape, 0, &broadcast_strides(&x.shape)))
}

pub(super) fn flip(x: &Tensor, dims: &[usize]) -> Data {
    let mut by: Vec<isize> = strides(&x.shape).iter().map(|&s| s as isize).collect();
    let mut base = 0;
    for &d in dims {
        base += (x.shape[d] as isize - 1) * by[d];
        by[d] = -by[d];
    }
    x.data.pick(&offsets(&x.shape, base, &by))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;

    fn iota(shape: &[usize]) -> Tensor {
        Tensor::from_i64(DType::I64, shape, (0..shape.iter().product::<usize>() as i64).collect())
    }

    #[test]
    fn permute_moves_element_to_permuted_coordinate() {
        let x = iota(&[2, 3, 4]);
        let Data::Int(y) = permute(&x, &[2, 0, 1]) else { panic!("integers") };
        for (i, j, k) in (0..2).flat_map(|i| (0..3).flat_map(move |j| (0..4).map(move |k| (i, j, k)))) {
            assert_eq!(y[(k * 2 + i) * 3 + j], (i * 12 + j * 4 + k) as i64, "element {i},{j},{k}");
        }
    }

    #[test]
    fn negative_padding_crops() {
        assert_eq!(pad(&iota(&[5]), &[-1], 9.0, &[6]), Data::Int(vec![1, 2, 3, 4, 9, 9]));
    }

    #[test]
    fn flip_of_two_dimensions_reverses_all() {
        assert_eq!(flip(&iota(&[2, 3]), &[0, 1]), Data::Int(vec![5, 4, 3, 2, 1, 0]));
    }

    #[test]
    fn slice_beyond_the_end_is_an_error() {
        assert_eq!(slice("v", &iota(&[5]), 0, (1, 2), &[2]), Ok(Data::Int(vec![1, 3])));
        assert!(slice("v", &iota(&[5]), 0, (1, 2), &[3]).is_err(), "index 5 of 5");
    }
}
