//! Tile choice of attention kernels.

use super::candidates::Candidate;
use super::{PORTABLE_WG, halves, wg};
use crate::device::DeviceProfile;
use crate::plan::kernels::limits;
use jvc_kernels::dtype::DType;
use jvc_kernels::spec::{AttentionSpec, AttentionStaging, CoopAttention, Left, TiledAttention};
use jvc_kernels::templates::attention::{coop_fits, tiled_fits};

/// An attention at its largest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Heads {
    /// Batch × heads.
    pub batch: f64,
    /// Queries.
    pub queries: f64,
    /// Keys.
    pub keys: f64,
    /// Channels of query and key.
    pub qk_dim: u32,
    /// Channels of value and output.
    pub v_dim: u32,
    /// The half type that queries, keys and values are declared in, if there is one.
    pub half: Option<DType>,
    /// Scores are changed by a tensor.
    pub masked: bool,
}

/// Fewer queries or keys leave most of a fragment, or of a register tile, empty.
const COOP_LEAST: f64 = 16.0;
const TILED_LEAST: (f64, f64) = (64.0, 32.0);
/// Heads for each unit that fill the device whatever is left empty in each: SAM 2's windows of 4 queries and 16 keys.
const MANY_HEADS: f64 = 8.0;

/// Every way to compute an attention on a device, what measured fastest on an H200 first, and why none of them is fast. There is at least one.
pub(super) fn attentions(device: &DeviceProfile, p: &Heads) -> (Vec<Candidate<AttentionStaging>>, Vec<&'static str>) {
    let candidate = |(staging, wg)| Candidate { staging, wg, cost: None };
    if device.rates.cpu {
        let staging = AttentionStaging::Stream { block_keys: 0, lanes: 1 };
        return (vec![candidate((staging, wg(device, p.queries).min(32)))], vec![]);
    }
    let mut slow = vec![];
    if let Some(elem) = p.half {
        match coop(device, p, elem) {
            Ok(all) => {
                let of = |c: CoopAttention| candidate((AttentionStaging::Coop(c), c.warps * c.subgroup));
                return (all.into_iter().map(of).collect(), vec![]);
            }
            Err(reason) => slow.push(reason),
        }
    }
    let all = tiled(device, p).into_iter().chain([streamed(device, p)]);
    (all.map(candidate).collect(), slow)
}

/// Fragments of queries a subgroup, subgroups, and keys of a block. Measured on an H200: two fragments a subgroup share what is read of keys
/// and values, 50 µs instead of 62 for 20 heads of 1500²; few queries or keys are better spread over more subgroups, and heads of more than
/// [`COOP_MANY_CHANNELS`] channels do not leave the registers for two. Elements of a mask are found one by one: small blocks have few at a time.
/// Two subgroups are for heads of so many channels (256) that shared memory does not hold the outputs of four.
const COOP_MANY: (u32, u32, u32) = (2, 4, 32);
const COOP_MANY_CHANNELS: u32 = 80;
const COOP_FEW: [(u32, u32, u32); 5] = [(1, 4, 64), (1, 4, 32), (1, 4, 16), (1, 2, 32), (1, 2, 16)];

/// The cooperative tiles, those first that this attention is better off with, or why there are none.
fn coop(device: &DeviceProfile, p: &Heads, elem: DType) -> Result<Vec<CoopAttention>, &'static str> {
    if p.queries < COOP_LEAST && !has_many_heads(device, p) || p.keys < COOP_LEAST {
        return Err("half-precision attention too small for cooperative matrices");
    }
    if device.limits.subgroup_size == 0 || !device.features.vulkan_memory_model {
        return Err(
            "half-precision attention without cooperative matrices: the device has no fixed subgroup size, or no memory model",
        );
    }
    let limits = limits(device);
    let frags = limits.cooperative.iter().filter(|f| f.3 == elem && f.1 == f.2).map(|&(m, n, k, _)| (m, n, k));
    let Some(frag) = frags.max_by_key(|f| f.0 * f.1 * f.2) else {
        return Err("half-precision attention without cooperative matrices: the device has none of its type");
    };
    let row_bits = halves::row_bits(device, frag, elem);
    let tile = |(rows, warps, block_keys): (u32, u32, u32)| {
        let subgroup = device.limits.subgroup_size;
        // A subgroup without queries, and a block of keys that are not there, would take as long as any other.
        let warps = warps.min(fragments(p.queries, rows * frag.0));
        let block_keys = block_keys.min(fragments(p.keys, frag.1) * frag.1);
        CoopAttention { frag, elem, subgroup, warps, rows, block_keys, left: Left::Components, row_bits, ahead: true }
    };
    let (rows, warps, _) = COOP_MANY;
    let groups = p.batch * (p.queries / f64::from(rows * warps * frag.0)).ceil();
    let room = p.qk_dim.max(p.v_dim) <= COOP_MANY_CHANNELS && !p.masked;
    let many = room && p.keys >= 256.0 && groups >= 1.5 * f64::from(device.rates.n_units);
    let (wide, few) = COOP_FEW.split_at(usize::from(p.masked));
    let first = [COOP_MANY].into_iter().filter(|_| many).chain(few.iter().copied());
    let others = [COOP_MANY].into_iter().filter(|_| !many).chain(wide.iter().copied());
    let mut all: Vec<CoopAttention> = vec![];
    for c in first.chain(others).map(tile).filter(|c| coop_fits(c, (p.qk_dim, p.v_dim), &limits)) {
        if !all.contains(&c) {
            all.push(c);
        }
    }
    if all.is_empty() {
        return Err("half-precision attention without cooperative matrices: no tile fits the device");
    }
    Ok(all)
}

fn has_many_heads(device: &DeviceProfile, p: &Heads) -> bool {
    p.batch >= MANY_HEADS * f64::from(device.rates.n_units)
}

/// Fragments of a side that cover so many.
fn fragments(count: f64, side: u32) -> u32 {
    ((count / f64::from(side)).ceil() as u32).max(1)
}

/// Register tiles and workgroup: the first measured fastest on an H200, whatever the number of queries; the others for heads of so many channels
/// that shared memory does not hold it: twelve queries and sixteen keys of 256 channels are 45 of 48 KiB (4,096 of each take 1.8 ms on an H200,
/// a query an invocation 10.2).
const TILED: [(TiledAttention, u32); 3] = [
    (TiledAttention { rows: 4, cols: 4, across: 8, unroll: 4 }, 128),
    (TiledAttention { rows: 4, cols: 2, across: 8, unroll: 4 }, 64),
    (TiledAttention { rows: 3, cols: 1, across: 16, unroll: 4 }, 64),
];

/// The same for many heads of at most four and of at most sixteen queries. Measured on an H200: SAM 2's windows of 16 queries take 29 µs instead of
/// 89 with 16 keys and 82 instead of 245 with 64, and those of 4 queries and 16 keys 33 instead of 138.
const TILED_FEW: [(TiledAttention, u32); 2] = [
    (TiledAttention { rows: 1, cols: 2, across: 8, unroll: 4 }, 32),
    (TiledAttention { rows: 4, cols: 2, across: 8, unroll: 4 }, 32),
];

fn tiled(device: &DeviceProfile, p: &Heads) -> Vec<(AttentionStaging, u32)> {
    let tiles = if p.queries >= TILED_LEAST.0 && p.keys >= TILED_LEAST.1 {
        &TILED[..]
    } else if p.queries <= 16.0 && p.keys >= COOP_LEAST && has_many_heads(device, p) {
        &TILED_FEW[usize::from(p.queries > 4.0)..]
    } else {
        return vec![];
    };
    let limits = limits(device);
    let fitting = tiles.iter().filter(|(t, wg)| tiled_fits(t, *wg, (p.qk_dim, p.v_dim), &limits));
    fitting.map(|&(t, wg)| (AttentionStaging::Tiled(t), wg)).collect()
}

/// A query or several in the registers of an invocation.
fn streamed(device: &DeviceProfile, p: &Heads) -> (AttentionStaging, u32) {
    let owned = [64u32, 32, 16, 8, 4, 2].into_iter().find(|&q| f64::from(q) <= p.queries).unwrap_or(1);
    let groups = p.batch * (p.queries / f64::from(owned)).ceil();
    let most = PORTABLE_WG.min(device.limits.max_workgroup_invocations);
    // A query and its sums are some 150 registers: a unit has room for no more invocations than this.
    let enough = 384.0 * f64::from(device.rates.n_units);
    let mut lanes = 1;
    while lanes < 32 && 2 * lanes * owned <= most && groups * f64::from(owned * lanes) < enough {
        lanes *= 2;
    }
    let merged = owned * (p.v_dim + 2) * 4;
    let row = (p.qk_dim.div_ceil(4) + p.v_dim.div_ceil(4)) * 16;
    let fits = device.limits.shared_bytes_per_workgroup.saturating_sub(merged) / row;
    let block =
        |lanes: u32| [32u32, 16, 8].into_iter().find(|&b| b <= fits && b >= lanes && f64::from(b) <= p.keys.max(8.0));
    let alone = owned.max(32.min(most));
    match (block(lanes), block(1)) {
        (Some(block_keys), _) => (AttentionStaging::Stream { block_keys, lanes }, owned * lanes),
        (None, Some(block_keys)) => (AttentionStaging::Stream { block_keys, lanes: 1 }, alone),
        (None, None) => (AttentionStaging::Stream { block_keys: 0, lanes: 1 }, alone),
    }
}

/// Parts at most: whoever combines them has an expression of as many terms.
const MOST_PARTS: i64 = 32;
/// Keys of a part at least, and at most: scores of a part stand in shared memory.
const PART_KEYS: (i64, i64) = (64, 4096);
/// Channels at most: what the kernel takes.
const MOST_PART_CHANNELS: i64 = 256;

/// An attention of few queries at its largest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thin {
    /// Batch × heads.
    pub heads: i64,
    /// Queries of each.
    pub queries: i64,
    /// Keys.
    pub keys: i64,
    /// Channels, of queries and keys or of values.
    pub channels: i64,
    /// Operands are halves.
    pub half: bool,
}

/// Queries of a head that always go by parts; more do where they are too few for fragments or register tiles and leave units idle.
const SINGLE_QUERIES: i64 = 4;

/// `(parts, keys of each)` for attention of few queries: as long as they may be while every unit has one. None where another way is taken: on
/// CPU drivers, for many queries, too many keys, or channels.
pub fn attention_parts(device: &DeviceProfile, p: &Thin) -> Option<(i64, i64)> {
    let Thin { heads, queries, keys, channels, half } = *p;
    let units = i64::from(device.rates.n_units);
    let tiled = if half { COOP_LEAST } else { TILED_LEAST.0 } as i64;
    // The streaming kernel gives a workgroup eight queries or more.
    let few = queries <= SINGLE_QUERIES || (queries < tiled && heads * ((queries + 7) / 8) < units);
    if device.rates.cpu || !few || channels > MOST_PART_CHANNELS || keys > MOST_PARTS * PART_KEYS.1 {
        return None;
    }
    let rows = heads * queries;
    let (least, mut len) = PART_KEYS;
    let count = |len: i64| (keys + len - 1) / len;
    while len > least && (rows.saturating_mul(count(len)) < units || len / 2 >= keys) && count(len / 2) <= MOST_PARTS {
        len /= 2;
    }
    Some((count(len), len))
}

/// Workgroup of the parts of attention.
pub fn attention_parts_wg(device: &DeviceProfile, p: &Heads) -> u32 {
    let wanted = if p.v_dim > 128 { 256 } else { 128 };
    PORTABLE_WG.min(device.limits.max_workgroup_invocations).min(wanted)
}

/// What the choice was, for the decisions of a plan.
pub(super) fn decision(spec: &AttentionSpec) -> Option<String> {
    match spec.staging {
        AttentionStaging::Coop(c) => Some(format!(
            "on cooperative matrices {}x{}x{} {}, {} queries a workgroup, blocks of {} keys",
            c.frag.0,
            c.frag.1,
            c.frag.2,
            c.elem,
            c.warps * c.rows * c.frag.0,
            c.block_keys
        )),
        AttentionStaging::Tiled(t) => Some(format!(
            "in register tiles of {} queries by {} keys, blocks of {} keys",
            t.rows,
            t.cols,
            t.across * t.cols
        )),
        AttentionStaging::Parts(p) => Some(format!("in {} parts of {} keys, combined afterwards", p.count, p.len)),
        AttentionStaging::Stream { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::find;

    fn heads(batch: f64, queries: f64, keys: f64, dim: u32, half: Option<DType>) -> Heads {
        Heads { batch, queries, keys, qk_dim: dim, v_dim: dim, half, masked: false }
    }

    fn choice(device: &str, p: &Heads) -> String {
        let (staging, wg, slow) = crate::schedule::tile::attention(&find(device).expect("a bundled profile"), p);
        let staging = match staging {
            AttentionStaging::Stream { block_keys, lanes } => format!("stream {block_keys} {lanes}"),
            AttentionStaging::Coop(c) => format!("coop {} {} {}", c.rows, c.warps, c.block_keys),
            AttentionStaging::Tiled(t) => format!("tiled {}x{}", t.rows, t.cols),
            AttentionStaging::Parts(p) => format!("parts {}x{}", p.count, p.len),
        };
        format!("{staging} wg{wg}{}", slow.iter().map(|s| format!("; {s}")).collect::<String>())
    }

    /// The fastest of those measured on the card; windows of so few queries by what they leave empty.
    #[test]
    fn the_shapes_of_the_models_get_their_measured_tiles_on_an_h200() {
        let f16 = Some(DType::F16);
        for (p, best) in [
            (heads(8.0, 4096.0, 4096.0, 72, f16), "coop 2 4 32 wg128"),
            (heads(20.0, 1500.0, 1500.0, 64, f16), "coop 2 4 32 wg128"),
            (heads(512.0, 64.0, 64.0, 72, f16), "coop 1 4 64 wg128"),
            (heads(512.0, 256.0, 256.0, 72, f16), "coop 2 4 32 wg128"),
            (heads(6.0, 1370.0, 1370.0, 64, f16), "coop 1 4 64 wg128"),
            (heads(32.0, 1024.0, 1024.0, 128, f16), "coop 1 4 64 wg128"),
            (heads(1.0, 4096.0, 28_736.0, 256, f16), "coop 1 2 32 wg64"),
            (Heads { masked: true, ..heads(64.0, 196.0, 196.0, 64, f16) }, "coop 1 4 32 wg128"),
            (heads(4096.0, 16.0, 16.0, 72, f16), "coop 1 1 16 wg32"),
            (heads(8192.0, 4.0, 16.0, 72, f16), "coop 1 1 16 wg32"),
            (heads(2048.0, 16.0, 64.0, 72, f16), "coop 1 1 64 wg32"),
            (heads(8.0, 4096.0, 4096.0, 72, None), "tiled 4x4 wg128"),
            (heads(6.0, 1370.0, 1370.0, 64, None), "tiled 4x4 wg128"),
            (heads(1.0, 4096.0, 28_736.0, 256, None), "tiled 3x1 wg64"),
            (heads(4096.0, 16.0, 16.0, 72, None), "tiled 4x2 wg32"),
            (heads(4096.0, 16.0, 64.0, 72, None), "tiled 4x2 wg32"),
            (heads(8192.0, 4.0, 16.0, 72, None), "tiled 1x2 wg32"),
        ] {
            assert_eq!(choice("h200", &p), best, "{p:?}");
        }
    }

    /// Heads of Whisper's decoder, one with many keys, and so many rows that nothing needs to be cut.
    #[test]
    fn keys_of_single_queries_are_cut_until_every_unit_has_a_part() {
        let on = |device: &str, heads, queries, keys, half| {
            let p = Thin { heads, queries, keys, channels: 64, half };
            attention_parts(&find(device).expect("a bundled profile"), &p)
        };
        let parts = |heads, keys| on("h200", heads, 1, keys, true);
        assert_eq!(parts(20, 448), Some((7, 64)));
        assert_eq!(parts(20, 1500), Some((12, 128)));
        assert_eq!(parts(1, 100_000), Some((25, 4096)), "no more parts than terms");
        assert_eq!(parts(300, 1500), Some((1, 2048)));
        assert_eq!(parts(1, 1 << 20), None);
        assert_eq!(on("lavapipe", 20, 1, 448, true), None);
        assert_eq!(on("h200", 8, 8, 4096, true), Some((4, 1024)), "SAM 2: a click's tokens and the image");
        assert_eq!(on("h200", 8, 40, 4096, false), Some((1, 4096)));
        assert_eq!(on("h200", 8, 16, 4096, true), None, "on matrix units");
        assert_eq!(on("h200", 512, 16, 256, false), None, "workgroups enough");
    }

    #[test]
    fn half_attention_off_cooperative_matrices_says_why() {
        let f16 = |queries| heads(8.0, queries, 300.0, 64, Some(DType::F16));
        assert!(choice("h200", &f16(7.0)).ends_with("too small for cooperative matrices"));
        assert!(choice("radeon-8060s", &f16(300.0)).contains("no fixed subgroup size"));
        assert_eq!(choice("lavapipe", &f16(300.0)), "stream 0 1 wg32", "a CPU driver has nothing to excuse");
    }
}
