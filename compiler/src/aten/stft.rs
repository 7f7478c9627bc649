//! Short-time Fourier transform and its inverse: windows are gathered with their padding in one body, overlapping windows add up in
//! another.

use super::cx::Built;
use super::fft::{Pair, Scaling, half, hermitian_extension, transform};
use super::taps::windowed_sum;
use super::{AtenOp, BodyBuilder, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::{Dim, ValueId};
use jvc_kernels::expr::{ExprId, Unary};

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.stft.default", "aten.stft.center"], rule: stft },
    AtenOp { names: &["aten.istft.default"], rule: istft },
];

/// Window geometry that both directions share.
struct Frames {
    n_fft: i64,
    hop: i64,
    win_length: i64,
    window: Option<ValueId>,
}

impl Frames {
    fn read(cx: &mut Cx, call: &Call<'_>) -> Result<Frames, Diagnostic> {
        let n_fft = call.int("n_fft")?;
        let hop = call.opt_int("hop_length")?.unwrap_or(n_fft / 4);
        let win_length = call.opt_int("win_length")?.unwrap_or(n_fft);
        if n_fft < 1 || hop < 1 || !(1..=n_fft).contains(&win_length) {
            let text = format!("{}: n_fft={n_fft} hop_length={hop} win_length={win_length}", call.target);
            return Err(bad_argument(text));
        }
        Ok(Frames { n_fft, hop, win_length, window: call.opt_tensor(cx, "window")? })
    }

    /// Weight of position `j` of a frame: the window, centred in the frame, 0 around it. The window is operand `k`.
    fn weight(&self, b: &mut BodyBuilder, j: ExprId, like: ExprId, k: usize) -> ExprId {
        let left = b.int((self.n_fft - self.win_length) / 2);
        let at = b.sub(j, left);
        let len = Dim::from(self.win_length);
        let inside = b.in_range(at, &len);
        let zero = b.like(like, 0.0);
        let value = match self.window {
            Some(_) => {
                let at = b.clamp_index(at, &len);
                let w = b.load(k, &[at]);
                let ty = b.ty(like);
                b.cast(ty, w)
            }
            None => b.like(like, 1.0),
        };
        if self.win_length == self.n_fft { value } else { b.select(inside, value, zero) }
    }
}

/// A position beyond the signal in the manner of `pad_mode`; returns the index to read and whether to read at all.
fn padded_position(b: &mut BodyBuilder, at: ExprId, n: &Dim, mode: &str) -> (ExprId, Option<ExprId>) {
    match mode {
        "reflect" => {
            let last = b.dim(&(n - &Dim::from(1)));
            let at = b.un(Unary::Abs, at);
            let over = b.sub(last, at);
            let over = b.un(Unary::Abs, over);
            let at = b.sub(last, over);
            (b.clamp_index(at, n), None)
        }
        "replicate" => (b.clamp_index(at, n), None),
        _ => {
            let inside = b.in_range(at, n);
            (b.clamp_index(at, n), Some(inside))
        }
    }
}

fn stft(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let x = call.tensor(cx, "self")?;
    let frames = Frames::read(cx, call)?;
    let centred = call.has("center") && call.bool("center")?;
    let mode = if centred { call.str("pad_mode")? } else { "constant".to_string() };
    if !["reflect", "replicate", "constant"].contains(&mode.as_str()) {
        return Err(bad_argument(format!("{}: pad_mode={mode:?} is not supported", call.target)));
    }
    let batched = cx.rank(x) == 2;
    let x = cx.to_rank(x, 2)?;
    let padding = if centred { frames.n_fft / 2 } else { 0 };
    let windows = windowed(cx, x, &frames, padding, &mode)?;
    let zeros = cx.full(cx.shape(windows), cx.tensor_dtype(windows), 0.0)?;
    let mut pair = transform(cx, (windows, zeros), 2, false)?;
    if call.opt_bool("onesided")?.unwrap_or(true) {
        pair = half(cx, pair, 2)?;
    }
    let scaling = if call.bool("normalized")? { Scaling::ByRoot } else { Scaling::None };
    let n = Dim::from(frames.n_fft);
    let mut part = |v: ValueId| {
        let v = scaling.apply(cx, v, &n)?;
        let v = cx.transpose(v, 1, 2)?;
        if batched { Ok(v) } else { cx.squeeze(v, 0) }
    };
    let (re, im): Pair = (part(pair.0)?, part(pair.1)?);
    if call.opt_bool("return_complex")?.unwrap_or(true) {
        return Ok(vec![Val::Complex { re, im }]);
    }
    Ok(vec![Val::Tensor(cx.interleave(re, im)?)])
}

/// `[batch, frames, n_fft]`: the signal under each window.
fn windowed(cx: &mut Cx, x: ValueId, frames: &Frames, padding: i64, mode: &str) -> Built {
    let (batch, n) = (cx.size(x, 0), cx.size(x, 1));
    let room = &n + &Dim::from(2 * padding - frames.n_fft);
    let count = &room.floor_div(&Dim::from(frames.hop)) + &Dim::from(1);
    let inputs: Vec<ValueId> = [x].into_iter().chain(frames.window).collect();
    cx.compute(vec![batch, count, Dim::from(frames.n_fft)], cx.tensor_dtype(x), &inputs, |b, axes| {
        let (hop, shift) = (b.int(frames.hop), b.int(padding));
        let start = b.mul(axes[1], hop);
        let at = b.add(start, axes[2]);
        let at = b.sub(at, shift);
        let (at, inside) = padded_position(b, at, &n, mode);
        let value = b.load(0, &[axes[0], at]);
        let zero = b.like(value, 0.0);
        let value = inside.map_or(value, |inside| b.select(inside, value, zero));
        let w = frames.weight(b, axes[2], value, 1);
        b.mul(value, w)
    })
}

fn istft(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let Val::Complex { re, im } = call.value(cx, "self")? else {
        return Err(bad_argument(format!("{} of a real tensor", call.target)));
    };
    let frames = Frames::read(cx, call)?;
    let batched = cx.rank(re) == 3;
    let (re, im) = (cx.to_rank(re, 3)?, cx.to_rank(im, 3)?);
    let onesided = call.opt_bool("onesided")?.unwrap_or(!cx.size(re, 1).is(frames.n_fft));
    let pair = (cx.transpose(re, 1, 2)?, cx.transpose(im, 1, 2)?);
    let n = Dim::from(frames.n_fft);
    let pair = if onesided { hermitian_extension(cx, pair, 2, &n)? } else { pair };
    let (re, im) = transform(cx, pair, 2, true)?;
    let scaling = if call.bool("normalized")? { Scaling::ByRoot } else { Scaling::ByCount };
    let count = cx.size(re, 1);
    let covered = &(&(&count - &Dim::from(1)) * &Dim::from(frames.hop)) + &n;
    let start = if call.bool("center")? { frames.n_fft / 2 } else { 0 };
    let len = match call.opt_dim("length")? {
        Some(len) => len,
        None => &covered - &Dim::from(2 * start),
    };
    let envelope = envelope(cx, &frames, re, &count, (start, &len))?;
    let mut signal = |v: ValueId| {
        let v = scaling.apply(cx, v, &n)?;
        let sum = overlap_add(cx, &frames, v, (start, &len))?;
        let y = over_envelope(cx, sum, envelope, (start, &covered))?;
        if batched { Ok(y) } else { cx.squeeze(y, 0) }
    };
    if call.bool("return_complex")? {
        return Ok(vec![Val::Complex { re: signal(re)?, im: signal(im)? }]);
    }
    Ok(vec![Val::Tensor(signal(re)?)])
}

/// Frame `k` from the last of those that cover position `t + start`: frame, position in it, whether it covers.
fn covering(
    b: &mut BodyBuilder,
    frames: &Frames,
    count: &Dim,
    start: i64,
    t: ExprId,
    k: ExprId,
) -> (ExprId, ExprId, ExprId) {
    let (start, hop) = (b.int(start), b.int(frames.hop));
    let at = b.add(t, start);
    let last = b.div(at, hop);
    let frame = b.sub(last, k);
    let begin = b.mul(frame, hop);
    let within = b.sub(at, begin);
    let n = Dim::from(frames.n_fft);
    let (exists, covers) = (b.in_range(frame, count), b.in_range(within, &n));
    let covers = b.and(exists, covers);
    (b.clamp_index(frame, count), b.clamp_index(within, &n), covers)
}

/// Frames that cover one position, at most.
fn overlap(frames: &Frames) -> i64 {
    (frames.n_fft + frames.hop - 1) / frames.hop
}

/// `Σ frame · window` over the frames that cover each of `len` positions from `start`.
fn overlap_add(cx: &mut Cx, frames: &Frames, v: ValueId, (start, len): (i64, &Dim)) -> Built {
    let (batch, count) = (cx.size(v, 0), cx.size(v, 1));
    let inputs: Vec<ValueId> = [v].into_iter().chain(frames.window).collect();
    windowed_sum(cx, &inputs, overlap(frames), cx.tensor_dtype(v), vec![batch, len.clone()], |b, axes, k| {
        let (frame, j, covers) = covering(b, frames, &count, start, axes[1], k);
        let value = b.load(0, &[axes[0], frame, j]);
        let w = frames.weight(b, j, value, 1);
        let (term, zero) = (b.mul(value, w), b.like(value, 0.0));
        b.select(covers, term, zero)
    })
}

/// `Σ window²` over the same frames.
fn envelope(cx: &mut Cx, frames: &Frames, like: ValueId, count: &Dim, (start, len): (i64, &Dim)) -> Built {
    let dtype = cx.tensor_dtype(like);
    let inputs: Vec<ValueId> = frames.window.into_iter().collect();
    windowed_sum(cx, &inputs, overlap(frames), dtype, vec![len.clone()], |b, axes, k| {
        let (_, j, covers) = covering(b, frames, count, start, axes[0], k);
        let zero = b.lit(dtype.ty(), 0.0);
        let w = frames.weight(b, j, zero, 0);
        let square = b.mul(w, w);
        b.select(covers, square, zero)
    })
}

/// The quotient; 0 behind the last frame, where a longer `length` was asked for.
fn over_envelope(cx: &mut Cx, sum: ValueId, envelope: ValueId, (start, covered): (i64, &Dim)) -> Built {
    let dtype = cx.tensor_dtype(sum);
    cx.compute(cx.shape(sum), dtype, &[sum, envelope], |b, axes| {
        let (y, e, zero) = (b.load(0, axes), b.load(1, &axes[1..]), b.lit(dtype.ty(), 0.0));
        let quotient = b.div(y, e);
        let end = b.dim(&(covered - &Dim::from(start)));
        let inside = b.lt(axes[1], end);
        b.select(inside, quotient, zero)
    })
}
