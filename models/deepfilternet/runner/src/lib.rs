//! DeepFilterNet3 on a Vulkan device: the generated crate behind the library `deepfilternet`.
//!
//! ```no_run
//! use deepfilternet::stream::{HOP, Settings, Stream, denoise};
//! use deepfilternet_runner::engine::{GENERATED, Network};
//! use jvc_runner::jvc_runtime::CacheDir;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = jvc_runner::device::open(None)?; // or an application's own: Gpu::borrow
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

pub mod engine;
