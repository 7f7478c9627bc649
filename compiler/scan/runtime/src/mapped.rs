//! Mapping a file read-only: the one way in which large files (weights, archives) are read.

use memmap2::Mmap;
use std::{fs::File, io, path::Path};

/// Maps a file read-only.
///
/// # Errors
/// Those of opening and mapping. The file must not be shortened by another process while it is mapped: the operating system then
/// ends the reader.
pub fn map_file(path: &Path) -> io::Result<Mmap> {
    let file = File::open(path)?;
    // SAFETY: the map is read-only and private to this process; the one hazard, a file that changes under it, is documented and
    // can at worst yield other bytes (which every reader validates or hashes) or end the process, never break memory safety of ours
    // beyond what a concurrent writer to the same file could do.
    unsafe { Mmap::map(&file) }
}
