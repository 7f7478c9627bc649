//! `src/c.rs` of a generated crate: what the C interface calls, with the program's types. All of it is safe code; pointers are the
//! matter of the crate `jvc-c`, whose macro gives the functions their names.

use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

use crate::docs::file_docs;
use crate::entry::EntryNames;
use crate::format::format_file;
use crate::ident::{camel, ident, snake};
use crate::imports::names as mentions;
use crate::plan::Plan;

/// What the exported functions are called, behind the program's name, in the order that `jvc_c::export!` takes them.
pub(crate) const FUNCTIONS: [&str; 11] = [
    "last_error",
    "load",
    "free",
    "session_new",
    "session_free",
    "run",
    "submit",
    "wait",
    "is_done",
    "cancel",
    "reset",
];

/// What every C name of a program starts with.
pub(crate) fn prefix(plan: &Plan) -> String {
    snake(&plan.name).trim_end_matches('_').to_string()
}

/// `src/c.rs`.
pub(crate) fn c_file(plan: &Plan, entries: &[EntryNames<'_>]) -> String {
    let prefix = prefix(plan);
    let header = file_docs(&format!(
        "The C interface, which `include/{prefix}.h` describes: calls by position become typed calls."
    ));
    let program = ident(&camel(&plan.name));
    let session = session_fn(entries);
    let sessions = entries.iter().map(entry_impl);
    let body = quote! {
        impl jvc_c::Program for crate::#program {
            fn load(gpu: &Gpu, weights: WeightSource<'_>, cache: &CacheDir) -> Result<Self, Error> {
                Self::load_with(gpu, weights, cache)
            }
            #session
        }
        #(#sessions)*
    };
    let runtime = quote!(
        use jvc_runtime::{CacheDir, Error, Gpu, SessionOptions, WeightSource};
    );
    let names: Vec<String> = FUNCTIONS.iter().map(|name| format!("    {prefix}_{name}\n")).collect();
    format_file(quote!(#header #runtime #body))
        + &format!("\njvc_c::export! {{\n    crate::{program};\n{}}}\n", names.concat())
}

fn session_fn(entries: &[EntryNames<'_>]) -> TokenStream {
    if entries.is_empty() {
        return quote! {
            fn session(&self, _: u32, _: &SessionOptions) -> Result<Option<jvc_c::Handle>, Error> { Ok(None) }
        };
    }
    let sessions = entries.iter().enumerate().map(|(index, entry)| {
        let (index, make) = (Literal::usize_unsuffixed(index), format_ident!("{}_session_with", entry.module));
        quote! {
            if entry == #index {
                let session = self.#make(options)?;
                return Ok(Some(jvc_c::Handle::new(session)));
            }
        }
    });
    quote! {
        fn session(&self, entry: u32, options: &SessionOptions) -> Result<Option<jvc_c::Handle>, Error> {
            #(#sessions)*
            Ok(None)
        }
    }
}

fn entry_impl(names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { session, ticket, outputs, .. } = names;
    let n_inputs = names.entry.inputs.iter().filter(|port| port.has_buffer()).count();
    let counts = [names.chosen().count(), n_inputs, names.entry.outputs.len()].map(Literal::usize_unsuffixed);
    let inputs = inputs_literal(names);
    let arguments = if mentions(&inputs, "arguments") { quote!(arguments) } else { quote!(_) };
    let gives = names.entry.outputs.iter().zip(&names.output_fields).enumerate().map(|(index, (port, field))| {
        let (index, name) = (Literal::usize_unsuffixed(index), &port.name);
        let value = if port.has_buffer() { quote!(&outputs.#field) } else { quote!(&[outputs.#field]) };
        quote!(jvc_c::Results::output(results, #index, #name, #value)?;)
    });
    let gives = quote!(#(#gives)* Ok(()));
    let [from, to] = ["outputs", "results"].map(|name| if mentions(&gives, name) { ident(name) } else { ident("_") });
    let reset = (!names.entry.states.is_empty()).then(|| {
        quote!(
            fn reset(&mut self) {
                self.reset();
            }
        )
    });
    quote! {
        impl jvc_c::Entry for crate::#session {
            const COUNTS: [usize; 3] = [#(#counts),*];
            type Ticket = crate::#ticket;
            type Outputs = crate::#outputs;
            fn submit(&mut self, #arguments: &jvc_c::Arguments<'_>) -> Result<Self::Ticket, Error> {
                let inputs = #inputs;
                self.submit(&inputs)
            }
            fn wait(&mut self, ticket: Self::Ticket, outputs: &mut Self::Outputs) -> Result<(), Error> {
                self.wait(ticket, outputs)
            }
            fn give(#from: &Self::Outputs, #to: &mut jvc_c::Results<'_>) -> Result<(), Error> { #gives }
            fn is_done(&self, ticket: &Self::Ticket) -> Result<bool, Error> { self.is_done(ticket) }
            fn cancel(&mut self, ticket: Self::Ticket) { self.cancel(ticket); }
            #reset
        }
    }
}

/// The struct of inputs, from the call's arrays.
fn inputs_literal(names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { inputs, sizes, .. } = names;
    let chosen = names.chosen().enumerate().map(|(index, (_, _, field))| {
        let (index, name) = (Literal::usize_unsuffixed(index), field.to_string());
        quote!(#field: jvc_c::Arguments::size(arguments, #index, #name)?)
    });
    let sizes = names.has_sizes().then(|| quote!(sizes: crate::#sizes { #(#chosen),* },));
    let with_buffer = names.entry.inputs.iter().zip(&names.input_fields).filter(|(port, _)| port.has_buffer());
    let fields = with_buffer.enumerate().map(|(index, (port, field))| {
        let (index, name) = (Literal::usize_unsuffixed(index), &port.name);
        quote!(#field: jvc_c::Arguments::input(arguments, #index, #name)?)
    });
    quote!(crate::#inputs { #sizes #(#fields),* })
}
