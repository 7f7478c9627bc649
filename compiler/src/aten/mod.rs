//! ATen rules: the source program → [`crate::ir::Graph`]. The only part of the compiler that knows PyTorch's operators.
//!
//! An operator is an [`AtenOp`]: its names and a rule `fn(&mut Cx, &Call) -> Result<Vec<Val>, Diagnostic>`, in the file of its family,
//! listed in that file's `OPS`. The framework fills in schema defaults, runs the rule, and holds every result to the type that the export
//! recorded. In-place operators need no rule of their own: `lower` runs the functional rule and writes the result through the alias.

pub mod args;
pub mod body;
pub mod cx;
pub mod examples;
pub mod left_out;
pub mod limits;
pub mod schema;

mod alias;
mod bounded;
mod by_parts;
mod check;
mod control;
mod inline;
mod layout;
mod lower;
mod pin;
mod taps;

// Elementwise work, movement, creation, reductions, numbers.
mod activation;
mod arrange;
mod bessel;
mod binary;
mod calculus;
mod class_loss;
mod complex;
mod complex_functions;
mod convert;
mod create;
mod long_sort;
mod loss;
pub mod philox;
mod placing;
mod power;
mod promote;
mod quantize;
mod random;
mod reduce;
mod slicing;
mod small_float;
mod special;
mod statistics;
mod symbolic;
mod unary;
mod view;

// Anchors and indexing.
mod adaptive_pool;
mod attention;
mod batch_norm;
mod bincount;
mod conv;
mod counted;
mod cumulative;
mod deform_conv;
mod einsum;
mod embedding;
mod fft;
mod gradient;
mod grid_sample;
mod im2col;
mod index;
mod interpolate;
mod linear_algebra;
mod linear_systems;
mod log_cum_sum_exp;
mod matmul;
mod nms;
mod norm;
mod pool;
mod recurrent;
mod resample_aa;
mod roi_align;
mod roi_pool;
mod scatter;
mod search;
mod selection;
mod softmax;
mod sort;
mod stft;
mod unique;

pub use args::Call;
pub use body::BodyBuilder;
pub(crate) use bounded::is_unbacked;
pub use cx::Cx;
pub use lower::lower;

use crate::ir::{Dim, ValueId};
use crate::report::{Code, Diagnostic};
use std::collections::BTreeMap;

/// Turns one call into IR nodes; returns one value per result of the operator.
pub type Rule = fn(&mut Cx, &Call<'_>) -> Result<Vec<Val>, Diagnostic>;

/// Operators that share a rule.
#[derive(Debug, Clone, Copy)]
pub struct AtenOp {
    /// Overloads (`aten.conv2d.default`).
    pub names: &'static [&'static str],
    /// Their rule.
    pub rule: Rule,
}

/// Every operator, file by file.
pub const ATEN_OPS: &[&[AtenOp]] = &[
    // Elementwise work, movement, creation, reductions, numbers.
    activation::OPS,
    arrange::OPS,
    bessel::OPS,
    binary::OPS,
    calculus::OPS,
    class_loss::OPS,
    complex::OPS,
    convert::OPS,
    create::OPS,
    loss::OPS,
    placing::OPS,
    power::OPS,
    quantize::OPS,
    random::OPS,
    reduce::OPS,
    slicing::OPS,
    special::OPS,
    statistics::OPS,
    symbolic::OPS,
    unary::OPS,
    view::OPS,
    // Anchors and indexing.
    adaptive_pool::OPS,
    attention::OPS,
    batch_norm::OPS,
    bincount::OPS,
    conv::OPS,
    counted::OPS,
    cumulative::OPS,
    deform_conv::OPS,
    einsum::OPS,
    embedding::OPS,
    fft::OPS,
    gradient::OPS,
    grid_sample::OPS,
    im2col::OPS,
    index::OPS,
    interpolate::OPS,
    linear_algebra::OPS,
    linear_systems::OPS,
    log_cum_sum_exp::OPS,
    matmul::OPS,
    nms::OPS,
    norm::OPS,
    pool::OPS,
    recurrent::OPS,
    resample_aa::OPS,
    roi_align::OPS,
    roi_pool::OPS,
    scatter::OPS,
    search::OPS,
    selection::OPS,
    softmax::OPS,
    sort::OPS,
    stft::OPS,
    unique::OPS,
];

/// What a name of the program stands for.
#[derive(Debug, Clone, PartialEq)]
pub enum Val {
    /// A real tensor.
    Tensor(ValueId),
    /// A complex tensor, as two real ones of one type.
    Complex {
        /// Real part.
        re: ValueId,
        /// Imaginary part.
        im: ValueId,
    },
    /// A list.
    List(Vec<Val>),
    /// A Python integer, literal or symbolic.
    Int(Dim),
    /// A Python float.
    Float(f64),
    /// The quotient of two sizes: a symbolic Python float.
    Ratio(Dim, Dim),
    /// A Python complex number.
    ComplexScalar(f64, f64),
    /// A Python bool.
    Bool(bool),
    /// A comparison of two sizes that is not decided at compile time.
    Compare(Comparison, Dim, Dim),
    /// Python's `None`, and other conditions on symbols that are not decided at compile time.
    None,
}

/// How two sizes are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
}

impl From<ValueId> for Val {
    fn from(v: ValueId) -> Val {
        Val::Tensor(v)
    }
}

/// The element type in which weights of a type that the IR has not (8-bit floats, u16) are read: their bits.
pub fn storage_of(t: crate::import::program::ScalarType) -> Option<crate::ir::DType> {
    small_float::storage(t)
}

/// All rules by operator name.
pub(crate) fn rules() -> BTreeMap<&'static str, Rule> {
    ATEN_OPS.iter().copied().flatten().flat_map(|op| op.names.iter().map(|&n| (n, op.rule))).collect()
}

/// Names of all operators that have a rule, sorted. In-place forms of them are covered too.
pub fn supported() -> Vec<&'static str> {
    let mut names: Vec<&str> = rules().into_keys().chain(control::NAMES).chain(inline::NAMES).collect();
    names.sort_unstable();
    names
}

/// True if a node with this target can be lowered, as far as its name tells.
pub fn is_supported(target: &str) -> bool {
    let rules = rules();
    let higher_order = control::NAMES.contains(&target) || inline::NAMES.contains(&target);
    higher_order
        || rules.contains_key(target)
        || lower::functional_name(target).is_some_and(|n| rules.contains_key(n.as_str()))
}

/// The diagnostic for an operator without a rule; why, where it is left out on purpose.
fn no_rule(target: &str) -> Diagnostic {
    let diagnostic = Diagnostic::new(Code::UnsupportedOp, format!("operator {target} is not supported"));
    match left_out::reason(target) {
        Some(reason) => diagnostic.with_help(reason),
        None => diagnostic,
    }
}

/// An argument that contradicts the operator's schema.
pub(crate) fn bad_argument(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::BadArgument, message)
}

/// A value of an attribute that a rule does not cover, by a code of `limits.rs`.
pub(crate) fn unsupported_attribute(limit: &'static str, message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::UnsupportedAttribute, message).under(limit)
}

/// A shape that is symbolic or data-dependent where a literal is needed.
pub(crate) fn unsupported_shape(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::UnsupportedShape, message)
}

/// An element type that a rule does not cover.
pub(crate) fn unsupported_dtype(message: impl Into<String>) -> Diagnostic {
    Diagnostic::new(Code::UnsupportedDType, message)
}
