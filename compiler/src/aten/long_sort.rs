//! Sorts of long lines: chunks that a workgroup sorts in shared memory, and a merge by counting.
//!
//! ```text
//! sorted[c, i], from[c, i] = the first places of chunk c
//! rank[c, i] = i + Σ_{d ≠ c} how many of chunk d come before sorted[c, i]        by binary search
//! place j: the only (c, i) of rank j                                             by binary search: ranks rise within a chunk
//! ```
//!
//! Of equal values those of earlier chunks come first, so that the whole is as stable as the sorts of the chunks. Each place is looked for by itself:
//! `n · chunks · log n` steps in no order, where counting through the whole line would be `n²`. Where few places are wanted, those of the chunks are
//! a line that is sorted instead.

use super::Diagnostic;
use super::body::BodyBuilder;
use super::cx::{Built, Cx};
use crate::ir::{DType, Dim, Op, Shape, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{ExprId, Unary};
use jvc_kernels::spec::Combine;

/// Longer lines do not fit the shared memory that GPUs offer a workgroup.
const LONG: i64 = 4096;
/// Elements of a chunk: they fit the 16 KiB of every device, as do words of 64 bits where there are 32.
const CHUNK: i64 = 2048;
/// Lists of so many elements fit shared memory: a few first places are chosen from a long line at once, each invocation of 1024 having listed
/// what it has of them. Of lines that are not that long, twice as many: where they do not fit, counting through the line is no disaster.
const MOST_LISTED: i64 = 2048;
/// Numbers that are counted at a time, at most: they stand in memory, 4 bytes each.
const MOST_COUNTED: i64 = 1 << 26;

/// The line as it is cut.
struct Cut {
    dtype: DType,
    descending: bool,
    /// Dimensions before the line's, which is the last.
    outer: Shape,
    len: i64,
    chunks: i64,
    /// Places of each chunk that may matter.
    places: i64,
}

/// Values and positions of the first places of lines along a dimension; of all without a number to keep.
pub(super) fn places_of(
    cx: &mut Cx,
    x: ValueId,
    dim: usize,
    descending: bool,
    keep: Option<Dim>,
) -> Result<(ValueId, ValueId), Diagnostic> {
    let keep = keep.filter(|k| *k != cx.size(x, dim));
    if let Some(both) = in_chunks(cx, x, dim, descending, keep.as_ref())? {
        return Ok(both);
    }
    let both = cx.add(Op::Sort { dim, descending, keep }, vec![x])?;
    Ok((both[0], both[1]))
}

/// Values and positions of the first places of long lines along a dimension; none for lines that are sorted or chosen from at once.
fn in_chunks(
    cx: &mut Cx,
    x: ValueId,
    dim: usize,
    descending: bool,
    keep: Option<&Dim>,
) -> Result<Option<(ValueId, ValueId)>, Diagnostic> {
    let Some(len) = cx.size(x, dim).as_const().filter(|n| *n > LONG) else { return Ok(None) };
    let Some(kept) = keep.map_or(Some(len), Dim::as_const) else { return Ok(None) };
    let listed = kept * ((len + 1023) / 1024);
    let dtype = cx.tensor_dtype(x);
    let most = if len <= 4 * LONG { 2 * MOST_LISTED } else { MOST_LISTED };
    if kept < 1 || (keep.is_some() && listed <= most) {
        return Ok(None);
    }
    if dtype == DType::Bool {
        // Truth values have no order in kernels; as small integers they have.
        let ordered = cx.cast(x, DType::U8)?;
        let Some((values, positions)) = in_chunks(cx, ordered, dim, descending, keep)? else { return Ok(None) };
        return Ok(Some((cx.cast(values, dtype)?, positions)));
    }
    let last = cx.rank(x) - 1;
    let mut outer = cx.shape(x);
    outer.swap(dim, last);
    outer.truncate(last);
    let (chunks, places) = ((len + CHUNK - 1) / CHUNK, kept.min(CHUNK));
    let few = places * 2 <= CHUNK;
    let n_lines = outer.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
    let counted = n_lines.and_then(|n| n.checked_mul(chunks)?.checked_mul(kept.max(chunks * places)));
    if !few && counted.is_none_or(|n| n > MOST_COUNTED) {
        return Ok(None);
    }
    let lines = cx.transpose(x, dim, last)?;
    let cut = Cut { dtype, descending, outer, len, chunks, places };
    let parts = cut.chunks(cx, lines)?;
    let keep = (places < CHUNK).then(|| Dim::from(places));
    let sorted = cx.add(Op::Sort { dim: last + 1, descending, keep }, vec![parts])?;
    let (values, sources) = if few {
        let listed = cx.reshape(sorted[0], cut.shape(&[chunks * places]))?;
        places_of(cx, listed, last, descending, Some(Dim::from(kept)))?
    } else {
        let ranks = cut.ranks(cx, sorted[0])?;
        let sources = cut.sources(cx, ranks, kept)?;
        (cut.taken(cx, sorted[0], sources, false)?, sources)
    };
    let positions = cut.taken(cx, sorted[1], sources, true)?;
    Ok(Some((cx.transpose(values, dim, last)?, cx.transpose(positions, dim, last)?)))
}

impl Cut {
    fn shape(&self, inner: &[i64]) -> Shape {
        self.outer.iter().cloned().chain(inner.iter().map(|&n| Dim::from(n))).collect()
    }

    /// The lines in chunks, the last one filled up with what comes after everything.
    fn chunks(&self, cx: &mut Cx, lines: ValueId) -> Built {
        let (shape, depth) = (self.shape(&[self.chunks, CHUNK]), self.outer.len());
        if self.len % CHUNK == 0 {
            return cx.reshape(lines, shape);
        }
        cx.compute(shape, self.dtype, &[lines], |b, axes| {
            let at = position(b, axes[depth], axes[depth + 1]);
            let mut from = axes[..depth].to_vec();
            from.push(b.clamp_index(at, &Dim::from(self.len)));
            let own = b.load(0, &from);
            let (len, ty) = (b.int(self.len), b.ty(own));
            let inside = b.lt(at, len);
            let beyond = match (self.dtype.is_float(), self.descending) {
                (true, true) => b.lit(ty, f64::NEG_INFINITY),
                (true, false) => b.lit(ty, f64::NAN),
                (false, descending) => b.lit_int(ty, extreme(self.dtype, !descending)),
            };
            b.select(inside, own, beyond)
        })
    }

    /// Of each place of each chunk, how many elements of all chunks come before it.
    fn ranks(&self, cx: &mut Cx, sorted: ValueId) -> Built {
        let depth = self.outer.len();
        let shape = self.shape(&[self.chunks, self.places, self.chunks]);
        let counts = cx.compute(shape, DType::I32, &[sorted], |b, axes| {
            let (chunk, place, other) = (axes[depth], axes[depth + 1], axes[depth + 2]);
            let own = b.load(0, &axes[..depth + 2]);
            let earlier = b.lt(other, chunk);
            let found = count(b, self.places, &mut |b, at| {
                let theirs = load_at(b, &axes[..depth], &[other, at]);
                self.comes_before(b, theirs, own, earlier)
            });
            let same = b.eq(other, chunk);
            b.select(same, place, found)
        })?;
        cx.reduce(counts, Combine::Sum, &[depth + 2], false, DType::I32)
    }

    /// Whether `a` comes before `b`; of equal ones, where it stands `earlier`. NaN is the largest.
    fn comes_before(&self, b: &mut BodyBuilder, theirs: ExprId, own: ExprId, earlier: ExprId) -> ExprId {
        let (first, second) = if self.descending { (own, theirs) } else { (theirs, own) };
        let (before, after) = (less(b, first, second), less(b, second, first));
        let not_after = b.not(after);
        let tied = b.and(not_after, earlier);
        b.or(before, tied)
    }

    /// Of each place of the result, the place of a chunk whose rank it is, chunk after chunk.
    fn sources(&self, cx: &mut Cx, ranks: ValueId, kept: i64) -> Built {
        let depth = self.outer.len();
        let found = cx.compute(self.shape(&[kept, self.chunks]), DType::I32, &[ranks], |b, axes| {
            let (rank, chunk) = (axes[depth], axes[depth + 1]);
            let below = count(b, self.places, &mut |b, at| {
                let theirs = load_at(b, &axes[..depth], &[chunk, at]);
                b.lt(theirs, rank)
            });
            let at = b.clamp_index(below, &Dim::from(self.places));
            let theirs = load_at(b, &axes[..depth], &[chunk, at]);
            let (is_it, places, zero) = (b.eq(theirs, rank), b.int(self.places), b.int(0));
            let before = b.mul(chunk, places);
            let source = b.add(before, at);
            b.select(is_it, source, zero)
        })?;
        cx.reduce(found, Combine::Max, &[depth + 1], false, DType::I32)
    }

    /// What stands at these places of the chunks; positions count from the line's start.
    fn taken(&self, cx: &mut Cx, sorted: ValueId, sources: ValueId, positions: bool) -> Built {
        let (depth, dtype) = (self.outer.len(), cx.tensor_dtype(sorted));
        cx.compute(cx.shape(sources), dtype, &[sorted, sources], |b, axes| {
            let (source, places) = (b.load(1, axes), b.int(self.places));
            let source = b.cast(Ty::I32, source);
            let chunk = b.div(source, places);
            let before = b.mul(chunk, places);
            let at = b.sub(source, before);
            let own = load_at(b, &axes[..depth], &[chunk, at]);
            if !positions {
                return own;
            }
            let (chunk, len) = (b.cast(dtype.ty(), chunk), b.lit_int(dtype.ty(), CHUNK));
            let before = b.mul(chunk, len);
            b.add(before, own)
        })
    }
}

/// Element of the first operand behind the outer coordinates.
fn load_at(b: &mut BodyBuilder, outer: &[ExprId], inner: &[ExprId]) -> ExprId {
    b.load(0, &[outer, inner].concat())
}

/// Position in the line of an element of a chunk.
fn position(b: &mut BodyBuilder, chunk: ExprId, at: ExprId) -> ExprId {
    let len = b.int(CHUNK);
    let before = b.mul(chunk, len);
    b.add(before, at)
}

/// How many of `n` things in a row `holds` is true of, which it is of the first ones.
fn count(b: &mut BodyBuilder, n: i64, holds: &mut dyn FnMut(&mut BodyBuilder, ExprId) -> ExprId) -> ExprId {
    let (mut low, all) = (b.int(0), b.int(n));
    for bit in (0..=n.ilog2()).rev() {
        let (step, one) = (b.int(1 << bit), b.int(1));
        let next = b.add(low, step);
        let last = b.sub(next, one);
        let at = b.clamp_index(last, &Dim::from(n));
        let (fits, so) = (b.le(next, all), holds(b, at));
        let takes = b.and(fits, so);
        low = b.select(takes, next, low);
    }
    low
}

/// a < b, with NaN above everything.
fn less(b: &mut BodyBuilder, x: ExprId, y: ExprId) -> ExprId {
    let plain = b.lt(x, y);
    if !b.ty(x).is_float() {
        return plain;
    }
    let (x_nan, y_nan) = (b.un(Unary::IsNan, x), b.un(Unary::IsNan, y));
    let number = b.not(x_nan);
    let below_nan = b.and(number, y_nan);
    b.or(plain, below_nan)
}

/// The largest or smallest integer of a type.
fn extreme(dtype: DType, largest: bool) -> i64 {
    let bits = 8 * dtype.size_bytes();
    match (dtype, largest) {
        (DType::U8, true) => 255,
        (DType::U8, false) => 0,
        (_, true) => i64::MAX >> (64 - bits),
        (_, false) => i64::MIN >> (64 - bits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::eval::{Tensor, eval};
    use crate::ir::{TensorType, UserInput, UserOutput};
    use std::collections::BTreeMap;

    /// Values and positions of the first places, of chunks and of the whole at once.
    fn both_ways(x: &Tensor, dim: usize, descending: bool, keep: Option<i64>) -> [Vec<Tensor>; 2] {
        [true, false].map(|by_chunks| {
            let mut cx = Cx::new("t");
            let shape: Vec<i64> = x.shape.iter().map(|&n| n as i64).collect();
            let v = cx.b.push(Op::Input { index: 0 }, vec![], vec![TensorType::fixed(x.dtype, &shape)])[0];
            cx.b.graph.inputs.push(("x".to_string(), UserInput::Tensor(v)));
            let keep = keep.map(Dim::from);
            let outs = if by_chunks {
                let (values, at) =
                    in_chunks(&mut cx, v, dim, descending, keep.as_ref()).expect("types fit").expect("long");
                vec![values, at]
            } else {
                cx.add(Op::Sort { dim, descending, keep }, vec![v]).expect("types fit")
            };
            cx.b.graph.outputs = outs.iter().map(|&v| (String::new(), UserOutput::Tensor(v))).collect();
            let got = eval(&cx.b.graph, &|_| None, std::slice::from_ref(x), &BTreeMap::new()).expect("the interpreter");
            got.tensors().into_iter().cloned().collect()
        })
    }

    #[test]
    fn chunks_give_the_one_stable_order() {
        let number = |i: usize| (i.wrapping_mul(2_654_435_761) >> 7) % 500;
        let float = |i: usize| match number(i) {
            0 => f64::NAN,
            1 => f64::NEG_INFINITY,
            2 => f64::INFINITY,
            n => n as f64 - 250.0,
        };
        let floats = Tensor::from_f64(DType::F32, &[2, 4100, 1], (0..8200).map(float).collect());
        let bytes = Tensor::from_i64(DType::U8, &[4500], (0..4500).map(|i| number(i) as i64 % 256).collect());
        let wide = Tensor::from_i64(DType::I64, &[6144], (0..6144).map(|i| (number(i) as i64 - 250) << 40).collect());
        let truths = Tensor::from_i64(DType::Bool, &[4100], (0..4100).map(|i| number(i) as i64 % 2).collect());
        for (x, dim) in [(floats, 1), (bytes, 0), (wide, 0), (truths, 0)] {
            for descending in [false, true] {
                for keep in [None, Some(3000), Some(1000)] {
                    let [chunks, whole] = both_ways(&x, dim, descending, keep);
                    let bits = |t: &Tensor| (t.dtype, t.shape.clone(), t.data.clone());
                    assert_eq!(
                        format!("{:?}", chunks.iter().map(bits).collect::<Vec<_>>()),
                        format!("{:?}", whole.iter().map(bits).collect::<Vec<_>>()),
                        "{descending} {keep:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn short_lines_few_places_and_what_would_take_too_much_memory_are_left_alone() {
        let mut cx = Cx::new("t");
        let mut chunked = |shape: &[i64], keep: Option<i64>| {
            let v = cx.full(shape.iter().map(|&n| Dim::from(n)).collect(), DType::F32, 0.0).expect("a constant");
            in_chunks(&mut cx, v, shape.len() - 1, true, keep.map(Dim::from).as_ref()).expect("types fit").is_some()
        };
        assert!(!chunked(&[4096], None), "it fits shared memory");
        assert!(!chunked(&[9216, 8400], Some(30)), "chosen from at once");
        assert!(!chunked(&[1, 8400], Some(300)) && chunked(&[1, 100_000], Some(32)) && chunked(&[100_000], None));
        assert!(!chunked(&[1 << 20], None) && chunked(&[1 << 20], Some(300)));
    }

    #[test]
    fn no_long_line_is_sorted_by_counting_through_it_whatever_its_type() {
        for dtype in [DType::Bool, DType::U8, DType::I64, DType::F16, DType::F64] {
            let mut cx = Cx::new("t");
            let v = cx.b.push(Op::Input { index: 0 }, vec![], vec![TensorType::fixed(dtype, &[200_000])])[0];
            let (values, _) = places_of(&mut cx, v, 0, false, None).expect("types fit");
            assert_eq!(cx.tensor_dtype(values), dtype, "values keep their type");
            for node in &cx.b.graph.nodes {
                if let Op::Sort { dim, .. } = node.op {
                    let len = cx.size(node.inputs[0], dim).as_const().expect("a fixed size");
                    assert!(len <= LONG, "{dtype:?}: {len} elements at once");
                }
            }
        }
    }
}
