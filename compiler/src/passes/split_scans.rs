//! Cumulative sums and products of few long lines are cut into chunks on GPUs, so that many workgroups share a line: the whole of each
//! chunk, and then all chunks side by side, each behind the wholes of those before it.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[2,40000]
//!   %y = scan %x sum dim=1 : f32[2,40000]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[2,40000]
//!   %y.1 = reshape %x : f32[2,50,800]
//!   %y.2 = reduce %y.1 sum dims=[2] : f32[2,50,1]
//!   %y.3 = compute(select(50 <= i2, a[i0, i1, max(i2 - 50, 0)], select(i2 < i1, b[i0, min(i2, 49), 0], 0.0))) %y.1, %y.2 : f32[2,50,850]
//!   %y.4 = scan %y.3 sum dim=2 skip=50 : f32[2,50,800]
//!   %y = reshape %y.4 : f32[2,40000]
//!   output "y" = %y
//! }
//! ```
//!
//! A kernel of scans gives a line to one workgroup, which walks it tile after tile. The chunks are summed by reductions, and what stands before
//! a chunk by the scan of it, which is longer by as many elements as there are chunks: two kernels of a few microseconds instead of one
//! that takes a nanosecond an element. f32 sums stay unevaluated sums of two floats; the sum of each chunk is rounded once. The order of
//! combination depends on the sizes alone.

use super::rewrite::{Patch, Ref, View, map, rewrite};
use super::{Cx, Pass};
use crate::ir::op::Body;
use crate::ir::{DType, Dim, Graph, NodeId, Op, TensorType};
use jvc_kernels::expr::{Binary, Exprs};
use jvc_kernels::spec::Combine;

/// Shorter lines take one workgroup little longer than the chunks' kernels take: on an H200 a workgroup walked 211,211 elements in
/// 206 µs, and three kernels took 12 µs (docs/benchmarks/2026-11-30-h200-rows.md).
const MIN_LEN: i64 = 16 * 1024;
/// Chunks are at least so long: shorter ones give the invocations of a workgroup nothing to do, and many chunks are a long line again.
const MIN_CHUNK: i64 = 768;
/// Longest exact divisor that is taken instead of padding, which costs a copy.
const MOST_CHUNK: i64 = 8192;
/// Positions are 32-bit numbers.
const MAX_ELEMS: i64 = 1 << 30;

pub(super) const PASS: Pass =
    Pass { name: "split_scans", summary: "scans few long lines in chunks over many workgroups", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    rewrite(graph, cx, &[split])
}

fn split<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let Op::Scan { combine: combine @ (Combine::Sum | Combine::Prod), dim, skip: 0 } = n.op else { return None };
    let device = view.cx.device.filter(|d| !d.rates.cpu)?;
    let out = view.ty(n.outputs[0]);
    let shape = out.const_shape()?;
    let len = shape[dim];
    let lines: i64 = shape.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, &s)| s).product();
    let units = i64::from(device.rates.n_units);
    if lines < 1 || lines >= units || len < MIN_LEN || lines.checked_mul(len)? > MAX_ELEMS {
        return None;
    }
    let x = n.inputs[0];
    // Chunks of chunks would not end: the scan of a cut line is one of many lines.
    let chunk = chunk(len, lines, units);
    let chunks = (len + chunk - 1) / chunk;
    let padding = chunks * chunk - len;
    let dims = |sizes: &[i64]| sizes.iter().map(|&s| Dim::from(s)).collect::<Vec<Dim>>();
    let mut p = Patch::new(view);
    let perm: Vec<usize> = (0..shape.len()).filter(|&d| d != dim).chain([dim]).collect();
    let turned = dim + 1 != shape.len();
    let mut x = Ref::Old(x);
    if turned {
        x = p.add(Op::Permute(perm.clone()), &[x])?;
    }
    x = p.reshape(x, dims(&[lines, len]))?;
    if padding > 0 {
        // What stands beyond the end comes after everything and is cut off.
        x = p.add(Op::Pad { before: vec![0, 0], after: vec![0, padding], value: 0.0 }, &[x])?;
    }
    x = p.reshape(x, dims(&[lines, chunks, chunk]))?;
    let dtype = accumulator(p.ty(x).dtype);
    let wholes = p.add(Op::Reduce { combine, dims: vec![2], dtype }, &[x])?;
    let x = behind_wholes(&mut p, x, wholes, combine);
    let y = p.add(Op::Scan { combine, dim: 2, skip: chunks }, &[x])?;
    let y = if p.ty(y).dtype == out.dtype { y } else { map(&mut p, &[y], out.dtype, |_, _, a| a[0]) };
    let mut y = p.reshape(y, dims(&[lines, chunks * chunk]))?;
    if padding > 0 {
        y = p.add(Op::Slice { dim: 1, start: Dim::from(0), len: Dim::from(len), step: 1 }, &[y])?;
    }
    let inner: Vec<i64> = perm.iter().map(|&d| shape[d]).collect();
    let mut y = p.reshape(y, dims(&inner))?;
    if turned {
        let mut back = vec![0; perm.len()];
        perm.iter().enumerate().for_each(|(i, &d)| back[d] = i);
        y = p.add(Op::Permute(back), &[y])?;
    }
    p.replace_by(y)
}

/// About as many chunks as keep all units busy, and an exact divisor of the length if there is one.
fn chunk(len: i64, lines: i64, units: i64) -> i64 {
    let least = MIN_CHUNK.max(len * lines / (2 * units));
    (least..=MOST_CHUNK.max(least)).find(|c| len % c == 0).unwrap_or(least)
}

/// Partial results of half types are kept in f32.
fn accumulator(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// The chunks, before each what the earlier ones come to: as many places for all, with what changes nothing where others would stand.
fn behind_wholes(p: &mut Patch<'_>, x: Ref, wholes: Ref, combine: Combine) -> Ref {
    let (from, shape) = (p.ty(x).dtype, p.ty(x).shape.clone());
    let (dtype, chunks) = (p.ty(wholes).dtype, shape[1].clone());
    let n = chunks.as_const().expect("chunks of lines of known length");
    let mut e = Exprs::new();
    let (line, chunk, place) = (e.axis(0), e.axis(1), e.axis(2));
    let (zero, n_chunks) = (e.i32(0), e.i32(n as i32));
    let behind = e.bin(Binary::Sub, place, n_chunks);
    let i = e.bin(Binary::Max, behind, zero);
    let own = e.load(0, from, vec![line, chunk, i]);
    let own = e.cast(dtype.ty(), own);
    let last = e.i32(n as i32 - 1);
    let earlier = e.bin(Binary::Min, place, last);
    let whole = e.load(1, dtype, vec![line, earlier, zero]);
    let counts = e.bin(Binary::Lt, place, chunk);
    let nothing = e.lit(dtype.ty(), if combine == Combine::Sum { 0.0 } else { 1.0 });
    let whole = e.select(counts, whole, nothing);
    let is_own = e.bin(Binary::Le, n_chunks, place);
    let root = e.select(is_own, own, whole);
    let shape = vec![shape[0].clone(), chunks.clone(), &shape[2] + &chunks];
    p.push(Op::Compute(Body { exprs: e, root, syms: vec![] }), &[x, wholes], TensorType::new(dtype, shape))
}
