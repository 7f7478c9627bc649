//! Exports with quantised weights, as torchao and PT2E write them, built by hand, against the operators' definitions in plain arithmetic: in
//! the interpreter, and fused into one kernel over the stored bytes on the device at hand.

#[path = "quantized/model.rs"]
#[expect(dead_code, reason = "the tests of `--quantize` use the rest")]
mod model;

use jvc::device;
use jvc::exec::{HostTensor, Loaded, Value};
use jvc::import::program::{Arg, Program, ScalarType};
use jvc::ir::DType;
use jvc::ir::eval::Tensor;
use jvc::options::Options;
use jvc::pipeline::{self, Compiled};
use jvc::report::Code;
use jvc_codegen::plan::Step;
use jvc_runtime::{CacheDir, Gpu, Select};
use model::{Model, activations, bytes, ints, product, scales, t};

fn per_tensor_args(q: ScalarType, scale: Arg, zero: Arg) -> Vec<(&'static str, Arg)> {
    vec![
        ("input", t("q")),
        ("scale", scale),
        ("zero_point", zero),
        ("quant_min", Arg::Int(-128)),
        ("quant_max", Arg::Int(127)),
        ("dtype", Arg::ScalarType(q)),
    ]
}

fn per_channel_args(zero: Arg, axis: i64) -> Vec<(&'static str, Arg)> {
    vec![
        ("input", t("q")),
        ("scales", t("s")),
        ("zero_points", zero),
        ("axis", Arg::Int(axis)),
        ("quant_min", Arg::Int(-128)),
        ("quant_max", Arg::Int(127)),
        ("dtype", Arg::ScalarType(ScalarType::I8)),
    ]
}

fn affine_args(block: &[i64], zero: Arg) -> Vec<(&'static str, Arg)> {
    vec![
        ("input", t("q")),
        ("block_size", ints(block)),
        ("scale", t("s")),
        ("zero_point", zero),
        ("input_dtype", Arg::ScalarType(ScalarType::I8)),
    ]
}

#[test]
fn one_scale_for_a_tensor() {
    let q = bytes(12, 1);
    let want: Vec<f64> = q.iter().map(|&q| (f64::from(q) + 3.0) * 0.25).collect();
    let target = "quantized_decomposed.dequantize_per_tensor.default";
    let args = per_tensor_args(ScalarType::I8, Arg::Float(0.25), Arg::Int(-3));
    let m = Model::new().integers("q", ScalarType::I8, &[3, 4], &q);
    let got = m.call("w", target, &args, ScalarType::F32, &[3, 4]).eval("w", &[]);
    assert_eq!((got.dtype, got.floats()), (DType::F32, &want[..]));
    // The parameters as tensors, the integers unsigned, the result in half precision.
    let want: Vec<f64> = q.iter().map(|&q| (f64::from(q as u8) + 3.0) * 0.25).collect();
    let mut args = per_tensor_args(ScalarType::U8, t("s"), t("z"));
    args.push(("out_dtype", Arg::ScalarType(ScalarType::F16)));
    let m = Model::new().integers("q", ScalarType::U8, &[3, 4], &q).floats("s", &[], &[0.25]);
    let m = m.integers("z", ScalarType::I64, &[1], &[-3]);
    let target = "quantized_decomposed.dequantize_per_tensor.tensor";
    let got = m.call("w", target, &args, ScalarType::F16, &[3, 4]).eval("w", &[]);
    assert_eq!((got.dtype, got.floats()), (DType::F16, &want[..]));
}

#[test]
fn a_scale_for_each_channel_of_any_axis() {
    let q = bytes(24, 2);
    for (axis, n) in [(0i64, 2usize), (1, 3), (-1, 4)] {
        let (s, z) = (scales(n, 3), bytes(n, 4));
        let channel = |i: usize| match axis {
            0 => i / 12,
            1 => i / 4 % 3,
            _ => i % 4,
        };
        for symmetric in [false, true] {
            let zero = |i: usize| if symmetric { 0.0 } else { f64::from(z[channel(i)]) };
            let value = |(i, &q): (usize, &i8)| (f64::from(q) - zero(i)) * f64::from(s[channel(i)]);
            let want: Vec<f64> = q.iter().enumerate().map(value).collect();
            let m = Model::new().integers("q", ScalarType::I8, &[2, 3, 4], &q).floats("s", &[n as i64], &s);
            let m = m.integers("z", ScalarType::I64, &[n as i64], &z);
            let args = per_channel_args(if symmetric { Arg::None } else { t("z") }, axis);
            let target = "quantized_decomposed.dequantize_per_channel.default";
            let got = m.call("w", target, &args, ScalarType::F32, &[2, 3, 4]).eval("w", &[]);
            assert_eq!(got.floats(), want, "axis {axis}, symmetric {symmetric}");
        }
    }
}

#[test]
fn groups_along_the_rows() {
    let (q, s, z) = (bytes(48, 5), scales(6, 6), bytes(6, 7));
    let args = |group: i64| {
        vec![
            ("input", t("q")),
            ("scales", t("s")),
            ("zero_points", t("z")),
            ("quant_min", Arg::Int(-8)),
            ("quant_max", Arg::Int(7)),
            ("dtype", Arg::ScalarType(ScalarType::I8)),
            ("group_size", Arg::Int(group)),
            ("output_dtype", Arg::ScalarType(ScalarType::F32)),
        ]
    };
    let target = "quantized_decomposed.dequantize_per_channel_group.default";
    let model = |zero: ScalarType| {
        let m = Model::new().integers("q", ScalarType::I8, &[2, 24], &q).floats("s", &[2, 3], &s);
        m.integers("z", zero, &[2, 3], &z)
    };
    let got = model(ScalarType::I32).call("w", target, &args(8), ScalarType::F32, &[2, 24]).eval("w", &[]);
    let value = |(i, &q): (usize, &i8)| f64::from(i32::from(q) - i32::from(z[i / 8])) * f64::from(s[i / 8]);
    assert_eq!(got.floats(), q.iter().enumerate().map(value).collect::<Vec<f64>>());
    // Zero points in the type of the integers: the difference wraps, as in PyTorch.
    let got = model(ScalarType::I8).call("w", target, &args(8), ScalarType::F32, &[2, 24]).eval("w", &[]);
    let value = |(i, &q): (usize, &i8)| f64::from(q.wrapping_sub(z[i / 8])) * f64::from(s[i / 8]);
    assert_eq!(got.floats(), q.iter().enumerate().map(value).collect::<Vec<f64>>());
    let refused = model(ScalarType::I32).call("w", target, &args(7), ScalarType::F32, &[2, 24]).refusal("w");
    assert_eq!(refused.code, Code::BadArgument);
    assert!(refused.message.contains("blocks of 7 elements do not divide a dimension of 24"), "{refused}");
}

#[test]
fn blocks_of_every_shape() {
    let q = bytes(4 * 6, 8);
    for block in [[4, 6], [1, 6], [4, 1], [1, 3], [2, 3], [1, 1]] {
        let (rows, columns) = (4 / block[0], 6 / block[1]);
        let n = rows * columns;
        let (s, z) = (scales(n, 9), bytes(n, 10));
        let at = |i: usize| i / 6 / block[0] * columns + i % 6 / block[1];
        let sizes = [rows as i64, columns as i64];
        let block = block.map(|b| b as i64);
        for zero in [Some(ScalarType::I8), Some(ScalarType::I32), None] {
            let m = Model::new().integers("q", ScalarType::I8, &[4, 6], &q).floats("s", &sizes, &s);
            let m = m.integers("z", zero.unwrap_or(ScalarType::I8), &sizes, &z);
            let args = affine_args(&block, zero.map_or(Arg::None, |_| t("z")));
            let got = m.call("w", "torchao.dequantize_affine.default", &args, ScalarType::F32, &[4, 6]).eval("w", &[]);
            let point = |i: usize| if zero.is_some() { f64::from(z[at(i)]) } else { 0.0 };
            let value = |(i, &q): (usize, &i8)| (f64::from(q) - point(i)) * f64::from(s[at(i)]);
            assert_eq!(got.floats(), q.iter().enumerate().map(value).collect::<Vec<f64>>(), "{block:?} {zero:?}");
        }
    }
}

#[test]
fn zero_points_among_the_floats() {
    let (q, s) = (bytes(8, 11), scales(2, 12));
    let z = [0.5f32, -1.25];
    let model =
        || Model::new().integers("q", ScalarType::I8, &[2, 4], &q).floats("s", &[2, 1], &s).floats("z", &[2, 1], &z);
    let mut args = affine_args(&[1, 4], t("z"));
    args.extend([
        ("quant_min", Arg::Int(0)),
        ("quant_max", Arg::Int(15)),
        ("zero_point_domain", Arg::Str("FLOAT".into())),
    ]);
    let target = "torchao.dequantize_affine.default";
    let got = model().call("w", target, &args, ScalarType::F32, &[2, 4]).eval("w", &[]);
    let value = |(i, &q): (usize, &i8)| (f32::from(q) - 8.0) * s[i / 4] + z[i / 4];
    let want: Vec<f64> = q.iter().enumerate().map(value).map(f64::from).collect();
    assert_eq!(got.floats(), want);
    args[7].1 = Arg::Str("NONE".into());
    let got = model().call("w", target, &args, ScalarType::F32, &[2, 4]).eval("w", &[]);
    let want: Vec<f64> = q.iter().enumerate().map(|(i, &q)| f64::from(q) * f64::from(s[i / 4])).collect();
    assert_eq!(got.floats(), want, "no zero point");
    args[7].1 = Arg::Str("HALF".into());
    let refused = model().call("w", target, &args, ScalarType::F32, &[2, 4]).refusal("w");
    assert_eq!(refused.code, Code::UnsupportedAttribute);
}

#[test]
fn activations_are_rounded_half_to_even_and_clamped() {
    let x = [0.125f64, 0.375, -0.125, -0.375, 100.0, -100.0, 0.0, 7.9];
    let args = vec![
        ("input", t("x")),
        ("scale", Arg::Float(0.25)),
        ("zero_point", Arg::Int(-3)),
        ("quant_min", Arg::Int(-128)),
        ("quant_max", Arg::Int(127)),
        ("dtype", Arg::ScalarType(ScalarType::I8)),
    ];
    let target = "quantized_decomposed.quantize_per_tensor.default";
    let m = Model::new().input("x", ScalarType::F32, &[8]).call("q", target, &args, ScalarType::I8, &[8]);
    let got = m.eval("q", &[Tensor::from_f64(DType::F32, &[8], x.to_vec())]);
    let want = Tensor::from_i64(DType::I8, &[8], vec![-3, -1, -3, -5, 127, -128, -3, 29]);
    assert_eq!(got.data, want.data);
    // Per row of two, unsigned.
    let args = vec![
        ("input", t("x")),
        ("block_size", ints(&[1, 2])),
        ("scale", t("s")),
        ("zero_point", t("z")),
        ("output_dtype", Arg::ScalarType(ScalarType::U8)),
    ];
    let m = Model::new().floats("s", &[4], &[0.25, 0.5, 1.0, 2.0]).integers("z", ScalarType::I32, &[4], &[1, 2, 0, 3]);
    let m = m.input("x", ScalarType::F32, &[4, 2]);
    let m = m.call("q", "torchao.quantize_affine.default", &args, ScalarType::U8, &[4, 2]);
    let got = m.eval("q", &[Tensor::from_f64(DType::F32, &[4, 2], x.to_vec())]);
    assert_eq!(got.data, Tensor::from_i64(DType::U8, &[8], vec![1, 3, 2, 1, 100, 0, 3, 7]).data);
}

#[test]
fn what_is_not_covered_says_why() {
    let target = "quantized_decomposed.choose_qparams.tensor";
    let refused = Model::new()
        .input("x", ScalarType::F32, &[4])
        .call("s", target, &[("input", t("x"))], ScalarType::F32, &[1])
        .refusal("s");
    assert_eq!(refused.code, Code::UnsupportedOp);
    assert!(refused.to_string().contains("weight-only"), "{refused}");
    let args = per_tensor_args(ScalarType::U8, Arg::Float(1.0), Arg::Int(0));
    let wrong = Model::new().integers("q", ScalarType::I8, &[4], &[1, 2, 3, 4]);
    let target = "quantized_decomposed.dequantize_per_tensor.default";
    let refused = wrong.call("w", target, &args, ScalarType::F32, &[4]).refusal("w");
    assert_eq!(refused.code, Code::BadArgument);
}

/// Asserts that the plan is one kernel that reads the stored bytes and nothing larger, and runs it.
fn one_kernel_over_bytes(program: Program, x: Value, sizes: &[(&str, u64)]) -> Option<(Compiled, HostTensor)> {
    let gpu = Gpu::open(&Select::Auto).ok();
    assert!(gpu.is_some() || std::env::var_os("CI").is_none(), "CI has a device");
    let profile = gpu.as_ref().map_or_else(|| device::find("lavapipe").expect("bundled"), |g| device::of_gpu(g.info()));
    let compiled = pipeline::compile(&[program], &Options::default(), &profile).expect("compiles");
    let stored: Vec<(&str, u64)> = compiled.plan.weights.tensors.iter().map(|t| (t.name.as_str(), t.bytes)).collect();
    let word = if profile.features.int8 { 1 } else { 4 };
    let want: Vec<(&str, u64)> = sizes.iter().map(|&(n, b)| (n, if n == "q" { b * word } else { b })).collect();
    assert_eq!(stored, want, "the weight file holds what the export holds");
    let dispatches = compiled.plan.entries[0].steps.iter().filter(|s| matches!(s, Step::Dispatch(_))).count();
    assert_eq!(dispatches, 1, "no kernel of its own dequantises:\n{}", compiled.plan.to_text());
    let gpu = gpu?;
    let loaded = Loaded::new(&gpu, &compiled, &CacheDir::None).expect("loads");
    let out = loaded.session(0).expect("a session").run(&[x]).expect("runs").remove(0);
    drop(loaded);
    Some((compiled, out))
}

fn close(got: &HostTensor, want: &[f64]) {
    let got: Vec<f64> =
        got.bytes.chunks_exact(4).map(|c| f64::from(f32::from_le_bytes([c[0], c[1], c[2], c[3]]))).collect();
    let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 2e-6 * scale, "element {i}: got {g}, want {w}");
    }
}

#[test]
fn a_linear_layer_reads_the_stored_bytes() {
    // More than the fold pass calls small, and less.
    for (m, n, k) in [(5usize, 200usize, 160usize), (1, 48, 64)] {
        let (q, s, z) = (bytes(n * k, 13), scales(n, 14), bytes(n, 15));
        let model = Model::new().integers("q", ScalarType::I8, &[n as i64, k as i64], &q).floats("s", &[n as i64], &s);
        let model = model.integers("z", ScalarType::I8, &[n as i64], &z);
        let model = model.input("x", ScalarType::F32, &[m as i64, k as i64]);
        let args = per_channel_args(t("z"), 0);
        let target = "quantized_decomposed.dequantize_per_channel.default";
        let model = model.call("w", target, &args, ScalarType::F32, &[n as i64, k as i64]);
        let program = model.linear("x", "w", &[m as i64, n as i64]).program("y");
        let w: Vec<f64> =
            q.iter().enumerate().map(|(i, &q)| (f64::from(q) - f64::from(z[i / k])) * f64::from(s[i / k])).collect();
        let (x, values) = activations(m, k);
        let mut sizes = vec![("q", (n * k) as u64), ("z", n as u64), ("s", 4 * n as u64)];
        if Gpu::open(&Select::Auto).is_ok_and(|g| !device::of_gpu(g.info()).features.int8) {
            sizes[1].1 *= 4;
        }
        if let Some((_, y)) = one_kernel_over_bytes(program, x, &sizes) {
            close(&y, &product(&values, &w, k));
        }
    }
}

#[test]
fn a_linear_layer_of_groups_reads_the_stored_bytes() {
    let (m, n, k, group) = (3usize, 130usize, 192usize, 32usize);
    let groups = n * k / group;
    let (q, s) = (bytes(n * k, 16), scales(groups, 17));
    // The zero points of a symmetric quantisation, which are no operand of the kernel.
    let z = vec![0i8; groups];
    let sizes = [n as i64, (k / group) as i64];
    let model = Model::new().integers("q", ScalarType::I8, &[n as i64, k as i64], &q).floats("s", &sizes, &s);
    let model = model.integers("z", ScalarType::I8, &sizes, &z).input("x", ScalarType::F32, &[m as i64, k as i64]);
    let args = affine_args(&[1, group as i64], t("z"));
    let model = model.call("w", "torchao.dequantize_affine.default", &args, ScalarType::F32, &[n as i64, k as i64]);
    let program = model.linear("x", "w", &[m as i64, n as i64]).program("y");
    let w: Vec<f64> = q.iter().enumerate().map(|(i, &q)| f64::from(q) * f64::from(s[i / group])).collect();
    let (x, values) = activations(m, k);
    if let Some((_, y)) = one_kernel_over_bytes(program, x, &[("q", (n * k) as u64), ("s", 4 * groups as u64)]) {
        close(&y, &product(&values, &w, k));
    }
}

#[test]
fn an_embedding_reads_the_stored_bytes() {
    let (rows, d) = (300usize, 64usize);
    let (q, s) = (bytes(rows * d, 18), scales(rows, 19));
    let at = [7i64, 299, 0, -1 + 300, 13];
    let model =
        Model::new().integers("q", ScalarType::I8, &[rows as i64, d as i64], &q).floats("s", &[rows as i64], &s);
    let model = model.input("i", ScalarType::I64, &[5]);
    let args = per_channel_args(Arg::None, 0);
    let target = "quantized_decomposed.dequantize_per_channel.default";
    let model = model.call("w", target, &args, ScalarType::F32, &[rows as i64, d as i64]);
    let lookup = [("weight", t("w")), ("indices", t("i"))];
    let program = model.call("y", "aten.embedding.default", &lookup, ScalarType::F32, &[5, d as i64]).program("y");
    let i = HostTensor { dtype: DType::I64, shape: vec![5], bytes: at.iter().flat_map(|v| v.to_le_bytes()).collect() };
    let sizes = [("q", (rows * d) as u64), ("s", 4 * rows as u64)];
    if let Some((_, y)) = one_kernel_over_bytes(program, Value::Tensor(i), &sizes) {
        let element = |(r, c): (usize, usize)| f64::from(q[r * d + c]) * f64::from(s[r]);
        let want: Vec<f64> = at.iter().flat_map(|&r| (0..d).map(move |c| (r as usize, c))).map(element).collect();
        close(&y, &want);
    }
}

#[test]
fn a_convolution_reads_the_stored_bytes() {
    let (o, c, size) = (40usize, 32usize, 6usize);
    let (q, s) = (bytes(o * c * 9, 21), scales(o, 22));
    let shape = [o as i64, c as i64, 3, 3];
    let model = Model::new().integers("q", ScalarType::I8, &shape, &q).floats("s", &[o as i64], &s);
    let model = model.input("x", ScalarType::F32, &[1, c as i64, size as i64, size as i64]);
    let target = "quantized_decomposed.dequantize_per_channel.default";
    let model = model.call("w", target, &per_channel_args(Arg::None, 0), ScalarType::F32, &shape);
    let conv = [("input", t("x")), ("weight", t("w"))];
    let out = [1, o as i64, size as i64 - 2, size as i64 - 2];
    let program = model.call("y", "aten.conv2d.default", &conv, ScalarType::F32, &out).program("y");
    let (Value::Tensor(mut x), values) = activations(c, size * size) else { panic!("a tensor") };
    x.shape = vec![1, c as i64, size as i64, size as i64];
    let weight = |o: usize, c_in: usize, t: usize| f64::from(q[(o * c + c_in) * 9 + t]) * f64::from(s[o]);
    let input = |c: usize, i: usize, j: usize| values[(c * size + i) * size + j];
    let mut want = vec![];
    for o in 0..o {
        for (i, j) in (0..size - 2).flat_map(|i| (0..size - 2).map(move |j| (i, j))) {
            let taps = (0..c).flat_map(|c| (0..9).map(move |t| (c, t)));
            want.push(taps.map(|(c, t)| weight(o, c, t) * input(c, i + t / 3, j + t % 3)).sum());
        }
    }
    let sizes = [("q", (o * c * 9) as u64), ("s", 4 * o as u64)];
    if let Some((_, y)) = one_kernel_over_bytes(program, Value::Tensor(x), &sizes) {
        close(&y, &want);
    }
}

#[test]
fn a_product_that_is_scaled_behind_reads_the_stored_bytes() {
    // As torchao writes int8 weights of a linear layer, and as the operator that does all of it.
    let (m, n, k) = (3usize, 140usize, 160usize);
    let (q, s) = (bytes(n * k, 23), scales(n, 24));
    let (sizes, out) = ([n as i64, k as i64], [m as i64, n as i64]);
    let model = || {
        let model = Model::new().integers("q", ScalarType::I8, &sizes, &q).floats("s", &[n as i64], &s);
        model.input("x", ScalarType::F32, &[m as i64, k as i64])
    };
    let f32_args = [("self", t("q")), ("dtype", Arg::ScalarType(ScalarType::F32))];
    let spelled = model()
        .call("c", "aten.to.dtype", &f32_args, ScalarType::F32, &sizes)
        .call("p", "aten.linear.default", &[("input", t("x")), ("weight", t("c"))], ScalarType::F32, &out)
        .call("y", "aten.mul.Tensor", &[("self", t("p")), ("other", t("s"))], ScalarType::F32, &out);
    let args = [("self", t("x")), ("mat2", t("q")), ("scales", t("s"))];
    let whole = model().call("y", "aten._weight_int8pack_mm.default", &args, ScalarType::F32, &out);
    let w: Vec<f64> = q.iter().enumerate().map(|(i, &q)| f64::from(q) * f64::from(s[i / k])).collect();
    for model in [spelled, whole] {
        let (x, values) = activations(m, k);
        let sizes = [("q", (n * k) as u64), ("s", 4 * n as u64)];
        if let Some((_, y)) = one_kernel_over_bytes(model.program("y"), x, &sizes) {
            close(&y, &product(&values, &w, k));
        }
    }
}

#[test]
fn integers_multiply_in_32_bits() {
    let (m, n, k) = (2usize, 3usize, 90usize);
    let (a, b) = (vec![-128i8; m * k], bytes(k * n, 25));
    let model = Model::new().integers("a", ScalarType::I8, &[m as i64, k as i64], &a);
    let model = model.integers("b", ScalarType::I8, &[k as i64, n as i64], &b);
    let args = [("self", t("a")), ("mat2", t("b"))];
    let got = model.call("y", "aten._int_mm.default", &args, ScalarType::I32, &[m as i64, n as i64]).eval("y", &[]);
    let sum = |j: usize| (0..k).map(|l| -128 * i64::from(b[l * n + j])).sum::<i64>();
    let want: Vec<i64> = (0..m * n).map(|i| sum(i % n)).collect();
    assert_eq!((got.dtype, got.ints()), (DType::I32, &want[..]));
}
