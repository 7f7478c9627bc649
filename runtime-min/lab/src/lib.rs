//! A Vulkan device as an application would own it, lent to the runtime: what tests and `jvc verify --validate` need and no generated
//! crate ships.
//!
//! - The validation layer, its messages kept as text ([`Options::validation`]).
//! - Kernels in bindings form, one storage buffer per operand, recorded among the runtime's own steps ([`Lab::bound_kernel`]):
//!   synchronisation validation does not see through addresses.
//! - What a kernel of one workgroup says of its device ([`answer()`]).
//! - A device that is not what it seems ([`Options::lost_at`], [`Options::allocations`], [`Options::without_mapped`],
//!   [`Options::binaries`]).
//! - Pipelines kept as the driver's binaries ([`Lab::open_keeping`]).

#![allow(unsafe_code, reason = "Vulkan is called here; each block says why it is sound")]

mod answer;
mod binaries;
mod bound;
mod create;
mod tamper;

pub use answer::answer;
pub use binaries::{PipelineCounts, PretendedBinaries, PretendedCounts};
pub use bound::{Bound, BoundKernel};

use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ash::vk;
use ash::vk::Handle as _;
use create::Facts;
use jvc_runtime::{BorrowedDevice, CacheDir, Gpu, GpuInfo, Select};

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The validation layer was asked for and is not installed.
    #[error("VK_LAYER_KHRONOS_validation is not installed")]
    NoLayer,
    /// The driver does not hand out what it compiles.
    #[error("the device has no VK_KHR_pipeline_binary, or would rather keep pipelines itself")]
    NoBinaries,
    /// A Vulkan call failed, or there is no loader.
    #[error("{0}")]
    Vulkan(String),
    /// The runtime does not take the device.
    #[error(transparent)]
    Runtime(#[from] jvc_runtime::Error),
}

impl From<vk::Result> for LabError {
    fn from(code: vk::Result) -> LabError {
        LabError::Vulkan(format!("Vulkan: {code:?}"))
    }
}

/// Asks for the validation layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Validation {
    /// Also finds missing barriers. It sees the accesses of kernels in bindings form only.
    pub sync: bool,
}

/// What is special about the device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Starts the validation layer.
    pub validation: Option<Validation>,
    /// The queue submission, counted from 0, that loses the device instead of running, when all before it have finished.
    pub lost_at: Option<u64>,
    /// So many allocations succeed; the device has no memory for those after them.
    pub allocations: Option<u64>,
    /// The host does not see device-local memory.
    pub without_mapped: bool,
    /// It seems to have VK_KHR_pipeline_binary, for [`Lab::open_keeping`].
    pub binaries: Option<PretendedBinaries>,
}

/// The loader. Never unloaded, since functions of it outlive the devices.
static ENTRY: LazyLock<Result<ash::Entry, String>> = LazyLock::new(|| {
    // SAFETY: loads the system's Vulkan loader, which is a well-behaved library.
    unsafe { ash::Entry::load() }.map_err(|error| error.to_string())
});

/// What the validation layer said so far. Outlives the device, so that it also holds what the device's destruction brought up.
#[derive(Debug, Clone, Default)]
pub struct ValidationLog(Arc<Mutex<Vec<String>>>);

impl ValidationLog {
    /// Errors and warnings, in order.
    pub fn messages(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The device. Destroyed when it is dropped after everything that was made from its [`Gpu`]; otherwise it is left alive for these.
pub struct Lab {
    gpu: Option<Gpu>,
    /// The runtime's device holds the other reference.
    queue_lock: Arc<Mutex<()>>,
    bound: Mutex<bound::Objects>,
    keeper: Option<Arc<binaries::Keeper>>,
    device: ash::Device,
    messenger: Option<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    instance: ash::Instance,
    log: ValidationLog,
}

impl Lab {
    /// Opens a device that [`Gpu::list`] describes, and lends it to the runtime.
    ///
    /// # Errors
    /// No validation layer, or a call that failed.
    pub fn open(info: &GpuInfo, options: &Options) -> Result<Lab, LabError> {
        Lab::open_by(options, None, |instance| {
            let facts = Facts { features: info.features, api_version: info.api_version, binaries: false };
            Ok((create::choose(instance, &Select::Index(info.index))?.0, facts))
        })
    }

    /// Opens a device whose pipelines are kept as the driver's binaries, in a file of this folder whose name starts with `name`, and lends
    /// it to the runtime. The file is read here, and written by [`Lab::write_binaries`].
    ///
    /// # Errors
    /// [`LabError::NoBinaries`] for devices without the extension; else as of [`Lab::open`]. It does not select by UUID.
    pub fn open_keeping(select: &Select, options: &Options, dir: &CacheDir, name: &str) -> Result<Lab, LabError> {
        Lab::open_by(options, Some((dir, name)), |instance| {
            let (physical, facts) = create::choose(instance, select)?;
            let offered = options.binaries.is_some() || binaries::is_offered(instance, physical);
            let binaries = options.binaries.is_none();
            if offered { Ok((physical, Facts { binaries, ..facts })) } else { Err(LabError::NoBinaries) }
        })
    }

    fn open_by(
        options: &Options,
        keep: Option<(&CacheDir, &str)>,
        choose: impl FnOnce(&ash::Instance) -> Result<(vk::PhysicalDevice, Facts), LabError>,
    ) -> Result<Lab, LabError> {
        let entry = ENTRY.as_ref().map_err(|error| LabError::Vulkan(error.clone()))?;
        let instance = create::instance(entry, options.validation)?;
        let log = ValidationLog::default();
        let messenger = options.validation.map(|_| create::messenger(entry, &instance, &log.0)).transpose()?;
        let (physical, facts) = choose(&instance)?;
        let family = create::compute_family(&instance, physical)?;
        let device = create::device(&instance, physical, &facts, family)?;
        // SAFETY: the device was created with one queue of this family.
        let queue = unsafe { device.get_device_queue(family, 0) };
        let queue_lock = Arc::new(Mutex::new(()));
        let plain = entry.static_fn().get_instance_proc_addr as *const c_void;
        let tampered = tamper::register(entry, &instance, &device, (physical, queue), options) || keep.is_some();
        let keeper = keep.map(|(dir, name)| {
            let of = binaries::owner(&instance, physical, name, &facts.features);
            binaries::keep(device.handle(), dir, of).ok_or(LabError::NoBinaries)
        });
        let keeper = keeper.transpose()?;
        let borrowed = BorrowedDevice {
            get_instance_proc_addr: if tampered { tamper::GET_INSTANCE_PROC_ADDR as *const c_void } else { plain },
            instance: instance.handle().as_raw(),
            physical_device: physical.as_raw(),
            device: device.handle().as_raw(),
            queue: queue.as_raw(),
            queue_family: family,
            enabled: facts.features,
            queue_lock: Some(Arc::clone(&queue_lock)),
        };
        // SAFETY: the handles belong together, `drop` keeps them alive as long as the runtime uses them, and `create` has enabled all
        // features.
        let gpu = Some(unsafe { Gpu::borrow(borrowed) }?);
        let bound = Mutex::default();
        Ok(Lab { gpu, queue_lock, bound, keeper, device, messenger, instance, log })
    }

    /// Writes the file of binaries, if pipelines were compiled since it was read. True if it was written.
    pub fn write_binaries(&self) -> bool {
        self.keeper.as_ref().is_some_and(|keeper| keeper.write())
    }

    /// How pipelines came to be; nothing unless they are kept.
    pub fn pipeline_counts(&self) -> PipelineCounts {
        self.keeper.as_ref().map_or_else(PipelineCounts::default, |keeper| keeper.counts())
    }

    /// What was asked of the driver that [`Options::binaries`] pretends; nothing without it.
    pub fn pretended_counts(&self) -> PretendedCounts {
        binaries::pretended_counts(self.device.handle())
    }

    /// The device, as the runtime sees it.
    pub fn gpu(&self) -> &Gpu {
        self.gpu.as_ref().expect("it is there until the drop")
    }

    /// Messages of the validation layer; empty without it.
    pub fn log(&self) -> ValidationLog {
        self.log.clone()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.gpu = None;
        if Arc::strong_count(&self.queue_lock) > 1 {
            // The validation layer looks for what is left over only when the device goes.
            let message = "the device is left alive for what was made from it".to_owned();
            self.log.0.lock().unwrap_or_else(PoisonError::into_inner).push(message);
            return;
        }
        // SAFETY: the runtime has let go of the device, so that nothing made from it is left; ours goes in order.
        unsafe {
            self.bound.get_mut().unwrap_or_else(PoisonError::into_inner).destroy(&self.device);
            binaries::forget(self.device.handle());
            self.device.destroy_device(None);
            self.messenger.iter().for_each(|(api, handle)| api.destroy_debug_utils_messenger(*handle, None));
            self.instance.destroy_instance(None);
            // The messenger's reference.
            self.messenger.iter().for_each(|_| Arc::decrement_strong_count(Arc::as_ptr(&self.log.0)));
        }
    }
}
