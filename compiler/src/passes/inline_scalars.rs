//! Puts operands that have one value everywhere into the body as literals: one operand less to bind and to load.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[2,3]
//!   %c = const [2.0] : f32[1,1]
//!   %y = map(a * b) %x, %c : f32[2,3]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[2,3]
//!   %y = map(a * 2.0) %x : f32[2,3]
//!   output "y" = %y
//! }
//! ```

use super::compose::{element, splat};
use super::rewrite::{Patch, Ref, View, rewrite};
use super::{Cx, Pass};
use crate::ir::eval::Data;
use crate::ir::op::Body;
use crate::ir::{Graph, NodeId, Op, ValueId};
use jvc_kernels::expr::{Expr, ExprId, Exprs, Lit};

pub(super) const PASS: Pass =
    Pass { name: "inline_scalars", summary: "makes operands of one value literals of the body", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    rewrite(graph, cx, &[inline])
}

fn inline<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let (Op::Map(body) | Op::Compute(body)) = &n.op else { return None };
    let lits: Vec<Option<Lit>> = n.inputs.iter().map(|&v| splat(view.graph, v).or_else(|| stored(view, v))).collect();
    if lits.iter().all(Option::is_none) {
        return None;
    }
    // The position of each remaining operand among those that stay.
    let place = |k: u16| lits[..k as usize].iter().filter(|l| l.is_none()).count() as u16;
    let mut new = Body { exprs: Exprs::new(), root: ExprId(0), syms: vec![] };
    new.root = graft_loads(&mut new, body, &lits, &place);
    let inputs: Vec<Ref> = n.inputs.iter().zip(&lits).filter(|(_, l)| l.is_none()).map(|(&v, _)| v.into()).collect();
    let op = if matches!(n.op, Op::Map(_)) { Op::Map(new) } else { Op::Compute(new) };
    let mut p = Patch::new(view);
    let r = p.push(op, &inputs, view.ty(n.outputs[0]).clone());
    p.replace_by(r)
}

/// Elements of a weight that is looked into.
const MAX_STORED_ELEMS: i64 = 1 << 20;

/// The one value of a stored integer tensor, in movement or not: the zero points of a symmetric quantisation.
fn stored(view: &View<'_>, v: ValueId) -> Option<Lit> {
    match view.op(v) {
        Op::Reshape(_) | Op::Broadcast(_) | Op::Permute(_) => stored(view, view.inputs(v)[0]),
        Op::Weight(w) if !view.ty(v).dtype.is_float() && view.ty(v).n_elems().as_const()? <= MAX_STORED_ELEMS => {
            let t = (view.cx.weights)(&w.name)?;
            let Data::Int(values) = &t.data else { return None };
            let first = *values.first()?;
            values.iter().all(|&v| v == first).then(|| element(&t))
        }
        _ => None,
    }
}

/// Copies the body with operands renumbered. A load needs its copied index, so nodes are copied in order here.
fn graft_loads(new: &mut Body, body: &Body, lits: &[Option<Lit>], place: &dyn Fn(u16) -> u16) -> ExprId {
    let mut copies = vec![ExprId(0); body.exprs.len()];
    for id in body.exprs.reachable(&[body.root]) {
        let e = body.exprs.get(id);
        let ops: Vec<ExprId> = body.exprs.operands(id).iter().map(|o| copies[o.0 as usize]).collect();
        copies[id.0 as usize] = match e {
            Expr::Arg(k, _) | Expr::Load { operand: k, .. } if lits[*k as usize].is_some() => {
                new.exprs.add(Expr::Lit(lits[*k as usize].expect("checked")))
            }
            Expr::Arg(k, ty) => new.exprs.arg(place(*k), *ty),
            Expr::Load { operand, dtype, .. } => new.exprs.load(place(*operand), *dtype, ops),
            Expr::Sym(w) => new.sym(&body.syms[*w as usize]),
            _ => new.exprs.add(Exprs::with_operands(e, &ops)),
        };
    }
    copies[body.root.0 as usize]
}
