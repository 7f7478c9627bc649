//! Lifetimes → offsets: a pure function. Buffers are placed one by one, each at the lowest offset where nothing that lives with it lies, in
//! several orders; the smallest result is kept. No order is best for all programs: largest first suits encoders, by time long chains.

pub mod barriers;

/// Alignment of every buffer, in bytes.
pub const ALIGNMENT: u64 = 256;

/// A buffer to place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Bytes.
    pub bytes: u64,
    /// First and last dispatch that touches it.
    pub live: (u32, u32),
}

/// Where a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// Arena chunk.
    pub chunk: u32,
    /// Byte offset, aligned.
    pub offset: u64,
}

/// Placements of all requests, and what they add up to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// By request.
    pub placements: Vec<Placement>,
    /// Bytes of each chunk.
    pub chunk_bytes: Vec<u64>,
    /// Most bytes live at one dispatch: no layout is smaller.
    pub live_bytes: u64,
}

/// A request larger than a chunk may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a tensor of {bytes} bytes is larger than the largest allocation of {limit} bytes")]
pub struct TooLarge {
    /// Index of the request.
    pub request: usize,
    /// Its bytes.
    pub bytes: u64,
    /// The device's limit.
    pub limit: u64,
}

fn aligned(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ALIGNMENT)
}

fn together(a: &Request, b: &Request) -> bool {
    a.live.0 <= b.live.1 && b.live.0 <= a.live.1
}

/// What a buffer is sorted by before placement; larger keys go first.
const ORDERS: [fn(&Request) -> u64; 4] = [
    |r| r.bytes,
    |r| r.bytes.saturating_mul(u64::from(r.live.1 - r.live.0 + 1)),
    |r| u64::from(u32::MAX - r.live.0),
    |r| u64::from(r.live.1 - r.live.0),
];

/// Places buffers in chunks of at most `max_chunk` bytes.
///
/// # Errors
/// When one buffer alone exceeds a chunk.
pub fn plan(requests: &[Request], max_chunk: u64) -> Result<Layout, TooLarge> {
    let too_large = requests.iter().map(|r| aligned(r.bytes)).enumerate().find(|(_, bytes)| *bytes > max_chunk);
    if let Some((request, bytes)) = too_large {
        return Err(TooLarge { request, bytes, limit: max_chunk });
    }
    let bound = live_bytes(requests);
    let mut best: Option<(Vec<Placement>, Vec<u64>)> = None;
    for key in ORDERS {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        let rank = |i: usize| (std::cmp::Reverse((key(&requests[i]), requests[i].bytes)), requests[i].live.0, i);
        order.sort_by_key(|&i| rank(i));
        for _ in 0..1 + repairs(requests.len()) {
            let layout = place_in_order(requests, max_chunk, &order);
            let top = highest(requests, &layout.0);
            if best.as_ref().is_none_or(|b| total(&layout.1) < total(&b.1)) {
                best = Some(layout);
            }
            let reached = best.as_ref().is_some_and(|b| total(&b.1) <= bound);
            let (false, Some(top)) = (reached, top) else { break };
            // What sticks out was placed too late to find room: it goes first.
            order.retain(|&i| i != top);
            order.insert(0, top);
        }
    }
    let (placements, chunk_bytes) = best.expect("there is an order");
    Ok(Layout { placements, chunk_bytes, live_bytes: bound })
}

/// Most of the bound that a layout may need so that kernels between the same barriers share no bytes.
const WAVE_ROOM: f64 = 1.05;

/// As [`plan`], with buffers kept for the whole of the waves in which they are touched first and last (`waves` gives the first and last
/// dispatch of each one's wave): what dies in a wave must not be overwritten in it, or a barrier would part it. Where that needs more than
/// a twentieth above the bound, buffers live no longer than they must.
///
/// # Errors
/// As [`plan`].
pub fn plan_in_waves(requests: &[Request], waves: &[(u32, u32)], max_chunk: u64) -> Result<Layout, TooLarge> {
    let exact = plan(requests, max_chunk)?;
    let longer =
        |r: &Request| Request { bytes: r.bytes, live: (waves[r.live.0 as usize].0, waves[r.live.1 as usize].1) };
    let wide = plan(&requests.iter().map(longer).collect::<Vec<_>>(), max_chunk)?;
    if total(&wide.chunk_bytes) as f64 <= WAVE_ROOM * exact.live_bytes as f64 {
        return Ok(Layout { live_bytes: exact.live_bytes, ..wide });
    }
    Ok(exact)
}

fn total(chunks: &[u64]) -> u64 {
    chunks.iter().sum()
}

/// How often an order is repaired: placing is quadratic, and large plans are near their bound anyway.
fn repairs(n: usize) -> usize {
    (20_000_000 / (n * n).max(1)).min(60)
}

/// The request that ends highest in the last chunk.
fn highest(requests: &[Request], placements: &[Placement]) -> Option<usize> {
    (0..requests.len()).max_by_key(|&i| (placements[i].chunk, placements[i].offset + aligned(requests[i].bytes), i))
}

/// Placements of all requests in this order, and the bytes of each chunk.
fn place_in_order(requests: &[Request], max_chunk: u64, order: &[usize]) -> (Vec<Placement>, Vec<u64>) {
    let mut placements: Vec<Option<Placement>> = vec![None; requests.len()];
    let mut chunk_bytes: Vec<u64> = vec![];
    for (done, &i) in order.iter().enumerate() {
        let bytes = aligned(requests[i].bytes);
        let placed: Vec<(Placement, u64)> = order[..done]
            .iter()
            .filter(|&&j| together(&requests[i], &requests[j]))
            .map(|&j| (placements[j].expect("placed before"), aligned(requests[j].bytes)))
            .collect();
        let place = lowest_gap(&placed, bytes, max_chunk);
        let end = place.offset + bytes;
        match chunk_bytes.get_mut(place.chunk as usize) {
            Some(size) => *size = end.max(*size),
            None => chunk_bytes.push(end),
        }
        placements[i] = Some(place);
    }
    (placements.into_iter().map(|p| p.expect("every request is placed")).collect(), chunk_bytes)
}

/// The first chunk and lowest offset where `bytes` fit beside everything that lives at the same time.
fn lowest_gap(placed: &[(Placement, u64)], bytes: u64, max_chunk: u64) -> Placement {
    for chunk in 0.. {
        let mut taken: Vec<(u64, u64)> =
            placed.iter().filter(|(p, _)| p.chunk == chunk).map(|(p, b)| (p.offset, p.offset + b)).collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (start, end) in taken {
            if start >= offset + bytes {
                break;
            }
            offset = offset.max(end);
        }
        if offset + bytes <= max_chunk {
            return Placement { chunk, offset };
        }
    }
    unreachable!("an empty chunk takes any request below the limit")
}

fn live_bytes(requests: &[Request]) -> u64 {
    let last = requests.iter().map(|r| r.live.1).max().map_or(0, |l| l as usize + 1);
    let mut change = vec![0i64; last + 1];
    for r in requests {
        change[r.live.0 as usize] += aligned(r.bytes) as i64;
        change[r.live.1 as usize + 1] -= aligned(r.bytes) as i64;
    }
    let mut live = 0i64;
    let peaks = change.into_iter().map(|c| {
        live += c;
        live
    });
    peaks.max().unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(requests: &[Request], max_chunk: u64) -> Layout {
        let layout = plan(requests, max_chunk).expect("all requests are below the limit");
        for (i, a) in requests.iter().enumerate() {
            let pa = layout.placements[i];
            assert_eq!(pa.offset % ALIGNMENT, 0, "request {i} is aligned");
            assert!(pa.offset + a.bytes <= layout.chunk_bytes[pa.chunk as usize], "request {i} lies in its chunk");
            for (j, b) in requests.iter().enumerate().skip(i + 1) {
                let pb = layout.placements[j];
                let overlap = pa.chunk == pb.chunk
                    && pa.offset < pb.offset + b.bytes.max(1)
                    && pb.offset < pa.offset + a.bytes.max(1);
                assert!(!(overlap && together(a, b)), "requests {i} and {j} live together and overlap");
            }
        }
        layout
    }

    proptest! {
        #[test]
        fn buffers_that_live_together_are_disjoint(
            raw in prop::collection::vec((1u64..100_000, 0u32..40, 0u32..12), 1..60),
        ) {
            let requests: Vec<Request> =
                raw.into_iter().map(|(bytes, first, len)| Request { bytes, live: (first, first + len) }).collect();
            let layout = check(&requests, 1 << 40);
            prop_assert!(layout.chunk_bytes.iter().sum::<u64>() >= layout.live_bytes, "no layout beats the bound");
            check(&requests, 150_000);
        }
    }

    #[test]
    fn a_chain_needs_two_buffers() {
        let requests: Vec<Request> = (0..10).map(|i| Request { bytes: 1000, live: (i, i + 1) }).collect();
        assert_eq!(check(&requests, 1 << 20).chunk_bytes, vec![2048]);
    }

    #[test]
    fn what_one_wave_touches_is_apart_where_there_is_room() {
        // Dispatches 1 and 2 are a wave: one reads buffer 0 last, the other writes buffer 2.
        let small = |live| Request { bytes: 256, live };
        let requests = [small((0, 1)), small((1, 3)), small((2, 3)), Request { bytes: 16384, live: (3, 3) }];
        let waves = [(0, 0), (1, 2), (1, 2), (3, 3)];
        let layout = plan_in_waves(&requests, &waves, 1 << 20).expect("small");
        assert_ne!(layout.placements[0], layout.placements[2]);
        // Without the large one there is no room to spare.
        let tight = plan_in_waves(&requests[..3], &waves, 1 << 20).expect("small");
        assert_eq!(tight.chunk_bytes, [512]);
    }

    #[test]
    fn a_buffer_beyond_the_limit_is_refused() {
        let err = plan(&[Request { bytes: 5000, live: (0, 0) }], 4096).expect_err("too large");
        assert_eq!((err.request, err.limit), (0, 4096));
    }
}
