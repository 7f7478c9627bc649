//! Plans made by hand and at random, for the tests of this folder.

use jvc_codegen::plan::{
    ArenaBuffer, Base, ByteRange, Cost, Dispatch, Elem, Entry, Groups, Plan, PlanKernel, Port, PortKind, Region,
    Requirements, Size, Step, WeightTensor, Weights,
};

/// A small deterministic generator (xorshift64*), so that a seed is a plan.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % n
    }
}

pub(crate) fn kernel(name: &str, operand_bases: Vec<u8>) -> PlanKernel {
    let n_bases = operand_bases.iter().max().map_or(0, |b| b + 1);
    let words = vec![0x0723_0203, 0x0001_0500, name.len() as u32];
    let disassembly = format!("; {name}\n");
    let spec = format!("map {name} wg=64");
    PlanKernel { name: name.into(), spec, words, disassembly, n_bases, operand_bases, subgroup: 0 }
}

pub(crate) fn io_port(name: &str, slot: u32, elem: Elem, shape: &[i64]) -> Port {
    let n: i64 = shape.iter().product();
    let shape = shape.iter().map(|n| Size::Const(*n)).collect();
    let max_bytes = n as u64 * elem.size_bytes();
    Port { name: name.into(), elem, word_storage: false, shape, max_bytes, kind: PortKind::Io(slot) }
}

pub(crate) fn range(region: Region, offset: u64, bytes: u64) -> ByteRange {
    ByteRange { region, offset, bytes }
}

/// A random program of `n_values` elementwise dispatches over an input, a weight and earlier values, with lifetimes, a first-fit
/// arena and a barrier only where two steps touch a byte that one of them writes.
pub(crate) fn random_plan(seed: u64, n_values: usize) -> Plan {
    let mut random = Random::new(seed);
    let sources: Vec<Vec<usize>> = (0..n_values)
        .map(|v| (0..1 + random.below(3)).map(|_| random.below(v as u64 + 2) as usize).collect())
        .collect();
    let sizes: Vec<u64> = (0..n_values).map(|_| 16 * (1 + random.below(64))).collect();
    let last_use = |v: usize| (v..n_values).filter(|u| *u == v || sources[*u].contains(&(v + 2))).max().unwrap_or(v);
    let mut placed: Vec<(u64, u64, usize, usize)> = Vec::new();
    for (v, size) in sizes.iter().enumerate() {
        let clash =
            |at: u64, p: &(u64, u64, usize, usize)| p.3 >= v && p.2 <= last_use(v) && at < p.0 + p.1 && p.0 < at + size;
        let at = (0..).map(|i| i * 256).find(|at| !placed.iter().any(|p| clash(*at, p))).expect("the arena is endless");
        placed.push((at, *size, v, last_use(v)));
    }
    let value_range = |v: usize| match v {
        0 => range(Region::Io(0), 0, 64),
        1 => range(Region::Weights(0), 256, 32),
        v => range(Region::Arena(0), placed[v - 2].0, placed[v - 2].1),
    };
    let mut dispatches: Vec<Dispatch> = (0..n_values)
        .map(|v| dispatch(&format!("v{v}"), sources[v].iter().map(|s| value_range(*s)).collect(), value_range(v + 2)))
        .collect();
    dispatches.push(dispatch("out", vec![value_range(n_values + 1)], range(Region::Io(1), 0, 64)));
    assemble(dispatches, &placed, &sources)
}

pub(crate) fn dispatch(label: &str, reads: Vec<ByteRange>, write: ByteRange) -> Dispatch {
    let (bases, offsets) = reads.iter().chain([&write]).map(operand).unzip();
    let cost = Cost { flops: 1.5, bytes: 64.0 };
    let origin = vec![format!("aten.add({label}) at \"model.py\":7")];
    let groups = Groups::Fixed([1, 2, 3]);
    Dispatch { kernel: 0, bases, offsets, groups, reads, writes: vec![write], label: label.into(), origin, cost }
}

fn operand(range: &ByteRange) -> (Base, u32) {
    match range.region {
        Region::Arena(chunk) => (Base::Arena(chunk), (range.offset / 16) as u32),
        Region::Weights(chunk) => (Base::Weights(chunk), (range.offset / 16) as u32),
        Region::Io(slot) => (Base::IoTable, slot),
        Region::State => (Base::State, (range.offset / 16) as u32),
        Region::Symbols => (Base::Symbols, (range.offset / 16) as u32),
    }
}

/// Steps with barriers; lifetimes are renumbered from dispatches to steps.
fn assemble(mut dispatches: Vec<Dispatch>, placed: &[(u64, u64, usize, usize)], sources: &[Vec<usize>]) -> Plan {
    let mut steps: Vec<Step> = Vec::new();
    let mut step_of = Vec::new();
    let mut since: Vec<Dispatch> = Vec::new();
    for d in &mut dispatches {
        d.kernel = d.reads.len() as u32 - 1;
        if since.iter().any(|earlier| conflict(earlier, d)) {
            steps.push(Step::Barrier);
            since.clear();
        }
        since.push(d.clone());
        step_of.push(steps.len() as u32);
        steps.push(Step::Dispatch(d.clone()));
    }
    let last = placed.len() - 1;
    let buffers = placed
        .iter()
        .enumerate()
        .map(|(v, &(offset, bytes, _, end))| {
            let end = if v == last { step_of[last + 1] } else { step_of[end] };
            ArenaBuffer { name: format!("v{v}"), chunk: 0, offset, bytes, live: (step_of[v], end) }
        })
        .collect();
    let arena_bytes = vec![placed.iter().map(|p| p.0 + p.1).max().unwrap_or(0)];
    let entry = Entry {
        name: "forward".into(),
        inputs: vec![io_port("x", 0, Elem::F32, &[16])],
        outputs: vec![io_port("y", 1, Elem::F32, &[4, 4])],
        live_bytes: arena_bytes[0],
        arena_bytes,
        buffers,
        steps,
        ..Entry::default()
    };
    let tensors =
        vec![WeightTensor { name: "w".into(), elem: Elem::F32, shape: vec![8], chunk: 0, offset: 256, bytes: 32 }];
    let most = sources.iter().map(Vec::len).max().unwrap_or(1).max(1);
    let kernels = (1..=most).map(|n| kernel(&format!("sum{n}"), (0..=n as u8).collect())).collect();
    Plan {
        name: "random".into(),
        device: "lavapipe".into(),
        requirements: Requirements { max_workgroup: 64, push_bytes: 64, ..Requirements::default() },
        kernels,
        weights: Weights { chunk_bytes: vec![512], tensors, content_hash: 77 },
        entries: vec![entry],
        decisions: Vec::new(),
    }
}

/// Byte by byte, so that it shares nothing with the verifier's interval test.
fn conflict(a: &Dispatch, b: &Dispatch) -> bool {
    let share = |xs: &[ByteRange], ys: &[ByteRange]| {
        xs.iter().any(|x| {
            ys.iter().any(|y| {
                let inside = |at: u64| at >= y.offset && at < y.offset + y.bytes;
                x.region == y.region && (x.offset..x.offset + x.bytes).any(inside)
            })
        })
    };
    share(&a.writes, &b.reads) || share(&a.writes, &b.writes) || share(&a.reads, &b.writes)
}
