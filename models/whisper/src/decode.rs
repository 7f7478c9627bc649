//! One window's transcript: the prompt is read, tokens are chosen until the end, and again at higher temperatures where the
//! result looks wrong.

use crate::engine::{Choice, Chosen, Engine};
use crate::options::Options;
use crate::rules;
use crate::tokenizer::Tokenizer;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write;

/// Prompts shorter than this are read token by token.
const PREFILL_FROM: usize = 8;

/// What a window says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decoded {
    /// Tokens with timestamps, without the end.
    pub tokens: Vec<u32>,
    /// Logarithm of each one's probability.
    pub logprobs: Vec<f32>,
    /// Their mean, with the end's.
    pub mean_logprob: f32,
    /// Probability that nobody speaks.
    pub no_speech: f32,
    /// At which the tokens were drawn.
    pub temperature: f32,
    /// How many times shorter the text becomes when it is compressed: repetitive text becomes much shorter.
    pub compression_ratio: f32,
}

impl Decoded {
    /// Nobody speaks: the model says so, and is not sure of what it wrote.
    pub fn is_silence(&self, options: &Options) -> bool {
        let unsure = options.logprob_threshold.is_none_or(|least| self.mean_logprob < least);
        options.no_speech_threshold.is_some_and(|most| self.no_speech > most) && unsure
    }

    /// The text repeats itself, or the model is not sure of it.
    fn is_poor(&self, options: &Options) -> bool {
        let repeats = options.compression_ratio_threshold.is_some_and(|most| self.compression_ratio > most);
        let unsure = options.logprob_threshold.is_some_and(|least| self.mean_logprob < least);
        repeats || unsure
    }
}

/// Decodes windows with one engine; counts its draws.
pub(crate) struct Decoder<'a, E> {
    pub(crate) engine: &'a mut E,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) options: &'a Options,
    pub(crate) draws: u32,
}

impl<E: Engine> Decoder<'_, E> {
    /// What the window that the engine has listened to says, after `prompt`: at the first temperature whose result is not poor.
    pub(crate) fn decode(&mut self, prompt: &[u32]) -> Result<Decoded, E::Error> {
        let start = self.engine.facts().tokens.start;
        let start = prompt.iter().rposition(|token| *token == start).unwrap_or(0);
        self.read_before(&prompt[..start])?;
        let mut best = Decoded::default();
        for &temperature in &self.options.temperatures {
            best = self.attempt(prompt, start, temperature)?;
            if !best.is_poor(self.options) || best.is_silence(self.options) {
                break;
            }
        }
        Ok(best)
    }

    fn read_before(&mut self, before: &[u32]) -> Result<(), E::Error> {
        if before.len() >= PREFILL_FROM {
            return self.engine.prefill(before);
        }
        before.iter().enumerate().try_for_each(|(at, token)| self.engine.step(*token, at, &Choice::ANY).map(|_| ()))
    }

    /// `prompt` up to `start` has been read: what an attempt writes behind it, the next one overwrites.
    fn attempt(&mut self, prompt: &[u32], start: usize, temperature: f32) -> Result<Decoded, E::Error> {
        let (context, end) = (self.engine.facts().context, self.engine.facts().tokens.end);
        let most = self.options.max_tokens.min(context - prompt.len());
        let mut decoded = Decoded { temperature, ..Decoded::default() };
        let mut position = start;
        let mut next = Chosen { token: end, logprob: 0.0, no_speech: 0.0 };
        for token in &prompt[start..] {
            let is_last = position + 1 == prompt.len();
            let choice = if is_last { self.choice(&[], temperature) } else { Choice::ANY };
            next = self.engine.step(*token, position, &choice)?;
            if position == start {
                decoded.no_speech = next.no_speech;
            }
            position += 1;
        }
        let mut sum = next.logprob;
        while next.token != end && decoded.tokens.len() < most {
            decoded.tokens.push(next.token);
            decoded.logprobs.push(next.logprob);
            if decoded.tokens.len() == most {
                break;
            }
            let choice = self.choice(&decoded.tokens, temperature);
            next = self.engine.step(next.token, position, &choice)?;
            position += 1;
            sum += next.logprob;
        }
        decoded.mean_logprob = sum / (decoded.tokens.len() + 1) as f32;
        decoded.compression_ratio = compression_ratio(self.tokenizer.text(&decoded.tokens).trim());
        Ok(decoded)
    }

    fn choice(&mut self, written: &[u32], temperature: f32) -> Choice {
        let (timestamps, tokens) = (self.options.timestamps, &self.engine.facts().tokens);
        let latest_start = tokens.timestamp_begin + (self.options.latest_start / 0.02).round() as u32;
        let forbidden =
            if timestamps { rules::forbidden(tokens, written, latest_start) } else { Choice::ANY.forbidden };
        self.draws = self.draws.wrapping_add(1) & 0x7fff_ffff;
        let (seed, draw) = (self.options.seed, self.draws);
        Choice { first: written.is_empty(), timestamps, forbidden, temperature, seed, draw }
    }
}

/// Length of a text by its length when compressed; 0 for none.
fn compression_ratio(text: &str) -> f32 {
    if text.is_empty() {
        return 0.0;
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let packed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    let packed = packed.expect("writing into memory does not fail");
    text.len() as f32 / packed.len() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetition_compresses_and_speech_hardly_does() {
        assert!(compression_ratio(&"and so on ".repeat(30)) > 2.4);
        assert!(compression_ratio("And Mr. John Dashwood had then leisure to consider how much there might be") < 1.5);
        assert_eq!(compression_ratio(""), 0.0);
    }

    #[test]
    fn silence_is_what_the_model_calls_so_and_is_not_sure_of() {
        let options = Options::default();
        let of = |no_speech, mean_logprob| Decoded { no_speech, mean_logprob, ..Decoded::default() };
        assert!(of(0.7, -1.5).is_silence(&options));
        assert!(!of(0.7, -0.5).is_silence(&options), "it is sure of the text");
        assert!(!of(0.5, -1.5).is_silence(&options));
        assert!(of(0.5, -1.5).is_poor(&options) && !of(0.5, -0.5).is_poor(&options));
        assert!(Decoded { compression_ratio: 3.0, ..of(0.0, 0.0) }.is_poor(&options));
    }
}
