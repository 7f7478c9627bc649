//! Structured control flow: counted loops with carried values, conditions that yield values, early return, barriers.

use super::{Asm, Id, St};
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{LoopControl, Op, Scope, SelectionControl};

/// A loop between [`Asm::loop_begin`] and [`Asm::loop_end`].
pub(crate) struct Loop {
    /// The running index.
    pub(crate) index: Id,
    /// Carried values at the start of an iteration.
    pub(crate) carried: Vec<Id>,
    step: Id,
    end: Id,
    header_block: usize,
    header: Id,
    next: Id,
    merge: Id,
    entry: Id,
    initial: Vec<Id>,
    start: Id,
}

/// A condition between [`Asm::if_begin`] and [`Asm::if_end`].
pub(crate) struct If {
    entry: Id,
    merge: Id,
}

impl Asm {
    /// Opens `index = start; do … while ((index += step) < end)` (unsigned) with values carried from `initial`: for ranges that are not
    /// empty.
    ///
    /// Tested at its end, which besides saving a branch keeps Mesa's CPU driver inside buffers: that walks through a loop's body once
    /// more after the last lane has left at the top, and loads from uniform addresses without asking for lanes.
    pub(crate) fn loop_begin(&mut self, (start, end, step): (Id, Id, Id), initial: &[Id]) -> Loop {
        let entry = self.current_label();
        let [header, body, next, merge] = std::array::from_fn(|_| self.fresh(St::Other, 0));
        self.push_void(Op::Branch, vec![Operand::IdRef(header)]);
        self.open_labelled(header);
        let header_block = self.blocks.len() - 1;
        let index_ty = self.type_of(start);
        let index = self.fresh(St::U32, index_ty);
        let carried = initial.iter().map(|&v| (self.st(v), self.type_of(v))).collect::<Vec<_>>();
        let carried = carried.into_iter().map(|(st, ty)| self.fresh(st, ty)).collect();
        let control = if self.rolled { LoopControl::DONT_UNROLL } else { LoopControl::NONE };
        let merge_operands = vec![Operand::IdRef(merge), Operand::IdRef(next), Operand::LoopControl(control)];
        self.push_void(Op::LoopMerge, merge_operands);
        self.push_void(Op::Branch, vec![Operand::IdRef(body)]);
        self.open_labelled(body);
        Loop { index, carried, step, end, header_block, header, next, merge, entry, initial: initial.to_vec(), start }
    }

    /// Asks the driver to leave the loops that begin from here on as they are: what they hold is laid out as far as it should be, and more of
    /// it would not fit the registers.
    pub(crate) fn keep_loops(&mut self) {
        self.rolled = true;
    }

    /// Closes a loop; `values` are the carried ones at the end of an iteration, and after the loop those of the last one.
    pub(crate) fn loop_end(&mut self, l: &Loop, values: &[Id]) {
        assert_eq!(values.len(), l.initial.len(), "a loop yields as many values as it carries");
        self.push_void(Op::Branch, vec![Operand::IdRef(l.next)]);
        self.open_labelled(l.next);
        let index = self.iadd(l.index, l.step);
        let go_on = self.ult(index, l.end);
        let branch = vec![Operand::IdRef(go_on), Operand::IdRef(l.header), Operand::IdRef(l.merge)];
        self.push_void(Op::BranchConditional, branch);
        let mut phis = vec![self.phi(l.index, &[(l.start, l.entry), (index, l.next)])];
        for ((&phi, &first), &last) in l.carried.iter().zip(&l.initial).zip(values) {
            phis.push(self.phi(phi, &[(first, l.entry), (last, l.next)]));
        }
        self.blocks[l.header_block].instructions.splice(0..0, phis);
        self.open_labelled(l.merge);
    }

    fn phi(&self, result: Id, incoming: &[(Id, Id)]) -> Instruction {
        let operands = incoming.iter().flat_map(|&(v, b)| [Operand::IdRef(v), Operand::IdRef(b)]).collect();
        Instruction::new(Op::Phi, Some(self.type_of(result)), Some(result), operands)
    }

    /// Opens `if (cond)`.
    pub(crate) fn if_begin(&mut self, cond: Id) -> If {
        let entry = self.current_label();
        let [then, merge] = std::array::from_fn(|_| self.fresh(St::Other, 0));
        let control = Operand::SelectionControl(SelectionControl::NONE);
        self.push_void(Op::SelectionMerge, vec![Operand::IdRef(merge), control]);
        let branch = vec![Operand::IdRef(cond), Operand::IdRef(then), Operand::IdRef(merge)];
        self.push_void(Op::BranchConditional, branch);
        self.open_labelled(then);
        If { entry, merge }
    }

    /// Closes an `if`: gives `then[i]` where the condition held, else `other[i]` (values from before the `if`).
    pub(crate) fn if_end(&mut self, cond: &If, then: &[Id], other: &[Id]) -> Vec<Id> {
        assert_eq!(then.len(), other.len(), "both sides of an if yield the same values");
        let last = self.current_label();
        self.push_void(Op::Branch, vec![Operand::IdRef(cond.merge)]);
        self.open_labelled(cond.merge);
        let pairs = then.iter().zip(other);
        pairs
            .map(|(&t, &o)| {
                let operands = [(t, last), (o, cond.entry)];
                let operands = operands.iter().flat_map(|&(v, b)| [Operand::IdRef(v), Operand::IdRef(b)]).collect();
                self.push(Op::Phi, self.type_of(t), operands)
            })
            .collect()
    }

    /// Returns from the kernel where `cond` holds. Where barriers follow, `cond` must be uniform in the workgroup.
    pub(crate) fn return_if(&mut self, cond: Id) {
        let [leave, stay] = std::array::from_fn(|_| self.fresh(St::Other, 0));
        let control = Operand::SelectionControl(SelectionControl::NONE);
        self.push_void(Op::SelectionMerge, vec![Operand::IdRef(stay), control]);
        let branch = vec![Operand::IdRef(cond), Operand::IdRef(leave), Operand::IdRef(stay)];
        self.push_void(Op::BranchConditional, branch);
        self.open_labelled(leave);
        self.push_void(Op::Return, vec![]);
        self.open_labelled(stay);
    }

    /// Workgroup barrier that orders workgroup memory.
    pub(crate) fn barrier(&mut self) {
        self.barrier_of(Scope::Workgroup);
    }
}
