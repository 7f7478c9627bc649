//! The weight table of a plan: which tensors the kernels read, each once, at offsets in chunks; and where their bytes come from.

use super::elem;
use crate::import::program::ScalarType;
use crate::import::weights::WeightView;
use crate::ir::{DType, Literal};
use crate::memory::ALIGNMENT;
use crate::report::{Code, Diagnostic};
use crate::schedule::layout::Order;
use half::slice::HalfFloatSliceExt;
use jvc_codegen::plan::{WeightTensor, Weights};
use jvc_codegen::weights::hash_weights;
use jvc_files::ContentHasher;
use jvc_kernels::dtype::Storage;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

/// Where a tensor's bytes come from.
#[derive(Debug, Clone)]
enum Source {
    /// Joined along the first dimension.
    Views(Vec<WeightView>),
    Literal(Arc<Vec<u8>>),
}

/// One tensor and how it is stored.
#[derive(Debug, Clone)]
struct Tensor {
    source: Source,
    dtype: DType,
    storage: Storage,
    shape: Vec<u64>,
    order: Order,
}

/// Tensors of all entry points, shared where name and bytes are equal.
#[derive(Debug, Clone, Default)]
pub struct WeightTable {
    tensors: Vec<Tensor>,
    layout: Weights,
    by_identity: BTreeMap<Identity, u32>,
    /// The latest tensor of a name.
    by_name: BTreeMap<String, u32>,
    max_chunk: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    dtype: DType,
    word: bool,
    shape: Vec<u64>,
    hash: u64,
    name: String,
}

impl WeightTable {
    /// An empty table with chunks of at most `max_chunk` bytes.
    pub fn new(max_chunk: u64) -> WeightTable {
        WeightTable { max_chunk, ..WeightTable::default() }
    }

    /// The place of a checkpoint tensor, or of several joined along the first dimension; `dtype` may be a half where the checkpoint has f32,
    /// which is rounded. A complex one is real with a trailing dimension of 2, as the rules see it.
    pub fn checkpoint(
        &mut self,
        name: &str,
        views: Vec<WeightView>,
        dtype: DType,
        (storage, order): (Storage, Order),
    ) -> Result<u32, Diagnostic> {
        let view = &views[0];
        if views.iter().any(|v| v.storage.is_none()) {
            return Err(Diagnostic::new(Code::MissingWeights, format!("{name} has no payload in the archive"))
                .with_help("give --weights FILE.safetensors, or --random-weights SEED for a benchmark"));
        }
        let mut shape: Vec<u64> = view.sizes.iter().map(|&s| s as u64).collect();
        if let Some(first) = shape.first_mut() {
            *first = views.iter().map(|v| v.sizes[0] as u64).sum();
        }
        if view.dtype.is_complex() {
            shape.push(2);
        }
        self.add(name, Tensor { source: Source::Views(views), dtype, storage, shape, order })
    }

    /// The place of a constant of the graph.
    pub fn literal(
        &mut self,
        name: &str,
        lit: &Literal,
        (storage, order): (Storage, Order),
    ) -> Result<u32, Diagnostic> {
        let shape = lit.ty.const_shape().expect("constants have literal shapes");
        let shape = shape.into_iter().map(|s| s as u64).collect();
        let source = Source::Literal(lit.bytes.clone());
        self.add(name, Tensor { source, dtype: lit.ty.dtype, storage, shape, order })
    }

    fn add(&mut self, name: &str, tensor: Tensor) -> Result<u32, Diagnostic> {
        // The very same bytes need not be looked at.
        let known = self.by_name.get(name).filter(|&&at| self.tensors[at as usize].is(&tensor));
        if let Some(&at) = known {
            return Ok(at);
        }
        let mut hasher = ContentHasher::default();
        hasher.update(&tensor.stored());
        let word = tensor.storage == Storage::Word;
        let (shape, hash) = (tensor.shape.clone(), hasher.finish());
        let identity = Identity { dtype: tensor.dtype, word, shape, hash, name: name.to_string() };
        if let Some(&at) = self.by_identity.get(&identity) {
            return Ok(at);
        }
        let n: u64 = identity.shape.iter().product();
        let bytes = n * if word { 4 } else { u64::from(tensor.dtype.size_bytes()) };
        let (chunk, offset) = self.reserve(name, bytes)?;
        let name = self.unique_name(name);
        let at = self.tensors.len() as u32;
        let shape = identity.shape.clone();
        self.layout.tensors.push(WeightTensor { name, elem: elem(tensor.dtype), shape, chunk, offset, bytes });
        self.tensors.push(tensor);
        self.by_name.insert(identity.name.clone(), at);
        self.by_identity.insert(identity, at);
        Ok(at)
    }

    /// Two checkpoints may use one name for different tensors.
    fn unique_name(&self, name: &str) -> String {
        let taken = |n: &str| self.layout.tensors.iter().any(|t| t.name == n);
        if !taken(name) {
            return name.to_string();
        }
        (2..).map(|i| format!("{name}#{i}")).find(|n| !taken(n)).expect("some number is free")
    }

    fn reserve(&mut self, name: &str, bytes: u64) -> Result<(u32, u64), Diagnostic> {
        let need = bytes.max(1).next_multiple_of(ALIGNMENT);
        if need > self.max_chunk {
            let text = format!("{name} has {bytes} bytes, the device's largest allocation is {}", self.max_chunk);
            return Err(Diagnostic::new(Code::Device, text));
        }
        let chunks = &mut self.layout.chunk_bytes;
        if chunks.last().is_none_or(|last| last + need > self.max_chunk) {
            chunks.push(0);
        }
        let last = chunks.last_mut().expect("a chunk was pushed");
        let offset = *last;
        *last += need;
        Ok((chunks.len() as u32 - 1, offset))
    }

    /// The layout so far; its content hash is still 0.
    pub fn layout(&self) -> &Weights {
        &self.layout
    }

    /// Bytes of a tensor as stored.
    pub fn bytes(&self, tensor: u32) -> Cow<'_, [u8]> {
        self.tensors[tensor as usize].stored()
    }

    /// Writes a tensor as stored: the filler of the weight-file writer.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn fill(&self, tensor: &WeightTensor, out: &mut dyn Write) -> io::Result<()> {
        let at = self.layout.tensors.iter().position(|t| t.name == tensor.name).expect("a tensor of this table");
        out.write_all(&self.bytes(at as u32))
    }

    /// Hash of the payload, for the weight file's header; 0 without weights.
    ///
    /// # Errors
    /// An inconsistent layout.
    pub fn content_hash(&self) -> Result<u64, jvc_codegen::weights::WeightError> {
        if self.tensors.is_empty() {
            return Ok(0);
        }
        hash_weights(&self.layout, &mut |t, out| self.fill(t, out))
    }

    /// Writes the part of a chunk that starts at `offset` into `out`: for uploads without a file.
    pub fn produce(&self, chunk: u32, offset: u64, out: &mut [u8]) {
        out.fill(0);
        let end = offset + out.len() as u64;
        for (i, t) in self.layout.tensors.iter().enumerate() {
            if t.chunk != chunk || t.offset >= end || t.offset + t.bytes <= offset {
                continue;
            }
            let bytes = self.bytes(i as u32);
            let (from, to) = (t.offset.max(offset), (t.offset + t.bytes).min(end));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - t.offset) as usize..(to - t.offset) as usize]);
        }
    }
}

impl Tensor {
    /// True for the same bytes of the same memory, stored alike.
    fn is(&self, other: &Tensor) -> bool {
        let same = match (&self.source, &other.source) {
            (Source::Views(a), Source::Views(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is(b)),
            (Source::Literal(a), Source::Literal(b)) => Arc::ptr_eq(a, b),
            (Source::Views(_), Source::Literal(_)) | (Source::Literal(_), Source::Views(_)) => false,
        };
        same && (self.dtype, self.storage, self.order) == (other.dtype, other.storage, other.order)
            && self.shape == other.shape
    }

    /// A checkpoint tensor in the element type of the graph.
    fn native<'v>(&self, view: &'v WeightView) -> Cow<'v, [u8]> {
        let whole = match view.contiguous_slice() {
            Some(slice) => Cow::Borrowed(slice),
            None => Cow::Owned(view.contiguous().expect("payload was checked")),
        };
        match self.dtype {
            DType::F16 | DType::BF16 if view.dtype == ScalarType::F32 => Cow::Owned(rounded(self.dtype, &whole)),
            _ => whole,
        }
    }

    fn stored(&self) -> Cow<'_, [u8]> {
        let native = match &self.source {
            Source::Literal(bytes) => Cow::Borrowed(bytes.as_slice()),
            Source::Views(views) => match &views[..] {
                [one] => self.native(one),
                _ => Cow::Owned(views.iter().map(|v| self.native(v)).collect::<Vec<_>>().concat()),
            },
        };
        let native = match self.order {
            Order::Rows => native,
            order => Cow::Owned(reordered(order, &self.shape, &native)),
        };
        match self.storage {
            Storage::Native => native,
            Storage::Word => Cow::Owned(widen(self.dtype, &native)),
        }
    }
}

/// Elements converted at a time.
const RUN: usize = 1024;

/// Floats as a half type, rounded to nearest even.
fn rounded(half: DType, floats: &[u8]) -> Vec<u8> {
    let mut out = vec![0; floats.len() / 2];
    // In runs: the conversion of a slice uses what the processor has for it.
    let (mut from, mut halves, mut brain) = ([0f32; RUN], [half::f16::ZERO; RUN], [half::bf16::ZERO; RUN]);
    for (run, to) in floats.as_chunks::<4>().0.chunks(RUN).zip(out.as_chunks_mut::<2>().0.chunks_mut(RUN)) {
        let n = run.len();
        from.iter_mut().zip(run).for_each(|(f, bytes)| *f = f32::from_le_bytes(*bytes));
        if half == DType::BF16 {
            brain[..n].convert_from_f32_slice(&from[..n]);
            to.iter_mut().zip(&brain).for_each(|(to, v)| *to = v.to_le_bytes());
        } else {
            halves[..n].convert_from_f32_slice(&from[..n]);
            to.iter_mut().zip(&halves).for_each(|(to, v)| *to = v.to_le_bytes());
        }
    }
    out
}

/// Row-major elements of a tensor of this shape in another order.
fn reordered(order: Order, shape: &[u64], rows: &[u8]) -> Vec<u8> {
    match order {
        Order::Rows => rows.to_vec(),
        Order::Fragments(f) => f.packed(rows, shape[1] as usize),
        Order::ChannelsLast => {
            let (channels, inner) = (shape[1] as usize, shape[2..].iter().product::<u64>() as usize);
            second_last(rows, shape[0] as usize, channels, inner)
        }
        Order::FirstLast => second_last(rows, 1, shape[0] as usize, shape[1..].iter().product::<u64>() as usize),
    }
}

/// Elements `[outer, second, inner]` as `[outer, inner, second]`.
fn second_last(rows: &[u8], outer: usize, second: usize, inner: usize) -> Vec<u8> {
    let size = rows.len() / (outer * second * inner).max(1);
    let mut out = Vec::with_capacity(rows.len());
    for block in rows.chunks_exact((second * inner * size).max(1)) {
        let places = (0..inner).flat_map(|i| (0..second).map(move |c| (c * inner + i) * size));
        places.for_each(|at| out.extend_from_slice(&block[at..at + size]));
    }
    out
}

/// Each element in a 32-bit word of its own, as `Storage::Word` says.
///
/// # Panics
/// On 64-bit elements, which are never kept so.
pub fn widen(dtype: DType, native: &[u8]) -> Vec<u8> {
    let size = dtype.size_bytes() as usize;
    native.chunks_exact(size).flat_map(|c| widen_element(dtype, c)).collect()
}

fn widen_element(dtype: DType, c: &[u8]) -> [u8; 4] {
    let two = || u16::from_le_bytes([c[0], c[1]]);
    match dtype {
        DType::Bool | DType::U8 => i32::from(c[0]).to_le_bytes(),
        DType::I8 => i32::from(c[0] as i8).to_le_bytes(),
        DType::I16 => i32::from(two() as i16).to_le_bytes(),
        DType::F16 => half::f16::from_bits(two()).to_f32().to_le_bytes(),
        DType::BF16 => half::bf16::from_bits(two()).to_f32().to_le_bytes(),
        DType::I32 | DType::F32 => [c[0], c[1], c[2], c[3]],
        DType::I64 | DType::F64 => unreachable!("{dtype} in words"),
    }
}

/// The inverse of [`widen`], for outputs.
///
/// # Panics
/// As [`widen`].
pub fn narrow(dtype: DType, words: &[u8]) -> Vec<u8> {
    words.chunks_exact(4).flat_map(|w| narrow_element(dtype, [w[0], w[1], w[2], w[3]])).collect()
}

fn narrow_element(dtype: DType, w: [u8; 4]) -> Vec<u8> {
    let (int, float) = (i32::from_le_bytes(w), f32::from_le_bytes(w));
    match dtype {
        DType::Bool | DType::U8 | DType::I8 => vec![int as u8],
        DType::I16 => (int as i16).to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(float).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f32(float).to_le_bytes().to_vec(),
        DType::I32 | DType::F32 => w.to_vec(),
        DType::I64 | DType::F64 => unreachable!("{dtype} in words"),
    }
}
