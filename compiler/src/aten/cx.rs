//! What a rule works with: the graph under construction, the values of names, and the vocabulary of tensor operations that rules share.

use super::alias::{Group, Tracked};
use super::body::BodyBuilder;
use super::promote::converted;
use super::{Val, bad_argument, unsupported_dtype};
use crate::ir::infer::InferError;
use crate::ir::op::{Literal, Op};
use crate::ir::{Builder, DType, Dim, Ranges, Shape, TensorType, ValueId};
use crate::report::Diagnostic;
use half::{bf16, f16};
use jvc_kernels::expr::{Expr, ExprId};
use jvc_kernels::spec::Combine;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A value, or why there is none.
pub type Built = Result<ValueId, Diagnostic>;

/// The state of a lowering.
#[derive(Debug, Default)]
pub struct Cx {
    /// The graph under construction.
    pub b: Builder,
    /// Bounds of the symbols.
    pub ranges: Ranges,
    pub(super) groups: Vec<Group>,
    pub(super) names: BTreeMap<String, Slot>,
    /// Most trips of loops, by the name of their node.
    pub(super) loop_bounds: BTreeMap<String, i64>,
    /// Draws of random numbers so far.
    pub(super) n_draws: u32,
    /// The last failed read was of a value that an earlier diagnostic explains.
    pub(super) cascade: bool,
}

/// What a name stands for.
#[derive(Debug, Clone)]
pub(super) enum Slot {
    /// A tensor, with the memory that it shares.
    Tensor(Tracked),
    /// A number.
    Plain(Val),
    /// The node that gives it could not be lowered.
    Failed,
}

impl From<InferError> for Diagnostic {
    fn from(e: InferError) -> Diagnostic {
        bad_argument(e.to_string())
    }
}

/// Names and types.
impl Cx {
    /// An empty graph.
    pub fn new(name: &str) -> Cx {
        Cx { b: Builder::new(name), ..Cx::default() }
    }

    /// The present value of a name, after all writes to its memory.
    ///
    /// # Errors
    /// When the name is unknown, or the node that gives it failed.
    pub fn read(&mut self, name: &str) -> Result<Val, Diagnostic> {
        match self.names.get(name).cloned() {
            Some(Slot::Plain(v)) => Ok(v),
            Some(Slot::Tensor(t)) => {
                let t = self.refresh(t)?;
                let value = t.value.clone();
                self.names.insert(name.to_string(), Slot::Tensor(t));
                Ok(value)
            }
            Some(Slot::Failed) => {
                self.cascade = true;
                Err(bad_argument(format!("`{name}` could not be computed")))
            }
            None => Err(bad_argument(format!("nothing defines `{name}`"))),
        }
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> &TensorType {
        self.b.ty(v)
    }

    /// Element type of a value.
    pub fn tensor_dtype(&self, v: ValueId) -> DType {
        self.ty(v).dtype
    }

    /// Sizes of a value.
    pub fn shape(&self, v: ValueId) -> Shape {
        self.ty(v).shape.clone()
    }

    /// Number of dimensions.
    pub fn rank(&self, v: ValueId) -> usize {
        self.ty(v).rank()
    }

    /// One size.
    pub fn size(&self, v: ValueId, dim: usize) -> Dim {
        self.ty(v).shape[dim].clone()
    }

    /// Adds a node with one inferred result.
    pub fn add1(&mut self, op: Op, inputs: Vec<ValueId>) -> Built {
        Ok(self.b.add1(op, inputs)?)
    }

    /// Adds a node.
    pub fn add(&mut self, op: Op, inputs: Vec<ValueId>) -> Result<Vec<ValueId>, Diagnostic> {
        Ok(self.b.add(op, inputs)?)
    }
}

/// Constants.
impl Cx {
    /// A constant from its bytes (little-endian, row-major).
    pub fn const_bytes(&mut self, ty: TensorType, bytes: Vec<u8>) -> Built {
        self.add1(Op::Const(Literal { ty, bytes: Arc::new(bytes) }), vec![])
    }

    /// A constant of any element type from doubles (integers truncate).
    pub fn const_data(&mut self, dtype: DType, values: &[f64], shape: &[i64]) -> Built {
        let bytes = values.iter().flat_map(|&v| element_bytes(dtype, v)).collect();
        self.const_bytes(TensorType::fixed(dtype, shape), bytes)
    }

    /// An f32 constant.
    pub fn const_f32(&mut self, values: &[f32], shape: &[i64]) -> Built {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.const_bytes(TensorType::fixed(DType::F32, shape), bytes)
    }

    /// An i64 constant.
    pub fn const_i64(&mut self, values: &[i64], shape: &[i64]) -> Built {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.const_bytes(TensorType::fixed(DType::I64, shape), bytes)
    }

    /// A tensor that holds one number everywhere.
    pub fn full(&mut self, shape: Shape, dtype: DType, v: f64) -> Built {
        self.compute(shape, dtype, &[], |b, _| b.lit(dtype.ty(), v))
    }

    /// As [`Cx::full`], exact for 64-bit integers.
    pub fn full_int(&mut self, shape: Shape, dtype: DType, v: i64) -> Built {
        self.compute(shape, dtype, &[], |b, _| b.lit_int(dtype.ty(), v))
    }

    /// A 0-d tensor that holds a size.
    pub fn dim_tensor(&mut self, d: &Dim, dtype: DType) -> Built {
        if let Some(v) = d.as_const() {
            return self.full_int(vec![], dtype, v);
        }
        self.compute(vec![], dtype, &[], |b, _| {
            let d = b.dim(d);
            b.cast(dtype.ty(), d)
        })
    }

    /// `0, 1, …, n − 1` as i64.
    pub fn iota(&mut self, n: Dim) -> Built {
        self.compute(vec![n], DType::I64, &[], |b, axes| b.cast(DType::I64.ty(), axes[0]))
    }
}

/// Movement. Operations that change nothing add no node.
impl Cx {
    /// Same elements, new shape.
    pub fn reshape(&mut self, v: ValueId, shape: Shape) -> Built {
        if self.ty(v).shape == shape { Ok(v) } else { self.add1(Op::Reshape(shape), vec![v]) }
    }

    /// Output dimension d is input dimension `perm[d]`.
    pub fn permute(&mut self, v: ValueId, perm: &[usize]) -> Built {
        if perm.iter().enumerate().all(|(i, &p)| i == p) && perm.len() == self.rank(v) {
            return Ok(v);
        }
        self.add1(Op::Permute(perm.to_vec()), vec![v])
    }

    /// Exchanges two dimensions.
    pub fn transpose(&mut self, v: ValueId, a: usize, b: usize) -> Built {
        let mut perm: Vec<usize> = (0..self.rank(v)).collect();
        if perm.is_empty() {
            return Ok(v);
        }
        perm.swap(a, b);
        self.permute(v, &perm)
    }

    /// `len` elements of a dimension from `start`, every `step`-th.
    pub fn slice(&mut self, v: ValueId, dim: usize, start: Dim, len: Dim, step: i64) -> Built {
        if start.is(0) && step == 1 && self.ty(v).shape.get(dim) == Some(&len) {
            return Ok(v);
        }
        self.add1(Op::Slice { dim, start, len, step }, vec![v])
    }

    /// The elements at one index of a dimension, which goes away.
    pub fn select(&mut self, v: ValueId, dim: usize, index: Dim) -> Built {
        let one = self.slice(v, dim, index, Dim::from(1), 1)?;
        self.squeeze(one, dim)
    }

    /// Inserts a dimension of size 1 before `dim`.
    pub fn unsqueeze(&mut self, v: ValueId, dim: usize) -> Built {
        let mut shape = self.shape(v);
        shape.insert(dim, Dim::from(1));
        self.reshape(v, shape)
    }

    /// Removes a dimension of size 1.
    pub fn squeeze(&mut self, v: ValueId, dim: usize) -> Built {
        let mut shape = self.shape(v);
        shape.remove(dim);
        self.reshape(v, shape)
    }

    /// Adds leading dimensions of size 1 up to a rank.
    pub fn to_rank(&mut self, v: ValueId, rank: usize) -> Built {
        let mut shape = vec![Dim::from(1); rank.saturating_sub(self.rank(v))];
        shape.extend(self.shape(v));
        self.reshape(v, shape)
    }

    /// Broadcasts to a shape of the same or a higher rank.
    pub fn broadcast_to(&mut self, v: ValueId, shape: &Shape) -> Built {
        let v = self.to_rank(v, shape.len())?;
        if self.ty(v).shape == *shape { Ok(v) } else { self.add1(Op::Broadcast(shape.clone()), vec![v]) }
    }

    /// Joins along a dimension.
    pub fn concat(&mut self, parts: &[ValueId], dim: usize) -> Built {
        match parts {
            [one] => Ok(*one),
            _ => self.add1(Op::Concat { dim }, parts.to_vec()),
        }
    }

    /// Joins along a new dimension.
    pub fn stack(&mut self, parts: &[ValueId], dim: usize) -> Built {
        let parts = parts.iter().map(|&p| self.unsqueeze(p, dim)).collect::<Result<Vec<_>, _>>()?;
        self.concat(&parts, dim)
    }

    /// Pads (or crops, where negative) every dimension with a constant.
    pub fn pad(&mut self, v: ValueId, before: Vec<i64>, after: Vec<i64>, value: f64) -> Built {
        if before.iter().chain(&after).all(|&p| p == 0) {
            return Ok(v);
        }
        self.add1(Op::Pad { before, after, value }, vec![v])
    }

    /// Reverses dimensions.
    pub fn flip(&mut self, v: ValueId, dims: Vec<usize>) -> Built {
        if dims.is_empty() { Ok(v) } else { self.add1(Op::Flip(dims), vec![v]) }
    }

    /// (re, im) → one tensor with a last dimension of 2: how complex tensors cross the program's boundary.
    pub fn interleave(&mut self, re: ValueId, im: ValueId) -> Built {
        let rank = self.rank(re);
        self.stack(&[re, im], rank)
    }

    /// The inverse of [`Cx::interleave`].
    pub fn deinterleave(&mut self, v: ValueId) -> Result<Val, Diagnostic> {
        let last = self.rank(v) - 1;
        Ok(Val::Complex { re: self.select(v, last, Dim::from(0))?, im: self.select(v, last, Dim::from(1))? })
    }
}

/// Computation.
impl Cx {
    /// A general pointwise node over `shape`: the closure gets the coordinates and loads operands.
    pub fn compute(
        &mut self,
        shape: Shape,
        dtype: DType,
        inputs: &[ValueId],
        body: impl FnOnce(&mut BodyBuilder, &[ExprId]) -> ExprId,
    ) -> Built {
        let mut b = BodyBuilder::new(inputs.iter().map(|&v| self.ty(v).clone()).collect());
        let axes: Vec<ExprId> = (0..shape.len()).map(|d| b.axis(d)).collect();
        let root = body(&mut b, &axes);
        if let Some(why) = b.take_fault() {
            return Err(bad_argument(why));
        }
        let root = wrap_small_int(&mut b, dtype, root);
        Ok(self.b.compute(b.finish(root), inputs.to_vec(), TensorType::new(dtype, shape))?)
    }

    /// An elementwise node over operands that broadcast to each other.
    pub fn map_n(
        &mut self,
        inputs: &[ValueId],
        dtype: DType,
        body: impl FnOnce(&mut BodyBuilder, &[ExprId]) -> ExprId,
    ) -> Built {
        let shape = self.broadcast_shape(inputs)?;
        let inputs = inputs.iter().map(|&v| self.to_rank(v, shape.len())).collect::<Result<Vec<_>, _>>()?;
        let mut b = BodyBuilder::new(inputs.iter().map(|&v| self.ty(v).clone()).collect());
        let args: Vec<ExprId> = (0..inputs.len()).map(|k| b.arg(k)).collect();
        let root = body(&mut b, &args);
        if let Some(why) = b.take_fault() {
            return Err(bad_argument(why));
        }
        let root = wrap_small_int(&mut b, dtype, root);
        Ok(self.b.map(b.finish(root), inputs, TensorType::new(dtype, shape))?)
    }

    /// One operand, same element type.
    pub fn map1(&mut self, x: ValueId, body: impl FnOnce(&mut BodyBuilder, ExprId) -> ExprId) -> Built {
        let dtype = self.tensor_dtype(x);
        self.map_n(&[x], dtype, |b, a| body(b, a[0]))
    }

    /// Two operands that broadcast.
    pub fn map2(
        &mut self,
        x: ValueId,
        y: ValueId,
        dtype: DType,
        body: impl FnOnce(&mut BodyBuilder, ExprId, ExprId) -> ExprId,
    ) -> Built {
        self.map_n(&[x, y], dtype, |b, a| body(b, a[0], a[1]))
    }

    /// Three operands that broadcast.
    pub fn map3(
        &mut self,
        x: [ValueId; 3],
        dtype: DType,
        body: impl FnOnce(&mut BodyBuilder, [ExprId; 3]) -> ExprId,
    ) -> Built {
        self.map_n(&x, dtype, |b, a| body(b, [a[0], a[1], a[2]]))
    }

    /// x + y of one element type.
    pub fn add_values(&mut self, x: ValueId, y: ValueId) -> Built {
        let dtype = self.tensor_dtype(x);
        self.map2(x, y, dtype, BodyBuilder::add)
    }

    /// x − y of one element type.
    pub fn sub_values(&mut self, x: ValueId, y: ValueId) -> Built {
        let dtype = self.tensor_dtype(x);
        self.map2(x, y, dtype, BodyBuilder::sub)
    }

    /// x · y of one element type.
    pub fn mul_values(&mut self, x: ValueId, y: ValueId) -> Built {
        let dtype = self.tensor_dtype(x);
        self.map2(x, y, dtype, BodyBuilder::mul)
    }

    /// x multiplied by a number.
    pub fn scale(&mut self, x: ValueId, by: f64) -> Built {
        self.map1(x, |b, x| {
            let s = b.like(x, by);
            b.mul(x, s)
        })
    }

    /// A conversion, rounding to half types and wrapping to small integers. What leaves a half type is rounded to it first: the source may
    /// be fused with what computed it in f32, and PyTorch converts the stored value.
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> Built {
        let from = self.tensor_dtype(x);
        if from == dtype {
            return Ok(x);
        }
        self.map_n(&[x], dtype, |b, a| converted(b, a[0], from, dtype))
    }

    /// Reduces dimensions, keeping them as size 1 or not.
    pub fn reduce(&mut self, x: ValueId, combine: Combine, dims: &[usize], keep: bool, dtype: DType) -> Built {
        let mut dims = dims.to_vec();
        dims.sort_unstable();
        dims.retain(|&d| d < self.rank(x));
        if self.rank(x) == 0 {
            let one = self.reshape(x, vec![Dim::from(1)])?;
            let r = self.add1(Op::Reduce { combine, dims: vec![0], dtype }, vec![one])?;
            return self.reshape(r, vec![]);
        }
        let kept = self.add1(Op::Reduce { combine, dims: dims.clone(), dtype }, vec![x])?;
        if keep { Ok(kept) } else { self.drop_dims(kept, &dims) }
    }

    /// Removes dimensions of size 1.
    pub fn drop_dims(&mut self, x: ValueId, dims: &[usize]) -> Built {
        let shape = self.shape(x).into_iter().enumerate().filter(|(d, _)| !dims.contains(d)).map(|(_, s)| s).collect();
        self.reshape(x, shape)
    }

    /// Batched matrix product.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Built {
        self.add1(Op::Matmul, vec![a, b])
    }

    /// Softmax over one dimension, or its logarithm.
    pub fn softmax(&mut self, x: ValueId, dim: usize, log: bool) -> Built {
        self.add1(Op::Softmax { dim, log }, vec![x])
    }

    /// Applies a rule for real tensors to both parts of a complex one.
    pub fn each(&mut self, v: &Val, mut f: impl FnMut(&mut Cx, ValueId) -> Built) -> Result<Val, Diagnostic> {
        match v {
            Val::Tensor(x) => Ok(Val::Tensor(f(self, *x)?)),
            Val::Complex { re, im } => Ok(Val::Complex { re: f(self, *re)?, im: f(self, *im)? }),
            _ => Err(bad_argument("a number where a tensor is needed")),
        }
    }

    /// The shape to which operands broadcast.
    pub fn broadcast_shape(&self, inputs: &[ValueId]) -> Result<Shape, Diagnostic> {
        let mut out: Shape = vec![];
        for &v in inputs {
            out = broadcast_shapes(&out, &self.ty(v).shape)?;
        }
        Ok(out)
    }
}

/// PyTorch's broadcasting of two shapes.
pub fn broadcast_shapes(a: &Shape, b: &Shape) -> Result<Shape, Diagnostic> {
    let rank = a.len().max(b.len());
    let size = |s: &Shape, d: usize| (d + s.len()).checked_sub(rank).map_or(Dim::from(1), |i| s[i].clone());
    (0..rank)
        .map(|d| match (size(a, d), size(b, d)) {
            (x, y) if x == y || y.is(1) => Ok(x),
            (x, y) if x.is(1) => Ok(y),
            (x, y) => Err(bad_argument(format!("sizes {x} and {y} of dimension {d} do not broadcast"))),
        })
        .collect()
}

/// Small integers compute in 32 bits and wrap when they are stored; a fused chain must wrap where PyTorch stores.
fn wrap_small_int(b: &mut BodyBuilder, dtype: DType, root: ExprId) -> ExprId {
    let plain_load = matches!(b.exprs.get(root), Expr::Load { .. } | Expr::Arg(..) | Expr::Lit(_));
    if dtype.is_float() || plain_load || b.ty(root) != dtype.ty() { root } else { b.round_to(dtype, root) }
}

/// Little-endian bytes of one element.
fn element_bytes(dtype: DType, v: f64) -> Vec<u8> {
    match dtype {
        DType::Bool => vec![u8::from(v != 0.0)],
        DType::U8 => vec![v as u8],
        DType::I8 => (v as i8).to_le_bytes().to_vec(),
        DType::I16 => (v as i16).to_le_bytes().to_vec(),
        DType::I32 => (v as i32).to_le_bytes().to_vec(),
        DType::I64 => (v as i64).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(v).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(v).to_le_bytes().to_vec(),
        DType::F32 => (v as f32).to_le_bytes().to_vec(),
        DType::F64 => v.to_le_bytes().to_vec(),
    }
}

/// The IR's element type, or a refusal that names the export's.
pub fn ir_dtype(t: crate::import::program::ScalarType) -> Result<DType, Diagnostic> {
    t.dtype().ok_or_else(|| unsupported_dtype(format!("element type {t} is not supported")))
}
