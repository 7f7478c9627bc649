//! Result types of operations: the rules that the verifier holds every node to, and from which the builder types new nodes.

use super::dim::Dim;
use super::op::{Op, Window};
use super::ty::{DType, Shape, TensorType};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::Expr;
use jvc_kernels::spec::{Cell, Combine};
use thiserror::Error;

/// Why an operation does not fit its operands.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InferError {
    /// Wrong number of operands.
    #[error("takes {expected} operands, {got} given")]
    Operands {
        /// Needed.
        expected: usize,
        /// Given.
        got: usize,
    },
    /// A leaf, or an op whose element type the caller chooses: it has no inferred type.
    #[error("the type of this op is given, not inferred")]
    Given,
    /// Sizes or dimensions do not fit.
    #[error("{0}")]
    Shape(String),
    /// Element types do not fit.
    #[error("{0}")]
    DType(String),
}

fn shape_err<T>(text: String) -> Result<T, InferError> {
    Err(InferError::Shape(text))
}

/// Types of the results of `op` over operands of the given types. Leaves, `Map` and `Compute` are typed by whoever builds them
/// (several element types share a register type, and a `Compute`'s iteration space is its own); [`check_body`] checks those.
pub fn infer(op: &Op, inputs: &[&TensorType]) -> Result<Vec<TensorType>, InferError> {
    check_operand_count(op, inputs.len())?;
    let one = |t: TensorType| Ok(vec![t]);
    match op {
        Op::Input { .. } | Op::Weight(_) | Op::State(_) | Op::Compute(_) | Op::Map(_) => Err(InferError::Given),
        Op::Const(lit) => one(lit.ty.clone()),
        Op::Reshape(shape) => {
            let new = TensorType::new(inputs[0].dtype, shape.clone());
            if new.n_elems() != inputs[0].n_elems() {
                return shape_err(format!("reshape of {} to {new} changes the number of elements", inputs[0]));
            }
            one(new)
        }
        Op::Permute(perm) => {
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if sorted != (0..inputs[0].rank()).collect::<Vec<_>>() {
                return shape_err(format!("{perm:?} is no permutation of {} dimensions", inputs[0].rank()));
            }
            one(TensorType::new(inputs[0].dtype, perm.iter().map(|&d| inputs[0].shape[d].clone()).collect()))
        }
        Op::Slice { dim, len, step, .. } => {
            check_dim(*dim, inputs[0])?;
            if *step < 1 {
                return shape_err(format!("slice step {step} is below 1"));
            }
            one(with_size(inputs[0], *dim, len.clone()))
        }
        Op::Pad { before, after, .. } => infer_pad(inputs[0], before, after),
        Op::Concat { dim } => infer_concat(inputs, *dim),
        Op::Broadcast(shape) => {
            check_broadcast(inputs[0], shape)?;
            one(TensorType::new(inputs[0].dtype, shape.clone()))
        }
        Op::Flip(dims) => {
            dims.iter().try_for_each(|&d| check_dim(d, inputs[0]))?;
            one(inputs[0].clone())
        }
        Op::Reduce { combine, dims, dtype } => infer_reduce(inputs[0], *combine, dims, *dtype),
        Op::Softmax { dim, .. } => {
            check_dim(*dim, inputs[0])?;
            one(inputs[0].clone())
        }
        Op::Norm { dims, .. } => {
            dims.iter().try_for_each(|&d| check_dim(d, inputs[0]))?;
            one(inputs[0].clone())
        }
        Op::Variance { dims, .. } => infer_reduce(inputs[0], Combine::Sum, dims, inputs[0].dtype),
        Op::Moments { each, .. } => infer_moments(inputs[0], each.is_some()),
        Op::Matmul => infer_matmul(inputs[0], inputs[1]),
        Op::Conv { window, groups } => infer_conv(inputs[0], inputs[1], window, *groups),
        Op::ConvTranspose { window, groups, output_padding } => {
            infer_conv_transpose(inputs[0], inputs[1], window, *groups, output_padding)
        }
        Op::Pool { kernel, out, indices, .. } => {
            let (x, n) = (inputs[0], kernel.len());
            if x.rank() != n + 2 || out.len() != n {
                return shape_err(format!("{n}-dimensional pooling of {x}"));
            }
            let shape: Shape = x.shape[..2].iter().chain(out).cloned().collect();
            let mut tys = vec![TensorType::new(x.dtype, shape.clone())];
            if *indices {
                tys.push(TensorType::new(DType::I64, shape));
            }
            Ok(tys)
        }
        Op::Attention { .. } => infer_attention(inputs),
        Op::AttentionParts { parts, len, .. } => infer_parts(inputs, *parts, *len),
        Op::Recurrent { cell, bias, .. } => infer_recurrent(inputs, *cell, *bias),
        Op::Scan { combine, dim, skip } => {
            check_dim(*dim, inputs[0])?;
            let mut shape = inputs[0].shape.clone();
            if *skip < 0 || shape[*dim].as_const().map_or(*skip != 0, |len| *skip > len) {
                return shape_err(format!("scan of {} but {skip} places", inputs[0]));
            }
            shape[*dim] = &shape[*dim] - &Dim::from(*skip);
            let mut tys = vec![TensorType::new(inputs[0].dtype, shape.clone())];
            if matches!(combine, Combine::Max | Combine::Min) {
                tys.push(TensorType::new(DType::I64, shape));
            }
            Ok(tys)
        }
        Op::Scatter { dims, .. } => {
            dims.iter().try_for_each(|&d| check_dim(d, inputs[0]))?;
            let src = inputs[inputs.len() - 1];
            if src.dtype != inputs[0].dtype || src.rank() != inputs[0].rank() {
                return shape_err(format!("scatter of {src} into {}", inputs[0]));
            }
            for index in &inputs[1..inputs.len() - 1] {
                if index.dtype != DType::I64 || index.shape != src.shape {
                    return shape_err(format!("scatter index {index} for source {src}"));
                }
            }
            one(inputs[0].clone())
        }
        Op::Sort { dim, keep, .. } => {
            check_dim(*dim, inputs[0])?;
            let mut shape = inputs[0].shape.clone();
            if let Some(keep) = keep {
                shape[*dim] = keep.clone();
            }
            Ok(vec![TensorType::new(inputs[0].dtype, shape.clone()), TensorType::new(DType::I64, shape)])
        }
        Op::Fft { .. } => {
            if inputs[0] != inputs[1] || inputs[0].rank() == 0 {
                return shape_err(format!("fft of {} and {}", inputs[0], inputs[1]));
            }
            Ok(vec![inputs[0].clone(), inputs[0].clone()])
        }
    }
}

/// Checks a `Map`'s or `Compute`'s declared type against its body and operands.
pub fn check_body(op: &Op, inputs: &[&TensorType], out: &TensorType) -> Result<(), InferError> {
    let (Op::Map(body) | Op::Compute(body)) = op else { return Ok(()) };
    let ty = body.exprs.ty(body.root);
    if ty != out.dtype.ty() {
        return Err(InferError::DType(format!("the body computes {ty}, the result is {}", out.dtype)));
    }
    if matches!(op, Op::Map(_)) {
        inputs.iter().try_for_each(|i| check_broadcast(i, &out.shape))?;
    }
    for id in body.exprs.reachable(&[body.root]) {
        check_leaf(op, body.exprs.get(id), inputs, out, body.syms.len())?;
    }
    Ok(())
}

fn check_leaf(op: &Op, e: &Expr, inputs: &[&TensorType], out: &TensorType, n_syms: usize) -> Result<(), InferError> {
    let bad = |what: String| Err(InferError::DType(what));
    match e {
        Expr::Arg(i, ty) => match inputs.get(*i as usize) {
            Some(t) if t.dtype.ty() == *ty && matches!(op, Op::Map(_)) => Ok(()),
            _ => bad(format!("argument {i} of type {ty} does not name an operand")),
        },
        Expr::Load { operand, dtype, index } => match inputs.get(*operand as usize) {
            Some(t) if t.dtype == *dtype && t.rank() == index.len() && matches!(op, Op::Compute(_)) => Ok(()),
            _ => bad(format!("load of operand {operand} as {dtype} with {} indices", index.len())),
        },
        Expr::Axis(k) if (*k as usize) >= out.rank() => bad(format!("axis {k} of a rank-{} value", out.rank())),
        Expr::Sym(w) if (*w as usize) >= n_syms => bad(format!("size {w} of {n_syms}")),
        _ => Ok(()),
    }
}

fn check_operand_count(op: &Op, got: usize) -> Result<(), InferError> {
    let expected = match op {
        Op::Input { .. } | Op::Weight(_) | Op::State(_) | Op::Const(_) => 0,
        Op::Map(_) | Op::Compute(_) => return Ok(()),
        Op::Concat { .. } => got.max(1),
        Op::Matmul | Op::Conv { .. } | Op::ConvTranspose { .. } | Op::Fft { .. } => 2,
        Op::Attention { masked, .. } | Op::AttentionParts { masked, .. } => 3 + usize::from(*masked),
        Op::Recurrent { cell, bias, .. } => 3 + usize::from(*bias) + usize::from(*cell == Cell::Lstm),
        Op::Scatter { dims, .. } => 2 + dims.len(),
        Op::Reshape(_)
        | Op::Permute(_)
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Broadcast(_)
        | Op::Flip(_)
        | Op::Reduce { .. }
        | Op::Softmax { .. }
        | Op::Norm { .. }
        | Op::Variance { .. }
        | Op::Moments { .. }
        | Op::Pool { .. }
        | Op::Scan { .. }
        | Op::Sort { .. } => 1,
    };
    if got == expected { Ok(()) } else { Err(InferError::Operands { expected, got }) }
}

fn check_dim(dim: usize, t: &TensorType) -> Result<(), InferError> {
    if dim < t.rank() { Ok(()) } else { shape_err(format!("dimension {dim} of {t}")) }
}

fn check_broadcast(t: &TensorType, shape: &[Dim]) -> Result<(), InferError> {
    let fits = t.rank() == shape.len() && t.shape.iter().zip(shape).all(|(a, b)| a == b || a.is(1));
    if fits {
        Ok(())
    } else {
        shape_err(format!("{t} does not broadcast to {}", TensorType::new(t.dtype, shape.to_vec())))
    }
}

fn with_size(t: &TensorType, dim: usize, size: Dim) -> TensorType {
    let mut out = t.clone();
    out.shape[dim] = size;
    out
}

fn infer_pad(x: &TensorType, before: &[i64], after: &[i64]) -> Result<Vec<TensorType>, InferError> {
    if before.len() != x.rank() || after.len() != x.rank() {
        return shape_err(format!("padding {before:?} {after:?} of {x}"));
    }
    let shape = x.shape.iter().zip(before.iter().zip(after)).map(|(d, (b, a))| d + &Dim::from(b + a)).collect();
    Ok(vec![TensorType::new(x.dtype, shape)])
}

fn infer_concat(inputs: &[&TensorType], dim: usize) -> Result<Vec<TensorType>, InferError> {
    let Some(first) = inputs.first() else { return shape_err("concat of nothing".into()) };
    check_dim(dim, first)?;
    let mut size = Dim::from(0);
    for t in inputs {
        if t.dtype != first.dtype
            || t.rank() != first.rank()
            || with_size(t, dim, Dim::from(0)) != with_size(first, dim, Dim::from(0))
        {
            return shape_err(format!("concat of {first} and {t} along {dim}"));
        }
        size = &size + &t.shape[dim];
    }
    Ok(vec![with_size(first, dim, size)])
}

fn infer_reduce(x: &TensorType, combine: Combine, dims: &[usize], dtype: DType) -> Result<Vec<TensorType>, InferError> {
    dims.iter().try_for_each(|&d| check_dim(d, x))?;
    let arg = matches!(combine, Combine::ArgMax | Combine::ArgMin);
    if arg && (dims.len() != 1 || dtype != DType::I64) {
        return shape_err(format!("{combine:?} reduces one dimension to i64, not {dims:?} to {dtype}"));
    }
    if matches!(combine, Combine::Any | Combine::All) && (x.dtype.ty() != Ty::Bool || dtype != DType::Bool) {
        return Err(InferError::DType(format!("{combine:?} of {} to {dtype}", x.dtype)));
    }
    let mut out = TensorType::new(dtype, x.shape.clone());
    for &d in dims {
        out.shape[d] = Dim::from(1);
    }
    Ok(vec![out])
}

fn infer_moments(x: &TensorType, of_triples: bool) -> Result<Vec<TensorType>, InferError> {
    let kept = x.rank().checked_sub(1 + usize::from(of_triples));
    let Some(kept) = kept.filter(|_| !of_triples || x.shape[x.rank() - 1].is(3)) else {
        return shape_err(format!("moments of {x}"));
    };
    let dtype = if x.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let shape = x.shape[..kept].iter().cloned().chain([Dim::from(3)]).collect();
    Ok(vec![TensorType::new(dtype, shape)])
}

fn broadcast_dim(a: &Dim, b: &Dim) -> Option<Dim> {
    if a == b || b.is(1) {
        Some(a.clone())
    } else if a.is(1) {
        Some(b.clone())
    } else {
        None
    }
}

fn infer_matmul(a: &TensorType, b: &TensorType) -> Result<Vec<TensorType>, InferError> {
    let n = a.rank();
    if n < 2 || b.rank() != n || a.dtype != b.dtype || a.shape[n - 1] != b.shape[n - 2] {
        return shape_err(format!("matmul of {a} and {b}"));
    }
    let batch: Option<Shape> = (0..n - 2).map(|d| broadcast_dim(&a.shape[d], &b.shape[d])).collect();
    let Some(mut shape) = batch else { return shape_err(format!("matmul of {a} and {b}")) };
    shape.push(a.shape[n - 2].clone());
    shape.push(b.shape[n - 1].clone());
    Ok(vec![TensorType::new(a.dtype, shape)])
}

fn check_window(window: &Window, spatial: usize) -> Result<(), InferError> {
    let lens = [window.stride.len(), window.padding.len(), window.dilation.len()];
    if lens.iter().any(|&l| l != spatial) || !(1..=3).contains(&spatial) {
        return shape_err(format!("window {window:?} for {spatial} spatial dimensions"));
    }
    if window.stride.iter().chain(&window.dilation).any(|&v| v < 1) {
        return shape_err(format!("stride and dilation below 1 in {window:?}"));
    }
    Ok(())
}

/// `⌊(size + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1`.
pub fn conv_out_size(size: &Dim, kernel: &Dim, stride: i64, padding: i64, dilation: i64) -> Dim {
    let reach = &(&(kernel - &Dim::from(1)) * &Dim::from(dilation)) + &Dim::from(1);
    let room = &(size + &Dim::from(2 * padding)) - &reach;
    &room.floor_div(&Dim::from(stride)) + &Dim::from(1)
}

fn infer_conv(x: &TensorType, w: &TensorType, window: &Window, groups: i64) -> Result<Vec<TensorType>, InferError> {
    let n = x.rank();
    if n < 3 || w.rank() != n || x.dtype != w.dtype {
        return shape_err(format!("convolution of {x} with {w}"));
    }
    check_window(window, n - 2)?;
    if groups < 1 || x.shape[1] != &w.shape[1] * &Dim::from(groups) {
        return shape_err(format!("convolution of {x} with {w} in {groups} groups"));
    }
    let mut shape = vec![x.shape[0].clone(), w.shape[0].clone()];
    for i in 0..n - 2 {
        let (s, p, d) = (window.stride[i], window.padding[i], window.dilation[i]);
        shape.push(conv_out_size(&x.shape[i + 2], &w.shape[i + 2], s, p, d));
    }
    Ok(vec![TensorType::new(x.dtype, shape)])
}

fn infer_conv_transpose(
    x: &TensorType,
    w: &TensorType,
    window: &Window,
    groups: i64,
    output_padding: &[i64],
) -> Result<Vec<TensorType>, InferError> {
    let n = x.rank();
    if n < 3 || w.rank() != n || x.dtype != w.dtype || x.shape[1] != w.shape[0] || output_padding.len() != n - 2 {
        return shape_err(format!("transposed convolution of {x} with {w}"));
    }
    check_window(window, n - 2)?;
    let mut shape = vec![x.shape[0].clone(), &w.shape[1] * &Dim::from(groups)];
    for (i, extra) in output_padding.iter().enumerate() {
        let (s, p, d) = (window.stride[i], window.padding[i], window.dilation[i]);
        let spread = &(&x.shape[i + 2] - &Dim::from(1)) * &Dim::from(s);
        let reach = &(&w.shape[i + 2] - &Dim::from(1)) * &Dim::from(d);
        shape.push(&(&spread + &reach) + &Dim::from(1 - 2 * p + extra));
    }
    Ok(vec![TensorType::new(x.dtype, shape)])
}

fn infer_attention(inputs: &[&TensorType]) -> Result<Vec<TensorType>, InferError> {
    let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
    let fits = q.rank() == 4
        && k.rank() == 4
        && v.rank() == 4
        && q.shape[..2] == k.shape[..2]
        && q.shape[..2] == v.shape[..2]
        && q.shape[3] == k.shape[3]
        && k.shape[2] == v.shape[2];
    if !fits {
        return shape_err(format!("attention of {q}, {k}, {v}"));
    }
    if let Some(mask) = inputs.get(3) {
        let scores = [q.shape[0].clone(), q.shape[1].clone(), q.shape[2].clone(), k.shape[2].clone()];
        check_broadcast(mask, &scores)?;
    }
    let shape = vec![q.shape[0].clone(), q.shape[1].clone(), q.shape[2].clone(), v.shape[3].clone()];
    Ok(vec![TensorType::new(q.dtype, shape)])
}

fn infer_parts(inputs: &[&TensorType], parts: i64, len: i64) -> Result<Vec<TensorType>, InferError> {
    let whole = infer_attention(inputs)?;
    let keys = &inputs[1].shape[2];
    if parts < 1 || len < 1 || keys.as_const().is_some_and(|keys| parts.saturating_mul(len) < keys) {
        return shape_err(format!("{parts} parts of {len} keys of {keys}"));
    }
    let [b, h, i, f] = <[Dim; 4]>::try_from(whole[0].shape.clone()).expect("attention gives four dimensions");
    Ok(vec![TensorType::new(DType::F32, vec![b, h, Dim::from(parts), i, &f + &Dim::from(1)])])
}

/// Gates of a cell: rows of its weight per hidden unit.
pub fn gates(cell: Cell) -> i64 {
    match cell {
        Cell::Lstm => 4,
        Cell::Gru => 3,
        Cell::RnnTanh | Cell::RnnRelu => 1,
    }
}

fn infer_recurrent(inputs: &[&TensorType], cell: Cell, bias: bool) -> Result<Vec<TensorType>, InferError> {
    let (x, w) = (inputs[0], inputs[1]);
    let h0 = inputs[2 + usize::from(bias)];
    let fits = x.rank() == 3
        && w.rank() == 2
        && h0.rank() == 2
        && w.shape[0] == &w.shape[1] * &Dim::from(gates(cell))
        && x.shape[2] == w.shape[0]
        && h0.shape == [x.shape[1].clone(), w.shape[1].clone()];
    let other = inputs.iter().find(|t| t.dtype != x.dtype).unwrap_or(&h0);
    if !fits || other.dtype != x.dtype {
        return shape_err(format!("recurrent layer over {x} with {w} and {other}"));
    }
    let state = h0.clone();
    let mut tys =
        vec![TensorType::new(x.dtype, vec![x.shape[0].clone(), x.shape[1].clone(), w.shape[1].clone()]), state.clone()];
    if cell == Cell::Lstm {
        tys.push(state);
    }
    Ok(tys)
}
