//! From a [`KernelSpec`] to a [`Kernel`]: one line per template, and what happens to finished words.

use crate::check::BuildError;
use crate::limits::{Limits, Reject};
use crate::spec::{Kernel, KernelSpec, Target};
use crate::templates::{attention, fft, map, matmul, recurrent, row, scan, scatter, sort};

/// Builds the kernel of a spec for a target; an interface form alone stands for a device with 64-bit integers.
///
/// # Errors
/// When the spec contradicts itself or its interface.
pub fn build(spec: &KernelSpec, target: impl Into<Target>) -> Result<Kernel, BuildError> {
    let target = target.into();
    match spec {
        KernelSpec::Map(s) => map::build(s, target),
        KernelSpec::Row(s) => row::build(s, target),
        KernelSpec::Matmul(s) => matmul::build(s, target),
        KernelSpec::Attention(s) => attention::build(s, target),
        KernelSpec::Recurrent(s) => recurrent::build(s, target),
        KernelSpec::Scan(s) => scan::build(s, target),
        KernelSpec::Scatter(s) => scatter::build(s, target),
        KernelSpec::Sort(s) => sort::build(s, target),
        KernelSpec::Fft(s) => fft::build(s, target),
    }
}

/// Whether a device can run the kernel of a spec.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &KernelSpec, limits: &Limits) -> Result<(), Reject> {
    match spec {
        KernelSpec::Map(s) => map::constraints(s, limits),
        KernelSpec::Row(s) => row::constraints(s, limits),
        KernelSpec::Matmul(s) => matmul::constraints(s, limits),
        KernelSpec::Scan(s) => scan::constraints(s, limits),
        KernelSpec::Scatter(s) => scatter::constraints(s, limits),
        KernelSpec::Sort(s) => sort::constraints(s, limits),
        KernelSpec::Attention(s) => attention::constraints(s, limits),
        KernelSpec::Recurrent(s) => recurrent::constraints(s, limits),
        KernelSpec::Fft(s) => fft::constraints(s, limits),
    }
}

/// Text of a module, for review; `None` when the words are no module.
pub fn disassemble(words: &[u32]) -> Option<String> {
    crate::asm::disassemble(words)
}

/// Checks a module with SPIRV-Tools, for Vulkan 1.2 and 1.3.
///
/// # Errors
/// The validator's first message, and for which.
#[cfg(feature = "validate")]
pub fn validate(words: &[u32]) -> Result<(), String> {
    use spirv_tools::TargetEnv;
    use spirv_tools::val::{Validator, create};
    [TargetEnv::Vulkan_1_2, TargetEnv::Vulkan_1_3]
        .into_iter()
        .try_for_each(|env| create(Some(env)).validate(words, None).map_err(|error| format!("{env:?}: {error}")))
}
