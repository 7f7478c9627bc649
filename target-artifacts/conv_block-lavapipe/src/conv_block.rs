//! Entry point `conv_block`: its inputs, outputs and session.

mod steps;

use crate::checks::len;
use jvc_runtime::{EntryDesc, Error, IoDesc, Session, Ticket, bytes_of, bytes_of_mut};

/// What the runtime is told.
pub(crate) static ENTRY: EntryDesc<'static> = EntryDesc {
    name: "conv_block",
    arena_bytes: &[6144],
    io: &[input(2652), output(2016), output(32)],
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

/// Inputs of `conv_block`.
#[derive(Debug, Clone, Copy)]
pub struct ConvBlockInputs<'a> {
    /// `f32[1, 3, 13, 17]`, row-major.
    pub image: &'a [f32],
}

/// Outputs of `conv_block`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConvBlockOutputs {
    /// `f32[1, 8, 7, 9]`, row-major.
    pub output_0: Vec<f32>,
    /// `f32[1, 8]`, row-major.
    pub output_1: Vec<f32>,
}

/// A run in flight.
#[derive(Debug)]
#[must_use = "its slot stays taken until it is waited for or cancelled"]
pub struct ConvBlockTicket {
    ticket: Ticket,
}

/// `conv_block`, recorded and ready to run.
pub struct ConvBlockSession {
    session: Session,
}

impl ConvBlockSession {
    /// Bytes of device memory of each run in flight: arena, inputs and outputs, at the largest sizes.
    pub const SLOT_BYTES: u64 = 10844;

    /// Bytes of device memory of the state that all runs of a session share.
    pub const STATE_BYTES: u64 = 0;

    pub(crate) fn new(session: Session) -> Self {
        Self { session }
    }

    /// Runs and waits.
    ///
    /// # Errors
    /// An argument that does not fit, before anything happens; a device that was lost.
    pub fn run(&mut self, inputs: &ConvBlockInputs<'_>) -> Result<ConvBlockOutputs, Error> {
        let mut outputs = ConvBlockOutputs::default();
        self.run_into(inputs, &mut outputs)?;
        Ok(outputs)
    }

    /// Runs and waits. Outputs keep their memory from call to call.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_into(
        &mut self,
        inputs: &ConvBlockInputs<'_>,
        outputs: &mut ConvBlockOutputs,
    ) -> Result<(), Error> {
        let ticket = self.submit(inputs)?;
        self.wait(ticket, outputs)
    }

    /// Starts a run in a free slot and returns at once; the inputs have been copied then.
    ///
    /// # Errors
    /// As `run`; also when every slot is in flight.
    pub fn submit(&mut self, inputs: &ConvBlockInputs<'_>) -> Result<ConvBlockTicket, Error> {
        len("image", inputs.image.len(), 663)?;
        let table = [];
        let bytes = [bytes_of(inputs.image)];
        let output_bytes = [2016, 32];
        let ticket = self.session.submit(&table, &bytes, &output_bytes)?;
        Ok(ConvBlockTicket { ticket })
    }

    /// Waits for a run, copies its outputs and frees its slot.
    ///
    /// # Errors
    /// A device that was lost, with the step that ran.
    pub fn wait(
        &mut self,
        ticket: ConvBlockTicket,
        outputs: &mut ConvBlockOutputs,
    ) -> Result<(), Error> {
        outputs.output_0.resize(504, 0.0);
        outputs.output_1.resize(8, 0.0);
        let mut targets =
            [bytes_of_mut(&mut outputs.output_0), bytes_of_mut(&mut outputs.output_1)];
        self.session.wait(ticket.ticket, &mut targets)
    }

    /// True once a run has finished; it still has to be waited for.
    ///
    /// # Errors
    /// A device that was lost.
    pub fn is_done(&self, ticket: &ConvBlockTicket) -> Result<bool, Error> {
        self.session.is_done(&ticket.ticket)
    }

    /// Gives up a run's outputs: its slot becomes free when the run has finished.
    pub fn cancel(&mut self, ticket: ConvBlockTicket) {
        self.session.cancel(ticket.ticket);
    }

    /// The runtime's session: memory report, external buffers, step labels.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }
}
