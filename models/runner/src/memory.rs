//! The device memory that a program needs, from the constants of the generated crate, to be told before loading.

use std::fmt;

/// Device memory of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs {
    /// Bytes of weights: the crate's `WEIGHT_BYTES`.
    pub weights: u64,
    /// Of each session: a name, runs in flight, and bytes of each of them; from `SLOT_BYTES` and `STATE_BYTES` of the session.
    pub sessions: Vec<(&'static str, usize, u64)>,
}

impl Needs {
    /// Bytes of everything.
    pub fn total(&self) -> u64 {
        self.weights + self.sessions.iter().map(|(_, slots, bytes)| *slots as u64 * bytes).sum::<u64>()
    }
}

/// `31.0 MiB of device memory: weights 23.0 MiB, encode 8.0 MiB`.
impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of device memory: weights {}", bytes(self.total()), bytes(self.weights))?;
        self.sessions.iter().try_for_each(|(name, slots, each)| match slots {
            1 => write!(f, ", {name} {}", bytes(*each)),
            slots => write!(f, ", {name} {slots} × {}", bytes(*each)),
        })
    }
}

/// A number of bytes for people.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 3] = ["KiB", "MiB", "GiB"];
    let fits = |(power, _): &(usize, &&str)| n >= 1 << (10 * (power + 1));
    match UNITS.iter().enumerate().rev().find(fits) {
        Some((power, unit)) => format!("{:.1} {unit}", n as f64 / (1u64 << (10 * (power + 1))) as f64),
        None => format!("{n} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_the_sum_of_their_parts_in_readable_units() {
        let needs = Needs { weights: 23 << 20, sessions: vec![("encode", 1, 512 << 10), ("decode", 3, 1 << 30)] };
        assert_eq!(needs.total(), (23 << 20) + (512 << 10) + (3 << 30));
        assert_eq!(
            needs.to_string(),
            "3.0 GiB of device memory: weights 23.0 MiB, encode 512.0 KiB, decode 3 × 1.0 GiB"
        );
        assert_eq!(bytes(1023), "1023 bytes");
    }
}
