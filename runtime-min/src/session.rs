//! A program as plain tables; the model made of it, on a device; its sessions: slots with memory and commands, state, and runs.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{argument, ensure};
use crate::kernel::Kernels;
use crate::queue::{Device, SubmitBy};
use crate::recorder::Slot;
use crate::weights::{self, WeightSource, WeightsDesc};
use crate::{
    Base, Buffer, CacheDir, Error, Gpu, KernelDesc, MemoryKind, Recorder, Requirements, Result, bytes_of, bytes_of_mut,
};

/// What all entry points of a program share.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the types of the others say it")]
pub struct ProgramDesc<'a> {
    /// Name, also of the pipeline cache file: letters, digits, `_` and `-`.
    pub name: &'a str,
    pub requirements: Requirements<'a>,
    /// Kernels; steps name them by position.
    pub kernels: &'a [KernelDesc<'a>],
    pub weights: WeightsDesc<'a>,
}

/// One entry point.
///
/// The tables are trusted, as shaders are: the compiler has verified them. Wrong offsets make the GPU access memory of others.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the names of the others say it")]
pub struct EntryDesc<'a> {
    pub name: &'a str,
    /// Of each arena chunk.
    pub arena_bytes: &'a [u64],
    /// Inputs and outputs, by slot of the I/O table.
    pub io: &'a [IoDesc],
    /// Words of the symbol table.
    pub table_words: u32,
    pub state_bytes: u64,
    /// Weights that state starts from; the rest starts from zeros.
    pub state_init: &'a [StateInit],
    /// Calls the recorder once per step, in order, and the same every time.
    pub record: &'a (dyn Fn(&mut Recorder<'_>) + Sync),
}

/// An input or output buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoDesc {
    /// Bytes at the largest shapes.
    pub max_bytes: u64,
    /// Kernels write it and the host reads it.
    pub output: bool,
}

/// A part of the state that starts as a copy of a weight: its place in the weight chunks, its byte offset in the state, its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "said above")]
pub struct StateInit {
    pub chunk: u32,
    pub offset: u64,
    pub state_offset: u64,
    pub bytes: u64,
}

/// A loaded program. Clones share it; sessions keep it alive.
#[derive(Clone)]
pub struct Model {
    /// How long the weights and the kernels took, which were loaded at the same time.
    pub load_times: (Duration, Duration),
    pub(crate) kernels: Arc<Kernels>,
    pub(crate) weights: Arc<Vec<Buffer>>,
    pub(crate) device: Arc<Device>,
}

/// How to make a session.
#[derive(Clone, Default)]
pub struct SessionOptions {
    /// Runs that may be in flight at once; 0 is as good as 1. Each has its own arena.
    pub n_slots: usize,
    /// Arenas shared with sessions of other entry points, whose runs are then ordered after each other.
    pub arenas: Option<Arenas>,
    /// Keeps the number of the step that runs in host memory, so that a loss can be blamed on one step. It serialises all steps.
    pub trace_steps: bool,
    /// When the device's clock is read, for [`Session::step_ns`].
    pub timestamps: Timestamps,
}

/// When a recording reads the device's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Timestamps {
    /// Never.
    #[default]
    None,
    /// Before the first step and after the last: steps may overlap as they do in a run without.
    Ends,
    /// After each step too, which some devices drain for.
    Steps,
}

/// Arena chunks, one set per slot.
#[derive(Clone)]
pub struct Arenas(Vec<Arc<Vec<Buffer>>>);

/// A run in flight.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot stays taken until its ticket is waited for or cancelled"]
pub struct Ticket {
    slot: usize,
    /// Value of [`Gpu::timeline`] that the run signals when it has finished.
    pub value: u64,
}

/// One entry point of a model, recorded and ready to run.
pub struct Session {
    name: String,
    io: Vec<IoDesc>,
    /// Addresses of external buffers, by slot of the I/O table.
    external: Vec<Option<u64>>,
    slots: Vec<Slot>,
    /// What the state starts from.
    state_init: Vec<StateInit>,
    /// The next run starts from the initial state.
    reset: bool,
    model: Model,
}

impl Model {
    /// Checks the requirements, then builds the kernels while the weights are uploaded. [`Error::Requirement`] before anything is
    /// built; [`Error::Weights`] for a file that is not this program's.
    pub fn load(gpu: &Gpu, program: &ProgramDesc<'_>, source: WeightSource<'_>, dir: &CacheDir) -> Result<Model> {
        let device = &gpu.0;
        device.check_alive()?;
        program.requirements.check(&device.info)?;
        let started = Instant::now();
        let (kernels, weights) = std::thread::scope(|scope| {
            let weights = scope.spawn(|| (weights::load(device, &program.weights, source), started.elapsed()));
            let kernels = (Kernels::build(device, program, dir), started.elapsed());
            (kernels, weights.join().expect("an upload returns its errors"))
        });
        let (load_times, device) = ((weights.1, kernels.1), Arc::clone(device));
        Ok(Model { kernels: Arc::new(kernels.0?), weights: Arc::new(weights.0?), device, load_times })
    }

    /// A session with one slot. An error when memory runs out or the entry point's tables are inconsistent.
    pub fn session(&self, entry: &EntryDesc<'_>) -> Result<Session> {
        self.session_with(entry, &SessionOptions::default())
    }

    /// A session with more slots, shared arenas, step tracing or timestamps. Errors as of [`Model::session`], for shared arenas that
    /// are too small or too few, and for timestamps that the device does not have.
    pub fn session_with(&self, entry: &EntryDesc<'_>, options: &SessionOptions) -> Result<Session> {
        self.device.check_alive()?;
        let can_time = options.timestamps == Timestamps::None || self.device.info.timestamp_period_ns > 0.0;
        ensure(can_time, || Error::Missing { what: "timestamps on compute queues" })?;
        let n_slots = options.n_slots.max(1);
        let arenas = options.arenas.clone().map_or_else(|| self.arenas(&[entry], n_slots), Ok)?;
        let fits = |arena: &&Arc<Vec<Buffer>>| {
            let mut chunks = arena.iter().zip(entry.arena_bytes);
            arena.len() >= entry.arena_bytes.len() && chunks.all(|(chunk, need)| chunk.bytes() >= *need)
        };
        let new_state = || Buffer::new(&self.device, entry.state_bytes, MemoryKind::Device, "the state").map(Arc::new);
        let state = (entry.state_bytes > 0).then(new_state).transpose()?;
        for init in entry.state_init {
            let weights = self.weights.get(init.chunk as usize).map_or(0, Buffer::bytes);
            let inside = init.offset + init.bytes <= weights && init.state_offset + init.bytes <= entry.state_bytes;
            ensure(inside, || Error::Description { reason: format!("{init:?} lies outside its buffers") })?;
        }
        let slot = |index| {
            let arena = arenas.0.get(index).filter(fits);
            let arena = arena.ok_or_else(|| Error::Description { reason: "shared arenas are too small".to_owned() })?;
            Slot::new(self, state.clone(), Arc::clone(arena), entry, options)
        };
        let slots = (0..n_slots).map(slot).collect::<Result<_>>()?;
        let (name, io, external) = (entry.name.to_owned(), entry.io.to_vec(), vec![None; entry.io.len()]);
        let state_init = entry.state_init.iter().filter(|init| init.bytes > 0).copied().collect();
        Ok(Session { name, io, external, slots, state_init, reset: true, model: self.clone() })
    }

    /// Arenas large enough for each of the entry points, to be shared by their sessions. An error when memory runs out.
    pub fn arenas(&self, entries: &[&EntryDesc<'_>], n_slots: usize) -> Result<Arenas> {
        let n_chunks = entries.iter().map(|entry| entry.arena_bytes.len()).max().unwrap_or(0);
        let chunk = |chunk| {
            let bytes = entries.iter().filter_map(|entry| entry.arena_bytes.get(chunk)).max().copied().unwrap_or(0);
            Buffer::new(&self.device, bytes, MemoryKind::Device, "an arena chunk")
        };
        let slot = |_| (0..n_chunks).map(chunk).collect::<Result<Vec<_>>>().map(Arc::new);
        (0..n_slots).map(slot).collect::<Result<Vec<_>>>().map(Arenas)
    }
}

impl Session {
    /// Runs and waits. Arguments and errors as of [`Session::submit`] and [`Session::wait`].
    pub fn run(&mut self, table: &[u32], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let output_bytes: Vec<u64> = outputs.iter().map(|output| output.len() as u64).collect();
        let ticket = self.submit(table, inputs, &output_bytes)?;
        self.wait(ticket, outputs)
    }

    /// Starts a run in a free slot and returns at once, with the inputs copied. `table` holds the words of the symbol table; inputs and
    /// outputs come in the order of the I/O table. The outputs' lengths are those of the tensors at these shapes. Ports bound by
    /// [`Session::bind_external`] have none. [`Error::Argument`] and [`Error::SlotsBusy`] come before anything has happened.
    pub fn submit(&mut self, table: &[u32], inputs: &[&[u8]], output_bytes: &[u64]) -> Result<Ticket> {
        self.start(table, inputs, output_bytes, None)
    }

    /// As [`Session::submit`], but the application submits, once, to the queue that it lent, with its own commands and semaphores around
    /// the run. Barriers between those and the kernels are the application's. A run from the initial state first submits copies.
    pub fn submit_by(&mut self, table: &[u32], inputs: &[&[u8]], outs: &[u64], by: SubmitBy<'_>) -> Result<Ticket> {
        self.start(table, inputs, outs, Some(by))
    }

    fn start(&mut self, table: &[u32], inputs: &[&[u8]], outs: &[u64], by: Option<SubmitBy<'_>>) -> Result<Ticket> {
        self.model.device.check_alive()?;
        let index = self.free_slot()?;
        self.fill(&self.slots[index], table, inputs, outs)?;
        if let Some(state) = self.slots[index].buffer(Base::State).filter(|_| self.reset) {
            // Zeros, then copies of weights, after all runs in flight.
            state.fill(0)?;
            for init in &self.state_init {
                let weights = &self.model.weights[init.chunk as usize];
                state.start_copy(weights, init.offset, init.state_offset, init.bytes)?.finish()?;
            }
        }
        self.reset = false;
        let value = self.model.device.submit(&self.slots[index].commands, by, || self.position(index))?;
        let slot = &mut self.slots[index];
        (slot.pending, slot.cancelled) = (Some(value), false);
        Ok(Ticket { slot: index, value })
    }

    /// Waits for a run, copies its outputs and frees its slot. [`Error::DeviceLost`] names the step.
    pub fn wait(&mut self, ticket: Ticket, outputs: &mut [&mut [u8]]) -> Result<()> {
        self.wait_for(&ticket)?;
        self.slots[ticket.slot].pending = None;
        let ports = || (0..self.io.len()).filter(|port| self.io[*port].output);
        self.expect("outputs", ports().count(), outputs.len())?;
        for (port, output) in ports().zip(outputs) {
            match self.external[port] {
                None => self.slots[ticket.slot].io[port].read(0, output)?,
                Some(_) => self.expect("bytes of an externally bound output", 0, output.len())?,
            }
        }
        Ok(())
    }

    /// True once the run has finished; it still has to be waited for. An error when the device was lost.
    pub fn is_done(&self, ticket: &Ticket) -> Result<bool> {
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
        self.reset = true;
    }

    /// Lets later runs use an external buffer for a slot of the I/O table, by its device address (a multiple of 16); `None` goes
    /// back to the session's own buffer. Nothing is recorded again. The caller orders its own accesses against the runs, and keeps
    /// the buffer alive. Gives the bytes that it must have. An error when there is no such slot or the address is not aligned.
    pub fn bind_external(&mut self, io: usize, address: Option<u64>) -> Result<u64> {
        let n_io = self.io.len();
        ensure(io < n_io, || self.argument("slot of the I/O table", format!("less than {n_io}"), io))?;
        let aligned = address.is_none_or(|address| address % 16 == 0);
        ensure(aligned, || self.argument("external address", "a multiple of 16", format!("{address:x?}")))?;
        self.external[io] = address;
        Ok(self.io[io].max_bytes)
    }

    /// Waits for a run and reads the words of the symbol table that it has left: sizes that kernels computed.
    pub fn read_table(&mut self, ticket: &Ticket) -> Result<Vec<u32>> {
        self.wait_for(ticket)?;
        let slot = &self.slots[ticket.slot];
        let mut words = vec![0; slot.n_symbols];
        slot.symbols.read(0, bytes_of_mut(&mut words))?;
        Ok(words)
    }

    /// The slots of the I/O table: inputs and outputs with their bytes at the largest shapes.
    pub fn ports(&self) -> &[IoDesc] {
        &self.io
    }

    /// Names of the steps, in order.
    pub fn step_labels(&self) -> &[String] {
        self.slots.first().map_or(&[], |slot| slot.labels.as_slice())
    }

    /// Nanoseconds of each step of a slot's latest run, which was waited for: from the end of the step before to its own; with
    /// [`Timestamps::Ends`], of all of them. Of steps without a barrier between, only the sum is right. An error without timestamps.
    pub fn step_ns(&self, slot: usize) -> Result<Vec<f64>> {
        let idle = self.slots.get(slot).filter(|slot| slot.pending.is_none());
        idle.ok_or_else(|| self.argument("slot", "one that is not in flight", slot))?.step_ns()
    }

    /// Steps that the latest run of a slot has finished, if the session traces steps.
    pub fn traced_step(&self, slot: usize) -> Option<u32> {
        let mut word = [0];
        self.slots.get(slot)?.trace.as_ref()?.read(0, bytes_of_mut(&mut word)).ok()?;
        Some(word[0])
    }

    /// Memory of a slot, to be looked at by tests and applications that have waited for its runs.
    pub fn buffer(&self, slot: usize, base: Base) -> Option<&Buffer> {
        self.slots.get(slot)?.buffer(base)
    }

    /// A slot with nothing in flight, else the one of the oldest cancelled run, which is waited for.
    fn free_slot(&mut self) -> Result<usize> {
        let usable = |slot: &Slot| slot.pending.is_none() || slot.cancelled;
        let slots = (0..self.slots.len()).filter(|index| usable(&self.slots[*index]));
        let best = slots.min_by_key(|index| self.slots[*index].pending);
        let slot = best.ok_or(Error::SlotsBusy { n_slots: self.slots.len() })?;
        if let Some(value) = self.slots[slot].pending {
            self.wait_for(&Ticket { slot, value })?;
        }
        Ok(slot)
    }

    /// Checks a run's arguments, and writes inputs, addresses and symbols.
    fn fill(&self, slot: &Slot, table: &[u32], inputs: &[&[u8]], output_bytes: &[u64]) -> Result<()> {
        let n_outputs = self.io.iter().filter(|desc| desc.output).count();
        self.expect("words of the symbol table", slot.n_symbols, table.len())?;
        self.expect("inputs", self.io.len() - n_outputs, inputs.len())?;
        self.expect("outputs", n_outputs, output_bytes.len())?;
        for first in slot.group_words.iter().map(|word| usize::from(*word)) {
            self.model.device.info.check_groups([table[first], table[first + 1], table[first + 2]])?;
        }
        let (mut inputs, mut output_bytes) = (inputs.iter().copied(), output_bytes.iter().copied());
        for (port, desc) in self.io.iter().enumerate() {
            let input = if desc.output { None } else { inputs.next() }.unwrap_or_default();
            let bytes = if desc.output { output_bytes.next() } else { None }.unwrap_or(input.len() as u64);
            let max_bytes = if self.external[port].is_some() { 0 } else { desc.max_bytes };
            let what = || format!("bytes of port {port}");
            ensure(bytes <= max_bytes, || self.argument(&what(), format!("at most {max_bytes}"), bytes))?;
            slot.io[port].write(0, input)?;
            let address = self.external[port].unwrap_or(slot.io[port].address());
            slot.io_table.write(port as u64 * 8, bytes_of(&[address]))?;
        }
        slot.symbols.write(0, bytes_of(table))?;
        slot.trace.iter().try_for_each(|trace| trace.write(0, &[0; 4]))
    }

    fn check_ticket(&self, ticket: &Ticket) -> Result<()> {
        let in_flight = self.slots.get(ticket.slot).is_some_and(|slot| slot.pending == Some(ticket.value));
        ensure(in_flight, || self.argument("ticket", "one of this session in flight", format!("{ticket:?}")))
    }

    fn wait_for(&self, ticket: &Ticket) -> Result<()> {
        self.check_ticket(ticket)?;
        self.model.device.wait(ticket.value, || self.position(ticket.slot))
    }

    /// Names the step at which a slot's run is, if it is traced, else all of them.
    fn position(&self, index: usize) -> String {
        let labels = &self.slots[index].labels;
        let label = |step: usize| labels.get(step).map_or("the end", String::as_str);
        let (last, name) = (labels.len().saturating_sub(1), &self.name);
        match self.traced_step(index).map(|step| step as usize) {
            Some(step) => format!("step {step} of {name} ({})", label(step)),
            None => format!("steps 0 to {last} of {name} ({} to {})", label(0), label(last)),
        }
    }

    fn expect(&self, what: &str, need: usize, got: usize) -> Result<()> {
        ensure(need == got, || self.argument(what, need, got))
    }

    fn argument(&self, what: &str, need: impl ToString, got: impl ToString) -> Error {
        argument(format!("{what} of {}", self.name), need, got)
    }
}

/// Device memory, slot by slot.
impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = |buffers: &mut dyn Iterator<Item = &Buffer>| buffers.map(Buffer::bytes).sum::<u64>();
        let (weights, state) = (sum(&mut self.model.weights.iter()), sum(&mut self.buffer(0, Base::State).into_iter()));
        writeln!(f, "{}: weights {weights} bytes, shared with other sessions; state {state} bytes", self.name)?;
        for (index, slot) in self.slots.iter().enumerate() {
            let small = slot.io.iter().chain([&slot.io_table, &slot.symbols]);
            let (arena, small) = (sum(&mut slot.arena.iter()), sum(&mut small.into_iter()));
            writeln!(f, "slot {index}: arena {arena} bytes; inputs, outputs and tables {small} bytes")?;
        }
        Ok(())
    }
}
