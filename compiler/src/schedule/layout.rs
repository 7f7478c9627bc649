//! Values whose elements lie with the channels last: halves between convolutions, and the weights of these, so that a convolution finds
//! both sides of its product by whole blocks of channels. Only the order within the value's own memory changes; everything reads and stores
//! it by coordinates.

use super::fuse::{Fusion, is_leaf, is_pointwise, is_widening};
use super::tile::{self, Problem};
use crate::device::DeviceProfile;
use crate::ir::{DType, Dim, Graph, NodeId, Op, ValueId};
use crate::passes::is_padded;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Exprs};
use jvc_kernels::spec::Spread;
use jvc_kernels::templates::matmul::packed_place;

/// How the elements of a value lie in its own memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Row-major.
    Rows,
    /// Row-major with dimension 1 last.
    ChannelsLast,
    /// Row-major with dimension 0 last: weights of transposed convolutions with their input channels last.
    FirstLast,
    /// Weights `[n, k]` as the right operand of products on matrix units, see [`Fragments`].
    Fragments(Fragments),
}

/// Fragment by fragment, in each the elements of an invocation side by side: an invocation fills its part of a fragment by one load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragments {
    /// How the device spreads right fragments.
    pub spread: Spread,
    /// Columns of a fragment.
    pub columns: u32,
    /// Elements of a fragment along k.
    pub deep: u32,
}

impl Fragments {
    /// The place of element (n, k) of a tensor of this (literal) shape.
    pub fn place(&self, e: &mut Exprs, at: (ExprId, ExprId), shape: &[Dim]) -> ExprId {
        let depth = shape[1].as_const().and_then(|k| u32::try_from(k).ok()).expect("packed weights have literal sizes");
        packed_place(e, &self.spread, (self.columns, self.deep), at, depth)
    }

    /// The bytes of a row-major matrix of `depth` halves a row in this order.
    pub fn packed(&self, rows: &[u8], depth: usize) -> Vec<u8> {
        let (columns, deep) = (self.columns as usize, self.deep as usize);
        let components = self.spread.components.iter().filter(|m| **m != (0, 0)).count();
        let places: Vec<(usize, usize)> = (0..self.columns * self.deep)
            .map(|i| self.spread.at(i >> components, i & ((1 << components) - 1)))
            .map(|(k, n)| (n as usize, k as usize))
            .collect();
        let mut out = Vec::with_capacity(rows.len());
        for line in rows.chunks_exact((columns * depth * 2).max(1)) {
            for first in (0..depth).step_by(deep) {
                for (n, k) in &places {
                    let at = (n * depth + first + k) * 2;
                    out.extend_from_slice(&line[at..at + 2]);
                }
            }
        }
        out
    }
}

/// Elements of a block of 16 bytes.
pub(crate) const BLOCK: i64 = 8;
/// Output channels below which a convolution does not fill matrix fragments.
pub(crate) const MIN_OUTPUTS: i64 = 16;

/// Marks the values of a graph that lie so on a device.
pub fn choose(graph: &Graph, fusion: &mut Fusion, device: &DeviceProfile) {
    let known = |c: &crate::device::CoopShape| c.left.is_some() && c.right.is_some();
    if device.rates.cpu || !device.cooperative.iter().any(known) {
        return;
    }
    let mut users: Vec<Vec<NodeId>> = vec![vec![]; graph.values.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        node.inputs.iter().for_each(|v| users[v.0 as usize].push(NodeId(i as u32)));
    }
    // Backwards: what is read for an image gains by being one.
    for (i, readers) in users.iter().enumerate().rev() {
        let v = ValueId(i as u32);
        let image = fusion.has_buffer(v) && is_image(graph, v) && gains(graph, fusion, v, readers);
        if image || is_part_of_image(graph, fusion, v) {
            fusion.set_order(v, Order::ChannelsLast);
        } else if let Some(order) = kernel_order(graph, v, readers) {
            fusion.set_order(v, order);
        } else if let Some(fragments) = in_fragments(graph, v, &users, device) {
            fusion.set_order(v, Order::Fragments(fragments));
        }
    }
}

/// Halves with whole blocks along a dimension.
pub(super) fn has_blocks(graph: &Graph, v: ValueId, dim: usize) -> bool {
    let ty = graph.ty(v);
    let whole = |c: i64| c > 0 && c % BLOCK == 0;
    let half = matches!(ty.dtype, DType::F16 | DType::BF16);
    half && ty.shape.len() >= 3 && ty.shape[dim].as_const().is_some_and(whole)
}

/// Stored by a kernel that finds places by coordinates.
fn is_image(graph: &Graph, v: ValueId) -> bool {
    let by_coordinates = |v: ValueId| {
        let op = &graph.def(v).op;
        is_pointwise(op) || is_leaf(op) || matches!(op, Op::Conv { .. } | Op::ConvTranspose { .. })
    };
    has_blocks(graph, v, 1)
        && match graph.def(v).op {
            Op::Map(_) | Op::Compute(_) | Op::Conv { .. } | Op::ConvTranspose { .. } => true,
            Op::Pad { .. } => is_padded(graph, v),
            Op::Concat { .. } => graph.def(v).inputs.iter().all(|&arm| by_coordinates(arm)),
            _ => false,
        }
}

/// Whole blocks of the channels of such a value, which a map kernel stores right there: it goes through them in the same order.
fn is_part_of_image(graph: &Graph, fusion: &Fusion, v: ValueId) -> bool {
    let Some((whole, 1, start)) = fusion.part_of(v) else { return false };
    let computed = matches!(graph.def(v).op, Op::Map(_) | Op::Compute(_));
    computed && fusion.order(whole) == Order::ChannelsLast && is_block_run(graph, v, &start)
}

/// Whole blocks of channels that begin at a block.
pub(super) fn is_block_run(graph: &Graph, v: ValueId, start: &Dim) -> bool {
    has_blocks(graph, v, 1) && start.as_const().is_some_and(|at| at % BLOCK == 0)
}

/// The order with its input channels last of a constant that convolutions of one kind have as their weights, and nothing else reads.
fn kernel_order(graph: &Graph, v: ValueId, users: &[NodeId]) -> Option<Order> {
    let constant = match &graph.def(v).op {
        Op::Weight(_) => true,
        Op::Const(lit) => lit.ty.const_shape().is_some(),
        _ => false,
    };
    let order = |n: &NodeId| {
        let node = graph.node(*n);
        let (order, channels) = match node.op {
            Op::Conv { groups: 1, .. } => (Order::ChannelsLast, 1),
            Op::ConvTranspose { groups: 1, .. } => (Order::FirstLast, 0),
            _ => return None,
        };
        (node.inputs[1] == v && node.inputs[0] != v && has_blocks(graph, v, channels)).then_some(order)
    };
    let first = order(users.first().filter(|_| constant)?)?;
    users.iter().all(|n| order(n) == Some(first)).then_some(first)
}

/// The fragments of weights `[n, k]` that only products have, each as their right operand and quicker for it.
fn in_fragments(graph: &Graph, v: ValueId, users: &[Vec<NodeId>], device: &DeviceProfile) -> Option<Fragments> {
    let ty = graph.ty(v);
    let shape = ty.const_shape().filter(|s| s.len() == 2)?;
    if !matches!(graph.def(v).op, Op::Weight(_) | Op::Const(_)) {
        return None;
    }
    let (fragments, _) = tile::packs(device, ty.dtype)?;
    let whole = tile::packs_whole(device, ty.dtype, &shape);
    let gains = |n: NodeId| {
        let out = graph.ty(graph.node(n).outputs[0]).const_shape();
        out.is_some_and(|out| gains_by_packing(device, ty.dtype, &out, shape[1]))
    };
    let readers = products_of(graph, v, users).filter(|_| whole)?;
    (!readers.is_empty() && readers.into_iter().all(gains)).then_some(fragments)
}

/// The products whose right operand is `v` turned, perhaps widened, if nothing else reads it.
fn products_of(graph: &Graph, v: ValueId, users: &[Vec<NodeId>]) -> Option<Vec<NodeId>> {
    let (mut found, mut open) = (vec![], vec![v]);
    while let Some(at) = open.pop() {
        for &n in &users[at.0 as usize] {
            let node = graph.node(n);
            match node.op {
                Op::Permute(_) | Op::Map(_) => open.push(node.outputs[0]),
                Op::Matmul if turned(graph, node.inputs[1]) == Some(v) && node.inputs[0] != at => found.push(n),
                _ => return None,
            }
        }
    }
    Some(found)
}

/// The matrix that an operand is the transpose of, perhaps in a wider type.
pub fn turned(graph: &Graph, operand: ValueId) -> Option<ValueId> {
    let (mut at, mut is_turned) = (operand, false);
    loop {
        let node = graph.def(at);
        match &node.op {
            Op::Permute(p) if *p == [1, 0] && !is_turned => is_turned = true,
            _ if is_widening(graph, node) => {}
            _ => return is_turned.then_some(at),
        }
        at = node.inputs[0];
    }
}

/// Whether a product of this shape and depth is quicker with packed weights.
fn gains_by_packing(device: &DeviceProfile, half: DType, out: &[i64], depth: i64) -> bool {
    let (batch, rest) = out.split_at(out.len() - 2);
    let batch = batch.iter().fold(1.0, |n, &d| n * d as f64);
    let [m, n, k] = [rest[0], rest[1], depth].map(|d| d as f64);
    let (acc, half) = (Ty::F32, Some(half));
    let problem = Problem { batch, m, n, k, line: k, acc, half, gathers: false, fills: false, packed: true };
    m > 8.0 && tile::gains_by_packing(device, &problem)
}

/// `of` with its second entry last: the order of dimensions of a value with its channels last.
pub fn channels_last<T: Clone>(of: &[T]) -> Vec<T> {
    [&of[..1], &of[2..], &of[1..2]].concat()
}

/// `of` with its first entry last.
pub fn first_last<T: Clone>(of: &[T]) -> Vec<T> {
    [&of[1..], &of[..1]].concat()
}

/// Some convolution reads it, or what becomes an image, and nothing does that walks along its rows.
fn gains(graph: &Graph, fusion: &Fusion, v: ValueId, users: &[NodeId]) -> bool {
    let product = |n: &NodeId| {
        let node = graph.node(*n);
        let of = match node.op {
            Op::Conv { groups: 1, .. } => 0,
            Op::ConvTranspose { groups: 1, .. } => 1,
            _ => return false,
        };
        let outputs = graph.ty(node.inputs[1]).shape[of].as_const();
        node.inputs[0] == v && outputs.is_some_and(|n| n >= MIN_OUTPUTS)
    };
    let pointwise = |n: &NodeId| matches!(graph.node(*n).op, Op::Map(_) | Op::Compute(_));
    let image = |n: &NodeId| pointwise(n) && fusion.order(graph.node(*n).outputs[0]) == Order::ChannelsLast;
    users.iter().any(|n| product(n) || image(n)) && users.iter().all(|n| product(n) || pointwise(n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jvc_kernels::eval::{Env, Tape, Value};

    struct At(i32, i32);

    impl Env for At {
        fn axis(&self, k: u8) -> i32 {
            if k == 2 { self.0 } else { self.1 }
        }
        fn arg(&self, _: u16) -> Value {
            Value::I32(0)
        }
        fn sym(&self, _: u16) -> i32 {
            0
        }
        fn load(&self, _: u16, _: &[i32]) -> Value {
            Value::I32(0)
        }
    }

    #[test]
    fn packed_bytes_are_where_the_kernel_looks_for_them() {
        for device in crate::device::all().iter().filter(|d| !d.rates.cpu) {
            let Some((f, multiple)) = tile::packs(device, DType::F16) else { continue };
            let (rows, depth) = (3 * f.columns, 2 * multiple);
            let numbers: Vec<u8> = (0..(rows * depth) as u16).flat_map(u16::to_le_bytes).collect();
            let packed = f.packed(&numbers, depth as usize);
            let mut e = Exprs::new();
            let (n, k) = (e.axis(2), e.axis(3));
            let place = f.place(&mut e, (n, k), &[Dim::from(i64::from(rows)), Dim::from(i64::from(depth))]);
            let tape = Tape::new(&e, &[place]);
            let mut runner = tape.runner();
            for n in 0..rows {
                for k in 0..depth {
                    runner.run(&At(n as i32, k as i32));
                    let at = runner.get(0).index() as usize * 2;
                    let number = u16::from_le_bytes([packed[at], packed[at + 1]]);
                    assert_eq!(u32::from(number), n * depth + k, "{}: ({n}, {k})", device.name);
                }
            }
        }
    }
}
