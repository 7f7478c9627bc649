//! Sessions: slots with memory and recorded commands, the persistent state they share, and runs.

use std::fmt;
use std::sync::Arc;

use ash::vk;

use crate::error::Error;
use crate::gpu::Stop;
use crate::memory::{Buffer, MemoryKind};
use crate::program::{EntryDesc, IoDesc, Loaded, Model, StateInit};
use crate::recorder::{Extras, Recorder, Recording, SlotMemory};

/// How to make a session.
#[derive(Clone)]
pub struct SessionOptions {
    /// Runs that may be in flight at once. Each has its own arena.
    pub n_slots: usize,
    /// Arenas shared with sessions of other entry points, whose runs are then ordered after each other.
    pub arenas: Option<Arenas>,
    /// Keeps the number of the step that runs in host memory, so that a lost device can be blamed on one step. It serialises all
    /// steps.
    pub trace_steps: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions { n_slots: 1, arenas: None, trace_steps: false }
    }
}

/// Arena chunks, one set per slot.
#[derive(Clone)]
pub struct Arenas(Vec<Arc<Vec<Buffer>>>);

/// A run in flight.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot stays taken until its ticket is waited for or cancelled"]
pub struct Ticket {
    slot: usize,
    value: u64,
}

/// One entry point of a model, recorded and ready to run.
pub struct Session {
    name: String,
    io: Vec<IoDesc>,
    /// Addresses of external buffers, by slot of the I/O table.
    external: Vec<Option<u64>>,
    n_symbols: u32,
    /// Runs are ordered after each other: they share state or arenas.
    ordered: bool,
    slots: Vec<Slot>,
    state: Option<State>,
    pub(crate) model: Arc<Loaded>,
}

struct Slot {
    recording: Recording,
    memory: SlotMemory,
    trace: Option<Buffer>,
    pending: Option<Pending>,
}

struct Pending {
    /// Timeline value of the first part.
    first: u64,
    /// Timeline value of the last part.
    last: u64,
    /// Nobody waits for it any more.
    cancelled: bool,
}

/// Memory that keeps its contents between runs.
struct State {
    buffer: Buffer,
    init: Vec<StateInit>,
    /// The next run starts from the initial state.
    reset: bool,
}

/// Device memory of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryReport {
    /// Weights, shared with all sessions of the model.
    pub weight_bytes: u64,
    /// State, shared by the slots.
    pub state_bytes: u64,
    /// Per slot.
    pub slots: Vec<SlotBytes>,
}

/// Device memory of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotBytes {
    /// Arena chunks.
    pub arena: u64,
    /// Input and output buffers allocated so far.
    pub io: u64,
    /// I/O table and symbol table.
    pub tables: u64,
}

impl Model {
    /// A session with one slot. An error when memory runs out or the entry point's tables are inconsistent.
    pub fn session(&self, entry: &EntryDesc<'_>) -> Result<Session, Error> {
        self.session_with(entry, &SessionOptions::default())
    }

    /// A session with more slots, shared arenas or step tracing. Errors as of [`Model::session`], and for shared arenas that are too
    /// small or too few.
    pub fn session_with(&self, entry: &EntryDesc<'_>, options: &SessionOptions) -> Result<Session, Error> {
        self.0.device.check_alive()?;
        let arenas = match &options.arenas {
            Some(arenas) => arenas.clone(),
            None => self.arenas(&[entry], options.n_slots)?,
        };
        let mut session = Session {
            name: entry.name.to_owned(),
            io: entry.io.to_vec(),
            external: vec![None; entry.io.len()],
            n_symbols: entry.table_words,
            ordered: options.arenas.is_some() || entry.state_bytes > 0,
            slots: Vec::new(),
            state: State::new(&self.0, entry)?,
            model: Arc::clone(&self.0),
        };
        for slot in 0..options.n_slots {
            let arena = arenas.0.get(slot).filter(|arena| fits(arena, entry.arena_bytes));
            let arena = arena.ok_or_else(|| Error::Description("shared arenas are too small".to_owned()))?;
            session.add_slot(entry, Arc::clone(arena), options.trace_steps)?;
        }
        Ok(session)
    }

    /// Arenas large enough for each of the entry points, to be shared by their sessions. An error when memory runs out.
    pub fn arenas(&self, entries: &[&EntryDesc<'_>], n_slots: usize) -> Result<Arenas, Error> {
        let mut chunk_bytes: Vec<u64> = Vec::new();
        for entry in entries {
            chunk_bytes.resize(chunk_bytes.len().max(entry.arena_bytes.len()), 0);
            chunk_bytes.iter_mut().zip(entry.arena_bytes).for_each(|(most, bytes)| *most = (*most).max(*bytes));
        }
        let chunk = |bytes: &u64| Buffer::new(&self.0.device, *bytes, MemoryKind::Device, "an arena chunk");
        let slot = |_| chunk_bytes.iter().map(chunk).collect::<Result<Vec<_>, _>>().map(Arc::new);
        (0..n_slots).map(slot).collect::<Result<Vec<_>, _>>().map(Arenas)
    }
}

fn fits(arena: &[Buffer], need: &[u64]) -> bool {
    arena.len() >= need.len() && arena.iter().zip(need).all(|(buffer, need)| buffer.bytes() >= *need)
}

impl Session {
    /// Runs and waits. `table` holds the words of the symbol table; inputs and outputs come in the order of the I/O table. The
    /// outputs' lengths are those of the tensors at these shapes. Ports bound by [`Session::bind_external`] take empty slices.
    ///
    /// [`Error::Argument`] and [`Error::SlotsBusy`] come before anything has happened.
    pub fn run(&mut self, table: &[u32], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        let ticket = self.start(table, inputs, outputs.iter().map(|output| output.len() as u64))?;
        self.wait(ticket, outputs)
    }

    /// Starts a run in a free slot and returns at once, with the inputs copied. Errors as of [`Session::run`].
    pub fn submit(&mut self, table: &[u32], inputs: &[&[u8]], output_bytes: &[u64]) -> Result<Ticket, Error> {
        self.start(table, inputs, output_bytes.iter().copied())
    }

    /// Waits for a run, copies its outputs and frees its slot. [`Error::DeviceLost`] names the step.
    pub fn wait(&mut self, ticket: Ticket, outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        self.wait_for(&ticket)?;
        self.slots[ticket.slot].pending = None;
        let ports = self.io.iter().enumerate().filter(|(_, desc)| desc.output).map(|(port, _)| port);
        if ports.clone().count() != outputs.len() {
            return Err(self.argument("outputs", ports.count(), outputs.len()));
        }
        for (port, output) in ports.zip(outputs) {
            match (self.external[port], &self.slots[ticket.slot].memory.io[port]) {
                (None, Some(buffer)) => buffer.read(0, output)?,
                _ if output.is_empty() => {}
                _ => return Err(self.argument("bytes of an externally bound output", 0, output.len())),
            }
        }
        Ok(())
    }

    /// True once the run has finished; it still has to be waited for. An error when the device was lost.
    pub fn is_done(&self, ticket: &Ticket) -> Result<bool, Error> {
        self.model.device.check_alive()?;
        self.check_ticket(ticket)?;
        Ok(self.model.device.reached() >= ticket.value)
    }

    /// Gives up a run's outputs: its slot becomes free when the run has finished.
    pub fn cancel(&mut self, ticket: Ticket) {
        if let Some(pending) = self.slots.get_mut(ticket.slot).and_then(|slot| slot.pending.as_mut()) {
            pending.cancelled |= pending.last == ticket.value;
        }
    }

    /// The next run starts from the initial state. Costs nothing now, and a fill and some copies on the device then.
    pub fn reset(&mut self) {
        self.state.iter_mut().for_each(|state| state.reset = true);
    }

    /// Lets later runs use an external buffer for a slot of the I/O table, by its device address (a multiple of 16); `None` goes
    /// back to the session's own buffer. Nothing is recorded again. The caller orders its own accesses against the runs, and keeps
    /// the buffer alive. An error when there is no such slot or the address is not aligned.
    pub fn bind_external(&mut self, io: usize, address: Option<u64>) -> Result<(), Error> {
        if io >= self.io.len() {
            return Err(self.argument("slot of the I/O table", format!("less than {}", self.io.len()), io));
        }
        if let Some(address) = address.filter(|address| address % 16 != 0) {
            return Err(self.argument("external address", "a multiple of 16", format!("{address:#x}")));
        }
        self.external[io] = address;
        Ok(())
    }

    /// Waits for a run and reads the words of the symbol table that it has left: sizes that kernels computed.
    pub fn read_table(&mut self, ticket: &Ticket) -> Result<Vec<u32>, Error> {
        self.wait_for(ticket)?;
        let mut bytes = vec![0; self.n_symbols as usize * 4];
        self.slots[ticket.slot].memory.symbols.read(0, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    /// Names of the dispatches, in order.
    pub fn step_labels(&self) -> &[String] {
        self.slots.first().map_or(&[], |slot| slot.recording.labels.as_slice())
    }

    /// An arena chunk of a slot, to be looked at by tests.
    pub fn arena(&self, slot: usize, chunk: usize) -> Option<&Buffer> {
        self.slots.get(slot)?.memory.arena.get(chunk)
    }

    /// The state, to be looked at by tests.
    pub fn state(&self) -> Option<&Buffer> {
        self.state.as_ref().map(|state| &state.buffer)
    }

    /// Steps that the latest run of a slot has finished, if the session traces steps.
    pub fn traced_step(&self, slot: usize) -> Option<u32> {
        let mut word = [0; 4];
        self.slots.get(slot)?.trace.as_ref()?.read(0, &mut word).ok()?;
        Some(u32::from_le_bytes(word))
    }

    /// Fills all arenas with 0xFF bytes, which are NaNs: a result that changes has read memory that no step of its run wrote.
    pub fn poison_arena(&self) -> Result<(), Error> {
        self.slots.iter().flat_map(|slot| slot.memory.arena.iter()).try_for_each(|chunk| chunk.fill(u32::MAX))
    }

    /// Device memory that it takes now.
    pub fn memory(&self) -> MemoryReport {
        let sum = |buffers: &mut dyn Iterator<Item = &Buffer>| buffers.map(Buffer::bytes).sum();
        let slot = |slot: &Slot| SlotBytes {
            arena: sum(&mut slot.memory.arena.iter()),
            io: sum(&mut slot.memory.io.iter().flatten()),
            tables: slot.memory.io_table.bytes() + slot.memory.symbols.bytes(),
        };
        MemoryReport {
            weight_bytes: sum(&mut self.model.weights.iter()),
            state_bytes: self.state.as_ref().map_or(0, |state| state.buffer.bytes()),
            slots: self.slots.iter().map(slot).collect(),
        }
    }

    fn add_slot(&mut self, entry: &EntryDesc<'_>, arena: Arc<Vec<Buffer>>, trace_steps: bool) -> Result<(), Error> {
        let device = &self.model.device;
        let io_table = Buffer::new(device, entry.io.len() as u64 * 8, MemoryKind::Upload, "an I/O table")?;
        let symbols = Buffer::new(device, u64::from(entry.table_words) * 4, MemoryKind::Upload, "a symbol table")?;
        let mut io: Vec<_> = entry.io.iter().map(|_| None).collect();
        if self.model.kernels.use_bindings() {
            // Descriptors are written when recording, so buffers cannot grow later.
            io.iter_mut()
                .zip(entry.io)
                .try_for_each(|(buffer, d)| reserve(&self.model, buffer, d, d.max_bytes).map(drop))?;
        }
        let trace = trace_steps.then(|| Buffer::new(device, 4, MemoryKind::Readback, "a step trace")).transpose()?;
        let memory = SlotMemory { arena, io_table, io, symbols, n_symbols: entry.table_words };
        let trace_word = trace.as_ref().map(|buffer| buffer.handle);
        let extras = Extras { ordered: self.ordered, trace: trace_word, timestamps: None };
        let recording = Recorder::record(&self.model, &memory, self.state(), extras, entry.record)?;
        self.slots.push(Slot { recording, memory, trace, pending: None });
        Ok(())
    }

    /// Records an entry point's steps once more for the first slot, with timestamps.
    pub(crate) fn record_timed(
        &self,
        entry: &EntryDesc<'_>,
        queries: (vk::QueryPool, u32),
    ) -> Result<Recording, Error> {
        let memory = &self.slots.first().ok_or(Error::SlotsBusy { n_slots: 0 })?.memory;
        let extras = Extras { ordered: self.ordered, trace: None, timestamps: Some(queries) };
        Recorder::record(&self.model, memory, self.state(), extras, entry.record)
    }

    /// Runs the first slot with other commands than its own.
    pub(crate) fn run_recording(
        &mut self,
        recording: &mut Recording,
        table: &[u32],
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<(), Error> {
        if self.free_slot()? != 0 {
            return Err(Error::SlotsBusy { n_slots: self.slots.len() });
        }
        std::mem::swap(&mut self.slots[0].recording, recording);
        let result = self.run(table, inputs, outputs);
        std::mem::swap(&mut self.slots[0].recording, recording);
        result
    }

    fn start(
        &mut self,
        table: &[u32],
        inputs: &[&[u8]],
        output_bytes: impl ExactSizeIterator<Item = u64>,
    ) -> Result<Ticket, Error> {
        self.model.device.check_alive()?;
        if table.len() != self.n_symbols as usize {
            return Err(self.argument("symbol table", format!("{} words", self.n_symbols), table.len()));
        }
        let index = self.free_slot()?;
        for word in &self.slots[index].recording.group_words {
            let first = usize::from(*word);
            self.model.device.info.check_groups([table[first], table[first + 1], table[first + 2]])?;
        }
        self.fill_io(index, inputs, output_bytes)?;
        let slot = &self.slots[index];
        for (at, word) in (0..).step_by(4).zip(table) {
            slot.memory.symbols.write(at, &word.to_le_bytes())?;
        }
        slot.trace.iter().try_for_each(|trace| trace.write(0, &[0; 4]))?;
        if let Some(state) = self.state.as_mut().filter(|state| state.reset) {
            state.restore(&self.model)?;
        }
        self.submit_parts(index)
    }

    /// A slot with nothing in flight, waiting for cancelled runs if need be.
    fn free_slot(&mut self) -> Result<usize, Error> {
        if let Some(free) = self.slots.iter().position(|slot| slot.pending.is_none()) {
            return Ok(free);
        }
        let cancelled = |slot: &Slot| slot.pending.as_ref().filter(|p| p.cancelled).map(|p| p.last);
        let oldest = self.slots.iter().enumerate().filter_map(|(i, slot)| Some((cancelled(slot)?, i))).min();
        let (value, slot) = oldest.ok_or(Error::SlotsBusy { n_slots: self.slots.len() })?;
        self.wait_for(&Ticket { slot, value })?;
        self.slots[slot].pending = None;
        Ok(slot)
    }

    /// Makes room for inputs and outputs, copies inputs, and writes all addresses into the I/O table.
    fn fill_io(
        &mut self,
        index: usize,
        inputs: &[&[u8]],
        mut output_bytes: impl ExactSizeIterator<Item = u64>,
    ) -> Result<(), Error> {
        let n_outputs = self.io.iter().filter(|desc| desc.output).count();
        let n_inputs = self.io.len() - n_outputs;
        if inputs.len() != n_inputs {
            return Err(self.argument("inputs", n_inputs, inputs.len()));
        }
        if output_bytes.len() != n_outputs {
            return Err(self.argument("outputs", n_outputs, output_bytes.len()));
        }
        let mut inputs = inputs.iter();
        for (port, desc) in self.io.iter().enumerate() {
            let input = if desc.output { None } else { inputs.next() };
            let bytes = input.map_or_else(|| output_bytes.next().unwrap_or(0), |input| input.len() as u64);
            let external = self.external[port];
            let max_bytes = if external.is_some() { 0 } else { desc.max_bytes };
            if bytes > max_bytes {
                return Err(self.argument(&format!("bytes of port {port}"), format!("at most {max_bytes}"), bytes));
            }
            let memory = &mut self.slots[index].memory;
            let address = match external {
                Some(address) => address,
                None => {
                    let buffer = reserve(&self.model, &mut memory.io[port], desc, bytes)?;
                    buffer.write(0, input.copied().unwrap_or_default())?;
                    buffer.address()
                }
            };
            memory.io_table.write(port as u64 * 8, &address.to_le_bytes())?;
        }
        Ok(())
    }

    fn submit_parts(&mut self, index: usize) -> Result<Ticket, Error> {
        let Slot { recording, pending, .. } = &mut self.slots[index];
        for part in &recording.parts {
            match self.model.device.submit(part.commands) {
                Ok(value) => {
                    pending.get_or_insert(Pending { first: value, last: value, cancelled: false }).last = value
                }
                Err(stop) => {
                    pending.iter_mut().for_each(|pending| pending.cancelled = true);
                    return Err(self.explain(index, stop));
                }
            }
        }
        Ok(Ticket { slot: index, value: pending.as_ref().map_or(0, |pending| pending.last) })
    }

    fn check_ticket(&self, ticket: &Ticket) -> Result<(), Error> {
        let pending = self.slots.get(ticket.slot).and_then(|slot| slot.pending.as_ref());
        match pending.is_some_and(|pending| pending.last == ticket.value) {
            true => Ok(()),
            false => Err(self.argument("ticket", "one of this session in flight", format!("{ticket:?}"))),
        }
    }

    fn wait_for(&self, ticket: &Ticket) -> Result<(), Error> {
        self.check_ticket(ticket)?;
        self.model.device.wait(ticket.value).map_err(|stop| self.explain(ticket.slot, stop))
    }

    /// Names the step of a loss: by the trace if there is one, else by the submissions that have finished.
    fn explain(&self, index: usize, stop: Stop) -> Error {
        self.model.device.explain(stop, || {
            let Slot { recording, pending, .. } = &self.slots[index];
            let labels = &recording.labels;
            let label = |step: usize| labels.get(step).map_or("the end", String::as_str);
            let first_value = pending.as_ref().map_or(u64::MAX, |pending| pending.first);
            let n_done = (self.model.device.reached() + 1).saturating_sub(first_value) as usize;
            let part = n_done.min(recording.parts.len() - 1);
            let next = recording.parts.get(part + 1).map_or(labels.len(), |part| part.first_step as usize);
            let traced = self.traced_step(index).map(|step| step as usize);
            let first = traced.unwrap_or(recording.parts[part].first_step as usize);
            let last = traced.unwrap_or(next.saturating_sub(1).max(first));
            match first == last {
                true => format!("step {first} of {} ({})", self.name, label(first)),
                false => format!("steps {first} to {last} of {} ({} to {})", self.name, label(first), label(last)),
            }
        })
    }

    fn argument(&self, what: &str, need: impl ToString, got: impl ToString) -> Error {
        Error::Argument { what: format!("{what} of {}", self.name), need: need.to_string(), got: got.to_string() }
    }
}

impl Ticket {
    /// Value of [`crate::Gpu::timeline`] that the run signals when it has finished.
    pub fn value(&self) -> u64 {
        self.value
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.slots.iter().flat_map(|slot| &slot.pending).for_each(|pending| self.model.device.drain(pending.last));
    }
}

impl State {
    fn new(model: &Loaded, entry: &EntryDesc<'_>) -> Result<Option<State>, Error> {
        if entry.state_bytes == 0 {
            return Ok(None);
        }
        let buffer = Buffer::new(&model.device, entry.state_bytes, MemoryKind::Device, "the state")?;
        for init in entry.state_init {
            let weights = model.weights.get(init.chunk as usize).map_or(0, Buffer::bytes);
            if init.offset + init.bytes > weights || init.state_offset + init.bytes > buffer.bytes() {
                return Err(Error::Description(format!("{init:?} lies outside its buffers")));
            }
        }
        Ok(Some(State { buffer, init: entry.state_init.to_vec(), reset: true }))
    }

    /// Zeros, then copies of weights, after all runs in flight.
    fn restore(&mut self, model: &Loaded) -> Result<(), Error> {
        self.buffer.fill(0)?;
        for init in self.init.iter().filter(|init| init.bytes > 0) {
            let weights = &model.weights[init.chunk as usize];
            self.buffer.copy_from(weights, init.offset, init.state_offset, init.bytes)?;
        }
        self.reset = false;
        Ok(())
    }
}

/// The buffer of a port, replaced by a larger one when it is too small.
fn reserve<'a>(model: &Loaded, buffer: &'a mut Option<Buffer>, desc: &IoDesc, bytes: u64) -> Result<&'a Buffer, Error> {
    let kind = if desc.output { MemoryKind::Readback } else { MemoryKind::Upload };
    if buffer.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
        *buffer = None;
        *buffer = Some(Buffer::new(&model.device, bytes, kind, "an input or output")?);
    }
    Ok(buffer.as_ref().expect("just made"))
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "weights {:>12} bytes, shared", self.weight_bytes)?;
        writeln!(f, "state   {:>12} bytes", self.state_bytes)?;
        for (index, slot) in self.slots.iter().enumerate() {
            let SlotBytes { arena, io, tables } = slot;
            writeln!(f, "slot {index}: arena {arena} bytes, inputs and outputs {io}, tables {tables}")?;
        }
        Ok(())
    }
}
