//! A lost device: a typed error that names the step, again and again, and destructors that do not mind.

use crate::support::*;
use jvc_lab::Lab;
use jvc_runtime::*;

fn faulty(lost_at: u64) -> Lab {
    lab(jvc_lab::Options { lost_at: Some(lost_at), ..jvc_lab::Options::default() })
}

#[test]
fn a_loss_names_its_steps_and_sticks() {
    let lab = faulty(2);
    let (gpu, model) = (lab.gpu(), model(lab.gpu()));
    let mut session = model.session(&entry(&double)).expect("a session");
    let x = floats(100, 1);
    assert_eq!(run(&mut session, &x), doubled(&x));
    assert_eq!(run(&mut session, &x), doubled(&x));
    let lost = Error::DeviceLost { step: "steps 0 to 2 of main (load x to store y)".to_owned() };
    assert_eq!(try_run(&mut session, &x), Err(lost.clone()));
    assert_eq!(try_run(&mut session, &x), Err(lost.clone()));
    let arena = session.buffer(0, Base::Arena(0)).expect("a chunk");
    assert_eq!(arena.fill(0), Err(lost.clone()));
    assert_eq!(model.session(&entry(&double)).err(), Some(lost.clone()));
    let reloaded = Model::load(gpu, &program(KERNELS), WeightSource::None, &CacheDir::None);
    assert_eq!(reloaded.err(), Some(lost));
}

#[test]
fn a_traced_loss_names_its_step() {
    let lab = faulty(2);
    let options = SessionOptions { trace_steps: true, ..SessionOptions::default() };
    let mut session = model(lab.gpu()).session_with(&entry(&double), &options).expect("a session");
    let x = floats(100, 1);
    assert_eq!(run(&mut session, &x), doubled(&x));
    assert_eq!(run(&mut session, &x), doubled(&x));
    // The submission was refused as a whole: no step is done.
    let lost = Error::DeviceLost { step: "step 0 of main (load x)".to_owned() };
    assert_eq!(try_run(&mut session, &x), Err(lost));
}

#[test]
fn a_loss_with_runs_in_flight_drops_without_panic() {
    let lab = faulty(3);
    let model = model(lab.gpu());
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
