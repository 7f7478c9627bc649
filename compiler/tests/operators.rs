//! What `jvc ops` lists is true: every operator and element type of the table becomes kernels on every bundled device, and what it says
//! is refused is refused.

use jvc::aten::limits::{self, LIMITS};
use jvc::aten::{self, examples};
use jvc::device::{self, DeviceProfile};
use jvc::import::weights::WeightStore;
use jvc::ir::Graph;
use jvc::ir::print::print;
use jvc::options::Options;
use jvc::pipeline::{self, Scheduled};
use jvc::plan::entry::{self, Source};
use jvc::plan::kernels::KernelTable;
use jvc::plan::weights::WeightTable;
use jvc::report::{Code, Diagnostic};
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Operators without an example, and why.
const WITHOUT: &[(&str, &str)] = &[
    ("_operator.", "Python arithmetic on sizes: no kernel; tests/files and the fixtures with symbolic sizes"),
    ("math.", "as above"),
    ("torch.sym_", "as above"),
    ("higher_order.", "their operands are programs: tests/control.rs"),
];

#[test]
fn every_operator_has_an_example_and_every_example_an_operator() {
    let names = aten::supported();
    let exempt = |name: &str| WITHOUT.iter().any(|(prefix, _)| name.starts_with(prefix));
    let missing: Vec<&&str> = names.iter().filter(|n| !exempt(n) && examples::find(n).is_none()).collect();
    assert!(missing.is_empty(), "no line in examples.txt: {missing:#?}");
    let unknown: Vec<&str> = examples::all().iter().map(|e| e.name).filter(|n| !names.contains(n)).collect();
    assert!(unknown.is_empty(), "no rule: {unknown:#?}");
}

/// Graphs of all examples, each text once, with what it is called.
fn graphs() -> BTreeMap<String, (String, Graph)> {
    let programs = examples::all().par_iter().flat_map_iter(|e| e.programs().into_iter().map(|(t, p)| (e.name, t, p)));
    let made: Vec<Result<(String, Graph), String>> = programs
        .map(|(name, ty, program)| {
            let name = format!("{name} {}", ty.map_or_else(String::new, |t| t.to_string()));
            let made = pipeline::graph_of(&program, &Options::default(), None);
            let why = |all: Vec<Diagnostic>| {
                format!("{name}: {}", all.iter().map(|d| d.message.clone()).collect::<Vec<_>>().join("; "))
            };
            made.map(|(graph, _)| (name.clone(), graph)).map_err(why)
        })
        .collect();
    let (mut graphs, mut failures) = (BTreeMap::new(), vec![]);
    for one in made {
        match one {
            Ok((name, mut graph)) => {
                graph.name = String::new();
                graphs.entry(print(&graph)).or_insert((name, graph));
            }
            Err(why) => failures.push(why),
        }
    }
    assert!(failures.is_empty(), "{} listed programs do not become graphs:\n{}", failures.len(), failures.join("\n"));
    graphs
}

/// Kernels of elementwise graphs depend on a device's types alone: such a graph is compiled once for each set of them, one with another
/// kernel (whose tile depends on limits and rates) for every device, there in the types for which tiles differ.
#[test]
fn whatever_is_listed_compiles_on_every_bundled_device() {
    let graphs = graphs();
    assert!(graphs.len() > 3000, "{} distinct graphs", graphs.len());
    let (mut first, mut others): (Vec<DeviceProfile>, Vec<DeviceProfile>) = (vec![], vec![]);
    for device in device::all() {
        let known = first.iter().any(|d| types(d) == types(&device));
        if known { others.push(device) } else { first.push(device) }
    }
    let everything: Vec<&(String, Graph)> = graphs.values().collect();
    let outcomes: Vec<Outcome> = first.par_iter().map(|device| compiled(&everything, device)).collect();
    let tiled: BTreeSet<usize> = outcomes.iter().flat_map(|o| o.tiled.iter().copied()).collect();
    let differ = |name: &str| [" f32", " f16", " bf16", " i64"].iter().any(|ty| name.ends_with(ty));
    let tiled = tiled.into_iter().map(|at| everything[at]).filter(|(name, _)| differ(name));
    let tiled: Vec<&(String, Graph)> = tiled.collect();
    let more: Vec<Outcome> = others.par_iter().map(|device| compiled(&tiled, device)).collect();
    let failures: Vec<&String> = outcomes.iter().chain(&more).flat_map(|o| &o.failures).collect();
    assert!(failures.is_empty(), "{} fail:\n{failures:#?}", failures.len());
}

fn types(device: &DeviceProfile) -> [bool; 5] {
    let f = &device.features;
    [f.int8, f.int16, f.float16, f.int64, f.float64]
}

#[derive(Default)]
struct Outcome {
    failures: Vec<String>,
    /// Graphs with a kernel that is no map.
    tiled: Vec<usize>,
}

/// Every graph through schedule and plan to assembled kernels.
fn compiled(graphs: &[&(String, Graph)], device: &DeviceProfile) -> Outcome {
    let (mut outcome, mut kernels) = (Outcome::default(), KernelTable::default());
    let store = WeightStore::new();
    for (at, (name, graph)) in graphs.iter().copied().enumerate() {
        let mut weights = WeightTable::new(device.limits.max_allocation_bytes);
        let planned = pipeline::schedule(graph, device).map_err(|all| all[0].message.clone()).and_then(|made| {
            let Scheduled { drafts, symtab, orders, .. } = made;
            if drafts.iter().any(|d| d.spec.template() != "map") {
                outcome.tiled.push(at);
            }
            let source = Source { graph, weights: &store, device, drafts, symtab, orders };
            let plan = AssertUnwindSafe(|| entry::plan(source, &mut kernels, &mut weights).map_err(|d| d.message));
            catch_unwind(plan).unwrap_or_else(|_| Err("a panic, printed above".to_string()))
        });
        let doubles = || print(graph).contains("f64");
        match planned {
            Err(_) if !device.features.float64 && doubles() => {}
            Err(why) => outcome.failures.push(format!("{name} on {}: {why}", device.name)),
            Ok(_) => {}
        }
    }
    #[cfg(feature = "validate")]
    for kernel in kernels.finish().0 {
        if let Err(why) = jvc_kernels::validate(&kernel.words) {
            outcome.failures.push(format!("{} on {}: {why}", kernel.spec, device.name));
        }
    }
    outcome
}

#[test]
fn types_that_are_said_to_be_refused_are_refused() {
    let device = device::find("h200").expect("bundled");
    for example in examples::all() {
        for &ty in example.refused() {
            let mut program = example.program(example.types().first().copied()).expect("a listed type");
            for meta in program.graph.tensors.values_mut() {
                meta.dtype = ty;
            }
            let refusal = pipeline::graph_of(&program, &Options::default(), None)
                .and_then(|(graph, _)| pipeline::schedule(&graph, &device))
                .expect_err(example.name);
            assert!(
                refusal.iter().any(|d| matches!(d.code, Code::UnsupportedDType | Code::UnsupportedAttribute)),
                "{} of {ty}: {refusal:?}",
                example.name
            );
        }
    }
}

#[test]
fn every_limit_refuses_the_call_that_is_its_example() {
    for limit in LIMITS.iter().filter(|l| !l.example.is_empty()) {
        let example = examples::parse(limit.example).expect("an example");
        assert!(limits::applies(limit, example.name), "{}: {} is not among its operators", limit.code, example.name);
        let (_, program) = example.programs().swap_remove(0);
        let refusal = pipeline::graph_of(&program, &Options::default(), None).expect_err(limit.code);
        assert_eq!((refusal[0].code, refusal[0].limit), (Code::UnsupportedAttribute, Some(limit.code)), "{refusal:?}");
    }
}
