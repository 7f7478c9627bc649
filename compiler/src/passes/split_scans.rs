//! Cumulative sums and products of few long lines are cut into chunks on GPUs, so that many workgroups share a line: the whole of each
//! chunk, what stands before each, and then all chunks side by side, each with what stands before it in its first element.
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
//!   %y.3 = scan %y.2 sum dim=1 : f32[2,50,1]
//!   %y.4 = compute(let t0 = a[i0, i1, i2]; select(select(i2 == 0, 0 < i1, false), b[i0, max(i1 - 1, 0), 0] + t0, t0)) %y.1, %y.3 : f32[2,50,800]
//!   %y.5 = scan %y.4 sum dim=2 : f32[2,50,800]
//!   %y = reshape %y.5 : f32[2,40000]
//!   output "y" = %y
//! }
//! ```
//!
//! A kernel of scans gives a line to one workgroup, which walks it tile after tile. The chunks are summed by reductions and their sums by a
//! scan over as many elements as there are chunks: three kernels of a few microseconds instead of one that takes a nanosecond an element.
//! Within chunks f32 sums stay unevaluated sums of two floats; what stands before a chunk is rounded once. The order of combination
//! depends on the sizes alone.

use super::rewrite::{Patch, Ref, View, map, rewrite};
use super::{Cx, Pass};
use crate::ir::op::Body;
use crate::ir::{DType, Dim, Graph, NodeId, Op, TensorType};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Exprs};
use jvc_kernels::spec::Combine;

/// Shorter lines take one workgroup little longer than the chunks' three kernels take: on an H200 a workgroup walked 211,211 elements in
/// 206 µs, and the three took 12 µs (docs/benchmarks/2026-11-30-h200-rows.md).
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
    let Op::Scan { combine: combine @ (Combine::Sum | Combine::Prod), dim } = n.op else { return None };
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
    let before = before_chunks(&mut p, x, combine)?;
    let x = first_raised(&mut p, x, before, combine)?;
    let y = p.add(Op::Scan { combine, dim: 2 }, &[x])?;
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

/// What stands before each chunk, itself left out: a scan over what the chunks come to.
fn before_chunks(p: &mut Patch<'_>, x: Ref, combine: Combine) -> Option<Ref> {
    let dtype = p.ty(x).dtype;
    let whole = p.add(Op::Reduce { combine, dims: vec![2], dtype: accumulator(dtype) }, &[x])?;
    p.add(Op::Scan { combine, dim: 1 }, &[whole])
}

/// Partial results of half types are kept in f32.
fn accumulator(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// The chunks, with what stands before each combined into its first element.
fn first_raised(p: &mut Patch<'_>, x: Ref, ends: Ref, combine: Combine) -> Option<Ref> {
    let (from, shape) = (p.ty(x).dtype, p.ty(x).shape.clone());
    let dtype = p.ty(ends).dtype;
    let mut e = Exprs::new();
    let (line, chunk, i) = (e.axis(0), e.axis(1), e.axis(2));
    let mut own = e.load(0, from, vec![line, chunk, i]);
    if e.ty(own) != dtype.ty() {
        own = e.cast(dtype.ty(), own);
    }
    let (zero, one) = (e.i32(0), e.i32(1));
    let previous = e.bin(Binary::Sub, chunk, one);
    let previous = e.bin(Binary::Max, previous, zero);
    let before = e.load(1, dtype, vec![line, previous, zero]);
    let op = if combine == Combine::Sum { Binary::Add } else { Binary::Mul };
    let raised = e.bin(op, before, own);
    let first = e.bin(Binary::Eq, i, zero);
    let later = e.bin(Binary::Lt, zero, chunk);
    let no = e.bool(false);
    let takes = e.select(first, later, no);
    debug_assert_eq!(e.ty(takes), Ty::Bool);
    let root = e.select(takes, raised, own);
    Some(p.push(Op::Compute(Body { exprs: e, root, syms: vec![] }), &[x, ends], TensorType::new(dtype, shape)))
}
