//! The application's Vulkan: instance, device and queue, memory, submissions, and the timeline that orders them.

use std::error::Error;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

use ash::vk::{self, Handle as _};
use soften::jvc_runtime::{BorrowedDevice, Features, Gpu};

/// What the application owns, however it was made.
pub struct Vulkan {
    /// The loader.
    pub entry: ash::Entry,
    /// Its instance.
    pub instance: ash::Instance,
    /// The physical device.
    pub physical: vk::PhysicalDevice,
    /// A device with buffer addresses, timeline semaphores and 8-bit storage.
    pub device: ash::Device,
    /// A queue that computes.
    pub queue: vk::Queue,
    /// Its family.
    pub family: u32,
}

/// Messages of the validation layer.
pub type Messages = Arc<Mutex<Vec<String>>>;

impl Vulkan {
    /// Lends the device to the runtime, which leaves it alive.
    ///
    /// # Errors
    /// A device without addresses or timeline semaphores.
    pub fn lend(&self) -> Result<Gpu, soften::jvc_runtime::Error> {
        let borrowed = BorrowedDevice {
            get_instance_proc_addr: self.entry.static_fn().get_instance_proc_addr as *const c_void,
            instance: self.instance.handle().as_raw(),
            physical_device: self.physical.as_raw(),
            device: self.device.handle().as_raw(),
            queue: self.queue.as_raw(),
            queue_family: self.family,
            // What was enabled when the device was created: 8-bit storage for pictures of bytes.
            enabled: Features { buffer_address: true, timeline: true, int8: true, ..Features::NONE },
            queue_lock: None,
        };
        // SAFETY: the handles belong together; whoever has the `Gpu` drops it before the device; one thread submits.
        unsafe { Gpu::borrow(borrowed) }
    }

    /// A handle that the runtime has given.
    pub fn semaphore(&self, raw: u64) -> vk::Semaphore {
        vk::Semaphore::from_raw(raw)
    }

    /// One `vkQueueSubmit` of one batch; timeline semaphores before and after it. Gives the `VkResult`.
    pub(crate) fn submit(
        &self,
        commands: &[vk::CommandBuffer],
        wait: Option<(&Timeline, u64)>,
        signals: &[(vk::Semaphore, u64)],
    ) -> i32 {
        let (waits, wait_values): (Vec<_>, Vec<_>) =
            wait.iter().map(|(timeline, value)| (timeline.raw, *value)).unzip();
        let stages = vec![vk::PipelineStageFlags::ALL_COMMANDS; waits.len()];
        let (signals, signal_values): (Vec<_>, Vec<_>) = signals.iter().copied().unzip();
        let mut values = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&wait_values)
            .signal_semaphore_values(&signal_values);
        let batch = vk::SubmitInfo::default().command_buffers(commands).signal_semaphores(&signals);
        let batch = [batch.wait_semaphores(&waits).wait_dst_stage_mask(&stages).push_next(&mut values)];
        // SAFETY: everything belongs to the device and is kept until the timeline has reached the value; one thread submits.
        let result = unsafe { self.device.queue_submit(self.queue, &batch, vk::Fence::null()) };
        result.map_or_else(|code| code.as_raw(), |()| vk::Result::SUCCESS.as_raw())
    }

    /// Memory that has these properties.
    pub(crate) fn allocate(
        &self,
        need: vk::MemoryRequirements,
        flags: vk::MemoryPropertyFlags,
        has_address: bool,
    ) -> Result<vk::DeviceMemory, Box<dyn Error>> {
        // SAFETY: a plain query.
        let memory = unsafe { self.instance.get_physical_device_memory_properties(self.physical) };
        let suits = |(index, ty): &(u32, &vk::MemoryType)| {
            need.memory_type_bits & (1 << index) != 0 && ty.property_flags.contains(flags)
        };
        let (ty, _) = (0..).zip(memory.memory_types_as_slice()).find(suits).ok_or("no such memory")?;
        let mut address = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default().allocation_size(need.size).memory_type_index(ty);
        let info = if has_address { info.push_next(&mut address) } else { info };
        // SAFETY: the memory type exists.
        Ok(unsafe { self.device.allocate_memory(&info, None) }?)
    }
}

/// The application's timeline semaphore.
pub(crate) struct Timeline {
    device: ash::Device,
    pub(crate) raw: vk::Semaphore,
}

impl Timeline {
    pub(crate) fn new(vulkan: &Vulkan) -> Result<Timeline, vk::Result> {
        let mut ty = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut ty);
        // SAFETY: the device has timeline semaphores.
        let raw = unsafe { vulkan.device.create_semaphore(&info, None) }?;
        Ok(Timeline { device: vulkan.device.clone(), raw })
    }

    /// Blocks the host.
    pub(crate) fn wait(&self, value: u64) -> Result<(), vk::Result> {
        let (semaphores, values) = ([self.raw], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is ours.
        unsafe { self.device.wait_semaphores(&info, u64::MAX) }
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: nothing is pending on an idle device.
        unsafe {
            let _ = self.device.device_wait_idle();
            self.device.destroy_semaphore(self.raw, None);
        }
    }
}

/// Makes instance, device and queue on the GPU of this number, hands them to `with`, and destroys them. With the validation layer,
/// what it says is kept.
///
/// # Errors
/// Those of Vulkan and of `with`.
pub fn own<T>(
    gpu: usize,
    messages: Option<&Messages>,
    with: impl FnOnce(&Vulkan) -> Result<T, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    // SAFETY: plain creations with structs that live until the calls return; everything made of the device is gone when `with`
    // returns, and what is made here is destroyed in order.
    unsafe {
        let entry = ash::Entry::load()?;
        let instance = instance(&entry, messages.is_some())?;
        let debug = ash::ext::debug_utils::Instance::new(&entry, &instance);
        let messenger = messages.map(|list| debug.create_debug_utils_messenger(&listener(list), None)).transpose()?;
        let physical = *instance.enumerate_physical_devices()?.get(gpu).ok_or("no such GPU")?;
        let families = instance.get_physical_device_queue_family_properties(physical);
        let mut families = (0..).zip(families);
        let (family, _) =
            families.find(|(_, f)| f.queue_flags.contains(vk::QueueFlags::COMPUTE)).ok_or("no compute queue")?;
        let device = create_device(&instance, physical, family)?;
        let queue = device.get_device_queue(family, 0);
        let vulkan = Vulkan { entry, instance, physical, device, queue, family };
        let result = with(&vulkan);
        vulkan.device.destroy_device(None);
        messenger.iter().for_each(|messenger| debug.destroy_debug_utils_messenger(*messenger, None));
        vulkan.instance.destroy_instance(None);
        result
    }
}

unsafe fn instance(entry: &ash::Entry, validate: bool) -> Result<ash::Instance, vk::Result> {
    let app = vk::ApplicationInfo::default().application_name(c"app-owned-device").api_version(vk::API_VERSION_1_2);
    let layers = [c"VK_LAYER_KHRONOS_validation".as_ptr()];
    let extensions = [ash::ext::debug_utils::NAME.as_ptr(), ash::ext::validation_features::NAME.as_ptr()];
    let sync = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
    let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&sync);
    let info = vk::InstanceCreateInfo::default().application_info(&app);
    let validating = info.enabled_layer_names(&layers).enabled_extension_names(&extensions).push_next(&mut features);
    // SAFETY: the caller's promise.
    unsafe { entry.create_instance(if validate { &validating } else { &info }, None) }
}

/// The features that the runtime needs, and those of the program: the requirements stand in the generated crate's `src/lib.rs`.
unsafe fn create_device(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    family: u32,
) -> Result<ash::Device, vk::Result> {
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default()
        .buffer_device_address(true)
        .timeline_semaphore(true)
        .storage_buffer8_bit_access(true)
        .shader_int8(true);
    let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut v12);
    // SAFETY: the caller's promise.
    unsafe { instance.create_device(physical, &info, None) }
}

fn listener(list: &Messages) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    use vk::{DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Type};
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(Severity::ERROR | Severity::WARNING)
        .message_type(Type::VALIDATION)
        .pfn_user_callback(Some(on_message))
        .user_data(Arc::as_ptr(list).cast_mut().cast())
}

unsafe extern "system" fn on_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _ty: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes valid data, and `own` borrows the list for longer than the messenger lives.
    let (text, list) = unsafe { ((*data).message_as_c_str(), &*user.cast::<Mutex<Vec<String>>>().cast_const()) };
    let text = text.map_or_else(String::new, |text| text.to_string_lossy().into_owned());
    list.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(text);
    vk::FALSE
}
