//! Which invocation holds which element of a cooperative matrix: a kernel that tells, and what its answer means.
//!
//! A matrix of its own element numbers is loaded as any other, and each invocation writes down what it got.

use crate::asm::{Asm, Blocks, Id, Lines, MatrixUse, St};
use crate::dtype::{DType, Storage, Ty};
use crate::emit_expr::Emit;
use crate::expr::Exprs;
use crate::spec::{Access, Grid, Interface, InterfaceForm, Kernel, Operand, Spread};

/// Part of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Left operand, m × k.
    Left,
    /// Right operand, k × n.
    Right,
    /// Sums, m × n, in f32.
    Sum,
}

/// A kind of matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fragment {
    /// Part of a product.
    pub part: Part,
    /// Element type: F16 or BF16, or F32 for sums.
    pub elem: DType,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
    /// Invocations of a subgroup.
    pub subgroup: u32,
}

impl Fragment {
    /// Elements of an invocation.
    pub const fn components(&self) -> u32 {
        self.rows * self.columns / self.subgroup
    }

    /// What is asked for: whole numbers of elements, each of which has a number exact in bf16.
    fn is_askable(&self) -> bool {
        let n = self.rows * self.columns;
        self.subgroup > 0 && n > 0 && n <= 256 && n.is_multiple_of(self.subgroup) && self.columns.is_multiple_of(8)
    }

    /// The kernel that tells: one workgroup of one subgroup; operand 0 gets an f32 per component and invocation, that of invocation `l` and
    /// component `c` at `c · subgroup + l`: the element's number `row · columns + column`. None for matrices of more than 256 elements.
    pub fn kernel(&self) -> Option<Kernel> {
        self.is_askable().then(|| build(self))
    }

    /// What the kernel's answer says; none where no sum of bits says it.
    pub fn spread(&self, answer: &[f32]) -> Option<Spread> {
        let at = |lane: u32, component: u32| {
            let number = answer.get((component * self.subgroup + lane) as usize).map_or(0, |v| *v as u32);
            (number / self.columns, number % self.columns)
        };
        Spread::find(self.subgroup, self.components(), at)
    }
}

fn build(f: &Fragment) -> Kernel {
    let (mut exprs, operand) = (
        Exprs::new(),
        Operand { dtype: DType::F32, storage: Storage::Native, access: Access::Write, base: 0, via_table: false },
    );
    exprs.arg(0, Ty::F32);
    let interface = Interface { operands: vec![operand], n_bases: 1, symbols: false };
    let mut cx = Emit::new(&exprs, &interface, &[], InterfaceForm::Addresses.into(), f.subgroup);
    let per_block = if f.elem == DType::F32 { 4 } else { 8 };
    let blocks = cx.asm.shared_blocks(f.rows * f.columns / per_block);
    let lane = cx.asm.subgroup_lane(f.subgroup);
    number_elements(&mut cx, (f.elem, f.rows * f.columns), blocks, (lane, f.subgroup));
    cx.asm.barrier();
    let part = match f.part {
        Part::Left => MatrixUse::A,
        Part::Right => MatrixUse::B,
        Part::Sum => MatrixUse::Sum,
    };
    let ty = cx.asm.matrix_type(f.elem, (f.rows, f.columns), part);
    let (first, register) = (cx.asm.u32(0), cx.asm.matrix_register(ty));
    let matrix = cx.asm.matrix_load(ty, blocks, Lines { first, pitch: f.columns / per_block, rows: true });
    cx.asm.set_variable(register, matrix);
    for component in 0..f.components() {
        let value = cx.asm.component(register, f.elem, component);
        let line = cx.asm.u32(component * f.subgroup);
        let at = cx.asm.iadd(line, lane);
        cx.store(0, at, value);
    }
    super::kernel(cx, Grid::linear(vec![]))
}

/// Numbers `count` elements in shared memory from its start: an invocation writes every `step`-th block from `first` on.
pub(super) fn number_elements(
    cx: &mut Emit<'_>,
    (elem, count): (DType, u32),
    blocks: Blocks,
    (first, step): (Id, u32),
) {
    let per_block = if elem == DType::F32 { 4 } else { 8 };
    let (count, step) = (cx.asm.u32(count / per_block), cx.asm.u32(step));
    cx.loop_step((first, count, step), &[], |cx, block, _| {
        let size = cx.asm.u32(per_block);
        let first = cx.asm.imul(block, size);
        let numbers: Vec<Id> = (0..per_block).map(|e| number(&mut cx.asm, first, e)).collect();
        let words: Vec<Id> = match elem {
            DType::F32 => numbers.iter().map(|&v| cx.asm.bitcast(St::U32, v)).collect(),
            _ => numbers.chunks(2).map(|pair| cx.asm.pack_halves(elem, pair[0], pair[1])).collect(),
        };
        let value = cx.asm.block_of([words[0], words[1], words[2], words[3]]);
        cx.asm.store_block(blocks, block, value);
        vec![]
    });
}

fn number(asm: &mut Asm, first: Id, offset: u32) -> Id {
    let offset = asm.u32(offset);
    let at = asm.iadd(first, offset);
    asm.uint_to_float(St::F32, at)
}
