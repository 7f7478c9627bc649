//! Steps into command buffers: what a program's record function talks to.

use std::collections::BTreeSet;
use std::sync::Arc;

use ash::vk::{self, AccessFlags, Handle as _, PipelineStageFlags};

use crate::error::{ensure, vulkan};
use crate::info::check_limit;
use crate::queue::{CommandPool, Scope, anything, barrier, kernels};
use crate::{Buffer, Error, Model, Result, Timestamps};

/// Address that a push-constant base holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Start of an arena chunk of the slot.
    Arena(u32),
    /// Start of a weight chunk.
    Weights(u32),
    /// The slot's I/O table.
    IoTable,
    /// The session's state.
    State,
    /// The slot's symbol table.
    Symbols,
}

/// Workgroups of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Groups {
    /// Known when recorded.
    Fixed([u32; 3]),
    /// Three words of the symbol table from this one on, read when the step runs.
    Table(u16),
}

/// Steps of a command buffer: drivers have crashed on many more.
const MAX_STEPS: usize = 3_000;

/// Timestamps of a recording whose steps are timed, at most.
const MAX_TIMES: u32 = 1 << 16;

/// A run's memory and recorded command buffers, which are submitted together. Its drop waits for a run in flight.
pub(crate) struct Slot {
    pub(crate) arena: Arc<Vec<Buffer>>,
    pub(crate) io_table: Buffer,
    pub(crate) io: Vec<Buffer>,
    pub(crate) symbols: Buffer,
    pub(crate) n_symbols: usize,
    /// Word that holds the number of steps done so far.
    pub(crate) trace: Option<Buffer>,
    pub(crate) commands: Vec<vk::CommandBuffer>,
    /// Name of each step.
    pub(crate) labels: Vec<String>,
    /// Words of the symbol table that are group counts, by triples.
    pub(crate) group_words: BTreeSet<u16>,
    /// Timestamps; null without.
    pub(crate) queries: vk::QueryPool,
    pub(crate) n_times: u32,
    pub(crate) pool: CommandPool,
    /// Timeline value of the run in flight.
    pub(crate) pending: Option<u64>,
    /// Nobody waits for it any more.
    pub(crate) cancelled: bool,
}

impl Slot {
    pub(crate) fn buffer<'a>(&'a self, base: Base, model: &'a Model, state: Option<&'a Buffer>) -> Option<&'a Buffer> {
        match base {
            Base::Arena(chunk) => self.arena.get(chunk as usize),
            Base::Weights(chunk) => model.weights.get(chunk as usize),
            Base::IoTable => Some(&self.io_table),
            Base::State => state,
            Base::Symbols => Some(&self.symbols),
        }
    }

    /// Nanoseconds between the timestamps of the latest run, which has finished.
    pub(crate) fn step_ns(&self) -> Result<Vec<f64>> {
        ensure(self.n_times > 0, || Error::Missing { what: "timestamps in this session" })?;
        let (device, mut ticks) = (&self.pool.device, vec![0u64; self.n_times as usize]);
        // SAFETY: the run has finished, so these queries are available.
        unsafe { device.raw.get_query_pool_results(self.queries, 0, &mut ticks, vk::QueryResultFlags::TYPE_64) }
            .map_err(vulkan("vkGetQueryPoolResults"))?;
        let period = f64::from(device.info.timestamp_period_ns);
        Ok(ticks.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 * period).collect())
    }

    /// The command buffer that is recording.
    fn commands(&self) -> vk::CommandBuffer {
        *self.commands.last().expect("recording starts with a command buffer")
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pending.iter().for_each(|value| self.pool.device.drain(*value));
        // SAFETY: no command buffer that uses the queries is pending; null is allowed.
        unsafe { self.pool.device.raw.destroy_query_pool(self.queries, None) };
    }
}

/// Records the steps of an entry point, in order.
pub struct Recorder<'a> {
    model: &'a Model,
    state: Option<&'a Buffer>,
    slot: &'a mut Slot,
    bound: vk::Pipeline,
    label: String,
    timestamps: Timestamps,
    /// The first problem; nothing is recorded after it.
    error: Option<Error>,
}

impl<'a> Recorder<'a> {
    /// Records the steps into a new slot. Those of an `ordered` entry point come after all runs before.
    pub(crate) fn record(
        model: &'a Model,
        state: Option<&'a Buffer>,
        slot: &'a mut Slot,
        ordered: bool,
        timestamps: Timestamps,
        steps: &dyn Fn(&mut Recorder<'_>),
    ) -> Result<()> {
        slot.commands.push(slot.pool.begin()?);
        let (bound, label) = (vk::Pipeline::null(), String::new());
        let mut recorder = Recorder { model, state, slot, bound, label, timestamps, error: None };
        if ordered {
            // What the host wrote is visible by submission, and copies and fills have barriers of their own.
            recorder.barrier();
        }
        if timestamps != Timestamps::None {
            recorder.start_clock()?;
        }
        steps(&mut recorder);
        if timestamps == Timestamps::Ends {
            recorder.take_time();
        }
        // Outputs, and symbols that kernels wrote, become visible to the host.
        recorder.order((PipelineStageFlags::HOST, AccessFlags::HOST_READ));
        recorder.error.map_or(Ok(()), Err)?;
        slot.pool.end(slot.commands())
    }

    /// Names the next step.
    pub fn step_label(&mut self, label: &str) {
        label.clone_into(&mut self.label);
    }

    /// Runs a kernel: as many bases and offsets as it has. An offset counts units of 16 bytes from its base, or is a slot of the
    /// I/O table. Mistakes are reported by the session's creation.
    pub fn dispatch(&mut self, kernel: u32, bases: &[Base], offsets: &[u32], groups: Groups) {
        self.step(|recorder| {
            let Some((pipeline, push)) = recorder.resolve(kernel, bases, offsets, groups) else {
                let (step, label) = (recorder.slot.labels.len(), &recorder.label);
                let call = format!("kernel {kernel} on {bases:?} at {offsets:?} by {groups:?}");
                return Err(Error::Description { reason: format!("step {step} ({label}) cannot be {call}") });
            };
            let (device, layout, slot) = (&recorder.model.device, recorder.model.kernels.layout, &mut *recorder.slot);
            let commands = slot.commands();
            // SAFETY: the command buffer is recording; sessions keep the model's pipelines alive; the layout has room for any kernel's
            // constants; words of the table lie inside it, and group counts are checked: here, or by runs.
            unsafe {
                if recorder.bound != pipeline {
                    device.raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, pipeline);
                    recorder.bound = pipeline;
                }
                device.raw.cmd_push_constants(commands, layout, vk::ShaderStageFlags::COMPUTE, 0, &push);
                match groups {
                    Groups::Fixed([x, y, z]) => {
                        device.info.check_groups([x, y, z])?;
                        device.raw.cmd_dispatch(commands, x, y, z);
                    }
                    Groups::Table(word) => {
                        device.raw.cmd_dispatch_indirect(commands, slot.symbols.handle, u64::from(word) * 4);
                        slot.group_words.insert(word);
                    }
                }
            }
            Ok(())
        });
    }

    /// Pipeline and push constants of a dispatch, if all that it names exists.
    fn resolve(&self, kernel: u32, bases: &[Base], offsets: &[u32], groups: Groups) -> Option<(vk::Pipeline, Vec<u8>)> {
        let (pipeline, n_bases, n_operands) = *self.model.kernels.list.get(kernel as usize)?;
        let takes = (bases.len(), offsets.len()) == (n_bases.into(), n_operands.into());
        let inside = !matches!(groups, Groups::Table(word) if usize::from(word) + 3 > self.slot.n_symbols);
        let addresses = bases.iter().map(|base| Some(self.buffer(*base)?.address().to_le_bytes()));
        let addresses = addresses.collect::<Option<Vec<_>>>().filter(|_| takes && inside)?;
        let words = offsets.iter().flat_map(|offset| offset.to_le_bytes());
        Some((pipeline, addresses.into_iter().flatten().chain(words).collect()))
    }

    /// Runs the caller's own commands as a step, such as a dispatch of a kernel that is none of the program's: `record` gets the
    /// `VkCommandBuffer`.
    pub fn custom(&mut self, record: impl FnOnce(u64)) {
        self.step(|recorder| {
            recorder.bound = vk::Pipeline::null();
            record(recorder.slot.commands().as_raw());
            Ok(())
        });
    }

    /// The memory behind a base, if there is any.
    pub fn buffer(&self, base: Base) -> Option<&Buffer> {
        self.slot.buffer(base, self.model, self.state)
    }

    /// Orders the kernels before it and after it, and makes what those wrote visible to these.
    pub fn barrier(&mut self) {
        self.order(kernels());
    }

    /// As [`Recorder::barrier`], and group counts that kernels wrote into the symbol table reach the dispatches after it: only where
    /// kernels do so, since devices read group counts ahead, and have to drain for this.
    pub fn barrier_for_groups(&mut self) {
        let (stages, accesses) = kernels();
        self.order((stages | PipelineStageFlags::DRAW_INDIRECT, accesses | AccessFlags::INDIRECT_COMMAND_READ));
    }

    fn order(&mut self, to: Scope) {
        if self.error.is_none() {
            barrier(&self.model.device.raw, self.slot.commands(), kernels(), to);
        }
    }

    fn step(&mut self, record: impl FnOnce(&mut Self) -> Result<()>) {
        if self.error.is_none() {
            self.error = self.try_step(record).err();
        }
    }

    fn try_step(&mut self, record: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let n_done = self.slot.labels.len();
        if n_done > 0 && n_done.is_multiple_of(MAX_STEPS) {
            self.slot.pool.end(self.slot.commands())?;
            self.slot.commands.push(self.slot.pool.begin()?);
            self.bound = vk::Pipeline::null();
        }
        record(self)?;
        self.slot.labels.push(std::mem::take(&mut self.label));
        if let Some(word) = &self.slot.trace {
            let (raw, commands) = (&self.model.device.raw, self.slot.commands());
            barrier(raw, commands, anything(), anything());
            // SAFETY: the buffer lives as long as the slot.
            unsafe { raw.cmd_fill_buffer(commands, word.handle, 0, 4, n_done as u32 + 1) };
            barrier(raw, commands, anything(), anything());
        }
        if self.timestamps == Timestamps::Steps {
            check_limit("timestamps of a recording", u64::from(self.slot.n_times) + 1, MAX_TIMES.into())?;
            self.take_time();
        }
        Ok(())
    }

    fn start_clock(&mut self) -> Result<()> {
        let (raw, n_queries) = (&self.model.device.raw, MAX_TIMES);
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(n_queries);
        // SAFETY: a plain creation, of which the slot takes care; the command buffer is recording.
        unsafe {
            self.slot.queries = raw.create_query_pool(&info, None).map_err(vulkan("vkCreateQueryPool"))?;
            raw.cmd_reset_query_pool(self.slot.commands(), self.slot.queries, 0, n_queries);
        }
        self.take_time();
        Ok(())
    }

    fn take_time(&mut self) {
        let (commands, queries, query) = (self.slot.commands(), self.slot.queries, self.slot.n_times);
        let stage = PipelineStageFlags::BOTTOM_OF_PIPE;
        // SAFETY: the command buffer is recording, and the pool has this query.
        unsafe { self.model.device.raw.cmd_write_timestamp(commands, stage, queries, query) };
        self.slot.n_times += 1;
    }
}
