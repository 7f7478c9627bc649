//! The measured process: loads a crate's files, runs once, and says how long each phase took.

use crate::cli::ColdstartProcessArgs;
use crate::commands::{CommandError, Console, Outcome, load};
use crate::exec::{Loaded, zeros};
use jvc_codegen::weights::FILE_NAME;
use jvc_lab::{Lab, LabError, Options};
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
    /// Kernels that were compiled although their binaries are kept.
    pub(super) compiled: usize,
}

/// A device as crates open it, or an application's that keeps binaries.
enum Device {
    Own(rt::Gpu),
    Keeping(Box<Lab>),
}

impl Device {
    /// None where the driver hands out no binaries.
    fn open(args: &ColdstartProcessArgs, name: &str) -> Result<Option<Device>, CommandError> {
        let select = load::select(args.gpu.as_deref());
        let Some(folder) = args.pipelines.as_ref().filter(|_| args.binaries) else {
            return Ok(Some(Device::Own(rt::Gpu::open(&select)?)));
        };
        match Lab::open_keeping(&select, &Options::default(), &rt::CacheDir::Path(folder.clone()), name) {
            Ok(lab) => Ok(Some(Device::Keeping(Box::new(lab)))),
            Err(LabError::NoBinaries) => Ok(None),
            Err(error) => Err(CommandError::Lab(error)),
        }
    }

    fn gpu(&self) -> &rt::Gpu {
        match self {
            Device::Own(gpu) => gpu,
            Device::Keeping(lab) => lab.gpu(),
        }
    }

    /// The runtime's own cache.
    fn cache(&self, args: &ColdstartProcessArgs) -> rt::CacheDir {
        match (self, &args.pipelines) {
            (Device::Own(_), Some(folder)) => rt::CacheDir::Path(folder.clone()),
            _ => rt::CacheDir::None,
        }
    }

    /// Writes what was compiled, and says how many kernels that are.
    fn keep(&self) -> usize {
        match self {
            Device::Own(_) => 0,
            Device::Keeping(lab) => {
                lab.write_binaries();
                lab.pipeline_counts().compiled
            }
        }
    }
}

/// Loads the crate, runs its first entry point on zeros, and prints a line of JSON: null where there are no binaries to keep.
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
    let Some(device) = Device::open(args, &plan.name)? else {
        writeln!(console.out, "null")?;
        return Ok(Outcome::Fine);
    };
    let opened = lap();
    let weights = args.folder.join(FILE_NAME);
    let loaded = Loaded::of_plan(device.gpu(), &plan, rt::WeightSource::Path(&weights), &device.cache(args))?;
    let compiled = device.keep();
    let load = lap();
    let mut session = loaded.session(0)?;
    let opening = lap();
    session.run(&inputs)?;
    let run = lap();
    let [weights, pipelines] = <[_; 2]>::from(loaded.load_times()).map(|time| time.as_secs_f64() * 1e3);
    let since_start = started.elapsed().as_secs_f64() * 1e3;
    let (plan, device, session) = (reading, opened, opening);
    let report = Report { plan, device, weights, pipelines, load, session, run, since_start, compiled };
    writeln!(console.out, "{}", serde_json::to_string(&report).expect("numbers"))?;
    console.out.flush()?;
    Ok(Outcome::Fine)
}
