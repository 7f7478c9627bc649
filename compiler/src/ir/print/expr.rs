//! Bodies as infix text: `a`, `b`, … are operands (with an index in brackets in a `compute`), `i0`, `i1`, … coordinates, `{…}` sizes.
//!
//! Shared parts become `let t0 = …;`, so the text is as long as the arena, not as the tree. Literals carry their type: `1` is i32, `1L`
//! i64, `1.0` f32, `1.0d` f64. A function named after a register type converts (`f32(a)`), `to_<element type>` rounds.

use super::float_text;
use crate::ir::op::Body;
use jvc_kernels::expr::{Expr, ExprId, Lit};
use std::fmt::Write;

/// Deeper trees are cut by a `let`, which bounds the parser's recursion.
const DEPTH: u32 = 20;

pub(super) fn print_body(body: &Body) -> String {
    let body = body.normalize();
    let exprs = &body.exprs;
    let mut uses = vec![0u32; exprs.len()];
    for (id, _) in exprs.iter() {
        exprs.operands(id).iter().for_each(|o| uses[o.0 as usize] += 1);
    }
    let (mut texts, mut depths): (Vec<String>, Vec<u32>) = (vec![], vec![]);
    let (mut out, mut n_lets) = (String::new(), 0);
    for (id, expr) in exprs.iter() {
        let operands = exprs.operands(id);
        let depth = operands.iter().map(|o| depths[o.0 as usize] + 1).max().unwrap_or(0);
        let text = node_text(&body, expr, &|o: ExprId| texts[o.0 as usize].clone());
        let leaf = operands.is_empty();
        let shared = (uses[id.0 as usize] > 1 && !leaf) || depth >= DEPTH;
        if shared && id != body.root {
            let _ = write!(out, "let t{n_lets} = {}; ", strip(&text));
            texts.push(format!("t{n_lets}"));
            depths.push(0);
            n_lets += 1;
        } else {
            texts.push(text);
            depths.push(depth);
        }
    }
    out.push_str(strip(&texts[body.root.0 as usize]));
    out
}

/// Without the parentheses that every infix operation is wrapped in.
fn strip(text: &str) -> &str {
    text.strip_prefix('(').and_then(|t| t.strip_suffix(')')).unwrap_or(text)
}

fn node_text(body: &Body, expr: &Expr, text: &dyn Fn(ExprId) -> String) -> String {
    match expr {
        Expr::Lit(lit) => lit_text(*lit),
        Expr::Axis(k) => format!("i{k}"),
        Expr::Arg(k, _) => operand_word(*k),
        Expr::Sym(w) => format!("{{{}}}", body.syms[*w as usize]),
        Expr::Load { operand, index, .. } => {
            let index: Vec<String> = index.iter().map(|&i| strip(&text(i)).to_string()).collect();
            format!("{}[{}]", operand_word(*operand), index.join(", "))
        }
        Expr::Unary(op, a) => format!("{op}({})", strip(&text(*a))),
        Expr::Binary(op, a, b) if op.is_infix() => format!("({} {op} {})", text(*a), text(*b)),
        Expr::Binary(op, a, b) => format!("{op}({}, {})", strip(&text(*a)), strip(&text(*b))),
        Expr::Select(c, a, b) => {
            format!("select({}, {}, {})", strip(&text(*c)), strip(&text(*a)), strip(&text(*b)))
        }
        Expr::Cast(ty, a) => format!("{ty}({})", strip(&text(*a))),
        Expr::Round(dtype, a) => format!("to_{dtype}({})", strip(&text(*a))),
    }
}

fn operand_word(k: u16) -> String {
    if k < 26 { char::from(b'a' + k as u8).to_string() } else { format!("arg{k}") }
}

fn lit_text(lit: Lit) -> String {
    match lit {
        Lit::Bool(b) => b.to_string(),
        Lit::I32(v) => v.to_string(),
        Lit::I64(v) => format!("{v}L"),
        Lit::F32(bits) => {
            let v = f32::from_bits(bits);
            if v.is_nan() { format!("f32_bits({bits})") } else { format!("{v:?}") }
        }
        Lit::F64(bits) => {
            let v = f64::from_bits(bits);
            if v.is_nan() { format!("f64_bits({bits})") } else { format!("{}d", float_text(v)) }
        }
    }
}
