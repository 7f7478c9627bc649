//! Pipelines from SPIR-V, created by several threads, and the driver's cache of them on disk: one file per program and device.

use std::sync::Arc;

use ash::vk::{self, Pipeline, PipelineCache, PipelineLayout, PipelineShaderStageCreateFlags as StageFlags};
use jvc_files::{CacheDir, CacheFile};

use crate::error::{ensure, vulkan};
use crate::info::check_limit;
use crate::queue::{Device, in_parallel};
use crate::{Error, ProgramDesc, Result};

/// One kernel of a program: entry point `main`. Its push constants are base addresses, then offset words, one for each operand.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the names of the others say it")]
pub struct KernelDesc<'a> {
    pub name: &'a str,
    /// Its SPIR-V module: little-endian words, at any alignment.
    pub code: &'a [u8],
    pub n_bases: u8,
    pub n_operands: u8,
    /// Subgroup size to force; 0 for none. The workgroup's x must be a multiple of it.
    pub subgroup: u32,
}

/// All kernels of a program, and the layout that they share: push constants for the largest of them.
pub(crate) struct Kernels {
    device: Arc<Device>,
    pub(crate) layout: PipelineLayout,
    /// Each with its numbers of bases and offsets.
    pub(crate) list: Vec<(Pipeline, u8, u8)>,
}

impl Kernels {
    /// Builds every kernel with a pipeline cache that starts from the file, and is written back when it has grown, if that is possible.
    pub(crate) fn build(device: &Arc<Device>, program: &ProgramDesc<'_>, dir: &CacheDir) -> Result<Kernels> {
        let (gpu, uuid) = (&device.info, u128::from_be_bytes(device.info.pipeline_cache_uuid));
        let name = format!("{}-{:04x}-{:04x}-{uuid:032x}", program.name, gpu.vendor_id, gpu.device_id);
        let driver = (gpu.vendor_id, gpu.device_id, gpu.driver_version, gpu.pipeline_cache_uuid);
        let file = dir.file(&name, format!("{driver:?}"));
        let before = file.as_ref().and_then(CacheFile::read).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&before);
        // SAFETY: the data is empty, or what this driver wrote: `CacheFile` sees to it.
        let cache =
            unsafe { device.raw.create_pipeline_cache(&info, None) }.map_err(vulkan("vkCreatePipelineCache"))?;
        let built = Kernels::build_with(device, program.kernels, cache);
        // SAFETY: no thread uses the cache any more.
        let after = unsafe {
            let after = device.raw.get_pipeline_cache_data(cache).unwrap_or_default();
            device.raw.destroy_pipeline_cache(cache, None);
            after
        };
        // One driver adds another header of 32 bytes at every start: that is nothing new.
        let has_grown = after.len() > before.len() + if before.is_empty() { 0 } else { 32 };
        let _ = file.filter(|_| built.is_ok() && has_grown).map(|file| file.write(&after));
        built
    }

    /// On as many threads as the machine has.
    fn build_with(device: &Arc<Device>, descs: &[KernelDesc<'_>], cache: PipelineCache) -> Result<Kernels> {
        let push_bytes = |desc: &KernelDesc<'_>| u32::from(desc.n_bases) * 8 + u32::from(desc.n_operands) * 4;
        let size = descs.iter().map(push_bytes).max().unwrap_or(0).max(4);
        check_limit("push constant bytes", size.into(), device.info.push_bytes.into())?;
        let range = [vk::PushConstantRange { stage_flags: vk::ShaderStageFlags::COMPUTE, offset: 0, size }];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&range);
        // SAFETY: a plain creation; the drop destroys the layout.
        let layout = unsafe { device.raw.create_pipeline_layout(&info, None) };
        let layout = layout.map_err(vulkan("vkCreatePipelineLayout"))?;
        let list = descs.iter().map(|desc| (Pipeline::null(), desc.n_bases, desc.n_operands)).collect();
        let mut kernels = Kernels { device: Arc::clone(device), layout, list };
        in_parallel(kernels.list.iter_mut().zip(descs), usize::MAX, |(kernel, desc)| {
            kernel.0 = pipeline(device, desc, layout, cache)?;
            Ok(())
        })?;
        Ok(kernels)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let raw = &self.device.raw;
        // SAFETY: sessions, which use the pipelines, hold the model and thus have gone; null handles are allowed.
        unsafe {
            self.list.iter().for_each(|kernel| raw.destroy_pipeline(kernel.0, None));
            raw.destroy_pipeline_layout(self.layout, None);
        }
    }
}

fn pipeline(device: &Device, desc: &KernelDesc<'_>, layout: PipelineLayout, cache: PipelineCache) -> Result<Pipeline> {
    let (words, rest) = desc.code.as_chunks::<4>();
    let reason = || format!("kernel {} has no bases, or half a word", desc.name);
    ensure(desc.n_bases > 0 && rest.is_empty(), || Error::Description { reason: reason() })?;
    let code: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let info = vk::ShaderModuleCreateInfo::default().code(&code);
    // SAFETY: the module comes from the compiler, which validated it; a wrong one is the driver's to refuse.
    let module = unsafe { device.raw.create_shader_module(&info, None) }.map_err(vulkan("vkCreateShaderModule"))?;
    let mut size =
        vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default().required_subgroup_size(desc.subgroup);
    // Without size control there is one size only, which the requirements have checked.
    let is_sized = desc.subgroup != 0 && device.info.features.subgroup_size_control;
    let is_full = is_sized && device.info.features.full_subgroups;
    let full = if is_full { StageFlags::REQUIRE_FULL_SUBGROUPS } else { StageFlags::empty() };
    let stage = vk::PipelineShaderStageCreateInfo::default().stage(vk::ShaderStageFlags::COMPUTE).flags(full);
    let stage = stage.module(module).name(c"main");
    let stage = if is_sized { stage.push_next(&mut size) } else { stage };
    let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout)];
    // SAFETY: module, layout and cache are ours; the driver synchronises the cache. The module may go once it is done.
    let result = unsafe {
        let result = device.raw.create_compute_pipelines(cache, &info, None);
        device.raw.destroy_shader_module(module, None);
        result
    };
    Ok(result.map_err(|(_, code)| vulkan("vkCreateComputePipelines")(code))?[0])
}
