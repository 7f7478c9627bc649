//! `jvc verify`: compiles programs, runs them on a device, and judges the results by references of PyTorch.
//!
//! For each `.pt2` a sibling `.safetensors` holds inputs (`in.N`, in the order of the program's inputs), PyTorch's outputs in the program's
//! own precision (`out.N`) and in f64 (`out64.N`), and further sets of the same under `alt.K.`. With `--precision f16`, `NAME.f16.safetensors`
//! may hold PyTorch's outputs (`out.N`, `alt.K.out.N`) in mixed precision, whose error ours is then held to. Every set runs several times from the
//! initial state, each time on an arena full of 0xFF bytes; all runs must give the same bytes, and the first is compared. Nothing is
//! interpreted: results come from the plan's dispatches, whose number is reported. On demand every step also runs alone, to test the ranges
//! that it declares.

mod bounds;
mod cases;
mod judge;
mod references;
mod report;
mod steps;

pub(crate) use judge::{constant, number};
pub(crate) use references::{Set, input_values, integer, split};
pub use report::{FileReport, OutputReport, Status, Summary};
pub use steps::{Activations, Check, Comparison, Judged, OutOfOrder, StepReport, StepsReport};

use crate::aten::philox::OFFSET;
use crate::device::{self, DeviceProfile};
use crate::exec::{ExecError, HostTensor, Loaded, Session, Value, check_ranges};
use crate::import::{self, Program};
use crate::ir::{Graph, UserOutput};
use crate::options::Options;
use crate::pass_rule::Level;
use crate::passes::mix_precision;
use crate::pipeline::{self, Compiled};
use crate::report::Diagnostic;
use cases::CaseIndex;
pub use cases::Flags;
use jvc_codegen::plan::Step;
use jvc_lab::{Lab, Validation};
use jvc_runtime as rt;
use references::References;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What to verify, and how.
#[derive(Debug, Clone)]
pub struct Request {
    /// Files, or folders that are searched.
    pub paths: Vec<PathBuf>,
    /// Profile to compile for; the GPU's own if none.
    pub device: Option<DeviceProfile>,
    /// GPU to run on.
    pub gpu: rt::Select,
    /// Compile options.
    pub options: Options,
    /// Tolerance: of single operators or of models; by the folder's index if none.
    pub level: Option<Level>,
    /// Runs of each input set.
    pub repeats: u32,
    /// Also run every step alone, with poison around what it declares to read and write.
    pub ranges: bool,
    /// PyTorch's values at the nodes of the only program, to compare every step with.
    pub refs: Option<Refs>,
    /// Start the validation layer; its messages fail a file.
    pub validate: bool,
    /// Where to write the results.
    pub save_outputs: Option<PathBuf>,
}

impl Request {
    /// Of files or folders, on the first GPU, compiled for it; each input set once, and nothing beyond.
    pub fn new(paths: Vec<PathBuf>) -> Request {
        Request {
            paths,
            device: None,
            gpu: rt::Select::Auto,
            options: Options::default(),
            level: None,
            repeats: 1,
            ranges: false,
            refs: None,
            validate: false,
            save_outputs: None,
        }
    }
}

/// Where PyTorch's values come from.
#[derive(Debug, Clone)]
pub struct Refs {
    /// The file that `models/dump_refs.py` wrote.
    pub file: PathBuf,
    /// Other inputs than the file's.
    pub inputs: Option<PathBuf>,
    /// A checkpoint for a program without weights.
    pub weights: Option<PathBuf>,
}

/// Why nothing could be verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// No device.
    #[error(transparent)]
    Runtime(#[from] rt::Error),
    /// No device with the validation layer.
    #[error(transparent)]
    Validation(#[from] jvc_lab::LabError),
    /// A path that does not exist.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// Results could not be written.
    #[error(transparent)]
    Write(#[from] jvc_codegen::artifact::WriteError),
}

/// A program file and what its results are called relative to the searched folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The `.pt2`.
    pub path: PathBuf,
    /// Path relative to the folder given, without `.pt2`; the stem for a file given.
    pub name: String,
}

/// The programs below the given paths, sorted by path. Links to folders inside them are not followed.
///
/// # Errors
/// A path that cannot be read.
pub fn find_targets(paths: &[PathBuf]) -> Result<Vec<Target>, VerifyError> {
    let mut out = vec![];
    for path in paths {
        if path.is_dir() {
            search(path, path, &mut out)?;
        } else {
            std::fs::metadata(path).map_err(|source| VerifyError::Io { path: path.clone(), source })?;
            let stem = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
            out.push(Target { path: path.clone(), name: stem });
        }
    }
    out.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(out)
}

fn search(root: &Path, folder: &Path, out: &mut Vec<Target>) -> Result<(), VerifyError> {
    let io = |source| VerifyError::Io { path: folder.to_path_buf(), source };
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let path = entry.path();
        // A link to a folder may lead back to one above.
        if entry.file_type().map_err(io)?.is_dir() {
            search(root, &path, out)?;
        } else if path.extension().is_some_and(|e| e == "pt2") {
            let name = path.strip_prefix(root).unwrap_or(&path).with_extension("").to_string_lossy().into_owned();
            out.push(Target { path, name });
        }
    }
    Ok(())
}

/// Verifies every target; `each` sees every report as it is made.
///
/// # Errors
/// No device, unreadable paths, unwritable outputs. What is wrong with a program is in its report.
pub fn verify(request: &Request, each: &mut dyn FnMut(usize, usize, &FileReport)) -> Result<Summary, VerifyError> {
    let targets = find_targets(&request.paths)?;
    let index = CaseIndex::read(targets.iter().map(|t| t.path.as_path()));
    let mut runner = Runner::open(request)?;
    let mut summary = Summary::default();
    for (i, target) in targets.iter().enumerate() {
        let started = Instant::now();
        let mut report = FileReport::new(&target.path, &target.name);
        report.flags = index.flags(&target.path);
        runner.verify_file(target, &mut report)?;
        report.seconds = started.elapsed().as_secs_f64();
        each(i, targets.len(), &report);
        summary.add(report);
    }
    summary.device = runner.device.name.clone();
    summary.gpu = runner.gpu.info().name.clone();
    Ok(summary)
}

/// An open device, and what to do with it.
struct Runner<'r> {
    request: &'r Request,
    gpu: rt::Gpu,
    /// Where the device comes from, under validation; after what uses it.
    lab: Option<Lab>,
    device: DeviceProfile,
}

/// Verdict of a stage that ends a file's verification.
type Verdict<T> = Result<T, Status>;

impl<'r> Runner<'r> {
    fn open(request: &'r Request) -> Result<Runner<'r>, VerifyError> {
        let (gpu, lab) = open_gpu(request)?;
        let device = request.device.clone().unwrap_or_else(|| device::of_open_gpu(&gpu));
        Ok(Runner { request, gpu, lab, device })
    }

    fn verify_file(&mut self, target: &Target, report: &mut FileReport) -> Result<(), VerifyError> {
        let judged = catch_unwind(AssertUnwindSafe(|| self.judge(target, report)));
        report.status = match judged {
            Ok(Ok(outputs)) => {
                if let Some(folder) = &self.request.save_outputs {
                    save(folder, &target.name, &outputs)?;
                }
                report.verdict()
            }
            Ok(Err(status)) => status,
            Err(panic) => Status::Fail(format!("the compiler failed: {}", panic_text(&*panic))),
        };
        self.check_validation(report);
        if report.device_lost {
            (self.gpu, self.lab) = open_gpu(self.request)?;
        }
        Ok(())
    }

    /// The validation layer's messages since the device was opened fail the file during which they came; a new device starts anew.
    fn check_validation(&mut self, report: &mut FileReport) {
        let messages = self.lab.as_ref().map_or_else(Vec::new, |lab| lab.log().messages());
        if let Some(first) = messages.first() {
            report.status = Status::Fail(format!("{} validation messages, the first: {first}", messages.len()));
            report.device_lost = true;
        }
    }

    fn judge(&self, target: &Target, report: &mut FileReport) -> Verdict<BTreeMap<String, HostTensor>> {
        let activations = self.request.refs.as_ref().map(|r| Activations::open(&r.file)).transpose();
        let activations = activations.map_err(|e| Status::Fail(format!("references: {e}")))?;
        let mut references = match (&activations, &self.request.refs) {
            (Some(file), Some(refs)) => References::of_steps(file, refs.inputs.as_deref())?,
            _ => References::beside(&target.path)?,
        };
        let half = self.request.options.mixed.as_ref().map(|m| m.half.dtype());
        if let Some(half) = half {
            references.add_mixed(&target.path, half)?;
        }
        let mut programs = import::read(&target.path).map_err(|e| Status::Fail(format!("import: {e}")))?;
        let program = match programs.len() {
            1 => &programs[0],
            n => return Err(Status::Fail(format!("{n} programs in one archive, references for one"))),
        };
        let options = bounds::with_bounds(&self.request.options, program, &references.sets, &mut report.notes);
        if let Some(path) = self.request.refs.as_ref().and_then(|r| r.weights.as_ref()) {
            import::merge_weights(&mut programs, path).map_err(|e| Status::Fail(format!("weights: {e}")))?;
        }
        if let Some(seed) = options.random_weights {
            import::fill_random(&mut programs, seed).map_err(|e| Status::Fail(format!("weights: {e}")))?;
        }
        let started = Instant::now();
        let compiled = pipeline::compile(&programs, &options, &self.device).map_err(refused)?;
        report.compile_seconds = started.elapsed().as_secs_f64();
        report.describe_plan(&compiled.plan);
        report.notes.extend(compiled.mixed.iter().map(mix_precision::Report::summary));
        report.notes.extend(compiled.quantized.iter().filter_map(|q| q.lines().pop()));
        let outputs = if references.has_outputs() {
            let rule = judge::Judge::new(self.request.level, report.flags, &references, half);
            self.run_sets(&compiled, &programs[0], &references, &rule, report)?
        } else {
            self.run_random(&compiled, &references, report)?
        };
        if let Some(file) = &activations {
            self.compare_steps(&compiled, &references, file, report)?;
        }
        if self.request.ranges {
            self.check_ranges(&compiled, &references, report)?;
        }
        Ok(outputs)
    }

    /// Every step's result beside PyTorch's.
    fn compare_steps(
        &self,
        compiled: &Compiled,
        references: &References,
        file: &Activations,
        report: &mut FileReport,
    ) -> Verdict<()> {
        let mut lost = |e: ExecError| {
            report.device_lost = true;
            Status::Fail(format!("steps: {e}"))
        };
        let level = self.request.level.unwrap_or(Level::Model);
        let half = self.request.options.mixed.as_ref().map(|m| m.half.dtype());
        let loaded = Loaded::new(&self.gpu, compiled, &rt::CacheDir::None).map_err(&mut lost)?;
        let inputs = references.sets[0].inputs(&compiled.graphs[0])?;
        let comparison =
            Comparison { compiled, device: &self.device, file, level, half, repeats: self.request.repeats };
        let found = comparison.run(&loaded, &inputs).map_err(&mut lost)?;
        report.steps = Some(found);
        Ok(())
    }

    /// Every step's declared ranges, once for each set of sizes.
    fn check_ranges(&self, compiled: &Compiled, references: &References, report: &mut FileReport) -> Verdict<()> {
        let mut done: Vec<Vec<Vec<i64>>> = vec![];
        for set in &references.sets {
            let inputs = set.inputs(&compiled.graphs[0])?;
            let sizes: Vec<Vec<i64>> = inputs.iter().map(sizes).collect();
            if done.contains(&sizes) {
                continue;
            }
            done.push(sizes);
            let found = check_ranges(&self.gpu, compiled, 0, &inputs).map_err(|e| {
                report.device_lost = true;
                Status::Fail(format!("ranges{}: {e}", set.label()))
            })?;
            report.range_steps += found.steps;
            if let Some(first) = found.faults.first() {
                let n = found.faults.len();
                return Err(Status::Fail(format!("ranges{}: {n} faults, the first: {first}", set.label())));
            }
        }
        Ok(())
    }

    /// A program that draws random numbers has no references: its runs must give the same bytes at one offset of the stream, others at
    /// the next, and finite numbers.
    fn run_random(
        &self,
        compiled: &Compiled,
        references: &References,
        report: &mut FileReport,
    ) -> Verdict<BTreeMap<String, HostTensor>> {
        let graph = &compiled.graphs[0];
        let offset = graph.inputs.iter().position(|(name, _)| name == OFFSET);
        let Some(offset) = offset else { return Err(Status::Skipped("there is no `out.N` beside it".into())) };
        let lost = |e: ExecError| Status::Fail(format!("run: {e}"));
        let loaded = Loaded::new(&self.gpu, compiled, &rt::CacheDir::None).map_err(lost)?;
        let mut session = loaded.session(0).map_err(lost)?;
        let mut saved = BTreeMap::new();
        for set in &references.sets {
            let first = run_set(&mut session, graph, set, self.request.repeats)?;
            let mut next = Set { prefix: set.prefix.clone(), inputs: set.inputs.clone(), ..Set::default() };
            next.inputs.insert(offset, number(1));
            if run_set(&mut session, graph, &next, 1)? == first {
                return Err(Status::Fail("another offset of the random stream gives the same results".into()));
            }
            for (i, output) in first.into_iter().enumerate() {
                let Some(output) = output else { continue };
                let name = format!("{}out.{i}", set.prefix);
                let problem = (!judge::is_finite(&output)).then(|| "an element is not finite".to_string());
                report.outputs.push(OutputReport { name: name.clone(), problem, figures: None });
                saved.insert(name, output);
            }
        }
        report
            .notes
            .push("no references: runs at one offset of the random stream agree, and differ from the next".into());
        Ok(saved)
    }

    fn run_sets(
        &self,
        compiled: &Compiled,
        program: &Program,
        references: &References,
        judge: &judge::Judge,
        report: &mut FileReport,
    ) -> Verdict<BTreeMap<String, HostTensor>> {
        let graph = &compiled.graphs[0];
        let mut lost = |e: ExecError| {
            report.device_lost = true;
            Status::Fail(format!("run: {e}"))
        };
        let loaded = Loaded::new(&self.gpu, compiled, &rt::CacheDir::None).map_err(&mut lost)?;
        let mut session = loaded.session(0).map_err(&mut lost)?;
        let mut saved = BTreeMap::new();
        for set in &references.sets {
            let outputs = run_set(&mut session, graph, set, self.request.repeats)?;
            for (i, output) in outputs.iter().enumerate() {
                let Some(output) = output else { continue };
                saved.insert(format!("{}out.{i}", set.prefix), output.clone());
                let judged = judge.compare(set, i, output);
                if self.request.options.quantize.is_some() || self.request.options.mixed.is_some() {
                    report.notes.extend(judged.as_ref().and_then(|o| judge.error_note(set, i, o)));
                }
                report.outputs.extend(judged);
            }
            report.outputs.extend(judge::missing(set, outputs.len(), program));
        }
        Ok(saved)
    }
}

/// What decides which bytes a program touches.
fn sizes(input: &Value) -> Vec<i64> {
    match input {
        Value::Tensor(t) => t.shape.clone(),
        Value::Int(v) => vec![*v],
    }
}

/// The device: the runtime's own, or one under the validation layer.
fn open_gpu(request: &Request) -> Result<(rt::Gpu, Option<Lab>), VerifyError> {
    let gpu = rt::Gpu::open(&request.gpu)?;
    if !request.validate {
        return Ok((gpu, None));
    }
    let options = jvc_lab::Options { validation: Some(Validation::default()), ..jvc_lab::Options::default() };
    let lab = Lab::open(gpu.info(), &options)?;
    Ok((lab.gpu().clone(), Some(lab)))
}

/// Diagnostics that say "not supported" are no failures; one that contradicts the export is.
fn refused(diagnostics: Vec<Diagnostic>) -> Status {
    use crate::report::Code;
    let wrong = diagnostics.iter().find(|d| d.code == Code::BadArgument);
    let reason = |d: &Diagnostic| match d.origin.target.as_str() {
        "" => format!("{} {}", d.code.text(), d.message),
        target => format!("{} {target}: {}", d.code.text(), d.message),
    };
    if let Some(wrong) = wrong {
        return Status::Fail(reason(wrong));
    }
    let mut reasons: Vec<String> = diagnostics.iter().map(reason).collect();
    reasons.sort();
    reasons.dedup();
    Status::Unsupported(reasons)
}

/// Outputs of a set, by position in the program; `None` for values that are no tensors or numbers. All repeats must agree.
fn run_set(session: &mut Session<'_>, graph: &Graph, set: &Set, repeats: u32) -> Verdict<Vec<Option<HostTensor>>> {
    let fail = |e: ExecError| Status::Fail(format!("run{}: {e}", set.label()));
    let inputs = set.inputs(graph)?;
    let mut first: Option<Vec<HostTensor>> = None;
    for repeat in 0..repeats.max(1) {
        session.reset();
        session.poison_arena().map_err(fail)?;
        let outputs = session.run(&inputs).map_err(fail)?;
        match &first {
            None => first = Some(outputs),
            Some(before) if *before == outputs => {}
            Some(_) => {
                return Err(Status::Fail(format!("run {} of{} gives other bytes than run 1", repeat + 1, set.label())));
            }
        }
    }
    let symbols = session.symbols();
    let mut tensors = first.unwrap_or_default().into_iter();
    let mut out = vec![];
    for (name, output) in &graph.outputs {
        out.push(match output {
            UserOutput::Tensor(_) => tensors.next(),
            UserOutput::Int(dim) => {
                let value =
                    dim.eval(&symbols).ok_or_else(|| Status::Fail(format!("output {name} = {dim} has no value")))?;
                Some(number(value))
            }
            UserOutput::Constant(text) => constant(text),
        });
    }
    Ok(out)
}

fn save(folder: &Path, name: &str, outputs: &BTreeMap<String, HostTensor>) -> Result<(), VerifyError> {
    let bytes = crate::tensor_file::print_tensors(outputs).expect("results match their shapes");
    Ok(jvc_codegen::artifact::write_single(&folder.join(format!("{name}.safetensors")), &bytes)?)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message").to_string()
}

impl FileReport {
    fn describe_plan(&mut self, plan: &jvc_codegen::plan::Plan) {
        let entry = &plan.entries[0];
        self.dispatches = entry.steps.iter().filter(|s| matches!(s, Step::Dispatch(_))).count();
        self.barriers = entry.steps.len() - self.dispatches;
        self.kernels = plan.kernels.len();
        self.arena_bytes = entry.arena_bytes.iter().sum();
        self.live_bytes = entry.live_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_relative_to_the_folder_searched() {
        let dir = tempfile::tempdir().expect("a scratch folder");
        std::fs::create_dir_all(dir.path().join("abs")).expect("writable");
        for file in ["abs/000.pt2", "abs/000.core.pt2", "abs/000.safetensors", "top.pt2"] {
            std::fs::write(dir.path().join(file), "").expect("writable");
        }
        let targets = find_targets(&[dir.path().to_path_buf()]).expect("readable");
        let names: Vec<&str> = targets.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["abs/000.core", "abs/000", "top"]);
        let one = find_targets(&[dir.path().join("abs/000.core.pt2")]).expect("readable");
        assert_eq!(one[0].name, "000.core");
        assert!(find_targets(&[dir.path().join("gone.pt2")]).is_err());
    }

    #[test]
    fn contradictions_fail_and_gaps_are_unsupported() {
        use crate::report::Code;
        let gap = Diagnostic::new(Code::UnsupportedOp, "no rule");
        assert!(matches!(refused(vec![gap.clone(), gap.clone()]), Status::Unsupported(r) if r.len() == 1));
        let wrong = Diagnostic::new(Code::BadArgument, "dim 7 of 2");
        assert!(matches!(refused(vec![gap, wrong]), Status::Fail(_)));
    }
}
