//! The device's queue and timeline: submissions, waits, one-time commands, and the loss of the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ash::vk::{self, AccessFlags, Handle as _, PipelineStageFlags};

use crate::error::vulkan;
use crate::gpu::Instance;
use crate::{Error, GpuInfo, Result};

/// How long a wait looks before it sleeps, since waking up takes tens of microseconds.
const PATIENCE: Duration = Duration::from_millis(1);

/// An application's submission, made while the queue and its lock are held: it gets the run's `VkCommandBuffer`s, which go in this order,
/// and the value that it signals [`crate::Gpu::timeline`] with after them; it gives the `VkResult`.
pub type SubmitBy<'a> = &'a mut dyn FnMut(&[u64], u64) -> i32;

pub(crate) struct Device {
    pub(crate) raw: ash::Device,
    pub(crate) info: GpuInfo,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    pub(crate) timeline: vk::Semaphore,
    family: u32,
    /// With the timeline value that the latest submission signals.
    queue: Mutex<(vk::Queue, u64)>,
    app_lock: Option<Arc<Mutex<()>>>,
    /// The error of the loss: sticky.
    lost: Mutex<Option<Error>>,
    owned: bool,
    /// The latest wait was longer than [`PATIENCE`], so looking is in vain.
    is_slow: AtomicBool,
    _instance: Arc<Instance>,
}

impl Device {
    pub(crate) fn share(
        instance: Arc<Instance>,
        (physical, info): (vk::PhysicalDevice, GpuInfo),
        raw: ash::Device,
        (family, queue): (u32, vk::Queue),
        app_lock: Option<Arc<Mutex<()>>>,
        owned: bool,
    ) -> Result<Arc<Device>> {
        // SAFETY: `physical` belongs to the instance.
        let memory = unsafe { instance.raw.get_physical_device_memory_properties(physical) };
        let (queue, lost, timeline) = (Mutex::new((queue, 0)), Mutex::new(None), vk::Semaphore::null());
        let (is_slow, _instance) = (AtomicBool::new(false), instance);
        let mut device =
            Device { raw, info, memory, timeline, family, queue, app_lock, lost, owned, is_slow, _instance };
        let mut ty = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut ty);
        // SAFETY: the device has timeline semaphores: `Requirements::NONE` was checked.
        device.timeline = unsafe { device.raw.create_semaphore(&info, None) }.map_err(vulkan("vkCreateSemaphore"))?;
        Ok(Arc::new(device))
    }

    /// The sticky error, if the device was lost.
    pub(crate) fn check_alive(&self) -> Result<()> {
        lock(&self.lost).clone().map_or(Ok(()), Err)
    }

    /// The error of a failed call. A loss gets the name of its step; the first report stays.
    fn fail(&self, code: vk::Result, call: &'static str, step: impl FnOnce() -> String) -> Error {
        if code != vk::Result::ERROR_DEVICE_LOST {
            return vulkan(call)(code);
        }
        lock(&self.lost).get_or_insert_with(|| Error::DeviceLost { step: step() }).clone()
    }

    /// Submits commands, or lets the application do so; gives the timeline value that they signal. `step` names what a loss loses.
    pub(crate) fn submit(
        &self,
        commands: &[vk::CommandBuffer],
        by: Option<SubmitBy<'_>>,
        step: impl FnOnce() -> String,
    ) -> Result<u64> {
        self.check_alive()?;
        let (mut queue, _app) = (lock(&self.queue), self.app_lock.as_deref().map(lock));
        let (values, semaphores) = ([queue.1 + 1], [self.timeline]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default().command_buffers(commands).signal_semaphores(&semaphores);
        let result = match by {
            Some(by) => {
                let commands: Vec<u64> = commands.iter().map(|one| one.as_raw()).collect();
                vk::Result::from_raw(by(&commands, values[0])).result()
            }
            // SAFETY: the command buffers are recorded and not pending; the queue is locked.
            None => unsafe { self.raw.queue_submit(queue.0, &[info.push_next(&mut timeline)], vk::Fence::null()) },
        };
        result.map_err(|code| self.fail(code, "vkQueueSubmit", step))?;
        queue.1 = values[0];
        Ok(queue.1)
    }

    /// Blocks until the timeline has reached the value: first by looking, in turn with other threads, then asleep.
    pub(crate) fn wait(&self, value: u64, step: impl FnOnce() -> String) -> Result<()> {
        self.check_alive()?;
        let started = Instant::now();
        while !self.is_slow.load(Ordering::Relaxed) && started.elapsed() < PATIENCE {
            if self.reached() >= value {
                return Ok(());
            }
            std::thread::yield_now();
        }
        let (semaphores, values) = ([self.timeline], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is ours.
        let result = unsafe { self.raw.wait_semaphores(&info, u64::MAX) };
        self.is_slow.store(started.elapsed() > PATIENCE, Ordering::Relaxed);
        result.map_err(|code| self.fail(code, "vkWaitSemaphores", step))
    }

    /// Timeline value reached so far; what a lost device last said, or 0.
    pub(crate) fn reached(&self) -> u64 {
        // SAFETY: the semaphore is ours.
        unsafe { self.raw.get_semaphore_counter_value(self.timeline) }.unwrap_or(0)
    }

    /// Waits, for destructors, without caring how it ends. What a lost device had in flight never ends, but the queue counts as idle.
    pub(crate) fn drain(&self, value: u64) {
        if self.wait(value, || "commands that nobody waits for".to_owned()).is_err() {
            let (queue, _app) = (lock(&self.queue), self.app_lock.as_deref().map(lock));
            // SAFETY: no call is in progress on the queue while it is locked.
            let _ = unsafe { self.raw.queue_wait_idle(queue.0) };
        }
    }

    /// Records and submits commands that no session owns, ordered against all runs before and after. `step` names them.
    pub(crate) fn start(
        self: &Arc<Device>,
        step: &'static str,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<CommandPool> {
        let mut pool = CommandPool::new(self)?;
        let commands = pool.begin()?;
        barrier(&self.raw, commands, anything(), anything());
        record(&self.raw, commands);
        barrier(&self.raw, commands, anything(), anything());
        pool.end(commands)?;
        pool.pending = Some((self.submit(&[commands], None, || step.to_owned())?, step));
        Ok(pool)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: all objects made from the device hold an `Arc` of it, so they are gone. That a wait may fail does not matter here.
        unsafe {
            self.raw.destroy_semaphore(self.timeline, None);
            if self.owned {
                let _ = self.raw.device_wait_idle();
                self.raw.destroy_device(None);
            }
        }
    }
}

/// A pool of command buffers. It waits for those that [`Device::start`] made; for others, the owner does before it drops the pool.
pub(crate) struct CommandPool {
    raw: vk::CommandPool,
    /// Timeline value and name of commands on their way.
    pending: Option<(u64, &'static str)>,
    pub(crate) device: Arc<Device>,
}

impl CommandPool {
    pub(crate) fn new(device: &Arc<Device>) -> Result<CommandPool> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(device.family);
        // SAFETY: the family belongs to the device.
        let raw = unsafe { device.raw.create_command_pool(&info, None) }.map_err(vulkan("vkCreateCommandPool"))?;
        Ok(CommandPool { raw, pending: None, device: Arc::clone(device) })
    }

    /// A new command buffer, already recording.
    pub(crate) fn begin(&self) -> Result<vk::CommandBuffer> {
        let (raw, begin) = (&self.device.raw, vk::CommandBufferBeginInfo::default());
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.raw).command_buffer_count(1);
        // SAFETY: the pool is ours and only this thread uses it; the command buffer is new.
        unsafe {
            let commands = raw.allocate_command_buffers(&info).map_err(vulkan("vkAllocateCommandBuffers"))?[0];
            raw.begin_command_buffer(commands, &begin).map_err(vulkan("vkBeginCommandBuffer"))?;
            Ok(commands)
        }
    }

    /// Waits for what [`Device::start`] submitted.
    pub(crate) fn finish(self) -> Result<()> {
        self.pending.map_or(Ok(()), |(value, step)| self.device.wait(value, || step.to_owned()))
    }

    /// Ends a command buffer that is recording.
    pub(crate) fn end(&self, commands: vk::CommandBuffer) -> Result<()> {
        // SAFETY: the command buffer is of this pool and recording.
        unsafe { self.device.raw.end_command_buffer(commands) }.map_err(vulkan("vkEndCommandBuffer"))
    }
}

impl Drop for CommandPool {
    fn drop(&mut self) {
        self.pending.iter().for_each(|(value, _)| self.device.drain(*value));
        // SAFETY: none of its command buffers is pending.
        unsafe { self.device.raw.destroy_command_pool(self.raw, None) };
    }
}

/// One side of a barrier: stages and accesses.
pub(crate) type Scope = (PipelineStageFlags, AccessFlags);

/// All commands, and the host.
pub(crate) fn anything() -> Scope {
    let stages = PipelineStageFlags::ALL_COMMANDS | PipelineStageFlags::HOST;
    (stages, AccessFlags::MEMORY_READ | AccessFlags::MEMORY_WRITE)
}

/// Kernels.
pub(crate) fn kernels() -> Scope {
    (PipelineStageFlags::COMPUTE_SHADER, AccessFlags::SHADER_READ | AccessFlags::SHADER_WRITE)
}

/// Orders `from` before `to`, and makes what the one wrote visible to the other.
pub(crate) fn barrier(device: &ash::Device, commands: vk::CommandBuffer, from: Scope, to: Scope) {
    let writes = from.1 & (AccessFlags::SHADER_WRITE | AccessFlags::MEMORY_WRITE);
    let barrier = [vk::MemoryBarrier::default().src_access_mask(writes).dst_access_mask(to.1)];
    // SAFETY: callers pass a command buffer that is recording.
    unsafe { device.cmd_pipeline_barrier(commands, from.0, to.0, vk::DependencyFlags::empty(), &barrier, &[], &[]) };
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does the jobs on as many threads as the machine has, `max_threads` at most. A thread ends at its first error, which is returned.
pub(crate) fn in_parallel<J: Send>(
    jobs: impl ExactSizeIterator<Item = J> + Send,
    max_threads: usize,
    work: impl Fn(J) -> Result<()> + Sync,
) -> Result<()> {
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(max_threads).min(jobs.len());
    let jobs = Mutex::new(jobs);
    let next = || lock(&jobs).next();
    let work = || std::iter::from_fn(next).try_for_each(&work);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
        others.into_iter().map(|other| other.join().expect("workers return errors")).fold(work(), Result::and)
    })
}
