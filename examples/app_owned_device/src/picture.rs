//! Pictures on the host, and what softening them must give.

/// Red, green, blue and opacity, a byte each, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// `height * width * 4`.
    pub bytes: Vec<u8>,
}

impl Picture {
    /// Noise, the same for the same seed.
    pub fn noise(width: u32, height: u32, seed: u32) -> Picture {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[0]
        };
        Picture { width, height, bytes: (0..width * height * 4).map(|_| next()).collect() }
    }

    fn at(&self, row: i64, column: i64, channel: usize) -> u32 {
        let row = row.clamp(0, i64::from(self.height) - 1) as usize;
        let column = column.clamp(0, i64::from(self.width) - 1) as usize;
        self.bytes[(row * self.width as usize + column) * 4 + channel].into()
    }
}

/// What the program computes, by integers on the host: sixteenths of the weights [1 2 1] x [1 2 1], halves to even.
pub fn softened_by_integers(picture: &Picture) -> Picture {
    let mut out = picture.clone();
    for (pixel, target) in out.bytes.chunks_exact_mut(4).enumerate() {
        let (row, column) = ((pixel / picture.width as usize) as i64, (pixel % picture.width as usize) as i64);
        for (channel, value) in target.iter_mut().take(3).enumerate() {
            let line = |row| {
                picture.at(row, column - 1, channel)
                    + 2 * picture.at(row, column, channel)
                    + picture.at(row, column + 1, channel)
            };
            let sum = line(row - 1) + 2 * line(row) + line(row + 1);
            let (whole, rest) = (sum / 16, sum % 16);
            *value = (whole + u32::from(rest > 8 || rest == 8 && whole % 2 == 1)) as u8;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_spreads_and_halves_go_to_even() {
        // A point of 8 gives 8·4/16 = 2, 8·2/16 = 1, and at its corners 8/16, a half, which goes to 0; one of 24 has 3/2 there: 2.
        for (value, centre, edge, corner) in [(8, 2, 1, 0), (24, 6, 3, 2)] {
            let mut picture = Picture { width: 5, height: 5, bytes: vec![0; 100] };
            picture.bytes[12 * 4] = value;
            let soft = softened_by_integers(&picture);
            let red = |row: usize, column: usize| soft.bytes[(row * 5 + column) * 4];
            assert_eq!((red(2, 2), red(2, 1), red(1, 1), red(0, 0)), (centre, edge, corner, 0));
        }
    }
}
