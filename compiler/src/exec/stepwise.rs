//! An entry point step by step, each (or as many as wanted) submitted alone, with all of its memory open to the host between them.
//!
//! Arena, state and ports are the chunks of one arena that the steps' sessions share; weights are the model's. So a step does exactly what
//! it does in a whole run, but for what runs beside it.

use super::{Call, ExecError, Loaded, Value};
use jvc_codegen::plan::{Base, Dispatch, Entry, Groups, Region, Step};
use jvc_runtime as rt;
use std::collections::BTreeMap;
use std::ops::Range;

/// A run that goes on a step at a time.
pub struct Stepwise<'a> {
    entry: &'a Entry,
    states: Vec<rt::StateInit>,
    model: rt::Model,
    chunk_bytes: Vec<u64>,
    memory: rt::Arenas,
    /// Keeps hold of the device's side.
    access: rt::Session,
    call: Call,
    /// The symbol table as the steps so far have left it.
    table: Vec<u32>,
}

impl<'a> Stepwise<'a> {
    /// Memory for a run at these inputs; see [`Stepwise::start`].
    ///
    /// # Errors
    /// Inputs that do not fit, or the runtime's.
    pub fn new(loaded: &Loaded<'a>, entry: usize, inputs: &[Value]) -> Result<Stepwise<'a>, ExecError> {
        let plan = loaded.plan;
        let states = super::state_init(plan, &plan.entries[entry]);
        let entry = &plan.entries[entry];
        let call = Call::new(entry, inputs)?;
        let mut chunk_bytes = entry.arena_bytes.clone();
        chunk_bytes.extend([entry.state_bytes(), u64::from(entry.n_io()) * 8]);
        chunk_bytes.extend(entry.io_ports().map(|(_, port)| port.max_bytes));
        let nothing = super::step_desc(&chunk_bytes, 0, &|_| {});
        let memory = loaded.model.arenas(&[&nothing], 1)?;
        let options = rt::SessionOptions { arenas: Some(memory.clone()), ..rt::SessionOptions::default() };
        let access = loaded.model.session_with(&nothing, &options)?;
        let (model, table) = (loaded.model.clone(), call.table.clone());
        Ok(Stepwise { entry, states, model, chunk_bytes, memory, access, call, table })
    }

    /// Puts everything where a run starts: poison (0xFF) in arena and outputs, initial states, inputs.
    ///
    /// # Errors
    /// The runtime's.
    pub fn start(&mut self) -> Result<(), ExecError> {
        for chunk in 0..self.chunk_bytes.len() {
            self.buffer(chunk).fill(u32::MAX)?;
        }
        let state = self.chunk(Region::State);
        self.buffer(state).fill(0)?;
        for init in &self.states {
            let mut bytes = vec![0; init.bytes as usize];
            let weights = self.access.buffer(0, rt::Base::Weights(init.chunk)).expect("states start from weights");
            weights.read(init.offset, &mut bytes)?;
            self.buffer(state).write(init.state_offset, &bytes)?;
        }
        for (slot, _) in self.entry.io_ports() {
            let address = self.buffer(self.chunk(Region::Io(slot))).address();
            self.buffer(state + 1).write(u64::from(slot) * 8, &address.to_le_bytes())?;
        }
        for ((slot, _), bytes) in self.entry.io_ports().zip(&self.call.inputs) {
            self.buffer(self.chunk(Region::Io(slot))).write(0, bytes)?;
        }
        self.table = self.call.table.clone();
        Ok(())
    }

    /// Runs steps, recorded together with their barriers, and waits.
    ///
    /// # Errors
    /// The runtime's.
    pub fn run(&mut self, steps: Range<usize>) -> Result<(), ExecError> {
        let record = |r: &mut rt::Recorder<'_>| {
            for at in steps.clone() {
                match &self.entry.steps[at] {
                    Step::Barrier if self.entry.orders_groups(at) => r.barrier_for_groups(),
                    Step::Barrier => r.barrier(),
                    Step::Dispatch(d) => self.record(d, r),
                }
            }
        };
        let desc = super::step_desc(&self.chunk_bytes, self.table.len() as u32, &record);
        let options = rt::SessionOptions { arenas: Some(self.memory.clone()), ..rt::SessionOptions::default() };
        let mut session = self.model.session_with(&desc, &options)?;
        let ticket = session.submit(&self.table, &[], &[])?;
        self.table = session.read_table(&ticket)?;
        session.wait(ticket, &mut [])?;
        if self.entry.symbols.iter().any(|s| s.found.is_some()) {
            // Sizes that later steps find still are at their bounds.
            self.call.find(self.entry, &self.table).or_else(|e| match e {
                ExecError::Found { .. } => Ok(()),
                e => Err(e),
            })?;
        }
        Ok(())
    }

    fn record(&self, d: &Dispatch, r: &mut rt::Recorder<'_>) {
        let base = |b: &Base| match *b {
            Base::Arena(chunk) => rt::Base::Arena(chunk),
            Base::Weights(chunk) => rt::Base::Weights(chunk),
            Base::State => rt::Base::Arena(self.chunk(Region::State) as u32),
            Base::IoTable => rt::Base::Arena(self.chunk(Region::State) as u32 + 1),
            Base::Symbols => rt::Base::Symbols,
        };
        let bases: Vec<rt::Base> = d.bases.iter().map(base).collect();
        let groups = match d.groups {
            Groups::Fixed(g) => rt::Groups::Fixed(g),
            Groups::Table(word) => rt::Groups::Table(word),
        };
        r.step_label(&d.label);
        r.dispatch(d.kernel, &bases, &d.offsets, groups);
    }

    /// Copies bytes of a region out.
    ///
    /// # Errors
    /// The runtime's.
    pub fn read(&self, region: Region, offset: u64, bytes: u64) -> Result<Vec<u8>, ExecError> {
        let mut out = vec![0; bytes as usize];
        self.buffer(self.chunk(region)).read(offset, &mut out)?;
        Ok(out)
    }

    /// Copies bytes into a region.
    ///
    /// # Errors
    /// The runtime's.
    pub fn write(&self, region: Region, offset: u64, bytes: &[u8]) -> Result<(), ExecError> {
        Ok(self.buffer(self.chunk(region)).write(offset, bytes)?)
    }

    /// Values of the symbols, as far as the steps so far have found them.
    pub fn symbols(&self) -> BTreeMap<String, i64> {
        self.entry.symbols.iter().map(|s| s.name.clone()).zip(self.call.symbols.iter().copied()).collect()
    }

    /// Of what a step writes: arena, state and ports.
    fn chunk(&self, region: Region) -> usize {
        let n_arena = self.entry.arena_bytes.len();
        match region {
            Region::Arena(chunk) => chunk as usize,
            Region::State => n_arena,
            Region::Io(slot) => n_arena + 2 + slot as usize,
            Region::Weights(_) | Region::Symbols => panic!("{region} is none of the memory of a run"),
        }
    }

    fn buffer(&self, chunk: usize) -> &rt::Buffer {
        self.access.buffer(0, rt::Base::Arena(chunk as u32)).expect("every chunk is allocated")
    }
}
