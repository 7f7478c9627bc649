//! Antialiased resampling: per dimension a filter whose support grows with the downscaling. The weights are constants, computed here as
//! PyTorch computes them; each dimension is one windowed sum.

use super::cx::Built;
use super::interpolate::{Axis, Resampling};
use super::norm::accumulator;
use super::taps::windowed_sum;
use super::{AtenOp, Call, Cx, Diagnostic, Val, unsupported_dtype, unsupported_shape};
use crate::ir::{DType, ValueId};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp {
        names: &["aten._upsample_bilinear2d_aa.vec", "aten._upsample_bilinear2d_aa.default"],
        rule: |cx, call| antialiased(cx, call, &TRIANGLE),
    },
    AtenOp {
        names: &["aten._upsample_bicubic2d_aa.vec", "aten._upsample_bicubic2d_aa.default"],
        rule: |cx, call| antialiased(cx, call, &CUBIC),
    },
];

/// A filter: its width in source elements without downscaling, and its value at a distance.
struct Filter {
    width: f64,
    value: fn(f64) -> f64,
}

const TRIANGLE: Filter = Filter { width: 2.0, value: |x| (1.0 - x.abs()).max(0.0) };

/// Cubic convolution with a = −½ (Pillow's, unlike the plain resampling's −¾).
const CUBIC: Filter = Filter {
    width: 4.0,
    value: |x| {
        let (x, a) = (x.abs(), -0.5);
        if x < 1.0 {
            ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
        } else if x < 2.0 {
            (((x - 5.0) * x + 8.0) * x - 4.0) * a
        } else {
            0.0
        }
    },
};

/// Weights of one dimension: first source index of each output, and `taps` weights each (0 beyond the window).
#[derive(Debug, PartialEq)]
struct Weights {
    first: Vec<i64>,
    taps: i64,
    weights: Vec<f64>,
}

fn weights(size: i64, out: i64, step: f64, filter: &Filter) -> Weights {
    let stretch = step.max(1.0);
    let support = filter.width * 0.5 * stretch;
    let window = |i: i64| {
        let centre = step * (i as f64 + 0.5);
        let first = ((centre - support + 0.5) as i64).max(0);
        let len = ((centre + support + 0.5) as i64).min(size) - first;
        (centre, first, len.max(0))
    };
    let taps = (0..out).map(|i| window(i).2).max().unwrap_or(0);
    let mut all = Weights { first: vec![], taps, weights: vec![] };
    for i in 0..out {
        let (centre, first, len) = window(i);
        let raw: Vec<f64> = (0..len).map(|j| (filter.value)(((j + first) as f64 - centre + 0.5) / stretch)).collect();
        let total: f64 = raw.iter().sum();
        all.first.push(first);
        all.weights.extend((0..taps as usize).map(|j| raw.get(j).map_or(0.0, |w| w / total)));
    }
    all
}

/// Step between source positions: `align_corners` changes only this, the filter stays centred as without.
fn step(axis: &Axis, align: bool, dtype: DType) -> Option<f64> {
    if !align {
        return axis.literal_step(accumulator(dtype).ty());
    }
    let (n, o) = (axis.size.as_const()?, axis.out.as_const()?);
    Some(if o > 1 { (n - 1) as f64 / (o - 1) as f64 } else { 0.0 })
}

fn antialiased(cx: &mut Cx, call: &Call<'_>, filter: &Filter) -> Result<Vec<Val>, Diagnostic> {
    let r = Resampling::read(cx, call)?;
    let align = call.bool("align_corners")?;
    let dtype = cx.tensor_dtype(r.x);
    if !dtype.is_float() {
        return Err(unsupported_dtype(format!("{} of {dtype} is not supported (only floating types)", call.target)));
    }
    let acc = accumulator(dtype);
    let mut y = r.x;
    // PyTorch goes from the last dimension to the first.
    for (d, axis) in r.axes.iter().enumerate().rev() {
        let sizes = axis.size.as_const().zip(axis.out.as_const()).zip(step(axis, align, dtype));
        let Some(((size, out), step)) = sizes else {
            let text = format!("{} from {} to {}: literal sizes are needed", call.target, axis.size, axis.out);
            return Err(unsupported_shape(text));
        };
        y = filtered(cx, y, d + 2, &weights(size, out, step, filter), acc)?;
    }
    Ok(vec![Val::Tensor(cx.cast(y, dtype)?)])
}

fn filtered(cx: &mut Cx, x: ValueId, dim: usize, w: &Weights, acc: DType) -> Built {
    let out = w.first.len() as i64;
    let first = cx.const_data(DType::I32, &w.first.iter().map(|&v| v as f64).collect::<Vec<_>>(), &[out])?;
    let table = cx.const_data(acc, &w.weights, &[out, w.taps])?;
    let mut shape = cx.shape(x);
    let size = shape[dim].clone();
    shape[dim] = out.into();
    windowed_sum(cx, &[x, first, table], w.taps, acc, shape, |b, axes, k| {
        let start = b.load(1, &[axes[dim]]);
        let at = b.add(start, k);
        let mut index = axes.to_vec();
        index[dim] = b.clamp_index(at, &size);
        let value = b.load(0, &index);
        let value = b.cast(acc.ty(), value);
        let weight = b.load(2, &[axes[dim], k]);
        b.mul(value, weight)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_sum_to_one_and_stay_inside() {
        for (size, out) in [(7, 3), (5, 11), (64, 9), (4, 4), (1, 3)] {
            for filter in [&TRIANGLE, &CUBIC] {
                let w = weights(size, out, size as f64 / out as f64, filter);
                for (i, row) in w.weights.chunks(w.taps as usize).enumerate() {
                    let sum: f64 = row.iter().sum();
                    assert!((sum - 1.0).abs() < 1e-12, "{size}→{out} row {i}: {sum}");
                    let used = row.iter().rposition(|&v| v != 0.0).expect("a row has weight") as i64;
                    assert!(w.first[i] >= 0 && w.first[i] + used < size, "{size}→{out} row {i} leaves the input");
                }
            }
        }
    }

    #[test]
    fn halving_averages_with_a_triangle_of_four() {
        let w = weights(4, 2, 2.0, &TRIANGLE);
        // Distances ±¼ and ±¾ from the centre, weights ¾ and ¼; the first row has lost its leftmost tap.
        assert_eq!(w.first, [0, 1]);
        let want = [0.75 / 1.75, 0.75 / 1.75, 0.25 / 1.75];
        assert!(w.weights[..3].iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-12), "{:?}", w.weights);
    }
}
