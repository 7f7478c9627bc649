//! Test kernels and one small program that several tests run: y = x + x through the arena.

use jvc_lab::Lab;
use jvc_runtime::*;
use std::sync::OnceLock;

macro_rules! kernel {
    ($name:literal, $n_bases:literal, $n_operands:literal) => {
        KernelDesc {
            name: $name,
            code: include_bytes!(concat!("kernels/", $name, ".spv")),
            n_bases: $n_bases,
            n_operands: $n_operands,
            subgroup: 0,
        }
    };
}

pub(crate) const LOAD: u32 = 0;
pub(crate) const STORE: u32 = 1;
pub(crate) const ADD: u32 = 2;
pub(crate) const HALVE: u32 = 3;
pub(crate) const KERNELS: &[KernelDesc<'static>] =
    &[kernel!("load", 3, 2), kernel!("store", 3, 2), kernel!("add", 4, 3), kernel!("halve", 1, 0)];

/// Elements at the largest size.
pub(crate) const MAX: u32 = 5000;
/// Offset of the second arena buffer, in units of 16 bytes.
pub(crate) const SECOND: u32 = MAX / 4;
pub(crate) const IO: &[IoDesc] =
    &[IoDesc { max_bytes: MAX as u64 * 4, output: false }, IoDesc { max_bytes: MAX as u64 * 4, output: true }];
pub(crate) const GROUPS: Groups = Groups::Table(1);
const IO_BASES: &[Base] = &[Base::IoTable, Base::Arena(0), Base::Symbols];

pub(crate) fn program(kernels: &'static [KernelDesc<'static>]) -> ProgramDesc<'static> {
    ProgramDesc { name: "test", requirements: Requirements::NONE, kernels, weights: WeightsDesc::default() }
}

pub(crate) fn entry<'a>(record: &'a (dyn Fn(&mut Recorder<'_>) + Sync)) -> EntryDesc<'a> {
    EntryDesc {
        name: "main",
        arena_bytes: &[MAX as u64 * 8],
        io: IO,
        table_words: 4,
        state_bytes: 0,
        state_init: &[],
        record,
    }
}

/// Words of the symbol table for n elements.
pub(crate) fn table(n: u32) -> [u32; 4] {
    [n, n.div_ceil(64), 1, 1]
}

pub(crate) fn load(r: &mut Recorder<'_>) {
    r.step_label("load x");
    r.dispatch(LOAD, IO_BASES, &[0, 0], GROUPS);
}

pub(crate) fn add_to_second(r: &mut Recorder<'_>) {
    r.step_label("add x x");
    r.dispatch(ADD, &[Base::Arena(0), Base::Arena(0), Base::Arena(0), Base::Symbols], &[0, 0, SECOND], GROUPS);
}

pub(crate) fn store_second(r: &mut Recorder<'_>) {
    r.step_label("store y");
    r.dispatch(STORE, IO_BASES, &[1, SECOND], GROUPS);
}

pub(crate) fn double(r: &mut Recorder<'_>) {
    load(r);
    r.barrier();
    add_to_second(r);
    r.barrier();
    store_second(r);
}

pub(crate) fn floats(n: u32, seed: u32) -> Vec<f32> {
    (0..n).map(|i| ((i * 7 + seed * 13) % 1000) as f32 - 500.0).collect()
}

pub(crate) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(crate) fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// The device that most tests share, as an application's models do.
pub(crate) fn open() -> Gpu {
    static SHARED: OnceLock<Gpu> = OnceLock::new();
    SHARED.get_or_init(|| Gpu::open(&Select::Auto).expect("tests need a Vulkan driver")).clone()
}

/// A device of the application's, with something special about it.
pub(crate) fn lab(options: jvc_lab::Options) -> Lab {
    Lab::open(open().info(), &options).expect("tests need a Vulkan driver")
}

pub(crate) fn model(gpu: &Gpu) -> Model {
    Model::load(gpu, &program(KERNELS), WeightSource::None, &CacheDir::None).expect("the test kernels build")
}

pub(crate) fn run(session: &mut Session, x: &[f32]) -> Vec<f32> {
    try_run(session, x).expect("a run")
}

pub(crate) fn try_run(session: &mut Session, x: &[f32]) -> Result<Vec<f32>, Error> {
    let mut y = vec![0; x.len() * 4];
    session.run(&table(x.len() as u32), &[&bytes(x)], &mut [&mut y])?;
    Ok(values(&y))
}

pub(crate) fn doubled(x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| x + x).collect()
}

/// A weight file of these chunks, made by the documented format alone.
pub(crate) fn weight_file(chunks: &[&[u8]]) -> Vec<u8> {
    let payload = chunks.concat();
    let mut file = b"JVCW\x01\0\0\0".to_vec();
    file.extend((payload.len() as u64).to_le_bytes());
    file.extend(content_hash(chunks.iter().copied()).to_le_bytes());
    file.resize(64, 0);
    file.extend(payload);
    file
}

/// Fills the first slot's arena with NaNs: a result that changes has read memory that no step of its run wrote.
pub(crate) fn poison(session: &Session) {
    session.buffer(0, Base::Arena(0)).expect("a chunk").fill(u32::MAX).expect("a fill");
}
