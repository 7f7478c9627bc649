//! From dot products to probabilities, on the components of fragments.

use super::lanes::through_memory;
use super::{Flash, SLACK, State, add_values};
use crate::asm::{Glsl, Id};
use crate::dtype::DType;
use crate::dtype::Ty;
use crate::emit_expr::{Emit, Kept, dependencies};
use crate::expr::{Expr, ExprId};
use crate::spec::{AttentionSpec, Left};
use crate::templates::attention::softmax::{Exponent, last_or};
use crate::templates::attention::{KEY, QUERY};

/// What the components of a fragment of dots become; the fragment is number `r` along queries and `at` along keys. `loaded` is what
/// [`score_loads`] gave of them.
pub(super) fn scores(
    cx: &mut Emit<'_>,
    f: &Flash<'_>,
    dot: Id,
    (r, at): (u32, u32),
    (first, loaded): (Id, &[Id]),
) -> Vec<Id> {
    let dots = cx.asm.matrix_components(dot, DType::F32, f.components());
    if matches!(f.exponent, Exponent::Scaled(_)) {
        return dots;
    }
    let mut dots = dots.into_iter();
    let mut loaded = loaded.chunks(f.score_loads.len().max(1));
    for_each_component(cx, f, (r, at), first, &mut |cx| {
        for (&id, &value) in f.score_loads.iter().zip(loaded.next().unwrap_or_default()) {
            cx.preset(id, value);
        }
        cx.bind_arg(0, dots.next().expect("a dot for each component"));
        vec![cx.eval(f.spec.score)]
    })
}

/// What `body` gives for each component of a fragment, where its query and key are bound.
fn for_each_component(
    cx: &mut Emit<'_>,
    f: &Flash<'_>,
    (r, at): (u32, u32),
    first: Id,
    body: &mut dyn FnMut(&mut Emit<'_>) -> Vec<Id>,
) -> Vec<Id> {
    let along = cx.asm.u32(at * f.c.frag.1);
    let first_key = cx.asm.iadd(first, along);
    let rows = &f.rows[(r * f.components()) as usize..];
    let mut values = vec![];
    for (&(_, col), row) in f.places.iter().zip(rows) {
        let key = cx.asm.iadd(first_key, col);
        let key = last_or(cx, key, f.spec.keys, f.c.block_keys);
        values.extend(cx.scope(|cx| {
            cx.bind_axis(KEY, key);
            cx.within(row, |cx| body(cx))
        }));
    }
    values
}

/// The loads that scores make of each key: elements of masks.
pub(super) fn loads_of_keys(spec: &AttentionSpec) -> Vec<ExprId> {
    let depends = dependencies(&spec.exprs);
    let of_key = |id: &ExprId| {
        let deps = depends[id.0 as usize];
        matches!(spec.exprs.get(*id), Expr::Load { .. }) && deps & (1 << KEY) != 0 && deps >> 64 == 0
    };
    let loads = spec.exprs.reachable(&[spec.score]).into_iter().filter(of_key);
    // Truth values and wide integers are found when they are used.
    loads.filter(|&id| spec.exprs.ty(id) == Ty::F32).collect()
}

/// These loads for the block of keys from `first` on, fragment by fragment, component by component.
pub(super) fn score_loads(cx: &mut Emit<'_>, f: &Flash<'_>, first: Id) -> Vec<Id> {
    if f.score_loads.is_empty() {
        return vec![];
    }
    let fragments = (0..f.c.rows).flat_map(|r| (0..f.along_keys()).map(move |at| (r, at)));
    fragments
        .flat_map(|at| {
            for_each_component(cx, f, at, first, &mut |cx| f.score_loads.iter().map(|&id| cx.eval(id)).collect())
        })
        .collect()
}

/// What is known of the query of each component before the loop, fragment by fragment; none where scores do not ask.
pub(super) fn row_scopes(cx: &mut Emit<'_>, f: &Flash<'_>) -> Vec<Kept> {
    if matches!(f.exponent, Exponent::Scaled(_)) {
        return vec![];
    }
    let mut scopes = vec![];
    for r in 0..f.c.rows {
        let down = cx.asm.u32(r * f.c.frag.0);
        let first = cx.asm.iadd(f.first_query, down);
        for &(row, _) in &f.places {
            let query = cx.asm.iadd(first, row);
            let query = last_or(cx, query, f.spec.queries, f.c.warps * f.c.rows * f.c.frag.0);
            scopes.push(cx.keep_scope(None, |cx| {
                cx.bind_axis(QUERY, query);
                cx.hoist(&[f.spec.score], false);
            }));
        }
    }
    scopes
}

/// Scores of keys beyond the last are −∞.
pub(super) fn without_missing(cx: &mut Emit<'_>, f: &Flash<'_>, scores: &[Vec<Id>], first: Id) -> Vec<Vec<Id>> {
    let (keys, hidden) = (cx.extent(f.spec.keys), cx.asm.f32(f32::NEG_INFINITY));
    let of_fragment = |(i, scores): (u32, &Vec<Id>)| {
        let offset = cx.asm.u32(i % f.along_keys() * f.c.frag.1);
        let first = cx.asm.iadd(first, offset);
        let kept = scores.iter().zip(&f.places).map(|(&score, &(_, column))| {
            let key = cx.asm.iadd(first, column);
            let there = cx.asm.ult(key, keys);
            cx.asm.select(there, score, hidden)
        });
        kept.collect()
    };
    (0u32..).zip(scores).map(of_fragment).collect()
}

/// Moves the bases of rows where some score is far above them, in all of the subgroup at once.
pub(super) fn raise_bases(cx: &mut Emit<'_>, f: &Flash<'_>, scores: &[Vec<Id>], state: State) -> State {
    let n = f.own_rows();
    let along = f.along_keys() as usize;
    let max = |cx: &mut Emit<'_>, a, b| cx.asm.glsl2(Glsl::NMax, a, b);
    // A component has the same row in all fragments side by side.
    let mut most = vec![];
    for row in scores.chunks(along) {
        for own in 0..n {
            let of_row: Vec<Id> = row
                .iter()
                .flat_map(|scores| (0..).zip(scores).filter(|(j, _)| f.own_row(*j) == own).map(|(_, &score)| score))
                .collect();
            most.push(of_row[1..].iter().fold(of_row[0], |acc, &score| max(cx, acc, score)));
        }
    }
    let exponents: Vec<Id> =
        most.iter().zip(&state.shifts).map(|(&most, &shift)| f.exponent.at(cx, most, shift)).collect();
    let highest = exponents[1..].iter().fold(exponents[0], |acc, &x| max(cx, acc, x));
    let slack = cx.asm.f32(SLACK);
    let above = cx.asm.flt(slack, highest);
    let some = cx.asm.subgroup_any(above);
    let n_state = state.shifts.len();
    let before = [state.shifts, state.sums].concat();
    let after = cx.if_then(some, &before, |cx| {
        let (mut shifts, mut sums) = (vec![], vec![]);
        for r in 0..f.c.rows as usize {
            let of_components = f.for_components(&most[r * n..(r + 1) * n]);
            f.combine_rows(cx, &of_components, max);
            let rows = f.row_words(cx);
            let mut factors = vec![];
            for (j, row) in rows.into_iter().enumerate() {
                let old = before[r * n + j];
                let of_row = f.exponent.shift_of(cx, row);
                let shift = cx.asm.glsl2(Glsl::NMin, old, of_row);
                let change = cx.asm.fsub(shift, old);
                let change = f.exponent.in_powers(cx, change);
                let factor = cx.asm.glsl(Glsl::Exp2, change);
                shifts.push(shift);
                sums.push(cx.asm.fmul(before[n_state + r * n + j], factor));
                factors.push(factor);
            }
            let factors = f.for_components(&factors);
            scale_outputs(cx, f, r as u32, &factors);
        }
        [shifts, sums].concat()
    });
    let (shifts, sums) = after.split_at(n_state);
    State { shifts: shifts.to_vec(), sums: sums.to_vec() }
}

fn scale_outputs(cx: &mut Emit<'_>, f: &Flash<'_>, r: u32, factors: &[Id]) {
    for &variable in &f.outputs[(r * f.along_v()) as usize..((r + 1) * f.along_v()) as usize] {
        let output = cx.asm.variable(variable, f.sum_ty);
        let parts = cx.asm.matrix_components(output, DType::F32, f.components());
        let scaled: Vec<Id> = parts.iter().zip(factors).map(|(&part, &factor)| cx.asm.fmul(part, factor)).collect();
        let output = cx.asm.matrix_of(f.sum_ty, DType::F32, &scaled);
        cx.asm.set_variable(variable, output);
    }
}

/// `p = exp(x - base); o += p · v`; the sums with what `p` adds to them.
pub(super) fn weigh_values(
    cx: &mut Emit<'_>,
    f: &Flash<'_>,
    scores: &[Vec<Id>],
    state: &State,
    value_base: u32,
) -> Vec<Id> {
    let mut sums = state.sums.clone();
    let n = f.own_rows();
    let mut left = vec![];
    for (i, scores) in scores.iter().enumerate() {
        let at = i / f.along_keys() as usize * n;
        let mut weights = vec![];
        for (j, &score) in scores.iter().enumerate() {
            let row = at + f.own_row(j);
            let exponent = f.exponent.at(cx, score, state.shifts[row]);
            let weight = cx.asm.glsl(Glsl::Exp2, exponent);
            sums[row] = cx.asm.fadd(sums[row], weight);
            weights.push(weight);
        }
        left.push(if f.c.left == Left::Memory {
            through_memory(cx, f, &weights)
        } else {
            cx.asm.matrix_of(f.left_ty, f.c.elem, &weights)
        });
    }
    add_values(cx, f, &left, value_base);
    sums
}
