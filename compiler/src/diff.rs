//! What changes from one generated crate to another: totals, interface, kernels, steps with the reasons, and predicted time. Read from
//! the texts under review (`plan.txt`, `decisions.txt`), so crates whose kernels are pinned by hash alone can be compared.

mod limits;
mod markdown;
mod source;
mod steps;

pub use limits::{Limit, LimitError};
pub use source::{Crate, SourceError, read};

use crate::{device, predict};
use jvc_codegen::plan::{Outline, Port, PortKind, Requirements, Size, Step, Symbol};
use serde::Serialize;
use std::collections::BTreeMap;
pub use steps::{Moved, StepChange, pairs};

/// The differences of two crates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The crate, and the device that it is for.
    pub name: String,
    /// Sizes and counts, also those that did not change.
    pub totals: Vec<Total>,
    /// What a program that links the crate, or a device that runs it, notices.
    pub interface: Vec<String>,
    /// Kernels by name.
    pub kernels: KernelChanges,
    /// Steps that are new, gone, or done by another kernel.
    pub steps: Vec<StepChange>,
}

/// A figure before and after.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Total {
    /// What it counts; [`Limit`] takes the same word.
    pub what: &'static str,
    /// Its unit, if it has one.
    pub unit: &'static str,
    /// Before.
    pub old: f64,
    /// After.
    pub new: f64,
}

/// Kernels of one crate that the other has not, or has with other code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KernelChanges {
    /// Only in the new one.
    pub added: Vec<String>,
    /// Only in the old one.
    pub removed: Vec<String>,
    /// In both, with other SPIR-V: the generator has changed, not the model.
    pub rebuilt: Vec<String>,
}

impl Total {
    /// Change in percent of the old figure; infinite from 0.
    pub fn percent(&self) -> f64 {
        if self.old == self.new { 0.0 } else { (self.new - self.old) / self.old * 100.0 }
    }
}

impl Comparison {
    /// Compares two crates.
    pub fn of(old: &Crate, new: &Crate) -> Comparison {
        let plan = &new.outline.plan;
        Comparison {
            name: format!("{} for {}", plan.name, plan.device),
            totals: totals(&old.outline, &new.outline),
            interface: interface(&old.outline, &new.outline),
            kernels: kernels(&old.outline, &new.outline),
            steps: steps::changes(old, new),
        }
    }

    /// Nothing at all differs.
    pub fn is_empty(&self) -> bool {
        let same = self.totals.iter().all(|total| total.old == total.new);
        same && self.interface.is_empty() && self.kernels == KernelChanges::default() && self.steps.is_empty()
    }

    /// The limits that are exceeded, in words.
    pub fn exceeded(&self, limits: &[Limit]) -> Vec<String> {
        limits.iter().filter_map(|limit| limit.exceeded_by(self)).map(|why| format!("{}: {why}", self.name)).collect()
    }

    /// For a pull request.
    pub fn to_markdown(&self) -> String {
        markdown::of(self)
    }
}

fn totals(old: &Outline, new: &Outline) -> Vec<Total> {
    let steps = |o: &Outline, barrier: bool| {
        o.plan.entries.iter().flat_map(|e| &e.steps).filter(|s| matches!(s, Step::Barrier) == barrier).count() as f64
    };
    let sum = |numbers: &[u64]| numbers.iter().sum::<u64>() as f64;
    let arena = |o: &Outline| o.plan.entries.iter().map(|e| sum(&e.arena_bytes)).sum::<f64>();
    let state = |o: &Outline| o.plan.entries.iter().map(|e| e.state_bytes() as f64).sum::<f64>();
    let spirv = |o: &Outline| o.pinned.iter().map(|k| k.n_words as f64 * 4.0).sum::<f64>();
    let total = |what, unit, of: &dyn Fn(&Outline) -> f64| Total { what, unit, old: of(old), new: of(new) };
    let mut all = vec![
        total("dispatches", "", &|o| steps(o, false)),
        total("barriers", "", &|o| steps(o, true)),
        total("kernels", "", &|o| o.pinned.len() as f64),
        total("spirv", "bytes", &spirv),
        total("arena", "bytes", &arena),
        total("state", "bytes", &state),
        total("weights", "bytes", &|o| sum(&o.plan.weights.chunk_bytes)),
    ];
    all.extend(predicted(old, new));
    all
}

/// Time by the profile of the new crate's device, if it is a bundled one.
fn predicted(old: &Outline, new: &Outline) -> Option<Total> {
    let device = device::find(&new.plan.device).ok()?;
    let of = |o: &Outline| {
        let each = o.plan.entries.iter().map(|e| predict::entry_us(e, &o.plan.kernels, &device));
        each.map(|(work, drains)| work + drains).sum()
    };
    Some(Total { what: "slower", unit: "µs, predicted", old: of(old), new: of(new) })
}

fn interface(old: &Outline, new: &Outline) -> Vec<String> {
    let ports = |o: &Outline| o.plan.entries.iter().flat_map(signature).collect::<BTreeMap<_, _>>();
    let mut found = changed_lines(&ports(old), &ports(new));
    let tensors = |o: &Outline| {
        let tensors = o.plan.weights.tensors.iter();
        let line = |t: &jvc_codegen::plan::WeightTensor| {
            (format!("weight {}", t.name), format!("{} {:?}", t.elem.name(), t.shape))
        };
        tensors.map(line).collect::<BTreeMap<_, _>>()
    };
    found.extend(changed_lines(&tensors(old), &tensors(new)));
    let needs = |o: &Outline| requirements(&o.plan.requirements);
    found.extend(changed_lines(&needs(old), &needs(new)));
    let device = |o: &Outline| BTreeMap::from([("device".to_owned(), o.plan.device.clone())]);
    found.extend(changed_lines(&device(old), &device(new)));
    found
}

/// Lines for keys that only one side has, or both with other values.
fn changed_lines(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<String> {
    let gone =
        old.iter().filter(|(key, _)| !new.contains_key(*key)).map(|(key, value)| format!("removed: {key} {value}"));
    let rest = new.iter().filter_map(|(key, value)| match old.get(key) {
        None => Some(format!("added: {key} {value}")),
        Some(before) if before != value => Some(format!("changed: {key} {before} → {value}")),
        Some(_) => None,
    });
    gone.chain(rest).collect()
}

/// Inputs, outputs and symbols of an entry point; positions count, since they are the caller's.
fn signature(entry: &jvc_codegen::plan::Entry) -> Vec<(String, String)> {
    let port = |kind: &str, at: usize, p: &Port| {
        let ty = match p.kind {
            PortKind::Io(_) => format!("{} {}[{}]", p.name, p.elem.name(), shape(&p.shape, &entry.symbols)),
            PortKind::Symbol(_) => format!("{} integer", p.name),
        };
        (format!("{} {kind} {at}:", entry.name), ty)
    };
    let inputs = entry.inputs.iter().enumerate().map(|(at, p)| port("input", at, p));
    let outputs = entry.outputs.iter().enumerate().map(|(at, p)| port("output", at, p));
    let symbol = |s: &Symbol| (format!("{} size {}:", entry.name, s.name), format!("{} to {}", s.min, s.max));
    inputs.chain(outputs).chain(entry.symbols.iter().map(symbol)).collect()
}

fn shape(shape: &[Size], symbols: &[Symbol]) -> String {
    shape.iter().map(|size| size.display(symbols).to_string()).collect::<Vec<_>>().join(", ")
}

fn requirements(r: &Requirements) -> BTreeMap<String, String> {
    let flags =
        [("int8", r.int8), ("int16", r.int16), ("float16", r.float16), ("int64", r.int64), ("float64", r.float64)];
    let features = flags.into_iter().filter(|(_, on)| *on).map(|(name, _)| (format!("feature {name}"), String::new()));
    let shapes = r
        .cooperative
        .iter()
        .map(|(m, n, k, elem)| (format!("cooperative matrix {m}×{n}×{k} {}", elem.name()), String::new()));
    let limits = [
        ("subgroup", u64::from(r.subgroup)),
        ("max_workgroup", r.max_workgroup.into()),
        ("shared_bytes", r.shared_bytes.into()),
        ("push_bytes", r.push_bytes.into()),
        ("max_allocation_bytes", r.max_allocation_bytes),
    ];
    let limits = limits.into_iter().map(|(name, value)| (format!("limit {name}:"), value.to_string()));
    features.chain(shapes).chain(limits).collect()
}

fn kernels(old: &Outline, new: &Outline) -> KernelChanges {
    let by_name = |o: &'_ Outline| -> BTreeMap<String, u64> {
        o.plan.kernels.iter().zip(&o.pinned).map(|(k, pinned)| (k.name.clone(), pinned.hash)).collect()
    };
    let (old, new) = (by_name(old), by_name(new));
    let only = |a: &BTreeMap<String, u64>, b: &BTreeMap<String, u64>| {
        a.keys().filter(|name| !b.contains_key(*name)).cloned().collect()
    };
    let rebuilt = new.iter().filter(|(name, hash)| old.get(*name).is_some_and(|before| before != *hash));
    KernelChanges {
        added: only(&new, &old),
        removed: only(&old, &new),
        rebuilt: rebuilt.map(|(name, _)| name.clone()).collect(),
    }
}
