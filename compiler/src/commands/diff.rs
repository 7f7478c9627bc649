//! `jvc diff`: what changed between two generated crates, or two folders of them.

use super::{CommandError, Console, Outcome};
use crate::cli::{DiffArgs, DiffFormat};
use crate::diff::{self, Comparison, Crate};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn run(args: &DiffArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let (old, new) = (diff::read(&args.old)?, diff::read(&args.new)?);
    let (compared, alone) = matched(&old, &new);
    match args.format {
        DiffFormat::Json => serde_json::to_writer_pretty(&mut *console.out, &compared).map_err(std::io::Error::from)?,
        DiffFormat::Markdown => {
            for found in compared.iter().filter(|found| compared.len() == 1 || !found.is_empty()) {
                writeln!(console.out, "{}", found.to_markdown())?;
            }
            let same = compared.iter().filter(|found| found.is_empty()).count();
            if compared.len() > 1 {
                writeln!(console.out, "{} of {} crates differ.", compared.len() - same, compared.len())?;
            }
        }
    }
    for line in alone {
        writeln!(console.err, "{line}")?;
    }
    let exceeded: Vec<String> = compared.iter().flat_map(|found| found.exceeded(&args.fail_on)).collect();
    for line in &exceeded {
        writeln!(console.err, "{line}")?;
    }
    Ok(if exceeded.is_empty() { Outcome::Fine } else { Outcome::Finding })
}

/// Crates of the same folder name; two single crates are compared whatever they are called. And words for the rest.
fn matched(old: &BTreeMap<String, Crate>, new: &BTreeMap<String, Crate>) -> (Vec<Comparison>, Vec<String>) {
    if let ([before], [after]) = (&old.values().collect::<Vec<_>>()[..], &new.values().collect::<Vec<_>>()[..]) {
        return (vec![Comparison::of(before, after)], vec![]);
    }
    let (mut compared, mut alone) = (vec![], vec![]);
    for name in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        match (old.get(name), new.get(name)) {
            (Some(before), Some(after)) => compared.push(Comparison::of(before, after)),
            (Some(_), None) => alone.push(format!("{name}: only in the old folder")),
            (None, _) => alone.push(format!("{name}: only in the new folder")),
        }
    }
    (compared, alone)
}
