//! Cooperative matrices (SPV_KHR_cooperative_matrix) of subgroup scope, and the workgroup memory of 16-byte blocks that they load from.
//!
//! Which invocation holds which element of a matrix is the driver's secret: elements enter and leave through memory. Blocks are four words
//! whatever they stand for, so that one array serves halves on the way in and f32 on the way out.

use super::{Asm, Id, St};
use crate::dtype::DType;
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{
    BuiltIn, Capability, CooperativeMatrixLayout, CooperativeMatrixUse, FPEncoding, MemoryAccess, MemorySemantics, Op,
    Scope, StorageClass,
};

/// Part that a matrix plays in a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MatrixUse {
    /// Left operand, m × k.
    A,
    /// Right operand, k × n.
    B,
    /// Sum and addend, m × n.
    Sum,
}

impl MatrixUse {
    const fn code(self) -> CooperativeMatrixUse {
        match self {
            MatrixUse::A => CooperativeMatrixUse::MatrixAKHR,
            MatrixUse::B => CooperativeMatrixUse::MatrixBKHR,
            MatrixUse::Sum => CooperativeMatrixUse::MatrixAccumulatorKHR,
        }
    }
}

/// How a matrix lies in an array of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lines {
    /// Block of its first element.
    pub(crate) first: Id,
    /// Blocks from one line to the next.
    pub(crate) pitch: u32,
    /// Lines are rows, else columns.
    pub(crate) rows: bool,
}

/// A workgroup array of 16-byte blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks {
    var: Id,
}

impl Asm {
    /// The type of a matrix of `rows` × `cols` elements (`F16`, `BF16` or `F32`); declares what it needs.
    pub(crate) fn matrix_type(&mut self, elem: DType, (rows, cols): (u32, u32), part: MatrixUse) -> Id {
        self.use_vulkan_memory_model();
        self.require(Capability::CooperativeMatrixKHR);
        self.extensions.insert("SPV_KHR_cooperative_matrix");
        self.needs.cooperative_matrix = true;
        let element = match elem {
            DType::BF16 => self.type_bfloat16(),
            DType::F16 => self.type_scalar(St::F16),
            _ => self.type_scalar(St::F32),
        };
        let [scope, rows, cols, part] = [Scope::Subgroup as u32, rows, cols, part.code() as u32].map(|v| self.u32(v));
        let operands = [element, rows, cols, part].map(Operand::IdRef);
        let operands = vec![
            operands[0].clone(),
            Operand::IdScope(scope),
            operands[1].clone(),
            operands[2].clone(),
            operands[3].clone(),
        ];
        self.declare_once(Op::TypeCooperativeMatrixKHR, operands)
    }

    pub(super) fn type_bfloat16(&mut self) -> Id {
        self.require(Capability::BFloat16TypeKHR);
        self.require(Capability::BFloat16CooperativeMatrixKHR);
        self.extensions.insert("SPV_KHR_bfloat16");
        let operands = vec![Operand::LiteralBit32(16), Operand::FPEncoding(FPEncoding::BFloat16KHR)];
        self.declare_once(Op::TypeFloat, operands)
    }

    /// A type by its instruction, for types that have no key of their own.
    pub(super) fn declare_once(&mut self, op: Op, operands: Vec<Operand>) -> Id {
        let same = |i: &&Instruction| i.class.opcode == op && i.operands == operands;
        if let Some(id) = self.globals.iter().find(same).and_then(|i| i.result_id) {
            return id;
        }
        let id = self.fresh(St::Other, 0);
        self.globals.push(Instruction::new(op, None, Some(id), operands));
        id
    }

    /// A variable of the invocation that holds a matrix, all elements 0 at first. Matrices travel through loops in variables: that is what
    /// drivers see from every other compiler.
    pub(crate) fn matrix_variable(&mut self, ty: Id) -> Id {
        let ptr = self.type_pointer(StorageClass::Function, ty);
        let var = self.fresh(St::Other, ptr);
        let class = vec![Operand::StorageClass(StorageClass::Function)];
        let first = &mut self.blocks[0].instructions;
        first.insert(0, Instruction::new(Op::Variable, Some(ptr), Some(var), class));
        let zero = self.f32(0.0);
        let zeros = self.push(Op::CompositeConstruct, ty, vec![Operand::IdRef(zero)]);
        self.set_variable(var, zeros);
        var
    }

    /// The value of a variable of type `ty`.
    pub(crate) fn variable(&mut self, var: Id, ty: Id) -> Id {
        self.push(Op::Load, ty, vec![Operand::IdRef(var)])
    }

    /// Changes a variable.
    pub(crate) fn set_variable(&mut self, var: Id, value: Id) {
        self.push_void(Op::Store, vec![Operand::IdRef(var), Operand::IdRef(value)]);
    }

    /// Reads a matrix; uniform in the subgroup, like every operation on matrices.
    pub(crate) fn matrix_load(&mut self, ty: Id, from: Blocks, lines: Lines) -> Id {
        let at = self.block_pointer(from, lines.first);
        let operands = self.matrix_access(vec![Operand::IdRef(at)], lines);
        self.push(Op::CooperativeMatrixLoadKHR, ty, operands)
    }

    /// Writes a matrix.
    pub(crate) fn matrix_store(&mut self, matrix: Id, to: Blocks, lines: Lines) {
        let at = self.block_pointer(to, lines.first);
        let operands = self.matrix_access(vec![Operand::IdRef(at), Operand::IdRef(matrix)], lines);
        self.push_void(Op::CooperativeMatrixStoreKHR, operands);
    }

    fn matrix_access(&mut self, mut operands: Vec<Operand>, lines: Lines) -> Vec<Operand> {
        let (row, column) = (CooperativeMatrixLayout::RowMajorKHR, CooperativeMatrixLayout::ColumnMajorKHR);
        let [layout, pitch] = [if lines.rows { row } else { column } as u32, lines.pitch].map(|v| self.u32(v));
        operands.extend([Operand::IdRef(layout), Operand::IdRef(pitch)]);
        operands.extend(self.shared_access());
        operands
    }

    /// `a·b + sum`, in the precision of the sum.
    pub(crate) fn matrix_mul_add(&mut self, a: Id, b: Id, sum: Id) -> Id {
        self.push(Op::CooperativeMatrixMulAddKHR, self.type_of(sum), [a, b, sum].map(Operand::IdRef).to_vec())
    }

    /// Number of the subgroup in its workgroup. The pipeline must demand full subgroups of `size`.
    pub(crate) fn subgroup_index(&mut self, size: u32) -> Id {
        self.subgroup_input(BuiltIn::SubgroupId, size)
    }

    /// Number of the invocation in its subgroup.
    pub(crate) fn subgroup_lane(&mut self, size: u32) -> Id {
        self.subgroup_input(BuiltIn::SubgroupLocalInvocationId, size)
    }

    fn subgroup_input(&mut self, builtin: BuiltIn, size: u32) -> Id {
        self.require(Capability::GroupNonUniform);
        self.needs.subgroup = size;
        let var = self.input(builtin, 1);
        let ty = self.type_scalar(St::U32);
        self.push(Op::Load, ty, vec![Operand::IdRef(var)])
    }

    /// Barrier of a subgroup that orders workgroup memory.
    pub(crate) fn subgroup_barrier(&mut self) {
        self.barrier_of(Scope::Subgroup);
    }

    /// Declares `len` blocks of workgroup memory.
    pub(crate) fn shared_blocks(&mut self, len: u32) -> Blocks {
        let block = self.type_vector(St::U32, 4);
        let array = self.type_array(block, len);
        let var = self.global_variable(StorageClass::Workgroup, array);
        self.shared_bytes += len * 16;
        Blocks { var }
    }

    /// In the Vulkan memory model, accesses are private to the invocation unless they say otherwise.
    pub(super) fn shared_access(&self) -> Option<Operand> {
        self.vulkan_memory.then_some(Operand::MemoryAccess(MemoryAccess::NON_PRIVATE_POINTER))
    }

    pub(super) fn block_pointer(&mut self, blocks: Blocks, index: Id) -> Id {
        let block = self.type_vector(St::U32, 4);
        let ptr = self.type_pointer(StorageClass::Workgroup, block);
        self.push(Op::AccessChain, ptr, vec![Operand::IdRef(blocks.var), Operand::IdRef(index)])
    }

    /// Writes a block.
    pub(crate) fn store_block(&mut self, blocks: Blocks, index: Id, value: Id) {
        let at = self.block_pointer(blocks, index);
        let mut operands = vec![Operand::IdRef(at), Operand::IdRef(value)];
        operands.extend(self.shared_access());
        self.push_void(Op::Store, operands);
    }

    fn word_pointer(&mut self, blocks: Blocks, index: Id, word: Id) -> Id {
        let scalar = self.type_scalar(St::U32);
        let ptr = self.type_pointer(StorageClass::Workgroup, scalar);
        let chain = [blocks.var, index, word].map(Operand::IdRef).to_vec();
        self.push(Op::AccessChain, ptr, chain)
    }

    /// Writes word `word` of a block, an f32.
    pub(crate) fn store_block_f32(&mut self, blocks: Blocks, index: Id, word: Id, value: Id) {
        let bits = self.bitcast(St::U32, value);
        let at = self.word_pointer(blocks, index, word);
        let mut operands = vec![Operand::IdRef(at), Operand::IdRef(bits)];
        operands.extend(self.shared_access());
        self.push_void(Op::Store, operands);
    }

    /// Word `word` of a block, as f32.
    pub(crate) fn load_block_f32(&mut self, blocks: Blocks, index: Id, word: Id) -> Id {
        let scalar = self.type_scalar(St::U32);
        let at = self.word_pointer(blocks, index, word);
        let mut operands = vec![Operand::IdRef(at)];
        operands.extend(self.shared_access());
        let bits = self.push(Op::Load, scalar, operands);
        self.bitcast(St::F32, bits)
    }

    /// The words of a block, as f32.
    pub(crate) fn load_block_f32s(&mut self, blocks: Blocks, index: Id) -> [Id; 4] {
        let at = self.block_pointer(blocks, index);
        let ty = self.type_vector(St::U32, 4);
        let mut operands = vec![Operand::IdRef(at)];
        operands.extend(self.shared_access());
        let block = self.push(Op::Load, ty, operands);
        [0, 1, 2, 3].map(|word| {
            let bits = self.extract(block, word);
            self.bitcast(St::F32, bits)
        })
    }

    /// A block of zeros.
    pub(crate) fn zero_block(&mut self) -> Id {
        let zero = self.u32(0);
        self.block_of([zero; 4])
    }

    /// A block of four words.
    pub(crate) fn block_of(&mut self, words: [Id; 4]) -> Id {
        self.words(&words)
    }

    /// Words as a vector.
    pub(crate) fn words(&mut self, words: &[Id]) -> Id {
        let ty = self.type_vector(St::U32, words.len() as u32);
        self.push(Op::CompositeConstruct, ty, words.iter().map(|&w| Operand::IdRef(w)).collect())
    }

    /// An f32 as [`Asm::pack_halves`] may take it: where packing rounds by itself, it is left alone.
    pub(crate) fn rounded_half(&mut self, elem: DType, value: Id) -> Id {
        if elem == DType::BF16 { self.round_to(elem, value) } else { value }
    }

    /// Two f32 that are exact in `elem` (`F16` or `BF16`) as one word, the first in its low half. Others are rounded, nearest even, to `F16`, and cut
    /// to `BF16`.
    pub(crate) fn pack_halves(&mut self, elem: DType, low: Id, high: Id) -> Id {
        if elem == DType::BF16 {
            let [low, high] = [low, high].map(|v| self.bitcast(St::U32, v));
            let (sixteen, mask) = (self.u32(16), self.u32(0xffff_0000));
            let low = self.shr(low, sixteen);
            let high = self.and(high, mask);
            return self.or(low, high);
        }
        let half = self.type_scalar(St::F16);
        let [low, high] = [low, high].map(|v| self.push(Op::FConvert, half, vec![Operand::IdRef(v)]));
        let pair = self.type_vector(St::F16, 2);
        let pair = self.push(Op::CompositeConstruct, pair, vec![Operand::IdRef(low), Operand::IdRef(high)]);
        let word = self.type_scalar(St::U32);
        self.push(Op::Bitcast, word, vec![Operand::IdRef(pair)])
    }

    /// A barrier of `scope` over execution and workgroup memory.
    pub(super) fn barrier_of(&mut self, scope: Scope) {
        let scope = self.u32(scope as u32);
        let mut bits = MemorySemantics::ACQUIRE_RELEASE | MemorySemantics::WORKGROUP_MEMORY;
        if self.vulkan_memory {
            bits |= MemorySemantics::MAKE_AVAILABLE | MemorySemantics::MAKE_VISIBLE;
        }
        let semantics = self.u32(bits.bits());
        let operands = vec![Operand::IdScope(scope), Operand::IdScope(scope), Operand::IdMemorySemantics(semantics)];
        self.push_void(Op::ControlBarrier, operands);
    }
}
