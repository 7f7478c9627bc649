//! `src/lib.rs` of a generated crate: the program's struct, what it needs of a device, and its entry points.

use proc_macro2::{Literal, TokenStream};
use quote::{format_ident, quote};

use crate::docs::{docs, file_docs};
use crate::entry::EntryNames;
use crate::ident::{camel, ident};
use crate::imports::import_runtime;
use crate::plan::{Elem, Plan, Requirements};
use crate::weights::FILE_NAME;

/// Modules that exist only when something is in them.
pub(crate) struct Optional {
    pub(crate) c: bool,
    pub(crate) checks: bool,
    pub(crate) words: bool,
}

/// `src/lib.rs`.
pub(crate) fn lib_file(plan: &Plan, entries: &[EntryNames<'_>], optional: &Optional) -> TokenStream {
    let header = file_docs(&crate_docs(plan, entries));
    let mut modules: Vec<String> = entries.iter().map(|e| e.module.to_string()).collect();
    modules.push("kernels".to_string());
    modules.extend(optional.checks.then(|| "checks".to_string()));
    modules.extend(optional.words.then(|| "words".to_string()));
    modules.extend(optional.c.then(|| "c".to_string()));
    modules.sort();
    let modules = modules.iter().map(|m| {
        let (module, feature) = (ident(m), (m == "c").then(|| quote!(#[cfg(feature = "c-api")])));
        quote!(#feature mod #module;)
    });
    let mut exports: Vec<(String, TokenStream)> =
        entries.iter().map(|entry| (entry.module.to_string(), exports(entry))).collect();
    exports.push((
        "jvc_runtime".to_string(),
        quote!(
            pub use jvc_runtime;
        ),
    ));
    exports.sort_by(|a, b| a.0.cmp(&b.0));
    let exports = exports.into_iter().map(|(_, tokens)| tokens);
    let body = [program_static(plan), model_struct(plan, entries)];
    let body = quote!(#(#body)*);
    let runtime = import_runtime(&body);
    quote! {
        #header
        #(#modules)*
        #(#exports)*
        #runtime
        #body
    }
}

fn crate_docs(plan: &Plan, entries: &[EntryNames<'_>]) -> String {
    let mut text = format!(
        "`{}` for `{}`: a program compiled ahead of time. Generated, not edited: change the model or the options.\n\n",
        plan.name, plan.device
    );
    text += "`plan.txt` lists every step, `memory.txt` every buffer, `decisions.txt` the reasons. Loading records the steps\n\
             once; a run writes inputs and submits.\n";
    if let Some(entry) = entries.first() {
        text += &format!("\n```no_run\n{}\n```\n", example(plan, entry));
    }
    text
}

/// The first steps of a user, with the real names; a whole program.
pub(crate) fn example(plan: &Plan, entry: &EntryNames<'_>) -> String {
    let (program, package) = (camel(&plan.name), crate::manifest::package_name(plan));
    let EntryNames { module, inputs, sizes, .. } = entry;
    let mut uses = vec![inputs.to_string(), program.clone()];
    let mut fields = Vec::new();
    if entry.has_sizes() {
        uses.push(sizes.to_string());
        let values: Vec<String> = entry.chosen().map(|(_, s, name)| format!("{name}: {}", s.max)).collect();
        fields.push(format!("sizes: {sizes} {{ {} }}", values.join(", ")));
    }
    uses.sort();
    let mut lines = vec![
        format!("use {package}::jvc_runtime::{{Error, Gpu, Select, WeightSource}};"),
        format!("use {package}::{{{}}};", uses.join(", ")),
        String::new(),
        "fn main() -> Result<(), Error> {".to_string(),
        "    let gpu = Gpu::open(&Select::Auto)?;".to_string(),
        format!("    let program = {program}::load(&gpu, {})?;", weight_source(plan)),
        format!("    let mut session = program.{module}_session()?;"),
    ];
    for (field, ty, elems) in entry.example_inputs() {
        lines.push(format!("    let {field} = vec![{}; {elems}];", zero(ty)));
        fields.push(format!("{field}: &{field}"));
    }
    lines.push(format!("    let outputs = session.run(&{inputs} {{ {} }})?;", fields.join(", ")));
    lines.push("    println!(\"{outputs:?}\");".to_string());
    lines.push("    Ok(())".to_string());
    lines.push("}".to_string());
    lines.join("\n")
}

fn zero(ty: &str) -> String {
    if ty.starts_with('f') { format!("0.0{ty}") } else { format!("0{ty}") }
}

fn weight_source(plan: &Plan) -> String {
    if plan.weights.chunk_bytes.is_empty() {
        return "WeightSource::None".to_string();
    }
    format!("WeightSource::Path({FILE_NAME:?}.as_ref())")
}

fn exports(names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { module, inputs, outputs, session, sizes, ticket, .. } = names;
    if names.has_sizes() {
        quote!(pub use #module::{#inputs, #outputs, #session, #sizes, #ticket};)
    } else {
        quote!(pub use #module::{#inputs, #outputs, #session, #ticket};)
    }
}

fn program_static(plan: &Plan) -> TokenStream {
    let name = &plan.name;
    let requirements = requirements(&plan.requirements);
    let chunks = plan.weights.chunk_bytes.iter().map(|bytes| Literal::u64_unsuffixed(*bytes));
    let hash = hex(plan.weights.content_hash);
    quote! {
        static PROGRAM: ProgramDesc<'static> = ProgramDesc {
            name: #name,
            requirements: #requirements,
            kernels: &kernels::KERNELS,
            weights: WeightsDesc { chunk_bytes: &[#(#chunks),*], content_hash: #hash },
        };
    }
}

fn hex(value: u64) -> TokenStream {
    let text: Vec<String> = [48, 32, 16, 0].iter().map(|shift| format!("{:04x}", value >> shift & 0xffff)).collect();
    format!("0x{}", text.join("_")).parse().expect("a hexadecimal literal is a token")
}

fn requirements(r: &Requirements) -> TokenStream {
    let mut fields = Vec::new();
    let flags =
        [("int8", r.int8), ("int16", r.int16), ("float16", r.float16), ("int64", r.int64), ("float64", r.float64)];
    let features: Vec<_> = flags.iter().filter(|(_, on)| *on).map(|(name, _)| ident(name)).collect();
    if !features.is_empty() {
        fields.push(quote!(features: Features { #(#features: true,)* ..Features::NONE }));
    }
    if !r.cooperative.is_empty() {
        let shapes = r.cooperative.iter().map(|(m, n, k, elem)| {
            let [m, n, k] = [*m, *n, *k].map(Literal::u32_unsuffixed);
            let (operand, accumulator) = cooperative_types(*elem);
            quote!(Cooperative { m: #m, n: #n, k: #k, operand: #operand, accumulator: #accumulator })
        });
        fields.push(quote!(cooperative: &[#(#shapes),*]));
    }
    let numbers = [
        ("subgroup", r.subgroup),
        ("max_workgroup", r.max_workgroup),
        ("shared_bytes", r.shared_bytes),
        ("push_bytes", r.push_bytes),
    ];
    for (name, value) in numbers.into_iter().filter(|(_, value)| *value != 0) {
        let (name, value) = (ident(name), Literal::u32_unsuffixed(value));
        fields.push(quote!(#name: #value));
    }
    if r.max_allocation_bytes != 0 {
        let bytes = Literal::u64_unsuffixed(r.max_allocation_bytes);
        fields.push(quote!(max_allocation_bytes: #bytes));
    }
    // The runtime's struct has seven fields; rest syntax that adds none is a warning.
    match fields.len() {
        0 => quote!(Requirements::NONE),
        7 => quote!(Requirements { #(#fields),* }),
        _ => quote!(Requirements { #(#fields,)* ..Requirements::NONE }),
    }
}

/// Component types of a fragment, in the runtime's words: floats accumulate in f32, integers in 32 bits.
fn cooperative_types(elem: Elem) -> (&'static str, &'static str) {
    match elem {
        Elem::F16 => ("f16", "f32"),
        Elem::BF16 => ("bf16", "f32"),
        Elem::F32 => ("f32", "f32"),
        Elem::F64 => ("f64", "f64"),
        Elem::I8 => ("s8", "s32"),
        Elem::Bool | Elem::U8 => ("u8", "u32"),
        Elem::I16 => ("s16", "s32"),
        Elem::I32 => ("s32", "s32"),
        Elem::I64 => ("s64", "s64"),
    }
}

fn model_struct(plan: &Plan, entries: &[EntryNames<'_>]) -> TokenStream {
    let program = ident(&camel(&plan.name));
    let text = docs(&format!("`{}` on a device: kernels and weights. Clones share them.", plan.name));
    let weight_bytes = Literal::u64_unsuffixed(plan.weights.payload_bytes());
    let sessions = entries.iter().map(session_fns);
    let arenas = (entries.len() > 1).then(|| arenas_fn(entries));
    quote! {
        #text
        #[derive(Clone)]
        pub struct #program { model: Model }

        impl #program {
            /// Bytes of weights, in the file and on the device.
            pub const WEIGHT_BYTES: u64 = #weight_bytes;

            /// Loads kernels and weights. Compiled kernels are kept in the user's cache folder.
            ///
            /// # Errors
            /// A device that lacks something, or weights that are not this program's.
            pub fn load(gpu: &Gpu, weights: WeightSource<'_>) -> Result<Self, Error> {
                Self::load_with(gpu, weights, &CacheDir::Default)
            }
            /// As `load`, with a cache folder of the caller's choice.
            ///
            /// # Errors
            /// As `load`.
            pub fn load_with(gpu: &Gpu, weights: WeightSource<'_>, cache: &CacheDir) -> Result<Self, Error> {
                Ok(Self { model: Model::load(gpu, &PROGRAM, weights, cache)? })
            }
            #(#sessions)*
            #arenas
            /// The runtime's model.
            pub fn model(&self) -> &Model { &self.model }
        }
    }
}

fn session_fns(names: &EntryNames<'_>) -> TokenStream {
    let EntryNames { module, session, entry, .. } = names;
    let plain = format_ident!("{module}_session");
    let with = format_ident!("{module}_session_with");
    let text = docs(&format!("Records `{}` for one run at a time.\n\n# Errors\nNot enough device memory.", entry.name));
    let text_with = docs(&format!(
        "Records `{}` for several runs in flight, or over shared arenas.\n\n# Errors\nAs `{plain}`; arenas that are too small.",
        entry.name
    ));
    quote! {
        #text
        pub fn #plain(&self) -> Result<#module::#session, Error> {
            Ok(#module::#session::new(self.model.session(&#module::ENTRY)?))
        }
        #text_with
        pub fn #with(&self, options: &SessionOptions) -> Result<#module::#session, Error> {
            Ok(#module::#session::new(self.model.session_with(&#module::ENTRY, options)?))
        }
    }
}

fn arenas_fn(entries: &[EntryNames<'_>]) -> TokenStream {
    let modules = entries.iter().map(|e| &e.module);
    quote! {
        /// Arenas for sessions of all entry points, which then run one after another; see `SessionOptions`.
        ///
        /// # Errors
        /// Not enough device memory.
        pub fn arenas(&self, n_slots: usize) -> Result<Arenas, Error> {
            self.model.arenas(&[#(&#modules::ENTRY),*], n_slots)
        }
    }
}
