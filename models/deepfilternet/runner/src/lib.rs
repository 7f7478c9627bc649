//! DeepFilterNet3 on a Vulkan device: the generated crate behind the library `deepfilternet`.
//!
//! ```no_run
//! use deepfilternet::stream::{HOP, Settings, Stream, denoise};
//! use deepfilternet_runner::engine::{GENERATED, Network};
//! use jvc_runner::jvc_runtime::CacheDir;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = jvc_runner::device::open(None)?;
//! let network = Network::load(&gpu, &GENERATED.find_weights(None)?, &CacheDir::Default)?;
//!
//! // A whole channel at 48 kHz:
//! let noisy = vec![0.0; 48_000];
//! let enhanced = denoise(&mut network.channel()?, &noisy, Settings::default())?;
//! assert_eq!(enhanced.len(), noisy.len());
//!
//! // Hop by hop, at the same time as others:
//! let mut channel = network.channel()?;
//! let mut stream = Stream::begin(&mut channel, Settings { attenuation_limit_db: Some(12.0), ..Settings::default() });
//! let enhanced_hop = stream.push(&[0.0; HOP])?;
//! assert_eq!(enhanced_hop, None); // three hops of delay
//! # Ok(())
//! # }
//! ```
//!
//! On an application's own Vulkan device, with weights that it holds in memory, channels at the same time:
//!
//! ```no_run
//! use deepfilternet::stream::{Settings, denoise};
//! use deepfilternet_runner::engine::Network;
//! use jvc_runner::jvc_runtime::{BorrowedDevice, CacheDir, Gpu};
//! use jvc_runner::weights::Weights;
//!
//! fn all(device: BorrowedDevice, weights: Vec<u8>, channels: &[Vec<f32>]) -> Result<(), Box<dyn std::error::Error>> {
//!     // SAFETY: the handles are the application's, and outlive everything below.
//!     let gpu = unsafe { Gpu::borrow(device) }?;
//!     let network = Network::load(&gpu, &Weights::Bytes(weights.into()), &CacheDir::None)?;
//!     std::thread::scope(|threads| {
//!         for noisy in channels {
//!             let mut channel = network.channel()?; // shares the weights
//!             threads.spawn(move || denoise(&mut channel, noisy, Settings::default()));
//!         }
//!         Ok(())
//!     })
//! }
//! ```

pub mod engine;
