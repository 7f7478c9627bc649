//! Devices of this machine, opened by each way of naming one.

use jvc_runner::device::{DeviceError, open, present};

#[test]
fn every_device_opens_by_index_and_by_uuid() {
    for device in present().expect("tests need a Vulkan driver; Mesa's lavapipe needs no GPU") {
        let uuid: String = device.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        for text in [device.index.to_string(), uuid] {
            let gpu = open(Some(&text)).expect("a device that is present");
            assert_eq!((gpu.info().index, &gpu.info().name), (device.index, &device.name));
        }
        assert!(open(Some(&device.name)).expect("by name").info().name.contains(&device.name));
    }
}

#[test]
fn no_device_has_this_name() {
    assert!(matches!(open(Some("no such device")), Err(DeviceError::NoSuch { .. })));
}
