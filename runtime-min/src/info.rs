//! Facts of a device (limits, features, matrix shapes), and what a program needs of them: checked before anything is built.

use std::collections::BTreeSet;
use std::ffi::{CStr, FromBytesUntilNulError};

use ash::vk;

use crate::error::ensure;
use crate::gpu::Instance;
use crate::{Error, Result};

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
    pub uuid: [u8; 16],
    /// The driver's name and its own version text.
    pub driver: String,
    pub driver_version: u32,
    /// Major, minor.
    pub api_version: (u32, u32),
    /// Identity of pipeline cache data.
    pub pipeline_cache_uuid: [u8; 16],
    /// Invocations of a workgroup.
    pub max_workgroup: u32,
    pub max_workgroup_count: [u32; 3],
    pub shared_bytes: u32,
    pub push_bytes: u32,
    /// Largest allocation with a buffer over all of it.
    pub max_allocation_bytes: u64,
    pub min_storage_offset_alignment: u64,
    pub subgroup: u32,
    /// Smallest and largest subgroup size that a pipeline may ask for.
    pub subgroup_range: (u32, u32),
    /// Nanoseconds of one timestamp tick; 0 when the queue has no timestamps.
    pub timestamp_period_ns: f32,
    pub features: Features,
    /// Shapes of VK_KHR_cooperative_matrix at subgroup scope, sorted; those whose A and B, and C and result, are of one type.
    pub cooperative: Vec<Cooperative<'static>>,
    /// The device demands that VK_KHR_portability_subset is enabled.
    pub(crate) is_portability_subset: bool,
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
    bfloat16, "VK_KHR_shader_bfloat16 with matrices": bf16.storage_buffer8_bit_access, bf16.storage_push_constant8;
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
    /// In truth VkPhysicalDeviceShaderBfloat16FeaturesKHR, which the bindings lack; its three flags: the type, dot products, matrices.
    bf16: vk::PhysicalDevice8BitStorageFeatures<'static>,
}

impl FeatureChain {
    /// The structs, linked; those that a device may not know only where the flag is set.
    pub(crate) fn link(&mut self, control: bool, cooperative: bool, bf16: bool) -> vk::PhysicalDeviceFeatures2<'_> {
        self.bf16.s_type = vk::StructureType::from_raw(BFLOAT16_TYPE);
        let core = vk::PhysicalDeviceFeatures2::default().features(self.core);
        let all = core.push_next(&mut self.v11).push_next(&mut self.v12);
        let all = if control { all.push_next(&mut self.control) } else { all };
        let all = if cooperative { all.push_next(&mut self.cooperative) } else { all };
        if bf16 { all.push_next(&mut self.bf16) } else { all }
    }
}

pub(crate) const BFLOAT16: &CStr = c"VK_KHR_shader_bfloat16";
/// First number of the extension's enumerants: its feature struct, and its component type.
const BFLOAT16_TYPE: i32 = 1_000_141_000;

impl GpuInfo {
    /// Workgroup counts within the device's limits.
    pub(crate) fn check_groups(&self, counts: [u32; 3]) -> Result<()> {
        let max = self.max_workgroup_count;
        let fits = counts.iter().zip(max).all(|(count, max)| *count <= max);
        ensure(fits, || lack("workgroups of a dispatch", format!("{counts:?}"), format!("{max:?}")))
    }

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
        // SAFETY: `physical` belongs to `instance`.
        let extensions = unsafe { instance.raw.enumerate_device_extension_properties(physical) }.unwrap_or_default();
        let has = |name: &CStr| extensions.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name));
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
            api_version: (vk::api_version_major(packed), vk::api_version_minor(packed)),
            pipeline_cache_uuid: base.pipeline_cache_uuid,
            max_workgroup: limits.max_compute_work_group_invocations,
            max_workgroup_count: limits.max_compute_work_group_count,
            shared_bytes: limits.max_compute_shared_memory_size,
            push_bytes: limits.max_push_constants_size,
            max_allocation_bytes: v11.max_memory_allocation_size.min(max_buffer_bytes),
            min_storage_offset_alignment: limits.min_storage_buffer_offset_alignment,
            subgroup: v11.subgroup_size,
            subgroup_range: if sizes.0 == 0 { (v11.subgroup_size, v11.subgroup_size) } else { sizes },
            timestamp_period_ns: limits.timestamp_period * limits.timestamp_compute_and_graphics as f32,
            features,
            cooperative: if features.cooperative_matrix { shapes(instance, physical) } else { Vec::new() },
            is_portability_subset: has(ash::khr::portability_subset::NAME),
        }
    }
}

fn shapes(instance: &Instance, physical: vk::PhysicalDevice) -> Vec<Cooperative<'static>> {
    let api = ash::khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device has the extension, so the loader knows the function.
    let rows = unsafe { api.get_physical_device_cooperative_matrix_properties(physical) }.unwrap_or_default();
    let shape = |row: &vk::CooperativeMatrixPropertiesKHR<'_>| {
        let usable = row.scope == vk::ScopeKHR::SUBGROUP && row.a_type == row.b_type && row.c_type == row.result_type;
        let (operand, accumulator) = (component(row.a_type), component(row.c_type));
        usable.then_some(Cooperative { m: row.m_size, n: row.n_size, k: row.k_size, operand, accumulator })
    };
    rows.iter().filter_map(shape).collect::<BTreeSet<_>>().into_iter().collect()
}

fn component(ty: vk::ComponentTypeKHR) -> &'static str {
    // As above.
    const NAMES: [&str; 11] = ["f16", "f32", "f64", "s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64"];
    let name = usize::try_from(ty.as_raw()).ok().and_then(|index| NAMES.get(index).copied());
    name.unwrap_or(if ty.as_raw() == BFLOAT16_TYPE { "bf16" } else { "unknown" })
}

fn text(name: Result<&CStr, FromBytesUntilNulError>) -> String {
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Limits and features that a program was compiled for. Everything `false` or 0 asks for nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the others are limits, named as in `GpuInfo`")]
pub struct Requirements<'a> {
    /// Features, besides those that every program needs.
    pub features: Features,
    /// KHR cooperative-matrix shapes, with the Vulkan memory model.
    pub cooperative: &'a [Cooperative<'a>],
    /// Subgroup size that some kernel assumes.
    pub subgroup: u32,
    pub max_workgroup: u32,
    pub shared_bytes: u32,
    pub push_bytes: u32,
    pub max_allocation_bytes: u64,
}

/// A cooperative-matrix shape: A and B of one component type, C and the result of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names of the others are those of Vulkan")]
pub struct Cooperative<'a> {
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Component type of A and B: `f16`, `bf16`, `s8`, `u8`.
    pub operand: &'a str,
    /// Component type of C and the result: `f32`, `f16`, `s32`, `u32`.
    pub accumulator: &'a str,
}

impl Requirements<'_> {
    /// Asks for nothing.
    pub const NONE: Requirements<'static> = Requirements {
        features: Features::NONE,
        cooperative: &[],
        subgroup: 0,
        max_workgroup: 0,
        shared_bytes: 0,
        push_bytes: 0,
        max_allocation_bytes: 0,
    };

    /// Compares with a device. What it lacks first is the error: a feature ([`Error::Missing`]) or a limit ([`Error::Requirement`]).
    pub fn check(&self, gpu: &GpuInfo) -> Result<()> {
        let (major, minor) = gpu.api_version;
        ensure((major, minor) >= (1, 2), || lack("Vulkan", "1.2", format!("{major}.{minor}")))?;
        let mut features = self.features;
        (features.buffer_address, features.timeline) = (true, true);
        features.cooperative_matrix |= !self.cooperative.is_empty();
        features.memory_model |= !self.cooperative.is_empty();
        features.first_missing(&gpu.features).map_or(Ok(()), |what| Err(Error::Missing { what }))?;
        check_limit("invocations of a workgroup", self.max_workgroup.into(), gpu.max_workgroup.into())?;
        check_limit("shared memory bytes", self.shared_bytes.into(), gpu.shared_bytes.into())?;
        check_limit("push constant bytes", self.push_bytes.into(), gpu.push_bytes.into())?;
        check_limit("bytes of one allocation", self.max_allocation_bytes, gpu.max_allocation_bytes)?;
        let default = (gpu.subgroup, gpu.subgroup);
        let (low, high) = if gpu.features.subgroup_size_control { gpu.subgroup_range } else { default };
        let fits = self.subgroup == 0 || (low..=high).contains(&self.subgroup);
        ensure(fits, || lack("subgroup sizes", self.subgroup, format!("{low} to {high}")))?;
        self.cooperative.iter().try_for_each(|shape| {
            let lacks = || lack("cooperative-matrix shapes", format!("{shape:?}"), format!("{:?}", gpu.cooperative));
            ensure(gpu.cooperative.contains(shape), lacks)
        })
    }
}

/// A need that is at most the fact.
pub(crate) fn check_limit(what: &'static str, need: u64, fact: u64) -> Result<()> {
    ensure(need <= fact, || lack(what, need, fact))
}

fn lack(what: &'static str, need: impl ToString, fact: impl ToString) -> Error {
    Error::Requirement { what, need: need.to_string(), fact: fact.to_string() }
}
