//! Which invocation holds which element of a cooperative matrix: the driver's secret, measured by `jvc probe`.

/// Bits of an invocation's number in its subgroup at most.
const LANE_BITS: usize = 6;
/// Bits of a component's number at most.
const COMPONENT_BITS: usize = 5;

/// How a driver spreads a fragment: invocation `l` holds in component `c` the element whose (row, column) is the sum of the entries of
/// all bits that are set in `l` and in `c`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Spread {
    /// One entry a bit of the invocation's number, the lowest first; (0, 0) beyond the last.
    pub lanes: [(u8, u8); LANE_BITS],
    /// One entry a bit of the component's number.
    pub components: [(u8, u8); COMPONENT_BITS],
}

impl Spread {
    /// The spread that has every element where `at(lane, component)` says; none where no sum of bits does.
    pub fn find(subgroup: u32, components: u32, at: impl Fn(u32, u32) -> (u32, u32)) -> Option<Spread> {
        let bits = |n: u32, most: usize| {
            (n.is_power_of_two() && n.trailing_zeros() as usize <= most).then_some(n.trailing_zeros())
        };
        let (lane_bits, component_bits) = (bits(subgroup, LANE_BITS)?, bits(components, COMPONENT_BITS)?);
        let entry = |(row, column): (u32, u32)| Some((u8::try_from(row).ok()?, u8::try_from(column).ok()?));
        let mut spread = Spread::default();
        for bit in 0..lane_bits {
            spread.lanes[bit as usize] = entry(at(1 << bit, 0))?;
        }
        for bit in 0..component_bits {
            spread.components[bit as usize] = entry(at(0, 1 << bit))?;
        }
        let same = |lane, component| spread.at(lane, component) == at(lane, component);
        (0..subgroup).all(|lane| (0..components).all(|c| same(lane, c))).then_some(spread)
    }

    /// Row and column of a component of an invocation.
    pub fn at(&self, lane: u32, component: u32) -> (u32, u32) {
        let sum = |entries: &[(u8, u8)], n: u32| {
            let set = entries.iter().enumerate().filter(|(bit, _)| n >> bit & 1 == 1);
            set.fold((0, 0), |(row, column), (_, e)| (row + u32::from(e.0), column + u32::from(e.1)))
        };
        let (lanes, components) = (sum(&self.lanes, lane), sum(&self.components, component));
        (lanes.0 + components.0, lanes.1 + components.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_gives_back_the_places_that_it_was_found_from() {
        let at = |l: u32, c: u32| (l / 4 + 8 * (c / 2 % 2), 2 * (l % 4) + c % 2 + 8 * (c / 4));
        let spread = Spread::find(32, 8, at).expect("every bit moves by itself");
        assert_eq!(spread.lanes, [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0), (0, 0)]);
        assert!((0..256).all(|i| spread.at(i / 8, i % 8) == at(i / 8, i % 8)));
    }

    #[test]
    fn places_that_are_no_sum_of_bits_have_no_spread() {
        assert_eq!(Spread::find(32, 8, |l, c| (l * l % 32, c)), None);
        assert_eq!(Spread::find(24, 8, |l, c| (l, c)), None, "24 invocations");
    }
}
