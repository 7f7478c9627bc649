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

mod engine;

pub use engine::{DeviceEngine, EngineError, needs};
