//! Where the cost model and a table of measured tiles disagree.

use crate::device::{DeviceProfile, MeasuredTile, Work};
use crate::schedule::tile::{Listed, listed, strangers};
use serde::Serialize;
use std::collections::BTreeSet;

/// Times that differ by this share or less agree.
const AGREES: f64 = 0.2;

/// A piece of work for which the model chooses a slow tile, or predicts the times of tiles wrongly.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disagreement {
    /// What it is about.
    pub of: String,
    /// The model's choice.
    pub favourite: String,
    /// The table's.
    pub tile: String,
    /// How much longer the model's choice takes, of the table's time.
    pub loss: f64,
    /// Tiles of which the model's time, against that of its choice, is off by more than a fifth.
    pub mispredicted: usize,
    /// Tiles with a prediction that were measured, beside its choice.
    pub predicted: usize,
    /// The worst of them.
    pub worst: Option<Misprediction>,
}

/// A tile whose time, against that of the model's choice, is another than predicted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Misprediction {
    /// The tile.
    pub tile: String,
    /// Times of the model's choice, by the model.
    pub predicted: f64,
    /// The same, measured.
    pub measured: f64,
}

/// What there is to say of a table.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Entries that can be judged.
    pub n_judged: usize,
    /// In the order of the table.
    pub disagreements: Vec<Disagreement>,
    /// Entries that nothing follows, with the reason.
    pub useless: Vec<String>,
}

impl Disagreement {
    /// The model's choice costs more than a fifth.
    pub fn is_loss(&self) -> bool {
        self.loss > AGREES
    }
}

impl Verdict {
    /// One of the disagreements is a loss.
    pub fn has_losses(&self) -> bool {
        self.disagreements.iter().any(Disagreement::is_loss)
    }
}

/// Compares the profile's table with the cost model; with works given, also says which entries are for none of them.
pub fn check(device: &DeviceProfile, works: Option<&BTreeSet<Work>>) -> Verdict {
    let mut verdict = Verdict { useless: strangers(device), ..Verdict::default() };
    for t in &device.tiles {
        if works.is_some_and(|works| !works.contains(&t.of)) {
            verdict.useless.push(format!("none of the programs needs the tile for {}", t.of));
        }
        let Ok(all) = listed(device, &t.of) else { continue };
        if !t.tried.contains_key(&all[0].name) {
            let text = format!("{}: the cost model's choice, `{}`, was not measured", t.of, all[0].name);
            verdict.useless.push(text);
            continue;
        }
        verdict.n_judged += 1;
        let found = disagreement(t, &all);
        verdict.disagreements.extend(Some(found).filter(|d| d.is_loss() || d.mispredicted > 0));
    }
    verdict
}

fn disagreement(t: &MeasuredTile, all: &[Listed]) -> Disagreement {
    let favourite = &all[0];
    let base = t.tried[&favourite.name];
    let ratio = |c: &Listed| {
        let (predicted, measured) = (c.cost? / favourite.cost?, t.tried.get(&c.name)? / base);
        Some(Misprediction { tile: c.name.clone(), predicted, measured })
    };
    let off = |m: &Misprediction| (m.measured / m.predicted).max(m.predicted / m.measured);
    let ratios: Vec<Misprediction> = all[1..].iter().filter_map(ratio).collect();
    let predicted = ratios.len();
    let wrong: Vec<Misprediction> = ratios.into_iter().filter(|m| off(m) > 1.0 + AGREES).collect();
    let mispredicted = wrong.len();
    Disagreement {
        of: t.of.to_string(),
        favourite: favourite.name.clone(),
        tile: t.tile.clone(),
        loss: base / t.us - 1.0,
        mispredicted,
        predicted,
        worst: wrong.into_iter().max_by(|a, b| off(a).total_cmp(&off(b))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::find;
    use crate::schedule::tile::tests::products_of_models;

    /// A table for the large product of halves in which every tile takes as long as the model says, but for one.
    fn table(odd: usize, times: f64) -> DeviceProfile {
        let device = find("h200").expect("a bundled profile");
        let of = Work::from(&products_of_models()[1]);
        let all = listed(&device, &of).expect("known types");
        let us = |i: usize, c: &Listed| c.cost.expect("predicted") / 1e6 * if i == odd { times } else { 1.0 };
        let tried: std::collections::BTreeMap<String, f64> =
            all.iter().enumerate().map(|(i, c)| (c.name.clone(), us(i, c))).collect();
        let best = tried.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(name, us)| (name.clone(), *us));
        let (tile, us) = best.expect("some");
        DeviceProfile { tiles: vec![MeasuredTile { tile, us, of, tried }], ..device }
    }

    #[test]
    fn a_table_that_is_as_predicted_agrees() {
        assert_eq!(check(&table(0, 1.0), None), Verdict { n_judged: 1, ..Verdict::default() });
    }

    #[test]
    fn a_choice_that_costs_more_than_a_fifth_is_a_loss_and_a_wrong_time_is_told() {
        let slow = check(&table(0, 5.0), None);
        assert!(slow.has_losses() && slow.disagreements.len() == 1, "{slow:?}");
        let found = &slow.disagreements[0];
        assert!(found.loss > 0.2 && found.tile != found.favourite, "{found:?}");
        assert_eq!(found.mispredicted, found.predicted, "all others are five times as fast as predicted");
        let wrong = check(&table(3, 1.5), None);
        assert!(!wrong.has_losses(), "the choice is right all the same");
        let worst = wrong.disagreements[0].worst.clone().expect("a wrong time");
        assert_eq!(wrong.disagreements[0].mispredicted, 1);
        assert!((worst.measured / worst.predicted - 1.5).abs() < 1e-9, "{worst:?}");
        assert_eq!(check(&table(3, 1.15), None).disagreements, []);
    }

    #[test]
    fn entries_for_nothing_are_told() {
        let mut device = table(0, 1.0);
        let other = BTreeSet::from([Work::from(&products_of_models()[0])]);
        assert!(check(&device, Some(&other)).useless[0].contains("none of the programs needs"));
        let own = BTreeSet::from([device.tiles[0].of.clone()]);
        assert_eq!(check(&device, Some(&own)).useless, Vec::<String>::new());
        device.tiles[0].tried = [("gone".to_string(), 1.0)].into();
        (device.tiles[0].tile, device.tiles[0].us) = ("gone".into(), 1.0);
        let useless = check(&device, None).useless;
        assert!(useless.len() == 2 && useless[0].contains("`gone`") && useless[1].contains("was not measured"));
    }
}
