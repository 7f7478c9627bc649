//! Kernels in bindings form: one storage buffer per operand instead of addresses.

use std::sync::PoisonError;

use ash::vk;
use ash::vk::Handle as _;
use jvc_runtime::{Base, Groups, Recorder};

use crate::{Lab, LabError};

/// A buffer range that a kernel in bindings form gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Where.
    pub base: Base,
    /// First byte; a multiple of the device's `min_storage_offset_alignment`.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A built kernel; it lives as long as its [`Lab`].
#[derive(Debug, Clone, Copy)]
pub struct BoundKernel {
    pipeline: vk::Pipeline,
    layout: vk::PipelineLayout,
    set_layout: vk::DescriptorSetLayout,
}

/// What a lab has made for kernels.
#[derive(Default)]
pub(crate) struct Objects {
    kernels: Vec<BoundKernel>,
    pools: Vec<vk::DescriptorPool>,
}

impl Objects {
    /// # Safety
    ///
    /// Nothing recorded with them is pending or will be submitted.
    pub(crate) unsafe fn destroy(&mut self, device: &ash::Device) {
        // SAFETY: the caller's promise; null handles are allowed.
        unsafe {
            self.pools.drain(..).for_each(|pool| device.destroy_descriptor_pool(pool, None));
            for kernel in self.kernels.drain(..) {
                device.destroy_pipeline(kernel.pipeline, None);
                device.destroy_pipeline_layout(kernel.layout, None);
                device.destroy_descriptor_set_layout(kernel.set_layout, None);
            }
        }
    }
}

impl Lab {
    /// Builds a kernel whose set 0 holds this many storage buffers. A subgroup size that is not 0 is forced.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn bound_kernel(&self, words: &[u32], n_operands: u32, subgroup: u32) -> Result<BoundKernel, LabError> {
        let binding = |n| {
            let binding = vk::DescriptorSetLayoutBinding::default().binding(n).descriptor_count(1);
            binding.descriptor_type(vk::DescriptorType::STORAGE_BUFFER).stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = (0..n_operands).map(binding).collect();
        let set_info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        let module_info = vk::ShaderModuleCreateInfo::default().code(words);
        // SAFETY: plain creations; the lab destroys what they give, and the module may go once the pipeline is there.
        unsafe {
            let set_layout = self.device.create_descriptor_set_layout(&set_info, None)?;
            let layout_info = vk::PipelineLayoutCreateInfo::default().set_layouts(std::slice::from_ref(&set_layout));
            let layout = self.device.create_pipeline_layout(&layout_info, None)?;
            let module = self.device.create_shader_module(&module_info, None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default().stage(vk::ShaderStageFlags::COMPUTE);
            let mut stage = stage.module(module).name(c"main");
            let mut size =
                vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default().required_subgroup_size(subgroup);
            if subgroup != 0 && self.gpu().info().features.subgroup_size_control {
                stage = stage.push_next(&mut size);
            }
            let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
            let pipelines = self.device.create_compute_pipelines(vk::PipelineCache::null(), &info, None);
            self.device.destroy_shader_module(module, None);
            let kernel = BoundKernel { pipeline: pipelines.map_err(|(_, code)| code)?[0], layout, set_layout };
            self.bound.lock().unwrap_or_else(PoisonError::into_inner).kernels.push(kernel);
            Ok(kernel)
        }
    }

    /// Records a kernel as a step of a session on this device.
    ///
    /// # Panics
    /// Operands that do not exist, or a device that is out of memory.
    pub fn dispatch(&self, r: &mut Recorder<'_>, kernel: &BoundKernel, operands: &[Bound], groups: Groups) {
        let buffer = |base| vk::Buffer::from_raw(r.buffer(base).expect("an operand that exists").handle());
        let range = |b: &Bound| vk::DescriptorBufferInfo { buffer: buffer(b.base), offset: b.offset, range: b.bytes };
        let ranges: Vec<_> = operands.iter().map(range).collect();
        let symbols = vk::Buffer::from_raw(r.buffer(Base::Symbols).expect("every slot has a table").handle());
        let set = self.set(kernel, &ranges).expect("memory for descriptors");
        r.custom(|commands| {
            let (commands, point) = (vk::CommandBuffer::from_raw(commands), vk::PipelineBindPoint::COMPUTE);
            // SAFETY: the command buffer is recording; the lab and the slot keep alive what is bound.
            unsafe {
                self.device.cmd_bind_pipeline(commands, point, kernel.pipeline);
                self.device.cmd_bind_descriptor_sets(commands, point, kernel.layout, 0, &[set], &[]);
                match groups {
                    Groups::Fixed([x, y, z]) => self.device.cmd_dispatch(commands, x, y, z),
                    Groups::Table(word) => self.device.cmd_dispatch_indirect(commands, symbols, u64::from(word) * 4),
                }
            }
        });
    }

    fn set(&self, kernel: &BoundKernel, ranges: &[vk::DescriptorBufferInfo]) -> Result<vk::DescriptorSet, vk::Result> {
        let ty = vk::DescriptorType::STORAGE_BUFFER;
        let sizes = [vk::DescriptorPoolSize { ty, descriptor_count: ranges.len().max(1) as u32 }];
        let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
        // SAFETY: a plain creation; the lab destroys the pool.
        let pool = unsafe { self.device.create_descriptor_pool(&info, None) }?;
        self.bound.lock().unwrap_or_else(PoisonError::into_inner).pools.push(pool);
        let layouts = [kernel.set_layout];
        let info = vk::DescriptorSetAllocateInfo::default().descriptor_pool(pool).set_layouts(&layouts);
        // SAFETY: the pool has room for this one set.
        let set = unsafe { self.device.allocate_descriptor_sets(&info) }?[0];
        let write = |(binding, range)| {
            let write = vk::WriteDescriptorSet::default().dst_set(set).dst_binding(binding).descriptor_type(ty);
            write.buffer_info(std::slice::from_ref(range))
        };
        let writes: Vec<_> = (0..).zip(ranges).map(write).collect();
        // SAFETY: the set is new; the buffers exist.
        unsafe { self.device.update_descriptor_sets(&writes, &[]) };
        Ok(set)
    }
}
