//! The weight file, its hash, and the way of its bytes into device memory.
//!
//! File: the magic `JVCW`, then little-endian version (u32), payload bytes (u64), content hash (u64), zeros up to byte 64; then the
//! chunks back to back. Each chunk becomes one allocation.
//!
//! Hash: each segment of 1 MiB of the payload (the last may be shorter) is hashed on its own, so that threads share the work, and
//! then the little-endian hashes of the segments are hashed in the same way: word `j` (64 bit, little-endian, zero-padded to a multiple
//! of 32 bytes) goes to lane `j % 4` by `lane = ((lane ^ word) · M) <<< 29`; then `h = length`, and each lane in turn is folded by
//! `h = (h ^ lane) · M; h ^= h >> 32`. All steps are bijections of the lane: one flipped bit always changes the result.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ash::vk;

use crate::error::{Error, WeightsError};
use crate::gpu::{Device, PendingCommands};
use crate::mapped::map_file;
use crate::memory::{Buffer, MemoryKind};

/// Bytes of a hash segment.
const SEGMENT_BYTES: usize = 1 << 20;

const MAGIC: [u8; 4] = *b"JVCW";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const LANES: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x27d4_eb2f_1656_67c5];
const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;
/// Threads that hash and copy: more do not make a PCIe link faster.
const MAX_THREADS: usize = 16;
/// Segments of one half of the staging ring.
const STAGED_SEGMENTS: u64 = 16;

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
    let mut absorb = |block: &[u8]| {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(MULTIPLIER).rotate_left(29);
        }
    };
    let mut blocks = bytes.chunks_exact(32);
    blocks.by_ref().for_each(&mut absorb);
    let rest = blocks.remainder();
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

/// Checks the source and brings every chunk to the device.
pub(crate) fn load(
    device: &Arc<Device>,
    desc: &WeightsDesc<'_>,
    source: WeightSource<'_>,
) -> Result<Vec<Buffer>, Error> {
    if desc.chunk_bytes.is_empty() {
        return Ok(Vec::new());
    }
    let need = desc.chunk_bytes.iter().sum();
    match source {
        WeightSource::None => Err(WeightsError::Size { need, got: 0 }.into()),
        WeightSource::Bytes(file) => upload(device, desc, Payload::Bytes(check_header(file, need, desc.content_hash)?)),
        WeightSource::Produce(produce) => upload(device, desc, Payload::Produce(produce)),
        WeightSource::Path(path) => {
            let io = |error: std::io::Error| WeightsError::Io {
                path: path.display().to_string(),
                reason: error.to_string(),
            };
            let file = map_file(path).map_err(io)?;
            upload(device, desc, Payload::Bytes(check_header(&file, need, desc.content_hash)?))
        }
    }
}

/// The payload of a weight file that claims to be the one needed.
fn check_header(file: &[u8], need: u64, content_hash: u64) -> Result<&[u8], WeightsError> {
    let (header, payload) = match file.split_at_checked(HEADER_BYTES) {
        Some((header, payload)) if header[..4] == MAGIC => (header, payload),
        _ => return Err(WeightsError::NotWeights),
    };
    let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes of the header"));
    let found = (word(0) >> 32) as u32;
    let (declared, hash) = (word(8), word(16));
    if found != VERSION {
        return Err(WeightsError::Version { found, supported: VERSION });
    }
    if hash != content_hash {
        return Err(WeightsError::Foreign { need: content_hash, got: hash });
    }
    let got = payload.len() as u64;
    if declared != need || got != need {
        return Err(WeightsError::Size { need, got });
    }
    Ok(payload)
}

#[derive(Clone, Copy)]
enum Payload<'a> {
    Bytes(&'a [u8]),
    Produce(&'a (dyn Fn(u32, u64, &mut [u8]) + Sync)),
}

fn upload(device: &Arc<Device>, desc: &WeightsDesc<'_>, payload: Payload<'_>) -> Result<Vec<Buffer>, Error> {
    let layout = Layout::new(desc.chunk_bytes);
    let mapped = match !device.options.staged_weights && fits_mapped(device, layout.bytes) {
        true => allocate(device, desc, MemoryKind::DeviceMapped).ok(),
        false => None,
    };
    let (buffers, hash) = match mapped {
        Some(buffers) => {
            let hash = upload_mapped(&layout, payload, &buffers);
            (buffers, hash)
        }
        None => {
            let buffers = allocate(device, desc, MemoryKind::Device)?;
            let hash = upload_staged(device, &layout, payload, &buffers)?;
            (buffers, hash)
        }
    };
    match payload {
        Payload::Bytes(_) if hash != desc.content_hash => {
            Err(WeightsError::Corrupt { need: desc.content_hash, got: hash }.into())
        }
        _ => Ok(buffers),
    }
}

fn allocate(device: &Arc<Device>, desc: &WeightsDesc<'_>, kind: MemoryKind) -> Result<Vec<Buffer>, Error> {
    desc.chunk_bytes.iter().map(|bytes| Buffer::new(device, *bytes, kind, "a weight chunk")).collect()
}

/// A small window of host-visible device memory (256 MiB without resizable BAR) is left to inputs.
fn fits_mapped(device: &Device, bytes: u64) -> bool {
    let heaps = &device.info.heaps;
    let largest = heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.bytes).max().unwrap_or(0);
    let suits = |heap: &&crate::Heap| heap.device_local && heap.host_visible && heap.bytes >= bytes;
    heaps.iter().filter(suits).any(|heap| heap.bytes == largest || heap.bytes / 2 >= bytes)
}

/// Chunks as one run of payload bytes.
struct Layout {
    /// First payload byte of each chunk.
    starts: Vec<u64>,
    bytes: u64,
}

impl Layout {
    fn new(chunk_bytes: &[u64]) -> Layout {
        let mut bytes = 0;
        let starts = chunk_bytes
            .iter()
            .map(|chunk| {
                bytes += chunk;
                bytes - chunk
            })
            .collect();
        Layout { starts, bytes }
    }

    fn n_segments(&self) -> u64 {
        self.bytes.div_ceil(SEGMENT_BYTES as u64)
    }

    fn segment(&self, index: u64) -> std::ops::Range<u64> {
        let start = index * SEGMENT_BYTES as u64;
        start..(start + SEGMENT_BYTES as u64).min(self.bytes)
    }

    /// Cuts a payload range at chunk borders: (chunk, offset in it, payload range).
    fn pieces(&self, range: std::ops::Range<u64>) -> impl Iterator<Item = (u32, u64, std::ops::Range<u64>)> {
        let ends = self.starts.iter().skip(1).copied().chain([self.bytes]);
        self.starts.iter().zip(ends).enumerate().filter_map(move |(chunk, (start, end))| {
            let piece = range.start.max(*start)..range.end.min(end);
            (!piece.is_empty()).then(|| (chunk as u32, piece.start - start, piece))
        })
    }
}

/// Reads, hashes and places segments on several threads. `place` gets each segment's first payload byte and its bytes.
fn stream(
    layout: &Layout,
    payload: Payload<'_>,
    segments: std::ops::Range<u64>,
    hashes: &[AtomicU64],
    place: impl Fn(u64, &[u8]) + Sync,
) {
    let next = AtomicU64::new(segments.start);
    let work = || {
        let mut scratch = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= segments.end {
                break;
            }
            let range = layout.segment(index);
            let bytes = match payload {
                Payload::Bytes(bytes) => &bytes[range.start as usize..range.end as usize],
                Payload::Produce(produce) => {
                    scratch.resize((range.end - range.start) as usize, 0);
                    for (chunk, offset, piece) in layout.pieces(range.clone()) {
                        let at = |byte: u64| (byte - range.start) as usize;
                        produce(chunk, offset, &mut scratch[at(piece.start)..at(piece.end)]);
                    }
                    &scratch[..]
                }
            };
            hashes[index as usize].store(block_hash(bytes), Ordering::Relaxed);
            place(range.start, bytes);
        }
    };
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    std::thread::scope(|scope| {
        for _ in 1..n_threads.min((segments.end - segments.start) as usize) {
            scope.spawn(work);
        }
        work();
    });
}

fn total(hashes: &[AtomicU64]) -> u64 {
    hash_of_hashes(hashes.iter().map(|segment| segment.load(Ordering::Relaxed)))
}

/// A mapped pointer that several threads write disjoint parts of.
#[derive(Clone, Copy)]
struct Target(NonNull<u8>);

// SAFETY: each thread writes its own segments: the parts are disjoint.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Target {
    fn of(buffer: &Buffer) -> Target {
        Target(buffer.mapped().expect("this kind of memory is mapped"))
    }

    /// # Safety
    ///
    /// The bytes fit at the offset and nobody else touches that part.
    unsafe fn put(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.as_ptr().add(offset as usize), bytes.len()) };
    }
}

fn new_hashes(layout: &Layout) -> Vec<AtomicU64> {
    (0..layout.n_segments()).map(|_| AtomicU64::new(0)).collect()
}

fn upload_mapped(layout: &Layout, payload: Payload<'_>, buffers: &[Buffer]) -> u64 {
    let targets: Vec<Target> = buffers.iter().map(Target::of).collect();
    let hashes = new_hashes(layout);
    stream(layout, payload, 0..layout.n_segments(), &hashes, |start, bytes| {
        for (chunk, offset, piece) in layout.pieces(start..start + bytes.len() as u64) {
            let part = &bytes[(piece.start - start) as usize..(piece.end - start) as usize];
            // SAFETY: a piece lies inside its chunk, and segments are disjoint.
            unsafe { targets[chunk as usize].put(offset, part) };
        }
    });
    total(&hashes)
}

/// Through two staging buffers: one is filled while the other one is copied.
fn upload_staged(
    device: &Arc<Device>,
    layout: &Layout,
    payload: Payload<'_>,
    buffers: &[Buffer],
) -> Result<u64, Error> {
    let hashes = new_hashes(layout);
    let half_bytes = STAGED_SEGMENTS * SEGMENT_BYTES as u64;
    let staging = |_| Buffer::new(device, half_bytes.min(layout.bytes), MemoryKind::Upload, "a staging buffer");
    let halves = [staging(0)?, staging(1)?];
    let mut pending: [Option<PendingCommands>; 2] = [None, None];
    for (turn, first) in (0..layout.n_segments()).step_by(STAGED_SEGMENTS as usize).enumerate() {
        let (half, slot) = (&halves[turn % 2], &mut pending[turn % 2]);
        slot.take().map_or(Ok(()), |copy| copy.finish("the weight upload"))?;
        let last = (first + STAGED_SEGMENTS).min(layout.n_segments());
        let window = layout.segment(first).start..layout.segment(last - 1).end;
        let target = Target::of(half);
        stream(layout, payload, first..last, &hashes, |start, bytes| {
            // SAFETY: the window has the size of the buffer at most, segments are disjoint, and the copy out of it was waited for.
            unsafe { target.put(start - window.start, bytes) };
        });
        *slot = Some(device.start("the weight upload", |raw, commands| {
            for (chunk, dst_offset, piece) in layout.pieces(window.clone()) {
                let size = piece.end - piece.start;
                let region = [vk::BufferCopy { src_offset: piece.start - window.start, dst_offset, size }];
                // SAFETY: both ranges lie inside their buffers, which live until the copy has been waited for.
                unsafe { raw.cmd_copy_buffer(commands, half.handle, buffers[chunk as usize].handle, &region) };
            }
        })?);
    }
    for copy in pending.into_iter().flatten() {
        copy.finish("the weight upload")?;
    }
    Ok(total(&hashes))
}
