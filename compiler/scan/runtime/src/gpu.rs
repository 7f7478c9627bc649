//! The device: opened by the runtime or borrowed from the application, its queue, its timeline, and its loss.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::vk;
use ash::vk::Handle as _;

use crate::error::{Error, Named as _};
use crate::info::{BFLOAT16, Bfloat16Features, Features, GpuInfo};
use crate::instance::{Instance, Validation, ValidationLog};
use crate::require::Requirements;

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
pub struct BorrowedDevice {
    /// `vkGetInstanceProcAddr`.
    pub get_instance_proc_addr: *const c_void,
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
    /// Features that were enabled at device creation; Vulkan cannot be asked.
    pub enabled: Features,
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
    pub(crate) options: Options,
    queue: Mutex<Queue>,
    timeline: vk::Semaphore,
    lost: Mutex<Option<Error>>,
    instance: Arc<Instance>,
}

struct Queue {
    handle: vk::Queue,
    /// Timeline value that the latest submission signals.
    value: u64,
    n_submissions: u64,
    app_lock: Option<Arc<Mutex<()>>>,
}

impl Gpu {
    /// All Vulkan devices of this machine, in the loader's order; an error when there is no Vulkan loader.
    pub fn list() -> Result<Vec<GpuInfo>, Error> {
        Ok(Instance::get(None)?.devices()?.into_iter().map(|(_, info)| info).collect())
    }

    /// Opens a device as programs want it. [`Error::NoDevice`] lists what was found.
    pub fn open(select: &Select) -> Result<Gpu, Error> {
        Gpu::open_with(select, &Options::default())
    }

    /// Opens a device with test facilities.
    pub fn open_with(select: &Select, options: &Options) -> Result<Gpu, Error> {
        let instance = Instance::get(options.validation)?;
        let (physical, mut info) = choose(instance.devices()?, select)?;
        if info.api_version < (1, 2, 0) {
            let fact = format!("{}.{}", info.api_version.0, info.api_version.1);
            return Err(Error::Requirement { what: "Vulkan", need: "1.2".to_owned(), fact });
        }
        Requirements::NONE.check(&info)?;
        info.features.robust &= options.robust;
        let family = compute_family(&instance.raw, physical, &mut info)?;
        let raw = create_device(&instance.raw, physical, &info, family)?;
        // SAFETY: the device was created with one queue of this family.
        let queue = unsafe { raw.get_device_queue(family, 0) };
        Device::share(instance, physical, info, raw, (family, queue), None, *options)
    }

    /// Uses an application's device. It is never destroyed here. An error when addresses or timeline semaphores are not enabled.
    ///
    /// # Safety
    ///
    /// The handles must be valid and belong together, live longer than every object made from the result, and `enabled` must not
    /// claim a feature that was not enabled. Without `queue_lock`, nobody else may submit to the queue at the same time.
    pub unsafe fn borrow(device: BorrowedDevice) -> Result<Gpu, Error> {
        type GetProcAddr = unsafe extern "system" fn(vk::Instance, *const c_char) -> vk::PFN_vkVoidFunction;
        // SAFETY: the caller vouches for the handles and for the function pointer.
        let (instance, raw) = unsafe {
            let get_instance_proc_addr =
                std::mem::transmute::<*const c_void, GetProcAddr>(device.get_instance_proc_addr);
            let entry = ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr });
            let raw = ash::Instance::load(entry.static_fn(), vk::Instance::from_raw(device.instance));
            let instance = Arc::new(Instance::borrowed(entry, raw));
            let raw = ash::Device::load(instance.raw.fp_v1_0(), vk::Device::from_raw(device.device));
            (instance, raw)
        };
        let physical = vk::PhysicalDevice::from_raw(device.physical_device);
        let info = GpuInfo { features: device.enabled, ..GpuInfo::query(&instance, physical, 0) };
        Requirements::NONE.check(&info)?;
        let queue = (device.queue_family, vk::Queue::from_raw(device.queue));
        Device::share(instance, physical, info, raw, queue, device.queue_lock, Options::default())
    }

    /// Facts of the device.
    pub fn info(&self) -> &GpuInfo {
        &self.0.info
    }

    /// Messages of the validation layer; empty without it.
    pub fn validation(&self) -> ValidationLog {
        self.0.instance.log.clone()
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
    fn share(
        instance: Arc<Instance>,
        physical: vk::PhysicalDevice,
        info: GpuInfo,
        raw: ash::Device,
        (family, handle): (u32, vk::Queue),
        app_lock: Option<Arc<Mutex<()>>>,
        options: Options,
    ) -> Result<Gpu, Error> {
        // SAFETY: `physical` belongs to the instance.
        let memory = unsafe { instance.raw.get_physical_device_memory_properties(physical) };
        let queue = Mutex::new(Queue { handle, value: 0, n_submissions: 0, app_lock });
        let (timeline, lost) = (vk::Semaphore::null(), Mutex::new(None));
        let mut device = Device { raw, info, memory, family, options, queue, timeline, lost, instance };
        let mut ty = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut ty);
        // SAFETY: the device has timeline semaphores: `Requirements::NONE` was checked.
        device.timeline = unsafe { device.raw.create_semaphore(&info, None) }.named("vkCreateSemaphore")?;
        Ok(Gpu(Arc::new(device)))
    }

    /// The sticky error, if the device was lost.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        lock(&self.lost).clone().map_or(Ok(()), Err)
    }

    /// The error of a stop. A loss gets the name of its step; the first report stays.
    pub(crate) fn explain(&self, stop: Stop, step: impl FnOnce() -> String) -> Error {
        match stop {
            Stop::Lost => lock(&self.lost).get_or_insert_with(|| Error::DeviceLost { step: step() }).clone(),
            Stop::Other(error) => error,
        }
    }

    /// Submits one command buffer; gives the timeline value that it signals.
    pub(crate) fn submit(&self, commands: vk::CommandBuffer) -> Result<u64, Stop> {
        self.check_alive().map_err(Stop::Other)?;
        let mut queue = lock(&self.queue);
        queue.n_submissions += 1;
        if self.options.fault.is_some_and(|fault| fault.submission + 1 == queue.n_submissions) {
            self.wait(queue.value)?;
            return Err(Stop::Lost);
        }
        let (values, semaphores, commands) = ([queue.value + 1], [self.timeline], [commands]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default().command_buffers(&commands).signal_semaphores(&semaphores);
        let info = [info.push_next(&mut timeline)];
        let result = {
            let _app = queue.app_lock.as_ref().map(|app| lock(app));
            // SAFETY: the command buffer is recorded and not pending; the queue is locked.
            unsafe { self.raw.queue_submit(queue.handle, &info, vk::Fence::null()) }
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

    /// Waits, for destructors, without caring how it ends. What a lost device had in flight never ends; waiting for it to be idle
    /// returns at once.
    pub(crate) fn drain(&self, value: u64) {
        if self.wait(value).is_err() {
            let queue = lock(&self.queue);
            let _app = queue.app_lock.as_ref().map(|app| lock(app));
            // SAFETY: no call is in progress on the queue while it is locked.
            let _ = unsafe { self.raw.queue_wait_idle(queue.handle) };
        }
    }

    /// Records and runs commands that no session owns, and waits: ordered against all runs before and after.
    pub(crate) fn one_time(
        self: &Arc<Device>,
        step: &str,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<(), Error> {
        self.start(step, record)?.finish(step)
    }

    /// As [`Device::one_time`], without the wait.
    pub(crate) fn start(
        self: &Arc<Device>,
        step: &str,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<PendingCommands, Error> {
        let pool = CommandPool::new(self)?;
        let commands = pool.begin()?;
        full_barrier(&self.raw, commands);
        record(&self.raw, commands);
        full_barrier(&self.raw, commands);
        // SAFETY: the command buffer is in the recording state.
        unsafe { self.raw.end_command_buffer(commands) }.named("vkEndCommandBuffer")?;
        let value = self.submit(commands).map_err(|stop| self.explain(stop, || step.to_owned()))?;
        Ok(PendingCommands { value, pool })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all objects made from the device hold an `Arc` of it, so they are gone, after their owners have waited. A wait
        // fails on a lost device, which does not matter here.
        unsafe {
            self.raw.destroy_semaphore(self.timeline, None);
            if self.instance.owned {
                let _ = self.raw.device_wait_idle();
                self.raw.destroy_device(None);
            }
        }
    }
}

/// Commands on their way; dropping waits for them.
pub(crate) struct PendingCommands {
    value: u64,
    pool: CommandPool,
}

impl PendingCommands {
    pub(crate) fn finish(self, step: &str) -> Result<(), Error> {
        let device = &self.pool.device;
        device.wait(self.value).map_err(|stop| device.explain(stop, || step.to_owned()))
    }
}

impl Drop for PendingCommands {
    fn drop(&mut self) {
        self.pool.device.drain(self.value);
    }
}

/// A pool of command buffers. Owners drop it when none of them is pending.
pub(crate) struct CommandPool {
    raw: vk::CommandPool,
    pub(crate) device: Arc<Device>,
}

impl CommandPool {
    pub(crate) fn new(device: &Arc<Device>) -> Result<CommandPool, Error> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(device.family);
        // SAFETY: the family belongs to the device.
        let raw = unsafe { device.raw.create_command_pool(&info, None) }.named("vkCreateCommandPool")?;
        Ok(CommandPool { raw, device: Arc::clone(device) })
    }

    /// A new command buffer, already recording.
    pub(crate) fn begin(&self) -> Result<vk::CommandBuffer, Error> {
        let (raw, begin) = (&self.device.raw, vk::CommandBufferBeginInfo::default());
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.raw).command_buffer_count(1);
        // SAFETY: the pool is ours and only this thread uses it; the command buffer is new.
        unsafe {
            let commands = raw.allocate_command_buffers(&info).named("vkAllocateCommandBuffers")?[0];
            raw.begin_command_buffer(commands, &begin).named("vkBeginCommandBuffer")?;
            Ok(commands)
        }
    }
}

impl Drop for CommandPool {
    fn drop(&mut self) {
        // SAFETY: none of its command buffers is pending.
        unsafe { self.device.raw.destroy_command_pool(self.raw, None) };
    }
}

/// Everything before is done and visible to everything after, the host included.
pub(crate) fn full_barrier(device: &ash::Device, commands: vk::CommandBuffer) {
    let all = vk::PipelineStageFlags::ALL_COMMANDS;
    let any = vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE;
    barrier(device, commands, (all, vk::AccessFlags::MEMORY_WRITE), (all | vk::PipelineStageFlags::HOST, any));
}

/// A memory barrier between two sets of stages and accesses.
pub(crate) fn barrier(
    device: &ash::Device,
    commands: vk::CommandBuffer,
    from: (vk::PipelineStageFlags, vk::AccessFlags),
    to: (vk::PipelineStageFlags, vk::AccessFlags),
) {
    let barrier = [vk::MemoryBarrier::default().src_access_mask(from.1).dst_access_mask(to.1)];
    // SAFETY: callers pass a command buffer that is recording.
    unsafe { device.cmd_pipeline_barrier(commands, from.0, to.0, vk::DependencyFlags::empty(), &barrier, &[], &[]) };
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

fn choose(found: Vec<(vk::PhysicalDevice, GpuInfo)>, select: &Select) -> Result<(vk::PhysicalDevice, GpuInfo), Error> {
    let names = found.iter().map(|(_, info)| info.name.clone()).collect();
    let matches = |info: &GpuInfo| match select {
        Select::Auto => Requirements::NONE.check(info).is_ok() && info.api_version >= (1, 2, 0),
        Select::Index(index) => info.index == *index,
        Select::Name(part) => info.name.to_lowercase().contains(&part.to_lowercase()),
        Select::Uuid(uuid) => info.uuid == *uuid,
    };
    let best = found.into_iter().filter(|(_, info)| matches(info)).min_by_key(|(_, info)| (info.kind, info.index));
    best.ok_or_else(|| Error::NoDevice { wanted: format!("{select:?}"), found: names })
}

/// A family that computes, best one that does nothing but compute; corrects the timestamp limit to what it offers.
fn compute_family(instance: &ash::Instance, physical: vk::PhysicalDevice, info: &mut GpuInfo) -> Result<u32, Error> {
    // SAFETY: `physical` belongs to the instance.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    let computing = (0..).zip(&families).filter(|(_, family)| family.queue_flags.contains(vk::QueueFlags::COMPUTE));
    let best = computing.min_by_key(|(_, family)| family.queue_flags.contains(vk::QueueFlags::GRAPHICS));
    let (index, family) = best.ok_or(Error::Missing { what: "compute queue" })?;
    if family.timestamp_valid_bits == 0 {
        info.limits.timestamp_period_ns = 0.0;
    }
    Ok(index)
}

/// Creates the device with every feature of [`Features`] that it has.
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
    let mut create = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queue)
        .enabled_features(&core)
        .push_next(&mut v11)
        .push_next(&mut v12);
    if have.subgroup_size_control {
        create = create.push_next(&mut control);
    }
    if have.cooperative_matrix {
        create = create.push_next(&mut coop);
    }
    if have.bfloat16 {
        create = create.push_next(&mut bf16);
    }
    // Subgroup size control is core since 1.3; a device that offers the portability subset demands that it is enabled.
    let extensions: Vec<*const c_char> = [
        (have.subgroup_size_control && info.api_version < (1, 3, 0), ash::ext::subgroup_size_control::NAME),
        (have.cooperative_matrix, ash::khr::cooperative_matrix::NAME),
        (have.bfloat16, BFLOAT16),
        (info.has_extension(ash::khr::portability_subset::NAME), ash::khr::portability_subset::NAME),
    ]
    .into_iter()
    .filter_map(|(wanted, name)| wanted.then_some(name.as_ptr()))
    .collect();
    let create = create.enabled_extension_names(&extensions);
    // SAFETY: every feature and extension named was reported by the device; the chain lives until the call returns.
    unsafe { instance.create_device(physical, &create, None) }.named("vkCreateDevice")
}
