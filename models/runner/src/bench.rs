//! The `bench` subcommand: warm-up, repeats, median and spread, as text or JSON.

use serde_json::{Value, json};
use std::fmt;
use std::time::{Duration, Instant};

/// Options of a program's `bench` subcommand.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArgs {
    /// Runs before measuring
    #[arg(long, default_value_t = 3)]
    pub warm_up: usize,
    /// Runs that are measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    /// Runs, and measures each run but those of the warm-up.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn measure<E>(&self, mut run: impl FnMut() -> Result<(), E>) -> Result<Samples, E> {
        (0..self.warm_up).try_for_each(|_| run())?;
        let timed = (0..self.repeats).map(|_| {
            let started = Instant::now();
            run().map(|()| started.elapsed())
        });
        timed.collect::<Result<Vec<_>, E>>().map(Samples::new)
    }
}

/// Durations of repeated runs, sorted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Samples(Vec<Duration>);

impl Samples {
    /// Of at least one run.
    pub fn new(mut durations: Vec<Duration>) -> Self {
        durations.sort();
        Self(durations)
    }

    /// Milliseconds below which this share of the runs stayed, interpolated; not a number without runs.
    pub fn quantile_ms(&self, share: f64) -> f64 {
        let Some(last) = self.0.len().checked_sub(1) else { return f64::NAN };
        let place = share.clamp(0.0, 1.0) * last as f64;
        let [below, above] = [place.floor(), place.ceil()].map(|i| self.0[i as usize].as_secs_f64() * 1e3);
        below + (above - below) * place.fract()
    }

    /// Milliseconds of the run in the middle.
    pub fn median_ms(&self) -> f64 {
        self.quantile_ms(0.5)
    }

    /// Median, p10, p90 and number of runs.
    pub fn to_json(&self) -> Value {
        let (median, p10, p90) = (self.median_ms(), self.quantile_ms(0.1), self.quantile_ms(0.9));
        json!({ "median_ms": median, "p10_ms": p10, "p90_ms": p90, "runs": self.0.len() })
    }
}

/// `12.31 ms (12.20 to 12.94, 20 runs)`: the median, p10 and p90.
impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, p10, p90) = (self.median_ms(), self.quantile_ms(0.1), self.quantile_ms(0.9));
        write!(f, "{median:.2} ms ({p10:.2} to {p90:.2}, {} runs)", self.0.len())
    }
}

/// What a `bench` subcommand prints: facts (model, device, shape), then a line for each thing measured.
#[derive(Debug, Clone, Default)]
pub struct Report {
    facts: Vec<(String, String)>,
    rows: Vec<(String, Samples)>,
}

impl Report {
    /// Adds a fact.
    pub fn fact(&mut self, name: &str, value: impl ToString) {
        self.facts.push((name.to_owned(), value.to_string()));
    }

    /// Adds what was measured.
    pub fn row(&mut self, name: &str, samples: Samples) {
        self.rows.push((name.to_owned(), samples));
    }

    /// All of it as JSON.
    pub fn to_json(&self) -> Value {
        let facts = self.facts.iter().map(|(name, value)| (name.clone(), json!(value)));
        let rows = self.rows.iter().map(|(name, samples)| (name.clone(), samples.to_json()));
        Value::Object(facts.chain(rows).collect())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.facts.iter().try_for_each(|(name, value)| writeln!(f, "{name:<24} {value}"))?;
        self.rows.iter().try_for_each(|(name, samples)| writeln!(f, "{name:<24} {samples}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_where_sorting_says() {
        let samples = Samples::new((1..=11).rev().map(Duration::from_millis).collect());
        assert_eq!([0.0, 0.1, 0.5, 0.9, 1.0].map(|q| samples.quantile_ms(q)), [1.0, 2.0, 6.0, 10.0, 11.0]);
        assert_eq!(Samples::new(vec![Duration::from_millis(1), Duration::from_millis(2)]).median_ms(), 1.5);
    }

    #[test]
    fn the_warm_up_runs_but_is_not_measured_and_errors_stop() {
        let args = BenchArgs { warm_up: 2, repeats: 3, json: true };
        let mut runs = 0;
        let samples = args.measure(|| {
            runs += 1;
            Ok::<(), ()>(())
        });
        assert_eq!(samples.map(|s| s.to_json()["runs"].clone()), Ok(json!(3)));
        assert_eq!(runs, 5);
        assert_eq!(args.measure(|| Err::<(), _>("lost")), Err("lost"));
    }

    #[test]
    fn a_report_has_facts_and_rows_in_both_forms() {
        let mut report = Report::default();
        report.fact("device", "llvmpipe");
        report.row("run", Samples::new(vec![Duration::from_millis(5)]));
        assert_eq!(report.to_json()["run"]["median_ms"], json!(5.0));
        assert!(report.to_string().contains("5.00 ms (5.00 to 5.00, 1 runs)"), "{report}");
    }
}
