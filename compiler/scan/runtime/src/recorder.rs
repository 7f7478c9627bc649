//! Steps into command buffers: what a program's record function talks to.

use std::sync::Arc;

use ash::vk;
use ash::vk::{AccessFlags, PipelineStageFlags};

use crate::error::{Error, Named as _};
use crate::gpu::{CommandPool, barrier, full_barrier};
use crate::kernel::Kernel;
use crate::memory::Buffer;
use crate::program::Loaded;

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

/// Drivers have crashed on command buffers with many more.
const MAX_DISPATCHES: u32 = 3_000;

/// Kernels, with their reads and writes.
const KERNELS: (PipelineStageFlags, AccessFlags) = (
    PipelineStageFlags::COMPUTE_SHADER,
    AccessFlags::from_raw(AccessFlags::SHADER_READ.as_raw() | AccessFlags::SHADER_WRITE.as_raw()),
);
const KERNELS_WROTE: (PipelineStageFlags, AccessFlags) =
    (PipelineStageFlags::COMPUTE_SHADER, AccessFlags::SHADER_WRITE);

/// Memory of a slot.
pub(crate) struct SlotMemory {
    pub(crate) arena: Arc<Vec<Buffer>>,
    pub(crate) io_table: Buffer,
    pub(crate) io: Vec<Option<Buffer>>,
    pub(crate) symbols: Buffer,
    pub(crate) n_symbols: u32,
}

/// What is recorded besides the steps.
#[derive(Clone, Copy, Default)]
pub(crate) struct Extras {
    /// Orders the run behind all runs before it.
    pub(crate) ordered: bool,
    /// A pool of this many queries: a timestamp before the first step and after each one.
    pub(crate) timestamps: Option<(vk::QueryPool, u32)>,
    /// Word that holds the number of steps done so far.
    pub(crate) trace: Option<vk::Buffer>,
}

/// Recorded command buffers, submitted in order. Owners drop it when none of them is pending.
pub(crate) struct Recording {
    pub(crate) parts: Vec<Part>,
    /// Name of each dispatch.
    pub(crate) labels: Vec<String>,
    /// Words of the symbol table that are group counts, by triples.
    pub(crate) group_words: Vec<u16>,
    pub(crate) descriptors: Vec<vk::DescriptorPool>,
    pool: CommandPool,
}

/// One command buffer.
pub(crate) struct Part {
    pub(crate) commands: vk::CommandBuffer,
    /// Number of its first dispatch.
    pub(crate) first_step: u32,
}

impl Drop for Recording {
    fn drop(&mut self) {
        for pool in &self.descriptors {
            // SAFETY: the command buffers that use its sets are not pending.
            unsafe { self.pool.device.raw.destroy_descriptor_pool(*pool, None) };
        }
    }
}

/// Records the steps of an entry point, in order.
pub struct Recorder<'a> {
    pub(crate) model: &'a Loaded,
    pub(crate) memory: &'a SlotMemory,
    pub(crate) state: Option<&'a Buffer>,
    pub(crate) recording: Recording,
    extras: Extras,
    bound: vk::Pipeline,
    n_steps: u32,
    label: String,
    /// The first problem; nothing is recorded after it.
    error: Option<Error>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn record(
        model: &'a Loaded,
        memory: &'a SlotMemory,
        state: Option<&'a Buffer>,
        extras: Extras,
        steps: &dyn Fn(&mut Recorder<'_>),
    ) -> Result<Recording, Error> {
        let (pool, descriptors) = (CommandPool::new(&model.device)?, Vec::new());
        let recording = Recording { parts: Vec::new(), labels: Vec::new(), group_words: Vec::new(), descriptors, pool };
        let (bound, label) = (vk::Pipeline::null(), String::new());
        let mut recorder = Recorder { model, memory, state, recording, extras, bound, n_steps: 0, label, error: None };
        recorder.begin_part()?;
        recorder.start();
        steps(&mut recorder);
        recorder.attempt(|recorder| {
            // Outputs, and symbols that kernels wrote, become visible to the host.
            let host = (PipelineStageFlags::HOST, AccessFlags::HOST_READ);
            barrier(&model.device.raw, recorder.commands(), KERNELS_WROTE, host);
            recorder.end_part()
        });
        recorder.error.map_or(Ok(recorder.recording), Err)
    }

    /// Names the next dispatch.
    pub fn step_label(&mut self, label: &str) {
        self.label.clear();
        self.label.push_str(label);
    }

    /// Runs a kernel: as many bases and offsets as it has. An offset counts units of 16 bytes from its base, or is a slot of the
    /// I/O table. Mistakes are reported by the session's creation.
    pub fn dispatch(&mut self, kernel: u32, bases: &[Base], offsets: &[u32], groups: Groups) {
        self.attempt(|recorder| {
            let kernel = recorder.kernel(kernel)?;
            let (n, got) = ((kernel.n_bases.into(), kernel.n_operands.into()), (bases.len(), offsets.len()));
            if n != got || n.0 == 0 {
                return Err(recorder.mistake(&format!("{got:?} bases and offsets for a kernel with {n:?}")));
            }
            let mut push = [0; u8::MAX as usize * 12];
            let (addresses, rest) = push.split_at_mut(n.0 * 8);
            for (base, bytes) in bases.iter().zip(addresses.chunks_exact_mut(8)) {
                bytes.copy_from_slice(&recorder.address(*base)?.to_le_bytes());
            }
            for (offset, bytes) in offsets.iter().zip(rest.chunks_exact_mut(4)) {
                bytes.copy_from_slice(&offset.to_le_bytes());
            }
            recorder.bind(&kernel);
            let (raw, stages) = (&recorder.model.device.raw, vk::ShaderStageFlags::COMPUTE);
            let push = &push[..n.0 * 8 + n.1 * 4];
            // SAFETY: the command buffer is recording; the layout's range has this size.
            unsafe { raw.cmd_push_constants(recorder.commands(), kernel.layout, stages, 0, push) };
            recorder.launch(groups)
        });
    }

    /// Orders the kernels before it and after it, and makes what those wrote visible to these.
    pub fn barrier(&mut self) {
        self.attempt(|recorder| {
            barrier(&recorder.model.device.raw, recorder.commands(), KERNELS_WROTE, KERNELS);
            Ok(())
        });
    }

    /// As [`Recorder::barrier`], and group counts that kernels wrote into the symbol table reach the dispatches after it: only where
    /// kernels do so, since devices read group counts ahead, and have to drain for this.
    pub fn barrier_for_groups(&mut self) {
        self.attempt(|recorder| {
            let groups = (PipelineStageFlags::DRAW_INDIRECT, AccessFlags::INDIRECT_COMMAND_READ);
            let after = (KERNELS.0 | groups.0, KERNELS.1 | groups.1);
            barrier(&recorder.model.device.raw, recorder.commands(), KERNELS_WROTE, after);
            Ok(())
        });
    }

    /// Starts another submission: for devices whose watchdog would end a longer one.
    pub fn split(&mut self) {
        self.attempt(|recorder| {
            recorder.end_part()?;
            recorder.begin_part()
        });
    }

    pub(crate) fn attempt(&mut self, action: impl FnOnce(&mut Self) -> Result<(), Error>) {
        if self.error.is_none() {
            self.error = action(self).err();
        }
    }

    fn start(&mut self) {
        let (raw, commands) = (&self.model.device.raw, self.commands());
        // What the host wrote is visible by submission, and copies and fills have barriers of their own.
        if self.extras.ordered {
            barrier(raw, commands, KERNELS_WROTE, KERNELS);
        }
        if let Some((queries, n)) = self.extras.timestamps {
            // SAFETY: the profile makes the pool for one query more than there are steps.
            unsafe {
                raw.cmd_reset_query_pool(commands, queries, 0, n);
                raw.cmd_write_timestamp(commands, PipelineStageFlags::BOTTOM_OF_PIPE, queries, 0);
            }
        }
    }

    fn begin_part(&mut self) -> Result<(), Error> {
        let part = Part { commands: self.recording.pool.begin()?, first_step: self.n_steps };
        self.recording.parts.push(part);
        self.bound = vk::Pipeline::null();
        Ok(())
    }

    fn end_part(&mut self) -> Result<(), Error> {
        // SAFETY: the last command buffer is recording.
        unsafe { self.model.device.raw.end_command_buffer(self.commands()) }.named("vkEndCommandBuffer")
    }

    fn part(&self) -> &Part {
        self.recording.parts.last().expect("recording starts with a part")
    }

    pub(crate) fn commands(&self) -> vk::CommandBuffer {
        self.part().commands
    }

    pub(crate) fn kernel(&mut self, index: u32) -> Result<Kernel, Error> {
        if self.n_steps - self.part().first_step == MAX_DISPATCHES {
            self.end_part()?;
            self.begin_part()?;
        }
        self.model.kernels.get(index).copied().ok_or_else(|| self.mistake(&format!("no kernel {index}")))
    }

    fn address(&self, base: Base) -> Result<u64, Error> {
        let buffer = match base {
            Base::Arena(chunk) => self.memory.arena.get(chunk as usize),
            Base::Weights(chunk) => self.model.weights.get(chunk as usize),
            Base::IoTable => Some(&self.memory.io_table),
            Base::State => self.state,
            Base::Symbols => Some(&self.memory.symbols),
        };
        buffer.map(Buffer::address).ok_or_else(|| self.mistake(&format!("{base:?} does not exist")))
    }

    pub(crate) fn bind(&mut self, kernel: &Kernel) {
        if self.bound != kernel.pipeline {
            let (raw, point) = (&self.model.device.raw, vk::PipelineBindPoint::COMPUTE);
            // SAFETY: the command buffer is recording; sessions keep the model's pipelines alive.
            unsafe { raw.cmd_bind_pipeline(self.commands(), point, kernel.pipeline) };
            self.bound = kernel.pipeline;
        }
    }

    pub(crate) fn launch(&mut self, groups: Groups) -> Result<(), Error> {
        let (device, commands) = (&self.model.device, self.commands());
        match groups {
            Groups::Fixed(counts) => {
                device.info.check_groups(counts)?;
                // SAFETY: pipeline and push constants (or set) are bound, the counts are within the limits.
                unsafe { device.raw.cmd_dispatch(commands, counts[0], counts[1], counts[2]) };
            }
            Groups::Table(word) if u32::from(word) + 3 <= self.memory.n_symbols => {
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
        self.n_steps += 1;
        self.recording.labels.push(std::mem::take(&mut self.label));
        self.mark_done();
        Ok(())
    }

    fn mark_done(&self) {
        let (raw, commands, n_done) = (&self.model.device.raw, self.commands(), self.n_steps);
        if let Some((queries, _)) = self.extras.timestamps {
            // SAFETY: the pool has one query more than there are steps.
            unsafe { raw.cmd_write_timestamp(commands, PipelineStageFlags::BOTTOM_OF_PIPE, queries, n_done) };
        }
        if let Some(word) = self.extras.trace {
            full_barrier(raw, commands);
            // SAFETY: the buffer lives as long as the slot.
            unsafe { raw.cmd_fill_buffer(commands, word, 0, 4, n_done) };
            full_barrier(raw, commands);
        }
    }

    pub(crate) fn mistake(&self, what: &str) -> Error {
        Error::Description(format!("step {} ({}): {what}", self.n_steps, self.label))
    }
}
