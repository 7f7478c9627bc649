//! Programs written by hand, lowered and run in the interpreter and on the device.

use jvc::aten;
use jvc::exec::{ExecError, HostTensor, Loaded, Value};
use jvc::import::program::{
    Arg, InputSpec, NamedArg, Node, OutputSpec, Program, ProgramGraph, ScalarType, SubGraph, TensorMeta,
};
use jvc::import::weights::WeightStore;
use jvc::ir::eval::{EvalError, Symbols, Tensor, eval};
use jvc::ir::{DType, Dim, Graph, Range, Ranges};
use jvc::options::Options;
use jvc::pipeline::plan_graphs;
use jvc::report::Diagnostic;
use jvc_runtime::{CacheDir, Gpu, Select};
use std::sync::OnceLock;

/// A program under construction.
pub(crate) struct Hand {
    graph: ProgramGraph,
    ranges: Ranges,
}

pub(crate) fn t(name: &str) -> Arg {
    Arg::Tensor(name.into())
}

pub(crate) fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&d| Dim::from(d)).collect()
}

fn meta(dtype: ScalarType, sizes: &[Dim]) -> TensorMeta {
    let after = |d: usize| sizes[d + 1..].iter().fold(Dim::from(1), |p, s| &p * s);
    let strides = (0..sizes.len()).map(after).collect();
    TensorMeta { dtype, sizes: sizes.to_vec(), strides, storage_offset: Dim::from(0) }
}

impl Hand {
    /// A program over these inputs.
    pub(crate) fn new(inputs: &[(&str, ScalarType, &[i64])]) -> Hand {
        let mut hand = Hand { graph: ProgramGraph::default(), ranges: Ranges::new() };
        for (name, dtype, sizes) in inputs {
            hand.graph.inputs.push(t(name));
            hand.graph.tensors.insert((*name).into(), meta(*dtype, &dims(sizes)));
        }
        hand
    }

    /// One more input, of sizes that may be symbolic.
    pub(crate) fn open_input(mut self, name: &str, dtype: ScalarType, sizes: Vec<Dim>) -> Hand {
        self.graph.inputs.push(t(name));
        self.graph.tensors.insert(name.into(), meta(dtype, &sizes));
        self
    }

    /// The program so far as a sub-graph with one result.
    pub(crate) fn branch(mut self, name: &str, result: &str) -> Arg {
        self.graph.outputs = vec![t(result)];
        Arg::Graph(Box::new(SubGraph { name: name.into(), graph: self.graph }))
    }

    /// A symbol of the export.
    pub(crate) fn symbol(mut self, name: &str, min: i64, max: i64) -> Hand {
        self.ranges.insert(name.into(), Range { min, max });
        self.graph.sym_ints.insert(name.into(), Dim::symbol(name));
        self
    }

    /// A call with tensors as results.
    pub(crate) fn call(
        mut self,
        target: &str,
        inputs: &[(&str, Arg)],
        results: &[(&str, ScalarType, Vec<Dim>)],
    ) -> Hand {
        for (name, dtype, sizes) in results {
            self.graph.tensors.insert((*name).into(), meta(*dtype, sizes));
        }
        self.node(target, inputs, results.iter().map(|(name, ..)| t(name)).collect())
    }

    /// A call with results of any kind.
    pub(crate) fn node(mut self, target: &str, inputs: &[(&str, Arg)], outputs: Vec<Arg>) -> Hand {
        let inputs = inputs.iter().map(|(n, a)| NamedArg { name: (*n).into(), arg: a.clone() }).collect();
        let name = format!("call{}", self.graph.nodes.len());
        let (module, line) = (String::new(), String::new());
        self.graph.nodes.push(Node { name, target: target.into(), inputs, outputs, module, line });
        self
    }

    /// The graph of the program with these results.
    pub(crate) fn lower(mut self, outputs: &[&str]) -> Result<Graph, Vec<Diagnostic>> {
        self.graph.outputs = outputs.iter().map(|n| t(n)).collect();
        let names: Vec<String> = self.graph.inputs.iter().enumerate().map(|(i, _)| format!("in_{i}")).collect();
        let program = Program {
            name: "hand".into(),
            inputs: self.graph.inputs.iter().cloned().map(InputSpec::User).collect(),
            outputs: self.graph.outputs.iter().cloned().map(OutputSpec::User).collect(),
            input_names: names,
            output_names: outputs.iter().map(|n| (*n).to_string()).collect(),
            graph: self.graph,
            ranges: self.ranges,
            functional: true,
            torch_version: "2.11.0".into(),
            weights: WeightStore::new(),
            warnings: vec![],
        };
        aten::lower(&program, &Options::default())
    }
}

/// What a graph gives in the interpreter.
pub(crate) fn interpret(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    let out = eval(graph, &|_| None, inputs, &Symbols::new())?;
    Ok(out.tensors().into_iter().cloned().collect())
}

/// What it gives on the device, twice over one recording; nothing where there is no device.
pub(crate) fn run(graph: &Graph, inputs: &[Tensor]) -> Option<Result<Vec<Tensor>, ExecError>> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let gpu = GPU.get_or_init(|| Gpu::open(&Select::Auto).ok()).as_ref()?;
    let store = WeightStore::new();
    let profile = jvc::device::of_gpu(gpu.info());
    let compiled = plan_graphs(vec![graph.clone()], &[&store], &Options::default(), &profile)
        .unwrap_or_else(|all| panic!("{}", all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")));
    let loaded = Loaded::new(gpu, &compiled, &CacheDir::None).expect("loads");
    let mut session = loaded.session(0).expect("a session");
    let value = |x: &Tensor| {
        let shape = x.shape.iter().map(|&d| d as i64).collect();
        Value::Tensor(HostTensor { dtype: x.dtype, shape, bytes: x.to_bytes() })
    };
    let values: Vec<Value> = inputs.iter().map(value).collect();
    let mut once = || {
        session.poison_arena().expect("poison");
        session.run(&values).map(|out| out.iter().map(to_eval).collect::<Vec<_>>())
    };
    let (first, second) = (once(), once());
    assert_eq!(first.as_ref().ok(), second.as_ref().ok(), "a recording runs again");
    Some(first)
}

fn to_eval(x: &HostTensor) -> Tensor {
    let shape = x.shape.iter().map(|&d| d as usize).collect();
    Tensor::from_bytes(x.dtype, shape, &x.bytes).expect("whole elements")
}

/// Holds the interpreter and the device to expected values: integers exactly, floats to a relative error of the largest.
pub(crate) fn expect(graph: &Graph, inputs: &[Tensor], expected: &[Tensor]) {
    let close = |what: &str, got: &[Tensor]| {
        assert_eq!(got.len(), expected.len(), "{what}");
        for (i, (g, w)) in got.iter().zip(expected).enumerate() {
            assert_eq!((g.dtype, &g.shape), (w.dtype, &w.shape), "{what}: type of output {i}");
            if !g.dtype.is_float() {
                assert_eq!(g.data, w.data, "{what}: output {i}");
                continue;
            }
            let scale = w.floats().iter().fold(1e-6f64, |m, v| m.max(v.abs()));
            for (k, (a, b)) in g.floats().iter().zip(w.floats()).enumerate() {
                assert!((a - b).abs() <= 4e-6 * scale, "{what}: output {i} element {k} is {a}, not {b}");
            }
        }
    };
    close("interpreter", &interpret(graph, inputs).expect("evaluates"));
    if let Some(got) = run(graph, inputs) {
        close("device", &got.expect("runs"));
    }
}

/// Numbers in [0, 1), the same for the same seed.
pub(crate) fn random(n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Exact in f32.
            (state >> 40) as f64 / (1u64 << 24) as f64
        })
        .collect()
}

pub(crate) fn f32s(shape: &[usize], values: Vec<f64>) -> Tensor {
    Tensor::from_f64(DType::F32, shape, values)
}

pub(crate) fn i64s(shape: &[usize], values: Vec<i64>) -> Tensor {
    Tensor::from_i64(DType::I64, shape, values)
}
