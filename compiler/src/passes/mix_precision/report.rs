//! What `--precision` did: what computes in halves, what stayed in f32 and why; for people, scripts and `decisions.txt`.

use crate::ir::DType;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// Why a node computes in f32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Softmax.
    Softmax,
    /// A norm or variance.
    Norm,
    /// A sum or product over many elements.
    Reduction,
    /// A cumulative sum or product.
    Scan,
    /// A Fourier transform.
    Fourier,
    /// A recurrent layer's state.
    Recurrent,
    /// A function that makes large errors of small ones.
    Function,
    /// A loss.
    Loss,
    /// A distance or vector norm.
    Distance,
    /// A matrix factorisation, inverse or determinant.
    LinearAlgebra,
    /// It holds a number that f16 cannot.
    Range,
    /// `--keep-f32` names its module.
    Asked(String),
    /// It follows an operand (named) that is f32.
    Operand(String),
}

impl Why {
    /// The stable code.
    pub const fn code(&self) -> &'static str {
        match self {
            Why::Softmax => "softmax",
            Why::Norm => "norm",
            Why::Reduction => "reduction",
            Why::Scan => "scan",
            Why::Fourier => "fourier",
            Why::Recurrent => "recurrent",
            Why::Function => "function",
            Why::Loss => "loss",
            Why::Distance => "distance",
            Why::LinearAlgebra => "linear-algebra",
            Why::Range => "range",
            Why::Asked(_) => "asked",
            Why::Operand(_) => "operand",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Softmax => f.write_str("exponentials and their sum"),
            Why::Norm => f.write_str("mean and variance"),
            Why::Reduction => f.write_str("a sum of many elements"),
            Why::Scan => f.write_str("a running sum"),
            Why::Fourier => f.write_str("a Fourier transform"),
            Why::Recurrent => f.write_str("a state that every time step changes"),
            Why::Function => f.write_str("a function that makes large errors of small ones"),
            Why::Loss => f.write_str("a loss"),
            Why::Distance => f.write_str("a distance"),
            Why::LinearAlgebra => f.write_str("linear algebra"),
            Why::Range => f.write_str("it holds a number beyond the range of f16"),
            Why::Asked(pattern) => write!(f, "--keep-f32 {pattern}"),
            Why::Operand(name) => write!(f, "{name} is f32"),
        }
    }
}

/// A node that computes in f32 although it might not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Its result.
    pub name: String,
    /// What it does, as the text form says it.
    pub op: &'static str,
    /// Module path.
    pub module: String,
    /// Why.
    pub why: Why,
}

/// What became of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The half type asked for.
    pub half: DType,
    /// Products, convolutions and attentions in halves.
    pub layers: usize,
    /// Other operations whose results are halves.
    pub others: usize,
    /// Conversions between f32 and the half type.
    pub conversions: usize,
    /// What stayed in f32, in the order of the graph.
    pub kept: Vec<Kept>,
}

impl Report {
    /// How many nodes stayed in f32, by reason code.
    pub fn kept_by_code(&self) -> BTreeMap<&'static str, usize> {
        let mut out = BTreeMap::new();
        self.kept.iter().for_each(|k| *out.entry(k.why.code()).or_default() += 1);
        out
    }

    /// One line in all.
    pub fn summary(&self) -> String {
        let kept: Vec<String> = self.kept_by_code().iter().map(|(code, n)| format!("{n} {code}")).collect();
        let kept = if kept.is_empty() { "nothing".to_string() } else { kept.join(", ") };
        let Report { half, layers, others, conversions, .. } = self;
        format!(
            "{half}: {layers} products, convolutions and attentions and {others} other operations; {conversions} conversions; in f32: {kept}"
        )
    }

    /// One line for each node that stayed, and the summary.
    pub fn lines(&self) -> Vec<String> {
        let line = |k: &Kept| {
            let module = if k.module.is_empty() { String::new() } else { format!(" of {}", k.module) };
            format!("{}: {}{module} stays f32 ({}: {})", k.name, k.op, k.why.code(), k.why)
        };
        self.kept.iter().map(line).chain([self.summary()]).collect()
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let kept = |k: &Kept| json!({"name": k.name, "op": k.op, "module": k.module, "kept": k.why.code(), "reason": k.why.to_string()});
        json!({
            "half": self.half.to_string(), "layers": self.layers, "others": self.others, "conversions": self.conversions,
            "kept_by_code": self.kept_by_code(), "kept": self.kept.iter().map(kept).collect::<Vec<_>>(),
        })
    }
}
