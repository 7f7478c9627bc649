//! `jvc coldstart`: real processes on the device at hand, what they report, and the budget as an exit code.

mod program;

#[path = "import/archives.rs"]
#[expect(dead_code, reason = "the import tests use the rest")]
mod archives;

use jvc_runtime::{Gpu, Select};
use program::{jvc, runner};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

/// With the processes started as this test is.
fn coldstart(program: &Path, args: &[&str]) -> Output {
    let (program, runner) = (program.to_string_lossy(), runner().map(|path| path.to_string_lossy().into_owned()));
    let runner = runner.iter().flat_map(|path| ["--runner", path]);
    jvc(&["coldstart", &program].into_iter().chain(args.iter().copied()).chain(runner).collect::<Vec<_>>())
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A scratch folder with a program, or none where there is no Vulkan (CI has a device).
fn place() -> Option<(tempfile::TempDir, PathBuf)> {
    if Gpu::open(&Select::Auto).is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has a device");
        return None;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = folder.path().join("small.pt2");
    std::fs::write(&program, archives::fixture("small_2.11.0.pt2")).expect("writable");
    Some((folder, program))
}

#[test]
fn phases_add_up_for_every_cache_and_the_budget_is_an_exit_code() {
    let Some((_folder, program)) = place() else { return };
    let output = coldstart(&program, &["--runs", "2", "--format", "json", "--budget-ms", "1e6"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&json["runs"], &json["within_budget"]), (&Value::from(2), &Value::from(true)));
    assert!(json["weight_bytes"].as_u64() > Some(0) && json["kernels"].as_u64() > Some(0), "{json}");
    for cache in ["none", "driver", "own"] {
        let least = |phase: &str| json["caches"][cache][format!("{phase}_ms")]["min"].as_f64().expect("a number");
        let phases: f64 = ["start", "device", "load", "session", "run"].map(least).iter().sum();
        assert!(phases > 0.0 && phases <= least("total"), "{cache}: {phases} of {}", least("total"));
        assert!(least("load") >= least("weights").max(least("pipelines")), "{cache}: {json}");
    }
    // Pipeline binaries are a column of their own where the driver hands them out; where not, it is said.
    let left_out = stderr(&output).contains("hands out no binaries");
    assert_eq!(json["caches"]["binaries"].is_null(), left_out, "{json}");
    assert_eq!(coldstart(&program, &["--cache", "binaries"]).status.code(), Some(if left_out { 2 } else { 0 }));
    let output = coldstart(&program, &["--runs", "1", "--cache", "own", "--budget-ms", "0.001"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("own cache") && stderr(&output).contains("0.001"), "{}", stderr(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("pipelines") && !table.contains("first ever"), "{table}");
}

#[test]
fn a_crate_is_measured_as_it_stands_and_a_damaged_one_is_an_error() {
    let Some((folder, program)) = place() else { return };
    let (made, pipelines) = (folder.path().join("crate"), folder.path().join("pipelines"));
    let [program, at, cache] = [&program, &made, &pipelines].map(|path| path.to_str().expect("UTF-8"));
    let output = jvc(&["compile", program, "--device", "auto", "--out", at]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = coldstart(&made, &["--runs", "1", "--cache", "own"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = jvc(&["coldstart-process", at, "--pipelines", cache]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(std::fs::read_dir(&pipelines).expect("made").count(), 1, "the crate's own cache is written");
    let weights = made.join("weights.jvcw");
    let mut bytes = std::fs::read(&weights).expect("compile wrote it");
    *bytes.last_mut().expect("a payload") ^= 1;
    std::fs::write(&weights, bytes).expect("writable");
    let output = coldstart(&made, &["--runs", "1", "--cache", "own"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("payload's hash") && stderr(&output).contains("without a result"));
}

#[test]
fn folders_that_are_no_crates_are_misuse() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let output = coldstart(folder.path(), &[]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("plan.txt"), "{}", stderr(&output));
}
