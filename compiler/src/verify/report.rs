//! What verification found: per output, per file, in all; as text and as JSON.

use super::cases::Flags;
use super::steps::StepsReport;
use crate::pass_rule::Figures;
use serde_json::{Value, json};
use std::fmt;
use std::path::{Path, PathBuf};

/// Verdict on a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// All outputs are right.
    Pass,
    /// Something is wrong.
    Fail(String),
    /// The compiler refused it, for these reasons.
    Unsupported(Vec<String>),
    /// There is nothing to judge it by.
    Skipped(String),
}

/// One output of one input set.
#[derive(Debug, Clone)]
pub struct OutputReport {
    /// `out.3`, `alt.0.out.1`.
    pub name: String,
    /// What is wrong with it.
    pub problem: Option<String>,
    /// Error figures, where type and shape are right.
    pub figures: Option<Figures>,
}

/// One file.
#[derive(Debug, Clone)]
pub struct FileReport {
    /// The program.
    pub path: PathBuf,
    /// Its name relative to the folder searched.
    pub name: String,
    /// Verdict.
    pub status: Status,
    /// What the index of cases says.
    pub flags: Flags,
    /// Every output that has a reference.
    pub outputs: Vec<OutputReport>,
    /// Dispatches of one run.
    pub dispatches: usize,
    /// Barriers of one run.
    pub barriers: usize,
    /// Steps whose declared ranges were tested.
    pub range_steps: usize,
    /// Distinct kernels.
    pub kernels: usize,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// Lower bound of the arena.
    pub live_bytes: u64,
    /// Compile time.
    pub compile_seconds: f64,
    /// All time.
    pub seconds: f64,
    /// Every step beside PyTorch's values, where these are given.
    pub steps: Option<StepsReport>,
    /// Things to know.
    pub notes: Vec<String>,
    /// The device has to be opened again.
    pub(super) device_lost: bool,
}

/// All files.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Profile compiled for.
    pub device: String,
    /// GPU run on.
    pub gpu: String,
    /// Reports in order.
    pub files: Vec<FileReport>,
}

impl FileReport {
    pub(super) fn new(path: &Path, name: &str) -> FileReport {
        FileReport {
            path: path.to_path_buf(),
            name: name.to_string(),
            status: Status::Pass,
            flags: Flags::default(),
            outputs: vec![],
            dispatches: 0,
            barriers: 0,
            range_steps: 0,
            kernels: 0,
            arena_bytes: 0,
            live_bytes: 0,
            compile_seconds: 0.0,
            seconds: 0.0,
            steps: None,
            notes: vec![],
            device_lost: false,
        }
    }

    /// The verdict that the outputs imply.
    pub(super) fn verdict(&self) -> Status {
        let outputs = self.outputs.iter().filter_map(|o| o.problem.as_ref().map(|p| format!("{}: {p}", o.name)));
        let steps = self.steps.as_ref().and_then(StepsReport::problem);
        let problems: Vec<String> = steps.into_iter().chain(outputs).collect();
        match problems.len() {
            0 if self.outputs.is_empty() && self.steps.is_none() => Status::Fail("no output has a reference".into()),
            0 => Status::Pass,
            1..=3 => Status::Fail(problems.join("; ")),
            n => Status::Fail(format!("{}; and {} more", problems[..3].join("; "), n - 3)),
        }
    }

    /// Largest error over tolerance.
    pub fn worst(&self) -> f64 {
        self.outputs.iter().filter_map(|o| o.figures).map(|f| f.worst).fold(0.0, f64::max)
    }

    /// Largest ratio of the rms errors, ours over PyTorch's, of the outputs that PyTorch does not get exactly.
    pub fn rms_ratio(&self) -> f64 {
        let inexact = self.outputs.iter().filter_map(|o| o.figures).filter(|f| f.reference_rms > 0.0);
        inexact.map(|f| f.rms / f.reference_rms).fold(0.0, f64::max)
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let (status, reasons) = match &self.status {
            Status::Pass => ("pass", vec![]),
            Status::Fail(why) => ("fail", vec![why.clone()]),
            Status::Unsupported(why) => ("unsupported", why.clone()),
            Status::Skipped(why) => ("skipped", vec![why.clone()]),
        };
        let outputs: Vec<Value> = self.outputs.iter().map(OutputReport::to_json).collect();
        let steps = self.steps.as_ref().map(StepsReport::to_json);
        json!({
            "steps": steps,
            "file": self.name, "status": status, "reasons": reasons, "outputs": outputs, "notes": self.notes,
            "dispatches": self.dispatches, "barriers": self.barriers, "kernels": self.kernels, "range_steps": self.range_steps,
            "arena_bytes": self.arena_bytes, "live_bytes": self.live_bytes,
            "compile_seconds": self.compile_seconds, "seconds": self.seconds,
            "edge": self.flags.edge, "ties": self.flags.ties, "nonfinite": self.flags.nonfinite, "empty": self.flags.empty,
        })
    }
}

impl OutputReport {
    fn to_json(&self) -> Value {
        let mut out = json!({"name": self.name, "problem": self.problem});
        if let Some(f) = self.figures {
            out["failed"] = json!(f.failed);
            out["elements"] = json!(f.total);
            out["worst_of_tolerance"] = json!(f.worst);
            out["rms_error"] = json!(f.rms);
            out["pytorch_rms_error"] = json!(f.reference_rms);
        }
        out
    }
}

impl fmt::Display for FileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.status {
            Status::Pass => write!(
                f,
                "pass         {name}: {} dispatches of {} kernels, worst {:.2} × tolerance, rms {:.2} × PyTorch's, arena {} bytes, {:.1} s",
                self.dispatches,
                self.kernels,
                self.worst(),
                self.rms_ratio(),
                self.arena_bytes,
                self.seconds
            )?,
            Status::Fail(why) => write!(f, "FAIL         {name}: {why}")?,
            Status::Unsupported(why) => write!(f, "unsupported  {name}: {}", why.join("; "))?,
            Status::Skipped(why) => write!(f, "skipped      {name}: {why}")?,
        }
        if self.range_steps > 0 {
            write!(f, ", declared ranges of {} steps", self.range_steps)?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n             note: {note}"))?;
        self.steps.as_ref().map_or(Ok(()), |steps| write!(f, "\n\n{steps}"))
    }
}

impl Summary {
    pub(super) fn add(&mut self, report: FileReport) {
        self.files.push(report);
    }

    fn count(&self, of: impl Fn(&FileReport) -> bool) -> usize {
        self.files.iter().filter(|f| of(f)).count()
    }

    /// Files that pass, fail, are unsupported, are skipped.
    pub fn counts(&self) -> [usize; 4] {
        [
            self.count(|f| f.status == Status::Pass),
            self.count(|f| matches!(f.status, Status::Fail(_))),
            self.count(|f| matches!(f.status, Status::Unsupported(_))),
            self.count(|f| matches!(f.status, Status::Skipped(_))),
        ]
    }

    /// Dispatches of all files that ran.
    pub fn dispatches(&self) -> usize {
        self.files.iter().map(|f| f.dispatches).sum()
    }

    /// Steps whose declared ranges were tested.
    pub fn range_steps(&self) -> usize {
        self.files.iter().map(|f| f.range_steps).sum()
    }

    /// The summary as JSON.
    pub fn to_json(&self) -> Value {
        let [pass, fail, unsupported, skipped] = self.counts();
        let files: Vec<Value> = self.files.iter().map(FileReport::to_json).collect();
        json!({
            "device": self.device, "gpu": self.gpu, "pass": pass, "fail": fail, "unsupported": unsupported, "skipped": skipped,
            "dispatches": self.dispatches(), "range_steps": self.range_steps(), "files": files,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [pass, fail, unsupported, skipped] = self.counts();
        writeln!(f, "compiled for {}, run on {}: {} dispatches", self.device, self.gpu, self.dispatches())?;
        if self.range_steps() > 0 {
            writeln!(f, "declared ranges of {} steps tested", self.range_steps())?;
        }
        let special = |of: fn(&Flags) -> bool| {
            let all = self.count(|r| of(&r.flags));
            let good = self.count(|r| of(&r.flags) && r.status == Status::Pass);
            (good, all)
        };
        for (word, (good, all)) in [
            ("edge", special(|c| c.edge)),
            ("non-finite", special(|c| c.nonfinite)),
            ("empty", special(|c| c.empty)),
            ("tied", special(|c| c.ties)),
        ] {
            if all > 0 {
                writeln!(f, "of these, {word} cases: {good} of {all} pass")?;
            }
        }
        write!(f, "{pass} pass, {fail} fail, {unsupported} unsupported, {skipped} skipped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_passes_only_with_judged_outputs_and_no_problem() {
        let mut report = FileReport::new(Path::new("a.pt2"), "a");
        assert!(matches!(report.verdict(), Status::Fail(_)), "nothing judged");
        report.outputs.push(OutputReport { name: "out.0".into(), problem: None, figures: None });
        assert_eq!(report.verdict(), Status::Pass);
        report.outputs.push(OutputReport { name: "out.1".into(), problem: Some("off".into()), figures: None });
        assert_eq!(report.verdict(), Status::Fail("out.1: off".into()));
    }

    #[test]
    fn the_summary_counts_every_verdict_once() {
        let mut summary = Summary::default();
        for status in [Status::Pass, Status::Fail("x".into()), Status::Unsupported(vec![]), Status::Skipped("y".into())]
        {
            summary.add(FileReport { status, ..FileReport::new(Path::new("a.pt2"), "a") });
        }
        assert_eq!(summary.counts(), [1, 1, 1, 1]);
        assert!(summary.to_string().ends_with("1 pass, 1 fail, 1 unsupported, 1 skipped"));
    }
}
