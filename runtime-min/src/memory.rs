//! Buffers with device addresses, one allocation each, and the choice of memory for them.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use ash::vk::{self, Handle as _};

use crate::error::{argument, ensure, vulkan};
use crate::info::check_limit;
use crate::queue::{CommandPool, Device, lock};
use crate::{Error, Gpu, Result};

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
    /// The host's view, in truth as long-lived as the buffer; the lock keeps two host threads apart.
    mapped: Option<Mutex<&'static mut [u8]>>,
}

impl Gpu {
    /// Allocates a buffer of at least `bytes`, with undefined contents. An error when the device's limit or its memory is exceeded.
    pub fn buffer(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        Buffer::new(&self.0, bytes, kind, "a buffer")
    }
}

impl Buffer {
    pub(crate) fn new(device: &Arc<Device>, bytes: u64, kind: MemoryKind, what: &'static str) -> Result<Buffer> {
        use vk::BufferUsageFlags as Usage;
        let bytes = bytes.max(1).next_multiple_of(256);
        check_limit("bytes of one allocation", bytes, device.info.max_allocation_bytes)?;
        let copies = Usage::TRANSFER_SRC | Usage::TRANSFER_DST;
        let usage = Usage::STORAGE_BUFFER | Usage::INDIRECT_BUFFER | Usage::SHADER_DEVICE_ADDRESS | copies;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: a plain creation; `Drop` destroys the handle.
        let handle = unsafe { device.raw.create_buffer(&info, None) }.map_err(vulkan("vkCreateBuffer"))?;
        let (device, memory) = (Arc::clone(device), vk::DeviceMemory::null());
        let mut buffer = Buffer { device, handle, memory, bytes, address: 0, mapped: None };
        buffer.memory = buffer.allocate(kind, what)?;
        let raw = &buffer.device.raw;
        // SAFETY: the memory is new and made for this buffer, which has the usage flag of addresses.
        unsafe {
            raw.bind_buffer_memory(handle, buffer.memory, 0).map_err(vulkan("vkBindBufferMemory"))?;
            buffer.address = raw.get_buffer_device_address(&vk::BufferDeviceAddressInfo::default().buffer(handle));
        }
        if kind != MemoryKind::Device {
            // SAFETY: the memory is host-visible, not mapped yet, and as large as the buffer at least. Nobody keeps the slice beyond a
            // borrow of the buffer, whose drop ends the mapping. Kernels access it only in runs; what a run writes is read after it.
            let bytes = unsafe {
                let start = raw.map_memory(buffer.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
                std::slice::from_raw_parts_mut(start.map_err(vulkan("vkMapMemory"))?.cast(), bytes as usize)
            };
            buffer.mapped = Some(Mutex::new(bytes));
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

    /// The `VkBuffer`.
    pub fn handle(&self) -> u64 {
        self.handle.as_raw()
    }

    /// Copies bytes in. The caller has seen to it that no run uses them. An error when they do not fit, or the device is lost.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let range = self.range(offset, bytes.len())?;
        if self.mapped.is_some() {
            self.host()[range].copy_from_slice(bytes);
        } else if !bytes.is_empty() {
            let staging = Buffer::new(&self.device, bytes.len() as u64, MemoryKind::Upload, "a staging buffer")?;
            staging.write(0, bytes)?;
            self.start_copy(&staging, 0, offset, bytes.len() as u64)?.finish()?;
        }
        Ok(())
    }

    /// Copies bytes out. The caller has waited for the runs that write them. Errors as of [`Buffer::write`].
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let range = self.range(offset, bytes.len())?;
        if self.mapped.is_some() {
            bytes.copy_from_slice(&self.host()[range]);
        } else if !bytes.is_empty() {
            let staging = Buffer::new(&self.device, bytes.len() as u64, MemoryKind::Readback, "a staging buffer")?;
            staging.start_copy(self, offset, 0, bytes.len() as u64)?.finish()?;
            staging.read(0, bytes)?;
        }
        Ok(())
    }

    /// Fills the whole buffer with a word, ordered against all runs. An error when the device is lost.
    pub fn fill(&self, word: u32) -> Result<()> {
        let fill = |raw: &ash::Device, commands| {
            // SAFETY: the command buffer is recording and the buffer outlives it: it is waited for.
            unsafe { raw.cmd_fill_buffer(commands, self.handle, 0, vk::WHOLE_SIZE, word) };
        };
        self.device.start("a buffer fill", fill)?.finish()
    }

    /// Starts a copy between ranges that the caller has checked. Both buffers outlive it: it is waited for, by its drop at the latest.
    pub(crate) fn start_copy(&self, from: &Buffer, src: u64, dst: u64, bytes: u64) -> Result<CommandPool> {
        let region = [vk::BufferCopy { src_offset: src, dst_offset: dst, size: bytes }];
        self.device.start("a buffer copy", |raw, commands| {
            // SAFETY: the command buffer is recording; for the rest, the caller's promise.
            unsafe { raw.cmd_copy_buffer(commands, from.handle, self.handle, &region) };
        })
    }

    /// The host's view of a buffer that is not of [`MemoryKind::Device`].
    pub(crate) fn host(&self) -> MutexGuard<'_, &'static mut [u8]> {
        lock(self.mapped.as_ref().expect("the host looks at mapped memory only"))
    }

    fn range(&self, offset: u64, len: usize) -> Result<Range<usize>> {
        let (at_most, got) = (self.bytes, || format!("{len} bytes at {offset}"));
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= at_most);
        ensure(fits, || argument("buffer range", format!("at most {at_most} bytes"), got()))?;
        Ok(offset as usize..offset as usize + len)
    }

    /// Allocates memory from the best type that has room.
    fn allocate(&self, kind: MemoryKind, what: &'static str) -> Result<vk::DeviceMemory> {
        let raw = &self.device.raw;
        // SAFETY: the buffer belongs to the device.
        let need = unsafe { raw.get_buffer_memory_requirements(self.handle) };
        for ty in candidates(&self.device, kind, need.memory_type_bits) {
            let mut flags = vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
            let info = vk::MemoryAllocateInfo::default().allocation_size(need.size).memory_type_index(ty);
            // SAFETY: the type is one that the buffer allows.
            match unsafe { raw.allocate_memory(&info.push_next(&mut flags), None) } {
                Err(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY) => {}
                result => return result.map_err(vulkan("vkAllocateMemory")),
            }
        }
        Err(Error::OutOfMemory { what, bytes: need.size })
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
    let flags = |index: &u32| device.memory.memory_types[*index as usize].property_flags;
    let suits = |index: &u32| flags(index).contains(must) && !flags(index).intersects(forbidden);
    let types = (0..device.memory.memory_type_count).filter(|index| allowed & (1 << index) != 0);
    let mut found: Vec<u32> = types.filter(suits).collect();
    found.sort_by_key(|index| (!flags(index).contains(like), flags(index).intersects(avoid)));
    found
}
