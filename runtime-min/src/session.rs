//! Sessions: slots with memory and recorded commands, the persistent state they share, and runs.

use std::fmt;
use std::sync::Arc;

use ash::vk;

use crate::error::{Error, Named as _};
use crate::gpu::{CommandPool, Device, Stop, full_barrier};
use crate::memory::{Buffer, MemoryKind};
use crate::program::{EntryDesc, IoDesc, Loaded, Model};
use crate::recorder::{Extras, Places, Recorder, Recording};

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
    slots: Vec<Slot>,
    state: Option<State>,
    pub(crate) entry: Entry,
    pub(crate) model: Arc<Loaded>,
}

/// Facts of the entry point that outlive its description.
pub(crate) struct Entry {
    name: String,
    io: Vec<IoDesc>,
    n_symbols: u32,
    ordered: bool,
    /// Addresses of external buffers, by slot of the I/O table.
    external: Vec<Option<u64>>,
}

struct Slot {
    memory: SlotMemory,
    recording: Recording,
    trace: Option<Buffer>,
    pending: Option<Pending>,
}

struct SlotMemory {
    arena: Arc<Vec<Buffer>>,
    io_table: Buffer,
    io: Vec<Option<Buffer>>,
    symbols: Buffer,
}

struct Pending {
    /// Timeline value of the first part.
    first: u64,
    /// Timeline value of the last part.
    last: u64,
    /// Nobody waits for it any more.
    cancelled: bool,
}

/// Buffers that keep their contents between runs.
struct State {
    buffer: Buffer,
    pool: CommandPool,
    /// Zeros, then copies of weights.
    reset: vk::CommandBuffer,
    /// The next run starts from the initial state.
    wanted: bool,
    /// Timeline value of the latest reset.
    value: u64,
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
    /// A session with one slot.
    ///
    /// # Errors
    ///
    /// When memory runs out or the entry point's tables are inconsistent.
    pub fn session(&self, entry: &EntryDesc<'_>) -> Result<Session, Error> {
        self.session_with(entry, &SessionOptions::default())
    }

    /// A session with more slots, shared arenas or step tracing.
    ///
    /// # Errors
    ///
    /// As [`Model::session`]; also when shared arenas are too small or too few.
    pub fn session_with(&self, entry: &EntryDesc<'_>, options: &SessionOptions) -> Result<Session, Error> {
        self.0.device.check_alive()?;
        let arenas = match &options.arenas {
            Some(arenas) => arenas.clone(),
            None => self.arenas(&[entry], options.n_slots)?,
        };
        let state = (entry.state_bytes > 0).then(|| State::new(&self.0, entry)).transpose()?;
        let facts = Entry {
            name: entry.name.to_owned(),
            io: entry.io.to_vec(),
            n_symbols: entry.table_words,
            ordered: options.arenas.is_some() || state.is_some(),
            external: vec![None; entry.io.len()],
        };
        let mut session = Session { slots: Vec::new(), state, entry: facts, model: Arc::clone(&self.0) };
        for index in 0..options.n_slots {
            let arena = arenas.0.get(index).filter(|arena| fits(arena, entry.arena_bytes));
            let arena = arena.ok_or_else(|| Error::Description("shared arenas are too small".to_owned()))?;
            session.add_slot(entry, Arc::clone(arena), options.trace_steps)?;
        }
        Ok(session)
    }

    /// Arenas large enough for each of the entry points, to be shared by their sessions.
    ///
    /// # Errors
    ///
    /// When memory runs out.
    pub fn arenas(&self, entries: &[&EntryDesc<'_>], n_slots: usize) -> Result<Arenas, Error> {
        let n_chunks = entries.iter().map(|entry| entry.arena_bytes.len()).max().unwrap_or(0);
        let chunk_bytes = |chunk: usize| entries.iter().filter_map(|entry| entry.arena_bytes.get(chunk)).max().copied();
        let chunk = |chunk| {
            let bytes = chunk_bytes(chunk).expect("some entry has this chunk");
            Buffer::new(&self.0.device, bytes, MemoryKind::Device, "an arena chunk")
        };
        let slot = |_| (0..n_chunks).map(chunk).collect::<Result<Vec<_>, _>>().map(Arc::new);
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
    /// # Errors
    ///
    /// [`Error::Argument`] before anything happens; [`Error::SlotsBusy`]; [`Error::DeviceLost`].
    pub fn run(&mut self, table: &[u32], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        let ticket = self.start(table, inputs, outputs.iter().map(|output| output.len() as u64))?;
        self.wait(ticket, outputs)
    }

    /// Starts a run in a free slot and returns at once. Inputs have been copied when it returns.
    ///
    /// # Errors
    ///
    /// As [`Session::run`].
    pub fn submit(&mut self, table: &[u32], inputs: &[&[u8]], output_bytes: &[u64]) -> Result<Ticket, Error> {
        self.start(table, inputs, output_bytes.iter().copied())
    }

    /// Waits for a run, copies its outputs and frees its slot.
    ///
    /// # Errors
    ///
    /// [`Error::DeviceLost`] names the step; [`Error::Argument`] for outputs longer than those announced.
    pub fn wait(&mut self, ticket: Ticket, outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        self.pending(&ticket)?;
        self.model.device.wait(ticket.value).map_err(|stop| self.explain(ticket.slot, stop))?;
        let slot = &mut self.slots[ticket.slot];
        slot.pending = None;
        let ports = self.entry.io.iter().zip(&slot.memory.io).zip(&self.entry.external);
        let ports = ports.filter(|((desc, _), _)| desc.output);
        let n_ports = ports.clone().count();
        if n_ports != outputs.len() {
            return Err(self.entry.argument("outputs", n_ports, outputs.len()));
        }
        for (((_, buffer), external), output) in ports.zip(outputs) {
            match (external, buffer) {
                (None, Some(buffer)) => buffer.read(0, output)?,
                _ if output.is_empty() => {}
                _ => return Err(self.entry.argument("bytes of an externally bound output", 0, output.len())),
            }
        }
        Ok(())
    }

    /// True once the run has finished; it still has to be waited for.
    ///
    /// # Errors
    ///
    /// When the device was lost, or the ticket is not of this session.
    pub fn is_done(&self, ticket: &Ticket) -> Result<bool, Error> {
        self.model.device.check_alive()?;
        self.pending(ticket)?;
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
        if let Some(state) = &mut self.state {
            state.wanted = true;
        }
    }

    /// Lets later runs use an external buffer for a slot of the I/O table, by its device address (a multiple of 16); `None` goes
    /// back to the session's own buffer. Nothing is recorded again. The caller orders its own accesses against the runs, and keeps
    /// the buffer alive.
    ///
    /// # Errors
    ///
    /// When there is no such slot or the address is not aligned.
    pub fn bind_external(&mut self, io: usize, address: Option<u64>) -> Result<(), Error> {
        if io >= self.entry.io.len() {
            return Err(self.entry.argument("slot of the I/O table", format!("less than {}", self.entry.io.len()), io));
        }
        if let Some(address) = address.filter(|address| address % 16 != 0) {
            return Err(self.entry.argument("external address", "a multiple of 16", format!("{address:#x}")));
        }
        self.entry.external[io] = address;
        Ok(())
    }

    /// Reads words of the symbol table that a finished run has left in its slot: sizes that kernels computed.
    ///
    /// # Errors
    ///
    /// When the ticket is not of this session, or its run was lost.
    pub fn read_table(&mut self, ticket: &Ticket) -> Result<Vec<u32>, Error> {
        self.pending(ticket)?;
        self.model.device.wait(ticket.value).map_err(|stop| self.explain(ticket.slot, stop))?;
        let mut bytes = vec![0; self.entry.n_symbols as usize * 4];
        self.slots[ticket.slot].memory.symbols.read(0, &mut bytes)?;
        let word = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        Ok(bytes.chunks_exact(4).map(word).collect())
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
    ///
    /// # Errors
    ///
    /// When the device was lost.
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
        let upload = |bytes, what| Buffer::new(device, bytes, MemoryKind::Upload, what);
        let mut memory = SlotMemory {
            arena,
            io_table: upload(entry.io.len() as u64 * 8, "an I/O table")?,
            io: entry.io.iter().map(|_| None).collect(),
            symbols: upload(u64::from(entry.table_words) * 4, "a symbol table")?,
        };
        if self.model.kernels.use_bindings() {
            // Descriptors are written when recording, so buffers cannot grow later.
            for (buffer, desc) in memory.io.iter_mut().zip(entry.io) {
                reserve(device, buffer, desc, desc.max_bytes)?;
            }
        }
        let trace = trace_steps.then(|| Buffer::new(device, 4, MemoryKind::Readback, "a step trace")).transpose()?;
        let extras = self.extras(trace.as_ref(), None);
        let recording = Recorder::record(&self.model, self.places(&memory), extras, entry.record)?;
        self.slots.push(Slot { memory, recording, trace, pending: None });
        Ok(())
    }

    fn extras(&self, trace: Option<&Buffer>, timestamps: Option<(vk::QueryPool, u32)>) -> Extras {
        Extras { ordered: self.entry.ordered, timestamps, trace: trace.map(|buffer| buffer.handle) }
    }

    fn places<'a>(&'a self, memory: &'a SlotMemory) -> Places<'a> {
        Places {
            arena: &memory.arena,
            io_table: &memory.io_table,
            io: &memory.io,
            symbols: &memory.symbols,
            n_symbols: self.entry.n_symbols,
            state: self.state(),
        }
    }

    /// Records an entry point's steps once more for the first slot, with timestamps.
    pub(crate) fn record_timed(
        &self,
        entry: &EntryDesc<'_>,
        queries: (vk::QueryPool, u32),
    ) -> Result<Recording, Error> {
        let memory = &self.slots.first().ok_or(Error::SlotsBusy { n_slots: 0 })?.memory;
        Recorder::record(&self.model, self.places(memory), self.extras(None, Some(queries)), entry.record)
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
        if table.len() != self.entry.n_symbols as usize {
            return Err(self.entry.argument("symbol table", format!("{} words", self.entry.n_symbols), table.len()));
        }
        let index = self.free_slot()?;
        self.fill_io(index, inputs, output_bytes)?;
        let slot = &self.slots[index];
        write_words(&slot.memory.symbols, table)?;
        if let Some(trace) = &slot.trace {
            trace.write(0, &[0; 4])?;
        }
        self.submit_reset()?;
        self.submit_parts(index)
    }

    /// A slot with nothing in flight, waiting for cancelled runs if need be.
    fn free_slot(&mut self) -> Result<usize, Error> {
        let n_slots = self.slots.len();
        if let Some(free) = self.slots.iter().position(|slot| slot.pending.is_none()) {
            return Ok(free);
        }
        let cancelled = |slot: &Slot| slot.pending.as_ref().filter(|p| p.cancelled).map(|p| p.last);
        let oldest = self.slots.iter().enumerate().filter_map(|(i, slot)| Some((cancelled(slot)?, i))).min();
        let (value, index) = oldest.ok_or(Error::SlotsBusy { n_slots })?;
        self.model.device.wait(value).map_err(|stop| self.explain(index, stop))?;
        self.slots[index].pending = None;
        Ok(index)
    }

    /// Makes room for inputs and outputs, copies inputs, and writes all addresses into the I/O table.
    fn fill_io(
        &mut self,
        index: usize,
        inputs: &[&[u8]],
        mut output_bytes: impl ExactSizeIterator<Item = u64>,
    ) -> Result<(), Error> {
        let n_outputs = self.entry.io.iter().filter(|desc| desc.output).count();
        let n_inputs = self.entry.io.len() - n_outputs;
        if inputs.len() != n_inputs {
            return Err(self.entry.argument("inputs", n_inputs, inputs.len()));
        }
        if output_bytes.len() != n_outputs {
            return Err(self.entry.argument("outputs", n_outputs, output_bytes.len()));
        }
        let mut inputs = inputs.iter();
        let memory = &mut self.slots[index].memory;
        for (port, desc) in self.entry.io.iter().enumerate() {
            let input = if desc.output { None } else { inputs.next() };
            let bytes = input.map_or_else(|| output_bytes.next().unwrap_or(0), |input| input.len() as u64);
            let external = self.entry.external[port];
            let max_bytes = if external.is_some() { 0 } else { desc.max_bytes };
            if bytes > max_bytes {
                return Err(self.entry.argument(
                    &format!("bytes of port {port}"),
                    format!("at most {max_bytes}"),
                    bytes,
                ));
            }
            let address = match external {
                Some(address) => address,
                None => {
                    let buffer = reserve(&self.model.device, &mut memory.io[port], desc, bytes)?;
                    buffer.write(0, input.copied().unwrap_or_default())?;
                    buffer.address()
                }
            };
            memory.io_table.write(port as u64 * 8, &address.to_le_bytes())?;
        }
        Ok(())
    }

    fn submit_reset(&mut self) -> Result<(), Error> {
        let device = &self.model.device;
        if let Some(state) = self.state.as_mut().filter(|state| state.wanted) {
            let value = device.submit(state.reset);
            state.value = value.map_err(|stop| device.explain(stop, || "the reset of the state".to_owned()))?;
            state.wanted = false;
        }
        Ok(())
    }

    fn submit_parts(&mut self, index: usize) -> Result<Ticket, Error> {
        for part in 0..self.slots[index].recording.parts.len() {
            let slot = &mut self.slots[index];
            match self.model.device.submit(slot.recording.parts[part].commands) {
                Ok(value) => {
                    let pending = slot.pending.get_or_insert(Pending { first: value, last: value, cancelled: false });
                    pending.last = value;
                }
                Err(stop) => {
                    if let Some(pending) = &mut slot.pending {
                        pending.cancelled = true;
                    }
                    return Err(self.explain(index, stop));
                }
            }
        }
        let value = self.slots[index].pending.as_ref().map_or(0, |pending| pending.last);
        Ok(Ticket { slot: index, value })
    }

    fn pending(&self, ticket: &Ticket) -> Result<&Pending, Error> {
        let pending = self.slots.get(ticket.slot).and_then(|slot| slot.pending.as_ref());
        let pending = pending.filter(|pending| pending.last == ticket.value);
        pending.ok_or_else(|| self.entry.argument("ticket", "one of this session in flight", format!("{ticket:?}")))
    }

    /// Names the step of a loss: by the trace if there is one, else by the submissions that have finished.
    fn explain(&self, index: usize, stop: Stop) -> Error {
        self.model.device.explain(stop, || {
            let slot = &self.slots[index];
            let labels = &slot.recording.labels;
            if let Some(step) = self.traced_step(index) {
                return self.entry.steps(labels, step as usize, step as usize);
            }
            let parts = &slot.recording.parts;
            let first_value = slot.pending.as_ref().map_or(u64::MAX, |pending| pending.first);
            let part =
                (self.model.device.reached() + 1).saturating_sub(first_value).min(parts.len() as u64 - 1) as usize;
            let first = parts[part].first_step as usize;
            let next = parts.get(part + 1).map_or(labels.len(), |part| part.first_step as usize);
            let last = next.saturating_sub(1).max(first);
            self.entry.steps(labels, first, last)
        })
    }
}

impl Entry {
    fn argument(&self, what: &str, need: impl ToString, got: impl ToString) -> Error {
        Error::Argument { what: format!("{what} of {}", self.name), need: need.to_string(), got: got.to_string() }
    }

    fn steps(&self, labels: &[String], first: usize, last: usize) -> String {
        let name = |step: usize| labels.get(step).map_or("the end", String::as_str);
        match first == last {
            true => format!("step {first} of {} ({})", self.name, name(first)),
            false => format!("steps {first} to {last} of {} ({} to {})", self.name, name(first), name(last)),
        }
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
        let device = &self.model.device;
        for slot in &self.slots {
            slot.pending.iter().for_each(|pending| device.drain(pending.last));
            slot.recording.destroy(device);
        }
        if let Some(state) = &self.state {
            device.drain(state.value);
            state.pool.destroy(device);
        }
    }
}

impl State {
    fn new(model: &Arc<Loaded>, entry: &EntryDesc<'_>) -> Result<State, Error> {
        let device = &model.device;
        let buffer = Buffer::new(device, entry.state_bytes, MemoryKind::Device, "the state")?;
        for init in entry.state_init {
            let weights = model.weights.get(init.chunk as usize).map_or(0, Buffer::bytes);
            if init.offset + init.bytes > weights || init.state_offset + init.bytes > buffer.bytes() {
                return Err(Error::Description(format!("{init:?} lies outside its buffers")));
            }
        }
        let pool = CommandPool::new(device)?;
        match record_reset(device, &pool, &buffer, model, entry) {
            Ok(reset) => Ok(State { buffer, pool, reset, wanted: true, value: 0 }),
            Err(error) => {
                pool.destroy(device);
                Err(error)
            }
        }
    }
}

fn record_reset(
    device: &Device,
    pool: &CommandPool,
    buffer: &Buffer,
    model: &Loaded,
    entry: &EntryDesc<'_>,
) -> Result<vk::CommandBuffer, Error> {
    let raw = &device.raw;
    // Two resets may be in flight behind each other.
    let commands = pool.begin(device, vk::CommandBufferUsageFlags::SIMULTANEOUS_USE)?;
    full_barrier(raw, commands);
    // SAFETY: the command buffer is recording; the state and the weights live as long as the session.
    unsafe { raw.cmd_fill_buffer(commands, buffer.handle, 0, vk::WHOLE_SIZE, 0) };
    full_barrier(raw, commands);
    for init in entry.state_init.iter().filter(|init| init.bytes > 0) {
        let region = [vk::BufferCopy { src_offset: init.offset, dst_offset: init.state_offset, size: init.bytes }];
        // SAFETY: as above; the ranges were checked.
        unsafe { raw.cmd_copy_buffer(commands, model.weights[init.chunk as usize].handle, buffer.handle, &region) };
    }
    full_barrier(raw, commands);
    // SAFETY: the command buffer is recording.
    unsafe { raw.end_command_buffer(commands) }.named("vkEndCommandBuffer")?;
    Ok(commands)
}

/// The buffer of a port, replaced by a larger one when it is too small.
fn reserve<'a>(
    device: &Arc<Device>,
    buffer: &'a mut Option<Buffer>,
    desc: &IoDesc,
    bytes: u64,
) -> Result<&'a Buffer, Error> {
    let kind = if desc.output { MemoryKind::Readback } else { MemoryKind::Upload };
    if buffer.as_ref().is_none_or(|buffer| buffer.bytes() < bytes) {
        *buffer = None;
        *buffer = Some(Buffer::new(device, bytes, kind, "an input or output")?);
    }
    Ok(buffer.as_ref().expect("just made"))
}

fn write_words(buffer: &Buffer, words: &[u32]) -> Result<(), Error> {
    (0..).zip(words).try_for_each(|(index, word): (u64, _)| buffer.write(index * 4, &word.to_le_bytes()))
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
