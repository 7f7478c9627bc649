//! Declared ranges: their test can fail (whatever range of whatever step is cut short, it says so, and names the step); parts of a buffer are
//! independent; and no barrier of a plan is there for nothing.

use jvc::device;
use jvc::exec::{RangeFaultKind, Value, check_ranges};
use jvc::import;
use jvc::import::weights::WeightStore;
use jvc::ir::{Builder, DType, Op, TensorType, UserInput, UserOutput, ValueId};
use jvc::options::Options;
use jvc::pipeline::{self, Compiled, plan_graphs};
use jvc::tensor_file::read_tensors;
use jvc_codegen::plan::{ByteRange, Dispatch, Fault, Plan, PlanError, Step};
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

/// Matrix products, concatenated along `dim` and normalised.
fn concatenated(rows: &[i64], columns: &[i64], dim: usize) -> Plan {
    let mut b = Builder::new("parts");
    let mut index = 0;
    let mut input = |b: &mut Builder, shape: [i64; 2]| -> ValueId {
        let v = b.push(Op::Input { index }, vec![], vec![TensorType::fixed(DType::F32, &shape)])[0];
        b.graph.inputs.push((format!("x{index}"), UserInput::Tensor(v)));
        index += 1;
        v
    };
    let mut arms = vec![];
    for (m, n) in rows.iter().zip(columns) {
        let (left, right) = (input(&mut b, [*m, 7]), input(&mut b, [7, *n]));
        arms.push(b.add1(Op::Matmul, vec![left, right]).expect("a product"));
    }
    let joined = b.add1(Op::Concat { dim }, arms).expect("a concatenation");
    let y = b.add1(Op::Softmax { dim: 1, log: false }, vec![joined]).expect("a softmax");
    b.graph.outputs.push(("y".into(), UserOutput::Tensor(y)));
    let profile = device::find("lavapipe").expect("a built-in profile");
    plan_graphs(vec![b.graph], &[&WeightStore::new()], &Options::default(), &profile).expect("it compiles").plan
}

fn barriers(plan: &Plan) -> Vec<usize> {
    let steps = &plan.entries[0].steps;
    (0..steps.len()).filter(|&i| matches!(steps[i], Step::Barrier)).collect()
}

#[test]
fn parts_of_a_concatenation_have_no_barrier_between_them() {
    for (rows, columns, dim) in [([4, 2, 3], [5, 5, 5], 0), ([4, 4, 4], [5, 3, 2], 1)] {
        let plan = concatenated(&rows, &columns, dim);
        assert_eq!((plan.entries[0].steps.len(), barriers(&plan)), (5, vec![3]), "three products, then the softmax");
    }
    // Too many parts to list them: the spans around them overlap.
    let plan = concatenated(&[40, 40, 40], &[5, 3, 2], 1);
    assert_eq!(barriers(&plan), [1, 3, 5]);
}

#[test]
fn without_any_one_of_its_barriers_a_plan_does_not_verify() {
    let profile = device::find("lavapipe").expect("a built-in profile");
    let mut plans = vec![concatenated(&[4, 2, 3], &[5, 5, 5], 0), concatenated(&[40, 40, 40], &[5, 3, 2], 1)];
    for name in ["mlp", "conv_block"] {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../models/goldens/{name}.pt2"));
        let programs = import::read(&file).expect("a golden program");
        plans.push(pipeline::compile(&programs, &Options::default(), &profile).expect("it compiles").plan);
    }
    for plan in plans {
        assert_eq!(plan.verify(), Ok(()));
        assert!(!barriers(&plan).is_empty());
        for at in barriers(&plan) {
            // Lifetimes count steps, so an empty step takes the barrier's place.
            let mut broken = plan.clone();
            let Some(Step::Dispatch(mut nothing)) = broken.entries[0].steps.get(at + 1).cloned() else { continue };
            (nothing.reads, nothing.writes, nothing.bases, nothing.offsets) = (vec![], vec![], vec![], vec![]);
            broken.entries[0].steps[at] = Step::Dispatch(nothing);
            let faults = broken.verify().expect_err("a barrier is missing");
            let hazard = |e: &PlanError| matches!(e.fault, Fault::Hazard { .. });
            assert!(faults.iter().any(hazard), "{} without step {at}: {faults:?}", plan.name);
        }
    }
}
