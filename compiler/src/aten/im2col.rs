//! Sliding blocks as columns (`im2col`, also `unfold`) and their sum back into an image (`col2im`, also `fold`).

use super::cx::Built;
use super::pool::{with_batch, without_batch};
use super::taps::windowed_sum;
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::infer::conv_out_size;
use crate::ir::{Dim, ValueId};
use jvc_kernels::expr::ExprId;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.im2col.default"], rule: im2col },
    AtenOp { names: &["aten.col2im.default"], rule: col2im },
];

/// Block geometry, height and width.
struct Blocks {
    kernel: [i64; 2],
    dilation: [i64; 2],
    padding: [i64; 2],
    stride: [i64; 2],
}

impl Blocks {
    fn read(call: &Call<'_>) -> Result<Blocks, Diagnostic> {
        let pair = |name: &str| call.ints_n(name, 2).map(|v| [v[0], v[1]]);
        Ok(Blocks {
            kernel: pair("kernel_size")?,
            dilation: pair("dilation")?,
            padding: pair("padding")?,
            stride: pair("stride")?,
        })
    }

    /// Blocks along height and width of an image of these sizes.
    fn counts(&self, sizes: [&Dim; 2]) -> [Dim; 2] {
        [0, 1].map(|i| {
            conv_out_size(sizes[i], &Dim::from(self.kernel[i]), self.stride[i], self.padding[i], self.dilation[i])
        })
    }
}

fn im2col(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let (x, batched) = with_batch(cx, x, 2)?;
    let blocks = Blocks::read(call)?;
    let shape = cx.shape(x);
    let [bh, bw] = blocks.counts([&shape[2], &shape[3]]);
    let [kh, kw] = blocks.kernel.map(Dim::from);
    let spread = vec![shape[0].clone(), shape[1].clone(), kh.clone(), kw.clone(), bh.clone(), bw.clone()];
    let y = cx.compute(spread, cx.tensor_dtype(x), &[x], |b, axes| {
        let mut inside = b.exprs.bool(true);
        let mut from: Vec<ExprId> = axes[..2].to_vec();
        for i in 0..2 {
            let (stride, dilation, padding) =
                (b.int(blocks.stride[i]), b.int(blocks.dilation[i]), b.int(blocks.padding[i]));
            let start = b.mul(axes[4 + i], stride);
            let step = b.mul(axes[2 + i], dilation);
            let at = b.add(start, step);
            let at = b.sub(at, padding);
            let within = b.in_range(at, &shape[2 + i]);
            inside = b.and(inside, within);
            from.push(b.clamp_index(at, &shape[2 + i]));
        }
        let value = b.load(0, &from);
        let zero = b.like(value, 0.0);
        b.select(inside, value, zero)
    })?;
    let rows = &(&shape[1] * &kh) * &kw;
    let y = cx.reshape(y, vec![shape[0].clone(), rows, &bh * &bw])?;
    Ok(vec![Val::Tensor(without_batch(cx, y, batched)?)])
}

fn col2im(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let columns = call.tensor(cx, "self")?;
    let batched = cx.rank(columns) == 3;
    let columns = cx.to_rank(columns, 3)?;
    let blocks = Blocks::read(call)?;
    let sizes = call.dims("output_size")?;
    let [h, w] = &sizes[..] else { return Err(bad_argument("col2im into an image without height and width")) };
    let y = summed(cx, columns, &blocks, [h, w])?;
    Ok(vec![Val::Tensor(without_batch(cx, y, batched)?)])
}

/// Each element is the sum over the taps of the blocks that cover it.
fn summed(cx: &mut Cx, columns: ValueId, blocks: &Blocks, sizes: [&Dim; 2]) -> Built {
    let counts = blocks.counts(sizes);
    let [kh, kw] = blocks.kernel;
    let (batch, dtype) = (cx.size(columns, 0), cx.tensor_dtype(columns));
    let channels = cx.size(columns, 1).floor_div(&Dim::from(kh * kw));
    let [bh, bw] = counts.clone();
    let columns = cx.reshape(columns, vec![batch.clone(), channels.clone(), kh.into(), kw.into(), bh, bw])?;
    let shape = vec![batch, channels, sizes[0].clone(), sizes[1].clone()];
    windowed_sum(cx, &[columns], kh * kw, dtype, shape, |b, axes, k| {
        let width = b.int(kw);
        let taps = [b.div(k, width), b.rem(k, width)];
        let mut inside = b.exprs.bool(true);
        let mut places = vec![];
        for i in 0..2 {
            let (stride, dilation, padding) =
                (b.int(blocks.stride[i]), b.int(blocks.dilation[i]), b.int(blocks.padding[i]));
            let shifted = b.add(axes[2 + i], padding);
            let step = b.mul(taps[i], dilation);
            let from_start = b.sub(shifted, step);
            let place = b.div(from_start, stride);
            let (back, zero) = (b.mul(place, stride), b.int(0));
            let (whole, after) = (b.eq(back, from_start), b.le(zero, from_start));
            let exists = b.in_range(place, &counts[i]);
            inside = [whole, after, exists].into_iter().fold(inside, |all, c| b.and(all, c));
            places.push(b.clamp_index(place, &counts[i]));
        }
        let value = b.load(0, &[axes[0], axes[1], taps[0], taps[1], places[0], places[1]]);
        let zero = b.like(value, 0.0);
        b.select(inside, value, zero)
    })
}
