//! What the caller asks of a compilation. Plain data; nothing is read from the environment.

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
    /// Only this many patches are applied, over all passes: halving it finds the patch that breaks a model.
    pub bisect: Option<u32>,
}
