//! The device: opened by the runtime or borrowed from the application, its queue, its timeline, and its loss.

use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::vk;
use ash::vk::Handle as _;

use crate::error::{Error, Named as _};
use crate::info::{BFLOAT16, Bfloat16Features, GpuInfo};
use crate::validation::{LAYER, Messenger, Validation, ValidationLog};

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

/// How to open a device. The default is what ships; the rest is for tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Turns on robust buffer access. It does not cover accesses through addresses.
    pub robust: bool,
    /// Starts the validation layer.
    pub validation: Option<Validation>,
    /// Uploads weights through staging buffers also where the host could write device memory.
    pub staged_weights: bool,
    /// Pretends that the device gets lost.
    pub fault: Option<Fault>,
}

/// A simulated loss of the device, when everything before has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The queue submission, counted from 0 and from opening on, that loses the device instead of running.
    pub submission: u64,
}

/// Raw Vulkan handles of an application's device, independent of the application's bindings.
///
/// The device must have been created with `bufferDeviceAddress`, `timelineSemaphore` and what the program requires; `enabled`
/// says so, since Vulkan cannot be asked.
pub struct BorrowedDevice {
    /// `vkGetInstanceProcAddr`, cast to a plain pointer.
    pub get_instance_proc_addr: *const std::ffi::c_void,
    /// `VkInstance`.
    pub instance: u64,
    /// `VkPhysicalDevice`.
    pub physical_device: u64,
    /// `VkDevice`.
    pub device: u64,
    /// `VkQueue` with compute.
    pub queue: u64,
    /// Family of the queue.
    pub queue_family: u32,
    /// Features that were enabled at device creation.
    pub enabled: crate::Features,
    /// Locked around each submission, when the application submits to the same queue from other threads.
    pub queue_lock: Option<Arc<Mutex<()>>>,
}

/// An open device. Clones share it; it is destroyed (unless borrowed) with the last object that uses it.
#[derive(Clone)]
pub struct Gpu(pub(crate) Arc<Device>);

pub(crate) struct Device {
    pub(crate) raw: ash::Device,
    pub(crate) info: GpuInfo,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    pub(crate) family: u32,
    instance: ash::Instance,
    queue: Mutex<Queue>,
    timeline: vk::Semaphore,
    lost: Mutex<Option<Error>>,
    pub(crate) options: Options,
    owned: bool,
    messenger: Option<Messenger>,
    /// Keeps the loader's library open.
    _entry: ash::Entry,
}

struct Queue {
    handle: vk::Queue,
    /// Timeline value that the latest submission signals.
    value: u64,
    n_submissions: u64,
    app_lock: Option<Arc<Mutex<()>>>,
}

impl Gpu {
    /// All Vulkan devices of this machine, in the loader's order.
    ///
    /// # Errors
    ///
    /// When there is no Vulkan loader.
    pub fn list() -> Result<Vec<GpuInfo>, Error> {
        let entry = load_entry()?;
        let instance = create_instance(&entry, None)?;
        let infos = enumerate(&entry, &instance).map(|found| found.into_iter().map(|(_, info)| info).collect());
        // SAFETY: nothing made from the instance is left.
        unsafe { instance.destroy_instance(None) };
        infos
    }

    /// Opens a device as programs want it.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] lists what was found.
    pub fn open(select: &Select) -> Result<Gpu, Error> {
        Gpu::open_with(select, &Options::default())
    }

    /// Opens a device with test facilities.
    ///
    /// # Errors
    ///
    /// As [`Gpu::open`]; also when the validation layer is wanted and missing.
    pub fn open_with(select: &Select, options: &Options) -> Result<Gpu, Error> {
        let entry = load_entry()?;
        let instance = create_instance(&entry, options.validation)?;
        let opened = open_on(entry, &instance, select, options);
        if opened.is_err() {
            // SAFETY: the failed attempt has destroyed what it made from the instance.
            unsafe { instance.destroy_instance(None) };
        }
        opened
    }

    /// Uses an application's device. It is never destroyed here.
    ///
    /// # Safety
    ///
    /// The handles must be valid and belong together, live longer than every object made from the result, and `enabled` must not
    /// claim a feature that was not enabled. Without `queue_lock`, nobody else may submit to the queue at the same time.
    ///
    /// # Errors
    ///
    /// When addresses or timeline semaphores are not enabled.
    pub unsafe fn borrow(device: BorrowedDevice) -> Result<Gpu, Error> {
        // SAFETY: the caller vouches for the handles and for the function pointer.
        let (entry, instance, raw) = unsafe {
            let get_instance_proc_addr = std::mem::transmute::<
                *const std::ffi::c_void,
                unsafe extern "system" fn(vk::Instance, *const c_char) -> vk::PFN_vkVoidFunction,
            >(device.get_instance_proc_addr);
            let entry = ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr });
            let instance = ash::Instance::load(entry.static_fn(), vk::Instance::from_raw(device.instance));
            let raw = ash::Device::load(instance.fp_v1_0(), vk::Device::from_raw(device.device));
            (entry, instance, raw)
        };
        let physical = vk::PhysicalDevice::from_raw(device.physical_device);
        let mut info = GpuInfo::query(&entry, &instance, physical, 0);
        info.features = device.enabled;
        crate::Requirements::NONE.check(&info)?;
        // SAFETY: `physical` belongs to the instance.
        let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
        let timeline = create_timeline(&raw)?;
        let handle = vk::Queue::from_raw(device.queue);
        Ok(Gpu(Arc::new(Device {
            raw,
            info,
            memory,
            family: device.queue_family,
            instance,
            queue: Mutex::new(Queue { handle, value: 0, n_submissions: 0, app_lock: device.queue_lock }),
            timeline,
            lost: Mutex::new(None),
            options: Options::default(),
            owned: false,
            messenger: None,
            _entry: entry,
        })))
    }

    /// Facts of the device.
    pub fn info(&self) -> &GpuInfo {
        &self.0.info
    }

    /// Messages of the validation layer; empty without it.
    pub fn validation(&self) -> ValidationLog {
        self.0.messenger.as_ref().map(|messenger| messenger.log.clone()).unwrap_or_default()
    }

    /// The timeline `VkSemaphore` that runs signal, for applications that wait for a [`crate::Ticket::value`] on the GPU.
    pub fn timeline(&self) -> u64 {
        self.0.timeline.as_raw()
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({})", self.0.info.name)
    }
}

/// Why a submission or a wait did not succeed: the caller knows the step names that a loss needs.
pub(crate) enum Stop {
    Lost,
    Other(Error),
}

impl Device {
    /// The sticky error, if the device was lost.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        lock(&self.lost).clone().map_or(Ok(()), Err)
    }

    /// Remembers the loss; the first report stays.
    fn lose(&self, step: impl FnOnce() -> String) -> Error {
        lock(&self.lost).get_or_insert_with(|| Error::DeviceLost { step: step() }).clone()
    }

    /// Submits one command buffer; gives the timeline value that it signals.
    pub(crate) fn submit(&self, commands: vk::CommandBuffer) -> Result<u64, Stop> {
        self.check_alive().map_err(Stop::Other)?;
        let mut queue = lock(&self.queue);
        let submission = queue.n_submissions;
        queue.n_submissions += 1;
        if self.options.fault.is_some_and(|fault| fault.submission == submission) {
            self.wait(queue.value)?;
            return Err(Stop::Lost);
        }
        let values = [queue.value + 1];
        let (semaphores, commands) = ([self.timeline], [commands]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default()
            .command_buffers(&commands)
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline);
        let result = {
            let _app = queue.app_lock.as_ref().map(|app| lock(app));
            // SAFETY: the command buffer is recorded and not pending; the queue is locked.
            unsafe { self.raw.queue_submit(queue.handle, &[info], vk::Fence::null()) }
        };
        stop(result, "vkQueueSubmit")?;
        queue.value = values[0];
        Ok(queue.value)
    }

    /// Blocks until the timeline has reached the value.
    pub(crate) fn wait(&self, value: u64) -> Result<(), Stop> {
        self.check_alive().map_err(Stop::Other)?;
        let (semaphores, values) = ([self.timeline], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is ours.
        stop(unsafe { self.raw.wait_semaphores(&info, u64::MAX) }, "vkWaitSemaphores")
    }

    /// Timeline value reached so far; what a lost device last said, or 0.
    pub(crate) fn reached(&self) -> u64 {
        // SAFETY: the semaphore is ours.
        unsafe { self.raw.get_semaphore_counter_value(self.timeline) }.unwrap_or(0)
    }

    /// Waits for everything submitted so far, without caring how it ends: for destructors.
    pub(crate) fn drain(&self, value: u64) {
        if self.check_alive().is_ok() {
            let _ = self.wait(value);
        } else if self.owned {
            // SAFETY: no call is in progress on the queue while it is locked. A lost device returns at once.
            let _ = lock(&self.queue).value;
            let _ = unsafe { self.raw.device_wait_idle() };
        }
    }

    /// Records and runs commands that no session owns, and waits: ordered against all runs before and after.
    pub(crate) fn one_time(
        &self,
        step: &str,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<(), Error> {
        self.start(step, record)?.finish(step)
    }

    /// As [`Device::one_time`], without the wait.
    pub(crate) fn start(
        &self,
        step: &str,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<PendingCommands<'_>, Error> {
        let mut pending = PendingCommands { device: self, pool: CommandPool::new(self)?, value: 0 };
        let commands = pending.pool.begin(self, vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT)?;
        full_barrier(&self.raw, commands);
        record(&self.raw, commands);
        full_barrier(&self.raw, commands);
        // SAFETY: the command buffer is in the recording state.
        unsafe { self.raw.end_command_buffer(commands) }.named("vkEndCommandBuffer")?;
        pending.value = self.submit(commands).map_err(|stop| self.explain(stop, || step.to_owned()))?;
        Ok(pending)
    }

    /// The error of a stop; a loss gets the name of its step.
    pub(crate) fn explain(&self, stop: Stop, step: impl FnOnce() -> String) -> Error {
        match stop {
            Stop::Lost => self.lose(step),
            Stop::Other(error) => error,
        }
    }
}

/// Commands on their way; dropping waits for them.
pub(crate) struct PendingCommands<'a> {
    device: &'a Device,
    pool: CommandPool,
    value: u64,
}

impl PendingCommands<'_> {
    pub(crate) fn finish(self, step: &str) -> Result<(), Error> {
        self.device.wait(self.value).map_err(|stop| self.device.explain(stop, || step.to_owned()))
    }
}

impl Drop for PendingCommands<'_> {
    fn drop(&mut self) {
        self.device.drain(self.value);
        self.pool.destroy(self.device);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all objects made from the device hold an `Arc` of it, so they are gone; a wait may fail on a lost device, which
        // does not matter here.
        unsafe {
            if self.owned {
                let _ = self.raw.device_wait_idle();
            }
            self.raw.destroy_semaphore(self.timeline, None);
            if self.owned {
                self.raw.destroy_device(None);
                if let Some(messenger) = &self.messenger {
                    messenger.destroy();
                }
                self.instance.destroy_instance(None);
            }
        }
    }
}

/// A pool and the command buffers recorded from it. The owner destroys it when nothing of it is pending.
pub(crate) struct CommandPool(vk::CommandPool);

impl CommandPool {
    pub(crate) fn new(device: &Device) -> Result<CommandPool, Error> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(device.family);
        // SAFETY: the family belongs to the device.
        unsafe { device.raw.create_command_pool(&info, None) }.map(CommandPool).named("vkCreateCommandPool")
    }

    /// A new command buffer, already recording.
    pub(crate) fn begin(
        &self,
        device: &Device,
        usage: vk::CommandBufferUsageFlags,
    ) -> Result<vk::CommandBuffer, Error> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.0)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        // SAFETY: the pool is ours and only this thread uses it.
        let commands = unsafe { device.raw.allocate_command_buffers(&info) }.named("vkAllocateCommandBuffers")?[0];
        let begin = vk::CommandBufferBeginInfo::default().flags(usage);
        // SAFETY: the command buffer is new.
        unsafe { device.raw.begin_command_buffer(commands, &begin) }.named("vkBeginCommandBuffer")?;
        Ok(commands)
    }

    pub(crate) fn destroy(&self, device: &Device) {
        // SAFETY: the caller has waited for the command buffers.
        unsafe { device.raw.destroy_command_pool(self.0, None) };
    }
}

/// Everything before is done and visible to everything after.
pub(crate) fn full_barrier(device: &ash::Device, commands: vk::CommandBuffer) {
    let barrier = [vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
        .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE)];
    let all = vk::PipelineStageFlags::ALL_COMMANDS;
    let after = all | vk::PipelineStageFlags::HOST;
    // SAFETY: the command buffer is recording.
    unsafe { device.cmd_pipeline_barrier(commands, all, after, vk::DependencyFlags::empty(), &barrier, &[], &[]) };
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stop<T>(result: Result<T, vk::Result>, call: &'static str) -> Result<T, Stop> {
    result.map_err(|code| match code {
        vk::Result::ERROR_DEVICE_LOST => Stop::Lost,
        other => Stop::Other(Error::Vulkan { call, code: other.as_raw() }),
    })
}

fn load_entry() -> Result<ash::Entry, Error> {
    // SAFETY: loads the system's Vulkan loader, which is a well-behaved library.
    unsafe { ash::Entry::load() }.map_err(|error| Error::Loader(error.to_string()))
}

fn create_instance(entry: &ash::Entry, validation: Option<Validation>) -> Result<ash::Instance, Error> {
    let available = instance_extensions(entry, None)?;
    let app = vk::ApplicationInfo::default().application_name(c"jvc").api_version(vk::API_VERSION_1_3);
    let mut extensions: Vec<*const c_char> = Vec::new();
    let mut flags = vk::InstanceCreateFlags::empty();
    if available.iter().any(|name| name.as_c_str() == ash::khr::portability_enumeration::NAME) {
        extensions.push(ash::khr::portability_enumeration::NAME.as_ptr());
        flags |= vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR;
    }
    let sync = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
    let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&sync);
    let heuristic = vk::TRUE.to_ne_bytes();
    let mut setting = [vk::LayerSettingEXT::default()
        .layer_name(LAYER)
        .setting_name(c"syncval_shader_accesses_heuristic")
        .ty(vk::LayerSettingTypeEXT::BOOL32)
        .values(&heuristic)];
    setting[0].value_count = 1;
    let mut settings = vk::LayerSettingsCreateInfoEXT::default().settings(&setting);
    let layers = [LAYER.as_ptr()];
    let mut info = vk::InstanceCreateInfo::default().application_info(&app).flags(flags);
    if let Some(validation) = validation {
        let of_layer = instance_extensions(entry, Some(LAYER)).map_err(|_| Error::NoValidationLayer)?;
        let offers = |name: &CStr| of_layer.iter().any(|have| have.as_c_str() == name);
        extensions.push(ash::ext::debug_utils::NAME.as_ptr());
        info = info.enabled_layer_names(&layers);
        if validation.sync {
            extensions.push(ash::ext::validation_features::NAME.as_ptr());
            info = info.push_next(&mut features);
        }
        // Newer layers look at shader accesses only when told so.
        if validation.sync && offers(ash::ext::layer_settings::NAME) {
            extensions.push(ash::ext::layer_settings::NAME.as_ptr());
            info = info.push_next(&mut settings);
        }
    }
    let info = info.enabled_extension_names(&extensions);
    // SAFETY: the names and chains live until the call returns.
    unsafe { entry.create_instance(&info, None) }.map_err(|code| Error::Loader(format!("vkCreateInstance: {code:?}")))
}

fn instance_extensions(entry: &ash::Entry, layer: Option<&CStr>) -> Result<Vec<std::ffi::CString>, Error> {
    // SAFETY: a plain query.
    let found = unsafe { entry.enumerate_instance_extension_properties(layer) }
        .named("vkEnumerateInstanceExtensionProperties")?;
    Ok(found.iter().filter_map(|e| e.extension_name_as_c_str().ok().map(CStr::to_owned)).collect())
}

fn enumerate(entry: &ash::Entry, instance: &ash::Instance) -> Result<Vec<(vk::PhysicalDevice, GpuInfo)>, Error> {
    // SAFETY: a plain query.
    let found = unsafe { instance.enumerate_physical_devices() }.named("vkEnumeratePhysicalDevices")?;
    Ok(found.into_iter().enumerate().map(|(i, p)| (p, GpuInfo::query(entry, instance, p, i))).collect())
}

fn choose(found: Vec<(vk::PhysicalDevice, GpuInfo)>, select: &Select) -> Result<(vk::PhysicalDevice, GpuInfo), Error> {
    let names = found.iter().map(|(_, info)| info.name.clone()).collect();
    let usable = |info: &GpuInfo| crate::Requirements::NONE.check(info).is_ok() && info.api_version >= (1, 2, 0);
    let matches = |info: &GpuInfo| match select {
        Select::Auto => usable(info),
        Select::Index(index) => info.index == *index,
        Select::Name(part) => info.name.to_lowercase().contains(&part.to_lowercase()),
        Select::Uuid(uuid) => info.uuid == *uuid,
    };
    let best = found.into_iter().filter(|(_, info)| matches(info)).min_by_key(|(_, info)| (info.kind, info.index));
    best.ok_or_else(|| Error::NoDevice { wanted: format!("{select:?}"), found: names })
}

fn open_on(entry: ash::Entry, instance: &ash::Instance, select: &Select, options: &Options) -> Result<Gpu, Error> {
    let (physical, mut info) = choose(enumerate(&entry, instance)?, select)?;
    if info.api_version < (1, 2, 0) {
        let (major, minor, _) = info.api_version;
        return Err(Error::Requirement { what: "Vulkan", need: "1.2".to_owned(), fact: format!("{major}.{minor}") });
    }
    crate::Requirements::NONE.check(&info)?;
    info.features.robust &= options.robust;
    let family = compute_family(instance, physical, &mut info)?;
    let raw = create_device(instance, physical, &info, family)?;
    let timeline = create_timeline(&raw);
    let messenger = options.validation.map(|_| Messenger::new(&entry, instance)).transpose();
    let (timeline, messenger) = match (timeline, messenger) {
        (Ok(timeline), Ok(messenger)) => (timeline, messenger),
        (timeline, messenger) => {
            // SAFETY: nothing but the semaphore was made from the device.
            unsafe {
                timeline.iter().for_each(|semaphore| raw.destroy_semaphore(*semaphore, None));
                raw.destroy_device(None);
            }
            messenger.iter().flatten().for_each(Messenger::destroy);
            return Err(timeline.err().or(messenger.err()).expect("one of the two failed"));
        }
    };
    // SAFETY: the device was created with one queue of this family; `physical` belongs to the instance.
    let (handle, memory) =
        unsafe { (raw.get_device_queue(family, 0), instance.get_physical_device_memory_properties(physical)) };
    Ok(Gpu(Arc::new(Device {
        raw,
        info,
        memory,
        family,
        instance: instance.clone(),
        queue: Mutex::new(Queue { handle, value: 0, n_submissions: 0, app_lock: None }),
        timeline,
        lost: Mutex::new(None),
        options: *options,
        owned: true,
        messenger,
        _entry: entry,
    })))
}

/// A family that computes, best one that does nothing but compute; corrects the timestamp limit to what it offers.
fn compute_family(instance: &ash::Instance, physical: vk::PhysicalDevice, info: &mut GpuInfo) -> Result<u32, Error> {
    // SAFETY: `physical` belongs to the instance.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    let computes = |family: &&vk::QueueFamilyProperties| family.queue_flags.contains(vk::QueueFlags::COMPUTE);
    let family = families
        .iter()
        .filter(computes)
        .min_by_key(|family| family.queue_flags.contains(vk::QueueFlags::GRAPHICS))
        .ok_or(Error::Missing { what: "compute queue" })?;
    if family.timestamp_valid_bits == 0 {
        info.limits.timestamp_period_ns = 0.0;
    }
    Ok(families.iter().position(|other| std::ptr::eq(other, family)).expect("it is in the list") as u32)
}

fn create_timeline(raw: &ash::Device) -> Result<vk::Semaphore, Error> {
    let mut ty = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE).initial_value(0);
    let info = vk::SemaphoreCreateInfo::default().push_next(&mut ty);
    // SAFETY: the device has timeline semaphores: `Requirements::NONE` was checked.
    unsafe { raw.create_semaphore(&info, None) }.named("vkCreateSemaphore")
}

/// Creates the device with every feature of [`crate::Features`] that it has.
fn create_device(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    info: &GpuInfo,
    family: u32,
) -> Result<ash::Device, Error> {
    let have = &info.features;
    let core = vk::PhysicalDeviceFeatures::default()
        .shader_int16(have.int16)
        .shader_int64(have.int64)
        .shader_float64(have.float64)
        .robust_buffer_access(have.robust);
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
    let mut coop = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut bf16 = Bfloat16Features { ty: vk::TRUE, cooperative_matrix: vk::TRUE, ..Bfloat16Features::default() };
    let queue = [vk::DeviceQueueCreateInfo::default().queue_family_index(family).queue_priorities(&[1.0])];
    let mut extensions: Vec<*const c_char> = Vec::new();
    let mut create = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queue)
        .enabled_features(&core)
        .push_next(&mut v11)
        .push_next(&mut v12);
    if info.has_subgroup_size_control() {
        create = create.push_next(&mut control);
        if info.api_version < (1, 3, 0) {
            extensions.push(ash::ext::subgroup_size_control::NAME.as_ptr());
        }
    }
    if have.cooperative_matrix {
        create = create.push_next(&mut coop);
        extensions.push(ash::khr::cooperative_matrix::NAME.as_ptr());
    }
    if have.bfloat16 {
        create = create.push_next(&mut bf16);
        extensions.push(BFLOAT16.as_ptr());
    }
    // A device that offers this extension demands that it is enabled.
    if info.has_extension(ash::khr::portability_subset::NAME) {
        extensions.push(ash::khr::portability_subset::NAME.as_ptr());
    }
    let create = create.enabled_extension_names(&extensions);
    // SAFETY: every feature and extension named was reported by the device; the chain lives until the call returns.
    unsafe { instance.create_device(physical, &create, None) }.named("vkCreateDevice")
}
