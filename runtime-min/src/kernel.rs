//! Pipelines from SPIR-V, created by several threads.

use std::sync::{Arc, Mutex};

use ash::vk;

use crate::error::{Error, Named as _};
use crate::queue::{Device, lock};
use crate::require::check_limit;

/// One kernel of a program: entry point `main`. Its push constants are base addresses, then offset words.
#[derive(Debug, Clone, Copy)]
pub struct KernelDesc<'a> {
    /// Name, for errors.
    pub name: &'a str,
    /// Its SPIR-V module: little-endian words, at any alignment.
    pub code: &'a [u8],
    /// Base addresses.
    pub n_bases: u8,
    /// Offset words.
    pub n_operands: u8,
    /// Subgroup size to force; 0 for none. The workgroup's x must be a multiple of it.
    pub subgroup: u32,
}

/// A built kernel.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kernel {
    pub(crate) pipeline: vk::Pipeline,
    pub(crate) layout: vk::PipelineLayout,
    pub(crate) n_bases: usize,
    pub(crate) n_operands: usize,
}

/// All kernels of a program.
pub(crate) struct Kernels {
    device: Arc<Device>,
    list: Vec<Kernel>,
}

impl Kernels {
    /// Builds every kernel, on as many threads as the machine has.
    pub(crate) fn build(
        device: &Arc<Device>,
        descs: &[KernelDesc<'_>],
        cache: vk::PipelineCache,
    ) -> Result<Kernels, Error> {
        let mut kernels = Kernels { device: Arc::clone(device), list: vec![Kernel::default(); descs.len()] };
        let jobs = Mutex::new(kernels.list.iter_mut().zip(descs));
        let work = || {
            loop {
                let Some((kernel, desc)) = lock(&jobs).next() else { return Ok(()) };
                kernel.build(device, desc, cache)?;
            }
        };
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(descs.len());
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
            let join = |other: std::thread::ScopedJoinHandle<'_, _>| other.join().expect("builders return errors");
            others.into_iter().map(join).fold(work(), Result::and)
        })?;
        Ok(kernels)
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
            }
        }
    }
}

impl Kernel {
    fn build(&mut self, device: &Device, desc: &KernelDesc<'_>, cache: vk::PipelineCache) -> Result<(), Error> {
        let (words, rest) = desc.code.as_chunks::<4>();
        if desc.n_bases == 0 || !rest.is_empty() {
            return Err(Error::Description(format!("kernel {} has no bases, or half a word", desc.name)));
        }
        (self.n_bases, self.n_operands) = (desc.n_bases.into(), desc.n_operands.into());
        let size = (self.n_bases * 8 + self.n_operands * 4) as u32;
        check_limit("push constant bytes", size.into(), device.info.limits.push_bytes.into())?;
        let range = [vk::PushConstantRange { stage_flags: vk::ShaderStageFlags::COMPUTE, offset: 0, size }];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&range);
        // SAFETY: a plain creation; `Kernels` destroys the layout.
        self.layout = unsafe { device.raw.create_pipeline_layout(&info, None) }.named("vkCreatePipelineLayout")?;
        let code: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
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
}
