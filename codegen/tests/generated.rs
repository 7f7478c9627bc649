//! Generated crates as cargo, clippy and rustfmt see them.

mod rich;
mod sample;

use std::path::{Path, PathBuf};
use std::process::Command;

use jvc_codegen::plan::{ArenaBuffer, Base, Elem, Groups, Plan, Region, Step};
use jvc_codegen::{Options, RuntimeSource, generate};
use rich::rich_plan;
use sample::{random_plan, range};

/// Writes the crate to a scratch folder.
fn written(plan: &Plan, options: &Options) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a scratch folder");
    let path = dir.path().join("generated");
    generate(plan, options).expect("the plan is right").write(&path).expect("the folder is writable");
    (dir, path)
}

/// One to four outputs of growing names: lists that fit on a line, on a line of their own, or on none.
fn outputs_plan(n_outputs: u32, name_len: usize) -> Plan {
    let mut plan = random_plan(1, 1);
    let Some(Step::Dispatch(last)) = plan.entries[0].steps.pop() else { panic!("plans end with a dispatch") };
    plan.entries[0].outputs.clear();
    for slot in 1..=n_outputs {
        let name = format!("{}_{slot}", "o".repeat(name_len));
        plan.entries[0].outputs.push(sample::io_port(&name, slot, Elem::F32, &[16]));
        let mut copy = last.clone();
        copy.writes[0].region = Region::Io(slot);
        copy.offsets[1] = slot;
        plan.entries[0].steps.push(Step::Dispatch(copy));
    }
    plan.entries[0].buffers[0].live.1 = plan.entries[0].steps.len() as u32 - 1;
    plan
}

/// rustfmt would change nothing in the crate of a plan.
fn assert_formatted(plan: &Plan, what: &str) {
    let (_keep, dir) = written(plan, &Options { runtime: RuntimeSource::Version, c_api: true });
    for source in ["src/lib.rs", "src/c.rs"] {
        let output = Command::new("rustfmt").args(["--edition", "2024", "--check"]).arg(dir.join(source)).output();
        let output = output.expect("rustfmt starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{what}:\n{text}");
    }
}

#[test]
fn lists_of_every_length_are_as_rustfmt_leaves_them() {
    for n_outputs in 1..4 {
        for name_len in [1, 4, 6, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 30] {
            assert_formatted(&outputs_plan(n_outputs, name_len), &format!("{n_outputs} names of {name_len}"));
        }
    }
    assert_formatted(&outputs_plan(9, 4), "a table of short calls");
}

#[test]
fn names_of_every_length_are_as_rustfmt_leaves_them() {
    for name_len in (1..28).step_by(2) {
        let mut plan = outputs_plan(1, 4);
        (plan.name, plan.entries[0].name) = ("p".repeat(name_len), "e".repeat(name_len));
        assert_formatted(&plan, &format!("names of {name_len}"));
    }
}

/// Nine times 130 steps whose offsets all differ, and as many that are recorded once.
fn wide_plan() -> Plan {
    let mut plan = random_plan(2, 130);
    let once = plan.entries[0].steps.clone();
    for occurrence in 1..10u32 {
        let mut copy = once.clone();
        if occurrence == 9 {
            copy.reverse();
        }
        for step in &mut copy {
            if let Step::Dispatch(d) = step {
                d.label = format!("layers.{occurrence}.{}", d.label);
                d.groups = Groups::Fixed([occurrence / 9 + 1, 1, 1]);
            }
        }
        plan.entries[0].steps.push(Step::Barrier);
        plan.entries[0].steps.extend(copy);
    }
    let end = plan.entries[0].steps.len() as u32 - 1;
    let arena = plan.entries[0].arena_bytes[0];
    let whole = ArenaBuffer { name: "all".into(), chunk: 0, offset: 0, bytes: arena, live: (0, end) };
    plan.entries[0].buffers = vec![whole];
    spread(&mut plan);
    plan
}

/// Moves every arena operand somewhere else, so that tables are full of different numbers.
fn spread(plan: &mut Plan) {
    let entry = &mut plan.entries[0];
    let mut at = 0;
    for step in &mut entry.steps {
        let Step::Dispatch(d) = step else { continue };
        for (base, offset) in d.bases.iter().zip(&mut d.offsets) {
            if matches!(base, Base::Arena(_)) {
                at = (at * 5 + 16_411) % 9_000_000;
                *offset = at;
            }
        }
        let moved = |r: &mut jvc_codegen::plan::ByteRange, offset: u32| {
            if matches!(r.region, Region::Arena(_)) {
                *r = range(r.region, u64::from(offset) * 16, 16);
            }
        };
        d.reads.iter_mut().chain(&mut d.writes).zip(&d.offsets).for_each(|(r, offset)| moved(r, *offset));
    }
    entry.steps.insert(0, Step::Barrier);
    let mut first = sample::dispatch("clear", vec![], range(Region::Arena(0), 0, 9_000_016 * 16));
    (first.kernel, first.bases, first.offsets) = (0, vec![Base::Arena(0); 2], vec![0; 2]);
    entry.steps.insert(0, Step::Dispatch(first));
    entry.buffers[0].bytes = 9_000_016 * 16;
    entry.buffers[0].live.1 += 2;
    entry.arena_bytes = vec![9_000_016 * 16];
}

/// Runs cargo in a generated crate; dependencies are built once for all of these tests.
fn cargo(dir: &Path, arguments: &[&str]) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    let lock = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock");
    std::fs::copy(lock, dir.join("Cargo.lock")).expect("the workspace has a lock file");
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_NET_OFFLINE", "true")
        .env_remove("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER")
        .output()
        .expect("cargo starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "cargo {arguments:?}:\n{text}");
}

#[test]
fn crates_pass_clippy_and_rustfmt_without_a_warning() {
    let runtime = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime-min").to_string();
    let options = Options { runtime: RuntimeSource::Path(runtime), c_api: true };
    let nothing = Plan { name: "nothing".into(), device: "lavapipe".into(), ..Plan::default() };
    for plan in [rich_plan(), random_plan(5, 40), wide_plan(), nothing] {
        let (_keep, dir) = written(&plan, &options);
        for features in ["", "c-api"] {
            cargo(
                &dir,
                &["clippy", "--all-targets", "--features", features, "--", "-D", "warnings", "-D", "missing_docs"],
            );
        }
        cargo(&dir, &["fmt", "--check"]);
    }
}

#[test]
fn the_c_header_is_the_one_under_review_and_compiles() {
    let (_keep, dir) = written(&rich_plan(), &Options { c_api: true, ..Options::default() });
    let header = dir.join("include/rich_model.h");
    let text = std::fs::read_to_string(&header).expect("there is a header");
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rich/rich_model.h");
    if std::env::var_os("JVC_BLESS").is_some() {
        std::fs::write(kept, &text).expect("the repository is writable");
    }
    let kept = std::fs::read_to_string(kept).unwrap_or_default();
    assert!(
        text == kept,
        "the header differs; if that is meant: JVC_BLESS=1 cargo test -p jvc-codegen c_header\n{text}"
    );
    for (language, standard) in [("c", "c99"), ("c++", "c++11")] {
        let output = Command::new("cc")
            .args([
                "-x",
                language,
                &format!("-std={standard}"),
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-fsyntax-only",
            ])
            .arg(&header)
            .output()
            .expect("a C compiler starts");
        // It warns of a header that is compiled by itself.
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || errors.contains("#pragma once"), "{language}: {errors}");
    }
}

#[test]
fn a_crate_without_c_has_no_trace_of_it() {
    let artifact = generate(&rich_plan(), &Options::default()).expect("the plan is right");
    let traces = artifact.files.iter().filter(|(path, text)| {
        path.contains("include/") || !path.starts_with("runtime/") && String::from_utf8_lossy(text).contains("jvc_c")
    });
    assert_eq!(traces.count(), 0);
    assert!(!artifact.text("Cargo.toml").is_some_and(|text| text.contains("cdylib")));
}

#[test]
fn a_crate_with_its_own_runtime_builds_and_its_example_compiles() {
    let (_keep, dir) = written(&rich_plan(), &Options { c_api: true, ..Options::default() });
    cargo(&dir, &["test", "--doc", "--", "--quiet"]);
    cargo(&dir, &["build", "--features", "c-api"]);
}

#[test]
fn the_same_plan_gives_the_same_bytes() {
    let options = Options::default();
    assert_eq!(generate(&rich_plan(), &options), generate(&rich_plan(), &options));
}

#[test]
fn every_dispatch_is_recorded_in_order() {
    let plan = rich_plan();
    let artifact = generate(&plan, &Options::default()).expect("the plan is right");
    let steps = artifact.text("src/encode/steps.rs").expect("there is a recording");
    assert_eq!(steps.matches("r.dispatch(").count(), 4, "two straight ones and one layer:\n{steps}");
    let Step::Dispatch(_) = &plan.entries[0].steps[0] else { panic!("starts with a dispatch") };
    for layer in 0..12 {
        assert!(steps.contains(&format!("\"layers.{layer}.relu\"")));
    }
}

/// Decodes and encodes by arithmetic on values, where the generated code works on bits.
const WORD_TESTS: &str = r#"
#[cfg(test)]
mod tests {
    use super::*;

    fn value(half: u16) -> f64 {
        let (exponent, fraction) = (i32::from(half >> 10 & 31), f64::from(half & 1023));
        let magnitude = match exponent {
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            0 => fraction * 2f64.powi(-24),
            _ => (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
        };
        if half >> 15 == 1 { -magnitude } else { magnitude }
    }

    #[test]
    fn every_half_goes_to_its_value_and_back() {
        for half in 0..=u16::MAX {
            let mut words = Vec::new();
            from_f16(&[half], &mut words);
            let single = f64::from(f32::from_bits(words[0]));
            assert!(single == value(half) || single.is_nan() && value(half).is_nan(), "{half:04x}");
            let mut back = Vec::new();
            to_f16(&words, &mut back);
            assert!(back[0] == half || value(half).is_nan() && value(back[0]).is_nan(), "{half:04x}");
        }
    }

    #[test]
    fn halves_are_the_nearest_with_ties_to_even() {
        for half in 0..0x7c00u16 {
            let next = if half == 0x7bff { 65536.0 } else { value(half + 1) };
            let middle = ((value(half) + next) / 2.0) as f32;
            let even = half + (half & 1);
            let mut found = Vec::new();
            to_f16(&[middle.to_bits() - 1, middle.to_bits(), middle.to_bits() + 1].map(|b| b | 1 << 31), &mut found);
            assert_eq!(found, [half, even, half + 1].map(|h| h | 1 << 15), "{half:04x}");
        }
    }

    #[test]
    fn brains_round_and_integers_keep_their_sign() {
        let mut brains = Vec::new();
        to_bf16(&[0x3f80_7fff, 0x3f80_8000, 0x3f81_8000, 0x7f7f_ffff, 0x7f80_0001, 0xff80_0000], &mut brains);
        assert_eq!(brains, [0x3f80, 0x3f80, 0x3f82, 0x7f80, 0x7fc0, 0xff80]);
        let (mut words, mut back) = (Vec::new(), Vec::new());
        from_i8(&[-3, 127], &mut words);
        assert_eq!(words, [-3i32 as u32, 127]);
        to_i8(&words, &mut back);
        assert_eq!(back, [-3, 127]);
    }
}
"#;

#[test]
fn conversions_to_words_and_back_are_exact() {
    let runtime = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime-min").to_string();
    let (_keep, dir) = written(&rich_plan(), &Options { runtime: RuntimeSource::Path(runtime), ..Options::default() });
    let path = dir.join("src/words.rs");
    let text = std::fs::read_to_string(&path).expect("ports in words have conversions") + WORD_TESTS;
    std::fs::write(&path, text).expect("the folder is writable");
    cargo(&dir, &["test", "--lib"]);
}

#[test]
fn generated_sizes_are_those_of_the_plan() {
    let plan = rich_plan();
    let entry = &plan.entries[1];
    let runtime = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime-min").to_string();
    let (_keep, dir) = written(&plan, &Options { runtime: RuntimeSource::Path(runtime), ..Options::default() });
    let mut cases = String::new();
    for (s0, position, unused) in [(1, 0, 2), (2, 4096, 3), (7, 1, 2), (99, 13, 3), (100, 4095, 2)] {
        let words = entry.table_words(&[s0, position, unused, 50]).expect("the sizes are in range");
        let sizes = format!("StepSizes {{ s0: {s0}, position: {position}, unused: {unused} }}");
        cases += &format!("assert_eq!({sizes}.table().expect(\"in range\"), {words:?});\n");
    }
    for (s0, position, unused) in [(0, 0, 2), (101, 0, 2), (1, 4097, 2), (1, 0, 1), (1, 0, 4)] {
        let sizes = format!("StepSizes {{ s0: {s0}, position: {position}, unused: {unused} }}");
        cases += &format!("assert!(matches!({sizes}.table(), Err(Error::Argument {{ .. }})));\n");
    }
    for (word, fits) in [(0, true), (50, true), (51, false), (u32::MAX, false)] {
        let found = format!("found_sizes(&[0, 0, 0, 0, 0, 0, {word}])");
        cases += &match fits {
            true => format!("assert_eq!({found}, Ok([{word}]));\n"),
            false => format!("assert!(matches!({found}, Err(Error::Found {{ min: 0, max: 50, .. }})));\n"),
        };
    }
    let path = dir.join("src/step.rs");
    let tests = format!("#[cfg(test)]\nmod tests {{\n use super::*;\n #[test]\n fn table() {{ {cases} }}\n}}\n");
    let text = std::fs::read_to_string(&path).expect("the entry point has a file") + &tests;
    std::fs::write(&path, text).expect("the folder is writable");
    cargo(&dir, &["test", "--lib"]);
}
