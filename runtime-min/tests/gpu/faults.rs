//! A lost device: a typed error that names the step, again and again, and destructors that do not mind.

use crate::support::*;
use jvc_runtime::*;

fn faulty(submission: u64) -> Gpu {
    let options = Options { fault: Some(Fault { submission }), ..Options::default() };
    Gpu::open_with(&Select::Auto, &options).expect("tests need a Vulkan driver")
}

#[test]
fn a_loss_names_its_steps_and_sticks() {
    let gpu = faulty(2);
    let model = model(&gpu);
    let mut session = model.session(&entry(&double)).expect("a session");
    let x = floats(100, 1);
    assert_eq!(run(&mut session, &x), doubled(&x));
    assert_eq!(run(&mut session, &x), doubled(&x));
    let lost = Error::DeviceLost { step: "steps 0 to 2 of main (load x to store y)".to_owned() };
    assert_eq!(try_run(&mut session, &x), Err(lost.clone()));
    assert_eq!(try_run(&mut session, &x), Err(lost.clone()));
    assert_eq!(session.poison_arena(), Err(lost.clone()));
    assert_eq!(model.session(&entry(&double)).err(), Some(lost.clone()));
    let reloaded = Model::load(&gpu, &program(KERNELS), WeightSource::None, &CacheDir::None);
    assert_eq!(reloaded.err(), Some(lost));
}

#[test]
fn a_loss_between_submissions_names_the_steps_of_the_one_that_failed() {
    let split = |r: &mut Recorder<'_>| {
        load(r);
        r.barrier();
        r.split();
        add_to_second(r);
        r.barrier();
        r.split();
        store_second(r);
    };
    let model = model(&faulty(4));
    let mut session = model.session(&entry(&split)).expect("a session");
    let x = floats(100, 1);
    assert_eq!(run(&mut session, &x), doubled(&x));
    let lost = Error::DeviceLost { step: "step 1 of main (add x x)".to_owned() };
    assert_eq!(try_run(&mut session, &x), Err(lost));
}

#[test]
fn a_loss_with_runs_in_flight_drops_without_panic() {
    let model = model(&faulty(3));
    let options = SessionOptions { n_slots: 4, ..SessionOptions::default() };
    let mut session = model.session_with(&entry(&double), &options).expect("a session");
    let x = bytes(&floats(MAX, 1));
    let mut submit = || session.submit(&table(MAX), &[&x], &[u64::from(MAX) * 4]);
    let tickets = [submit(), submit(), submit()].map(|ticket| ticket.expect("a free slot"));
    assert!(matches!(submit(), Err(Error::DeviceLost { .. })));
    let mut y = vec![0; MAX as usize * 4];
    for ticket in tickets {
        assert!(matches!(session.is_done(&ticket), Err(Error::DeviceLost { .. })));
        assert!(matches!(session.wait(ticket, &mut [&mut y]), Err(Error::DeviceLost { .. })));
    }
}

#[test]
fn a_trace_follows_the_steps_without_changing_results() {
    let model = model(&open());
    let options = SessionOptions { trace_steps: true, ..SessionOptions::default() };
    let mut session = model.session_with(&entry(&double), &options).expect("a session");
    for n in [1, 100, MAX] {
        assert_eq!(run(&mut session, &floats(n, n)), doubled(&floats(n, n)));
        assert_eq!(session.traced_step(0), Some(3), "all three steps are done");
    }
}
