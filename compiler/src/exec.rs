//! Runs a compiled plan in memory through the runtime: what `jvc run` and `jvc verify` do. No graph is interpreted here: the plan's steps
//! are recorded once per session, as a generated crate records them.

mod ranges;
mod stepwise;

use crate::ir::DType;
use crate::pipeline::Compiled;
use crate::plan::weights::{narrow, widen};
use jvc_codegen::plan::{Base, Elem, Entry, Groups, Plan, PlanKernel, Port, PortKind, Size, Step};
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
}

impl Repetition {
    /// The program as it is.
    pub const ONCE: Repetition = Repetition { chained: 1, side_by_side: 1 };
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

/// Zeros for an entry point, at its largest sizes.
///
/// # Errors
/// A size without a value.
pub fn zeros(entry: &Entry) -> Result<Vec<Value>, ExecError> {
    let call = Call { symbols: entry.symbols.iter().map(|s| s.max).collect(), table: vec![], inputs: vec![] };
    let zeros = |port: &Port| {
        if let PortKind::Symbol(symbol) = port.kind {
            return Ok(Value::Int(call.symbols[usize::from(symbol)]));
        }
        let (dtype, shape) = (dtype(port), call.shape(port)?);
        let bytes = vec![0; shape.iter().product::<i64>() as usize * port.elem.size_bytes() as usize];
        Ok(Value::Tensor(HostTensor { dtype, shape, bytes }))
    };
    entry.inputs.iter().map(zeros).collect()
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
        record_once(entry, repetition.side_by_side, r);
    }
}

fn record_once(entry: &Entry, n_copies: u32, r: &mut rt::Recorder<'_>) {
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
                for _ in 0..n_copies {
                    r.step_label(&d.label);
                    r.dispatch(d.kernel, &bases, &d.offsets, groups);
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

/// One run's symbols, table and device-side input bytes.
struct Call {
    symbols: Vec<i64>,
    table: Vec<u32>,
    inputs: Vec<Vec<u8>>,
}

impl Call {
    fn new(entry: &Entry, inputs: &[Value]) -> Result<Call, ExecError> {
        if inputs.len() != entry.inputs.len() {
            return Err(ExecError::InputCount { expected: entry.inputs.len(), got: inputs.len() });
        }
        let symbols = bind_symbols(entry, inputs)?;
        let mut device = vec![];
        for (port, value) in entry.inputs.iter().zip(inputs) {
            if let (PortKind::Io(_), Value::Tensor(t)) = (&port.kind, value) {
                device.push(to_device(port, t)?);
            }
        }
        let word = |(i, s): (usize, &Size)| {
            s.eval_u32(&symbols)
                .map_err(|error| ExecError::Size { name: format!("word {i} of the symbol table"), error })
        };
        let table = entry.table.iter().enumerate().map(word).collect::<Result<_, _>>()?;
        let call = Call { symbols, table, inputs: device };
        entry.inputs.iter().zip(inputs).try_for_each(|(port, value)| call.check(port, value))?;
        Ok(call)
    }

    /// Reads the symbols that the device has found.
    fn find(&mut self, entry: &Entry, words: &[u32]) -> Result<(), ExecError> {
        for (symbol, value) in entry.symbols.iter().zip(&mut self.symbols) {
            let Some(word) = symbol.found else { continue };
            *value = i64::from(words[usize::from(word)].cast_signed());
            if !(symbol.min..=symbol.max).contains(value) {
                let (name, min, max) = (symbol.name.clone(), symbol.min, symbol.max);
                return Err(ExecError::Found { name, value: *value, min, max });
            }
        }
        Ok(())
    }

    fn shape(&self, port: &Port) -> Result<Vec<i64>, ExecError> {
        let eval = |s: &Size| s.eval(&self.symbols).map(|v| v as i64);
        let shape: Result<Vec<i64>, _> = port.shape.iter().map(eval).collect();
        shape.map_err(|error| ExecError::Size { name: port.name.clone(), error })
    }

    fn check(&self, port: &Port, value: &Value) -> Result<(), ExecError> {
        let expected = self.shape(port)?;
        let fits = match (value, &port.kind) {
            (Value::Tensor(t), PortKind::Io(_)) => t.shape == expected && crate::plan::elem(t.dtype) == port.elem,
            (Value::Int(_), PortKind::Symbol(_)) => true,
            (Value::Tensor(_), PortKind::Symbol(_)) | (Value::Int(_), PortKind::Io(_)) => false,
        };
        if fits {
            return Ok(());
        }
        let got = match value {
            Value::Tensor(t) => format!("{}{:?}", t.dtype, t.shape),
            Value::Int(v) => format!("the integer {v}"),
        };
        Err(ExecError::Input { name: port.name.clone(), expected: format!("{}{expected:?}", port.elem.name()), got })
    }

    fn input_slices(&self) -> Vec<&[u8]> {
        self.inputs.iter().map(Vec::as_slice).collect()
    }

    fn output_bytes(&self, entry: &Entry) -> Result<Vec<u64>, ExecError> {
        let size = |p: &Port| if p.word_storage { 4 } else { p.elem.size_bytes() };
        entry.outputs.iter().map(|p| Ok(self.shape(p)?.iter().product::<i64>() as u64 * size(p))).collect()
    }

    fn output_buffers(&self, entry: &Entry) -> Result<Vec<Vec<u8>>, ExecError> {
        Ok(self.output_bytes(entry)?.into_iter().map(|n| vec![0; n as usize]).collect())
    }
}

/// Reads the symbols off the inputs: integers, and dimensions that are a symbol, a multiple of one, or that plus a constant.
fn bind_symbols(entry: &Entry, inputs: &[Value]) -> Result<Vec<i64>, ExecError> {
    let mut found: Vec<Option<i64>> = vec![None; entry.symbols.len()];
    for (port, value) in entry.inputs.iter().zip(inputs) {
        match (value, &port.kind) {
            (Value::Int(v), PortKind::Symbol(s)) => found[*s as usize] = Some(*v),
            (Value::Tensor(t), PortKind::Io(_)) => {
                for (size, &v) in port.shape.iter().zip(&t.shape) {
                    if let Some((symbol, v)) = solve(size, v) {
                        found[symbol as usize].get_or_insert(v);
                    }
                }
            }
            (Value::Tensor(_), PortKind::Symbol(_)) | (Value::Int(_), PortKind::Io(_)) => {}
        }
    }
    let checked = entry.symbols.iter().zip(found).map(|(s, v)| {
        // One that the data decide is at its largest until then. Any other that no input shows has no effect on the program.
        let value = if s.found.is_some() { s.max } else { v.unwrap_or(s.min) };
        let fits = (s.min..=s.max).contains(&value);
        let (name, min, max) = (s.name.clone(), s.min, s.max);
        if fits { Ok(value) } else { Err(ExecError::Symbol { name, value, min, max }) }
    });
    checked.collect()
}

/// The symbol and its value where `size == v` has one unknown: `s`, `c·s`, `… + c`.
fn solve(size: &Size, v: i64) -> Option<(u16, i64)> {
    match size {
        Size::Symbol(s) => Some((*s, v)),
        Size::Mul(factors) => match &factors[..] {
            [Size::Const(c), rest] if *c != 0 && v % c == 0 => solve(rest, v / c),
            _ => None,
        },
        Size::Add(terms) => {
            let (consts, rest): (Vec<&Size>, Vec<&Size>) = terms.iter().partition(|t| matches!(t, Size::Const(_)));
            let total: i64 = consts.iter().filter_map(|c| if let Size::Const(c) = c { Some(*c) } else { None }).sum();
            match rest[..] {
                [one] => solve(one, v - total),
                _ => None,
            }
        }
        Size::Const(_) | Size::FloorDiv(..) | Size::Mod(..) | Size::Max(..) | Size::Min(..) => None,
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
