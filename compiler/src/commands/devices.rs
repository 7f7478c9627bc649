//! `jvc devices` and `jvc probe`: profiles that come with the compiler, and one of this machine.

use super::{CommandError, Console, Outcome, load};
use crate::cli::{DevicesArgs, Format, ProbeArgs};
use crate::device::{self, DeviceProfile};
use jvc_runtime::{Gpu, GpuInfo};
use serde_json::json;

pub(super) fn devices(args: &DevicesArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let chosen = match &args.name {
        Some(name) => vec![device::find(name)?],
        None => device::all(),
    };
    match args.format {
        Format::Json => writeln!(console.out, "{}", json!(chosen))?,
        Format::Text => match &args.name {
            Some(name) => write!(console.out, "{}", device::file(name)?)?,
            None => chosen.iter().try_for_each(|d| writeln!(console.out, "{}", line(d)))?,
        },
    }
    Ok(Outcome::Fine)
}

fn line(d: &DeviceProfile) -> String {
    let types = [
        ("int8", d.features.int8),
        ("int16", d.features.int16),
        ("f16", d.features.float16),
        ("i64", d.features.int64),
        ("f64", d.features.float64),
        ("matrices", !d.cooperative.is_empty()),
    ];
    let types: Vec<&str> = types.iter().filter(|t| t.1).map(|t| t.0).collect();
    let aliases = if d.aliases.is_empty() { String::new() } else { format!(" (also {})", d.aliases.join(", ")) };
    let types = if types.is_empty() { "32-bit types only".to_string() } else { types.join(" ") };
    format!("{:14}{}{aliases}: {types}", d.name, d.description)
}

pub(super) fn probe(args: &ProbeArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    if args.list {
        for info in Gpu::list()? {
            writeln!(console.out, "{}: {}", info.index, describe(&info))?;
        }
        return Ok(Outcome::Fine);
    }
    let gpu = Gpu::open(&load::select(args.gpu.as_deref()))?;
    let info = gpu.info();
    let text = device::print_profile(&device::of_open_gpu(&gpu), &format!("queried from {}", describe(info)));
    match &args.output {
        Some(path) => jvc_codegen::artifact::write_single(path, text.as_bytes())?,
        None => write!(console.out, "{text}")?,
    }
    Ok(Outcome::Fine)
}

fn describe(info: &GpuInfo) -> String {
    let (major, minor) = info.api_version;
    format!("{}, {}, Vulkan {major}.{minor}", info.name, info.driver)
}
