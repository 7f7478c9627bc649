//! `jvc tune`: every candidate that it may measure computes the same, its table is followed, and what is wrong with a table is told.

mod program;

use jvc::device::{DeviceProfile, MeasuredTile, Work, find, of_gpu};
use jvc::exec::{HostTensor, Loaded, Value};
use jvc::import::weights::WeightStore;
use jvc::ir::eval::{Symbols, Tensor, eval};
use jvc::ir::{Builder, DType, Graph, Op, TensorType, UserInput, UserOutput};
use jvc::options::Options;
use jvc::pipeline::{Compiled, plan_graphs};
use jvc::schedule::tile::{Listed, listed};
use jvc_runtime::{CacheDir, Gpu, Select};
use program::jvc;
use std::path::{Path, PathBuf};
use std::process::Output;

/// The device, or none where there is no Vulkan (CI has one).
fn gpu() -> Option<Gpu> {
    let gpu = Gpu::open(&Select::Auto).ok();
    assert!(gpu.is_some() || std::env::var_os("CI").is_none(), "CI has a device");
    gpu
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn golden(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/goldens").join(name).to_str().expect("UTF-8").to_owned()
}

/// A graph of one operation, and inputs that are different everywhere.
fn one(op: Op, dtype: DType, shapes: &[&[i64]]) -> (Graph, Vec<Tensor>) {
    let (mut b, mut inputs, mut values) = (Builder::new("one"), vec![], vec![]);
    for (index, shape) in (0u32..).zip(shapes) {
        let v = b.push(Op::Input { index }, vec![], vec![TensorType::fixed(dtype, shape)])[0];
        b.graph.inputs.push((format!("in_{index}"), UserInput::Tensor(v)));
        values.push(v);
        let shape: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
        let n = shape.iter().product::<usize>();
        let numbers = (0..n).map(|i| f64::from(((i * 37 + index as usize * 11) % 64) as u8) / 32.0 - 1.0).collect();
        inputs.push(Tensor::from_f64(dtype, &shape, numbers));
    }
    let out = b.add1(op, values).expect("a well-typed operation");
    b.graph.outputs = vec![("out".into(), UserOutput::Tensor(out))];
    (b.graph, inputs)
}

fn planned(graph: &Graph, device: &DeviceProfile) -> Compiled {
    let store = WeightStore::new();
    plan_graphs(vec![graph.clone()], &[&store], &Options::default(), device).expect("it compiles")
}

fn run(gpu: &Gpu, compiled: &Compiled, inputs: &[Tensor]) -> Vec<f64> {
    let value = |x: &Tensor| {
        let shape = x.shape.iter().map(|&d| d as i64).collect();
        Value::Tensor(HostTensor { dtype: x.dtype, shape, bytes: x.to_bytes() })
    };
    let loaded = Loaded::new(gpu, compiled, &CacheDir::None).expect("it loads");
    let mut session = loaded.session(0).expect("a session");
    session.poison_arena().expect("poison");
    let out = &session.run(&inputs.iter().map(value).collect::<Vec<_>>()).expect("it runs")[0];
    let shape = out.shape.iter().map(|&d| d as usize).collect();
    Tensor::from_bytes(out.dtype, shape, &out.bytes).expect("whole elements").floats().to_vec()
}

fn with_tile(device: &DeviceProfile, of: &Work, tile: &str) -> DeviceProfile {
    let tried = [(tile.to_owned(), 1.0)].into();
    let entry = MeasuredTile { tile: tile.to_owned(), us: 1.0, of: of.clone(), tried };
    DeviceProfile { tiles: vec![entry], ..device.clone() }
}

/// Large tiles take CPU drivers up to a minute each to compile; the templates' own tests have them.
fn is_small(name: &str) -> bool {
    let most = if name.starts_with("cooperative") { 64 * 64 } else { 32 * 32 };
    let sizes = name.split([' ', ',']).find(|word| word.split('x').count() == 3);
    let side = |n: &str| n.parse::<u32>().expect("a size");
    if name.contains("fragments") {
        return name.ends_with(" 16 keys");
    }
    sizes.is_none_or(|sizes| sizes.split('x').take(2).map(side).product::<u32>() <= most)
}

/// Every candidate, by a table that names it, against the interpreter.
fn every_candidate_is_right(gpu: &Gpu, device: &DeviceProfile, (graph, inputs): &(Graph, Vec<Tensor>)) -> usize {
    let want = eval(graph, &|_| None, inputs, &Symbols::new()).expect("the interpreter knows it");
    let want = want.tensors()[0].floats().to_vec();
    let scale = want.iter().fold(0f64, |m, v| m.max(v.abs()));
    let plain = planned(graph, device);
    let of = plain.tiles[0].iter().flatten().next().expect("something to choose").of.clone();
    let all: Vec<Listed> =
        listed(device, &of).expect("known types").into_iter().filter(|c| is_small(&c.name)).collect();
    for candidate in &all {
        let compiled = planned(graph, &with_tile(device, &of, &candidate.name));
        let chosen = compiled.tiles[0].iter().flatten().next().expect("a choice");
        assert_eq!((&chosen.tile, chosen.measured), (&candidate.name, true));
        let told =
            compiled.plan.decisions.iter().any(|d| d.contains(&candidate.name) && d.contains("measured fastest"));
        assert!(told, "{:?}", compiled.plan.decisions);
        for (got, want) in run(gpu, &compiled, inputs).iter().zip(&want) {
            assert!((got - want).abs() <= 2e-3 * scale, "{of}, {}: {got}, not {want}", candidate.name);
        }
    }
    all.len()
}

#[test]
fn whatever_candidate_the_table_names_is_taken_and_right() {
    let Some(gpu) = gpu() else { return };
    let own = of_gpu(gpu.info());
    let product = |dtype| one(Op::Matmul, dtype, &[&[40, 96], &[96, 50]]);
    let thin = one(Op::Matmul, DType::F32, &[&[3, 96], &[96, 50]]);
    let attention = Op::Attention { scale: 0.2, causal: false, zero_masked_rows: true, masked: false };
    let heads = |dtype| one(attention.clone(), dtype, &[&[1, 2, 70, 16], &[1, 2, 70, 16], &[1, 2, 70, 16]]);
    assert!(every_candidate_is_right(&gpu, &own, &product(DType::F32)) > 1);
    // As a GPU of the same limits would choose.
    let mut as_gpu = own.clone();
    as_gpu.rates.cpu = false;
    assert!(every_candidate_is_right(&gpu, &as_gpu, &product(DType::F32)) > 0);
    assert!(every_candidate_is_right(&gpu, &as_gpu, &thin) > 1);
    assert!(every_candidate_is_right(&gpu, &as_gpu, &heads(DType::F32)) > 1);
    if own.cooperative.iter().any(|c| c.operand == "f16" && c.result == "f32") {
        assert!(every_candidate_is_right(&gpu, &as_gpu, &product(DType::F16)) > 0);
        assert!(every_candidate_is_right(&gpu, &as_gpu, &heads(DType::F16)) > 1);
    }
}

fn tune(program: &str, device: &str, output: &Path) -> Output {
    let output = output.to_str().expect("UTF-8");
    jvc(&["tune", program, "--device", device, "-o", output, "--rounds", "2", "--runs", "2", "--warmup", "1"])
}

#[test]
fn a_tuned_profile_has_an_entry_for_each_kind_of_work_and_programs_stay_right_with_it() {
    if gpu().is_none() {
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let path: PathBuf = dir.path().join("tuned.toml");
    let file = path.to_str().expect("UTF-8");
    let first = tune(&golden("mlp.pt2"), "auto", &path);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    let table = jvc::device::load(&path).expect("a profile").tiles;
    assert_eq!(table.len(), 2, "both products of the program: {table:?}");
    assert!(table.is_sorted_by_key(|t| t.of.clone()) && table.iter().all(|t| t.tried.len() > 1));
    assert!(text(&first.stdout).contains("the cost model's choices"), "{}", text(&first.stdout));
    // Another program's work comes beside it.
    let second = tune(&golden("conv_block.pt2"), file, &path);
    assert_eq!(second.status.code(), Some(0), "{}", text(&second.stderr));
    let both = jvc::device::load(&path).expect("a profile").tiles;
    assert!(both.len() > table.len() && table.iter().all(|t| both.contains(t)), "{both:?}");
    for program in ["mlp.pt2", "conv_block.pt2"] {
        let verified = jvc(&["verify", &golden(program), "--device", file, "--quiet"]);
        assert_eq!(verified.status.code(), Some(0), "{program}: {}", text(&verified.stdout));
    }
    let checked = jvc(&["tune", "--check", "--device", file, &golden("mlp.pt2"), "--format", "json"]);
    let verdict: serde_json::Value = serde_json::from_slice(&checked.stdout).expect("JSON");
    assert_eq!(verdict["n_judged"], both.len());
    let useless = verdict["useless"].as_array().expect("a list");
    assert_eq!(useless.len(), both.len() - table.len(), "those of the other program: {verdict}");
}

/// A bundled profile with a table, in a file.
fn profile(dir: &Path, tiles: Vec<MeasuredTile>) -> String {
    let path = dir.join("made-up.toml");
    let device = find("lavapipe").expect("bundled");
    let text = jvc::device::with_tiles(jvc::device::file("lavapipe").expect("bundled"), &device, &tiles, "nobody");
    std::fs::write(&path, text).expect("writable");
    path.to_str().expect("UTF-8").to_owned()
}

/// Of the first product of a program, on lavapipe.
fn work() -> Work {
    let program = jvc::import::read(Path::new(&golden("mlp.pt2"))).expect("readable");
    let device = find("lavapipe").expect("bundled");
    let compiled = jvc::pipeline::compile(&program, &Options::default(), &device).expect("it compiles");
    compiled.tiles[0].iter().flatten().next().expect("a product").of.clone()
}

#[test]
fn check_finds_choices_of_the_model_that_a_table_shows_to_be_slow() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let of = work();
    let names: Vec<String> =
        listed(&find("lavapipe").expect("bundled"), &of).expect("known").into_iter().map(|c| c.name).collect();
    let made_up = |slower: f64| {
        let tried = [(names[0].clone(), 10.0 * slower), (names[1].clone(), 10.0)].into();
        vec![MeasuredTile { tile: names[1].clone(), us: 10.0, of: of.clone(), tried }]
    };
    for (slower, code) in [(1.15, 0), (1.3, 1)] {
        let output = jvc(&["tune", "--check", "--device", &profile(dir.path(), made_up(slower))]);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stdout));
        let told = text(&output.stdout).contains(&format!("{}, takes 30 % longer than {}", names[0], names[1]));
        assert_eq!(told, code == 1, "{}", text(&output.stdout));
    }
}

#[test]
fn what_is_wrong_with_a_table_is_told_with_the_reason() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let of = work();
    let entry = |tile: &str| with_tile(&find("lavapipe").expect("bundled"), &of, tile).tiles;
    let unknown = profile(dir.path(), entry("a tile of another release"));
    let out = dir.path().join("crate");
    let args = ["compile", &golden("mlp.pt2"), "--device", &unknown, "--out", out.to_str().expect("UTF-8")];
    let output = jvc(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let decisions = std::fs::read_to_string(out.join("decisions.txt")).expect("a file of the crate");
    for place in [text(&output.stderr), decisions] {
        let line = place.lines().find(|line| line.contains("a tile of another release")).expect("it is told");
        assert!(line.contains("left to the cost model") && line.contains("registers 1x1"), "{line}");
    }
    let twice = profile(dir.path(), [entry("registers 1x1, 8 invocations"), entry("x")].concat());
    let output = jvc(&["devices", "lavapipe"]);
    assert_eq!(output.status.code(), Some(0), "bundled profiles have no such table");
    let output = jvc(&["compile", &golden("mlp.pt2"), "--device", &twice]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("two tiles for product"), "{}", text(&output.stderr));
    let output = jvc(&["tune", "--check"]);
    assert_eq!(output.status.code(), Some(2), "nothing to check");
    assert!(text(&output.stderr).contains("--device FILE.toml"), "{}", text(&output.stderr));
}
