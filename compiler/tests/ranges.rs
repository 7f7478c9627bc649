//! The test of declared ranges can fail: whatever range of whatever step is cut short, it says so, and names the step.

use jvc::device;
use jvc::exec::{RangeFaultKind, Value, check_ranges};
use jvc::import;
use jvc::options::Options;
use jvc::pipeline::{self, Compiled};
use jvc::tensor_file::read_tensors;
use jvc_codegen::plan::{ByteRange, Dispatch, Plan, Step};
use jvc_runtime::{Gpu, Select};
use std::path::PathBuf;

fn gpu() -> Option<Gpu> {
    let gpu = Gpu::open(&Select::Auto).ok();
    assert!(gpu.is_some() || std::env::var_os("CI").is_none(), "CI has a device");
    gpu
}

fn compiled(gpu: &Gpu, name: &str) -> (Compiled, Vec<Value>) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/goldens");
    let programs = import::read(&folder.join(format!("{name}.pt2"))).expect("a golden program");
    let profile = device::of_gpu(gpu.info());
    let compiled = pipeline::compile(&programs, &Options::default(), &profile).expect("it compiles");
    let mut tensors = read_tensors(&folder.join(format!("{name}.safetensors"))).expect("its references");
    let inputs = (0..).map_while(|i| tensors.remove(&format!("in.{i}"))).map(Value::Tensor).collect();
    (compiled, inputs)
}

/// A way to declare too little.
#[derive(Debug, Clone, Copy)]
enum Cut {
    FirstHalf,
    LastHalf,
    All,
}

fn cut(range: &mut ByteRange, cut: Cut) {
    let half = range.bytes / 8 * 4;
    match cut {
        Cut::FirstHalf => (range.offset, range.bytes) = (range.offset + range.bytes - half, half),
        Cut::LastHalf => range.bytes -= half.max(4),
        Cut::All => range.bytes = 0,
    }
}

fn dispatch(plan: &mut Plan, step: usize) -> Option<&mut Dispatch> {
    match &mut plan.entries[0].steps[step] {
        Step::Dispatch(d) => Some(d),
        Step::Barrier => None,
    }
}

#[test]
fn every_range_cut_short_is_found_at_its_step() {
    let Some(gpu) = gpu() else { return };
    for name in ["mlp", "conv_block"] {
        let (mut compiled, inputs) = compiled(&gpu, name);
        let whole = compiled.plan.clone();
        let clean = check_ranges(&gpu, &compiled, 0, &inputs).expect("it runs");
        let n_dispatches = whole.entries[0].steps.iter().filter(|s| matches!(s, Step::Dispatch(_))).count();
        assert_eq!((clean.steps, clean.faults), (n_dispatches, vec![]), "{name} as planned");
        for step in 0..whole.entries[0].steps.len() {
            let Some(d) = dispatch(&mut compiled.plan, step).cloned() else { continue };
            let reads = (0..d.reads.len()).map(|i| (RangeFaultKind::UndeclaredRead, i));
            let writes = (0..d.writes.len()).map(|i| (RangeFaultKind::UndeclaredWrite, i));
            for (kind, i) in reads.chain(writes) {
                for how in [Cut::FirstHalf, Cut::LastHalf, Cut::All] {
                    compiled.plan = whole.clone();
                    let d = dispatch(&mut compiled.plan, step).expect("a dispatch");
                    let ranges = if kind == RangeFaultKind::UndeclaredRead { &mut d.reads } else { &mut d.writes };
                    cut(&mut ranges[i], how);
                    let found = check_ranges(&gpu, &compiled, 0, &inputs).expect("it runs");
                    let hit = found.faults.iter().find(|f| (f.step, f.kind) == (step, kind));
                    assert!(hit.is_some(), "{name} step {step}, {kind:?} {i}, {how:?}: {:?}", found.faults);
                }
            }
        }
    }
}
