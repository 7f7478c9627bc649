//! Any bytes as a cache file: it is read only where it is what its owner would have written.

#![no_main]

use jvc_files::CacheDir;
use std::path::PathBuf;
use std::sync::LazyLock;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("jvc-fuzz-cache-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder for temporary files is writable");
    folder
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let dir = CacheDir::Path(FOLDER.clone());
    let file = dir.file("fuzzed", "owner of the seeds".to_string()).expect("a folder was named");
    let path = FOLDER.join("fuzzed.bin");
    std::fs::write(&path, bytes).expect("writable");
    let Some(payload) = file.read() else { return };
    file.write(&payload).expect("writable");
    assert_eq!(std::fs::read(&path).expect("readable"), bytes);
});
