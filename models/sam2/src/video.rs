//! Objects followed through a video, as transformers' `Sam2VideoModel` does it: each frame looks at memories of the frames with
//! prompts and of the six before it, and at pointers to the object from up to sixteen frames.
//!
//! A prompt is answered at once, on its own frame. A frame's first prompt, unless it was followed before, makes it one of the
//! *prompted* frames of the object, which are always remembered; a later one only corrects it. [`VideoSession::propagate`] then goes
//! through the video in either direction.

mod bank;

use crate::boxes::Rect;
use crate::engine::{DecodeRequest, Engine, MemoryRequest};
use crate::mask::Mask;
use crate::picture::Picture;
use crate::resample::antialiased;
use crate::segment::{Click, Points, check_size, enlarged, points_of};
use crate::{Error, Segmenter};
use bank::{Bank, Given, Seen};
use std::sync::Arc;

/// Logit of a mask where there is no object.
const NO_OBJECT: f32 = -1024.0;

/// Where the pictures of a video come from.
pub trait Frames {
    /// How many there are.
    fn count(&self) -> usize;

    /// One of them; all have one size.
    ///
    /// # Errors
    /// A file that cannot be read.
    fn frame(&self, index: usize) -> Result<Picture, crate::picture::PictureError>;
}

impl Frames for Vec<Picture> {
    fn count(&self) -> usize {
        self.len()
    }

    fn frame(&self, index: usize) -> Result<Picture, crate::picture::PictureError> {
        Ok(self[index].clone())
    }
}

/// Files in order.
impl Frames for Vec<std::path::PathBuf> {
    fn count(&self) -> usize {
        self.len()
    }

    fn frame(&self, index: usize) -> Result<Picture, crate::picture::PictureError> {
        Picture::read(&self[index])
    }
}

/// A prompt for one object on one frame.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Clicks, and a box before them.
    Points {
        /// Clicks in pixels.
        clicks: Vec<Click>,
        /// A box in pixels.
        rect: Option<Rect>,
    },
    /// The object itself, taken as it is.
    Mask(Mask),
}

/// The masks of a frame.
#[derive(Debug, Clone, PartialEq)]
pub struct FrameMasks {
    /// Which frame.
    pub frame: usize,
    /// Object, mask, and a score that is above 0 where the network sees the object; in the order in which objects were added.
    pub objects: Vec<(u32, Mask, f32)>,
}

/// Which way to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To later frames.
    Forwards,
    /// To earlier frames.
    Backwards,
}

/// Objects in a video.
pub struct VideoSession<E: Engine, F: Frames> {
    engine: Segmenter<E>,
    frames: F,
    objects: Vec<(u32, Bank)>,
}

impl<E: Engine, F: Frames> VideoSession<E, F> {
    /// Without objects yet.
    pub fn new(engine: E, frames: F) -> Self {
        Self { engine: Segmenter::new(engine).with_capacity(2), frames, objects: vec![] }
    }

    /// Frames of the video.
    pub fn count(&self) -> usize {
        self.frames.count()
    }

    /// The objects that are followed.
    pub fn objects(&self) -> Vec<u32> {
        self.objects.iter().map(|(id, _)| *id).collect()
    }

    /// Stops following an object.
    pub fn forget(&mut self, object: u32) {
        self.objects.retain(|(id, _)| *id != object);
    }

    /// The engine, for something else.
    pub fn into_engine(self) -> E {
        self.engine.into_engine()
    }

    /// Says what an object is on a frame, in place of what was said of it there before, and finds the masks of all objects on that
    /// frame. An object that was not named before is followed from now on.
    ///
    /// # Errors
    /// A frame that does not exist; a prompt without points or with too many; a mask of another size; the engine's.
    pub fn prompt(&mut self, frame: usize, object: u32, prompt: &Prompt) -> Result<FrameMasks, Error<E::Error>> {
        let picture = self.picture(frame)?;
        let given = self.given(&picture, prompt)?;
        if !self.objects.iter().any(|(id, _)| *id == object) {
            self.objects.push((object, Bank::default()));
        }
        self.frame(frame, Direction::Forwards, Some((object, given)))
    }

    /// Follows all objects from a frame on, to the end of the video, over at most `most` further frames; `masks` is given each frame's
    /// and says whether to go on.
    ///
    /// # Errors
    /// No object, or one without a prompt; the engine's.
    pub fn propagate(
        &mut self,
        from: usize,
        direction: Direction,
        most: Option<usize>,
        mut masks: impl FnMut(FrameMasks) -> bool,
    ) -> Result<(), Error<E::Error>> {
        if self.objects.is_empty() {
            return Err(Error::Request("no object is followed: give a prompt first".to_owned()));
        }
        let last = self.count().saturating_sub(1);
        let most = most.unwrap_or(last);
        let order: Vec<usize> = match direction {
            Direction::Forwards => (from..=last.min(from.saturating_add(most))).collect(),
            // As upstream: nothing lies before the first frame.
            Direction::Backwards if from == 0 => vec![],
            Direction::Backwards => (from.saturating_sub(most)..=from).rev().collect(),
        };
        for frame in order {
            if !masks(self.frame(frame, direction, None)?) {
                break;
            }
        }
        Ok(())
    }

    fn picture(&self, frame: usize) -> Result<Picture, Error<E::Error>> {
        if frame >= self.count() {
            return Err(Error::Request(format!("frame {frame} of a video of {}", self.count())));
        }
        Ok(self.frames.frame(frame)?)
    }

    /// A prompt in the network's terms.
    fn given(&mut self, picture: &Picture, prompt: &Prompt) -> Result<Given, Error<E::Error>> {
        let geometry = self.engine.engine().geometry();
        let size = (picture.width(), picture.height());
        match prompt {
            Prompt::Points { clicks, rect } => {
                let points = points_of(geometry.side, size, clicks, rect.as_ref());
                match points.1.len() {
                    0 => Err(Error::Request("a prompt needs a click, a box or a mask".to_owned())),
                    n if n > geometry.max_points => {
                        let most = geometry.max_points;
                        Err(Error::Request(format!(
                            "{n} points in one prompt (a box counts as two): the program takes {most}"
                        )))
                    }
                    _ => Ok(Given::Points(points)),
                }
            }
            Prompt::Mask(mask) if (mask.width(), mask.height()) != size => {
                let (w, h) = (mask.width(), mask.height());
                Err(Error::Request(format!("a mask of {w} × {h} for frames of {} × {}", size.0, size.1)))
            }
            Prompt::Mask(mask) => {
                let side = geometry.side;
                let values: Vec<f32> = mask.inside().iter().map(|v| f32::from(u8::from(*v != 0))).collect();
                let resized = antialiased(&values, size, (side, side));
                Ok(Given::Mask(resized.iter().map(|v| u8::from(*v >= 0.5)).collect()))
            }
        }
    }

    /// All objects on one frame, of which one may have a new prompt.
    fn frame(
        &mut self,
        frame: usize,
        direction: Direction,
        prompt: Option<(u32, Given)>,
    ) -> Result<FrameMasks, Error<E::Error>> {
        let picture = self.picture(frame)?;
        check_size(self.engine.engine(), &picture)?;
        let features = self.engine.embed(&frame.to_string(), &picture)?;
        let mut fresh: Vec<usize> = vec![];
        let mut objects = std::mem::take(&mut self.objects);
        let count = self.count();
        let mut step = || {
            for (at, (id, bank)) in objects.iter_mut().enumerate() {
                let new = prompt.as_ref().filter(|(object, _)| object == id).map(|(_, given)| given);
                // A frame with a prompt keeps its answer.
                if new.is_none() && bank.prompted.contains_key(&frame) {
                    continue;
                }
                let first = new.is_some() && !bank.followed.contains(&frame);
                let seen = self.look(&features, bank, frame, count, direction, new, first)?;
                bank.store(frame, first, seen);
                fresh.push(at);
            }
            let certain = prompt.is_some();
            for at in &fresh {
                let seen = objects[*at].1.seen_mut(frame).expect("just stored");
                let given = seen.given.clone();
                let ask = MemoryRequest {
                    low: &seen.low,
                    given: given.as_ref().map(|v| v.as_slice()),
                    binarize: certain,
                    score: seen.score,
                };
                let mut memory = self.engine.engine().memorize(&features, &ask).map_err(Error::Engine)?;
                memory.iter_mut().for_each(|v| *v = bfloat16(*v));
                seen.memory = Arc::new(memory);
            }
            Ok(())
        };
        let result = step();
        let masks = result.and_then(|()| {
            let mut found = vec![];
            for (id, bank) in &mut objects {
                let seen = bank.seen_mut(frame).expect("every object was looked for");
                let (low, score) = (seen.low.clone(), seen.score);
                let mask = enlarged(self.engine.engine(), &low, (picture.width(), picture.height()))?;
                found.push((*id, mask.into_iter().next().expect("one mask"), score));
            }
            Ok(FrameMasks { frame, objects: found })
        });
        self.objects = objects;
        masks
    }

    /// Looks for one object on one frame.
    #[expect(clippy::too_many_arguments, reason = "what the answer depends on, all of different kinds")]
    fn look(
        &mut self,
        features: &E::Features,
        bank: &Bank,
        frame: usize,
        count: usize,
        direction: Direction,
        new: Option<&Given>,
        first: bool,
    ) -> Result<Seen, Error<E::Error>> {
        let engine = self.engine.engine();
        if let Some(Given::Mask(given)) = new {
            return taken(engine, features, given);
        }
        let points = match new {
            Some(Given::Points(points)) => Some(points),
            Some(Given::Mask(_)) | None => None,
        };
        if first {
            return decoded(engine, features, points, true);
        }
        if bank.prompted.is_empty() {
            return Err(Error::Request("an object without a prompt cannot be followed".to_owned()));
        }
        let recall = bank.recall(&engine.geometry(), frame, count, direction);
        let reminded = engine.recall(features, &recall).map_err(Error::Engine)?;
        decoded(engine, &reminded, points, false)
    }
}

/// A mask that was given is the answer; the decoder only finds its pointer.
fn taken<E: Engine>(engine: &mut E, features: &E::Features, given: &[u8]) -> Result<Seen, Error<E::Error>> {
    let logits = engine.mask_logits(given).map_err(Error::Engine)?;
    let (points, labels) = nothing();
    let mask = Some(logits.prompt.as_slice());
    let ask = DecodeRequest { points: &points, labels: &labels, prompts: 1, mask, no_memory: false };
    let out = engine.decode(features, &ask).map_err(Error::Engine)?;
    let width = engine.geometry().channels;
    let is_there = given.iter().any(|v| *v != 0);
    let pointer = match is_there {
        true => out.pointers[(1 + best(&out.ious)) * width..][..width].to_vec(),
        false => logits.no_pointer,
    };
    let score = if is_there { 10.0 } else { -10.0 };
    Ok(Seen { low: logits.low, given: Some(Arc::new(given.to_vec())), pointer, score, memory: Arc::default() })
}

/// The decoder's answer: the best of three masks for at most one point, else the single one.
fn decoded<E: Engine>(
    engine: &mut E,
    features: &E::Features,
    points: Option<&Points>,
    no_memory: bool,
) -> Result<Seen, Error<E::Error>> {
    let none = nothing();
    let (places, labels) = points.unwrap_or(&none);
    let ask = DecodeRequest { points: places, labels, prompts: 1, mask: None, no_memory };
    let out = engine.decode(features, &ask).map_err(Error::Engine)?;
    let geometry = engine.geometry();
    let (n, width) = (geometry.low_elems(), geometry.channels);
    let (low, token) = match labels.len() {
        0 | 1 => {
            let best = best(&out.ious);
            (&out.masks[best * n..][..n], 1 + best)
        }
        _ => (&out.single[..n], 0),
    };
    let score = out.scores[0];
    let low = if score > 0.0 { low.to_vec() } else { vec![NO_OBJECT; n] };
    let pointer = out.pointers[token * width..][..width].to_vec();
    Ok(Seen { low, given: None, pointer, score, memory: Arc::default() })
}

/// The nearest number with eight bits of mantissa, of two the even one: memories are kept so, as upstream keeps them.
fn bfloat16(v: f32) -> f32 {
    let bits = v.to_bits();
    f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// As upstream without a prompt: a point that is none.
fn nothing() -> Points {
    (vec![0.0; 2], vec![-1])
}

/// The first of the largest.
fn best(values: &[f32]) -> usize {
    (1..values.len()).fold(0, |best, i| if values[i] > values[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memories_are_rounded_to_the_nearest_and_then_to_the_even() {
        let ulp = 2f32.powi(-7);
        let near = [1.0 + ulp * 0.49, 1.0 + ulp * 0.5, 1.0 + ulp * 1.5, -1.0 - ulp * 0.51, 0.0, 3.0];
        assert_eq!(near.map(bfloat16), [1.0, 1.0, 1.0 + ulp * 2.0, -1.0 - ulp, 0.0, 3.0]);
        assert_eq!(best(&[0.1, 0.5, 0.5]), 1, "the first of the largest");
    }
}
