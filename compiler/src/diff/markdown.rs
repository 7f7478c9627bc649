//! Differences as Markdown, for a pull request.

use super::{Comparison, Moved, StepChange, Total};
use std::fmt::Write;

/// Steps that are listed; the rest are counted.
const LISTED: usize = 40;

pub(super) fn of(found: &Comparison) -> String {
    let mut out = format!("### {}\n\n", found.name);
    if found.is_empty() {
        return out + "No difference.\n";
    }
    let mut put = |text: String| out.push_str(&text);
    put("| | before | after | |\n| --- | ---: | ---: | ---: |\n".to_owned());
    found.totals.iter().for_each(|total| put(row(total)));
    put(list("Interface", &found.interface));
    let code = |names: &[String]| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
    put(list("Kernels added", &code(&found.kernels.added)));
    put(list("Kernels removed", &code(&found.kernels.removed)));
    put(list("Kernels with other code", &code(&found.kernels.rebuilt)));
    put(list("Steps", &found.steps.iter().map(step).collect::<Vec<_>>()));
    out
}

fn row(total: &Total) -> String {
    let name = if total.what == "slower" { "time" } else { total.what };
    let number = |value: f64| if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.1}") };
    let change = match total.percent() {
        0.0 => "=".to_owned(),
        percent if percent.is_finite() => format!("{percent:+.1} %"),
        _ => "new".to_owned(),
    };
    let unit = if total.unit.is_empty() { String::new() } else { format!(", {}", total.unit) };
    format!("| {name}{unit} | {} | {} | {change} |\n", number(total.old), number(total.new))
}

fn list(title: &str, lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    let mut out = format!("\n**{title}** ({})\n\n", lines.len());
    for line in lines.iter().take(LISTED) {
        writeln!(out, "- {line}").expect("writing to a string succeeds");
    }
    if lines.len() > LISTED {
        writeln!(out, "- and {} more", lines.len() - LISTED).expect("writing to a string succeeds");
    }
    out
}

fn step(change: &StepChange) -> String {
    let what = format!("{} of {}", change.label, change.entry);
    let origin = change.origin.last().map_or(String::new(), |origin| format!(" ({origin})"));
    match &change.moved {
        Moved::Added(kernel) => format!("added: {what}{origin}: `{kernel}`"),
        Moved::Removed(kernel) => format!("removed: {what}{origin}: `{kernel}`"),
        Moved::Changed { old, new, was, is } => {
            let reasons = |word: &str, lines: &[String]| {
                if lines.is_empty() { String::new() } else { format!("; {word} {}", lines.join("; ")) }
            };
            format!("{what}{origin}: `{old}` → `{new}`{}{}", reasons("was", was), reasons("is", is))
        }
    }
}
