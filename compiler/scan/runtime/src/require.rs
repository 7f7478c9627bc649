//! What a program needs of a device, checked against the facts before anything is built.

use crate::error::Error;
use crate::info::GpuInfo;

/// Limits and features that a program was compiled for. Everything `false` or 0 asks for nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the others are those of `Features`")]
pub struct Requirements<'a> {
    pub int8: bool,
    pub int16: bool,
    pub float16: bool,
    pub int64: bool,
    pub float64: bool,
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

/// A cooperative-matrix shape that a kernel uses: A and B of one component type, C and the result of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        int8: false,
        int16: false,
        float16: false,
        int64: false,
        float64: false,
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
        self.check_features(gpu)?;
        self.check_limits(gpu)?;
        self.check_subgroup(gpu)?;
        self.cooperative.iter().try_for_each(|shape| check_cooperative(shape, gpu))
    }

    fn check_features(&self, gpu: &GpuInfo) -> Result<(), Error> {
        let have = &gpu.features;
        let wanted = [
            ("8-bit integers", self.int8, have.int8),
            ("16-bit integers", self.int16, have.int16),
            ("16-bit floats", self.float16, have.float16),
            ("64-bit integers", self.int64, have.int64),
            ("64-bit floats", self.float64, have.float64),
            ("VK_KHR_cooperative_matrix", !self.cooperative.is_empty(), have.cooperative_matrix),
            ("the Vulkan memory model", !self.cooperative.is_empty(), have.memory_model),
            ("buffer device addresses", true, have.buffer_address),
            ("timeline semaphores", true, have.timeline),
        ];
        match wanted.iter().find(|(_, need, fact)| *need && !fact) {
            Some((what, ..)) => Err(Error::Missing { what }),
            None => Ok(()),
        }
    }

    fn check_limits(&self, gpu: &GpuInfo) -> Result<(), Error> {
        let have = &gpu.limits;
        let wanted = [
            ("invocations of a workgroup", u64::from(self.max_workgroup), u64::from(have.max_workgroup)),
            ("shared memory bytes", u64::from(self.shared_bytes), u64::from(have.shared_bytes)),
            ("push constant bytes", u64::from(self.push_bytes), u64::from(have.push_bytes)),
            ("bytes of one allocation", self.max_allocation_bytes, have.max_allocation_bytes),
        ];
        match wanted.iter().find(|(_, need, fact)| need > fact) {
            Some((what, need, fact)) => Err(lack(what, need, fact)),
            None => Ok(()),
        }
    }

    fn check_subgroup(&self, gpu: &GpuInfo) -> Result<(), Error> {
        let (min, max) = gpu.limits.subgroup_range;
        let fits = match gpu.features.subgroup_size_control {
            true => (min..=max).contains(&self.subgroup),
            false => self.subgroup == gpu.limits.subgroup,
        };
        if self.subgroup == 0 || fits {
            return Ok(());
        }
        Err(lack("subgroup sizes", self.subgroup, if min == max { min.to_string() } else { format!("{min} to {max}") }))
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

fn check_cooperative(need: &Cooperative<'_>, gpu: &GpuInfo) -> Result<(), Error> {
    let Cooperative { m, n, k, operand, accumulator } = *need;
    let wanted = (m, n, k, operand, operand, accumulator, accumulator);
    if gpu.cooperative.iter().any(|have| (have.m, have.n, have.k, have.a, have.b, have.c, have.result) == wanted) {
        return Ok(());
    }
    let print = |m, n, k, a: &str, c: &str| format!("{m}x{n}x{k} {a}->{c}");
    let have: Vec<_> = gpu.cooperative.iter().map(|have| print(have.m, have.n, have.k, have.a, have.result)).collect();
    Err(lack("cooperative-matrix shapes", print(m, n, k, operand, accumulator), have.join(", ")))
}

fn lack(what: &'static str, need: impl ToString, fact: impl ToString) -> Error {
    Error::Requirement { what, need: need.to_string(), fact: fact.to_string() }
}
