//! Whole recordings: windows of 30 s that move on to where the last whole segment ends.

use crate::decode::{Decoded, Decoder};
use crate::engine::{Choice, Engine};
use crate::facts::{Facts, Special};
use crate::options::{Options, Task};
use crate::tokenizer::Tokenizer;
use crate::window::Recording;
use crate::words::{self, Word};
use serde::Serialize;

/// Seconds of a step of timestamps.
const STEP: f64 = 0.02;

/// Frames of a step of timestamps.
const STEP_FRAMES: usize = 2;

/// Something that was said.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Segment {
    /// Seconds.
    pub start: f64,
    /// Seconds.
    pub end: f64,
    /// What was said, with the space before it.
    pub text: String,
    /// The tokens, with timestamps.
    pub tokens: Vec<u32>,
    /// At which the window's tokens were drawn.
    pub temperature: f32,
    /// Mean log-probability of the window's tokens.
    pub avg_logprob: f32,
    /// How well the window's text compresses.
    pub compression_ratio: f32,
    /// Probability that nobody speaks in the window.
    pub no_speech_prob: f32,
    /// With [`Options::words`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<Word>,
}

/// A recording's text.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Transcript {
    /// All of it.
    pub text: String,
    /// Code of the language.
    pub language: String,
    /// Probability of the language among all, where it was found out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language_probability: Option<f32>,
    /// In order.
    pub segments: Vec<Segment>,
}

/// Why there is no transcript.
#[derive(Debug, thiserror::Error)]
pub enum TranscribeError<E: std::error::Error + 'static> {
    /// The device's.
    #[error("{0}")]
    Engine(#[from] E),
    /// The model does not know the language.
    #[error("the model does not know the language {0:?}{1}")]
    Language(String, &'static str),
    /// The model is for English alone.
    #[error("an English model does not translate")]
    Translate,
    /// There is none.
    #[error("no temperature to decode at")]
    NoTemperature,
}

/// Where a transcription is, in hundredths of a second of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Transcribed.
    pub done: usize,
    /// Length of the recording.
    pub total: usize,
}

/// Transcribes samples at 16 kHz. `progress` is called before every window and at the end, with the segments so far.
///
/// # Errors
/// The engine's, and options that the model cannot follow.
pub fn transcribe<E: Engine>(
    engine: &mut E,
    tokenizer: &Tokenizer,
    samples: &[f32],
    options: &Options,
    progress: &mut dyn FnMut(Progress, &[Segment]),
) -> Result<Transcript, TranscribeError<E::Error>> {
    if options.temperatures.is_empty() {
        return Err(TranscribeError::NoTemperature);
    }
    let recording = Recording::new(samples);
    let mut transcript = Transcript { language: "en".to_owned(), ..Transcript::default() };
    let total = recording.frames();
    let top = loudest(engine, &recording)?;
    let opening = opening(engine, tokenizer, &recording, top, options, &mut transcript)?;
    let mut decoder = Decoder { engine, tokenizer, options, draws: 0 };
    let (mut seek, mut history) = (0, Vec::new());
    while seek < total {
        progress(Progress { done: seek, total }, &transcript.segments);
        listen(decoder.engine, &recording, seek, top)?;
        let facts = decoder.engine.facts();
        let prompt = prompt(facts, options, &history, &opening);
        let within = (total - seek).min(crate::engine::WINDOW_FRAMES);
        let decoded = decoder.decode(&prompt)?;
        if decoded.is_silence(options) {
            seek += within;
            continue;
        }
        if decoded.temperature > 0.5 {
            history.clear();
        }
        let (mut segments, advance) = segments(&decoder.engine.facts().tokens, tokenizer, &decoded, seek, within);
        if options.words {
            let at = seek as f64 / 100.0;
            words::add(
                decoder.engine,
                tokenizer,
                &opening,
                &decoded,
                &mut segments,
                (at, within),
                &transcript.language,
            )?;
        }
        history.extend(segments.iter().flat_map(|segment| &segment.tokens));
        transcript.segments.extend(segments.into_iter().filter(|segment| !segment.text.trim().is_empty()));
        seek += advance.max(1);
    }
    progress(Progress { done: total, total }, &transcript.segments);
    transcript.text = transcript.segments.iter().map(|segment| segment.text.as_str()).collect();
    Ok(transcript)
}

/// The greatest value of the whole recording's spectrogram.
fn loudest<E: Engine>(engine: &mut E, recording: &Recording<'_>) -> Result<f32, E::Error> {
    let mut top = f32::MIN;
    let mut frame = 0;
    while recording.frames_from(frame) > 0 {
        let frames = recording.frames_from(frame);
        top = top.max(engine.spectrogram(&recording.window(frame), frames)?);
        frame += frames;
    }
    Ok(top)
}

fn listen<E: Engine>(engine: &mut E, recording: &Recording<'_>, seek: usize, top: f32) -> Result<(), E::Error> {
    let frames = recording.frames_from(seek);
    engine.spectrogram(&recording.window(seek), frames)?;
    engine.listen(top, frames)
}

/// The tokens that a transcript starts with: start, and for models of several languages the language and the task.
fn opening<E: Engine>(
    engine: &mut E,
    tokenizer: &Tokenizer,
    recording: &Recording<'_>,
    top: f32,
    options: &Options,
    transcript: &mut Transcript,
) -> Result<Vec<u32>, TranscribeError<E::Error>> {
    let (tokens, multilingual) = (engine.facts().tokens, engine.facts().multilingual);
    let wanted = options.language.as_deref();
    let mut opening = vec![tokens.start];
    if multilingual {
        let language = match wanted {
            Some(code) => known_language(tokenizer, &tokens, code)?,
            None => {
                listen(engine, recording, 0, top)?;
                let (language, probability) = detect_language(engine)?;
                transcript.language_probability = Some(probability);
                language
            }
        };
        transcript.language = tokenizer.language(language).unwrap_or_default().to_owned();
        opening.push(language);
        opening.push(if options.task == Task::Translate { tokens.translate } else { tokens.transcribe });
    } else if let Some(code) = wanted.filter(|code| *code != "en") {
        return Err(TranscribeError::Language(code.to_owned(), ": it is for English alone"));
    } else if options.task == Task::Translate {
        return Err(TranscribeError::Translate);
    }
    if !options.timestamps {
        opening.push(tokens.no_timestamps);
    }
    Ok(opening)
}

fn known_language<E: std::error::Error>(
    tokenizer: &Tokenizer,
    tokens: &Special,
    code: &str,
) -> Result<u32, TranscribeError<E>> {
    let known = tokens.language_begin..tokens.language_begin + tokens.n_languages;
    let token = tokenizer.special(&format!("<|{code}|>")).filter(|token| known.contains(token));
    token.ok_or_else(|| TranscribeError::Language(code.to_owned(), "; languages are codes such as en, de or zh"))
}

/// The language of the window that was listened to, and its probability among all.
///
/// # Errors
/// The device's.
pub fn detect_language<E: Engine>(engine: &mut E) -> Result<(u32, f32), E::Error> {
    let tokens = engine.facts().tokens;
    let languages = (tokens.language_begin, tokens.language_begin + tokens.n_languages);
    let forbidden = [(0, languages.0), (languages.1, u32::MAX), (0, 0)];
    let chosen = engine.step(tokens.start, 0, &Choice { forbidden, ..Choice::ANY })?;
    Ok((chosen.token, chosen.logprob.exp()))
}

/// The text before, as much as half the context takes, and the opening.
fn prompt(facts: &Facts, options: &Options, history: &[u32], opening: &[u32]) -> Vec<u32> {
    if !options.condition_on_previous || history.is_empty() {
        return opening.to_vec();
    }
    let latest = &history[history.len().saturating_sub(facts.context / 2 - 1)..];
    [&[facts.tokens.previous], latest, opening].concat()
}

/// Segments of a window that starts at frame `seek` and has `within` frames of sound, and how many frames to move on.
fn segments(
    tokens: &Special,
    tokenizer: &Tokenizer,
    decoded: &Decoded,
    seek: usize,
    within: usize,
) -> (Vec<Segment>, usize) {
    let is_time = |token: u32| token >= tokens.timestamp_begin;
    let steps = |token: u32| token.saturating_sub(tokens.timestamp_begin) as usize;
    let written = &decoded.tokens[..];
    let at = seek as f64 / 100.0;
    let segment = |part: &[u32], start: usize, end: usize| Segment {
        start: at + start as f64 * STEP,
        end: at + end as f64 * STEP,
        text: tokenizer.text(part),
        tokens: part.to_vec(),
        temperature: decoded.temperature,
        avg_logprob: decoded.mean_logprob,
        compression_ratio: decoded.compression_ratio,
        no_speech_prob: decoded.no_speech,
        words: Vec::new(),
    };
    let n = written.len();
    // The transcript ends with a time after text: there is nothing more in this window.
    let complete = n >= 2 && is_time(written[n - 1]) && !is_time(written[n - 2]);
    let mut cuts: Vec<usize> = (1..n).filter(|i| is_time(written[i - 1]) && is_time(written[*i])).collect();
    if cuts.is_empty() {
        let last = written.iter().rev().find(|token| is_time(**token)).map(|token| steps(*token));
        let end = last.filter(|steps| *steps > 0).unwrap_or(within / STEP_FRAMES);
        return (vec![segment(written, 0, end)], within);
    }
    if complete {
        cuts.push(n);
    }
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let parts = starts.zip(&cuts).map(|(from, to)| &written[from..*to]);
    let list = parts.map(|part| segment(part, steps(part[0]), steps(part[part.len() - 1]))).collect();
    let last = steps(written[cuts[cuts.len() - 1] - 1]) * STEP_FRAMES;
    (list, if complete { within } else { last })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(written: &[u32]) -> (Vec<(f64, f64, usize)>, usize) {
        let decoded = Decoded { tokens: written.to_vec(), ..Decoded::default() };
        let (list, advance) = segments(&Special::SMALL, &Tokenizer::default(), &decoded, 1000, 2500);
        (list.iter().map(|s| (s.start, s.end, s.tokens.len())).collect(), advance)
    }

    #[test]
    fn segments_end_where_two_times_meet_and_the_window_moves_to_the_last_whole_one() {
        assert_eq!(cut(&[19, 1, 69, 69, 2, 119, 119, 3]), (vec![(10.0, 11.0, 3), (11.0, 12.0, 3)], 200));
    }

    #[test]
    fn a_time_after_text_at_the_end_completes_the_window() {
        assert_eq!(cut(&[19, 1, 69, 69, 2, 119]), (vec![(10.0, 11.0, 3), (11.0, 12.0, 3)], 2500));
        assert_eq!(cut(&[19, 1, 69]), (vec![(10.0, 11.0, 3)], 2500));
    }

    #[test]
    fn without_times_a_window_is_one_segment() {
        assert_eq!(cut(&[1, 2, 3]), (vec![(10.0, 35.0, 3)], 2500));
        assert_eq!(cut(&[]), (vec![(10.0, 35.0, 0)], 2500));
    }
}
