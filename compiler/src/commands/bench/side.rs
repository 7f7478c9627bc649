//! One of the things that are measured: a program or a crate, loaded, with its recordings.

use crate::commands::{CommandError, load};
use crate::exec::{HostTensor, Loaded, Repetition};
use crate::measure::{Arm, Figure, Samples, TimedSteps, WholeRuns};
use crate::predict;
use jvc_codegen::plan::{Dispatch, Step};
use jvc_runtime as rt;
use std::collections::BTreeMap;

/// What all sides are given.
pub(super) struct Given<'g> {
    pub(super) gpu: &'g rt::Gpu,
    /// Inputs, `in.N`; else they are made up.
    pub(super) tensors: Option<&'g BTreeMap<String, HostTensor>>,
    pub(super) repetition: Repetition,
    /// Steps are timed too.
    pub(super) steps: bool,
}

pub(super) struct Side<'a> {
    subject: &'a load::Subject,
    pub(super) runs: WholeRuns<'a>,
    steps: Option<TimedSteps<'a>>,
    /// Of the first run.
    pub(super) outputs: BTreeMap<String, HostTensor>,
}

impl<'a> Side<'a> {
    /// Loads it and runs it once.
    pub(super) fn new(subject: &'a load::Subject, given: &Given<'_>) -> Result<Side<'a>, CommandError> {
        let loaded: Loaded<'a> = subject.load(given.gpu)?;
        let inputs = subject.inputs(given.tensors)?;
        let mut session = loaded.timed_session(0, given.repetition)?;
        let outputs = session.run(&inputs)?;
        let outputs = subject.named(outputs, &session.symbols());
        let runs = WholeRuns::new(given.gpu, session, given.repetition, &inputs)?;
        let steps = given.steps.then(|| TimedSteps::new(given.gpu, &loaded, (0, None), &inputs)).transpose()?;
        Ok(Side { subject, runs, steps, outputs })
    }

    /// What is measured of it.
    pub(super) fn arms(&mut self) -> Vec<&mut dyn Arm> {
        let steps = self.steps.as_mut().map(|steps| steps as &mut dyn Arm);
        std::iter::once(&mut self.runs as &mut dyn Arm).chain(steps).collect()
    }

    /// Takes its samples, in the order of [`Side::arms`], and sums them up.
    pub(super) fn measured(&self, samples: &mut impl Iterator<Item = Samples>) -> Measured<'a> {
        let subject: &'a load::Subject = self.subject;
        let plan = subject.plan();
        let runs = samples.next().expect("samples of its runs");
        let bound = |d: &Dispatch| predict::dispatch_us(d, &plan.kernels[d.kernel as usize], &subject.profile);
        let dispatches: Vec<&'a Dispatch> = plan.entries[0].steps.iter().filter_map(Step::dispatch).collect();
        let steps = self.steps.as_ref().map(|_| {
            let samples = samples.next().expect("samples of its steps");
            let timed = dispatches.iter().enumerate().map(|(i, &dispatch)| {
                let kernel = plan.kernels[dispatch.kernel as usize].name.as_str();
                TimedStep { dispatch, kernel, us: samples.figure(|row| row[i]), bound_us: bound(dispatch) }
            });
            timed.collect()
        });
        Measured {
            name: format!("{} for {}", plan.name, plan.device),
            dispatches: self.runs.session.n_dispatches(),
            barriers: self.runs.session.n_barriers(),
            device: runs.figure(|row| row[0]),
            host: runs.figure(|row| row[1]),
            bound_us: dispatches.iter().map(|d| bound(d)).sum(),
            runs,
            steps: steps.unwrap_or_default(),
        }
    }
}

/// What was measured of a side.
pub(super) struct Measured<'a> {
    pub(super) name: String,
    pub(super) dispatches: usize,
    pub(super) barriers: usize,
    pub(super) runs: Samples,
    pub(super) device: Figure,
    pub(super) host: Figure,
    /// Of all dispatches at best, without what lies between them.
    pub(super) bound_us: f64,
    /// In order; none where they were not timed.
    pub(super) steps: Vec<TimedStep<'a>>,
}

/// A step by itself.
pub(super) struct TimedStep<'a> {
    pub(super) dispatch: &'a Dispatch,
    pub(super) kernel: &'a str,
    pub(super) us: Figure,
    /// The least that it can take by the profile's rates.
    pub(super) bound_us: f64,
}
