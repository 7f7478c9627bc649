//! What the comparison of steps found: as a page of text, and as JSON.

use super::check::Judged;
use super::places::Stored;
use super::recorded::OutOfOrder;
use crate::ir::DType;
use crate::ir::graph::TapPart;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// Rows of the table of the largest errors.
const ROWS: usize = 12;

/// A value of a step beside a node of the export.
#[derive(Debug, Clone)]
pub struct Check {
    /// Where the value lies.
    pub(super) place: Stored,
    /// Its name.
    pub value: String,
    /// The node.
    pub node: String,
    /// Which numbers of it.
    pub part: TapPart,
    /// Sizes of the value.
    pub shape: Vec<usize>,
    /// Its element type.
    pub dtype: DType,
    /// That of the node.
    pub of_dtype: DType,
    /// There is an f64 value.
    pub exact: bool,
    /// What the file says of the node.
    pub note: Option<String>,
    /// Computed from the program's inputs.
    pub accumulated: Option<Judged>,
    /// Computed from references.
    pub own: Option<Judged>,
    /// Where it is wrong: steps that may have written the first wrong element.
    pub by: Vec<usize>,
}

/// A step.
#[derive(Debug, Clone)]
pub struct StepReport {
    /// Index in the entry's steps.
    pub step: usize,
    /// Name of the main value that it computes.
    pub label: String,
    /// Its kernel.
    pub kernel: String,
    /// ATen nodes, module path and Python line that it stands for.
    pub origin: Vec<String>,
    /// What was compared.
    pub checks: Vec<Check>,
    /// What was not, and why.
    pub no_reference: Vec<String>,
    /// Operands for which there is no reference: even its own errors are on computed values of them.
    pub computed: Vec<String>,
}

/// All steps.
#[derive(Debug, Clone)]
pub struct StepsReport {
    /// In order; barriers are left out.
    pub steps: Vec<StepReport>,
    /// Nodes in the file of references.
    pub n_nodes: usize,
    /// What all steps recorded together make other bytes of than one at a time.
    pub order: Option<OutOfOrder>,
}

impl StepReport {
    pub(super) fn new(step: usize, label: String, kernel: String, origin: Vec<String>) -> StepReport {
        StepReport { step, label, kernel, origin, checks: vec![], no_reference: vec![], computed: vec![] }
    }

    /// The worst problem of its own.
    fn own_problem(&self) -> Option<(&Check, &Judged)> {
        self.checks.iter().find_map(|c| Some((c, c.own.as_ref().filter(|j| j.problem.is_some())?)))
    }

    fn accumulated_problem(&self) -> Option<(&Check, &Judged)> {
        self.checks.iter().find_map(|c| Some((c, c.accumulated.as_ref().filter(|j| j.problem.is_some())?)))
    }

    fn verdict(&self) -> &'static str {
        match (self.checks.is_empty(), self.own_problem().is_some(), self.accumulated_problem().is_some()) {
            (true, ..) => "no reference",
            (_, true, _) => "wrong by itself",
            (_, false, true) => "inherited",
            _ => "right",
        }
    }

    fn title(&self) -> String {
        format!("step {} ({}), kernel {}", self.step, self.label, self.kernel)
    }

    fn to_json(&self) -> Value {
        let checks: Vec<Value> = self.checks.iter().map(Check::to_json).collect();
        json!({
            "step": self.step, "label": self.label, "kernel": self.kernel, "origin": self.origin, "verdict": self.verdict(),
            "checks": checks, "no_reference": self.no_reference, "computed_operands": self.computed,
        })
    }
}

impl Check {
    fn to_json(&self) -> Value {
        let judged = |j: &Option<Judged>| j.as_ref().map(judged_json);
        json!({
            "value": self.value, "node": self.node, "shape": self.shape, "dtype": self.dtype.to_string(),
            "reference_dtype": self.of_dtype.to_string(), "f64": self.exact, "note": self.note,
            "accumulated": judged(&self.accumulated), "own": judged(&self.own), "written_by": self.by,
        })
    }

    /// The node, with which of its numbers.
    fn node(&self) -> String {
        match self.part {
            TapPart::Whole => self.node.clone(),
            TapPart::Re => format!("{}, real parts", self.node),
            TapPart::Im => format!("{}, imaginary parts", self.node),
        }
    }

    /// In a line.
    fn text(&self, j: &Judged) -> String {
        let f = &j.figures;
        let against = if self.exact { "against f64" } else { "against PyTorch's" };
        let own = if self.exact { format!("; PyTorch's own {:.2e}", f.reference_rms) } else { String::new() };
        let first = f.first.map(|i| format!("; the first wrong one is element {i}")).unwrap_or_default();
        format!(
            "{} {}{:?} beside {}: rms error {:.2e} {against}{own}; largest {:.2e}; values of {:.2e} (rms){first}",
            self.value,
            self.dtype,
            self.shape,
            self.node(),
            f.rms,
            f.largest,
            j.size
        )
    }
}

fn judged_json(j: &Judged) -> Value {
    let f = &j.figures;
    json!({
        "problem": j.problem, "failed": f.failed, "elements": f.total, "first_failed": f.first, "worst_of_tolerance": f.worst,
        "max_abs_error": f.largest, "rms_error": f.rms, "pytorch_rms_error": f.reference_rms, "rms": j.size,
    })
}

impl StepsReport {
    pub(super) fn new(steps: Vec<StepReport>, n_nodes: usize, order: Option<OutOfOrder>) -> StepsReport {
        StepsReport { steps, n_nodes, order }
    }

    /// The first step that is wrong on PyTorch's own values.
    pub fn first_own(&self) -> Option<&StepReport> {
        self.steps.iter().find(|s| s.own_problem().is_some()).map(|s| self.culprit(s, true))
    }

    /// The first step whose value is off in a run from the program's inputs.
    pub fn first_accumulated(&self) -> Option<&StepReport> {
        self.steps.iter().find(|s| s.accumulated_problem().is_some()).map(|s| self.culprit(s, false))
    }

    /// Of several steps that write a value together, the one that wrote what is wrong.
    fn culprit<'a>(&'a self, found: &'a StepReport, own: bool) -> &'a StepReport {
        let problem = if own { found.own_problem() } else { found.accumulated_problem() };
        let by = problem.and_then(|(check, _)| check.by.last().copied());
        by.and_then(|step| self.steps.iter().find(|s| s.step == step)).unwrap_or(found)
    }

    /// Steps compared, and those without a reference.
    pub fn counts(&self) -> (usize, usize) {
        let compared = self.steps.iter().filter(|s| !s.checks.is_empty()).count();
        (compared, self.steps.len() - compared)
    }

    /// What is wrong, in a line.
    pub fn problem(&self) -> Option<String> {
        if let Some(step) = self.first_own() {
            return Some(format!("{} is the first that is wrong by itself", step.title()));
        }
        if let Some(order) = &self.order {
            return Some(order.to_string());
        }
        let step = self.first_accumulated()?;
        Some(format!("no step is wrong by itself; errors add up to too much first at {}", step.title()))
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let steps: Vec<Value> = self.steps.iter().map(StepReport::to_json).collect();
        let (compared, without) = self.counts();
        let first = |s: Option<&StepReport>| s.map(|s| json!({"step": s.step, "label": s.label, "kernel": s.kernel}));
        json!({
            "recorded": self.order.as_ref().map(OutOfOrder::to_json), "problem": self.problem(), "compared": compared, "no_reference": without, "nodes": self.n_nodes,
            "first_own": first(self.first_own()), "first_accumulated": first(self.first_accumulated()), "steps": steps,
        })
    }

    fn write_first(&self, f: &mut fmt::Formatter<'_>, own: bool) -> fmt::Result {
        let found = self.steps.iter().find(|s| if own { s.own_problem() } else { s.accumulated_problem() }.is_some());
        let Some(found) = found else { return Ok(()) };
        let Some((check, judged)) = (if own { found.own_problem() } else { found.accumulated_problem() }) else {
            return Ok(());
        };
        let step = self.culprit(found, own);
        writeln!(f, "\n{}", step.title())?;
        step.origin.iter().try_for_each(|line| writeln!(f, "- {line}"))?;
        if step.step != found.step {
            writeln!(f, "- writes a part of {}, which step {} completes", check.value, found.step)?;
        }
        writeln!(f, "- {}", judged.problem.as_deref().unwrap_or_default())?;
        writeln!(f, "- {}", check.text(judged))?;
        if own && !step.computed.is_empty() {
            writeln!(f, "- operands as computed, since there is no reference: {}", step.computed.join(", "))?;
        }
        check.note.iter().try_for_each(|n| writeln!(f, "- the file of references says of {}: {n}", check.node))
    }

    fn write_table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |j: &Option<Judged>| j.as_ref().map_or(0.0, |j| j.figures.worst);
        let mut rows: Vec<(&StepReport, &Check)> =
            self.steps.iter().flat_map(|s| s.checks.iter().map(move |c| (s, c))).collect();
        rows.sort_by(|a, b| share(&b.1.own).total_cmp(&share(&a.1.own)).then(a.0.step.cmp(&b.0.step)));
        writeln!(f, "\n| step | value | node | own error / tolerance | own rms | accumulated rms | PyTorch's rms |")?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- |")?;
        for (step, c) in rows.iter().take(ROWS) {
            let rms = |j: &Option<Judged>| j.as_ref().map_or("".into(), |j| format!("{:.2e}", j.figures.rms));
            let pytorch =
                c.own.as_ref().filter(|_| c.exact).map_or("".into(), |j| format!("{:.2e}", j.figures.reference_rms));
            let (own, acc) = (rms(&c.own), rms(&c.accumulated));
            let share = share(&c.own);
            writeln!(f, "| {} | {} | {} | {share:.3} | {own} | {acc} | {pytorch} |", step.step, c.value, c.node())?;
        }
        Ok(())
    }

    fn write_missing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_reason: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (step, reason) in self.steps.iter().flat_map(|s| s.no_reference.iter().map(move |r| (s.step, r))) {
            by_reason.entry(reason).or_default().push(step);
        }
        if by_reason.is_empty() {
            return Ok(());
        }
        let mut all: Vec<(Vec<usize>, &str)> = by_reason.into_iter().map(|(reason, steps)| (steps, reason)).collect();
        all.sort();
        writeln!(f, "\nNo reference:\n")?;
        for (steps, reason) in all {
            let steps = steps.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            writeln!(f, "- {steps}: {reason}")?;
        }
        Ok(())
    }
}

/// A page of Markdown.
impl fmt::Display for StepsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (compared, without) = self.counts();
        writeln!(
            f,
            "{} steps: {compared} compared with {} nodes of the export, {without} without a reference",
            self.steps.len(),
            self.n_nodes
        )?;
        writeln!(f, "\n## Each step on PyTorch's values (own errors)")?;
        match self.first_own() {
            None => writeln!(f, "\nno step is wrong by itself")?,
            Some(_) => self.write_first(f, true)?,
        }
        writeln!(f, "\n## From the program's inputs on (accumulated errors)")?;
        match self.first_accumulated() {
            None => writeln!(f, "\nno step is off")?,
            Some(_) => self.write_first(f, false)?,
        }
        writeln!(f, "\n## All steps as recorded\n")?;
        match &self.order {
            None => writeln!(f, "the same bytes as one at a time")?,
            Some(order) => writeln!(f, "{order}")?,
        }
        writeln!(f, "\n## Largest own errors")?;
        self.write_table(f)?;
        self.write_missing(f)
    }
}
