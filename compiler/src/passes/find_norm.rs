//! Finds normalisation written out: `(x − mean(x)) / √(var(x) + eps)`, and `x / √(mean(x²) + eps)`.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[2,4,3]
//!   %sum = reduce %x sum dims=[1] : f32[2,1,3]
//!   %mean = map(a / 4.0) %sum : f32[2,1,3]
//!   %d = map(a - b) %x, %mean : f32[2,4,3]
//!   %sq = map(a * a) %d : f32[2,4,3]
//!   %sumsq = reduce %sq sum dims=[1] : f32[2,1,3]
//!   %var = map(a / 4.0) %sumsq : f32[2,1,3]
//!   %y = map(a / sqrt(b + 1e-6)) %d, %var : f32[2,4,3]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[2,4,3]
//!   %y = norm %x dims=[1] eps=9.999999974752427e-7 : f32[2,4,3]
//!   output "y" = %y
//! }
//! ```
//!
//! Feeds the row kernel: one pass over memory instead of three. `eps` keeps its bits: it is the double of the literal found.

use super::compose::{Composed, Peek, compose, number};
use super::rewrite::{Patch, Ref, View, rewrite};
use super::{Cx, Pass};
use crate::ir::op::Body;
use crate::ir::{Dim, Graph, NodeId, Op, ValueId};
use jvc_kernels::expr::{Binary, Expr, ExprId, Unary};
use jvc_kernels::spec::Combine;

pub(super) const PASS: Pass = Pass { name: "find_norm", summary: "finds layer and RMS normalisation written out", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    rewrite(graph, cx, &[norm])
}

fn norm<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let y = n.outputs[0];
    // Most values end here, and most programs have thousands of them: composing is for those that look right from outside.
    if !view.ty(y).dtype.is_float() || !Peek::root(view, y).is_some_and(divides_by_root) {
        return None;
    }
    let found: Vec<(ValueId, Found)> = candidates(view, y)
        .into_iter()
        .filter(|&x| view.ty(x).shape == view.ty(y).shape && view.ty(x).dtype == view.ty(y).dtype)
        .filter_map(|x| Some((x, Pattern { view, x }.normalised(y)?)))
        .collect();
    // A layer norm is also the RMS norm of what is left after the mean: prefer the whole.
    let (x, found) = found.iter().find(|(_, f)| !f.rms).or(found.first())?;
    let op = Op::Norm { dims: found.dims.clone(), eps: found.eps, rms: found.rms };
    let mut p = Patch::new(view);
    let r = p.add(op, &[Ref::Old(*x)])?;
    p.replace_by(r)
}

/// Values that may be the x: whatever a reduction behind a few `Map`s of `y` reduces, and what that is a map of.
fn candidates(view: &View<'_>, y: ValueId) -> Vec<ValueId> {
    let (mut out, mut seen, mut stack) = (vec![], vec![], vec![(y, 8u32)]);
    while let Some((v, left)) = stack.pop() {
        if seen.contains(&v) || left == 0 {
            continue;
        }
        seen.push(v);
        match view.op(v) {
            Op::Map(_) => stack.extend(view.inputs(v).iter().map(|&i| (i, left - 1))),
            Op::Reduce { combine: Combine::Sum, .. } | Op::Variance { .. } => {
                let x = view.inputs(v)[0];
                out.push(x);
                stack.push((x, left - 1));
            }
            _ => {}
        }
        // The x of an RMS norm is squared in a `Map` before it is summed.
        if v != y {
            out.push(v);
        }
    }
    out
}

struct Found {
    dims: Vec<usize>,
    eps: f64,
    rms: bool,
}

/// The pattern for one choice of x; expressions end at x.
struct Pattern<'a> {
    view: &'a View<'a>,
    x: ValueId,
}

impl Pattern<'_> {
    fn expr(&self, v: ValueId) -> Composed {
        let x = self.x;
        compose(self.view, v, &move |u| u == x)
    }

    fn normalised(&self, y: ValueId) -> Option<Found> {
        let e = self.expr(y);
        let (numerator, spread) = quotient_by_root(&e.body)?;
        let (spread, eps) = plus_literal(&e.body, spread)?;
        if self.is_x(&e, numerator) {
            let dims = self.mean_of(&e, spread, &|p, inner, id| p.is_square_of_x(inner, id))?;
            return Some(Found { dims, eps, rms: true });
        }
        let dims = self.centered(&e, numerator)?;
        let same = self.variance(&e, spread, &dims)?;
        (same == dims).then_some(Found { dims, eps, rms: false })
    }

    fn is_x(&self, e: &Composed, id: ExprId) -> bool {
        matches!(e.body.exprs.get(id), Expr::Arg(k, _) if e.leaves[*k as usize] == self.x)
    }

    fn leaf(&self, e: &Composed, id: ExprId) -> Option<ValueId> {
        match e.body.exprs.get(id) {
            Expr::Arg(k, _) => Some(e.leaves[*k as usize]),
            _ => None,
        }
    }

    /// `x − mean(x)`: the dimensions.
    fn centered(&self, e: &Composed, id: ExprId) -> Option<Vec<usize>> {
        let Expr::Binary(Binary::Sub, a, b) = e.body.exprs.get(id) else { return None };
        if !self.is_x(e, *a) {
            return None;
        }
        self.mean_of(e, *b, &|p, inner, id| p.is_x(inner, id))
    }

    /// `sum(f) / n` or `sum(f) · (1/n)`, where `is` recognises the summed expression: the dimensions.
    fn mean_of(&self, e: &Composed, id: ExprId, is: &dyn Fn(&Self, &Composed, ExprId) -> bool) -> Option<Vec<usize>> {
        let (sum, n) = scaled_sum(&e.body, id)?;
        let sum = self.leaf(e, sum)?;
        let Op::Reduce { combine: Combine::Sum, dims, .. } = self.view.op(sum) else { return None };
        let inner = self.expr(self.view.inputs(sum)[0]);
        (self.count_is(dims, n) && is(self, &inner, inner.body.root)).then(|| dims.clone())
    }

    fn count_is(&self, dims: &[usize], n: f64) -> bool {
        let count =
            dims.iter().try_fold(1i64, |c, &d| Some(c * self.view.ty(self.x).shape.get(d).and_then(Dim::as_const)?));
        // A reciprocal was rounded to f32.
        count.is_some_and(|c| (n / c as f64 - 1.0).abs() < 1e-6)
    }

    fn is_square_of_x(&self, e: &Composed, id: ExprId) -> bool {
        squared(&e.body, id).is_some_and(|x| self.is_x(e, x))
    }

    /// The biased variance of x over dimensions.
    fn variance(&self, e: &Composed, id: ExprId, dims: &[usize]) -> Option<Vec<usize>> {
        if let Some(v) = self.leaf(e, id)
            && let Op::Variance { dims, correction } = self.view.op(v)
        {
            return (*correction == 0.0 && self.view.inputs(v)[0] == self.x).then(|| dims.clone());
        }
        self.mean_of(e, id, &|p, inner, id| {
            squared(&inner.body, id).is_some_and(|d| p.centered(inner, d).as_deref() == Some(dims))
        })
    }
}

/// Whether [`quotient_by_root`] may find something in what this is the root of.
fn divides_by_root(top: Peek<'_>) -> bool {
    let sure = |p: Option<Peek<'_>>, is: &dyn Fn(Peek<'_>) -> bool| p.is_some_and(is);
    let root = |p: Peek<'_>| matches!(p.expr(), Expr::Unary(Unary::Sqrt, _) | Expr::Binary(Binary::Pow, ..));
    let reciprocal = |p: Peek<'_>| match p.expr() {
        Expr::Binary(Binary::Div, _, r) => sure(p.operand(*r), &root),
        e => matches!(e, Expr::Unary(Unary::Rsqrt, _) | Expr::Binary(Binary::Pow, ..)),
    };
    match top.expr() {
        Expr::Binary(Binary::Div, _, r) => sure(top.operand(*r), &root),
        Expr::Binary(Binary::Mul, a, b) => [*a, *b].into_iter().any(|f| sure(top.operand(f), &reciprocal)),
        _ => false,
    }
}

/// `(a, b)` of `a / √b`, `a · 1/√b`, `1/√b · a`.
fn quotient_by_root(body: &Body) -> Option<(ExprId, ExprId)> {
    let e = &body.exprs;
    match e.get(body.root) {
        Expr::Binary(Binary::Div, a, r) => Some((*a, root_of(body, *r)?)),
        Expr::Binary(Binary::Mul, a, b) => match reciprocal_root_of(body, *b) {
            Some(v) => Some((*a, v)),
            None => Some((*b, reciprocal_root_of(body, *a)?)),
        },
        _ => None,
    }
}

fn root_of(body: &Body, id: ExprId) -> Option<ExprId> {
    match body.exprs.get(id) {
        Expr::Unary(Unary::Sqrt, v) => Some(*v),
        Expr::Binary(Binary::Pow, v, p) if number(&body.exprs, *p) == Some(0.5) => Some(*v),
        _ => None,
    }
}

fn reciprocal_root_of(body: &Body, id: ExprId) -> Option<ExprId> {
    match body.exprs.get(id) {
        Expr::Unary(Unary::Rsqrt, v) => Some(*v),
        Expr::Binary(Binary::Pow, v, p) if number(&body.exprs, *p) == Some(-0.5) => Some(*v),
        Expr::Binary(Binary::Div, one, r) if number(&body.exprs, *one) == Some(1.0) => root_of(body, *r),
        _ => None,
    }
}

/// `v + literal`.
fn plus_literal(body: &Body, id: ExprId) -> Option<(ExprId, f64)> {
    let Expr::Binary(Binary::Add, a, b) = body.exprs.get(id) else { return None };
    match (number(&body.exprs, *a), number(&body.exprs, *b)) {
        (None, Some(eps)) => Some((*a, eps)),
        (Some(eps), None) => Some((*b, eps)),
        _ => None,
    }
}

/// `(s, n)` of `s / n` or `s · (1/n)`.
fn scaled_sum(body: &Body, id: ExprId) -> Option<(ExprId, f64)> {
    match body.exprs.get(id) {
        Expr::Binary(Binary::Div, s, n) => Some((*s, number(&body.exprs, *n)?)),
        Expr::Binary(Binary::Mul, a, b) => match (number(&body.exprs, *a), number(&body.exprs, *b)) {
            (None, Some(r)) => Some((*a, 1.0 / r)),
            (Some(r), None) => Some((*b, 1.0 / r)),
            _ => None,
        },
        _ => None,
    }
}

/// The operand of a square.
fn squared(body: &Body, id: ExprId) -> Option<ExprId> {
    match body.exprs.get(id) {
        Expr::Binary(Binary::Mul, a, b) if a == b => Some(*a),
        Expr::Binary(Binary::Pow, a, p) if number(&body.exprs, *p) == Some(2.0) => Some(*a),
        _ => None,
    }
}
