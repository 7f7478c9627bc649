//! The weight file, its hash, and the way of its bytes into device memory.
//!
//! File: the magic `JVCW`, then little-endian version (u32), payload bytes (u64), content hash (u64), zeros up to byte 64; then the
//! chunks back to back. Each chunk becomes one allocation. The hash is one of hashes: of each segment of 1 MiB, so that threads
//! share the work. All its steps are bijections: one flipped bit always changes the result.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ash::vk;

use crate::error::{Error, WeightsFault};
use crate::memory::{Buffer, HostPointer, MemoryKind};
use crate::queue::{CommandPool, Device};

/// Bytes of a hash segment.
const SEGMENT_BYTES: usize = 1 << 20;

const MAGIC: [u8; 4] = *b"JVCW";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const LANES: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x27d4_eb2f_1656_67c5];
const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;
/// Threads that hash and copy: more do not make a PCIe link faster.
const MAX_THREADS: usize = 16;
/// Bytes of one half of the staging ring: 16 segments.
const STAGED_BYTES: usize = SEGMENT_BYTES << 4;

/// The weights a program expects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WeightsDesc<'a> {
    /// Bytes of each chunk; empty for a program without weights.
    pub chunk_bytes: &'a [u64],
    /// [`content_hash`] of the payload.
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

/// Hash of a payload.
pub fn content_hash(payload: &[u8]) -> u64 {
    hash_of_hashes(payload.chunks(SEGMENT_BYTES).map(block_hash))
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

#[derive(Clone, Copy)]
enum Payload<'a> {
    Bytes(&'a [u8]),
    Produce(&'a (dyn Fn(u32, u64, &mut [u8]) + Sync)),
}

/// Checks the source and brings every chunk to the device.
pub(crate) fn load(
    device: &Arc<Device>,
    desc: &WeightsDesc<'_>,
    source: WeightSource<'_>,
) -> Result<Vec<Buffer>, Error> {
    let map;
    let payload = match source {
        _ if desc.chunk_bytes.is_empty() => return Ok(Vec::new()),
        WeightSource::None => return Err(refuse(WeightsFault::Size, desc.chunk_bytes.iter().sum::<u64>(), 0)),
        WeightSource::Bytes(file) => Payload::Bytes(check_header(file, desc)?),
        WeightSource::Produce(produce) => Payload::Produce(produce),
        WeightSource::Path(path) => {
            map = map_file(path).map_err(|error| refuse(WeightsFault::Unreadable, path.display(), error))?;
            Payload::Bytes(check_header(&map, desc)?)
        }
    };
    let allocate = |kind| -> Result<Vec<Buffer>, Error> {
        desc.chunk_bytes.iter().map(|bytes| Buffer::new(device, *bytes, kind, "a weight chunk")).collect()
    };
    let stream = Stream::new(desc.chunk_bytes, payload);
    let mapped = fits_mapped(device, stream.bytes).then(|| allocate(MemoryKind::DeviceMapped).ok()).flatten();
    let buffers = match mapped {
        Some(buffers) => stream.to_mapped(buffers),
        None => stream.through_staging(device, allocate(MemoryKind::Device)?)?,
    };
    let got = hash_of_hashes(stream.hashes.iter().map(|segment| segment.load(Ordering::Relaxed)));
    match payload {
        Payload::Bytes(_) if got != desc.content_hash => {
            Err(refuse(WeightsFault::Corrupt, hex(desc.content_hash), hex(got)))
        }
        _ => Ok(buffers),
    }
}

/// Maps a file read-only.
///
/// # Errors
/// Those of opening and mapping. The file must not be shortened by another process while it is mapped: the operating system then
/// ends the reader.
pub fn map_file(path: &Path) -> std::io::Result<memmap2::Mmap> {
    let file = std::fs::File::open(path)?;
    // SAFETY: the map is read-only and private to this process; the one hazard, a file that changes under it, is documented and
    // can at worst yield other bytes (which every reader validates or hashes) or end the process, never break memory safety of ours
    // beyond what a concurrent writer to the same file could do.
    unsafe { memmap2::Mmap::map(&file) }
}

fn refuse(fault: WeightsFault, need: impl ToString, got: impl ToString) -> Error {
    Error::Weights { fault, need: need.to_string(), got: got.to_string() }
}

/// The payload of a weight file that claims to be the one needed.
fn check_header<'a>(file: &'a [u8], desc: &WeightsDesc<'_>) -> Result<&'a [u8], Error> {
    let format = || {
        refuse(WeightsFault::Format, format!("JVCW version {VERSION}"), file.get(..8).unwrap_or(file).escape_ascii())
    };
    let (header, payload) = file.split_at_checked(HEADER_BYTES).ok_or_else(format)?;
    let (need, got) = (desc.chunk_bytes.iter().sum::<u64>(), payload.len() as u64);
    let word = |at: usize| u64::from_le_bytes(header.as_chunks().0[at]);
    let (start, declared, hash) = (word(0).to_le_bytes(), word(1), word(2));
    if start[..4] != MAGIC || start[4..] != VERSION.to_le_bytes() {
        return Err(format());
    }
    if hash != desc.content_hash {
        return Err(refuse(WeightsFault::Foreign, hex(desc.content_hash), hex(hash)));
    }
    if declared != need || got != need {
        return Err(refuse(WeightsFault::Size, need, got));
    }
    Ok(payload)
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// A small window of host-visible device memory (256 MiB without resizable BAR) is left to inputs.
fn fits_mapped(device: &Device, bytes: u64) -> bool {
    use vk::MemoryPropertyFlags as P;
    let (heaps, types) = (device.memory.memory_heaps_as_slice(), device.memory.memory_types_as_slice());
    let local = heaps.iter().filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let largest = local.map(|heap| heap.size).max().unwrap_or(0);
    let visible = types.iter().filter(|ty| ty.property_flags.contains(P::DEVICE_LOCAL | P::HOST_VISIBLE));
    let mut sizes = visible.map(|ty| heaps[ty.heap_index as usize].size);
    sizes.any(|size| size >= bytes && (size == largest || size / 2 >= bytes))
}

/// The payload on its way: read, hashed and placed in segments by several threads.
struct Stream<'a> {
    chunk_bytes: &'a [u64],
    payload: Payload<'a>,
    bytes: u64,
    hashes: Vec<AtomicU64>,
}

impl<'a> Stream<'a> {
    fn new(chunk_bytes: &'a [u64], payload: Payload<'a>) -> Stream<'a> {
        let bytes: u64 = chunk_bytes.iter().sum();
        let hashes = (0..bytes.div_ceil(SEGMENT_BYTES as u64)).map(|_| AtomicU64::new(0)).collect();
        Stream { chunk_bytes, payload, bytes, hashes }
    }

    /// Cuts a payload range at chunk borders: (chunk, offset in it, part of the range).
    fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (usize, u64, Range<usize>)> {
        let mut end = 0;
        self.chunk_bytes.iter().enumerate().filter_map(move |(chunk, bytes)| {
            let start = end;
            end += bytes;
            let piece = range.start.max(start)..range.end.min(end);
            let part = || (piece.start - range.start) as usize..(piece.end - range.start) as usize;
            (piece.start < piece.end).then(|| (chunk, piece.start - start, part()))
        })
    }

    /// Reads and hashes the segments of a window; `place` gets each one's first payload byte and its bytes.
    fn run(&self, window: Range<u64>, place: impl Fn(u64, &[u8]) + Sync) {
        let next = AtomicU64::new(window.start);
        let work = || {
            let mut scratch = Vec::new();
            loop {
                let start = next.fetch_add(SEGMENT_BYTES as u64, Ordering::Relaxed);
                if start >= window.end {
                    break;
                }
                let range = start..window.end.min(start + SEGMENT_BYTES as u64);
                let bytes = match self.payload {
                    Payload::Bytes(bytes) => &bytes[range.start as usize..range.end as usize],
                    Payload::Produce(produce) => {
                        scratch.resize((range.end - range.start) as usize, 0);
                        for (chunk, offset, part) in self.pieces(range) {
                            produce(chunk as u32, offset, &mut scratch[part]);
                        }
                        &scratch[..]
                    }
                };
                self.hashes[start as usize / SEGMENT_BYTES].store(block_hash(bytes), Ordering::Relaxed);
                place(start, bytes);
            }
        };
        let n_segments = (window.end - window.start).div_ceil(SEGMENT_BYTES as u64) as usize;
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS).min(n_segments);
        std::thread::scope(|scope| {
            for _ in 1..n_threads {
                scope.spawn(work);
            }
            work();
        });
    }

    fn to_mapped(&self, buffers: Vec<Buffer>) -> Vec<Buffer> {
        let targets: Vec<HostPointer> = buffers.iter().map(Buffer::host_pointer).collect();
        self.run(0..self.bytes, |start, bytes| {
            for (chunk, offset, part) in self.pieces(start..start + bytes.len() as u64) {
                // SAFETY: a piece lies inside its chunk, and segments are disjoint.
                unsafe { targets[chunk].put(offset, &bytes[part]) };
            }
        });
        buffers
    }

    /// Through two staging buffers: one is filled while the other one is copied.
    fn through_staging(&self, device: &Arc<Device>, buffers: Vec<Buffer>) -> Result<Vec<Buffer>, Error> {
        let half_bytes = self.bytes.min(STAGED_BYTES as u64);
        let half = || Buffer::new(device, half_bytes, MemoryKind::Upload, "a staging buffer");
        // Copies are waited for before the buffers go.
        let mut halves: [(Option<CommandPool>, Buffer); 2] = [(None, half()?), (None, half()?)];
        for (turn, first) in (0..self.bytes).step_by(STAGED_BYTES).enumerate() {
            let (pending, staging) = &mut halves[turn % 2];
            pending.take().map_or(Ok(()), CommandPool::finish)?;
            let (window, target) = (first..self.bytes.min(first + STAGED_BYTES as u64), staging.host_pointer());
            self.run(window.clone(), |start, bytes| {
                // SAFETY: the window has the size of the buffer at most, segments are disjoint, and the copy out of it was waited for.
                unsafe { target.put(start - first, bytes) };
            });
            *pending = Some(device.start("the weight upload", |raw, commands| {
                for (chunk, dst_offset, part) in self.pieces(window) {
                    let region =
                        [vk::BufferCopy { src_offset: part.start as u64, dst_offset, size: part.len() as u64 }];
                    // SAFETY: both ranges lie inside their buffers, which live until the copy has been waited for.
                    unsafe { raw.cmd_copy_buffer(commands, staging.handle, buffers[chunk].handle, &region) };
                }
            })?);
        }
        halves.iter_mut().try_for_each(|(copy, _)| copy.take().map_or(Ok(()), CommandPool::finish))?;
        Ok(buffers)
    }
}
