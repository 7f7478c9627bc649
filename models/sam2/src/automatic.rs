//! Masks of everything in a picture, as Meta's `SAM2AutomaticMaskGenerator` finds them: a grid of clicks on the picture and on crops
//! of it, the masks that the network thinks good and that hardly change with the threshold, and no two of the same box.

use crate::boxes::{Rect, area, crops, grid, near_crop_edge, suppress};
use crate::engine::{DecodeRequest, Engine};
use crate::mask::Mask;
use crate::picture::Picture;
use crate::segment::check_size;
use crate::{Error, Segmenter};

/// What counts as a mask.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Points of the grid along each side.
    pub points_per_side: usize,
    /// Points that go through the network at once, no more than it takes.
    pub points_per_batch: usize,
    /// Masks that the network thinks worse are dropped.
    pub iou_at_least: f32,
    /// Masks less stable are dropped: the share of their pixels that stay when the threshold rises, of those there are when it falls.
    pub stability_at_least: f32,
    /// By how much the threshold rises and falls.
    pub stability_offset: f32,
    /// Boxes that overlap more are the same mask.
    pub same_box: f32,
    /// Layers of crops.
    pub crop_layers: usize,
    /// As `same_box`, between crops.
    pub same_box_between_crops: f32,
    /// Overlap of crops, as a share of the short side.
    pub crop_overlap: f64,
    /// By how much fewer points there are along a side in each next layer.
    pub fewer_points: usize,
}

impl Default for Options {
    /// Upstream's.
    fn default() -> Self {
        Self {
            points_per_side: 32,
            points_per_batch: 64,
            iou_at_least: 0.8,
            stability_at_least: 0.95,
            stability_offset: 1.0,
            same_box: 0.7,
            crop_layers: 0,
            same_box_between_crops: 0.7,
            crop_overlap: 512.0 / 1500.0,
            fewer_points: 1,
        }
    }
}

/// A mask, and how it was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Automatic {
    /// It, in the size of the picture.
    pub mask: Mask,
    /// First and last column and row.
    pub bounds: Rect,
    /// How good the network thinks it.
    pub iou: f32,
    /// How little it changes with the threshold.
    pub stability: f32,
    /// The click that found it, in pixels of the picture.
    pub point: [f32; 2],
    /// The crop that it was found in: left, top, right, bottom.
    pub crop: [usize; 4],
}

impl<E: Engine> Segmenter<E> {
    /// Masks of everything; those that the network thinks best first, with crops those of small crops first. `progress` is told how
    /// many of how many points are done.
    ///
    /// # Errors
    /// Options without points; the engine's.
    pub fn automatic_masks(
        &mut self,
        picture: &Picture,
        options: &Options,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Vec<Automatic>, Error<E::Error>> {
        check_size(self.engine(), picture)?;
        let crops = crops(picture.width(), picture.height(), options.crop_layers, options.crop_overlap);
        let side = |layer: usize| options.points_per_side / options.fewer_points.max(1).pow(layer as u32);
        if side(options.crop_layers) == 0 || options.points_per_batch == 0 {
            return Err(Error::Request("a grid without points finds nothing".to_owned()));
        }
        let total = crops.iter().map(|(_, layer)| side(*layer) * side(*layer)).sum();
        let mut done = 0;
        let mut all: Vec<Automatic> = vec![];
        for (crop, layer) in &crops {
            let found = self.in_crop(picture, *crop, &grid(side(*layer)), options, |n| {
                done += n;
                progress(done, total);
            })?;
            all.extend(found);
        }
        if crops.len() > 1 {
            let boxes: Vec<Rect> = all.iter().map(|m| m.bounds).collect();
            // Masks of smaller crops are preferred.
            let scores: Vec<f32> = all.iter().map(|m| 1.0 / area(&m.crop.map(|v| v as f32))).collect();
            all = pick(all, &suppress(&boxes, &scores, options.same_box_between_crops));
        }
        Ok(all)
    }

    fn in_crop(
        &mut self,
        picture: &Picture,
        crop: [usize; 4],
        points: &[[f64; 2]],
        options: &Options,
        mut progress: impl FnMut(usize),
    ) -> Result<Vec<Automatic>, Error<E::Error>> {
        let part = picture.crop(crop);
        let features = self.engine().encode(&part).map_err(Error::Engine)?;
        let batch = options.points_per_batch.min(self.engine().geometry().max_prompts);
        let mut found = vec![];
        for some in points.chunks(batch) {
            found.extend(self.at_points(&features, &part, some, options)?);
            progress(some.len());
        }
        found.retain(|m| !near_crop_edge(&m.bounds, crop, (picture.width(), picture.height())));
        let (boxes, scores): (Vec<Rect>, Vec<f32>) = found.iter().map(|m| (m.bounds, m.iou)).unzip();
        let mut found = pick(found, &suppress(&boxes, &scores, options.same_box));
        let whole = (picture.width(), picture.height());
        for m in &mut found {
            let (left, top) = (crop[0], crop[1]);
            m.mask = m.mask.placed((left, top), whole);
            for (i, v) in m.bounds.iter_mut().enumerate() {
                *v += [left, top][i % 2] as f32;
            }
            m.point = [m.point[0] + left as f32, m.point[1] + top as f32];
            m.crop = crop;
        }
        Ok(found)
    }

    /// The masks of some points of the unit square that are good and stable, in pixels of the part.
    fn at_points(
        &mut self,
        features: &E::Features,
        part: &Picture,
        points: &[[f64; 2]],
        options: &Options,
    ) -> Result<Vec<Automatic>, Error<E::Error>> {
        let engine = self.engine();
        let (geometry, size) = (engine.geometry(), (part.width(), part.height()));
        let n = geometry.low_elems();
        let pixel = |p: &[f64; 2]| [(p[0] * size.0 as f64) as f32, (p[1] * size.1 as f64) as f32];
        let place = |v: f32, length: usize| v / length as f32 * geometry.side as f32;
        let pixels: Vec<[f32; 2]> = points.iter().map(pixel).collect();
        let places: Vec<f32> = pixels.iter().flat_map(|[x, y]| [place(*x, size.0), place(*y, size.1)]).collect();
        let labels = vec![1; points.len()];
        let ask =
            DecodeRequest { points: &places, labels: &labels, prompts: points.len(), mask: None, no_memory: true };
        let decoded = engine.decode(features, &ask).map_err(Error::Engine)?;
        let good: Vec<usize> = (0..decoded.ious.len()).filter(|i| decoded.ious[*i] > options.iou_at_least).collect();
        let mut found = vec![];
        for some in good.chunks(geometry.max_masks) {
            let low: Vec<f32> = some.iter().flat_map(|i| &decoded.masks[i * n..][..n]).copied().collect();
            let large = engine.upscale(&low, size, 0.0, options.stability_offset).map_err(Error::Engine)?;
            for (k, (i, inside)) in some.iter().zip(large.inside.chunks(size.0 * size.1)).enumerate() {
                let stability = large.above[k] as f32 / large.below[k] as f32;
                if options.stability_at_least <= 0.0 || stability >= options.stability_at_least {
                    let mask = Mask::new(size.0, size.1, inside.to_vec());
                    let bounds = mask.bounds().map(|v| v as f32);
                    let (iou, point) = (decoded.ious[*i], pixels[i / 3]);
                    found.push(Automatic { mask, bounds, iou, stability, point, crop: [0, 0, size.0, size.1] });
                }
            }
        }
        Ok(found)
    }
}

fn pick(all: Vec<Automatic>, order: &[usize]) -> Vec<Automatic> {
    let mut all: Vec<Option<Automatic>> = all.into_iter().map(Some).collect();
    order.iter().filter_map(|i| all[*i].take()).collect()
}
