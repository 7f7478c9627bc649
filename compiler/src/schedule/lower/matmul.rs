//! Batched matrix products: broadcast batch dimensions are flattened into one axis.

use super::super::inline::Ctx;
use super::super::layout::{self, Order};
use super::super::tile::{self, Choice, Problem};
use super::{Lowered, finish, max_elems};
use crate::ir::graph::Node;
use crate::ir::{Dim, NodeId, ValueId};
use jvc_kernels::dtype::{DType, Ty};
use jvc_kernels::expr::{Expr, ExprId, Exprs};
use jvc_kernels::is_exact_in;
use jvc_kernels::spec::{KernelSpec, MatmulSpec, Staging, Store};
use jvc_kernels::templates::matmul::{coop_fills, coop_is_packed, coop_loads_blocks};

/// The type in which products of an element type are summed.
pub(super) fn acc_ty(cx: &Ctx<'_>, x: ValueId) -> Ty {
    match cx.ty(x).dtype.ty() {
        Ty::Bool => Ty::I32,
        ty => ty,
    }
}

/// A matrix-product kernel whose operands and stores are built.
pub(super) struct Product<'a> {
    pub(super) batch: &'a Dim,
    pub(super) m: &'a Dim,
    pub(super) n: &'a Dim,
    pub(super) k: &'a [Dim],
    pub(super) lhs: ExprId,
    pub(super) rhs: ExprId,
    pub(super) acc: Ty,
    /// Element type of both operands in the graph.
    pub(super) dtype: DType,
    pub(super) stores: Vec<Store>,
    /// The right side lies fragment by fragment.
    pub(super) packed: bool,
}

impl Product<'_> {
    /// The half type of both operands: of the tensors as the graph declares them, which rounds what is computed on the way here, or of
    /// elements that were only widened.
    fn half(&self, exprs: &Exprs) -> Option<DType> {
        let declared = matches!(self.dtype, DType::F16 | DType::BF16).then_some(self.dtype);
        declared.or_else(|| tile::half_of(exprs, self.lhs, self.rhs))
    }

    pub(super) fn finish(self, cx: &mut Ctx<'_>) -> Lowered {
        let sizes =
            [self.batch.clone(), self.m.clone(), self.n.clone(), self.k.iter().fold(Dim::from(1), |p, d| &p * d)];
        let [b, m, n, k] = sizes.map(|d| max_elems(cx, &[d]));
        let extents = [self.batch, self.m, self.n].map(|d| cx.ix.symtab().extent(d));
        let k_extents = cx.extents(self.k);
        let half = self.half(&cx.ix.exprs);
        let exprs = std::mem::take(&mut cx.ix.exprs);
        let mut spec = MatmulSpec {
            interface: cx.interface(),
            exprs,
            batch: extents[0],
            m: extents[1],
            n: extents[2],
            k: k_extents,
            lhs: self.lhs,
            rhs: self.rhs,
            acc: self.acc,
            stores: self.stores,
            staging: Staging::Registers { rows: 1, cols: 1 },
            wg: 1,
        };
        let last = self.k.iter().rev().find(|d| !d.is(1)).cloned();
        let line = last.map_or(1.0, |d| max_elems(cx, &[d]));
        let gathers = !self.packed && half.is_some_and(|elem| !coop_loads_blocks(&spec, elem));
        let (acc, packed) = (self.acc, self.packed);
        let mut problem = Problem { batch: b, m, n, k, line, acc, half, gathers, fills: false, packed };
        // Windows of convolutions, and few outputs; of other products, only those with packed weights gain.
        let gains = self.k.len() > 1 || tile::is_small(cx.device, &problem);
        problem.fills = gains && half.is_some_and(|elem| coop_fills(&spec, elem));
        let allowed = |staging: &Staging| match staging {
            Staging::Coop(c) if c.fill.is_some_and(|f| f.packed > 0) => coop_is_packed(&spec, c),
            Staging::Coop(_) | Staging::Registers { .. } | Staging::Shared { .. } | Staging::Gemv { .. } => true,
        };
        let by_element = !allowed(&tile::favourite(cx.device, &problem));
        if by_element {
            problem = Problem { packed: false, gathers: true, ..problem };
        }
        let Choice { staging, wg, mut slow, chosen } = tile::product(cx.device, &problem, allowed);
        if by_element {
            slow.push("packed weights are read element by element: the left side does not allow the kernel for them");
        }
        (spec.staging, spec.wg) = (staging, wg);
        if let Staging::Coop(c) = staging {
            spec.lhs = rounded(&mut spec.exprs, c.elem, spec.lhs);
            spec.rhs = rounded(&mut spec.exprs, c.elem, spec.rhs);
        }
        Lowered { spec: KernelSpec::Matmul(spec), flops: 2.0 * b * m * n * k, slow, tile: Some(chosen) }
    }
}

/// A value of a tensor that the graph declares in a half type, as that type: computed on the way, it may be more precise.
pub(super) fn rounded(exprs: &mut Exprs, elem: DType, value: ExprId) -> ExprId {
    if is_exact_in(exprs, value, elem) { value } else { exprs.add(Expr::Round(elem, value)) }
}

pub(super) fn lower(cx: &mut Ctx<'_>, node: &Node, epilogue: &[NodeId]) -> Lowered {
    let (a, b, out) = (node.inputs[0], node.inputs[1], node.outputs[0]);
    let shape = &cx.ty(out).shape;
    let rank = shape.len();
    let batch_shape = &shape[..rank - 2];
    let batch = batch_shape.iter().fold(Dim::from(1), |p, d| &p * d);
    let (m, n, k) = (&shape[rank - 2], &shape[rank - 1], &cx.ty(a).shape[rank - 1]);
    let axis = cx.ix.axis(0, &batch);
    let batch_at = cx.ix.delinear(axis, batch_shape);
    let (i, j, l) = (cx.ix.axis(1, m), cx.ix.axis(2, n), cx.ix.axis(3, k));
    let (acc, dtype) = (acc_ty(cx, a), cx.ty(a).dtype);
    let with = |cx: &mut Ctx<'_>, v: ValueId, tail: [ExprId; 2]| {
        let mut at = batch_at.clone();
        at.extend(tail);
        let at = cx.broadcast_coords(v, &at);
        let e = cx.at(v, &at);
        cx.cast(acc, e)
    };
    let (lhs, rhs) = (with(cx, a, [i, l]), with(cx, b, [l, j]));
    let mut at = batch_at.clone();
    at.extend([i, j]);
    let sum = cx.ix.exprs.arg(0, acc);
    let stores = finish(cx, out, at, sum, epilogue);
    let weights = layout::turned(cx.graph, b);
    let packed = weights.is_some_and(|w| matches!(cx.fusion.order(w), Order::Fragments(_)));
    Product { batch: &batch, m, n, k: std::slice::from_ref(k), lhs, rhs, acc, dtype, stores, packed }.finish(cx)
}
