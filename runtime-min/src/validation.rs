//! The validation layer, for tests: started only when the caller asks, its messages kept as text.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ash::vk;

use crate::error::{Error, Named as _};

pub(crate) const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

/// Asks for the validation layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Validation {
    /// Also finds missing barriers. It sees the accesses of kernels in their bindings form only.
    pub sync: bool,
}

/// What the layer said so far. Outlives the device, so that it also holds what the device's destruction brought up.
#[derive(Debug, Clone, Default)]
pub struct ValidationLog(Arc<Mutex<Vec<String>>>);

impl ValidationLog {
    /// Errors and warnings, in order.
    pub fn messages(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) struct Messenger {
    api: ash::ext::debug_utils::Instance,
    handle: vk::DebugUtilsMessengerEXT,
    pub(crate) log: ValidationLog,
}

impl Messenger {
    pub(crate) fn new(entry: &ash::Entry, instance: &ash::Instance) -> Result<Messenger, Error> {
        let log = ValidationLog::default();
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(
                vk::DebugUtilsMessageSeverityFlagsEXT::ERROR | vk::DebugUtilsMessageSeverityFlagsEXT::WARNING,
            )
            .message_type(vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION)
            .pfn_user_callback(Some(on_message))
            .user_data(Arc::as_ptr(&log.0).cast_mut().cast());
        let api = ash::ext::debug_utils::Instance::new(entry, instance);
        // SAFETY: the extension is enabled; the log lives in `Messenger`, which is destroyed before it is freed.
        let handle =
            unsafe { api.create_debug_utils_messenger(&info, None) }.named("vkCreateDebugUtilsMessengerEXT")?;
        Ok(Messenger { api, handle, log })
    }

    /// Call before the instance goes.
    pub(crate) fn destroy(&self) {
        // SAFETY: the messenger is ours and the instance still lives.
        unsafe { self.api.destroy_debug_utils_messenger(self.handle, None) };
    }
}

unsafe extern "system" fn on_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _ty: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes valid data, and `user` is the log that `Messenger::new` registered and keeps alive.
    let (text, log) = unsafe {
        let message = (*data).p_message;
        let text =
            if message.is_null() { String::new() } else { CStr::from_ptr(message).to_string_lossy().into_owned() };
        (text, &*user.cast::<Mutex<Vec<String>>>().cast_const())
    };
    log.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    vk::FALSE
}
