//! Max and average pooling, 1–3 spatial dimensions.

use super::movement::step;
use super::tensor::{Data, Tensor, strides};
use crate::ir::op::Op;

/// Positions of one window: in-range ones as linear offsets, and how many taps lie inside the padded input.
struct Taps {
    inside: Vec<usize>,
    padded: usize,
}

pub(super) fn pool(op: &Op, x: &Tensor, shape: &[usize]) -> Vec<Data> {
    let Op::Pool { kernel, window, max, count_include_pad, divisor, indices, .. } = op else {
        unreachable!("only pooling comes here")
    };
    let (spatial, out_spatial) = (&x.shape[2..], &shape[2..]);
    let mut windows = Vec::with_capacity(out_spatial.iter().product());
    let mut coord = vec![0; out_spatial.len()];
    for _ in 0..out_spatial.iter().product::<usize>() {
        let start: Vec<i64> =
            (0..coord.len()).map(|d| coord[d] as i64 * window.stride[d] - window.padding[d]).collect();
        windows.push(taps(spatial, kernel, &window.dilation, &start, &window.padding));
        step(&mut coord, out_spatial);
    }
    let plane: usize = spatial.iter().product();
    let planes = x.shape[0] * x.shape[1];
    let each = || (0..planes).flat_map(|p| windows.iter().map(move |w| (p * plane, w)));
    if !*max {
        let v = x.floats();
        let mean = |(base, w): (usize, &Taps)| {
            let sum: f64 = w.inside.iter().map(|&i| v[base + i]).sum();
            let count = if *count_include_pad { w.padded } else { w.inside.len() };
            sum / divisor.map_or(count as f64, |d| d as f64)
        };
        return vec![Data::Float(each().map(mean).collect())];
    }
    let best: Vec<(usize, Option<usize>)> = each().map(|(base, w)| (base, best_of(&x.data, base, w))).collect();
    let at: Vec<Option<usize>> = best.iter().map(|(base, b)| b.map(|b| base + b)).collect();
    let values = match &x.data {
        Data::Float(v) => Data::Float(at.iter().map(|a| a.map_or(f64::NEG_INFINITY, |a| v[a])).collect()),
        Data::Int(v) => Data::Int(at.iter().map(|a| a.map_or(i64::MIN, |a| v[a])).collect()),
    };
    let mut out = vec![values];
    if *indices {
        out.push(Data::Int(best.iter().map(|(_, b)| b.unwrap_or(0) as i64).collect()));
    }
    out
}

fn taps(spatial: &[usize], kernel: &[i64], dilation: &[i64], start: &[i64], padding: &[i64]) -> Taps {
    let by = strides(spatial);
    let size: Vec<usize> = kernel.iter().map(|&k| k as usize).collect();
    let (mut tap, mut out) = (vec![0; size.len()], Taps { inside: vec![], padded: 0 });
    for _ in 0..size.iter().product::<usize>() {
        let at: Vec<i64> = (0..tap.len()).map(|d| start[d] + tap[d] as i64 * dilation[d]).collect();
        // A window of ceil_mode may hang over the padded input; taps beyond it never count.
        out.padded += usize::from((0..at.len()).all(|d| at[d] < spatial[d] as i64 + padding[d]));
        if (0..at.len()).all(|d| at[d] >= 0 && at[d] < spatial[d] as i64) {
            out.inside.push((0..at.len()).map(|d| at[d] as usize * by[d]).sum());
        }
        step(&mut tap, &size);
    }
    out
}

/// Offset of the first maximum; a NaN wins, the last one if there are several (as PyTorch reports it).
fn best_of(data: &Data, base: usize, w: &Taps) -> Option<usize> {
    let better = |i: usize, j: usize| match data {
        Data::Float(v) => v[base + i] > v[base + j] || v[base + i].is_nan(),
        Data::Int(v) => v[base + i] > v[base + j],
    };
    w.inside.iter().copied().reduce(|best, i| if better(i, best) { i } else { best })
}
