//! The order of kernels where two recurrent layers run step by step: layers that do not depend on each other (the two directions of one)
//! take turns, so that a barrier between steps serves both.

use super::inline::{Place, Use};
use super::lower::Draft;
use jvc_kernels::spec::Access;
use std::ops::Range;

/// Puts the steps of neighbouring independent layers alternately; what stands between them goes before both, or after where it needs
/// the first. Everything else keeps its place.
pub fn interleave(drafts: Vec<Draft>) -> Vec<Draft> {
    let mut out: Vec<Draft> = vec![];
    let mut rest = drafts;
    while let Some((a, b)) = pair(&rest) {
        let tail = rest.split_off(b.end);
        let second = rest.split_off(b.start);
        let between = rest.split_off(a.end);
        let first = rest.split_off(a.start);
        out.append(&mut rest);
        let mut late: Vec<Draft> = vec![];
        let mut early: Vec<Draft> = vec![];
        for d in between {
            let free = !first.iter().chain(&late).any(|x| conflict(x, &d));
            if free { early.push(d) } else { late.push(d) }
        }
        if second.iter().any(|d| first.iter().chain(&late).any(|x| conflict(x, d))) {
            // As they were: the early ones commute with everything before them.
            out.extend(early);
            out.extend(first);
            out.extend(late);
            rest = second;
            rest.extend(tail);
            continue;
        }
        out.extend(early);
        out.extend(alternate(first, second));
        out.extend(late);
        rest = tail;
    }
    out.extend(rest);
    out
}

/// The first two runs of steps.
fn pair(drafts: &[Draft]) -> Option<(Range<usize>, Range<usize>)> {
    let run = |from: usize| -> Option<Range<usize>> {
        let start = from + drafts[from..].iter().position(|d| d.layer.is_some())?;
        let n = drafts[start..].iter().take_while(|d| d.layer == drafts[start].layer).count();
        Some(start..start + n)
    };
    let first = run(0)?;
    let second = run(first.end)?;
    Some((first, second))
}

fn alternate(first: Vec<Draft>, second: Vec<Draft>) -> Vec<Draft> {
    let mut second = second.into_iter();
    let mut out = vec![];
    for d in first {
        out.push(d);
        out.extend(second.next());
    }
    out.extend(second);
    out
}

/// True where the order of two drafts matters, or is not known from what they use.
fn conflict(a: &Draft, b: &Draft) -> bool {
    let opaque = |d: &Draft| d.binding.is_some() || d.uses.iter().any(|u| fixed(u.place));
    let clash = |x: &Use, y: &Use| x.place == y.place && (x.access != Access::Read || y.access != Access::Read);
    opaque(a) || opaque(b) || a.uses.iter().any(|x| b.uses.iter().any(|y| clash(x, y)))
}

/// Places that are the same memory as another.
fn fixed(place: Place) -> bool {
    matches!(place, Place::StateUpdate(_) | Place::Table)
}
