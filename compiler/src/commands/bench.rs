//! `jvc bench`: how long runs and their steps take, of one program or of two in turns.

mod report;
mod side;

use super::{CommandError, Console, Outcome, load, tune::sampling};
use crate::cli::{BenchArgs, DeviceArgs};
use crate::exec::Repetition;
use crate::measure::{Arm, FixedLoad, WholeRuns, in_turns};
use crate::tensor_file::{print_tensors, read_tensors};
use jvc_runtime as rt;
use serde_json::json;
use side::{Given, Side};
use std::io::{BufRead, stdin};

/// Runs of a sample.
const SAMPLE: u32 = 5;

pub(super) fn run(args: &BenchArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let gpu = rt::Gpu::open(&load::select(args.what.device.gpu.as_deref()))?;
    let subjects = subjects(args, &gpu, console)?;
    let given = args.what.inputs.as_deref().map(read_tensors).transpose()?;
    let repetition = Repetition { chained: args.chain, side_by_side: args.side_by_side, apart: false };
    let settings = Given { gpu: &gpu, tensors: given.as_ref(), repetition, steps: args.steps > 0 && !args.serve };
    let mut sides = subjects.iter().map(|s| Side::new(s, &settings)).collect::<Result<Vec<_>, _>>()?;
    if let Some(path) = &args.output {
        jvc_codegen::artifact::write_single(path, &print_tensors(&sides[0].outputs)?)?;
    }
    if args.serve {
        serve(&mut sides[0].runs, args.sampling.warmup, console)?;
        return Ok(Outcome::Fine);
    }
    let program = FixedLoad::program(&subjects[0].profile)?;
    let mut clock = FixedLoad::new(&gpu, &program)?;
    let runs = args.runs.min(SAMPLE);
    let sampling = sampling(&args.sampling, args.runs.div_ceil(runs), runs);
    let mut arms: Vec<&mut dyn Arm> = sides.iter_mut().flat_map(Side::arms).collect();
    let mut taken = in_turns(&mut arms, &mut clock, &sampling)?;
    let mut samples = taken.arms.drain(..);
    let measured = sides.iter().map(|side| side.measured(&mut samples)).collect::<Vec<_>>();
    drop(samples);
    let report = report::Report {
        gpu: &gpu.info().name,
        sides: &measured,
        load_us: taken.load_us,
        slack: args.sampling.slack,
        n_steps: args.steps as usize,
    };
    report.print(args.format, console)?;
    Ok(Outcome::Fine)
}

/// The programs or crates to measure: one, or two.
fn subjects(args: &BenchArgs, gpu: &rt::Gpu, console: &mut Console<'_>) -> Result<Vec<load::Subject>, CommandError> {
    let what = &args.what;
    let mut all = vec![load::subject(&what.program, (&what.compile, &what.device), gpu, console)?];
    if args.other.is_some() || args.other_device.is_some() {
        if args.serve {
            return Err(CommandError::Usage("--serve is of one program: whoever asks interleaves".to_owned()));
        }
        let program = args.other.as_ref().unwrap_or(&what.program);
        let device = DeviceArgs {
            device: args.other_device.clone().unwrap_or_else(|| what.device.device.clone()),
            gpu: what.device.gpu.clone(),
        };
        all.push(load::subject(program, (&what.compile, &device), gpu, console)?);
    }
    Ok(all)
}

/// Says what the program is in a first line, then answers each number of runs by their times, until the input ends.
fn serve(runs: &mut WholeRuns<'_>, warmup_ms: u64, console: &mut Console<'_>) -> Result<(), CommandError> {
    let mut elapsed = 0.0;
    while elapsed < warmup_ms as f64 * 1e3 {
        elapsed += runs.rows(1)?[0][1].max(1.0);
    }
    let counts = json!({ "dispatches": runs.session.n_dispatches(), "barriers": runs.session.n_barriers() });
    writeln!(console.out, "{counts}")?;
    console.out.flush()?;
    for line in stdin().lock().lines() {
        let line = line?;
        let n_runs = line.trim().parse().map_err(|e| CommandError::Usage(format!("`{line}` is no number: {e}")))?;
        let rows = runs.rows(n_runs)?;
        let [device, host] = [0, 1].map(|clock| rows.iter().map(|row| row[clock]).collect::<Vec<_>>());
        writeln!(console.out, "{}", json!({ "device_us": device, "host_us": host }))?;
        console.out.flush()?;
    }
    Ok(())
}
