//! The source of the runtime and of the formats of files, as text: by default a generated crate carries them, and then needs nothing
//! of ours.

/// Path below `runtime/`, and contents.
pub(crate) const FILES: [(&str, &str); 13] = [
    ("files/src/cache.rs", include_str!("../../files/src/cache.rs")),
    ("files/src/lib.rs", include_str!("../../files/src/lib.rs")),
    ("files/src/weights.rs", include_str!("../../files/src/weights.rs")),
    ("src/error.rs", include_str!("../../runtime-min/src/error.rs")),
    ("src/gpu.rs", include_str!("../../runtime-min/src/gpu.rs")),
    ("src/info.rs", include_str!("../../runtime-min/src/info.rs")),
    ("src/kernel.rs", include_str!("../../runtime-min/src/kernel.rs")),
    ("src/lib.rs", include_str!("../../runtime-min/src/lib.rs")),
    ("src/memory.rs", include_str!("../../runtime-min/src/memory.rs")),
    ("src/queue.rs", include_str!("../../runtime-min/src/queue.rs")),
    ("src/recorder.rs", include_str!("../../runtime-min/src/recorder.rs")),
    ("src/session.rs", include_str!("../../runtime-min/src/session.rs")),
    ("src/weights.rs", include_str!("../../runtime-min/src/weights.rs")),
];

/// As above, of the C interface: for crates that have one.
pub(crate) const C_FILES: [(&str, &str); 5] = [
    ("c/src/call.rs", include_str!("../../runtime-min/c/src/call.rs")),
    ("c/src/codes.rs", include_str!("../../runtime-min/c/src/codes.rs")),
    ("c/src/handles.rs", include_str!("../../runtime-min/c/src/handles.rs")),
    ("c/src/lib.rs", include_str!("../../runtime-min/c/src/lib.rs")),
    ("c/src/status.rs", include_str!("../../runtime-min/c/src/status.rs")),
];

/// The runtime's formatting rules go with its source.
pub(crate) const RUSTFMT: &str = include_str!("../../rustfmt.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_runtime_is_vendored() {
        let files = |folder: &str, below: &str| -> Vec<String> {
            std::fs::read_dir(format!("{}/../{folder}", env!("CARGO_MANIFEST_DIR")))
                .expect("the runtime is beside this crate")
                .map(|entry| format!("{below}/{}", entry.expect("readable").file_name().to_string_lossy()))
                .collect()
        };
        let mut found = [files("runtime-min/src", "src"), files("files/src", "files/src")].concat();
        found.sort();
        assert_eq!(found, FILES.map(|(path, _)| path.to_string()));
        let mut found = files("runtime-min/c/src", "c/src");
        found.sort();
        assert_eq!(found, C_FILES.map(|(path, _)| path.to_string()));
    }
}
