//! Lifetimes → offsets: a pure function. Largest first, each at the lowest offset where nothing that lives with it lies.

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

/// Places buffers in chunks of at most `max_chunk` bytes.
///
/// # Errors
/// When one buffer alone exceeds a chunk.
pub fn plan(requests: &[Request], max_chunk: u64) -> Result<Layout, TooLarge> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(requests[i].bytes), requests[i].live.0, i));
    let mut placements: Vec<Option<Placement>> = vec![None; requests.len()];
    let mut chunk_bytes: Vec<u64> = vec![];
    for (done, &i) in order.iter().enumerate() {
        let bytes = aligned(requests[i].bytes);
        if bytes > max_chunk {
            return Err(TooLarge { request: i, bytes, limit: max_chunk });
        }
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
    let placements = placements.into_iter().map(|p| p.expect("every request is placed")).collect();
    Ok(Layout { placements, chunk_bytes, live_bytes: live_bytes(requests) })
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
    fn a_buffer_beyond_the_limit_is_refused() {
        let err = plan(&[Request { bytes: 5000, live: (0, 0) }], 4096).expect_err("too large");
        assert_eq!((err.request, err.limit), (0, 4096));
    }
}
