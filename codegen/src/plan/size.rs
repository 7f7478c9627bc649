//! Arithmetic of [`Size`]: exact, in 128 bits, with every way to fail named.

use super::{Entry, Port, PortKind, Size, Symbol};

/// Why a size has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// There is no such symbol.
    #[error("symbol {0} does not exist")]
    NoSymbol(u16),
    /// Division by zero, or by a negative number.
    #[error("division by {0}")]
    Division(i128),
    /// Outside the range that it must be in.
    #[error("{value} is not between 0 and {max}")]
    Range {
        /// The value.
        value: i128,
        /// The largest allowed one.
        max: i128,
    },
    /// Beyond 128 bits.
    #[error("overflow")]
    Overflow,
}

impl Size {
    /// Value at these symbols.
    ///
    /// # Errors
    /// A missing symbol, a divisor that is not positive, or an overflow.
    pub fn eval(&self, symbols: &[i64]) -> Result<i128, SizeError> {
        let pair = |a: &Size, b: &Size| Ok((a.eval(symbols)?, b.eval(symbols)?));
        match self {
            Size::Const(value) => Ok(i128::from(*value)),
            Size::Symbol(idx) => {
                symbols.get(usize::from(*idx)).map(|v| i128::from(*v)).ok_or(SizeError::NoSymbol(*idx))
            }
            Size::Add(terms) => terms
                .iter()
                .try_fold(0i128, |sum, term| sum.checked_add(term.eval(symbols)?).ok_or(SizeError::Overflow)),
            Size::Mul(factors) => factors.iter().try_fold(1i128, |product, factor| {
                product.checked_mul(factor.eval(symbols)?).ok_or(SizeError::Overflow)
            }),
            Size::FloorDiv(a, b) => pair(a, b).and_then(|(a, b)| positive(b).map(|b| a.div_euclid(b))),
            Size::Mod(a, b) => pair(a, b).and_then(|(a, b)| positive(b).map(|b| a.rem_euclid(b))),
            Size::Max(a, b) => pair(a, b).map(|(a, b)| a.max(b)),
            Size::Min(a, b) => pair(a, b).map(|(a, b)| a.min(b)),
        }
    }

    /// Value as a word of the symbol table.
    ///
    /// # Errors
    /// As [`Size::eval`], or a value outside u32.
    pub fn eval_u32(&self, symbols: &[i64]) -> Result<u32, SizeError> {
        let value = self.eval(symbols)?;
        u32::try_from(value).map_err(|_| SizeError::Range { value, max: i128::from(u32::MAX) })
    }
}

fn positive(divisor: i128) -> Result<i128, SizeError> {
    if divisor > 0 { Ok(divisor) } else { Err(SizeError::Division(divisor)) }
}

impl Port {
    /// Number of elements at these symbols.
    ///
    /// # Errors
    /// As [`Size::eval`], or a negative or huge extent.
    pub fn elems(&self, symbols: &[i64]) -> Result<u64, SizeError> {
        let max = i128::from(u64::MAX);
        self.shape.iter().try_fold(1u64, |product, extent| {
            let value = extent.eval(symbols)?;
            let extent = u64::try_from(value).map_err(|_| SizeError::Range { value, max })?;
            product.checked_mul(extent).ok_or(SizeError::Overflow)
        })
    }

    /// True when it is a tensor, false for an integer.
    pub fn has_buffer(&self) -> bool {
        matches!(self.kind, PortKind::Io(_))
    }

    /// Bytes of one element on the device.
    pub fn device_elem_bytes(&self) -> u64 {
        if self.word_storage { 4 } else { self.elem.size_bytes() }
    }

    /// Bytes on the device at these symbols.
    ///
    /// # Errors
    /// As [`Port::elems`].
    pub fn bytes(&self, symbols: &[i64]) -> Result<u64, SizeError> {
        self.elems(symbols)?.checked_mul(self.device_elem_bytes()).ok_or(SizeError::Overflow)
    }
}

impl Entry {
    /// Every symbol at its smallest.
    pub fn least_symbols(&self) -> Vec<i64> {
        self.symbols.iter().map(|s: &Symbol| s.min).collect()
    }

    /// Every symbol at its largest.
    pub fn greatest_symbols(&self) -> Vec<i64> {
        self.symbols.iter().map(|s: &Symbol| s.max).collect()
    }

    /// The words of the symbol table at these symbols.
    ///
    /// # Errors
    /// As [`Size::eval_u32`].
    pub fn table_words(&self, symbols: &[i64]) -> Result<Vec<u32>, SizeError> {
        self.table.iter().map(|size| size.eval_u32(symbols)).collect()
    }
}
