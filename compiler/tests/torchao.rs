//! Archives that torchao and PT2E wrote (`models/quantised/export.py`): results against PyTorch's, and integers as the only weights.

mod archive;

use jvc::device;
use jvc::exec::HostTensor;
use jvc::import;
use jvc::ir::eval::{self, Output, Tensor};
use jvc::options::Options;
use jvc::pass_rule::{Level, Rule};
use jvc::passes::checkpoint_tensor;
use jvc::pipeline;
use jvc::report::Code;
use jvc::tensor_file::read_tensors;
use jvc_codegen::plan::Step;
use std::path::{Path, PathBuf};

/// Programs, and the number of their kernels.
const FORMS: &[(&str, usize)] = &[
    ("dyn8.core", 8),
    ("pt2e_conv", 4),
    ("pt2e_linear", 3),
    ("w2g16", 2),
    ("w4g32", 2),
    ("w4g32_asym", 2),
    ("w4g32_asym.core", 2),
    ("w8", 2),
    ("w8.core", 2),
];

fn unpacked(to: &Path) -> Vec<PathBuf> {
    archive::unpack_gzip(include_bytes!("data/torchao.tar.gz"), to)
}

fn file(programs: &[PathBuf], name: &str) -> PathBuf {
    let wanted = format!("{name}.pt2");
    programs.iter().find(|p| p.ends_with(&wanted)).unwrap_or_else(|| panic!("{wanted} in {programs:?}")).clone()
}

fn to_eval(t: &HostTensor) -> Tensor {
    let shape = t.shape.iter().map(|&n| n as usize).collect();
    Tensor::from_bytes(t.dtype, shape, &t.bytes).expect("as many bytes as the shape says")
}

#[test]
fn results_are_those_of_pytorch() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let programs = unpacked(dir.path());
    for (name, _) in FORMS {
        let path = file(&programs, name);
        let program = import::read(&path).expect(name).remove(0);
        let (graph, _) = pipeline::graph_of(&program, &Options::default(), None).expect(name);
        let stem = name.trim_end_matches(".core");
        let tensors = read_tensors(&path.with_file_name(format!("{stem}.safetensors"))).expect(name);
        let weights = |w: &str| checkpoint_tensor(&program.weights, w);
        let inputs = [to_eval(&tensors["in.0"])];
        let got = eval::eval(&graph, &weights, &inputs, &eval::Symbols::new()).expect(name);
        let Output::Tensor(value) = &got.outputs[0] else { panic!("{name}: a number") };
        let rule = Rule { precision: Rule::working_precision([value.dtype]), level: Level::Model, edge: false };
        let compared = rule.compare(value, &to_eval(&tensors["out.0"]), None).expect(name);
        assert!(compared.pass(), "{name}: {} of {} elements", compared.failed, compared.total);
    }
}

#[test]
fn products_read_the_stored_integers() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let programs = unpacked(dir.path());
    let profile = device::find("lavapipe").expect("bundled");
    for &(name, kernels) in FORMS {
        let program = import::read(&file(&programs, name)).expect(name).remove(0);
        let compiled = pipeline::compile(&[program], &Options::default(), &profile).expect(name);
        let steps = compiled.plan.entries[0].steps.iter().filter(|s| matches!(s, Step::Dispatch(_))).count();
        assert_eq!(steps, kernels, "{name}: no kernel of its own dequantises");
        // In floats the matrices alone would be 12288 bytes (the convolution's 5120).
        let bytes: u64 = compiled.plan.weights.tensors.iter().map(|t| t.bytes).sum();
        let most = if name.starts_with("pt2e_conv") { 2048 } else { 4608 };
        assert!(bytes <= most, "{name}: {bytes} bytes of weights");
    }
}

#[test]
fn pickled_weights_are_refused_with_what_to_do() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let program = import::read(&file(&unpacked(dir.path()), "subclass")).expect("readable").remove(0);
    let all = pipeline::graph_of(&program, &Options::default(), None).expect_err("refused");
    let refusal = all.iter().find(|d| d.code == Code::UnsupportedOp).expect("an operator");
    assert!(refusal.help.as_deref().is_some_and(|h| h.contains("unwrap_tensor_subclass")), "{refusal}");
}
