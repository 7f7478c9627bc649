//! JSON as the export writes it: a tree that borrows from the text, with duplicate keys refused, and accessors that say where a
//! field is missing. torch 2.5 and 2.6 wrote bare `NaN` and `Infinity`, which are read as the strings that later versions write.

use super::error::ImportError;
use super::limits::Limits;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// A JSON value. Objects keep their order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Cow<'a, str>),
    List(Vec<Json<'a>>),
    Map(Vec<(Cow<'a, str>, Json<'a>)>),
}

/// Text that is valid JSON: bare non-finite numbers quoted, size and nesting within the limits.
pub(super) fn prepare<'t>(bytes: &'t [u8], at: &str, limits: &Limits) -> Result<Cow<'t, str>, ImportError> {
    ImportError::limit("bytes of JSON", bytes.len() as u64, limits.json_bytes)?;
    let text = std::str::from_utf8(bytes).map_err(|e| ImportError::format(at, format!("not UTF-8: {e}")))?;
    let mut scan = Scan::default();
    for (i, b) in text.bytes().enumerate() {
        scan.byte(i, b);
        if scan.max_depth as u64 > limits.json_depth {
            ImportError::limit("nesting of JSON", scan.max_depth as u64, limits.json_depth)?;
        }
    }
    ImportError::limit("values of JSON", scan.n_values, limits.json_values)?;
    Ok(quote_words(text, &scan.words))
}

/// Parses prepared text.
pub(super) fn parse<'a>(text: &'a str, at: &str) -> Result<Json<'a>, ImportError> {
    serde_json::from_str(text).map_err(|e| ImportError::format(at, e.to_string()))
}

/// What one pass over the text finds: nesting, number of values, and the places of bare words that are no JSON.
#[derive(Default)]
struct Scan {
    in_string: bool,
    escaped: bool,
    depth: usize,
    max_depth: usize,
    n_values: u64,
    words: Vec<usize>,
}

impl Scan {
    fn byte(&mut self, i: usize, b: u8) {
        if self.in_string {
            match b {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match b {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.depth += 1;
                self.max_depth = self.max_depth.max(self.depth);
                self.n_values += 1;
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b',' | b':' => self.n_values += 1,
            b'N' | b'I' => self.words.push(i),
            _ => {}
        }
    }
}

/// Quotes `NaN`, `Infinity` and `-Infinity` at the given places.
fn quote_words<'t>(text: &'t str, at: &[usize]) -> Cow<'t, str> {
    if at.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 2 * at.len());
    let mut done = 0;
    for &i in at {
        // The second `N` of `NaN` may begin another: `NaNaN`.
        if i < done {
            continue;
        }
        let Some(word) = ["NaN", "Infinity"].into_iter().find(|w| text[i..].starts_with(w)) else { continue };
        let start = if i > done && text.as_bytes()[i - 1] == b'-' { i - 1 } else { i };
        out.push_str(&text[done..start]);
        out.push('"');
        out.push_str(&text[start..i + word.len()]);
        out.push('"');
        done = i + word.len();
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

impl<'a> Json<'a> {
    /// A field of an object, if present.
    pub(super) fn get(&self, key: &str) -> Option<&Json<'a>> {
        match self {
            Json::Map(m) => m.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// A field that must be there.
    pub(super) fn need(&self, key: &str, at: &str) -> Result<&Json<'a>, ImportError> {
        self.get(key).ok_or_else(|| ImportError::format(at, format!("field `{key}` is missing")))
    }

    /// A string.
    pub(super) fn str(&self, at: &str) -> Result<&str, ImportError> {
        match self {
            Json::Str(s) => Ok(s),
            _ => Err(self.expected("a string", at)),
        }
    }

    /// An integer.
    pub(super) fn int(&self, at: &str) -> Result<i64, ImportError> {
        match self {
            Json::Int(v) => Ok(*v),
            _ => Err(self.expected("an integer", at)),
        }
    }

    /// A number; infinities and NaN are strings.
    pub(super) fn float(&self, at: &str) -> Result<f64, ImportError> {
        match self {
            Json::Float(v) => Ok(*v),
            Json::Int(v) => Ok(*v as f64),
            Json::Str(s) if s == "Infinity" => Ok(f64::INFINITY),
            Json::Str(s) if s == "-Infinity" => Ok(f64::NEG_INFINITY),
            Json::Str(s) if s == "NaN" || s == "-NaN" => Ok(f64::NAN),
            _ => Err(self.expected("a number", at)),
        }
    }

    /// A truth value.
    pub(super) fn bool(&self, at: &str) -> Result<bool, ImportError> {
        match self {
            Json::Bool(v) => Ok(*v),
            _ => Err(self.expected("true or false", at)),
        }
    }

    /// A list.
    pub(super) fn list(&self, at: &str) -> Result<&[Json<'a>], ImportError> {
        match self {
            Json::List(v) => Ok(v),
            _ => Err(self.expected("a list", at)),
        }
    }

    /// The entries of an object.
    pub(super) fn map(&self, at: &str) -> Result<&[(Cow<'a, str>, Json<'a>)], ImportError> {
        match self {
            Json::Map(v) => Ok(v),
            _ => Err(self.expected("an object", at)),
        }
    }

    /// A tagged union: an object with exactly one key.
    pub(super) fn union(&self, at: &str) -> Result<(&str, &Json<'a>), ImportError> {
        match self.map(at)? {
            [(tag, value)] => Ok((tag, value)),
            other => Err(ImportError::format(at, format!("a tagged union has one key, this one has {}", other.len()))),
        }
    }

    fn expected(&self, what: &str, at: &str) -> ImportError {
        let found = match self {
            Json::Null => "null".to_string(),
            Json::Bool(v) => v.to_string(),
            Json::Int(v) => v.to_string(),
            Json::Float(v) => v.to_string(),
            Json::Str(s) => shortened(s),
            Json::List(items) => format!("a list of {}", items.len()),
            Json::Map(fields) => format!("an object of {} fields", fields.len()),
        };
        ImportError::format(at, format!("expected {what}, found {found}"))
    }
}

/// A quoted text, without what is over 60 characters.
fn shortened(text: &str) -> String {
    let shown: String = text.chars().take(60).collect();
    if shown.len() < text.len() { format!("{shown:?}…") } else { format!("{shown:?}") }
}

/// An object key, borrowed where it holds no escape.
struct Key<'a>(Cow<'a, str>);

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Borrowed(v)))
    }

    fn visit_str<E>(self, v: &str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Owned(v.to_string())))
    }
}

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Key<'de>, D::Error> {
        d.deserialize_str(KeyVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Json<'de>, E> {
        Ok(Json::Int(v))
    }

    fn visit_u64<E: Error>(self, v: u64) -> Result<Json<'de>, E> {
        i64::try_from(v).map(Json::Int).map_err(|_| E::custom(format!("integer {v} is over 64 bits")))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Json<'de>, E> {
        Ok(Json::Float(v))
    }

    fn visit_borrowed_str<E>(self, v: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Str(Cow::Borrowed(v)))
    }

    fn visit_str<E>(self, v: &str) -> Result<Json<'de>, E> {
        Ok(Json::Str(Cow::Owned(v.to_string())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json<'de>, A::Error> {
        let mut out = vec![];
        while let Some(v) = seq.next_element()? {
            out.push(v);
        }
        Ok(Json::List(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json<'de>, A::Error> {
        let mut out: Vec<(Cow<'de, str>, Json<'de>)> = vec![];
        while let Some(Key(key)) = map.next_key()? {
            out.push((key, map.next_value()?));
        }
        match repeated_key(&out) {
            Some(key) => Err(A::Error::custom(format!("key `{key}` is given twice"))),
            None => Ok(Json::Map(out)),
        }
    }
}

fn repeated_key<'m>(map: &'m [(Cow<'_, str>, Json<'_>)]) -> Option<&'m str> {
    let mut keys: Vec<&str> = map.iter().map(|(k, _)| k.as_ref()).collect();
    keys.sort_unstable();
    keys.windows(2).find(|w| w[0] == w[1]).map(|w| w[0])
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Json<'de>, D::Error> {
        d.deserialize_any(JsonVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::limits::LIMITS;

    fn read(text: &str) -> Result<String, ImportError> {
        let text = prepare(text.as_bytes(), "test", &LIMITS)?;
        parse(&text, "test").map(|j| format!("{j:?}"))
    }

    #[test]
    fn bare_non_finite_numbers_read_as_strings_and_strings_stay() {
        let text = prepare(br#"[NaN, -Infinity, Infinity, "NaN, \"Infinity", 1]"#, "test", &LIMITS).expect("valid");
        let json = parse(&text, "test").expect("valid");
        let list = json.list("test").expect("list");
        assert!(list[0].float("x").expect("number").is_nan());
        assert_eq!(list[1].float("x").expect("number"), f64::NEG_INFINITY);
        assert_eq!(list[2].float("x").expect("number"), f64::INFINITY);
        assert_eq!(list[3].str("x").expect("string"), "NaN, \"Infinity");
    }

    #[test]
    fn other_bare_words_stay_errors() {
        assert!(read("[Nan]").is_err());
        assert!(read("[Infinite]").is_err());
    }

    #[test]
    fn repeated_keys_are_refused() {
        let error = read(r#"{"a": 1, "b": {"c": 1, "c": 2}}"#).expect_err("repeated");
        assert!(error.to_string().contains("`c` is given twice"), "{error}");
    }

    #[test]
    fn nesting_and_counts_are_bounded_before_parsing() {
        let deep = "[".repeat(101) + &"]".repeat(101);
        assert!(matches!(read(&deep), Err(ImportError::Limit { what: "nesting of JSON", .. })));
        let small = Limits { json_values: 10, ..LIMITS };
        assert!(matches!(prepare(b"[1,1,1,1,1,1,1,1,1,1,1,1]", "t", &small), Err(ImportError::Limit { .. })));
        assert!(read("18446744073709551615").is_err());
    }
}
