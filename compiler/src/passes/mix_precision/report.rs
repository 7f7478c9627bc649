//! What `--precision` did: what computes in halves, what stayed in f32 and why; for people, scripts and `decisions.txt`.

use crate::ir::{DType, Graph, Origin};
use crate::islands::{Island, ProgramIslands};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
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
    /// The outputs would miss their error budget.
    Budget {
        /// The call that it is part of, as the export names it.
        call: String,
        /// What that call does to the outputs in halves.
        effect: String,
    },
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
            Why::Budget { .. } => "budget",
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
            Why::Budget { call, effect } => write!(f, "{call}: {effect}"),
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

impl Kept {
    fn line(&self) -> String {
        let Kept { name, op, module, why } = self;
        let module = if module.is_empty() { String::new() } else { format!(" of {module}") };
        format!("{name}: {op}{module} stays f32 ({}: {why})", why.code())
    }
}

/// A call of the program of which something computes in halves by the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Node of the export.
    pub node: String,
    /// ATen target.
    pub target: String,
    /// Module path.
    pub module: String,
}

impl Call {
    pub(super) fn of(origin: &Origin) -> Call {
        Call { node: origin.node.clone(), target: origin.target.clone(), module: origin.module.clone() }
    }
}

/// What a search for an error budget found, beside the islands themselves.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Largest error of the outputs.
    pub budget: f64,
    /// Their error by the rules alone.
    pub without: f64,
    /// Their error with the islands.
    pub with: f64,
    /// What errors are measured from.
    pub reference: &'static str,
    /// The islands, a line each.
    pub islands: Vec<String>,
    /// Calls that compute in halves by the rules, when the search was made.
    pub calls: usize,
}

/// What became of one program.
#[derive(Debug, Clone, PartialEq)]
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
    /// What computes in halves by the rules alone, in the order of the graph: where islands are looked for.
    pub calls: Vec<Call>,
    /// Where the islands come from.
    pub budget: Option<Budget>,
    /// Islands that no call of the program is: they are of another one.
    pub unknown: Vec<String>,
}

impl Report {
    pub(super) fn new(half: DType, kept: Vec<Kept>, calls: Vec<Call>) -> Report {
        Report { half, layers: 0, others: 0, conversions: 0, kept, calls, budget: None, unknown: vec![] }
    }

    pub(super) fn add_islands(&mut self, graph: &Graph, budget: f64, program: &ProgramIslands) {
        let names: BTreeSet<&str> = graph.origins.iter().map(|o| o.node.as_str()).collect();
        let unknown = program.islands.iter().map(|i| &i.node).filter(|n| !names.contains(n.as_str()));
        self.unknown = unknown.cloned().collect();
        let ProgramIslands { without, with, calls, .. } = *program;
        let islands = program.islands.iter().map(Island::line).collect();
        self.budget = Some(Budget { budget, without, with, reference: program.reference.text(), islands, calls });
    }

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
        self.kept.iter().map(Kept::line).chain([self.summary()]).chain(self.budget_line()).collect()
    }

    /// One line of the search that gave the islands.
    pub fn budget_line(&self) -> Option<String> {
        let Budget { budget, without, with, reference, islands, calls } = self.budget.as_ref()?;
        let n = islands.len();
        Some(format!(
            "{} islands: the outputs are off by {with:.2e} from {reference} with {n} of {calls} calls in f32, by {without:.2e} with none; budget {budget:e}",
            self.half
        ))
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let kept = |k: &Kept| json!({"name": k.name, "op": k.op, "module": k.module, "kept": k.why.code(), "reason": k.why.to_string()});
        let islands = self.budget.as_ref().map(|b| {
            // JSON has no infinity.
            let number = |x: f64| if x.is_finite() { json!(x) } else { json!(x.to_string()) };
            json!({
                "budget": b.budget, "without": number(b.without), "with": number(b.with), "reference": b.reference,
                "islands": b.islands, "calls": b.calls,
            })
        });
        json!({
            "half": self.half.to_string(), "layers": self.layers, "others": self.others, "conversions": self.conversions,
            "kept_by_code": self.kept_by_code(), "kept": self.kept.iter().map(kept).collect::<Vec<_>>(),
            "islands": islands,
        })
    }
}
