//! The house rules that a machine can check, over the sources of the whole workspace.

use std::fs;
use std::path::{Path, PathBuf};

/// Source folders of our crates, relative to the workspace.
const CRATES: [&str; 8] =
    ["compiler", "codegen", "kernel-templates", "runtime-min", "runtime-min/c", "runtime-min/lab", "files", "fuzz"];

/// Crates whose output must not depend on hash order or the environment.
const DETERMINISTIC: [&str; 3] = ["compiler/src", "codegen/src", "kernel-templates/src"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn collect(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Rust files below folders, with their text, as (path relative to the workspace, text).
fn sources(folders: &[&str]) -> Vec<(String, String)> {
    let mut files = vec![];
    folders.iter().for_each(|f| collect(&root().join(f), &mut files));
    files.sort();
    let relative = |p: &Path| p.strip_prefix(root()).unwrap_or(p).to_string_lossy().into_owned();
    let out: Vec<_> = files.iter().map(|p| (relative(p), fs::read_to_string(p).expect("readable source"))).collect();
    assert!(!out.is_empty(), "no sources below {folders:?}");
    out
}

fn all_sources() -> Vec<(String, String)> {
    let folders: Vec<String> =
        CRATES.iter().flat_map(|c| ["src", "tests", "examples", "fuzz_targets"].map(|d| format!("{c}/{d}"))).collect();
    sources(&folders.iter().map(String::as_str).collect::<Vec<_>>())
}

fn report(rule: &str, faults: Vec<String>) {
    assert!(faults.is_empty(), "{rule}:\n  {}", faults.join("\n  "));
}

/// Lines that are not comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//"))
}

fn lines_with(files: &[(String, String)], word: &str) -> Vec<String> {
    let hits = |(path, text): &(String, String)| {
        code(text).filter(|(_, l)| l.contains(word)).map(|(i, _)| format!("{path}:{}", i + 1)).collect::<Vec<_>>()
    };
    files.iter().flat_map(hits).collect()
}

#[test]
fn every_file_says_first_what_it_owns() {
    let silent = all_sources().into_iter().filter(|(_, t)| !t.starts_with("//! ")).map(|(p, _)| p).collect();
    report("files without //! on their first line", silent);
}

#[test]
fn files_stay_readable_in_one_sitting() {
    let long = |(path, text): (String, String)| {
        let n = text.lines().count();
        (n > 600).then(|| format!("{path}: {n} lines"))
    };
    report("files over 600 lines", all_sources().into_iter().filter_map(long).collect());
}

#[test]
fn the_runtime_that_crates_carry_stays_small() {
    let n: usize = sources(&["runtime-min/src"]).iter().map(|(_, text)| text.lines().count()).sum();
    assert!(n < 2000, "runtime-min/src has {n} lines");
}

#[test]
fn no_file_is_a_drawer_for_anything() {
    let drawers = ["utils", "util", "helpers", "helper", "common", "misc", "manager"];
    let is_drawer = |p: &str| Path::new(p).file_stem().is_some_and(|s| drawers.iter().any(|d| s == *d));
    report("files named for nothing", all_sources().into_iter().map(|(p, _)| p).filter(|p| is_drawer(p)).collect());
}

#[test]
fn output_depends_on_neither_hash_order_nor_environment() {
    let files = sources(&DETERMINISTIC);
    for word in ["HashMap", "HashSet", "env::var", "SystemTime", "Instant::now"] {
        let allowed = |at: &String| {
            // The command line may read the clock for its progress lines, and measurements, never the library's stages.
            let command = [
                "compiler/src/commands",
                "compiler/src/cli.rs",
                "compiler/src/main.rs",
                "compiler/src/measure/",
                "compiler/src/verify",
            ];
            !word.starts_with("Hash") && command.iter().any(|c| at.starts_with(c))
        };
        report(word, lines_with(&files, word).into_iter().filter(|at| !allowed(at)).collect());
    }
}

#[test]
fn nothing_is_left_unwritten() {
    let files = sources(&CRATES.map(|c| format!("{c}/src")).each_ref().map(String::as_str));
    for word in ["todo!(", "unimplemented!(", "FIXME", "XXX"] {
        report(word, lines_with(&files, word));
    }
}

#[test]
fn each_foreign_crate_has_one_home() {
    let elsewhere = |word: &str, homes: &[&str]| {
        let files = sources(&CRATES.map(|c| format!("{c}/src")).each_ref().map(String::as_str));
        let hits = lines_with(&files, word);
        hits.into_iter().filter(|at| !homes.iter().any(|h| at.starts_with(h))).collect::<Vec<_>>()
    };
    report("rspirv outside of the assembler", elsewhere("rspirv::", &["kernel-templates/src/asm"]));
    report("ash outside of the runtime", elsewhere(" ash::", &["runtime-min/"]));
    report("unsafe outside of the runtime", elsewhere("unsafe {", &["runtime-min/"]));
}

#[test]
fn every_pass_is_listed_and_tested() {
    let dir = root().join("compiler/src/passes");
    let mut files = vec![];
    collect(&dir, &mut files);
    let mut passes: Vec<String> = files
        .iter()
        .filter(|p| fs::read_to_string(p).is_ok_and(|t| t.contains("const PASS: Pass")))
        .map(|p| p.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    passes.sort();
    assert_eq!(passes, jvc::passes::PASSES.iter().map(|p| p.name).collect::<Vec<_>>());
    let untested = passes.into_iter().filter(|p| !root().join("compiler/tests/files/pass").join(p).is_dir()).collect();
    report("passes without a folder of file tests", untested);
}

#[test]
fn every_aten_file_is_listed() {
    let text = fs::read_to_string(root().join("compiler/src/aten/mod.rs")).expect("the rules");
    let list = text.split("ATEN_OPS").nth(1).and_then(|t| t.split("];").next()).expect("the list of operators");
    let unlisted = sources(&["compiler/src/aten"]).into_iter().filter(|(_, t)| t.contains("const OPS: &[AtenOp]"));
    let unlisted = unlisted.filter(|(p, _)| {
        let stem = Path::new(p).file_stem().expect("a name").to_string_lossy().into_owned();
        !list.contains(&format!("{stem}::OPS"))
    });
    report("rules that no list names", unlisted.map(|(p, _)| p).collect());
}

#[test]
fn every_device_file_is_bundled() {
    let text = sources(&["compiler/src/device"]).into_iter().map(|(_, t)| t).collect::<String>();
    let entries = fs::read_dir(root().join("compiler/devices")).expect("the profiles");
    let missing = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|n| n.ends_with(".toml") && !text.contains(n.as_str()))
        .collect();
    report("device profiles that are not bundled", missing);
}

/// The word behind `before` in a file of the workspace.
fn word_after(file: &str, before: &str) -> String {
    let text = fs::read_to_string(root().join(file)).expect("readable");
    let rest = text.split_once(before).unwrap_or_else(|| panic!("{file} has no {before:?}")).1;
    rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '.').collect()
}

#[test]
fn the_page_on_versions_has_the_numbers_of_the_code() {
    let page = fs::read_to_string(root().join("docs/compat.md")).expect("the page");
    let minor = word_after("compiler/src/import/mod.rs", "const NEWEST_MINOR: i64 = ");
    let weights = word_after("files/src/weights.rs", "const VERSION: u32 = ");
    let cache = word_after("files/src/cache.rs", "const VERSION: u32 = ");
    let rust = word_after("Cargo.toml", "rust-version = \"");
    let ash = word_after("Cargo.toml", "ash = { version = \"");
    let mut lines = vec![
        format!("| newer, format 8 | above 8.{minor} |"),
        format!("| `weights.jvcw` | {weights} |"),
        format!("| pipeline cache | {cache} |"),
        format!("Rust {rust} or newer, ash {ash} and"),
    ];
    let profiles = fs::read_dir(root().join("compiler/devices")).expect("the profiles").flatten();
    let stems = profiles.filter_map(|p| Some(p.path().file_stem()?.to_string_lossy().into_owned()));
    lines.extend(stems.map(|stem| format!("| `{stem}` ")));
    let archives = fs::read_dir(root().join("compiler/tests/data/import")).expect("exports").flatten();
    for name in archives.map(|a| a.file_name().to_string_lossy().into_owned()) {
        let version = name.strip_prefix("small_").and_then(|rest| rest.strip_suffix(".pt2.gz"));
        let Some((major, rest)) = version.and_then(|v| v.split_once('.')) else { continue };
        let minor = rest.split('.').next().unwrap_or("");
        assert!(page.lines().any(|l| l.starts_with("| 2.") && l.contains(&format!("{major}.{minor}"))), "torch {name}");
    }
    report("missing in docs/compat.md", lines.into_iter().filter(|line| !page.contains(line)).collect());
}
