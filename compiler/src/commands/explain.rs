//! `jvc explain`: what a program becomes, as text or as a page: steps and their origin, kernels, decisions with reasons, memory, and what is off
//! its fast path.

use super::{CommandError, Console, Outcome, load};
use crate::cli::ExplainArgs;
use crate::device::DeviceProfile;
use crate::explain::{self, Measured};
use crate::pipeline::{self, Compiled};
use crate::predict;
use jvc_codegen::artifact::Artifact;
use jvc_codegen::plan::{ByteRange, Dispatch, Entry, Plan, Region, Step};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

pub(super) fn run(args: &ExplainArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let programs = load::programs(&args.input.programs, &args.input.compile, console)?;
    let device = load::device(&args.device)?;
    load::warn_of_strangers(&device, console)?;
    let options = load::options(&args.input.compile, Some(load::stem(&args.input.programs[0])))?;
    let compiled = pipeline::compile(&programs, &options, &device).map_err(CommandError::Diagnostics)?;
    match &args.output {
        Some(path) if path.extension().is_some_and(|end| end == "html") => {
            let lines: Vec<String> = compiled.slow.iter().map(ToString::to_string).collect();
            let measured = args.measured.as_deref().map(measured).transpose()?;
            let page = explain::page(&compiled, &lines, &device, measured.as_ref());
            let page = page.map_err(|error| CommandError::Usage(error.to_string()))?;
            jvc_codegen::artifact::write_single(path, page.as_bytes())?;
        }
        _ if args.measured.is_some() => {
            return Err(CommandError::Usage("measured times are shown in a page: -o FILE.html".to_owned()));
        }
        Some(path) => {
            jvc_codegen::artifact::write_single(path, explanation(&compiled, &device).as_bytes())?;
        }
        None => write!(console.out, "{}", explanation(&compiled, &device))?,
    }
    Ok(Outcome::Fine)
}

/// Times of steps from a file.
fn measured(path: &Path) -> Result<Measured, CommandError> {
    let failed = |reason: String| CommandError::Usage(format!("cannot read times from {}: {reason}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
}

fn explanation(compiled: &Compiled, device: &DeviceProfile) -> String {
    let plan = &compiled.plan;
    let mut out = format!("{} for {} ({})\n", plan.name, device.name, device.description);
    for entry in &plan.entries {
        steps(&mut out, plan, entry, device);
        seams(&mut out, entry, device);
    }
    kernels(&mut out, plan);
    section(&mut out, "off the fast path", compiled.slow.iter().map(ToString::to_string));
    let mut files = Artifact::default();
    jvc_codegen::add_texts(plan, &mut files);
    for (title, file) in [("decisions", "decisions.txt"), ("memory", "memory.txt")] {
        section(&mut out, title, files.text(file).unwrap_or("").lines().map(str::to_string));
    }
    out
}

fn section(out: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let lines: Vec<String> = lines.collect();
    writeln!(out, "\n## {title}\n").expect("writing to a string succeeds");
    if lines.is_empty() {
        out.push_str("nothing\n");
    }
    lines.iter().for_each(|l| writeln!(out, "{l}").expect("writing to a string succeeds"));
}

fn steps(out: &mut String, plan: &Plan, entry: &Entry, device: &DeviceProfile) {
    let dispatches: Vec<&Dispatch> = entry
        .steps
        .iter()
        .filter_map(|s| match s {
            Step::Dispatch(d) => Some(d),
            Step::Barrier => None,
        })
        .collect();
    let barriers = entry.steps.len() - dispatches.len();
    let (floor, drain) = predict::entry_us(entry, &plan.kernels, device);
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for d in &dispatches {
        let name = plan.kernels[d.kernel as usize].name.as_str();
        *kinds.entry(name.split('_').next().unwrap_or(name)).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let title = format!(
        "{}: {} dispatches ({}), {barriers} barriers; at best {floor:.1} µs of work and {drain:.1} µs between them",
        entry.name,
        dispatches.len(),
        kinds.join(", ")
    );
    let line = |(i, d): (usize, &&Dispatch)| {
        let kernel = &plan.kernels[d.kernel as usize];
        let us = predict::dispatch_us(d, kernel, device);
        let cost = format!("{:.3} GFLOP, {:.3} MB, {us:.1} µs", d.cost.flops / 1e9, d.cost.bytes / 1e6);
        let kernel = &kernel.name;
        let origin: String = d.origin.iter().map(|o| format!("\n        {o}")).collect();
        format!("{i:5}  {}  [{kernel}]  {cost}{origin}", d.label)
    };
    section(out, &title, dispatches.iter().enumerate().map(line));
}

/// How many seams are listed.
const SEAMS: usize = 16;

/// What is stored by one kernel and read by others, by the time that takes: where fusing more would save most.
fn seams(out: &mut String, entry: &Entry, device: &DeviceProfile) {
    let dispatches =
        || (0u32..).zip(&entry.steps).filter_map(|(i, s)| if let Step::Dispatch(d) = s { Some((i, d)) } else { None });
    let mut found: Vec<(f64, String)> = vec![];
    for b in &entry.buffers {
        let inside = |r: &ByteRange| {
            r.region == Region::Arena(b.chunk) && r.offset >= b.offset && r.offset + r.bytes <= b.offset + b.bytes
        };
        let alive = dispatches().filter(|(i, _)| (b.live.0..=b.live.1).contains(i));
        let readers: Vec<&str> =
            alive.filter(|(_, d)| d.reads.iter().any(inside)).map(|(_, d)| d.label.as_str()).collect();
        let bytes = b.bytes as f64 * (1 + readers.len()) as f64;
        let us = bytes / (device.rates.peak_gb_per_s * 1e3);
        found.push((us, format!("{us:8.1} µs  {}: {} bytes, read by {}", b.name, b.bytes, readers.join(", "))));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let title = format!("{}: what costs most to store and read again", entry.name);
    section(out, &title, found.into_iter().take(SEAMS).map(|(_, line)| line));
}

fn kernels(out: &mut String, plan: &Plan) {
    let mut uses: BTreeMap<u32, usize> = BTreeMap::new();
    for step in plan.entries.iter().flat_map(|e| &e.steps) {
        if let Step::Dispatch(d) = step {
            *uses.entry(d.kernel).or_default() += 1;
        }
    }
    let line = |(i, k): (usize, &jvc_codegen::plan::PlanKernel)| {
        format!("{:4} × {}: {}", uses.get(&(i as u32)).copied().unwrap_or(0), k.name, k.spec)
    };
    section(out, "kernels", plan.kernels.iter().enumerate().map(line));
}
