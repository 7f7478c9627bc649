//! Whisper on a Vulkan device: [`DeviceEngine`] is the generated crate behind [`whisper::engine::Engine`].
//!
//! ```no_run
//! use jvc_runner::jvc_runtime::{CacheDir, Gpu, Select, WeightSource};
//! use std::path::Path;
//! use whisper::{Options, audio, facts::Facts, tokenizer::Tokenizer, transcribe, write::Format};
//! use whisper_runner::DeviceEngine;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let folder = Path::new("generated/whisper_model");
//!     let facts = Facts::read(&folder.join("model.json"))?;
//!     let tokenizer = Tokenizer::read(&folder.join("tokenizer.json"))?;
//!     let gpu = Gpu::open(&Select::Auto)?;
//!     let weights = folder.join("weights.jvcw");
//!     let mut engine = DeviceEngine::load(&gpu, WeightSource::Path(&weights), &CacheDir::Default, facts)?;
//!     let samples = audio::read(Path::new("speech.flac"))?;
//!     let transcript = transcribe(&mut engine, &tokenizer, &samples, &Options::default(), &mut |_, _| {})?;
//!     print!("{}", Format::Srt.write(&transcript));
//!     Ok(())
//! }
//! ```
//!
//! On an application's own Vulkan device, with weights that it holds in memory, several recordings at the same time:
//!
//! ```no_run
//! use jvc_runner::jvc_runtime::{BorrowedDevice, CacheDir, Gpu, WeightSource};
//! use whisper::{Options, facts::Facts, tokenizer::Tokenizer, transcribe};
//! use whisper_runner::DeviceEngine;
//!
//! fn all(
//!     device: BorrowedDevice,
//!     weights: &[u8],
//!     facts: Facts,
//!     tokenizer: &Tokenizer,
//!     recordings: &[Vec<f32>],
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     // SAFETY: the handles are the application's, and outlive everything below.
//!     let gpu = unsafe { Gpu::borrow(device) }?;
//!     let first = DeviceEngine::load(&gpu, WeightSource::Bytes(weights), &CacheDir::None, facts.clone())?;
//!     std::thread::scope(|threads| {
//!         for samples in recordings {
//!             let mut engine = DeviceEngine::new(&gpu, first.model().clone(), facts.clone())?; // shares the weights
//!             threads.spawn(move || transcribe(&mut engine, tokenizer, samples, &Options::default(), &mut |_, _| {}));
//!         }
//!         Ok(())
//!     })
//! }
//! ```

mod engine;

pub use engine::{DeviceEngine, EngineError, needs};
