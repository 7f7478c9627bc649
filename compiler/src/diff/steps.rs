//! Which steps changed. Names of values carry numbers that a new layer shifts, so steps are matched by what they stand for: operators
//! and module paths, in order where these repeat.

use super::Crate;
use jvc_codegen::plan::{Dispatch, Step};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A step that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepChange {
    /// The entry point.
    pub entry: String,
    /// The value that it computes.
    pub label: String,
    /// Operators, modules and Python lines.
    pub origin: Vec<String>,
    /// What became of it.
    pub moved: Moved,
}

/// What became of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Moved {
    /// It is new, with this kernel.
    Added(String),
    /// It is gone; it had this kernel.
    Removed(String),
    /// Another kernel computes it.
    Changed {
        /// Kernel before.
        old: String,
        /// Kernel after.
        new: String,
        /// Decisions about it that only the old crate has.
        was: Vec<String>,
        /// Decisions about it that only the new crate has.
        is: Vec<String>,
    },
}

/// A dispatch with its kernel's name.
type Named<'a> = (&'a Dispatch, &'a str);

/// The steps that differ, entry by entry; entries are matched by name.
pub(super) fn changes(old: &Crate, new: &Crate) -> Vec<StepChange> {
    let names = |of: &Crate| of.outline.plan.entries.iter().map(|e| e.name.clone()).collect::<Vec<_>>();
    let all: BTreeSet<String> = names(old).into_iter().chain(names(new)).collect();
    let of_entry = |name: &String| {
        let same = |step: &Named<'_>| (place(step.0), step.1.to_owned());
        let (old_left, new_left) = without_same(steps(old, name), steps(new, name), same);
        let pairs = paired(old_left, new_left).into_iter();
        pairs.map(|(before, after)| change(name, before, after, old, new)).collect::<Vec<_>>()
    };
    all.iter().flat_map(of_entry).collect()
}

/// The dispatches of an entry; none where there is no such entry.
fn steps<'a>(of: &'a Crate, entry: &str) -> Vec<Named<'a>> {
    let plan = &of.outline.plan;
    let steps = plan.entries.iter().filter(|e| e.name == entry).flat_map(|e| &e.steps);
    steps.filter_map(Step::dispatch).map(|d| (d, plan.kernels[d.kernel as usize].name.as_str())).collect()
}

/// What a dispatch stands for: operators and modules, without the names of nodes.
fn place(d: &Dispatch) -> Vec<String> {
    let without_node = |line: &String| {
        let parts: Vec<&str> = line.split(" · ").collect();
        parts.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, part)| *part).collect::<Vec<_>>().join(" · ")
    };
    d.origin.iter().map(without_node).collect()
}

/// Both lists without what they share, as often as they share it; the rest in order.
fn without_same<'a, K: Ord>(
    old: Vec<Named<'a>>,
    new: Vec<Named<'a>>,
    key: impl Fn(&Named<'a>) -> K,
) -> (Vec<Named<'a>>, Vec<Named<'a>>) {
    let mut counts: BTreeMap<K, usize> = BTreeMap::new();
    for step in &new {
        *counts.entry(key(step)).or_default() += 1;
    }
    let mut shared: BTreeMap<K, usize> = BTreeMap::new();
    let mut left = vec![];
    for step in old {
        let count = counts.entry(key(&step)).or_default();
        if *count == 0 {
            left.push(step);
        } else {
            *count -= 1;
            *shared.entry(key(&step)).or_default() += 1;
        }
    }
    let is_left = |step: &Named<'a>| match shared.get_mut(&key(step)) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    };
    (left, new.into_iter().filter(is_left).collect())
}

/// Steps that stand for the same, in order; what has no partner comes alone.
fn paired<'a>(old: Vec<Named<'a>>, new: Vec<Named<'a>>) -> Vec<(Option<Named<'a>>, Option<Named<'a>>)> {
    let dispatches = |steps: &[Named<'a>]| steps.iter().map(|step| step.0).collect::<Vec<_>>();
    let pairs = pairs(&dispatches(&old), &dispatches(&new)).into_iter();
    pairs.map(|(before, after)| (before.map(|i| old[i]), after.map(|i| new[i]))).collect()
}

/// Positions of steps that stand for the same, in order of the old ones; those without a partner come alone, the new ones last.
pub fn pairs(old: &[&Dispatch], new: &[&Dispatch]) -> Vec<(Option<usize>, Option<usize>)> {
    let mut waiting: BTreeMap<Vec<String>, VecDeque<usize>> = BTreeMap::new();
    for (i, step) in new.iter().enumerate() {
        waiting.entry(place(step)).or_default().push_back(i);
    }
    let partner = |step: &&Dispatch| waiting.get_mut(&place(step)).and_then(VecDeque::pop_front);
    let partners: Vec<Option<usize>> = old.iter().map(partner).collect();
    let mut pairs: Vec<_> = partners.into_iter().enumerate().map(|(i, partner)| (Some(i), partner)).collect();
    pairs.extend(waiting.into_values().flatten().map(|i| (None, Some(i))));
    pairs
}

fn change(entry: &str, before: Option<Named<'_>>, after: Option<Named<'_>>, old: &Crate, new: &Crate) -> StepChange {
    let (d, moved) = match (before, after) {
        (Some((was, old_kernel)), Some((is, new_kernel))) => {
            let reasons = |of: &Crate, label: &str| of.decisions.get(label).cloned().unwrap_or_default();
            let (was, now) = (reasons(old, &was.label), reasons(new, &is.label));
            let only = |a: &[String], b: &[String]| a.iter().filter(|line| !b.contains(line)).cloned().collect();
            let (was, now): (Vec<String>, Vec<String>) = (only(&was, &now), only(&now, &was));
            (is, Moved::Changed { old: old_kernel.to_owned(), new: new_kernel.to_owned(), was, is: now })
        }
        (Some((d, kernel)), None) => (d, Moved::Removed(kernel.to_owned())),
        (None, Some((d, kernel))) => (d, Moved::Added(kernel.to_owned())),
        (None, None) => unreachable!("a pair has a step"),
    };
    StepChange { entry: entry.to_owned(), label: d.label.clone(), origin: d.origin.clone(), moved }
}
