//! Tokens of the text form, each with its line.

use super::ParseError;
use std::fmt;

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Letters, digits, `_`, `.`; starts with a letter or `_`.
    Word(String),
    /// Starts with a digit; may hold a fraction, an exponent and a type suffix.
    Number(String),
    /// Quoted text.
    Str(String),
    /// `%name` or `%"any name"`.
    Value(String),
    /// `#3`.
    Blob(u32),
    /// Everything else.
    Punct(&'static str),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(w) | Token::Number(w) => write!(f, "`{w}`"),
            Token::Str(s) => write!(f, "{s:?}"),
            Token::Value(v) => write!(f, "`%{v}`"),
            Token::Blob(n) => write!(f, "`#{n}`"),
            Token::Punct(p) => write!(f, "`{p}`"),
        }
    }
}

/// Longer ones first.
const PUNCTS: [&str; 25] = [
    "<<", ">>", "==", "!=", "<=", "..", "{", "}", "(", ")", "[", "]", ",", ":", ";", "=", "+", "-", "*", "/", "%", "&",
    "|", "^", "<",
];

pub(super) fn tokens(text: &str) -> Result<Vec<(u32, Token)>, ParseError> {
    let mut out = vec![];
    let mut depth = 0u32;
    for (i, line) in text.lines().enumerate() {
        let mut rest = line.trim_start();
        while !rest.is_empty() {
            // Inside parentheses a semicolon ends a `let`; elsewhere it starts a comment.
            if rest.starts_with(';') && depth == 0 {
                break;
            }
            let (token, len) = next(rest).map_err(|message| ParseError { line: i as u32 + 1, message })?;
            match token {
                Token::Punct("(") => depth += 1,
                Token::Punct(")") => depth = depth.saturating_sub(1),
                _ => {}
            }
            out.push((i as u32 + 1, token));
            rest = rest[len..].trim_start();
        }
    }
    Ok(out)
}

fn next(s: &str) -> Result<(Token, usize), String> {
    let first = s.chars().next().unwrap_or(' ');
    if first.is_ascii_digit() {
        let len = number_len(s);
        return Ok((Token::Number(s[..len].to_string()), len));
    }
    if first.is_ascii_alphabetic() || first == '_' {
        let len = word_len(s);
        return Ok((Token::Word(s[..len].to_string()), len));
    }
    if first == '"' {
        let (text, len) = quoted(s)?;
        return Ok((Token::Str(text), len));
    }
    if first == '%' && s[1..].starts_with('"') {
        let (text, len) = quoted(&s[1..])?;
        return Ok((Token::Value(text), len + 1));
    }
    if first == '%' && word_len(&s[1..]) > 0 {
        let len = word_len(&s[1..]);
        return Ok((Token::Value(s[1..1 + len].to_string()), len + 1));
    }
    if first == '#' {
        let len = s[1..].bytes().take_while(u8::is_ascii_digit).count();
        let n = s[1..1 + len].parse().map_err(|_| "`#` without a number".to_string())?;
        return Ok((Token::Blob(n), len + 1));
    }
    match PUNCTS.iter().find(|p| s.starts_with(**p)) {
        Some(p) => Ok((Token::Punct(p), p.len())),
        None => Err(format!("{first:?} is no part of the text form")),
    }
}

fn word_len(s: &str) -> usize {
    s.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.')).count()
}

/// Digits, a fraction (a dot before a digit), an exponent with its sign, letters of a suffix.
fn number_len(s: &str) -> usize {
    let b = s.as_bytes();
    let mut i = 0;
    while i < b.len() {
        let sign = matches!(b[i], b'-' | b'+') && b[i - 1] == b'e' && b.get(i + 1).is_some_and(u8::is_ascii_digit);
        let dot = b[i] == b'.' && b.get(i + 1).is_some_and(u8::is_ascii_digit);
        if !(b[i].is_ascii_alphanumeric() || sign || dot) {
            break;
        }
        i += 1;
    }
    i
}

/// The text of a quoted string at the start of `s`, and its length with quotes; escapes as Rust's `{:?}` writes them.
fn quoted(s: &str) -> Result<(String, usize), String> {
    let mut out = String::new();
    let mut chars = s.char_indices().skip(1);
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return Ok((out, i + 1)),
            '\\' => {
                let (_, e) = chars.next().ok_or("an escape at the end of the line")?;
                out.push(match e {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    '0' => '\0',
                    '\\' | '"' | '\'' => e,
                    'u' => {
                        let hex: String =
                            chars.by_ref().map(|(_, c)| c).skip(1).take_while(|&c| c != '}').take(8).collect();
                        let code = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
                        code.ok_or("a malformed \\u escape")?
                    }
                    _ => return Err(format!("unknown escape \\{e}")),
                });
            }
            _ => out.push(c),
        }
    }
    Err("a quoted text without end".to_string())
}
