//! What is spread over many workgroups: few long rows, and the time steps of recurrent layers. On kernels as for a GPU, on any device.

use super::{Case, compare, gpu, to_value, validate};
use jvc::device;
use jvc::exec::{HostTensor, Loaded, Value, check_ranges};
use jvc::import::weights::WeightStore;
use jvc::ir::eval::{Precision, Tensor, eval_with};
use jvc::ir::{DType, Dim, Graph, Op, UserOutput, ValueId};
use jvc::options::Options;
use jvc::passes::{Cx, PASSES, run_one};
use jvc::pipeline::plan_graphs;
use jvc_codegen::plan::Step;
use jvc_kernels::expr::Binary;
use jvc_kernels::spec::{Cell, Combine};
use jvc_runtime::CacheDir;
use std::collections::BTreeMap;

impl Case {
    /// Compares the device with the interpreter, twice, with the steps' ranges; on the device runs what the pass makes of the graph, as
    /// planned for a GPU or for what the device is. The kernels that ran, by name, with the barriers.
    fn check_spread(mut self, outputs: &[ValueId], pass: Option<&str>, as_gpu: bool) -> Vec<String> {
        let named = outputs.iter().enumerate().map(|(i, &v)| (format!("out_{i}"), UserOutput::Tensor(v)));
        self.b.graph.outputs = named.collect();
        let mut on_device = self.b.graph.clone();
        if let Some(name) = pass {
            let pass = PASSES.iter().find(|p| p.name == name).expect("a pass");
            let h200 = device::find("h200").expect("a bundled profile");
            let cx = Cx::new(&|_| None, false, u32::MAX);
            let cx = if as_gpu { cx.compiling_for(&h200) } else { cx };
            let done = run_one(pass, &mut on_device, &cx, false).expect("the pass");
            assert!(done.patches > 0, "{name} found something");
        }
        run(on_device, &self.b.graph, &self.inputs, as_gpu)
    }
}

fn run(on_device: Graph, oracle: &Graph, inputs: &[Tensor], as_gpu: bool) -> Vec<String> {
    let Some(gpu) = gpu() else {
        assert!(std::env::var_os("CI").is_none(), "CI has a device");
        return vec![];
    };
    let mut profile = device::of_gpu(gpu.info());
    profile.rates.cpu &= !as_gpu;
    let store = WeightStore::new();
    let compiled = plan_graphs(vec![on_device], &[&store], &Options::default(), &profile).expect("it compiles");
    validate(&compiled);
    let loaded = Loaded::new(gpu, &compiled, &CacheDir::None).expect("the program loads");
    let mut session = loaded.session(0).expect("a session");
    session.poison_arena().expect("poison");
    let values: Vec<Value> = inputs.iter().map(to_value).collect();
    let got = session.run(&values).expect("a run");
    let want = eval_with(oracle, &|_| None, inputs, &BTreeMap::new(), Precision::Exact).expect("the interpreter");
    for (i, (got, want)) in got.iter().zip(want.tensors()).enumerate() {
        compare(i, got, want);
    }
    let bytes = |t: &[HostTensor]| t.iter().map(|t| t.bytes.clone()).collect::<Vec<_>>();
    let again = session.run(&values).expect("a second run");
    assert!(bytes(&got) == bytes(&again), "the same bytes again");
    let ranges = check_ranges(gpu, &compiled, 0, &values).expect("the steps run alone");
    assert_eq!(ranges.faults, vec![], "declared ranges");
    let kernel = |s: &Step| match s {
        Step::Dispatch(d) => compiled.plan.kernels[d.kernel as usize].name.clone(),
        Step::Barrier => "barrier".to_string(),
    };
    compiled.plan.entries[0].steps.iter().map(kernel).collect()
}

/// The operands of a layer over the input projection `x`: weights small enough that gates do not saturate, a bias if asked for, states.
pub(crate) fn recurrent_operands(
    c: &mut Case,
    x: ValueId,
    cell: Cell,
    [gates, batch, hidden]: [i64; 3],
    bias: bool,
) -> Vec<ValueId> {
    let w = c.input(DType::F32, &[gates * hidden, hidden]);
    let small = c.map(&[w], |e, a| {
        let s = e.f32(0.1);
        e.bin(Binary::Mul, a[0], s)
    });
    let mut inputs = vec![x, small];
    if bias {
        inputs.push(c.input(DType::F32, &[gates * hidden]));
    }
    inputs.push(c.input(DType::F32, &[batch, hidden]));
    if cell == Cell::Lstm {
        inputs.push(c.input(DType::F32, &[batch, hidden]));
    }
    inputs
}

/// A layer over a computed input, so that this is in a buffer; its results, the series also beside itself reversed.
fn layer(c: &mut Case, cell: Cell, shape: [i64; 3], reverse: bool, bias: bool) -> Vec<ValueId> {
    let gates = match cell {
        Cell::Lstm => 4,
        Cell::Gru => 3,
        Cell::RnnTanh | Cell::RnnRelu => 1,
    };
    let [steps, batch, hidden] = shape;
    let x = c.input(DType::F32, &[batch, steps, gates * hidden]);
    let x = c.gelu(x);
    let x = c.op(Op::Permute(vec![1, 0, 2]), &[x]);
    let inputs = recurrent_operands(c, x, cell, [gates, batch, hidden], bias);
    c.ops(Op::Recurrent { cell, reverse, bias }, &inputs)
}

#[test]
fn a_gpu_gets_a_dispatch_for_each_time_step_of_a_recurrent_layer() {
    for cell in [Cell::Lstm, Cell::Gru, Cell::RnnTanh, Cell::RnnRelu] {
        for (batch, reverse, bias) in [(1, false, true), (3, true, true), (3, false, false), (1, true, false)] {
            let mut c = Case::new();
            let outs = layer(&mut c, cell, [7, batch, 36], reverse, bias);
            let more = c.gelu(outs[0]);
            let steps = c.check_spread(&[&outs[..], &[more]].concat(), None, true);
            let kernels: Vec<&String> = steps.iter().filter(|s| s.starts_with("row")).collect();
            assert!(steps.is_empty() || kernels.len() == 7, "{steps:?}");
            assert!(
                kernels.iter().skip(1).all(|k| *k == kernels[1]),
                "one kernel for all steps but the first: {steps:?}"
            );
        }
    }
}

#[test]
fn both_directions_of_a_layer_step_between_the_same_barriers() {
    let mut c = Case::new();
    let outs = [layer(&mut c, Cell::Gru, [9, 1, 32], false, true), layer(&mut c, Cell::Gru, [9, 1, 32], true, true)];
    let y = c.op(Op::Concat { dim: 2 }, &[outs[0][0], outs[1][0]]);
    let y = c.gelu(y);
    let steps = c.check_spread(&[y, outs[1][1]], None, true);
    let barriers = steps.iter().filter(|s| *s == "barrier").count();
    assert!(barriers < 9 + 4, "{steps:?}");
}

#[test]
fn steps_of_equal_layers_between_the_same_barriers_are_one_dispatch() {
    for cell in [Cell::Gru, Cell::Lstm] {
        let mut c = Case::new();
        let ends: Vec<ValueId> = (0..2).flat_map(|_| layer(&mut c, cell, [9, 2, 32], false, true)).collect();
        let steps = c.check_spread(&ends, None, true);
        let rows = steps.iter().filter(|s| s.starts_with("row")).count();
        assert!(rows <= 10, "{rows} dispatches of 18 steps: {steps:?}");
    }
}

#[test]
fn stacks_of_layers_that_do_not_depend_on_each_other_step_together() {
    let mut c = Case::new();
    let mut ends = vec![];
    for _ in 0..2 {
        let y = layer(&mut c, Cell::RnnTanh, [9, 1, 32], false, true)[0];
        let (x, w) = (c.gelu(y), c.input(DType::F32, &[32, 32]));
        let h = c.input(DType::F32, &[1, 32]);
        ends.push(c.ops(Op::Recurrent { cell: Cell::RnnRelu, reverse: false, bias: false }, &[x, w, h])[0]);
    }
    let steps = c.check_spread(&ends, None, true);
    let barriers = steps.iter().filter(|s| *s == "barrier").count();
    assert!(barriers < 2 * 9 + 4, "{steps:?}");
}

#[test]
fn layers_of_a_stack_step_together_each_behind_the_one_below() {
    for (cell, gates, batch) in [(Cell::Gru, 3, 1), (Cell::Lstm, 4, 2)] {
        let mut c = Case::new();
        let mut y = layer(&mut c, cell, [24, batch, 32], false, true)[0];
        for _ in 0..2 {
            let w = c.input(DType::F32, &[32, gates * 32]);
            let rows = c.op(Op::Reshape(vec![Dim::from(24 * batch), Dim::from(32)]), &[y]);
            let x = c.op(Op::Matmul, &[rows, w]);
            let x = c.map(&[x], |e, a| {
                let s = e.f32(0.05);
                e.bin(Binary::Mul, a[0], s)
            });
            let x = c.op(Op::Reshape(vec![Dim::from(24), Dim::from(batch), Dim::from(gates * 32)]), &[x]);
            let inputs = recurrent_operands(&mut c, x, cell, [gates, batch, 32], true);
            y = c.ops(Op::Recurrent { cell, reverse: false, bias: true }, &inputs)[0];
        }
        let steps = c.check_spread(&[y], None, true);
        let barriers = steps.iter().filter(|s| *s == "barrier").count();
        assert!(barriers < 24 + 20, "{barriers} barriers, one after the other there are 75: {steps:?}");
        let rows = steps.iter().filter(|s| s.starts_with("row")).count();
        assert!(rows < 3 * 24 - 20, "{rows} dispatches of 72 steps, those of a wave are one: {steps:?}");
    }
}

#[test]
fn steps_that_no_offset_reaches_stay_in_one_kernel() {
    // 35 elements a step are no multiple of 16 bytes.
    let mut c = Case::new();
    let outs = layer(&mut c, Cell::Lstm, [5, 1, 35], false, true);
    let steps = c.check_spread(&outs, None, true);
    assert!(steps.iter().all(|s| !s.starts_with("row")), "{steps:?}");
}

#[test]
fn few_long_rows_are_shared_by_many_workgroups() {
    for as_gpu in [false, true] {
        // A prime number of elements, which no chunks divide.
        let mut c = Case::new();
        let x = c.input(DType::F32, &[1, 1_000_003]);
        let mut outs = vec![];
        for combine in [Combine::Sum, Combine::Max, Combine::Min] {
            outs.push(c.op(Op::Reduce { combine, dims: vec![0, 1], dtype: DType::F32 }, &[x]));
        }
        outs.push(c.op(Op::Variance { dims: vec![1], correction: 1.0 }, &[x]));
        outs.push(c.op(Op::Norm { dims: vec![1], eps: 1e-5, rms: true }, &[x]));
        outs.push(c.op(Op::Softmax { dim: 1, log: true }, &[x]));
        c.check_spread(&outs, Some("split_rows"), as_gpu);
    }
    let mut c = Case::new();
    let x = c.input(DType::F32, &[1, 8_255_520]);
    let y = c.op(Op::Norm { dims: vec![1], eps: 1e-5, rms: false }, &[x]);
    c.check_spread(&[y], Some("split_rows"), true);
}

/// Elements that lie a hundred thousand times farther from zero than from each other, in rows that chunks divide and in one that they do not.
#[test]
fn norms_and_variances_are_about_the_mean_itself_not_about_its_rounding() {
    for (as_gpu, shape, pass) in [
        (true, [3, 20_480], Some("split_rows")),
        (true, [1, 16_411], Some("split_rows")),
        (false, [2, 20_480], Some("split_rows")),
        (false, [1, 16_411], Some("split_rows")),
        (true, [5, 300], None),
        (false, [5, 300], None),
    ] {
        let mut c = Case::new();
        let x = c.input(DType::F32, &shape);
        let far = c.inputs[0].floats().iter().map(|v| 1000.0 + 0.01 * v).collect();
        c.inputs[0] = Tensor::from_f64(DType::F32, &shape.map(|n| n as usize), far);
        let mut outs = vec![c.op(Op::Variance { dims: vec![1], correction: 1.0 }, &[x])];
        if pass.is_some() {
            outs.push(c.op(Op::Norm { dims: vec![1], eps: 1e-9, rms: false }, &[x]));
        }
        c.check_spread(&outs, pass, as_gpu);
    }
}

#[test]
fn rows_of_equal_elements_have_no_variance_and_infinite_ones_no_norm() {
    let mut c = Case::new();
    let x = c.input(DType::F32, &[3, 20_480]);
    let mut values = c.inputs[0].floats().to_vec();
    values[..20_480].fill(1e3 / 3.0);
    values[20_480 + 7] = f64::INFINITY;
    c.inputs[0] = Tensor::from_f64(DType::F32, &[3, 20_480], values);
    let outs = [
        c.op(Op::Variance { dims: vec![1], correction: 1.0 }, &[x]),
        c.op(Op::Norm { dims: vec![1], eps: 1e-5, rms: false }, &[x]),
    ];
    c.check_spread(&outs, Some("split_rows"), true);
}

#[test]
fn long_lines_are_scanned_in_chunks_behind_the_sums_of_those_before() {
    for (dtype, shape, dim, combine) in [
        (DType::F32, [1, 211_211], 1, Combine::Sum),
        (DType::F32, [16_411, 3], 0, Combine::Sum),
        (DType::I64, [2, 20_000], 1, Combine::Sum),
        (DType::I32, [1, 17_000], 1, Combine::Prod),
        (DType::F16, [1, 16_384], 1, Combine::Sum),
    ] {
        let mut c = Case::new();
        let x = c.input(dtype, &shape);
        let y = c.op(Op::Scan { combine, dim, skip: 0 }, &[x]);
        let steps = c.check_spread(&[y], Some("split_scans"), true);
        let barriers = steps.iter().filter(|s| *s == "barrier").count();
        assert!(barriers <= 2, "sums, scans, and where the length does not divide a copy: {steps:?}");
    }
}

#[test]
fn a_nan_in_a_long_row_wins_and_rows_stay_apart() {
    let mut c = Case::new();
    let x = c.input(DType::F32, &[20_011, 3]);
    let mut values = c.inputs[0].floats().to_vec();
    values[3 * 20_000 + 1] = f64::NAN;
    values[7] = f64::NEG_INFINITY;
    c.inputs[0] = Tensor::from_f64(DType::F32, &[20_011, 3], values);
    let reduce = |combine| Op::Reduce { combine, dims: vec![0], dtype: DType::F32 };
    let outs = [c.op(reduce(Combine::Max), &[x]), c.op(reduce(Combine::Min), &[x]), c.op(reduce(Combine::Sum), &[x])];
    c.check_spread(&outs, Some("split_rows"), true);
}
