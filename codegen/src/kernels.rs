//! The kernel table of a generated crate (`src/kernels.rs`), and the kernels' own files.

use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use crate::artifact::Artifact;
use crate::docs::file_docs;
use crate::ident::{Unique, ident, upper};
use crate::imports::import_runtime;
use crate::plan::Plan;

/// Names of the kernels' index constants, by kernel.
pub(crate) fn kernel_idents(plan: &Plan) -> Vec<Ident> {
    let mut unique = Unique::default();
    // The table's own name is taken.
    unique.take("KERNELS".to_string());
    plan.kernels.iter().map(|kernel| ident(&unique.take(upper(&kernel.name)))).collect()
}

/// `src/kernels.rs`.
pub(crate) fn kernels_file(plan: &Plan) -> TokenStream {
    let header = file_docs(
        "Kernels: `.spv` is what runs, `.spvasm` beside it is its text, for review; `plan.txt` has their specs.",
    );
    let n = Literal::usize_unsuffixed(plan.kernels.len());
    let rows = plan.kernels.iter().map(|kernel| {
        let (name, path) = (&kernel.name, format!("../kernels/{}.spv", kernel.name));
        let n_bases = Literal::u8_unsuffixed(kernel.n_bases);
        let n_operands = Literal::usize_unsuffixed(kernel.operand_bases.len());
        let subgroup = Literal::u32_unsuffixed(kernel.subgroup);
        quote!(kernel(#name, include_bytes!(#path), #n_bases, #n_operands, #subgroup))
    });
    let constants = kernel_idents(plan).into_iter().enumerate().map(|(idx, name)| {
        let idx = Literal::usize_unsuffixed(idx);
        quote!(pub(crate) const #name: u32 = #idx;)
    });
    let helper = if plan.kernels.is_empty() { quote!() } else { kernel_fn() };
    let body = quote! {
        /// Every kernel, at the index that its constant names.
        pub(crate) static KERNELS: [KernelDesc<'static>; #n] = [#(#rows),*];
        #(#constants)*
        #helper
    };
    let runtime = import_runtime(&body);
    quote!(#header #runtime #body)
}

fn kernel_fn() -> TokenStream {
    quote! {
        const fn kernel(
            name: &'static str,
            code: &'static [u8],
            n_bases: u8,
            n_operands: u8,
            subgroup: u32,
        ) -> KernelDesc<'static> {
            KernelDesc { name, code, n_bases, n_operands, subgroup }
        }
    }
}

/// `kernels/NAME.spv` and `kernels/NAME.spvasm`.
pub(crate) fn add_kernel_files(plan: &Plan, artifact: &mut Artifact) {
    for kernel in &plan.kernels {
        artifact.files.insert(format!("kernels/{}.spv", kernel.name), kernel.spirv_bytes());
        artifact.add_text(&format!("kernels/{}.spvasm", kernel.name), kernel.disassembly.clone());
    }
}
