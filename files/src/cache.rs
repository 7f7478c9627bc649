//! Cache files: the hash of whose they are and what they hold, then the payload. Whatever is off about a file, it is as good as none.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::content_hash;

/// Of the format of cache files.
const VERSION: u32 = 2;
/// Files that are being written and older than this belong to nobody any more.
const STALE: Duration = Duration::from_secs(3600);

/// Where compiled pipelines are kept between processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CacheDir {
    /// Nowhere.
    None,
    /// The user's cache folder; nowhere on systems without one.
    #[default]
    Default,
    /// A folder, made when it is not there.
    Path(PathBuf),
}

/// A file in a cache folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFile {
    path: PathBuf,
    /// All that the payload's meaning depends on.
    owner: String,
}

impl CacheDir {
    /// The file for a name (characters that may mean something to a file system become `_`). Only its owner reads it.
    pub fn file(&self, name: &str, owner: String) -> Option<CacheFile> {
        let name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
        Some(CacheFile { path: self.folder()?.join(name + ".bin"), owner })
    }

    fn folder(&self) -> Option<PathBuf> {
        let var = |name: &str| Some(PathBuf::from(std::env::var_os(name).filter(|value| !value.is_empty())?));
        let home = |folder: &str| Some(var("HOME")?.join(folder));
        let base = match self {
            CacheDir::None => None,
            CacheDir::Path(path) => return Some(path.clone()),
            CacheDir::Default if cfg!(windows) => var("LOCALAPPDATA"),
            CacheDir::Default if cfg!(target_os = "macos") => home("Library/Caches"),
            CacheDir::Default => var("XDG_CACHE_HOME").or_else(|| home(".cache")),
        };
        Some(base?.join("jvc"))
    }
}

impl CacheFile {
    /// The payload, if the file is whole and its owner's: then the owner wrote it, and can be trusted with it.
    pub fn read(&self) -> Option<Vec<u8>> {
        let file = std::fs::read(&self.path).ok()?;
        let (sum, payload) = file.split_first_chunk()?;
        (*sum == self.checksum(payload)).then(|| payload.to_vec())
    }

    /// Written beside and renamed, so that a reader finds the old file or the new one, whoever else writes it and whatever ends this.
    ///
    /// # Errors
    /// The file system's; nothing is left behind then.
    pub fn write(&self, payload: &[u8]) -> io::Result<()> {
        static TURN: AtomicU64 = AtomicU64::new(0);
        self.path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let beside = self.path.with_extension(format!("{}-{turn}.tmp", std::process::id()));
        let whole = [&self.checksum(payload), payload].concat();
        let written = std::fs::write(&beside, whole).and_then(|()| std::fs::rename(&beside, &self.path));
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        self.sweep();
        written
    }

    /// Removes what writers of this file left who were killed: no writer takes [`STALE`].
    fn sweep(&self) {
        let (Some(folder), Some(stem)) = (self.path.parent(), self.path.file_stem()) else { return };
        let start = format!("{}.", stem.to_string_lossy());
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|at| at.elapsed().ok());
            if name.starts_with(&start) && name.ends_with(".tmp") && age.is_some_and(|age| age > STALE) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    fn checksum(&self, payload: &[u8]) -> [u8; 8] {
        content_hash([format!("{VERSION} {}", self.owner).as_bytes(), payload]).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_file_of_the_same_owner_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = CacheDir::Path(folder.path().join("made/on/demand"));
        let file = |owner: &str| dir.file("a/b c-1", owner.to_owned()).expect("a folder was named");
        assert_eq!(file("me").read(), None);
        file("me").write(b"payload").expect("the folder is writable");
        assert_eq!(file("me").read().as_deref(), Some(&b"payload"[..]));
        assert_eq!(file("you").read(), None);
        let path = folder.path().join("made/on/demand/a_b_c-1.bin");
        let good = std::fs::read(&path).expect("named as told");
        for len in 0..good.len() {
            std::fs::write(&path, &good[..len]).expect("writable");
            assert_eq!(file("me").read(), None, "cut to {len}");
        }
        for bit in 0..good.len() * 8 {
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, flipped).expect("writable");
            assert_eq!(file("me").read(), None, "bit {bit}");
        }
        file("you").write(b"other").expect("writable");
        assert_eq!((file("me").read(), file("you").read()), (None, Some(b"other".to_vec())));
        assert_eq!(std::fs::read_dir(path.parent().expect("a folder")).expect("readable").count(), 1, "no leftovers");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("taken"), "").expect("writable");
        let file = CacheDir::Path(folder.path().join("taken")).file("name", String::new()).expect("a folder was named");
        assert!(file.write(b"payload").is_err());
        assert_eq!(file.read(), None);
        assert_eq!(CacheDir::None.file("name", String::new()), None);
    }
}
