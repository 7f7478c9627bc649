//! Sizes and bodies: `4*s0+1`, `let t0 = a * a; t0 + {s0}`.

use super::{ParseError, Parser, Token};
use crate::ir::dim::Dim;
use crate::ir::op::Body;
use crate::ir::ty::{DType, TensorType};
use jvc_kernels::dtype::Ty;
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs, Lit, Unary};
use std::collections::BTreeMap;

/// Nesting of parentheses; the printer stays far below.
const MAX_DEPTH: u32 = 64;

/// Bits of all literals of one size together: no coefficient can overflow below this.
const MAX_DIM_BITS: u32 = 60;

impl Parser<'_> {
    pub(super) fn dim(&mut self) -> Result<Dim, ParseError> {
        self.dim_sum(&mut 0, 0)
    }

    fn dim_sum(&mut self, bits: &mut u32, depth: u32) -> Result<Dim, ParseError> {
        let mut sum = self.dim_product(bits, depth)?;
        while self.try_punct("+") {
            sum = &sum + &self.dim_product(bits, depth)?;
        }
        Ok(sum)
    }

    fn dim_product(&mut self, bits: &mut u32, depth: u32) -> Result<Dim, ParseError> {
        let mut product = self.dim_factor(bits, depth)?;
        while self.try_punct("*") {
            product = &product * &self.dim_factor(bits, depth)?;
        }
        Ok(product)
    }

    fn dim_factor(&mut self, bits: &mut u32, depth: u32) -> Result<Dim, ParseError> {
        *bits += 1;
        if *bits > MAX_DIM_BITS || depth > MAX_DEPTH {
            return self.fail("a size is too large or too deep");
        }
        if matches!(self.peek(), Some(Token::Number(_) | Token::Punct("-"))) {
            let v = self.int()?;
            *bits += 64 - v.unsigned_abs().leading_zeros();
            if *bits > MAX_DIM_BITS {
                return self.fail("a size is too large");
            }
            return Ok(Dim::from(v));
        }
        let word = self.word()?;
        if !self.try_punct("(") {
            return Ok(Dim::symbol(&word));
        }
        let a = self.dim_sum(bits, depth + 1)?;
        self.punct(",")?;
        let b = self.dim_sum(bits, depth + 1)?;
        self.punct(")")?;
        Ok(match word.as_str() {
            "floor" => a.floor_div(&b),
            "mod" => a.rem(&b),
            "max" => a.max_of(&b),
            "min" => a.min_of(&b),
            _ => return self.fail(&format!("`{word}` is no function of sizes")),
        })
    }

    /// The body of a `map` or `compute` over operands of the given types, in parentheses.
    pub(super) fn body(&mut self, operands: &[TensorType]) -> Result<Body, ParseError> {
        self.punct("(")?;
        let body = Body { exprs: Exprs::new(), root: ExprId(0), syms: vec![] };
        let mut scope = BodyScope { body, lets: BTreeMap::new(), operands };
        while self.try_word("let") {
            let name = self.word()?;
            self.punct("=")?;
            let value = self.expr(&mut scope, 0)?;
            self.punct(";")?;
            scope.lets.insert(name, value);
        }
        scope.body.root = self.expr(&mut scope, 0)?;
        self.punct(")")?;
        Ok(scope.body.normalize())
    }

    /// One infix operation, or an operand. Operators do not chain: the printer puts every inner one in parentheses.
    fn expr(&mut self, scope: &mut BodyScope<'_>, depth: u32) -> Result<ExprId, ParseError> {
        if depth > MAX_DEPTH {
            return self.fail("an expression is too deep");
        }
        let a = self.operand(scope, depth)?;
        let Some(Token::Punct(sign)) = self.peek() else { return Ok(a) };
        let Some(op) = Binary::ALL.into_iter().find(|op| op.is_infix() && op.to_string() == *sign) else {
            return Ok(a);
        };
        self.at += 1;
        let b = self.operand(scope, depth)?;
        self.add(scope, Expr::Binary(op, a, b))
    }

    fn operand(&mut self, scope: &mut BodyScope<'_>, depth: u32) -> Result<ExprId, ParseError> {
        if self.try_punct("(") {
            let inner = self.expr(scope, depth + 1)?;
            self.punct(")")?;
            return Ok(inner);
        }
        if self.try_punct("{") {
            let dim = self.dim()?;
            self.punct("}")?;
            return Ok(scope.body.sym(&dim));
        }
        if let Some(lit) = self.literal_token()? {
            return self.add(scope, Expr::Lit(lit));
        }
        let word = self.word()?;
        if let Some(&id) = scope.lets.get(&word) {
            return Ok(id);
        }
        if self.try_punct("(") {
            return self.call(scope, &word, depth);
        }
        if let Some(k) = word.strip_prefix('i').and_then(|k| k.parse().ok()) {
            return Ok(scope.body.exprs.axis(k));
        }
        let Some(k) = operand_index(&word) else { return self.fail(&format!("`{word}` is not defined")) };
        let Some(dtype) = scope.operands.get(k as usize).map(|t| t.dtype) else {
            return self.fail(&format!("`{word}` names no operand"));
        };
        if !matches!(self.peek(), Some(Token::Punct("["))) {
            return Ok(scope.body.exprs.arg(k, dtype.ty()));
        }
        self.punct("[")?;
        let mut index = vec![];
        while !self.try_punct("]") {
            if !index.is_empty() {
                self.punct(",")?;
            }
            index.push(self.expr(scope, depth + 1)?);
        }
        self.add(scope, Expr::Load { operand: k, dtype, index })
    }

    fn call(&mut self, scope: &mut BodyScope<'_>, word: &str, depth: u32) -> Result<ExprId, ParseError> {
        if let Some(lit) = self.bits(word)? {
            return self.add(scope, Expr::Lit(lit));
        }
        let mut args = vec![self.expr(scope, depth + 1)?];
        while self.try_punct(",") {
            args.push(self.expr(scope, depth + 1)?);
        }
        self.punct(")")?;
        let ty = [Ty::Bool, Ty::I32, Ty::I64, Ty::F32, Ty::F64].into_iter().find(|t| t.name() == word);
        let unary = Unary::ALL.into_iter().find(|op| op.to_string() == word);
        let binary = Binary::ALL.into_iter().find(|op| !op.is_infix() && op.to_string() == word);
        let expr = match (args.as_slice(), ty, unary, binary) {
            (&[a], Some(ty), _, _) => Expr::Cast(ty, a),
            (&[a], _, Some(op), _) => Expr::Unary(op, a),
            (&[a, b], _, _, Some(op)) => Expr::Binary(op, a, b),
            (&[c, a, b], ..) if word == "select" => Expr::Select(c, a, b),
            (&[a], ..) => match word.strip_prefix("to_").and_then(DType::parse) {
                Some(dtype) => Expr::Round(dtype, a),
                None => return self.fail(&format!("`{word}` is no function of one operand")),
            },
            _ => return self.fail(&format!("`{word}` is no function of {} operands", args.len())),
        };
        self.add(scope, expr)
    }

    /// `f32_bits(N)`, `f64_bits(N)`.
    fn bits(&mut self, word: &str) -> Result<Option<Lit>, ParseError> {
        if word != "f32_bits" && word != "f64_bits" {
            return Ok(None);
        }
        let Some(Token::Number(text)) = self.peek() else { return self.fail("bits expected") };
        let lit = if word == "f32_bits" { text.parse().ok().map(Lit::F32) } else { text.parse().ok().map(Lit::F64) };
        let Some(lit) = lit else { return self.fail("bits expected") };
        self.at += 1;
        self.punct(")")?;
        Ok(Some(lit))
    }

    fn literal_token(&mut self) -> Result<Option<Lit>, ParseError> {
        let negative = matches!(self.peek(), Some(Token::Punct("-")));
        let token = self.tokens.get(self.at + usize::from(negative)).map(|t| &t.1);
        let sign = if negative { "-" } else { "" };
        let lit = match token {
            Some(Token::Number(t)) => number(&format!("{sign}{t}")),
            Some(Token::Word(w)) => match w.as_str() {
                "true" | "false" if !negative => Some(Lit::Bool(w == "true")),
                "inf" => number(&format!("{sign}inf")),
                "infd" => Some(Lit::F64(format!("{sign}inf").parse::<f64>().map_or(0, f64::to_bits))),
                _ if negative => None,
                _ => return Ok(None),
            },
            _ if negative => None,
            _ => return Ok(None),
        };
        let Some(lit) = lit else { return self.fail("a literal expected") };
        self.at += 1 + usize::from(negative);
        Ok(Some(lit))
    }

    fn add(&mut self, scope: &mut BodyScope<'_>, expr: Expr) -> Result<ExprId, ParseError> {
        if !well_typed(&scope.body.exprs, &expr) {
            return self.fail("operand types do not fit the operation");
        }
        Ok(scope.body.exprs.add(expr))
    }
}

struct BodyScope<'a> {
    body: Body,
    lets: BTreeMap<String, ExprId>,
    operands: &'a [TensorType],
}

fn operand_index(word: &str) -> Option<u16> {
    match word.as_bytes() {
        [c @ b'a'..=b'z'] => Some(u16::from(c - b'a')),
        _ => word.strip_prefix("arg")?.parse().ok().filter(|&k| k >= 26),
    }
}

/// `1`, `1L`, `1.0`, `1.0d`.
fn number(text: &str) -> Option<Lit> {
    if let Some(t) = text.strip_suffix('L') {
        return t.parse().ok().map(Lit::I64);
    }
    if let Some(t) = text.strip_suffix('d') {
        return t.parse::<f64>().ok().map(|v| Lit::F64(v.to_bits()));
    }
    if let Ok(v) = text.parse() {
        return Some(Lit::I32(v));
    }
    // An integer that does not fit i32 is a mistake, not a float.
    let float = text.contains(['.', 'e']) || text.ends_with("inf");
    text.parse::<f32>().ok().filter(|_| float).map(|v| Lit::F32(v.to_bits()))
}

/// Whether [`Exprs::add`] accepts the node.
fn well_typed(e: &Exprs, expr: &Expr) -> bool {
    let int = |t: Ty| matches!(t, Ty::I32 | Ty::I64);
    match expr {
        Expr::Lit(_) | Expr::Axis(_) | Expr::Arg(..) | Expr::Sym(_) | Expr::Cast(..) => true,
        Expr::Load { index, .. } => index.iter().all(|&i| e.ty(i) == Ty::I32),
        Expr::Unary(op, a) => match op {
            Unary::Neg | Unary::Abs => e.ty(*a) != Ty::Bool,
            Unary::Not => !e.ty(*a).is_float(),
            _ => e.ty(*a).is_float(),
        },
        Expr::Binary(op, a, b) => {
            let t = e.ty(*a);
            t == e.ty(*b)
                && match op {
                    Binary::Eq | Binary::Ne => true,
                    Binary::Pow | Binary::Atan2 => t.is_float(),
                    Binary::And | Binary::Or | Binary::Xor => !t.is_float(),
                    Binary::Shl | Binary::Shr => int(t),
                    _ => t != Ty::Bool,
                }
        }
        Expr::Select(c, a, b) => e.ty(*c) == Ty::Bool && e.ty(*a) == e.ty(*b),
        Expr::Round(dtype, a) => dtype.ty() == e.ty(*a),
    }
}
