//! SAM 2.1 around a crate that jvc generates: everything but the network itself.
//!
//! - [`Segmenter`] answers clicks, boxes and mask prompts on a picture, whose features it keeps ([`segment`]).
//! - [`automatic`] finds masks of everything in a picture: a grid of clicks, filters, suppression of duplicates, crops.
//! - [`VideoSession`] follows several objects through a video, with prompts on any frame ([`video`]).
//! - [`Mask`] is what comes out: raw, as PNG, over the picture, or as COCO's run lengths ([`mask`]).
//!
//! The network is behind one trait, [`Engine`]; `runner/` implements it with the generated crate.
//!
//! ```
//! use sam2::engine::{DecodeRequest, Decoded, Engine, Geometry, MaskLogits, MemoryRequest, Recall, Upscaled};
//! use sam2::{Click, Picture, Request, Segmenter};
//!
//! /// A network that finds what is brighter than grey, wherever one clicks.
//! struct Bright;
//!
//! impl Engine for Bright {
//!     type Error = std::convert::Infallible;
//!     type Features = Vec<f32>;
//!     fn geometry(&self) -> Geometry {
//!         Geometry { side: 16, channels: 1, memory_channels: 1, max_side: 64, max_prompts: 1, max_points: 1, max_masks: 1, max_memories: 1, max_pointers: 1 }
//!     }
//!     fn encode(&mut self, picture: &Picture) -> Result<Self::Features, Self::Error> {
//!         let at = |i: usize| picture.rgb()[(i / 4 * picture.height() / 4 * picture.width() + i % 4 * picture.width() / 4) * 3];
//!         Ok((0..16).map(|i| f32::from(at(i)) - 128.0).collect())
//!     }
//!     fn decode(&mut self, seen: &Self::Features, _: &DecodeRequest<'_>) -> Result<Decoded, Self::Error> {
//!         Ok(Decoded { masks: seen.repeat(3), ious: vec![0.9, 0.8, 0.7], single: seen.clone(), single_ious: vec![0.9], scores: vec![1.0], pointers: vec![0.0; 4] })
//!     }
//!     fn upscale(&mut self, low: &[f32], (width, height): (usize, usize), _: f32, _: f32) -> Result<Upscaled, Self::Error> {
//!         let at = |i: usize| low[(i / width * 4 / height) * 4 + i % width * 4 / width] > 0.0;
//!         Ok(Upscaled { inside: (0..width * height).map(|i| at(i).into()).collect(), above: vec![1], below: vec![1] })
//!     }
//!     // A network for pictures alone.
//!     fn mask_logits(&mut self, _: &[u8]) -> Result<MaskLogits, Self::Error> { unreachable!() }
//!     fn memorize(&mut self, _: &Self::Features, _: &MemoryRequest<'_>) -> Result<Vec<f32>, Self::Error> { unreachable!() }
//!     fn recall(&mut self, _: &Self::Features, _: &Recall) -> Result<Self::Features, Self::Error> { unreachable!() }
//! }
//!
//! let mut picture = Picture::new(8, 8, vec![0; 192])?;
//! picture.rgb_mut()[..96].fill(255); // the upper half
//! let mut segmenter = Segmenter::new(Bright);
//! let found = segmenter.segment("picture", &picture, &Request { clicks: vec![Click::on(2.0, 2.0)], ..Request::default() })?;
//! let best = found[0].best();
//! assert_eq!(best.mask.area(), 32);
//! assert_eq!(best.mask.to_rle().counts, [0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod automatic;
pub mod boxes;
pub mod engine;
pub mod mask;
pub mod picture;
pub mod resample;
pub mod segment;
pub mod video;

pub use engine::Engine;
pub use mask::Mask;
pub use picture::Picture;
pub use segment::{Click, Request, Segmenter};
pub use video::VideoSession;

/// What can go wrong, around an engine's own errors.
#[derive(Debug, thiserror::Error)]
pub enum Error<E: std::error::Error> {
    /// The engine's.
    #[error("{0}")]
    Engine(E),
    /// A request that cannot be answered, and why.
    #[error("{0}")]
    Request(String),
    /// A picture that cannot be used.
    #[error(transparent)]
    Picture(#[from] picture::PictureError),
}
