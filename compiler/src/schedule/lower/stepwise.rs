//! Recurrent layers on GPUs: a dispatch for each time step, over many workgroups.
//!
//! ```text
//! for t in order:                                  one dispatch, a barrier before it
//!     parallel for (b, u): (row kernel)
//!         a[g] = Σ_k weight(g·H + u, k)·y[t − 1](b, k), g over the gates
//!         y[t](b, u), c(b, u) = cell(input(t, b, g·H + u), a)
//! then: copies of y, of its last step and of c to wherever they must go besides
//! ```
//!
//! One workgroup that loops over time reads all recurrent weights through one unit of the device, at each step; with a dispatch a step all
//! units share them. Every step but the first is the same kernel: what depends on t is where `input` and `y` start, which is in the
//! operands' offsets. These count in 16 bytes; layers whose steps are not a multiple of that keep the loop, as do symbolic sizes.
//! On CPU drivers the loop is as quick; there only a layer that a driver would end early runs in steps.

use super::super::inline::{Ctx, Place};
use super::super::symtab::SymTable;
use super::row::Row;
use super::{Draft, Input, Lowered, Part, map, one};
use crate::device::DeviceProfile;
use crate::ir::graph::Node;
use crate::ir::infer::gates;
use crate::ir::{DType, Dim, NodeId, Op, ValueId};
use crate::report::Diagnostic;
use crate::schedule::fuse::Group;
use crate::schedule::inline::storage_of;
use crate::schedule::{place_bytes, tile};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Expr, ExprId, Unary};
use jvc_kernels::host::element_bytes;
use jvc_kernels::spec::{Access, Cell, Combine, Store};

/// With fewer units a workgroup is through with a step before the next dispatch would start.
const MIN_HIDDEN: i64 = 32;
/// Dispatches of one layer: a recording must stay small.
const MAX_STEPS: i64 = 4096;
/// Unit of an operand's offset.
const OFFSET_BYTES: i64 = 16;

const SYMBOLIC: &str = "recurrent layer of symbolic length or batch: one workgroup runs all steps";
const LONG: &str = "recurrent layer of very many steps: one workgroup runs them all";
const UNALIGNED: &str = "steps of the recurrent layer are no multiple of 16 bytes apart: one workgroup runs them all";
const COMPUTED: &str = "input of the recurrent layer is not in a buffer step by step: one workgroup runs all steps";

/// A layer with known sizes.
struct Layer<'a> {
    node: &'a Node,
    cell: Cell,
    reverse: bool,
    bias: bool,
    steps: i64,
    batch: i64,
    hidden: i64,
}

/// Where the input projection lies, and the bytes from one step to the next.
struct Source {
    place: Place,
    stride: i64,
    /// Bytes of the place.
    bytes: i64,
}

/// The kernels of a layer step by step; else a reason to run it in a loop, or none where a loop is best.
pub(super) fn lower(
    input: Input<'_>,
    group: &Group,
    symtab: &mut SymTable,
    id: NodeId,
) -> Result<Result<Vec<Draft>, Option<&'static str>>, Diagnostic> {
    let layer = match Layer::of(input, id) {
        Ok(layer) => layer,
        Err(why) => return Ok(Err(why)),
    };
    let mut cx = Ctx::new(input.graph, input.fusion, input.device, symtab);
    let source = match layer.source(&mut cx) {
        Ok(source) => source,
        Err(why) => return Ok(Err(Some(why))),
    };
    let mut drafts = one(input, group, symtab, vec![id], |cx| Ok(layer.step(cx, true)))?;
    let later = one(input, group, symtab, vec![id], |cx| Ok(layer.step(cx, false)))?;
    for draft in drafts.iter_mut() {
        draft.layer = Some(id);
        draft.parts = layer.first_parts(draft, &source);
    }
    drafts.extend((1..layer.steps).flat_map(|i| later.iter().map(move |d| (i, d))).map(|(i, d)| {
        let mut d = d.clone();
        d.layer = Some(id);
        d.parts = layer.parts(i, &d, &source);
        d.cost.bytes = layer.bytes(d.cost.bytes);
        d
    }));
    drafts.extend(layer.copies(input, group, symtab, id)?);
    Ok(Ok(drafts))
}

/// A GPU has more units than the one that loops over a layer, unless the layer is small; and some drivers end long loops.
fn runs_better_in_steps(device: &DeviceProfile, steps: i64, hidden: i64) -> bool {
    let units = u32::try_from(hidden).unwrap_or(u32::MAX);
    let iterations = tile::recurrent_iterations(steps.unsigned_abs(), units, tile::recurrent(device, units));
    let ended_early = device.limits.max_loop_iterations.is_some_and(|most| iterations > u64::from(most));
    ended_early || (!device.rates.cpu && hidden >= MIN_HIDDEN)
}

impl<'a> Layer<'a> {
    fn of(input: Input<'a>, id: NodeId) -> Result<Layer<'a>, Option<&'static str>> {
        let node = input.graph.node(id);
        let Op::Recurrent { cell, reverse, bias } = node.op else { panic!("{:?} is no recurrent layer", node.op) };
        let x = input.graph.ty(node.inputs[0]);
        let hidden = input.graph.ty(node.inputs[1]).shape[1].as_const().ok_or(None)?;
        if x.dtype != DType::F32
            || !runs_better_in_steps(input.device, x.shape[0].range(&input.graph.ranges).max, hidden)
        {
            return Err(None);
        }
        let size = |d: usize| x.shape[d].as_const().ok_or(Some(SYMBOLIC));
        let layer = Layer { node, cell, reverse, bias, steps: size(0)?, batch: size(1)?, hidden };
        match layer.steps {
            // Nothing to spread, or nothing at all.
            ..2 => Err(None),
            _ if layer.batch == 0 => Err(None),
            _ if layer.steps > MAX_STEPS => Err(Some(LONG)),
            _ if layer.state_bytes() % OFFSET_BYTES != 0 => Err(Some(UNALIGNED)),
            _ => Ok(layer),
        }
    }

    fn state_bytes(&self) -> i64 {
        self.batch * self.hidden * 4
    }

    fn y(&self) -> ValueId {
        self.node.outputs[0]
    }

    /// Input time of the n-th step.
    fn time(&self, i: i64) -> i64 {
        if self.reverse { self.steps - 1 - i } else { i }
    }

    /// Bytes that a step touches, of those of whole operands.
    fn bytes(&self, whole: f64) -> f64 {
        let series = (self.steps * (2 + gates(self.cell)) * self.state_bytes()) as f64;
        (whole - series).max(0.0) + series / self.steps as f64
    }

    fn source(&self, cx: &mut Ctx<'_>) -> Result<Source, &'static str> {
        let rows = Dim::from(self.hidden * gates(self.cell));
        let (row, summed) = (cx.ix.axis(1, &rows), cx.ix.axis(2, &Dim::from(self.hidden)));
        let b = cx.ix.axis(0, &Dim::from(self.batch));
        cx.at(self.node.inputs[1], &[row, summed]);
        if self.bias {
            cx.at(self.node.inputs[2], &[row]);
        }
        let others: Vec<Place> = cx.uses.iter().map(|u| u.place).collect();
        let mut element = |t: i64| {
            let t = cx.ix.int(t);
            let e = cx.at(self.node.inputs[0], &[t, b, row]);
            match cx.ix.exprs.get(e) {
                Expr::Load { operand, dtype, index } => Ok((*operand, *dtype, index[0])),
                _ => Err(COMPUTED),
            }
        };
        let (first, second, last) = (element(0)?, element(1)?, element(self.steps - 1)?);
        let used = cx.uses[usize::from(first.0)];
        let place = used.place;
        let Place::Value(v) = place else { return Err(COMPUTED) };
        let in_table = matches!(cx.graph.def(v).op, Op::Input { .. });
        if in_table || others.contains(&place) || second.0 != first.0 || last.0 != first.0 {
            return Err(COMPUTED);
        }
        let mut apart = |index: ExprId| {
            let difference = cx.ix.sub(index, first.2);
            cx.ix.as_const(difference).ok_or(COMPUTED)
        };
        let (stride, all) = (apart(second.2)?, apart(last.2)?);
        if stride < 0 || all != stride * (self.steps - 1) {
            return Err(COMPUTED);
        }
        let stride = stride * element_bytes(first.1, storage_of(first.1, cx.device)) as i64;
        let bytes = place_bytes(cx.graph, cx.device, used) as i64;
        if stride % OFFSET_BYTES == 0 { Ok(Source { place, stride, bytes }) } else { Err(UNALIGNED) }
    }

    /// The first step, or any later one with `input` and `y` as if they started where that step needs them.
    fn step(&self, cx: &mut Ctx<'_>, first: bool) -> Lowered {
        let (batch, hidden) = (Dim::from(self.batch), Dim::from(self.hidden));
        let (b, u, k) = (cx.ix.axis(0, &batch), cx.ix.axis(1, &hidden), cx.ix.axis(2, &hidden));
        let mut row = Row::new(cx, &[batch, hidden.clone()], &[hidden]);
        let states = 2 + usize::from(self.bias);
        // The step of y that it reads and the one that it writes are operands of their own: both directions are one kernel.
        let (before, now) = (cx.ix.int(0), cx.ix.int(if first { self.time(0) } else { 0 }));
        let t = cx.ix.int(if first { self.time(0) } else { 0 });
        let h = |cx: &mut Ctx<'_>, unit: ExprId| {
            if first { cx.at(self.node.inputs[states], &[b, unit]) } else { cx.at(self.y(), &[before, b, unit]) }
        };
        let rows: Vec<ExprId> = (0..gates(self.cell)).map(|g| self.gate_row(cx, g, u)).collect();
        let summed = h(cx, k);
        let products: Vec<ExprId> = rows
            .iter()
            .map(|&r| {
                let w = cx.at(self.node.inputs[1], &[r, k]);
                let term = cx.bin(Binary::Mul, w, summed);
                row.stage(cx, Combine::Sum, term)
            })
            .collect();
        let recurrent: Vec<ExprId> = rows.iter().zip(products).map(|(&r, p)| self.biased(cx, r, p)).collect();
        let inputs: Vec<ExprId> = rows.iter().map(|&r| cx.at(self.node.inputs[0], &[t, b, r])).collect();
        let gate: Vec<(ExprId, ExprId)> = inputs.into_iter().zip(recurrent).collect();
        let old_h = (self.cell == Cell::Gru).then(|| h(cx, u));
        let old_c = (self.cell == Cell::Lstm).then(|| {
            let v = if first { self.node.inputs[states + 1] } else { self.node.outputs[2] };
            cx.at(v, &[b, u])
        });
        let (h, c) = cell(cx, self.cell, &gate, old_h.or(old_c));
        let y = cx.operand_apart(Place::Value(self.y()), cx.ty(self.y()).dtype, Access::Write);
        let mut stores = vec![own_store(cx, (self.y(), y), &[now, b, u], h)];
        if let Some(c) = c {
            let v = self.node.outputs[2];
            let operand = cx.operand(Place::Value(v), cx.ty(v).dtype, Access::Write);
            stores.push(own_store(cx, (v, operand), &[b, u], c));
        }
        row.finish_step(cx, stores)
    }

    fn gate_row(&self, cx: &mut Ctx<'_>, gate: i64, unit: ExprId) -> ExprId {
        let first = cx.ix.int(gate * self.hidden);
        cx.ix.add(first, unit)
    }

    fn biased(&self, cx: &mut Ctx<'_>, row: ExprId, sum: ExprId) -> ExprId {
        if !self.bias {
            return sum;
        }
        let bias = cx.at(self.node.inputs[2], &[row]);
        cx.bin(Binary::Add, sum, bias)
    }

    /// What the first step reads and writes of the operands that move.
    fn first_parts(&self, draft: &Draft, source: &Source) -> Vec<Part> {
        let (now, bytes) = (self.time(0), self.state_bytes() as u64);
        let written = Some(now as u64 * bytes..(now as u64 + 1) * bytes);
        let y = Part { operand: operand(draft, Place::Value(self.y())), start: 0, read: None, written };
        let (start, left) = (now * source.stride, (self.steps - 1 - now) * source.stride);
        let read = Some(start as u64..(source.bytes - left) as u64);
        vec![y, Part { operand: operand(draft, source.place), start: 0, read, written: None }]
    }

    /// What the n-th step reads and writes of the operands that move.
    fn parts(&self, i: i64, draft: &Draft, source: &Source) -> Vec<Part> {
        let operand = |place: Place| operand(draft, place);
        let (before, now, bytes) = (self.time(i - 1), self.time(i), self.state_bytes() as u64);
        let at = |t: i64| t as u64 * bytes..(t as u64 + 1) * bytes;
        let y = Place::Value(self.y());
        let old = Part { operand: operand(y), start: at(before).start, read: Some(at(before)), written: None };
        let new = Part { operand: written(draft, y), start: at(now).start, read: None, written: Some(at(now)) };
        // The last step ends within the place; the others as much before.
        let (start, left) = (now * source.stride, (self.steps - 1 - now) * source.stride);
        let read = Some(start as u64..(source.bytes - left) as u64);
        vec![old, new, Part { operand: operand(source.place), start: start as u64, read, written: None }]
    }

    /// Steps store into buffers of the layer's own; here is what must be elsewhere, too.
    fn copies(
        &self,
        input: Input<'_>,
        group: &Group,
        symtab: &mut SymTable,
        id: NodeId,
    ) -> Result<Vec<Draft>, Diagnostic> {
        let mut drafts = vec![];
        let beside: Vec<ValueId> = [Some(0), (self.cell == Cell::Lstm).then_some(2)]
            .into_iter()
            .flatten()
            .map(|i: usize| self.node.outputs[i])
            .filter(|&v| {
                input.fusion.part_of(v).is_some() || input.fusion.places(v).iter().any(|p| *p != Place::Value(v))
            })
            .collect();
        for v in beside {
            let group = Group { result: v, ..group.clone() };
            drafts.extend(one(input, &group, symtab, vec![id], |cx| Ok(map::lower_beside(cx, v)))?);
        }
        let h = self.node.outputs[1];
        if input.fusion.part_of(h).is_some() || !input.fusion.places(h).is_empty() {
            let (last, group) = (self.time(self.steps - 1), Group { result: h, ..group.clone() });
            let of_last_step = |cx: &mut Ctx<'_>, at: &[ExprId]| {
                let t = cx.ix.int(last);
                cx.at(self.y(), &[t, at[0], at[1]])
            };
            drafts.extend(one(input, &group, symtab, vec![id], |cx| Ok(map::lower_as(cx, h, of_last_step)))?);
        }
        Ok(drafts)
    }
}

/// Position of an operand that every step uses.
fn operand(draft: &Draft, place: Place) -> u16 {
    draft.uses.iter().position(|u| u.place == place).expect("every step uses it") as u16
}

/// Position of the operand through which a place is written.
fn written(draft: &Draft, place: Place) -> u16 {
    let at = draft.uses.iter().position(|u| u.place == place && u.access == Access::Write);
    at.expect("every step writes it") as u16
}

/// A store into the value's own buffer, which it need not have otherwise.
fn own_store(cx: &mut Ctx<'_>, (v, operand): (ValueId, u16), at: &[ExprId], value: ExprId) -> Store {
    let index = cx.ix.linear(at, &cx.ty(v).shape);
    Store { operand, index, value, guard: None }
}

/// The new state of a unit from its gates (input, recurrent) and its old state; c is that of an LSTM.
fn cell(cx: &mut Ctx<'_>, cell: Cell, gate: &[(ExprId, ExprId)], old: Option<ExprId>) -> (ExprId, Option<ExprId>) {
    let sum = |cx: &mut Ctx<'_>, g: usize| cx.bin(Binary::Add, gate[g].0, gate[g].1);
    let open = |cx: &mut Ctx<'_>, g: usize| {
        let a = sum(cx, g);
        let (minus, one) = (cx.un(Unary::Neg, a), cx.lit(Ty::F32, 1.0));
        let e = cx.un(Unary::Exp, minus);
        let denominator = cx.bin(Binary::Add, one, e);
        cx.bin(Binary::Div, one, denominator)
    };
    match (cell, old) {
        (Cell::Lstm, Some(old)) => {
            let (input, forget, output) = (open(cx, 0), open(cx, 1), open(cx, 3));
            let a = sum(cx, 2);
            let candidate = cx.un(Unary::Tanh, a);
            let (kept, new) = (cx.bin(Binary::Mul, forget, old), cx.bin(Binary::Mul, input, candidate));
            let c = cx.bin(Binary::Add, kept, new);
            let squashed = cx.un(Unary::Tanh, c);
            (cx.bin(Binary::Mul, output, squashed), Some(c))
        }
        (Cell::Gru, Some(old)) => {
            let (reset, update) = (open(cx, 0), open(cx, 1));
            let scaled = cx.bin(Binary::Mul, reset, gate[2].1);
            let a = cx.bin(Binary::Add, gate[2].0, scaled);
            let candidate = cx.un(Unary::Tanh, a);
            // (1 − z)·n + z·h, as n + z·(h − n).
            let difference = cx.bin(Binary::Sub, old, candidate);
            let step = cx.bin(Binary::Mul, update, difference);
            (cx.bin(Binary::Add, candidate, step), None)
        }
        (Cell::RnnTanh, _) => {
            let a = sum(cx, 0);
            (cx.un(Unary::Tanh, a), None)
        }
        (Cell::RnnRelu, _) => {
            let (a, zero) = (sum(cx, 0), cx.lit(Ty::F32, 0.0));
            (cx.bin(Binary::Max, a, zero), None)
        }
        (Cell::Lstm | Cell::Gru, None) => panic!("{cell:?} without its old state"),
    }
}
