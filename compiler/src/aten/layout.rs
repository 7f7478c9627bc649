//! Which results share memory with their operand: PyTorch decides by strides, and the export recorded them.

use super::args::Call;
use crate::import::program::{Arg, TensorMeta};
use crate::ir::Dim;

/// Name of the argument whose memory the results of a call share, if they do.
pub(super) fn aliased<'a>(call: &Call<'a>, is_view: bool) -> Option<&'a str> {
    let name = call.node.inputs.first().map(|i| i.name.as_str())?;
    let Some(Arg::Tensor(source)) = call.given(name) else { return None };
    shares(call, name, is_view).then_some(source.as_str())
}

fn shares(call: &Call<'_>, source: &str, is_view: bool) -> bool {
    let (Some(from), Some(to)) = (call.arg_meta(source), call.meta(0)) else { return is_view };
    match call.target {
        "aten.reshape.default" | "aten.reshape_as.default" | "aten.flatten.using_ints" | "aten.ravel.default" => {
            view_strides(from, &to.sizes).is_some()
        }
        "aten.contiguous.default" => {
            let format = call.memory_format().ok().flatten().unwrap_or(1);
            has_format(from, format)
        }
        "aten.type_as.default" => from.dtype == to.dtype,
        t if t.starts_with("aten.to.") => {
            let copy = call.has("copy") && call.bool("copy").unwrap_or(false);
            let format = call.has("memory_format").then(|| call.memory_format().ok().flatten()).flatten();
            from.dtype == to.dtype && !copy && format.is_none_or(|f| f == 4 || has_format(from, f))
        }
        // Without training (or probability) these return their operand itself.
        "aten.dropout.default"
        | "aten.feature_dropout.default"
        | "aten.alpha_dropout.default"
        | "aten.feature_alpha_dropout.default" => {
            call.bool("train").is_ok_and(|t| !t) || call.float("p").is_ok_and(|p| p == 0.0)
        }
        "aten.atleast_1d.default" | "aten.atleast_2d.default" | "aten.atleast_3d.default" => true,
        _ => is_view,
    }
}

/// Strides under which a tensor can be seen in another shape without a copy: PyTorch's rule. Dimensions are gathered, from the last, in
/// runs that are contiguous in memory; the new sizes must divide along the runs.
pub(super) fn view_strides(from: &TensorMeta, shape: &[Dim]) -> Option<Vec<Dim>> {
    let one = Dim::from(1);
    let Some(last) = from.strides.last() else { return Some(vec![one; shape.len()]) };
    if from.sizes.iter().any(|d| d.is(0)) {
        return Some(row_major(shape));
    }
    let mut strides = vec![one.clone(); shape.len()];
    let (mut base, mut run, mut seen) = (last.clone(), one.clone(), one.clone());
    let mut at = shape.len();
    for d in (0..from.sizes.len()).rev() {
        run = &run * &from.sizes[d];
        let ends = d == 0 || (!from.sizes[d - 1].is(1) && from.strides[d - 1] != &run * &base);
        if !ends {
            continue;
        }
        while at > 0 && (seen != run || shape[at - 1].is(1)) {
            strides[at - 1] = &seen * &base;
            seen = &seen * &shape[at - 1];
            at -= 1;
        }
        if seen != run {
            return None;
        }
        if d > 0 {
            base = from.strides[d - 1].clone();
            (run, seen) = (one.clone(), one.clone());
        }
    }
    (at == 0).then_some(strides)
}

/// Strides of a contiguous tensor.
pub(super) fn row_major(shape: &[Dim]) -> Vec<Dim> {
    let order: Vec<usize> = (0..shape.len()).rev().collect();
    strides_in(shape, &order)
}

/// Strides when dimensions vary fastest in the given order.
fn strides_in(shape: &[Dim], fastest_first: &[usize]) -> Vec<Dim> {
    let mut strides = vec![Dim::from(1); shape.len()];
    let mut n = Dim::from(1);
    for &d in fastest_first {
        strides[d] = n.clone();
        n = &n * &shape[d].max_of(&Dim::from(1));
    }
    strides
}

/// True if a tensor already lies in a memory format (1 row-major, 2 and 3 channels last); dimensions of size 1 have any stride.
fn has_format(meta: &TensorMeta, format: i64) -> bool {
    let n = meta.sizes.len();
    let expected = match (format, n) {
        (2, 4) | (3, 5) => {
            let order: Vec<usize> = std::iter::once(1).chain((2..n).rev()).chain(std::iter::once(0)).collect();
            strides_in(&meta.sizes, &order)
        }
        _ => row_major(&meta.sizes),
    };
    let fits = |d: usize| meta.sizes[d].is(1) || meta.strides[d] == expected[d];
    meta.sizes.iter().any(|d| d.is(0)) || (0..n).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::program::ScalarType;

    fn meta(sizes: &[i64], strides: &[i64]) -> TensorMeta {
        let dims = |v: &[i64]| v.iter().map(|&d| Dim::from(d)).collect();
        TensorMeta { dtype: ScalarType::F32, sizes: dims(sizes), strides: dims(strides), storage_offset: Dim::from(0) }
    }

    fn strides(sizes: &[i64], from: &[i64], shape: &[i64]) -> Option<Vec<i64>> {
        let shape: Vec<Dim> = shape.iter().map(|&d| Dim::from(d)).collect();
        let s = view_strides(&meta(sizes, from), &shape)?;
        s.iter().map(Dim::as_const).collect()
    }

    // Expected strides were read off torch 2.11 (`x.view(shape).stride()`, or its refusal).
    #[test]
    fn a_reshape_is_a_view_exactly_when_strides_allow_it() {
        assert_eq!(strides(&[2, 3, 4], &[12, 4, 1], &[6, 4]), Some(vec![4, 1]), "contiguous");
        assert_eq!(strides(&[2, 4, 3], &[12, 1, 4], &[2, 12]), None, "transposed inner dimensions");
        assert_eq!(
            strides(&[2, 4, 3], &[12, 1, 4], &[2, 2, 2, 3]),
            Some(vec![12, 2, 1, 4]),
            "split of a transposed one"
        );
        assert_eq!(strides(&[4, 2], &[6, 1], &[2, 2, 2]), Some(vec![12, 6, 1]), "slice of a wider tensor");
        assert_eq!(strides(&[4, 2], &[6, 1], &[8]), None, "slice cannot be flattened");
        assert_eq!(strides(&[3, 1, 5], &[5, 99, 1], &[15]), Some(vec![1]), "size 1 has any stride");
        assert_eq!(strides(&[], &[], &[1, 1]), Some(vec![1, 1]), "0-d");
        assert_eq!(strides(&[3, 4], &[0, 1], &[12]), None, "expanded");
    }

    #[test]
    fn formats_are_told_apart_by_strides() {
        assert!(has_format(&meta(&[2, 3, 4, 5], &[60, 20, 5, 1]), 1), "row-major");
        assert!(!has_format(&meta(&[2, 3, 4, 5], &[60, 1, 15, 3]), 1), "channels last is not row-major");
        assert!(has_format(&meta(&[2, 3, 4, 5], &[60, 1, 15, 3]), 2), "channels last");
        assert!(has_format(&meta(&[2, 1, 4, 5], &[20, 1, 5, 1]), 1), "one channel is both");
    }
}
