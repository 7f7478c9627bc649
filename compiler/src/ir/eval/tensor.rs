//! Host tensors of the interpreter: floats as f64, integers and bools as i64, row-major.

use super::Precision;
use crate::ir::ty::DType;
use half::{bf16, f16};

/// Elements. Float element types use `Float`, integers and bool (0 or 1) use `Int`.
#[derive(Debug, Clone, PartialEq)]
pub enum Data {
    /// Floats.
    Float(Vec<f64>),
    /// Integers and bools.
    Int(Vec<i64>),
}

/// A tensor, contiguous and row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// `shape.product()` elements.
    pub data: Data,
}

impl Data {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Data::Float(v) => v.len(),
            Data::Int(v) => v.len(),
        }
    }

    /// True without elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements at the given offsets.
    pub(super) fn pick(&self, offsets: &[usize]) -> Data {
        match self {
            Data::Float(v) => Data::Float(offsets.iter().map(|&o| v[o]).collect()),
            Data::Int(v) => Data::Int(offsets.iter().map(|&o| v[o]).collect()),
        }
    }

    /// As doubles.
    pub(super) fn floats(&self) -> Vec<f64> {
        match self {
            Data::Float(v) => v.clone(),
            Data::Int(v) => v.iter().map(|&x| x as f64).collect(),
        }
    }
}

impl Tensor {
    /// The first element of an integer or bool tensor.
    pub fn first_int(&self) -> Option<i64> {
        match &self.data {
            Data::Int(v) => v.first().copied(),
            Data::Float(_) => None,
        }
    }

    /// Floats (rounded to the element type) or integers from doubles; integers truncate.
    ///
    /// # Panics
    /// When the number of elements does not fit the shape.
    pub fn from_f64(dtype: DType, shape: &[usize], values: Vec<f64>) -> Tensor {
        let data = if dtype.is_float() {
            Data::Float(values)
        } else {
            Data::Int(values.into_iter().map(|v| v as i64).collect())
        };
        Tensor::checked(dtype, shape, data)
    }

    /// Integers (wrapped to the element type) or floats from integers.
    ///
    /// # Panics
    /// When the number of elements does not fit the shape.
    pub fn from_i64(dtype: DType, shape: &[usize], values: Vec<i64>) -> Tensor {
        let data = if dtype.is_float() {
            Data::Float(values.into_iter().map(|v| v as f64).collect())
        } else {
            Data::Int(values)
        };
        Tensor::checked(dtype, shape, data)
    }

    fn checked(dtype: DType, shape: &[usize], data: Data) -> Tensor {
        assert_eq!(data.len(), shape.iter().product::<usize>(), "one element per coordinate of {shape:?}");
        let mut t = Tensor { dtype, shape: shape.to_vec(), data };
        round_tensor(&mut t, Precision::Working);
        t
    }

    /// Reads native little-endian storage; `None` if the length does not fit.
    pub fn from_bytes(dtype: DType, shape: Vec<usize>, bytes: &[u8]) -> Option<Tensor> {
        let n: usize = shape.iter().product();
        if bytes.len() != n * dtype.size_bytes() as usize {
            return None;
        }
        let data = match dtype {
            DType::Bool => Data::Int(bytes.iter().map(|&b| i64::from(b != 0)).collect()),
            DType::U8 => Data::Int(bytes.iter().map(|&b| i64::from(b)).collect()),
            DType::I8 => Data::Int(words(bytes, |b: [u8; 1]| i64::from(i8::from_le_bytes(b)))),
            DType::I16 => Data::Int(words(bytes, |b: [u8; 2]| i64::from(i16::from_le_bytes(b)))),
            DType::I32 => Data::Int(words(bytes, |b: [u8; 4]| i64::from(i32::from_le_bytes(b)))),
            DType::I64 => Data::Int(words(bytes, i64::from_le_bytes)),
            DType::F16 => Data::Float(words(bytes, |b: [u8; 2]| f16::from_le_bytes(b).to_f64())),
            DType::BF16 => Data::Float(words(bytes, |b: [u8; 2]| bf16::from_le_bytes(b).to_f64())),
            DType::F32 => Data::Float(words(bytes, |b: [u8; 4]| f64::from(f32::from_le_bytes(b)))),
            DType::F64 => Data::Float(words(bytes, f64::from_le_bytes)),
        };
        Some(Tensor { dtype, shape, data })
    }

    /// The same numbers as another floating type, rounded.
    ///
    /// # Panics
    /// When it holds integers, or `dtype` is one.
    pub fn converted(&self, dtype: DType) -> Tensor {
        assert!(dtype.is_float(), "floats stay floats, not {dtype}");
        Tensor::from_f64(dtype, &self.shape, self.floats().to_vec())
    }

    /// Writes native little-endian storage.
    pub fn to_bytes(&self) -> Vec<u8> {
        match &self.data {
            Data::Float(v) => float_bytes(self.dtype, v),
            Data::Int(v) => int_bytes(self.dtype, v),
        }
    }

    /// Number of elements.
    pub fn n_elems(&self) -> usize {
        self.data.len()
    }

    /// Elements of a float tensor.
    ///
    /// # Panics
    /// When it holds integers: callers know the element type.
    pub fn floats(&self) -> &[f64] {
        match &self.data {
            Data::Float(v) => v,
            Data::Int(_) => panic!("{} holds integers", describe(self.dtype, &self.shape)),
        }
    }

    /// Elements of an integer or bool tensor.
    ///
    /// # Panics
    /// When it holds floats.
    pub fn ints(&self) -> &[i64] {
        match &self.data {
            Data::Int(v) => v,
            Data::Float(_) => panic!("{} holds floats", describe(self.dtype, &self.shape)),
        }
    }
}

fn words<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&b| f(b)).collect()
}

fn float_bytes(dtype: DType, v: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F16 => v.iter().flat_map(|&x| f16_of(x).to_le_bytes()).collect(),
        DType::BF16 => v.iter().flat_map(|&x| bf16_of(x).to_le_bytes()).collect(),
        DType::F32 => v.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
        _ => v.iter().flat_map(|&x| x.to_le_bytes()).collect(),
    }
}

fn int_bytes(dtype: DType, v: &[i64]) -> Vec<u8> {
    match dtype {
        DType::Bool => v.iter().map(|&x| u8::from(x != 0)).collect(),
        DType::U8 | DType::I8 => v.iter().map(|&x| x as u8).collect(),
        DType::I16 => v.iter().flat_map(|&x| (x as i16).to_le_bytes()).collect(),
        DType::I32 => v.iter().flat_map(|&x| (x as i32).to_le_bytes()).collect(),
        _ => v.iter().flat_map(|&x| x.to_le_bytes()).collect(),
    }
}

/// `f32[2,3]`.
pub(super) fn describe(dtype: DType, shape: &[usize]) -> String {
    let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("{dtype}[{}]", dims.join(","))
}

// A kernel rounds twice on the way from a double: to f32 when the register is written, then to the half type.
fn f16_of(x: f64) -> f16 {
    f16::from_f32(x as f32)
}

fn bf16_of(x: f64) -> bf16 {
    bf16::from_f32(x as f32)
}

/// A float as its element type holds it.
pub(super) fn round_float(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::F16 => f16_of(x).to_f64(),
        DType::BF16 => bf16_of(x).to_f64(),
        DType::F32 => f64::from(x as f32),
        _ => x,
    }
}

/// An integer as its element type holds it: wrapped, or ≠ 0 for bool.
pub(super) fn wrap_int(dtype: DType, x: i64) -> i64 {
    match dtype {
        DType::Bool => i64::from(x != 0),
        DType::U8 => i64::from(x as u8),
        DType::I8 => i64::from(x as i8),
        DType::I16 => i64::from(x as i16),
        DType::I32 => i64::from(x as i32),
        _ => x,
    }
}

/// Rounds all elements to the element type.
pub(super) fn round_tensor(t: &mut Tensor, precision: Precision) {
    match &mut t.data {
        Data::Float(v) if precision == Precision::Working && t.dtype != DType::F64 => {
            v.iter_mut().for_each(|x| *x = round_float(t.dtype, *x));
        }
        Data::Int(v) if t.dtype != DType::I64 => v.iter_mut().for_each(|x| *x = wrap_int(t.dtype, *x)),
        Data::Float(_) | Data::Int(_) => {}
    }
}

/// Row-major strides.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for d in (0..shape.len().saturating_sub(1)).rev() {
        out[d] = out[d + 1] * shape[d + 1];
    }
    out
}

/// `base + Σ coord·stride` for every coordinate of `shape`, in row-major order.
pub(super) fn offsets(shape: &[usize], base: isize, strides: &[isize]) -> Vec<usize> {
    let n: usize = shape.iter().product();
    let mut out = Vec::with_capacity(n);
    if n == 0 {
        return out;
    }
    let Some((&inner, outer)) = shape.split_last() else { return vec![base as usize] };
    let step = strides[shape.len() - 1];
    let mut coord = vec![0usize; outer.len()];
    let mut at = base;
    loop {
        out.extend((0..inner as isize).map(|i| (at + i * step) as usize));
        let Some(d) = (0..outer.len()).rev().find(|&d| coord[d] + 1 < outer[d]) else { return out };
        for e in d + 1..outer.len() {
            at -= coord[e] as isize * strides[e];
            coord[e] = 0;
        }
        coord[d] += 1;
        at += strides[d];
    }
}

/// Strides that read a tensor of shape `from` at the coordinates of a larger, broadcast shape of the same rank.
pub(super) fn broadcast_strides(from: &[usize]) -> Vec<isize> {
    strides(from).iter().zip(from).map(|(&s, &d)| if d == 1 { 0 } else { s as isize }).collect()
}

/// A tensor seen as lines along one dimension: (lines before, length, elements between neighbours).
pub(super) fn lines(shape: &[usize], dim: usize) -> (usize, usize, usize) {
    (shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product())
}
