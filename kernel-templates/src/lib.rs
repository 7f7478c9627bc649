//! Kernel templates: a [`spec::KernelSpec`] in, SPIR-V out. Leaf crate: it knows no graph, no model, no device profile.

pub mod dtype;
pub mod expr;
pub mod spec;
