//! `whisper IN -o OUT`: reads, transcribes, writes, and tells how it went.

mod args;

use args::{Args, Command};
use clap::Parser;
use jvc_runner::bench::{BenchArgs, Report};
use jvc_runner::cold_start::ColdStart;
use jvc_runner::jvc_runtime::Gpu;
use jvc_runner::weights::{Generated, Weights};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use whisper::engine::{Choice, Engine};
use whisper::facts::Facts;
use whisper::tokenizer::Tokenizer;
use whisper::window::Recording;
use whisper::write::{Format, clock};
use whisper::{RATE, audio, transcribe};
use whisper_runner::{DeviceEngine, EngineError, needs};

const MODEL: Generated = Generated {
    name: "whisper_model",
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/../generated/whisper_model"),
    make: "models/whisper/try.sh",
};

fn main() -> ExitCode {
    let mut cold_start = ColdStart::begin();
    match run(&Args::parse(), &mut cold_start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("whisper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args, cold_start: &mut ColdStart) -> Result<(), Box<dyn Error>> {
    let samples = args.input.as_deref().map(audio::read).transpose()?;
    let (mut engine, tokenizer, device) = load(args, cold_start)?;
    match (&args.command, samples) {
        (Some(Command::Bench(bench)), _) => measure(&mut engine, bench, &device),
        (None, samples) => write(args, &mut engine, &tokenizer, &samples.unwrap_or_default(), cold_start),
    }
}

/// Finds everything, says what memory it takes, and loads.
fn load(args: &Args, cold_start: &mut ColdStart) -> Result<(DeviceEngine, Tokenizer, String), Box<dyn Error>> {
    let weights = MODEL.find_weights(args.common.weights.as_deref())?;
    let folder = match (&args.model, &weights) {
        (Some(folder), _) => folder.clone(),
        (None, Weights::File(file)) => file.parent().map(Path::to_owned).unwrap_or_default(),
        (None, Weights::Bytes(_)) => PathBuf::from(MODEL.folder),
    };
    let facts = Facts::read(&folder.join("model.json"))?;
    let tokenizer = Tokenizer::read(&folder.join("tokenizer.json"))?;
    let gpu: Gpu = args.common.open()?;
    let device = gpu.info().name.clone();
    cold_start.mark("device");
    if !args.common.quiet {
        eprintln!("device    {device}\nmemory    {}", needs());
    }
    let engine =
        DeviceEngine::load(&gpu, weights.source(), &args.common.cache, facts).map_err(|error| match error {
            EngineError::Runtime(error) => Box::<dyn Error>::from(MODEL.explain(&weights, error)),
            error => error.into(),
        })?;
    cold_start.mark("load");
    Ok((engine, tokenizer, device))
}

fn write(
    args: &Args,
    engine: &mut DeviceEngine,
    tokenizer: &Tokenizer,
    samples: &[f32],
    cold_start: &mut ColdStart,
) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let bar = args.common.progress((samples.len() / RATE as usize) as u64, "s of sound");
    let options = args.decoding.options();
    let transcript = transcribe(engine, tokenizer, samples, &options, &mut |progress, segments| {
        bar.set(progress.done as u64 / 100);
        if progress.done > 0 && progress.done < progress.total && !segments.is_empty() {
            cold_start.mark("window");
        }
    })?;
    drop(bar);
    cold_start.mark("transcript");
    let (took, length) = (started.elapsed().as_secs_f64(), samples.len() as f64 / f64::from(RATE));
    if !args.common.quiet {
        let language = transcript.language_probability.map(|p| format!(" ({:.0} %)", 100.0 * p)).unwrap_or_default();
        eprintln!("language  {}{language}", transcript.language);
        eprintln!("run       {took:.2} s for {} of sound: {:.2} × real time", clock(length, false, '.'), length / took);
    }
    if args.common.cold_start {
        eprintln!("cold      {cold_start}");
    }
    let by_ending =
        args.output.as_deref().and_then(Path::extension).and_then(|e| Format::of_extension(&e.to_string_lossy()));
    let text = args.format.map(Format::from).or(by_ending).unwrap_or(Format::Txt).write(&transcript);
    match &args.output {
        Some(path) => std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))?,
        None => print!("{text}"),
    }
    Ok(())
}

/// Each part by itself, and the steps of a whole transcript of made-up sound.
fn measure(engine: &mut DeviceEngine, bench: &BenchArgs, device: &str) -> Result<(), Box<dyn Error>> {
    let noise: Vec<f32> =
        (0..480_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as f32 / 655_360.0 - 0.05).collect();
    let window = Recording::new(&noise).window(0);
    let mut report = Report::default();
    report.fact("device", device);
    report.fact("width, decoder layers", format!("{}, {}", engine.facts().d_model, engine.facts().decoder_layers));
    let mut top = 0.0;
    let samples = bench.measure(|| engine.spectrogram(&window, 3000).map(|t| top = t))?;
    report.row("spectrogram of 30 s", samples);
    report.row("encode and cross keys", bench.measure(|| engine.listen(top, 3000))?);
    let start = engine.facts().tokens.start;
    report.row("a step", bench.measure(|| engine.step(start, 100, &Choice::ANY).map(|_| ()))?);
    let before: Vec<u32> = (0..223).collect();
    report.row("prefill of 223 tokens", bench.measure(|| engine.prefill(&before))?);
    let whole = |engine: &mut DeviceEngine| {
        engine.spectrogram(&window, 3000)?;
        engine.listen(top, 3000)?;
        (0..100).try_for_each(|at| engine.step(start, at, &Choice::ANY).map(|_| ()))
    };
    report.row("30 s of sound, 100 tokens", bench.measure(|| whole(engine))?);
    if bench.json {
        println!("{}", report.to_json())
    } else {
        print!("{report}")
    }
    Ok(())
}
