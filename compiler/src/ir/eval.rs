//! The interpreter: gives every operation its meaning, in plain loops over host memory.
//!
//! It is the oracle of tests and the constant folder. It shares no code with the kernels, and neither `run`, `verify` nor a generated
//! crate can reach it.
//!
//! Precision. [`Precision::Working`]: expressions compute in their register type (f32 results are rounded after every operation), and every
//! value is rounded to its element type when it is complete; sums inside one anchor (reductions, products, softmax, norms) accumulate in
//! f64 and round once, so a kernel may be less accurate than this, never more by design. [`Precision::Exact`]: no float is ever rounded
//! below f64, whatever its element type; integers behave as in `Working`.

mod attention;
mod conv;
mod expr;
mod fft;
mod matmul;
mod movement;
mod pool;
mod recurrent;
mod reduce;
mod rows;
mod scan;
mod scatter;
mod sort;
mod special;
mod tensor;

pub use tensor::{Data, Tensor};

use super::dim::Dim;
use super::graph::{Graph, Node, UserInput, UserOutput, ValueId};
use super::op::{Literal, Op, WeightRef};
use super::ty::{DType, TensorType};
use std::collections::BTreeMap;
use std::sync::Arc;
use tensor::{describe, round_tensor};
use thiserror::Error;

/// How floats are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// As the program's element types say.
    Working,
    /// Everything in f64.
    Exact,
}

/// Values of the symbols.
pub type Symbols = BTreeMap<String, i64>;

/// Looks a checkpoint tensor (weight or initial state) up by name.
pub type Weights<'a> = dyn Fn(&str) -> Option<Tensor> + 'a;

/// Why a graph cannot be evaluated on the given tensors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EvalError {
    /// The checkpoint lacks a tensor.
    #[error("weight {name} has no data")]
    MissingWeight {
        /// Name in the checkpoint.
        name: String,
    },
    /// Fewer inputs than the graph reads.
    #[error("input {index} is not given")]
    MissingInput {
        /// Position among the user inputs.
        index: u32,
    },
    /// A tensor does not have the declared type.
    #[error("{what} is {got}, declared as {expected}")]
    Type {
        /// The input, weight or value.
        what: String,
        /// Type given or computed.
        got: String,
        /// Type declared.
        expected: String,
    },
    /// A size cannot be computed.
    #[error("size {dim} of {what} has no value: a symbol is unbound, or it is negative")]
    Size {
        /// The input, weight or value.
        what: String,
        /// The size.
        dim: String,
    },
    /// The data give a symbol a value that it cannot have.
    #[error("the data make {symbol} {value}, which is not in {min}..={max}")]
    Bound {
        /// The symbol.
        symbol: String,
        /// Its value.
        value: i64,
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
    },
    /// A `Load` left its operand.
    #[error("{what} loads operand {operand} of shape {shape:?} at {index:?}")]
    OutOfRange {
        /// The value computed.
        what: String,
        /// Position of the operand.
        operand: u16,
        /// Its shape.
        shape: Vec<usize>,
        /// The coordinate.
        index: Vec<i64>,
    },
}

/// A user output's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// A tensor.
    Tensor(Tensor),
    /// An integer computed from symbols.
    Int(i64),
    /// A Python constant, as text.
    Constant(String),
}

/// What one run of a graph gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Outputs {
    /// User outputs, in order.
    pub outputs: Vec<Output>,
    /// New states: (checkpoint name, value).
    pub state_updates: Vec<(String, Tensor)>,
    /// Mutated inputs: (input position, value).
    pub input_updates: Vec<(u32, Tensor)>,
}

impl Outputs {
    /// The output tensors in order, others left out.
    pub fn tensors(&self) -> Vec<&Tensor> {
        self.outputs.iter().filter_map(Output::tensor).collect()
    }
}

/// Evaluates a graph in working precision.
///
/// `inputs[i]` is user input i (an integer input is an i64 scalar that binds its symbol). Symbols that stand alone as a size of an input are
/// bound from the tensor given; `symbols` adds to and overrides these. States start from `weights` too.
pub fn eval(graph: &Graph, weights: &Weights<'_>, inputs: &[Tensor], symbols: &Symbols) -> Result<Outputs, EvalError> {
    eval_with(graph, weights, inputs, symbols, Precision::Working)
}

/// As [`eval`], in the given precision.
pub fn eval_with(
    graph: &Graph,
    weights: &Weights<'_>,
    inputs: &[Tensor],
    symbols: &Symbols,
    precision: Precision,
) -> Result<Outputs, EvalError> {
    let mut bound = bind_symbols(graph, inputs);
    bound.extend(symbols.iter().map(|(k, v)| (k.clone(), *v)));
    let mut uses = graph.use_counts();
    let mut values: Vec<Option<Arc<Tensor>>> = vec![None; graph.values.len()];
    for node in &graph.nodes {
        if node.outputs.iter().all(|v| uses[v.0 as usize] == 0) {
            continue;
        }
        let args: Vec<Arc<Tensor>> =
            node.inputs.iter().map(|v| values[v.0 as usize].clone().expect("operands come first")).collect();
        let results = run_node(graph, node, &args, weights, inputs, &Cx { symbols: &bound, precision })?;
        for (&v, t) in node.outputs.iter().zip(results) {
            bind_counts(graph, v, &t, &mut bound)?;
            values[v.0 as usize] = Some(Arc::new(t));
        }
        for v in &node.inputs {
            uses[v.0 as usize] -= 1;
            if uses[v.0 as usize] == 0 {
                values[v.0 as usize] = None;
            }
        }
    }
    collect(graph, &values, &Cx { symbols: &bound, precision })
}

/// Gives the symbols that a value is the count of their value.
fn bind_counts(graph: &Graph, v: ValueId, t: &Tensor, symbols: &mut Symbols) -> Result<(), EvalError> {
    for b in graph.bindings.iter().filter(|b| b.count == v) {
        let (value, range) = (t.first_int().unwrap_or(-1), graph.ranges[&b.symbol]);
        if !(range.min..=range.max).contains(&value) {
            let (min, max) = (range.min, range.max);
            return Err(EvalError::Bound { symbol: b.symbol.clone(), value, min, max });
        }
        symbols.insert(b.symbol.clone(), value);
    }
    Ok(())
}

/// Evaluates one operation other than `Input`, `Weight` and `State` on given operands: what constant folding needs.
/// `types` are the declared types of the results.
pub fn eval_op(
    op: &Op,
    args: &[&Tensor],
    types: &[TensorType],
    symbols: &Symbols,
    precision: Precision,
) -> Result<Vec<Tensor>, EvalError> {
    let cx = Cx { symbols, precision };
    let outs = types.iter().map(|t| cx.shape("result", t)).collect::<Result<Vec<_>, _>>()?;
    let outs: Vec<(DType, Vec<usize>)> = types.iter().map(|t| t.dtype).zip(outs).collect();
    dispatch("result", op, args, &outs, &cx)
}

/// What evaluation depends on beside the operands.
pub(super) struct Cx<'a> {
    symbols: &'a Symbols,
    precision: Precision,
}

impl Cx<'_> {
    fn size(&self, what: &str, dim: &Dim) -> Result<usize, EvalError> {
        let v = dim.eval(self.symbols).and_then(|v| usize::try_from(v).ok());
        v.ok_or_else(|| EvalError::Size { what: what.to_string(), dim: dim.to_string() })
    }

    fn shape(&self, what: &str, ty: &TensorType) -> Result<Vec<usize>, EvalError> {
        ty.shape.iter().map(|d| self.size(what, d)).collect()
    }
}

/// Symbols that the inputs give: integer inputs, and sizes that are a symbol alone or a linear formula of one (`4·s18`).
pub fn bind_symbols(graph: &Graph, inputs: &[Tensor]) -> Symbols {
    let mut bound = Symbols::new();
    for ((_, input), tensor) in graph.inputs.iter().zip(inputs) {
        if let (UserInput::Symbol(s), Data::Int(v)) = (input, &tensor.data)
            && let Some(&v) = v.first()
        {
            bound.insert(s.clone(), v);
        }
    }
    for node in &graph.nodes {
        let Op::Input { index } = node.op else { continue };
        let Some(tensor) = inputs.get(index as usize) else { continue };
        for (dim, &size) in graph.ty(node.outputs[0]).shape.iter().zip(&tensor.shape) {
            if let [name] = dim.symbols().as_slice()
                && let Some(value) = solve(dim, name, size as i64)
            {
                bound.entry(name.clone()).or_insert(value);
            }
        }
    }
    bound
}

/// The value of the only symbol of a linear formula for which it gives `size`.
fn solve(dim: &Dim, name: &str, size: i64) -> Option<i64> {
    let at = |v: i64| dim.eval(&[(name.to_string(), v)].into());
    let (zero, one) = (at(0)?, at(1)?);
    let value = size.checked_sub(zero)?.checked_div(one - zero)?;
    (at(value) == Some(size)).then_some(value)
}

fn run_node(
    graph: &Graph,
    node: &Node,
    args: &[Arc<Tensor>],
    weights: &Weights<'_>,
    inputs: &[Tensor],
    cx: &Cx<'_>,
) -> Result<Vec<Tensor>, EvalError> {
    let name = &graph.value(node.outputs[0]).name;
    let types: Vec<&TensorType> = node.outputs.iter().map(|&v| graph.ty(v)).collect();
    let results = match &node.op {
        Op::Input { index } => {
            vec![inputs.get(*index as usize).cloned().ok_or(EvalError::MissingInput { index: *index })?]
        }
        Op::Weight(w) | Op::State(w) => {
            vec![stored(w, types[0].dtype, weights, cx.precision)?]
        }
        op => {
            let shapes = types.iter().map(|t| cx.shape(name, t)).collect::<Result<Vec<_>, _>>()?;
            let outs: Vec<(DType, Vec<usize>)> = types.iter().map(|t| t.dtype).zip(shapes).collect();
            let args: Vec<&Tensor> = args.iter().map(Arc::as_ref).collect();
            dispatch(name, op, &args, &outs, cx)?
        }
    };
    for (t, ty) in results.iter().zip(types) {
        check_type(name, t, ty, cx)?;
    }
    Ok(results)
}

/// A weight as the graph has it: tensors of the checkpoint joined along the first dimension, rounded where a half type is declared.
pub(crate) fn stored(
    w: &WeightRef,
    dtype: DType,
    weights: &Weights<'_>,
    precision: Precision,
) -> Result<Tensor, EvalError> {
    let tensor = |name: &str| weights(name).ok_or_else(|| EvalError::MissingWeight { name: name.to_string() });
    let mut t = tensor(&w.name)?;
    for name in &w.more {
        let next = tensor(name)?;
        t.shape[0] += next.shape[0];
        match (&mut t.data, next.data) {
            (Data::Float(all), Data::Float(part)) => all.extend(part),
            (Data::Int(all), Data::Int(part)) => all.extend(part),
            _ => return Err(EvalError::MissingWeight { name: name.clone() }),
        }
    }
    if matches!(dtype, DType::F16 | DType::BF16) && t.dtype == DType::F32 {
        t.dtype = dtype;
        round_tensor(&mut t, precision);
    }
    Ok(t)
}

fn check_type(name: &str, t: &Tensor, ty: &TensorType, cx: &Cx<'_>) -> Result<(), EvalError> {
    if t.dtype == ty.dtype && t.shape == cx.shape(name, ty)? && t.data.len() == t.shape.iter().product::<usize>() {
        return Ok(());
    }
    let got = describe(t.dtype, &t.shape);
    Err(EvalError::Type { what: name.to_string(), got, expected: ty.to_string() })
}

fn collect(graph: &Graph, values: &[Option<Arc<Tensor>>], cx: &Cx<'_>) -> Result<Outputs, EvalError> {
    let get = |v: ValueId| values[v.0 as usize].as_deref().cloned().expect("roots are computed");
    let output = |(name, o): &(String, UserOutput)| {
        Ok(match o {
            UserOutput::Tensor(v) => Output::Tensor(get(*v)),
            UserOutput::Int(d) => Output::Int(
                d.eval(cx.symbols).ok_or_else(|| EvalError::Size { what: name.clone(), dim: d.to_string() })?,
            ),
            UserOutput::Constant(text) => Output::Constant(text.clone()),
        })
    };
    Ok(Outputs {
        outputs: graph.outputs.iter().map(output).collect::<Result<_, _>>()?,
        state_updates: graph.state_updates.iter().map(|(n, v)| (n.clone(), get(*v))).collect(),
        input_updates: graph.input_updates.iter().map(|(i, v)| (*i, get(*v))).collect(),
    })
}

/// One line an operation; results are rounded to their element types here, once.
fn dispatch(
    what: &str,
    op: &Op,
    args: &[&Tensor],
    outs: &[(DType, Vec<usize>)],
    cx: &Cx<'_>,
) -> Result<Vec<Tensor>, EvalError> {
    let shape = &outs[0].1;
    let datas = match op {
        Op::Input { .. } | Op::Weight(_) | Op::State(_) => unreachable!("leaves are read by the caller"),
        Op::Const(lit) => vec![literal(lit).data],
        Op::Map(body) => vec![expr::map(what, body, args, shape, cx)?],
        Op::Compute(body) => vec![expr::compute(what, body, args, shape, cx)?],
        Op::Reshape(_) => vec![args[0].data.clone()],
        Op::Permute(perm) => vec![movement::permute(args[0], perm)],
        Op::Slice { dim, start, step, .. } => {
            let first = cx.size(what, start)?;
            vec![movement::slice(what, args[0], *dim, (first, *step as usize), shape)?]
        }
        Op::Pad { before, value, .. } => vec![movement::pad(args[0], before, *value, shape)],
        Op::Concat { dim } => vec![movement::concat(args, *dim)],
        Op::Broadcast(_) => vec![movement::broadcast(args[0], shape)],
        Op::Flip(dims) => vec![movement::flip(args[0], dims)],
        Op::Reduce { combine, dims, dtype } => vec![reduce::reduce(args[0], *combine, dims, *dtype)],
        Op::Softmax { dim, log } => vec![rows::softmax(args[0], *dim, *log)],
        Op::Norm { dims, eps, rms } => vec![rows::norm(args[0], dims, *eps, *rms)],
        Op::Variance { dims, correction } => vec![rows::variance(args[0], dims, *correction)],
        Op::Moments { each, eps } => vec![rows::moments(args[0], *each, *eps)],
        Op::Matmul => vec![matmul::matmul(args[0], args[1], shape)],
        Op::Conv { window, groups } => vec![conv::conv(args[0], args[1], window, *groups as usize, shape)],
        Op::ConvTranspose { window, groups, .. } => {
            vec![conv::conv_transpose(args[0], args[1], window, *groups as usize, shape)]
        }
        Op::Pool { .. } => pool::pool(op, args[0], shape),
        Op::Attention { scale, causal, zero_masked_rows, .. } => {
            vec![attention::attention(args, *scale, *causal, *zero_masked_rows)]
        }
        Op::AttentionParts { scale, parts, len, .. } => {
            vec![attention::attention_parts(args, *scale, *parts as usize, *len as usize)]
        }
        Op::Recurrent { cell, reverse, bias } => recurrent::recurrent(args, *cell, *reverse, *bias),
        Op::Scan { combine, dim, skip } => scan::scan(args[0], *combine, *dim, *skip as usize),
        Op::Scatter { dims, mode } => vec![scatter::scatter(args, dims, *mode)],
        Op::Sort { dim, descending, .. } => sort::sort(args[0], *dim, *descending, shape[*dim]),
        Op::Fft { inverse } => fft::fft(args[0], args[1], *inverse),
    };
    let tensors = datas.into_iter().zip(outs).map(|(data, (dtype, shape))| {
        let mut t = Tensor { dtype: *dtype, shape: shape.clone(), data };
        round_tensor(&mut t, cx.precision);
        t
    });
    Ok(tensors.collect())
}

/// The tensor of a constant.
pub fn literal(lit: &Literal) -> Tensor {
    let shape = lit.ty.const_shape().expect("constants have literal sizes");
    Tensor::from_bytes(lit.ty.dtype, shape.iter().map(|&d| d as usize).collect(), &lit.bytes)
        .expect("a literal holds n_elems elements")
}

impl Output {
    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Output::Tensor(t) => Some(t),
            Output::Int(_) | Output::Constant(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::op::Body;
    use crate::ir::{Builder, Graph};
    use jvc_kernels::dtype::Ty;
    use jvc_kernels::expr::{Binary, Exprs};
    use jvc_kernels::spec::Combine;

    /// `out = sum_rows(x[s,2] + w[1,2])`, and the sum is a new state.
    fn graph() -> Graph {
        let mut b = Builder::new("g");
        let ty = TensorType::new(DType::F32, vec![Dim::symbol("s"), Dim::from(2)]);
        let x = b.push(Op::Input { index: 0 }, vec![], vec![ty.clone()])[0];
        let w = b.push(Op::Weight(WeightRef::new("w")), vec![], vec![TensorType::fixed(DType::F32, &[1, 2])])[0];
        let mut e = Exprs::new();
        let (p, q) = (e.arg(0, Ty::F32), e.arg(1, Ty::F32));
        let root = e.bin(Binary::Add, p, q);
        let sum = b.map(Body { exprs: e, root, syms: vec![] }, vec![x, w], ty).expect("broadcasts");
        let total = Op::Reduce { combine: Combine::Sum, dims: vec![0], dtype: DType::F32 };
        let out = b.add1(total, vec![sum]).expect("reduces");
        b.graph.inputs.push(("x".into(), UserInput::Tensor(x)));
        b.graph.outputs.push(("y".into(), UserOutput::Tensor(out)));
        b.graph.outputs.push(("n".into(), UserOutput::Int(&Dim::symbol("s") * &Dim::from(2))));
        b.graph.state_updates.push(("acc".into(), out));
        b.graph
    }

    fn weight(name: &str) -> Option<Tensor> {
        (name == "w").then(|| Tensor::from_f64(DType::F32, &[1, 2], vec![10.0, 20.0]))
    }

    #[test]
    fn sizes_bind_symbols_and_broadcast_weights_add() {
        let x = Tensor::from_f64(DType::F32, &[3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let got = eval(&graph(), &weight, &[x], &Symbols::new()).expect("evaluates");
        let want = Tensor::from_f64(DType::F32, &[1, 2], vec![39.0, 72.0]);
        assert_eq!(got.outputs, vec![Output::Tensor(want.clone()), Output::Int(6)]);
        assert_eq!(got.state_updates, vec![("acc".to_string(), want)]);
    }

    #[test]
    fn missing_or_misshapen_data_are_typed_errors() {
        let x = Tensor::from_f64(DType::F32, &[1, 3], vec![0.0; 3]);
        let err = eval(&graph(), &weight, &[x], &Symbols::new()).expect_err("3 columns");
        assert_eq!(err.to_string(), "v is f32[1,3], declared as f32[s,2]");
        let err = eval(&graph(), &weight, &[], &Symbols::new()).expect_err("no input");
        assert_eq!(err, EvalError::MissingInput { index: 0 });
        let x = Tensor::from_f64(DType::F32, &[1, 2], vec![0.0; 2]);
        let err = eval(&graph(), &|_| None, &[x], &Symbols::new()).expect_err("no weight");
        assert_eq!(err, EvalError::MissingWeight { name: "w".into() });
    }
}
