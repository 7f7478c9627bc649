//! Judges the ATen rules alone: lowers programs, evaluates the graph with the interpreter, and compares with PyTorch's references.
//!
//! `oracle [--level op|model] [--passes] [--failures] PATH…`: `.pt2` files, or folders that are searched. `NAME.pt2` and `NAME.core.pt2` are judged by
//! `NAME.safetensors` (`in.N`, `out.N`, `out64.N`). An `index.json` of operator cases in a given folder marks edge cases and ties.
//! With `--passes` the graph goes through all passes first.
#![expect(clippy::print_stdout, reason = "a command that prints its findings")]

use jvc::import::{self, Program};
use jvc::ir::DType;
use jvc::ir::eval::{self, Output, Tensor};
use jvc::options::Options;
use jvc::pass_rule::{Level, Rule};
use jvc::passes::checkpoint_tensor;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// How to judge a file.
#[derive(Clone, Copy)]
struct Case {
    level: Level,
    edge: bool,
    /// The input holds equal values, whose order PyTorch leaves open.
    ties: bool,
    /// Run the passes before the interpreter.
    passes: bool,
}

/// Outcome of one file.
enum Verdict {
    Pass,
    Fail(String),
    Unsupported(Vec<String>),
}

fn main() {
    let mut level = Level::Operator;
    let (mut failures_only, mut passes) = (false, false);
    let mut files = vec![];
    let (mut edges, mut ties) = (BTreeSet::new(), BTreeSet::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--level" => level = if args.next().as_deref() == Some("model") { Level::Model } else { Level::Operator },
            "--failures" => failures_only = true,
            "--passes" => passes = true,
            path => {
                collect(Path::new(path), &mut files);
                edges.extend(flagged_cases(Path::new(path), "edge"));
                ties.extend(flagged_cases(Path::new(path), "ties"));
            }
        }
    }
    files.sort();
    let (mut passed, mut failed, mut missing) = (0, 0, BTreeMap::<String, usize>::new());
    let mut unsupported = 0;
    for file in &files {
        let name = file.display().to_string();
        let flagged = |set: &BTreeSet<String>| set.iter().any(|e| name.contains(e.as_str()));
        let case = Case { level, edge: flagged(&edges), ties: flagged(&ties), passes };
        let verdict = std::panic::catch_unwind(|| judge(file, case));
        match verdict.unwrap_or_else(|_| Verdict::Fail("panic".into())) {
            Verdict::Pass => {
                passed += 1;
                if !failures_only {
                    println!("pass        {name}");
                }
            }
            Verdict::Fail(why) => {
                failed += 1;
                println!("FAIL        {name}: {why}");
            }
            Verdict::Unsupported(reasons) => {
                unsupported += 1;
                if !failures_only {
                    println!("unsupported {name}: {}", reasons.join("; "));
                }
                for r in reasons {
                    *missing.entry(r).or_default() += 1;
                }
            }
        }
    }
    for (reason, n) in missing {
        println!("{n:5} × {reason}");
    }
    println!("{passed} pass, {failed} fail, {unsupported} unsupported");
    std::process::exit(i32::from(failed > 0));
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(path) else {
        files.push(path.to_path_buf());
        return;
    };
    for entry in entries.flatten() {
        let p = entry.path();
        if p.is_dir() {
            collect(&p, files);
        } else if p.extension().is_some_and(|e| e == "pt2") {
            files.push(p);
        }
    }
}

/// `OP/CASE` of the cases that an index marks with a flag.
fn flagged_cases(folder: &Path, flag: &str) -> Vec<String> {
    let Ok(text) = std::fs::read_to_string(folder.join("index.json")) else { return vec![] };
    let Ok(serde_json::Value::Array(cases)) = serde_json::from_str(&text) else { return vec![] };
    let name = |c: &serde_json::Value| Some(format!("/{}/{}.", c["op"].as_str()?, c["case"].as_str()?));
    cases.iter().filter(|c| c[flag] == true).filter_map(name).collect()
}

fn judge(file: &Path, case: Case) -> Verdict {
    let mut programs = match import::read(file) {
        Ok(programs) => programs,
        Err(e) => return Verdict::Fail(format!("import: {e}")),
    };
    let Some(program) = programs.pop() else { return Verdict::Fail("no program".into()) };
    let mut graph = match jvc::aten::lower(&program, &Options::default()) {
        Ok(graph) => graph,
        Err(all) => {
            let lines = all.iter().map(|d| format!("{} [{}]", d.message, d.origin.target));
            return Verdict::Unsupported(lines.collect::<BTreeSet<_>>().into_iter().collect());
        }
    };
    let weights = |name: &str| checkpoint_tensor(&program.weights, name);
    if case.passes
        && let Err(e) = jvc::passes::run(&mut graph, &weights, &Options::default(), None)
    {
        return Verdict::Fail(e.to_string());
    }
    let text = file.display().to_string();
    let stem = text.trim_end_matches(".pt2").trim_end_matches(".core");
    let tensors = match read_tensors(Path::new(&format!("{stem}.safetensors"))) {
        Ok(t) => t,
        Err(e) => return Verdict::Fail(e),
    };
    match run(&program, &graph, &tensors, case) {
        Ok(()) => Verdict::Pass,
        Err(e) => Verdict::Fail(e),
    }
}

fn run(
    program: &Program,
    graph: &jvc::ir::Graph,
    tensors: &BTreeMap<String, Tensor>,
    case: Case,
) -> Result<(), String> {
    let empty = Tensor::from_i64(DType::I64, &[], vec![0]);
    let inputs: Vec<Tensor> =
        (0..graph.inputs.len()).map(|i| tensors.get(&format!("in.{i}")).unwrap_or(&empty).clone()).collect();
    let weights = |name: &str| checkpoint_tensor(&program.weights, name);
    let got = eval::eval(graph, &weights, &inputs, &eval::Symbols::new()).map_err(|e| e.to_string())?;
    let precision =
        Rule::working_precision(tensors.iter().filter(|(n, _)| !n.starts_with("out64")).map(|(_, t)| t.dtype));
    let rule = Rule { precision, level: case.level, edge: case.edge };
    let mut problems = vec![];
    for (i, output) in got.outputs.iter().enumerate() {
        let Some(reference) = tensors.get(&format!("out.{i}")) else { continue };
        let tensor = match output {
            Output::Tensor(t) => t.clone(),
            Output::Int(v) => Tensor::from_i64(DType::I64, &[], vec![*v]),
            Output::Constant(_) => continue,
        };
        match rule.compare(&tensor, reference, tensors.get(&format!("out64.{i}"))) {
            Ok(f) if f.pass() => {}
            // Equal values may stand in any order: only the values count.
            Ok(_) if case.ties && !reference.dtype.is_float() && got.outputs.len() > 1 => {}
            Ok(f) => {
                problems.push(format!("out.{i}: {} of {} elements, worst {:.3}× tolerance", f.failed, f.total, f.worst))
            }
            Err(e) => problems.push(format!("out.{i}: {e}")),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

fn read_tensors(path: &Path) -> Result<BTreeMap<String, Tensor>, String> {
    use safetensors::Dtype as D;
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let file = safetensors::SafeTensors::deserialize(&bytes).map_err(|e| e.to_string())?;
    let mut out = BTreeMap::new();
    for (name, view) in file.tensors() {
        let dtype = match view.dtype() {
            D::BOOL => DType::Bool,
            D::U8 => DType::U8,
            D::I8 => DType::I8,
            D::I16 => DType::I16,
            D::I32 => DType::I32,
            D::I64 => DType::I64,
            D::F16 => DType::F16,
            D::BF16 => DType::BF16,
            D::F32 => DType::F32,
            D::F64 => DType::F64,
            other => return Err(format!("{name} of type {other:?}")),
        };
        let tensor = Tensor::from_bytes(dtype, view.shape().to_vec(), view.data());
        out.insert(name.clone(), tensor.ok_or_else(|| format!("{name}: wrong length"))?);
    }
    Ok(out)
}
