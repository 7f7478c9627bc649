//! Weight files.
//!
//! All integers are little-endian:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..4 | magic `JVCW` |
//! | 4..8 | version, u32 |
//! | 8..16 | bytes of the payload, u64 |
//! | 16..24 | hash of the payload, u64 |
//! | 24..64 | zeros |
//! | 64.. | the payload: chunks back to back, each of which becomes one allocation |
//!
//! The hash has two levels, so that several threads share the work: each segment of [`SEGMENT_BYTES`] of a chunk (the last may be
//! shorter) is hashed, and then the little-endian hashes of the segments are. Both times: four lanes over the 8-byte words in turn, the
//! last block padded with zeros, each step `lane = rotate_left((lane ^ word) · M, 29)`; then length and lanes are folded by
//! `h = (h ^ lane) · M; h ^= h >> 32`. All steps are bijections: one flipped bit always changes the result. It detects damage and
//! mix-ups, not malice.

use std::fmt;

/// First bytes of a weight file.
const MAGIC: [u8; 4] = *b"JVCW";
/// Of the layout and the hash.
const VERSION: u32 = 1;
/// Bytes before the payload.
pub const HEADER_BYTES: usize = 64;
/// Bytes of a segment of the hash.
pub const SEGMENT_BYTES: usize = 1 << 20;

const LANES: [u64; 4] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x27d4_eb2f_1656_67c5];
const MULTIPLIER: u64 = 0x9fb2_1c65_1e98_df25;
const ROTATION: u32 = 29;
const BLOCK_BYTES: usize = 32;

/// What the header says of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Bytes of all chunks.
    pub payload_bytes: u64,
    /// [`content_hash`] of the chunks.
    pub content_hash: u64,
}

/// Why a weight file was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// It cannot be opened or mapped.
    Unreadable,
    /// It does not start as weight files of this version do.
    Format,
    /// It has another size.
    Size,
    /// Its header has another hash.
    Foreign,
    /// Its payload has another hash than its header.
    Corrupt,
}

impl fmt::Display for Fault {
    /// Words that complete a sentence on weights.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Unreadable => "that cannot be opened or mapped",
            Fault::Format => "that do not start as weight files do, in the version that this runtime reads",
            Fault::Size => "of another size",
            Fault::Foreign => "made for another program or by another compilation, by the header's hash",
            Fault::Corrupt => "with flipped or overwritten bytes, by the payload's hash",
        })
    }
}

/// A fault, with what was needed and what was there instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "said above")]
pub struct Refusal {
    pub fault: Fault,
    pub need: String,
    pub got: String,
}

impl Refusal {
    /// Any values that can be printed.
    pub fn new(fault: Fault, need: impl ToString, got: impl ToString) -> Refusal {
        Refusal { fault, need: need.to_string(), got: got.to_string() }
    }
}

impl Header {
    /// The bytes before the payload.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.content_hash.to_le_bytes());
        bytes
    }

    /// The payload of a file that claims to be the one with this header, and is as long. [`Header::check_hash`] tells whether the
    /// claim is true.
    ///
    /// # Errors
    /// [`Fault::Format`], [`Fault::Foreign`], [`Fault::Size`].
    pub fn payload_of<'a>(&self, file: &'a [u8]) -> Result<&'a [u8], Refusal> {
        let format = || {
            let start = file.get(..8).unwrap_or(file).escape_ascii();
            Refusal::new(Fault::Format, format!("{} version {VERSION}", MAGIC.escape_ascii()), start)
        };
        let (header, payload) = file.split_first_chunk::<HEADER_BYTES>().ok_or_else(format)?;
        if header[..8] != self.encode()[..8] {
            return Err(format());
        }
        let word = |at: usize| u64::from_le_bytes(header.as_chunks().0[at]);
        let (declared, hash, got) = (word(1), word(2), payload.len() as u64);
        if hash != self.content_hash {
            return Err(Refusal::new(Fault::Foreign, hex(self.content_hash), hex(hash)));
        }
        if declared != self.payload_bytes || got != self.payload_bytes {
            return Err(Refusal::new(Fault::Size, self.payload_bytes, got));
        }
        Ok(payload)
    }

    /// Compares with the hashes of all segments of a payload, in order: [`segment_hash`] of each.
    ///
    /// # Errors
    /// [`Fault::Corrupt`].
    pub fn check_hash(&self, segments: &[u64]) -> Result<(), Refusal> {
        let got = hash_of_hashes(segments.iter().copied());
        let corrupt = || Refusal::new(Fault::Corrupt, hex(self.content_hash), hex(got));
        if got == self.content_hash { Ok(()) } else { Err(corrupt()) }
    }
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// Hash of a payload, chunk by chunk.
pub fn content_hash<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    hash_of_hashes(chunks.into_iter().flat_map(|chunk| chunk.chunks(SEGMENT_BYTES)).map(segment_hash))
}

/// Hash of one segment.
pub fn segment_hash(bytes: &[u8]) -> u64 {
    let mut hasher = BlockHasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// Copies segments, of which the last may be shorter, and hashes each on the way, so that memory is read once; two at a time, since the
/// steps of one hash wait for each other, and with them would the loads behind.
///
/// # Panics
/// When the lengths differ, or there are fewer hashes than segments.
pub fn copy_segments(from: &[u8], to: &mut [u8], hashes: &mut [u64]) {
    assert_eq!(
        (from.len(), from.len().div_ceil(SEGMENT_BYTES)),
        (to.len(), hashes.len()),
        "each segment has its place"
    );
    let pairs = from.chunks(2 * SEGMENT_BYTES).zip(to.chunks_mut(2 * SEGMENT_BYTES)).zip(hashes.chunks_mut(2));
    for ((from, to), hashes) in pairs {
        let n = from.len().min(SEGMENT_BYTES);
        let ((from_a, from_b), (to_a, to_b)) = (from.split_at(n), to.split_at_mut(n));
        hashes.copy_from_slice(&copy_two((from_a, to_a), (from_b, to_b))[..hashes.len()]);
    }
}

/// Copies two segments side by side; gives their hashes.
fn copy_two(a: (&[u8], &mut [u8]), b: (&[u8], &mut [u8])) -> [u64; 2] {
    let n = b.0.len() / BLOCK_BYTES * BLOCK_BYTES;
    let (mut lanes_a, mut lanes_b) = (LANES, LANES);
    let (from_a, from_b) = (a.0[..n].as_chunks().0, b.0[..n].as_chunks().0);
    let (to_a, to_b) = (a.1[..n].as_chunks_mut().0, b.1[..n].as_chunks_mut().0);
    for ((from_a, to_a), (from_b, to_b)) in from_a.iter().zip(to_a).zip(from_b.iter().zip(to_b)) {
        absorb(&mut lanes_a, from_a);
        *to_a = *from_a;
        absorb(&mut lanes_b, from_b);
        *to_b = *from_b;
    }
    [(lanes_a, a), (lanes_b, b)].map(|(lanes, (from, to))| {
        to[n..].copy_from_slice(&from[n..]);
        let mut hasher = BlockHasher { lanes, n_bytes: n, ..BlockHasher::default() };
        hasher.update(&from[n..]);
        hasher.finish()
    })
}

fn hash_of_hashes(segments: impl Iterator<Item = u64>) -> u64 {
    let mut hasher = BlockHasher::default();
    segments.for_each(|hash| hasher.update(&hash.to_le_bytes()));
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
            let n = bytes.len().min(SEGMENT_BYTES - self.segment.n_bytes);
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
    n_bytes: usize,
}

impl Default for BlockHasher {
    fn default() -> Self {
        BlockHasher { lanes: LANES, pending: [0; BLOCK_BYTES], n_pending: 0, n_bytes: 0 }
    }
}

impl BlockHasher {
    fn update(&mut self, mut bytes: &[u8]) {
        self.n_bytes += bytes.len();
        if self.n_pending > 0 {
            let n = bytes.len().min(BLOCK_BYTES - self.n_pending);
            self.pending[self.n_pending..self.n_pending + n].copy_from_slice(&bytes[..n]);
            self.n_pending += n;
            bytes = &bytes[n..];
            if self.n_pending < BLOCK_BYTES {
                return;
            }
            absorb(&mut self.lanes, &self.pending);
            self.n_pending = 0;
        }
        let (blocks, rest) = bytes.as_chunks();
        // A local copy stays in registers.
        let mut lanes = self.lanes;
        blocks.iter().for_each(|block| absorb(&mut lanes, block));
        self.lanes = lanes;
        self.pending[..rest.len()].copy_from_slice(rest);
        self.n_pending = rest.len();
    }

    fn finish(mut self) -> u64 {
        if self.n_pending > 0 {
            self.pending[self.n_pending..].fill(0);
            absorb(&mut self.lanes, &self.pending);
        }
        self.lanes.iter().fold(self.n_bytes as u64, |hash, lane| {
            let mixed = (hash ^ lane).wrapping_mul(MULTIPLIER);
            mixed ^ (mixed >> 32)
        })
    }
}

fn absorb(lanes: &mut [u64; 4], block: &[u8; BLOCK_BYTES]) {
    for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
        *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(MULTIPLIER).rotate_left(ROTATION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, sharing no code with the incremental form.
    fn plain_hash(chunks: &[&[u8]]) -> u64 {
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

    fn sample(len: u32) -> Vec<u8> {
        (0..len).map(|i| (i * 37 % 251) as u8).collect()
    }

    fn in_pieces(bytes: &[u8], piece: usize) -> u64 {
        let mut hasher = ContentHasher::default();
        bytes.chunks(piece).for_each(|part| hasher.update(part));
        hasher.finish()
    }

    #[test]
    fn hash_in_pieces_equals_the_definition() {
        let bytes = sample(1000);
        for len in [0, 1, 7, 8, 31, 32, 33, 64, 257, 1000] {
            for piece in [1, 5, 32, 100] {
                assert_eq!(in_pieces(&bytes[..len], piece), plain_hash(&[&bytes[..len]]), "{len} in pieces of {piece}");
            }
            assert_eq!(content_hash([&bytes[..len]]), plain_hash(&[&bytes[..len]]), "{len} at once");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "hashes megabytes")]
    fn segments_are_hashed_on_their_own() {
        let bytes = sample(2_500_001);
        for len in [1_048_575, 1_048_576, 1_048_577, 2_097_152, 2_500_001] {
            assert_eq!(in_pieces(&bytes[..len], 700_001), plain_hash(&[&bytes[..len]]), "length {len}");
            assert_eq!(content_hash([&bytes[..len]]), plain_hash(&[&bytes[..len]]), "length {len}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "hashes megabytes")]
    fn copies_are_hashed_segment_by_segment() {
        let bytes = sample(3 * 1_048_576 + 77);
        for len in [0, 1, 31, 100, 1_048_576, 1_048_577, 2 * 1_048_576 - 1, 2 * 1_048_576, 3 * 1_048_576, bytes.len()] {
            let (mut copy, mut hashes) = (vec![0; len], vec![0; len.div_ceil(1_048_576)]);
            copy_segments(&bytes[..len], &mut copy, &mut hashes);
            assert!(copy == bytes[..len], "length {len}");
            assert_eq!(hashes, bytes[..len].chunks(1_048_576).map(one_level).collect::<Vec<_>>(), "length {len}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "hashes megabytes")]
    fn chunks_start_segments() {
        let bytes = sample(1_500_000);
        let chunks = [&bytes[..100], &bytes[100..1_400_000], &bytes[1_400_000..]];
        let mut hasher = ContentHasher::default();
        for chunk in chunks {
            hasher.update(chunk);
            hasher.end_chunk();
        }
        assert_eq!(hasher.finish(), plain_hash(&chunks));
        assert_eq!(content_hash(chunks), plain_hash(&chunks));
        assert_ne!(content_hash(chunks), content_hash([&bytes[..]]));
    }

    #[test]
    #[cfg_attr(miri, ignore = "hashes megabytes")]
    fn hashes_stay_what_files_already_hold() {
        let bytes = sample(2_500_001);
        let hashes = [0, 1, 100, 1_048_576, 2_500_001].map(|len| content_hash([&bytes[..len]]));
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
        let mut bytes = [7u8; 100];
        let whole = content_hash([&bytes[..]]);
        for bit in 0..800 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(content_hash([&bytes[..]]), whole, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_others_are_refused() {
        let header = Header { payload_bytes: 5, content_hash: 0x0123_4567_89ab_cdef };
        let file = [&header.encode()[..], b"bytes"].concat();
        assert_eq!(file[..24], *b"JVCW\x01\0\0\0\x05\0\0\0\0\0\0\0\xef\xcd\xab\x89\x67\x45\x23\x01");
        assert_eq!((&file[24..64], file.len()), (&[0; 40][..], 69));
        assert_eq!(header.payload_of(&file), Ok(&b"bytes"[..]));
        let refusal = |file: &[u8]| header.payload_of(file).expect_err("not this file");
        assert_eq!(refusal(b"").fault, Fault::Format);
        assert_eq!(refusal(&file[..63]).fault, Fault::Format);
        assert_eq!(refusal(&file[..68]), Refusal::new(Fault::Size, 5, 4));
        assert_eq!(refusal(&[&file[..], b"!"].concat()), Refusal::new(Fault::Size, 5, 6));
        let changed = |at: usize| [&file[..at], &[file[at] ^ 1], &file[at + 1..]].concat();
        assert!((0..8).all(|at| refusal(&changed(at)).fault == Fault::Format));
        assert!((8..16).all(|at| refusal(&changed(at)).fault == Fault::Size));
        assert!((16..24).all(|at| refusal(&changed(at)).fault == Fault::Foreign));
        let corrupt = header.check_hash(&[segment_hash(b"bytes")]).expect_err("a made-up hash");
        assert_eq!((corrupt.fault, corrupt.need.as_str()), (Fault::Corrupt, "0123456789abcdef"));
        let hash = content_hash([&b"bytes"[..]]);
        assert_eq!(Header { content_hash: hash, ..header }.check_hash(&[segment_hash(b"bytes")]), Ok(()));
    }
}
