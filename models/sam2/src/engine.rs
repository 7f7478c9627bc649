//! The network behind one trait: six entry points, whose programs `export.py` writes. All tensors are row-major.
//!
//! With S the side of the network's picture (1024): masks come with h = S/4 rows and columns, features with t = S/16.

use crate::picture::Picture;

/// Sizes of a network, and limits of its entry points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Side of the network's square picture: 1024.
    pub side: usize,
    /// Channels of the features, also of a pointer: 256.
    pub channels: usize,
    /// Channels of a memory: 64.
    pub memory_channels: usize,
    /// Largest side of a picture.
    pub max_side: usize,
    /// Prompts decoded at once.
    pub max_prompts: usize,
    /// Points of one prompt.
    pub max_points: usize,
    /// Masks enlarged at once.
    pub max_masks: usize,
    /// Memories that are looked at.
    pub max_memories: usize,
    /// Pointers that are looked at.
    pub max_pointers: usize,
}

impl Geometry {
    /// Side of a mask as the network gives it.
    pub fn low(&self) -> usize {
        self.side / 4
    }

    /// Elements of a mask as the network gives it.
    pub fn low_elems(&self) -> usize {
        self.low() * self.low()
    }
}

/// Prompts for one picture, each for one object; all have equally many points.
#[derive(Debug, Clone, Copy)]
pub struct DecodeRequest<'a> {
    /// `[prompts, points, 2]`: x and y in pixels of the network's picture.
    pub points: &'a [f32],
    /// `[prompts, points]`: 1 inside, 0 outside, 2 and 3 the corners of a box, −1 no point.
    pub labels: &'a [i32],
    /// Number of prompts.
    pub prompts: usize,
    /// Logits `[h, h]` of a mask to begin from.
    pub mask: Option<&'a [f32]>,
    /// Adds the embedding that says that there is no memory: for pictures, and for frames with the first prompt.
    pub no_memory: bool,
}

/// What comes of prompts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Decoded {
    /// Logits of three masks, `[prompts, 3, h, h]`.
    pub masks: Vec<f32>,
    /// How good the network thinks them, `[prompts, 3]`.
    pub ious: Vec<f32>,
    /// Logits of the one mask of unambiguous prompts, `[prompts, h, h]`.
    pub single: Vec<f32>,
    /// How good that is, `[prompts]`.
    pub single_ious: Vec<f32>,
    /// Above 0 where there is an object, `[prompts]`.
    pub scores: Vec<f32>,
    /// Pointers to the object by each mask, first by the single one, `[prompts, 4, channels]`.
    pub pointers: Vec<f32>,
}

/// Masks of a picture's size.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Upscaled {
    /// 1 where the logit is above the threshold, else 0, `[masks, height, width]`.
    pub inside: Vec<u8>,
    /// Pixels above threshold + offset, `[masks]`.
    pub above: Vec<i32>,
    /// Pixels above threshold − offset, `[masks]`.
    pub below: Vec<i32>,
}

/// A mask that was given for a frame, as the network wants it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MaskLogits {
    /// Its logits `[h, h]`.
    pub low: Vec<f32>,
    /// The mask prompt by which its pointer is found, `[h, h]`.
    pub prompt: Vec<f32>,
    /// The pointer to no object, `[channels]`.
    pub no_pointer: Vec<f32>,
}

/// A frame's mask on its way into memory.
#[derive(Debug, Clone, Copy)]
pub struct MemoryRequest<'a> {
    /// Logits `[h, h]`.
    pub low: &'a [f32],
    /// Takes the place of the logits: 0 and 1, `[S, S]`.
    pub given: Option<&'a [u8]>,
    /// The mask comes from a prompt, so that its inside is certain.
    pub binarize: bool,
    /// Above 0 where there is an object.
    pub score: f32,
}

/// What a frame is told of other frames.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recall {
    /// `[memories, t·t, memory_channels]`.
    pub memory: Vec<f32>,
    /// Rows of the temporal embedding, `[memories]`.
    pub times: Vec<i32>,
    /// `[pointers, channels]`.
    pub pointers: Vec<f32>,
    /// Frames since each pointer over the most there can be, `[pointers]`.
    pub offsets: Vec<f32>,
}

/// The network.
pub trait Engine {
    /// What can go wrong in a run.
    type Error: std::error::Error;
    /// Features of a picture, wherever they are kept; clones share them.
    type Features: Clone;

    /// Sizes and limits.
    fn geometry(&self) -> Geometry;

    /// Resizes and looks at a picture.
    ///
    /// # Errors
    /// A side beyond [`Geometry::max_side`]; those of the device.
    fn encode(&mut self, picture: &Picture) -> Result<Self::Features, Self::Error>;

    /// Answers prompts.
    ///
    /// # Errors
    /// More than the limits; those of the device.
    fn decode(&mut self, features: &Self::Features, request: &DecodeRequest<'_>) -> Result<Decoded, Self::Error>;

    /// Enlarges masks `[masks, h, h]` to `(width, height)`.
    ///
    /// # Errors
    /// More than [`Geometry::max_masks`]; those of the device.
    fn upscale(
        &mut self,
        low: &[f32],
        size: (usize, usize),
        threshold: f32,
        offset: f32,
    ) -> Result<Upscaled, Self::Error>;

    /// Prepares a mask `[S, S]` of 0 and 1 that was given for a frame.
    ///
    /// # Errors
    /// Those of the device.
    fn mask_logits(&mut self, given: &[u8]) -> Result<MaskLogits, Self::Error>;

    /// A frame's memory of an object, `[t·t, memory_channels]`.
    ///
    /// # Errors
    /// Those of the device.
    fn memorize(&mut self, features: &Self::Features, request: &MemoryRequest<'_>) -> Result<Vec<f32>, Self::Error>;

    /// Features that know what was seen in other frames.
    ///
    /// # Errors
    /// More than the limits; those of the device.
    fn recall(&mut self, features: &Self::Features, recall: &Recall) -> Result<Self::Features, Self::Error>;
}
