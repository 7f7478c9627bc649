//! The command line.

use clap::{Args, Parser, Subcommand};
use jvc_runner::Common;
use jvc_runner::bench::BenchArgs;
use sam2::Click;
use std::path::PathBuf;
use std::str::FromStr;

/// Cuts objects out of pictures and videos with SAM 2.1.
///
/// Places are x,y from the upper left: shares of the sides where both are at most 1, else pixels.
///
/// Examples:
///   sam2 image.png --click 0.5,0.5 -o mask.png --overlay out.png
///   sam2 image.png --click 0.5,0.5 --click=-0.1,0.9 --json
///   sam2 image.png --box 100,80,420,300 -o mask.json
///   sam2 auto image.png --overlay everything.png
///   sam2 video frames/ --click 0:0.5,0.5 -o masks/
///   sam2 bench --device 1          (options of a command stand behind it)
#[derive(Debug, Parser)]
#[command(name = "sam2", version, verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) image: ImageArgs,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Masks of everything in a picture
    Auto(AutoArgs),
    /// Follows objects through the frames of a video
    Video(VideoArgs),
    /// Measures runs on a made-up picture
    Bench(MeasureArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ImageArgs {
    /// The picture: PNG or JPEG
    pub(crate) input: Option<PathBuf>,
    /// A point on the object, or beside it with a minus in front: `--click=-0.1,0.9` (repeatable)
    #[arg(long, value_name = "X,Y", allow_hyphen_values = true)]
    pub(crate) click: Vec<Place>,
    /// Left, top, right and bottom of an object (repeatable: several objects)
    #[arg(long = "box", value_name = "X,Y,X,Y")]
    pub(crate) rect: Vec<Rectangle>,
    /// A rough mask to begin from: a picture, bright inside
    #[arg(long, value_name = "FILE")]
    pub(crate) mask: Option<PathBuf>,
    /// Three masks for every prompt, not only for a single click
    #[arg(long, conflicts_with = "single")]
    pub(crate) multimask: bool,
    /// One mask even for a single click
    #[arg(long)]
    pub(crate) single: bool,
    /// Where the best mask goes: .png black and white, .json COCO's run lengths, .raw bytes 0 and 1; of several objects the second
    /// and later ones get their number before the dot
    #[arg(short, long)]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

/// How the masks of a picture are shown.
#[derive(Debug, Args)]
pub(crate) struct ShownArgs {
    /// Where the picture with the masks over it goes (PNG)
    #[arg(long)]
    pub(crate) overlay: Option<PathBuf>,
    /// Print all masks as JSON with COCO's run lengths
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct AutoArgs {
    /// The picture: PNG or JPEG
    pub(crate) input: PathBuf,
    /// Points of the grid along each side
    #[arg(long, default_value_t = 32)]
    pub(crate) points_per_side: usize,
    /// Points that go through the network at once
    #[arg(long, default_value_t = 64)]
    pub(crate) points_per_batch: usize,
    /// Drop masks that the network thinks worse
    #[arg(long, default_value_t = 0.8)]
    pub(crate) iou: f32,
    /// Drop masks that change more with the threshold
    #[arg(long, default_value_t = 0.95)]
    pub(crate) stability: f32,
    /// Layers of crops that are looked at besides the whole
    #[arg(long, default_value_t = 0)]
    pub(crate) crop_layers: usize,
    /// A folder for one PNG a mask
    #[arg(short, long)]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) shown: ShownArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VideoArgs {
    /// A folder of PNG or JPEG files, in the order of their names
    pub(crate) input: PathBuf,
    /// A point on an object of a frame: FRAME:X,Y or FRAME:OBJECT:X,Y, a minus before X for beside (repeatable)
    #[arg(long, value_name = "FRAME:X,Y")]
    pub(crate) click: Vec<On<Place>>,
    /// A box around an object of a frame: FRAME:X,Y,X,Y or FRAME:OBJECT:X,Y,X,Y (repeatable)
    #[arg(long = "box", value_name = "FRAME:X,Y,X,Y")]
    pub(crate) rect: Vec<On<Rectangle>>,
    /// A mask of an object of a frame: FRAME:FILE or FRAME:OBJECT:FILE (repeatable)
    #[arg(long, value_name = "FRAME:FILE")]
    pub(crate) mask: Vec<On<PathBuf>>,
    /// Also go backwards from the first frame with a prompt
    #[arg(long)]
    pub(crate) both: bool,
    /// Write the picture with the masks over it instead of the masks
    #[arg(long)]
    pub(crate) overlay: bool,
    /// A folder for the masks: FRAME-OBJECT.png, with --overlay FRAME.png
    #[arg(short, long, default_value = "masks")]
    pub(crate) output: PathBuf,
    /// Print the masks as lines of JSON with COCO's run lengths, one a frame
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// Size of the picture
    #[arg(long, default_value = "1800x1200", value_parser = size, value_name = "WIDTHxHEIGHT")]
    pub(crate) size: (usize, usize),
    /// Measure a frame of a video too
    #[arg(long)]
    pub(crate) video: bool,
    #[command(flatten)]
    pub(crate) bench: BenchArgs,
}

fn size(text: &str) -> Result<(usize, usize), String> {
    let parts = text.split_once('x').and_then(|(w, h)| Some((w.parse().ok()?, h.parse().ok()?)));
    parts.filter(|(w, h)| *w > 0 && *h > 0).ok_or_else(|| "WIDTHxHEIGHT in pixels".to_owned())
}

/// A place, on the object or beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Place {
    at: [f32; 2],
    on: bool,
}

/// A box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rectangle([f32; 4]);

/// Something of an object (1 where none is named) on a frame.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct On<T> {
    pub(crate) frame: usize,
    pub(crate) object: u32,
    pub(crate) what: T,
}

fn numbers<const N: usize>(text: &str) -> Option<[f32; N]> {
    let values: Option<Vec<f32>> = text.split(',').map(|v| v.trim().parse().ok().filter(|v| *v >= 0.0)).collect();
    values?.try_into().ok()
}

/// Shares of the sides, where all values are at most 1, as pixels.
fn pixels<const N: usize>(values: [f32; N], size: (usize, usize)) -> [f32; N] {
    let mut out = values;
    if values.iter().all(|v| *v <= 1.0) {
        out.iter_mut().enumerate().for_each(|(i, v)| *v *= [size.0, size.1][i % 2] as f32);
    }
    out
}

impl Place {
    pub(crate) fn click(&self, size: (usize, usize)) -> Click {
        let [x, y] = pixels(self.at, size);
        Click { x, y, on: self.on }
    }
}

impl Rectangle {
    pub(crate) fn pixels(&self, size: (usize, usize)) -> [f32; 4] {
        pixels(self.0, size)
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let beside = text.strip_prefix('-');
        let at = numbers(beside.unwrap_or(text)).ok_or("X,Y, with a minus in front for a point beside the object")?;
        Ok(Self { at, on: beside.is_none() })
    }
}

impl FromStr for Rectangle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides = numbers::<4>(text).filter(|[l, t, r, b]| l < r && t < b);
        Ok(Self(sides.ok_or("left,top,right,bottom")?))
    }
}

impl<T: FromStr<Err: ToString>> FromStr for On<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (frame, rest) = text.split_once(':').ok_or("it begins with FRAME: or FRAME:OBJECT:")?;
        let frame = frame.parse().map_err(|_| format!("{frame:?} is no frame"))?;
        let named = rest.split_once(':').and_then(|(object, what)| Some((object.parse().ok()?, what)));
        let (object, what) = named.unwrap_or((1, rest));
        Ok(Self { frame, object, what: what.parse().map_err(|e: T::Err| e.to_string())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_pixels_are_told_apart_and_a_minus_means_beside() {
        let place = |text: &str| Place::from_str(text).map(|p| p.click((200, 100)));
        assert_eq!(place("0.5,0.25"), Ok(Click::on(100.0, 25.0)));
        assert_eq!(place("-0.5,1"), Ok(Click::off(100.0, 100.0)));
        assert_eq!(place("30,0.5"), Ok(Click::on(30.0, 0.5)));
        assert!(place("0.5").is_err() && place("a,b").is_err() && place("0.1,-0.2").is_err());
        assert_eq!(Rectangle::from_str("0,0,0.5,1").map(|r| r.pixels((200, 100))), Ok([0.0, 0.0, 100.0, 100.0]));
        assert!(Rectangle::from_str("5,5,4,9").is_err());
    }

    #[test]
    fn prompts_name_frame_and_object() {
        let on = |text: &str| On::<Place>::from_str(text).map(|o| (o.frame, o.object, o.what.on));
        assert_eq!(on("7:0.5,0.5"), Ok((7, 1, true)));
        assert_eq!(on("7:3:-0.5,0.5"), Ok((7, 3, false)));
        assert!(on("0.5,0.5").is_err() && on("x:0.5,0.5").is_err());
        assert_eq!(On::<PathBuf>::from_str("0:2:a.png").map(|o| (o.object, o.what)), Ok((2, "a.png".into())));
    }

    #[test]
    fn the_picture_needs_no_subcommand() {
        let cli = Cli::parse_from([
            "sam2",
            "a.png",
            "--click",
            "0.5,0.5",
            "--click=-0.1,0.9",
            "-o",
            "m.png",
            "--device",
            "0",
        ]);
        assert!(cli.command.is_none() && cli.image.click.len() == 2 && cli.common.device.is_some());
        assert!(matches!(Cli::parse_from(["sam2", "auto", "a.png", "--device", "0"]).command, Some(Command::Auto(_))));
    }
}
