//! The declared ranges of a plan, tested on the device, step by step: what barriers and the memory plan rest on.
//!
//! Two copies of all that an entry point touches (arena, state, ports, weights) lie in device memory, each in one allocation. In the true
//! copy the steps run one after the other, each alone. In the other one everything is poison but what the step declares to read:
//!
//! - no byte outside the step's declared writes changes there, and
//! - inside them it leaves the same bytes as the true run, or leaves the same bytes alone.
//!
//! The symbol table is small, and every kernel that has its address may read all of it: it is never poisoned.
//!
//! A read that is not declared meets poison (0xFF, which is NaN and −1) and shows in the results; a write that is not declared shows at once.

use super::{Call, ExecError, Value, cooperative, kernel_desc, requirements};
use crate::pipeline::Compiled;
use crate::plan::weights::WeightTable;
use jvc_codegen::plan::{Base, ByteRange, Dispatch, Entry, Groups, Plan, Region, Step};
use jvc_runtime as rt;
use std::fmt;
use std::ops::Range;

/// What undeclared bytes hold.
const POISON: u8 = 0xFF;
/// What declared writes hold before the step: else a copy of poison would pass for a byte left alone.
const UNWRITTEN: u8 = 0xA5;
/// What the true copy holds where no step has written yet.
const VIRGIN: u8 = 0x5A;
/// Bytes between regions, where a write beyond an end is seen.
const GUARD: u64 = 4096;

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeReport {
    /// Steps run in both copies.
    pub steps: usize,
    /// Bytes watched at each of them.
    pub bytes: u64,
    /// What is wrong, in order.
    pub faults: Vec<RangeFault>,
}

/// A step that does other than it declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeFault {
    /// Index in the entry's steps.
    pub step: usize,
    /// Its label.
    pub label: String,
    /// What it does.
    pub kind: RangeFaultKind,
    /// Where: a region and a byte in it, or what lies between regions.
    pub place: String,
}

/// How declared ranges are wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeFaultKind {
    /// A byte outside the declared writes changed.
    UndeclaredWrite,
    /// A byte that it writes depends on bytes outside its declared reads.
    UndeclaredRead,
}

impl fmt::Display for RangeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RangeFault { step, label, kind, place } = self;
        match kind {
            RangeFaultKind::UndeclaredWrite => write!(f, "step {step} ({label}) changes {place}, outside its writes"),
            RangeFaultKind::UndeclaredRead => write!(f, "step {step} ({label}) reads more than it declares: {place}"),
        }
    }
}

/// Runs an entry point step by step at these inputs, and checks every step's declared ranges.
///
/// # Errors
/// Inputs that do not fit, or the runtime's.
pub fn check_ranges(
    gpu: &rt::Gpu,
    compiled: &Compiled,
    entry: usize,
    inputs: &[Value],
) -> Result<RangeReport, ExecError> {
    let plan = &compiled.plan;
    let entry = &plan.entries[entry];
    let kernels: Vec<rt::KernelDesc<'_>> = plan.kernels.iter().map(kernel_desc).collect();
    let cooperative: Vec<rt::Cooperative<'_>> = plan.requirements.cooperative.iter().map(cooperative).collect();
    let desc = rt::ProgramDesc {
        name: &plan.name,
        requirements: requirements(plan, &cooperative),
        kernels: &kernels,
        weights: rt::WeightsDesc::default(),
    };
    let model = rt::Model::load(gpu, &desc, rt::WeightSource::None, &rt::CacheDir::None)?;
    let layout = Layout::new(plan, entry);
    let call = Call::new(entry, inputs)?;
    let mut checker = Checker {
        plan,
        entry,
        truth: Copy::new(&model, &layout, VIRGIN)?,
        poisoned: Copy::new(&model, &layout, POISON)?,
        layout,
        table: call.table.clone(),
        report: RangeReport::default(),
    };
    checker.fill_truth(&compiled.weights, &call)?;
    for (idx, step) in entry.steps.iter().enumerate() {
        if let Step::Dispatch(d) = step {
            checker.step(&model, idx, d)?;
        }
    }
    checker.finish()
}

/// Where regions lie in a copy: the I/O table at 0, then everything that steps write, then weights.
struct Layout {
    regions: Vec<(Region, Range<u64>)>,
    /// End of what is looked at after every step.
    weights: u64,
    end: u64,
}

impl Layout {
    fn new(plan: &Plan, entry: &Entry) -> Layout {
        let arena = (0..).zip(&entry.arena_bytes).map(|(c, bytes)| (Region::Arena(c), *bytes));
        let ports = entry.io_ports().map(|(slot, port)| (Region::Io(slot), port.max_bytes));
        let mutable = arena.chain([(Region::State, entry.state_bytes())]).chain(ports);
        let weights = (0..).zip(&plan.weights.chunk_bytes).map(|(c, bytes)| (Region::Weights(c), *bytes));
        let mut layout = Layout { regions: vec![], weights: 0, end: u64::from(entry.n_io()) * 8 };
        mutable.for_each(|(region, bytes)| layout.add(region, bytes));
        layout.end += GUARD;
        layout.weights = layout.end;
        weights.for_each(|(region, bytes)| layout.add(region, bytes));
        layout.end += GUARD;
        layout
    }

    fn add(&mut self, region: Region, bytes: u64) {
        let start = (self.end + GUARD).next_multiple_of(256);
        self.end = start + bytes;
        self.regions.push((region, start..self.end));
    }

    /// First byte of a region.
    fn start(&self, region: Region) -> u64 {
        self.regions.iter().find(|(r, _)| *r == region).map_or(0, |(_, range)| range.start)
    }

    /// Sorted, disjoint spans of the ranges; those of the symbol table, which has memory of its own, are left out.
    fn spans(&self, ranges: &[ByteRange]) -> Vec<Range<usize>> {
        let here = ranges.iter().filter(|r| r.region != Region::Symbols && r.bytes > 0);
        let mut all: Vec<Range<usize>> = here
            .map(|r| {
                let start = (self.start(r.region) + r.offset) as usize;
                start..start + r.bytes as usize
            })
            .collect();
        all.sort_by_key(|s| s.start);
        let mut spans: Vec<Range<usize>> = vec![];
        for span in all {
            match spans.last_mut() {
                Some(last) if last.end >= span.start => last.end = last.end.max(span.end),
                _ => spans.push(span),
            }
        }
        spans
    }

    /// What lies at a byte.
    fn place(&self, at: usize) -> String {
        let at = at as u64;
        match self.regions.iter().find(|(_, range)| range.contains(&at)) {
            Some((region, range)) => format!("byte {} of {region}", at - range.start),
            None => match self.regions.iter().rev().find(|(_, range)| range.end <= at) {
                Some((region, range)) => format!("byte {} behind the end of {region}", at - range.end),
                None => "the table of ports".into(),
            },
        }
    }
}

/// One copy of the memory: on the device, and what must be there.
struct Copy {
    arenas: rt::Arenas,
    /// Keeps hold of the device's side.
    access: rt::Session,
    image: Vec<u8>,
}

impl Copy {
    fn new(model: &rt::Model, layout: &Layout, fill: u8) -> Result<Copy, ExecError> {
        let arena_bytes = [layout.end];
        let nothing = super::step_desc(&arena_bytes, 0, &|_| {});
        let arenas = model.arenas(&[&nothing], 1)?;
        let options = rt::SessionOptions { arenas: Some(arenas.clone()), ..rt::SessionOptions::default() };
        let access = model.session_with(&nothing, &options)?;
        let mut copy = Copy { arenas, access, image: vec![fill; layout.end as usize] };
        let base = copy.buffer().address();
        for (region, range) in &layout.regions {
            if let Region::Io(slot) = region {
                let at = *slot as usize * 8;
                copy.image[at..at + 8].copy_from_slice(&(base + range.start).to_le_bytes());
            }
        }
        copy.upload(0..layout.end as usize)?;
        Ok(copy)
    }

    fn buffer(&self) -> &rt::Buffer {
        self.access.buffer(0, rt::Base::Arena(0)).expect("a copy is one arena chunk")
    }

    fn upload(&self, span: Range<usize>) -> Result<(), ExecError> {
        Ok(self.buffer().write(span.start as u64, &self.image[span])?)
    }

    fn download(&self, span: Range<usize>) -> Result<Vec<u8>, ExecError> {
        let mut bytes = vec![0; span.len()];
        self.buffer().read(span.start as u64, &mut bytes)?;
        Ok(bytes)
    }

    /// Runs a step; the symbol table afterwards.
    fn run(&self, model: &rt::Model, desc: &rt::EntryDesc<'_>, table: &[u32]) -> Result<Vec<u32>, ExecError> {
        let options = rt::SessionOptions { arenas: Some(self.arenas.clone()), ..rt::SessionOptions::default() };
        let mut session = model.session_with(desc, &options)?;
        let ticket = session.submit(table, &[], &[])?;
        let table = session.read_table(&ticket)?;
        session.wait(ticket, &mut [])?;
        Ok(table)
    }
}

struct Checker<'a> {
    plan: &'a Plan,
    entry: &'a Entry,
    layout: Layout,
    truth: Copy,
    poisoned: Copy,
    table: Vec<u32>,
    report: RangeReport,
}

impl Checker<'_> {
    /// Weights, initial state and inputs, in the true copy.
    fn fill_truth(&mut self, weights: &WeightTable, call: &Call) -> Result<(), ExecError> {
        for (chunk, bytes) in (0..).zip(&self.plan.weights.chunk_bytes) {
            let start = self.layout.start(Region::Weights(chunk)) as usize;
            weights.produce(chunk, 0, &mut self.truth.image[start..start + *bytes as usize]);
        }
        let state = self.layout.start(Region::State) as usize;
        for s in &self.entry.states {
            let to = state + s.offset as usize..state + (s.offset + s.bytes) as usize;
            match s.init.map(|init| &self.plan.weights.tensors[init as usize]) {
                None => self.truth.image[to].fill(0),
                Some(t) => {
                    let from = (self.layout.start(Region::Weights(t.chunk)) + t.offset) as usize;
                    self.truth.image.copy_within(from..from + s.bytes as usize, to.start);
                }
            }
        }
        for ((slot, _), bytes) in self.entry.io_ports().zip(&call.inputs) {
            let start = self.layout.start(Region::Io(slot)) as usize;
            self.truth.image[start..start + bytes.len()].copy_from_slice(bytes);
        }
        self.truth.upload(0..self.layout.end as usize)
    }

    fn step(&mut self, model: &rt::Model, idx: usize, d: &Dispatch) -> Result<(), ExecError> {
        let (reads, writes) = (self.layout.spans(&d.reads), self.layout.spans(&d.writes));
        let touched = self.layout.spans(&[d.reads.as_slice(), &d.writes].concat());
        writes.iter().for_each(|w| self.poisoned.image[w.clone()].fill(UNWRITTEN));
        for r in &reads {
            self.poisoned.image[r.clone()].copy_from_slice(&self.truth.image[r.clone()]);
        }
        touched.iter().try_for_each(|t| self.poisoned.upload(t.clone()))?;
        let tables = self.run(model, d)?;
        self.check_table(idx, d, tables);
        let after = self.poisoned.download(0..self.layout.weights as usize)?;
        self.check_outside(idx, d, &writes, &after)?;
        for w in writes {
            self.check_inside(idx, d, w, &after)?;
        }
        touched.iter().for_each(|t| self.poisoned.image[t.clone()].fill(POISON));
        touched.into_iter().try_for_each(|t| self.poisoned.upload(t))?;
        self.report.steps += 1;
        self.report.bytes = self.layout.end;
        Ok(())
    }

    /// Runs the step in both copies; the symbol tables of the true and of the poisoned run.
    fn run(&self, model: &rt::Model, d: &Dispatch) -> Result<[Vec<u32>; 2], ExecError> {
        let kernel = &self.plan.kernels[d.kernel as usize];
        let groups = match d.groups {
            Groups::Fixed(g) => rt::Groups::Fixed(g),
            Groups::Table(word) => rt::Groups::Table(word),
        };
        let base = |b: &Base| if *b == Base::Symbols { rt::Base::Symbols } else { rt::Base::Arena(0) };
        let bases: Vec<rt::Base> = d.bases.iter().map(base).collect();
        let moved = |(offset, base): (&u32, &u8)| {
            let start = match d.bases[usize::from(*base)] {
                Base::Arena(chunk) => self.layout.start(Region::Arena(chunk)),
                Base::Weights(chunk) => self.layout.start(Region::Weights(chunk)),
                Base::State => self.layout.start(Region::State),
                Base::IoTable | Base::Symbols => 0,
            };
            offset + (start / 16) as u32
        };
        let offsets: Vec<u32> = d.offsets.iter().zip(&kernel.operand_bases).map(moved).collect();
        let record = |r: &mut rt::Recorder<'_>| {
            r.step_label(&d.label);
            r.dispatch(d.kernel, &bases, &offsets, groups);
        };
        let arena_bytes = [self.layout.end];
        let desc = super::step_desc(&arena_bytes, self.table.len() as u32, &record);
        Ok([self.truth.run(model, &desc, &self.table)?, self.poisoned.run(model, &desc, &self.table)?])
    }

    /// As the other memory: words outside declared writes are as before, those inside as the true run left them.
    fn check_table(&mut self, idx: usize, d: &Dispatch, [truth, poisoned]: [Vec<u32>; 2]) {
        let declared = |byte: u64| {
            d.writes.iter().any(|w| w.region == Region::Symbols && (w.offset..w.offset + w.bytes).contains(&byte))
        };
        for word in 0..self.table.len() {
            let kind = match declared(word as u64 * 4) {
                false if truth[word] != self.table[word] => RangeFaultKind::UndeclaredWrite,
                true if truth[word] != poisoned[word] => RangeFaultKind::UndeclaredRead,
                _ => continue,
            };
            let (label, place) = (d.label.clone(), format!("word {word} of the symbol table"));
            self.report.faults.push(RangeFault { step: idx, label, kind, place });
        }
        self.table = truth;
    }

    /// Nothing but the declared writes has changed in the poisoned copy.
    fn check_outside(
        &mut self,
        idx: usize,
        d: &Dispatch,
        writes: &[Range<usize>],
        after: &[u8],
    ) -> Result<(), ExecError> {
        let starts = std::iter::once(0).chain(writes.iter().map(|w| w.end));
        let ends = writes.iter().map(|w| w.start).chain([after.len()]);
        for gap in starts.zip(ends).map(|(start, end)| start..end) {
            let want = &self.poisoned.image[gap.clone()];
            if let Some(at) = first_difference(want, &after[gap.clone()]) {
                self.fault(idx, d, RangeFaultKind::UndeclaredWrite, gap.start + at);
                self.poisoned.upload(gap)?;
            }
        }
        Ok(())
    }

    /// The step has left the same in a declared write as the true run did; then that is the truth.
    fn check_inside(&mut self, idx: usize, d: &Dispatch, write: Range<usize>, after: &[u8]) -> Result<(), ExecError> {
        let true_after = self.truth.download(write.clone())?;
        let (before, true_before) = (&self.poisoned.image[write.clone()], &self.truth.image[write.clone()]);
        let after = &after[write.clone()];
        let wrong = (after != true_after).then(|| {
            (0..after.len()).find(|&i| {
                let left_alone = after[i] == before[i] && true_after[i] == true_before[i];
                after[i] != true_after[i] && !left_alone
            })
        });
        if let Some(at) = wrong.flatten() {
            self.fault(idx, d, RangeFaultKind::UndeclaredRead, write.start + at);
        }
        self.truth.image[write].copy_from_slice(&true_after);
        Ok(())
    }

    /// Weights of the poisoned copy, and all that no step declares to write of the true one, are as they were.
    fn finish(mut self) -> Result<RangeReport, ExecError> {
        let weights = self.layout.weights as usize..self.layout.end as usize;
        let found = [
            first_difference(&self.poisoned.image[weights.clone()], &self.poisoned.download(weights.clone())?)
                .map(|at| at + weights.start),
            first_difference(&self.truth.image, &self.truth.download(0..weights.end)?),
        ];
        for at in found.into_iter().flatten() {
            let place = self.layout.place(at);
            let label = "one of all".to_string();
            self.report.faults.push(RangeFault { step: 0, label, kind: RangeFaultKind::UndeclaredWrite, place });
        }
        Ok(self.report)
    }

    fn fault(&mut self, step: usize, d: &Dispatch, kind: RangeFaultKind, at: usize) {
        let place = self.layout.place(at);
        self.report.faults.push(RangeFault { step, label: d.label.clone(), kind, place });
    }
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { a.iter().zip(b).position(|(x, y)| x != y) }
}
