//! A program as plain tables, and the model made of it: kernels and weights on a device.

use std::sync::Arc;

use crate::cache::{self, CacheDir};
use crate::error::Error;
use crate::gpu::Gpu;
use crate::kernel::{KernelDesc, Kernels};
use crate::memory::Buffer;
use crate::queue::Device;
use crate::recorder::Recorder;
use crate::require::Requirements;
use crate::weights::{self, WeightSource, WeightsDesc};

/// What all entry points of a program share.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "the types of the others say it")]
pub struct ProgramDesc<'a> {
    /// Name, also of the pipeline cache file: letters, digits, `_` and `-`.
    pub name: &'a str,
    pub requirements: Requirements<'a>,
    /// Kernels; steps name them by position.
    pub kernels: &'a [KernelDesc<'a>],
    pub weights: WeightsDesc<'a>,
}

/// One entry point.
///
/// The tables are trusted, as shaders are: they come from the compiler, which has verified them. Offsets that are wrong make the GPU
/// access memory that it should not.
#[derive(Clone, Copy)]
pub struct EntryDesc<'a> {
    /// Name, for errors.
    pub name: &'a str,
    /// Bytes of each arena chunk.
    pub arena_bytes: &'a [u64],
    /// Inputs and outputs, by slot of the I/O table.
    pub io: &'a [IoDesc],
    /// Words of the symbol table.
    pub table_words: u32,
    /// Bytes of the session's state.
    pub state_bytes: u64,
    /// Weights that state starts from; the rest starts from zeros.
    pub state_init: &'a [StateInit],
    /// Calls the recorder once per step, in order, and the same every time.
    pub record: &'a (dyn Fn(&mut Recorder<'_>) + Sync),
}

/// An input or output buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoDesc {
    /// Bytes at the largest shapes.
    pub max_bytes: u64,
    /// Kernels write it and the host reads it.
    pub output: bool,
}

/// A part of the state that starts as a copy of a weight: its place in the weight chunks, its byte offset in the state, its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "said above")]
pub struct StateInit {
    pub chunk: u32,
    pub offset: u64,
    pub state_offset: u64,
    pub bytes: u64,
}

/// A loaded program. Clones share it; sessions keep it alive.
#[derive(Clone)]
pub struct Model(pub(crate) Arc<Loaded>);

pub(crate) struct Loaded {
    pub(crate) kernels: Kernels,
    pub(crate) weights: Vec<Buffer>,
    pub(crate) device: Arc<Device>,
}

impl Model {
    /// Checks the requirements, then builds the kernels while the weights are uploaded. [`Error::Requirement`] before anything is
    /// built; [`Error::Weights`] for a file that is not this program's.
    pub fn load(
        gpu: &Gpu,
        program: &ProgramDesc<'_>,
        source: WeightSource<'_>,
        dir: &CacheDir,
    ) -> Result<Model, Error> {
        let device = &gpu.0;
        device.check_alive()?;
        program.requirements.check(&device.info)?;
        let build = |cache| Kernels::build(device, program.kernels, cache);
        let (kernels, weights) = std::thread::scope(|scope| {
            let weights = scope.spawn(|| weights::load(device, &program.weights, source));
            let kernels = cache::with(device, dir, program.name, build);
            (kernels, weights.join().expect("an upload returns its errors"))
        });
        Ok(Model(Arc::new(Loaded { kernels: kernels?, weights: weights?, device: Arc::clone(device) })))
    }
}

impl EntryDesc<'_> {
    /// Device bytes that a session with this many slots takes at the largest shapes, weights not counted.
    pub fn memory_bytes(&self, n_slots: u64) -> u64 {
        let io: u64 = self.io.iter().map(|port| port.max_bytes).sum();
        let tables = self.io.len() as u64 * 8 + u64::from(self.table_words) * 4;
        n_slots * (self.arena_bytes.iter().sum::<u64>() + io + tables) + self.state_bytes
    }
}
