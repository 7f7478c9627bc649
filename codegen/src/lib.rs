//! A fully resolved [`plan::Plan`] in, the files of a standalone crate out. Leaf crate: it knows no graph, kernel template or device.
//!
//! [`generate`] is pure; [`artifact`] writes. The crate that comes out names the runtime's API and holds one straight-line function
//! per distinct block of steps, with tables of what differs.
//!
//! ```
//! use jvc_codegen::{Options, generate, plan::{Entry, Plan}};
//!
//! let plan = Plan { name: "nothing".into(), device: "lavapipe".into(), ..Plan::default() };
//! let artifact = generate(&plan, &Options::default())?;
//! assert!(artifact.text("Cargo.toml").is_some_and(|text| text.contains("name = \"nothing\"")));
//! # Ok::<(), jvc_codegen::GenerateError>(())
//! ```

pub mod artifact;
mod block_table;
mod blocks;
mod c_code;
/// The table of the C interface's library, which has no part in this crate's dependencies.
#[path = "../../runtime-min/c/src/codes.rs"]
mod c_codes;
mod c_header;
mod checks;
mod docs;
mod entry;
mod entry_table;
mod format;
mod ident;
mod imports;
mod kernels;
mod manifest;
mod model;
pub mod plan;
mod size_code;
mod steps;
mod texts;
mod vendor;
pub mod weights;
mod words;

use artifact::Artifact;
use plan::{Elem, Plan, PlanError};

/// How to generate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Where the crate finds the runtime.
    pub runtime: RuntimeSource,
    /// Whether the crate has a C interface, behind its feature `c-api`, with a header.
    pub c_api: bool,
}

/// Where a generated crate finds the runtime.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RuntimeSource {
    /// In its own folder `runtime/`.
    #[default]
    Vendored,
    /// In a folder, by a path relative to the crate or absolute.
    Path(String),
    /// In the registry, in the version of this compiler.
    Version,
}

/// Why a plan has no crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// The plan is broken: a bug of whoever made it.
    #[error("the plan does not verify: {} faults, the first: {}", .0.len(), .0[0])]
    Plan(Vec<PlanError>),
    /// A kernel's name is no file name.
    #[error("kernel name {0:?} is not made of letters, digits, `_`, `-` and `.`")]
    KernelName(String),
    /// A port of a type that words cannot hold.
    #[error("{entry}: {port} is of type {elem}, which has no form in 32-bit words")]
    WordStorage {
        /// Entry point.
        entry: String,
        /// Port.
        port: String,
        /// Its type.
        elem: Elem,
    },
}

/// The files of a crate: the same bytes for the same plan and options.
///
/// # Errors
/// A plan that does not verify, or that the generated interface cannot express.
pub fn generate(plan: &Plan, options: &Options) -> Result<Artifact, GenerateError> {
    plan.verify().map_err(GenerateError::Plan)?;
    check_names(plan)?;
    check_words(plan)?;
    let mut artifact = Artifact::default();
    artifact
        .owned
        .extend(["include", "kernels", "src", "runtime/c/src", "runtime/src", "runtime/files/src"].map(String::from));
    add_sources(plan, options.c_api, &mut artifact);
    kernels::add_kernel_files(plan, &mut artifact);
    artifact.add_text("Cargo.toml", manifest::manifest(plan, options));
    artifact.add_text("rustfmt.toml", format::RUSTFMT.to_string());
    add_texts(plan, &mut artifact);
    if options.c_api {
        add_c(plan, &mut artifact);
    }
    if options.runtime == RuntimeSource::Vendored {
        add_runtime(options.c_api, &mut artifact);
    }
    Ok(artifact)
}

/// The files that describe a plan and are no code: what is kept of models too large to keep whole.
pub fn add_texts(plan: &Plan, artifact: &mut Artifact) {
    let entries = entry_names(plan);
    artifact.add_text("README.md", texts::readme(plan, &entries));
    artifact.add_text("plan.txt", plan.to_text());
    artifact.add_text("memory.txt", texts::memory(plan));
    artifact.add_text("decisions.txt", texts::decisions(plan));
}

fn entry_names(plan: &Plan) -> Vec<entry::EntryNames<'_>> {
    let mut unique = ident::Unique::default();
    for taken in ["kernels", "checks", "words", "steps", "c"] {
        unique.take(taken.to_string());
    }
    let mut types = ident::Unique::default();
    let named = plan.entries.iter().map(|entry| {
        let module = unique.take(ident::snake(&entry.name));
        let prefix = types.take_type(ident::camel(&module));
        entry::EntryNames::new(entry, &module, &prefix)
    });
    named.collect()
}

fn add_sources(plan: &Plan, c_api: bool, artifact: &mut Artifact) {
    let entries = entry_names(plan);
    let kernel_idents = kernels::kernel_idents(plan);
    let mut all = proc_macro2::TokenStream::new();
    let mut add = |path: &str, tokens| artifact.add_text(path, format::format_file(tokens));
    for names in &entries {
        let body = entry::entry_body(plan, names);
        add(&format!("src/{}.rs", names.module), entry::entry_file(names, &body));
        add(&format!("src/{}/steps.rs", names.module), steps::steps_file(names.entry, &kernel_idents));
        all.extend(body);
    }
    let words = words::words_file(&all);
    all.extend(words.clone());
    let checks = checks::checks_file(&checks::import_checks(&all));
    let optional = model::Optional { c: c_api, checks: checks.is_some(), words: words.is_some() };
    for (path, tokens) in [("src/checks.rs", checks), ("src/words.rs", words)] {
        if let Some(tokens) = tokens {
            add(path, tokens);
        }
    }
    add("src/kernels.rs", kernels::kernels_file(plan));
    add("src/lib.rs", model::lib_file(plan, &entries, &optional));
}

/// The C interface: a module, a header, and a line about them.
fn add_c(plan: &Plan, artifact: &mut Artifact) {
    let entries = entry_names(plan);
    let (path, header) = c_header::header(plan, &entries);
    let note = format!("- `{path}`: the C interface; `cargo build --release --features c-api` builds the library.\n");
    artifact.add_text("src/c.rs", c_code::c_file(plan, &entries));
    artifact.add_text("README.md", texts::readme(plan, &entries) + &note);
    artifact.add_text(&path, header);
}

fn add_runtime(c_api: bool, artifact: &mut Artifact) {
    let c_files = if c_api { &vendor::C_FILES[..] } else { &[] };
    for (path, text) in vendor::FILES.iter().chain(c_files) {
        artifact.add_text(&format!("runtime/{path}"), text.to_string());
    }
    artifact.add_text("runtime/Cargo.toml", manifest::runtime_manifest());
    artifact.add_text("runtime/files/Cargo.toml", manifest::files_manifest());
    if c_api {
        artifact.add_text("runtime/c/Cargo.toml", manifest::c_manifest());
    }
    artifact.add_text("runtime/rustfmt.toml", vendor::RUSTFMT.to_string());
}

fn check_names(plan: &Plan) -> Result<(), GenerateError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let is_file = |name: &str| !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain);
    match plan.kernels.iter().find(|k| !is_file(&k.name)) {
        Some(kernel) => Err(GenerateError::KernelName(kernel.name.clone())),
        None => Ok(()),
    }
}

fn check_words(plan: &Plan) -> Result<(), GenerateError> {
    for entry in &plan.entries {
        for port in entry.inputs.iter().chain(&entry.outputs) {
            if words::transfer(port).is_none() {
                let (entry, port_name) = (entry.name.clone(), port.name.clone());
                return Err(GenerateError::WordStorage { entry, port: port_name, elem: port.elem });
            }
        }
    }
    Ok(())
}
