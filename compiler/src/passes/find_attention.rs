//! Finds attention written out, as core ATen has it: `softmax(q·kᵀ·scale + mask)·v`, plain or "safe" (a row without keys gives 0).
//!
//! ```text
//! graph g {
//!   %q = input 0 "q" : f32[6,5,4]
//!   %k = input 1 "k" : f32[6,4,7]
//!   %v = input 2 "v" : f32[6,7,3]
//!   %m = input 3 "m" : f32[1,5,7]
//!   %qk = matmul %q, %k : f32[6,5,7]
//!   %s = map((a * 0.5) + b) %qk, %m : f32[6,5,7]
//!   %p = softmax %s dim=2 : f32[6,5,7]
//!   %y = matmul %p, %v : f32[6,5,3]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %q = input 0 "q" : f32[6,5,4]
//!   %k = input 1 "k" : f32[6,4,7]
//!   %v = input 2 "v" : f32[6,7,3]
//!   %m = input 3 "m" : f32[1,5,7]
//!   %y.1 = reshape %q : f32[6,1,5,4]
//!   %y.2 = permute %k perm=[0,2,1] : f32[6,7,4]
//!   %y.3 = reshape %y.2 : f32[6,1,7,4]
//!   %y.4 = reshape %v : f32[6,1,7,3]
//!   %y.5 = reshape %m : f32[1,1,5,7]
//!   %y.6 = attention %y.1, %y.3, %y.4, %y.5 scale=0.5 masked : f32[6,1,5,3]
//!   %y = reshape %y.6 : f32[6,5,3]
//!   output "y" = %y
//! }
//! ```
//!
//! Feeds the attention kernel, which never writes the scores: for n keys that saves 2·n² elements of traffic a head. The reshapes and
//! permutes are access maps of that kernel.

use super::compose::number;
use super::rewrite::{Patch, Ref, View, rewrite};
use super::{Cx, Pass};
use crate::ir::op::Body;
use crate::ir::{Dim, Graph, NodeId, Op, Shape, TensorType, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use jvc_kernels::spec::Combine;

pub(super) const PASS: Pass = Pass { name: "find_attention", summary: "finds attention written out", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    rewrite(graph, cx, &[attention, scaled_operand])
}

fn attention<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    if !matches!(n.op, Op::Matmul) {
        return None;
    }
    let (probs, v, y) = (n.inputs[0], n.inputs[1], n.outputs[0]);
    let (scores, zero_masked_rows) = softmax_input(view, probs)?;
    let found = Scores::read(view, scores)?;
    // One kernel for both products: the probabilities must not be wanted as such, and both products must have the same rows and columns.
    let (qk, rank) = (view.ty(found.product), view.ty(scores).rank());
    let y_ty = view.ty(y);
    let n_keys = &qk.shape[qk.rank() - 1];
    let rows = &qk.shape[qk.rank() - 2];
    if y_ty.shape[y_ty.rank() - 2] != *rows || view.ty(v).shape[y_ty.rank() - 2] != *n_keys {
        return None;
    }
    if view.ty(scores).shape[rank - 1] != *n_keys || view.ty(scores).shape[rank - 2] != *rows {
        return None;
    }
    build(view, &found, scores, v, y, zero_masked_rows)
}

/// The scores of `softmax(scores)` along the last dimension, seen through a reshape; and whether it is the safe form.
fn softmax_input(view: &View<'_>, probs: ValueId) -> Option<(ValueId, bool)> {
    let inner = through_cast(view, through_reshape(view, probs));
    if !view.only_use(probs) || !view.only_use(inner) {
        return None;
    }
    let probs = inner;
    match view.op(probs) {
        Op::Softmax { dim, log: false } => {
            let scores = view.inputs(probs)[0];
            (*dim + 1 == view.ty(scores).rank()).then_some((scores, false))
        }
        Op::Map(body) => {
            let (any, softmax) = zero_unless(view, body, view.inputs(probs))?;
            let (scores, _) = softmax_input(view, softmax)?;
            any_finite(view, any, scores).then_some((scores, true))
        }
        _ => None,
    }
}

fn through_reshape(view: &View<'_>, v: ValueId) -> ValueId {
    if matches!(view.op(v), Op::Reshape(_)) { view.inputs(v)[0] } else { v }
}

/// `(c, p)` of `select(!c, 0, p)` or `select(c, p, 0)`, where c may be negated in a `Map` of its own.
fn zero_unless(view: &View<'_>, body: &Body, inputs: &[ValueId]) -> Option<(ValueId, ValueId)> {
    let e = &body.exprs;
    let Expr::Select(c, a, b) = e.get(body.root) else { return None };
    let zero = |id: ExprId| number(e, id) == Some(0.0);
    let arg = |id: ExprId| match e.get(id) {
        Expr::Arg(k, _) => Some(inputs[*k as usize]),
        _ => None,
    };
    let (cond, inside) = match e.get(*c) {
        Expr::Arg(..) => (arg(*c)?, false),
        _ => {
            let (inner, negated) = truth_test(e, *c)?;
            (arg(inner)?, negated)
        }
    };
    let (cond, outside) = truth_of(view, cond);
    let negated = inside != outside;
    match (negated, zero(*a), zero(*b)) {
        (true, true, false) => Some((cond, arg(*b)?)),
        (false, false, true) => Some((cond, arg(*a)?)),
        _ => None,
    }
}

/// `(x, negated)` of `!x`, `x == false`, `x != false` for a bool x.
fn truth_test(e: &Exprs, id: ExprId) -> Option<(ExprId, bool)> {
    let is_false = |id: ExprId| matches!(e.get(id), Expr::Lit(Lit::Bool(false)));
    match e.get(id) {
        Expr::Unary(Unary::Not, a) if e.ty(*a) == Ty::Bool => Some((*a, true)),
        Expr::Binary(Binary::Eq, a, b) if is_false(*b) => Some((*a, true)),
        Expr::Binary(Binary::Ne, a, b) if is_false(*b) => Some((*a, false)),
        _ => None,
    }
}

/// What a bool value tests, through `Map`s that only negate or convert it; and whether it is the negation.
fn truth_of(view: &View<'_>, mut v: ValueId) -> (ValueId, bool) {
    let mut negated = false;
    while let Op::Map(body) = view.op(v)
        && let Some((a, not)) = truth_test(&body.exprs, body.root)
        && let Expr::Arg(k, Ty::Bool) = body.exprs.get(a)
    {
        negated ^= not;
        v = view.inputs(v)[*k as usize];
    }
    (v, negated)
}

/// `any(scores ≠ −∞)` along the last dimension.
fn any_finite(view: &View<'_>, any: ValueId, scores: ValueId) -> bool {
    let Op::Reduce { combine: Combine::Any, dims, .. } = view.op(any) else { return false };
    if *dims != [view.ty(scores).rank() - 1] {
        return false;
    }
    let (test, negated) = truth_of(view, view.inputs(any)[0]);
    let Op::Map(body) = view.op(test) else { return false };
    let inputs = view.inputs(test);
    let is = |id: ExprId, op: Binary| is_comparison(view, body, id, inputs, scores, op);
    match truth_test(&body.exprs, body.root) {
        Some((inner, not)) => is(inner, if negated != not { Binary::Eq } else { Binary::Ne }),
        None => is(body.root, if negated { Binary::Eq } else { Binary::Ne }),
    }
}

fn is_comparison(view: &View<'_>, body: &Body, id: ExprId, inputs: &[ValueId], scores: ValueId, op: Binary) -> bool {
    let Expr::Binary(found, a, b) = body.exprs.get(id) else { return false };
    let is_scores = |id: ExprId| match body.exprs.get(id) {
        Expr::Arg(k, _) => inputs[*k as usize] == scores || through_cast(view, inputs[*k as usize]) == scores,
        _ => false,
    };
    *found == op && is_scores(*a) && number(&body.exprs, *b) == Some(f64::NEG_INFINITY)
}

/// x of a `Map` that only changes the element type.
fn through_cast(view: &View<'_>, v: ValueId) -> ValueId {
    match view.op(v) {
        Op::Map(body) if matches!(body.exprs.get(body.root), Expr::Arg(0, _)) && view.inputs(v).len() == 1 => {
            view.inputs(v)[0]
        }
        _ => v,
    }
}

/// What the scores are: `product · scale`, then masks added in order from the product outward.
struct Scores {
    product: ValueId,
    scale: f64,
    masks: Vec<Mask>,
}

/// Something added to the scores, or a bool that selects them; `shape` is the scores' where it is applied.
struct Mask {
    value: ValueId,
    shape: Shape,
}

impl Scores {
    /// Walks from the softmax's input back to the product.
    fn read(view: &View<'_>, scores: ValueId) -> Option<Scores> {
        let (mut v, mut scale, mut masks) = (scores, 1.0, vec![]);
        for _ in 0..8 {
            match view.op(v) {
                Op::Matmul => {
                    masks.reverse();
                    return Some(Scores { product: v, scale, masks });
                }
                Op::Reshape(_) => v = view.inputs(v)[0],
                Op::Map(body) => {
                    let step = Step::read(view, body, view.inputs(v))?;
                    if let Some(value) = step.mask {
                        // A scale applied after the mask would scale the mask too.
                        if scale != 1.0 {
                            return None;
                        }
                        masks.push(Mask { value, shape: view.ty(v).shape.clone() });
                    }
                    scale *= step.scale;
                    v = step.scores;
                }
                _ => return None,
            }
        }
        None
    }
}

/// One `Map` on the way: `scores · scale (+ mask)`, or `select(mask, scores · scale, −∞)`.
struct Step {
    scores: ValueId,
    scale: f64,
    mask: Option<ValueId>,
}

impl Step {
    fn read(view: &View<'_>, body: &Body, inputs: &[ValueId]) -> Option<Step> {
        let e = &body.exprs;
        let arg = |id: ExprId| match e.get(id) {
            Expr::Arg(k, _) => Some(inputs[*k as usize]),
            _ => None,
        };
        match e.get(body.root) {
            Expr::Binary(Binary::Add, a, b) => {
                let from = |x: ExprId, m: ExprId| {
                    let (scores, scale) = scaled(body, x)?;
                    let (scores, mask) = (arg(scores)?, arg(m)?);
                    leads_to_product(view, scores).then_some(Step { scores, scale, mask: Some(mask) })
                };
                from(*a, *b).or_else(|| from(*b, *a))
            }
            Expr::Select(c, a, b) => {
                let (scores, scale) = scaled(body, *a)?;
                let masked = number(e, *b) == Some(f64::NEG_INFINITY);
                masked.then_some(Step { scores: arg(scores)?, scale, mask: Some(arg(*c)?) })
            }
            _ => {
                let (scores, scale) = scaled(body, body.root)?;
                Some(Step { scores: arg(scores)?, scale, mask: None })
            }
        }
    }
}

/// `(x, s)` of `x · s`, `s · x`, `x / (1/s)` or plain x.
fn scaled(body: &Body, id: ExprId) -> Option<(ExprId, f64)> {
    let e = &body.exprs;
    match e.get(id) {
        Expr::Arg(_, ty) if ty.is_float() => Some((id, 1.0)),
        Expr::Round(_, a) => scaled(body, *a),
        Expr::Binary(Binary::Mul, a, b) => match (number(e, *a), number(e, *b)) {
            (None, Some(s)) => Some((*a, s)),
            (Some(s), None) => Some((*b, s)),
            _ => None,
        },
        Expr::Binary(Binary::Div, a, b) => Some((*a, 1.0 / number(e, *b)?)),
        _ => None,
    }
}

/// A number that multiplies all queries or all keys is a part of the scale: core ATen gives each the root of it. Scaled keys would be
/// stored, since every block of queries reads them.
fn scaled_operand<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let Op::Attention { scale, causal, zero_masked_rows, masked } = n.op else { return None };
    let (i, (moves, plain, factor)) = (0..2).find_map(|i| Some((i, unscaled(view, n.inputs[i])?)))?;
    let mut p = Patch::new(view);
    let mut inputs: Vec<Ref> = n.inputs.iter().map(|&v| v.into()).collect();
    inputs[i] = moves.into_iter().try_fold(plain.into(), |v, op| p.add(op, &[v]))?;
    let out = p.add(Op::Attention { scale: scale * factor, causal, zero_masked_rows, masked }, &inputs)?;
    p.replace_by(out)
}

/// `(moves, x, s)` of a value that is `x · s`, moved by `moves` in their order.
fn unscaled(view: &View<'_>, mut v: ValueId) -> Option<(Vec<Op>, ValueId, f64)> {
    let mut moves = vec![];
    loop {
        match view.op(v) {
            op @ (Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_)) => {
                moves.push(op.clone());
                v = view.inputs(v)[0];
            }
            Op::Map(body) => {
                let (x, factor) = scaled(body, body.root)?;
                let Expr::Arg(k, _) = body.exprs.get(x) else { return None };
                let x = view.inputs(v)[*k as usize];
                moves.reverse();
                return (view.ty(x) == view.ty(v) && factor.is_normal() && factor != 1.0).then_some((moves, x, factor));
            }
            _ => return None,
        }
    }
}

fn leads_to_product(view: &View<'_>, mut v: ValueId) -> bool {
    for _ in 0..8 {
        match view.op(v) {
            Op::Matmul => return true,
            Op::Reshape(_) => v = view.inputs(v)[0],
            Op::Map(_) if view.inputs(v).len() <= 2 && !view.inputs(v).is_empty() => v = view.inputs(v)[0],
            _ => return false,
        }
    }
    false
}

fn build<'a>(
    view: &'a View<'a>,
    found: &Scores,
    scores: ValueId,
    v: ValueId,
    y: ValueId,
    zero_masked_rows: bool,
) -> Option<Patch<'a>> {
    let (q, k) = (view.inputs(found.product)[0], view.inputs(found.product)[1]);
    let full = four(&view.ty(scores).shape)?;
    let (b, h) = (full[0].clone(), full[1].clone());
    let batch = |shape: &[Dim], rank: usize| shape[..rank - 2].iter().fold(Dim::from(1), |p, d| &p * d);
    let heads = &b * &h;
    let dtype = view.ty(y).dtype;
    if [q, k, v].iter().any(|&t| view.ty(t).dtype != dtype) {
        return None;
    }
    // Broadcast batches (shared keys) stay as they are.
    if [q, k, v].iter().any(|&t| batch(&view.ty(t).shape, view.ty(t).rank()) != heads) {
        return None;
    }
    let mut p = Patch::new(view);
    let head = |p: &mut Patch<'a>, t: Ref| {
        let shape = p.ty(t).shape.clone();
        let [i, e] = [shape[shape.len() - 2].clone(), shape[shape.len() - 1].clone()];
        p.reshape(t, vec![b.clone(), h.clone(), i, e])
    };
    let q4 = head(&mut p, q.into())?;
    let rank = view.ty(k).rank();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 1, rank - 2);
    let kt = p.add(Op::Permute(perm), &[k.into()])?;
    let k4 = head(&mut p, kt)?;
    let v4 = head(&mut p, v.into())?;
    let mut inputs = vec![q4, k4, v4];
    let mask = combined_mask(view, &mut p, &found.masks, &full)?;
    inputs.extend(mask);
    let op = Op::Attention { scale: found.scale, causal: false, zero_masked_rows, masked: mask.is_some() };
    let out = p.add(op, &inputs)?;
    let r = p.reshape(out, view.ty(y).shape.clone())?;
    p.replace_by(r)
}

/// Scores as `[batch, heads, queries, keys]`: a missing dimension is 1, surplus ones belong to the batch.
fn four(shape: &[Dim]) -> Option<Shape> {
    let n = shape.len();
    match n {
        0 | 1 => None,
        2 => Some(vec![Dim::from(1), Dim::from(1), shape[0].clone(), shape[1].clone()]),
        3 => Some(vec![shape[0].clone(), Dim::from(1), shape[1].clone(), shape[2].clone()]),
        _ => {
            let batch = shape[..n - 3].iter().fold(Dim::from(1), |p, d| &p * d);
            Some([vec![batch], shape[n - 3..].to_vec()].concat())
        }
    }
}

/// All masks as one operand that broadcasts to the scores. Outer `None`: they do not fit; inner `None`: there are none.
fn combined_mask<'a>(view: &'a View<'a>, p: &mut Patch<'a>, masks: &[Mask], full: &Shape) -> Option<Option<Ref>> {
    let mut all: Option<Ref> = None;
    for mask in masks {
        let m = mask_as_four(view, p, mask, full)?;
        all = Some(match all {
            None => m,
            Some(other) => add_masks(p, other, m, full)?,
        });
    }
    Some(all)
}

fn mask_as_four<'a>(view: &'a View<'a>, p: &mut Patch<'a>, mask: &Mask, full: &Shape) -> Option<Ref> {
    let ty = view.ty(mask.value);
    let applied = four(&mask.shape)?;
    let own = if ty.rank() <= 4 { four_like(&ty.shape) } else { None };
    if applied == *full
        && let Some(own) = own
    {
        return p.reshape(mask.value.into(), own);
    }
    // Applied in another shape of the same scores: spelled out there, then reshaped.
    let wide = p.add(Op::Broadcast(mask.shape.clone()), &[mask.value.into()])?;
    p.reshape(wide, full.clone())
}

/// As [`four`] for something that broadcasts: a batch of one stays one.
fn four_like(shape: &[Dim]) -> Option<Shape> {
    if shape.len() < 2 { None } else { four(shape) }
}

fn add_masks(p: &mut Patch<'_>, a: Ref, b: Ref, full: &Shape) -> Option<Ref> {
    let (x, y) = (p.ty(a).clone(), p.ty(b).clone());
    if !x.dtype.is_float() || x.dtype != y.dtype {
        return None;
    }
    let shape = x.shape.iter().zip(&y.shape).zip(full);
    let shape = shape.map(|((x, y), f)| if x.is(1) && y.is(1) { Dim::from(1) } else { f.clone() }).collect();
    let mut e = Exprs::new();
    let (l, r) = (e.arg(0, x.dtype.ty()), e.arg(1, x.dtype.ty()));
    let root = e.bin(Binary::Add, l, r);
    Some(p.push(Op::Map(Body { exprs: e, root, syms: vec![] }), &[a, b], TensorType::new(x.dtype, shape)))
}
