//! Steps into command buffers: what a program's record function talks to.

use std::sync::Arc;

use ash::vk;
use ash::vk::{AccessFlags, Handle as _, PipelineStageFlags};

use crate::error::{Error, Named as _};
use crate::memory::Buffer;
use crate::program::Loaded;
use crate::queue::{CommandPool, Scope, anything, barrier, kernels};
use crate::session::Timestamps;

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

/// Memory of a slot.
pub(crate) struct SlotMemory {
    pub(crate) arena: Arc<Vec<Buffer>>,
    pub(crate) io_table: Buffer,
    pub(crate) io: Vec<Buffer>,
    pub(crate) symbols: Buffer,
    pub(crate) n_symbols: usize,
    /// Word that holds the number of steps done so far.
    pub(crate) trace: Option<Buffer>,
}

impl SlotMemory {
    pub(crate) fn buffer<'a>(&'a self, base: Base, model: &'a Loaded, state: Option<&'a Buffer>) -> Option<&'a Buffer> {
        match base {
            Base::Arena(chunk) => self.arena.get(chunk as usize),
            Base::Weights(chunk) => model.weights.get(chunk as usize),
            Base::IoTable => Some(&self.io_table),
            Base::State => state,
            Base::Symbols => Some(&self.symbols),
        }
    }
}

/// Recorded command buffers, submitted together. Owners drop it when they are not pending.
pub(crate) struct Recording {
    pub(crate) commands: Vec<vk::CommandBuffer>,
    /// Name of each step.
    pub(crate) labels: Vec<String>,
    /// Words of the symbol table that are group counts, by triples.
    pub(crate) group_words: Vec<u16>,
    /// Timestamps; null without.
    queries: vk::QueryPool,
    n_queries: u32,
    pool: CommandPool,
}

impl Recording {
    /// Nanoseconds of each step of the latest run, which has finished.
    pub(crate) fn step_ns(&self) -> Result<Vec<f64>, Error> {
        if self.queries.is_null() {
            return Err(Error::Missing { what: "timestamps in this session" });
        }
        let (device, mut ticks) = (&self.pool.device, vec![0u64; self.n_queries as usize]);
        // SAFETY: the run has finished, so all queries are available.
        unsafe { device.raw.get_query_pool_results(self.queries, 0, &mut ticks, vk::QueryResultFlags::TYPE_64) }
            .named("vkGetQueryPoolResults")?;
        let period = f64::from(device.info.limits.timestamp_period_ns);
        Ok(ticks.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 * period).collect())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: the command buffers that use the queries are not pending; null is allowed.
        unsafe { self.pool.device.raw.destroy_query_pool(self.queries, None) };
    }
}

/// Records the steps of an entry point, in order.
pub struct Recorder<'a> {
    model: &'a Loaded,
    memory: &'a SlotMemory,
    state: Option<&'a Buffer>,
    recording: Recording,
    bound: vk::Pipeline,
    label: String,
    timestamps: Timestamps,
    /// The first problem; nothing is recorded after it.
    error: Option<Error>,
}

impl<'a> Recorder<'a> {
    /// Records the steps. Those of an `ordered` entry point come after all runs before. The `clock` says when the time is taken, and
    /// how often that is.
    pub(crate) fn record(
        model: &'a Loaded,
        memory: &'a SlotMemory,
        state: Option<&'a Buffer>,
        ordered: bool,
        clock: (Timestamps, u32),
        steps: &dyn Fn(&mut Recorder<'_>),
    ) -> Result<Recording, Error> {
        let (commands, labels, group_words) = (Vec::new(), Vec::new(), Vec::new());
        let (queries, n_queries, pool) = (vk::QueryPool::null(), clock.1, CommandPool::new(&model.device)?);
        let recording = Recording { commands, labels, group_words, queries, n_queries, pool };
        let (bound, label) = (vk::Pipeline::null(), String::new());
        let mut recorder = Recorder { model, memory, state, recording, bound, label, timestamps: clock.0, error: None };
        recorder.recording.commands.push(recorder.recording.pool.begin()?);
        if ordered {
            // What the host wrote is visible by submission, and copies and fills have barriers of their own.
            recorder.barrier();
        }
        recorder.start_clock()?;
        steps(&mut recorder);
        if clock.0 == Timestamps::Ends {
            recorder.take_time(1);
        }
        // Outputs, and symbols that kernels wrote, become visible to the host.
        recorder.record_barrier((PipelineStageFlags::HOST, AccessFlags::HOST_READ));
        recorder.attempt(|recorder| recorder.recording.pool.end(recorder.commands()));
        recorder.error.map_or(Ok(recorder.recording), Err)
    }

    /// Names the next step.
    pub fn step_label(&mut self, label: &str) {
        self.label.clear();
        self.label.push_str(label);
    }

    /// Runs a kernel: as many bases and offsets as it has. An offset counts units of 16 bytes from its base, or is a slot of the
    /// I/O table. Mistakes are reported by the session's creation.
    pub fn dispatch(&mut self, kernel: u32, bases: &[Base], offsets: &[u32], groups: Groups) {
        self.step(|recorder| {
            let unknown = || recorder.mistake(&format!("no kernel {kernel}"));
            let kernel = *recorder.model.kernels.get(kernel).ok_or_else(unknown)?;
            let (n, got) = ((kernel.n_bases, kernel.n_operands), (bases.len(), offsets.len()));
            if n != got {
                return Err(recorder.mistake(&format!("{got:?} bases and offsets for a kernel with {n:?}")));
            }
            let mut push = Vec::with_capacity(n.0 * 8 + n.1 * 4);
            for base in bases {
                let missing = || recorder.mistake(&format!("{base:?} does not exist"));
                push.extend(recorder.buffer(*base).ok_or_else(missing)?.address().to_le_bytes());
            }
            push.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
            let (raw, commands) = (&recorder.model.device.raw, recorder.commands());
            if recorder.bound != kernel.pipeline {
                // SAFETY: the command buffer is recording; sessions keep the model's pipelines alive.
                unsafe { raw.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, kernel.pipeline) };
                recorder.bound = kernel.pipeline;
            }
            // SAFETY: as above; the layout's range has this size.
            unsafe { raw.cmd_push_constants(commands, kernel.layout, vk::ShaderStageFlags::COMPUTE, 0, &push) };
            recorder.launch(groups)
        });
    }

    /// Runs the caller's own commands as a step, such as a dispatch of a kernel that is none of the program's: `record` gets the
    /// `VkCommandBuffer`.
    pub fn custom(&mut self, record: impl FnOnce(u64)) {
        self.step(|recorder| {
            recorder.bound = vk::Pipeline::null();
            record(recorder.commands().as_raw());
            Ok(())
        });
    }

    /// The memory behind a base, if there is any.
    pub fn buffer(&self, base: Base) -> Option<&'a Buffer> {
        self.memory.buffer(base, self.model, self.state)
    }

    /// Orders the kernels before it and after it, and makes what those wrote visible to these.
    pub fn barrier(&mut self) {
        self.record_barrier(kernels());
    }

    /// As [`Recorder::barrier`], and group counts that kernels wrote into the symbol table reach the dispatches after it: only where
    /// kernels do so, since devices read group counts ahead, and have to drain for this.
    pub fn barrier_for_groups(&mut self) {
        let (stages, accesses) = kernels();
        let stages = stages | PipelineStageFlags::DRAW_INDIRECT;
        self.record_barrier((stages, accesses | AccessFlags::INDIRECT_COMMAND_READ));
    }

    fn attempt(&mut self, action: impl FnOnce(&mut Self) -> Result<(), Error>) {
        if self.error.is_none() {
            self.error = action(self).err();
        }
    }

    fn record_barrier(&mut self, to: Scope) {
        self.attempt(|recorder| {
            barrier(&recorder.model.device.raw, recorder.commands(), kernels(), to);
            Ok(())
        });
    }

    fn step(&mut self, record: impl FnOnce(&mut Self) -> Result<(), Error>) {
        self.attempt(|recorder| {
            let n_done = recorder.recording.labels.len();
            if n_done > 0 && n_done % MAX_STEPS == 0 {
                recorder.recording.pool.end(recorder.commands())?;
                recorder.recording.commands.push(recorder.recording.pool.begin()?);
                recorder.bound = vk::Pipeline::null();
            }
            record(recorder)?;
            recorder.recording.labels.push(std::mem::take(&mut recorder.label));
            recorder.mark_done(n_done as u32 + 1);
            Ok(())
        });
    }

    fn commands(&self) -> vk::CommandBuffer {
        *self.recording.commands.last().expect("recording starts with a command buffer")
    }

    fn launch(&mut self, groups: Groups) -> Result<(), Error> {
        let (device, commands) = (&self.model.device, self.commands());
        match groups {
            Groups::Fixed(counts) => {
                device.info.check_groups(counts)?;
                // SAFETY: pipeline and push constants are bound, the counts are within the limits.
                unsafe { device.raw.cmd_dispatch(commands, counts[0], counts[1], counts[2]) };
            }
            Groups::Table(word) if usize::from(word) + 3 <= self.memory.n_symbols => {
                let (symbols, offset) = (self.memory.symbols.handle, u64::from(word) * 4);
                // SAFETY: as above; the three words lie inside the buffer, and runs check them.
                unsafe { device.raw.cmd_dispatch_indirect(commands, symbols, offset) };
                if !self.recording.group_words.contains(&word) {
                    self.recording.group_words.push(word);
                }
            }
            Groups::Table(word) => {
                return Err(self.mistake(&format!("group counts at word {word} lie outside the symbol table")));
            }
        }
        Ok(())
    }

    fn start_clock(&mut self) -> Result<(), Error> {
        if self.timestamps == Timestamps::None {
            return Ok(());
        }
        let n_queries = self.recording.n_queries;
        let (raw, commands) = (&self.model.device.raw, self.commands());
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP).query_count(n_queries);
        // SAFETY: a plain creation; the recording destroys the pool.
        self.recording.queries = unsafe { raw.create_query_pool(&info, None) }.named("vkCreateQueryPool")?;
        // SAFETY: the command buffer is recording, the pool is new.
        unsafe { raw.cmd_reset_query_pool(commands, self.recording.queries, 0, n_queries) };
        self.take_time(0);
        Ok(())
    }

    fn mark_done(&self, n_done: u32) {
        let (raw, commands) = (&self.model.device.raw, self.commands());
        if self.timestamps == Timestamps::Steps {
            self.take_time(n_done);
        }
        if let Some(word) = &self.memory.trace {
            barrier(raw, commands, anything(), anything());
            // SAFETY: the buffer lives as long as the slot.
            unsafe { raw.cmd_fill_buffer(commands, word.handle, 0, 4, n_done) };
            barrier(raw, commands, anything(), anything());
        }
    }

    fn take_time(&self, query: u32) {
        let (raw, queries) = (&self.model.device.raw, self.recording.queries);
        // SAFETY: the command buffer is recording, and the pool has this query: one more than there are steps, or the two ends.
        unsafe { raw.cmd_write_timestamp(self.commands(), PipelineStageFlags::BOTTOM_OF_PIPE, queries, query) };
    }

    fn mistake(&self, what: &str) -> Error {
        Error::Description(format!("step {} ({}): {what}", self.recording.labels.len(), self.label))
    }
}
