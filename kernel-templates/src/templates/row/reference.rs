//! What a row kernel computes, on the host.

use super::is_position;
use crate::dtype::Ty;
use crate::eval::{Tape, Value};
use crate::host::{Memory, Point, for_each_point};
use crate::reference::{StoreTape, beats, combine, identity};
use crate::spec::{RowSpec, Stage};

/// The plainest form. Float sums and products are kept in f64.
pub(crate) fn reference(spec: &RowSpec, memory: &mut Memory) {
    let all = std::mem::take(&mut memory.operands);
    for of_a_copy in all.chunks(usize::from(spec.operands_of_a_copy()).max(1)) {
        let mut one = Memory { operands: of_a_copy.to_vec(), symbols: memory.symbols.clone() };
        copy(spec, &mut one);
        memory.operands.extend(one.operands);
    }
}

fn copy(spec: &RowSpec, memory: &mut Memory) {
    let (outer, inner) = (memory.extents(&spec.outer), memory.extents(&spec.inner));
    let tapes: Vec<Tape> = spec.stages.iter().map(|s| Tape::new(&spec.exprs, &[s.value])).collect();
    let row_stores = StoreTape::new(&spec.exprs, &spec.row_stores);
    let element_stores = StoreTape::new(&spec.exprs, &spec.element_stores);
    let (mut row_runner, mut element_runner) = (row_stores.runner(), element_stores.runner());
    for_each_point(&outer, &mut vec![], &mut |axes| {
        let mut args: Vec<Value> = vec![];
        for (stage, tape) in spec.stages.iter().zip(&tapes) {
            let result = reduce(spec, *stage, tape, memory, axes, &inner, &args);
            args.push(result);
        }
        row_stores.run(&mut row_runner, memory, axes, &args);
        for_each_point(&inner, axes, &mut |axes| element_stores.run(&mut element_runner, memory, axes, &args));
    });
}

fn reduce(
    spec: &RowSpec,
    stage: Stage,
    tape: &Tape,
    memory: &Memory,
    axes: &mut Vec<i32>,
    inner: &[u32],
    args: &[Value],
) -> Value {
    let ty = spec.exprs.ty(stage.value);
    let wide = if ty == Ty::F32 { Ty::F64 } else { ty };
    let mut acc = identity(stage.combine, wide);
    let (mut position, mut best) = (0, 0);
    let mut runner = tape.runner();
    for_each_point(inner, axes, &mut |axes| {
        runner.run(&Point { memory, axes, args });
        let value = runner.get(0).cast(wide);
        if is_position(stage.combine) {
            if beats(stage.combine, value, acc) {
                (acc, best) = (value, position);
            }
        } else {
            acc = combine(stage.combine, acc, value);
        }
        position += 1;
    });
    if is_position(stage.combine) { Value::I32(best) } else { acc.cast(ty) }
}
