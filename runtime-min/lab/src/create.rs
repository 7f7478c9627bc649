//! Instance, messenger and device.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;
use jvc_runtime::{Features, Select};

use crate::{LabError, Validation, binaries};

const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

pub(crate) fn instance(entry: &ash::Entry, validation: Option<Validation>) -> Result<ash::Instance, LabError> {
    let app = vk::ApplicationInfo::default().application_name(c"jvc-lab").api_version(vk::API_VERSION_1_3);
    let mut extensions: Vec<*const c_char> = Vec::new();
    let mut info = vk::InstanceCreateInfo::default().application_info(&app);
    // Without it, the loader hides devices that are not fully conformant (MoltenVK).
    if extensions_of(entry, None)?.iter().any(|name| name.as_c_str() == ash::khr::portability_enumeration::NAME) {
        extensions.push(ash::khr::portability_enumeration::NAME.as_ptr());
        info = info.flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR);
    }
    let layers = [LAYER.as_ptr()];
    let sync = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
    let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&sync);
    // Newer layers look at the accesses of shaders only when told so.
    let mut heuristic = [vk::LayerSettingEXT::default()
        .layer_name(LAYER)
        .setting_name(c"syncval_shader_accesses_heuristic")
        .ty(vk::LayerSettingTypeEXT::BOOL32)
        .values(&[1, 0, 0, 0])];
    heuristic[0].value_count = 1;
    let mut settings = vk::LayerSettingsCreateInfoEXT::default().settings(&heuristic);
    if let Some(validation) = validation {
        let offered = extensions_of(entry, Some(LAYER)).map_err(|_| LabError::NoLayer)?;
        extensions.push(ash::ext::debug_utils::NAME.as_ptr());
        info = info.enabled_layer_names(&layers);
        if validation.sync {
            extensions.push(ash::ext::validation_features::NAME.as_ptr());
            info = info.push_next(&mut features);
        }
        if validation.sync && offered.iter().any(|name| name.as_c_str() == ash::ext::layer_settings::NAME) {
            extensions.push(ash::ext::layer_settings::NAME.as_ptr());
            info = info.push_next(&mut settings);
        }
    }
    let info = info.enabled_extension_names(&extensions);
    // SAFETY: names and chain live until the call returns.
    Ok(unsafe { entry.create_instance(&info, None) }?)
}

fn extensions_of(entry: &ash::Entry, layer: Option<&CStr>) -> Result<Vec<CString>, vk::Result> {
    // SAFETY: a plain query.
    let found = unsafe { entry.enumerate_instance_extension_properties(layer) }?;
    Ok(found.iter().filter_map(|extension| extension.extension_name_as_c_str().ok().map(CStr::to_owned)).collect())
}

pub(crate) fn messenger(
    entry: &ash::Entry,
    instance: &ash::Instance,
    log: &Arc<Mutex<Vec<String>>>,
) -> Result<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT), vk::Result> {
    use vk::{DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Type};
    let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::ERROR | Severity::WARNING)
        .message_type(Type::VALIDATION)
        .pfn_user_callback(Some(on_message))
        // The log lives as long as the instance: the lab's drop takes this reference back.
        .user_data(Arc::into_raw(Arc::clone(log)).cast_mut().cast());
    let api = ash::ext::debug_utils::Instance::new(entry, instance);
    // SAFETY: the extension is enabled; the log has a reference as long as the instance lives.
    let handle = unsafe { api.create_debug_utils_messenger(&info, None) }?;
    Ok((api, handle))
}

unsafe extern "system" fn on_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _ty: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes valid data, and `user` is the log that `messenger` registered.
    let (message, log) = unsafe { ((*data).message_as_c_str(), &*user.cast::<Mutex<Vec<String>>>().cast_const()) };
    let text = message.map_or_else(String::new, |text| text.to_string_lossy().into_owned());
    log.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    vk::FALSE
}

pub(crate) fn compute_family(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Result<u32, LabError> {
    // SAFETY: `physical` belongs to the instance.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    let found = (0..).zip(&families).find(|(_, family)| family.queue_flags.contains(vk::QueueFlags::COMPUTE));
    found.map(|(index, _)| index).ok_or_else(|| LabError::Vulkan("no compute queue".to_owned()))
}

/// VkPhysicalDeviceShaderBfloat16FeaturesKHR, newer than the bindings' headers.
#[repr(C)]
struct Bfloat16Features {
    s_type: vk::StructureType,
    p_next: *mut c_void,
    ty: vk::Bool32,
    dot_product: vk::Bool32,
    cooperative_matrix: vk::Bool32,
}

// SAFETY: the layout is that of the C struct, which is allowed in the chain.
unsafe impl vk::ExtendsDeviceCreateInfo for Bfloat16Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bfloat16Features {}

const BFLOAT16: &CStr = c"VK_KHR_shader_bfloat16";

fn bfloat16(flag: vk::Bool32) -> Bfloat16Features {
    let s_type = vk::StructureType::from_raw(1_000_141_000);
    let p_next = std::ptr::null_mut();
    Bfloat16Features { s_type, p_next, ty: flag, dot_product: 0, cooperative_matrix: flag }
}

/// The device that is selected, what it has of the features that the runtime knows, and its version.
pub(crate) fn choose(instance: &ash::Instance, select: &Select) -> Result<(vk::PhysicalDevice, Facts), LabError> {
    let rank = |(index, physical): &(usize, vk::PhysicalDevice)| {
        // SAFETY: the device is of this instance.
        let properties = unsafe { instance.get_physical_device_properties(*physical) };
        let name = properties.device_name_as_c_str().unwrap_or_default().to_string_lossy().to_lowercase();
        let matches = match select {
            Select::Auto => properties.api_version >= vk::API_VERSION_1_2,
            Select::Index(wanted) => index == wanted,
            Select::Name(part) => name.contains(&part.to_lowercase()),
            Select::Uuid(_) => false,
        };
        let order = [vk::PhysicalDeviceType::DISCRETE_GPU, vk::PhysicalDeviceType::INTEGRATED_GPU];
        matches.then(|| (order.iter().position(|ty| *ty == properties.device_type).unwrap_or(order.len()), *index))
    };
    // SAFETY: a plain query.
    let found = unsafe { instance.enumerate_physical_devices() }?;
    let ranked = found.iter().copied().enumerate().filter_map(|device| Some((rank(&device)?, device.1)));
    let best = ranked.min_by_key(|(rank, _)| *rank);
    let physical =
        best.map(|(_, physical)| physical).ok_or_else(|| LabError::Vulkan(format!("no device is {select:?}")))?;
    Ok((physical, Facts::of(instance, physical)))
}

/// What is enabled on a device depends on this.
pub(crate) struct Facts {
    pub(crate) features: Features,
    pub(crate) api_version: (u32, u32),
    /// Pipeline binaries are enabled.
    pub(crate) binaries: bool,
}

impl Facts {
    /// As the device itself says, without binaries.
    fn of(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Facts {
        // SAFETY: the device is of this instance.
        let (extensions, properties) = unsafe {
            (
                instance.enumerate_device_extension_properties(physical),
                instance.get_physical_device_properties(physical),
            )
        };
        let extensions = extensions.unwrap_or_default();
        let has = |name| extensions.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name));
        let (mut v11, mut v12) =
            (vk::PhysicalDeviceVulkan11Features::default(), vk::PhysicalDeviceVulkan12Features::default());
        let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut bf16 = bfloat16(0);
        let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut v11).push_next(&mut v12);
        if properties.api_version >= vk::API_VERSION_1_3 || has(ash::ext::subgroup_size_control::NAME) {
            all = all.push_next(&mut control);
        }
        if has(ash::khr::cooperative_matrix::NAME) {
            all = all.push_next(&mut matrices);
        }
        if has(BFLOAT16) {
            all = all.push_next(&mut bf16);
        }
        // SAFETY: as above; each struct of the chain is core in 1.2 or its extension is present.
        unsafe { instance.get_physical_device_features2(physical, &mut all) };
        let core = all.features;
        let on = |flag: vk::Bool32| flag == vk::TRUE;
        let (storage8, storage16) = (on(v12.storage_buffer8_bit_access), on(v11.storage_buffer16_bit_access));
        let features = Features {
            int8: storage8 && on(v12.shader_int8),
            int16: storage16 && on(core.shader_int16),
            float16: storage16 && on(v12.shader_float16),
            int64: on(core.shader_int64),
            float64: on(core.shader_float64),
            bfloat16: on(bf16.ty) && on(bf16.cooperative_matrix),
            cooperative_matrix: on(matrices.cooperative_matrix),
            memory_model: on(v12.vulkan_memory_model) && on(v12.vulkan_memory_model_device_scope),
            subgroup_size_control: on(control.subgroup_size_control),
            full_subgroups: on(control.compute_full_subgroups),
            subgroup_extended_types: on(v12.shader_subgroup_extended_types),
            buffer_address: on(v12.buffer_device_address),
            timeline: on(v12.timeline_semaphore),
        };
        let (major, minor) =
            (vk::api_version_major(properties.api_version), vk::api_version_minor(properties.api_version));
        Facts { features, api_version: (major, minor), binaries: false }
    }
}

/// A device with every feature that the runtime knows and this device has.
pub(crate) fn device(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    facts: &Facts,
    family: u32,
) -> Result<ash::Device, vk::Result> {
    let have = &facts.features;
    let core = vk::PhysicalDeviceFeatures::default()
        .shader_int16(have.int16)
        .shader_int64(have.int64)
        .shader_float64(have.float64);
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(have.int16 || have.float16);
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
        .buffer_device_address(true)
        .timeline_semaphore(true)
        .storage_buffer8_bit_access(have.int8)
        .shader_int8(have.int8)
        .shader_float16(have.float16)
        .shader_subgroup_extended_types(have.subgroup_extended_types)
        .vulkan_memory_model(have.memory_model)
        .vulkan_memory_model_device_scope(have.memory_model);
    let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default()
        .subgroup_size_control(have.subgroup_size_control)
        .compute_full_subgroups(have.full_subgroups);
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut bf16 = bfloat16(1);
    let mut m5 = vk::PhysicalDeviceMaintenance5FeaturesKHR::default().maintenance5(true);
    let mut binaries = binaries::Features::new(true);
    let queue = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
    let create = vk::DeviceCreateInfo::default().queue_create_infos(&queue).enabled_features(&core);
    let mut create = create.push_next(&mut v11).push_next(&mut v12);
    let mut extensions = Vec::new();
    if have.subgroup_size_control {
        create = create.push_next(&mut control);
        if facts.api_version < (1, 3) {
            extensions.push(ash::ext::subgroup_size_control::NAME.as_ptr());
        }
    }
    if have.cooperative_matrix {
        create = create.push_next(&mut matrices);
        extensions.push(ash::khr::cooperative_matrix::NAME.as_ptr());
    }
    if have.bfloat16 {
        create = create.push_next(&mut bf16);
        extensions.push(BFLOAT16.as_ptr());
    }
    if facts.binaries {
        create = create.push_next(&mut m5).push_next(&mut binaries);
        extensions.extend([ash::khr::maintenance5::NAME.as_ptr(), binaries::NAME.as_ptr()]);
    }
    let create = create.enabled_extension_names(&extensions);
    // SAFETY: every feature and extension named was reported by the device; the chain lives until the call returns.
    unsafe { instance.create_device(physical, &create, None) }
}
