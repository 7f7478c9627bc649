//! The before/after picture: two spectrograms one above the other in a PNG, level in dB as colour.

use crate::stream::RATE;
use realfft::RealFftPlanner;
use std::path::{Path, PathBuf};

/// Samples per spectrum; its 1025 bins are 23.4 Hz apart.
const WINDOW: usize = 2048;
/// Size of one panel in pixels; four bins share a row, the highest (24 kHz) is left out.
const WIDTH: usize = 960;
const HEIGHT: usize = WINDOW / 8;
/// From the loudest point of both panels down to what is drawn black, in dB.
const RANGE_DB: f32 = 80.0;
/// Pixels around the panels: room for the labels.
const LEFT: usize = 56;
const TOP: usize = 26;
const BOTTOM: usize = 34;
const RIGHT: usize = 16;

/// Why a picture could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {source}")]
pub struct PictureError {
    path: PathBuf,
    source: png::EncodingError,
}

/// Draws `before` and `after` (48 kHz, mono) on one scale into the PNG file `path`.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(before: &[f32], after: &[f32], path: &Path) -> Result<(), PictureError> {
    let panels = [("BEFORE", levels(before)), ("AFTER", levels(after))];
    let top = panels.iter().flat_map(|(_, p)| p).fold(f32::MIN, |m, &v| m.max(v));
    let mut canvas = Canvas::new(LEFT + WIDTH + RIGHT, panels.len() * (TOP + HEIGHT) + BOTTOM);
    for (i, (title, panel)) in panels.iter().enumerate() {
        let y0 = TOP + i * (TOP + HEIGHT);
        canvas.panel(panel, top, y0);
        canvas.text(title, LEFT, y0 - 16);
        canvas.frequency_axis(y0);
    }
    canvas.time_axis(before.len() as f64 / f64::from(RATE));
    canvas.write(path).map_err(|source| PictureError { path: path.to_owned(), source })
}

/// Levels in dB, [`WIDTH`] × [`HEIGHT`] row by row, the highest frequencies first. One spectrum a column.
fn levels(signal: &[f32]) -> Vec<f32> {
    let fft = RealFftPlanner::<f32>::new().plan_fft_forward(WINDOW);
    let (mut frame, mut spectrum) = (fft.make_input_vec(), fft.make_output_vec());
    let mut out = vec![0.0; WIDTH * HEIGHT];
    for column in 0..WIDTH {
        let centre = (column * 2 + 1) * signal.len() / (2 * WIDTH);
        for (i, value) in frame.iter_mut().enumerate() {
            let hann = (std::f32::consts::PI * (i as f32 + 0.5) / WINDOW as f32).sin().powi(2);
            let sample = (centre + i).checked_sub(WINDOW / 2).and_then(|at| signal.get(at));
            *value = sample.map_or(0.0, |v| v * hann);
        }
        fft.process(&mut frame, &mut spectrum).expect("the buffers were made by the plan");
        for row in 0..HEIGHT {
            let bins = &spectrum[4 * row..4 * row + 4];
            let power = bins.iter().fold(0.0, |m: f32, b| m.max(b.norm_sqr()));
            out[(HEIGHT - 1 - row) * WIDTH + column] = 10.0 * (power + 1e-20).log10();
        }
    }
    out
}

/// An RGB picture.
struct Canvas {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

const PAPER: [u8; 3] = [255, 255, 255];
const INK: [u8; 3] = [40, 40, 40];

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, rgb: PAPER.repeat(width * height) }
    }

    fn set(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        if x < self.width && y < self.height {
            self.rgb[3 * (y * self.width + x)..][..3].copy_from_slice(&colour);
        }
    }

    fn panel(&mut self, levels: &[f32], top: f32, y0: usize) {
        for (i, &level) in levels.iter().enumerate() {
            self.set(LEFT + i % WIDTH, y0 + i / WIDTH, heat(1.0 + (level - top) / RANGE_DB));
        }
    }

    fn frequency_axis(&mut self, y0: usize) {
        for khz in [0, 4, 8, 12, 16, 20] {
            let y = y0 + HEIGHT - 1 - khz * HEIGHT / 24;
            (LEFT - 5..LEFT).for_each(|x| self.set(x, y, INK));
            let label = khz.to_string();
            self.text(&label, LEFT - 8 - text_width(&label), y.saturating_sub(5));
        }
        self.text("KHZ", 8, y0 - 16);
    }

    fn time_axis(&mut self, seconds: f64) {
        let y = self.height - BOTTOM;
        // The smallest of 1, 2, 5 × 10ⁿ seconds that leaves at most ten ticks.
        let steps = (-2..6).flat_map(|n| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(n)));
        let step = steps.into_iter().find(|s| seconds / s <= 10.0).unwrap_or(seconds);
        for k in 0..=10 {
            let at = f64::from(k) * step;
            if at > seconds || seconds == 0.0 {
                break;
            }
            let x = LEFT + (at / seconds * (WIDTH - 1) as f64) as usize;
            (y..y + 5).for_each(|y| self.set(x, y, INK));
            let label = format!("{at:.*}", if step < 0.1 { 2 } else { usize::from(step < 1.0) });
            self.text(&label, x - text_width(&label) / 2, y + 9);
        }
        self.text("S", 8, y + 9);
    }

    /// Text at (`x`, `y`), its upper left corner; only the characters of [`glyph`].
    fn text(&mut self, text: &str, x: usize, y: usize) {
        for (n, c) in text.chars().enumerate() {
            for (row, bits) in glyph(c).into_iter().enumerate() {
                for column in (0..3).filter(|column| bits & (4 >> column) != 0) {
                    let (px, py) = (x + n * ADVANCE + column * DOT, y + row * DOT);
                    (0..DOT * DOT).for_each(|d| self.set(px + d % DOT, py + d / DOT, INK));
                }
            }
        }
    }

    fn write(&self, path: &Path) -> Result<(), png::EncodingError> {
        let file = std::io::BufWriter::new(std::fs::File::create(path)?);
        let mut encoder = png::Encoder::new(file, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgb)?;
        writer.finish()
    }
}

/// Pixels per dot of a glyph, and from one character to the next.
const DOT: usize = 2;
const ADVANCE: usize = 4 * DOT;

fn text_width(text: &str) -> usize {
    text.len() * ADVANCE - DOT
}

/// Five rows of three dots; a space for what is not here.
fn glyph(c: char) -> [u8; 5] {
    match c {
        '0' | 'O' => [7, 5, 5, 5, 7],
        '1' => [2, 6, 2, 2, 7],
        '2' | 'Z' => [7, 1, 7, 4, 7],
        '3' => [7, 1, 7, 1, 7],
        '4' => [5, 5, 7, 1, 1],
        '5' | 'S' => [7, 4, 7, 1, 7],
        '6' => [7, 4, 7, 5, 7],
        '7' => [7, 1, 2, 2, 2],
        '8' => [7, 5, 7, 5, 7],
        '9' => [7, 5, 7, 1, 7],
        '.' => [0, 0, 0, 0, 2],
        'A' => [2, 5, 7, 5, 5],
        'B' => [6, 5, 6, 5, 6],
        'E' => [7, 4, 6, 4, 7],
        'F' => [7, 4, 6, 4, 4],
        'H' => [5, 5, 7, 5, 5],
        'K' => [5, 5, 6, 5, 5],
        'R' => [6, 5, 6, 5, 5],
        'T' => [7, 2, 2, 2, 2],
        _ => [0; 5],
    }
}

/// Black, violet, red, yellow, white for 0 to 1: brightness rises with level, so it also reads in grey.
fn heat(level: f32) -> [u8; 3] {
    const STOPS: [[f32; 3]; 5] =
        [[0.0, 0.0, 4.0], [86.0, 16.0, 110.0], [188.0, 55.0, 84.0], [249.0, 142.0, 9.0], [252.0, 255.0, 200.0]];
    let at = level.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let low = (at as usize).min(STOPS.len() - 2);
    let part = at - low as f32;
    std::array::from_fn(|i| (STOPS[low][i] + (STOPS[low + 1][i] - STOPS[low][i]) * part).round() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tone(hz: f32, n: usize) -> Vec<f32> {
        (0..n).map(|i| (std::f32::consts::TAU * hz * i as f32 / RATE as f32).sin()).collect()
    }

    #[test]
    fn a_tone_stands_in_the_row_of_its_frequency_in_every_column() {
        for hz in [1_000.0, 6_000.0, 20_000.0] {
            let levels = levels(&tone(hz, 96_000));
            let row = HEIGHT - 1 - (hz / 24_000.0 * HEIGHT as f32) as usize;
            for column in 10..WIDTH - 10 {
                let at = |row: usize| levels[row * WIDTH + column];
                let loudest = (0..HEIGHT).max_by(|&a, &b| at(a).total_cmp(&at(b))).expect("rows");
                assert!(loudest.abs_diff(row) <= 1, "{hz} Hz in column {column}: row {loudest}, not {row}");
                assert!(at(loudest) - at((loudest + 40) % HEIGHT) > 60.0, "{hz} Hz leaks");
            }
        }
    }

    #[test]
    fn time_runs_from_left_to_right() {
        let mut signal = vec![0.0; 48_000];
        signal.extend(tone(2_000.0, 48_000));
        let levels = levels(&signal);
        let row = HEIGHT - 1 - HEIGHT / 12;
        assert!(levels[row * WIDTH + WIDTH / 4] < -100.0, "the first half is silent");
        assert!(levels[row * WIDTH + 3 * WIDTH / 4] > 40.0, "the second half is not");
    }

    #[test]
    fn colours_get_brighter_with_level() {
        let sum = |l: f32| heat(l).iter().map(|&v| u32::from(v)).sum::<u32>();
        assert!((0..100).all(|i| sum(i as f32 / 100.0) <= sum((i + 1) as f32 / 100.0) + 3), "not monotonic");
        assert_eq!([heat(-1.0), heat(2.0)], [heat(0.0), heat(1.0)]);
    }

    #[test]
    fn the_picture_is_a_png_of_the_expected_size_whatever_the_length() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        for n in [0, 1, 2047, 96_000] {
            let path = folder.path().join("a.png");
            draw(&tone(440.0, n), &tone(880.0, n), &path).expect("the folder is writable");
            let file = std::io::BufReader::new(std::fs::File::open(&path).expect("just written"));
            let reader = png::Decoder::new(file).read_info().expect("a PNG");
            let (width, height) = (reader.info().width as usize, reader.info().height as usize);
            assert_eq!((width, height), (LEFT + WIDTH + RIGHT, 2 * (TOP + HEIGHT) + BOTTOM), "{n} samples");
        }
    }
}
