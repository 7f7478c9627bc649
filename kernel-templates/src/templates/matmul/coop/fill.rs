//! What an invocation reads to fill its components of fragments, where it is known which elements they are.
//!
//! A block of [`GROUP`] elements that follow one another along k fills the components of one line (a row of the left, a column of the right)
//! in `GROUP / along_k` fragments at once. So the k of these fragments are taken in another order than that of the matrix: the same for both
//! sides, which is all that a sum over k asks for.

use crate::spec::{Coop, Fill, Spread};
use crate::wide_load::GROUP;

/// How components of one side's fragments are filled from blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    /// Components of an invocation along k.
    pub(super) along_k: u32,
    /// Lines of an invocation in a fragment, as distances from its first.
    pub(super) lines: Vec<u32>,
    /// Of each component: the line, and the place among those along k.
    pub(super) components: Vec<(usize, u32)>,
    /// Bits of the invocation's number that move its line, and by how much.
    pub(super) line_bits: Vec<(u32, u32)>,
    /// Bits that move its block along k, by how many blocks.
    pub(super) block_bits: Vec<(u32, u32)>,
    /// Elements along k that one block of every invocation covers.
    pub(super) step: u32,
    /// Distances along k of the components, sorted: both sides must have the same.
    distances: Vec<u32>,
}

impl Pattern {
    /// That of the left side, if its fragments can be filled so.
    pub(super) fn left(c: &Coop, fill: &Fill) -> Option<Pattern> {
        Pattern::of(&fill.left, c.subgroup, (c.frag.0, c.frag.2), |(row, column)| (row, column))
    }

    /// That of the right side.
    pub(super) fn right(c: &Coop, fill: &Fill) -> Option<Pattern> {
        Pattern::of(&fill.right, c.subgroup, (c.frag.1, c.frag.2), |(row, column)| (column, row))
    }

    /// True where both sides go through k in the same order.
    pub(super) fn agrees(&self, other: &Pattern) -> bool {
        self.distances == other.distances && self.step == other.step
    }

    fn of(
        spread: &Spread,
        subgroup: u32,
        (n_lines, depth): (u32, u32),
        turn: impl Fn((u8, u8)) -> (u8, u8),
    ) -> Option<Pattern> {
        let n_components = (n_lines * depth).checked_div(subgroup)?;
        let n_bits = |n: u32| n.is_power_of_two().then_some(n.trailing_zeros() as usize);
        let lanes: Vec<(u8, u8)> = spread.lanes.iter().take(n_bits(subgroup)?).map(|e| turn(*e)).collect();
        let own: Vec<(u8, u8)> = spread.components.iter().take(n_bits(n_components)?).map(|e| turn(*e)).collect();
        // Every bit moves along one axis.
        if lanes.iter().chain(&own).any(|e| (e.0 == 0) == (e.1 == 0)) {
            return None;
        }
        let sorted = |bits: &[(u8, u8)], axis: fn(&(u8, u8)) -> u8| -> Vec<u32> {
            let mut moves: Vec<u32> = bits.iter().map(axis).filter(|v| *v > 0).map(u32::from).collect();
            moves.sort_unstable();
            moves
        };
        let distances = sorted(&own, |e| e.1);
        let blocks = sorted(&lanes, |e| e.1);
        let along_k = 1 << distances.len();
        if along_k > GROUP {
            return None;
        }
        let rank = |of: &[u32], v: u8| of.iter().position(|d| *d == u32::from(v)).expect("it is one of them") as u32;
        let line_moves: Vec<u32> = own.iter().filter(|e| e.0 > 0).map(|e| e.0.into()).collect();
        let subset = |moves: &[u32], n: u32| -> u32 {
            moves.iter().enumerate().filter(|(bit, _)| n >> bit & 1 == 1).map(|(_, v)| v).sum()
        };
        let lines: Vec<u32> = (0..1u32 << line_moves.len()).map(|n| subset(&line_moves, n)).collect();
        let component = |c: u32| {
            let set = || own.iter().enumerate().filter(move |(bit, _)| c >> bit & 1 == 1).map(|(_, e)| e);
            let line: u32 = set().map(|e| u32::from(e.0)).sum();
            let place = set().filter(|e| e.1 > 0).map(|e| 1 << rank(&distances, e.1)).sum();
            (lines.iter().position(|l| *l == line).expect("it is one of them"), place)
        };
        let lane_bits = || (0u32..).zip(&lanes);
        Some(Pattern {
            along_k,
            components: (0..n_components).map(component).collect(),
            line_bits: lane_bits().filter(|(_, e)| e.0 > 0).map(|(bit, e)| (bit, e.0.into())).collect(),
            block_bits: lane_bits().filter(|(_, e)| e.1 > 0).map(|(bit, e)| (bit, 1 << rank(&blocks, e.1))).collect(),
            step: depth * GROUP / along_k,
            lines,
            distances,
        })
    }

    /// Fragments that one step fills.
    pub(super) fn fragments(&self) -> u32 {
        GROUP / self.along_k
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [(u8, u8); 6] = [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0), (0, 0)];

    fn pattern(components: [(u8, u8); 5]) -> Option<Pattern> {
        Pattern::of(&Spread { lanes: ROWS, components }, 32, (16, 16), |e| e)
    }

    /// Every element of the fragments of a step is read from where the order of k has it: each k of the step once.
    #[test]
    fn blocks_cover_a_step_of_k_in_an_order_that_is_the_same_for_all_lines() {
        let p = pattern([(0, 1), (8, 0), (0, 8), (0, 0), (0, 0)]).expect("each bit moves along one axis");
        assert_eq!((p.along_k, p.step, p.lines.clone(), p.fragments()), (4, 32, vec![0, 8], 2));
        let spread = Spread { lanes: ROWS, components: [(0, 1), (8, 0), (0, 8), (0, 0), (0, 0)] };
        let sum =
            |bits: &[(u32, u32)], lane: u32| -> u32 { bits.iter().filter(|b| lane >> b.0 & 1 == 1).map(|b| b.1).sum() };
        let mut order = vec![vec![None; 16]; 2];
        for (fragment, order) in (0..).zip(&mut order) {
            for lane in 0..32 {
                for (c, (line, place)) in p.components.iter().enumerate() {
                    let (row, k) = spread.at(lane, c as u32);
                    assert_eq!(row, p.lines[*line] + sum(&p.line_bits, lane));
                    let read = sum(&p.block_bits, lane) * GROUP + fragment * p.along_k + place;
                    let known: &mut Option<u32> = &mut order[k as usize];
                    assert_eq!(*known.get_or_insert(read), read, "lane {lane}, component {c}");
                }
            }
        }
        let mut all: Vec<u32> = order.concat().into_iter().map(|k| k.expect("every k is read")).collect();
        all.sort_unstable();
        assert_eq!(all, (0..32).collect::<Vec<u32>>());
    }

    #[test]
    fn a_bit_that_moves_along_both_axes_has_no_pattern() {
        assert_eq!(pattern([(0, 1), (8, 8), (0, 8), (0, 0), (0, 0)]), None);
    }
}
