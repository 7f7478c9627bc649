//! Devices that are not what they seem: the runtime's Vulkan calls go through here, by the application's `vkGetInstanceProcAddr`.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ash::vk;
use ash::vk::Handle as _;

use crate::{Options, binaries};

/// Vulkan's own functions.
static PLAIN: OnceLock<vk::PFN_vkGetInstanceProcAddr> = OnceLock::new();
static PLAIN_DEVICE: OnceLock<vk::PFN_vkGetDeviceProcAddr> = OnceLock::new();
static PLAIN_MEMORY: OnceLock<vk::PFN_vkGetPhysicalDeviceMemoryProperties> = OnceLock::new();

/// Queues of labs, by handle.
static QUEUES: Mutex<BTreeMap<u64, Doomed>> = Mutex::new(BTreeMap::new());
/// Devices whose memory runs out, by handle: how they allocate, and allocations left.
static ALLOCATIONS: Mutex<BTreeMap<u64, (vk::PFN_vkAllocateMemory, u64)>> = Mutex::new(BTreeMap::new());
/// Devices without mapped memory, by handle.
static WITHOUT_MAPPED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Doomed {
    submit: vk::PFN_vkQueueSubmit,
    wait_idle: vk::PFN_vkQueueWaitIdle,
    /// Submissions left to run.
    n_left: u64,
}

/// What stands for `vkGetInstanceProcAddr`.
pub(crate) const GET_INSTANCE_PROC_ADDR: vk::PFN_vkGetInstanceProcAddr = get_instance_proc_addr;

/// Notes what is special about a device; true if anything is.
pub(crate) fn register(
    entry: &ash::Entry,
    instance: &ash::Instance,
    device: &ash::Device,
    (physical, queue): (vk::PhysicalDevice, vk::Queue),
    options: &Options,
) -> bool {
    PLAIN.get_or_init(|| entry.static_fn().get_instance_proc_addr);
    PLAIN_DEVICE.get_or_init(|| instance.fp_v1_0().get_device_proc_addr);
    PLAIN_MEMORY.get_or_init(|| instance.fp_v1_0().get_physical_device_memory_properties);
    let (submit, wait_idle) = (device.fp_v1_0().queue_submit, device.fp_v1_0().queue_wait_idle);
    let n_left = options.lost_at.unwrap_or(u64::MAX);
    lock(&QUEUES).insert(queue.as_raw(), Doomed { submit, wait_idle, n_left });
    let n_left = options.allocations.unwrap_or(u64::MAX);
    lock(&ALLOCATIONS).insert(device.handle().as_raw(), (device.fp_v1_0().allocate_memory, n_left));
    if options.without_mapped {
        lock(&WITHOUT_MAPPED).push(physical.as_raw());
    }
    if let Some(pretended) = options.binaries {
        binaries::pretend(device, pretended);
    }
    let memory = options.allocations.is_some() || options.without_mapped;
    memory || options.lost_at.is_some() || options.binaries.is_some()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "system" fn get_instance_proc_addr(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: callers pass a name; functions are stored as pointers of any signature.
    unsafe {
        match CStr::from_ptr(name).to_bytes() {
            b"vkGetDeviceProcAddr" => void(get_device_proc_addr as vk::PFN_vkGetDeviceProcAddr as *const ()),
            b"vkGetPhysicalDeviceMemoryProperties" => {
                void(memory_properties as vk::PFN_vkGetPhysicalDeviceMemoryProperties as *const ())
            }
            _ => PLAIN.get().and_then(|plain| plain(instance, name)),
        }
    }
}

unsafe extern "system" fn get_device_proc_addr(device: vk::Device, name: *const c_char) -> vk::PFN_vkVoidFunction {
    // SAFETY: as above.
    unsafe {
        match CStr::from_ptr(name).to_bytes() {
            b"vkQueueSubmit" => void(queue_submit as vk::PFN_vkQueueSubmit as *const ()),
            b"vkAllocateMemory" => void(allocate_memory as vk::PFN_vkAllocateMemory as *const ()),
            _ => binaries::device_function(device, name).or_else(|| plain(device, name)),
        }
    }
}

/// Vulkan's own function of a device.
///
/// # Safety
///
/// The name is a string.
pub(crate) unsafe fn plain(device: vk::Device, name: *const c_char) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller's promise.
    PLAIN_DEVICE.get().and_then(|plain| unsafe { plain(device, name) })
}

/// # Safety
///
/// A function of Vulkan.
pub(crate) unsafe fn void(function: *const ()) -> vk::PFN_vkVoidFunction {
    // SAFETY: who calls it gives it its signature back.
    Some(unsafe { std::mem::transmute::<*const (), unsafe extern "system" fn()>(function) })
}

unsafe extern "system" fn queue_submit(
    queue: vk::Queue,
    n: u32,
    submits: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    let doomed = lock(&QUEUES).get_mut(&queue.as_raw()).map(|doomed| {
        let before = *doomed;
        doomed.n_left = doomed.n_left.saturating_sub(1);
        before
    });
    // SAFETY: the arguments are passed on.
    unsafe {
        match doomed {
            Some(Doomed { wait_idle, n_left: 0, .. }) => {
                let _ = wait_idle(queue);
                vk::Result::ERROR_DEVICE_LOST
            }
            Some(Doomed { submit, .. }) => submit(queue, n, submits, fence),
            None => vk::Result::ERROR_UNKNOWN,
        }
    }
}

unsafe extern "system" fn allocate_memory(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    let found = lock(&ALLOCATIONS).get_mut(&device.as_raw()).map(|(allocate, n_left)| {
        let before = *n_left;
        *n_left = n_left.saturating_sub(1);
        (*allocate, before)
    });
    match found {
        None => vk::Result::ERROR_UNKNOWN,
        Some((_, 0)) => vk::Result::ERROR_OUT_OF_DEVICE_MEMORY,
        // SAFETY: the arguments are passed on.
        Some((allocate, _)) => unsafe { allocate(device, info, callbacks, memory) },
    }
}

unsafe extern "system" fn memory_properties(
    physical: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceMemoryProperties,
) {
    let Some(plain) = PLAIN_MEMORY.get() else { return };
    // SAFETY: the arguments are passed on; then the struct is filled in.
    unsafe {
        plain(physical, properties);
        if lock(&WITHOUT_MAPPED).contains(&physical.as_raw()) {
            let visible = vk::MemoryPropertyFlags::HOST_VISIBLE;
            for ty in (*properties).memory_types.iter_mut().filter(|ty| ty.property_flags.contains(visible)) {
                ty.property_flags &= !vk::MemoryPropertyFlags::DEVICE_LOCAL;
            }
        }
    }
}
