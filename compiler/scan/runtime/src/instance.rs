//! The Vulkan instance, and the validation layer for tests: started only when the caller asks, its messages kept as text.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Mutex};

use ash::vk;

use crate::error::{Error, Named as _};
use crate::gpu::lock;
use crate::info::GpuInfo;

const LAYER: &CStr = c"VK_LAYER_KHRONOS_validation";

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
        lock(&self.0).clone()
    }
}

/// An instance, ours or the application's. Destroyed, if ours, after everything made from it: owners keep it as their last field.
pub(crate) struct Instance {
    pub(crate) raw: ash::Instance,
    pub(crate) entry: ash::Entry,
    pub(crate) owned: bool,
    messenger: Option<(ash::ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    pub(crate) log: ValidationLog,
}

/// The instance that devices without validation share; never destroyed. Destroying the last one unloads the drivers, and one of them
/// fails after having been loaded a dozen times. It also saves tens of milliseconds from the second device on.
static SHARED: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

impl Instance {
    pub(crate) fn get(validation: Option<Validation>) -> Result<Arc<Instance>, Error> {
        if validation.is_some() {
            return Instance::new(validation).map(Arc::new);
        }
        let mut shared = lock(&SHARED);
        let instance = match shared.take() {
            Some(instance) => instance,
            None => Arc::new(Instance::new(None)?),
        };
        Ok(Arc::clone(shared.insert(instance)))
    }

    fn new(validation: Option<Validation>) -> Result<Instance, Error> {
        // SAFETY: loads the system's Vulkan loader, which is a well-behaved library.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| Error::Loader(error.to_string()))?;
        let raw = create(&entry, validation)?;
        let mut instance = Instance { raw, entry, owned: true, messenger: None, log: ValidationLog::default() };
        if validation.is_some() {
            instance.listen()?;
        }
        Ok(instance)
    }

    pub(crate) fn borrowed(entry: ash::Entry, raw: ash::Instance) -> Instance {
        Instance { raw, entry, owned: false, messenger: None, log: ValidationLog::default() }
    }

    /// All devices, in the loader's order.
    pub(crate) fn devices(&self) -> Result<Vec<(vk::PhysicalDevice, GpuInfo)>, Error> {
        // SAFETY: a plain query.
        let found = unsafe { self.raw.enumerate_physical_devices() }.named("vkEnumeratePhysicalDevices")?;
        Ok(found
            .into_iter()
            .enumerate()
            .map(|(index, physical)| (physical, GpuInfo::query(self, physical, index)))
            .collect())
    }

    fn listen(&mut self) -> Result<(), Error> {
        use vk::{DebugUtilsMessageSeverityFlagsEXT as Severity, DebugUtilsMessageTypeFlagsEXT as Type};
        let info = vk::DebugUtilsMessengerCreateInfoEXT::default()
            .message_severity(Severity::ERROR | Severity::WARNING)
            .message_type(Type::VALIDATION)
            .pfn_user_callback(Some(on_message))
            .user_data(Arc::as_ptr(&self.log.0).cast_mut().cast());
        let api = ash::ext::debug_utils::Instance::new(&self.entry, &self.raw);
        // SAFETY: the extension is enabled; the log outlives the messenger, which `Drop` destroys.
        let handle =
            unsafe { api.create_debug_utils_messenger(&info, None) }.named("vkCreateDebugUtilsMessengerEXT")?;
        self.messenger = Some((api, handle));
        Ok(())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: everything made from the instance is gone.
            unsafe {
                self.messenger.iter().for_each(|(api, handle)| api.destroy_debug_utils_messenger(*handle, None));
                self.raw.destroy_instance(None);
            }
        }
    }
}

fn create(entry: &ash::Entry, validation: Option<Validation>) -> Result<ash::Instance, Error> {
    let app = vk::ApplicationInfo::default().application_name(c"jvc").api_version(vk::API_VERSION_1_3);
    let mut extensions: Vec<*const c_char> = Vec::new();
    let mut info = vk::InstanceCreateInfo::default().application_info(&app);
    // Without it, the loader hides devices that are not fully conformant (MoltenVK).
    if extensions_of(entry, None)?.iter().any(|name| name.as_c_str() == ash::khr::portability_enumeration::NAME) {
        extensions.push(ash::khr::portability_enumeration::NAME.as_ptr());
        info = info.flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR);
    }
    let layers = [LAYER.as_ptr()];
    let sync = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
    let mut features = vk::ValidationFeaturesEXT::default().enabled_validation_features(&sync);
    // Newer layers look at the accesses of shaders only when told so.
    let mut heuristic = [vk::LayerSettingEXT::default()
        .layer_name(LAYER)
        .setting_name(c"syncval_shader_accesses_heuristic")
        .ty(vk::LayerSettingTypeEXT::BOOL32)
        .values(&[1, 0, 0, 0])];
    heuristic[0].value_count = 1;
    let mut settings = vk::LayerSettingsCreateInfoEXT::default().settings(&heuristic);
    if let Some(validation) = validation {
        let offered = extensions_of(entry, Some(LAYER)).map_err(|_| Error::NoValidationLayer)?;
        extensions.push(ash::ext::debug_utils::NAME.as_ptr());
        info = info.enabled_layer_names(&layers);
        if validation.sync {
            extensions.push(ash::ext::validation_features::NAME.as_ptr());
            info = info.push_next(&mut features);
        }
        if validation.sync && offered.iter().any(|name| name.as_c_str() == ash::ext::layer_settings::NAME) {
            extensions.push(ash::ext::layer_settings::NAME.as_ptr());
            info = info.push_next(&mut settings);
        }
    }
    let info = info.enabled_extension_names(&extensions);
    // SAFETY: names and chain live until the call returns.
    unsafe { entry.create_instance(&info, None) }.map_err(|code| Error::Loader(format!("vkCreateInstance: {code:?}")))
}

fn extensions_of(entry: &ash::Entry, layer: Option<&CStr>) -> Result<Vec<CString>, Error> {
    // SAFETY: a plain query.
    let found = unsafe { entry.enumerate_instance_extension_properties(layer) };
    let found = found.named("vkEnumerateInstanceExtensionProperties")?;
    Ok(found.iter().filter_map(|extension| extension.extension_name_as_c_str().ok().map(CStr::to_owned)).collect())
}

unsafe extern "system" fn on_message(
    _severity: vk::DebugUtilsMessageSeverityFlagsEXT,
    _ty: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    user: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes valid data, and `user` is the log that `listen` registered and the instance keeps alive.
    let (message, log) = unsafe { ((*data).message_as_c_str(), &*user.cast::<Mutex<Vec<String>>>().cast_const()) };
    lock(log).push(message.map_or_else(String::new, |text| text.to_string_lossy().into_owned()));
    vk::FALSE
}
