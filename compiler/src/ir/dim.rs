//! Sizes: literals, or polynomials over the export's symbols.
//!
//! A [`Dim`] is kept in a normal form (a sum of products of atoms with integer coefficients), so equal sizes compare equal and the
//! index algebra of the scheduler can prove `j < n` without numbers. Floor division, remainder, max and min are atoms of their own.
//! Coefficients saturate: no tensor may have that many elements, and the verifier refuses one that says so.

use std::collections::BTreeMap;
use std::fmt;

/// What a product is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Atom {
    /// A symbol of the export (`s77`).
    Symbol(String),
    /// ⌊a / b⌋.
    FloorDiv(Box<Dim>, Box<Dim>),
    /// a − b·⌊a / b⌋.
    Mod(Box<Dim>, Box<Dim>),
    /// Larger.
    Max(Box<Dim>, Box<Dim>),
    /// Smaller.
    Min(Box<Dim>, Box<Dim>),
}

/// A size. Sum of monomials: sorted atoms → coefficient, no zero coefficients; the empty product is the constant term.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim {
    terms: BTreeMap<Vec<Atom>, i64>,
}

/// Inclusive bounds of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Smallest value.
    pub min: i64,
    /// Largest value.
    pub max: i64,
}

/// Bounds of all symbols of a graph.
pub type Ranges = BTreeMap<String, Range>;

impl From<i64> for Dim {
    fn from(v: i64) -> Dim {
        let mut d = Dim::default();
        d.add_term(vec![], v);
        d
    }
}

impl Dim {
    /// A symbol.
    pub fn symbol(name: &str) -> Dim {
        Dim::from_atom(Atom::Symbol(name.to_string()))
    }

    /// A size that is one atom.
    pub fn from_atom(atom: Atom) -> Dim {
        let mut d = Dim::default();
        d.add_term(vec![atom], 1);
        d
    }

    fn add_term(&mut self, key: Vec<Atom>, c: i64) {
        let slot = self.terms.entry(key.clone()).or_insert(0);
        *slot = slot.saturating_add(c);
        if *slot == 0 {
            self.terms.remove(&key);
        }
    }

    /// Monomials: atoms and coefficient.
    pub fn terms(&self) -> impl Iterator<Item = (&[Atom], i64)> {
        self.terms.iter().map(|(k, &c)| (k.as_slice(), c))
    }

    /// The value, if it is a literal.
    pub fn as_const(&self) -> Option<i64> {
        match self.terms.len() {
            0 => Some(0),
            1 => self.terms.get(&vec![]).copied(),
            _ => None,
        }
    }

    /// True for the literal `v`.
    pub fn is(&self, v: i64) -> bool {
        self.as_const() == Some(v)
    }

    /// ⌊self / other⌋; exact when every coefficient divides.
    pub fn floor_div(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) if b != 0 => return Dim::from(a.div_euclid(b)),
            (_, Some(1)) => return self.clone(),
            (_, Some(b)) if b > 1 && self.terms.values().all(|c| c % b == 0) => {
                return Dim { terms: self.terms.iter().map(|(k, c)| (k.clone(), c / b)).collect() };
            }
            _ => {}
        }
        if self == other {
            return Dim::from(1);
        }
        if let Some(q) = self.exact_div(other) {
            return q;
        }
        Dim::from_atom(Atom::FloorDiv(Box::new(self.clone()), Box::new(other.clone())))
    }

    /// The quotient when `other` is one monomial that divides every term.
    pub fn exact_div(&self, other: &Dim) -> Option<Dim> {
        if other.terms.len() != 1 {
            return None;
        }
        let (divisor, dc) = other.terms.iter().next()?;
        let mut out = Dim::default();
        for (key, c) in &self.terms {
            let mut rest = key.clone();
            for atom in divisor {
                let at = rest.iter().position(|a| a == atom)?;
                rest.remove(at);
            }
            if c % dc != 0 {
                return None;
            }
            out.add_term(rest, c / dc);
        }
        Some(out)
    }

    /// Remainder of floor division.
    pub fn rem(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) if b != 0 => return Dim::from(a.rem_euclid(b)),
            (_, Some(b)) if b > 0 && self.terms.values().all(|c| c % b == 0) => return Dim::from(0),
            _ => {}
        }
        if self.exact_div(other).is_some() {
            return Dim::from(0);
        }
        Dim::from_atom(Atom::Mod(Box::new(self.clone()), Box::new(other.clone())))
    }

    /// Larger of two.
    pub fn max_of(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Dim::from(a.max(b)),
            _ if self == other => self.clone(),
            _ => Dim::from_atom(Atom::Max(Box::new(self.clone()), Box::new(other.clone()))),
        }
    }

    /// Smaller of two.
    pub fn min_of(&self, other: &Dim) -> Dim {
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => Dim::from(a.min(b)),
            _ if self == other => self.clone(),
            _ => Dim::from_atom(Atom::Min(Box::new(self.clone()), Box::new(other.clone()))),
        }
    }

    /// The value for given symbols; `None` if one is missing or a division by zero happens.
    pub fn eval(&self, symbols: &BTreeMap<String, i64>) -> Option<i64> {
        let mut sum = 0i64;
        for (key, c) in &self.terms {
            let mut product = *c;
            for atom in key {
                product = product.checked_mul(atom.eval(symbols)?)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// Bounds by interval arithmetic, saturating.
    pub fn range(&self, ranges: &Ranges) -> Range {
        let mut out = Range { min: 0, max: 0 };
        for (key, c) in &self.terms {
            let mut r = Range { min: *c, max: *c };
            for atom in key {
                r = r.mul(atom.range(ranges));
            }
            out = Range { min: out.min.saturating_add(r.min), max: out.max.saturating_add(r.max) };
        }
        out
    }

    /// Replaces symbols by sizes (`--set s0=1152`).
    pub fn substitute(&self, with: &BTreeMap<String, Dim>) -> Dim {
        let mut out = Dim::from(0);
        for (key, c) in &self.terms {
            let product = key.iter().fold(Dim::from(*c), |p, atom| &p * &atom.substitute(with));
            out = &out + &product;
        }
        out
    }

    /// Names of all symbols in it, sorted.
    pub fn symbols(&self) -> Vec<String> {
        let mut out = vec![];
        for key in self.terms.keys() {
            for atom in key {
                atom.collect_symbols(&mut out);
            }
        }
        out.sort();
        out.dedup();
        out
    }
}

impl Range {
    fn mul(self, o: Range) -> Range {
        let all = [
            self.min.saturating_mul(o.min),
            self.min.saturating_mul(o.max),
            self.max.saturating_mul(o.min),
            self.max.saturating_mul(o.max),
        ];
        Range { min: all.into_iter().fold(i64::MAX, i64::min), max: all.into_iter().fold(i64::MIN, i64::max) }
    }
}

impl Atom {
    fn eval(&self, symbols: &BTreeMap<String, i64>) -> Option<i64> {
        Some(match self {
            Atom::Symbol(s) => *symbols.get(s)?,
            Atom::FloorDiv(a, b) => {
                let (a, b) = (a.eval(symbols)?, b.eval(symbols)?);
                let q = a.checked_div(b)?;
                if a % b != 0 && ((a < 0) != (b < 0)) { q - 1 } else { q }
            }
            Atom::Mod(a, b) => {
                let (a, b) = (a.eval(symbols)?, b.eval(symbols)?);
                let r = a.checked_rem(b)?;
                if r != 0 && ((r < 0) != (b < 0)) { r + b } else { r }
            }
            Atom::Max(a, b) => a.eval(symbols)?.max(b.eval(symbols)?),
            Atom::Min(a, b) => a.eval(symbols)?.min(b.eval(symbols)?),
        })
    }

    fn range(&self, ranges: &Ranges) -> Range {
        match self {
            Atom::Symbol(s) => ranges.get(s).copied().unwrap_or(Range { min: 0, max: i64::MAX }),
            Atom::FloorDiv(a, b) => {
                let (a, b) = (a.range(ranges), b.range(ranges));
                let (lo, hi) = (b.min.max(1), b.max.max(1));
                let all = [a.min.div_euclid(lo), a.min.div_euclid(hi), a.max.div_euclid(lo), a.max.div_euclid(hi)];
                Range { min: all.into_iter().fold(i64::MAX, i64::min), max: all.into_iter().fold(i64::MIN, i64::max) }
            }
            Atom::Mod(_, b) => Range { min: 0, max: b.range(ranges).max.saturating_sub(1).max(0) },
            Atom::Max(a, b) => {
                let (a, b) = (a.range(ranges), b.range(ranges));
                Range { min: a.min.max(b.min), max: a.max.max(b.max) }
            }
            Atom::Min(a, b) => {
                let (a, b) = (a.range(ranges), b.range(ranges));
                Range { min: a.min.min(b.min), max: a.max.min(b.max) }
            }
        }
    }

    fn substitute(&self, with: &BTreeMap<String, Dim>) -> Dim {
        match self {
            Atom::Symbol(s) => with.get(s).cloned().unwrap_or_else(|| Dim::symbol(s)),
            Atom::FloorDiv(a, b) => a.substitute(with).floor_div(&b.substitute(with)),
            Atom::Mod(a, b) => a.substitute(with).rem(&b.substitute(with)),
            Atom::Max(a, b) => a.substitute(with).max_of(&b.substitute(with)),
            Atom::Min(a, b) => a.substitute(with).min_of(&b.substitute(with)),
        }
    }

    fn collect_symbols(&self, out: &mut Vec<String>) {
        match self {
            Atom::Symbol(s) => out.push(s.clone()),
            Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                out.extend(a.symbols());
                out.extend(b.symbols());
            }
        }
    }
}

impl std::ops::Add for &Dim {
    type Output = Dim;
    fn add(self, o: &Dim) -> Dim {
        let mut out = self.clone();
        for (k, c) in &o.terms {
            out.add_term(k.clone(), *c);
        }
        out
    }
}

impl std::ops::Sub for &Dim {
    type Output = Dim;
    fn sub(self, o: &Dim) -> Dim {
        let mut out = self.clone();
        for (k, c) in &o.terms {
            out.add_term(k.clone(), c.saturating_neg());
        }
        out
    }
}

impl std::ops::Mul for &Dim {
    type Output = Dim;
    fn mul(self, o: &Dim) -> Dim {
        let mut out = Dim::default();
        for (ka, ca) in &self.terms {
            for (kb, cb) in &o.terms {
                let mut key = ka.clone();
                key.extend(kb.iter().cloned());
                key.sort();
                out.add_term(key, ca.saturating_mul(*cb));
            }
        }
        out
    }
}

/// `4*s18 + 1`, `floor(s0, 4)`; parsed back by the graph text parser.
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        for (i, (key, c)) in self.terms.iter().rev().enumerate() {
            if i > 0 {
                f.write_str("+")?;
            }
            let mut parts: Vec<String> = key.iter().map(Atom::to_string).collect();
            if *c != 1 || key.is_empty() {
                parts.insert(0, c.to_string());
            }
            f.write_str(&parts.join("*"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Symbol(s) => f.write_str(s),
            Atom::FloorDiv(a, b) => write!(f, "floor({a},{b})"),
            Atom::Mod(a, b) => write!(f, "mod({a},{b})"),
            Atom::Max(a, b) => write!(f, "max({a},{b})"),
            Atom::Min(a, b) => write!(f, "min({a},{b})"),
        }
    }
}
