//! Comparison of results with references: the element rule of [`crate::pass_rule`], and for models a bound on the overall error.

use super::cases::Flags;
use super::references::{References, Set};
use super::report::OutputReport;
use crate::exec::HostTensor;
use crate::import::Program;
use crate::ir::DType;
use crate::ir::eval::{Data, Tensor};
use crate::pass_rule::{Figures, Gate, Level, Rule};

/// How the outputs of one file are judged.
pub(super) struct Judge {
    rule: Rule,
    ties: bool,
    /// The inputs hold no floating numbers, so that f64 references are no more exact.
    integers_only: bool,
    /// The half type of mixed precision.
    half: Option<DType>,
}

/// The overall error may be twice PyTorch's own, plus this many roundings of the result: where PyTorch is exact (copies, few
/// additions), a different order of operations still rounds.
const FLOOR_ROUNDINGS: f64 = 2.0;
/// Mixed precision without PyTorch's own results in it: as many roundings overall, since PyTorch's error in f32 says nothing.
const MIXED_ROUNDINGS: f64 = 4.0;

impl Judge {
    pub(super) fn new(level: Option<Level>, flags: Flags, references: &References, half: Option<DType>) -> Judge {
        let tensors = || references.sets.iter().flat_map(|s| s.inputs.values().chain(s.outputs.values()));
        let precision = Rule::working_precision(tensors().map(|t| t.dtype).chain(half));
        let level = level.unwrap_or(if flags.operator { Level::Operator } else { Level::Model });
        let mut inputs = references.sets.iter().flat_map(|s| s.inputs.values()).peekable();
        let integers_only = level == Level::Operator && inputs.peek().is_some() && inputs.all(|t| !t.dtype.is_float());
        Judge { rule: Rule { precision, level, edge: flags.edge }, ties: flags.ties, integers_only, half }
    }

    /// Judges output `i` of a set; nothing where there is no reference.
    pub(super) fn compare(&self, set: &Set, i: usize, got: &HostTensor) -> Option<OutputReport> {
        let name = format!("{}out.{i}", set.prefix);
        let reference = set.outputs.get(&i)?;
        if let (Some(half), Some(own)) = (self.half, set.mixed.get(&i)) {
            return Some(self.compare_mixed(set, i, got, half, own, name));
        }
        Some(match self.figures(set, i, got, reference) {
            Ok(figures) => {
                OutputReport { name, problem: self.problem(set, i, got, reference, &figures), figures: Some(figures) }
            }
            Err(problem) => OutputReport { name, problem: Some(problem), figures: None },
        })
    }

    /// Mixed precision where PyTorch's own is known: floats by their error beside its, of integers as many may differ.
    fn compare_mixed(
        &self,
        set: &Set,
        i: usize,
        got: &HostTensor,
        half: DType,
        own: &HostTensor,
        name: String,
    ) -> OutputReport {
        let gate = || -> Result<(Figures, Option<String>), String> {
            let reference = &set.outputs[&i];
            let mut figures = self.figures(set, i, got, reference)?;
            if !reference.dtype.is_float() {
                let own = self.rule.compare(&tensor(own)?, &tensor(reference)?, None)?.failed;
                let Figures { failed, total, .. } = figures;
                let over = failed as f64 > Gate::RATIOS.0 * own as f64;
                let problem = || format!("{failed} of {total} elements differ; {own} of PyTorch's in this precision");
                return Ok((figures, over.then(problem)));
            }
            let exact = set.exact.get(&i).unwrap_or(reference);
            let gate = Gate::new(half, &tensor(got)?, &tensor(own)?, &tensor(exact)?);
            (figures.rms, figures.reference_rms) = gate.rms;
            figures.worst = gate.share();
            Ok((figures, gate.problem()))
        };
        match gate() {
            Ok((figures, problem)) => OutputReport { name, problem, figures: Some(figures) },
            Err(problem) => OutputReport { name, problem: Some(problem), figures: None },
        }
    }

    /// The overall error beside the size of what it is an error of, for results that are not expected to pass.
    pub(super) fn error_note(&self, set: &Set, i: usize, report: &OutputReport) -> Option<String> {
        let (figures, reference) = (report.figures?, set.exact.get(&i).or_else(|| set.outputs.get(&i))?);
        if !reference.dtype.is_float() {
            return None;
        }
        let size = rms(reference);
        let percent = if size > 0.0 { 100.0 * figures.rms / size } else { 0.0 };
        let (name, own) = (&report.name, figures.reference_rms);
        Some(format!(
            "{name}: rms error {:.3e} of values of {size:.3e} ({percent:.3} %; PyTorch's {own:.3e})",
            figures.rms
        ))
    }

    fn figures(&self, set: &Set, i: usize, got: &HostTensor, reference: &HostTensor) -> Result<Figures, String> {
        let exact = set.exact.get(&i).filter(|_| !self.integers_only).map(tensor).transpose()?;
        self.rule.compare(&tensor(got)?, &tensor(reference)?, exact.as_ref())
    }

    fn problem(&self, set: &Set, i: usize, got: &HostTensor, reference: &HostTensor, f: &Figures) -> Option<String> {
        if f.failed > 0 {
            if self.ties && !reference.dtype.is_float() && same_values(set, got, reference) {
                return None;
            }
            return Some(format!("{} of {} elements differ, worst {:.3} × tolerance", f.failed, f.total, f.worst));
        }
        if self.rule.level == Level::Operator {
            return None;
        }
        // Without an f64 reference PyTorch's own error is not known.
        overall(f, rms(set.exact.get(&i)?), self.rule.precision, self.half.is_some())
    }
}

/// What is wrong with the overall error of values of this size (root mean square), beside PyTorch's own.
pub(super) fn overall(f: &Figures, size: f64, precision: DType, mixed: bool) -> Option<String> {
    let eps = match precision {
        DType::F16 => f64::powi(2.0, -10),
        DType::BF16 => f64::powi(2.0, -7),
        _ => f64::powi(2.0, -23),
    };
    let roundings = if mixed { MIXED_ROUNDINGS } else { FLOOR_ROUNDINGS };
    let most = 2.0 * f.reference_rms + roundings * eps * size;
    (f.rms > most).then(|| format!("rms error {:.3e} is over {most:.3e} (PyTorch's {:.3e})", f.rms, f.reference_rms))
}

fn tensor(t: &HostTensor) -> Result<Tensor, String> {
    let shape = t.shape.iter().map(|&n| n as usize).collect();
    Tensor::from_bytes(t.dtype, shape, &t.bytes).ok_or_else(|| format!("{} bytes for {:?}", t.bytes.len(), t.shape))
}

fn rms(t: &HostTensor) -> f64 {
    tensor(t).map_or(0.0, |t| rms_of(&t))
}

/// Root mean square of the finite elements of a float tensor.
pub(super) fn rms_of(t: &Tensor) -> f64 {
    let Data::Float(values) = &t.data else { return 0.0 };
    let squares: Vec<f64> = values.iter().filter(|v| v.is_finite()).map(|v| v * v).collect();
    if squares.is_empty() { 0.0 } else { (squares.iter().sum::<f64>() / squares.len() as f64).sqrt() }
}

/// Among equal values the order is free: other indices pass if they pick the same values out of some input, along some axis (kept or
/// reduced) or out of the flattened one.
fn same_values(set: &Set, got: &HostTensor, reference: &HostTensor) -> bool {
    let (Some(a), Some(b)) = (indices(got), indices(reference)) else { return false };
    if got.shape != reference.shape {
        return false;
    }
    set.inputs.values().any(|input| {
        let axes =
            (0..input.shape.len()).filter_map(|axis| outer_positions(input, axis, &got.shape).map(|p| (axis, p)));
        let flat = || pick_flat(input, &a).is_some_and(|x| Some(x) == pick_flat(input, &b));
        let along = |(axis, outer): (usize, Vec<usize>)| {
            pick(input, axis, &outer, &a).is_some_and(|x| Some(x) == pick(input, axis, &outer, &b))
        };
        axes.into_iter().any(along) || flat()
    })
}

fn indices(t: &HostTensor) -> Option<Vec<i64>> {
    match tensor(t).ok()?.data {
        Data::Int(v) => Some(v),
        Data::Float(_) => None,
    }
}

/// For each index element, the input's linear position with the coordinate along `axis` at 0.
fn outer_positions(input: &HostTensor, axis: usize, shape: &[i64]) -> Option<Vec<usize>> {
    let mut kept = shape.to_vec();
    if kept.len() + 1 == input.shape.len() {
        kept.insert(axis, 1);
    }
    let others_fit = kept.len() == input.shape.len()
        && kept.iter().zip(&input.shape).enumerate().all(|(d, (k, n))| d == axis || k == n);
    if !others_fit {
        return None;
    }
    let n: i64 = kept.iter().product();
    let position = |mut at: i64| {
        let (mut out, mut stride) = (0, 1);
        for d in (0..kept.len()).rev() {
            let coordinate = at % kept[d];
            at /= kept[d];
            out += if d == axis { 0 } else { coordinate * stride };
            stride *= input.shape[d];
        }
        out as usize
    };
    Some((0..n).map(position).collect())
}

fn pick<'t>(input: &'t HostTensor, axis: usize, outer: &[usize], index: &[i64]) -> Option<Vec<&'t [u8]>> {
    let stride: i64 = input.shape[axis + 1..].iter().product();
    let size = input.dtype.size_bytes() as usize;
    let element = |(&at, &i): (&usize, &i64)| {
        let at = at + usize::try_from(i).ok().filter(|&i| (i as i64) < input.shape[axis])? * stride as usize;
        input.bytes.get(at * size..(at + 1) * size)
    };
    outer.iter().zip(index).map(element).collect()
}

fn pick_flat<'t>(input: &'t HostTensor, index: &[i64]) -> Option<Vec<&'t [u8]>> {
    let size = input.dtype.size_bytes() as usize;
    index
        .iter()
        .map(|&i| input.bytes.get(usize::try_from(i).ok()? * size..(usize::try_from(i).ok()? + 1) * size))
        .collect()
}

/// Reports for references beyond the program's outputs.
pub(super) fn missing(set: &Set, n_outputs: usize, program: &Program) -> Vec<OutputReport> {
    let beyond = set.outputs.keys().filter(|&&i| i >= n_outputs);
    beyond
        .map(|i| {
            let problem = Some(format!("the program {} has only {n_outputs} outputs", program.name));
            OutputReport { name: format!("{}out.{i}", set.prefix), problem, figures: None }
        })
        .collect()
}

/// True if no element is infinite or NaN.
pub(super) fn is_finite(t: &HostTensor) -> bool {
    match tensor(t).map(|t| t.data) {
        Ok(Data::Float(v)) => v.iter().all(|x| x.is_finite()),
        _ => true,
    }
}

/// An integer output, as PyTorch's references hold it.
pub(crate) fn number(value: i64) -> HostTensor {
    HostTensor { dtype: DType::I64, shape: vec![], bytes: value.to_le_bytes().to_vec() }
}

/// A constant output as a tensor, where it is a number or truth value.
pub(crate) fn constant(text: &str) -> Option<HostTensor> {
    let scalar = |dtype, bytes| Some(HostTensor { dtype, shape: vec![], bytes });
    match text {
        "True" => scalar(DType::Bool, vec![1]),
        "False" => scalar(DType::Bool, vec![0]),
        _ => scalar(DType::F64, text.parse::<f64>().ok()?.to_le_bytes().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(shape: &[i64], values: &[f32]) -> HostTensor {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        HostTensor { dtype: DType::F32, shape: shape.to_vec(), bytes }
    }

    fn doubles(shape: &[i64], values: &[f64]) -> HostTensor {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        HostTensor { dtype: DType::F64, shape: shape.to_vec(), bytes }
    }

    fn ints(shape: &[i64], values: &[i64]) -> HostTensor {
        HostTensor {
            dtype: DType::I64,
            shape: shape.to_vec(),
            bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    fn set(input: HostTensor, output: HostTensor, exact: Option<HostTensor>) -> References {
        let mut set = Set::default();
        set.inputs.insert(0, input);
        set.outputs.insert(0, output);
        if let Some(exact) = exact {
            set.exact.insert(0, exact);
        }
        References { sets: vec![set] }
    }

    fn problem(refs: &References, flags: Flags, level: Option<Level>, got: &HostTensor) -> Option<String> {
        let judge = Judge::new(level, flags, refs, None);
        judge.compare(&refs.sets[0], 0, got).expect("there is a reference").problem
    }

    #[test]
    fn models_are_also_held_to_the_overall_error() {
        // Each element is within 64 steps of the largest, but all of them are off by 20: PyTorch itself is exact.
        let n = 100;
        let refs = set(floats(&[1], &[0.0]), floats(&[n], &[1.0; 100]), Some(doubles(&[n], &[1.0; 100])));
        let off = floats(&[n], &[1.0 + 20.0 * f32::EPSILON; 100]);
        let near = floats(&[n], &[1.0 + f32::EPSILON; 100]);
        assert!(problem(&refs, Flags::default(), None, &off).expect("fails").contains("rms"));
        assert_eq!(problem(&refs, Flags::default(), None, &near), None);
        assert_eq!(problem(&refs, Flags::default(), Some(Level::Operator), &off), None);
    }

    #[test]
    fn other_indices_pass_among_ties_if_they_pick_equal_values() {
        let input = floats(&[2, 3], &[1.0, 5.0, 5.0, 7.0, 2.0, 7.0]);
        let refs = set(input, ints(&[2], &[1, 0]), None);
        let ties = Flags { operator: true, ties: true, ..Flags::default() };
        assert_eq!(problem(&refs, ties, None, &ints(&[2], &[2, 2])), None);
        assert!(problem(&refs, ties, None, &ints(&[2], &[0, 0])).is_some());
        assert!(problem(&refs, ties, None, &ints(&[2], &[2, 9])).is_some());
        assert!(problem(&refs, Flags { ties: false, ..ties }, None, &ints(&[2], &[2, 2])).is_some());
    }

    #[test]
    fn f64_references_of_integer_inputs_do_not_narrow_the_tolerance() {
        // PyTorch computed log(3) in f32; the f64 reference is no nearer to what the program means, but its distance must not count
        // as PyTorch's error either.
        let flags = Flags { operator: true, ..Flags::default() };
        let refs = set(ints(&[1], &[3]), floats(&[1], &[1.0]), Some(doubles(&[1], &[1.1])));
        assert!(problem(&refs, flags, None, &floats(&[1], &[1.05])).is_some());
        let refs = set(floats(&[1], &[3.0]), floats(&[1], &[1.0]), Some(doubles(&[1], &[1.1])));
        assert_eq!(problem(&refs, flags, None, &floats(&[1], &[1.05])), None);
    }

    #[test]
    fn python_numbers_are_scalars() {
        assert_eq!(number(7).bytes, 7i64.to_le_bytes());
        assert_eq!(constant("2.5"), Some(doubles(&[], &[2.5])));
        assert_eq!(constant("True").expect("a truth value").dtype, DType::Bool);
        assert_eq!(constant("None"), None);
    }
}
