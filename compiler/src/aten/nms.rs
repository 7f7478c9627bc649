//! `torchvision.nms`: boxes by falling score, without those that overlap a better one that stays.
//!
//! Whether a box stays depends on all better ones. It is found in rounds over all pairs at once: a box stays if no box that stayed in the
//! round before suppresses it. After k rounds every box is right that hangs on a chain of at most k others, so n rounds are enough; real
//! detections need a few. At most [`MAX_ROUNDS`] run, and a set of boxes that would need more is an error of the run, not a wrong result.

use super::cx::Built;
use super::selection::Selected;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val};
use crate::ir::{DType, Dim, Op, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::ExprId;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[AtenOp { names: &["torchvision.nms.default"], rule: nms }];

/// Rounds for programs with more boxes than this.
const MAX_ROUNDS: i64 = 32;

fn nms(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (boxes, scores) = (call.tensor(cx, "dets")?, call.tensor(cx, "scores")?);
    let n = cx.size(boxes, 0);
    let order = cx.add(Op::Sort { dim: 0, descending: true, keep: None }, vec![scores])?[1];
    let suppresses = overlaps(cx, boxes, order, &n, call.float("iou_threshold")?)?;
    let most = n.range(&cx.ranges).max;
    let (mut stays, mut before) = (cx.full(vec![n.clone()], DType::Bool, 1.0)?, None);
    for _ in 0..most.min(MAX_ROUNDS) {
        before = Some(stays);
        stays = round(cx, suppresses, stays)?;
    }
    let selected = Selected::unbound(cx, call, 0, stays)?;
    let count = match before {
        Some(before) if most > MAX_ROUNDS => {
            cx.b.graph.slow.push((call.node.name.clone(), format!("boxes are suppressed in {MAX_ROUNDS} rounds")));
            settled_count(cx, selected.count, stays, before)?
        }
        _ => selected.count,
    };
    cx.bind(&selected.found, count)?;
    let kept = cx.compute(vec![selected.found.size.clone()], DType::I64, &[order, selected.positions], |b, axes| {
        let at = b.load(1, axes);
        let at = b.clamp_index(at, &n);
        b.load(0, &[at])
    })?;
    Ok(vec![kept.into()])
}

/// `[j, i]`: box j comes before box i, both by score, and overlaps it too much.
fn overlaps(cx: &mut Cx, boxes: ValueId, order: ValueId, n: &Dim, threshold: f64) -> Built {
    let wide = if cx.tensor_dtype(boxes) == DType::F64 { Ty::F64 } else { Ty::F32 };
    let sorted = cx.compute(vec![n.clone(), Dim::from(4)], cx.tensor_dtype(boxes), &[boxes, order], |b, axes| {
        let at = b.load(1, &[axes[0]]);
        let at = b.cast(Ty::I32, at);
        let at = b.clamp_index(at, n);
        b.load(0, &[at, axes[1]])
    })?;
    cx.compute(vec![n.clone(), n.clone()], DType::Bool, &[sorted], |b, axes| {
        let first = b.lt(axes[0], axes[1]);
        let (p, q) = (corners(b, axes[0], wide), corners(b, axes[1], wide));
        let (left, top) = (b.max(p[0], q[0]), b.max(p[1], q[1]));
        let (right, bottom) = (b.min(p[2], q[2]), b.min(p[3], q[3]));
        let common = area(b, [left, top, right, bottom], true);
        let (a, c) = (area(b, p, false), area(b, q, false));
        let both = b.add(a, c);
        let union = b.sub(both, common);
        let ratio = b.div(common, union);
        let threshold = b.lit(wide, threshold);
        let above = b.lt(threshold, ratio);
        b.and(first, above)
    })
}

fn corners(b: &mut BodyBuilder, row: ExprId, wide: Ty) -> [ExprId; 4] {
    [0, 1, 2, 3].map(|k| {
        let k = b.int(k);
        let v = b.load(0, &[row, k]);
        b.cast(wide, v)
    })
}

fn area(b: &mut BodyBuilder, [x1, y1, x2, y2]: [ExprId; 4], clamp: bool) -> ExprId {
    let sides = [(x1, x2), (y1, y2)].map(|(from, to)| {
        let side = b.sub(to, from);
        let zero = b.like(side, 0.0);
        if clamp { b.max(side, zero) } else { side }
    });
    b.mul(sides[0], sides[1])
}

fn round(cx: &mut Cx, suppresses: ValueId, stays: ValueId) -> Built {
    let n = cx.size(stays, 0);
    let hit = cx.compute(vec![n.clone(), n], DType::Bool, &[suppresses, stays], |b, axes| {
        let (pair, better) = (b.load(0, axes), b.load(1, &[axes[0]]));
        b.and(pair, better)
    })?;
    let gone = cx.reduce(hit, Combine::Any, &[0], false, DType::Bool)?;
    cx.map1(gone, BodyBuilder::not)
}

/// The count, or −1 when the last round still changed something.
fn settled_count(cx: &mut Cx, count: ValueId, stays: ValueId, before: ValueId) -> Built {
    let changed = cx.map2(stays, before, DType::Bool, BodyBuilder::xor)?;
    let changed = cx.reduce(changed, Combine::Any, &[0], false, DType::Bool)?;
    cx.map2(count, changed, DType::I32, |b, count, changed| {
        let none = b.int(-1);
        b.select(changed, none, count)
    })
}
