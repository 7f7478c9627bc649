//! Sums over the taps of a window (resampling filters, `col2im`, overlap-add): unrolled in one body when short, a reduction over an extra
//! axis when long.

use super::cx::Built;
use super::{BodyBuilder, Cx};
use crate::ir::{DType, Dim, Shape, ValueId};
use jvc_kernels::expr::ExprId;
use jvc_kernels::spec::Combine;

/// Taps up to which the sum is one body: beyond, loads of one thread no longer overlap well and the text grows.
const UNROLLED: i64 = 16;

/// `Σ_k term(b, axes, k)` for k in 0..taps over the coordinates of `shape`, in `dtype`'s register type. `term` sees the axes of the
/// result and the tap as an i32; its operands are `inputs`.
pub(super) fn windowed_sum(
    cx: &mut Cx,
    inputs: &[ValueId],
    taps: i64,
    dtype: DType,
    shape: Shape,
    term: impl Fn(&mut BodyBuilder, &[ExprId], ExprId) -> ExprId,
) -> Built {
    if taps <= UNROLLED {
        return cx.compute(shape, dtype, inputs, |b, axes| sum_terms(b, dtype, taps, |b, k| term(b, axes, k)));
    }
    let rank = shape.len();
    let mut spread = shape;
    spread.push(Dim::from(taps));
    let products = cx.compute(spread, dtype, inputs, |b, axes| term(b, &axes[..rank], axes[rank]))?;
    cx.reduce(products, Combine::Sum, &[rank], false, dtype)
}

/// The sum of `n` terms in one body; 0 for none.
fn sum_terms(
    b: &mut BodyBuilder,
    dtype: DType,
    n: i64,
    mut term: impl FnMut(&mut BodyBuilder, ExprId) -> ExprId,
) -> ExprId {
    let mut acc = None;
    for k in 0..n {
        let k = b.int(k);
        let t = term(b, k);
        acc = Some(acc.map_or(t, |a| b.add(a, t)));
    }
    acc.unwrap_or_else(|| b.lit(dtype.ty(), 0.0))
}
