//! The goldens are what the compiler makes, and the whole crates among them give the results that running in memory gives.

use jvc::golden::{self, CASES, Form};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn goldens_are_what_the_compiler_makes() {
    let differences = golden::check(&root()).expect("every golden compiles");
    assert!(differences.is_empty(), "`jvc golden --bless` writes these: {differences:#?}");
}

#[test]
fn compiling_twice_gives_the_same_bytes() {
    for case in CASES.iter().filter(|c| c.form == Form::Crate) {
        let once = case.artifact(&root()).expect("it compiles");
        assert_eq!(once, case.artifact(&root()).expect("it compiles"), "{}", case.folder());
    }
}
