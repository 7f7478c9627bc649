//! Hostile and broken files: one table. Each row says how a file is made and what is said of it. It is read by a process of its own
//! that the kernel stops beyond eight seconds of processor time or a GiB of addresses: exported programs and checkpoints by `jvc compile`,
//! texts, weight files and caches by this test's own binary. `docs/robustness.md` says how to look at one row.
//!
//! What cannot be a row is tested elsewhere: every length of a truncated archive and random bits in `tests/import/hostile.rs`, all that a
//! fuzzer finds in `fuzz/`.
#![cfg(target_os = "linux")]

#[path = "import/archives.rs"]
#[expect(dead_code, reason = "the import tests use the rest")]
mod archives;
#[path = "hostile/checkpoints.rs"]
mod checkpoints;
#[path = "hostile/containers.rs"]
mod containers;
#[path = "hostile/programs.rs"]
mod programs;
#[path = "hostile/texts.rs"]
mod texts;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// How a file is made.
type Make = fn() -> Vec<u8>;

/// Name, file, and a part of what is said of it. [`ACCEPTED`] where it is only large or odd.
type Row = (&'static str, Make, &'static str);

/// A file that is read after all.
const ACCEPTED: &str = "(accepted)";

/// Processor time of one process, in seconds.
const SECONDS: u32 = 8;
/// Addresses of one process, in KiB.
const ADDRESSES: u32 = 1 << 20;
/// Messages name what is wrong and do not repeat the file.
const MESSAGE_BYTES: usize = 2000;

/// Names the reader and the file to a process that runs [`read_one`].
const READ: &str = "JVC_HOSTILE_READ";

/// Runs a program within the bounds.
fn bounded(program: &Path, arguments: &[&str], read: &str) -> Output {
    let script = format!("ulimit -v {ADDRESSES} && ulimit -t {SECONDS} && exec \"$@\"");
    Command::new("sh")
        .args(["-c", &script, "sh"])
        .arg(program)
        .args(arguments)
        // Address space for threads would be counted otherwise.
        .envs([("RAYON_NUM_THREADS", "2"), ("MALLOC_ARENA_MAX", "1"), ("RUST_BACKTRACE", "0"), (READ, read)])
        .output()
        .expect("a shell")
}

/// Checks rows that `jvc compile FILE` reads, or with `{}` in `arguments` where the file belongs.
fn check_compile(rows: &[Row], extension: &str, arguments: &[&str]) {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let out = folder.path().join("out").display().to_string();
    let jvc = Path::new(env!("CARGO_BIN_EXE_jvc"));
    check(rows, |name, bytes| {
        let file = folder.path().join(format!("hostile.{extension}"));
        std::fs::write(&file, bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let file = file.display().to_string();
        let given: Vec<&str> = arguments.iter().map(|a| if *a == "{}" { file.as_str() } else { a }).collect();
        let output =
            bounded(jvc, &[&["compile", "--device", "lavapipe", "--out", &out], given.as_slice()].concat(), "");
        let _ = std::fs::remove_dir_all(&out);
        (output.status.code().map(|code| code == 0), String::from_utf8_lossy(&output.stderr).into_owned(), output)
    });
}

/// Checks rows that a reader of [`texts::READERS`] reads.
fn check_read(rows: &[Row], reader: &str) {
    let folder = tempfile::tempdir().expect("a scratch folder");
    // Not `current_exe`: that is the dynamic loader, where one was asked to start this binary.
    let this = PathBuf::from(std::env::args_os().next().expect("the name of a test binary"));
    check(rows, |name, bytes| {
        let file = folder.path().join("hostile");
        std::fs::write(&file, bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let said = folder.path().join("said");
        let _ = std::fs::remove_file(&said);
        let read = format!("{reader}\n{}\n{}", file.display(), said.display());
        let output = bounded(&this, &["--exact", "read_one"], &read);
        let said = std::fs::read_to_string(&said).unwrap_or_default();
        (output.status.success().then_some(said == ACCEPTED), said, output)
    });
}

/// Reads the files of rows; what is said of each is what the row says.
fn check(rows: &[Row], read: impl Fn(&str, Vec<u8>) -> (Option<bool>, String, Output)) {
    let mut faults = vec![];
    for (name, make, expect) in rows {
        let (accepted, said, output) = read(name, make());
        let right = !expect.is_empty()
            && match accepted {
                None => false,
                Some(accepted) if *expect == ACCEPTED => accepted,
                Some(accepted) => !accepted && said.contains(expect) && !said.contains("panicked"),
            };
        if !right || said.len() > MESSAGE_BYTES {
            let shown: String = said.chars().take(300).collect();
            let error: String = String::from_utf8_lossy(&output.stderr).chars().take(300).collect();
            faults.push(format!("{name}: expected `{expect}`, {}: {shown} {error}", output.status));
        }
    }
    assert!(faults.is_empty(), "{} of {} rows:\n{}", faults.len(), rows.len(), faults.join("\n"));
}

#[test]
fn broken_containers_are_refused_within_bounds() {
    check_compile(containers::ARCHIVES, "pt2", &["{}"]);
    check_compile(containers::GZIPPED, "json.gz", &["{}"]);
}

#[test]
fn contradictory_programs_are_refused_within_bounds() {
    check_compile(programs::ROWS, "pt2", &["{}"]);
    check_compile(programs::BARE, "json", &["{}", "--random-weights", "1"]);
}

#[test]
fn broken_checkpoints_are_refused_within_bounds() {
    check_compile(checkpoints::CONFIGS, "pt2", &["{}"]);
    check_compile(checkpoints::PICKLES, "pt2", &["{}"]);
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = folder.path().join("small.pt2");
    std::fs::write(&program, archives::fixture("small_2.11.0.pt2")).expect("writable");
    let program = program.display().to_string();
    check_compile(checkpoints::SAFETENSORS, "safetensors", &[&program, "--weights", "{}"]);
}

#[test]
fn broken_texts_and_binary_files_are_refused_within_bounds() {
    check_read(texts::GRAPHS, "graph");
    check_read(texts::PLANS, "plan");
    check_read(texts::WEIGHT_FILES, "weights");
    check_read(texts::CACHE_FILES, "cache");
    check_read(texts::TENSOR_FILES, "tensors");
}

/// What a fuzzer starts from is valid: else it would only see the first check.
#[test]
fn seeds_of_the_fuzzers_are_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    for (target, reader, least) in
        [("graph_text", "graph", 20), ("plan_text", "plan text", 7), ("archive", "import", 4)]
    {
        let mut n = 0;
        for seed in std::fs::read_dir(root.join("seeds").join(target)).expect("seeds").flatten() {
            let said = texts::read(reader, &std::fs::read(seed.path()).expect("readable"));
            assert_eq!(said, ACCEPTED, "{}", seed.path().display());
            n += 1;
        }
        assert!(n >= least, "{n} seeds of {target}");
    }
}

#[test]
fn the_table_is_as_long_as_it_claims_and_names_each_row_once() {
    let tables: [&[Row]; 11] = [
        containers::ARCHIVES,
        containers::GZIPPED,
        programs::ROWS,
        programs::BARE,
        checkpoints::CONFIGS,
        checkpoints::PICKLES,
        checkpoints::SAFETENSORS,
        texts::GRAPHS,
        texts::PLANS,
        texts::WEIGHT_FILES,
        texts::TENSOR_FILES,
    ];
    let mut names: Vec<&str> = tables.iter().flat_map(|t| t.iter().map(|row| row.0)).collect();
    let n = names.len() + texts::CACHE_FILES.len();
    names.sort_unstable();
    assert_eq!(names.windows(2).find(|pair| pair[0] == pair[1]), None, "a name is used twice");
    assert!(n >= 120, "{n} rows");
}

/// Not a test: what [`check_read`] starts. Without a file named it has nothing to do.
#[test]
fn read_one() {
    let request = std::env::var(READ).unwrap_or_default();
    let [reader, file, said] = request.split('\n').collect::<Vec<_>>()[..] else { return };
    std::fs::write(said, texts::read(reader, &std::fs::read(file).expect("readable"))).expect("writable");
}
