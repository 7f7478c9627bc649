//! `sam2 video FOLDER`.

use crate::args::VideoArgs;
use crate::pictures::mask_json;
use crate::{Outcome, load};
use jvc_runner::Common;
use jvc_runner::cold_start::ColdStart;
use sam2::boxes::Rect;
use sam2::mask::overlay;
use sam2::video::{Direction, FrameMasks, Prompt};
use sam2::{Click, Mask, Picture, VideoSession};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Follows objects.
pub(crate) fn video(args: &VideoArgs, common: &Common, clock: &mut ColdStart) -> Outcome {
    let files = frames(&args.input)?;
    let first = Picture::read(&files[0])?;
    let prompts = prompts(args, (first.width(), first.height()))?;
    let begin = prompts.keys().map(|(frame, _)| *frame).min().ok_or("a prompt is needed: --click, --box or --mask")?;
    let mut session = VideoSession::new(load(common, true, clock)?, files.clone());
    for ((frame, object), prompt) in &prompts {
        session.prompt(*frame, *object, prompt)?;
    }
    clock.mark("first result");
    std::fs::create_dir_all(&args.output)?;
    let passes = if args.both { &[Direction::Forwards, Direction::Backwards][..] } else { &[Direction::Forwards] };
    let total = files.len() - begin + if args.both && begin > 0 { begin + 1 } else { 0 };
    let bar = common.progress(total as u64, "frames");
    for direction in passes {
        let mut failed = None;
        session.propagate(begin, *direction, None, |masks| {
            bar.advance(1);
            failed = keep(args, &files, &masks).err();
            failed.is_none()
        })?;
        failed.map_or(Ok(()), Err)?;
    }
    drop(bar);
    if !args.json {
        println!("wrote     {}", args.output.display());
    }
    Ok(())
}

fn frames(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn std::error::Error>> {
    let is_picture = |path: &PathBuf| {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg"))
    };
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).filter(is_picture).collect();
    files.sort();
    if files.is_empty() { Err(format!("{} holds no PNG or JPEG files", folder.display()).into()) } else { Ok(files) }
}

/// Prompts by frame and object.
fn prompts(
    args: &VideoArgs,
    size: (usize, usize),
) -> Result<BTreeMap<(usize, u32), Prompt>, Box<dyn std::error::Error>> {
    let mut out: BTreeMap<(usize, u32), Prompt> = BTreeMap::new();
    let mut points: BTreeMap<(usize, u32), (Vec<Click>, Option<Rect>)> = BTreeMap::new();
    for click in &args.click {
        points.entry((click.frame, click.object)).or_default().0.push(click.what.click(size));
    }
    for rect in &args.rect {
        points.entry((rect.frame, rect.object)).or_default().1 = Some(rect.what.pixels(size));
    }
    out.extend(points.into_iter().map(|(key, (clicks, rect))| (key, Prompt::Points { clicks, rect })));
    for mask in &args.mask {
        let given = Prompt::Mask(Mask::read(&mask.what)?);
        if out.insert((mask.frame, mask.object), given).is_some() {
            let (frame, object) = (mask.frame, mask.object);
            return Err(format!("object {object} has points and a mask on frame {frame}: give one of them").into());
        }
    }
    Ok(out)
}

fn keep(args: &VideoArgs, files: &[PathBuf], masks: &FrameMasks) -> Outcome {
    let frame = masks.frame;
    if args.json {
        let objects = masks
            .objects
            .iter()
            .map(|(id, mask, score)| json!({ "object": id, "score": score, "segmentation": mask_json(mask) }));
        println!("{}", json!({ "frame": frame, "objects": objects.collect::<Vec<_>>() }));
    }
    if args.overlay {
        let picture = Picture::read(&files[frame])?;
        overlay(&picture, masks.objects.iter().map(|(_, m, _)| m))
            .write(&args.output.join(format!("{frame:05}.png")))?;
    } else {
        for (id, mask, _) in &masks.objects {
            mask.write(&args.output.join(format!("{frame:05}-{id}.png")))?;
        }
    }
    Ok(())
}
