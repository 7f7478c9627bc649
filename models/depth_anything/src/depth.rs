//! Inverse depth of a picture, and pictures of it: grey or coloured, 8 or 16 bits.

use crate::PictureError;
use crate::picture::write_png;
use colorgrad::Gradient;
use png::{BitDepth, ColorType};
use std::path::Path;

/// Inverse depth: large is near. Offset and scale are unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct Depth {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// Rows of values.
    pub values: Vec<f32>,
}

/// Colour scales, from far to near.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of the scales")]
pub enum Colormap {
    Spectral,
    Inferno,
    Magma,
    Plasma,
    Viridis,
    Turbo,
}

/// How depth becomes a picture.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Style {
    /// Colours instead of grey.
    pub colormap: Option<Colormap>,
    /// 16 bits a channel instead of 8.
    pub sixteen_bit: bool,
    /// The values that become black and white; without it, the least and the largest of each picture.
    pub range: Option<[f32; 2]>,
}

impl Depth {
    /// Least and largest finite value; zeros if there is none.
    pub fn range(&self) -> [f32; 2] {
        let finite = self.values.iter().filter(|value| value.is_finite());
        let range = finite.fold(None, |range: Option<[f32; 2]>, value| {
            Some(range.map_or([*value; 2], |[low, high]| [low.min(*value), high.max(*value)]))
        });
        range.unwrap_or_default()
    }

    /// Values between 0 (far) and 1 (near).
    fn shares(&self, style: &Style) -> impl Iterator<Item = f32> {
        let [low, high] = style.range.unwrap_or_else(|| self.range());
        let scale = if high > low { 1.0 / (high - low) } else { 0.0 };
        self.values.iter().map(move |value| ((value - low) * scale).clamp(0.0, 1.0))
    }

    /// Samples of a picture of it: one a pixel, or red, green and blue.
    pub fn draw(&self, style: &Style) -> Vec<u16> {
        let levels = if style.sixteen_bit { 65535.0 } else { 255.0 };
        let level = |share: f32| (share * levels).round() as u16;
        let Some(map) = style.colormap else { return self.shares(style).map(level).collect() };
        let colours = table(map);
        let last = (colours.len() - 1) as f32;
        self.shares(style).flat_map(|share| colours[(share * last).round() as usize].map(level)).collect()
    }

    /// Writes a picture of it as PNG.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path, style: &Style) -> Result<(), PictureError> {
        let samples = self.draw(style).into_iter();
        let (depth, data) = match style.sixteen_bit {
            true => (BitDepth::Sixteen, samples.flat_map(u16::to_be_bytes).collect()),
            false => (BitDepth::Eight, samples.map(|level| level as u8).collect::<Vec<u8>>()),
        };
        let colour = if style.colormap.is_some() { ColorType::Rgb } else { ColorType::Grayscale };
        write_png(path, [self.width, self.height], (colour, depth), &data)
    }
}

/// Colours at equal distances.
fn table(map: Colormap) -> Vec<[f32; 3]> {
    fn colours(gradient: &dyn Gradient, reversed: bool) -> Vec<[f32; 3]> {
        let colour = |i: usize| {
            let share = i as f32 / 4095.0;
            let colour = gradient.at(if reversed { 1.0 - share } else { share });
            [colour.r, colour.g, colour.b].map(|channel| channel.clamp(0.0, 1.0))
        };
        (0..4096).map(colour).collect()
    }
    match map {
        // Red is near, as in the authors' pictures.
        Colormap::Spectral => colours(&colorgrad::preset::spectral(), true),
        Colormap::Inferno => colours(&colorgrad::preset::inferno(), false),
        Colormap::Magma => colours(&colorgrad::preset::magma(), false),
        Colormap::Plasma => colours(&colorgrad::preset::plasma(), false),
        Colormap::Viridis => colours(&colorgrad::preset::viridis(), false),
        Colormap::Turbo => colours(&colorgrad::preset::turbo(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp() -> Depth {
        Depth { width: 3, height: 1, values: vec![2.0, 3.0, 4.0] }
    }

    #[test]
    fn grey_pictures_go_from_the_farthest_to_the_nearest_in_8_and_16_bits() {
        assert_eq!(ramp().draw(&Style::default()), [0, 128, 255]);
        assert_eq!(ramp().draw(&Style { sixteen_bit: true, ..Style::default() }), [0, 32768, 65535]);
        let wide = Style { range: Some([0.0, 4.0]), ..Style::default() };
        assert_eq!(ramp().draw(&wide), [128, 191, 255]);
        let flat = Depth { values: vec![1.0; 3], ..ramp() };
        assert_eq!(flat.draw(&Style::default()), [0, 0, 0]);
    }

    #[test]
    fn near_is_red_and_far_is_blue_in_the_spectral_scale() {
        let picture = ramp().draw(&Style { colormap: Some(Colormap::Spectral), ..Style::default() });
        let (far, near) = (&picture[..3], &picture[6..]);
        assert!(far[2] > far[0] && near[0] > near[2], "far {far:?}, near {near:?}");
    }

    #[test]
    fn a_written_picture_has_the_bits_and_channels_that_were_asked_for() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let path = folder.path().join("depth.png");
        for (style, kind) in [
            (Style { sixteen_bit: true, ..Style::default() }, (ColorType::Grayscale, BitDepth::Sixteen)),
            (Style { colormap: Some(Colormap::Turbo), ..Style::default() }, (ColorType::Rgb, BitDepth::Eight)),
        ] {
            ramp().write(&path, &style).expect("a scratch folder");
            let file = std::fs::File::open(&path).expect("just written");
            let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().expect("a PNG");
            assert_eq!(reader.output_color_type(), kind);
            let mut data = vec![0; reader.output_buffer_size().expect("small")];
            reader.next_frame(&mut data).expect("whole");
            let expected = ramp().draw(&style);
            let got: Vec<u16> = match style.sixteen_bit {
                true => data.chunks(2).map(|two| u16::from_be_bytes([two[0], two[1]])).collect(),
                false => data.into_iter().map(u16::from).collect(),
            };
            assert_eq!(got, expected);
        }
    }
}
