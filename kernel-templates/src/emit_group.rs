//! Elements in groups along an axis, [`FOUR`] f32 or [`GROUP`] where halves are among them: loaded and stored by blocks of 16 bytes where access maps
//! are proven to allow it, and known to the expressions of each element. Halves whose lines are of whole blocks of 8 bytes only come in such, [`FOUR`]
//! at a time.

use crate::asm::{Id, St};
use crate::dtype::DType;
use crate::emit_expr::{Emit, Kept, dependencies};
use crate::expr::{ExprId, Exprs};
use crate::spec::{Extent, Interface, Store};
use crate::wide_load::{self, FOUR, GROUP, WideLoad};

/// How groups along an axis are loaded.
#[derive(Clone)]
pub(crate) struct Groups {
    /// Elements of a group.
    pub(crate) size: u32,
    axis: usize,
    loads: Vec<(ExprId, WideLoad, DType)>,
    /// What is the same for all elements of a group though it names the axis: a row's number, a channel's scale.
    uniform: Vec<ExprId>,
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
        let groups = [GROUP, FOUR].into_iter().fold(groups, |found, size| {
            found.or_else(|| Groups::of_half_lines((exprs, interface, extents), roots, (stores, &[]), (axis, size)))
        });
        groups.filter(|g| !g.loads.is_empty() || !stores.is_empty())
    }

    /// As [`Groups::of`] for groups of so many halves, where the loads that are `known` come from elsewhere.
    pub(crate) fn of_half_lines(
        at: (&Exprs, &Interface, &[Extent]),
        roots: &[ExprId],
        (stores, known): (&[Store], &[ExprId]),
        (axis, size): (usize, u32),
    ) -> Option<Groups> {
        if !stores.iter().all(|s| wide_load::stores_groups(at, s, (axis, size))) {
            return None;
        }
        // An axis of one group is there for the stores: what does not come in blocks is read element by element.
        let lone = size == GROUP && at.2[axis] == Extent::Const(GROUP);
        let depends = dependencies(at.0);
        let names_axis = |id: ExprId| depends[id.0 as usize] & (1 << axis) != 0 && !known.contains(&id);
        let loads = wide_load::whole_loads(at, roots, (axis, size), &names_axis, lone)?;
        Some(Groups::with((at.0, at.2), roots, (axis, size), loads))
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
        let loads = loads.into_iter().map(wide).collect();
        whole.then(|| Groups::with((exprs, extents), roots, (axis, FOUR), loads))
    }

    fn with(
        at: (&Exprs, &[Extent]),
        roots: &[ExprId],
        (axis, size): (usize, u32),
        loads: Vec<(ExprId, WideLoad, DType)>,
    ) -> Groups {
        let depends = dependencies(at.0);
        let names_axis = |id: ExprId| depends[id.0 as usize] & (1 << axis) != 0;
        let wide: Vec<ExprId> = loads.iter().map(|l| l.0).collect();
        let uniform = wide_load::uniform(at, (roots, &wide), (axis, size), &names_axis);
        Groups { size, axis, loads, uniform }
    }
}

impl<'s> Emit<'s> {
    /// A scope for each element of the group that starts at `first` along the axis, like `base`: its coordinate is bound, and what comes by
    /// blocks is known.
    pub(crate) fn group_scopes(&mut self, base: &Kept, groups: &Groups, first: Id) -> Vec<Kept> {
        let mut uniform: Vec<(ExprId, Id)> = vec![];
        let loaded: Vec<(ExprId, Vec<Id>)> = self.within(base, |cx| {
            cx.bind_axis(groups.axis, first);
            uniform.extend(groups.uniform.iter().map(|&id| (id, cx.eval(id))));
            groups.loads.iter().map(|&(id, load, dtype)| (id, cx.load_group(load, dtype, groups.size))).collect()
        });
        (0..groups.size)
            .map(|e| {
                let e_id = self.asm.u32(e);
                let at = self.asm.iadd(first, e_id);
                self.keep_scope(Some(base), |cx| {
                    cx.bind_axis(groups.axis, at);
                    uniform.iter().for_each(|&(id, value)| cx.preset(id, value));
                    loaded.iter().for_each(|(id, values)| cx.preset(*id, values[e as usize]));
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

    /// `size` elements by loads of 16 bytes, or of 8 where that is all; zeros where their guard is false.
    pub(crate) fn load_group(&mut self, load: WideLoad, dtype: DType, size: u32) -> Vec<Id> {
        let index = self.eval(load.index);
        let n_words = block_words(dtype, size);
        let first = self.first_block(index, dtype, n_words);
        let mut values = vec![];
        for block in 0..size * dtype.size_bytes() / (4 * n_words) {
            let block = self.asm.u32(block);
            let at = self.asm.iadd(first, block);
            let block = self.load_operand_words(load.operand, at, n_words);
            for i in 0..n_words {
                let word = self.asm.extract(block, i);
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
        let n_words = block_words(dtype, values.len() as u32);
        let first = self.first_block(index, dtype, n_words);
        for (i, block) in (0u32..).zip(words.chunks(n_words as usize)) {
            let i = self.asm.u32(i);
            let at = self.asm.iadd(first, i);
            let block = self.asm.words(block);
            self.store_operand_words(operand, at, (block, n_words));
        }
    }

    /// Number of the block of so many words that starts at an element.
    fn first_block(&mut self, index: Id, dtype: DType, n_words: u32) -> Id {
        let shift = self.asm.u32((4 * n_words / dtype.size_bytes()).trailing_zeros());
        self.asm.shr(index, shift)
    }
}

/// Words of the blocks that so many elements come in.
fn block_words(dtype: DType, size: u32) -> u32 {
    (size * dtype.size_bytes() / 4).min(4)
}
