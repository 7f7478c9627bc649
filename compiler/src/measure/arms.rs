//! What can be measured of a program on a device: whole runs, and steps one by one. Inputs and outputs stay on the device.

use super::Arm;
use crate::exec::{ExecError, Loaded, Repetition, Resident, Session, Value};
use jvc_runtime as rt;
use std::time::Instant;

/// Runs as they are. A row: microseconds by the device's clock, from the first step's start to the last one's end, and by the host's, from
/// the call to its return; of one repetition.
pub struct WholeRuns<'a> {
    /// The recording.
    pub session: Session<'a>,
    resident: Resident,
    n_repetitions: f64,
}

impl<'a> WholeRuns<'a> {
    /// Loads inputs into a session of [`Loaded::timed_session`].
    ///
    /// # Errors
    /// Inputs that do not fit, or the runtime's.
    pub fn new(
        gpu: &rt::Gpu,
        mut session: Session<'a>,
        repetition: Repetition,
        inputs: &[Value],
    ) -> Result<WholeRuns<'a>, ExecError> {
        let resident = session.make_resident(gpu, inputs)?;
        let n_repetitions = f64::from(repetition.chained * repetition.side_by_side);
        Ok(WholeRuns { session, resident, n_repetitions })
    }
}

impl Arm for WholeRuns<'_> {
    fn rows(&mut self, n_runs: u32) -> Result<Vec<Vec<f64>>, ExecError> {
        let mut row = || {
            self.session.reset();
            let started = Instant::now();
            self.session.run_resident(&self.resident)?;
            let host = started.elapsed().as_secs_f64() * 1e6;
            let device = self.session.device_ns()? / 1e3;
            Ok([device, host].map(|us| us / self.n_repetitions).to_vec())
        };
        (0..n_runs).map(|_| row()).collect()
    }
}

/// Steps with a barrier after each. A row: microseconds of each, with the drain at its barrier.
pub struct TimedSteps<'a> {
    session: Session<'a>,
    resident: Resident,
}

impl<'a> TimedSteps<'a> {
    /// Records an entry point, loads its inputs, and runs it once: a first run finds nothing in any cache. Arenas as of
    /// [`Loaded::stepped_session`].
    ///
    /// # Errors
    /// Inputs that do not fit, or the runtime's.
    pub fn new(
        gpu: &rt::Gpu,
        loaded: &Loaded<'a>,
        (entry, arenas): (usize, Option<&rt::Arenas>),
        inputs: &[Value],
    ) -> Result<TimedSteps<'a>, ExecError> {
        let mut session = loaded.stepped_session(entry, arenas)?;
        let resident = session.make_resident(gpu, inputs)?;
        let mut steps = TimedSteps { session, resident };
        steps.rows(1)?;
        Ok(steps)
    }
}

impl Arm for TimedSteps<'_> {
    fn rows(&mut self, n_runs: u32) -> Result<Vec<Vec<f64>>, ExecError> {
        let mut row = || {
            self.session.reset();
            self.session.run_resident(&self.resident)?;
            Ok(self.session.steps_ns()?.into_iter().map(|ns| ns / 1e3).collect())
        };
        (0..n_runs).map(|_| row()).collect()
    }
}
