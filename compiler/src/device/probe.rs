//! A profile of the GPU at hand: what Vulkan tells, with estimates for the rates, which it does not tell.

use super::{CoopShape, DeviceProfile, Features, Limits, Rates};
use jvc_runtime::{Cooperative, GpuInfo, GpuKind};
use std::fmt::Write;

/// The profile of a device as its driver describes it. Limits, features and matrix shapes are the driver's. Rates, and what tiles measured fastest, are those
/// of the bundled profile whose name occurs in the device's, else rates are typical of the device's kind.
pub fn of_gpu(info: &GpuInfo) -> DeviceProfile {
    let (low, high) = info.subgroup_range;
    let known = known(info);
    DeviceProfile {
        name: profile_name(&info.name),
        description: format!("{} ({})", info.name, info.driver),
        aliases: vec![],
        drivers: vec![],
        limits: Limits {
            max_workgroup_invocations: info.max_workgroup,
            shared_bytes_per_workgroup: info.shared_bytes,
            push_constant_bytes: info.push_bytes,
            max_groups_x: info.max_workgroup_count[0],
            max_allocation_bytes: info.max_allocation_bytes,
            subgroup_size: if low == high { info.subgroup } else { 0 },
            min_storage_alignment_bytes: info.min_storage_offset_alignment as u32,
            max_loop_iterations: loop_iterations(info),
        },
        features: Features {
            int8: info.features.int8,
            int16: info.features.int16,
            float16: info.features.float16,
            int64: info.features.int64,
            float64: info.features.float64,
            vulkan_memory_model: info.features.memory_model,
        },
        rates: known.as_ref().map_or_else(|| typical_rates(info), |known| known.rates.clone()),
        cooperative: cooperative(info),
        tiles: known.map_or(vec![], |known| known.tiles),
    }
}

fn profile_name(device: &str) -> String {
    let word = device.split('(').next().unwrap_or("").trim().to_lowercase();
    let dashed: String = word.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let parts: Vec<&str> = dashed.split('-').filter(|p| !p.is_empty()).collect();
    if parts.is_empty() { "gpu".into() } else { parts.join("-") }
}

fn cooperative(info: &GpuInfo) -> Vec<CoopShape> {
    let float = |t: &str| t == "f16" || t == "bf16" || t == "f32";
    let usable = info.cooperative.iter().filter(|s| float(s.operand) && float(s.accumulator));
    let shape = |s: &Cooperative<'_>| CoopShape {
        m: s.m,
        n: s.n,
        k: s.k,
        operand: s.operand.to_string(),
        result: s.accumulator.to_string(),
        left: None,
        right: None,
    };
    usable.map(shape).collect()
}

/// Vulkan does not tell this limit: it is that of the bundled profile of the driver.
fn loop_iterations(info: &GpuInfo) -> Option<u32> {
    let is_it = |d: &DeviceProfile| d.drivers.iter().any(|text| info.driver.contains(text.as_str()));
    super::all().into_iter().find(is_it)?.limits.max_loop_iterations
}

/// The bundled profile whose name occurs in the device's.
fn known(info: &GpuInfo) -> Option<DeviceProfile> {
    let own = profile_name(&info.name);
    super::all().into_iter().find(|d| std::iter::once(&d.name).chain(&d.aliases).any(|n| own.contains(n.as_str())))
}

/// Rates of a device's kind.
fn typical_rates(info: &GpuInfo) -> Rates {
    let matrix = !info.cooperative.is_empty();
    let typical = |gb: f64, f32_rate: f64, f16_rate: f64, us: f64, n_units: u32, cpu: bool| Rates {
        peak_gb_per_s: gb,
        f32_tflop_per_s: f32_rate,
        f16_matrix_tflop_per_s: if matrix { f16_rate } else { 0.0 },
        dispatch_us: us,
        n_units,
        cpu,
    };
    match info.kind {
        GpuKind::Discrete | GpuKind::Virtual => typical(400.0, 20.0, 80.0, 2.0, 40, false),
        GpuKind::Integrated | GpuKind::Other => typical(100.0, 2.0, 8.0, 5.0, 16, false),
        GpuKind::Cpu => typical(10.0, 0.02, 0.02, 20.0, 4, true),
    }
}

/// The profile as a file, with the source of its numbers.
pub fn print_profile(d: &DeviceProfile, source: &str) -> String {
    let mut out = format!(
        "# Limits, features and matrix shapes: {source}.\n# Rates: estimates; edit them where you know better.\n"
    );
    let body = toml::to_string(d).expect("a profile is plain data");
    write!(out, "{body}").expect("writing to a string succeeds");
    out
}
