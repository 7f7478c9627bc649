//! The file of references: what PyTorch computed at the nodes of a program, as `models/dump_refs.py` writes it. It is mapped, and read a
//! tensor at a time: in full sizes it is larger than memory.

use crate::exec::HostTensor;
use crate::ir::graph::{Tap, TapPart};
use crate::ir::{DType, eval};
use crate::tensor_file::{TensorFileError, from_file};
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;
use std::collections::BTreeMap;
use std::path::Path;

/// An open file.
pub struct Activations {
    map: memmap2::Mmap,
    metadata: Metadata,
    /// Where the tensors' bytes start.
    start: usize,
    notes: BTreeMap<String, String>,
}

/// PyTorch's values at a node.
pub(crate) struct Reference {
    /// In the program's own type.
    pub(crate) own: eval::Tensor,
    /// In f64.
    pub(crate) exact: Option<eval::Tensor>,
    /// Under autocast.
    pub(crate) half: Option<eval::Tensor>,
}

impl Activations {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or is no such file.
    pub fn open(path: &Path) -> Result<Activations, TensorFileError> {
        let map =
            jvc_runtime::map_file(path).map_err(|source| TensorFileError::Io { path: path.to_path_buf(), source })?;
        let format = |why: String| TensorFileError::Format { path: path.to_path_buf(), why };
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| format(e.to_string()))?;
        let notes = metadata.metadata().as_ref().and_then(|m| m.get("notes").cloned()).unwrap_or_default();
        let notes = serde_json::from_str(&notes).unwrap_or_default();
        let file = Activations { map, metadata, start: header + 8, notes };
        if !file.names().any(|n| n.starts_with("node.")) {
            return Err(format("no tensor is called `node.NAME`: models/dump_refs.py writes such files".into()));
        }
        Ok(file)
    }

    fn names(&self) -> impl Iterator<Item = String> {
        self.metadata.offset_keys().into_iter()
    }

    /// Inputs and results, by their names (`in.0`, `out.0`, `out64.0`).
    pub(crate) fn ports(&self) -> BTreeMap<String, HostTensor> {
        let names = self.names().filter(|n| ["in.", "out.", "out64."].iter().any(|kind| n.starts_with(kind)));
        names.filter_map(|n| self.host(&n).map(|t| (n, t))).collect()
    }

    /// What the file says of a node, where something was not possible.
    pub(crate) fn note(&self, name: &str) -> Option<&str> {
        self.notes.get(name).map(String::as_str)
    }

    /// Element types of the nodes.
    pub(crate) fn dtypes(&self) -> impl Iterator<Item = DType> {
        let nodes = self.names().filter(|n| n.starts_with("node."));
        nodes.filter_map(|n| from_file(self.metadata.info(&n)?.dtype))
    }

    /// Number of nodes.
    pub(crate) fn n_nodes(&self) -> usize {
        self.names().filter(|n| n.starts_with("node.")).count()
    }

    /// True if there is a value for a tensor of the export.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.metadata.info(&format!("node.{name}")).is_some()
    }

    /// The values of a tap's tensor.
    pub(crate) fn get(&self, tap: &Tap) -> Option<Reference> {
        let kind = |kind: &str| Some(part(self.tensor(&format!("{kind}.{}", tap.name))?, tap.part));
        Some(Reference { own: kind("node")?, exact: kind("node64"), half: kind("half") })
    }

    fn bytes(&self, name: &str) -> Option<(DType, Vec<usize>, &[u8])> {
        let info = self.metadata.info(name)?;
        let (from, to) = info.data_offsets;
        let bytes = self.map.get(self.start + from..self.start + to)?;
        Some((from_file(info.dtype)?, info.shape.clone(), bytes))
    }

    fn tensor(&self, name: &str) -> Option<eval::Tensor> {
        let (dtype, shape, bytes) = self.bytes(name)?;
        eval::Tensor::from_bytes(dtype, shape, bytes)
    }

    fn host(&self, name: &str) -> Option<HostTensor> {
        let (dtype, shape, bytes) = self.bytes(name)?;
        Some(HostTensor { dtype, shape: shape.into_iter().map(|n| n as i64).collect(), bytes: bytes.to_vec() })
    }
}

/// The real or imaginary parts of a complex tensor, which stand side by side in its last dimension.
fn part(t: eval::Tensor, part: TapPart) -> eval::Tensor {
    let which = match part {
        TapPart::Whole => return t,
        TapPart::Re => 0,
        TapPart::Im => 1,
    };
    let every_second = |v: Vec<f64>| v.into_iter().skip(which).step_by(2).collect();
    let data = match t.data {
        eval::Data::Float(v) => eval::Data::Float(every_second(v)),
        ints => ints,
    };
    eval::Tensor { dtype: t.dtype, shape: t.shape[..t.shape.len() - 1].to_vec(), data }
}
