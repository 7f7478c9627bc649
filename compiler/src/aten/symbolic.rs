//! Python numbers computed from sizes: every result is a formula of the export's symbols, or a literal.

use super::args::Call;
use super::cx::Cx;
use super::view::shape_of;
use super::{AtenOp, Comparison, Val, bad_argument, unsupported_shape};
use crate::ir::Dim;
use crate::report::Diagnostic;

type Vals = Result<Vec<Val>, Diagnostic>;

/// The table.
pub(super) const OPS: &[AtenOp] = &[
    AtenOp { names: &["aten.sym_size.int"], rule: size },
    AtenOp { names: &["aten.sym_stride.int", "aten.sym_storage_offset.default"], rule: layout },
    AtenOp {
        names: &["aten.sym_numel.default", "aten.numel.default"],
        rule: |cx, c| {
            let v = c.value(cx, c.first())?;
            let n = shape_of(cx, &v)?.iter().fold(Dim::from(1), |p, d| &p * d);
            Ok(vec![Val::Int(n)])
        },
    },
    AtenOp { names: &["_operator.add"], rule: |_, c| arithmetic(c, Sym::Add) },
    AtenOp { names: &["_operator.sub"], rule: |_, c| arithmetic(c, Sym::Sub) },
    AtenOp { names: &["_operator.mul"], rule: |_, c| arithmetic(c, Sym::Mul) },
    AtenOp { names: &["_operator.floordiv"], rule: |_, c| arithmetic(c, Sym::FloorDiv) },
    AtenOp { names: &["_operator.mod"], rule: |_, c| arithmetic(c, Sym::Mod) },
    AtenOp { names: &["_operator.truediv"], rule: |_, c| arithmetic(c, Sym::TrueDiv) },
    AtenOp { names: &["_operator.pow"], rule: |_, c| arithmetic(c, Sym::Pow) },
    AtenOp { names: &["torch.sym_max"], rule: |_, c| arithmetic(c, Sym::Max) },
    AtenOp { names: &["torch.sym_min"], rule: |_, c| arithmetic(c, Sym::Min) },
    AtenOp {
        names: &["_operator.neg"],
        rule: |_, c| {
            Ok(vec![match first(c)? {
                Val::Int(d) => Val::Int(&Dim::from(0) - &d),
                Val::Float(v) => Val::Float(-v),
                Val::Ratio(p, q) => Val::Ratio(&Dim::from(0) - &p, q),
                other => return wrong(c, &other),
            }])
        },
    },
    AtenOp { names: &["math.trunc", "torch.sym_int", "math.floor"], rule: |_, c| whole(c, false) },
    AtenOp { names: &["math.ceil"], rule: |_, c| whole(c, true) },
    AtenOp {
        names: &["torch.sym_float"],
        rule: |_, c| {
            Ok(vec![match first(c)? {
                Val::Int(d) => match d.as_const() {
                    Some(v) => Val::Float(v as f64),
                    None => Val::Ratio(d, Dim::from(1)),
                },
                other => other,
            }])
        },
    },
    AtenOp {
        names: &[
            "_operator.eq",
            "_operator.ne",
            "_operator.lt",
            "_operator.le",
            "_operator.gt",
            "_operator.ge",
            "_operator.and_",
            "_operator.or_",
            "torch.sym_not",
        ],
        rule: condition,
    },
];

#[derive(Clone, Copy)]
enum Sym {
    Add,
    Sub,
    Mul,
    FloorDiv,
    Mod,
    TrueDiv,
    Pow,
    Max,
    Min,
}

fn size(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let v = c.value(cx, c.first())?;
    let shape = shape_of(cx, &v)?;
    let dim = c.dim_index("dim", shape.len())?;
    shape.get(dim).map(|d| vec![Val::Int(d.clone())]).ok_or_else(|| bad_argument("size of a 0-d tensor"))
}

/// Strides and offsets are those of the recorded eager run.
fn layout(cx: &mut Cx, c: &Call<'_>) -> Vals {
    let rank = c.rank(cx)?;
    let meta = c.arg_meta(c.first()).ok_or_else(|| bad_argument("a tensor without a recorded layout"))?;
    if c.target == "aten.sym_storage_offset.default" {
        return Ok(vec![Val::Int(meta.storage_offset.clone())]);
    }
    let dim = c.dim_index("dim", rank)?;
    meta.strides.get(dim).map(|d| vec![Val::Int(d.clone())]).ok_or_else(|| bad_argument("stride of a 0-d tensor"))
}

fn first(c: &Call<'_>) -> Result<Val, Diagnostic> {
    c.scalar(c.first())
}

fn wrong<T>(c: &Call<'_>, v: &Val) -> Result<T, Diagnostic> {
    Err(unsupported_shape(format!("{} of {v:?} is not supported", c.target)))
}

fn both(c: &Call<'_>) -> Result<(Val, Val), Diagnostic> {
    let name = |i: usize| c.node.inputs.get(i).map(|n| n.name.as_str());
    match (name(0), name(1)) {
        (Some(a), Some(b)) => Ok((c.scalar(a)?, c.scalar(b)?)),
        _ => Err(bad_argument(format!("{} with less than two arguments", c.target))),
    }
}

fn arithmetic(c: &Call<'_>, op: Sym) -> Vals {
    let (a, b) = both(c)?;
    let out = match (&a, &b) {
        (Val::Int(x), Val::Int(y)) => Some(integers(op, x, y)?),
        _ => match (fraction(&a), fraction(&b)) {
            (Some(x), Some(y)) => fractions(op, x, y),
            _ => literals(op, &a, &b),
        },
    };
    match out {
        Some(v) => Ok(vec![v]),
        None => wrong(c, &Val::List(vec![a, b])),
    }
}

fn integers(op: Sym, x: &Dim, y: &Dim) -> Result<Val, Diagnostic> {
    if matches!(op, Sym::FloorDiv | Sym::Mod | Sym::TrueDiv) && y.is(0) {
        return Err(bad_argument(format!("{x} divided by zero")));
    }
    Ok(Val::Int(match op {
        Sym::Add => x + y,
        Sym::Sub => x - y,
        Sym::Mul => x * y,
        Sym::FloorDiv => x.floor_div(y),
        Sym::Mod => x.rem(y),
        Sym::Max => x.max_of(y),
        Sym::Min => x.min_of(y),
        Sym::TrueDiv => {
            return Ok(match (x.as_const(), y.as_const()) {
                (Some(p), Some(q)) => Val::Float(p as f64 / q as f64),
                _ => Val::Ratio(x.clone(), y.clone()),
            });
        }
        Sym::Pow => match y.as_const() {
            Some(n @ 0..=16) => (0..n).fold(Dim::from(1), |p, _| &p * x),
            _ => return Err(unsupported_shape(format!("{x} to the power {y} is not supported"))),
        },
    }))
}

/// A number as an exact quotient of sizes.
fn fraction(v: &Val) -> Option<(Dim, Dim)> {
    match v {
        Val::Int(d) => Some((d.clone(), Dim::from(1))),
        Val::Ratio(p, q) => Some((p.clone(), q.clone())),
        // Floats with few binary digits are exact fractions.
        Val::Float(f) if (f * 1024.0).fract() == 0.0 && f.abs() < 1e9 => {
            let (mut p, mut q) = ((f * 1024.0) as i64, 1024);
            while p % 2 == 0 && q > 1 {
                (p, q) = (p / 2, q / 2);
            }
            Some((Dim::from(p), Dim::from(q)))
        }
        _ => None,
    }
}

fn fractions(op: Sym, (a, b): (Dim, Dim), (p, q): (Dim, Dim)) -> Option<Val> {
    let (top, bottom) = match op {
        Sym::Add => (&(&a * &q) + &(&p * &b), &b * &q),
        Sym::Sub => (&(&a * &q) - &(&p * &b), &b * &q),
        Sym::Mul => (&a * &p, &b * &q),
        Sym::TrueDiv => (&a * &q, &b * &p),
        Sym::FloorDiv | Sym::Mod | Sym::Pow | Sym::Max | Sym::Min => return None,
    };
    match (top.as_const(), bottom.as_const()) {
        (Some(t), Some(n)) if n != 0 => Some(Val::Float(t as f64 / n as f64)),
        _ => Some(Val::Ratio(top, bottom)),
    }
}

fn literals(op: Sym, a: &Val, b: &Val) -> Option<Val> {
    let value = |v: &Val| match v {
        Val::Float(f) => Some(*f),
        Val::Int(d) => d.as_const().map(|v| v as f64),
        _ => None,
    };
    let (x, y) = (value(a)?, value(b)?);
    Some(Val::Float(match op {
        Sym::Add => x + y,
        Sym::Sub => x - y,
        Sym::Mul => x * y,
        Sym::TrueDiv => x / y,
        Sym::FloorDiv => (x / y).floor(),
        Sym::Mod => x - y * (x / y).floor(),
        Sym::Pow => x.powf(y),
        Sym::Max => x.max(y),
        Sym::Min => x.min(y),
    }))
}

/// A float to an integer; sizes are not negative, so truncation is the floor.
fn whole(c: &Call<'_>, up: bool) -> Vals {
    Ok(vec![match first(c)? {
        Val::Int(d) => Val::Int(d),
        Val::Float(v) => {
            let v = if up {
                v.ceil()
            } else if c.target == "math.floor" {
                v.floor()
            } else {
                v.trunc()
            };
            Val::Int(Dim::from(v as i64))
        }
        Val::Ratio(p, q) if up => Val::Int((&(&p + &q) - &Dim::from(1)).floor_div(&q)),
        Val::Ratio(p, q) => Val::Int(p.floor_div(&q)),
        other => return wrong(c, &other),
    }])
}

/// Decided where both sides are literals; otherwise unknown, which only assertions may consume.
fn condition(_: &mut Cx, c: &Call<'_>) -> Vals {
    let name = |i: usize| c.node.inputs.get(i).map(|n| n.name.as_str());
    let value = |i: usize| name(i).map_or(Ok(Val::None), |n| c.opt_scalar(n));
    let (a, b) = (value(0)?, value(1)?);
    Ok(vec![match (decide_numbers(c.target, &a, &b), &a, &b) {
        (Some(v), ..) => Val::Bool(v),
        (None, Val::Bool(x), _) if c.target == "torch.sym_not" => Val::Bool(!x),
        (None, Val::Bool(x), Val::Bool(y)) if c.target == "_operator.and_" => Val::Bool(*x && *y),
        (None, Val::Bool(x), Val::Bool(y)) if c.target == "_operator.or_" => Val::Bool(*x || *y),
        (None, Val::Int(x), Val::Int(y)) => compare(c.target, x, y),
        _ => Val::None,
    }])
}

/// A comparison that the sizes of a run will decide.
fn compare(target: &str, x: &Dim, y: &Dim) -> Val {
    let (how, a, b) = match target {
        "_operator.eq" => (Comparison::Eq, x, y),
        "_operator.ne" => (Comparison::Ne, x, y),
        "_operator.lt" => (Comparison::Lt, x, y),
        "_operator.le" => (Comparison::Le, x, y),
        "_operator.gt" => (Comparison::Lt, y, x),
        "_operator.ge" => (Comparison::Le, y, x),
        _ => return Val::None,
    };
    Val::Compare(how, a.clone(), b.clone())
}

fn decide_numbers(target: &str, a: &Val, b: &Val) -> Option<bool> {
    let value = |v: &Val| match v {
        Val::Float(f) => Some(*f),
        Val::Int(d) => d.as_const().map(|v| v as f64),
        _ => None,
    };
    let (x, y) = (value(a)?, value(b)?);
    match target {
        "_operator.eq" => Some(x == y),
        "_operator.ne" => Some(x != y),
        "_operator.lt" => Some(x < y),
        "_operator.le" => Some(x <= y),
        "_operator.gt" => Some(x > y),
        "_operator.ge" => Some(x >= y),
        _ => None,
    }
}
