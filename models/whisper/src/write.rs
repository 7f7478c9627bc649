//! Transcripts as text, subtitles and JSON.

use crate::transcribe::{Segment, Transcript};
use std::fmt::Write;

/// How a transcript is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A line for each segment.
    Txt,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
    /// Everything that is known.
    Json,
}

impl Format {
    /// By the ending of a file's name.
    pub fn of_extension(extension: &str) -> Option<Format> {
        match extension.to_ascii_lowercase().as_str() {
            "txt" => Some(Format::Txt),
            "srt" => Some(Format::Srt),
            "vtt" => Some(Format::Vtt),
            "json" => Some(Format::Json),
            _ => None,
        }
    }

    /// The contents of a file.
    pub fn write(self, transcript: &Transcript) -> String {
        let segments = &transcript.segments;
        let lines =
            |line: &dyn Fn((usize, &Segment)) -> String| segments.iter().enumerate().map(line).collect::<String>();
        match self {
            Format::Txt => lines(&|(_, s)| format!("{}\n", s.text.trim())),
            Format::Srt => lines(&|(i, s)| {
                let [start, end] = [s.start, s.end].map(|t| clock(t, true, ','));
                format!("{}\n{start} --> {end}\n{}\n\n", i + 1, subtitle(s))
            }),
            Format::Vtt => {
                let cues = lines(&|(_, s)| {
                    let [start, end] = [s.start, s.end].map(|t| clock(t, false, '.'));
                    format!("{start} --> {end}\n{}\n\n", subtitle(s))
                });
                format!("WEBVTT\n\n{cues}")
            }
            Format::Json => {
                let mut text =
                    serde_json::to_string_pretty(transcript).expect("a transcript has no maps with odd keys");
                text.push('\n');
                text
            }
        }
    }
}

/// The arrow stands between the times of a cue.
fn subtitle(segment: &Segment) -> String {
    segment.text.trim().replace("-->", "->")
}

/// `01:02:03,004`; hours only where there are any, unless `hours`.
pub fn clock(seconds: f64, hours: bool, point: char) -> String {
    let ms = (seconds.max(0.0) * 1000.0).round() as u64;
    let mut text = String::new();
    if hours || ms >= 3_600_000 {
        write!(text, "{:02}:", ms / 3_600_000).expect("writing into a string does not fail");
    }
    write!(text, "{:02}:{:02}{point}{:03}", ms / 60_000 % 60, ms / 1000 % 60, ms % 1000)
        .expect("writing into a string does not fail");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript() -> Transcript {
        let segment = |start, end, text: &str| Segment {
            start,
            end,
            text: text.to_owned(),
            tokens: vec![1],
            temperature: 0.0,
            avg_logprob: -0.25,
            compression_ratio: 1.0,
            no_speech_prob: 0.0,
            words: vec![],
        };
        let segments = vec![segment(0.0, 1.5, " Hello -->"), segment(3661.25, 3662.0, " there.")];
        Transcript {
            text: " Hello --> there.".to_owned(),
            language: "en".to_owned(),
            segments,
            ..Transcript::default()
        }
    }

    #[test]
    fn text_has_a_line_for_each_segment() {
        assert_eq!(Format::Txt.write(&transcript()), "Hello -->\nthere.\n");
    }

    #[test]
    fn subtitles_have_numbers_times_and_no_arrow_in_the_text() {
        let srt = "1\n00:00:00,000 --> 00:00:01,500\nHello ->\n\n2\n01:01:01,250 --> 01:01:02,000\nthere.\n\n";
        assert_eq!(Format::Srt.write(&transcript()), srt);
        let vtt = "WEBVTT\n\n00:00.000 --> 00:01.500\nHello ->\n\n01:01:01.250 --> 01:01:02.000\nthere.\n\n";
        assert_eq!(Format::Vtt.write(&transcript()), vtt);
    }

    #[test]
    fn json_says_everything_that_is_known() {
        let json: serde_json::Value = serde_json::from_str(&Format::Json.write(&transcript())).expect("it is JSON");
        assert_eq!((&json["language"], &json["segments"][1]["start"]), (&"en".into(), &3661.25.into()));
        assert!(json.get("language_probability").is_none() && json["segments"][0].get("words").is_none());
    }

    #[test]
    fn the_form_is_known_by_the_ending() {
        assert_eq!(["a", "SRT"].map(Format::of_extension), [None, Some(Format::Srt)]);
    }
}
