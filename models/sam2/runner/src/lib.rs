//! The crate that jvc generates from SAM 2.1, behind [`sam2::Engine`]: what an application links.
//!
//! ```no_run
//! use jvc_runner::jvc_runtime::{Gpu, Select};
//! use sam2::{Click, Picture, Request, Segmenter};
//! use sam2_runner::{Network, GENERATED};
//!
//! let gpu = Gpu::open(&Select::Auto)?; // or Gpu::borrow, with the application's own device
//! let weights = GENERATED.find_weights(None)?;
//! let mut segmenter = Segmenter::new(Network::load(&gpu, weights.source(), &Default::default())?);
//! let picture = Picture::read("image.png".as_ref())?;
//! let click = Request { clicks: vec![Click::on(320.0, 240.0)], ..Request::default() };
//! let found = segmenter.segment("image.png", &picture, &click)?;
//! found[0].best().mask.write("mask.png".as_ref())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod network;

pub use network::{Features, GENERATED, Network, needs};
