//! File tests: everything under `tests/files/`, and the drawings at the top of every pass.
//!
//! - `parse/*.graph`: printing the parsed graph gives the file back.
//! - `verify/*.graph`: the verifier's errors stand as `; error:` comments under the lines that they are about.
//! - `pass/NAME/*.graph`: the graph, a line of four dashes, the graph after pass NAME alone; both must also evaluate to the same.
//!
//! Lines that start with `;` at the top of a file explain it. `JVC_BLESS=1` rewrites expectations.

use jvc::ir::eval::Tensor;
use jvc::ir::parse::parse;
use jvc::ir::print::print;
use jvc::ir::verify::verify;
use jvc::ir::{Graph, Op};
use jvc::options::{Half, Mixed, Quantize, QuantizedForm};
use jvc::passes::semantics::random_tensor;
use jvc::passes::{Cx, PASSES, Pass, run_one};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SEPARATOR: &str = "----\n";

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Files of a folder, sorted.
fn files(folder: &str) -> Vec<PathBuf> {
    let dir = crate_dir().join("tests/files").join(folder);
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut out: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    out.sort();
    assert!(!out.is_empty(), "{folder} holds no test");
    out
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The comment at the top, and the rest.
fn split_comment(text: &str) -> (&str, &str) {
    let len = text.lines().take_while(|l| l.starts_with(';')).map(|l| l.len() + 1).sum();
    text.split_at(len)
}

/// Compares, or rewrites the file when blessing.
fn expect(path: &Path, comment: &str, expected: &str, got: &str, faults: &mut Vec<String>) {
    if expected == got {
        return;
    }
    if std::env::var("JVC_BLESS").is_ok_and(|v| v == "1") {
        fs::write(path, format!("{comment}{got}")).expect("the test's own folder is writable");
        return;
    }
    faults.push(format!(
        "{}:\n{}(JVC_BLESS=1 cargo test -p jvc --test files rewrites it)",
        path.display(),
        diff(expected, got)
    ));
}

/// Lines only in one of the two, in order.
fn diff(expected: &str, got: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), got.lines().collect());
    let head = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let tail = a[head..].iter().rev().zip(b[head..].iter().rev()).take_while(|(x, y)| x == y).count();
    let mut out = String::new();
    a[head..a.len() - tail].iter().for_each(|l| out.push_str(&format!("-{l}\n")));
    b[head..b.len() - tail].iter().for_each(|l| out.push_str(&format!("+{l}\n")));
    out
}

fn report(faults: &[String]) {
    assert!(faults.is_empty(), "{} files differ:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn parsed_graphs_print_as_written() {
    let mut faults = vec![];
    for path in files("parse") {
        let text = read(&path);
        let (comment, body) = split_comment(&text);
        let graph = parse(body).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        expect(&path, comment, body, &print(&graph), &mut faults);
    }
    report(&faults);
}

#[test]
fn verifier_reports_under_the_line() {
    let mut faults = vec![];
    for path in files("verify") {
        let text = read(&path);
        let (comment, body) = split_comment(&text);
        let graph = parse(body).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let got = verify(&graph).map_or_else(|v| v.to_string(), |()| print(&graph));
        expect(&path, comment, body, &got, &mut faults);
    }
    report(&faults);
}

/// Weights by name: as large as their type says, with values that depend on the name alone.
fn weights_of(graph: &Graph) -> BTreeMap<String, Tensor> {
    let mut out = BTreeMap::new();
    for node in &graph.nodes {
        let (Op::Weight(w) | Op::State(w)) = &node.op else { continue };
        let ty = graph.ty(node.outputs[0]);
        let shape: Vec<usize> =
            ty.const_shape().expect("weights have literal sizes").iter().map(|&d| d as usize).collect();
        let seed = w.name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
        out.insert(w.name.clone(), random_tensor(ty.dtype, &shape, seed));
    }
    out
}

/// Runs one pass on `before`: the text after it, having checked that both evaluate to the same. Weights of 4 elements and more are
/// quantised; those of the tests are such that nothing is lost.
fn run_pass(pass: &Pass, before: &str, form: QuantizedForm) -> String {
    let mut graph = parse(before).unwrap_or_else(|e| panic!("{}: {e}", pass.name));
    if let Err(e) = verify(&graph) {
        panic!("{}: the input is broken:\n{e}", pass.name);
    }
    let weights = weights_of(&graph);
    let lookup = |name: &str| weights.get(name).cloned();
    let mixed = Mixed::new(Half::F16);
    let cx = Cx::new(&lookup, false, u32::MAX).quantizing(Some(Quantize { form, min_elems: 4 })).mixing(Some(mixed));
    let device = jvc::device::find("h200").expect("a bundled profile");
    let cx = cx.compiling_for(&device);
    run_one(pass, &mut graph, &cx, true).unwrap_or_else(|e| panic!("{e}"));
    print(&graph)
}

#[test]
fn passes_do_what_their_drawings_show() {
    let mut faults = vec![];
    for pass in PASSES {
        let source = read(&crate_dir().join(format!("src/passes/{}.rs", pass.name)));
        let (before, after) = drawing(&source).unwrap_or_else(|| panic!("{} has no drawing", pass.name));
        let got = run_pass(pass, &before, QuantizedForm::Int8);
        if got != after {
            faults.push(format!("{}:\n{}", pass.name, diff(&after, &got)));
        }
    }
    report(&faults);
}

/// The two graphs in the first `text` block of a file's head comment.
fn drawing(source: &str) -> Option<(String, String)> {
    let head = source.lines().take_while(|l| l.starts_with("//!")).map(|l| l.trim_start_matches("//!"));
    let text: String = head.map(|l| format!("{}\n", l.strip_prefix(' ').unwrap_or(l))).collect();
    let block = text.split("```text\n").nth(1)?.split("```").next()?;
    let (before, after) = block.split_once(SEPARATOR)?;
    Some((before.to_string(), after.to_string()))
}

/// What a file of the pass `quantize` asks for, by its name.
fn form(path: &Path) -> QuantizedForm {
    let name = path.file_name().expect("a file").to_string_lossy();
    if name.starts_with("int4") { QuantizedForm::Int4 } else { QuantizedForm::Int8 }
}

#[test]
fn passes_rewrite_files_as_expected() {
    let mut faults = vec![];
    for dir in files("pass") {
        let name = dir.file_name().expect("a folder").to_string_lossy().into_owned();
        let pass = PASSES.iter().find(|p| p.name == name).unwrap_or_else(|| panic!("{name} is no pass"));
        for path in files(&format!("pass/{name}")) {
            let text = read(&path);
            let (comment, body) = split_comment(&text);
            let before = body.split(SEPARATOR).next().expect("split gives one part at least");
            let got = format!("{before}{SEPARATOR}{}", run_pass(pass, before, form(&path)));
            expect(&path, comment, body, &got, &mut faults);
        }
    }
    report(&faults);
}
