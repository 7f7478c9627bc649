//! References of kernels: plain loops over the spec, shared pieces of the templates' own.

use crate::dtype::Ty;
use crate::eval::{Runner, Tape, Value, binary};
use crate::expr::{Binary, ExprId, Exprs};
use crate::host::{Memory, Point};
use crate::spec::{Combine, KernelSpec, Store};
use crate::templates::{attention, fft, map, matmul, recurrent, row, scan, scatter, sort};

/// Runs a spec on the host.
///
/// # Panics
/// When an index leaves its operand.
pub fn reference(spec: &KernelSpec, memory: &mut Memory) {
    match spec {
        KernelSpec::Map(s) => map::reference(s, memory),
        KernelSpec::Row(s) => row::reference(s, memory),
        KernelSpec::Matmul(s) => matmul::reference(s, memory),
        KernelSpec::Attention(s) => attention::reference(s, memory),
        KernelSpec::Recurrent(s) => recurrent::reference(s, memory),
        KernelSpec::Scan(s) => scan::reference(s, memory),
        KernelSpec::Scatter(s) => scatter::reference(s, memory),
        KernelSpec::Sort(s) => sort::reference(s, memory),
        KernelSpec::Fft(s) => fft::reference(s, memory),
    }
}

/// Stores, flattened once.
pub(crate) struct StoreTape<'s> {
    stores: &'s [Store],
    tape: Tape,
}

impl<'s> StoreTape<'s> {
    /// Flattens the stores of a spec.
    pub(crate) fn new(exprs: &Exprs, stores: &'s [Store]) -> StoreTape<'s> {
        let mut roots: Vec<ExprId> = vec![];
        for s in stores {
            roots.extend([s.index, s.value]);
            roots.extend(s.guard);
        }
        StoreTape { stores, tape: Tape::new(exprs, &roots) }
    }

    /// A runner for [`StoreTape::run`].
    pub(crate) fn runner(&self) -> Runner<'_> {
        self.tape.runner()
    }

    /// Evaluates all stores at a point, then writes.
    pub(crate) fn run(&self, runner: &mut Runner<'_>, memory: &mut Memory, axes: &[i32], args: &[Value]) {
        runner.run(&Point { memory, axes, args });
        let mut root = 0;
        for s in self.stores {
            let (index, value) = (runner.get(root), runner.get(root + 1));
            let guard = s.guard.is_none() || runner.get(root + 2).to_bool();
            root += 2 + usize::from(s.guard.is_some());
            if guard {
                memory.operands[usize::from(s.operand)].store(index.index() as usize, value);
            }
        }
    }
}

/// The value from which a combination starts.
pub(crate) fn identity(combine: Combine, ty: Ty) -> Value {
    match combine {
        Combine::Sum => Value::from_f64(ty, 0.0),
        Combine::Prod => Value::from_f64(ty, 1.0),
        Combine::Any => Value::Bool(false),
        Combine::All => Value::Bool(true),
        Combine::Max | Combine::ArgMax => lowest(ty),
        Combine::Min | Combine::ArgMin => highest(ty),
    }
}

fn lowest(ty: Ty) -> Value {
    match ty {
        Ty::I32 => Value::I32(i32::MIN),
        Ty::I64 => Value::I64(i64::MIN),
        _ => Value::from_f64(ty, f64::NEG_INFINITY),
    }
}

fn highest(ty: Ty) -> Value {
    match ty {
        Ty::I32 => Value::I32(i32::MAX),
        Ty::I64 => Value::I64(i64::MAX),
        _ => Value::from_f64(ty, f64::INFINITY),
    }
}

/// Whether `new` takes the place of `best` for ArgMax or ArgMin: it is beyond it, or the first NaN.
pub(crate) fn beats(combine: Combine, new: Value, best: Value) -> bool {
    let nan = |v: Value| v.to_f64().is_nan();
    let beyond = match combine {
        Combine::ArgMax => binary(Binary::Lt, best, new),
        _ => binary(Binary::Lt, new, best),
    };
    beyond == Value::Bool(true) || (nan(new) && !nan(best))
}

/// One step of a combination that keeps its type.
pub(crate) fn combine(combine: Combine, acc: Value, value: Value) -> Value {
    let op = match combine {
        Combine::Sum => Binary::Add,
        Combine::Prod => Binary::Mul,
        Combine::Max => Binary::Max,
        Combine::Min => Binary::Min,
        Combine::Any => Binary::Or,
        Combine::All => Binary::And,
        Combine::ArgMax | Combine::ArgMin => panic!("positions are combined with their values"),
    };
    binary(op, acc, value)
}
