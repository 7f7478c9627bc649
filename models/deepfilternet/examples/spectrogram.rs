//! Draws two wav files one above the other: `spectrogram BEFORE.wav AFTER.wav OUT.png`, both at 48 kHz.

use deepfilternet::{audio::Audio, spectrogram};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [before, after, out] = args.as_slice() else {
        return Err("usage: spectrogram BEFORE.wav AFTER.wav OUT.png".into());
    };
    let mono = |path: &String| Audio::read(path.as_ref()).map(|a| a.mono());
    Ok(spectrogram::draw(&mono(before)?, &mono(after)?, out.as_ref())?)
}
