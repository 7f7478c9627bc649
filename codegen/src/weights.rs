//! The weight file: its header, its payload's hash, and a writer that never holds more than the tensor at hand.
//!
//! Layout, all integers little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..4 | magic `JVCW` |
//! | 4..8 | version, u32 |
//! | 8..16 | bytes of the payload, u64 |
//! | 16..24 | hash of the payload as of [`ContentHasher`], u64 |
//! | 24..64 | zeros |
//! | 64.. | the payload: chunks back to back, tensors at their offsets, zeros between them |
//!
//! The runtime reads the same layout; it shares no code with this file, only the numbers.

use crate::plan::{WeightTensor, Weights};
use std::io::{self, Seek, SeekFrom, Write};

/// Name of the weight file beside a generated crate.
pub const FILE_NAME: &str = "weights.jvcw";
/// First bytes of a weight file.
pub const MAGIC: [u8; 4] = *b"JVCW";
/// Version of the layout.
pub const VERSION: u32 = 1;
/// Bytes before the payload.
pub const HEADER_BYTES: u64 = 64;

const LANES: [u64; 4] = [0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x27D4_EB2F_1656_67C5];
const MULTIPLIER: u64 = 0x9FB2_1C65_1E98_DF25;
const ROTATION: u32 = 29;
const BLOCK_BYTES: usize = 32;
const SEGMENT_BYTES: u64 = 1 << 20;

/// Why a weight file was not written.
#[derive(Debug, thiserror::Error)]
pub enum WeightError {
    /// The file cannot be written, or a tensor's bytes cannot be had.
    #[error("tensor {name:?}: {source}")]
    Io {
        /// Tensor at hand.
        name: String,
        /// What went wrong.
        source: io::Error,
    },
    /// The layout has an overlap, or a tensor beyond its chunk.
    #[error("tensor {name:?} at {offset} of chunk {chunk} overlaps what stands before it or ends beyond the chunk")]
    Layout {
        /// Tensor.
        name: String,
        /// Its chunk.
        chunk: u32,
        /// Its offset there.
        offset: u64,
    },
    /// A tensor's source gave another number of bytes than the layout says.
    #[error("tensor {name:?} gave {given} bytes, its place has {bytes}")]
    Length {
        /// Tensor.
        name: String,
        /// Bytes of its place.
        bytes: u64,
        /// Bytes given.
        given: u64,
    },
}

/// Gives a tensor's bytes, as stored, to a writer.
pub type FillTensor<'a> = &'a mut dyn FnMut(&WeightTensor, &mut dyn Write) -> io::Result<()>;

/// Hash of a payload of one chunk, in two levels, so that the runtime hashes on several threads: each segment of 1 MiB of a chunk (the
/// last may be shorter) is hashed, and then the little-endian hashes of the segments are. Both times: four lanes over the little-endian 8-byte words in turn,
/// the last block padded with zeros, each step `lane = rotate_left((lane ^ word) · M, 29)`; then length and lanes are folded by
/// `h = (h ^ lane) · M; h ^= h >> 32`. It detects damage and mix-ups, not malice.
pub fn content_hash(bytes: &[u8]) -> u64 {
    let mut hasher = ContentHasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// [`content_hash`] of bytes that come in pieces.
#[derive(Debug, Clone, Default)]
pub struct ContentHasher {
    segment: BlockHasher,
    segments: BlockHasher,
}

impl ContentHasher {
    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = bytes.len().min((SEGMENT_BYTES - self.segment.n_bytes) as usize);
            self.segment.update(&bytes[..n]);
            bytes = &bytes[n..];
            if self.segment.n_bytes == SEGMENT_BYTES {
                self.end_segment();
            }
        }
    }

    /// The next byte is the first of a chunk.
    pub fn end_chunk(&mut self) {
        if self.segment.n_bytes > 0 {
            self.end_segment();
        }
    }

    /// The hash of all bytes taken.
    pub fn finish(mut self) -> u64 {
        self.end_chunk();
        self.segments.finish()
    }

    fn end_segment(&mut self) {
        let hash = std::mem::take(&mut self.segment).finish();
        self.segments.update(&hash.to_le_bytes());
    }
}

/// One level of the hash.
#[derive(Debug, Clone)]
struct BlockHasher {
    lanes: [u64; 4],
    pending: [u8; BLOCK_BYTES],
    n_pending: usize,
    n_bytes: u64,
}

impl Default for BlockHasher {
    fn default() -> Self {
        BlockHasher { lanes: LANES, pending: [0; BLOCK_BYTES], n_pending: 0, n_bytes: 0 }
    }
}

impl BlockHasher {
    fn update(&mut self, mut bytes: &[u8]) {
        self.n_bytes += bytes.len() as u64;
        if self.n_pending > 0 {
            let n = bytes.len().min(BLOCK_BYTES - self.n_pending);
            self.pending[self.n_pending..self.n_pending + n].copy_from_slice(&bytes[..n]);
            self.n_pending += n;
            bytes = &bytes[n..];
            if self.n_pending < BLOCK_BYTES {
                return;
            }
            let block = self.pending;
            self.block(&block);
            self.n_pending = 0;
        }
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        for block in blocks {
            self.block(block);
        }
        self.pending[..rest.len()].copy_from_slice(rest);
        self.n_pending = rest.len();
    }

    fn finish(mut self) -> u64 {
        if self.n_pending > 0 {
            let mut block = [0; BLOCK_BYTES];
            block[..self.n_pending].copy_from_slice(&self.pending[..self.n_pending]);
            self.block(&block);
        }
        self.lanes.iter().fold(self.n_bytes, |hash, lane| {
            let mixed = (hash ^ lane).wrapping_mul(MULTIPLIER);
            mixed ^ (mixed >> 32)
        })
    }

    fn block(&mut self, block: &[u8; BLOCK_BYTES]) {
        for (lane, word) in self.lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(MULTIPLIER).rotate_left(ROTATION);
        }
    }
}

impl Weights {
    /// Bytes of the payload: all chunks.
    pub fn payload_bytes(&self) -> u64 {
        self.chunk_bytes.iter().sum()
    }
}

/// Hash of the payload that `fill` would give: for [`Weights::content_hash`], without writing anything.
///
/// # Errors
/// As [`write_weights`].
pub fn hash_weights(weights: &Weights, fill: FillTensor<'_>) -> Result<u64, WeightError> {
    write_payload(weights, &mut io::sink(), fill)
}

/// Writes header and payload from the writer's start, and returns the payload's hash, which is in the header: the header is
/// written last. `fill` is asked for each tensor once, in the order of the file.
///
/// # Errors
/// A failed write, a layout that overlaps itself, a tensor of another length than its place.
pub fn write_weights<W: Write + Seek>(
    weights: &Weights,
    out: &mut W,
    fill: FillTensor<'_>,
) -> Result<u64, WeightError> {
    let header_error = |source| WeightError::Io { name: "(header)".to_string(), source };
    out.write_all(&[0; HEADER_BYTES as usize]).map_err(header_error)?;
    let hash = write_payload(weights, out, fill)?;
    out.seek(SeekFrom::Start(0)).map_err(header_error)?;
    out.write_all(&header(weights.payload_bytes(), hash)).map_err(header_error)?;
    out.flush().map_err(header_error)?;
    Ok(hash)
}

/// The header of a file with this payload.
pub fn header(payload_bytes: u64, hash: u64) -> [u8; HEADER_BYTES as usize] {
    let mut header = [0; HEADER_BYTES as usize];
    header[0..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&VERSION.to_le_bytes());
    header[8..16].copy_from_slice(&payload_bytes.to_le_bytes());
    header[16..24].copy_from_slice(&hash.to_le_bytes());
    header
}

/// Hashes and counts what passes through.
struct Payload<'a> {
    out: &'a mut dyn Write,
    hasher: ContentHasher,
    at: u64,
    /// Where chunks end.
    ends: Vec<u64>,
}

impl Write for Payload<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        self.at += n as u64;
        if self.ends.contains(&self.at) {
            self.hasher.end_chunk();
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Payload<'_> {
    fn pad_to(&mut self, end: u64) -> io::Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        while self.at < end {
            let chunk_end = self.ends.iter().copied().find(|chunk_end| *chunk_end > self.at).unwrap_or(end);
            let n = (end.min(chunk_end) - self.at).min(ZEROS.len() as u64) as usize;
            self.write_all(&ZEROS[..n])?;
        }
        Ok(())
    }
}

fn write_payload(weights: &Weights, out: &mut dyn Write, fill: FillTensor<'_>) -> Result<u64, WeightError> {
    let starts: Vec<u64> =
        weights.chunk_bytes.iter().scan(0, |at, bytes| Some(std::mem::replace(at, *at + bytes))).collect();
    let mut order: Vec<&WeightTensor> = weights.tensors.iter().collect();
    order.sort_by_key(|t| (t.chunk, t.offset, t.bytes));
    let ends = starts.iter().zip(&weights.chunk_bytes).map(|(start, bytes)| start + bytes).collect();
    let mut payload = Payload { out, hasher: ContentHasher::default(), at: 0, ends };
    for tensor in order {
        let at = place(weights, &starts, tensor).filter(|at| *at >= payload.at).ok_or_else(|| WeightError::Layout {
            name: tensor.name.clone(),
            chunk: tensor.chunk,
            offset: tensor.offset,
        })?;
        let io_error = |source| WeightError::Io { name: tensor.name.clone(), source };
        payload.pad_to(at).map_err(io_error)?;
        fill(tensor, &mut payload).map_err(io_error)?;
        let given = payload.at - at;
        if given != tensor.bytes {
            return Err(WeightError::Length { name: tensor.name.clone(), bytes: tensor.bytes, given });
        }
    }
    let end_error = |source| WeightError::Io { name: "(end of the payload)".to_string(), source };
    payload.pad_to(weights.payload_bytes()).map_err(end_error)?;
    Ok(payload.hasher.finish())
}

/// Position of a tensor in the payload, if it lies in its chunk.
fn place(weights: &Weights, starts: &[u64], tensor: &WeightTensor) -> Option<u64> {
    let chunk = tensor.chunk as usize;
    let end = tensor.offset.checked_add(tensor.bytes)?;
    (end <= *weights.chunk_bytes.get(chunk)?).then(|| starts[chunk] + tensor.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Elem;
    use std::io::Cursor;

    fn tensor(name: &str, chunk: u32, offset: u64, bytes: u64) -> WeightTensor {
        WeightTensor { name: name.into(), elem: Elem::U8, shape: vec![bytes], chunk, offset, bytes }
    }

    fn layout() -> Weights {
        let tensors = vec![tensor("b", 1, 0, 5), tensor("a", 0, 256, 3)];
        Weights { chunk_bytes: vec![512, 8], tensors, content_hash: 0 }
    }

    /// The definition, sharing no code with the incremental form.
    fn plain_hash(bytes: &[u8]) -> u64 {
        plain_hash_of(&[bytes])
    }

    fn plain_hash_of(chunks: &[&[u8]]) -> u64 {
        let segments = chunks.iter().flat_map(|chunk| chunk.chunks(1_048_576));
        one_level(&segments.flat_map(|segment| one_level(segment).to_le_bytes()).collect::<Vec<u8>>())
    }

    /// One level of it, word by word.
    fn one_level(bytes: &[u8]) -> u64 {
        let mut padded = bytes.to_vec();
        while !padded.len().is_multiple_of(32) {
            padded.push(0);
        }
        let mut lanes = [0x9E3779B97F4A7C15u64, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5];
        for (idx, word) in padded.chunks(8).enumerate() {
            let word = word.iter().rev().fold(0u64, |acc, byte| (acc << 8) | u64::from(*byte));
            lanes[idx % 4] = (lanes[idx % 4] ^ word).wrapping_mul(0x9FB21C651E98DF25).rotate_left(29);
        }
        let mut hash = bytes.len() as u64;
        for lane in lanes {
            hash = (hash ^ lane).wrapping_mul(0x9FB21C651E98DF25);
            hash ^= hash >> 32;
        }
        hash
    }

    #[test]
    fn hash_in_pieces_equals_the_definition() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 37 % 251) as u8).collect();
        for len in [0, 1, 7, 8, 31, 32, 33, 64, 257, 1000] {
            for piece in [1, 5, 32, 100] {
                let mut hasher = ContentHasher::default();
                bytes[..len].chunks(piece).for_each(|part| hasher.update(part));
                assert_eq!(hasher.finish(), plain_hash(&bytes[..len]), "length {len} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn segments_are_hashed_on_their_own() {
        let bytes: Vec<u8> = (0..2_500_001u32).map(|i| (i * 37 % 251) as u8).collect();
        for len in [1_048_575, 1_048_576, 1_048_577, 2_097_152, 2_500_001] {
            let mut hasher = ContentHasher::default();
            bytes[..len].chunks(700_001).for_each(|part| hasher.update(part));
            assert_eq!(hasher.finish(), plain_hash(&bytes[..len]), "length {len}");
        }
    }

    #[test]
    fn hash_equals_the_runtime_s() {
        // The same numbers stand in the test of runtime-min/src/weights.rs.
        let bytes: Vec<u8> = (0..2_500_001u32).map(|i| (i * 37 % 251) as u8).collect();
        let hashes = [0, 1, 100, 1_048_576, 2_500_001].map(|len| content_hash(&bytes[..len]));
        let known: [u64; 5] = [
            0x60ac_a62e_5801_b9f0,
            0xd16a_a095_924b_f04e,
            0x36dc_1215_79f5_a7f7,
            0xcd05_e39b_5afa_1960,
            0x3816_90d7_2246_2cf8,
        ];
        assert_eq!(hashes, known);
    }

    #[test]
    fn every_flipped_bit_changes_the_hash() {
        let mut bytes = vec![7u8; 100];
        let whole = content_hash(&bytes);
        for bit in 0..800 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(content_hash(&bytes), whole, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn file_has_header_padding_and_tensors_in_place() {
        let mut out = Cursor::new(Vec::new());
        let mut fill =
            |t: &WeightTensor, out: &mut dyn Write| out.write_all(&vec![t.name.as_bytes()[0]; t.bytes as usize]);
        let hash = write_weights(&layout(), &mut out, &mut fill).expect("the layout is right");
        let file = out.into_inner();
        let mut payload = vec![0u8; 520];
        payload[256..259].fill(b'a');
        payload[512..517].fill(b'b');
        assert_eq!(file[64..], payload);
        assert_eq!(hash, plain_hash_of(&[&payload[..512], &payload[512..]]));
        assert_eq!(hash, hash_weights(&layout(), &mut fill).expect("the layout is right"));
        assert_eq!(&file[..8], b"JVCW\x01\0\0\0");
        assert_eq!(file[8..16], 520u64.to_le_bytes());
        assert_eq!(file[16..24], hash.to_le_bytes());
    }

    #[test]
    fn overlap_and_wrong_length_are_errors() {
        let mut nothing = |_: &WeightTensor, _: &mut dyn Write| Ok(());
        let short = hash_weights(&layout(), &mut nothing).expect_err("no bytes were given");
        assert!(matches!(short, WeightError::Length { bytes: 3, given: 0, .. }), "{short}");
        let mut fill = |t: &WeightTensor, out: &mut dyn Write| out.write_all(&vec![1; t.bytes as usize]);
        let mut overlap = layout();
        overlap.tensors.push(tensor("c", 0, 258, 3));
        assert!(matches!(hash_weights(&overlap, &mut fill), Err(WeightError::Layout { .. })));
        let mut beyond = layout();
        beyond.tensors.push(tensor("c", 1, 6, 3));
        assert!(matches!(hash_weights(&beyond, &mut fill), Err(WeightError::Layout { .. })));
    }
}
