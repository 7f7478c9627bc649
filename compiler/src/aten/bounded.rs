//! Sizes that the data decide (`nonzero`, selection by a mask, `repeat_interleave`, `nms`, `item`): the export names such a size by an
//! unbacked symbol (`u0`), and the graph binds the symbol to a count that it computes. Shapes further on name the symbol like any other.
//! Memory is planned at the symbol's upper bound: what the operator cannot exceed, the export's range, or `--bound`. A count beyond it is
//! an error of the run.

use super::{Call, Cx, unsupported_shape};
use crate::ir::{Binding, DType, Dim, Range, ValueId};
use crate::report::{Code, Diagnostic};
use jvc_kernels::dtype::Ty;

/// A size of a result that the data decide.
#[derive(Debug, Clone)]
pub(super) struct Found {
    /// As the export records it: a symbol, or the only size that the program allows.
    pub(super) size: Dim,
    /// What it cannot exceed, for tables that are filled before the count is known.
    pub(super) most: Dim,
}

/// Sizes above need more memory than a 32-bit index reaches.
const OPEN: i64 = i32::MAX as i64;

impl Cx {
    /// The size that the export records for a dimension of the call's (first) result, which the operator cannot make larger than `natural`.
    pub(super) fn found_size(
        &mut self,
        call: &Call<'_>,
        dim: usize,
        natural: Option<&Dim>,
    ) -> Result<Found, Diagnostic> {
        let size = call.meta(0).and_then(|m| m.sizes.get(dim)).cloned();
        let size = size.ok_or_else(|| unsupported_shape(format!("{} has no recorded result", call.target)))?;
        self.limit_symbol(call, &size, natural)
    }

    /// Limits a symbol to what an operator can give, and refuses one without a limit.
    pub(super) fn limit_symbol(
        &mut self,
        call: &Call<'_>,
        size: &Dim,
        natural: Option<&Dim>,
    ) -> Result<Found, Diagnostic> {
        if size.as_const().is_some() {
            return Ok(Found { size: size.clone(), most: size.clone() });
        }
        let name = match size.symbols().as_slice() {
            [one] if *size == Dim::symbol(one) => one.clone(),
            _ => {
                let text = format!("{}: the data decide a size that the export records as {size}", call.target);
                return Err(unsupported_shape(text));
            }
        };
        let reach = natural.map_or(i64::MAX, |n| n.range(&self.ranges).max);
        let range = self.ranges.get(&name).copied().unwrap_or(Range { min: 0, max: i64::MAX });
        let range = Range { min: range.min.max(0), max: range.max.min(reach) };
        if range.max > OPEN {
            let text = format!("{}: the data decide the size {name}, which has no upper bound", call.target);
            return Err(Diagnostic::new(Code::Unbounded, text).with_help(format!("give one with --bound {name}=N")));
        }
        self.ranges.insert(name, range);
        let most = Dim::from(range.max);
        Ok(Found { size: size.clone(), most: natural.filter(|n| n.as_const().is_none()).cloned().unwrap_or(most) })
    }

    /// The count of a size, an integer tensor of one element. Where the export knows the size, or another operator has given it already
    /// (the program says that both are equal), nothing is bound.
    pub(super) fn bind(&mut self, found: &Found, count: ValueId) -> Result<(), Diagnostic> {
        let symbols = found.size.symbols();
        let [symbol] = symbols.as_slice() else { return Ok(()) };
        if self.b.graph.bindings.iter().any(|b| b.symbol == *symbol) {
            return Ok(());
        }
        let count = self.reshape(count, vec![])?;
        // Counts beyond 32 bits stay out of range instead of wrapping back into it.
        let wide = self.tensor_dtype(count).ty() == Ty::I64;
        let count = match wide {
            true => self.map1(count, |b, c| {
                let (low, high) = (b.lit_int(Ty::I64, -1), b.lit_int(Ty::I64, i64::from(i32::MAX)));
                let c = b.max(c, low);
                b.min(c, high)
            })?,
            false => count,
        };
        let count = self.cast(count, DType::I32)?;
        self.b.graph.bindings.push(Binding { symbol: symbol.clone(), count });
        Ok(())
    }
}

/// True for the names that exports give to sizes that the data decide.
pub(crate) fn is_unbacked(symbol: &str) -> bool {
    symbol.strip_prefix('u').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}
