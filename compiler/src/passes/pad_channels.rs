//! Images whose channels are no whole blocks of 16 bytes get further ones of zeros, and the weights of the convolution that reads them with
//! them, so that it finds both sides by blocks.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f16[1,6,5]
//!   %w = weight "w" : f16[16,6,2]
//!   %r = map(max(a, 0.0)) %x : f16[1,6,5]
//!   %y = conv %r, %w stride=[1] padding=[0] dilation=[1] groups=1 : f16[1,16,4]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f16[1,6,5]
//!   %r = map(max(a, 0.0)) %x : f16[1,6,5]
//!   %y.1 = pad %r before=[0,0,0] after=[0,2,0] value=0.0 : f16[1,8,5]
//!   %y.2 = const #0 : f16[16,8,2]
//!   %y = conv %y.1, %y.2 stride=[1] padding=[0] dilation=[1] groups=1 : f16[1,16,4]
//!   output "y" = %y
//! }
//! blob #0 = 5738ebb5a933073b70aa913960ad3b39b3b51e3238ba37340000000000000000fcb85635afb7293181a08b394f3a9cbba4ba22ba7aba21370000000000000000cd325fbac92e2d3bcfb8303a7438b4b76d38fb37d3b0293a00000000000000001333f9b80235f737e3b310b5fdbb16373e2c4a3b6bb55ab7000000000000000017b1ef2f4db93fb64ead3834323b983a6db40eb998a055370000000000000000e437ef385d3b59b3ceb9bfbbde3694b84730c52bc823c0b000000000000000000a305fb066358db5f82d9c375bb83fbb9c26693672b2ec30000000000000000028ad4e38f2bbd32a34334c374a35ff383eb6feb56a346abb0000000000000000363b72bb8bba0137dd3426ba7a321937f5b9692cdcbb6e310000000000000000b421b8391bb31937cb38e3ae42b556b8d83853b0aabb5b2b00000000000000000dbbca31f8b7b4b871b9e11be4320b32fd3735b668312eb600000000000000003e34cc3bd5bb6ab8e6bb97bba439b9ba0139cab525b9293a000000000000000083bad0b42ebb55bae830ea36ecbacf3bc62fa33ba3379133000000000000000049344b3b91b1d63552309b3ad637513a3fb7eab9733a47b80000000000000000d4b9c73b6b38ac3317380639e33785b5d6331ab8b1b887b40000000000000000ab3ba5bb67b6053b1cb20fb9efb54eb9b8ac97386a3ae3380000000000000000
//! ```
//!
//! The image is stored for this alone (`schedule/layout.rs`), channels last: a concatenation with zeros behind its last part, anything else
//! that is computed element by element at once with them. So the convolution meets zeros in the channels that are none, whatever else is
//! in memory. What another kernel with inner loops stores stays as it is: there the zeros would cost a copy. Most of the padded channels
//! must be real ones: a convolution of three channels reads less one by one than by blocks of eight.

use super::constants::{Evaluator, const_op, decodes_bytes};
use super::rewrite::{Patch, Ref, View, rewrite};
use super::{Cx, Pass};
use crate::ir::eval::{Precision, Symbols, eval_op};
use crate::ir::infer::infer;
use crate::ir::{DType, Graph, NodeId, Op, ValueId};
use crate::schedule::fuse::{is_leaf, is_pointwise};
use crate::schedule::layout::{BLOCK, MIN_OUTPUTS};

pub(super) const PASS: Pass = Pass {
    name: "pad_channels",
    summary: "adds channels of zeros where convolutions on matrix units read others than whole blocks",
    run,
};

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let fills = |d: &crate::device::DeviceProfile| d.cooperative.iter().any(|c| c.left.is_some() && c.right.is_some());
    if cx.no_fold || cx.device.is_none_or(|d| d.rates.cpu || !fills(d)) {
        return 0;
    }
    rewrite(graph, cx, &[pad])
}

fn pad<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    // Places of the outputs and of the channels in the shape of the weights.
    let (of, channels) = match n.op {
        Op::Conv { groups: 1, .. } => (0, 1),
        Op::ConvTranspose { groups: 1, .. } => (1, 0),
        _ => return None,
    };
    let (x, w) = (n.inputs[0], n.inputs[1]);
    let (ty, kernel) = (view.ty(x), view.ty(w).const_shape()?);
    let have = ty.shape[1].as_const()?;
    let more = (BLOCK - have % BLOCK) % BLOCK;
    let one_tap = kernel[2..].iter().all(|&t| t == 1);
    let half = matches!(ty.dtype, DType::F16 | DType::BF16);
    let worth = more > 0 && have > more && kernel[of] >= MIN_OUTPUTS && !one_tap;
    if !half || !worth || !view.is_constant(w) || decodes_bytes(view.graph, w) {
        return None;
    }
    let mut p = Patch::new(view);
    let image = match view.op(x) {
        Op::Concat { dim: 1 } if view.only_use(x) => {
            let (&last, others) = view.inputs(x).split_last()?;
            if !is_pointwise(view.op(last)) && !is_leaf(view.op(last)) {
                return None;
            }
            let last = more_channels(&mut p, last, more)?;
            let arms: Vec<Ref> = others.iter().map(|&v| Ref::Old(v)).chain([last]).collect();
            p.add(Op::Concat { dim: 1 }, &arms)?
        }
        Op::Map(_) | Op::Compute(_) | Op::Concat { .. } | Op::Input { .. } => more_channels(&mut p, x, more)?,
        _ => return None,
    };
    let tensor = Evaluator::default().value(view.graph, view.cx, w)?;
    let op = zeros_behind(kernel.len(), channels, more);
    let wide = infer(&op, &[view.ty(w)]).ok()?.pop()?;
    let padded = eval_op(&op, &[tensor.as_ref()], std::slice::from_ref(&wide), &Symbols::new(), Precision::Working);
    let weights = p.push(const_op(&padded.ok()?.pop()?), &[], wide);
    let result = p.add(n.op.clone(), &[image, weights])?;
    p.replace_by(result)
}

fn zeros_behind(rank: usize, dim: usize, more: i64) -> Op {
    let mut after = vec![0; rank];
    after[dim] = more;
    Op::Pad { before: vec![0; rank], after, value: 0.0 }
}

fn more_channels(p: &mut Patch<'_>, v: ValueId, more: i64) -> Option<Ref> {
    let rank = p.ty(Ref::Old(v)).shape.len();
    p.add(zeros_behind(rank, 1, more), &[Ref::Old(v)])
}

/// True for an image with channels of zeros behind its own that make them whole blocks.
pub(crate) fn is_padded(graph: &Graph, v: ValueId) -> bool {
    let Op::Pad { before, after, value } = &graph.def(v).op else { return false };
    let ty = graph.ty(v);
    let only_channels = before.iter().all(|&n| n == 0) && after.iter().enumerate().all(|(d, &n)| (d == 1) == (n > 0));
    let blocks = ty.shape.get(1).and_then(|d| d.as_const()).is_some_and(|c| c % BLOCK == 0);
    *value == 0.0 && only_channels && blocks && ty.shape.len() >= 3 && matches!(ty.dtype, DType::F16 | DType::BF16)
}
