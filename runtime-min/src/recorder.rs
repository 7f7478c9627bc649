//! Steps into command buffers: what a program's record function talks to.

use ash::vk;

use crate::error::{Error, Named as _};
use crate::gpu::{CommandPool, Device, full_barrier};
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

/// A buffer range that a kernel in bindings form gets. Tests only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Where.
    pub region: Region,
    /// First byte; a multiple of the device's `min_storage_offset_alignment`.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A region of memory that [`Bound`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    /// Arena chunk of the slot.
    Arena(u32),
    /// Weight chunk.
    Weights(u32),
    /// Buffer behind a slot of the I/O table.
    Io(u32),
    /// The session's state.
    State,
    /// The slot's symbol table.
    Symbols,
}

/// Drivers have crashed on command buffers with many more.
const MAX_DISPATCHES: u32 = 3_000;

/// Memory of a slot that steps refer to.
pub(crate) struct Places<'a> {
    pub(crate) arena: &'a [Buffer],
    pub(crate) io_table: &'a Buffer,
    pub(crate) io: &'a [Option<Buffer>],
    pub(crate) symbols: &'a Buffer,
    pub(crate) n_symbols: u32,
    pub(crate) state: Option<&'a Buffer>,
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

/// Recorded command buffers, submitted in order.
pub(crate) struct Recording {
    pub(crate) pool: CommandPool,
    pub(crate) parts: Vec<Part>,
    /// Name of each dispatch.
    pub(crate) labels: Vec<String>,
    descriptors: Vec<vk::DescriptorPool>,
}

/// One command buffer.
pub(crate) struct Part {
    pub(crate) commands: vk::CommandBuffer,
    /// Number of its first dispatch.
    pub(crate) first_step: u32,
}

impl Recording {
    pub(crate) fn destroy(&self, device: &Device) {
        self.pool.destroy(device);
        for pool in &self.descriptors {
            // SAFETY: the caller has waited for the command buffers that use its sets.
            unsafe { device.raw.destroy_descriptor_pool(*pool, None) };
        }
    }
}

/// Records the steps of an entry point, in order.
pub struct Recorder<'a> {
    model: &'a Loaded,
    places: Places<'a>,
    extras: Extras,
    recording: Recording,
    bound: vk::Pipeline,
    n_steps: u32,
    label: String,
    /// The first problem; nothing is recorded after it.
    error: Option<Error>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn record(
        model: &'a Loaded,
        places: Places<'a>,
        extras: Extras,
        steps: &dyn Fn(&mut Recorder<'_>),
    ) -> Result<Recording, Error> {
        let pool = CommandPool::new(&model.device)?;
        let recording = Recording { pool, parts: Vec::new(), labels: Vec::new(), descriptors: Vec::new() };
        let bound = vk::Pipeline::null();
        let mut recorder =
            Recorder { model, places, extras, recording, bound, n_steps: 0, label: String::new(), error: None };
        if let Err(error) = recorder.begin_part() {
            recorder.recording.destroy(&model.device);
            return Err(error);
        }
        recorder.start();
        steps(&mut recorder);
        recorder.finish()
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
            let n = (usize::from(kernel.n_bases), usize::from(kernel.n_operands));
            if n != (bases.len(), offsets.len()) || n.0 == 0 {
                let got = (bases.len(), offsets.len());
                return Err(recorder.mistake(&format!("{got:?} bases and offsets for a kernel with {n:?}")));
            }
            let mut push = [0; 1024];
            let mut end = 0;
            for base in bases {
                push[end..end + 8].copy_from_slice(&recorder.address(*base)?.to_le_bytes());
                end += 8;
            }
            for offset in offsets {
                push[end..end + 4].copy_from_slice(&offset.to_le_bytes());
                end += 4;
            }
            recorder.bind(&kernel);
            let (raw, commands) = (&recorder.model.device.raw, recorder.commands());
            // SAFETY: the command buffer is recording; the layout's range has this size.
            unsafe {
                raw.cmd_push_constants(commands, kernel.layout, vk::ShaderStageFlags::COMPUTE, 0, &push[..end]);
            }
            recorder.launch(groups)
        });
    }

    /// Runs a kernel in bindings form, which the validation layer can see through. Tests only.
    pub fn dispatch_bound(&mut self, kernel: u32, operands: &[Bound], groups: Groups) {
        self.attempt(|recorder| {
            let kernel = recorder.kernel(kernel)?;
            if kernel.n_bases != 0 || usize::from(kernel.n_operands) != operands.len() {
                return Err(recorder.mistake("operands do not fit the kernel's bindings"));
            }
            recorder.bind(&kernel);
            recorder.bind_operands(&kernel, operands)?;
            recorder.launch(groups)
        });
    }

    /// Makes all writes before it visible to all reads, writes and indirect arguments after it.
    pub fn barrier(&mut self) {
        if self.error.is_some() {
            return;
        }
        let barrier = [vk::MemoryBarrier::default().src_access_mask(vk::AccessFlags::SHADER_WRITE).dst_access_mask(
            vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::INDIRECT_COMMAND_READ,
        )];
        let compute = vk::PipelineStageFlags::COMPUTE_SHADER;
        let after = compute | vk::PipelineStageFlags::DRAW_INDIRECT;
        let none = vk::DependencyFlags::empty();
        // SAFETY: the command buffer is recording.
        unsafe {
            self.model.device.raw.cmd_pipeline_barrier(self.commands(), compute, after, none, &barrier, &[], &[]);
        }
    }

    /// Starts another submission: for devices whose watchdog would end a longer one.
    pub fn split(&mut self) {
        self.attempt(|recorder| {
            recorder.end_part()?;
            recorder.begin_part()
        });
    }

    fn attempt(&mut self, action: impl FnOnce(&mut Self) -> Result<(), Error>) {
        if self.error.is_none() {
            self.error = action(self).err();
        }
    }

    fn start(&mut self) {
        let (raw, commands) = (&self.model.device.raw, self.commands());
        if self.extras.ordered {
            full_barrier(raw, commands);
        }
        if let Some((queries, n)) = self.extras.timestamps {
            // SAFETY: the profile makes the pool for one query more than there are steps.
            unsafe {
                raw.cmd_reset_query_pool(commands, queries, 0, n);
                raw.cmd_write_timestamp(commands, vk::PipelineStageFlags::BOTTOM_OF_PIPE, queries, 0);
            }
        }
    }

    fn finish(mut self) -> Result<Recording, Error> {
        self.attempt(|recorder| {
            recorder.show_host();
            recorder.end_part()
        });
        match self.error {
            None => Ok(self.recording),
            Some(error) => {
                self.recording.destroy(&self.model.device);
                Err(error)
            }
        }
    }

    /// Outputs, and symbols that kernels wrote, become visible to the host.
    fn show_host(&self) {
        let barrier = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ)];
        let (from, to) = (vk::PipelineStageFlags::COMPUTE_SHADER, vk::PipelineStageFlags::HOST);
        let none = vk::DependencyFlags::empty();
        // SAFETY: the command buffer is recording.
        unsafe { self.model.device.raw.cmd_pipeline_barrier(self.commands(), from, to, none, &barrier, &[], &[]) };
    }

    fn begin_part(&mut self) -> Result<(), Error> {
        let commands = self.recording.pool.begin(&self.model.device, vk::CommandBufferUsageFlags::empty())?;
        self.recording.parts.push(Part { commands, first_step: self.n_steps });
        self.bound = vk::Pipeline::null();
        Ok(())
    }

    fn end_part(&mut self) -> Result<(), Error> {
        // SAFETY: the last command buffer is recording.
        unsafe { self.model.device.raw.end_command_buffer(self.commands()) }.named("vkEndCommandBuffer")
    }

    fn commands(&self) -> vk::CommandBuffer {
        self.recording.parts.last().expect("recording starts with a part").commands
    }

    fn kernel(&mut self, index: u32) -> Result<Kernel, Error> {
        let first = self.recording.parts.last().expect("recording starts with a part").first_step;
        if self.n_steps - first == MAX_DISPATCHES {
            self.end_part()?;
            self.begin_part()?;
        }
        self.model.kernels.get(index).copied().ok_or_else(|| self.mistake(&format!("no kernel {index}")))
    }

    fn address(&self, base: Base) -> Result<u64, Error> {
        let (weights, places) = (&self.model.weights, &self.places);
        let buffer = match base {
            Base::Arena(chunk) => places.arena.get(chunk as usize),
            Base::Weights(chunk) => weights.get(chunk as usize),
            Base::IoTable => Some(places.io_table),
            Base::State => places.state,
            Base::Symbols => Some(places.symbols),
        };
        buffer.map(Buffer::address).ok_or_else(|| self.mistake(&format!("{base:?} does not exist")))
    }

    fn bind(&mut self, kernel: &Kernel) {
        if self.bound != kernel.pipeline {
            let (raw, point) = (&self.model.device.raw, vk::PipelineBindPoint::COMPUTE);
            // SAFETY: the command buffer is recording; sessions keep the model's pipelines alive.
            unsafe { raw.cmd_bind_pipeline(self.commands(), point, kernel.pipeline) };
            self.bound = kernel.pipeline;
        }
    }

    fn launch(&mut self, groups: Groups) -> Result<(), Error> {
        let (device, commands) = (&self.model.device, self.commands());
        match groups {
            Groups::Fixed(counts) => {
                let max = device.info.limits.max_workgroup_count;
                if counts.iter().zip(max).any(|(count, max)| *count > max) {
                    let (need, fact) = (format!("{counts:?}"), format!("{max:?}"));
                    return Err(Error::Requirement { what: "workgroups of a dispatch", need, fact });
                }
                // SAFETY: pipeline and push constants (or set) are bound, the counts are within the limits.
                unsafe { device.raw.cmd_dispatch(commands, counts[0], counts[1], counts[2]) };
            }
            Groups::Table(word) => {
                if u32::from(word) + 3 > self.places.n_symbols {
                    return Err(self.mistake(&format!("group counts at word {word} lie outside the symbol table")));
                }
                let offset = u64::from(word) * 4;
                // SAFETY: as above; the three words lie inside the buffer.
                unsafe { device.raw.cmd_dispatch_indirect(commands, self.places.symbols.handle, offset) };
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
            unsafe { raw.cmd_write_timestamp(commands, vk::PipelineStageFlags::BOTTOM_OF_PIPE, queries, n_done) };
        }
        if let Some(word) = self.extras.trace {
            full_barrier(raw, commands);
            // SAFETY: the buffer lives as long as the slot.
            unsafe { raw.cmd_fill_buffer(commands, word, 0, 4, n_done) };
            full_barrier(raw, commands);
        }
    }

    fn bind_operands(&mut self, kernel: &Kernel, operands: &[Bound]) -> Result<(), Error> {
        let raw = &self.model.device.raw;
        let ranges = operands.iter().map(|bound| self.buffer_range(bound)).collect::<Result<Vec<_>, _>>()?;
        let ty = vk::DescriptorType::STORAGE_BUFFER;
        let sizes = [vk::DescriptorPoolSize { ty, descriptor_count: operands.len().max(1) as u32 }];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
        // SAFETY: a plain creation; the recording destroys the pool.
        let pool = unsafe { raw.create_descriptor_pool(&info, None) }.named("vkCreateDescriptorPool")?;
        self.recording.descriptors.push(pool);
        let layouts = [kernel.set_layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        // SAFETY: the pool has room for this one set.
        let sets = unsafe { raw.allocate_descriptor_sets(&info) }.named("vkAllocateDescriptorSets")?;
        let write = |(binding, range)| {
            let info = std::slice::from_ref(range);
            vk::WriteDescriptorSet::default()
                .dst_set(sets[0])
                .dst_binding(binding)
                .descriptor_type(ty)
                .buffer_info(info)
        };
        let writes: Vec<_> = (0..).zip(&ranges).map(write).collect();
        let point = vk::PipelineBindPoint::COMPUTE;
        // SAFETY: the set is new; the buffers live as long as the slot; the command buffer is recording.
        unsafe {
            raw.update_descriptor_sets(&writes, &[]);
            raw.cmd_bind_descriptor_sets(self.commands(), point, kernel.layout, 0, &sets, &[]);
        }
        Ok(())
    }

    fn buffer_range(&self, bound: &Bound) -> Result<vk::DescriptorBufferInfo, Error> {
        let (weights, places) = (&self.model.weights, &self.places);
        let buffer = match bound.region {
            Region::Arena(chunk) => places.arena.get(chunk as usize),
            Region::Weights(chunk) => weights.get(chunk as usize),
            Region::Io(slot) => places.io.get(slot as usize).and_then(Option::as_ref),
            Region::State => places.state,
            Region::Symbols => Some(places.symbols),
        };
        match buffer {
            Some(buffer) if bound.offset + bound.bytes <= buffer.bytes() && bound.bytes > 0 => {
                Ok(vk::DescriptorBufferInfo { buffer: buffer.handle, offset: bound.offset, range: bound.bytes })
            }
            _ => Err(self.mistake(&format!("{bound:?} does not exist"))),
        }
    }

    fn mistake(&self, what: &str) -> Error {
        Error::Description(format!("step {} ({}): {what}", self.n_steps, self.label))
    }
}
