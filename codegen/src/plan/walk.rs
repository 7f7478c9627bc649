//! The verifier's walk over an entry's steps: which buffers live, what was touched since the last barrier, what was ever written.

use super::verify::{Fault, Faults, MAX_GROUPS};
use super::{ArenaBuffer, Base, ByteRange, Dispatch, Entry, Groups, Plan, PortKind, Region, Step};
use std::collections::BTreeMap;

/// A range touched since the last barrier.
struct Touch {
    range: ByteRange,
    write: bool,
    step: usize,
}

/// State of the walk.
pub(super) struct Walk<'a> {
    plan: &'a Plan,
    entry: &'a Entry,
    /// Buffers by first step.
    starts: Vec<Vec<&'a ArenaBuffer>>,
    live: Vec<LiveBuffer<'a>>,
    group: Vec<Touch>,
    written: BTreeMap<Region, Written>,
}

struct LiveBuffer<'a> {
    buffer: &'a ArenaBuffer,
    written: Written,
}

/// Bytes of one region that steps have declared to write.
#[derive(Default)]
struct Written {
    /// Start → end; disjoint, and no two touch.
    spans: BTreeMap<u64, u64>,
}

impl Written {
    fn add(&mut self, range: &ByteRange) {
        let (mut start, mut end) = (range.offset, range.end());
        if start == end {
            return;
        }
        while let Some((&s, &e)) = self.spans.range(..=end).next_back().filter(|(_, e)| **e >= start) {
            (start, end) = (start.min(s), end.max(e));
            self.spans.remove(&s);
        }
        self.spans.insert(start, end);
    }

    fn covers(&self, start: u64, end: u64) -> bool {
        start == end || self.spans.range(..=start).next_back().is_some_and(|(_, e)| *e >= end)
    }
}

impl<'a> Walk<'a> {
    /// At the first step.
    pub(super) fn new(plan: &'a Plan, entry: &'a Entry) -> Self {
        let mut starts = vec![Vec::new(); entry.steps.len()];
        for buffer in &entry.buffers {
            if let Some(list) = starts.get_mut(buffer.live.0 as usize) {
                list.push(buffer);
            }
        }
        Walk { plan, entry, starts, live: Vec::new(), group: Vec::new(), written: BTreeMap::new() }
    }

    /// Walks all steps.
    pub(super) fn run(mut self, faults: &mut Faults) {
        for (idx, step) in self.entry.steps.iter().enumerate() {
            match step {
                Step::Barrier => {
                    faults.at(format!("entry {:?}, step {idx} (barrier)", self.entry.name));
                    self.enter(idx, None, faults);
                    self.group.clear();
                }
                Step::Dispatch(d) => {
                    faults.at(format!("entry {:?}, step {idx} ({})", self.entry.name, d.label));
                    self.enter(idx, Some(d), faults);
                    self.dispatch(idx, d, faults);
                }
            }
        }
        faults.at(format!("entry {:?}", self.entry.name));
        self.check_outputs(faults);
    }

    /// Ends and starts lifetimes; a buffer that starts must be disjoint from all that live on.
    fn enter(&mut self, idx: usize, dispatch: Option<&Dispatch>, faults: &mut Faults) {
        self.live.retain(|l| l.buffer.live.1 as usize >= idx);
        for buffer in std::mem::take(&mut self.starts[idx]) {
            for other in &self.live {
                if arena_range(buffer).overlaps(&arena_range(other.buffer))
                    && !is_in_place(idx, dispatch, other.buffer, buffer)
                {
                    let (first, second) = (other.buffer.name.clone(), buffer.name.clone());
                    faults.add(Fault::Overlap { first, second, region: Region::Arena(buffer.chunk) });
                }
            }
            self.live.push(LiveBuffer { buffer, written: Written::default() });
        }
    }

    fn dispatch(&mut self, idx: usize, d: &Dispatch, faults: &mut Faults) {
        check_groups(d, self.entry, faults);
        if faults.index("kernel", u64::from(d.kernel), self.plan.kernels.len() as u64) {
            self.check_operands(d, faults);
        }
        for range in d.reads.iter().chain(&d.writes) {
            self.check_range(range, faults);
        }
        for write in &d.writes {
            self.check_writable(write, faults);
            for read in d.reads.iter().filter(|read| read.overlaps(write) && *read != write) {
                faults.add(Fault::InPlace { read: *read, write: *write });
            }
        }
        self.check_hazards(idx, d, faults);
        self.check_defined(d, faults);
        for write in &d.writes {
            self.written.entry(write.region).or_default().add(write);
        }
    }

    fn check_operands(&self, d: &Dispatch, faults: &mut Faults) {
        let kernel = &self.plan.kernels[d.kernel as usize];
        let n_operands = kernel.operand_bases.len();
        let arity = [("bases", usize::from(kernel.n_bases), d.bases.len()), ("operands", n_operands, d.offsets.len())];
        if let Some((what, want, got)) = arity.into_iter().find(|(_, want, got)| want != got) {
            faults.add(Fault::Arity { what, want, got });
            return;
        }
        let operands: Vec<(Base, u32)> = kernel
            .operand_bases
            .iter()
            .zip(&d.offsets)
            .filter_map(|(base, offset)| Some((*d.bases.get(usize::from(*base))?, *offset)))
            .collect();
        let ranges = || d.reads.iter().chain(&d.writes);
        for range in ranges().filter(|range| range.region != Region::Symbols) {
            if !operands.iter().any(|operand| reaches(*operand, range)) {
                faults.add(Fault::NoOperand(*range));
            }
        }
        for (idx, operand) in operands.iter().enumerate() {
            if operand.0 != Base::Symbols && !ranges().any(|range| reaches(*operand, range)) {
                let bytes = u64::from(operand.1) * 16;
                faults.add(Fault::NoRange { operand: idx, base: operand.0, bytes });
            }
        }
    }

    fn check_range(&self, range: &ByteRange, faults: &mut Faults) {
        let entry = self.entry;
        let limit = match range.region {
            Region::Arena(chunk) => entry.arena_bytes.get(chunk as usize).copied(),
            Region::Weights(chunk) => self.plan.weights.chunk_bytes.get(chunk as usize).copied(),
            Region::Io(slot) => entry.io_ports().find(|(s, _)| *s == slot).map(|(_, port)| port.max_bytes),
            Region::State => Some(entry.state_bytes()),
            Region::Symbols => Some(entry.table.len() as u64 * 4),
        }
        .unwrap_or(0);
        if range.end() > limit {
            faults.add(Fault::RangeBeyond { range: *range, limit });
        }
        let is_arena = matches!(range.region, Region::Arena(_));
        if is_arena && range.bytes > 0 && !self.live.iter().any(|l| contains(l.buffer, range)) {
            faults.add(Fault::NoBuffer(*range));
        }
    }

    fn check_writable(&self, range: &ByteRange, faults: &mut Faults) {
        let is_input = |slot| self.entry.inputs.iter().any(|port| port.kind == PortKind::Io(slot));
        let read_only = match range.region {
            Region::Weights(_) => true,
            Region::Io(slot) => is_input(slot),
            Region::Arena(_) | Region::State | Region::Symbols => false,
        };
        if read_only {
            faults.add(Fault::ReadOnly(*range));
        }
    }

    fn check_hazards(&mut self, idx: usize, d: &Dispatch, faults: &mut Faults) {
        let implicit = implicit_reads(d, self.entry);
        let reads = d.reads.iter().chain(&implicit).map(|range| (*range, false));
        let touches: Vec<(ByteRange, bool)> = reads.chain(d.writes.iter().map(|range| (*range, true))).collect();
        for (range, write) in &touches {
            let clash = self.group.iter().find(|t| (t.write || *write) && t.range.overlaps(range));
            if let Some(earlier) = clash {
                let hazard = match (earlier.write, *write) {
                    (true, true) => "write after write",
                    (true, false) => "read after write",
                    (false, _) => "write after read",
                };
                let label = label(self.entry, earlier.step);
                faults.add(Fault::Hazard { hazard, range: *range, earlier: earlier.step, label });
            }
        }
        self.group.extend(touches.into_iter().map(|(range, write)| Touch { range, write, step: idx }));
    }

    /// All bytes read were written before, by one step or by several.
    fn check_defined(&mut self, d: &Dispatch, faults: &mut Faults) {
        for read in &d.reads {
            let mut holders = self.live.iter().filter(|l| contains(l.buffer, read)).peekable();
            // In place, the range lies in two buffers, one of them written before.
            if let Some(first) = holders.peek().map(|l| l.buffer.name.clone())
                && !holders.any(|l| l.written.covers(read.offset, read.end()))
            {
                faults.add(Fault::Undefined { name: first, range: *read });
            }
        }
        for live in &mut self.live {
            d.writes.iter().filter(|write| contains(live.buffer, write)).for_each(|write| live.written.add(write));
        }
    }

    fn check_outputs(&self, faults: &mut Faults) {
        for port in &self.entry.outputs {
            let PortKind::Io(slot) = port.kind else { continue };
            let written = self.written.get(&Region::Io(slot));
            if port.max_bytes > 0 && !written.is_some_and(|w| w.covers(0, port.max_bytes)) {
                faults.add(Fault::Unwritten(port.name.clone()));
            }
        }
    }
}

fn arena_range(b: &ArenaBuffer) -> ByteRange {
    ByteRange { region: Region::Arena(b.chunk), offset: b.offset, bytes: b.bytes }
}

fn contains(buffer: &ArenaBuffer, range: &ByteRange) -> bool {
    let whole = arena_range(buffer);
    range.region == whole.region && range.offset >= whole.offset && range.end() <= whole.end()
}

/// `old` ends and `new` starts at this step, on the same bytes, and the step reads and writes exactly these.
fn is_in_place(idx: usize, dispatch: Option<&Dispatch>, old: &ArenaBuffer, new: &ArenaBuffer) -> bool {
    let (old_range, new_range) = (arena_range(old), arena_range(new));
    let touches = |ranges: &[ByteRange]| ranges.iter().any(|r| contains(old, r) && contains(new, r));
    old.live.1 as usize == idx
        && old_range == new_range
        && dispatch.is_some_and(|d| touches(&d.reads) && touches(&d.writes))
}

/// The operand's address is in the range's region and not beyond its start.
fn reaches((base, offset): (Base, u32), range: &ByteRange) -> bool {
    let starts_before = u64::from(offset) * 16 <= range.offset;
    match (base, range.region) {
        (Base::Arena(a), Region::Arena(b)) | (Base::Weights(a), Region::Weights(b)) => a == b && starts_before,
        (Base::IoTable, Region::Io(slot)) => offset == slot,
        (Base::State, Region::State) | (Base::Symbols, Region::Symbols) => starts_before,
        _ => false,
    }
}

/// What a dispatch reads of the symbol table without naming it: its grid, and all of it where the table is a base.
fn implicit_reads(d: &Dispatch, entry: &Entry) -> Vec<ByteRange> {
    let mut reads = Vec::new();
    if let Groups::Table(word) = d.groups {
        reads.push(ByteRange { region: Region::Symbols, offset: u64::from(word) * 4, bytes: 12 });
    }
    if d.bases.contains(&Base::Symbols) && !d.writes.iter().any(|w| w.region == Region::Symbols) {
        reads.push(ByteRange { region: Region::Symbols, offset: 0, bytes: entry.table.len() as u64 * 4 });
    }
    reads
}

fn check_groups(d: &Dispatch, entry: &Entry, faults: &mut Faults) {
    match d.groups {
        Groups::Fixed(dims) => {
            for count in dims.into_iter().filter(|count| *count > MAX_GROUPS) {
                faults.add(Fault::TooManyGroups(count));
            }
        }
        Groups::Table(word) => {
            faults.index("word of the table", u64::from(word) + 2, entry.table.len() as u64);
        }
    }
}

fn label(entry: &Entry, step: usize) -> String {
    match &entry.steps[step] {
        Step::Dispatch(d) => d.label.clone(),
        Step::Barrier => "barrier".to_string(),
    }
}
