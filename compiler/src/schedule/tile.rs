//! Tile choice: pure functions from (problem, device) to parameters. No device names, only fields of the profile.

use crate::device::DeviceProfile;
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::Staging;

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
    /// Accumulator type.
    pub acc: Ty,
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

/// Workgroup size of kernels with one invocation a line.
pub fn lines(device: &DeviceProfile, lines: f64) -> u32 {
    wg(device, lines)
}

/// Workgroup size and invocations per row.
pub fn row(device: &DeviceProfile, n_rows: f64, row_len: f64) -> (u32, u32) {
    if device.rates.cpu || row_len < 64.0 {
        let threads = threads_within_loops(device, row_len);
        return (wg(device, n_rows * f64::from(threads)).max(threads), threads);
    }
    // Few long rows want a whole workgroup each; many rows share one, so that each invocation still has a few elements.
    let most = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    let mut threads = 32.min(most);
    while threads < most && row_len / f64::from(threads) > 8.0 {
        threads *= 2;
    }
    (most.max(threads), threads)
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

/// Inner-loop shape of a matrix product, workgroup size, and reasons for anything slow.
pub fn matmul(device: &DeviceProfile, p: &Problem) -> (Staging, u32, Vec<&'static str>) {
    let most = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    if device.rates.cpu || p.acc != Ty::F32 {
        let slow = if device.rates.cpu { vec![] } else { vec!["matrix product outside f32 has no tiled kernel"] };
        let (rows, cols) = register_tile(p);
        return (Staging::Registers { rows, cols }, row_sharing_wg(device, p, rows, cols), slow);
    }
    if p.m <= 8.0 && p.k >= 64.0 {
        return (Staging::Gemv { threads_per_dot: 32 }, most, vec![]);
    }
    let tiles = |bm: f64, bn: f64| p.batch * (p.m / bm).ceil() * (p.n / bn).ceil();
    let units = f64::from(device.rates.n_units);
    if p.m >= 96.0 && p.n >= 48.0 && tiles(128.0, 64.0) >= 1.5 * units {
        (Staging::Shared { bm: 128, bn: 64, bk: 16, rows: 8, cols: 4 }, 256.min(most), vec![])
    } else if p.m >= 24.0 && p.n >= 24.0 {
        (Staging::Shared { bm: 64, bn: 64, bk: 16, rows: 4, cols: 4 }, 256.min(most), vec![])
    } else {
        (Staging::Shared { bm: 32, bn: 32, bk: 16, rows: 2, cols: 2 }, 256.min(most), vec![])
    }
}

/// Outputs of an invocation: 8 × 4 where a problem is large enough to feed every core with them, else along m only.
fn register_tile(p: &Problem) -> (u32, u32) {
    let rows = [8u32, 4, 2].into_iter().find(|&r| f64::from(r) <= p.m).unwrap_or(1);
    let large = p.batch * p.m * p.n * p.k >= 1e6;
    let cols = [4u32, 2].into_iter().find(|&c| large && p.n >= f64::from(16 * c)).unwrap_or(1);
    (rows, cols)
}

/// The largest workgroup that leaves few of its invocations without a column, so that all of it can share its rows.
fn row_sharing_wg(device: &DeviceProfile, p: &Problem, rows: u32, cols: u32) -> u32 {
    let tiles = (p.n / f64::from(cols)).ceil().max(1.0);
    let most = wg(device, p.batch * p.m * p.n / f64::from(rows * cols));
    let shares = |wg: &u32| (tiles / f64::from(*wg)).ceil() * f64::from(*wg) <= 1.25 * tiles;
    [64u32, 32, 16, 8].into_iter().filter(|&wg| wg <= most).find(shares).unwrap_or(most)
}

/// Workgroup size and keys per shared block of an attention kernel.
pub fn attention(device: &DeviceProfile, queries: f64, keys: f64, head: u32) -> (u32, u32) {
    if device.rates.cpu {
        return (wg(device, queries).min(32), 0);
    }
    let wg = if queries >= 64.0 { 64 } else { 32 };
    let fits = device.limits.shared_bytes_per_workgroup / (head * 4 * 2);
    let block = [32u32, 16, 8].into_iter().find(|&b| b <= fits && f64::from(b) <= keys.max(8.0)).unwrap_or(0);
    (wg, block)
}

/// Workgroup size of a recurrent kernel.
pub fn recurrent(device: &DeviceProfile, hidden: u32) -> u32 {
    let most = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    hidden.next_power_of_two().clamp(32.min(most), most)
}

/// Workgroup size of a Fourier transform.
pub fn fft(device: &DeviceProfile, n: u32) -> u32 {
    let most = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    (n / 4).next_power_of_two().clamp(32.min(most), most)
}
