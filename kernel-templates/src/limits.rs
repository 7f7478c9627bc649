//! What a template asks about the device, and why it declines.

use crate::dtype::DType;
use crate::spec::Int64;

/// The facts of a device that decide whether a kernel can run on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Most invocations of a workgroup.
    pub max_workgroup: u32,
    /// Shared memory of a workgroup.
    pub shared_bytes: u32,
    /// Push-constant block.
    pub push_bytes: u32,
    /// Invocations of a subgroup.
    pub subgroup: u32,
    /// 8-bit storage and arithmetic.
    pub int8: bool,
    /// 16-bit integer storage and arithmetic.
    pub int16: bool,
    /// 16-bit float storage and arithmetic.
    pub float16: bool,
    /// 64-bit integers; kernels compute them by words where there are none.
    pub int64: bool,
    /// 64-bit floats.
    pub float64: bool,
    /// Cooperative-matrix fragments: (m, n, k, element), f32 accumulators.
    pub cooperative: Vec<(u32, u32, u32, DType)>,
}

impl Limits {
    /// What every device of the portable path has: Vulkan 1.2 with buffer addresses, 256 invocations, 32 KiB shared memory, 128 B of push constants.
    pub const fn portable() -> Limits {
        Limits {
            max_workgroup: 256,
            shared_bytes: 32 * 1024,
            push_bytes: 128,
            subgroup: 4,
            int8: false,
            int16: false,
            float16: false,
            int64: false,
            float64: false,
            cooperative: Vec::new(),
        }
    }

    /// How a device of these limits computes 64-bit integers.
    pub const fn int64_form(&self) -> Int64 {
        if self.int64 { Int64::Native } else { Int64::Words }
    }
}

/// Why a template cannot serve a spec on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// Too many invocations.
    #[error("a workgroup of {need} invocations exceeds the limit of {limit}")]
    Workgroup {
        /// Asked for.
        need: u32,
        /// Offered.
        limit: u32,
    },
    /// Too much shared memory.
    #[error("{need} bytes of shared memory exceed the limit of {limit}")]
    Shared {
        /// Asked for.
        need: u32,
        /// Offered.
        limit: u32,
    },
    /// Too many operands and bases.
    #[error("{need} bytes of push constants exceed the limit of {limit}")]
    Push {
        /// Asked for.
        need: u32,
        /// Offered.
        limit: u32,
    },
    /// A type that the device does not have.
    #[error("the device has no {feature}")]
    Feature {
        /// Name of the feature.
        feature: &'static str,
    },
    /// An iteration space beyond 32-bit indices.
    #[error("an iteration space of {elements} elements exceeds 2147483647")]
    TooLarge {
        /// Its size.
        elements: u64,
    },
    /// Parameters that do not fit each other.
    #[error("{reason}")]
    Shape {
        /// What does not fit.
        reason: String,
    },
}
