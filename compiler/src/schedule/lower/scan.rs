//! Cumulative operations along one dimension.

use super::super::inline::Ctx;
use super::super::tile;
use super::{Lowered, finish, max_elems};
use crate::ir::NodeId;
use crate::ir::graph::Node;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::Binary;
use jvc_kernels::spec::{Combine, KernelSpec, ScanSpec};

pub(super) fn lower(
    cx: &mut Ctx<'_>,
    node: &Node,
    combine: Combine,
    (dim, skip): (usize, i64),
    epilogue: &[NodeId],
) -> Lowered {
    let x = node.inputs[0];
    let shape = cx.ty(x).shape.clone();
    let innermost = dim + 1 == shape.len();
    let mut outer = shape.clone();
    let len = outer.remove(dim);
    let mut at = cx.axes(0, &outer);
    at.insert(dim, cx.ix.axis(outer.len(), &len));
    let value = cx.at(x, &at);
    let ty = cx.ix.exprs.ty(value);
    let result = cx.ix.exprs.arg(0, ty);
    let (place, skipped) = (at[dim], cx.ix.int(skip));
    if skip > 0 {
        at[dim] = cx.ix.sub(place, skipped);
    }
    let mut stores = finish(cx, node.outputs[0], at.clone(), result, epilogue);
    if let Some(&indices) = node.outputs.get(1) {
        let position = cx.ix.exprs.arg(1, Ty::I32);
        stores.extend(finish(cx, indices, at, position, &[]));
    }
    if skip > 0 {
        let has_result = cx.bin(Binary::Le, skipped, place);
        for store in &mut stores {
            store.guard = Some(store.guard.map_or(has_result, |guard| cx.ix.and(guard, has_result)));
        }
    }
    let flops = max_elems(cx, &shape);
    let lines = max_elems(cx, &outer);
    let (outer, len) = (cx.extents(&outer), cx.ix.symtab().extent(&len));
    let (wg, threads_per_line) = tile::scan(cx.device, lines, max_elems(cx, &shape) / lines.max(1.0), innermost);
    let exprs = std::mem::take(&mut cx.ix.exprs);
    let interface = cx.interface();
    let spec = ScanSpec { interface, exprs, outer, len, combine, value, stores, threads_per_line, wg };
    Lowered::new(KernelSpec::Scan(spec), flops)
}
