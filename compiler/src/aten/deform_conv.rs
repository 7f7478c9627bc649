//! `torchvision.deform_conv2d`: each tap of the kernel reads at an offset from data, optionally scaled by a mask. Sampled columns, then one
//! batched matrix product per group.

use super::cx::Built;
use super::norm::accumulator;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, unsupported_shape};
use crate::ir::infer::conv_out_size;
use crate::ir::{Dim, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[AtenOp { names: &["torchvision.deform_conv2d.default"], rule: deform_conv }];

/// Attributes of one call.
struct Deformed {
    stride: [i64; 2],
    padding: [i64; 2],
    dilation: [i64; 2],
    kernel: [i64; 2],
    offset_groups: i64,
    masked: bool,
}

fn deform_conv(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, weight) = (call.tensor(cx, "input")?, call.tensor(cx, "weight")?);
    let (offset, mask, bias) = (call.tensor(cx, "offset")?, call.tensor(cx, "mask")?, call.tensor(cx, "bias")?);
    let w_shape = cx.shape(weight);
    let (Some(kh), Some(kw), Some(channels)) = (w_shape[2].as_const(), w_shape[3].as_const(), cx.size(x, 1).as_const())
    else {
        return Err(unsupported_shape(format!("deform_conv2d of {} with {}", cx.ty(x), cx.ty(weight))));
    };
    let d = Deformed {
        stride: [call.int32("stride_h", 1)?, call.int32("stride_w", 1)?],
        padding: [call.int32("pad_h", 0)?, call.int32("pad_w", 0)?],
        dilation: [call.int32("dilation_h", 1)?, call.int32("dilation_w", 1)?],
        kernel: [kh, kw],
        offset_groups: call.int32("offset_groups", 1)?,
        masked: call.bool("use_mask")?,
    };
    let groups = call.int32("groups", 1)?;
    let out =
        [0, 1].map(|i| conv_out_size(&cx.size(x, i + 2), &w_shape[i + 2], d.stride[i], d.padding[i], d.dilation[i]));
    let columns = columns(cx, &d, [x, offset, mask], channels, &out)?;
    let (n, o) = (cx.size(x, 0), w_shape[0].clone());
    let places = &out[0] * &out[1];
    let depth = Dim::from(channels / groups * kh * kw);
    let columns = cx.reshape(columns, vec![n.clone(), groups.into(), depth.clone(), places])?;
    let filters = cx.reshape(weight, vec![Dim::from(1), groups.into(), o.floor_div(&groups.into()), depth])?;
    let y = cx.matmul(filters, columns)?;
    let y = cx.reshape(y, vec![n, o, out[0].clone(), out[1].clone()])?;
    Ok(vec![Val::Tensor(super::conv::add_channel_bias(cx, y, bias)?)])
}

/// `[n, c, kh, kw, oh, ow]`: the sampled (and masked) input of each tap.
fn columns(cx: &mut Cx, d: &Deformed, operands: [ValueId; 3], channels: i64, out: &[Dim; 2]) -> Built {
    let [x, _, _] = operands;
    let (n, sizes) = (cx.size(x, 0), [cx.size(x, 2), cx.size(x, 3)]);
    let dtype = cx.tensor_dtype(x);
    let ty = accumulator(dtype).ty();
    let [kh, kw] = d.kernel;
    let shape = vec![n, channels.into(), kh.into(), kw.into(), out[0].clone(), out[1].clone()];
    let per_offset_group = channels / d.offset_groups;
    let inputs = if d.masked { operands.to_vec() } else { operands[..2].to_vec() };
    cx.compute(shape, dtype, &inputs, |b, axes| {
        let [batch, channel, i, j, oy, ox] = axes[..] else { unreachable!("six axes were asked for") };
        let (per, width) = (b.int(per_offset_group), b.int(kw));
        let group = b.div(channel, per);
        let row = b.mul(i, width);
        let tap = b.add(row, j);
        let taps = b.int(kh * kw);
        let base = b.mul(group, taps);
        let tap = b.add(base, tap);
        let two = b.int(2);
        let pair = b.mul(tap, two);
        let positions = [(0, i, oy), (1, j, ox)].map(|(k, t, o)| {
            let which = b.int(k as i64);
            let at = b.add(pair, which);
            let offset = b.load(1, &[batch, at, oy, ox]);
            let offset = b.cast(ty, offset);
            let start = window_position(b, d, k, o, t);
            let start = b.cast(ty, start);
            b.add(start, offset)
        });
        let value = bilinear(b, [batch, channel], positions, &sizes, ty);
        if !d.masked {
            return value;
        }
        let mask = b.load(2, &[batch, tap, oy, ox]);
        let mask = b.cast(ty, mask);
        b.mul(value, mask)
    })
}

/// `o · stride − padding + t · dilation`.
fn window_position(b: &mut BodyBuilder, d: &Deformed, k: usize, o: ExprId, t: ExprId) -> ExprId {
    let (s, p, l) = (b.int(d.stride[k]), b.int(d.padding[k]), b.int(d.dilation[k]));
    let start = b.mul(o, s);
    let start = b.sub(start, p);
    let step = b.mul(t, l);
    b.add(start, step)
}

/// Bilinear sample; elements outside count 0.
fn bilinear(b: &mut BodyBuilder, front: [ExprId; 2], at: [ExprId; 2], sizes: &[Dim; 2], ty: Ty) -> ExprId {
    let one = b.lit(ty, 1.0);
    let sides = [0, 1].map(|k| {
        let low = b.un(Unary::Floor, at[k]);
        let high = b.add(low, one);
        let (w_low, w_high) = (b.sub(high, at[k]), b.sub(at[k], low));
        [(low, w_low), (high, w_high)].map(|(v, w)| {
            let i = b.cast(Ty::I32, v);
            let inside = b.in_range(i, &sizes[k]);
            (b.clamp_index(i, &sizes[k]), inside, w)
        })
    });
    let mut sum = None;
    for (y, y_in, wy) in sides[0] {
        for (x, x_in, wx) in sides[1] {
            let value = b.load(0, &[front[0], front[1], y, x]);
            let value = b.cast(ty, value);
            let (inside, zero) = (b.and(y_in, x_in), b.lit(ty, 0.0));
            let value = b.select(inside, value, zero);
            let weight = b.mul(wy, wx);
            let term = b.mul(weight, value);
            sum = Some(sum.map_or(term, |s| b.add(s, term)));
        }
    }
    sum.expect("four corners")
}
