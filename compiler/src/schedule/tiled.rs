//! Choice of the tile of f32 products in shared memory, and of the parts that a product is summed in.
//!
//! The cost of a tile is a prediction in µs: workgroups are dealt out to the units of the device evenly, a unit that has too few of them does
//! not reach its rate, and what a workgroup does beside multiplying takes as long as [`EDGE`] more steps of k.
//! Coefficients were fitted on an H200 (`docs/benchmarks/2026-11-29-h200-f32.md`, `2026-11-30-h200-instructions.md`); other devices enter by the
//! fields of their profile.

use super::tile::{self, Candidate, Problem};
use crate::device::DeviceProfile;
use jvc_kernels::spec::Staging;
use jvc_kernels::templates::matmul::shared_totals_in_memory;

/// A tile to choose.
struct Tile {
    bm: u32,
    bn: u32,
    bk: u32,
    rows: u32,
    cols: u32,
    buffers: u32,
    /// Rate of a unit that is full of such tiles, of the device's f32 rate.
    rate: f64,
    /// Workgroups that fill a unit.
    held: f64,
    /// Rate of a unit with one workgroup, of that of a full one.
    alone: f64,
    /// Rate where k is one line, of that of convolutions: shared memory is stored to without conflicts (`2026-11-30-h200-instructions.md`).
    along: f64,
}

const fn tile(size: (u32, u32, u32), each: (u32, u32), buffers: u32, rate: f64, held: f64, alone: f64) -> Tile {
    Tile { bm: size.0, bn: size.1, bk: size.2, rows: each.0, cols: each.1, buffers, rate, held, alone, along: 1.0 }
}

/// Tiles of 128 × 128 have no registers left for the sums of chains, nor for what finds them in memory: longer sums than this take half as
/// long again.
const ONE_CHAIN: f64 = 768.0;

/// 32-bit registers of a unit, and what an invocation needs beside its sums, of which chains have two sets: fewer workgroups fit.
const UNIT_REGISTERS: f64 = 65_536.0;
const OTHER_REGISTERS: u32 = 56;
/// What few workgroups of chains in a second round add to a product: 4096×576×2304 takes 425 µs in 384 tiles of 128 × 48, of which a unit has
/// three and room for two; 4096×576×576 takes 81.
const SECOND_ROUND: f64 = 1.37;

/// As measured on an H200, of the best there.
const TILES: [Tile; 11] = [
    tile((128, 128, 16), (8, 8), 1, 1.02, 2.0, 0.9),
    tile((128, 64, 16), (8, 8), 2, 1.0, 2.0, 0.8).gaining(1.07),
    tile((64, 64, 16), (8, 8), 2, 0.95, 4.0, 0.42),
    tile((64, 64, 16), (8, 4), 1, 0.9, 2.0, 0.67),
    tile((64, 64, 8), (8, 4), 1, 0.82, 2.0, 0.65),
    tile((64, 64, 32), (8, 4), 2, 0.88, 1.0, 1.0),
    tile((128, 48, 16), (8, 4), 1, 0.83, 3.0, 0.6).gaining(1.02),
    tile((128, 32, 16), (8, 4), 1, 0.86, 3.0, 0.5),
    tile((64, 32, 16), (8, 4), 1, 0.79, 4.0, 0.35),
    tile((32, 32, 16), (4, 4), 1, 0.67, 4.0, 0.3),
    tile((128, 16, 16), (4, 4), 2, 0.5, 2.0, 0.8),
];

/// The tile that fits every device.
const SMALLEST: usize = 9;

/// Why a tile is chosen, for the decisions of a plan.
pub(super) const WHY: &str = "the least predicted time for the device's units";

/// Steps of k that filling the first tile and storing the results take as long as.
const EDGE: f64 = 24.0;
/// The pass that sums parts, beside the bytes that it moves, in µs.
const SUM_US: f64 = 3.0;
/// Fewest terms of a part.
const MIN_PART: f64 = 128.0;
/// Most parts.
const MAX_PARTS: u32 = 32;
/// A split must save this share of the time.
const WORTH: f64 = 0.85;

impl Tile {
    const fn gaining(self, along: f64) -> Tile {
        Tile { along, ..self }
    }

    fn wg(&self) -> u32 {
        (self.bm / self.rows) * (self.bn / self.cols)
    }

    fn fits(&self, device: &DeviceProfile, most: u32) -> bool {
        let bytes = self.bk * (self.bm + self.bn + 8) * 4 * self.buffers;
        self.wg() <= most && bytes <= device.limits.shared_bytes_per_workgroup
    }

    /// Whether a unit has room for some of its workgroups and then for the rest, because their sums are chains.
    fn takes_two_rounds(&self, device: &DeviceProfile, p: &Problem) -> bool {
        let registers = self.wg() * (2 * self.rows * self.cols + OTHER_REGISTERS);
        let round = (UNIT_REGISTERS / f64::from(registers)).floor().clamp(1.0, self.held);
        let tiles = p.batch * (p.m / f64::from(self.bm)).ceil() * (p.n / f64::from(self.bn)).ceil();
        let per_unit = (tiles / f64::from(device.rates.n_units)).ceil();
        p.k > ONE_CHAIN && !self.keeps_totals_in_memory(p) && per_unit > round && per_unit < 2.0 * round
    }

    fn keeps_totals_in_memory(&self, p: &Problem) -> bool {
        let whole = p.m % f64::from(self.bm) == 0.0 && p.n % f64::from(self.bn) == 0.0 && p.line == p.k;
        whole && shared_totals_in_memory(self.rows * self.cols, p.k as u32)
    }

    /// Predicted time in µs.
    fn cost(&self, device: &DeviceProfile, p: &Problem) -> f64 {
        let [bm, bn, bk] = [self.bm, self.bn, self.bk].map(f64::from);
        let units = f64::from(device.rates.n_units);
        let tiles = p.batch * (p.m / bm).ceil() * (p.n / bn).ceil();
        let line = p.line.clamp(1.0, p.k.max(1.0));
        let depth = (line / bk).ceil() * bk * (p.k / line) + EDGE;
        let long = self.bm * self.bn >= 128 * 128 && p.k > ONE_CHAIN;
        let along = if p.line >= p.k { self.along } else { 1.0 };
        let rate = self.rate * along / if long { 1.5 } else { 1.0 };
        let unit_rate = device.rates.f32_tflop_per_s * 1e6 / units * rate;
        let one = 2.0 * bm * bn * depth / unit_rate;
        let per_unit = (tiles / units).ceil();
        // Between one workgroup and a full unit, linearly. Where a unit holds several, those of a second round are too few again.
        let full = |n: f64| ((n - 1.0) / (self.held - 1.0).max(1.0)).min(1.0);
        let shared = |n: f64| n / (self.alone + (1.0 - self.alone) * full(n));
        let shares = match per_unit {
            n if n < self.held => shared(n),
            n if self.held > 2.0 && n > self.held && n < 2.0 * self.held => self.held + shared(n - self.held),
            n => n,
        };
        device.rates.dispatch_us + shares * one
    }
}

/// Inner-loop shapes of an f32 product that the device has room for, with predicted times; the smallest if it has room for none.
pub(super) fn candidates(device: &DeviceProfile, p: &Problem) -> Vec<Candidate<Staging>> {
    let candidate = |t: &Tile, cost: Option<f64>| {
        let Tile { bm, bn, bk, rows, cols, buffers, .. } = *t;
        Candidate { staging: Staging::Shared { bm, bn, bk, rows, cols, buffers }, wg: t.wg(), cost }
    };
    let most = 256.min(device.limits.max_workgroup_invocations);
    let fitting = TILES.iter().filter(|t| t.fits(device, most)).map(|t| candidate(t, Some(t.cost(device, p))));
    let all: Vec<Candidate<Staging>> = fitting.collect();
    if all.is_empty() { vec![candidate(&TILES[SMALLEST], None)] } else { all }
}

/// The tile that takes the least predicted time.
fn best(device: &DeviceProfile, p: &Problem) -> (&'static Tile, f64) {
    let most = 256.min(device.limits.max_workgroup_invocations);
    let costs = TILES.iter().filter(|t| t.fits(device, most)).map(|t| (t, t.cost(device, p)));
    costs.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((&TILES[SMALLEST], f64::INFINITY))
}

/// Number of parts that a product is best summed in, a divisor of `divisible`; 1 for a whole one.
pub fn parts(device: &DeviceProfile, p: &Problem, divisible: u32) -> u32 {
    if device.rates.cpu || p.m <= 8.0 || p.n < 16.0 {
        return 1;
    }
    let cost = |parts: u32| {
        let parts = f64::from(parts);
        let packed = p.packed && parts == 1.0;
        let part = Problem { batch: p.batch * parts, k: p.k / parts, line: p.line / parts, packed, ..*p };
        let product = tile::half_us(device, &part).unwrap_or_else(|| best(device, &part).1);
        // Parts are written and read once more.
        let bytes = if parts > 1.0 { p.batch * p.m * p.n * 4.0 * (2.0 * parts + 1.0) } else { 0.0 };
        let pass = if parts > 1.0 { SUM_US + bytes / (device.rates.peak_gb_per_s * 1e3) } else { 0.0 };
        product + pass
    };
    let slowed = tile::half_us(device, p).is_none() && best(device, p).0.takes_two_rounds(device, p);
    let whole = cost(1) * if slowed { SECOND_ROUND } else { 1.0 };
    // In two parts, still chains, 4096×576×2304 gained half of what four without them do.
    let longest = if slowed { ONE_CHAIN } else { f64::INFINITY };
    let lengths = |s: u32| (MIN_PART..=longest).contains(&(p.k / f64::from(s)));
    let choices = (2..=MAX_PARTS).filter(|s| divisible.is_multiple_of(*s) && lengths(*s));
    let best = choices.map(|s| (s, cost(s))).min_by(|a, b| a.1.total_cmp(&b.1));
    best.filter(|(_, time)| *time < WORTH * whole).map_or(1, |(s, _)| s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{all, find};
    use jvc_kernels::dtype::{DType, Ty};

    fn problem(m: f64, n: f64, k: f64, line: f64) -> Problem {
        Problem { batch: 1.0, m, n, k, line, acc: Ty::F32, half: None, gathers: false, fills: false, packed: false }
    }

    /// The fastest of those measured on the card, or within 3 % of it.
    #[test]
    fn the_shapes_of_the_models_get_tiles_that_measured_fast_on_an_h200() {
        let h200 = find("h200").expect("a bundled profile");
        for (p, tile) in [
            (problem(4096.0, 4096.0, 4096.0, 4096.0), (128, 64, 16)),
            (problem(4096.0, 1152.0, 4608.0, 4608.0), (128, 64, 16)),
            (problem(4096.0, 2304.0, 576.0, 576.0), (128, 64, 16)),
            (problem(4096.0, 1728.0, 576.0, 576.0), (128, 64, 16)),
            (problem(1500.0, 1280.0, 1280.0, 1280.0), (128, 64, 16)),
            (problem(16384.0, 144.0, 576.0, 576.0), (128, 48, 16)),
            (problem(4096.0, 576.0, 576.0, 576.0), (128, 48, 16)),
            (problem(57600.0, 64.0, 576.0, 64.0), (64, 64, 16)),
            (problem(784.0, 256.0, 2304.0, 256.0), (64, 64, 32)),
            (problem(87616.0, 32.0, 576.0, 64.0), (64, 32, 16)),
        ] {
            let Staging::Shared { bm, bn, bk, .. } = tile::favourite(&h200, &p) else { panic!("a shared staging") };
            assert_eq!((bm, bn, bk), tile, "{p:?}");
        }
    }

    #[test]
    fn every_device_gets_a_tile_that_it_has_room_for() {
        for device in all() {
            for p in
                [problem(4096.0, 4096.0, 512.0, 512.0), problem(9.0, 9.0, 9.0, 9.0), problem(1e6, 16.0, 64.0, 64.0)]
            {
                for c in candidates(&device, &p) {
                    let Staging::Shared { bm, bn, bk, buffers, .. } = c.staging else { panic!("shared") };
                    let bytes = bk * (bm + bn + 8) * 4 * buffers;
                    let limits = &device.limits;
                    assert!(c.wg <= limits.max_workgroup_invocations && bytes <= limits.shared_bytes_per_workgroup);
                }
            }
        }
    }

    #[test]
    fn only_long_sums_of_few_outputs_are_summed_in_parts() {
        let h200 = find("h200").expect("a bundled profile");
        let few = problem(256.0, 256.0, 4096.0, 4096.0);
        let n = parts(&h200, &few, 4096);
        assert!(n > 1 && 4096 % n == 0, "{n}");
        assert_eq!(parts(&h200, &problem(4096.0, 4096.0, 4096.0, 4096.0), 4096), 1);
        assert_eq!(parts(&h200, &problem(256.0, 256.0, 200.0, 200.0), 200), 1, "no part would be long enough");
        let two_rounds = problem(4096.0, 576.0, 2304.0, 2304.0);
        assert_eq!(parts(&h200, &two_rounds, 2304), 4, "a whole takes 425 µs");
        assert_eq!(parts(&h200, &few, 1), 1, "nothing divides it");
        let half = |m, n, k| Problem { half: Some(DType::F16), packed: true, ..problem(m, n, k, k) };
        let whole = parts(&h200, &half(197.0, 768.0, 768.0), 768);
        assert_eq!(whole, 1, "packed weights read ahead take 9 µs, three parts and their sum 11");
        let whole = parts(&h200, &half(197.0, 768.0, 3072.0), 3072);
        assert_eq!(whole, 1, "with two subgroups to a sum 13.5 µs, eight parts and their sum 19");
        assert!(parts(&h200, &half(256.0, 256.0, 4096.0), 4096) > 1, "9.3 µs in parts");
        assert_eq!(parts(&find("lavapipe").expect("a bundled profile"), &few, 4096), 1, "a CPU is always full");
    }
}
