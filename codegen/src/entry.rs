//! The typed interface of an entry point (`src/ENTRY.rs`): sizes, inputs, outputs and the session that runs it.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::{format_ident, quote};

use crate::checks::import_checks;
use crate::docs::{docs, file_docs};
use crate::entry_table::{bind_found, bind_largest, bind_symbols, desc_static, sizes_items};
use crate::ident::{Unique, ident, snake};
use crate::imports::{self, import_runtime};
use crate::plan::{Elem, Entry, Plan, Port, PortKind, Size, State, Symbol};
use crate::size_code::{size_expr, size_text};
use crate::words::{Transfer, transfer};

/// Names of variables, functions and modules that method bodies use.
const LOCALS: [&str; 17] = [
    "argument",
    "bools",
    "bytes",
    "bytes_of",
    "bytes_of_mut",
    "error",
    "extent",
    "found",
    "inputs",
    "len",
    "output_bytes",
    "outputs",
    "size",
    "table",
    "targets",
    "ticket",
    "words",
];

/// Names and derived facts of an entry point that several emitters need.
pub(crate) struct EntryNames<'a> {
    pub(crate) entry: &'a Entry,
    /// Module.
    pub(crate) module: Ident,
    pub(crate) sizes: Ident,
    pub(crate) inputs: Ident,
    pub(crate) outputs: Ident,
    pub(crate) session: Ident,
    pub(crate) ticket: Ident,
    /// Field of each symbol in the sizes struct, by symbol.
    pub(crate) symbols: Vec<Ident>,
    pub(crate) input_fields: Vec<Ident>,
    pub(crate) output_fields: Vec<Ident>,
}

impl<'a> EntryNames<'a> {
    /// Names of an entry point in this module, whose types start with this prefix.
    pub(crate) fn new(entry: &'a Entry, module: &str, prefix: &str) -> Self {
        let name = |suffix: &str| ident(&format!("{prefix}{suffix}"));
        let fields = |ports: &[Port], taken: &[&str]| -> Vec<Ident> {
            let mut unique = Unique::default();
            taken.iter().for_each(|word| _ = unique.take((*word).to_string()));
            ports.iter().map(|p| ident(&unique.take(snake(&p.name)))).collect()
        };
        let mut unique = Unique::default();
        // Symbols are local variables beside these.
        LOCALS.iter().for_each(|word| _ = unique.take((*word).to_string()));
        let symbol_name = |(idx, symbol): (usize, &Symbol)| {
            let is_it = |p: &&Port| p.kind == PortKind::Symbol(idx as u16);
            let name = entry.inputs.iter().find(is_it).map_or(&symbol.name, |p| &p.name);
            ident(&unique.take(snake(name)))
        };
        EntryNames {
            entry,
            module: ident(module),
            sizes: name("Sizes"),
            inputs: name("Inputs"),
            outputs: name("Outputs"),
            session: name("Session"),
            ticket: name("Ticket"),
            symbols: entry.symbols.iter().enumerate().map(symbol_name).collect(),
            input_fields: fields(&entry.inputs, &["sizes"]),
            output_fields: fields(&entry.outputs, &[]),
        }
    }

    /// True when calls choose sizes.
    pub(crate) fn has_sizes(&self) -> bool {
        self.chosen().next().is_some()
    }

    /// Symbols that the caller chooses, with index and field.
    pub(crate) fn chosen(&self) -> impl Iterator<Item = (usize, &'a Symbol, &Ident)> {
        self.all_symbols().filter(|(_, symbol, _)| symbol.found.is_none())
    }

    /// Symbols that the device finds in the data, with index and name.
    pub(crate) fn found(&self) -> impl Iterator<Item = (usize, &'a Symbol, &Ident)> {
        self.all_symbols().filter(|(_, symbol, _)| symbol.found.is_some())
    }

    fn all_symbols(&self) -> impl Iterator<Item = (usize, &'a Symbol, &Ident)> {
        self.entry.symbols.iter().zip(&self.symbols).enumerate().map(|(i, (symbol, name))| (i, symbol, name))
    }

    /// True when the inputs struct borrows something.
    pub(crate) fn inputs_borrow(&self) -> bool {
        self.io_inputs().next().is_some()
    }

    /// Inputs with a buffer, with their fields, in the order of the I/O table.
    fn io_inputs(&self) -> impl Iterator<Item = (&'a Port, &Ident)> {
        in_slot_order(&self.entry.inputs, &self.input_fields)
    }

    /// Outputs with a buffer, with their fields, in the order of the I/O table.
    fn io_outputs(&self) -> impl Iterator<Item = (&'a Port, &Ident)> {
        in_slot_order(&self.entry.outputs, &self.output_fields)
    }

    /// The fields of an inputs struct, for examples: (field, Rust type, number of elements).
    pub(crate) fn example_inputs(&self) -> Vec<(String, &'static str, String)> {
        let elems = |port: &Port| port.elems(&self.entry.greatest_symbols()).map_or(0, |n| n).to_string();
        let line = |(port, field): (&Port, &Ident)| (field.to_string(), elem_type_name(port.elem), elems(port));
        self.io_inputs().map(line).collect()
    }

    fn shape(&self, port: &Port) -> String {
        let dims: Vec<String> = port.shape.iter().map(|d| size_text(d, &self.symbols)).collect();
        dims.join(", ")
    }

    fn port_doc(&self, port: &Port) -> String {
        let symbol = |idx: u16| &self.symbols[usize::from(idx)];
        match port.kind {
            PortKind::Io(_) => {
                format!("`{}[{}]`, row-major.{}", port.elem.name(), self.shape(port), elem_note(port.elem))
            }
            PortKind::Symbol(idx) => format!("The integer `{}`.", symbol(idx)),
        }
    }

    /// Scratch vectors of the session, for ports that the device keeps in words.
    fn word_fields(&self) -> Vec<Ident> {
        let by_words = |port: &Port| matches!(transfer(port), Some(Transfer::Words { .. }));
        let inputs = self.io_inputs().filter(|(port, _)| by_words(port)).map(|(_, field)| words_field(field));
        let outputs = self.io_outputs().filter(|(port, _)| by_words(port)).map(|(_, field)| out_words_field(field));
        inputs.chain(outputs).collect()
    }

    /// Bytes of an output on the device, a u64 expression.
    fn output_bytes(&self, port: &Port) -> TokenStream {
        let bytes = port.device_elem_bytes();
        if let Ok(elems) = port.elems(&[]) {
            let literal = Literal::u64_unsuffixed(elems * bytes);
            return quote!(#literal);
        }
        let (elems, bytes) = (self.elems(port), Literal::u64_unsuffixed(bytes));
        quote!(#elems as u64 * #bytes)
    }

    /// Number of elements of a port as a usize expression; symbols are variables of type i64.
    fn elems(&self, port: &Port) -> TokenStream {
        let product = Size::Mul(port.shape.clone()).simplified();
        let expr = size_expr(&product, &self.symbols);
        if let Size::Const(_) = product { expr } else { quote!(extent(#expr)?) }
    }
}

fn in_slot_order<'a, 'b>(ports: &'a [Port], fields: &'b [Ident]) -> impl Iterator<Item = (&'a Port, &'b Ident)> {
    let mut list: Vec<(u32, &'a Port, &'b Ident)> = Vec::new();
    for (port, field) in ports.iter().zip(fields) {
        if let PortKind::Io(slot) = port.kind {
            list.push((slot, port, field));
        }
    }
    list.sort_by_key(|(slot, ..)| *slot);
    list.into_iter().map(|(_, port, field)| (port, field))
}

/// The Rust type of an element in slices of the interface.
pub(crate) fn elem_type(elem: Elem) -> TokenStream {
    let name = ident(elem_type_name(elem));
    quote!(#name)
}

fn elem_type_name(elem: Elem) -> &'static str {
    match elem {
        Elem::Bool | Elem::U8 => "u8",
        Elem::I8 => "i8",
        Elem::I16 => "i16",
        Elem::I32 => "i32",
        Elem::I64 => "i64",
        Elem::F16 | Elem::BF16 => "u16",
        Elem::F32 => "f32",
        Elem::F64 => "f64",
    }
}

/// How the elements of a slice are to be read, where the type does not say it.
fn elem_note(elem: Elem) -> &'static str {
    match elem {
        Elem::Bool => " Each byte is 0 or 1.",
        Elem::F16 => " Each u16 holds the bits of an IEEE 754 binary16.",
        Elem::BF16 => " Each u16 holds the bits of a bfloat16.",
        Elem::U8 | Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64 | Elem::F32 | Elem::F64 => "",
    }
}

/// `src/ENTRY.rs`, without its `use` lines.
pub(crate) fn entry_body(plan: &Plan, names: &EntryNames<'_>) -> TokenStream {
    let parts = [
        desc_static(plan, names),
        sizes_items(names),
        inputs_struct(names),
        outputs_struct(names),
        ticket_struct(names),
        session_struct(names),
        session_impl(names),
    ];
    quote!(#(#parts)*)
}

/// `src/ENTRY.rs` from its body.
pub(crate) fn entry_file(names: &EntryNames<'_>, body: &TokenStream) -> TokenStream {
    let header = file_docs(&format!("Entry point `{}`: its inputs, outputs and session.", names.entry.name));
    let checks = import_checks(body);
    let words = if imports::names(body, "words") {
        quote!(
            use crate::words;
        )
    } else {
        quote!()
    };
    let runtime = import_runtime(body);
    quote!(#header mod steps; #checks #words #runtime #body)
}

fn inputs_struct(names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { inputs, sizes, .. } = names;
    let sizes = names.has_sizes().then(|| quote!(#[doc = " Sizes of this call."] pub sizes: #sizes,));
    let fields = names.entry.inputs.iter().zip(&names.input_fields).filter(|(port, _)| port.has_buffer());
    let fields = fields.map(|(port, field)| {
        let (text, elem) = (docs(&names.port_doc(port)), elem_type(port.elem));
        quote!(#text pub #field: &'a [#elem])
    });
    let life = names.inputs_borrow().then(|| quote!(<'a>));
    let text = docs(&format!("Inputs of `{}`.", names.entry.name));
    quote! {
        #text
        #[derive(Debug, Clone, Copy)]
        pub struct #inputs #life { #sizes #(#fields),* }
    }
}

fn outputs_struct(names: &EntryNames<'_>) -> TokenStream {
    let outputs = &names.outputs;
    let fields = names.entry.outputs.iter().zip(&names.output_fields).map(|(port, field)| {
        let (text, elem) = (docs(&names.port_doc(port)), elem_type(port.elem));
        let ty = if port.has_buffer() { quote!(Vec<#elem>) } else { quote!(i64) };
        quote!(#text pub #field: #ty)
    });
    let text = docs(&format!("Outputs of `{}`.", names.entry.name));
    quote! {
        #text
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct #outputs { #(#fields),* }
    }
}

fn ticket_struct(names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { ticket, sizes, .. } = names;
    let sizes = names.has_sizes().then(|| quote!(, sizes: #sizes));
    quote! {
        /// A run in flight.
        #[derive(Debug)]
        #[must_use = "its slot stays taken until it is waited for or cancelled"]
        pub struct #ticket { ticket: Ticket #sizes }
    }
}

fn session_struct(names: &EntryNames<'_>) -> TokenStream {
    let session = &names.session;
    let fields = names.word_fields();
    let text = docs(&format!("`{}`, recorded and ready to run.", names.entry.name));
    quote! {
        #text
        pub struct #session { session: Session, #(#fields: Vec<u32>),* }
    }
}

fn session_impl(names: &EntryNames<'_>) -> TokenStream {
    let session = &names.session;
    let fields = names.word_fields();
    let parts = [run_fns(names), submit_fn(names), wait_fn(names), ticket_fns(names)];
    let slot_bytes = Literal::u64_unsuffixed(slot_bytes(names.entry));
    let state_bytes = Literal::u64_unsuffixed(names.entry.state_bytes());
    // With sizes, their `table` is public.
    let n_words = Literal::usize_unsuffixed(names.entry.table.len());
    let table = (!names.has_sizes() && !names.entry.table.is_empty()).then(|| {
        quote! {
            /// The words that kernels read, for runs that the runtime's session submits.
            pub const TABLE: [u32; #n_words] = TABLE;
        }
    });
    quote! {
        impl #session {
            /// Bytes of device memory of each run in flight: arena, inputs and outputs, at the largest sizes.
            pub const SLOT_BYTES: u64 = #slot_bytes;
            /// Bytes of device memory of the state that all runs of a session share.
            pub const STATE_BYTES: u64 = #state_bytes;
            #table
            pub(crate) fn new(session: Session) -> Self {
                Self { session, #(#fields: Vec::new()),* }
            }
            #(#parts)*
            /// The runtime's session: memory report, external buffers, step labels.
            pub fn session(&mut self) -> &mut Session { &mut self.session }
        }
    }
}

/// Device memory of a slot, but for its tables.
fn slot_bytes(entry: &Entry) -> u64 {
    let ports: u64 = entry.io_ports().map(|(_, port)| port.max_bytes).sum();
    entry.arena_bytes.iter().sum::<u64>() + ports
}

fn run_fns(names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { inputs, outputs, .. } = names;
    let life = names.inputs_borrow().then(|| quote!(<'_>));
    quote! {
        /// Runs and waits.
        ///
        /// # Errors
        /// An argument that does not fit, before anything happens; a device that was lost.
        pub fn run(&mut self, inputs: &#inputs #life) -> Result<#outputs, Error> {
            let mut outputs = #outputs::default();
            self.run_into(inputs, &mut outputs)?;
            Ok(outputs)
        }
        /// Runs and waits. Outputs keep their memory from call to call.
        ///
        /// # Errors
        /// As `run`.
        pub fn run_into(&mut self, inputs: &#inputs #life, outputs: &mut #outputs) -> Result<(), Error> {
            let ticket = self.submit(inputs)?;
            self.wait(ticket, outputs)
        }
    }
}

fn submit_fn(names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { inputs, ticket, .. } = names;
    let life = names.inputs_borrow().then(|| quote!(<'_>));
    let prepare = names.io_inputs().map(|(port, field)| prepare_input(names, port, field));
    let bytes = names.io_inputs().map(|(port, field)| match transfer(port) {
        Some(Transfer::Words { .. }) => {
            let words = words_field(field);
            quote!(bytes_of(&self.#words))
        }
        _ => quote!(bytes_of(inputs.#field)),
    });
    let output_bytes = names.io_outputs().map(|(port, _)| names.output_bytes(port));
    let table = match (names.entry.table.is_empty(), names.has_sizes()) {
        (true, _) => quote!([]),
        (false, true) => quote!(inputs.sizes.table()?),
        (false, false) => quote!(TABLE),
    };
    let sizes = names.has_sizes().then(|| quote!(, sizes: inputs.sizes));
    let body = quote! {
        #(#prepare)*
        let table = #table;
        let bytes = [#(#bytes),*];
        let output_bytes = [#(#output_bytes),*];
        let ticket = self.session.submit(&table, &bytes, &output_bytes)?;
        Ok(#ticket { ticket #sizes })
    };
    let bind = names.has_sizes().then(|| bind_symbols(names, &quote!(inputs.sizes), &body));
    let largest = bind_largest(names, &body);
    let argument = if imports::names(&body, "inputs") || names.has_sizes() { quote!(inputs) } else { quote!(_) };
    quote! {
        /// Starts a run in a free slot and returns at once; the inputs have been copied then.
        ///
        /// # Errors
        /// As `run`; also when every slot is in flight.
        pub fn submit(&mut self, #argument: &#inputs #life) -> Result<#ticket, Error> {
            #bind
            #largest
            #body
        }
    }
}

/// Checks an input, and converts it where the device keeps words.
fn prepare_input(names: &EntryNames<'_>, port: &Port, field: &Ident) -> TokenStream {
    let (name, elems) = (field.to_string(), names.elems(port));
    let bools = (port.elem == Elem::Bool).then(|| quote!(bools(#name, inputs.#field)?;));
    let convert = match transfer(port) {
        Some(Transfer::Words { from, .. }) => {
            let words = words_field(field);
            Some(quote!(words::#from(inputs.#field, &mut self.#words);))
        }
        _ => None,
    };
    quote!(len(#name, inputs.#field.len(), #elems)?; #bools #convert)
}

fn wait_fn(names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { outputs, ticket, .. } = names;
    let (mut before, mut targets, mut after) = (Vec::new(), Vec::new(), Vec::new());
    for (port, field) in names.io_outputs() {
        let elems = names.elems(port);
        if let Some(Transfer::Words { to, .. }) = transfer(port) {
            let words = out_words_field(field);
            before.push(quote!(self.#words.resize(#elems, 0);));
            targets.push(quote!(bytes_of_mut(&mut self.#words)));
            after.push(quote!(words::#to(&self.#words, &mut outputs.#field);));
        } else {
            let zero = if matches!(port.elem, Elem::F32 | Elem::F64) { quote!(0.0) } else { quote!(0) };
            before.push(quote!(outputs.#field.resize(#elems, #zero);));
            targets.push(quote!(bytes_of_mut(&mut outputs.#field)));
        }
    }
    for (port, field) in names.entry.outputs.iter().zip(&names.output_fields) {
        if let PortKind::Symbol(symbol) = port.kind {
            let value = &names.symbols[usize::from(symbol)];
            before.push(quote!(outputs.#field = #value;));
        }
    }
    before.push(quote!(let mut targets = [#(#targets),*];));
    let wait = quote!(self.session.wait(ticket.ticket, &mut targets));
    let end = if after.is_empty() { wait } else { quote!(#wait?; #(#after)* Ok(())) };
    let body = quote!(#(#before)* #end);
    let bind = names.has_sizes().then(|| bind_symbols(names, &quote!(ticket.sizes), &body));
    let found = bind_found(names, &body);
    let argument = if imports::names(&body, "outputs") { quote!(outputs) } else { quote!(_) };
    let too_large =
        found.is_some().then(|| quote!(#[doc = " Data that give a size beyond what memory is planned for."]));
    quote! {
        /// Waits for a run, copies its outputs and frees its slot.
        ///
        /// # Errors
        /// A device that was lost, with the step that ran.
        #too_large
        pub fn wait(&mut self, ticket: #ticket, #argument: &mut #outputs) -> Result<(), Error> {
            #bind
            #found
            #body
        }
    }
}

fn ticket_fns(names: &EntryNames<'_>) -> TokenStream {
    let ticket = &names.ticket;
    let reset = (!names.entry.states.is_empty()).then(|| {
        let states: Vec<String> = names.entry.states.iter().map(state_doc).collect();
        let text = docs(&format!("The next run starts from the initial state: {}.", states.join(", ")));
        quote!(#text pub fn reset(&mut self) { self.session.reset(); })
    });
    quote! {
        /// True once a run has finished; it still has to be waited for.
        ///
        /// # Errors
        /// A device that was lost.
        pub fn is_done(&self, ticket: &#ticket) -> Result<bool, Error> {
            self.session.is_done(&ticket.ticket)
        }
        /// Gives up a run's outputs: its slot becomes free when the run has finished.
        pub fn cancel(&mut self, ticket: #ticket) { self.session.cancel(ticket.ticket); }
        #reset
    }
}

fn state_doc(state: &State) -> String {
    let start = if state.init.is_some() { "from a weight" } else { "zeros" };
    format!("`{}` ({start})", state.name)
}

/// Scratch of an input that the device keeps in words.
fn words_field(field: &Ident) -> Ident {
    format_ident!("{field}_in_words")
}

/// Scratch of an output that the device keeps in words.
fn out_words_field(field: &Ident) -> Ident {
    format_ident!("{field}_out_words")
}
