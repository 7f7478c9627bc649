//! Scatter: writes source elements at computed coordinates, in row-major order of the source.

use super::movement::step;
use super::reduce::{max, min};
use super::tensor::{Data, Tensor, strides};
use jvc_kernels::spec::ScatterMode;

/// `base, index × n, src`.
pub(super) fn scatter(args: &[&Tensor], dims: &[usize], mode: ScatterMode) -> Data {
    let (base, src) = (args[0], args[args.len() - 1]);
    let indices: Vec<&[i64]> = args[1..args.len() - 1].iter().map(|t| t.ints()).collect();
    let targets = targets(base, &src.shape, dims, &indices);
    match (&base.data, &src.data) {
        (Data::Int(b), Data::Int(s)) => Data::Int(write(b, s, &targets, |a, b| match mode {
            ScatterMode::Set => b,
            ScatterMode::Add => a.wrapping_add(b),
            ScatterMode::Mul => a.wrapping_mul(b),
            ScatterMode::Max => a.max(b),
            ScatterMode::Min => a.min(b),
        })),
        _ => Data::Float(write(base.floats(), src.floats(), &targets, |a: f64, b: f64| match mode {
            ScatterMode::Set => b,
            ScatterMode::Add => a + b,
            ScatterMode::Mul => a * b,
            ScatterMode::Max => max(a, b),
            ScatterMode::Min => min(a, b),
        })),
    }
}

/// Offset in base of each source element; `None` where an index is out of range.
fn targets(base: &Tensor, src: &[usize], dims: &[usize], indices: &[&[i64]]) -> Vec<Option<usize>> {
    let by = strides(&base.shape);
    let mut coord = vec![0usize; src.len()];
    let n: usize = src.iter().product();
    let mut out = Vec::with_capacity(n);
    #[expect(
        clippy::needless_range_loop,
        reason = "`at` numbers the source's elements; the index lists are looked up by it"
    )]
    for at in 0..n {
        let target = |d: usize| match dims.iter().position(|&x| x == d) {
            Some(k) => indices[k][at],
            None => coord[d] as i64,
        };
        let inside = (0..src.len()).all(|d| (0..base.shape[d] as i64).contains(&target(d)));
        out.push(inside.then(|| (0..src.len()).map(|d| target(d) as usize * by[d]).sum()));
        step(&mut coord, src);
    }
    out
}

fn write<T: Copy>(base: &[T], src: &[T], targets: &[Option<usize>], f: impl Fn(T, T) -> T) -> Vec<T> {
    let mut out = base.to_vec();
    for (&s, target) in src.iter().zip(targets) {
        if let Some(t) = *target {
            out[t] = f(out[t], s);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;

    #[test]
    fn last_write_stays_and_out_of_range_writes_nothing() {
        let i64s = |v: &[i64]| Tensor::from_i64(DType::I64, &[v.len()], v.to_vec());
        let (base, index, src) = (i64s(&[0, 0, 0]), i64s(&[1, 1, 3]), i64s(&[5, 6, 7]));
        assert_eq!(scatter(&[&base, &index, &src], &[0], ScatterMode::Set), Data::Int(vec![0, 6, 0]));
        assert_eq!(scatter(&[&base, &index, &src], &[0], ScatterMode::Add), Data::Int(vec![0, 11, 0]));
    }
}
