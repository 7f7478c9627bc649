//! Max and average pooling as row kernels over the window.

use super::super::inline::Ctx;
use super::conv::window_coord;
use super::row::Row;
use super::{Lowered, finish};
use crate::ir::graph::Node;
use crate::ir::{DType, Dim, NodeId, Op, Window};
use crate::report::{Code, Diagnostic};
use jvc_kernels::expr::{Binary, ExprId};
use jvc_kernels::spec::Combine;

pub(super) fn lower(cx: &mut Ctx<'_>, node: &Node, epilogue: &[NodeId]) -> Result<Lowered, Diagnostic> {
    let Op::Pool { kernel, window, max, indices, .. } = &node.op else { panic!("not a pool") };
    let dtype = cx.ty(node.inputs[0]).dtype;
    if !max && !dtype.is_float() {
        return Err(Diagnostic::new(
            Code::UnsupportedDType,
            format!("average pooling of {dtype} is not supported (only floats)"),
        ));
    }
    let outer = cx.ty(node.outputs[0]).shape.clone();
    let taps: Vec<Dim> = kernel.iter().map(|&k| Dim::from(k)).collect();
    let mut row = Row::new(cx, &outer, &taps);
    let at = cx.axes(0, &outer);
    let tap_axes = cx.axes(outer.len(), &taps);
    let source = source_at(cx, &at, &tap_axes, window);
    let fill = cx.lit(dtype.ty(), if *max { lowest(dtype) } else { 0.0 });
    let value = cx.at_or(node.inputs[0], &source, fill);
    if *indices {
        return Ok(with_indices(cx, node, row, &at, value, kernel));
    }
    let result = if *max {
        row.stage(cx, Combine::Max, value)
    } else {
        let sum = row.stage(cx, Combine::Sum, value);
        let divisor = divisor(cx, node, &at);
        cx.bin(Binary::Div, sum, divisor)
    };
    let stores = finish(cx, node.outputs[0], at, result, epilogue);
    Ok(row.finish(cx, stores, vec![]))
}

fn source_at(cx: &mut Ctx<'_>, at: &[ExprId], taps: &[ExprId], window: &Window) -> Vec<ExprId> {
    let mut source = at[..2].to_vec();
    for (i, (&o, &tap)) in at[2..].iter().zip(taps).enumerate() {
        source.push(window_coord(cx, o, tap, window, i));
    }
    source
}

fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::Bool | DType::U8 => 0.0,
        DType::I8 => f64::from(i8::MIN),
        DType::I16 => f64::from(i16::MIN),
        DType::I32 => f64::from(i32::MIN),
        DType::I64 => i64::MIN as f64,
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => f64::NEG_INFINITY,
    }
}

/// Max and its flat position in the input plane: the winning tap is unfolded into coordinates.
fn with_indices(cx: &mut Ctx<'_>, node: &Node, mut row: Row, at: &[ExprId], value: ExprId, kernel: &[i64]) -> Lowered {
    let Op::Pool { window, .. } = &node.op else { panic!("not a pool") };
    let best = row.stage(cx, Combine::Max, value);
    let tap = row.stage(cx, Combine::ArgMax, value);
    let n_taps: i64 = kernel.iter().product();
    cx.ix.assume_below(tap, &Dim::from(n_taps));
    let taps: Vec<Dim> = kernel.iter().map(|&k| Dim::from(k)).collect();
    let tap_at = cx.ix.delinear(tap, &taps);
    let source = source_at(cx, at, &tap_at, window);
    let plane = cx.ty(node.inputs[0]).shape[2..].to_vec();
    let flat = cx.ix.linear(&source[2..], &plane);
    let mut stores = finish(cx, node.outputs[0], at.to_vec(), best, &[]);
    stores.extend(finish(cx, node.outputs[1], at.to_vec(), flat, &[]));
    row.finish(cx, stores, vec![])
}

/// Elements that an average divides by: given, or the window's extent cut at the (padded or bare) input.
fn divisor(cx: &mut Ctx<'_>, node: &Node, at: &[ExprId]) -> ExprId {
    let Op::Pool { kernel, window, count_include_pad, divisor, .. } = &node.op else { panic!("not a pool") };
    let ty = cx.ty(node.inputs[0]).dtype.ty();
    if let Some(d) = divisor {
        return cx.lit(ty, *d as f64);
    }
    let plane = cx.ty(node.inputs[0]).shape[2..].to_vec();
    let mut count = cx.ix.int(1);
    for i in 0..kernel.len() {
        let [stride, pad, size, zero] = [window.stride[i], window.padding[i], kernel[i], 0].map(|v| cx.ix.int(v));
        let n = cx.ix.dim(&plane[i]);
        let scaled = cx.ix.mul(at[2 + i], stride);
        let start = cx.ix.sub(scaled, pad);
        let end = cx.ix.add(start, size);
        let padded_end = cx.ix.add(n, pad);
        let end = cx.bin(Binary::Min, end, padded_end);
        let span = if *count_include_pad {
            cx.ix.sub(end, start)
        } else {
            let start = cx.bin(Binary::Max, start, zero);
            let end = cx.bin(Binary::Min, end, n);
            cx.ix.sub(end, start)
        };
        count = cx.ix.mul(count, span);
    }
    cx.cast(ty, count)
}
