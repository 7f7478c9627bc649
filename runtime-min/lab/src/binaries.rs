//! Pipelines kept as the driver's binaries (VK_KHR_pipeline_binary) by an application that owns the device: it answers the runtime's
//! calls that make pipelines, from a file where that has the binaries, else from SPIR-V. The file is the driver's alone: its name and its
//! owner are the device, the driver and the driver's global key.

mod extension;
mod format;
mod pretend;

pub use pretend::{PretendedBinaries, PretendedCounts};

pub(crate) use extension::{Features, NAME, is_offered};
pub(crate) use pretend::{counts as pretended_counts, register as pretend};

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::ptr::{from_ref, null};
use std::sync::{Arc, Mutex};

use ash::vk::{self, Handle as _, Result as Code};
use jvc_runtime::{CacheDir, content_hash};

use crate::tamper::{lock, void};
use extension::{CAPTURE, Extension};
use format::{Binaries, Binary};

/// How the pipelines of a device came to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PipelineCounts {
    /// From SPIR-V.
    pub compiled: usize,
    /// From binaries.
    pub restored: usize,
}

/// Devices that keep binaries, by handle.
static KEEPERS: Mutex<BTreeMap<u64, Arc<Keeper>>> = Mutex::new(BTreeMap::new());

/// What a device keeps.
pub(crate) struct Keeper {
    /// Without the keeper.
    below: ash::Device,
    extension: Extension,
    file: Option<jvc_files::CacheFile>,
    /// As found in the file.
    stored: Binaries,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    counts: PipelineCounts,
    /// Of pipelines that were made here.
    binaries: Binaries,
    /// Code by handle: modules that no driver has seen.
    modules: BTreeMap<u64, Vec<u32>>,
    n_modules: u64,
    /// What a layout's push constants are, by handle.
    layouts: BTreeMap<u64, u64>,
}

/// Keeps a device's pipelines in a file of a folder; `owner` is the device and its driver. None if it has no extension.
pub(crate) fn keep(device: vk::Device, dir: &CacheDir, (name, owner): (String, String)) -> Option<Arc<Keeper>> {
    let find = |name: &CStr| below(device, name);
    // SAFETY: functions of this device.
    let below = unsafe { ash::Device::load_with(|name| find(name).map_or(null(), |f| f as *const _), device) };
    let extension = Extension::load(device, find)?;
    let file = dir.file(&name, format!("{owner} {:?}", extension.global_key));
    let stored = file.as_ref().and_then(|file| Binaries::parse(&file.read()?)).unwrap_or_default();
    let keeper = Arc::new(Keeper { below, extension, file, stored, made: Mutex::default() });
    lock(&KEEPERS).insert(device.as_raw(), Arc::clone(&keeper));
    Some(keeper)
}

/// A file's name, and all that its binaries' meaning depends on besides the driver's global key.
pub(crate) fn owner(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    name: &str,
    enabled: &jvc_runtime::Features,
) -> (String, String) {
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut ids).push_next(&mut driver);
    // SAFETY: the device is of this instance, and the structs are core in 1.2.
    unsafe { instance.get_physical_device_properties2(physical, &mut all) };
    let device = all.properties;
    let owner = (
        (device.vendor_id, device.device_id, ids.device_uuid, ids.driver_uuid),
        (device.driver_version, driver.driver_info_as_c_str(), device.pipeline_cache_uuid),
        enabled,
    );
    (format!("{name}-{:04x}-{:04x}-binaries", device.vendor_id, device.device_id), format!("{owner:?}"))
}

/// The device goes: its handle may come again.
pub(crate) fn forget(device: vk::Device) {
    lock(&KEEPERS).remove(&device.as_raw());
    pretend::forget(device);
}

/// A function of the driver, or of what pretends to be one.
fn below(device: vk::Device, name: &CStr) -> vk::PFN_vkVoidFunction {
    // SAFETY: a name of a function.
    pretend::device_function(device, name).or_else(|| unsafe { crate::tamper::plain(device, name.as_ptr()) })
}

/// What a device's function is instead, where something is.
pub(crate) fn device_function(device: vk::Device, name: *const c_char) -> vk::PFN_vkVoidFunction {
    // SAFETY: callers of Vulkan pass names.
    let name = unsafe { CStr::from_ptr(name) };
    let function = match name.to_bytes() {
        b"vkCreateShaderModule" => create_module as vk::PFN_vkCreateShaderModule as *const (),
        b"vkDestroyShaderModule" => destroy_module as vk::PFN_vkDestroyShaderModule as *const (),
        b"vkCreatePipelineLayout" => create_layout as vk::PFN_vkCreatePipelineLayout as *const (),
        b"vkCreateComputePipelines" => create_pipelines as vk::PFN_vkCreateComputePipelines as *const (),
        _ => return pretend::device_function(device, name),
    };
    match lock(&KEEPERS).contains_key(&device.as_raw()) {
        // SAFETY: functions of Vulkan.
        true => unsafe { void(function) },
        false => pretend::device_function(device, name),
    }
}

fn keeper(device: vk::Device) -> Arc<Keeper> {
    Arc::clone(lock(&KEEPERS).get(&device.as_raw()).expect("its functions are given to this device only"))
}

impl Keeper {
    pub(crate) fn counts(&self) -> PipelineCounts {
        lock(&self.made).counts
    }

    /// Writes the file, if pipelines were compiled since it was read: with what these and the restored ones are. True if it was written.
    pub(crate) fn write(&self) -> bool {
        let made = lock(&self.made);
        let payload = made.binaries.bytes().filter(|_| made.counts.compiled > 0 && !made.binaries.0.is_empty());
        self.file.as_ref().zip(payload).is_some_and(|(file, payload)| file.write(&payload).is_ok())
    }

    /// A pipeline from binaries of the file, if the driver takes them.
    fn restore(
        &self,
        hash: u64,
        info: &vk::ComputePipelineCreateInfo<'_>,
    ) -> Option<(vk::Pipeline, Option<Vec<Binary>>)> {
        let binaries = self.stored.0.get(&hash)?;
        let pipeline = self.extension.with(binaries, |next| {
            let mut info = *info;
            (info.stage.module, info.p_next) = (vk::ShaderModule::null(), next);
            // SAFETY: the info is the runtime's; binaries are chained to it, which stand for the module.
            unsafe { self.below.create_compute_pipelines(vk::PipelineCache::null(), &[info], None) }.ok()
        })?;
        lock(&self.made).counts.restored += 1;
        Some((pipeline[0], Some(binaries.clone())))
    }

    /// A pipeline from SPIR-V, and its binaries if the driver gives them out.
    fn compile(
        &self,
        code: &[u32],
        info: &vk::ComputePipelineCreateInfo<'_>,
    ) -> Result<(vk::Pipeline, Option<Vec<Binary>>), Code> {
        let module = vk::ShaderModuleCreateInfo::default().code(code);
        let flags = vk::PipelineCreateFlags2CreateInfoKHR::default().flags(CAPTURE);
        let mut info = *info;
        // SAFETY: the info is the runtime's; the module may go once the pipeline is made.
        let pipeline = unsafe {
            (info.stage.module, info.p_next) =
                (self.below.create_shader_module(&module, None)?, from_ref(&flags).cast());
            let made = self.below.create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
            self.below.destroy_shader_module(info.stage.module, None);
            made.map_err(|(_, code)| code)?[0]
        };
        lock(&self.made).counts.compiled += 1;
        Ok((pipeline, self.extension.of(pipeline)))
    }

    /// Of all that decides what a given device compiles: code, push constants, flags, subgroup size.
    fn hash(&self, code: &[u32], info: &vk::ComputePipelineCreateInfo<'_>) -> u64 {
        let push = lock(&self.made).layouts.get(&info.layout.as_raw()).copied();
        let size = info.stage.p_next.cast::<vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo<'_>>();
        // SAFETY: the runtime chains nothing else to a stage.
        let size = unsafe { size.as_ref() }.map(|size| size.required_subgroup_size);
        let rest = format!("{push:?} {:x} {size:?}", info.stage.flags.as_raw());
        content_hash([jvc_runtime::bytes_of(code), rest.as_bytes()])
    }
}

unsafe extern "system" fn create_module(
    device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    _: *const vk::AllocationCallbacks<'_>,
    module: *mut vk::ShaderModule,
) -> Code {
    let keeper = keeper(device);
    let mut made = lock(&keeper.made);
    made.n_modules += 1;
    let handle = made.n_modules;
    // SAFETY: the info names as many bytes as there are; the result has a place.
    unsafe {
        made.modules.insert(handle, std::slice::from_raw_parts((*info).p_code, (*info).code_size / 4).to_vec());
        *module = vk::ShaderModule::from_raw(handle);
    }
    Code::SUCCESS
}

unsafe extern "system" fn destroy_module(
    device: vk::Device,
    module: vk::ShaderModule,
    _: *const vk::AllocationCallbacks<'_>,
) {
    lock(&keeper(device).made).modules.remove(&module.as_raw());
}

unsafe extern "system" fn create_layout(
    device: vk::Device,
    info: *const vk::PipelineLayoutCreateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    layout: *mut vk::PipelineLayout,
) -> Code {
    let keeper = keeper(device);
    // SAFETY: the arguments are passed on; the info has as many ranges as it says.
    unsafe {
        let info = &*info;
        let result = (keeper.below.fp_v1_0().create_pipeline_layout)(device, info, callbacks, layout);
        let ranges = match info.push_constant_range_count {
            0 => &[],
            n => std::slice::from_raw_parts(info.p_push_constant_ranges, n as usize),
        };
        let words = |range: &vk::PushConstantRange| [range.stage_flags.as_raw(), range.offset, range.size];
        let words: Vec<u32> = ranges.iter().flat_map(words).collect();
        lock(&keeper.made).layouts.insert((*layout).as_raw(), content_hash([jvc_runtime::bytes_of(&words)]));
        result
    }
}

unsafe extern "system" fn create_pipelines(
    device: vk::Device,
    _: vk::PipelineCache,
    n: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    _: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> Code {
    assert_eq!(n, 1, "the runtime makes pipelines one by one");
    let keeper = keeper(device);
    // SAFETY: one info.
    let info = unsafe { &*infos };
    let code = lock(&keeper.made).modules.get(&info.stage.module.as_raw()).cloned().unwrap_or_default();
    let hash = keeper.hash(&code, info);
    let (pipeline, binaries) = match keeper.restore(hash, info).map_or_else(|| keeper.compile(&code, info), Ok) {
        Ok(made) => made,
        Err(code) => return code,
    };
    lock(&keeper.made).binaries.0.extend(binaries.map(|binaries| (hash, binaries)));
    // SAFETY: one result.
    unsafe { *pipelines = pipeline };
    Code::SUCCESS
}
