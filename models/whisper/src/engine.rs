//! What the transcriber needs of the network: the trait that `runner/` implements with the generated crate.

use crate::facts::Facts;

/// Samples of a window of the `logmel` program: 3000 frames, with 200 samples before the middle of the first one.
pub const WINDOW_SAMPLES: usize = 2999 * 160 + 400;

/// Frames of a window, 10 ms each.
pub const WINDOW_FRAMES: usize = 3000;

/// What may be chosen at a step, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// The first token of a transcript: `suppress_begin` holds too.
    pub first: bool,
    /// A timestamp is chosen when timestamps together are likelier than the likeliest other token.
    pub timestamps: bool,
    /// Ranges of forbidden ids, each from its first to one past its last.
    pub forbidden: [(u32, u32); 3],
    /// 0 takes the likeliest token; else the token is drawn at this temperature.
    pub temperature: f32,
    /// Which draw it is: the same two numbers give the same token.
    pub seed: u32,
    /// The second number.
    pub draw: u32,
}

impl Choice {
    /// The likeliest of all ids.
    pub const ANY: Choice =
        Choice { first: false, timestamps: false, forbidden: [(0, 0); 3], temperature: 0.0, seed: 0, draw: 0 };
}

/// What a step gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chosen {
    /// The next token.
    pub token: u32,
    /// Logarithm of its probability among the allowed ones.
    pub logprob: f32,
    /// Probability of the token "nobody speaks" among all; it means something after the start of a transcript.
    pub no_speech: f32,
}

/// The network on a device. Between these calls, everything but what they take and give stays on the device.
pub trait Engine {
    /// What can go wrong.
    type Error: std::error::Error + 'static;

    /// Sizes and special tokens.
    fn facts(&self) -> &Facts;

    /// Computes a spectrogram of [`WINDOW_SAMPLES`] samples and keeps it; gives its greatest value among the first `frames` frames.
    ///
    /// # Errors
    /// The device's.
    fn spectrogram(&mut self, samples: &[f32], frames: usize) -> Result<f32, Self::Error>;

    /// Listens to the first `frames` frames of the spectrogram, where `top` is the greatest value of the whole recording.
    ///
    /// # Errors
    /// The device's.
    fn listen(&mut self, top: f32, frames: usize) -> Result<(), Self::Error>;

    /// Reads tokens from position 0 on, of which the steps after then know. At most the context's length less one.
    ///
    /// # Errors
    /// The device's.
    fn prefill(&mut self, tokens: &[u32]) -> Result<(), Self::Error>;

    /// Reads one token at its position and chooses the next.
    ///
    /// # Errors
    /// The device's.
    fn step(&mut self, token: u32, position: usize, choice: &Choice) -> Result<Chosen, Self::Error>;

    /// How much each alignment head looks at each 20 ms of the sound for each token: (head, token, 1500), row-major.
    ///
    /// # Errors
    /// The device's.
    fn align(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Self::Error>;
}
