//! `jvc run`: compiles one program in memory and runs it.

use super::{CommandError, Console, Outcome, load};
use crate::cli::{Format, RunArgs};
use crate::exec::{HostTensor, Loaded, Session, Value};
use crate::ir::{Graph, UserOutput};
use crate::pipeline::Compiled;
use crate::tensor_file::print_tensors;
use crate::verify;
use jvc_runtime as rt;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Instant;

pub(super) fn run(args: &RunArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let load::InMemory { gpu, compiled, inputs, compile_seconds } = load::in_memory(&args.what, console)?;
    let started = Instant::now();
    let loaded = Loaded::new(&gpu, &compiled, &rt::CacheDir::Default)?;
    let mut session = loaded.session(0)?;
    let load_seconds = started.elapsed().as_secs_f64();
    let (outputs, seconds, same) = repeat(&mut session, &inputs, args.repeat)?;
    let symbols = session.symbols();
    let named = name_outputs(&compiled.graphs[0], outputs, &symbols);
    if let Some(path) = &args.output {
        jvc_codegen::artifact::write_single(path, &print_tensors(&named)?)?;
    }
    let timing = Timing { compile_seconds, load_seconds, seconds, same };
    let steps = if args.steps { Some(steps(&loaded, &compiled, &inputs)?) } else { None };
    let ran =
        Ran { gpu: &gpu.info().name, dispatches: session.n_dispatches(), outputs: &named, timing: &timing, steps };
    match args.format {
        Format::Json => ran.print_json(console)?,
        Format::Text => ran.print_text(console)?,
    }
    Ok(if same { Outcome::Fine } else { Outcome::Finding })
}

struct Timing {
    compile_seconds: f64,
    load_seconds: f64,
    /// Of each run.
    seconds: Vec<f64>,
    /// All runs gave the same bytes.
    same: bool,
}

impl Timing {
    /// Seconds of the middle run.
    fn median(&self) -> f64 {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }
}

/// Runs from the initial state each time: the first outputs, the seconds of each run, and whether all were equal.
fn repeat(
    session: &mut Session<'_>,
    inputs: &[Value],
    n: u32,
) -> Result<(Vec<HostTensor>, Vec<f64>, bool), CommandError> {
    let (mut first, mut seconds, mut same) = (None, vec![], true);
    for _ in 0..n.max(1) {
        session.reset();
        let started = Instant::now();
        let outputs = session.run(inputs)?;
        seconds.push(started.elapsed().as_secs_f64());
        match &first {
            None => first = Some(outputs),
            Some(before) => same &= *before == outputs,
        }
    }
    Ok((first.unwrap_or_default(), seconds, same))
}

/// Tensors by the names of the program's outputs, `out.N`; mutated inputs follow as `updated.N`.
pub(super) fn name_outputs(
    graph: &Graph,
    outputs: Vec<HostTensor>,
    symbols: &BTreeMap<String, i64>,
) -> BTreeMap<String, HostTensor> {
    let mut tensors = outputs.into_iter();
    let value = |output: &UserOutput| match output {
        UserOutput::Tensor(_) => tensors.next(),
        UserOutput::Int(dim) => dim.eval(symbols).map(verify::number),
        UserOutput::Constant(text) => verify::constant(text),
    };
    let values: Vec<Option<HostTensor>> = graph.outputs.iter().map(|(_, output)| output).map(value).collect();
    let named = values.into_iter().enumerate().filter_map(|(i, v)| Some((format!("out.{i}"), v?)));
    let mut out: BTreeMap<String, HostTensor> = named.collect();
    for ((input, _), tensor) in graph.input_updates.iter().zip(tensors) {
        out.insert(format!("updated.{input}"), tensor);
    }
    out
}

/// The time of one dispatch.
struct StepTime<'a> {
    label: String,
    kernel: &'a str,
    ns: f64,
}

/// What there is to tell of the runs.
struct Ran<'a> {
    gpu: &'a str,
    dispatches: usize,
    outputs: &'a BTreeMap<String, HostTensor>,
    timing: &'a Timing,
    steps: Option<Vec<StepTime<'a>>>,
}

impl Ran<'_> {
    fn print_json(&self, console: &mut Console<'_>) -> Result<(), CommandError> {
        let shape = |(name, t): (&String, &HostTensor)| (name.clone(), format!("{}{:?}", t.dtype, t.shape));
        let mut body = json!({
            "gpu": self.gpu, "dispatches": self.dispatches, "runs": self.timing.seconds.len(),
            "outputs": self.outputs.iter().map(shape).collect::<BTreeMap<_, _>>(),
            "median_seconds": self.timing.median(), "compile_seconds": self.timing.compile_seconds,
            "load_seconds": self.timing.load_seconds, "same_bytes": self.timing.same,
        });
        if let Some(steps) = &self.steps {
            let step = |s: &StepTime<'_>| json!({ "label": s.label, "kernel": s.kernel, "ns": s.ns });
            body["steps"] = steps.iter().map(step).collect();
        }
        writeln!(console.out, "{body}")?;
        Ok(())
    }

    fn print_text(&self, console: &mut Console<'_>) -> Result<(), CommandError> {
        for (name, tensor) in self.outputs {
            writeln!(console.out, "{name}: {}{:?}", tensor.dtype, tensor.shape)?;
        }
        let Timing { compile_seconds, load_seconds, seconds, same } = self.timing;
        let (n, ms) = (seconds.len(), self.timing.median() * 1e3);
        writeln!(console.err, "{} dispatches on {}", self.dispatches, self.gpu)?;
        writeln!(
            console.err,
            "compiled in {compile_seconds:.2} s, loaded in {load_seconds:.2} s, {ms:.3} ms a run (median of {n})"
        )?;
        if !same {
            writeln!(console.err, "jvc: the runs gave different bytes")?;
        }
        let total: f64 = self.steps.iter().flatten().map(|step| step.ns).sum();
        for StepTime { label, kernel, ns } in self.steps.iter().flatten() {
            let share = 100.0 * ns / total.max(1.0);
            writeln!(console.out, "{:10.1} µs {share:5.1} %  {label}  {kernel}", ns / 1e3)?;
        }
        Ok(())
    }
}

fn steps<'a>(loaded: &Loaded<'_>, compiled: &'a Compiled, inputs: &[Value]) -> Result<Vec<StepTime<'a>>, CommandError> {
    let times = loaded.profile(0, inputs)?;
    let dispatches = compiled.plan.entries[0].steps.iter().filter_map(jvc_codegen::plan::Step::dispatch);
    let kernels = dispatches.map(|d| compiled.plan.kernels[d.kernel as usize].name.as_str());
    Ok(times.into_iter().zip(kernels).map(|((label, ns), kernel)| StepTime { label, kernel, ns }).collect())
}
