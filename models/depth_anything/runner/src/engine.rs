//! The generated crate behind [`Network`]: the only file that knows its names.

use depth_anything::size::PATCH;
use depth_anything::{Network, Values};
use depth_anything_v2::{
    DepthAnythingV2, DepthAnythingV2Inputs, DepthAnythingV2Outputs, DepthAnythingV2Session, DepthAnythingV2Sizes,
    DepthAnythingV2Ticket,
};
use jvc_runner::jvc_runtime::{CacheDir, Error, Gpu, SessionOptions, Timestamps};
use jvc_runner::memory::Needs;
use jvc_runner::weights::{Generated, Weights, WeightsError};

/// Facts of the generated crate.
pub const GENERATED: Generated = Generated {
    name: "depth_anything_v2",
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/../generated/depth_anything_v2"),
    make: "jvc compile depth_anything_v2.pt2 --device auto --external-runtime ../../../../runtime-min \
           --out models/depth_anything/generated/depth_anything_v2",
};

/// Pictures in flight: while the device computes one, the host prepares the next.
pub const IN_FLIGHT: usize = 2;

/// Device memory of the program.
pub fn needs() -> Needs {
    let sessions = vec![("pictures in flight", IN_FLIGHT, DepthAnythingV2Session::SLOT_BYTES)];
    Needs { weights: DepthAnythingV2::WEIGHT_BYTES, sessions }
}

/// The compiled network on a device.
pub struct Engine {
    session: DepthAnythingV2Session,
    outputs: DepthAnythingV2Outputs,
}

/// What can go wrong in a run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The program was not exported for pictures of this size.
    #[error(
        "the network would see {height} × {width} pixels, but was exported for sides from 56 pixels to export.py's --max-side \
         ({fault})"
    )]
    Size {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// What the generated crate says.
        fault: Error,
    },
    /// The device failed.
    #[error("{0}")]
    Runtime(#[from] Error),
}

impl Engine {
    /// Loads the weights onto a device, which may be an application's own ([`Gpu::borrow`]), and records the steps for
    /// [`IN_FLIGHT`] pictures.
    ///
    /// # Errors
    /// A device that lacks something, or a weight file that is not this program's.
    pub fn load(gpu: &Gpu, weights: &Weights, cache: &CacheDir) -> Result<Self, WeightsError> {
        let explain = |error| GENERATED.explain(weights, error);
        let program = DepthAnythingV2::load_with(gpu, weights.source(), cache).map_err(explain)?;
        let timestamps = if gpu.info().timestamp_period_ns > 0.0 { Timestamps::Ends } else { Timestamps::None };
        let options = SessionOptions { n_slots: IN_FLIGHT, timestamps, ..SessionOptions::default() };
        let session = program.depth_anything_v2_session_with(&options).map_err(explain)?;
        Ok(Self { session, outputs: DepthAnythingV2Outputs::default() })
    }

    /// Milliseconds of the latest run on the device's own clock, where it has one and no run is in flight.
    pub fn device_ms(&mut self) -> Option<f64> {
        Some(self.session.session().step_ns(0).ok()?.iter().sum::<f64>() / 1e6)
    }
}

impl Network for Engine {
    type Error = EngineError;
    type Run = DepthAnythingV2Ticket;

    fn submit(&mut self, pixels: &[u8], [height, width]: [usize; 2]) -> Result<Self::Run, EngineError> {
        // The names of the export's symbols: patches down and across.
        let sizes = DepthAnythingV2Sizes { s39: height / PATCH, s94: width / PATCH };
        sizes.table().map_err(|fault| EngineError::Size { height, width, fault })?;
        Ok(self.session.submit(&DepthAnythingV2Inputs { sizes, pixels })?)
    }

    fn wait(&mut self, run: Self::Run) -> Result<Vec<f32>, EngineError> {
        self.session.wait(run, &mut self.outputs)?;
        Ok(self.outputs.output.to_f32())
    }
}
