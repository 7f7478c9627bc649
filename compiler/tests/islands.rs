//! `jvc compile --error-budget`: exactly what halves ruin stays in f32, measured against PyTorch's results; the choice is the same again without
//! samples and without a GPU; and samples, budgets and files that do not fit are refused. `data/islands/` holds a program with branches
//! that halves ruin and others that they do not (`data/islands/make.py`).

mod program;

use clap::Parser;
use jvc::cli::Cli;
use jvc::commands::{Console, run};
use jvc::exec::HostTensor;
use jvc::ir::DType;
use jvc::islands::Islands;
use jvc::tensor_file::{print_tensors, read_tensors};
use jvc_runtime::{Gpu, Select};
use program::files;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Calls that are hopeless in halves: the two large results that cancel, what is beyond 65504, and what takes it in.
const HOPELESS: [&str; 5] = ["act", "down", "near", "up", "wide"];

fn data(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/islands");
    folder.join(name).to_str().expect("UTF-8").to_string()
}

fn has_gpu() -> bool {
    let gpu = Gpu::open(&Select::Auto).is_ok();
    assert!(gpu || std::env::var_os("CI").is_none(), "CI has a device");
    gpu
}

/// What a command line did.
struct Done {
    code: u8,
    stdout: String,
    stderr: String,
}

/// Runs a command in this process, which has the driver that the tests were started with.
fn jvc(args: &[&str]) -> Done {
    let cli = match Cli::try_parse_from(["jvc"].iter().chain(args)) {
        Ok(cli) => cli,
        Err(e) => return Done { code: 2, stdout: String::new(), stderr: e.to_string() },
    };
    let (mut out, mut err) = (vec![], vec![]);
    let done = run(&cli.command, &mut Console { out: &mut out, err: &mut err, terminal: false });
    let (code, why) = done.map_or_else(|e| (e.code(), e.to_string()), |outcome| (outcome.code(), String::new()));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Done { code, stdout: text(out), stderr: text(err) + &why }
}

/// Searches at a budget; standard output.
fn searched(budget: &str, samples: &str, out: &Path) -> String {
    let out = out.to_str().expect("UTF-8");
    let program = data("hopeless.pt2");
    let args = ["--precision", "f16", "--error-budget", budget, "--samples", samples, "--rounds", "40", "--out", out];
    let output = jvc(&[&["compile", &program, "--device", "lavapipe"][..], &args].concat());
    assert_eq!(output.code, 0, "{}", output.stderr);
    output.stdout
}

fn islands(folder: &Path) -> Islands {
    Islands::read(&folder.join("islands.toml")).expect("the crate has one")
}

fn modules(islands: &Islands) -> BTreeSet<&str> {
    islands.programs[0].islands.iter().map(|i| i.module.as_str()).collect()
}

fn floats(t: &HostTensor) -> Vec<f64> {
    match t.dtype {
        DType::F32 => t.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four")).into()).collect(),
        DType::F64 => t.bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("eight"))).collect(),
        other => panic!("{other}"),
    }
}

/// The worst output's root mean square of the difference from PyTorch in f64, over that of PyTorch's.
fn off(args: &[&str], folder: &Path) -> f64 {
    let (samples, out) = (read_tensors(Path::new(&data("hopeless.safetensors"))).expect("samples"), folder.join("out"));
    let only: BTreeMap<String, HostTensor> = [("in.0".to_string(), samples["in.0"].clone())].into();
    std::fs::write(folder.join("in"), print_tensors(&only).expect("consistent")).expect("writable");
    let (inputs, to) = (folder.join("in"), out.to_str().expect("UTF-8").to_string());
    let inputs = inputs.to_str().expect("UTF-8");
    let program = data("hopeless.pt2");
    let ran = jvc(&[&["run", &program, "--inputs", inputs, "-o", &to, "--precision", "f16"][..], args].concat());
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let got = read_tensors(&out).expect("outputs");
    let error = |i: usize| {
        let (g, y) = (floats(&got[&format!("out.{i}")]), floats(&samples[&format!("out64.{i}")]));
        let squares = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>();
        (squares(&mut g.iter().zip(&y).map(|(g, y)| g - y)) / squares(&mut y.iter().copied())).sqrt()
    };
    (0..4).map(error).fold(0.0, |a, b| if b.is_finite() { f64::max(a, b) } else { f64::INFINITY })
}

#[test]
fn exactly_what_halves_ruin_stays_and_the_outputs_are_pytorchs() {
    if !has_gpu() {
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let stdout = searched("8e-3", &data("hopeless.safetensors"), dir.path());
    let found = islands(dir.path());
    assert_eq!(modules(&found), BTreeSet::from(HOPELESS), "{stdout}");
    let program = &found.programs[0];
    assert!(program.islands.iter().all(|i| i.cost > 8e-3 && i.measured_with == 1), "{stdout}");
    assert!(program.without.is_infinite() && program.with <= 8e-3, "{stdout}");
    // What stays, why, and both errors are said everywhere.
    let decisions = std::fs::read_to_string(dir.path().join("decisions.txt")).expect("decisions");
    let line = format!("with {} of {} calls in f32", program.islands.len(), program.calls);
    assert!(stdout.contains(&line) && decisions.contains(&line), "{line}:\n{stdout}\n{decisions}");
    assert!(stdout.contains("linear_1: aten.linear.default of wide stays f32: in halves it alone"), "{stdout}");
    assert!(decisions.contains("matmul of wide stays f32 (budget: linear_1: in halves it alone"), "{decisions}");
    // The same is true of other runs, by PyTorch's results.
    let file = dir.path().join("islands.toml");
    let with = off(&["--islands", file.to_str().expect("UTF-8")], dir.path());
    assert!(with <= 8e-3, "{with}");
    assert!(off(&[], dir.path()).is_infinite(), "without islands a branch overflows");
}

#[test]
fn without_references_the_program_in_f32_is_one() {
    if !has_gpu() {
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let samples = dir.path().join("inputs.safetensors");
    let mut tensors = read_tensors(Path::new(&data("hopeless.safetensors"))).expect("samples");
    tensors.retain(|name, _| name.contains("in."));
    std::fs::write(&samples, print_tensors(&tensors).expect("consistent")).expect("writable");
    let stdout = searched("8e-3", samples.to_str().expect("UTF-8"), dir.path());
    let found = islands(dir.path());
    assert_eq!(modules(&found), BTreeSet::from(HOPELESS), "{stdout}");
    assert!(stdout.contains("from the program in f32"), "{stdout}");
}

#[test]
fn a_wide_budget_keeps_less_and_a_narrow_one_more() {
    if !has_gpu() {
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let mut before: BTreeSet<String> = BTreeSet::new();
    for budget in ["0.2", "8e-3", "5e-4"] {
        searched(budget, &data("hopeless.safetensors"), dir.path());
        let found = islands(dir.path());
        assert!(found.programs[0].with <= found.budget, "{found:?}");
        let kept: BTreeSet<String> = found.programs[0].islands.iter().map(|i| i.node.clone()).collect();
        assert!(before.len() < kept.len(), "{budget}: {before:?}, then {kept:?}");
        before = kept;
    }
}

#[test]
fn the_file_gives_the_same_crate_without_samples() {
    if !has_gpu() {
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    searched("8e-3", &data("hopeless.safetensors"), &first);
    let file = first.join("islands.toml");
    let (file, to) = (file.to_str().expect("UTF-8"), second.to_str().expect("UTF-8"));
    let program = data("hopeless.pt2");
    let args = ["compile", &program, "--device", "lavapipe", "--precision", "f16", "--islands", file, "--out", to];
    let output = jvc(&args);
    assert_eq!(output.code, 0, "{}", output.stderr);
    assert_eq!(files(&first), files(&second));
}

/// Samples with one change.
fn samples(folder: &Path, change: impl FnOnce(&mut BTreeMap<String, HostTensor>)) -> String {
    let mut tensors = read_tensors(Path::new(&data("hopeless.safetensors"))).expect("samples");
    change(&mut tensors);
    let path = folder.join("samples.safetensors");
    std::fs::write(&path, print_tensors(&tensors).expect("consistent")).expect("writable");
    path.to_str().expect("UTF-8").to_string()
}

#[test]
fn samples_of_another_program_are_refused() {
    if !has_gpu() {
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let (program, to) = (data("hopeless.pt2"), dir.path().join("out"));
    let renamed = |t: &mut BTreeMap<String, HostTensor>, from: &str, to: &str| {
        let tensor = t.remove(from).expect("it is there");
        t.insert(to.to_string(), tensor);
    };
    type Change<'a> = Box<dyn FnOnce(&mut BTreeMap<String, HostTensor>) + 'a>;
    let changes: Vec<(Change<'_>, &str)> = vec![
        (Box::new(|t| renamed(t, "in.0", "x")), "`x` is none of in.N, out.N, out64.N"),
        (Box::new(|t| t.retain(|n, _| n != "in.0")), "`in.0` (x) is missing"),
        (Box::new(|t| t.retain(|n, _| n != "alt.0.in.0")), "set alt.0: `in.0` (x) is missing"),
        (
            Box::new(|t| t.get_mut("in.0").expect("an input").shape = vec![16, 12]),
            "is f32[16, 12], the program takes f32[12, 16]",
        ),
        (
            Box::new(|t| t.get_mut("in.0").expect("an input").dtype = DType::I32),
            "is i32[12, 16], the program takes f32[12, 16]",
        ),
        (Box::new(|t| renamed(t, "out.0", "in.1")), "there is an in.1, the program hopeless has 1 inputs"),
        (Box::new(|t| renamed(t, "out64.0", "out64.4")), "there is an out.4, the program hopeless has 4 outputs"),
        (Box::new(|t| renamed(t, "out64.0", "out64.1")), "out.1 is f64[12, 8], the program gives f32[12, 16]"),
        (Box::new(|t| t.retain(|n, _| !n.starts_with("alt.0.out"))), "some sets have out.N"),
    ];
    for (change, word) in changes {
        let file = samples(dir.path(), change);
        let to = to.to_str().expect("UTF-8");
        let args = ["--precision", "f16", "--error-budget", "1e-2", "--samples", &file, "--out", to];
        let output = jvc(&[&["compile", &program, "--device", "lavapipe"][..], &args].concat());
        let stderr = output.stderr;
        assert_eq!(output.code, 2, "{word}: {stderr}");
        assert!(stderr.contains(word) && stderr.contains("samples.safetensors"), "{word}: {stderr}");
        assert!(!to.contains("islands.toml") && !Path::new(to).exists(), "nothing is written");
    }
    // PyTorch's own f32 is off by more from its f64.
    let file = data("hopeless.safetensors");
    let args = [
        "compile",
        &program,
        "--device",
        "lavapipe",
        "--precision",
        "bf16",
        "--error-budget",
        "1e-9",
        "--samples",
        &file,
    ];
    let output = jvc(&args);
    assert_eq!(output.code, 1, "{}", output.stderr);
    assert!(output.stderr.contains("the error budget 1e-9 of hopeless cannot be held: with everything in f32"));
}

#[test]
fn lines_and_files_that_make_no_sense_are_refused_without_a_gpu() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let (program, samples) = (data("hopeless.pt2"), data("hopeless.safetensors"));
    let good = "precision = \"f16\"\nbudget = 1e-3\n[[program]]\nname = \"m\"\nreference = \"f32\"\nwithout = 1\nwith = 0.0\ncalls = 9\n\
                [[program.island]]\nnode = \"nobody\"\ntarget = \"map\"\nmodule = \"\"\ncost = inf\nmeasured_with = 1\n";
    let place = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("writable");
        path.to_str().expect("UTF-8").to_string()
    };
    let (stale, broken) =
        (place("stale.toml", &good.replace("without = 1\n", "without = 1.0\n")), place("broken.toml", "[[program]]"));
    let lines: Vec<(Vec<&str>, u8, &str)> = vec![
        (vec!["--precision", "f16", "--error-budget", "1e-3"], 2, "--samples"),
        (vec!["--precision", "f16", "--samples", &samples], 2, "--error-budget"),
        (vec!["--error-budget", "1e-3", "--samples", &samples], 2, "is for --precision f16 or bf16"),
        (vec!["--precision", "f16", "--error-budget", "0", "--samples", &samples], 2, "no positive number"),
        (vec!["--precision", "f16", "--error-budget", "inf", "--samples", &samples], 2, "no positive number"),
        (
            vec!["--precision", "f16", "--error-budget", "1", "--samples", &samples, "--samples", &samples],
            2,
            "1 programs, 2 files",
        ),
        (vec!["--precision", "f16", "--error-budget", "1", "--samples", "gone"], 2, "gone"),
        (vec!["--islands", &stale], 2, "is for --precision f16 or bf16"),
        (vec!["--precision", "bf16", "--islands", &stale], 2, "its islands are those of f16, the precision is bf16"),
        (vec!["--precision", "f16", "--islands", &broken], 2, "broken.toml"),
        (vec!["--precision", "f16", "--islands", "gone.toml"], 2, "gone.toml"),
        (vec!["--precision", "f16", "--islands", &stale], 1, "there is no call nobody"),
    ];
    for (args, code, word) in lines {
        let output = jvc(&[&["compile", &program, "--device", "lavapipe", "--emit", "kernels"][..], &args].concat());
        let stderr = output.stderr;
        assert_eq!(output.code, code, "{args:?}: {stderr}");
        assert!(stderr.contains(word), "{args:?}: {stderr}");
    }
}
