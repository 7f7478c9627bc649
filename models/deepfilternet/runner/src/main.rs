//! `deepfilternet IN.wav -o OUT.wav`: reads, resamples, denoises channel by channel, writes, and tells how it went.

mod args;
mod engine;

use args::Args;
use clap::Parser;
use deepfilternet::audio::Audio;
use deepfilternet::stream::{HOP, RATE, denoise_reporting, steps_of};
use deepfilternet::{noise, resample::resample, si_sdr::si_sdr, spectrogram};
use engine::Engine;
use std::error::Error;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("deepfilternet: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A recording at the network's rate, and what it is compared with.
struct Work {
    noisy: Vec<Vec<f32>>,
    clean: Option<Vec<Vec<f32>>>,
}

fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let input = Audio::read(&args.input)?;
    say("audio", &describe(&input));
    let work = prepare(args, &input)?;
    if let Some(path) = &args.noisy {
        write(&work.noisy, &input, path, "noisy")?;
    }

    let started = Instant::now();
    let mut engine = Engine::load(&args.weights, args.device.as_deref())?;
    say("device", engine.device());
    say("load", &format!("{:.2} s", started.elapsed().as_secs_f64()));

    let enhanced = denoise_all(&mut engine, &work.noisy)?;
    write(&enhanced, &input, &args.output, "enhanced")?;
    if let Some(path) = &args.spectrogram {
        spectrogram::draw(&mono(&work.noisy), &mono(&enhanced), path)?;
        say("wrote", &path.display().to_string());
    }
    Ok(judge(args, &work, &enhanced))
}

fn describe(audio: &Audio) -> String {
    let n = audio.channels.len();
    format!("{:.2} s, {n} channel{}, {} Hz", audio.seconds(), if n == 1 { "" } else { "s" }, audio.rate)
}

/// Brings the recording to the network's rate; mixes noise in, or reads the reference.
fn prepare(args: &Args, input: &Audio) -> Result<Work, Box<dyn Error>> {
    let channels = at_network_rate(input)?;
    if let Some(snr_db) = args.add_noise {
        // Each channel has noise of its own, as two microphones would.
        let mixes = channels.iter().zip(args.seed..).map(|(channel, seed)| noise::mix(channel, snr_db, seed));
        let (noisy, clean) = mixes.map(|m| (m.noisy, m.clean)).unzip();
        return Ok(Work { noisy, clean: Some(clean) });
    }
    let clean = args.reference.as_deref().map(Audio::read).transpose()?.map(|a| at_network_rate(&a)).transpose()?;
    if let Some(clean) = &clean {
        let shape = |c: &[Vec<f32>]| (c.len(), c.first().map_or(0, Vec::len));
        if shape(clean) != shape(&channels) {
            return Err("the reference has another length or number of channels than the recording".into());
        }
    }
    Ok(Work { noisy: channels, clean })
}

fn at_network_rate(audio: &Audio) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    Ok(audio.channels.iter().map(|c| resample(c, audio.rate, RATE)).collect::<Result<_, _>>()?)
}

fn denoise_all(engine: &mut Engine, noisy: &[Vec<f32>]) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
    let steps: usize = noisy.iter().map(|channel| steps_of(channel.len())).sum();
    let started = Instant::now();
    let mut done = 0;
    let mut enhanced = Vec::with_capacity(noisy.len());
    for channel in noisy {
        enhanced.push(denoise_reporting(engine, channel, |_| {
            done += 1;
            show_progress(done, steps);
        })?);
    }
    let seconds = started.elapsed().as_secs_f64();
    let audio_seconds = (steps * HOP) as f64 / f64::from(RATE);
    let per_hop = 1e3 * seconds / steps.max(1) as f64;
    say(
        "run",
        &format!(
            "{seconds:.2} s for {steps} hops of 10 ms: {per_hop:.2} ms each, {:.2} × real time",
            audio_seconds / seconds
        ),
    );
    Ok(enhanced)
}

/// A counter that overwrites itself, only where somebody looks.
fn show_progress(done: usize, steps: usize) {
    let mut err = std::io::stderr();
    if err.is_terminal() && (done.is_multiple_of(20) || done == steps) {
        let line = if done == steps { String::new() } else { format!("{done} of {steps} hops") };
        // A progress line that cannot be shown is no reason to stop.
        let _ = write!(err, "\r{line:<30}\r").and_then(|()| err.flush());
    }
}

/// Writes channels of the network's rate as a recording like `like`, with exactly its number of samples.
fn write(channels: &[Vec<f32>], like: &Audio, path: &std::path::Path, what: &str) -> Result<(), Box<dyn Error>> {
    let mut out = Vec::with_capacity(channels.len());
    for channel in channels {
        let mut channel = resample(channel, RATE, like.rate)?;
        channel.resize(like.len(), 0.0);
        out.push(channel);
    }
    Audio { rate: like.rate, format: like.format, channels: out }.write(path)?;
    say("wrote", &format!("{} ({what})", path.display()));
    Ok(())
}

/// Prints SI-SDR before and after, the mean of the channels, where there is a reference.
fn judge(args: &Args, work: &Work, enhanced: &[Vec<f32>]) -> ExitCode {
    let Some(clean) = &work.clean else { return ExitCode::SUCCESS };
    let score =
        |signal: &[Vec<f32>]| signal.iter().zip(clean).map(|(s, c)| si_sdr(s, c)).sum::<f64>() / clean.len() as f64;
    let (before, after) = (score(&work.noisy), score(enhanced));
    let gain = after - before;
    say("SI-SDR", &format!("{before:.2} dB noisy, {after:.2} dB enhanced: {gain:+.2} dB"));
    match args.at_least {
        Some(least) if gain.is_nan() || gain < least => {
            eprintln!("deepfilternet: the gain is below {least} dB");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

fn mono(channels: &[Vec<f32>]) -> Vec<f32> {
    Audio { rate: RATE, format: deepfilternet::audio::Format::Float, channels: channels.to_vec() }.mono()
}

fn say(what: &str, text: &str) {
    println!("{what:<9} {text}");
}
