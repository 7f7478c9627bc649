//! The crate that jvc generates from SAM 2.1, behind [`sam2::Engine`]: what an application links.
//!
//! ```no_run
//! use jvc_runner::jvc_runtime::{Gpu, Select};
//! use sam2::{Click, Picture, Request, Segmenter};
//! use sam2_runner::{Network, GENERATED};
//!
//! let gpu = Gpu::open(&Select::Auto)?;
//! let weights = GENERATED.find_weights(None)?;
//! let mut segmenter = Segmenter::new(Network::load(&gpu, weights.source(), &Default::default())?);
//! let picture = Picture::read("image.png".as_ref())?;
//! let click = Request { clicks: vec![Click::on(320.0, 240.0)], ..Request::default() };
//! let found = segmenter.segment("image.png", &picture, &click)?;
//! found[0].best().mask.write("mask.png".as_ref())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On an application's own Vulkan device, with weights that it holds in memory, two pictures at the same time:
//!
//! ```no_run
//! use jvc_runner::jvc_runtime::{BorrowedDevice, CacheDir, Gpu, WeightSource};
//! use sam2::{Click, Picture, Request, Segmenter};
//! use sam2_runner::Network;
//!
//! fn both(device: BorrowedDevice, weights: &[u8], pictures: [Picture; 2]) -> Result<(), Box<dyn std::error::Error>> {
//!     // SAFETY: the handles are the application's, and outlive everything below.
//!     let gpu = unsafe { Gpu::borrow(device) }?;
//!     let first = Network::load(&gpu, WeightSource::Bytes(weights), &CacheDir::None)?;
//!     let second = first.another()?; // shares weights and kernels
//!     std::thread::scope(|threads| {
//!         for (network, picture) in [first, second].into_iter().zip(&pictures) {
//!             threads.spawn(move || {
//!                 let click = Request { clicks: vec![Click::on(320.0, 240.0)], ..Request::default() };
//!                 Segmenter::new(network).segment("it", picture, &click)
//!             });
//!         }
//!     });
//!     Ok(())
//! }
//! ```

mod network;

pub use network::{Features, GENERATED, Network, needs};
