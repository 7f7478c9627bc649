//! Numbers: weights as integers of 8 or 4 bits, and how far that is from what they were.

use crate::ir::DType;
use crate::ir::eval::Tensor;
use half::{bf16, f16};

/// Elements of a group of the 4-bit form, along the summed dimension; the last one of a row may be shorter.
pub(super) const GROUP: usize = 32;

/// A weight as three dimensions: the middle one is summed over, the others choose the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) outer: usize,
    pub(super) summed: usize,
    pub(super) inner: usize,
}

impl Layout {
    fn at(self, o: usize, k: usize, i: usize) -> usize {
        (o * self.summed + k) * self.inner + i
    }

    /// Groups of a row.
    pub(super) fn groups(self) -> usize {
        self.summed.div_ceil(GROUP)
    }

    /// Bytes of a row of 4-bit values.
    pub(super) fn pairs(self) -> usize {
        self.summed.div_ceil(2)
    }

    fn rows(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.outer).flat_map(move |o| (0..self.inner).map(move |i| (o, i)))
    }
}

/// A quantised weight.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Encoded {
    /// 8 bits: i8 `[outer, summed, inner]`. 4 bits: u8 `[outer, pairs, inner]`, the element of even place in the low half.
    pub(super) bytes: Vec<u8>,
    /// 8 bits: `[outer, inner]`. 4 bits: `[outer, groups, inner]`.
    pub(super) scales: Vec<f32>,
    /// In the shape of the scales, 0 ..= 15; none in the symmetric form.
    pub(super) zeros: Option<Vec<u8>>,
    /// What the quantisation costs.
    pub(super) error: Error,
}

/// Sums over the elements of a weight, in f64.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Error {
    /// Of the squared differences.
    pub squared: f64,
    /// Of the squared elements.
    pub energy: f64,
}

impl Error {
    /// Root of the mean squared difference over that of the elements; 0 for a weight of zeros.
    pub fn relative(self) -> f64 {
        if self.energy == 0.0 { 0.0 } else { (self.squared / self.energy).sqrt() }
    }

    fn add(&mut self, was: f64, is: f32, dtype: DType) {
        let is = match dtype {
            DType::F16 => f16::from_f32(is).to_f64(),
            DType::BF16 => bf16::from_f32(is).to_f64(),
            _ => f64::from(is),
        };
        self.squared += (was - is) * (was - is);
        self.energy += was * was;
    }
}

impl std::ops::AddAssign for Error {
    fn add_assign(&mut self, other: Error) {
        self.squared += other.squared;
        self.energy += other.energy;
    }
}

/// A step between neighbouring integers, as stored. What is too small for a normal number counts as zero: devices may flush it.
fn step(range: f64, steps: f64) -> Option<f32> {
    let step = (range / steps) as f32;
    step.is_normal().then_some(step)
}

/// Symmetric, one scale for each output: −127 ..= 127.
pub(super) fn int8(w: &Tensor, l: Layout) -> Encoded {
    let values = w.floats();
    let mut out = Encoded {
        bytes: vec![0; values.len()],
        scales: Vec::with_capacity(l.outer * l.inner),
        zeros: None,
        error: Error::default(),
    };
    for (o, i) in l.rows() {
        let largest = (0..l.summed).fold(0.0f64, |m, k| m.max(values[l.at(o, k, i)].abs()));
        let scale = step(largest, 127.0);
        out.scales.push(scale.unwrap_or(1.0));
        for k in 0..l.summed {
            let at = l.at(o, k, i);
            let q = scale.map_or(0.0, |s| (values[at] / f64::from(s)).round_ties_even().clamp(-127.0, 127.0));
            out.bytes[at] = q as i8 as u8;
            out.error.add(values[at], q as f32 * scale.unwrap_or(1.0), w.dtype);
        }
    }
    out
}

/// Asymmetric, a scale and a zero point for each group: 0 ..= 15. Zero is among the values, so that it stays exact.
pub(super) fn int4(w: &Tensor, l: Layout) -> Encoded {
    let values = w.floats();
    let n = l.outer * l.groups() * l.inner;
    let mut zeros = vec![0u8; n];
    let mut out = Encoded {
        bytes: vec![0; l.outer * l.pairs() * l.inner],
        scales: vec![1.0; n],
        zeros: None,
        error: Error::default(),
    };
    for (o, i) in l.rows() {
        for g in 0..l.groups() {
            let places = g * GROUP..l.summed.min((g + 1) * GROUP);
            let (low, high) = places.clone().fold((0.0f64, 0.0f64), |(low, high), k| {
                let v = values[l.at(o, k, i)];
                (low.min(v), high.max(v))
            });
            let scale = step(high - low, 15.0);
            let wide = f64::from(scale.unwrap_or(1.0));
            let zero = if scale.is_some() { (-low / wide).round_ties_even().clamp(0.0, 15.0) } else { 0.0 };
            let at_group = (o * l.groups() + g) * l.inner + i;
            out.scales[at_group] = wide as f32;
            zeros[at_group] = zero as u8;
            for k in places {
                let at = l.at(o, k, i);
                let q =
                    if scale.is_some() { ((values[at] / wide).round_ties_even() + zero).clamp(0.0, 15.0) } else { 0.0 };
                out.bytes[(o * l.pairs() + k / 2) * l.inner + i] |= (q as u8) << (k % 2 * 4);
                out.error.add(values[at], (q - zero) as f32 * wide as f32, w.dtype);
            }
        }
    }
    out.zeros = Some(zeros);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(values: &[f64]) -> (Tensor, Layout) {
        let t = Tensor::from_f64(DType::F32, &[1, values.len()], values.to_vec());
        (t, Layout { outer: 1, summed: values.len(), inner: 1 })
    }

    #[test]
    fn a_row_of_zeros_stays_zero_and_loses_nothing() {
        let (w, l) = column(&[0.0; 40]);
        let (a, b) = (int8(&w, l), int4(&w, l));
        assert_eq!((a.bytes, a.scales, a.error.relative()), (vec![0; 40], vec![1.0], 0.0));
        assert_eq!((b.bytes, b.scales, b.zeros), (vec![0; 20], vec![1.0; 2], Some(vec![0; 2])));
        let (w, l) = column(&[1e-40, -1e-44, 0.0]);
        let tiny = int8(&w, l);
        assert_eq!((tiny.bytes, tiny.scales), (vec![0; 3], vec![1.0]), "what no device keeps is zero");
    }

    #[test]
    fn eight_bits_round_to_the_nearest_and_halves_to_even() {
        let (w, l) = column(&[127.0, 0.5, 1.5, -0.5, -1.5, -127.0, 63.6]);
        let e = int8(&w, l);
        assert_eq!(e.scales, [1.0]);
        assert_eq!(e.bytes.iter().map(|&b| b as i8).collect::<Vec<_>>(), [127, 0, 2, 0, -2, -127, 64]);
        let squared: f64 = 4.0 * 0.25 + 0.4f64.powi(2);
        assert!((e.error.squared - squared).abs() < 1e-5, "{:?}", e.error);
    }

    #[test]
    fn four_bits_have_a_zero_point_in_each_group_and_a_short_last_group() {
        // −5 … 10 in the first group; all negative in the second, which has three elements.
        let mut values: Vec<f64> = (0..32).map(|k| f64::from(k % 16) - 5.0).collect();
        values.extend([-30.0, -2.0, -14.0]);
        let (w, l) = column(&values);
        let e = int4(&w, l);
        assert_eq!((e.scales, e.zeros), (vec![1.0, 2.0], Some(vec![5, 15])));
        assert_eq!(e.error.squared, 0.0, "every value is on the grid");
        let nibble = |k: usize| e.bytes[k / 2] >> (k % 2 * 4) & 15;
        assert_eq!((0..35).map(nibble).collect::<Vec<u8>>()[30..], [14, 15, 0, 14, 8]);
        assert_eq!((e.bytes.len(), e.bytes[17] >> 4), (18, 0), "the odd half of the last byte is unused");
    }
}
