//! Complex operands of operators whose rules know real tensors only: a rule that is linear runs once for each part, one that multiplies two
//! operands four times, and one that asks for truth on `re ≠ 0 or im ≠ 0`.

use super::args::Call;
use super::complex;
use super::cx::Cx;
use super::{Rule, Val, bad_argument};
use crate::report::Diagnostic;
use std::collections::BTreeMap;

/// What a rule for real tensors sees of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The real part; all of a real operand.
    Re,
    /// The imaginary part; zeros for a real floating operand. What are no floats (indices, masks) stay.
    Im,
    /// The imaginary part with its sign changed.
    MinusIm,
    /// Zeros in the operand's shape.
    Zero,
    /// Whether an element is not 0.
    Truth,
}

/// Parts by argument name; arguments that are not named are seen as they are.
#[derive(Debug, Clone, Default)]
pub(super) struct Parts<'a>(BTreeMap<&'a str, Part>);

/// Operators that act on both parts alike. Python numbers in `value` and `fill_value` have parts, too.
const LINEAR: &[&str] = &[
    "aten.adaptive_avg_pool3d.default",
    "aten.alpha_dropout.default",
    "aten.affine_grid_generator.default",
    "aten.col2im.default",
    "aten.cumsum.default",
    "aten.cumulative_trapezoid.dx",
    "aten.diff.default",
    "aten.embedding.default",
    "aten.feature_alpha_dropout.default",
    "aten.fill.Tensor",
    "aten.fill_diagonal.default",
    "aten.gather.default",
    "aten.im2col.default",
    "aten.index_add.default",
    "aten.index_copy.default",
    "aten.index_fill.int_Scalar",
    "aten.index_fill.int_Tensor",
    "aten.index_put.default",
    "aten._index_put_impl.default",
    "aten._unsafe_index_put.default",
    "aten.masked_fill.Scalar",
    "aten.masked_fill.Tensor",
    "aten.masked_scatter.default",
    "aten.masked_select.default",
    "aten.meshgrid.default",
    "aten.meshgrid.indexing",
    "aten.put.default",
    "aten.scatter.src",
    "aten.scatter.value",
    "aten.scatter_add.default",
    "aten.take.default",
    "aten.take_along_dim.default",
    "aten.trapezoid.dx",
    "aten.trapz.dx",
];

/// Operators that make real numbers, also where a complex type is asked for.
const REAL: &[&str] = &[
    "aten.blackman_window.default",
    "aten.blackman_window.periodic",
    "aten.eye.default",
    "aten.eye.m",
    "aten.hamming_window.default",
    "aten.hamming_window.periodic",
    "aten.hamming_window.periodic_alpha",
    "aten.hamming_window.periodic_alpha_beta",
    "aten.kaiser_window.periodic",
    "aten.linspace.default",
    "aten.logspace.default",
];

/// Operators that multiply two operands; whatever else is a tensor is added.
const BILINEAR: &[(&str, [&str; 2])] = &[
    ("aten.addbmm.default", ["batch1", "batch2"]),
    ("aten.addmm.default", ["mat1", "mat2"]),
    ("aten.addmv.default", ["mat", "vec"]),
    ("aten.addr.default", ["vec1", "vec2"]),
    ("aten.baddbmm.default", ["batch1", "batch2"]),
    ("aten.conv1d.default", ["input", "weight"]),
    ("aten.conv1d.padding", ["input", "weight"]),
    ("aten.conv2d.default", ["input", "weight"]),
    ("aten.conv2d.padding", ["input", "weight"]),
    ("aten.conv3d.default", ["input", "weight"]),
    ("aten.conv3d.padding", ["input", "weight"]),
    ("aten.conv_transpose1d.default", ["input", "weight"]),
    ("aten.conv_transpose2d.input", ["input", "weight"]),
    ("aten.conv_transpose3d.input", ["input", "weight"]),
    ("aten.convolution.default", ["input", "weight"]),
    ("aten._convolution.default", ["input", "weight"]),
    ("aten.cross.default", ["self", "other"]),
    ("aten.cumulative_trapezoid.x", ["y", "x"]),
    ("aten.dot.default", ["self", "tensor"]),
    ("aten.ger.default", ["self", "vec2"]),
    ("aten.inner.default", ["self", "other"]),
    ("aten.kron.default", ["self", "other"]),
    ("aten.linalg_cross.default", ["self", "other"]),
    ("aten.linalg_vecdot.default", ["x", "y"]),
    ("aten.linear.default", ["input", "weight"]),
    ("aten.mv.default", ["self", "vec"]),
    ("aten.outer.default", ["self", "vec2"]),
    ("aten.tensordot.default", ["self", "other"]),
    ("aten.trapezoid.x", ["y", "x"]),
    ("aten.trapz.x", ["y", "x"]),
    ("aten.vdot.default", ["self", "other"]),
];

/// Operators that ask which elements are not 0.
const TRUTH: &[&str] = &[
    "aten.argwhere.default",
    "aten.nonzero.default",
    "aten.nonzero_numpy.default",
    "aten.nonzero_static.default",
    "aten.where.default",
];

impl Parts<'_> {
    /// What the rule sees of a tensor operand.
    pub(super) fn of(&self, cx: &mut Cx, name: &str, v: Val) -> Result<Val, Diagnostic> {
        let Some(&part) = self.0.get(name) else { return Ok(v) };
        let zeros = |cx: &mut Cx, like| {
            let ty = cx.ty(like).clone();
            cx.full(ty.shape, ty.dtype, 0.0).map(Val::Tensor)
        };
        match (part, v) {
            (Part::Re, Val::Complex { re, .. }) => Ok(re.into()),
            (Part::Im, Val::Complex { im, .. }) => Ok(im.into()),
            (Part::MinusIm, Val::Complex { im, .. }) => Ok(cx.scale(im, -1.0)?.into()),
            (Part::Truth, Val::Complex { re, im }) => {
                let some = complex::equal(cx, &Val::Complex { re, im }, &Val::Float(0.0), true)?;
                Ok(some.into())
            }
            (Part::Zero, Val::Complex { re, .. }) => zeros(cx, re),
            (Part::Zero | Part::Im | Part::MinusIm, Val::Tensor(x)) if cx.tensor_dtype(x).is_float() => zeros(cx, x),
            (_, v) => Ok(v),
        }
    }

    /// What the rule sees of a Python number.
    pub(super) fn of_number(&self, name: &str, v: Val) -> Val {
        match (self.0.get(name), v) {
            (Some(Part::Re), Val::ComplexScalar(re, _)) => Val::Float(re),
            (Some(Part::Im), Val::ComplexScalar(_, im)) => Val::Float(im),
            (Some(Part::Im), Val::Int(_) | Val::Float(_) | Val::Bool(_)) => Val::Float(0.0),
            (_, v) => v,
        }
    }
}

/// Runs a rule, by parts where an operand is complex and the operator is in one of the tables above.
pub(super) fn run<'a>(cx: &mut Cx, call: &Call<'a>, rule: Rule) -> Result<Vec<Val>, Diagnostic> {
    if REAL.contains(&call.target) && call.meta(0).is_some_and(|m| m.dtype.is_complex()) {
        return rule(cx, call)?.into_iter().map(|v| made_complex(cx, v)).collect();
    }
    let linear = LINEAR.contains(&call.target);
    let truth = TRUTH.contains(&call.target);
    let factors = BILINEAR.iter().find(|(name, _)| *name == call.target).map(|(_, f)| *f);
    if !linear && !truth && factors.is_none() {
        return rule(cx, call);
    }
    let tensors = call.tensor_arguments(cx)?;
    if tensors.iter().all(|(_, complex)| !complex) {
        return rule(cx, call);
    }
    match factors {
        Some(factors) => products(cx, call, rule, &tensors, factors),
        None if truth => rule(cx, &all(call, &tensors, Part::Truth)),
        None => {
            let re = rule(cx, &all(call, &tensors, Part::Re))?;
            let im = rule(cx, &all(call, &tensors, Part::Im))?;
            re.into_iter().zip(im).map(|(re, im)| pair(re, im)).collect()
        }
    }
}

fn made_complex(cx: &mut Cx, v: Val) -> Result<Val, Diagnostic> {
    let Val::Tensor(re) = v else { return Err(bad_argument("a result that is no tensor")) };
    let ty = cx.ty(re).clone();
    Ok(Val::Complex { re, im: cx.full(ty.shape, ty.dtype, 0.0)? })
}

fn with<'a>(call: &Call<'a>, parts: impl IntoIterator<Item = (&'a str, Part)>) -> Call<'a> {
    let mut call = call.clone();
    call.parts = Parts(parts.into_iter().collect());
    call
}

fn all<'a>(call: &Call<'a>, tensors: &[(&'a str, bool)], part: Part) -> Call<'a> {
    let numbers = ["value", "fill_value"].into_iter().map(|n| (n, part));
    with(call, numbers.chain(tensors.iter().map(|&(n, _)| (n, part))))
}

/// `(a + ib)(c + id)`, of which the rest of the operands joins the first term of each part. `vdot` and `vecdot` take a − ib.
fn products<'a>(
    cx: &mut Cx,
    call: &Call<'a>,
    rule: Rule,
    tensors: &[(&'a str, bool)],
    factors: [&str; 2],
) -> Result<Vec<Val>, Diagnostic> {
    let is_complex = |name: &str| tensors.iter().any(|&(n, complex)| n == name && complex);
    let conjugates = matches!(call.target, "aten.vdot.default" | "aten.linalg_vecdot.default");
    let im = if conjugates { Part::MinusIm } else { Part::Im };
    let term = |cx: &mut Cx, parts: [Part; 2], rest: Part| -> Result<Option<Val>, Diagnostic> {
        let absent = parts.iter().zip(factors).any(|(p, name)| *p != Part::Re && !is_complex(name));
        if absent && rest == Part::Zero {
            return Ok(None);
        }
        let part = |name: &str| factors.iter().position(|f| *f == name).map_or(rest, |at| parts[at]);
        let results = rule(cx, &with(call, tensors.iter().map(|&(n, _)| (n, part(n)))))?;
        Ok(results.into_iter().next())
    };
    let re = term(cx, [Part::Re, Part::Re], Part::Re)?.ok_or_else(|| bad_argument("a product without a result"))?;
    let minus = term(cx, [im, Part::Im], Part::Zero)?;
    let first = term(cx, [Part::Re, Part::Im], Part::Im)?.ok_or_else(|| bad_argument("a product without a result"))?;
    let second = term(cx, [im, Part::Re], Part::Zero)?;
    let re = combined(cx, re, minus, false)?;
    let im = combined(cx, first, second, true)?;
    Ok(vec![pair(re, im)?])
}

fn combined(cx: &mut Cx, a: Val, b: Option<Val>, add: bool) -> Result<Val, Diagnostic> {
    match (a, b) {
        (a, None) => Ok(a),
        (Val::Tensor(a), Some(Val::Tensor(b))) if add => Ok(cx.add_values(a, b)?.into()),
        (Val::Tensor(a), Some(Val::Tensor(b))) => Ok(cx.sub_values(a, b)?.into()),
        (a, b) => Err(bad_argument(format!("a sum of {a:?} and {b:?}"))),
    }
}

/// Results of both runs side by side; what is no float (indices, counts) is the same in both.
fn pair(re: Val, im: Val) -> Result<Val, Diagnostic> {
    match (re, im) {
        (Val::Tensor(re), Val::Tensor(im)) => Ok(Val::Complex { re, im }),
        (Val::List(re), Val::List(im)) => {
            re.into_iter().zip(im).map(|(re, im)| pair(re, im)).collect::<Result<_, _>>().map(Val::List)
        }
        (re, _) => Ok(re),
    }
}
