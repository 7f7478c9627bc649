//! Complex Fourier transform along the last dimension, unnormalised: recursion over the prime factors of the length.

use super::tensor::{Data, Tensor};
use std::f64::consts::TAU;

type Complex = (f64, f64);

pub(super) fn fft(re: &Tensor, im: &Tensor, inverse: bool) -> Vec<Data> {
    let n = *re.shape.last().expect("fft has a last dimension");
    let sign = if inverse { 1.0 } else { -1.0 };
    let roots: Vec<Complex> =
        (0..n).map(|i| (sign * TAU * i as f64 / n as f64).sin_cos()).map(|(s, c)| (c, s)).collect();
    let (mut out_re, mut out_im) = (vec![], vec![]);
    for (r, i) in re.floats().chunks(n.max(1)).zip(im.floats().chunks(n.max(1))) {
        let line: Vec<Complex> = r.iter().copied().zip(i.iter().copied()).collect();
        for (a, b) in transform(&line, &roots) {
            out_re.push(a);
            out_im.push(b);
        }
    }
    vec![Data::Float(out_re), Data::Float(out_im)]
}

fn mul(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

/// `roots` are those of the whole length; a part of length n uses every (N/n)-th.
fn transform(x: &[Complex], roots: &[Complex]) -> Vec<Complex> {
    let n = x.len();
    let Some(p) = (2..=n).find(|p| n.is_multiple_of(*p)) else { return x.to_vec() };
    let parts: Vec<Vec<Complex>> =
        (0..p).map(|r| transform(&x.iter().skip(r).step_by(p).copied().collect::<Vec<_>>(), roots)).collect();
    let every = roots.len() / n;
    (0..n)
        .map(|k| {
            parts.iter().enumerate().fold((0.0, 0.0), |sum: Complex, (r, part)| {
                let t = mul(part[k % (n / p)], roots[r * k % n * every]);
                (sum.0 + t.0, sum.1 + t.1)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ty::DType;

    #[test]
    fn equals_the_definition_for_composite_and_prime_lengths() {
        for n in [1usize, 2, 7, 12, 30] {
            let re = Tensor::from_f64(DType::F64, &[n], (0..n).map(|i| (i * i % 11) as f64).collect());
            let im = Tensor::from_f64(DType::F64, &[n], (0..n).map(|i| (i * 3 % 5) as f64 - 2.0).collect());
            let out = fft(&re, &im, false);
            let (Data::Float(a), Data::Float(b)) = (&out[0], &out[1]) else { panic!("floats") };
            for k in 0..n {
                let terms = (0..n).map(|j| {
                    let (s, c) = (-TAU * (j * k % n) as f64 / n as f64).sin_cos();
                    mul((re.floats()[j], im.floats()[j]), (c, s))
                });
                let (x, y) = terms.fold((0.0, 0.0), |(x, y), (a, b)| (x + a, y + b));
                assert!((x - a[k]).abs() + (y - b[k]).abs() < 1e-9, "n={n} k={k}");
            }
        }
    }
}
