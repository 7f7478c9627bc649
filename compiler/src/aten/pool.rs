//! Pooling with fixed windows: average and maximum, 1–3-D. Adaptive pooling is in `adaptive_pool`.

use super::cx::Built;
use super::taps::windowed_sum;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, bad_argument, unsupported_shape};
use crate::ir::{Dim, Op, ValueId, Window};
use jvc_kernels::expr::ExprId;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.max_pool1d.default"], rule: |cx, call| max_pool(cx, call, 1, false) },
    AtenOp { names: &["aten.max_pool2d.default"], rule: |cx, call| max_pool(cx, call, 2, false) },
    AtenOp { names: &["aten.max_pool3d.default"], rule: |cx, call| max_pool(cx, call, 3, false) },
    AtenOp { names: &["aten.max_pool1d_with_indices.default"], rule: |cx, call| max_pool(cx, call, 1, true) },
    AtenOp { names: &["aten.max_pool2d_with_indices.default"], rule: |cx, call| max_pool(cx, call, 2, true) },
    AtenOp { names: &["aten.max_pool3d_with_indices.default"], rule: |cx, call| max_pool(cx, call, 3, true) },
    AtenOp { names: &["aten.avg_pool1d.default"], rule: |cx, call| avg_pool(cx, call, 1) },
    AtenOp { names: &["aten.avg_pool2d.default"], rule: |cx, call| avg_pool(cx, call, 2) },
    AtenOp { names: &["aten.avg_pool3d.default"], rule: |cx, call| avg_pool(cx, call, 3) },
];

/// Size of the pooled dimension. With `ceil_mode` the last window may hang over the end, but must start inside the input or the
/// padding before it.
fn pooled_size(size: &Dim, kernel: i64, stride: i64, padding: i64, dilation: i64, ceil: bool) -> Option<Dim> {
    let room = size + &Dim::from(2 * padding - dilation * (kernel - 1) - 1 + if ceil { stride - 1 } else { 0 });
    let out = &room.floor_div(&Dim::from(stride)) + &Dim::from(1);
    if !ceil {
        return Some(out);
    }
    let (out, size) = (out.as_const()?, size.as_const()?);
    Some(Dim::from(if (out - 1) * stride >= size + padding { out - 1 } else { out }))
}

/// A pooling with its batch dimension made explicit.
struct Pooling {
    kernel: Vec<i64>,
    window: Window,
    ceil: bool,
}

impl Pooling {
    fn read(call: &Call<'_>, spatial: usize) -> Result<Pooling, Diagnostic> {
        let kernel = call.ints_n("kernel_size", spatial)?;
        let stride = call.ints("stride")?;
        let stride = if stride.is_empty() { kernel.clone() } else { call.ints_n("stride", spatial)? };
        let dilation = if call.has("dilation") { call.ints_n("dilation", spatial)? } else { vec![1; spatial] };
        let window = Window { stride, padding: call.ints_n("padding", spatial)?, dilation };
        Ok(Pooling { kernel, window, ceil: call.bool("ceil_mode")? })
    }

    fn out_sizes(&self, shape: &[Dim]) -> Result<Vec<Dim>, Diagnostic> {
        let w = &self.window;
        (0..self.kernel.len())
            .map(|i| {
                pooled_size(&shape[i], self.kernel[i], w.stride[i], w.padding[i], w.dilation[i], self.ceil)
                    .ok_or_else(|| unsupported_shape(format!("ceil_mode over the symbolic size {}", shape[i])))
            })
            .collect()
    }
}

/// x as `[n, c, s…]`: without a batch dimension n is 1.
pub(super) fn with_batch(cx: &mut Cx, x: ValueId, spatial: usize) -> Result<(ValueId, bool), Diagnostic> {
    match cx.rank(x) {
        r if r == spatial + 2 => Ok((x, true)),
        r if r == spatial + 1 => Ok((cx.unsqueeze(x, 0)?, false)),
        r => Err(bad_argument(format!("{spatial}-dimensional pooling of a tensor of {r} dimensions"))),
    }
}

/// Drops the batch dimension that [`with_batch`] added.
pub(super) fn without_batch(cx: &mut Cx, y: ValueId, batched: bool) -> Built {
    if batched { Ok(y) } else { cx.squeeze(y, 0) }
}

fn max_pool(cx: &mut Cx, call: &Call<'_>, spatial: usize, indices: bool) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let (x, batched) = with_batch(cx, x, spatial)?;
    let pooling = Pooling::read(call, spatial)?;
    let out = pooling.out_sizes(&cx.shape(x)[2..])?;
    let op = Op::Pool {
        kernel: pooling.kernel,
        window: pooling.window,
        out,
        max: true,
        count_include_pad: false,
        divisor: None,
        indices,
    };
    let results = cx.add(op, vec![x])?;
    results.into_iter().map(|y| Ok(Val::Tensor(without_batch(cx, y, batched)?))).collect()
}

fn avg_pool(cx: &mut Cx, call: &Call<'_>, spatial: usize) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let (x, batched) = with_batch(cx, x, spatial)?;
    let pooling = Pooling::read(call, spatial)?;
    let out = pooling.out_sizes(&cx.shape(x)[2..])?;
    let divisor = if call.has("divisor_override") { call.opt_int("divisor_override")? } else { None };
    if !cx.tensor_dtype(x).is_float() {
        let y = integer_average(cx, x, &pooling, out, (call.bool("count_include_pad")?, divisor))?;
        return Ok(vec![Val::Tensor(without_batch(cx, y, batched)?)]);
    }
    let op = Op::Pool {
        kernel: pooling.kernel,
        window: pooling.window,
        out,
        max: false,
        count_include_pad: call.bool("count_include_pad")?,
        divisor,
        indices: false,
    };
    let y = cx.add1(op, vec![x])?;
    Ok(vec![Val::Tensor(without_batch(cx, y, batched)?)])
}

/// Average of integers: the sum of each window, divided toward zero.
fn integer_average(
    cx: &mut Cx,
    x: ValueId,
    pooling: &Pooling,
    out: Vec<Dim>,
    (count_include_pad, divisor): (bool, Option<i64>),
) -> Built {
    let (sizes, dtype) = (cx.shape(x)[2..].to_vec(), cx.tensor_dtype(x));
    let shape: Vec<Dim> = cx.shape(x)[..2].iter().chain(&out).cloned().collect();
    let (kernel, window) = (&pooling.kernel, &pooling.window);
    let taps: i64 = kernel.iter().product();
    let start = |b: &mut BodyBuilder, o: ExprId, d: usize| {
        let (stride, padding) = (b.int(window.stride[d]), b.int(window.padding[d]));
        let scaled = b.mul(o, stride);
        b.sub(scaled, padding)
    };
    let sum = windowed_sum(cx, &[x], taps, dtype, shape.clone(), |b, axes, k| {
        let (mut rest, mut inside) = (k, b.exprs.bool(true));
        let mut index = axes.to_vec();
        for d in (0..kernel.len()).rev() {
            let size = b.int(kernel[d]);
            let tap = b.rem(rest, size);
            rest = b.div(rest, size);
            let first = start(b, axes[d + 2], d);
            let at = b.add(first, tap);
            let within = b.in_range(at, &sizes[d]);
            inside = b.and(inside, within);
            index[d + 2] = b.clamp_index(at, &sizes[d]);
        }
        let value = b.load(0, &index);
        let zero = b.like(value, 0.0);
        b.select(inside, value, zero)
    })?;
    cx.compute(shape, dtype, &[sum], |b, axes| {
        let mut count = b.int(divisor.unwrap_or(1));
        for d in 0..kernel.len() {
            if divisor.is_some() {
                break;
            }
            let first = start(b, axes[d + 2], d);
            let (size, none) = (b.int(kernel[d]), b.int(0));
            let end = b.add(first, size);
            let pad = if count_include_pad { window.padding[d] } else { 0 };
            let limit = b.dim(&(&sizes[d] + &Dim::from(pad)));
            let end = b.min(end, limit);
            let begin = if count_include_pad { first } else { b.max(first, none) };
            let len = b.sub(end, begin);
            count = b.mul(count, len);
        }
        let total = b.load(0, axes);
        let count = b.cast(dtype.ty(), count);
        b.div(total, count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceil_mode_drops_a_window_that_starts_in_the_padding_behind() {
        let size = |n, k, s, p, ceil| pooled_size(&Dim::from(n), k, s, p, 1, ceil).and_then(|d| d.as_const());
        // Values of torch.nn.functional.max_pool1d.
        assert_eq!(size(7, 2, 2, 0, false), Some(3));
        assert_eq!(size(7, 2, 2, 0, true), Some(4));
        assert_eq!(size(5, 2, 2, 1, true), Some(3));
        assert_eq!(size(6, 3, 4, 1, true), Some(2));
    }
}
