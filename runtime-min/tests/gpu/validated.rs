//! The validation layer: silent on the runtime's own calls, and able to see a missing barrier in bindings form.

use crate::support::*;
use jvc_runtime::*;

#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn validated(sync: bool) -> Option<Gpu> {
    let options = Options { validation: Some(Validation { sync }), robust: true, ..Options::default() };
    match Gpu::open_with(&Select::Auto, &options) {
        Err(Error::NoValidationLayer) => {
            println!("skipped: VK_LAYER_KHRONOS_validation is not installed");
            None
        }
        gpu => Some(gpu.expect("tests need a Vulkan driver")),
    }
}

#[test]
fn the_layer_is_silent_from_opening_to_destruction() {
    for sync in [false, true] {
        let Some(gpu) = validated(sync) else { return };
        let log = gpu.validation();
        let entry = entry(&double);
        let payload = vec![1; 1 << 20];
        let weights = WeightsDesc { chunk_bytes: &[1 << 20], content_hash: content_hash(&payload) };
        let desc = ProgramDesc { weights, ..program(KERNELS) };
        let file = weight_file(&payload);
        let model = Model::load(&gpu, &desc, WeightSource::Bytes(&file), &CacheDir::None).expect("a model");
        let options = SessionOptions { n_slots: 2, ..SessionOptions::default() };
        let mut session = model.session_with(&entry, &options).expect("a session");
        for n in [0, 100, MAX] {
            session.poison_arena().expect("poison");
            assert_eq!(run(&mut session, &floats(n, n)), doubled(&floats(n, n)));
        }
        let mut profile = Profile::new(&session, &entry).expect("a profile");
        let mut y = vec![0; 400];
        profile.run(&mut session, &table(100), &[&[0; 400]], &mut [&mut y]).expect("a run");
        let state = EntryDesc { state_bytes: 4096, ..entry };
        let traced = SessionOptions { trace_steps: true, ..options };
        let mut stateful = model.session_with(&state, &traced).expect("a session");
        for n in [5, 500] {
            stateful.reset();
            assert_eq!(run(&mut stateful, &floats(n, n)), doubled(&floats(n, n)));
        }
        drop((profile, session, stateful, model, gpu));
        assert_eq!(log.messages(), Vec::<String>::new(), "sync: {sync}");
    }
}

/// Two additions through bindings: the second reads what the first wrote.
fn chain(barrier: bool) -> impl Fn(&mut Recorder<'_>) + Sync {
    move |r| {
        let n_bytes = u64::from(MAX) * 4;
        let bound = |region, offset| Bound { region, offset, bytes: n_bytes };
        let second = u64::from(SECOND) * 16 + 256 - u64::from(SECOND) * 16 % 256;
        let symbols = Bound { region: Region::Symbols, offset: 0, bytes: 16 };
        let x = bound(Region::Io(0), 0);
        let (a, b) = (bound(Region::Arena(0), 0), bound(Region::Arena(0), second));
        r.dispatch_bound(0, &[x, x, a, symbols], GROUPS);
        if barrier {
            r.barrier();
        }
        r.dispatch_bound(0, &[a, x, b, symbols], GROUPS);
        r.barrier();
        r.dispatch_bound(0, &[a, b, bound(Region::Io(1), 0), symbols], GROUPS);
    }
}

/// Runs bound kernels under synchronisation validation: the output for x, and the number of hazards; nothing else may be reported.
fn hazards(record: &(dyn Fn(&mut Recorder<'_>) + Sync), x: &[f32]) -> Option<(Vec<f32>, usize)> {
    let gpu = validated(true)?;
    let log = gpu.validation();
    let model = Model::load(&gpu, &program(BOUND_KERNELS), WeightSource::None, &CacheDir::None).expect("a model");
    let entry = EntryDesc { arena_bytes: &[MAX as u64 * 8 + 512], ..entry(record) };
    let mut session = model.session(&entry).expect("a session");
    let y = run(&mut session, x);
    drop((session, model, gpu));
    let hazards = log.messages().iter().filter(|message| message.to_uppercase().contains("HAZARD")).count();
    assert_eq!(log.messages().len(), hazards, "{:?}", log.messages());
    Some((y, hazards))
}

#[test]
fn synchronisation_validation_sees_a_missing_barrier_in_bindings_form() {
    let x = floats(1000, 1);
    let Some((y, none)) = hazards(&chain(true), &x) else { return };
    assert_eq!((y, none), (x.iter().map(|x| 5.0 * x).collect(), 0));
    let (_, some) = hazards(&chain(false), &x).expect("the layer is there");
    assert!(some > 0);
}

/// A kernel halves the size and its group counts; the next dispatch takes them from the table.
fn halved(barrier: fn(&mut Recorder<'_>)) -> impl Fn(&mut Recorder<'_>) + Sync {
    move |r| {
        let symbols = Bound { region: Region::Symbols, offset: 0, bytes: 16 };
        let port = |n| Bound { region: Region::Io(n), offset: 0, bytes: u64::from(MAX) * 4 };
        r.dispatch_bound(0, &[port(0), port(0), port(1), symbols], GROUPS);
        r.barrier();
        r.dispatch_bound(1, &[symbols], Groups::Fixed([1, 1, 1]));
        barrier(r);
        r.dispatch_bound(0, &[port(0), port(1), port(1), symbols], GROUPS);
    }
}

#[test]
fn group_counts_that_a_kernel_wrote_need_their_own_barrier() {
    let x = floats(1000, 1);
    let Some((y, none)) = hazards(&halved(|r| r.barrier_for_groups()), &x) else { return };
    let factor = |i| if i < 500 { 3.0 } else { 2.0 };
    assert_eq!((y, none), (x.iter().enumerate().map(|(i, x)| factor(i) * x).collect(), 0));
    let (_, some) = hazards(&halved(|r| r.barrier()), &x).expect("the layer is there");
    assert!(some > 0);
}
