//! Matrices in variables, filled and read component by component.

use super::{Asm, Blocks, Id, St};
use crate::dtype::DType;
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Op, StorageClass};

impl Asm {
    /// A variable of the invocation that holds a matrix, without elements at first.
    pub(crate) fn matrix_register(&mut self, ty: Id) -> Id {
        let ptr = self.type_pointer(StorageClass::Function, ty);
        let var = self.fresh(St::Other, ptr);
        let class = vec![Operand::StorageClass(StorageClass::Function)];
        self.blocks[0].instructions.insert(0, Instruction::new(Op::Variable, Some(ptr), Some(var), class));
        var
    }

    fn component_pointer(&mut self, matrix: Id, elem: DType, component: u32) -> Id {
        let element = self.element_type(elem);
        let ptr = self.type_pointer(StorageClass::Function, element);
        let component = self.u32(component);
        self.push(Op::AccessChain, ptr, vec![Operand::IdRef(matrix), Operand::IdRef(component)])
    }

    /// Gives a component of a matrix variable a value of the element type.
    pub(crate) fn set_component(&mut self, matrix: Id, elem: DType, component: u32, value: Id) {
        let at = self.component_pointer(matrix, elem, component);
        self.push_void(Op::Store, vec![Operand::IdRef(at), Operand::IdRef(value)]);
    }

    /// A component of a matrix variable as f32.
    pub(crate) fn component(&mut self, matrix: Id, elem: DType, component: u32) -> Id {
        let at = self.component_pointer(matrix, elem, component);
        let element = self.element_type(elem);
        let value = self.push(Op::Load, element, vec![Operand::IdRef(at)]);
        if elem == DType::F32 {
            return value;
        }
        let float = self.type_scalar(St::F32);
        self.push(Op::FConvert, float, vec![Operand::IdRef(value)])
    }

    /// The halves of a word, the low one first, in the element type.
    pub(crate) fn halves_of(&mut self, elem: DType, word: Id) -> [Id; 2] {
        let element = self.element_type(elem);
        let pair = match elem {
            DType::BF16 => {
                let operands = vec![Operand::IdRef(element), Operand::LiteralBit32(2)];
                self.declare_once(Op::TypeVector, operands)
            }
            _ => self.type_vector(St::F16, 2),
        };
        let pair = self.push(Op::Bitcast, pair, vec![Operand::IdRef(word)]);
        [0, 1].map(|i| self.push(Op::CompositeExtract, element, vec![Operand::IdRef(pair), Operand::LiteralBit32(i)]))
    }

    /// A block of workgroup memory.
    pub(crate) fn load_block(&mut self, blocks: Blocks, index: Id) -> Id {
        let at = self.block_pointer(blocks, index);
        let ty = self.type_vector(St::U32, 4);
        let mut operands = vec![Operand::IdRef(at)];
        operands.extend(self.shared_access());
        self.push(Op::Load, ty, operands)
    }
}
