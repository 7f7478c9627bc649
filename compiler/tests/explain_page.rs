//! The page of `jvc explain`: what it holds, and that a browser shows it without an error, where one is installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn jvc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jvc")).args(args).current_dir(repository()).output().expect("the binary runs")
}

/// The page of a program under review, and its data.
fn page(program: &str, file: &Path, more: &[&str]) -> (String, serde_json::Value) {
    let out = file.display().to_string();
    let output = jvc(&[&["explain", program, "--random-weights", "1", "--device", "h200", "-o", &out], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(file).expect("written");
    let start = text.find("<script id=\"data\"").expect("the data");
    let data = &text[text[start..].find('>').expect("its tag") + start + 1..];
    let data = serde_json::from_str(&data[..data.find("</script>").expect("its end")]).expect("JSON");
    (text, data)
}

#[test]
fn the_page_holds_what_the_plan_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let (text, data) = page("models/goldens/resnet18.model.json.gz", &folder.path().join("page.html"), &[]);
    let plan = std::fs::read_to_string(repository().join("target-artifacts/resnet18-h200/plan.txt")).expect("a golden");
    let count = |start: &str| plan.lines().filter(|line| line.starts_with(start)).count();
    let entry = &data["entries"][0];
    let length = |list: &serde_json::Value| list.as_array().map_or(0, Vec::len);
    assert_eq!(length(&entry["steps"]), count("  dispatch "));
    assert_eq!(entry["barriers"], count("  barrier"));
    assert_eq!(length(&entry["buffers"]), count("  buffer "));
    assert_eq!(length(&data["kernels"]), count("kernel "));
    assert_eq!(length(&data["weights"]), count("  tensor "));
    assert!(entry["steps"][0]["reasons"].as_array().is_some_and(|lines| !lines.is_empty()), "{}", entry["steps"][0]);
    assert!(
        !text.contains("http://")
            || text.matches("http://").count() == text.matches("http://www.w3.org/2000/svg").count()
    );
    assert!(!text.contains("https://"), "the page works offline");
}

#[test]
fn measured_times_are_shown_and_those_of_another_program_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, data) = page("models/goldens/mlp.pt2", &folder.path().join("page.html"), &[]);
    let labels: Vec<&serde_json::Value> =
        data["entries"][0]["steps"].as_array().expect("steps").iter().map(|s| &s["label"]).collect();
    let steps: Vec<_> =
        labels.iter().map(|label| serde_json::json!({ "label": label, "kernel": "k", "ns": 1500.0 })).collect();
    let times = folder.path().join("times.json");
    std::fs::write(&times, serde_json::json!({ "gpu": "one", "steps": steps }).to_string()).expect("writable");
    let measured = ["--measured", times.to_str().expect("a path")];
    let (_, data) = page("models/goldens/mlp.pt2", &folder.path().join("timed.html"), &measured);
    assert_eq!(data["entries"][0]["steps"][0]["measured_us"], 1.5);
    let other = folder.path().join("other.html").display().to_string();
    let output = jvc(&[
        "explain",
        "models/goldens/resnet18.model.json.gz",
        "--random-weights",
        "1",
        "--device",
        "h200",
        "-o",
        &other,
        measured[0],
        measured[1],
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("the measured times are of another program"));
}

/// The browser's path, if there is one.
fn browser() -> Option<&'static str> {
    let works = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(works)
}

#[test]
fn a_browser_shows_the_page_without_an_error() {
    let Some(browser) = browser() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("page.html");
    let (_, data) = page("models/goldens/resnet18.model.json.gz", &file, &[]);
    let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
    let flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=5000",
        "--dump-dom",
    ];
    let address = format!("file://{}", file.display());
    let output = Command::new(browser).args(flags).args([&profile, &address]).output().expect("the browser runs");
    let (dom, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let console: Vec<&str> = log.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert_eq!(console, Vec::<&str>::new());
    let steps = data["entries"][0]["steps"].as_array().expect("steps").len();
    assert!(dom.contains(&format!("<dt>Dispatches</dt><dd>{steps}</dd>")), "{}", &dom[..dom.len().min(4000)]);
    assert_eq!(
        dom.matches("<rect class=\"buffer\"").count(),
        data["entries"][0]["buffers"].as_array().expect("buffers").len()
    );
}
