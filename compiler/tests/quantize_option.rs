//! `--quantize` against its own definition, in plain loops: in the interpreter, and fused into one kernel over the stored bytes on the
//! device at hand.

#[path = "quantized/model.rs"]
#[expect(dead_code, reason = "the tests of quantised exports use the rest")]
mod model;

use jvc::device;
use jvc::exec::{HostTensor, Loaded, Value};
use jvc::import::program::{Program, ScalarType};
use jvc::ir::DType;
use jvc::ir::eval::{Symbols, Tensor, eval};
use jvc::options::{Options, Quantize, QuantizedForm};
use jvc::passes::checkpoint_tensor;
use jvc::passes::quantize::{Kept, Outcome};
use jvc::pipeline::{self, Compiled};
use jvc_codegen::plan::Step;
use jvc_runtime::{CacheDir, Gpu, Select};
use model::{Model, activations, floats, product, t};

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// A row of weights after quantisation and back, by the definition of the form.
fn requantized(row: &[f64], form: QuantizedForm) -> Vec<f64> {
    match form {
        QuantizedForm::Int8 => {
            let scale = f64::from((row.iter().fold(0.0f64, |m, v| m.max(v.abs())) / 127.0) as f32);
            row.iter().map(|v| if scale == 0.0 { 0.0 } else { (v / scale).round_ties_even() * scale }).collect()
        }
        QuantizedForm::Int4 => row.chunks(32).flat_map(requantized_group).collect(),
    }
}

fn requantized_group(group: &[f64]) -> Vec<f64> {
    let low = group.iter().fold(0.0f64, |m, &v| m.min(v));
    let high = group.iter().fold(0.0f64, |m, &v| m.max(v));
    let scale = f64::from(((high - low) / 15.0) as f32);
    if scale == 0.0 {
        return vec![0.0; group.len()];
    }
    let zero = (-low / scale).round_ties_even();
    group.iter().map(|v| (((v / scale).round_ties_even() + zero).clamp(0.0, 15.0) - zero) * scale).collect()
}

/// Bytes of a weight of rows: integers, scales, zero points.
fn quantized_bytes(rows: usize, k: usize, form: QuantizedForm) -> u64 {
    let groups = k.div_ceil(32);
    let row = if form == QuantizedForm::Int8 { k + 4 } else { k.div_ceil(2) + 5 * groups };
    (rows * row) as u64
}

/// Compiles with `--quantize`; runs on the device and, after all passes, in the interpreter: all results must be `want`.
fn quantizes(program: Program, form: QuantizedForm, inputs: Vec<Value>, want: &[f64], tolerance: f64) -> Compiled {
    let gpu = Gpu::open(&Select::Auto).ok();
    assert!(gpu.is_some() || std::env::var_os("CI").is_none(), "CI has a device");
    let profile = gpu.as_ref().map_or_else(|| device::find("lavapipe").expect("bundled"), |g| device::of_gpu(g.info()));
    let options = Options { quantize: Some(Quantize::new(form)), check_semantics: true, ..Options::default() };
    let programs = [program];
    let compiled = pipeline::compile(&programs, &options, &profile).expect("compiles");
    let dispatches = compiled.plan.entries[0].steps.iter().filter(|s| matches!(s, Step::Dispatch(_))).count();
    assert_eq!(dispatches, 1, "no kernel of its own decodes:\n{}", compiled.plan.to_text());
    let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let near = |got: &[f64]| {
        assert_eq!(got.len(), want.len());
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            assert!((g - w).abs() <= tolerance * scale, "{form:?}, element {i}: got {g}, want {w}");
        }
    };
    let tensor = |t: &HostTensor| {
        Tensor::from_bytes(t.dtype, t.shape.iter().map(|&d| d as usize).collect(), &t.bytes).expect("whole elements")
    };
    let arguments: Vec<Tensor> =
        inputs.iter().filter_map(|v| if let Value::Tensor(t) = v { Some(tensor(t)) } else { None }).collect();
    let weights = |name: &str| checkpoint_tensor(&programs[0].weights, name);
    let out = eval(&compiled.graphs[0], &weights, &arguments, &Symbols::new()).expect("evaluates");
    near(out.tensors()[0].floats());
    if let Some(gpu) = gpu {
        let loaded = Loaded::new(&gpu, &compiled, &CacheDir::None).expect("loads");
        let out = loaded.session(0).expect("a session").run(&inputs).expect("runs");
        near(tensor(&out[0]).floats());
    }
    compiled
}

/// The report must say of the one large weight what plain arithmetic says.
fn reported(compiled: &Compiled, before: u64, after: u64, was: &[f64], is: &[f64]) {
    let [report] = &compiled.quantized[..] else { panic!("one report") };
    let [w] = &report.weights[..] else { panic!("one weight: {report:?}") };
    let Outcome::Quantized { bytes, error } = w.outcome else { panic!("quantised: {w:?}") };
    assert_eq!((w.name.as_str(), w.bytes, bytes), ("w", before, after));
    let squares = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>();
    let squared = squares(&mut was.iter().zip(is).map(|(a, b)| a - b));
    let want = (squared / squares(&mut was.iter().copied())).sqrt();
    assert!((error.relative() - want).abs() <= 1e-4 * want, "{} for {want}", error.relative());
    assert!(want > 1e-4, "the test's weights are not on the grid");
    assert!(compiled.plan.decisions.iter().any(|d| d.starts_with("w: int")), "{:?}", compiled.plan.decisions);
}

const FORMS: [QuantizedForm; 2] = [QuantizedForm::Int8, QuantizedForm::Int4];

#[test]
fn linear_weights_become_integers() {
    // 200 is no multiple of 32, 181 not even of 2.
    for (form, k) in FORMS.into_iter().flat_map(|f| [(f, 200usize), (f, 181)]) {
        let (m, n) = (4usize, 96usize);
        let mut w = floats(n * k, 31);
        w[3 * k..4 * k].fill(0.0);
        let model =
            Model::new().floats("w", &[n as i64, k as i64], &w).input("x", ScalarType::F32, &[m as i64, k as i64]);
        let program = model.linear("x", "w", &[m as i64, n as i64]).program("y");
        let (x, values) = activations(m, k);
        let is: Vec<f64> = wide(&w).chunks(k).flat_map(|row| requantized(row, form)).collect();
        let compiled = quantizes(program, form, vec![x], &product(&values, &is, k), 2e-6);
        let after = quantized_bytes(n, k, form);
        reported(&compiled, 4 * (n * k) as u64, after, &wide(&w), &is);
        if device::find("lavapipe").is_ok_and(|d| d.name == compiled.plan.device) {
            let stored: u64 = compiled.plan.weights.tensors.iter().map(|t| t.bytes).sum();
            assert_eq!(stored, after, "the weight file holds nothing else");
        }
    }
}

#[test]
fn weights_of_plain_products_become_integers() {
    for form in FORMS {
        let (m, n, k) = (3usize, 150usize, 130usize);
        let w = floats(k * n, 33);
        let columns: Vec<f64> =
            (0..n).flat_map(|j| (0..k).map(move |l| (l, j))).map(|(l, j)| f64::from(w[l * n + j])).collect();
        let model =
            Model::new().floats("w", &[k as i64, n as i64], &w).input("x", ScalarType::F32, &[m as i64, k as i64]);
        let args = [("self", t("x")), ("mat2", t("w"))];
        let program = model.call("y", "aten.mm.default", &args, ScalarType::F32, &[m as i64, n as i64]).program("y");
        let (x, values) = activations(m, k);
        let is: Vec<f64> = columns.chunks(k).flat_map(|row| requantized(row, form)).collect();
        let compiled = quantizes(program, form, vec![x], &product(&values, &is, k), 2e-6);
        reported(&compiled, 4 * (n * k) as u64, quantized_bytes(n, k, form), &columns, &is);
    }
}

#[test]
fn convolution_weights_become_integers() {
    for form in FORMS {
        let (o, c, size) = (64usize, 30usize, 5usize);
        let w = floats(o * c * 9, 35);
        let model = Model::new().floats("w", &[o as i64, c as i64, 3, 3], &w);
        let model = model.input("x", ScalarType::F32, &[1, c as i64, size as i64, size as i64]);
        let conv = [("input", t("x")), ("weight", t("w"))];
        let program = model.call("y", "aten.conv2d.default", &conv, ScalarType::F32, &[1, o as i64, 3, 3]).program("y");
        let (Value::Tensor(mut x), values) = activations(c, size * size) else { panic!("a tensor") };
        x.shape = vec![1, c as i64, size as i64, size as i64];
        let is: Vec<f64> = wide(&w).chunks(c * 9).flat_map(|row| requantized(row, form)).collect();
        let tap = |o: usize, i: usize, j: usize, l: usize| {
            is[o * c * 9 + l] * values[(l / 9 * size + i + l % 9 / 3) * size + j + l % 3]
        };
        let places = (0..o).flat_map(|o| (0..9).map(move |p| (o, p / 3, p % 3)));
        let want: Vec<f64> = places.map(|(o, i, j)| (0..c * 9).map(|l| tap(o, i, j, l)).sum()).collect();
        let compiled = quantizes(program, form, vec![Value::Tensor(x)], &want, 2e-6);
        reported(&compiled, 4 * (o * c * 9) as u64, quantized_bytes(o, c * 9, form), &wide(&w), &is);
    }
}

/// A linear layer of bf16 with weights `w` in rows of `k`, for `m` rows of `x`.
fn half_linear(w: &[half::bf16], m: usize, k: usize) -> Program {
    let n = w.len() / k;
    let stored = w.iter().flat_map(|v| v.to_le_bytes()).collect();
    let model = Model::new().weight("w", ScalarType::BF16, &[n as i64, k as i64], stored);
    let args = [("input", t("x")), ("weight", t("w"))];
    let model = model.input("x", ScalarType::BF16, &[m as i64, k as i64]);
    model.call("y", "aten.linear.default", &args, ScalarType::BF16, &[m as i64, n as i64]).program("y")
}

fn halves(n: usize, seed: u64) -> Vec<half::bf16> {
    floats(n, seed).into_iter().map(half::bf16::from_f32).collect()
}

#[test]
fn half_precision_weights_become_integers() {
    for form in FORMS {
        let (m, n, k) = (2usize, 128usize, 160usize);
        let (w, x) = (halves(n * k, 37), halves(m * k, 38));
        let was: Vec<f64> = w.iter().map(|v| v.to_f64()).collect();
        let values: Vec<f64> = x.iter().map(|v| v.to_f64()).collect();
        let bytes = x.iter().flat_map(|v| v.to_le_bytes()).collect();
        let x = HostTensor { dtype: DType::BF16, shape: vec![m as i64, k as i64], bytes };
        let is: Vec<f64> = was.chunks(k).flat_map(|row| requantized(row, form)).collect();
        // A decoded weight may or may not be rounded to its type before it is multiplied.
        let want = product(&values, &is, k);
        let compiled = quantizes(half_linear(&w, m, k), form, vec![Value::Tensor(x)], &want, 8e-3);
        let Outcome::Quantized { bytes, error } = compiled.quantized[0].weights[0].outcome else { panic!("quantised") };
        assert_eq!(bytes, quantized_bytes(n, k, form));
        assert!(error.relative() < if form == QuantizedForm::Int8 { 0.01 } else { 0.08 }, "{}", error.relative());
    }
}

#[test]
fn every_profile_has_one_kernel_for_a_product_with_quantised_halves() {
    let w = halves(256 * 512, 41);
    for (profile, form) in device::all().into_iter().flat_map(|d| FORMS.map(|f| (d.clone(), f))) {
        // One row, and as many as cooperative tiles take.
        for m in [1, 256] {
            let options = Options { quantize: Some(Quantize::new(form)), ..Options::default() };
            let compiled = pipeline::compile(&[half_linear(&w, m, 512)], &options, &profile).expect("compiles");
            let dispatches = compiled.plan.entries[0].steps.iter().filter(|s| matches!(s, Step::Dispatch(_))).count();
            assert_eq!(dispatches, 1, "{} {form:?}:\n{}", profile.name, compiled.plan.to_text());
            #[cfg(feature = "validate")]
            for k in &compiled.plan.kernels {
                jvc_kernels::validate(&k.words).unwrap_or_else(|e| panic!("{}: {}: {e}", profile.name, k.spec));
            }
        }
    }
}

fn embedding_model(rows: usize, d: usize, w: &[f32]) -> Model {
    let model = Model::new().floats("w", &[rows as i64, d as i64], w).input("i", ScalarType::I64, &[3]);
    let lookup = [("weight", t("w")), ("indices", t("i"))];
    model.call("e", "aten.embedding.default", &lookup, ScalarType::F32, &[3, d as i64])
}

#[test]
fn embeddings_become_integers_where_nothing_else_reads_them() {
    let (rows, d) = (300usize, 70usize);
    let w = floats(rows * d, 39);
    let at = [299i64, 0, 17];
    let i = HostTensor { dtype: DType::I64, shape: vec![3], bytes: at.iter().flat_map(|v| v.to_le_bytes()).collect() };
    for form in FORMS {
        let is: Vec<f64> = wide(&w).chunks(d).flat_map(|row| requantized(row, form)).collect();
        let want: Vec<f64> = at.iter().flat_map(|&r| is[r as usize * d..][..d].to_vec()).collect();
        let program = embedding_model(rows, d, &w).program("e");
        let compiled = quantizes(program, form, vec![Value::Tensor(i.clone())], &want, 2e-6);
        reported(&compiled, 4 * (rows * d) as u64, quantized_bytes(rows, d, form), &wide(&w), &is);
    }
    let tied = embedding_model(rows, d, &w).linear("e", "w", &[3, rows as i64]).program("y");
    let options = Options { quantize: Some(Quantize::new(QuantizedForm::Int8)), ..Options::default() };
    let compiled = pipeline::compile(&[tied], &options, &device::find("lavapipe").expect("bundled")).expect("compiles");
    assert_eq!(compiled.quantized[0].weights[0].outcome, Outcome::Kept(Kept::TiedEmbedding));
    let line = "w: stays f32, 84000 bytes (tied-embedding: it is an embedding that something else reads too)";
    assert!(compiled.plan.decisions.iter().any(|d| d == line), "{:?}", compiled.plan.decisions);
}
