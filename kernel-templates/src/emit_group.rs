//! Elements in groups along an axis, [`FOUR`] f32 or [`GROUP`] where halves are among them: loaded and stored by blocks of 16 bytes where access maps
//! are proven to allow it, and known to the expressions of each element.

use crate::asm::{Id, St};
use crate::dtype::DType;
use crate::emit_expr::{Emit, Kept, dependencies};
use crate::expr::{Expr, ExprId, Exprs};
use crate::spec::{Extent, Interface, Store};
use crate::wide_load::{self, FOUR, GROUP, WideLoad};

/// How groups along an axis are loaded.
#[derive(Clone)]
pub(crate) struct Groups {
    /// Elements of a group.
    pub(crate) size: u32,
    axis: usize,
    loads: Vec<(ExprId, WideLoad, DType)>,
}

impl Groups {
    /// Groups along `axis`, if everything that `roots` load along it comes in whole blocks, or the axis is one group, and all `stores` fill
    /// whole blocks.
    pub(crate) fn of(
        (exprs, interface, extents): (&Exprs, &Interface, &[Extent]),
        roots: &[ExprId],
        stores: &[Store],
        axis: usize,
    ) -> Option<Groups> {
        let groups = Groups::of_fours((exprs, interface, extents), roots, stores, axis);
        let groups = groups.or_else(|| Groups::of_halves((exprs, interface, extents), roots, stores, axis));
        groups.filter(|g| !g.loads.is_empty() || !stores.is_empty())
    }

    fn of_fours(
        (exprs, interface, extents): (&Exprs, &Interface, &[Extent]),
        roots: &[ExprId],
        stores: &[Store],
        axis: usize,
    ) -> Option<Groups> {
        let loads = wide_load::fours(exprs, interface, extents, roots, axis)?;
        let whole = stores.iter().all(|s| wide_load::stores_fours(exprs, interface, extents, s, axis));
        let wide =
            |l: wide_load::FourLoad| (l.load, WideLoad { operand: l.operand, index: l.index, guard: None }, DType::F32);
        whole.then(|| Groups { size: FOUR, axis, loads: loads.into_iter().map(wide).collect() })
    }

    fn of_halves(
        (exprs, interface, extents): (&Exprs, &Interface, &[Extent]),
        roots: &[ExprId],
        stores: &[Store],
        axis: usize,
    ) -> Option<Groups> {
        if !stores.iter().all(|s| wide_load::stores_blocks(exprs, interface, extents, s, axis)) {
            return None;
        }
        let depends = dependencies(exprs);
        // An axis of one group is there for the stores: what does not come in blocks is read element by element.
        let lone = extents[axis] == Extent::Const(GROUP);
        let mut loads = vec![];
        for id in exprs.reachable(roots) {
            let Expr::Load { dtype, .. } = *exprs.get(id) else { continue };
            if depends[id.0 as usize] & (1 << axis) == 0 {
                continue;
            }
            let float = matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
            let found = wide_load::find(exprs, interface, extents, id, axis, dtype).filter(|_| float);
            match found {
                Some(load) => loads.push((id, load, dtype)),
                None if lone => {}
                None => return None,
            }
        }
        Some(Groups { size: GROUP, axis, loads })
    }
}

impl<'s> Emit<'s> {
    /// A scope for each element of the group that starts at `first` along the axis, like `base`: its coordinate is bound, and what comes by
    /// blocks is known.
    pub(crate) fn group_scopes(&mut self, base: &Kept, groups: &Groups, first: Id) -> Vec<Kept> {
        let loaded: Vec<(ExprId, Vec<Id>)> = self.within(base, |cx| {
            cx.bind_axis(groups.axis, first);
            groups.loads.iter().map(|&(id, load, dtype)| (id, cx.load_group(load, dtype, groups.size))).collect()
        });
        (0..groups.size)
            .map(|e| {
                let e_id = self.asm.u32(e);
                let at = self.asm.iadd(first, e_id);
                self.keep_scope(Some(base), |cx| {
                    cx.bind_axis(groups.axis, at);
                    for (id, values) in &loaded {
                        cx.preset(*id, values[e as usize]);
                    }
                })
            })
            .collect()
    }

    /// Executes stores for a group whose elements have these scopes; all values are computed before the first is written.
    pub(crate) fn store_group(
        &mut self,
        (groups, base, first): (&Groups, &Kept, Id),
        scopes: &[&Kept],
        stores: &[Store],
        interface: &Interface,
    ) {
        let values: Vec<Vec<Id>> = stores
            .iter()
            .map(|s| scopes.iter().map(|scope| self.within(scope, |cx| cx.eval(s.value))).collect())
            .collect();
        let places: Vec<(Id, Option<Id>)> = self.within(base, |cx| {
            cx.bind_axis(groups.axis, first);
            stores.iter().map(|s| (cx.eval(s.index), s.guard.map(|g| cx.eval(g)))).collect()
        });
        for ((s, (index, guard)), values) in stores.iter().zip(places).zip(values) {
            let guard = guard.unwrap_or_else(|| self.asm.bool(true));
            self.if_then(guard, &[], |cx| {
                cx.put_group(interface.operands[usize::from(s.operand)].dtype, s.operand, index, &values);
                vec![]
            });
        }
    }

    /// `size` elements by loads of 16 bytes; zeros where their guard is false.
    pub(crate) fn load_group(&mut self, load: WideLoad, dtype: DType, size: u32) -> Vec<Id> {
        let index = self.eval(load.index);
        let per_block = 16 / dtype.size_bytes();
        let shift = self.asm.u32(per_block.trailing_zeros());
        let first = self.asm.shr(index, shift);
        let mut values = vec![];
        for block in 0..size / per_block {
            let block = self.asm.u32(block);
            let at = self.asm.iadd(first, block);
            let block = self.load_operand_block(load.operand, at);
            for word in [0, 1, 2, 3].map(|i| self.asm.extract(block, i)) {
                match dtype {
                    DType::F32 => values.push(self.asm.bitcast(St::F32, word)),
                    _ => values.extend(self.asm.unpack_halves(dtype, word)),
                }
            }
        }
        let Some(guard) = load.guard else { return values };
        let (guard, zero) = (self.eval(guard), self.asm.f32(0.0));
        values.into_iter().map(|v| self.asm.select(guard, v, zero)).collect()
    }

    /// Writes a group as blocks.
    fn put_group(&mut self, dtype: DType, operand: u16, index: Id, values: &[Id]) {
        let words: Vec<Id> = match dtype {
            DType::F32 => values.iter().map(|&v| self.asm.bitcast(St::U32, v)).collect(),
            _ => {
                let rounded: Vec<Id> = values.iter().map(|&v| self.asm.rounded_half(dtype, v)).collect();
                rounded.chunks(2).map(|pair| self.asm.pack_halves(dtype, pair[0], pair[1])).collect()
            }
        };
        let per_block = 16 / dtype.size_bytes();
        let shift = self.asm.u32(per_block.trailing_zeros());
        let first = self.asm.shr(index, shift);
        for (i, block) in (0u32..).zip(words.chunks(4)) {
            let i = self.asm.u32(i);
            let at = self.asm.iadd(first, i);
            let block = self.asm.block_of([block[0], block[1], block[2], block[3]]);
            self.store_operand_block(operand, at, block);
        }
    }
}
