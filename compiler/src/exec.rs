//! Runs a compiled plan in memory through the runtime: what `jvc run` and `jvc verify` do. No graph is interpreted here: the plan's steps
//! are recorded once per session, as a generated crate records them.

mod call;
mod inputs;
mod ranges;
mod stepwise;

use crate::ir::DType;
use crate::pipeline::Compiled;
use crate::plan::weights::{narrow, widen};
use call::Call;
pub use inputs::{made_up, zeros};
use jvc_codegen::plan::{Base, Elem, Entry, Groups, Plan, PlanKernel, Port, PortKind, Step};
use jvc_runtime as rt;
pub use ranges::{RangeFault, RangeFaultKind, RangeReport, check_ranges};
use std::time::Duration;
pub use stepwise::Stepwise;
use thiserror::Error;

/// Host data of a port: little-endian, contiguous, in the element type's own width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTensor {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<i64>,
    /// Elements.
    pub bytes: Vec<u8>,
}

/// What the caller gives for a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A tensor.
    Tensor(HostTensor),
    /// A Python integer.
    Int(i64),
}

/// Why a plan did not run.
#[derive(Debug, Error)]
pub enum ExecError {
    /// The runtime's.
    #[error(transparent)]
    Runtime(#[from] rt::Error),
    /// The number of inputs.
    #[error("the entry point takes {expected} inputs, {got} are given")]
    InputCount {
        /// Taken.
        expected: usize,
        /// Given.
        got: usize,
    },
    /// An input does not fit its port.
    #[error("input {name} is {got}, the program takes {expected}")]
    Input {
        /// Port.
        name: String,
        /// Its type.
        expected: String,
        /// What is given.
        got: String,
    },
    /// A symbol outside its range, or with two values.
    #[error("symbol {name} would be {value}, the program takes {min}..={max}")]
    Symbol {
        /// Name.
        name: String,
        /// Value.
        value: i64,
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// The data give a symbol a value that it cannot have.
    #[error("the data make size {name} {value}, memory is planned for {min}..={max}")]
    Found {
        /// Name.
        name: String,
        /// Value.
        value: i64,
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// A size of the program has no value.
    #[error("size of {name}: {error}")]
    Size {
        /// Of what.
        name: String,
        /// Why.
        error: jvc_codegen::plan::SizeError,
    },
}

/// How often a run repeats its program, for measurements: repetitions read the same inputs and write the same results, unless the
/// program keeps state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repetition {
    /// Repetitions, a barrier between each two.
    pub chained: u32,
    /// Copies of each dispatch between two barriers.
    pub side_by_side: u32,
    /// A barrier after each dispatch: nothing runs beside another.
    pub apart: bool,
}

impl Repetition {
    /// The program as it is.
    pub const ONCE: Repetition = Repetition { chained: 1, side_by_side: 1, apart: false };
}

/// A program on a device.
pub struct Loaded<'a> {
    plan: &'a Plan,
    model: rt::Model,
}

impl<'a> Loaded<'a> {
    /// Uploads weights and builds pipelines.
    ///
    /// # Errors
    /// The runtime's: a missing feature, memory, a bad kernel.
    pub fn new(gpu: &rt::Gpu, compiled: &'a Compiled, cache: &rt::CacheDir) -> Result<Loaded<'a>, ExecError> {
        let produce = |chunk: u32, offset: u64, out: &mut [u8]| compiled.weights.produce(chunk, offset, out);
        Loaded::of_plan(gpu, &compiled.plan, rt::WeightSource::Produce(&produce), cache)
    }

    /// As [`Loaded::new`], with the weights from somewhere else.
    ///
    /// # Errors
    /// As [`Loaded::new`], and weights that are not the plan's.
    pub fn of_plan(
        gpu: &rt::Gpu,
        plan: &'a Plan,
        source: rt::WeightSource<'_>,
        cache: &rt::CacheDir,
    ) -> Result<Loaded<'a>, ExecError> {
        let kernels: Vec<rt::KernelDesc<'_>> = plan.kernels.iter().map(kernel_desc).collect();
        let cooperative: Vec<rt::Cooperative<'_>> = plan.requirements.cooperative.iter().map(cooperative).collect();
        let weights =
            rt::WeightsDesc { chunk_bytes: &plan.weights.chunk_bytes, content_hash: plan.weights.content_hash };
        let desc = rt::ProgramDesc {
            name: &plan.name,
            requirements: requirements(plan, &cooperative),
            kernels: &kernels,
            weights,
        };
        Ok(Loaded { plan, model: rt::Model::load(gpu, &desc, source, cache)? })
    }

    /// How long the weights and the kernels took, which were loaded at the same time.
    pub fn load_times(&self) -> (Duration, Duration) {
        self.model.load_times
    }

    /// A session of an entry point, recorded.
    ///
    /// # Errors
    /// The runtime's.
    pub fn session(&self, entry: usize) -> Result<Session<'a>, ExecError> {
        self.session_with(entry, &rt::SessionOptions::default(), Repetition::ONCE)
    }

    /// A session whose runs are timed by the device's clock, from the first step's start to the last one's end, and repeat the program.
    ///
    /// # Errors
    /// The runtime's, such as for a device without timestamps.
    pub fn timed_session(&self, entry: usize, repetition: Repetition) -> Result<Session<'a>, ExecError> {
        let options = rt::SessionOptions { timestamps: rt::Timestamps::Ends, ..rt::SessionOptions::default() };
        self.session_with(entry, &options, repetition)
    }

    /// A session of steps that run one after the other, each timed: [`Session::steps_ns`]. Its activations are in the arenas, if they are given:
    /// see [`Loaded::arenas`].
    ///
    /// # Errors
    /// As [`Loaded::timed_session`].
    pub fn stepped_session(&self, entry: usize, arenas: Option<&rt::Arenas>) -> Result<Session<'a>, ExecError> {
        let timestamps = rt::Timestamps::Steps;
        let options = rt::SessionOptions { timestamps, arenas: arenas.cloned(), ..rt::SessionOptions::default() };
        self.session_with(entry, &options, Repetition { apart: true, ..Repetition::ONCE })
    }

    /// Arenas for sessions of every entry point, of which one runs at a time.
    ///
    /// # Errors
    /// The runtime's: too little memory.
    pub fn arenas(&self) -> Result<rt::Arenas, ExecError> {
        let nothing = |_: &mut rt::Recorder<'_>| {};
        let descs: Vec<rt::EntryDesc<'_>> =
            self.plan.entries.iter().map(|e| entry_desc(e, &[], &[], &nothing)).collect();
        Ok(self.model.arenas(&descs.iter().collect::<Vec<_>>(), 1)?)
    }

    fn session_with(
        &self,
        entry: usize,
        options: &rt::SessionOptions,
        repetition: Repetition,
    ) -> Result<Session<'a>, ExecError> {
        let plan: &'a Plan = self.plan;
        let entry = &plan.entries[entry];
        let (io, init) = (io_descs(entry), state_init(plan, entry));
        let record = |r: &mut rt::Recorder<'_>| record(entry, repetition, r);
        let session = self.model.session_with(&entry_desc(entry, &io, &init, &record), options)?;
        Ok(Session { entry, session, found: vec![] })
    }

    /// Nanoseconds of each step of an entry point at these inputs, with its name.
    ///
    /// # Errors
    /// As [`Session::run`], or a device without timestamps.
    pub fn profile(&self, entry: usize, inputs: &[Value]) -> Result<Vec<(String, f64)>, ExecError> {
        let options = rt::SessionOptions { timestamps: rt::Timestamps::Steps, ..rt::SessionOptions::default() };
        let mut session = self.session_with(entry, &options, Repetition::ONCE)?;
        session.run(inputs)?;
        Ok(session.session.step_labels().iter().cloned().zip(session.session.step_ns(0)?).collect())
    }
}

/// A recorded entry point.
pub struct Session<'a> {
    entry: &'a Entry,
    session: rt::Session,
    /// Values of the symbols in the latest run.
    found: Vec<i64>,
}

impl Session<'_> {
    /// Runs once and waits.
    ///
    /// # Errors
    /// Inputs that do not fit, data that give a size beyond its range, or the runtime's.
    pub fn run(&mut self, inputs: &[Value]) -> Result<Vec<HostTensor>, ExecError> {
        let mut call = Call::new(self.entry, inputs)?;
        let reserved = call.output_bytes(self.entry)?;
        let ticket = self.session.submit(&call.table, &call.input_slices(), &reserved)?;
        if self.entry.symbols.iter().any(|s| s.found.is_some())
            && let Err(error) = call.find(self.entry, &self.session.read_table(&ticket)?)
        {
            self.session.cancel(ticket);
            return Err(error);
        }
        let mut outs = call.output_buffers(self.entry)?;
        let mut slices: Vec<&mut [u8]> = outs.iter_mut().map(Vec::as_mut_slice).collect();
        self.session.wait(ticket, &mut slices)?;
        let ports = self.entry.outputs.iter().zip(outs);
        let outputs =
            ports.map(|(port, bytes)| Ok(HostTensor { shape: call.shape(port)?, ..from_device(port, bytes) }));
        let outputs = outputs.collect();
        self.found = call.symbols;
        outputs
    }

    /// Copies inputs to the device and keeps outputs there, for [`Session::run_resident`].
    ///
    /// # Errors
    /// Inputs that do not fit, or the runtime's.
    pub fn make_resident(&mut self, gpu: &rt::Gpu, inputs: &[Value]) -> Result<Resident, ExecError> {
        let call = Call::new(self.entry, inputs)?;
        let mut buffers = vec![];
        for bytes in &call.inputs {
            let buffer = gpu.buffer(bytes.len() as u64, rt::MemoryKind::Device)?;
            buffer.write(0, bytes)?;
            buffers.push(buffer);
        }
        for bytes in call.output_bytes(self.entry)? {
            buffers.push(gpu.buffer(bytes, rt::MemoryKind::Device)?);
        }
        for (slot, buffer) in buffers.iter().enumerate() {
            self.session.bind_external(slot, Some(buffer.address()))?;
        }
        Ok(Resident { table: call.table, n_inputs: call.inputs.len(), buffers })
    }

    /// Runs once and waits, with nothing copied between host and device.
    ///
    /// # Errors
    /// The runtime's.
    pub fn run_resident(&mut self, resident: &Resident) -> Result<(), ExecError> {
        let n_outputs = resident.buffers.len() - resident.n_inputs;
        let ticket = self.session.submit(&resident.table, &vec![&[][..]; resident.n_inputs], &vec![0; n_outputs])?;
        let mut nothing: Vec<&mut [u8]> = (0..n_outputs).map(|_| &mut [][..]).collect();
        Ok(self.session.wait(ticket, &mut nothing)?)
    }

    /// Nanoseconds of the latest run of a timed session, on the device.
    ///
    /// # Errors
    /// The runtime's, for a session without timestamps.
    pub fn device_ns(&self) -> Result<f64, ExecError> {
        Ok(self.session.step_ns(0)?.iter().sum())
    }

    /// Nanoseconds of each step of the latest run of a stepped session.
    ///
    /// # Errors
    /// The runtime's, for a session without timestamps.
    pub fn steps_ns(&self) -> Result<Vec<f64>, ExecError> {
        Ok(self.session.step_ns(0)?)
    }

    /// Values of the symbols in the latest run: those that the inputs gave, and those that the device found in the data.
    pub fn symbols(&self) -> std::collections::BTreeMap<String, i64> {
        self.entry.symbols.iter().map(|s| s.name.clone()).zip(self.found.iter().copied()).collect()
    }

    /// Fills the arena with 0xFF bytes: results must not depend on what it held.
    ///
    /// # Errors
    /// The runtime's.
    pub fn poison_arena(&self) -> Result<(), ExecError> {
        let chunks = (0..).map_while(|chunk| self.session.buffer(0, rt::Base::Arena(chunk)));
        Ok(chunks.into_iter().try_for_each(|chunk| chunk.fill(u32::MAX))?)
    }

    /// Back to the initial state.
    pub fn reset(&mut self) {
        self.session.reset();
    }

    /// Device memory, slot by slot, as text.
    pub fn memory(&self) -> String {
        self.session.to_string()
    }

    /// Dispatches of one run of the program.
    pub fn n_dispatches(&self) -> usize {
        self.entry.steps.iter().filter(|s| matches!(s, Step::Dispatch(_))).count()
    }

    /// Barriers of one run of the program.
    pub fn n_barriers(&self) -> usize {
        self.entry.steps.len() - self.n_dispatches()
    }
}

/// Inputs and outputs of a session that stay on the device.
pub struct Resident {
    table: Vec<u32>,
    n_inputs: usize,
    /// By slot of the I/O table: inputs, then outputs.
    buffers: Vec<rt::Buffer>,
}

fn kernel_desc(k: &PlanKernel) -> rt::KernelDesc<'_> {
    rt::KernelDesc {
        name: &k.name,
        code: rt::bytes_of(&k.words),
        n_bases: k.n_bases,
        n_operands: k.operand_bases.len() as u8,
        subgroup: k.subgroup,
    }
}

fn cooperative(&(m, n, k, elem): &(u32, u32, u32, Elem)) -> rt::Cooperative<'static> {
    rt::Cooperative { m, n, k, operand: elem.name(), accumulator: "f32" }
}

fn requirements<'a>(plan: &Plan, cooperative: &'a [rt::Cooperative<'a>]) -> rt::Requirements<'a> {
    let r = &plan.requirements;
    rt::Requirements {
        features: rt::Features {
            int8: r.int8,
            int16: r.int16,
            float16: r.float16,
            int64: r.int64,
            float64: r.float64,
            ..rt::Features::NONE
        },
        cooperative,
        subgroup: r.subgroup,
        max_workgroup: r.max_workgroup,
        shared_bytes: r.shared_bytes,
        push_bytes: r.push_bytes,
        max_allocation_bytes: r.max_allocation_bytes,
    }
}

fn io_descs(entry: &Entry) -> Vec<rt::IoDesc> {
    let n_inputs = entry.inputs.iter().filter(|p| matches!(p.kind, PortKind::Io(_))).count();
    entry
        .io_ports()
        .enumerate()
        .map(|(i, (_, port))| rt::IoDesc { max_bytes: port.max_bytes, output: i >= n_inputs })
        .collect()
}

fn state_init(plan: &Plan, entry: &Entry) -> Vec<rt::StateInit> {
    let init = |s: &jvc_codegen::plan::State| {
        let t = &plan.weights.tensors[s.init? as usize];
        Some(rt::StateInit { chunk: t.chunk, offset: t.offset, state_offset: s.offset, bytes: s.bytes })
    };
    entry.states.iter().filter_map(init).collect()
}

fn entry_desc<'a>(
    entry: &'a Entry,
    io: &'a [rt::IoDesc],
    state_init: &'a [rt::StateInit],
    record: &'a (dyn Fn(&mut rt::Recorder<'_>) + Sync),
) -> rt::EntryDesc<'a> {
    rt::EntryDesc {
        name: &entry.name,
        arena_bytes: &entry.arena_bytes,
        io,
        table_words: entry.table.len() as u32,
        state_bytes: entry.state_bytes(),
        state_init,
        record,
    }
}

/// Of steps by themselves: all of their memory is the arena.
fn step_desc<'a>(
    arena_bytes: &'a [u64],
    table_words: u32,
    record: &'a (dyn Fn(&mut rt::Recorder<'_>) + Sync),
) -> rt::EntryDesc<'a> {
    rt::EntryDesc { name: "a step", arena_bytes, io: &[], table_words, state_bytes: 0, state_init: &[], record }
}

fn record(entry: &Entry, repetition: Repetition, r: &mut rt::Recorder<'_>) {
    for i in 0..repetition.chained {
        if i > 0 {
            r.barrier();
        }
        record_once(entry, repetition, r);
    }
}

fn record_once(entry: &Entry, repetition: Repetition, r: &mut rt::Recorder<'_>) {
    for (at, step) in entry.steps.iter().enumerate() {
        match step {
            Step::Barrier if entry.orders_groups(at) => r.barrier_for_groups(),
            Step::Barrier => r.barrier(),
            Step::Dispatch(d) => {
                let bases: Vec<rt::Base> = d.bases.iter().map(|b| base(*b)).collect();
                let groups = match d.groups {
                    Groups::Fixed(g) => rt::Groups::Fixed(g),
                    Groups::Table(word) => rt::Groups::Table(word),
                };
                for _ in 0..repetition.side_by_side {
                    r.step_label(&d.label);
                    r.dispatch(d.kernel, &bases, &d.offsets, groups);
                }
                if repetition.apart {
                    r.barrier();
                }
            }
        }
    }
}

fn base(b: Base) -> rt::Base {
    match b {
        Base::Arena(c) => rt::Base::Arena(c),
        Base::Weights(c) => rt::Base::Weights(c),
        Base::IoTable => rt::Base::IoTable,
        Base::State => rt::Base::State,
        Base::Symbols => rt::Base::Symbols,
    }
}

fn to_device(port: &Port, t: &HostTensor) -> Result<Vec<u8>, ExecError> {
    if !port.word_storage {
        return Ok(t.bytes.clone());
    }
    Ok(widen(t.dtype, &t.bytes))
}

fn dtype(port: &Port) -> DType {
    DType::ALL.into_iter().find(|d| crate::plan::elem(*d) == port.elem).expect("every element type is one")
}

fn from_device(port: &Port, bytes: Vec<u8>) -> HostTensor {
    let dtype = dtype(port);
    let bytes = if port.word_storage { narrow(dtype, &bytes) } else { bytes };
    HostTensor { dtype, shape: vec![], bytes }
}
