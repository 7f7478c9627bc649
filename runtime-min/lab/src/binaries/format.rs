//! What a cache file of binaries holds: for each pipeline, by a hash of what it is made from, its binaries.

use std::collections::BTreeMap;

/// One of the binaries that make a kernel, under the driver's own key for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) key: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

/// Binaries of kernels, as bytes: for each kernel its hash and how many it has (u64, u32), then of each of these the lengths of key and
/// data (u32, u32), the key and the data. Numbers are little-endian.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Binaries(pub(crate) BTreeMap<u64, Vec<Binary>>);

impl Binaries {
    /// The longest key that Vulkan knows.
    pub(crate) const MAX_KEY: usize = 32;

    /// Reads what [`Binaries::bytes`] wrote; none from anything else.
    pub(crate) fn parse(mut bytes: &[u8]) -> Option<Binaries> {
        let mut found = BTreeMap::new();
        while !bytes.is_empty() {
            let hash = u64::from_le_bytes(*bytes.split_off(..8)?.first_chunk()?);
            let n = number(&mut bytes)?;
            // Not collected into a vector of `n`: that is whatever the file says.
            let binaries = (0..n).map(|_| binary(&mut bytes)).collect::<Option<Vec<_>>>()?;
            let is_new = found.last_key_value().is_none_or(|(last, _)| *last < hash);
            (is_new && n > 0).then(|| found.insert(hash, binaries))?;
        }
        Some(Binaries(found))
    }

    /// As a payload. None where a key is too long or the binaries of a kernel do not fit its numbers.
    pub(crate) fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for (hash, binaries) in &self.0 {
            bytes.extend(hash.to_le_bytes());
            bytes.extend(u32::try_from(binaries.len()).ok().filter(|n| *n > 0)?.to_le_bytes());
            for Binary { key, data } in binaries {
                let key_bytes = Some(key.len() as u32).filter(|_| key.len() <= Binaries::MAX_KEY)?;
                bytes.extend(key_bytes.to_le_bytes());
                bytes.extend(u32::try_from(data.len()).ok()?.to_le_bytes());
                bytes.extend(key);
                bytes.extend(data);
            }
        }
        Some(bytes)
    }
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.split_off(..4)?.first_chunk()?))
}

fn binary(bytes: &mut &[u8]) -> Option<Binary> {
    let (key, data) = (number(bytes)? as usize, number(bytes)? as usize);
    let key = bytes.split_off(..key).filter(|key| key.len() <= Binaries::MAX_KEY)?;
    Some(Binary { key: key.to_vec(), data: bytes.split_off(..data)?.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Binaries {
        let binary = |key: &[u8], data: &[u8]| Binary { key: key.to_vec(), data: data.to_vec() };
        Binaries(BTreeMap::from([
            (7, vec![binary(&[1; 20], b"machine code"), binary(&[2; 32], b"")]),
            (u64::MAX, vec![binary(b"", b"more")]),
        ]))
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = some().bytes().expect("it fits");
        assert_eq!(Binaries::parse(&bytes), Some(some()));
        // By the documented layout, not by the code above.
        assert_eq!(bytes[..20], [7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 20, 0, 0, 0, 12, 0, 0, 0]);
        assert_eq!(bytes.len(), 12 + 8 + 32 + 8 + 32 + 12 + 8 + 4);
        assert_eq!(Binaries::parse(&[]), Some(Binaries::default()));
        assert_eq!(Binaries::default().bytes(), Some(vec![]));
    }

    #[test]
    fn what_is_read_is_what_would_be_written() {
        let good = some().bytes().expect("it fits");
        for len in 1..good.len() {
            let whole = Binaries::parse(&good[..len]);
            // The first kernel alone is a file, too.
            assert_eq!(whole.is_some(), len == 92, "cut to {len}");
        }
        for bit in 0..good.len() * 8 {
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let again = Binaries::parse(&flipped).map(|read| read.bytes().expect("it was read"));
            assert!(again.is_none_or(|again| again == flipped), "bit {bit}");
        }
    }

    #[test]
    fn lengths_that_lie_are_refused_without_the_memory_that_they_ask_for() {
        let mut many = 1_u64.to_le_bytes().to_vec();
        many.extend(u32::MAX.to_le_bytes());
        assert_eq!(Binaries::parse(&many), None);
        for (key, data) in [(u32::MAX, 0), (0, u32::MAX), (33, 0)] {
            let mut bytes = [1_u64.to_le_bytes().as_slice(), &1_u32.to_le_bytes()].concat();
            bytes.extend([key.to_le_bytes(), data.to_le_bytes()].concat());
            bytes.extend([0; 40]);
            assert_eq!(Binaries::parse(&bytes), None, "{key} {data}");
        }
        let twice = some().bytes().expect("it fits").repeat(2);
        assert_eq!(Binaries::parse(&twice), None, "hashes out of order");
        let none = [1_u64.to_le_bytes().as_slice(), &0_u32.to_le_bytes()].concat();
        assert_eq!(Binaries::parse(&none), None, "a kernel of nothing");
        let long = Binaries(BTreeMap::from([(1, vec![Binary { key: vec![0; 33], data: vec![] }])]));
        assert_eq!(long.bytes(), None);
    }
}
