//! VK_KHR_pipeline_binary, which the bindings lack: kernels as the driver compiled them, to be kept and brought back.

use std::ffi::{CStr, c_void};
use std::mem::transmute_copy;
use std::ptr::{from_ref, null, null_mut};

use super::format::{Binaries, Binary};
use ash::vk::{self, Result as Code};

pub(crate) const NAME: &CStr = c"VK_KHR_pipeline_binary";
/// First number of the extension's structs.
const FIRST: i32 = 1_000_483_000;
/// VK_PIPELINE_CREATE_2_CAPTURE_DATA_BIT_KHR.
pub(crate) const CAPTURE: vk::PipelineCreateFlags2KHR = vk::PipelineCreateFlags2KHR::from_raw(1 << 31);

/// A struct of the extension: its number, the next struct, its fields.
#[repr(C)]
pub(crate) struct Chained<A, B = (), C = ()>(i32, *mut c_void, A, B, C);

fn chained<A, B, C>(number: i32, a: A, b: B, c: C) -> Chained<A, B, C> {
    Chained(FIRST + number, null_mut(), a, b, c)
}

/// VkPhysicalDevicePipelineBinaryFeaturesKHR: its one flag.
pub(crate) type Features = Chained<vk::Bool32>;
/// VkPhysicalDevicePipelineBinaryPropertiesKHR. The third flag: the driver would rather keep compiled kernels itself.
type Properties = Chained<[vk::Bool32; 5]>;

// SAFETY: the layouts are those of the C structs, which are allowed in these chains.
unsafe impl vk::ExtendsPhysicalDeviceFeatures2 for Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsDeviceCreateInfo for Features {}
// SAFETY: as above.
unsafe impl vk::ExtendsPhysicalDeviceProperties2 for Properties {}

impl Features {
    pub(crate) fn new(enabled: bool) -> Features {
        chained(0, enabled.into(), (), ())
    }
}

/// Whether a device has the extension, with all that it stands on, and would not rather keep pipelines itself.
pub(crate) fn is_offered(instance: &ash::Instance, physical: vk::PhysicalDevice) -> bool {
    // SAFETY: `physical` belongs to the instance.
    let extensions = unsafe { instance.enumerate_device_extension_properties(physical) }.unwrap_or_default();
    let has = |name| extensions.iter().any(|extension| extension.extension_name_as_c_str() == Ok(name));
    let (mut features, mut properties) = (Features::new(false), chained(4, [0; 5], (), ()));
    let mut all = vk::PhysicalDeviceProperties2::default();
    // SAFETY: as above; the structs are the extension's, and the device is asked for them only where it has that.
    unsafe {
        instance.get_physical_device_properties2(physical, &mut all);
        if all.properties.api_version < vk::API_VERSION_1_3 || !has(NAME) || !has(ash::khr::maintenance5::NAME) {
            return false;
        }
        let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut features);
        instance.get_physical_device_features2(physical, &mut all);
        let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut properties);
        instance.get_physical_device_properties2(physical, &mut all);
    }
    features.2 == vk::TRUE && properties.2[2] == vk::FALSE
}

type Handle = u64;
/// VkPipelineBinaryKeyKHR: its length and bytes.
type Key = Chained<u32, [u8; Binaries::MAX_KEY]>;

/// VkPipelineBinaryDataKHR.
#[repr(C)]
struct Data(usize, *const u8);

/// VkPipelineBinaryKeysAndDataKHR.
#[repr(C)]
struct Stored(u32, *const Key, *const Data);

/// The extension on a device.
pub(crate) struct Extension {
    device: vk::Device,
    create: unsafe extern "system" fn(
        vk::Device,
        &Chained<*const Stored, vk::Pipeline, *const c_void>,
        *const c_void,
        &mut Chained<u32, *mut Handle>,
    ) -> Code,
    destroy: unsafe extern "system" fn(vk::Device, Handle, *const c_void),
    read: unsafe extern "system" fn(vk::Device, &Chained<Handle>, &mut Key, &mut usize, *mut u8) -> Code,
    release: unsafe extern "system" fn(vk::Device, &Chained<vk::Pipeline>, *const c_void) -> Code,
    /// Binaries of devices with another one are worth nothing.
    pub(crate) global_key: Vec<u8>,
}

/// Binaries on a device.
struct Handles<'a>(&'a Extension, Vec<Handle>);

impl Extension {
    /// The functions of a device that was created with the extension.
    pub(crate) fn load(device: vk::Device, find: impl Fn(&CStr) -> vk::PFN_vkVoidFunction) -> Option<Extension> {
        // SAFETY: each function gets the type that Vulkan says.
        unsafe {
            let get_key = find(c"vkGetPipelineKeyKHR")?;
            let get_key: unsafe extern "system" fn(vk::Device, *const c_void, &mut Key) -> Code =
                transmute_copy(&get_key);
            let mut key = chained(3, 0, [0; _], ());
            get_key(device, null(), &mut key).result().ok()?;
            Some(Extension {
                device,
                create: transmute_copy(&find(c"vkCreatePipelineBinariesKHR")?),
                destroy: transmute_copy(&find(c"vkDestroyPipelineBinaryKHR")?),
                read: transmute_copy(&find(c"vkGetPipelineBinaryDataKHR")?),
                release: transmute_copy(&find(c"vkReleaseCapturedPipelineDataKHR")?),
                global_key: bytes(&key)?,
            })
        }
    }

    /// What the driver made of a pipeline that was created with [`CAPTURE`], which it may forget then.
    pub(crate) fn of(&self, pipeline: vk::Pipeline) -> Option<Vec<Binary>> {
        let read = |handle: &Handle| {
            let (info, mut key, mut size) = (chained(6, *handle, (), ()), chained(3, 0, [0; _], ()), 0);
            // SAFETY: the binary is alive; the data has as many bytes as the driver asks for.
            unsafe {
                (self.read)(self.device, &info, &mut key, &mut size, null_mut()).result().ok()?;
                let mut data = vec![0; size];
                (self.read)(self.device, &info, &mut key, &mut size, data.as_mut_ptr()).result().ok()?;
                Some(Binary { key: bytes(&key)?, data })
            }
        };
        let found = self.create(null(), pipeline).and_then(|handles| handles.1.iter().map(read).collect());
        // SAFETY: as the caller says.
        let _ = unsafe { (self.release)(self.device, &chained(5, pipeline, (), ()), null()) };
        found
    }

    /// Gives `create` what a pipeline's creation info is chained with, so that stored binaries stand for the shader. None where the
    /// driver does not take them.
    pub(crate) fn with<T>(&self, stored: &[Binary], create: impl FnOnce(*const c_void) -> Option<T>) -> Option<T> {
        let key = |binary: &Binary| {
            let mut key = [0; _];
            key[..binary.key.len()].copy_from_slice(&binary.key);
            chained(3, binary.key.len() as u32, key, ())
        };
        let keys: Vec<Key> = stored.iter().map(key).collect();
        let data: Vec<Data> = stored.iter().map(|binary| Data(binary.data.len(), binary.data.as_ptr())).collect();
        let handles = self.create(&Stored(keys.len() as u32, keys.as_ptr(), data.as_ptr()), vk::Pipeline::null())?;
        create(from_ref(&chained(2, handles.1.len() as u32, handles.1.as_ptr(), ())).cast())
    }

    /// Of stored data, or of a pipeline.
    fn create(&self, stored: *const Stored, pipeline: vk::Pipeline) -> Option<Handles<'_>> {
        let (info, mut list) = (chained(1, stored, pipeline, null()), chained(9, 0, null_mut(), ()));
        // SAFETY: what `stored` points to is alive. The first call says how many there are, the second one makes them, null where it cannot.
        unsafe {
            (self.create)(self.device, &info, null(), &mut list).result().ok()?;
            let mut handles = Handles(self, vec![0; list.2 as usize]);
            list.3 = handles.1.as_mut_ptr();
            (self.create)(self.device, &info, null(), &mut list).result().ok()?;
            Some(handles)
        }
    }
}

impl Drop for Handles<'_> {
    fn drop(&mut self) {
        // SAFETY: the binaries are ours, and pipelines do not need them once they are made; null is allowed.
        self.1.iter().for_each(|handle| unsafe { (self.0.destroy)(self.0.device, *handle, null()) });
    }
}

/// None where the driver claims more than there can be.
fn bytes(key: &Key) -> Option<Vec<u8>> {
    Some(key.3.get(..key.2 as usize)?.to_vec())
}
