//! `--weights F.safetensors`: tensors of a checkpoint file take the place of the archive's, by name.

use super::error::ImportError;
use super::program::ScalarType;
use super::weights::{Storage, WeightView};
use super::{Program, dense_strides, weight_error};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Replaces the weights that the file names in every program; returns the names in the file that no program has.
///
/// # Errors
/// The file cannot be read, or a tensor has another type or shape than the program's.
pub fn merge_weights(programs: &mut [Program], path: &Path) -> Result<Vec<String>, ImportError> {
    let io = |source| ImportError::Io { path: path.to_path_buf(), source };
    let map = Arc::new(jvc_runtime::map_file(path).map_err(io)?);
    let at = path.display().to_string();
    let (header_bytes, header) =
        SafeTensors::read_metadata(&map).map_err(|e| ImportError::format(&at, format!("no safetensors file: {e}")))?;
    let payload = header_bytes + size_of::<u64>();
    let mut unused = BTreeSet::new();
    for (name, info) in header.tensors() {
        let (start, end) = info.data_offsets;
        let dtype = scalar_type(info.dtype).ok_or_else(|| weight_error(&name, format!("has type {:?}", info.dtype)))?;
        let sizes: Vec<i64> = info.shape.iter().map(|&n| n as i64).collect();
        let storage = Some(Storage::mapped(map.clone(), payload + start..payload + end));
        let view = WeightView { dtype, strides: dense_strides(&sizes), sizes, offset: 0, storage };
        if !replace(programs, &name, &view)? {
            unused.insert(name);
        }
    }
    Ok(unused.into_iter().collect())
}

fn replace(programs: &mut [Program], name: &str, view: &WeightView) -> Result<bool, ImportError> {
    let mut used = false;
    for slot in programs.iter_mut().filter_map(|p| p.weights.get_mut(name)) {
        if slot.dtype != view.dtype || slot.sizes != view.sizes {
            let why = format!(
                "is {}{:?} in the checkpoint, {}{:?} in the program",
                view.dtype, view.sizes, slot.dtype, slot.sizes
            );
            return Err(weight_error(name, why));
        }
        *slot = view.clone();
        used = true;
    }
    Ok(used)
}

fn scalar_type(dtype: Dtype) -> Option<ScalarType> {
    Some(match dtype {
        Dtype::BOOL => ScalarType::Bool,
        Dtype::U8 => ScalarType::U8,
        Dtype::I8 => ScalarType::I8,
        Dtype::I16 => ScalarType::I16,
        Dtype::U16 => ScalarType::U16,
        Dtype::I32 => ScalarType::I32,
        Dtype::I64 => ScalarType::I64,
        Dtype::F16 => ScalarType::F16,
        Dtype::BF16 => ScalarType::BF16,
        Dtype::F32 => ScalarType::F32,
        Dtype::F64 => ScalarType::F64,
        Dtype::F8_E4M3 => ScalarType::F8E4M3Fn,
        Dtype::F8_E5M2 => ScalarType::F8E5M2,
        Dtype::C64 => ScalarType::C64,
        _ => return None,
    })
}
