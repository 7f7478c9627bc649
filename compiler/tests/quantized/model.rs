//! Programs with quantised weights, built by hand as `torch.export` writes them.

use jvc::aten;
use jvc::exec::{HostTensor, Value};
use jvc::import::program::{Arg, InputSpec, NamedArg, Node, OutputSpec, Program, ProgramGraph, ScalarType, TensorMeta};
use jvc::import::weights::{Storage, WeightStore, WeightView};
use jvc::ir::eval::{Symbols, Tensor, eval};
use jvc::ir::{DType, Dim};
use jvc::options::Options;
use jvc::passes::checkpoint_tensor;
use jvc::report::Diagnostic;

/// Integers that look random, in −128 ..= 127.
pub(crate) fn bytes(n: usize, seed: u64) -> Vec<i8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as i8
    };
    (0..n).map(|_| next()).collect()
}

/// Scales between 1/256 and 1/128, each a number of few bits, so that products with integers of 8 bits are exact.
pub(crate) fn scales(n: usize, seed: u64) -> Vec<f32> {
    bytes(n, seed).iter().map(|&b| (128.0 + f32::from(b as u8 / 2)) / 32768.0).collect()
}

/// A program under construction.
pub(crate) struct Model {
    graph: ProgramGraph,
    weights: WeightStore,
    inputs: Vec<InputSpec>,
}

pub(crate) fn t(name: &str) -> Arg {
    Arg::Tensor(name.to_string())
}

pub(crate) fn ints(v: &[i64]) -> Arg {
    Arg::Ints(v.to_vec())
}

pub(crate) fn meta(dtype: ScalarType, sizes: &[i64]) -> TensorMeta {
    let strides: Vec<i64> = (0..sizes.len()).map(|d| sizes[d + 1..].iter().product()).collect();
    let dims = |v: &[i64]| v.iter().map(|&d| Dim::from(d)).collect();
    TensorMeta { dtype, sizes: dims(sizes), strides: dims(&strides), storage_offset: Dim::from(0) }
}

impl Model {
    pub(crate) fn new() -> Model {
        Model { graph: ProgramGraph::default(), weights: WeightStore::new(), inputs: vec![] }
    }

    pub(crate) fn weight(mut self, name: &str, dtype: ScalarType, sizes: &[i64], bytes: Vec<u8>) -> Model {
        let m = meta(dtype, sizes);
        let strides = m.strides.iter().filter_map(Dim::as_const).collect();
        let storage = Some(Storage::owned(bytes));
        self.weights.insert(name.into(), WeightView { dtype, sizes: sizes.to_vec(), strides, offset: 0, storage });
        self.graph.tensors.insert(name.into(), m);
        self.graph.inputs.push(t(name));
        self.inputs.push(InputSpec::Weight { arg: name.into(), name: name.into(), buffer: true });
        self
    }

    pub(crate) fn integers(self, name: &str, dtype: ScalarType, sizes: &[i64], values: &[i8]) -> Model {
        let bytes = match dtype {
            ScalarType::I8 | ScalarType::U8 => values.iter().map(|&v| v as u8).collect(),
            ScalarType::I32 => values.iter().flat_map(|&v| i32::from(v).to_le_bytes()).collect(),
            _ => values.iter().flat_map(|&v| i64::from(v).to_le_bytes()).collect(),
        };
        self.weight(name, dtype, sizes, bytes)
    }

    pub(crate) fn floats(self, name: &str, sizes: &[i64], values: &[f32]) -> Model {
        self.weight(name, ScalarType::F32, sizes, values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    pub(crate) fn input(mut self, name: &str, dtype: ScalarType, sizes: &[i64]) -> Model {
        self.graph.tensors.insert(name.into(), meta(dtype, sizes));
        self.graph.inputs.push(t(name));
        self.inputs.push(InputSpec::User(t(name)));
        self
    }

    pub(crate) fn call(
        mut self,
        name: &str,
        target: &str,
        args: &[(&str, Arg)],
        dtype: ScalarType,
        sizes: &[i64],
    ) -> Model {
        self.graph.tensors.insert(name.into(), meta(dtype, sizes));
        let inputs = args.iter().map(|(n, a)| NamedArg { name: (*n).into(), arg: a.clone() }).collect();
        let (module, line) = (String::new(), String::new());
        self.graph.nodes.push(Node {
            name: name.into(),
            target: target.into(),
            inputs,
            outputs: vec![t(name)],
            module,
            line,
        });
        self
    }

    pub(crate) fn linear(self, x: &str, w: &str, sizes: &[i64]) -> Model {
        self.call("y", "aten.linear.default", &[("input", t(x)), ("weight", t(w))], ScalarType::F32, sizes)
    }

    pub(crate) fn program(mut self, output: &str) -> Program {
        self.graph.outputs = vec![t(output)];
        let names =
            self.inputs.iter().filter_map(|i| if let InputSpec::User(Arg::Tensor(n)) = i { Some(n) } else { None });
        Program {
            name: "model".into(),
            outputs: vec![OutputSpec::User(t(output))],
            output_names: vec![output.into()],
            input_names: names.cloned().collect(),
            graph: self.graph,
            inputs: self.inputs,
            ranges: Default::default(),
            functional: true,
            torch_version: "2.11.0".into(),
            weights: self.weights,
            warnings: vec![],
        }
    }

    /// The one output by the interpreter, before any pass.
    pub(crate) fn eval(self, output: &str, inputs: &[Tensor]) -> Tensor {
        let program = self.program(output);
        let graph = aten::lower(&program, &Options::default()).expect("lowers");
        let weights = |name: &str| checkpoint_tensor(&program.weights, name);
        let out = eval(&graph, &weights, inputs, &Symbols::new()).expect("evaluates");
        out.tensors()[0].clone()
    }

    pub(crate) fn refusal(self, output: &str) -> Diagnostic {
        aten::lower(&self.program(output), &Options::default()).expect_err("refused").remove(0)
    }
}

/// Rows of x times rows of w, in f64.
pub(crate) fn product(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| dot(x, w))).collect()
}

/// Rows of inputs, and their values.
pub(crate) fn activations(m: usize, k: usize) -> (Value, Vec<f64>) {
    let x: Vec<f32> = bytes(m * k, 20).iter().map(|&b| f32::from(b) / 64.0).collect();
    let bytes = x.iter().flat_map(|v| v.to_le_bytes()).collect();
    let tensor = HostTensor { dtype: DType::F32, shape: vec![m as i64, k as i64], bytes };
    (Value::Tensor(tensor), x.iter().map(|&v| f64::from(v)).collect())
}

/// Values of about ±1 of many magnitudes, as f32 can hold them.
pub(crate) fn floats(n: usize, seed: u64) -> Vec<f32> {
    let (a, b) = (bytes(n, seed), bytes(n, seed + 1000));
    a.iter().zip(b).map(|(&a, b)| f32::from(a) / 128.0 + f32::from(b) / 4096.0).collect()
}
