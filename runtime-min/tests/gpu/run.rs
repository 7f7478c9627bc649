//! Runs: sizes, slots, state, external buffers, profiles.

use crate::support::*;
use jvc_runtime::*;

#[test]
fn one_recording_serves_every_size() {
    let model = model(&open());
    let mut session = model.session(&entry(&double)).expect("a session");
    for n in [1, 0, 63, 64, 65, MAX, 997, MAX - 1] {
        poison(&session);
        let x = floats(n, n);
        assert_eq!(run(&mut session, &x), doubled(&x), "n = {n}");
    }
}

#[test]
fn a_size_that_a_kernel_writes_rules_the_steps_behind_it() {
    let halved = |r: &mut Recorder<'_>| {
        double(r);
        r.barrier();
        r.dispatch(HALVE, &[Base::Symbols], &[], Groups::Fixed([1, 1, 1]));
        r.barrier_for_groups();
        // x + x + x, but for the first half only: the second half keeps what `double` stored.
        r.dispatch(
            ADD,
            &[Base::Arena(0), Base::Arena(0), Base::Arena(0), Base::Symbols],
            &[0, SECOND, SECOND],
            Groups::Table(1),
        );
        r.barrier();
        store_second(r);
    };
    let model = model(&open());
    let mut session = model.session(&entry(&halved)).expect("a session");
    for n in [2, 1000, 131, 4998] {
        let x = floats(n, n);
        let mut y = vec![0; x.len() * 4];
        let ticket = session.submit(&table(n), &[&bytes(&x)], &[u64::from(n) * 4]).expect("a submission");
        assert_eq!(session.read_table(&ticket).expect("the table")[..2], [n / 2, (n / 2).div_ceil(64)]);
        session.wait(ticket, &mut [&mut y]).expect("a run");
        let factor = |i| if i < n / 2 { 3.0 } else { 2.0 };
        let expected: Vec<f32> = (0..n).zip(&x).map(|(i, x)| factor(i) * x).collect();
        assert_eq!(values(&y), expected, "n = {n}");
    }
}

#[test]
fn runs_in_flight_keep_to_their_slots() {
    let model = model(&open());
    let options = SessionOptions { n_slots: 3, ..SessionOptions::default() };
    let mut session = model.session_with(&entry(&double), &options).expect("a session");
    for round in 0..20 {
        let inputs: Vec<Vec<f32>> = (0..3).map(|slot| floats(1000 + slot * 500, round * 3 + slot)).collect();
        let submit = |x: &Vec<f32>| {
            session.submit(&table(x.len() as u32), &[&bytes(x)], &[x.len() as u64 * 4]).expect("a free slot")
        };
        let tickets: Vec<Ticket> = inputs.iter().map(submit).collect();
        let full = session.submit(&table(0), &[&[]], &[0]);
        assert_eq!(full, Err(Error::SlotsBusy { n_slots: 3 }));
        for (x, ticket) in inputs.iter().zip(tickets).rev() {
            let mut y = vec![0; x.len() * 4];
            session.wait(ticket, &mut [&mut y]).expect("a run");
            assert_eq!(values(&y), doubled(x), "round {round}");
        }
    }
}

#[test]
fn a_cancelled_run_frees_its_slot() {
    let model = model(&open());
    let mut session = model.session(&entry(&double)).expect("a session");
    let x = floats(100, 1);
    let ticket = session.submit(&table(100), &[&bytes(&x)], &[400]).expect("a submission");
    assert!(matches!(try_run(&mut session, &x), Err(Error::SlotsBusy { n_slots: 1 })));
    session.cancel(ticket);
    assert_eq!(run(&mut session, &x), doubled(&x));
}

#[test]
fn repeated_runs_give_the_same_bytes_from_poisoned_arenas() {
    let model = model(&open());
    let mut session = model.session(&entry(&double)).expect("a session");
    let x = floats(4001, 5);
    let first = run(&mut session, &x);
    for _ in 0..20 {
        poison(&session);
        assert_eq!(run(&mut session, &x), first);
    }
}

#[test]
fn poison_shows_in_what_no_step_wrote() {
    let model = model(&open());
    let mut session = model.session(&entry(&store_second)).expect("a session");
    poison(&session);
    assert!(run(&mut session, &floats(100, 1)).iter().all(|y| y.is_nan()));
}

/// y = state = state + x.
fn accumulate(r: &mut Recorder<'_>) {
    load(r);
    r.barrier();
    r.dispatch(ADD, &[Base::Arena(0), Base::State, Base::State, Base::Symbols], &[0, 4, 4], GROUPS);
    r.barrier();
    r.dispatch(STORE, &[Base::IoTable, Base::State, Base::Symbols], &[1, 4], GROUPS);
}

#[test]
fn state_outlives_runs_and_resets_to_weights_and_zeros() {
    let start: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let file = weight_file(&[&bytes(&start)]);
    let weights = WeightsDesc { chunk_bytes: &[256], content_hash: content_hash([&file[64..]]) };
    let desc = ProgramDesc { weights, ..program(KERNELS) };
    let model = Model::load(&open(), &desc, WeightSource::Bytes(&file), &CacheDir::None).expect("a model");
    // The first ten elements start from weights 6 to 15, the rest from zeros.
    let init = [StateInit { chunk: 0, offset: 24, state_offset: 64, bytes: 40 }];
    let entry = EntryDesc { state_bytes: 64 + 400, state_init: &init, ..entry(&accumulate) };
    let options = SessionOptions { n_slots: 2, ..SessionOptions::default() };
    let mut session = model.session_with(&entry, &options).expect("a session");
    let mut other = model.session(&entry).expect("a session");
    let initial = |i: usize| if i < 10 { (i + 6) as f32 } else { 0.0 };
    let x = floats(100, 3);
    for _ in 0..3 {
        for n_runs in 1..4 {
            let expected: Vec<f32> = (0..100).map(|i| initial(i) + n_runs as f32 * x[i]).collect();
            assert_eq!(run(&mut session, &x), expected, "run {n_runs} after a reset");
        }
        session.reset();
    }
    assert_eq!(run(&mut other, &x), (0..100).map(|i| initial(i) + x[i]).collect::<Vec<f32>>(), "another session");
    // Two runs in flight see each other's state in the order of submission.
    let mut submit = || session.submit(&table(100), &[&bytes(&x)], &[400]).expect("a free slot");
    let tickets = [submit(), submit()];
    for (n_runs, ticket) in (1..).zip(tickets) {
        let mut y = vec![0; 400];
        session.wait(ticket, &mut [&mut y]).expect("a run");
        assert_eq!(values(&y)[50], initial(50) + n_runs as f32 * x[50]);
    }
}

#[test]
fn external_buffers_are_bound_without_recording_again() {
    let gpu = open();
    let mut session = model(&gpu).session(&entry(&double)).expect("a session");
    let x = floats(300, 2);
    let input = gpu.buffer(1200, MemoryKind::Upload).expect("a buffer");
    let output = gpu.buffer(1200, MemoryKind::Device).expect("a buffer");
    input.write(0, &bytes(&x)).expect("a write");
    session.bind_external(0, Some(input.address())).expect("an input");
    session.bind_external(1, Some(output.address())).expect("an output");
    session.run(&table(300), &[&[]], &mut [&mut []]).expect("a run");
    let mut y = vec![0; 1200];
    output.read(0, &mut y).expect("a read");
    assert_eq!(values(&y), doubled(&x));
    session.bind_external(0, None).expect("an input");
    session.bind_external(1, None).expect("an output");
    let own = floats(299, 9);
    assert_eq!(run(&mut session, &own), doubled(&own));
    output.read(0, &mut y).expect("a read");
    assert_eq!(values(&y), doubled(&x), "no longer written");
    assert!(matches!(session.bind_external(0, Some(8)), Err(Error::Argument { .. })), "unaligned");
    assert!(matches!(session.bind_external(2, None), Err(Error::Argument { .. })), "no such port");
}

#[test]
fn sessions_of_two_entry_points_share_an_arena() {
    let model = model(&open());
    let (first, second) = (entry(&double), entry(&copy));
    let arenas = model.arenas(&[&first, &second], 1).expect("arenas");
    let options = SessionOptions { arenas: Some(arenas), ..SessionOptions::default() };
    let mut sessions = [&first, &second].map(|entry| model.session_with(entry, &options).expect("a session"));
    assert_eq!(
        sessions[0].buffer(0, Base::Arena(0)).expect("a chunk").address(),
        sessions[1].buffer(0, Base::Arena(0)).expect("a chunk").address()
    );
    let inputs = [floats(2000, 1), floats(1500, 2)];
    let tickets: Vec<Ticket> = sessions
        .iter_mut()
        .zip(&inputs)
        .map(|(s, x)| s.submit(&table(x.len() as u32), &[&bytes(x)], &[x.len() as u64 * 4]).expect("a submission"))
        .collect();
    let expected = [doubled(&inputs[0]), inputs[1].clone()];
    for ((session, ticket), expected) in sessions.iter_mut().zip(tickets).zip(expected) {
        let mut y = vec![0; expected.len() * 4];
        session.wait(ticket, &mut [&mut y]).expect("a run");
        assert_eq!(values(&y), expected);
    }
}

/// y = x.
fn copy(r: &mut Recorder<'_>) {
    load(r);
    r.barrier();
    r.dispatch(STORE, &[Base::IoTable, Base::Arena(0), Base::Symbols], &[1, 0], GROUPS);
}

#[test]
fn thousands_of_steps_are_split_and_stay_in_order() {
    let many = |r: &mut Recorder<'_>| {
        load(r);
        r.barrier();
        // second = x, then 7,000 times second = second + x: wrong in the last bits unless every addition happened, in order.
        r.dispatch(STORE, &[Base::IoTable, Base::Arena(0), Base::Symbols], &[1, 0], GROUPS);
        add_to_second(r);
        for step in 0..7_000 {
            r.barrier();
            r.step_label(&format!("add {step}"));
            r.dispatch(
                ADD,
                &[Base::Arena(0), Base::Arena(0), Base::Arena(0), Base::Symbols],
                &[0, SECOND, SECOND],
                GROUPS,
            );
        }
        r.barrier();
        store_second(r);
    };
    let model = model(&open());
    let mut session = model.session(&entry(&many)).expect("a session");
    assert_eq!(session.step_labels().len(), 7_004);
    let x: Vec<f32> = (0..100).map(|i| i as f32).collect();
    assert_eq!(run(&mut session, &x), x.iter().map(|x| x * 7_002.0).collect::<Vec<f32>>());
}

#[test]
fn timestamps_time_each_step_and_leave_the_results_alone() {
    let model = model(&open());
    let options = SessionOptions { timestamps: Timestamps::Steps, ..SessionOptions::default() };
    let mut session = model.session_with(&entry(&double), &options).expect("a session");
    assert_eq!(session.step_labels(), ["load x", "add x x", "store y"]);
    for seed in 0..2 {
        let x = floats(MAX, seed);
        assert_eq!(run(&mut session, &x), doubled(&x));
        let times = session.step_ns(0).expect("times");
        assert_eq!(times.len(), 3);
        assert!(times.iter().all(|ns| *ns > 0.0 && *ns < 1e10), "{times:?}");
    }
    let options = SessionOptions { timestamps: Timestamps::Ends, ..SessionOptions::default() };
    let mut session = model.session_with(&entry(&double), &options).expect("a session");
    let x = floats(MAX, 7);
    assert_eq!(run(&mut session, &x), doubled(&x));
    let times = session.step_ns(0).expect("times");
    assert!(matches!(times[..], [ns] if ns > 0.0 && ns < 1e10), "{times:?}");
    let plain = model.session(&entry(&double)).expect("a session");
    assert!(matches!(plain.step_ns(0), Err(Error::Missing { .. })));
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_anything_runs() {
    let model = model(&open());
    let mut session = model.session(&entry(&double)).expect("a session");
    let x = bytes(&floats(10, 1));
    let mut y = vec![0; 40];
    let mut long = vec![0; MAX as usize * 4 + 4];
    let message = |result: Result<(), Error>| result.expect_err("a mistake").to_string();
    let wrong_table = message(session.run(&[1], &[&x], &mut [&mut y]));
    assert_eq!(wrong_table, "words of the symbol table of main: got 1, the entry point takes 4");
    assert_eq!(message(session.run(&table(10), &[], &mut [&mut y])), "inputs of main: got 0, the entry point takes 1");
    assert_eq!(message(session.run(&table(10), &[&x], &mut [])), "outputs of main: got 0, the entry point takes 1");
    let too_long = message(session.run(&table(10), &[&x], &mut [&mut long]));
    assert_eq!(too_long, "bytes of port 1 of main: got 20004, the entry point takes at most 20000");
    assert_eq!(run(&mut session, &floats(10, 1)), doubled(&floats(10, 1)));
}

#[test]
fn inconsistent_steps_are_errors_of_the_session() {
    let model = model(&open());
    let attempt = |record: &(dyn Fn(&mut Recorder<'_>) + Sync)| {
        model.session(&entry(record)).err().expect("an inconsistent step").to_string()
    };
    let kernel = attempt(&|r| r.dispatch(9, &[Base::Symbols], &[], GROUPS));
    let expected = "program tables are inconsistent: step 0 () cannot be kernel 9 on [Symbols] at [] by Table(1)";
    assert_eq!(kernel, expected);
    let chunk = attempt(&|r| {
        load(r);
        r.step_label("second");
        r.dispatch(LOAD, &[Base::IoTable, Base::Arena(1), Base::Symbols], &[0, 0], GROUPS);
    });
    let expected = "step 1 (second) cannot be kernel 0 on [IoTable, Arena(1), Symbols] at [0, 0] by Table(1)";
    assert!(chunk.ends_with(expected), "{chunk}");
    let offsets = attempt(&|r| r.dispatch(LOAD, &[Base::IoTable, Base::Arena(0), Base::Symbols], &[0], GROUPS));
    assert!(offsets.contains("cannot be kernel 0 on [IoTable, Arena(0), Symbols] at [0] by"), "{offsets}");
    let groups = attempt(&|r| r.dispatch(HALVE, &[Base::Symbols], &[], Groups::Table(2)));
    assert!(groups.ends_with("by Table(2)"), "{groups}");
    let counts = attempt(&|r| r.dispatch(HALVE, &[Base::Symbols], &[], Groups::Fixed([1, u32::MAX, 1])));
    assert!(counts.starts_with("this GPU offers workgroups of a dispatch"), "{counts}");
}

#[test]
fn memory_is_printed_per_slot() {
    let model = model(&open());
    let options = SessionOptions { n_slots: 2, ..SessionOptions::default() };
    let session = model.session_with(&entry(&double), &options).expect("a session");
    let whole = |bytes: u32| u64::from(bytes).next_multiple_of(256);
    let (arena, small) = (whole(MAX * 8), 2 * whole(MAX * 4) + 512);
    let slot = |n| format!("slot {n}: arena {arena} bytes; inputs, outputs and tables {small} bytes\n");
    let first = "main: weights 0 bytes, shared with other sessions; state 0 bytes\n";
    assert_eq!(session.to_string(), [first, &slot(0), &slot(1)].concat());
}

#[test]
fn sessions_move_and_devices_are_shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Gpu>();
    check::<Model>();
    check::<Session>();
    let gpu = open();
    let model = model(&gpu);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let model = model.clone();
            scope.spawn(move || {
                let mut session = model.session(&entry(&double)).expect("a session");
                for n in 1..50 {
                    let x = floats(n * 20, seed * 50 + n);
                    assert_eq!(run(&mut session, &x), doubled(&x));
                }
            });
        }
    });
}
