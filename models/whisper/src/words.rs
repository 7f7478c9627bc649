//! Times of words: where the alignment heads look while each token is written, made a monotonous path by dynamic time warping.

use crate::decode::Decoded;
use crate::engine::Engine;
use crate::tokenizer::Tokenizer;
use crate::transcribe::Segment;
use serde::Serialize;

/// Positions of the sound that attention sees, 20 ms each.
const POSITIONS: usize = 1500;

/// Neighbours that the median is of.
const MEDIAN: usize = 7;

/// Marks that belong to the word after them, and to the word before.
const OPENING: &str = "\"'“¿([{-";
const CLOSING: &str = "\"'.。,，!！?？:：”)]}、";

/// A word, or a sign of a language without spaces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Word {
    /// With the space before it and its marks.
    pub word: String,
    /// Seconds.
    pub start: f64,
    /// Seconds.
    pub end: f64,
    /// Mean probability of its tokens.
    pub probability: f32,
}

/// Gives the segments of a window their words; `window` is its start in seconds and its frames of sound.
pub(crate) fn add<E: Engine>(
    engine: &mut E,
    tokenizer: &Tokenizer,
    opening: &[u32],
    decoded: &Decoded,
    segments: &mut [Segment],
    window: (f64, usize),
    language: &str,
) -> Result<(), E::Error> {
    let special = engine.facts().tokens;
    let (context, n_heads) = (engine.facts().context, engine.facts().alignment_heads.len());
    let is_text = |token: &u32| *token < special.end;
    let (text, logprobs): (Vec<u32>, Vec<f32>) =
        decoded.tokens.iter().zip(&decoded.logprobs).filter(|(token, _)| is_text(token)).unzip();
    let opening: Vec<u32> = opening.iter().copied().filter(|token| *token != special.no_timestamps).collect();
    let all = [&opening[..], &[special.no_timestamps], &text, &[special.end]].concat();
    if text.is_empty() || all.len() > context {
        return Ok(());
    }
    let weights = engine.align(&all)?;
    let width = (window.1 / 2).clamp(1, POSITIONS);
    // The row of a token is where the model looked when it chose the next one.
    let matrix = matrix(&weights, n_heads, all.len(), opening.len()..all.len() - 1, width);
    let starts = row_starts(&matrix, width);
    let mut first = 0;
    for segment in segments {
        let said: Vec<u32> = segment.tokens.iter().copied().filter(is_text).collect();
        for (word, n) in merge_marks(split(tokenizer, &said, language)) {
            let last = first + n;
            let probability = logprobs[first..last].iter().map(|p| p.exp()).sum::<f32>() / n.max(1) as f32;
            let [start, end] = [first, last].map(|row| window.0 + starts[row] as f64 / 50.0);
            segment.words.push(Word { word, start, end, probability });
            first = last;
        }
    }
    Ok(())
}

/// Attention of some tokens, (row, position): of each head by its mean and deviation over all tokens, smoothed, then the mean of
/// the heads.
fn matrix(weights: &[f32], n_heads: usize, n_tokens: usize, rows: std::ops::Range<usize>, width: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows.len() * width];
    for head in weights.chunks_exact(n_tokens * POSITIONS).take(n_heads) {
        let column = |p: usize| (0..n_tokens).map(move |t| f64::from(head[t * POSITIONS + p]));
        let facts: Vec<(f64, f64)> = (0..width)
            .map(|p| {
                let mean = column(p).sum::<f64>() / n_tokens as f64;
                let variance = column(p).map(|w| (w - mean).powi(2)).sum::<f64>() / n_tokens as f64;
                (mean, variance.sqrt().max(1e-20))
            })
            .collect();
        for (row, token) in rows.clone().enumerate() {
            let line = head[token * POSITIONS..].iter().zip(&facts);
            let line: Vec<f32> =
                line.map(|(w, (mean, deviation))| ((f64::from(*w) - mean) / deviation) as f32).collect();
            for (sum, value) in out[row * width..].iter_mut().zip(medians(&line)) {
                *sum += value / n_heads as f32;
            }
        }
    }
    out
}

/// The median of each value's neighbourhood; the ends are reflected. Lines that are too short for that stay as they are.
fn medians(line: &[f32]) -> Vec<f32> {
    let (n, half) = (line.len(), MEDIAN / 2);
    if n <= half {
        return line.to_vec();
    }
    let reflected = |i: isize| {
        let i = i.unsigned_abs();
        line[if i < n { i } else { 2 * (n - 1) - i }]
    };
    let median = |at: usize| {
        let mut near: [f32; MEDIAN] = std::array::from_fn(|i| reflected((at + i) as isize - half as isize));
        near.sort_by(f32::total_cmp);
        near[half]
    };
    (0..n).map(median).collect()
}

/// The position at which the path of the greatest sum enters each row.
fn row_starts(matrix: &[f32], width: usize) -> Vec<usize> {
    let n = matrix.len() / width;
    let at = |row: usize, column: usize| row * (width + 1) + column;
    let mut cost = vec![f32::INFINITY; (n + 1) * (width + 1)];
    let mut step = vec![0u8; cost.len()];
    cost[0] = 0.0;
    for column in 1..=width {
        for row in 1..=n {
            let [both, down, right] =
                [at(row - 1, column - 1), at(row - 1, column), at(row, column - 1)].map(|place| cost[place]);
            let (least, kind) = match () {
                () if both < down && both < right => (both, 0),
                () if down < both && down < right => (down, 1),
                () => (right, 2),
            };
            cost[at(row, column)] = least - matrix[(row - 1) * width + column - 1];
            step[at(row, column)] = kind;
        }
    }
    let mut starts = vec![0; n];
    let (mut row, mut column) = (n, width);
    while row > 0 && column > 0 {
        starts[row - 1] = column - 1;
        match step[at(row, column)] {
            0 => (row, column) = (row - 1, column - 1),
            1 => row -= 1,
            _ => column -= 1,
        }
    }
    starts
}

/// Words with their numbers of tokens.
fn split(tokenizer: &Tokenizer, text: &[u32], language: &str) -> Vec<(String, usize)> {
    let by_sign = ["zh", "ja", "th", "lo", "my", "yue"].contains(&language);
    let mut words: Vec<(String, usize)> = Vec::new();
    for (part, n) in characters(tokenizer, text) {
        let mark = part.trim();
        let is_mark = mark.chars().count() == 1 && mark.chars().all(|c| c.is_ascii_punctuation());
        match words.last_mut() {
            Some((word, tokens)) if !(by_sign || part.starts_with(' ') || is_mark) => {
                word.push_str(&part);
                *tokens += n;
            }
            _ => words.push((part, n)),
        }
    }
    words
}

/// The shortest runs of tokens that are whole characters.
fn characters(tokenizer: &Tokenizer, text: &[u32]) -> Vec<(String, usize)> {
    let mut list = Vec::new();
    let (mut bytes, mut n) = (Vec::new(), 0);
    for (i, token) in text.iter().enumerate() {
        bytes.extend_from_slice(tokenizer.bytes(*token));
        n += 1;
        // What further bytes cannot mend is no part of a character.
        let is_whole = std::str::from_utf8(&bytes).map_or_else(|error| error.error_len().is_some(), |_| true);
        if is_whole || i + 1 == text.len() {
            list.push((String::from_utf8_lossy(&bytes).into_owned(), n));
            (bytes, n) = (Vec::new(), 0);
        }
    }
    list
}

/// Marks become parts of the words that they belong to.
fn merge_marks(words: Vec<(String, usize)>) -> Vec<(String, usize)> {
    let mut out: Vec<(String, usize)> = Vec::new();
    for (word, n) in words {
        let opens =
            |word: &str| word.starts_with(' ') && word.trim().chars().count() == 1 && OPENING.contains(word.trim());
        let closes = |word: &str| word.chars().count() == 1 && CLOSING.contains(word);
        match out.last_mut() {
            Some((last, tokens)) if opens(last) || closes(&word) && !last.ends_with(' ') => {
                last.push_str(&word);
                *tokens += n;
            }
            _ => out.push((word, n)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_enters_each_row_where_its_attention_begins() {
        // Rows look at positions 0..2, 2..5 and 5..6.
        let looks = [0, 0, 1, 1, 1, 2];
        let matrix: Vec<f32> = (0..3).flat_map(|row| looks.map(|at| if at == row { 1.0 } else { -1.0 })).collect();
        assert_eq!(row_starts(&matrix, 6), [0, 2, 5]);
    }

    #[test]
    fn medians_remove_single_peaks_and_keep_steps() {
        let line = [0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0];
        assert_eq!(medians(&line), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(medians(&[3.0, 1.0]), [3.0, 1.0]);
    }

    #[test]
    fn words_take_their_marks_and_characters_stay_whole() {
        let json = r#"{"model": {"vocab": {"Ġhe": 0, "llo": 1, ",": 2, "ĠÃ": 3, "¶": 4, ".": 5, "Ġ(": 6, "x": 7}}}"#;
        let t = Tokenizer::parse(json.as_bytes()).expect("a vocabulary");
        let words = |tokens: &[u32], language| merge_marks(split(&t, tokens, language));
        let of = |list: &[(&str, usize)]| list.iter().map(|(w, n)| (w.to_string(), *n)).collect::<Vec<_>>();
        assert_eq!(words(&[0, 1, 2, 3, 4, 5], "en"), of(&[(" hello,", 3), (" ö.", 3)]));
        assert_eq!(words(&[0, 6, 7], "en"), of(&[(" he", 1), (" (x", 2)]));
        assert_eq!(words(&[0, 1, 3, 4], "zh"), of(&[(" he", 1), ("llo", 1), (" ö", 2)]));
    }

    #[test]
    fn heads_are_compared_by_their_deviation_from_their_mean() {
        // Two tokens, one head: at position 0 the first token looks more than the second, elsewhere both the same.
        let mut weights = vec![0.5; 2 * POSITIONS];
        weights[0] = 0.9;
        weights[POSITIONS] = 0.1;
        let m = matrix(&weights, 1, 2, 0..2, 3);
        assert_eq!(m, [1.0, 0.0, 0.0, -1.0, 0.0, 0.0]);
    }
}
