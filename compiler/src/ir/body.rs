//! Bodies of `Map` and `Compute`: normal form, and rewriting from one arena into another.

use super::dim::Dim;
use super::op::Body;
use jvc_kernels::expr::{Expr, ExprId, Exprs};

impl Body {
    /// The same body with its nodes in depth-first order from the root, nothing unreachable, and each size listed once in the order
    /// of first use. Bodies that compute the same thing in the same way are then equal.
    pub fn normalize(&self) -> Body {
        let mut out = Body { exprs: Exprs::new(), root: ExprId(0), syms: vec![] };
        out.root = out.graft(self, self.root, &mut |_, _| None);
        out
    }

    /// Copies the node `root` of `from` (and what it reaches) into this body, depth first. `replace` may give the id, here, that stands
    /// for a node there; it sees the ids of its operands' copies only through its own captures, so it is meant for leaves.
    pub fn graft(
        &mut self,
        from: &Body,
        root: ExprId,
        replace: &mut dyn FnMut(&mut Body, &Expr) -> Option<ExprId>,
    ) -> ExprId {
        let mut copies: Vec<Option<ExprId>> = vec![None; from.exprs.len()];
        let mut stack = vec![(root, false)];
        while let Some((id, ready)) = stack.pop() {
            if copies[id.0 as usize].is_some() {
                continue;
            }
            let operands = from.exprs.operands(id);
            if !ready {
                stack.push((id, true));
                stack.extend(operands.iter().rev().map(|&o| (o, false)));
                continue;
            }
            let expr = from.exprs.get(id);
            let copy = replace(self, expr).unwrap_or_else(|| match expr {
                Expr::Sym(w) => self.sym(&from.syms[*w as usize]),
                _ => {
                    let ops: Vec<ExprId> =
                        operands.iter().map(|o| copies[o.0 as usize].expect("operands are copied first")).collect();
                    self.exprs.add(Exprs::with_operands(expr, &ops))
                }
            });
            copies[id.0 as usize] = Some(copy);
        }
        copies[root.0 as usize].expect("the root is copied")
    }

    /// The expression of a size: a literal where it is one.
    pub fn sym(&mut self, dim: &Dim) -> ExprId {
        let at = self.syms.iter().position(|d| d == dim).unwrap_or_else(|| {
            self.syms.push(dim.clone());
            self.syms.len() - 1
        });
        self.exprs.add(Expr::Sym(at as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jvc_kernels::dtype::Ty;
    use jvc_kernels::expr::Binary;

    #[test]
    fn normal_form_forgets_insertion_order_and_unreachable_nodes() {
        let mut e = Exprs::new();
        let (a, b) = (e.arg(0, Ty::F32), e.arg(1, Ty::F32));
        let root = e.bin(Binary::Sub, a, b);
        let one = Body { exprs: e, root, syms: vec![] };
        let mut e = Exprs::new();
        let (b, _unused, a) = (e.arg(1, Ty::F32), e.f32(3.0), e.arg(0, Ty::F32));
        let root = e.bin(Binary::Sub, a, b);
        let two = Body { exprs: e, root, syms: vec![Dim::from(1)] };
        assert_ne!(one, two);
        assert_eq!(one.normalize(), two.normalize());
        assert_eq!(one.normalize(), one.normalize().normalize());
    }
}
