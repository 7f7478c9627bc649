//! In-place operators on views: programs of the training form, built by hand, and what eager PyTorch would give for them.
//!
//! Expected values are computed here, on a plain array, never by the compiler.

use jvc::aten;
use jvc::import::program::{Arg, InputSpec, NamedArg, Node, OutputSpec, Program, ProgramGraph, ScalarType, TensorMeta};
use jvc::import::weights::{Storage, WeightStore, WeightView};
use jvc::ir::eval::{Output, Outputs, Symbols, Tensor, eval};
use jvc::ir::{DType, Dim, Graph, Op};
use jvc::options::Options;
use jvc::report::{Code, Diagnostic};

/// Builds a program over one f32 input `x` of shape [4, 6] with elements 0, 1, … 23, and a buffer `b` of shape [3] that holds 1, 2, 3.
struct Builder {
    graph: ProgramGraph,
}

fn meta(sizes: &[i64], strides: &[i64]) -> TensorMeta {
    let dims = |v: &[i64]| v.iter().map(|&d| Dim::from(d)).collect();
    TensorMeta { dtype: ScalarType::F32, sizes: dims(sizes), strides: dims(strides), storage_offset: Dim::from(0) }
}

fn t(name: &str) -> Arg {
    Arg::Tensor(name.to_string())
}

impl Builder {
    fn new() -> Builder {
        let mut graph = ProgramGraph { inputs: vec![t("b"), t("x")], ..ProgramGraph::default() };
        graph.tensors.insert("x".into(), meta(&[4, 6], &[6, 1]));
        graph.tensors.insert("b".into(), meta(&[3], &[1]));
        Builder { graph }
    }

    /// A call with one result of the given sizes and strides.
    fn call(mut self, name: &str, target: &str, inputs: &[(&str, Arg)], sizes: &[i64], strides: &[i64]) -> Builder {
        self.graph.tensors.insert(name.into(), meta(sizes, strides));
        let inputs = inputs.iter().map(|(n, a)| NamedArg { name: (*n).into(), arg: a.clone() }).collect();
        self.graph.nodes.push(Node {
            name: name.into(),
            target: target.into(),
            inputs,
            outputs: vec![t(name)],
            module: String::new(),
            line: String::new(),
        });
        self
    }

    fn add_one(self, name: &str, to: &str) -> Builder {
        let m = self.graph.tensors[to].clone();
        let dims = |v: &[Dim]| v.iter().filter_map(Dim::as_const).collect::<Vec<i64>>();
        self.call(
            name,
            "aten.add_.Tensor",
            &[("self", t(to)), ("other", Arg::Int(1))],
            &dims(&m.sizes),
            &dims(&m.strides),
        )
    }

    fn lower(mut self, outputs: &[&str]) -> Result<Graph, Vec<Diagnostic>> {
        self.graph.outputs = outputs.iter().map(|n| t(n)).collect();
        let bytes = [1f32, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let storage = Some(Storage::owned(bytes));
        let view = WeightView { dtype: ScalarType::F32, sizes: vec![3], strides: vec![1], offset: 0, storage };
        let program = Program {
            name: "model".into(),
            outputs: self.graph.outputs.iter().cloned().map(OutputSpec::User).collect(),
            output_names: outputs.iter().map(|n| (*n).to_string()).collect(),
            graph: self.graph,
            inputs: vec![
                InputSpec::Weight { arg: "b".into(), name: "b".into(), buffer: true },
                InputSpec::User(t("x")),
            ],
            input_names: vec!["x".into()],
            ranges: Default::default(),
            functional: false,
            torch_version: "2.11.0".into(),
            weights: WeightStore::from([("b".to_string(), view)]),
            warnings: vec![],
        };
        aten::lower(&program, &Options::default())
    }

    fn run(self, outputs: &[&str]) -> Outputs {
        let graph = self.lower(outputs).expect("lowers");
        let weights = |name: &str| (name == "b").then(|| Tensor::from_f64(DType::F32, &[3], vec![1.0, 2.0, 3.0]));
        eval(&graph, &weights, &[Tensor::from_f64(DType::F32, &[4, 6], x())], &Symbols::new()).expect("evaluates")
    }
}

fn x() -> Vec<f64> {
    (0..24).map(f64::from).collect()
}

/// x with a function applied where `at(row, column)` holds.
fn changed(at: impl Fn(usize, usize) -> bool, f: impl Fn(f64) -> f64) -> Vec<f64> {
    x().iter().enumerate().map(|(i, &v)| if at(i / 6, i % 6) { f(v) } else { v }).collect()
}

fn values(out: &Outputs, i: usize) -> Vec<f64> {
    match &out.outputs[i] {
        Output::Tensor(t) => t.floats().to_vec(),
        other => panic!("output {i} is {other:?}"),
    }
}

fn ints(v: &[i64]) -> Arg {
    Arg::Ints(v.to_vec())
}

#[test]
fn a_reshape_that_is_a_view_writes_through_to_its_base() {
    let b =
        Builder::new().call("flat", "aten.reshape.default", &[("self", t("x")), ("shape", ints(&[24]))], &[24], &[1]);
    let out = b.add_one("add_", "flat").run(&["x", "flat"]);
    let expected = changed(|_, _| true, |v| v + 1.0);
    assert_eq!(values(&out, 0), expected, "the base sees the write");
    assert_eq!(values(&out, 1), expected, "so does the view");
    assert_eq!(out.input_updates.len(), 1, "the caller's tensor changes");
    assert_eq!(out.input_updates[0].1.floats(), expected, "to the same values");
}

#[test]
fn a_reshape_that_copies_leaves_its_base_alone() {
    let b = Builder::new().call("tr", "aten.t.default", &[("self", t("x"))], &[6, 4], &[1, 6]).call(
        "flat",
        "aten.reshape.default",
        &[("self", t("tr")), ("shape", ints(&[24]))],
        &[24],
        &[1],
    );
    let out = b.add_one("add_", "flat").run(&["x", "flat"]);
    assert_eq!(values(&out, 0), x(), "the base keeps its values");
    let copy: Vec<f64> = (0..24).map(|i| f64::from(i % 4 * 6 + i / 4 + 1)).collect();
    assert_eq!(values(&out, 1), copy, "the copy has the new ones");
    assert!(out.input_updates.is_empty(), "the caller's tensor does not change");
}

#[test]
fn contiguous_and_to_alias_only_where_nothing_changes() {
    let same = Builder::new().call("c", "aten.contiguous.default", &[("self", t("x"))], &[4, 6], &[6, 1]);
    let out = same.add_one("add_", "c").run(&["x"]);
    assert_eq!(values(&out, 0), changed(|_, _| true, |v| v + 1.0), "contiguous of a contiguous tensor is the tensor");
    let moved = Builder::new().call("tr", "aten.t.default", &[("self", t("x"))], &[6, 4], &[1, 6]).call(
        "c",
        "aten.contiguous.default",
        &[("self", t("tr"))],
        &[6, 4],
        &[4, 1],
    );
    let out = moved.add_one("add_", "c").run(&["x"]);
    assert_eq!(values(&out, 0), x(), "contiguous of a transposed tensor is a copy");
    let f32_to_f32 = [("self", t("x")), ("dtype", Arg::ScalarType(ScalarType::F32))];
    let out = Builder::new().call("y", "aten.to.dtype", &f32_to_f32, &[4, 6], &[6, 1]).add_one("add_", "y").run(&["x"]);
    assert_eq!(values(&out, 0), changed(|_, _| true, |v| v + 1.0), "to of the same type is the tensor");
    let forced = [("self", t("x")), ("dtype", Arg::ScalarType(ScalarType::F32)), ("copy", Arg::Bool(true))];
    let out = Builder::new().call("y", "aten.to.dtype", &forced, &[4, 6], &[6, 1]).add_one("add_", "y").run(&["x"]);
    assert_eq!(values(&out, 0), x(), "copy=True copies");
}

#[test]
fn a_write_through_a_chain_of_views_reaches_every_other_view() {
    // row = x[1]; part = x[:, 1:6:2]; part.mul_(10); then row and the flat view are read again.
    let slice =
        [("self", t("x")), ("dim", Arg::Int(1)), ("start", Arg::Int(1)), ("end", Arg::Int(6)), ("step", Arg::Int(2))];
    let out = Builder::new()
        .call("row", "aten.select.int", &[("self", t("x")), ("dim", Arg::Int(0)), ("index", Arg::Int(1))], &[6], &[1])
        .call("flat", "aten.view.default", &[("self", t("x")), ("size", ints(&[24]))], &[24], &[1])
        .call("part", "aten.slice.Tensor", &slice, &[4, 3], &[6, 2])
        .call("turned", "aten.permute.default", &[("self", t("part")), ("dims", ints(&[1, 0]))], &[3, 4], &[2, 6])
        .call("mul_", "aten.mul_.Tensor", &[("self", t("turned")), ("other", Arg::Int(10))], &[3, 4], &[2, 6])
        .call("sum", "aten.neg.default", &[("self", t("row"))], &[6], &[1])
        .run(&["x", "sum", "flat", "part"]);
    let expected = changed(|_, c| c % 2 == 1, |v| v * 10.0);
    assert_eq!(values(&out, 0), expected, "base");
    let row: Vec<f64> = expected[6..12].iter().map(|v| -v).collect();
    assert_eq!(values(&out, 1), row, "a view taken before the write reads the new values");
    assert_eq!(values(&out, 2), expected, "and so does another");
    let part: Vec<f64> = expected.iter().enumerate().filter(|(i, _)| i % 6 % 2 == 1).map(|(_, v)| *v).collect();
    assert_eq!(values(&out, 3), part, "and the view between");
}

#[test]
fn writes_go_to_one_copy_and_one_diagonal() {
    let select = [("self", t("x")), ("dim", Arg::Int(1)), ("index", Arg::Int(-1))];
    let out = Builder::new()
        .call("col", "aten.select.int", &select, &[4], &[6])
        .call("copy_", "aten.copy_.default", &[("self", t("col")), ("src", t("col"))], &[4], &[6])
        .call("fill_", "aten.fill_.Scalar", &[("self", t("col")), ("value", Arg::Float(-1.0))], &[4], &[6])
        .run(&["x"]);
    assert_eq!(values(&out, 0), changed(|_, c| c == 5, |_| -1.0), "a column");
    let out = Builder::new()
        .call("d", "aten.diagonal.default", &[("self", t("x")), ("offset", Arg::Int(1))], &[4], &[7])
        .add_one("add_", "d")
        .run(&["x"]);
    assert_eq!(values(&out, 0), changed(|r, c| c == r + 1, |v| v + 1.0), "a diagonal");
    let out = Builder::new()
        .call("y", "aten.clone.default", &[("self", t("x"))], &[4, 6], &[6, 1])
        .add_one("add_", "y")
        .run(&["x", "y"]);
    assert_eq!(values(&out, 0), x(), "a clone is written alone");
}

#[test]
fn a_written_buffer_is_state() {
    let b = Builder::new().add_one("add_", "b").call(
        "twice",
        "aten.add.Tensor",
        &[("self", t("b")), ("other", t("b"))],
        &[3],
        &[1],
    );
    let graph = Builder { graph: b.graph.clone() }.lower(&["twice"]).expect("lowers");
    let states = graph.nodes.iter().filter(|n| matches!(&n.op, Op::State(w) if w.name == "b")).count();
    assert_eq!(states, 1, "the buffer is read as state");
    assert!(!graph.nodes.iter().any(|n| matches!(n.op, Op::Weight(_))), "and not as a constant");
    let out = b.run(&["twice"]);
    assert_eq!(values(&out, 0), [4.0, 6.0, 8.0], "later readers see the write");
    assert_eq!(out.state_updates[0].0, "b", "named as in the checkpoint");
    assert_eq!(out.state_updates[0].1.floats(), [2.0, 3.0, 4.0], "new value");
}

#[test]
fn a_write_to_expanded_memory_is_refused() {
    let b = Builder::new()
        .call(
            "one",
            "aten.slice.Tensor",
            &[("self", t("x")), ("dim", Arg::Int(0)), ("end", Arg::Int(1))],
            &[1, 6],
            &[6, 1],
        )
        .call("wide", "aten.expand.default", &[("self", t("one")), ("size", ints(&[3, 6]))], &[3, 6], &[0, 1]);
    let problems = b.add_one("add_", "wide").lower(&["x"]).expect_err("refused");
    assert_eq!(problems[0].code, Code::UnsupportedAttribute);
    assert!(problems[0].message.contains("expanded"), "{}", problems[0].message);
}

#[test]
fn every_problem_is_told_once_and_none_that_follows_from_another() {
    let b = Builder::new()
        .call("p", "aten.no_such_op.default", &[("self", t("x"))], &[4, 6], &[6, 1])
        .call("q", "aten.relu.default", &[("self", t("p"))], &[4, 6], &[6, 1])
        .call(
            "r",
            "aten.div.Tensor_mode",
            &[("self", t("q")), ("other", Arg::Int(2)), ("rounding_mode", Arg::Str("up".into()))],
            &[4, 6],
            &[6, 1],
        )
        .call("s", "aten.no_such_op.default", &[("self", t("r"))], &[4, 6], &[6, 1]);
    let problems = b.lower(&["s"]).expect_err("three problems");
    let found: Vec<(Code, &str)> = problems.iter().map(|d| (d.code, d.origin.node.as_str())).collect();
    assert_eq!(found, [(Code::UnsupportedOp, "p"), (Code::BadArgument, "r"), (Code::UnsupportedOp, "s")]);
}

#[test]
fn a_result_that_is_not_as_recorded_is_refused() {
    let b = Builder::new().call("y", "aten.relu.default", &[("self", t("x"))], &[4, 5], &[5, 1]);
    let problems = b.lower(&["y"]).expect_err("4×5 recorded, 4×6 computed");
    assert!(
        problems[0].message.contains("f32[4,5]") && problems[0].message.contains("f32[4,6]"),
        "{}",
        problems[0].message
    );
}
