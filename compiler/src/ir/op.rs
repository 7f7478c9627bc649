//! The closed set of graph operations.
//!
//! Movement (`Reshape` … `Concat`) and `Map`/`Compute` never become kernels of their own unless nothing can take them in: the scheduler
//! inlines them as access maps, prologues and epilogues of the *anchors* (`Reduce` and everything below it).
//!
//! `Compute` is the general pointwise operation: each output element is an expression that loads inputs at computed coordinates. Gather,
//! embedding, resampling, grid_sample, roll, iota, tril are `Compute`s that the ATen rules build.

use super::dim::Dim;
use super::ty::{DType, Shape, TensorType};
use jvc_kernels::expr::{ExprId, Exprs};
use jvc_kernels::spec::{Cell, Combine, ScatterMode};
use std::sync::Arc;

/// An expression with its arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Body {
    /// All nodes.
    pub exprs: Exprs,
    /// The result.
    pub root: ExprId,
    /// Sizes that `Expr::Sym(i)` stands for, by i.
    pub syms: Vec<Dim>,
}

/// Host bytes of a constant: little-endian, contiguous, row-major, in native storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Literal {
    /// Element type and (literal) shape.
    pub ty: TensorType,
    /// `n_elems · dtype.size_bytes()` bytes.
    pub bytes: Arc<Vec<u8>>,
}

/// What a weight is in the source program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WeightRef {
    /// Name in the checkpoint (parameter, buffer or constant).
    pub name: String,
    /// Further tensors that are joined to it along the first dimension.
    pub more: Vec<String>,
}

impl WeightRef {
    /// One tensor.
    pub fn new(name: &str) -> WeightRef {
        WeightRef { name: name.to_string(), more: vec![] }
    }

    /// The tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.more).map(String::as_str)
    }
}

/// Boundary of 1–3-D windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Steps between windows, per spatial dimension.
    pub stride: Vec<i64>,
    /// Zero padding before, per spatial dimension; may be negative after folding.
    pub padding: Vec<i64>,
    /// Steps between taps.
    pub dilation: Vec<i64>,
}

/// A graph operation. Shapes: inputs are listed as `a, b → out`.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// User input `index`.
    Input {
        /// Position among the user inputs.
        index: u32,
    },
    /// A tensor of the checkpoint; rounded, where the value's type is a half and the checkpoint's is f32.
    Weight(WeightRef),
    /// A constant.
    Const(Literal),
    /// Persistent state (a mutated buffer): its value when the run starts. Written by [`super::graph::Graph::state_updates`].
    State(WeightRef),

    /// `out[i…] = body(Arg(k) = in_k[i…])`: elementwise. Inputs have the output's rank; size 1 broadcasts.
    Map(Body),
    /// `out[i…] = body`, with `Axis(d)` = i_d and `Load{operand k, index}` = in_k at that coordinate.
    Compute(Body),

    /// Same elements in row-major order, new shape.
    Reshape(Shape),
    /// `out[i_0…] ` where output dimension d is input dimension `perm[d]`.
    Permute(Vec<usize>),
    /// `out[…i…] = in[…start + i·step…]` on one dimension; step ≥ 1.
    Slice {
        /// Dimension.
        dim: usize,
        /// First index.
        start: Dim,
        /// Size of the output along it.
        len: Dim,
        /// Step.
        step: i64,
    },
    /// Constant padding (may be negative = crop) before and after each dimension.
    Pad {
        /// Elements before, per dimension.
        before: Vec<i64>,
        /// Elements after.
        after: Vec<i64>,
        /// Bits of the fill value, in the element's register type.
        value: f64,
    },
    /// Joins inputs along a dimension.
    Concat {
        /// Dimension.
        dim: usize,
    },
    /// Repeats size-1 dimensions up to the shape (same rank).
    Broadcast(Shape),
    /// Reverses dimensions.
    Flip(Vec<usize>),

    /// Reduces dimensions (kept as size 1). `Sum`/`Prod` of half types accumulate in f32. Arg results are i64 positions
    /// along the single reduced dimension.
    Reduce {
        /// Combination.
        combine: Combine,
        /// Reduced dimensions, sorted.
        dims: Vec<usize>,
        /// Element type of the result.
        dtype: DType,
    },
    /// `softmax` over one dimension, in f32 (f64 for f64); `log` gives its logarithm.
    Softmax {
        /// Dimension.
        dim: usize,
        /// Log-softmax.
        log: bool,
    },
    /// `x → (x − mean) / √(var + eps)` over `dims` with the biased variance, in f32 (f64 for f64), then scale and shift as `Map`s fuse in.
    /// `rms`: `x / √(mean(x²) + eps)`.
    Norm {
        /// Normalised dimensions, sorted.
        dims: Vec<usize>,
        /// Added to the variance (bits kept exactly).
        eps: f64,
        /// No mean.
        rms: bool,
    },
    /// `var(x)` over dims (kept as size 1), two-pass: `Σ(x − mean)² / (n − correction)`.
    Variance {
        /// Reduced dimensions.
        dims: Vec<usize>,
        /// Subtracted from the count.
        correction: f64,
    },
    /// `x[…,n] → […,3]`: mean, `Σ(x − mean)²`, and the rest of the mean that the first has no digits for, in f32 (f64 for f64). Or those of all
    /// elements that triples `x[…,n,3]` stand for, each for the same number.
    Moments {
        /// Elements behind each triple; none where the input's elements are meant.
        each: Option<i64>,
        /// The second of the result is `1 / √(var + eps)` instead, with the biased variance.
        eps: Option<f64>,
    },
    /// `a[b…,m,k], b[b…,k,n] → [b…,m,n]`, batch dimensions equal or 1 (broadcast). Accumulates in f32 (f64, i32, i64).
    Matmul,
    /// `x[n,c,s…], w[o,c/g,k…] → [n,o,s'…]`, 1–3 spatial dimensions, no bias.
    Conv {
        /// Stride, padding, dilation.
        window: Window,
        /// Groups.
        groups: i64,
    },
    /// `x[n,c,s…], w[c,o/g,k…] → [n,o,s'…]`, the gradient of `Conv`; output size given by `output_padding`.
    ConvTranspose {
        /// Stride, padding, dilation of the convolution that it transposes.
        window: Window,
        /// Groups.
        groups: i64,
        /// Extra size at the end.
        output_padding: Vec<i64>,
    },
    /// `x[n,c,s…] → [n,c,s'…]` (max: NaN wins; `indices`: a second output, i64 positions in the flat spatial input).
    Pool {
        /// Kernel size.
        kernel: Vec<i64>,
        /// Stride, padding, dilation.
        window: Window,
        /// Output sizes (ceil_mode decided by the rule).
        out: Vec<Dim>,
        /// Max, else average.
        max: bool,
        /// Average: padding counts.
        count_include_pad: bool,
        /// Average: fixed divisor.
        divisor: Option<i64>,
        /// Max: second output.
        indices: bool,
    },
    /// `q[b,h,i,e], k[b,h,j,e], v[b,h,j,f] (, mask[b|1,h|1,i|1,j]) → [b,h,i,f]`. The mask is additive (float) or selecting (bool).
    Attention {
        /// Multiplies the scores.
        scale: f64,
        /// Key j is visible to query i only if j ≤ i.
        causal: bool,
        /// Fully masked rows give 0, not NaN.
        zero_masked_rows: bool,
        /// A mask is the fourth input.
        masked: bool,
    },
    /// As `Attention`, over each part of the keys alone, in f32: `… → [b,h,part,i,f+1]`. The last channel is the logarithm of the sum of the
    /// part's exp(score); where no key is visible that is −∞, and the others are 0.
    AttentionParts {
        /// Multiplies the scores.
        scale: f64,
        /// A mask is the fourth input.
        masked: bool,
        /// Number of parts, some of which may be empty.
        parts: i64,
        /// Keys of a part.
        len: i64,
    },
    /// One direction of one layer: `x_proj[t,b,gates·h], w_hh[gates·h,h] (, b_hh[gates·h]), h0[b,h] (, c0[b,h]) → y[t,b,h], h_n[b,h] (, c_n[b,h])`.
    Recurrent {
        /// Cell.
        cell: Cell,
        /// From the last step to the first.
        reverse: bool,
        /// A recurrent bias is given.
        bias: bool,
    },
    /// Cumulative op along a dimension; `Max`/`Min` have a second output, i64 indices.
    Scan {
        /// Sum, Prod, Max or Min.
        combine: Combine,
        /// Dimension.
        dim: usize,
        /// So many first places count, but have no results.
        skip: i64,
    },
    /// `base, index(i64) × n, src → out`: out is base, and for each coordinate c of src, in row-major order,
    /// `out[t] = mode(out[t], src[c])`, where t is c with the coordinates in `dims` replaced by the index inputs at c (same shape as src);
    /// indices are in range after the rule has wrapped negatives; out-of-range ones write nothing.
    Scatter {
        /// Dimensions of base that the index inputs address, one each.
        dims: Vec<usize>,
        /// Combination.
        mode: ScatterMode,
    },
    /// Stable sort along a dimension → values, i64 indices. NaN is the largest.
    Sort {
        /// Dimension.
        dim: usize,
        /// Largest first.
        descending: bool,
        /// Only so many of the first places are wanted: the size of the results along the dimension.
        keep: Option<Dim>,
    },
    /// `re[…,n], im[…,n] → re, im`: complex transform along the last dimension, unnormalised.
    Fft {
        /// Positive exponent.
        inverse: bool,
    },
}

impl Op {
    /// Every size among the attributes.
    pub fn dims_mut(&mut self) -> Vec<&mut Dim> {
        match self {
            Op::Reshape(shape) | Op::Broadcast(shape) => shape.iter_mut().collect(),
            Op::Slice { start, len, .. } => vec![start, len],
            Op::Pool { out, .. } => out.iter_mut().collect(),
            Op::Sort { keep, .. } => keep.iter_mut().collect(),
            Op::Map(body) | Op::Compute(body) => body.syms.iter_mut().collect(),
            Op::Input { .. }
            | Op::Weight(_)
            | Op::Const(_)
            | Op::State(_)
            | Op::Permute(_)
            | Op::Pad { .. }
            | Op::Concat { .. }
            | Op::Flip(_)
            | Op::Reduce { .. }
            | Op::Softmax { .. }
            | Op::Norm { .. }
            | Op::Variance { .. }
            | Op::Moments { .. }
            | Op::Matmul
            | Op::Conv { .. }
            | Op::ConvTranspose { .. }
            | Op::Attention { .. }
            | Op::AttentionParts { .. }
            | Op::Recurrent { .. }
            | Op::Scan { .. }
            | Op::Scatter { .. }
            | Op::Fft { .. } => vec![],
        }
    }
}
