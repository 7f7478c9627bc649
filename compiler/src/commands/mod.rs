//! What each command does. Results go to standard output, everything else to standard error.

mod bench;
mod budget;
mod coldstart;
mod compile;
mod devices;
mod diagnostics;
mod diff;
mod explain;
mod golden;
mod load;
mod ops;
mod run;
mod tune;
mod verify;

use crate::cli::Command;
use crate::islands::IslandsError;
use crate::report::Diagnostic;
use crate::tune::TuneError;
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::io::{self, Write};

/// Where a command prints.
pub struct Console<'a> {
    /// Results.
    pub out: &'a mut dyn Write,
    /// Messages.
    pub err: &'a mut dyn Write,
    /// Messages go to a terminal: progress bars are shown.
    pub terminal: bool,
}

impl Console<'_> {
    /// A progress bar of a length to be set, which shows nothing when messages do not go to a terminal.
    fn bar(&self) -> ProgressBar {
        let target = if self.terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        ProgressBar::with_draw_target(None, target)
    }
}

/// How a command ended that did its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Fine,
    /// Something was found that a script should stop at.
    Finding,
}

impl Outcome {
    /// Exit code.
    pub fn code(self) -> u8 {
        match self {
            Outcome::Fine => 0,
            Outcome::Finding => 1,
        }
    }
}

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command line asks for something that does not exist.
    #[error("{0}")]
    Usage(String),
    /// A program or checkpoint cannot be read.
    #[error(transparent)]
    Import(#[from] crate::import::ImportError),
    /// No such device.
    #[error(transparent)]
    Device(#[from] crate::device::DeviceError),
    /// The programs cannot be compiled for the device.
    #[error("{}", diagnostics::render(.0))]
    Diagnostics(Vec<Diagnostic>),
    /// The plan has no crate.
    #[error(transparent)]
    Generate(#[from] jvc_codegen::GenerateError),
    /// Inconsistent weights.
    #[error(transparent)]
    Weights(#[from] jvc_codegen::weights::WeightError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] jvc_codegen::artifact::WriteError),
    /// A file of tensors cannot be read.
    #[error(transparent)]
    Tensors(#[from] crate::tensor_file::TensorFileError),
    /// The program did not run.
    #[error(transparent)]
    Exec(#[from] crate::exec::ExecError),
    /// The runtime refuses.
    #[error(transparent)]
    Runtime(#[from] jvc_runtime::Error),
    /// An application's device cannot be had.
    #[error(transparent)]
    Lab(#[from] jvc_lab::LabError),
    /// Nothing could be verified.
    #[error(transparent)]
    Verify(#[from] crate::verify::VerifyError),
    /// A file of islands cannot be read.
    #[error(transparent)]
    IslandsFile(#[from] crate::islands::IslandsFileError),
    /// No islands were found for an error budget.
    #[error(transparent)]
    Islands(IslandsError),
    /// A golden cannot be made or compared.
    #[error(transparent)]
    Golden(#[from] crate::golden::GoldenError),
    /// Crates to compare cannot be read.
    #[error(transparent)]
    Diff(#[from] crate::diff::SourceError),
    /// Nothing tells how fast the device is.
    #[error(transparent)]
    Load(#[from] crate::measure::LoadError),
    /// A process that was to be measured gave no result.
    #[error("a measured process ended without a result: {0}")]
    Process(String),
    /// Standard output or standard error refuse.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

impl From<IslandsError> for CommandError {
    fn from(error: IslandsError) -> CommandError {
        match error {
            IslandsError::Compile(all) => CommandError::Diagnostics(all),
            IslandsError::Exec(error) => CommandError::Exec(error),
            IslandsError::Tensors(_) | IslandsError::Samples { .. } | IslandsError::NotHeld { .. } => {
                CommandError::Islands(error)
            }
        }
    }
}

impl From<TuneError> for CommandError {
    fn from(error: TuneError) -> CommandError {
        match error {
            TuneError::Diagnostics(all) => CommandError::Diagnostics(all),
            TuneError::Exec(error) => CommandError::Exec(error),
            TuneError::Load(error) => CommandError::Load(error),
            TuneError::Print(error) => CommandError::Print(error),
        }
    }
}

impl CommandError {
    /// Exit code: 2 for what a changed command line or environment would mend, 1 for what is wrong with a program.
    pub fn code(&self) -> u8 {
        match self {
            CommandError::Usage(_)
            | CommandError::Import(crate::import::ImportError::Io { .. })
            | CommandError::Device(_)
            | CommandError::Write(_)
            | CommandError::Tensors(_)
            | CommandError::Runtime(_)
            | CommandError::Lab(_)
            | CommandError::Verify(_)
            | CommandError::IslandsFile(_)
            | CommandError::Islands(IslandsError::Tensors(_) | IslandsError::Samples { .. })
            | CommandError::Diff(_)
            | CommandError::Print(_) => 2,
            CommandError::Import(_)
            | CommandError::Diagnostics(_)
            | CommandError::Generate(_)
            | CommandError::Weights(_)
            | CommandError::Golden(_)
            | CommandError::Islands(_)
            | CommandError::Process(_)
            | CommandError::Load(_)
            | CommandError::Exec(_) => 1,
        }
    }

    /// The reader of the output went away.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, CommandError::Print(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Runs a command.
///
/// # Errors
/// Whatever kept it from its work.
pub fn run(command: &Command, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    match command {
        Command::Compile(args) => compile::run(args, console),
        Command::Run(args) => run::run(args, console),
        Command::Bench(args) => bench::run(args, console),
        Command::Tune(args) => tune::run(args, console),
        Command::Coldstart(args) => coldstart::run(args, console),
        Command::ColdstartProcess(args) => coldstart::run_process(args, console),
        Command::Verify(args) => verify::run(args, console),
        Command::Ops(args) => ops::run(args, console),
        Command::Devices(args) => devices::devices(args, console),
        Command::Probe(args) => devices::probe(args, console),
        Command::Explain(args) => explain::run(args, console),
        Command::Diff(args) => diff::run(args, console),
        Command::Golden(args) => golden::run(args, console),
    }
}
