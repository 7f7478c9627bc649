//! The command line.

use clap::Parser;
use std::path::PathBuf;

/// Removes noise from speech with DeepFilterNet3.
///
/// Any length, sampling rate and number of channels; the output has those of the input.
///
/// Examples:
///   deepfilternet noisy.wav -o enhanced.wav
///   deepfilternet noisy.wav -o enhanced.wav --reference clean.wav --spectrogram picture.png
///   deepfilternet clean.wav -o enhanced.wav --add-noise 5 --seed 1 --noisy noisy.wav
#[derive(Debug, Parser)]
#[command(name = "deepfilternet", version, verbatim_doc_comment)]
pub struct Args {
    /// The recording
    pub input: PathBuf,
    /// Where the enhanced recording goes
    #[arg(short, long)]
    pub output: PathBuf,
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
    /// The weight file that jvc wrote
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../generated/deepfilternet3_step/weights.jvcw"))]
    pub weights: PathBuf,
    /// Part of the name of the Vulkan device; by default the best one
    #[arg(long)]
    pub device: Option<String>,
}
