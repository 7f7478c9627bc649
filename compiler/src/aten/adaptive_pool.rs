//! Adaptive pooling: output size given, windows `⌊i·n/o⌋ .. ⌈(i+1)·n/o⌉`. Equal windows become an ordinary pooling, one window a reduction;
//! unequal ones reduce over an axis of taps with those outside the window masked.

use super::cx::Built;
use super::pool::{with_batch, without_batch};
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, unsupported_shape};
use crate::ir::{DType, Dim, Op, Shape, ValueId, Window};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::ExprId;
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.adaptive_avg_pool1d.default"], rule: |cx, call| average(cx, call, 1) },
    AtenOp {
        names: &["aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default"],
        rule: |cx, call| average(cx, call, 2),
    },
    AtenOp {
        names: &["aten.adaptive_avg_pool3d.default", "aten._adaptive_avg_pool3d.default"],
        rule: |cx, call| average(cx, call, 3),
    },
    AtenOp { names: &["aten.adaptive_max_pool1d.default"], rule: |cx, call| maximum(cx, call, 1) },
    AtenOp { names: &["aten.adaptive_max_pool2d.default"], rule: |cx, call| maximum(cx, call, 2) },
    AtenOp { names: &["aten.adaptive_max_pool3d.default"], rule: |cx, call| maximum(cx, call, 3) },
];

/// Output sizes: those given, the input's where the export has none.
fn out_sizes(call: &Call<'_>, shape: &[Dim]) -> Result<Vec<Dim>, Diagnostic> {
    let given = call.dims("output_size")?;
    let n = shape.len();
    Ok((0..n).map(|i| if given.len() == 1 { given[0].clone() } else { given[i].clone() }).collect())
}

/// Kernel sizes if every dimension divides into equal windows.
fn equal_windows(sizes: &[Dim], out: &[Dim]) -> Option<Vec<i64>> {
    sizes.iter().zip(out).map(|(n, o)| n.exact_div(o).and_then(|k| k.as_const()).filter(|&k| k > 0)).collect()
}

fn fixed_pool(cx: &mut Cx, x: ValueId, kernel: Vec<i64>, out: Vec<Dim>, max: bool) -> Result<Vec<ValueId>, Diagnostic> {
    let n = kernel.len();
    let window = Window { stride: kernel.clone(), padding: vec![0; n], dilation: vec![1; n] };
    cx.add(Op::Pool { kernel, window, out, max, count_include_pad: false, divisor: None, indices: max }, vec![x])
}

fn average(cx: &mut Cx, call: &Call<'_>, spatial: usize) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let (x, batched) = with_batch(cx, x, spatial)?;
    let sizes = cx.shape(x)[2..].to_vec();
    let out = out_sizes(call, &sizes)?;
    let y = if out.iter().all(|o| o.is(1)) {
        mean_of_all(cx, x, spatial)?
    } else if let Some(kernel) = equal_windows(&sizes, &out) {
        fixed_pool(cx, x, kernel, out, false)?[0]
    } else {
        let windows = Windows::new(&sizes, &out)?;
        let dtype = cx.tensor_dtype(x);
        let acc = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let taps = windows.spread(cx, x, acc, 0.0)?;
        let sum = cx.reduce(taps, Combine::Sum, &[2 + spatial], false, acc)?;
        windows.divide_by_count(cx, sum, dtype)?
    };
    Ok(vec![Val::Tensor(without_batch(cx, y, batched)?)])
}

fn mean_of_all(cx: &mut Cx, x: ValueId, spatial: usize) -> Built {
    let dims: Vec<usize> = (2..2 + spatial).collect();
    super::norm::mean(cx, x, &dims)
}

fn maximum(cx: &mut Cx, call: &Call<'_>, spatial: usize) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let (x, batched) = with_batch(cx, x, spatial)?;
    let sizes = cx.shape(x)[2..].to_vec();
    let out = out_sizes(call, &sizes)?;
    let results = match equal_windows(&sizes, &out) {
        Some(kernel) => fixed_pool(cx, x, kernel, out, true)?,
        None => {
            let windows = Windows::new(&sizes, &out)?;
            let dtype = cx.tensor_dtype(x);
            let taps = windows.spread(cx, x, dtype, f64::NEG_INFINITY)?;
            let last = 2 + spatial;
            let best = cx.reduce(taps, Combine::Max, &[last], false, dtype)?;
            let at = cx.reduce(taps, Combine::ArgMax, &[last], false, DType::I64)?;
            vec![best, windows.flat_position(cx, at)?]
        }
    };
    results.into_iter().map(|y| Ok(Val::Tensor(without_batch(cx, y, batched)?))).collect()
}

/// Unequal windows over literal sizes. Taps of all dimensions count row-major within the largest window.
struct Windows {
    sizes: Vec<i64>,
    out: Vec<i64>,
    longest: Vec<i64>,
}

impl Windows {
    fn new(sizes: &[Dim], out: &[Dim]) -> Result<Windows, Diagnostic> {
        let literal = |dims: &[Dim]| dims.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>();
        let (Some(sizes), Some(out)) = (literal(sizes), literal(out)) else {
            return Err(unsupported_shape(format!("adaptive pooling of {sizes:?} to {out:?} with unequal windows")));
        };
        let longest =
            sizes.iter().zip(&out).map(|(&n, &o)| (0..o).map(|i| end(i, n, o) - i * n / o).max().unwrap_or(0));
        let longest = longest.collect();
        Ok(Windows { sizes, out, longest })
    }

    fn taps(&self) -> i64 {
        self.longest.iter().product()
    }

    /// Start and length of the window of output position `axis(2 + d)`.
    fn window(&self, p: &mut BodyBuilder, d: usize) -> (ExprId, ExprId) {
        let i = p.axis(2 + d);
        let (n, o, one) = (p.int(self.sizes[d]), p.int(self.out[d]), p.int(1));
        let scaled = p.mul(i, n);
        let start = p.div(scaled, o);
        let next = p.add(i, one);
        let scaled = p.mul(next, n);
        let round_up = p.int(self.out[d] - 1);
        let scaled = p.add(scaled, round_up);
        let end = p.div(scaled, o);
        let len = p.sub(end, start);
        (start, len)
    }

    /// Offsets of tap `k` in each dimension, `k` row-major in the largest window.
    fn offsets(&self, p: &mut BodyBuilder, k: ExprId) -> Vec<ExprId> {
        let mut offsets = vec![];
        let mut rest = k;
        for d in (0..self.longest.len()).rev() {
            let n = p.int(self.longest[d]);
            offsets.insert(0, p.rem(rest, n));
            rest = p.div(rest, n);
        }
        offsets
    }

    /// `[n, c, o…, taps]`: the elements of each window, `fill` where the window is shorter than the largest.
    fn spread(&self, cx: &mut Cx, x: ValueId, dtype: DType, fill: f64) -> Built {
        let mut shape: Shape = cx.shape(x)[..2].to_vec();
        shape.extend(self.out.iter().map(|&o| Dim::from(o)));
        shape.push(Dim::from(self.taps()));
        cx.compute(shape, dtype, &[x], |p, axes| {
            let offsets = self.offsets(p, axes[2 + self.sizes.len()]);
            let mut index = vec![axes[0], axes[1]];
            let mut inside = p.exprs.bool(true);
            for (d, &offset) in offsets.iter().enumerate() {
                let (start, len) = self.window(p, d);
                let within = p.lt(offset, len);
                inside = p.and(inside, within);
                let at = p.add(start, offset);
                index.push(p.clamp_index(at, &Dim::from(self.sizes[d])));
            }
            let value = p.load(0, &index);
            let value = p.cast(dtype.ty(), value);
            let fill = p.lit(dtype.ty(), fill);
            p.select(inside, value, fill)
        })
    }

    fn divide_by_count(&self, cx: &mut Cx, sum: ValueId, dtype: DType) -> Built {
        cx.compute(cx.shape(sum), dtype, &[sum], |p, axes| {
            let mut count = p.int(1);
            for d in 0..self.sizes.len() {
                let (_, len) = self.window(p, d);
                count = p.mul(count, len);
            }
            let total = p.load(0, axes);
            let count = p.cast(dtype.ty(), count);
            p.div(total, count)
        })
    }

    /// Position in the flat spatial input of tap `at` of each window.
    fn flat_position(&self, cx: &mut Cx, at: ValueId) -> Built {
        cx.compute(cx.shape(at), DType::I64, &[at], |p, axes| {
            let k = p.load(0, axes);
            let k = p.cast(Ty::I32, k);
            let offsets = self.offsets(p, k);
            let mut flat = p.int(0);
            for (d, &offset) in offsets.iter().enumerate() {
                let (start, _) = self.window(p, d);
                let position = p.add(start, offset);
                let n = p.int(self.sizes[d]);
                flat = p.mul(flat, n);
                flat = p.add(flat, position);
            }
            p.cast(Ty::I64, flat)
        })
    }
}

/// End of window `i`.
fn end(i: i64, n: i64, o: i64) -> i64 {
    ((i + 1) * n + o - 1) / o
}
