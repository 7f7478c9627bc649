//! What several commands start with: programs from files, a device by name, an open GPU.

use super::run::name_outputs;
use super::{CommandError, Console};
use crate::cli::{CompileOptions, DeviceArgs, InMemoryArgs};
use crate::device::{self, DeviceProfile};
use crate::exec::{HostTensor, Loaded, Value, made_up};
use crate::import::{self, Program};
use crate::islands::Islands;
use crate::options::Options;
use crate::pipeline::{self, Compiled};
use crate::schedule::tile;
use crate::tensor_file::read_tensors;
use crate::verify;
use jvc_codegen::plan::{KernelFile, Plan, Port, PortKind};
use jvc_codegen::weights::FILE_NAME;
use jvc_runtime as rt;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Reads programs and gives them their weights. A file's only program is called after the file.
pub(super) fn programs(
    paths: &[PathBuf],
    options: &CompileOptions,
    console: &mut Console<'_>,
) -> Result<Vec<Program>, CommandError> {
    let mut all = vec![];
    for path in paths {
        let mut programs = import::read(path)?;
        if let [only] = &mut programs[..] {
            only.name = stem(path);
        }
        for warning in programs.iter().flat_map(|p| &p.warnings) {
            writeln!(console.err, "jvc: {}: {warning}", path.display())?;
        }
        all.extend(programs);
    }
    if let Some(path) = &options.weights {
        for name in import::merge_weights(&mut all, path)? {
            writeln!(console.err, "jvc: {}: no program has a weight `{name}`", path.display())?;
        }
    }
    if let Some(seed) = options.random_weights {
        import::fill_random(&mut all, seed)?;
    }
    Ok(all)
}

/// The compiler's options, with the islands that a file names.
pub(super) fn options(args: &CompileOptions, name: Option<String>) -> Result<Options, CommandError> {
    let mut options = args.options(name);
    let Some(path) = &args.islands else { return Ok(options) };
    let usage = |why: String| CommandError::Usage(format!("--islands {}: {why}", path.display()));
    let mixed = options.mixed.as_mut().ok_or_else(|| usage("it is for --precision f16 or bf16".to_string()))?;
    let islands = Islands::read(path)?;
    if islands.precision != mixed.half {
        let (of, asked) = (islands.precision.dtype(), mixed.half.dtype());
        return Err(usage(format!("its islands are those of {of}, the precision is {asked}")));
    }
    mixed.islands = Some(islands);
    Ok(options)
}

/// One program, compiled for a GPU that is open.
pub(super) struct InMemory {
    pub(super) gpu: rt::Gpu,
    pub(super) compiled: Compiled,
    pub(super) inputs: Vec<Value>,
    pub(super) compile_seconds: f64,
}

/// Compiles the only program of a file for the GPU at hand, and reads its inputs, `in.N`.
pub(super) fn in_memory(args: &InMemoryArgs, console: &mut Console<'_>) -> Result<InMemory, CommandError> {
    let gpu = rt::Gpu::open(&select(args.device.gpu.as_deref()))?;
    let (compiled, _, compile_seconds) = compile_one(&args.program, (&args.compile, &args.device), &gpu, console)?;
    let given = args.inputs.as_deref().map_or(Ok(BTreeMap::new()), read_tensors)?;
    let inputs = program_inputs(&compiled, &given)?;
    Ok(InMemory { gpu, compiled, inputs, compile_seconds })
}

/// The program, the profile that it is compiled for, and the seconds that compiling took.
fn compile_one(
    path: &PathBuf,
    (compile, device): (&CompileOptions, &DeviceArgs),
    gpu: &rt::Gpu,
    console: &mut Console<'_>,
) -> Result<(Compiled, DeviceProfile, f64), CommandError> {
    let programs = programs(std::slice::from_ref(path), compile, console)?;
    let profile = profile(device)?.unwrap_or_else(|| device::of_open_gpu(gpu));
    warn_of_strangers(&profile, console)?;
    let options = options(compile, None)?;
    let started = Instant::now();
    let compiled = pipeline::compile(&programs, &options, &profile).map_err(CommandError::Diagnostics)?;
    let seconds = started.elapsed().as_secs_f64();
    if compiled.graphs.len() != 1 {
        let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
        return Err(CommandError::Usage(format!("the archive holds several programs: {}", names.join(", "))));
    }
    Ok((compiled, profile, seconds))
}

fn program_inputs(compiled: &Compiled, given: &BTreeMap<String, HostTensor>) -> Result<Vec<Value>, CommandError> {
    verify::input_values(&compiled.graphs[0], |i| given.get(&format!("in.{i}"))).map_err(CommandError::Usage)
}

/// Something that can be measured, with the profile whose rates bound its steps.
pub(super) struct Subject {
    kind: SubjectKind,
    pub(super) profile: DeviceProfile,
}

enum SubjectKind {
    /// A program, compiled in memory.
    Program(Box<Compiled>),
    /// A crate as it stands, and its weight file.
    Crate(Box<Plan>, PathBuf),
}

/// The only program of a file, compiled for the GPU at hand, or the first entry point of the crate in a folder.
pub(super) fn subject(
    path: &PathBuf,
    args: (&CompileOptions, &DeviceArgs),
    gpu: &rt::Gpu,
    console: &mut Console<'_>,
) -> Result<Subject, CommandError> {
    if !path.is_dir() {
        let (compiled, profile, _) = compile_one(path, args, gpu, console)?;
        return Ok(Subject { kind: SubjectKind::Program(Box::new(compiled)), profile });
    }
    let plan = crate_plan(path)?;
    let profile = device::find(&plan.device).unwrap_or_else(|_| device::of_gpu(gpu.info()));
    Ok(Subject { kind: SubjectKind::Crate(Box::new(plan), path.join(FILE_NAME)), profile })
}

impl Subject {
    pub(super) fn plan(&self) -> &Plan {
        match &self.kind {
            SubjectKind::Program(compiled) => &compiled.plan,
            SubjectKind::Crate(plan, _) => plan,
        }
    }

    pub(super) fn load(&self, gpu: &rt::Gpu) -> Result<Loaded<'_>, CommandError> {
        let cache = rt::CacheDir::Default;
        Ok(match &self.kind {
            SubjectKind::Program(compiled) => Loaded::new(gpu, compiled, &cache)?,
            SubjectKind::Crate(plan, weights) => Loaded::of_plan(gpu, plan, rt::WeightSource::Path(weights), &cache)?,
        })
    }

    /// Inputs from `in.N`, or made-up ones. A crate does not know which inputs of its program it has no port for: its ports take those that
    /// are given, in order.
    pub(super) fn inputs(&self, given: Option<&BTreeMap<String, HostTensor>>) -> Result<Vec<Value>, CommandError> {
        let entry = &self.plan().entries[0];
        match (given, &self.kind) {
            (None, _) => Ok(made_up(entry, 1)?),
            (Some(given), SubjectKind::Program(compiled)) => program_inputs(compiled, given),
            (Some(given), SubjectKind::Crate(..)) => {
                let named = (0..).map(|i| given.get(&format!("in.{i}")));
                let mut tensors = named.take(most_inputs(given)).flatten();
                let value = |port: &Port| {
                    let missing = || CommandError::Usage(format!("no input is left for port {}", port.name));
                    let tensor = tensors.next().ok_or_else(missing)?;
                    match port.kind {
                        PortKind::Io(_) => Ok(Value::Tensor(tensor.clone())),
                        PortKind::Symbol(_) => verify::integer(tensor)
                            .map(Value::Int)
                            .ok_or_else(|| CommandError::Usage(format!("the input for {} is no integer", port.name))),
                    }
                };
                entry.inputs.iter().map(value).collect()
            }
        }
    }

    /// Outputs by name, as of `jvc run`; a crate's are numbered.
    pub(super) fn named(
        &self,
        outputs: Vec<HostTensor>,
        symbols: &BTreeMap<String, i64>,
    ) -> BTreeMap<String, HostTensor> {
        match &self.kind {
            SubjectKind::Program(compiled) => name_outputs(&compiled.graphs[0], outputs, symbols),
            SubjectKind::Crate(..) => outputs.into_iter().enumerate().map(|(i, t)| (format!("out.{i}"), t)).collect(),
        }
    }
}

/// One more than the largest N of all `in.N`.
fn most_inputs(given: &BTreeMap<String, HostTensor>) -> usize {
    let numbers = given.keys().filter_map(|name| name.strip_prefix("in.")?.parse::<usize>().ok());
    numbers.max().map_or(0, |n| n + 1)
}

/// The plan of a crate, with its kernels.
pub(super) fn crate_plan(folder: &Path) -> Result<Plan, CommandError> {
    let bad = |what: String| CommandError::Usage(format!("{} is no crate that jvc wrote: {what}", folder.display()));
    let text = std::fs::read_to_string(folder.join("plan.txt")).map_err(|error| bad(format!("plan.txt: {error}")))?;
    let kernel = |name: &str| {
        let bytes = std::fs::read(folder.join(format!("kernels/{name}.spv"))).ok()?;
        let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        Some(KernelFile { words, disassembly: String::new() })
    };
    Plan::parse(&text, &kernel).map_err(|error| bad(error.to_string()))
}

/// `a/b/resnet18.core.pt2` → `resnet18`.
pub(super) fn stem(path: &Path) -> String {
    let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    name.split('.').next().unwrap_or("model").to_string()
}

/// A profile by name, from a file, or of this machine's GPU.
pub(super) fn device(name: &str) -> Result<DeviceProfile, CommandError> {
    if name == "auto" {
        return Ok(device::of_open_gpu(&rt::Gpu::open(&rt::Select::Auto)?));
    }
    named_device(name)
}

fn named_device(name: &str) -> Result<DeviceProfile, CommandError> {
    if is_file(name) { Ok(device::load(Path::new(name))?) } else { Ok(device::find(name)?) }
}

fn is_file(device: &str) -> bool {
    device.ends_with(".toml")
}

/// The text of a profile: with its comments, but for that of the GPU at hand, which has none.
pub(super) fn profile_text(args: &DeviceArgs, profile: &DeviceProfile) -> Result<String, CommandError> {
    match args.device.as_str() {
        "auto" => Ok(device::print_profile(profile, &format!("queried from {}", profile.description))),
        file if is_file(file) => Ok(std::fs::read_to_string(file)?),
        name => Ok(device::file(name)?.to_owned()),
    }
}

/// Tells of entries of a profile's table that nothing can follow.
pub(super) fn warn_of_strangers(profile: &DeviceProfile, console: &mut Console<'_>) -> Result<(), CommandError> {
    tile::strangers(profile).iter().try_for_each(|line| writeln!(console.err, "jvc: {line}"))?;
    Ok(())
}

/// The profile that `--device` names; none for `auto`, which is that of the GPU opened.
pub(super) fn profile(args: &DeviceArgs) -> Result<Option<DeviceProfile>, CommandError> {
    if args.device == "auto" { Ok(None) } else { named_device(&args.device).map(Some) }
}

/// The GPU that `--gpu` names.
pub(super) fn select(gpu: Option<&str>) -> rt::Select {
    match gpu {
        None => rt::Select::Auto,
        Some(text) => text.parse().map_or_else(|_| rt::Select::Name(text.to_string()), rt::Select::Index),
    }
}
