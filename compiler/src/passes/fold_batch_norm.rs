//! A linear map with per-channel constants behind a convolution or a matrix product goes into the weights: BatchNorm, layer scale.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[1,1,3]
//!   %w = const [1.0, 2.0] : f32[2,1,1]
//!   %c = conv %x, %w stride=[1] padding=[0] dilation=[1] groups=1 : f32[1,2,3]
//!   %m = const [3.0, 5.0] : f32[1,2,1]
//!   %y = map((a - b) * b) %c, %m : f32[1,2,3]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[1,1,3]
//!   %y.1 = const [3.0, 10.0] : f32[2,1,1]
//!   %y.2 = conv %x, %y.1 stride=[1] padding=[0] dilation=[1] groups=1 : f32[1,2,3]
//!   %y.3 = const [-9.0, -25.0] : f32[1,2,1]
//!   %y = map(a + b) %y.2, %y.3 : f32[1,2,3]
//!   output "y" = %y
//! }
//! ```
//!
//! Scale, shift and the scaled weights are computed in f64 and rounded once. f32 only: in half precision the scaled weights would lose
//! bits that the epilogue of the kernel keeps. Left alone when nothing but a bias would fold, when a scaled weight is not finite, and when
//! the weight is quantised: it would become floats.

use super::affine::{Affine, affine};
use super::compose::{Composed, compose, uses_axes};
use super::constants::{Evaluator, const_op, decodes_bytes};
use super::rewrite::{Patch, Ref, View, rewrite};
use super::{Cx, Pass};
use crate::ir::eval::{Precision, Symbols, Tensor, eval_op};
use crate::ir::op::Body;
use crate::ir::{DType, Graph, NodeId, Op, TensorType, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Exprs};

pub(super) const PASS: Pass = Pass {
    name: "fold_batch_norm",
    summary: "folds per-channel scales into weights of convolutions and products",
    run,
};

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    rewrite(graph, cx, &[fold])
}

fn fold<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let y = view.graph.node(node).outputs[0];
    if !matches!(view.graph.node(node).op, Op::Map(_)) || view.ty(y).dtype != DType::F32 || view.is_constant(y) {
        return None;
    }
    let stop = |v: ValueId| v != y && (view.is_constant(v) || !view.only_use(v));
    let expr = compose(view, y, &stop);
    let (x, root) = scaled_product(view, &expr)?;
    if view.ty(root).dtype != DType::F32 || view.ty(root).shape != view.ty(y).shape || uses_axes(&expr.body) {
        return None;
    }
    let split = affine(&expr.body, x)?;
    let target = Target::of(view, root)?;
    let scale = channels(view, &expr, &split, split.scale?, target.channel_dim, root)?;
    if scale.iter().all(|&s| s == 1.0) {
        return None;
    }
    let shift = match split.shift {
        Some(id) => channels(view, &expr, &split, id, target.channel_dim, root)?,
        None => vec![0.0; scale.len()],
    };
    let weight = target.scaled_weight(view, &scale)?;
    patch(view, &target, weight, &shift, y)
}

/// The one leaf that is not constant, if it is a convolution or product that nobody else uses.
fn scaled_product(view: &View<'_>, expr: &Composed) -> Option<(u16, ValueId)> {
    let mut varying = expr.leaves.iter().enumerate().filter(|(_, v)| !view.is_constant(**v));
    let (i, &v) = varying.next()?;
    if varying.next().is_some() || !view.only_use(v) {
        return None;
    }
    matches!(view.op(v), Op::Conv { .. } | Op::ConvTranspose { .. } | Op::Matmul).then_some((i as u16, v))
}

/// A part of the linear form, one value per channel, in f64.
fn channels(
    view: &View<'_>,
    expr: &Composed,
    split: &Affine,
    part: ExprId,
    channel_dim: usize,
    root: ValueId,
) -> Option<Vec<f64>> {
    let n = view.ty(root).shape[channel_dim].as_const()?;
    let mut shape = vec![1; view.ty(root).rank()];
    shape[channel_dim] = n;
    let mut evaluator = Evaluator::default();
    let mut args = vec![];
    for &leaf in &expr.leaves {
        // The product itself does not occur in the part; anything stands for it.
        let arg = if view.is_constant(leaf) {
            let t = evaluator.value(view.graph, view.cx, leaf)?;
            t.shape.iter().zip(&shape).all(|(&a, &b)| a == 1 || a as i64 == b).then(|| (*t).clone())?
        } else {
            Tensor::from_f64(DType::F32, &vec![1; shape.len()], vec![0.0])
        };
        args.push(arg);
    }
    let op = Op::Map(Body { root: part, ..split.body.clone() });
    let ty = TensorType::fixed(DType::F32, &shape);
    let refs: Vec<&Tensor> = args.iter().collect();
    let out = eval_op(&op, &refs, &[ty], &Symbols::new(), Precision::Exact).ok()?;
    Some(out[0].floats().to_vec())
}

/// A convolution or product, and which elements of its weights make which output channel.
struct Target<'a> {
    op: &'a Op,
    x: ValueId,
    weight: ValueId,
    /// Of the result.
    channel_dim: usize,
}

impl<'a> Target<'a> {
    fn of(view: &'a View<'a>, root: ValueId) -> Option<Target<'a>> {
        let op = view.op(root);
        let &[x, weight] = view.inputs(root) else { return None };
        let channel_dim = if matches!(op, Op::Matmul) { view.ty(root).rank() - 1 } else { 1 };
        let folds = view.is_constant(weight) && !decodes_bytes(view.graph, weight);
        folds.then_some(Target { op, x, weight, channel_dim })
    }

    fn scaled_weight(&self, view: &View<'_>, scale: &[f64]) -> Option<Tensor> {
        let mut w = (*Evaluator::default().value(view.graph, view.cx, self.weight)?).clone();
        let inner = |dims: &[usize]| dims.iter().product::<usize>();
        let channel: Box<dyn Fn(usize) -> usize> = match self.op {
            Op::Conv { .. } => {
                let size = inner(&w.shape[1..]);
                Box::new(move |i| i / size)
            }
            Op::ConvTranspose { groups, .. } => {
                // w[c, o/g, k…]: the rows of a group's inputs make that group's outputs.
                let (rows, per_group, taps) = (w.shape[0] / *groups as usize, w.shape[1], inner(&w.shape[2..]));
                Box::new(move |i| i / (taps * per_group) / rows * per_group + i / taps % per_group)
            }
            _ => {
                let n = *w.shape.last()?;
                Box::new(move |i| i % n)
            }
        };
        let scaled: Vec<f64> = w.floats().iter().enumerate().map(|(i, v)| v * scale[channel(i)]).collect();
        w = Tensor::from_f64(w.dtype, &w.shape.clone(), scaled);
        w.floats().iter().all(|v| v.is_finite()).then_some(w)
    }
}

fn patch<'a>(view: &'a View<'a>, target: &Target<'_>, weight: Tensor, shift: &[f64], y: ValueId) -> Option<Patch<'a>> {
    let mut p = Patch::new(view);
    let w = p.add(const_op(&weight), &[])?;
    let product = p.add(target.op.clone(), &[target.x.into(), w])?;
    if shift.iter().all(|&s| s == 0.0) {
        return p.replace_by(product);
    }
    let mut shape = vec![1; view.ty(y).rank()];
    shape[target.channel_dim] = shift.len();
    let bias = p.add(const_op(&Tensor::from_f64(DType::F32, &shape, shift.to_vec())), &[])?;
    let sum = add_body();
    let r: Ref = p.push(Op::Map(sum), &[product, bias], view.ty(y).clone());
    p.replace_by(r)
}

fn add_body() -> Body {
    let mut e = Exprs::new();
    let (a, b) = (e.arg(0, Ty::F32), e.arg(1, Ty::F32));
    let root = e.bin(Binary::Add, a, b);
    Body { exprs: e, root, syms: vec![] }
}
