//! A value beside PyTorch's: how far off, and whether that is too far.

use super::file::Reference;
use crate::ir::DType;
use crate::ir::eval::{Data, Tensor};
use crate::pass_rule::{Figures, Gate, Rule};
use crate::verify::judge::{overall, rms_of};

/// What a comparison gave.
#[derive(Debug, Clone)]
pub struct Judged {
    /// Figures.
    pub figures: Figures,
    /// What is wrong, if anything.
    pub problem: Option<String>,
    /// Root mean square of the values themselves.
    pub size: f64,
}

/// By what values are judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judge {
    /// The element rule.
    pub(super) rule: Rule,
    /// The half type of mixed precision.
    pub(super) half: Option<DType>,
}

impl Judge {
    /// Compares elements of a value with those of a node's tensor, which `positions` pairs.
    ///
    /// # Errors
    /// What makes the two incomparable.
    pub(super) fn compare(
        &self,
        got: &Tensor,
        r: &Reference,
        positions: Option<&[(u32, u32)]>,
    ) -> Result<Judged, String> {
        let g = picked(got, positions.map(|p| p.iter().map(|p| p.0)));
        let theirs = |t: &Tensor| picked(t, positions.map(|p| p.iter().map(|p| p.1)));
        let (own, exact) = (theirs(&r.own), r.exact.as_ref().map(theirs));
        if g.n_elems() != own.n_elems() {
            return Err(format!("{:?} has other sizes than the reference, {:?}", got.shape, r.own.shape));
        }
        if g.dtype.is_float() != own.dtype.is_float() {
            return Err(format!("it is {}, the reference {}", g.dtype, own.dtype));
        }
        let g = Tensor { dtype: own.dtype, ..g };
        if !own.dtype.is_float() {
            return self.integers(&g, &own, exact.as_ref());
        }
        // What PyTorch's autocast keeps in f32 says nothing of a value that is a half here.
        let alike = |mixed: &&Tensor| mixed.dtype == got.dtype || got.dtype == DType::F32;
        if let (Some(half), Some(mixed)) = (self.half, r.half.as_ref().filter(alike)) {
            let p = Tensor { dtype: own.dtype, ..theirs(mixed) };
            let y = exact.unwrap_or(own);
            let mut figures = self.rule.compare(&g, &p, Some(&y))?;
            let gate = Gate::new(half, &g, &p, &y);
            figures.worst = gate.share();
            return Ok(Judged { figures, problem: gate.problem(), size: rms_of(&y) });
        }
        let figures = self.rule.compare(&g, &own, exact.as_ref())?;
        let size = rms_of(exact.as_ref().unwrap_or(&own));
        let off =
            || format!("{} of {} elements, worst {:.3} × tolerance", figures.failed, figures.total, figures.worst);
        let problem = match figures.failed {
            // Without an f64 reference PyTorch's own error is not known.
            0 if exact.is_some() => overall(&figures, size, self.rule.precision, self.half.is_some()),
            0 => None,
            _ => Some(off()),
        };
        Ok(Judged { figures, problem, size })
    }

    /// Integers that PyTorch itself gives otherwise in f64 may differ here, too.
    fn integers(&self, g: &Tensor, own: &Tensor, exact: Option<&Tensor>) -> Result<Judged, String> {
        let figures = self.rule.compare(g, own, None)?;
        let (Data::Int(p), y) = (&own.data, exact.map(|t| &t.data)) else { return Err("no integers".into()) };
        let unsure = match y {
            Some(Data::Int(y)) => p.iter().zip(y).filter(|(a, b)| a != b).count(),
            _ => 0,
        };
        let over = figures.failed as f64 > Gate::RATIOS.0 * unsure as f64;
        let problem =
            over.then(|| format!("{} of {} integers differ, {unsure} of PyTorch's", figures.failed, figures.total));
        Ok(Judged { figures, problem, size: 0.0 })
    }
}

/// The elements at given positions, in one row.
fn picked(t: &Tensor, positions: Option<impl Iterator<Item = u32>>) -> Tensor {
    let data = match positions {
        None => t.data.clone(),
        Some(at) => match &t.data {
            Data::Float(v) => Data::Float(at.map(|i| v[i as usize]).collect()),
            Data::Int(v) => Data::Int(at.map(|i| v[i as usize]).collect()),
        },
    };
    Tensor { dtype: t.dtype, shape: vec![data.len()], data }
}
