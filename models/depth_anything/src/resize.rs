//! Resampling as upstream's image processor does it: bytes by Pillow's antialiased bicubic filter, to the bit, and depth by
//! PyTorch's bicubic interpolation.

/// Fraction bits of the integer weights that bytes are resampled with.
const WEIGHT_BITS: u32 = 22;

/// Rows of RGB bytes at another size (height, width). The filter is the cubic with a = −0.5, widened where the picture shrinks;
/// columns first, then rows, each rounded to bytes.
pub fn bicubic_bytes(pixels: &[u8], from: [usize; 2], to: [usize; 2]) -> Vec<u8> {
    let across = if from[1] == to[1] { pixels.to_vec() } else { bytes_across(pixels, from, to[1]) };
    if from[0] == to[0] { across } else { bytes_down(&across, from[0], [to[0], to[1]]) }
}

/// The places that an output reads, and their weights.
struct Taps<W> {
    first: usize,
    weights: Vec<W>,
}

/// Weights of an antialiased cubic filter from `from` samples to `to`.
fn byte_taps(from: usize, to: usize) -> Vec<Taps<i32>> {
    let step = from as f64 / to as f64;
    let widening = step.max(1.0);
    let taps = |out: usize| {
        let centre = (out as f64 + 0.5) * step;
        let first = (centre - 2.0 * widening + 0.5).max(0.0) as usize;
        let end = ((centre + 2.0 * widening + 0.5) as usize).min(from);
        let weights: Vec<f64> = (first..end).map(|i| cubic((i as f64 - centre + 0.5) / widening, -0.5)).collect();
        let sum: f64 = weights.iter().sum();
        let fixed = |weight: &f64| (weight / sum * f64::from(1 << WEIGHT_BITS)).round() as i32;
        Taps { first, weights: weights.iter().map(fixed).collect() }
    };
    (0..to).map(taps).collect()
}

/// Keys' cubic with parameter a.
fn cubic(x: f64, a: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * a
    } else {
        0.0
    }
}

fn to_byte(sum: i32) -> u8 {
    ((sum + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS).clamp(0, 255) as u8
}

fn bytes_across(pixels: &[u8], from: [usize; 2], width: usize) -> Vec<u8> {
    let taps = byte_taps(from[1], width);
    let mut out = vec![0; from[0] * width * 3];
    in_parallel(&mut out, width * 3, |y, row| {
        let source = &pixels[y * from[1] * 3..][..from[1] * 3];
        for (taps, out) in taps.iter().zip(row.as_chunks_mut::<3>().0) {
            let mut sums = [0; 3];
            for (weight, rgb) in taps.weights.iter().zip(source[taps.first * 3..].as_chunks::<3>().0) {
                (0..3).for_each(|c| sums[c] += weight * i32::from(rgb[c]));
            }
            *out = sums.map(to_byte);
        }
    });
    out
}

fn bytes_down(pixels: &[u8], from: usize, [height, width]: [usize; 2]) -> Vec<u8> {
    let taps = byte_taps(from, height);
    let mut out = vec![0; height * width * 3];
    in_parallel(&mut out, width * 3, |y, row| {
        let mut sums = vec![0; row.len()];
        for (weight, source) in taps[y].weights.iter().zip(pixels.chunks(width * 3).skip(taps[y].first)) {
            sums.iter_mut().zip(source).for_each(|(sum, byte)| *sum += weight * i32::from(*byte));
        }
        row.iter_mut().zip(sums).for_each(|(out, sum)| *out = to_byte(sum));
    });
    out
}

/// Rows of values at another size (height, width): four taps a side of the cubic with a = −0.75, the edge repeated, nothing
/// widened where the picture shrinks.
pub fn bicubic_floats(values: &[f32], from: [usize; 2], to: [usize; 2]) -> Vec<f32> {
    if from == to {
        return values.to_vec();
    }
    let (down, across) = (float_taps(from[0], to[0]), float_taps(from[1], to[1]));
    let mut out = vec![0.0; to[0] * to[1]];
    in_parallel(&mut out, to[1], |y, row| {
        let (rows, weights) = &down[y];
        let rows = rows.map(|y| &values[y * from[1]..][..from[1]]);
        let blend = |x: usize| (0..4).map(|i| weights[i] * rows[i][x]).sum::<f32>();
        let line: Vec<f32> = (0..from[1]).map(blend).collect();
        for ((columns, weights), out) in across.iter().zip(row) {
            *out = (0..4).map(|i| weights[i] * line[columns[i]]).sum();
        }
    });
    out
}

/// The four places that each output reads, and their weights.
fn float_taps(from: usize, to: usize) -> Vec<([usize; 4], [f32; 4])> {
    let step = from as f64 / to as f64;
    let taps = |out: usize| {
        let centre = (out as f64 + 0.5) * step - 0.5;
        let (floor, part) = (centre.floor(), centre - centre.floor());
        let place = |i: i64| (floor as i64 + i - 1).clamp(0, from as i64 - 1) as usize;
        ([0, 1, 2, 3].map(place), [-1.0, 0.0, 1.0, 2.0].map(|i| cubic(i - part, -0.75) as f32))
    };
    (0..to).map(taps).collect()
}

/// Calls `fill` for each row, on as many threads as the machine runs at once.
fn in_parallel<T: Send>(out: &mut [T], row: usize, fill: impl Fn(usize, &mut [T]) + Sync) {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let rows_each = (out.len() / row.max(1)).div_ceil(n_threads).max(1);
    std::thread::scope(|scope| {
        for (part, rows) in out.chunks_mut(rows_each * row.max(1)).enumerate() {
            let fill = &fill;
            scope.spawn(move || rows.chunks_mut(row).enumerate().for_each(|(y, row)| fill(part * rows_each + y, row)));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_picture_stays_even_at_any_size() {
        for (from, to) in [([5, 7], [14, 28]), ([300, 200], [14, 14]), ([14, 9], [14, 28]), ([1, 1], [14, 14])] {
            let n = to[0] * to[1];
            assert_eq!(bicubic_bytes(&vec![93; from[0] * from[1] * 3], from, to), vec![93; n * 3], "{from:?} {to:?}");
            let floats = bicubic_floats(&vec![2.5; from[0] * from[1]], from, to);
            assert!(floats.len() == n && floats.iter().all(|value| (value - 2.5).abs() < 1e-5), "{from:?} {to:?}");
        }
    }

    #[test]
    fn the_same_size_changes_nothing() {
        let pixels: Vec<u8> = (0..4 * 6 * 3).map(|i| (i * 37 % 256) as u8).collect();
        assert_eq!(bicubic_bytes(&pixels, [4, 6], [4, 6]), pixels);
    }
}
