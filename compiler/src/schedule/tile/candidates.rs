//! Inner loops that a matrix product can have on a device, each with what the cost model says of it. `jvc tune` measures them.

use super::{PORTABLE_WG, Problem, halves, wg};
use crate::device::DeviceProfile;
use crate::schedule::tiled;
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::{AttentionStaging, Coop, CoopAttention, KeyParts, Staging, TiledAttention};

/// One way to compute a product or an attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<S> {
    /// Inner-loop shape.
    pub staging: S,
    /// Workgroup size.
    pub wg: u32,
    /// Predicted time, in a unit that the candidates of a piece of work share; none where there is no prediction.
    pub cost: Option<f64>,
}

/// Inner loops with names, which tell those of a piece of work apart in profiles and reports.
pub trait Named {
    /// The name; `wg` is the workgroup size.
    fn name(&self, wg: u32) -> String;
}

impl<S: Named> Candidate<S> {
    /// What tells it from the others, in profiles and reports.
    pub fn name(&self) -> String {
        self.staging.name(self.wg)
    }
}

impl Named for Staging {
    fn name(&self, wg: u32) -> String {
        match *self {
            Staging::Registers { rows, cols } => format!("registers {rows}x{cols}, {wg} invocations"),
            Staging::Shared { bm, bn, bk, rows, cols, buffers } => {
                format!("shared {bm}x{bn}x{bk} by {rows}x{cols}, {buffers} buffers, {wg}")
            }
            Staging::Coop(Coop { bm, bn, bk, warps, fill, .. }) => {
                let how = match fill {
                    None => "",
                    Some(fill) if fill.packed > 0 => ", packed",
                    Some(_) => ", filled",
                };
                let parts = match fill {
                    Some(fill) if fill.parts > 1 => format!(", {} parts", fill.parts),
                    _ => String::new(),
                };
                format!("cooperative {bm}x{bn}x{bk} by {}x{} subgroups{how}{parts}", warps.0, warps.1)
            }
            Staging::Gemv { threads_per_dot, cols } => format!("dots by {threads_per_dot}, {cols} columns, {wg}"),
        }
    }
}

impl Named for AttentionStaging {
    fn name(&self, wg: u32) -> String {
        match *self {
            AttentionStaging::Stream { block_keys, lanes } => format!("stream {block_keys} keys by {lanes}, {wg}"),
            AttentionStaging::Coop(CoopAttention { rows, warps, block_keys, .. }) => {
                format!("cooperative {rows} fragments by {warps} subgroups, {block_keys} keys")
            }
            AttentionStaging::Tiled(TiledAttention { rows, cols, across, .. }) => {
                format!("tiled {rows}x{cols} by {across}, {wg}")
            }
            AttentionStaging::Parts(KeyParts { count, len }) => format!("{count} parts of {len} keys, {wg}"),
        }
    }
}

/// The candidate that is taken where nothing is measured: the first of the cheapest, and the first of all where none has a prediction.
pub(super) fn favourite<S>(all: &[Candidate<S>]) -> &Candidate<S> {
    let cost = |c: &Candidate<S>| c.cost.unwrap_or(f64::INFINITY);
    all.iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("there always is some way to compute it")
}

/// Every way to compute a product on a device, and why none of them is fast. There is at least one.
///
/// CPU drivers compute cooperative matrices like any other arithmetic, and shared memory costs them more than it saves: they get
/// registers, whatever fragments they offer.
pub fn candidates(device: &DeviceProfile, p: &Problem) -> (Vec<Candidate<Staging>>, Vec<&'static str>) {
    let mut slow = vec![];
    if let Some(elem) = p.half.filter(|_| !device.rates.cpu && p.acc == Ty::F32 && p.m > 8.0) {
        match halves::cooperative(device, p, elem) {
            Ok(all) => {
                let candidate = |(c, cost): (Coop, Option<f64>)| Candidate {
                    staging: Staging::Coop(c),
                    wg: c.subgroups() * c.subgroup,
                    cost,
                };
                return (all.into_iter().map(candidate).collect(), vec![]);
            }
            Err(reason) => slow.push(reason),
        }
    }
    if device.rates.cpu || p.acc != Ty::F32 {
        if !device.rates.cpu {
            slow.push("matrix product outside f32 has no tiled kernel");
        }
        return (registers(device, p), slow);
    }
    if p.m <= 8.0 && p.k >= 64.0 {
        return (thin(device, p), slow);
    }
    if p.m >= 1024.0 && p.n <= 8.0 {
        return (vec![Candidate { staging: Staging::Registers { rows: 4, cols: 4 }, wg: 128, cost: None }], slow);
    }
    (tiled::candidates(device, p), slow)
}

/// Outputs of an invocation: first 8 × 4 where a problem is large enough to feed every core with them, else along m only.
fn registers(device: &DeviceProfile, p: &Problem) -> Vec<Candidate<Staging>> {
    let rows = [8u32, 4, 2].into_iter().find(|&r| f64::from(r) <= p.m).unwrap_or(1);
    let large = p.batch * p.m * p.n * p.k >= 1e6;
    let cols = [4u32, 2].into_iter().find(|&c| large && p.n >= f64::from(16 * c)).unwrap_or(1);
    let tiles = [8u32, 4, 2, 1].into_iter().flat_map(|rows| [4u32, 2, 1].map(|cols| (rows, cols)));
    let useful = tiles.filter(|&(r, c)| f64::from(r) <= p.m.max(1.0) && f64::from(c) <= p.n.max(1.0));
    let others = useful.filter(|&tile| tile != (rows, cols));
    let candidate = |(rows, cols)| Candidate {
        staging: Staging::Registers { rows, cols },
        wg: row_sharing_wg(device, p, rows, cols),
        cost: None,
    };
    std::iter::once((rows, cols)).chain(others).map(candidate).collect()
}

/// The largest workgroup that leaves few of its invocations without a column, so that all of it can share its rows.
fn row_sharing_wg(device: &DeviceProfile, p: &Problem, rows: u32, cols: u32) -> u32 {
    let tiles = (p.n / f64::from(cols)).ceil().max(1.0);
    let most = wg(device, p.batch * p.m * p.n / f64::from(rows * cols));
    let shares = |wg: &u32| (tiles / f64::from(*wg)).ceil() * f64::from(*wg) <= 1.25 * tiles;
    [64u32, 32, 16, 8].into_iter().filter(|&wg| wg <= most).find(shares).unwrap_or(most)
}

/// Lanes and columns of a thin product: first as many columns side by side as leave the device enough subgroups, and more lanes where even
/// single columns do not.
fn thin(device: &DeviceProfile, p: &Problem) -> Vec<Candidate<Staging>> {
    let wg = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    let enough = f64::from(device.rates.n_units) * 16.0;
    let sets = |cols: u32, lanes: u32| p.batch * p.n / f64::from(cols) * f64::from(lanes) / 32.0;
    let rows = p.m as u32;
    let bytes = |cols: u32, lanes: u32| wg / lanes * rows * cols * (lanes + 1) * 4;
    let room = device.limits.shared_bytes_per_workgroup;
    let fits = |cols: u32, lanes: u32| rows * cols <= lanes && bytes(cols, lanes) <= room;
    let mut lanes = 32.min(wg);
    while lanes < wg && sets(1, lanes) < enough && p.k / f64::from(lanes * 8) >= 4.0 {
        lanes *= 2;
    }
    let mut cols = 1;
    while cols < 4 && fits(2 * cols, lanes) && sets(2 * cols, lanes) >= enough {
        cols *= 2;
    }
    let tiles = [32u32, 64, 128, 256].into_iter().flat_map(|lanes| [1u32, 2, 4].map(|cols| (lanes, cols)));
    let others = tiles.filter(|&(l, c)| l <= wg && (l, c) != (lanes, cols) && fits(c, l));
    let candidate =
        |(threads_per_dot, cols)| Candidate { staging: Staging::Gemv { threads_per_dot, cols }, wg, cost: None };
    std::iter::once((lanes, cols)).chain(others).map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::all;
    use crate::schedule::tile::attention::attentions;
    use crate::schedule::tile::tests::{attentions_of_models, products_of_models};

    /// Lists of one candidate would make tuning pointless, two of a name ambiguous.
    #[test]
    fn candidates_have_names_of_their_own() {
        let distinct = |mut names: Vec<String>, what: &dyn std::fmt::Debug| {
            let n = names.len();
            names.sort_unstable();
            names.dedup();
            assert!(n > 0 && names.len() == n, "{what:?}: {names:?}");
        };
        for device in all() {
            for p in products_of_models() {
                distinct(candidates(&device, &p).0.iter().map(Candidate::name).collect(), &(&device.name, p));
            }
            for heads in attentions_of_models() {
                distinct(attentions(&device, &heads).0.iter().map(Candidate::name).collect(), &(&device.name, heads));
            }
        }
    }
}
