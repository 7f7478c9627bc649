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

/// A cooperative tile whose right fragments are filled from packed weights.
struct PackedTile {
    tile: CoopTile,
    /// Fragments of packed weights that are read ahead.
    ahead: u32,
    /// Time against what [`coop_cost`] says of a staged tile.
    factor: f64,
}

const fn packed_tile(columns: (u32, u32), warps: (u32, u32), ahead: u32, (factor, alone): (f64, f64)) -> PackedTile {
    PackedTile { tile: coop_tile((columns.0, columns.1, PACKED_DEPTH), warps, 2, alone), ahead, factor }
}

/// Measured on an H200: the subgroups stand side by side, so that each reads what no other does. The last is for devices with little
/// shared memory.
const PACKED_TILES: [PackedTile; 7] = [
    packed_tile((64, 256), (1, 4), 1, (0.69, 1.4)),
    packed_tile((64, 192), (1, 4), 1, (0.85, 1.24)),
    packed_tile((96, 192), (1, 4), 1, (0.96, 1.4)),
    packed_tile((64, 144), (1, 3), 2, (0.78, 1.24)),
    packed_tile((64, 128), (1, 4), 2, (0.735, 1.4)),
    FEW_PACKED,
    packed_tile((16, 16), (1, 2), 1, (3.0, 1.24)),
];

/// The packed tile for few outputs that reads no further ahead than others do, against whose time [`DeepTile`]s have theirs.
const FEW_PACKED: PackedTile = packed_tile((32, 128), (1, 4), 2, (0.65, 1.6));
const FEW_PACKED_TIMES: Times = Times { latency: 0.675, once: 3.6, step: 0.27, rest: 0.5 };

/// A packed tile that reads a whole tile of weights ahead: where tiles are few, the time of a product is that of reading weights that are not
/// in the cache, one tile along k after another.
struct DeepTile {
    size: (u32, u32, u32),
    warps: (u32, u32),
    /// Subgroups that share the sum of each output, each with its share of a tile along k.
    parts: u32,
    times: Times,
}

const fn deep_tile(
    size: (u32, u32, u32),
    warps: (u32, u32),
    parts: u32,
    [latency, once, step, rest]: [f64; 4],
) -> DeepTile {
    DeepTile { size, warps, parts, times: Times { latency, once, step, rest } }
}

/// Times on an H200 in 10⁻⁶ s: see [`waits_and_works`].
struct Times {
    /// From one step of k to the next, of a workgroup that has the unit to itself.
    latency: f64,
    /// Of such a workgroup, whatever its depth.
    once: f64,
    /// Share of a busy unit that a step takes.
    step: f64,
    /// Share of a busy unit that the rest of a tile takes.
    rest: f64,
}

/// Fitted on an H200 to the products of vit-b, swin-t and Depth Anything, within a fifth. Their depth, divided by their parts, is the fragments' that
/// are read ahead. More subgroups for few tiles hide each other's waits.
const DEEP_TILES: [DeepTile; 7] = [
    deep_tile((32, 64, 64), (1, 4), 1, [0.61, 2.9, 0.147, 2.1]),
    deep_tile((32, 64, 128), (1, 4), 1, [0.72, 3.0, 0.335, 1.0]),
    deep_tile((32, 64, 256), (1, 4), 1, [1.01, 3.66, 0.57, 2.3]),
    deep_tile((32, 32, 256), (1, 2), 2, [0.6, 3.5, 0.39, 1.6]),
    deep_tile((32, 64, 256), (1, 4), 2, [0.8, 3.9, 0.8, 2.0]),
    deep_tile((32, 64, 128), (1, 4), 2, [0.55, 3.3, 0.31, 2.3]),
    deep_tile((64, 64, 128), (1, 4), 2, [0.525, 4.0, 0.52, 4.3]),
];

/// Sums of more terms were not measured with several subgroups to a sum: 256×256×4096 takes 9.3 µs in parts, by kernels of their own.
const DEEPEST: f64 = 3072.0;

/// A cooperative tile whose both sides are read where they lie, without shared memory, and its times on an H200 in 10⁻⁶ s.
struct DirectTile {
    size: (u32, u32, u32),
    warps: (u32, u32),
    /// From one step of k to the next, of a subgroup that has the unit to itself.
    latency: f64,
    /// Share of a busy unit that a step takes.
    step: f64,
    /// Share of a busy unit that the rest of a tile takes.
    rest: f64,
    /// Time of putting a sum together that subgroups share, for each to the power of 1.5.
    join: f64,
}

const fn direct_tile(size: (u32, u32, u32), warps: (u32, u32), [latency, step, rest, join]: [f64; 4]) -> DirectTile {
    DirectTile { size, warps, latency, step, rest, join }
}

/// Fitted on an H200 to 3×3 convolutions of 16 to 384 channels over 19² to 743² and to 1370×384×1536: 77 of 90 within a fifth, with eight parts up to
/// half off (`docs/benchmarks/2026-11-30-h200-products.md`). The last is for devices with little shared memory.
const DIRECT_TILES: [DirectTile; 5] = [
    direct_tile((64, 64, 32), (2, 1), [0.225, 0.165, 0.15, 0.38]),
    direct_tile((64, 32, 32), (2, 1), [0.215, 0.1, 0.1, 0.23]),
    direct_tile((64, 16, 32), (2, 1), [0.2, 0.065, 0.05, 0.2]),
    direct_tile((32, 32, 32), (2, 1), [0.15, 0.047, 0.35, 0.2]),
    direct_tile((16, 16, 64), (2, 2), [0.4, 0.1, 0.35, 0.2]),
];

/// Subgroups that may share the sums of such a tile: where tiles are too few to fill the units.
const PARTS: [u32; 4] = [1, 2, 4, 8];

/// Steps of k that each of these goes through at least.
const LEAST_STEPS: f64 = 2.0;

/// Share of a busy unit for each part of each output of a tile.
const PART: f64 = 0.05 / 1024.0;

/// Time of a tile that has a unit to itself, against its share of a busy one.
const LONE: f64 = 0.85;

/// What [`coop_cost`] says of a tile is so much for every 10⁻⁶ s of an H200.
const US: f64 = 3.57e6;

/// Windows of convolutions take staged tiles so much longer than rows of a matrix do.
const STAGED_WINDOWS: f64 = 1.65;
/// In models, where weights are not in the cache, rows of few outputs take staged tiles so much longer than those that do not wait for each other.
const STAGED_ROWS: f64 = 1.15;

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
    let waits = match (p.fills, p.line < p.k) {
        (true, true) => STAGED_WINDOWS,
        (true, false) => STAGED_ROWS,
        (false, _) => 1.0,
    };
    let staged = COOP_TILES.iter().map(|t| (tile(t), Some(waits * coop_cost(device, p, t))));
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

/// How the device spreads left and right fragments, where its profile says so.
fn spreads(device: &DeviceProfile, frag: (u32, u32, u32), elem: DType) -> Option<(Spread, Spread)> {
    let same = |c: &&CoopShape| (c.m, c.n, c.k) == frag && c.operand == elem.name() && c.result == "f32";
    let shape = device.cooperative.iter().find(same)?;
    Some((shape.left.as_ref()?.as_spec()?, shape.right.as_ref()?.as_spec()?))
}

/// Bits of the number of a component that move its row, in left fragments, which drivers spread as they do sums; all where it is not known.
pub(super) fn row_bits(device: &DeviceProfile, frag: (u32, u32, u32), elem: DType) -> u32 {
    let Some((left, _)) = spreads(device, frag, elem) else { return u32::MAX };
    let bits = (0u32..).zip(&left.components).filter(|(_, entry)| entry.0 > 0);
    bits.fold(0, |all, (bit, _)| all | 1 << bit)
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

/// True where weights `[n, k]` can be packed: they are whole fragments and tiles.
pub fn packs_whole(device: &DeviceProfile, elem: DType, shape: &[i64]) -> bool {
    let &[n, k] = shape else { return false };
    let whole = |(f, multiple): (Fragments, u32)| n % i64::from(f.columns) == 0 && k % i64::from(multiple) == 0;
    packs(device, elem).is_some_and(whole)
}

/// Predicted time of a product of halves on matrix units, 10⁻⁶ s; none where it does not reach them.
pub(in crate::schedule) fn half_us(device: &DeviceProfile, p: &Problem) -> Option<f64> {
    let elem = p.half.filter(|_| !device.rates.cpu && p.m > 8.0)?;
    let costs = cooperative(device, p, elem).ok()?.into_iter().filter_map(|(_, cost)| cost);
    let least = costs.min_by(f64::total_cmp)?;
    Some(least * HALF_US * f64::from(device.rates.n_units) / device.rates.f16_matrix_tflop_per_s)
}

/// True where a product is quicker if its weights are packed.
pub fn gains_by_packing(device: &DeviceProfile, p: &Problem) -> bool {
    let Some(elem) = p.half else { return false };
    let cost = |p: &Problem| {
        let all = cooperative(device, p, elem).unwrap_or_default();
        all.into_iter().filter_map(|(c, cost)| Some((cost?, c))).min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let Some((quickest, tile)) = cost(&Problem { packed: true, ..*p }) else { return false };
    let plain = cost(&Problem { packed: false, fills: is_small(device, p), ..*p });
    tile.fill.is_some_and(|f| f.packed > 0) && plain.is_none_or(|(other, _)| quickest < other)
}

/// Tiles whose fragments are filled by component, with their predicted times.
fn filled(device: &DeviceProfile, p: &Problem, (frag, elem): ((u32, u32, u32), DType)) -> Vec<(Coop, Option<f64>)> {
    let Some((left, right)) = spreads(device, frag, elem) else { return vec![] };
    let limits = limits(device);
    let subgroup = device.limits.subgroup_size;
    let coop = |(bm, bn, bk): (u32, u32, u32), warps, buffers, packed: u32, parts| {
        let staged = packed > 0;
        let fill = Fill { left, right, staged, ahead: (!staged, !staged), packed, parts };
        Coop { bm, bn, bk, frag, warps, elem, subgroup, buffers, ahead: staged, fill: Some(fill) }
    };
    let packed = PACKED_TILES.iter().filter(|_| p.packed).map(|t| {
        let cost = t.factor * coop_cost(device, p, &t.tile);
        (coop(t.tile.size, t.tile.warps, t.tile.buffers, t.ahead, 1), Some(cost))
    });
    let direct = DIRECT_TILES.iter().filter(|_| p.fills).flat_map(|t| {
        let most = (p.k / f64::from(t.size.2) / LEAST_STEPS).max(1.0);
        let parts = PARTS.into_iter().filter(move |&parts| f64::from(parts) <= most);
        parts.map(move |parts| (coop(t.size, t.warps, 1, 0, parts), Some(direct_cost(device, p, t, parts))))
    });
    let whole = |t: &&DeepTile| p.packed && p.k % f64::from(t.size.2) == 0.0 && (t.parts == 1 || p.k <= DEEPEST);
    let deep = DEEP_TILES
        .iter()
        .filter(whole)
        .map(|t| (coop(t.size, t.warps, 2, t.size.2 / frag.2 / t.parts, t.parts), Some(deep_cost(device, p, t))));
    packed.chain(deep).chain(direct).filter(|(c, _)| coop_fits(c, &limits)).collect()
}

/// Tiles of the fullest unit: a few for each are more for one than for another.
fn tiles_of_a_unit(device: &DeviceProfile, p: &Problem, [bm, bn]: [f64; 2]) -> f64 {
    match p.batch * (p.m / bm).ceil() * (p.n / bn).ceil() / f64::from(device.rates.n_units) {
        one if one <= 1.0 => LONE,
        few if few <= 2.0 => few.ceil(),
        some if some < 4.0 => (some + some.ceil()) / 2.0,
        many => many,
    }
}

/// As [`coop_cost`], by what it says of the tile that these are measured against.
fn deep_cost(device: &DeviceProfile, p: &Problem, t: &DeepTile) -> f64 {
    let few = &FEW_PACKED.tile;
    let against = waits_and_works(device, p, (few.size, &FEW_PACKED_TIMES));
    FEW_PACKED.factor * coop_cost(device, p, few) * waits_and_works(device, p, (t.size, &t.times)) / against
}

/// Predicted time, 10⁻⁶ s: the steps of a tile wait for memory one after another, and all tiles of a unit share it.
fn waits_and_works(device: &DeviceProfile, p: &Problem, (size, t): ((u32, u32, u32), &Times)) -> f64 {
    let [bm, bn, bk] = [size.0, size.1, size.2].map(f64::from);
    let steps = (p.k / bk).ceil();
    let waits = t.latency * steps + t.once;
    let works = tiles_of_a_unit(device, p, [bm, bn]) * (t.step * steps + t.rest);
    (waits.powi(3) + works.powi(3)).cbrt()
}

/// As [`coop_cost`]: the steps of a tile wait for memory one after another, and all tiles of a unit share it.
fn direct_cost(device: &DeviceProfile, p: &Problem, t: &DirectTile, parts: u32) -> f64 {
    let [bm, bn, bk] = [t.size.0, t.size.1, t.size.2].map(f64::from);
    let tiles = tiles_of_a_unit(device, p, [bm, bn]);
    let (steps, parts) = ((p.k / bk).ceil(), f64::from(parts));
    let shared = parts > 1.0;
    let join = if shared { t.join * parts.powf(1.5) } else { 0.0 };
    let waits = t.latency * (steps / parts).ceil() + join;
    let part = if shared { PART * bm * bn * parts } else { 0.0 };
    let works = tiles * (t.step * steps + t.rest + part);
    US * (waits.powi(3) + works.powi(3)).cbrt()
}

/// Fewer tiles than this for each unit leave products of plain matrices waiting for memory: they are better read where they lie, by
/// subgroups that share sums, than staged.
const FEW_TILES: f64 = 2.0;

/// True for products of so few outputs.
pub fn is_small(device: &DeviceProfile, p: &Problem) -> bool {
    let tiles = p.batch * (p.m / 64.0).ceil() * (p.n / 64.0).ceil();
    tiles <= FEW_TILES * f64::from(device.rates.n_units)
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
