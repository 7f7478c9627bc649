//! Tile choice: pure functions from (problem, device) to parameters. No device names, only fields of the profile.

mod attention;
mod candidates;
mod halves;
mod table;

pub use attention::{Heads, Thin, attention_parts, attention_parts_wg};
pub use candidates::{Candidate, candidates};
pub(super) use halves::half_us;
pub use halves::{gains_by_packing, is_small, packs, packs_whole};

use super::tiled;
mod predicted;

pub use predicted::predicted;
pub use table::{Choice, Chosen, Listed, listed, strangers};

use crate::device::DeviceProfile;
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::expr::{ExprId, Exprs};
use jvc_kernels::is_exact_in;
use jvc_kernels::spec::{AttentionStaging, Extent, KernelSpec, MapSpec, MatmulSpec, Staging, Turned};
use jvc_kernels::templates::{map, row, scan, sort};

/// Invocations of a workgroup in the portable path.
const PORTABLE_WG: u32 = 256;
/// On CPU drivers a workgroup runs on one core, in vectors of the subgroup's width: small ones spread better.
const CPU_WG: u32 = 64;

/// A matrix product at its largest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Problem {
    /// Independent products.
    pub batch: f64,
    /// Rows.
    pub m: f64,
    /// Columns.
    pub n: f64,
    /// Summed length.
    pub k: f64,
    /// Length of the last summed axis that is longer than 1: tiles run along it.
    pub line: f64,
    /// Accumulator type.
    pub acc: Ty,
    /// The half type that both operands are exact in, if there is one.
    pub half: Option<DType>,
    /// Some of their elements can only be found one by one.
    pub gathers: bool,
    /// Both sides are found by whole blocks along k.
    pub fills: bool,
    /// The right side lies fragment by fragment.
    pub packed: bool,
}

fn wg(device: &DeviceProfile, work_items: f64) -> u32 {
    let most = if device.rates.cpu { CPU_WG } else { PORTABLE_WG }.min(device.limits.max_workgroup_invocations);
    let mut wg = 32.min(most);
    while wg < most && f64::from(wg) < work_items {
        wg *= 2;
    }
    wg
}

/// Workgroup size and elements per invocation of a map over `elems` elements.
pub fn map(device: &DeviceProfile, elems: f64) -> (u32, u32) {
    (wg(device, elems), 1)
}

/// Elements of an invocation where blocks of 16 bytes pay: where the last axis is just that, on devices that have threads enough left, and for
/// code that may be laid out so often.
pub fn map_group(device: &DeviceProfile, elems: f64, spec: &MapSpec) -> Option<u32> {
    let size = map::group_size(spec).filter(|_| !device.rates.cpu)?;
    let roots: Vec<ExprId> = spec.stores.iter().map(|s| s.value).collect();
    if spec.domain.last() == Some(&Extent::Const(size)) {
        return Some(size);
    }
    let enough = elems >= f64::from(device.rates.n_units) * 512.0 * f64::from(size);
    (enough && spec.exprs.reachable(&roots).len() <= MOST_GROUPED_NODES).then_some(size)
}

/// Tiles, and the workgroup, of a map that reads along another axis than it writes: where threads are enough.
pub fn map_turned(device: &DeviceProfile, elems: f64, spec: &MapSpec) -> Option<(Turned, u32)> {
    let few = device.rates.cpu || elems < f64::from(device.rates.n_units) * 1024.0;
    let wg = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    let axis = map::turned_axis(spec).filter(|_| !few && wg.is_multiple_of(TURNED_SIDE))?;
    let of_halves = Turned { axis, side: 2 * TURNED_SIDE };
    if map::turned_in_groups(&MapSpec { wg, ..spec.clone() }, of_halves) {
        return Some((of_halves, wg));
    }
    Some((Turned { axis, side: TURNED_SIDE }, wg))
}

/// Side of a tile: neighbours read and write lines of 128 bytes of f32, or of twice as many halves.
const TURNED_SIDE: u32 = 32;

/// Nodes of an expression that is laid out for every element of a group.
const MOST_GROUPED_NODES: usize = 64;

/// Workgroup size of kernels with one invocation a line.
pub fn lines(device: &DeviceProfile, lines: f64) -> u32 {
    wg(device, lines)
}

/// Workgroup size and invocations per row, of rows whose elements come in groups of so many.
pub fn row(device: &DeviceProfile, n_rows: f64, row_len: f64, group: u32) -> (u32, u32) {
    if device.rates.cpu || row_len < 64.0 {
        let threads = threads_within_loops(device, row_len);
        return (wg(device, n_rows * f64::from(threads)).max(threads), threads);
    }
    let most = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    // Short rows: turns that each lane takes over groups, all of them held, and what every lane does once.
    let resident = f64::from(device.rates.n_units) * 1024.0;
    let lane = |threads: u32| (row_len / f64::from(threads * group)).ceil() * f64::from(group);
    let cost = |threads: u32| (lane(threads) + ROW_ONCE) * (n_rows * f64::from(threads) / resident).max(1.0);
    let filled = |threads: u32| row_len * 2.0 >= f64::from(threads * group);
    let short = [8, 16, 32, 64, 128, 256].into_iter().filter(|&t| t <= most && filled(t));
    let short = short.filter(|&t| lane(t) <= f64::from(row::MOST_HELD));
    if let Some(threads) = short.min_by(|&a, &b| cost(a).total_cmp(&cost(b))) {
        return (if threads < 32 { most } else { threads.max(ROW_WG).min(most) }, threads);
    }
    // Few long rows want a whole workgroup each.
    let mut threads = 32.min(most);
    while threads < most && row_len / f64::from(threads) > 16.0 {
        threads *= 2;
    }
    (most.max(threads), threads)
}

/// Workgroup of rows that a subgroup or more share: rows in one workgroup wait for each other at each barrier. Measured on an H200, rows by 64: 48,000
/// norms of 1,280 halves with weights take 112 µs in workgroups of 256, 89 of 128 and 83 of 64; 30,000 softmaxes of 1,500 52, 50 and 50.
const ROW_WG: u32 = 64;

/// What a lane does once for its row (meeting the others at each stage), in elements.
const ROW_ONCE: f64 = 8.0;

/// Workgroup size and invocations per line of a cumulative operation. Lines that lie side by side (not `innermost`) are walked alone where
/// there are many: neighbours then read neighbours.
pub fn scan(device: &DeviceProfile, n_lines: f64, len: f64, innermost: bool) -> (u32, u32) {
    let many = !innermost && n_lines >= f64::from(device.rates.n_units) * 64.0;
    let loops = device.limits.max_loop_iterations.map_or(f64::INFINITY, f64::from);
    if (device.rates.cpu || many || len < 16.0) && len <= loops {
        return (wg(device, n_lines), 1);
    }
    let most = device.limits.max_workgroup_invocations.min(1024);
    let resident = f64::from(device.rates.n_units) * 2048.0;
    let items = f64::from(scan::ITEMS);
    let mut threads = 2.min(most);
    while threads < most
        && len > f64::from(threads) * items
        && (threads < 32 || n_lines * f64::from(threads) < resident)
    {
        threads *= 2;
    }
    (PORTABLE_WG.min(most).max(threads), threads)
}

/// Elements that shared memory holds, and workgroup size, of a sort of lines of at most so many elements; none where ranks are better: for very
/// short lines, and for those that do not fit.
pub fn sort(device: &DeviceProfile, longest: i64, ty: Ty) -> Option<(u32, u32)> {
    let capacity = u32::try_from(longest).ok().filter(|n| (SHORT_SORT..1 << 20).contains(n))?.next_power_of_two();
    let fits = ty != Ty::F64 && sort::shared_bytes(ty, capacity) <= device.limits.shared_bytes_per_workgroup;
    let most = if device.rates.cpu { CPU_WG } else { 1024 }.min(device.limits.max_workgroup_invocations);
    // Eight elements each: four comparators between two barriers.
    fits.then(|| (capacity, (capacity / 8).clamp(16, most)))
}

/// Elements that the list of a choice holds, and workgroup size, where so many first places of lines of at most so many elements are chosen without
/// sorting the others; none where that does not pay, or does not fit. Symbolic numbers have their largest value.
pub fn first_places(device: &DeviceProfile, n_lines: f64, (longest, kept): (i64, i64), ty: Ty) -> Option<(u32, u32)> {
    let longest = u32::try_from(longest).ok().filter(|&n| n < 1 << 20 && ty != Ty::F64)?;
    let kept = u32::try_from(kept).ok().filter(|&n| (1..1 << 10).contains(&n))?;
    let limits = &device.limits;
    let loops = limits.max_loop_iterations.map_or(u64::MAX, u64::from);
    // A line that cannot be sorted at once is better chosen from by many than counted through.
    let most =
        if sort(device, longest.into(), ty).is_some() { 512 } else { 1024 }.min(limits.max_workgroup_invocations);
    let own = |wg: u32| longest.div_ceil(wg);
    let fits = |wg: u32| {
        let capacity = kept.checked_mul(own(wg)).filter(|n| *n < 1 << 20)?;
        let iterations = sort::choice_iterations(capacity, own(wg), wg);
        let held = sort::choice_bytes(ty, capacity, wg) <= limits.shared_bytes_per_workgroup;
        (held && iterations <= loops).then_some((capacity, wg))
    };
    // Twice as many bests as places leave few elements up to the limit; and each is compared with all of them.
    let least = (2 * kept).next_power_of_two().max(LEAST_BESTS);
    let resident = f64::from(device.rates.n_units) * 1024.0;
    let sizes = std::iter::successors(Some(least), |wg| Some(wg * 2)).take_while(|&wg| wg <= most && 2 * wg <= longest);
    let fitting: Vec<(u32, u32)> = sizes.filter_map(fits).collect();
    let idle = |wg: u32| !device.rates.cpu && n_lines * f64::from(wg) < resident && own(wg) > LONG_TURN;
    fitting.iter().find(|(_, wg)| !idle(*wg)).or(fitting.last()).copied()
}

/// Invocations of a choice, at least. This and the next number are by counting comparisons, not measured.
const LEAST_BESTS: u32 = 64;

/// Elements that an invocation may look through while others have nothing to do.
const LONG_TURN: u32 = 16;

/// Counting ranks of so few elements takes less than the barriers of a network.
const SHORT_SORT: u32 = 96;

/// Workgroup size and invocations per row where latency is all that counts: as many as give each a few elements, while one wave of
/// workgroups over the device takes them all.
pub fn step(device: &DeviceProfile, n_rows: f64, row_len: f64) -> (u32, u32) {
    let most = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    let units = f64::from(device.rates.n_units);
    let mut threads = 32.min(most);
    // A block of 16 bytes each.
    while threads < most && row_len / f64::from(threads) > 4.0 && n_rows * f64::from(threads) * 2.0 <= units * 1024.0 {
        threads *= 2;
    }
    let mut wg = most;
    while wg > threads && n_rows * f64::from(threads) / f64::from(wg) < units * 0.75 {
        wg /= 2;
    }
    (wg, threads)
}

/// Passes over a row at most: three stages, and the stores; the outer loops of the nest come on top.
const ROW_PASSES: f64 = 5.0;

/// Invocations that share a row so that none of them meets the driver's limit on loops.
fn threads_within_loops(device: &DeviceProfile, row_len: f64) -> u32 {
    let most = device.limits.max_loop_iterations.map_or(f64::INFINITY, f64::from);
    let mut threads = 1;
    while threads < device.limits.max_workgroup_invocations && row_len * ROW_PASSES / f64::from(threads) > most {
        threads *= 2;
    }
    threads
}

/// Inner-loop shape of a matrix product, workgroup size, and reasons for anything slow: what was measured fastest on the device, if its
/// profile says so, else what the cost model predicts.
pub fn matmul(device: &DeviceProfile, p: &Problem) -> (Staging, u32, Vec<&'static str>) {
    let choice = product(device, p, |_| true);
    (choice.staging, choice.wg, choice.slow)
}

/// As [`matmul`], of the inner loops that are allowed; what is not measured, and the cost model likes best, has to be.
pub fn product(device: &DeviceProfile, p: &Problem, allowed: impl Fn(&Staging) -> bool) -> Choice<Staging> {
    table::choose(device, p.into(), candidates(device, p), allowed)
}

/// The inner loop of a matrix product that the cost model likes best.
pub fn favourite(device: &DeviceProfile, p: &Problem) -> Staging {
    candidates::favourite(&candidates(device, p).0).staging
}

/// How an attention kernel shares out queries and keys, its workgroup size, and reasons for anything slow, chosen as by [`matmul`].
pub fn attention(device: &DeviceProfile, p: &Heads) -> (AttentionStaging, u32, Vec<&'static str>) {
    let choice = heads(device, p);
    (choice.staging, choice.wg, choice.slow)
}

/// As [`attention()`].
pub fn heads(device: &DeviceProfile, p: &Heads) -> Choice<AttentionStaging> {
    table::choose(device, p.into(), attention::attentions(device, p), |_| true)
}

/// The half type that both operands of a product are exact in. A value computed in f32 has none: it is never rounded to reach a faster kernel.
pub fn half_of(exprs: &Exprs, lhs: ExprId, rhs: ExprId) -> Option<DType> {
    [DType::F16, DType::BF16].into_iter().find(|&t| is_exact_in(exprs, lhs, t) && is_exact_in(exprs, rhs, t))
}

/// What the choice for an attention or a product was, for the decisions of a plan.
pub fn decision(device: &DeviceProfile, spec: &KernelSpec, chosen: Option<&Chosen>) -> Option<String> {
    if let Some(chosen) = chosen.filter(|chosen| chosen.measured) {
        return Some(format!("{}: it measured fastest on the device", chosen.tile));
    }
    if let KernelSpec::Attention(s) = spec {
        return attention::decision(s);
    }
    let KernelSpec::Matmul(MatmulSpec { staging, exprs, lhs, rhs, .. }) = spec else { return None };
    match staging {
        Staging::Coop(c) => Some(format!(
            "on cooperative matrices {}x{}x{} {}, tiles {}x{}x{}{}",
            c.frag.0,
            c.frag.1,
            c.frag.2,
            c.elem,
            c.bm,
            c.bn,
            c.bk,
            match c.fill {
                Some(f) if f.parts > 1 =>
                    format!(", fragments filled by component, {} subgroups share each sum", f.parts),
                Some(_) => ", fragments filled by component".to_owned(),
                None => String::new(),
            }
        )),
        Staging::Shared { bm, bn, bk, rows, cols, .. } => {
            Some(format!("in tiles {bm}x{bn}x{bk}, {rows}x{cols} outputs an invocation: {}", tiled::WHY))
        }
        _ if device.rates.cpu && !device.cooperative.is_empty() => half_of(exprs, *lhs, *rhs).map(|_| {
            "in registers: a CPU driver computes cooperative matrices like other arithmetic, and pays for shared memory"
                .to_owned()
        }),
        _ => None,
    }
}

/// Workgroup size of a recurrent kernel.
pub fn recurrent(device: &DeviceProfile, hidden: u32) -> u32 {
    let most = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    hidden.next_power_of_two().clamp(32.min(most), most)
}

/// Loop iterations of an invocation of the recurrent kernel.
pub fn recurrent_iterations(steps: u64, hidden: u32, wg: u32) -> u64 {
    steps * u64::from(1 + hidden.div_ceil(wg) * hidden)
}

/// Workgroup size of a Fourier transform.
pub fn fft(device: &DeviceProfile, n: u32) -> u32 {
    let most = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    (n / 4).next_power_of_two().clamp(32.min(most), most)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::device::find;

    /// Products of every kind: large and small, thin, of halves and not.
    pub(crate) fn products_of_models() -> Vec<Problem> {
        let shapes =
            [(4096.0, 576.0, 2304.0), (1.0, 1280.0, 5120.0), (6.0, 40.0, 64.0), (20.0, 20.0, 20.0), (3.0, 2.0, 5.0)];
        let kinds = [(None, Ty::F32), (Some(DType::F16), Ty::F32), (None, Ty::I32)];
        let of = |(m, n, k), (half, acc)| Problem { half, acc, fills: true, packed: true, ..self::half(m, n, k) };
        shapes.into_iter().flat_map(|shape| kinds.map(|kind| of(shape, kind))).collect()
    }

    /// Attentions on matrix units, in register tiles, streamed.
    pub(crate) fn attentions_of_models() -> Vec<Heads> {
        let of =
            |queries, half, masked| Heads { batch: 20.0, queries, keys: 1500.0, qk_dim: 64, v_dim: 72, half, masked };
        let f16 = Some(DType::F16);
        vec![of(1500.0, f16, false), of(1500.0, f16, true), of(1500.0, None, false), of(7.0, None, true)]
    }

    fn half(m: f64, n: f64, k: f64) -> Problem {
        Problem {
            batch: 1.0,
            m,
            n,
            k,
            line: k,
            acc: Ty::F32,
            half: Some(DType::F16),
            gathers: false,
            fills: false,
            packed: false,
        }
    }

    fn tile(device: &str, p: &Problem) -> Result<(u32, u32, u32), Vec<&'static str>> {
        match matmul(&by_the_model(device), p) {
            (Staging::Coop(c), wg, slow) => {
                assert_eq!((wg, slow), (c.subgroups() * c.subgroup, vec![]));
                Ok((c.bm, c.bn, c.bk))
            }
            (_, _, slow) => Err(slow),
        }
    }

    /// Lanes and columns such that enough subgroups of loads are on their way at a time.
    /// A bundled profile without what measured fastest.
    fn by_the_model(name: &str) -> DeviceProfile {
        DeviceProfile { tiles: vec![], ..find(name).expect("a bundled profile") }
    }

    #[test]
    fn thin_products_fill_an_h200() {
        let device = by_the_model("h200");
        let pick = |m: f64, n: f64, k: f64| match matmul(&device, &half(m, n, k)).0 {
            Staging::Gemv { threads_per_dot, cols } => (threads_per_dot, cols),
            other => panic!("no thin product: {other:?}"),
        };
        assert_eq!(pick(1.0, 5120.0, 1280.0), (32, 2));
        assert_eq!(pick(1.0, 1280.0, 5120.0), (64, 1));
        assert_eq!(pick(1.0, 16384.0, 4096.0), (32, 4));
        assert_eq!(pick(8.0, 16384.0, 4096.0), (32, 4), "32 outputs, as many as lanes");
    }

    #[test]
    fn long_lines_are_shared_and_sorts_stay_in_shared_memory() {
        let device = |name| find(name).expect("a bundled profile");
        assert_eq!(scan(&device("h200"), 1.0, 211_211.0, true), (1024, 1024));
        assert_eq!(scan(&device("h200"), 300.0, 1000.0, true), (256, 128));
        assert_eq!(scan(&device("h200"), 1e6, 1000.0, false), (256, 1), "lines side by side");
        assert_eq!(scan(&device("lavapipe"), 1.0, 211_211.0, true).1, 1);
        assert!(scan(&device("lavapipe-22"), 1.0, 211_211.0, true).1 > 1, "its driver ends loops");
        assert_eq!(sort(&device("h200"), 2880, Ty::F32), Some((4096, 512)));
        assert_eq!(sort(&device("h200"), 4097, Ty::F32), None, "64 KiB");
        assert_eq!(sort(&device("h200"), 40, Ty::F32), None, "ranks are cheaper");
        let first = |name, lines, line| first_places(&device(name), lines, line, Ty::F32);
        assert_eq!(first("h200", 9216.0, (2880, 30)), Some((30 * 45, 64)));
        assert_eq!(first("h200", 1.0, (8400, 300)), Some((300 * 9, 1024)), "a line that cannot be sorted at once");
        assert_eq!(first("h200", 1.0, (2000, 5)), Some((5 * 16, 128)), "one line, by as many as have something to do");
        assert_eq!(first("h200", 9216.0, (2880, 2880)), None, "that is a sort");
        assert_eq!(first("h200", 9216.0, (100, 30)), None, "shorter than twice the bests");
        assert_eq!(first("lavapipe", 10.0, (2880, 30)), Some((30 * 45, 64)));
        assert_eq!(sort(&device("lavapipe"), 2880, Ty::F64), None, "no key");
    }

    /// The fastest of those measured on the card, of the tiles in the list.
    #[test]
    fn the_shapes_of_the_models_get_their_measured_tiles_on_an_h200() {
        for (p, best) in [
            (half(4096.0, 4096.0, 4096.0), (128, 128, 64)),
            (half(1500.0, 1280.0, 1280.0), (128, 128, 64)),
            (half(4096.0, 1152.0, 4608.0), (128, 144, 64)),
            (half(256.0, 256.0, 4096.0), (32, 32, 128)),
        ] {
            assert_eq!(tile("h200", &p), Ok(best), "{p:?}");
        }
        // A late 3×3 convolution: more tiles, since each waits for its elements.
        let conv = Problem { gathers: true, ..half(784.0, 256.0, 2304.0) };
        assert_ne!(tile("h200", &conv), Ok((128, 128, 64)));
        let narrow = tile("h200", &half(16384.0, 144.0, 576.0)).expect("a cooperative tile");
        assert_eq!(narrow.1, 144, "no column is padded");
    }

    /// As above, of weights that may be packed: they are where that measured better.
    #[test]
    fn weights_are_packed_where_it_measured_better_on_an_h200() {
        let h200 = by_the_model("h200");
        for (p, best) in [
            (half(4096.0, 4096.0, 4096.0), Some((64, 256))),
            (half(8192.0, 8192.0, 8192.0), Some((64, 256))),
            (half(1500.0, 1280.0, 1280.0), Some((64, 128))),
            (half(1500.0, 1280.0, 5120.0), Some((64, 128))),
            (half(1500.0, 5120.0, 1280.0), Some((64, 256))),
            (half(4096.0, 2304.0, 576.0), Some((64, 256))),
            (half(1370.0, 1536.0, 384.0), Some((64, 128))),
            (half(16384.0, 144.0, 576.0), Some((64, 144))),
            (half(4096.0, 1152.0, 4608.0), Some((96, 192))),
            (half(256.0, 256.0, 4096.0), None),
        ] {
            assert_eq!(gains_by_packing(&h200, &p), best.is_some(), "{p:?}");
            let packed = tile("h200", &Problem { packed: true, ..p }).expect("a cooperative tile");
            assert!(best.is_none_or(|b| b == (packed.0, packed.1)), "{p:?}: {packed:?}");
        }
        // vit-b: few tiles, which read weights a whole tile ahead. Its longest sums take 13.6 µs with this tile, 13.5 with 32×64.
        for (p, best) in [
            (half(197.0, 2304.0, 768.0), (32, 64, 128)),
            (half(197.0, 768.0, 768.0), (32, 64, 256)),
            (half(197.0, 768.0, 3072.0), (32, 32, 256)),
            (half(1370.0, 1536.0, 384.0), (64, 128, 64)),
        ] {
            assert_eq!(tile("h200", &Problem { packed: true, ..p }), Ok(best), "{p:?}");
        }
        // A 3×3 convolution of 128 channels over 128×128.
        let conv = |p: Problem| Problem { fills: true, line: p.k / 9.0, ..p };
        assert_eq!(tile("h200", &conv(half(16384.0, 128.0, 1152.0))), Ok((64, 64, 32)));
        // Few outputs, few places: RIFE's and Depth Anything's.
        for (p, best) in [
            (half(87616.0, 32.0, 576.0), (64, 32, 32)),
            (half(552960.0, 16.0, 144.0), (64, 16, 32)),
            (half(2160.0, 128.0, 1152.0), (32, 32, 32)),
            (half(540.0, 192.0, 1728.0), (32, 32, 32)),
        ] {
            assert_eq!(tile("h200", &conv(p)), Ok(best), "{p:?}");
        }
    }

    /// What measured best, or within a tenth of it.
    #[test]
    fn subgroups_share_sums_where_tiles_are_few_and_sums_are_long() {
        let conv = |p: Problem| Problem { fills: true, line: p.k / 9.0, ..p };
        for (p, best) in [
            (conv(half(361.0, 384.0, 3456.0)), Some((64, 32, 4))),
            (conv(half(361.0, 64.0, 3456.0)), Some((32, 32, 4))),
            (conv(half(529.0, 192.0, 1728.0)), Some((32, 32, 4))),
            (conv(half(2116.0, 128.0, 1152.0)), Some((32, 32, 2))),
            (conv(half(5476.0, 64.0, 576.0)), Some((32, 32, 2))),
            (conv(half(21904.0, 64.0, 576.0)), Some((64, 64, 1))),
            (conv(half(34596.0, 64.0, 576.0)), Some((64, 64, 1))),
            (Problem { fills: true, ..half(1370.0, 384.0, 1536.0) }, Some((64, 64, 4))),
            (Problem { fills: true, ..half(1370.0, 384.0, 384.0) }, None),
        ] {
            let (Staging::Coop(c), _, _) = matmul(&by_the_model("h200"), &p) else { panic!("{p:?}") };
            assert_eq!(c.fill.map(|f| (c.bm, c.bn, f.parts)), best, "{p:?}");
        }
    }

    #[test]
    fn a_half_product_without_a_cooperative_tile_says_why() {
        let p = half(512.0, 512.0, 512.0);
        let why = |device: &str, p: &Problem| tile(device, p).expect_err("no cooperative tile").join("; ");
        assert!(why("radeon-8060s", &p).contains("no fixed subgroup size"));
        assert!(why("generic", &p).contains("no fixed subgroup size"));
        let mut f16_only = by_the_model("h200");
        f16_only.cooperative.retain(|c| c.operand == "f16");
        let slow = matmul(&f16_only, &Problem { half: Some(DType::BF16), ..p }).2;
        assert!(slow[0].contains("none of its type"), "{slow:?}");
        assert!(why("h200", &half(512.0, 512.0, 3.0)).contains("too small"));
        assert_eq!(why("h200", &Problem { half: None, ..p }), "", "f32 has nothing to excuse");
        assert_eq!(why("lavapipe", &p), "", "registers are the fast path of a CPU driver");
    }
}
