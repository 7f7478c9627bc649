//! Recurrent layers: one workgroup per batch element runs all time steps, the state in shared memory.
//!
//! ```text
//! parallel for b (workgroup):
//!     h[u] = h0(b, u); c[u] = c0(b, u)
//!     for t in order:
//!         for unit u of this invocation:
//!             a[g] = Σ_k weight(g·H + u, k)·h[k]          (+ bias), g over the gates
//!             h'[u], c[u] = cell(input(t, b, g·H + u), a)
//!         barrier; h = h'; barrier; step stores
//!     final stores
//! ```
//!
//! Traffic: the recurrent weight once a step (from cache), inputs and results once.

use crate::asm::{Id, Shared, St};
use crate::check::{BuildError, Check, Scope, common_limits, shape};
use crate::dtype::Ty;
use crate::emit_expr::Emit;
use crate::eval::{Runner, Tape, Value};
use crate::expr::Unary;
use crate::host::{Memory, Point};
use crate::limits::{Limits, Reject};
use crate::reference::StoreTape;
use crate::spec::{Cell, Extent, Grid, GridFactor, Kernel, RecurrentSpec, Target};
use crate::templates::kernel;

/// Units of one invocation are laid out in code.
const MAX_UNITS_PER_INVOCATION: u32 = 16;

fn gates(cell: Cell) -> u32 {
    match cell {
        Cell::Lstm => 4,
        Cell::Gru => 3,
        Cell::RnnTanh | Cell::RnnRelu => 1,
    }
}

/// Whether a device can run it.
///
/// # Errors
/// The first limit that it exceeds.
pub fn constraints(spec: &RecurrentSpec, limits: &Limits) -> Result<(), Reject> {
    common_limits(&spec.interface, &spec.exprs, spec.wg, limits)?;
    let per_invocation = spec.hidden.div_ceil(spec.wg.max(1));
    if per_invocation > MAX_UNITS_PER_INVOCATION {
        let reason = format!("a recurrent layer of {} units in workgroups of {}", spec.hidden, spec.wg);
        return Err(Reject::Shape { reason });
    }
    let need = spec.hidden * 8;
    if need > limits.shared_bytes { Err(Reject::Shared { need, limit: limits.shared_bytes }) } else { Ok(()) }
}

/// Builds the kernel.
///
/// # Errors
/// When the spec contradicts itself.
pub fn build(spec: &RecurrentSpec, target: Target) -> Result<Kernel, BuildError> {
    check(spec)?;
    let axes = [spec.steps, spec.batch, Extent::Const(gates(spec.cell) * spec.hidden), Extent::Const(spec.hidden)];
    let mut cx = Emit::new(&spec.exprs, &spec.interface, &axes, target, spec.wg);
    cx.load_symbols(&[spec.steps, spec.batch]);
    let batch = cx.asm.workgroup_index();
    let n_batch = cx.extent(spec.batch);
    let beyond = cx.asm.ule(n_batch, batch);
    cx.asm.return_if(beyond);
    cx.bind_axis(1, batch);
    let h = cx.asm.shared_array(St::F32, spec.hidden);
    let c = spec.c0.map(|_| cx.asm.shared_array(St::F32, spec.hidden));
    let layer = Layer { spec, h, c };
    layer.load_states(&mut cx);
    let steps = cx.extent(spec.steps);
    cx.loop_n(steps, &[], |cx, i, _| {
        let t = if spec.reverse { reversed(cx, steps, i) } else { i };
        cx.bind_axis(0, t);
        layer.step(cx);
        vec![]
    });
    layer.store_states(&mut cx);
    let grid = GridFactor { extents: vec![spec.batch], divisor: 1 };
    Ok(kernel(cx, Grid::linear(vec![grid])))
}

fn check(spec: &RecurrentSpec) -> Result<(), BuildError> {
    if spec.wg == 0 || spec.hidden == 0 || (spec.cell == Cell::Lstm) != spec.c0.is_some() {
        let reason =
            format!("recurrent: wg={} hidden={} cell state given: {}", spec.wg, spec.hidden, spec.c0.is_some());
        return Err(shape(reason));
    }
    let check = Check { interface: &spec.interface, exprs: &spec.exprs };
    check.interface(&[spec.steps, spec.batch])?;
    let value = |what, axes: &[u8], id| check.value(Scope { what, axes, args: &[] }, id, Ty::F32);
    value("input projection", &[0, 1, 2], spec.input)?;
    value("recurrent weight", &[2, 3], spec.weight)?;
    value("initial hidden state", &[1, 2], spec.h0)?;
    spec.bias.map_or(Ok(()), |b| value("recurrent bias", &[2], b))?;
    spec.c0.map_or(Ok(()), |c| value("initial cell state", &[1, 2], c))?;
    check.stores(Scope { what: "step", axes: &[0, 1, 2], args: &[Ty::F32] }, &spec.step_stores)?;
    check.stores(Scope { what: "final", axes: &[1, 2], args: &[Ty::F32, Ty::F32] }, &spec.final_stores)
}

fn reversed(cx: &mut Emit<'_>, steps: Id, i: Id) -> Id {
    let one = cx.asm.u32(1);
    let last = cx.asm.isub(steps, one);
    cx.asm.isub(last, i)
}

/// A layer's shared state.
struct Layer<'a> {
    spec: &'a RecurrentSpec,
    h: Shared,
    c: Option<Shared>,
}

impl<'a> Layer<'a> {
    /// Runs `body` for each unit of this invocation that exists.
    fn units(&self, cx: &mut Emit<'a>, mut body: impl FnMut(&mut Emit<'a>, Id)) {
        for slot in 0..self.spec.hidden.div_ceil(self.spec.wg) {
            let (unit, exists) = self.unit(cx, slot);
            cx.if_then(exists, &[], |cx| {
                body(cx, unit);
                vec![]
            });
        }
    }

    fn unit(&self, cx: &mut Emit<'a>, slot: u32) -> (Id, Id) {
        let local = cx.asm.local_index();
        let first = cx.asm.u32(slot * self.spec.wg);
        let unit = cx.asm.iadd(first, local);
        let hidden = cx.asm.u32(self.spec.hidden);
        (unit, cx.asm.ult(unit, hidden))
    }

    fn load_states(&self, cx: &mut Emit<'a>) {
        self.units(cx, |cx, unit| {
            cx.bind_axis(2, unit);
            let h = cx.eval(self.spec.h0);
            cx.asm.store_shared(self.h, unit, h);
            if let (Some(c), Some(c0)) = (self.c, self.spec.c0) {
                let value = cx.eval(c0);
                cx.asm.store_shared(c, unit, value);
            }
        });
        cx.asm.barrier();
    }

    fn step(&self, cx: &mut Emit<'a>) {
        // New states wait in registers until every invocation has read the old ones.
        let zero = cx.asm.f32(0.0);
        let n_slots = self.spec.hidden.div_ceil(self.spec.wg);
        let new: Vec<(Id, Id, Vec<Id>)> = (0..n_slots)
            .map(|slot| {
                let (unit, exists) = self.unit(cx, slot);
                let states = cx.if_then(exists, &[zero, zero], |cx| self.cell(cx, unit));
                (unit, exists, states)
            })
            .collect();
        cx.asm.barrier();
        for (unit, exists, states) in new {
            cx.if_then(exists, &[], |cx| {
                cx.asm.store_shared(self.h, unit, states[0]);
                if let Some(c) = self.c {
                    cx.asm.store_shared(c, unit, states[1]);
                }
                cx.bind_axis(2, unit);
                cx.bind_arg(0, states[0]);
                cx.stores(&self.spec.step_stores);
                vec![]
            });
        }
        cx.asm.barrier();
    }

    /// `[h', c']` of a unit; c' is 0 for cells without one.
    fn cell(&self, cx: &mut Emit<'a>, unit: Id) -> Vec<Id> {
        let n = gates(self.spec.cell);
        let rows: Vec<Id> = (0..n)
            .map(|g| {
                let first = cx.asm.u32(g * self.spec.hidden);
                cx.asm.iadd(first, unit)
            })
            .collect();
        let products = self.products(cx, &rows);
        let inputs: Vec<Id> = rows.iter().map(|&row| self.at_row(cx, row, |cx| cx.eval(self.spec.input))).collect();
        let sum = |cx: &mut Emit<'a>, g: usize| cx.asm.fadd(inputs[g], products[g]);
        let zero = cx.asm.f32(0.0);
        match self.spec.cell {
            Cell::Lstm => {
                let gate: Vec<Id> = (0..4).map(|g| sum(cx, g)).collect();
                self.lstm(cx, unit, &gate)
            }
            Cell::Gru => {
                let (r, z) = (sum(cx, 0), sum(cx, 1));
                let (r, z) = (sigmoid(cx, r), sigmoid(cx, z));
                let old = cx.asm.load_shared(self.h, unit);
                let candidate = cx.asm.mul_add(r, products[2], inputs[2]);
                let candidate = elementary(cx, Unary::Tanh, candidate);
                // (1 − z)·n + z·h, as n + z·(h − n).
                let difference = cx.asm.fsub(old, candidate);
                vec![cx.asm.mul_add(z, difference, candidate), zero]
            }
            Cell::RnnTanh => {
                let a = sum(cx, 0);
                vec![elementary(cx, Unary::Tanh, a), zero]
            }
            Cell::RnnRelu => {
                let a = sum(cx, 0);
                vec![cx.asm.fmax_nan(a, zero), zero]
            }
        }
    }

    fn lstm(&self, cx: &mut Emit<'a>, unit: Id, gate: &[Id]) -> Vec<Id> {
        let (input, forget) = (sigmoid(cx, gate[0]), sigmoid(cx, gate[1]));
        let candidate = elementary(cx, Unary::Tanh, gate[2]);
        let output = sigmoid(cx, gate[3]);
        let old = cx.asm.load_shared(self.c.expect("an LSTM has a cell state"), unit);
        let kept = cx.asm.fmul(forget, old);
        let c = cx.asm.mul_add(input, candidate, kept);
        let squashed = elementary(cx, Unary::Tanh, c);
        vec![cx.asm.fmul(output, squashed), c]
    }

    /// Per gate row: `Σ_k weight(row, k)·h[k] + bias(row)`.
    fn products(&self, cx: &mut Emit<'a>, rows: &[Id]) -> Vec<Id> {
        let initial: Vec<Id> = rows
            .iter()
            .map(|&row| match self.spec.bias {
                None => cx.asm.f32(0.0),
                Some(bias) => self.at_row(cx, row, |cx| cx.eval(bias)),
            })
            .collect();
        let hidden = cx.asm.u32(self.spec.hidden);
        cx.loop_n(hidden, &initial, |cx, k, acc| {
            cx.bind_axis(3, k);
            let h = cx.asm.load_shared(self.h, k);
            let pairs = rows.iter().zip(acc);
            pairs
                .map(|(&row, &acc)| {
                    let w = self.at_row(cx, row, |cx| cx.eval(self.spec.weight));
                    cx.asm.mul_add(w, h, acc)
                })
                .collect()
        })
    }

    fn at_row(&self, cx: &mut Emit<'a>, row: Id, value: impl FnOnce(&mut Emit<'a>) -> Id) -> Id {
        cx.scope(|cx| {
            cx.bind_axis(2, row);
            value(cx)
        })
    }

    fn store_states(&self, cx: &mut Emit<'a>) {
        let zero = cx.asm.f32(0.0);
        self.units(cx, |cx, unit| {
            cx.bind_axis(2, unit);
            let h = cx.asm.load_shared(self.h, unit);
            let c = self.c.map_or(zero, |c| cx.asm.load_shared(c, unit));
            cx.bind_arg(0, h);
            cx.bind_arg(1, c);
            cx.stores(&self.spec.final_stores);
        });
    }
}

fn elementary(cx: &mut Emit<'_>, op: Unary, x: Id) -> Id {
    cx.asm.elementary(op, x).expect("a function of f32")
}

fn sigmoid(cx: &mut Emit<'_>, x: Id) -> Id {
    let minus = cx.asm.fneg(x);
    let e = elementary(cx, Unary::Exp, minus);
    let one = cx.asm.f32(1.0);
    let denominator = cx.asm.fadd(one, e);
    cx.asm.fdiv(one, denominator)
}

/// The plainest form: PyTorch's formulas of the cells, element by element, in f64.
pub(crate) fn reference(spec: &RecurrentSpec, memory: &mut Memory) {
    let (steps, batch) = (memory.extent(spec.steps) as i32, memory.extent(spec.batch) as i32);
    let step_stores = StoreTape::new(&spec.exprs, &spec.step_stores);
    let final_stores = StoreTape::new(&spec.exprs, &spec.final_stores);
    let (mut step_writer, mut final_writer) = (step_stores.runner(), final_stores.runner());
    let number = |v: f64| Value::F32(v as f32);
    for b in 0..batch {
        let mut state = State::initial(spec, memory, b);
        for i in 0..steps {
            let t = if spec.reverse { steps - 1 - i } else { i };
            state = state.after(spec, memory, t, b);
            for (u, h) in (0..).zip(&state.h) {
                step_stores.run(&mut step_writer, memory, &[t, b, u, 0], &[number(*h)]);
            }
        }
        for (u, (h, c)) in (0..).zip(state.h.iter().zip(&state.c)) {
            final_stores.run(&mut final_writer, memory, &[0, b, u, 0], &[number(*h), number(*c)]);
        }
    }
}

/// State of the reference for one batch element.
struct State {
    h: Vec<f64>,
    /// Zeros for cells without it.
    c: Vec<f64>,
}

impl State {
    fn initial(spec: &RecurrentSpec, memory: &Memory, b: i32) -> State {
        let all = |root: Option<crate::expr::ExprId>| -> Vec<f64> {
            let Some(root) = root else { return vec![0.0; spec.hidden as usize] };
            let tape = Tape::new(&spec.exprs, &[root]);
            let mut runner = tape.runner();
            (0..spec.hidden).map(|u| element(&mut runner, memory, [0, b, u as i32, 0])).collect()
        };
        State { h: all(Some(spec.h0)), c: all(spec.c0) }
    }

    /// The state after step `t`.
    fn after(&self, spec: &RecurrentSpec, memory: &Memory, t: i32, b: i32) -> State {
        let tapes = [Some(spec.input), Some(spec.weight), spec.bias].map(|r| Tape::new(&spec.exprs, r.as_slice()));
        let [mut input, mut weight, mut bias] = tapes.each_ref().map(Tape::runner);
        // Of gate g and unit u: what comes from the input, and what from the last state.
        let mut parts = |g: u32, u: u32| {
            let row = (g * spec.hidden + u) as i32;
            let mut recurrent = if spec.bias.is_some() { element(&mut bias, memory, [t, b, row, 0]) } else { 0.0 };
            for (k, h) in (0..).zip(&self.h) {
                recurrent += element(&mut weight, memory, [t, b, row, k]) * h;
            }
            (element(&mut input, memory, [t, b, row, 0]), recurrent)
        };
        let sigmoid = |(x, h): (f64, f64)| 1.0 / (1.0 + (-(x + h)).exp());
        let mut next = State { h: vec![], c: vec![] };
        for u in 0..spec.hidden {
            let (old_h, old_c) = (self.h[u as usize], self.c[u as usize]);
            let first = parts(0, u);
            let (h, c) = match spec.cell {
                Cell::Lstm => {
                    let (i, f, o) = (sigmoid(first), sigmoid(parts(1, u)), sigmoid(parts(3, u)));
                    let (x, h) = parts(2, u);
                    let c = f * old_c + i * (x + h).tanh();
                    (o * c.tanh(), c)
                }
                Cell::Gru => {
                    let (r, z, (x, h)) = (sigmoid(first), sigmoid(parts(1, u)), parts(2, u));
                    ((1.0 - z) * (x + r * h).tanh() + z * old_h, 0.0)
                }
                Cell::RnnTanh => ((first.0 + first.1).tanh(), 0.0),
                Cell::RnnRelu => ((first.0 + first.1).max(0.0), 0.0),
            };
            next.h.push(h);
            next.c.push(c);
        }
        next
    }
}

fn element(runner: &mut Runner<'_>, memory: &Memory, axes: [i32; 4]) -> f64 {
    runner.run(&Point { memory, axes: &axes, args: &[] });
    runner.get(0).to_f64()
}
