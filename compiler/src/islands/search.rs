//! The search itself: which of `n` operations must stay in f32 for the error to hold its budget. It knows operations by number only, and
//! the program by a function that measures the error with some of them in f32.
//!
//! What an operation costs is measured with it alone in halves. That is one measurement for each, so ranges of operations are measured
//! first, and only those are halved again that must stay at what is known: where one operation in a thousand is hopeless, some twenty
//! measurements find it. Costs of different operations are taken to add up as independent errors do, by their squares. That only ranks
//! them: a choice counts when the program with it was measured, is made larger while it does not hold, and then smaller again by bisection
//! and one by one.

/// What to hold, and at what effort.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Largest error.
    pub budget: f64,
    /// Most measurements, apart from a last one where these do not suffice.
    pub rounds: u32,
}

/// An operation that stays in f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kept {
    /// Which.
    pub index: usize,
    /// The error where its range alone computes in halves.
    pub cost: f64,
    /// Operations in that range: 1 where there were measurements enough.
    pub shared: usize,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The error with all operations in halves.
    pub without: f64,
    /// The error with the choice, as measured.
    pub with: f64,
    /// The choice, in order.
    pub kept: Vec<Kept>,
    /// Measurements made.
    pub rounds: u32,
}

/// Finds a small choice of operations in f32 with which the error holds the budget. `measure` is given, for each operation, whether it stays
/// in f32. With all of them it must hold: that is where the search ends when nothing else does.
///
/// # Errors
/// The first of `measure`.
pub fn search<E>(n: usize, limits: Limits, measure: &mut dyn FnMut(&[bool]) -> Result<f64, E>) -> Result<Found, E> {
    let mut search =
        Search { n, budget: limits.budget, left: limits.rounds.max(1), rounds: 0, leaves: vec![], measure };
    let without = search.error(&vec![false; n])?;
    let mut found = Found { without, with: without, kept: vec![], rounds: 0 };
    if without > limits.budget && n > 0 {
        search.leaves.push(Leaf { start: 0, len: n, cost: without });
        let (choice, with) = search.enough()?;
        let (choice, with) = search.fewest(choice, with)?;
        found.with = with;
        found.kept = choice.iter().flat_map(|leaf| leaf.operations()).collect();
        found.kept.sort_by_key(|k| k.index);
    }
    found.rounds = search.rounds;
    Ok(found)
}

/// A range of operations.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Leaf {
    start: usize,
    len: usize,
    /// The error with this range alone in halves.
    cost: f64,
}

impl Leaf {
    /// Squared error for each operation that it may buy.
    fn density(&self) -> f64 {
        self.cost * self.cost / self.len as f64
    }

    fn operations(self) -> impl Iterator<Item = Kept> {
        (self.start..self.start + self.len).map(move |index| Kept { index, cost: self.cost, shared: self.len })
    }
}

struct Search<'m, E> {
    n: usize,
    budget: f64,
    /// Measurements left.
    left: u32,
    rounds: u32,
    /// All operations, in ranges that do not overlap.
    leaves: Vec<Leaf>,
    measure: &'m mut dyn FnMut(&[bool]) -> Result<f64, E>,
}

impl<E> Search<'_, E> {
    fn error(&mut self, keep: &[bool]) -> Result<f64, E> {
        self.left = self.left.saturating_sub(1);
        self.rounds += 1;
        (self.measure)(keep)
    }

    fn error_with(&mut self, kept: &[Leaf]) -> Result<f64, E> {
        let mut keep = vec![false; self.n];
        kept.iter().for_each(|l| keep[l.start..l.start + l.len].fill(true));
        self.error(&keep)
    }

    /// The error with a range alone in halves.
    fn cost(&mut self, start: usize, len: usize) -> Result<Leaf, E> {
        let mut keep = vec![true; self.n];
        keep[start..start + len].fill(false);
        Ok(Leaf { start, len, cost: self.error(&keep)? })
    }

    /// A choice that holds, with its error.
    fn enough(&mut self) -> Result<(Vec<Leaf>, f64), E> {
        // For choices to be measured, after the costs are known.
        let reserve = 3 + self.left / 4;
        let mut target = self.budget;
        let mut failed: Vec<Leaf> = vec![];
        while self.left > 0 && target > self.budget * 1e-4 {
            self.refine(target, reserve)?;
            let choice = choose(&self.leaves, target);
            if choice == failed {
                target *= 0.7;
                continue;
            }
            let error = self.error_with(&choice)?;
            if error <= self.budget {
                return Ok((choice, error));
            }
            // Errors that do not add up as expected: aim lower.
            target *= (self.budget / error).clamp(0.1, 0.9);
            failed = choice;
        }
        let all = self.leaves.clone();
        let error = self.error_with(&all)?;
        Ok((all, error))
    }

    /// Halves the ranges that must stay, the most expensive first, until they are single operations.
    fn refine(&mut self, target: f64, reserve: u32) -> Result<(), E> {
        while self.left >= reserve + 2 {
            let ranges = choose(&self.leaves, target).into_iter().filter(|l| l.len > 1);
            let dearest =
                ranges.max_by(|a, b| a.cost.total_cmp(&b.cost).then(a.len.cmp(&b.len)).then(b.start.cmp(&a.start)));
            let Some(Leaf { start, len, .. }) = dearest else { break };
            let halves = [self.cost(start, len / 2)?, self.cost(start + len / 2, len - len / 2)?];
            let at = self.leaves.iter().position(|l| l.start == start).expect("it is one of them");
            self.leaves.splice(at..=at, halves);
        }
        Ok(())
    }

    /// As much of a choice as must be: the cheapest go while it holds, first many at a time, then each.
    fn fewest(&mut self, mut choice: Vec<Leaf>, mut error: f64) -> Result<(Vec<Leaf>, f64), E> {
        choice.sort_by(|a, b| a.density().total_cmp(&b.density()).then(a.start.cmp(&b.start)));
        let (mut goes, mut fails) = (0, choice.len());
        while fails - goes > 1 && self.left > 0 {
            let middle = goes.midpoint(fails);
            let got = self.error_with(&choice[middle..])?;
            if got <= self.budget {
                (goes, error) = (middle, got);
            } else {
                fails = middle;
            }
        }
        let mut choice = choice.split_off(goes);
        // The cheapest of them was just tried.
        let mut at = 1;
        while at < choice.len() && self.left > 0 {
            let mut fewer = choice.clone();
            fewer.remove(at);
            let got = self.error_with(&fewer)?;
            if got <= self.budget {
                (choice, error) = (fewer, got);
            } else {
                at += 1;
            }
        }
        Ok((choice, error))
    }
}

/// The ranges that must stay in f32 for the others to add up to no more than the target: those go to halves that buy most operations for
/// their error.
fn choose(leaves: &[Leaf], target: f64) -> Vec<Leaf> {
    let mut order: Vec<&Leaf> = leaves.iter().collect();
    order.sort_by(|a, b| a.density().total_cmp(&b.density()).then(a.start.cmp(&b.start)));
    let (mut sum, mut kept) = (0.0, vec![]);
    for leaf in order {
        let with = sum + leaf.cost * leaf.cost;
        if with <= target * target {
            sum = with;
        } else {
            kept.push(*leaf);
        }
    }
    kept.sort_by_key(|l| l.start);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// Errors that add up by their squares; `ruin`: two operations of which one in halves is enough to make all of it infinite.
    fn error(costs: &[f64], ruin: Option<(usize, usize)>, keep: &[bool]) -> f64 {
        if ruin.is_some_and(|(a, b)| !(keep[a] && keep[b])) {
            return f64::INFINITY;
        }
        costs.iter().zip(keep).filter(|(_, k)| !**k).map(|(c, _)| c * c).sum::<f64>().sqrt()
    }

    fn found(costs: &[f64], ruin: Option<(usize, usize)>, budget: f64, rounds: u32) -> Found {
        let mut n = 0;
        let mut measure = |keep: &[bool]| {
            n += 1;
            Ok::<_, Infallible>(error(costs, ruin, keep))
        };
        let Ok(found) = search(costs.len(), Limits { budget, rounds }, &mut measure);
        assert_eq!(found.rounds, n, "every measurement is counted");
        assert!(found.rounds <= rounds.max(1) + 1, "{} measurements of {rounds}", found.rounds);
        let mut keep = vec![false; costs.len()];
        found.kept.iter().for_each(|k| keep[k.index] = true);
        assert_eq!(found.with, error(costs, ruin, &keep), "what is said of the choice is what it measures");
        assert!(found.with <= budget, "{found:?}");
        found
    }

    fn indices(found: &Found) -> Vec<usize> {
        found.kept.iter().map(|k| k.index).collect()
    }

    /// Numbers that look random, in 0..1.
    fn noise(n: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f64 / f64::from(1 << 24)
        };
        (0..n).map(|_| next()).collect()
    }

    #[test]
    fn nothing_stays_where_the_budget_holds() {
        let found = found(&[1e-4; 50], None, 1e-3, 64);
        assert_eq!((found.kept.len(), found.rounds), (0, 1));
    }

    #[test]
    fn hopeless_operations_are_found_among_many() {
        let mut costs: Vec<f64> = noise(1000, 1).iter().map(|x| x * 1e-5).collect();
        (costs[17], costs[18], costs[640]) = (0.02, 0.3, 0.05);
        let found = found(&costs, None, 1e-3, 96);
        assert_eq!(indices(&found), [17, 18, 640]);
        assert!(found.kept.iter().all(|k| k.shared == 1 && k.cost == costs[k.index]), "{found:?}");
    }

    #[test]
    fn operations_that_overflow_are_found() {
        let costs = vec![1e-5; 300];
        let found = found(&costs, Some((40, 222)), 1e-3, 64);
        assert_eq!(indices(&found), [40, 222]);
    }

    #[test]
    fn small_choices_are_the_smallest_there_are() {
        for seed in 0..40 {
            let costs: Vec<f64> = noise(10, seed).iter().map(|x| x.powi(4)).collect();
            let budget = 0.3;
            let found = found(&costs, None, budget, 200);
            let holds = |mask: u32| {
                let keep: Vec<bool> = (0..10).map(|i| mask >> i & 1 == 1).collect();
                error(&costs, None, &keep) <= budget
            };
            let fewest = (0..1 << 10).filter(|m| holds(*m)).map(u32::count_ones).min().expect("all of them hold");
            assert_eq!(found.kept.len(), fewest as usize, "{costs:?}: {found:?}");
        }
    }

    #[test]
    fn the_budget_holds_with_few_measurements_and_with_errors_that_do_not_add_up() {
        for rounds in [1, 2, 3, 8, 20] {
            let costs: Vec<f64> = noise(400, 9).iter().map(|x| x * 1e-2).collect();
            found(&costs, Some((3, 390)), 1e-3, rounds);
        }
        // All errors have one sign: they add up themselves, not by their squares.
        let costs: Vec<f64> = noise(64, 3);
        let budget = 0.25 * costs.iter().sum::<f64>();
        let linear = |keep: &[bool]| costs.iter().zip(keep).filter(|(_, k)| !**k).map(|(c, _)| c).sum::<f64>();
        let Ok(found) = search(64, Limits { budget, rounds: 200 }, &mut |keep| Ok::<_, Infallible>(linear(keep)));
        assert!(found.with <= budget && found.kept.len() < 64, "{found:?}");
    }
}
