//! The source of the runtime, as text: by default a generated crate carries it, and then needs nothing of ours.

/// Path below `runtime/`, and contents.
pub(crate) const FILES: [(&str, &str); 10] = [
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

/// The runtime's formatting rules go with its source.
pub(crate) const RUSTFMT: &str = include_str!("../../rustfmt.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_runtime_is_vendored() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime-min/src");
        let mut found: Vec<String> = std::fs::read_dir(dir)
            .expect("the runtime is beside this crate")
            .map(|entry| format!("src/{}", entry.expect("readable").file_name().to_string_lossy()))
            .collect();
        found.sort();
        assert_eq!(found, FILES.map(|(path, _)| path.to_string()));
    }
}
