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
        let mut out = Figures { failed: 0, total: p.len(), worst: 0.0, rms: rms(g, y), reference_rms: rms(p, y) };
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
            }
            if off.is_finite() {
                out.worst = out.worst.max(off);
            }
        }
        out
    }
}

fn doubles(t: &Tensor) -> Vec<f64> {
    match &t.data {
        Data::Float(v) => v.clone(),
        Data::Int(v) => v.iter().map(|&x| x as f64).collect(),
    }
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
    fn other_types_and_shapes_are_errors() {
        let reference = floats(&[1.0]);
        assert!(RULE.compare(&floats(&[1.0, 2.0]), &reference, None).is_err(), "shape");
        let half = Tensor::from_f64(DType::F16, &[1], vec![1.0]);
        assert!(RULE.compare(&half, &reference, None).is_err(), "type");
        let column = Tensor::from_f64(DType::F32, &[1, 1], vec![1.0]);
        assert!(RULE.compare(&column, &reference, None).is_ok(), "a dimension of size 1 more");
    }
}
