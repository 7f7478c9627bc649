//! DeepFilterNet3 around a crate that jvc generates: everything but the network itself.
//!
//! A recording is read ([`audio`]), brought to 48 kHz ([`jvc_resample`]), cut into hops of 480 samples that go through the
//! program, which keeps its states on the device ([`stream`]), brought back to its own rate and written. For the demo,
//! seeded noise is mixed in ([`noise`]), the gain is measured ([`si_sdr`]) and the result drawn ([`spectrogram`]).
//!
//! The network is behind one trait, [`stream::StepEngine`]; `runner/` implements it with the generated crate.
//!
//! ```
//! use deepfilternet::stream::{Controls, HOP, Settings, StepEngine, denoise};
//!
//! /// A network that changes nothing; like the real one it answers three hops late.
//! struct Late([[f32; HOP]; 3]);
//!
//! impl StepEngine for Late {
//!     type Error = std::convert::Infallible;
//!     fn restart(&mut self) {
//!         self.0 = [[0.0; HOP]; 3];
//!     }
//!     fn step(&mut self, hop: &[f32; HOP], _controls: &Controls) -> Result<[f32; HOP], Self::Error> {
//!         self.0.rotate_left(1);
//!         Ok(std::mem::replace(&mut self.0[2], *hop))
//!     }
//! }
//!
//! let wav: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.01).sin()).collect();
//! let settings = Settings { attenuation_limit_db: Some(12.0), ..Settings::default() };
//! assert_eq!(denoise(&mut Late([[0.0; HOP]; 3]), &wav, settings), Ok(wav));
//! ```

pub mod audio;
pub mod noise;
pub mod si_sdr;
pub mod spectrogram;
pub mod stream;
