//! Recurrent layers: one kernel runs all time steps of one direction.

use super::super::inline::Ctx;
use super::super::tile;
use super::{Lowered, finish, literal_size, max_elems};
use crate::ir::graph::Node;
use crate::ir::infer::gates;
use crate::ir::{Dim, ValueId};
use crate::report::{Code, Diagnostic};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::ExprId;
use jvc_kernels::spec::{Cell, KernelSpec, RecurrentSpec};

pub(super) fn lower(
    cx: &mut Ctx<'_>,
    node: &Node,
    cell: Cell,
    reverse: bool,
    bias: bool,
) -> Result<Lowered, Diagnostic> {
    let x = cx.ty(node.inputs[0]);
    if x.dtype.ty() != Ty::F32 {
        return Err(Diagnostic::new(
            Code::UnsupportedDType,
            format!("a recurrent layer over {} is not supported", x.dtype),
        ));
    }
    let (steps_dim, batch_dim) = (x.shape[0].clone(), x.shape[1].clone());
    let hidden_dim = cx.ty(node.inputs[1]).shape[1].clone();
    let hidden = literal_size(&hidden_dim, "the hidden size")?;
    let rows = &hidden_dim * &Dim::from(gates(cell));
    let (t, b) = (cx.ix.axis(0, &steps_dim), cx.ix.axis(1, &batch_dim));
    let (row, unit, summed) = (cx.ix.axis(2, &rows), cx.ix.axis(2, &hidden_dim), cx.ix.axis(3, &hidden_dim));
    let load = |cx: &mut Ctx<'_>, v: ValueId, at: &[ExprId]| cx.at(v, at);
    let input = load(cx, node.inputs[0], &[t, b, row]);
    let weight = load(cx, node.inputs[1], &[row, summed]);
    let bias_value = bias.then(|| load(cx, node.inputs[2], &[row]));
    let states = 2 + usize::from(bias);
    let h0 = load(cx, node.inputs[states], &[b, unit]);
    let c0 = (cell == Cell::Lstm).then(|| load(cx, node.inputs[states + 1], &[b, unit]));
    let (h, c) = (cx.ix.exprs.arg(0, Ty::F32), cx.ix.exprs.arg(1, Ty::F32));
    let step_stores = finish(cx, node.outputs[0], vec![t, b, unit], h, &[]);
    let mut final_stores = finish(cx, node.outputs[1], vec![b, unit], h, &[]);
    if cell == Cell::Lstm {
        final_stores.extend(finish(cx, node.outputs[2], vec![b, unit], c, &[]));
    }
    let [n_steps, n_batch] = [&steps_dim, &batch_dim].map(|d| max_elems(cx, std::slice::from_ref(d)));
    let [steps, batch] = [&steps_dim, &batch_dim].map(|d| cx.ix.symtab().extent(d));
    let wg = tile::recurrent(cx.device, hidden);
    let exprs = std::mem::take(&mut cx.ix.exprs);
    let spec = RecurrentSpec {
        interface: cx.interface(),
        exprs,
        cell,
        steps,
        batch,
        hidden,
        reverse,
        input,
        weight,
        bias: bias_value,
        h0,
        c0,
        step_stores,
        final_stores,
        wg,
    };
    let flops = n_steps * n_batch * f64::from(hidden) * f64::from(hidden) * 2.0 * gates(cell) as f64;
    Ok(Lowered::new(KernelSpec::Recurrent(spec), flops))
}
