//! `jvc verify`: see [`crate::verify`].

use super::{CommandError, Console, Outcome, load};
use crate::cli::{Format, LevelArg, VerifyArgs};
use crate::pass_rule::Level;
use crate::verify::{self, FileReport, Refs, Request, Status};
use std::io::{self, Write};

pub(super) fn run(args: &VerifyArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    check(args)?;
    let request = Request {
        paths: args.paths.clone(),
        device: load::profile(&args.device)?,
        gpu: load::select(args.device.gpu.as_deref()),
        options: load::options(&args.compile, None)?,
        level: args.level.map(|l| match l {
            LevelArg::Op => Level::Operator,
            LevelArg::Model => Level::Model,
        }),
        repeats: args.repeat,
        ranges: args.ranges,
        refs: args.refs.as_ref().map(|file| Refs {
            file: file.clone(),
            inputs: args.inputs.clone(),
            weights: args.compile.weights.clone(),
        }),
        validate: args.validate,
        save_outputs: args.save_outputs.clone(),
    };
    request.device.iter().try_for_each(|profile| load::warn_of_strangers(profile, console))?;
    let bar = console.bar();
    // A panic of the compiler fails one file; one line says where it came from.
    std::panic::set_hook(Box::new(|panic| {
        let _ = writeln!(io::stderr(), "jvc: {panic}");
    }));
    let mut failed_print: Option<io::Error> = None;
    let summary = verify::verify(&request, &mut |i, n, report| {
        bar.set_length(n as u64);
        bar.set_position(i as u64 + 1);
        if shown(args, report) && failed_print.is_none() {
            failed_print = bar.suspend(|| writeln!(console.out, "{report}")).err();
        }
    })?;
    bar.finish_and_clear();
    if let Some(error) = failed_print {
        return Err(error.into());
    }
    let report = summary.to_json();
    if let Some(path) = &args.json {
        jvc_codegen::artifact::write_single(path, format!("{report:#}\n").as_bytes())?;
    }
    if let (Some(path), Some(steps)) = (&args.report, summary.files.first().and_then(|f| f.steps.as_ref())) {
        let text = format!("# {}, compiled for {}\n\n{steps}", summary.files[0].name, summary.device);
        jvc_codegen::artifact::write_single(path, text.as_bytes())?;
    }
    match args.format {
        Format::Json => writeln!(console.out, "{report}")?,
        Format::Text => writeln!(console.out, "{summary}")?,
    }
    let [passed, failed, ..] = summary.counts();
    if summary.files.is_empty() {
        return Err(CommandError::Usage("there is no .pt2 file in the given paths".into()));
    }
    Ok(if failed > 0 || passed == 0 { Outcome::Finding } else { Outcome::Fine })
}

/// What does not go together.
fn check(args: &VerifyArgs) -> Result<(), CommandError> {
    let usage = |text: &str| Err(CommandError::Usage(text.into()));
    match (&args.refs, &args.paths[..]) {
        (None, _) if args.compile.weights.is_some() => {
            usage("--weights is for one program; references come with their weights")
        }
        (Some(_), [path]) if path.is_dir() => usage("--refs is of one program"),
        (Some(_), [_, _, ..]) => usage("--refs is of one program"),
        (Some(_), _) if args.compile.quantize.is_some() => usage("--refs says nothing of quantised weights"),
        _ => Ok(()),
    }
}

fn shown(args: &VerifyArgs, report: &FileReport) -> bool {
    args.format == Format::Text && !(args.quiet && matches!(report.status, Status::Pass | Status::Skipped(_)))
}
