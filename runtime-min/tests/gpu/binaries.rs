//! Pipelines that an application keeps as the driver's binaries, by a driver that pretends to have them: written, brought back, and
//! harmless whatever the file or the driver has become.

use crate::support::*;
use jvc_lab::{Lab, LabError, Options, PipelineCounts, PretendedBinaries};
use jvc_runtime::*;
use std::path::{Path, PathBuf};

const N: usize = KERNELS.len();

/// All kernels from SPIR-V, and all from binaries.
const FRESH: PipelineCounts = PipelineCounts { compiled: N, restored: 0 };
const RESTORED: PipelineCounts = PipelineCounts { compiled: 0, restored: N };

const GOOD: PretendedBinaries = PretendedBinaries { driver: 1, forgetful: false, silent: false };

/// Loads the kernels on a new device, runs, writes the file, and tells how the pipelines came to be.
fn load(pretended: PretendedBinaries, kernels: &'static [KernelDesc<'static>], dir: &CacheDir) -> PipelineCounts {
    // As long as this one is open, no driver is unloaded: some do not stand that often.
    open();
    let options = Options { binaries: Some(pretended), ..Options::default() };
    let lab = Lab::open_keeping(&Select::Auto, &options, dir, "test").expect("tests need a Vulkan driver");
    let model = Model::load(lab.gpu(), &program(kernels), WeightSource::None, &CacheDir::None).expect("a model");
    let mut session = model.session(&entry(&double)).expect("a session");
    assert_eq!(run(&mut session, &floats(100, 1)), doubled(&floats(100, 1)));
    lab.write_binaries();
    let (counts, seen) = (lab.pipeline_counts(), lab.pretended_counts());
    assert_eq!(
        (seen.captured, seen.uncaptured, seen.restored),
        (counts.compiled, 0, counts.restored),
        "as the driver saw it"
    );
    assert_eq!(seen.left_over, 0, "binaries are given back");
    counts
}

fn file(folder: &Path) -> PathBuf {
    let files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    assert_eq!(files.len(), 1, "one file and no leftovers: {files:?}");
    files[0].clone()
}

fn place() -> (tempfile::TempDir, CacheDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = CacheDir::Path(folder.path().to_owned());
    (folder, dir)
}

#[test]
fn kernels_come_from_their_binaries_from_the_second_start_on() {
    let (folder, dir) = place();
    assert_eq!(load(GOOD, KERNELS, &dir), FRESH);
    let first = std::fs::read(file(folder.path())).expect("a cache file");
    let modified = std::fs::metadata(file(folder.path())).and_then(|m| m.modified()).expect("a time");
    assert_eq!(load(GOOD, KERNELS, &dir), RESTORED);
    assert_eq!(std::fs::read(file(folder.path())).expect("a cache file"), first);
    let after = std::fs::metadata(file(folder.path())).and_then(|m| m.modified()).expect("a time");
    assert_eq!(after, modified, "not written again");
}

#[test]
fn damaged_files_lead_back_to_spirv_and_are_replaced() {
    let (folder, dir) = place();
    load(GOOD, KERNELS, &dir);
    let path = file(folder.path());
    let good = std::fs::read(&path).expect("a cache file");
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let cut = [0, 4, 8, 12, good.len() / 2, good.len() - 1].map(|len| good[..len].to_vec());
    // Checksum, hash of a kernel, number of its binaries, lengths, key, data.
    let flips = [0, 8, 16, 20, 24, 28, 40, good.len() - 1].map(flipped);
    for (case, bytes) in cut.into_iter().chain(flips).chain([vec![0xff; 4096]]).enumerate() {
        std::fs::write(&path, bytes).expect("a damaged file");
        assert_eq!(load(GOOD, KERNELS, &dir), FRESH, "case {case}");
        assert_eq!(std::fs::read(&path).expect("a cache file"), good, "case {case} is replaced");
    }
}

#[test]
fn binaries_of_another_driver_are_not_looked_at() {
    let (_folder, dir) = place();
    assert_eq!(load(GOOD, KERNELS, &dir), FRESH);
    let other = PretendedBinaries { driver: 2, ..GOOD };
    assert_eq!(load(other, KERNELS, &dir), FRESH, "another global key");
    assert_eq!(load(other, KERNELS, &dir), RESTORED);
    assert_eq!(load(GOOD, KERNELS, &dir), FRESH, "and back");
}

#[test]
fn a_driver_that_refuses_its_binaries_gets_the_spirv() {
    let (_folder, dir) = place();
    load(GOOD, KERNELS, &dir);
    assert_eq!(load(PretendedBinaries { forgetful: true, ..GOOD }, KERNELS, &dir), FRESH);
}

#[test]
fn a_driver_that_gives_out_nothing_still_runs_and_nothing_is_kept_of_it() {
    let (folder, dir) = place();
    let silent = PretendedBinaries { silent: true, ..GOOD };
    assert_eq!(load(silent, KERNELS, &dir), FRESH);
    assert_eq!(load(silent, KERNELS, &dir), FRESH);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    assert_eq!(load(GOOD, KERNELS, &dir), FRESH);
    assert_eq!(load(GOOD, KERNELS, &dir), RESTORED);
}

#[test]
fn only_kernels_that_have_changed_are_compiled() {
    // All of them have the push constants of the largest one, `add`.
    const LESS: &[KernelDesc<'static>] = &[KERNELS[0], KERNELS[1], KERNELS[2]];
    let (folder, dir) = place();
    assert_eq!(load(GOOD, LESS, &dir), PipelineCounts { compiled: 3, restored: 0 });
    let three = std::fs::metadata(file(folder.path())).expect("a file").len();
    assert_eq!(load(GOOD, KERNELS, &dir), PipelineCounts { compiled: 1, restored: 3 });
    assert!(std::fs::metadata(file(folder.path())).expect("a file").len() > three);
    assert_eq!(load(GOOD, KERNELS, &dir), RESTORED);
}

#[test]
fn a_kernel_with_other_push_constants_is_another_one() {
    const ONE: &[KernelDesc<'static>] = &[KERNELS[3]];
    const WIDER: &[KernelDesc<'static>] = &[KernelDesc { n_bases: 2, ..KERNELS[3] }];
    let (_folder, dir) = place();
    let load = |kernels| {
        let options = Options { binaries: Some(GOOD), ..Options::default() };
        let lab = Lab::open_keeping(&Select::Auto, &options, &dir, "test").expect("tests need a Vulkan driver");
        Model::load(lab.gpu(), &program(kernels), WeightSource::None, &CacheDir::None).expect("a model");
        lab.write_binaries();
        lab.pipeline_counts()
    };
    let (fresh, restored) = (PipelineCounts { compiled: 1, restored: 0 }, PipelineCounts { compiled: 0, restored: 1 });
    assert_eq!((load(ONE), load(ONE), load(WIDER), load(WIDER)), (fresh, restored, fresh, restored));
}

#[test]
fn a_folder_that_cannot_be_written_costs_nothing_but_time() {
    assert_eq!(load(GOOD, KERNELS, &CacheDir::None), FRESH);
    assert_eq!(load(GOOD, KERNELS, &CacheDir::Path("/proc/nowhere".into())), FRESH);
}

/// With the driver itself: what it compiled once is not compiled again, or it says that it hands out nothing.
#[test]
fn the_driver_at_hand_takes_its_binaries_back_or_has_none() {
    let (_folder, dir) = place();
    let load = || {
        let lab = match Lab::open_keeping(&Select::Auto, &Options::default(), &dir, "test") {
            Err(LabError::NoBinaries) => return None,
            lab => lab.expect("tests need a Vulkan driver"),
        };
        let model = Model::load(lab.gpu(), &program(KERNELS), WeightSource::None, &CacheDir::None).expect("a model");
        let mut session = model.session(&entry(&double)).expect("a session");
        assert_eq!(run(&mut session, &floats(100, 1)), doubled(&floats(100, 1)));
        lab.write_binaries();
        Some(lab.pipeline_counts())
    };
    assert!([(None, None), (Some(FRESH), Some(RESTORED))].contains(&(load(), load())));
}
