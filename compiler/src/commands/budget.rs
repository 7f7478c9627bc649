//! `jvc compile --error-budget`: runs the search for what must stay in f32, with its progress.

use super::{CommandError, Console, load};
use crate::cli::BudgetArgs;
use crate::device;
use crate::import::Program;
use crate::islands::{FILE_NAME, Islands, Limits, Measured, Samples};
use crate::options::{Mixed, Options};
use crate::passes::mix_precision::Report;
use indicatif::ProgressStyle;
use jvc_runtime as rt;

/// Islands that are printed one by one; the file has all.
const MOST_LINES: usize = 20;

/// The options with the islands that hold the budget.
pub(super) fn search(
    args: &BudgetArgs,
    budget: f64,
    programs: &[Program],
    mut options: Options,
    console: &mut Console<'_>,
) -> Result<Options, CommandError> {
    let Some(mixed) = options.mixed.clone() else {
        return Err(CommandError::Usage("--error-budget is for --precision f16 or bf16".to_string()));
    };
    if args.samples.len() != programs.len() {
        let (n, given) = (programs.len(), args.samples.len());
        return Err(CommandError::Usage(format!("a file of --samples for each program: {n} programs, {given} files")));
    }
    let all = args.samples.iter().map(|path| Samples::read(path)).collect::<Result<Vec<_>, _>>()?;
    let gpu = rt::Gpu::open(&load::select(args.gpu.as_deref()))?;
    let device = device::of_open_gpu(&gpu);
    let mut found = Islands { precision: mixed.half, budget, programs: vec![] };
    for (program, samples) in programs.iter().zip(&all) {
        let bar = console.bar();
        bar.set_style(ProgressStyle::with_template("{prefix} {wide_bar} {pos} {msg}").expect("a template"));
        bar.set_length(u64::from(args.rounds));
        bar.set_prefix(format!("islands of {}", program.name));
        bar.tick();
        let measured = Measured::new(&gpu, &device, program, &options, &mixed, samples)?;
        let limits = Limits { budget, rounds: args.rounds };
        let islands = measured.search(limits, &mut |round, error| {
            bar.set_position(u64::from(round));
            bar.set_message(format!("last error {error:.1e}"));
        })?;
        bar.finish_and_clear();
        found.programs.push(islands);
    }
    options.mixed = Some(Mixed { islands: Some(found), ..mixed });
    Ok(options)
}

/// The islands as the crate of these programs has them.
pub(super) fn fitted(options: &Options, programs: &[Program]) -> Option<Islands> {
    let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
    options.mixed.as_ref()?.islands.as_ref()?.fitted(&names).ok()
}

/// What stayed in f32 for the budget, for people.
pub(super) fn print(report: &Report, console: &mut Console<'_>) -> Result<(), CommandError> {
    let Some(line) = report.budget_line() else { return Ok(()) };
    writeln!(console.out, "  {line}")?;
    let islands = report.budget.as_ref().map_or(&[][..], |b| &b.islands);
    for line in islands.iter().take(MOST_LINES) {
        writeln!(console.out, "    {line}")?;
    }
    if islands.len() > MOST_LINES {
        writeln!(console.out, "    and {} more, in {FILE_NAME}", islands.len() - MOST_LINES)?;
    }
    Ok(())
}
