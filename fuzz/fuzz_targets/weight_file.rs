//! Any bytes as a weight file, and the hash of any bytes in any pieces. The first two bytes say where the pieces end; where the file
//! is not refused, it is the one that its header was made for.

#![no_main]

use jvc_files::{ContentHasher, HEADER_BYTES, Header, SEGMENT_BYTES, content_hash, copy_segments};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((cuts, file)) = bytes.split_first_chunk::<2>() else { return };
    let payload = file.get(HEADER_BYTES..).unwrap_or(&[]);
    let expect = Header { payload_bytes: payload.len() as u64, content_hash: content_hash([payload]) };
    let accepted = expect.payload_of(file);
    assert_eq!(accepted.is_ok(), file.len() >= HEADER_BYTES && file[..24] == expect.encode()[..24]);
    assert_eq!(expect.payload_of(&[&expect.encode(), payload].concat()), Ok(payload));

    let (mut copy, mut hashes) = (vec![0; payload.len()], vec![0; payload.len().div_ceil(SEGMENT_BYTES)]);
    copy_segments(payload, &mut copy, &mut hashes);
    assert_eq!((copy.as_slice(), expect.check_hash(&hashes)), (payload, Ok(())));
    let mut hasher = ContentHasher::default();
    let (a, b) = (usize::from(cuts[0]).min(payload.len()), usize::from(cuts[1]).min(payload.len()));
    let (a, b) = (a.min(b), a.max(b));
    [&payload[..a], &payload[a..b], &payload[b..]].iter().for_each(|piece| hasher.update(piece));
    assert_eq!(hasher.finish(), expect.content_hash);
    if let Some(flipped) = copy.get_mut(a) {
        *flipped ^= 1 << (cuts[1] % 8);
        assert_ne!(content_hash([copy.as_slice()]), expect.content_hash);
    }
});
