//! Row kernels: reductions, softmax, normalisations, variance. Means and variances are two-pass, in f32 (f64 for f64).

use super::super::inline::Ctx;
use super::super::tile;
use super::{Lowered, finish, max_elems};
use crate::ir::graph::Node;
use crate::ir::{Dim, NodeId, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Unary};
use jvc_kernels::spec::{Combine, Extent, KernelSpec, RowSpec, Stage, Store};
use jvc_kernels::templates::row;

/// A row kernel under construction: which coordinates are rows, which run within one.
pub(super) struct Row {
    outer: Vec<Extent>,
    inner: Vec<Extent>,
    stages: Vec<Stage>,
    n_rows: f64,
    row_len: f64,
    /// Coordinates of the full tensor.
    pub(super) at: Vec<ExprId>,
}

impl Row {
    /// Rows of `shape` along `dims`.
    fn over(cx: &mut Ctx<'_>, shape: &[Dim], dims: &[usize]) -> Row {
        let kept: Vec<usize> = (0..shape.len()).filter(|d| !dims.contains(d)).collect();
        let pick = |ds: &[usize]| ds.iter().map(|&d| shape[d].clone()).collect::<Vec<Dim>>();
        let (outer, inner) = (pick(&kept), pick(dims));
        let axes = cx.axes(0, &outer);
        let inner_axes = cx.axes(outer.len(), &inner);
        let mut at = vec![cx.ix.int(0); shape.len()];
        kept.iter().zip(axes).for_each(|(&d, a)| at[d] = a);
        dims.iter().zip(inner_axes).for_each(|(&d, a)| at[d] = a);
        let mut row = Row::new(cx, &outer, &inner);
        row.at = at;
        row
    }

    /// Rows with given outer and inner sizes; the caller builds coordinates itself.
    pub(super) fn new(cx: &mut Ctx<'_>, outer: &[Dim], inner: &[Dim]) -> Row {
        Row {
            n_rows: max_elems(cx, outer),
            row_len: max_elems(cx, inner),
            outer: cx.extents(outer),
            inner: cx.extents(inner),
            stages: vec![],
            at: vec![],
        }
    }

    /// Adds a reduction; its result as a scalar of later expressions.
    pub(super) fn stage(&mut self, cx: &mut Ctx<'_>, combine: Combine, value: ExprId) -> ExprId {
        let arg = matches!(combine, Combine::ArgMax | Combine::ArgMin);
        let ty = if arg { Ty::I32 } else { cx.ix.exprs.ty(value) };
        self.stages.push(Stage { combine, value });
        cx.ix.exprs.arg(self.stages.len() as u16 - 1, ty)
    }

    /// The kernel, with stores once a row or once an element.
    pub(super) fn finish(self, cx: &mut Ctx<'_>, row_stores: Vec<Store>, element_stores: Vec<Store>) -> Lowered {
        let (n_rows, row_len, device) = (self.n_rows, self.row_len, cx.device);
        let tile = |spec: &RowSpec| tile::row(device, n_rows, row_len, row::group_size(spec));
        self.finish_as(cx, &tile, row_stores, element_stores)
    }

    /// As [`Row::finish`], for a time step of a recurrent layer.
    pub(super) fn finish_step(self, cx: &mut Ctx<'_>, row_stores: Vec<Store>) -> Lowered {
        let tile = tile::step(cx.device, self.n_rows, self.row_len);
        self.finish_as(cx, &|_| tile, row_stores, vec![])
    }

    fn finish_as(
        self,
        cx: &mut Ctx<'_>,
        tile: &dyn Fn(&RowSpec) -> (u32, u32),
        row_stores: Vec<Store>,
        element_stores: Vec<Store>,
    ) -> Lowered {
        let exprs = std::mem::take(&mut cx.ix.exprs);
        let passes = self.stages.len() as f64 + f64::from(u8::from(!element_stores.is_empty()));
        let flops = self.n_rows * self.row_len * passes * 2.0;
        let mut spec = RowSpec {
            interface: cx.interface(),
            copies: 1,
            exprs,
            outer: self.outer,
            inner: self.inner,
            stages: self.stages,
            row_stores,
            element_stores,
            threads_per_row: 1,
            wg: 1,
        };
        (spec.wg, spec.threads_per_row) = tile(&spec);
        Lowered::new(KernelSpec::Row(spec), flops)
    }
}

fn count(cx: &mut Ctx<'_>, x: ValueId, dims: &[usize]) -> Dim {
    dims.iter().fold(Dim::from(1), |p, &d| &p * &cx.ty(x).shape[d])
}

/// Coordinates of a result that keeps reduced dimensions as size 1.
fn kept_at(cx: &mut Ctx<'_>, at: &[ExprId], dims: &[usize]) -> Vec<ExprId> {
    let zero = cx.ix.int(0);
    at.iter().enumerate().map(|(d, &a)| if dims.contains(&d) { zero } else { a }).collect()
}

pub(super) fn lower_reduce(
    cx: &mut Ctx<'_>,
    node: &Node,
    combine: Combine,
    dims: &[usize],
    epilogue: &[NodeId],
) -> Lowered {
    let x = node.inputs[0];
    let mut row = Row::over(cx, &cx.ty(x).shape, dims);
    let mut value = cx.at(x, &row.at.clone());
    if matches!(combine, Combine::Sum | Combine::Prod) {
        value = cx.cast(cx.ty(node.outputs[0]).dtype.ty(), value);
    }
    let result = row.stage(cx, combine, value);
    let at = kept_at(cx, &row.at, dims);
    let stores = finish(cx, node.outputs[0], at, result, epilogue);
    row.finish(cx, stores, vec![])
}

pub(super) fn lower_softmax(cx: &mut Ctx<'_>, node: &Node, dim: usize, log: bool, epilogue: &[NodeId]) -> Lowered {
    let x = node.inputs[0];
    let mut row = Row::over(cx, &cx.ty(x).shape, &[dim]);
    let at = row.at.clone();
    let value = cx.at(x, &at);
    let max = row.stage(cx, Combine::Max, value);
    let shifted = cx.bin(Binary::Sub, value, max);
    let exp = cx.un(Unary::Exp, shifted);
    let total = row.stage(cx, Combine::Sum, exp);
    let result = if log {
        let log_total = cx.un(Unary::Log, total);
        cx.bin(Binary::Sub, shifted, log_total)
    } else {
        // A division an element takes as long as the exponential.
        let one = cx.lit(cx.ix.exprs.ty(total), 1.0);
        let inverse = cx.bin(Binary::Div, one, total);
        cx.bin(Binary::Mul, exp, inverse)
    };
    let stores = finish(cx, node.outputs[0], at, result, epilogue);
    row.finish(cx, vec![], stores)
}

pub(super) fn lower_norm(
    cx: &mut Ctx<'_>,
    node: &Node,
    dims: &[usize],
    eps: f64,
    rms: bool,
    epilogue: &[NodeId],
) -> Lowered {
    let x = node.inputs[0];
    let mut row = Row::over(cx, &cx.ty(x).shape, dims);
    let at = row.at.clone();
    let value = cx.at(x, &at);
    let ty = cx.ix.exprs.ty(value);
    let count = count(cx, x, dims);
    let n = cx.dim_as(ty, &count);
    let centred = if rms {
        value
    } else {
        let total = row.stage(cx, Combine::Sum, value);
        let mean = cx.bin(Binary::Div, total, n);
        cx.bin(Binary::Sub, value, mean)
    };
    let square = cx.bin(Binary::Mul, centred, centred);
    let squares = row.stage(cx, Combine::Sum, square);
    let variance = cx.bin(Binary::Div, squares, n);
    let eps = cx.lit(ty, eps);
    let shifted = cx.bin(Binary::Add, variance, eps);
    let scale = cx.un(Unary::Rsqrt, shifted);
    let result = cx.bin(Binary::Mul, centred, scale);
    let stores = finish(cx, node.outputs[0], at, result, epilogue);
    row.finish(cx, vec![], stores)
}

pub(super) fn lower_variance(
    cx: &mut Ctx<'_>,
    node: &Node,
    dims: &[usize],
    correction: f64,
    epilogue: &[NodeId],
) -> Lowered {
    let x = node.inputs[0];
    let mut row = Row::over(cx, &cx.ty(x).shape, dims);
    let value = cx.at(x, &row.at.clone());
    let ty = cx.ix.exprs.ty(value);
    let count = count(cx, x, dims);
    let n = cx.dim_as(ty, &count);
    let total = row.stage(cx, Combine::Sum, value);
    let mean = cx.bin(Binary::Div, total, n);
    let centred = cx.bin(Binary::Sub, value, mean);
    let (squares, _) = about_mean(cx, &mut row, centred, n);
    let divisor = match count.as_const() {
        // A literal, so that a division by zero is seen as such: Mesa would fold it into a finite number.
        Some(n) => cx.lit(ty, (n as f64 - correction).max(0.0)),
        None => {
            let (correction, zero) = (cx.lit(ty, correction), cx.lit(ty, 0.0));
            let reduced = cx.bin(Binary::Sub, n, correction);
            cx.bin(Binary::Max, reduced, zero)
        }
    };
    let result = cx.bin(Binary::Div, squares, divisor);
    let at = kept_at(cx, &row.at, dims);
    let stores = finish(cx, node.outputs[0], at, result, epilogue);
    row.finish(cx, stores, vec![])
}

/// `Σ (x − mean)²` and what the mean is off by, of rows whose elements are `centred` about a mean that is rounded: that is off by some share of the
/// rows' spread, if they lie far from zero. The squares' excess is n times the square of it.
fn about_mean(cx: &mut Ctx<'_>, row: &mut Row, centred: ExprId, n: ExprId) -> (ExprId, ExprId) {
    let drift = row.stage(cx, Combine::Sum, centred);
    let square = cx.bin(Binary::Mul, centred, centred);
    let squares = row.stage(cx, Combine::Sum, square);
    let off = cx.bin(Binary::Div, drift, n);
    let excess = cx.bin(Binary::Mul, drift, off);
    // Of equal elements rounding may leave less than nothing; squares that are no finite number stay so.
    let ty = cx.ix.exprs.ty(squares);
    let (zero, largest) = (cx.lit(ty, 0.0), cx.lit(ty, if ty == Ty::F64 { f64::MAX } else { f32::MAX.into() }));
    let (some, finite) = (cx.bin(Binary::Lt, excess, squares), cx.bin(Binary::Le, squares, largest));
    let (less, nothing) = (cx.bin(Binary::Sub, squares, excess), cx.ix.select(finite, zero, squares));
    (cx.ix.select(some, less, nothing), off)
}

/// Mean, squares about it and the mean's rest, of elements or of what triples stand for.
pub(super) fn lower_moments(cx: &mut Ctx<'_>, node: &Node, each: Option<i64>, eps: Option<f64>) -> Lowered {
    let (x, out) = (node.inputs[0], node.outputs[0]);
    let shape = cx.ty(x).shape.clone();
    let kept = cx.ty(out).shape.len() - 1;
    let mut row = Row::over(cx, &shape[..=kept], &[kept]);
    let ty = cx.ty(out).dtype.ty();
    let element = |cx: &mut Ctx<'_>, row: &Row, which: i64| {
        let mut at = row.at.clone();
        if each.is_some() {
            at.push(cx.ix.int(which));
        }
        let value = cx.at(x, &at);
        cx.cast(ty, value)
    };
    let value = element(cx, &row, 0);
    let n = cx.dim_as(ty, &shape[kept]);
    let total = row.stage(cx, Combine::Sum, value);
    let near = cx.bin(Binary::Div, total, n);
    let mut centred = cx.bin(Binary::Sub, value, near);
    if each.is_some() {
        let rest = element(cx, &row, 2);
        centred = cx.bin(Binary::Add, centred, rest);
    }
    let (mut second, off) = about_mean(cx, &mut row, centred, n);
    let mut count = n;
    if let Some(each) = each {
        let each = cx.lit(ty, each as f64);
        let within = element(cx, &row, 1);
        let within = row.stage(cx, Combine::Sum, within);
        let between = cx.bin(Binary::Mul, second, each);
        second = cx.bin(Binary::Add, within, between);
        count = cx.bin(Binary::Mul, n, each);
    }
    // The mean in two parts: the first as near as one has digits for it.
    let mean = cx.bin(Binary::Add, near, off);
    let moved = cx.bin(Binary::Sub, mean, near);
    let rest = cx.bin(Binary::Sub, off, moved);
    if let Some(eps) = eps {
        let variance = cx.bin(Binary::Div, second, count);
        let eps = cx.lit(ty, eps);
        let shifted = cx.bin(Binary::Add, variance, eps);
        second = cx.un(Unary::Rsqrt, shifted);
    }
    let mut stores = vec![];
    for (which, value) in [(0, mean), (1, second), (2, rest)] {
        let mut at = row.at[..kept].to_vec();
        at.push(cx.ix.int(which));
        stores.extend(finish(cx, out, at, value, &[]));
    }
    row.finish(cx, stores, vec![])
}
