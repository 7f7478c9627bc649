//! The Vulkan instance: the process's own, or the application's.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex};

use ash::vk;
use ash::vk::Handle as _;

use crate::error::{Error, Named as _};
use crate::info::GpuInfo;
use crate::queue::lock;

pub(crate) struct Instance {
    pub(crate) raw: ash::Instance,
    pub(crate) entry: ash::Entry,
}

/// The instance that our own devices share; never destroyed. Destroying the last one unloads the drivers, and one of them fails
/// after having been loaded a dozen times. It also saves tens of milliseconds from the second device on.
static SHARED: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

impl Instance {
    pub(crate) fn shared() -> Result<Arc<Instance>, Error> {
        let mut shared = lock(&SHARED);
        if let Some(instance) = &*shared {
            return Ok(Arc::clone(instance));
        }
        // SAFETY: loads the system's Vulkan loader, which is a well-behaved library.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| Error::Loader(error.to_string()))?;
        let raw = create(&entry)?;
        Ok(Arc::clone(shared.insert(Arc::new(Instance { raw, entry }))))
    }

    /// # Safety
    ///
    /// `vkGetInstanceProcAddr` and `VkInstance` are valid and belong together, for as long as the instance is used.
    pub(crate) unsafe fn borrowed(get_instance_proc_addr: *const c_void, instance: u64) -> Arc<Instance> {
        type GetProcAddr = unsafe extern "system" fn(vk::Instance, *const c_char) -> vk::PFN_vkVoidFunction;
        // SAFETY: the caller vouches for the function pointer and the handle.
        unsafe {
            let get_instance_proc_addr = std::mem::transmute::<*const c_void, GetProcAddr>(get_instance_proc_addr);
            let entry = ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr });
            let raw = ash::Instance::load(entry.static_fn(), vk::Instance::from_raw(instance));
            Arc::new(Instance { raw, entry })
        }
    }

    /// All devices, in the loader's order.
    pub(crate) fn devices(&self) -> Result<Vec<(vk::PhysicalDevice, GpuInfo)>, Error> {
        // SAFETY: a plain query.
        let found = unsafe { self.raw.enumerate_physical_devices() }.named("vkEnumeratePhysicalDevices")?;
        let describe = |(index, physical)| (physical, GpuInfo::query(self, physical, index));
        Ok(found.into_iter().enumerate().map(describe).collect())
    }
}

fn create(entry: &ash::Entry) -> Result<ash::Instance, Error> {
    // SAFETY: a plain query.
    let found = unsafe { entry.enumerate_instance_extension_properties(None) };
    let found = found.named("vkEnumerateInstanceExtensionProperties")?;
    // Without it, the loader hides devices that are not fully conformant (MoltenVK).
    let portability = ash::khr::portability_enumeration::NAME;
    let app = vk::ApplicationInfo::default().application_name(c"jvc").api_version(vk::API_VERSION_1_3);
    let (mut info, names) = (vk::InstanceCreateInfo::default().application_info(&app), [portability.as_ptr()]);
    if found.iter().any(|extension| extension.extension_name_as_c_str() == Ok(portability)) {
        info = info.flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR).enabled_extension_names(&names);
    }
    // SAFETY: names live until the call returns.
    unsafe { entry.create_instance(&info, None) }.map_err(|code| Error::Loader(format!("vkCreateInstance: {code:?}")))
}
