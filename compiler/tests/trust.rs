//! The commands of `docs/trust.md`, as they stand there: a page that says how to check things must not be out of date.

mod program;

use program::runner;
use std::path::Path;
use std::process::{Command, Output};

const PAGE: &str = include_str!("../../docs/trust.md");

/// Lines of code that start the binary.
fn commands() -> Vec<&'static str> {
    PAGE.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| line.starts_with("jvc ")).collect()
}

/// Runs one in a folder, by what cargo starts tests by. What stands behind `>` is the file that gets its output.
fn run(command: &str, folder: &Path) -> Output {
    let (command, file) = command.split_once(" > ").map_or((command, None), |(c, f)| (c, Some(f)));
    let binary = env!("CARGO_BIN_EXE_jvc");
    let mut process = Command::new(runner().unwrap_or_else(|| binary.into()));
    process.current_dir(folder);
    let driver = runner();
    if driver.is_some() {
        process.arg(binary);
    }
    process.args(command.split_whitespace().skip(1));
    // Measured processes start as this one does.
    if let (true, Some(driver)) = (command.starts_with("jvc coldstart "), &driver) {
        process.arg("--runner").arg(driver);
    }
    let output = process.output().expect("the binary runs");
    if let Some(file) = file {
        std::fs::write(folder.join(file), &output.stdout).expect("the folder is writable");
    }
    output
}

#[test]
#[cfg(unix)]
fn every_command_of_the_page_works() {
    if jvc_runtime::Gpu::open(&jvc_runtime::Select::Auto).is_err() {
        assert!(std::env::var_os("CI").is_none(), "CI has a device");
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository");
    for name in ["models", "compiler", "target-artifacts"] {
        std::os::unix::fs::symlink(repository.join(name), folder.path().join(name)).expect("links can be made");
    }
    let commands = commands();
    assert!(commands.len() >= 15, "the page has {} commands", commands.len());
    for command in commands {
        let output = run(command, folder.path());
        let told = String::from_utf8_lossy(&output.stderr);
        // What was measured here may show the cost model to be wrong, which is an answer.
        let answered = output.status.code() == Some(1) && command.contains(" --check ");
        assert!(output.status.success() || answered, "{command}\n{}\n{told}", output.status);
    }
    for made in ["verdict.md", "report.html", "mine.toml", "mlp-f16/islands.toml", "mlp-c/include"] {
        assert!(folder.path().join(made).exists(), "{made} was not written");
    }
}

#[test]
fn commands_that_are_no_jvc_name_files_and_targets_that_there_are() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let table = PAGE.lines().filter(|line| line.starts_with("| "));
    for quoted in table.flat_map(|line| line.split('`').skip(1).step_by(2)) {
        let words: Vec<&str> = quoted.split_whitespace().collect();
        let file = match words[..] {
            ["cargo", "test", "-p", "jvc", .., "--test", name] => format!("compiler/tests/{name}.rs"),
            ["cargo", "test", "-p", "jvc-runtime", "--test", name] => format!("runtime-min/tests/{name}/main.rs"),
            ["cargo", "test", "-p", "jvc-files"] => "files/tests/cache.rs".into(),
            ["python", script] => script.into(),
            [script, ..] => script.trim_start_matches("./").into(),
            [] => continue,
        };
        assert!(repository.join(&file).exists(), "{quoted}: there is no {file}");
    }
}
