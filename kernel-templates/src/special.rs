//! Special functions on the host, in f64, by other series than the kernels use.

use std::f64::consts::PI;

/// Error function: Maclaurin's series below 2, the continued fraction of erfc above.
pub(crate) fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    let value = if a < 2.0 { erf_series(a) } else { 1.0 - erfc_fraction(a) };
    value.copysign(x)
}

fn erf_series(a: f64) -> f64 {
    let (mut term, mut sum) = (a, a);
    for n in 1..60 {
        let n = f64::from(n);
        term *= -a * a / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / PI.sqrt()
}

/// erfc(a) = e^(−a²)/√π · 1/(a + ½/(a + 1/(a + 3⁄2/(a + …)))), from the inside out.
fn erfc_fraction(a: f64) -> f64 {
    if a > 30.0 {
        return 0.0;
    }
    let inner = (1..=120).rev().fold(a, |below, k| a + f64::from(k) / 2.0 / below);
    (-a * a).exp() / PI.sqrt() / inner
}

/// ln|Γ(x)|: Stirling's series after moving x to 20 or above, reflection for negative x.
pub(crate) fn lgamma(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x.is_infinite() || (x <= 0.0 && x == x.floor()) {
        return f64::INFINITY;
    }
    if x < 0.0 {
        let rest = x - x.round();
        return (PI / (x * (PI * rest).sin()).abs()).ln() - lgamma(-x);
    }
    let mut y = x;
    let mut product = 1.0;
    while y < 20.0 {
        product *= y;
        y += 1.0;
    }
    let inverse = 1.0 / y;
    let square = inverse * inverse;
    let tail = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)));
    (y - 0.5) * y.ln() - y + 0.5 * (2.0 * PI).ln() + tail - product.ln()
}

/// Inverse hyperbolic cosine by the distance from 1, where the standard library's formula cancels.
pub(crate) fn acosh(x: f64) -> f64 {
    if x < 1.0 {
        return f64::NAN;
    }
    let t = x - 1.0;
    // The square would overflow, and the sum with it.
    if x > 1e8 { x.ln() + std::f64::consts::LN_2 } else { (t + (2.0 * t + t * t).sqrt()).ln_1p() }
}

/// Inverse hyperbolic tangent as an odd function: the standard library's formula cancels near −1.
pub(crate) fn atanh(x: f64) -> f64 {
    let a = x.abs();
    (0.5 * (2.0 * a / (1.0 - a)).ln_1p()).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // Abramowitz and Stegun, tables 7.1 and 6.1.
        for (x, expected) in
            [(0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (2.0, 0.995_322_265_0), (-1.5, -0.966_105_146_5)]
        {
            assert!((erf(x) - expected).abs() < 1e-10, "erf({x}) = {}", erf(x));
        }
        for (x, expected) in
            [(0.5, 0.572_364_942_9), (1.5, -0.120_782_237_6), (10.0, 12.801_827_480_1), (-0.5, 1.265_512_123_5)]
        {
            assert!((lgamma(x) - expected).abs() < 1e-9, "lgamma({x}) = {}", lgamma(x));
        }
    }
}
