//! The command line.

use clap::{Parser, Subcommand, ValueEnum};
use jvc_runner::Common;
use jvc_runner::bench::BenchArgs;
use std::path::PathBuf;
use whisper::write::Format;
use whisper::{Options, Task};

/// Transcribes recordings with Whisper on a Vulkan device.
///
/// WAV, FLAC, MP3 and Ogg Vorbis of any length, rate and number of channels.
///
/// Examples:
///   whisper speech.flac
///   whisper talk.mp3 -o talk.srt --language de
///   whisper talk.mp3 --format json --words
///   whisper bench --device 1       (options of a command stand behind it)
#[derive(Debug, Parser)]
#[command(name = "whisper", version, verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Something else than a transcript
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The recording
    #[arg(required = true)]
    pub input: Option<PathBuf>,
    /// Where the transcript goes; its ending says how it is written. Without, it is printed
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// How it is written
    #[arg(long, value_enum)]
    pub format: Option<Form>,
    /// What was decided and how
    #[command(flatten)]
    pub decoding: Decoding,
    /// Folder with model.json and tokenizer.json, which export.py writes [default: that of the weights]
    #[arg(long, value_name = "DIR", global = true)]
    pub model: Option<PathBuf>,
    /// What all programs have
    #[command(flatten)]
    pub common: Common,
}

/// Something else than a transcript.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures each part on this device: spectrogram, encoder, a step, 30 s of sound
    Bench(BenchArgs),
}

/// How a transcript is decoded.
#[derive(Debug, clap::Args)]
pub struct Decoding {
    /// Language of the recording, as en or de; without, models of several languages find out
    #[arg(long, value_name = "CODE")]
    pub language: Option<String>,
    /// What is written: what is said, or that in English
    #[arg(long, value_enum, default_value = "transcribe")]
    pub task: TaskName,
    /// Temperatures that are tried in turn while a result is poor, with commas; 0 is greedy
    #[arg(long, value_delimiter = ',', default_value = "0,0.2,0.4,0.6,0.8,1")]
    pub temperature: Vec<f32>,
    /// A text that compresses better than this is poor
    #[arg(long, default_value_t = 2.4)]
    pub compression_ratio_threshold: f32,
    /// A text of a lower mean log-probability is poor
    #[arg(long, default_value_t = -1.0, allow_negative_numbers = true)]
    pub logprob_threshold: f32,
    /// Leave out windows where nobody speaks with more than this probability
    #[arg(long, default_value_t = 0.6)]
    pub no_speech_threshold: f32,
    /// Do not give the text so far to the next window: less consistent, but errors do not spread
    #[arg(long)]
    pub no_condition: bool,
    /// No times: windows of 30 s
    #[arg(long, conflicts_with = "words")]
    pub no_timestamps: bool,
    /// Times of words, in JSON
    #[arg(long)]
    pub words: bool,
    /// Seed of draws at temperatures above 0
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(..1 << 31))]
    pub seed: u32,
}

impl Decoding {
    /// As the library takes it.
    pub fn options(&self) -> Options {
        Options {
            language: self.language.clone(),
            task: match self.task {
                TaskName::Transcribe => Task::Transcribe,
                TaskName::Translate => Task::Translate,
            },
            timestamps: !self.no_timestamps,
            words: self.words,
            temperatures: self.temperature.clone(),
            compression_ratio_threshold: Some(self.compression_ratio_threshold),
            logprob_threshold: Some(self.logprob_threshold),
            no_speech_threshold: Some(self.no_speech_threshold),
            condition_on_previous: !self.no_condition,
            seed: self.seed,
            ..Options::default()
        }
    }
}

/// The task, by name.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum TaskName {
    /// What is said
    Transcribe,
    /// What is said, in English
    Translate,
}

/// The form, by name.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Form {
    /// A line for each segment
    Txt,
    /// SubRip subtitles
    Srt,
    /// WebVTT subtitles
    Vtt,
    /// Everything that is known
    Json,
}

impl From<Form> for Format {
    fn from(form: Form) -> Format {
        match form {
            Form::Txt => Format::Txt,
            Form::Srt => Format::Srt,
            Form::Vtt => Format::Vtt,
            Form::Json => Format::Json,
        }
    }
}
