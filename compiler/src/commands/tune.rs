//! `jvc tune`: measures tiles and writes a profile with the fastest; or compares a profile's table with the cost model.

use super::{CommandError, Console, Outcome, load};
use crate::cli::{Format, SamplingArgs, TuneArgs};
use crate::device::{self, DeviceProfile, with_tiles};
use crate::measure::{FixedLoad, Sampling};
use crate::tune::{self, Disagreement, Measured, Settings, Verdict};
use jvc_runtime as rt;
use serde_json::{Value, json};
use std::time::Duration;

pub(super) fn run(args: &TuneArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let options = load::options(&args.compile, None)?;
    let programs = load::programs(&args.programs, &args.compile, console)?;
    let Some(output) = args.output.as_deref().filter(|_| !args.check) else {
        let profile = load::profile(&args.device)?;
        let profile = profile.ok_or_else(|| CommandError::Usage("--check wants --device FILE.toml".to_owned()))?;
        let works = match &programs[..] {
            [] => None,
            programs => Some(tune::works_of(programs, &options, &profile)?),
        };
        return check(&profile, &tune::check(&profile, works.as_ref()), args.format, console);
    };
    let gpu = rt::Gpu::open(&load::select(args.device.gpu.as_deref()))?;
    let profile = load::profile(&args.device)?.unwrap_or_else(|| device::of_open_gpu(&gpu));
    let text = load::profile_text(&args.device, &profile)?;
    let program = FixedLoad::program(&profile)?;
    let mut clock = FixedLoad::new(&gpu, &program)?;
    let sampling = sampling(&args.sampling, args.rounds, args.runs);
    let settings = Settings { sampling, most: args.most as usize, tie: args.tie / 100.0 };
    let mut say = |line: &str| writeln!(console.err, "{line}");
    let measured = tune::measure(&gpu, &programs, (&options, &profile), &mut clock, &settings, &mut say)?;
    let tiles = tune::merged(&profile.tiles, &measured);
    let source = format!("measured by jvc tune on {}, {}", gpu.info().name, gpu.info().driver);
    jvc_codegen::artifact::write_single(output, with_tiles(&text, &profile, &tiles, &source).as_bytes())?;
    match args.format {
        Format::Json => writeln!(console.out, "{}", measured.iter().map(to_json).collect::<Value>())?,
        Format::Text => print(&measured, console)?,
    }
    Ok(Outcome::Fine)
}

/// Samples as the command line asks for them.
pub(super) fn sampling(args: &SamplingArgs, rounds: u32, runs: u32) -> Sampling {
    Sampling { rounds, runs, slack: args.slack / 100.0, warm_up: Duration::from_millis(args.warmup) }
}

fn to_json(m: &Measured) -> Value {
    json!({ "of": m.of, "steps": m.n_steps, "favourite": m.favourite, "tile": m.tile, "tried": m.tried })
}

fn print(measured: &[Measured], console: &mut Console<'_>) -> Result<(), CommandError> {
    let (mut before, mut after) = (0.0, 0.0);
    for m in measured {
        let (favourite, best) = m.us();
        before += favourite.unwrap_or(best);
        after += best;
        let figure = m.tried[&m.tile];
        let mark = if figure.trusted { "" } else { " (not trustworthy)" };
        writeln!(console.out, "{}: {} steps, {} tiles", m.of, m.n_steps, m.tried.len())?;
        writeln!(console.out, "{:12.2} µs  {}{mark}", figure.median, m.tile)?;
        if let Some(favourite) = m.tried.get(&m.favourite).filter(|_| m.favourite != m.tile) {
            writeln!(console.out, "{:12.2} µs  {}, the cost model's choice", favourite.median, m.favourite)?;
        }
    }
    writeln!(console.out, "all of it: {after:.1} µs a run, {before:.1} with the cost model's choices")?;
    let discarded: usize = measured.iter().flat_map(|m| m.tried.values()).map(|figure| figure.discarded).sum();
    let kept: usize = measured.iter().flat_map(|m| m.tried.values()).map(|figure| figure.n).sum();
    writeln!(console.err, "{discarded} of {} times discarded, since the clock was off", kept + discarded)?;
    Ok(())
}

fn check(
    profile: &DeviceProfile,
    verdict: &Verdict,
    format: Format,
    console: &mut Console<'_>,
) -> Result<Outcome, CommandError> {
    match format {
        Format::Json => writeln!(console.out, "{}", json!(verdict))?,
        Format::Text => {
            verdict.disagreements.iter().try_for_each(|d| disagreement(d, console))?;
            verdict.useless.iter().try_for_each(|line| writeln!(console.out, "{line}"))?;
            let n_losses = verdict.disagreements.iter().filter(|d| d.is_loss()).count();
            writeln!(
                console.out,
                "{}: {} tiles, {} of which can be compared with the cost model; its choice costs more than 20 % for {n_losses}",
                profile.name,
                profile.tiles.len(),
                verdict.n_judged,
            )?;
        }
    }
    Ok(if verdict.has_losses() { Outcome::Finding } else { Outcome::Fine })
}

fn disagreement(d: &Disagreement, console: &mut Console<'_>) -> Result<(), CommandError> {
    writeln!(console.out, "{}", d.of)?;
    if d.is_loss() {
        let loss = 100.0 * d.loss;
        writeln!(console.out, "    the model's choice, {}, takes {loss:.0} % longer than {}", d.favourite, d.tile)?;
    }
    if let Some(worst) = &d.worst {
        writeln!(
            console.out,
            "    {} of {} predictions are off by more than 20 %; {}: {:.2} × {} predicted, {:.2} × measured",
            d.mispredicted, d.predicted, worst.tile, worst.predicted, d.favourite, worst.measured
        )?;
    }
    Ok(())
}
