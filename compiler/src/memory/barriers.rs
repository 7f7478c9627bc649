//! Hazards between dispatches → barriers. Walks the order once and puts a barrier only where a range that is about to be read or written
//! overlaps what happened since the last one.

use jvc_codegen::plan::ByteRange;

/// Ranges that one dispatch reads and writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Touches {
    /// Read.
    pub reads: Vec<ByteRange>,
    /// Written.
    pub writes: Vec<ByteRange>,
}

fn overlap(a: &ByteRange, b: &ByteRange) -> bool {
    a.region == b.region && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

fn any_overlap(a: &[ByteRange], b: &[ByteRange]) -> bool {
    a.iter().any(|x| b.iter().any(|y| overlap(x, y)))
}

/// For each dispatch, whether a barrier must stand before it.
pub fn place(steps: &[Touches]) -> Vec<bool> {
    let mut since = Touches::default();
    steps
        .iter()
        .map(|step| {
            let hazard = any_overlap(&step.reads, &since.writes)
                || any_overlap(&step.writes, &since.writes)
                || any_overlap(&step.writes, &since.reads);
            if hazard {
                since = Touches::default();
            }
            since.reads.extend(&step.reads);
            since.writes.extend(&step.writes);
            hazard
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jvc_codegen::plan::Region;

    fn at(offset: u64) -> ByteRange {
        ByteRange { region: Region::Arena(0), offset, bytes: 16 }
    }

    fn step(reads: &[u64], writes: &[u64]) -> Touches {
        Touches { reads: reads.iter().map(|&o| at(o)).collect(), writes: writes.iter().map(|&o| at(o)).collect() }
    }

    #[test]
    fn each_kind_of_hazard_gets_one_barrier() {
        let steps = [step(&[], &[0]), step(&[0], &[16]), step(&[32], &[0]), step(&[], &[0])];
        assert_eq!(place(&steps), [false, true, true, true]);
    }

    #[test]
    fn independent_dispatches_share_the_space_between_barriers() {
        let steps = [step(&[64], &[0]), step(&[64], &[16]), step(&[64], &[32]), step(&[0, 16, 32], &[48])];
        assert_eq!(place(&steps), [false, false, false, true]);
    }
}
