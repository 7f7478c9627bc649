//! Scale-invariant signal-to-distortion ratio, the figure of merit of the demo.

/// SI-SDR of `estimate` against `reference` in dB, both made zero-mean first.
///
/// The estimate is split into its projection on the reference, `t`, and the rest, `e`: 10 log10(|t|² / |e|²). The
/// reference is thereby scaled as fits best, so loudness does not count. Infinite for a perfect estimate; NaN for a
/// silent reference.
///
/// # Panics
/// If the lengths differ.
pub fn si_sdr(estimate: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(estimate.len(), reference.len(), "SI-SDR compares signals of one length");
    let (est, reference) = (zero_mean(estimate), zero_mean(reference));
    let scale = dot(&est, &reference) / dot(&reference, &reference);
    let (mut target, mut distortion) = (0.0, 0.0);
    for (e, r) in est.iter().zip(&reference) {
        let t = scale * r;
        target += t * t;
        distortion += (e - t) * (e - t);
    }
    10.0 * (target / distortion).log10()
}

fn zero_mean(signal: &[f32]) -> Vec<f64> {
    let mean = signal.iter().map(|&v| f64::from(v)).sum::<f64>() / signal.len() as f64;
    signal.iter().map(|&v| f64::from(v) - mean).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two signals of whole periods, hence orthogonal, with energies in the ratio 1 : 0.1².
    fn sine_and_cosine(n: usize) -> (Vec<f32>, Vec<f32>) {
        let phase = |i: usize| i as f64 * std::f64::consts::TAU * 5.0 / n as f64;
        ((0..n).map(|i| phase(i).sin() as f32).collect(), (0..n).map(|i| 0.1 * phase(i).cos() as f32).collect())
    }

    #[test]
    fn orthogonal_noise_of_a_tenth_gives_20_db_whatever_the_scale_and_offset() {
        let (clean, noise) = sine_and_cosine(1000);
        for (scale, offset) in [(1.0, 0.0), (0.25, 0.0), (-3.0, 0.0), (1.0, 0.7)] {
            let estimate: Vec<f32> = clean.iter().zip(&noise).map(|(c, n)| scale * (c + n) + offset).collect();
            let db = si_sdr(&estimate, &clean);
            assert!((db - 20.0).abs() < 1e-3, "scale {scale}, offset {offset}: {db} dB");
        }
    }

    #[test]
    fn a_perfect_estimate_is_infinitely_good_and_an_orthogonal_one_infinitely_bad() {
        let (clean, noise) = sine_and_cosine(1000);
        assert!(si_sdr(&clean, &clean) > 300.0);
        assert!(si_sdr(&noise, &clean) < -100.0);
    }

    #[test]
    fn bundled_clips_have_the_figures_of_the_export_script() {
        // Computed by the export script (NumPy, float64) and listed in the README beside the clips.
        for (clip, expected) in [("librivox", 4.92), ("espeak", 5.01)] {
            let read = |kind: &str| {
                let path = format!("{}/clips/{clip}_{kind}.wav", env!("CARGO_MANIFEST_DIR"));
                let audio = crate::audio::Audio::read(path.as_ref()).expect("the clip is committed");
                audio.channels.into_iter().next().expect("a channel")
            };
            let db = si_sdr(&read("noisy"), &read("clean"));
            assert!((db - expected).abs() < 0.01, "{clip}: {db} dB");
        }
    }
}
