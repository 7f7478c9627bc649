//! `docs/walkthrough.md`: one tiny program at every waist of the compiler. Written by the compiler itself and checked with the goldens,
//! so that it cannot be out of date.

use crate::device;
use crate::golden::{CASES, Case, GoldenError, PROGRAMS};
use crate::options::Options;
use crate::pipeline::Compiled;
use crate::{aten, import, ir};
use std::path::Path;

/// Path below the repository.
pub const FILE: &str = "docs/walkthrough.md";

/// The page. `root` is the repository.
///
/// # Errors
/// The program no longer compiles.
pub fn page(root: &Path) -> Result<String, GoldenError> {
    let case = &CASES[0];
    let program = &case.programs(root)?[0];
    let lowered = aten::lower(program, &Options::default())
        .map_err(|diagnostics| GoldenError::Compile { case: case.folder(), diagnostics })?;
    let compiled = case.compile(root)?;
    let artifact = case.artifact(root)?;
    let text = |path: &str| artifact.text(path).unwrap_or_default().trim_end().to_string();
    let mut page = Page::new(case);
    page.section("The model", "In Python:", "python", &python_class(root, "Mlp"));
    page.section(
        "Source program",
        "What the archive says, faithfully (`jvc compile --emit program`). ATen names are still strings, weights stay in the mapped \
         file.",
        "text",
        &import::print(program),
    );
    page.section(
        "Graph",
        "After the ATen rules: about thirty operations, static types, everything else composed of them.",
        "text",
        &ir::print::print(&lowered),
    );
    page.section(
        "Graph after all passes",
        "What is scheduled (`--emit graph`).",
        "text",
        &ir::print::print(&compiled.graphs[0]),
    );
    page.section(
        "Kernels",
        "The scheduler makes each anchor a kernel; what stands between them, movement and pointwise work, is inlined as \
         expressions. A spec is one line (`--emit kernels`) and stands for the kernel everywhere.",
        "text",
        &kernel_lines(&compiled),
    );
    page.section(
        "Plan",
        "Buffers with offsets, steps in order, barriers where bytes demand it (`--emit plan`, `plan.txt`). A verifier that shares \
         no code with the planner checks every range and hazard.",
        "text",
        &text("plan.txt"),
    );
    page.section("Memory", "`memory.txt`:", "text", &text("memory.txt"));
    let module = compiled.plan.entries[0].name.clone();
    page.section(
        "Generated Rust: the recording",
        "Loading runs this once; from then on a run writes inputs and submits.",
        "rust",
        &text(&format!("src/{module}/steps.rs")),
    );
    page.section("Generated Rust: the interface", "", "rust", &text(&format!("src/{module}.rs")));
    if let Some(kernel) = compiled.plan.kernels.iter().min_by_key(|k| k.words.len()) {
        let intro = format!("`{}`, as it is reviewed:", kernel.name);
        page.section("One kernel's SPIR-V", &intro, "text", kernel.disassembly.trim_end());
    }
    Ok(page.0)
}

struct Page(String);

impl Page {
    fn new(case: &Case) -> Page {
        let device = device::find(case.device).map_or_else(|_| case.device.to_string(), |d| d.description);
        Page(format!(
            "# Walkthrough: one program at every waist\n\n\
             `{PROGRAMS}/{}`, compiled for `{}` ({device}). This page is written by `jvc golden --bless`.\n",
            case.file, case.device
        ))
    }

    fn section(&mut self, title: &str, intro: &str, language: &str, body: &str) {
        self.0 += &format!("\n## {title}\n\n");
        if !intro.is_empty() {
            self.0 += &format!("{intro}\n\n");
        }
        self.0 += &format!("```{language}\n{}\n```\n", body.trim_end());
    }
}

/// The class in the script that exports the programs.
fn python_class(root: &Path, name: &str) -> String {
    let script = std::fs::read_to_string(root.join(PROGRAMS).join("export.py")).unwrap_or_default();
    let start = script.find(&format!("class {name}(")).unwrap_or(0);
    let class = &script[start..];
    class.split("\n\n\n").next().unwrap_or_default().to_string()
}

fn kernel_lines(compiled: &Compiled) -> String {
    compiled.plan.kernels.iter().map(|k| format!("{}\n  {}\n", k.name, k.spec)).collect()
}
