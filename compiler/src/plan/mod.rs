//! Scheduled entry points → [`jvc_codegen::plan::Plan`].

pub mod entry;
pub mod kernels;
pub mod weights;
mod writes;

use crate::ir::DType;
use jvc_codegen::plan::Elem;

/// The element type in the plan's words.
pub fn elem(dtype: DType) -> Elem {
    match dtype {
        DType::Bool => Elem::Bool,
        DType::U8 => Elem::U8,
        DType::I8 => Elem::I8,
        DType::I16 => Elem::I16,
        DType::I32 => Elem::I32,
        DType::I64 => Elem::I64,
        DType::F16 => Elem::F16,
        DType::BF16 => Elem::BF16,
        DType::F32 => Elem::F32,
        DType::F64 => Elem::F64,
    }
}

/// A name as a Rust identifier: other characters become `_`.
pub fn rust_name(name: &str) -> String {
    let mut out: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}
