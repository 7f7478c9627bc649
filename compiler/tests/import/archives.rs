//! Archives for tests: the committed ones, taken apart and put together again.

use flate2::Crc;
use flate2::read::GzDecoder;
use flate2::write::{DeflateEncoder, GzEncoder};
use jvc::import::limits::{LIMITS, Limits};
use jvc::import::weights::Storage;
use jvc::import::{ImportError, Program};
use std::io::{Read, Write};
use std::path::Path;

/// A committed file, unpacked.
pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/import").join(format!("{name}.gz"));
    let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut out = vec![];
    GzDecoder::new(packed.as_slice()).read_to_end(&mut out).expect("a gzip file");
    out
}

/// A committed text, unpacked.
pub(crate) fn text(name: &str) -> String {
    String::from_utf8(fixture(name)).expect("UTF-8")
}

/// The one program of a committed archive.
pub(crate) fn read(name: &str) -> Program {
    let mut programs = read_bytes(name, fixture(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(programs.len(), 1, "{name}");
    programs.remove(0)
}

/// Programs of a file in memory.
pub(crate) fn read_bytes(name: &str, bytes: Vec<u8>) -> Result<Vec<Program>, ImportError> {
    read_with(name, bytes, &LIMITS)
}

/// Programs of a file in memory, with limits of one's own.
pub(crate) fn read_with(name: &str, bytes: Vec<u8>, limits: &Limits) -> Result<Vec<Program>, ImportError> {
    jvc::import::read_bytes(name, Storage::owned(bytes), limits)
}

/// Gzips bytes.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(vec![], flate2::Compression::default());
    out.write_all(bytes).expect("memory");
    out.finish().expect("memory")
}

/// The entries of an archive, without the root folder.
#[derive(Clone)]
pub(crate) struct Entries(pub(crate) Vec<(String, Vec<u8>)>);

impl Entries {
    /// Takes a committed archive apart, by the central directory.
    pub(crate) fn of(name: &str) -> Entries {
        let bytes = fixture(name);
        let mut zip = zip::ZipArchive::new(std::io::Cursor::new(bytes.as_slice())).expect("a ZIP archive");
        let mut out = vec![];
        for i in 0..zip.len() {
            let mut file = zip.by_index(i).expect("an entry");
            let mut data = vec![];
            file.read_to_end(&mut data).expect("stored");
            let name = file.name().expect("UTF-8").into_owned();
            let name = name
                .split_once('/')
                .map_or(name.as_str(), |(root, rest)| if root.starts_with("small") { rest } else { name.as_str() });
            out.push((name.to_string(), data));
        }
        Entries(out)
    }

    /// An entry's bytes.
    pub(crate) fn get(&self, name: &str) -> &[u8] {
        &self.0.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no entry {name}")).1
    }

    /// With an entry replaced.
    pub(crate) fn with(mut self, name: &str, bytes: Vec<u8>) -> Entries {
        let slot = self.0.iter_mut().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no entry {name}"));
        slot.1 = bytes;
        self
    }

    /// With a text in an entry replaced everywhere; it must occur.
    pub(crate) fn edit(self, name: &str, from: &str, to: &str) -> Entries {
        let old = String::from_utf8(self.get(name).to_vec()).expect("text");
        assert!(old.contains(from), "{name} does not contain {from}");
        let new = old.replace(from, to);
        self.with(name, new.into_bytes())
    }

    /// Without an entry.
    pub(crate) fn without(mut self, name: &str) -> Entries {
        self.0.retain(|(n, _)| n != name);
        self
    }

    /// The archive, entries stored below a root folder.
    pub(crate) fn zip(&self) -> Vec<u8> {
        let mut zip = ZipText::default();
        for (name, data) in &self.0 {
            zip.add(&format!("m/{name}"), data, data, 0);
        }
        zip.finish()
    }

    /// The archive, entries deflated.
    pub(crate) fn deflated(&self) -> Vec<u8> {
        let mut zip = ZipText::default();
        for (name, data) in &self.0 {
            let mut packed = DeflateEncoder::new(vec![], flate2::Compression::best());
            packed.write_all(data).expect("memory");
            zip.add(&format!("m/{name}"), data, &packed.finish().expect("memory"), 8);
        }
        zip.finish()
    }
}

/// A writer of ZIP archives that writes whatever it is told.
#[derive(Default)]
pub(crate) struct ZipText {
    body: Vec<u8>,
    directory: Vec<u8>,
    n: u16,
}

impl ZipText {
    /// Adds an entry: its name, its true bytes (for size and checksum), what is stored, the method.
    pub(crate) fn add(&mut self, name: &str, data: &[u8], packed: &[u8], method: u16) {
        let mut crc = Crc::new();
        crc.update(data);
        self.add_raw(name, packed, method, crc.sum(), data.len() as u32, None);
    }

    /// Adds an entry with any size, checksum and header offset.
    pub(crate) fn add_raw(&mut self, name: &str, packed: &[u8], method: u16, crc: u32, size: u32, at: Option<u32>) {
        let offset = at.unwrap_or(self.body.len() as u32);
        let mut common = vec![];
        for v in [0u16, method, 0, 0] {
            common.extend(v.to_le_bytes());
        }
        for v in [crc, packed.len() as u32, size] {
            common.extend(v.to_le_bytes());
        }
        common.extend((name.len() as u16).to_le_bytes());
        common.extend(0u16.to_le_bytes());
        if at.is_none() {
            self.body.extend(b"PK\x03\x04\x0a\x00");
            self.body.extend(&common);
            self.body.extend(name.as_bytes());
            self.body.extend(packed);
        }
        self.directory.extend(b"PK\x01\x02\x0a\x00\x0a\x00");
        self.directory.extend(&common);
        self.directory.extend([0; 10]);
        self.directory.extend(offset.to_le_bytes());
        self.directory.extend(name.as_bytes());
        self.n += 1;
    }

    /// The archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let start = self.body.len() as u32;
        let size = self.directory.len() as u32;
        self.body.append(&mut self.directory);
        self.body.extend(b"PK\x05\x06\0\0\0\0");
        self.body.extend(self.n.to_le_bytes());
        self.body.extend(self.n.to_le_bytes());
        self.body.extend(size.to_le_bytes());
        self.body.extend(start.to_le_bytes());
        self.body.extend(0u16.to_le_bytes());
        self.body
    }
}
