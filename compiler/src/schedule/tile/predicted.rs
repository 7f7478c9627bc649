//! What a matrix product takes by the model that tiles are chosen with: for comparing shapes with each other.

use super::halves::{COOP_EDGE, COOP_SMALL, COOP_TILES, coop_cost};
use super::{Problem, favourite};
use crate::device::DeviceProfile;
use jvc_kernels::spec::Staging;

/// Predicted time of a product with the tile that the model likes best for it, in no unit: tiles that a unit runs one after another, each the time of its
/// outputs, its edges and its depth.
pub fn predicted(device: &DeviceProfile, p: &Problem) -> f64 {
    match favourite(device, p) {
        Staging::Coop(c) => {
            let tile =
                COOP_TILES.iter().chain([&COOP_SMALL]).find(|t| t.size == (c.bm, c.bn, c.bk) && t.warps == c.warps);
            coop_cost(device, p, tile.expect("a tile of the list"))
        }
        Staging::Shared { bm, bn, bk, .. } => tiled(device, p, [bm, bn, bk].map(f64::from)),
        Staging::Registers { rows, cols } => tiled(device, p, [f64::from(16 * rows), f64::from(16 * cols), 1.0]),
        Staging::Gemv { .. } => p.batch * p.m * p.n * p.k,
    }
}

fn tiled(device: &DeviceProfile, p: &Problem, [bm, bn, bk]: [f64; 3]) -> f64 {
    // Several workgroups share a unit: what counts is the work of the fullest one, not whole rounds of large tiles.
    let tiles = p.batch * (p.m / bm).ceil() * (p.n / bn).ceil();
    let per_unit = (tiles / f64::from(device.rates.n_units)).ceil();
    per_unit * (bm * bn + COOP_EDGE * (bm + bn)) * (p.k / bk).ceil() * bk
}
