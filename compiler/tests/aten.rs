//! The ATen rules against PyTorch: operator cases, lowered and evaluated by the interpreter, compared by the pass rule.
//!
//! `data/operators.tar.gz` holds, per operator, `OP/CASE.pt2` (sometimes `.core.pt2`) and `OP/CASE.safetensors` with inputs (`in.N`), eager
//! outputs (`out.N`) and those of a run in f64 (`out64.N`), made by torch 2.11 from its own operator samples; `tv_roi_pool/002` (odd boxes,
//! equal values, positions) by plain loops of the definition, which give torch's result on 000. `examples/oracle.rs` runs the same
//! judgement over any folder.

mod archive;

use jvc::aten;
use jvc::exec::HostTensor;
use jvc::import;
use jvc::ir::DType;
use jvc::ir::eval::{self, Output, Tensor};
use jvc::options::Options;
use jvc::pass_rule::{Level, Rule};
use jvc::tensor_file::read_tensors;
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn operators_agree_with_pytorch() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let programs = archive::unpack_gzip(include_bytes!("data/operators.tar.gz"), dir.path());
    assert!(programs.len() > 300, "the archive holds {} programs", programs.len());
    let failures: Vec<String> =
        programs.iter().filter_map(|p| judge(p).err().map(|e| format!("{}: {e}", p.display()))).collect();
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), programs.len(), failures.join("\n"));
}

fn judge(path: &Path) -> Result<(), String> {
    let program = import::read(path).map_err(|e| e.to_string())?.pop().ok_or("no program")?;
    let graph = aten::lower(&program, &Options::default())
        .map_err(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    let stem = path.display().to_string().replace(".core.pt2", ".pt2").replace(".pt2", "");
    let tensors = read_tensors(Path::new(&format!("{stem}.safetensors"))).map_err(|e| e.to_string())?;
    let tensors: BTreeMap<String, Tensor> = tensors.iter().map(|(n, t)| (n.clone(), to_eval(t))).collect();
    let empty = Tensor::from_i64(DType::I64, &[], vec![0]);
    let input = |i: usize| tensors.get(&format!("in.{i}")).unwrap_or(&empty).clone();
    let inputs: Vec<Tensor> = (0..graph.inputs.len()).map(input).collect();
    let weights = |name: &str| {
        let view = program.weights.get(name)?;
        let mut shape: Vec<usize> = view.sizes.iter().map(|&s| s as usize).collect();
        shape.extend(view.dtype.is_complex().then_some(2));
        Tensor::from_bytes(view.dtype.dtype()?, shape, &view.contiguous()?)
    };
    let got = eval::eval(&graph, &weights, &inputs, &eval::Symbols::new()).map_err(|e| e.to_string())?;
    let own = tensors.iter().filter(|(n, _)| !n.starts_with("out64")).map(|(_, t)| t.dtype);
    let rule = Rule { precision: Rule::working_precision(own), level: Level::Operator, edge: false };
    let mut compared = 0;
    for (i, output) in got.outputs.iter().enumerate() {
        let Some(reference) = tensors.get(&format!("out.{i}")) else { continue };
        let value = match output {
            Output::Tensor(t) => t.clone(),
            Output::Int(v) => Tensor::from_i64(DType::I64, &[], vec![*v]),
            Output::Constant(_) => continue,
        };
        let f =
            rule.compare(&value, reference, tensors.get(&format!("out64.{i}"))).map_err(|e| format!("out.{i}: {e}"))?;
        compared += 1;
        if !f.pass() {
            return Err(format!("out.{i}: {} of {} elements, worst {:.3}× tolerance", f.failed, f.total, f.worst));
        }
    }
    if compared == 0 { Err("nothing to compare".to_string()) } else { Ok(()) }
}

fn to_eval(t: &HostTensor) -> Tensor {
    let shape = t.shape.iter().map(|&n| n as usize).collect();
    Tensor::from_bytes(t.dtype, shape, &t.bytes).expect("as many bytes as the shape says")
}
