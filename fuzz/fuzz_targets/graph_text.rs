//! Any text as a graph: what is read prints and reads back as itself, and the verifier has an opinion on it.

#![no_main]

use jvc::ir::{parse::parse, print::print, verify::verify};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let Ok(graph) = parse(text) else { return };
    let printed = print(&graph);
    let again = parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    assert_eq!(print(&again), printed);
    let _ = verify(&graph);
});
