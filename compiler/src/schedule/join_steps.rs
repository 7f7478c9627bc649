//! Time steps of several recurrent layers that stand between the same barriers become one dispatch, where they are the same kernel on other operands: a
//! dispatch costs something even where nothing waits for it, and a stack has one for each layer at each step.
//!
//! ```text
//! step 9 of layer 1 · step 5 of layer 2 · step 1 of layer 3     →     one kernel of three copies
//! ```

use super::lower::{Draft, Part};
use super::wavefront::clash;
use jvc_kernels::spec::KernelSpec;

/// Operands of a joint kernel, at most: with up to four bases they fit the 128 bytes of push constants that every device has.
const MOST_OPERANDS: usize = 24;

/// Joins the steps of each wave; everything else stays where it is.
pub fn join_steps(drafts: Vec<Draft>) -> Vec<Draft> {
    if drafts.iter().all(|d| d.layer.is_none()) {
        return drafts;
    }
    let (mut out, mut wave): (Vec<Draft>, Vec<Draft>) = (vec![], vec![]);
    for d in drafts {
        if wave.iter().any(|earlier| clash(earlier, &d)) {
            out.append(&mut joined(std::mem::take(&mut wave)));
        }
        wave.push(d);
    }
    out.extend(joined(wave));
    out
}

/// The kernels of a wave, of which each may stand anywhere in it.
fn joined(wave: Vec<Draft>) -> Vec<Draft> {
    let mut out: Vec<(Option<String>, Draft)> = vec![];
    for d in wave {
        let kernel = d.layer.map(|_| d.spec.to_string());
        let same = |(k, first): &&mut (Option<String>, Draft)| kernel.is_some() && *k == kernel && joins(first, &d);
        match out.iter_mut().find(same) {
            Some((_, first)) => join(first, d),
            None => out.push((kernel, d)),
        }
    }
    out.into_iter().map(|(_, d)| d).collect()
}

fn joins(first: &Draft, d: &Draft) -> bool {
    let shared = matches!(&d.spec, KernelSpec::Row(s) if s.threads_per_row > 1);
    shared && first.layer != d.layer && first.uses.len() + d.uses.len() <= MOST_OPERANDS
}

fn join(first: &mut Draft, d: Draft) {
    let (KernelSpec::Row(spec), KernelSpec::Row(other)) = (&mut first.spec, d.spec) else { return };
    let before = spec.interface.operands.len() as u16;
    spec.interface.operands.extend(other.interface.operands);
    spec.copies += 1;
    first.parts.extend(d.parts.into_iter().map(|p| Part { operand: p.operand + before, ..p }));
    first.uses.extend(d.uses);
    first.nodes.extend(d.nodes);
    (first.cost.flops, first.cost.bytes) = (first.cost.flops + d.cost.flops, first.cost.bytes + d.cost.bytes);
}
