//! Depth Anything V2 on a Vulkan device: the generated crate behind the library `depth_anything`.
//!
//! ```no_run
//! use depth_anything::{Estimator, Picture, Style, size::Sizing};
//! use depth_anything_runner::engine::{Engine, GENERATED};
//! use jvc_runner::jvc_runtime::CacheDir;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = jvc_runner::device::open(None)?; // or an application's own: Gpu::borrow
//! let engine = Engine::load(&gpu, &GENERATED.find_weights(None)?, &CacheDir::Default)?;
//! let mut estimator = Estimator::new(engine, Sizing::default());
//! let depth = estimator.depth(&Picture::read("photo.jpg".as_ref())?)?;
//! depth.write("depth.png".as_ref(), &Style { sixteen_bit: true, ..Style::default() })?;
//! # Ok(())
//! # }
//! ```

pub mod engine;
