//! Sound files: WAV, FLAC, MP3 and Ogg Vorbis at any rate and with any number of channels, as the network takes them: one channel,
//! 16 kHz.

use crate::RATE;
use jvc_resample::{ResampleError, resample};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use symphonia::core::audio::SampleBuffer;
use symphonia::core::codecs::{CODEC_TYPE_NULL, Decoder, DecoderOptions};
use symphonia::core::errors::Error as Fault;
use symphonia::core::formats::FormatReader;
use symphonia::core::io::{MediaSource, MediaSourceStream};
use symphonia::core::probe::Hint;

/// Why there are no samples.
#[derive(Debug, thiserror::Error)]
pub enum AudioError {
    /// The file cannot be opened.
    #[error("cannot open {}: {fault}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system says.
        fault: std::io::Error,
    },
    /// It is no sound, of a form that is not supported, or broken.
    #[error("cannot decode {what}: {fault}; WAV, FLAC, MP3 and Ogg Vorbis are supported")]
    Decode {
        /// The file, or "bytes".
        what: String,
        /// What the decoder says.
        fault: String,
    },
    /// The resampler refuses the rate.
    #[error(transparent)]
    Rate(#[from] ResampleError),
}

/// Reads a file: the mean of its channels, at 16 kHz.
///
/// # Errors
/// A file that cannot be read, or is no sound.
pub fn read(path: &Path) -> Result<Vec<f32>, AudioError> {
    let file = File::open(path).map_err(|fault| AudioError::Open { path: path.to_owned(), fault })?;
    let mut hint = Hint::new();
    if let Some(extension) = path.extension().and_then(|e| e.to_str()) {
        hint.with_extension(extension);
    }
    decode(Box::new(file), &hint, &path.display().to_string())
}

/// The same from the bytes of a file.
///
/// # Errors
/// Bytes that are no sound.
pub fn read_bytes(bytes: Vec<u8>) -> Result<Vec<f32>, AudioError> {
    decode(Box::new(std::io::Cursor::new(bytes)), &Hint::new(), "bytes")
}

fn decode(source: Box<dyn MediaSource>, hint: &Hint, what: &str) -> Result<Vec<f32>, AudioError> {
    let refuse = |fault: Fault| AudioError::Decode { what: what.to_owned(), fault: fault.to_string() };
    let stream = MediaSourceStream::new(source, Default::default());
    let probed = symphonia::default::get_probe().format(hint, stream, &Default::default(), &Default::default());
    let mut format = probed.map_err(refuse)?.format;
    let track = format.tracks().iter().find(|track| track.codec_params.codec != CODEC_TYPE_NULL);
    let track = track.ok_or_else(|| refuse(Fault::Unsupported("no sound in it")))?;
    let (id, parameters) = (track.id, &track.codec_params);
    let mut decoder = symphonia::default::get_codecs().make(parameters, &DecoderOptions::default()).map_err(refuse)?;
    let (samples, rate) = mono(format.as_mut(), decoder.as_mut(), id).map_err(refuse)?;
    Ok(resample(&samples, rate, RATE)?)
}

/// All samples of a track, the mean of its channels, and the rate.
fn mono(format: &mut dyn FormatReader, decoder: &mut dyn Decoder, track: u32) -> Result<(Vec<f32>, u32), Fault> {
    let (mut samples, mut rate) = (Vec::new(), RATE);
    loop {
        let packet = match format.next_packet() {
            Ok(packet) => packet,
            Err(Fault::IoError(e)) if e.kind() == ErrorKind::UnexpectedEof => return Ok((samples, rate)),
            Err(fault) => return Err(fault),
        };
        if packet.track_id() != track {
            continue;
        }
        let decoded = match decoder.decode(&packet) {
            Ok(decoded) => decoded,
            // One damaged packet is a gap, not the end.
            Err(Fault::DecodeError(_)) => continue,
            Err(fault) => return Err(fault),
        };
        let spec = *decoded.spec();
        let mut buffer = SampleBuffer::<f32>::new(decoded.capacity() as u64, spec);
        buffer.copy_interleaved_ref(decoded);
        rate = spec.rate;
        let n = spec.channels.count().max(1);
        samples.extend(buffer.samples().chunks_exact(n).map(|frame| frame.iter().sum::<f32>() / n as f32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clip(name: &str) -> Vec<f32> {
        read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("clips").join(name)).expect("a clip of this folder")
    }

    /// Cosine of the angle between two recordings, at the best of the shifts within `reach` samples.
    fn likeness(a: &[f32], b: &[f32], reach: usize) -> f64 {
        let norm = |x: &[f32]| x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let shifts = (0..=reach).flat_map(|s| [dot(&a[s.min(a.len())..], b), dot(a, &b[s.min(b.len())..])]);
        shifts.fold(0.0, f64::max) / (norm(a) * norm(b)).max(1e-30)
    }

    #[test]
    fn flac_mp3_and_ogg_of_one_recording_sound_alike() {
        let flac = clip("espeak_short.flac");
        assert!((2.5..2.7).contains(&(flac.len() as f32 / RATE as f32)), "{} samples", flac.len());
        // The others are lossy and at 22,050 Hz; MP3 has a delay of its encoder, which symphonia leaves in.
        let ogg = likeness(&clip("espeak_short.ogg"), &flac, 4);
        assert!(ogg > 0.98, "ogg: {ogg}");
        let mp3 = likeness(&clip("espeak_short.mp3"), &flac, 1500);
        assert!(mp3 > 0.95, "mp3: {mp3}");
    }

    /// A WAV file of two channels of 16 bits.
    fn wav(left: &[i16], right: &[i16], rate: u32) -> Vec<u8> {
        let data: Vec<u8> =
            left.iter().zip(right).flat_map(|(l, r)| [l.to_le_bytes(), r.to_le_bytes()].concat()).collect();
        let n = data.len() as u32;
        let mut file = b"RIFF".to_vec();
        file.extend((36 + n).to_le_bytes());
        file.extend(b"WAVEfmt ");
        for word in [16, 2 << 16 | 1, rate, 4 * rate, 16 << 16 | 4] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend(b"data");
        file.extend(n.to_le_bytes());
        file.extend(data);
        file
    }

    #[test]
    fn channels_are_averaged_and_other_rates_brought_to_16_khz() {
        let got = read_bytes(wav(&[1000, 2000, -32768], &[3000, 0, 0], RATE)).expect("a wav file");
        assert_eq!(got, [2000.0, 1000.0, -16384.0].map(|v| v / 32768.0));

        let sine = |rate: f64, n: usize| (0..n).map(move |i| (std::f64::consts::TAU * 440.0 * i as f64 / rate).sin());
        let at_44100: Vec<i16> = sine(44_100.0, 44_100).map(|v| (16384.0 * v) as i16).collect();
        let got = read_bytes(wav(&at_44100, &at_44100, 44_100)).expect("a wav file");
        assert_eq!(got.len(), 16_000);
        let error = sine(16_000.0, 16_000).zip(&got).skip(500).take(15_000);
        let error = error.map(|(want, got)| (0.5 * want - f64::from(*got)).abs()).fold(0.0, f64::max);
        assert!(error < 1e-3, "off by {error}");
    }

    #[test]
    fn what_is_no_sound_is_an_error_that_says_what_is_supported() {
        let error = read_bytes(b"not a sound at all, but long enough to be looked at".to_vec()).expect_err("no sound");
        assert!(error.to_string().contains("FLAC"), "{error}");
        assert!(read(Path::new("/nowhere.wav")).expect_err("no file").to_string().contains("/nowhere.wav"));
    }
}
