//! Outputs side by side, stored as whole blocks of memory.

use super::{CHANNEL, axes};
use crate::asm::{Id, St};
use crate::dtype::DType;
use crate::emit_expr::Emit;
use crate::spec::AttentionSpec;
use crate::wide_load;

/// True where all stores of consecutive channels are proven to fill whole blocks.
pub(super) fn stores_blocks(spec: &AttentionSpec) -> bool {
    let axes = axes(spec, spec.v_dim);
    let wide = |s| wide_load::stores_blocks(&spec.exprs, &spec.interface, &axes, s, CHANNEL);
    !spec.stores.is_empty() && spec.stores.iter().all(wide)
}

/// All stores of a group of outputs from a channel on; all values are computed before the first is written.
pub(super) fn store_group(cx: &mut Emit<'_>, spec: &AttentionSpec, channel: Id, outputs: &[Id]) {
    let stores = &spec.stores;
    let places: Vec<(Id, Option<Id>)> = cx.scope(|cx| {
        cx.bind_axis(CHANNEL, channel);
        stores.iter().map(|s| (cx.eval(s.index), s.guard.map(|g| cx.eval(g)))).collect()
    });
    let mut values: Vec<Vec<Id>> = vec![vec![]; stores.len()];
    for (e, &output) in (0u32..).zip(outputs) {
        let e = cx.asm.u32(e);
        let at = cx.asm.iadd(channel, e);
        cx.scope(|cx| {
            cx.bind_axis(CHANNEL, at);
            cx.bind_arg(0, output);
            for (values, s) in values.iter_mut().zip(stores) {
                values.push(cx.eval(s.value));
            }
        });
    }
    for ((s, (index, guard)), values) in stores.iter().zip(places).zip(values) {
        let guard = guard.unwrap_or_else(|| cx.asm.bool(true));
        cx.if_then(guard, &[], |cx| {
            let dtype = spec.interface.operands[usize::from(s.operand)].dtype;
            store_blocks(cx, dtype, s.operand, index, &values);
            vec![]
        });
    }
}

/// Writes consecutive elements, from a multiple of their count on, as blocks.
fn store_blocks(cx: &mut Emit<'_>, dtype: DType, operand: u16, index: Id, values: &[Id]) {
    let words: Vec<Id> = match dtype {
        DType::F32 => values.iter().map(|&v| cx.asm.bitcast(St::U32, v)).collect(),
        _ => {
            let rounded: Vec<Id> = values.iter().map(|&v| cx.asm.rounded_half(dtype, v)).collect();
            rounded.chunks(2).map(|pair| cx.asm.pack_halves(dtype, pair[0], pair[1])).collect()
        }
    };
    let per_block = values.len() as u32 * 4 / words.len() as u32;
    let shift = cx.asm.u32(per_block.trailing_zeros());
    let first = cx.asm.shr(index, shift);
    for (i, block) in (0u32..).zip(words.chunks(4)) {
        let i = cx.asm.u32(i);
        let at = cx.asm.iadd(first, i);
        let block = cx.asm.block_of([block[0], block[1], block[2], block[3]]);
        cx.store_operand_block(operand, at, block);
    }
}
