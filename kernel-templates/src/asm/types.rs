//! Types and constants of a module, each declared once.

use super::{Asm, Id};
use crate::dtype::Ty;
use crate::spec::Int64;
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Capability, Decoration, Op, StorageClass};

/// Scalar types of values. 32-bit and 64-bit integers carry no sign: operations do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum St {
    /// Not a scalar: a vector, a pointer, a label.
    #[default]
    Other,
    /// A truth value.
    Bool,
    /// 8-bit integer; only loaded, stored and converted.
    U8,
    /// 16-bit integer; only loaded, stored and converted.
    U16,
    /// 32-bit integer.
    U32,
    /// 64-bit integer; on devices without, a `uvec2` of its low and its high word.
    U64,
    /// binary16; only loaded, stored and converted.
    F16,
    /// binary32.
    F32,
    /// binary64.
    F64,
}

/// What is known about an id.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ValueInfo {
    /// Scalar type of a value; for a type id, the scalar that it declares.
    pub(super) st: St,
    /// Type id of a value.
    pub(super) type_id: Id,
    /// Bits of a scalar constant.
    pub(super) bits: Option<u64>,
}

/// Types that are declared once. Decorated structs are made fresh instead.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TypeKey {
    Void,
    Function,
    Scalar(St),
    Vector(St, u32),
    Pointer(u32, Id),
    Array(Id, u32),
    Carry,
    Block(Id, u32),
}

impl St {
    /// Bytes in memory; 0 for what has no memory form.
    pub(crate) const fn size_bytes(self) -> u32 {
        match self {
            St::Other | St::Bool => 0,
            St::U8 => 1,
            St::U16 | St::F16 => 2,
            St::U32 | St::F32 => 4,
            St::U64 | St::F64 => 8,
        }
    }

    /// True for the types that float arithmetic takes.
    pub(crate) const fn is_float(self) -> bool {
        matches!(self, St::F32 | St::F64)
    }
}

impl From<Ty> for St {
    fn from(ty: Ty) -> St {
        match ty {
            Ty::Bool => St::Bool,
            Ty::I32 => St::U32,
            Ty::I64 => St::U64,
            Ty::F32 => St::F32,
            Ty::F64 => St::F64,
        }
    }
}

impl Asm {
    /// Scalar type of a value.
    pub(crate) fn st(&self, value: Id) -> St {
        self.values[value as usize].st
    }

    /// Bits of a scalar constant, if the value is one.
    pub(crate) fn const_bits(&self, value: Id) -> Option<u64> {
        self.values[value as usize].bits
    }

    pub(super) fn type_of(&self, value: Id) -> Id {
        self.values[value as usize].type_id
    }

    fn declare(&mut self, key: TypeKey, st: St, op: Op, operands: Vec<Operand>) -> Id {
        let id = self.fresh(st, 0);
        self.globals.push(Instruction::new(op, None, Some(id), operands));
        self.types.insert(key, id);
        id
    }

    pub(super) fn type_void(&mut self) -> Id {
        match self.types.get(&TypeKey::Void) {
            Some(&id) => id,
            None => self.declare(TypeKey::Void, St::Other, Op::TypeVoid, vec![]),
        }
    }

    pub(super) fn type_function_void(&mut self) -> Id {
        let void = self.void;
        self.declare(TypeKey::Function, St::Other, Op::TypeFunction, vec![Operand::IdRef(void)])
    }

    pub(super) fn type_scalar(&mut self, st: St) -> Id {
        if st == St::U64 && self.int64 == Int64::Words {
            return self.type_vector(St::U32, 2);
        }
        if let Some(&id) = self.types.get(&TypeKey::Scalar(st)) {
            return id;
        }
        self.require_scalar(st);
        let int = |bits| vec![Operand::LiteralBit32(bits), Operand::LiteralBit32(0)];
        let (op, operands) = match st {
            St::Bool => (Op::TypeBool, vec![]),
            St::U8 => (Op::TypeInt, int(8)),
            St::U16 => (Op::TypeInt, int(16)),
            St::U32 => (Op::TypeInt, int(32)),
            St::U64 => (Op::TypeInt, int(64)),
            St::F16 => (Op::TypeFloat, vec![Operand::LiteralBit32(16)]),
            St::F32 => (Op::TypeFloat, vec![Operand::LiteralBit32(32)]),
            St::F64 => (Op::TypeFloat, vec![Operand::LiteralBit32(64)]),
            St::Other => unreachable!("Other is no scalar"),
        };
        self.declare(TypeKey::Scalar(st), st, op, operands)
    }

    /// Declares the capabilities of a scalar type, and notes them as needs.
    fn require_scalar(&mut self, st: St) {
        match st {
            St::U8 => {
                self.needs.int8 = true;
                self.require(Capability::Int8);
                self.require(Capability::StorageBuffer8BitAccess);
            }
            St::U16 => {
                self.needs.int16 = true;
                self.require(Capability::Int16);
                self.require(Capability::StorageBuffer16BitAccess);
            }
            St::F16 => {
                self.needs.float16 = true;
                self.require(Capability::Float16);
                self.require(Capability::StorageBuffer16BitAccess);
                self.require(Capability::RoundingModeRTE);
            }
            St::U64 => {
                self.needs.int64 = true;
                self.require(Capability::Int64);
            }
            St::F64 => {
                self.needs.float64 = true;
                self.require(Capability::Float64);
            }
            St::Other | St::Bool | St::U32 | St::F32 => {}
        }
    }

    pub(super) fn type_vector(&mut self, st: St, width: u32) -> Id {
        if let Some(&id) = self.types.get(&TypeKey::Vector(st, width)) {
            return id;
        }
        let element = self.type_scalar(st);
        let operands = vec![Operand::IdRef(element), Operand::LiteralBit32(width)];
        // By words, two of them are a 64-bit integer, addresses included.
        let is_int64 = self.int64 == Int64::Words && (st, width) == (St::U32, 2);
        let declared = if is_int64 { St::U64 } else { St::Other };
        self.declare(TypeKey::Vector(st, width), declared, Op::TypeVector, operands)
    }

    pub(super) fn type_pointer(&mut self, class: StorageClass, pointee: Id) -> Id {
        let key = TypeKey::Pointer(class as u32, pointee);
        if let Some(&id) = self.types.get(&key) {
            return id;
        }
        let operands = vec![Operand::StorageClass(class), Operand::IdRef(pointee)];
        self.declare(key, St::Other, Op::TypePointer, operands)
    }

    /// An array without layout, for workgroup memory.
    pub(super) fn type_array(&mut self, element: Id, len: u32) -> Id {
        let key = TypeKey::Array(element, len);
        if let Some(&id) = self.types.get(&key) {
            return id;
        }
        let len = self.u32(len);
        self.declare(key, St::Other, Op::TypeArray, vec![Operand::IdRef(element), Operand::IdRef(len)])
    }

    /// The `(low, high)` pair of extended integer operations.
    pub(super) fn type_carry(&mut self) -> Id {
        if let Some(&id) = self.types.get(&TypeKey::Carry) {
            return id;
        }
        let word = self.type_scalar(St::U32);
        self.declare(TypeKey::Carry, St::Other, Op::TypeStruct, vec![Operand::IdRef(word), Operand::IdRef(word)])
    }

    /// `struct { element[] }`, decorated as a block of the given stride.
    pub(super) fn type_block(&mut self, element: Id, stride: u32) -> Id {
        let key = TypeKey::Block(element, stride);
        if let Some(&id) = self.types.get(&key) {
            return id;
        }
        let array = self.fresh(St::Other, 0);
        let operands = vec![Operand::IdRef(element)];
        self.globals.push(Instruction::new(Op::TypeRuntimeArray, None, Some(array), operands));
        self.decorate(array, Decoration::ArrayStride, &[stride]);
        let block = self.declare(key, St::Other, Op::TypeStruct, vec![Operand::IdRef(array)]);
        self.decorate(block, Decoration::Block, &[]);
        self.member_offset(block, 0, 0);
        block
    }

    pub(super) fn member_offset(&mut self, target: Id, member: u32, offset: u32) {
        let operands = vec![
            Operand::IdRef(target),
            Operand::LiteralBit32(member),
            Operand::Decoration(Decoration::Offset),
            Operand::LiteralBit32(offset),
        ];
        self.annotations.push(Instruction::new(Op::MemberDecorate, None, None, operands));
    }

    /// A push-constant struct of members with their byte offsets.
    pub(super) fn type_push_struct(&mut self, members: &[(Id, u32)]) -> Id {
        let id = self.fresh(St::Other, 0);
        let operands = members.iter().map(|&(ty, _)| Operand::IdRef(ty)).collect();
        self.globals.push(Instruction::new(Op::TypeStruct, None, Some(id), operands));
        self.decorate(id, Decoration::Block, &[]);
        for (i, &(_, offset)) in members.iter().enumerate() {
            self.member_offset(id, i as u32, offset);
        }
        id
    }

    /// A scalar constant by its bits.
    pub(crate) fn constant(&mut self, st: St, bits: u64) -> Id {
        if let Some(&id) = self.consts.get(&(st, bits)) {
            return id;
        }
        let ty = self.type_scalar(st);
        let by_words = st == St::U64 && self.int64 == Int64::Words;
        let words = by_words.then(|| [self.u32(bits as u32), self.u32((bits >> 32) as u32)]);
        let id = self.fresh(st, ty);
        self.values[id as usize].bits = Some(bits);
        let (op, operands) = match st {
            _ if let Some(words) = words => (Op::ConstantComposite, words.map(Operand::IdRef).to_vec()),
            St::Bool => (if bits != 0 { Op::ConstantTrue } else { Op::ConstantFalse }, vec![]),
            St::U64 | St::F64 => (Op::Constant, vec![Operand::LiteralBit64(bits)]),
            _ => (Op::Constant, vec![Operand::LiteralBit32(bits as u32)]),
        };
        self.globals.push(Instruction::new(op, Some(ty), Some(id), operands));
        self.consts.insert((st, bits), id);
        id
    }

    /// A 32-bit integer constant.
    pub(crate) fn u32(&mut self, v: u32) -> Id {
        self.constant(St::U32, u64::from(v))
    }

    /// A truth value.
    pub(crate) fn bool(&mut self, v: bool) -> Id {
        self.constant(St::Bool, u64::from(v))
    }

    /// An f32 constant.
    pub(crate) fn f32(&mut self, v: f32) -> Id {
        self.constant(St::F32, u64::from(v.to_bits()))
    }

    /// A float constant of type `st`, rounded from a double.
    pub(crate) fn float(&mut self, st: St, v: f64) -> Id {
        match st {
            St::F64 => self.constant(St::F64, v.to_bits()),
            _ => self.f32(v as f32),
        }
    }

    /// An integer constant of type `st`.
    pub(crate) fn int(&mut self, st: St, v: i64) -> Id {
        match st {
            St::U64 => self.constant(St::U64, v as u64),
            _ => self.u32(v as u32),
        }
    }
}
