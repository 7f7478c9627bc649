//! Operators whose extents the data decide (lengths of results, boxes), against plain loops: in the interpreter and on the device at hand.

mod by_hand;

use by_hand::{Hand, dims, expect, f32s, i64s, interpret, random, run, t};
use jvc::exec::ExecError;
use jvc::import::program::{Arg, ScalarType, SymArg};
use jvc::ir::eval::{EvalError, Tensor};
use jvc::ir::{DType, Dim, Graph};

const OPEN: i64 = i64::MAX;

fn u0() -> Dim {
    Dim::symbol("u0")
}

fn nms(n: i64, threshold: f64) -> Graph {
    let inputs = [("dets", t("boxes")), ("scores", t("scores")), ("iou_threshold", Arg::Float(threshold))];
    Hand::new(&[("boxes", ScalarType::F32, &[n, 4]), ("scores", ScalarType::F32, &[n])])
        .symbol("u0", 0, OPEN)
        .call("torchvision.nms.default", &inputs, &[("keep", ScalarType::I64, vec![u0()])])
        .lower(&["keep"])
        .expect("lowers")
}

/// torchvision's greedy loop.
fn greedy(boxes: &[f64], scores: &[f64], threshold: f64) -> Vec<i64> {
    let area = |b: &[f64]| (b[2] - b[0]) * (b[3] - b[1]);
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut kept: Vec<usize> = vec![];
    for i in order {
        let p = &boxes[4 * i..4 * i + 4];
        let hit = kept.iter().any(|&j| {
            let q = &boxes[4 * j..4 * j + 4];
            let side = |d: usize| (p[d + 2].min(q[d + 2]) - p[d].max(q[d])).max(0.0);
            let common = side(0) * side(1);
            common / (area(p) + area(q) - common) > threshold
        });
        if !hit {
            kept.push(i);
        }
    }
    kept.into_iter().map(|i| i as i64).collect()
}

#[test]
fn nms_keeps_what_the_greedy_loop_keeps() {
    for (n, seed) in [(1, 1), (17, 2), (60, 3)] {
        let (corners, scores) = (random(4 * n, seed), random(n, seed + 100));
        let boxes: Vec<f64> = corners
            .chunks(4)
            .flat_map(|c| {
                let (x, y) = (c[0] * 20.0, c[1] * 20.0);
                [x, y, x + 4.0 + c[2] * 8.0, y + 4.0 + c[3] * 8.0]
            })
            .map(|v| f64::from(v as f32))
            .collect();
        let want = greedy(&boxes, &scores, 0.3);
        assert!(n == 1 || want.len() < n, "something is suppressed");
        let inputs = [f32s(&[n, 4], boxes), f32s(&[n], scores)];
        expect(&nms(n as i64, 0.3), &inputs, &[i64s(&[want.len()], want)]);
    }
}

#[test]
fn a_chain_of_boxes_beyond_the_rounds_is_an_error_not_a_wrong_result() {
    // Each box overlaps the next one only: whether the last stays hangs on all before it.
    let n = 60;
    let boxes = (0..n).flat_map(|i| [f64::from(i), 0.0, f64::from(i) + 1.5, 1.0]).collect();
    let scores = (0..n).map(|i| f64::from(n - i)).collect();
    let inputs = [f32s(&[n as usize, 4], boxes), f32s(&[n as usize], scores)];
    let graph = nms(i64::from(n), 0.1);
    assert!(matches!(interpret(&graph, &inputs), Err(EvalError::Bound { value: -1, .. })));
    if let Some(got) = run(&graph, &inputs) {
        assert!(matches!(got, Err(ExecError::Found { value: -1, .. })), "{got:?}");
    }
}

/// torchvision's `roi_align` with one sample per element that a bin covers.
fn roi_align(x: &[f64], size: [usize; 4], rois: &[f64], bins: [usize; 2], scale: f64, aligned: bool) -> Vec<f64> {
    let [_, channels, height, width] = size;
    let sample = |image: usize, c: usize, y: f64, x_at: f64| {
        if y < -1.0 || y > height as f64 || x_at < -1.0 || x_at > width as f64 {
            return 0.0;
        }
        let side = |v: f64, n: usize| {
            let v = v.max(0.0);
            let low = (v as usize).min(n - 1);
            let high = (low + 1).min(n - 1);
            let v = if low + 1 >= n { low as f64 } else { v };
            (low, high, v - low as f64)
        };
        let ((y0, y1, fy), (x0, x1, fx)) = (side(y, height), side(x_at, width));
        let at = |i: usize, j: usize| x[((image * channels + c) * height + i) * width + j];
        (1.0 - fy) * ((1.0 - fx) * at(y0, x0) + fx * at(y0, x1)) + fy * ((1.0 - fx) * at(y1, x0) + fx * at(y1, x1))
    };
    let mut out = vec![];
    for roi in rois.chunks(5) {
        let offset = if aligned { 0.5 } else { 0.0 };
        let corner = |k: usize| roi[k] * scale - offset;
        let least = |v: f64| if aligned { v } else { v.max(1.0) };
        let bin = [least(corner(4) - corner(2)) / bins[0] as f64, least(corner(3) - corner(1)) / bins[1] as f64];
        let grid = bin.map(f64::ceil);
        for c in 0..channels {
            for (i, j) in (0..bins[0]).flat_map(|i| (0..bins[1]).map(move |j| (i, j))) {
                let mut sum = 0.0;
                for (p, q) in
                    (0..grid[0].max(0.0) as usize).flat_map(|p| (0..grid[1].max(0.0) as usize).map(move |q| (p, q)))
                {
                    let y = corner(2) + (i as f64 + (p as f64 + 0.5) / grid[0]) * bin[0];
                    let x_at = corner(1) + (j as f64 + (q as f64 + 0.5) / grid[1]) * bin[1];
                    sum += sample(roi[0] as usize, c, y, x_at);
                }
                out.push(sum / (grid[0] * grid[1]).max(1.0));
            }
        }
    }
    out
}

#[test]
fn roi_align_takes_as_many_samples_as_a_bin_covers() {
    let size = [2, 3, 7, 9];
    let x = random(2 * 3 * 7 * 9, 5);
    // Inside, beyond two sides, much larger than the input, smaller than an element, and far outside.
    let rois: Vec<f64> = [
        [0.0, 1.25, 2.5, 12.0, 10.0],
        [1.0, -6.0, 3.0, 40.0, 9.5],
        [0.0, -300.0, -250.0, 310.0, 270.0],
        [1.0, 4.0, 4.0, 4.25, 4.25],
        [1.0, 90.0, 90.0, 95.0, 99.0],
    ]
    .concat();
    for aligned in [true, false] {
        let inputs = [
            ("input", t("x")),
            ("rois", t("rois")),
            ("spatial_scale", Arg::Float(0.5)),
            ("pooled_height", Arg::Int(2)),
            ("pooled_width", Arg::Int(3)),
            ("sampling_ratio", Arg::Int(-1)),
            ("aligned", Arg::Bool(aligned)),
        ];
        let graph = Hand::new(&[("x", ScalarType::F32, &[2, 3, 7, 9]), ("rois", ScalarType::F32, &[5, 5])])
            .call("torchvision.roi_align.default", &inputs, &[("y", ScalarType::F32, dims(&[5, 3, 2, 3]))])
            .lower(&["y"])
            .expect("lowers");
        let want = f32s(&[5, 3, 2, 3], roi_align(&x, size, &rois, [2, 3], 0.5, aligned));
        expect(&graph, &[f32s(&size, x.clone()), f32s(&[5, 5], rois.clone())], &[want]);
    }
}

/// torchvision's `roi_pool`: largest element of each bin, and its position in the plane.
fn roi_pool(x: &[f64], size: [usize; 4], rois: &[f64], bins: [usize; 2], scale: f64) -> (Vec<f64>, Vec<i64>) {
    let [_, channels, height, width] = size;
    let (mut values, mut positions) = (vec![], vec![]);
    for roi in rois.chunks(5) {
        let corner = |k: usize| (roi[k] * scale).round();
        let len = [(corner(4) - corner(2) + 1.0).max(1.0), (corner(3) - corner(1) + 1.0).max(1.0)];
        let edges = |d: usize, k: usize, n: usize| {
            let bin = len[d] / bins[d] as f64;
            let edge = |v: f64| (v + corner(2 - d)).clamp(0.0, n as f64) as usize;
            edge((k as f64 * bin).floor())..edge(((k + 1) as f64 * bin).ceil())
        };
        for c in 0..channels {
            for (i, j) in (0..bins[0]).flat_map(|i| (0..bins[1]).map(move |j| (i, j))) {
                let (rows, columns) = (edges(0, i, height), edges(1, j, width));
                let mut best = (f64::NEG_INFINITY, -1);
                for (p, q) in rows.flat_map(|p| columns.clone().map(move |q| (p, q))) {
                    let v = x[((roi[0] as usize * channels + c) * height + p) * width + q];
                    if v > best.0 {
                        best = (v, (p * width + q) as i64);
                    }
                }
                values.push(if best.1 < 0 { 0.0 } else { best.0 });
                positions.push(best.1);
            }
        }
    }
    (values, positions)
}

#[test]
fn roi_pool_takes_the_largest_element_of_each_bin() {
    let size = [2, 2, 6, 5];
    let x: Vec<f64> = random(120, 8).iter().map(|v| v - 0.5).collect();
    // Inside, a single element, beyond the input on two sides, outside.
    let boxes = [
        [0.0, 0.5, 1.5, 4.5, 9.0],
        [1.0, 2.0, 2.0, 2.0, 2.0],
        [0.0, -9.0, 5.0, 30.0, 40.0],
        [1.0, 50.0, 2.0, 60.0, 9.0],
    ];
    let inputs = [
        ("input", t("x")),
        ("rois", t("rois")),
        ("spatial_scale", Arg::Float(0.5)),
        ("pooled_height", Arg::Int(3)),
        ("pooled_width", Arg::Int(2)),
    ];
    let results = [("y", ScalarType::F32, dims(&[4, 2, 3, 2])), ("at", ScalarType::I32, dims(&[4, 2, 3, 2]))];
    let graph = Hand::new(&[("x", ScalarType::F32, &[2, 2, 6, 5]), ("rois", ScalarType::F32, &[4, 5])])
        .call("torchvision.roi_pool.default", &inputs, &results)
        .lower(&["y", "at"])
        .expect("lowers");
    let (values, positions) = roi_pool(&x, size, &boxes.concat(), [3, 2], 0.5);
    assert!(positions.contains(&-1), "some bin is empty");
    let shape = [4, 2, 3, 2];
    let want = [f32s(&shape, values), Tensor::from_i64(DType::I32, &shape, positions)];
    expect(&graph, &[f32s(&size, x), f32s(&[4, 5], boxes.concat())], &want);
}

#[test]
fn repetition_follows_the_counts() {
    let inputs = [("self", t("x")), ("repeats", t("n")), ("dim", Arg::Int(1))];
    let graph = Hand::new(&[("x", ScalarType::F32, &[2, 4]), ("n", ScalarType::I64, &[4])])
        .symbol("u0", 0, 9)
        .call("aten.repeat_interleave.self_Tensor", &inputs, &[("y", ScalarType::F32, vec![Dim::from(2), u0()])])
        .call(
            "aten.sum.dim_IntList",
            &[("self", t("y")), ("dim", Arg::Ints(vec![1]))],
            &[("s", ScalarType::F32, dims(&[2]))],
        )
        .lower(&["y", "s"])
        .expect("lowers");
    let x: Vec<f64> = (1..=8).map(f64::from).collect();
    for counts in [[2, 0, 3, 1], [0, 0, 0, 0], [0, 9, 0, 0]] {
        let row = |r: usize| (0..4).flat_map(|k| vec![x[4 * r + k]; counts[k] as usize]).collect::<Vec<f64>>();
        let (a, b) = (row(0), row(1));
        let sums = vec![a.iter().sum(), b.iter().sum()];
        let want = [f32s(&[2, a.len()], [a, b].concat()), f32s(&[2], sums)];
        expect(&graph, &[f32s(&[2, 4], x.clone()), i64s(&[4], counts.to_vec())], &want);
    }
    let many = [f32s(&[2, 4], x), i64s(&[4], vec![5, 0, 5, 0])];
    assert!(matches!(interpret(&graph, &many), Err(EvalError::Bound { value: 10, max: 9, .. })));
    if let Some(got) = run(&graph, &many) {
        assert!(matches!(got, Err(ExecError::Found { value: 10, max: 9, .. })), "{got:?}");
    }
}

#[test]
fn distinct_values_come_with_their_runs() {
    let on = Arg::Bool(true);
    let flags = [("self", t("x")), ("return_inverse", on.clone()), ("return_counts", on)];
    let results = |inverse: &[i64]| {
        let (f, i) = (ScalarType::F32, ScalarType::I64);
        [("values", f, vec![u0()]), ("inverse", i, dims(inverse)), ("counts", i, vec![u0()])]
    };
    let x = [3.0, 1.0, 1.0, 2.0, 3.0, 3.0];
    for (target, values, inverse, counts) in [
        ("aten._unique2.default", vec![1.0, 2.0, 3.0], vec![2, 0, 0, 1, 2, 2], vec![2, 1, 3]),
        ("aten.unique_consecutive.default", vec![3.0, 1.0, 2.0, 3.0], vec![0, 1, 1, 2, 3, 3], vec![1, 2, 1, 2]),
    ] {
        let graph = Hand::new(&[("x", ScalarType::F32, &[2, 3])])
            .symbol("u0", 0, OPEN)
            .call(target, &flags, &results(&[2, 3]))
            .lower(&["values", "inverse", "counts"])
            .expect("lowers");
        let n = values.len();
        let want = [f32s(&[n], values), i64s(&[2, 3], inverse), i64s(&[n], counts)];
        expect(&graph, &[f32s(&[2, 3], x.to_vec())], &want);
    }
}

#[test]
fn integers_are_counted_up_to_the_largest_and_at_least_as_many_as_asked() {
    let counting = |n: usize, least: i64| {
        let inputs = [("self", t("x")), ("weights", Arg::None), ("minlength", Arg::Int(least))];
        let hand = Hand::new(&[("x", ScalarType::I64, &[n as i64])]).symbol("u0", 0, 12);
        let hand = hand.call("aten.bincount.default", &inputs, &[("y", ScalarType::I64, vec![u0()])]);
        hand.lower(&["y"]).expect("lowers")
    };
    for (x, least) in [(vec![3, 0, 3, 7, 1, 3], 0), (vec![3, 0, 7, 1], 10), (vec![4], 2), (vec![], 3), (vec![], 0)] {
        let n = x.iter().map(|v| v + 1).max().unwrap_or(0).max(least);
        let want = (0..n).map(|place| x.iter().filter(|v| **v == place).count() as i64).collect();
        expect(&counting(x.len(), least), &[i64s(&[x.len()], x)], &[i64s(&[n as usize], want)]);
    }
    for largest in [12, i64::from(u32::MAX), i64::MAX] {
        let (graph, many) = (counting(2, 0), [i64s(&[2], vec![1, largest])]);
        assert!(matches!(interpret(&graph, &many), Err(EvalError::Bound { max: 12, .. })), "{largest}");
        if let Some(got) = run(&graph, &many) {
            assert!(matches!(got, Err(ExecError::Found { max: 12, .. })), "{largest}: {got:?}");
        }
    }
}

#[test]
fn a_number_out_of_a_tensor_is_a_size_downstream() {
    let item = vec![Arg::SymInt(SymArg::Name("u0".into()))];
    let end = Arg::SymInt(SymArg::Name("u0".into()));
    let slice = [("self", t("x")), ("dim", Arg::Int(0)), ("start", Arg::Int(0)), ("end", end)];
    let graph = Hand::new(&[("x", ScalarType::F32, &[8, 3]), ("n", ScalarType::I64, &[])])
        .symbol("u0", 0, 8)
        .node("aten.item.default", &[("self", t("n"))], item)
        .call("aten.slice.Tensor", &slice, &[("part", ScalarType::F32, vec![u0(), Dim::from(3)])])
        .call("aten.t.default", &[("self", t("part"))], &[("turned", ScalarType::F32, vec![Dim::from(3), u0()])])
        .call(
            "aten.mm.default",
            &[("self", t("turned")), ("mat2", t("part"))],
            &[("y", ScalarType::F32, dims(&[3, 3]))],
        )
        .call(
            "aten.softmax.int",
            &[("self", t("part")), ("dim", Arg::Int(0))],
            &[("p", ScalarType::F32, vec![u0(), Dim::from(3)])],
        )
        .lower(&["y", "p"])
        .expect("lowers");
    let x = random(24, 9);
    for n in [0usize, 1, 5, 8] {
        let at = |i: usize, j: usize| x[3 * i + j];
        let gram = (0..9).map(|k| (0..n).map(|i| at(i, k / 3) * at(i, k % 3)).sum()).collect();
        let total = |j: usize| (0..n).map(|i| at(i, j).exp()).sum::<f64>();
        let soft = (0..3 * n).map(|k| at(k / 3, k % 3).exp() / total(k % 3)).collect();
        let want: [Tensor; 2] = [f32s(&[3, 3], gram), f32s(&[n, 3], soft)];
        expect(&graph, &[f32s(&[8, 3], x.clone()), Tensor::from_i64(DType::I64, &[], vec![n as i64])], &want);
    }
}

#[test]
fn the_size_of_a_run_decides_a_branch() {
    let branch = |name: &str, target: &str| {
        let f = ScalarType::F32;
        Hand::new(&[])
            .open_input("a", f, vec![u0()])
            .call(target, &[("self", t("a"))], &[("b", f, vec![u0()])])
            .branch(name, "b")
    };
    let pick = [
        ("", Arg::SymBool(SymArg::Name("few".into()))),
        ("", branch("yes", "aten.neg.default")),
        ("", branch("no", "aten.abs.default")),
        ("", Arg::Tensors(vec!["part".into()])),
    ];
    let end = Arg::SymInt(SymArg::Name("u0".into()));
    let slice = [("self", t("x")), ("dim", Arg::Int(0)), ("start", Arg::Int(0)), ("end", end.clone())];
    let graph = Hand::new(&[("x", ScalarType::F32, &[6]), ("n", ScalarType::I64, &[])])
        .symbol("u0", 0, 6)
        .node("aten.item.default", &[("self", t("n"))], vec![end.clone()])
        .call("aten.slice.Tensor", &slice, &[("part", ScalarType::F32, vec![u0()])])
        .node("_operator.lt", &[("a", end), ("b", Arg::Int(4))], vec![Arg::SymBool(SymArg::Name("few".into()))])
        .call("higher_order.cond", &pick, &[("y", ScalarType::F32, vec![u0()])])
        .lower(&["y"])
        .expect("lowers");
    for (n, sign) in [(0usize, -1.0), (3, -1.0), (4, 1.0), (6, 1.0)] {
        let x: Vec<f64> = (1..=6).map(f64::from).collect();
        let want = f32s(&[n], x[..n].iter().map(|v| sign * v).collect());
        expect(&graph, &[f32s(&[6], x), Tensor::from_i64(DType::I64, &[], vec![n as i64])], &[want]);
    }
}
