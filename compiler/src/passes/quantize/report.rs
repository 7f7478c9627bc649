//! What a quantisation did to each weight, for people, scripts and `decisions.txt`.

use super::encode::Error;
use crate::ir::DType;
use crate::options::QuantizedForm;
use serde_json::{Value, json};
use std::fmt;

/// The accuracy report of one program.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The form asked for.
    pub form: QuantizedForm,
    /// Every floating weight large enough to be looked at, in the order of the graph.
    pub weights: Vec<WeightReport>,
    /// Floating weights that are too small, and their bytes.
    pub small: (usize, u64),
}

/// One weight.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightReport {
    /// Name in the checkpoint; that of its value for what the compiler has computed.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Bytes in the export.
    pub bytes: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a weight.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It is integers now.
    Quantized {
        /// Bytes of integers, scales and zero points.
        bytes: u64,
        /// What that costs.
        error: Error,
    },
    /// It stays as it is.
    Kept(Kept),
}

/// Why a weight stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Something else than a product, convolution or embedding reads it.
    Reader(&'static str),
    /// It is an output or becomes a state.
    Output,
    /// Its readers sum over different dimensions of it.
    Tied,
    /// It is an embedding that something else reads too.
    TiedEmbedding,
    /// Its readers see it in another shape.
    Reshaped,
    /// 64-bit floats are not made of fewer bits silently.
    Double,
    /// It holds NaN or infinity.
    NotFinite,
    /// The archive has no bytes for it.
    Missing,
    /// Rows are so short that scales would outweigh what is saved.
    ShortRows,
}

impl Kept {
    /// The stable code.
    pub const fn code(self) -> &'static str {
        match self {
            Kept::Reader(_) => "reader",
            Kept::Output => "output",
            Kept::Tied => "tied",
            Kept::TiedEmbedding => "tied-embedding",
            Kept::Reshaped => "reshaped",
            Kept::Double => "double",
            Kept::NotFinite => "not-finite",
            Kept::Missing => "missing",
            Kept::ShortRows => "short-rows",
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kept::Reader(what) => write!(f, "{what} reads it"),
            Kept::Output => f.write_str("it is a result of the program"),
            Kept::Tied => f.write_str("its readers sum over different dimensions of it"),
            Kept::TiedEmbedding => f.write_str("it is an embedding that something else reads too"),
            Kept::Reshaped => f.write_str("it is read in another shape"),
            Kept::Double => f.write_str("it is of 64-bit floats"),
            Kept::NotFinite => f.write_str("it holds NaN or infinity"),
            Kept::Missing => f.write_str("the archive has no bytes for it"),
            Kept::ShortRows => f.write_str("its rows are too short for scales of their own"),
        }
    }
}

impl Report {
    /// An empty report.
    pub(super) fn new(form: QuantizedForm) -> Report {
        Report { form, weights: vec![], small: (0, 0) }
    }

    /// How many weights were quantised, their bytes before and after, and the error over all of them.
    pub fn total(&self) -> (usize, u64, u64, Error) {
        let mut total = (0, 0, 0, Error::default());
        for w in &self.weights {
            if let Outcome::Quantized { bytes, error } = w.outcome {
                total.0 += 1;
                total.1 += w.bytes;
                total.2 += bytes;
                total.3 += error;
            }
        }
        total
    }

    /// One line a weight, and the total.
    pub fn lines(&self) -> Vec<String> {
        let form = self.form.name();
        let line = |w: &WeightReport| match &w.outcome {
            Outcome::Quantized { bytes, error } => {
                let error = 100.0 * error.relative();
                format!("{}: {form}, {} bytes become {bytes}, rms error {error:.3} % of its rms", w.name, w.bytes)
            }
            Outcome::Kept(why) => format!("{}: stays {}, {} bytes ({}: {why})", w.name, w.dtype, w.bytes, why.code()),
        };
        let (n, before, after, error) = self.total();
        let error = 100.0 * error.relative();
        let (small, small_bytes) = self.small;
        let total = format!(
            "{form}: {n} weights, {before} bytes become {after}, rms error {error:.3} %; {small} small ones stay, {small_bytes} bytes"
        );
        self.weights.iter().map(line).chain([total]).collect()
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let weight = |w: &WeightReport| {
            let mut out = json!({"name": w.name, "dtype": w.dtype.to_string(), "bytes": w.bytes});
            match &w.outcome {
                Outcome::Quantized { bytes, error } => {
                    out["quantized_bytes"] = json!(bytes);
                    out["relative_rms_error"] = json!(error.relative());
                }
                Outcome::Kept(why) => {
                    out["kept"] = json!(why.code());
                    out["reason"] = json!(why.to_string());
                }
            }
            out
        };
        let (n, before, after, error) = self.total();
        json!({
            "form": self.form.name(), "weights": self.weights.iter().map(weight).collect::<Vec<_>>(),
            "quantized": n, "bytes": before, "quantized_bytes": after, "relative_rms_error": error.relative(),
            "small": self.small.0, "small_bytes": self.small.1,
        })
    }
}
