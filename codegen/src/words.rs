//! Conversions between elements and the 32-bit words in which a device without the small type keeps them
//! (`src/words.rs` of a generated crate): only those that its ports need.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};

use crate::docs::file_docs;
use crate::imports::names;
use crate::plan::{Elem, Port};

/// How a port's elements get to the device and back.
pub(crate) enum Transfer {
    /// Byte for byte.
    Direct,
    /// Through words, by these functions of `words`.
    Words {
        /// Elements to words.
        from: Ident,
        /// Words to elements.
        to: Ident,
    },
}

/// The transfer of a port; `None` where the type has no form in words.
pub(crate) fn transfer(port: &Port) -> Option<Transfer> {
    let direct = !port.word_storage || matches!(port.elem, Elem::I32 | Elem::F32);
    if direct {
        return Some(Transfer::Direct);
    }
    let name = port.elem.name();
    let words = Transfer::Words { from: format_ident!("from_{name}"), to: format_ident!("to_{name}") };
    (!matches!(port.elem, Elem::I64 | Elem::F64)).then_some(words)
}

type Body = fn() -> TokenStream;

/// Name, then whether it converts to words, element type, and expression of one element.
const FUNCTIONS: [(&str, &str, Body); 12] = [
    ("from_bool", "u8", || quote!(u32::from(*v))),
    ("from_u8", "u8", || quote!(u32::from(*v))),
    ("from_i8", "i8", || quote!(i32::from(*v).cast_unsigned())),
    ("from_i16", "i16", || quote!(i32::from(*v).cast_unsigned())),
    ("from_f16", "u16", || quote!(f16_to_f32(*v))),
    ("from_bf16", "u16", || quote!(u32::from(*v) << 16)),
    ("to_bool", "u8", || quote!(u8::from(*w != 0))),
    ("to_u8", "u8", || quote!(*w as u8)),
    ("to_i8", "i8", || quote!(*w as i8)),
    ("to_i16", "i16", || quote!(*w as i16)),
    ("to_f16", "u16", || quote!(f32_to_f16(*w))),
    ("to_bf16", "u16", || quote!(f32_to_bf16(*w))),
];

/// `src/words.rs` for files with these tokens; nothing if they convert nothing.
pub(crate) fn words_file(tokens: &TokenStream) -> Option<TokenStream> {
    let used = FUNCTIONS.iter().filter(|(name, ..)| names(tokens, name));
    let functions: Vec<TokenStream> = used.map(|(name, elem, body)| function(name, elem, &body())).collect();
    let mut body = quote!(#(#functions)*);
    for (name, helper) in [("f16_to_f32", f16_to_f32 as Body), ("f32_to_f16", f32_to_f16), ("f32_to_bf16", f32_to_bf16)]
    {
        if names(&body, name) {
            body.extend(helper());
        }
    }
    let header = file_docs("Elements as 32-bit words, for a device that keeps them so.");
    (!functions.is_empty()).then(|| quote!(#header #body))
}

fn function(name: &str, elem: &str, body: &TokenStream) -> TokenStream {
    let (function, elem) = (format_ident!("{name}"), format_ident!("{elem}"));
    if name.starts_with("from_") {
        return quote! {
            pub(crate) fn #function(values: &[#elem], words: &mut Vec<u32>) {
                words.clear();
                words.extend(values.iter().map(|v| #body));
            }
        };
    }
    quote! {
        pub(crate) fn #function(words: &[u32], values: &mut Vec<#elem>) {
            values.clear();
            values.extend(words.iter().map(|w| #body));
        }
    }
}

fn f16_to_f32() -> TokenStream {
    quote! {
        /// Bits of the f32 of the same value.
        fn f16_to_f32(half: u16) -> u32 {
            let sign = u32::from(half & 0x8000) << 16;
            let magnitude = u32::from(half & 0x7fff);
            if magnitude >= 0x7c00 {
                return sign | 0x7f80_0000 | (magnitude & 0x3ff) << 13;
            }
            // Scaling by 2^112 moves the exponent's bias and makes subnormals normal, exactly.
            sign | (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits()
        }
    }
}

fn f32_to_f16() -> TokenStream {
    quote! {
        /// Bits of the nearest binary16, ties to even.
        fn f32_to_f16(single: u32) -> u16 {
            let sign = (single >> 16) as u16 & 0x8000;
            let magnitude = single & 0x7fff_ffff;
            let odd = magnitude >> 13 & 1;
            let half = match magnitude {
                0x7f80_0001.. => 0x7e00,
                0x477f_f000.. => 0x7c00,
                // Normal: the exponent's bias changes by 112; the addition carries into it where rounding says so.
                0x3880_0000.. => (magnitude - 0x3800_0000 + 0xfff + odd) >> 13,
                // Subnormal: the addition of 0.5 leaves multiples of 2^-24 in the low bits, rounded.
                _ => (f32::from_bits(magnitude) + 0.5).to_bits() - 0x3f00_0000,
            };
            sign | half as u16
        }
    }
}

fn f32_to_bf16() -> TokenStream {
    quote! {
        /// Bits of the nearest bfloat16, ties to even.
        fn f32_to_bf16(single: u32) -> u16 {
            if single & 0x7fff_ffff > 0x7f80_0000 {
                return (single >> 16) as u16 | 0x40;
            }
            ((single + 0x7fff + (single >> 16 & 1)) >> 16) as u16
        }
    }
}
