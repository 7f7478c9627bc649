//! What the caller asks of a compilation. Plain data; nothing is read from the environment.

use crate::ir::DType;
use crate::islands::Islands;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Options of [`crate::pipeline::compile`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// Name of the crate; the archive's stem if none.
    pub name: Option<String>,
    /// `--set s0=1152`: symbols pinned to a value.
    pub set: BTreeMap<String, i64>,
    /// `--bound s0=4096`: upper bounds of open symbols.
    pub bound: BTreeMap<String, i64>,
    /// `--no-fold`: constant folding is skipped, so that input-free programs still run on the device.
    pub no_fold: bool,
    /// `--deny slow`: a node off its fast path is an error.
    pub deny_slow: bool,
    /// `--random-weights SEED`: payloads are made up, of a scale that keeps activations finite.
    pub random_weights: Option<u64>,
    /// Evaluate the graph before and after each pass on random inputs and compare (tests).
    pub check_semantics: bool,
    /// Names of passes to skip.
    pub skip: Vec<String>,
    /// The last pass to run.
    pub stop_after: Option<String>,
    /// `--quantize`: weights become integers.
    pub quantize: Option<Quantize>,
    /// `--precision f16|bf16`: products, convolutions and attention in a half type.
    pub mixed: Option<Mixed>,
    /// Only this many patches are applied, over all passes: halving it finds the patch that breaks a model.
    pub bisect: Option<u32>,
}

/// Weight-only quantisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantize {
    /// What weights become.
    pub form: QuantizedForm,
    /// Weights of fewer elements stay as they are.
    pub min_elems: u64,
}

impl Quantize {
    /// The form for weights that are worth it: of 2¹⁴ elements and more.
    pub const fn new(form: QuantizedForm) -> Quantize {
        Quantize { form, min_elems: 1 << 14 }
    }
}

/// Mixed precision.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixed {
    /// The half type.
    pub half: Half,
    /// `--keep-f32`: patterns of module paths (`*` and `?`) whose operations stay in f32.
    pub keep_f32: Vec<String>,
    /// `--islands`, or what a search for `--error-budget` found: operations that stay in f32 beyond the rules.
    pub islands: Option<Islands>,
}

impl Mixed {
    /// By the rules alone.
    pub const fn new(half: Half) -> Mixed {
        Mixed { half, keep_f32: vec![], islands: None }
    }
}

/// Half types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Half {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
}

impl Half {
    /// The element type.
    pub const fn dtype(self) -> DType {
        match self {
            Half::F16 => DType::F16,
            Half::BF16 => DType::BF16,
        }
    }
}

/// Forms of a quantised weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuantizedForm {
    /// 8 bits, symmetric, a scale for each output.
    Int8,
    /// 4 bits, a scale and a zero point for each group of 32 summed elements, two values a byte.
    Int4,
}

impl QuantizedForm {
    /// As the command line has it.
    pub const fn name(self) -> &'static str {
        match self {
            QuantizedForm::Int8 => "int8",
            QuantizedForm::Int4 => "int4",
        }
    }
}
