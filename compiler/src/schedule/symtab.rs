//! The symbol table of an entry point: which sizes kernels read at run time, and which word each stands in.

use crate::ir::dim::Atom;
use crate::ir::{Dim, Range, Ranges};
use jvc_codegen::plan::Size;
use jvc_kernels::spec::Extent;
use std::collections::BTreeMap;

/// Words of the table, each the value of a size; filled on the host before a run, and again on the device when data decide a symbol.
#[derive(Debug, Clone, Default)]
pub struct SymTable {
    ranges: Ranges,
    words: Vec<Size>,
    bounds: Vec<Range>,
    dims: BTreeMap<Dim, u16>,
    symbols: Vec<String>,
}

impl SymTable {
    /// An empty table over symbols with bounds.
    pub fn new(ranges: &Ranges) -> SymTable {
        SymTable { ranges: ranges.clone(), symbols: ranges.keys().cloned().collect(), ..SymTable::default() }
    }

    /// The word that holds a size.
    pub fn word(&mut self, d: &Dim) -> u16 {
        if let Some(&w) = self.dims.get(d) {
            return w;
        }
        let size = self.size(d);
        let w = self.push(size, d.range(&self.ranges));
        self.dims.insert(d.clone(), w);
        w
    }

    fn push(&mut self, size: Size, bound: Range) -> u16 {
        self.words.push(size);
        self.bounds.push(bound);
        self.words.len() as u16 - 1
    }

    /// Three words with workgroup counts: equal triples share words.
    pub fn groups(&mut self, counts: [Size; 3]) -> u16 {
        let at = self.words.windows(3).position(|w| *w == counts);
        at.unwrap_or_else(|| {
            let first = self.words.len();
            for size in counts {
                self.push(size, Range { min: 0, max: i64::from(u32::MAX) });
            }
            first
        }) as u16
    }

    /// A word of its own for the value that the device finds for a symbol.
    pub fn found(&mut self, symbol: &str) -> u16 {
        let d = Dim::symbol(symbol);
        let (size, range) = (self.size(&d), d.range(&self.ranges));
        self.push(size, range)
    }

    /// Literal where possible, else a word.
    pub fn extent(&mut self, d: &Dim) -> Extent {
        match d.as_const() {
            Some(v) => Extent::Const(v as u32),
            None => Extent::Sym(self.word(d)),
        }
    }

    /// Bounds of a word.
    pub fn range(&self, word: u16) -> Range {
        self.bounds[word as usize]
    }

    /// Bounds of a size.
    pub fn dim_range(&self, d: &Dim) -> Range {
        d.range(&self.ranges)
    }

    /// The formula behind a word.
    pub fn formula(&self, word: u16) -> &Size {
        &self.words[word as usize]
    }

    /// All formulas, by word.
    pub fn words(&self) -> &[Size] {
        &self.words
    }

    /// A size as a formula over the entry's symbols, which stand in the order of the ranges.
    pub fn size(&self, d: &Dim) -> Size {
        if let Some(v) = d.as_const() {
            return Size::Const(v);
        }
        let terms: Vec<Size> = d.terms().map(|(atoms, c)| self.monomial(atoms, c)).collect();
        if terms.len() == 1 { terms.into_iter().next().expect("one term") } else { Size::Add(terms) }
    }

    fn monomial(&self, atoms: &[Atom], c: i64) -> Size {
        let mut factors: Vec<Size> = atoms.iter().map(|a| self.atom(a)).collect();
        if c != 1 || factors.is_empty() {
            factors.insert(0, Size::Const(c));
        }
        if factors.len() == 1 { factors.remove(0) } else { Size::Mul(factors) }
    }

    fn atom(&self, atom: &Atom) -> Size {
        let two = |a: &Dim, b: &Dim| (Box::new(self.size(a)), Box::new(self.size(b)));
        match atom {
            Atom::Symbol(s) => {
                let at = self.symbols.iter().position(|n| n == s).expect("every symbol has bounds");
                Size::Symbol(at as u16)
            }
            Atom::FloorDiv(a, b) => {
                let (a, b) = two(a, b);
                Size::FloorDiv(a, b)
            }
            Atom::Mod(a, b) => {
                let (a, b) = two(a, b);
                Size::Mod(a, b)
            }
            Atom::Max(a, b) => {
                let (a, b) = two(a, b);
                Size::Max(a, b)
            }
            Atom::Min(a, b) => {
                let (a, b) = two(a, b);
                Size::Min(a, b)
            }
        }
    }
}
