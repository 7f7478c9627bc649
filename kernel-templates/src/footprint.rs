//! Which elements of an operand a kernel may write: what its step declares, so that kernels which write different parts of one buffer need
//! no barrier between them.

use crate::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use crate::interval;
use crate::spec::{AttentionStaging, Extent, KernelSpec, Store};
use std::collections::BTreeMap;
use std::ops::Range;

/// Parts that are listed one by one; more than these become the span around them.
pub const MAX_SPANS: usize = 16;

/// Elements of `operand` that the kernel may write: sorted, disjoint spans that do not touch. Exact for store maps that are affine in the
/// coordinates, up to [`MAX_SPANS`] parts; else a span around them.
///
/// None where nothing is known: a size is symbolic, or an index is loaded.
pub fn written(spec: &KernelSpec, operand: u16) -> Option<Vec<Range<u64>>> {
    if spec.reads_symbols() {
        return None;
    }
    let operand = match spec {
        KernelSpec::Row(s) => operand % s.operands_of_a_copy(),
        _ => operand,
    };
    let mut spans = vec![];
    for (store, extents) in stores(spec).into_iter().filter(|(s, _)| s.operand == operand) {
        spans.extend(store_spans(spec.exprs(), store.index, &extents)?);
    }
    Some(merged(spans))
}

/// Every store with the extents of the axes that it may use; 1 for those that it may not.
fn stores(spec: &KernelSpec) -> Vec<(Store, Vec<Extent>)> {
    let one = Extent::Const(1);
    let all = |stores: &[Store], extents: Vec<Extent>| -> Vec<(Store, Vec<Extent>)> {
        stores.iter().map(|s| (*s, extents.clone())).collect()
    };
    match spec {
        KernelSpec::Map(s) => all(&s.stores, s.domain.clone()),
        KernelSpec::Row(s) => {
            let elements = all(&s.element_stores, [&s.outer[..], &s.inner].concat());
            [all(&s.row_stores, s.outer.clone()), elements].concat()
        }
        KernelSpec::Matmul(s) => all(&s.stores, vec![s.batch, s.m, s.n]),
        KernelSpec::Attention(s) => {
            let (parts, channels) = match s.staging {
                AttentionStaging::Parts(p) => (Extent::Const(p.count), s.v_dim + 1),
                _ => (one, s.v_dim),
            };
            all(&s.stores, vec![s.batch, s.queries, parts, Extent::Const(channels)])
        }
        KernelSpec::Recurrent(s) => {
            let units = Extent::Const(s.hidden);
            let steps = all(&s.step_stores, vec![s.steps, s.batch, units]);
            [steps, all(&s.final_stores, vec![one, s.batch, units])].concat()
        }
        KernelSpec::Scan(s) => all(&s.stores, [&s.outer[..], &[s.len]].concat()),
        KernelSpec::Sort(s) => all(&s.stores, [&s.outer[..], &[s.kept]].concat()),
        KernelSpec::Scatter(s) => all(&[s.store], [&s.outer[..], &s.inner].concat()),
        KernelSpec::Fft(s) => all(&s.stores, vec![s.batch, Extent::Const(s.n)]),
    }
}

fn store_spans(exprs: &Exprs, index: ExprId, extents: &[Extent]) -> Option<Vec<Range<u64>>> {
    let sizes: Vec<i64> = extents.iter().map(|e| if let Extent::Const(n) = e { i64::from(*n) } else { 0 }).collect();
    if sizes.contains(&0) {
        return Some(vec![]);
    }
    if let Some(map) = Affine::of(exprs, index) {
        return map.spans(&sizes);
    }
    let range = interval::infer(exprs, extents)[index.0 as usize];
    let known = range.is_non_negative() && range.high < i64::from(i32::MAX);
    known.then(|| one_span(range.low, range.high))
}

/// An index as `first + Σ stride·axis`, the strides by axis; none where it is nothing so plain.
pub fn affine(exprs: &Exprs, index: ExprId) -> Option<(i64, BTreeMap<u8, i64>)> {
    let map = Affine::of(exprs, index)?;
    Some((map.first, map.strides))
}

/// `first + Σ stride·axis`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Affine {
    first: i64,
    strides: BTreeMap<u8, i64>,
}

impl Affine {
    /// The form of an expression, if it has it.
    fn of(exprs: &Exprs, id: ExprId) -> Option<Affine> {
        match exprs.get(id) {
            Expr::Lit(Lit::I32(v)) => Some(Affine { first: i64::from(*v), strides: BTreeMap::new() }),
            Expr::Axis(k) => Some(Affine { first: 0, strides: BTreeMap::from([(*k, 1)]) }),
            Expr::Unary(Unary::Neg, a) => Affine::of(exprs, *a)?.scaled(-1),
            Expr::Binary(Binary::Add, a, b) => Affine::of(exprs, *a)?.plus(&Affine::of(exprs, *b)?),
            Expr::Binary(Binary::Sub, a, b) => Affine::of(exprs, *a)?.plus(&Affine::of(exprs, *b)?.scaled(-1)?),
            Expr::Binary(Binary::Mul, a, b) => match (Affine::of(exprs, *a)?, Affine::of(exprs, *b)?) {
                (a, b) if b.strides.is_empty() => a.scaled(b.first),
                (a, b) if a.strides.is_empty() => b.scaled(a.first),
                _ => None,
            },
            _ => None,
        }
    }

    fn plus(&self, other: &Affine) -> Option<Affine> {
        let mut sum = Affine { first: self.first.checked_add(other.first)?, strides: self.strides.clone() };
        for (axis, stride) in &other.strides {
            let s = sum.strides.entry(*axis).or_insert(0);
            *s = s.checked_add(*stride)?;
        }
        Some(sum)
    }

    fn scaled(&self, by: i64) -> Option<Affine> {
        let strides = self.strides.iter().map(|(k, s)| Some((*k, s.checked_mul(by)?))).collect::<Option<_>>()?;
        Some(Affine { first: self.first.checked_mul(by)?, strides })
    }

    /// All its values for axes of these sizes, none of which is 0; none if they leave the non-negative i32.
    fn spans(&self, sizes: &[i64]) -> Option<Vec<Range<u64>>> {
        let mut first = self.first;
        let mut axes: Vec<(i64, i64)> = vec![];
        for (axis, &stride) in &self.strides {
            let size = *sizes.get(usize::from(*axis))?;
            if stride < 0 {
                first = first.checked_add(stride.checked_mul(size - 1)?)?;
            }
            axes.push((stride.checked_abs()?, size));
        }
        axes.retain(|(stride, size)| *stride > 0 && *size > 1);
        axes.sort_unstable();
        let last = axes.iter().try_fold(first, |end, (stride, size)| end.checked_add(stride.checked_mul(size - 1)?))?;
        if first < 0 || last > i64::from(i32::MAX) {
            return None;
        }
        // Axes that continue what the smaller ones fill make one run; the others repeat it.
        let mut run = 1;
        while let Some(&(stride, size)) = axes.first()
            && stride <= run
        {
            run += stride * (size - 1);
            axes.remove(0);
        }
        let parts = axes.iter().try_fold(1i64, |n, (_, size)| n.checked_mul(*size));
        if parts.is_none_or(|n| n > MAX_SPANS as i64) {
            return Some(one_span(first, last));
        }
        let mut starts = vec![first];
        for (stride, size) in axes {
            starts = starts.iter().flat_map(|start| (0..size).map(move |i| start + stride * i)).collect();
        }
        Some(starts.into_iter().map(|start| start as u64..(start + run) as u64).collect())
    }
}

/// From the first to the last element.
fn one_span(first: i64, last: i64) -> Vec<Range<u64>> {
    std::iter::once(first as u64..last as u64 + 1).collect()
}

/// Sorted, and joined where they overlap or touch.
fn merged(mut spans: Vec<Range<u64>>) -> Vec<Range<u64>> {
    spans.sort_by_key(|s| s.start);
    let mut out: Vec<Range<u64>> = vec![];
    for span in spans {
        match out.last_mut() {
            Some(last) if last.end >= span.start => last.end = last.end.max(span.end),
            _ => out.push(span),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{DType, Storage};
    use crate::spec::{Access, Interface, MapSpec, Operand};
    use proptest::prelude::*;

    /// A map over `sizes` that stores 0 at `first + Σ strides·axes`, or at what `index` makes of that.
    fn map(sizes: &[u32], first: i32, strides: &[i32], index: impl FnOnce(&mut Exprs, ExprId) -> ExprId) -> KernelSpec {
        let mut e = Exprs::new();
        let mut at = e.i32(first);
        for (k, stride) in (0..).zip(strides) {
            let (axis, stride) = (e.axis(k), e.i32(*stride));
            let term = e.bin(Binary::Mul, axis, stride);
            at = e.bin(Binary::Add, at, term);
        }
        let (index, value) = (index(&mut e, at), e.f32(0.0));
        let operand =
            Operand { dtype: DType::F32, storage: Storage::Native, access: Access::Write, base: 0, via_table: false };
        KernelSpec::Map(MapSpec {
            interface: Interface { operands: vec![operand], n_bases: 1, symbols: false },
            exprs: e,
            domain: sizes.iter().map(|n| Extent::Const(*n)).collect(),
            stores: vec![Store { operand: 0, index, value, guard: None }],
            per_thread: 1,
            wg: 64,
            turned: None,
        })
    }

    /// By enumeration of all coordinates.
    fn touched(sizes: &[u32], first: i32, strides: &[i32]) -> Vec<u64> {
        let mut at = vec![i64::from(first)];
        for (size, stride) in sizes.iter().zip(strides) {
            let steps = |a: i64| (0..i64::from(*size)).map(move |i| a + i * i64::from(*stride));
            at = at.into_iter().flat_map(steps).collect();
        }
        at.sort_unstable();
        at.dedup();
        at.into_iter().map(|a| a as u64).collect()
    }

    proptest! {
        #[test]
        fn affine_stores_are_covered_exactly_or_by_the_span_around_them(
            axes in prop::collection::vec((0u32..6, -40i32..40), 0..4),
            lift in 0i32..50,
        ) {
            let (sizes, strides): (Vec<u32>, Vec<i32>) = axes.into_iter().unzip();
            let low: i32 = sizes.iter().zip(&strides).map(|(n, s)| (s * (*n as i32 - 1)).min(0)).sum();
            let first = lift - low;
            let want = touched(&sizes, first, &strides);
            let have = written(&map(&sizes, first, &strides, |_, at| at), 0).expect("all is known");
            let elements: Vec<u64> = have.iter().flat_map(Clone::clone).collect();
            let around: Vec<u64> = match (want.first(), want.last()) {
                (Some(first), Some(last)) => (*first..=*last).collect(),
                _ => vec![],
            };
            prop_assert!(elements == want || elements == around, "{have:?} for {want:?}");
            let gaps = have.windows(2).all(|w| w[0].end < w[1].start);
            prop_assert!(gaps, "{have:?} do not touch");
            let points: u32 = sizes.iter().product();
            prop_assert!(elements == want || points > MAX_SPANS as u32, "few parts are exact");
        }
    }

    #[test]
    fn rows_of_a_wider_matrix_are_listed_and_many_are_not() {
        let rows = |n| written(&map(&[n, 3], 2, &[10, 1], |_, at| at), 0).expect("known");
        assert_eq!(rows(2), [2..5, 12..15]);
        assert_eq!(rows(MAX_SPANS as u32).len(), MAX_SPANS);
        assert_eq!(rows(MAX_SPANS as u32 + 1), one_span(2, 164));
    }

    #[test]
    fn what_is_not_affine_gets_its_interval_and_what_is_loaded_nothing() {
        let halves = |e: &mut Exprs, at: ExprId| {
            let two = e.i32(2);
            e.bin(Binary::Div, at, two)
        };
        assert_eq!(written(&map(&[10], 20, &[1], halves), 0), Some(one_span(10, 14)));
        let loaded = |e: &mut Exprs, at: ExprId| e.load(0, DType::I32, vec![at]);
        assert_eq!(written(&map(&[10], 0, &[1], loaded), 0), None);
    }

    #[test]
    fn symbolic_sizes_say_nothing() {
        let mut spec = map(&[10, 2], 0, &[2, 1], |_, at| at);
        if let KernelSpec::Map(s) = &mut spec {
            s.domain[0] = Extent::Sym(0);
        }
        assert_eq!(written(&spec, 0), None);
    }
}
