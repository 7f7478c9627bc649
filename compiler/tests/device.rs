//! Every operation of the graph, alone and with what fuses into it, on the device at hand against the interpreter.

mod halves;
mod spread;

use jvc::device::{self, DeviceProfile};
use jvc::exec::{HostTensor, Loaded, Value, check_ranges};
use jvc::import::weights::WeightStore;
use jvc::ir::eval::{Data, Precision, Tensor, eval_with};
use jvc::ir::{Body, Builder, DType, Dim, Graph, Op, Range, TensorType, UserInput, UserOutput, ValueId, Window};
use jvc::options::Options;
use jvc::pipeline::plan_graphs;
use jvc::report::Code;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Exprs, Unary};
use jvc_kernels::spec::{Cell, Combine, ScatterMode};
use jvc_runtime::{CacheDir, Gpu, Select};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The device, or none where there is no Vulkan (CI has one).
fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    GPU.get_or_init(|| Gpu::open(&Select::Auto).ok()).as_ref()
}

/// Values of both signs, different at each position; small integers.
fn random(ty: &TensorType, seed: u64) -> Tensor {
    let shape: Vec<usize> = ty.const_shape().expect("literal").iter().map(|&d| d as usize).collect();
    let n: usize = shape.iter().product();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values = (0..n).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    });
    match ty.dtype {
        DType::Bool => Tensor::from_i64(ty.dtype, &shape, values.map(|v| i64::from(v > 0.5)).collect()),
        d if d.is_float() => Tensor::from_f64(d, &shape, values.map(|v| v * 4.0 - 2.0).collect()),
        d => Tensor::from_i64(d, &shape, values.map(|v| (v * 7.0) as i64).collect()),
    }
}

fn to_value(t: &Tensor) -> Value {
    let shape = t.shape.iter().map(|&d| d as i64).collect();
    Value::Tensor(HostTensor { dtype: t.dtype, shape, bytes: t.to_bytes() })
}

/// A graph under test with its inputs.
struct Case {
    b: Builder,
    inputs: Vec<Tensor>,
}

impl Case {
    fn new() -> Case {
        Case { b: Builder::new("case"), inputs: vec![] }
    }

    fn input(&mut self, dtype: DType, shape: &[i64]) -> ValueId {
        let ty = TensorType::fixed(dtype, shape);
        let index = self.inputs.len() as u32;
        self.inputs.push(random(&ty, u64::from(index) + 1));
        let v = self.b.push(Op::Input { index }, vec![], vec![ty])[0];
        self.b.graph.inputs.push((format!("in_{index}"), UserInput::Tensor(v)));
        v
    }

    fn ops(&mut self, op: Op, inputs: &[ValueId]) -> Vec<ValueId> {
        self.b.add(op, inputs.to_vec()).expect("a well-typed op")
    }

    fn op(&mut self, op: Op, inputs: &[ValueId]) -> ValueId {
        self.ops(op, inputs)[0]
    }

    fn map(&mut self, inputs: &[ValueId], build: impl FnOnce(&mut Exprs, &[ExprId]) -> ExprId) -> ValueId {
        let tys: Vec<TensorType> = inputs.iter().map(|&v| self.b.ty(v).clone()).collect();
        let size = |d: usize| tys.iter().map(|t| &t.shape[d]).find(|s| !s.is(1)).cloned();
        let shape = (0..tys[0].rank()).map(|d| size(d).unwrap_or(Dim::from(1))).collect();
        let mut exprs = Exprs::new();
        let args: Vec<ExprId> = tys.iter().enumerate().map(|(i, t)| exprs.arg(i as u16, t.dtype.ty())).collect();
        let root = build(&mut exprs, &args);
        let body = Body { exprs, root, syms: vec![] };
        self.b.map(body, inputs.to_vec(), TensorType::new(tys[0].dtype, shape)).expect("a well-typed map")
    }

    fn gelu(&mut self, v: ValueId) -> ValueId {
        self.map(&[v], |e, a| {
            let scale = e.f32(std::f32::consts::FRAC_1_SQRT_2);
            let inner = e.bin(Binary::Mul, a[0], scale);
            let erf = e.un(Unary::Erf, inner);
            let (one, half) = (e.f32(1.0), e.f32(0.5));
            let sum = e.bin(Binary::Add, erf, one);
            let scaled = e.bin(Binary::Mul, a[0], half);
            e.bin(Binary::Mul, scaled, sum)
        })
    }

    fn add(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.map(&[a, b], |e, a| e.bin(Binary::Add, a[0], a[1]))
    }

    /// Runs the graph with these results on the device, and compares.
    fn check(mut self, outputs: &[ValueId]) {
        let named = outputs.iter().enumerate().map(|(i, &v)| (format!("out_{i}"), UserOutput::Tensor(v)));
        self.b.graph.outputs = named.collect();
        check(&self.b.graph, &[self.inputs]);
    }
}

/// Compares the device with the interpreter in f64, for several sets of inputs over one recording; every run starts from a poisoned arena.
fn check(graph: &Graph, runs: &[Vec<Tensor>]) {
    let mut output = 0;
    check_with(graph, runs, |got, want| {
        compare(output, got, want);
        output += 1;
    });
}

/// Runs on the device and in the interpreter, and hands each pair of results to `judge`.
fn check_with(graph: &Graph, runs: &[Vec<Tensor>], judge: impl FnMut(&HostTensor, &Tensor)) {
    let Some(gpu) = gpu() else {
        assert!(std::env::var_os("CI").is_none(), "CI has a device");
        return;
    };
    check_on(gpu, &device::of_gpu(gpu.info()), graph, runs, judge);
}

/// As [`check_with`], compiled for a profile; the kernels' specs.
fn check_on(
    gpu: &Gpu,
    profile: &DeviceProfile,
    graph: &Graph,
    runs: &[Vec<Tensor>],
    mut judge: impl FnMut(&HostTensor, &Tensor),
) -> Vec<String> {
    let store = WeightStore::new();
    let compiled = match plan_graphs(vec![graph.clone()], &[&store], &Options::default(), profile) {
        Ok(compiled) => compiled,
        Err(problems) => {
            // A device without 64-bit floats refuses what needs them, and says so. 64-bit integers it computes by words.
            let poor = !profile.features.float64;
            for d in problems {
                assert!(poor && d.code == Code::Device && d.message.contains("64-bit floats"), "{d}");
            }
            return vec![];
        }
    };
    validate(&compiled);
    let loaded = Loaded::new(gpu, &compiled, &CacheDir::None).expect("the program loads");
    let mut session = loaded.session(0).expect("a session");
    for inputs in runs {
        session.poison_arena().expect("poison");
        let values: Vec<Value> = inputs.iter().map(to_value).collect();
        let got = session.run(&values).expect("a run");
        let want = eval_with(graph, &|_| None, inputs, &BTreeMap::new(), Precision::Exact).expect("the interpreter");
        got.iter().zip(want.tensors()).for_each(|(got, want)| judge(got, want));
        let ranges = check_ranges(gpu, &compiled, 0, &values).expect("the steps run alone");
        assert_eq!(ranges.faults, vec![], "declared ranges");
    }
    compiled.plan.kernels.iter().map(|k| k.spec.clone()).collect()
}

#[cfg(feature = "validate")]
fn validate(compiled: &jvc::pipeline::Compiled) {
    for k in &compiled.plan.kernels {
        jvc_kernels::validate(&k.words).unwrap_or_else(|e| panic!("{}: {e}\n{}", k.spec, k.disassembly));
    }
}

#[cfg(not(feature = "validate"))]
fn validate(_: &jvc::pipeline::Compiled) {}

fn compare(i: usize, got: &HostTensor, want: &Tensor) {
    let shape: Vec<i64> = want.shape.iter().map(|&d| d as i64).collect();
    assert_eq!((got.dtype, &got.shape), (want.dtype, &shape), "type of output {i}");
    let got = Tensor::from_bytes(got.dtype, want.shape.clone(), &got.bytes).expect("whole elements");
    let (Data::Float(g), Data::Float(w)) = (&got.data, &want.data) else {
        assert_eq!(got.data, want.data, "output {i}");
        return;
    };
    let scale = w.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let eps = match got.dtype {
        DType::F16 => 1e-3,
        DType::BF16 => 8e-3,
        DType::F64 => 1e-13,
        _ => 2e-6,
    };
    for (k, (g, w)) in g.iter().zip(w).enumerate() {
        let close = (g - w).abs() <= eps * scale.max(1e-30) || g == w || (g.is_nan() && w.is_nan());
        assert!(close, "output {i} element {k}: got {g}, want {w} (scale {scale})");
    }
}

fn window(n: usize, stride: i64, padding: i64, dilation: i64) -> Window {
    Window { stride: vec![stride; n], padding: vec![padding; n], dilation: vec![dilation; n] }
}

fn dims<const N: usize>(shape: [i64; N]) -> Vec<Dim> {
    shape.map(Dim::from).to_vec()
}

#[test]
fn movement_chains_become_access_maps() {
    let mut c = Case::new();
    let x = c.input(DType::F32, &[2, 6, 7]);
    let v = c.op(Op::Reshape(dims([3, 4, 7])), &[x]);
    let v = c.op(Op::Permute(vec![2, 0, 1]), &[v]);
    let v = c.op(Op::Slice { dim: 0, start: Dim::from(1), len: Dim::from(3), step: 2 }, &[v]);
    let v = c.op(Op::Pad { before: vec![1, -1, 0], after: vec![0, 2, 1], value: 0.5 }, &[v]);
    let v = c.op(Op::Flip(vec![0, 2]), &[v]);
    let w = c.op(Op::Concat { dim: 1 }, &[v, v, v]);
    let y = c.gelu(w);
    c.check(&[y, v, x, w]);
}

#[test]
fn every_element_type_passes_through() {
    for dtype in DType::ALL {
        let mut c = Case::new();
        let x = c.input(dtype, &[3, 5]);
        let y = c.op(Op::Permute(vec![1, 0]), &[x]);
        c.check(&[y]);
    }
}

#[test]
fn a_division_by_a_literal_zero_is_infinite() {
    for dtype in [DType::F32, DType::F64] {
        let mut c = Case::new();
        let x = c.input(dtype, &[5, 4]);
        // The last is a zero only once its literals are computed with.
        let signs = [[0.0, 0.0], [-0.0, 0.0], [3.0, 3.0]].map(|[from, take]| {
            c.map(&[x], |e, a| {
                let (from, take) = (e.lit(dtype.ty(), from), e.lit(dtype.ty(), take));
                let zero = e.bin(Binary::Sub, from, take);
                let quotient = e.bin(Binary::Div, a[0], zero);
                let infinite = e.un(Unary::IsInf, quotient);
                let (one, none) = (e.lit(dtype.ty(), 1.0), e.lit(dtype.ty(), 0.0));
                let flag = e.select(infinite, one, none);
                let positive = e.bin(Binary::Lt, none, quotient);
                let minus = e.un(Unary::Neg, flag);
                e.select(positive, flag, minus)
            })
        });
        c.check(&signs);
    }
}

#[test]
fn concat_is_stored_into_by_its_parts() {
    let mut c = Case::new();
    let (a, b, x) = (c.input(DType::F32, &[4, 5]), c.input(DType::F32, &[5, 3]), c.input(DType::F32, &[4, 2]));
    let p = c.op(Op::Matmul, &[a, b]);
    let p = c.gelu(p);
    let q = c.gelu(x);
    let cat = c.op(Op::Concat { dim: 1 }, &[q, p, x]);
    let soft = c.op(Op::Softmax { dim: 1, log: false }, &[cat]);
    c.check(&[soft, cat]);
}

#[test]
fn matmul_with_prologue_and_epilogue() {
    for (m, n, k) in [(1, 1, 1), (5, 7, 3), (1, 33, 70), (17, 19, 23), (70, 65, 40), (8, 64, 130)] {
        let mut c = Case::new();
        let a = c.input(DType::F32, &[k, m]);
        let b = c.input(DType::F32, &[2, k, n]);
        let bias = c.input(DType::F32, &[1, 1, n]);
        let t = c.op(Op::Permute(vec![1, 0]), &[a]);
        let t = c.op(Op::Reshape(dims([1, m, k])), &[t]);
        let y = c.op(Op::Matmul, &[t, b]);
        let y = c.add(y, bias);
        let y = c.gelu(y);
        let y = c.op(Op::Permute(vec![1, 0, 2]), &[y]);
        c.check(&[y]);
    }
}

#[test]
fn matmul_of_other_types() {
    for dtype in [DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64] {
        let mut c = Case::new();
        let (a, b) = (c.input(dtype, &[9, 20]), c.input(dtype, &[20, 11]));
        let y = c.op(Op::Matmul, &[a, b]);
        c.check(&[y]);
    }
}

#[test]
fn a_half_is_rounded_before_it_is_widened() {
    let mut c = Case::new();
    let (a, b) = (c.input(DType::BF16, &[9, 20]), c.input(DType::BF16, &[20, 11]));
    let y = c.op(Op::Matmul, &[a, b]);
    let mut e = Exprs::new();
    let root = e.arg(0, Ty::F32);
    let wide = Body { exprs: e, root, syms: vec![] };
    let z = c.b.map(wide, vec![y], TensorType::fixed(DType::F32, &[9, 11])).expect("a widening");
    c.b.graph.outputs = vec![("z".into(), UserOutput::Tensor(z))];
    // In working precision the interpreter rounds y; every result is then a bf16 number.
    check_with(&c.b.graph, &[c.inputs], |got, _| {
        let values = Tensor::from_bytes(got.dtype, vec![9, 11], &got.bytes).expect("whole elements");
        let Data::Float(v) = values.data else { panic!("floats") };
        assert!(v.iter().all(|x| (*x as f32).to_bits() & 0xFFFF == 0), "every result is a bf16 number");
    });
}

#[test]
fn convolutions_of_every_kind() {
    for (stride, padding, dilation, groups) in [(1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 2), (3, 2, 1, 4), (1, 1, 1, 8)] {
        let mut c = Case::new();
        let x = c.input(DType::F32, &[2, 8, 9, 7]);
        let w = c.input(DType::F32, &[16, 8 / groups, 3, 3]);
        let y = c.op(Op::Conv { window: window(2, stride, padding, dilation), groups }, &[x, w]);
        let y = c.gelu(y);
        c.check(&[y]);
        let groups = groups.min(4);
        let mut c = Case::new();
        let x = c.input(DType::F32, &[1, 8, 5]);
        let w = c.input(DType::F32, &[8, 12 / groups, 3]);
        let window = window(1, stride, padding.min(1), dilation);
        let y = c.op(Op::ConvTranspose { window, groups, output_padding: vec![stride - 1] }, &[x, w]);
        c.check(&[y]);
    }
    let mut c = Case::new();
    let (x, w) = (c.input(DType::F32, &[1, 3, 4, 5, 6]), c.input(DType::F32, &[6, 3, 2, 3, 1]));
    let y = c.op(Op::Conv { window: window(3, 1, 1, 1), groups: 1 }, &[x, w]);
    c.check(&[y]);
}

#[test]
fn rows_of_every_kind() {
    for shape in [[3, 5, 1], [2, 3, 7], [2, 130, 3], [1, 2, 300]] {
        let mut c = Case::new();
        let x = c.input(DType::F32, &shape);
        let g = c.gelu(x);
        let mut outs = vec![];
        for dim in 0..3 {
            let y = c.op(Op::Softmax { dim, log: false }, &[g]);
            outs.push(c.gelu(y));
            outs.push(c.op(Op::Softmax { dim, log: true }, &[g]));
        }
        for combine in [Combine::Sum, Combine::Prod, Combine::Max, Combine::Min] {
            outs.push(c.op(Op::Reduce { combine, dims: vec![0, 2], dtype: DType::F32 }, &[g]));
        }
        for combine in [Combine::ArgMax, Combine::ArgMin] {
            outs.push(c.op(Op::Reduce { combine, dims: vec![1], dtype: DType::I64 }, &[x]));
        }
        outs.push(c.op(Op::Norm { dims: vec![2], eps: 1e-3, rms: false }, &[g]));
        outs.push(c.op(Op::Norm { dims: vec![1, 2], eps: 1e-5, rms: true }, &[x]));
        for correction in [0.0, shape[1] as f64] {
            outs.push(c.op(Op::Variance { dims: vec![1], correction }, &[x]));
        }
        c.check(&outs);
    }
}

#[test]
fn pools_of_every_kind() {
    let pool = |max, count_include_pad, divisor| Op::Pool {
        kernel: vec![3, 2],
        window: window(2, 2, 1, 1),
        out: dims([4, 5]),
        max,
        count_include_pad,
        divisor,
        indices: max,
    };
    for op in [pool(true, false, None), pool(false, true, None), pool(false, false, None), pool(false, true, Some(5))] {
        let mut c = Case::new();
        let x = c.input(DType::F32, &[2, 3, 8, 9]);
        let outs = c.ops(op, &[x]);
        c.check(&outs);
    }
}

#[test]
fn attention_with_masks() {
    for (queries, keys, dim) in [(1, 1, 4), (7, 13, 8), (40, 70, 24)] {
        for variant in 0..4 {
            let mut c = Case::new();
            let shapes = [[2, 3, queries, dim], [2, 3, keys, dim], [2, 3, keys, dim + 1]];
            let mut inputs = shapes.map(|s| c.input(DType::F32, &s)).to_vec();
            match variant {
                2 => inputs.push(c.input(DType::F32, &[1, 3, queries, keys])),
                3 => inputs.push(c.input(DType::Bool, &[2, 1, queries, keys])),
                _ => {}
            }
            let op = Op::Attention { scale: 0.3, causal: variant == 1, zero_masked_rows: true, masked: variant >= 2 };
            let y = c.op(op, &inputs);
            let y = c.gelu(y);
            c.check(&[y]);
        }
    }
}

#[test]
fn recurrent_layers() {
    for (cell, gates) in [(Cell::Lstm, 4), (Cell::Gru, 3), (Cell::RnnTanh, 1), (Cell::RnnRelu, 1)] {
        for (reverse, bias, hidden) in [(false, true, 5), (true, false, 70)] {
            let mut c = Case::new();
            let x = c.input(DType::F32, &[6, 3, gates * hidden]);
            let inputs = spread::recurrent_operands(&mut c, x, cell, [gates, 3, hidden], bias);
            let outs = c.ops(Op::Recurrent { cell, reverse, bias }, &inputs);
            c.check(&outs);
        }
    }
}

#[test]
fn scans_and_scatters() {
    for combine in [Combine::Sum, Combine::Prod, Combine::Max, Combine::Min] {
        let mut c = Case::new();
        let x = c.input(DType::F32, &[3, 11, 2]);
        let mut outs = c.ops(Op::Scan { combine, dim: 1, skip: 0 }, &[x]);
        outs.extend(c.ops(Op::Scan { combine, dim: 1, skip: 4 }, &[x]));
        c.check(&outs);
    }
    for mode in [ScatterMode::Set, ScatterMode::Add, ScatterMode::Mul, ScatterMode::Max, ScatterMode::Min] {
        let mut c = Case::new();
        let (base, src) = (c.input(DType::F32, &[4, 7]), c.input(DType::F32, &[4, 9]));
        let index = c.input(DType::I64, &[4, 9]);
        let y = c.op(Op::Scatter { dims: vec![1], mode }, &[base, index, src]);
        let again = c.gelu(y);
        let joined = c.op(Op::Concat { dim: 0 }, &[again, y, again]);
        c.check(&[y, joined]);
    }
}

#[test]
fn sorts_are_stable() {
    for descending in [false, true] {
        let mut c = Case::new();
        let (x, i) = (c.input(DType::F32, &[2, 17, 3]), c.input(DType::I64, &[5, 30]));
        let mut outs = c.ops(Op::Sort { dim: 1, descending, keep: None }, &[x]);
        outs.extend(c.ops(Op::Sort { dim: 1, descending, keep: None }, &[i]));
        outs.extend(c.ops(Op::Sort { dim: 1, descending, keep: Some(3.into()) }, &[x]));
        c.check(&outs);
    }
}

#[test]
fn fourier_transforms_of_smooth_and_prime_lengths() {
    for n in [1, 2, 20, 97, 121, 400, 480, 512, 960, 1009] {
        for inverse in [false, true] {
            let mut c = Case::new();
            let (re, im) = (c.input(DType::F32, &[2, n]), c.input(DType::F32, &[2, n]));
            let outs = c.ops(Op::Fft { inverse }, &[re, im]);
            c.check(&outs);
        }
    }
}

#[test]
fn gather_loads_at_computed_coordinates() {
    let mut c = Case::new();
    let (table, ids) = (c.input(DType::F32, &[7, 5]), c.input(DType::I64, &[4]));
    let mut e = Exprs::new();
    let (i, j) = (e.axis(0), e.axis(1));
    let id = e.load(1, DType::I64, vec![i]);
    let row = e.cast(Ty::I32, id);
    let root = e.load(0, DType::F32, vec![row, j]);
    let body = Body { exprs: e, root, syms: vec![] };
    let y = c.b.compute(body, vec![table, ids], TensorType::fixed(DType::F32, &[4, 5])).expect("well typed");
    let y = c.gelu(y);
    c.check(&[y]);
}

#[test]
fn one_recording_serves_every_size() {
    let mut b = Builder::new("dyn");
    b.graph.ranges.insert("s0".into(), Range { min: 2, max: 130 });
    let s = Dim::symbol("s0");
    let x_ty = TensorType::new(DType::F32, vec![s.clone(), Dim::from(12)]);
    let x = b.push(Op::Input { index: 0 }, vec![], vec![x_ty])[0];
    let w = b.push(Op::Input { index: 1 }, vec![], vec![TensorType::fixed(DType::F32, &[12, 5])])[0];
    b.graph.inputs = vec![("x".into(), UserInput::Tensor(x)), ("w".into(), UserInput::Tensor(w))];
    let y = b.add1(Op::Matmul, vec![x, w]).expect("matmul");
    let heads = b.add1(Op::Reshape(vec![s.clone(), Dim::from(3), Dim::from(4)]), vec![x]).expect("reshape");
    let t = b.add1(Op::Permute(vec![1, 2, 0]), vec![heads]).expect("permute");
    let soft = b.add1(Op::Softmax { dim: 2, log: false }, vec![t]).expect("softmax");
    let total = b.add1(Op::Reduce { combine: Combine::Sum, dims: vec![0], dtype: DType::F32 }, vec![y]).expect("sum");
    let cat = b.add1(Op::Concat { dim: 0 }, vec![y, total]).expect("concat");
    b.graph.outputs = [cat, soft].iter().map(|v| ("o".to_string(), UserOutput::Tensor(*v))).collect();
    let w = random(&TensorType::fixed(DType::F32, &[12, 5]), 9);
    let x = |n: i64| random(&TensorType::fixed(DType::F32, &[n, 12]), n as u64);
    let runs: Vec<Vec<Tensor>> = [2, 3, 61, 129, 130].iter().map(|&n| vec![x(n), w.clone()]).collect();
    check(&b.graph, &runs);
}

#[test]
fn long_rows_are_reduced_to_their_end() {
    // A driver ends all loops of an invocation after 65535 iterations: two passes over a row must not meet that.
    let mut c = Case::new();
    let x = c.input(DType::F32, &[2, 4, 128, 70]);
    let variance = c.op(Op::Variance { dims: vec![1, 2, 3], correction: 1.0 }, &[x]);
    let sum = c.op(Op::Reduce { combine: Combine::Sum, dims: vec![0, 1, 2, 3], dtype: DType::F32 }, &[x]);
    c.check(&[variance, sum]);
}

/// The device's profile as if it were no CPU driver, with little shared memory: a CPU driver takes minutes to compile large tiles. None
/// where it lacks cooperative matrices of halves with sums in f32.
#[allow(clippy::print_stderr, reason = "a skipped test must be seen")]
fn matrix_profile(gpu: &Gpu, test: &str) -> Option<DeviceProfile> {
    let mut profile = device::of_gpu(gpu.info());
    if std::mem::replace(&mut profile.rates.cpu, false) {
        profile.limits.shared_bytes_per_workgroup = 8192;
    }
    if profile.cooperative.iter().any(|c| c.operand == "f16" && c.result == "f32") {
        return Some(profile);
    }
    eprintln!("SKIPPED {test}: the device has no cooperative matrices of f16");
    None
}

/// Kernels of a case on such a profile, run and compared.
fn on_matrices(mut case: Case, out: ValueId, test: &str) -> Option<Vec<String>> {
    let gpu = gpu()?;
    let profile = matrix_profile(gpu, test)?;
    case.b.graph.outputs = vec![("out_0".to_owned(), UserOutput::Tensor(out))];
    Some(check_on(gpu, &profile, &case.b.graph, &[case.inputs], |got, want| compare(0, got, want)))
}

fn n_cooperative(kernels: &[String]) -> usize {
    kernels.iter().filter(|k| k.contains("coop:")).count()
}

#[test]
fn products_and_convolutions_of_halves_run_on_cooperative_matrices() {
    let mut c = Case::new();
    let (a, w) = (c.input(DType::F16, &[2, 19, 40]), c.input(DType::F16, &[1, 40, 24]));
    let bias = c.input(DType::F16, &[1, 1, 24]);
    let product = c.op(Op::Matmul, &[a, w]);
    let sum = c.add(product, bias);
    let out = c.gelu(sum);
    if let Some(kernels) = on_matrices(c, out, "product of halves") {
        assert_eq!(n_cooperative(&kernels), 1, "{kernels:?}");
    }
    let mut c = Case::new();
    let (x, w) = (c.input(DType::F16, &[1, 8, 9, 9]), c.input(DType::F16, &[20, 8, 3, 3]));
    let out = c.op(Op::Conv { window: window(2, 1, 1, 1), groups: 1 }, &[x, w]);
    if let Some(kernels) = on_matrices(c, out, "convolution of halves") {
        assert_eq!(n_cooperative(&kernels), 1, "{kernels:?}");
    }
}

#[test]
fn only_operands_that_are_halves_reach_cooperative_matrices() {
    let as_f32 = |c: &mut Case, v: ValueId| {
        let shape = c.b.ty(v).shape.clone();
        let mut exprs = Exprs::new();
        let root = exprs.arg(0, Ty::F32);
        let body = Body { exprs, root, syms: vec![] };
        c.b.map(body, vec![v], TensorType::new(DType::F32, shape)).expect("a widening")
    };
    // Widened halves are halves still; the product is in f32.
    let mut c = Case::new();
    let (a, b) = (c.input(DType::F16, &[20, 32]), c.input(DType::F16, &[32, 16]));
    let (a, b) = (as_f32(&mut c, a), as_f32(&mut c, b));
    let out = c.op(Op::Matmul, &[a, b]);
    if let Some(kernels) = on_matrices(c, out, "widened halves") {
        assert_eq!(n_cooperative(&kernels), 1, "{kernels:?}");
    }
    // One of them scaled in f32 is no half any more, and f32 inputs never were.
    for widen in [true, false] {
        let mut c = Case::new();
        let dtype = if widen { DType::F16 } else { DType::F32 };
        let (mut a, mut b) = (c.input(dtype, &[20, 32]), c.input(dtype, &[32, 16]));
        if widen {
            (a, b) = (as_f32(&mut c, a), as_f32(&mut c, b));
            a = c.map(&[a], |e, x| {
                let third = e.f32(1.0 / 3.0);
                e.bin(Binary::Mul, x[0], third)
            });
        }
        let out = c.op(Op::Matmul, &[a, b]);
        if let Some(kernels) = on_matrices(c, out, "f32") {
            assert_eq!(n_cooperative(&kernels), 0, "{kernels:?}");
        }
    }
}

#[test]
fn cpu_drivers_keep_halves_in_registers() {
    let Some(gpu) = gpu() else { return };
    let profile = device::of_gpu(gpu.info());
    if !(profile.rates.cpu && profile.features.float16) {
        return;
    }
    let mut c = Case::new();
    let (a, b) = (c.input(DType::F16, &[20, 32]), c.input(DType::F16, &[32, 16]));
    let out = c.op(Op::Matmul, &[a, b]);
    c.b.graph.outputs = vec![("out_0".to_owned(), UserOutput::Tensor(out))];
    let kernels = check_on(gpu, &profile, &c.b.graph, &[c.inputs], |got, want| compare(0, got, want));
    assert!(n_cooperative(&kernels) == 0 && kernels[0].contains("registers:"), "{kernels:?}");
}
