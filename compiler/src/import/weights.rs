//! Parameters, buffers and constants: strided views of bytes that stay in the mapped archive.

use super::program::ScalarType;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are mapped or owned, shared by all views of them.
#[derive(Clone)]
pub struct Storage {
    source: Source,
    range: Range<usize>,
}

#[derive(Clone)]
enum Source {
    Mapped(Arc<memmap2::Mmap>),
    Owned(Arc<Vec<u8>>),
}

/// A tensor of the checkpoint: a strided view of a storage. Sizes, strides and offset are in elements; the reader has checked that
/// every element lies inside the storage.
#[derive(Clone, Debug)]
pub struct WeightView {
    /// Element type.
    pub dtype: ScalarType,
    /// Sizes.
    pub sizes: Vec<i64>,
    /// Strides.
    pub strides: Vec<i64>,
    /// First element.
    pub offset: i64,
    /// The whole storage; `None` where the archive has no payload (compile then needs `--weights` or `--random-weights`).
    pub storage: Option<Storage>,
}

/// All tensors of a checkpoint, by name.
pub type WeightStore = BTreeMap<String, WeightView>;

impl WeightView {
    /// True for the same elements of the same memory.
    pub fn is(&self, other: &WeightView) -> bool {
        let same = match (&self.storage, &other.storage) {
            (Some(a), Some(b)) => a.is(b),
            (None, _) | (_, None) => false,
        };
        same && self.dtype == other.dtype
            && (&self.sizes, &self.strides, self.offset) == (&other.sizes, &other.strides, other.offset)
    }
}

impl Storage {
    /// True for the same range of the same memory.
    fn is(&self, other: &Storage) -> bool {
        let same = match (&self.source, &other.source) {
            (Source::Mapped(a), Source::Mapped(b)) => Arc::ptr_eq(a, b),
            (Source::Owned(a), Source::Owned(b)) => Arc::ptr_eq(a, b),
            (Source::Mapped(_), Source::Owned(_)) | (Source::Owned(_), Source::Mapped(_)) => false,
        };
        same && self.range == other.range
    }

    /// A range of a mapped file, which the caller has checked.
    pub fn mapped(map: Arc<memmap2::Mmap>, range: Range<usize>) -> Storage {
        Storage { source: Source::Mapped(map), range }
    }

    /// Owned bytes.
    pub fn owned(bytes: Vec<u8>) -> Storage {
        let range = 0..bytes.len();
        Storage { source: Source::Owned(Arc::new(bytes)), range }
    }

    /// A part of this storage, which the caller has checked.
    pub fn slice(&self, part: Range<usize>) -> Storage {
        let start = self.range.start;
        Storage { source: self.source.clone(), range: start + part.start..start + part.end }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        let all: &[u8] = match &self.source {
            Source::Mapped(m) => m,
            Source::Owned(v) => v,
        };
        &all[self.range.clone()]
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Storage({} bytes)", self.range.len())
    }
}

impl WeightView {
    /// Number of elements.
    pub fn n_elems(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// Bytes of all elements.
    pub fn n_bytes(&self) -> u64 {
        (self.n_elems() as u64).saturating_mul(self.dtype.size_bytes())
    }

    /// The elements in row-major order, little-endian; `None` without a payload.
    pub fn contiguous(&self) -> Option<Vec<u8>> {
        if let Some(slice) = self.contiguous_slice() {
            return Some(slice.to_vec());
        }
        let bytes = self.storage.as_ref()?.bytes();
        let size = self.dtype.size_bytes() as usize;
        let n = self.n_elems() as usize;
        let mut out = Vec::with_capacity(n * size);
        let mut at = vec![0i64; self.sizes.len()];
        for _ in 0..n {
            let elem = self.offset + at.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<i64>();
            let start = elem as usize * size;
            out.extend_from_slice(&bytes[start..start + size]);
            for d in (0..at.len()).rev() {
                at[d] += 1;
                if at[d] < self.sizes[d] {
                    break;
                }
                at[d] = 0;
            }
        }
        Some(out)
    }

    /// The elements as they lie, when they are contiguous: no copy.
    pub fn contiguous_slice(&self) -> Option<&[u8]> {
        let mut expect = 1;
        for (size, stride) in self.sizes.iter().zip(&self.strides).rev() {
            if *size != 1 && *stride != expect {
                return None;
            }
            expect *= size;
        }
        let bytes = self.storage.as_ref()?.bytes();
        let size = self.dtype.size_bytes() as usize;
        match self.n_elems() as usize {
            // Where an empty tensor starts is not checked.
            0 => Some(&[]),
            n => bytes.get(self.offset as usize * size..).and_then(|rest| rest.get(..n * size)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_tensor_has_no_bytes_wherever_it_claims_to_start() {
        let storage = Some(Storage::owned(vec![]));
        let view =
            WeightView { dtype: ScalarType::F64, sizes: vec![0, 5], strides: vec![5, 1], offset: i64::MAX, storage };
        assert_eq!((view.contiguous(), view.n_bytes()), (Some(vec![]), 0));
    }
}
