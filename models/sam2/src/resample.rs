//! Antialiased bilinear resizing on the host, as `torch.nn.functional.interpolate(…, antialias=True)`: for masks that are given
//! as prompts. Pictures are resized by the network's own program.

/// Weights of one output: the first source element, and a weight for each from there on.
fn taps(size: usize, out: usize, i: usize) -> (usize, Vec<f32>) {
    let step = size as f64 / out as f64;
    let stretch = step.max(1.0);
    let centre = step * (i as f64 + 0.5);
    let first = (centre - stretch + 0.5).max(0.0) as usize;
    let last = ((centre + stretch + 0.5) as usize).min(size);
    let raw = (first..last).map(|j| (1.0 - ((j as f64 + 0.5 - centre) / stretch).abs()).max(0.0));
    let raw: Vec<f64> = raw.collect();
    let total: f64 = raw.iter().sum();
    (first, raw.iter().map(|w| (w / total) as f32).collect())
}

/// One channel of `width` × `height` as `to.0` × `to.1`.
pub fn antialiased(values: &[f32], (width, height): (usize, usize), to: (usize, usize)) -> Vec<f32> {
    let across: Vec<_> = (0..to.0).map(|x| taps(width, to.0, x)).collect();
    let mut rows = Vec::with_capacity(to.0 * height);
    for row in values.chunks(width) {
        let at =
            |(first, weights): &(usize, Vec<f32>)| weights.iter().zip(&row[*first..]).map(|(w, v)| w * v).sum::<f32>();
        rows.extend(across.iter().map(at));
    }
    let mut out = Vec::with_capacity(to.0 * to.1);
    for y in 0..to.1 {
        let (first, weights) = taps(height, to.1, y);
        let start = out.len();
        out.resize(start + to.0, 0.0);
        for (row, w) in rows.chunks(to.0).skip(first).zip(&weights) {
            out[start..].iter_mut().zip(row).for_each(|(sum, v)| *sum += w * v);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_stays_and_halving_is_a_triangle_of_four() {
        assert!(antialiased(&[3.0; 35], (7, 5), (4, 9)).iter().all(|v| (v - 3.0).abs() < 1e-6));
        let got = antialiased(&[1.0, 0.0, 0.0, 0.0], (4, 1), (2, 1));
        // The first output has lost its leftmost tap: ¾, ¾, ¼ over their sum.
        assert!((got[0] - 0.75 / 1.75).abs() < 1e-6 && got[1] == 0.0, "{got:?}");
        let grown = antialiased(&[0.0, 4.0], (2, 1), (4, 1));
        assert!(grown.iter().zip([0.0, 1.0, 3.0, 4.0]).all(|(a, b)| (a - b).abs() < 1e-6), "{grown:?}");
    }
}
