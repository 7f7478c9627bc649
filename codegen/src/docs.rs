//! Doc comments of generated code, as attributes.

use proc_macro2::TokenStream;
use quote::quote;

/// `///` lines of an item.
pub(crate) fn docs(text: &str) -> TokenStream {
    let lines = text.lines().map(spaced);
    quote!(#(#[doc = #lines])*)
}

/// `//!` lines of a file.
pub(crate) fn file_docs(text: &str) -> TokenStream {
    let lines = text.lines().map(spaced);
    quote!(#(#![doc = #lines])*)
}

fn spaced(line: &str) -> String {
    if line.is_empty() { String::new() } else { format!(" {line}") }
}
