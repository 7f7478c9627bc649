//! Any bytes as the pickled state dictionary of an archive of torch 2.5 to 2.8.

#![no_main]

use jvc_fuzz::zip;

const PROGRAM: &[u8] = include_bytes!("../parts/serialized_exported_program.json");

libfuzzer_sys::fuzz_target!(|pickle: &[u8]| {
    let storage = [0x3f; 96];
    let checkpoint = zip(&[("archive/data.pkl", pickle), ("archive/data/0", &storage), ("archive/data/1", &storage)]);
    let archive = zip(&[
        ("serialized_exported_program.json", PROGRAM),
        ("serialized_state_dict.pt", &checkpoint),
        ("serialized_constants.pt", b""),
    ]);
    jvc_fuzz::import("fuzzed.pt2", &archive);
});
