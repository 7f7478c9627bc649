//! Convolutions as implicit matrix products: rows are output positions, columns output channels, the summed axes are input channel and
//! taps; the left operand's access map gathers the window. Few channels a group (depthwise) become row kernels.
//!
//! A transposed convolution with a stride reaches an output by every stride-th tap only: outputs of one remainder by the stride (a *phase*) are
//! a product of their own with that part of the taps, and all phases are one batch.

use super::super::inline::Ctx;
use super::super::layout::Order;
use super::Lowered;
use super::finish;
use super::matmul::{Product, acc_ty};
use super::row::Row;
use crate::ir::graph::Node;
use crate::ir::{Dim, NodeId, Window};
use crate::passes::is_packed;
use jvc_kernels::expr::{Binary, ExprId};
use jvc_kernels::spec::Combine;

/// Below this many output channels a group, a matrix tile would be mostly empty.
const MIN_CHANNELS_FOR_PRODUCT: i64 = 4;

/// Sizes of one convolution, seen from its output.
struct Geometry {
    out_spatial: Vec<Dim>,
    taps: Vec<Dim>,
    in_per_group: Dim,
    out_per_group: Dim,
    groups: Dim,
    images: Dim,
    /// Phases of each spatial dimension, all 1 for a plain convolution.
    phases: Vec<i64>,
    /// The weights lie with their input channels last.
    channels_last: bool,
}

impl Geometry {
    fn of(cx: &Ctx<'_>, node: &Node, groups: i64, transposed: bool) -> Geometry {
        let (x, w, out) = (cx.ty(node.inputs[0]), cx.ty(node.inputs[1]), cx.ty(node.outputs[0]));
        let groups_dim = Dim::from(groups);
        Geometry {
            out_spatial: out.shape[2..].to_vec(),
            taps: w.shape[2..].to_vec(),
            in_per_group: x.shape[1].floor_div(&groups_dim),
            out_per_group: if transposed { w.shape[1].clone() } else { w.shape[0].floor_div(&groups_dim) },
            groups: groups_dim,
            images: x.shape[0].clone(),
            phases: vec![1; out.shape.len() - 2],
            channels_last: matches!(cx.fusion.order(node.inputs[1]), Order::ChannelsLast | Order::FirstLast),
        }
    }

    /// Goes by phases where each is of the same size and has the same number of taps.
    fn by_phases(mut self, window: &Window) -> Geometry {
        let divides = |d: &Dim, s: i64| d.as_const().is_some_and(|n| n % s == 0);
        let sizes = self.out_spatial.iter().zip(&self.taps).zip(window.stride.iter().zip(&window.dilation));
        let fits = sizes
            .into_iter()
            .all(|((n, t), (&s, &dilation))| s == 1 || (dilation == 1 && divides(n, s) && divides(t, s)));
        if fits {
            self.phases.clone_from(&window.stride);
            for (d, &s) in self.out_spatial.iter_mut().chain(&mut self.taps).zip(window.stride.iter().cycle()) {
                *d = d.floor_div(&Dim::from(s));
            }
        }
        self
    }

    fn has_phases(&self) -> bool {
        self.phases.iter().any(|&s| s > 1)
    }

    /// Group first, then the phase of each spatial dimension.
    fn batch(&self) -> Vec<Dim> {
        std::iter::once(self.groups.clone()).chain(self.phases.iter().map(|&s| Dim::from(s))).collect()
    }

    /// Image first, then output position.
    fn positions(&self) -> Vec<Dim> {
        std::iter::once(self.images.clone()).chain(self.out_spatial.iter().cloned()).collect()
    }

    /// Input channel and taps, as they are summed: the channel last where the weights lie so.
    fn summed(&self) -> Vec<Dim> {
        let channel = std::iter::once(self.in_per_group.clone());
        let taps = self.taps.iter().cloned();
        if self.channels_last { taps.chain(channel).collect() } else { channel.chain(taps).collect() }
    }

    /// Input channel and taps among the summed axes.
    fn split(&self, k: &[ExprId]) -> (ExprId, Vec<ExprId>) {
        let at = if self.channels_last { k.len() - 1 } else { 0 };
        let mut taps = k.to_vec();
        (taps.remove(at), taps)
    }

    fn is_thin(&self) -> bool {
        self.out_per_group.as_const().is_some_and(|c| c < MIN_CHANNELS_FOR_PRODUCT)
    }
}

/// Coordinates within one convolution.
struct At {
    group: ExprId,
    image: ExprId,
    /// Output position, without its phase.
    spatial: Vec<ExprId>,
    phase: Vec<ExprId>,
    out_channel: ExprId,
    in_channel: ExprId,
    taps: Vec<ExprId>,
}

type Element = fn(&mut Ctx<'_>, &Node, &Window, &Geometry, &At) -> (ExprId, ExprId);

pub(super) fn lower(cx: &mut Ctx<'_>, node: &Node, window: &Window, groups: i64, epilogue: &[NodeId]) -> Lowered {
    let g = Geometry::of(cx, node, groups, false);
    build(cx, node, window, &g, epilogue, forward_elements)
}

pub(super) fn lower_transpose(
    cx: &mut Ctx<'_>,
    node: &Node,
    window: &Window,
    groups: i64,
    epilogue: &[NodeId],
) -> Lowered {
    let g = Geometry::of(cx, node, groups, true).by_phases(window);
    build(cx, node, window, &g, epilogue, transposed_elements)
}

fn build(
    cx: &mut Ctx<'_>,
    node: &Node,
    window: &Window,
    g: &Geometry,
    epilogue: &[NodeId],
    elements: Element,
) -> Lowered {
    if g.is_thin() {
        build_row(cx, node, window, g, epilogue, elements)
    } else {
        build_product(cx, node, window, g, epilogue, elements)
    }
}

fn build_product(
    cx: &mut Ctx<'_>,
    node: &Node,
    window: &Window,
    g: &Geometry,
    epilogue: &[NodeId],
    elements: Element,
) -> Lowered {
    let m = g.positions().iter().fold(Dim::from(1), |p, d| &p * d);
    let batch = g.batch().iter().fold(Dim::from(1), |p, d| &p * d);
    let (part, row, out_channel) = (cx.ix.axis(0, &batch), cx.ix.axis(1, &m), cx.ix.axis(2, &g.out_per_group));
    let part = cx.ix.delinear(part, &g.batch());
    let position = cx.ix.delinear(row, &g.positions());
    // Weights that were packed have their channels last: so has the sum.
    let mut summed = g.summed();
    let packed = is_packed(cx.graph, node.inputs[1]);
    if packed {
        summed.rotate_left(1);
    }
    let mut k = cx.axes(3, &summed);
    if packed {
        k.rotate_right(1);
    }
    let (in_channel, taps) = g.split(&k);
    let (group, phase) = (part[0], part[1..].to_vec());
    let at = At { group, image: position[0], spatial: position[1..].to_vec(), phase, out_channel, in_channel, taps };
    let (x, w) = elements(cx, node, window, g, &at);
    let acc = acc_ty(cx, node.inputs[0]);
    let (lhs, rhs) = (cx.cast(acc, x), cx.cast(acc, w));
    let sum = cx.ix.exprs.arg(0, acc);
    let out_at = output_at(cx, g, &at);
    let stores = finish(cx, node.outputs[0], out_at, sum, epilogue);
    let dtype = cx.ty(node.inputs[0]).dtype;
    Product { batch: &batch, m: &m, n: &g.out_per_group, k: &summed, lhs, rhs, acc, dtype, stores, packed: false }
        .finish(cx)
}

fn build_row(
    cx: &mut Ctx<'_>,
    node: &Node,
    window: &Window,
    g: &Geometry,
    epilogue: &[NodeId],
    elements: Element,
) -> Lowered {
    let outer = cx.ty(node.outputs[0]).shape.clone();
    let summed = g.summed();
    let mut row = Row::new(cx, &outer, &summed);
    let position = cx.axes(0, &outer);
    let k = cx.axes(outer.len(), &summed);
    let (in_channel, taps) = g.split(&k);
    let per_group = cx.ix.dim(&g.out_per_group);
    let (mut spatial, mut phase) = (vec![], vec![]);
    for (&y, &s) in position[2..].iter().zip(&g.phases) {
        let s = cx.ix.int(s);
        spatial.push(cx.ix.div(y, s));
        phase.push(cx.ix.rem(y, s));
    }
    let at = At {
        group: cx.ix.div(position[1], per_group),
        image: position[0],
        spatial,
        phase,
        out_channel: cx.ix.rem(position[1], per_group),
        in_channel,
        taps,
    };
    let (x, w) = elements(cx, node, window, g, &at);
    let acc = acc_ty(cx, node.inputs[0]);
    let (x, w) = (cx.cast(acc, x), cx.cast(acc, w));
    let product = cx.bin(Binary::Mul, x, w);
    let sum = row.stage(cx, Combine::Sum, product);
    let stores = finish(cx, node.outputs[0], position, sum, epilogue);
    row.finish(cx, stores, vec![])
}

fn output_at(cx: &mut Ctx<'_>, g: &Geometry, at: &At) -> Vec<ExprId> {
    let channel = in_group(cx, at.group, &g.out_per_group, at.out_channel);
    let mut out = vec![at.image, channel];
    for ((&q, &r), &s) in at.spatial.iter().zip(&at.phase).zip(&g.phases) {
        let s = cx.ix.int(s);
        let start = cx.ix.mul(q, s);
        out.push(cx.ix.add(start, r));
    }
    out
}

fn in_group(cx: &mut Ctx<'_>, group: ExprId, per_group: &Dim, channel: ExprId) -> ExprId {
    let size = cx.ix.dim(per_group);
    let start = cx.ix.mul(group, size);
    cx.ix.add(start, channel)
}

/// `x[image, c, o·stride − padding + tap·dilation]`, 0 outside; `w[o, c, tap]`.
fn forward_elements(cx: &mut Ctx<'_>, node: &Node, window: &Window, g: &Geometry, at: &At) -> (ExprId, ExprId) {
    let mut x_at = vec![at.image, in_group(cx, at.group, &g.in_per_group, at.in_channel)];
    for (i, (&o, &tap)) in at.spatial.iter().zip(&at.taps).enumerate() {
        x_at.push(window_coord(cx, o, tap, window, i));
    }
    let zero = cx.lit(cx.ty(node.inputs[0]).dtype.ty(), 0.0);
    let x = cx.at_or(node.inputs[0], &x_at, zero);
    let mut w_at = vec![in_group(cx, at.group, &g.out_per_group, at.out_channel), at.in_channel];
    w_at.extend(&at.taps);
    let w = cx.at(node.inputs[1], &w_at);
    (x, w)
}

/// Input coordinate of a tap: `o·stride − padding + tap·dilation` on spatial dimension `i`.
pub(super) fn window_coord(cx: &mut Ctx<'_>, o: ExprId, tap: ExprId, window: &Window, i: usize) -> ExprId {
    let [stride, padding, dilation] = [window.stride[i], window.padding[i], window.dilation[i]].map(|v| cx.ix.int(v));
    let start = cx.ix.mul(o, stride);
    let start = cx.ix.sub(start, padding);
    let reach = cx.ix.mul(tap, dilation);
    cx.ix.add(start, reach)
}

/// Tap `t` of output `y` reads input `(y + padding − t·dilation) / stride` where that is a whole number inside; `w[c, o, tap]`.
fn transposed_elements(cx: &mut Ctx<'_>, node: &Node, window: &Window, g: &Geometry, at: &At) -> (ExprId, ExprId) {
    let x = node.inputs[0];
    let mut x_at = vec![at.image, in_group(cx, at.group, &g.in_per_group, at.in_channel)];
    let mut hits = cx.ix.exprs.bool(true);
    let mut taps = at.taps.clone();
    for (i, (&y, tap)) in at.spatial.iter().zip(&mut taps).enumerate() {
        let (coord, hit) = if g.has_phases() {
            let (coord, all) = phase_coord(cx, (y, at.phase[i]), *tap, window, i);
            *tap = all;
            (coord, cx.ix.exprs.bool(true))
        } else {
            source_coord(cx, y, *tap, window, i)
        };
        hits = cx.ix.and(hits, hit);
        x_at.push(coord);
    }
    let zero = cx.lit(cx.ty(x).dtype.ty(), 0.0);
    let value = cx.at_or(x, &x_at, zero);
    let value = cx.ix.select(hits, value, zero);
    let mut w_at = vec![in_group(cx, at.group, &g.in_per_group, at.in_channel), at.out_channel];
    w_at.extend(&taps);
    let w = cx.at(node.inputs[1], &w_at);
    (value, w)
}

/// Output `q·stride + r` is reached by taps `t = (r + padding) mod stride + stride·j`, from input `q + (r + padding) / stride − j`: that
/// input and `t`.
fn phase_coord(cx: &mut Ctx<'_>, (q, r): (ExprId, ExprId), j: ExprId, window: &Window, i: usize) -> (ExprId, ExprId) {
    let [stride, padding, dilation] = [window.stride[i], window.padding[i], window.dilation[i]].map(|v| cx.ix.int(v));
    let shifted = cx.ix.add(r, padding);
    let (ahead, first) = (cx.ix.div(shifted, stride), cx.ix.rem(shifted, stride));
    let from = cx.ix.add(q, ahead);
    // One of stride and dilation is 1.
    let (further, reach) = (cx.ix.mul(j, stride), cx.ix.mul(j, dilation));
    (cx.ix.sub(from, reach), cx.ix.add(first, further))
}

fn source_coord(cx: &mut Ctx<'_>, y: ExprId, tap: ExprId, window: &Window, i: usize) -> (ExprId, ExprId) {
    let (padding, dilation) = (cx.ix.int(window.padding[i]), cx.ix.int(window.dilation[i]));
    let reach = cx.ix.mul(tap, dilation);
    let shifted = cx.ix.add(y, padding);
    let t = cx.ix.sub(shifted, reach);
    if window.stride[i] == 1 {
        return (t, cx.ix.exprs.bool(true));
    }
    // Division needs a number that is not negative: the select clamps it, and says so to the algebra.
    let (stride, zero) = (cx.ix.int(window.stride[i]), cx.ix.int(0));
    let nonneg = cx.ix.is_nonneg(t);
    let safe = cx.ix.select(nonneg, t, zero);
    cx.ix.assume_below(safe, &Dim::from(i64::from(i32::MAX)));
    let (q, r) = (cx.ix.div(safe, stride), cx.ix.rem(safe, stride));
    let whole = cx.ix.exprs.bin(Binary::Eq, r, zero);
    (q, cx.ix.and(nonneg, whole))
}
