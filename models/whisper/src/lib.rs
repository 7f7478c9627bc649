//! Whisper around a crate that jvc generates: everything but the network itself.
//!
//! A recording is read and brought to 16 kHz ([`audio`]) and transcribed in windows of 30 s ([`transcribe()`]): the network writes
//! tokens (`decode`) by the rules of timestamps ([`rules`]); tokens become text ([`tokenizer`]), segments and [`words`], and these a
//! file ([`write`]). The network is behind one trait, [`engine::Engine`]; `runner/` implements it with the generated crate.
//!
//! ```
//! use whisper::engine::{Choice, Chosen, Engine};
//! use whisper::facts::{Facts, Special};
//! use whisper::{Options, tokenizer::Tokenizer, transcribe, write::Format};
//!
//! /// A network that always hears "hi" for a second: `<|0.00|> hi<|1.00|>`, then the end.
//! struct Hi(Facts);
//!
//! impl Engine for Hi {
//!     type Error = std::convert::Infallible;
//!     fn facts(&self) -> &Facts {
//!         &self.0
//!     }
//!     fn spectrogram(&mut self, _samples: &[f32], _frames: usize) -> Result<f32, Self::Error> {
//!         Ok(0.0)
//!     }
//!     fn listen(&mut self, _top: f32, _frames: usize) -> Result<(), Self::Error> {
//!         Ok(())
//!     }
//!     fn prefill(&mut self, _tokens: &[u32]) -> Result<(), Self::Error> {
//!         Ok(())
//!     }
//!     fn step(&mut self, _token: u32, position: usize, _choice: &Choice) -> Result<Chosen, Self::Error> {
//!         let token = [20, 0, 70, 10][position];
//!         Ok(Chosen { token, logprob: -0.1, no_speech: 0.0 })
//!     }
//!     fn align(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Self::Error> {
//!         Ok(vec![0.0; tokens.len() * 1500])
//!     }
//! }
//!
//! let tokens = Special {
//!     end: 10, start: 11, language_begin: 12, n_languages: 1, translate: 13, transcribe: 14, start_of_lm: 15, previous: 16,
//!     no_speech: 17, no_timestamps: 18, timestamp_begin: 20,
//! };
//! let facts = Facts {
//!     d_model: 4, decoder_layers: 1, heads: 1, mels: 80, vocabulary: 1521, context: 448, half: false, multilingual: false, tokens,
//!     suppress: vec![], suppress_begin: vec![], alignment_heads: vec![(0, 0)],
//! };
//! let tokenizer = Tokenizer::parse(r#"{"model": {"vocab": {"Ġhi": 0}}}"#.as_bytes())?;
//!
//! let samples = vec![0.0; 16_000];
//! let transcript = transcribe(&mut Hi(facts), &tokenizer, &samples, &Options::default(), &mut |_, _| {}).unwrap();
//! assert_eq!(Format::Srt.write(&transcript), "1\n00:00:00,000 --> 00:00:01,000\nhi\n\n");
//! # Ok::<(), String>(())
//! ```

pub mod audio;
pub mod decode;
pub mod engine;
pub mod facts;
pub mod options;
pub mod rules;
pub mod tokenizer;
pub mod transcribe;
pub mod window;
pub mod words;
pub mod write;

pub use options::{Options, Task};
pub use transcribe::{Segment, Transcript, detect_language, transcribe};

/// Samples a second that the network hears.
pub const RATE: u32 = 16_000;
