//! The device and the Vulkan instance behind it: opened by the runtime, or borrowed from the application.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, LazyLock, Mutex};

use ash::vk::{self, Handle as _};

use crate::error::vulkan;
use crate::info::{BFLOAT16, FeatureChain};
use crate::queue::Device;
use crate::{Error, Features, GpuInfo, Requirements, Result};

/// Which device to open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Select {
    /// The first that works, discrete before integrated before virtual before CPU drivers.
    #[default]
    Auto,
    /// By position in [`Gpu::list`].
    Index(usize),
    /// The first whose name contains this text, whatever the case.
    Name(String),
    /// By device UUID.
    Uuid([u8; 16]),
}

/// Raw Vulkan handles of an application's device, independent of the application's bindings.
#[expect(missing_docs, reason = "the names of the others are those of Vulkan")]
pub struct BorrowedDevice {
    pub get_instance_proc_addr: *const c_void,
    pub instance: u64,
    pub physical_device: u64,
    pub device: u64,
    /// A queue that computes.
    pub queue: u64,
    pub queue_family: u32,
    /// Features that were enabled at device creation; Vulkan cannot be asked.
    pub enabled: Features,
    /// Locked around each submission, when the application submits to the same queue from other threads.
    pub queue_lock: Option<Arc<Mutex<()>>>,
}

/// An open device. Clones share it; it is destroyed (unless borrowed) with the last object that uses it.
#[derive(Clone)]
pub struct Gpu(pub(crate) Arc<Device>);

impl Gpu {
    /// All Vulkan devices of this machine, in the loader's order; an error when there is no Vulkan loader.
    pub fn list() -> Result<Vec<GpuInfo>> {
        Ok(SHARED.clone()?.devices()?.into_iter().map(|(_, info)| info).collect())
    }

    /// Opens a device as programs want it. [`Error::NoDevice`] lists what was found.
    pub fn open(select: &Select) -> Result<Gpu> {
        let instance = SHARED.clone()?;
        let (physical, mut info) = choose(instance.devices()?, select)?;
        Requirements::NONE.check(&info)?;
        let family = instance.compute_family(physical, &mut info)?;
        let raw = instance.create_device(physical, &info, family)?;
        // SAFETY: the device was created with one queue of this family.
        let queue = unsafe { raw.get_device_queue(family, 0) };
        Device::share(instance, (physical, info), raw, (family, queue), None, true).map(Gpu)
    }

    /// Uses an application's device. It is never destroyed here. An error when addresses or timeline semaphores are not enabled.
    ///
    /// # Safety
    ///
    /// The handles must be valid and belong together, live longer than every object made from the result, and `enabled` must not
    /// claim a feature that was not enabled. Without `queue_lock`, nobody else may submit to the queue at the same time.
    pub unsafe fn borrow(device: BorrowedDevice) -> Result<Gpu> {
        type GetProcAddr = unsafe extern "system" fn(vk::Instance, *const c_char) -> vk::PFN_vkVoidFunction;
        // SAFETY: the caller vouches for the function pointer and the handles.
        let (entry, instance, raw) = unsafe {
            let get_instance_proc_addr =
                std::mem::transmute::<*const c_void, GetProcAddr>(device.get_instance_proc_addr);
            let entry = ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr });
            let instance = ash::Instance::load(entry.static_fn(), vk::Instance::from_raw(device.instance));
            let raw = ash::Device::load(instance.fp_v1_0(), vk::Device::from_raw(device.device));
            (entry, instance, raw)
        };
        let instance = Arc::new(Instance { raw: instance, entry });
        let physical = vk::PhysicalDevice::from_raw(device.physical_device);
        let info = GpuInfo { features: device.enabled, ..GpuInfo::query(&instance, physical, 0) };
        Requirements::NONE.check(&info)?;
        let queue = (device.queue_family, vk::Queue::from_raw(device.queue));
        Device::share(instance, (physical, info), raw, queue, device.queue_lock, false).map(Gpu)
    }

    /// Facts of the device.
    pub fn info(&self) -> &GpuInfo {
        &self.0.info
    }

    /// The timeline `VkSemaphore` that runs signal, for applications that wait for a [`crate::Ticket`] on the GPU.
    pub fn timeline(&self) -> u64 {
        self.0.timeline.as_raw()
    }
}

pub(crate) struct Instance {
    pub(crate) raw: ash::Instance,
    pub(crate) entry: ash::Entry,
}

/// The instance that our own devices share; never destroyed. Destroying the last one unloads the drivers, and one of them fails
/// after having been loaded a dozen times. It also saves tens of milliseconds from the second device on.
static SHARED: LazyLock<Result<Arc<Instance>>> = LazyLock::new(Instance::create);

impl Instance {
    fn create() -> Result<Arc<Instance>> {
        let fail = |what: &str, error: &dyn std::fmt::Display| Error::Loader { reason: format!("{what}: {error}") };
        // SAFETY: loads the system's Vulkan loader, which is a well-behaved library.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| fail("loading it", &error))?;
        // SAFETY: a plain query.
        let found = unsafe { entry.enumerate_instance_extension_properties(None) }.unwrap_or_default();
        // Without it, the loader hides devices that are not fully conformant (MoltenVK).
        let portability = ash::khr::portability_enumeration::NAME;
        let app = vk::ApplicationInfo::default().application_name(c"jvc").api_version(vk::API_VERSION_1_3);
        let (mut info, names) = (vk::InstanceCreateInfo::default().application_info(&app), [portability.as_ptr()]);
        if found.iter().any(|extension| extension.extension_name_as_c_str() == Ok(portability)) {
            info = info.flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR).enabled_extension_names(&names);
        }
        // SAFETY: names live until the call returns.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|code| fail("vkCreateInstance", &code))?;
        Ok(Arc::new(Instance { raw, entry }))
    }

    /// All devices, in the loader's order.
    fn devices(&self) -> Result<Vec<(vk::PhysicalDevice, GpuInfo)>> {
        // SAFETY: a plain query.
        let found = unsafe { self.raw.enumerate_physical_devices() }.map_err(vulkan("vkEnumeratePhysicalDevices"))?;
        Ok((0..).zip(found).map(|(index, physical)| (physical, GpuInfo::query(self, physical, index))).collect())
    }

    /// A family that computes, best one that does nothing but compute; corrects the timestamp limit to what it offers.
    fn compute_family(&self, physical: vk::PhysicalDevice, info: &mut GpuInfo) -> Result<u32> {
        // SAFETY: `physical` belongs to the instance.
        let families = unsafe { self.raw.get_physical_device_queue_family_properties(physical) };
        let computing = (0..).zip(&families).filter(|(_, family)| family.queue_flags.contains(vk::QueueFlags::COMPUTE));
        let best = computing.min_by_key(|(_, family)| family.queue_flags.contains(vk::QueueFlags::GRAPHICS));
        let (index, family) = best.ok_or(Error::Missing { what: "compute queue" })?;
        if family.timestamp_valid_bits == 0 {
            info.timestamp_period_ns = 0.0;
        }
        Ok(index)
    }

    /// Creates the device with every feature of [`Features`] that it has.
    fn create_device(&self, physical: vk::PhysicalDevice, info: &GpuInfo, family: u32) -> Result<ash::Device> {
        let have = &info.features;
        let mut chain = FeatureChain::enabling(have);
        let mut features = chain.link(have.subgroup_size_control, have.cooperative_matrix, have.bfloat16);
        let queue = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
        // Subgroup size control is core since 1.3.
        let extensions = [
            (have.subgroup_size_control && info.api_version < (1, 3), ash::ext::subgroup_size_control::NAME),
            (have.cooperative_matrix, ash::khr::cooperative_matrix::NAME),
            (have.bfloat16, BFLOAT16),
            (info.is_portability_subset, ash::khr::portability_subset::NAME),
        ];
        let extensions: Vec<_> = extensions.iter().filter_map(|(has, name)| has.then_some(name.as_ptr())).collect();
        let create = vk::DeviceCreateInfo::default().queue_create_infos(&queue).enabled_extension_names(&extensions);
        // SAFETY: every feature and extension named was reported by the device; the chain lives until the call returns.
        let device = unsafe { self.raw.create_device(physical, &create.push_next(&mut features), None) };
        device.map_err(vulkan("vkCreateDevice"))
    }
}

fn choose(found: Vec<(vk::PhysicalDevice, GpuInfo)>, select: &Select) -> Result<(vk::PhysicalDevice, GpuInfo)> {
    let names = found.iter().map(|(_, info)| info.name.clone()).collect();
    let matches = |info: &GpuInfo| match select {
        Select::Auto => Requirements::NONE.check(info).is_ok(),
        Select::Index(index) => info.index == *index,
        Select::Name(part) => info.name.to_lowercase().contains(&part.to_lowercase()),
        Select::Uuid(uuid) => info.uuid == *uuid,
    };
    let best = found.into_iter().filter(|(_, info)| matches(info)).min_by_key(|(_, info)| (info.kind, info.index));
    best.ok_or_else(|| Error::NoDevice { wanted: format!("{select:?}"), found: names })
}
