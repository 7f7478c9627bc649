//! The generated crate behind [`StepEngine`]: the only file that knows its names.

use deepfilternet::stream::{HOP, States, StepEngine};
use deepfilternet3_step::jvc_runtime::{Error, Gpu, Select, WeightSource};
use deepfilternet3_step::{
    Deepfilternet3Step, Deepfilternet3StepInputs, Deepfilternet3StepOutputs, Deepfilternet3StepSession,
};
use std::path::Path;

/// The compiled network on a device.
pub struct Engine {
    session: Deepfilternet3StepSession,
    outputs: Deepfilternet3StepOutputs,
    device: String,
}

impl Engine {
    /// Opens a device (the best one, or the first whose name contains `device`), loads the weights and records the steps.
    ///
    /// # Errors
    /// No such device, one that lacks something, or a weight file that is not this program's.
    pub fn load(weights: &Path, device: Option<&str>) -> Result<Self, Error> {
        let gpu = Gpu::open(&device.map_or(Select::Auto, |name| Select::Name(name.to_owned())))?;
        let program = Deepfilternet3Step::load(&gpu, WeightSource::Path(weights))?;
        let session = program.deepfilternet3_step_session()?;
        Ok(Self { session, outputs: Deepfilternet3StepOutputs::default(), device: gpu.info().name.clone() })
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
            Deepfilternet3StepInputs { hop, ana, syn, mean, unit, feat_erb, feat_spec, c0, spec, h_enc, h_erb, h_df };
        self.session.run_into(&inputs, &mut self.outputs)?;
        // Outputs: the hop, lsnr (not used here), then the states in the order of the inputs.
        let out = &mut self.outputs;
        let next = [
            &mut out.output_2,
            &mut out.output_3,
            &mut out.output_4,
            &mut out.output_5,
            &mut out.output_6,
            &mut out.output_7,
            &mut out.output_8,
            &mut out.output_9,
            &mut out.output_10,
            &mut out.output_11,
            &mut out.output_12,
        ];
        for (state, next) in states.values.iter_mut().zip(next) {
            std::mem::swap(state, next);
        }
        Ok(out.output_0.as_slice().try_into().expect("the program's output is one hop"))
    }
}
