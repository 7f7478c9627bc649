//! `jvc verify --refs`: where every step is right nothing is said, and a wrong one is found by name. `data/steps/` holds a small program with
//! PyTorch's values at its nodes, which `data/steps/make.py` and `models/dump_refs.py` made.

use jvc::device::{DeviceProfile, of_open_gpu};
use jvc::exec::{HostTensor, Loaded, Value};
use jvc::import;
use jvc::options::Options;
use jvc::pass_rule::Level;
use jvc::pipeline::{Compiled, compile};
use jvc::tensor_file::{print_tensors, read_tensors};
use jvc::verify::{Activations, Comparison, Refs, Request, Status, StepsReport, verify};
use jvc_runtime::{CacheDir, Gpu, Select};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/steps").join(name)
}

fn gpu() -> Option<Gpu> {
    let gpu = Gpu::open(&Select::Auto).ok();
    assert!(gpu.is_some() || std::env::var_os("CI").is_none(), "CI has a device");
    gpu
}

fn request(refs: &Path, weights: Option<&Path>) -> Request {
    let refs = Refs { file: refs.into(), inputs: None, weights: weights.map(Path::to_path_buf) };
    Request { repeats: 2, refs: Some(refs), ..Request::new(vec![data("small.pt2")]) }
}

fn verified(request: &Request) -> (Status, StepsReport) {
    let summary = verify(request, &mut |_, _, _| {}).expect("a device");
    let file = summary.files.into_iter().next().expect("one program");
    (file.status, file.steps.expect("steps were compared"))
}

fn compiled(device: &DeviceProfile) -> Compiled {
    let programs = import::read(&data("small.pt2")).expect("readable");
    compile(&programs, &Options::default(), device).expect("supported")
}

fn compare(gpu: &Gpu, device: &DeviceProfile, compiled: &Compiled) -> StepsReport {
    let file = Activations::open(&data("small.refs.safetensors")).expect("references");
    let input = read_tensors(&data("small.refs.safetensors")).expect("readable").remove("in.0").expect("an input");
    let loaded = Loaded::new(gpu, compiled, &CacheDir::None).expect("it loads");
    let comparison = Comparison { compiled, device, file: &file, level: Level::Model, half: None, repeats: 1 };
    comparison.run(&loaded, &[Value::Tensor(input)]).expect("it runs")
}

fn floats(t: &HostTensor) -> Vec<f32> {
    t.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

#[test]
fn right_steps_have_no_finding_and_every_step_is_accounted_for() {
    if gpu().is_none() {
        return;
    }
    let (status, steps) = verified(&request(&data("small.refs.safetensors"), None));
    assert_eq!(status, Status::Pass, "{steps}");
    assert!(steps.first_own().is_none() && steps.first_accumulated().is_none(), "{steps}");
    for step in &steps.steps {
        assert!(!step.checks.is_empty() || !step.no_reference.is_empty(), "nothing is said of {}", step.label);
        for check in &step.checks {
            assert!(check.own.is_some() && check.accumulated.is_some(), "{} is compared once only", check.value);
        }
    }
    let nodes: Vec<&str> = steps.steps.iter().flat_map(|s| &s.checks).map(|c| c.node.as_str()).collect();
    // A fused tail, a joined product's parts by their movement, a concatenation of parts, both halves of a complex value, integers.
    for node in ["relu", "cat", "scaled_dot_product_attention", "fft_rfft", "argmax", "softmax"] {
        assert!(nodes.contains(&node), "{node} is not among {nodes:?}");
    }
    assert_eq!(nodes.iter().filter(|n| **n == "fft_rfft").count(), 2, "real and imaginary parts");
}

#[test]
fn a_wrong_weight_is_found_at_the_step_that_reads_it_and_inherited_behind() {
    let Some(gpu) = gpu() else { return };
    let programs = import::read(&data("small.pt2")).expect("readable");
    let view = programs[0].weights.get("out.weight").expect("a weight");
    let mut bytes = view.contiguous().expect("a payload");
    let first = f32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
    bytes[..4].copy_from_slice(&(first + 0.01).to_le_bytes());
    let weight = HostTensor { dtype: jvc::ir::DType::F32, shape: view.sizes.clone(), bytes };
    let dir = tempfile::tempdir().expect("a scratch folder");
    let path = dir.path().join("wrong.safetensors");
    let tensors: BTreeMap<String, HostTensor> = [("out.weight".to_string(), weight)].into();
    std::fs::write(&path, print_tensors(&tensors).expect("consistent")).expect("writable");
    drop(gpu);
    let (status, steps) = verified(&request(&data("small.refs.safetensors"), Some(&path)));
    assert!(matches!(status, Status::Fail(why) if why.contains("first that is wrong by itself")));
    let wrong = steps.first_own().expect("a finding");
    assert!(wrong.origin.iter().any(|o| o.contains("linear_3")), "{:?}", wrong.origin);
    let own: Vec<&str> = steps
        .steps
        .iter()
        .flat_map(|s| &s.checks)
        .filter(|c| c.own.as_ref().is_some_and(|j| j.problem.is_some()))
        .map(|c| c.node.as_str())
        .collect();
    assert_eq!(own, ["linear_3"], "what follows works on PyTorch's values");
    let inherited = steps.steps.iter().flat_map(|s| &s.checks);
    let inherited = inherited.filter(|c| c.accumulated.as_ref().is_some_and(|j| j.problem.is_some())).count();
    assert!(inherited > 1, "the spectrum behind it is off too");
}

#[test]
fn a_wrong_kernel_is_named() {
    let Some(gpu) = gpu() else { return };
    let device = of_open_gpu(&gpu);
    let right = compiled(&device);
    let steps = compare(&gpu, &device, &right);
    assert!(steps.problem().is_none(), "{steps}");
    // Every kernel in turn adds where it should subtract, or the reverse; it must be the one that is named.
    let mut named = 0;
    for at in 0..right.plan.kernels.len() {
        let mut wrong = compiled(&device);
        let Some(kernel) = miscompiled(&mut wrong, at) else { continue };
        let steps = compare(&gpu, &device, &wrong);
        // A few of them compute the same after all: a sum with zero.
        let Some(found) = steps.first_own() else { continue };
        assert_eq!(found.kernel, kernel, "{steps}");
        named += 1;
    }
    assert!(named >= 4, "only {named} kernels were wrong");
}

/// Turns the last floating sum of a kernel into a difference; its name, or none where it has no sum.
fn miscompiled(compiled: &mut Compiled, at: usize) -> Option<String> {
    const ADD: u32 = 129;
    const SUB: u32 = 131;
    let kernel = &mut compiled.plan.kernels[at];
    let (mut word, mut last) = (5, None);
    while word < kernel.words.len() {
        let (op, len) = (kernel.words[word] & 0xffff, kernel.words[word] >> 16);
        last = if op == ADD { Some(word) } else { last };
        word += len as usize;
    }
    let word = last?;
    kernel.words[word] = kernel.words[word] - ADD + SUB;
    Some(kernel.name.clone())
}

#[test]
fn one_wrong_reference_is_the_first_finding() {
    if gpu().is_none() {
        return;
    }
    let mut tensors = read_tensors(&data("small.refs.safetensors")).expect("readable");
    for (kind, size) in [("node", 4), ("node64", 8)] {
        let t = tensors.get_mut(&format!("{kind}.scaled_dot_product_attention")).expect("a node");
        let at = t.bytes.len() / 2;
        let value: &[u8] = if size == 4 { &9.0f32.to_le_bytes() } else { &9.0f64.to_le_bytes() };
        t.bytes[at..at + size].copy_from_slice(value);
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let path = dir.path().join("refs.safetensors");
    std::fs::write(&path, print_tensors(&tensors).expect("consistent")).expect("writable");
    let (_, steps) = verified(&request(&path, None));
    let found = steps.first_own().expect("a finding");
    assert!(found.origin.iter().any(|o| o.contains("scaled_dot_product_attention")), "{:?}", found.origin);
    let check = &found.checks[0];
    let figures = check.own.as_ref().expect("compared").figures;
    assert_eq!((figures.failed, figures.first), (1, Some(figures.total / 2)), "one element");
    assert!(floats(&tensors["node.scaled_dot_product_attention"]).contains(&9.0));
}
