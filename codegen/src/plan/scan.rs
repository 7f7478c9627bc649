//! Tokens of the plan's text form, and the errors of reading it.

use std::str::FromStr;

/// Why a text is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Something else was expected here.
    #[error("line {line}: expected {expected}, found {found}")]
    Expected {
        /// Line, from 1.
        line: usize,
        /// What may stand here.
        expected: String,
        /// What stands here.
        found: String,
    },
    /// A kernel's files are not at hand.
    #[error("line {line}: no files of kernel {name:?}")]
    MissingKernel {
        /// Line, from 1.
        line: usize,
        /// Kernel.
        name: String,
    },
    /// A kernel's words are not the ones that the text pins.
    #[error("line {line}: kernel {name:?} has hash {found:016x}, the plan pins {pinned:016x}")]
    KernelHash {
        /// Line, from 1.
        line: usize,
        /// Kernel.
        name: String,
        /// Hash in the text.
        pinned: u64,
        /// Hash of the words at hand.
        found: u64,
    },
}

/// One token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Letters, digits, `_`, `.`, `$`, `#`, `-`.
    Word(String),
    /// A quoted string, unescaped.
    Text(String),
    /// A sign.
    Sign(char),
}

impl Token {
    fn describe(&self) -> String {
        match self {
            Token::Word(word) => format!("`{word}`"),
            Token::Text(text) => format!("{text:?}"),
            Token::Sign(sign) => format!("`{sign}`"),
        }
    }
}

/// The tokens of one line and a position among them.
pub(super) struct Line {
    number: usize,
    tokens: Vec<Token>,
    next: usize,
    /// Formulas that are being read.
    depth: u32,
}

/// Nesting of formulas: reading, printing and dropping them recurse.
const MAX_DEPTH: u32 = 64;

impl Line {
    /// Splits a line into tokens.
    pub(super) fn scan(number: usize, text: &str) -> Result<Line, ParseError> {
        let mut line = Line { number, tokens: Vec::new(), next: 0, depth: 0 };
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let (token, after) = match first {
                '"' => scan_text(rest).ok_or_else(|| line.error("a quoted string", rest.to_string()))?,
                c if is_word(c) => scan_word(rest),
                c if "[](){},;+*/%".contains(c) => (Token::Sign(c), &rest[1..]),
                c => return Err(line.error("a token", format!("`{c}`"))),
            };
            line.tokens.push(token);
            rest = after.trim_start();
        }
        Ok(line)
    }

    /// True when every token was taken.
    pub(super) fn at_end(&self) -> bool {
        self.next == self.tokens.len()
    }

    /// Demands that every token was taken.
    pub(super) fn end(&self) -> Result<(), ParseError> {
        if self.at_end() { Ok(()) } else { Err(self.expected("the end of the line")) }
    }

    /// The error "expected this, found the next token".
    pub(super) fn expected(&self, what: &str) -> ParseError {
        let found = self.tokens.get(self.next).map_or("the end of the line".to_string(), Token::describe);
        self.error(what, found)
    }

    /// A formula begins.
    pub(super) fn enter(&mut self) -> Result<(), ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(self.expected(&format!("formulas that nest at most {MAX_DEPTH} deep")))
        } else {
            Ok(())
        }
    }

    /// A formula ends.
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Line number, from 1.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    fn error(&self, expected: &str, found: String) -> ParseError {
        ParseError::Expected { line: self.number, expected: expected.to_string(), found }
    }

    /// Takes the next token if it is a word.
    pub(super) fn word(&mut self, what: &str) -> Result<String, ParseError> {
        match self.tokens.get(self.next) {
            Some(Token::Word(word)) => {
                self.next += 1;
                Ok(word.clone())
            }
            _ => Err(self.expected(what)),
        }
    }

    /// Takes a quoted string.
    pub(super) fn text(&mut self) -> Result<String, ParseError> {
        match self.tokens.get(self.next) {
            Some(Token::Text(text)) => {
                self.next += 1;
                Ok(text.clone())
            }
            _ => Err(self.expected("a quoted string")),
        }
    }

    /// Takes this word if it comes next.
    pub(super) fn has_word(&mut self, word: &str) -> bool {
        let hit = matches!(self.tokens.get(self.next), Some(Token::Word(w)) if w == word);
        self.next += usize::from(hit);
        hit
    }

    /// Demands this word.
    pub(super) fn key(&mut self, word: &str) -> Result<(), ParseError> {
        if self.has_word(word) { Ok(()) } else { Err(self.expected(&format!("`{word}`"))) }
    }

    /// Takes this sign if it comes next.
    pub(super) fn has_sign(&mut self, sign: char) -> bool {
        let hit = self.tokens.get(self.next) == Some(&Token::Sign(sign));
        self.next += usize::from(hit);
        hit
    }

    /// Demands this sign.
    pub(super) fn sign(&mut self, sign: char) -> Result<(), ParseError> {
        if self.has_sign(sign) { Ok(()) } else { Err(self.expected(&format!("`{sign}`"))) }
    }

    /// Takes a word that parses as a `T`.
    pub(super) fn parse<T: FromStr>(&mut self, what: &str) -> Result<T, ParseError> {
        let at = self.next;
        let word = self.word(what)?;
        word.parse().map_err(|_| {
            self.next = at;
            self.expected(what)
        })
    }

    /// Takes `word value`.
    pub(super) fn field<T: FromStr>(&mut self, word: &str) -> Result<T, ParseError> {
        self.key(word)?;
        self.parse("a number")
    }

    /// Takes `word value` with a hexadecimal value of 64 bits.
    pub(super) fn hash(&mut self) -> Result<u64, ParseError> {
        self.key("hash")?;
        let word = self.word("a hash")?;
        u64::from_str_radix(&word, 16).map_err(|_| self.error("a hash", format!("`{word}`")))
    }

    /// Takes `[item, item, …]`.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Line) -> Result<T, ParseError>,
    ) -> Result<Vec<T>, ParseError> {
        self.sign('[')?;
        let mut items = Vec::new();
        while !self.has_sign(']') {
            if !items.is_empty() {
                self.sign(',')?;
            }
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// Takes a list of words that parse as `T`.
    pub(super) fn numbers<T: FromStr>(&mut self) -> Result<Vec<T>, ParseError> {
        self.list(|line| line.parse("a number"))
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_.$#-".contains(c)
}

fn scan_word(text: &str) -> (Token, &str) {
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    (Token::Word(text[..end].to_string()), &text[end..])
}

/// Reads one string in the form that `{:?}` prints.
fn scan_text(text: &str) -> Option<(Token, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((Token::Text(value), &text[at + 1..])),
            '\\' => {
                let (at, kind) = chars.next()?;
                value.push(unescape(kind, &text[at..])?);
                if kind == 'u' {
                    chars.find(|(_, c)| *c == '}')?;
                }
            }
            c => value.push(c),
        }
    }
    None
}

/// The character of an escape; `rest` starts at the character after the backslash.
fn unescape(kind: char, rest: &str) -> Option<char> {
    match kind {
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        '0' => Some('\0'),
        '\\' | '"' | '\'' => Some(kind),
        'u' => {
            let digits = rest.strip_prefix("u{")?.split_once('}')?.0;
            char::from_u32(u32::from_str_radix(digits, 16).ok()?)
        }
        _ => None,
    }
}
