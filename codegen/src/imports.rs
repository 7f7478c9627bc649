//! `use` lines of generated files, worked out from what their tokens name: nothing is imported that is not used.

use proc_macro2::{TokenStream, TokenTree};
use quote::quote;

use crate::ident::ident;

/// True when the tokens name this identifier.
pub(crate) fn names(tokens: &TokenStream, word: &str) -> bool {
    tokens.clone().into_iter().any(|tree| match tree {
        TokenTree::Group(group) => names(&group.stream(), word),
        TokenTree::Ident(found) => found == word,
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}

/// `use path::{…};` with those of the words that the tokens name, in this order, or nothing.
pub(crate) fn import(path: &TokenStream, words: &[&str], tokens: &TokenStream) -> TokenStream {
    let used: Vec<_> = words.iter().filter(|word| names(tokens, word)).map(|word| ident(word)).collect();
    match used.as_slice() {
        [] => quote!(),
        [one] => quote!(use #path::#one;),
        _ => quote!(use #path::{#(#used),*};),
    }
}

/// Everything of the runtime that generated code may name, in rustfmt's order.
pub(crate) fn import_runtime(tokens: &TokenStream) -> TokenStream {
    const WORDS: [&str; 25] = [
        "Arenas",
        "Base",
        "CacheDir",
        "Cooperative",
        "EntryDesc",
        "Error",
        "Features",
        "Gpu",
        "Groups",
        "IoDesc",
        "KernelDesc",
        "Model",
        "ProgramDesc",
        "Recorder",
        "Requirements",
        "Session",
        "SessionOptions",
        "StateInit",
        "Ticket",
        "WeightSource",
        "WeightsDesc",
        "bytes_of",
        "bytes_of_mut",
        "Element",
        "Buffer",
    ];
    import(&quote!(jvc_runtime), &WORDS, tokens)
}
