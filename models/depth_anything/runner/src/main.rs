//! `depth_anything PICTURE -o DEPTH.png`: reads, estimates, writes, and tells how it went.

mod args;

use args::{Args, Command};
use clap::Parser;
use depth_anything::size::Sizing;
use depth_anything::{Depth, Estimator, Network, Picture, PictureError, Style, picture, resize};
use depth_anything_runner::engine::{self, Engine};
use jvc_runner::Common;
use jvc_runner::bench::{BenchArgs, Report, Samples};
use jvc_runner::cold_start::ColdStart;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let mut clock = ColdStart::begin();
    let args = Args::parse();
    let done = match &args.command {
        Some(Command::Bench { bench, height, width, sizing }) => {
            measure(&args.common, bench, [*height, *width], (*sizing).into())
        }
        None => estimate(&args, &mut clock),
    };
    if let Err(error) = done {
        eprintln!("depth_anything: {error}");
        return ExitCode::FAILURE;
    }
    if args.common.cold_start && args.command.is_none() {
        say("cold", &clock.to_string());
    }
    ExitCode::SUCCESS
}

/// Opens the device, says what memory is needed, loads.
fn load(common: &Common, clock: &mut ColdStart, is_told: bool) -> Result<(Engine, String), Box<dyn Error>> {
    let gpu = common.open()?;
    clock.mark("device");
    if is_told {
        say("device", &gpu.info().name);
        say("needs", &engine::needs().to_string());
    }
    let weights = engine::GENERATED.find_weights(common.weights.as_deref())?;
    let engine = Engine::load(&gpu, &weights, &common.cache)?;
    clock.mark("load");
    Ok((engine, gpu.info().name.clone()))
}

/// A picture, or all of a folder: while the device computes one, the next is prepared.
fn estimate(args: &Args, clock: &mut ColdStart) -> Result<(), Box<dyn Error>> {
    let (Some(input), Some(output)) = (&args.input, &args.output) else { return Err("no picture".into()) };
    let jobs = jobs(input, output)?;
    clock.mark("arguments");
    let (engine, _) = load(&args.common, clock, true)?;
    let mut estimator = Estimator::new(engine, args.sizing.into());
    let progress = args.common.progress(jobs.len() as u64, "pictures");
    let style = args.style();
    std::thread::scope(|scope| {
        let mut writer = Writer { scope, style: &style, running: None };
        let mut before = None;
        for (picture, target) in jobs {
            let pending = estimator.submit(&Picture::read(&picture)?)?;
            if let Some((pending, target)) = before.replace((pending, target)) {
                writer.start(estimator.wait(pending)?, target)?;
                progress.advance(1);
            }
        }
        clock.mark("pictures");
        if let Some((pending, target)) = before {
            writer.start(estimator.wait(pending)?, target)?;
        }
        clock.mark("depth");
        writer.finish()
    })?;
    drop(progress);
    clock.mark("written");
    say("wrote", &output.display().to_string());
    Ok(())
}

/// Draws and writes depth on a thread of its own, one picture at a time.
struct Writer<'scope, 'env> {
    scope: &'scope std::thread::Scope<'scope, 'env>,
    style: &'env Style,
    running: Option<std::thread::ScopedJoinHandle<'scope, Result<(), PictureError>>>,
}

impl Writer<'_, '_> {
    /// Begins to write, when the picture before is written.
    fn start(&mut self, depth: Depth, target: PathBuf) -> Result<(), Box<dyn Error>> {
        let ([far, near], size) = (depth.range(), format!("{} × {}", depth.width, depth.height));
        self.finish()?;
        say("depth", &format!("{size}, from {far:.3} (far) to {near:.3} (near): {}", target.display()));
        let style = self.style;
        self.running = Some(self.scope.spawn(move || depth.write(&target, style)));
        Ok(())
    }

    /// Waits for what is being written.
    fn finish(&mut self) -> Result<(), Box<dyn Error>> {
        let done = self.running.take().map_or(Ok(()), |thread| thread.join().expect("a writer returns its errors"));
        Ok(done?)
    }
}

/// Pictures and where their depth goes.
fn jobs(input: &Path, output: &Path) -> Result<Vec<(PathBuf, PathBuf)>, Box<dyn Error>> {
    if !input.is_dir() {
        return Ok(vec![(input.to_owned(), output.to_owned())]);
    }
    std::fs::create_dir_all(output).map_err(|error| format!("{}: {error}", output.display()))?;
    let target = |path: PathBuf| {
        let name = Path::new(path.file_name().unwrap_or_default()).with_extension("png");
        (path, output.join(name))
    };
    Ok(picture::frames(input)?.into_iter().map(target).collect())
}

/// The `bench` subcommand.
fn measure(common: &Common, args: &BenchArgs, size: [usize; 2], sizing: Sizing) -> Result<(), Box<dyn Error>> {
    let mut clock = ColdStart::begin();
    let (mut engine, device) = load(common, &mut clock, !args.json)?;
    let [height, width] = size;
    let pixels = (0..height * width * 3).map(|i| (i * 7 % 251) as u8).collect();
    let picture = Picture::new(width, height, pixels)?;
    let network_size = sizing.network_size(size);
    let resized = resize::bicubic_bytes(&picture.pixels, size, network_size);

    let mut report = Report::default();
    report.fact("device", device);
    report.fact("picture", format!("{height} × {width}"));
    report.fact("network", format!("{} × {}", network_size[0], network_size[1]));
    report.fact("load_ms", format!("{:.0}", clock.total().as_secs_f64() * 1e3));
    let mut on_device = Vec::new();
    let network = args.measure(|| {
        let run = engine.submit(&resized, network_size)?;
        engine.wait(run)?;
        on_device.extend(engine.device_ms().map(|ms| Duration::from_secs_f64(ms / 1e3)));
        Ok::<(), engine::EngineError>(())
    })?;
    if !on_device.is_empty() {
        report.row("device time", Samples::new(on_device.split_off(args.warm_up.min(on_device.len()))));
    }
    report.row("network with copies", network);
    let mut estimator = Estimator::new(engine, sizing);
    report.row("picture to depth", args.measure(|| estimator.depth(&picture).map(drop))?);
    if args.json {
        println!("{}", report.to_json());
    } else {
        print!("{report}");
    }
    Ok(())
}

fn say(what: &str, text: &str) {
    println!("{what:<9} {text}");
}
