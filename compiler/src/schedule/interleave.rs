//! The order of kernels where recurrent layers run step by step: two layers that do not depend on each other (the directions of one, the
//! heads of a model) take turns, so that a barrier between steps serves both.

use super::inline::Place;
use super::lower::Draft;
use jvc_kernels::spec::Access;
use std::collections::BTreeMap;
use std::ops::Range;

/// Puts the steps of two independent layers alternately, each layer with the first later one that it can go with. What stands between
/// them goes before both, or after where it needs the first. Everything else keeps its order.
pub fn interleave(drafts: Vec<Draft>) -> Vec<Draft> {
    let mut out: Vec<Draft> = vec![];
    let mut rest = drafts;
    while let Some(first) = run(&rest, 0) {
        let Some(partner) = partner(&rest, &first) else {
            let tail = rest.split_off(first.end);
            out.append(&mut rest);
            rest = tail;
            continue;
        };
        let tail = rest.split_off(partner.at.end);
        let second = rest.split_off(partner.at.start);
        let between = rest.split_off(first.end);
        let steps = rest.split_off(first.start);
        out.append(&mut rest);
        for (d, early) in between.into_iter().zip(partner.early) {
            if early { out.push(d) } else { rest.push(d) }
        }
        out.extend(alternate(steps, second));
        rest.extend(tail);
    }
    out.extend(rest);
    out
}

/// The next layer's steps.
fn run(drafts: &[Draft], from: usize) -> Option<Range<usize>> {
    let start = from + drafts[from..].iter().position(|d| d.layer.is_some())?;
    let n = drafts[start..].iter().take_while(|d| d.layer == drafts[start].layer).count();
    Some(start..start + n)
}

/// A layer that can go with another.
struct Partner {
    at: Range<usize>,
    /// Of what stands between the two: whether it can go before both.
    early: Vec<bool>,
}

fn partner(drafts: &[Draft], first: &Range<usize>) -> Option<Partner> {
    // What the layer touches, and whatever must stay behind it.
    let mut behind = Touched::default();
    drafts[first.clone()].iter().for_each(|d| behind.add(d));
    let mut early = vec![];
    let mut at = first.end;
    while at < drafts.len() {
        let steps = run(drafts, at).filter(|r| r.start == at).unwrap_or(at..at + 1);
        let free = drafts[steps.clone()].iter().all(|d| behind.commutes(d));
        if free && drafts[at].layer.is_some() {
            return Some(Partner { at: steps, early });
        }
        if !free {
            drafts[steps.clone()].iter().for_each(|d| behind.add(d));
        }
        early.extend(steps.clone().map(|_| free));
        at = steps.end;
    }
    None
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

/// What kernels read (false) or write (true).
#[derive(Default)]
struct Touched {
    places: BTreeMap<Place, bool>,
    /// Some of it is memory under another name: nothing may pass.
    opaque: bool,
}

impl Touched {
    fn add(&mut self, d: &Draft) {
        self.opaque |= opaque(d);
        for u in &d.uses {
            *self.places.entry(u.place).or_default() |= u.access != Access::Read;
        }
    }

    /// True where a kernel may run before all of this instead of after it.
    fn commutes(&self, d: &Draft) -> bool {
        let clash = |u: &super::inline::Use| self.places.get(&u.place).is_some_and(|&w| w || u.access != Access::Read);
        !self.opaque && !opaque(d) && !d.uses.iter().any(clash)
    }
}

/// New values of states are memory that the old ones are read from; the table is read without being an operand.
fn opaque(d: &Draft) -> bool {
    d.binding.is_some() || d.uses.iter().any(|u| matches!(u.place, Place::StateUpdate(_) | Place::Table))
}
