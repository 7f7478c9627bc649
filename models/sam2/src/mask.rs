//! Masks: what they cover, and the forms in which they leave: raw bytes, PNG, colour over the picture, COCO's run lengths.

use crate::picture::{Picture, PictureError, save};
use std::path::Path;

/// Which pixels belong to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    width: usize,
    height: usize,
    inside: Vec<u8>,
}

/// COCO's run lengths: down the columns, first of what is outside.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rle {
    /// Height, then width.
    pub size: [usize; 2],
    /// Pixels outside, inside, outside, ….
    pub counts: Vec<usize>,
}

impl Mask {
    /// Of bytes row by row, 0 outside. Panics unless there is one a pixel.
    pub fn new(width: usize, height: usize, inside: Vec<u8>) -> Self {
        assert_eq!(inside.len(), width * height, "a mask of {width} × {height}");
        Self { width, height, inside }
    }

    /// Pixels of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// 1 inside and 0 outside, row by row.
    pub fn inside(&self) -> &[u8] {
        &self.inside
    }

    /// Pixels inside.
    pub fn area(&self) -> usize {
        self.inside.iter().filter(|v| **v != 0).count()
    }

    /// Intersection over union with a mask of the same size; 1 where both are empty.
    pub fn iou(&self, other: &Mask) -> f64 {
        assert_eq!((self.width, self.height), (other.width, other.height), "masks of one size");
        let pairs = || self.inside.iter().zip(&other.inside);
        let both = pairs().filter(|(a, b)| **a != 0 && **b != 0).count();
        let either = pairs().filter(|(a, b)| **a != 0 || **b != 0).count();
        if either == 0 { 1.0 } else { both as f64 / either as f64 }
    }

    /// First and last column and row inside, as `[left, top, right, bottom]`, both included; zeros for an empty mask.
    pub fn bounds(&self) -> [usize; 4] {
        let rows = self.inside.chunks(self.width).enumerate().filter(|(_, row)| row.iter().any(|v| *v != 0));
        rows.fold(None, |bounds: Option<[usize; 4]>, (y, row)| {
            let first = row.iter().position(|v| *v != 0)?;
            let last = row.iter().rposition(|v| *v != 0)?;
            let [left, top, right, _] = bounds.unwrap_or([first, y, last, y]);
            Some([left.min(first), top, right.max(last), y])
        })
        .unwrap_or_default()
    }

    /// This mask inside a larger picture, at `(left, top)`.
    pub fn placed(&self, (left, top): (usize, usize), (width, height): (usize, usize)) -> Mask {
        let mut inside = vec![0; width * height];
        for (y, row) in self.inside.chunks(self.width).enumerate() {
            inside[(top + y) * width + left..][..self.width].copy_from_slice(row);
        }
        Mask { width, height, inside }
    }

    /// COCO's run lengths.
    pub fn to_rle(&self) -> Rle {
        let (mut counts, mut value, mut run) = (vec![], 0, 0);
        for i in 0..self.inside.len() {
            let v = self.inside[i % self.height * self.width + i / self.height];
            if (v != 0) != (value != 0) {
                counts.push(std::mem::take(&mut run));
                value = v;
            }
            run += 1;
        }
        counts.push(run);
        Rle { size: [self.height, self.width], counts }
    }

    /// Writes a PNG file of black and white.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), PictureError> {
        let bytes: Vec<u8> = self.inside.iter().map(|v| if *v != 0 { 255 } else { 0 }).collect();
        save(path, &bytes, (self.width, self.height), image::ExtendedColorType::L8)
    }

    /// Reads a mask from a picture file: inside is what is brighter than half.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read(path: &Path) -> Result<Self, PictureError> {
        let picture = Picture::read(path)?;
        let bright = |rgb: &[u8]| u8::from(rgb.iter().map(|v| u32::from(*v)).sum::<u32>() > 3 * 127);
        Ok(Self::new(picture.width(), picture.height(), picture.rgb().chunks(3).map(bright).collect()))
    }
}

impl Rle {
    /// The mask that they describe; nothing unless the counts fill it exactly.
    pub fn to_mask(&self) -> Option<Mask> {
        let [height, width] = self.size;
        if self.counts.iter().sum::<usize>() != width * height {
            return None;
        }
        let down = self.counts.iter().zip([0, 1].into_iter().cycle()).flat_map(|(n, v)| std::iter::repeat_n(v, *n));
        let mut inside = vec![0; width * height];
        for (i, v) in down.enumerate() {
            inside[i % height * width + i / height] = v;
        }
        Some(Mask { width, height, inside })
    }

    /// The counts as COCO writes them into a string: differences to the count before last, in groups of five bits.
    pub fn to_coco_string(&self) -> String {
        let mut text = String::new();
        for (i, count) in self.counts.iter().enumerate() {
            let before = if i > 2 { self.counts[i - 2] as i64 } else { 0 };
            let mut x = *count as i64 - before;
            loop {
                let group = (x & 0x1f) as u8;
                x >>= 5;
                let more = if group & 0x10 != 0 { x != -1 } else { x != 0 };
                text.push(char::from(48 + group + if more { 0x20 } else { 0 }));
                if !more {
                    break;
                }
            }
        }
        text
    }
}

/// The colour of the nth object.
pub fn color(n: usize) -> [u8; 3] {
    // Hues a golden angle apart.
    let hue = (n as f32 * 0.381_966 + 0.58).fract() * 6.0;
    let channel = |shift: f32| {
        let x = (hue + shift) % 6.0;
        (255.0 * (2.0 - (x - 3.0).abs()).clamp(0.0, 1.0)) as u8
    };
    [channel(3.0), channel(1.0), channel(5.0)]
}

/// The picture with masks over it, half transparent, each in its [`color`] with a bright edge.
pub fn overlay<'a>(picture: &Picture, masks: impl IntoIterator<Item = &'a Mask>) -> Picture {
    let mut out = picture.clone();
    let (width, height) = (picture.width(), picture.height());
    for (n, mask) in masks.into_iter().enumerate() {
        let tint = color(n);
        let is_in = |x: usize, y: usize| mask.inside[y * width + x] != 0;
        let inner = |x: usize, y: usize| {
            x > 0
                && y > 0
                && x + 1 < width
                && y + 1 < height
                && is_in(x - 1, y)
                && is_in(x + 1, y)
                && is_in(x, y - 1)
                && is_in(x, y + 1)
        };
        for (i, rgb) in out.rgb_mut().chunks_mut(3).enumerate().filter(|(i, _)| mask.inside[*i] != 0) {
            let share = if inner(i % width, i / width) { 128 } else { 255 };
            for (old, new) in rgb.iter_mut().zip(tint) {
                *old = ((u32::from(*old) * (255 - share) + u32::from(new) * share) / 255) as u8;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Mask {
        Mask::new(4, 3, vec![0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0])
    }

    #[test]
    fn bounds_area_and_iou_are_those_of_the_pixels() {
        assert_eq!((ring().area(), ring().bounds()), (4, [1, 0, 3, 1]));
        let empty = Mask::new(4, 3, vec![0; 12]);
        assert_eq!((empty.bounds(), empty.iou(&empty), empty.iou(&ring())), ([0; 4], 1.0, 0.0));
        let half = Mask::new(4, 3, vec![0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(half.iou(&ring()), 0.5);
    }

    #[test]
    fn run_lengths_go_down_the_columns_and_come_back() {
        let rle = ring().to_rle();
        assert_eq!(rle, Rle { size: [3, 4], counts: vec![3, 2, 1, 1, 3, 1, 1] });
        assert_eq!(rle.to_mask(), Some(ring()));
        let full = Mask::new(2, 2, vec![1; 4]);
        assert_eq!((full.to_rle().counts, full.to_rle().to_mask()), (vec![0, 4], Some(full)));
        assert_eq!(Rle { size: [2, 2], counts: vec![3] }.to_mask(), None);
    }

    #[test]
    fn the_string_is_the_one_that_pycocotools_makes() {
        // `mask.frPyObjects({"size": [1, sum], "counts": counts}, 1, sum)["counts"]` of pycocotools 2.0.
        let string =
            |counts: &[usize]| Rle { size: [1, counts.iter().sum()], counts: counts.to_vec() }.to_coco_string();
        assert_eq!(string(&[3, 2, 1, 1, 3, 1, 1]), "321O20N");
        assert_eq!(string(&[100, 5, 3000]), "T35hm2");
        assert_eq!(string(&[0, 17, 40, 4000, 2, 1, 900_000]), "0a0X1_l3jNQSLnl^k0");
    }

    #[test]
    fn a_placed_mask_keeps_its_shape_elsewhere() {
        let placed = ring().placed((2, 1), (7, 5));
        assert_eq!((placed.area(), placed.bounds()), (4, [3, 1, 5, 2]));
    }

    #[test]
    fn an_overlay_changes_pixels_inside_alone_and_edges_most() {
        let picture = Picture::new(5, 5, vec![100; 75]).expect("three bytes a pixel");
        let mut inside = vec![0; 25];
        for y in 0..3 {
            inside[y * 5..y * 5 + 3].fill(1);
        }
        let out = overlay(&picture, [&Mask::new(5, 5, inside)]);
        let pixel = |x: usize, y: usize| &out.rgb()[(y * 5 + x) * 3..][..3];
        assert_eq!((pixel(0, 0), pixel(4, 4)), (&color(0)[..], &[100; 3][..]));
        assert!(pixel(1, 1) != pixel(0, 0) && pixel(1, 1) != pixel(4, 4));
    }
}
