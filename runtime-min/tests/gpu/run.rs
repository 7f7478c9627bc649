//! Runs on whatever Vulkan driver is there: addresses, indirect dispatch, slots, state, external buffers.

use crate::support::*;
use jvc_runtime::*;

fn model(gpu: &Gpu) -> Model {
    Model::load(gpu, &program(KERNELS), WeightSource::None, &CacheDir::None).expect("the test kernels build")
}

fn open() -> Gpu {
    Gpu::open(&Select::Auto).expect("tests need a Vulkan driver")
}

fn run(session: &mut Session, x: &[f32]) -> Vec<f32> {
    let mut y = vec![0; x.len() * 4];
    session.run(&table(x.len() as u32), &[&bytes(x)], &mut [&mut y]).expect("a run");
    values(&y)
}

fn doubled(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| x + x).collect()
}

#[test]
fn one_recording_serves_every_size() {
    let model = model(&open());
    let mut session = model.session(&entry(&double)).expect("a session");
    for n in [1, 0, 63, 64, 65, MAX, 997, MAX - 1] {
        session.poison_arena().expect("poison");
        let x = floats(n, n);
        assert_eq!(run(&mut session, &x), doubled(&x), "n = {n}");
    }
}
