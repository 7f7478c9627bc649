//! An application's device: used beside the application's own work, and left alive.

#![allow(unsafe_code, reason = "an application that uses Vulkan itself")]

use crate::support::*;
use ash::vk;
use ash::vk::Handle as _;
use jvc_runtime::*;
use std::sync::{Arc, Mutex};

struct App {
    entry: ash::Entry,
    instance: ash::Instance,
    physical: vk::PhysicalDevice,
    device: ash::Device,
    queue: vk::Queue,
}

/// What an application with its own Vulkan code has, on the first device of the loader.
fn app() -> App {
    // SAFETY: plain creation calls; the test destroys what it made, in order.
    unsafe {
        let entry = ash::Entry::load().expect("a loader");
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let info = vk::InstanceCreateInfo::default().application_info(&app);
        let instance = entry.create_instance(&info, None).expect("an instance");
        let physical = instance.enumerate_physical_devices().expect("devices")[0];
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
        let mut v12 =
            vk::PhysicalDeviceVulkan12Features::default().buffer_device_address(true).timeline_semaphore(true);
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut v12);
        let device = instance.create_device(physical, &info, None).expect("a device");
        let queue = device.get_device_queue(0, 0);
        App { entry, instance, physical, device, queue }
    }
}

fn lend(app: &App, enabled: Features, queue_lock: Option<Arc<Mutex<()>>>) -> Result<Gpu, Error> {
    let borrowed = BorrowedDevice {
        get_instance_proc_addr: app.entry.static_fn().get_instance_proc_addr as *const std::ffi::c_void,
        instance: app.instance.handle().as_raw(),
        physical_device: app.physical.as_raw(),
        device: app.device.handle().as_raw(),
        queue: app.queue.as_raw(),
        queue_family: 0,
        enabled,
        queue_lock,
    };
    // SAFETY: the handles belong together and outlive what is made of them.
    unsafe { Gpu::borrow(borrowed) }
}

#[test]
fn a_borrowed_device_runs_and_survives() {
    let app = app();
    let enabled = Features { buffer_address: true, timeline: true, ..Features::default() };
    let lock = Arc::new(Mutex::new(()));
    for _ in 0..2 {
        let gpu = lend(&app, enabled, Some(Arc::clone(&lock))).expect("a borrowed device");
        let mut session = model(&gpu).session(&entry(&double)).expect("a session");
        let x = floats(1000, 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..100 {
                    let _queue = lock.lock().expect("nobody panics");
                    // SAFETY: the queue is locked.
                    unsafe { app.device.queue_submit(app.queue, &[], vk::Fence::null()) }.expect("a submission");
                }
            });
            for _ in 0..20 {
                assert_eq!(run(&mut session, &x), doubled(&x));
            }
        });
        let features = Features { float16: true, ..Features::NONE };
        let float16 = Requirements { features, ..Requirements::NONE }.check(gpu.info());
        assert!(float16.is_err(), "a feature that the application did not enable is not there");
    }
    let error = lend(&app, Features::default(), None).err();
    assert!(matches!(error, Some(Error::Missing { .. })), "{error:?}");
    // SAFETY: everything borrowed is gone; the device still works.
    unsafe {
        app.device.device_wait_idle().expect("a living device");
        app.device.destroy_device(None);
        app.instance.destroy_instance(None);
    }
}

#[test]
fn an_application_submits_runs_between_commands_of_its_own() {
    let app = app();
    let enabled = Features { buffer_address: true, timeline: true, ..Features::default() };
    let gpu = lend(&app, enabled, None).expect("a borrowed device");
    let options = SessionOptions { n_slots: 2, ..SessionOptions::default() };
    let mut session = model(&gpu).session_with(&entry(&double), &options).expect("a session");
    let (x, bytes_out) = (floats(100, 1), [400]);
    // What its submission refuses has not run: the slot is free and the value is the next run's.
    let refused = session
        .submit_by(&table(100), &[&bytes(&x)], &bytes_out, &mut |_, _| vk::Result::ERROR_OUT_OF_HOST_MEMORY.as_raw());
    assert!(matches!(refused, Err(Error::Vulkan { call: "vkQueueSubmit", .. })), "{refused:?}");
    // It may add a semaphore: here one that the run waits for until the host says so.
    let mut ty = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
    let info = vk::SemaphoreCreateInfo::default().push_next(&mut ty);
    // SAFETY: the device has timeline semaphores.
    let gate = unsafe { app.device.create_semaphore(&info, None) }.expect("a semaphore");
    let mut submit = |commands: &[u64], value: u64| {
        let commands: Vec<_> = commands.iter().map(|one| vk::CommandBuffer::from_raw(*one)).collect();
        let (signals, signal) = ([vk::Semaphore::from_raw(gpu.timeline())], [value]);
        let (waits, wait, stages) = ([gate], [1], [vk::PipelineStageFlags::ALL_COMMANDS]);
        let mut values =
            vk::TimelineSemaphoreSubmitInfo::default().wait_semaphore_values(&wait).signal_semaphore_values(&signal);
        let info = vk::SubmitInfo::default().command_buffers(&commands).signal_semaphores(&signals);
        let info = [info.wait_semaphores(&waits).wait_dst_stage_mask(&stages).push_next(&mut values)];
        // SAFETY: the command buffers are recorded, and nobody else uses the queue.
        let result = unsafe { app.device.queue_submit(app.queue, &info, vk::Fence::null()) };
        result.map_or_else(|code| code.as_raw(), |()| 0)
    };
    let gated = session.submit_by(&table(100), &[&bytes(&x)], &bytes_out, &mut submit).expect("a submission");
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!session.is_done(&gated).expect("a living device"), "it waits for the application's semaphore");
    let opened = vk::SemaphoreSignalInfo::default().semaphore(gate).value(1);
    // SAFETY: the value grows.
    unsafe { app.device.signal_semaphore(&opened) }.expect("a signal");
    let mut y = vec![0; 400];
    session.wait(gated, &mut [&mut y]).expect("a run");
    assert_eq!(values(&y), doubled(&x));
    assert_eq!(run(&mut session, &x), doubled(&x), "the runtime's own submissions go on after it");
    drop((session, gpu));
    // SAFETY: everything borrowed is gone, and its runs have been waited for.
    unsafe {
        app.device.destroy_semaphore(gate, None);
        app.device.destroy_device(None);
        app.instance.destroy_instance(None);
    }
}
