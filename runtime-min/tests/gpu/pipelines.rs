//! The pipeline cache file: written, read back, and harmless when it is damaged or another's.

use crate::support::*;
use jvc_runtime::*;
use std::path::PathBuf;

fn load_with(dir: &CacheDir) -> Model {
    Model::load(&open(), &program(KERNELS), WeightSource::None, dir).expect("a model")
}

fn check(model: &Model) {
    let mut session = model.session(&entry(&double)).expect("a session");
    assert_eq!(run(&mut session, &floats(100, 1)), doubled(&floats(100, 1)));
}

fn only_file(dir: &std::path::Path) -> PathBuf {
    let files: Vec<PathBuf> = std::fs::read_dir(dir).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    assert_eq!(files.len(), 1, "one file and no leftovers: {files:?}");
    files[0].clone()
}

#[test]
fn a_cache_file_is_written_whole_and_accepted_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = CacheDir::Path(folder.path().join("made/on/demand"));
    check(&load_with(&dir));
    let path = only_file(&folder.path().join("made/on/demand"));
    let first = std::fs::read(&path).expect("a cache file");
    let modified = std::fs::metadata(&path).and_then(|m| m.modified()).expect("a time");
    assert!(path.file_name().expect("a name").to_string_lossy().starts_with("test-"));
    check(&load_with(&dir));
    assert_eq!(std::fs::read(&path).expect("a cache file"), first);
    assert_eq!(std::fs::metadata(&path).and_then(|m| m.modified()).expect("a time"), modified, "not written again");
}

#[test]
fn damaged_and_foreign_cache_files_are_ignored_and_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = CacheDir::Path(folder.path().to_owned());
    check(&load_with(&dir));
    let path = only_file(folder.path());
    let good = std::fs::read(&path).expect("a cache file");
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let mut damaged = vec![Vec::new(), good[..4].to_vec(), good[..good.len() - 1].to_vec(), vec![0xff; 4096]];
    // Checksum, payload.
    damaged.extend([0, 7, 8, good.len() - 1].map(flipped));
    for (case, bytes) in damaged.iter().enumerate() {
        std::fs::write(&path, bytes).expect("a damaged file");
        check(&load_with(&dir));
        assert_eq!(std::fs::read(&path).expect("a cache file"), good, "case {case} is replaced");
    }
}

#[test]
fn a_cache_folder_that_cannot_be_written_costs_nothing_but_time() {
    check(&load_with(&CacheDir::Path("/proc/nowhere".into())));
}
