//! Bytes → [`Program`]: a faithful reader of `torch.export` archives. The only part of jvc that knows the file format.

pub mod program;
pub mod weights;

pub use program::Program;
