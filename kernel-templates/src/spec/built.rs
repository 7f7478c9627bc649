//! What building a spec gives: the module, its grid, what it asks of a device; and what it is built for.

use super::Extent;

/// Most workgroups along x. A larger count is dispatched as [`folded`] says; every kernel computes its linear workgroup number from the
/// number of workgroups along x, so that any folding does.
pub const MAX_GRID_X: u32 = 65535;

/// Workgroups along x and y for a count: as few rows as there may be, of the same length, so that fewer than a row are beyond the work.
pub fn folded(count: u64) -> (u64, u64) {
    let y = count.div_ceil(u64::from(MAX_GRID_X)).max(1);
    (count.div_ceil(y), y)
}

/// How many workgroups a kernel needs, per dimension, as products of ceiling divisions of extents.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Grid {
    /// `x`, `y`, `z`: each the product over its factors of `ceil(product(extents) / divisor)`.
    pub dims: [Vec<GridFactor>; 3],
}

/// `ceil(product(extents) / divisor)`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GridFactor {
    /// Multiplied together.
    pub extents: Vec<Extent>,
    /// Rounded up by this.
    pub divisor: u32,
}

/// A kernel as built: what ships and what the recorder needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// SPIR-V words; entry point `main`.
    pub words: Vec<u32>,
    /// Workgroups to dispatch. All templates are linear: `dims[0]` is the count and `dims[1..]` are empty (1). A count above
    /// [`MAX_GRID_X`] is folded into y by whoever dispatches; workgroups beyond the work return at once.
    pub grid: Grid,
    /// Shared memory.
    pub shared_bytes: u32,
    /// What the device must have.
    pub needs: Needs,
}

/// Device features that a module declares.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Needs {
    /// `storageBuffer8BitAccess` and `shaderInt8`.
    pub int8: bool,
    /// `storageBuffer16BitAccess` and `shaderInt16`.
    pub int16: bool,
    /// `storageBuffer16BitAccess` and `shaderFloat16`.
    pub float16: bool,
    /// `shaderInt64`.
    pub int64: bool,
    /// `shaderFloat64`.
    pub float64: bool,
    /// `VK_KHR_cooperative_matrix`, with the Vulkan memory model.
    pub cooperative_matrix: bool,
    /// Subgroup size that the kernel assumes; 0 for none.
    pub subgroup: u32,
}

/// Which form of interface a module gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InterfaceForm {
    /// Buffer device addresses in push constants: what ships.
    Addresses,
    /// One storage buffer per operand (set 0, binding = operand index; the symbol table last): what tests run under
    /// synchronisation and GPU-assisted validation, which do not see through addresses.
    Bindings,
}

/// How 64-bit integers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Int64 {
    /// By the device's own (`shaderInt64`).
    Native,
    /// As pairs of 32-bit words, with the same results; memory holds the same 8 bytes.
    Words,
}

/// What a module is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Form of the interface.
    pub form: InterfaceForm,
    /// 64-bit integers.
    pub int64: Int64,
}

impl From<InterfaceForm> for Target {
    /// A device that has 64-bit integers.
    fn from(form: InterfaceForm) -> Target {
        Target { form, int64: Int64::Native }
    }
}
