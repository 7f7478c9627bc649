//! The generated crate behind [`StepEngine`]: the only file that knows its names.

use deepfilternet::stream::{HOP, States, StepEngine};
use deepfilternet3_step::jvc_runtime::{Error, Gpu, Select, WeightSource};
use deepfilternet3_step::{Deepfilternet3Step, ForwardInputs, ForwardOutputs, ForwardSession};
use std::path::Path;

/// The compiled network on a device.
pub struct Engine {
    session: ForwardSession,
    outputs: ForwardOutputs,
    device: String,
}

impl Engine {
    /// Opens a device (the best one, or the first whose name contains `device`), loads the weights and records the steps.
    ///
    /// # Errors
    /// No such device, one that lacks something, or a weight file that is not this program's.
    pub fn load(weights: &Path, device: Option<&str>) -> Result<Self, Error> {
        let select = device.map_or(Select::Auto, |name| Select::Name(name.to_owned()));
        let gpu = Gpu::open(&select)?;
        let model = Deepfilternet3Step::load(&gpu, WeightSource::Path(weights))?;
        let session = model.forward_session()?;
        Ok(Self { session, outputs: ForwardOutputs::default(), device: gpu.info().name.clone() })
    }

    /// The device's own name.
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl StepEngine for Engine {
    type Error = Error;

    fn step(&mut self, hop: &[f32; HOP], states: &mut States) -> Result<[f32; HOP], Error> {
        let [ana, syn, mean, unit, feat_erb, feat_spec, c0, spec, h_enc, h_erb, h_df] = &states.values;
        let inputs =
            ForwardInputs { hop, ana, syn, mean, unit, feat_erb, feat_spec, c0, spec, h_enc, h_erb, h_df };
        self.session.run_into(&inputs, &mut self.outputs)?;
        Ok([0.0; HOP])
    }
}
