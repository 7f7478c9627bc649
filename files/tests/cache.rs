//! Caches in trouble: a full disk, a process killed while it writes, many writers at once. Readers find a whole file or none, and what
//! is left behind is cleaned up.

#![cfg(not(miri))]

use jvc_files::{CacheDir, CacheFile};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

const FOLDER: &str = "JVC_FILES_TEST_FOLDER";
const PAYLOAD: usize = 512 << 10;

fn file(folder: &Path) -> CacheFile {
    CacheDir::Path(folder.to_owned()).file("model-1", "me".to_owned()).expect("a folder was named")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("readable");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// A payload that tells a mixture of two: one byte throughout.
fn whole(payload: &[u8]) -> bool {
    payload.len() == PAYLOAD && payload.iter().all(|byte| *byte == payload[0])
}

/// This program again, with one of the ignored tests below; the shell may prepare it.
fn start(test: &str, folder: &Path, prepare: &str) -> Child {
    let arch = std::env::consts::ARCH.to_uppercase();
    let runner = std::env::var_os(format!("CARGO_TARGET_{arch}_UNKNOWN_LINUX_GNU_RUNNER"));
    let program = std::env::args_os().next().expect("a name");
    let words = runner.into_iter().chain([program]);
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{prepare} exec \"$@\""), "sh"]).args(words);
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(FOLDER, folder);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a shell")
}

fn folder() -> std::path::PathBuf {
    std::env::var_os(FOLDER).expect("started by another test").into()
}

#[test]
#[ignore = "started by the tests below"]
fn writer() {
    for turn in 0..40_u8 {
        file(&folder()).write(&vec![turn; PAYLOAD]).expect("the folder is writable");
    }
}

#[test]
#[ignore = "started by the test below"]
fn writer_on_a_full_disk() {
    assert!(file(&folder()).write(&vec![7; PAYLOAD]).is_err());
}

#[test]
#[cfg(unix)]
fn a_full_disk_is_an_error_that_leaves_the_old_file_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path()).write(b"old").expect("writable");
    let mut child = start("writer_on_a_full_disk", folder.path(), "trap '' XFSZ; ulimit -f 64;");
    assert!(child.wait().expect("it ends").success(), "the writer is told");
    assert_eq!(file(folder.path()).read().as_deref(), Some(&b"old"[..]));
    assert_eq!(names(folder.path()), ["model-1.bin"]);
}

#[test]
#[cfg(unix)]
fn processes_and_threads_that_share_a_cache_read_whole_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut children = [0, 1].map(|_| start("writer", folder.path(), ""));
    std::thread::scope(|scope| {
        for turn in 100..108_u8 {
            let path = folder.path();
            scope.spawn(move || {
                for _ in 0..10 {
                    file(path).write(&vec![turn; PAYLOAD]).expect("the folder is writable");
                    assert!(file(path).read().is_some_and(|payload| whole(&payload)), "always some whole file");
                }
            });
        }
    });
    assert!(children.iter_mut().all(|child| child.wait().expect("it ends").success()));
    assert_eq!(names(folder.path()).len(), 1, "no leftovers");
}

#[test]
#[cfg(unix)]
fn a_writer_that_is_killed_leaves_a_whole_file_or_none() {
    let folder = tempfile::tempdir().expect("a folder");
    file(folder.path()).write(&vec![200; PAYLOAD]).expect("writable");
    for turn in 0..12 {
        let mut child = start("writer", folder.path(), "");
        std::thread::sleep(Duration::from_millis(8 + turn * 3));
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        assert!(file(folder.path()).read().is_some_and(|payload| whole(&payload)), "turn {turn}");
    }
    // What the killed left is swept once it is old: nobody writes for an hour.
    let stale = folder.path().join("model-1.1-0.tmp");
    std::fs::write(&stale, "half").expect("writable");
    let foreign = folder.path().join("other-1.1-0.tmp");
    std::fs::write(&foreign, "another program's").expect("writable");
    let old = SystemTime::now() - Duration::from_secs(2 * 3600);
    for name in names(folder.path()) {
        let file = std::fs::File::options().write(true).open(folder.path().join(name)).expect("writable");
        file.set_modified(old).expect("a time");
    }
    file(folder.path()).write(b"new").expect("writable");
    let mut left = names(folder.path());
    left.sort();
    assert_eq!(left, ["model-1.bin", "other-1.1-0.tmp"]);
}
