//! Broken containers: ZIP archives and gzipped text.

use crate::archives::{Entries, ZipText, fixture, gzip};
use crate::{ACCEPTED, Row};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::io::Write;

const JSON: &str = "models/model.json";

/// Without the one entry that is an archive itself.
fn small() -> Entries {
    Entries::of("small_2.11.0.pt2").without("data/sample_inputs/model.pt")
}

/// The archive with bytes at the nth place of a pattern overwritten, `skip` bytes behind its start.
fn patched(pattern: &[u8], nth: usize, skip: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = small().zip();
    let places = bytes.windows(pattern.len()).enumerate().filter(|(_, w)| *w == pattern).map(|(i, _)| i + skip);
    let at = places.collect::<Vec<_>>()[nth];
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

/// The archive up to the nth place of a pattern, and some bytes more.
fn cut(pattern: &[u8], nth: usize, more: usize) -> Vec<u8> {
    let bytes = small().zip();
    let places = bytes.windows(pattern.len()).enumerate().filter(|(_, w)| *w == pattern).map(|(i, _)| i);
    let at = places.collect::<Vec<_>>()[nth];
    bytes[..at + more].to_vec()
}

fn one(name: &str) -> Vec<u8> {
    let mut zip = ZipText::default();
    zip.add(name, b"x", b"x", 0);
    zip.finish()
}

/// MiBs of blanks, deflated.
fn blanks(mib: usize) -> Vec<u8> {
    let mut packed = DeflateEncoder::new(vec![], Compression::fast());
    (0..mib).for_each(|_| packed.write_all(&[b' '; 1 << 20]).expect("memory"));
    packed.finish().expect("memory")
}

/// The archive with one entry deflated, which claims a size.
fn bomb(entry: &str, packed: &[u8], size: usize) -> Vec<u8> {
    let mut zip = ZipText::default();
    for (name, data) in &small().0 {
        match name == entry {
            true => zip.add_raw(&format!("m/{name}"), packed, 8, 0, size as u32, None),
            false => zip.add(&format!("m/{name}"), data, data, 0),
        }
    }
    zip.finish()
}

const DIRECTORY: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";
const END: &[u8] = b"PK\x05\x06";

/// Read as `hostile.pt2`.
pub(crate) const ARCHIVES: &[Row] = &[
    ("an empty file", Vec::new, "neither a ZIP archive nor JSON"),
    ("a text", || b"not a program".to_vec(), "neither a ZIP archive nor JSON"),
    ("zeros", || vec![0; 1 << 20], "neither a ZIP archive nor JSON"),
    ("the first two bytes of an archive", || b"PK".to_vec(), "broken or incomplete ZIP archive"),
    ("a mapped file of another torch: no ZIP", || b"\x80\x02}.".to_vec(), "neither a ZIP archive nor JSON"),
    ("cut inside the first local header", || cut(LOCAL, 0, 14), "broken or incomplete ZIP archive"),
    ("cut behind the first entry", || cut(LOCAL, 1, 0), "broken or incomplete ZIP archive"),
    ("cut before the directory", || cut(DIRECTORY, 0, 0), "broken or incomplete ZIP archive"),
    ("cut inside the directory", || cut(DIRECTORY, 5, 20), "broken or incomplete ZIP archive"),
    ("cut before the end record", || cut(END, 0, 0), "broken or incomplete ZIP archive"),
    ("cut inside the end record", || cut(END, 0, 15), "broken or incomplete ZIP archive"),
    ("a directory beyond the file", || patched(END, 0, 16, &[0xf0; 4]), "broken or incomplete ZIP archive"),
    ("a directory of 65,534 entries that are not there", || patched(END, 0, 8, &[0xfe, 0xff, 0xfe, 0xff]), "ZIP"),
    ("a ZIP64 directory that is not there", || patched(END, 0, 8, &[0xff; 12]), "broken or incomplete ZIP archive"),
    ("an entry beyond the file", || patched(DIRECTORY, 3, 42, &[0xf0; 4]), "broken or incomplete ZIP archive"),
    ("an entry longer than the file", || patched(DIRECTORY, 3, 20, &[0, 0, 0, 0x70, 0, 0, 0, 0x70]), "beyond the end"),
    ("a stored entry of two sizes", || patched(DIRECTORY, 3, 24, &[1, 0, 0, 0]), "its two sizes differ"),
    ("an encrypted entry", || patched(DIRECTORY, 3, 8, &[1]), "is encrypted"),
    ("an entry compressed by another method", || patched(DIRECTORY, 3, 10, &[12]), "only stored and deflated are read"),
    ("a name longer than the directory", || patched(DIRECTORY, 21, 28, &[0xff, 0xff]), "ZIP"),
    ("a name that leaves the archive", || one("../../etc/passwd"), "relative path"),
    ("a name that leaves it later", || one("m/../../x"), "relative path"),
    ("a name that leaves it on Windows", || one("m\\..\\x"), "relative path"),
    ("an absolute name", || one("/etc/passwd"), "relative path"),
    ("an empty name", || one(""), "relative path"),
    ("a name with a zero byte", || one("m/archive\0format"), "relative path"),
    ("a name of 60,000 bytes", || one(&"a".repeat(60_000)), "bytes of an entry name: 60000 is over the limit of 4096"),
    (
        "two entries of one name",
        || {
            let mut twice = ZipText::default();
            (0..2).for_each(|_| twice.add("m/archive_format", b"pt2", b"pt2", 0));
            twice.finish()
        },
        "two entries have the same name",
    ),
    (
        "two entries in the same bytes",
        || {
            let mut zip = ZipText::default();
            zip.add("a", b"0123456789", b"0123456789", 0);
            zip.add_raw("b", b"0123456789", 0, 0, 10, Some(0));
            zip.finish()
        },
        "its bytes overlap those of `a`",
    ),
    ("a changed byte", || patched(b"graph_module", 0, 0, b"G"), "checksum does not match"),
    (
        "a text of 300 MiB in 300 KiB",
        || bomb(JSON, &blanks(300), 300 << 20),
        "bytes of an archive entry: 314572800 is over",
    ),
    (
        "a weight of 200 MiB in 200 KiB",
        || bomb("data/weights/weight_0", &blanks(200), 200 << 20),
        "that are left to this file",
    ),
    (
        "200 MiB that claim to be three bytes",
        || bomb("archive_format", &blanks(200), 3),
        "decompresses to other than the 3 bytes that it declares",
    ),
    ("no compressed data", || bomb("archive_format", b"\xff\xff\xff\xff", 3), "cannot be decompressed"),
    (
        "60,000 entries beside each other, none a program",
        || {
            let mut zip = ZipText::default();
            (0..60_000).for_each(|i| zip.add(&format!("m/data/{i}"), b"", b"", 0));
            zip.finish()
        },
        "holds no exported program",
    ),
    ("no entries", || ZipText::default().finish(), "holds no exported program"),
    ("no format", || small().without("archive_format").zip(), "there is neither `archive_format` nor"),
    ("another format", || small().with("archive_format", b"pt3".to_vec()).zip(), "is `pt3` (only `pt2` is read)"),
    ("a format of 5000 bytes", || small().with("archive_format", vec![b'p'; 5000]).zip(), "over the limit of 4096"),
    ("a newer container", || small().with("archive_version", b"1".to_vec()).zip(), "is `1` (only `0` is read)"),
    ("a big-endian machine's", || small().with("byteorder", b"big".to_vec()).zip(), "only little-endian archives"),
    ("no program", || small().without(JSON).zip(), "there is no `m/models/*.json`"),
    ("every entry deflated", || small().deflated(), ACCEPTED),
];

/// Read as `hostile.json.gz`.
pub(crate) const GZIPPED: &[Row] = &[
    ("300 MiB of blanks in 300 KiB", || gzip(&vec![b' '; 300 << 20]), "bytes of JSON: 268435457 is over the limit"),
    (
        "a cut gzip file",
        || {
            let whole = gzip(small().get(JSON));
            whole[..whole.len() / 2].to_vec()
        },
        "no readable gzip file",
    ),
    ("a gzip file of no JSON", || gzip(&fixture("small_2.11.0.pt2")), "not UTF-8"),
    ("the first two bytes of a gzip file", || b"\x1f\x8b".to_vec(), "no readable gzip file"),
];
