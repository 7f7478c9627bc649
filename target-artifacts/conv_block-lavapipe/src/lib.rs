//! `conv_block` for `lavapipe`: a program compiled ahead of time. Generated, not edited: change the model or the options.
//!
//! `plan.txt` lists every step, `memory.txt` every buffer, `decisions.txt` the reasons. Loading records the steps
//! once; a run writes inputs and submits.
//!
//! ```no_run
//! use conv_block::jvc_runtime::{Error, Gpu, Select, WeightSource};
//! use conv_block::{ConvBlock, ConvBlockInputs};
//!
//! fn main() -> Result<(), Error> {
//!     let gpu = Gpu::open(&Select::Auto)?;
//!     let program = ConvBlock::load(&gpu, WeightSource::Path("weights.jvcw".as_ref()))?;
//!     let mut session = program.conv_block_session()?;
//!     let image = vec![0.0f32; 663];
//!     let outputs = session.run(&ConvBlockInputs { image: &image })?;
//!     println!("{outputs:?}");
//!     Ok(())
//! }
//! ```

mod checks;
mod conv_block;
mod kernels;

pub use conv_block::{ConvBlockInputs, ConvBlockOutputs, ConvBlockSession, ConvBlockTicket};
pub use jvc_runtime;

use jvc_runtime::{
    CacheDir, Error, Gpu, Model, ProgramDesc, Requirements, SessionOptions, WeightSource,
    WeightsDesc,
};

static PROGRAM: ProgramDesc<'static> = ProgramDesc {
    name: "conv_block",
    requirements: Requirements {
        max_workgroup: 64,
        push_bytes: 48,
        max_allocation_bytes: 6144,
        ..Requirements::NONE
    },
    kernels: &kernels::KERNELS,
    weights: WeightsDesc { chunk_bytes: &[2560], content_hash: 0x1a17_90fd_b931_f4df },
};

/// `conv_block` on a device: kernels and weights. Clones share them.
#[derive(Clone)]
pub struct ConvBlock {
    model: Model,
}

impl ConvBlock {
    /// Bytes of weights, in the file and on the device.
    pub const WEIGHT_BYTES: u64 = 2560;

    /// Loads kernels and weights. Compiled kernels are kept in the user's cache folder.
    ///
    /// # Errors
    /// A device that lacks something, or weights that are not this program's.
    pub fn load(gpu: &Gpu, weights: WeightSource<'_>) -> Result<Self, Error> {
        Self::load_with(gpu, weights, &CacheDir::Default)
    }

    /// As `load`, with a cache folder of the caller's choice.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_with(
        gpu: &Gpu,
        weights: WeightSource<'_>,
        cache: &CacheDir,
    ) -> Result<Self, Error> {
        Ok(Self { model: Model::load(gpu, &PROGRAM, weights, cache)? })
    }

    /// Records `conv_block` for one run at a time.
    ///
    /// # Errors
    /// Not enough device memory.
    pub fn conv_block_session(&self) -> Result<conv_block::ConvBlockSession, Error> {
        Ok(conv_block::ConvBlockSession::new(self.model.session(&conv_block::ENTRY)?))
    }

    /// Records `conv_block` for several runs in flight, or over shared arenas.
    ///
    /// # Errors
    /// As `conv_block_session`; arenas that are too small.
    pub fn conv_block_session_with(
        &self,
        options: &SessionOptions,
    ) -> Result<conv_block::ConvBlockSession, Error> {
        Ok(conv_block::ConvBlockSession::new(self.model.session_with(&conv_block::ENTRY, options)?))
    }

    /// The runtime's model.
    pub fn model(&self) -> &Model {
        &self.model
    }
}
