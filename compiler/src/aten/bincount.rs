//! How often each integer occurs, in a result as long as the largest one asks.

use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument, unsupported_dtype};
use crate::ir::DType;
use jvc_kernels::dtype::Ty;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[AtenOp { names: &["aten.bincount.default"], rule: bincount }];

/// More comparisons than these are said to be slow.
const MANY: i64 = 1 << 30;

/// Each place compares all numbers with itself: a scatter of ones would be one serial line. A negative number, which PyTorch refuses
/// when it runs, is counted nowhere.
fn bincount(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, least) = (call.tensor(cx, "self")?, call.dim("minlength")?);
    call.require("bincount-weights", "weights", call.opt_value(cx, "weights")? == Val::None, "None")?;
    let dtype = cx.tensor_dtype(x);
    if dtype != DType::I64 {
        // What follows in the program would be typed by that record.
        let text =
            format!("{} of {dtype}: torch.export records counts of type {dtype}, PyTorch gives i64", call.target);
        return Err(unsupported_dtype(text).with_help("count integers of 64 bits: torch.bincount(x.long())"));
    }
    if cx.rank(x) != 1 {
        return Err(bad_argument(format!("{} of {}, not of a line", call.target, cx.ty(x))));
    }
    let found = cx.found_size(call, 0, None)?;
    let top = cx.reduce(x, Combine::Max, &[0], false, DType::I64)?;
    // One more than the largest, which may be the largest i64; of no numbers that is the smallest i64 and one.
    let count = cx.map1(top, |b, top| {
        let (one, most) = (b.lit_int(Ty::I64, 1), b.lit_int(Ty::I64, i64::from(i32::MAX)));
        let (top, least) = (b.min(top, most), b.dim(&least));
        let (length, least) = (b.add(top, one), b.cast(Ty::I64, least));
        b.max(length, least)
    })?;
    cx.bind(&found, count)?;
    let n = cx.size(x, 0);
    let work = [&found.most, &n].map(|d| d.range(&cx.ranges).max).into_iter().fold(1, i64::saturating_mul);
    if work > MANY {
        let text = format!("bincount compares each of {n} numbers with each of up to {} places", found.most);
        cx.b.graph.slow.push((call.node.name.clone(), text));
    }
    let hits = cx.compute(vec![found.size, n], DType::I32, &[x], |b, axes| {
        let v = b.load(0, &[axes[1]]);
        let own = b.cast(Ty::I64, axes[0]);
        let hit = b.eq(v, own);
        b.cast(Ty::I32, hit)
    })?;
    let counts = cx.reduce(hits, Combine::Sum, &[1], false, DType::I32)?;
    Ok(vec![cx.cast(counts, DType::I64)?.into()])
}
