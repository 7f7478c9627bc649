//! Steps into command buffers: what a program's record function talks to.

use std::collections::BTreeSet;
use std::sync::Arc;

use ash::vk::{self, AccessFlags, Handle as _, PipelineStageFlags};

use crate::error::{ensure, vulkan};
use crate::info::check_limit;
use crate::queue::{CommandPool, Scope, anything, barrier, kernels};
use crate::{Buffer, EntryDesc, Error, IoDesc, MemoryKind, Model, Result, SessionOptions, Timestamps};

/// Memory whose address a base holds: a chunk of the slot's arena or of the weights, its I/O table, the state, its symbol table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "said above")]
pub enum Base {
    Arena(u32),
    Weights(u32),
    IoTable,
    State,
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
    model: Model,
    state: Option<Arc<Buffer>>,
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
    queries: vk::QueryPool,
    n_times: u32,
    pool: CommandPool,
    /// Timeline value of the run in flight.
    pub(crate) pending: Option<u64>,
    /// Nobody waits for it any more.
    pub(crate) cancelled: bool,
}

impl Slot {
    /// Allocates what a run needs beside its arena, and records the steps.
    pub(crate) fn new(
        model: &Model,
        state: Option<Arc<Buffer>>,
        arena: Arc<Vec<Buffer>>,
        entry: &EntryDesc<'_>,
        options: &SessionOptions,
    ) -> Result<Slot> {
        let upload = |bytes, what| Buffer::new(&model.device, bytes, MemoryKind::Upload, what);
        let readback = |bytes, what| Buffer::new(&model.device, bytes, MemoryKind::Readback, what);
        let port = |port: &IoDesc| match port.output {
            true => readback(port.max_bytes, "an output"),
            false => upload(port.max_bytes, "an input"),
        };
        let mut slot = Slot {
            io_table: upload(entry.io.len() as u64 * 8, "an I/O table")?,
            io: entry.io.iter().map(port).collect::<Result<_>>()?,
            symbols: upload(u64::from(entry.table_words) * 4, "a symbol table")?,
            n_symbols: entry.table_words as usize,
            trace: options.trace_steps.then(|| readback(4, "a step trace")).transpose()?,
            commands: Vec::new(),
            labels: Vec::new(),
            group_words: BTreeSet::new(),
            queries: vk::QueryPool::null(),
            n_times: 0,
            pool: CommandPool::new(&model.device)?,
            pending: None,
            cancelled: false,
            model: model.clone(),
            state,
            arena,
        };
        Recorder::record(&mut slot, entry, options)?;
        Ok(slot)
    }

    pub(crate) fn buffer(&self, base: Base) -> Option<&Buffer> {
        match base {
            Base::Arena(chunk) => self.arena.get(chunk as usize),
            Base::Weights(chunk) => self.model.weights.get(chunk as usize),
            Base::IoTable => Some(&self.io_table),
            Base::State => self.state.as_deref(),
            Base::Symbols => Some(&self.symbols),
        }
    }

    /// Nanoseconds between the timestamps of the latest run, which has finished.
    pub(crate) fn step_ns(&self) -> Result<Vec<f64>> {
        ensure(self.n_times > 0, || Error::Missing { what: "timestamps in this session" })?;
        let (device, mut ticks) = (&self.model.device, vec![0u64; self.n_times as usize]);
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
        self.pending.iter().for_each(|value| self.model.device.drain(*value));
        // SAFETY: no command buffer that uses the queries is pending; null is allowed.
        unsafe { self.model.device.raw.destroy_query_pool(self.queries, None) };
    }
}

/// Records the steps of an entry point, in order.
pub struct Recorder<'a> {
    slot: &'a mut Slot,
    bound: vk::Pipeline,
    label: String,
    timestamps: Timestamps,
    /// The first problem; nothing is recorded after it.
    error: Option<Error>,
}

impl<'a> Recorder<'a> {
    fn record(slot: &'a mut Slot, entry: &EntryDesc<'_>, options: &SessionOptions) -> Result<()> {
        slot.commands.push(slot.pool.begin()?);
        let (bound, label, timestamps) = (vk::Pipeline::null(), String::new(), options.timestamps);
        let mut recorder = Recorder { slot, bound, label, timestamps, error: None };
        if options.arenas.is_some() || recorder.slot.state.is_some() {
            // The runs before use the same memory. What the host wrote is visible by submission; copies and fills have barriers.
            recorder.barrier();
        }
        if timestamps != Timestamps::None {
            recorder.start_clock()?;
        }
        (entry.record)(&mut recorder);
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
            let (commands, slot) = (recorder.slot.commands(), &mut *recorder.slot);
            let (device, layout) = (&slot.model.device, slot.model.kernels.layout);
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
        let (pipeline, n_bases, n_operands) = *self.slot.model.kernels.list.get(kernel as usize)?;
        let takes = (bases.len(), offsets.len()) == (n_bases.into(), n_operands.into());
        let inside = !matches!(groups, Groups::Table(word) if usize::from(word) + 3 > self.slot.n_symbols);
        let addresses = bases.iter().map(|base| Some(self.buffer(*base)?.address().to_le_bytes()));
        let addresses = addresses.collect::<Option<Vec<_>>>().filter(|_| takes && inside)?;
        let words = offsets.iter().flat_map(|offset| offset.to_le_bytes());
        Some((pipeline, addresses.into_iter().flatten().chain(words).collect()))
    }

    /// Runs the caller's own commands as a step, such as a dispatch of another kernel: `record` gets the `VkCommandBuffer`.
    pub fn custom(&mut self, record: impl FnOnce(u64)) {
        self.step(|recorder| {
            recorder.bound = vk::Pipeline::null();
            record(recorder.slot.commands().as_raw());
            Ok(())
        });
    }

    /// The memory behind a base, if there is any.
    pub fn buffer(&self, base: Base) -> Option<&Buffer> {
        self.slot.buffer(base)
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
            barrier(&self.slot.model.device.raw, self.slot.commands(), kernels(), to);
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
            let (raw, commands) = (&self.slot.model.device.raw, self.slot.commands());
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
        // To reset all of them takes a run some 20 µs.
        let n_queries = if self.timestamps == Timestamps::Ends { 2 } else { MAX_TIMES };
        let raw = &self.slot.model.device.raw;
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
        let (slot, stage) = (&mut *self.slot, PipelineStageFlags::BOTTOM_OF_PIPE);
        // SAFETY: the command buffer is recording, and the pool has this query.
        unsafe { slot.model.device.raw.cmd_write_timestamp(slot.commands(), stage, slot.queries, slot.n_times) };
        slot.n_times += 1;
    }
}
