//! Parameters of products on cooperative matrices.

use super::Spread;
use crate::dtype::DType;

/// Parameters of a matmul on cooperative matrices. Sizes are multiples of 8, the halves of a 16-byte block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Coop {
    /// Tile along m, a multiple of the fragment's times the subgroups along m.
    pub bm: u32,
    /// Tile along n, likewise.
    pub bn: u32,
    /// Tile along k, a multiple of the fragment's.
    pub bk: u32,
    /// Fragment sizes (m, n, k) from the device profile.
    pub frag: (u32, u32, u32),
    /// Subgroups along m and n; `wg` is their count times `subgroup`, times those that share a sum ([`Fill::parts`]).
    pub warps: (u32, u32),
    /// Fragment element type: F16 or BF16.
    pub elem: DType,
    /// Invocations of a subgroup; the pipeline demands it, and full subgroups.
    pub subgroup: u32,
    /// Tiles in shared memory: 1, or 2 in turn, which saves a barrier per tile.
    pub buffers: u32,
    /// The next tile is loaded to registers before the present one is multiplied.
    pub ahead: bool,
    /// Fragments are filled by component instead of loaded as wholes.
    pub fill: Option<Fill>,
}

/// Fragments filled from blocks of 16 bytes that each invocation reads where its own elements lie: straight from the operands, without
/// shared memory and barriers. Both elements must be found by whole blocks along k.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fill {
    /// Where a device keeps the elements of left fragments.
    pub left: Spread,
    /// Likewise of right ones.
    pub right: Spread,
    /// The left tile waits in shared memory all the same, since several subgroups need it.
    pub staged: bool,
    /// Blocks of the left and of the right side are read a step ahead.
    pub ahead: (bool, bool),
    /// The right operand lies fragment by fragment as its invocations hold it, and is read this many fragments of k ahead; the left one
    /// is staged, and loaded as wholes. 0: it lies in any order.
    pub packed: u32,
    /// Subgroups that share the sum of each output, which add what they find in their order: every one goes through each so many-th tile
    /// of k where both sides are read straight from the operands, through its share of every tile where the right one is packed. Else 1.
    pub parts: u32,
}

impl Coop {
    /// Subgroups that share the sum of each output.
    pub fn parts(&self) -> u32 {
        self.fill.map_or(1, |f| f.parts)
    }

    /// Subgroups of a workgroup.
    pub fn subgroups(&self) -> u32 {
        self.warps.0 * self.warps.1 * self.parts()
    }
}
