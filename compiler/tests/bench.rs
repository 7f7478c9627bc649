//! `jvc bench`: one program, two in turns, crates as they stand; what is told of runs and steps, and what is refused.

mod program;

use jvc_runtime::{Gpu, Select};
use program::jvc;
use serde_json::Value;
use std::path::Path;
use std::process::Output;

fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn golden(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/goldens").join(name).to_str().expect("UTF-8").to_owned()
}

/// False where there is no Vulkan (CI has a device).
fn has_device() -> bool {
    let found = Gpu::open(&Select::Auto).is_ok();
    assert!(found || std::env::var_os("CI").is_none(), "CI has a device");
    found
}

fn bench(args: &[&str]) -> Output {
    jvc(&[&["bench"], args, &["--runs", "4", "--warmup", "1"]].concat())
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&bench(&[args, &["--format", "json"]].concat()))).expect("JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn two_crates_are_measured_in_turns_and_every_step_has_a_time_and_a_bound() {
    if !has_device() {
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let crates = ["conv_block.pt2", "mlp.pt2"].map(|program| {
        let folder = dir.path().join(program).to_str().expect("UTF-8").to_owned();
        stdout(&jvc(&["compile", &golden(program), "--device", "auto", "--out", &folder]));
        folder
    });
    let report = json(&[&crates[0], &crates[1]]);
    let sides = report["sides"].as_array().expect("two sides");
    assert_eq!(sides.len(), 2);
    for (side, folder) in sides.iter().zip(&crates) {
        let plan = std::fs::read_to_string(Path::new(folder).join("plan.txt")).expect("a crate has its plan");
        let n_steps = side["steps"].as_array().expect("steps").len();
        assert_eq!(Some(n_steps as u64), side["dispatches"].as_u64(), "{side}");
        assert!(plan.contains(side["steps"][0]["kernel"].as_str().expect("a name")));
        let runs = side["device_us"].as_array().expect("runs");
        assert_eq!(Some(runs.len() as u64), side["device"]["n"].as_u64());
        assert!(!runs.is_empty() && runs.iter().all(|us| number(us) > 0.0), "{side}");
        assert!(number(&side["host"]["median"]) >= number(&side["device"]["p10"]), "{side}");
        let bounds: f64 = side["steps"].as_array().expect("steps").iter().map(|s| number(&s["bound_us"])).sum();
        assert!((bounds - number(&side["bound_us"])).abs() < 1e-9 && bounds > 0.0, "{side}");
        assert!(side["steps"].as_array().expect("steps").iter().all(|s| number(&s["us"]["median"]) > 0.0), "{side}");
    }
    let ratio = number(&sides[1]["device"]["median"]) / number(&sides[0]["device"]["median"]);
    assert!((number(&report["device_ratio"]) - ratio).abs() < 1e-12 && number(&report["fixed_load_us"]) > 0.0);
}

#[test]
fn a_program_for_two_profiles_has_its_steps_paired() {
    if !has_device() {
        return;
    }
    let program = golden("mlp.pt2");
    let inputs = golden("mlp.safetensors");
    let args = [program.as_str(), "--inputs", &inputs, "--device", "generic", "--other-device", "auto"];
    let text = stdout(&bench(&args));
    assert!(text.contains("A: mlp for generic") && text.contains("B takes"), "{text}");
    assert_eq!(text.matches("discarded").count(), 5, "once in the title, and for two clocks of two sides: {text}");
    let (_, steps) = text.split_once("bound µs  of bound").expect("steps");
    let rows: Vec<&str> = steps.lines().skip(1).collect();
    let side = json(&args[..5]);
    assert_eq!(Some(rows.len() as u64), side["dispatches"].as_u64(), "as many pairs as steps: {text}");
    for row in rows {
        let numbers: Vec<f64> = row.split_whitespace().map_while(|word| word.parse().ok()).collect();
        assert!(numbers.len() >= 4, "A, B, ratio and bound: {row}");
        // Three places are printed.
        assert!((numbers[1] / numbers[0] - numbers[2]).abs() <= 0.02 * numbers[2] + 0.0005, "{row}");
    }
}

#[test]
fn runs_without_steps_and_outputs_of_the_first_run() {
    if !has_device() {
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let out = dir.path().join("out.safetensors");
    let inputs = golden("mlp.safetensors");
    let args = ["--inputs", &inputs, "--steps", "0", "-o", out.to_str().expect("UTF-8")];
    let text = stdout(&bench(&[&[golden("mlp.pt2").as_str()], &args[..]].concat()));
    assert!(text.contains("device") && !text.contains("barrier after each"), "{text}");
    let [got, want] = [&out, Path::new(&inputs)].map(|path| jvc::tensor_file::read_tensors(path).expect("tensors"));
    let floats = |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect() };
    for (a, b) in floats(&got["out.0"].bytes).iter().zip(floats(&want["out.0"].bytes)) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} and PyTorch's {b}");
    }
}

#[test]
fn what_cannot_be_measured_is_told() {
    if !has_device() {
        return;
    }
    let dir = tempfile::tempdir().expect("a scratch folder");
    let empty = dir.path().to_str().expect("UTF-8");
    let output = bench(&[empty]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("plan.txt"), "{}", stderr(&output));
    let program = golden("mlp.pt2");
    let output = bench(&[&program, &program, "--serve"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--serve is of one program"), "{}", stderr(&output));
    let crate_folder = dir.path().join("crate").to_str().expect("UTF-8").to_owned();
    stdout(&jvc(&["compile", &program, "--device", "auto", "--out", &crate_folder]));
    let none = dir.path().join("none.safetensors");
    std::fs::write(&none, jvc::tensor_file::print_tensors(&Default::default()).expect("a file")).expect("writable");
    let output = bench(&[&crate_folder, "--inputs", none.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no input is left for port"), "{}", stderr(&output));
}
