//! From expressions to instructions: evaluates the nodes of an [`Exprs`] arena where a template stands, each at most once per scope.
//!
//! A *scope* is a stretch of code in which some axes and arguments have values. A node is computed in the outermost scope in which
//! all that it depends on is bound and from which its value still reaches the place of use; so what does not change in a loop is computed before
//! it ([`Emit::hoist`]), and the outputs of a register tile share what they have in common.

use crate::asm::{Asm, BlockRun, Buffers, Id, If, Loop, St};
use crate::dtype::Ty;
use crate::emit_ops::{emit_binary, emit_unary};
use crate::eval::{self, Value};
use crate::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use crate::interval::{self, Interval};
use crate::spec::{Extent, Interface, Stage, Store, Target};
use std::collections::BTreeMap;

/// Axes and arguments as one set: bit k is `Axis(k)`, bit 64 + i is `Arg(i)`.
type Deps = u128;

fn axis_bit(k: u8) -> Deps {
    1 << k
}

fn arg_bit(i: u16) -> Deps {
    1 << (64 + u32::from(i))
}

/// One scope: what it binds and what was computed in it.
#[derive(Clone, Default)]
struct Frame {
    /// Values from here do not reach code after the frame (a loop body, a branch).
    is_block: bool,
    bound: Deps,
    bindings: BTreeMap<u32, Id>,
    memo: BTreeMap<ExprId, Id>,
    quotients: BTreeMap<(ExprId, u32), Id>,
}

/// A scope that is entered several times.
pub(crate) struct Kept(Frame);

/// A kernel under construction: assembler, operands, and the scopes of its expressions.
pub(crate) struct Emit<'s> {
    /// The assembler, for what templates compute themselves.
    pub(crate) asm: Asm,
    exprs: &'s Exprs,
    buffers: Buffers,
    deps: Vec<Deps>,
    ranges: Vec<Interval>,
    /// Nodes of which an approximation is enough: see [`crate::coarse`].
    coarse: Vec<bool>,
    frames: Vec<Frame>,
    symbols: BTreeMap<u16, Id>,
}

impl<'s> Emit<'s> {
    /// Starts a kernel. `axes` are the extents behind `Axis(k)`, which tell what is never negative.
    pub(crate) fn new(
        exprs: &'s Exprs,
        interface: &Interface,
        axes: &[Extent],
        target: Target,
        workgroup_size: u32,
    ) -> Emit<'s> {
        let mut asm = Asm::new(target, workgroup_size);
        let buffers = asm.interface(interface);
        let deps = dependencies(exprs);
        let ranges = interval::infer(exprs, axes);
        let coarse = vec![false; exprs.len()];
        Emit { asm, exprs, buffers, deps, ranges, coarse, frames: vec![Frame::default()], symbols: BTreeMap::new() }
    }

    /// Approximates what these stores round to halves, where that is as good; `others` are all other roots of the kernel.
    pub(crate) fn round_coarsely(&mut self, stores: &[Store], others: &[ExprId], interface: &Interface) {
        self.coarse = crate::coarse::nodes(self.exprs, stores, others, interface);
    }

    /// As [`Emit::round_coarsely`], for a kernel of stages.
    pub(crate) fn round_stages_coarsely(&mut self, stores: &[Store], stages: &[Stage], interface: &Interface) {
        self.coarse = crate::coarse::nodes_of_stages(self.exprs, stores, stages, interface);
    }

    /// Ends the kernel.
    pub(crate) fn finish(self) -> crate::asm::Finished {
        self.asm.finish()
    }

    fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("the outermost frame stays")
    }

    fn bind(&mut self, bit: u32, value: Id) {
        let frame = self.frame();
        frame.bound |= 1 << bit;
        frame.bindings.insert(bit, value);
    }

    /// Gives `Axis(k)` a value in the current scope. Bind before evaluating what uses it.
    pub(crate) fn bind_axis(&mut self, k: usize, value: Id) {
        self.bind(k as u32, value);
    }

    /// The value of a bound axis.
    pub(crate) fn axis(&self, k: usize) -> Id {
        self.bound_value(k as u32)
    }

    /// Gives `Arg(i)` a value in the current scope.
    pub(crate) fn bind_arg(&mut self, i: usize, value: Id) {
        self.bind(64 + i as u32, value);
    }

    /// Says what a node is in the current scope, which stands within those that bind what it depends on: for loads that were fetched together.
    pub(crate) fn preset(&mut self, id: ExprId, value: Id) {
        self.frame().memo.insert(id, value);
    }

    /// Runs `body` in a scope of its own without control flow: for rebinding axes of unrolled code.
    pub(crate) fn scope<T>(&mut self, body: impl FnOnce(&mut Emit<'s>) -> T) -> T {
        self.frames.push(Frame::default());
        let result = body(self);
        self.frames.pop();
        result
    }

    /// Runs `body` in a scope like `base` (or an empty one) and keeps what was bound and computed in it, for [`Emit::within`].
    /// A register tile keeps one for each row and column, so that their index arithmetic is done before the loop.
    pub(crate) fn keep_scope(&mut self, base: Option<&Kept>, body: impl FnOnce(&mut Emit<'s>)) -> Kept {
        self.frames.push(base.map(|k| k.0.clone()).unwrap_or_default());
        body(self);
        Kept(self.frames.pop().expect("the scope was pushed here"))
    }

    /// Runs `body` in a copy of a kept scope. Only where the code that filled it dominates.
    pub(crate) fn within<T>(&mut self, kept: &Kept, body: impl FnOnce(&mut Emit<'s>) -> T) -> T {
        self.frames.push(kept.0.clone());
        let result = body(self);
        self.frames.pop();
        result
    }

    /// `for (i = start; i < end; i += step) carried = body(i, carried)`; the final carried values. A count known to be one is no loop.
    pub(crate) fn loop_step(
        &mut self,
        (start, end, step): (Id, Id, Id),
        initial: &[Id],
        body: impl FnOnce(&mut Emit<'s>, Id, &[Id]) -> Vec<Id>,
    ) -> Vec<Id> {
        let known = |id| self.asm.const_bits(id);
        let (Some(first), Some(last), Some(by)) = (known(start), known(end), known(step)) else {
            return self.loop_of((start, end, step), false, initial, body);
        };
        if first >= last {
            return initial.to_vec();
        }
        if first + by >= last {
            return self.scope(|cx| body(cx, start, initial));
        }
        self.loop_of((start, end, step), true, initial, body)
    }

    /// As [`Emit::loop_step`] for a range that is not known; it is not empty if the loop surely `runs`.
    pub(crate) fn loop_of(
        &mut self,
        range: (Id, Id, Id),
        runs: bool,
        initial: &[Id],
        body: impl FnOnce(&mut Emit<'s>, Id, &[Id]) -> Vec<Id>,
    ) -> Vec<Id> {
        if !runs {
            let some = self.asm.ult(range.0, range.1);
            return self.if_then(some, initial, |cx| cx.loop_of(range, true, initial, body));
        }
        let l: Loop = self.asm.loop_begin(range, initial);
        self.frames.push(Frame { is_block: true, ..Frame::default() });
        let values = body(self, l.index, &l.carried);
        self.frames.pop();
        self.asm.loop_end(&l, &values);
        values
    }

    /// `for i in 0..count`.
    pub(crate) fn loop_n(
        &mut self,
        count: Id,
        initial: &[Id],
        body: impl FnOnce(&mut Emit<'s>, Id, &[Id]) -> Vec<Id>,
    ) -> Vec<Id> {
        let (zero, one) = (self.asm.u32(0), self.asm.u32(1));
        self.loop_step((zero, count, one), initial, body)
    }

    /// A loop nest over `extents`, outermost first, binding axes from `first_axis` on. What depends on the outer axes of `roots` only
    /// is computed before each inner loop.
    pub(crate) fn loop_nest(
        &mut self,
        extents: &[Extent],
        first_axis: usize,
        roots: &[ExprId],
        initial: &[Id],
        body: &mut dyn FnMut(&mut Emit<'s>, &[Id]) -> Vec<Id>,
    ) -> Vec<Id> {
        let Some((&extent, inner)) = extents.split_first() else {
            return body(self, initial);
        };
        // Loads are moved only before loops that surely run: an empty one may come with an empty buffer.
        let runs = extents.iter().all(|e| matches!(e, Extent::Const(n) if *n > 0));
        self.hoist(roots, runs);
        let count = self.extent(extent);
        self.loop_n(count, initial, |cx, i, carried| {
            cx.bind_axis(first_axis, i);
            cx.loop_nest(inner, first_axis + 1, roots, carried, body)
        })
    }

    /// `if (cond)`: the values of `then` where it holds, else `other`.
    pub(crate) fn if_then(&mut self, cond: Id, other: &[Id], then: impl FnOnce(&mut Emit<'s>) -> Vec<Id>) -> Vec<Id> {
        match self.asm.const_bits(cond) {
            Some(0) => return other.to_vec(),
            Some(_) => return self.scope(then),
            None => {}
        }
        let branch: If = self.asm.if_begin(cond);
        self.frames.push(Frame { is_block: true, ..Frame::default() });
        let values = then(self);
        self.frames.pop();
        self.asm.if_end(&branch, &values, other)
    }

    /// A size as a value.
    pub(crate) fn extent(&mut self, extent: Extent) -> Id {
        match extent {
            Extent::Const(n) => self.asm.u32(n),
            Extent::Sym(word) => self.symbol(word),
        }
    }

    /// Product of extents; 1 for none.
    pub(crate) fn product(&mut self, extents: &[Extent]) -> Id {
        let one = self.asm.u32(1);
        extents.iter().fold(one, |acc, &e| {
            let e = self.extent(e);
            self.asm.imul(acc, e)
        })
    }

    fn symbol(&mut self, word: u16) -> Id {
        *self.symbols.get(&word).expect("symbols are loaded at the start")
    }

    /// Loads every word of the symbol table that the kernel reads; call once, before any control flow.
    pub(crate) fn load_symbols(&mut self, extents: &[Extent]) {
        let mut words: Vec<u16> =
            extents.iter().filter_map(|e| if let Extent::Sym(w) = e { Some(*w) } else { None }).collect();
        words.extend(self.exprs.iter().filter_map(|(_, e)| if let Expr::Sym(w) = e { Some(*w) } else { None }));
        words.sort_unstable();
        words.dedup();
        for word in words {
            let value = self.asm.symbol(&self.buffers, word);
            self.symbols.insert(word, value);
        }
    }

    /// Row-major coordinates of `linear` (below the product of `extents`, itself below 2³¹).
    pub(crate) fn coordinates(&mut self, linear: Id, extents: &[Extent]) -> Vec<Id> {
        let mut rest = linear;
        let mut coordinates = vec![linear; extents.len()];
        for (k, &extent) in extents.iter().enumerate().rev() {
            // The outermost coordinate is what remains, also when the domain's other extents are all 1.
            let outer_is_one = extents[..k].iter().all(|e| *e == Extent::Const(1));
            (rest, coordinates[k]) = match extent {
                Extent::Const(0 | 1) => (rest, self.asm.u32(0)),
                _ if outer_is_one => (self.asm.u32(0), rest),
                Extent::Const(n) => self.divide_by(rest, n),
                Extent::Sym(_) => {
                    let n = self.extent(extent);
                    let q = self.asm.udiv(rest, n);
                    let whole = self.asm.imul(q, n);
                    (q, self.asm.isub(rest, whole))
                }
            };
        }
        coordinates
    }

    fn divide_by(&mut self, a: Id, n: u32) -> (Id, Id) {
        let q = self.quotient_by(a, n);
        let n = self.asm.u32(n);
        let whole = self.asm.imul(q, n);
        (q, self.asm.isub(a, whole))
    }

    /// `a / n` for 0 ≤ a < 2³¹ and n ≥ 1, by the high half of a product.
    pub(crate) fn quotient_by(&mut self, a: Id, n: u32) -> Id {
        if n == 1 || self.asm.const_bits(a).is_some() {
            let n = self.asm.u32(n);
            return if self.asm.const_bits(a).is_some() { self.asm.udiv(a, n) } else { a };
        }
        let bits = 32 - (n - 1).leading_zeros();
        if n.is_power_of_two() {
            let bits = self.asm.u32(bits);
            return self.asm.shr(a, bits);
        }
        // With 2^(bits−1) < n < 2^bits: ceil(2^(31+bits) / n) fits 32 bits, and its error times a stays below 2^(31+bits) / n.
        let factor = (1u64 << (31 + bits)).div_ceil(u64::from(n)) as u32;
        let factor = self.asm.u32(factor);
        let high = self.asm.umul_high(a, factor);
        let shift = self.asm.u32(bits - 1);
        self.asm.shr(high, shift)
    }

    /// Evaluates all that `roots` need and that the current scope can give; `loads` says whether operand reads count.
    pub(crate) fn hoist(&mut self, roots: &[ExprId], loads: bool) {
        let bound = self.frames.iter().fold(0, |acc, f| acc | f.bound);
        let mut withheld = vec![false; self.exprs.len()];
        for id in self.exprs.reachable(roots) {
            let node = self.exprs.get(id);
            let is_load = matches!(node, Expr::Load { .. }) && !loads;
            let held = is_load || self.exprs.operands(id).iter().any(|o| withheld[o.0 as usize]);
            withheld[id.0 as usize] = held;
            if !held && self.deps[id.0 as usize] & !bound == 0 {
                self.eval(id);
            }
        }
    }

    /// The value of a node here.
    ///
    /// # Panics
    /// When it depends on an axis or argument that is not bound: `check` excludes that.
    pub(crate) fn eval(&mut self, id: ExprId) -> Id {
        let deps = self.deps[id.0 as usize];
        let home = self.home(deps);
        if let Some(&value) = self.frames[home.lowest_valid..].iter().rev().find_map(|f| f.memo.get(&id)) {
            return value;
        }
        let value = self.compute(id);
        self.frames[home.place].memo.insert(id, value);
        value
    }

    /// Where a value of these dependencies may be found, and where it may be kept.
    fn home(&self, deps: Deps) -> Home {
        let lowest_valid = self.frames.iter().rposition(|f| f.bound & deps != 0).unwrap_or(0);
        let block = self.frames.iter().rposition(|f| f.is_block).unwrap_or(0);
        Home { lowest_valid, place: lowest_valid.max(block) }
    }

    fn bound_value(&self, bit: u32) -> Id {
        let value = self.frames.iter().rev().find_map(|f| f.bindings.get(&bit));
        *value.unwrap_or_else(|| panic!("bit {bit} (axis, or 64 + argument) is not bound here"))
    }

    fn compute(&mut self, id: ExprId) -> Id {
        let exprs = self.exprs;
        match *exprs.get(id) {
            Expr::Lit(lit) => self.literal(lit),
            Expr::Axis(k) => self.bound_value(k.into()),
            Expr::Arg(i, _) => self.bound_value(64 + u32::from(i)),
            Expr::Sym(word) => self.symbol(word),
            Expr::Load { operand, ref index, .. } => {
                let index = self.eval(index[0]);
                self.asm.load(&self.buffers, operand, index)
            }
            Expr::Unary(op, a) => {
                let value = self.eval(a);
                match op {
                    Unary::Erf if self.coarse[id.0 as usize] => return self.asm.erf_coarse(value),
                    Unary::Exp if self.coarse[id.0 as usize] => return self.asm.exp_coarse(value),
                    _ => {}
                }
                emit_unary(&mut self.asm, op, value)
            }
            Expr::Binary(op @ (Binary::Div | Binary::Rem), a, b) if exprs.ty(a) == Ty::I32 => self.divide(op, a, b),
            Expr::Binary(Binary::Div, a, b) if crate::coarse::is_logistic(exprs, a, b) => {
                let (x, y) = (self.eval(a), self.eval(b));
                self.asm.fdiv(x, y)
            }
            Expr::Binary(op, a, b) => {
                // A driver would find out such a divisor, too, and then divides by zero as it likes.
                let divisor = if op == Binary::Div { known_float(exprs, b) } else { None };
                let x = self.eval(a);
                let y = match divisor {
                    Some(by) => self.literal(by),
                    None => self.eval(b),
                };
                emit_binary(&mut self.asm, op, x, y)
            }
            Expr::Select(c, a, b) => {
                let (c, a, b) = (self.eval(c), self.eval(a), self.eval(b));
                self.asm.select(c, a, b)
            }
            Expr::Cast(ty, a) => {
                let value = self.eval(a);
                self.asm.cast(ty.into(), value)
            }
            Expr::Round(dtype, a) => {
                let value = self.eval(a);
                self.asm.round_to(dtype, value)
            }
        }
    }

    fn literal(&mut self, lit: Lit) -> Id {
        match lit {
            Lit::Bool(v) => self.asm.bool(v),
            Lit::I32(v) => self.asm.u32(v as u32),
            Lit::I64(v) => self.asm.int(St::U64, v),
            Lit::F32(bits) => self.asm.constant(St::F32, bits.into()),
            Lit::F64(bits) => self.asm.constant(St::F64, bits),
        }
    }

    /// i32 quotient or remainder, cheap where the operands are known not to be negative.
    fn divide(&mut self, op: Binary, a: ExprId, b: ExprId) -> Id {
        let (x, y) = (self.eval(a), self.eval(b));
        let unsigned = self.ranges[a.0 as usize].is_non_negative() && self.ranges[b.0 as usize].is_non_negative();
        let quotient = match (unsigned, self.asm.const_bits(y)) {
            (true, Some(n)) if n != 0 => self.shared_quotient(a, b, x, n as u32),
            (true, None) if self.ranges[b.0 as usize].low > 0 => self.asm.udiv(x, y),
            _ => self.asm.sdiv(x, y),
        };
        if op == Binary::Div {
            return quotient;
        }
        let whole = self.asm.imul(quotient, y);
        self.asm.isub(x, whole)
    }

    /// `a / n`, shared by the quotient and the remainder of the same operands.
    fn shared_quotient(&mut self, a: ExprId, b: ExprId, x: Id, n: u32) -> Id {
        let home = self.home(self.deps[a.0 as usize] | self.deps[b.0 as usize]);
        if let Some(&q) = self.frames[home.lowest_valid..].iter().rev().find_map(|f| f.quotients.get(&(a, n))) {
            return q;
        }
        let q = self.quotient_by(x, n);
        self.frames[home.place].quotients.insert((a, n), q);
        q
    }

    /// Executes stores in order, each under its guard. All values are read before the first is written.
    pub(crate) fn stores(&mut self, stores: &[Store]) {
        let mut ready = Vec::with_capacity(stores.len());
        for s in stores {
            ready.push((self.eval(s.index), self.eval(s.value), s.guard.map(|g| self.eval(g))));
        }
        for (s, (index, value, guard)) in stores.iter().zip(ready) {
            match guard {
                None => self.asm.store(&self.buffers, s.operand, index, value),
                Some(guard) => {
                    self.if_then(guard, &[], |cx| {
                        cx.asm.store(&cx.buffers, s.operand, index, value);
                        vec![]
                    });
                }
            }
        }
    }

    /// Takes the operands of a copy, whose number is a word, for those of the first of so many.
    pub(crate) fn take_operands(&mut self, copy: Id, copies: u32) {
        self.asm.take_operands(&mut self.buffers, copy, copies);
    }

    /// Element of an operand at a computed index, for templates that read what they write.
    pub(crate) fn load(&mut self, operand: u16, index: Id) -> Id {
        self.asm.load(&self.buffers, operand, index)
    }

    /// 16 bytes of an operand as four words; `index` counts such blocks.
    pub(crate) fn load_operand_block(&mut self, operand: u16, index: Id) -> Id {
        self.asm.load_operand_block(&mut self.buffers, operand, index)
    }

    /// As [`Emit::load_operand_block`], of blocks of two or four words.
    pub(crate) fn load_operand_words(&mut self, operand: u16, index: Id, n_words: u32) -> Id {
        self.asm.load_operand_words(&mut self.buffers, operand, index, n_words)
    }

    /// The blocks of an operand from block `index` on.
    pub(crate) fn block_run(&mut self, operand: u16, index: Id) -> BlockRun {
        self.asm.block_run(&mut self.buffers, operand, index)
    }

    /// Block `distance` of a run.
    pub(crate) fn load_run_block(&mut self, run: BlockRun, distance: u32) -> Id {
        self.asm.load_run_block(&mut self.buffers, run, distance)
    }

    /// Writes 16 bytes of an operand.
    pub(crate) fn store_operand_block(&mut self, operand: u16, index: Id, value: Id) {
        self.store_operand_words(operand, index, (value, 4));
    }

    /// Writes a block of so many words of an operand.
    pub(crate) fn store_operand_words(&mut self, operand: u16, index: Id, block: (Id, u32)) {
        self.asm.store_operand_words(&mut self.buffers, operand, index, block);
    }

    /// Writes an element.
    pub(crate) fn store(&mut self, operand: u16, index: Id, value: Id) {
        self.asm.store(&self.buffers, operand, index, value);
    }
}

/// See [`Emit::home`]. Frames from `lowest_valid` on may hold the value; `place` is where a new one goes.
struct Home {
    lowest_valid: usize,
    place: usize,
}

/// What a float that is computed from literals alone comes to.
fn known_float(exprs: &Exprs, id: ExprId) -> Option<Lit> {
    match known(exprs, id)? {
        Value::F32(v) => Some(Lit::F32(v.to_bits())),
        Value::F64(v) => Some(Lit::F64(v.to_bits())),
        _ => None,
    }
}

fn known(exprs: &Exprs, id: ExprId) -> Option<Value> {
    Some(match *exprs.get(id) {
        Expr::Lit(lit) => lit.into(),
        Expr::Unary(op, a) => eval::unary(op, known(exprs, a)?),
        Expr::Binary(op, a, b) => eval::binary(op, known(exprs, a)?, known(exprs, b)?),
        Expr::Cast(ty, a) => known(exprs, a)?.cast(ty),
        Expr::Round(dtype, a) => known(exprs, a)?.round(dtype),
        Expr::Select(..) | Expr::Axis(_) | Expr::Arg(..) | Expr::Sym(_) | Expr::Load { .. } => return None,
    })
}

/// Per node, the axes and arguments that it depends on.
pub(crate) fn dependencies(exprs: &Exprs) -> Vec<Deps> {
    let mut deps: Vec<Deps> = Vec::with_capacity(exprs.len());
    for (id, node) in exprs.iter() {
        let own = match node {
            Expr::Axis(k) => axis_bit(*k),
            Expr::Arg(i, _) => arg_bit(*i),
            _ => 0,
        };
        let below = exprs.operands(id).iter().fold(0, |acc, o| acc | deps[o.0 as usize]);
        deps.push(own | below);
    }
    deps
}
