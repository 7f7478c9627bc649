//! What several commands start with: programs from files, a device by name, an open GPU.

use super::{CommandError, Console};
use crate::cli::{CompileOptions, DeviceArgs};
use crate::device::{self, DeviceProfile};
use crate::import::{self, Program};
use jvc_runtime as rt;
use std::path::{Path, PathBuf};

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
        import::fill_random(&mut all, seed);
    }
    Ok(all)
}

/// `a/b/resnet18.core.pt2` → `resnet18`.
pub(super) fn stem(path: &Path) -> String {
    let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    name.split('.').next().unwrap_or("model").to_string()
}

/// A profile by name, from a file, or of this machine's GPU.
pub(super) fn device(name: &str) -> Result<DeviceProfile, CommandError> {
    if name == "auto" {
        return Ok(device::of_gpu(rt::Gpu::open(&rt::Select::Auto)?.info()));
    }
    named_device(name)
}

fn named_device(name: &str) -> Result<DeviceProfile, CommandError> {
    if name.ends_with(".toml") { Ok(device::load(Path::new(name))?) } else { Ok(device::find(name)?) }
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
