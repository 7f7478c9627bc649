//! Which nodes of a kernel's expressions need not be more precise than the halves that they end up in: error functions in sums with 1, and exponentials,
//! that only sums, products and quotients lead from to a rounding. PyTorch computes GELU and softmax of halves so, in f32, and rounds once; an error of a
//! few 10⁻⁷ before that rounding is a thousandth of what it does.

use crate::dtype::{DType, Ty};
use crate::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use crate::spec::{Combine, Interface, Stage, Store};

/// By node, whether it is such a function. `others` are the kernel's roots beside the stores, none of which sees another's value.
pub(crate) fn nodes(exprs: &Exprs, stores: &[Store], others: &[ExprId], interface: &Interface) -> Vec<bool> {
    let fine = fine(exprs, stores, others, interface);
    let coarse = |(id, node): (ExprId, &Expr)| {
        let function = matches!(node, Expr::Unary(Unary::Erf | Unary::Exp, a) if exprs.ty(*a) == Ty::F32);
        function && !fine[id.0 as usize]
    };
    exprs.iter().map(coarse).collect()
}

/// As [`nodes`], for a kernel of stages: a sum of exponentials is as coarse as they are, if what sees it may be.
pub(crate) fn nodes_of_stages(exprs: &Exprs, stores: &[Store], stages: &[Stage], interface: &Interface) -> Vec<bool> {
    let sums = |s: &&Stage| s.combine == Combine::Sum && matches!(exprs.get(s.value), Expr::Unary(Unary::Exp, _));
    let mut others: Vec<ExprId> = stages.iter().filter(|s| !sums(s)).map(|s| s.value).collect();
    // Later stages see earlier ones.
    for (i, stage) in stages.iter().enumerate().rev().filter(|(_, s)| sums(s)) {
        let fine = fine(exprs, stores, &others, interface);
        if exprs.iter().any(|(id, e)| matches!(e, Expr::Arg(k, _) if usize::from(*k) == i) && fine[id.0 as usize]) {
            others.push(stage.value);
        }
    }
    nodes(exprs, stores, &others, interface)
}

/// By node, whether a result that is not rounded, or something that makes errors larger, sees it.
fn fine(exprs: &Exprs, stores: &[Store], others: &[ExprId], interface: &Interface) -> Vec<bool> {
    let half = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16);
    let values: Vec<ExprId> = stores.iter().map(|s| s.value).collect();
    let mut fine = vec![false; exprs.len()];
    for s in stores {
        let rounds = half(interface.operands[usize::from(s.operand)].dtype) && !is_erf(exprs, s.value);
        [Some(s.index), s.guard, (!rounds).then_some(s.value)]
            .into_iter()
            .flatten()
            .for_each(|id| fine[id.0 as usize] = true);
    }
    others.iter().for_each(|id| fine[id.0 as usize] = true);
    let mut in_use = vec![false; exprs.len()];
    let roots: Vec<ExprId> = values.iter().chain(others).copied().collect();
    exprs.reachable(&roots).into_iter().for_each(|id| in_use[id.0 as usize] = true);
    // Users stand behind what they use.
    let all: Vec<(ExprId, &Expr)> = exprs.iter().collect();
    for &(id, node) in all.iter().rev().filter(|(id, _)| in_use[id.0 as usize]) {
        let is_fine = fine[id.0 as usize];
        for operand in exprs.operands(id) {
            fine[operand.0 as usize] |= match node {
                Expr::Round(dtype, _) if half(*dtype) => is_erf(exprs, operand),
                _ => is_fine || !keeps_errors(exprs, node, operand),
            };
        }
    }
    fine
}

fn is_erf(exprs: &Exprs, id: ExprId) -> bool {
    matches!(exprs.get(id), Expr::Unary(Unary::Erf, _))
}

/// Whether an error of an operand gives one of the same kind in the result: relative to 1 for the error function, relative to its size for all else.
fn keeps_errors(exprs: &Exprs, node: &Expr, operand: ExprId) -> bool {
    let is_erf = is_erf(exprs, operand);
    let is_exp = matches!(exprs.get(operand), Expr::Unary(Unary::Exp, _));
    let one = |id: ExprId| matches!(exprs.get(id), Expr::Lit(Lit::F32(bits)) if f32::from_bits(*bits) == 1.0);
    match *node {
        Expr::Binary(Binary::Add, a, b) => !(is_erf || is_exp) || one(a) || one(b),
        Expr::Binary(Binary::Mul | Binary::Div, ..) | Expr::Unary(Unary::Neg, _) => !is_erf,
        _ => false,
    }
}

/// Whether `a / b` is something over 1 + eˣ, as in the logistic function: the denominator is off by more than a correctly rounded quotient would take
/// away.
pub(crate) fn is_logistic(exprs: &Exprs, a: ExprId, b: ExprId) -> bool {
    let one = |id: ExprId| matches!(exprs.get(id), Expr::Lit(Lit::F32(bits)) if f32::from_bits(*bits) == 1.0);
    let exp = |id: ExprId| matches!(exprs.get(id), Expr::Unary(Unary::Exp, _));
    let sum = matches!(*exprs.get(b), Expr::Binary(Binary::Add, p, q) if (one(p) && exp(q)) || (exp(p) && one(q)));
    sum && exprs.ty(a) == Ty::F32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Storage;
    use crate::spec::{Access, Operand};

    /// Whether the error function of a sum with 1 is coarse, stored in a type after `then`.
    fn coarse(dtype: DType, then: impl Fn(&mut Exprs, ExprId, ExprId) -> ExprId) -> bool {
        let mut e = Exprs::new();
        let (x, one, index) = (e.arg(0, Ty::F32), e.f32(1.0), e.axis(0));
        let erf = e.un(Unary::Erf, x);
        let sum = e.bin(Binary::Add, one, erf);
        let value = then(&mut e, sum, erf);
        let operand = Operand { dtype, storage: Storage::Native, access: Access::Write, base: 0, via_table: false };
        let interface = Interface { operands: vec![operand], n_bases: 1, symbols: false };
        nodes(&e, &[Store { operand: 0, index, value, guard: None }], &[], &interface)[erf.0 as usize]
    }

    /// Softmax of one row: whether its exponentials are coarse, if this is made of one and the sum of all, and stored.
    fn softmax(dtype: DType, then: impl Fn(&mut Exprs, ExprId, ExprId) -> ExprId) -> bool {
        let mut e = Exprs::new();
        let index = e.axis(0);
        let x = e.load(0, DType::F16, vec![index]);
        let (max, sum) = (e.arg(0, Ty::F32), e.arg(1, Ty::F32));
        let shifted = e.bin(Binary::Sub, x, max);
        let exp = e.un(Unary::Exp, shifted);
        let value = then(&mut e, exp, sum);
        let operand = |dtype, access| Operand { dtype, storage: Storage::Native, access, base: 0, via_table: false };
        let operands = vec![operand(DType::F16, Access::Read), operand(dtype, Access::Write)];
        let interface = Interface { operands, n_bases: 1, symbols: false };
        let stages = [Stage { combine: Combine::Max, value: x }, Stage { combine: Combine::Sum, value: exp }];
        let store = Store { operand: 1, index, value, guard: None };
        nodes_of_stages(&e, &[store], &stages, &interface)[exp.0 as usize]
    }

    #[test]
    fn exponentials_of_a_softmax_are_coarse_where_only_quotients_see_them_and_their_sum() {
        let quotient = |e: &mut Exprs, exp, sum| e.bin(Binary::Div, exp, sum);
        assert!(softmax(DType::F16, quotient) && softmax(DType::BF16, quotient));
        assert!(!softmax(DType::F32, quotient), "nothing is rounded");
        assert!(!softmax(DType::F16, |e, exp, sum| e.bin(Binary::Sub, exp, sum)), "differences make errors larger");
        let logarithm = |e: &mut Exprs, exp, sum| {
            let log = e.un(Unary::Log, sum);
            e.bin(Binary::Mul, exp, log)
        };
        assert!(!softmax(DType::F16, logarithm), "the sum is seen by a logarithm");
    }

    #[test]
    fn only_sums_with_one_on_their_way_to_a_half_are_coarse() {
        let scaled = |e: &mut Exprs, sum: ExprId, _: ExprId| e.bin(Binary::Mul, sum, sum);
        assert!(coarse(DType::F16, scaled) && coarse(DType::BF16, scaled));
        assert!(!coarse(DType::F32, scaled), "nothing is rounded");
        assert!(coarse(DType::F32, |e, sum, _| e.add(Expr::Round(DType::F16, sum))), "it is rounded on the way");
        assert!(!coarse(DType::F16, |_, _, erf| erf), "near 0 the error function itself is small");
        assert!(!coarse(DType::F16, |e, sum, erf| e.bin(Binary::Mul, sum, erf)), "the same");
        assert!(!coarse(DType::F16, |e, sum, _| e.un(Unary::Log, sum)), "a logarithm makes errors larger");
    }

    #[test]
    fn quotients_by_one_and_an_exponential_are_logistic() {
        let mut e = Exprs::new();
        let (x, one, two) = (e.arg(0, Ty::F32), e.f32(1.0), e.f32(2.0));
        let exp = e.un(Unary::Exp, x);
        let (sum, other) = (e.bin(Binary::Add, one, exp), e.bin(Binary::Add, two, exp));
        assert!(is_logistic(&e, one, sum) && is_logistic(&e, x, sum));
        assert!(!is_logistic(&e, one, other) && !is_logistic(&e, one, exp) && !is_logistic(&e, sum, one));
    }
}
