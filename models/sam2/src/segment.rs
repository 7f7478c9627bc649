//! Clicks, boxes and mask prompts on a picture whose features are kept, as Meta's `SAM2ImagePredictor` answers them.

use crate::engine::{DecodeRequest, Decoded, Engine};
use crate::mask::Mask;
use crate::picture::Picture;
use crate::{Error, boxes::Rect};
use std::collections::VecDeque;

/// A point of a picture, in its pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Click {
    /// From the left.
    pub x: f32,
    /// From the top.
    pub y: f32,
    /// On the object, or beside it.
    pub on: bool,
}

impl Click {
    /// On the object.
    pub fn on(x: f32, y: f32) -> Self {
        Self { x, y, on: true }
    }

    /// Beside the object.
    pub fn off(x: f32, y: f32) -> Self {
        Self { x, y, on: false }
    }
}

/// How many masks a prompt gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// Three for a single click, which may mean a part or the whole, one for all else.
    #[default]
    Auto,
    /// Three, whatever the prompt.
    Three,
    /// One; where it is not stable, the best of the three.
    One,
}

/// What is asked of a picture.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// Clicks, for each object.
    pub clicks: Vec<Click>,
    /// Boxes in pixels, one for each object; without boxes there is one object.
    pub boxes: Vec<Rect>,
    /// Logits of a mask to begin from: [`Candidate::low`] of an earlier answer.
    pub mask: Option<Vec<f32>>,
    /// How many masks.
    pub output: Output,
}

/// A mask that may be meant.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// It, in the size of the picture.
    pub mask: Mask,
    /// How good the network thinks it, from 0 to 1.
    pub iou: f32,
    /// Its logits as the network gives them, within ±32: a prompt for a next request.
    pub low: Vec<f32>,
}

/// What was found for an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// One or three masks.
    pub candidates: Vec<Candidate>,
    /// Above 0 where the network sees an object.
    pub score: f32,
}

impl Found {
    /// The mask that the network thinks best.
    pub fn best(&self) -> &Candidate {
        let best = self.candidates.iter().max_by(|a, b| a.iou.total_cmp(&b.iou));
        best.expect("there is a candidate")
    }
}

/// Answers requests; keeps the features of the latest pictures.
#[derive(Debug)]
pub struct Segmenter<E: Engine> {
    engine: E,
    kept: VecDeque<(String, E::Features)>,
    capacity: usize,
}

impl<E: Engine> Segmenter<E> {
    /// Keeps the features of four pictures.
    pub fn new(engine: E) -> Self {
        Self { engine, kept: VecDeque::new(), capacity: 4 }
    }

    /// Keeps the features of this many pictures, of one at least.
    pub fn with_capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity.max(1);
        self
    }

    /// The engine.
    pub fn engine(&mut self) -> &mut E {
        &mut self.engine
    }

    /// The engine, for something else.
    pub fn into_engine(self) -> E {
        self.engine
    }

    /// Features of a picture: those kept under this key, else newly made and kept. A key stands for one picture: its path and time,
    /// say, or a hash.
    ///
    /// # Errors
    /// The engine's.
    pub fn embed(&mut self, key: &str, picture: &Picture) -> Result<E::Features, Error<E::Error>> {
        if let Some(at) = self.kept.iter().position(|(kept, _)| kept == key) {
            let entry = self.kept.remove(at).expect("it is there");
            self.kept.push_front(entry);
        } else {
            check_size(&self.engine, picture)?;
            let features = self.engine.encode(picture).map_err(Error::Engine)?;
            self.kept.truncate(self.capacity - 1);
            self.kept.push_front((key.to_owned(), features));
        }
        Ok(self.kept[0].1.clone())
    }

    /// Whether a picture's features are kept.
    pub fn keeps(&self, key: &str) -> bool {
        self.kept.iter().any(|(kept, _)| kept == key)
    }

    /// Masks for a request, one [`Found`] an object.
    ///
    /// # Errors
    /// A request without prompts or with too many; the engine's.
    pub fn segment(&mut self, key: &str, picture: &Picture, request: &Request) -> Result<Vec<Found>, Error<E::Error>> {
        let prompts = prompts(&self.engine, picture, request)?;
        let features = self.embed(key, picture)?;
        let geometry = self.engine.geometry();
        let mut found = Vec::with_capacity(prompts.len());
        for some in prompts.chunks(geometry.max_prompts) {
            let points: Vec<f32> = some.iter().flat_map(|p| &p.0).copied().collect();
            let labels: Vec<i32> = some.iter().flat_map(|p| &p.1).copied().collect();
            let mask = request.mask.as_deref();
            let ask = DecodeRequest { points: &points, labels: &labels, prompts: some.len(), mask, no_memory: true };
            let decoded = self.engine.decode(&features, &ask).map_err(Error::Engine)?;
            let three = match request.output {
                Output::Auto => some[0].1.len() == 1,
                Output::Three => true,
                Output::One => false,
            };
            for i in 0..some.len() {
                found.push(self.enlarge(&decoded, i, three, picture)?);
            }
        }
        Ok(found)
    }

    /// The candidates of the `i`th prompt.
    fn enlarge(
        &mut self,
        decoded: &Decoded,
        i: usize,
        three: bool,
        picture: &Picture,
    ) -> Result<Found, Error<E::Error>> {
        let n = self.engine.geometry().low_elems();
        let (low, ious) = match three {
            true => (&decoded.masks[i * 3 * n..][..3 * n], &decoded.ious[i * 3..][..3]),
            false => (&decoded.single[i * n..][..n], &decoded.single_ious[i..][..1]),
        };
        let masks = enlarged(&mut self.engine, low, (picture.width(), picture.height()))?;
        let candidates = masks.into_iter().zip(ious).zip(low.chunks(n)).map(|((mask, iou), low)| Candidate {
            mask,
            iou: *iou,
            low: low.iter().map(|v| v.clamp(-32.0, 32.0)).collect(),
        });
        Ok(Found { candidates: candidates.collect(), score: decoded.scores[i] })
    }
}

/// Logits `[masks, h, h]` as masks of a picture's size.
pub(crate) fn enlarged<E: Engine>(
    engine: &mut E,
    low: &[f32],
    size: (usize, usize),
) -> Result<Vec<Mask>, Error<E::Error>> {
    let geometry = engine.geometry();
    let mut masks = vec![];
    for some in low.chunks(geometry.low_elems() * geometry.max_masks) {
        let large = engine.upscale(some, size, 0.0, 1.0).map_err(Error::Engine)?;
        masks.extend(large.inside.chunks(size.0 * size.1).map(|inside| Mask::new(size.0, size.1, inside.to_vec())));
    }
    Ok(masks)
}

pub(crate) fn check_size<E: Engine>(engine: &E, picture: &Picture) -> Result<(), Error<E::Error>> {
    let most = engine.geometry().max_side;
    if picture.width().max(picture.height()) > most {
        let (w, h) = (picture.width(), picture.height());
        return Err(Error::Request(format!(
            "the picture is {w} × {h}: this program takes sides up to {most} (export.py --max-side)"
        )));
    }
    Ok(())
}

/// Points and labels of a prompt, in pixels of the network's picture.
pub(crate) type Points = (Vec<f32>, Vec<i32>);

/// Corners of a box first, then clicks.
pub(crate) fn points_of(side: usize, size: (usize, usize), clicks: &[Click], rect: Option<&Rect>) -> Points {
    let corners = rect.into_iter().flat_map(|r| [(r[0], r[1], 2), (r[2], r[3], 3)]);
    let clicks = clicks.iter().map(|c| (c.x, c.y, i32::from(c.on)));
    let place = |v: f32, length: usize| v / length as f32 * side as f32;
    corners.chain(clicks).map(|(x, y, label)| ([place(x, size.0), place(y, size.1)], label)).fold(
        Points::default(),
        |(mut points, mut labels), (at, label)| {
            points.extend(at);
            labels.push(label);
            (points, labels)
        },
    )
}

fn prompts<E: Engine>(engine: &E, picture: &Picture, request: &Request) -> Result<Vec<Points>, Error<E::Error>> {
    let geometry = engine.geometry();
    let size = (picture.width(), picture.height());
    let wrong = |text: String| Err(Error::Request(text));
    if let Some(mask) = request.mask.as_ref().filter(|m| m.len() != geometry.low_elems()) {
        return wrong(format!("a mask prompt has {} logits, not {}", geometry.low_elems(), mask.len()));
    }
    let n = request.clicks.len() + if request.boxes.is_empty() { 0 } else { 2 };
    if n > geometry.max_points {
        return wrong(format!(
            "{n} points in one prompt (a box counts as two): the program takes {}",
            geometry.max_points
        ));
    }
    if n == 0 {
        return match request.mask {
            // As upstream: a point that is none.
            Some(_) => Ok(vec![(vec![0.0; 2], vec![-1])]),
            None => wrong("a request needs a click, a box or a mask".to_owned()),
        };
    }
    let objects = match request.boxes.as_slice() {
        [] => vec![points_of(geometry.side, size, &request.clicks, None)],
        boxes => boxes.iter().map(|b| points_of(geometry.side, size, &request.clicks, Some(b))).collect(),
    };
    Ok(objects)
}
