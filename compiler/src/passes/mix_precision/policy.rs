//! The table: which operations compute in a half type, which in f32, and which follow their operands. It is PyTorch's autocast, on the
//! operations of the graph; where one ATen call became several nodes, the call's name decides.

use super::is_movement;
use super::report::Why;
use crate::ir::{Graph, Node, Op};
use jvc_kernels::expr::{Binary, Expr, Lit, Unary};
use jvc_kernels::spec::{Combine, ScatterMode};

/// In what an operation computes and what its results are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Policy {
    /// Operands and results are halves; sums are f32 all the same.
    Half,
    /// f32.
    Full(Why),
    /// Halves where all operands are.
    Follow,
}

/// Largest finite f16: a literal beyond it has no place among halves.
const MAX_F16: f64 = 65504.0;
/// Products of fewer summed elements gain nothing from matrix units.
const SHORT_SUM: i64 = 16;

/// ATen calls that stay in f32 whatever they are made of: their own name, or a beginning of it that ends in `_`.
const FULL_CALLS: &[(&str, Why)] = &[
    ("binary_cross_entropy", Why::Loss),
    ("binary_cross_entropy_with_logits", Why::Loss),
    ("cosine_embedding_loss", Why::Loss),
    ("cross_entropy_loss", Why::Loss),
    ("ctc_loss", Why::Loss),
    ("gaussian_nll_loss", Why::Loss),
    ("hinge_embedding_loss", Why::Loss),
    ("huber_loss", Why::Loss),
    ("kl_div", Why::Loss),
    ("l1_loss", Why::Loss),
    ("margin_ranking_loss", Why::Loss),
    ("mse_loss", Why::Loss),
    ("multi_margin_loss", Why::Loss),
    ("multilabel_margin_loss", Why::Loss),
    ("nll_loss", Why::Loss),
    ("nll_loss_", Why::Loss),
    ("poisson_nll_loss", Why::Loss),
    ("smooth_l1_loss", Why::Loss),
    ("soft_margin_loss", Why::Loss),
    ("triplet_margin_loss", Why::Loss),
    ("acos", Why::Function),
    ("asin", Why::Function),
    ("atan2", Why::Function),
    ("cos", Why::Function),
    ("cosh", Why::Function),
    ("cumprod", Why::Scan),
    ("cumsum", Why::Scan),
    ("erfinv", Why::Function),
    ("exp", Why::Function),
    ("exp2", Why::Function),
    ("expm1", Why::Function),
    ("log", Why::Function),
    ("log10", Why::Function),
    ("log1p", Why::Function),
    ("log2", Why::Function),
    ("logcumsumexp", Why::Scan),
    ("logsumexp", Why::Function),
    ("pow", Why::Function),
    ("reciprocal", Why::Function),
    ("rsqrt", Why::Function),
    ("sin", Why::Function),
    ("sinh", Why::Function),
    ("softplus", Why::Function),
    ("tan", Why::Function),
    ("_cdist_", Why::Distance),
    ("cdist", Why::Distance),
    ("cosine_similarity", Why::Distance),
    ("dist", Why::Distance),
    ("norm", Why::Distance),
    ("pairwise_distance", Why::Distance),
    ("pdist", Why::Distance),
    ("renorm", Why::Distance),
    ("fft_", Why::Fourier),
    ("_fft_", Why::Fourier),
    ("istft", Why::Fourier),
    ("stft", Why::Fourier),
    ("cholesky", Why::LinearAlgebra),
    ("det", Why::LinearAlgebra),
    ("inverse", Why::LinearAlgebra),
    ("linalg_", Why::LinearAlgebra),
    ("logdet", Why::LinearAlgebra),
];

/// Resampling is a product or convolution in some rules, but no layer: it follows what it resamples.
const FOLLOWING_CALLS: [&str; 5] =
    ["upsample_", "_upsample_", "affine_grid_generator", "grid_sampler_", "grid_sampler"];

/// The policy of a node with a floating result.
pub(super) fn policy(graph: &Graph, node: &Node) -> Policy {
    if is_movement(&node.op) {
        return match &node.op {
            Op::Pad { value, .. } if value.is_finite() && value.abs() > MAX_F16 => Policy::Full(Why::Range),
            _ => Policy::Follow,
        };
    }
    let target = &graph.origins[node.origin as usize].target;
    let call = base_name(target);
    let named = |name: &str| call == name || (name.ends_with('_') && call.starts_with(name));
    if let Some((_, why)) = FULL_CALLS.iter().find(|(name, _)| named(name)) {
        return Policy::Full(why.clone());
    }
    match &node.op {
        Op::Matmul | Op::Conv { .. } | Op::ConvTranspose { .. } if FOLLOWING_CALLS.iter().any(|n| named(n)) => {
            Policy::Follow
        }
        Op::Matmul if short_sum(graph, node) => Policy::Follow,
        Op::Matmul | Op::Conv { .. } | Op::ConvTranspose { .. } | Op::Attention { .. } => Policy::Half,
        Op::Softmax { .. } => Policy::Full(Why::Softmax),
        Op::Norm { .. } | Op::Variance { .. } | Op::Moments { .. } => Policy::Full(Why::Norm),
        Op::Reduce { combine: Combine::Sum | Combine::Prod, .. } => Policy::Full(Why::Reduction),
        Op::Scan { .. } => Policy::Full(Why::Scan),
        Op::Fft { .. } => Policy::Full(Why::Fourier),
        Op::Recurrent { .. } => Policy::Full(Why::Recurrent),
        Op::Scatter { mode: ScatterMode::Add | ScatterMode::Mul, .. } => Policy::Full(Why::Reduction),
        Op::Map(body) | Op::Compute(body) if body.exprs.iter().any(|(_, e)| beyond_f16(e)) => Policy::Full(Why::Range),
        // A call has been asked for above: what is left here is a graph without calls.
        Op::Map(body) if target.is_empty() && is_sensitive(body.exprs.get(body.root)) => Policy::Full(Why::Function),
        _ => Policy::Follow,
    }
}

/// `aten.exp_.default` → `exp`.
fn base_name(target: &str) -> &str {
    target.split('.').nth(1).unwrap_or(target).trim_end_matches('_')
}

fn short_sum(graph: &Graph, node: &Node) -> bool {
    let k = graph.ty(node.inputs[0]).shape.last();
    k.and_then(|k| k.as_const()).is_some_and(|k| k < SHORT_SUM)
}

fn beyond_f16(e: &Expr) -> bool {
    let Expr::Lit(Lit::F32(bits)) = e else { return false };
    let v = f64::from(f32::from_bits(*bits));
    v.is_finite() && v.abs() > MAX_F16
}

/// Functions that make large errors of small ones.
fn is_sensitive(e: &Expr) -> bool {
    matches!(
        e,
        Expr::Unary(
            Unary::Exp
                | Unary::Exp2
                | Unary::Expm1
                | Unary::Log
                | Unary::Log2
                | Unary::Log1p
                | Unary::Rsqrt
                | Unary::Sin
                | Unary::Cos
                | Unary::Tan
                | Unary::Asin
                | Unary::Acos
                | Unary::Sinh
                | Unary::Cosh,
            _
        ) | Expr::Binary(Binary::Pow | Binary::Atan2, ..)
    )
}

/// Whether a module path matches a pattern, in which `*` stands for any characters and `?` for one.
pub(super) fn matches_glob(pattern: &str, path: &str) -> bool {
    let (p, s): (Vec<char>, Vec<char>) = (pattern.chars().collect(), path.chars().collect());
    let (mut i, mut j, mut retry) = (0, 0, None);
    while j < s.len() {
        if i < p.len() && p[i] == '*' {
            retry = Some((i, j));
            i += 1;
        } else if i < p.len() && (p[i] == '?' || p[i] == s[j]) {
            (i, j) = (i + 1, j + 1);
        } else if let Some((star, from)) = retry {
            // The last star takes one character more.
            retry = Some((star, from + 1));
            (i, j) = (star + 1, from + 1);
        } else {
            return false;
        }
    }
    p[i..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_paths() {
        for (pattern, path) in
            [("*", ""), ("a.*", "a.b.c"), ("*.head", "x.y.head"), ("l?.fc*", "l3.fc1"), ("a*b*c", "axbxbc")]
        {
            assert!(matches_glob(pattern, path), "{pattern} of {path}");
        }
        for (pattern, path) in [("a", "a.b"), ("*.head", "head"), ("l?", "l"), ("", "a"), ("a*b", "abc")] {
            assert!(!matches_glob(pattern, path), "{pattern} of {path}");
        }
    }

    #[test]
    fn calls_are_named_without_overload_and_in_place_mark() {
        assert_eq!(base_name("aten.exp_.default"), "exp");
        assert_eq!(base_name("aten.pow.Tensor_Scalar"), "pow");
        assert_eq!(base_name("torchvision.nms.default"), "nms");
        assert_eq!(base_name(""), "");
    }
}
