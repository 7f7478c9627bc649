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
    /// Allocates a buffer of at least `bytes`, with undefined contents. An error when it is larger than the device's limit, or memory
    /// has run out.
    pub fn buffer(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer, Error> {
        Buffer::new(&self.0, bytes, kind, "a buffer")
    }
}

impl Buffer {
    pub(crate) fn new(device: &Arc<Device>, bytes: u64, kind: MemoryKind, what: &'static str) -> Result<Buffer, Error> {
        use vk::BufferUsageFlags as Usage;
        let bytes = bytes.max(1).next_multiple_of(256);
        let limit = device.info.limits.max_allocation_bytes;
        if bytes > limit {
            let (need, fact) = (bytes.to_string(), limit.to_string());
            return Err(Error::Requirement { what: "bytes of one allocation", need, fact });
        }
        let copies = Usage::TRANSFER_SRC | Usage::TRANSFER_DST;
        let usage = Usage::STORAGE_BUFFER | Usage::INDIRECT_BUFFER | Usage::SHADER_DEVICE_ADDRESS | copies;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: a plain creation; `Drop` destroys the handle.
        let handle = unsafe { device.raw.create_buffer(&info, None) }.named("vkCreateBuffer")?;
        let memory = vk::DeviceMemory::null();
        let mut buffer = Buffer { device: Arc::clone(device), handle, memory, bytes, address: 0, mapped: None };
        buffer.memory = allocate(device, handle, kind, what)?;
        // SAFETY: the memory is new and made for this buffer, which has the usage flag of addresses.
        unsafe {
            device.raw.bind_buffer_memory(handle, buffer.memory, 0).named("vkBindBufferMemory")?;
            buffer.address =
                device.raw.get_buffer_device_address(&vk::BufferDeviceAddressInfo::default().buffer(handle));
        }
        if kind != MemoryKind::Device {
            let flags = vk::MemoryMapFlags::empty();
            // SAFETY: the memory is host-visible and not mapped yet.
            let pointer =
                unsafe { device.raw.map_memory(buffer.memory, 0, vk::WHOLE_SIZE, flags) }.named("vkMapMemory")?;
            buffer.mapped = NonNull::new(pointer.cast()).map(|pointer| Mapped(Mutex::new(pointer)));
        }
        Ok(buffer)
    }

    /// Bytes, a multiple of 256.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Address that kernels take, a multiple of 16.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Copies bytes in. The caller has seen to it that no run uses them. An error when they do not fit, or the device is lost.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check_range(offset, bytes.len())?;
        match &self.mapped {
            // SAFETY: the range was checked; host threads are kept apart by the lock.
            Some(mapped) => unsafe {
                let to = lock(&mapped.0);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr().add(offset as usize), bytes.len());
                Ok(())
            },
            None if bytes.is_empty() => Ok(()),
            None => {
                let staging = Buffer::new(&self.device, bytes.len() as u64, MemoryKind::Upload, "a staging buffer")?;
                staging.write(0, bytes)?;
                self.copy_from(&staging, 0, offset, bytes.len() as u64)
            }
        }
    }

    /// Copies bytes out. The caller has waited for the runs that write them. Errors as of [`Buffer::write`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.check_range(offset, bytes.len())?;
        match &self.mapped {
            // SAFETY: as in `write`.
            Some(mapped) => unsafe {
                let from = lock(&mapped.0);
                std::ptr::copy_nonoverlapping(from.as_ptr().add(offset as usize), bytes.as_mut_ptr(), bytes.len());
                Ok(())
            },
            None if bytes.is_empty() => Ok(()),
            None => {
                let staging = Buffer::new(&self.device, bytes.len() as u64, MemoryKind::Readback, "a staging buffer")?;
                staging.copy_from(self, offset, 0, bytes.len() as u64)?;
                staging.read(0, bytes)
            }
        }
    }

    /// Fills the whole buffer with a word, ordered against all runs. An error when the device is lost.
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

/// Allocates memory for a buffer, from the best type that has room.
fn allocate(
    device: &Device,
    buffer: vk::Buffer,
    kind: MemoryKind,
    what: &'static str,
) -> Result<vk::DeviceMemory, Error> {
    // SAFETY: the buffer belongs to the device.
    let need = unsafe { device.raw.get_buffer_memory_requirements(buffer) };
    for ty in candidates(device, kind, need.memory_type_bits) {
        let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default().allocation_size(need.size).memory_type_index(ty);
        // SAFETY: the type is one that the buffer allows.
        match unsafe { device.raw.allocate_memory(&info.push_next(&mut flags), None) } {
            Err(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY) => {}
            result => return result.named("vkAllocateMemory"),
        }
    }
    Err(Error::OutOfMemory { what, bytes: need.size })
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
    let forbidden = P::PROTECTED | P::LAZILY_ALLOCATED | P::DEVICE_COHERENT_AMD;
    let rank = |(index, ty): (u32, &vk::MemoryType)| {
        let (flags, fits) = (ty.property_flags, allowed & (1 << index) != 0);
        (fits && flags.contains(must) && !flags.intersects(forbidden))
            .then(|| (!flags.contains(like), flags.intersects(avoid), index))
    };
    let mut found: Vec<_> = (0..).zip(device.memory.memory_types_as_slice()).filter_map(rank).collect();
    found.sort();
    found.into_iter().map(|(.., index)| index).collect()
}
