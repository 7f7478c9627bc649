//! Names of the plan as Rust identifiers: the only place that makes them.

use proc_macro2::{Ident, Span};
use std::collections::BTreeSet;

/// Words that cannot be names of values, and modules of every generated crate.
const TAKEN: [&str; 56] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod",
    "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static", "struct", "super", "trait", "true",
    "try", "type", "typeof", "union", "unsafe", "unsized", "use", "virtual", "where", "while", "yield", "kernels",
    "lib", "main", "sizes",
];

/// `snake_case`: letters, digits and underscores of the name, others as underscores (one for several behind a letter or digit), never
/// empty and never a keyword.
pub(crate) fn snake(name: &str) -> String {
    let mut word = String::with_capacity(name.len());
    for c in name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }) {
        // Two underscores inside a name are no snake case.
        if c != '_' || !word.trim_start_matches('_').ends_with('_') {
            word.push(c);
        }
    }
    if word.is_empty() || word.starts_with(|c: char| c.is_ascii_digit()) {
        word.insert(0, '_');
    }
    if word.chars().all(|c| c == '_') {
        word.push('x');
    }
    if TAKEN.contains(&word.as_str()) {
        word.push('_');
    }
    word
}

/// `UPPER_CASE` of a name.
pub(crate) fn upper(name: &str) -> String {
    snake(name).trim_end_matches('_').to_ascii_uppercase()
}

/// `CamelCase` of a name.
pub(crate) fn camel(name: &str) -> String {
    let parts: Vec<String> = name.split(|c: char| !c.is_ascii_alphanumeric()).map(capitalised).collect();
    let word = parts.concat();
    let is_name = word.starts_with(|c: char| c.is_ascii_alphabetic()) && word != "Self";
    if is_name { word } else { format!("Program{word}") }
}

fn capitalised(part: &str) -> String {
    let mut chars = part.chars();
    chars.next().map_or(String::new(), |first| first.to_ascii_uppercase().to_string() + chars.as_str())
}

/// An identifier of this text.
pub(crate) fn ident(word: &str) -> Ident {
    Ident::new(word, Span::call_site())
}

/// Hands out words, each once: a word that was taken gets a number.
#[derive(Default)]
pub(crate) struct Unique(BTreeSet<String>);

impl Unique {
    /// The word, or the word with the first free number from 2 on.
    pub(crate) fn take(&mut self, word: String) -> String {
        self.first_free(word, "_")
    }

    /// As [`Unique::take`], for a type: numbered without an underscore.
    pub(crate) fn take_type(&mut self, word: String) -> String {
        self.first_free(word, "V")
    }

    fn first_free(&mut self, word: String, mark: &str) -> String {
        let free = |candidate: &String| !self.0.contains(candidate);
        let numbered = (2..).map(|n| format!("{word}{mark}{n}"));
        let chosen = std::iter::once(word.clone()).chain(numbered).find(free).expect("numbers do not end");
        self.0.insert(chosen.clone());
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers_that_parse() {
        for name in ["x", "type", "layers.0.weight", "0", "", "self", "Über", "kernels", "---", "_", "a b"] {
            for word in [snake(name), upper(name), camel(name)] {
                syn::parse_str::<Ident>(&word).unwrap_or_else(|e| panic!("{name:?} became {word:?}: {e}"));
            }
        }
        assert_eq!(
            (snake("Layers.0"), upper("map-add"), camel("sam2_large")),
            ("layers_0".into(), "MAP_ADD".into(), "Sam2Large".into())
        );
        assert_eq!((snake("steps_copy__1"), snake("__x__")), ("steps_copy_1".into(), "__x_".into()));
    }

    #[test]
    fn unique_words_differ() {
        let mut unique = Unique::default();
        let words: Vec<String> = ["a", "a", "a_2", "a"].iter().map(|w| unique.take((*w).to_string())).collect();
        assert_eq!(words, ["a", "a_2", "a_2_2", "a_3"]);
        let mut types = Unique::default();
        let words = ["norm_5_4", "norm_54"].map(|name| types.take_type(camel(name)));
        assert_eq!(words, ["Norm54", "Norm54V2"]);
    }
}
