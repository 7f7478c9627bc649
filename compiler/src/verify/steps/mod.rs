//! `jvc verify --refs`: every step's result beside what PyTorch computed at the node of the export that it stands for.
//!
//! The steps run one at a time, twice. *Accumulated*: from the program's inputs on, so that an error shows in everything behind it. *Own*:
//! each value that has a reference is replaced by it as soon as it was compared, so that every step works on PyTorch's values and what
//! shows is the step's own error; values between, which the export does not name, stay as computed. A value without a reference is listed
//! with the reason. Between the two all steps run as they are recorded, with their barriers alone between them: that must give the same bytes.

mod check;
mod file;
mod link;
mod memory;
mod places;
mod recorded;
mod report;

pub use check::Judged;
pub use file::Activations;
pub use recorded::OutOfOrder;
pub use report::{Check, StepReport, StepsReport};

use crate::device::DeviceProfile;
use crate::exec::{ExecError, Loaded, Stepwise, Value};
use crate::ir::eval::{Data, Tensor};
use crate::ir::{DType, Graph};
use crate::pass_rule::{Level, Rule};
use crate::pipeline::Compiled;
use check::Judge;
use file::Reference;
use jvc_codegen::plan::{Dispatch, Entry, Step};
use link::{Finder, Link};
use memory::Layouts;
use places::{StepValues, Stored};
use recorded::Recorded;

/// What to compare, and how.
pub struct Comparison<'a> {
    /// The program.
    pub compiled: &'a Compiled,
    /// The device that it was compiled for.
    pub device: &'a DeviceProfile,
    /// PyTorch's values.
    pub file: &'a Activations,
    /// Tolerance class.
    pub level: Level,
    /// The half type of mixed precision.
    pub half: Option<DType>,
    /// Runs of all steps together, whose bytes must be those of the steps one at a time.
    pub repeats: u32,
}

/// Where the operands of a step come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Accumulated,
    Own,
}

impl Comparison<'_> {
    /// Compares the only entry point's steps at these inputs.
    ///
    /// # Errors
    /// Inputs that do not fit, or the runtime's.
    pub fn run(&self, loaded: &Loaded<'_>, inputs: &[Value]) -> Result<StepsReport, ExecError> {
        let (graph, entry) = (&self.compiled.graphs[0], &self.compiled.plan.entries[0]);
        let precision = Rule::working_precision(self.file.dtypes().chain(self.half));
        let mut session = Comparer {
            graph,
            entry,
            layouts: Layouts { graph, device: self.device, orders: &self.compiled.orders[0] },
            finder: Finder::new(graph, |name| self.file.has(name)),
            all: Finder::new(graph, |_| true),
            steps: places::of_steps(graph, entry),
            judge: Judge { rule: Rule { precision, level: self.level, edge: false }, half: self.half },
            file: self.file,
            run: Stepwise::new(loaded, 0, inputs)?,
            reports: self.empty_reports(),
            recorded: Recorded::default(),
        };
        session.pass(Mode::Accumulated)?;
        let order = session.recorded.check(&mut session.run, &session.layouts, entry, self.repeats)?;
        session.pass(Mode::Own)?;
        Ok(StepsReport::new(session.reports, self.file.n_nodes(), order))
    }

    fn empty_reports(&self) -> Vec<StepReport> {
        let plan = &self.compiled.plan;
        let report = |(i, d): (usize, &Dispatch)| {
            let kernel = plan.kernels[d.kernel as usize].name.clone();
            StepReport::new(i, d.label.clone(), kernel, d.origin.clone())
        };
        dispatches(&plan.entries[0]).map(report).collect()
    }
}

fn dispatches(entry: &Entry) -> impl Iterator<Item = (usize, &Dispatch)> {
    entry.steps.iter().enumerate().filter_map(|(i, s)| match s {
        Step::Dispatch(d) => Some((i, d)),
        Step::Barrier => None,
    })
}

struct Comparer<'a> {
    graph: &'a Graph,
    entry: &'a Entry,
    layouts: Layouts<'a>,
    finder: Finder<'a>,
    /// Of all nodes, in the file or not.
    all: Finder<'a>,
    steps: Vec<StepValues>,
    judge: Judge,
    file: &'a Activations,
    run: Stepwise<'a>,
    reports: Vec<StepReport>,
    recorded: Recorded,
}

impl Comparer<'_> {
    /// Operands of a step that are not PyTorch's values, since these are not known.
    fn computed(&self, step: usize) -> Vec<String> {
        let known = |r: &&Stored| {
            let leaf = self.graph.def(r.value).inputs.is_empty();
            leaf || self.reports.iter().flat_map(|s| &s.checks).any(|c| c.place.value == r.value && c.own.is_some())
        };
        let operands = self.steps[step].reads.iter().filter(|r| !known(r));
        operands.map(|r| self.graph.value(r.value).name.clone()).collect()
    }

    fn pass(&mut self, mode: Mode) -> Result<(), ExecError> {
        self.run.start()?;
        for number in 0..self.reports.len() {
            let step = self.reports[number].step;
            self.run.run(step..step + 1)?;
            if mode == Mode::Own {
                self.reports[number].computed = self.computed(step);
            }
            for stored in self.steps[step].completes.clone() {
                self.value(mode, number, stored)?;
            }
            if mode == Mode::Accumulated {
                self.explain(number);
            }
        }
        Ok(())
    }

    /// Compares a value that is complete, and replaces it by PyTorch's.
    fn value(&mut self, mode: Mode, number: usize, stored: Stored) -> Result<(), ExecError> {
        let bytes = self.layouts.bytes(&self.run, stored)?;
        if let (Mode::Accumulated, Some(bytes)) = (mode, &bytes) {
            self.recorded.note(stored, self.reports[number].step, bytes);
        }
        let links = self.finder.links(stored.value, &self.run.symbols());
        if links.is_empty() {
            return Ok(());
        }
        let Some(mut value) = bytes.and_then(|b| self.layouts.decoded(&self.run, stored, b)) else { return Ok(()) };
        let got = value.clone();
        for link in links {
            let Some(reference) = self.file.get(&link.tap) else { continue };
            let judged = self.judge.compare(&got, &reference, link.positions.as_deref());
            if mode == Mode::Own && judged.is_ok() {
                let theirs = self.judge.half.and(reference.half.as_ref()).unwrap_or(&reference.own);
                replace(&mut value, theirs, link.positions.as_deref());
            }
            self.note(mode, number, stored, &got, &link, judged, &reference);
        }
        if mode == Mode::Own {
            let rounded = match &value.data {
                Data::Float(v) => Tensor::from_f64(value.dtype, &value.shape, v.clone()),
                Data::Int(_) => value,
            };
            self.layouts.write(&self.run, stored, rounded)?;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "all of it is what a comparison is of")]
    fn note(
        &mut self,
        mode: Mode,
        number: usize,
        stored: Stored,
        got: &Tensor,
        link: &Link,
        judged: Result<Judged, String>,
        reference: &Reference,
    ) {
        let report = &mut self.reports[number];
        let judged = match judged {
            Ok(judged) => judged,
            Err(why) => {
                let value = &self.graph.value(stored.value).name;
                let text = format!("{value} cannot be compared with {}: {why}", link.tap.name);
                if mode == Mode::Accumulated {
                    report.no_reference.push(text);
                }
                return;
            }
        };
        let failing = judged.figures.first.filter(|_| judged.problem.is_some());
        let place = |i: usize| link.positions.as_ref().map_or(i, |p| p[i].0 as usize);
        let by = failing.map(|i| self.layouts.byte(stored, &got.shape, place(i)));
        let steps = by.map(|byte| writers_of(self.entry, &self.steps, stored, report.step, byte));
        let at = |check: &Check| check.place == stored && check.node == link.tap.name && check.part == link.tap.part;
        let index = match report.checks.iter().position(at) {
            Some(index) => index,
            None => {
                report.checks.push(Check {
                    place: stored,
                    value: self.graph.value(stored.value).name.clone(),
                    node: link.tap.name.clone(),
                    part: link.tap.part,
                    shape: got.shape.clone(),
                    dtype: got.dtype,
                    of_dtype: reference.own.dtype,
                    exact: reference.exact.is_some(),
                    note: self.file.note(&link.tap.name).map(str::to_string),
                    accumulated: None,
                    own: None,
                    by: vec![],
                });
                report.checks.len() - 1
            }
        };
        let check = &mut report.checks[index];
        check.by.extend(steps.filter(|_| mode == Mode::Own || check.by.is_empty()).into_iter().flatten());
        *(match mode {
            Mode::Accumulated => &mut check.accumulated,
            Mode::Own => &mut check.own,
        }) = Some(judged);
    }

    /// Says of what a step writes why it was not compared.
    fn explain(&mut self, number: usize) {
        let report = &self.reports[number];
        let values = &self.steps[report.step];
        let seen = |w: &&Stored| report.checks.iter().any(|c| c.place == **w);
        let mut reasons: Vec<String> =
            values.writes.iter().filter(|w| !seen(w)).map(|w| self.reason(report.step, *w)).collect();
        if values.writes.is_empty() {
            reasons.push("it writes sizes into the symbol table".to_string());
        }
        self.reports[number].no_reference.extend(reasons);
    }

    fn reason(&self, step: usize, stored: Stored) -> String {
        let name = &self.graph.value(stored.value).name;
        if !self.steps[step].completes.contains(&stored) {
            let last = self.steps.iter().rposition(|s| s.completes.contains(&stored)).unwrap_or(step);
            return format!("it writes a part of {name}, which step {last} completes and is compared there");
        }
        if let Some(link) = self.all.links(stored.value, &self.run.symbols()).first() {
            return format!(
                "{name} is {} (or moved from or to it), which the file of references leaves out",
                link.tap.name
            );
        }
        let node = self.graph.def(stored.value);
        let origin = &self.graph.origins[node.origin as usize];
        if node.inputs.is_empty() {
            return format!("{name} is an input or a weight");
        }
        format!("{name} is a value within {} ({}), which the export does not name", origin.node, origin.target)
    }
}

/// Steps that may have written a byte of a value.
fn writers_of(entry: &Entry, steps: &[StepValues], stored: Stored, at: usize, byte: u64) -> Vec<usize> {
    let all = places::writers(entry, steps, stored, at);
    let holds = |(_, ranges): &&(usize, Vec<jvc_codegen::plan::ByteRange>)| {
        ranges.iter().any(|r| (r.offset..r.offset + r.bytes).contains(&byte))
    };
    all.iter().filter(holds).map(|(i, _)| *i).collect()
}

/// Puts a reference's elements in their places.
fn replace(value: &mut Tensor, theirs: &Tensor, positions: Option<&[(u32, u32)]>) {
    match (&mut value.data, &theirs.data) {
        (Data::Float(to), Data::Float(from)) => put(to, from, positions),
        (Data::Int(to), Data::Int(from)) => put(to, from, positions),
        _ => {}
    }
}

fn put<T: Copy>(to: &mut [T], from: &[T], positions: Option<&[(u32, u32)]>) {
    match positions {
        None => to.copy_from_slice(from),
        Some(pairs) => pairs.iter().for_each(|&(a, b)| to[a as usize] = from[b as usize]),
    }
}
