//! `jvc bench`: how long a run takes, by the device's clock and by the host's.

use super::{CommandError, Console, Outcome, load, run::name_outputs};
use crate::cli::{BenchArgs, Format};
use crate::exec::{Loaded, Repetition, Resident, Session};
use crate::tensor_file::print_tensors;
use jvc_runtime as rt;
use serde_json::json;
use std::io::{BufRead, stdin};
use std::time::{Duration, Instant};

pub(super) fn run(args: &BenchArgs, console: &mut Console<'_>) -> Result<Outcome, CommandError> {
    let ready = load::in_memory(&args.what, console)?;
    let loaded = Loaded::new(&ready.gpu, &ready.compiled, &rt::CacheDir::Default)?;
    let repetition = Repetition { chained: args.chain, side_by_side: args.side_by_side, apart: false };
    let mut session = loaded.timed_session(0, repetition)?;
    let outputs = session.run(&ready.inputs)?;
    if let Some(path) = &args.output {
        let named = name_outputs(&ready.compiled.graphs[0], outputs, &session.symbols());
        jvc_codegen::artifact::write_single(path, &print_tensors(&named)?)?;
    }
    let resident = session.make_resident(&ready.gpu, &ready.inputs)?;
    let mut bench = Bench { session, resident, n_repetitions: f64::from(args.chain * args.side_by_side) };
    bench.warm_up(Duration::from_millis(args.warmup))?;
    if args.serve {
        serve(&mut bench, stdin().lock(), console)?;
        return Ok(Outcome::Fine);
    }
    let times = bench.time(args.runs)?;
    report(args.format, &bench, &times, &ready.gpu.info().name, console)?;
    Ok(Outcome::Fine)
}

struct Bench<'a> {
    session: Session<'a>,
    resident: Resident,
    /// Of the program in a run.
    n_repetitions: f64,
}

/// Microseconds of each run's repetition.
#[derive(Default)]
struct Times {
    /// From the first step's start to the last one's end.
    device: Vec<f64>,
    /// From the call to its return: submission and waiting; inputs and outputs stay on the device.
    host: Vec<f64>,
}

impl Bench<'_> {
    fn warm_up(&mut self, least: Duration) -> Result<(), CommandError> {
        let started = Instant::now();
        while started.elapsed() < least {
            self.time(1)?;
        }
        Ok(())
    }

    fn time(&mut self, n_runs: u32) -> Result<Times, CommandError> {
        let mut times = Times::default();
        for _ in 0..n_runs {
            self.session.reset();
            let started = Instant::now();
            self.session.run_resident(&self.resident)?;
            times.host.push(started.elapsed().as_secs_f64() * 1e6 / self.n_repetitions);
            times.device.push(self.session.device_ns()? / 1e3 / self.n_repetitions);
        }
        Ok(times)
    }
}

/// Says what the program is in a first line, then answers each number of runs by their times, until the input ends.
fn serve(bench: &mut Bench<'_>, input: impl BufRead, console: &mut Console<'_>) -> Result<(), CommandError> {
    let counts = json!({ "dispatches": bench.session.n_dispatches(), "barriers": bench.session.n_barriers() });
    writeln!(console.out, "{counts}")?;
    console.out.flush()?;
    for line in input.lines() {
        let line = line?;
        let n_runs = line.trim().parse().map_err(|e| CommandError::Usage(format!("`{line}` is no number: {e}")))?;
        let times = bench.time(n_runs)?;
        writeln!(console.out, "{}", json!({ "device_us": times.device, "host_us": times.host }))?;
        console.out.flush()?;
    }
    Ok(())
}

fn report(
    format: Format,
    bench: &Bench<'_>,
    times: &Times,
    gpu: &str,
    console: &mut Console<'_>,
) -> Result<(), CommandError> {
    let (n_dispatches, n_barriers) = (bench.session.n_dispatches(), bench.session.n_barriers());
    if format == Format::Json {
        let body = json!({
            "gpu": gpu, "dispatches": n_dispatches, "barriers": n_barriers, "device_us": times.device, "host_us": times.host,
        });
        writeln!(console.out, "{body}")?;
        return Ok(());
    }
    writeln!(console.out, "{n_dispatches} dispatches, {n_barriers} barriers on {gpu}, {} runs", times.device.len())?;
    for (clock, times) in [("device", &times.device), ("host", &times.host)] {
        let at = |share| quantile(times, share);
        writeln!(
            console.out,
            "{clock}: median {:.1} µs, p10 {:.1}, p90 {:.1}, spread {:.0} %",
            at(0.5),
            at(0.1),
            at(0.9),
            100.0 * (at(0.9) - at(0.1)) / at(0.5)
        )?;
    }
    Ok(())
}

/// The value that a share of all is not above; `times` is not empty.
fn quantile(times: &[f64], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_values_of_the_sample_in_order() {
        let times = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!([0.0, 0.5, 1.0].map(|share| quantile(&times, share)), [1.0, 3.0, 5.0]);
        assert_eq!(quantile(&[7.0], 0.9), 7.0);
    }
}
