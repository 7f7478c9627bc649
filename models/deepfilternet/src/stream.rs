//! Streaming: hops of 480 samples through the step program, the eleven states carried from hop to hop.
//!
//! Output hop n of the program is the enhanced input hop n − 3 (two frames of lookahead and one of overlap-add), so a
//! recording of k hops takes k + 3 steps, the last three with silence, and the first three outputs are dropped.
//!
//! Start-up rule: the states of the two frames of lookahead and of the recurrent layers are set to zero once, after
//! the first two hops. The offline network begins when it has its lookahead; without this rule the streaming one
//! would have begun two frames earlier, on silence, and answer slightly differently for the first second.

/// Samples per hop: 10 ms at 48 kHz.
pub const HOP: usize = 480;

/// The sampling rate that the network was trained for, in Hz.
pub const RATE: u32 = 48_000;

/// Hops by which the output comes later than the input.
pub const DELAY_HOPS: usize = 3;

/// Hops after which the start-up rule applies.
const START_UP_HOPS: usize = 2;

/// The states of the step program in the order of its inputs: name, elements, and whether the start-up rule zeroes it.
pub const STATES: [(&str, usize, bool); 11] = [
    ("ana", 480, false),             // analysis overlap [1, 480]
    ("syn", 480, false),             // synthesis overlap [1, 480]
    ("mean", 32, false),             // running mean of the ERB levels in dB [1, 32]
    ("unit", 96, false),             // running level of the lowest 96 bins [1, 96]
    ("feat_erb", 2 * 32, true),      // two past frames of ERB features [1, 1, 2, 32]
    ("feat_spec", 2 * 2 * 96, true), // two past frames of complex features [1, 2, 2, 96]
    ("c0", 64 * 4 * 96, true),       // four past frames of the deep-filter pathway [1, 64, 4, 96]
    ("spec", 4 * 481 * 2, false),    // four past spectra [1, 4, 481, 2]
    ("h_enc", 256, true),            // hidden states of the recurrent layers [1, 1, 256]
    ("h_erb", 2 * 256, true),        // [2, 1, 256]
    ("h_df", 2 * 256, true),         // [2, 1, 256]
];

/// The values of the eleven states, in the order of [`STATES`].
#[derive(Debug, Clone, PartialEq)]
pub struct States {
    /// One vector a state, as long as [`STATES`] says.
    pub values: [Vec<f32>; 11],
}

impl States {
    /// The states before the first hop: zero, but for the two running levels, which begin at typical values.
    pub fn initial() -> Self {
        let mut values = STATES.map(|(_, elems, _)| vec![0.0; elems]);
        values[2] = linspace(-60.0, -90.0, 32);
        values[3] = linspace(0.001, 0.0001, 96);
        Self { values }
    }

    fn apply_start_up_rule(&mut self) {
        for (value, (_, _, zeroed)) in self.values.iter_mut().zip(STATES) {
            if zeroed {
                value.fill(0.0);
            }
        }
    }
}

/// `n` values from `first` to `last` in equal steps, built from both ends as PyTorch builds them.
fn linspace(first: f32, last: f32, n: usize) -> Vec<f32> {
    let step = (last - first) / (n - 1) as f32;
    (0..n).map(|i| if i < n / 2 { first + step * i as f32 } else { last - step * (n - 1 - i) as f32 }).collect()
}

/// The network: one hop in, one hop out, states updated.
pub trait StepEngine {
    /// What can go wrong in a step.
    type Error;

    /// Runs the step program once: takes `hop` and `states`, replaces `states` by the next ones and returns the output
    /// hop.
    ///
    /// # Errors
    /// Those of the device; the states are then not to be used further.
    fn step(&mut self, hop: &[f32; HOP], states: &mut States) -> Result<[f32; HOP], Self::Error>;
}

/// One channel of audio on its way through the network.
#[derive(Debug)]
pub struct Stream {
    states: States,
    hops: usize,
}

impl Default for Stream {
    fn default() -> Self {
        Self { states: States::initial(), hops: 0 }
    }
}

impl Stream {
    /// Sends one hop through the network. The output belongs to the input of [`DELAY_HOPS`] hops before, and is `None`
    /// while there is none yet.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn push<E: StepEngine>(&mut self, engine: &mut E, hop: &[f32; HOP]) -> Result<Option<[f32; HOP]>, E::Error> {
        if self.hops == START_UP_HOPS {
            self.states.apply_start_up_rule();
        }
        let out = engine.step(hop, &mut self.states)?;
        self.hops += 1;
        Ok((self.hops > DELAY_HOPS).then_some(out))
    }
}

/// A whole channel through the network: as many samples out as in, at the same places in time.
///
/// # Errors
/// Those of the engine.
pub fn denoise<E: StepEngine>(engine: &mut E, wav: &[f32]) -> Result<Vec<f32>, E::Error> {
    denoise_reporting(engine, wav, |_| ())
}

/// [`denoise`] that tells after each step how many have been made; [`steps_of`] says how many there are.
///
/// # Errors
/// Those of the engine.
pub fn denoise_reporting<E: StepEngine>(
    engine: &mut E,
    wav: &[f32],
    mut on_step: impl FnMut(usize),
) -> Result<Vec<f32>, E::Error> {
    let mut stream = Stream::default();
    let mut enhanced = Vec::with_capacity(wav.len() + HOP);
    for n in 0..steps_of(wav.len()) {
        let mut hop = [0.0; HOP]; // the last hop of the recording is filled up with silence, as are those after it
        let rest = wav.get(n * HOP..).unwrap_or(&[]);
        let len = rest.len().min(HOP);
        hop[..len].copy_from_slice(&rest[..len]);
        if let Some(out) = stream.push(engine, &hop)? {
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

    /// Gives its input back three hops later, and keeps what it saw of the states.
    #[derive(Default)]
    struct Late {
        line: Vec<[f32; HOP]>,
        seen: Vec<States>,
    }

    impl StepEngine for Late {
        type Error = Infallible;
        fn step(&mut self, hop: &[f32; HOP], states: &mut States) -> Result<[f32; HOP], Infallible> {
            self.seen.push(states.clone());
            for value in &mut states.values {
                value.fill(self.seen.len() as f32);
            }
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
            assert_eq!(denoise(&mut engine, &ramp(n)), Ok(ramp(n)), "{n} samples");
            assert_eq!(engine.line.len(), steps_of(n), "{n} samples");
        }
    }

    #[test]
    fn nothing_comes_out_before_the_delay() {
        let (mut engine, mut stream) = (Late::default(), Stream::default());
        let out: Vec<_> = (0..5).map(|_| stream.push(&mut engine, &[1.0; HOP]).map(|o| o.is_some())).collect();
        assert_eq!(out, [Ok(false), Ok(false), Ok(false), Ok(true), Ok(true)]);
    }

    #[test]
    fn states_are_carried_and_the_start_up_rule_applies_once_after_two_hops() {
        let mut engine = Late::default();
        assert!(denoise(&mut engine, &ramp(4 * HOP)).is_ok());
        assert_eq!(engine.seen[0], States::initial());
        for (step, states) in engine.seen.iter().enumerate().skip(1) {
            for (value, (name, elems, zeroed)) in states.values.iter().zip(STATES) {
                let expected = if step == START_UP_HOPS && zeroed { 0.0 } else { step as f32 };
                assert_eq!(value, &vec![expected; elems], "state {name} before step {step}");
            }
        }
    }

    #[test]
    fn two_channels_do_not_share_states() {
        let mut engine = Late::default();
        for _ in 0..2 {
            engine.line.clear();
            assert_eq!(denoise(&mut engine, &ramp(700)), Ok(ramp(700)));
        }
        let second = steps_of(700);
        assert_eq!(engine.seen[second], States::initial(), "the second channel begins afresh");
    }

    #[test]
    fn initial_states_are_those_of_the_export() {
        let bytes = include_bytes!("../deepfilternet3_step.init.safetensors");
        let file = safetensors::SafeTensors::deserialize(bytes).expect("the committed file is well-formed");
        for (i, (value, (name, _, _))) in States::initial().values.iter().zip(STATES).enumerate() {
            let tensor = file.tensor(&format!("in.{}", i + 1)).expect("eleven states");
            let expected: Vec<f32> =
                tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            assert_eq!(value.len(), expected.len(), "state {name}");
            for (a, b) in value.iter().zip(&expected) {
                assert!((a - b).abs() <= f32::EPSILON * b.abs(), "state {name}: {a} is not {b}");
            }
        }
    }
}
