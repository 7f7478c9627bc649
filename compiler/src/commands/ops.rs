//! `jvc ops`: the operators that have a rule, and those left out on purpose; for programs, the operators that they call.

use super::{CommandError, Console, Outcome, load};
use crate::aten::{self, left_out::LEFT_OUT};
use crate::cli::{CompileOptions, Format, OpsArgs};
use crate::import::Program;
use crate::import::program::{Arg, ProgramGraph};
use serde_json::json;
use std::collections::BTreeMap;

pub(super) fn run(args: &OpsArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    if args.programs.is_empty() {
        return list(args.format, console);
    }
    let programs = load::programs(&args.programs, &CompileOptions::default(), console)?;
    let mut missing = false;
    let mut reports = vec![];
    for program in &programs {
        let counts = calls(program);
        missing |= counts.keys().any(|t| !supported(t));
        match args.format {
            Format::Text => print(program, &counts, console)?,
            Format::Json => {
                let ops: Vec<_> =
                    counts.iter().map(|(t, n)| json!({"op": t, "calls": n, "supported": supported(t)})).collect();
                reports.push(json!({"program": program.name, "ops": ops}));
            }
        }
    }
    if args.format == Format::Json {
        writeln!(console.out, "{}", json!(reports))?;
    }
    Ok(if missing { Outcome::Finding } else { Outcome::Fine })
}

fn list(format: Format, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let mut names = aten::supported();
    names.sort_unstable();
    match format {
        Format::Json => {
            let left_out: Vec<_> =
                LEFT_OUT.iter().map(|l| json!({"operators": l.patterns, "reason": l.reason})).collect();
            writeln!(console.out, "{}", json!({"supported": names, "left_out": left_out}))?;
        }
        Format::Text => {
            names.iter().try_for_each(|name| writeln!(console.out, "{name}"))?;
            writeln!(console.out, "\nleft out on purpose:")?;
            for entry in LEFT_OUT {
                writeln!(console.out, "  {}\n      {}", entry.patterns.join(" "), entry.reason)?;
            }
            writeln!(console.err, "{} operators; their in-place forms come with them", names.len())?;
        }
    }
    Ok(Outcome::Fine)
}

fn print(program: &Program, counts: &BTreeMap<String, usize>, console: &mut Console<'_>) -> Result<(), CommandError> {
    let missing = counts.keys().filter(|t| !supported(t)).count();
    writeln!(console.out, "{}: {} operators, {missing} without a rule", program.name, counts.len())?;
    for (target, n) in counts {
        let mark = if supported(target) { "       " } else { "missing" };
        writeln!(console.out, "  {mark} {n:6} × {target}")?;
    }
    Ok(())
}

fn supported(target: &str) -> bool {
    aten::is_supported(target)
}

fn calls(program: &Program) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    count(&program.graph, &mut counts);
    counts
}

fn count(graph: &ProgramGraph, counts: &mut BTreeMap<String, usize>) {
    for node in &graph.nodes {
        *counts.entry(node.target.clone()).or_default() += 1;
        for input in &node.inputs {
            if let Arg::Graph(inner) = &input.arg {
                count(&inner.graph, counts);
            }
        }
    }
}
