//! Wav files: any number of channels, any rate, 8 to 32 bit integers or 32-bit floats; written in the format read.

use std::path::{Path, PathBuf};

/// How samples stand in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Signed integers of so many bits (8, 16, 24 or 32).
    Int(u16),
    /// 32-bit floats.
    Float,
}

/// A recording in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Audio {
    /// Samples per second.
    pub rate: u32,
    /// Format to write.
    pub format: Format,
    /// One vector a channel, all of one length, full scale at ±1.
    pub channels: Vec<Vec<f32>>,
}

/// Why a wav file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// The file is not there, not a wav file, cut off, or of a kind that is not read (compressed, 64-bit floats).
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the wav library says.
        source: hound::Error,
    },
    /// The file could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the wav library says.
        source: hound::Error,
    },
}

impl Audio {
    /// Samples per channel.
    pub fn len(&self) -> usize {
        self.channels.first().map_or(0, Vec::len)
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Duration in seconds.
    pub fn seconds(&self) -> f64 {
        self.len() as f64 / f64::from(self.rate)
    }

    /// The mean of the channels.
    pub fn mono(&self) -> Vec<f32> {
        let scale = 1.0 / self.channels.len() as f32;
        (0..self.len()).map(|i| self.channels.iter().map(|c| c[i]).sum::<f32>() * scale).collect()
    }

    /// Reads a wav file.
    ///
    /// # Errors
    /// [`AudioError::Read`].
    pub fn read(path: &Path) -> Result<Self, AudioError> {
        read(path).map_err(|source| AudioError::Read { path: path.to_owned(), source })
    }

    /// Writes a wav file; integers are rounded, and clipped at full scale.
    ///
    /// # Errors
    /// [`AudioError::Write`].
    pub fn write(&self, path: &Path) -> Result<(), AudioError> {
        write(self, path).map_err(|source| AudioError::Write { path: path.to_owned(), source })
    }
}

fn read(path: &Path) -> Result<Audio, hound::Error> {
    let mut reader = hound::WavReader::open(path)?;
    let spec = reader.spec();
    let (format, samples): (Format, Vec<f32>) = match spec.sample_format {
        hound::SampleFormat::Float => (Format::Float, reader.samples::<f32>().collect::<Result<_, _>>()?),
        hound::SampleFormat::Int => {
            let scale = 1.0 / full_scale(spec.bits_per_sample);
            let read = reader.samples::<i32>().map(|s| s.map(|v| (f64::from(v) * scale) as f32));
            (Format::Int(spec.bits_per_sample), read.collect::<Result<_, _>>()?)
        }
    };
    let n = usize::from(spec.channels);
    let channels = (0..n).map(|c| samples.iter().skip(c).step_by(n).copied().collect()).collect();
    Ok(Audio { rate: spec.sample_rate, format, channels })
}

fn write(audio: &Audio, path: &Path) -> Result<(), hound::Error> {
    let (bits_per_sample, sample_format) = match audio.format {
        Format::Int(bits) => (bits, hound::SampleFormat::Int),
        Format::Float => (32, hound::SampleFormat::Float),
    };
    // A wav header counts channels in 16 bits, and so does what was read from one.
    let channels = audio.channels.len() as u16;
    let spec = hound::WavSpec { channels, sample_rate: audio.rate, bits_per_sample, sample_format };
    let mut writer = hound::WavWriter::create(path, spec)?;
    for i in 0..audio.len() {
        for channel in &audio.channels {
            match audio.format {
                Format::Float => writer.write_sample(channel[i])?,
                Format::Int(bits) => writer.write_sample(to_int(channel[i], bits))?,
            }
        }
    }
    writer.finalize()
}

fn full_scale(bits: u16) -> f64 {
    f64::from(1u32 << (bits - 1))
}

fn to_int(value: f32, bits: u16) -> i32 {
    let full = full_scale(bits);
    (f64::from(value) * full).round().clamp(-full, full - 1.0) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording(format: Format, channels: usize) -> Audio {
        // Multiples of 1/64 are exact in every format.
        let channel = |c: usize| (0..100).map(|i| ((i * 7 + c * 13) % 128) as f32 / 64.0 - 1.0).collect();
        Audio { rate: 44_100, format, channels: (0..channels).map(channel).collect() }
    }

    #[test]
    fn writing_and_reading_keeps_samples_rate_channels_and_format() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for format in [Format::Int(8), Format::Int(16), Format::Int(24), Format::Int(32), Format::Float] {
            for channels in [1, 2, 6] {
                let (audio, path) = (recording(format, channels), folder.path().join("a.wav"));
                audio.write(&path).expect("the folder is writable");
                assert_eq!(Audio::read(&path).expect("just written"), audio, "{format:?}, {channels} channels");
            }
        }
    }

    #[test]
    fn integers_are_clipped_not_wrapped() {
        assert_eq!(
            [to_int(1.5, 16), to_int(-1.5, 16), to_int(1.0, 16), to_int(0.5, 24)],
            [32767, -32768, 32767, 1 << 22]
        );
    }

    #[test]
    fn a_file_that_is_no_recording_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("text.wav");
        std::fs::write(&path, "RIFF, but not really").expect("the folder is writable");
        let message = Audio::read(&path).expect_err("not a wav file").to_string();
        assert!(message.contains("text.wav"), "{message}");
    }
}
