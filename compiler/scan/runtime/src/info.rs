//! Facts of a device: limits, features, cooperative-matrix shapes, memory. What `require` checks and `jvc probe` prints.

use std::ffi::{CStr, c_void};

use ash::vk;

use crate::instance::Instance;

/// Kind of device, in the order in which [`crate::Select::Auto`] prefers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuKind {
    /// Own memory.
    Discrete,
    /// Shares memory with the CPU.
    Integrated,
    /// Inside a virtual machine.
    Virtual,
    /// A driver that computes on the CPU.
    Cpu,
    /// Anything else.
    Other,
}

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
    pub driver: String,
    /// The driver's own version text.
    pub driver_info: String,
    pub driver_version: u32,
    /// Major, minor, patch.
    pub api_version: (u32, u32, u32),
    /// Identity of pipeline cache data.
    pub pipeline_cache_uuid: [u8; 16],
    pub limits: Limits,
    pub features: Features,
    /// Shapes of VK_KHR_cooperative_matrix at subgroup scope, sorted.
    pub cooperative: Vec<CooperativeShape>,
    pub heaps: Vec<Heap>,
    /// Device extensions, sorted.
    pub extensions: Vec<String>,
}

/// Limits that matter to compute programs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[expect(missing_docs, reason = "the names of the others are those of Vulkan")]
pub struct Limits {
    /// Invocations of a workgroup.
    pub max_workgroup: u32,
    pub max_workgroup_size: [u32; 3],
    pub max_workgroup_count: [u32; 3],
    /// Shared memory of a workgroup.
    pub shared_bytes: u32,
    pub push_bytes: u32,
    pub max_allocation_bytes: u64,
    /// 0 when the driver does not say.
    pub max_buffer_bytes: u64,
    pub max_storage_range: u32,
    pub min_storage_offset_alignment: u64,
    /// Default subgroup size.
    pub subgroup: u32,
    /// Smallest and largest subgroup size that a pipeline may ask for.
    pub subgroup_range: (u32, u32),
    /// Nanoseconds of one timestamp tick; 0 when the queue has no timestamps.
    pub timestamp_period_ns: f32,
}

/// Features that programs ask for: storage and arithmetic of element types, and what the runtime itself needs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of the others say it")]
pub struct Features {
    pub int8: bool,
    pub int16: bool,
    pub float16: bool,
    pub int64: bool,
    pub float64: bool,
    /// VK_KHR_shader_bfloat16, with cooperative matrices.
    pub bfloat16: bool,
    /// With device scope.
    pub memory_model: bool,
    /// Pipelines may force a subgroup size.
    pub subgroup_size_control: bool,
    /// Pipelines may demand full subgroups.
    pub full_subgroups: bool,
    /// VK_KHR_cooperative_matrix.
    pub cooperative_matrix: bool,
    /// Needed by every program.
    pub buffer_address: bool,
    /// Timeline semaphores: needed by every program.
    pub timeline: bool,
    pub robust: bool,
    /// Subgroup operations on 8-, 16- and 64-bit types.
    pub subgroup_extended_types: bool,
}

/// One row of the cooperative-matrix table: sizes, and component types by name (`f16`, `bf16`, `s8`, …).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of Vulkan")]
pub struct CooperativeShape {
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub a: &'static str,
    pub b: &'static str,
    pub c: &'static str,
    pub result: &'static str,
}

/// One memory heap, and what the best of its memory types can do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of Vulkan")]
pub struct Heap {
    pub bytes: u64,
    pub device_local: bool,
    pub host_visible: bool,
    pub host_cached: bool,
}

/// VkPhysicalDeviceShaderBfloat16FeaturesKHR, newer than the bindings' headers.
#[repr(C)]
pub(crate) struct Bfloat16Features {
    pub(crate) s_type: vk::StructureType,
    pub(crate) p_next: *mut c_void,
    pub(crate) ty: vk::Bool32,
    pub(crate) dot_product: vk::Bool32,
    pub(crate) cooperative_matrix: vk::Bool32,
}

// SAFETY: the layout is that of the C struct, which is allowed in both chains.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Bfloat16Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Bfloat16Features {}

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
    /// True if the device has the extension.
    pub fn has_extension(&self, name: &CStr) -> bool {
        name.to_str().is_ok_and(|name| self.extensions.binary_search_by(|have| have.as_str().cmp(name)).is_ok())
    }

    pub(crate) fn query(instance: &Instance, physical: vk::PhysicalDevice, index: usize) -> GpuInfo {
        let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut sizes = vk::PhysicalDeviceSubgroupSizeControlProperties::default();
        let mut m4 = vk::PhysicalDeviceMaintenance4Properties::default();
        let mut chain = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut v11)
            .push_next(&mut v12)
            .push_next(&mut sizes)
            .push_next(&mut m4);
        // SAFETY: `physical` belongs to `instance`; drivers skip structs of the chain that they do not know.
        unsafe { instance.raw.get_physical_device_properties2(physical, &mut chain) };
        let base = chain.properties;
        let mut info = GpuInfo {
            index,
            name: text(&base.device_name),
            kind: kind(base.device_type),
            vendor_id: base.vendor_id,
            device_id: base.device_id,
            uuid: v11.device_uuid,
            driver: text(&v12.driver_name),
            driver_info: text(&v12.driver_info),
            driver_version: base.driver_version,
            api_version: version(base.api_version),
            pipeline_cache_uuid: base.pipeline_cache_uuid,
            limits: limits(&base.limits, &v11, &sizes, &m4),
            features: Features::default(),
            cooperative: Vec::new(),
            heaps: heaps(&instance.raw, physical),
            extensions: extensions(&instance.raw, physical),
        };
        info.features = info.query_features(&instance.raw, physical);
        if info.features.cooperative_matrix {
            info.cooperative = cooperative_shapes(instance, physical);
        }
        info
    }

    fn query_features(&self, instance: &ash::Instance, physical: vk::PhysicalDevice) -> Features {
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut control = vk::PhysicalDeviceSubgroupSizeControlFeatures::default();
        let mut coop = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
        let mut bf16 = Bfloat16Features::default();
        let mut chain = vk::PhysicalDeviceFeatures2::default().push_next(&mut v11).push_next(&mut v12);
        if self.api_version >= (1, 3, 0) || self.has_extension(ash::ext::subgroup_size_control::NAME) {
            chain = chain.push_next(&mut control);
        }
        if self.has_extension(ash::khr::cooperative_matrix::NAME) {
            chain = chain.push_next(&mut coop);
        }
        if self.has_extension(BFLOAT16) {
            chain = chain.push_next(&mut bf16);
        }
        // SAFETY: `physical` belongs to `instance`; each struct of the chain is core in 1.2 or its extension is present.
        unsafe { instance.get_physical_device_features2(physical, &mut chain) };
        let core = chain.features;
        let on = |flag: vk::Bool32| flag == vk::TRUE;
        Features {
            int8: on(v12.storage_buffer8_bit_access) && on(v12.shader_int8),
            int16: on(v11.storage_buffer16_bit_access) && on(core.shader_int16),
            float16: on(v11.storage_buffer16_bit_access) && on(v12.shader_float16),
            int64: on(core.shader_int64),
            float64: on(core.shader_float64),
            bfloat16: on(bf16.ty) && on(bf16.cooperative_matrix),
            memory_model: on(v12.vulkan_memory_model) && on(v12.vulkan_memory_model_device_scope),
            subgroup_size_control: on(control.subgroup_size_control),
            full_subgroups: on(control.compute_full_subgroups),
            cooperative_matrix: on(coop.cooperative_matrix),
            buffer_address: on(v12.buffer_device_address),
            timeline: on(v12.timeline_semaphore),
            robust: on(core.robust_buffer_access),
            subgroup_extended_types: on(v12.shader_subgroup_extended_types),
        }
    }
}

fn limits(
    base: &vk::PhysicalDeviceLimits,
    v11: &vk::PhysicalDeviceVulkan11Properties<'_>,
    sizes: &vk::PhysicalDeviceSubgroupSizeControlProperties<'_>,
    m4: &vk::PhysicalDeviceMaintenance4Properties<'_>,
) -> Limits {
    let subgroup = v11.subgroup_size;
    let fixed = sizes.min_subgroup_size == 0;
    Limits {
        max_workgroup: base.max_compute_work_group_invocations,
        max_workgroup_size: base.max_compute_work_group_size,
        max_workgroup_count: base.max_compute_work_group_count,
        shared_bytes: base.max_compute_shared_memory_size,
        push_bytes: base.max_push_constants_size,
        max_allocation_bytes: v11.max_memory_allocation_size,
        max_buffer_bytes: m4.max_buffer_size,
        max_storage_range: base.max_storage_buffer_range,
        min_storage_offset_alignment: base.min_storage_buffer_offset_alignment,
        subgroup,
        subgroup_range: if fixed { (subgroup, subgroup) } else { (sizes.min_subgroup_size, sizes.max_subgroup_size) },
        timestamp_period_ns: if base.timestamp_compute_and_graphics == vk::TRUE { base.timestamp_period } else { 0.0 },
    }
}

fn extensions(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Vec<String> {
    // SAFETY: `physical` belongs to `instance`.
    let found = unsafe { instance.enumerate_device_extension_properties(physical) }.unwrap_or_default();
    let mut names: Vec<String> = found.iter().map(|extension| text(&extension.extension_name)).collect();
    names.sort();
    names
}

fn heaps(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Vec<Heap> {
    // SAFETY: `physical` belongs to `instance`.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    let has = |heap: usize, flag: vk::MemoryPropertyFlags| {
        memory
            .memory_types_as_slice()
            .iter()
            .any(|ty| ty.heap_index as usize == heap && ty.property_flags.contains(flag))
    };
    let describe = |(index, heap): (usize, &vk::MemoryHeap)| Heap {
        bytes: heap.size,
        device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
        host_visible: has(index, vk::MemoryPropertyFlags::HOST_VISIBLE),
        host_cached: has(index, vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_CACHED),
    };
    memory.memory_heaps_as_slice().iter().enumerate().map(describe).collect()
}

fn cooperative_shapes(instance: &Instance, physical: vk::PhysicalDevice) -> Vec<CooperativeShape> {
    let api = ash::khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device has the extension, so the loader knows the function.
    let rows = unsafe { api.get_physical_device_cooperative_matrix_properties(physical) }.unwrap_or_default();
    let shape = |row: &vk::CooperativeMatrixPropertiesKHR<'_>| {
        let [a, b, c, result] = [row.a_type, row.b_type, row.c_type, row.result_type].map(component);
        CooperativeShape { m: row.m_size, n: row.n_size, k: row.k_size, a, b, c, result }
    };
    let mut shapes: Vec<_> = rows.iter().filter(|row| row.scope == vk::ScopeKHR::SUBGROUP).map(shape).collect();
    shapes.sort();
    shapes.dedup();
    shapes
}

fn component(ty: vk::ComponentTypeKHR) -> &'static str {
    // In the order of Vulkan's enumeration.
    const NAMES: [&str; 11] = ["f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"];
    match ty.as_raw() {
        BFLOAT16_TYPE => "bf16",
        index => usize::try_from(index).ok().and_then(|index| NAMES.get(index)).copied().unwrap_or("unknown"),
    }
}

fn kind(ty: vk::PhysicalDeviceType) -> GpuKind {
    match ty {
        vk::PhysicalDeviceType::DISCRETE_GPU => GpuKind::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => GpuKind::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => GpuKind::Virtual,
        vk::PhysicalDeviceType::CPU => GpuKind::Cpu,
        _ => GpuKind::Other,
    }
}

fn version(packed: u32) -> (u32, u32, u32) {
    (vk::api_version_major(packed), vk::api_version_minor(packed), vk::api_version_patch(packed))
}

fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
