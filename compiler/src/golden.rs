//! Goldens: programs whose compilation is kept in `target-artifacts/` and reviewed like code. Regenerating them must give the same bytes.
//!
//! Small programs for lavapipe are whole crates with their weights; the rest is text (plan, memory, decisions, disassembly), and
//! `plan.txt` pins every kernel by its hash. The case list below is all there is to adding one.

use crate::device;
use crate::import::{self, Program};
use crate::options::Options;
use crate::pipeline::{self, Compiled};
use crate::report::Diagnostic;
use crate::walkthrough;
use jvc_codegen::artifact::{Artifact, Difference, WriteError};
use jvc_codegen::weights::{FILE_NAME, WeightError, write_weights};
use jvc_codegen::{GenerateError, RuntimeSource};
use std::io::Cursor;
use std::path::Path;

/// How much of a crate is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Everything, weights included; it builds against the runtime of this repository.
    Crate,
    /// Plan, memory, decisions and disassemblies.
    Text,
    /// Plan, memory and decisions.
    Plan,
}

/// A program and a device. The first of [`CASES`] is also the walkthrough's.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// Name of the program; its file in `models/goldens` starts so.
    pub program: &'static str,
    /// The program's file.
    pub file: &'static str,
    /// Device profile.
    pub device: &'static str,
    /// What is kept.
    pub form: Form,
}

/// All goldens.
pub const CASES: [Case; 8] = [
    Case { program: "mlp", file: "mlp.pt2", device: "lavapipe", form: Form::Crate },
    Case { program: "mlp", file: "mlp.pt2", device: "h200", form: Form::Text },
    Case { program: "conv_block", file: "conv_block.pt2", device: "lavapipe", form: Form::Crate },
    Case { program: "conv_block", file: "conv_block.pt2", device: "h200", form: Form::Text },
    Case { program: "attention_block", file: "attention_block.model.json.gz", device: "lavapipe", form: Form::Text },
    Case { program: "attention_block", file: "attention_block.model.json.gz", device: "h200", form: Form::Text },
    Case { program: "resnet18", file: "resnet18.model.json.gz", device: "lavapipe", form: Form::Plan },
    Case { program: "resnet18", file: "resnet18.model.json.gz", device: "h200", form: Form::Plan },
];

/// Folder of the programs, below the repository.
pub const PROGRAMS: &str = "models/goldens";
/// Folder of the goldens, below the repository.
pub const ARTIFACTS: &str = "target-artifacts";
/// Seed of weights that a graph comes without.
const SEED: u64 = 0;

/// Why goldens could not be made or compared.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum GoldenError {
    #[error(transparent)]
    Import(#[from] import::ImportError),
    #[error(transparent)]
    Device(#[from] device::DeviceError),
    #[error("{case} does not compile:\n{}", .diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Compile { case: String, diagnostics: Vec<Diagnostic> },
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error(transparent)]
    Weights(#[from] WeightError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Case {
    /// Folder of the golden in [`ARTIFACTS`].
    pub fn folder(&self) -> String {
        format!("{}-{}", self.program, self.device)
    }

    /// Reads the program. `root` is the repository.
    ///
    /// # Errors
    /// The program cannot be read.
    pub fn programs(&self, root: &Path) -> Result<Vec<Program>, GoldenError> {
        let mut programs = import::read(&root.join(PROGRAMS).join(self.file))?;
        import::fill_random(&mut programs, SEED)?;
        // An archive of one program calls it `model`.
        programs.iter_mut().for_each(|program| program.name = self.program.to_string());
        Ok(programs)
    }

    /// Compiles the program.
    ///
    /// # Errors
    /// The program cannot be read or compiled.
    pub fn compile(&self, root: &Path) -> Result<Compiled, GoldenError> {
        let programs = self.programs(root)?;
        let options = Options { name: Some(self.program.to_string()), ..Options::default() };
        let compile = pipeline::compile(&programs, &options, &device::find(self.device)?);
        let mut compiled = compile.map_err(|diagnostics| GoldenError::Compile { case: self.folder(), diagnostics })?;
        compiled.hash_weights()?;
        Ok(compiled)
    }

    /// The files of the golden.
    ///
    /// # Errors
    /// As [`Case::compile`].
    pub fn artifact(&self, root: &Path) -> Result<Artifact, GoldenError> {
        let compiled = self.compile(root)?;
        let options = jvc_codegen::Options {
            runtime: RuntimeSource::Path("../../runtime-min".to_string()),
            ..jvc_codegen::Options::default()
        };
        let mut artifact = jvc_codegen::generate(&compiled.plan, &options)?;
        match self.form {
            Form::Crate => {
                artifact.files.insert(FILE_NAME.to_string(), weight_file(&compiled)?);
            }
            Form::Text => artifact.files.retain(|path, _| path.ends_with(".txt") || path.ends_with(".spvasm")),
            Form::Plan => artifact.files.retain(|path, _| path.ends_with(".txt")),
        }
        Ok(artifact)
    }
}

/// Differences between the goldens and what the compiler makes now, with paths below the repository.
///
/// # Errors
/// A program that no longer compiles, or a file that cannot be read.
pub fn check(root: &Path) -> Result<Vec<Difference>, GoldenError> {
    all(root)?.diff(root).map_err(GoldenError::from)
}

/// Writes what the compiler makes now over the goldens, and returns what differed.
///
/// # Errors
/// As [`check`], or a file that cannot be written.
pub fn bless(root: &Path) -> Result<Vec<Difference>, GoldenError> {
    let artifact = all(root)?;
    let differences = artifact.diff(root)?;
    artifact.write(root)?;
    Ok(differences)
}

/// Every golden, and the walkthrough.
fn all(root: &Path) -> Result<Artifact, GoldenError> {
    let mut all = Artifact::default();
    all.owned.insert(ARTIFACTS.to_string());
    all.add_text(&format!("{ARTIFACTS}/README.md"), readme());
    all.add_text(&format!("{ARTIFACTS}/.gitignore"), "Cargo.lock\ntarget\n".to_string());
    all.add_text(walkthrough::FILE, walkthrough::page(root)?);
    for case in CASES {
        for (path, bytes) in case.artifact(root)?.files {
            all.files.insert(format!("{ARTIFACTS}/{}/{path}", case.folder()), bytes);
        }
    }
    Ok(all)
}

fn readme() -> String {
    let mut text = "# Goldens\n\n\
        What the compiler makes of the programs in `models/goldens`, under review like any other code. Nobody edits these files:\n\
        `jvc golden --check` compares them, `jvc golden --bless` writes them. A change here needs a reason in the commit, and a\n\
        line under \"Generated code\" in the changelog.\n\n\
        | folder | kept |\n| --- | --- |\n"
        .to_string();
    for case in CASES {
        let kept = match case.form {
            Form::Crate => "the crate, with kernels and weights; it builds and runs",
            Form::Text => "plan (pins each kernel by hash), memory, decisions, kernel disassembly",
            Form::Plan => "plan (pins each kernel by hash), memory, decisions",
        };
        text += &format!("| `{}` | {kept} |\n", case.folder());
    }
    text
}

fn weight_file(compiled: &Compiled) -> Result<Vec<u8>, GoldenError> {
    let mut file = Cursor::new(Vec::new());
    write_weights(&compiled.plan.weights, &mut file, &mut |tensor, out| compiled.weights.fill(tensor, out))?;
    Ok(file.into_inner())
}
