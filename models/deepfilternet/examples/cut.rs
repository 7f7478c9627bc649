//! Makes test recordings out of one at 48 kHz: `cut IN.wav FOLDER` writes a stereo file, one at 44.1 kHz, three odd
//! lengths and the first second with what its lookahead sees there. `cut --same-shape A.wav B.wav` fails unless both have the same rate, channels, length and format.

use deepfilternet::audio::Audio;
use jvc_resample::resample;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [flag, a, b] if flag == "--same-shape" => same_shape(a.as_ref(), b.as_ref()),
        [input, folder] => cut(&Audio::read(input.as_ref())?, folder.as_ref()),
        _ => Err("usage: cut IN.wav FOLDER | cut --same-shape A.wav B.wav".into()),
    }
}

fn cut(input: &Audio, folder: &Path) -> Result<(), Box<dyn Error>> {
    let mono = &input.channels[0];
    let write = |name: &str, rate: u32, channels: Vec<Vec<f32>>| {
        Audio { rate, format: input.format, channels }.write(&folder.join(name))
    };
    let seconds = |from: usize, n: usize| mono[from * 24_000..][..n * 24_000].to_vec();
    write("stereo.wav", input.rate, vec![seconds(0, 2), seconds(3, 2)])?;
    write("44100hz.wav", 44_100, vec![resample(&seconds(1, 2), input.rate, 44_100)?])?;
    write("1-second.wav", input.rate, vec![mono[..49_440].to_vec()])?;
    for (name, n) in [("1-sample.wav", 1), ("479-samples.wav", 479), ("1.5-seconds.wav", 72_001)] {
        write(name, input.rate, vec![mono[..n].to_vec()])?;
    }
    Ok(())
}

fn same_shape(a: &Path, b: &Path) -> Result<(), Box<dyn Error>> {
    let shape = |path: &Path| Audio::read(path).map(|a| (a.rate, a.format, a.channels.len(), a.len()));
    let (a, b) = (shape(a)?, shape(b)?);
    if a == b { Ok(()) } else { Err(format!("{a:?} became {b:?}").into()) }
}
