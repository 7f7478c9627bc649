//! Which values the steps of a plan write, and where: the plan knows bytes, the graph knows values, and names join the two.

use crate::ir::{Graph, UserInput, ValueId};
use crate::schedule::output_slots;
use jvc_codegen::plan::{ArenaBuffer, ByteRange, Dispatch, Entry, Region, Step};
use std::collections::BTreeMap;

/// A value in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stored {
    /// The value.
    pub(super) value: ValueId,
    /// Region that it lies in.
    pub(super) region: Region,
    /// Its first byte there.
    pub(super) offset: u64,
}

/// What a step does to values.
#[derive(Debug, Clone, Default)]
pub(super) struct StepValues {
    /// Values that it reads.
    pub(super) reads: Vec<Stored>,
    /// Values that it writes, all or part.
    pub(super) writes: Vec<Stored>,
    /// Those of them that no later step writes: from now on they are there.
    pub(super) completes: Vec<Stored>,
}

/// The values of every step of an entry point, by index of the step; barriers have none.
pub(super) fn of_steps(graph: &Graph, entry: &Entry) -> Vec<StepValues> {
    let places = Places::new(graph, entry);
    let mut steps: Vec<StepValues> = vec![];
    for (i, step) in entry.steps.iter().enumerate() {
        let Step::Dispatch(d) = step else {
            steps.push(StepValues::default());
            continue;
        };
        let (reads, writes) = (places.all(&d.reads, i as u32, false), places.all(&d.writes, i as u32, true));
        steps.push(StepValues { reads, writes, completes: vec![] });
    }
    let mut last: BTreeMap<Stored, usize> = BTreeMap::new();
    for (i, step) in steps.iter().enumerate() {
        last.extend(step.writes.iter().map(|w| (*w, i)));
    }
    last.into_iter().for_each(|(stored, i)| steps[i].completes.push(stored));
    steps
}

/// The steps up to `at` that wrote (part of) a value, with the bytes of it that each may have written.
pub(super) fn writers(entry: &Entry, steps: &[StepValues], stored: Stored, at: usize) -> Vec<(usize, Vec<ByteRange>)> {
    let wrote = |i: &usize| steps[*i].writes.contains(&stored);
    let ranges = |i: usize| match &entry.steps[i] {
        Step::Dispatch(d) => in_place_of(d, stored),
        Step::Barrier => vec![],
    };
    (0..=at).filter(wrote).map(|i| (i, ranges(i))).collect()
}

/// The dispatch's writes, as bytes of the value.
fn in_place_of(d: &Dispatch, stored: Stored) -> Vec<ByteRange> {
    let here = d.writes.iter().filter(|w| w.region == stored.region && w.offset >= stored.offset);
    here.map(|w| ByteRange { offset: w.offset - stored.offset, ..*w }).collect()
}

struct Places<'a> {
    entry: &'a Entry,
    named: BTreeMap<&'a str, ValueId>,
    inputs: Vec<ValueId>,
    outputs: Vec<ValueId>,
    /// By byte offset: the value written there at the end of a run.
    states: BTreeMap<u64, ValueId>,
}

impl<'a> Places<'a> {
    fn new(graph: &'a Graph, entry: &'a Entry) -> Places<'a> {
        let named = (0..).zip(&graph.values).map(|(i, v)| (v.name.as_str(), ValueId(i))).collect();
        let inputs = graph.inputs.iter().filter_map(|(_, i)| match i {
            UserInput::Tensor(v) => Some(*v),
            UserInput::Symbol(_) | UserInput::Unused => None,
        });
        let update = |name: &String| graph.state_updates.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        let states = entry.states.iter().filter_map(|s| Some((s.offset, update(&s.name)?))).collect();
        let outputs = output_slots(graph).into_iter().map(|(_, v)| v).collect();
        Places { entry, named, inputs: inputs.collect(), outputs, states }
    }

    fn all(&self, ranges: &[ByteRange], step: u32, written: bool) -> Vec<Stored> {
        let mut out: Vec<Stored> = ranges.iter().filter_map(|r| self.find(r, step, written)).collect();
        out.sort_unstable();
        out.dedup();
        out
    }

    fn find(&self, r: &ByteRange, step: u32, written: bool) -> Option<Stored> {
        let at = |value: ValueId, offset: u64| Stored { value, region: r.region, offset };
        match r.region {
            Region::Arena(chunk) => {
                let buffer = self.buffer(chunk, r, step, written)?;
                Some(at(*self.named.get(buffer.name.as_str())?, buffer.offset))
            }
            Region::Io(slot) => {
                let slot = slot as usize;
                let v = self.inputs.iter().chain(&self.outputs).nth(slot)?;
                Some(at(*v, 0))
            }
            // What a state holds before its update is a leaf.
            Region::State if written => {
                let (offset, v) = self.states.range(..=r.offset).next_back()?;
                Some(at(*v, *offset))
            }
            Region::State | Region::Weights(_) | Region::Symbols => None,
        }
    }

    /// The buffer that holds a range at a step. Where a step works in place, the one that ends there is read and the one that starts there
    /// written.
    fn buffer(&self, chunk: u32, r: &ByteRange, step: u32, written: bool) -> Option<&ArenaBuffer> {
        let holds = |b: &&ArenaBuffer| {
            let live = (b.live.0..=b.live.1).contains(&step);
            let inside = b.offset <= r.offset && r.offset + r.bytes <= b.offset + b.bytes;
            live && b.chunk == chunk && inside && b.bytes > 0
        };
        let all = self.entry.buffers.iter().filter(holds);
        all.max_by_key(|b| if written { b.live.0 } else { u32::MAX - b.live.0 })
    }
}
