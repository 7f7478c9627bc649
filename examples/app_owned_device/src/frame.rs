//! A picture's images and buffers on the device, and the application's commands before and after a run.
//!
//! Kernels read and write buffers by address, so that an image is copied to one before a run and from one after it: with the run
//! between the two copies, in the same submission.

use std::error::Error;

use ash::vk::{self, AccessFlags as Access, Handle as _, ImageLayout as Layout, PipelineStageFlags as Stage};

use crate::Picture;
use crate::vulkan::{Timeline, Vulkan};

const FORMAT: vk::Format = vk::Format::R8G8B8A8_UNORM;

/// An image in the application's format.
struct Image {
    raw: vk::Image,
    memory: vk::DeviceMemory,
}

/// A buffer of the application's, with the address by which kernels find it.
pub(crate) struct Buffer {
    raw: vk::Buffer,
    memory: vk::DeviceMemory,
    pub(crate) address: u64,
}

/// Everything of one picture. Its drop waits for the device.
pub(crate) struct Frame {
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// What the application draws, and where it wants the result.
    images: [Image; 2],
    /// The program's input and output.
    pub(crate) input: Buffer,
    pub(crate) output: Buffer,
    /// The host's bytes, before and after.
    host: [Buffer; 2],
    draw: vk::CommandBuffer,
    before: vk::CommandBuffer,
    after: vk::CommandBuffer,
    pool: vk::CommandPool,
    device: ash::Device,
}

impl Frame {
    /// Images of the picture's size, buffers of `max_bytes` that a session may use, and the commands.
    pub(crate) fn new(vulkan: &Vulkan, picture: &Picture, max_bytes: u64) -> Result<Frame, Box<dyn Error>> {
        let Picture { width, height, ref bytes } = *picture;
        let device = vulkan.device.clone();
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(vulkan.family);
        // SAFETY: the family is the queue's, and the pool is new.
        let (pool, commands) = unsafe {
            let pool = device.create_command_pool(&info, None)?;
            let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(3);
            (pool, device.allocate_command_buffers(&info)?)
        };
        let image = || Image::new(vulkan, width, height);
        let device_local = vk::MemoryPropertyFlags::DEVICE_LOCAL;
        let host = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let buffer = |flags, n_bytes| Buffer::new(vulkan, flags, n_bytes);
        let frame = Frame {
            width,
            height,
            images: [image()?, image()?],
            input: buffer(device_local, max_bytes)?,
            output: buffer(device_local, max_bytes)?,
            host: [buffer(host, bytes.len() as u64)?, buffer(host, bytes.len() as u64)?],
            draw: commands[0],
            before: commands[1],
            after: commands[2],
            pool,
            device,
        };
        frame.host_bytes(0).copy_from_slice(bytes);
        frame.record()?;
        Ok(frame)
    }

    /// Submits what draws the image; the timeline has the value when it is there.
    pub(crate) fn draw(&self, vulkan: &Vulkan, timeline: &Timeline, value: u64) -> Result<(), vk::Result> {
        vk::Result::from_raw(vulkan.submit(&[self.draw], None, &[(timeline.raw, value)])).result()
    }

    /// The commands of a run between those of the application.
    pub(crate) fn around(&self, run: &[u64]) -> Vec<vk::CommandBuffer> {
        let run = run.iter().map(|commands| vk::CommandBuffer::from_raw(*commands));
        [self.before].into_iter().chain(run).chain([self.after]).collect()
    }

    /// The result, when the run has finished.
    pub(crate) fn read_back(&self) -> Picture {
        Picture { width: self.width, height: self.height, bytes: self.host_bytes(1).to_vec() }
    }

    fn record(&self) -> Result<(), vk::Result> {
        let [drawn, result] = [self.images[0].raw, self.images[1].raw];
        let copy = (Stage::TRANSFER, Access::TRANSFER_WRITE);
        let read = (Stage::TRANSFER, Access::TRANSFER_READ);
        let kernels = (Stage::COMPUTE_SHADER, Access::SHADER_READ | Access::SHADER_WRITE);
        let nothing = (Stage::TOP_OF_PIPE, Access::empty());
        let region = [self.region()];
        let record = |commands, steps: &dyn Fn(vk::CommandBuffer)| {
            // SAFETY: the command buffer is new.
            unsafe { self.device.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()) }?;
            steps(commands);
            // SAFETY: it is recording.
            unsafe { self.device.end_command_buffer(commands) }
        };
        let to_image = |commands, buffer: &Buffer, image| {
            self.turn(commands, image, (Layout::UNDEFINED, Layout::TRANSFER_DST_OPTIMAL), (nothing, copy));
            // SAFETY: the command buffer is recording; the buffer has the region's bytes.
            unsafe {
                self.device.cmd_copy_buffer_to_image(
                    commands,
                    buffer.raw,
                    image,
                    Layout::TRANSFER_DST_OPTIMAL,
                    &region,
                );
            }
            self.turn(commands, image, (Layout::TRANSFER_DST_OPTIMAL, Layout::TRANSFER_SRC_OPTIMAL), (copy, read));
        };
        let to_buffer = |commands, image, buffer: &Buffer| {
            // SAFETY: as above.
            unsafe {
                self.device.cmd_copy_image_to_buffer(
                    commands,
                    image,
                    Layout::TRANSFER_SRC_OPTIMAL,
                    buffer.raw,
                    &region,
                );
            }
        };
        record(self.draw, &|commands| to_image(commands, &self.host[0], drawn))?;
        record(self.before, &|commands| {
            to_buffer(commands, drawn, &self.input);
            self.order(commands, copy, kernels);
        })?;
        record(self.after, &|commands| {
            self.order(commands, kernels, read);
            to_image(commands, &self.output, result);
            to_buffer(commands, result, &self.host[1]);
            self.order(commands, copy, (Stage::HOST, Access::HOST_READ));
        })
    }

    fn region(&self) -> vk::BufferImageCopy {
        let layers = vk::ImageSubresourceLayers::default().aspect_mask(vk::ImageAspectFlags::COLOR).layer_count(1);
        let extent = vk::Extent3D { width: self.width, height: self.height, depth: 1 };
        vk::BufferImageCopy::default().image_subresource(layers).image_extent(extent)
    }

    /// Orders all memory accesses.
    fn order(&self, commands: vk::CommandBuffer, from: (Stage, Access), to: (Stage, Access)) {
        let barrier = [vk::MemoryBarrier::default().src_access_mask(from.1).dst_access_mask(to.1)];
        let none = vk::DependencyFlags::empty();
        // SAFETY: the command buffer is recording.
        unsafe { self.device.cmd_pipeline_barrier(commands, from.0, to.0, none, &barrier, &[], &[]) };
    }

    /// Changes an image's layout.
    fn turn(
        &self,
        commands: vk::CommandBuffer,
        image: vk::Image,
        (old, new): (Layout, Layout),
        (from, to): ((Stage, Access), (Stage, Access)),
    ) {
        let whole = vk::ImageSubresourceRange::default().aspect_mask(vk::ImageAspectFlags::COLOR);
        let barrier = [vk::ImageMemoryBarrier::default()
            .image(image)
            .subresource_range(whole.level_count(1).layer_count(1))
            .old_layout(old)
            .new_layout(new)
            .src_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
            .dst_queue_family_index(vk::QUEUE_FAMILY_IGNORED)
            .src_access_mask(from.1)
            .dst_access_mask(to.1)];
        let none = vk::DependencyFlags::empty();
        // SAFETY: the command buffer is recording.
        unsafe { self.device.cmd_pipeline_barrier(commands, from.0, to.0, none, &[], &[], &barrier) };
    }

    /// The host's view of a buffer that it sees.
    #[expect(clippy::mut_from_ref, reason = "memory that the device shares is nobody's alone")]
    fn host_bytes(&self, index: usize) -> &mut [u8] {
        let n_bytes = (self.width * self.height * 4) as usize;
        let memory = self.host[index].memory;
        // SAFETY: the memory is visible to the host and mapped once at a time; no slice outlives its statement, and the device does
        // not use it meanwhile. The view ends with the memory.
        unsafe {
            let start = self.device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
            std::slice::from_raw_parts_mut(start.expect("memory that the host sees can be mapped").cast(), n_bytes)
        }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        // SAFETY: nothing is pending on an idle device.
        unsafe {
            let _ = self.device.device_wait_idle();
            self.device.destroy_command_pool(self.pool, None);
            for image in &self.images {
                self.device.destroy_image(image.raw, None);
                self.device.free_memory(image.memory, None);
            }
            for buffer in self.host.iter().chain([&self.input, &self.output]) {
                self.device.destroy_buffer(buffer.raw, None);
                self.device.free_memory(buffer.memory, None);
            }
        }
    }
}

impl Image {
    fn new(vulkan: &Vulkan, width: u32, height: u32) -> Result<Image, Box<dyn Error>> {
        let info = vk::ImageCreateInfo::default()
            .image_type(vk::ImageType::TYPE_2D)
            .format(FORMAT)
            .extent(vk::Extent3D { width, height, depth: 1 })
            .mip_levels(1)
            .array_layers(1)
            .samples(vk::SampleCountFlags::TYPE_1)
            .tiling(vk::ImageTiling::OPTIMAL)
            .usage(vk::ImageUsageFlags::TRANSFER_SRC | vk::ImageUsageFlags::TRANSFER_DST);
        // SAFETY: plain creations; the frame destroys them.
        unsafe {
            let raw = vulkan.device.create_image(&info, None)?;
            let need = vulkan.device.get_image_memory_requirements(raw);
            let memory = vulkan.allocate(need, vk::MemoryPropertyFlags::DEVICE_LOCAL, false)?;
            vulkan.device.bind_image_memory(raw, memory, 0)?;
            Ok(Image { raw, memory })
        }
    }
}

impl Buffer {
    fn new(vulkan: &Vulkan, flags: vk::MemoryPropertyFlags, n_bytes: u64) -> Result<Buffer, Box<dyn Error>> {
        use vk::BufferUsageFlags as Usage;
        let usage = Usage::TRANSFER_SRC | Usage::TRANSFER_DST | Usage::STORAGE_BUFFER | Usage::SHADER_DEVICE_ADDRESS;
        let info = vk::BufferCreateInfo::default().size(n_bytes).usage(usage);
        // SAFETY: as above.
        unsafe {
            let raw = vulkan.device.create_buffer(&info, None)?;
            let memory = vulkan.allocate(vulkan.device.get_buffer_memory_requirements(raw), flags, true)?;
            vulkan.device.bind_buffer_memory(raw, memory, 0)?;
            let info = vk::BufferDeviceAddressInfo::default().buffer(raw);
            Ok(Buffer { raw, memory, address: vulkan.device.get_buffer_device_address(&info) })
        }
    }
}
