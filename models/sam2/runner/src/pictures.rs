//! `sam2 PICTURE` and `sam2 auto PICTURE`.

use crate::args::{AutoArgs, ImageArgs};
use crate::{Outcome, load};
use jvc_runner::Common;
use jvc_runner::cold_start::ColdStart;
use sam2::automatic::{Automatic, Options};
use sam2::mask::overlay;
use sam2::resample::antialiased;
use sam2::segment::{Found, Output};
use sam2::{Engine, Mask, Picture, Request, Segmenter};
use serde_json::{Value, json};
use std::error::Error;
use std::path::{Path, PathBuf};

/// Masks for clicks, boxes and a mask prompt.
pub(crate) fn segment(args: &ImageArgs, common: &Common, clock: &mut ColdStart) -> Outcome {
    let input = args.input.as_deref().ok_or("a picture is needed")?;
    let picture = Picture::read(input)?;
    clock.mark("picture");
    let network = load(common, false, clock)?;
    let request = request(args, &picture, network.geometry().low())?;
    let mut segmenter = Segmenter::new(network);
    let found = segmenter.segment(&input.display().to_string(), &picture, &request)?;
    clock.mark("first result");
    let best: Vec<&Mask> = found.iter().map(|f| &f.best().mask).collect();
    if let Some(path) = &args.output {
        for (n, mask) in best.iter().enumerate() {
            write(mask, &numbered(path, n))?;
        }
    }
    if let Some(path) = &args.shown.overlay {
        overlay(&picture, best).write(path)?;
    }
    clock.mark("files");
    if args.shown.json {
        println!("{}", json!({ "objects": found.iter().map(found_json).collect::<Vec<_>>() }));
    } else {
        found.iter().enumerate().for_each(|(n, f)| describe(n, f));
    }
    Ok(())
}

fn request(args: &ImageArgs, picture: &Picture, low: usize) -> Result<Request, Box<dyn Error>> {
    let size = (picture.width(), picture.height());
    let logits = |path: &PathBuf| -> Result<Vec<f32>, Box<dyn Error>> {
        let mask = Mask::read(path)?;
        let values: Vec<f32> = mask.inside().iter().map(|v| f32::from(*v)).collect();
        let small = antialiased(&values, (mask.width(), mask.height()), (low, low));
        Ok(small.iter().map(|v| v * 20.0 - 10.0).collect())
    };
    Ok(Request {
        clicks: args.click.iter().map(|c| c.click(size)).collect(),
        boxes: args.rect.iter().map(|r| r.pixels(size)).collect(),
        mask: args.mask.as_ref().map(logits).transpose()?,
        output: match (args.multimask, args.single) {
            (true, _) => Output::Three,
            (_, true) => Output::One,
            _ => Output::Auto,
        },
    })
}

/// `mask.png`, `mask-2.png`, ….
fn numbered(path: &Path, n: usize) -> PathBuf {
    if n == 0 {
        return path.to_owned();
    }
    let part = |part: Option<&std::ffi::OsStr>| part.map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!("{}-{}.{}", part(path.file_stem()), n + 1, part(path.extension())))
}

/// In the form that the name ends with.
fn write(mask: &Mask, path: &Path) -> Outcome {
    match path.extension().and_then(|e| e.to_str()) {
        Some("png") => mask.write(path)?,
        Some("json") => std::fs::write(path, mask_json(mask).to_string())?,
        Some("raw") => std::fs::write(path, mask.inside())?,
        _ => return Err(format!("{}: masks are written as .png, .json or .raw", path.display()).into()),
    }
    Ok(())
}

/// COCO's form: sizes and the counts as a string.
pub(crate) fn mask_json(mask: &Mask) -> Value {
    let rle = mask.to_rle();
    json!({ "size": rle.size, "counts": rle.to_coco_string() })
}

fn found_json(found: &Found) -> Value {
    let candidates = found.candidates.iter().map(|c| {
        json!({ "iou": c.iou, "area": c.mask.area(), "bounds": c.mask.bounds(), "segmentation": mask_json(&c.mask) })
    });
    json!({ "score": found.score, "masks": candidates.collect::<Vec<_>>() })
}

fn describe(n: usize, found: &Found) {
    let best = found.best();
    let [left, top, right, bottom] = best.mask.bounds();
    let (area, iou, score) = (best.mask.area(), best.iou, found.score);
    println!(
        "object {:<2} {area} pixels, {left},{top} to {right},{bottom}; predicted IoU {iou:.3}, object score {score:.2}",
        n + 1
    );
}

/// Masks of everything.
pub(crate) fn automatic(args: &AutoArgs, common: &Common, clock: &mut ColdStart) -> Outcome {
    let picture = Picture::read(&args.input)?;
    clock.mark("picture");
    let mut segmenter = Segmenter::new(load(common, false, clock)?);
    let options = Options {
        points_per_side: args.points_per_side,
        points_per_batch: args.points_per_batch,
        iou_at_least: args.iou,
        stability_at_least: args.stability,
        crop_layers: args.crop_layers,
        ..Options::default()
    };
    let mut bar = None;
    let masks = segmenter.automatic_masks(&picture, &options, |done, total| {
        bar.get_or_insert_with(|| common.progress(total as u64, "points")).set(done as u64);
    })?;
    drop(bar);
    clock.mark("masks");
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder)?;
        for (n, m) in masks.iter().enumerate() {
            m.mask.write(&folder.join(format!("{n:04}.png")))?;
        }
    }
    if let Some(path) = &args.shown.overlay {
        // Large ones first, so that small ones are seen.
        let mut order: Vec<&Automatic> = masks.iter().collect();
        order.sort_by_key(|m| std::cmp::Reverse(m.mask.area()));
        overlay(&picture, order.iter().map(|m| &m.mask)).write(path)?;
    }
    if args.shown.json {
        println!("{}", Value::Array(masks.iter().map(automatic_json).collect()));
    } else {
        println!("{} masks", masks.len());
    }
    Ok(())
}

fn automatic_json(m: &Automatic) -> Value {
    let [left, top, right, bottom] = m.bounds;
    json!({
        "segmentation": mask_json(&m.mask),
        "area": m.mask.area(),
        "bbox": [left, top, right - left, bottom - top],
        "predicted_iou": m.iou,
        "stability_score": m.stability,
        "point_coords": [m.point],
        "crop_box": m.crop,
    })
}
