//! What the targets share: ZIP archives around fuzzed parts, with true sizes and checksums, so that what is read is the part and not
//! its damage; and what is done with a program that was accepted.

use flate2::Crc;
use jvc::import::limits::{LIMITS, Limits};
use jvc::import::weights::Storage;
use jvc::import::{self, ImportError, Program};

/// The importer's limits, tight enough that no input of a fuzzer takes long.
pub const TIGHT: Limits = Limits { inflated_bytes: 4 << 20, json_bytes: 1 << 20, json_values: 1 << 16, ..LIMITS };

/// Tensors that are copied element by element when they are looked at.
const MAX_COPY: u64 = 1 << 20;

/// Reads a file, and what was accepted as far as every command does.
pub fn import(name: &str, bytes: &[u8]) {
    match import::read_bytes(name, Storage::owned(bytes.to_vec()), &TIGHT) {
        Ok(programs) => programs.iter().for_each(look_at),
        Err(error) => says_why(&error),
    }
}

fn look_at(program: &Program) {
    assert!(import::print(program).starts_with("program "));
    for (name, view) in program.weights.iter().filter(|(_, view)| view.n_bytes() <= MAX_COPY) {
        let bytes = view.contiguous().map(|bytes| bytes.len() as u64);
        assert_eq!(bytes, view.storage.as_ref().map(|_| view.n_bytes()), "{name}");
    }
}

/// Messages say something, and not all of a hostile file.
fn says_why(error: &ImportError) {
    let message = error.to_string();
    assert!(!message.is_empty() && message.len() < 1 << 16, "{} bytes of message", message.len());
}

/// A ZIP archive of stored entries.
pub fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut body, mut directory) = (vec![], vec![]);
    for (name, data) in entries {
        let mut crc = Crc::new();
        crc.update(data);
        let mut common = vec![0u8; 8];
        for value in [crc.sum(), data.len() as u32, data.len() as u32] {
            common.extend(value.to_le_bytes());
        }
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0; 2]);
        directory.extend(b"PK\x01\x02\x0a\x00\x0a\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend((body.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        body.extend(b"PK\x03\x04\x0a\x00");
        body.extend(&common);
        body.extend(name.as_bytes());
        body.extend(*data);
    }
    let (start, size, n) = (body.len() as u32, directory.len() as u32, entries.len() as u16);
    body.append(&mut directory);
    body.extend(b"PK\x05\x06\0\0\0\0");
    [n, n].iter().for_each(|n| body.extend(n.to_le_bytes()));
    [size, start].iter().for_each(|n| body.extend(n.to_le_bytes()));
    body.extend([0; 2]);
    body
}
