//! What a program needs of a device, checked against the facts before anything is built.

use crate::error::Error;
use crate::info::{Features, GpuInfo};

/// Limits and features that a program was compiled for. Everything `false` or 0 asks for nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requirements<'a> {
    /// Features, besides those that every program needs.
    pub features: Features,
    /// KHR cooperative-matrix shapes, with the Vulkan memory model.
    pub cooperative: &'a [Cooperative<'a>],
    /// Subgroup size that some kernel assumes.
    pub subgroup: u32,
    /// Largest workgroup, in invocations.
    pub max_workgroup: u32,
    /// Largest shared memory of a workgroup.
    pub shared_bytes: u32,
    /// Largest push-constant block.
    pub push_bytes: u32,
    /// Largest single allocation.
    pub max_allocation_bytes: u64,
}

/// A cooperative-matrix shape: A and B of one component type, C and the result of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names of the others are those of Vulkan")]
pub struct Cooperative<'a> {
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Component type of A and B: `f16`, `bf16`, `s8`, `u8`.
    pub operand: &'a str,
    /// Component type of C and the result: `f32`, `f16`, `s32`, `u32`.
    pub accumulator: &'a str,
}

impl Requirements<'_> {
    /// Asks for nothing.
    pub const NONE: Requirements<'static> = Requirements {
        features: Features::NONE,
        cooperative: &[],
        subgroup: 0,
        max_workgroup: 0,
        shared_bytes: 0,
        push_bytes: 0,
        max_allocation_bytes: 0,
    };

    /// Compares with a device. What it lacks first is the error: [`Error::Missing`] names a feature, [`Error::Requirement`] a limit
    /// with the need and the fact.
    pub fn check(&self, gpu: &GpuInfo) -> Result<(), Error> {
        let matrices = !self.cooperative.is_empty();
        let (mut features, have) = (self.features, &gpu.limits);
        (features.buffer_address, features.timeline) = (true, true);
        features.cooperative_matrix |= matrices;
        features.memory_model |= matrices;
        if let Some(what) = features.first_missing(&gpu.features) {
            return Err(Error::Missing { what });
        }
        let limits = [
            ("invocations of a workgroup", u64::from(self.max_workgroup), u64::from(have.max_workgroup)),
            ("shared memory bytes", u64::from(self.shared_bytes), u64::from(have.shared_bytes)),
            ("push constant bytes", u64::from(self.push_bytes), u64::from(have.push_bytes)),
            ("bytes of one allocation", self.max_allocation_bytes, have.max_allocation_bytes),
        ];
        limits.into_iter().try_for_each(|(what, need, fact)| check_limit(what, need, fact))?;
        self.check_subgroup(gpu)?;
        self.cooperative.iter().try_for_each(|shape| check_cooperative(shape, gpu))
    }

    fn check_subgroup(&self, gpu: &GpuInfo) -> Result<(), Error> {
        let default = gpu.limits.subgroup;
        let sizes = if gpu.features.subgroup_size_control { gpu.limits.subgroup_range } else { (default, default) };
        if self.subgroup == 0 || (sizes.0..=sizes.1).contains(&self.subgroup) {
            return Ok(());
        }
        Err(lack("subgroup sizes", self.subgroup, format!("{} to {}", sizes.0, sizes.1)))
    }
}

impl GpuInfo {
    /// Workgroup counts within the device's limits.
    pub(crate) fn check_groups(&self, counts: [u32; 3]) -> Result<(), Error> {
        let max = self.limits.max_workgroup_count;
        match counts.iter().zip(max).all(|(count, max)| *count <= max) {
            true => Ok(()),
            false => Err(lack("workgroups of a dispatch", format!("{counts:?}"), format!("{max:?}"))),
        }
    }
}

/// A need that is at most the fact.
pub(crate) fn check_limit(what: &'static str, need: u64, fact: u64) -> Result<(), Error> {
    if need <= fact { Ok(()) } else { Err(lack(what, need, fact)) }
}

fn check_cooperative(need: &Cooperative<'_>, gpu: &GpuInfo) -> Result<(), Error> {
    let print = |c: &Cooperative<'_>| format!("{}x{}x{} {}->{}", c.m, c.n, c.k, c.operand, c.accumulator);
    if gpu.cooperative.contains(need) {
        return Ok(());
    }
    let have: Vec<_> = gpu.cooperative.iter().map(print).collect();
    Err(lack("cooperative-matrix shapes", print(need), have.join(", ")))
}

fn lack(what: &'static str, need: impl ToString, fact: impl ToString) -> Error {
    Error::Requirement { what, need: need.to_string(), fact: fact.to_string() }
}
