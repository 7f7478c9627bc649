//! Tiles of products of halves on cooperative matrices: staged ones, and ones whose fragments are filled by component.

use super::Problem;
use crate::device::{CoopShape, DeviceProfile};
use crate::plan::kernels::limits;
use crate::schedule::layout::Fragments;
use jvc_kernels::dtype::DType;
use jvc_kernels::spec::{Coop, Fill, Spread};
use jvc_kernels::templates::matmul::coop_fits;

/// A cooperative tile to choose.
#[derive(Clone, Copy)]
pub(super) struct CoopTile {
    /// Size along m, n and k.
    pub(super) size: (u32, u32, u32),
    /// Subgroups along m and n.
    pub(super) warps: (u32, u32),
    /// Tiles in shared memory.
    buffers: u32,
    /// Time of a tile that has a unit to itself, against its share of one that two run on.
    alone: f64,
}

const fn coop_tile(size: (u32, u32, u32), warps: (u32, u32), buffers: u32, alone: f64) -> CoopTile {
    CoopTile { size, warps, buffers, alone }
}

/// Measured on an H200: k tiles of 64 halves are lines of its cache and beat all others by a quarter; exact tiles for multiples of 144;
/// deep ones where tiles are few.
pub(super) const COOP_TILES: [CoopTile; 7] = [
    coop_tile((128, 128, 64), (2, 2), 1, 1.22),
    coop_tile((128, 144, 64), (4, 1), 1, 1.6),
    coop_tile((128, 64, 64), (2, 2), 1, 1.22),
    coop_tile((64, 128, 64), (1, 4), 1, 1.22),
    coop_tile((64, 144, 64), (2, 3), 1, 1.22),
    coop_tile((64, 64, 64), (2, 2), 1, 1.22),
    coop_tile((32, 32, 128), (2, 2), 2, 1.22),
];

/// Elements along k that the depth of packed weights must be a multiple of: tiles are this deep.
const PACKED_DEPTH: u32 = 64;

/// A cooperative tile whose fragments are filled by component.
struct FilledTile {
    tile: CoopTile,
    /// Fragments of packed weights that are read ahead; 0: both sides are read where they lie, without shared memory.
    packed: u32,
    /// Time against what [`coop_cost`] says of a staged tile.
    factor: f64,
}

const fn filled_tile(size: (u32, u32, u32), warps: (u32, u32), packed: u32, (factor, alone): (f64, f64)) -> FilledTile {
    FilledTile { tile: coop_tile(size, warps, if packed > 0 { 2 } else { 1 }, alone), packed, factor }
}

/// Measured on an H200. Packed weights: the subgroups stand side by side, so that each reads what no other does. Without: small tiles of
/// two subgroups, many of which a unit runs at a time, for windows of convolutions; `alone` is how many of them take no longer than one. The
/// last of each is for devices with little shared memory.
const FILLED_TILES: [FilledTile; 11] = [
    filled_tile((64, 256, PACKED_DEPTH), (1, 4), 1, (0.69, 1.4)),
    filled_tile((64, 192, PACKED_DEPTH), (1, 4), 1, (0.85, 1.24)),
    filled_tile((64, 144, PACKED_DEPTH), (1, 3), 2, (0.78, 1.24)),
    filled_tile((64, 128, PACKED_DEPTH), (1, 4), 2, (0.735, 1.4)),
    filled_tile((32, 128, PACKED_DEPTH), (1, 4), 2, (0.65, 1.6)),
    filled_tile((16, 16, PACKED_DEPTH), (1, 2), 1, (3.0, 1.24)),
    filled_tile((64, 64, 32), (2, 1), 0, (0.74, 1.28)),
    filled_tile((64, 32, 32), (2, 1), 0, (0.55, 2.4)),
    filled_tile((64, 16, 32), (2, 1), 0, (0.6, 2.4)),
    filled_tile((32, 32, 32), (2, 1), 0, (0.53, 2.7)),
    filled_tile((16, 16, 64), (2, 2), 0, (3.0, 1.24)),
];

/// For devices whose shared memory holds none of them.
pub(super) const COOP_SMALL: CoopTile = coop_tile((32, 32, 16), (2, 2), 1, 1.22);

/// Time of a tile is about `m·n + COOP_EDGE·(m + n)`: fitted to tiles of 64×64 to 128×144 on an H200, within 8 %.
pub(super) const COOP_EDGE: f64 = 100.0;

/// 10⁻⁶ s of a unit that costs, for each 10¹² operations a second that it can do: fitted to 4096³ on an H200.
const HALF_US: f64 = 1.35e-6;

/// Where elements are found one by one, a tile waits for `m + n` of them in turn, and this much more for each other tile of its unit:
/// fitted to 3×3 convolutions, within 4 %.
const COOP_CROWD: f64 = 0.18;

/// Smallest sides that fill fragments well enough.
const COOP_LEAST: f64 = 16.0;

/// Every cooperative tile that the device can run the product with, and its predicted time in no unit where there is one, or why
/// there is none. Staged tiles come first: of equals the first is taken.
pub(super) fn cooperative(
    device: &DeviceProfile,
    p: &Problem,
    elem: DType,
) -> Result<Vec<(Coop, Option<f64>)>, &'static str> {
    if p.m < COOP_LEAST || p.n < COOP_LEAST || p.k < COOP_LEAST {
        return Err("half-precision product too small for cooperative matrices");
    }
    if device.limits.subgroup_size == 0 || !device.features.vulkan_memory_model {
        return Err(
            "half-precision product without cooperative matrices: the device has no fixed subgroup size, or no memory model",
        );
    }
    let Some(frag) = fragment(device, elem) else {
        return Err("half-precision product without cooperative matrices: the device has none of its type");
    };
    let limits = limits(device);
    let tile = |t: &CoopTile| {
        let ((bm, bn, bk), subgroup) = (t.size, device.limits.subgroup_size);
        let CoopTile { warps, buffers, .. } = *t;
        Coop { bm, bn, bk, frag, warps, elem, subgroup, buffers, ahead: true, fill: None }
    };
    let staged = COOP_TILES.iter().map(|t| (tile(t), Some(coop_cost(device, p, t))));
    let mut all: Vec<(Coop, Option<f64>)> = staged.filter(|(c, _)| coop_fits(c, &limits)).collect();
    if all.is_empty() {
        all.extend(Some((tile(&COOP_SMALL), None)).filter(|(c, _)| coop_fits(c, &limits)));
    }
    all.extend(filled(device, p, (frag, elem)));
    if all.is_empty() {
        Err("half-precision product without cooperative matrices: no tile fits the device")
    } else {
        Ok(all)
    }
}

/// The cheapest cooperative tile.
fn cheapest(device: &DeviceProfile, p: &Problem, elem: DType) -> Option<Coop> {
    let all = cooperative(device, p, elem).ok()?;
    let cost = |c: &(Coop, Option<f64>)| c.1.unwrap_or(f64::INFINITY);
    all.into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).map(|(c, _)| c)
}

/// How the device spreads left and right fragments, where its profile says so.
fn spreads(device: &DeviceProfile, frag: (u32, u32, u32), elem: DType) -> Option<(Spread, Spread)> {
    let same = |c: &&CoopShape| (c.m, c.n, c.k) == frag && c.operand == elem.name() && c.result == "f32";
    let shape = device.cooperative.iter().find(same)?;
    Some((shape.left.as_ref()?.as_spec()?, shape.right.as_ref()?.as_spec()?))
}

/// The order in which weights of products of this type are packed, and what their depth must be a multiple of; none where no tile wants it.
pub fn packs(device: &DeviceProfile, elem: DType) -> Option<(Fragments, u32)> {
    if device.rates.cpu || !matches!(elem, DType::F16 | DType::BF16) {
        return None;
    }
    let frag = fragment(device, elem)?;
    let (_, spread) = spreads(device, frag, elem)?;
    Some((Fragments { spread, columns: frag.1, deep: frag.2 }, PACKED_DEPTH))
}

/// Predicted time of a product of halves on matrix units, 10⁻⁶ s; none where it does not reach them.
pub(in crate::schedule) fn half_us(device: &DeviceProfile, p: &Problem) -> Option<f64> {
    let c = cheapest(device, p, p.half.filter(|_| !device.rates.cpu && p.m > 8.0)?)?;
    let of = |t: &CoopTile| t.size == (c.bm, c.bn, c.bk) && t.warps == c.warps;
    let cost = coop_cost(device, p, COOP_TILES.iter().find(|t| of(t))?);
    Some(cost * HALF_US * f64::from(device.rates.n_units) / device.rates.f16_matrix_tflop_per_s)
}

/// True where a product is quicker if its weights are packed.
pub fn gains_by_packing(device: &DeviceProfile, p: &Problem) -> bool {
    let Some(elem) = p.half else { return false };
    let packed = Problem { packed: true, ..*p };
    cheapest(device, &packed, elem).and_then(|c| c.fill).is_some_and(|f| f.packed > 0)
}

/// Tiles whose fragments are filled by component, with their predicted times.
fn filled(device: &DeviceProfile, p: &Problem, (frag, elem): ((u32, u32, u32), DType)) -> Vec<(Coop, Option<f64>)> {
    let Some((left, right)) = spreads(device, frag, elem) else { return vec![] };
    let limits = limits(device);
    let subgroup = device.limits.subgroup_size;
    let coop = |t: &FilledTile| {
        let ((bm, bn, bk), CoopTile { warps, buffers, .. }) = (t.tile.size, t.tile);
        let staged = t.packed > 0;
        let fill = Fill { left, right, staged, ahead: (!staged, !staged), packed: t.packed };
        Coop { bm, bn, bk, frag, warps, elem, subgroup, buffers, ahead: staged, fill: Some(fill) }
    };
    let usable = FILLED_TILES.iter().filter(|t| if t.packed > 0 { p.packed } else { p.fills });
    usable.map(|t| (coop(t), Some(filled_cost(device, p, t)))).filter(|(c, _)| coop_fits(c, &limits)).collect()
}

/// As [`coop_cost`]. Tiles without shared memory do not wait for each other: a unit takes them as they come, but has to have a few at a time.
fn filled_cost(device: &DeviceProfile, p: &Problem, t: &FilledTile) -> f64 {
    if t.packed > 0 {
        return t.factor * coop_cost(device, p, &t.tile);
    }
    let [bm, bn, bk] = [t.tile.size.0, t.tile.size.1, t.tile.size.2].map(f64::from);
    let tiles = p.batch * (p.m / bm).ceil() * (p.n / bn).ceil();
    let per_unit = (tiles / f64::from(device.rates.n_units)).max(t.tile.alone);
    t.factor * per_unit * (bm * bn + COOP_EDGE * (bm + bn)) * (p.k / bk).ceil() * bk
}

/// The fragment of a type that takes the fewest instructions: the largest.
fn fragment(device: &DeviceProfile, elem: DType) -> Option<(u32, u32, u32)> {
    let limits = limits(device);
    let frags = limits.cooperative.iter().filter(|f| f.3 == elem).map(|&(m, n, k, _)| (m, n, k));
    frags.max_by_key(|f| f.0 * f.1 * f.2)
}

/// Predicted time of all tiles of a problem, in no unit.
pub(super) fn coop_cost(device: &DeviceProfile, p: &Problem, t: &CoopTile) -> f64 {
    let [bm, bn, bk] = [t.size.0, t.size.1, t.size.2].map(f64::from);
    let tiles = p.batch * (p.m / bm).ceil() * (p.n / bn).ceil();
    let per_unit = (tiles / f64::from(device.rates.n_units)).ceil();
    let depth = (p.k / bk).ceil() * bk;
    if p.gathers {
        return (1.0 + COOP_CROWD * (per_unit - 1.0)) * (bm + bn) * depth;
    }
    let shares = if per_unit % 2.0 == 0.0 { per_unit } else { per_unit - 1.0 + t.alone };
    shares * (bm * bn + COOP_EDGE * (bm + bn)) * depth
}
