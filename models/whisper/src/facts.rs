//! What `export.py` writes beside the programs: sizes of the model and its special tokens, `model.json`.

use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Ids of the tokens that are no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Special {
    /// End of a transcript; all ids below are text.
    pub end: u32,
    /// Start of a transcript.
    pub start: u32,
    /// The first language.
    pub language_begin: u32,
    /// Number of languages.
    pub n_languages: u32,
    /// Task: translate to English.
    pub translate: u32,
    /// Task: write what is said.
    pub transcribe: u32,
    /// Start of a language model's text; never used.
    pub start_of_lm: u32,
    /// Start of the text before.
    pub previous: u32,
    /// Nobody speaks.
    pub no_speech: u32,
    /// The transcript has no timestamps.
    pub no_timestamps: u32,
    /// 0.00 s; each further id is 0.02 s more.
    pub timestamp_begin: u32,
}

#[cfg(test)]
impl Special {
    /// Ids of a vocabulary of ten words, for tests of the rules.
    pub(crate) const SMALL: Special = Special {
        end: 10,
        start: 11,
        language_begin: 12,
        n_languages: 1,
        translate: 13,
        transcribe: 14,
        start_of_lm: 15,
        previous: 16,
        no_speech: 17,
        no_timestamps: 18,
        timestamp_begin: 19,
    };
}

/// Facts of an exported model.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Facts {
    /// Width of the model.
    pub d_model: usize,
    /// Layers of the decoder.
    pub decoder_layers: usize,
    /// Heads of attention of the decoder.
    pub heads: usize,
    /// Bins of the mel spectrogram.
    pub mels: usize,
    /// Number of token ids.
    pub vocabulary: usize,
    /// Tokens that the decoder can see.
    pub context: usize,
    /// Values are f16.
    pub half: bool,
    /// The model knows more than English. English models have no use for the tokens of languages and tasks.
    pub multilingual: bool,
    /// The special tokens.
    pub tokens: Special,
    /// Ids that are never written.
    pub suppress: Vec<u32>,
    /// Ids that do not begin a transcript.
    pub suppress_begin: Vec<u32>,
    /// (layer, head) whose attention follows the sound, for times of words.
    pub alignment_heads: Vec<(usize, usize)>,
}

/// Why there are no facts.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}; export.py writes model.json and tokenizer.json, which belong beside the weights", path.display())]
pub struct FactsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: String,
}

impl Facts {
    /// Reads `model.json`.
    ///
    /// # Errors
    /// A file that is missing or something else.
    pub fn read(path: &Path) -> Result<Facts, FactsError> {
        let refuse = |fault: String| FactsError { path: path.to_owned(), fault };
        let text = std::fs::read(path).map_err(|e| refuse(e.to_string()))?;
        serde_json::from_slice(&text).map_err(|e| refuse(e.to_string()))
    }

    /// Values of the keys, or of the values, of cross-attention.
    pub fn cross_values(&self) -> usize {
        self.decoder_layers * 1500 * self.d_model
    }
}
