//! Sizes as Rust expressions over `i64`.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use crate::plan::Size;

/// How tightly an expression binds.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Binding {
    Sum,
    Product,
    Atom,
}

/// The expression of a size; symbol k is the variable `symbols[k]`, an i64.
pub(crate) fn size_expr(size: &Size, symbols: &[Ident]) -> TokenStream {
    emit(&size.simplified(), symbols).0
}

fn emit(size: &Size, symbols: &[Ident]) -> (TokenStream, Binding) {
    let atom = |size: &Size| wrap(emit(size, symbols), Binding::Atom);
    let call = |a: &Size, method: TokenStream, b: &Size| {
        let (a, b) = (atom(a), emit(b, symbols).0);
        (quote!(#a.#method(#b)), Binding::Atom)
    };
    match size {
        Size::Const(value) => {
            let literal = Literal::i64_unsuffixed(*value);
            (quote!(#literal), if *value < 0 { Binding::Sum } else { Binding::Atom })
        }
        Size::Symbol(idx) => {
            let name = &symbols[usize::from(*idx)];
            (quote!(#name), Binding::Atom)
        }
        Size::Add(terms) => {
            let terms = terms.iter().map(|t| wrap(emit(t, symbols), Binding::Sum));
            (quote!(#(#terms)+*), Binding::Sum)
        }
        Size::Mul(factors) => {
            let mut factors = factors.iter().map(|f| wrap(emit(f, symbols), Binding::Product));
            let first = factors.next().unwrap_or_else(|| quote!(1));
            (quote!(#first #(* #factors)*), Binding::Product)
        }
        Size::FloorDiv(a, b) => call(a, quote!(div_euclid), b),
        Size::Mod(a, b) => call(a, quote!(rem_euclid), b),
        Size::Max(a, b) => call(a, quote!(max), b),
        Size::Min(a, b) => call(a, quote!(min), b),
    }
}

fn wrap((tokens, binding): (TokenStream, Binding), at_least: Binding) -> TokenStream {
    if binding >= at_least { tokens } else { quote!((#tokens)) }
}
