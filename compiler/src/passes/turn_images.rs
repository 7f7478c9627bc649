//! Images that come with their places side by side are copied once with their channels last, where a convolution on matrix units reads them.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f16[1,16,8,8]
//!   %w = weight "w" : f16[32,16,3,3]
//!   %y = conv %x, %w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 : f16[1,32,8,8]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f16[1,16,8,8]
//!   %w = weight "w" : f16[32,16,3,3]
//!   %y.1 = map(a) %x : f16[1,16,8,8]
//!   %y = conv %y.1, %w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 : f16[1,32,8,8]
//!   output "y" = %y
//! }
//! ```
//!
//! The convolution reads every element once for each tap and each tile of its outputs, one by one where channels are apart: a copy costs less
//! than one of these readings. `schedule/layout.rs` gives the copy its order. Only inputs of a program need one: what a kernel
//! stores can be stored so at once. Windows of one place read whole lines of places as they are.

use super::rewrite::{Patch, Ref, View, map, rewrite};
use super::{Cx, Pass};
use crate::ir::{DType, Graph, NodeId, Op, ValueId};
use crate::schedule::layout::{BLOCK, MIN_OUTPUTS};

pub(super) const PASS: Pass = Pass {
    name: "turn_images",
    summary: "copies images with their channels last for convolutions on matrix units",
    run,
};

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let fills = |d: &crate::device::DeviceProfile| d.cooperative.iter().any(|c| c.left.is_some() && c.right.is_some());
    if cx.device.is_none_or(|d| d.rates.cpu || !fills(d)) {
        return 0;
    }
    rewrite(graph, cx, &[turn])
}

fn turn<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let of = match n.op {
        Op::Conv { groups: 1, .. } => 0,
        Op::ConvTranspose { groups: 1, .. } => 1,
        _ => return None,
    };
    let (x, w) = (n.inputs[0], n.inputs[1]);
    let (ty, kernel) = (view.ty(x), view.ty(w).const_shape()?);
    let taps: i64 = kernel[2..].iter().product();
    let blocks = ty.shape[1].as_const().is_some_and(|c| c > 0 && c % BLOCK == 0);
    let half = matches!(ty.dtype, DType::F16 | DType::BF16);
    if !half || !blocks || taps == 1 || kernel[of] < MIN_OUTPUTS || !matches!(view.op(x), Op::Input { .. }) {
        return None;
    }
    let mut p = Patch::new(view);
    let copy = map(&mut p, &[Ref::Old(x)], ty.dtype, |_, _, a| a[0]);
    let result = p.add(n.op.clone(), &[copy, Ref::Old(w)])?;
    p.replace_by(result)
}

/// True for such a copy.
pub(crate) fn is_turned(graph: &Graph, v: ValueId) -> bool {
    let node = graph.def(v);
    let Op::Map(body) = &node.op else { return false };
    let same = matches!(body.exprs.get(body.root), jvc_kernels::expr::Expr::Arg(0, _));
    let ty = graph.ty(v).dtype;
    let input = matches!(graph.def(node.inputs[0]).op, Op::Input { .. }) && graph.ty(node.inputs[0]).dtype == ty;
    same && input && matches!(ty, DType::F16 | DType::BF16)
}
