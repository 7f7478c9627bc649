//! The plan's independent checker. It shares no code with the planner and derives everything again from the steps.
//!
//! A plan that verifies has these properties:
//!
//! 1. Names: kernels, entries, ports of an entry and its symbols are distinct; every index points at something.
//! 2. Weights: tensors lie in their chunks, 256-aligned and disjoint. States likewise in the state buffer; no step writes a weight.
//! 3. Arena: buffers lie in their chunks, 256-aligned; two that live together are disjoint, but for the in-place case of
//!    [`super::ArenaBuffer`].
//! 4. Dispatches: bases, offsets and push constants fit the kernel; every range lies in its region, an arena range within one
//!    buffer that lives at that step; every range is reached by an operand (right base, offset not beyond the range), and every
//!    operand by a range; within a dispatch a range read and a range written are disjoint or the same.
//! 5. Hazards: between two steps without a barrier between them there is no RAW, WAR or WAW overlap. The words of a table
//!    grid, and the whole table where the table is a base, count as read.
//! 6. Every byte that a step reads of a buffer was written by steps before it; of every output, all bytes are written; no input is.
//!    Written is what a step declares, which may be more than it writes: the span around many parts.
//! 7. Sizes: every word of the table fits a u32, and every port its buffer, at both ends of the symbols' ranges.

use super::size::SizeError;
use super::walk::Walk;
use super::{Base, ByteRange, Dispatch, Entry, Groups, Plan, PlanKernel, Port, PortKind, Region, Step};
use std::collections::BTreeSet;

/// Alignment of tensors in chunks, in bytes.
pub const ALIGNMENT: u64 = 256;
/// Most workgroups per dimension that every Vulkan device takes.
pub(super) const MAX_GROUPS: u32 = 65535;

/// A property that a plan lacks. Always a bug of whoever made the plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct PlanError {
    /// Entry, and step if it is about one.
    pub place: String,
    /// What is wrong there.
    pub fault: Fault,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Fault {
    #[error("the name {0:?} is used twice")]
    DuplicateName(String),
    #[error("{what} {index} does not exist (there are {count})")]
    NoSuch { what: &'static str, index: u64, count: u64 },
    #[error("{what} {name:?} at {offset} is not aligned to {ALIGNMENT} bytes")]
    Misaligned { what: &'static str, name: String, offset: u64 },
    #[error("{what} {name:?} ends at {end}, beyond its {limit} bytes")]
    Beyond { what: &'static str, name: String, end: u64, limit: u64 },
    #[error("{first:?} and {second:?} overlap in {region}")]
    Overlap { first: String, second: String, region: Region },
    #[error("buffer {name:?} lives in steps {first} to {last} of {n_steps}")]
    Lifetime { name: String, first: u32, last: u32, n_steps: usize },
    #[error("the kernel has {want} {what}, the dispatch gives {got}")]
    Arity { what: &'static str, want: usize, got: usize },
    #[error("{got} bytes of push constants, the requirements say {limit}")]
    PushBytes { got: u32, limit: u32 },
    #[error("{0} workgroups in one dimension")]
    TooManyGroups(u32),
    #[error("{range} is beyond its region's {limit} bytes")]
    RangeBeyond { range: ByteRange, limit: u64 },
    #[error("{0} lies in no buffer that lives at this step")]
    NoBuffer(ByteRange),
    #[error("no operand reaches {0}")]
    NoOperand(ByteRange),
    #[error("operand {operand} ({base}+{bytes}) has no range")]
    NoRange { operand: usize, base: Base, bytes: u64 },
    #[error("{0} is written, but is read-only")]
    ReadOnly(ByteRange),
    #[error("reads {read} and writes {write}, which overlap but are not the same")]
    InPlace { read: ByteRange, write: ByteRange },
    #[error("{hazard} on {range} with step {earlier} ({label}), and no barrier between")]
    Hazard { hazard: &'static str, range: ByteRange, earlier: usize, label: String },
    #[error("buffer {name:?} is read before all of {range} is written")]
    Undefined { name: String, range: ByteRange },
    #[error("not all of output {0:?} is written")]
    Unwritten(String),
    #[error("symbol {name:?} ranges from {min} to {max}")]
    SymbolRange { name: String, min: i64, max: i64 },
    #[error("no step writes the table, from which the value of symbol {0:?} is to be read")]
    NeverFound(String),
    #[error("word {word} of the table: {error}")]
    Table { word: usize, error: SizeError },
    #[error("the size of {name:?}: {error}")]
    PortSize { name: String, error: SizeError },
    #[error("{name:?} takes {bytes} bytes, its buffer has {max_bytes}")]
    PortBytes { name: String, bytes: u64, max_bytes: u64 },
    #[error("state {name:?} has {bytes} bytes, its initial value {init_bytes}")]
    StateInit { name: String, bytes: u64, init_bytes: u64 },
}

impl Plan {
    /// Checks the properties that this file lists.
    ///
    /// # Errors
    /// All faults found, in the order of the plan.
    pub fn verify(&self) -> Result<(), Vec<PlanError>> {
        let mut faults = Faults::default();
        faults.at("plan".to_string());
        faults.distinct(self.kernels.iter().map(|k| k.name.as_str()));
        faults.distinct(self.entries.iter().map(|e| e.name.as_str()));
        self.check_kernels(&mut faults);
        self.check_weights(&mut faults);
        for entry in &self.entries {
            faults.at(format!("entry {:?}", entry.name));
            check_symbols(entry, &mut faults);
            check_ports(entry, &mut faults);
            self.check_states(entry, &mut faults);
            check_buffers(entry, &mut faults);
            Walk::new(self, entry).run(&mut faults);
        }
        if faults.list.is_empty() { Ok(()) } else { Err(faults.list) }
    }

    fn check_kernels(&self, faults: &mut Faults) {
        for kernel in &self.kernels {
            for &base in &kernel.operand_bases {
                faults.index("base", u64::from(base), u64::from(kernel.n_bases));
            }
            let got = kernel.push_bytes();
            if got > self.requirements.push_bytes {
                faults.add(Fault::PushBytes { got, limit: self.requirements.push_bytes });
            }
        }
    }

    fn check_weights(&self, faults: &mut Faults) {
        let weights = &self.weights;
        let mut placed = Vec::new();
        for t in &weights.tensors {
            if !faults.index("weight chunk", u64::from(t.chunk), weights.chunk_bytes.len() as u64) {
                continue;
            }
            faults.place("tensor", &t.name, t.offset, t.bytes, weights.chunk_bytes[t.chunk as usize]);
            placed.push((Region::Weights(t.chunk), t.offset, t.bytes, t.name.as_str()));
        }
        faults.disjoint(placed);
    }

    fn check_states(&self, entry: &Entry, faults: &mut Faults) {
        let n_tensors = self.weights.tensors.len() as u64;
        for state in &entry.states {
            faults.place("state", &state.name, state.offset, state.bytes, entry.state_bytes());
            let Some(init) = state.init.filter(|init| faults.index("tensor", u64::from(*init), n_tensors)) else {
                continue;
            };
            let init_bytes = self.weights.tensors[init as usize].bytes;
            if init_bytes != state.bytes {
                faults.add(Fault::StateInit { name: state.name.clone(), bytes: state.bytes, init_bytes });
            }
        }
        faults.disjoint(entry.states.iter().map(|s| (Region::State, s.offset, s.bytes, s.name.as_str())).collect());
    }
}

impl PlanKernel {
    /// Bytes of its push constants.
    pub fn push_bytes(&self) -> u32 {
        u32::from(self.n_bases) * 8 + self.operand_bases.len() as u32 * 4
    }
}

impl Step {
    /// The dispatch, if it is one.
    pub fn dispatch(&self) -> Option<&Dispatch> {
        match self {
            Step::Dispatch(d) => Some(d),
            Step::Barrier => None,
        }
    }
}

impl Entry {
    /// True for a barrier that orders group counts, too: a dispatch before it writes the symbol table, and one of those between it and
    /// the next barrier takes its group counts from there.
    pub fn orders_groups(&self, barrier: usize) -> bool {
        let before = self.steps[..barrier].iter().filter_map(Step::dispatch);
        let after = self.steps[barrier + 1..].iter().map_while(Step::dispatch);
        let writes = before.flat_map(|d| &d.writes).any(|range| range.region == Region::Symbols);
        writes && after.into_iter().any(|d| matches!(d.groups, Groups::Table(_)))
    }

    /// True if some dispatch writes the symbol table.
    pub fn writes_table(&self) -> bool {
        let mut writes = self.steps.iter().filter_map(Step::dispatch).flat_map(|d| &d.writes);
        writes.any(|range| range.region == Region::Symbols)
    }

    /// Bytes of a session's state buffer.
    pub fn state_bytes(&self) -> u64 {
        self.states.iter().map(|s| s.offset.saturating_add(s.bytes)).max().unwrap_or(0)
    }

    /// Number of slots of the I/O table.
    pub fn n_io(&self) -> u32 {
        self.io_ports().map(|(slot, _)| slot + 1).max().unwrap_or(0)
    }

    /// Ports that have a buffer, by slot: inputs first, then outputs.
    pub fn io_ports(&self) -> impl Iterator<Item = (u32, &Port)> {
        self.inputs.iter().chain(&self.outputs).filter_map(|port| match port.kind {
            PortKind::Io(slot) => Some((slot, port)),
            PortKind::Symbol(_) => None,
        })
    }
}

impl ByteRange {
    pub(super) fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes)
    }

    pub(super) fn overlaps(&self, other: &ByteRange) -> bool {
        self.region == other.region && self.offset.max(other.offset) < self.end().min(other.end())
    }
}

/// Faults so far, and where the next one is.
#[derive(Default)]
pub(super) struct Faults {
    place: String,
    list: Vec<PlanError>,
}

impl Faults {
    pub(super) fn at(&mut self, place: String) {
        self.place = place;
    }

    pub(super) fn add(&mut self, fault: Fault) {
        self.list.push(PlanError { place: self.place.clone(), fault });
    }

    fn distinct<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        let mut seen = BTreeSet::new();
        for name in names {
            if !seen.insert(name) {
                self.add(Fault::DuplicateName(name.to_string()));
            }
        }
    }

    pub(super) fn index(&mut self, what: &'static str, index: u64, count: u64) -> bool {
        if index >= count {
            self.add(Fault::NoSuch { what, index, count });
        }
        index < count
    }

    fn place(&mut self, what: &'static str, name: &str, offset: u64, bytes: u64, limit: u64) {
        let end = offset.saturating_add(bytes);
        if !offset.is_multiple_of(ALIGNMENT) {
            self.add(Fault::Misaligned { what, name: name.to_string(), offset });
        }
        if end > limit {
            self.add(Fault::Beyond { what, name: name.to_string(), end, limit });
        }
    }

    /// No two of (region, offset, bytes, name) share a byte.
    fn disjoint(&mut self, mut placed: Vec<(Region, u64, u64, &str)>) {
        placed.retain(|(_, _, bytes, _)| *bytes > 0);
        placed.sort();
        for pair in placed.windows(2) {
            let [(region, offset, bytes, first), (next_region, next, _, second)] = [pair[0], pair[1]];
            if region == next_region && offset.saturating_add(bytes) > next {
                self.add(Fault::Overlap { first: first.to_string(), second: second.to_string(), region });
            }
        }
    }
}

fn check_symbols(entry: &Entry, faults: &mut Faults) {
    faults.distinct(entry.symbols.iter().map(|s| s.name.as_str()));
    for s in &entry.symbols {
        if s.min > s.max || s.min < 0 {
            faults.add(Fault::SymbolRange { name: s.name.clone(), min: s.min, max: s.max });
        }
        if let Some(word) = s.found {
            let exists = faults.index("word of the table", u64::from(word), entry.table.len() as u64);
            if exists && !entry.writes_table() {
                faults.add(Fault::NeverFound(s.name.clone()));
            }
        }
    }
    for values in [entry.least_symbols(), entry.greatest_symbols()] {
        for (word, size) in entry.table.iter().enumerate() {
            if let Err(error) = size.eval_u32(&values) {
                faults.add(Fault::Table { word, error });
            }
        }
    }
}

fn check_ports(entry: &Entry, faults: &mut Faults) {
    faults.distinct(entry.inputs.iter().map(|p| p.name.as_str()));
    faults.distinct(entry.outputs.iter().map(|p| p.name.as_str()));
    let mut slots = BTreeSet::new();
    let n_slots = entry.io_ports().count() as u64;
    for port in entry.inputs.iter().chain(&entry.outputs) {
        match port.kind {
            PortKind::Io(slot) if !slots.insert(slot) => faults.add(Fault::DuplicateName(format!("io{slot}"))),
            PortKind::Io(slot) => {
                faults.index("slot of a table with as many slots as ports,", u64::from(slot), n_slots);
            }
            PortKind::Symbol(symbol) => {
                faults.index("symbol", u64::from(symbol), entry.symbols.len() as u64);
                continue;
            }
        }
        for values in [entry.least_symbols(), entry.greatest_symbols()] {
            match port.bytes(&values) {
                Ok(bytes) if bytes > port.max_bytes => {
                    faults.add(Fault::PortBytes { name: port.name.clone(), bytes, max_bytes: port.max_bytes });
                }
                Ok(_) => {}
                Err(error) => faults.add(Fault::PortSize { name: port.name.clone(), error }),
            }
        }
    }
}

fn check_buffers(entry: &Entry, faults: &mut Faults) {
    for b in &entry.buffers {
        if faults.index("arena chunk", u64::from(b.chunk), entry.arena_bytes.len() as u64) {
            faults.place("buffer", &b.name, b.offset, b.bytes, entry.arena_bytes[b.chunk as usize]);
        }
        let (first, last) = b.live;
        if first > last || last as usize >= entry.steps.len() {
            faults.add(Fault::Lifetime { name: b.name.clone(), first, last, n_steps: entry.steps.len() });
        }
    }
}
