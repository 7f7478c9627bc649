//! Static description and sizes of an entry point, as the runtime wants them.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use crate::docs::docs;
use crate::entry::EntryNames;
use crate::imports::names;
use crate::plan::{Plan, PortKind};
use crate::size_code::size_expr;

/// `ENTRY`: what the runtime is told.
pub(crate) fn desc_static(plan: &Plan, names: &EntryNames<'_>) -> TokenStream {
    let entry = names.entry;
    let name = &entry.name;
    let arena = entry.arena_bytes.iter().map(|bytes| Literal::u64_unsuffixed(*bytes));
    let is_output = |slot| entry.outputs.iter().any(|p| p.kind == PortKind::Io(slot));
    let mut ports: Vec<_> = entry.io_ports().collect();
    ports.sort_by_key(|(slot, _)| *slot);
    let io = ports.iter().map(|(slot, port)| {
        let bytes = Literal::u64_unsuffixed(port.max_bytes);
        if is_output(*slot) { quote!(output(#bytes)) } else { quote!(input(#bytes)) }
    });
    let table_words = Literal::usize_unsuffixed(entry.table.len());
    let state_bytes = Literal::u64_unsuffixed(entry.state_bytes());
    let state_init = entry.states.iter().filter_map(|state| {
        let tensor = &plan.weights.tensors[state.init? as usize];
        let chunk = Literal::u32_unsuffixed(tensor.chunk);
        let [offset, state_offset, bytes] = [tensor.offset, state.offset, state.bytes].map(Literal::u64_unsuffixed);
        Some(quote!(state_from(#chunk, #offset, #state_offset, #bytes)))
    });
    let entry_static = quote! {
        /// What the runtime is told.
        pub(crate) static ENTRY: EntryDesc<'static> = EntryDesc {
            name: #name,
            arena_bytes: &[#(#arena),*],
            io: &[#(#io),*],
            table_words: #table_words,
            state_bytes: #state_bytes,
            state_init: &[#(#state_init),*],
            record: &steps::record,
        };
    };
    let helpers = helper_fns(&entry_static);
    quote!(#entry_static #helpers)
}

/// Constructors that keep the table's lines short.
fn helper_fns(table: &TokenStream) -> TokenStream {
    let input = quote! {
        const fn input(max_bytes: u64) -> IoDesc { IoDesc { max_bytes, output: false } }
    };
    let output = quote! {
        const fn output(max_bytes: u64) -> IoDesc { IoDesc { max_bytes, output: true } }
    };
    let state_from = quote! {
        const fn state_from(chunk: u32, offset: u64, state_offset: u64, bytes: u64) -> StateInit {
            StateInit { chunk, offset, state_offset, bytes }
        }
    };
    let all = [("input", input), ("output", output), ("state_from", state_from)];
    let used = all.into_iter().filter(|(name, _)| names(table, name)).map(|(_, function)| function);
    quote!(#(#used)*)
}

/// The sizes struct, or the constant table of an entry point without symbols, or nothing.
pub(crate) fn sizes_items(names: &EntryNames<'_>) -> TokenStream {
    let entry = names.entry;
    let found = found_fn(names);
    if names.has_sizes() {
        let sizes = sizes_struct(names);
        return quote!(#sizes #found);
    }
    if entry.table.is_empty() {
        return quote!();
    }
    let words = entry.table_words(&entry.greatest_symbols()).expect("a verified table has values");
    let (n, words) = (Literal::usize_unsuffixed(words.len()), words.into_iter().map(Literal::u32_unsuffixed));
    quote! {
        /// Words of the symbol table.
        const TABLE: [u32; #n] = [#(#words),*];
        #found
    }
}

/// The function from the words that the device has left to the sizes that it found.
fn found_fn(entry_names: &EntryNames<'_>) -> Option<TokenStream> {
    let found: Vec<TokenStream> = entry_names
        .found()
        .map(|(_, symbol, name)| {
            let (name, word) = (name.to_string(), Literal::usize_unsuffixed(usize::from(symbol.found.unwrap_or(0))));
            let (min, max) = (Literal::i64_unsuffixed(symbol.min), Literal::i64_unsuffixed(symbol.max));
            quote!(found(#name, table[#word], #min, #max)?)
        })
        .collect();
    let n = Literal::usize_unsuffixed(found.len());
    (!found.is_empty()).then(|| {
        quote! {
            /// Sizes that the device has found in the data, from the symbol table.
            fn found_sizes(table: &[u32]) -> Result<[i64; #n], Error> { Ok([#(#found),*]) }
        }
    })
}

/// Sizes that the data will decide, at their largest: what memory and group counts are before the run.
pub(crate) fn bind_largest(entry_names: &EntryNames<'_>, body: &TokenStream) -> TokenStream {
    let lets = entry_names.found().filter(|(_, _, name)| names(body, &name.to_string())).map(|(_, symbol, name)| {
        let max = Literal::i64_unsuffixed(symbol.max);
        quote!(let #name: i64 = #max;)
    });
    quote!(#(#lets)*)
}

/// Reads the sizes that the device has found; a run whose data are too large gives its slot back.
pub(crate) fn bind_found(entry_names: &EntryNames<'_>, body: &TokenStream) -> Option<TokenStream> {
    let pattern: Vec<TokenStream> = entry_names
        .found()
        .map(|(_, _, name)| if names(body, &name.to_string()) { quote!(#name) } else { quote!(_) })
        .collect();
    (!pattern.is_empty()).then(|| {
        quote! {
            let table = self.session.read_table(&ticket.ticket)?;
            let [#(#pattern),*] = match found_sizes(&table) {
                Ok(found) => found,
                Err(error) => {
                    self.session.cancel(ticket.ticket);
                    return Err(error);
                }
            };
        }
    })
}

fn sizes_struct(entry_names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { entry, sizes, .. } = entry_names;
    let fields = entry_names.chosen().map(|(idx, symbol, field)| {
        let text = docs(&format!("{} to {}.{}", symbol.min, symbol.max, integer_note(entry_names, idx)));
        quote!(#text pub #field: usize)
    });
    let checked = entry_names.chosen().map(|(_, symbol, field)| {
        let name = field.to_string();
        let (min, max) = (Literal::i64_unsuffixed(symbol.min), Literal::i64_unsuffixed(symbol.max));
        quote!(size(#name, self.#field, #min, #max)?)
    });
    let n = Literal::usize_unsuffixed(entry_names.chosen().count());
    let table = (!entry.table.is_empty()).then(|| table_fn(entry_names));
    quote! {
        /// Sizes that a call chooses.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct #sizes { #(#fields),* }

        impl #sizes {
            #table
            fn checked(&self) -> Result<[i64; #n], Error> { Ok([#(#checked),*]) }
        }
    }
}

/// The function from the caller's sizes to the words that kernels and indirect dispatches read.
fn table_fn(entry_names: &EntryNames<'_>) -> TokenStream {
    let entry = entry_names.entry;
    let words = entry.table.iter().map(|size| {
        let expr = size_expr(size, &entry_names.symbols);
        quote!(word(#expr)?)
    });
    let body = quote!(Ok([#(#words),*]));
    let bind = bind_symbols(entry_names, &quote!(self), &body);
    let largest = bind_largest(entry_names, &body);
    let n = Literal::usize_unsuffixed(entry.table.len());
    quote! {
        /// The words that kernels read: sizes, then workgroup counts.
        ///
        /// # Errors
        /// A size out of its range.
        pub fn table(&self) -> Result<[u32; #n], Error> {
            #bind
            #largest
            #body
        }
    }
}

/// `let [a, _] = sizes.checked()?;` with the symbols that the body names. The check is made even when it names none.
pub(crate) fn bind_symbols(entry_names: &EntryNames<'_>, sizes: &TokenStream, body: &TokenStream) -> TokenStream {
    let used = |name: &Ident| names(body, &name.to_string());
    if !entry_names.chosen().any(|(_, _, name)| used(name)) {
        return quote!(#sizes.checked()?;);
    }
    let pattern = entry_names.chosen().map(|(_, _, name)| if used(name) { quote!(#name) } else { quote!(_) });
    quote!(let [#(#pattern),*] = #sizes.checked()?;)
}

/// Says of a symbol that it is an integer argument of the program.
fn integer_note(names: &EntryNames<'_>, idx: usize) -> String {
    let is_it = |p: &&crate::plan::Port| p.kind == PortKind::Symbol(idx as u16);
    match names.entry.inputs.iter().find(is_it) {
        Some(port) => format!(" The program's integer input `{}`.", port.name),
        None => format!(" `{}` of the export.", names.entry.symbols[idx].name),
    }
}
