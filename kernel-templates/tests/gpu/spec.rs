//! Specs of tests: operands by type and access, row-major indices over extents.

use jvc_kernels::dtype::{DType, Storage};
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs};
use jvc_kernels::spec::{Access, Extent, Interface, Operand};

/// An operand relative to the only base.
pub(crate) fn operand(dtype: DType, access: Access) -> Operand {
    Operand { dtype, storage: Storage::Native, access, base: 0, via_table: false }
}

/// Operands over one base, and a second for symbols.
pub(crate) fn interface(operands: Vec<Operand>, symbols: bool) -> Interface {
    Interface { operands, n_bases: 1 + u8::from(symbols), symbols }
}

/// A size as an expression.
pub(crate) fn extent(e: &mut Exprs, extent: Extent) -> ExprId {
    match extent {
        Extent::Const(n) => e.i32(n as i32),
        Extent::Sym(word) => e.add(Expr::Sym(word)),
    }
}

/// Row-major index over `(axis, extent)` pairs, outermost first.
pub(crate) fn row_major(e: &mut Exprs, axes: &[(u8, Extent)]) -> ExprId {
    let mut index = e.i32(0);
    for &(axis, size) in axes {
        let size = extent(e, size);
        let scaled = e.bin(Binary::Mul, index, size);
        let axis = e.axis(axis);
        index = e.bin(Binary::Add, scaled, axis);
    }
    index
}

/// True when some extent is a word of the symbol table.
pub(crate) fn symbolic(extents: &[Extent]) -> bool {
    extents.iter().any(|e| matches!(e, Extent::Sym(_)))
}
