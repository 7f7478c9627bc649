//! Reference files: sets of inputs and expected outputs.

use super::Status;
use super::steps::Activations;
use crate::aten::philox::{OFFSET, SEED};
use crate::exec::{HostTensor, Value};
use crate::ir::{DType, Graph, UserInput};
use crate::tensor_file::read_tensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// All sets of a file.
#[derive(Debug)]
pub(super) struct References {
    /// The plain set first, then the alternatives in order.
    pub(super) sets: Vec<Set>,
}

/// One set of inputs with its expected outputs, by position.
#[derive(Debug, Default)]
pub(crate) struct Set {
    /// `""` or `alt.0.`.
    pub(crate) prefix: String,
    pub(crate) inputs: BTreeMap<usize, HostTensor>,
    pub(crate) outputs: BTreeMap<usize, HostTensor>,
    pub(crate) exact: BTreeMap<usize, HostTensor>,
    /// PyTorch's outputs in the half type asked for, where they are given.
    pub(super) mixed: BTreeMap<usize, HostTensor>,
}

impl References {
    /// The references of a program: `NAME.safetensors` beside `NAME.pt2` or `NAME.core.pt2`, or `NAME.io.safetensors`.
    pub(super) fn beside(program: &Path) -> Result<References, Status> {
        let candidates = candidates(program);
        let Some(path) = candidates.iter().find(|p| p.is_file()) else {
            return Err(Status::Skipped("no .safetensors beside it".into()));
        };
        let tensors = read_tensors(path).map_err(|e| Status::Fail(format!("references: {e}")))?;
        let sets = split(tensors).map_err(|name| Status::Fail(format!("references: `{name}` is no known name")))?;
        Ok(References { sets })
    }

    /// Inputs and results of a file of PyTorch's values at all nodes; the inputs may come from another file, and then there are no results.
    pub(super) fn of_steps(file: &Activations, inputs: Option<&Path>) -> Result<References, Status> {
        let mut tensors = file.ports();
        if let Some(path) = inputs {
            let given = read_tensors(path).map_err(|e| Status::Fail(format!("inputs: {e}")))?;
            tensors = given.into_iter().filter(|(name, _)| name.starts_with("in.")).collect();
        }
        let sets = split(tensors).map_err(|name| Status::Fail(format!("references: `{name}` is no known name")))?;
        // A program without inputs and with none given.
        let sets = if sets.is_empty() { vec![Set::default()] } else { sets };
        Ok(References { sets })
    }

    /// Adds PyTorch's results in mixed precision from `NAME.f16.safetensors` (or bf16), if that is there.
    pub(super) fn add_mixed(&mut self, program: &Path, half: DType) -> Result<(), Status> {
        let named = |path: PathBuf| {
            let name = path.file_name()?.to_string_lossy().strip_suffix(".safetensors")?.to_string();
            Some(path.with_file_name(format!("{name}.{half}.safetensors")))
        };
        let Some(path) = candidates(program).into_iter().filter_map(named).find(|p| p.is_file()) else { return Ok(()) };
        let tensors = read_tensors(&path).map_err(|e| Status::Fail(format!("references in {half}: {e}")))?;
        let mut mixed =
            split(tensors).map_err(|n| Status::Fail(format!("references in {half}: `{n}` is no known name")))?;
        for set in &mut self.sets {
            if let Some(own) = mixed.iter_mut().find(|m| m.prefix == set.prefix) {
                set.mixed = std::mem::take(&mut own.outputs);
            }
        }
        Ok(())
    }

    /// True if there is a result to compare with.
    pub(super) fn has_outputs(&self) -> bool {
        self.sets.iter().any(|s| !s.outputs.is_empty())
    }
}

fn candidates(program: &Path) -> Vec<PathBuf> {
    let name = program.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let stem = name.strip_suffix(".pt2").unwrap_or(&name);
    let base = stem.strip_suffix(".core").unwrap_or(stem);
    [stem, base]
        .iter()
        .flat_map(|s| [".safetensors", ".io.safetensors"].map(|e| program.with_file_name(format!("{s}{e}"))))
        .collect()
}

/// Sorts tensors into sets. The error is a name that is none of `in.N`, `out.N`, `out64.N`, each also under `alt.K.`.
pub(crate) fn split(tensors: BTreeMap<String, HostTensor>) -> Result<Vec<Set>, String> {
    let mut sets: BTreeMap<Option<usize>, Set> = BTreeMap::new();
    for (name, tensor) in tensors {
        let (alternative, kind, position) = parse_name(&name).ok_or_else(|| name.clone())?;
        let set = sets.entry(alternative).or_default();
        set.prefix = alternative.map_or_else(String::new, |k| format!("alt.{k}."));
        let place = match kind {
            Kind::In => &mut set.inputs,
            Kind::Out => &mut set.outputs,
            Kind::Exact => &mut set.exact,
        };
        place.insert(position, tensor);
    }
    Ok(sets.into_values().collect())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    In,
    Out,
    Exact,
}

fn parse_name(name: &str) -> Option<(Option<usize>, Kind, usize)> {
    let (alternative, rest) = match name.strip_prefix("alt.") {
        Some(rest) => {
            let (k, rest) = rest.split_once('.')?;
            (Some(k.parse().ok()?), rest)
        }
        None => (None, name),
    };
    let (kind, position) = rest.split_once('.')?;
    let kind = match kind {
        "in" => Kind::In,
        "out" => Kind::Out,
        "out64" => Kind::Exact,
        _ => return None,
    };
    Some((alternative, kind, position.parse().ok()?))
}

impl Set {
    /// ` set alt.0`, or nothing for the plain set.
    pub(super) fn label(&self) -> String {
        if self.prefix.is_empty() { String::new() } else { format!(" set {}", self.prefix.trim_end_matches('.')) }
    }

    /// Values for the entry point's ports. Positions count all inputs of the program, also those that were specialised away.
    pub(super) fn inputs(&self, graph: &Graph) -> Result<Vec<Value>, Status> {
        input_values(graph, |i| self.inputs.get(&i))
            .map_err(|why| Status::Fail(format!("references{}: {why}", self.label())))
    }
}

/// Values for the ports of an entry point, from tensors by position among the program's inputs. Seed and offset of the random stream,
/// which come last, are 0 where they are not given.
pub(crate) fn input_values<'t>(
    graph: &Graph,
    tensor: impl Fn(usize) -> Option<&'t HostTensor>,
) -> Result<Vec<Value>, String> {
    let mut out = vec![];
    for (i, (name, input)) in graph.inputs.iter().enumerate() {
        let given = || tensor(i).ok_or_else(|| format!("`in.{i}` ({name}) is missing"));
        match input {
            UserInput::Unused => {}
            UserInput::Tensor(_) => out.push(Value::Tensor(given()?.clone())),
            UserInput::Symbol(s) if [SEED, OFFSET].contains(&s.as_str()) && tensor(i).is_none() => {
                out.push(Value::Int(0))
            }
            UserInput::Symbol(_) => {
                out.push(Value::Int(integer(given()?).ok_or_else(|| format!("`in.{i}` is no integer"))?))
            }
        }
    }
    Ok(out)
}

/// The only number of a tensor of 64-bit integers.
pub(crate) fn integer(t: &HostTensor) -> Option<i64> {
    if t.dtype != DType::I64 {
        return None;
    }
    t.bytes.as_slice().try_into().ok().map(i64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_set_kind_and_position() {
        assert_eq!(parse_name("in.3"), Some((None, Kind::In, 3)));
        assert_eq!(parse_name("alt.2.out64.11"), Some((Some(2), Kind::Exact, 11)));
        for bad in ["in", "in.x", "alt.0.in", "alt.x.in.0", "weights.0"] {
            assert_eq!(parse_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn core_programs_share_the_references_of_the_plain_one() {
        let files = candidates(Path::new("/x/resnet18.core.pt2"));
        assert!(files.contains(&PathBuf::from("/x/resnet18.safetensors")), "{files:?}");
        assert_eq!(files[0], PathBuf::from("/x/resnet18.core.safetensors"));
    }
}
