//! `vulkano-device WEIGHTS [--validate] [GPU]`: as `app-owned-device`, on a device that vulkano created. All that the runtime needs are
//! raw handles, which every Vulkan library gives.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use app_owned_device::{Messages, Vulkan, check, soften};
use vulkano::device::{Device, DeviceCreateInfo, DeviceFeatures, Queue, QueueCreateInfo, QueueFlags};
use vulkano::instance::debug::{
    DebugUtilsMessageSeverity, DebugUtilsMessageType, DebugUtilsMessengerCallback, DebugUtilsMessengerCreateInfo,
};
use vulkano::instance::{Instance, InstanceCreateInfo, InstanceExtensions};
use vulkano::{VulkanLibrary, VulkanObject};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    check(|gpu, messages, weights, pictures| {
        let instance = instance(messages)?;
        let queue = queue(&instance, gpu)?;
        let vulkan = handles(&queue)?;
        // vulkano's lock of the queue is held, so that vulkano submits nothing meanwhile.
        queue.with(|_lock| soften(&vulkan, Path::new(weights), pictures))
    })
}

fn instance(messages: Option<&Messages>) -> Result<Arc<Instance>, Box<dyn Error>> {
    let mut info = InstanceCreateInfo::default();
    if let Some(list) = messages {
        let list = Arc::clone(list);
        let keep = move |_, _, data: vulkano::instance::debug::DebugUtilsMessengerCallbackData<'_>| {
            list.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(data.message.to_owned());
        };
        // SAFETY: the callback calls no Vulkan function.
        let callback = unsafe { DebugUtilsMessengerCallback::new(keep) };
        info.enabled_layers = vec!["VK_LAYER_KHRONOS_validation".to_owned()];
        info.enabled_extensions = InstanceExtensions { ext_debug_utils: true, ..InstanceExtensions::empty() };
        info.debug_utils_messengers = vec![DebugUtilsMessengerCreateInfo {
            message_severity: DebugUtilsMessageSeverity::ERROR | DebugUtilsMessageSeverity::WARNING,
            message_type: DebugUtilsMessageType::VALIDATION,
            ..DebugUtilsMessengerCreateInfo::user_callback(callback)
        }];
    }
    Ok(Instance::new(VulkanLibrary::new()?, info)?)
}

/// A queue that computes, of a device with the features that [`Vulkan::lend`] claims.
fn queue(instance: &Arc<Instance>, gpu: usize) -> Result<Arc<Queue>, Box<dyn Error>> {
    let physical = instance.enumerate_physical_devices()?.nth(gpu).ok_or("no such GPU")?;
    let families = physical.queue_family_properties().iter();
    let mut computing = (0..).zip(families).filter(|(_, family)| family.queue_flags.contains(QueueFlags::COMPUTE));
    let (queue_family_index, _) = computing.next().ok_or("no compute queue")?;
    let info = DeviceCreateInfo {
        queue_create_infos: vec![QueueCreateInfo { queue_family_index, ..QueueCreateInfo::default() }],
        enabled_features: DeviceFeatures {
            buffer_device_address: true,
            timeline_semaphore: true,
            storage_buffer8_bit_access: true,
            shader_int8: true,
            ..DeviceFeatures::empty()
        },
        ..DeviceCreateInfo::default()
    };
    let (_device, mut queues) = Device::new(physical, info)?;
    Ok(queues.next().ok_or("no queue")?)
}

/// vulkano's handles, with ash's functions for them.
fn handles(queue: &Arc<Queue>) -> Result<Vulkan, Box<dyn Error>> {
    let device = queue.device();
    let instance = device.instance();
    // SAFETY: loads the library that vulkano has loaded; the handles live as long as `queue`, which outlives the result's use.
    unsafe {
        let entry = ash::Entry::load()?;
        let ash_instance = ash::Instance::load(entry.static_fn(), instance.handle());
        let ash_device = ash::Device::load(ash_instance.fp_v1_0(), device.handle());
        Ok(Vulkan {
            entry,
            instance: ash_instance,
            physical: device.physical_device().handle(),
            device: ash_device,
            queue: queue.handle(),
            family: queue.queue_family_index(),
        })
    }
}
