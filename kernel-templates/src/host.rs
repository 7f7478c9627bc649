//! Operands on the host: bytes as a kernel sees them, read and written by element.

use crate::dtype::{DType, Storage};
use crate::eval::{Env, Value};
use crate::spec::Extent;

/// Bytes of one operand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostBuffer {
    /// Element type.
    pub dtype: DType,
    /// How elements lie in memory.
    pub storage: Storage,
    /// The bytes, little-endian.
    pub bytes: Vec<u8>,
}

/// Bytes of one element in a storage.
pub const fn element_bytes(dtype: DType, storage: Storage) -> usize {
    match (storage, dtype) {
        (Storage::Native, _) => dtype.size_bytes() as usize,
        (Storage::Word, DType::I64 | DType::F64) => 8,
        (Storage::Word, _) => 4,
    }
}

impl HostBuffer {
    /// `elements` zeros.
    pub fn zeros(dtype: DType, storage: Storage, elements: usize) -> HostBuffer {
        HostBuffer { dtype, storage, bytes: vec![0; elements * element_bytes(dtype, storage)] }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / element_bytes(self.dtype, self.storage)
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn at<const N: usize>(&self, index: usize) -> [u8; N] {
        self.bytes[index * N..][..N].try_into().expect("the slice has N bytes")
    }

    /// Element in its register type.
    ///
    /// # Panics
    /// Beyond the end.
    pub fn load(&self, i: usize) -> Value {
        match (self.storage, self.dtype) {
            (_, DType::F64) => Value::F64(f64::from_le_bytes(self.at(i))),
            (_, DType::F32) | (Storage::Word, DType::F16 | DType::BF16) => Value::F32(f32::from_le_bytes(self.at(i))),
            (Storage::Word, DType::Bool) => Value::Bool(i32::from_le_bytes(self.at(i)) != 0),
            (_, DType::I64) => Value::I64(i64::from_le_bytes(self.at(i))),
            (_, DType::I32) | (Storage::Word, _) => Value::I32(i32::from_le_bytes(self.at(i))),
            (_, DType::I16) => Value::I32(i16::from_le_bytes(self.at(i)).into()),
            (_, DType::I8) => Value::I32((self.bytes[i] as i8).into()),
            (_, DType::U8) => Value::I32(self.bytes[i].into()),
            (_, DType::Bool) => Value::Bool(self.bytes[i] != 0),
            (_, DType::F16) => Value::F32(half::f16::from_le_bytes(self.at(i)).to_f32()),
            (_, DType::BF16) => Value::F32(half::bf16::from_le_bytes(self.at(i)).to_f32()),
        }
    }

    /// Writes an element, rounded to the element type.
    ///
    /// # Panics
    /// Beyond the end, or when the value is not of the operand's register type.
    pub fn store(&mut self, i: usize, value: Value) {
        let value = value.round(self.dtype);
        match (self.storage, self.dtype, value) {
            (Storage::Native, DType::F16, Value::F32(v)) => self.put(i, half::f16::from_f32(v).to_le_bytes()),
            (Storage::Native, DType::BF16, Value::F32(v)) => self.put(i, half::bf16::from_f32(v).to_le_bytes()),
            (Storage::Native, DType::I16, Value::I32(v)) => self.put(i, (v as i16).to_le_bytes()),
            (Storage::Native, DType::I8 | DType::U8, Value::I32(v)) => self.put(i, [v as u8]),
            (Storage::Native, DType::Bool, Value::Bool(v)) => self.put(i, [u8::from(v)]),
            (Storage::Word, DType::Bool, Value::Bool(v)) => self.put(i, u32::from(v).to_le_bytes()),
            (_, _, Value::F32(v)) => self.put(i, v.to_le_bytes()),
            (_, _, Value::F64(v)) => self.put(i, v.to_le_bytes()),
            (_, _, Value::I32(v)) => self.put(i, v.to_le_bytes()),
            (_, _, Value::I64(v)) => self.put(i, v.to_le_bytes()),
            (_, dtype, value) => panic!("{value:?} stored as {dtype}"),
        }
    }

    fn put<const N: usize>(&mut self, index: usize, bytes: [u8; N]) {
        self.bytes[index * N..][..N].copy_from_slice(&bytes);
    }
}

/// All that a kernel sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Operands, in the interface's order.
    pub operands: Vec<HostBuffer>,
    /// Symbol table.
    pub symbols: Vec<u32>,
}

impl Memory {
    /// A size.
    pub fn extent(&self, extent: Extent) -> u32 {
        match extent {
            Extent::Const(n) => n,
            Extent::Sym(word) => self.symbols[usize::from(word)],
        }
    }

    /// Sizes.
    pub fn extents(&self, extents: &[Extent]) -> Vec<u32> {
        extents.iter().map(|&e| self.extent(e)).collect()
    }
}

/// One point of a kernel's iteration space.
pub(crate) struct Point<'a> {
    /// Operands and symbols.
    pub(crate) memory: &'a Memory,
    /// Coordinates.
    pub(crate) axes: &'a [i32],
    /// Bound scalars.
    pub(crate) args: &'a [Value],
}

impl Env for Point<'_> {
    fn axis(&self, k: u8) -> i32 {
        self.axes[usize::from(k)]
    }
    fn arg(&self, i: u16) -> Value {
        self.args[usize::from(i)]
    }
    fn sym(&self, word: u16) -> i32 {
        self.memory.symbols[usize::from(word)] as i32
    }
    fn load(&self, operand: u16, index: &[i32]) -> Value {
        self.memory.operands[usize::from(operand)].load(index[0] as usize)
    }
}

/// Calls `visit` with every coordinate of a row-major space, in order; `axes[first..]` are the coordinates.
pub(crate) fn for_each_point(extents: &[u32], axes: &mut Vec<i32>, visit: &mut dyn FnMut(&mut Vec<i32>)) {
    let Some((&n, inner)) = extents.split_first() else {
        return visit(axes);
    };
    for i in 0..n {
        axes.push(i as i32);
        for_each_point(inner, axes, visit);
        axes.pop();
    }
}
