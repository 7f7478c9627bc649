//! Depth Anything V2 on a Vulkan device: the generated crate behind the library `depth_anything`.
//!
//! ```no_run
//! use depth_anything::{Estimator, Picture, Style, size::Sizing};
//! use depth_anything_runner::engine::{Engine, GENERATED};
//! use jvc_runner::jvc_runtime::CacheDir;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = jvc_runner::device::open(None)?;
//! let engine = Engine::load(&gpu, &GENERATED.find_weights(None)?, &CacheDir::Default)?;
//! let mut estimator = Estimator::new(engine, Sizing::default());
//! let depth = estimator.depth(&Picture::read("photo.jpg".as_ref())?)?;
//! depth.write("depth.png".as_ref(), &Style { sixteen_bit: true, ..Style::default() })?;
//! # Ok(())
//! # }
//! ```
//!
//! On an application's own Vulkan device, with weights that it holds in memory. Up to [`engine::IN_FLIGHT`] pictures are on the device at the
//! same time: submit one more before waiting for the one before.
//!
//! ```no_run
//! use depth_anything::Network;
//! use depth_anything_runner::engine::Engine;
//! use jvc_runner::jvc_runtime::{BorrowedDevice, CacheDir, Gpu};
//! use jvc_runner::weights::Weights;
//!
//! fn two(device: BorrowedDevice, weights: Vec<u8>, pixels: [&[u8]; 2]) -> Result<[Vec<f32>; 2], Box<dyn std::error::Error>> {
//!     // SAFETY: the handles are the application's, and outlive everything below.
//!     let gpu = unsafe { Gpu::borrow(device) }?;
//!     let mut engine = Engine::load(&gpu, &Weights::Bytes(weights.into()), &CacheDir::None)?;
//!     let first = engine.submit(pixels[0], [518, 518])?;
//!     let second = engine.submit(pixels[1], [518, 686])?;
//!     Ok([engine.wait(first)?, engine.wait(second)?])
//! }
//! ```

pub mod engine;
