//! Kernel templates: a [`spec::KernelSpec`] in, SPIR-V out. Leaf crate: it knows no graph, no model, no device profile.

pub mod dtype;
pub mod eval;
pub mod expr;
pub mod footprint;
pub mod host;
pub mod limits;
pub mod spec;
pub mod templates;

mod asm;
mod build;
mod check;
mod coarse;
mod compact;
mod contiguity;
mod emit_expr;
mod emit_group;
mod emit_ops;
mod interval;
mod math;
mod reference;
mod special;
mod text;
mod wide_load;

#[cfg(feature = "validate")]
pub use build::validate;
pub use build::{build, constraints, disassemble};
pub use check::BuildError;
pub use limits::{Limits, Reject};
pub use reference::reference;
pub use text::Printer;
pub use wide_load::is_exact_in;
