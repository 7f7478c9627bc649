//! Simplifies sizes for generated code: constants are folded and neutral elements dropped, so that no line says `x * 1`.

use super::Size;

impl Size {
    /// An equal formula without what a reader (or clippy) would strike out.
    pub fn simplified(&self) -> Size {
        let pair = |a: &Size, b: &Size| (a.simplified(), b.simplified());
        match self {
            Size::Const(_) | Size::Symbol(_) => self.clone(),
            Size::Add(terms) => fold(terms, 0, i64::checked_add, Size::Add, |s| match s {
                Size::Add(inner) => Ok(inner),
                other => Err(other),
            }),
            Size::Mul(factors) => fold(factors, 1, i64::checked_mul, Size::Mul, |s| match s {
                Size::Mul(inner) => Ok(inner),
                other => Err(other),
            }),
            Size::FloorDiv(a, b) => match pair(a, b) {
                (a, Size::Const(1)) => a,
                (Size::Const(a), Size::Const(b)) if b > 0 => Size::Const(a.div_euclid(b)),
                (a, b) => Size::FloorDiv(Box::new(a), Box::new(b)),
            },
            Size::Mod(a, b) => match pair(a, b) {
                (_, Size::Const(1)) => Size::Const(0),
                (Size::Const(a), Size::Const(b)) if b > 0 => Size::Const(a.rem_euclid(b)),
                (a, b) => Size::Mod(Box::new(a), Box::new(b)),
            },
            Size::Max(a, b) => extreme(pair(a, b), i64::max, Size::Max),
            Size::Min(a, b) => extreme(pair(a, b), i64::min, Size::Min),
        }
    }
}

/// Flattens nested nodes of the same kind, and gathers constants at the end. A product with 0 is 0. Where folding would overflow, the
/// constants stay apart.
fn fold(
    items: &[Size],
    neutral: i64,
    combine: fn(i64, i64) -> Option<i64>,
    node: fn(Vec<Size>) -> Size,
    open: fn(Size) -> Result<Vec<Size>, Size>,
) -> Size {
    let (mut rest, mut constant) = (Vec::new(), neutral);
    for item in items.iter().flat_map(|item| open(item.simplified()).unwrap_or_else(|one| vec![one])) {
        match item {
            Size::Const(value) => match combine(constant, value) {
                Some(folded) => constant = folded,
                None => rest.push(Size::Const(value)),
            },
            other => rest.push(other),
        }
    }
    let is_zero = neutral == 1 && constant == 0;
    if is_zero || rest.is_empty() {
        return Size::Const(constant);
    }
    if constant != neutral {
        rest.push(Size::Const(constant));
    }
    if rest.len() == 1 { rest.remove(0) } else { node(rest) }
}

fn extreme((a, b): (Size, Size), pick: fn(i64, i64) -> i64, node: fn(Box<Size>, Box<Size>) -> Size) -> Size {
    match (a, b) {
        (Size::Const(a), Size::Const(b)) => Size::Const(pick(a, b)),
        (a, b) if a == b => a,
        (a, b) => node(Box::new(a), Box::new(b)),
    }
}
