//! The validation layer: silent on the runtime's own calls, and able to see a missing barrier in bindings form.

use crate::support::*;
use jvc_lab::{Bound, BoundKernel, Lab, LabError, Validation};
use jvc_runtime::*;

#[expect(clippy::print_stdout, reason = "a skipped test says so")]
fn validated(sync: bool) -> Option<Lab> {
    let options = jvc_lab::Options { validation: Some(Validation { sync }), ..jvc_lab::Options::default() };
    match Lab::open(open().info(), &options) {
        Err(LabError::NoLayer) => {
            println!("skipped: VK_LAYER_KHRONOS_validation is not installed");
            None
        }
        lab => Some(lab.expect("tests need a Vulkan driver")),
    }
}

#[test]
fn the_layer_is_silent_from_opening_to_destruction() {
    for sync in [false, true] {
        let Some(lab) = validated(sync) else { return };
        let (gpu, log) = (lab.gpu(), lab.log());
        let entry = entry(&double);
        let payload = vec![1; 1 << 20];
        let weights = WeightsDesc { chunk_bytes: &[1 << 20], content_hash: content_hash([&payload[..]]) };
        let desc = ProgramDesc { weights, ..program(KERNELS) };
        let file = weight_file(&[&payload]);
        let model = Model::load(gpu, &desc, WeightSource::Bytes(&file), &CacheDir::None).expect("a model");
        let options = SessionOptions { n_slots: 2, ..SessionOptions::default() };
        let mut session = model.session_with(&entry, &options).expect("a session");
        for n in [0, 100, MAX] {
            poison(&session);
            assert_eq!(run(&mut session, &floats(n, n)), doubled(&floats(n, n)));
        }
        let timed = SessionOptions { timestamps: Timestamps::Steps, ..SessionOptions::default() };
        let mut timed = model.session_with(&entry, &timed).expect("a session");
        assert_eq!(run(&mut timed, &floats(100, 1)), doubled(&floats(100, 1)));
        assert_eq!(timed.step_ns(0).expect("timestamps").len(), 3);
        let state = EntryDesc { state_bytes: 4096, ..entry };
        let traced = SessionOptions { trace_steps: true, ..options };
        let mut stateful = model.session_with(&state, &traced).expect("a session");
        for n in [5, 500] {
            stateful.reset();
            assert_eq!(run(&mut stateful, &floats(n, n)), doubled(&floats(n, n)));
        }
        drop((timed, session, stateful, model, lab));
        assert_eq!(log.messages(), Vec::<String>::new(), "sync: {sync}");
    }
}

/// Runs steps of bound kernels (an addition, a halving) under synchronisation validation: the output for x, and the number of hazards;
/// nothing else may be reported.
fn hazards(steps: &(dyn Fn(&mut Recorder<'_>, &Lab, [BoundKernel; 2]) + Sync), x: &[f32]) -> Option<(Vec<f32>, usize)> {
    let lab = validated(true)?;
    let log = lab.log();
    let words = |spv: &[u8]| -> Vec<u32> { spv.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect() };
    let kernel = |spv, n| lab.bound_kernel(&words(spv), n, 0).expect("a kernel");
    let kernels =
        [kernel(include_bytes!("kernels/bound_add.spv"), 4), kernel(include_bytes!("kernels/bound_halve.spv"), 1)];
    let record = |r: &mut Recorder<'_>| steps(r, &lab, kernels);
    let entry = EntryDesc { arena_bytes: &[MAX as u64 * 8 + 512], ..entry(&record) };
    let mut session = model(lab.gpu()).session(&entry).expect("a session");
    let y = run(&mut session, x);
    drop((session, lab));
    let hazards = log.messages().iter().filter(|message| message.to_uppercase().contains("HAZARD")).count();
    assert_eq!(log.messages().len(), hazards, "{:?}", log.messages());
    Some((y, hazards))
}

/// The arena's two buffers, the second at a multiple of 256 bytes, and the symbol table.
fn operands() -> [Bound; 3] {
    let n_bytes = u64::from(MAX) * 4;
    let bound = |base, offset, bytes| Bound { base, offset, bytes };
    [bound(Base::Arena(0), 0, n_bytes), bound(Base::Arena(0), ALIGNED_SECOND, n_bytes), bound(Base::Symbols, 0, 16)]
}

const ALIGNED_SECOND: u64 = (MAX as u64 * 4).next_multiple_of(256);

/// The second buffer into y.
fn store_aligned(r: &mut Recorder<'_>) {
    let offset = (ALIGNED_SECOND / 16) as u32;
    r.dispatch(STORE, &[Base::IoTable, Base::Arena(0), Base::Symbols], &[1, offset], GROUPS);
}

#[test]
fn synchronisation_validation_sees_a_missing_barrier_in_bindings_form() {
    // x is loaded by address; the second addition reads what the first wrote.
    let chain = |with_barrier: bool| {
        move |r: &mut Recorder<'_>, lab: &Lab, [add, _]: [BoundKernel; 2]| {
            let [a, b, symbols] = operands();
            load(r);
            r.barrier();
            lab.dispatch(r, &add, &[a, a, b, symbols], GROUPS);
            if with_barrier {
                r.barrier();
            }
            lab.dispatch(r, &add, &[a, b, b, symbols], GROUPS);
            r.barrier();
            store_aligned(r);
        }
    };
    let x = floats(1000, 1);
    let Some((y, none)) = hazards(&chain(true), &x) else { return };
    assert_eq!((y, none), (x.iter().map(|x| 3.0 * x).collect(), 0));
    let (_, some) = hazards(&chain(false), &x).expect("the layer is there");
    assert!(some > 0);
}

#[test]
fn group_counts_that_a_kernel_wrote_need_their_own_barrier() {
    // A kernel halves the size and its group counts; the next dispatch takes them from the table.
    let halved = |barrier: fn(&mut Recorder<'_>)| {
        move |r: &mut Recorder<'_>, lab: &Lab, [add, halve]: [BoundKernel; 2]| {
            let [a, b, symbols] = operands();
            load(r);
            r.barrier();
            lab.dispatch(r, &add, &[a, a, b, symbols], GROUPS);
            r.barrier();
            lab.dispatch(r, &halve, &[symbols], Groups::Fixed([1, 1, 1]));
            barrier(r);
            lab.dispatch(r, &add, &[a, b, b, symbols], GROUPS);
            r.barrier();
            store_aligned(r);
        }
    };
    let x = floats(1000, 1);
    let Some((y, none)) = hazards(&halved(|r| r.barrier_for_groups()), &x) else { return };
    // Only the first half is stored as well.
    assert_eq!((&y[..500], none), (&x[..500].iter().map(|x| 3.0 * x).collect::<Vec<f32>>()[..], 0));
    let (_, some) = hazards(&halved(|r| r.barrier()), &x).expect("the layer is there");
    assert!(some > 0);
}
