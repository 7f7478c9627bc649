//! Buffers with device addresses, one allocation each, and the choice of memory for them.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use ash::vk;

use crate::error::{Error, Named as _};
use crate::gpu::{Device, Gpu, lock};

/// Who touches a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Kernels alone.
    Device,
    /// Near the GPU *and* visible to the host, or an error: for weights on devices that have such memory.
    DeviceMapped,
    /// Written by the host, read by kernels.
    Upload,
    /// Written by kernels, read by the host.
    Readback,
}

/// A range of device memory with an address.
pub struct Buffer {
    device: Arc<Device>,
    pub(crate) handle: vk::Buffer,
    memory: vk::DeviceMemory,
    bytes: u64,
    address: u64,
    mapped: Option<Mapped>,
}

/// The host's view of a buffer; the lock keeps two host threads apart.
struct Mapped(Mutex<NonNull<u8>>);

// SAFETY: the pointer is to memory that lives as long as the buffer and is only used under the lock.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Gpu {
    /// Allocates a buffer of at least `bytes`, with undefined contents.
    ///
    /// # Errors
    ///
    /// When it is larger than the device's limit, or memory has run out.
    pub fn buffer(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer, Error> {
        Buffer::new(&self.0, bytes, kind, "a buffer")
    }
}

impl Buffer {
    pub(crate) fn new(device: &Arc<Device>, bytes: u64, kind: MemoryKind, what: &'static str) -> Result<Buffer, Error> {
        let bytes = bytes.max(1).next_multiple_of(256);
        let limit = device.info.limits.max_allocation_bytes;
        if bytes > limit {
            return Err(Error::Requirement {
                what: "bytes of one allocation",
                need: bytes.to_string(),
                fact: limit.to_string(),
            });
        }
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST
            | vk::BufferUsageFlags::INDIRECT_BUFFER
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: a plain creation; the handle is destroyed by `Drop` or below.
        let handle = unsafe { device.raw.create_buffer(&info, None) }.named("vkCreateBuffer")?;
        match allocate(device, handle, kind, what) {
            Ok((memory, mapped)) => {
                let info = vk::BufferDeviceAddressInfo::default().buffer(handle);
                // SAFETY: the buffer has the usage flag and is bound.
                let address = unsafe { device.raw.get_buffer_device_address(&info) };
                Ok(Buffer { device: Arc::clone(device), handle, memory, bytes, address, mapped })
            }
            Err(error) => {
                // SAFETY: nothing is bound to the buffer.
                unsafe { device.raw.destroy_buffer(handle, None) };
                Err(error)
            }
        }
    }

    /// Bytes, a multiple of 256.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address that kernels take, a multiple of 16.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Copies bytes in. The caller has seen to it that no run uses them.
    ///
    /// # Errors
    ///
    /// When they do not fit, or the copy through staging memory fails.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check_range(offset, bytes.len())?;
        if self.with_mapped(offset, |to| {
            // SAFETY: the range was checked; host threads are kept apart by the lock.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
        }) || bytes.is_empty()
        {
            return Ok(());
        }
        let staging = Buffer::new(&self.device, bytes.len() as u64, MemoryKind::Upload, "a staging buffer")?;
        staging.write(0, bytes)?;
        self.copy_from(&staging, 0, offset, bytes.len() as u64)
    }

    /// Copies bytes out. The caller has waited for the runs that write them.
    ///
    /// # Errors
    ///
    /// As [`Buffer::write`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.check_range(offset, bytes.len())?;
        if self.with_mapped(offset, |from| {
            // SAFETY: the range was checked.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
        }) || bytes.is_empty()
        {
            return Ok(());
        }
        let staging = Buffer::new(&self.device, bytes.len() as u64, MemoryKind::Readback, "a staging buffer")?;
        staging.copy_from(self, offset, 0, bytes.len() as u64)?;
        staging.read(0, bytes)
    }

    /// Fills the whole buffer with a word, ordered against all runs.
    ///
    /// # Errors
    ///
    /// When the device is lost.
    pub fn fill(&self, word: u32) -> Result<(), Error> {
        self.device.one_time("a buffer fill", |raw, commands| {
            // SAFETY: the command buffer is recording and the buffer outlives it: `one_time` waits.
            unsafe { raw.cmd_fill_buffer(commands, self.handle, 0, vk::WHOLE_SIZE, word) };
        })
    }

    pub(crate) fn copy_from(&self, from: &Buffer, from_offset: u64, offset: u64, bytes: u64) -> Result<(), Error> {
        let region = [vk::BufferCopy { src_offset: from_offset, dst_offset: offset, size: bytes }];
        self.device.one_time("a buffer copy", |raw, commands| {
            // SAFETY: both ranges were checked by the callers; `one_time` waits.
            unsafe { raw.cmd_copy_buffer(commands, from.handle, self.handle, &region) };
        })
    }

    /// The mapped bytes, for parallel upload; `None` for memory that the host does not see.
    pub(crate) fn mapped(&self) -> Option<NonNull<u8>> {
        self.mapped.as_ref().map(|mapped| *lock(&mapped.0))
    }

    fn with_mapped(&self, offset: u64, copy: impl FnOnce(*mut u8)) -> bool {
        let Some(mapped) = &self.mapped else { return false };
        let base = lock(&mapped.0);
        // SAFETY: callers check that the offset lies inside the mapping.
        copy(unsafe { base.as_ptr().add(offset as usize) });
        true
    }

    fn check_range(&self, offset: u64, len: usize) -> Result<(), Error> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Error::Argument {
                what: "buffer range".to_owned(),
                need: format!("at most {} bytes", self.bytes),
                got: format!("{len} bytes at {offset}"),
            }),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: owners wait for their runs before they drop buffers. Freeing the memory unmaps it.
        unsafe {
            self.device.raw.destroy_buffer(self.handle, None);
            self.device.raw.free_memory(self.memory, None);
        }
    }
}

/// Allocates and binds memory, from the best type that has room.
fn allocate(
    device: &Device,
    buffer: vk::Buffer,
    kind: MemoryKind,
    what: &'static str,
) -> Result<(vk::DeviceMemory, Option<Mapped>), Error> {
    // SAFETY: the buffer belongs to the device.
    let need = unsafe { device.raw.get_buffer_memory_requirements(buffer) };
    for ty in candidates(device, kind, need.memory_type_bits) {
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info =
            vk::MemoryAllocateInfo::default().allocation_size(need.size).memory_type_index(ty).push_next(&mut flags);
        // SAFETY: the type is one that the buffer allows.
        let memory = match unsafe { device.raw.allocate_memory(&info, None) } {
            Ok(memory) => memory,
            Err(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY) => continue,
            Err(code) => return Err(code).named("vkAllocateMemory"),
        };
        // SAFETY: the memory is new and large enough.
        let bound = unsafe { device.raw.bind_buffer_memory(buffer, memory, 0) }.named("vkBindBufferMemory");
        let mapped =
            bound.and_then(|()| if kind == MemoryKind::Device { Ok(None) } else { map(device, memory).map(Some) });
        if mapped.is_err() {
            // SAFETY: the buffer is destroyed by the caller and was never used.
            unsafe { device.raw.free_memory(memory, None) };
        }
        return mapped.map(|mapped| (memory, mapped));
    }
    Err(Error::OutOfMemory { what, bytes: need.size })
}

fn map(device: &Device, memory: vk::DeviceMemory) -> Result<Mapped, Error> {
    // SAFETY: the memory is host-visible and not mapped yet.
    let pointer = unsafe { device.raw.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()) }
        .named("vkMapMemory")?;
    let pointer = NonNull::new(pointer.cast()).ok_or(Error::Vulkan { call: "vkMapMemory", code: 0 })?;
    Ok(Mapped(Mutex::new(pointer)))
}

/// Memory types for a kind, best first. Host-visible ones must be coherent: nothing is flushed by hand.
fn candidates(device: &Device, kind: MemoryKind, allowed: u32) -> Vec<u32> {
    use vk::MemoryPropertyFlags as P;
    let (must, like, avoid) = match kind {
        MemoryKind::Device => (P::empty(), P::DEVICE_LOCAL, P::HOST_VISIBLE),
        MemoryKind::DeviceMapped => (P::DEVICE_LOCAL | P::HOST_VISIBLE | P::HOST_COHERENT, P::empty(), P::empty()),
        MemoryKind::Upload => (P::HOST_VISIBLE | P::HOST_COHERENT, P::DEVICE_LOCAL, P::HOST_CACHED),
        MemoryKind::Readback => (P::HOST_VISIBLE | P::HOST_COHERENT, P::HOST_CACHED, P::DEVICE_LOCAL),
    };
    let types = device.memory.memory_types_as_slice();
    let forbidden = P::PROTECTED | P::LAZILY_ALLOCATED | P::DEVICE_COHERENT_AMD;
    let fits = |(index, ty): &(usize, &vk::MemoryType)| {
        allowed & (1 << index) != 0 && ty.property_flags.contains(must) && !ty.property_flags.intersects(forbidden)
    };
    let mut found: Vec<(bool, bool, u32)> = types
        .iter()
        .enumerate()
        .filter(fits)
        .map(|(index, ty)| (!ty.property_flags.contains(like), ty.property_flags.intersects(avoid), index as u32))
        .collect();
    found.sort();
    found.into_iter().map(|(.., index)| index).collect()
}
