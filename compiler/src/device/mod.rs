//! What a GPU can do: plain numbers from data files. No device name appears in code, only fields of [`DeviceProfile`].

use serde::{Deserialize, Serialize};

/// One device: limits, features and the rates that tile choice needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Canonical name (`rtx4000-ada`).
    pub name: String,
    /// Marketing name.
    pub description: String,
    /// Limits.
    pub limits: Limits,
    /// Features.
    pub features: Features,
    /// Rates, for the cost model.
    pub rates: Rates,
    /// Cooperative-matrix shapes, subgroup scope.
    #[serde(default)]
    pub cooperative: Vec<CoopShape>,
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
}
