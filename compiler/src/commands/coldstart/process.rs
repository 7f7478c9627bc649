//! The measured process: loads a crate's files, runs once, and says how long each phase took.

use crate::cli::ColdstartProcessArgs;
use crate::commands::{CommandError, Console, Outcome, load};
use crate::exec::{Loaded, zeros};
use jvc_codegen::weights::FILE_NAME;
use jvc_runtime as rt;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Milliseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Report {
    /// Reading the plan, which a crate has compiled in, and making inputs.
    pub(super) plan: f64,
    pub(super) device: f64,
    pub(super) weights: f64,
    pub(super) pipelines: f64,
    /// Weights and pipelines.
    pub(super) load: f64,
    pub(super) session: f64,
    /// From the first input to the last output.
    pub(super) run: f64,
    /// All of it.
    pub(super) since_start: f64,
}

/// Loads the crate, runs its first entry point on zeros, and prints a line of JSON.
pub(crate) fn run(args: &ColdstartProcessArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let started = Instant::now();
    let mut last = started;
    let mut lap = || {
        let now = Instant::now();
        (now - std::mem::replace(&mut last, now)).as_secs_f64() * 1e3
    };
    let plan = load::crate_plan(&args.folder)?;
    let inputs = zeros(&plan.entries[0])?;
    let reading = lap();
    let gpu = rt::Gpu::open(&load::select(args.gpu.as_deref()))?;
    let device = lap();
    let weights = args.folder.join(FILE_NAME);
    let cache = args.pipelines.clone().map_or(rt::CacheDir::None, rt::CacheDir::Path);
    let loaded = Loaded::of_plan(&gpu, &plan, rt::WeightSource::Path(&weights), &cache)?;
    let load = lap();
    let mut session = loaded.session(0)?;
    let opening = lap();
    session.run(&inputs)?;
    let run = lap();
    let [weights, pipelines] = <[_; 2]>::from(loaded.load_times()).map(|time| time.as_secs_f64() * 1e3);
    let since_start = started.elapsed().as_secs_f64() * 1e3;
    let report = Report { plan: reading, device, weights, pipelines, load, session: opening, run, since_start };
    writeln!(console.out, "{}", serde_json::to_string(&report).expect("numbers"))?;
    console.out.flush()?;
    Ok(Outcome::Fine)
}
