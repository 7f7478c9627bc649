//! Measures the tiles that the scheduler could choose, inside the programs that need them, and picks the fastest: what `jvc tune` does.
//!
//! A round is the whole program with the nth candidate of each of its products and attentions. All rounds are entry points of one plan, so that
//! weights are loaded once, and take turns, so that what changes with time hits all of them. In each, a barrier stands after every step.

mod check;

pub use check::{Disagreement, Verdict, check};

use crate::device::{DeviceProfile, MeasuredTile, Work};
use crate::exec::{ExecError, Loaded, made_up};
use crate::import::Program;
use crate::ir::Graph;
use crate::measure::{Arm, Clock, Figure, LoadError, Samples, Sampling, Taken, TimedSteps, in_turns};
use crate::options::Options;
use crate::pipeline::{Compiled, graph_of, plan_for, schedule};
use crate::report::Diagnostic;
use crate::schedule::tile::{Chosen, Listed, listed};
use jvc_runtime as rt;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// How thoroughly to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Samples.
    pub sampling: Sampling,
    /// Candidates of a piece of work, at most: those that the cost model likes best.
    pub most: usize,
    /// Candidates count as equally fast within this share of the fastest, and within half of its scatter.
    pub tie: f64,
}

/// Why nothing was tuned.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// A program cannot be compiled for the device.
    #[error("{} diagnostics", .0.len())]
    Diagnostics(Vec<Diagnostic>),
    /// A round does not run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// Nothing tells the clock.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Nobody hears what goes on.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

/// What was measured of a piece of work.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The work.
    pub of: Work,
    /// Steps that do it, of all programs.
    pub n_steps: usize,
    /// The cost model's choice.
    pub favourite: String,
    /// The tile to take.
    pub tile: String,
    /// Microseconds of a step, by tile.
    pub tried: BTreeMap<String, Figure>,
}

/// Measures all candidates for what programs compute, one program after the other. `say` is told what goes on.
///
/// # Errors
/// A program that cannot be compiled or does not run.
pub fn measure(
    gpu: &rt::Gpu,
    programs: &[Program],
    (options, device): (&Options, &DeviceProfile),
    clock: &mut dyn Clock,
    settings: &Settings,
    say: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<Vec<Measured>, TuneError> {
    let plain = DeviceProfile { tiles: vec![], ..device.clone() };
    let mut seen = Seen::default();
    for program in programs {
        let (graph, _) = graph_of(program, options, Some(&plain)).map_err(TuneError::Diagnostics)?;
        let works = works(&graph, &plain)?;
        let lists = lists(&plain, &works, settings.most);
        let tables = tables(&lists);
        say(&format!("{}: {} kinds of work, {} rounds", program.name, lists.len(), tables.len()))?;
        if tables.is_empty() {
            continue;
        }
        let compiled = plan_rounds(&graph, program, options, &plain, &tables)?;
        let taken = run_rounds(gpu, &compiled, clock, &settings.sampling)?;
        seen.add(&compiled.tiles, &taken);
    }
    Ok(seen.measured(&plain, settings.tie))
}

/// What the steps of programs compute that has tiles to choose from.
///
/// # Errors
/// A program that cannot be compiled.
pub fn works_of(programs: &[Program], options: &Options, device: &DeviceProfile) -> Result<BTreeSet<Work>, TuneError> {
    let plain = DeviceProfile { tiles: vec![], ..device.clone() };
    let mut all = BTreeSet::new();
    for program in programs {
        let (graph, _) = graph_of(program, options, Some(&plain)).map_err(TuneError::Diagnostics)?;
        all.extend(works(&graph, &plain)?);
    }
    Ok(all)
}

fn works(graph: &Graph, device: &DeviceProfile) -> Result<BTreeSet<Work>, TuneError> {
    let drafts = schedule(graph, device).map_err(TuneError::Diagnostics)?.drafts;
    Ok(drafts.into_iter().filter_map(|d| Some(d.tile?.of)).collect())
}

/// The candidates for each piece of work that has several, the cost model's choice first.
fn lists(device: &DeviceProfile, works: &BTreeSet<Work>, most: usize) -> BTreeMap<Work, Vec<String>> {
    let list = |of: &Work| {
        let all = listed(device, of).expect("the scheduler names types that exist");
        all.into_iter().take(most.max(1)).map(|c| c.name).collect::<Vec<_>>()
    };
    works.iter().map(|of| (of.clone(), list(of))).filter(|(_, names)| names.len() > 1).collect()
}

/// The table of each round: candidates of the same position. The first is the cost model's choice throughout; work that has no more
/// candidates is done by that again.
fn tables(lists: &BTreeMap<Work, Vec<String>>) -> Vec<Vec<MeasuredTile>> {
    let n_rounds = lists.values().map(Vec::len).max().unwrap_or(0);
    let entry = |of: &Work, tile: &String| MeasuredTile {
        tile: tile.clone(),
        us: 1.0,
        of: of.clone(),
        tried: BTreeMap::from([(tile.clone(), 1.0)]),
    };
    let table = |round: usize| lists.iter().filter_map(|(of, names)| Some(entry(of, names.get(round)?))).collect();
    (0..n_rounds).map(table).collect()
}

fn plan_rounds(
    graph: &Graph,
    program: &Program,
    options: &Options,
    device: &DeviceProfile,
    tables: &[Vec<MeasuredTile>],
) -> Result<Compiled, TuneError> {
    let of_table = |tiles: &Vec<MeasuredTile>| DeviceProfile { tiles: tiles.clone(), ..device.clone() };
    let devices: Vec<DeviceProfile> = tables.iter().map(of_table).collect();
    let named = |round: usize| Graph { name: format!("round_{round}"), ..graph.clone() };
    let graphs: Vec<Graph> = (0..devices.len()).map(named).collect();
    let stores = vec![&program.weights; devices.len()];
    let devices: Vec<&DeviceProfile> = devices.iter().collect();
    let mut compiled = plan_for(graphs, &stores, options, &devices).map_err(TuneError::Diagnostics)?;
    compiled.plan.name = format!("tune_{}", program.name);
    Ok(compiled)
}

fn run_rounds(
    gpu: &rt::Gpu,
    compiled: &Compiled,
    clock: &mut dyn Clock,
    sampling: &Sampling,
) -> Result<Taken, TuneError> {
    let loaded = Loaded::new(gpu, compiled, &rt::CacheDir::Default)?;
    let arenas = loaded.arenas()?;
    let mut rounds = vec![];
    for (at, entry) in compiled.plan.entries.iter().enumerate() {
        rounds.push(TimedSteps::new(gpu, &loaded, (at, Some(&arenas)), &made_up(entry, 1)?)?);
    }
    let mut arms: Vec<&mut dyn Arm> = rounds.iter_mut().map(|round| round as &mut dyn Arm).collect();
    Ok(in_turns(&mut arms, clock, sampling)?)
}

/// All samples so far.
#[derive(Default)]
struct Seen {
    /// Microseconds of a step, on average over those of a run, by work and tile.
    samples: BTreeMap<Work, BTreeMap<String, Samples>>,
    n_steps: BTreeMap<Work, usize>,
}

impl Seen {
    /// Takes in the rounds of a program: `tiles` says by round what each step is.
    fn add(&mut self, tiles: &[Vec<Option<Chosen>>], taken: &Taken) {
        for (round, (chosen, samples)) in tiles.iter().zip(&taken.arms).enumerate() {
            let mut columns: BTreeMap<(&Work, &str), Vec<usize>> = BTreeMap::new();
            for (column, c) in chosen.iter().enumerate().filter_map(|(i, c)| Some((i, c.as_ref()?))) {
                columns.entry((&c.of, &c.tile)).or_default().push(column);
            }
            for ((of, tile), columns) in columns {
                if round == 0 {
                    *self.n_steps.entry(of.clone()).or_default() += columns.len();
                }
                self.add_samples(of, tile, samples, &columns);
            }
        }
    }

    fn add_samples(&mut self, of: &Work, tile: &str, from: &Samples, columns: &[usize]) {
        let mean = |row: &Vec<f64>| vec![columns.iter().map(|&c| row[c]).sum::<f64>() / columns.len() as f64];
        let tiles = self.samples.entry(of.clone()).or_default();
        let nothing = Samples { rows: vec![], discarded: 0, steady: true };
        let samples = tiles.entry(tile.to_owned()).or_insert(nothing);
        samples.rows.extend(from.rows.iter().map(mean));
        samples.discarded += from.discarded;
        samples.steady &= from.steady;
    }

    /// The choice for all work of which several tiles were measured.
    fn measured(&self, device: &DeviceProfile, tie: f64) -> Vec<Measured> {
        let of_work = |(of, tiles): (&Work, &BTreeMap<String, Samples>)| {
            let listed = listed(device, of).expect("the scheduler names types that exist");
            let tried: BTreeMap<String, Figure> =
                tiles.iter().map(|(tile, samples)| (tile.clone(), samples.figure(|row| row[0]))).collect();
            let tile = fastest(&listed, &tried, tie)?;
            let favourite = listed[0].name.clone();
            Some(Measured { of: of.clone(), n_steps: self.n_steps[of], favourite, tile, tried })
        };
        self.samples.iter().filter(|(_, tiles)| tiles.len() > 1).filter_map(of_work).collect()
    }
}

/// Of the tiles that are as fast as the fastest, up to a tie, the one that the cost model likes best: so that noise does not choose.
fn fastest(listed: &[Listed], tried: &BTreeMap<String, Figure>, tie: f64) -> Option<String> {
    let best = tried.values().min_by(|a, b| a.median.total_cmp(&b.median))?;
    let limit = best.median * (1.0 + tie.max(best.spread() / 2.0));
    let as_fast = |c: &&Listed| tried.get(&c.name).is_some_and(|figure| figure.median <= limit);
    listed.iter().find(as_fast).map(|c| c.name.clone())
}

impl Measured {
    /// The entry of a table. Times are rounded to 10⁻⁸ s.
    pub fn entry(&self) -> MeasuredTile {
        let round = |us: f64| (us * 100.0).round().max(1.0) / 100.0;
        let tried: BTreeMap<String, f64> = self.tried.iter().map(|(tile, f)| (tile.clone(), round(f.median))).collect();
        MeasuredTile { tile: self.tile.clone(), us: tried[&self.tile], of: self.of.clone(), tried }
    }

    /// Microseconds of the model's choice and of the tile to take, for all steps of a run; the former only if it was measured.
    pub fn us(&self) -> (Option<f64>, f64) {
        let of = |tile: &String| self.tried.get(tile).map(|figure| figure.median * self.n_steps as f64);
        (of(&self.favourite), of(&self.tile).expect("a tile that was tried"))
    }
}

/// A table with new entries in place of those for the same work, sorted.
pub fn merged(old: &[MeasuredTile], new: &[Measured]) -> Vec<MeasuredTile> {
    let mut all: BTreeMap<Work, MeasuredTile> = old.iter().map(|t| (t.of.clone(), t.clone())).collect();
    all.extend(new.iter().map(|m| (m.of.clone(), m.entry())));
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(median: f64, half_spread: f64) -> Figure {
        let (p10, p90) = (median * (1.0 - half_spread), median * (1.0 + half_spread));
        Figure { median, p10, p90, n: 9, discarded: 0, trusted: true }
    }

    fn pick(tried: &[(&str, Figure)]) -> String {
        let listed: Vec<Listed> =
            tried.iter().map(|(name, _)| Listed { name: (*name).to_owned(), cost: None }).collect();
        let tried: BTreeMap<String, Figure> = tried.iter().map(|(name, f)| ((*name).to_owned(), *f)).collect();
        fastest(&listed, &tried, 0.03).expect("some were tried")
    }

    #[test]
    fn ties_and_noise_go_to_the_model_s_favourite_and_clear_wins_do_not() {
        assert_eq!(pick(&[("z", figure(102.0, 0.0)), ("a", figure(100.0, 0.0))]), "z", "a tie");
        assert_eq!(pick(&[("z", figure(104.0, 0.0)), ("a", figure(100.0, 0.0))]), "a", "beyond a tie");
        assert_eq!(pick(&[("z", figure(108.0, 0.0)), ("a", figure(100.0, 0.1))]), "z", "within its scatter");
        assert_eq!(pick(&[("z", figure(150.0, 0.0)), ("m", figure(101.0, 0.0)), ("a", figure(100.0, 0.0))]), "m");
    }

    #[test]
    fn tables_have_one_candidate_of_each_piece_of_work_a_round() {
        let device = crate::device::find("h200").expect("bundled");
        let works: BTreeSet<Work> = crate::schedule::tile::tests::products_of_models().iter().map(Work::from).collect();
        let lists = lists(&device, &works, 5);
        let tables = tables(&lists);
        assert_eq!(tables.len(), 5);
        let mut found: BTreeMap<Work, Vec<String>> = BTreeMap::new();
        for table in &tables {
            let distinct: BTreeSet<&Work> = table.iter().map(|t| &t.of).collect();
            assert_eq!(distinct.len(), table.len());
            table.iter().for_each(|t| found.entry(t.of.clone()).or_default().push(t.tile.clone()));
        }
        assert_eq!(found, lists);
        assert!(lists.values().all(|names| (2..=5).contains(&names.len())));
    }

    #[test]
    fn steps_of_the_same_work_are_averaged_over_a_run_and_rounds_that_repeat_a_tile_add_to_it() {
        let work = Work::from(&crate::schedule::tile::tests::products_of_models()[0]);
        let chosen = |tile: &str| Some(Chosen { of: work.clone(), tile: tile.to_owned(), measured: true });
        let tiles = [vec![chosen("a"), None, chosen("a")], vec![chosen("b"), None, chosen("a")]];
        let arm = |rows: Vec<Vec<f64>>| Samples { rows, discarded: 1, steady: true };
        let taken =
            Taken { arms: vec![arm(vec![vec![1.0, 50.0, 3.0]]), arm(vec![vec![7.0, 50.0, 4.0]])], load_us: 1.0 };
        let mut seen = Seen::default();
        seen.add(&tiles, &taken);
        let rows = |tile: &str| seen.samples[&work][tile].rows.concat();
        assert_eq!((rows("a"), rows("b")), (vec![2.0, 4.0], vec![7.0]));
        assert_eq!((seen.n_steps[&work], seen.samples[&work]["a"].discarded), (2, 2));
    }

    #[test]
    fn new_entries_replace_those_for_the_same_work_and_the_table_is_sorted() {
        let works: Vec<Work> = crate::schedule::tile::tests::products_of_models().iter().map(Work::from).collect();
        let measured = |of: &Work, us: f64| Measured {
            of: of.clone(),
            n_steps: 2,
            favourite: "a".into(),
            tile: "b".into(),
            tried: [("a".to_string(), figure(30.0, 0.0)), ("b".to_string(), figure(us, 0.0))].into(),
        };
        let old = merged(&[], &[measured(&works[1], 9.004), measured(&works[0], 5.0)]);
        assert!(old.is_sorted_by_key(|t| t.of.clone()));
        assert!(old.iter().any(|t| t.of == works[1] && t.us == 9.0 && t.tried["b"] == 9.0));
        let new = merged(&old, &[measured(&works[1], 7.0), measured(&works[2], 1e-9)]);
        let us = |of: &Work| new.iter().find(|t| t.of == *of).expect("an entry").us;
        assert_eq!((new.len(), us(&works[0]), us(&works[1]), us(&works[2])), (3, 5.0, 7.0, 0.01));
        assert_eq!(measured(&works[0], 5.0).us(), (Some(60.0), 10.0));
    }
}
