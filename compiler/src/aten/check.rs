//! Holds the result of every rule to the type that the export recorded: a free oracle for each attribute that changes a shape or dtype.

use super::cx::{Cx, ir_dtype};
use super::{Val, bad_argument, unsupported_dtype};
use crate::import::program::TensorMeta;
use crate::ir::{Dim, Ranges, TensorType};
use crate::report::Diagnostic;
use std::collections::BTreeMap;

impl Cx {
    /// The value if it has the recorded type, its sizes written as the export writes them.
    pub(super) fn check_recorded(&mut self, v: Val, meta: &TensorMeta) -> Result<Val, Diagnostic> {
        let complex = match v {
            Val::Tensor(_) => false,
            Val::Complex { .. } => true,
            _ => return Err(bad_argument(format!("a number where the export records a tensor of {}", meta.dtype))),
        };
        let recorded = TensorType::new(ir_dtype(meta.dtype)?, meta.sizes.clone());
        if complex != meta.dtype.is_complex() {
            let got = if complex { "complex" } else { "real" };
            let text = format!("a result of {} is not supported here (the rule gives {got} numbers)", meta.dtype);
            return Err(unsupported_dtype(text));
        }
        self.each(&v, |cx, x| {
            let ty = cx.ty(x);
            if *ty == recorded {
                return Ok(x);
            }
            let same = ty.dtype == recorded.dtype
                && ty.rank() == recorded.rank()
                && ty.shape.iter().zip(&recorded.shape).all(|(a, b)| same_size(a, b, &cx.ranges));
            if same {
                return cx.reshape_unproven(x, &recorded);
            }
            Err(bad_argument(format!("the export records {recorded}, the rule gives {ty}")))
        })
    }

    /// Renames sizes that are equal for every value of the symbols although their formulas differ.
    fn reshape_unproven(&mut self, x: crate::ir::ValueId, to: &TensorType) -> super::cx::Built {
        let differs: Vec<usize> = (0..to.rank()).filter(|&d| self.ty(x).shape[d] != to.shape[d]).collect();
        differs.into_iter().try_fold(x, |x, d| self.slice(x, d, Dim::from(0), to.shape[d].clone(), 1))
    }
}

/// True if two sizes are equal at every sampled value of their symbols (both bounds and some primes between them).
pub(super) fn same_size(a: &Dim, b: &Dim, ranges: &Ranges) -> bool {
    if a == b {
        return true;
    }
    let mut symbols = a.symbols();
    symbols.extend(b.symbols());
    symbols.sort();
    symbols.dedup();
    if symbols.is_empty() {
        return false;
    }
    (0..6).all(|k| {
        let values: BTreeMap<String, i64> =
            symbols.iter().enumerate().map(|(i, s)| (s.clone(), sample(ranges, s, k, i))).collect();
        matches!((a.eval(&values), b.eval(&values)), (Some(x), Some(y)) if x == y)
    })
}

fn sample(ranges: &Ranges, symbol: &str, k: usize, which: usize) -> i64 {
    const STEPS: [i64; 4] = [2, 7, 31, 101];
    let (min, max) = ranges.get(symbol).map_or((2, 1 << 16), |r| (r.min.max(0), r.max.min(1 << 24)));
    match k {
        0 => min,
        1 => max,
        _ => (min + STEPS[(k + which) % STEPS.len()]).min(max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Range;

    #[test]
    fn sizes_are_compared_by_value_not_by_form() {
        let ranges: Ranges = [("s0".to_string(), Range { min: 2, max: 64 })].into();
        let s = Dim::symbol("s0");
        let half = (&s + &s).floor_div(&Dim::from(2));
        assert!(same_size(&half, &s, &ranges), "2·s0 / 2 = s0");
        let up = (&s + &Dim::from(1)).floor_div(&Dim::from(2));
        assert!(!same_size(&up, &s.floor_div(&Dim::from(2)), &ranges), "rounding up differs from rounding down");
        assert!(!same_size(&Dim::from(3), &Dim::from(4), &ranges), "literals");
    }
}
