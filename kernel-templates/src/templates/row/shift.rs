//! Maxima that only shift exponentials, as in softmax: whether a NaN may lose in them. A maximum in which NaN wins takes four instructions an
//! element instead of one, and where the exponentials are summed, a NaN makes that sum NaN by itself.

use crate::dtype::Ty;
use crate::expr::{Binary, Expr, ExprId, Exprs, Unary};
use crate::spec::{Combine, RowSpec, Store};
use std::collections::BTreeSet;

/// Whether all that sees the maximum of a stage is NaN where an element is: by a sum over `exp(element − maximum)`.
pub(super) fn nan_may_lose(spec: &RowSpec, stage: usize) -> bool {
    let (exprs, value) = (&spec.exprs, spec.stages[stage].value);
    if spec.stages[stage].combine != Combine::Max || exprs.ty(value) != Ty::F32 {
        return false;
    }
    let find = |wanted: &dyn Fn(&Expr) -> bool| exprs.iter().find(|(_, node)| wanted(node)).map(|(id, _)| id);
    let maximum = find(&|n| matches!(n, Expr::Arg(k, _) if usize::from(*k) == stage));
    let shifted = maximum.and_then(|max| find(&|n| *n == Expr::Binary(Binary::Sub, value, max)));
    let exponential = shifted.and_then(|d| find(&|n| *n == Expr::Unary(Unary::Exp, d)));
    let (Some(maximum), Some(shifted), Some(exponential)) = (maximum, shifted, exponential) else { return false };
    let Some(sum) = spec.stages.iter().position(|s| s.combine == Combine::Sum && s.value == exponential) else {
        return false;
    };
    let shifts = [maximum, shifted, exponential];
    let of_store = |s: &Store| [Some(s.index), Some(s.value), s.guard];
    let stores = spec.row_stores.iter().chain(&spec.element_stores).flat_map(of_store).flatten();
    let stages = spec.stages.iter().enumerate().filter(|(i, _)| *i != sum).map(|(_, s)| s.value);
    let roots: Vec<ExprId> = stores.chain(stages).collect();
    let in_use = exprs.reachable(&[&roots[..], &[exponential]].concat());
    let with_sum = with_argument(exprs, &in_use, sum);
    let sees_shifts = |id: &ExprId| exprs.operands(*id).iter().any(|o| shifts.contains(o));
    let mut users = in_use.iter().filter(|id| !shifts.contains(id) && sees_shifts(id));
    !roots.iter().any(|root| shifts.contains(root)) && users.all(|id| with_sum.contains(id))
}

/// The nodes that are NaN where an argument is. Nodes come in the order in which they are computed.
fn with_argument(exprs: &Exprs, nodes: &[ExprId], argument: usize) -> BTreeSet<ExprId> {
    let mut found = BTreeSet::new();
    for &id in nodes {
        let passes_on = match exprs.get(id) {
            Expr::Arg(k, _) => usize::from(*k) == argument,
            Expr::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Div, a, b) => {
                found.contains(a) || found.contains(b)
            }
            Expr::Unary(Unary::Neg | Unary::Log, a) | Expr::Round(_, a) => found.contains(a),
            _ => false,
        };
        if passes_on {
            found.insert(id);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{DType, Storage};
    use crate::spec::{Access, Extent, Interface, Operand, Stage};

    /// Whether a NaN may lose in the maximum of a softmax, if this is stored of an exponential, the sum, the maximum and an element less it.
    fn may_lose(stored: impl Fn(&mut Exprs, [ExprId; 4]) -> ExprId) -> bool {
        let mut exprs = Exprs::new();
        let index = exprs.axis(1);
        let x = exprs.load(0, DType::F32, vec![index]);
        let (max, sum) = (exprs.arg(0, Ty::F32), exprs.arg(1, Ty::F32));
        let shifted = exprs.bin(Binary::Sub, x, max);
        let exp = exprs.un(Unary::Exp, shifted);
        let value = stored(&mut exprs, [exp, sum, max, shifted]);
        let operand =
            |access| Operand { dtype: DType::F32, storage: Storage::Native, access, base: 0, via_table: false };
        let operands = vec![operand(Access::Read), operand(Access::Write)];
        let spec = RowSpec {
            interface: Interface { operands, n_bases: 1, symbols: false },
            copies: 1,
            exprs,
            outer: vec![Extent::Const(3)],
            inner: vec![Extent::Const(100)],
            stages: vec![Stage { combine: Combine::Max, value: x }, Stage { combine: Combine::Sum, value: exp }],
            row_stores: vec![],
            element_stores: vec![Store { operand: 1, index, value, guard: None }],
            threads_per_row: 32,
            wg: 32,
        };
        assert!(!nan_may_lose(&spec, 1), "a sum is no maximum");
        nan_may_lose(&spec, 0)
    }

    #[test]
    fn a_nan_may_lose_where_the_sum_of_exponentials_is_seen_too() {
        assert!(may_lose(|e, [exp, sum, ..]| e.bin(Binary::Div, exp, sum)), "softmax");
        assert!(may_lose(|e, [_, sum, _, shifted]| {
            let log = e.un(Unary::Log, sum);
            e.bin(Binary::Sub, shifted, log)
        }));
        assert!(!may_lose(|_, [exp, ..]| exp), "exponentials alone");
        assert!(!may_lose(|e, [exp, sum, max, _]| {
            let y = e.bin(Binary::Div, exp, sum);
            let small = e.bin(Binary::Lt, max, y);
            e.select(small, y, max)
        }));
        assert!(
            !may_lose(|e, [exp, sum, ..]| e.bin(Binary::Max, exp, sum)),
            "a maximum may be taken without looking for NaN"
        );
    }
}
