//! Makes gathers of scatters to places that are known: each element of the result reads what falls on it.
//!
//! ```text
//! graph g {
//!   %y0 = input 0 "y" : f32[2,4]
//!   %x = input 1 "x" : f32[2,6]
//!   %i = const [0, 1, 2, 2, 3, 9] : i64[1,6]
//!   %j = broadcast %i : i64[2,6]
//!   %y = scatter %y0, %j, %x add dims=[1] : f32[2,4]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %y0 = input 0 "y" : f32[2,4]
//!   %x = input 1 "x" : f32[2,6]
//!   %y.1 = const [0, -1, 1, -1, 2, 3, 4, -1] : i32[4,2]
//!   %y = compute(let t0 = b[i1, 1]; let t1 = b[i1, 0]; let t2 = a[i0, i1]; let t3 = select(0 <= t1, t2 + c[i0, max(t1, 0)], t2); select(0 <= t0, t3 + c[i0, max(t0, 0)], t3)) %y0, %y.1, %x : f32[2,4]
//!   output "y" = %y
//! }
//! ```
//!
//! Core ATen has the overlapping frames of an inverse STFT so, and `fold`. The scatter kernel keeps the order of additions by giving each line to
//! one invocation, which then waits for memory element by element; here the order stands in the table, and every element has its own.

use super::constants::Evaluator;
use super::fold_constants::SMALL_BYTES;
use super::rewrite::{Patch, View, rewrite};
use super::{Cx, Pass};
use crate::ir::eval::Tensor;
use crate::ir::op::{Body, Literal};
use crate::ir::{DType, Graph, NodeId, Op, Shape, TensorType, ValueId};
use jvc_kernels::expr::{Binary, ExprId, Exprs};
use jvc_kernels::spec::ScatterMode;
use std::sync::Arc;

pub(super) const PASS: Pass =
    Pass { name: "invert_scatters", summary: "makes gathers of scatters to places that are known", run };

/// Most source elements that may fall on one place: each is a load in every element's expression.
const MAX_TERMS: usize = 32;
/// Longest lists of places that are looked at.
const MAX_SOURCES: i64 = 1 << 24;
/// Entries of the table for each source element: beyond, most of it would say that nothing falls there.
const MAX_TABLE_PER_SOURCE: usize = 4;

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    if cx.no_fold { 0 } else { rewrite(graph, cx, &[invert]) }
}

fn invert<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let Op::Scatter { dims, mode } = &n.op else { return None };
    let (base, src) = (n.inputs[0], *n.inputs.last()?);
    let (to, from) = (view.ty(base), view.ty(src));
    if to.dtype == DType::Bool && *mode != ScatterMode::Set {
        return None;
    }
    let mut along = dims.clone();
    along.sort_unstable();
    if (0..to.rank()).any(|d| !along.contains(&d) && to.shape[d] != from.shape[d]) {
        return None;
    }
    let sizes = Sizes { from: fixed(&from.shape, &along)?, to: fixed(&to.shape, &along)? };
    let indices: Option<Vec<Arc<Tensor>>> = along
        .iter()
        .map(|d| known_index(view, n.inputs[1 + dims.iter().position(|x| x == d)?], &along, sizes.n_from()))
        .collect();
    let indices = indices?;
    let indices: Vec<&[i64]> = indices.iter().map(|t| t.ints()).collect();
    let mut p = Patch::new(view);
    let Some(table) = Table::new(&sizes.targets(&indices), sizes.n_to(), *mode)? else { return p.replace_by(base) };
    let body = gather(&table, &sizes, &along, to, *mode);
    let literal = table.literal();
    let ty = literal.ty.clone();
    let table = p.push(Op::Const(literal), &[], ty);
    let y = p.push(Op::Compute(body), &[base.into(), table, src.into()], to.clone());
    p.replace_by(y)
}

fn fixed(shape: &Shape, along: &[usize]) -> Option<Vec<i64>> {
    along.iter().map(|&d| shape[d].as_const()).collect()
}

/// Where the elements of a line go, if that is known and the same for all lines.
fn known_index(view: &View<'_>, mut v: ValueId, along: &[usize], n: i64) -> Option<Arc<Tensor>> {
    if let Op::Broadcast(_) = view.op(v) {
        v = view.inputs(v)[0];
    }
    let ty = view.ty(v);
    let one_line = (0..ty.rank()).all(|d| along.contains(&d) || ty.shape[d].is(1));
    let known = one_line && n <= MAX_SOURCES && ty.n_elems().is(n) && view.is_constant(v);
    if known { Evaluator::default().value(view.graph, view.cx, v) } else { None }
}

/// Sizes along the dimensions that the indices address, in the order of the dimensions.
struct Sizes {
    from: Vec<i64>,
    to: Vec<i64>,
}

impl Sizes {
    fn n_from(&self) -> i64 {
        self.from.iter().product()
    }

    fn n_to(&self) -> usize {
        self.to.iter().product::<i64>() as usize
    }

    /// The place of each source element of a line; `None` where an index is out of range.
    fn targets(&self, indices: &[&[i64]]) -> Vec<Option<usize>> {
        let target = |s: usize| {
            indices.iter().zip(&self.to).try_fold(0, |at, (index, &size)| {
                let i = index[s];
                (0..size).contains(&i).then(|| at * size as usize + i as usize)
            })
        };
        (0..self.n_from() as usize).map(target).collect()
    }
}

/// Of each place the numbers of the source elements that fall on it, in their order, then −1.
struct Table {
    n_places: usize,
    n_terms: usize,
    sources: Vec<i32>,
}

impl Table {
    /// Outer `None`: the table would be too large; inner `None`: nothing falls anywhere.
    fn new(targets: &[Option<usize>], n_places: usize, mode: ScatterMode) -> Option<Option<Table>> {
        let mut fall = vec![0usize; n_places];
        targets.iter().flatten().for_each(|&t| fall[t] += 1);
        let only_last = mode == ScatterMode::Set;
        let n_terms = fall.iter().copied().max().unwrap_or(0).min(if only_last { 1 } else { usize::MAX });
        if n_terms == 0 {
            return Some(None);
        }
        let entries = n_places.checked_mul(n_terms)?;
        if n_terms > MAX_TERMS || entries > (targets.len() * MAX_TABLE_PER_SOURCE).max(SMALL_BYTES as usize / 4) {
            return None;
        }
        let mut sources = vec![-1; entries];
        fall.fill(0);
        for (s, target) in targets.iter().enumerate() {
            if let Some(t) = *target {
                sources[t * n_terms + fall[t]] = s as i32;
                fall[t] += usize::from(!only_last);
            }
        }
        Some(Some(Table { n_places, n_terms, sources }))
    }

    fn literal(&self) -> Literal {
        let ty = TensorType::fixed(DType::I32, &[self.n_places as i64, self.n_terms as i64]);
        Literal { ty, bytes: Arc::new(self.sources.iter().flat_map(|s| s.to_le_bytes()).collect()) }
    }
}

/// Each element of the result: that of the base, and one after the other what falls on it.
fn gather(table: &Table, sizes: &Sizes, along: &[usize], to: &TensorType, mode: ScatterMode) -> Body {
    let mut e = Exprs::new();
    let at: Vec<ExprId> = (0..to.rank() as u8).map(|d| e.axis(d)).collect();
    let mut place = at[along[0]];
    for (&d, &size) in along.iter().zip(&sizes.to).skip(1) {
        let size = e.i32(size as i32);
        place = e.bin(Binary::Mul, place, size);
        place = e.bin(Binary::Add, place, at[d]);
    }
    let mut root = e.load(0, to.dtype, at.clone());
    let zero = e.i32(0);
    for term in 0..table.n_terms {
        let term = e.i32(term as i32);
        let source = e.load(1, DType::I32, vec![place, term]);
        let falls = e.bin(Binary::Le, zero, source);
        let mut rest = e.bin(Binary::Max, source, zero);
        let mut from = at.clone();
        for (i, (&d, &size)) in along.iter().zip(&sizes.from).enumerate().rev() {
            let size = e.i32(size as i32);
            from[d] = if i == 0 { rest } else { e.bin(Binary::Rem, rest, size) };
            rest = if i == 0 { rest } else { e.bin(Binary::Div, rest, size) };
        }
        let value = e.load(2, to.dtype, from);
        let combined = match mode {
            ScatterMode::Set => value,
            ScatterMode::Add => e.bin(Binary::Add, root, value),
            ScatterMode::Mul => e.bin(Binary::Mul, root, value),
            ScatterMode::Max => e.bin(Binary::Max, root, value),
            ScatterMode::Min => e.bin(Binary::Min, root, value),
        };
        root = e.select(falls, combined, root);
    }
    Body { exprs: e, root, syms: vec![] }
}
