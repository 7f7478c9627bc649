//! The generated crate behind [`StepEngine`]: the only file that knows its names.

use deepfilternet::stream::{Controls, HOP, StepEngine};
use deepfilternet3_stream::{
    Deepfilternet3Stream, Deepfilternet3StreamInputs, Deepfilternet3StreamOutputs, Deepfilternet3StreamSession,
};
use jvc_runner::jvc_runtime::{CacheDir, Error, Gpu, SessionOptions, Timestamps};
use jvc_runner::memory::Needs;
use jvc_runner::weights::{Generated, Weights, WeightsError};

/// Facts of the generated crate.
pub const GENERATED: Generated = Generated {
    name: "deepfilternet3_stream",
    folder: concat!(env!("CARGO_MANIFEST_DIR"), "/../generated/deepfilternet3_stream"),
    make: "jvc compile deepfilternet3_stream.pt2 --device auto --external-runtime ../../../../runtime-min \
           --out models/deepfilternet/generated/deepfilternet3_stream",
};

/// Device memory of the program for so many channels at once.
pub fn needs(channels: usize) -> Needs {
    let channel = Deepfilternet3StreamSession::SLOT_BYTES + Deepfilternet3StreamSession::STATE_BYTES;
    Needs { weights: Deepfilternet3Stream::WEIGHT_BYTES, sessions: vec![("channels", channels, channel)] }
}

/// The compiled network on a device; its channels share the weights, and run at the same time where they are on threads of their own.
pub struct Network {
    program: Deepfilternet3Stream,
    options: SessionOptions,
}

impl Network {
    /// Loads the weights onto a device, which may be an application's own ([`Gpu::borrow`]).
    ///
    /// # Errors
    /// A device that lacks something, or a weight file that is not this program's.
    pub fn load(gpu: &Gpu, weights: &Weights, cache: &CacheDir) -> Result<Self, WeightsError> {
        let program = Deepfilternet3Stream::load_with(gpu, weights.source(), cache);
        let timestamps = if gpu.info().timestamp_period_ns > 0.0 { Timestamps::Ends } else { Timestamps::None };
        let options = SessionOptions { timestamps, ..SessionOptions::default() };
        Ok(Self { program: program.map_err(|error| GENERATED.explain(weights, error))?, options })
    }

    /// Records the steps for one channel of audio, with states of its own.
    ///
    /// # Errors
    /// Not enough device memory.
    pub fn channel(&self) -> Result<Engine, Error> {
        let session = self.program.deepfilternet3_stream_session_with(&self.options)?;
        Ok(Engine { session, outputs: Deepfilternet3StreamOutputs::default() })
    }
}

/// A channel of audio on the device.
pub struct Engine {
    session: Deepfilternet3StreamSession,
    outputs: Deepfilternet3StreamOutputs,
}

impl Engine {
    /// Milliseconds of the latest step on the device's own clock, where it has one.
    pub fn device_ms(&mut self) -> Option<f64> {
        Some(self.session.session().step_ns(0).ok()?.iter().sum::<f64>() / 1e6)
    }
}

impl StepEngine for Engine {
    type Error = Error;

    fn restart(&mut self) {
        self.session.session().reset();
    }

    fn step(&mut self, hop: &[f32; HOP], controls: &Controls) -> Result<[f32; HOP], Error> {
        let Controls { keep, limit, beta } = controls;
        let [keep, limit, beta] = [[*keep], [*limit], [*beta]];
        let inputs = Deepfilternet3StreamInputs { hop, keep: &keep, limit: &limit, beta: &beta };
        self.session.run_into(&inputs, &mut self.outputs)?;
        Ok(self.outputs.output_0.as_slice().try_into().expect("the program's output is one hop"))
    }
}
