//! The weight file, its hash, and the way of its bytes into device memory.
//!
//! File: the magic `JVCW`, then little-endian version (u32), payload bytes (u64), content hash (u64), zeros up to byte 64; then the
//! chunks back to back. Each chunk becomes one allocation. The hash is one of hashes: of each segment of 1 MiB of a chunk, so that
//! threads share the work. All its steps are bijections: one flipped bit always changes the result.

use std::path::Path;
use std::sync::Arc;

use ash::vk;

use crate::error::ensure;
use crate::queue::{CommandPool, Device, in_parallel};
use crate::{Buffer, Error, MemoryKind, Result, WeightsFault};

/// Bytes of a hash segment.
const SEGMENT_BYTES: usize = 1 << 20;
/// Bytes of one half of the staging ring: 16 segments.
const STAGED_BYTES: usize = SEGMENT_BYTES << 4;
/// Threads that hash and copy: more do not make a PCIe link faster.
const MAX_THREADS: usize = 16;

const MAGIC: [u8; 4] = *b"JVCW";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const LANES: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x27d4_eb2f_1656_67c5];
const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;

/// The weights a program expects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightsDesc<'a> {
    /// Bytes of each chunk; empty for a program without weights.
    pub chunk_bytes: &'a [u64],
    /// [`content_hash`] of the chunks.
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

/// Hash of chunks.
pub fn content_hash<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    hash_of_hashes(chunks.into_iter().flat_map(|chunk| chunk.chunks(SEGMENT_BYTES)).map(block_hash))
}

fn hash_of_hashes(segments: impl Iterator<Item = u64>) -> u64 {
    block_hash(&segments.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

fn block_hash(bytes: &[u8]) -> u64 {
    let mut lanes = LANES;
    let mut absorb = |block: &[u8; 32]| {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(MULTIPLIER).rotate_left(29);
        }
    };
    let (blocks, rest) = bytes.as_chunks::<32>();
    blocks.iter().for_each(&mut absorb);
    if !rest.is_empty() {
        let mut last = [0; 32];
        last[..rest.len()].copy_from_slice(rest);
        absorb(&last);
    }
    lanes.iter().fold(bytes.len() as u64, |hash, lane| {
        let mixed = (hash ^ lane).wrapping_mul(MULTIPLIER);
        mixed ^ (mixed >> 32)
    })
}

/// Maps a file read-only.
///
/// # Errors
/// Those of opening and mapping. The file must not be shortened by another process while it is mapped: the operating system then
/// ends the reader.
pub fn map_file(path: &Path) -> std::io::Result<memmap2::Mmap> {
    let file = std::fs::File::open(path)?;
    // SAFETY: the map is read-only and private to this process. A file that changes under it can at worst yield other bytes (which
    // every reader validates or hashes) or end the process, as documented.
    unsafe { memmap2::Mmap::map(&file) }
}

/// Checks the source and brings every chunk to the device.
pub(crate) fn load(device: &Arc<Device>, desc: &WeightsDesc<'_>, source: WeightSource<'_>) -> Result<Vec<Buffer>> {
    let bytes: u64 = desc.chunk_bytes.iter().sum();
    let map;
    let payload = match source {
        _ if desc.chunk_bytes.is_empty() => return Ok(Vec::new()),
        WeightSource::None => return Err(refuse(WeightsFault::Size, bytes, 0)),
        WeightSource::Bytes(file) => Payload::Bytes(check_header(file, bytes, desc.content_hash)?),
        WeightSource::Produce(produce) => Payload::Produce(produce),
        WeightSource::Path(path) => {
            map = map_file(path).map_err(|error| refuse(WeightsFault::Unreadable, path.display(), error))?;
            Payload::Bytes(check_header(&map, bytes, desc.content_hash)?)
        }
    };
    let allocate = |kind| {
        let chunks = desc.chunk_bytes.iter().map(|bytes| Buffer::new(device, *bytes, kind, "a weight chunk"));
        chunks.collect::<Result<Vec<_>>>()
    };
    let mut stream = Stream { payload, n_read: 0, hashes: Vec::new() };
    let mapped = fits_mapped(device, bytes).then(|| allocate(MemoryKind::DeviceMapped).ok()).flatten();
    let buffers = match mapped {
        Some(buffers) => {
            for ((chunk, buffer), bytes) in (0..).zip(&buffers).zip(desc.chunk_bytes) {
                stream.read(chunk, 0, &mut buffer.host()[..*bytes as usize])?;
            }
            buffers
        }
        None => {
            let buffers = allocate(MemoryKind::Device)?;
            stream.through_staging(device, &buffers, desc.chunk_bytes)?;
            buffers
        }
    };
    let got = hash_of_hashes(stream.hashes.into_iter());
    let trusted = matches!(payload, Payload::Produce(_)) || got == desc.content_hash;
    ensure(trusted, || refuse(WeightsFault::Corrupt, hex(desc.content_hash), hex(got)))?;
    Ok(buffers)
}

fn refuse(fault: WeightsFault, need: impl ToString, got: impl ToString) -> Error {
    Error::Weights { fault, need: need.to_string(), got: got.to_string() }
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// The payload of a weight file that claims to be the one needed.
fn check_header(file: &[u8], need: u64, need_hash: u64) -> Result<&[u8]> {
    let format = || {
        refuse(WeightsFault::Format, format!("JVCW version {VERSION}"), file.get(..8).unwrap_or(file).escape_ascii())
    };
    let (header, payload) = file.split_at_checked(HEADER_BYTES).ok_or_else(format)?;
    let word = |at: usize| u64::from_le_bytes(header.as_chunks().0[at]);
    let (start, declared, hash, got) = (word(0).to_le_bytes(), word(1), word(2), payload.len() as u64);
    ensure(start[..4] == MAGIC && start[4..] == VERSION.to_le_bytes(), format)?;
    ensure(hash == need_hash, || refuse(WeightsFault::Foreign, hex(need_hash), hex(hash)))?;
    ensure(declared == need && got == need, || refuse(WeightsFault::Size, need, got))?;
    Ok(payload)
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
        let segments = target.chunks_mut(SEGMENT_BYTES).zip(&mut self.hashes[n_before..]).enumerate();
        in_parallel(segments, MAX_THREADS, |(idx, (target, hash))| {
            let offset = idx * SEGMENT_BYTES;
            match payload {
                Payload::Bytes(bytes) => {
                    let segment = &bytes[first + offset..][..target.len()];
                    *hash = block_hash(segment);
                    target.copy_from_slice(segment);
                }
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
