//! Test data that lies packed: a tar archive of programs and their references, compressed.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Unpacks a `.tar.gz`; returns the programs in it.
pub(crate) fn unpack_gzip(archive: &[u8], to: &Path) -> Vec<PathBuf> {
    let mut packed = Vec::new();
    flate2::read::GzDecoder::new(archive).read_to_end(&mut packed).expect("a gzip file");
    unpack(&packed, to)
}

/// Writes the files of a tar archive (plain ones in folders one deep); returns the programs among them.
fn unpack(tar: &[u8], to: &Path) -> Vec<PathBuf> {
    let text = |field: &[u8]| String::from_utf8_lossy(field).trim_end_matches('\0').trim().to_string();
    let (mut at, mut programs) = (0, vec![]);
    while tar[at] != 0 {
        let name = text(&tar[at..at + 100]);
        let size = usize::from_str_radix(&text(&tar[at + 124..at + 136]), 8).expect("an octal size");
        let path = to.join(&name);
        std::fs::create_dir_all(path.parent().expect("a file in a folder")).expect("writable");
        std::fs::write(&path, &tar[at + 512..at + 512 + size]).expect("writable");
        if name.ends_with(".pt2") {
            programs.push(path);
        }
        at += 512 + size.next_multiple_of(512);
    }
    programs
}
