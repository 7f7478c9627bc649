//! The plan's text form and its verifier, on random plans.

mod sample;

use jvc_codegen::plan::{
    Base, Elem, Entry, Fault, Groups, KernelFile, Plan, PlanError, Port, PortKind, Region, Size, State, Step, Symbol,
};
use proptest::prelude::*;
use sample::{random_plan, range};

/// Finds the kernels of a plan, as if they were files.
fn files(plan: &Plan) -> impl Fn(&str) -> Option<KernelFile> {
    |name| {
        let kernel = plan.kernels.iter().find(|k| k.name == name)?;
        Some(KernelFile { words: kernel.words.clone(), disassembly: kernel.disassembly.clone() })
    }
}

fn faults(plan: &Plan) -> Vec<Fault> {
    plan.verify().err().unwrap_or_default().into_iter().map(|e: PlanError| e.fault).collect()
}

fn sizes() -> impl Strategy<Value = Size> {
    let constant = prop_oneof![any::<i64>(), -3i64..4];
    let leaf = prop_oneof![constant.prop_map(Size::Const), (0u16..3).prop_map(Size::Symbol)];
    leaf.prop_recursive(4, 24, 3, |sub| {
        let two = (sub.clone(), sub.clone()).prop_map(|(a, b)| (Box::new(a), Box::new(b)));
        prop_oneof![
            prop::collection::vec(sub.clone(), 0..4).prop_map(Size::Add),
            prop::collection::vec(sub, 0..4).prop_map(Size::Mul),
            two.clone().prop_map(|(a, b)| Size::FloorDiv(a, b)),
            two.clone().prop_map(|(a, b)| Size::Mod(a, b)),
            two.clone().prop_map(|(a, b)| Size::Max(a, b)),
            two.prop_map(|(a, b)| Size::Min(a, b)),
        ]
    })
}

fn ports() -> impl Strategy<Value = Port> {
    let kind = prop_oneof![any::<u32>().prop_map(PortKind::Io), any::<u16>().prop_map(PortKind::Symbol)];
    let elem = prop::sample::select(Elem::ALL.to_vec());
    (any::<String>(), elem, any::<bool>(), prop::collection::vec(sizes(), 0..3), any::<u64>(), kind).prop_map(
        |(name, elem, word_storage, shape, max_bytes, kind)| Port { name, elem, word_storage, shape, max_bytes, kind },
    )
}

prop_compose! {
    /// Any plan, most of them senseless, for the text form.
    fn plans()(
        seed in any::<u64>(),
        names in prop::collection::vec("(max|s[0-9]+|[a-z ]*|.*)", 3),
        bounds in prop::collection::vec((any::<i64>(), any::<i64>()), 3),
        inputs in prop::collection::vec(ports(), 0..3),
        outputs in prop::collection::vec(ports(), 0..3),
        table in prop::collection::vec(sizes(), 0..5),
        states in prop::collection::vec((any::<String>(), any::<u64>(), any::<u64>(), any::<Option<u32>>()), 0..3),
        flags in any::<[bool; 5]>(),
        fragment in (any::<u32>(), any::<u32>(), any::<u32>(), prop::sample::select(Elem::ALL.to_vec())),
        cost in (prop::num::f64::NORMAL | prop::num::f64::ZERO, prop::num::f64::POSITIVE),
        text in any::<String>(),
        word in any::<u16>(),
    ) -> Plan {
        let mut plan = random_plan(seed, 1 + (seed % 7) as usize);
        plan.name = text.clone();
        let r = &mut plan.requirements;
        [r.int8, r.int16, r.float16, r.int64, r.float64] = flags;
        r.cooperative = vec![fragment];
        plan.kernels[0].subgroup = u32::from(word);
        let symbol = |(name, (min, max)): (_, (i64, _))| Symbol { name, min, max, found: (min > 0).then_some(word) };
        let symbols = names.into_iter().zip(bounds).map(symbol).collect();
        let states = states.into_iter().map(|(name, offset, bytes, init)| State { name, offset, bytes, init }).collect();
        let mut second = plan.entries[0].clone();
        for step in &mut second.steps {
            if let Step::Dispatch(d) = step {
                (d.cost.flops, d.cost.bytes) = cost;
                d.label = text.clone();
                d.origin.push(text.clone());
                d.groups = Groups::Table(word);
                d.bases = vec![Base::State, Base::Symbols, Base::Weights(7)];
                d.reads.extend([range(Region::State, 3, 4), range(Region::Symbols, 0, 1)]);
            }
        }
        plan.entries.push(Entry { symbols, inputs, outputs, table, states, name: text, ..second });
        plan
    }
}

proptest! {
    #[test]
    fn text_parses_back_to_the_same_plan(plan in plans()) {
        let text = plan.to_text();
        let parsed = Plan::parse(&text, &files(&plan)).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(parsed, plan);
    }

    #[test]
    fn simplified_sizes_have_the_same_value(size in sizes(), symbols in prop::collection::vec(-50i64..50, 3)) {
        if let Ok(value) = size.eval(&symbols) {
            prop_assert_eq!(size.simplified().eval(&symbols), Ok(value), "{:?}", size.simplified());
        }
    }

    #[test]
    fn any_text_parses_or_is_an_error_with_a_line(text in "(plan|kernel|entry|dispatch|read|groups|table|\"| |\n|[0-9]|[\\[\\](),;]|max|é|\\\\){0,40}") {
        let result = Plan::parse(&text, &|_| None);
        if let Err(error) = result {
            prop_assert!(error.to_string().starts_with("line "));
        }
    }

    #[test]
    fn random_plans_verify(seed in any::<u64>(), n in 1usize..24) {
        prop_assert_eq!(faults(&random_plan(seed, n)), vec![]);
    }

    #[test]
    fn dropping_any_needed_barrier_is_a_hazard(seed in any::<u64>(), n in 1usize..24) {
        let plan = random_plan(seed, n);
        let barriers = (0..plan.entries[0].steps.len()).filter(|i| plan.entries[0].steps[*i] == Step::Barrier);
        for idx in barriers {
            let mut mutant = plan.clone();
            // Replaced by an earlier barrier's twin, lifetimes would move; a dispatch of nothing keeps the numbering.
            let Step::Dispatch(mut nothing) = plan.entries[0].steps[0].clone() else { unreachable!("starts with a dispatch") };
            (nothing.reads, nothing.writes) = (vec![], vec![]);
            mutant.entries[0].steps[idx] = Step::Dispatch(nothing);
            let found = faults(&mutant);
            let caught = found.iter().any(|f| matches!(f, Fault::Hazard { .. }));
            prop_assert!(caught, "barrier {idx}: {found:?}");
        }
    }

    #[test]
    fn a_shorter_life_or_a_moved_buffer_is_caught(seed in any::<u64>(), n in 2usize..24, pick in any::<prop::sample::Index>()) {
        let plan = random_plan(seed, n);
        let entry = &plan.entries[0];
        let idx = pick.index(entry.buffers.len());
        let (first, last) = entry.buffers[idx].live;
        if first < last {
            let mut mutant = plan.clone();
            mutant.entries[0].buffers[idx].live.1 = last - 1;
            let caught = faults(&mutant).iter().any(|f| matches!(f, Fault::NoBuffer(_)));
            prop_assert!(caught);
        }
        let other = entry.buffers.iter().position(|b| b.live.0 < last && b.live.1 > first && b.name != entry.buffers[idx].name);
        if let Some(other) = other {
            let mut mutant = plan.clone();
            mutant.entries[0].buffers[idx].offset = entry.buffers[other].offset;
            let caught = faults(&mutant).iter().any(|f| matches!(f, Fault::Overlap { .. }));
            prop_assert!(caught);
        }
    }
}

/// The first dispatch of a plan's first entry.
fn first_dispatch(plan: &mut Plan) -> &mut jvc_codegen::plan::Dispatch {
    let dispatch = plan.entries[0].steps.iter_mut().find_map(|step| match step {
        Step::Dispatch(d) => Some(d),
        Step::Barrier => None,
    });
    dispatch.expect("plans have a dispatch")
}

#[test]
fn each_broken_property_has_its_fault() {
    type Break = fn(&mut Plan);
    type Is = fn(&Fault) -> bool;
    let cases: [(&str, Break, Is); 13] = [
        ("kernel", |p| first_dispatch(p).kernel = 99, |f| matches!(f, Fault::NoSuch { what: "kernel", .. })),
        ("bases", |p| first_dispatch(p).bases.clear(), |f| matches!(f, Fault::Arity { what: "bases", .. })),
        ("offset", |p| first_dispatch(p).offsets[0] += 1000, |f| matches!(f, Fault::NoOperand(_))),
        (
            "groups",
            |p| first_dispatch(p).groups = Groups::Fixed([1, 65536, 1]),
            |f| matches!(f, Fault::TooManyGroups(65536)),
        ),
        ("table", |p| first_dispatch(p).groups = Groups::Table(0), |f| matches!(f, Fault::NoSuch { .. })),
        ("weights", |p| p.weights.tensors[0].offset = 512, |f| matches!(f, Fault::Beyond { .. })),
        ("aligned", |p| p.entries[0].buffers[0].offset += 16, |f| matches!(f, Fault::Misaligned { .. })),
        ("push", |p| p.requirements.push_bytes = 8, |f| matches!(f, Fault::PushBytes { .. })),
        (
            "output",
            |p| p.entries[0].outputs.push(sample::io_port("z", 5, Elem::F32, &[1])),
            |f| *f == Fault::Unwritten("z".into()),
        ),
        (
            "input",
            |p| p.entries[0].inputs[0].max_bytes = 4,
            |f| matches!(f, Fault::RangeBeyond { .. } | Fault::PortBytes { .. }),
        ),
        ("slot", |p| p.entries[0].outputs[0].kind = PortKind::Io(0), |f| matches!(f, Fault::DuplicateName(_))),
        (
            "read-only",
            |p| first_dispatch(p).writes.push(range(Region::Weights(0), 256, 16)),
            |f| matches!(f, Fault::ReadOnly(_)),
        ),
        ("symbols", |p| p.entries[0].table.push(Size::Symbol(0)), |f| matches!(f, Fault::Table { word: 0, .. })),
    ];
    // Every source kind occurs among these seeds; the break must be found wherever it applies.
    for (name, break_it, is) in cases {
        let mut plan = (0..50)
            .map(|s| random_plan(s, 8))
            .find(|p| matches!(&p.entries[0].steps[0], Step::Dispatch(d) if d.bases[0] == Base::Weights(0)))
            .expect("some plan starts at the weight");
        break_it(&mut plan);
        let found = faults(&plan);
        assert!(found.iter().any(is), "{name}: {found:?}");
    }
}

#[test]
fn indirect_arguments_written_by_a_step_need_a_barrier() {
    let mut plan = random_plan(3, 1);
    plan.entries[0].table = vec![Size::Const(1); 3];
    let n_bases = first_dispatch(&mut plan).bases.len() as u8 + 1;
    plan.kernels.push(sample::kernel("count", (0..n_bases).collect()));
    let counter = plan.kernels.len() as u32 - 1;
    let first = first_dispatch(&mut plan);
    first.kernel = counter;
    first.bases.push(Base::Symbols);
    first.offsets.push(0);
    first.writes.push(range(Region::Symbols, 0, 12));
    let Some(Step::Dispatch(last)) = plan.entries[0].steps.last_mut() else {
        unreachable!("plans end with a dispatch")
    };
    last.groups = Groups::Table(0);
    assert_eq!(faults(&plan), vec![], "the plan's barrier lies between");
    assert_eq!(plan.entries[0].steps[1], Step::Barrier);
    assert!(plan.entries[0].orders_groups(1) && !random_plan(3, 1).entries[0].orders_groups(1));
    for (plan, call) in [(&plan, "r.barrier_for_groups()"), (&random_plan(3, 1), "r.barrier()")] {
        let crate_files =
            jvc_codegen::generate(plan, &jvc_codegen::Options::default()).expect("the plan is right").files;
        let has_call = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(call);
        assert!(crate_files.iter().any(|(path, bytes)| path.ends_with("steps.rs") && has_call(bytes)), "{call}");
    }
    let nothing = Step::Dispatch(jvc_codegen::plan::Dispatch {
        reads: vec![],
        writes: vec![],
        bases: vec![],
        offsets: vec![],
        ..first_dispatch(&mut plan).clone()
    });
    plan.entries[0].steps[1] = nothing;
    let indirect = |f: &Fault| matches!(f, Fault::Hazard { hazard: "read after write", range, .. } if range.region == Region::Symbols);
    assert!(faults(&plan).iter().any(indirect));
}

/// One value, written by two steps: each half by one.
fn written_by_halves() -> Plan {
    let enough = |p: &Plan| p.entries[0].buffers[0].bytes >= 64;
    let mut plan = (0..50).map(|s| random_plan(s, 1)).find(enough).expect("some value is large");
    let half = plan.entries[0].buffers[0].bytes / 2;
    let mut second = first_dispatch(&mut plan).clone();
    first_dispatch(&mut plan).writes[0].bytes = half;
    second.writes[0].offset += half;
    second.writes[0].bytes -= half;
    plan.entries[0].steps.insert(1, Step::Dispatch(second));
    plan.entries[0].buffers[0].live.1 += 1;
    plan
}

fn write_of(plan: &mut Plan, step: usize) -> &mut jvc_codegen::plan::ByteRange {
    match &mut plan.entries[0].steps[step] {
        Step::Dispatch(d) => &mut d.writes[0],
        Step::Barrier => unreachable!("a dispatch stands here"),
    }
}

#[test]
fn parts_of_a_buffer_need_no_barrier_between_them_and_define_it_together() {
    assert_eq!(faults(&written_by_halves()), vec![], "disjoint halves");
    let undefined = |f: &Fault| matches!(f, Fault::Undefined { .. });
    for step in [0, 1] {
        let mut plan = written_by_halves();
        write_of(&mut plan, step).bytes -= 1;
        assert!(faults(&plan).iter().any(undefined), "a byte of half {step} is missing");
    }
    let mut plan = written_by_halves();
    write_of(&mut plan, 0).bytes += 1;
    let hazard = |f: &Fault| matches!(f, Fault::Hazard { hazard: "write after write", .. });
    assert!(faults(&plan).iter().any(hazard), "the halves share a byte");
    assert!(!faults(&plan).iter().any(undefined));
    let mut plan = written_by_halves();
    plan.entries[0].steps.remove(2);
    plan.entries[0].buffers[0].live.1 -= 1;
    let hazards = faults(&plan).into_iter().filter(|f| matches!(f, Fault::Hazard { hazard: "read after write", .. }));
    assert!(hazards.count() >= 1, "the reader needs the barrier");
}

#[test]
fn an_output_must_be_written_to_its_end() {
    let mut plan = random_plan(5, 3);
    let last = plan.entries[0].steps.len() - 1;
    write_of(&mut plan, last).bytes -= 4;
    assert!(faults(&plan).contains(&Fault::Unwritten("y".into())));
}

#[test]
fn in_place_needs_exactly_the_same_bytes() {
    let mut plan = (0..50).map(|s| random_plan(s, 2)).find(in_place_candidate).expect("some plan is a chain");
    let bytes = plan.entries[0].buffers[0].bytes;
    let last = plan.entries[0].buffers[0].live.1;
    assert_eq!(plan.entries[0].buffers[1].live.0, last);
    move_second_onto_first(&mut plan, bytes);
    assert_eq!(faults(&plan), vec![]);
    move_second_onto_first(&mut plan, bytes + 16);
    assert!(faults(&plan).iter().any(|f| matches!(f, Fault::Overlap { .. })));
    assert!(faults(&plan).iter().any(|f| matches!(f, Fault::InPlace { .. })));
}

/// The second value is computed from the first alone.
fn in_place_candidate(plan: &Plan) -> bool {
    let entry = &plan.entries[0];
    let reads_first = |d: &jvc_codegen::plan::Dispatch| {
        d.label == "v1" && d.reads.iter().all(|r| r.region == Region::Arena(0)) && d.reads.len() == 1
    };
    entry.steps.iter().any(|s| matches!(s, Step::Dispatch(d) if reads_first(d)))
}

fn move_second_onto_first(plan: &mut Plan, bytes: u64) {
    let entry = &mut plan.entries[0];
    let at = entry.buffers[0].offset;
    entry.arena_bytes[0] += 4096;
    (entry.buffers[1].offset, entry.buffers[1].bytes) = (at, bytes);
    for step in &mut entry.steps {
        let Step::Dispatch(d) = step else { continue };
        let moved = range(Region::Arena(0), at, bytes);
        match d.label.as_str() {
            "v1" => (d.writes[0], d.offsets[1]) = (moved, (at / 16) as u32),
            "out" => (d.reads[0], d.offsets[0]) = (moved, (at / 16) as u32),
            _ => {}
        }
    }
}
