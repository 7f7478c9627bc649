//! Entry point `scan`: its inputs, outputs and session.

mod steps;

use crate::checks::len;
use jvc_runtime::{EntryDesc, Error, IoDesc, Session, Ticket, bytes_of, bytes_of_mut};

/// What the runtime is told.
pub(crate) static ENTRY: EntryDesc<'static> = EntryDesc {
    name: "scan",
    arena_bytes: &[1280],
    io: &[input(160), input(32), output(32), output(160)],
    table_words: 0,
    state_bytes: 0,
    state_init: &[],
    record: &steps::record,
};

const fn input(max_bytes: u64) -> IoDesc {
    IoDesc { max_bytes, output: false }
}

const fn output(max_bytes: u64) -> IoDesc {
    IoDesc { max_bytes, output: true }
}

/// Inputs of `scan`.
#[derive(Debug, Clone, Copy)]
pub struct ScanInputs<'a> {
    /// `f32[5, 2, 4]`, row-major.
    pub xs: &'a [f32],
    /// `f32[2, 4]`, row-major.
    pub h: &'a [f32],
}

/// Outputs of `scan`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScanOutputs {
    /// `f32[2, 4]`, row-major.
    pub output_0: Vec<f32>,
    /// `f32[5, 2, 4]`, row-major.
    pub output_1: Vec<f32>,
}

/// A run in flight.
#[derive(Debug)]
#[must_use = "its slot stays taken until it is waited for or cancelled"]
pub struct ScanTicket {
    ticket: Ticket,
}

/// `scan`, recorded and ready to run.
pub struct ScanSession {
    session: Session,
}

impl ScanSession {
    pub(crate) fn new(session: Session) -> Self {
        Self { session }
    }

    /// Runs and waits.
    ///
    /// # Errors
    /// An argument that does not fit, before anything happens; a device that was lost.
    pub fn run(&mut self, inputs: &ScanInputs<'_>) -> Result<ScanOutputs, Error> {
        let mut outputs = ScanOutputs::default();
        self.run_into(inputs, &mut outputs)?;
        Ok(outputs)
    }

    /// Runs and waits. Outputs keep their memory from call to call.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_into(
        &mut self,
        inputs: &ScanInputs<'_>,
        outputs: &mut ScanOutputs,
    ) -> Result<(), Error> {
        let ticket = self.submit(inputs)?;
        self.wait(ticket, outputs)
    }

    /// Starts a run in a free slot and returns at once; the inputs have been copied then.
    ///
    /// # Errors
    /// As `run`; also when every slot is in flight.
    pub fn submit(&mut self, inputs: &ScanInputs<'_>) -> Result<ScanTicket, Error> {
        len("xs", inputs.xs.len(), 40)?;
        len("h", inputs.h.len(), 8)?;
        let table = [];
        let bytes = [bytes_of(inputs.xs), bytes_of(inputs.h)];
        let output_bytes = [32, 160];
        let ticket = self.session.submit(&table, &bytes, &output_bytes)?;
        Ok(ScanTicket { ticket })
    }

    /// Waits for a run, copies its outputs and frees its slot.
    ///
    /// # Errors
    /// A device that was lost, with the step that ran.
    pub fn wait(&mut self, ticket: ScanTicket, outputs: &mut ScanOutputs) -> Result<(), Error> {
        outputs.output_0.resize(8, 0.0);
        outputs.output_1.resize(40, 0.0);
        let mut targets =
            [bytes_of_mut(&mut outputs.output_0), bytes_of_mut(&mut outputs.output_1)];
        self.session.wait(ticket.ticket, &mut targets)
    }

    /// True once a run has finished; it still has to be waited for.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn is_done(&self, ticket: &ScanTicket) -> Result<bool, Error> {
        self.session.is_done(&ticket.ticket)
    }

    /// Gives up a run's outputs: its slot becomes free when the run has finished.
    pub fn cancel(&mut self, ticket: ScanTicket) {
        self.session.cancel(ticket.ticket);
    }

    /// The runtime's session: memory report, external buffers, step labels.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }
}
