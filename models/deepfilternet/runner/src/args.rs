//! The command line.

use clap::{Parser, Subcommand};
use deepfilternet::stream::Settings;
use jvc_runner::Common;
use jvc_runner::bench::BenchArgs;
use std::path::PathBuf;

/// Removes noise from speech with DeepFilterNet3.
///
/// Any length, sampling rate and number of channels; the output has those of the input.
///
/// Examples:
///   deepfilternet noisy.wav -o enhanced.wav
///   deepfilternet noisy.wav -o enhanced.wav --atten-lim 12 --post-filter
///   deepfilternet noisy.wav -o enhanced.wav --reference clean.wav --spectrogram picture.png
///   deepfilternet clean.wav -o enhanced.wav --add-noise 5 --seed 1 --noisy noisy.wav
///   arecord -f S16_LE -c 1 -r 48000 -t raw | deepfilternet stream | aplay -f S16_LE -c 1 -r 48000 -t raw
///   deepfilternet bench --json
#[derive(Debug, Parser)]
#[command(name = "deepfilternet", version, verbatim_doc_comment)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Args {
    /// Something other than recordings
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The recording
    #[arg(required = true)]
    pub input: Option<PathBuf>,
    /// Where the enhanced recording goes
    #[arg(short, long, required = true)]
    pub output: Option<PathBuf>,
    /// Writes 32-bit floats, whatever the input's format
    #[arg(long)]
    pub float: bool,
    /// How strongly noise is removed
    #[command(flatten)]
    pub strength: Strength,
    /// Takes INPUT as clean and mixes noise into it, with this signal-to-noise ratio in dB
    #[arg(long, value_name = "DB", conflicts_with = "reference", allow_negative_numbers = true)]
    pub add_noise: Option<f64>,
    /// Seed of the noise
    #[arg(long, default_value_t = 1, requires = "add_noise")]
    pub seed: u64,
    /// Where the noisy mix goes
    #[arg(long, requires = "add_noise")]
    pub noisy: Option<PathBuf>,
    /// The clean recording, for SI-SDR before and after
    #[arg(long)]
    pub reference: Option<PathBuf>,
    /// Fails if SI-SDR rises by less than this many dB
    #[arg(long, value_name = "DB")]
    pub at_least: Option<f64>,
    /// Where the picture of both spectra goes (PNG)
    #[arg(long)]
    pub spectrogram: Option<PathBuf>,
    /// Options that every program has
    #[command(flatten)]
    pub common: Common,
}

/// Something other than recordings.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Filters signed 16-bit samples, one channel at 48 kHz, from standard input to standard output, hop by hop
    Stream {
        /// How strongly noise is removed
        #[command(flatten)]
        strength: Strength,
    },
    /// Measures a hop
    Bench {
        /// How often
        #[command(flatten)]
        bench: BenchArgs,
    },
}

/// How strongly noise is removed.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Strength {
    /// Attenuates noise by no more than this many dB
    #[arg(long, value_name = "DB", allow_negative_numbers = true)]
    pub atten_lim: Option<f32>,
    /// Attenuates noisy bands a little more; with another strength than upstream's where given
    #[arg(long, value_name = "BETA", num_args = 0..=1, require_equals = true, default_missing_value = BETA)]
    pub post_filter: Option<f32>,
}

/// `POST_FILTER_BETA` as text.
const BETA: &str = "0.02";

impl From<Strength> for Settings {
    fn from(args: Strength) -> Self {
        Self { attenuation_limit_db: args.atten_lim, post_filter: args.post_filter }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deepfilternet::stream::POST_FILTER_BETA;

    #[test]
    fn the_post_filter_has_upstreams_strength_where_none_is_given() {
        let strength = |args: &[&str]| {
            let args = [&["deepfilternet", "in.wav", "-o", "out.wav"], args].concat();
            Args::parse_from(args).strength.post_filter
        };
        assert_eq!(strength(&[]), None);
        assert_eq!(strength(&["--post-filter"]), Some(POST_FILTER_BETA));
        assert_eq!(strength(&["--post-filter=0.05"]), Some(0.05));
    }

    #[test]
    fn subcommands_need_no_recording() {
        assert!(Args::try_parse_from(["deepfilternet", "bench", "--repeats", "2", "--device", "0"]).is_ok());
        assert!(Args::try_parse_from(["deepfilternet", "in.wav"]).is_err());
    }
}
