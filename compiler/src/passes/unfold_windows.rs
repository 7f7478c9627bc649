//! Windows of few channels are laid out, once and whole: an image of so many channels as a window has elements, which a convolution of one
//! place reads by blocks of 16 bytes.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f16[1,3,64]
//!   %w = weight "w" : f16[16,3,6]
//!   %y = conv %x, %w stride=[2] padding=[1] dilation=[1] groups=1 : f16[1,16,31]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f16[1,3,64]
//!   %y.1 = compute(let t0 = i1 < 18; let t1 = select(t0, i1, 0); let t2 = ((i2 * 2) + (t1 % 6)) - 1; let t3 = (0 <= t2) & (t2 < 64); select(t0 & t3, a[i0, t1 / 6, select(t3, t2, 0)], 0.0)) %x : f16[1,24,31]
//!   %y.2 = const #0 : f16[16,24,1]
//!   %y = conv %y.1, %y.2 stride=[1] padding=[0] dilation=[1] groups=1 : f16[1,16,31]
//!   output "y" = %y
//! }
//! blob #0 = 5738ebb5a933073b70aa913960ad3b39b3b51e3238ba3734fcb85635afb7293181a08b390000000000000000000000004f3a9cbba4ba22ba7aba2137cd325fbac92e2d3bcfb8303a7438b4b76d38fb37d3b0293a0000000000000000000000001333f9b80235f737e3b310b5fdbb16373e2c4a3b6bb55ab717b1ef2f4db93fb64ead3834000000000000000000000000323b983a6db40eb998a05537e437ef385d3b59b3ceb9bfbbde3694b84730c52bc823c0b00000000000000000000000000a305fb066358db5f82d9c375bb83fbb9c26693672b2ec3028ad4e38f2bbd32a34334c370000000000000000000000004a35ff383eb6feb56a346abb363b72bb8bba0137dd3426ba7a321937f5b9692cdcbb6e31000000000000000000000000b421b8391bb31937cb38e3ae42b556b8d83853b0aabb5b2b0dbbca31f8b7b4b871b9e11b000000000000000000000000e4320b32fd3735b668312eb63e34cc3bd5bb6ab8e6bb97bba439b9ba0139cab525b9293a00000000000000000000000083bad0b42ebb55bae830ea36ecbacf3bc62fa33ba337913349344b3b91b1d63552309b3a000000000000000000000000d637513a3fb7eab9733a47b8d4b9c73b6b38ac3317380639e33785b5d6331ab8b1b887b4000000000000000000000000ab3ba5bb67b6053b1cb20fb9efb54eb9b8ac97386a3ae3380232c634903318387f37b22c0000000000000000000000000cb18c38022c6f38a839ae2b3d320db8022fb638a835283a33bafb36b5b3423b2c36cc3b0000000000000000000000006dba38b59d3969362cb972ba53af773132b933b1943370b851a7c32b16b4543a6c3bbc340000000000000000000000003c39dcbbfaba97b1ebbb5134acb978b95039503a6bb79a366c33adb8eb1d183a44b89bb0000000000000000000000000163b80b9163b0c391fb747b54f30963829b1af3b45327535d1ac592f1fa799b9bd3a80bb00000000000000000000000015b886a586afef232f3be8b360ba10aab831bbb97cbb4db545b034b4e229e0b9b33451b7000000000000000000000000
//! ```
//!
//! First convolutions have three channels, where `pad_channels` would add more zeros than there are elements: found one by one, each element
//! of each window takes as long as many multiplications. Whole blocks are made up with zeros, in the weights, too. Small problems stay, and
//! large ones, whose windows would take too much memory.

use super::constants::{Evaluator, const_op, decodes_bytes};
use super::rewrite::{Patch, Ref, View, rewrite};
use super::{Cx, Pass};
use crate::ir::eval::{Precision, Symbols, Tensor, eval_op};
use crate::ir::infer::infer;
use crate::ir::op::{Body, Window};
use crate::ir::{DType, Dim, Graph, NodeId, Op, TensorType};
use crate::schedule::layout::{BLOCK, MIN_OUTPUTS};
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs, Lit};

pub(super) const PASS: Pass =
    Pass { name: "unfold_windows", summary: "lays out windows of few channels for convolutions on matrix units", run };

/// Most channels: with more, less than half of a block is zeros.
const MOST_CHANNELS: i64 = BLOCK / 2;
/// Fewest elements of a window: fewer do not fill a fragment.
const LEAST_WINDOW: i64 = 16;
/// Fewest elements of all windows: fewer do not cost what another kernel does.
const LEAST_ELEMS: i64 = 1 << 9;
/// Most bytes of all windows.
const MOST_BYTES: i64 = 64 << 20;

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let fills = |d: &crate::device::DeviceProfile| d.cooperative.iter().any(|c| c.left.is_some() && c.right.is_some());
    if cx.no_fold || cx.device.is_none_or(|d| d.rates.cpu || !fills(d)) {
        return 0;
    }
    rewrite(graph, cx, &[unfold])
}

fn unfold<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let Op::Conv { window, groups: 1 } = &n.op else { return None };
    let (x, w) = (n.inputs[0], n.inputs[1]);
    let (ty, kernel) = (view.ty(x), view.ty(w).const_shape()?);
    let (channels, taps) = (kernel[1], &kernel[2..]);
    let window_elems = channels * taps.iter().product::<i64>();
    let whole = (window_elems + BLOCK - 1) / BLOCK * BLOCK;
    let out = &view.ty(n.outputs[0]).shape;
    let places = [&out[..1], &out[2..]].concat().iter().fold(Dim::from(1), |n, d| &n * d);
    let most = places.range(&view.graph.ranges).max;
    let fits = most.checked_mul(whole * 2).is_some_and(|bytes| bytes <= MOST_BYTES);
    let worth = channels <= MOST_CHANNELS && window_elems >= LEAST_WINDOW && most * whole >= LEAST_ELEMS && fits;
    let half = matches!(ty.dtype, DType::F16 | DType::BF16);
    if !half || !worth || kernel[0] < MIN_OUTPUTS || taps.iter().all(|&t| t == 1) {
        return None;
    }
    if !view.is_constant(w) || decodes_bytes(view.graph, w) {
        return None;
    }
    let tensor = Evaluator::default().value(view.graph, view.cx, w)?;
    let (weights, weights_ty) = laid_out(&tensor, view.ty(w), window_elems, whole)?;
    let mut p = Patch::new(view);
    let shape = [&out[..1], &[Dim::from(whole)], &out[2..]].concat();
    let body = windows(&ty.shape, ty.dtype, window, &kernel, whole)?;
    let image = p.push(Op::Compute(body), &[Ref::Old(x)], TensorType::new(ty.dtype, shape));
    let weights = p.push(const_op(&weights), &[], weights_ty);
    let rank = taps.len();
    let one_place = Window { stride: vec![1; rank], padding: vec![0; rank], dilation: vec![1; rank] };
    let result = p.push(Op::Conv { window: one_place, groups: 1 }, &[image, weights], view.ty(n.outputs[0]).clone());
    p.replace_by(result)
}

/// Weights `[O, C, taps…]` as `[O, whole, 1…]`, with zeros behind.
fn laid_out(tensor: &Tensor, ty: &TensorType, elems: i64, whole: i64) -> Option<(Tensor, TensorType)> {
    let rank = ty.shape.len();
    let flat = [&ty.shape[..1], &[Dim::from(elems)], &vec![Dim::from(1); rank - 2]].concat();
    let mut after = vec![0; rank];
    after[1] = whole - elems;
    let (mut tensor, mut ty) = (tensor.clone(), ty.clone());
    for op in [Op::Reshape(flat), Op::Pad { before: vec![0; rank], after, value: 0.0 }] {
        let to = infer(&op, &[&ty]).ok()?.pop()?;
        let types = std::slice::from_ref(&to);
        tensor = eval_op(&op, &[&tensor], types, &Symbols::new(), Precision::Working).ok()?.pop()?;
        ty = to;
    }
    Some((tensor, ty))
}

/// Element `c` of the window at a place: its channel and taps are the digits of `c`; 0 outside the image and behind the window.
fn windows(shape: &[Dim], dtype: DType, window: &Window, kernel: &[i64], whole: i64) -> Option<Body> {
    let mut e = Exprs::new();
    let mut syms = vec![];
    let int = |e: &mut Exprs, v: i64| Some(e.i32(i32::try_from(v).ok()?));
    let elems: i64 = kernel[1..].iter().product();
    let zero = e.i32(0);
    let mut rest = e.axis(1);
    let mut inside = e.bool(true);
    if whole > elems {
        let end = int(&mut e, elems)?;
        inside = e.bin(Binary::Lt, rest, end);
        rest = e.select(inside, rest, zero);
    }
    let mut at = vec![];
    for d in (0..kernel.len() - 2).rev() {
        let size = int(&mut e, kernel[2 + d])?;
        let tap = e.bin(Binary::Rem, rest, size);
        rest = e.bin(Binary::Div, rest, size);
        let [stride, padding, dilation] = [window.stride[d], window.padding[d], window.dilation[d]];
        let place = e.axis(u8::try_from(2 + d).ok()?);
        let place = scaled(&mut e, place, stride)?;
        let reach = scaled(&mut e, tap, dilation)?;
        let mut place = e.bin(Binary::Add, place, reach);
        if padding != 0 {
            let before = int(&mut e, padding)?;
            place = e.bin(Binary::Sub, place, before);
            let size = size_of(&mut e, &mut syms, &shape[2 + d])?;
            let (low, high) = (e.bin(Binary::Le, zero, place), e.bin(Binary::Lt, place, size));
            let here = e.bin(Binary::And, low, high);
            place = e.select(here, place, zero);
            inside = e.bin(Binary::And, inside, here);
        }
        at.push(place);
    }
    at.extend([rest, e.axis(0)]);
    at.reverse();
    let value = e.load(0, dtype, at);
    let nothing = e.lit(dtype.ty(), 0.0);
    let all = matches!(e.get(inside), Expr::Lit(Lit::Bool(true)));
    let root = if all { value } else { e.select(inside, value, nothing) };
    Some(Body { exprs: e, root, syms })
}

fn scaled(e: &mut Exprs, v: ExprId, by: i64) -> Option<ExprId> {
    let factor = i32::try_from(by).ok()?;
    if factor == 1 {
        return Some(v);
    }
    let factor = e.i32(factor);
    Some(e.bin(Binary::Mul, v, factor))
}

/// A size as a literal or a symbol.
fn size_of(e: &mut Exprs, syms: &mut Vec<Dim>, size: &Dim) -> Option<ExprId> {
    match size.as_const() {
        Some(n) => Some(e.i32(i32::try_from(n).ok()?)),
        None => {
            syms.push(size.clone());
            Some(e.add(Expr::Sym(u16::try_from(syms.len() - 1).ok()?)))
        }
    }
}
