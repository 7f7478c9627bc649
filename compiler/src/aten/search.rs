//! Binary search in sorted rows (`searchsorted`, `bucketize`), unrolled since row lengths are literals; and membership (`isin`).

use super::cx::Built;
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument, unsupported_shape};
use crate::ir::{DType, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.searchsorted.Tensor", "aten.searchsorted.Scalar"], rule: searchsorted },
    AtenOp { names: &["aten.bucketize.Tensor", "aten.bucketize.Scalar"], rule: bucketize },
    AtenOp { names: &["aten.isin.Tensor_Tensor", "aten.isin.Tensor_Scalar", "aten.isin.Scalar_Tensor"], rule: isin },
];

/// A tensor argument, or a number as a 0-d tensor of the given type.
fn tensor_or_number(cx: &mut Cx, call: &Call<'_>, name: &str, dtype: DType) -> Built {
    match call.operand(cx, name)? {
        Val::Tensor(v) => Ok(v),
        Val::Int(d) => cx.dim_tensor(&d, dtype),
        Val::Float(v) => cx.full(vec![], dtype, v),
        Val::Bool(v) => cx.full(vec![], dtype, f64::from(u8::from(v))),
        other => Err(bad_argument(format!("{}: `{name}`={other:?}", call.target))),
    }
}

fn searchsorted(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let rows = call.tensor(cx, "sorted_sequence")?;
    let x = tensor_or_number(cx, call, "self", cx.tensor_dtype(rows))?;
    let sorter = call.opt_tensor(cx, "sorter")?;
    let right = call.bool("right")? || call.opt_str("side")?.as_deref() == Some("right");
    let y = search(cx, call, (rows, sorter), x, right)?;
    Ok(vec![Val::Tensor(y)])
}

fn bucketize(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let rows = call.tensor(cx, "boundaries")?;
    let x = tensor_or_number(cx, call, "self", cx.tensor_dtype(rows))?;
    let y = search(cx, call, (rows, None), x, call.bool("right")?)?;
    Ok(vec![Val::Tensor(y)])
}

/// How many elements of the row are below x (`right`: not above). NaN is above all.
fn search(cx: &mut Cx, call: &Call<'_>, (rows, sorter): (ValueId, Option<ValueId>), x: ValueId, right: bool) -> Built {
    let rank = cx.rank(rows);
    let n = cx.size(rows, rank - 1);
    let Some(len) = n.as_const() else {
        return Err(unsupported_shape(format!(
            "{} in rows of the symbolic size {n}: a literal is needed",
            call.target
        )));
    };
    let steps = 64 - (len as u64).leading_zeros();
    let dtype = if call.bool("out_int32")? { DType::I32 } else { DType::I64 };
    let x = cx.cast(x, cx.tensor_dtype(rows))?;
    let inputs: Vec<ValueId> = [rows, x].into_iter().chain(sorter).collect();
    cx.compute(cx.shape(x), dtype, &inputs, |b, axes| {
        let value = b.load(1, axes);
        let value = if b.ty(value) == Ty::Bool { b.cast(Ty::I32, value) } else { value };
        let (mut low, mut high) = (b.int(0), b.int(len));
        for _ in 0..steps {
            let (sum, two) = (b.add(low, high), b.int(2));
            let middle = b.div(sum, two);
            let at = b.clamp_index(middle, &n);
            let mut from = if rank == 1 { vec![] } else { axes[..rank - 1].to_vec() };
            from.push(at);
            if sorter.is_some() {
                let i = b.load(2, &from);
                from[rank - 1] = b.wrap_index(i, &n);
            }
            let element = b.load(0, &from);
            let element = if b.ty(element) == Ty::Bool { b.cast(Ty::I32, element) } else { element };
            let stop = if right { b.gt(element, value) } else { b.ge(element, value) };
            let (open, one) = (b.lt(low, high), b.int(1));
            let go = b.not(stop);
            let (up, down) = (b.and(open, go), b.and(open, stop));
            let next = b.add(middle, one);
            low = b.select(up, next, low);
            high = b.select(down, middle, high);
        }
        b.cast(dtype.ty(), low)
    })
}

/// The type in which both compare: floats before integers, wide before narrow.
fn wider(a: DType, b: DType) -> DType {
    let weight = |d: DType| (d.is_float(), d.size_bytes(), d);
    if weight(a) >= weight(b) { a } else { b }
}

fn isin(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let pick = |plural: &'static str, single: &'static str| if call.has(plural) { plural } else { single };
    let (x, set) = (pick("elements", "element"), pick("test_elements", "test_element"));
    let known = if x == "element" { set } else { x };
    let dtype = {
        let v = call.tensor(cx, known)?;
        cx.tensor_dtype(v)
    };
    let (x, set) = (tensor_or_number(cx, call, x, dtype)?, tensor_or_number(cx, call, set, dtype)?);
    let joint = wider(cx.tensor_dtype(x), cx.tensor_dtype(set));
    let (x, set) = (cx.cast(x, joint)?, cx.cast(set, joint)?);
    let set = super::index::flattened(cx, set)?;
    let rank = cx.rank(x);
    let mut pairs = cx.shape(x);
    pairs.push(cx.size(set, 0));
    let equal = cx.compute(pairs, DType::Bool, &[x, set], |b, axes| {
        let (x, y) = (b.load(0, &axes[..rank]), b.load(1, &axes[rank..]));
        b.eq(x, y)
    })?;
    let found = cx.reduce(equal, Combine::Any, &[rank], false, DType::Bool)?;
    let y = if call.bool("invert")? { cx.map1(found, |b, f| b.not(f))? } else { found };
    Ok(vec![Val::Tensor(y)])
}
