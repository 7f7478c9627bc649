//! `mlp` for `lavapipe`: a program compiled ahead of time. Generated, not edited: change the model or the options.
//!
//! `plan.txt` lists every step, `memory.txt` every buffer, `decisions.txt` the reasons. Loading records the steps
//! once; a run writes inputs and submits.
//!
//! ```no_run
//! use mlp::jvc_runtime::{Error, Gpu, Select, WeightSource};
//! use mlp::{Mlp, MlpInputs};
//!
//! fn main() -> Result<(), Error> {
//!     let gpu = Gpu::open(&Select::Auto)?;
//!     let program = Mlp::load(&gpu, WeightSource::Path("weights.jvcw".as_ref()))?;
//!     let mut session = program.mlp_session()?;
//!     let x = vec![0.0f32; 10];
//!     let outputs = session.run(&MlpInputs { x: &x })?;
//!     println!("{outputs:?}");
//!     Ok(())
//! }
//! ```

mod checks;
mod kernels;
mod mlp;

pub use jvc_runtime;
pub use mlp::{MlpInputs, MlpOutputs, MlpSession, MlpTicket};

use jvc_runtime::{
    CacheDir, Error, Gpu, Model, ProgramDesc, Requirements, SessionOptions, WeightSource,
    WeightsDesc,
};

static PROGRAM: ProgramDesc<'static> = ProgramDesc {
    name: "mlp",
    requirements: Requirements {
        max_workgroup: 32,
        push_bytes: 40,
        max_allocation_bytes: 1024,
        ..Requirements::NONE
    },
    kernels: &kernels::KERNELS,
    weights: WeightsDesc { chunk_bytes: &[1024], content_hash: 0xa5ba_2434_21c9_0a76 },
};

/// `mlp` on a device: kernels and weights. Clones share them.
#[derive(Clone)]
pub struct Mlp {
    model: Model,
}

impl Mlp {
    /// Bytes of weights, in the file and on the device.
    pub const WEIGHT_BYTES: u64 = 1024;

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

    /// Records `mlp` for one run at a time.
    ///
    /// # Errors
    /// Not enough device memory.
    pub fn mlp_session(&self) -> Result<mlp::MlpSession, Error> {
        Ok(mlp::MlpSession::new(self.model.session(&mlp::ENTRY)?))
    }

    /// Records `mlp` for several runs in flight, or over shared arenas.
    ///
    /// # Errors
    /// As `mlp_session`; arenas that are too small.
    pub fn mlp_session_with(&self, options: &SessionOptions) -> Result<mlp::MlpSession, Error> {
        Ok(mlp::MlpSession::new(self.model.session_with(&mlp::ENTRY, options)?))
    }

    /// The runtime's model.
    pub fn model(&self) -> &Model {
        &self.model
    }
}
