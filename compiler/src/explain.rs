//! A compiled program as one self-contained page: steps with their origin and reasons, memory over time, roofline, kernels, weights.

use crate::device::DeviceProfile;
use crate::pipeline::Compiled;
use crate::predict;
use jvc_codegen::plan::{ByteRange, Dispatch, Entry, Groups, Plan, PortKind, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

const PAGE: &str = include_str!("explain/page.html");
const STYLE: &str = include_str!("explain/page.css");
const SCRIPT: &str = include_str!("explain/page.js");

/// Times of steps, as `jvc run --steps --format json` prints them among other things.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Measured {
    /// In the order of the dispatches of the first entry point.
    pub steps: Vec<MeasuredStep>,
}

/// The time of one step.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct MeasuredStep {
    /// The value that it computes.
    pub label: String,
    /// Nanoseconds.
    pub ns: f64,
}

/// Times that belong to another program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the measured times are of another program: {reason}")]
pub struct Mismatch {
    /// What differs first.
    pub reason: String,
}

impl Measured {
    /// Times are of this entry point: as many dispatches, of the same names.
    ///
    /// # Errors
    /// They are not.
    pub fn check(&self, entry: &Entry) -> Result<(), Mismatch> {
        let labels: Vec<&str> = entry.steps.iter().filter_map(Step::dispatch).map(|d| d.label.as_str()).collect();
        if labels.len() != self.steps.len() {
            let reason = format!("{} steps, {} has {}", self.steps.len(), entry.name, labels.len());
            return Err(Mismatch { reason });
        }
        let other = labels.iter().zip(&self.steps).enumerate().find(|(_, (label, step))| **label != step.label);
        other.map_or(Ok(()), |(i, (label, step))| {
            Err(Mismatch { reason: format!("step {i} is {:?} there and {label:?} here", step.label) })
        })
    }
}

#[derive(Serialize)]
struct Report<'a> {
    name: &'a str,
    device: &'a str,
    description: &'a str,
    gb_per_s: f64,
    f32_tflop_per_s: f64,
    matrix_tflop_per_s: f64,
    entries: Vec<EntryReport<'a>>,
    kernels: Vec<KernelReport<'a>>,
    weights: Vec<WeightReport<'a>>,
    /// Those about no single value.
    decisions: Vec<&'a str>,
    slow: &'a [String],
}

#[derive(Serialize)]
struct EntryReport<'a> {
    name: &'a str,
    /// Dispatches and barriers.
    recorded: usize,
    barriers: usize,
    drain_us: f64,
    chunks: &'a [u64],
    arena_bytes: u64,
    live_bytes: u64,
    io_bytes: u64,
    state_bytes: u64,
    steps: Vec<StepReport<'a>>,
    buffers: Vec<BufferReport<'a>>,
}

#[derive(Serialize)]
struct StepReport<'a> {
    /// Position among the recorded commands, as in `memory.txt`.
    number: usize,
    /// Barriers before it.
    wave: usize,
    label: &'a str,
    kernel: &'a str,
    groups: String,
    read_bytes: u64,
    written_bytes: u64,
    flops: f64,
    bytes: f64,
    predicted_us: f64,
    measured_us: Option<f64>,
    origin: &'a [String],
    reasons: Vec<&'a str>,
}

#[derive(Serialize)]
struct BufferReport<'a> {
    name: &'a str,
    chunk: u32,
    offset: u64,
    bytes: u64,
    first: u32,
    last: u32,
}

#[derive(Serialize)]
struct KernelReport<'a> {
    name: &'a str,
    spec: &'a str,
    words: usize,
    subgroup: u32,
}

#[derive(Serialize)]
struct WeightReport<'a> {
    name: &'a str,
    elem: &'static str,
    shape: &'a [u64],
    bytes: u64,
    chunk: u32,
}

/// The page of a program. `slow` says what is off its fast path; `measured` are times of the first entry point.
///
/// # Errors
/// Times that are not of this program.
pub fn page(
    compiled: &Compiled,
    slow: &[String],
    device: &DeviceProfile,
    measured: Option<&Measured>,
) -> Result<String, Mismatch> {
    let plan = &compiled.plan;
    if let (Some(measured), Some(entry)) = (measured, plan.entries.first()) {
        measured.check(entry)?;
    }
    let reasons = reasons(plan);
    let entry = |(i, entry)| entry_report(plan, entry, device, &reasons, measured.filter(|_| i == 0));
    let report = Report {
        name: &plan.name,
        device: &device.name,
        description: &device.description,
        gb_per_s: device.rates.peak_gb_per_s,
        f32_tflop_per_s: device.rates.f32_tflop_per_s,
        matrix_tflop_per_s: device.rates.f16_matrix_tflop_per_s,
        entries: plan.entries.iter().enumerate().map(entry).collect(),
        kernels: plan.kernels.iter().map(kernel_report).collect(),
        weights: plan.weights.tensors.iter().map(weight_report).collect(),
        decisions: general(plan, &reasons),
        slow,
    };
    // `<` could end the script element that holds the data.
    let data = serde_json::to_string(&report).expect("numbers and texts serialise").replace('<', "\\u003c");
    let title = format!("{} for {}", plan.name, device.name).replace('&', "&amp;").replace('<', "&lt;");
    Ok(filled(&[("@TITLE@", &title), ("@STYLE@", STYLE), ("@DATA@", &data), ("@SCRIPT@", SCRIPT)]))
}

/// The page with each mark, in their order, replaced: what is put in is not searched again.
fn filled(parts: &[(&str, &str)]) -> String {
    let (mut out, mut rest) = (String::new(), PAGE);
    for (mark, text) in parts {
        let (before, after) = rest.split_once(mark).expect("the page has its marks in this order");
        out += before;
        out += text;
        rest = after;
    }
    out + rest
}

/// Decisions by the value that they are about.
fn reasons(plan: &Plan) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (what, why) in plan.decisions.iter().filter_map(|line| line.split_once(": ")) {
        found.entry(what).or_default().push(why);
    }
    found
}

/// Decisions about no step's value.
fn general<'a>(plan: &'a Plan, reasons: &BTreeMap<&str, Vec<&str>>) -> Vec<&'a str> {
    let labels = plan.entries.iter().flat_map(|e| &e.steps).filter_map(Step::dispatch).map(|d| d.label.as_str());
    let of_steps: std::collections::BTreeSet<&str> = labels.filter(|label| reasons.contains_key(label)).collect();
    let about = |line: &str| line.split_once(": ").map_or("", |(what, _)| what).to_owned();
    plan.decisions.iter().map(String::as_str).filter(|line| !of_steps.contains(about(line).as_str())).collect()
}

fn entry_report<'a>(
    plan: &'a Plan,
    entry: &'a Entry,
    device: &DeviceProfile,
    reasons: &BTreeMap<&str, Vec<&'a str>>,
    measured: Option<&Measured>,
) -> EntryReport<'a> {
    let mut times = measured.map(|m| m.steps.iter());
    let (mut wave, mut steps) = (0, vec![]);
    for (number, step) in entry.steps.iter().enumerate() {
        match step {
            Step::Barrier => wave += 1,
            Step::Dispatch(d) => {
                let measured_us = times.as_mut().and_then(|times| times.next()).map(|step| step.ns / 1e3);
                let why = reasons.get(d.label.as_str()).cloned().unwrap_or_default();
                steps.push(step_report(plan, d, device, (number, wave), measured_us, why));
            }
        }
    }
    let io = entry.inputs.iter().chain(&entry.outputs).filter(|p| matches!(p.kind, PortKind::Io(_)));
    let buffer = |b: &'a jvc_codegen::plan::ArenaBuffer| BufferReport {
        name: &b.name,
        chunk: b.chunk,
        offset: b.offset,
        bytes: b.bytes,
        first: b.live.0,
        last: b.live.1,
    };
    EntryReport {
        name: &entry.name,
        recorded: entry.steps.len(),
        barriers: entry.steps.len() - steps.len(),
        drain_us: predict::entry_us(entry, &plan.kernels, device).1,
        chunks: &entry.arena_bytes,
        arena_bytes: entry.arena_bytes.iter().sum(),
        live_bytes: entry.live_bytes,
        io_bytes: io.map(|p| p.max_bytes).sum(),
        state_bytes: entry.state_bytes(),
        steps,
        buffers: entry.buffers.iter().map(buffer).collect(),
    }
}

fn step_report<'a>(
    plan: &'a Plan,
    d: &'a Dispatch,
    device: &DeviceProfile,
    (number, wave): (usize, usize),
    measured_us: Option<f64>,
    reasons: Vec<&'a str>,
) -> StepReport<'a> {
    let kernel = &plan.kernels[d.kernel as usize];
    let sum = |ranges: &[ByteRange]| ranges.iter().map(|r| r.bytes).sum();
    StepReport {
        number,
        wave,
        label: &d.label,
        kernel: &kernel.name,
        groups: match d.groups {
            Groups::Fixed([x, y, z]) => format!("{x} × {y} × {z}"),
            Groups::Table(word) => format!("by word {word} of the symbol table"),
        },
        read_bytes: sum(&d.reads),
        written_bytes: sum(&d.writes),
        flops: d.cost.flops,
        bytes: d.cost.bytes,
        predicted_us: predict::dispatch_us(d, kernel, device),
        measured_us,
        origin: &d.origin,
        reasons,
    }
}

fn kernel_report(k: &jvc_codegen::plan::PlanKernel) -> KernelReport<'_> {
    KernelReport { name: &k.name, spec: &k.spec, words: k.words.len(), subgroup: k.subgroup }
}

fn weight_report(t: &jvc_codegen::plan::WeightTensor) -> WeightReport<'_> {
    WeightReport { name: &t.name, elem: t.elem.name(), shape: &t.shape, bytes: t.bytes, chunk: t.chunk }
}
