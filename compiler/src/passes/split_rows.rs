//! Few long rows are reduced in two levels, so that many workgroups share them: chunks of each row, then what the chunks gave.
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[2,20001]
//!   %y = softmax %x dim=1 : f32[2,20001]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[2,20001]
//!   %y.1 = pad %x before=[0,0] after=[0,479] value=-inf : f32[2,20480]
//!   %y.2 = reshape %y.1 : f32[2,20,1024]
//!   %y.3 = reduce %y.2 max dims=[2] : f32[2,20,1]
//!   %y.4 = reduce %y.3 max dims=[1] : f32[2,1,1]
//!   %y.5 = reshape %y.4 : f32[2,1]
//!   %y.6 = map(exp(a - b)) %x, %y.5 : f32[2,20001]
//!   %y.7 = pad %y.6 before=[0,0] after=[0,479] value=0.0 : f32[2,20480]
//!   %y.8 = reshape %y.7 : f32[2,20,1024]
//!   %y.9 = reduce %y.8 sum dims=[2] : f32[2,20,1]
//!   %y.10 = reduce %y.9 sum dims=[1] : f32[2,1,1]
//!   %y.11 = reshape %y.10 : f32[2,1]
//!   %y = map(exp(a - b) / c) %x, %y.5, %y.11 : f32[2,20001]
//!   output "y" = %y
//! }
//! ```
//!
//! A kernel of rows gives a row to one workgroup. A row of millions of elements (a group norm over an image or a waveform, a sum over
//! everything) then keeps the device waiting for one of its units. Here sums, products, maxima, minima and their places become two reductions, and
//! norms, variances and softmax are spelt out over such reductions and maps: the same formulas as in the row kernel, variances about the
//! mean, chunks combined in a fixed order. Chunks of one length give mean and squares at once, so that a norm reads its input twice.
//! What does not divide into chunks is padded with the value that changes nothing.
//!
//! The rule looks at sizes ([`MIN_LEN`], [`MAX_ROWS`]) and, on GPUs, at the number of units: there, fewer rows than two a unit are few, and
//! chunks are as long as a workgroup holds in registers. Rows of symbolic length stay whole, with a reason in the decision log.

use super::rewrite::{Patch, Ref, View, map, rewrite};
use super::{Cx, Pass};
use crate::ir::op::Body;
use crate::ir::{DType, Dim, Graph, NodeId, Op, TensorType, ValueId};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Exprs, Unary};
use jvc_kernels::spec::Combine;

/// Shorter rows are quicker in one kernel: below this, the launches that a split adds outweigh what one workgroup takes for a row. Measured
/// on lavapipe with two cores: a norm of one row of 8192 takes 0.42 ms whole and 0.13 ms split, 64 rows of 16384 take 7.4 and 6.8 ms.
const MIN_LEN: i64 = 8 * 1024;
/// More rows than these fill a device by themselves.
const MAX_ROWS: i64 = 64;
/// Chunks of all rows together: several workgroups for each unit of a large GPU.
const CHUNKS: i64 = 1024;
/// Shorter chunks would leave the invocations of a workgroup with nothing to do.
const MIN_CHUNK: i64 = 1024;
/// The longest chunk on a GPU: 16 elements in the registers of each of 256 invocations.
const MOST_CHUNK: i64 = 4096;
/// Elements that chunks on a GPU start at multiples of, where lengths allow it: blocks of 16 bytes of halves.
const ALIGNED: i64 = 8;
/// Positions, padding included, are 32-bit numbers.
const MAX_ELEMS: i64 = 1 << 30;

const SYMBOLIC: &str = "rows of symbolic length are not split over workgroups";

pub(super) const PASS: Pass =
    Pass { name: "split_rows", summary: "reduces few long rows in two levels over many workgroups", run };

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let patches = rewrite(graph, cx, &[split]);
    let symbolic: Vec<(String, String)> = graph
        .nodes
        .iter()
        .filter(|n| long_and_symbolic(graph, &n.op, n.inputs.first().copied()))
        .map(|n| (graph.origins[n.origin as usize].node.clone(), SYMBOLIC.to_string()))
        .collect();
    graph.slow.extend(symbolic);
    patches
}

/// The dimensions along which an operation has rows.
fn row_dims(op: &Op) -> Option<Vec<usize>> {
    match op {
        Op::Reduce { dims, .. } | Op::Norm { dims, .. } | Op::Variance { dims, .. } => Some(dims.clone()),
        Op::Softmax { dim, .. } => Some(vec![*dim]),
        _ => None,
    }
}

fn long_and_symbolic(graph: &Graph, op: &Op, x: Option<ValueId>) -> bool {
    let (Some(dims), Some(x)) = (row_dims(op), x) else { return false };
    let shape = &graph.ty(x).shape;
    let most = |inner: bool| -> i64 {
        let sizes = shape.iter().enumerate().filter(|(d, _)| dims.contains(d) == inner);
        sizes.fold(1i64, |n, (_, s)| n.saturating_mul(s.range(&graph.ranges).max))
    };
    let open = dims.iter().any(|&d| shape[d].as_const().is_none());
    open && most(true) >= MIN_LEN && most(false) <= MAX_ROWS
}

fn split<'a>(view: &'a View<'a>, node: NodeId) -> Option<Patch<'a>> {
    let n = view.graph.node(node);
    let (x, y) = (*n.inputs.first()?, *n.outputs.first()?);
    let rows = Rows::of(view, view.ty(x), &row_dims(&n.op)?)?;
    let mut p = Patch::new(view);
    let out = view.ty(y).clone();
    let x = Ref::Old(x);
    let result = match &n.op {
        Op::Reduce { combine: combine @ (Combine::ArgMax | Combine::ArgMin), .. } => {
            rows.position(&mut p, x, *combine, &out)?
        }
        Op::Reduce { combine, dtype, .. } => rows.reduce(&mut p, x, *combine, *dtype)?,
        Op::Norm { eps, rms, .. } => norm(&mut p, &rows, x, out, *eps, *rms)?,
        Op::Variance { correction, .. } => variance(&mut p, &rows, x, out, *correction)?,
        Op::Softmax { log, .. } => softmax(&mut p, &rows, x, out, *log)?,
        _ => return None,
    };
    p.replace_by(result)
}

/// Few long rows of a tensor, and how they are cut.
struct Rows {
    /// Dimensions within a row.
    dims: Vec<usize>,
    rows: i64,
    len: i64,
    chunk: i64,
}

impl Rows {
    /// None where rows are many, short or of symbolic length.
    fn of(view: &View<'_>, ty: &TensorType, dims: &[usize]) -> Option<Rows> {
        let shape = ty.const_shape()?;
        let product = |inner: bool| -> Option<i64> {
            let mut sizes = shape.iter().enumerate().filter(|(d, _)| dims.contains(d) == inner);
            sizes.try_fold(1i64, |n, (_, &s)| n.checked_mul(s))
        };
        let (rows, len) = (product(false)?, product(true)?);
        let units = view.cx.device.filter(|d| !d.rates.cpu).map(|d| i64::from(d.rates.n_units));
        let few = units.map_or(MAX_ROWS, |units| MAX_ROWS.max(2 * units - 1));
        // More rows than 64 keep a GPU busy while they fit the registers of a workgroup.
        let long = len >= MIN_LEN && (rows <= MAX_ROWS || len > 2 * MOST_CHUNK);
        if !(1..=few).contains(&rows) || !long || rows.checked_mul(len)? > MAX_ELEMS {
            return None;
        }
        let chunk = if units.is_some() { chunk_in_registers(rows, len) } else { chunk_of_many(rows, len) };
        (chunk < len).then(|| Rows { dims: dims.to_vec(), rows, len, chunk })
    }

    /// The reduction of each row in two levels; the reduced dimensions stay with size 1. None for what has no neutral value.
    fn reduce(&self, p: &mut Patch<'_>, v: Ref, combine: Combine, dtype: DType) -> Option<Ref> {
        let shape = p.ty(v).shape.clone();
        let v = self.cut(p, v, combine)?;
        let partial = p.add(Op::Reduce { combine, dims: vec![2], dtype: accumulator(dtype) }, &[v])?;
        let whole = p.add(Op::Reduce { combine, dims: vec![1], dtype }, &[partial])?;
        let ones = |(d, n): (usize, Dim)| if self.dims.contains(&d) { Dim::from(1) } else { n };
        p.reshape(whole, shape.into_iter().enumerate().map(ones).collect())
    }

    /// Where the first extreme of each row is: of the chunk that has it, the place there.
    fn position(&self, p: &mut Patch<'_>, v: Ref, combine: Combine, out: &TensorType) -> Option<Ref> {
        let dtype = p.ty(v).dtype;
        let extreme = if combine == Combine::ArgMax { Combine::Max } else { Combine::Min };
        let v = if dtype == DType::Bool { return None } else { self.cut(p, v, extreme)? };
        let places = p.add(Op::Reduce { combine, dims: vec![2], dtype: out.dtype }, &[v])?;
        let extremes = p.add(Op::Reduce { combine: extreme, dims: vec![2], dtype }, &[v])?;
        let best = p.add(Op::Reduce { combine, dims: vec![1], dtype: out.dtype }, &[extremes])?;
        let mut e = Exprs::new();
        let (row, zero) = (e.axis(0), e.i32(0));
        let chunk = e.load(1, out.dtype, vec![row, zero, zero]);
        let at = e.cast(Ty::I32, chunk);
        let place = e.load(0, out.dtype, vec![row, at, zero]);
        let len = e.lit(out.dtype.ty(), self.chunk as f64);
        let before = e.bin(Binary::Mul, chunk, len);
        let root = e.bin(Binary::Add, before, place);
        let body = Body { exprs: e, root, syms: vec![] };
        let ty = TensorType::new(out.dtype, vec![Dim::from(self.rows), Dim::from(1), Dim::from(1)]);
        let found = p.push(Op::Compute(body), &[places, best], ty);
        p.reshape(found, out.shape.clone())
    }

    /// Rows in chunks: `[rows, chunks, elements]`.
    fn cut(&self, p: &mut Patch<'_>, v: Ref, combine: Combine) -> Option<Ref> {
        let shape = p.ty(v).shape.clone();
        let chunks = (self.len + self.chunk - 1) / self.chunk;
        let padding = chunks * self.chunk - self.len;
        let fill = neutral(combine, padding > 0, p.ty(v).dtype)?;
        let kept = (0..shape.len()).filter(|d| !self.dims.contains(d));
        let perm: Vec<usize> = kept.chain(self.dims.iter().copied()).collect();
        let in_order = perm.iter().enumerate().all(|(i, &d)| i == d);
        let mut v = if in_order { v } else { p.add(Op::Permute(perm), &[v])? };
        v = p.reshape(v, vec![Dim::from(self.rows), Dim::from(self.len)])?;
        if padding > 0 {
            v = p.add(Op::Pad { before: vec![0, 0], after: vec![0, padding], value: fill }, &[v])?;
        }
        p.reshape(v, vec![Dim::from(self.rows), Dim::from(chunks), Dim::from(self.chunk)])
    }
}

/// A chunk such that all rows together have about [`CHUNKS`].
fn chunk_of_many(rows: i64, len: i64) -> i64 {
    let least = MIN_CHUNK.max((rows * len + CHUNKS - 1) / CHUNKS);
    (least..=2 * least).find(|c| len % c == 0).unwrap_or(least)
}

/// The longest chunk of whole blocks that divides the row and leaves [`CHUNKS`] in all, or the longest there is.
fn chunk_in_registers(rows: i64, len: i64) -> i64 {
    let most = (rows * len / CHUNKS).clamp(MIN_CHUNK, MOST_CHUNK);
    let whole = |c: &i64| len % c == 0 && c % ALIGNED == 0;
    let longest = |least: i64| (least..=most).rev().find(whole).or_else(|| (most..=MOST_CHUNK).find(whole));
    longest(MIN_CHUNK)
        .or_else(|| (MIN_CHUNK..=MOST_CHUNK).rev().find(|c| len % c == 0))
        .unwrap_or(most / ALIGNED * ALIGNED)
}

/// The value that changes no result. Maxima of integers have one only where nothing needs it.
fn neutral(combine: Combine, needed: bool, dtype: DType) -> Option<f64> {
    match combine {
        Combine::Sum => Some(0.0),
        Combine::Prod => Some(1.0),
        Combine::Max if dtype.is_float() || !needed => Some(f64::NEG_INFINITY),
        Combine::Min if dtype.is_float() || !needed => Some(f64::INFINITY),
        Combine::Max | Combine::Min | Combine::Any | Combine::All | Combine::ArgMax | Combine::ArgMin => None,
    }
}

/// Partial results of half types are kept in f32.
fn accumulator(dtype: DType) -> DType {
    if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype }
}

/// What is known of each row.
struct Moments {
    mean: Ref,
    /// What the mean has no digits for: that is some share of the spread of elements that lie close together and far from zero.
    rest: Ref,
    /// `Σ (x − mean)²`, or the factor of a norm.
    second: Ref,
}

/// Mean and squares, with `eps` the factor of a norm, of each row: from those of its chunks, for which the input is read once. Where chunks differ
/// in length, the input is read for the mean first: of differences from it, the zeros behind the end are counted in and out again.
fn moments(p: &mut Patch<'_>, rows: &Rows, x: Ref, eps: Option<f64>) -> Option<Moments> {
    if rows.len % rows.chunk == 0 {
        let [mean, second, rest] = moments_of_chunks(p, rows, x, eps)?;
        return Some(Moments { mean, rest, second });
    }
    let acc = accumulator(p.ty(x).dtype);
    let mean = mean(p, rows, x, acc)?;
    let centred = map(p, &[x, mean], acc, |e, _, a| e.bin(Binary::Sub, a[0], a[1]));
    let [drift, squares, drift_rest] = moments_of_chunks(p, rows, centred, None)?;
    let padded = ((rows.len + rows.chunk - 1) / rows.chunk * rows.chunk) as f64;
    let len = rows.len as f64;
    let rest = map(p, &[drift, drift_rest], acc, |e, ty, a| {
        let (drift, all) = (e.bin(Binary::Add, a[0], a[1]), e.lit(ty, padded / len));
        e.bin(Binary::Mul, drift, all)
    });
    let second = map(p, &[squares, drift], acc, |e, ty, a| {
        let (of_zeros, zero) = (e.lit(ty, padded * (padded - len) / len), e.lit(ty, 0.0));
        let square = e.bin(Binary::Mul, a[1], a[1]);
        let excess = e.bin(Binary::Mul, square, of_zeros);
        let squares = e.bin(Binary::Sub, a[0], excess);
        let squares = e.bin(Binary::Max, squares, zero);
        eps.map_or(squares, |eps| factor(e, ty, squares, (len, eps)))
    });
    Some(Moments { mean, rest, second })
}

/// Mean, squares or factor, and the mean's rest, of the chunks of each row.
fn moments_of_chunks(p: &mut Patch<'_>, rows: &Rows, x: Ref, eps: Option<f64>) -> Option<[Ref; 3]> {
    let ones = |(d, n): (usize, Dim)| if rows.dims.contains(&d) { Dim::from(1) } else { n };
    let shape: Vec<Dim> = p.ty(x).shape.iter().cloned().enumerate().map(ones).collect();
    let chunks = rows.cut(p, x, Combine::Sum)?;
    let of_chunks = p.add(Op::Moments { each: None, eps: None }, &[chunks])?;
    let of_rows = p.add(Op::Moments { each: Some(rows.chunk), eps }, &[of_chunks])?;
    let mut part = |start: i64| {
        let slice = Op::Slice { dim: 1, start: Dim::from(start), len: Dim::from(1), step: 1 };
        let column = p.add(slice, &[of_rows])?;
        p.reshape(column, shape.clone())
    };
    Some([part(0)?, part(1)?, part(2)?])
}

/// `1 / √(squares / n + eps)`.
fn factor(e: &mut Exprs, ty: Ty, squares: ExprId, (n, eps): (f64, f64)) -> ExprId {
    let (n, eps) = (e.lit(ty, n), e.lit(ty, eps));
    let variance = e.bin(Binary::Div, squares, n);
    let shifted = e.bin(Binary::Add, variance, eps);
    e.un(Unary::Rsqrt, shifted)
}

/// `Σ x / n`.
fn mean(p: &mut Patch<'_>, rows: &Rows, x: Ref, acc: DType) -> Option<Ref> {
    let total = rows.reduce(p, x, Combine::Sum, acc)?;
    Some(map(p, &[total], acc, |e, ty, a| {
        let n = e.lit(ty, rows.len as f64);
        e.bin(Binary::Div, a[0], n)
    }))
}

fn norm(p: &mut Patch<'_>, rows: &Rows, x: Ref, out: TensorType, eps: f64, rms: bool) -> Option<Ref> {
    if !rms {
        let m = moments(p, rows, x, Some(eps))?;
        return Some(map(p, &[x, m.mean, m.rest, m.second], out.dtype, |e, _, a| {
            let near = e.bin(Binary::Sub, a[0], a[1]);
            let centred = e.bin(Binary::Sub, near, a[2]);
            e.bin(Binary::Mul, centred, a[3])
        }));
    }
    let acc = accumulator(out.dtype);
    let squared = map(p, &[x], acc, |e, _, a| e.bin(Binary::Mul, a[0], a[0]));
    let total = rows.reduce(p, squared, Combine::Sum, acc)?;
    let scale = map(p, &[total], acc, |e, ty, a| factor(e, ty, a[0], (rows.len as f64, eps)));
    Some(map(p, &[x, scale], out.dtype, |e, _, a| e.bin(Binary::Mul, a[0], a[1])))
}

fn variance(p: &mut Patch<'_>, rows: &Rows, x: Ref, out: TensorType, correction: f64) -> Option<Ref> {
    let total = moments(p, rows, x, None)?.second;
    Some(map(p, &[total], out.dtype, |e, ty, a| {
        let n = e.lit(ty, (rows.len as f64 - correction).max(0.0));
        e.bin(Binary::Div, a[0], n)
    }))
}

fn softmax(p: &mut Patch<'_>, rows: &Rows, x: Ref, out: TensorType, log: bool) -> Option<Ref> {
    let acc = accumulator(out.dtype);
    let max = rows.reduce(p, x, Combine::Max, acc)?;
    let exp = map(p, &[x, max], acc, |e, _, a| {
        let d = e.bin(Binary::Sub, a[0], a[1]);
        e.un(Unary::Exp, d)
    });
    let total = rows.reduce(p, exp, Combine::Sum, acc)?;
    if log {
        let total = map(p, &[total], acc, |e, _, a| e.un(Unary::Log, a[0]));
        return Some(map(p, &[x, max, total], out.dtype, |e, _, a| {
            let d = e.bin(Binary::Sub, a[0], a[1]);
            e.bin(Binary::Sub, d, a[2])
        }));
    }
    Some(map(p, &[x, max, total], out.dtype, |e, _, a| {
        let d = e.bin(Binary::Sub, a[0], a[1]);
        let exp = e.un(Unary::Exp, d);
        e.bin(Binary::Div, exp, a[2])
    }))
}
