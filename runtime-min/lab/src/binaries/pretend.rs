//! A device that seems to have VK_KHR_pipeline_binary: a stand-in whose binaries are two halves of the SPIR-V behind marks of the driver,
//! so that what keeps and restores them runs on drivers without the extension. It sees to the extension's rules by assertions.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::ptr::null;
use std::sync::Mutex;

use ash::vk;
use ash::vk::{Handle as _, Result as Code};
use jvc_runtime::content_hash;

use crate::tamper::{lock, void};

/// How the stand-in behaves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PretendedBinaries {
    /// Of its global key.
    pub driver: u8,
    /// It takes no stored binaries back.
    pub forgetful: bool,
    /// It does not give out the data of binaries.
    pub silent: bool,
}

/// What was asked of the stand-in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PretendedCounts {
    /// Pipelines made from SPIR-V, to be captured or not.
    pub captured: usize,
    /// As above.
    pub uncaptured: usize,
    /// Pipelines made from binaries.
    pub restored: usize,
    /// Binaries, and data of captured pipelines, that were never given back.
    pub left_over: usize,
}

/// First number of the extension's structs.
const FIRST: i32 = 1_000_483_000;
const CAPTURE: u64 = 1 << 31;
const HALVES: usize = 2;

/// Devices with the stand-in, by handle.
static DEVICES: Mutex<BTreeMap<u64, State>> = Mutex::new(BTreeMap::new());
struct State {
    plain: ash::Device,
    options: PretendedBinaries,
    counts: PretendedCounts,
    /// Code by module, data by binary, code by captured pipeline.
    modules: BTreeMap<u64, Vec<u32>>,
    binaries: BTreeMap<u64, Vec<u8>>,
    captured: BTreeMap<u64, Vec<u32>>,
    last: u64,
}

pub(crate) fn register(device: &ash::Device, options: PretendedBinaries) {
    let (modules, binaries, captured) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let (plain, counts) = (device.clone(), PretendedCounts::default());
    let state = State { plain, options, counts, modules, binaries, captured, last: 0 };
    lock(&DEVICES).insert(device.handle().as_raw(), state);
}

pub(crate) fn forget(device: vk::Device) {
    lock(&DEVICES).remove(&device.as_raw());
}

pub(crate) fn counts(device: vk::Device) -> PretendedCounts {
    let devices = lock(&DEVICES);
    let of = |state: &State| PretendedCounts { left_over: state.binaries.len() + state.captured.len(), ..state.counts };
    devices.get(&device.as_raw()).map(of).unwrap_or_default()
}

/// The stand-in's function of a device, if it has the stand-in.
pub(crate) fn device_function(device: vk::Device, name: &CStr) -> vk::PFN_vkVoidFunction {
    let function = match name.to_bytes() {
        b"vkCreateShaderModule" => create_module as vk::PFN_vkCreateShaderModule as *const (),
        b"vkCreateComputePipelines" => create_pipelines as vk::PFN_vkCreateComputePipelines as *const (),
        b"vkCreatePipelineBinariesKHR" => create as *const (),
        b"vkDestroyPipelineBinaryKHR" => destroy as *const (),
        b"vkGetPipelineBinaryDataKHR" => read as *const (),
        b"vkReleaseCapturedPipelineDataKHR" => release as *const (),
        b"vkGetPipelineKeyKHR" => key as *const (),
        _ => return None,
    };
    // SAFETY: functions of Vulkan.
    lock(&DEVICES).contains_key(&device.as_raw()).then(|| unsafe { void(function) }).flatten()
}

fn with<T>(device: vk::Device, work: impl FnOnce(&mut State) -> T) -> T {
    work(lock(&DEVICES).get_mut(&device.as_raw()).expect("its functions are given to this device only"))
}

/// VkPipelineBinaryKeyKHR.
#[repr(C)]
struct Key {
    s_type: i32,
    next: *const c_void,
    size: u32,
    key: [u8; 32],
}

#[repr(C)]
struct Data {
    size: usize,
    bytes: *const u8,
}

#[repr(C)]
struct KeysAndData {
    n: u32,
    keys: *const Key,
    data: *const Data,
}

#[repr(C)]
struct CreateInfo {
    s_type: i32,
    next: *const c_void,
    stored: *const KeysAndData,
    pipeline: vk::Pipeline,
    info: *const c_void,
}

/// VkPipelineBinaryHandlesInfoKHR, and with a pointer to constants VkPipelineBinaryInfoKHR.
#[repr(C)]
struct Handles {
    s_type: i32,
    next: *const c_void,
    n: u32,
    list: *mut u64,
}

/// VkPipelineBinaryDataInfoKHR, VkReleaseCapturedPipelineDataInfoKHR.
#[repr(C)]
struct Of {
    s_type: i32,
    next: *const c_void,
    handle: u64,
}

unsafe extern "system" fn create_module(
    device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    module: *mut vk::ShaderModule,
) -> Code {
    let plain = with(device, |state| state.plain.fp_v1_0().create_shader_module);
    // SAFETY: the arguments are passed on; the info names as many bytes as there are.
    unsafe {
        let code = std::slice::from_raw_parts((*info).p_code, (*info).code_size / 4).to_vec();
        let result = plain(device, info, callbacks, module);
        with(device, |state| state.modules.insert((*module).as_raw(), code));
        result
    }
}

/// From modules, or from binaries that are chained to the info.
unsafe extern "system" fn create_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    n: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    callbacks: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> Code {
    assert_eq!(n, 1, "the runtime makes pipelines one by one");
    let plain = with(device, |state| state.plain.clone());
    // SAFETY: the info and its chain are valid; what the driver does not know is taken out of the chain.
    unsafe {
        let (mut info, mut captures, mut binaries) = (*infos, false, vec![]);
        let mut next = info.p_next.cast::<vk::BaseInStructure<'_>>();
        while !next.is_null() {
            match (*next).s_type {
                vk::StructureType::PIPELINE_CREATE_FLAGS_2_CREATE_INFO_KHR => {
                    let flags = (*next.cast::<vk::PipelineCreateFlags2CreateInfoKHR<'_>>()).flags;
                    captures = flags.as_raw() & CAPTURE != 0;
                }
                ty => {
                    assert_eq!(ty.as_raw(), FIRST + 2, "nothing else is chained to pipelines");
                    let list = &*next.cast::<Handles>();
                    binaries = std::slice::from_raw_parts(list.list, list.n as usize).to_vec();
                }
            }
            next = (*next).p_next;
        }
        assert!(
            cache == vk::PipelineCache::null() || (!captures && binaries.is_empty()),
            "binaries and caches exclude each other"
        );
        info.p_next = null();
        if binaries.is_empty() {
            let result = (plain.fp_v1_0().create_compute_pipelines)(device, cache, 1, &info, callbacks, pipelines);
            with(device, |state| {
                let code = state.modules[&info.stage.module.as_raw()].clone();
                state.counts.captured += usize::from(captures);
                state.counts.uncaptured += usize::from(!captures);
                captures.then(|| state.captured.insert((*pipelines).as_raw(), code));
            });
            return result;
        }
        let code = with(device, |state| {
            state.counts.restored += 1;
            let parts = binaries.iter().flat_map(|handle| state.binaries[handle][MARK..].to_vec()).collect::<Vec<u8>>();
            parts.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<u32>>()
        });
        let module = vk::ShaderModuleCreateInfo::default().code(&code);
        let module = plain.create_shader_module(&module, None).expect("the driver has taken this module before");
        info.stage.module = module;
        let result = (plain.fp_v1_0().create_compute_pipelines)(device, cache, 1, &info, callbacks, pipelines);
        plain.destroy_shader_module(module, None);
        result
    }
}

/// Bytes before the code: driver, part, checksum.
const MARK: usize = 10;

fn data_of(driver: u8, part: usize, code: &[u8]) -> Vec<u8> {
    [&[driver, part as u8], &content_hash([code]).to_le_bytes()[..], code].concat()
}

/// Two halves of a captured pipeline, or stored binaries as they were given out.
fn wanted(state: &State, info: &CreateInfo) -> Result<Vec<Vec<u8>>, Code> {
    if info.stored.is_null() {
        let code = state.captured.get(&info.pipeline.as_raw()).ok_or(Code::ERROR_UNKNOWN)?;
        let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
        let parts = bytes.chunks(bytes.len().div_ceil(HALVES)).enumerate();
        return Ok(parts.map(|(part, code)| data_of(state.options.driver, part, code)).collect());
    }
    assert!(info.pipeline == vk::Pipeline::null() && info.info.is_null(), "one source at a time");
    // SAFETY: the caller has as many as it says, of as many bytes.
    let stored = unsafe {
        let stored = &*info.stored;
        let data = std::slice::from_raw_parts(stored.data, stored.n as usize).iter();
        let data = data.map(|data| std::slice::from_raw_parts(data.bytes, data.size).to_vec()).collect::<Vec<_>>();
        let keys = std::slice::from_raw_parts(stored.keys, stored.n as usize);
        assert!(keys.iter().all(|key| key.s_type == FIRST + 3 && key.next.is_null()));
        let fits = keys
            .iter()
            .zip(&data)
            .all(|(key, data)| key.size == 8 && key.key[..8] == content_hash([data.as_slice()]).to_le_bytes());
        if fits { data } else { vec![] }
    };
    let good = stored
        .iter()
        .enumerate()
        .all(|(part, data)| data.len() > MARK && *data == data_of(state.options.driver, part, &data[MARK..]));
    if stored.is_empty() || !good || state.options.forgetful { Err(Code::ERROR_UNKNOWN) } else { Ok(stored) }
}

unsafe extern "system" fn create(
    device: vk::Device,
    info: *const CreateInfo,
    _: *const c_void,
    list: *mut Handles,
) -> Code {
    with(device, |state| {
        // SAFETY: the structs are valid; the list has as many places as the first call said.
        let (info, list) = unsafe { (&*info, &mut *list) };
        assert_eq!((info.s_type, list.s_type), (FIRST + 1, FIRST + 9));
        let found = match wanted(state, info) {
            Err(code) => return code,
            Ok(found) => found,
        };
        if list.list.is_null() {
            list.n = found.len() as u32;
            return Code::SUCCESS;
        }
        assert_eq!(list.n as usize, found.len());
        for (place, data) in found.into_iter().enumerate() {
            state.last += 1;
            state.binaries.insert(state.last, data);
            // SAFETY: as above.
            unsafe { *list.list.add(place) = state.last };
        }
        Code::SUCCESS
    })
}

unsafe extern "system" fn destroy(device: vk::Device, binary: u64, _: *const c_void) {
    with(device, |state| assert!(binary == 0 || state.binaries.remove(&binary).is_some(), "destroyed once"));
}

unsafe extern "system" fn read(
    device: vk::Device,
    of: *const Of,
    key: *mut Key,
    size: *mut usize,
    bytes: *mut u8,
) -> Code {
    with(device, |state| {
        // SAFETY: the structs are valid; there is room for as many bytes as the first call said.
        let (of, key, size) = unsafe { (&*of, &mut *key, &mut *size) };
        assert_eq!((of.s_type, key.s_type), (FIRST + 6, FIRST + 3));
        let data = &state.binaries[&of.handle];
        key.size = 8;
        key.key[..8].copy_from_slice(&content_hash([data.as_slice()]).to_le_bytes());
        if state.options.silent {
            return Code::ERROR_OUT_OF_HOST_MEMORY;
        }
        if bytes.is_null() {
            *size = data.len();
        } else {
            assert_eq!(*size, data.len());
            // SAFETY: as above.
            unsafe { bytes.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        }
        Code::SUCCESS
    })
}

unsafe extern "system" fn release(device: vk::Device, of: *const Of, _: *const c_void) -> Code {
    with(device, |state| {
        // SAFETY: the struct is valid.
        let of = unsafe { &*of };
        assert_eq!(of.s_type, FIRST + 5);
        assert!(state.captured.remove(&of.handle).is_some(), "released once, of a captured pipeline");
        Code::SUCCESS
    })
}

unsafe extern "system" fn key(device: vk::Device, info: *const c_void, key: *mut Key) -> Code {
    assert!(info.is_null(), "the global key is asked for");
    // SAFETY: the struct is valid.
    let key = unsafe { &mut *key };
    assert_eq!(key.s_type, FIRST + 3);
    (key.size, key.key[0]) = (1, with(device, |state| state.options.driver));
    Code::SUCCESS
}
