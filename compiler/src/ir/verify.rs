//! The verifier: what every later stage may rely on. A violation is a bug of ours; only right behind the ATen
//! rules may it be a program whose shapes contradict each other.
//!
//! 1. Every operand and every root (output, state or input update) is a value of the graph, and operands are defined by earlier nodes.
//! 2. Every value is listed as a result of exactly the node that it names as its definition; values are numbered in order of definition.
//! 3. Names of values are unique and not empty; user inputs name the `input` node of their position; no position has two nodes.
//! 4. Result types are those that [`super::infer`] gives; bodies fit their operands and their result.
//! 5. Literal sizes are not negative, and no tensor has more than 2^62 elements or bytes.
//! 6. Lists of dimensions are sorted and distinct; literal slices stay inside their operand; constants hold exactly their bytes.
//! 7. Softmax, norms, variance, attention, recurrent layers and fft take floats.
//! 8. Origins exist.
//! 9. A symbol that the data decide has bounds and one count, an i32 scalar; nothing up to the count's node names it.

use super::dim::Dim;
use super::graph::{Graph, Node, NodeId, UserInput, ValueId};
use super::infer::{InferError, check_body, infer};
use super::op::Op;
use super::print::{Style, print_with};
use super::ty::{DType, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The node, or none for the graph's roots and inputs.
    pub node: Option<NodeId>,
    /// What is wrong.
    pub message: String,
}

/// All violations of a graph, with its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations {
    /// In order of the nodes.
    pub list: Vec<Violation>,
    text: String,
}

impl std::error::Error for Violations {}

/// The graph with each error under its line.
impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Checks every invariant.
pub fn verify(graph: &Graph) -> Result<(), Violations> {
    let mut v = Verifier { graph, list: vec![], sized: vec![] };
    v.values();
    for (i, node) in graph.nodes.iter().enumerate() {
        v.node(NodeId(i as u32), node);
    }
    v.interface();
    if v.list.is_empty() {
        return Ok(());
    }
    let list = v.list;
    let notes = |node| list.iter().filter(|v| v.node == node).map(|v| format!("error: {}", v.message)).collect();
    let text = print_with(graph, Style { no_blobs: true, origins: false }, &notes);
    Err(Violations { list, text })
}

struct Verifier<'a> {
    graph: &'a Graph,
    list: Vec<Violation>,
    /// By value: its sizes are sizes.
    sized: Vec<bool>,
}

impl Verifier<'_> {
    fn bad(&mut self, node: Option<NodeId>, message: String) {
        self.list.push(Violation { node, message });
    }

    fn defined(&self, v: ValueId) -> bool {
        (v.0 as usize) < self.graph.values.len()
    }

    fn name(&self, v: ValueId) -> String {
        self.graph.values.get(v.0 as usize).map_or_else(|| v.to_string(), |x| format!("%{}", x.name))
    }

    fn values(&mut self) {
        let mut names = BTreeSet::new();
        for (i, value) in self.graph.values.iter().enumerate() {
            let id = ValueId(i as u32);
            let node = self.graph.nodes.get(value.def.0 as usize);
            if !node.is_some_and(|n| n.outputs.contains(&id)) {
                self.bad(None, format!("%{} is no result of its node {}", value.name, value.def));
            }
            if value.name.is_empty() {
                self.bad(Some(value.def), "a value without a name".to_string());
            }
            if !names.insert(&value.name) {
                self.bad(Some(value.def), format!("%{} is defined twice", value.name));
            }
            let size = check_size(&value.ty);
            self.sized.push(size.is_ok());
            if let Err(message) = size {
                self.bad(Some(value.def), message);
            }
        }
        let order: Vec<ValueId> = self.graph.nodes.iter().flat_map(|n| n.outputs.iter().copied()).collect();
        if order.iter().enumerate().any(|(i, v)| v.0 as usize != i) || order.len() != self.graph.values.len() {
            self.bad(None, "values are not numbered in order of definition".to_string());
        }
    }

    fn node(&mut self, id: NodeId, node: &Node) {
        let before = self.list.len();
        if node.origin as usize >= self.graph.origins.len() {
            self.bad(Some(id), format!("origin {} of {}", node.origin, self.graph.origins.len()));
        }
        for &v in &node.inputs {
            if !self.defined(v) {
                self.bad(Some(id), format!("operand {v} does not exist"));
            } else if self.graph.value(v).def >= id {
                self.bad(Some(id), format!("operand {} is defined later", self.name(v)));
            }
        }
        let results = node.outputs.iter().filter(|v| self.defined(**v)).count();
        if node.outputs.is_empty() || results < node.outputs.len() {
            self.bad(Some(id), "a result does not exist".to_string());
        }
        // Types of ill-formed nodes say nothing.
        if self.list.len() == before
            && let Err(message) = self.types(node)
        {
            self.bad(Some(id), message);
        }
    }

    fn types(&self, node: &Node) -> Result<(), String> {
        let inputs: Vec<&TensorType> = node.inputs.iter().map(|&v| self.graph.ty(v)).collect();
        let results: Vec<&TensorType> = node.outputs.iter().map(|&v| self.graph.ty(v)).collect();
        if node.inputs.iter().chain(&node.outputs).any(|v| !self.sized[v.0 as usize]) {
            return Ok(());
        }
        check_attributes(&node.op, &inputs)?;
        match infer(&node.op, &inputs) {
            Ok(want) => {
                if results.iter().copied().ne(want.iter()) {
                    return Err(format!("the result is {}, declared as {}", types_text(&want), types_text(&results)));
                }
            }
            Err(InferError::Given) => {
                if results.len() != 1 {
                    return Err(format!("has 1 result, {} are declared", results.len()));
                }
            }
            Err(error) => return Err(error.to_string()),
        }
        check_body(&node.op, &inputs, results[0]).map_err(|e| e.to_string())
    }

    fn interface(&mut self) {
        let g = self.graph;
        let mut positions: BTreeMap<u32, NodeId> = BTreeMap::new();
        for (i, node) in g.nodes.iter().enumerate() {
            let Op::Input { index } = node.op else { continue };
            if positions.insert(index, NodeId(i as u32)).is_some() {
                self.bad(Some(NodeId(i as u32)), format!("input {index} has two nodes"));
            }
        }
        for (i, (name, input)) in g.inputs.iter().enumerate() {
            let UserInput::Tensor(v) = input else { continue };
            let node = positions.get(&(i as u32)).map(|n| g.node(*n));
            if node.is_none_or(|n| n.outputs.first() != Some(v)) {
                self.bad(None, format!("user input {i} {name:?} is not its input node"));
            }
        }
        for v in g.roots().into_iter().filter(|v| !self.defined(*v)).collect::<Vec<_>>() {
            self.bad(None, format!("root {v} does not exist"));
        }
        self.bindings();
    }

    fn bindings(&mut self) {
        let mut seen = BTreeSet::new();
        for b in &self.graph.bindings {
            let symbol = &b.symbol;
            if !self.graph.ranges.contains_key(symbol) || !seen.insert(symbol) {
                self.bad(None, format!("bound symbol {symbol} has no range, or two counts"));
            }
            if !self.defined(b.count) {
                continue;
            }
            let ty = self.graph.ty(b.count);
            if ty.dtype != DType::I32 || ty.rank() != 0 {
                self.bad(None, format!("the count of {symbol} is {ty}, not an i32 scalar"));
            }
            let last = self.graph.value(b.count).def;
            let early = (0..=last.0).map(NodeId).find(|&n| names_symbol(self.graph, n, symbol));
            if let Some(n) = early {
                self.bad(Some(n), format!("{symbol} has no value yet"));
            }
        }
    }
}

/// True if a node's results or attributes have a size with this symbol.
fn names_symbol(graph: &Graph, n: NodeId, symbol: &str) -> bool {
    let node = graph.node(n);
    let mut op = node.op.clone();
    let mut sizes = node.outputs.iter().flat_map(|&v| &graph.ty(v).shape);
    let has = |d: &Dim| d.symbols().iter().any(|s| s == symbol);
    sizes.any(&has) || op.dims_mut().into_iter().any(|d| has(d))
}

fn types_text<T: std::borrow::Borrow<TensorType>>(types: &[T]) -> String {
    types.iter().map(|t| t.borrow().to_string()).collect::<Vec<_>>().join(", ")
}

/// Bound of a size's magnitude whatever the values of its atoms may be multiplied by: the sum of its coefficients.
fn magnitude(d: &Dim) -> f64 {
    d.terms().map(|(_, c)| (c as f64).abs()).sum()
}

fn check_size(ty: &TensorType) -> Result<(), String> {
    if let Some(d) = ty.shape.iter().find(|d| d.as_const().is_some_and(|v| v < 0)) {
        return Err(format!("size {d} is negative"));
    }
    let bytes: f64 = ty.shape.iter().map(|d| magnitude(d).max(1.0)).product::<f64>() * f64::from(ty.dtype.size_bytes());
    if bytes > 2f64.powi(62) { Err(format!("{ty} is too large")) } else { Ok(()) }
}

fn check_attributes(op: &Op, inputs: &[&TensorType]) -> Result<(), String> {
    match op {
        Op::Reduce { dims, .. } | Op::Flip(dims) => check_sorted(dims),
        Op::Norm { dims, .. } | Op::Variance { dims, .. } => check_sorted(dims).and_then(|()| check_float(op, inputs)),
        Op::Scatter { dims, .. } => {
            let distinct: BTreeSet<&usize> = dims.iter().collect();
            if distinct.len() == dims.len() { Ok(()) } else { Err(format!("dimensions {dims:?} repeat")) }
        }
        Op::Softmax { .. }
        | Op::Moments { .. }
        | Op::Attention { .. }
        | Op::AttentionParts { .. }
        | Op::Recurrent { .. }
        | Op::Fft { .. } => check_float(op, inputs),
        Op::Slice { dim, start, len, step } => check_slice(inputs, *dim, [start, len], *step),
        Op::Const(lit) => {
            let n = lit.ty.const_shape().map(|s| s.iter().product::<i64>() * i64::from(lit.ty.dtype.size_bytes()));
            if n == Some(lit.bytes.len() as i64) {
                Ok(())
            } else {
                Err(format!("{} bytes for a constant {}", lit.bytes.len(), lit.ty))
            }
        }
        Op::Input { .. }
        | Op::Weight(_)
        | Op::State(_)
        | Op::Map(_)
        | Op::Compute(_)
        | Op::Reshape(_)
        | Op::Permute(_)
        | Op::Pad { .. }
        | Op::Concat { .. }
        | Op::Broadcast(_)
        | Op::Matmul
        | Op::Conv { .. }
        | Op::ConvTranspose { .. }
        | Op::Pool { .. }
        | Op::Scan { .. }
        | Op::Sort { .. } => Ok(()),
    }
}

fn check_sorted(dims: &[usize]) -> Result<(), String> {
    if dims.windows(2).all(|w| w[0] < w[1]) { Ok(()) } else { Err(format!("dimensions {dims:?} are not sorted")) }
}

fn check_float(op: &Op, inputs: &[&TensorType]) -> Result<(), String> {
    // The mask of an attention may be bool.
    let n = if matches!(op, Op::Attention { .. } | Op::AttentionParts { .. }) { 3 } else { inputs.len() };
    match inputs.iter().take(n).find(|t| !t.dtype.is_float()) {
        Some(t) => Err(format!("takes floats, not {}", t.dtype)),
        None => Ok(()),
    }
}

fn check_slice(inputs: &[&TensorType], dim: usize, [start, len]: [&Dim; 2], step: i64) -> Result<(), String> {
    let Some(size) = inputs.first().and_then(|t| t.shape.get(dim)).and_then(Dim::as_const) else { return Ok(()) };
    let (Some(start), Some(len)) = (start.as_const(), len.as_const()) else { return Ok(()) };
    let last = (len - 1).checked_mul(step).and_then(|v| v.checked_add(start));
    if start >= 0 && len >= 0 && (len == 0 || last.is_some_and(|l| l < size)) {
        return Ok(());
    }
    Err(format!("slice of {len} from {start} by {step} leaves a dimension of {size}"))
}
