//! Graph → graph. A pass is a function in a file of its own; [`PIPELINE`] is their order; [`run`] runs it.
//!
//! Most passes are lists of local rules over the driver of [`rewrite`]: a rule looks at one node and what stands before it, and gives a
//! patch or nothing. Whatever a pass does, `ir::eval` gives the same answers before and after (up to rounding): file tests and
//! `check_semantics` hold every pass to that. Two change values, and only when asked to: [`mix_precision`] and [`quantize`].

pub mod mix_precision;
pub mod quantize;
pub mod semantics;

mod affine;
mod compose;
mod constants;
mod drop_dead;
mod find_attention;
mod find_norm;
mod fold_batch_norm;
mod fold_constants;
mod fold_tables;
mod inline_scalars;
mod invert_scatters;
mod join_products;
mod merge_batches;
mod pack_kernels;
mod pad_channels;
mod rewrite;
mod share_equal;
mod simplify_movement;
mod spell_thin_attention;
mod split_products;
mod split_rows;
mod split_scans;
mod turn_images;
mod unfold_windows;

pub(crate) use constants::{decodes_bytes, known_value};
pub(crate) use pack_kernels::is_packed;
pub(crate) use pad_channels::is_padded;
pub(crate) use turn_images::is_turned;

use crate::aten::storage_of;
use crate::device::DeviceProfile;
use crate::import::weights::WeightStore;
use crate::ir::Graph;
use crate::ir::eval::{Tensor, Weights};
use crate::ir::verify::{Violations, verify};
use crate::options::{Mixed, Options, Quantize};
use std::cell::{Cell, RefCell};
use thiserror::Error;

/// One pass.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    /// Name: that of its file, of its test folder and on the command line.
    pub name: &'static str,
    /// What it does, in one sentence.
    pub summary: &'static str,
    /// Changes the graph; gives the number of patches applied.
    pub run: fn(&mut Graph, &Cx<'_>) -> u32,
}

/// The passes in order.
pub const PIPELINE: &[Pass] = &[
    // Gives: nothing unused, so that "only user" means what it says.
    drop_dead::PASS,
    // Needs: nothing. Gives: literals in bodies, where patterns look for them.
    inline_scalars::PASS,
    // Gives: no movement that does nothing, chains in one piece; the patterns below see through single reshapes only.
    simplify_movement::PASS,
    // Gives: one value per computation: patterns compare values by identity (the x of x − mean(x)).
    share_equal::PASS,
    // Needs: literals and short chains. Must come before constants fold, which would hide nothing here but costs time on dead scores.
    find_norm::PASS,
    find_attention::PASS,
    // Needs: dead scores gone, indices that still show what repeats them. Gives: constants where BatchNorm folding looks for its vectors.
    drop_dead::PASS,
    invert_scatters::PASS,
    fold_constants::PASS,
    fold_batch_norm::PASS,
    // Folded operands leave chains and scalars behind.
    inline_scalars::PASS,
    simplify_movement::PASS,
    share_equal::PASS,
    // Core graphs spell norms and attention out with constants and movement that only now are gone.
    find_norm::PASS,
    find_attention::PASS,
    // Needs: attention found, whose products are batches. Gives: products of matrices, which join and split.
    merge_batches::PASS,
    simplify_movement::PASS,
    // Needs: norms and attention found, which are decided as one. Gives: halves where the passes below choose by element type.
    mix_precision::PASS,
    // Needs: weights in their final type, and patterns found that look at single products.
    join_products::PASS,
    // Needs: every attention found; nothing looks for one in what this leaves.
    spell_thin_attention::PASS,
    // Needs: every norm and softmax found; nothing looks for one in what this leaves.
    split_rows::PASS,
    split_scans::PASS,
    simplify_movement::PASS,
    drop_dead::PASS,
    // Needs: weights in their final form, each next to what reads it.
    quantize::PASS,
    // Needs: everything that makes or removes products done. What follows is for the device that is compiled for.
    split_products::PASS,
    // Needs: convolutions with the groups that they keep.
    pack_kernels::PASS,
    simplify_movement::PASS,
    drop_dead::PASS,
    // Needs: concatenations in one piece.
    pad_channels::PASS,
    unfold_windows::PASS,
    drop_dead::PASS,
    // Needs: the graph that fusion sees, but for copies.
    fold_tables::PASS,
    // Needs: nothing after it, to which a copy would be a value that needs no kernel.
    turn_images::PASS,
];

/// Every pass once, for messages and tests.
pub const PASSES: &[Pass] = &[
    drop_dead::PASS,
    find_attention::PASS,
    find_norm::PASS,
    fold_batch_norm::PASS,
    fold_constants::PASS,
    fold_tables::PASS,
    inline_scalars::PASS,
    invert_scatters::PASS,
    join_products::PASS,
    merge_batches::PASS,
    mix_precision::PASS,
    pack_kernels::PASS,
    pad_channels::PASS,
    quantize::PASS,
    share_equal::PASS,
    simplify_movement::PASS,
    spell_thin_attention::PASS,
    split_products::PASS,
    split_rows::PASS,
    split_scans::PASS,
    turn_images::PASS,
    unfold_windows::PASS,
];

/// What passes may look at beside the graph.
pub struct Cx<'a> {
    /// Checkpoint tensors; a missing one is left alone.
    pub weights: &'a Weights<'a>,
    /// Input-free programs must stay.
    pub no_fold: bool,
    /// What is compiled for; nothing that depends on it happens without.
    pub device: Option<&'a DeviceProfile>,
    quantize: Option<Quantize>,
    /// What quantising did.
    quantized: RefCell<Option<quantize::Report>>,
    mixed: Option<Mixed>,
    /// What mixing precisions did.
    mixed_report: RefCell<Option<mix_precision::Report>>,
    patches_left: Cell<u32>,
}

impl<'a> Cx<'a> {
    /// A context for at most `patches` patches.
    pub fn new(weights: &'a Weights<'a>, no_fold: bool, patches: u32) -> Cx<'a> {
        Cx {
            weights,
            no_fold,
            device: None,
            quantize: None,
            quantized: RefCell::default(),
            mixed: None,
            mixed_report: RefCell::default(),
            patches_left: Cell::new(patches),
        }
    }

    /// The same, to make weights integers.
    pub fn quantizing(self, how: Option<Quantize>) -> Cx<'a> {
        Cx { quantize: how, ..self }
    }

    /// The same, to compute in halves.
    pub fn mixing(self, how: Option<Mixed>) -> Cx<'a> {
        Cx { mixed: how, ..self }
    }

    /// The same, for a device.
    pub fn compiling_for(self, device: &'a DeviceProfile) -> Cx<'a> {
        Cx { device: Some(device), ..self }
    }

    /// Takes the right to one more patch; false when a bisection has used them up.
    fn may_patch(&self) -> bool {
        let left = self.patches_left.get();
        self.patches_left.set(left.saturating_sub(1));
        left > 0
    }
}

/// A checkpoint tensor as the graph sees it: a complex one is real with a trailing dimension of 2. `None` without a payload.
pub fn checkpoint_tensor(store: &WeightStore, name: &str) -> Option<Tensor> {
    let view = store.get(name)?;
    let mut shape: Vec<usize> = view.sizes.iter().map(|&s| s as usize).collect();
    if view.dtype.is_complex() {
        shape.push(2);
    }
    // Elements that the IR has no type for are read as their bits.
    let dtype = view.dtype.dtype().or_else(|| storage_of(view.dtype))?;
    match view.contiguous_slice() {
        Some(bytes) => Tensor::from_bytes(dtype, shape, bytes),
        None => Tensor::from_bytes(dtype, shape, &view.contiguous()?),
    }
}

/// What one pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The pass.
    pub name: &'static str,
    /// Patches.
    pub patches: u32,
}

/// Why the passes stopped. `Broken` and `Changed` are bugs of a pass.
#[derive(Debug, Error)]
pub enum PassError {
    /// A name that no pass has.
    #[error("there is no pass {name:?} (passes: {known})")]
    Unknown {
        /// As given.
        name: String,
        /// Every name.
        known: String,
    },
    /// The graph breaks an invariant.
    #[error("after {pass} the graph is broken:\n{violations}")]
    Broken {
        /// The pass.
        pass: &'static str,
        /// What is wrong, in the graph's text.
        violations: Violations,
    },
    /// The graph computes something else.
    #[error("{pass} changed what the graph computes: {difference}")]
    Changed {
        /// The pass.
        pass: &'static str,
        /// Where.
        difference: String,
    },
}

/// What the pipeline did.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// The passes that ran, in order.
    pub applied: Vec<Applied>,
    /// The accuracy report of a quantisation.
    pub quantized: Option<quantize::Report>,
    /// What mixed precision left in f32.
    pub mixed: Option<mix_precision::Report>,
}

/// Runs the pipeline, verifying after each pass. Without a device, passes that fit the graph to one do nothing.
pub fn run(
    graph: &mut Graph,
    weights: &Weights<'_>,
    options: &Options,
    device: Option<&DeviceProfile>,
) -> Result<Done, PassError> {
    check_names(options)?;
    let cx = Cx::new(weights, options.no_fold, options.bisect.unwrap_or(u32::MAX)).quantizing(options.quantize);
    let mut cx = cx.mixing(options.mixed.clone());
    cx.device = device;
    let mut done = vec![];
    verify(graph).map_err(|violations| PassError::Broken { pass: "the ATen rules", violations })?;
    for pass in PIPELINE.iter().filter(|p| !options.skip.iter().any(|s| s == p.name)) {
        let same = options.check_semantics && ![quantize::PASS.name, mix_precision::PASS.name].contains(&pass.name);
        done.push(run_one(pass, graph, &cx, same)?);
        if options.stop_after.as_deref() == Some(pass.name) {
            break;
        }
    }
    Ok(Done { applied: done, quantized: cx.quantized.into_inner(), mixed: cx.mixed_report.into_inner() })
}

/// Runs one pass, verifies the result and, on request, compares what the graph computes.
pub fn run_one(pass: &Pass, graph: &mut Graph, cx: &Cx<'_>, check_semantics: bool) -> Result<Applied, PassError> {
    let before = check_semantics.then(|| graph.clone());
    let patches = (pass.run)(graph, cx);
    verify(graph).map_err(|violations| PassError::Broken { pass: pass.name, violations })?;
    if let Some(before) = before {
        semantics::compare(&before, graph, cx.weights)
            .map_err(|difference| PassError::Changed { pass: pass.name, difference })?;
    }
    Ok(Applied { name: pass.name, patches })
}

fn check_names(options: &Options) -> Result<(), PassError> {
    let names = options.skip.iter().chain(&options.stop_after);
    match names.into_iter().find(|n| !PASSES.iter().any(|p| p.name == n.as_str())) {
        None => Ok(()),
        Some(name) => {
            let known = PASSES.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
            Err(PassError::Unknown { name: name.clone(), known })
        }
    }
}
