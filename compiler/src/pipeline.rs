//! The compiler, top to bottom: programs → graphs → passes → schedule → plan.

use crate::aten;
use crate::aten::philox::{OFFSET, SEED};
use crate::device::DeviceProfile;
use crate::import::Program;
use crate::import::weights::WeightStore;
use crate::ir::verify::{Violations, verify};
use crate::ir::{Dim, Graph, Range, ValueId};
use crate::islands::{Islands, ProgramIslands};
use crate::options::{Mixed, Options};
use crate::passes::{self, Done, PassError, mix_precision, quantize};
use crate::plan::entry::{self, Source};
use crate::plan::kernels::KernelTable;
use crate::plan::rust_name;
use crate::plan::weights::WeightTable;
use crate::report::{Code, Diagnostic};
use crate::schedule::fuse::{fuse, is_leaf};
use crate::schedule::inline::{Place, Use};
use crate::schedule::interleave::interleave;
use crate::schedule::join_steps::join_steps;
use crate::schedule::layout::{self, Order};
use crate::schedule::lower::{self, Draft};
use crate::schedule::symtab::SymTable;
use crate::schedule::tile::Chosen;
use crate::schedule::wavefront::wavefront;
use crate::schedule::{beside, place_bytes, tile, waves};
use jvc_codegen::plan::Plan;
use std::collections::BTreeMap;

/// A compiled program: the plan, and where its weights come from.
#[derive(Debug)]
pub struct Compiled {
    /// The plan; its weights' content hash is 0 until [`Compiled::hash_weights`].
    pub plan: Plan,
    /// Bytes of the weights.
    pub weights: WeightTable,
    /// The graphs after all passes, by entry point.
    pub graphs: Vec<Graph>,
    /// Values whose elements do not lie row by row, sorted, by entry point.
    pub orders: Vec<Vec<(ValueId, Order)>>,
    /// How the tile of each dispatch was chosen, where there was a choice that can be measured, by entry point.
    pub tiles: Vec<Vec<Option<Chosen>>>,
    /// What runs off its fast path, and why: what `--deny slow` refuses.
    pub slow: Vec<Diagnostic>,
    /// Accuracy reports of `--quantize`, by entry point.
    pub quantized: Vec<quantize::Report>,
    /// What `--precision` left in f32, by entry point.
    pub mixed: Vec<mix_precision::Report>,
}

/// Compiles programs into one plan, an entry point each.
///
/// # Errors
/// Everything in the programs that cannot be compiled for this device, all at once per stage.
pub fn compile(programs: &[Program], options: &Options, device: &DeviceProfile) -> Result<Compiled, Vec<Diagnostic>> {
    let (mut graphs, mut quantized, mut mixed) = (vec![], vec![], vec![]);
    for (program, options) in programs.iter().zip(by_program(programs, options)?) {
        let (graph, done) = graph_of(program, &options, Some(device))?;
        graphs.push(graph);
        quantized.extend(done.quantized);
        mixed.extend(done.mixed);
    }
    let stores: Vec<&WeightStore> = programs.iter().map(|p| &p.weights).collect();
    let mut compiled = plan_graphs(graphs, &stores, options, device)?;
    let name = options.name.as_deref().or(programs.first().map(|p| p.name.as_str()));
    compiled.plan.name = rust_name(name.unwrap_or("model"));
    compiled.plan.decisions.extend(mixed.iter().flat_map(mix_precision::Report::lines));
    compiled.plan.decisions.extend(quantized.iter().flat_map(quantize::Report::lines));
    (compiled.quantized, compiled.mixed) = (quantized, mixed);
    Ok(compiled)
}

/// Options of each program: of islands, its own.
fn by_program(programs: &[Program], options: &Options) -> Result<Vec<Options>, Vec<Diagnostic>> {
    let Some((mixed, islands)) = options.mixed.as_ref().and_then(|m| Some((m, m.islands.as_ref()?))) else {
        return Ok(vec![options.clone(); programs.len()]);
    };
    let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
    let fitted = islands.fitted(&names).map_err(|why| vec![Diagnostic::new(Code::BadArgument, why)])?;
    let of = |program: &ProgramIslands| {
        let own = Islands { programs: vec![program.clone()], ..fitted.clone() };
        Options { mixed: Some(Mixed { islands: Some(own), ..mixed.clone() }), ..options.clone() }
    };
    Ok(fitted.programs.iter().map(of).collect())
}

/// The graph of a program after all passes, with what they report. Of islands, only those of one program are looked at.
///
/// # Errors
/// Everything in the program that cannot be compiled for any device. Without one, passes that fit the graph to a device do nothing.
pub fn graph_of(
    program: &Program,
    options: &Options,
    device: Option<&DeviceProfile>,
) -> Result<(Graph, Done), Vec<Diagnostic>> {
    let graph = aten::lower(program, options)?;
    let graph = bind_symbols(graph, options)?;
    optimize(graph, &program.weights, options, device).map_err(|d| vec![d])
}

/// Runs the passes.
///
/// # Panics
/// When a pass breaks the graph or changes what it computes: bugs of ours, with the graph printed.
fn optimize(
    mut graph: Graph,
    weights: &WeightStore,
    options: &Options,
    device: Option<&DeviceProfile>,
) -> Result<(Graph, Done), Diagnostic> {
    verify(&graph).map_err(|violations| contradiction(&graph, &violations))?;
    let tensor = |name: &str| passes::checkpoint_tensor(weights, name);
    match passes::run(&mut graph, &tensor, options, device) {
        Ok(done) => match done.mixed.as_ref().and_then(|m| m.unknown.first()) {
            None => Ok((graph, done)),
            Some(name) => {
                let message = format!("there is no call {name} that could stay in f32");
                let help = "the islands are of another program, or of one that was exported or compiled otherwise: search anew";
                Err(Diagnostic::new(Code::BadArgument, message).with_help(help))
            }
        },
        Err(e @ PassError::Unknown { .. }) => Err(Diagnostic::new(Code::BadArgument, e.to_string())),
        Err(e @ (PassError::Broken { .. } | PassError::Changed { .. })) => panic!("{e}"),
    }
}

/// Right behind the rules a broken graph is most likely an archive whose shapes contradict each other.
fn contradiction(graph: &Graph, violations: &Violations) -> Diagnostic {
    let Some(first) = violations.list.first() else { panic!("no violation in\n{violations}") };
    let message = format!("what the program says of its tensors is contradictory: {}", first.message);
    let origin = first.node.map(|n| &graph.origins[graph.node(n).origin as usize]);
    let diagnostic = Diagnostic::new(Code::BadArgument, message);
    origin.map_or(diagnostic.clone(), |o| diagnostic.at(o))
}

/// Plans graphs that have been through all passes, an entry point each.
///
/// # Errors
/// Everything that the device cannot run.
///
/// # Panics
/// When the plan breaks its own rules: a bug of the scheduler.
pub fn plan_graphs(
    graphs: Vec<Graph>,
    stores: &[&WeightStore],
    options: &Options,
    device: &DeviceProfile,
) -> Result<Compiled, Vec<Diagnostic>> {
    let devices = vec![device; graphs.len().max(1)];
    let mut compiled = plan_for(graphs, stores, options, &devices)?;
    compiled.plan.decisions.splice(0..0, tile::strangers(device));
    Ok(compiled)
}

/// As [`plan_graphs`], each graph for a profile of its own: of one device, with different tables of tiles. There is at least one.
///
/// # Errors
/// As [`plan_graphs`].
///
/// # Panics
/// As [`plan_graphs`].
pub fn plan_for(
    graphs: Vec<Graph>,
    stores: &[&WeightStore],
    options: &Options,
    devices: &[&DeviceProfile],
) -> Result<Compiled, Vec<Diagnostic>> {
    let device = devices[0];
    let mut kernels = KernelTable::default();
    let mut weights = WeightTable::new(device.limits.max_allocation_bytes);
    let (mut all_orders, mut tiles, mut slow) = (vec![], vec![], vec![]);
    let mut plan = Plan { name: "model".into(), device: device.name.clone(), ..Plan::default() };
    for ((graph, store), device) in graphs.iter().zip(stores).zip(devices) {
        let Scheduled { drafts, symtab, decisions, orders } = schedule(graph, device)?;
        slow.extend(off_fast_path(graph, &drafts));
        plan.decisions.extend(decisions);
        all_orders.push(orders.clone());
        tiles.push(drafts.iter().map(|d| d.tile.clone()).collect());
        let source = Source { graph, weights: store, device, drafts, symtab, orders };
        plan.entries.push(entry::plan(source, &mut kernels, &mut weights).map_err(|d| vec![d])?);
    }
    if options.deny_slow && !slow.is_empty() {
        return Err(slow);
    }
    (plan.kernels, plan.requirements) = kernels.finish();
    plan.weights = weights.layout().clone();
    plan.requirements.max_allocation_bytes = largest_allocation(&plan);
    check_buffers(&plan, device.limits.max_allocation_bytes)?;
    if let Err(faults) = plan.verify() {
        let text: Vec<String> = faults.iter().take(20).map(ToString::to_string).collect();
        panic!("the plan of {} breaks its own rules:\n{}", plan.name, text.join("\n"));
    }
    Ok(Compiled { plan, weights, graphs, orders: all_orders, tiles, slow, quantized: vec![], mixed: vec![] })
}

/// What scheduling a graph gives.
#[derive(Debug)]
pub struct Scheduled {
    /// Kernels in order.
    pub drafts: Vec<Draft>,
    /// The symbol table that they share.
    pub symtab: SymTable,
    /// Reasons behind them.
    pub decisions: Vec<String>,
    /// Values whose elements do not lie row by row, sorted.
    pub orders: Vec<(ValueId, Order)>,
}

/// Kernels of a graph in order, with the symbol table that they share and the decisions behind them.
///
/// # Errors
/// Every kernel that cannot be made for this device.
pub fn schedule(graph: &Graph, device: &DeviceProfile) -> Result<Scheduled, Vec<Diagnostic>> {
    let mut fusion = fuse(graph);
    beside::choose(graph, &mut fusion, device);
    layout::choose(graph, &mut fusion, device);
    let mut symtab = SymTable::new(&graph.ranges);
    let input = lower::Input { graph, fusion: &fusion, device };
    let (mut drafts, mut problems) = (vec![], vec![]);
    for group in &fusion.groups {
        match lower::lower(input, group, &mut symtab) {
            Ok(d) => drafts.extend(d),
            Err(d) => problems.push(d),
        }
    }
    let mut decisions: Vec<String> =
        graph.slow.iter().map(|(node, reason)| format!("{node}: slow: {reason}")).collect();
    decisions.extend(drafts.iter().flat_map(|d| {
        let name = &graph.value(d.result).name;
        d.slow.iter().map(move |reason| format!("{name}: slow: {reason}"))
    }));
    decisions.extend(fusion.decisions(graph));
    let choices = drafts.iter().filter_map(|d| Some((d, tile::decision(device, &d.spec, d.tile.as_ref())?)));
    decisions.extend(choices.map(|(d, choice)| format!("{}: {choice}", graph.value(d.result).name)));
    let arena = |u: Use| match u.place {
        Place::Value(v) if !is_leaf(&graph.def(v).op) => place_bytes(graph, device, u),
        _ => 0,
    };
    let drafts = join_steps(wavefront(waves::order(interleave(drafts), &arena), graph, device));
    let (n, chain) = (drafts.len(), waves::longest_chain(&drafts));
    decisions.push(format!("{}: {n} kernels, of which {chain} depend on each other in the longest chain", graph.name));
    let orders = fusion.ordered();
    if problems.is_empty() { Ok(Scheduled { drafts, symtab, decisions, orders }) } else { Err(problems) }
}

/// Applies `--set` and `--bound`, and refuses symbols without an upper bound.
fn bind_symbols(mut graph: Graph, options: &Options) -> Result<Graph, Vec<Diagnostic>> {
    for (name, &max) in &options.bound {
        if let Some(r) = graph.ranges.get_mut(name) {
            r.max = r.max.min(max);
        }
    }
    let set: BTreeMap<String, Dim> = options
        .set
        .iter()
        .filter(|(name, _)| graph.ranges.contains_key(*name))
        .map(|(name, &v)| (name.clone(), Dim::from(v)))
        .collect();
    let out_of_range = set.iter().filter_map(|(name, v)| {
        let (v, r) = (v.as_const()?, graph.ranges[name]);
        (v < r.min || v > r.max).then(|| {
            Diagnostic::new(
                Code::BadArgument,
                format!("--set {name}={v} is outside the export's {}..={}", r.min, r.max),
            )
        })
    });
    let mut problems: Vec<Diagnostic> = out_of_range.collect();
    problems.extend(unused_random(&graph, options));
    graph.substitute(&set);
    problems.extend(graph.ranges.iter().filter(|(_, r)| unbounded(r)).map(|(name, r)| {
        Diagnostic::new(Code::Unbounded, format!("symbol {name} has no upper bound (at least {})", r.min))
            .with_help(format!("give --bound {name}=N, or pin it with --set {name}=N"))
    }));
    if problems.is_empty() { Ok(graph) } else { Err(problems) }
}

/// Options for the random stream of a program that draws nothing.
fn unused_random<'o>(graph: &Graph, options: &'o Options) -> impl Iterator<Item = Diagnostic> + use<'o> {
    let absent = [SEED, OFFSET].map(|name| !graph.ranges.contains_key(name));
    let given = |name: &str| options.set.contains_key(name) || options.bound.contains_key(name);
    [SEED, OFFSET].into_iter().zip(absent).filter(move |(name, absent)| *absent && given(name)).map(|(name, _)| {
        Diagnostic::new(Code::BadArgument, format!("{name} is given, but the program draws no random numbers"))
    })
}

/// Sizes are 32-bit on the device; whatever an export leaves open is far above.
fn unbounded(r: &Range) -> bool {
    r.max > i64::from(i32::MAX)
}

/// What of a graph runs off its fast path.
fn off_fast_path(graph: &Graph, drafts: &[Draft]) -> Vec<Diagnostic> {
    let kernels = drafts.iter().flat_map(|d| d.slow.iter().map(move |reason| (d, reason))).map(|(d, reason)| {
        let origin = d.nodes.first().map_or(0, |&n| graph.node(n).origin);
        Diagnostic::new(Code::Slow, (*reason).to_string()).at(&graph.origins[origin as usize])
    });
    of_graph(graph).chain(kernels).collect()
}

/// What the rules had no better way for.
fn of_graph(graph: &Graph) -> impl Iterator<Item = Diagnostic> {
    graph.slow.iter().map(|(node, reason)| {
        let origin = graph.origins.iter().find(|o| o.node == *node);
        Diagnostic::new(Code::Slow, reason.clone()).at(origin.unwrap_or(&graph.origins[0]))
    })
}

/// Inputs, outputs and state are a buffer each, which nothing splits; activations and weights were checked where they were placed.
fn check_buffers(plan: &Plan, limit: u64) -> Result<(), Vec<Diagnostic>> {
    let mut faults = vec![];
    for entry in &plan.entries {
        let ports = entry.inputs.iter().chain(&entry.outputs).map(|p| (p.name.as_str(), p.max_bytes));
        let state = Some(("the state", entry.state_bytes()));
        for (name, bytes) in ports.chain(state).filter(|(_, bytes)| *bytes > limit) {
            let text = format!("{name} has {bytes} bytes, the device's largest allocation is {limit}");
            faults.push(Diagnostic::new(Code::Device, text));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

fn largest_allocation(plan: &Plan) -> u64 {
    let arenas = plan.entries.iter().flat_map(|e| &e.arena_bytes);
    let ports = plan.entries.iter().flat_map(|e| e.inputs.iter().chain(&e.outputs)).map(|p| &p.max_bytes);
    let states = plan.entries.iter().map(|e| e.state_bytes());
    arenas.chain(&plan.weights.chunk_bytes).chain(ports).copied().chain(states).max().unwrap_or(0)
}

impl Compiled {
    /// Computes the hash of the weight file's payload; needed before a crate is generated, not to run in memory.
    ///
    /// # Errors
    /// An inconsistent weight layout.
    pub fn hash_weights(&mut self) -> Result<(), jvc_codegen::weights::WeightError> {
        self.plan.weights.content_hash = self.weights.content_hash()?;
        Ok(())
    }
}
