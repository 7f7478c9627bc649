//! Scores as exponents of two, against a base that may lag behind the maximum of its row: both tiled kernels have their softmax so.
//!
//! A lane keeps the base as a *shift*, which takes a score to its exponent by one addition. `f32::MAX` stands for "no score yet": any finite score
//! is then far above the base, and −∞ stays −∞.

use crate::asm::{Glsl, Id};
use crate::emit_expr::Emit;
use crate::expr::{Binary, Expr, Lit};
use crate::spec::{AttentionSpec, Extent};
use std::f32::consts::LOG2_E;

/// How scores become exponents of two, which are what is compared with a slack and raised.
#[derive(Clone, Copy)]
pub(super) enum Exponent {
    /// The score is the dot product by a positive number: `x = dot`, the exponent is `x·factor + shift`.
    Scaled(f32),
    /// Any score: `x = score`, the exponent is `(x + shift)·log2(e)`. Scores may be −∞, or as large as f32 has them.
    Any,
}

impl Exponent {
    pub(super) fn of(spec: &AttentionSpec) -> Exponent {
        let e = &spec.exprs;
        let scale = match *e.get(spec.score) {
            Expr::Arg(0, _) => Some(1.0),
            Expr::Binary(Binary::Mul, a, b) => match (e.get(a), e.get(b)) {
                (Expr::Arg(0, _), Expr::Lit(Lit::F32(bits))) | (Expr::Lit(Lit::F32(bits)), Expr::Arg(0, _)) => {
                    Some(f32::from_bits(*bits))
                }
                _ => None,
            },
            _ => None,
        };
        match scale {
            Some(scale) if scale > 0.0 && scale < 1e6 => Exponent::Scaled(scale * LOG2_E),
            _ => Exponent::Any,
        }
    }

    pub(super) fn at(self, cx: &mut Emit<'_>, x: Id, shift: Id) -> Id {
        match self {
            Exponent::Scaled(factor) => {
                let factor = cx.asm.f32(factor);
                cx.asm.mul_add(x, factor, shift)
            }
            Exponent::Any => {
                let x = cx.asm.fadd(x, shift);
                self.in_powers(cx, x)
            }
        }
    }

    /// A difference of shifts as an exponent.
    pub(super) fn in_powers(self, cx: &mut Emit<'_>, difference: Id) -> Id {
        match self {
            Exponent::Scaled(_) => difference,
            Exponent::Any => {
                let factor = cx.asm.f32(LOG2_E);
                cx.asm.fmul(difference, factor)
            }
        }
    }

    /// The shift that takes `x` to exponent 0.
    pub(super) fn shift_of(self, cx: &mut Emit<'_>, x: Id) -> Id {
        let x = match self {
            Exponent::Scaled(factor) => {
                let factor = cx.asm.f32(factor);
                cx.asm.fmul(x, factor)
            }
            Exponent::Any => x,
        };
        cx.asm.fneg(x)
    }
}

/// A position, or the last one where it is beyond; positions are those of whole tiles of `tile`.
pub(super) fn last_or(cx: &mut Emit<'_>, at: Id, extent: Extent, tile: u32) -> Id {
    if matches!(extent, Extent::Const(n) if n.is_multiple_of(tile)) {
        return at;
    }
    let (n, one) = (cx.extent(extent), cx.asm.u32(1));
    let last = cx.asm.isub(n, one);
    cx.asm.glsl2(Glsl::UMin, at, last)
}
