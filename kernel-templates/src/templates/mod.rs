//! One file per template: the loop nest, what it demands of a device, how it is emitted, and the plainest reference.

pub mod attention;
pub mod fft;
pub mod fragments;
pub mod map;
pub mod matmul;
pub mod recurrent;
pub mod row;
pub mod scan;
pub mod scatter;
pub mod sort;

mod combining;

use crate::asm::Id;
use crate::emit_expr::Emit;
use crate::spec::{Extent, Grid, GridFactor, Kernel};

impl Grid {
    /// Workgroups along x only.
    pub fn linear(factors: Vec<GridFactor>) -> Grid {
        Grid { dims: [factors, vec![], vec![]] }
    }
}

/// Ends a kernel.
fn kernel(cx: Emit<'_>, grid: Grid) -> Kernel {
    let finished = cx.finish();
    Kernel { words: finished.words, grid, shared_bytes: finished.shared_bytes, needs: finished.needs }
}

impl Emit<'_> {
    /// Number of the invocation among all workgroups of `wg` invocations.
    fn global_index(&mut self, wg: u32) -> Id {
        let group = self.asm.workgroup_index();
        let local = self.asm.local_index();
        let wg = self.asm.u32(wg);
        let first = self.asm.imul(group, wg);
        self.asm.iadd(first, local)
    }

    /// Returns where `index` is beyond the product of `extents`.
    fn return_beyond(&mut self, index: Id, extents: &[Extent]) {
        let total = self.product(extents);
        let beyond = self.asm.ule(total, index);
        self.asm.return_if(beyond);
    }
}
