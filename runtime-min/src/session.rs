//! Sessions: slots with memory and recorded commands, the persistent state they share, and runs.

use std::fmt;
use std::sync::Arc;

use crate::element::{bytes_of, bytes_of_mut};
use crate::error::Error;
use crate::memory::{Buffer, MemoryKind};
use crate::program::{EntryDesc, IoDesc, Loaded, Model, StateInit};
use crate::recorder::{Base, Recorder, Recording, SlotMemory};

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
    /// When the device's clock is read, for [`Session::step_ns`].
    pub timestamps: Timestamps,
}

/// When a recording reads the device's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timestamps {
    /// Never.
    None,
    /// Before the first step and after the last: steps may overlap as they do in a run without.
    Ends,
    /// After each step too, which some devices drain for.
    Steps,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions { n_slots: 1, arenas: None, trace_steps: false, timestamps: Timestamps::None }
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
    slots: Vec<Slot>,
    state: Option<State>,
    model: Arc<Loaded>,
}

struct Slot {
    recording: Recording,
    memory: SlotMemory,
    /// Timeline value of the run in flight.
    pending: Option<u64>,
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

impl Model {
    /// A session with one slot. An error when memory runs out or the entry point's tables are inconsistent.
    pub fn session(&self, entry: &EntryDesc<'_>) -> Result<Session, Error> {
        self.session_with(entry, &SessionOptions::default())
    }

    /// A session with more slots, shared arenas, step tracing or timestamps. Errors as of [`Model::session`], for shared arenas that
    /// are too small or too few, and for timestamps that the device does not have.
    pub fn session_with(&self, entry: &EntryDesc<'_>, options: &SessionOptions) -> Result<Session, Error> {
        let device = &self.0.device;
        device.check_alive()?;
        if options.timestamps != Timestamps::None && device.info.limits.timestamp_period_ns == 0.0 {
            return Err(Error::Missing { what: "timestamps on compute queues" });
        }
        let arenas = match &options.arenas {
            Some(arenas) => arenas.clone(),
            None => self.arenas(&[entry], options.n_slots)?,
        };
        let mut session = Session {
            name: entry.name.to_owned(),
            io: entry.io.to_vec(),
            external: vec![None; entry.io.len()],
            slots: Vec::new(),
            state: State::new(&self.0, entry)?,
            model: Arc::clone(&self.0),
        };
        for slot in 0..options.n_slots {
            let arena = arenas.0.get(slot).filter(|arena| fits(arena, entry.arena_bytes));
            let arena = arena.ok_or_else(|| Error::Description("shared arenas are too small".to_owned()))?;
            session.add_slot(entry, Arc::clone(arena), options)?;
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
        let output_bytes: Vec<u64> = outputs.iter().map(|output| output.len() as u64).collect();
        let ticket = self.submit(table, inputs, &output_bytes)?;
        self.wait(ticket, outputs)
    }

    /// Starts a run in a free slot and returns at once, with the inputs copied. Errors as of [`Session::run`].
    pub fn submit(&mut self, table: &[u32], inputs: &[&[u8]], output_bytes: &[u64]) -> Result<Ticket, Error> {
        self.model.device.check_alive()?;
        let index = self.free_slot()?;
        self.fill(&self.slots[index], table, inputs, output_bytes)?;
        if let Some(state) = self.state.as_mut().filter(|state| state.reset) {
            state.restore(&self.model)?;
        }
        let value = self.model.device.submit(&self.slots[index].recording.commands, || self.position(index))?;
        let slot = &mut self.slots[index];
        (slot.pending, slot.cancelled) = (Some(value), false);
        Ok(Ticket { slot: index, value })
    }

    /// Waits for a run, copies its outputs and frees its slot. [`Error::DeviceLost`] names the step.
    pub fn wait(&mut self, ticket: Ticket, outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        self.wait_for(&ticket)?;
        self.slots[ticket.slot].pending = None;
        let ports = || self.io.iter().enumerate().filter(|(_, desc)| desc.output).map(|(port, _)| port);
        self.expect("outputs", ports().count(), outputs.len())?;
        for (port, output) in ports().zip(outputs) {
            match self.external[port] {
                None => self.slots[ticket.slot].memory.io[port].read(0, output)?,
                Some(_) => self.expect("bytes of an externally bound output", 0, output.len())?,
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
        if let Some(slot) = self.slots.get_mut(ticket.slot) {
            slot.cancelled |= slot.pending == Some(ticket.value);
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
        let memory = &self.slots[ticket.slot].memory;
        let mut words = vec![0; memory.n_symbols];
        memory.symbols.read(0, bytes_of_mut(&mut words))?;
        Ok(words)
    }

    /// Names of the steps, in order.
    pub fn step_labels(&self) -> &[String] {
        self.slots.first().map_or(&[], |slot| slot.recording.labels.as_slice())
    }

    /// Nanoseconds of each step of a slot's latest run, which was waited for: from the end of the step before it to its own end; with
    /// [`Timestamps::Ends`], of all of them together. Steps without a barrier between them overlap: their sum is right, the share of
    /// each is not. An error without timestamps.
    pub fn step_ns(&self, slot: usize) -> Result<Vec<f64>, Error> {
        match self.slots.get(slot).filter(|slot| slot.pending.is_none()) {
            Some(slot) => slot.recording.step_ns(),
            None => Err(self.argument("slot", "one that is not in flight", slot)),
        }
    }

    /// Steps that the latest run of a slot has finished, if the session traces steps.
    pub fn traced_step(&self, slot: usize) -> Option<u32> {
        let mut word = [0];
        self.slots.get(slot)?.memory.trace.as_ref()?.read(0, bytes_of_mut(&mut word)).ok()?;
        Some(word[0])
    }

    /// Memory of a slot, to be looked at by tests and applications that have waited for its runs.
    pub fn buffer(&self, slot: usize, base: Base) -> Option<&Buffer> {
        self.slots.get(slot)?.memory.buffer(base, &self.model, self.state())
    }

    fn state(&self) -> Option<&Buffer> {
        self.state.as_ref().map(|state| &state.buffer)
    }

    fn add_slot(
        &mut self,
        entry: &EntryDesc<'_>,
        arena: Arc<Vec<Buffer>>,
        options: &SessionOptions,
    ) -> Result<(), Error> {
        let buffer = |bytes, kind, what| Buffer::new(&self.model.device, bytes, kind, what);
        let io = |port: &IoDesc| {
            let kind = if port.output { MemoryKind::Readback } else { MemoryKind::Upload };
            buffer(port.max_bytes, kind, "an input or output")
        };
        let trace = || buffer(4, MemoryKind::Readback, "a step trace");
        let memory = SlotMemory {
            arena,
            io_table: buffer(entry.io.len() as u64 * 8, MemoryKind::Upload, "an I/O table")?,
            io: entry.io.iter().map(io).collect::<Result<_, _>>()?,
            symbols: buffer(u64::from(entry.table_words) * 4, MemoryKind::Upload, "a symbol table")?,
            n_symbols: entry.table_words as usize,
            trace: options.trace_steps.then(trace).transpose()?,
        };
        let state = self.state();
        let ordered = options.arenas.is_some() || state.is_some();
        let record = |clock| Recorder::record(&self.model, &memory, state, ordered, clock, entry.record);
        let n_times = match options.timestamps {
            Timestamps::None => 0,
            Timestamps::Ends => 2,
            Timestamps::Steps => record((Timestamps::None, 0))?.labels.len() + 1,
        };
        let recording = record((options.timestamps, n_times as u32))?;
        self.slots.push(Slot { recording, memory, pending: None, cancelled: false });
        Ok(())
    }

    /// A slot with nothing in flight, waiting for cancelled runs if need be.
    fn free_slot(&mut self) -> Result<usize, Error> {
        if let Some(free) = self.slots.iter().position(|slot| slot.pending.is_none()) {
            return Ok(free);
        }
        let cancelled = |(i, slot): (usize, &Slot)| slot.pending.filter(|_| slot.cancelled).map(|value| (value, i));
        let oldest = self.slots.iter().enumerate().filter_map(cancelled).min();
        let (value, slot) = oldest.ok_or(Error::SlotsBusy { n_slots: self.slots.len() })?;
        self.wait_for(&Ticket { slot, value })?;
        self.slots[slot].pending = None;
        Ok(slot)
    }

    /// Checks a run's arguments, and writes inputs, addresses and symbols.
    fn fill(&self, slot: &Slot, table: &[u32], inputs: &[&[u8]], output_bytes: &[u64]) -> Result<(), Error> {
        let (memory, n_outputs) = (&slot.memory, self.io.iter().filter(|desc| desc.output).count());
        self.expect("words of the symbol table", memory.n_symbols, table.len())?;
        self.expect("inputs", self.io.len() - n_outputs, inputs.len())?;
        self.expect("outputs", n_outputs, output_bytes.len())?;
        for first in slot.recording.group_words.iter().map(|word| usize::from(*word)) {
            self.model.device.info.check_groups([table[first], table[first + 1], table[first + 2]])?;
        }
        let (mut inputs, mut output_bytes) = (inputs.iter().copied(), output_bytes.iter().copied());
        for (port, desc) in self.io.iter().enumerate() {
            let input = if desc.output { None } else { inputs.next() }.unwrap_or_default();
            let bytes = if desc.output { output_bytes.next() } else { None }.unwrap_or(input.len() as u64);
            let max_bytes = if self.external[port].is_some() { 0 } else { desc.max_bytes };
            if bytes > max_bytes {
                return Err(self.argument(&format!("bytes of port {port}"), format!("at most {max_bytes}"), bytes));
            }
            memory.io[port].write(0, input)?;
            let address = self.external[port].unwrap_or(memory.io[port].address());
            memory.io_table.write(port as u64 * 8, bytes_of(&[address]))?;
        }
        memory.symbols.write(0, bytes_of(table))?;
        memory.trace.iter().try_for_each(|trace| trace.write(0, &[0; 4]))
    }

    fn check_ticket(&self, ticket: &Ticket) -> Result<(), Error> {
        match self.slots.get(ticket.slot).is_some_and(|slot| slot.pending == Some(ticket.value)) {
            true => Ok(()),
            false => Err(self.argument("ticket", "one of this session in flight", format!("{ticket:?}"))),
        }
    }

    fn wait_for(&self, ticket: &Ticket) -> Result<(), Error> {
        self.check_ticket(ticket)?;
        self.model.device.wait(ticket.value, || self.position(ticket.slot))
    }

    /// Names the step at which a slot's run is, if it is traced, else all of them.
    fn position(&self, index: usize) -> String {
        let labels = &self.slots[index].recording.labels;
        let traced = self.traced_step(index).map(|step| (step as usize, step as usize));
        let (first, last) = traced.unwrap_or((0, labels.len().saturating_sub(1)));
        let label = |step: usize| labels.get(step).map_or("the end", String::as_str);
        match first == last {
            true => format!("step {first} of {} ({})", self.name, label(first)),
            false => format!("steps {first} to {last} of {} ({} to {})", self.name, label(first), label(last)),
        }
    }

    fn expect(&self, what: &str, need: usize, got: usize) -> Result<(), Error> {
        if need == got { Ok(()) } else { Err(self.argument(what, need, got)) }
    }

    fn argument(&self, what: &str, need: impl ToString, got: impl ToString) -> Error {
        Error::Argument { what: format!("{what} of {}", self.name), need: need.to_string(), got: got.to_string() }
    }
}

/// Device memory, slot by slot.
impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |buffers: &mut dyn Iterator<Item = &Buffer>| buffers.map(Buffer::bytes).sum::<u64>();
        let (weights, state) = (sum(&mut self.model.weights.iter()), sum(&mut self.state().into_iter()));
        writeln!(f, "{}: weights {weights} bytes, shared with other sessions; state {state} bytes", self.name)?;
        for (index, Slot { memory, .. }) in self.slots.iter().enumerate() {
            let small = memory.io.iter().chain([&memory.io_table, &memory.symbols]);
            let (arena, small) = (sum(&mut memory.arena.iter()), sum(&mut small.into_iter()));
            writeln!(f, "slot {index}: arena {arena} bytes; inputs, outputs and tables {small} bytes")?;
        }
        Ok(())
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
        self.slots.iter().filter_map(|slot| slot.pending).for_each(|value| self.model.device.drain(value));
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
