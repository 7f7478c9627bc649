//! `scan` for `h200`: a program compiled ahead of time. Generated, not edited: change the model or the options.
//!
//! `plan.txt` lists every step, `memory.txt` every buffer, `decisions.txt` the reasons. Loading records the steps
//! once; a run writes inputs and submits.
//!
//! ```no_run
//! use scan::jvc_runtime::{Error, Gpu, Select, WeightSource};
//! use scan::{Scan, ScanInputs};
//!
//! fn main() -> Result<(), Error> {
//!     let gpu = Gpu::open(&Select::Auto)?;
//!     let program = Scan::load(&gpu, WeightSource::Path("weights.jvcw".as_ref()))?;
//!     let mut session = program.scan_session()?;
//!     let xs = vec![0.0f32; 40];
//!     let h = vec![0.0f32; 8];
//!     let outputs = session.run(&ScanInputs { xs: &xs, h: &h })?;
//!     println!("{outputs:?}");
//!     Ok(())
//! }
//! ```

mod checks;
mod kernels;
mod scan;

pub use jvc_runtime;
pub use scan::{ScanInputs, ScanOutputs, ScanSession, ScanTicket};

use jvc_runtime::{
    CacheDir, Error, Gpu, Model, ProgramDesc, Requirements, SessionOptions, WeightSource,
    WeightsDesc,
};

static PROGRAM: ProgramDesc<'static> = ProgramDesc {
    name: "scan",
    requirements: Requirements {
        max_workgroup: 256,
        shared_bytes: 4224,
        push_bytes: 44,
        max_allocation_bytes: 1280,
        ..Requirements::NONE
    },
    kernels: &kernels::KERNELS,
    weights: WeightsDesc { chunk_bytes: &[256], content_hash: 0x39a5_2044_438d_2d28 },
};

/// `scan` on a device: kernels and weights. Clones share them.
#[derive(Clone)]
pub struct Scan {
    model: Model,
}

impl Scan {
    /// Bytes of weights, in the file and on the device.
    pub const WEIGHT_BYTES: u64 = 256;

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

    /// Records `scan` for one run at a time.
    ///
    /// # Errors
    /// Not enough device memory.
    pub fn scan_session(&self) -> Result<scan::ScanSession, Error> {
        Ok(scan::ScanSession::new(self.model.session(&scan::ENTRY)?))
    }

    /// Records `scan` for several runs in flight, or over shared arenas.
    ///
    /// # Errors
    /// As `scan_session`; arenas that are too small.
    pub fn scan_session_with(&self, options: &SessionOptions) -> Result<scan::ScanSession, Error> {
        Ok(scan::ScanSession::new(self.model.session_with(&scan::ENTRY, options)?))
    }

    /// The runtime's model.
    pub fn model(&self) -> &Model {
        &self.model
    }
}
