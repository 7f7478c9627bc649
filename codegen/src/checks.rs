//! Checks of arguments (`src/checks.rs` of a generated crate): only the functions that its entry points call.

use proc_macro2::TokenStream;
use quote::quote;

use crate::docs::file_docs;
use crate::imports::{import, import_runtime, names};

type Emit = fn() -> TokenStream;

/// Names of all functions, in the order of the file.
const FUNCTIONS: [(&str, Emit); 7] = [
    ("argument", argument_fn),
    ("bools", bools_fn),
    ("extent", extent_fn),
    ("found", found_fn),
    ("len", len_fn),
    ("size", size_fn),
    ("word", word_fn),
];

/// The `use` line of a file with these tokens.
pub(crate) fn import_checks(tokens: &TokenStream) -> TokenStream {
    import(&quote!(crate::checks), &FUNCTIONS.map(|(name, _)| name), tokens)
}

/// `src/checks.rs` for files with these `use` lines; nothing if none is used.
pub(crate) fn checks_file(imports: &TokenStream) -> Option<TokenStream> {
    let used: Vec<TokenStream> =
        FUNCTIONS.iter().filter(|(name, _)| names(imports, name)).map(|(_, function)| function()).collect();
    let calls = used.iter().any(|function| names(function, "argument"));
    let error = (calls && !names(imports, "argument")).then(argument_fn);
    let header = file_docs("Checks of sizes and arguments, before anything is submitted.");
    let body = quote!(#(#used)* #error);
    let runtime = import_runtime(&body);
    (!used.is_empty()).then(|| quote!(#header #runtime #body))
}

fn bools_fn() -> TokenStream {
    quote! {
        /// Kernels rely on truth values being 0 or 1.
        pub(crate) fn bools(name: &str, values: &[u8]) -> Result<(), Error> {
            match values.iter().find(|value| **value > 1) {
                None => Ok(()),
                Some(found) => Err(argument(name, "bytes that are 0 or 1", found)),
            }
        }
    }
}

fn extent_fn() -> TokenStream {
    quote! {
        /// A number of elements.
        pub(crate) fn extent(value: i64) -> Result<usize, Error> {
            let what = "a number of elements";
            usize::try_from(value).map_err(|_| argument(what, "a size of this machine", value))
        }
    }
}

fn found_fn() -> TokenStream {
    quote! {
        /// A size that the device has found in the data is in the range that the memory was planned for.
        pub(crate) fn found(name: &str, word: u32, min: i64, max: i64) -> Result<i64, Error> {
            let value = i64::from(word.cast_signed());
            if (min..=max).contains(&value) {
                return Ok(value);
            }
            Err(Error::Found { name: name.to_string(), value, min, max })
        }
    }
}

fn len_fn() -> TokenStream {
    quote! {
        /// A slice has as many elements as its shape says.
        pub(crate) fn len(name: &str, got: usize, need: usize) -> Result<(), Error> {
            if got == need {
                return Ok(());
            }
            Err(argument(&format!("elements of {name}"), &need.to_string(), got))
        }
    }
}

fn size_fn() -> TokenStream {
    quote! {
        /// A size is in the range that the memory was planned for.
        pub(crate) fn size(name: &str, value: usize, min: i64, max: i64) -> Result<i64, Error> {
            let given = i64::try_from(value).unwrap_or(i64::MAX);
            if (min..=max).contains(&given) {
                return Ok(given);
            }
            Err(argument(&format!("size {name}"), &format!("{min} to {max}"), value))
        }
    }
}

fn word_fn() -> TokenStream {
    quote! {
        /// A word of the symbol table.
        pub(crate) fn word(value: i64) -> Result<u32, Error> {
            let what = "a size derived from the arguments";
            u32::try_from(value).map_err(|_| argument(what, "a size of 32 bits", value))
        }
    }
}

fn argument_fn() -> TokenStream {
    quote! {
        pub(crate) fn argument(what: &str, need: &str, got: impl ToString) -> Error {
            Error::Argument { what: what.to_string(), need: need.to_string(), got: got.to_string() }
        }
    }
}
