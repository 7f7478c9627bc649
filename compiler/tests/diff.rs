//! `jvc diff` on the texts under review, and on edits of them: what a change of a crate is called, and what is none.

use jvc::diff::{self, Comparison, Crate, Limit, Moved};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn golden(name: &str) -> String {
    let path = repository().join("target-artifacts").join(name).join("plan.txt");
    std::fs::read_to_string(path).expect("a golden")
}

/// A folder with a plan and decisions, read as a crate.
fn read(plan: &str, decisions: &str) -> Crate {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("plan.txt"), plan).expect("writable");
    std::fs::write(folder.path().join("decisions.txt"), decisions).expect("writable");
    diff::read(&folder.path().display().to_string()).expect("a crate").remove("").expect("its own")
}

fn compare(old: &str, new: &str) -> Comparison {
    Comparison::of(&read(old, ""), &read(new, ""))
}

fn total(found: &Comparison, what: &str) -> (f64, f64) {
    let total = found.totals.iter().find(|total| total.what == what).expect("a total");
    (total.old, total.new)
}

/// The plan without the dispatch of a label.
fn without_step(plan: &str, label: &str) -> String {
    let at = plan.find(&format!("    label {label:?}")).expect("the label");
    let start = plan[..at].rfind("  dispatch ").expect("its dispatch");
    let rest = &plan[at..];
    let ends = ["\n  barrier", "\n  dispatch"].iter().filter_map(|word| rest.find(word));
    let end = ends.min().map_or(plan.len(), |end| at + end + 1);
    format!("{}{}", &plan[..start], &plan[end..])
}

#[test]
fn a_crate_does_not_differ_from_itself() {
    let plan = golden("resnet18-h200");
    let found = compare(&plan, &plan);
    assert!(found.is_empty(), "{found:?}");
    assert!(found.to_markdown().contains("No difference."));
}

#[test]
fn numbers_in_the_names_of_values_are_no_difference() {
    let plan = golden("resnet18-h200");
    let renamed = plan.replace("relu__3", "relu__103").replace("batch_norm_8", "batch_norm_9");
    assert_ne!(plan, renamed);
    assert_eq!(compare(&plan, &renamed).steps, vec![]);
}

#[test]
fn a_step_that_is_gone_is_the_only_one_that_differs() {
    let plan = golden("resnet18-h200");
    let found = compare(&plan, &without_step(&plan, "relu__5"));
    assert_eq!(found.steps.len(), 1, "{:?}", found.steps);
    assert_eq!(found.steps[0].label, "relu__5");
    assert!(matches!(found.steps[0].moved, Moved::Removed(_)));
    let (old, new) = total(&found, "dispatches");
    assert_eq!(new, old - 1.0);
    let (old, new) = total(&found, "slower");
    assert!(new < old, "{new} µs of {old}");
}

#[test]
fn another_kernel_comes_with_the_reasons_of_both_sides() {
    let plan = golden("resnet18-h200");
    let name = plan.lines().find_map(|l| l.strip_prefix("kernel \"matmul_1x1024x64")).expect("the first convolution");
    let name = format!("matmul_1x1024x64{}", name.split('"').next().expect("its name"));
    let retiled = plan.replace(&name, "matmul_retiled");
    let old = read(&plan, "relu_: in tiles 64x64x8\nrelu_: stored because it is the result of a kernel\n");
    let new = read(&retiled, "relu_: in tiles 32x32x8\nrelu_: stored because it is the result of a kernel\n");
    let found = Comparison::of(&old, &new);
    let (was, is) = (vec!["in tiles 64x64x8".to_owned()], vec!["in tiles 32x32x8".to_owned()]);
    assert_eq!(found.steps.len(), 1);
    let want = Moved::Changed { old: name.clone(), new: "matmul_retiled".to_owned(), was, is };
    assert_eq!(found.steps[0].moved, want);
    assert_eq!((found.kernels.added, found.kernels.removed), (vec!["matmul_retiled".to_owned()], vec![name]));
}

#[test]
fn other_code_of_a_kernel_and_another_interface_are_told_apart() {
    let plan = golden("resnet18-h200");
    let line = plan.lines().find(|l| l.starts_with("kernel ")).expect("a kernel");
    let hash = line.rsplit(' ').next().expect("its hash");
    let found = compare(&plan, &plan.replace(hash, "0123456789abcdef"));
    assert_eq!(found.kernels.rebuilt.len(), 1);
    assert_eq!(found.interface, Vec::<String>::new());
    let found = compare(&plan, &plan.replace("f32[1, 10] io", "f32[1, 11] io"));
    assert_eq!(found.interface, ["changed: resnet18 output 0: output f32[1, 10] → output f32[1, 11]"]);
}

#[test]
fn a_limit_is_exceeded_by_more_growth_than_it_allows() {
    let plan = golden("resnet18-h200");
    let found = compare(&plan.replace("arena [327680]", "arena [300000]"), &plan);
    let exceeded = |limit: &str| found.exceeded(&[limit.parse::<Limit>().expect("a limit")]);
    assert_eq!(exceeded("arena=10%"), Vec::<String>::new());
    assert_eq!(exceeded("arena=5%"), ["resnet18 for h200: arena grew by 9.2 %, more than 5 %"]);
    assert_eq!(exceeded("slower=0"), Vec::<String>::new());
    assert!(
        "faster=1%".parse::<Limit>().is_err()
            && "arena=-1%".parse::<Limit>().is_err()
            && "arena".parse::<Limit>().is_err()
    );
}

fn jvc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jvc")).args(args).current_dir(repository()).output().expect("the binary runs")
}

#[test]
fn folders_of_crates_are_compared_crate_by_crate() {
    let output = jvc(&["diff", "target-artifacts", "target-artifacts"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), text.trim_end()), (Some(0), "0 of 8 crates differ."));
    let output = jvc(&["diff", "target-artifacts/mlp-h200", "target-artifacts/mlp-lavapipe", "--fail-on", "interface"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("changed: device h200 → lavapipe"));
    let output = jvc(&["diff", "target-artifacts/mlp-h200", "docs"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("docs holds no generated crate"));
}

#[test]
fn a_revision_is_read_from_git() {
    let folder = tempfile::tempdir().expect("a folder");
    let git = |args: &[&str]| {
        let config = ["-c", "user.name=a", "-c", "user.email=a@b"];
        let output = Command::new("git").args(config).args(args).current_dir(folder.path()).output().expect("git runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let plan = golden("mlp-h200");
    std::fs::create_dir(folder.path().join("crate")).expect("writable");
    std::fs::write(folder.path().join("crate/plan.txt"), &plan).expect("writable");
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-qm", "plan"]);
    std::fs::write(folder.path().join("crate/plan.txt"), without_step(&plan, &last_label(&plan))).expect("writable");
    let output = Command::new(env!("CARGO_BIN_EXE_jvc"))
        .args(["diff", "HEAD:crate", "crate", "--format", "json"])
        .current_dir(folder.path())
        .output()
        .expect("the binary runs");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json[0]["steps"].as_array().map(Vec::len), Some(1), "{json}");
    assert!(json[0]["steps"][0]["moved"]["removed"].is_string(), "{json}");
}

fn last_label(plan: &str) -> String {
    let label = plan.lines().filter_map(|l| l.strip_prefix("    label ")).next_back().expect("a dispatch");
    label.trim_matches('"').to_owned()
}
