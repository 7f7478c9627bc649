//! Bodies that are linear in one f32 argument: `body = scale · x + shift`, scale and shift free of x.

use crate::ir::op::Body;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs, Unary};

/// `scale · x + shift` in the arena of `body` (whose root says nothing).
pub(super) struct Affine {
    pub(super) body: Body,
    /// None: 1.
    pub(super) scale: Option<ExprId>,
    /// None: 0.
    pub(super) shift: Option<ExprId>,
}

#[derive(Clone, Copy)]
enum Part {
    /// Free of x.
    Free(ExprId),
    /// Linear in x.
    Linear(Option<ExprId>, Option<ExprId>),
}

/// Splits a body by argument `x`; `None` if it is not linear in it, or free of it. Rounding inside the body is ignored.
pub(super) fn affine(body: &Body, x: u16) -> Option<Affine> {
    let mut out = Body { exprs: Exprs::new(), root: ExprId(0), syms: body.syms.clone() };
    let mut parts: Vec<Option<Part>> = vec![None; body.exprs.len()];
    for id in body.exprs.reachable(&[body.root]) {
        let expr = body.exprs.get(id);
        let operands: Vec<Part> =
            body.exprs.operands(id).iter().map(|o| parts[o.0 as usize].expect("operands come first")).collect();
        parts[id.0 as usize] = Some(part(&mut out.exprs, expr, &operands, x)?);
    }
    match parts[body.root.0 as usize]? {
        Part::Free(_) => None,
        Part::Linear(scale, shift) => Some(Affine { body: out, scale, shift }),
    }
}

fn part(e: &mut Exprs, expr: &Expr, operands: &[Part], x: u16) -> Option<Part> {
    if let Expr::Arg(k, ty) = expr
        && *k == x
    {
        return (*ty == Ty::F32).then_some(Part::Linear(None, None));
    }
    let free: Option<Vec<ExprId>> =
        operands.iter().map(|p| if let Part::Free(id) = p { Some(*id) } else { None }).collect();
    if let Some(ids) = free {
        return Some(Part::Free(e.add(Exprs::with_operands(expr, &ids))));
    }
    match (expr, operands) {
        (Expr::Round(..), [p]) => Some(*p),
        (Expr::Unary(Unary::Neg, _), [Part::Linear(a, b)]) => {
            let a = scaled(e, *a, |e, one| e.un(Unary::Neg, one));
            Some(Part::Linear(Some(a), b.map(|b| e.un(Unary::Neg, b))))
        }
        (Expr::Binary(op, ..), [p, q]) => binary(e, *op, *p, *q),
        _ => None,
    }
}

/// `f(scale)`, where no scale is 1.
fn scaled(e: &mut Exprs, a: Option<ExprId>, f: impl Fn(&mut Exprs, ExprId) -> ExprId) -> ExprId {
    let a = a.unwrap_or_else(|| e.f32(1.0));
    f(e, a)
}

fn binary(e: &mut Exprs, op: Binary, p: Part, q: Part) -> Option<Part> {
    match (op, p, q) {
        (Binary::Add, Part::Linear(a, b), Part::Free(f)) | (Binary::Add, Part::Free(f), Part::Linear(a, b)) => {
            Some(Part::Linear(a, Some(b.map_or(f, |b| e.bin(Binary::Add, b, f)))))
        }
        (Binary::Sub, Part::Linear(a, b), Part::Free(f)) => {
            let minus = e.un(Unary::Neg, f);
            Some(Part::Linear(a, Some(b.map_or(minus, |b| e.bin(Binary::Sub, b, f)))))
        }
        (Binary::Sub, Part::Free(f), Part::Linear(a, b)) => {
            let a = scaled(e, a, |e, a| e.un(Unary::Neg, a));
            Some(Part::Linear(Some(a), Some(b.map_or(f, |b| e.bin(Binary::Sub, f, b)))))
        }
        (Binary::Mul, Part::Linear(a, b), Part::Free(f)) | (Binary::Mul, Part::Free(f), Part::Linear(a, b)) => {
            let a = a.map_or(f, |a| e.bin(Binary::Mul, a, f));
            Some(Part::Linear(Some(a), b.map(|b| e.bin(Binary::Mul, b, f))))
        }
        (Binary::Div, Part::Linear(a, b), Part::Free(f)) => {
            let a = scaled(e, a, |e, a| e.bin(Binary::Div, a, f));
            Some(Part::Linear(Some(a), b.map(|b| e.bin(Binary::Div, b, f))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::eval::{Precision, Symbols, Tensor, eval_op};
    use crate::ir::{DType, Op, TensorType};

    fn at(body: &Body, x: f64, f: f64) -> f64 {
        let t = |v| Tensor::from_f64(DType::F32, &[1], vec![v]);
        let ty = [TensorType::fixed(DType::F32, &[1])];
        let op = Op::Map(body.clone());
        let out = eval_op(&op, &[&t(x), &t(f)], &ty, &Symbols::new(), Precision::Exact).expect("evaluates");
        out[0].floats()[0]
    }

    #[test]
    fn batch_norm_splits_into_scale_and_shift() {
        let mut e = Exprs::new();
        let (x, f, c) = (e.arg(0, Ty::F32), e.arg(1, Ty::F32), e.f32(3.0));
        let d = e.bin(Binary::Sub, x, f);
        let m = e.bin(Binary::Div, d, c);
        let root = e.bin(Binary::Sub, f, m);
        let body = Body { exprs: e, root, syms: vec![] };
        let split = affine(&body, 0).expect("linear in x");
        let part = |root: Option<ExprId>| Body { root: root.expect("not trivial"), ..split.body.clone() };
        for (xv, fv) in [(0.0, 1.0), (2.0, 5.0), (-3.5, 0.25)] {
            let sum = at(&part(split.scale), 0.0, fv) * xv + at(&part(split.shift), 0.0, fv);
            assert!((sum - at(&body, xv, fv)).abs() < 1e-12, "at x={xv}, f={fv}");
        }
    }

    #[test]
    fn square_is_not_linear() {
        let mut e = Exprs::new();
        let x = e.arg(0, Ty::F32);
        let root = e.bin(Binary::Mul, x, x);
        assert!(affine(&Body { exprs: e, root, syms: vec![] }, 0).is_none(), "x·x");
    }
}
