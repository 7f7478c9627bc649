//! All steps as they are recorded, beside the same steps one at a time. Kernels are the same and memory is the same; only barriers stand
//! between them instead of the end of a submission. Other bytes mean that two steps which run beside each other should not.

use super::memory::Layouts;
use super::places::Stored;
use crate::exec::{ExecError, Stepwise};
use jvc_codegen::plan::{Entry, Region, Step};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// What the steps left one at a time: for each value the step that completed it, and a hash of its bytes.
#[derive(Debug, Default)]
pub(super) struct Recorded(BTreeMap<Stored, (usize, u64)>);

/// A value that is another one when all steps run together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfOrder {
    /// The step that completes it: the shortest recording with a fault ends with the step `last`.
    pub step: usize,
    /// Its label.
    pub label: String,
    /// Last step of the shortest recording that shows it.
    pub last: usize,
    /// The value's name.
    pub value: String,
}

impl fmt::Display for OutOfOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfOrder { step, label, last, value } = self;
        write!(
            f,
            "{value}, of step {step} ({label}), has other bytes when steps 0 to {last} run as recorded than when they run one at a time: \
             the steps overlap where they must not (a barrier, or memory of two values)"
        )
    }
}

impl OutOfOrder {
    pub(super) fn to_json(&self) -> Value {
        json!({"step": self.step, "label": self.label, "last": self.last, "value": self.value})
    }
}

impl Recorded {
    /// A value as a step alone has left it.
    pub(super) fn note(&mut self, stored: Stored, step: usize, bytes: &[u8]) {
        self.0.insert(stored, (step, jvc_files::content_hash([bytes])));
    }

    /// Runs everything `repeats` times; where what is there at the end differs, looks for the shortest recording with a difference.
    pub(super) fn check(
        &self,
        run: &mut Stepwise<'_>,
        layouts: &Layouts<'_>,
        entry: &Entry,
        repeats: u32,
    ) -> Result<Option<OutOfOrder>, ExecError> {
        let mut differs = |last: usize| -> Result<Option<(usize, Stored)>, ExecError> {
            for _ in 0..repeats.max(1) {
                run.start()?;
                run.run(0..last + 1)?;
                let found = self.difference(run, layouts, entry, last)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
            Ok(None)
        };
        let Some(mut high) = entry.steps.len().checked_sub(1) else { return Ok(None) };
        let Some(mut found) = differs(high)? else { return Ok(None) };
        let mut low = 0;
        while low < high {
            let middle = low + (high - low) / 2;
            match differs(middle)? {
                Some(earlier) => (found, high) = (earlier, middle),
                None => low = middle + 1,
            }
        }
        let (step, stored) = found;
        let Step::Dispatch(d) = &entry.steps[step] else { return Ok(None) };
        let value = layouts.graph.value(stored.value).name.clone();
        Ok(Some(OutOfOrder { step, label: d.label.clone(), last: high, value }))
    }

    /// The first value that should still be there after a step, and is not.
    fn difference(
        &self,
        run: &Stepwise<'_>,
        layouts: &Layouts<'_>,
        entry: &Entry,
        last: usize,
    ) -> Result<Option<(usize, Stored)>, ExecError> {
        // A buffer that a later step reads; the last reader may have written over it.
        let kept = |step: usize, stored: &Stored| match stored.region {
            Region::Arena(chunk) => entry.buffers.iter().any(|b| {
                let here = (b.chunk, b.offset) == (chunk, stored.offset);
                let there = b.live.1 as usize > last || step == last;
                here && there && layouts.graph.value(stored.value).name == b.name
            }),
            _ => true,
        };
        let mut there: Vec<(usize, Stored, u64)> = self.0.iter().map(|(s, (step, hash))| (*step, *s, *hash)).collect();
        there.retain(|(step, stored, _)| *step <= last && kept(*step, stored));
        there.sort_unstable();
        for (step, stored, hash) in there {
            let Some(bytes) = layouts.bytes(run, stored)? else { continue };
            if jvc_files::content_hash([bytes.as_slice()]) != hash {
                return Ok(Some((step, stored)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::places;
    use super::*;
    use crate::exec::{Loaded, Value};
    use crate::options::Options;
    use crate::{device, import, pipeline, tensor_file};
    use std::path::Path;

    #[test]
    fn the_shortest_recording_with_another_value_ends_where_the_value_is_made() {
        let Ok(gpu) = jvc_runtime::Gpu::open(&jvc_runtime::Select::Auto) else { return };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/steps");
        let programs = import::read(&folder.join("small.pt2")).expect("readable");
        let device = device::of_open_gpu(&gpu);
        let compiled = pipeline::compile(&programs, &Options::default(), &device).expect("supported");
        let mut tensors = tensor_file::read_tensors(&folder.join("small.refs.safetensors")).expect("readable");
        let input = Value::Tensor(tensors.remove("in.0").expect("an input"));
        let loaded = Loaded::new(&gpu, &compiled, &jvc_runtime::CacheDir::None).expect("it loads");
        let (graph, entry) = (&compiled.graphs[0], &compiled.plan.entries[0]);
        let layouts = Layouts { graph, device: &device, orders: &compiled.orders[0] };
        let mut run = Stepwise::new(&loaded, 0, &[input]).expect("the input fits");
        run.start().expect("a device");
        let mut recorded = Recorded::default();
        for (i, step) in places::of_steps(graph, entry).iter().enumerate() {
            run.run(i..i + 1).expect("it runs");
            for stored in &step.completes {
                recorded.note(*stored, i, &layouts.bytes(&run, *stored).expect("a device").expect("literal sizes"));
            }
        }
        assert_eq!(recorded.check(&mut run, &layouts, entry, 2).expect("a device"), None);
        // As if a step in the middle had left something else alone, and with it a result.
        let stored = *recorded.0.iter().max_by_key(|(_, (step, _))| *step).expect("results").0;
        recorded.0.get_mut(&stored).expect("it is there").1 ^= 1;
        let found = recorded.check(&mut run, &layouts, entry, 1).expect("a device").expect("a difference");
        assert_eq!((found.step, found.last), (recorded.0[&stored].0, recorded.0[&stored].0));
    }
}
