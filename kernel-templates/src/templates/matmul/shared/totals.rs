//! Where the sums of finished chains wait while the next chain is summed.
//!
//! In registers they take as many as the sums of the chain under way, for what is touched once in [`CHUNK`] products. Without them an H200's
//! unit has room for three workgroups of 128 invocations instead of two. So invocations of many outputs keep those of long sums in memory of
//! their own, which is read and written once a chain; that of neighbours lies side by side. Where ends of rows are looked after, registers do
//! not suffice for a third workgroup either way, and few chains do not pay for the traffic.

use super::super::is_covered;
use super::{BLOCK, CHUNK, Product, Sizes, zero};
use crate::asm::{Id, OwnBlocks};
use crate::dtype::Ty;
use crate::emit_expr::Emit;

/// Outputs whose totals stay in registers.
const IN_REGISTERS: u32 = 32;

/// Chains of a sum whose totals stay in registers.
const FEW_CHAINS: u32 = 4;

/// Totals in the invocation's memory.
pub(super) struct Totals {
    blocks: OwnBlocks,
    /// Block that they start with: 0 or 1, by the workgroup. An array whose places are known drivers keep in registers.
    first: Id,
    len: u32,
}

/// Whether an invocation of so many outputs keeps the totals of so many terms in memory, in tiles that are all whole and along one line.
pub(crate) fn are_long(outputs: u32, terms: u32) -> bool {
    outputs > IN_REGISTERS && outputs.is_multiple_of(BLOCK) && terms > FEW_CHAINS * CHUNK
}

/// Whether totals wait in memory.
pub(super) fn wait_in_memory(p: &Product<'_>) -> bool {
    let Sizes { bm, bn, bk, rows, cols, .. } = p.s;
    let whole = is_covered(p.spec.m, bm) && is_covered(p.spec.n, bn) && !p.path.has_outer();
    whole && p.path.known_tiles().is_some_and(|n| are_long(rows * cols, n * bk))
}

impl Totals {
    /// Zeros.
    pub(super) fn new(cx: &mut Emit<'_>, s: Sizes) -> Totals {
        let len = s.rows * s.cols / BLOCK;
        let blocks = cx.asm.own_blocks(len + 1);
        let (group, one) = (cx.asm.workgroup_index(), cx.asm.u32(1));
        let totals = Totals { blocks, first: cx.asm.and(group, one), len };
        let zero = zero(cx, Ty::F32);
        (0..len).for_each(|i| totals.set(cx, i, [zero; BLOCK as usize]));
        totals
    }

    /// Adds the sums of a chain.
    pub(super) fn add(&self, cx: &mut Emit<'_>, chain: &[Id]) {
        let (fours, _) = chain.as_chunks::<{ BLOCK as usize }>();
        for (i, part) in (0u32..).zip(fours) {
            let total = self.get(cx, i);
            let sum = std::array::from_fn(|e| cx.asm.fadd(total[e], part[e]));
            self.set(cx, i, sum);
        }
    }

    /// All of them.
    pub(super) fn all(&self, cx: &mut Emit<'_>) -> Vec<Id> {
        (0..self.len).flat_map(|i| self.get(cx, i)).collect()
    }

    fn place(&self, cx: &mut Emit<'_>, i: u32) -> Id {
        let i = cx.asm.u32(i);
        cx.asm.iadd(self.first, i)
    }

    fn get(&self, cx: &mut Emit<'_>, i: u32) -> [Id; BLOCK as usize] {
        let at = self.place(cx, i);
        cx.asm.load_own(self.blocks, at)
    }

    fn set(&self, cx: &mut Emit<'_>, i: u32, total: [Id; BLOCK as usize]) {
        let at = self.place(cx, i);
        cx.asm.store_own(self.blocks, at, total);
    }
}
