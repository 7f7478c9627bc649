//! `jvc ops`: the table of operators with what they take and become, and what is left out on purpose; for programs, what they call, and
//! which of it is refused.

use super::{CommandError, Console, Outcome, load};
use crate::aten::left_out::LEFT_OUT;
use crate::aten::{self, examples, limits};
use crate::cli::{CompileOptions, Format, OpsArgs};
use crate::device::{self, DeviceProfile};
use crate::import::Program;
use crate::import::program::{Arg, ProgramGraph, ScalarType};
use crate::options::Options;
use crate::pipeline;
use crate::report::Diagnostic;
use rayon::prelude::*;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub(super) fn run(args: &OpsArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let (programs, words): (Vec<&PathBuf>, Vec<&PathBuf>) = args.what.iter().partition(|p| is_program(p));
    if programs.is_empty() {
        let words: Vec<String> = words.iter().map(|w| w.to_string_lossy().into_owned()).collect();
        return table(&words, args, console);
    }
    if let Some(word) = words.first() {
        return Err(CommandError::Usage(format!("{} is no program, and programs are given", word.display())));
    }
    let programs: Vec<PathBuf> = programs.into_iter().cloned().collect();
    let programs = load::programs(&programs, &CompileOptions::default(), console)?;
    let uses: Vec<Uses<'_>> = programs.iter().map(Uses::of).collect();
    match args.format {
        Format::Text => uses.iter().try_for_each(|u| u.print(console))?,
        Format::Json => writeln!(console.out, "{}", uses.iter().map(Uses::json).collect::<Value>())?,
    }
    Ok(if uses.iter().any(|u| !u.problems.is_empty()) { Outcome::Finding } else { Outcome::Fine })
}

/// Files are programs; other words choose operators by a part of their name.
fn is_program(path: &Path) -> bool {
    let name = path.to_string_lossy();
    path.exists() || [".pt2", ".json", ".json.gz"].iter().any(|end| name.ends_with(end))
}

/// A line of the table.
struct Row {
    name: &'static str,
    types: Vec<ScalarType>,
    refused: &'static [ScalarType],
    kernels: Vec<&'static str>,
    limits: Vec<&'static str>,
}

impl Row {
    fn of(name: &'static str, device: &DeviceProfile) -> Row {
        let example = examples::find(name);
        Row {
            name,
            types: example.map_or(vec![], examples::Example::types),
            refused: example.map_or(&[], examples::Example::refused),
            kernels: example.map_or(vec![], |e| kernels(e, device)),
            limits: limits::of(name).map(|l| l.code).collect(),
        }
    }

    fn json(&self) -> Value {
        let texts = |types: &[ScalarType]| types.iter().map(ToString::to_string).collect::<Vec<_>>();
        json!({
            "op": self.name, "types": texts(&self.types), "refused": texts(self.refused),
            "kernels": self.kernels, "limits": self.limits,
        })
    }
}

/// Templates that the example becomes, in its first type that the device has; none for what only moves or names values.
fn kernels(example: &examples::Example, device: &DeviceProfile) -> Vec<&'static str> {
    let programs = example.programs();
    let made = programs.iter().find_map(|(_, program)| {
        let (graph, _) = pipeline::graph_of(program, &Options::default(), None).ok()?;
        pipeline::schedule(&graph, device).ok()
    });
    let templates: BTreeSet<&'static str> = made.iter().flat_map(|s| &s.drafts).map(|d| d.spec.template()).collect();
    templates.into_iter().collect()
}

fn table(words: &[String], args: &OpsArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let device = device::find(&args.device)?;
    let chosen = |name: &&str| words.is_empty() || words.iter().any(|w| name.contains(w.as_str()));
    let names: Vec<&'static str> = aten::supported().into_iter().filter(chosen).collect();
    let rows: Vec<Row> = names.par_iter().map(|name| Row::of(name, &device)).collect();
    let used: Vec<&limits::Limit> =
        limits::LIMITS.iter().filter(|l| words.is_empty() || rows.iter().any(|r| r.limits.contains(&l.code))).collect();
    let left_out = LEFT_OUT.iter().filter(|l| words.is_empty() || l.patterns.iter().any(&chosen));
    match args.format {
        Format::Json => {
            let limits: Vec<_> =
                used.iter().map(|l| json!({"code": l.code, "operators": l.operators, "text": l.text})).collect();
            let left_out: Vec<_> = left_out.map(|l| json!({"operators": l.patterns, "reason": l.reason})).collect();
            let rows: Vec<_> = rows.iter().map(Row::json).collect();
            writeln!(console.out, "{}", json!({"operators": rows, "limits": limits, "left_out": left_out}))?;
        }
        Format::Text => {
            print_rows(&rows, console)?;
            if !used.is_empty() {
                writeln!(console.out, "\nlimits:")?;
            }
            for l in used {
                writeln!(console.out, "  {}: {}", l.code, l.text)?;
            }
            let left_out: Vec<_> = left_out.collect();
            if !left_out.is_empty() {
                writeln!(console.out, "\nleft out on purpose:")?;
            }
            for entry in left_out {
                writeln!(console.out, "  {}\n      {}", entry.patterns.join(" "), entry.reason)?;
            }
            writeln!(console.err, "{} operators; their in-place forms come with them", names.len())?;
        }
    }
    let nothing = rows.is_empty() && !words.is_empty();
    Ok(if nothing { Outcome::Finding } else { Outcome::Fine })
}

fn print_rows(rows: &[Row], console: &mut Console<'_>) -> Result<(), CommandError> {
    let width = rows.iter().map(|r| r.name.len()).max().unwrap_or(0);
    for row in rows {
        let mut line = format!("{:width$}  {:32}  {}", row.name, type_names(&row.types), row.kernels.join(" "));
        if !row.refused.is_empty() {
            line += &format!("  refused: {}", type_names(row.refused));
        }
        if !row.limits.is_empty() {
            line += &format!("  limits: {}", row.limits.join(" "));
        }
        writeln!(console.out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// `floats` and `ints` stand for all of their kind.
fn type_names(types: &[ScalarType]) -> String {
    use ScalarType::*;
    const KINDS: [(&str, &[ScalarType]); 2] = [("floats", &[F32, F16, BF16, F64]), ("ints", &[I64, I32, I16, I8, U8])];
    let (mut out, mut rest) = (vec![], types.to_vec());
    for (name, kind) in KINDS {
        if kind.iter().all(|t| types.contains(t)) {
            out.push(name.to_string());
            rest.retain(|t| !kind.contains(t));
        }
    }
    out.extend(rest.iter().map(ToString::to_string));
    out.join(" ")
}

/// What a program calls, and what of it cannot be compiled.
struct Uses<'a> {
    program: &'a Program,
    counts: BTreeMap<String, usize>,
    problems: Vec<Diagnostic>,
}

impl Uses<'_> {
    fn of(program: &Program) -> Uses<'_> {
        let mut counts = BTreeMap::new();
        count(&program.graph, &mut counts);
        Uses { program, counts, problems: aten::lower(program, &Options::default()).err().unwrap_or_default() }
    }

    fn print(&self, console: &mut Console<'_>) -> Result<(), CommandError> {
        let missing = self.counts.keys().filter(|t| !aten::is_supported(t)).count();
        writeln!(console.out, "{}: {} operators, {missing} without a rule", self.program.name, self.counts.len())?;
        for (target, n) in &self.counts {
            let mark = if aten::is_supported(target) { "       " } else { "missing" };
            writeln!(console.out, "  {mark} {n:6} × {target}")?;
        }
        if !self.problems.is_empty() {
            writeln!(console.out, "{}", super::diagnostics::render(&self.problems))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let one = |(t, n): (&String, &usize)| json!({"op": t, "calls": n, "supported": aten::is_supported(t)});
        let ops: Vec<_> = self.counts.iter().map(one).collect();
        let problems = super::diagnostics::to_json(&self.problems);
        json!({"program": self.program.name, "ops": ops, "diagnostics": problems})
    }
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
