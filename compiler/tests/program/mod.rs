//! The binary as users start it, and the folders that it writes.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What cargo starts tests by, if anything: a driver of its own system libraries.
pub(crate) fn runner() -> Option<PathBuf> {
    let arch = std::env::consts::ARCH.to_uppercase();
    std::env::var_os(format!("CARGO_TARGET_{arch}_UNKNOWN_LINUX_GNU_RUNNER")).map(PathBuf::from)
}

/// Runs the binary to its end, by what cargo starts tests by.
pub(crate) fn jvc(args: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_jvc");
    let mut command = runner().map_or_else(|| Command::new(binary), Command::new);
    if runner().is_some() {
        command.arg(binary);
    }
    command.args(args).output().expect("the binary runs")
}

/// All files below a folder, by their path below it.
pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(at).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else {
                let below = path.strip_prefix(folder).expect("below it").to_path_buf();
                out.insert(below, std::fs::read(&path).expect("readable"));
            }
        }
    }
    out
}
