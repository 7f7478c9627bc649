//! Pipelines from SPIR-V, created by several threads.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ash::vk;

use crate::bindings;
use crate::error::{Error, Named as _};
use crate::gpu::Device;

/// SPIR-V of a kernel, as words or as the bytes of a `.spv` file.
#[derive(Debug, Clone, Copy)]
pub enum Spirv<'a> {
    /// Words in host order.
    Words(&'a [u32]),
    /// Little-endian bytes, of any alignment: what `include_bytes!` gives.
    Bytes(&'a [u8]),
}

/// One kernel of a program: entry point `main`.
#[derive(Debug, Clone, Copy)]
pub struct KernelDesc<'a> {
    /// Name, for errors.
    pub name: &'a str,
    /// Its module.
    pub code: Spirv<'a>,
    /// Base addresses at the start of its push constants. A kernel without any is in the bindings form (tests only): set 0 holds
    /// `n_operands` storage buffers.
    pub n_bases: u8,
    /// Offset words after the bases.
    pub n_operands: u8,
    /// Subgroup size to force; 0 for none. The workgroup's x must be a multiple of it.
    pub subgroup: u32,
}

/// A built kernel.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kernel {
    pub(crate) pipeline: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
    pub(crate) set_layout: vk::DescriptorSetLayout,
    pub(crate) n_bases: u8,
    pub(crate) n_operands: u8,
}

/// All kernels of a program.
pub(crate) struct Kernels {
    device: Arc<Device>,
    list: Vec<Kernel>,
}

impl Spirv<'_> {
    fn words(&self) -> Result<Cow<'_, [u32]>, Error> {
        match self {
            Spirv::Words(words) => Ok(Cow::Borrowed(words)),
            Spirv::Bytes(bytes) if bytes.len() % 4 == 0 => Ok(Cow::Owned(
                bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect(),
            )),
            Spirv::Bytes(bytes) => Err(Error::Description(format!("SPIR-V of {} bytes", bytes.len()))),
        }
    }
}

impl Kernels {
    /// Builds every kernel, on as many threads as the machine has.
    pub(crate) fn build(
        device: &Arc<Device>,
        descs: &[KernelDesc<'_>],
        cache: vk::PipelineCache,
    ) -> Result<Kernels, Error> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut built = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(desc) = descs.get(index) else { break built };
                let mut kernel = Kernel { n_bases: desc.n_bases, n_operands: desc.n_operands, ..Kernel::default() };
                let result = kernel.build(device, desc, cache);
                built.push((index, kernel, result));
            }
        };
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(descs.len());
        let mut all = std::thread::scope(|scope| {
            let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
            let mut all = work();
            all.extend(others.into_iter().flat_map(|t| t.join().expect("building a kernel does not panic")));
            all
        });
        all.sort_by_key(|(index, ..)| *index);
        let list = all.iter().map(|(_, kernel, _)| *kernel).collect();
        let kernels = Kernels { device: Arc::clone(device), list };
        all.into_iter().try_for_each(|(.., result)| result).map(|()| kernels)
    }

    /// True when some kernel is in bindings form.
    pub(crate) fn use_bindings(&self) -> bool {
        self.list.iter().any(|kernel| kernel.n_bases == 0)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&Kernel> {
        self.list.get(index as usize)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let raw = &self.device.raw;
        for kernel in &self.list {
            // SAFETY: sessions, which use the pipelines, hold the model and thus have gone; null handles are allowed.
            unsafe {
                raw.destroy_pipeline(kernel.pipeline, None);
                raw.destroy_pipeline_layout(kernel.layout, None);
                raw.destroy_descriptor_set_layout(kernel.set_layout, None);
            }
        }
    }
}

impl Kernel {
    fn build(&mut self, device: &Device, desc: &KernelDesc<'_>, cache: vk::PipelineCache) -> Result<(), Error> {
        let code = desc.code.words()?;
        self.build_layout(device)?;
        let info = vk::ShaderModuleCreateInfo::default().code(&code);
        // SAFETY: the module comes from the compiler, which validated it; a wrong one is the driver's to refuse.
        let module = unsafe { device.raw.create_shader_module(&info, None) }.named("vkCreateShaderModule")?;
        let mut size =
            vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default().required_subgroup_size(desc.subgroup);
        let stage = vk::PipelineShaderStageCreateInfo::default().stage(vk::ShaderStageFlags::COMPUTE);
        let mut stage = stage.module(module).name(c"main");
        // Without size control there is one size only, which the requirements have checked.
        if desc.subgroup != 0 && device.info.features.subgroup_size_control {
            stage = stage.push_next(&mut size);
            if device.info.features.full_subgroups {
                stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
            }
        }
        let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(self.layout)];
        // SAFETY: module, layout and cache are ours; the driver synchronises the cache. The module may go once it is done.
        let result = unsafe {
            let result = device.raw.create_compute_pipelines(cache, &info, None);
            device.raw.destroy_shader_module(module, None);
            result
        };
        self.pipeline = result.map_err(|(_, code)| code).named("vkCreateComputePipelines")?[0];
        Ok(())
    }

    fn build_layout(&mut self, device: &Device) -> Result<(), Error> {
        let size = u32::from(self.n_bases) * 8 + u32::from(self.n_operands) * 4;
        let range = [vk::PushConstantRange { stage_flags: vk::ShaderStageFlags::COMPUTE, offset: 0, size }];
        let mut layout = vk::PipelineLayoutCreateInfo::default();
        let limit = device.info.limits.push_bytes;
        if self.n_bases > 0 && size > limit {
            let (need, fact) = (size.to_string(), limit.to_string());
            return Err(Error::Requirement { what: "push constant bytes", need, fact });
        }
        if self.n_bases > 0 {
            layout = layout.push_constant_ranges(&range);
        } else {
            self.set_layout = bindings::set_layout(device, self.n_operands)?;
            layout = layout.set_layouts(std::slice::from_ref(&self.set_layout));
        }
        // SAFETY: the set layout is ours.
        self.layout = unsafe { device.raw.create_pipeline_layout(&layout, None) }.named("vkCreatePipelineLayout")?;
        Ok(())
    }
}
