//! Seeded noise like that of a fan in a room, mixed into a clean clip at a given ratio.

use std::f64::consts::TAU;

/// A clean clip and the same with noise, scaled alike so that nothing clips.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// The scaled clean clip: the reference for SI-SDR.
    pub clean: Vec<f32>,
    /// Clean and noise.
    pub noisy: Vec<f32>,
}

/// Mixes noise of `seed` into `clean` (48 kHz) so that the clip has a signal-to-noise ratio of `snr_db` as a whole;
/// both are then scaled so that the noisy one peaks at 0.6. A silent or empty clip comes back as it is.
pub fn mix(clean: &[f32], snr_db: f64, seed: u64) -> Mix {
    let noise = fan_noise(clean.len(), seed);
    let energy = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>();
    let signal = energy(&mut clean.iter().map(|&v| f64::from(v)));
    let gain = (signal / energy(&mut noise.iter().copied()) / 10f64.powf(snr_db / 10.0)).sqrt();
    let noisy: Vec<f64> = clean.iter().zip(&noise).map(|(&c, n)| f64::from(c) + gain * n).collect();
    let peak = noisy.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
    if signal == 0.0 || peak == 0.0 {
        return Mix { clean: clean.to_vec(), noisy: clean.to_vec() };
    }
    let scale = 0.6 / peak;
    Mix {
        clean: clean.iter().map(|&v| (f64::from(v) * scale) as f32).collect(),
        noisy: noisy.iter().map(|v| (v * scale) as f32).collect(),
    }
}

/// Pink noise with a slow swing, mains hum with harmonics, and some hiss, at 48 kHz.
fn fan_noise(n: usize, seed: u64) -> Vec<f64> {
    let mut rng = Normal::new(seed);
    let pink = pink_noise(n, &mut rng);
    let time = |i: usize| i as f64 / 48_000.0;
    let hum: Vec<f64> =
        (0..n).map(|i| (1..8).map(f64::from).map(|k| (TAU * 100.0 * k * time(i) + k).sin() / k).sum()).collect();
    let (pink_level, hum_level) = (1.0 / deviation(&pink), 0.25 / deviation(&hum));
    (0..n)
        .map(|i| {
            let swing = 1.0 + 0.4 * (TAU * 0.7 * time(i) + 1.0).sin();
            pink[i] * pink_level * swing + hum[i] * hum_level + 0.25 * rng.sample()
        })
        .collect()
}

/// White noise through a filter of third order whose response falls by 3 dB an octave.
fn pink_noise(n: usize, rng: &mut Normal) -> Vec<f64> {
    const B: [f64; 4] = [0.049922035, -0.095993537, 0.050612699, -0.004408786];
    const A: [f64; 3] = [-2.494956002, 2.017265875, -0.522189400];
    const WARM_UP: usize = 4096; // samples until the filter has forgotten that it began at zero
    let (mut x, mut y) = ([0.0; 4], [0.0; 3]);
    let mut pink = Vec::with_capacity(n);
    for i in 0..n + WARM_UP {
        x.rotate_right(1);
        x[0] = rng.sample();
        let forward: f64 = B.iter().zip(x).map(|(b, v)| b * v).sum();
        let feedback: f64 = A.iter().zip(y).map(|(a, v)| a * v).sum();
        y.rotate_right(1);
        y[0] = forward - feedback;
        if i >= WARM_UP {
            pink.push(y[0]);
        }
    }
    pink
}

fn deviation(x: &[f64]) -> f64 {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    (x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / x.len() as f64).sqrt()
}

/// Normally distributed numbers: SplitMix64 through the Box-Muller transform. Ten lines, and the same on every machine
/// and in every version, which a random-number library does not promise.
struct Normal {
    state: u64,
}

impl Normal {
    fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        ((z >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn sample(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::si_sdr::si_sdr;

    fn tone(n: usize) -> Vec<f32> {
        (0..n).map(|i| 0.3 * (TAU * 431.0 * i as f64 / 48_000.0).sin() as f32).collect()
    }

    #[test]
    fn the_mix_has_the_ratio_asked_for_and_does_not_clip() {
        for snr in [-5.0, 0.0, 5.0, 20.0] {
            let m = mix(&tone(96_000), snr, 7);
            let db = si_sdr(&m.noisy, &m.clean);
            assert!((db - snr).abs() < 0.3, "asked for {snr} dB, got {db} dB"); // noise correlates a little with the tone
            let peak = m.noisy.iter().fold(0.0f32, |p, v| p.max(v.abs()));
            assert!((peak - 0.6).abs() < 1e-6, "peak {peak}");
        }
    }

    #[test]
    fn a_seed_gives_the_same_noise_and_another_seed_another() {
        let (a, b, c) = (mix(&tone(4800), 5.0, 1), mix(&tone(4800), 5.0, 1), mix(&tone(4800), 5.0, 2));
        assert_eq!(a, b);
        assert!(si_sdr(&a.noisy, &c.noisy) < 20.0, "two seeds give nearly the same noise");
    }

    #[test]
    fn samples_are_standard_normal() {
        let mut rng = Normal::new(3);
        let x: Vec<f64> = (0..200_000).map(|_| rng.sample()).collect();
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let within = x.iter().filter(|v| v.abs() < 1.0).count() as f64 / x.len() as f64;
        assert!(mean.abs() < 0.01 && (deviation(&x) - 1.0).abs() < 0.01, "mean {mean}, deviation {}", deviation(&x));
        assert!((within - 0.6827).abs() < 0.005, "{within} of the samples lie within one deviation");
    }

    #[test]
    fn silence_stays_silence() {
        let m = mix(&[0.0; 100], 5.0, 1);
        assert_eq!(m.noisy, [0.0; 100]);
    }
}
