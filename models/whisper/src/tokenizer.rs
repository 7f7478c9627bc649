//! Text of tokens, from `tokenizer.json`: byte-level vocabularies, where each token is a few bytes of UTF-8.

use crate::facts::FactsError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of each token, and names of the special ones.
#[derive(Debug, Clone, Default)]
pub struct Tokenizer {
    bytes: BTreeMap<u32, Vec<u8>>,
    special: BTreeMap<u32, String>,
}

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Model {
    vocab: BTreeMap<String, u32>,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
}

impl Tokenizer {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// A file that is missing, or no byte-level vocabulary.
    pub fn read(path: &Path) -> Result<Tokenizer, FactsError> {
        let refuse = |fault: String| FactsError { path: path.to_owned(), fault };
        let text = std::fs::read(path).map_err(|e| refuse(e.to_string()))?;
        Tokenizer::parse(&text).map_err(refuse)
    }

    /// From the contents of `tokenizer.json`.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(json: &[u8]) -> Result<Tokenizer, String> {
        let file: File = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        let special: BTreeMap<u32, String> = file.added_tokens.into_iter().map(|t| (t.id, t.content)).collect();
        let letters = letters();
        let mut bytes = BTreeMap::new();
        for (word, id) in file.model.vocab.iter().filter(|(_, id)| !special.contains_key(id)) {
            let word: Option<Vec<u8>> = word.chars().map(|c| letters.get(&c).copied()).collect();
            bytes.insert(*id, word.ok_or_else(|| format!("token {id} is not made of bytes"))?);
        }
        Ok(Tokenizer { bytes, special })
    }

    /// The text of tokens; special ones and timestamps give nothing. Bytes that are no UTF-8 become U+FFFD.
    pub fn text(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens.iter().filter_map(|t| self.bytes.get(t)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Bytes of one token.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.bytes.get(&token).map_or(&[], Vec::as_slice)
    }

    /// The id of a special token, such as `<|de|>`.
    pub fn special(&self, name: &str) -> Option<u32> {
        self.special.iter().find(|(_, content)| *content == name).map(|(id, _)| *id)
    }

    /// The code of the language that a token names, as `de`.
    pub fn language(&self, token: u32) -> Option<&str> {
        self.special.get(&token)?.strip_prefix("<|")?.strip_suffix("|>")
    }
}

/// The byte that each letter of a byte-level vocabulary stands for: printable Latin-1 is itself, the others, in order, are the
/// letters from U+0100 on.
fn letters() -> BTreeMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let themselves = (0..=255u8).filter(|b| printable(*b)).map(|b| (char::from(b), b));
    let others = (0..=255u8).filter(|b| !printable(*b)).zip('\u{100}'..).map(|(b, c)| (c, b));
    themselves.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"model": {"vocab": {"Ġhi": 0, "Ã": 1, "¶": 2, "Ċ": 3, "!": 4}},
        "added_tokens": [{"id": 5, "content": "<|endoftext|>"}, {"id": 6, "content": "<|de|>"}]}"#;

    #[test]
    fn letters_are_bytes_and_bytes_of_several_tokens_are_one_character() {
        let t = Tokenizer::parse(JSON.as_bytes()).expect("a vocabulary");
        assert_eq!(t.text(&[0, 1, 2, 5, 4, 3, 99]), " hiö!\n");
        assert_eq!(t.text(&[1]), "\u{fffd}");
        assert_eq!(t.bytes(1), [0xc3]);
        assert_eq!(letters().len(), 256);
    }

    #[test]
    fn special_tokens_have_names_and_languages_codes() {
        let t = Tokenizer::parse(JSON.as_bytes()).expect("a vocabulary");
        assert_eq!((t.special("<|de|>"), t.special("<|xx|>"), t.language(6)), (Some(6), None, Some("de")));
        assert!(Tokenizer::parse(br#"{"model": {"vocab": {"\u4e2d": 0}}}"#).is_err(), "no byte-level vocabulary");
    }
}
