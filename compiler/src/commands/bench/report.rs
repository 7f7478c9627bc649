//! What `jvc bench` prints: text for people, JSON for scripts.

use super::side::{Measured, TimedStep};
use crate::cli::Format;
use crate::commands::{CommandError, Console};
use crate::diff::pairs;
use crate::measure::Figure;
use serde_json::{Value, json};

pub(super) struct Report<'r> {
    pub(super) gpu: &'r str,
    /// One, or two.
    pub(super) sides: &'r [Measured<'r>],
    pub(super) load_us: f64,
    /// Percent.
    pub(super) slack: f64,
    /// Steps that are printed.
    pub(super) n_steps: usize,
}

/// A step of both sides, or of one.
type Pair<'r> = [Option<&'r TimedStep<'r>>; 2];

impl Report<'_> {
    pub(super) fn print(&self, format: Format, console: &mut Console<'_>) -> Result<(), CommandError> {
        match format {
            Format::Json => writeln!(console.out, "{}", self.json())?,
            Format::Text => self.text(console)?,
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let mut body = match self.sides {
            [only] => side(only),
            sides => {
                let ratio = sides[1].device.median / sides[0].device.median;
                json!({ "sides": sides.iter().map(side).collect::<Value>(), "device_ratio": ratio })
            }
        };
        body["gpu"] = self.gpu.into();
        body["fixed_load_us"] = self.load_us.into();
        body
    }

    fn text(&self, console: &mut Console<'_>) -> Result<(), CommandError> {
        writeln!(
            console.out,
            "on {}; runs beside which the fixed load did not take {:.1} µs, up to {} %, are discarded",
            self.gpu, self.load_us, self.slack
        )?;
        for (letter, m) in ["A", "B"].iter().zip(self.sides) {
            let letter = if self.sides.len() == 1 { String::new() } else { format!("{letter}: ") };
            writeln!(console.out, "\n{letter}{}, {} dispatches, {} barriers", m.name, m.dispatches, m.barriers)?;
            writeln!(console.out, "  device  {}", line(&m.device))?;
            writeln!(console.out, "  host    {}", line(&m.host))?;
            let share = 100.0 * m.bound_us / m.device.median;
            writeln!(
                console.out,
                "  bound   {:10.1} µs by the profile's rates, {share:.0} % of the device's",
                m.bound_us
            )?;
        }
        if let [a, b] = self.sides {
            let trusted = [a, b].iter().all(|m| m.device.trusted);
            let mark = if trusted { "" } else { ", not trustworthy" };
            let (device, host) = (b.device.median / a.device.median, b.host.median / a.host.median);
            writeln!(console.out, "\nB takes {device:.3} × the device's time of A{mark}, and {host:.3} × the host's")?;
        }
        self.steps(console)
    }

    /// The longest steps.
    fn steps(&self, console: &mut Console<'_>) -> Result<(), CommandError> {
        let mut rows: Vec<Pair<'_>> = match self.sides {
            [only] => only.steps.iter().map(|step| [Some(step), None]).collect(),
            [a, b, ..] => paired(a, b),
            [] => vec![],
        };
        let longest = |row: &Pair<'_>| row.iter().flatten().map(|step| step.us.median).fold(0.0, f64::max);
        rows.sort_by(|a, b| longest(b).total_cmp(&longest(a)));
        if rows.is_empty() {
            return Ok(());
        }
        let shown = rows.len().min(self.n_steps);
        writeln!(console.out, "\nsteps by themselves, a barrier after each; the {shown} longest of {}", rows.len())?;
        let title = if self.sides.len() == 1 { "        µs" } else { "      A µs       B µs     B/A" };
        writeln!(console.out, "{title}   bound µs  of bound  spread  step")?;
        for row in rows.iter().take(shown) {
            writeln!(console.out, "{}", self.step(row))?;
        }
        Ok(())
    }

    fn step(&self, row: &Pair<'_>) -> String {
        let us = |step: Option<&TimedStep<'_>>| step.map_or(" ".repeat(10), |s| format!("{:10.2}", s.us.median));
        let times = match self.sides.len() {
            1 => us(row[0]),
            _ => {
                let ratio = row[0].zip(row[1]).map(|(a, b)| b.us.median / a.us.median);
                let ratio = ratio.map_or(" ".repeat(7), |ratio| format!("{ratio:7.3}"));
                format!("{} {} {ratio}", us(row[0]), us(row[1]))
            }
        };
        let step = row[1].or(row[0]).expect("a row has a step");
        let trusted = row.iter().flatten().all(|s| s.us.trusted);
        let spread = row.iter().flatten().map(|s| s.us.spread()).fold(0.0, f64::max);
        let kernel = match row {
            [Some(a), Some(b)] if a.kernel != b.kernel => format!("{} → {}", a.kernel, b.kernel),
            _ => step.kernel.to_owned(),
        };
        format!(
            "{times} {:10.2} {:7.0} % {:5.0} %  {}  {kernel}{}",
            step.bound_us,
            100.0 * step.bound_us / step.us.median,
            100.0 * spread,
            step.dispatch.label,
            if trusted { "" } else { "  (not trustworthy)" }
        )
    }
}

fn paired<'r>(a: &'r Measured<'r>, b: &'r Measured<'r>) -> Vec<Pair<'r>> {
    let dispatches = |m: &'r Measured<'r>| m.steps.iter().map(|step| step.dispatch).collect::<Vec<_>>();
    let at = |m: &'r Measured<'r>, i: Option<usize>| i.map(|i| &m.steps[i]);
    pairs(&dispatches(a), &dispatches(b)).into_iter().map(|(i, j)| [at(a, i), at(b, j)]).collect()
}

fn line(f: &Figure) -> String {
    format!(
        "{:10.1} µs median, p10 {:.1}, p90 {:.1}, spread {:.0} %, {} runs and {} discarded{}",
        f.median,
        f.p10,
        f.p90,
        100.0 * f.spread(),
        f.n,
        f.discarded,
        if f.trusted { "" } else { ": not trustworthy" }
    )
}

fn side(m: &Measured<'_>) -> Value {
    let column = |i: usize| m.runs.rows.iter().map(|row| row[i]).collect::<Vec<_>>();
    let step = |s: &TimedStep<'_>| json!({ "label": s.dispatch.label, "kernel": s.kernel, "us": s.us, "bound_us": s.bound_us });
    json!({
        "name": m.name, "dispatches": m.dispatches, "barriers": m.barriers, "device": m.device, "host": m.host,
        "device_us": column(0), "host_us": column(1), "bound_us": m.bound_us,
        "steps": m.steps.iter().map(step).collect::<Value>(),
    })
}
