//! LSTM, GRU and Elman layers, and their single cells.
//!
//! A layer is a product of all inputs with the input weights, then one `Recurrent` per direction. Biases of both sides add up before the
//! loop where the cell allows it; the recurrent bias of a GRU stays inside, since its reset gate multiplies it.

use super::cx::Built;
use super::matmul::linear_values;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, bad_argument, unsupported_attribute};
use crate::ir::{Dim, Op, ValueId};
use jvc_kernels::expr::{ExprId, Unary};
use jvc_kernels::spec::Cell;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.lstm.input"], rule: |cx, call| layers(cx, call, Cell::Lstm) },
    AtenOp { names: &["aten.gru.input"], rule: |cx, call| layers(cx, call, Cell::Gru) },
    AtenOp { names: &["aten.rnn_tanh.input"], rule: |cx, call| layers(cx, call, Cell::RnnTanh) },
    AtenOp { names: &["aten.rnn_relu.input"], rule: |cx, call| layers(cx, call, Cell::RnnRelu) },
    AtenOp { names: &["aten.lstm_cell.default"], rule: lstm_cell },
    AtenOp { names: &["aten.gru_cell.default"], rule: gru_cell },
    AtenOp { names: &["aten.rnn_tanh_cell.default"], rule: |cx, call| elman_cell(cx, call, false) },
    AtenOp { names: &["aten.rnn_relu_cell.default"], rule: |cx, call| elman_cell(cx, call, true) },
];

/// Weights of one direction of one layer.
struct Direction {
    w_ih: ValueId,
    w_hh: ValueId,
    b_ih: Option<ValueId>,
    b_hh: Option<ValueId>,
}

/// States of all layers and directions, `[layers · directions, batch, hidden]`.
struct States {
    h: ValueId,
    c: Option<ValueId>,
}

fn state_at(cx: &mut Cx, states: ValueId, at: usize) -> Built {
    cx.select(states, 0, Dim::from(at as i64))
}

fn layers(cx: &mut Cx, call: &Call<'_>, cell: Cell) -> Result<Vec<Val>, Diagnostic> {
    let mut x = call.tensor(cx, "input")?;
    let states = match (cell, call.has("hx")) {
        (Cell::Lstm, _) => {
            let hx = call.tensors(cx, "hx")?;
            let [h, c] = hx[..] else { return Err(bad_argument("an LSTM starts from two states")) };
            States { h, c: Some(c) }
        }
        _ => States { h: call.tensor(cx, "hx")?, c: None },
    };
    let params = call.tensors(cx, "params")?;
    let (n_layers, both) = (call.int("num_layers")? as usize, call.bool("bidirectional")?);
    if call.bool("train")? && call.float("dropout")? != 0.0 {
        let text = format!("{}: dropout={} in training mode is not supported", call.target, call.float("dropout")?);
        return Err(unsupported_attribute("training", text).with_help("export the model after model.eval()"));
    }
    let directions = read_params(call, &params, n_layers * (1 + usize::from(both)))?;
    let batch_first = call.bool("batch_first")?;
    if batch_first {
        x = cx.transpose(x, 0, 1)?;
    }
    let (mut h_n, mut c_n) = (vec![], vec![]);
    for layer in directions.chunks(1 + usize::from(both)) {
        let mut outputs = vec![];
        for (side, weights) in layer.iter().enumerate() {
            let at = h_n.len();
            let h = state_at(cx, states.h, at)?;
            let c = states.c.map(|c| state_at(cx, c, at)).transpose()?;
            let results = direction(cx, x, weights, cell, (h, c), side == 1)?;
            outputs.push(results[0]);
            h_n.push(results[1]);
            c_n.extend(results.get(2));
        }
        x = cx.concat(&outputs, 2)?;
    }
    if batch_first {
        x = cx.transpose(x, 0, 1)?;
    }
    let mut results = vec![Val::Tensor(x), Val::Tensor(cx.stack(&h_n, 0)?)];
    if cell == Cell::Lstm {
        results.push(Val::Tensor(cx.stack(&c_n, 0)?));
    }
    Ok(results)
}

/// Splits the flat parameter list: per direction `w_ih, w_hh`, and with biases `b_ih, b_hh`.
fn read_params(call: &Call<'_>, params: &[ValueId], n: usize) -> Result<Vec<Direction>, Diagnostic> {
    let biased = call.bool("has_biases")?;
    let each = if biased { 4 } else { 2 };
    if params.len() == n * (each + 1) {
        return Err(unsupported_attribute(
            "lstm-projection",
            "projections of the hidden state (proj_size) are not supported",
        ));
    }
    if params.len() != n * each {
        return Err(bad_argument(format!("{} weights for {n} directions", params.len())));
    }
    let direction =
        |p: &[ValueId]| Direction { w_ih: p[0], w_hh: p[1], b_ih: p.get(2).copied(), b_hh: p.get(3).copied() };
    Ok(params.chunks(each).map(direction).collect())
}

/// `y, h_n (, c_n)` of one direction over x `[t, batch, features]`.
fn direction(
    cx: &mut Cx,
    x: ValueId,
    w: &Direction,
    cell: Cell,
    (h, c): (ValueId, Option<ValueId>),
    reverse: bool,
) -> Result<Vec<ValueId>, Diagnostic> {
    let keep_inside = cell == Cell::Gru;
    let bias = match (w.b_ih, w.b_hh) {
        (Some(i), Some(hh)) if !keep_inside => Some(cx.add_values(i, hh)?),
        (i, _) => i,
    };
    let projected = linear_values(cx, x, w.w_ih, bias)?;
    let mut inputs = vec![projected, w.w_hh];
    let inner_bias = w.b_hh.filter(|_| keep_inside);
    inputs.extend(inner_bias);
    inputs.push(h);
    inputs.extend(c);
    cx.add(Op::Recurrent { cell, reverse, bias: inner_bias.is_some() }, inputs)
}

/// Both products of a cell: of the input and of the state.
fn cell_products(cx: &mut Cx, call: &Call<'_>, h: ValueId) -> Result<(ValueId, ValueId), Diagnostic> {
    let (x, w_ih, w_hh) = (call.tensor(cx, "input")?, call.tensor(cx, "w_ih")?, call.tensor(cx, "w_hh")?);
    let (b_ih, b_hh) = (call.opt_tensor(cx, "b_ih")?, call.opt_tensor(cx, "b_hh")?);
    Ok((linear_values(cx, x, w_ih, b_ih)?, linear_values(cx, h, w_hh, b_hh)?))
}

/// Part `k` of `n` along the last dimension.
fn gate(cx: &mut Cx, v: ValueId, k: i64, n: i64) -> Built {
    let last = cx.rank(v) - 1;
    let size = cx.size(v, last).floor_div(&Dim::from(n));
    cx.slice(v, last, &size * &Dim::from(k), size.clone(), 1)
}

/// 1 / (1 + e⁻ˣ).
fn sigmoid(b: &mut BodyBuilder, x: ExprId) -> ExprId {
    let minus = b.neg(x);
    let power = b.un(Unary::Exp, minus);
    let one = b.like(x, 1.0);
    let below = b.add(power, one);
    b.div(one, below)
}

fn lstm_cell(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let hx = call.tensors(cx, "hx")?;
    let [h, c] = hx[..] else { return Err(bad_argument("an LSTM cell takes two states")) };
    let (from_x, from_h) = cell_products(cx, call, h)?;
    let gates = cx.add_values(from_x, from_h)?;
    let dtype = cx.tensor_dtype(gates);
    let (i, f) = (gate(cx, gates, 0, 4)?, gate(cx, gates, 1, 4)?);
    let (g, o) = (gate(cx, gates, 2, 4)?, gate(cx, gates, 3, 4)?);
    let c = cx.map_n(&[i, f, g, c], dtype, |b, a| {
        let (i, f, g) = (sigmoid(b, a[0]), sigmoid(b, a[1]), b.un(Unary::Tanh, a[2]));
        let (kept, new) = (b.mul(f, a[3]), b.mul(i, g));
        b.add(kept, new)
    })?;
    let h = cx.map2(o, c, dtype, |b, o, c| {
        let (o, c) = (sigmoid(b, o), b.un(Unary::Tanh, c));
        b.mul(o, c)
    })?;
    Ok(vec![Val::Tensor(h), Val::Tensor(c)])
}

fn gru_cell(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let h = call.tensor(cx, "hx")?;
    let (from_x, from_h) = cell_products(cx, call, h)?;
    let dtype = cx.tensor_dtype(from_x);
    let mut parts = vec![];
    for k in 0..3 {
        parts.push(gate(cx, from_x, k, 3)?);
        parts.push(gate(cx, from_h, k, 3)?);
    }
    parts.push(h);
    let y = cx.map_n(&parts, dtype, |b, a| {
        let (r, z) = (b.add(a[0], a[1]), b.add(a[2], a[3]));
        let (r, z) = (sigmoid(b, r), sigmoid(b, z));
        let reset = b.mul(r, a[5]);
        let n = b.add(a[4], reset);
        let n = b.un(Unary::Tanh, n);
        let d = b.sub(a[6], n);
        let kept = b.mul(z, d);
        b.add(n, kept)
    })?;
    Ok(vec![Val::Tensor(y)])
}

fn elman_cell(cx: &mut Cx, call: &Call<'_>, relu: bool) -> Result<Vec<Val>, Diagnostic> {
    let h = call.tensor(cx, "hx")?;
    let (from_x, from_h) = cell_products(cx, call, h)?;
    let dtype = cx.tensor_dtype(from_x);
    let y = cx.map2(from_x, from_h, dtype, |b, x, h| {
        let s = b.add(x, h);
        let zero = b.like(s, 0.0);
        if relu { b.max(s, zero) } else { b.un(Unary::Tanh, s) }
    })?;
    Ok(vec![Val::Tensor(y)])
}
