//! `sam2`: masks of what is clicked on, of everything in a picture, and through a video.

mod args;
mod bench;
mod pictures;
mod videos;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use jvc_runner::Common;
use jvc_runner::cold_start::ColdStart;
use sam2_runner::{GENERATED, Network, needs};
use std::error::Error;
use std::process::ExitCode;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> ExitCode {
    let mut clock = ColdStart::begin();
    match run(&Cli::parse(), &mut clock) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sam2: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli, clock: &mut ColdStart) -> Outcome {
    match &cli.command {
        Some(Command::Auto(args)) => pictures::automatic(args, &cli.common, clock)?,
        Some(Command::Video(args)) => videos::video(args, &cli.common, clock)?,
        Some(Command::Bench(args)) => bench::bench(args, &cli.common, clock)?,
        None if cli.image.input.is_some() => pictures::segment(&cli.image, &cli.common, clock)?,
        None => Cli::command().print_help()?,
    }
    if cli.common.cold_start {
        eprintln!("cold start {clock}");
    }
    Ok(())
}

/// Opens the device and loads the network; says on standard error what it needs before.
fn load(common: &Common, video: bool, clock: &mut ColdStart) -> Result<Network, Box<dyn Error>> {
    let gpu = common.open()?;
    clock.mark("device");
    let weights = GENERATED.find_weights(common.weights.as_deref())?;
    if !common.quiet {
        eprintln!("device    {}", gpu.info().name);
        eprintln!("memory    {}", needs(video));
    }
    let network = Network::load(&gpu, weights.source(), &common.cache).map_err(|e| GENERATED.explain(&weights, e))?;
    clock.mark("load");
    Ok(network)
}
