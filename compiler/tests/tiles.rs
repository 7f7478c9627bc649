//! Which tiles the devices get for the shapes of the models, pinned in `tests/files/tiles.txt` (`JVC_BLESS=1` rewrites it); and which shapes
//! stand at a cliff: a little larger or smaller in some direction, an element is predicted to take much longer. Those are pinned too, so
//! that none comes unseen. `docs/benchmarks/cliffs.py` measures the same on a device.

use jvc::device::{DeviceProfile, find};
use jvc::schedule::tile::{Problem, matmul, predicted};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::spec::Staging;
use std::fmt::Write;
use std::path::Path;

const DEVICES: [&str; 4] = ["h200", "lavapipe", "radeon-8060s", "rtx4000-ada"];

/// Rows, columns, summed length; whether the left operand is gathered; where from.
const SHAPES: [(u32, u32, u32, bool, &str); 26] = [
    (4096, 4096, 4096, false, "square"),
    (8192, 8192, 8192, false, "square"),
    (1500, 1280, 1280, false, "Whisper: output of attention"),
    (1500, 3840, 1280, false, "Whisper: queries, keys, values"),
    (1500, 5120, 1280, false, "Whisper: feed-forward, in"),
    (1500, 1280, 5120, false, "Whisper: feed-forward, out"),
    (1, 1280, 5120, false, "Whisper: a step"),
    (1, 51866, 1280, false, "Whisper: logits of a step"),
    (65536, 432, 144, false, "SAM 2, first stage: queries, keys, values"),
    (65536, 576, 144, false, "SAM 2, first stage: feed-forward, in"),
    (16384, 144, 576, false, "SAM 2: feed-forward, out"),
    (16384, 1152, 288, false, "SAM 2, second stage: feed-forward, in"),
    (4096, 1728, 576, false, "SAM 2, third stage: queries, keys, values"),
    (4096, 576, 2304, false, "SAM 2, third stage: feed-forward, out"),
    (4096, 1152, 4608, false, "SAM 2: feed-forward, out"),
    (1024, 1152, 4608, false, "SAM 2, fourth stage: feed-forward, out"),
    (4096, 256, 256, false, "SAM 2: decoder, image"),
    (8, 256, 2048, false, "SAM 2: decoder, tokens"),
    (1370, 1152, 384, false, "Depth Anything: queries, keys, values"),
    (1370, 384, 1536, false, "Depth Anything: feed-forward, out"),
    (21904, 64, 576, true, "Depth Anything: head, 3×3"),
    (256, 256, 4096, false, "few and deep"),
    (138240, 64, 576, true, "RIFE: 3×3 of 64 channels"),
    (552960, 16, 144, true, "RIFE: 3×3 of 16 channels"),
    (3136, 64, 576, true, "ResNet: 3×3 of 64 channels"),
    (49, 512, 4608, true, "ResNet: 3×3 of 512 channels"),
];

fn problem(m: f64, n: f64, k: f64, half: bool, gathers: bool) -> Problem {
    let half = half.then_some(DType::F16);
    let (gathers, line) = (gathers && half.is_some(), if gathers { 3.0 } else { k });
    Problem { batch: 1.0, m, n, k, line, acc: Ty::F32, half, gathers, fills: false, packed: false }
}

fn text(staging: Staging, wg: u32) -> String {
    match staging {
        Staging::Registers { rows, cols } => format!("registers {rows}x{cols}, {wg} invocations"),
        Staging::Shared { bm, bn, bk, rows, cols, buffers } => {
            format!("shared {bm}x{bn}x{bk} by {rows}x{cols}, {buffers} buffers, {wg}")
        }
        Staging::Coop(c) => {
            let parts = if c.parts() > 1 { format!(", {} parts", c.parts()) } else { String::new() };
            format!("cooperative {}x{}x{} by {}x{} subgroups{parts}", c.bm, c.bn, c.bk, c.warps.0, c.warps.1)
        }
        Staging::Gemv { threads_per_dot, cols } => format!("dots by {threads_per_dot}, {cols} columns, {wg}"),
    }
}

fn table() -> String {
    let mut out = String::from("tiles of matrix products and convolutions: rows x columns x summed length\n");
    for name in DEVICES {
        let device = find(name).expect("a bundled profile");
        for (kind, half) in [("f32", false), ("f16", true)] {
            writeln!(out, "\n{name}, {kind}").expect("a string");
            for (m, n, k, gathers, what) in SHAPES {
                let (staging, wg, _) =
                    matmul(&device, &problem(f64::from(m), f64::from(n), f64::from(k), half, gathers));
                let size = format!("{m}x{n}x{k}");
                writeln!(out, "  {size:17} {:48} ; {what}", text(staging, wg)).expect("a string");
            }
        }
    }
    for (kind, half) in [("f32", false), ("f16", true)] {
        let found = cliffs(&find("h200").expect("a bundled profile"), half);
        writeln!(out, "\nh200, {kind}: {} cliffs", found.len()).expect("a string");
        found.iter().for_each(|line| writeln!(out, "  {line}").expect("a string"));
    }
    out
}

#[test]
fn tiles_and_cliffs_are_those_on_file() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/tiles.txt");
    let (got, want) = (table(), std::fs::read_to_string(&path).unwrap_or_default());
    if got == want {
        return;
    }
    if std::env::var("JVC_BLESS").is_ok_and(|v| v == "1") {
        std::fs::write(&path, got).expect("the test's own folder is writable");
        return;
    }
    let lines = got.lines().zip(want.lines()).filter(|(g, w)| g != w).map(|(g, w)| format!("-{w}\n+{g}\n"));
    panic!(
        "{} differs (JVC_BLESS=1 cargo test -p jvc --test tiles rewrites it):\n{}",
        path.display(),
        lines.collect::<String>()
    );
}

/// How far a neighbour is, and how much longer an element of it may take.
const STEP: f64 = 96.0;
const CLIFF: f64 = 1.3;

/// Neighbours that take longer, as text.
fn cliffs(device: &DeviceProfile, half: bool) -> Vec<String> {
    let mut out = vec![];
    for (m, n, k, gathers, what) in SHAPES {
        let size = [m, n, k].map(f64::from);
        let an_element =
            |s: [f64; 3]| predicted(device, &problem(s[0], s[1], s[2], half, gathers)) / (s[0] * s[1] * s[2]);
        let here = an_element(size);
        for (axis, by) in [(0, -STEP), (0, STEP), (1, -STEP), (1, STEP), (2, -STEP), (2, STEP)] {
            let mut near = size;
            near[axis] += by;
            // Of small sizes a step of 96 is no neighbour: an element of half a tile costs twice.
            if size[axis] < 4.0 * STEP {
                continue;
            }
            let ratio = an_element(near) / here;
            if ratio > CLIFF {
                out.push(format!(
                    "{}x{}x{} beside {m}x{n}x{k} ({what}): {ratio:.2} × an element",
                    near[0], near[1], near[2]
                ));
            }
        }
    }
    out
}
