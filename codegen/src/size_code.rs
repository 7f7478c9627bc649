//! Sizes as Rust expressions over `i64`, and as text for docs.

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
            let mut sum = TokenStream::new();
            for (idx, term) in terms.iter().enumerate() {
                match term {
                    Size::Const(value) if *value < 0 && idx > 0 => {
                        let magnitude = Literal::u64_unsuffixed(value.unsigned_abs());
                        sum.extend(quote!(- #magnitude));
                    }
                    _ => {
                        let term = wrap(emit(term, symbols), Binding::Sum);
                        sum.extend(if idx > 0 { quote!(+ #term) } else { term });
                    }
                }
            }
            (sum, Binding::Sum)
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

/// The size as a reader would write it: `(s0 - 1) / 2 + 1`.
pub(crate) fn size_text(size: &Size, symbols: &[Ident]) -> String {
    text(&size.simplified(), symbols).0
}

fn text(size: &Size, symbols: &[Ident]) -> (String, Binding) {
    let part = |size: &Size, at_least: Binding| {
        let (text, binding) = text(size, symbols);
        if binding >= at_least { text } else { format!("({text})") }
    };
    match size {
        Size::Const(value) => (value.to_string(), if *value < 0 { Binding::Sum } else { Binding::Atom }),
        Size::Symbol(idx) => (symbols[usize::from(*idx)].to_string(), Binding::Atom),
        Size::Add(terms) => {
            let terms: Vec<String> = terms.iter().map(|t| part(t, Binding::Sum)).collect();
            (terms.join(" + ").replace("+ -", "- "), Binding::Sum)
        }
        Size::Mul(factors) => {
            let factors: Vec<String> = factors.iter().map(|f| part(f, Binding::Atom)).collect();
            (factors.join(" * "), Binding::Product)
        }
        Size::FloorDiv(a, b) => (format!("{} / {}", part(a, Binding::Atom), part(b, Binding::Atom)), Binding::Product),
        Size::Mod(a, b) => (format!("{} % {}", part(a, Binding::Atom), part(b, Binding::Atom)), Binding::Product),
        Size::Max(a, b) => (format!("max({}, {})", part(a, Binding::Sum), part(b, Binding::Sum)), Binding::Atom),
        Size::Min(a, b) => (format!("min({}, {})", part(a, Binding::Sum), part(b, Binding::Sum)), Binding::Atom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ident::ident;

    #[test]
    fn text_and_code_bind_as_the_formula_says() {
        let half =
            Size::FloorDiv(Box::new(Size::Add(vec![Size::Symbol(0), Size::Const(-1)])), Box::new(Size::Const(2)));
        let size = Size::Mul(vec![Size::Const(3), Size::Add(vec![half, Size::Const(1)])]);
        let symbols = [ident("s0")];
        assert_eq!(size_text(&size, &symbols), "((s0 - 1) / 2 + 1) * 3");
        let expected = quote!(((s0 - 1).div_euclid(2) + 1) * 3);
        assert_eq!(size_expr(&size, &symbols).to_string(), expected.to_string());
    }
}
