//! Any text as the `model.json` of an archive whose weights are as the program of the seeds needs them, and as a bare graph.

#![no_main]

use jvc_fuzz::zip;

const WEIGHTS: &[u8] = include_bytes!("../parts/model_weights_config.json");

libfuzzer_sys::fuzz_target!(|json: &[u8]| {
    // A bare graph starts with a brace; anything else would be taken for another kind of file.
    if json.first() == Some(&b'{') {
        jvc_fuzz::import("fuzzed.json", json);
    }
    // The text of weights is fuzzed where a line `---` follows the graph.
    let (model, config) = match json.windows(5).position(|w| w == b"\n---\n") {
        Some(at) => (&json[..at], &json[at + 5..]),
        None => (json, WEIGHTS),
    };
    let bytes = [0x3f; 96];
    let archive = zip(&[
        ("m/archive_format", b"pt2"),
        ("m/archive_version", b"0"),
        ("m/models/model.json", model),
        ("m/data/weights/model_weights_config.json", config),
        ("m/data/weights/weight_0", &bytes),
    ]);
    jvc_fuzz::import("fuzzed.pt2", &archive);
});
