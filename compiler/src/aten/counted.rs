//! Repetition by data and numbers out of tensors: `repeat_interleave` with a tensor of counts, `item`.

use super::cx::Built;
use super::index::flattened;
use super::{AtenOp, Call, Cx, Diagnostic, Val, unsupported_dtype, unsupported_shape};
use crate::import::program::{Arg, SymArg};
use crate::ir::{DType, Dim, Op, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.repeat_interleave.Tensor"], rule: repeated_positions },
    AtenOp { names: &["aten.repeat_interleave.self_Tensor"], rule: repeat_interleave },
    AtenOp { names: &["aten.item.default", "aten._local_scalar_dense.default"], rule: item },
];

/// Position `i` of a row of counts as often as the count at `i` says: i64, as long as dimension `dim` of the call's result.
fn positions(cx: &mut Cx, call: &Call<'_>, repeats: ValueId, dim: usize) -> Built {
    let n = cx.size(repeats, 0);
    let counts = cx.cast(repeats, DType::I32)?;
    let ends = cx.add1(Op::Scan { combine: Combine::Sum, dim: 0, skip: 0 }, vec![counts])?;
    let size = match call.opt_dim("output_size")? {
        Some(given) => given,
        None => {
            let found = cx.found_size(call, dim, None)?;
            let total = cx.reduce(counts, Combine::Sum, &[0], false, DType::I32)?;
            cx.bind(&found, total)?;
            found.size
        }
    };
    // How many runs end at or before k is the run that k lies in.
    let over = cx.compute(vec![size, n], DType::I32, &[ends], |b, axes| {
        let end = b.load(0, &[axes[1]]);
        let over = b.le(end, axes[0]);
        b.cast(Ty::I32, over)
    })?;
    cx.reduce(over, Combine::Sum, &[1], false, DType::I32)
}

fn repeated_positions(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let repeats = call.tensor(cx, "repeats")?;
    let dtype = cx.tensor_dtype(repeats);
    let at = positions(cx, call, repeats, 0)?;
    Ok(vec![cx.cast(at, dtype)?.into()])
}

fn repeat_interleave(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, repeats) = (call.value(cx, "self")?, call.tensor(cx, "repeats")?);
    let flat = call.opt_int("dim")?.is_none();
    let dim = if flat { 0 } else { call.dim_index("dim", call.rank(cx)?)? };
    let x = if flat { cx.each(&x, flattened)? } else { x };
    let shape = super::view::shape_of(cx, &x)?;
    let n = shape.get(dim).cloned().unwrap_or(Dim::from(1));
    let repeats = cx.broadcast_to(repeats, &vec![n.clone()])?;
    let at = positions(cx, call, repeats, dim)?;
    let size = cx.size(at, 0);
    let y = cx.each(&x, |cx, x| {
        let mut out = cx.shape(x);
        out[dim] = size.clone();
        cx.compute(out, cx.tensor_dtype(x), &[x, at], |b, axes| {
            let mut from = axes.to_vec();
            let i = b.load(1, &[axes[dim]]);
            from[dim] = b.clamp_index(i, &n);
            b.load(0, &from)
        })
    })?;
    Ok(vec![y])
}

/// A Python integer out of a tensor: a symbol that the data decide, where the program says that it is not negative.
fn item(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let dtype = cx.tensor_dtype(x);
    let name = match call.node.outputs.first() {
        Some(Arg::SymInt(SymArg::Name(name))) if !dtype.is_float() => name,
        _ => {
            return Err(unsupported_dtype(format!(
                "{}: a Python number out of a tensor of {dtype} is not supported",
                call.target
            )));
        }
    };
    let Val::Int(size) = cx.read(name)? else {
        return Err(unsupported_shape(format!("{}: `{name}` has no formula", call.target)));
    };
    let negative = size.symbols().iter().any(|s| cx.ranges.get(s).is_none_or(|r| r.min < 0));
    if negative {
        let text = format!("{}: {size} may be negative, which is not supported", call.target);
        return Err(unsupported_shape(text).with_help("say in the model that it is not: torch._check(n >= 0)"));
    }
    let found = cx.limit_symbol(call, &size, None)?;
    cx.bind(&found, x)?;
    Ok(vec![Val::Int(size)])
}
