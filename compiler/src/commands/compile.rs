//! `jvc compile`: programs → a crate with its weight file, or the text form of a stage.

use super::{CommandError, Console, Outcome, budget, diagnostics, load};
use crate::cli::{CompileArgs, Format, Stage};
use crate::passes::{mix_precision, quantize};
use crate::pipeline::{self, Compiled};
use crate::{import, islands};
use indicatif::ProgressBar;
use jvc_codegen::RuntimeSource;
use jvc_codegen::artifact::{self, Artifact};
use jvc_codegen::weights::FILE_NAME;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(super) fn run(args: &CompileArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let mut clock = Clock::default();
    let programs = load::programs(&args.input.programs, &args.input.compile, console)?;
    clock.lap("import");
    if args.emit == Some(Stage::Program) {
        programs.iter().try_for_each(|p| write!(console.out, "{}", import::print(p)))?;
        return Ok(Outcome::Fine);
    }
    let device = load::device(&args.device)?;
    load::warn_of_strangers(&device, console)?;
    let name = args.name.clone().unwrap_or_else(|| load::stem(&args.input.programs[0]));
    let mut options = load::options(&args.input.compile, Some(name))?;
    if let Some(limit) = args.budget.error_budget {
        options = budget::search(&args.budget, limit, &programs, options, console)?;
        clock.lap("islands");
    }
    let mut compiled = match pipeline::compile(&programs, &options, &device) {
        Ok(compiled) => compiled,
        Err(all) if args.format == Format::Json => {
            writeln!(console.out, "{}", json!({"diagnostics": diagnostics::to_json(&all)}))?;
            return Ok(Outcome::Finding);
        }
        Err(all) => return Err(CommandError::Diagnostics(all)),
    };
    clock.lap("compile");
    if let Some(stage) = args.emit {
        emit(stage, &compiled, console)?;
        return Ok(Outcome::Fine);
    }
    let folder = args.out.clone().unwrap_or_else(|| PathBuf::from(&compiled.plan.name));
    if args.no_weights {
        compiled.hash_weights()?;
    } else if !compiled.plan.weights.tensors.is_empty() {
        write_weights(&mut compiled, &folder.join(FILE_NAME), &console.bar())?;
    }
    clock.lap("weights");
    let mut artifact = generate(&compiled, args)?;
    if let Some(islands) = budget::fitted(&options, &programs) {
        artifact.add_text(islands::FILE_NAME, islands.to_text());
    }
    artifact.write(&folder)?;
    clock.lap("generate");
    report(args, &compiled, &artifact, &folder, &clock, console)?;
    Ok(Outcome::Fine)
}

/// Writing is what takes long in a compilation: a model's weights are gigabytes.
fn write_weights(compiled: &mut Compiled, path: &Path, bar: &ProgressBar) -> Result<(), CommandError> {
    let table = &compiled.weights;
    let layout = &compiled.plan.weights;
    bar.set_length(layout.payload_bytes());
    let hash =
        artifact::write_weight_file(path, layout, &mut |tensor, out| table.fill(tensor, &mut bar.wrap_write(out)))?;
    bar.finish_and_clear();
    compiled.plan.weights.content_hash = hash;
    Ok(())
}

fn generate(compiled: &Compiled, args: &CompileArgs) -> Result<Artifact, CommandError> {
    let runtime = match args.external_runtime.as_deref() {
        None => RuntimeSource::Vendored,
        Some("version") => RuntimeSource::Version,
        Some(path) => RuntimeSource::Path(path.to_string()),
    };
    Ok(jvc_codegen::generate(&compiled.plan, &jvc_codegen::Options { runtime, c_api: args.c_api })?)
}

fn report(
    args: &CompileArgs,
    compiled: &Compiled,
    artifact: &Artifact,
    folder: &Path,
    clock: &Clock,
    console: &mut Console<'_>,
) -> Result<(), CommandError> {
    let plan = &compiled.plan;
    let bytes: usize = artifact.files.values().map(Vec::len).sum();
    let weights = plan.weights.payload_bytes();
    if args.format == Format::Json {
        let entries: Vec<_> = plan.entries.iter().map(entry_json).collect();
        let body = json!({
            "name": plan.name, "device": plan.device, "folder": folder.display().to_string(), "kernels": plan.kernels.len(),
            "crate_bytes": bytes, "weight_bytes": weights, "entries": entries, "seconds": clock.to_json(),
            "quantized": compiled.quantized.iter().map(quantize::Report::to_json).collect::<Vec<_>>(),
            "mixed": compiled.mixed.iter().map(mix_precision::Report::to_json).collect::<Vec<_>>(),
        });
        writeln!(console.out, "{body}")?;
        return Ok(());
    }
    writeln!(console.out, "{} for {}: {}", plan.name, plan.device, folder.display())?;
    for entry in &plan.entries {
        let n = dispatches(entry);
        let (arena, live) = (entry.arena_bytes.iter().sum::<u64>(), entry.live_bytes);
        let barriers = entry.steps.len() - n;
        writeln!(
            console.out,
            "  {}: {n} dispatches, {barriers} barriers, arena {arena} bytes ({live} live at most)",
            entry.name
        )?;
    }
    writeln!(console.out, "  {} kernels, {bytes} bytes of files, {weights} bytes of weights", plan.kernels.len())?;
    for report in &compiled.mixed {
        writeln!(console.out, "  {}", report.summary())?;
        budget::print(report, console)?;
    }
    for line in compiled.quantized.iter().flat_map(quantize::Report::lines) {
        writeln!(console.out, "  {line}")?;
    }
    if args.timings {
        writeln!(console.err, "{}", clock.text())?;
    }
    Ok(())
}

fn entry_json(entry: &jvc_codegen::plan::Entry) -> serde_json::Value {
    let n = dispatches(entry);
    json!({
        "name": entry.name, "dispatches": n, "barriers": entry.steps.len() - n,
        "arena_bytes": entry.arena_bytes.iter().sum::<u64>(), "live_bytes": entry.live_bytes,
        "symbols": entry.symbols.iter().map(|s| json!({"name": s.name, "min": s.min, "max": s.max})).collect::<Vec<_>>(),
    })
}

fn dispatches(entry: &jvc_codegen::plan::Entry) -> usize {
    entry.steps.iter().filter(|s| matches!(s, jvc_codegen::plan::Step::Dispatch(_))).count()
}

fn emit(stage: Stage, compiled: &Compiled, console: &mut Console<'_>) -> Result<(), CommandError> {
    match stage {
        Stage::Program => {}
        Stage::Graph => {
            for graph in &compiled.graphs {
                writeln!(console.out, "{}", crate::ir::print::print(graph))?;
            }
        }
        Stage::Kernels => {
            for kernel in &compiled.plan.kernels {
                writeln!(console.out, "{}: {}", kernel.name, kernel.spec)?;
            }
        }
        Stage::Plan => write!(console.out, "{}", compiled.plan.to_text())?,
    }
    Ok(())
}

/// Seconds of the steps of a compilation.
struct Clock {
    last: Instant,
    laps: Vec<(&'static str, f64)>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { last: Instant::now(), laps: vec![] }
    }
}

impl Clock {
    fn lap(&mut self, name: &'static str) {
        self.laps.push((name, self.last.elapsed().as_secs_f64()));
        self.last = Instant::now();
    }

    fn text(&self) -> String {
        let laps: Vec<String> = self.laps.iter().map(|(name, s)| format!("{name} {s:.2} s")).collect();
        laps.join(", ")
    }

    fn to_json(&self) -> serde_json::Value {
        self.laps.iter().map(|(name, s)| (name.to_string(), json!(s))).collect::<serde_json::Map<_, _>>().into()
    }
}
