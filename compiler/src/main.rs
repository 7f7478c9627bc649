//! The `jvc` binary.

fn main() {}
