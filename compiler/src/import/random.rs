//! `--random-weights SEED`: made-up payloads that keep activations finite, for programs that come without.
//!
//! The values of a tensor depend on the seed and its name only. What the names and shapes of PyTorch modules suggest:
//!
//! | tensor | values |
//! |---|---|
//! | integer, bool, fp8 | zeros |
//! | rank 0 or 1, `*running_var` | 0.5 … 1.5 |
//! | rank 0 or 1, `*weight`, `*weight_g`, `*gamma`, `*scale` (norms, layer scales) | 0.9 … 1.1 |
//! | other rank 0 or 1 (biases, running means) | −0.02 … 0.02 |
//! | rank ≥ 2 | uniform with variance 1 / fan-in; fan-in = elements per entry of the first axis |

use super::limits::LIMITS;
use super::program::ScalarType;
use super::weights::{Storage, WeightView};
use super::{ImportError, Program};
use half::{bf16, f16};
use rayon::prelude::*;

/// Gives every weight without a payload one.
///
/// # Errors
/// All of them are over the limit, which a bare graph of a few bytes can ask for.
pub fn fill_random(programs: &mut [Program], seed: u64) -> Result<(), ImportError> {
    let empty = programs.iter_mut().flat_map(|p| p.weights.iter_mut()).filter(|(_, view)| view.storage.is_none());
    let empty: Vec<_> = empty.collect();
    let total = empty.iter().fold(0u64, |sum, (_, view)| sum.saturating_add(view.n_bytes()));
    ImportError::limit("bytes of made-up weights", total, LIMITS.made_up_bytes)?;
    empty.into_par_iter().for_each(|(name, view)| {
        view.strides = super::dense_strides(&view.sizes);
        view.offset = 0;
        view.storage = Some(Storage::owned(payload(name, view, seed)));
    });
    Ok(())
}

fn payload(name: &str, view: &WeightView, seed: u64) -> Vec<u8> {
    let n = view.n_elems() as usize;
    let (low, high) = bounds(name, &view.sizes);
    let mut state =
        name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let mut next = move || low + (high - low) * unit(&mut state);
    match view.dtype {
        ScalarType::F32 => numbers(n, || (next() as f32).to_le_bytes()),
        ScalarType::F64 => numbers(n, || next().to_le_bytes()),
        ScalarType::F16 => numbers(n, || f16::from_f64(next()).to_le_bytes()),
        ScalarType::BF16 => numbers(n, || bf16::from_f64(next()).to_le_bytes()),
        ScalarType::C64 => numbers(2 * n, || (next() as f32).to_le_bytes()),
        ScalarType::C128 => numbers(2 * n, || next().to_le_bytes()),
        ScalarType::C32 => numbers(2 * n, || f16::from_f64(next()).to_le_bytes()),
        _ => vec![0; n * view.dtype.size_bytes() as usize],
    }
}

fn numbers<const SIZE: usize>(n: usize, mut next: impl FnMut() -> [u8; SIZE]) -> Vec<u8> {
    // The first number is left out, as it always was: a seed keeps its numbers.
    next();
    let mut out = vec![0; n * SIZE];
    out.as_chunks_mut().0.iter_mut().for_each(|number| *number = next());
    out
}

fn bounds(name: &str, sizes: &[i64]) -> (f64, f64) {
    if sizes.len() >= 2 {
        let fan_in = sizes[1..].iter().product::<i64>().max(1) as f64;
        let reach = (3.0 / fan_in).sqrt();
        return (-reach, reach);
    }
    if name.ends_with("running_var") {
        (0.5, 1.5)
    } else if ["weight", "weight_g", "gamma", "scale"].iter().any(|end| name.ends_with(end)) {
        (0.9, 1.1)
    } else {
        (-0.02, 0.02)
    }
}

/// SplitMix64, as a number in 0 … 1.
pub(crate) fn unit(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(name: &str, sizes: &[i64], seed: u64) -> Vec<f32> {
        let view =
            WeightView { dtype: ScalarType::F32, sizes: sizes.to_vec(), strides: vec![], offset: 0, storage: None };
        let bytes = payload(name, &view, seed);
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }

    #[test]
    fn variance_is_one_over_fan_in() {
        let values = floats("conv.weight", &[64, 16, 3, 3], 1);
        let variance = values.iter().map(|v| f64::from(v * v)).sum::<f64>() / values.len() as f64;
        assert!((variance * 144.0 - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn values_depend_on_seed_and_name_only() {
        assert_eq!(floats("a.weight", &[4, 4], 1), floats("a.weight", &[4, 4], 1));
        assert_ne!(floats("a.weight", &[4, 4], 1), floats("a.weight", &[4, 4], 2));
        assert_ne!(floats("a.weight", &[4, 4], 1), floats("b.weight", &[4, 4], 1));
    }

    #[test]
    fn norms_stay_near_one() {
        assert!(floats("norm.weight", &[512], 3).iter().all(|v| (0.9..=1.1).contains(v)));
        assert!(floats("bn.running_var", &[512], 3).iter().all(|v| (0.5..=1.5).contains(v)));
    }
}
