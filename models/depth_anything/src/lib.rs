//! Depth Anything V2 around a crate that jvc generates: everything but the network itself.
//!
//! A [`Picture`] of any size is brought to a size that the network takes ([`size`]), by the same resampling as upstream's
//! image processor, to the bit ([`resize::bicubic_bytes`]). The network ([`Network`]; `runner/` implements it with the
//! generated crate) gives inverse depth, which is brought back to the picture's size as upstream does
//! ([`resize::bicubic_floats`]) and written as grey or coloured PNG ([`Depth`]).
//!
//! ```
//! use depth_anything::{Estimator, Network, Picture, size::Sizing};
//!
//! /// A network that takes bright for near.
//! struct Bright;
//!
//! impl Network for Bright {
//!     type Error = std::convert::Infallible;
//!     type Run = Vec<f32>;
//!     fn submit(&mut self, pixels: &[u8], _size: [usize; 2]) -> Result<Self::Run, Self::Error> {
//!         Ok(pixels.chunks(3).map(|rgb| f32::from(rgb[0])).collect())
//!     }
//!     fn wait(&mut self, run: Self::Run) -> Result<Vec<f32>, Self::Error> {
//!         Ok(run)
//!     }
//! }
//!
//! let picture = Picture::new(640, 480, vec![200; 640 * 480 * 3]).expect("three bytes a pixel");
//! let depth = Estimator::new(Bright, Sizing::default()).depth(&picture)?;
//! assert_eq!((depth.width, depth.height), (640, 480));
//! assert!(depth.values.iter().all(|value| (value - 200.0).abs() < 1e-3));
//! # Ok::<(), std::convert::Infallible>(())
//! ```

pub mod depth;
pub mod picture;
pub mod resize;
pub mod size;

pub use depth::{Colormap, Depth, Style};
pub use picture::{Picture, PictureError};

use size::Sizing;

/// The compiled network: pixels in, inverse depth out. Several runs may be in flight.
pub trait Network {
    /// What can go wrong.
    type Error;
    /// A run in flight.
    type Run;

    /// Starts a run: `pixels` are rows of RGB bytes, `size` height and width, multiples of [`size::PATCH`].
    ///
    /// # Errors
    /// Those of the device, and sizes that the network was not exported for.
    fn submit(&mut self, pixels: &[u8], size: [usize; 2]) -> Result<Self::Run, Self::Error>;

    /// Waits for a run: inverse depth, as many values as the picture had pixels.
    ///
    /// # Errors
    /// Those of the device.
    fn wait(&mut self, run: Self::Run) -> Result<Vec<f32>, Self::Error>;
}

/// Values of a generated crate's output, which are the bits of float16 where the program computes in it.
pub trait Values {
    /// As f32.
    fn to_f32(&self) -> Vec<f32>;
}

impl Values for Vec<f32> {
    fn to_f32(&self) -> Vec<f32> {
        self.clone()
    }
}

impl Values for Vec<u16> {
    fn to_f32(&self) -> Vec<f32> {
        self.iter().map(|bits| half::f16::from_bits(*bits).to_f32()).collect()
    }
}

/// Depth of pictures, by a network.
#[derive(Debug)]
pub struct Estimator<N> {
    network: N,
    sizing: Sizing,
}

/// A picture in flight.
#[derive(Debug)]
#[must_use = "its run stays in flight until it is waited for"]
pub struct Pending<R> {
    run: R,
    network_size: [usize; 2],
    picture_size: [usize; 2],
}

impl<N: Network> Estimator<N> {
    /// An estimator that brings pictures to these sizes.
    pub fn new(network: N, sizing: Sizing) -> Self {
        Self { network, sizing }
    }

    /// Inverse depth of a picture, at its size: large is near; only ratios of differences mean something.
    ///
    /// # Errors
    /// Those of the network.
    pub fn depth(&mut self, picture: &Picture) -> Result<Depth, N::Error> {
        let pending = self.submit(picture)?;
        self.wait(pending)
    }

    /// Starts on a picture, and returns while the device computes.
    ///
    /// # Errors
    /// Those of the network.
    pub fn submit(&mut self, picture: &Picture) -> Result<Pending<N::Run>, N::Error> {
        let picture_size = [picture.height, picture.width];
        let network_size = self.sizing.network_size(picture_size);
        let pixels = resize::bicubic_bytes(&picture.pixels, picture_size, network_size);
        Ok(Pending { run: self.network.submit(&pixels, network_size)?, network_size, picture_size })
    }

    /// Waits for a picture's depth.
    ///
    /// # Errors
    /// Those of the network.
    pub fn wait(&mut self, pending: Pending<N::Run>) -> Result<Depth, N::Error> {
        let values = self.network.wait(pending.run)?;
        let [height, width] = pending.picture_size;
        Ok(Depth { width, height, values: resize::bicubic_floats(&values, pending.network_size, pending.picture_size) })
    }

    /// The network.
    pub fn network(&mut self) -> &mut N {
        &mut self.network
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_in_float16_is_widened_exactly() {
        assert_eq!(vec![0x3c00u16, 0xc500, 0x0001].to_f32(), [1.0, -5.0, 2.0f32.powi(-24)]);
    }
}
