//! What is remembered of one object, and what a frame is told of it.

use super::Direction;
use crate::engine::{Geometry, Recall};
use crate::segment::Points;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Followed frames before a frame that it looks at.
const MEMORIES: usize = 6;
/// Frames over which pointers are kept.
const POINTERS: usize = 16;

/// A prompt in the network's terms.
#[derive(Debug, Clone)]
pub(super) enum Given {
    /// Points and labels.
    Points(Points),
    /// A mask `[S, S]` of 0 and 1.
    Mask(Vec<u8>),
}

/// What was seen of an object on a frame.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// Logits of its mask.
    pub(super) low: Vec<f32>,
    /// The mask that was given, in the network's size.
    pub(super) given: Option<Arc<Vec<u8>>>,
    /// Pointer to it.
    pub(super) pointer: Vec<f32>,
    /// Above 0 where it is there.
    pub(super) score: f32,
    /// The frame's memory of it.
    pub(super) memory: Arc<Vec<f32>>,
}

/// All that was seen of an object.
#[derive(Debug, Default)]
pub(super) struct Bank {
    /// Frames whose first answer was to a prompt.
    pub(super) prompted: BTreeMap<usize, Seen>,
    /// Other frames.
    pub(super) others: BTreeMap<usize, Seen>,
    /// Frames that were answered from memory.
    pub(super) followed: BTreeSet<usize>,
}

impl Bank {
    /// Keeps what was seen.
    pub(super) fn store(&mut self, frame: usize, first: bool, seen: Seen) {
        if first {
            self.prompted.insert(frame, seen);
        } else {
            self.others.insert(frame, seen);
            self.followed.insert(frame);
        }
    }

    /// What was seen on a frame; prompts come first.
    pub(super) fn seen_mut(&mut self, frame: usize) -> Option<&mut Seen> {
        self.prompted.get_mut(&frame).or(self.others.get_mut(&frame))
    }

    /// Prompted frames that are looked at: all, or where those are too many the closest before, the closest from here on, and the
    /// closest of the rest.
    fn closest(&self, frame: usize, most: usize) -> Vec<usize> {
        let all = || self.prompted.keys().copied();
        if self.prompted.len() <= most {
            return all().collect();
        }
        let mut chosen: Vec<usize> = all().filter(|t| *t < frame).max().into_iter().collect();
        chosen.extend(all().filter(|t| *t >= frame).min());
        let mut rest: Vec<usize> = all().filter(|t| !chosen.contains(t)).collect();
        rest.sort_by_key(|t| t.abs_diff(frame));
        chosen.extend(rest);
        chosen.truncate(most);
        chosen
    }

    /// What a frame of a video of `count` is told.
    pub(super) fn recall(&self, geometry: &Geometry, frame: usize, count: usize, direction: Direction) -> Recall {
        let back = |n: usize| match direction {
            Direction::Forwards => frame.checked_sub(n),
            Direction::Backwards => Some(frame + n).filter(|t| *t < count),
        };
        let chosen = self.closest(frame, geometry.max_memories.saturating_sub(MEMORIES));
        let mut memories: Vec<(&Seen, i32)> = chosen.iter().map(|t| (&self.prompted[t], MEMORIES as i32)).collect();
        for n in (1..=MEMORIES).rev() {
            let unchosen = |t: &usize| self.prompted.get(t).filter(|_| !chosen.contains(t));
            let seen = back(n).and_then(|t| self.others.get(&t).or_else(|| unchosen(&t)));
            memories.extend(seen.map(|seen| (seen, n as i32 - 1)));
        }

        let span = count.min(POINTERS);
        // Of prompted frames only those that lie behind, on the way.
        let age = |t: usize| match direction {
            Direction::Forwards => frame.checked_sub(t),
            Direction::Backwards => t.checked_sub(frame),
        };
        let mut behind: Vec<(usize, &Seen)> =
            self.prompted.iter().filter_map(|(t, seen)| age(*t).map(|n| (n, seen))).collect();
        let most = geometry.max_pointers.saturating_sub(POINTERS - 1);
        if behind.len() > most {
            behind.sort_by_key(|(n, _)| *n);
            behind.truncate(most);
        }
        behind.extend(
            (1..span).map_while(|n| back(n).map(|t| (n, self.others.get(&t)))).filter_map(|(n, s)| Some((n, s?))),
        );
        let longest = span.saturating_sub(1).max(1) as f32;
        Recall {
            memory: memories.iter().flat_map(|(seen, _)| seen.memory.iter()).copied().collect(),
            times: memories.iter().map(|(_, time)| *time).collect(),
            pointers: behind.iter().flat_map(|(_, seen)| &seen.pointer).copied().collect(),
            offsets: behind.iter().map(|(n, _)| *n as f32 / longest).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        side: 16,
        channels: 1,
        memory_channels: 1,
        max_side: 16,
        max_prompts: 1,
        max_points: 1,
        max_masks: 1,
        max_memories: 10,
        max_pointers: 19,
    };

    fn bank(prompted: &[usize], others: impl IntoIterator<Item = usize>) -> Bank {
        let seen = |t: usize| Seen {
            low: vec![],
            given: None,
            pointer: vec![t as f32],
            score: 1.0,
            memory: Arc::new(vec![t as f32]),
        };
        let prompted = prompted.iter().map(|t| (*t, seen(*t))).collect();
        Bank { prompted, others: others.into_iter().map(|t| (t, seen(t))).collect(), followed: BTreeSet::new() }
    }

    #[test]
    fn a_frame_remembers_prompted_frames_six_before_it_and_fifteen_pointers() {
        let recall = bank(&[0], 1..40).recall(&GEOMETRY, 30, 40, Direction::Forwards);
        assert_eq!(recall.memory, [0.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0]);
        assert_eq!(recall.times, [6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(recall.pointers.len(), 16);
        assert_eq!((recall.pointers[0], recall.pointers[1], recall.pointers[15]), (0.0, 29.0, 15.0));
        assert_eq!((recall.offsets[0], recall.offsets[15]), (2.0, 1.0));
    }

    #[test]
    fn backwards_looks_at_later_frames_and_short_videos_scale_the_age_by_their_length() {
        let recall = bank(&[5], [3, 4, 6, 7]).recall(&GEOMETRY, 2, 8, Direction::Backwards);
        assert_eq!(recall.memory, [5.0, 7.0, 6.0, 4.0, 3.0]);
        assert_eq!(recall.times, [6, 4, 3, 1, 0]);
        assert_eq!(
            (recall.pointers, recall.offsets),
            (vec![5.0, 3.0, 4.0, 6.0, 7.0], vec![3.0 / 7.0, 1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0, 5.0 / 7.0])
        );
    }

    #[test]
    fn a_prompt_that_lies_ahead_is_remembered_but_does_not_point() {
        let recall = bank(&[5], []).recall(&GEOMETRY, 2, 8, Direction::Forwards);
        assert_eq!((recall.memory, recall.times, recall.pointers), (vec![5.0], vec![6], vec![]));
    }

    #[test]
    fn of_many_prompted_frames_the_closest_four_count_and_the_others_are_like_followed_ones() {
        let bank = bank(&[0, 2, 4, 20, 21, 30], []);
        assert_eq!(bank.closest(19, 4), [4, 20, 21, 30]);
        let recall = bank.recall(&GEOMETRY, 6, 40, Direction::Forwards);
        assert_eq!(recall.memory, [4.0, 20.0, 2.0, 0.0], "frame 0 is among the four");
        assert_eq!(recall.times, [6, 6, 6, 6]);
    }
}
