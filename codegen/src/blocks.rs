//! Finds repeated runs of steps, so that the generated crate records a model's layers from one function and a table.
//!
//! Input: one key per step, equal where two steps differ in their arguments only, and a weight (1 for a dispatch, 0 for a barrier).
//! Output: the distinct blocks with the places where they start; what lies between is recorded straight.
//!
//! Greedy: the repeat that saves most is taken out, then the next, until none saves enough. A repeat's candidates are the nodes of
//! the suffix tree (as intervals of a suffix array's common prefixes), at full length and at the length of the smallest distance
//! between two occurrences: in a run of equal layers the longest repeat overlaps itself, the period does not.

use std::ops::Range;

/// Fewest dispatches of a block.
const MIN_DISPATCHES: u64 = 2;
/// Fewest dispatches that a block must save.
const MIN_SAVED: u64 = 6;

/// A run of steps that occurs several times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Steps of one occurrence.
    pub(crate) len: usize,
    /// First steps of the occurrences, ascending; they do not overlap.
    pub(crate) starts: Vec<usize>,
}

/// Blocks in order of their first occurrence.
pub(crate) fn find_blocks(keys: &[u32], weights: &[u64]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let everything = 0..keys.len();
    let mut free = vec![everything];
    let sums = prefix_sums(weights);
    while let Some(block) = best_block(keys, &sums, &free) {
        for start in &block.starts {
            take_out(&mut free, *start..start + block.len);
        }
        blocks.push(block);
    }
    blocks.sort_by_key(|b| b.starts[0]);
    blocks
}

fn prefix_sums(weights: &[u64]) -> Vec<u64> {
    let mut sums = vec![0];
    sums.extend(weights.iter().scan(0, |sum, w| {
        *sum += w;
        Some(*sum)
    }));
    sums
}

fn take_out(free: &mut Vec<Range<usize>>, taken: Range<usize>) {
    let at = free.iter().position(|r| r.start <= taken.start && taken.end <= r.end).expect("blocks lie in free ranges");
    let whole = free[at].clone();
    let parts = [whole.start..taken.start, taken.end..whole.end];
    free.splice(at..=at, parts.into_iter().filter(|r| !r.is_empty()));
}

/// A set of equal runs: suffixes `lo..hi` of the suffix array share their first `len` keys.
struct Interval {
    lo: usize,
    hi: usize,
    len: usize,
}

fn best_block(keys: &[u32], sums: &[u64], free: &[Range<usize>]) -> Option<Block> {
    let (text, places) = joined(keys, free);
    let suffixes = suffix_array(&text);
    let weight = |start: usize, len: usize| sums[start + len] - sums[start];
    let place = |rank: usize| places[suffixes[rank]];
    let bound = |i: &Interval| (i.hi - i.lo - 1) as u64 * weight(place(i.lo), i.len);
    let mut intervals = intervals(&common_prefixes(&text, &suffixes));
    intervals.retain(|i| bound(i) >= MIN_SAVED);
    intervals.sort_by_key(|i| (std::cmp::Reverse(bound(i)), i.len, i.lo));
    let mut best: Option<(u64, Block)> = None;
    for interval in &intervals {
        if best.as_ref().is_some_and(|(saved, _)| bound(interval) < *saved) {
            break;
        }
        let mut starts: Vec<usize> = (interval.lo..interval.hi).map(place).collect();
        starts.sort_unstable();
        let gap = starts.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(interval.len);
        for len in [interval.len.min(gap), interval.len] {
            let block = Block { len, starts: disjoint(&starts, len) };
            let weight = weight(starts[0], len);
            let saved = (block.starts.len() as u64 - 1) * weight;
            if weight >= MIN_DISPATCHES && saved >= MIN_SAVED && is_better(sums, (saved, &block), best.as_ref()) {
                best = Some((saved, block));
            }
        }
    }
    best.map(|(_, block)| block)
}

/// More saved; then a dispatch first rather than a barrier, the shorter block, the earlier one.
fn is_better(sums: &[u64], (saved, block): (u64, &Block), best: Option<&(u64, Block)>) -> bool {
    let starts_with_dispatch = |b: &Block| sums[b.starts[0] + 1] > sums[b.starts[0]];
    let rank = |saved: u64, b: &Block| {
        (saved, starts_with_dispatch(b), std::cmp::Reverse(b.len), std::cmp::Reverse(b.starts[0]))
    };
    best.is_none_or(|(best_saved, best_block)| rank(saved, block) > rank(*best_saved, best_block))
}

fn disjoint(starts: &[usize], len: usize) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for start in starts {
        if chosen.last().is_none_or(|last| last + len <= *start) {
            chosen.push(*start);
        }
    }
    chosen
}

/// The free ranges one after another, each closed by a symbol that occurs once; and each position's step.
fn joined(keys: &[u32], free: &[Range<usize>]) -> (Vec<u64>, Vec<usize>) {
    let (mut text, mut places) = (Vec::new(), Vec::new());
    for (idx, range) in free.iter().enumerate() {
        for step in range.clone() {
            text.push(u64::from(keys[step]));
            places.push(step);
        }
        text.push((1 << 32) + idx as u64);
        places.push(range.end);
    }
    (text, places)
}

/// Positions sorted by the suffix that starts there (prefix doubling).
fn suffix_array(text: &[u64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..text.len()).collect();
    let mut rank = text.to_vec();
    let mut width = 1;
    loop {
        let key = |at: usize| (rank[at], rank.get(at + width).map_or(0, |r| r + 1));
        order.sort_unstable_by_key(|at| key(*at));
        let mut next = vec![0; text.len()];
        for pair in 1..order.len() {
            let step = u64::from(key(order[pair]) != key(order[pair - 1]));
            next[order[pair]] = next[order[pair - 1]] + step;
        }
        let is_done = order.last().is_none_or(|last| next[*last] as usize + 1 == text.len());
        rank = next;
        width *= 2;
        if is_done {
            return order;
        }
    }
}

/// Per rank, the length of the prefix shared with the suffix before (Kasai).
fn common_prefixes(text: &[u64], suffixes: &[usize]) -> Vec<usize> {
    let mut ranks = vec![0; text.len()];
    for (rank, at) in suffixes.iter().enumerate() {
        ranks[*at] = rank;
    }
    let mut prefixes = vec![0; text.len()];
    let mut len = 0usize;
    for at in 0..text.len() {
        if ranks[at] == 0 {
            len = 0;
            continue;
        }
        let before = suffixes[ranks[at] - 1];
        while at + len < text.len() && before + len < text.len() && text[at + len] == text[before + len] {
            len += 1;
        }
        prefixes[ranks[at]] = len;
        len = len.saturating_sub(1);
    }
    prefixes
}

/// The nodes of the suffix tree.
fn intervals(prefixes: &[usize]) -> Vec<Interval> {
    let mut found = Vec::new();
    let mut open: Vec<(usize, usize)> = Vec::new();
    for rank in 1..=prefixes.len() {
        let len = prefixes.get(rank).copied().unwrap_or(0);
        let mut lo = rank - 1;
        while let Some((start, open_len)) = open.pop_if(|(_, open_len)| *open_len > len) {
            found.push(Interval { lo: start, hi: rank, len: open_len });
            lo = start;
        }
        if len > 0 && open.last().is_none_or(|(_, open_len)| *open_len < len) {
            open.push((lo, len));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks_of(text: &str) -> Vec<(String, Vec<usize>)> {
        let keys: Vec<u32> = text.chars().map(u32::from).collect();
        let weights: Vec<u64> = text.chars().map(|c| u64::from(c != '|')).collect();
        let blocks = find_blocks(&keys, &weights);
        blocks.into_iter().map(|b| (text[b.starts[0]..b.starts[0] + b.len].to_string(), b.starts)).collect()
    }

    #[test]
    fn a_run_of_layers_is_one_block_of_one_layer() {
        assert_eq!(blocks_of("xyabcdabcdabcdabcdz"), vec![("abcd".to_string(), vec![2, 6, 10, 14])]);
    }

    #[test]
    fn scattered_layers_are_one_block() {
        assert_eq!(blocks_of("abcd1abcd2abcd3"), vec![("abcd".to_string(), vec![0, 5, 10])]);
    }

    #[test]
    fn two_kinds_of_layers_are_two_blocks() {
        let found = blocks_of("abcabcabcabc-defgdefgdefgdefg");
        assert_eq!(found, vec![("abc".to_string(), vec![0, 3, 6, 9]), ("defg".to_string(), vec![13, 17, 21, 25])]);
    }

    #[test]
    fn barriers_weigh_nothing_and_do_not_start_a_block() {
        assert_eq!(blocks_of("x|a|b|c|a|b|c|a|b|c|"), vec![("a|b|c|".to_string(), vec![2, 8, 14])]);
        assert_eq!(blocks_of("|a||||||||a|||||||||"), vec![]);
    }

    #[test]
    fn what_saves_too_little_stays_straight() {
        assert_eq!(blocks_of("abcxabc"), vec![]);
        assert_eq!(blocks_of(""), vec![]);
        assert_eq!(blocks_of("abcdefgh"), vec![]);
    }

    #[test]
    fn occurrences_are_equal_and_disjoint() {
        // A Fibonacci word: repeats within repeats, at every length. Miri takes a hundred times as long for each.
        let least = if cfg!(miri) { 300 } else { 2000 };
        let (mut a, mut b) = ("a".to_string(), "ab".to_string());
        while b.len() < least {
            (a, b) = (b.clone(), b + &a);
        }
        let mut taken = vec![false; b.len()];
        for (text, starts) in blocks_of(&b) {
            for start in starts {
                assert_eq!(b[start..start + text.len()], text);
                for used in &mut taken[start..start + text.len()] {
                    assert!(!std::mem::replace(used, true), "a step in two blocks");
                }
            }
        }
        let n_straight = taken.iter().filter(|t| !**t).count();
        assert!(n_straight < b.len() / 10, "most of it repeats, {n_straight} steps stay straight");
    }

    #[test]
    #[cfg_attr(miri, ignore = "measures time")]
    fn one_key_over_and_over_takes_no_quadratic_time() {
        let found = find_blocks(&[7; 12_000], &[1; 12_000]);
        assert!(found.iter().map(|b| b.len).sum::<usize>() < 300, "{found:?}");
    }
}
