//! Checks that a spec's expressions fit its interface and its template, before anything is emitted.

use crate::dtype::{DType, Storage, Ty};
use crate::expr::{Expr, ExprId, Exprs};
use crate::limits::{Limits, Reject};
use crate::spec::{Access, Extent, Interface, Store};

/// A spec that no kernel can be built from: a bug of whoever made it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A load or store names an operand that is not there.
    #[error("operand {operand} of {count} is used")]
    NoOperand {
        /// Position.
        operand: u16,
        /// Operands that exist.
        count: usize,
    },
    /// An operand is relative to a base that is not there.
    #[error("operand {operand} is relative to base {base} of {n_bases}")]
    NoBase {
        /// Position.
        operand: usize,
        /// Base.
        base: u8,
        /// Bases that exist.
        n_bases: u8,
    },
    /// A load's element type differs from its operand's.
    #[error("operand {operand} holds {held} and is loaded as {loaded}")]
    LoadType {
        /// Position.
        operand: u16,
        /// Element type of the operand.
        held: DType,
        /// Element type of the load.
        loaded: DType,
    },
    /// A kernel's load takes one linear index.
    #[error("operand {operand} is loaded with {count} indices, a kernel takes one")]
    LoadRank {
        /// Position.
        operand: u16,
        /// Indices given.
        count: usize,
    },
    /// The operand may not be used so.
    #[error("operand {operand} is {access:?} and is {used}")]
    Access {
        /// Position.
        operand: u16,
        /// What is allowed.
        access: Access,
        /// What is done.
        used: &'static str,
    },
    /// A value has the wrong type.
    #[error("{what} is {found}, {expected} is needed")]
    Type {
        /// Which value.
        what: &'static str,
        /// Its type.
        found: Ty,
        /// The type needed.
        expected: Ty,
    },
    /// An axis that has no value there.
    #[error("{what} uses axis {axis}, which has no value there")]
    Axis {
        /// Which value.
        what: &'static str,
        /// Axis.
        axis: u8,
    },
    /// An argument that has no value there, or another type.
    #[error("{what} uses argument {arg} as {ty}, which has no such value there")]
    Arg {
        /// Which value.
        what: &'static str,
        /// Argument.
        arg: u16,
        /// Type asked for.
        ty: Ty,
    },
    /// Symbols are read, but the interface does not say so.
    #[error("word {word} of the symbol table is read, but the interface has no symbols")]
    NoSymbols {
        /// Word.
        word: u16,
    },
    /// Template parameters that make no kernel.
    #[error("{reason}")]
    Shape {
        /// What is wrong.
        reason: String,
    },
    /// No template serves this kind or parameter yet.
    #[error("{what} is not supported")]
    Unsupported {
        /// What.
        what: &'static str,
    },
}

/// Checks the values of one spec.
pub(crate) struct Check<'a> {
    /// Operands.
    pub(crate) interface: &'a Interface,
    /// Arena.
    pub(crate) exprs: &'a Exprs,
}

/// What a value may use: axes (by position) and arguments (by type).
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// Name of the value, for messages.
    pub(crate) what: &'static str,
    /// Axes with a value.
    pub(crate) axes: &'a [u8],
    /// Types of the arguments with a value.
    pub(crate) args: &'a [Ty],
}

impl Check<'_> {
    /// The interface by itself, and that symbolic extents have a table.
    pub(crate) fn interface(&self, extents: &[Extent]) -> Result<(), BuildError> {
        for (operand, o) in self.interface.operands.iter().enumerate() {
            if o.base >= self.interface.n_bases {
                return Err(BuildError::NoBase { operand, base: o.base, n_bases: self.interface.n_bases });
            }
        }
        if self.interface.symbols && self.interface.n_bases == 0 {
            return Err(shape("the symbol table needs a base".to_owned()));
        }
        match extents.iter().find_map(|e| if let Extent::Sym(word) = e { Some(*word) } else { None }) {
            Some(word) if !self.interface.symbols => Err(BuildError::NoSymbols { word }),
            _ => Ok(()),
        }
    }

    /// A value of type `expected`.
    pub(crate) fn value(&self, scope: Scope<'_>, id: ExprId, expected: Ty) -> Result<(), BuildError> {
        let found = self.exprs.ty(id);
        if found != expected {
            return Err(BuildError::Type { what: scope.what, found, expected });
        }
        self.exprs.reachable(&[id]).into_iter().try_for_each(|node| self.node(scope, node))
    }

    fn node(&self, scope: Scope<'_>, id: ExprId) -> Result<(), BuildError> {
        let what = scope.what;
        match self.exprs.get(id) {
            Expr::Axis(k) if !scope.axes.contains(k) => Err(BuildError::Axis { what, axis: *k }),
            Expr::Arg(i, ty) if scope.args.get(usize::from(*i)) != Some(ty) => {
                Err(BuildError::Arg { what, arg: *i, ty: *ty })
            }
            Expr::Sym(word) if !self.interface.symbols => Err(BuildError::NoSymbols { word: *word }),
            Expr::Load { operand, dtype, index } => self.load(*operand, *dtype, index.len()),
            _ => Ok(()),
        }
    }

    fn load(&self, operand: u16, dtype: DType, indices: usize) -> Result<(), BuildError> {
        let held = self.operand(operand)?;
        if held.dtype != dtype {
            return Err(BuildError::LoadType { operand, held: held.dtype, loaded: dtype });
        }
        if held.access == Access::Write {
            return Err(BuildError::Access { operand, access: held.access, used: "loaded" });
        }
        if indices != 1 {
            return Err(BuildError::LoadRank { operand, count: indices });
        }
        Ok(())
    }

    fn operand(&self, operand: u16) -> Result<&crate::spec::Operand, BuildError> {
        let count = self.interface.operands.len();
        self.interface.operands.get(usize::from(operand)).ok_or(BuildError::NoOperand { operand, count })
    }

    /// Stores, whose index, value and guard may use `scope`.
    pub(crate) fn stores(&self, scope: Scope<'_>, stores: &[Store]) -> Result<(), BuildError> {
        for s in stores {
            let held = self.operand(s.operand)?;
            if held.access == Access::Read {
                return Err(BuildError::Access { operand: s.operand, access: held.access, used: "stored" });
            }
            self.value(Scope { what: "a store's index", ..scope }, s.index, Ty::I32)?;
            self.value(Scope { what: "a stored value", ..scope }, s.value, held.dtype.ty())?;
            if let Some(guard) = s.guard {
                self.value(Scope { what: "a store's guard", ..scope }, guard, Ty::Bool)?;
            }
        }
        Ok(())
    }
}

/// A shape error.
pub(crate) fn shape(reason: String) -> BuildError {
    BuildError::Shape { reason }
}

/// What every template demands of a device: invocations, push constants, and the types in memory and registers.
pub(crate) fn common_limits(
    interface: &Interface,
    exprs: &Exprs,
    workgroup: u32,
    limits: &Limits,
) -> Result<(), Reject> {
    if workgroup > limits.max_workgroup {
        return Err(Reject::Workgroup { need: workgroup, limit: limits.max_workgroup });
    }
    if interface.push_bytes() > limits.push_bytes {
        return Err(Reject::Push { need: interface.push_bytes(), limit: limits.push_bytes });
    }
    let need = |has: bool, feature: &'static str| if has { Ok(()) } else { Err(Reject::Feature { feature }) };
    for o in &interface.operands {
        match (o.dtype, o.storage) {
            (DType::Bool | DType::U8 | DType::I8, Storage::Native) => need(limits.int8, "8-bit integers")?,
            (DType::I16 | DType::BF16, Storage::Native) => need(limits.int16, "16-bit integers")?,
            (DType::F16, Storage::Native) => need(limits.float16, "16-bit floats")?,
            (DType::F64, _) => need(limits.float64, "64-bit floats")?,
            _ => {}
        }
    }
    for (id, _) in exprs.iter() {
        match exprs.ty(id) {
            Ty::F64 => need(limits.float64, "64-bit floats")?,
            Ty::Bool | Ty::I32 | Ty::I64 | Ty::F32 => {}
        }
    }
    Ok(())
}

/// Rejects constant iteration spaces of 2³¹ elements and more.
pub(crate) fn index_space(extents: &[Extent]) -> Result<(), Reject> {
    let known = extents.iter().map(|e| if let Extent::Const(n) = e { u64::from(*n) } else { 1 });
    let elements = known.fold(1u64, u64::saturating_mul);
    if elements > i32::MAX as u64 { Err(Reject::TooLarge { elements }) } else { Ok(()) }
}
