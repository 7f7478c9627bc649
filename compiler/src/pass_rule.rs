//! When a result counts as equal to PyTorch's: the rule that `verify` and the tests share.
//!
//! For one output: `g` is the result, `p` PyTorch's in the program's own precision, `y` PyTorch's in f64. `E = max |p − y|` is PyTorch's own
//! error, `S = max |y|` the scale of the tensor. An element passes if it lies within the tolerance of `y` or of `p` (the second covers jumps
//! such as floor, which rounding moves).

use crate::ir::DType;
use crate::ir::eval::{Data, Tensor};

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// One operator: tolerance follows each element's own size.
    Operator,
    /// A whole model: tolerance follows the tensor's largest element.
    Model,
}

/// How strictly to compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    /// Lowest floating type among the inputs and outputs; f32 if there is none.
    pub precision: DType,
    /// Operator or model.
    pub level: Level,
    /// Arguments at the edge of a function's range: eight times the tolerance.
    pub edge: bool,
}

/// The figures of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Elements that fail.
    pub failed: usize,
    /// Elements.
    pub total: usize,
    /// Largest distance to the nearer of `y` and `p` in tolerances, over elements where it is finite.
    pub worst: f64,
    /// `rms(g − y)`.
    pub rms: f64,
    /// `rms(p − y)`.
    pub reference_rms: f64,
    /// `max |g − y|` over elements where it is finite.
    pub largest: f64,
    /// The first element that fails.
    pub first: Option<usize>,
}

impl Figures {
    /// True if every element passes.
    pub fn pass(&self) -> bool {
        self.failed == 0
    }
}

impl Rule {
    /// The lowest floating type of a program's inputs and outputs.
    pub fn working_precision(dtypes: impl IntoIterator<Item = DType>) -> DType {
        let rank = |d: DType| match d {
            DType::BF16 => 0,
            DType::F16 => 1,
            _ => 2,
        };
        dtypes.into_iter().filter(|d| d.is_float()).min_by_key(|&d| rank(d)).unwrap_or(DType::F32)
    }

    fn eps_and_factor(&self) -> (f64, f64) {
        let (eps, op, model) = match self.precision {
            DType::F16 => (f64::powi(2.0, -10), 4.0, 8.0),
            DType::BF16 => (f64::powi(2.0, -7), 4.0, 8.0),
            _ => (f64::powi(2.0, -23), 32.0, 64.0),
        };
        let k = if self.level == Level::Operator { op } else { model };
        (eps, if self.edge { 8.0 * k } else { k })
    }

    /// Compares a result with the references. Dimensions of size 1 do not count: torch's decomposition of recurrent layers leaves one
    /// that eager PyTorch does not have.
    ///
    /// # Errors
    /// When type or shape differ.
    pub fn compare(&self, got: &Tensor, reference: &Tensor, exact: Option<&Tensor>) -> Result<Figures, String> {
        let sizes = |t: &Tensor| -> Vec<usize> { t.shape.iter().copied().filter(|&n| n != 1).collect() };
        if got.dtype != reference.dtype || sizes(got) != sizes(reference) {
            return Err(format!("{} {:?} instead of {} {:?}", got.dtype, got.shape, reference.dtype, reference.shape));
        }
        match (&got.data, &reference.data) {
            (Data::Float(g), Data::Float(p)) => {
                let y = exact.map_or_else(|| p.clone(), doubles);
                if y.len() != p.len() {
                    return Err(format!("{} elements in the f64 reference of {}", y.len(), p.len()));
                }
                Ok(self.compare_floats(g, p, &y))
            }
            (Data::Int(g), Data::Int(p)) => {
                let failed = g.iter().zip(p).filter(|(a, b)| a != b).count();
                Ok(Figures {
                    failed,
                    total: p.len(),
                    worst: f64::from(u8::from(failed > 0)),
                    rms: 0.0,
                    reference_rms: 0.0,
                    largest: g.iter().zip(p).map(|(a, b)| a.abs_diff(*b) as f64).fold(0.0, f64::max),
                    first: g.iter().zip(p).position(|(a, b)| a != b),
                })
            }
            _ => Err("integers instead of floats".to_string()),
        }
    }

    fn compare_floats(&self, g: &[f64], p: &[f64], y: &[f64]) -> Figures {
        let finite = |i: usize| p[i].is_finite() && y[i].is_finite();
        let max = |f: &dyn Fn(usize) -> f64| (0..p.len()).filter(|&i| finite(i)).map(f).fold(0.0, f64::max);
        let scale = max(&|i| y[i].abs());
        let own_error = max(&|i| (p[i] - y[i]).abs());
        let (eps, k) = self.eps_and_factor();
        let share = if self.level == Level::Operator { 8.0 } else { 1.0 };
        let floor = if self.precision == DType::F16 { 6.2e-5 * eps } else { 1.2e-38 };
        let (total, own, largest) = (p.len(), rms(p, y), max(&|i| finite_or(g[i] - y[i], 0.0).abs()));
        let mut out =
            Figures { failed: 0, total, worst: 0.0, rms: rms(g, y), reference_rms: own, largest, first: None };
        for i in 0..p.len() {
            let size = if finite(i) { y[i].abs() } else { 0.0 };
            let tolerance = (4.0 * own_error).max(k * eps * size.max(scale / share)).max(floor);
            let off = (g[i] - y[i]).abs().min((g[i] - p[i]).abs()) / tolerance;
            let ok = if p[i].is_nan() {
                g[i].is_nan()
            } else if p[i].is_infinite() {
                g[i] == p[i]
            } else {
                off <= 1.0
            };
            if !ok {
                out.failed += 1;
                out.first.get_or_insert(i);
            }
            if off.is_finite() {
                out.worst = out.worst.max(off);
            }
        }
        out
    }
}

/// Mixed precision beside PyTorch's own in the same half type: both errors are against f64.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// `rms(g − y)` and `rms(p − y)`.
    pub rms: (f64, f64),
    /// `max |g − y|` and `max |p − y|`.
    pub max: (f64, f64),
    /// What an exact PyTorch leaves room for: half a rounding of the result overall, one of its largest element.
    floor: (f64, f64),
    /// Elements of one side that are finite, and of the other not; where PyTorch overflows, ours may.
    pub not_finite: usize,
}

impl Gate {
    /// Most of PyTorch's overall and largest error that ours may be.
    pub const RATIOS: (f64, f64) = (1.25, 3.0);

    /// Compares floats: `g` ours, `p` PyTorch's in mixed precision, `y` exact (or f32, where there is no f64 reference).
    pub fn new(half: DType, g: &Tensor, p: &Tensor, y: &Tensor) -> Gate {
        let (g, p, y) = (doubles(g), doubles(p), doubles(y));
        let eps = f64::powi(2.0, if half == DType::BF16 { -7 } else { -10 });
        let finite: Vec<usize> = (0..y.len()).filter(|&i| y[i].is_finite() && p[i].is_finite()).collect();
        let pick = |v: &[f64]| finite.iter().map(|&i| v[i]).collect::<Vec<f64>>();
        let not_finite = (0..y.len()).filter(|&i| !g[i].is_finite() && y[i].is_finite() && p[i].is_finite()).count();
        let (g, p, y) = (pick(&g), pick(&p), pick(&y));
        let max =
            |a: &[f64]| a.iter().zip(&y).map(|(a, y)| (a - y).abs()).filter(|d| d.is_finite()).fold(0.0, f64::max);
        let zeros = vec![0.0; y.len()];
        let largest = y.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
        let floor = (0.5 * eps * rms(&y, &zeros), eps * largest);
        Gate { rms: (rms(&g, &y), rms(&p, &y)), max: (max(&g), max(&p)), floor, not_finite }
    }

    /// The larger of the two errors in terms of what it may be.
    pub fn share(&self) -> f64 {
        let of =
            |got: f64, own: f64, ratio: f64, floor: f64| if got == 0.0 { 0.0 } else { got / (ratio * own + floor) };
        let (rms, max) = (self.rms, self.max);
        of(rms.0, rms.1, Gate::RATIOS.0, self.floor.0).max(of(max.0, max.1, Gate::RATIOS.1, self.floor.1))
    }

    /// What is wrong, if anything.
    pub fn problem(&self) -> Option<String> {
        let most = (Gate::RATIOS.0 * self.rms.1 + self.floor.0, Gate::RATIOS.1 * self.max.1 + self.floor.1);
        if self.not_finite > 0 {
            return Some(format!("{} elements are not finite, PyTorch's are", self.not_finite));
        }
        if self.rms.0 > most.0 {
            let (own, most) = (self.rms.1, most.0);
            return Some(format!(
                "rms error {:.3e} is over {most:.3e} (PyTorch's in this precision {own:.3e})",
                self.rms.0
            ));
        }
        let (own, most) = (self.max.1, most.1);
        (self.max.0 > most).then(|| {
            format!("largest error {:.3e} is over {most:.3e} (PyTorch's in this precision {own:.3e})", self.max.0)
        })
    }
}

fn doubles(t: &Tensor) -> Vec<f64> {
    match &t.data {
        Data::Float(v) => v.clone(),
        Data::Int(v) => v.iter().map(|&x| x as f64).collect(),
    }
}

fn finite_or(v: f64, other: f64) -> f64 {
    if v.is_finite() { v } else { other }
}

/// Root mean square of the finite differences.
fn rms(a: &[f64], b: &[f64]) -> f64 {
    let squares: Vec<f64> = a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).filter(|d| d.is_finite()).collect();
    if squares.is_empty() { 0.0 } else { (squares.iter().sum::<f64>() / squares.len() as f64).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f64]) -> Tensor {
        Tensor::from_f64(DType::F32, &[values.len()], values.to_vec())
    }

    const RULE: Rule = Rule { precision: DType::F32, level: Level::Operator, edge: false };

    #[test]
    fn tolerance_follows_the_element_and_the_scale() {
        let reference = floats(&[1.0, 1e-3]);
        let near = floats(&[1.0 + 30.0 * f64::powi(2.0, -23), 1e-3]);
        let far = floats(&[1.0 + 40.0 * f64::powi(2.0, -23), 1e-3]);
        let pass = |g: &Tensor| RULE.compare(g, &reference, None).expect("same type").pass();
        assert!(pass(&near), "30 steps of 32");
        assert!(!pass(&far), "40 steps of 32");
        let small = floats(&[1.0, 1e-3 + 3.0 * f64::powi(2.0, -23)]);
        assert!(pass(&small), "a small element may be off by an eighth of the scale's tolerance");
    }

    #[test]
    fn nan_and_infinity_must_be_the_same() {
        let reference = floats(&[f64::NAN, f64::INFINITY]);
        let failed = |g: &[f64]| RULE.compare(&floats(g), &reference, None).expect("same type").failed;
        assert_eq!(failed(&[f64::NAN, f64::INFINITY]), 0);
        assert_eq!(failed(&[0.0, f64::INFINITY]), 1);
        assert_eq!(failed(&[f64::NAN, f64::NEG_INFINITY]), 1);
    }

    #[test]
    fn mixed_precision_is_held_to_pytorchs_own_error() {
        let y = floats(&[1.0, -2.0, 0.5, 4.0]);
        let shifted = |by: f64| floats(&[1.0 + by, -2.0 + by, 0.5 + by, 4.0 + by]);
        let gate = |g: &Tensor, p: &Tensor| Gate::new(DType::F16, g, p, &y).problem();
        assert_eq!(gate(&shifted(0.0124), &shifted(0.01)), None, "1.24 of it");
        assert!(gate(&shifted(0.0145), &shifted(0.01)).expect("1.45 of it").contains("rms"));
        // One element of sixteen moves the largest error, and little else.
        let many = |first: f64, by: f64| floats(&[vec![1.0 + first], vec![1.0 + by; 15]].concat());
        let problem = Gate::new(DType::F16, &many(0.04, 0.0), &many(0.01, 0.01), &many(0.0, 0.0)).problem();
        assert!(problem.expect("4 times the largest").contains("largest"));
        assert_eq!(gate(&shifted(0.001), &y), None, "half a rounding of the result");
        assert!(gate(&floats(&[f64::NAN, -2.0, 0.5, 4.0]), &y).is_some());
        let overflown = floats(&[1.0, -2.0, 0.5, f64::INFINITY]);
        assert_eq!(gate(&overflown, &overflown), None, "PyTorch overflows too");
    }

    #[test]
    fn other_types_and_shapes_are_errors() {
        let reference = floats(&[1.0]);
        assert!(RULE.compare(&floats(&[1.0, 2.0]), &reference, None).is_err(), "shape");
        let half = Tensor::from_f64(DType::F16, &[1], vec![1.0]);
        assert!(RULE.compare(&half, &reference, None).is_err(), "type");
        let column = Tensor::from_f64(DType::F32, &[1, 1], vec![1.0]);
        assert!(RULE.compare(&column, &reference, None).is_ok(), "a dimension of size 1 more");
    }
}
