//! The source program: what the archive says, with ATen targets and argument names as strings, sizes as [`Dim`]s, and weights as
//! strided views of mapped bytes. Everything that the reader can represent is represented; judging is the next stage's job.

use super::weights::WeightStore;
use crate::ir::{DType, Dim, Ranges};
use std::collections::BTreeMap;
use std::fmt;

/// PyTorch's element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are PyTorch's")]
pub enum ScalarType {
    U8,
    I8,
    I16,
    I32,
    I64,
    F16,
    F32,
    F64,
    C32,
    C64,
    C128,
    Bool,
    BF16,
    U16,
    F8E4M3Fn,
    F8E5M2,
    F8E4M3Fnuz,
    F8E5M2Fnuz,
}

/// Type and layout of a tensor as eager PyTorch produced it. Strides and offset are in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorMeta {
    /// Element type.
    pub dtype: ScalarType,
    /// Sizes.
    pub sizes: Vec<Dim>,
    /// Strides of the eager run; views show as such.
    pub strides: Vec<Dim>,
    /// Position of the first element in its storage.
    pub storage_offset: Dim,
}

/// A symbolic scalar argument: a literal or the name of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum SymArg<T> {
    /// A literal.
    Value(T),
    /// Name of a symbolic value of the graph.
    Name(String),
}

/// An argument (or output) of a node: one arm per kind of the schema.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names are the schema's")]
pub enum Arg {
    None,
    Tensor(String),
    Tensors(Vec<String>),
    /// `None` entries are gaps.
    OptionalTensors(Vec<Option<String>>),
    NestedTensors(Vec<Vec<String>>),
    Int(i64),
    Ints(Vec<i64>),
    IntLists(Vec<Vec<i64>>),
    Float(f64),
    Floats(Vec<f64>),
    Bool(bool),
    Bools(Vec<bool>),
    Complex(f64, f64),
    Str(String),
    Strs(Vec<String>),
    SymInt(SymArg<i64>),
    SymInts(Vec<SymArg<i64>>),
    SymFloat(SymArg<f64>),
    SymFloats(Vec<SymArg<f64>>),
    SymBool(SymArg<bool>),
    SymBools(Vec<SymArg<bool>>),
    ScalarType(ScalarType),
    MemoryFormat(i64),
    Layout(i64),
    Device(String),
    Graph(Box<SubGraph>),
    Operator(String),
    StrMap(BTreeMap<String, Arg>),
    CustomObj(String),
}

/// An inline sub-graph of a higher-order op.
#[derive(Debug, Clone, PartialEq)]
pub struct SubGraph {
    /// Its name (`true_graph_0`).
    pub name: String,
    /// Its nodes; inputs bind positionally to the operands.
    pub graph: ProgramGraph,
}

/// A named argument.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedArg {
    /// The schema's argument name (empty for higher-order ops).
    pub name: String,
    /// Value.
    pub arg: Arg,
}

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Unique name in its graph.
    pub name: String,
    /// Target without the `torch.ops.` prefix: `aten.conv2d.default`, `torchvision.nms.default`, `higher_order.cond`; Python's own stay:
    /// `_operator.add`, `torch.sym_max`, `math.trunc`.
    pub target: String,
    /// Arguments that were given; those left at the schema's default are absent.
    pub inputs: Vec<NamedArg>,
    /// Results.
    pub outputs: Vec<Arg>,
    /// Module path, dotted (`image_encoder.blocks.0.attn`), or empty.
    pub module: String,
    /// Innermost Python `file:line` of the user's code, or empty.
    pub line: String,
}

/// A graph: nodes in topological order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProgramGraph {
    /// Inputs, in the order of the signature.
    pub inputs: Vec<Arg>,
    /// Outputs.
    pub outputs: Vec<Arg>,
    /// Calls.
    pub nodes: Vec<Node>,
    /// Type of every tensor, inputs and intermediates.
    pub tensors: BTreeMap<String, TensorMeta>,
    /// Symbolic integers as expressions.
    pub sym_ints: BTreeMap<String, Dim>,
    /// A sub-graph returns one tensor, not a list.
    pub is_single_tensor_return: bool,
}

/// Role of a graph input.
#[derive(Debug, Clone, PartialEq)]
pub enum InputSpec {
    /// Parameter, buffer or constant.
    Weight {
        /// Name in the graph.
        arg: String,
        /// Name in the weights.
        name: String,
        /// A buffer, which the program may mutate.
        buffer: bool,
    },
    /// Given by the caller: a tensor or a symbolic integer (`Arg::Tensor`, `Arg::SymInt`).
    User(Arg),
    /// A Python value given at export and specialised away.
    Constant {
        /// Name.
        name: String,
        /// Value.
        value: Arg,
    },
    /// A custom object or an effect token.
    Opaque(String),
}

/// Role of a graph output.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputSpec {
    /// Returned to the caller.
    User(Arg),
    /// New value of a buffer (or parameter): graph value, name in the weights.
    BufferMutation(String, String),
    /// New value of a user input: graph value, input name in the graph.
    InputMutation(String, String),
    /// Anything of training, or a token.
    Other(String),
}

/// One exported model.
#[derive(Debug)]
pub struct Program {
    /// Name of the model in its archive (`model`).
    pub name: String,
    /// The graph.
    pub graph: ProgramGraph,
    /// Roles of the graph's inputs, in order.
    pub inputs: Vec<InputSpec>,
    /// Roles of the graph's outputs, in order.
    pub outputs: Vec<OutputSpec>,
    /// Names of the user inputs, one per `InputSpec::User` or `Constant`: path in the pytree (`boxes.0`).
    pub input_names: Vec<String>,
    /// Names of the user outputs, one per `OutputSpec::User`.
    pub output_names: Vec<String>,
    /// Bounds of the symbols; open upper ones are `i64::MAX`.
    pub ranges: Ranges,
    /// True for functional IR (`verifiers: ["ATEN"]`).
    pub functional: bool,
    /// Writer (`2.11.0+cu130`).
    pub torch_version: String,
    /// Parameters, buffers, constants.
    pub weights: WeightStore,
    /// Things tolerated while reading.
    pub warnings: Vec<String>,
}

impl ScalarType {
    /// By the schema's number.
    pub fn from_code(code: i64) -> Option<ScalarType> {
        use ScalarType::*;
        const DENSE: [ScalarType; 13] = [U8, I8, I16, I32, I64, F16, F32, F64, C32, C64, C128, Bool, BF16];
        const LATE: [ScalarType; 5] = [U16, F8E4M3Fn, F8E5M2, F8E4M3Fnuz, F8E5M2Fnuz];
        match code {
            1..=13 => Some(DENSE[code as usize - 1]),
            28..=32 => Some(LATE[code as usize - 28]),
            _ => None,
        }
    }

    /// Bytes of one element.
    pub fn size_bytes(self) -> u64 {
        use ScalarType::*;
        match self {
            U8 | I8 | Bool | F8E4M3Fn | F8E5M2 | F8E4M3Fnuz | F8E5M2Fnuz => 1,
            I16 | U16 | F16 | BF16 => 2,
            I32 | F32 | C32 => 4,
            I64 | F64 | C64 => 8,
            C128 => 16,
        }
    }

    /// True for complex types.
    pub fn is_complex(self) -> bool {
        matches!(self, ScalarType::C32 | ScalarType::C64 | ScalarType::C128)
    }

    /// The IR's element type; that of one part for complex types; `None` where the IR has none (u16, fp8).
    pub fn dtype(self) -> Option<DType> {
        use ScalarType::*;
        Some(match self {
            U8 => DType::U8,
            I8 => DType::I8,
            I16 => DType::I16,
            I32 => DType::I32,
            I64 => DType::I64,
            F16 | C32 => DType::F16,
            F32 | C64 => DType::F32,
            F64 | C128 => DType::F64,
            Bool => DType::Bool,
            BF16 => DType::BF16,
            U16 | F8E4M3Fn | F8E5M2 | F8E4M3Fnuz | F8E5M2Fnuz => return None,
        })
    }
}

impl fmt::Display for ScalarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}
