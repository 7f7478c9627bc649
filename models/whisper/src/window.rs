//! Windows of a recording: samples of 30 s from any frame on, as the spectrogram's program takes them.

use crate::engine::{WINDOW_FRAMES, WINDOW_SAMPLES};

/// Samples of a hop, 10 ms.
const HOP: usize = 160;

/// Samples before the middle of a frame.
const HALF: usize = 200;

/// A recording at 16 kHz, and where its spectrogram ends. Up to 30 s, the recording is made 30 s long by silence and its
/// spectrogram covers that; a longer one is covered to its end, and its last window is filled up with zeros in the spectrogram. So
/// do transformers.
#[derive(Debug, Clone, Copy)]
pub struct Recording<'a> {
    samples: &'a [f32],
    /// Length with silence.
    padded: usize,
}

impl<'a> Recording<'a> {
    /// Of samples at 16 kHz.
    pub fn new(samples: &'a [f32]) -> Self {
        Self { samples, padded: samples.len().max(WINDOW_FRAMES * HOP) }
    }

    /// Frames with sound, 10 ms each.
    pub fn frames(&self) -> usize {
        self.samples.len() / HOP
    }

    /// Frames of the spectrogram.
    fn covered(&self) -> usize {
        self.padded / HOP
    }

    /// Frames of a window from `frame` on that lie within the spectrogram.
    pub fn frames_from(&self, frame: usize) -> usize {
        (self.covered().saturating_sub(frame)).min(WINDOW_FRAMES)
    }

    /// Samples of a window from `frame` on. At both ends the sound is reflected, half a frame long; there is silence beyond.
    pub fn window(&self, frame: usize) -> Vec<f32> {
        (0..WINDOW_SAMPLES).map(|i| self.at((frame * HOP + i) as isize - HALF as isize)).collect()
    }

    fn at(&self, place: isize) -> f32 {
        let last = self.padded as isize - 1;
        let place = if place < 0 {
            -place
        } else if place > last && place - last <= HALF as isize {
            2 * last - place
        } else {
            place
        };
        usize::try_from(place).ok().and_then(|place| self.samples.get(place)).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_recording_is_followed_by_silence_and_reflected_at_its_start() {
        let samples = [1.0, 2.0, 3.0];
        let r = Recording::new(&samples);
        let w = r.window(0);
        assert_eq!((w.len(), r.frames(), r.frames_from(0)), (WINDOW_SAMPLES, 0, 3000));
        assert_eq!(w[HALF - 3..HALF + 5], [0.0, 3.0, 2.0, 1.0, 2.0, 3.0, 0.0, 0.0]);
    }

    #[test]
    fn windows_of_a_long_recording_show_their_neighbours_and_the_reflected_end() {
        let samples: Vec<f32> = (0..500_000).map(|i| i as f32).collect();
        let r = Recording::new(&samples);
        assert_eq!((r.frames(), r.frames_from(0), r.frames_from(200), r.frames_from(4000)), (3125, 3000, 2925, 0));
        let w = r.window(200);
        assert_eq!((w[0], w[HALF]), (31_800.0, 32_000.0));
        let end = 500_000 - 32_000 + HALF;
        assert_eq!(w[end - 2..end + 3], [499_998.0, 499_999.0, 499_998.0, 499_997.0, 499_996.0]);
        assert_eq!(w[end + HALF + 1], 0.0);
    }

    #[test]
    fn thirty_seconds_are_reflected_at_their_own_end() {
        let samples = vec![1.0; 480_000];
        let w = Recording::new(&samples).window(0);
        assert!(w.iter().all(|v| *v == 1.0), "40 samples beyond the end are the sound's own");
    }
}
