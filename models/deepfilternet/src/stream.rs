//! Streaming: hops of 480 samples through the program, whose states stay on the device from hop to hop.
//!
//! Output hop n of the program is the enhanced input hop n − 3 (two frames of lookahead and one of overlap-add), so a
//! recording of k hops takes k + 3 steps, the last three with silence, and the first three outputs are dropped.
//!
//! Start-up rule: the states of the two frames of lookahead and of the recurrent layers are set to zero once, after
//! the first two hops ([`Controls::keep`]). The offline network begins when it has its lookahead; without this rule the
//! streaming one would have begun two frames earlier, on silence, and answer slightly differently for the first second.

/// Samples per hop: 10 ms at 48 kHz.
pub const HOP: usize = 480;

/// The sampling rate that the network was trained for, in Hz.
pub const RATE: u32 = 48_000;

/// Hops by which the output comes later than the input.
pub const DELAY_HOPS: usize = 3;

/// Hops after which the start-up rule applies.
const START_UP_HOPS: usize = 2;

/// Upstream's strength of the post-filter.
pub const POST_FILTER_BETA: f32 = 0.02;

/// How strongly noise is removed; by default as the network says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Settings {
    /// Noise is attenuated by no more than this many dB: the rest is mixed back. 0 is no limit, as in upstream.
    pub attenuation_limit_db: Option<f32>,
    /// Strength of the post-filter, which attenuates noisy bands a little more; upstream's is [`POST_FILTER_BETA`].
    pub post_filter: Option<f32>,
}

/// Numbers that the program takes beside a hop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Controls {
    /// 1, but 0 for the hop at which the start-up rule applies.
    pub keep: f32,
    /// Share of the noisy signal in the output.
    pub limit: f32,
    /// Strength of the post-filter; 0 is none.
    pub beta: f32,
}

impl Settings {
    fn controls(&self, hop: usize) -> Controls {
        let decibels = self.attenuation_limit_db.map_or(0.0, f32::abs);
        Controls {
            keep: if hop == START_UP_HOPS { 0.0 } else { 1.0 },
            limit: if decibels > 0.0 { 10f32.powf(-decibels / 20.0) } else { 0.0 },
            beta: self.post_filter.unwrap_or(0.0),
        }
    }
}

/// The network: one hop in, one hop out, its states its own.
pub trait StepEngine {
    /// What can go wrong in a step.
    type Error;

    /// The next step starts from the initial states.
    fn restart(&mut self);

    /// Runs the program once.
    ///
    /// # Errors
    /// Those of the device; the states are then not to be used further.
    fn step(&mut self, hop: &[f32; HOP], controls: &Controls) -> Result<[f32; HOP], Self::Error>;
}

/// One channel of audio on its way through the network.
#[derive(Debug)]
pub struct Stream<'e, E> {
    engine: &'e mut E,
    settings: Settings,
    hops: usize,
}

impl<'e, E: StepEngine> Stream<'e, E> {
    /// Begins a channel.
    pub fn begin(engine: &'e mut E, settings: Settings) -> Self {
        engine.restart();
        Self { engine, settings, hops: 0 }
    }

    /// Sends one hop through the network. The output belongs to the input of [`DELAY_HOPS`] hops before, and is `None`
    /// while there is none yet.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn push(&mut self, hop: &[f32; HOP]) -> Result<Option<[f32; HOP]>, E::Error> {
        let out = self.engine.step(hop, &self.settings.controls(self.hops))?;
        self.hops += 1;
        Ok((self.hops > DELAY_HOPS).then_some(out))
    }
}

/// A whole channel through the network: as many samples out as in, at the same places in time.
///
/// # Errors
/// Those of the engine.
pub fn denoise<E: StepEngine>(engine: &mut E, wav: &[f32], settings: Settings) -> Result<Vec<f32>, E::Error> {
    denoise_reporting(engine, wav, settings, |_| ())
}

/// [`denoise`] that tells after each step how many have been made; [`steps_of`] says how many there are.
///
/// # Errors
/// Those of the engine.
pub fn denoise_reporting<E: StepEngine>(
    engine: &mut E,
    wav: &[f32],
    settings: Settings,
    mut on_step: impl FnMut(usize),
) -> Result<Vec<f32>, E::Error> {
    let mut stream = Stream::begin(engine, settings);
    let mut enhanced = Vec::with_capacity(wav.len() + HOP);
    for n in 0..steps_of(wav.len()) {
        let mut hop = [0.0; HOP]; // the last hop of the recording is filled up with silence, as are those after it
        let rest = wav.get(n * HOP..).unwrap_or(&[]);
        let len = rest.len().min(HOP);
        hop[..len].copy_from_slice(&rest[..len]);
        if let Some(out) = stream.push(&hop)? {
            enhanced.extend_from_slice(&out);
        }
        on_step(n + 1);
    }
    enhanced.truncate(wav.len());
    Ok(enhanced)
}

/// Steps that a channel of `samples` takes.
pub fn steps_of(samples: usize) -> usize {
    if samples == 0 { 0 } else { samples.div_ceil(HOP) + DELAY_HOPS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Gives its input back three hops later, and keeps what it was told.
    #[derive(Default)]
    struct Late {
        line: Vec<[f32; HOP]>,
        seen: Vec<Controls>,
        restarts: usize,
    }

    impl StepEngine for Late {
        type Error = Infallible;
        fn restart(&mut self) {
            self.line.clear();
            self.restarts += 1;
        }
        fn step(&mut self, hop: &[f32; HOP], controls: &Controls) -> Result<[f32; HOP], Infallible> {
            self.seen.push(*controls);
            self.line.push(*hop);
            Ok(if self.line.len() > DELAY_HOPS { self.line[self.line.len() - 1 - DELAY_HOPS] } else { [9.0; HOP] })
        }
    }

    fn ramp(n: usize) -> Vec<f32> {
        (0..n).map(|i| i as f32 + 1.0).collect()
    }

    #[test]
    fn output_has_the_length_and_the_timing_of_the_input_for_any_length() {
        for n in [0, 1, 479, 480, 481, 960, 1439, 1440, 1441, 48_007] {
            let mut engine = Late::default();
            assert_eq!(denoise(&mut engine, &ramp(n), Settings::default()), Ok(ramp(n)), "{n} samples");
            assert_eq!(engine.line.len(), steps_of(n), "{n} samples");
        }
    }

    #[test]
    fn nothing_comes_out_before_the_delay() {
        let mut engine = Late::default();
        let mut stream = Stream::begin(&mut engine, Settings::default());
        let out: Vec<_> = (0..5).map(|_| stream.push(&[1.0; HOP]).map(|out| out.is_some())).collect();
        assert_eq!(out, [Ok(false), Ok(false), Ok(false), Ok(true), Ok(true)]);
    }

    #[test]
    fn each_channel_restarts_and_the_start_up_rule_applies_once_after_two_hops() {
        let mut engine = Late::default();
        for channel in 1..=2 {
            engine.seen.clear();
            assert_eq!(denoise(&mut engine, &ramp(2000), Settings::default()), Ok(ramp(2000)));
            let keep: Vec<f32> = engine.seen.iter().map(|controls| controls.keep).collect();
            assert_eq!(keep, [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
            assert_eq!(engine.restarts, channel);
        }
    }

    #[test]
    fn settings_become_upstreams_factors() {
        let controls = |settings: Settings| settings.controls(0);
        let off = controls(Settings::default());
        assert_eq!((off.limit, off.beta), (0.0, 0.0));
        for db in [12.0, -12.0] {
            let limited = controls(Settings { attenuation_limit_db: Some(db), ..Settings::default() });
            assert!((limited.limit - 0.251_188_64).abs() < 1e-7, "{db} dB: {}", limited.limit);
        }
        assert_eq!(controls(Settings { attenuation_limit_db: Some(0.0), ..Settings::default() }).limit, 0.0);
        assert_eq!(controls(Settings { post_filter: Some(POST_FILTER_BETA), ..Settings::default() }).beta, 0.02);
    }
}
