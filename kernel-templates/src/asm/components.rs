//! Components of cooperative matrices: the elements that an invocation holds, as scalars. Which ones those are is the driver's secret; matrices of
//! one type hold the same ones in the same places, and a matrix of indices tells which.

use super::{Asm, Id, St};
use crate::dtype::DType;
use rspirv::dr::Operand;
use rspirv::spirv::{Capability, Op, Scope};

impl Asm {
    /// The scalar type of a matrix's elements.
    pub(super) fn element_type(&mut self, elem: DType) -> Id {
        match elem {
            DType::BF16 => self.type_bfloat16(),
            DType::F16 => self.type_scalar(St::F16),
            _ => self.type_scalar(St::F32),
        }
    }

    /// The first `count` components of a matrix of `elem`, as f32.
    pub(crate) fn matrix_components(&mut self, matrix: Id, elem: DType, count: u32) -> Vec<Id> {
        let (element, single) = (self.element_type(elem), self.type_scalar(St::F32));
        (0..count)
            .map(|i| {
                let operands = vec![Operand::IdRef(matrix), Operand::LiteralBit32(i)];
                let value = self.push(Op::CompositeExtract, element, operands);
                if elem == DType::F32 { value } else { self.push(Op::FConvert, single, vec![Operand::IdRef(value)]) }
            })
            .collect()
    }

    /// A matrix of type `ty`, of `elem`, from all its components, f32 that are not negative and are rounded to it. NaN may become anything.
    pub(crate) fn matrix_of(&mut self, ty: Id, elem: DType, components: &[Id]) -> Id {
        let element = self.element_type(elem);
        let zero = self.push(Op::Undef, ty, vec![]);
        (0u32..).zip(components).fold(zero, |matrix, (i, &component)| {
            let component = match elem {
                DType::F32 => component,
                DType::BF16 => {
                    let component = self.nearest_bfloat16(component);
                    self.push(Op::FConvert, element, vec![Operand::IdRef(component)])
                }
                _ => self.push(Op::FConvert, element, vec![Operand::IdRef(component)]),
            };
            let operands = vec![Operand::IdRef(component), Operand::IdRef(matrix), Operand::LiteralBit32(i)];
            self.push(Op::CompositeInsert, ty, operands)
        })
    }

    /// The nearest bfloat16 to a number that is not negative: drivers convert by cutting off as well as by rounding.
    fn nearest_bfloat16(&mut self, value: Id) -> Id {
        let bits = self.bitcast(St::U32, value);
        let (half, mask) = (self.u32(0x8000), self.u32(0xffff_0000));
        let bits = self.iadd(bits, half);
        let bits = self.and(bits, mask);
        self.bitcast(St::F32, bits)
    }

    /// A sum of zeros.
    pub(crate) fn matrix_zero(&mut self, ty: Id) -> Id {
        let zero = self.f32(0.0);
        self.push(Op::CompositeConstruct, ty, vec![Operand::IdRef(zero)])
    }

    /// Whether `cond` holds for an invocation of the subgroup.
    pub(crate) fn subgroup_any(&mut self, cond: Id) -> Id {
        self.subgroup_vote(Op::GroupNonUniformAny, cond)
    }

    /// Whether `cond` holds for all invocations of the subgroup.
    pub(crate) fn subgroup_all(&mut self, cond: Id) -> Id {
        self.subgroup_vote(Op::GroupNonUniformAll, cond)
    }

    fn subgroup_vote(&mut self, op: Op, cond: Id) -> Id {
        self.require(Capability::GroupNonUniform);
        self.require(Capability::GroupNonUniformVote);
        let scope = self.u32(Scope::Subgroup as u32);
        let ty = self.type_scalar(St::Bool);
        self.push(op, ty, vec![Operand::IdScope(scope), Operand::IdRef(cond)])
    }
}
