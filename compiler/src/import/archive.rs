//! The `.pt2` container: a ZIP archive whose stored entries are slices of the mapped file.
//!
//! Names are only ever looked up, never used as paths. Data ranges are checked against the file and against each other; checksums
//! are verified for everything but weights, whose pages stay untouched until they are used.

use super::error::ImportError;
use super::limits::Limits;
use super::weights::Storage;
use flate2::{Crc, read::DeflateDecoder};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::rc::Rc;
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

/// An opened archive.
pub(super) struct Archive {
    bytes: Storage,
    entries: BTreeMap<String, Entry>,
    /// Decompressed bytes that may still come out of this archive and of those inside it.
    inflate_budget: Rc<Cell<u64>>,
}

struct Entry {
    range: Range<usize>,
    size: u64,
    stored: bool,
    crc: u32,
}

impl Archive {
    /// Reads the central directory.
    pub(super) fn open(bytes: Storage, limits: &Limits) -> Result<Archive, ImportError> {
        const FLOOR: u64 = 64 << 20;
        let budget =
            (bytes.bytes().len() as u64).saturating_mul(limits.inflation).max(FLOOR).min(limits.inflated_bytes);
        Archive::open_within(bytes, limits, Rc::new(Cell::new(budget)))
    }

    /// Reads the central directory of an archive that is an entry of this one.
    pub(super) fn open_inner(&self, bytes: Storage, limits: &Limits) -> Result<Archive, ImportError> {
        Archive::open_within(bytes, limits, self.inflate_budget.clone())
    }

    fn open_within(bytes: Storage, limits: &Limits, inflate_budget: Rc<Cell<u64>>) -> Result<Archive, ImportError> {
        let entries = read_directory(bytes.bytes(), limits)?;
        check_disjoint(&entries)?;
        Ok(Archive { bytes, entries, inflate_budget })
    }

    /// Bytes of the file.
    pub(super) fn n_bytes(&self) -> u64 {
        self.bytes.bytes().len() as u64
    }

    /// Names of all entries, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// True if there is such an entry.
    pub(super) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// An entry's bytes, not checked against their checksum: for weights.
    pub(super) fn payload(&self, name: &str) -> Result<Storage, ImportError> {
        let entry = self.entries.get(name).ok_or_else(|| bad(name, "is missing"))?;
        if entry.stored {
            return Ok(self.bytes.slice(entry.range.clone()));
        }
        let bytes = self.inflate(name, entry)?;
        check_crc(name, entry, &bytes)?;
        Ok(Storage::owned(bytes))
    }

    /// An entry's bytes, at most `max`, checked against their checksum.
    pub(super) fn text(&self, name: &str, max: u64) -> Result<Storage, ImportError> {
        let entry = self.entries.get(name).ok_or_else(|| bad(name, "is missing"))?;
        ImportError::limit("bytes of an archive entry", entry.size, max)?;
        let bytes = self.payload(name)?;
        if entry.stored {
            check_crc(name, entry, bytes.bytes())?;
        }
        Ok(bytes)
    }

    fn inflate(&self, name: &str, entry: &Entry) -> Result<Vec<u8>, ImportError> {
        if entry.size > self.inflate_budget.get() {
            let budget = self.inflate_budget.get();
            return Err(bad(
                name,
                &format!("decompresses to {} bytes, over the {budget} that are left to this file", entry.size),
            ));
        }
        let mut out = vec![];
        let packed = &self.bytes.bytes()[entry.range.clone()];
        DeflateDecoder::new(packed)
            .take(entry.size + 1)
            .read_to_end(&mut out)
            .map_err(|e| bad(name, &format!("cannot be decompressed: {e}")))?;
        if out.len() as u64 != entry.size {
            return Err(bad(name, &format!("decompresses to other than the {} bytes that it declares", entry.size)));
        }
        self.inflate_budget.set(self.inflate_budget.get() - entry.size);
        Ok(out)
    }
}

fn bad(name: &str, why: &str) -> ImportError {
    ImportError::Entry { name: name.chars().take(200).collect(), why: why.to_string() }
}

fn check_crc(name: &str, entry: &Entry, bytes: &[u8]) -> Result<(), ImportError> {
    let mut crc = Crc::new();
    crc.update(bytes);
    if crc.sum() == entry.crc { Ok(()) } else { Err(bad(name, "its checksum does not match: the file is damaged")) }
}

fn read_directory(bytes: &[u8], limits: &Limits) -> Result<BTreeMap<String, Entry>, ImportError> {
    // Nothing stands in front of the archive; guessing an offset mistakes bytes of weights for headers.
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let zip = ZipArchive::with_config(config, Cursor::new(bytes));
    let mut zip = zip.map_err(|e| ImportError::Zip(e.to_string()))?;
    ImportError::limit("archive entries", zip.len() as u64, limits.entries)?;
    if zip.has_duplicate_names() {
        return Err(ImportError::Zip("two entries have the same name".into()));
    }
    let mut entries = BTreeMap::new();
    for i in 0..zip.len() {
        if let Some((name, entry)) = read_entry(&mut zip, i, bytes.len(), limits)?
            && entries.insert(name.clone(), entry).is_some()
        {
            return Err(ImportError::Duplicate { what: "archive entry", name });
        }
    }
    Ok(entries)
}

fn read_entry(
    zip: &mut ZipArchive<Cursor<&[u8]>>,
    index: usize,
    file_bytes: usize,
    limits: &Limits,
) -> Result<Option<(String, Entry)>, ImportError> {
    let file = zip.by_index_raw(index).map_err(|e| ImportError::Zip(e.to_string()))?;
    ImportError::limit("bytes of an entry name", file.name_raw().len() as u64, limits.name_bytes)?;
    let name = std::str::from_utf8(file.name_raw())
        .map_err(|_| ImportError::Zip("an entry name is not UTF-8".into()))?
        .to_string();
    check_name(&name)?;
    if name.ends_with('/') {
        return Ok(None);
    }
    if file.encrypted() {
        return Err(bad(&name, "is encrypted"));
    }
    let stored = file.compression() == CompressionMethod::STORE;
    if !stored && file.compression() != CompressionMethod::DEFLATE {
        return Err(bad(&name, &format!("uses {} (only stored and deflated are read)", file.compression())));
    }
    let start = file.data_start().ok_or_else(|| bad(&name, "has no data"))?;
    let end = start.checked_add(file.compressed_size()).filter(|&e| e <= file_bytes as u64);
    let end = end.ok_or_else(|| bad(&name, "reaches beyond the end of the file"))?;
    if stored && file.size() != file.compressed_size() {
        return Err(bad(&name, "is stored, but its two sizes differ"));
    }
    Ok(Some((name, Entry { range: start as usize..end as usize, size: file.size(), stored, crc: file.crc32() })))
}

/// Refuses names that would be dangerous as paths, although none is used as one.
fn check_name(name: &str) -> Result<(), ImportError> {
    let traversal = name.split(['/', '\\']).any(|part| part == "..");
    if traversal || name.starts_with(['/', '\\']) || name.contains('\0') || name.is_empty() {
        return Err(bad(name, "its name is not a relative path"));
    }
    Ok(())
}

fn check_disjoint(entries: &BTreeMap<String, Entry>) -> Result<(), ImportError> {
    let mut ranges: Vec<(&Range<usize>, &str)> =
        entries.iter().filter(|(_, e)| !e.range.is_empty()).map(|(n, e)| (&e.range, n.as_str())).collect();
    ranges.sort_by_key(|(r, _)| r.start);
    match ranges.windows(2).find(|w| w[0].0.end > w[1].0.start) {
        Some(w) => Err(bad(w[1].1, &format!("its bytes overlap those of `{}`", w[0].1))),
        None => Ok(()),
    }
}
