//! Entry point `mlp`: its inputs, outputs and session.

mod steps;

use crate::checks::len;
use jvc_runtime::{EntryDesc, Error, IoDesc, Session, Ticket, bytes_of, bytes_of_mut};

/// What the runtime is told.
pub(crate) static ENTRY: EntryDesc<'static> = EntryDesc {
    name: "mlp",
    arena_bytes: &[256],
    io: &[input(40), output(24)],
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

/// Inputs of `mlp`.
#[derive(Debug, Clone, Copy)]
pub struct MlpInputs<'a> {
    /// `f32[2, 5]`, row-major.
    pub x: &'a [f32],
}

/// Outputs of `mlp`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MlpOutputs {
    /// `f32[2, 3]`, row-major.
    pub output: Vec<f32>,
}

/// A run in flight.
#[derive(Debug)]
#[must_use = "its slot stays taken until it is waited for or cancelled"]
pub struct MlpTicket {
    ticket: Ticket,
}

/// `mlp`, recorded and ready to run.
pub struct MlpSession {
    session: Session,
}

impl MlpSession {
    /// Bytes of device memory of each run in flight: arena, inputs and outputs, at the largest sizes.
    pub const SLOT_BYTES: u64 = 320;

    /// Bytes of device memory of the state that all runs of a session share.
    pub const STATE_BYTES: u64 = 0;

    pub(crate) fn new(session: Session) -> Self {
        Self { session }
    }

    /// Runs and waits.
    ///
    /// # Errors
    /// An argument that does not fit, before anything happens; a device that was lost.
    pub fn run(&mut self, inputs: &MlpInputs<'_>) -> Result<MlpOutputs, Error> {
        let mut outputs = MlpOutputs::default();
        self.run_into(inputs, &mut outputs)?;
        Ok(outputs)
    }

    /// Runs and waits. Outputs keep their memory from call to call.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_into(
        &mut self,
        inputs: &MlpInputs<'_>,
        outputs: &mut MlpOutputs,
    ) -> Result<(), Error> {
        let ticket = self.submit(inputs)?;
        self.wait(ticket, outputs)
    }

    /// Starts a run in a free slot and returns at once; the inputs have been copied then.
    ///
    /// # Errors
    /// As `run`; also when every slot is in flight.
    pub fn submit(&mut self, inputs: &MlpInputs<'_>) -> Result<MlpTicket, Error> {
        len("x", inputs.x.len(), 10)?;
        let table = [];
        let bytes = [bytes_of(inputs.x)];
        let output_bytes = [24];
        let ticket = self.session.submit(&table, &bytes, &output_bytes)?;
        Ok(MlpTicket { ticket })
    }

    /// Waits for a run, copies its outputs and frees its slot.
    ///
    /// # Errors
    /// A device that was lost, with the step that ran.
    pub fn wait(&mut self, ticket: MlpTicket, outputs: &mut MlpOutputs) -> Result<(), Error> {
        outputs.output.resize(6, 0.0);
        let mut targets = [bytes_of_mut(&mut outputs.output)];
        self.session.wait(ticket.ticket, &mut targets)
    }

    /// True once a run has finished; it still has to be waited for.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn is_done(&self, ticket: &MlpTicket) -> Result<bool, Error> {
        self.session.is_done(&ticket.ticket)
    }

    /// Gives up a run's outputs: its slot becomes free when the run has finished.
    pub fn cancel(&mut self, ticket: MlpTicket) {
        self.session.cancel(ticket.ticket);
    }

    /// The runtime's session: memory report, external buffers, step labels.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }
}
