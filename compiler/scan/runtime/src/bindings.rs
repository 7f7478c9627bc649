//! Kernels in bindings form: one storage buffer per operand instead of addresses. Tests run them under synchronisation validation,
//! which does not see through addresses.

use ash::vk;

use crate::error::{Error, Named as _};
use crate::gpu::Device;
use crate::kernel::Kernel;
use crate::recorder::{Groups, Recorder};

/// A buffer range that a kernel in bindings form gets.
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

impl Recorder<'_> {
    /// Runs a kernel in bindings form.
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
            let write = vk::WriteDescriptorSet::default().dst_set(sets[0]).dst_binding(binding).descriptor_type(ty);
            write.buffer_info(std::slice::from_ref(range))
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
        let buffer = match bound.region {
            Region::Arena(chunk) => self.memory.arena.get(chunk as usize),
            Region::Weights(chunk) => self.model.weights.get(chunk as usize),
            Region::Io(slot) => self.memory.io.get(slot as usize).and_then(Option::as_ref),
            Region::State => self.state,
            Region::Symbols => Some(&self.memory.symbols),
        };
        match buffer {
            Some(buffer) if bound.offset + bound.bytes <= buffer.bytes() && bound.bytes > 0 => {
                Ok(vk::DescriptorBufferInfo { buffer: buffer.handle, offset: bound.offset, range: bound.bytes })
            }
            _ => Err(self.mistake(&format!("{bound:?} does not exist"))),
        }
    }
}

/// Set 0 of a kernel with this many storage buffers.
pub(crate) fn set_layout(device: &Device, n_bindings: u8) -> Result<vk::DescriptorSetLayout, Error> {
    let binding = |n| {
        let binding = vk::DescriptorSetLayoutBinding::default().binding(n).descriptor_count(1);
        binding.descriptor_type(vk::DescriptorType::STORAGE_BUFFER).stage_flags(vk::ShaderStageFlags::COMPUTE)
    };
    let bindings: Vec<_> = (0..u32::from(n_bindings)).map(binding).collect();
    let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
    // SAFETY: a plain creation; the kernel destroys the layout.
    unsafe { device.raw.create_descriptor_set_layout(&info, None) }.named("vkCreateDescriptorSetLayout")
}
