//! The command line.

use clap::{Parser, Subcommand, ValueEnum};
use depth_anything::size::{Fit, Sizing};
use depth_anything::{Colormap, Style};
use jvc_runner::Common;
use jvc_runner::bench::BenchArgs;
use std::path::PathBuf;

/// Depth of pictures with Depth Anything V2: bright is near.
///
/// Examples:
///   depth_anything photo.jpg -o depth.png --colormap spectral
///   depth_anything photo.jpg -o depth.png --16bit
///   depth_anything frames/ -o depths/ --range 0,12
///   depth_anything bench --device 0 --json
#[derive(Debug, Parser)]
#[command(name = "depth_anything", version, verbatim_doc_comment, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Something other than pictures
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The picture (PNG or JPEG), or a folder of frames
    #[arg(required = true)]
    pub input: Option<PathBuf>,
    /// Where the depth goes: a PNG, or for frames a folder
    #[arg(short, long, required = true)]
    pub output: Option<PathBuf>,
    /// Colours instead of grey
    #[arg(long, value_enum)]
    pub colormap: Option<Scale>,
    /// 16 bits a channel instead of 8
    #[arg(long = "16bit")]
    pub sixteen_bit: bool,
    /// Depths that become black and white, so that frames can be compared; by default the least and largest of each picture
    #[arg(long, value_name = "FAR,NEAR", value_parser = range, allow_hyphen_values = true)]
    pub range: Option<[f32; 2]>,
    /// The size at which the network sees the picture
    #[command(flatten)]
    pub sizing: SizingArgs,
    /// Options that every program has
    #[command(flatten)]
    pub common: Common,
}

/// Something other than pictures.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Measures the network and the whole way from a picture to its depth
    Bench {
        /// How often
        #[command(flatten)]
        bench: BenchArgs,
        /// Rows of the picture
        #[arg(long, default_value_t = 518)]
        height: usize,
        /// Columns of the picture
        #[arg(long, default_value_t = 518)]
        width: usize,
        /// The size at which the network sees the picture
        #[command(flatten)]
        sizing: SizingArgs,
    },
}

/// The size at which the network sees the picture.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct SizingArgs {
    /// Pixels of the side that the scale is chosen by
    #[arg(long, default_value_t = 518, value_parser = clap::value_parser!(u16).range(56..))]
    pub side: u16,
    /// Which side that is
    #[arg(long, value_enum, default_value_t = Rule::ShortSide)]
    pub fit: Rule,
}

impl From<SizingArgs> for Sizing {
    fn from(args: SizingArgs) -> Self {
        let fit = match args.fit {
            Rule::ShortSide => Fit::ShortSide,
            Rule::LeastChange => Fit::LeastChange,
        };
        Self { side: args.side.into(), fit }
    }
}

/// How the scale is chosen.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Rule {
    /// The short side, as in the authors' program
    ShortSide,
    /// The side that needs the smaller change, as in transformers' image processor
    LeastChange,
}

/// Colour scales.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Scale {
    Spectral,
    Inferno,
    Magma,
    Plasma,
    Viridis,
    Turbo,
}

impl Args {
    /// How depth becomes a picture.
    pub fn style(&self) -> Style {
        let colormap = self.colormap.map(|scale| match scale {
            Scale::Spectral => Colormap::Spectral,
            Scale::Inferno => Colormap::Inferno,
            Scale::Magma => Colormap::Magma,
            Scale::Plasma => Colormap::Plasma,
            Scale::Viridis => Colormap::Viridis,
            Scale::Turbo => Colormap::Turbo,
        });
        Style { colormap, sixteen_bit: self.sixteen_bit, range: self.range }
    }
}

fn range(text: &str) -> Result<[f32; 2], String> {
    let parsed =
        text.split_once(',').and_then(|(far, near)| Some([far.trim().parse().ok()?, near.trim().parse().ok()?]));
    parsed
        .filter(|[far, near]: &[f32; 2]| far < near)
        .ok_or_else(|| "two numbers, the smaller first, as 0,12".to_owned())
}
