//! Size expressions: sympy's `srepr` (torch 2.6 and later) and its plain form (torch 2.5, keys of range constraints) → [`Dim`].
//!
//! ```text
//! Mul(Integer(4), Symbol('s18', positive=True, integer=True))      4*s18      (s0//4) + 1
//! ```
//!
//! Rounded quotients become floor divisions where the numerator is a sum of products of symbols with positive coefficients (sizes are
//! not negative). All arithmetic is bounded: a hostile expression costs an error, not an overflow.

use super::error::ImportError;
use super::limits::Limits;
use crate::ir::Dim;

/// Parses an expression. `Err` with [`ImportError::Expression`] also for valid expressions that no [`Dim`] can hold.
pub(super) fn parse_dim(text: &str, limits: &Limits) -> Result<Dim, ImportError> {
    let fail = |why: String| {
        let mut shown: String = text.chars().take(120).collect();
        if shown.len() < text.len() {
            shown.push('…');
        }
        ImportError::Expression { text: shown, why }
    };
    ImportError::limit("bytes of a size expression", text.len() as u64, limits.expr_bytes)?;
    let tree = Parser { text: text.as_bytes(), at: 0, depth: 0, limits }.whole().map_err(fail)?;
    let quotient = Lower { max_terms: limits.expr_terms }.lower(&tree).map_err(fail)?;
    quotient.whole().ok_or_else(|| fail("is not a whole number".into()))
}

type Parsed<T> = Result<T, String>;

/// Syntax of both forms.
#[derive(Debug)]
enum Tree {
    Int(i64),
    Float(f64),
    Text(String),
    Name(String),
    Call(String, Vec<Tree>),
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    depth: u64,
    limits: &'a Limits,
}

impl Parser<'_> {
    fn whole(mut self) -> Parsed<Tree> {
        let tree = self.sum()?;
        self.space();
        if self.at == self.text.len() { Ok(tree) } else { Err(format!("unexpected text at byte {}", self.at)) }
    }

    fn space(&mut self) {
        while self.text.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
    }

    fn peek(&self, token: &str) -> bool {
        self.text[self.at..].starts_with(token.as_bytes())
    }

    fn eat(&mut self, token: &str) -> bool {
        self.space();
        let hit = self.peek(token);
        if hit {
            self.at += token.len();
        }
        hit
    }

    fn sum(&mut self) -> Parsed<Tree> {
        self.depth += 1;
        if self.depth > self.limits.expr_depth {
            return Err(format!("nests deeper than {}", self.limits.expr_depth));
        }
        let mut terms = vec![self.product()?];
        loop {
            if self.eat("+") {
                terms.push(self.product()?);
            } else if self.eat("-") {
                terms.push(negate(self.product()?));
            } else {
                break;
            }
        }
        self.depth -= 1;
        Ok(one_or("Add", terms))
    }

    /// Chains are kept flat, and those of divisions short, so that the tree's depth stays proportional to the nesting.
    fn product(&mut self) -> Parsed<Tree> {
        const MAX_DIVISIONS: usize = 4;
        let mut factors = vec![self.unary()?];
        for _ in 0..=MAX_DIVISIONS {
            while !self.peek("**") && self.eat("*") {
                factors.push(self.unary()?);
            }
            let Some(name) = self.division() else { return Ok(one_or("Mul", factors)) };
            factors = vec![call2(name, one_or("Mul", factors), self.unary()?)];
        }
        Err(format!("chains more than {MAX_DIVISIONS} divisions"))
    }

    fn division(&mut self) -> Option<&'static str> {
        let operators = [("//", "FloorDiv"), ("/", "IntTrueDiv"), ("%", "Mod")];
        operators.into_iter().find(|(token, _)| self.eat(token)).map(|(_, name)| name)
    }

    fn unary(&mut self) -> Parsed<Tree> {
        let mut minus = false;
        while self.eat("-") {
            minus = !minus;
        }
        let value = self.power()?;
        Ok(if minus { negate(value) } else { value })
    }

    fn power(&mut self) -> Parsed<Tree> {
        let base = self.atom()?;
        if !self.eat("**") {
            return Ok(base);
        }
        let minus = self.eat("-");
        let exponent = self.atom()?;
        Ok(call2("Pow", base, if minus { negate(exponent) } else { exponent }))
    }

    fn atom(&mut self) -> Parsed<Tree> {
        self.space();
        match self.text.get(self.at) {
            Some(b'(') => {
                self.at += 1;
                let inner = self.sum()?;
                if self.eat(")") { Ok(inner) } else { Err("a parenthesis is not closed".into()) }
            }
            Some(b'0'..=b'9') => self.number(),
            Some(b'\'') => self.string(),
            Some(c) if c.is_ascii_alphabetic() || *c == b'_' => {
                let name = self.name();
                if self.eat("(") { self.call(name) } else { Ok(Tree::Name(name)) }
            }
            _ => Err(format!("a value is missing at byte {}", self.at)),
        }
    }

    fn span(&mut self, keep: impl Fn(u8) -> bool) -> String {
        let start = self.at;
        while self.text.get(self.at).is_some_and(|&c| keep(c)) {
            self.at += 1;
        }
        String::from_utf8_lossy(&self.text[start..self.at]).into_owned()
    }

    fn name(&mut self) -> String {
        self.span(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'.')
    }

    fn number(&mut self) -> Parsed<Tree> {
        let text = self.span(|c| c.is_ascii_digit() || c == b'.');
        let value =
            if text.contains('.') { text.parse().map(Tree::Float).ok() } else { text.parse().map(Tree::Int).ok() };
        value.ok_or_else(|| format!("{text} is not a number of 64 bits"))
    }

    fn string(&mut self) -> Parsed<Tree> {
        self.at += 1;
        let text = self.span(|c| c != b'\'');
        if self.eat("'") { Ok(Tree::Text(text)) } else { Err("a string is not closed".into()) }
    }

    fn call(&mut self, name: String) -> Parsed<Tree> {
        let mut args = vec![];
        while !self.eat(")") {
            if !args.is_empty() && !self.eat(",") {
                return Err("a comma is missing".into());
            }
            let arg = self.sum()?;
            if self.eat("=") {
                self.sum()?; // an assumption such as positive=True
            } else {
                args.push(arg);
            }
        }
        Ok(Tree::Call(name, args))
    }
}

fn one_or(name: &str, mut operands: Vec<Tree>) -> Tree {
    if operands.len() == 1 { operands.remove(0) } else { Tree::Call(name.into(), operands) }
}

fn call2(name: &str, a: Tree, b: Tree) -> Tree {
    Tree::Call(name.into(), vec![a, b])
}

fn negate(value: Tree) -> Tree {
    call2("Mul", Tree::Int(-1), value)
}

/// `num / den`.
struct Quotient {
    num: Dim,
    den: Dim,
}

impl Quotient {
    fn int(v: i64) -> Quotient {
        Quotient::from(Dim::from(v))
    }

    fn whole(&self) -> Option<Dim> {
        if self.den.is(1) { Some(self.num.clone()) } else { self.num.exact_div(&self.den) }
    }
}

impl From<Dim> for Quotient {
    fn from(num: Dim) -> Quotient {
        Quotient { num, den: Dim::from(1) }
    }
}

struct Lower {
    max_terms: u64,
}

impl Lower {
    fn lower(&self, tree: &Tree) -> Parsed<Quotient> {
        match tree {
            Tree::Int(v) => Ok(Quotient::int(*v)),
            Tree::Float(v) => dyadic(*v),
            Tree::Name(name) => Ok(Dim::symbol(name).into()),
            Tree::Text(_) => Err("a string is not a number".into()),
            Tree::Call(name, args) => self.call(name, args),
        }
    }

    fn call(&self, name: &str, args: &[Tree]) -> Parsed<Quotient> {
        match (name, args) {
            ("Symbol", [Tree::Text(symbol)]) => Ok(Dim::symbol(symbol).into()),
            ("Float", [Tree::Text(value)]) => dyadic(value.parse().map_err(|_| format!("{value} is not a number"))?),
            ("Integer" | "ToFloat" | "Identity", [value]) => self.lower(value),
            ("Rational" | "IntTrueDiv" | "FloatTrueDiv", [a, b]) => self.divide(self.lower(a)?, self.lower(b)?),
            ("Add", _) => self.fold(args, Quotient::int(0), Lower::add),
            ("Mul", _) => self.fold(args, Quotient::int(1), Lower::mul),
            ("Pow" | "PowByNatural", [base, exponent]) => self.power(base, exponent),
            ("FloorDiv" | "CleanDiv", [a, b]) => {
                let q = self.divide(self.lower(a)?, self.lower(b)?)?;
                Ok(q.num.floor_div(&q.den).into())
            }
            ("Mod" | "PythonMod", [a, b]) => {
                let (a, b) = (self.whole(a)?, self.whole(b)?);
                if b.is(0) { Err("divides by zero".into()) } else { Ok(a.rem(&b).into()) }
            }
            ("Max", [_, ..]) => self.extremum(args, Dim::max_of),
            ("Min", [_, ..]) => self.extremum(args, Dim::min_of),
            ("TruncToInt" | "FloorToInt" | "floor", [value]) => self.round(value, false),
            ("CeilToInt" | "ceiling", [value]) => self.round(value, true),
            _ => Err(format!("{name} with {} operands is not supported in sizes", args.len())),
        }
    }

    fn whole(&self, tree: &Tree) -> Parsed<Dim> {
        self.lower(tree)?.whole().ok_or_else(|| "is not a whole number".into())
    }

    fn fold(
        &self,
        args: &[Tree],
        start: Quotient,
        f: fn(&Lower, Quotient, Quotient) -> Parsed<Quotient>,
    ) -> Parsed<Quotient> {
        args.iter().try_fold(start, |acc, arg| f(self, acc, self.lower(arg)?))
    }

    fn extremum(&self, args: &[Tree], pick: fn(&Dim, &Dim) -> Dim) -> Parsed<Quotient> {
        let first = self.whole(&args[0])?;
        let all = args[1..].iter().try_fold(first, |acc, arg| Ok::<Dim, String>(pick(&acc, &self.whole(arg)?)))?;
        Ok(all.into())
    }

    fn add(&self, a: Quotient, b: Quotient) -> Parsed<Quotient> {
        if a.den == b.den {
            return Ok(Quotient { num: self.plus(&a.num, &b.num)?, den: a.den });
        }
        let num = self.plus(&self.times(&a.num, &b.den)?, &self.times(&b.num, &a.den)?)?;
        Ok(Quotient { num, den: self.times(&a.den, &b.den)? })
    }

    fn mul(&self, a: Quotient, b: Quotient) -> Parsed<Quotient> {
        Ok(Quotient { num: self.times(&a.num, &b.num)?, den: self.times(&a.den, &b.den)? })
    }

    fn divide(&self, a: Quotient, b: Quotient) -> Parsed<Quotient> {
        if b.num.is(0) {
            return Err("divides by zero".into());
        }
        let (num, den) = (self.times(&a.num, &b.den)?, self.times(&a.den, &b.num)?);
        match den.as_const() {
            Some(d) if d < 0 => Ok(Quotient { num: self.times(&num, &Dim::from(-1))?, den: Dim::from(-d) }),
            _ => Ok(Quotient { num, den }),
        }
    }

    fn power(&self, base: &Tree, exponent: &Tree) -> Parsed<Quotient> {
        const MAX_EXPONENT: u64 = 16;
        let exponent = self.whole(exponent)?.as_const().ok_or("an exponent is not a literal")?;
        if exponent.unsigned_abs() > MAX_EXPONENT {
            return Err(format!("the exponent {exponent} is over {MAX_EXPONENT}"));
        }
        let base = self.lower(base)?;
        let mut out = Quotient::int(1);
        for _ in 0..exponent.unsigned_abs() {
            out = self.mul(out, Quotient { num: base.num.clone(), den: base.den.clone() })?;
        }
        if exponent < 0 { self.divide(Quotient::int(1), out) } else { Ok(out) }
    }

    /// Floor, or ceiling as ⌊(num + den − 1) / den⌋. Truncation is the floor where nothing is negative.
    fn round(&self, value: &Tree, up: bool) -> Parsed<Quotient> {
        let q = self.lower(value)?;
        if let Some(whole) = q.whole() {
            return Ok(whole.into());
        }
        let positive = |d: &Dim| d.terms().all(|(_, c)| c > 0);
        if !positive(&q.num) || !positive(&q.den) {
            return Err("rounds a quotient that may be negative".into());
        }
        let num = if up { self.plus(&self.plus(&q.num, &q.den)?, &Dim::from(-1))? } else { q.num };
        Ok(num.floor_div(&q.den).into())
    }

    fn plus(&self, a: &Dim, b: &Dim) -> Parsed<Dim> {
        self.check(weight(a) + weight(b), terms(a) + terms(b))?;
        Ok(a + b)
    }

    fn times(&self, a: &Dim, b: &Dim) -> Parsed<Dim> {
        self.check(weight(a).saturating_mul(weight(b)), terms(a) * terms(b))?;
        Ok(a * b)
    }

    fn check(&self, weight: u128, terms: u64) -> Parsed<()> {
        if weight > i64::MAX as u128 {
            return Err("its coefficients exceed 64 bits".into());
        }
        if terms > self.max_terms { Err(format!("has more than {} terms", self.max_terms)) } else { Ok(()) }
    }
}

/// Sum of the coefficients' magnitudes: bounds those of any sum or product.
fn weight(d: &Dim) -> u128 {
    d.terms().map(|(_, c)| u128::from(c.unsigned_abs())).sum()
}

fn terms(d: &Dim) -> u64 {
    d.terms().map(|(atoms, _)| 1 + atoms.len() as u64).sum()
}

/// A float as a fraction, if it is a small multiple of a small power of two (0.5, 0.125, 2.0).
fn dyadic(v: f64) -> Parsed<Quotient> {
    const MAX_DEN: i64 = 1 << 16;
    let scaled = v * MAX_DEN as f64;
    if scaled.fract() != 0.0 || scaled.abs() >= (1i64 << 52) as f64 {
        return Err(format!("{v} is not a short binary fraction"));
    }
    let (mut num, mut den) = (scaled as i64, MAX_DEN);
    while den > 1 && num % 2 == 0 {
        (num, den) = (num / 2, den / 2);
    }
    Ok(Quotient { num: Dim::from(num), den: Dim::from(den) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::limits::LIMITS;
    use std::collections::BTreeMap;

    fn value(text: &str, symbols: &[(&str, i64)]) -> i64 {
        let symbols: BTreeMap<String, i64> = symbols.iter().map(|(n, v)| (n.to_string(), *v)).collect();
        let dim = parse_dim(text, &LIMITS).unwrap_or_else(|e| panic!("{e}"));
        dim.eval(&symbols).expect("all symbols are given")
    }

    fn why(text: &str) -> String {
        parse_dim(text, &LIMITS).expect_err("is refused").to_string()
    }

    #[test]
    fn srepr_and_plain_text_mean_the_same() {
        let s = "Symbol('s0', positive=True, integer=True)";
        let cases = [
            (format!("Mul(Integer(4), {s})"), "4*s0", 4 * 13),
            (format!("Add({s}, Mul(Integer(-1), Integer(3)))"), "s0 - 3", 10),
            (format!("FloorDiv({s}, Integer(4))"), "s0//4", 3),
            (format!("Mod(Mul(Integer(5), {s}), Integer(7))"), "Mod(5*s0, 7)", 65 % 7),
            (format!("Max(Integer(1), {s})"), "Max(1, s0)", 13),
            (format!("Pow({s}, Integer(2))"), "s0**2", 169),
            (format!("Add(Integer(1), FloorDiv(Add({s}, Integer(-1)), Integer(2)))"), "((s0 - 1)//2) + 1", 7),
        ];
        for (srepr, plain, expect) in cases {
            assert_eq!(value(&srepr, &[("s0", 13)]), expect, "{srepr}");
            assert_eq!(value(plain, &[("s0", 13)]), expect, "{plain}");
        }
    }

    #[test]
    fn rounded_quotients_are_floor_divisions() {
        for n in 0..40 {
            let at = [("s0", n)];
            let s = "Symbol('s0', integer=True)";
            assert_eq!(value(&format!("TruncToInt(IntTrueDiv({s}, Integer(3)))"), &at), n / 3);
            assert_eq!(value(&format!("CeilToInt(IntTrueDiv({s}, Integer(3)))"), &at), (n + 2) / 3);
            assert_eq!(value(&format!("TruncToInt(Mul(Float('0.5', precision=53), ToFloat({s})))"), &at), n / 2);
            assert_eq!(value(&format!("Mul(Rational(1, 2), Mul(Integer(6), {s}))"), &at), 3 * n);
        }
        assert!(why("TruncToInt(IntTrueDiv(Mul(Integer(-1), Symbol('s0')), Integer(3)))").contains("negative"));
        assert!(why("Mul(Rational(1, 2), Symbol('s0'))").contains("whole"));
        assert!(why("TruncToInt(Mul(Float('0.3'), Symbol('s0')))").contains("fraction"));
    }

    #[test]
    fn hostile_expressions_are_errors() {
        let big = i64::MAX;
        assert!(why(&format!("Mul(Integer({big}), Integer({big}))")).contains("64 bits"));
        assert!(why("99999999999999999999").contains("64 bits"));
        assert!(why("s0**9999").contains("exponent"));
        assert!(why("FloorDiv(s0, Integer(0))").contains("zero"));
        assert!(why("s0 % 0").contains("zero"));
        assert!(why(&"(".repeat(1000)).contains("deeper"));
        assert!(why("(a+b+c+d+e+f+g+h)**16").contains("terms"));
        assert!(why("Symbol('s0'").contains("comma"));
        assert!(why("Symbol('s0").contains("string"));
        assert!(why("").contains("missing"));
        assert!(why(&"-".repeat(10_000)).contains("missing"));
        assert!(parse_dim(&"s0+".repeat(10_000), &LIMITS).is_err());
    }
}
