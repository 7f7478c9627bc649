//! The one list of element types: what a tensor holds, how it is stored, and in which register type it is computed.

use std::fmt;

/// Element type of a tensor, in PyTorch's sense. Complex tensors are pairs of real ones and have no entry here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 binary16; computed in f32, rounded when stored.
    F16,
    /// bfloat16; computed in f32, rounded (nearest even) when stored.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

/// Register type: what an expression computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ty {
    /// A truth value.
    Bool,
    /// 32-bit two's complement, wrapping. Indices are of this type.
    I32,
    /// 64-bit two's complement, wrapping. Devices without `shaderInt64` compute it by 32-bit words.
    I64,
    /// binary32.
    F32,
    /// binary64. Needs the device's `shaderFloat64`.
    F64,
}

/// How the elements of a tensor lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Storage {
    /// In the element type's own width.
    Native,
    /// One 32-bit word an element (bool, u8, i8, i16 as i32; f16, bf16 as f32), for devices without the small type. 64-bit types stay
    /// as they are.
    Word,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 10] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes of one element in native storage.
    pub const fn size_bytes(self) -> u32 {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// The register type in which elements are computed.
    pub const fn ty(self) -> Ty {
        match self {
            DType::Bool => Ty::Bool,
            DType::U8 | DType::I8 | DType::I16 | DType::I32 => Ty::I32,
            DType::I64 => Ty::I64,
            DType::F16 | DType::BF16 | DType::F32 => Ty::F32,
            DType::F64 => Ty::F64,
        }
    }

    /// True for the floating types.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// The word of the text form (`f32`, `i64`, …).
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    /// The inverse of [`DType::name`].
    pub fn parse(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl Ty {
    /// The word of the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Ty::Bool => "bool",
            Ty::I32 => "i32",
            Ty::I64 => "i64",
            Ty::F32 => "f32",
            Ty::F64 => "f64",
        }
    }

    /// True for `F32` and `F64`.
    pub const fn is_float(self) -> bool {
        matches!(self, Ty::F32 | Ty::F64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Ty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
