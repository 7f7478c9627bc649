//! One form for equal kernels: the arena of a spec reduced to what its roots reach, numbered in the order of first use. Specs that differ
//! only in left-over nodes or in the order of building become equal, and are built once.

use crate::expr::{ExprId, Exprs};
use crate::spec::{KernelSpec, Store};
use std::collections::BTreeMap;

impl KernelSpec {
    /// The same kernel in its one form.
    pub fn compacted(mut self) -> KernelSpec {
        let old = std::mem::take(self.exprs_mut());
        let mut new = Renumbered { old: &old, exprs: Exprs::new(), ids: BTreeMap::new() };
        for root in self.roots_mut() {
            *root = new.copy(*root);
        }
        *self.exprs_mut() = new.exprs;
        self
    }

    fn exprs_mut(&mut self) -> &mut Exprs {
        match self {
            KernelSpec::Map(s) => &mut s.exprs,
            KernelSpec::Row(s) => &mut s.exprs,
            KernelSpec::Matmul(s) => &mut s.exprs,
            KernelSpec::Attention(s) => &mut s.exprs,
            KernelSpec::Recurrent(s) => &mut s.exprs,
            KernelSpec::Scan(s) => &mut s.exprs,
            KernelSpec::Scatter(s) => &mut s.exprs,
            KernelSpec::Sort(s) => &mut s.exprs,
            KernelSpec::Fft(s) => &mut s.exprs,
        }
    }

    /// Every expression that the template evaluates, in a fixed order.
    fn roots_mut(&mut self) -> Vec<&mut ExprId> {
        match self {
            KernelSpec::Map(s) => of_stores(&mut s.stores),
            KernelSpec::Row(s) => {
                let stages = s.stages.iter_mut().map(|stage| &mut stage.value);
                stages.chain(of_stores(&mut s.row_stores)).chain(of_stores(&mut s.element_stores)).collect()
            }
            KernelSpec::Matmul(s) => [&mut s.lhs, &mut s.rhs].into_iter().chain(of_stores(&mut s.stores)).collect(),
            KernelSpec::Attention(s) => {
                let own = [&mut s.query, &mut s.key, &mut s.value, &mut s.score];
                own.into_iter().chain(of_stores(&mut s.stores)).collect()
            }
            KernelSpec::Recurrent(s) => {
                let own = [&mut s.input, &mut s.weight, &mut s.h0].into_iter();
                let own = own.chain(s.bias.as_mut()).chain(s.c0.as_mut());
                own.chain(of_stores(&mut s.step_stores)).chain(of_stores(&mut s.final_stores)).collect()
            }
            KernelSpec::Scan(s) => std::iter::once(&mut s.value).chain(of_stores(&mut s.stores)).collect(),
            KernelSpec::Sort(s) => std::iter::once(&mut s.value).chain(of_stores(&mut s.stores)).collect(),
            KernelSpec::Scatter(s) => of_stores(std::slice::from_mut(&mut s.store)),
            KernelSpec::Fft(s) => [&mut s.re, &mut s.im].into_iter().chain(of_stores(&mut s.stores)).collect(),
        }
    }
}

fn of_stores(stores: &mut [Store]) -> Vec<&mut ExprId> {
    let parts = |s| {
        let Store { index, value, guard, .. }: &mut Store = s;
        [Some(index), Some(value), guard.as_mut()]
    };
    stores.iter_mut().flat_map(parts).flatten().collect()
}

struct Renumbered<'a> {
    old: &'a Exprs,
    exprs: Exprs,
    ids: BTreeMap<ExprId, ExprId>,
}

impl Renumbered<'_> {
    /// Copies a node after its operands, depth first, without recursion: expressions can be deep.
    fn copy(&mut self, root: ExprId) -> ExprId {
        let mut stack = vec![root];
        while let Some(&id) = stack.last() {
            if self.ids.contains_key(&id) {
                stack.pop();
                continue;
            }
            let operands = self.old.operands(id);
            let missing: Vec<ExprId> = operands.iter().rev().filter(|o| !self.ids.contains_key(o)).copied().collect();
            if missing.is_empty() {
                let mapped: Vec<ExprId> = operands.iter().map(|o| self.ids[o]).collect();
                let new = self.exprs.add(Exprs::with_operands(self.old.get(id), &mapped));
                self.ids.insert(id, new);
                stack.pop();
            } else {
                stack.extend(missing);
            }
        }
        self.ids[&root]
    }
}

#[cfg(test)]
mod tests {
    use crate::dtype::{DType, Ty};
    use crate::expr::{Binary, ExprId, Exprs};
    use crate::spec::{Extent, Interface, KernelSpec, MapSpec, Store};

    fn spec(build: impl FnOnce(&mut Exprs) -> (ExprId, ExprId)) -> KernelSpec {
        let mut exprs = Exprs::new();
        let (index, value) = build(&mut exprs);
        let stores = vec![Store { operand: 1, index, value, guard: None }];
        let domain = vec![Extent::Const(4)];
        KernelSpec::Map(MapSpec {
            interface: Interface::default(),
            exprs,
            domain,
            stores,
            per_thread: 1,
            wg: 32,
            turned: None,
        })
    }

    #[test]
    fn order_of_building_and_left_over_nodes_do_not_matter() {
        let a = spec(|e| {
            let i = e.axis(0);
            let x = e.load(0, DType::F32, vec![i]);
            let two = e.f32(2.0);
            (i, e.bin(Binary::Mul, x, two))
        });
        let b = spec(|e| {
            let unused = e.arg(0, Ty::F32);
            let two = e.f32(2.0);
            e.bin(Binary::Add, unused, two);
            let i = e.axis(0);
            let x = e.load(0, DType::F32, vec![i]);
            (i, e.bin(Binary::Mul, x, two))
        });
        assert_ne!(a, b);
        assert_eq!(a.clone().compacted(), b.compacted());
        assert_eq!(a.to_string(), a.compacted().to_string(), "the text is that of the same kernel");
    }
}
