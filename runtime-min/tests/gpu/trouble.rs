//! Trouble around a model: no memory at any point, damaged weights, many threads, any order of drops, a shared cache. There is a typed
//! error and no panic, the validation layer finds nothing left over, and what runs gives right results.

use crate::support::*;
use jvc_lab::{Lab, LabError, Options, Validation};
use jvc_runtime::*;

/// With the validation layer, which counts objects at the device's destruction; without it where it is not installed.
fn watched(options: &Options) -> Lab {
    let validation = Some(Validation { sync: false });
    match Lab::open(open().info(), &Options { validation, ..*options }) {
        Err(LabError::NoLayer) => lab(*options),
        lab => lab.expect("tests need a Vulkan driver"),
    }
}

const CHUNKS: &[u64] = &[4096, 8192];

/// Two different chunks.
fn payload() -> [Vec<u8>; 2] {
    [1_u8, 2].map(|seed| (0..CHUNKS[usize::from(seed) - 1]).map(|i| (i * 31) as u8 ^ seed).collect())
}

fn weighted(gpu: &Gpu, file: &[u8]) -> Result<Model> {
    let [a, b] = payload();
    let weights = WeightsDesc { chunk_bytes: CHUNKS, content_hash: content_hash([&a[..], &b[..]]) };
    Model::load(gpu, &ProgramDesc { weights, ..program(KERNELS) }, WeightSource::Bytes(file), &CacheDir::None)
}

fn good_file() -> Vec<u8> {
    let [a, b] = payload();
    weight_file(&[&a, &b])
}

/// Loads, makes a session of two slots with state, and runs.
fn everything(gpu: &Gpu) -> Result<Vec<f32>> {
    let model = weighted(gpu, &good_file())?;
    let entry = EntryDesc { state_bytes: 4096, ..entry(&double) };
    let options = SessionOptions { n_slots: 2, trace_steps: true, ..SessionOptions::default() };
    let mut session = model.session_with(&entry, &options)?;
    let buffer = gpu.buffer(1024, MemoryKind::Device)?;
    buffer.write(0, &[1; 1024])?;
    try_run(&mut session, &floats(1000, 1))
}

#[test]
fn memory_may_run_out_anywhere() {
    for without_mapped in [false, true] {
        let mut outcomes = vec![];
        for n in 0..200 {
            let lab = watched(&Options { allocations: Some(n), without_mapped, ..Options::default() });
            let (outcome, log) = (everything(lab.gpu()), lab.log());
            drop(lab);
            assert_eq!(log.messages(), Vec::<String>::new(), "{n} allocations");
            let done = outcome.is_ok();
            outcomes.push(outcome);
            if done {
                break;
            }
        }
        let last = outcomes.pop().expect("some");
        assert_eq!(last, Ok(doubled(&floats(1000, 1))), "with enough memory it runs");
        assert!(outcomes.len() > 8, "{outcomes:?}");
        let is_typed = |o: &Result<Vec<f32>>| matches!(o, Err(Error::OutOfMemory { bytes, .. }) if *bytes > 0);
        assert!(outcomes.iter().all(is_typed), "{outcomes:?}");
    }
}

#[test]
fn a_model_without_room_for_one_more_session_goes_on() {
    let mut n = 0;
    // As many allocations as one session takes.
    let (lab, model, mut session) = loop {
        let lab = watched(&Options { allocations: Some(n), ..Options::default() });
        if let Ok(model) = weighted(lab.gpu(), &good_file())
            && let Ok(session) = model.session(&entry(&double))
        {
            break (lab, model, session);
        }
        n += 1;
        assert!(n < 200, "a session takes few allocations");
    };
    for seed in 0..3 {
        assert!(matches!(model.session(&entry(&double)).err(), Some(Error::OutOfMemory { .. })));
        assert_eq!(run(&mut session, &floats(500, seed)), doubled(&floats(500, seed)));
    }
    let log = lab.log();
    drop((session, model, lab));
    assert_eq!(log.messages(), Vec::<String>::new());
}

#[test]
fn weights_of_another_order_or_bit_are_refused_before_any_submission() {
    let [a, b] = payload();
    // The header of the right file over swapped halves of the payload, a flipped bit, and one byte less.
    let good = good_file();
    let swapped = [&good[..64], &b, &a].concat();
    let mut flipped = good.clone();
    flipped[64 + 5000] ^= 4;
    let other = weight_file(&[&b, &a]);
    let cases = [
        (swapped, WeightsFault::Corrupt),
        (flipped, WeightsFault::Corrupt),
        (good[..good.len() - 1].to_vec(), WeightsFault::Size),
        (other, WeightsFault::Foreign),
    ];
    for (file, expected) in cases {
        // The first submission would lose the device, and the error would be another one.
        let lab = watched(&Options { lost_at: Some(0), ..Options::default() });
        let error = weighted(lab.gpu(), &file).err();
        assert!(matches!(&error, Some(Error::Weights { fault, .. }) if *fault == expected), "{error:?}");
        let log = lab.log();
        drop(lab);
        assert_eq!(log.messages(), Vec::<String>::new());
    }
}

#[test]
fn sixty_four_threads_run_one_model() {
    let lab = watched(&Options::default());
    let (model, log) = (weighted(lab.gpu(), &good_file()).expect("a model"), lab.log());
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let model = model.clone();
            scope.spawn(move || {
                let mut session = model.session(&entry(&double)).expect("a session");
                for turn in 0..4 {
                    let x = floats(100 + thread * 50, thread * 4 + turn);
                    assert_eq!(run(&mut session, &x), doubled(&x), "thread {thread}, turn {turn}");
                }
            });
        }
    });
    drop((model, lab));
    assert_eq!(log.messages(), Vec::<String>::new());
}

#[test]
fn threads_that_load_over_one_cache_get_models_that_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = CacheDir::Path(folder.path().to_owned());
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let dir = &dir;
            scope.spawn(move || {
                let model = Model::load(&open(), &program(KERNELS), WeightSource::None, dir).expect("a model");
                let mut session = model.session(&entry(&double)).expect("a session");
                assert_eq!(run(&mut session, &floats(300, seed)), doubled(&floats(300, seed)));
            });
        }
    });
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "one file and no leftovers");
}

/// All orders of n things.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let insert = |order: Vec<usize>| {
        (0..n).map(move |at| {
            let mut longer = order.clone();
            longer.insert(at, n - 1);
            longer
        })
    };
    orders(n - 1).into_iter().flat_map(insert).collect()
}

#[test]
fn things_are_dropped_in_any_order() {
    let all = orders(4);
    assert_eq!(all.len(), 24);
    for order in all {
        let lab = watched(&Options::default());
        let (gpu, log) = (lab.gpu().clone(), lab.log());
        let buffer = gpu.buffer(4096, MemoryKind::Device).expect("a buffer");
        let model = weighted(&gpu, &good_file()).expect("a model");
        let mut session = model.session(&entry(&double)).expect("a session");
        let x = bytes(&floats(MAX, 1));
        // The run is still in flight when the first things go; nobody waits for it.
        let _ticket = session.submit(&table(MAX), &[&x], &[u64::from(MAX) * 4]).expect("a free slot");
        let (mut gpu, mut model, mut session, mut buffer) = (Some(gpu), Some(model), Some(session), Some(buffer));
        for which in &order {
            match which {
                0 => gpu = None,
                1 => model = None,
                2 => session = None,
                _ => buffer = None,
            }
        }
        assert!(gpu.is_none() && model.is_none() && session.is_none() && buffer.is_none());
        drop(lab);
        assert_eq!(log.messages(), Vec::<String>::new(), "{order:?}");
    }
}

#[test]
fn a_session_outlives_the_handles_that_it_came_from() {
    let gpu = Gpu::open(&Select::Auto).expect("tests need a Vulkan driver");
    let model = model(&gpu);
    let mut session = model.session(&entry(&double)).expect("a session");
    drop((model, gpu));
    assert_eq!(run(&mut session, &floats(700, 3)), doubled(&floats(700, 3)));
}

#[test]
fn a_lost_device_with_everything_alive_leaves_nothing_behind() {
    for lost_at in 0..6 {
        let lab = watched(&Options { lost_at: Some(lost_at), without_mapped: true, ..Options::default() });
        let (outcome, log) = (everything(lab.gpu()), lab.log());
        drop(lab);
        assert!(matches!(outcome, Ok(_) | Err(Error::DeviceLost { .. })), "{outcome:?}");
        assert_eq!(log.messages(), Vec::<String>::new(), "lost at {lost_at}");
    }
}

#[test]
fn what_is_left_over_is_seen() {
    let lab = watched(&Options::default());
    let log = lab.log();
    let buffer = lab.gpu().buffer(256, MemoryKind::Device).expect("a buffer");
    drop(lab);
    assert_eq!(log.messages().len(), 1, "the buffer keeps the device: {:?}", log.messages());
    drop(buffer);
}
