//! `jvc coldstart`: how long fresh processes take to their first result. The program is compiled once into a crate's files, and each
//! process loads these as the crate itself would.

mod process;

pub(super) use process::run as run_process;

use super::{CommandError, Console, Outcome, load};
use crate::cli::{CacheArg, ColdstartArgs, Format};
use crate::device;
use crate::pipeline;
use jvc_codegen::artifact::write_weight_file;
use jvc_codegen::plan::Plan;
use jvc_codegen::weights::FILE_NAME;
use jvc_runtime as rt;
use process::Report;
use serde_json::{Map, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

pub(super) fn run(args: &ColdstartArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let scratch = tempfile::tempdir()?;
    let folder = match args.program.is_dir() {
        true => args.program.clone(),
        false => compile(args, scratch.path(), console)?,
    };
    let plan = load::crate_plan(&folder)?;
    let processes = Processes { args, folder: &folder, scratch: scratch.path() };
    let measured = processes.measure(console)?;
    let budget = args.budget_ms.unwrap_or(f64::INFINITY);
    let over: Vec<&Measured> = measured.iter().filter(|m| m.of(|p| p.total).median > budget).collect();
    match args.format {
        Format::Json => writeln!(console.out, "{}", to_json(args, &plan, &measured, over.is_empty()))?,
        Format::Text => print(&plan, &measured, console)?,
    }
    for m in &over {
        let total = m.of(|p| p.total).median;
        writeln!(
            console.err,
            "jvc: {}: {total:.1} ms to the first result, the budget is {budget} ms",
            m.cache.title()
        )?;
    }
    Ok(if over.is_empty() { Outcome::Fine } else { Outcome::Finding })
}

/// The folder of the program's crate, in the scratch folder.
fn compile(args: &ColdstartArgs, scratch: &Path, console: &mut Console<'_>) -> Result<PathBuf, CommandError> {
    let programs = load::programs(std::slice::from_ref(&args.program), &args.compile, console)?;
    let profile = match load::profile(&args.device)? {
        Some(profile) => profile,
        None => device::of_open_gpu(&rt::Gpu::open(&load::select(args.device.gpu.as_deref()))?),
    };
    load::warn_of_strangers(&profile, console)?;
    let options = load::options(&args.compile, Some(load::stem(&args.program)))?;
    let mut compiled = pipeline::compile(&programs, &options, &profile).map_err(CommandError::Diagnostics)?;
    let folder = scratch.join("crate");
    if !compiled.plan.weights.tensors.is_empty() {
        let (table, layout) = (&compiled.weights, &compiled.plan.weights);
        let hash = write_weight_file(&folder.join(FILE_NAME), layout, &mut |tensor, out| table.fill(tensor, out))?;
        compiled.plan.weights.content_hash = hash;
    }
    jvc_codegen::generate(&compiled.plan, &jvc_codegen::Options::default())?.write(&folder)?;
    Ok(folder)
}

/// Milliseconds from the start of a process to its first result, and of which phases they consist.
#[derive(Debug, Clone, Copy)]
struct Phases {
    /// Before the program's first instruction.
    start: f64,
    device: f64,
    weights: f64,
    pipelines: f64,
    /// Weights and pipelines, which are loaded at the same time.
    load: f64,
    session: f64,
    run: f64,
    total: f64,
}

/// A phase's name and its milliseconds.
type Phase = (&'static str, fn(&Phases) -> f64);

const PHASES: [Phase; 8] = [
    ("start", |p| p.start),
    ("device", |p| p.device),
    ("weights", |p| p.weights),
    ("pipelines", |p| p.pipelines),
    ("load", |p| p.load),
    ("session", |p| p.session),
    ("run", |p| p.run),
    ("total", |p| p.total),
];

/// Processes that found the same caches.
struct Measured {
    cache: CacheArg,
    processes: Vec<Phases>,
    /// Kernels that these compiled although their binaries were kept.
    compiled: usize,
}

struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Measured {
    fn of(&self, phase: fn(&Phases) -> f64) -> Spread {
        let mut all: Vec<f64> = self.processes.iter().map(phase).collect();
        all.sort_by(f64::total_cmp);
        Spread { median: all[all.len() / 2], min: all[0], max: all[all.len() - 1] }
    }
}

/// What the measured processes have in common.
struct Processes<'a> {
    args: &'a ColdstartArgs,
    /// Of the crate.
    folder: &'a Path,
    /// Caches stand here.
    scratch: &'a Path,
}

impl Processes<'_> {
    /// Takes turns between the caches, so that what changes with time hits all of them.
    fn measure(&self, console: &mut Console<'_>) -> Result<Vec<Measured>, CommandError> {
        let mut caches = self.args.caches.clone();
        caches.sort();
        caches.dedup();
        let bar = console.bar();
        bar.set_length(u64::from(self.args.runs) * caches.len() as u64);
        let mut all = vec![];
        for cache in caches {
            // Fills the cache, and the system's of files.
            match cache == CacheArg::None || self.start(cache, 0)?.is_some() {
                true => all.push(Measured { cache, processes: vec![], compiled: 0 }),
                false => writeln!(console.err, "jvc: the driver hands out no binaries, so none are measured")?,
            }
        }
        if all.is_empty() {
            return Err(CommandError::Usage("no cache is left to measure".to_string()));
        }
        for round in 0..self.args.runs {
            for measured in &mut all {
                let found = self.start(measured.cache, round)?;
                measured.processes.extend(found.map(|(phases, _)| phases));
                measured.compiled += found.map_or(0, |(_, compiled)| compiled);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        for measured in all.iter().filter(|measured| measured.compiled > 0) {
            let (title, n) = (measured.cache.title(), measured.compiled);
            writeln!(
                console.err,
                "jvc: {title}: in {} processes, {n} kernels were compiled all the same",
                self.args.runs
            )?;
        }
        Ok(all)
    }

    /// One process, and how many kernels it compiled of those whose binaries it keeps. None where there are no binaries to keep.
    fn start(&self, cache: CacheArg, round: u32) -> Result<Option<(Phases, usize)>, CommandError> {
        let (driver, own) = match cache {
            CacheArg::None => (Some(format!("none-{round}")), Some(format!("none-{round}-own"))),
            CacheArg::Driver => (Some("driver".to_string()), None),
            CacheArg::Own | CacheArg::Binaries => (None, Some(cache.name().to_string())),
        };
        let mut command = self.command();
        command.arg("coldstart-process").arg(self.folder).stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(gpu) = &self.args.device.gpu {
            command.arg("--gpu").arg(gpu);
        }
        if cache == CacheArg::Binaries {
            command.arg("--binaries");
        }
        if let Some(own) = own {
            command.arg("--pipelines").arg(self.scratch.join(own));
        }
        set_driver_cache(&mut command, driver.map(|name| self.scratch.join(name)).as_deref())?;
        let started = Instant::now();
        let mut child = command.spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line)?;
        let elapsed = started.elapsed().as_secs_f64() * 1e3;
        let status = child.wait()?;
        let report: Option<Report> =
            serde_json::from_str(&line).map_err(|_| CommandError::Process(status.to_string()))?;
        Ok(report.map(|report| (phases(&report, elapsed), report.compiled)))
    }

    /// This program, or what `--runner` starts it by.
    fn command(&self) -> Command {
        let this = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
        match &self.args.runner {
            Some(runner) => {
                let mut command = Command::new(runner);
                command.arg(this);
                command
            }
            None => Command::new(std::env::current_exe().unwrap_or(this)),
        }
    }
}

/// What the process says, and the time from its start to its report. Reading the plan is left out: a crate has it compiled in.
fn phases(report: &Report, elapsed: f64) -> Phases {
    Phases {
        start: elapsed - report.since_start,
        device: report.device,
        weights: report.weights,
        pipelines: report.pipelines,
        load: report.load,
        session: report.session,
        run: report.run,
        total: elapsed - report.plan,
    }
}

/// Drivers keep compiled kernels in files of their own: NVIDIA's and Mesa's in this folder, or nowhere.
fn set_driver_cache(command: &mut Command, folder: Option<&Path>) -> Result<(), CommandError> {
    command.env("__GL_SHADER_DISK_CACHE", if folder.is_some() { "1" } else { "0" });
    command.env("MESA_SHADER_CACHE_DISABLE", if folder.is_some() { "false" } else { "true" });
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)?;
        command.env("__GL_SHADER_DISK_CACHE_PATH", folder).env("MESA_SHADER_CACHE_DIR", folder);
    }
    Ok(())
}

/// Gigabytes (10⁹) of weights a second, by the median over all processes.
fn weight_rate(plan: &Plan, measured: &[Measured]) -> f64 {
    let processes = measured.iter().flat_map(|m| m.processes.clone()).collect();
    let all = Measured { cache: CacheArg::None, processes, compiled: 0 };
    plan.weights.payload_bytes() as f64 / all.of(|p| p.weights).median / 1e6
}

fn to_json(args: &ColdstartArgs, plan: &Plan, measured: &[Measured], within: bool) -> serde_json::Value {
    let spread = |s: Spread| json!({ "median": s.median, "min": s.min, "max": s.max });
    let of =
        |m: &Measured| PHASES.iter().map(|(name, f)| (format!("{name}_ms"), spread(m.of(*f)))).collect::<Map<_, _>>();
    json!({
        "program": plan.name, "device": plan.device, "kernels": plan.kernels.len(), "weight_bytes": plan.weights.payload_bytes(),
        "weights_gb_per_s": weight_rate(plan, measured), "runs": args.runs,
        "caches": measured.iter().map(|m| (m.cache.name().to_string(), of(m).into())).collect::<Map<_, _>>(),
        "budget_ms": args.budget_ms, "within_budget": args.budget_ms.map(|_| within),
    })
}

fn print(plan: &Plan, measured: &[Measured], console: &mut Console<'_>) -> Result<(), CommandError> {
    let bytes = plan.weights.payload_bytes();
    let n = measured.first().map_or(0, |first| first.processes.len());
    writeln!(
        console.out,
        "{} for {}: {} kernels, {bytes} bytes of weights",
        plan.name,
        plan.device,
        plan.kernels.len()
    )?;
    let titles: String = measured.iter().map(|m| format!("{:>16}", m.cache.title())).collect();
    writeln!(console.out, "{:<12}{titles}", "ms, median")?;
    for (name, phase) in PHASES {
        let medians: String = measured.iter().map(|m| format!("{:>16.2}", m.of(phase).median)).collect();
        writeln!(console.out, "{name:<12}{medians}")?;
    }
    let spread = |m: &Measured| {
        let total = m.of(|p| p.total);
        format!("{:>16}", format!("{:.1}–{:.1}", total.min, total.max))
    };
    writeln!(console.out, "{:<12}{}", "least–most", measured.iter().map(spread).collect::<String>())?;
    if bytes > 0 {
        writeln!(console.out, "weights: {:.1} GB/s, {n} processes for each column", weight_rate(plan, measured))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_those_of_the_process_without_the_plan() {
        let report = Report {
            plan: 5.0,
            device: 100.0,
            weights: 30.0,
            pipelines: 20.0,
            load: 31.0,
            session: 2.0,
            run: 1.0,
            since_start: 140.0,
            compiled: 0,
        };
        let phases = phases(&report, 150.0);
        assert_eq!((phases.start, phases.total), (10.0, 145.0));
        let processes = vec![phases, Phases { total: 99.0, ..phases }, phases];
        let m = Measured { cache: CacheArg::Own, processes, compiled: 0 };
        let total = m.of(|p| p.total);
        assert_eq!((total.min, total.median, total.max), (99.0, 145.0, 145.0));
    }

    #[test]
    fn drivers_get_their_cache_s_folder_or_none() {
        let scratch = tempfile::tempdir().expect("a folder");
        let folder = scratch.path().join("made");
        let value = |command: &Command, name: &str| {
            let found = command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
            found.map(|value| value.to_string_lossy().into_owned())
        };
        let (mut with, mut without) = (Command::new("x"), Command::new("x"));
        set_driver_cache(&mut with, Some(&folder)).expect("writable");
        set_driver_cache(&mut without, None).expect("nothing is written");
        let path = folder.to_string_lossy().into_owned();
        assert!(folder.is_dir());
        assert_eq!(value(&with, "__GL_SHADER_DISK_CACHE_PATH"), Some(path.clone()));
        assert_eq!(value(&with, "MESA_SHADER_CACHE_DIR"), Some(path));
        assert_eq!(value(&without, "__GL_SHADER_DISK_CACHE"), Some("0".to_string()));
        assert_eq!(value(&without, "MESA_SHADER_CACHE_DISABLE"), Some("true".to_string()));
    }
}
