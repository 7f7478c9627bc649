//! Programs whose course or randomness is their own, on the device at hand: `data/control/` holds small exports of torch 2.11 (made by
//! `models/fixtures/make_fixtures.py`) with PyTorch's results where there are any.

use jvc::aten;
use jvc::exec::{ExecError, HostTensor, Loaded, Value};
use jvc::import;
use jvc::import::program::{
    Arg, InputSpec, NamedArg, Node, OutputSpec, Program, ProgramGraph, ScalarType, SubGraph, TensorMeta,
};
use jvc::import::weights::WeightStore;
use jvc::ir::eval::{EvalError, Symbols, Tensor, eval};
use jvc::ir::{DType, Dim, Graph};
use jvc::options::Options;
use jvc::pass_rule::{Level, Rule};
use jvc::passes::checkpoint_tensor;
use jvc::pipeline::plan_graphs;
use jvc::report::{Code, Diagnostic};
use jvc::tensor_file::read_tensors;
use jvc::verify::{Request, Status, verify};
use jvc_runtime::{CacheDir, Gpu, Select};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/control")
}

#[test]
fn programs_with_control_flow_and_random_numbers_run_as_in_pytorch() {
    if Gpu::open(&Select::Auto).is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has a device");
        return;
    }
    let request = Request { repeats: 2, ..Request::new(vec![folder()]) };
    let mut problems = vec![];
    let mut each = |_, _, report: &jvc::verify::FileReport| {
        if report.status != Status::Pass {
            problems.push(format!("{}: {:?}", report.name, report.status));
        }
    };
    verify(&request, &mut each).expect("a device");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn to_eval(t: &HostTensor) -> Tensor {
    let shape = t.shape.iter().map(|&d| d as usize).collect();
    Tensor::from_bytes(t.dtype, shape, &t.bytes).expect("whole elements")
}

#[test]
fn the_interpreter_agrees_with_pytorch() {
    let mut judged = 0;
    for name in ["cond_while", "cond_while.core", "scan", "scan.core"] {
        let program = import::read(&folder().join(format!("{name}.pt2"))).expect("an archive").remove(0);
        let graph = aten::lower(&program, &Options::default()).expect("lowers");
        let base = name.trim_end_matches(".core");
        let tensors = read_tensors(&folder().join(format!("{base}.safetensors"))).expect("references");
        for set in ["", "alt.0."] {
            let find = |kind: &str, i: usize| tensors.get(&format!("{set}{kind}.{i}")).map(to_eval);
            let inputs: Vec<Tensor> = (0..graph.inputs.len()).filter_map(|i| find("in", i)).collect();
            if inputs.len() < graph.inputs.len() {
                continue;
            }
            let weights = |name: &str| checkpoint_tensor(&program.weights, name);
            let out = eval(&graph, &weights, &inputs, &Symbols::new()).expect("evaluates");
            for (i, got) in out.tensors().into_iter().enumerate() {
                let want = find("out", i).expect("a reference");
                let rule = Rule { precision: DType::F32, level: Level::Model, edge: false };
                let figures = rule.compare(got, &want, find("out64", i).as_ref()).expect("the same type");
                assert_eq!(figures.failed, 0, "{name} {set}out.{i}");
                judged += 1;
            }
        }
    }
    assert_eq!(judged, 12);
}

fn t(name: &str) -> Arg {
    Arg::Tensor(name.into())
}

fn tensor_type(sizes: &[i64]) -> TensorMeta {
    let strides = (0..sizes.len()).map(|d| Dim::from(sizes[d + 1..].iter().product::<i64>())).collect();
    let sizes = sizes.iter().map(|&d| Dim::from(d)).collect();
    TensorMeta { dtype: ScalarType::F32, sizes, strides, storage_offset: Dim::from(0) }
}

fn node(name: &str, target: &str, inputs: &[(&str, Arg)]) -> Node {
    let inputs = inputs.iter().map(|(n, a)| NamedArg { name: (*n).into(), arg: a.clone() }).collect();
    let (module, line) = (String::new(), String::new());
    Node { name: name.into(), target: target.into(), inputs, outputs: vec![t(name)], module, line }
}

/// A graph of f32 tensors, each with its sizes.
fn graph(inputs: &[&str], nodes: Vec<Node>, result: &str, types: &[(&str, &[i64])]) -> ProgramGraph {
    ProgramGraph {
        inputs: inputs.iter().map(|n| t(n)).collect(),
        outputs: vec![t(result)],
        nodes,
        tensors: types.iter().map(|(n, sizes)| ((*n).to_string(), tensor_type(sizes))).collect(),
        ..ProgramGraph::default()
    }
}

fn sub(g: ProgramGraph) -> Arg {
    Arg::Graph(Box::new(SubGraph { name: "body".into(), graph: g }))
}

/// A program over `x` of shape [3, 2] that is one call of `target`.
fn lower(target: &str, inputs: &[(&str, Arg)], sizes: &[i64]) -> Result<Graph, Vec<Diagnostic>> {
    lower_with(target, inputs, sizes, &Options::default())
}

fn lower_with(
    target: &str,
    inputs: &[(&str, Arg)],
    sizes: &[i64],
    options: &Options,
) -> Result<Graph, Vec<Diagnostic>> {
    let graph = graph(&["x"], vec![node("y", target, inputs)], "y", &[("x", &[3, 2]), ("y", sizes)]);
    let program = Program {
        name: "model".into(),
        inputs: vec![InputSpec::User(t("x"))],
        outputs: vec![OutputSpec::User(t("y"))],
        input_names: vec!["x".into()],
        output_names: vec!["y".into()],
        graph,
        ranges: Default::default(),
        functional: true,
        torch_version: "2.11.0".into(),
        weights: WeightStore::new(),
        warnings: vec![],
    };
    aten::lower(&program, options)
}

fn run(graph: &Graph) -> Vec<f64> {
    let x = Tensor::from_f64(DType::F32, &[3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    eval(graph, &|_| None, &[x], &Symbols::new()).expect("evaluates").tensors()[0].floats().to_vec()
}

#[test]
fn map_applies_its_body_to_every_row() {
    let double = node("d", "aten.add.Tensor", &[("self", t("r")), ("other", t("r"))]);
    let body = graph(&["r"], vec![double], "d", &[("r", &[2]), ("d", &[2])]);
    let inputs = [("", sub(body)), ("", Arg::Tensors(vec!["x".into()])), ("", Arg::Tensors(vec![]))];
    let g = lower("higher_order.map_impl", &inputs, &[3, 2]).expect("lowers");
    assert_eq!(run(&g), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    assert!(g.slow.iter().any(|(_, reason)| reason.contains("iteration by iteration")), "{:?}", g.slow);
}

#[test]
fn associative_scan_combines_each_row_with_all_before_it() {
    let product = node("p", "aten.mul.Tensor", &[("self", t("a")), ("other", t("b"))]);
    let body = graph(&["a", "b"], vec![product], "p", &[("a", &[2]), ("b", &[2]), ("p", &[2])]);
    let inputs = [("", sub(body)), ("", Arg::Tensors(vec!["x".into()])), ("", Arg::Tensors(vec![]))];
    let g = lower("higher_order.associative_scan", &inputs, &[3, 2]).expect("lowers");
    assert_eq!(run(&g), [1.0, 2.0, 3.0, 8.0, 15.0, 48.0]);
}

#[test]
fn a_branch_that_writes_its_operand_is_refused() {
    let write = node("w", "aten.add_.Tensor", &[("self", t("a")), ("other", Arg::Int(1))]);
    let writes = graph(&["a"], vec![write], "w", &[("a", &[3, 2]), ("w", &[3, 2])]);
    let inputs =
        [("", Arg::Bool(true)), ("", sub(writes.clone())), ("", sub(writes)), ("", Arg::Tensors(vec!["x".into()]))];
    let problems = lower("higher_order.cond", &inputs, &[3, 2]).expect_err("a write");
    assert_eq!(problems[0].code, Code::UnsupportedAttribute, "{}", problems[0]);
    assert!(problems[0].message.contains("writes one of its operands"), "{}", problems[0]);
}

/// `while x.sum() < limit: x = x + x`, at most `bound` times.
fn doubling(limit: i64, bound: Option<i64>) -> Result<Graph, Vec<Diagnostic>> {
    let sum = node("s", "aten.sum.default", &[("self", t("a"))]);
    let mut below = node("c", "aten.lt.Scalar", &[("self", t("s")), ("other", Arg::Int(limit))]);
    below.outputs = vec![t("c")];
    let mut test = graph(&["a"], vec![sum, below], "c", &[("a", &[3, 2]), ("s", &[]), ("c", &[])]);
    test.tensors.get_mut("c").expect("just made").dtype = ScalarType::Bool;
    let double = node("d", "aten.add.Tensor", &[("self", t("a")), ("other", t("a"))]);
    let body = graph(&["a"], vec![double], "d", &[("a", &[3, 2]), ("d", &[3, 2])]);
    let inputs = [("", sub(test)), ("", sub(body)), ("", Arg::Tensors(vec!["x".into()])), ("", Arg::Tensors(vec![]))];
    let bound = bound.map(|b| ("y".to_string(), b)).into_iter().collect();
    lower_with("higher_order.while_loop", &inputs, &[3, 2], &Options { bound, ..Options::default() })
}

#[test]
fn a_loop_whose_trips_the_data_decide_runs_up_to_its_bound() {
    // The sum is 21, 42, 84, 168: three trips.
    let open = doubling(100, None).expect_err("no bound");
    assert_eq!(open[0].code, Code::Unbounded, "{}", open[0]);
    for bound in [3, 5] {
        let g = doubling(100, Some(bound)).expect("lowers");
        assert_eq!(run(&g), [8.0, 16.0, 24.0, 32.0, 40.0, 48.0], "at most {bound} trips");
    }
    let g = doubling(10, Some(4)).expect("lowers");
    assert_eq!(run(&g), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "no trip");
}

#[test]
fn more_trips_than_the_bound_are_an_error_on_the_device_and_in_the_interpreter() {
    let x = Tensor::from_f64(DType::F32, &[3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let short = doubling(100, Some(2)).expect("lowers");
    let error = eval(&short, &|_| None, std::slice::from_ref(&x), &Symbols::new()).expect_err("too many trips");
    assert!(matches!(error, EvalError::Bound { value: 3, max: 2, .. }), "{error}");
    let Ok(gpu) = Gpu::open(&Select::Auto) else { return };
    let shape = vec![3, 2];
    let value = Value::Tensor(HostTensor { dtype: DType::F32, shape, bytes: x.to_bytes() });
    let profile = jvc::device::of_gpu(gpu.info());
    for (graph, fits) in [(short, false), (doubling(100, Some(6)).expect("lowers"), true)] {
        let store = WeightStore::new();
        let compiled = plan_graphs(vec![graph], &[&store], &Options::default(), &profile).expect("compiles");
        let loaded = Loaded::new(&gpu, &compiled, &CacheDir::None).expect("loads");
        let mut session = loaded.session(0).expect("a session");
        match session.run(std::slice::from_ref(&value)) {
            Ok(out) => {
                let got = to_eval(&out[0]).floats().to_vec();
                assert!(fits && got == [8.0, 16.0, 24.0, 32.0, 40.0, 48.0], "{got:?}");
                assert_eq!(session.symbols()["y"], 3, "trips");
            }
            Err(error) => {
                assert!(!fits && matches!(error, ExecError::Found { value: 3, max: 2, .. }), "{error}");
            }
        }
        // The slot of a refused run is free again.
        assert_eq!(session.run(std::slice::from_ref(&value)).is_ok(), fits);
    }
}
