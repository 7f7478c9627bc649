//! The graph IR: SSA, one block, static element types, sizes that are literals or polynomials over symbols.
//!
//! Values are tensors in an abstract row-major coordinate space: the IR has no strides and no aliasing. Element types mean what they mean in
//! PyTorch; half types compute in f32 and round when a value is materialised. In-place operations are gone before this stage.

mod body;
pub mod build;
pub mod dim;
pub mod eval;
pub mod graph;
pub mod infer;
pub mod op;
pub mod parse;
pub mod print;
pub mod ty;
pub mod verify;

pub use build::Builder;
pub use dim::{Dim, Range, Ranges};
pub use graph::{Binding, Graph, Node, NodeId, Origin, UserInput, UserOutput, Value, ValueId};
pub use op::{Body, Literal, Op, WeightRef, Window};
pub use ty::{DType, Shape, TensorType};
