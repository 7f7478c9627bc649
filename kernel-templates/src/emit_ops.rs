//! Operations of expressions on registers of every type.

use crate::asm::{Asm, Id, St};
use crate::expr::{Binary, Unary};

/// One-operand operations of every register type.
pub(crate) fn emit_unary(asm: &mut Asm, op: Unary, x: Id) -> Id {
    let st = asm.st(x);
    if let Some(value) = asm.elementary(op, x) {
        return value;
    }
    match (op, st) {
        (Unary::Not, St::Bool) => asm.lnot(x),
        (Unary::Not, _) => asm.inot(x),
        (Unary::Neg, _) if st.is_float() => asm.fneg(x),
        (Unary::Neg, _) => asm.ineg(x),
        (_, _) if st.is_float() => asm.fabs(x),
        _ => {
            let zero = asm.int(st, 0);
            let negative = asm.slt(x, zero);
            let minus = asm.ineg(x);
            asm.select(negative, minus, x)
        }
    }
}

/// Two-operand operations of every register type.
pub(crate) fn emit_binary(asm: &mut Asm, op: Binary, x: Id, y: Id) -> Id {
    match asm.st(x) {
        St::Bool => emit_bool(asm, op, x, y),
        St::F32 | St::F64 => emit_float(asm, op, x, y),
        _ => emit_int(asm, op, x, y),
    }
}

fn emit_bool(asm: &mut Asm, op: Binary, x: Id, y: Id) -> Id {
    match op {
        Binary::And => asm.land(x, y),
        Binary::Or => asm.lor(x, y),
        Binary::Eq => asm.leq(x, y),
        Binary::Xor | Binary::Ne => asm.lne(x, y),
        _ => unreachable!("{op:?} of bool is never built"),
    }
}

fn emit_float(asm: &mut Asm, op: Binary, x: Id, y: Id) -> Id {
    match op {
        Binary::Add => asm.fadd(x, y),
        Binary::Sub => asm.fsub(x, y),
        Binary::Mul => asm.fmul(x, y),
        Binary::Div => asm.fdiv_rounded(x, y),
        Binary::Rem => asm.frem(x, y),
        Binary::Pow => asm.pow(x, y),
        Binary::Atan2 => asm.atan2(x, y),
        Binary::Max => asm.fmax_nan(x, y),
        Binary::Min => asm.fmin_nan(x, y),
        Binary::Eq => asm.feq(x, y),
        Binary::Ne => asm.fne(x, y),
        Binary::Lt => asm.flt(x, y),
        Binary::Le => asm.fle(x, y),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
            unreachable!("{op:?} of floats is never built")
        }
    }
}

fn emit_int(asm: &mut Asm, op: Binary, x: Id, y: Id) -> Id {
    match op {
        Binary::Add => asm.iadd(x, y),
        Binary::Sub => asm.isub(x, y),
        Binary::Mul => asm.imul(x, y),
        Binary::Div => asm.sdiv(x, y),
        Binary::Rem => {
            let quotient = asm.sdiv(x, y);
            let whole = asm.imul(quotient, y);
            asm.isub(x, whole)
        }
        Binary::Max => {
            let above = asm.slt(y, x);
            asm.select(above, x, y)
        }
        Binary::Min => {
            let below = asm.slt(x, y);
            asm.select(below, x, y)
        }
        Binary::And => asm.and(x, y),
        Binary::Or => asm.or(x, y),
        Binary::Xor => asm.xor(x, y),
        Binary::Shl => asm.shl(x, y),
        Binary::Shr => asm.sar(x, y),
        Binary::Eq => asm.ieq(x, y),
        Binary::Ne => asm.ine(x, y),
        Binary::Lt => asm.slt(x, y),
        Binary::Le => asm.sle(x, y),
        Binary::Pow | Binary::Atan2 => unreachable!("{op:?} of integers is never built"),
    }
}
