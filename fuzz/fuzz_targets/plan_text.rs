//! Any text as a plan: what is read prints and reads back as itself, and the verifier has an opinion on it.

#![no_main]

use jvc_codegen::plan::{KernelFile, Outline, Plan};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let _ = Plan::parse(text, &|_| Some(KernelFile { words: vec![0x0723_0203], disassembly: String::new() }));
    let Ok(outline) = Outline::parse(text) else { return };
    let _ = outline.plan.verify();
    let printed = outline.plan.to_text();
    let again = Outline::parse(&printed).unwrap_or_else(|e| panic!("{e}\n{printed}"));
    assert_eq!(again.plan, outline.plan, "{printed}");
});
