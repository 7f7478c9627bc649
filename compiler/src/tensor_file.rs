//! Tensors in `.safetensors` files: inputs, outputs and references of `run` and `verify`.

use crate::exec::HostTensor;
use crate::ir::DType;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A file of tensors that cannot be read or made.
#[derive(Debug, thiserror::Error)]
pub enum TensorFileError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// File.
        path: PathBuf,
        /// Reason.
        source: std::io::Error,
    },
    /// The file is broken.
    #[error("{}: {why}", path.display())]
    Format {
        /// File.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// All tensors of a file, by name.
///
/// # Errors
/// The file cannot be read, or a tensor has a type that programs do not take.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, HostTensor>, TensorFileError> {
    let io = |source| TensorFileError::Io { path: path.to_path_buf(), source };
    let format = |why: String| TensorFileError::Format { path: path.to_path_buf(), why };
    let bytes = std::fs::read(path).map_err(io)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| format(e.to_string()))?;
    let mut out = BTreeMap::new();
    for (name, view) in file.tensors() {
        let dtype = from_file(view.dtype()).ok_or_else(|| format(format!("{name} has type {:?}", view.dtype())))?;
        let shape = view.shape().iter().map(|&n| n as i64).collect();
        out.insert(name, HostTensor { dtype, shape, bytes: view.data().to_vec() });
    }
    Ok(out)
}

/// The bytes of a file of tensors.
///
/// # Errors
/// A tensor whose bytes do not match its shape.
pub fn print_tensors(tensors: &BTreeMap<String, HostTensor>) -> Result<Vec<u8>, TensorFileError> {
    let broken = |e: safetensors::SafeTensorError| TensorFileError::Format { path: PathBuf::new(), why: e.to_string() };
    let mut views = vec![];
    for (name, t) in tensors {
        let shape = t.shape.iter().map(|&n| n as usize).collect();
        views.push((name.as_str(), TensorView::new(to_file(t.dtype), shape, &t.bytes).map_err(broken)?));
    }
    safetensors::serialize(views, None).map_err(broken)
}

pub(crate) fn from_file(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|&d| to_file(d) == dtype)
}

fn to_file(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_tensors_read_back() {
        let dir = tempfile::tempdir().expect("a scratch folder");
        let path = dir.path().join("t.safetensors");
        let tensors: BTreeMap<String, HostTensor> = DType::ALL
            .into_iter()
            .map(|dtype| {
                let bytes = (0..6 * dtype.size_bytes()).map(|b| (b % 2) as u8).collect();
                (format!("x.{dtype}"), HostTensor { dtype, shape: vec![2, 3], bytes })
            })
            .collect();
        std::fs::write(&path, print_tensors(&tensors).expect("consistent")).expect("writable");
        assert_eq!(read_tensors(&path).expect("readable"), tensors);
    }

    #[test]
    fn broken_files_are_errors() {
        let dir = tempfile::tempdir().expect("a scratch folder");
        let path = dir.path().join("t.safetensors");
        assert!(matches!(read_tensors(&path), Err(TensorFileError::Io { .. })));
        std::fs::write(&path, [9; 40]).expect("writable");
        assert!(matches!(read_tensors(&path), Err(TensorFileError::Format { .. })));
    }
}
