//! Facts of a device: limits, features and matrix shapes, which requirements are checked against.

use std::ffi::{CStr, CString, FromBytesUntilNulError, c_void};

use ash::vk;

use crate::instance::Instance;
use crate::require::Cooperative;

/// Kind of device, in the order in which [`crate::Select::Auto`] prefers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of Vulkan")]
pub enum GpuKind {
    Discrete,
    Integrated,
    Virtual,
    Cpu,
    Other,
}

/// In the order of Vulkan's enumeration.
const KINDS: [GpuKind; 5] = [GpuKind::Other, GpuKind::Integrated, GpuKind::Discrete, GpuKind::Virtual, GpuKind::Cpu];

/// A Vulkan device and what it can do.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names of the others are those of Vulkan")]
pub struct GpuInfo {
    /// Position in the loader's list; what [`crate::Select::Index`] takes.
    pub index: usize,
    pub name: String,
    pub kind: GpuKind,
    pub vendor_id: u32,
    pub device_id: u32,
    /// Stable identity of the device.
    pub uuid: [u8; 16],
    /// The driver's name and its own version text.
    pub driver: String,
    pub driver_version: u32,
    /// Major, minor, patch.
    pub api_version: (u32, u32, u32),
    /// Identity of pipeline cache data.
    pub pipeline_cache_uuid: [u8; 16],
    pub limits: Limits,
    pub features: Features,
    /// Shapes of VK_KHR_cooperative_matrix at subgroup scope, sorted; those whose A and B, and C and result, are of one type.
    pub cooperative: Vec<Cooperative<'static>>,
    /// The device demands that VK_KHR_portability_subset is enabled.
    pub(crate) is_portability_subset: bool,
}

/// Limits that matter to compute programs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(missing_docs, reason = "the names of the others are those of Vulkan")]
pub struct Limits {
    /// Invocations of a workgroup.
    pub max_workgroup: u32,
    pub max_workgroup_count: [u32; 3],
    /// Shared memory of a workgroup.
    pub shared_bytes: u32,
    pub push_bytes: u32,
    /// Largest allocation with a buffer over all of it.
    pub max_allocation_bytes: u64,
    pub min_storage_offset_alignment: u64,
    /// Default subgroup size.
    pub subgroup: u32,
    /// Smallest and largest subgroup size that a pipeline may ask for.
    pub subgroup_range: (u32, u32),
    /// Nanoseconds of one timestamp tick; 0 when the queue has no timestamps.
    pub timestamp_period_ns: f32,
}

/// Declares the features: name, words, and the fields of Vulkan's structs that it takes.
macro_rules! features {
    ($($name:ident, $words:literal: $($part:ident.$field:ident),+;)*) => {
        /// Features of a device: storage and arithmetic of element types, and what programs and the runtime itself need.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Features {
            $(#[doc = concat!("Of ", $words, ".")] pub $name: bool,)*
        }

        impl Features {
            /// None of them.
            pub const NONE: Features = Features { $($name: false),* };

            /// Words for the first of these that `have` lacks.
            pub(crate) fn first_missing(&self, have: &Features) -> Option<&'static str> {
                let lacks = [$((self.$name && !have.$name, $words)),*];
                lacks.into_iter().find_map(|(lacks, words)| lacks.then_some(words))
            }
        }

        impl FeatureChain {
            fn features(&self) -> Features {
                Features { $($name: $(self.$part.$field == vk::TRUE)&&+),* }
            }

            pub(crate) fn enabling(features: &Features) -> FeatureChain {
                let mut chain = FeatureChain::default();
                $(if features.$name { $(chain.$part.$field = vk::TRUE;)+ })*
                chain
            }
        }
    };
}

features! {
    int8, "8-bit integers": v12.storage_buffer8_bit_access, v12.shader_int8;
    int16, "16-bit integers": v11.storage_buffer16_bit_access, core.shader_int16;
    float16, "16-bit floats": v11.storage_buffer16_bit_access, v12.shader_float16;
    int64, "64-bit integers": core.shader_int64;
    float64, "64-bit floats": core.shader_float64;
    bfloat16, "VK_KHR_shader_bfloat16 with matrices": bf16.ty, bf16.cooperative_matrix;
    cooperative_matrix, "VK_KHR_cooperative_matrix": cooperative.cooperative_matrix;
    memory_model, "the Vulkan memory model": v12.vulkan_memory_model, v12.vulkan_memory_model_device_scope;
    subgroup_size_control, "subgroup sizes by pipeline": control.subgroup_size_control;
    full_subgroups, "full subgroups by pipeline": control.compute_full_subgroups;
    subgroup_extended_types, "subgroup operations on all types": v12.shader_subgroup_extended_types;
    buffer_address, "buffer device addresses": v12.buffer_device_address;
    timeline, "timeline semaphores": v12.timeline_semaphore;
}

/// Vulkan's structs of features: a device fills them when asked, and is created with them.
#[derive(Default)]
pub(crate) struct FeatureChain {
    core: vk::PhysicalDeviceFeatures,
    v11: vk::PhysicalDeviceVulkan11Features<'static>,
    v12: vk::PhysicalDeviceVulkan12Features<'static>,
    control: vk::PhysicalDeviceSubgroupSizeControlFeatures<'static>,
    cooperative: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'static>,
    bf16: Bfloat16Features,
}

impl FeatureChain {
    /// The structs, linked; those that a device may not know only where the flag is set.
    pub(crate) fn link(&mut self, control: bool, cooperative: bool, bf16: bool) -> vk::PhysicalDeviceFeatures2<'_> {
        let core = vk::PhysicalDeviceFeatures2::default().features(self.core);
        let mut all = core.push_next(&mut self.v11).push_next(&mut self.v12);
        if control {
            all = all.push_next(&mut self.control);
        }
        if cooperative {
            all = all.push_next(&mut self.cooperative);
        }
        if bf16 {
            all = all.push_next(&mut self.bf16);
        }
        all
    }
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
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bfloat16Features {}

impl Default for Bfloat16Features {
    fn default() -> Self {
        let s_type = vk::StructureType::from_raw(BFLOAT16_TYPE);
        Bfloat16Features { s_type, p_next: std::ptr::null_mut(), ty: 0, dot_product: 0, cooperative_matrix: 0 }
    }
}

pub(crate) const BFLOAT16: &CStr = c"VK_KHR_shader_bfloat16";
/// First number of the extension's enumerants: its feature struct, and its component type.
const BFLOAT16_TYPE: i32 = 1_000_141_000;

impl GpuInfo {
    pub(crate) fn query(instance: &Instance, physical: vk::PhysicalDevice, index: usize) -> GpuInfo {
        let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut m4 = vk::PhysicalDeviceMaintenance4Properties::default();
        let all = vk::PhysicalDeviceProperties2::default().push_next(&mut v11).push_next(&mut v12);
        let mut all = all.push_next(&mut sizes).push_next(&mut m4);
        // SAFETY: `physical` belongs to `instance`; drivers skip structs of the chain that they do not know.
        unsafe { instance.raw.get_physical_device_properties2(physical, &mut all) };
        let (base, limits, packed) = (all.properties, all.properties.limits, all.properties.api_version);
        // A driver that does not say leaves zeros.
        let max_buffer_bytes = if m4.max_buffer_size == 0 { u64::MAX } else { m4.max_buffer_size };
        let sizes = (sizes.min_subgroup_size, sizes.max_subgroup_size);
        let extensions = extensions(&instance.raw, physical);
        let has = |name: &CStr| extensions.iter().any(|extension| extension.as_c_str() == name);
        let control = packed >= vk::API_VERSION_1_3 || has(ash::ext::subgroup_size_control::NAME);
        let mut chain = FeatureChain::default();
        let mut all = chain.link(control, has(ash::khr::cooperative_matrix::NAME), has(BFLOAT16));
        // SAFETY: `physical` belongs to `instance`; each struct of the chain is core in 1.2 or its extension is present.
        unsafe { instance.raw.get_physical_device_features2(physical, &mut all) };
        chain.core = all.features;
        let features = chain.features();
        let driver = format!("{} {}", text(v12.driver_name_as_c_str()), text(v12.driver_info_as_c_str()));
        GpuInfo {
            index,
            name: text(base.device_name_as_c_str()),
            kind: *KINDS.get(base.device_type.as_raw() as usize).unwrap_or(&GpuKind::Other),
            vendor_id: base.vendor_id,
            device_id: base.device_id,
            uuid: v11.device_uuid,
            driver: driver.trim().to_owned(),
            driver_version: base.driver_version,
            api_version: [vk::api_version_major, vk::api_version_minor, vk::api_version_patch]
                .map(|part| part(packed))
                .into(),
            pipeline_cache_uuid: base.pipeline_cache_uuid,
            limits: Limits {
                max_workgroup: limits.max_compute_work_group_invocations,
                max_workgroup_count: limits.max_compute_work_group_count,
                shared_bytes: limits.max_compute_shared_memory_size,
                push_bytes: limits.max_push_constants_size,
                max_allocation_bytes: v11.max_memory_allocation_size.min(max_buffer_bytes),
                min_storage_offset_alignment: limits.min_storage_buffer_offset_alignment,
                subgroup: v11.subgroup_size,
                subgroup_range: if sizes.0 == 0 { (v11.subgroup_size, v11.subgroup_size) } else { sizes },
                timestamp_period_ns: limits.timestamp_period * limits.timestamp_compute_and_graphics as f32,
            },
            features,
            cooperative: if features.cooperative_matrix { shapes(instance, physical) } else { Vec::new() },
            is_portability_subset: has(ash::khr::portability_subset::NAME),
        }
    }
}

fn extensions(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Vec<CString> {
    // SAFETY: `physical` belongs to `instance`.
    let found = unsafe { instance.enumerate_device_extension_properties(physical) }.unwrap_or_default();
    found.iter().filter_map(|extension| extension.extension_name_as_c_str().ok().map(CStr::to_owned)).collect()
}

fn shapes(instance: &Instance, physical: vk::PhysicalDevice) -> Vec<Cooperative<'static>> {
    let api = ash::khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device has the extension, so the loader knows the function.
    let rows = unsafe { api.get_physical_device_cooperative_matrix_properties(physical) }.unwrap_or_default();
    let usable = |row: &&vk::CooperativeMatrixPropertiesKHR<'_>| {
        row.scope == vk::ScopeKHR::SUBGROUP && row.a_type == row.b_type && row.c_type == row.result_type
    };
    let shape = |row: &vk::CooperativeMatrixPropertiesKHR<'_>| {
        let (m, n, k) = (row.m_size, row.n_size, row.k_size);
        Cooperative { m, n, k, operand: component(row.a_type), accumulator: component(row.c_type) }
    };
    let mut shapes: Vec<_> = rows.iter().filter(usable).map(shape).collect();
    shapes.sort();
    shapes.dedup();
    shapes
}

fn component(ty: vk::ComponentTypeKHR) -> &'static str {
    // As above.
    const NAMES: [&str; 11] = ["f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"];
    match ty.as_raw() {
        BFLOAT16_TYPE => "bf16",
        index => usize::try_from(index).ok().and_then(|index| NAMES.get(index)).copied().unwrap_or("unknown"),
    }
}

fn text(name: Result<&CStr, FromBytesUntilNulError>) -> String {
    name.unwrap_or_default().to_string_lossy().into_owned()
}
