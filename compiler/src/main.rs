//! The `jvc` binary: reads the command line, runs the command, prints what went wrong.

use clap::Parser;
use jvc::cli::Cli;
use jvc::commands::{self, Console};
use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut out = stdout().lock();
    let mut err = stderr();
    let terminal = err.is_terminal();
    let result = commands::run(&cli.command, &mut Console { out: &mut out, err: &mut err, terminal });
    match result {
        Ok(outcome) => ExitCode::from(outcome.code()),
        // The reader of a pipe may close it early (`jvc ops | head`): not worth a word.
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, there is nobody to tell.
            let _ = writeln!(stderr(), "jvc: {error}");
            ExitCode::from(error.code())
        }
    }
}
