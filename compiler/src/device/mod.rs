//! What a GPU can do: plain numbers from data files. No device name appears in code, only fields of [`DeviceProfile`].
//!
//! A device is one file in `compiler/devices/` and one line in [`FILES`]. Other names for it stand in its file.

mod fragments;
mod probe;
mod tiles;

pub use fragments::{of_open_gpu, with_fragments};
pub use probe::{of_gpu, print_profile};
pub(crate) use tiles::contradiction;
pub use tiles::{Attention, MeasuredTile, Product, Work, with_tiles};

use serde::{Deserialize, Serialize};
use std::path::Path;

/// The bundled profiles, sorted.
const FILES: &[&str] = &[
    include_str!("../../devices/generic.toml"),
    include_str!("../../devices/h200.toml"),
    include_str!("../../devices/lavapipe.toml"),
    include_str!("../../devices/lavapipe-22.toml"),
    include_str!("../../devices/radeon-8060s.toml"),
    include_str!("../../devices/rtx4000-ada.toml"),
    include_str!("../../devices/swiftshader.toml"),
];

/// A device that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No bundled profile has the name.
    #[error(
        "no device `{name}` (known: {known}; `auto` is the GPU of this machine, a path to a .toml file works, too)"
    )]
    Unknown {
        /// Name given.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// A profile file cannot be read.
    #[error("cannot read {path}: {why}")]
    File {
        /// Path.
        path: String,
        /// Reason.
        why: String,
    },
}

/// All bundled profiles, sorted by name.
pub fn all() -> Vec<DeviceProfile> {
    FILES.iter().map(|text| toml::from_str(text).expect("bundled profiles are tested to parse")).collect()
}

/// The file of a bundled profile, with the source of each number as comments.
///
/// # Errors
/// There is none of that name.
pub fn file(name: &str) -> Result<&'static str, DeviceError> {
    let name = find(name)?.name;
    let at = all().iter().position(|d| d.name == name).expect("it was found");
    Ok(FILES[at])
}

/// A bundled profile by name or alias.
///
/// # Errors
/// There is none of that name.
pub fn find(name: &str) -> Result<DeviceProfile, DeviceError> {
    let found = all().into_iter().find(|d| d.name == name || d.aliases.iter().any(|a| a == name));
    found.ok_or_else(|| {
        let known: Vec<String> = all().into_iter().map(|d| d.name).collect();
        DeviceError::Unknown { name: name.to_string(), known: known.join(", ") }
    })
}

/// A profile from a file, as `jvc probe` writes it.
///
/// # Errors
/// The file cannot be read, is no profile, or its table of tiles contradicts itself.
pub fn load(path: &Path) -> Result<DeviceProfile, DeviceError> {
    let fail = |why: String| DeviceError::File { path: path.display().to_string(), why };
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let profile: DeviceProfile = toml::from_str(&text).map_err(|e| fail(e.to_string()))?;
    match contradiction(&profile.tiles) {
        Some(why) => Err(fail(why)),
        None => Ok(profile),
    }
}

/// One device: limits, features and the rates that tile choice needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Canonical name (`rtx4000-ada`).
    pub name: String,
    /// Marketing name.
    pub description: String,
    /// Other names of the device.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Texts of which one is in what the device's driver calls itself: facts that no driver tells are taken over from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drivers: Vec<String>,
    /// Limits.
    pub limits: Limits,
    /// Features.
    pub features: Features,
    /// Rates, for the cost model.
    pub rates: Rates,
    /// Cooperative-matrix shapes, subgroup scope.
    #[serde(default)]
    pub cooperative: Vec<CoopShape>,
    /// What measured fastest, sorted by what it is for: there the cost model does not choose. `jvc tune` writes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiles: Vec<MeasuredTile>,
}

/// Vulkan limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are Vulkan's, with units")]
pub struct Limits {
    pub max_workgroup_invocations: u32,
    pub shared_bytes_per_workgroup: u32,
    pub push_constant_bytes: u32,
    pub max_groups_x: u32,
    pub max_allocation_bytes: u64,
    /// 0 when the subgroup size varies or is not to be relied on.
    pub subgroup_size: u32,
    /// Alignment of a storage-buffer binding; addresses need 16.
    pub min_storage_alignment_bytes: u32,
    /// Iterations, of all loops of an invocation together, after which the driver ends every loop, where it does such a thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_loop_iterations: Option<u32>,
}

/// Vulkan features.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names are Vulkan's")]
pub struct Features {
    pub int8: bool,
    pub int16: bool,
    pub float16: bool,
    pub int64: bool,
    pub float64: bool,
    pub vulkan_memory_model: bool,
}

/// Rates for the cost model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Device memory, 10⁹ bytes a second.
    pub peak_gb_per_s: f64,
    /// f32 outside matrix units, 10¹² operations a second.
    pub f32_tflop_per_s: f64,
    /// f16 matrix units, 10¹² operations a second; 0 without.
    pub f16_matrix_tflop_per_s: f64,
    /// Cost of a dependent dispatch, 10⁻⁶ s.
    pub dispatch_us: f64,
    /// Compute units (SMs, CUs, CPU cores).
    pub n_units: u32,
    /// A CPU driver: shared memory and workgroup barriers are slow there.
    pub cpu: bool,
}

/// One supported fragment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoopShape {
    /// Rows.
    pub m: u32,
    /// Columns.
    pub n: u32,
    /// Depth.
    pub k: u32,
    /// Type of both operands (`f16`, `bf16`).
    pub operand: String,
    /// Type of accumulator and result (`f32`).
    pub result: String,
    /// How the driver spreads left fragments, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Spread>,
    /// Likewise of right fragments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right: Option<Spread>,
}

/// The element of a fragment that an invocation holds in a component is at the (row, column) that is the sum of the entries of all bits set
/// in the invocation's number and in the component's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    /// One entry a bit of the invocation's number, the lowest first.
    pub lanes: Vec<(u8, u8)>,
    /// One entry a bit of the component's number.
    pub components: Vec<(u8, u8)>,
}

impl Spread {
    fn of(spread: &jvc_kernels::spec::Spread) -> Spread {
        let moves = |entries: &[(u8, u8)]| entries.iter().copied().filter(|e| *e != (0, 0)).collect();
        Spread { lanes: moves(&spread.lanes), components: moves(&spread.components) }
    }

    /// In the templates' words; none where it has more entries than they know.
    pub fn as_spec(&self) -> Option<jvc_kernels::spec::Spread> {
        let mut spread = jvc_kernels::spec::Spread::default();
        spread.lanes.get_mut(..self.lanes.len())?.copy_from_slice(&self.lanes);
        spread.components.get_mut(..self.components.len())?.copy_from_slice(&self.components);
        Some(spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundled_profiles_parse_and_have_distinct_sorted_names() {
        let devices = all();
        let mut names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
        assert!(names.is_sorted(), "{names:?}");
        names.extend(devices.iter().flat_map(|d| &d.aliases).map(String::as_str));
        names.sort_unstable();
        let n = names.len();
        names.dedup();
        assert_eq!(names.len(), n);
    }

    #[test]
    fn every_file_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("devices");
        let files = std::fs::read_dir(folder).expect("folder").count();
        assert_eq!(files, FILES.len());
    }

    #[test]
    fn every_number_names_its_source() {
        // A table of tiles has one source for all of it, above it.
        let numbers = FILES.iter().flat_map(|f| f.lines().take_while(|line| !line.starts_with("# Tiles: measured")));
        for line in numbers.filter(|line| !line.starts_with('#')) {
            let Some((key, value)) = line.split_once(" = ") else { continue };
            let fact = value.starts_with(|c: char| c.is_ascii_digit() || c == 't' || c == 'f');
            let shape = ["m", "n", "k", "cpu"].contains(&key); // one source above the list
            assert!(!fact || shape || value.contains("# "), "{line}");
        }
    }

    #[test]
    fn limits_are_at_least_what_vulkan_requires() {
        for d in all() {
            assert!(
                d.limits.max_workgroup_invocations >= 128 && d.limits.shared_bytes_per_workgroup >= 16384,
                "{}",
                d.name
            );
            assert!(d.limits.push_constant_bytes >= 128 && d.limits.max_groups_x >= 65535, "{}", d.name);
            assert!(d.limits.max_allocation_bytes >= 1 << 30, "{}", d.name);
        }
    }

    #[test]
    fn aliases_lead_to_the_canonical_name() {
        assert_eq!(find("rtx4000").expect("alias").name, "rtx4000-ada");
        let error = find("rtx9999").expect_err("unknown").to_string();
        assert!(error.contains("rtx9999") && error.contains("swiftshader"), "{error}");
    }

    #[test]
    fn a_printed_profile_reads_back() {
        for d in all() {
            let text = print_profile(&d, "a test");
            assert_eq!(toml::from_str::<DeviceProfile>(&text).expect("parses"), d);
        }
    }
}
