//! Accumulators of reductions and scans: how a combination starts, takes a value, and meets another partial result.

use crate::asm::{Asm, Glsl, Id, Shared, St};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::emit_ops::emit_binary;
use crate::eval::Value;
use crate::expr::Binary;
use crate::reference::identity;
use crate::spec::Combine;

/// One combination over values of one type. Its state is one value, a value and its position, or (f32 sums) a sum and what rounding has
/// added to it so far: rows of a thousand elements would lose three digits in a plain sum, which PyTorch's pairwise sums do not. Values that are
/// there at once, and partial results, are summed in pairs: as exact, in a seventh of the instructions. To an f32 product each rounding adds as
/// much in whatever order, so that it is an unevaluated sum of two floats, the first of them its rounding, until it is stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Accumulator {
    combine: Combine,
    ty: Ty,
    /// In a maximum or minimum of floats NaN may lose.
    numbers: bool,
}

/// A value that a reduction takes: the value, its position, and whether it counts (no word where it surely does).
pub(super) type Taken = (Id, Id, Option<Id>);

impl Accumulator {
    /// `combine` over values of type `ty`.
    pub(super) fn new(combine: Combine, ty: Ty) -> Accumulator {
        Accumulator::of_numbers(combine, ty, false)
    }

    /// As [`Accumulator::new`]; a NaN may lose in a maximum or minimum if only `numbers` count.
    pub(super) fn of_numbers(combine: Combine, ty: Ty, numbers: bool) -> Accumulator {
        Accumulator { combine, ty, numbers: numbers && ty.is_float() }
    }

    fn has_position(self) -> bool {
        matches!(self.combine, Combine::ArgMax | Combine::ArgMin)
    }

    fn is_compensated(self) -> bool {
        self.combine == Combine::Sum && self.ty == Ty::F32
    }

    fn is_double(self) -> bool {
        self.combine == Combine::Prod && self.ty == Ty::F32
    }

    /// Values of the state while an invocation takes values one by one.
    pub(super) fn width(self) -> usize {
        1 + usize::from(self.has_position() || self.is_compensated() || self.is_double())
    }

    /// The state as later stages and other invocations take it: compensations applied.
    pub(super) fn settle(self, asm: &mut Asm, state: &[Id]) -> Vec<Id> {
        if self.is_compensated() {
            return vec![asm.fsub(state[0], state[1])];
        }
        state.to_vec()
    }

    /// A state with a settled one added that comes after it.
    pub(super) fn add(self, asm: &mut Asm, state: &[Id], later: &[Id]) -> Vec<Id> {
        if self.is_compensated() {
            add_compensated(asm, state[0], state[1], later[0])
        } else {
            self.merge(asm, state, later)
        }
    }

    /// State before the first value; `position` is where the invocation starts, which wins while nothing beats the identity.
    pub(super) fn start(self, asm: &mut Asm, position: Id) -> Vec<Id> {
        let value = match identity(self.combine, self.ty) {
            Value::Bool(v) => asm.bool(v),
            Value::I32(v) => asm.u32(v as u32),
            Value::I64(v) => asm.int(St::U64, v),
            Value::F32(v) => asm.f32(v),
            Value::F64(v) => asm.float(St::F64, v),
        };
        match (self.has_position(), self.is_compensated() || self.is_double()) {
            (true, _) => vec![value, position],
            (_, true) => vec![value, asm.f32(0.0)],
            _ => vec![value],
        }
    }

    /// State after one more value.
    pub(super) fn step(self, asm: &mut Asm, state: &[Id], value: Id, position: Id) -> Vec<Id> {
        if self.is_compensated() {
            return add_compensated(asm, state[0], state[1], value);
        }
        if self.is_double() {
            return asm.multiply_pairs([state[0], state[1]], (value, None)).to_vec();
        }
        if !self.has_position() {
            return vec![self.combine_values(asm, state[0], value)];
        }
        let better = self.beats(asm, value, state[0]);
        vec![asm.select(better, value, state[0]), asm.select(better, position, state[1])]
    }

    /// The settled state of some values that are all there; as [`Accumulator::start`] has it where none counts.
    pub(super) fn of_values(self, asm: &mut Asm, values: &[Taken], first_position: Id) -> Vec<Id> {
        let start = self.start(asm, first_position);
        if !self.is_compensated() {
            return values.iter().fold(start, |state, &(value, position, counts)| {
                let next = self.step(asm, &state, value, position);
                let Some(counts) = counts else { return next };
                next.iter().zip(&state).map(|(&new, &old)| asm.select(counts, new, old)).collect()
            });
        }
        let counted: Vec<Vec<Id>> = values
            .iter()
            .map(|&(value, _, counts)| vec![counts.map_or(value, |counts| asm.select(counts, value, start[0]))])
            .collect();
        self.merge_all(asm, counted)
    }

    /// Settled states as one, each two neighbours first.
    ///
    /// # Panics
    /// Where there is none.
    pub(super) fn merge_all(self, asm: &mut Asm, mut states: Vec<Vec<Id>>) -> Vec<Id> {
        while states.len() > 1 {
            let pairs = states.chunks(2);
            states = pairs.map(|p| if let [a, b] = p { self.merge(asm, a, b) } else { p[0].clone() }).collect();
        }
        states.pop().expect("there is a state")
    }

    /// Two values as one.
    pub(super) fn combine_values(self, asm: &mut Asm, a: Id, b: Id) -> Id {
        match self.combine {
            Combine::Max if self.numbers => return asm.glsl2(Glsl::NMax, a, b),
            Combine::Min if self.numbers => return asm.glsl2(Glsl::NMin, a, b),
            _ => {}
        }
        let op = match self.combine {
            Combine::Sum => Binary::Add,
            Combine::Prod => Binary::Mul,
            Combine::Max | Combine::ArgMax => Binary::Max,
            Combine::Min | Combine::ArgMin => Binary::Min,
            Combine::Any => Binary::Or,
            Combine::All => Binary::And,
        };
        emit_binary(asm, op, a, b)
    }

    fn beyond(self, asm: &mut Asm, new: Id, best: Id) -> Id {
        match self.combine {
            Combine::ArgMax => emit_binary(asm, Binary::Lt, best, new),
            _ => emit_binary(asm, Binary::Lt, new, best),
        }
    }

    /// Whether `new` takes the place of `best`: it is beyond it, or the first NaN.
    fn beats(self, asm: &mut Asm, new: Id, best: Id) -> Id {
        let beyond = self.beyond(asm, new, best);
        if !self.ty.is_float() {
            return beyond;
        }
        let new_nan = asm.is_nan(new);
        let best_nan = asm.is_nan(best);
        let best_number = asm.lnot(best_nan);
        let first_nan = asm.land(new_nan, best_number);
        asm.lor(beyond, first_nan)
    }

    /// Two settled results as one; of equal values the earlier position stays.
    pub(super) fn merge(self, asm: &mut Asm, a: &[Id], b: &[Id]) -> Vec<Id> {
        if self.is_double() {
            return asm.multiply_pairs([a[0], a[1]], (b[0], Some(b[1]))).to_vec();
        }
        if !self.has_position() {
            return vec![self.combine_values(asm, a[0], b[0])];
        }
        let b_wins = self.beats(asm, b[0], a[0]);
        let a_wins = self.beats(asm, a[0], b[0]);
        let b_earlier = asm.slt(b[1], a[1]);
        let a_loses = asm.lnot(a_wins);
        let tie_to_b = asm.land(a_loses, b_earlier);
        let take_b = asm.lor(b_wins, tie_to_b);
        vec![asm.select(take_b, b[0], a[0]), asm.select(take_b, b[1], a[1])]
    }

    /// What a later stage sees of a settled state: the position where there is one, else the value.
    pub(super) fn result(self, state: &[Id]) -> Id {
        if self.has_position() { state[1] } else { state[0] }
    }

    /// Types of a settled state in shared memory.
    pub(super) fn memory_types(self) -> Vec<St> {
        let value = if self.ty == Ty::Bool { St::U32 } else { self.ty.into() };
        let second = if self.has_position() { Some(St::U32) } else { self.is_double().then_some(St::F32) };
        [Some(value), second].into_iter().flatten().collect()
    }

    /// Writes a state to shared memory.
    pub(super) fn put(self, cx: &mut Emit<'_>, arrays: &[Shared], slot: Id, state: &[Id]) {
        for (&array, &value) in arrays.iter().zip(state) {
            let value = if cx.asm.st(value) == St::Bool { cx.asm.cast(St::U32, value) } else { value };
            cx.asm.store_shared(array, slot, value);
        }
    }

    /// Reads a state from shared memory.
    pub(super) fn get(self, cx: &mut Emit<'_>, arrays: &[Shared], slot: Id) -> Vec<Id> {
        let mut state: Vec<Id> = arrays.iter().map(|&a| cx.asm.load_shared(a, slot)).collect();
        if self.ty == Ty::Bool {
            state[0] = cx.asm.cast(St::Bool, state[0]);
        }
        state
    }
}

/// Kahan's step: the value less what earlier steps added too much, and what this one does. An infinite sum has nothing to compensate.
fn add_compensated(asm: &mut Asm, sum: Id, excess: Id, value: Id) -> Vec<Id> {
    let corrected = asm.fsub(value, excess);
    let next = asm.fadd(sum, corrected);
    let added = asm.fsub(next, sum);
    let excess = asm.fsub(added, corrected);
    let zero = asm.f32(0.0);
    let limit = asm.f32(f32::MAX);
    let magnitude = asm.fabs(excess);
    let finite = asm.fle(magnitude, limit);
    vec![next, asm.select(finite, excess, zero)]
}
