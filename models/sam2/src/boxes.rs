//! Boxes: suppression of duplicates, crops of a picture, grids of points; all as Meta's generator of automatic masks has them.

/// `[left, top, right, bottom]`.
pub type Rect = [f32; 4];

/// Width by height.
pub fn area(b: &Rect) -> f32 {
    (b[2] - b[0]) * (b[3] - b[1])
}

/// Intersection over union.
pub fn iou(a: &Rect, b: &Rect) -> f32 {
    let side = |lo: usize| (a[lo + 2].min(b[lo + 2]) - a[lo].max(b[lo])).max(0.0);
    let both = side(0) * side(1);
    both / (area(a) + area(b) - both)
}

/// Positions of the boxes that stay, best score first: each removes those behind it that it overlaps by more than `limit`. Of
/// equal scores the earlier one is better.
pub fn suppress(boxes: &[Rect], scores: &[f32], limit: f32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..boxes.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let mut kept: Vec<usize> = vec![];
    for i in order {
        // Boxes of no area overlap nothing: their quotient is not a number.
        if !kept.iter().any(|k| iou(&boxes[*k], &boxes[i]) > limit) {
            kept.push(i);
        }
    }
    kept
}

/// A part of a picture, and the layer that it belongs to (0: the whole).
pub type Crop = ([usize; 4], usize);

/// The whole picture, then for each layer k the 4ᵏ crops of its grid, which overlap by `overlap` of the short side in the first
/// layer and by half as much in each next one.
pub fn crops(width: usize, height: usize, layers: usize, overlap: f64) -> Vec<Crop> {
    let mut out = vec![([0, 0, width, height], 0)];
    for layer in 0..layers {
        let n = 2usize << layer;
        let shared = (overlap * width.min(height) as f64 * (2.0 / n as f64)) as usize;
        let length = |side: usize| (shared * (n - 1) + side).div_ceil(n);
        let (w, h) = (length(width), length(height));
        for i in 0..n * n {
            let (left, top) = ((w - shared) * (i / n), (h - shared) * (i % n));
            out.push(([left, top, (left + w).min(width), (top + h).min(height)], layer + 1));
        }
    }
    out
}

/// Whether a box inside a crop comes within 20 pixels of an edge of the crop that is no edge of the picture.
pub fn near_crop_edge(b: &Rect, crop: [usize; 4], (width, height): (usize, usize)) -> bool {
    let whole = [0, 0, width, height];
    (0..4).any(|i| {
        let at = b[i] + crop[i % 2] as f32;
        let close = |edge: usize| (at - edge as f32).abs() <= 20.0;
        close(crop[i]) && !close(whole[i])
    })
}

/// `n` × `n` points in the middles of equal parts of the unit square, row by row.
pub fn grid(n: usize) -> Vec<[f64; 2]> {
    let first = 1.0 / (2 * n) as f64;
    let at = |i: usize| if n > 1 { first + (1.0 - 2.0 * first) * i as f64 / (n - 1) as f64 } else { first };
    (0..n * n).map(|i| [at(i % n), at(i / n)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_removes_worse_ones_that_it_overlaps_and_ties_go_to_the_earlier() {
        let boxes = [[0.0, 0.0, 10.0, 10.0], [1.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0], [0.0, 0.0, 10.0, 10.0]];
        assert_eq!(suppress(&boxes, &[0.5, 0.9, 0.1, 0.5], 0.7), [1, 2]);
        assert_eq!(suppress(&boxes, &[0.5, 0.5, 0.5, 0.5], 0.95), [0, 1, 2]);
        assert_eq!(suppress(&[[0.0; 4]; 2], &[1.0, 1.0], 0.5), [0, 1]);
    }

    #[test]
    fn a_grid_lies_in_the_middles_of_its_parts() {
        assert_eq!(grid(1), [[0.5, 0.5]]);
        assert_eq!(grid(2), [[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]]);
    }
}
