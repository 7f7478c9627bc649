//! Any bytes as a `.pt2` archive: the container, and what a mutated one lets through.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| jvc_fuzz::import("fuzzed.pt2", bytes));
