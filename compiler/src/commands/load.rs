//! What several commands start with: programs from files, a device by name, an open GPU.

use super::{CommandError, Console};
use crate::cli::{CompileOptions, DeviceArgs, InMemoryArgs};
use crate::device::{self, DeviceProfile};
use crate::exec::Value;
use crate::import::{self, Program};
use crate::islands::Islands;
use crate::options::Options;
use crate::pipeline::{self, Compiled};
use crate::schedule::tile;
use crate::tensor_file::read_tensors;
use crate::verify;
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
    let programs = programs(std::slice::from_ref(&args.program), &args.compile, console)?;
    let gpu = rt::Gpu::open(&select(args.device.gpu.as_deref()))?;
    let profile = profile(&args.device)?.unwrap_or_else(|| device::of_open_gpu(&gpu));
    let options = options(&args.compile, None)?;
    warn_of_strangers(&profile, console)?;
    let started = Instant::now();
    let compiled = pipeline::compile(&programs, &options, &profile).map_err(CommandError::Diagnostics)?;
    let compile_seconds = started.elapsed().as_secs_f64();
    let [graph] = &compiled.graphs[..] else {
        let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
        return Err(CommandError::Usage(format!("the archive holds several programs: {}", names.join(", "))));
    };
    let given = args.inputs.as_deref().map_or(Ok(BTreeMap::new()), read_tensors)?;
    let inputs = verify::input_values(graph, |i| given.get(&format!("in.{i}"))).map_err(CommandError::Usage)?;
    Ok(InMemory { gpu, compiled, inputs, compile_seconds })
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
