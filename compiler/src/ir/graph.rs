//! The graph: nodes in topological order, values with static types, names that survive passes.

use super::dim::{Dim, Ranges};
use super::op::Op;
use super::ty::TensorType;
use std::collections::BTreeMap;
use std::fmt;

/// A value, `%name` in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Where a node came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// Node of the export (`conv2d_3`).
    pub node: String,
    /// ATen target (`aten.conv2d.default`).
    pub target: String,
    /// Module path (`image_encoder.blocks.0.attn`).
    pub module: String,
    /// Python file and line.
    pub line: String,
}

/// One operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// Operands.
    pub inputs: Vec<ValueId>,
    /// Results, in the op's order.
    pub outputs: Vec<ValueId>,
    /// Index in [`Graph::origins`].
    pub origin: u32,
}

/// A typed value with one definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Unique name; that of the export's node where there is one.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Node that defines it.
    pub def: NodeId,
}

/// A user input: a tensor, or a Python integer that is a symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserInput {
    /// A tensor: the value of its `Op::Input` node.
    Tensor(ValueId),
    /// An integer: the symbol it binds.
    Symbol(String),
    /// A value that the export specialised away; accepted and ignored.
    Unused,
}

/// A user output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserOutput {
    /// A tensor.
    Tensor(ValueId),
    /// An integer computed from symbols.
    Int(Dim),
    /// `None` or another Python constant, as text.
    Constant(String),
}

/// A symbol whose value the data decide (`u0`). Memory is planned at its upper bound, like that of every symbol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// The symbol. Everything that names it comes after the count's node.
    pub symbol: String,
    /// An i32 scalar; a value out of the symbol's range is an error of the run.
    pub count: ValueId,
}

/// A value that equals what a node of the export gives, up to rounding and the element type: where references are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tap {
    /// The tensor's name in the export.
    pub name: String,
    /// Which numbers of it.
    pub part: TapPart,
    /// The value.
    pub value: ValueId,
}

/// What a value has of a tensor of the export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TapPart {
    /// All of a real tensor.
    Whole,
    /// Real parts of a complex one.
    Re,
    /// Imaginary parts of a complex one.
    Im,
}

/// A program in SSA form.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Graph {
    /// Name of the entry point.
    pub name: String,
    /// Nodes in topological order.
    pub nodes: Vec<Node>,
    /// Values.
    pub values: Vec<Value>,
    /// Origins; 0 is the empty one.
    pub origins: Vec<Origin>,
    /// User inputs in the caller's order, with names.
    pub inputs: Vec<(String, UserInput)>,
    /// User outputs in the caller's order, with names.
    pub outputs: Vec<(String, UserOutput)>,
    /// Symbols whose value the data decide, in the order of their counts.
    pub bindings: Vec<Binding>,
    /// New values of states, written at the end of a run: (checkpoint name, value).
    pub state_updates: Vec<(String, ValueId)>,
    /// User inputs that the program mutates: (input position, new value). The runtime writes them back in the caller's buffer.
    pub input_updates: Vec<(u32, ValueId)>,
    /// Bounds of the symbols.
    pub ranges: Ranges,
    /// Values that equal nodes of the export. They keep nothing alive, and change nothing; not part of the text form.
    pub taps: Vec<Tap>,
    /// What the graph does in a slow way, for want of a better one: node of the export, reason.
    pub slow: Vec<(String, String)>,
}

impl Graph {
    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// Type of a value.
    pub fn ty(&self, id: ValueId) -> &TensorType {
        &self.values[id.0 as usize].ty
    }

    /// The node that defines a value.
    pub fn def(&self, id: ValueId) -> &Node {
        self.node(self.value(id).def)
    }

    /// Values that must be computed: outputs, counts, state and input updates.
    pub fn roots(&self) -> Vec<ValueId> {
        let outputs = self.outputs.iter().filter_map(|(_, o)| match o {
            UserOutput::Tensor(v) => Some(*v),
            UserOutput::Int(_) | UserOutput::Constant(_) => None,
        });
        outputs
            .chain(self.bindings.iter().map(|b| b.count))
            .chain(self.state_updates.iter().map(|(_, v)| *v))
            .chain(self.input_updates.iter().map(|(_, v)| *v))
            .collect()
    }

    /// Replaces symbols by sizes everywhere; they are no longer symbols of the graph.
    pub fn substitute(&mut self, with: &BTreeMap<String, Dim>) {
        if with.is_empty() {
            return;
        }
        for value in &mut self.values {
            value.ty.shape.iter_mut().for_each(|d| *d = d.substitute(with));
        }
        for node in &mut self.nodes {
            node.op.dims_mut().into_iter().for_each(|d| *d = d.substitute(with));
        }
        for (_, output) in &mut self.outputs {
            if let UserOutput::Int(d) = output {
                *d = d.substitute(with);
            }
        }
        for (_, input) in &mut self.inputs {
            if matches!(input, UserInput::Symbol(s) if with.contains_key(s)) {
                *input = UserInput::Unused;
            }
        }
        self.bindings.retain(|b| !with.contains_key(&b.symbol));
        self.ranges.retain(|name, _| !with.contains_key(name));
    }

    /// How many node operands (and roots) use each value.
    pub fn use_counts(&self) -> Vec<u32> {
        let mut n = vec![0; self.values.len()];
        for v in self.nodes.iter().flat_map(|node| &node.inputs).chain(&self.roots()) {
            n[v.0 as usize] += 1;
        }
        n
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}
