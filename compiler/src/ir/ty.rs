//! Types of values: shape and element type.

use super::dim::Dim;
pub use jvc_kernels::dtype::DType;
use std::fmt;

/// Sizes of a tensor, outermost first.
pub type Shape = Vec<Dim>;

/// Type of a value. Complex tensors are two values of a real type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: Shape) -> TensorType {
        TensorType { dtype, shape }
    }

    /// A type with literal sizes.
    pub fn fixed(dtype: DType, shape: &[i64]) -> TensorType {
        TensorType { dtype, shape: shape.iter().map(|&d| Dim::from(d)).collect() }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Product of the sizes.
    pub fn n_elems(&self) -> Dim {
        self.shape.iter().fold(Dim::from(1), |p, d| &p * d)
    }

    /// The sizes, if all are literals.
    pub fn const_shape(&self) -> Option<Vec<i64>> {
        self.shape.iter().map(Dim::as_const).collect()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.shape.iter().map(Dim::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(","))
    }
}
