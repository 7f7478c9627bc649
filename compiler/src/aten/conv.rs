//! Convolutions, 1–3-D, plain and transposed. Tensors without a batch dimension get one for the kernel; the bias is a map.

use super::cx::Built;
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::infer::infer;
use crate::ir::{Dim, Op, ValueId, Window};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"], rule: conv },
    AtenOp { names: &["aten.conv1d.padding", "aten.conv2d.padding", "aten.conv3d.padding"], rule: conv_named_padding },
    AtenOp {
        names: &["aten.conv_transpose1d.default", "aten.conv_transpose2d.input", "aten.conv_transpose3d.input"],
        rule: conv_transpose,
    },
    AtenOp { names: &["aten.convolution.default", "aten._convolution.default"], rule: convolution },
];

/// Operands and attributes of one convolution.
struct Convolution {
    x: ValueId,
    weight: ValueId,
    bias: Option<ValueId>,
    window: Window,
    groups: i64,
    /// Extra size at the end of a transposed convolution's output.
    transposed: Option<Vec<i64>>,
}

impl Convolution {
    fn build(self, cx: &mut Cx) -> Result<Vec<Val>, Diagnostic> {
        let rank = cx.rank(self.weight);
        let batched = cx.rank(self.x) == rank;
        if !batched && cx.rank(self.x) + 1 != rank {
            let text = format!("convolution of {} with {}", cx.ty(self.x), cx.ty(self.weight));
            return Err(bad_argument(text));
        }
        let x = if batched { self.x } else { cx.unsqueeze(self.x, 0)? };
        let (window, groups) = (self.window, self.groups);
        let op = match self.transposed {
            Some(output_padding) => Op::ConvTranspose { window, groups, output_padding },
            None => Op::Conv { window, groups },
        };
        let mut y = if cx.tensor_dtype(x).is_float() {
            cx.add1(op, vec![x, self.weight])?
        } else {
            integer_conv(cx, x, self.weight, &op)?
        };
        if let Some(bias) = self.bias {
            y = add_channel_bias(cx, y, bias)?;
        }
        if !batched {
            y = cx.squeeze(y, 0)?;
        }
        Ok(vec![Val::Tensor(y)])
    }
}

/// Convolution of integers: the elements under each tap, then a product of integer matrices per group. In the transposed form a tap reads
/// where the distance to it is a multiple of the stride.
fn integer_conv(cx: &mut Cx, x: ValueId, weight: ValueId, op: &Op) -> Built {
    let (Op::Conv { window, groups } | Op::ConvTranspose { window, groups, .. }) = op else {
        unreachable!("only convolutions come here")
    };
    let transposed = matches!(op, Op::ConvTranspose { .. });
    let out = infer(op, &[cx.ty(x), cx.ty(weight)])?.remove(0).shape;
    let (x_shape, w_shape, dtype) = (cx.shape(x), cx.shape(weight), cx.tensor_dtype(x));
    let spatial = out.len() - 2;
    let (taps, places) = (w_shape[2..].to_vec(), out[2..].to_vec());
    let shape: Vec<Dim> = x_shape[..2].iter().chain(&taps).chain(&places).cloned().collect();
    let columns = cx.compute(shape, dtype, &[x], |b, axes| {
        let mut inside = b.exprs.bool(true);
        let mut from = axes[..2].to_vec();
        for d in 0..spatial {
            let (stride, dilation) = (b.int(window.stride[d]), b.int(window.dilation[d]));
            let (padding, none) = (b.int(window.padding[d]), b.int(0));
            let (reach, place) = (b.mul(axes[2 + d], dilation), axes[2 + spatial + d]);
            let at = if transposed {
                let shifted = b.add(place, padding);
                let distance = b.sub(shifted, reach);
                let (at, rest) = (b.div(distance, stride), b.rem(distance, stride));
                let (whole, after) = (b.eq(rest, none), b.le(none, distance));
                let hit = b.and(whole, after);
                inside = b.and(inside, hit);
                at
            } else {
                let start = b.mul(place, stride);
                let at = b.add(start, reach);
                b.sub(at, padding)
            };
            let within = b.in_range(at, &x_shape[2 + d]);
            inside = b.and(inside, within);
            from.push(b.clamp_index(at, &x_shape[2 + d]));
        }
        let (value, zero) = (b.load(0, &from), b.lit(dtype.ty(), 0.0));
        b.select(inside, value, zero)
    })?;
    let count = |dims: &[Dim]| dims.iter().fold(Dim::from(1), |p, d| &p * d);
    let (g, n_taps) = (Dim::from(*groups), count(&taps));
    let depth = &x_shape[1].floor_div(&g) * &n_taps;
    let columns = cx.reshape(columns, vec![x_shape[0].clone(), g.clone(), depth.clone(), count(&places)])?;
    let per_group = out[1].floor_div(&g);
    let weight = if transposed {
        // [c, o/g, k…] → [g, o/g, c/g · k…]
        let split = vec![g.clone(), x_shape[1].floor_div(&g), per_group.clone(), n_taps];
        let w = cx.reshape(weight, split)?;
        cx.permute(w, &[0, 2, 1, 3])?
    } else {
        weight
    };
    let weight = cx.reshape(weight, vec![Dim::from(1), g, per_group, depth])?;
    let y = super::matmul::multiply(cx, weight, columns)?;
    cx.reshape(y, out)
}

/// y + bias along dimension 1.
pub(super) fn add_channel_bias(cx: &mut Cx, y: ValueId, bias: ValueId) -> Built {
    let mut shape = vec![Dim::from(1); cx.rank(y)];
    shape[1] = cx.shape(bias)[0].clone();
    let bias = cx.reshape(bias, shape)?;
    cx.add_values(y, bias)
}

fn operands(cx: &mut Cx, call: &Call<'_>) -> Result<(ValueId, ValueId, Option<ValueId>, usize), Diagnostic> {
    let (x, weight) = (call.tensor(cx, "input")?, call.tensor(cx, "weight")?);
    let bias = call.opt_tensor(cx, "bias")?;
    let spatial = cx.rank(weight).saturating_sub(2);
    Ok((x, weight, bias, spatial))
}

fn conv(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, weight, bias, spatial) = operands(cx, call)?;
    let window = Window {
        stride: call.ints_n("stride", spatial)?,
        padding: call.ints_n("padding", spatial)?,
        dilation: call.ints_n("dilation", spatial)?,
    };
    Convolution { x, weight, bias, window, groups: call.int("groups")?, transposed: None }.build(cx)
}

/// `padding="same"`: `dilation·(kernel − 1)` in all, the odd one at the end.
fn conv_named_padding(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (mut x, weight, bias, spatial) = operands(cx, call)?;
    let dilation = call.ints_n("dilation", spatial)?;
    let mut padding = vec![0; spatial];
    let name = call.str("padding")?;
    if name == "same" {
        let rank = cx.rank(x);
        let mut after = vec![0; rank];
        for (i, pad) in padding.iter_mut().enumerate() {
            let kernel = cx.shape(weight)[i + 2].clone();
            let Some(kernel) = kernel.as_const() else {
                return Err(bad_argument(format!("a kernel of symbolic size {kernel} with padding=\"same\"")));
            };
            let total = dilation[i] * (kernel - 1);
            *pad = total / 2;
            after[rank - spatial + i] = total % 2;
        }
        x = cx.pad(x, vec![0; rank], after, 0.0)?;
    } else if name != "valid" {
        return Err(bad_argument(format!("padding={name:?} of a convolution")));
    }
    let window = Window { stride: call.ints_n("stride", spatial)?, padding, dilation };
    Convolution { x, weight, bias, window, groups: call.int("groups")?, transposed: None }.build(cx)
}

fn conv_transpose(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let (x, weight, bias, spatial) = operands(cx, call)?;
    let window = Window {
        stride: call.ints_n("stride", spatial)?,
        padding: call.ints_n("padding", spatial)?,
        dilation: call.ints_n("dilation", spatial)?,
    };
    let transposed = Some(call.ints_n("output_padding", spatial)?);
    Convolution { x, weight, bias, window, groups: call.int("groups")?, transposed }.build(cx)
}

fn convolution(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let transposed = call.bool("transposed")?;
    if transposed { conv_transpose(cx, call) } else { conv(cx, call) }
}
