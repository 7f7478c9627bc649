//! What a value is as one expression: the bodies of consecutive `Map`s grafted together, over the values that are no `Map`s.

use super::rewrite::View;
use crate::ir::eval::{Data, Precision, Symbols, Tensor, eval_op};
use crate::ir::op::Body;
use crate::ir::{Graph, Op, TensorType, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Expr, ExprId, Exprs, Lit};

/// `Map`s looked through, one behind the other.
const MAX_CHAIN: u32 = 12;
/// Expression nodes.
const MAX_NODES: usize = 400;

/// An expression over the elements of values: `Arg(i)` is `leaves[i]`, broadcast.
pub(super) struct Composed {
    pub(super) body: Body,
    pub(super) leaves: Vec<ValueId>,
}

/// The expression of `v`. Looks through a `Map` unless `stop` says so; constants of one value become literals.
pub(super) fn compose(view: &View<'_>, v: ValueId, stop: &dyn Fn(ValueId) -> bool) -> Composed {
    let mut leaves = vec![];
    let mut body = Body { exprs: Exprs::new(), root: ExprId(0), syms: vec![] };
    let mut c = Composer { view, stop, root: view.ty(v), leaves: &mut leaves };
    body.root = c.build(&mut body, v, MAX_CHAIN);
    Composed { body, leaves }
}

/// A node of what [`compose`] gives, found without composing: what a `Map` hands on is looked for in the `Map` before it. Where composing
/// stops, or finds a literal, this may look further, but it never is another node.
#[derive(Clone, Copy)]
pub(super) struct Peek<'a> {
    view: &'a View<'a>,
    body: &'a Body,
    inputs: &'a [ValueId],
    id: ExprId,
}

impl<'a> Peek<'a> {
    /// The root of a value; `None` where it is no `Map`.
    pub(super) fn root(view: &'a View<'a>, v: ValueId) -> Option<Peek<'a>> {
        let Op::Map(body) = view.op(v) else { return None };
        Peek { view, body, inputs: view.inputs(v), id: body.root }.resolved()
    }

    fn resolved(mut self) -> Option<Peek<'a>> {
        while let Expr::Arg(k, _) = self.expr() {
            let v = self.inputs[*k as usize];
            let Op::Map(body) = self.view.op(v) else { return None };
            self = Peek { body, inputs: self.view.inputs(v), id: body.root, ..self };
        }
        Some(self)
    }

    pub(super) fn expr(self) -> &'a Expr {
        self.body.exprs.get(self.id)
    }

    /// A node that this one names.
    pub(super) fn operand(self, id: ExprId) -> Option<Peek<'a>> {
        Peek { id, ..self }.resolved()
    }
}

struct Composer<'a> {
    view: &'a View<'a>,
    stop: &'a dyn Fn(ValueId) -> bool,
    root: &'a TensorType,
    leaves: &'a mut Vec<ValueId>,
}

impl Composer<'_> {
    fn build(&mut self, body: &mut Body, v: ValueId, depth: u32) -> ExprId {
        if let Some(lit) = splat(self.view.graph, v) {
            return body.exprs.add(Expr::Lit(lit));
        }
        let op = self.view.op(v);
        if let Op::Map(inner) = op
            && depth > 0
            && body.exprs.len() < MAX_NODES
            && !(self.stop)(v)
            && (self.view.ty(v).shape == self.root.shape || !uses_axes(inner))
        {
            let inputs = self.view.inputs(v);
            return body.graft(inner, inner.root, &mut |body, e| match e {
                Expr::Arg(k, _) => Some(self.build(body, inputs[*k as usize], depth - 1)),
                _ => None,
            });
        }
        let i = self.leaves.iter().position(|&l| l == v).unwrap_or_else(|| {
            self.leaves.push(v);
            self.leaves.len() - 1
        });
        body.exprs.arg(i as u16, self.view.ty(v).dtype.ty())
    }
}

pub(super) fn uses_axes(body: &Body) -> bool {
    body.exprs.reachable(&[body.root]).iter().any(|&id| matches!(body.exprs.get(id), Expr::Axis(_)))
}

/// The one value that all elements of `v` have, if that is plain to see.
pub(super) fn splat(graph: &Graph, v: ValueId) -> Option<Lit> {
    let ty = graph.ty(v);
    let node = graph.def(v);
    match &node.op {
        Op::Const(lit) => {
            let size = ty.dtype.size_bytes() as usize;
            let first = lit.bytes.get(..size)?;
            let same = lit.bytes.chunks(size).all(|c| c == first);
            same.then(|| Tensor::from_bytes(ty.dtype, vec![1], first)).flatten().map(|t| element(&t))
        }
        Op::Reshape(_) | Op::Broadcast(_) | Op::Permute(_) | Op::Flip(_) => splat(graph, node.inputs[0]),
        Op::Map(body) | Op::Compute(body) if body.exprs.len() <= 16 => {
            let plain = |e: &Expr| !matches!(e, Expr::Axis(_) | Expr::Arg(..) | Expr::Sym(_) | Expr::Load { .. });
            if !body.exprs.iter().all(|(_, e)| plain(e)) {
                return None;
            }
            let one = TensorType::fixed(ty.dtype, &[]);
            let t = eval_op(&Op::Compute(body.clone()), &[], &[one], &Symbols::new(), Precision::Working).ok()?;
            Some(element(&t[0]))
        }
        _ => None,
    }
}

/// The first element as a literal of its register type.
pub(super) fn element(t: &Tensor) -> Lit {
    match (&t.data, t.dtype.ty()) {
        (Data::Float(v), Ty::F64) => Lit::F64(v[0].to_bits()),
        (Data::Float(v), _) => Lit::F32((v[0] as f32).to_bits()),
        (Data::Int(v), Ty::Bool) => Lit::Bool(v[0] != 0),
        (Data::Int(v), Ty::I64) => Lit::I64(v[0]),
        (Data::Int(v), _) => Lit::I32(v[0] as i32),
    }
}

/// The value of a literal node, as a double.
pub(super) fn number(exprs: &Exprs, id: ExprId) -> Option<f64> {
    match exprs.get(id) {
        Expr::Lit(Lit::F32(bits)) => Some(f64::from(f32::from_bits(*bits))),
        Expr::Lit(Lit::F64(bits)) => Some(f64::from_bits(*bits)),
        Expr::Lit(Lit::I32(v)) => Some(f64::from(*v)),
        Expr::Lit(Lit::I64(v)) => Some(*v as f64),
        _ => None,
    }
}
