//! `jvc golden`: compares or writes the files under review.

use super::{CommandError, Console, Outcome};
use crate::cli::GoldenArgs;
use crate::golden;
use jvc_codegen::artifact::Difference;

pub(super) fn run(args: &GoldenArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    if !args.root.join(golden::PROGRAMS).is_dir() {
        let text = format!("{} is not the repository (it has no {})", args.root.display(), golden::PROGRAMS);
        return Err(CommandError::Usage(text));
    }
    let differences = if args.bless { golden::bless(&args.root)? } else { golden::check(&args.root)? };
    for difference in &differences {
        writeln!(console.out, "{}", line(difference, args.bless))?;
    }
    if args.bless || differences.is_empty() {
        writeln!(console.err, "{} goldens, {} files differed", golden::CASES.len(), differences.len())?;
        return Ok(Outcome::Fine);
    }
    writeln!(console.err, "{} files differ; `jvc golden --bless` writes them", differences.len())?;
    Ok(Outcome::Finding)
}

fn line(difference: &Difference, bless: bool) -> String {
    let (check, done) = match difference {
        Difference::Missing(_) => ("missing", "added"),
        Difference::Extra(_) => ("not made any more", "removed"),
        Difference::Changed(_) => ("changed", "updated"),
    };
    format!("{}: {}", difference.path(), if bless { done } else { check })
}
