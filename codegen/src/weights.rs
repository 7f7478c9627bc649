//! Writes weight files, never holding more than the tensor at hand; what they look like is said by [`jvc_files`]. In a chunk,
//! tensors stand at their offsets, with zeros between them.

use crate::plan::{WeightTensor, Weights};
use jvc_files::{ContentHasher, HEADER_BYTES, Header};
use std::io::{self, Seek, SeekFrom, Write};

/// Name of the weight file beside a generated crate.
pub const FILE_NAME: &str = "weights.jvcw";

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
    out.write_all(&[0; HEADER_BYTES]).map_err(header_error)?;
    let content_hash = write_payload(weights, out, fill)?;
    out.seek(SeekFrom::Start(0)).map_err(header_error)?;
    let header = Header { payload_bytes: weights.payload_bytes(), content_hash };
    out.write_all(&header.encode()).map_err(header_error)?;
    out.flush().map_err(header_error)?;
    Ok(content_hash)
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
    use jvc_files::content_hash;
    use std::io::Cursor;

    fn tensor(name: &str, chunk: u32, offset: u64, bytes: u64) -> WeightTensor {
        WeightTensor { name: name.into(), elem: Elem::U8, shape: vec![bytes], chunk, offset, bytes }
    }

    fn layout() -> Weights {
        let tensors = vec![tensor("b", 1, 0, 5), tensor("a", 0, 256, 3)];
        Weights { chunk_bytes: vec![512, 8], tensors, content_hash: 0 }
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
        assert_eq!(hash, content_hash([&payload[..512], &payload[512..]]));
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
