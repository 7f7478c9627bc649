//! Pipelines from SPIR-V, created by several threads.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ash::vk;

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
#[derive(Clone, Copy)]
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
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(descs.len());
        let next = AtomicUsize::new(0);
        let work = || {
            let mut built = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(desc) = descs.get(index) else { break built };
                built.push((index, build_one(device, desc, cache)));
            }
        };
        let mut all = match n_threads {
            0 | 1 => work(),
            _ => std::thread::scope(|scope| {
                let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
                threads
                    .into_iter()
                    .flat_map(|thread| thread.join().expect("building a kernel does not panic"))
                    .collect()
            }),
        };
        all.sort_by_key(|(index, _)| *index);
        let (good, bad): (Vec<_>, Vec<_>) = all.into_iter().map(|(_, kernel)| kernel).partition(Result::is_ok);
        let kernels = Kernels { device: Arc::clone(device), list: good.into_iter().flatten().collect() };
        match bad.into_iter().find_map(Result::err) {
            Some(error) => Err(error),
            None => Ok(kernels),
        }
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
        for kernel in &self.list {
            destroy(&self.device, kernel);
        }
    }
}

fn destroy(device: &Device, kernel: &Kernel) {
    // SAFETY: sessions, which use the pipelines, hold the model and thus outlive this; null handles are allowed.
    unsafe {
        device.raw.destroy_pipeline(kernel.pipeline, None);
        device.raw.destroy_pipeline_layout(kernel.layout, None);
        device.raw.destroy_descriptor_set_layout(kernel.set_layout, None);
    }
}

fn build_one(device: &Device, desc: &KernelDesc<'_>, cache: vk::PipelineCache) -> Result<Kernel, Error> {
    let mut kernel = Kernel {
        pipeline: vk::Pipeline::null(),
        layout: vk::PipelineLayout::null(),
        set_layout: vk::DescriptorSetLayout::null(),
        n_bases: desc.n_bases,
        n_operands: desc.n_operands,
    };
    let built = build_parts(device, desc, cache, &mut kernel);
    if built.is_err() {
        destroy(device, &kernel);
    }
    built.map(|()| kernel)
}

fn build_parts(
    device: &Device,
    desc: &KernelDesc<'_>,
    cache: vk::PipelineCache,
    kernel: &mut Kernel,
) -> Result<(), Error> {
    let code = desc.code.words()?;
    build_layout(device, kernel)?;
    let info = vk::ShaderModuleCreateInfo::default().code(&code);
    // SAFETY: the module comes from the compiler, which validated it; a wrong one is the driver's to refuse.
    let module = unsafe { device.raw.create_shader_module(&info, None) }.named("vkCreateShaderModule")?;
    let mut size =
        vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default().required_subgroup_size(desc.subgroup);
    let mut stage =
        vk::PipelineShaderStageCreateInfo::default().stage(vk::ShaderStageFlags::COMPUTE).module(module).name(c"main");
    // Without size control there is one size only, which the requirements have checked.
    if desc.subgroup != 0 && device.info.features.subgroup_size_control {
        stage = stage.push_next(&mut size);
        if device.info.features.full_subgroups {
            stage = stage.flags(vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS);
        }
    }
    let info = [vk::ComputePipelineCreateInfo::default().stage(stage).layout(kernel.layout)];
    // SAFETY: module, layout and cache are ours; the cache is synchronised by the driver. The module may go once it is done.
    let result = unsafe {
        let result = device.raw.create_compute_pipelines(cache, &info, None);
        device.raw.destroy_shader_module(module, None);
        result
    };
    kernel.pipeline = result.map_err(|(_, code)| code).named("vkCreateComputePipelines")?[0];
    Ok(())
}

fn build_layout(device: &Device, kernel: &mut Kernel) -> Result<(), Error> {
    let push_bytes = u32::from(kernel.n_bases) * 8 + u32::from(kernel.n_operands) * 4;
    let range = [vk::PushConstantRange { stage_flags: vk::ShaderStageFlags::COMPUTE, offset: 0, size: push_bytes }];
    let mut layout = vk::PipelineLayoutCreateInfo::default();
    let sets;
    if kernel.n_bases == 0 {
        let binding = |n| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(n)
                .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = (0..u32::from(kernel.n_operands)).map(binding).collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: a plain creation.
        kernel.set_layout =
            unsafe { device.raw.create_descriptor_set_layout(&info, None) }.named("vkCreateDescriptorSetLayout")?;
        sets = [kernel.set_layout];
        layout = layout.set_layouts(&sets);
    } else {
        if push_bytes > device.info.limits.push_bytes {
            return Err(Error::Requirement {
                what: "push constant bytes",
                need: push_bytes.to_string(),
                fact: device.info.limits.push_bytes.to_string(),
            });
        }
        layout = layout.push_constant_ranges(&range);
    }
    // SAFETY: the set layout is ours.
    kernel.layout = unsafe { device.raw.create_pipeline_layout(&layout, None) }.named("vkCreatePipelineLayout")?;
    Ok(())
}
