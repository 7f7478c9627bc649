//! Index algebra: builds kernel expressions whose integer parts are kept as polynomials, so that composed access maps simplify.
//!
//! An i32 expression is a sum of products of *atoms* (axes, sizes, and whatever has no polynomial form: divisions, selections, loads) with
//! integer coefficients. A reshape is a linearisation followed by divisions and remainders; with bounds on the atoms these undo each other:
//!
//! ```text
//! axis 1 < 72:   (72·a0 + a1) / 72  →  a0        (72·a0 + a1) % 72  →  a1
//! 72·(q / 72) + q % 72  →  q
//! ```
//!
//! Bounds may be symbolic: an axis is at most `s0 − 1`, and `s0·a0 + a1 < s0·n` is proven without numbers.

use super::symtab::SymTable;
use crate::ir::Dim;
use crate::ir::dim::Atom;
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use std::collections::BTreeMap;

/// Sorted atoms → coefficient; no zero coefficients.
pub(super) type Poly = BTreeMap<Vec<ExprId>, i64>;

/// Products of sums beyond this many terms stay unexpanded.
const MAX_TERMS: usize = 24;
/// Monomials of more atoms stay products: no access map has them, but a power by squaring doubles them at each step.
const MAX_DEGREE: usize = 8;

/// What is known of an atom: `lo ≤ atom ≤ hi`, `hi` over size atoms only.
#[derive(Debug, Clone)]
struct Bound {
    lo: i64,
    hi: Poly,
}

/// A builder of one kernel's expressions.
pub struct Ix<'a> {
    /// The arena under construction.
    pub exprs: Exprs,
    symtab: &'a mut SymTable,
    polys: BTreeMap<ExprId, Poly>,
    bounds: BTreeMap<ExprId, Bound>,
}

fn add_term(p: &mut Poly, key: Vec<ExprId>, c: i64) {
    let slot = p.entry(key.clone()).or_insert(0);
    *slot += c;
    if *slot == 0 {
        p.remove(&key);
    }
}

fn constant(c: i64) -> Poly {
    let mut p = Poly::new();
    add_term(&mut p, vec![], c);
    p
}

fn as_const(p: &Poly) -> Option<i64> {
    match p.len() {
        0 => Some(0),
        1 => p.get(&vec![]).copied(),
        _ => None,
    }
}

fn sum(a: &Poly, b: &Poly, factor: i64) -> Poly {
    let mut out = a.clone();
    for (k, c) in b {
        add_term(&mut out, k.clone(), c * factor);
    }
    out
}

/// Small enough to be worth keeping, and equal to what i32 arithmetic gives: values of a program, unlike indices, may wrap.
fn is_tame(p: &Poly) -> bool {
    p.iter().all(|(key, &c)| key.len() <= MAX_DEGREE && i32::try_from(c).is_ok())
}

fn product(a: &Poly, b: &Poly) -> Poly {
    let mut out = Poly::new();
    for (ka, ca) in a {
        for (kb, cb) in b {
            let mut key = ka.clone();
            key.extend(kb);
            key.sort_unstable();
            add_term(&mut out, key, ca * cb);
        }
    }
    out
}

/// Splits `p` into a multiple of the monomial `(atoms, c)` and the rest: `p = q·m + r`.
fn split(p: &Poly, atoms: &[ExprId], c: i64) -> (Poly, Poly) {
    let (mut quotient, mut rest) = (Poly::new(), Poly::new());
    'terms: for (key, coeff) in p {
        let mut left = key.clone();
        for atom in atoms {
            match left.iter().position(|a| a == atom) {
                Some(at) => drop(left.remove(at)),
                None => {
                    add_term(&mut rest, key.clone(), *coeff);
                    continue 'terms;
                }
            }
        }
        // Only the constant term is divided with remainder: `(3·a + 4) / 3` is `a + 1 + 1 / 3`.
        if coeff % c != 0 && !left.is_empty() {
            add_term(&mut rest, key.clone(), *coeff);
            continue;
        }
        let (q, r) = (coeff.div_euclid(c), coeff.rem_euclid(c));
        if q != 0 {
            add_term(&mut quotient, left, q);
        }
        if r != 0 {
            add_term(&mut rest, key.clone(), r);
        }
    }
    (quotient, rest)
}

impl<'a> Ix<'a> {
    /// An empty arena over an entry's symbol table.
    pub fn new(symtab: &'a mut SymTable) -> Ix<'a> {
        Ix { exprs: Exprs::new(), symtab, polys: BTreeMap::new(), bounds: BTreeMap::new() }
    }

    /// The symbol table.
    pub fn symtab(&mut self) -> &mut SymTable {
        self.symtab
    }

    /// An i32 literal.
    pub fn int(&mut self, v: i64) -> ExprId {
        self.exprs.i32(i32::try_from(v).unwrap_or(if v < 0 { i32::MIN } else { i32::MAX }))
    }

    /// Axis `k`, running below `extent`.
    pub fn axis(&mut self, k: usize, extent: &Dim) -> ExprId {
        if extent.is(1) {
            return self.int(0);
        }
        let id = self.exprs.axis(k as u8);
        let hi = sum(&self.dim_poly(extent), &constant(1), -1);
        self.bounds.insert(id, Bound { lo: 0, hi });
        id
    }

    /// A size.
    pub fn dim(&mut self, d: &Dim) -> ExprId {
        let p = self.dim_poly(d);
        self.build(p)
    }

    fn dim_poly(&mut self, d: &Dim) -> Poly {
        let mut out = Poly::new();
        let terms: Vec<(Vec<Atom>, i64)> = d.terms().map(|(k, c)| (k.to_vec(), c)).collect();
        for (atoms, c) in terms {
            let mut key: Vec<ExprId> = atoms.iter().map(|a| self.size_atom(a)).collect();
            key.sort_unstable();
            add_term(&mut out, key, c);
        }
        out
    }

    fn size_atom(&mut self, atom: &Atom) -> ExprId {
        let word = self.symtab.word(&Dim::from_atom(atom.clone()));
        self.exprs.add(Expr::Sym(word))
    }

    fn poly(&self, id: ExprId) -> Poly {
        if let Expr::Lit(Lit::I32(v)) = self.exprs.get(id) {
            return constant(i64::from(*v));
        }
        self.polys.get(&id).cloned().unwrap_or_else(|| Poly::from([(vec![id], 1)]))
    }

    /// The literal value of an i32 expression.
    pub fn as_const(&self, id: ExprId) -> Option<i64> {
        as_const(&self.poly(id))
    }

    fn build(&mut self, mut p: Poly) -> ExprId {
        self.join_divisions(&mut p);
        if let Some(c) = as_const(&p) {
            return self.int(c);
        }
        if let [(key, 1)] = p.iter().map(|(k, c)| (k, *c)).collect::<Vec<_>>()[..]
            && let [atom] = key[..]
        {
            return atom;
        }
        // Constants last, so that common sums of axes are shared between neighbours.
        let mut terms: Vec<(&Vec<ExprId>, i64)> = p.iter().map(|(k, c)| (k, *c)).collect();
        terms.sort_by_key(|(k, _)| k.is_empty());
        let mut acc: Option<ExprId> = None;
        for (key, c) in terms {
            acc = Some(self.append_term(acc, key, c));
        }
        let id = acc.expect("a polynomial without terms is a constant");
        self.polys.insert(id, p);
        id
    }

    fn append_term(&mut self, acc: Option<ExprId>, key: &[ExprId], c: i64) -> ExprId {
        let mut factors = key.iter().copied();
        let mut term = factors.next();
        for f in factors {
            term = term.map(|t| self.exprs.bin(Binary::Mul, t, f));
        }
        let (magnitude, negative) = (c.abs(), c < 0 && acc.is_some());
        let signed = if negative { magnitude } else { c };
        let term = match term {
            None => self.int(signed),
            Some(t) if signed == 1 => t,
            Some(t) => {
                let c = self.int(signed);
                self.exprs.bin(Binary::Mul, t, c)
            }
        };
        match acc {
            None => term,
            Some(a) if negative => self.exprs.bin(Binary::Sub, a, term),
            Some(a) => self.exprs.bin(Binary::Add, a, term),
        }
    }

    /// `c·d·(n / d) + c·(n % d) → c·n`.
    fn join_divisions(&mut self, p: &mut Poly) {
        loop {
            let found = p.iter().find_map(|(key, c)| {
                let at = key.iter().position(|&a| matches!(self.exprs.get(a), Expr::Binary(Binary::Rem, ..)))?;
                let Expr::Binary(_, n, d) = *self.exprs.get(key[at]) else { return None };
                let quotient = self.find_div(n, d)?;
                let mut others = key.clone();
                others.remove(at);
                let mut with_div = others.clone();
                with_div.push(quotient);
                with_div.sort_unstable();
                let want = product(&Poly::from([(with_div, *c)]), &self.poly(d));
                let there = want.iter().all(|(k, v)| p.get(k) == Some(v));
                there.then(|| (key.clone(), *c, others, want, n))
            });
            let Some((key, c, others, want, n)) = found else { return };
            add_term(p, key, -c);
            let joined = product(&Poly::from([(others, c)]), &self.poly(n));
            *p = sum(&sum(p, &want, -1), &joined, 1);
        }
    }

    fn find_div(&self, n: ExprId, d: ExprId) -> Option<ExprId> {
        self.exprs.find(&Expr::Binary(Binary::Div, n, d))
    }

    /// a + b.
    pub fn add(&mut self, a: ExprId, b: ExprId) -> ExprId {
        let p = sum(&self.poly(a), &self.poly(b), 1);
        self.build_or(p, Binary::Add, a, b)
    }

    /// a − b.
    pub fn sub(&mut self, a: ExprId, b: ExprId) -> ExprId {
        let p = sum(&self.poly(a), &self.poly(b), -1);
        self.build_or(p, Binary::Sub, a, b)
    }

    /// a · b.
    pub fn mul(&mut self, a: ExprId, b: ExprId) -> ExprId {
        let (pa, pb) = (self.poly(a), self.poly(b));
        if pa.len() * pb.len() > MAX_TERMS {
            return self.exprs.bin(Binary::Mul, a, b);
        }
        self.build_or(product(&pa, &pb), Binary::Mul, a, b)
    }

    /// The polynomial, or the operation as it stands where the polynomial is of no use.
    fn build_or(&mut self, p: Poly, op: Binary, a: ExprId, b: ExprId) -> ExprId {
        if is_tame(&p) { self.build(p) } else { self.exprs.bin(op, a, b) }
    }

    /// ⌊a / b⌋ of a number that is not negative, b > 0.
    pub fn div(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.div_rem(a, b).0
    }

    /// a mod b of a number that is not negative, b > 0.
    pub fn rem(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.div_rem(a, b).1
    }

    fn div_rem(&mut self, a: ExprId, b: ExprId) -> (ExprId, ExprId) {
        let (pa, pb) = (self.poly(a), self.poly(b));
        if as_const(&pb) == Some(1) {
            return (a, self.int(0));
        }
        if self.proves_nonneg(&pa) && self.proves_less(&pa, &pb) {
            return (self.int(0), a);
        }
        if let (1, Some((atoms, &c))) = (pb.len(), pb.iter().next())
            && c > 0
        {
            let (q, r) = split(&pa, atoms, c);
            if !q.is_empty() && self.proves_nonneg(&r) && self.proves_nonneg(&q) {
                let quotient = self.build(q);
                let rest = self.build(r);
                let (inner_q, inner_r) = self.plain_div_rem(rest, b);
                return (self.add(quotient, inner_q), inner_r);
            }
        }
        self.plain_div_rem(a, b)
    }

    /// Division without splitting; folds constants and what is provably smaller than the divisor.
    fn plain_div_rem(&mut self, a: ExprId, b: ExprId) -> (ExprId, ExprId) {
        let (pa, pb) = (self.poly(a), self.poly(b));
        if let (Some(x), Some(y)) = (as_const(&pa), as_const(&pb))
            && y != 0
        {
            return (self.int(x / y), self.int(x % y));
        }
        let nonneg = self.proves_nonneg(&pa);
        if nonneg && self.proves_less(&pa, &pb) {
            return (self.int(0), a);
        }
        let q = self.nested_division(a, b, nonneg);
        let r = self.exprs.bin(Binary::Rem, a, b);
        if nonneg {
            self.bounds.insert(r, Bound { lo: 0, hi: sum(&pb, &constant(1), -1) });
            let hi = self.upper(&pa).and_then(|hi| as_const(&hi)?.checked_div(as_const(&pb)?));
            if let Some(hi) = hi {
                self.bounds.insert(q, Bound { lo: 0, hi: constant(hi) });
            } else if let Some(hi) = self.upper(&pa) {
                // ⌊n / d⌋ ≤ n: crude, but not negative is what matters.
                self.bounds.insert(q, Bound { lo: 0, hi });
            }
        }
        (q, r)
    }

    /// `(n / c) / d → n / (c·d)` for literals.
    fn nested_division(&mut self, a: ExprId, b: ExprId, nonneg: bool) -> ExprId {
        if let (true, Some(d), &Expr::Binary(Binary::Div, n, c)) = (nonneg, self.as_const(b), self.exprs.get(a))
            && let Some(c) = self.as_const(c)
            && c > 0
            && d > 0
            && c * d <= i64::from(i32::MAX)
        {
            let both = self.int(c * d);
            return self.exprs.bin(Binary::Div, n, both);
        }
        self.exprs.bin(Binary::Div, a, b)
    }

    /// Upper bound of a polynomial, over size atoms.
    fn upper(&self, p: &Poly) -> Option<Poly> {
        self.extreme(p, true)
    }

    fn extreme(&self, p: &Poly, upper: bool) -> Option<Poly> {
        let mut out = Poly::new();
        for (key, c) in p {
            let mut term = constant(*c);
            for atom in key {
                term = product(&term, &self.atom_extreme(*atom, (*c > 0) == upper)?);
            }
            out = sum(&out, &term, 1);
        }
        Some(out)
    }

    fn atom_extreme(&self, atom: ExprId, upper: bool) -> Option<Poly> {
        if matches!(self.exprs.get(atom), Expr::Sym(_)) {
            return Some(Poly::from([(vec![atom], 1)]));
        }
        let bound = self.bounds.get(&atom)?;
        match upper {
            true => Some(bound.hi.clone()),
            false if bound.lo >= 0 => Some(constant(bound.lo)),
            false => None,
        }
    }

    /// True when `p` (over size atoms) is proven ≥ 0 from the symbols' ranges.
    fn sizes_nonneg(&self, p: &Poly) -> bool {
        let mut low = 0i128;
        for (key, c) in p {
            let mut term = i128::from(*c);
            for atom in key {
                let Expr::Sym(word) = self.exprs.get(*atom) else { return false };
                let range = self.symtab.range(*word);
                term = term.saturating_mul(i128::from(if *c > 0 { range.min } else { range.max }));
            }
            low = low.saturating_add(term);
        }
        low >= 0
    }

    fn proves_nonneg(&self, p: &Poly) -> bool {
        self.extreme(p, false).is_some_and(|low| self.sizes_nonneg(&low))
    }

    fn proves_less(&self, a: &Poly, b: &Poly) -> bool {
        self.upper(a).is_some_and(|hi| self.sizes_nonneg(&sum(&sum(b, &hi, -1), &constant(1), -1)))
    }

    /// `a < b`, decided where the bounds decide it.
    pub fn lt(&mut self, a: ExprId, b: ExprId) -> ExprId {
        let (pa, pb) = (self.poly(a), self.poly(b));
        let difference = sum(&pb, &pa, -1);
        if self.proves_nonneg(&sum(&difference, &constant(1), -1)) || self.proves_less(&pa, &pb) {
            return self.exprs.bool(true);
        }
        if self.proves_nonneg(&sum(&pa, &pb, -1)) {
            return self.exprs.bool(false);
        }
        self.exprs.bin(Binary::Lt, a, b)
    }

    /// `0 ≤ a`.
    pub fn is_nonneg(&mut self, a: ExprId) -> ExprId {
        let zero = self.int(0);
        self.le(zero, a)
    }

    fn le(&mut self, a: ExprId, b: ExprId) -> ExprId {
        let p = self.poly(b);
        let above = sum(&p, &constant(1), 1);
        let pa = self.poly(a);
        if self.proves_nonneg(&sum(&p, &pa, -1)) {
            return self.exprs.bool(true);
        }
        if self.proves_nonneg(&sum(&pa, &above, -1)) {
            return self.exprs.bool(false);
        }
        self.exprs.bin(Binary::Le, a, b)
    }

    /// Logical and, with literals folded.
    pub fn and(&mut self, a: ExprId, b: ExprId) -> ExprId {
        match (self.as_bool(a), self.as_bool(b)) {
            (Some(true), _) => b,
            (_, Some(true)) => a,
            (Some(false), _) | (_, Some(false)) => self.exprs.bool(false),
            _ => self.exprs.bin(Binary::And, a, b),
        }
    }

    /// The literal value of a bool expression.
    pub fn as_bool(&self, id: ExprId) -> Option<bool> {
        match self.exprs.get(id) {
            Expr::Lit(Lit::Bool(v)) => Some(*v),
            _ => None,
        }
    }

    /// `cond ? a : b`, folded where the condition is known. Of integers the bounds of both sides are kept.
    pub fn select(&mut self, cond: ExprId, a: ExprId, b: ExprId) -> ExprId {
        match self.as_bool(cond) {
            Some(true) => return a,
            Some(false) => return b,
            None if a == b => return a,
            None => {}
        }
        let id = self.exprs.select(cond, a, b);
        if self.exprs.ty(id) == Ty::I32 {
            self.join_bounds(id, a, b);
        }
        id
    }

    fn join_bounds(&mut self, id: ExprId, a: ExprId, b: ExprId) {
        let (pa, pb) = (self.poly(a), self.poly(b));
        let (Some(ha), Some(hb)) = (self.upper(&pa), self.upper(&pb)) else { return };
        if !self.proves_nonneg(&pa) || !self.proves_nonneg(&pb) {
            return;
        }
        let hi = if self.sizes_nonneg(&sum(&ha, &hb, -1)) {
            ha
        } else if self.sizes_nonneg(&sum(&hb, &ha, -1)) {
            hb
        } else {
            return;
        };
        self.bounds.insert(id, Bound { lo: 0, hi });
    }

    /// States that an expression lies in `0 … extent − 1`: what a condition beside it guarantees.
    pub fn assume_below(&mut self, id: ExprId, extent: &Dim) {
        if self.as_const(id).is_none() && !self.polys.contains_key(&id) {
            let hi = sum(&self.dim_poly(extent), &constant(1), -1);
            self.bounds.insert(id, Bound { lo: 0, hi });
        }
    }

    /// A one-operand operation.
    pub fn un(&mut self, op: Unary, a: ExprId) -> ExprId {
        if op == Unary::Neg && self.exprs.ty(a) == Ty::I32 {
            let p = sum(&Poly::new(), &self.poly(a), -1);
            return self.build(p);
        }
        self.exprs.un(op, a)
    }

    /// A two-operand operation; i32 arithmetic goes through the algebra.
    pub fn bin(&mut self, op: Binary, a: ExprId, b: ExprId) -> ExprId {
        if self.exprs.ty(a) != Ty::I32 {
            return if op == Binary::And && self.exprs.ty(a) == Ty::Bool {
                self.and(a, b)
            } else {
                self.exprs.bin(op, a, b)
            };
        }
        match op {
            Binary::Add => self.add(a, b),
            Binary::Sub => self.sub(a, b),
            Binary::Mul => self.mul(a, b),
            Binary::Div | Binary::Rem if self.divides_plainly(a, b) => {
                let (q, r) = self.div_rem(a, b);
                if op == Binary::Div { q } else { r }
            }
            Binary::Lt => self.lt(a, b),
            Binary::Le => self.le(a, b),
            Binary::Min | Binary::Max => self.min_max(op, a, b),
            _ => self.exprs.bin(op, a, b),
        }
    }

    /// The algebra's division is that of non-negative numbers by positive ones, where truncation and floor agree.
    fn divides_plainly(&self, a: ExprId, b: ExprId) -> bool {
        let pb = self.poly(b);
        self.proves_nonneg(&self.poly(a)) && self.proves_nonneg(&sum(&pb, &constant(1), -1))
    }

    fn min_max(&mut self, op: Binary, a: ExprId, b: ExprId) -> ExprId {
        let (pa, pb) = (self.poly(a), self.poly(b));
        if self.proves_nonneg(&sum(&pb, &pa, -1)) {
            return if op == Binary::Min { a } else { b };
        }
        if self.proves_nonneg(&sum(&pa, &pb, -1)) {
            return if op == Binary::Min { b } else { a };
        }
        let id = self.exprs.bin(op, a, b);
        self.bound_min_max(id, op, [&pa, &pb]);
        id
    }

    fn bound_min_max(&mut self, id: ExprId, op: Binary, [pa, pb]: [&Poly; 2]) {
        let uppers: Vec<Poly> = [pa, pb].into_iter().filter_map(|p| self.upper(p)).collect();
        let nonneg = [self.proves_nonneg(pa), self.proves_nonneg(pb)];
        let lo_known = if op == Binary::Min { nonneg[0] && nonneg[1] } else { nonneg[0] || nonneg[1] };
        if !lo_known {
            // A clamp is min(max(x, 0), n): its inner part has no upper bound yet, which `min` then supplies.
            return;
        }
        let hi = match (op, uppers.len()) {
            (Binary::Min, n) if n > 0 => uppers[n - 1].clone(),
            (_, 2) if self.sizes_nonneg(&sum(&uppers[0], &uppers[1], -1)) => uppers[0].clone(),
            (_, 2) if self.sizes_nonneg(&sum(&uppers[1], &uppers[0], -1)) => uppers[1].clone(),
            _ => constant(i64::from(i32::MAX)),
        };
        self.bounds.insert(id, Bound { lo: 0, hi });
    }

    /// Row-major linear index of coordinates in a shape.
    pub fn linear(&mut self, at: &[ExprId], shape: &[Dim]) -> ExprId {
        let mut p = Poly::new();
        let mut stride = Dim::from(1);
        for (i, d) in at.iter().zip(shape).rev() {
            let s = self.dim_poly(&stride);
            let term = product(&self.poly(*i), &s);
            p = sum(&p, &term, 1);
            stride = &stride * d;
        }
        self.build(p)
    }

    /// Coordinates of a linear index in a shape.
    pub fn delinear(&mut self, linear: ExprId, shape: &[Dim]) -> Vec<ExprId> {
        let mut out = vec![self.int(0); shape.len()];
        let mut rest = linear;
        let Some(first) = shape.iter().position(|d| !d.is(1)) else { return out };
        for d in (first..shape.len()).rev() {
            if shape[d].is(1) {
                continue;
            }
            if d == first {
                out[d] = rest;
                break;
            }
            let size = self.dim(&shape[d]);
            let (q, r) = self.div_rem(rest, size);
            out[d] = r;
            rest = q;
        }
        out
    }
}

#[cfg(test)]
mod tests;
