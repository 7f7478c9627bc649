//! Measures programs at samples, for the search: compiles with some operations in f32, runs, and compares the outputs.

use super::file::{Denominator, Island, Islands, ProgramIslands, rounded};
use super::search::{self, Limits};
use crate::device::DeviceProfile;
use crate::exec::{ExecError, HostTensor, Loaded, Value};
use crate::import::Program;
use crate::ir::eval::{Data, Tensor};
use crate::ir::{Graph, UserOutput};
use crate::options::{Mixed, Options};
use crate::passes::mix_precision::Call;
use crate::pipeline;
use crate::report::Diagnostic;
use crate::tensor_file::{TensorFileError, read_tensors};
use crate::verify::{Set, input_values, split};
use jvc_runtime as rt;
use std::path::{Path, PathBuf};

/// Why no islands were found.
#[derive(Debug, thiserror::Error)]
pub enum IslandsError {
    /// The samples cannot be read.
    #[error(transparent)]
    Tensors(#[from] TensorFileError),
    /// The samples are none of this program.
    #[error("samples {}: {why}", path.display())]
    Samples {
        /// File.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The program cannot be compiled.
    #[error("the program cannot be compiled")]
    Compile(Vec<Diagnostic>),
    /// It did not run.
    #[error(transparent)]
    Exec(ExecError),
    /// Not even f32 is good enough.
    #[error(
        "the error budget {budget:e} of {program} cannot be held: with everything in f32 its outputs are off by {error:.2e} from {reference}"
    )]
    NotHeld {
        /// Program.
        program: String,
        /// As asked.
        budget: f64,
        /// The error of the program in f32.
        error: f64,
        /// What it is measured from.
        reference: &'static str,
    },
}

/// Inputs to measure at, and what should come of them, if that is known.
#[derive(Debug)]
pub struct Samples {
    path: PathBuf,
    sets: Vec<Set>,
    reference: Denominator,
}

impl Samples {
    /// Reads a file: `in.N`, perhaps `out.N` and `out64.N`, and further sets under `alt.K.`.
    ///
    /// # Errors
    /// It cannot be read, or holds another name.
    pub fn read(path: &Path) -> Result<Samples, IslandsError> {
        let wrong = |why| IslandsError::Samples { path: path.into(), why };
        let sets = split(read_tensors(path)?);
        let mut sets = sets.map_err(|name| wrong(format!("`{name}` is none of in.N, out.N, out64.N, alt.K.…")))?;
        if sets.is_empty() {
            sets.push(Set::default());
        }
        let complete = |outputs: &dyn Fn(&Set) -> bool| sets.iter().all(outputs);
        let reference = if complete(&|s| !s.exact.is_empty()) {
            Denominator::Exact
        } else if complete(&|s| !s.outputs.is_empty()) {
            Denominator::Outputs
        } else if sets.iter().all(|s| s.outputs.is_empty() && s.exact.is_empty()) {
            Denominator::Full
        } else {
            return Err(wrong("some sets have out.N (or out64.N) and others have not".to_string()));
        };
        Ok(Samples { path: path.into(), sets, reference })
    }
}

/// A program on a GPU, to be measured.
pub struct Measured<'a> {
    gpu: &'a rt::Gpu,
    device: &'a DeviceProfile,
    program: &'a Program,
    /// With mixed precision by the rules alone. What is slow is refused when the choice is compiled, not here.
    options: Options,
    mixed: Mixed,
    samples: &'a Samples,
    /// By set and output.
    wanted: Vec<Vec<Option<Tensor>>>,
    calls: Vec<Call>,
    /// The error of the program in f32.
    full: f64,
}

impl<'a> Measured<'a> {
    /// Compiles the program in f32 and runs it at the samples. `mixed` is what `--precision` and `--keep-f32` ask for.
    ///
    /// # Errors
    /// The program cannot be compiled, the samples are not its own, or it did not run.
    pub fn new(
        gpu: &'a rt::Gpu,
        device: &'a DeviceProfile,
        program: &'a Program,
        options: &Options,
        mixed: &Mixed,
        samples: &'a Samples,
    ) -> Result<Measured<'a>, IslandsError> {
        let mixed = Mixed { islands: None, ..mixed.clone() };
        let options = Options { mixed: Some(mixed.clone()), deny_slow: false, ..options.clone() };
        let (_, done) = pipeline::graph_of(program, &options, Some(device)).map_err(IslandsError::Compile)?;
        let calls = done.mixed.map_or_else(Vec::new, |m| m.calls);
        let mut all = Measured { gpu, device, program, options, mixed, samples, wanted: vec![], calls, full: 0.0 };
        let got = all.run(&Options { mixed: None, ..all.options.clone() }, true)?;
        all.wanted = match samples.reference {
            Denominator::Full => got.iter().map(|set| set.iter().map(|t| Some(tensor(t))).collect()).collect(),
            Denominator::Outputs | Denominator::Exact => all.references(&got)?,
        };
        all.full = all.error(&got);
        Ok(all)
    }

    /// The error of the program in f32.
    pub fn full(&self) -> f64 {
        self.full
    }

    /// Calls that compute in halves by the rules.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Searches; `each` is told the number of every measurement and the error that it gave.
    ///
    /// # Errors
    /// The budget cannot be held, or the program did not run.
    pub fn search(&self, limits: Limits, each: &mut dyn FnMut(u32, f64)) -> Result<ProgramIslands, IslandsError> {
        let (name, reference) = (self.program.name.clone(), self.samples.reference);
        if self.full > limits.budget {
            let (budget, error, reference) = (limits.budget, self.full, reference.text());
            return Err(IslandsError::NotHeld { program: name, budget, error, reference });
        }
        let mut round = 0;
        let found = search::search(self.calls.len(), limits, &mut |keep| {
            let error = self.error_with(keep)?;
            round += 1;
            each(round, error);
            Ok::<_, IslandsError>(error)
        })?;
        let island = |k: &search::Kept| {
            let Call { node, target, module } = self.calls[k.index].clone();
            Island { node, target, module, cost: rounded(k.cost), measured_with: k.shared }
        };
        Ok(ProgramIslands {
            name,
            reference,
            without: rounded(found.without),
            with: rounded(found.with),
            calls: self.calls.len(),
            islands: found.kept.iter().map(island).collect(),
        })
    }

    /// The outputs' error with some of the calls in f32.
    ///
    /// # Errors
    /// The program did not run.
    pub fn error_with(&self, keep: &[bool]) -> Result<f64, IslandsError> {
        let kept = self.calls.iter().zip(keep).filter(|(_, keep)| **keep);
        let island = |c: &Call| Island {
            node: c.node.clone(),
            target: c.target.clone(),
            module: c.module.clone(),
            cost: 0.0,
            measured_with: 1,
        };
        let program = ProgramIslands {
            name: self.program.name.clone(),
            reference: self.samples.reference,
            without: 0.0,
            with: 0.0,
            calls: self.calls.len(),
            islands: kept.map(|(c, _)| island(c)).collect(),
        };
        let islands = Islands { precision: self.mixed.half, budget: 0.0, programs: vec![program] };
        let mixed = Some(Mixed { islands: Some(islands), ..self.mixed.clone() });
        match self.run(&Options { mixed, ..self.options.clone() }, false) {
            Ok(got) => Ok(self.error(&got)),
            // Halves made a size of what the data decide larger than there is memory for.
            Err(IslandsError::Exec(ExecError::Found { .. })) => Ok(f64::INFINITY),
            Err(e) => Err(e),
        }
    }

    /// Outputs (mutated inputs behind them) by set, each from the initial state.
    fn run(&self, options: &Options, first: bool) -> Result<Vec<Vec<HostTensor>>, IslandsError> {
        let compiled = pipeline::compile(std::slice::from_ref(self.program), options, self.device);
        let compiled = compiled.map_err(IslandsError::Compile)?;
        let loaded = Loaded::new(self.gpu, &compiled, &rt::CacheDir::None).map_err(IslandsError::Exec)?;
        let mut session = loaded.session(0).map_err(IslandsError::Exec)?;
        let mut out = vec![];
        for set in &self.samples.sets {
            let inputs = self.inputs(&compiled.graphs[0], set)?;
            session.reset();
            let outputs = session.run(&inputs).map_err(|e| match e {
                ExecError::Input { .. } | ExecError::InputCount { .. } | ExecError::Symbol { .. } if first => {
                    self.wrong(set, e.to_string())
                }
                e => IslandsError::Exec(e),
            });
            out.push(outputs?);
        }
        Ok(out)
    }

    fn inputs(&self, graph: &Graph, set: &Set) -> Result<Vec<Value>, IslandsError> {
        if let Some(i) = set.inputs.keys().find(|i| **i >= graph.inputs.len()) {
            let n = graph.inputs.len();
            return Err(self.wrong(set, format!("there is an in.{i}, the program {} has {n} inputs", graph.name)));
        }
        input_values(graph, |i| set.inputs.get(&i)).map_err(|why| self.wrong(set, why))
    }

    fn wrong(&self, set: &Set, why: String) -> IslandsError {
        let why = if set.prefix.is_empty() { why } else { format!("set {}: {why}", set.prefix.trim_end_matches('.')) };
        IslandsError::Samples { path: self.samples.path.clone(), why }
    }

    /// What the samples say of the outputs, in the order of `got`.
    fn references(&self, got: &[Vec<HostTensor>]) -> Result<Vec<Vec<Option<Tensor>>>, IslandsError> {
        let (graph, _) = pipeline::graph_of(self.program, &self.options, None).map_err(IslandsError::Compile)?;
        let tensors = |(i, (_, o)): (usize, &(String, UserOutput))| matches!(o, UserOutput::Tensor(_)).then_some(i);
        let positions: Vec<usize> = graph.outputs.iter().enumerate().filter_map(tensors).collect();
        let of_set = |(set, got): (&Set, &Vec<HostTensor>)| {
            let given = set.outputs.keys().chain(set.exact.keys()).max();
            if let Some(i) = given.filter(|i| **i >= graph.outputs.len()) {
                let n = graph.outputs.len();
                return Err(self.wrong(set, format!("there is an out.{i}, the program {} has {n} outputs", graph.name)));
            }
            let one = |(k, got): (usize, &HostTensor)| {
                let Some(i) = positions.get(k) else { return Ok(None) };
                let Some(reference) = set.exact.get(i).or_else(|| set.outputs.get(i)) else { return Ok(None) };
                let alike = reference.dtype.is_float() == got.dtype.is_float();
                // torch's decomposition of recurrent layers leaves a dimension of size 1 that eager PyTorch does not have.
                let sizes = |t: &HostTensor| -> Vec<i64> { t.shape.iter().copied().filter(|n| *n != 1).collect() };
                if !alike || sizes(reference) != sizes(got) {
                    let shown = |t: &HostTensor| format!("{}{:?}", t.dtype, t.shape);
                    let why = format!("out.{i} is {}, the program gives {}", shown(reference), shown(got));
                    return Err(self.wrong(set, why));
                }
                Ok(Some(tensor(reference)))
            };
            got.iter().enumerate().map(one).collect()
        };
        self.samples.sets.iter().zip(got).map(of_set).collect()
    }

    /// The largest error of any output in any set.
    fn error(&self, got: &[Vec<HostTensor>]) -> f64 {
        let pairs = self.wanted.iter().zip(got).flat_map(|(wanted, got)| wanted.iter().zip(got));
        pairs.filter_map(|(wanted, got)| Some(error(wanted.as_ref()?, &tensor(got)))).fold(0.0, f64::max)
    }
}

/// How far an output is off: of floats the root mean square of the difference over that of what is wanted (or itself, where that is 0), of
/// integers the share of elements that differ. Infinite where sizes differ, or a number is not finite that should be.
fn error(wanted: &Tensor, got: &Tensor) -> f64 {
    if wanted.n_elems() != got.n_elems() {
        return f64::INFINITY;
    }
    match (&wanted.data, &got.data) {
        (Data::Float(w), Data::Float(g)) => {
            let finite = || w.iter().zip(g).filter(|(w, _)| w.is_finite());
            if finite().any(|(_, g)| !g.is_finite()) {
                return f64::INFINITY;
            }
            let off: f64 = finite().map(|(w, g)| (w - g) * (w - g)).sum();
            let size: f64 = finite().map(|(w, _)| w * w).sum();
            let n = finite().count().max(1) as f64;
            if size > 0.0 { (off / size).sqrt() } else { (off / n).sqrt() }
        }
        (Data::Int(w), Data::Int(g)) => {
            let differ = w.iter().zip(g).filter(|(w, g)| w != g).count();
            differ as f64 / w.len().max(1) as f64
        }
        _ => f64::INFINITY,
    }
}

fn tensor(t: &HostTensor) -> Tensor {
    let shape = t.shape.iter().map(|&n| n as usize).collect();
    Tensor::from_bytes(t.dtype, shape, &t.bytes).expect("bytes of its shape")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::DType;

    fn floats(values: &[f64]) -> Tensor {
        Tensor::from_f64(DType::F32, &[values.len()], values.to_vec())
    }

    #[test]
    fn errors_are_relative_and_infinite_for_what_is_no_number() {
        let wanted = floats(&[3.0, -4.0]);
        assert!((error(&wanted, &floats(&[3.0, -4.5])) - 0.1).abs() < 1e-12, "0.5 of 5");
        assert_eq!(error(&wanted, &wanted), 0.0);
        assert_eq!(error(&wanted, &floats(&[3.0, f64::NAN])), f64::INFINITY);
        assert_eq!(error(&wanted, &floats(&[3.0])), f64::INFINITY);
        assert!((error(&floats(&[0.0, 0.0]), &floats(&[0.1, 0.1])) - 0.1).abs() < 1e-6, "of nothing");
        let masked = floats(&[f64::NEG_INFINITY, 2.0]);
        assert!((error(&masked, &floats(&[-6e4, 1.0])) - 0.5).abs() < 1e-12, "what is infinite anyway does not count");
        let ints = |v: &[i64]| Tensor { dtype: DType::I64, shape: vec![v.len()], data: Data::Int(v.to_vec()) };
        assert_eq!(error(&ints(&[1, 2, 3, 4]), &ints(&[1, 2, 3, 5])), 0.25);
    }
}
