//! Drafts of one entry point → its steps: buffers get offsets, operands bases, dispatches barriers.

use super::kernels::KernelTable;
use super::weights::WeightTable;
use super::writes::written_ranges;
use super::{elem, rust_name};
use crate::device::DeviceProfile;
use crate::import::weights::WeightStore;
use crate::ir::op::WeightRef;
use crate::ir::{Graph, Op, Range, TensorType, UserInput, UserOutput, ValueId};
use crate::memory::barriers::{self, Touches};
use crate::memory::{self, Placement, Request};
use crate::report::{Code, Diagnostic};
use crate::schedule::inline::{Place, Use, storage_of};
use crate::schedule::layout::Order;
use crate::schedule::lower::{Draft, bind};
use crate::schedule::symtab::SymTable;
use crate::schedule::{n_input_slots, output_slots, place_bytes, tensor_bytes, waves};
use jvc_codegen::plan::{
    ArenaBuffer, Base, ByteRange, Dispatch, Entry, Groups, Port, PortKind, Region, Size, State, Step, Symbol,
};
use jvc_kernels::dtype::Storage;
use jvc_kernels::spec::{Access, Extent, Grid, GridFactor, KernelSpec, MAX_GRID_X, folded};
use std::collections::BTreeMap;

/// What an entry point is planned from.
pub struct Source<'a> {
    /// The scheduled graph.
    pub graph: &'a Graph,
    /// Its checkpoint.
    pub weights: &'a WeightStore,
    /// Its device.
    pub device: &'a DeviceProfile,
    /// Its kernels in order.
    pub drafts: Vec<Draft>,
    /// Its symbol table.
    pub symtab: SymTable,
    /// Its values whose elements do not lie row by row, sorted.
    pub orders: Vec<(ValueId, Order)>,
}

/// Where a place lies: its region, the base that reaches it, and the byte offset there (or the slot of the I/O table).
#[derive(Debug, Clone, Copy)]
struct Location {
    region: Region,
    base: Base,
    offset: u64,
}

/// Plans one entry point.
///
/// # Errors
/// A tensor beyond the device's allocation limit, a missing payload, or an interface beyond its push constants.
pub fn plan(source: Source<'_>, kernels: &mut KernelTable, weights: &mut WeightTable) -> Result<Entry, Diagnostic> {
    let mut planner = Planner::new(source);
    planner.place_states(weights)?;
    planner.place_arena()?;
    planner.locate_leaves(weights)?;
    planner.dispatch(kernels)?;
    Ok(planner.finish())
}

struct Planner<'a> {
    source: Source<'a>,
    locations: BTreeMap<Place, Location>,
    entry: Entry,
    dispatches: Vec<Dispatch>,
    /// Words of the table that hold what the device found, by binding.
    found: Vec<u16>,
    /// Arena values with their request, by index of the layout.
    arena: Vec<(ValueId, Request)>,
}

impl<'a> Planner<'a> {
    fn new(source: Source<'a>) -> Planner<'a> {
        let entry = Entry { name: rust_name(&source.graph.name), ..Entry::default() };
        Planner { source, locations: BTreeMap::new(), entry, dispatches: vec![], found: vec![], arena: vec![] }
    }

    fn place_states(&mut self, weights: &mut WeightTable) -> Result<(), Diagnostic> {
        let graph = self.source.graph;
        let mut offset = 0;
        for (name, ty, value) in states(graph) {
            let bytes = tensor_bytes(graph, self.source.device, &ty);
            let init = self.checkpoint(&WeightRef::new(&name), &ty, Order::Rows, weights)?;
            if let Some(v) = value {
                self.locations.insert(Place::Value(v), Location { region: Region::State, base: Base::State, offset });
            }
            if let Some(i) = graph.state_updates.iter().position(|(n, _)| *n == name) {
                let at = Location { region: Region::State, base: Base::State, offset };
                self.locations.insert(Place::StateUpdate(i as u32), at);
            }
            self.entry.states.push(State { name, offset, bytes, init: Some(init) });
            offset += bytes.max(1).next_multiple_of(memory::ALIGNMENT);
        }
        Ok(())
    }

    fn checkpoint(
        &self,
        w: &WeightRef,
        ty: &TensorType,
        order: Order,
        weights: &mut WeightTable,
    ) -> Result<u32, Diagnostic> {
        let store = self.source.weights;
        let view = |name: &str| {
            let base = name.strip_suffix(".re").or_else(|| name.strip_suffix(".im"));
            let view = store.get(name).or_else(|| store.get(base?)).cloned();
            view.ok_or_else(|| Diagnostic::new(Code::MissingWeights, format!("the checkpoint has no tensor {name}")))
        };
        let views = w.names().map(view).collect::<Result<Vec<_>, _>>()?;
        let name = w.names().collect::<Vec<_>>().join("+");
        weights.checkpoint(&name, views, ty.dtype, (storage_of(ty.dtype, self.source.device), order))
    }

    fn order(&self, v: ValueId) -> Order {
        let orders = &self.source.orders;
        orders.binary_search_by_key(&v, |(v, _)| *v).map_or(Order::Rows, |at| orders[at].1)
    }

    fn place_arena(&mut self) -> Result<(), Diagnostic> {
        let graph = self.source.graph;
        let mut live: BTreeMap<ValueId, (u32, u32)> = BTreeMap::new();
        for (step, draft) in self.source.drafts.iter().enumerate() {
            for u in &draft.uses {
                if let Place::Value(v) = u.place
                    && !is_leaf(&graph.def(v).op)
                {
                    live.entry(v).or_insert((step as u32, step as u32)).1 = step as u32;
                }
            }
        }
        for (v, live) in live {
            let bytes = tensor_bytes(graph, self.source.device, graph.ty(v));
            self.arena.push((v, Request { bytes, live }));
        }
        let requests: Vec<Request> = self.arena.iter().map(|(_, r)| r.clone()).collect();
        let waves = waves::of(&self.source.drafts);
        let layout = memory::plan_in_waves(&requests, &waves, self.source.device.limits.max_allocation_bytes);
        let layout = layout.map_err(|e| {
            Diagnostic::new(Code::Device, format!("{}: {e}", graph.value(self.arena[e.request].0).name))
        })?;
        for ((v, _), Placement { chunk, offset }) in self.arena.iter().zip(&layout.placements) {
            let at = Location { region: Region::Arena(*chunk), base: Base::Arena(*chunk), offset: *offset };
            self.locations.insert(Place::Value(*v), at);
        }
        self.entry.arena_bytes = layout.chunk_bytes;
        self.entry.live_bytes = layout.live_bytes;
        Ok(())
    }

    fn locate_leaves(&mut self, weights: &mut WeightTable) -> Result<(), Diagnostic> {
        let graph = self.source.graph;
        let uses: Vec<Use> = self.source.drafts.iter().flat_map(|d| d.uses.iter().copied()).collect();
        for u in uses {
            if self.locations.contains_key(&u.place) || u.place == Place::Table {
                continue;
            }
            let location = match u.place {
                Place::Output(slot) => io_location(slot),
                Place::StateUpdate(_) | Place::Table => panic!("{:?} is placed apart", u.place),
                Place::Value(v) => match &graph.def(v).op {
                    Op::Input { .. } => io_location(input_slot(graph, v)),
                    Op::Weight(w) => {
                        let tensor = self.checkpoint(w, graph.ty(v), self.order(v), weights)?;
                        weight_location(weights, tensor)
                    }
                    Op::Const(lit) => {
                        let storage = storage_of(lit.ty.dtype, self.source.device);
                        let name = format!("const.{}", graph.value(v).name);
                        let tensor = weights.literal(&name, lit, (storage, self.order(v)))?;
                        weight_location(weights, tensor)
                    }
                    op => panic!("{op:?} has no place"),
                },
            };
            self.locations.insert(u.place, location);
        }
        Ok(())
    }

    fn dispatch(&mut self, kernels: &mut KernelTable) -> Result<(), Diagnostic> {
        let mut drafts = std::mem::take(&mut self.source.drafts);
        self.locations.insert(Place::Table, Location { region: Region::Symbols, base: Base::Symbols, offset: 0 });
        let (mut bases, mut groups) = (vec![vec![]; drafts.len()], vec![Groups::Fixed([1, 1, 1]); drafts.len()]);
        for (draft, bases) in drafts.iter_mut().zip(&mut bases).filter(|(d, _)| d.binding.is_none()) {
            *bases = self.fill_interface(draft)?;
        }
        let specs: Vec<KernelSpec> = drafts.iter().filter(|d| d.binding.is_none()).map(|d| d.spec.clone()).collect();
        kernels.build_all(&specs, self.source.device)?;
        for (draft, groups) in drafts.iter().zip(&mut groups).filter(|(d, _)| d.binding.is_none()) {
            *groups = self.groups(kernels.find(&draft.spec).1);
        }
        // Now that every size and group count has its word, steps that find a size know what to write.
        self.found = bind::found_words(self.source.graph, &mut self.source.symtab);
        for (draft, bases) in drafts.iter_mut().zip(&mut bases) {
            let Some(binding) = draft.binding else { continue };
            let Source { graph, device, symtab, .. } = &mut self.source;
            bind::complete(draft, binding as usize, &self.found, graph, device, symtab);
            *bases = self.fill_interface(draft)?;
            kernels.build_all(std::slice::from_ref(&draft.spec), self.source.device)?;
        }
        for ((draft, bases), groups) in drafts.into_iter().zip(bases).zip(groups) {
            if let Some(d) = self.one_dispatch(draft, bases, groups, kernels) {
                self.dispatches.push(d);
            }
        }
        Ok(())
    }

    /// Settles which base each operand is relative to.
    fn fill_interface(&self, draft: &mut Draft) -> Result<Vec<Base>, Diagnostic> {
        let bases = self.bases(draft);
        let reads_symbols = draft.spec.reads_symbols();
        let interface = draft.spec.interface_mut();
        for (operand, u) in interface.operands.iter_mut().zip(&draft.uses) {
            let at = self.locations[&u.place];
            operand.base = bases.iter().position(|b| *b == at.base).expect("bases cover all operands") as u8;
            operand.via_table = at.base == Base::IoTable;
        }
        interface.n_bases = bases.len() as u8;
        interface.symbols = reads_symbols;
        let limit = self.source.device.limits.push_constant_bytes;
        if interface.push_bytes() > limit {
            let text = format!(
                "the kernel of {} has {} operands and needs {} bytes of push constants, the device has {limit}",
                self.source.graph.value(draft.result).name,
                interface.operands.len(),
                interface.push_bytes()
            );
            return Err(Diagnostic::new(Code::Device, text));
        }
        Ok(bases)
    }

    /// A dispatch, or none when the iteration space is empty.
    fn one_dispatch(&self, draft: Draft, bases: Vec<Base>, groups: Groups, kernels: &KernelTable) -> Option<Dispatch> {
        let (kernel, _) = kernels.find(&draft.spec);
        if matches!(groups, Groups::Fixed(g) if g.contains(&0)) {
            return None;
        }
        let label = self.source.graph.value(draft.result).name.clone();
        let origin = self.origins(&draft);
        let (reads, writes) = self.ranges(&draft);
        let offsets = (0..).zip(&draft.uses).map(|(operand, u)| {
            let part = draft.parts.iter().find(|p| p.operand == operand);
            self.offset(u.place, part.map_or(0, |p| p.start))
        });
        let offsets = offsets.collect();
        Some(Dispatch { kernel, bases, offsets, groups, reads, writes, label, origin, cost: draft.cost })
    }

    /// Distinct bases of a kernel in a fixed order; the symbol table last.
    fn bases(&self, draft: &Draft) -> Vec<Base> {
        let mut bases: Vec<Base> = draft.uses.iter().map(|u| self.locations[&u.place].base).collect();
        bases.sort_unstable();
        bases.dedup();
        if draft.spec.reads_symbols() && bases.last() != Some(&Base::Symbols) {
            bases.push(Base::Symbols);
        }
        bases
    }

    /// The word of an operand that starts `start` bytes into its place.
    fn offset(&self, place: Place, start: u64) -> u32 {
        let at = self.locations[&place];
        match at.region {
            Region::Io(slot) => {
                assert_eq!(start, 0, "what the caller owns has an address, not an offset");
                slot
            }
            _ => u32::try_from((at.offset + start) / 16).expect("chunks are below 64 GiB"),
        }
    }

    /// Ranges read and written, by operand. What is read, and what is both read and written, is declared whole unless the draft says more.
    fn ranges(&self, draft: &Draft) -> (Vec<ByteRange>, Vec<ByteRange>) {
        let (mut reads, mut writes) = (vec![], vec![]);
        for (operand, u) in (0..).zip(&draft.uses) {
            let whole = self.whole_range(*u);
            if let Some(part) = draft.parts.iter().find(|p| p.operand == operand) {
                let range = |of: &Option<std::ops::Range<u64>>| match of {
                    None => whole,
                    Some(r) => ByteRange { offset: whole.offset + r.start, bytes: r.end - r.start, ..whole },
                };
                reads.extend((u.access != Access::Write).then(|| range(&part.read)));
                writes.extend((u.access != Access::Read).then(|| range(&part.written)));
                continue;
            }
            match u.access {
                Access::Read => reads.push(whole),
                Access::Write if u.place == Place::Table => writes.push(whole),
                Access::Write => writes.extend(written_ranges(&draft.spec, operand, whole)),
                Access::ReadWrite => {
                    reads.push(whole);
                    writes.push(whole);
                }
            }
        }
        (reads, writes)
    }

    fn whole_range(&self, u: Use) -> ByteRange {
        let at = self.locations[&u.place];
        let offset = if matches!(at.region, Region::Io(_)) { 0 } else { at.offset };
        let bytes = match u.place {
            Place::Table => self.table_bytes(),
            _ => place_bytes(self.source.graph, self.source.device, u),
        };
        ByteRange { region: at.region, offset, bytes }
    }

    fn table_bytes(&self) -> u64 {
        self.source.symtab.words().len() as u64 * 4
    }

    /// What a dispatch reads of a table that steps write: all of it where it is a base, else its group counts.
    fn reads_of_table(&self, d: &Dispatch) -> Option<ByteRange> {
        let whole = ByteRange { region: Region::Symbols, offset: 0, bytes: self.table_bytes() };
        match d.groups {
            _ if self.found.is_empty() => None,
            _ if d.bases.contains(&Base::Symbols) => Some(whole),
            Groups::Table(word) => Some(ByteRange { offset: u64::from(word) * 4, bytes: 12, ..whole }),
            Groups::Fixed(_) => None,
        }
    }

    fn origins(&self, draft: &Draft) -> Vec<String> {
        let graph = self.source.graph;
        let mut out: Vec<String> = vec![];
        for &n in &draft.nodes {
            let o = &graph.origins[graph.node(n).origin as usize];
            let parts = [o.target.as_str(), o.node.as_str(), o.module.as_str(), o.line.as_str()];
            let text = parts.iter().filter(|p| !p.is_empty()).copied().collect::<Vec<_>>().join(" · ");
            if !text.is_empty() && !out.contains(&text) {
                out.push(text);
            }
        }
        out
    }

    /// Workgroup counts: folded into y above the portable limit; read from the table where a factor is symbolic.
    fn groups(&mut self, grid: &Grid) -> Groups {
        let factors = &grid.dims[0];
        let sizes: Option<Vec<u64>> = factors.iter().map(const_count).collect();
        if let Some(sizes) = sizes {
            let n: u64 = sizes.iter().product();
            let (x, y) = folded(n);
            return Groups::Fixed([x as u32, y as u32, 1]);
        }
        let symtab = &mut self.source.symtab;
        let n = product(factors.iter().map(|f| symbolic_count(f, symtab)).collect());
        let most = Size::Const(i64::from(MAX_GRID_X));
        let x = Size::Min(Box::new(n.clone()), Box::new(most.clone()));
        let y = ceil_div(n, i64::from(MAX_GRID_X));
        Groups::Table(symtab.groups([x, y, Size::Const(1)]))
    }

    fn finish(mut self) -> Entry {
        let graph = self.source.graph;
        let touched = |d: &Dispatch| {
            let reads = d.reads.iter().copied().chain(self.reads_of_table(d)).collect();
            Touches { reads, writes: d.writes.clone() }
        };
        let touches: Vec<Touches> = self.dispatches.iter().map(touched).collect();
        let barriers = barriers::place(&touches);
        for (dispatch, barrier) in std::mem::take(&mut self.dispatches).into_iter().zip(barriers) {
            if barrier {
                self.entry.steps.push(Step::Barrier);
            }
            self.entry.steps.push(Step::Dispatch(dispatch));
        }
        self.buffers();
        self.entry.table = self.source.symtab.words().to_vec();
        let found = |name: &String| graph.bindings.iter().position(|b| b.symbol == *name).map(|i| self.found[i]);
        let symbol =
            |(name, r): (&String, &Range)| Symbol { name: name.clone(), min: r.min, max: r.max, found: found(name) };
        self.entry.symbols = graph.ranges.iter().map(symbol).collect();
        self.entry.inputs = input_ports(graph, self.source.device, &self.source.symtab);
        self.entry.outputs = output_ports(graph, self.source.device, &self.source.symtab);
        self.entry
    }

    /// Arena buffers with lifetimes in final step numbers. A buffer whose only kernels had empty iteration spaces is dropped.
    fn buffers(&mut self) {
        for (v, request) in &self.arena {
            let at = self.locations[&Place::Value(*v)];
            let Region::Arena(chunk) = at.region else { continue };
            let name = self.source.graph.value(*v).name.clone();
            let buffer = ArenaBuffer { name, chunk, offset: at.offset, bytes: request.bytes, live: (0, 0) };
            if let Some(live) = self.final_lifetime(&buffer, request) {
                self.entry.buffers.push(ArenaBuffer { live, ..buffer });
            }
        }
        self.entry.buffers.sort_by_key(|b| (b.live.0, b.chunk, b.offset));
    }

    fn final_lifetime(&self, buffer: &ArenaBuffer, request: &Request) -> Option<(u32, u32)> {
        let touches = |d: &Dispatch| {
            // Parts of it count; what is empty lies in the buffer that starts there.
            let inside = |r: &ByteRange| {
                let (start, end) = (buffer.offset, buffer.offset + buffer.bytes);
                let at = r.offset == start || (r.offset > start && r.offset < end);
                r.region == Region::Arena(buffer.chunk) && at && r.offset + r.bytes <= end
            };
            d.reads.iter().chain(&d.writes).any(inside)
        };
        let mut number = 0u32;
        let mut live: Option<(u32, u32)> = None;
        for (i, step) in self.entry.steps.iter().enumerate() {
            let Step::Dispatch(d) = step else { continue };
            // Another buffer may have had the same bytes before or after: only the planned lifetime counts.
            let planned = number >= request.live.0 && number <= request.live.1;
            if planned && touches(d) {
                live = Some((live.map_or(i as u32, |l| l.0), i as u32));
            }
            number += 1;
        }
        live
    }
}

fn is_leaf(op: &Op) -> bool {
    matches!(op, Op::Input { .. } | Op::Weight(_) | Op::Const(_) | Op::State(_))
}

/// States by name: those read, then those only written.
fn states(graph: &Graph) -> Vec<(String, TensorType, Option<ValueId>)> {
    let mut out: Vec<(String, TensorType, Option<ValueId>)> = vec![];
    for node in &graph.nodes {
        if let Op::State(w) = &node.op {
            let v = node.outputs[0];
            out.push((w.name.clone(), graph.ty(v).clone(), Some(v)));
        }
    }
    for (name, v) in &graph.state_updates {
        if !out.iter().any(|(n, ..)| n == name) {
            out.push((name.clone(), graph.ty(*v).clone(), None));
        }
    }
    out
}

fn io_location(slot: u32) -> Location {
    Location { region: Region::Io(slot), base: Base::IoTable, offset: 0 }
}

fn weight_location(weights: &WeightTable, tensor: u32) -> Location {
    let t = &weights.layout().tensors[tensor as usize];
    Location { region: Region::Weights(t.chunk), base: Base::Weights(t.chunk), offset: t.offset }
}

fn input_slot(graph: &Graph, v: ValueId) -> u32 {
    let tensors = graph.inputs.iter().filter_map(|(_, i)| match i {
        UserInput::Tensor(t) => Some(*t),
        UserInput::Symbol(_) | UserInput::Unused => None,
    });
    tensors.enumerate().find(|(_, t)| *t == v).expect("an input value is a user input").0 as u32
}

fn const_count(f: &GridFactor) -> Option<u64> {
    let mut n = 1u64;
    for e in &f.extents {
        match e {
            Extent::Const(v) => n *= u64::from(*v),
            Extent::Sym(_) => return None,
        }
    }
    Some(n.div_ceil(u64::from(f.divisor)))
}

fn symbolic_count(f: &GridFactor, symtab: &SymTable) -> Size {
    let extents = f.extents.iter().map(|e| match e {
        Extent::Const(v) => Size::Const(i64::from(*v)),
        Extent::Sym(w) => symtab.formula(*w).clone(),
    });
    ceil_div(product(extents.collect()), i64::from(f.divisor))
}

fn product(mut sizes: Vec<Size>) -> Size {
    sizes.retain(|s| *s != Size::Const(1));
    match sizes.len() {
        0 => Size::Const(1),
        1 => sizes.remove(0),
        _ => Size::Mul(sizes),
    }
}

fn ceil_div(n: Size, by: i64) -> Size {
    match by {
        1 => n,
        _ => Size::FloorDiv(Box::new(Size::Add(vec![n, Size::Const(by - 1)])), Box::new(Size::Const(by))),
    }
}

fn port(
    name: String,
    ty: &TensorType,
    kind: PortKind,
    graph: &Graph,
    device: &DeviceProfile,
    symtab: &SymTable,
) -> Port {
    Port {
        name,
        elem: elem(ty.dtype),
        word_storage: storage_of(ty.dtype, device) == Storage::Word,
        shape: ty.shape.iter().map(|d| symtab.size(d)).collect(),
        max_bytes: tensor_bytes(graph, device, ty),
        kind,
    }
}

fn input_ports(graph: &Graph, device: &DeviceProfile, symtab: &SymTable) -> Vec<Port> {
    let mut names = Names::default();
    let mut slot = 0;
    let mut ports = vec![];
    for (name, input) in &graph.inputs {
        let name = names.fresh(name);
        match input {
            UserInput::Tensor(v) => {
                ports.push(port(name, graph.ty(*v), PortKind::Io(slot), graph, device, symtab));
                slot += 1;
            }
            UserInput::Symbol(s) => {
                let at = graph.ranges.keys().position(|k| k == s).expect("every symbol has bounds");
                let kind = PortKind::Symbol(at as u16);
                let elem = jvc_codegen::plan::Elem::I64;
                ports.push(Port { name, elem, word_storage: false, shape: vec![], max_bytes: 8, kind });
            }
            UserInput::Unused => {}
        }
    }
    ports
}

fn output_ports(graph: &Graph, device: &DeviceProfile, symtab: &SymTable) -> Vec<Port> {
    let mut names = Names::default();
    let tensors = graph.outputs.iter().filter(|(_, o)| matches!(o, UserOutput::Tensor(_))).map(|(n, _)| n.clone());
    let updates = graph.input_updates.iter().map(|(i, _)| format!("updated_{}", graph.inputs[*i as usize].0));
    let all: Vec<String> = tensors.chain(updates).collect();
    let first = n_input_slots(graph);
    output_slots(graph)
        .into_iter()
        .zip(all)
        .map(|((slot, v), name)| {
            port(names.fresh(&name), graph.ty(v), PortKind::Io(first + slot), graph, device, symtab)
        })
        .collect()
}

/// Rust-safe, distinct names.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn fresh(&mut self, name: &str) -> String {
        let stem = rust_name(name);
        let free = |n: &String| !self.0.contains(n);
        let name = Some(stem.clone()).filter(free).or_else(|| (2..).map(|i| format!("{stem}_{i}")).find(free));
        let name = name.expect("some number is free");
        self.0.push(name.clone());
        name
    }
}
