//! Measuring so that figures can be trusted: what is compared takes turns, a fixed load before and after each sample tells how fast the
//! device's clock was, samples beside one that is off its plateau are discarded and counted, and what scatters is marked.

mod arms;
mod load;

pub use arms::{TimedSteps, WholeRuns};
pub use load::{FixedLoad, LoadError};

use crate::exec::ExecError;
use serde::Serialize;
use std::time::Duration;

/// Something to measure. Each run gives a row of numbers, always as many.
pub trait Arm {
    /// Rows of so many runs.
    ///
    /// # Errors
    /// Those of the runs.
    fn rows(&mut self, n_runs: u32) -> Result<Vec<Vec<f64>>, ExecError>;
}

/// Tells how fast the device is at the moment.
pub trait Clock {
    /// Microseconds that a load takes which is always the same.
    ///
    /// # Errors
    /// Those of the load.
    fn load_us(&mut self) -> Result<f64, ExecError>;
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Samples of each arm.
    pub rounds: u32,
    /// Runs of a sample.
    pub runs: u32,
    /// A sample counts if the fixed load, before and after it, took as long as it mostly does, up to this share.
    pub slack: f64,
    /// How long the fixed load runs before everything, for the clock to rise, by its own times.
    pub warm_up: Duration,
}

/// Tries of a sample that the clock spoils.
const ATTEMPTS: u32 = 3;
/// How long the fixed load runs before another try.
const RECOVERY: Duration = Duration::from_millis(50);
/// A figure whose middle four fifths spread wider, of the median, is not to be trusted.
const SPREAD: f64 = 0.3;

/// The samples of an arm.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples {
    /// A row a run; of all runs where the clock was off for all of them.
    pub rows: Vec<Vec<f64>>,
    /// Runs that do not count, since the clock was off.
    pub discarded: usize,
    /// No more runs were discarded than kept.
    pub steady: bool,
}

/// What was measured, and what the fixed load mostly took, 10⁻⁶ s.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken {
    /// By arm.
    pub arms: Vec<Samples>,
    /// Median of the fixed load: the clock's plateau. Its least would be that of a moment.
    pub load_us: f64,
}

struct Sample {
    rows: Vec<Vec<f64>>,
    /// Of the fixed load, before and after.
    loads_us: [f64; 2],
}

impl Sample {
    fn is_at(&self, plateau: f64, slack: f64) -> bool {
        self.loads_us.iter().all(|us| (us / plateau - 1.0).abs() <= slack)
    }
}

/// Samples of all arms in turns, forwards in one round and backwards in the next. A sample that the clock spoils is taken again.
///
/// # Errors
/// Those of the arms and of the clock.
pub fn in_turns(arms: &mut [&mut dyn Arm], clock: &mut dyn Clock, sampling: &Sampling) -> Result<Taken, ExecError> {
    let mut before = warm_up(clock, sampling.warm_up)?;
    let mut loads = vec![before];
    let mut samples: Vec<Vec<Sample>> = arms.iter().map(|_| vec![]).collect();
    for round in 0..sampling.rounds {
        let forwards = 0..arms.len();
        let order: Vec<usize> = if round.is_multiple_of(2) { forwards.collect() } else { forwards.rev().collect() };
        for arm in order {
            for attempt in 1..=ATTEMPTS {
                let rows = arms[arm].rows(sampling.runs)?;
                let after = clock.load_us()?;
                loads.push(after);
                let sample = Sample { rows, loads_us: [before, after] };
                let good = sample.is_at(median(&loads), sampling.slack);
                samples[arm].push(sample);
                before = after;
                if good || attempt == ATTEMPTS {
                    break;
                }
                before = warm_up(clock, RECOVERY)?;
                loads.push(before);
            }
        }
    }
    let load_us = median(&loads);
    let arms = samples.into_iter().map(|all| kept(all, load_us, sampling.slack)).collect();
    Ok(Taken { arms, load_us })
}

/// Lets the load run for so long, and says what it took at last.
fn warm_up(clock: &mut dyn Clock, least: Duration) -> Result<f64, ExecError> {
    let mut elapsed = 0.0;
    loop {
        let us = clock.load_us()?;
        elapsed += us;
        if elapsed >= least.as_secs_f64() * 1e6 {
            return Ok(us);
        }
    }
}

fn kept(all: Vec<Sample>, plateau: f64, slack: f64) -> Samples {
    let (good, bad): (Vec<Sample>, Vec<Sample>) = all.into_iter().partition(|s| s.is_at(plateau, slack));
    let n_rows = |samples: &[Sample]| samples.iter().map(|s| s.rows.len()).sum::<usize>();
    let (n_good, discarded) = (n_rows(&good), n_rows(&bad));
    let rows = if n_good > 0 { good } else { bad };
    Samples { rows: rows.into_iter().flat_map(|s| s.rows).collect(), discarded, steady: n_good >= discarded }
}

impl Samples {
    /// What is told of the numbers that `of` makes of the rows.
    pub fn figure(&self, of: impl Fn(&[f64]) -> f64) -> Figure {
        let mut sorted: Vec<f64> = self.rows.iter().map(|row| of(row)).collect();
        sorted.sort_by(f64::total_cmp);
        let [median, p10, p90] = [0.5, 0.1, 0.9].map(|share| quantile(&sorted, share));
        let trusted = self.steady && p90 - p10 <= SPREAD * median;
        Figure { median, p10, p90, n: sorted.len(), discarded: self.discarded, trusted }
    }
}

/// Some number over all runs that count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// The middle one.
    pub median: f64,
    /// A tenth are less.
    pub p10: f64,
    /// A tenth are more.
    pub p90: f64,
    /// Runs that count.
    pub n: usize,
    /// Runs that do not.
    pub discarded: usize,
    /// The clock was steady, and runs scatter little.
    pub trusted: bool,
}

impl Figure {
    /// Width of the middle four fifths, of the median.
    pub fn spread(&self) -> f64 {
        (self.p90 - self.p10) / self.median
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// The value that a share of all is not above; NaN for nothing.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted.get((sorted.len().saturating_sub(1) as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// Writes down who was measured.
    struct Logged(char, Rc<RefCell<String>>);

    impl Arm for Logged {
        fn rows(&mut self, n_runs: u32) -> Result<Vec<Vec<f64>>, ExecError> {
            self.1.borrow_mut().push(self.0);
            let at = self.1.borrow().len() as f64;
            Ok((0..n_runs).map(|_| vec![at, -at]).collect())
        }
    }

    /// A clock of these loads, over and over.
    struct Loads(Vec<f64>, usize);

    impl Clock for Loads {
        fn load_us(&mut self) -> Result<f64, ExecError> {
            self.1 += 1;
            Ok(self.0[(self.1 - 1) % self.0.len()])
        }
    }

    fn taken(loads: &[f64], rounds: u32) -> (Taken, String) {
        let log = Rc::new(RefCell::new(String::new()));
        let (mut a, mut b) = (Logged('a', log.clone()), Logged('b', log.clone()));
        let sampling = Sampling { rounds, runs: 2, slack: 0.1, warm_up: Duration::ZERO };
        let mut clock = Loads(loads.to_vec(), 0);
        let taken = in_turns(&mut [&mut a, &mut b], &mut clock, &sampling).expect("nothing fails");
        (taken, log.take())
    }

    #[test]
    fn arms_take_turns_in_both_orders() {
        let (taken, log) = taken(&[100.0, 105.0], 3);
        assert_eq!(log, "abbaab");
        assert!([100.0, 105.0].contains(&taken.load_us));
        for arm in &taken.arms {
            assert_eq!((arm.rows.len(), arm.discarded, arm.steady), (6, 0, true));
        }
    }

    #[test]
    fn samples_beside_a_clock_that_is_off_are_taken_again_and_counted() {
        // Warm-up, then the load behind the first sample of `a` is slow; the clock recovers within one more load or several.
        let log = Rc::new(RefCell::new(String::new()));
        let mut a = Logged('a', log.clone());
        let mut slow_once = Loads(std::iter::once(100.0).chain([150.0]).chain(vec![100.0; 1 << 20]).collect(), 0);
        let sampling = Sampling { rounds: 2, runs: 3, slack: 0.1, warm_up: Duration::ZERO };
        let taken = in_turns(&mut [&mut a], &mut slow_once, &sampling).expect("nothing fails");
        assert_eq!(log.take(), "aaa");
        assert_eq!((taken.arms[0].rows.len(), taken.arms[0].discarded, taken.arms[0].steady), (6, 3, true));
        assert!(taken.arms[0].rows.iter().all(|row| row[0] > 1.0), "the first sample does not count");
    }

    #[test]
    fn what_counts_is_beside_the_plateau_on_both_sides_neither_slower_nor_faster() {
        let sample = |at: f64, loads_us| Sample { rows: vec![vec![at]], loads_us };
        let all = vec![sample(1.0, [100.0, 112.0]), sample(2.0, [91.0, 109.0]), sample(3.0, [88.0, 100.0])];
        assert_eq!(kept(all, 100.0, 0.1), Samples { rows: vec![vec![2.0]], discarded: 2, steady: false });
        let off = vec![sample(1.0, [150.0, 150.0])];
        assert_eq!(kept(off, 100.0, 0.1), Samples { rows: vec![vec![1.0]], discarded: 1, steady: false });
    }

    /// A clock that is higher for a moment does not make everything else look slow.
    #[test]
    fn a_moment_of_a_fast_clock_spoils_only_what_is_beside_it() {
        let log = Rc::new(RefCell::new(String::new()));
        let mut a = Logged('a', log.clone());
        let mut fast_once = Loads([100.0, 101.0, 80.0].into_iter().chain(vec![100.0; 1 << 20]).collect(), 0);
        let sampling = Sampling { rounds: 6, runs: 1, slack: 0.1, warm_up: Duration::ZERO };
        let taken = in_turns(&mut [&mut a], &mut fast_once, &sampling).expect("nothing fails");
        assert_eq!((taken.load_us, taken.arms[0].rows.len(), taken.arms[0].discarded), (100.0, 6, 1));
    }

    #[test]
    fn figures_are_of_the_sample_and_marked_where_it_scatters() {
        let of = |values: &[f64], steady| {
            let rows = values.iter().map(|&v| vec![v, 2.0 * v]).collect();
            Samples { rows, discarded: 1, steady }.figure(|row| row[1])
        };
        let calm: Vec<f64> = (0..11).map(|i| 100.0 + f64::from(i)).collect();
        let figure = of(&calm, true);
        assert_eq!((figure.median, figure.p10, figure.p90, figure.n), (210.0, 202.0, 218.0, 11));
        assert!(figure.trusted && (figure.spread() - 16.0 / 210.0).abs() < 1e-12);
        assert!(!of(&calm, false).trusted);
        assert!(!of(&[100.0, 100.0, 180.0, 60.0, 100.0], true).trusted);
    }
}
