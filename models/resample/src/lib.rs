//! One channel of sound at another sampling rate, by rubato's FFT resampler: what stands before and behind networks that hear.

use audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler, WindowFunction};

/// Frames that the resampler takes and gives at a time, at least: long enough for a steep filter.
const CHUNK: usize = 1024;

/// Why a channel could not be resampled.
#[derive(Debug, thiserror::Error)]
pub enum ResampleError {
    /// The resampler refuses this pair of rates.
    #[error("cannot resample from {from} Hz to {to} Hz: {reason}")]
    Rates {
        /// Rate of the input in Hz.
        from: u32,
        /// Rate of the output in Hz.
        to: u32,
        /// What the library says.
        reason: String,
    },
}

/// One channel at another rate, aligned in time with the input; ⌈n · to / from⌉ samples, or the input itself where the
/// rates are the same.
///
/// # Errors
/// [`ResampleError::Rates`] for rates that the library does not take, such as 0.
pub fn resample(channel: &[f32], from: u32, to: u32) -> Result<Vec<f32>, ResampleError> {
    if from == to || channel.is_empty() {
        return Ok(channel.to_vec());
    }
    let refuse = |reason: String| ResampleError::Rates { from, to, reason };
    let window = WindowFunction::BlackmanHarris2;
    let (chunk, from_hz, to_hz) = (chunk(from as usize, to as usize), from as usize, to as usize);
    let mut resampler = Fft::<f32>::new_custom(from_hz, to_hz, chunk, 1, 1, window, FixedSync::Both)
        .map_err(|e| refuse(e.to_string()))?;
    let input = InterleavedSlice::new(channel, 1, channel.len()).map_err(|e| refuse(e.to_string()))?;
    let output = resampler.process_all(&input, channel.len(), None).map_err(|e| refuse(e.to_string()))?;
    Ok(output.take_data())
}

/// Input frames at a time. The resampler's delay is half a chunk of output, and only whole samples of it can be cut
/// off: both chunks must be even, or the output would lie half a sample off.
fn chunk(from: usize, to: usize) -> usize {
    let divisor = greatest_common_divisor(from, to).max(1);
    let (unit_in, unit_out) = (2 * from / divisor, 2 * to / divisor);
    unit_in * CHUNK.div_ceil(unit_in.min(unit_out).max(1))
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sine(hz: f64, rate: u32, n: usize) -> Vec<f32> {
        (0..n).map(|i| (0.5 * (std::f64::consts::TAU * hz * i as f64 / f64::from(rate)).sin()) as f32).collect()
    }

    /// Largest difference to the ideal sine, away from the ends, where the resampler sees silence.
    fn error(got: &[f32], ideal: &[f32]) -> f32 {
        let edge = 500;
        got[edge..got.len() - edge].iter().zip(&ideal[edge..]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    #[test]
    fn a_sine_stays_the_same_sine_in_time_at_every_usual_rate() {
        for rate in [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 88_200, 96_000] {
            let n = rate as usize / 2 + 17;
            let (input, hz) = (sine(440.0, rate, n), 440.0);
            let up = resample(&input, rate, 48_000).expect("a usual rate");
            assert_eq!(up.len(), (n * 48_000).div_ceil(rate as usize), "{rate} Hz");
            let e = error(&up, &sine(hz, 48_000, up.len()));
            assert!(e < 1e-3, "{rate} Hz: off by {e}");
            let back = resample(&up, 48_000, rate).expect("a usual rate");
            let e = error(&back[..n], &input);
            assert!(back.len() >= n && e < 1e-3, "{rate} Hz and back: off by {e}");
        }
    }

    #[test]
    fn what_the_lower_rate_cannot_hold_is_removed_not_folded() {
        let out = resample(&sine(15_000.0, 48_000, 48_000), 48_000, 16_000).expect("a usual rate");
        let loudest = out[500..15_500].iter().fold(0.0f32, |m, v| m.max(v.abs()));
        assert!(loudest < 1e-3, "15 kHz folds to {loudest}");
    }

    #[test]
    fn the_same_rate_changes_nothing_and_no_rate_is_an_error() {
        let wav = sine(440.0, 48_000, 100);
        assert_eq!(resample(&wav, 48_000, 48_000).expect("nothing to do"), wav);
        assert!(resample(&wav, 0, 48_000).is_err());
    }

    #[test]
    fn short_clips_keep_their_length() {
        for n in [1, 2, 100, 1023, 1024, 1025] {
            let up = resample(&vec![0.1; n], 44_100, 48_000).expect("a usual rate");
            assert_eq!(up.len(), (n * 48_000).div_ceil(44_100), "{n} samples");
        }
    }
}
