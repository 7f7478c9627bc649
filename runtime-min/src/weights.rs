//! The weights' way into device memory, from a file in the format of [`jvc_files`] or from a function.

use std::path::Path;
use std::sync::Arc;

use ash::vk;
use jvc_files::{Header, Refusal, SEGMENT_BYTES, copy_segments};

use crate::queue::{CommandPool, Device, in_parallel};
use crate::{Buffer, MemoryKind, Result, WeightsFault};

/// Bytes of one half of the staging ring: 16 segments.
const STAGED_BYTES: usize = SEGMENT_BYTES << 4;
/// Threads that hash and copy: more do not make a PCIe link faster.
const MAX_THREADS: usize = 16;

/// The weights a program expects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightsDesc<'a> {
    /// Bytes of each chunk; empty for a program without weights.
    pub chunk_bytes: &'a [u64],
    /// [`crate::content_hash`] of the chunks.
    pub content_hash: u64,
}

/// Where the weights come from.
#[derive(Clone, Copy)]
pub enum WeightSource<'a> {
    /// The program has none.
    None,
    /// A weight file, memory-mapped while it is uploaded.
    Path(&'a Path),
    /// The bytes of a weight file.
    Bytes(&'a [u8]),
    /// A function called by several threads that writes the bytes at (chunk, offset). Its bytes are trusted, not hashed.
    Produce(&'a (dyn Fn(u32, u64, &mut [u8]) + Sync)),
}

/// Maps a file read-only.
///
/// # Errors
/// Those of opening and mapping. Another process that shortens the file while it is mapped ends the reader.
pub fn map_file(path: &Path) -> std::io::Result<memmap2::Mmap> {
    let file = std::fs::File::open(path)?;
    // SAFETY: the map is read-only and private to this process. A file that changes under it can at worst yield other bytes (which
    // every reader validates or hashes) or end the process, as documented.
    unsafe { memmap2::Mmap::map(&file) }
}

/// Checks the source and brings every chunk to the device.
pub(crate) fn load(device: &Arc<Device>, desc: &WeightsDesc<'_>, source: WeightSource<'_>) -> Result<Vec<Buffer>> {
    let header = Header { payload_bytes: desc.chunk_bytes.iter().sum(), content_hash: desc.content_hash };
    let map;
    let payload = match source {
        _ if desc.chunk_bytes.is_empty() => return Ok(Vec::new()),
        WeightSource::None => return Err(Refusal::new(WeightsFault::Size, header.payload_bytes, 0).into()),
        WeightSource::Bytes(file) => Payload::Bytes(header.payload_of(file)?),
        WeightSource::Produce(produce) => Payload::Produce(produce),
        WeightSource::Path(path) => {
            map = map_file(path).map_err(|error| Refusal::new(WeightsFault::Unreadable, path.display(), error))?;
            Payload::Bytes(header.payload_of(&map)?)
        }
    };
    let chunk = |kind| move |bytes: &u64| Buffer::new(device, *bytes, kind, "a weight chunk");
    let allocate = |kind| desc.chunk_bytes.iter().map(chunk(kind)).collect::<Result<Vec<_>>>();
    let mut stream = Stream { payload, n_read: 0, hashes: Vec::new() };
    let mapped = fits_mapped(device, header.payload_bytes).then(|| allocate(MemoryKind::DeviceMapped).ok()).flatten();
    let is_mapped = mapped.is_some();
    let buffers = mapped.map_or_else(|| allocate(MemoryKind::Device), Ok)?;
    if is_mapped {
        for ((chunk, buffer), bytes) in (0..).zip(&buffers).zip(desc.chunk_bytes) {
            stream.read(chunk, 0, &mut buffer.host()[..*bytes as usize])?;
        }
    } else {
        stream.through_staging(device, &buffers, desc.chunk_bytes)?;
    }
    if let Payload::Bytes(_) = payload {
        header.check_hash(&stream.hashes)?;
    }
    Ok(buffers)
}

/// There is host-visible device memory of which half is enough: a small window (256 MiB without resizable BAR) is left to inputs.
fn fits_mapped(device: &Device, bytes: u64) -> bool {
    let mapped = vk::MemoryPropertyFlags::DEVICE_LOCAL | vk::MemoryPropertyFlags::HOST_VISIBLE;
    let types = device.memory.memory_types_as_slice().iter().filter(|ty| ty.property_flags.contains(mapped));
    types.map(|ty| device.memory.memory_heaps[ty.heap_index as usize].size / 2).any(|half| half >= bytes)
}

#[derive(Clone, Copy)]
enum Payload<'a> {
    Bytes(&'a [u8]),
    Produce(&'a (dyn Fn(u32, u64, &mut [u8]) + Sync)),
}

/// The payload on its way, in order.
struct Stream<'a> {
    payload: Payload<'a>,
    n_read: usize,
    /// Of the segments read.
    hashes: Vec<u64>,
}

impl Stream<'_> {
    /// Fills `target` with the next bytes, which are those of a chunk from `start` on, by several threads.
    fn read(&mut self, chunk: u32, start: u64, target: &mut [u8]) -> Result<()> {
        let (payload, first, n_before) = (self.payload, self.n_read, self.hashes.len());
        self.n_read += target.len();
        self.hashes.resize(n_before + target.len().div_ceil(SEGMENT_BYTES), 0);
        let pairs = target.chunks_mut(2 * SEGMENT_BYTES).zip(self.hashes[n_before..].chunks_mut(2)).enumerate();
        in_parallel(pairs, MAX_THREADS, |(idx, (target, hashes))| {
            let offset = idx * 2 * SEGMENT_BYTES;
            match payload {
                Payload::Bytes(bytes) => copy_segments(&bytes[first + offset..][..target.len()], target, hashes),
                Payload::Produce(produce) => produce(chunk, start + offset as u64, target),
            }
            Ok(())
        })
    }

    /// Through two staging buffers: one is filled while the other one is copied.
    fn through_staging(&mut self, device: &Arc<Device>, targets: &[Buffer], chunk_bytes: &[u64]) -> Result<()> {
        let half = || Buffer::new(device, STAGED_BYTES as u64, MemoryKind::Upload, "a staging buffer");
        // Copies are waited for before the buffers go.
        let mut halves: [(Option<CommandPool>, Buffer); 2] = [(None, half()?), (None, half()?)];
        let starts = |(chunk, bytes): (u32, &u64)| (0..*bytes).step_by(STAGED_BYTES).map(move |start| (chunk, start));
        for (turn, (chunk, start)) in (0..).zip(chunk_bytes).flat_map(starts).enumerate() {
            let (pending, staging) = &mut halves[turn % 2];
            pending.take().map_or(Ok(()), CommandPool::finish)?;
            let bytes = (chunk_bytes[chunk as usize] - start).min(STAGED_BYTES as u64);
            self.read(chunk, start, &mut staging.host()[..bytes as usize])?;
            *pending = Some(targets[chunk as usize].start_copy(staging, 0, start, bytes)?);
        }
        halves.iter_mut().try_for_each(|(copy, _)| copy.take().map_or(Ok(()), CommandPool::finish))
    }
}
