//! What a dependent step costs: chains of tiny dispatches, each reading what the one before wrote, with each kind of barrier.
//!
//! `cargo run --release -p jvc-runtime --example chain [DEVICE]`, with part of a device's name.

use jvc_runtime::*;
use std::time::Instant;

/// Dispatches of a chain.
const STEPS: u32 = 500;
/// Runs of each recording; the median counts.
const RUNS: usize = 31;
const ADD: KernelDesc<'static> = KernelDesc {
    name: "add",
    code: include_bytes!("../tests/gpu/kernels/add.spv"),
    n_bases: 4,
    n_operands: 3,
    subgroup: 0,
};

type Between = fn(&mut Recorder<'_>);

/// Median microseconds of a run of `n` dispatches with something between them.
fn median(model: &Model, n: u32, between: Between, groups: Groups) -> Result<f64, Error> {
    let record = |r: &mut Recorder<'_>| {
        for _ in 0..n {
            r.dispatch(0, &[Base::Arena(0), Base::Arena(0), Base::Arena(0), Base::Symbols], &[0, 64, 64], groups);
            between(r);
        }
    };
    let entry = EntryDesc {
        name: "chain",
        arena_bytes: &[4096],
        io: &[],
        table_words: 4,
        state_bytes: 0,
        state_init: &[],
        record: &record,
    };
    let mut session = model.session(&entry)?;
    session.buffer(0, Base::Arena(0)).expect("it has a chunk").write(0, &[0; 4096])?;
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        session.run(&[256, 4, 1, 1], &[], &mut [])?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

#[expect(clippy::print_stdout, reason = "it is a program")]
fn main() -> Result<(), Error> {
    let gpu = Gpu::open(&std::env::args().nth(1).map_or(Select::Auto, Select::Name))?;
    let program = ProgramDesc {
        name: "chain",
        requirements: Requirements::NONE,
        kernels: &[ADD],
        weights: WeightsDesc::default(),
    };
    let model = Model::load(&gpu, &program, WeightSource::None, &CacheDir::None)?;
    let (fixed, table) = (Groups::Fixed([4, 1, 1]), Groups::Table(1));
    let chains: [(&str, Between, Groups); 5] = [
        ("no barrier (wrong results)", |_| {}, fixed),
        ("barrier", |r| r.barrier(), fixed),
        ("barrier, group counts from the table", |r| r.barrier(), table),
        ("barrier for group counts", |r| r.barrier_for_groups(), fixed),
        ("barrier for group counts, from the table", |r| r.barrier_for_groups(), table),
    ];
    println!("{}: µs a step, chains of {STEPS} dispatches, median of {RUNS} runs", gpu.info().name);
    for (name, between, groups) in chains {
        let (one, all) = (median(&model, 1, between, groups)?, median(&model, STEPS, between, groups)?);
        println!("{:8.3}  {name} (a run of one: {one:.1} µs)", (all - one) / f64::from(STEPS - 1));
    }
    Ok(())
}
