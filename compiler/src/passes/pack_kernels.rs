//! Weights of convolutions are stored in the order in which a GPU's tiles read them: taps first, then input and output channels.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[1,8,4]
//!   %w = weight "w" : f32[4,8,2]
//!   %y = conv %x, %w stride=[1] padding=[0] dilation=[1] groups=1 : f32[1,4,3]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[1,8,4]
//!   %y.1 = const #0 : f32[1,2,8,4]
//!   %y.2 = permute %y.1 perm=[0,3,2,1] : f32[1,4,8,2]
//!   %y.3 = reshape %y.2 : f32[4,8,2]
//!   %y = conv %x, %y.3 stride=[1] padding=[0] dilation=[1] groups=1 : f32[1,4,3]
//!   output "y" = %y
//! }
//! blob #0 = 3fe00a3fa81610bcbbaa0d3fdfeb22beeb1c753efeea493f426a1abe949829bf50f24dbd008254bfe663623e0bc2a9bd720aacbd4c314fbfba44a03e4238663fc764b6be6199593e2f6f7cbea5af8dbedffb46bf0f25d93d5aa87fbf13f712bc5f711fbff7dd19bf14c9873d5e86fc3e3de8f5be73780e3fb15aadbe03986b3f8e6ebdbedd68313f206eff3eccd9fd3d0bd2603f657273bff128453f9de6c7be8710323f1a3144bf6c2f1fbfc9f7863eeb6e273fca23e43ef5ddfe3ef80e533fa6be433e98d64bbf4700a2bec6c321bf40e7863e569b653fb4cbe23e11a7ea3e8cbcaa3ea000463fc94a693fdae71d3f2927253ecc8ff6beda47ebbe7c146bbe
//! ```
//!
//! A tile of the product behind a convolution then stays within one tap, so that the place of its window is found once, and its weights
//! follow one another in memory. The convolution sees them through a movement, which costs nothing. Without a device, on CPU drivers and for
//! weights that are stored as integers, nothing changes; nor does it for few channels, where tiles would not fill.

use super::constants::{Evaluator, decodes_bytes};
use super::rewrite::{Patch, Ref, View, rewrite};
use super::{Cx, Pass};
use crate::ir::op::Literal;
use crate::ir::{DType, Graph, NodeId, Op, TensorType, ValueId};
use std::sync::Arc;

pub(super) const PASS: Pass =
    Pass { name: "pack_kernels", summary: "stores weights of convolutions in the order in which tiles read them", run };

/// Fewest input channels of a group.
const MIN_CHANNELS: i64 = 8;
/// Fewest outputs of a group: below, convolutions are no products.
const MIN_OUTPUTS: i64 = 4;

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    if cx.no_fold || cx.device.is_none_or(|d| d.rates.cpu) {
        return 0;
    }
    rewrite(graph, cx, &[pack])
}

fn pack<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let (groups, transposed) = match n.op {
        Op::Conv { groups, .. } => (groups, false),
        Op::ConvTranspose { groups, .. } => (groups, true),
        _ => return None,
    };
    let (x, w) = (n.inputs[0], n.inputs[1]);
    let shape = view.ty(w).const_shape()?;
    let (first, second) = (shape[0] / groups, shape[1]);
    let (outputs, channels) = if transposed { (second, first) } else { (first, second) };
    let one_tap = shape[2..].iter().all(|&t| t == 1);
    let fits = channels >= MIN_CHANNELS && outputs >= MIN_OUTPUTS && !one_tap && view.ty(w).dtype == DType::F32;
    if !fits || !view.is_constant(w) || decodes_bytes(view.graph, w) || is_packed(view.graph, w) {
        return None;
    }
    let n_taps: i64 = shape[2..].iter().product();
    let sizes = Sizes { groups, channels, outputs, n_taps, transposed };
    let bytes = match view.op(w) {
        Op::Const(lit) => sizes.packed(&lit.bytes),
        _ => sizes.packed(&Evaluator::default().value(view.graph, view.cx, w)?.to_bytes()),
    };
    let packed: Vec<i64> = [&[groups], &shape[2..], &[channels, outputs]].concat();
    let rank = packed.len();
    let (c, o) = (rank - 2, rank - 1);
    let back = std::iter::once(0).chain(if transposed { [c, o] } else { [o, c] }).chain(1..c).collect();
    let mut p = Patch::new(view);
    let ty = TensorType::fixed(DType::F32, &packed);
    let stored = p.push(Op::Const(Literal { ty: ty.clone(), bytes: Arc::new(bytes) }), &[], ty);
    let moved = p.add(Op::Permute(back), &[stored])?;
    let moved = p.reshape(moved, view.ty(w).shape.clone())?;
    let result = p.add(n.op.clone(), &[Ref::Old(x), moved])?;
    p.replace_by(result)
}

/// What convolves: `[groups·outputs, channels, taps…]`, transposed `[groups·channels, outputs, taps…]`.
struct Sizes {
    groups: i64,
    channels: i64,
    outputs: i64,
    n_taps: i64,
    transposed: bool,
}

impl Sizes {
    /// Its 32-bit words as `[groups, taps…, channels, outputs]`. Bytes, since models have many millions of them.
    fn packed(&self, bytes: &[u8]) -> Vec<u8> {
        let of_channel = if self.transposed { self.outputs * self.n_taps } else { self.n_taps };
        let of_output = if self.transposed { self.n_taps } else { self.channels * self.n_taps };
        let of_group = self.channels * self.outputs * self.n_taps;
        let mut out = Vec::with_capacity(bytes.len());
        for group in 0..self.groups {
            for tap in 0..self.n_taps {
                for channel in 0..self.channels {
                    let mut at = (group * of_group + channel * of_channel + tap) as usize * 4;
                    for _ in 0..self.outputs {
                        out.extend_from_slice(&bytes[at..at + 4]);
                        at += of_output as usize * 4;
                    }
                }
            }
        }
        out
    }
}

/// True for weights that were packed: a movement of a constant.
pub(crate) fn is_packed(graph: &Graph, w: ValueId) -> bool {
    let mut node = graph.def(w);
    if let Op::Reshape(_) = node.op {
        node = graph.def(node.inputs[0]);
    }
    matches!(node.op, Op::Permute(_)) && matches!(graph.def(node.inputs[0]).op, Op::Const(_))
}
