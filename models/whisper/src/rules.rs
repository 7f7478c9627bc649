//! Rules of timestamps: which tokens may come next in a transcript with times.
//!
//! A transcript begins with a timestamp of at most 1 s. Text stands between two timestamps; after text and a timestamp comes another
//! timestamp or the end, after two timestamps comes text. Times do not decrease, and text is not of length zero.

use crate::facts::Special;

/// Ranges of ids that are forbidden after `written`, the tokens of the transcript so far; `latest_start` is the greatest id that
/// may begin it.
pub fn forbidden(tokens: &Special, written: &[u32], latest_start: u32) -> [(u32, u32); 3] {
    let Special { end, no_timestamps, timestamp_begin, .. } = *tokens;
    let is_time = |token: &u32| *token >= timestamp_begin;
    let nothing = (0, 0);
    let Some(last) = written.last() else {
        return [(0, timestamp_begin), (latest_start + 1, u32::MAX), nothing];
    };
    let before = written.len().checked_sub(2).map(|at| written[at]);
    let times_from = |least: u32| (no_timestamps, least.max(timestamp_begin));
    match (is_time(last), before.is_none_or(|token| is_time(&token))) {
        (true, true) => [(no_timestamps, u32::MAX), nothing, nothing],
        (true, false) => [(0, end), times_from(*last), nothing],
        (false, _) => {
            let latest = written.iter().rev().find(|token| is_time(token));
            [times_from(latest.map_or(0, |token| token + 1)), nothing, nothing]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(written: &[u32]) -> Vec<u32> {
        let ranges = forbidden(&Special::SMALL, written, 21);
        (0..26).filter(|id| !ranges.iter().any(|(from, to)| (*from..*to).contains(id))).collect()
    }

    fn range(from: u32, to: u32) -> Vec<u32> {
        (from..to).collect()
    }

    #[test]
    fn a_transcript_begins_with_an_early_timestamp_then_text() {
        assert_eq!(allowed(&[]), range(19, 22));
        assert_eq!(allowed(&[20]), range(0, 18));
    }

    #[test]
    fn after_text_comes_everything_but_earlier_and_equal_times() {
        assert_eq!(allowed(&[20, 3]), [range(0, 18), range(21, 26)].concat());
        assert_eq!(allowed(&[20, 3, 4]), [range(0, 18), range(21, 26)].concat());
    }

    #[test]
    fn after_text_and_a_time_comes_a_time_not_earlier_or_the_end_and_then_text() {
        assert_eq!(allowed(&[20, 3, 22]), [range(10, 18), range(22, 26)].concat());
        assert_eq!(allowed(&[20, 3, 22, 22]), range(0, 18));
    }

    #[test]
    fn text_without_any_time_before_leaves_all_times() {
        assert_eq!(allowed(&[3]), [range(0, 18), range(19, 26)].concat());
    }
}
