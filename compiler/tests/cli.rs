//! The `jvc` binary: output, exit codes, and crates that do not depend on where they are written. No GPU is needed.

mod program;

#[path = "import/archives.rs"]
#[expect(dead_code, reason = "the import tests use the rest")]
mod archives;

use program::files;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn jvc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jvc")).args(args).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn place(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, archives::fixture(name)).expect("writable");
    path
}

#[test]
fn devices_are_listed_and_printed_as_profiles() {
    let list = jvc(&["devices"]);
    assert_eq!(list.status.code(), Some(0));
    assert!(stdout(&list).lines().any(|l| l.starts_with("rtx4000-ada") && l.contains("rtx4000")), "{}", stdout(&list));
    let one = stdout(&jvc(&["devices", "swiftshader"]));
    let profile: jvc::device::DeviceProfile = toml::from_str(&one).expect("a profile");
    assert_eq!(profile, jvc::device::find("swiftshader").expect("bundled"));
    assert!(one.contains("# maxComputeWorkGroupInvocations"), "numbers keep their sources");
    let json: serde_json::Value = serde_json::from_str(&stdout(&jvc(&["devices", "--format", "json"]))).expect("JSON");
    assert_eq!(json.as_array().map(Vec::len), Some(jvc::device::all().len()));
}

#[test]
fn misuse_is_exit_code_2_and_says_what_is_wrong() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let program = place(dir.path(), "small_2.11.0.pt2");
    let program = program.to_str().expect("UTF-8");
    for (args, word) in [
        (vec!["compile", program, "--device", "rtx9999"], "rtx9999"),
        (vec!["compile", "gone.pt2", "--device", "h200"], "gone.pt2"),
        (vec!["compile", program], "--device"),
        (vec!["compile", program, "--device", "h200", "--set", "s77"], "SYMBOL=N"),
        (vec!["devices", "rtx9999"], "rtx9999"),
        (vec!["frobnicate"], "frobnicate"),
    ] {
        let output = jvc(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(word), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{args:?}");
    }
}

/// A small program that calls an operator of nobody's.
fn with_unknown_operator(folder: &Path) -> PathBuf {
    let entries = archives::Entries::of("small_2.11.0.pt2");
    let (from, to) = ("torch.ops.aten.linear.default", "torch.ops.mine.frobnicate.default");
    let path = folder.join("unknown.pt2");
    std::fs::write(&path, entries.edit("models/model.json", from, to).zip()).expect("writable");
    path
}

#[test]
fn what_is_wrong_with_a_program_is_exit_code_1() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let broken = dir.path().join("broken.pt2");
    std::fs::write(&broken, "PK but no archive").expect("writable");
    let output = jvc(&["compile", broken.to_str().expect("UTF-8"), "--device", "h200"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let unknown = with_unknown_operator(dir.path());
    let unknown = unknown.to_str().expect("UTF-8");
    let output = jvc(&["compile", unknown, "--device", "h200"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("E0101") && text.contains("mine.frobnicate"), "{text}");
    let output = jvc(&["compile", unknown, "--device", "h200", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(json["diagnostics"][0]["code"], "E0101");
}

#[test]
fn operators_of_a_program_are_counted_and_missing_ones_are_a_finding() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let small = place(dir.path(), "small_2.11.0.pt2");
    let output = jvc(&["ops", small.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert!(stdout(&output).contains("2 × aten.linear.default"), "{}", stdout(&output));
    let unknown = with_unknown_operator(dir.path());
    let output = jvc(&["ops", unknown.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("missing"), "{}", stdout(&output));
    let all = stdout(&jvc(&["ops"]));
    let conv = all.lines().find(|l| l.starts_with("aten.conv2d.default ")).expect("listed");
    assert!(conv.contains("floats") && conv.contains("matmul"), "{conv}");
    assert!(all.contains("aten.linalg_svd*") && all.contains("singular"), "what is left out, and why");
}

#[test]
fn operators_are_listed_by_a_part_of_their_name() {
    let text = stdout(&jvc(&["ops", "softmax"]));
    assert!(text.lines().any(|l| l.starts_with("aten.softmax.int") && l.contains("row")), "{text}");
    assert!(!text.contains("aten.conv2d"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&jvc(&["ops", "aten.polygamma", "--format", "json"]))).expect("JSON");
    let row = &json["operators"][0];
    assert_eq!((&row["op"], &row["kernels"][0]), (&"aten.polygamma.default".into(), &"map".into()));
    assert!(row["types"].as_array().is_some_and(|t| t.contains(&"bf16".into())), "{row}");
    assert_eq!((&row["limits"][0], &json["limits"][0]["code"]), (&"order".into(), &"order".into()));
    assert_eq!(jvc(&["ops", "frobnicate"]).status.code(), Some(1), "no such operator");
}

#[test]
fn a_crate_is_the_same_wherever_it_is_written() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let mut crates = vec![];
    for folder in ["one", "deeper/two"] {
        let home = dir.path().join(folder);
        std::fs::create_dir_all(&home).expect("writable");
        place(&home, "small_2.11.0.pt2");
        let output = Command::new(env!("CARGO_BIN_EXE_jvc"))
            .args(["compile", "small_2.11.0.pt2", "--device", "lavapipe", "--name", "small", "--out", "crate"])
            .current_dir(&home)
            .output()
            .expect("the binary runs");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        crates.push(files(&home.join("crate")));
    }
    assert_eq!(crates[0].keys().collect::<Vec<_>>(), crates[1].keys().collect::<Vec<_>>());
    for (name, bytes) in &crates[0] {
        assert!(*bytes == crates[1][name], "{name:?} differs");
    }
    let has = |suffix: &str| crates[0].keys().any(|n| n.to_string_lossy().ends_with(suffix));
    assert!(
        has("Cargo.toml") && has(".spv") && has(".spvasm") && has("plan.txt") && has(".jvcw"),
        "{:?}",
        crates[0].keys()
    );
    assert!(crates[0].keys().all(|n| !n.ends_with("build.rs")), "no build script");
}

#[test]
fn stages_print_their_text_form() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let small = place(dir.path(), "small_2.11.0.pt2");
    let small = small.to_str().expect("UTF-8");
    for (stage, word) in
        [("program", "aten.linear.default"), ("graph", "matmul"), ("kernels", "map"), ("plan", "dispatch")]
    {
        let output = jvc(&["compile", small, "--device", "lavapipe", "--emit", stage]);
        assert_eq!(output.status.code(), Some(0), "{stage}: {}", stderr(&output));
        assert!(stdout(&output).contains(word), "{stage}: {}", stdout(&output));
    }
    let explained = jvc(&["explain", small, "--device", "h200"]);
    assert!(
        stdout(&explained).contains("## memory") && stdout(&explained).contains("## kernels"),
        "{}",
        stderr(&explained)
    );
}

#[test]
fn a_quantised_compilation_reports_what_it_costs() {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/goldens/resnet18.model.json.gz");
    let (program, out) = (program.to_str().expect("UTF-8"), dir.path().join("crate"));
    let folder = out.to_str().expect("UTF-8");
    let args = ["compile", program, "--random-weights", "1", "--device", "h200", "--no-weights", "--out", folder];
    let plain = jvc(&[&args[..], &["--format", "json"]].concat());
    let plain: serde_json::Value = serde_json::from_str(&stdout(&plain)).expect("JSON");
    assert_eq!(plain["quantized"], serde_json::json!([]));
    let output = jvc(&[&args[..], &["--format", "json", "--quantize", "int4"]].concat());
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    let report = &json["quantized"][0];
    let n = report["quantized"].as_u64().expect("a count");
    assert!(n > 0, "{report}");
    let saved = report["bytes"].as_u64().expect("bytes") - report["quantized_bytes"].as_u64().expect("bytes");
    let bytes = |report: &serde_json::Value| report["weight_bytes"].as_u64().expect("bytes");
    // Each of the three tensors of a weight starts at a multiple of 256 bytes.
    let smaller = bytes(&plain) - bytes(&json);
    assert!(smaller <= saved && smaller + 3 * 256 * n > saved, "{smaller} bytes smaller, the report says {saved}");
    let error = report["relative_rms_error"].as_f64().expect("a number");
    assert!(error > 0.0 && error < 0.2, "{error}");
    let output = jvc(&[&args[..], &["--quantize", "int4"]].concat());
    let decisions = std::fs::read_to_string(out.join("decisions.txt")).expect("a file of the crate");
    for line in decisions.lines().filter(|l| l.contains("int4")) {
        assert!(stdout(&output).contains(line), "{line}\n{}", stdout(&output));
    }
    assert_eq!(decisions.lines().filter(|l| l.contains(": int4, ")).count() as u64, n);
}
