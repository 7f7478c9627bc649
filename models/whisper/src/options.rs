//! What a caller chooses of a transcription.

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Task {
    /// What is said.
    #[default]
    Transcribe,
    /// What is said, in English.
    Translate,
}

/// How to transcribe; the defaults are upstream's.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Code of the language, as `de`; `None` finds out from the first 30 s. English models take `en` only.
    pub language: Option<String>,
    /// What is written. English models transcribe only.
    pub task: Task,
    /// The model writes times: segments, and windows that move on to where a segment ends. Without, windows are 30 s.
    pub timestamps: bool,
    /// Times of words, by the attention of the alignment heads.
    pub words: bool,
    /// Temperatures that are tried in turn while a result is poor; 0 takes the likeliest tokens. At least one.
    pub temperatures: Vec<f32>,
    /// A text that compresses better than this repeats itself.
    pub compression_ratio_threshold: Option<f32>,
    /// A text of a lower mean log-probability is not sure.
    pub logprob_threshold: Option<f32>,
    /// Windows where nobody speaks with more than this probability, and whose text is not sure, are left out.
    pub no_speech_threshold: Option<f32>,
    /// The text so far is the prompt of the next window.
    pub condition_on_previous: bool,
    /// Tokens of a window, at most.
    pub max_tokens: usize,
    /// The first segment of a window starts at most so many seconds after the window.
    pub latest_start: f32,
    /// Of draws at temperatures above 0.
    pub seed: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            language: None,
            task: Task::Transcribe,
            timestamps: true,
            words: false,
            temperatures: vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
            compression_ratio_threshold: Some(2.4),
            logprob_threshold: Some(-1.0),
            no_speech_threshold: Some(0.6),
            condition_on_previous: true,
            max_tokens: 224,
            latest_start: 1.0,
            seed: 0,
        }
    }
}

impl Options {
    /// The likeliest tokens and nothing else: no other temperatures, no thresholds.
    pub fn greedy() -> Self {
        Self {
            temperatures: vec![0.0],
            compression_ratio_threshold: None,
            logprob_threshold: None,
            no_speech_threshold: None,
            ..Self::default()
        }
    }
}
