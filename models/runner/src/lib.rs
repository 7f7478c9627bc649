//! What the programs around generated crates share.
//!
//! - [`Common`] holds the options that every program has; `#[command(flatten)]` puts them into its own.
//! - [`device`] finds a Vulkan device by index, name or UUID.
//! - [`weights`] finds the weight file beside the program, by path or in memory, and says what to do when it is not there.
//! - [`memory`] says what a program needs before anything is loaded.
//! - [`progress`] shows how far a long run is, where somebody looks.
//! - [`bench`] measures repeated runs; [`cold_start`] the way from the start of the process to the first result.
//!
//! Model libraries take a [`jvc_runtime::Gpu`] and a [`jvc_runtime::WeightSource`], so an application that owns a Vulkan
//! device lends it with [`jvc_runtime::Gpu::borrow`] and needs nothing of this crate.
//!
//! ```
//! use clap::Parser;
//! use jvc_runner::{Common, jvc_runtime::Gpu, memory::Needs, weights::Generated};
//!
//! /// A program's command line.
//! #[derive(Parser)]
//! struct Args {
//!     #[command(flatten)]
//!     common: Common,
//! }
//!
//! /// Facts of the generated crate, from its constants.
//! const MODEL: Generated = Generated {
//!     name: "model",
//!     folder: concat!(env!("CARGO_MANIFEST_DIR"), "/../generated/model"),
//!     make: "jvc compile model.pt2 --device auto --out generated/model",
//! };
//!
//! fn load(args: &Args, gpu: &Gpu) -> Result<(), Box<dyn std::error::Error>> {
//!     let needs = Needs { weights: 1 << 20, sessions: vec![("model", 1, 4 << 20)] };
//!     println!("{needs}"); // before anything is loaded
//!     let weights = MODEL.find_weights(args.common.weights.as_deref())?;
//!     // let program = Model::load_with(gpu, weights.source(), &args.common.cache)
//!     //     .map_err(|error| MODEL.explain(&weights, error))?;
//!     Ok(())
//! }
//!
//! let args = Args::parse_from(["program", "--device", "0"]);
//! assert_eq!(args.common.device.as_deref(), Some("0"));
//! assert_eq!(jvc_runner::memory::bytes(5 << 20), "5.0 MiB");
//! ```

pub mod bench;
pub mod cold_start;
pub mod device;
pub mod memory;
pub mod progress;
pub mod weights;

pub use jvc_runtime;

use jvc_runtime::{CacheDir, Gpu};
use std::path::PathBuf;

/// Options that every program has.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Common {
    /// Vulkan device: its index, a part of its name, or its UUID; by default the best one
    #[arg(long, value_name = "DEVICE", global = true)]
    pub device: Option<String>,
    /// The weight file that jvc wrote, or the folder that holds it; by default beside the program or in the generated crate
    #[arg(long, value_name = "PATH", global = true)]
    pub weights: Option<PathBuf>,
    /// Where compiled pipelines are kept: `default` (the user's cache folder), `none`, or a folder
    #[arg(long, value_name = "WHERE", default_value = "default", value_parser = cache_dir, global = true)]
    pub cache: CacheDir,
    /// Show no progress
    #[arg(long, global = true)]
    pub quiet: bool,
    /// Tell how long each part took from the start of the process to the first result
    #[arg(long, global = true)]
    pub cold_start: bool,
}

impl Common {
    /// Opens the device that was asked for.
    ///
    /// # Errors
    /// As of [`device::open`].
    pub fn open(&self) -> Result<Gpu, device::DeviceError> {
        device::open(self.device.as_deref())
    }

    /// A progress bar over `total` of `unit`; an invisible one with `--quiet`.
    pub fn progress(&self, total: u64, unit: &str) -> progress::Progress {
        if self.quiet { progress::Progress::hidden() } else { progress::Progress::new(total, unit) }
    }
}

fn cache_dir(text: &str) -> Result<CacheDir, std::convert::Infallible> {
    Ok(match text {
        "default" => CacheDir::Default,
        "none" => CacheDir::None,
        path => CacheDir::Path(path.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        common: Common,
    }

    #[test]
    fn the_pipeline_cache_is_the_users_nowhere_or_a_folder() {
        let cache = |args: &[&str]| Args::parse_from([&["program"], args].concat()).common.cache;
        assert_eq!(cache(&[]), CacheDir::Default);
        assert_eq!(cache(&["--cache", "none"]), CacheDir::None);
        assert_eq!(cache(&["--cache", "some/folder"]), CacheDir::Path("some/folder".into()));
    }
}
