//! The size at which the network sees a picture: its aspect kept as nearly as multiples of 14 allow.

/// Sides are multiples of this.
pub const PATCH: usize = 14;

/// How a picture's size becomes the network's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizing {
    /// The side that the scale is chosen by, in pixels: 518 in training.
    pub side: usize,
    /// How the scale is chosen.
    pub fit: Fit,
}

/// How the scale is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fit {
    /// The short side becomes `side`, as in the authors' own program.
    #[default]
    ShortSide,
    /// Whichever side needs the smaller change becomes `side`, as in transformers' image processor: the same for pictures
    /// whose sides are both larger, but small pictures are not enlarged as much.
    LeastChange,
}

impl Default for Sizing {
    fn default() -> Self {
        Self { side: 518, fit: Fit::default() }
    }
}

impl Sizing {
    /// Height and width at which the network sees a picture of this height and width.
    pub fn network_size(&self, picture: [usize; 2]) -> [usize; 2] {
        let [down, across] = picture.map(|side| self.side as f64 / side as f64);
        let scale = match self.fit {
            Fit::ShortSide => down.max(across),
            Fit::LeastChange if (1.0 - across).abs() < (1.0 - down).abs() => across,
            Fit::LeastChange => down,
        };
        let least = if self.fit == Fit::ShortSide { self.side } else { PATCH };
        picture.map(|side| to_patches(scale * side as f64, least))
    }
}

/// The nearest multiple of 14 (ties to the even one), or the next above where that is below `least`.
fn to_patches(side: f64, least: usize) -> usize {
    let patches = side / PATCH as f64;
    let nearest = patches.round_ties_even() as usize * PATCH;
    if nearest < least { least.div_ceil(PATCH).max(patches.ceil() as usize) * PATCH } else { nearest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_side_is_never_below_518_and_the_aspect_is_kept_to_half_a_patch() {
        for picture in [[480, 640], [640, 480], [3024, 4032], [100, 100], [37, 1000], [519, 517], [1080, 1920]] {
            let [h, w] = Sizing::default().network_size(picture);
            assert!(h.min(w) >= 518 && h % PATCH == 0 && w % PATCH == 0, "{picture:?}: {h} × {w}");
            let scale = 518.0 / picture[0].min(picture[1]) as f64;
            for (side, got) in picture.into_iter().zip([h, w]) {
                assert!((side as f64 * scale - got as f64).abs() <= 7.001, "{picture:?}: {h} × {w}");
            }
        }
        assert_eq!(Sizing::default().network_size([480, 640]), [518, 686]);
    }

    #[test]
    fn a_side_that_is_no_multiple_is_rounded_up_for_the_short_side() {
        assert_eq!(Sizing { side: 64, fit: Fit::ShortSide }.network_size([100, 100]), [70, 70]);
    }
}
