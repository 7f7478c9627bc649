//! Where a driver spreads left operands over lanes in another way than sums, the kernel's short way to the second product is closed: every output
//! is computed alone, in few registers, so that the way that is taken everywhere else keeps its own.

use crate::asm::{Glsl, Id};
use crate::emit_expr::Emit;
use crate::spec::AttentionSpec;
use crate::templates::attention::{CHANNEL, KEY, QUERY};
use std::f32::consts::LOG2_E;

/// The outputs of `owned` queries from `first` on, with the keys before `end`.
pub(super) fn one_by_one(cx: &mut Emit<'_>, spec: &AttentionSpec, (first, owned): (Id, u32), end: Id) {
    let (local, step) = (cx.asm.local_index(), cx.asm.u32(spec.wg));
    let total = cx.asm.u32(owned * spec.v_dim);
    cx.loop_step((local, total, step), &[], |cx, number, _| {
        let row = cx.quotient_by(number, spec.v_dim);
        let width = cx.asm.u32(spec.v_dim);
        let before = cx.asm.imul(row, width);
        let channel = cx.asm.isub(number, before);
        let (query, queries) = (cx.asm.iadd(first, row), cx.extent(spec.queries));
        let exists = cx.asm.ult(query, queries);
        cx.if_then(exists, &[], |cx| {
            cx.bind_axis(QUERY, query);
            let result = output(cx, spec, channel, end);
            cx.bind_axis(CHANNEL, channel);
            cx.bind_arg(0, result);
            cx.stores(&spec.stores);
            vec![]
        });
        vec![]
    });
}

/// An output of the bound query.
fn output(cx: &mut Emit<'_>, spec: &AttentionSpec, channel: Id, end: Id) -> Id {
    let (zero, lowest) = (cx.asm.f32(0.0), cx.asm.f32(-f32::MAX));
    let state = cx.loop_n(end, &[lowest, zero, zero], |cx, key, state| {
        cx.bind_axis(KEY, key);
        let score = score(cx, spec);
        let value = cx.scope(|cx| {
            cx.bind_axis(CHANNEL, channel);
            cx.eval(spec.value)
        });
        let max = cx.asm.glsl2(Glsl::NMax, state[0], score);
        let (kept, weight) = (power(cx, state[0], max), power(cx, score, max));
        let (sum, out) = (cx.asm.fmul(state[1], kept), cx.asm.fmul(state[2], kept));
        vec![max, cx.asm.fadd(sum, weight), cx.asm.mul_add(weight, value, out)]
    });
    let hidden = cx.asm.f32(if spec.zero_masked_rows { 0.0 } else { f32::NAN });
    let empty = cx.asm.feq(state[1], zero);
    let result = cx.asm.fdiv(state[2], state[1]);
    cx.asm.select(empty, hidden, result)
}

/// The score of the bound query and key.
fn score(cx: &mut Emit<'_>, spec: &AttentionSpec) -> Id {
    let (zero, count) = (cx.asm.f32(0.0), cx.asm.u32(spec.qk_dim));
    let dot = cx.loop_n(count, &[zero], |cx, channel, dot| {
        cx.bind_axis(CHANNEL, channel);
        let (query, key) = (cx.eval(spec.query), cx.eval(spec.key));
        vec![cx.asm.mul_add(query, key, dot[0])]
    });
    cx.scope(|cx| {
        cx.bind_arg(0, dot[0]);
        cx.eval(spec.score)
    })
}

/// `exp(x - base)`.
fn power(cx: &mut Emit<'_>, x: Id, base: Id) -> Id {
    let difference = cx.asm.fsub(x, base);
    let factor = cx.asm.f32(LOG2_E);
    let exponent = cx.asm.fmul(difference, factor);
    cx.asm.glsl(Glsl::Exp2, exponent)
}
