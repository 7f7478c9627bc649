//! `einsum`: operands contract from left to right, each pair as one batched matrix product; repeated labels take diagonals. One or two
//! operands may be complex.

use super::complex::bilinear;
use super::cx::Built;
use super::matmul::multiply;
use super::{AtenOp, Call, Cx, Diagnostic, Val, bad_argument};
use crate::ir::{Dim, Shape, ValueId};
use jvc_kernels::spec::Combine;

/// The rules of this file.
pub(super) const OPS: &[AtenOp] = &[AtenOp { names: &["aten.einsum.default"], rule: einsum }];

/// A label: a letter, or a dimension of the ellipsis counted from its end (so that ellipses of different ranks align).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(std::cmp::Reverse<usize>),
    Letter(char),
}

/// An operand whose dimensions carry distinct labels.
#[derive(Debug, Clone)]
struct Labelled {
    value: ValueId,
    labels: Vec<Label>,
}

impl Labelled {
    fn position(&self, label: Label) -> Option<usize> {
        self.labels.iter().position(|&l| l == label)
    }

    /// Dimensions in the order of `order`, all of which it has.
    fn arranged(&self, cx: &mut Cx, order: &[Label]) -> Built {
        let perm: Vec<usize> = order.iter().map(|&l| self.position(l).expect("the operand has the label")).collect();
        cx.permute(self.value, &perm)
    }

    fn size(&self, cx: &Cx, label: Label) -> Dim {
        self.position(label).map_or(Dim::from(1), |d| cx.shape(self.value)[d].clone())
    }
}

fn einsum(cx: &mut Cx, call: &Call<'_>) -> Result<Vec<Val>, Diagnostic> {
    let equation: String = call.str("equation")?.chars().filter(|c| !c.is_whitespace()).collect();
    let values = call.values(cx, "tensors")?;
    let out = match values.as_slice() {
        [one] => cx.each(one, |cx, x| contracted(cx, &equation, &[x]))?,
        [a, b] => bilinear(cx, a, b, |cx, a, b| contracted(cx, &equation, &[a, b]))?,
        _ => {
            let tensors = call.tensors(cx, "tensors")?;
            contracted(cx, &equation, &tensors)?.into()
        }
    };
    Ok(vec![out])
}

fn contracted(cx: &mut Cx, equation: &str, tensors: &[ValueId]) -> Built {
    let (left, right) = match equation.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (equation, None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != tensors.len() {
        return Err(bad_argument(format!("einsum `{equation}` of {} operands", tensors.len())));
    }
    let mut operands = vec![];
    for (term, &value) in terms.iter().zip(tensors) {
        let labels = parse_term(term, cx.rank(value))?;
        operands.push(without_repeats(cx, Labelled { value, labels })?);
    }
    let output = match right {
        Some(text) => {
            let n_ellipsis = operands
                .iter()
                .map(|o| o.labels.iter().filter(|l| matches!(l, Label::Ellipsis(_))).count())
                .max()
                .unwrap_or(0);
            parse_output(text, n_ellipsis)?
        }
        None => implicit_output(&terms, &operands),
    };
    contract_all(cx, operands, &output)
}

/// Labels of a term; `rank` tells how many dimensions its ellipsis has.
fn parse_term(term: &str, rank: usize) -> Result<Vec<Label>, Diagnostic> {
    let letters = term.chars().filter(|c| c.is_ascii_alphabetic()).count();
    let has_ellipsis = term.contains("...");
    let fits = if has_ellipsis { rank >= letters } else { rank == letters };
    if !fits || term.replace("...", "").chars().any(|c| !c.is_ascii_alphabetic()) {
        return Err(bad_argument(format!("einsum term `{term}` for an operand of {rank} dimensions")));
    }
    Ok(expand(term, rank - letters))
}

fn parse_output(term: &str, n_ellipsis: usize) -> Result<Vec<Label>, Diagnostic> {
    if term.replace("...", "").chars().any(|c| !c.is_ascii_alphabetic()) {
        return Err(bad_argument(format!("einsum output `{term}`")));
    }
    Ok(expand(term, n_ellipsis))
}

fn expand(term: &str, n_ellipsis: usize) -> Vec<Label> {
    let mut labels = vec![];
    let mut rest = term;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("...") {
            labels.extend((0..n_ellipsis).rev().map(|k| Label::Ellipsis(std::cmp::Reverse(k))));
            rest = &rest[3..];
        } else {
            labels.push(Label::Letter(c));
            rest = &rest[1..];
        }
    }
    labels
}

/// Without `->`: the ellipsis, then the letters that occur once in all, in alphabetical order (capitals first).
fn implicit_output(terms: &[&str], operands: &[Labelled]) -> Vec<Label> {
    let count = |c: char| terms.iter().flat_map(|t| t.chars()).filter(|&d| d == c).count();
    let mut all: Vec<Label> = operands.iter().flat_map(|o| o.labels.iter().copied()).collect();
    all.sort();
    all.dedup();
    all.retain(|l| match l {
        Label::Ellipsis(_) => true,
        Label::Letter(c) => count(*c) == 1,
    });
    all
}

/// Takes the diagonal of dimensions with one label.
fn without_repeats(cx: &mut Cx, operand: Labelled) -> Result<Labelled, Diagnostic> {
    let mut labels: Vec<Label> = vec![];
    for &l in &operand.labels {
        if !labels.contains(&l) {
            labels.push(l);
        }
    }
    if labels.len() == operand.labels.len() {
        return Ok(operand);
    }
    let shape = labels.iter().map(|&l| operand.size(cx, l)).collect();
    let dtype = cx.tensor_dtype(operand.value);
    let value = cx.compute(shape, dtype, &[operand.value], |b, axes| {
        let position = |l: &Label| labels.iter().position(|k| k == l).expect("labels hold every label");
        let index: Vec<_> = operand.labels.iter().map(|l| axes[position(l)]).collect();
        b.load(0, &index)
    })?;
    Ok(Labelled { value, labels })
}

fn contract_all(cx: &mut Cx, operands: Vec<Labelled>, output: &[Label]) -> Built {
    let mut rest = operands.into_iter();
    let mut acc = rest.next().expect("einsum has an operand");
    let rest: Vec<Labelled> = rest.collect();
    for (i, next) in rest.iter().enumerate() {
        let later = |l: Label| output.contains(&l) || rest[i + 1..].iter().any(|o| o.labels.contains(&l));
        acc = contract(cx, &acc, next, later)?;
    }
    let acc = sum_out(cx, acc, |l| output.contains(&l))?;
    acc.arranged(cx, output)
}

/// Sums over the dimensions whose labels are not kept.
fn sum_out(cx: &mut Cx, operand: Labelled, keep: impl Fn(Label) -> bool) -> Result<Labelled, Diagnostic> {
    let dims: Vec<usize> = (0..operand.labels.len()).filter(|&d| !keep(operand.labels[d])).collect();
    if dims.is_empty() {
        return Ok(operand);
    }
    let dtype = cx.tensor_dtype(operand.value);
    let value = cx.reduce(operand.value, Combine::Sum, &dims, false, dtype)?;
    let labels = operand.labels.iter().copied().filter(|&l| keep(l)).collect();
    Ok(Labelled { value, labels })
}

/// One pair: labels in both that are needed later are the batch, labels in both that are not are summed.
fn contract(cx: &mut Cx, a: &Labelled, b: &Labelled, later: impl Fn(Label) -> bool) -> Result<Labelled, Diagnostic> {
    let a = sum_out(cx, a.clone(), |l| later(l) || b.labels.contains(&l))?;
    let b = sum_out(cx, b.clone(), |l| later(l) || a.labels.contains(&l))?;
    let shared: Vec<Label> = a.labels.iter().copied().filter(|l| b.labels.contains(l)).collect();
    let (batch, inner): (Vec<Label>, Vec<Label>) = shared.iter().partition(|&&l| later(l));
    let free = |x: &Labelled| -> Vec<Label> { x.labels.iter().copied().filter(|l| !shared.contains(l)).collect() };
    let (rows, columns) = (free(&a), free(&b));
    let (a, b) = (with_joint_sizes(cx, a.clone(), &b, &inner)?, with_joint_sizes(cx, b, &a, &inner)?);
    let sizes = |cx: &Cx, x: &Labelled, labels: &[Label]| -> Shape { labels.iter().map(|&l| x.size(cx, l)).collect() };
    let product = |dims: &Shape| dims.iter().fold(Dim::from(1), |p, d| &p * d);
    let (rows_shape, columns_shape) = (sizes(cx, &a, &rows), sizes(cx, &b, &columns));
    let k = product(&sizes(cx, &a, &inner));
    let lhs = a.arranged(cx, &[batch.clone(), rows.clone(), inner.clone()].concat())?;
    let rhs = b.arranged(cx, &[batch.clone(), inner, columns.clone()].concat())?;
    let mut lhs_shape = sizes(cx, &a, &batch);
    lhs_shape.extend([product(&rows_shape), k.clone()]);
    let mut rhs_shape = sizes(cx, &b, &batch);
    rhs_shape.extend([k, product(&columns_shape)]);
    let (lhs, rhs) = (cx.reshape(lhs, lhs_shape)?, cx.reshape(rhs, rhs_shape)?);
    let y = multiply(cx, lhs, rhs)?;
    let mut shape = cx.shape(y);
    shape.truncate(batch.len());
    shape.extend(rows_shape);
    shape.extend(columns_shape);
    Ok(Labelled { value: cx.reshape(y, shape)?, labels: [batch, rows, columns].concat() })
}

/// Broadcasts summed dimensions of size 1 to the other operand's size: a product needs them equal.
fn with_joint_sizes(cx: &mut Cx, x: Labelled, other: &Labelled, inner: &[Label]) -> Result<Labelled, Diagnostic> {
    let mut shape = cx.shape(x.value);
    for &l in inner {
        let d = x.position(l).expect("a shared label");
        if shape[d].is(1) {
            shape[d] = other.size(cx, l);
        }
    }
    Ok(Labelled { value: cx.broadcast_to(x.value, &shape)?, labels: x.labels })
}
