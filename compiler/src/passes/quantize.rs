//! Weights of products, convolutions and embeddings as integers of 8 or 4 bits, decoded inside the kernels that read them (`--quantize`).
//!
//! ```text
//! graph g {
//!   %x = input 0 "x" : f32[1,2]
//!   %w = const [127.0, -64.0, 2.0, -254.0] : f32[2,2]
//!   %t = permute %w perm=[1,0] : f32[2,2]
//!   %y = matmul %x, %t : f32[1,2]
//!   output "y" = %y
//! }
//! ----
//! graph g {
//!   %x = input 0 "x" : f32[1,2]
//!   %w.int8 = const [127, -64, 1, -127] : i8[2,2]
//!   %w.scale = const [1.0, 2.0] : f32[2,1]
//!   %w.float = map(f32(a) * b) %w.int8, %w.scale : f32[2,2]
//!   %t = permute %w.float perm=[1,0] : f32[2,2]
//!   %y = matmul %x, %t : f32[1,2]
//!   output "y" = %y
//! }
//! ```
//!
//! 8 bits are symmetric with a scale for each output; 4 bits have a scale and a zero point for each group of 32 along the summed
//! dimension, two values a byte. Scales are f32. This is the one pass that changes what a graph computes, which is why it runs only when
//! asked to, and reports by how much: [`Report`]. What it decodes, no later pass or fusion stores again (`decodes_bytes`).

mod encode;
mod readers;
mod report;

pub use encode::Error;
pub use report::{Kept, Outcome, Report, WeightReport};

use super::drop_dead::compact;
use super::{Cx, Pass};
use crate::ir::eval::{Precision, Tensor, literal, stored};
use crate::ir::op::{Body, Literal};
use crate::ir::{Builder, DType, Dim, Graph, NodeId, Op, TensorType, ValueId};
use crate::options::QuantizedForm;
use encode::{Encoded, GROUP, Layout};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, ExprId, Exprs};
use readers::Readers;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub(super) const PASS: Pass = Pass { name: "quantize", summary: "makes weights integers, where asked to", run };

/// A weight that becomes integers.
struct Coded {
    encoded: Encoded,
    layout: Layout,
    summed: Range<usize>,
}

impl Coded {
    fn bytes(&self) -> u64 {
        let e = &self.encoded;
        (e.bytes.len() + 4 * e.scales.len() + e.zeros.as_ref().map_or(0, Vec::len)) as u64
    }
}

fn run(graph: &mut Graph, cx: &Cx<'_>) -> u32 {
    let Some(how) = cx.quantize else { return 0 };
    let readers = Readers::of(graph);
    let mut report = Report::new(how.form);
    let mut coded: BTreeMap<ValueId, Coded> = BTreeMap::new();
    for node in &graph.nodes {
        let name = match &node.op {
            Op::Weight(w) => w.names().collect::<Vec<_>>().join("+"),
            Op::Const(_) => graph.value(node.outputs[0]).name.clone(),
            _ => continue,
        };
        let (v, ty) = (node.outputs[0], graph.ty(node.outputs[0]));
        if !ty.dtype.is_float() {
            continue;
        }
        let n = ty.n_elems().as_const().unwrap_or(0) as u64;
        let bytes = n * u64::from(ty.dtype.size_bytes());
        if n < how.min_elems {
            report.small = (report.small.0 + 1, report.small.1 + bytes);
            continue;
        }
        let outcome = match code(graph, cx, &readers, v, how.form) {
            Ok(c) if c.bytes() >= bytes => Outcome::Kept(Kept::ShortRows),
            Ok(c) if cx.may_patch() => {
                let outcome = Outcome::Quantized { bytes: c.bytes(), error: c.encoded.error };
                coded.insert(v, c);
                outcome
            }
            Ok(_) => continue,
            Err(why) => Outcome::Kept(why),
        };
        report.weights.push(WeightReport { name, dtype: ty.dtype, bytes, outcome });
    }
    cx.quantized.replace(Some(report));
    let patches = coded.len() as u32;
    replace(graph, coded);
    patches
}

fn code(graph: &Graph, cx: &Cx<'_>, readers: &Readers, v: ValueId, form: QuantizedForm) -> Result<Coded, Kept> {
    let summed = readers.summed(graph, v)?;
    let ty = graph.ty(v);
    if ty.dtype == DType::F64 {
        return Err(Kept::Double);
    }
    let value = value(graph, cx, v).ok_or(Kept::Missing)?;
    if !value.floats().iter().all(|v| v.is_finite()) {
        return Err(Kept::NotFinite);
    }
    let size = |dims: &[usize]| dims.iter().product();
    let layout = Layout {
        outer: size(&value.shape[..summed.start]),
        summed: size(&value.shape[summed.clone()]),
        inner: size(&value.shape[summed.end..]),
    };
    let encoded = match form {
        QuantizedForm::Int8 => encode::int8(&value, layout),
        QuantizedForm::Int4 => encode::int4(&value, layout),
    };
    Ok(Coded { encoded, layout, summed })
}

fn value(graph: &Graph, cx: &Cx<'_>, v: ValueId) -> Option<Tensor> {
    match &graph.def(v).op {
        Op::Weight(w) => stored(w, graph.ty(v).dtype, cx.weights, Precision::Working).ok(),
        Op::Const(lit) => Some(literal(lit)),
        _ => None,
    }
}

/// Puts the decoding behind each weight and has all readers read that.
fn replace(graph: &mut Graph, coded: BTreeMap<ValueId, Coded>) {
    if coded.is_empty() {
        return;
    }
    let nodes = std::mem::take(&mut graph.nodes);
    let mut b = Builder::resume(std::mem::take(graph));
    let mut instead: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for mut node in nodes {
        node.inputs.iter_mut().for_each(|v| *v = instead.get(v).copied().unwrap_or(*v));
        let def = NodeId(b.graph.nodes.len() as u32);
        node.outputs.iter().for_each(|v| b.graph.values[v.0 as usize].def = def);
        let (first, origin) = (node.outputs[0], node.origin);
        b.graph.nodes.push(node);
        if let Some(c) = coded.get(&first) {
            b.set_origin_index(origin);
            let decoded = decode(&mut b, first, c);
            instead.insert(first, decoded);
        }
    }
    *graph = b.graph;
    compact(graph);
}

fn decode(b: &mut Builder, weight: ValueId, c: &Coded) -> ValueId {
    let ty = b.ty(weight).clone();
    let name = b.graph.value(weight).name.clone();
    let Layout { outer, summed, inner } = c.layout;
    let scales = c.encoded.scales.iter().flat_map(|s| s.to_le_bytes()).collect();
    let decoded = match &c.encoded.zeros {
        None => {
            let mut shape = ty.shape.clone();
            shape[c.summed.clone()].fill(Dim::from(1));
            let q = constant(b, &name, "int8", TensorType::new(DType::I8, ty.shape.clone()), c.encoded.bytes.clone());
            let s = constant(b, &name, "scale", TensorType::new(DType::F32, shape), scales);
            b.map(scaled(), vec![q, s], ty).expect("scales broadcast")
        }
        Some(zeros) => {
            let fixed = |dtype, k| TensorType::fixed(dtype, &[outer as i64, k as i64, inner as i64]);
            let groups = c.layout.groups();
            let q = constant(b, &name, "int4", fixed(DType::U8, c.layout.pairs()), c.encoded.bytes.clone());
            let s = constant(b, &name, "scale", fixed(DType::F32, groups), scales);
            let z = constant(b, &name, "zero", fixed(DType::U8, groups), zeros.clone());
            let three =
                b.compute(unpacked(), vec![q, s, z], fixed(ty.dtype, summed)).expect("indices of three dimensions");
            if b.ty(three) == &ty {
                three
            } else {
                b.add1(Op::Reshape(ty.shape), vec![three]).expect("as many elements")
            }
        }
    };
    rename(b, decoded, &name, "float");
    decoded
}

fn constant(b: &mut Builder, weight: &str, part: &str, ty: TensorType, bytes: Vec<u8>) -> ValueId {
    let op = Op::Const(Literal { ty: ty.clone(), bytes: Arc::new(bytes) });
    let v = b.push(op, vec![], vec![ty])[0];
    rename(b, v, weight, part);
    v
}

fn rename(b: &mut Builder, v: ValueId, weight: &str, part: &str) {
    let name = b.fresh_name(&format!("{weight}.{part}"));
    b.graph.values[v.0 as usize].name = name;
}

/// `q · scale`.
fn scaled() -> Body {
    let mut e = Exprs::new();
    let (q, s) = (e.arg(0, Ty::I32), e.arg(1, Ty::F32));
    let q = e.cast(Ty::F32, q);
    let root = e.bin(Binary::Mul, q, s);
    Body { exprs: e, root, syms: vec![] }
}

/// `(half of the byte − zero) · scale`, over the coordinates of [`Layout`].
fn unpacked() -> Body {
    let mut e = Exprs::new();
    let (o, k, i) = (e.axis(0), e.axis(1), e.axis(2));
    let (one, two, group, mask) = (e.i32(1), e.i32(2), e.i32(GROUP as i32), e.i32(15));
    let pair = e.bin(Binary::Div, k, two);
    let byte = e.load(0, DType::U8, vec![o, pair, i]);
    let odd = e.bin(Binary::And, k, one);
    let shift = e.bin(Binary::Shl, odd, two);
    let moved = e.bin(Binary::Shr, byte, shift);
    let q = e.bin(Binary::And, moved, mask);
    let at = e.bin(Binary::Div, k, group);
    let parameter = |e: &mut Exprs, operand, dtype| -> ExprId { e.load(operand, dtype, vec![o, at, i]) };
    let (scale, zero) = (parameter(&mut e, 1, DType::F32), parameter(&mut e, 2, DType::U8));
    let centred = e.bin(Binary::Sub, q, zero);
    let centred = e.cast(Ty::F32, centred);
    let root = e.bin(Binary::Mul, centred, scale);
    Body { exprs: e, root, syms: vec![] }
}
